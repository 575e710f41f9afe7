//! The steps that scenarios share: share a file and read the ticket, fetch by ticket, copy over ssh.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use dray_core::ticket::Ticket;
use rustix::process::Signal;

use crate::data;
use crate::gate;
use crate::lab::Host;
use crate::process::{Outcome, Program, Running};
use crate::sweep;
use crate::twins::LONG;

/// Room for the blocks in which ext4 keeps the extents of a file in many pieces; they count in `st_blocks`.
const EXTENT_TREE_BYTES: u64 = 32 * 1024;

/// A `dray put` that serves, and its ticket.
#[derive(Debug)]
pub struct Share {
    /// The serving command.
    pub process: Running,
    /// What it printed.
    pub ticket: String,
}

impl Share {
    /// Waits for the ticket of a started `dray put`.
    pub fn of(process: Running) -> Share {
        let ticket = process.first_line();
        assert!(ticket.starts_with("dray:"), "not a ticket: {process}");
        Share { process, ticket }
    }

    /// The same of one that may refuse: how it ended then.
    pub fn try_of(process: Running) -> Result<Share, Outcome> {
        if process.wait_until_line() { Ok(Share::of(process)) } else { Err(process.wait()) }
    }

    /// The ticket, taken apart.
    pub fn parsed(&self) -> Ticket {
        self.ticket.parse().unwrap_or_else(|error| panic!("{error}: {:?}", self.ticket))
    }

    /// The 64 hex digits of the OID in the ticket.
    pub fn hash(&self) -> String {
        self.parsed().oid.hex()
    }

    /// Port it listens on.
    pub fn port(&self) -> u16 {
        let hints = self.parsed().hints;
        let port = hints.iter().find_map(|hint| match &hint.uri {
            dray_core::hint::HintUri::Dray { port, .. } => Some(*port),
            dray_core::hint::HintUri::Unknown(_) => None,
        });
        port.expect("a ticket names a port")
    }

    /// Ends it as `systemd` or a user would; that is a success.
    #[track_caller]
    pub fn end(self) -> Outcome {
        self.process.terminate().expect(0)
    }
}

/// Serves `path` from `host` until the share is ended or dropped.
pub fn share(host: &Host, path: &Path) -> Share {
    Share::of(put(host, path).start())
}

/// `dray put PATH`, not started yet, with time for a whole scenario.
pub fn put<'a>(host: &'a Host, path: &Path) -> Program<'a> {
    host.dray().arg("put").arg(path).time_limit(Duration::from_secs(600))
}

/// A holder that joins `ticket` with `path` and tells the lie called `lie`, not started yet. Its key is made of `seed`; each
/// one of a lab needs another. [`Share::of`] takes it as it takes a `dray put`; once it has lied it prints `lied: NAME`.
pub fn liar<'a>(host: &'a Host, path: &Path, ticket: &str, lie: &str, seed: u8) -> Program<'a> {
    host.program(gate::liar_binary())
        .arg(path)
        .args(["--ticket", ticket, "--lie", lie, "--seed", &seed.to_string()])
        .args(["--address", &host.address().to_string()])
        .arg("--data-dir")
        .arg(host.dir().join(format!("liar-{seed}")))
        .time_limit(Duration::from_secs(600))
}

/// `dray get TICKET -o PATH`, not started yet.
pub fn get<'a>(host: &'a Host, ticket: &str, path: &Path) -> Program<'a> {
    host.dray().arg("get").arg(ticket).arg("-o").arg(path)
}

/// `dray cp` from `from` to a path on `to`, run on `from`, not started yet.
pub fn copy_to<'a>(from: &'a Host, to: &Host, source: &Path, destination: &Path) -> Program<'a> {
    copy(from, to, source.into(), to.remote(destination))
}

/// `dray cp` of a path on `from` to `to`, run on `to`, not started yet.
pub fn copy_from<'a>(from: &Host, to: &'a Host, source: &Path, destination: &Path) -> Program<'a> {
    copy(to, from, from.remote(source), destination.into())
}

/// How a copy of [`cp`] goes.
pub const WAYS: [&str; 3] = ["here", "up", "down"];

/// A user without rights.
pub const NOBODY: u32 = 65_534;

/// `dray cp` of `sources` to `copy`: on `a` alone, from `a` to `b`, or by `b` from `a`. Both hosts see all files.
pub fn cp<'a>(
    a: &'a Host,
    b: &'a Host,
    way: &str,
    options: &[&str],
    sources: &[&Path],
    copy: &Path,
) -> Program<'a> {
    let (near, far) = if way == "down" { (b, a) } else { (a, b) };
    let mut program = near.dray().arg("cp").args(options).time_limit(Duration::from_secs(300));
    if way != "here" {
        program = program.args(far.ssh_options());
    }
    for source in sources {
        program = if way == "down" { program.arg(far.remote(source)) } else { program.arg(source) };
    }
    if way == "up" { program.arg(far.remote(copy)) } else { program.arg(copy) }
}

