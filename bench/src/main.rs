//! `cargo xtask bench`: measures Drayman beside its rivals between two hosts on this machine, and renders
//! `docs/performance.md` from the raw numbers. A ratio within one run is a result, an absolute time is weather.
//!
//! The two ends are network namespaces (`pair`), joined by a veth pair or by a link of the network lab. This program starts
//! itself on a host for each command (`worker`), so that the clock runs inside the end. It works in a mount namespace of its
//! own: whatever way it ends, its file systems, hosts and processes go with it.

mod bench;
mod cell;
mod contenders;
mod measure;
mod options;
mod page;
mod pair;
mod results;
mod rows;
mod site;
mod telling;
mod tools;
mod turns;
mod worker;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use bench::Bench;
use dray_lab::Turn;
use options::{HELP, Options};
use results::{Results, Setting};
use site::Site;
use tools::Tools;

/// First argument of this program once it has its own mounts.
const OWN_MOUNTS: &str = "--in-own-mounts";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.first().map(String::as_str) {
        Some(worker::JOIN) => worker::join(&words[1..]),
        Some(worker::TIME) => worker::time(&words[1..]),
        Some("--help" | "-h" | "help") => say(HELP).map(|()| ExitCode::SUCCESS),
        Some(OWN_MOUNTS) => end_with_the_parent().and_then(|()| run(&words[1..])),
        _ => start(&words),
    };
    outcome.unwrap_or_else(|message| {
        // Nowhere is left to report that standard error is closed.
        let _ = writeln!(std::io::stderr(), "bench: {message}");
        ExitCode::from(2)
    })
}

/// Whoever ends the program that was started ends this one, too, and with it all that it started: of one row, not of all those of a smoke test, and unless it ended before this was asked for.
fn end_with_the_parent() -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| format!("ask to end with the parent: {error}"))
}

/// Checks the arguments, then starts this program again with mounts of its own.
fn start(words: &[String]) -> Result<ExitCode, String> {
    let options = Options::parse(words.to_vec()).map_err(|why| format!("{why}\n\n{HELP}"))?;
    if options.lists {
        let lines: String = rows::ALL.iter().map(|row| format!("{:<9} {}\n", row.name, row.about)).collect();
        return say(&lines).map(|()| ExitCode::SUCCESS);
    }
    if let Some(row) = options.rows.iter().find(|name| !rows::ALL.iter().any(|row| row.name == name.as_str()))
    {
        return Err(format!("no row is called {row}; --list names them"));
    }
    if options.renders {
        return page::render(&repository()).and_then(|said| say(&said)).map(|()| ExitCode::SUCCESS);
    }
    dray_lab::Lab::available()?;
    require_usual_scheduling()?;
    let program = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    if options.is_smoke && options.rows.is_empty() {
        return smoke_all(&program, words);
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "--propagation", "private"]).arg(program).arg(OWN_MOUNTS).args(words);
    let status = again.status().map_err(|error| format!("start unshare: {error}"))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Smoke runs of all rows, each in a program of its own, some at a time: they measure nothing that others could disturb, and mostly wait. What each says comes when it ends.
