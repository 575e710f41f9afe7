//! Tests of real programs on a real network stack, and of packages whose tests go by the machine's clock, that failed are run once more, with the machine for themselves: what the machine did to
//! them at that moment is told from what is broken. Nothing is hidden: the output of both runs is shown, and a test that passed only the
//! second time is told at the end, and its name kept in the target folder and told again by every run. It is a fault, of the test or of the product, and waits to be mended; several at once are a failure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::place::Place;
use super::pool::{self, Company, Ended};
use super::{CLOCK_PACKAGES, LAB_PACKAGES, Test};
use crate::{say, target_folder};

/// How many tests may fail in one run and be tried again.
const FAILED_MAX: usize = 2;

/// Runs those again that may be, and notes in `ended` what came of it.
pub(super) fn run_again(
    tests: &[&Test],
    ended: &mut [Ended],
    through: &[String],
    place: &Place,
) -> Result<(), String> {
    let failed: Vec<String> = ended.iter().filter(|one| !one.is_ok).map(|one| one.name.clone()).collect();
    let again = chosen(tests, &failed);
    if again.is_empty() {
        return Ok(());
    }
    say(&format!("\nonce more, each alone: {}\n", failed.join(", ")))?;
    note(ended, &pool::run(&again, 1, through, Company::None, place)?);
    Ok(())
}

/// Those of `failed` that are run again: all, or none of them.
fn chosen(tests: &[&Test], failed: &[String]) -> Vec<Test> {
    let mut again: Vec<Test> = Vec::new();
    for test in tests.iter().filter(|test| failed.contains(&test.full_name())) {
        // All others do not depend on the machine's time and are the same each time: a failure is one.
        let package = test.program.package.as_str();
        if !LAB_PACKAGES.contains(&package) && !CLOCK_PACKAGES.contains(&package) {
            return Vec::new();
        }
        again.push((**test).clone());
    }
    if again.len() > FAILED_MAX { Vec::new() } else { again }
}

/// What passed now is unsteady.
fn note(ended: &mut [Ended], again: &[Ended]) {
    for second in again.iter().filter(|second| second.is_ok) {
        for first in ended.iter_mut().filter(|first| first.name == second.name) {
            (first.is_ok, first.is_unsteady) = (true, true);
        }
    }
}

/// Where a name stands for each time that a test was unsteady, until somebody has mended it and deletes the file.
fn path() -> PathBuf {
    target_folder().join("tests/unsteady")
}

/// What there is to tell: which tests were unsteady, now and in earlier runs. Those of now are kept.
pub(super) fn told(ended: &[Ended]) -> Result<String, String> {
    let path = path();
    let mut kept = fs::read_to_string(&path).unwrap_or_default();
    let now: Vec<&str> = ended.iter().filter(|one| one.is_unsteady).map(|one| one.name.as_str()).collect();
    if !now.is_empty() {
        kept.extend(now.iter().map(|name| format!("{name}\n")));
        fs::write(&path, &kept).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    Ok(words(&now, &kept, &path))
}

/// A line for each name in `kept`.
fn words(now: &[&str], kept: &str, path: &Path) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    kept.lines().for_each(|name| *counts.entry(name).or_default() += 1);
    let line = |(name, count): (&str, usize)| match now.contains(&name) {
        true => format!(
            "UNSTEADY: {name} failed, and passed when it was run again ({count} times, {})\n",
            path.display()
        ),
        false => format!("UNSTEADY before: {name} ({count} times, {})\n", path.display()),
    };
    counts.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::programs::Program;
    use super::*;

    fn test(package: &str, name: &str) -> Test {
        let program = Program {
            package: package.into(),
            name: "suite".into(),
            path: "/nowhere".into(),
            folder: "/nowhere".into(),
        };
        Test { program, name: name.into() }
    }

    #[test]
    fn few_tests_of_time_are_run_again() {
        let tests = ["a", "b", "c"].map(|name| test("dray-e2e", name));
        let all: Vec<&Test> = tests.iter().collect();
        let names = |count: usize| -> Vec<String> { tests[..count].iter().map(Test::full_name).collect() };
        assert!(chosen(&all, &[]).is_empty());
        assert_eq!(chosen(&all, &names(1)).len(), 1);
        assert_eq!(chosen(&all, &names(2)).len(), 2);
        assert!(chosen(&all, &names(3)).is_empty(), "so many are no accident");
        assert_eq!(chosen(&[&test("dray-node", "a")], &[test("dray-node", "a").full_name()]).len(), 1);
        let unit = test("dray-core", "a");
        let both = [unit.full_name(), tests[0].full_name()];
        assert!(
            chosen(&[&unit, all[0]], &both).is_empty(),
            "a test that cannot depend on the machine failed"
        );
    }

    #[test]
    fn what_fails_twice_has_failed() {
        let ended = |name: &str, is_ok| Ended {
            name: name.into(),
            is_ok,
            is_unsteady: false,
            skips: Vec::new(),
            time: Duration::ZERO,
            processor: Duration::ZERO,
        };
        let mut first = [ended("a", false), ended("b", false), ended("c", true)];
        note(&mut first, &[ended("a", true), ended("b", false)]);
        assert_eq!(
            first.map(|one| (one.is_ok, one.is_unsteady)),
            [(true, true), (false, false), (true, false)]
        );
    }

    /// A test that was unsteady is told by every later run, too.
    #[test]
    fn who_was_unsteady_is_not_forgotten() {
        let words = words(&["b"], "a\nb\na\n", Path::new("kept"));
        assert_eq!(
            words,
            "UNSTEADY before: a (2 times, kept)\nUNSTEADY: b failed, and passed when it was run again (1 times, kept)\n"
        );
    }
}
