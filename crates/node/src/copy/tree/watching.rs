//! What whoever runs `dray explain` is told of a copy of trees, from the end where its command was given.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::Result;

use super::{TreeCopied, TreeRequest};
use crate::copy::Location;
use crate::explain::{Role, Snapshot, Watch};
use crate::{Event, Node, Observer};

/// A copy, for people.
pub(super) struct About<'a> {
    command: &'a str,
    role: Role,
    what: String,
    peer: Option<&'a OsStr>,
    to: &'a Path,
}

impl<'a> About<'a> {
    /// One that was asked for with sources and a destination.
    pub(super) fn request(request: &'a TreeRequest) -> About<'a> {
        let command = if request.options.sync.is_some() { "sync" } else { "cp" };
        let first = request.sources.first();
        let (from_host, from) = first.map_or((None, Path::new("")), parts);
        let (to_host, to) = parts(&request.destination);
        let more = match request.sources.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let role = if to_host.is_some() { Role::Sending } else { Role::Receiving };
        let what = format!("{}{more}", from.display());
        About { command, role, what, peer: to_host.or(from_host), to }
    }

    /// One of a directory that is shared by a ticket.
    pub(super) fn ticket(command: &'a str, to: &'a Path) -> About<'a> {
        let what = "the directory of a ticket".to_owned();
        About { command, role: Role::Receiving, what, peer: None, to }
    }
}

fn parts(place: &Location) -> (Option<&OsStr>, &Path) {
    match place {
        Location::Local(path) => (None, path),
        Location::Remote { host, path } => (Some(host), path),
    }
}

/// Hears what the copy tells, and passes it on.
struct Watching<'a> {
    observer: &'a dyn Observer,
    watch: &'a Watch,
    done_bytes: Arc<AtomicU64>,
}

impl Observer for Watching<'_> {
    fn event(&self, event: Event) {
        if let Event::TreeProgress { done_bytes } = &event {
            self.done_bytes.store(*done_bytes, Ordering::Relaxed);
            self.watch.tick();
        }
        self.observer.event(event);
    }
}

impl Node {
    /// Does `copy`, of which there is something to tell while it goes on and afterwards.
    pub(super) fn watched(
        &self,
        about: &About<'_>,
        observer: &dyn Observer,
        copy: impl FnOnce(&dyn Observer) -> Result<TreeCopied>,
    ) -> Result<TreeCopied> {
        let watch = Watch::new(&self.config.paths, about.command);
        let done_bytes = Arc::new(AtomicU64::new(0));
        let done = done_bytes.clone();
        let figures = move || {
            let done_bytes = done.load(Ordering::Relaxed);
            Some(Snapshot { is_tree: true, done_bytes, ..Snapshot::default() })
        };
        let peer = about.peer.map(|peer| peer.to_string_lossy());
        watch.begin(about.role, &about.what, peer.as_deref(), Box::new(figures));
        match about.role {
            Role::Sending => watch.set_far_path(about.to),
            _ => watch.set_path(about.to),
        }
        let watching = Watching { observer, watch: &watch, done_bytes };
        let result = copy(&watching);
        if let Ok(copied) = &result {
            watching.done_bytes.store(copied.bytes, Ordering::Relaxed);
        }
        watch.end(&result);
        result
    }
}
