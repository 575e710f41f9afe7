//! The order in which a running copy tells a tree: each entry before what is below it, names ascending in each directory,
//! and a mark where a directory ends. What breaks it is refused before anything is made of it.

use crate::limits::TREE_DEPTH_MAX;
use crate::{Error, ErrorKind, Result};

use super::{Entry, Name};

/// One step of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// An entry; of a directory, the entries below it follow, up to its [`Item::Leave`].
    Entry(Entry),
    /// The directory begun last has no more entries.
    Leave,
    /// There is no entry for this root: it could not be read, which has been said.
    Missing,
}

/// Encoding of [`Item::Missing`]: a CBOR null.
const MISSING: [u8; 1] = [0xf6];

impl Item {
    /// The encoding: nothing for the end of a directory, a null for a missing root, else the entry's own.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Item::Entry(entry) => entry.to_bytes(),
            Item::Leave => Vec::new(),
            Item::Missing => MISSING.to_vec(),
        }
    }

    /// Inverse of [`Item::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Item> {
        match bytes {
            [] => Ok(Item::Leave),
            bytes if *bytes == MISSING => Ok(Item::Missing),
            _ => Entry::from_bytes(bytes).map(Item::Entry),
        }
    }
}

/// Where an item stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A root: the tree of the source of this number.
    Root(usize),
    /// An entry of the innermost open directory.
    Inner,
    /// The innermost open directory is left.
    Leave,
    /// The source of this number has no tree.
    Missing(usize),
}

/// Holds a stream of items against the rules.
#[derive(Debug)]
pub struct Order {
    /// The last name of each open directory, outermost first.
    open: Vec<Option<Name>>,
    roots: usize,
    roots_max: usize,
    entries: u64,
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::Protocol, why)
}

impl Order {
    /// For `roots` trees.
    pub fn new(roots: usize) -> Order {
        Order { open: Vec::new(), roots: 0, roots_max: roots, entries: 0 }
    }

    /// Entries seen so far; the number of the next one.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Directories that are open.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// True once every root has come and every directory was left.
    pub fn is_complete(&self) -> bool {
        self.open.is_empty() && self.roots == self.roots_max
    }

    /// Takes the next item. `Protocol`, naming the entry, if it cannot stand here.
    pub fn accept(&mut self, item: &Item) -> Result<Step> {
        let entry = match item {
            Item::Leave => {
                return match self.open.pop() {
                    Some(_) => Ok(Step::Leave),
                    None => Err(bad("a directory is left that was not entered".into())),
                };
            }
            Item::Missing => return self.root().map(Step::Missing),
            Item::Entry(entry) => entry,
        };
        let step = match (&entry.name, self.open.last_mut()) {
            (None, None) => Step::Root(self.root()?),
            (Some(name), Some(last)) => {
                if let Some(last) = last.as_ref().filter(|last| *last >= name) {
                    let why = if last == name { "comes twice" } else { "is out of order" };
                    return Err(bad(format!("entry {name:?} {why} in its directory")));
                }
                *last = Some(name.clone());
                Step::Inner
            }
            (Some(name), None) => return Err(bad(format!("entry {name:?} is in no directory"))),
            (None, Some(_)) => return Err(bad("an entry without a name in a directory".into())),
        };
        if entry.is_directory() {
            if self.open.len() >= TREE_DEPTH_MAX {
                let name = entry.name.as_ref();
                return Err(bad(format!("entry {name:?} lies more than {TREE_DEPTH_MAX} directories deep")));
            }
            self.open.push(None);
        }
        self.entries += 1;
        Ok(step)
    }

    fn root(&mut self) -> Result<usize> {
        if !self.open.is_empty() || self.roots >= self.roots_max {
            return Err(bad("a root where none may stand".into()));
        }
        self.roots += 1;
        Ok(self.roots - 1)
    }
}
