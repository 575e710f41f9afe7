//! Tests of real programs on a real network stack that failed are run once more, with the machine for themselves: what the machine did to
//! them at that moment is told from what is broken. Nothing is hidden: the output of both runs is shown, and a test that passed only the
//! second time is told at the end. It is a fault, of the test or of the product, and waits to be mended; several at once are a failure.

use super::Test;
use super::pool::{self, Ended};
use crate::say;

/// Packages whose tests depend on the machine's time. All others are the same each time: a failure is one.
const PACKAGES: [&str; 2] = ["dray-e2e", "dray-lab"];
/// How many tests may fail in one run and be tried again.
const FAILED_MAX: usize = 2;

/// Runs those again that may be, and notes in `ended` what came of it.
pub(super) fn run_again(tests: &[&Test], ended: &mut [Ended], through: &[String]) -> Result<(), String> {
    let failed: Vec<String> = ended.iter().filter(|one| !one.is_ok).map(|one| one.name.clone()).collect();
    let again = chosen(tests, &failed);
    if again.is_empty() {
        return Ok(());
    }
    say(&format!("\nonce more, each alone: {}\n", failed.join(", ")))?;
    note(ended, &pool::run(&again, 1, through, false)?);
    Ok(())
}

/// Those of `failed` that are run again: all, or none of them.
fn chosen(tests: &[&Test], failed: &[String]) -> Vec<Test> {
    let mut again: Vec<Test> = Vec::new();
    for test in tests.iter().filter(|test| failed.contains(&test.full_name())) {
        if !PACKAGES.contains(&test.program.package.as_str()) {
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
}
