//! `dray explain`: what holds a transfer back, and where each of its sources stands.
//!
//! * `snapshot`: the plain data that is told, whoever tells it.
//! * `watch`: makes it, from within the process of the transfer.
//! * `socket`: asks a running process for it ([ADR 9](../../../../docs/adr/0009-each-command-explains-itself.md)).
//! * `history`: keeps the last one of a transfer that ended.

mod history;
mod snapshot;
mod socket;
mod watch;

use crate::config::Paths;

pub use snapshot::{Bottleneck, Failure, Idle, Role, Snapshot, SourceSnapshot, Standing, State};
pub(crate) use watch::{Figures, Watch, figures_of, nothing_yet};

/// The transfers of this user that run on this machine, the oldest first: those of every command that keeps its sockets
/// where this one looks. A process that is stopped is told with [`State::NoAnswer`], after two seconds.
pub fn running(paths: &Paths) -> Vec<Snapshot> {
    let mut found = socket::ask_all(paths);
    found.sort_by_key(|snapshot| (snapshot.began_unix_us, snapshot.pid));
    found
}

/// Those of them that run in this process.
pub(crate) fn running_here(paths: &Paths) -> Vec<Snapshot> {
    socket::ask_ourselves(paths)
}

/// The last transfers of this user that ended, the newest first, at most
/// [`dray_core::limits::SNAPSHOTS_KEPT_MAX`]: those that lasted 200 ms, and those that failed.
pub fn ended(paths: &Paths) -> Vec<Snapshot> {
    history::read(paths)
}
