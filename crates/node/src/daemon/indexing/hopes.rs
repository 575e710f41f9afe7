//! What came of hope: where files are of one size and have nothing in common, an equal size is no reason to have an object cut.
//!
//! A question for hope names a size; if there is reason to hope, questions for chunks follow. Where those were asked and none was answered, the next
//! object of about that size in that directory is hoped for by its name alone, for a day.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// How long it is remembered that hope was vain.
const VAIN_FOR: Duration = Duration::from_secs(24 * 3600);
/// Directories and sizes that are remembered; with more, all are forgotten.
const HOPES_MAX: usize = 1024;

/// Hope that was given for a size alone, lately.
#[derive(Debug, Default)]
pub(super) struct Hopes {
    hasher: RandomState,
    /// By directory, and by size to the power of two.
    given: Mutex<HashMap<(u64, u32), Given>>,
}

#[derive(Debug)]
struct Given {
    at: Instant,
    /// What came of it: whether chunks of that directory were found, once any were asked for.
    is_fulfilled: Option<bool>,
}

impl Hopes {
    /// Whether an object of `size_bytes` in `directory` may be hoped for by its size.
    pub(super) fn may_hope(&self, directory: &Path, size_bytes: u64) -> bool {
        let given = lock(&self.given);
        let last = given.get(&self.key(directory, size_bytes));
        last.is_none_or(|last| last.is_fulfilled != Some(false) || last.at.elapsed() >= VAIN_FOR)
    }

    /// It was, and there was reason to.
    pub(super) fn hoped(&self, directory: &Path, size_bytes: u64) {
        let key = self.key(directory, size_bytes);
        let mut given = lock(&self.given);
        if given.len() >= HOPES_MAX {
            given.clear();
        }
        given.insert(key, Given { at: Instant::now(), is_fulfilled: None });
    }

    /// Chunks were asked for below `directory`; whether some were found.
    pub(super) fn asked(&self, directory: &Path, is_found: bool) {
        let directory = self.hasher.hash_one(directory);
        let mut given = lock(&self.given);
        let theirs = given.iter_mut().filter(|((of, _), _)| *of == directory);
        // Found once is found.
        theirs.for_each(|(_, given)| given.is_fulfilled = Some(is_found || given.is_fulfilled == Some(true)));
    }

    fn key(&self, directory: &Path, size_bytes: u64) -> (u64, u32) {
        (self.hasher.hash_one(directory), size_bytes.checked_ilog2().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ADR 21, "it must be rare where it is vain": hope by size is given once for a directory and a size where nothing comes of it, and
    /// again and again where something does, or a day later.
    #[test]
    fn vain_hope_is_not_repeated() {
        let (hopes, here, there) = (Hopes::default(), Path::new("/a"), Path::new("/b"));
        let size_bytes = 5 << 30;
        assert!(hopes.may_hope(here, size_bytes));
        hopes.hoped(here, size_bytes);
        assert!(hopes.may_hope(here, size_bytes), "nothing was asked for yet");
        hopes.asked(here, false);
        assert!(!hopes.may_hope(here, size_bytes + 1));
        assert!(hopes.may_hope(there, size_bytes) && hopes.may_hope(here, 2 * size_bytes));
        hopes.asked(there, true);
        assert!(!hopes.may_hope(here, size_bytes));
        hopes.asked(here, true);
        hopes.asked(here, false);
        assert!(hopes.may_hope(here, size_bytes));
        hopes.hoped(here, size_bytes);
        hopes.asked(here, false);
        assert!(!hopes.may_hope(here, size_bytes));
        lock(&hopes.given).values_mut().for_each(|given| {
            given.at = Instant::now().checked_sub(VAIN_FOR).unwrap();
        });
        assert!(hopes.may_hope(here, size_bytes));
        (0..2 * HOPES_MAX as u32).for_each(|number| hopes.hoped(Path::new(&number.to_string()), size_bytes));
        assert!(lock(&hopes.given).len() <= HOPES_MAX);
    }
}
