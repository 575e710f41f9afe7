//! Runs tests, a number of them side by side, each one as a process of its own.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::Test;
use crate::{say, target_folder};

/// Set for tests that run beside others; `dray_lab::Turn` refuses to be taken alone then.
const BESIDE: &str = "DRAY_TEST_BESIDE";
/// In which `/proc` tells times (`USER_HZ`, the same on every Linux that Rust runs on).
const TICK: Duration = Duration::from_millis(10);

/// A test that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) is_ok: bool,
    /// It failed, and passed when it was run again.
    pub(super) is_unsteady: bool,
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

/// Runs `tests` in their order, `jobs` at a time.
pub(super) fn run(
    tests: &[Test],
    jobs: usize,
    through: &[String],
    is_beside: bool,
) -> Result<Vec<Ended>, String> {
    let outputs = target_folder().join("tests");
    fs::create_dir_all(&outputs).map_err(|error| format!("create {}: {error}", outputs.display()))?;
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    let work = |job: usize| -> Result<(), String> {
        while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Another run may use the same target folder.
            let output = outputs.join(format!("{}-{job}.out", std::process::id()));
            let one = run_one(test, through, is_beside, &output)?;
            say(&format!("{} {}\n", if one.is_ok { "ok    " } else { "FAILED" }, one.line()))?;
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

/// Runs one test. What it prints goes to a file: a process that outlives the test would keep a pipe open.
fn run_one(test: &Test, through: &[String], is_beside: bool, output: &Path) -> Result<Ended, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", test.full_name());
    let file = File::create(output).map_err(failed)?;
    let both = file.try_clone().map_err(failed)?;
    let program = &test.program;
    let mut command = match through.split_first() {
        Some((first, more)) => {
            let mut command = Command::new(first);
            command.args(more).arg(&program.path);
            command
        }
        None => Command::new(&program.path),
    };
    command.args(["--exact", &test.name]).current_dir(&program.folder);
    command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    if is_beside {
        command.env(BESIDE, "1");
    } else {
        command.env_remove(BESIDE);
    }
    let begun = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(file).stderr(both).spawn().map_err(failed)?;
    let (status, processor) = wait(&mut child).map_err(failed)?;
    let time = begun.elapsed();
    // A name that libtest does not know is a success to it.
    let text = fs::read(output).map_err(failed)?;
    let is_ok = status.success() && String::from_utf8_lossy(&text).contains("test result: ok. 1 passed");
    Ok(Ended { name: test.full_name(), is_ok, is_unsteady: false, time, processor })
}

/// Waits for a process; how it ended, and its processor time, with that of those it has waited for.
fn wait(child: &mut Child) -> std::io::Result<(ExitStatus, Duration)> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("it has no process id"))?;
    // It stays in /proc until it is waited for in earnest.
    while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    Ok((child.wait()?, processor_time(&text)))
}

/// The fields 14 to 17 of `/proc/PID/stat`; see proc_pid_stat(5).
fn processor_time(stat: &str) -> Duration {
    // The name of the program, in brackets, may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u32 =
        fields.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u32>().ok()).sum();
    TICK * ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read() {
        let stat = "7 (a) b) Z 1 7 7 0 -1 4194304 10 20 0 0 3 4 50 60 20 0 1 0 99";
        assert_eq!(processor_time(stat), Duration::from_millis(1170));
        assert_eq!(processor_time(""), Duration::ZERO);
    }
}