fn copy<'a>(local: &'a Host, remote: &Host, source: OsString, destination: OsString) -> Program<'a> {
    local.dray().arg("cp").args(remote.ssh_options()).arg(source).arg(destination)
}

/// Panics unless `delivered` equals `source`, takes no more room (but for what the file system needs to find its
/// pieces), has the OID `hash` if one is given, and stands alone in its directory.
#[track_caller]
pub fn assert_delivered(source: &Path, delivered: &Path, hash: Option<&str>) {
    data::assert_same(source, delivered);
    if let Some(hash) = hash {
        assert_eq!(data::b3sum(delivered), hash, "b3sum of {}", delivered.display());
    }
    let (now, before) = (data::settled_bytes(delivered), data::settled_bytes(source));
    assert!(
        now.abs_diff(before) <= EXTENT_TREE_BYTES,
        "{} takes {now} bytes, not {before}",
        delivered.display()
    );
    assert_alone(delivered);
}

/// Panics unless rsync, told to compare everything that it can, finds nothing to do and nothing too much. `user` is who asks;
/// `None` for the user of the test.
#[track_caller]
pub fn assert_same_tree(host: &Host, source: &Path, copy: &Path, user: Option<u32>) {
    assert!(gate::find_tool("rsync").is_some(), "these tests need rsync as a witness");
    let slash = |path: &Path| format!("{}/", path.display());
    let rsync = host.program("rsync").args(["-aHAXn", "--checksum", "--itemize-changes", "--delete"]);
    let rsync = rsync.arg(slash(source)).arg(slash(copy)).time_limit(Duration::from_secs(300));
    let rsync = match user {
        Some(user) => rsync.user(user),
        None => rsync,
    };
    assert_eq!(rsync.run().expect(0).stdout_text(), "", "rsync would change {}", copy.display());
}

/// Panics unless `path` is the only entry of its directory.
#[track_caller]
pub fn assert_alone(path: &Path) {
    let names = data::names(path.parent().expect("a file has a directory"));
    assert_eq!(names, [path.file_name().expect("a file has a name")], "left behind");
}

/// Panics unless the failed delivery to `path` left nothing there but resume state.
#[track_caller]
pub fn assert_not_delivered(path: &Path) {
    let dir = path.parent().expect("a file has a directory");
    assert_eq!(data::names(dir), data::unfinished(dir), "a failed delivery leaves only resume state");
}

/// Makes the user of `host` forget what was put and fetched there, so that a `get` of the same object asks the holders again.
pub fn forget(host: &Host) {
    match std::fs::remove_dir_all(host.data_dir().join("store")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("forget: {error}"),
        _ => {}
    }
}

/// Waits until `file` is old enough for its hash to be remembered (design decision 11): its status change must lie
/// two seconds back. The kernel sets that time; it cannot be set by a test.
pub fn let_settle(file: &Path) {
    use std::os::unix::fs::MetadataExt;
    let changed = std::fs::metadata(file).expect("status of a file").ctime();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
    let age = i64::try_from(now.as_secs()).unwrap_or(i64::MAX) - changed;
    std::thread::sleep(Duration::from_millis(3100 - (age.clamp(0, 3) as u64) * 1000));
}

/// Kills a command: `running` itself, or what it started on `far`, of which it must hear then. Nothing of it is left on `far`.
#[track_caller]
pub fn kill_one_end(running: Running, far: &Host, kills_far: bool) {
    if kills_far {
        for pid in far.pids_of("dray") {
            sweep::signal(pid, Signal::KILL);
        }
        assert_ne!(running.wait().code(), Some(0));
    } else {
        running.kill();
    }
    await_no_dray(far, LONG);
}

/// Waits until no `dray` runs on `host`; panics after `patience`.
#[track_caller]
pub fn await_no_dray(host: &Host, patience: Duration) {
    let deadline = Instant::now() + patience;
    while !host.pids_of("dray").is_empty() {
        assert!(
            Instant::now() < deadline,
            "dray still runs on {}: {:?}",
            host.namespace(),
            host.pids_of("dray")
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A path with a slash at its end: what is in it, for `sync` and rsync.
pub fn slashed(path: impl Into<OsString>) -> OsString {
    let mut path = path.into();
    path.push("/");
    path
}
