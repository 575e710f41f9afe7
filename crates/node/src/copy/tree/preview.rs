//! `cp --dry-run`: what a tree copy would do, told without doing it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dray_core::limits::{CONTROL_FRAME_BYTES_MAX, TREE_BATCHES_MAX, TREE_NAMED_MAX};
use dray_core::message::{DigestsSame, EntryFailed, Message, PlannedItem, TreeDone};
use dray_core::tree::{Entry, Item, Kind, Order, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::TreeReceiver;
use dray_store::local::tree::{
    Changes, Differences, Landed, Landing, Planned, Preview, Walked, Walker, WriteOptions, own_directory,
};
use dray_transfer::tree::{Heard, TreeSink};

use super::again::{Hears, OnLanded};
use super::digests::{Comparing, not_wanted};
use super::sink::OnFailed;
use super::source::entry_failed;
use super::{TreeCopied, show, sync};
use crate::{Event, Observer, Stop};

/// Paths in one message, in bytes.
const SAID_BYTES: usize = CONTROL_FRAME_BYTES_MAX / 4;

/// Plans a copy within this machine, on a thread that does nothing else.
#[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
pub(super) fn plan_here(
    mut walker: Walker,
    landing: Landing,
    options: WriteOptions,
    changes: Changes,
    sources: usize,
    on_landed: &OnLanded<'_>,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<TreeCopied> {
    own_directory();
    let on_failed = |failed: &EntryFailed| show(observer, failed);
    let is_sync = changes.sync.is_some();
    let mut planning = Planning::new(Preview::new(landing, options, changes), is_sync, &on_failed);
    let mut order = Order::new(sources);
    while let Some(walked) = walker.step() {
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        let item = match walked {
            Walked::Unlisted => {
                planning.preview.unlisted();
                continue;
            }
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
        planning.item(&item, step)?;
        if let Step::Root(_) = step {
            on_landed(planning.preview.landed());
        }
        planning.planned.drain(..).for_each(|item| tell(observer, &item, false));
    }
    // What fails from here on is a deletion.
    let is_complete = planning.done.failed == 0;
    while planning.delete(is_complete, order.entries()) {
        planning.planned.drain(..).for_each(|item| tell(observer, &item, false));
    }
    planning.planned.drain(..).for_each(|item| tell(observer, &item, false));
    let copied = TreeCopied { entries: order.entries(), ..TreeCopied::default() };
    Ok(TreeCopied {
        failed: planning.done.failed,
        files: planning.planned_count,
        unchanged: planning.done.unchanged,
        deleted: planning.deleted,
        ..copied
    })
}

/// Tells the user what would be done.
pub(super) fn tell(observer: &dyn Observer, item: &PlannedItem, is_upload: bool) {
    let path_of = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    if item.action == 4 || item.letters.is_some() {
        let mut letters = item.letters.as_ref().map(|letters| String::from_utf8_lossy(letters).into_owned());
        if let Some(letters) = letters.as_mut().filter(|letters| is_upload && letters.starts_with('>')) {
            letters.replace_range(..1, "<");
        }
        let link = item.link.as_ref().map(|link| path_of(link));
        observer.event(Event::Synced { letters, path: path_of(&item.path), link });
        return;
    }
    let action = match item.action {
        0 => "new",
        1 => "replace",
        3 => "change",
        _ => "compare",
    };
    let changes = CHANGES.iter().filter(|(bit, _)| item.changes.unwrap_or(0) & bit != 0);
    let changes = changes.map(|(_, word)| *word).collect();
    let path = if item.path.is_empty() { PathBuf::from(".") } else { path_of(&item.path) };
    observer.event(Event::Planned { action, changes, path });
}

/// Bits of [`PlannedItem::changes`], and words for the user.
const CHANGES: [(u8, &str); 4] = [(1, "permissions"), (2, "owner"), (4, "time"), (8, "attributes")];

fn bits(differences: &Differences) -> u8 {
    let Differences { permissions, owner, time, attributes } = *differences;
    let set = [permissions, owner, time, attributes].into_iter().zip(CHANGES);
    set.filter(|(is_set, _)| *is_set).map(|(_, (bit, _))| bit).sum()
}

/// Hears what would be done, or was.
pub(super) type OnPlanned<'a> = dyn Fn(&[PlannedItem]) + Send + Sync + 'a;

/// Says what would be done, or was, in as many messages as it takes.
pub(super) fn push_planned(planned: &mut VecDeque<PlannedItem>, out: &mut Vec<Message>) {
    while !planned.is_empty() {
        let (mut items, mut bytes) = (Vec::new(), 0);
        while items.len() < TREE_NAMED_MAX
            && bytes < SAID_BYTES
            && let Some(item) = planned.pop_front()
        {
            // A path that long no message has room for, and no user reads.
            let short = |bytes: &[u8]| bytes.iter().copied().take(SAID_BYTES).collect::<Vec<u8>>();
            let (path, link) = (short(&item.path), item.link.as_ref().map(|link| short(link)));
            bytes += path.len() + link.as_ref().map_or(0, Vec::len);
            items.push(PlannedItem { path: path.into(), link: link.map(Into::into), ..item });
        }
        out.push(Message::Planned(dray_core::message::Planned { items }));
    }
}

/// Entries in the order of the stream, and what is to be said of them.
struct Planning<'a> {
    preview: Preview,
    planned: VecDeque<PlannedItem>,
    failed: Vec<EntryFailed>,
    on_failed: &'a OnFailed<'a>,
    done: TreeDone,
    planned_count: u64,
    is_sync: bool,
    deleted: u64,
}

impl<'a> Planning<'a> {
    fn new(preview: Preview, is_sync: bool, on_failed: &'a OnFailed<'a>) -> Planning<'a> {
        Planning {
            preview,
            planned: VecDeque::new(),
            failed: Vec::new(),
            on_failed,
            done: TreeDone::default(),
            planned_count: 0,
            is_sync,
            deleted: 0,
        }
    }

    fn item(&mut self, item: &Item, step: Step) -> Result<()> {
        let Item::Entry(entry) = item else {
            if step == Step::Leave {
                self.preview.leave();
            }
            return Ok(());
        };
        let (index, planned) = match step {
            Step::Root(index) => (Some(index), Some(self.preview.root(index, entry))),
            _ => (None, self.preview.entry(entry)),
        };
        let path = self.preview.path_of(index, entry);
        match planned {
            None => {}
            Some(Ok(planned)) => self.plan(planned, entry, path),
            Some(Err(error)) if index.is_some() && error.kind() == ErrorKind::Protocol => return Err(error),
            Some(Err(error)) => {
                let told = if path.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&path)) };
                self.fail(told, &error);
            }
        }
        self.take_done();
        Ok(())
    }

    /// Takes what a synchronisation would do.
    fn take_done(&mut self) {
        for done in self.preview.take_done() {
            self.deleted += u64::from(done.letters.is_none());
            self.planned_count += u64::from(done.letters.is_some());
            self.planned.push_back(sync::item(done));
        }
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        let failed = entry_failed(path, error);
        (self.on_failed)(&failed);
        self.failed.push(failed);
        self.done.failed += 1;
    }

    /// Everything was told: says some of what would be deleted; true while there is more.
    fn delete(&mut self, is_complete: bool, entries: u64) -> bool {
        let mut failed = Vec::new();
        let goes_on = if is_complete {
            self.preview.delete_some(&mut failed).unwrap_or_else(|error| {
                failed.push((Vec::new(), error));
                false
            })
        } else {
            // Where there was nothing at all, that was told.
            if self.preview.delete_nothing(&mut failed) && entries > 0 {
                failed.push((Vec::new(), sync::nothing_deleted()));
            }
            false
        };
        for (path, error) in failed {
            let path = if path.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&path)) };
            self.fail(path, &error);
        }
        self.take_done();
        goes_on
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
        if self.is_sync {
            return;
        }
        self.planned_count += 1;
        if entry.is_directory() {
            if path.is_empty() {
                path.push(b'.');
            }
            path.push(b'/');
        }
        self.planned.push_back(PlannedItem { action, path: path.into(), changes, letters: None, link: None });
    }
}

