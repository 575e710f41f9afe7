//! What rules protect from being deleted, those in files of the destination's own directories among them: as they were before the run, and as they
//! are once everything has come. What either protects stays.

use dray_core::{Error, ErrorKind, Result};

use super::super::directory::Directory;
use super::super::exclude::Excludes;
use super::super::filter::{Asked, Local};

/// The rules of the directories on the way to what is looked at.
#[derive(Debug)]
pub(super) struct Protected {
    /// As they were before the run: a level for each file, and why it cannot be read as rules.
    before: Local,
    before_failed: Vec<Option<Failed>>,
    /// As they are.
    now: Local,
    /// The directories entered, the destination itself not among them. Each is read before anything in it is deleted, and once.
    entered: Vec<Entered>,
    /// Why the rules of the destination itself cannot be read.
    base_failed: Option<Failed>,
    is_begun: bool,
    fills_base: bool,
}

/// Which rules protect something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Those of the command line, by themselves.
    Command,
    /// Those in files.
    Files,
}

#[derive(Debug)]
struct Entered {
    name: Vec<u8>,
    directory: Directory,
    /// Why its rules cannot be read: nobody knows what in it is protected.
    failed: Option<Failed>,
}

/// Kind and text of an error.
type Failed = (ErrorKind, String);

fn failed(error: &Error) -> Failed {
    (error.kind(), error.to_string())
}

impl Protected {
    /// `fills_base` says whether entries of a source went into the destination itself.
    pub(super) fn new(fills_base: bool) -> Protected {
        Protected {
            before: Local::default(),
            before_failed: Vec::new(),
            now: Local::default(),
            entered: Vec::new(),
            base_failed: None,
            is_begun: false,
            fills_base,
        }
    }

    /// Of the files that stood in directories on the way only the first `count` still count.
    pub(super) fn keep_before(&mut self, count: usize) {
        self.before.truncate(count);
        self.before_failed.truncate(count);
    }

    /// Further in on the way stood this one, in a directory whose path has so many bytes.
    pub(super) fn add_before(&mut self, rules: &Excludes, index: usize, path_len: usize, text: &[u8]) {
        let added = self.before.add(&rules.merges(), index, path_len, text);
        self.before_failed.push(added.err().as_ref().map(failed));
    }

    /// What protects the entry at `path`, if anything does; an error if the rules cannot be read.
    pub(super) fn by(
        &mut self,
        rules: &Excludes,
        base: &Directory,
        asked: Asked,
        path: &[u8],
        is_directory: bool,
    ) -> Result<Option<By>> {
        if rules.reads_files() {
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            self.enter(rules, base, &path[..end])?;
        }
        let is_left_out = |local| rules.leaves_out(asked, path, is_directory, local);
        Ok(match is_left_out(&self.now) || is_left_out(&self.before) {
            true if is_left_out(&Local::default()) => Some(By::Command),
            true => Some(By::Files),
            false => None,
        })
    }

    /// Goes to the directory at `path`; an error if its rules, or those of one above it, could not be read.
    fn enter(&mut self, rules: &Excludes, base: &Directory, path: &[u8]) -> Result<()> {
        let merges = rules.merges();
        if !self.is_begun {
            self.is_begun = true;
            match self.fills_base {
                true => self.base_failed = self.now.enter(&merges, base, 0).err().as_ref().map(failed),
                false => self.now.pass(0),
            }
        }
        let wanted: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let same = self.entered.iter().zip(&wanted).take_while(|(there, wanted)| there.name == **wanted);
        let same = same.count();
        while self.entered.len() > same {
            self.entered.pop();
            self.now.leave();
        }
        let mut len = self.entered.iter().map(|entered| entered.name.len() + 1).sum::<usize>();
        for name in &wanted[same..] {
            len += name.len() + 1;
            let parent = self.entered.last().map_or(base, |entered| &entered.directory);
            let directory =
                parent.child(name).map_err(|error| Error::file("open it to read the rules in it", error))?;
            let failed = self.now.enter(&merges, &directory, len - 1).err().as_ref().map(failed);
            self.entered.push(Entered { name: name.to_vec(), directory, failed });
        }
        let now = self.base_failed.iter().chain(self.entered.iter().filter_map(|it| it.failed.as_ref()));
        now.chain(self.before_failed.iter().flatten())
            .next()
            .map_or(Ok(()), |(kind, text)| Err(Error::new(*kind, text.clone())))
    }
}
