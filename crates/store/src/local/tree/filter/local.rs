//! What files of rules have in the directories on the way to an entry.

use dray_core::limits::{SYNC_MERGES_BYTES_MAX, SYNC_MERGES_RULES_MAX};
use dray_core::{Error, ErrorKind, Result};

use super::super::directory::Directory;
use super::{Asked, Merge, Rule};

/// Rules that one file of a directory has.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rules: Vec<Rule>,
    /// Those of the directories above do not count.
    pub(super) is_cut_off: bool,
}

/// A directory on the way to the entry at hand.
#[derive(Debug)]
struct Level {
    /// Bytes of its path.
    path_len: usize,
    /// Of each file of rules that there may be, what it has.
    found: Vec<Option<Found>>,
}

/// What the files of rules have in the directories on the way to the entry at hand.
#[derive(Debug, Default)]
pub(in super::super) struct Local {
    levels: Vec<Level>,
    /// What all of them have.
    kept: Kept,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    rules: usize,
    /// In memory.
    bytes: usize,
}

impl Local {
    /// A directory is entered, whose path has so many bytes; an error if its rules cannot be read, or if they and those above it are too many.
    pub(in super::super) fn enter(
        &mut self,
        merges: &[&Merge],
        directory: &Directory,
        path_len: usize,
    ) -> Result<()> {
        let (mut found, mut result) = (Vec::new(), Ok(()));
        for merge in merges {
            found.push(self.read(merge, directory).unwrap_or_else(|error| {
                result = Err(error);
                None
            }));
        }
        self.levels.push(Level { path_len, found });
        result
    }

    /// What a directory's own file has, if there is room for it.
    fn read(&mut self, merge: &Merge, directory: &Directory) -> Result<Option<Found>> {
        let text = merge.text(directory)?;
        text.map(|text| self.take(merge, &text)).transpose()
    }

    /// What a file of this text says, if there is room for it.
    fn take(&mut self, merge: &Merge, text: &[u8]) -> Result<Found> {
        let found = merge.read(text)?;
        let kept = found.kept();
        let (rules, bytes) = (self.kept.rules + kept.rules, self.kept.bytes + kept.bytes);
        if rules > SYNC_MERGES_RULES_MAX || bytes > SYNC_MERGES_BYTES_MAX {
            let what = format!(
                "its rules and those of the directories above it are more than {SYNC_MERGES_RULES_MAX}, or take more than {SYNC_MERGES_BYTES_MAX} bytes of memory"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        self.kept = Kept { rules, bytes };
        Ok(found)
    }

    /// The directory entered last is left.
    pub(in super::super) fn leave(&mut self) {
        let left = self.levels.pop();
        for found in left.iter().flat_map(|level| level.found.iter().flatten()) {
            let kept = found.kept();
            self.kept.rules -= kept.rules;
            self.kept.bytes -= kept.bytes;
        }
    }

    /// A directory whose path has so many bytes had a file of this text, be it one of several; an error as of [`Local::enter`].
    pub(in super::super) fn add(
        &mut self,
        merges: &[&Merge],
        index: usize,
        path_len: usize,
        text: &[u8],
    ) -> Result<()> {
        let mut found = Vec::new();
        found.resize_with(merges.len(), || None);
        let result = match merges.get(index) {
            Some(merge) => self.take(merge, text).map(|it| found[index] = Some(it)),
            None => Err(Error::new(ErrorKind::Internal, "a file of rules that no rule names")),
        };
        self.levels.push(Level { path_len, found });
        result
    }

    /// All but the first `count` levels are left.
    pub(in super::super) fn truncate(&mut self, count: usize) {
        while self.levels.len() > count {
            self.leave();
        }
    }

    /// A directory is entered that has no rules of its own.
    pub(in super::super) fn pass(&mut self, path_len: usize) {
        self.levels.push(Level { path_len, found: Vec::new() });
    }

    /// What the file `index` of rules says of an entry.
    pub(in super::super) fn decides(
        &self,
        index: usize,
        merge: &Merge,
        asked: Asked,
        path: &[u8],
        is_directory: bool,
    ) -> Option<bool> {
        let parent_len = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        for level in self.levels.iter().rev() {
            if level.path_len != parent_len && !merge.inherits {
                return None;
            }
            let Some(found) = level.found.get(index).and_then(Option::as_ref) else { continue };
            // Behind the slash after the directory.
            let start = if level.path_len == 0 { 0 } else { level.path_len + 1 };
            let decided = found.rules.iter().find_map(|rule| rule.decides(asked, path, start, is_directory));
            if decided.is_some() || found.is_cut_off {
                return decided;
            }
        }
        None
    }
}

impl Found {
    fn kept(&self) -> Kept {
        let bytes = self.rules.iter().map(|rule| size_of::<Rule>() + rule.pattern.heap_bytes()).sum();
        Kept { rules: self.rules.len(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use dray_core::limits::SYNC_MERGE_BYTES_MAX;

    use super::*;
    use crate::local::tree::Excludes;

    /// Design 17: what is kept of files of rules is bounded over all levels, and given back on the way out; none is named twice.
    #[test]
    fn files_of_rules_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let excludes = Excludes::of_rules([&b": .r"[..]].into_iter()).unwrap();
        let merges = excludes.merges();
        for (line, is_by_rules) in [("-_a\n", true), (&*format!("- {}\n", "[a]".repeat(300)), false)] {
            fs::write(dir.path().join(".r"), line.repeat(SYNC_MERGE_BYTES_MAX / line.len())).unwrap();
            let mut local = Local::default();
            let entered = (0..100).take_while(|_| local.enter(&merges, &directory, 0).is_ok()).count();
            assert!((1..20).contains(&entered), "{entered}");
            let Kept { rules, bytes } = local.kept;
            assert!(rules <= SYNC_MERGES_RULES_MAX && bytes <= SYNC_MERGES_BYTES_MAX, "{rules} {bytes}");
            let next = rules + rules / entered > SYNC_MERGES_RULES_MAX;
            assert_eq!(next, is_by_rules);
            // The one that failed has a level, too.
            (0..=entered).for_each(|_| local.leave());
            assert!(local.levels.is_empty() && local.kept.rules == 0 && local.kept.bytes == 0);
            assert!(local.enter(&merges, &directory, 0).is_ok());
        }
        for (rules, is_taken) in [
            ([": .r", ":- .r"], false),
            ([":g .r", ":gn .r"], false),
            ([": .r", ": .s"], true),
            ([": .r", "-.r"], true),
        ] {
            let read = Excludes::of_rules(rules.iter().map(|rule| rule.as_bytes()));
            assert_eq!(read.is_ok(), is_taken, "{rules:?}");
        }
    }
}