/// The receiving end of a copy that changes nothing: it takes entries and asks for no content.
pub(super) struct Previewing<'a> {
    machine: TreeReceiver,
    planning: Planning<'a>,
    /// Who hears of plans: the user here, or, through messages, the one at the other end.
    on_planned: Option<&'a OnPlanned<'a>>,
    hears: Hears<'a>,
    landed: Option<Landed>,
    comparing: Option<Comparing>,
    same: Option<DigestsSame>,
    /// The sender has listed everything.
    is_complete: bool,
    is_told: bool,
    is_finished: bool,
}

impl<'a> Previewing<'a> {
    /// To be made by the thread that uses it.
    pub(super) fn new(
        preview: Preview,
        sources: usize,
        is_sync: bool,
        on_failed: &'a OnFailed<'a>,
        on_planned: Option<&'a OnPlanned<'a>>,
    ) -> Previewing<'a> {
        own_directory();
        let planning = Planning::new(preview, is_sync, on_failed);
        let machine = TreeReceiver::new(sources);
        Previewing {
            machine,
            planning,
            on_planned,
            hears: Hears::Nobody,
            landed: None,
            comparing: None,
            same: None,
            is_complete: false,
            is_told: false,
            is_finished: false,
        }
    }

    /// With somebody who hears where the tree would land.
    pub(super) fn landing(self, hears: Hears<'a>) -> Previewing<'a> {
        Previewing { hears, ..self }
    }

    /// With digests of what is here, to hold the sender's against.
    pub(super) fn comparing(self, comparing: Option<Comparing>) -> Previewing<'a> {
        Previewing { comparing, ..self }
    }

    fn tell_user(&mut self) {
        if let Some(on_planned) = self.on_planned {
            let items: Vec<PlannedItem> = self.planning.planned.drain(..).collect();
            if !items.is_empty() {
                on_planned(&items);
            }
        }
    }
}

