//! `cp --dry-run`: what a tree copy would do, told without doing it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dray_core::limits::{CONTROL_FRAME_BYTES_MAX, TREE_BATCHES_MAX, TREE_NAMED_MAX};
use dray_core::message::{EntryFailed, Message, PlannedItem, TreeDone};
use dray_core::tree::{Entry, Item, Kind, Order, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::TreeReceiver;
use dray_store::local::tree::{
    Changes, Differences, Landing, Planned, Preview, Walked, Walker, WriteOptions, own_directory,
};
use dray_transfer::tree::{Heard, TreeSink};

use super::sink::OnFailed;
use super::source::entry_failed;
use super::{TreeCopied, show};
use crate::{Event, Observer, Stop};

/// Paths in one message, in bytes.
const SAID_BYTES: usize = CONTROL_FRAME_BYTES_MAX / 4;

/// Plans a copy within this machine, on a thread that does nothing else.
pub(super) fn plan_here(
    mut walker: Walker,
    landing: Landing,
    options: WriteOptions,
    changes: Changes,
    sources: usize,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<TreeCopied> {
    own_directory();
    let on_failed = |failed: &EntryFailed| show(observer, failed);
    let mut planning = Planning::new(Preview::new(landing, options, changes), &on_failed);
    let mut order = Order::new(sources);
    while let Some(walked) = walker.step() {
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        let item = match walked {
            Walked::Failed(path, error) => {
                planning.done.failed += 1;
                on_failed(&entry_failed(&path, &error));
                continue;
            }
            Walked::Missing => Item::Missing,
            Walked::Leave => Item::Leave,
            Walked::Entry(entry, _) => Item::Entry(*entry),
        };
        let step = order.accept(&item)?;
        planning.item(&item, step);
        planning.planned.drain(..).for_each(|item| tell(observer, &item));
    }
    let copied = TreeCopied { entries: order.entries(), ..TreeCopied::default() };
    Ok(TreeCopied {
        failed: planning.done.failed,
        files: planning.planned_count,
        unchanged: planning.done.unchanged,
        ..copied
    })
}

/// Tells the user what would be done.
pub(super) fn tell(observer: &dyn Observer, item: &PlannedItem) {
    let action = match item.action {
        0 => "new",
        1 => "replace",
        3 => "change",
        _ => "compare",
    };
    let changes = CHANGES.iter().filter(|(bit, _)| item.changes.unwrap_or(0) & bit != 0);
    let changes = changes.map(|(_, word)| *word).collect();
    let path = if item.path.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&item.path)) };
    observer.event(Event::Planned { action, changes, path: PathBuf::from(path) });
}

/// Bits of [`PlannedItem::changes`], and words for the user.
const CHANGES: [(u8, &str); 4] = [(1, "permissions"), (2, "owner"), (4, "time"), (8, "attributes")];

fn bits(differences: &Differences) -> u8 {
    let Differences { permissions, owner, time, attributes } = *differences;
    let set = [permissions, owner, time, attributes].into_iter().zip(CHANGES);
    set.filter(|(is_set, _)| *is_set).map(|(_, (bit, _))| bit).sum()
}

/// Entries in the order of the stream, and what is to be said of them.
struct Planning<'a> {
    preview: Preview,
    planned: VecDeque<PlannedItem>,
    failed: Vec<EntryFailed>,
    on_failed: &'a OnFailed<'a>,
    done: TreeDone,
    planned_count: u64,
}

