//! One process per target: the worker notes each input before it runs it, limits its own memory and aborts when an
//! input takes too long; the watcher saves the input of a worker that ended badly, however it ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dray_fuzz::Target;
use dray_fuzz::runner::{self, Plan};

use crate::{Arguments, say};

/// Address space of a worker. The largest thing any target may allocate is a few MiB; the rest is the program, its
/// threads' stacks and the corpus.
const ADDRESS_SPACE_BYTES: u64 = 1 << 30;
/// Time after which one input counts as an endless loop.
const INPUT_SECONDS_MAX: u64 = 20;
/// Exit code of a worker whose target panicked.
const FOUND: i32 = 1;
/// Bytes of an input that are printed; all of it is saved.
const PRINTED_BYTES_MAX: usize = 256;

fn current_path(artifacts: &Path, target: &Target) -> PathBuf {
    artifacts.join(format!(".running-{}-{}", target.name, std::process::id()))
}

/// Runs `target` in a child; true if it passed.
pub(crate) fn watch(target: &Target, arguments: &Arguments) -> Result<bool, String> {
    let begin = Instant::now();
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    std::fs::create_dir_all(&arguments.artifacts)
        .map_err(|error| failed("create the artifacts folder", error))?;
    let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
    let mut command = Command::new(program);
    command.args(["--worker", "--target", target.name, "--seed", &arguments.seed.to_string()]);
    command.arg("--corpus").arg(&arguments.corpus).arg("--artifacts").arg(&arguments.artifacts);
    match (arguments.seconds, &arguments.input) {
        (_, Some(input)) => command.arg("--input").arg(input),
        (Some(seconds), None) => command.args(["--seconds", &seconds.to_string()]),
        (None, None) => command.args(["--iterations", &arguments.iterations.to_string()]),
    };
    let mut child = command.spawn().map_err(|error| failed("start a worker", error))?;
    let current = arguments.artifacts.join(format!(".running-{}-{}", target.name, child.id()));
    let status = child.wait().map_err(|error| failed("wait for a worker", error))?;
    let ended = match (status.code(), status.signal()) {
        (Some(0), _) => {
            say(&format!("{:<12} passed in {:.1} s", target.name, begin.elapsed().as_secs_f64()));
            let _ = std::fs::remove_file(&current);
            return Ok(true);
        }
        (Some(FOUND), _) => "a panic".to_owned(),
        (Some(code), _) => return Err(format!("worker of {} failed with exit code {code}", target.name)),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    let input = read_noted(&current).map_err(|error| failed("read the input of a worker", error))?;
    let name = format!("{}-{}", target.name, &blake3::hash(&input).to_hex()[..16]);
    let path = arguments.artifacts.join(name);
    std::fs::write(&path, &input).map_err(|error| failed("save the input of a worker", error))?;
    let _ = std::fs::remove_file(&current);
    let shown = &input[..input.len().min(PRINTED_BYTES_MAX)];
    // In one piece: others may have something to tell, too.
    say(&[
        format!("{:<12} FAILED with {ended}, seed {}", target.name, arguments.seed),
        format!("  {} bytes, saved as {}", input.len(), path.display()),
        format!(
            "  hex {}{}",
            data_encoding::HEXLOWER.encode(shown),
            if shown.len() < input.len() { "…" } else { "" }
        ),
        format!("  again: dray-fuzz --target {} --input {}", target.name, path.display()),
    ]
    .join("\n"));
    Ok(false)
}

/// Runs `target` in this process; true if it passed.
pub(crate) fn work(
    target: &Target,
    corpus: &Path,
    only: Option<&Path>,
    plan: Plan,
    artifacts: &Path,
) -> Result<bool, String> {
    let (inputs, plan) = match only {
        Some(path) => {
            let input = std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
            (vec![input], Plan { iterations: 0, ..plan })
        }
        None => {
            let inputs = runner::read_corpus(&corpus.join(target.name));
            (inputs.map_err(|error| format!("read the corpus of {}: {error}", target.name))?, plan)
        }
    };
    limit_memory()?;
    let current = current_path(artifacts, target);
    let note = File::create(&current).map_err(|error| format!("create {}: {error}", current.display()))?;
    let started = watchdog();
    let report = runner::run(target, &inputs, plan, &mut |input| {
        started.fetch_add(1, Ordering::Relaxed);
        // The length first, so that the rest of a longer predecessor does not count.
        let _ = note.write_all_at(&[&(input.len() as u64).to_be_bytes()[..], input].concat(), 0);
    });
    say(&format!(
        "{:<12} {} inputs ({} of them the corpus), {} kept, seed {}",
        target.name,
        report.executed,
        inputs.len(),
        report.kept,
        plan.seed
    ));
    if let Some((_, message)) = &report.failure {
        say(&format!("  {message}"));
    }
    Ok(report.failure.is_none())
}

fn read_noted(current: &Path) -> std::io::Result<Vec<u8>> {
    let noted = std::fs::read(current)?;
    let Some((length, input)) = noted.split_first_chunk::<8>() else { return Ok(Vec::new()) };
    let length = usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX);
    Ok(input[..length.min(input.len())].to_vec())
}

fn limit_memory() -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(ADDRESS_SPACE_BYTES), maximum: Some(ADDRESS_SPACE_BYTES) };
    setrlimit(Resource::As, limit).map_err(|error| format!("limit the memory of a worker: {error}"))
}

/// Starts the thread that aborts when the returned count of inputs stands still.
fn watchdog() -> Arc<AtomicU64> {
    let started = Arc::new(AtomicU64::new(0));
    let watched = Arc::clone(&started);
    std::thread::spawn(move || {
        let mut last = 0;
        loop {
            std::thread::sleep(Duration::from_secs(INPUT_SECONDS_MAX));
            let now = watched.load(Ordering::Relaxed);
            if now == last {
                say(&format!("  an input has run for {INPUT_SECONDS_MAX} seconds"));
                std::process::abort();
            }
            last = now;
        }
    });
    started
}
