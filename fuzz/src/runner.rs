//! Runs a target: first its corpus as it is, then mutations of it, until the plan is fulfilled or a bug is found.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::mutate::mutate;
use crate::rng::Rng;
use crate::{Target, novelty};

/// Mutated inputs per target (fewer by [`Target::cost`]) unless something else is asked for: what CI runs, and what
/// must suffice for the canary.
pub const ITERATIONS: u64 = 50_000;
/// Inputs kept besides the corpus because they showed something new.
const KEPT_MAX: usize = 2048;

/// How long to go on and with which random numbers.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Mutated inputs to run.
    pub iterations: u64,
    /// Time after which no more are run.
    pub duration: Option<Duration>,
    /// Seed of the mutator; the same seed and corpus make the same inputs.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { iterations: ITERATIONS, duration: None, seed: 1 }
    }
}

/// What a run found.
#[derive(Debug)]
pub struct Report {
    /// Inputs run, the corpus included.
    pub executed: u64,
    /// Inputs kept because they showed something new.
    pub kept: usize,
    /// The input that found a bug, and what the target said.
    pub failure: Option<(Vec<u8>, String)>,
}

/// Runs `target` over `corpus` and its mutations. `before` sees each input before it runs, so that an input that ends
/// the process is not lost.
pub fn run(target: &Target, corpus: &[Vec<u8>], plan: Plan, before: &mut dyn FnMut(&[u8])) -> Report {
    let begin = Instant::now();
    let mut rng = Rng::new(plan.seed ^ blake3_of(target.name));
    let mut pool = corpus.to_vec();
    let mut seen = HashSet::new();
    let mut report = Report { executed: 0, kept: 0, failure: None };
    for input in corpus {
        before(input);
        report.executed += 1;
        match try_one(target, input) {
            Ok(notes) => seen.extend(notes),
            Err(message) => {
                report.failure = Some((input.clone(), message));
                return report;
            }
        }
    }
    if pool.is_empty() {
        pool.push(Vec::new());
    }
    let in_time = || plan.duration.is_none_or(|limit| begin.elapsed() < limit);
    let mut left = plan.iterations / target.cost;
    while left > 0 && in_time() {
        left -= 1;
        let input = mutate(&mut rng, target.shape, &pool);
        before(&input);
        report.executed += 1;
        match try_one(target, &input) {
            Ok(notes) => {
                let before = seen.len();
                seen.extend(notes);
                if seen.len() > before && report.kept < KEPT_MAX {
                    report.kept += 1;
                    pool.push(input);
                }
            }
            Err(message) => {
                report.failure = Some((input, message));
                return report;
            }
        }
    }
    report
}

/// Runs one input and returns its notes, or the message of the panic.
fn try_one(target: &Target, input: &[u8]) -> Result<Vec<u64>, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let notes = novelty::take();
    outcome.map(|()| notes).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
    })
}

/// A different stream of random numbers for each target.
fn blake3_of(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The files of `folder` in the order of their names; none if it does not exist.
pub fn read_corpus(folder: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths = match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    paths.sort();
    paths.iter().map(std::fs::read).collect()
}
