//! Starts the programs of a lab so that none outlives it, however it ends.
//!
//! One thread has process and mount namespaces for its children. The first child is process 1 there: a `cat` that waits for the
//! end of a pipe whose other end only the lab holds. When the lab goes, be it by SIGKILL, the pipe ends, process 1 ends, and
//! the kernel kills whatever is left in the namespace, also what called `setsid` or was started by a program started here.

use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::LinkNameSpaceType;

use crate::kernel::{self, Namespace};

/// How long the end of a lab waits for its programs to be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Process 1. Its /proc shows the namespace; what is mounted outside later is seen inside too. It ignores SIGCHLD, so that
/// orphans that end are not kept for it.
const INIT: &str =
    "mount --make-rslave / && mount -t proc proc /proc && trap '' CHLD && echo ready && exec cat >/dev/null";

#[derive(Debug)]
struct Request {
    network: Arc<OwnedFd>,
    command: Command,
    started: Sender<io::Result<Child>>,
}

/// The thread, and what keeps its namespace alive.
#[derive(Debug)]
pub(crate) struct Spawner {
    requests: Mutex<Sender<Request>>,
    init: Mutex<Option<Init>>,
}

/// Process 1.
#[derive(Debug)]
struct Init {
    pid: u32,
    /// Its process namespace, as `/proc` names it.
    namespace: PathBuf,
    /// What it reads. Its end is that of all.
    lifeline: ChildStdin,
    is_over: Receiver<()>,
}

impl Spawner {
    pub(crate) fn start() -> io::Result<Spawner> {
        let (requests, received) = channel::<Request>();
        let (ready, is_ready) = channel();
        std::thread::Builder::new().name("lab spawner".into()).spawn(move || {
            let init = start_init();
            let goes = init.is_ok();
            if ready.send(init).is_ok() && goes {
                for request in received {
                    let Request { network, command, started } = request;
                    let _ = started.send(spawn(&network, command));
                }
            }
        })?;
        let mut init = is_ready.recv().map_err(|_| gone())??;
        let lifeline = init.stdin.take().ok_or_else(gone)?;
        let pid = init.id();
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/pid"))?;
        // Process 1 can be waited for only after everybody else there was, by whoever started them: not something to
        // block on.
        let (over, is_over) = channel();
        std::thread::Builder::new().name("lab undertaker".into()).spawn(move || {
            let _ = init.wait();
            let _ = over.send(());
        })?;
        let init = Init { pid, namespace, lifeline, is_over };
        Ok(Spawner { requests: Mutex::new(requests), init: Mutex::new(Some(init)) })
    }

    /// Starts `command` in the network namespace.
    pub(crate) fn spawn(&self, network: &Arc<OwnedFd>, command: Command) -> io::Result<Child> {
        let (started, is_started) = channel();
        let request = Request { network: Arc::clone(network), command, started };
        {
            let requests = self.requests.lock().map_err(|_| gone())?;
            requests.send(request).map_err(|_| gone())?;
        }
        is_started.recv().map_err(|_| gone())?
    }

    /// Kills every program, and waits until they are gone. One that was started here and is not yet waited for stays a zombie.
    pub(crate) fn end(&self) {
        let Some(init) = self.init.lock().ok().and_then(|mut init| init.take()) else { return };
        drop(init.lifeline);
        let deadline = Instant::now() + PATIENCE;
        while init.is_over.recv_timeout(Duration::from_millis(2)).is_err() && Instant::now() < deadline {
            // Process 1 cannot go before zombies do that only their parent outside can bury.
            if !any_process_in(&init.namespace, init.pid) {
                return;
            }
        }
    }
}

/// True if a process other than `except` runs in the process namespace.
fn any_process_in(namespace: &Path, except: u32) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut others = pids.filter(|pid| *pid != except);
    others.any(|pid| {
        let is_inside = std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|own| own == namespace);
        // `PID (name) STATE …`; the name may hold anything (proc_pid_stat(5)).
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        is_inside
            && !stat().rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    })
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.end();
    }
}

fn start_init() -> io::Result<Child> {
    kernel::unshare(Namespace::ProcessesOfChildren)?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", INIT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut init = command.spawn()?;
    let mut line = String::new();
    if let Some(stdout) = init.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim() == "ready" {
        return Ok(init);
    }
    let output = init.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("process 1 of the lab did not start: {said}")))
}

/// Children are born into the namespaces of the thread that starts them.
fn spawn(network: &OwnedFd, mut command: Command) -> io::Result<Child> {
    rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    command.spawn()
}

fn gone() -> io::Error {
    io::Error::other("the spawner of the lab has ended")
}