fn smoke_all(program: &Path, words: &[String]) -> Result<ExitCode, String> {
    const ON_EACH_CORE: usize = 2;
    let jobs = ON_EACH_CORE * std::thread::available_parallelism().map_or(1, usize::from);
    let rows = Mutex::new(rows::ALL.iter());
    let next = || rows.lock().map_or(None, |mut rows| rows.next());
    let work = || -> Result<Vec<&str>, String> {
        let mut failed = Vec::new();
        while let Some(row) = next() {
            say(&format!("row {} begins\n", row.name))?;
            let output = Command::new(program).args(words).arg(row.name).output();
            let output = output.map_err(|error| format!("start row {}: {error}", row.name))?;
            // In one piece: others end at the same time.
            say(&[output.stdout, output.stderr]
                .map(|said| String::from_utf8_lossy(&said).into_owned())
                .concat())?;
            if !output.status.success() {
                failed.push(row.name);
            }
        }
        Ok(failed)
    };
    let failed = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let ended = jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| Err("a job has failed".into())));
        ended.collect::<Result<Vec<_>, String>>()
    })?;
    let failed = failed.concat();
    say(&format!(
        "{} rows, {} failed{}\n",
        rows::ALL.len(),
        failed.len(),
        failed.iter().map(|row| format!(" {row}")).collect::<String>()
    ))?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(words: &[String]) -> Result<ExitCode, String> {
    let options = Options::parse(words.to_vec())?;
    let root = repository();
    let builds = match options.builds.is_empty() {
        true => vec![("dray".to_owned(), build_dray(&root)?)],
        false => options.builds.clone(),
    };
    let mut absolute = Vec::new();
    for (name, path) in builds {
        let path =
            path.canonicalize().map_err(|error| format!("build {name}: {}: {error}", path.display()))?;
        absolute.push((name, path));
    }
    let tools = Tools::prepare(options.installs && !options.is_smoke);
    let _machine = lock_machine(!options.is_smoke)?;
    let site = Site::new(options.folder.as_deref())?;
    let folder = if options.is_smoke { site.root.join("results") } else { root.join("bench/results") };
    let setting = Setting {
        is_pinned: options.is_pinned,
        congestion: options.congestion.as_deref(),
        syncs: options.syncs,
        seed: options.seed,
        note: &options.note,
        words: &options.words,
        builds: &absolute,
    };
    let results = Results::create(&folder, &site, &tools, &setting)?;
    let mut bench = Bench::new(options, site, tools, absolute, results);
    let mut unproven = Vec::new();
    for row in rows::ALL {
        let before = bench.successes;
        if bench.options.rows.is_empty() || bench.options.rows.iter().any(|name| name == row.name) {
            (row.run)(&mut bench).map_err(|why| format!("row {}: {why}", row.name))?;
            if bench.successes == before {
                unproven.push(row.name);
            }
        }
    }
    let (lines, failures) = (bench.results.lines, &bench.failures);
    say(&format!("{} lines in {}\n", lines, bench.results.path.display()))?;
    for failure in failures {
        say(&format!("FAILED: {failure}\n"))?;
    }
    if !bench.options.is_smoke {
        say(&page::render(&root)?)?;
    } else if !unproven.is_empty() {
        say(&format!("rows without a run that counts: {unproven:?}\n"))?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The turn of what measures, which is `alone` as calibrations of the lab are: none of them runs beside another, nor beside a test that needs a lab. What only tries rows shares it.
fn lock_machine(alone: bool) -> Result<Turn, String> {
    Turn::take(alone).map_err(|error| format!("lock dray-e2e.lock among temporary files: {error}"))
}

/// Who runs before all others also runs before the lab, and what is measured is not what users have.
fn require_usual_scheduling() -> Result<(), String> {
    let text = std::fs::read_to_string("/proc/self/stat")
        .map_err(|error| format!("read /proc/self/stat: {error}"))?;
    // Behind the name, which may have anything in it; the policy is the 41st field (proc(5)).
    let policy = text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(38));
    match policy {
        Some("0") => Ok(()),
        _ => Err("measure in the scheduling class that users have (chrt --other 0 COMMAND)".into()),
    }
}

/// The release build of this repository.
fn build_dray(root: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["build", "--locked", "--release", "--quiet", "-p", "dray"]);
    site::run(&mut build)?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    Ok(target.join("release/dray"))
}

/// The repository that cargo runs this program from, or where it was built: the folder above its package. Asked for at run time, as a target folder that
/// two clones share holds the program that was built in one of them.
fn repository() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().unwrap_or(&package).to_owned()
}

fn say(text: &str) -> Result<(), String> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("write to standard output: {error}"))
}