impl<'a> Planning<'a> {
    fn new(preview: Preview, on_failed: &'a OnFailed<'a>) -> Planning<'a> {
        Planning {
            preview,
            planned: VecDeque::new(),
            failed: Vec::new(),
            on_failed,
            done: TreeDone::default(),
            planned_count: 0,
        }
    }

    fn item(&mut self, item: &Item, step: Step) {
        let Item::Entry(entry) = item else {
            if step == Step::Leave {
                self.preview.leave();
            }
            return;
        };
        let (index, planned) = match step {
            Step::Root(index) => (Some(index), Some(self.preview.root(index, entry))),
            _ => (None, self.preview.entry(entry)),
        };
        let path = self.preview.path_of(index, entry);
        match planned {
            None => {}
            Some(Ok(planned)) => self.plan(planned, entry, path),
            Some(Err(error)) => {
                let told = if path.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&path)) };
                let failed = entry_failed(told, &error);
                (self.on_failed)(&failed);
                self.failed.push(failed);
                self.done.failed += 1;
            }
        }
    }

    fn plan(&mut self, planned: Planned, entry: &Entry, mut path: Vec<u8>) {
        let is_file = matches!(entry.kind, Kind::File { .. });
        let (action, changes) = match planned {
            Planned::Create => (0, None),
            Planned::Replace => (1, None),
            Planned::Compare => (2, None),
            Planned::Change(differences) => {
                self.done.unchanged += u64::from(is_file);
                (3, Some(bits(&differences)))
            }
            Planned::Keep => {
                self.done.unchanged += u64::from(is_file);
                return;
            }
        };
        self.planned_count += 1;
        if entry.is_directory() {
            if path.is_empty() {
                path.push(b'.');
            }
            path.push(b'/');
        }
        self.planned.push_back(PlannedItem { action, path: path.into(), changes });
    }
}

/// The receiving end of a copy that changes nothing: it takes entries and asks for no content.
pub(super) struct Previewing<'a> {
    machine: TreeReceiver,
    planning: Planning<'a>,
    /// Who hears of plans: the user here, or, through messages, the one at the other end.
    on_planned: Option<&'a (dyn Fn(&PlannedItem) + Send + Sync)>,
    is_finished: bool,
}

impl<'a> Previewing<'a> {
    /// To be made by the thread that uses it.
    pub(super) fn new(
        preview: Preview,
        sources: usize,
        on_failed: &'a OnFailed<'a>,
        on_planned: Option<&'a (dyn Fn(&PlannedItem) + Send + Sync)>,
    ) -> Previewing<'a> {
        own_directory();
        let planning = Planning::new(preview, on_failed);
        Previewing { machine: TreeReceiver::new(sources), planning, on_planned, is_finished: false }
    }
}

impl TreeSink for Previewing<'_> {
    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => {
                self.machine.handle_entries(&entries)?;
                for owner in entries.owners.iter().flatten() {
                    self.planning.preview.add_owner(owner.is_group, owner.id, &owner.name);
                }
                for item in &entries.items {
                    let (item, step, _) = self.machine.accept(item)?;
                    self.planning.item(&item, step);
                }
            }
            Heard::Message(Message::EntryFailed(failed)) => (self.planning.on_failed)(&failed),
            _ => return Err(Error::new(ErrorKind::Protocol, "sender sent what was not asked for")),
        }
        if let Some(on_planned) = self.on_planned {
            self.planning.planned.drain(..).for_each(|item| on_planned(&item));
        }
        self.is_finished = self.machine.is_done()?;
        Ok(())
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        out.extend(self.planning.failed.drain(..).map(Message::EntryFailed));
        while !self.planning.planned.is_empty() {
            let (mut items, mut bytes) = (Vec::new(), 0);
            while items.len() < TREE_NAMED_MAX
                && bytes < SAID_BYTES
                && let Some(item) = self.planning.planned.pop_front()
            {
                bytes += item.path.len();
                // A path that long no message has room for, and no user reads.
                let path: Vec<u8> = item.path.iter().copied().take(SAID_BYTES).collect();
                items.push(PlannedItem { path: path.into(), ..item });
            }
            out.push(Message::Planned(dray_core::message::Planned { items }));
        }
        if let Some(pull) = self.machine.pull(None, 0, u64::from(TREE_BATCHES_MAX), None) {
            out.push(Message::Pull(pull));
        }
    }

    fn done(&mut self) -> Result<Option<TreeDone>> {
        let done = TreeDone { entries: self.machine.entries(), ..self.planning.done };
        Ok(self.is_finished.then_some(done))
    }

    fn done_bytes(&self) -> u64 {
        0
    }

    fn missing(&self) -> Option<String> {
        self.machine.missing()
    }
}
