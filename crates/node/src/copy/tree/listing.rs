//! `dray sync --list-only`: what there is at the sources, told and not brought.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use dray_core::message::{CopyRole, EntryFailed, Message, tree_flag};
use dray_core::tree::{Entry, Item, Kind, Order, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::TreeReceiver;
use dray_store::local::tree::{Walked, Walker, own_directory};
use dray_transfer::tree::{Heard, TreeSink, take};

use super::super::far_end::FarEnd;
use super::super::local::{SILENCE_MAX, advised};
use super::super::pattern;
use super::super::remote::unpacked;
use super::near::{found_sources, interrupted};
use super::sources::{by_machine, once, require_one_machine};
use super::sync::{self, name_of};
use super::{Holding, TreeCopied, TreeOptions, TreeRequest, show, tree_message, walk_options};
use crate::{Event, Listed, ListedKind, Location, Node, Observer, Stop};

/// Entries on the way to the one at hand, and how many there were.
struct Path {
    names: Vec<Vec<u8>>,
    /// Names of the sources.
    sources: Vec<Vec<u8>>,
    entries: u64,
}

impl Path {
    fn new(sources: Vec<Vec<u8>>) -> Path {
        Path { names: Vec::new(), sources, entries: 0 }
    }

    /// An item comes: what is said of it.
    fn take(&mut self, item: &Item, step: Step) -> Option<Listed> {
        let Item::Entry(entry) = item else {
            if step == Step::Leave {
                self.names.pop();
            }
            return None;
        };
        let name = match (&entry.name, step) {
            (Some(name), _) => name.as_bytes().to_vec(),
            (None, Step::Root(index)) => self.sources.get(index).cloned().unwrap_or_default(),
            (None, _) => Vec::new(),
        };
        self.entries += 1;
        self.names.push(name);
        let names: Vec<&[u8]> =
            self.names.iter().map(|name| &name[..]).filter(|name| !name.is_empty()).collect();
        let path = if names.is_empty() { b".".to_vec() } else { names.join(&b'/') };
        if !entry.is_directory() {
            self.names.pop();
        }
        Some(listed(entry, path))
    }
}

fn listed(entry: &Entry, path: Vec<u8>) -> Listed {
    let path_of = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let (kind, size_bytes, link) = match &entry.kind {
        Kind::File { size_bytes, .. } => (ListedKind::File, *size_bytes, None),
        Kind::Directory { .. } => (ListedKind::Directory, 0, None),
        Kind::Symlink { target } => (ListedKind::Link, target.len() as u64, Some(path_of(target.clone()))),
        Kind::Fifo => (ListedKind::Fifo, 0, None),
        Kind::Socket => (ListedKind::Socket, 0, None),
        Kind::CharacterDevice { .. } => (ListedKind::CharacterDevice, 0, None),
        Kind::BlockDevice { .. } => (ListedKind::BlockDevice, 0, None),
    };
    let metadata = &entry.metadata;
    Listed {
        kind,
        mode: metadata.mode & 0o7777,
        size_bytes,
        mtime_s: metadata.mtime_s,
        mtime_ns: metadata.mtime_ns,
        path: path_of(path),
        link,
    }
}

impl Node {
    /// Tells what a synchronisation of `sources` would begin with, entry by entry, and brings nothing.
    pub fn list_sources(
        &self,
        sources: &[Location],
        options: &TreeOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let (here, there) = by_machine(once(sources, observer));
        require_one_machine(&here, &there)?;
        let destination = Location::Local(PathBuf::from("."));
        let request = TreeRequest { sources: sources.to_vec(), destination, options: only_read(options) };
        let holding = Holding::new(observer, &request);
        let listed = match there.into_iter().next() {
            Some((host, paths)) => self.list_there(host, &paths, &request.options, &holding, stop),
            None => list_here(here, &request.options, &holding, stop),
        };
        let listed = listed.inspect_err(|_| holding.release_all())?;
        holding.end(&listed)?;
        Ok(listed)
    }

    fn list_there(
        &self,
        host: &OsStr,
        paths: &[PathBuf],
        options: &TreeOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let names: Vec<Vec<u8>> = paths.iter().map(|path| name_of(path, true)).collect();
        let has_patterns = paths.iter().any(|path| pattern::is_pattern(path));
        let asked = paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        let mut tree = tree_message(CopyRole::Send, asked, names.clone(), options, paths.len() > 1)?;
        if has_patterns {
            tree.flags |= tree_flag::PATTERNS;
        }
        let (mut far, mut channel) = FarEnd::start(Some(host), &options.ssh, observer, stop)?;
        let mut is_heard = false;
        let mut greeted = || {
            let (_, deadline) = self.ask_for_trees(&mut channel, host, &tree, options, stop)?;
            is_heard = true;
            match has_patterns {
                true => found_sources(&mut channel, host, paths, &names, None, deadline, stop),
                false => Ok(names.clone()),
            }
        };
        let found = greeted();
        let listed = found.and_then(|names| {
            let mut channel = unpacked(Box::new(channel), options.compress)?;
            let mut tick = |_| if stop.is_set() { Err(interrupted()) } else { Ok(()) };
            let failed = std::sync::atomic::AtomicU64::new(0);
            let make = || {
                own_directory();
                let machine = TreeReceiver::new(names.len());
                Ok(Listing { machine, path: Path::new(names), observer, failed: &failed, is_over: false })
            };
            let silence_max = sync::patience(&tree, SILENCE_MAX);
            let done = take(&mut *channel, Vec::new(), make, None, &mut tick, silence_max)?;
            let failed = failed.into_inner();
            Ok(TreeCopied { entries: done.entries, failed, ..TreeCopied::default() })
        });
        match listed {
            Ok(listed) => {
                far.done();
                Ok(listed)
            }
            Err(_) if stop.is_set() => {
                far.kill();
                Err(interrupted())
            }
            Err(error) => Err(advised(far.explain(error, is_heard), Some(&far.host), CopyRole::Send)),
        }
    }
}

/// The same options without what is done to a source or a destination.
fn only_read(options: &TreeOptions) -> TreeOptions {
    let mut options = options.clone();
    if let Some(sync) = &mut options.sync {
        (sync.remove_sources, sync.delete, sync.delete_excluded) = (false, false, false);
        (sync.backup, sync.basis) = (None, None);
    }
    options
}

fn list_here(
    paths: Vec<PathBuf>,
    options: &TreeOptions,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<TreeCopied> {
    let names: Vec<Vec<u8>> = paths.iter().map(|path| name_of(path, true)).collect();
    let tree = tree_message(CopyRole::Receive, vec![b".".to_vec()], Vec::new(), options, false)?;
    let walk = sync::walk_chosen(walk_options(&tree, &names)?, options);
    let mut order = Order::new(paths.len());
    let mut walker = Walker::new(paths, walk);
    let (mut path, mut copied) = (Path::new(names), TreeCopied::default());
    while let Some(walked) = walker.step() {
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        let item = match walked {
            Walked::Unlisted => continue,
            Walked::Failed(path, error) => {
                copied.failed += 1;
                show(observer, &super::source::entry_failed(&path, &error));
                continue;
            }
            Walked::Missing => Item::Missing,
            Walked::Leave => Item::Leave,
            Walked::Entry(entry, _) => Item::Entry(*entry),
        };
        let step = order.accept(&item)?;
        path.take(&item, step).into_iter().for_each(|listed| observer.event(Event::Listed(listed)));
    }
    Ok(TreeCopied { entries: path.entries, ..copied })
}

/// The receiving end that only says what it hears of.
struct Listing<'a> {
    machine: TreeReceiver,
    path: Path,
    observer: &'a dyn Observer,
    failed: &'a std::sync::atomic::AtomicU64,
    is_over: bool,
}

impl TreeSink for Listing<'_> {
    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => {
                self.machine.handle_entries(&entries)?;
                for item in &entries.items {
                    let (item, step, _) = self.machine.accept(item)?;
                    let listed = self.path.take(&item, step);
                    listed.into_iter().for_each(|listed| self.observer.event(Event::Listed(listed)));
                }
            }
            Heard::Message(Message::EntryFailed(failed)) => {
                let EntryFailed { left_out: None, .. } = &failed else { return Ok(()) };
                self.failed.fetch_add(failed.count(), std::sync::atomic::Ordering::Relaxed);
                show(self.observer, &failed);
            }
            _ => return Err(Error::new(ErrorKind::Protocol, "sender sent what was not asked for")),
        }
        self.is_over = self.machine.is_done()?;
        Ok(())
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        let batches = u64::from(dray_core::limits::TREE_BATCHES_MAX);
        out.extend(self.machine.pull(None, 0, batches, None).map(Message::Pull));
    }

    fn done(&mut self) -> Result<Option<dray_core::message::TreeDone>> {
        let entries = self.machine.entries();
        Ok(self.is_over.then(|| dray_core::message::TreeDone { entries, ..Default::default() }))
    }

    fn done_bytes(&self) -> u64 {
        0
    }

    fn missing(&self) -> Option<String> {
        self.machine.missing()
    }
}
