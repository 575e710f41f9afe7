//! What rules protect from being deleted, those in files of the destination's own directories among them: by then what the source has of those has come.

use dray_core::{Error, Result};

use super::super::directory::Directory;
use super::super::exclude::Excludes;
use super::super::filter::{Asked, Local};

/// The rules of the directories on the way to what is looked at.
#[derive(Debug)]
pub(super) struct Protected {
    local: Local,
    /// The directories entered: names and descriptors; the destination itself is not among them.
    names: Vec<Vec<u8>>,
    directories: Vec<Directory>,
    is_begun: bool,
    fills_base: bool,
}

impl Protected {
    /// `fills_base` says whether entries of a source went into the destination itself.
    pub(super) fn new(fills_base: bool) -> Protected {
        let (names, directories) = (Vec::new(), Vec::new());
        Protected { local: Local::default(), names, directories, is_begun: false, fills_base }
    }

    /// Whether the entry at `path` stays; an error if the rules cannot be read.
    pub(super) fn has(
        &mut self,
        rules: &Excludes,
        base: &Directory,
        asked: Asked,
        path: &[u8],
        is_directory: bool,
    ) -> Result<bool> {
        if !rules.merges().is_empty() {
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            if let Err(error) = self.enter(rules, base, &path[..end]) {
                // To be asked anew for the next one, which is not protected by what could not be read either.
                *self = Protected::new(self.fills_base);
                return Err(error);
            }
        }
        Ok(rules.leaves_out(asked, path, is_directory, &self.local))
    }

    /// Goes to the directory at `path`.
    fn enter(&mut self, rules: &Excludes, base: &Directory, path: &[u8]) -> Result<()> {
        let merges = rules.merges();
        if !self.is_begun {
            self.is_begun = true;
            match self.fills_base {
                true => self.local.enter(&merges, base, 0)?,
                false => self.local.pass(0),
            }
        }
        let wanted: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let same = self.names.iter().zip(&wanted).take_while(|(there, wanted)| there == *wanted).count();
        while self.names.len() > same {
            self.names.pop();
            self.directories.pop();
            self.local.leave();
        }
        let mut len = self.names.iter().map(|name| name.len() + 1).sum::<usize>();
        for name in &wanted[same..] {
            len += name.len() + 1;
            let parent = self.directories.last().unwrap_or(base);
            let directory =
                parent.child(name).map_err(|error| Error::file("open it to read the rules in it", error))?;
            self.local.enter(&merges, &directory, len - 1)?;
            self.names.push(name.to_vec());
            self.directories.push(directory);
        }
        Ok(())
    }
}
