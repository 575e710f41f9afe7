//! A copy that was cut off goes on in the destination that it made ([ADR 25]): what knows its source, and what the user is told.
//!
//! [ADR 25]: ../../../../../docs/adr/0025-a-destination-that-was-begun.md

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::message::{self, Message};
use dray_core::{Error, ErrorKind};
use dray_store::local::tree::Landed;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::super::{AddressFamily, Location, SshOptions};
use super::TreeCopied;
use crate::identity::{self, Secret};
use crate::{Event, Node, Observer};

/// Puts together what knows a source: each part with its length, so that no two lists of parts are the same.
struct Parts(blake3::Hasher);

impl Parts {
    /// Of the user here, who alone can do so where there is a secret.
    fn new(secret: Option<&Secret>) -> Parts {
        let Some(secret) = secret else {
            // Nothing is kept of this user: the machine, as others call it, and who it is there.
            let mut parts = Parts(blake3::Hasher::new_derive_key("drayman 2026-11-22 source of a copy 2"));
            parts.add(identity::machine().as_bytes());
            parts.add(rustix::system::uname().nodename().to_bytes());
            parts.add(&rustix::process::geteuid().as_raw().to_be_bytes());
            return parts;
        };
        Parts(secret.hasher())
    }

    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_be_bytes()).update(part);
    }

    /// As many as there are, so that two lists of words are not the same as one.
    fn add_all<'a>(&mut self, parts: impl ExactSizeIterator<Item = &'a OsString>) {
        self.0.update(&(parts.len() as u64).to_be_bytes());
        parts.for_each(|part| self.add(part.as_bytes()));
    }

    fn end(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// The hashes of what `add` tells of a source: that of a mark made now, and that of one which this user left before there was an identity.
fn hashes(node: &Node, add: impl Fn(&mut Parts)) -> Vec<[u8; 32]> {
    let hash = |secret| {
        let mut parts = Parts::new(secret);
        add(&mut parts);
        parts.end()
    };
    node.secret().map(|secret| hash(Some(secret))).into_iter().chain([hash(None)]).collect()
}

/// Knows the source at `path` here, whatever words lead to it, and that it is the very one that was there; nothing if none is there.
pub(super) fn source_here(node: &Node, path: &Path) -> Vec<[u8; 32]> {
    let Ok(whole) = std::fs::canonicalize(path) else { return Vec::new() };
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let Ok(found) = statx(CWD, &whole, AtFlags::empty(), wanted) else { return Vec::new() };
    hashes(node, |parts| {
        parts.add(b"here");
        parts.add(whole.as_os_str().as_bytes());
        parts.add(&found.stx_ino.to_be_bytes());
        // Not every file system knows when it was made.
        if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
            parts.add(&found.stx_btime.tv_sec.to_be_bytes());
            parts.add(&found.stx_btime.tv_nsec.to_be_bytes());
        }
    })
}

/// Knows the source that is asked of `host` as `path`, with everything by which ssh finds that host and a login there; nothing if it is not
/// sure which that will be.
pub(super) fn source_there(
    node: &Node,
    host: &OsStr,
    ssh: &SshOptions,
    path: Option<&Path>,
) -> Vec<[u8; 32]> {
    let Some(path) = path else { return Vec::new() };
    hashes(node, |parts| {
        parts.add(b"there");
        let words = [Some(host), ssh.jump.as_deref(), ssh.config.as_deref(), ssh.program.as_deref()];
        words.into_iter().for_each(|word| parts.add(word.unwrap_or_default().as_bytes()));
        parts.add(&ssh.port.unwrap_or_default().to_be_bytes());
        parts.add_all(ssh.options.iter());
        // A key may be bound to a directory, and a name to two hosts.
        parts.add_all(ssh.identities.iter());
        parts.add(&[ssh.family.map_or(0, |family| match family {
            AddressFamily::Inet => 4,
            AddressFamily::Inet6 => 6,
        })]);
        parts.add(path.as_os_str().as_bytes());
    })
}

/// Knows the directory that a ticket names, for this user alone: whoever shares it could make another mark.
pub(super) fn source_of_ticket(node: &Node, id: &[u8; 32]) -> Option<[u8; 32]> {
    let mut parts = Parts::new(Some(node.secret()?));
    parts.add(b"ticket");
    parts.add(id);
    Some(parts.end())
}

