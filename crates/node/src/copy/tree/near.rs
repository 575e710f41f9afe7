//! The near end of a tree copy over ssh.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dray_core::message::{CopyRole, EntryFailed, Hello, Message, feature, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::negotiate;
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::transport::{Channel, push_control};
use dray_transfer::tree::{send, take};

use super::super::far_end::FarEnd;
use super::super::local::{SILENCE_MAX, advised, patience};
use super::super::remote::read_control_until;
use super::sink::Writing;
use super::source::WalkSource;
use super::{
    TreeCopied, TreeOptions, landing_name, names_owners, show, tree_message, walk_options, write_options,
};
use crate::{Event, Node, Observer, Stop};

impl Node {
    /// The hello of a tree copy: who does not know trees is refused by name.
    fn tree_hello(&self) -> Hello {
        Hello { required: vec![feature::TREE.to_owned()], ..self.hello() }
    }

    #[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
    pub(super) fn upload_trees(
        &self,
        sources: &[PathBuf],
        host: &OsStr,
        path: &Path,
        must_be_directory: bool,
        options: &TreeOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let names = sources.iter().map(|source| landing_name(source)).collect();
        let destination = vec![path.as_os_str().as_bytes().to_vec()];
        let tree = tree_message(CopyRole::Receive, destination, names, options, must_be_directory)?;
        let (mut far, channel) = FarEnd::start(Some(host), &options.ssh, observer, stop)?;
        let mut preface = Vec::new();
        push_control(&mut preface, &Message::Hello(self.tree_hello()));
        push_control(&mut preface, &Message::Tree(tree.clone()));
        // Its own stop, so that a walk that nobody listens to ends.
        let walk_stop = Stop::new();
        let mut source =
            WalkSource::new(sources.to_vec(), walk_options(&tree), names_owners(&tree), walk_stop.clone());
        let failed = AtomicU64::new(0);
        let ours = self.tree_hello();
        let name = far.host.clone();
        let (is_heard, mut is_greeted) = (Cell::new(false), false);
        let mut heard = |message: Option<Message>| {
            let Some(message) = message else {
                if stop.is_set() {
                    walk_stop.set();
                    return Err(interrupted());
                }
                return Ok(());
            };
            is_heard.set(true);
            match message {
                Message::Hello(theirs) if !is_greeted => {
                    is_greeted = true;
                    negotiate(&ours, &theirs).map(|_| ())
                }
                Message::Fault(fault) => Err(fault.to_error(&name)),
                _ if !is_greeted => {
                    Err(Error::new(ErrorKind::Protocol, "the far end did not say hello first"))
                }
                Message::Progress(progress) => {
                    observer.event(Event::TreeProgress { done_bytes: progress.done_bytes });
                    Ok(())
                }
                Message::EntryFailed(entry) => {
                    failed.fetch_add(entry.count(), Ordering::Relaxed);
                    show(observer, &entry);
                    Ok(())
                }
                _ => Err(Error::new(ErrorKind::Protocol, "the far end sent a message out of place")),
            }
        };
        let mut counting = Counting { source: &mut source, failed: &failed, observer };
        let first_patience = patience();
        let limit = || if is_heard.get() { SILENCE_MAX } else { first_patience };
        let result = send(Box::new(channel), preface, &mut counting, &mut heard, &limit);
        walk_stop.set();
        match result {
            Ok(done) => Ok(TreeCopied::of(&done, failed.load(Ordering::Relaxed))),
            Err(error) if stop.is_set() => {
                far.kill();
                Err(if error.kind() == ErrorKind::Interrupted { error } else { interrupted() })
            }
            Err(error) => {
                if error.kind() == ErrorKind::TimedOut {
                    far.kill();
                }
                Err(advised(far.explain(error, is_heard.get()), Some(&far.host)))
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
    pub(super) fn download_trees(
        &self,
        host: &OsStr,
        paths: &[PathBuf],
        destination: &Path,
        must_be_directory: bool,
        options: &TreeOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        // Names come from the user's own words, never from the far end.
        let names: Vec<Vec<u8>> = paths.iter().map(|path| landing_name(path)).collect();
        let landing = Landing::resolve(destination, &names, must_be_directory)?;
        let asked = paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        let tree = tree_message(CopyRole::Send, asked, Vec::new(), options, must_be_directory)?;
        let (mut far, mut channel) = FarEnd::start(Some(host), &options.ssh, observer, stop)?;
        let mut preface = Vec::new();
        push_control(&mut preface, &Message::Hello(self.tree_hello()));
        push_control(&mut preface, &Message::Tree(tree.clone()));
        let mut greeted = || {
            channel.write_all(&preface).map_err(|error| Error::io("connection lost", error))?;
            let deadline = Instant::now() + patience();
            let body = read_control_until(&mut channel, deadline, &|| stop.is_set())?;
            match Message::from_bytes(&body)? {
                Message::Hello(theirs) => negotiate(&self.tree_hello(), &theirs).map(|_| ()),
                Message::Fault(fault) => Err(fault.to_error(&host.to_string_lossy())),
                _ => Err(Error::new(ErrorKind::Protocol, "the far end did not say hello first")),
            }
        };
        if let Err(error) = greeted() {
            if stop.is_set() {
                far.kill();
                return Err(interrupted());
            }
            return Err(advised(far.explain(error, false), Some(&far.host)));
        }
        let failed = Arc::new(AtomicU64::new(0));
        let on_failed = |entry: &EntryFailed| {
            failed.fetch_add(entry.count(), Ordering::Relaxed);
            show(observer, entry);
        };
        let mut tick = |done_bytes| {
            observer.event(Event::TreeProgress { done_bytes });
            if stop.is_set() { Err(interrupted()) } else { Ok(()) }
        };
        let fsync = tree.flags & tree_flag::FSYNC != 0;
        let make = || {
            let writer = TreeWriter::new(landing, write_options(&tree));
            Ok(Writing::new(writer, names.len(), fsync, &on_failed))
        };
        let result = take(&mut channel, Vec::new(), make, &mut tick, SILENCE_MAX);
        match result {
            Ok(done) => Ok(TreeCopied::of(&done, failed.load(Ordering::Relaxed))),
            Err(error) if stop.is_set() => {
                far.kill();
                Err(if error.kind() == ErrorKind::Interrupted { error } else { interrupted() })
            }
            Err(error) => Err(advised(far.explain(error, true), Some(&far.host))),
        }
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted")
        .advise("run the same command again: what is in place is not sent again")
}

/// A walk whose failures are shown here, where the user is.
struct Counting<'a> {
    source: &'a mut WalkSource,
    failed: &'a AtomicU64,
    observer: &'a dyn Observer,
}

impl dray_transfer::tree::TreeSource for Counting<'_> {
    fn next_batch(&mut self) -> Option<dray_transfer::tree::Batch> {
        let mut batch = self.source.next_batch()?;
        for entry in std::mem::take(&mut batch.failed) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            show(self.observer, &entry);
        }
        Some(batch)
    }

    fn batches_ahead(&self) -> usize {
        self.source.batches_ahead()
    }
}
