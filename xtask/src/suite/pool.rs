//! Runs tests, a number of them side by side, each one as a process of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::place::Place;
use super::{Test, turn};
use crate::{group, say, target_folder};

/// Set for tests that run beside others; `dray_lab::Turn` refuses to be taken alone then.
const BESIDE: &str = "DRAY_TEST_BESIDE";
/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);
/// The same with `DRAY_E2E_FULL=1`, which repeats and enlarges.
const LIMIT_FULL: Duration = Duration::from_secs(7200);

/// A test that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) is_ok: bool,
    /// It failed, and passed when it was run again.
    pub(super) is_unsteady: bool,
    /// Why it, or a part of it, did not run.
    pub(super) skips: Vec<String>,
    /// From its start to its end.
    pub(super) time: Duration,
    /// Of the test and the processes that it waited for.
    pub(super) processor: Duration,
}

impl Ended {
    /// Times and name.
    pub(super) fn line(&self) -> String {
        let (time, processor) = (self.time.as_secs_f64(), self.processor.as_secs_f64());
        format!("{time:7.2} s {processor:7.2} s of processor  {}", self.name)
    }
}

/// Who else runs meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Company {
    /// Any others, of other runs too.
    Many,
    /// One other, for which there is a core.
    One,
    /// Nobody.
    None,
}

/// Runs `tests` in their order, `jobs` at a time.
pub(super) fn run(
    tests: &[Test],
    jobs: usize,
    through: &[String],
    company: Company,
    place: &Place,
) -> Result<Vec<Ended>, String> {
    let outputs = target_folder().join("tests");
    fs::create_dir_all(&outputs).map_err(|error| format!("create {}: {error}", outputs.display()))?;
    let is_full = std::env::var("DRAY_E2E_FULL").is_ok_and(|value| value == "1");
    let limit = if is_full { LIMIT_FULL } else { LIMIT };
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    let work = |job: usize| -> Result<(), String> {
        while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Another run may use the same target folder.
            let output = outputs.join(format!("{}-{job}.out", std::process::id()));
            let one = run_one(test, through, company, place, &output, limit)?;
            let word = match (one.is_ok, one.skips.is_empty()) {
                (false, _) => "FAILED",
                (true, false) => "SKIP  ",
                (true, true) => "ok    ",
            };
            say(&format!("{word} {}\n", one.line()))?;
            if !one.is_ok {
                say(&String::from_utf8_lossy(&fs::read(&output).unwrap_or_default()))?;
            }
            fs::remove_file(&output).map_err(|error| format!("remove {}: {error}", output.display()))?;
            ended.lock().map_err(|_| "a job has failed")?.push(one);
        }
        Ok(())
    };
    let work = &work;
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..jobs.min(tests.len())).map(|job| scope.spawn(move || work(job))).collect();
        jobs.into_iter().try_for_each(|job| job.join().map_err(|_| "a job has failed".to_owned())?)
    })?;
    ended.into_inner().map_err(|_| "a job has failed".into())
}

/// Runs one test, for at most `limit`. What it prints goes to a file: a process that outlives the test would keep a pipe open.
fn run_one(
    test: &Test,
    through: &[String],
    company: Company,
    place: &Place,
    output: &Path,
    limit: Duration,
) -> Result<Ended, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", test.full_name());
    let file = File::create(output).map_err(failed)?;
    let both = file.try_clone().map_err(failed)?;
    let program = &test.program;
    let mut words: Vec<OsString> = through.iter().map(OsString::from).collect();
    if let Some(directory) = place.of(test) {
        // A program that changes the user, as sudo, would not pass it on.
        let mut variable = OsString::from("TMPDIR=");
        variable.push(directory);
        words.extend(["env".into(), variable]);
    }
    words.push(program.path.clone().into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.args(["--exact", &test.name]).current_dir(&program.folder);
    command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    if company == Company::Many {
        command.env(BESIDE, "1");
    } else {
        command.env_remove(BESIDE);
    }
    let turn = turn::hold(test, company);
    match &turn {
        Some(_) => command.env(turn::HELD, "1"),
        None => command.env_remove(turn::HELD),
    };
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(file).stderr(both);
    let exit = group::run(&mut command, limit, through).map_err(failed)?;
    let time = begun.elapsed();
    drop(turn);
    if exit.is_killed {
        let words = format!("\nxtask: killed after {} s, the most that a test may take\n", limit.as_secs());
        let file = File::options().append(true).open(output);
        file.and_then(|mut file| file.write_all(words.as_bytes())).map_err(failed)?;
    }
    let text = fs::read(output).map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    // A name that libtest does not know is a success to it.
    let is_ok = exit.status.success() && !exit.is_killed && text.contains("test result: ok. 1 passed");
    Ok(Ended {
        name: test.full_name(),
        is_ok,
        is_unsteady: false,
        skips: skips(&text),
        time,
        processor: exit.processor,
    })
}

/// Why tests did not run, by what they printed: `SKIP NAME: REASON`.
fn skips(text: &str) -> Vec<String> {
    let reason = |line: &str| Some(line.strip_prefix("SKIP ")?.split_once(": ")?.1.to_owned());
    text.lines().filter_map(reason).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::programs::Program;
    use super::*;

    /// Runs a "test program" that is a script.
    fn run_script(script: &str, limit: Duration) -> (Ended, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let output = folder.path().join("out");
        let program =
            Program { package: "some".into(), name: "suite".into(), path, folder: folder.path().to_owned() };
        let test = Test { program, name: "a".into() };
        // By way of a shell: a script that was written just now may be busy for a moment.
        let ended = run_one(&test, &["sh".into()], Company::Many, &Place::none(), &output, limit).unwrap();
        let text = fs::read_to_string(output).unwrap();
        (ended, text)
    }

    const ENOUGH: Duration = Duration::from_secs(600);
    const PASSED: &str = "echo 'test result: ok. 1 passed; 0 failed'";

    #[test]
    fn a_test_that_hangs_has_failed() {
        let (ended, text) = run_script(&format!("{PASSED}; sleep 1000"), Duration::from_secs(1));
        assert!(!ended.is_ok && text.contains("killed after 1 s"), "{ended:?}: {text}");
        let (ended, text) = run_script(PASSED, ENOUGH);
        assert!(ended.is_ok && ended.skips.is_empty(), "{ended:?}: {text}");
        let (ended, _) = run_script("echo 'test result: ok. 0 passed'", ENOUGH);
        assert!(!ended.is_ok, "a name that nobody knows");
    }

    #[test]
    fn a_skip_is_seen_though_the_test_passes() {
        let script = format!("echo 'test a ... '; echo; echo 'SKIP a: no root'; {PASSED}");
        let (ended, _) = run_script(&script, ENOUGH);
        assert!(ended.is_ok);
        assert_eq!(ended.skips, ["no root"]);
    }
}