/// Where a tree landed, as the far end of an upload says it.
fn message_of(landed: Landed) -> message::Landed {
    let place = match landed {
        Landed::There => 0,
        Landed::Made => 1,
        Landed::MadeUnmarked => 2,
        Landed::Again => 3,
    };
    message::Landed { place }
}

fn landed_of(message: message::Landed) -> Landed {
    match message.place {
        1 => Landed::Made,
        2 => Landed::MadeUnmarked,
        3 => Landed::Again,
        _ => Landed::There,
    }
}

/// Hears where the tree of the only source landed.
pub(super) type OnLanded<'a> = dyn Fn(Landed) + Send + Sync + 'a;

/// Who is to hear where the tree of the only source landed.
#[derive(Clone, Copy, Default)]
pub(super) enum Hears<'a> {
    #[default]
    Nobody,
    /// The user here.
    Here(&'a OnLanded<'a>),
    /// The one at the other end.
    There,
}

impl Hears<'_> {
    /// Tells where the tree landed, once.
    pub(super) fn tell(&self, landed: &mut Option<Landed>, out: &mut Vec<Message>) {
        let Some(landed) = landed.take() else { return };
        match self {
            Hears::Nobody => {}
            Hears::Here(on_landed) => on_landed(landed),
            Hears::There => out.push(Message::Landed(message_of(landed))),
        }
    }
}

/// What is known of where a copy landed, for the words at its end.
pub(super) struct Whereabouts<'a> {
    source: String,
    destination: String,
    observer: &'a dyn Observer,
    /// Set by the first root.
    landed: OnceLock<Landed>,
    /// The far end does not say where anything landed.
    is_unknown: AtomicBool,
}

impl<'a> Whereabouts<'a> {
    /// Of a copy of `source`, if that is the only one.
    pub(super) fn new(
        source: &Location,
        destination: &Location,
        observer: &'a dyn Observer,
    ) -> Whereabouts<'a> {
        Whereabouts {
            source: words(source),
            destination: words(destination),
            observer,
            landed: OnceLock::new(),
            is_unknown: AtomicBool::new(false),
        }
    }

    /// The root of the tree has landed.
    pub(super) fn hear(&self, landed: Landed) {
        if self.landed.set(landed).is_ok() && landed == Landed::Again {
            let (source, destination) = (&self.source, &self.destination);
            let note = format!("goes on in {destination}, which a copy of {source} began and did not end");
            self.observer.event(Event::Note(note));
        }
    }

    /// The same from the far end.
    pub(super) fn hear_from_there(&self, landed: message::Landed) {
        self.hear(landed_of(landed));
    }

    /// The far end is of a version that leaves no marks, and says nothing.
    pub(super) fn nobody_says(&self) {
        self.is_unknown.store(true, Ordering::Relaxed);
    }

    /// The error of a run that was cut off, with what goes on where it stopped.
    pub(super) fn advise(&self, error: Error) -> Error {
        let is_cut = matches!(
            error.kind(),
            ErrorKind::Interrupted | ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::NoSpace
        );
        let (source, destination) = (&self.source, &self.destination);
        let same = format!("{}/.", source.trim_end_matches('/'));
        let room = if error.kind() == ErrorKind::NoSpace { "free some space there; then " } else { "" };
        if !is_cut {
            return error;
        }
        if self.is_unknown.load(Ordering::Relaxed) {
            return error.advise(format!(
                "{room}the same command goes on if {destination} was there before it; if not, write {same} for {source}"
            ));
        }
        match self.landed.get() {
            Some(Landed::MadeUnmarked) => error.advise(format!(
                "{room}write {same} for {source} to go on: {destination} is there now, and no mark of this copy can be kept on it"
            )),
            _ => error,
        }
    }

    /// What was copied, with whether the same command would go elsewhere now: after a dry run it would not.
    pub(super) fn complete(&self, copied: TreeCopied, is_dry: bool) -> TreeCopied {
        let landed = self.landed.get().copied().unwrap_or_default();
        let made_destination = landed != Landed::There && !is_dry;
        TreeCopied { made_destination, ..copied }
    }
}

/// A location as the user writes it.
fn words(location: &Location) -> String {
    match location {
        Location::Local(path) => path.display().to_string(),
        Location::Remote { host, path } => format!("{}:{}", host.to_string_lossy(), path.display()),
    }
}
