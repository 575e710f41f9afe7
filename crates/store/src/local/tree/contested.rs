//! Sources that share a name in one copy: directories are merged, and what one source brought no later one overwrites.

use std::collections::{HashMap, HashSet};

use dray_core::limits::TREE_CONTESTED_MAX;
use dray_core::tree::Name;
use dray_core::{Error, ErrorKind, Result};

/// The entries of such sources. Of a copy whose sources have names of their own nothing is remembered.
#[derive(Debug, Default)]
pub(super) struct Contested {
    /// Of each source, whether another one may have entries of the same path.
    sources: Vec<bool>,
    /// The source at hand is one of these.
    is_on: bool,
    /// Hashes of the paths of what came, and whether that is a directory.
    seen: HashMap<[u8; 16], bool>,
    /// Entries that there was no room to remember.
    lost: u64,
    /// What there is no room to remember does not come.
    is_strict: bool,
}

impl Contested {
    /// Of sources that go under `names`; the entries of one without a name may meet those of every other.
    pub(super) fn new(names: &[Option<Name>]) -> Contested {
        if names.len() < 2 {
            return Contested::default();
        }
        let is_open = names.iter().any(Option::is_none);
        let (mut once, mut twice) = (HashSet::new(), HashSet::new());
        for name in names.iter().flatten() {
            if !once.insert(name) {
                twice.insert(name);
            }
        }
        let is_contested =
            |name: &Option<Name>| is_open || name.as_ref().is_some_and(|name| twice.contains(name));
        let sources: Vec<bool> = names.iter().map(is_contested).collect();
        if sources.contains(&true) {
            Contested { sources, ..Contested::default() }
        } else {
            Contested::default()
        }
    }

    /// True if entries of several sources may meet.
    pub(super) fn is_possible(&self) -> bool {
        !self.sources.is_empty()
    }

    /// What there is no room to remember is `Refused`: nothing else has what it would overwrite.
    pub(super) fn be_strict(&mut self) {
        self.is_strict = true;
    }

    /// The tree of source `index` begins.
    pub(super) fn begin(&mut self, index: usize) {
        self.is_on = self.sources.get(index).copied().unwrap_or(false);
    }

    /// Something other than a directory is to come to this path: `Refused` if another source brought something there, a directory
    /// among others, which is not to make way.
    pub(super) fn claim(&mut self, path: impl FnOnce() -> Vec<u8>) -> Result<()> {
        self.take(path, false)
    }

    /// A directory is to come to this path: `Refused` if another source brought something else there.
    pub(super) fn claim_directory(&mut self, path: impl FnOnce() -> Vec<u8>) -> Result<()> {
        self.take(path, true)
    }

    fn take(&mut self, path: impl FnOnce() -> Vec<u8>, is_directory: bool) -> Result<()> {
        if !self.is_on {
            return Ok(());
        }
        let path = key(&path());
        match self.seen.get(&path) {
            Some(true) if is_directory => {}
            Some(_) => {
                let what = "another source has an entry of this name, which was copied before";
                return Err(
                    Error::new(ErrorKind::Refused, what).advise("copy them into different directories")
                );
            }
            None if self.seen.len() < TREE_CONTESTED_MAX => {
                self.seen.insert(path, is_directory);
            }
            None if self.is_strict => {
                let what = format!(
                    "more than {TREE_CONTESTED_MAX} entries came already of sources that may share names: it stays"
                );
                return Err(
                    Error::new(ErrorKind::Refused, what).advise("sync each SRC into a directory of its own")
                );
            }
            None => self.lost += 1,
        }
        Ok(())
    }

    /// Nothing came to this path after all.
    pub(super) fn release(&mut self, path: impl FnOnce() -> Vec<u8>) {
        if self.is_on {
            self.seen.remove(&key(&path()));
        }
    }

    /// What to say of entries that there was no room to remember, and how many they are.
    pub(super) fn take_lost(&mut self) -> Option<(String, u64)> {
        let lost = std::mem::take(&mut self.lost);
        let what = format!(
            "whether another source has an entry of the same name, after {TREE_CONTESTED_MAX} entries: the later one counts"
        );
        (lost > 0).then_some((what, lost))
    }
}

/// What a path is remembered by.
pub(super) fn key(path: &[u8]) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Option<Name>> {
        names.iter().map(|name| Name::new(name.as_bytes()).ok()).collect()
    }

    /// As `cp` has it: "will not overwrite just-created".
    #[test]
    fn what_one_source_brought_no_other_overwrites() {
        let mut contested = Contested::new(&names(&["f", "g", "f"]));
        for (index, path, is_refused) in
            [(0, "f", false), (1, "g", false), (1, "g", false), (2, "f/x", false), (2, "f", true)]
        {
            contested.begin(index);
            let claimed = contested.claim(|| path.into());
            assert_eq!(claimed.is_err(), is_refused, "{index} {path}");
        }
        // Directories are merged, and make no way; nor does what they would go in place of.
        assert!(contested.claim_directory(|| b"f/d".to_vec()).is_ok());
        assert!(contested.claim_directory(|| b"f/d".to_vec()).is_ok());
        assert!(contested.claim(|| b"f/d".to_vec()).is_err());
        assert!(contested.claim_directory(|| b"f/x".to_vec()).is_err());
        contested.release(|| b"f".to_vec());
        assert!(contested.claim(|| b"f".to_vec()).is_ok());
        // The entries of `DIR/.` may meet any name.
        let mut open = Contested::new(&names(&["", "f"]));
        open.begin(0);
        assert!(open.claim(|| b"f".to_vec()).is_ok());
        open.begin(1);
        assert!(open.claim(|| b"f".to_vec()).is_err());
        // Nothing is remembered where nothing can meet.
        let mut plain = Contested::new(&names(&["a", "b"]));
        plain.begin(0);
        assert!(plain.claim(|| panic!("no path is made")).is_ok());
    }

    /// S84: where sources lose what came, what there is no room to remember is refused, for it might overwrite what is nowhere else any more; else the later one counts.
    #[test]
    fn what_cannot_be_remembered_stays() {
        let mut contested = Contested::new(&[None, None]);
        contested.begin(0);
        let key = |number: usize| (number as u128).to_be_bytes();
        contested.seen = (0..TREE_CONTESTED_MAX).map(|number| (key(number), false)).collect();
        contested.claim(|| b"new".to_vec()).unwrap();
        assert_eq!(contested.take_lost().unwrap().1, 1);
        contested.be_strict();
        assert_eq!(contested.claim(|| b"new".to_vec()).unwrap_err().kind(), ErrorKind::Refused);
        assert!(contested.take_lost().is_none());
    }
}
