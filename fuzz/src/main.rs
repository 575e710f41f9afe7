//! `dray-fuzz`: runs the fuzz targets on a stable compiler. Each target runs in a process of its own under a limit on
//! its memory and a watchdog, so that an abort, an endless loop or a huge allocation is caught like a panic.

mod supervise;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use dray_fuzz::runner::{ITERATIONS, Plan};
use dray_fuzz::{TARGETS, Target, find};

/// Replays the corpus of each target and then runs seeded mutations of it.
#[derive(Parser, Clone, Debug)]
#[command(name = "dray-fuzz")]
struct Arguments {
    /// Run only this target (may be repeated); all of them by default
    #[arg(long = "target", value_name = "NAME")]
    targets: Vec<String>,
    /// Mutated inputs per target
    #[arg(long, default_value_t = ITERATIONS, conflicts_with = "seconds")]
    iterations: u64,
    /// Seconds per target instead of a number of inputs
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed of the mutations; the same seed repeats the same run (with --iterations)
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run this one input and nothing else
    #[arg(long, value_name = "FILE", requires = "targets")]
    input: Option<PathBuf>,
    /// Succeed only if every target finds a bug: proof that the targets can (see the canary)
    #[arg(long)]
    expect_failure: bool,
    /// Write the initial corpus and stop
    #[arg(long)]
    write_corpus: bool,
    /// Print the names of the targets and stop
    #[arg(long)]
    list: bool,
    /// Folder with one folder of inputs per target
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))]
    corpus: PathBuf,
    /// Folder for inputs that found a bug
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/artifacts"))]
    artifacts: PathBuf,
    /// Run in this process, without the supervisor
    #[arg(long, hide = true)]
    worker: bool,
}

impl Arguments {
    fn plan(&self) -> Plan {
        Plan {
            iterations: if self.seconds.is_some() { u64::MAX } else { self.iterations },
            duration: self.seconds.map(Duration::from_secs),
            seed: self.seed,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("dray-fuzz: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Does what was asked; true if it went well.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let targets = chosen(&arguments.targets)?;
    if arguments.list {
        targets.iter().for_each(|target| say(target.name));
        return Ok(true);
    }
    if arguments.write_corpus {
        return targets.iter().try_for_each(|target| write_corpus(target, &arguments.corpus)).map(|()| true);
    }
    if arguments.worker {
        return targets.iter().try_fold(true, |passed, target| {
            supervise::work(
                target,
                &arguments.corpus,
                arguments.input.as_deref(),
                arguments.plan(),
                &arguments.artifacts,
            )
            .map(|this| passed && this)
        });
    }
    let mut wrong = Vec::new();
    for (target, passed) in targets.iter().zip(watch_all(&targets, arguments)) {
        if passed? == arguments.expect_failure {
            wrong.push(target.name);
        }
    }
    match (wrong.is_empty(), arguments.expect_failure) {
        (true, false) => say(&format!("{} targets, no bug found", targets.len())),
        (true, true) => say("the bug that had to be found was found"),
        (false, false) => say(&format!("bugs found by: {}", wrong.join(", "))),
        (false, true) => say(&format!("no bug found by: {}, though one was expected", wrong.join(", "))),
    }
    Ok(wrong.is_empty())
}

/// Runs each of `targets` in a child, one for each processor at a time; which passed, in their order.
fn watch_all(targets: &[&'static Target], arguments: &Arguments) -> Vec<Result<bool, String>> {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let watch_some = || {
        let of_next = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            targets.get(at).map(|target| (at, supervise::watch(target, arguments)))
        };
        std::iter::from_fn(of_next).collect::<Vec<_>>()
    };
    let mut ended = thread::scope(|scope| {
        let watching: Vec<_> = (0..processors.min(targets.len())).map(|_| scope.spawn(watch_some)).collect();
        let join = |watching: thread::ScopedJoinHandle<'_, _>| {
            watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        watching.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    ended.sort_by_key(|(at, _)| *at);
    ended.into_iter().map(|(_, passed)| passed).collect()
}

fn chosen(names: &[String]) -> Result<Vec<&'static Target>, String> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let unknown = |name: &String| format!("no target {name:?}; --list prints their names");
    names.iter().map(|name| find(name).ok_or_else(|| unknown(name))).collect()
}

fn write_corpus(target: &Target, corpus: &Path) -> Result<(), String> {
    let folder = corpus.join(target.name);
    std::fs::create_dir_all(&folder).map_err(|error| format!("create {}: {error}", folder.display()))?;
    for (name, bytes) in (target.seeds)() {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Prints a line; where standard output is closed there is nobody to tell.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