impl TreeSink for Previewing<'_> {
    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        if let Some(comparing) = &mut self.comparing {
            comparing.stop_with(stop);
        }
    }

    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => {
                self.machine.handle_entries(&entries)?;
                // Whatever there is need not be looked through any more.
                self.comparing = None;
                for owner in entries.owners.iter().flatten() {
                    self.planning.preview.add_owner(owner.is_group, owner.id, &owner.name);
                }
                let unlisted = entries.listed.as_ref().map_or(&[][..], |listed| &listed.unlisted[..]);
                for (place, item) in entries.items.iter().enumerate() {
                    if unlisted.iter().any(|unlisted| usize::from(*unlisted) == place) {
                        self.planning.preview.unlisted();
                    }
                    let (item, step, _) = self.machine.accept(item)?;
                    self.planning.item(&item, step)?;
                    if let Step::Root(_) = step {
                        self.landed = Some(self.planning.preview.landed());
                    }
                }
                if unlisted.iter().any(|unlisted| usize::from(*unlisted) >= entries.items.len()) {
                    self.planning.preview.unlisted();
                }
                self.is_complete = entries.listed.is_some_and(|listed| listed.is_complete);
            }
            Heard::Message(Message::EntryFailed(failed)) => (self.planning.on_failed)(&failed),
            Heard::Message(Message::Digests(digests)) => {
                self.machine.handle_digests()?;
                self.same = self.comparing.take().ok_or_else(not_wanted)?.compare(&digests)?;
                self.is_finished = self.same.is_none();
                return Ok(());
            }
            _ => return Err(Error::new(ErrorKind::Protocol, "sender sent what was not asked for")),
        }
        self.tell_user();
        self.is_told = self.machine.is_done()?;
        self.is_complete &= self.planning.done.failed == 0;
        Ok(())
    }

    fn work(&mut self) -> Result<bool> {
        if !self.is_told || self.is_finished {
            return Ok(false);
        }
        let goes_on = self.planning.delete(self.is_complete, self.machine.entries());
        self.tell_user();
        self.is_finished = !goes_on;
        Ok(true)
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        self.hears.tell(&mut self.landed, out);
        out.extend(self.planning.failed.drain(..).map(Message::EntryFailed));
        push_planned(&mut self.planning.planned, out);
        out.extend(self.same.take().map(Message::DigestsSame));
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
