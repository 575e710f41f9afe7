//! How long each test took the last time, kept in the target folder: what is known to be slow begins first.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::Test;
use super::pool::Ended;
use crate::target_folder;

fn path() -> PathBuf {
    target_folder().join("tests/times")
}

/// Milliseconds by full name.
fn read() -> BTreeMap<String, u64> {
    // Without it the order is another one, and nothing else.
    let text = fs::read_to_string(path()).unwrap_or_default();
    let line = |line: &str| {
        let (time, name) = line.split_once(' ')?;
        Some((name.to_owned(), time.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The slow ones first, and before them those of which nothing is known.
pub(super) fn sort(tests: &mut [Test]) {
    let times = read();
    tests.sort_by_cached_key(|test| {
        let time = times.get(&test.full_name()).copied().unwrap_or(u64::MAX);
        (std::cmp::Reverse(time), test.full_name())
    });
}

/// Keeps the times of those that have run now.
pub(super) fn keep(ended: &[Ended]) -> Result<(), String> {
    let mut times = read();
    let now = |ended: &Ended| u64::try_from(ended.time.as_millis()).unwrap_or(u64::MAX);
    times.extend(ended.iter().map(|ended| (ended.name.clone(), now(ended))));
    let text: String = times.iter().map(|(name, time)| format!("{time} {name}\n")).collect();
    fs::write(path(), text).map_err(|error| format!("write {}: {error}", path().display()))
}
