//! Files of rules in the destination that the source has not. Each stays as long as rules of such files protect anything in its directory or below: else one run
//! would delete it, and the next one what it protected.

use dray_core::Result;

use super::super::directory::Directory;
use super::notes::{Notes, Reader, Stamp};

/// Files of rules that wait until everything in their directories was looked at.
#[derive(Debug, Default)]
pub(super) struct Ruling {
    /// The directories on the way to what is looked at, from the destination on.
    levels: Vec<Level>,
    /// Those that protect nothing: they are deleted at the end.
    later: Notes,
    has_any: bool,
    /// What is looked at are those.
    is_last: bool,
}

#[derive(Debug)]
struct Level {
    path: Vec<u8>,
    identity: (u64, u64),
    /// As many as there are names of such files.
    files: Vec<(Vec<u8>, Stamp)>,
    /// Something in it, or below, is protected by rules of files.
    protects: bool,
}

/// True for a directory on the way to `path`, and for that itself.
fn is_on_way(above: &[u8], path: &[u8]) -> bool {
    above.is_empty()
        || path.strip_prefix(above).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

impl Ruling {
    /// What is looked at from here on is in this directory. An error if nothing more can be remembered.
    pub(super) fn enter(&mut self, base: &Directory, path: &[u8], identity: (u64, u64)) -> Result<()> {
        if self.is_last {
            return Ok(());
        }
        self.settle(base, Some(path))?;
        let mut ends = vec![0];
        ends.extend((1..path.len()).filter(|at| path[*at] == b'/'));
        ends.push(path.len());
        ends.dedup();
        for end in ends.into_iter().skip(self.levels.len()) {
            let path = path[..end].to_vec();
            self.levels.push(Level { path, identity: (0, 0), files: Vec::new(), protects: false });
        }
        if let Some(level) = self.levels.last_mut() {
            level.identity = identity;
        }
        Ok(())
    }

    /// A file of rules in the directory entered last waits; false if it is to be deleted now.
    pub(super) fn wait(&mut self, name: &[u8], stamp: Stamp) -> bool {
        match self.levels.last_mut().filter(|_| !self.is_last) {
            Some(level) => level.files.push((name.to_vec(), stamp)),
            None => return false,
        }
        true
    }

    /// Something in the directory entered last, or below, is protected by rules of files.
    pub(super) fn protects(&mut self) {
        self.levels.iter_mut().for_each(|level| level.protects = true);
    }

    /// True once files of rules are looked at that protect nothing, and nothing else.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Everything was looked at: what is to be looked at again, if there is anything.
    pub(super) fn end(&mut self, base: &Directory) -> Result<Option<Reader>> {
        self.settle(base, None)?;
        self.is_last = true;
        Ok(std::mem::take(&mut self.has_any).then(|| std::mem::take(&mut self.later).read()))
    }

    /// Leaves all directories but those on the way to `path`.
    fn settle(&mut self, base: &Directory, path: Option<&[u8]>) -> Result<()> {
        let is_left = |level: &Level| path.is_none_or(|path| !is_on_way(&level.path, path));
        while let Some(level) = self.levels.pop_if(|level| is_left(level)) {
            if level.protects || level.files.is_empty() {
                continue;
            }
            self.has_any = true;
            self.later.directory(&level.path, level.identity);
            level.files.iter().for_each(|(name, stamp)| self.later.name(name, *stamp));
            if self.later.is_full() {
                self.later.spill(base)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::notes::Note;
    use super::*;

    /// Issue "a file of rules protects for one run only": it waits until all below its directory was seen, whatever the order, and goes if nothing was protected.
    #[test]
    fn files_of_rules_wait_for_what_they_protect() {
        let dir = tempfile::tempdir().unwrap();
        let base = Directory::open(dir.path()).unwrap();
        let mut ruling = Ruling::default();
        let steps: [(&str, bool, bool); 8] = [
            // Path, whether something is protected there, and whether its file of rules is met.
            ("a/+b", true, false),
            ("a", false, true),
            ("ab", false, true),
            ("c/d", false, true),
            ("c/d/e", false, true),
            ("c", false, true),
            ("c/f", true, true),
            ("", false, true),
        ];
        for (path, protects, is_met) in steps {
            ruling.enter(&base, path.as_bytes(), (1, path.len() as u64)).unwrap();
            if protects {
                ruling.protects();
            }
            assert!(!is_met || ruling.wait(b".r", Stamp::default()));
        }
        let mut reader = ruling.end(&base).unwrap().unwrap();
        let mut gone = Vec::new();
        while let Some(note) = reader.next().unwrap() {
            if let Note::Directory((1, len), path) = note {
                assert_eq!(len, path.len() as u64);
                gone.push(String::from_utf8(path).unwrap());
            }
        }
        assert_eq!(gone, ["ab", "c/d/e", "c/d"]);
        assert!(!ruling.wait(b".r", Stamp::default()) && ruling.end(&base).unwrap().is_none());
    }
}
