//! What this program does when it is started on a host: join the end's cgroup, then become a server, or run one command with
//! the clock on. Entering the namespace, the cgroup and this program costs time that is nobody's, so the clock starts after.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

/// First argument of both.
pub(crate) const JOIN: &str = "--on-host-join";
/// First argument of the one with the clock.
pub(crate) const TIME: &str = "--on-host-time";

/// What one timed command took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Took {
    pub(crate) seconds: f64,
    /// CPU time that the end had used before, in microseconds.
    pub(crate) near_cpu_before: u64,
    pub(crate) far_cpu_before: u64,
    /// The exit code; 128 and the signal if one ended it.
    pub(crate) code: i32,
}

/// `--on-host-join CGROUP COMMAND…`
pub(crate) fn join(words: &[String]) -> Result<ExitCode, String> {
    let [cgroup, program, arguments @ ..] = words else { return Err("nothing to run".into()) };
    enter(cgroup)?;
    Err(format!("start {program}: {}", Command::new(program).args(arguments).exec()))
}

/// `--on-host-time NEAR_CGROUP FAR_CGROUP RESULT COMMAND…`
pub(crate) fn time(words: &[String]) -> Result<ExitCode, String> {
    let [near, far, result, program, arguments @ ..] = words else { return Err("nothing to run".into()) };
    enter(near)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let (near_before, far_before) = (cpu_us(Path::new(near)), cpu_us(Path::new(far)));
    let started = Instant::now();
    let status = command.status();
    let seconds = started.elapsed().as_secs_f64();
    let status = status.map_err(|error| format!("start {program}: {error}"))?;
    let text = format!("{seconds} {near_before} {far_before} {}\n", code(status));
    std::fs::File::create(result)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("write {result}: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

impl Took {
    /// What [`time`] wrote; `None` if it did not come that far.
    pub(crate) fn read(result: &Path) -> Option<Took> {
        let text = std::fs::read_to_string(result).ok()?;
        let mut words = text.split_whitespace();
        Some(Took {
            seconds: words.next()?.parse().ok()?,
            near_cpu_before: words.next()?.parse().ok()?,
            far_cpu_before: words.next()?.parse().ok()?,
            code: words.next()?.parse().ok()?,
        })
    }
}

/// Microseconds of CPU time, user and system, that every process of a cgroup has used, also those that have ended.
pub(crate) fn cpu_us(cgroup: &Path) -> u64 {
    let text = std::fs::read_to_string(cgroup.join("cpu.stat")).unwrap_or_default();
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    usage.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn enter(cgroup: &str) -> Result<(), String> {
    // 0 is the writer, whatever number it has in its process namespace.
    std::fs::write(Path::new(cgroup).join("cgroup.procs"), "0")
        .map_err(|error| format!("join {cgroup}: {error}"))
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
