//! A program that ends in time: it leads a process group of its own, which is killed as a whole when its time is over.

use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// In which `/proc` tells times (`USER_HZ`, the same on every Linux that Rust runs on).
const TICK: Duration = Duration::from_millis(10);

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) status: ExitStatus,
    /// Of the program and the processes that it waited for; zero where there is no `/proc`.
    pub(crate) processor: Duration,
    /// Its time was over.
    pub(crate) is_killed: bool,
}

/// Runs `command` for at most `limit`. Where it has other rights than this program, its group is killed by a command after `through`, as it
/// was started.
///
/// # Errors
/// If it cannot be started or waited for.
pub(crate) fn run(command: &mut Command, limit: Duration, through: &[String]) -> io::Result<Exit> {
    use std::os::unix::process::CommandExt;
    let mut child = command.process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("it has no process id"))?;
    let (ended, has_ended) = mpsc::channel::<()>();
    let (waited, is_killed) = std::thread::scope(|scope| {
        let guard = scope.spawn(move || {
            let is_late = has_ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_late {
                kill(pid, through);
            }
            is_late
        });
        let waited = wait(pid);
        drop(ended);
        // Before the process is buried, so that nobody else can have its number.
        (waited, guard.join().unwrap_or(false))
    });
    waited?;
    let processor = processor_time(&child);
    Ok(Exit { status: child.wait()?, processor, is_killed })
}

/// Kills the group that `pid` leads.
fn kill(pid: Pid, through: &[String]) {
    if kill_process_group(pid, Signal::KILL).is_ok() {
        return;
    }
    if let Some((first, more)) = through.split_first() {
        let group = format!("-{}", pid.as_raw_nonzero());
        // What comes of it is seen by the end of the group, or by nobody.
        let _ = Command::new(first).args(more).args(["kill", "-KILL", "--", &group]).status();
    }
}

/// Waits for the end of a process, which stays in /proc until it is waited for in earnest.
fn wait(pid: Pid) -> io::Result<()> {
    while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(())
}

/// What a process that has ended used, with those it has waited for.
fn processor_time(child: &Child) -> Duration {
    parse_stat(&fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default())
}

/// The fields 14 to 17 of `/proc/PID/stat`; see proc_pid_stat(5).
fn parse_stat(stat: &str) -> Duration {
    // The name of the program, in brackets, may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u32 =
        fields.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u32>().ok()).sum();
    TICK * ticks
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    #[test]
    fn processor_time_is_read() {
        let stat = "7 (a) b) Z 1 7 7 0 -1 4194304 10 20 0 0 3 4 50 60 20 0 1 0 99";
        assert_eq!(parse_stat(stat), Duration::from_millis(1170));
        assert_eq!(parse_stat(""), Duration::ZERO);
    }

    /// What hangs is killed with what it started, and told from what ended by itself.
    #[test]
    fn a_group_ends_with_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let child = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! >{}; wait", child.display());
        let exit = run(Command::new("sh").args(["-c", &script]), Duration::from_secs(1), &[]).unwrap();
        assert!(exit.is_killed, "{exit:?}");
        assert_eq!(exit.status.signal(), Some(Signal::KILL.as_raw()));
        let pid = fs::read_to_string(child).unwrap();
        let place = format!("/proc/{}/stat", pid.trim());
        let is_gone = || fs::read_to_string(&place).map_or(true, |stat| stat.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(20);
        while Path::new(&place).exists() && !is_gone() {
            assert!(Instant::now() < deadline, "process {pid} was left");
            std::thread::sleep(Duration::from_millis(10));
        }
        let limit = Duration::from_secs(600);
        let exit = run(Command::new("sh").args(["-c", "exit 7"]), limit, &[]).unwrap();
        assert_eq!((exit.status.code(), exit.is_killed), (Some(7), false));
        assert!(run(&mut Command::new("/no/such/program"), limit, &[]).is_err());
    }
}
