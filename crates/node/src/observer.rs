//! What the command is told while something runs, and how it stops it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::{ErrorKind, Oid};

/// Bytes that came from one source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceShare {
    /// The source, for people.
    pub label: String,
    /// Bytes delivered from it.
    pub bytes: u64,
    /// How often it owed something and was silent for so long that others were asked instead.
    pub stalls: u64,
}

/// Something worth showing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A file is being hashed.
    Hashing {
        /// Bytes so far.
        done_bytes: u64,
        /// All bytes, if known.
        total_bytes: Option<u64>,
    },
    /// An object is shared and can be had.
    Shared {
        /// Its name.
        oid: Oid,
        /// Its size.
        size_bytes: u64,
        /// The ticket's text.
        ticket: String,
        /// `host:port` of every hint.
        addresses: Vec<String>,
    },
    /// A directory is shared and can be had.
    SharedDirectory {
        /// Its path.
        path: PathBuf,
        /// The ticket's text.
        ticket: String,
        /// `host:port` of every hint.
        addresses: Vec<String>,
    },
    /// A receiver was let in that fetches a directory.
    ServingDirectory {
        /// Its node, hex.
        node: String,
    },
    /// It has gone.
    ServedDirectory {
        /// Its node, hex.
        node: String,
        /// Bytes that were sent to it.
        sent_bytes: u64,
        /// Why it did not come to its end.
        lost: Option<String>,
    },
    /// A receiver was let in.
    Serving {
        /// Its node, hex.
        node: String,
        /// The object.
        oid: Oid,
    },
    /// A receiver that was let in has gone.
    Served {
        /// Its node, hex.
        node: String,
        /// Bytes of the object that were sent to it while it was here, each as often as it was sent. They say nothing of
        /// what it has: it may have had a part before or from elsewhere, and the last of them may not have arrived.
        sent_bytes: u64,
        /// The object's size.
        size_bytes: u64,
        /// The error with which a connection to it broke, and none came since, or that sharing ended under it; `None` if
        /// it closed its connections, which a program that is killed does, too.
        lost: Option<String>,
    },
    /// A receiver was turned away.
    TurnedAway {
        /// Why.
        reason: String,
    },
    /// A transfer has begun.
    Started {
        /// Where to, as far as it is known: where an upload goes, in the words of the command line, on the other host.
        name: Option<PathBuf>,
        /// All bytes.
        total_bytes: u64,
        /// Bytes an earlier run had left.
        resumed_bytes: u64,
    },
    /// How far a transfer is.
    Progress {
        /// Bytes safely here, resumed ones included.
        done_bytes: u64,
        /// All bytes.
        total_bytes: u64,
        /// Where they came from.
        sources: Vec<SourceShare>,
    },
    /// A source came up.
    SourceUp {
        /// The source, for people.
        label: String,
    },
    /// A source was lost.
    SourceDown {
        /// The source, for people.
        label: String,
        /// Why.
        reason: String,
        /// It is not used any more because of what it did: it lied, broke the protocol, or does not have the object.
        is_barred: bool,
        /// That was a lie: what it sent is not of the object.
        has_lied: bool,
    },
    /// Something that is being done and takes a while.
    Note(String),
    /// How far a tree copy is, of which nobody knows how much it will be.
    TreeProgress {
        /// Bytes of content so far.
        done_bytes: u64,
    },
    /// An entry of a tree could not be read or written, or not in full; the others go on.
    EntryFailed {
        /// Which: of the sender's as it is there, of the receiver's below the destination.
        path: PathBuf,
        /// The kind of failure.
        kind: ErrorKind,
        /// What failed and why.
        reason: String,
    },
    /// What a run that changes nothing would do with an entry; nothing is told of what would stay.
    Planned {
        /// What would be done: `new`, `replace`, `compare` or `change`.
        action: &'static str,
        /// Of what would be changed: `permissions`, `owner`, `time`, `attributes`.
        changes: Vec<&'static str>,
        /// Path below the destination.
        path: PathBuf,
    },
    /// An entry was made, changed or deleted by a synchronisation, or would be.
    Synced {
        /// As rsync writes it (`%i`); `None` if it was deleted.
        letters: Option<String>,
        /// Path below the destination; of a directory with a slash at its end.
        path: PathBuf,
        /// Where a symbolic link points, or the first name of a hard link.
        link: Option<PathBuf>,
    },
    /// An entry of a source, which is listed and not brought.
    Listed(Listed),
    /// Something the user should know that does not stop the work.
    Warning(String),
}

/// An entry of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// What it is.
    pub kind: ListedKind,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of a file, or of what a symbolic link points to; of others 0.
    pub size_bytes: u64,
    /// Modification time: seconds since 1970.
    pub mtime_s: i64,
    /// And nanoseconds.
    pub mtime_ns: u32,
    /// Path as it would be below the destination.
    pub path: PathBuf,
    /// Where a symbolic link points.
    pub link: Option<PathBuf>,
}

/// Kinds of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListedKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A fifo.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl ListedKind {
    /// In one word, for programs.
    pub fn word(self) -> &'static str {
        match self {
            ListedKind::File => "file",
            ListedKind::Directory => "directory",
            ListedKind::Link => "link",
            ListedKind::Fifo => "fifo",
            ListedKind::Socket => "socket",
            ListedKind::CharacterDevice => "character-device",
            ListedKind::BlockDevice => "block-device",
        }
    }
}

/// Hears events, from any thread.
pub trait Observer: Send + Sync {
    /// Takes one event; returns quickly.
    fn event(&self, event: Event);
}

impl<F: Fn(Event) + Send + Sync> Observer for F {
    fn event(&self, event: Event) {
        self(event);
    }
}

/// A wish to stop, set by a signal handler or another thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Not stopped.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// The flag itself, for a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// True once stopping was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Whether it was asked for since the last time this was called: for a wish that is fulfilled again and again.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    /// Asks to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}
