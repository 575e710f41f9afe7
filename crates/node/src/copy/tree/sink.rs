//! The receiving end of a tree copy: entries become directories and wishes ([`content`]: records become files), until all has come.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use dray_core::limits::{
    TREE_BATCHES_MAX, TREE_FAILED_NAMED_MAX, TREE_FAILED_REASONS_MAX, TREE_PART_BYTES,
    TREE_PENDING_BYTES_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{
    DigestsSame, Direct, Entries, EntryFailed, InPlace, Message, PlannedItem, Removed, TreeDone,
};
use dray_core::tree::{Entry, Item, Kind, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{PathId, TreeReceiver, part_bytes};
use dray_store::local::tree::{FileTarget, Landed, Placed, TreeWriter, own_directory};
use dray_transfer::tree::{Gathering, Heard, Lane, SinkWake, TreeSink, Unpacking};

use self::content::Current;
use self::delta::{Deltas, Meter};
use self::parts::Parts;
use self::paths::{Pace, Rates};
use super::super::DIRECT_FROM_BYTES;
use super::again::Hears;
use super::digests::{Comparing, not_wanted};
use super::held::{Failed, HeldNames};
use super::not_kept;
use super::preview::{OnPlanned, push_planned};
use super::removal::Arrivals;
use super::source::entry_failed;
use super::sync::item;
use super::whole::nothing_done;

mod content;
mod delta;
mod parts;
mod paths;
#[cfg(test)]
mod tests;

/// Entries that wait for their content at a time: half of what the sender would take. At 3,000 files a second they last for two seconds, and on a slow disk, where
/// as many wait as may, they take some 5 MiB less.
const WANTED_AT_ONCE: u64 = TREE_WANTED_MAX / 2;
/// What an entry that waits takes besides its names and attributes.
const PENDING_ENTRY_BYTES: usize = 512;

/// The means to have contents come over direct connections.
pub(super) trait Doors: Sync {
    /// Listens: what the sender is told; `None` if that cannot be.
    fn invite(&self) -> Option<Direct>;
    /// The sender said where it listens.
    fn handle_direct(&self, theirs: Direct) -> Result<()>;
}

/// Hears of entries that failed, at either end.
pub(super) type OnFailed<'a> = dyn Fn(&EntryFailed) + Send + Sync + 'a;

/// Writes what comes.
pub(super) struct Writing<'a> {
    machine: TreeReceiver,
    writer: TreeWriter,
    /// Batches for which there is no room yet, and how many items of the first were taken.
    waiting: VecDeque<Entries>,
    taken: usize,
    /// What comes, by number.
    pending: BTreeMap<u64, Pending>,
    pending_bytes: usize,
    /// Hard links that wait for the first name of their group, and their numbers.
    links: HashMap<[u8; 16], VecDeque<Pending>>,
    link_numbers: BTreeSet<u64>,
    /// Those asked for with the hash of what is there, which this copy itself may change under another name: then they are asked for once more. `None` if the sender does not know that.
    compared: Option<BTreeSet<u64>>,
    /// Groups of hard links whose content is on its way.
    coming: HashSet<[u8; 16]>,
    held: HeldNames,
    /// What comes over each path.
    current: BTreeMap<PathId, Current>,
    doors: Option<&'a dyn Doors>,
    /// The sender was told that direct connections are welcome.
    is_inviting: bool,
    invitation: Option<Direct>,
    /// Those that are up.
    lanes: BTreeMap<u32, Arc<Lane>>,
    paces: BTreeMap<PathId, Pace>,
    /// What ssh brought before much came over these lanes, as far as that is known.
    ssh_alone: Rates,
    /// The sender can pack what it sends; and whether it may over the channel.
    packs: bool,
    channel: Option<Arc<Unpacking>>,
    /// Bytes of contents that are wanted and have not come.
    wanted_bytes: u64,
    /// What was at the front of a direct connection that was lost: numbers of entries, and where in them.
    lost_once: BTreeSet<(u64, u64)>,
    failed: Vec<EntryFailed>,
    /// How many more failed, by reason.
    unnamed: BTreeMap<(u8, String), u64>,
    on_failed: &'a OnFailed<'a>,
    /// What was done with entries, and who hears of it: the user here, or the one at the other end.
    did: VecDeque<PlannedItem>,
    on_planned: Option<&'a OnPlanned<'a>>,
    hears: Hears<'a>,
    landed: Option<Landed>,
    comparing: Option<Comparing>,
    same: Option<DigestsSame>,
    done: TreeDone,
    deltas: Deltas,
    /// Questions about files that are likely to be what is here.
    questions: Gathering,
    meter: Meter,
    fsync: bool,
    /// The sender has listed everything, and no entry has failed at either end.
    is_complete: bool,
    is_deleting: bool,
    /// What ends the copy once what was deleted before has been said.
    cut_off: Option<Error>,
    /// All that was to be done here is.
    is_concluded: bool,
    is_finished: bool,
    /// What is in place, if that is to leave its source, and what is said of it; and the number of the next entry.
    arrivals: Arrivals,
    in_place: Vec<InPlace>,
    next_number: u64,
}

/// An entry that waits for its content, or for that of the file it is a hard link to.
struct Pending {
    number: u64,
    target: Box<FileTarget>,
    known: Option<[u8; 32]>,
    size_bytes: u64,
    /// Bytes of it that are wanted and have not come, holes included; none if it is only to be compared.
    left_bytes: u64,
    /// Bytes that it takes here.
    held: usize,
    /// Its content comes in parts.
    parts: Option<Parts>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(
        writer: TreeWriter,
        sources: usize,
        fsync: bool,
        on_failed: &'a OnFailed<'a>,
    ) -> Writing<'a> {
        // The sink has a thread to itself.
        own_directory();
        Writing {
            machine: TreeReceiver::new(sources),
            writer,
            waiting: VecDeque::new(),
            taken: 0,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            links: HashMap::new(),
            link_numbers: BTreeSet::new(),
            compared: None,
            coming: HashSet::new(),
            held: HeldNames::default(),
            current: BTreeMap::new(),
            doors: None,
            is_inviting: false,
            invitation: None,
            lanes: BTreeMap::new(),
            paces: BTreeMap::new(),
            ssh_alone: Rates::default(),
            packs: false,
            channel: None,
            wanted_bytes: 0,
            lost_once: BTreeSet::new(),
            failed: Vec::new(),
            unnamed: BTreeMap::new(),
            on_failed,
            did: VecDeque::new(),
            on_planned: None,
            hears: Hears::Nobody,
            landed: None,
            comparing: None,
            same: None,
            done: TreeDone::default(),
            deltas: Deltas::default(),
            questions: Gathering::default(),
            meter: Meter::default(),
            fsync,
            is_complete: true,
            is_deleting: false,
            cut_off: None,
            is_concluded: false,
            is_finished: false,
            arrivals: Arrivals::default(),
            in_place: Vec::new(),
            next_number: 0,
        }
    }

    /// With a sender that hears what is in place, to remove it, or not.
    pub(super) fn removing(self, arrivals: Arrivals) -> Writing<'a> {
        Writing { arrivals, ..self }
    }

    /// With contents over direct connections, too.
    pub(super) fn with_doors(self, doors: Option<&'a dyn Doors>) -> Writing<'a> {
        Writing { doors, ..self }
    }

    /// With a sender that sends a content once more that it was asked for with the hash of what is there, or not.
    pub(super) fn with_compared(self, knows: bool) -> Writing<'a> {
        Writing { compared: knows.then(BTreeSet::new), ..self }
    }

    /// With a sender that can pack what it sends, or not.
    pub(super) fn packing(self, packs: bool) -> Writing<'a> {
        Writing { packs, ..self }
    }

    /// With somebody here who hears what is done with entries.
    pub(super) fn telling(self, on_planned: &'a OnPlanned<'a>) -> Writing<'a> {
        Writing { on_planned: Some(on_planned), ..self }
    }

    /// With somebody who hears where the tree lands.
    pub(super) fn landing(self, hears: Hears<'a>) -> Writing<'a> {
        Writing { hears, ..self }
    }

    /// With digests of what is here, to hold the sender's against.
    pub(super) fn comparing(self, comparing: Option<Comparing>) -> Writing<'a> {
        Writing { comparing, ..self }
    }

    /// An entry failed here; the copy goes on, unless nothing more can be written.
    fn fail(&mut self, path: &[u8], error: Error) -> Result<()> {
        let path = if path.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(path)) };
        if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) {
            return Err(at(path, error));
        }
        let mut failed = entry_failed(path, &error);
        self.is_complete = false;
        self.done.failed += 1;
        if self.done.failed <= TREE_FAILED_NAMED_MAX {
            (self.on_failed)(&failed);
            self.failed.push(failed);
            return Ok(());
        }
        if self.unnamed.len() >= TREE_FAILED_REASONS_MAX {
            failed.kind = ErrorKind::Internal.wire_code();
            failed.text = "for other reasons".into();
        }
        *self.unnamed.entry((failed.kind, failed.text)).or_default() += 1;
        Ok(())
    }

    /// Takes entries as long as there is room for what they ask for.
    fn decide(&mut self) -> Result<()> {
        while let Some(batch) = self.waiting.front() {
            if self.taken == 0 {
                for owner in batch.owners.iter().flatten() {
                    self.writer.add_owner(owner.is_group, owner.id, &owner.name);
                }
            }
            let Some(batch) = self.waiting.pop_front() else { return Ok(()) };
            let listed = batch.listed.clone().unwrap_or_default();
            let mut unlisted = listed.unlisted.iter().map(|place| usize::from(*place)).peekable();
            while let Some(item) = batch.items.get(self.taken) {
                if !self.has_room() {
                    self.waiting.push_front(batch);
                    return Ok(());
                }
                while let Some(place) = unlisted.next_if(|place| *place <= self.taken) {
                    if place == self.taken {
                        self.writer.unlisted();
                    }
                }
                self.taken += 1;
                self.item(item)?;
            }
            if unlisted.next().is_some() {
                self.writer.unlisted();
            }
            self.is_complete &= !batch.is_last || listed.is_complete;
            self.taken = 0;
        }
        Ok(())
    }

    /// True if one more entry may be taken: always if nothing waits.
    fn has_room(&self) -> bool {
        let has_room = self.machine.under_way() + (self.link_numbers.len() as u64) < WANTED_AT_ONCE
            && self.pending_bytes + self.deltas.siblings_held() < TREE_PENDING_BYTES_MAX
            && !self.writer.is_full();
        has_room || self.pending.is_empty()
    }

    fn item(&mut self, bytes: &[u8]) -> Result<()> {
        let (item, step, number) = self.machine.accept(bytes)?;
        let Item::Entry(entry) = item else {
            if step == Step::Leave {
                self.writer.leave();
            }
            return Ok(());
        };
        self.next_number = number + 1;
        let is_skipped = self.writer.is_skipping() && step == Step::Inner;
        let placed = match step {
            Step::Root(index) => {
                let placed = self.writer.root(index, &entry);
                self.landed = Some(self.writer.landed());
                placed
            }
            _ => self.writer.entry(&entry),
        };
        if is_skipped {
            return Ok(());
        }
        match placed {
            Ok(Placed::Done) if !entry.is_directory() => self.came(number),
            Ok(Placed::Done | Placed::Passed) => {}
            Ok(Placed::Unchanged) => {
                // Of a file that was not asked for nobody knows that it is what the sender has.
                if !is_file(&entry) {
                    self.came(number);
                }
                self.done.unchanged += u64::from(is_file(&entry));
                let failed = self.held.came(&mut self.writer, entry.metadata.link_group);
                self.fail_all(failed)?;
            }
            Ok(Placed::Wanted(target, known)) => {
                self.want(number, target, known, &entry, bytes.len())?;
            }
            Ok(Placed::Link(target)) => {
                let held = bytes.len() + PENDING_ENTRY_BYTES;
                self.pending_bytes += held;
                self.link_numbers.insert(number);
                let group = target.link_group().unwrap_or_default();
                let size_bytes = size_of(&entry);
                let waiting =
                    Pending { number, target, known: None, size_bytes, left_bytes: 0, held, parts: None };
                self.links.entry(group).or_default().push_back(waiting);
                self.link(&group)?;
            }
            // Nothing is made of what such a sender tells.
            Err(error) if matches!(step, Step::Root(_)) && error.kind() == ErrorKind::Protocol => {
                return Err(error);
            }
            Err(error) => {
                let path = self.writer.path_of(&entry);
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    /// A content is to come.
    fn want(
        &mut self,
        number: u64,
        target: Box<FileTarget>,
        known: Option<[u8; 32]>,
        entry: &Entry,
        item_bytes: usize,
    ) -> Result<()> {
        if let Some(group) = target.link_group() {
            self.coming.insert(group);
        }
        let held = item_bytes + PENDING_ENTRY_BYTES;
        self.pending_bytes += held;
        let size_bytes = size_of(entry);
        let mut pending = Pending { number, target, known, size_bytes, left_bytes: 0, held, parts: None };
        if pending.known.is_none() {
            pending.target.find_left();
        }
        if self.may_differ(&pending) {
            return self.differ(pending);
        }
        self.ask(pending);
        Ok(())
    }

    fn ask(&mut self, mut pending: Pending) {
        let (number, size_bytes) = (pending.number, pending.size_bytes);
        self.deltas.forget_sibling(number);
        if pending.known.is_none() {
            pending.left_bytes = size_bytes;
            self.wanted_bytes = self.wanted_bytes.saturating_add(size_bytes);
        } else if let Some(compared) = &mut self.compared
            && pending.target.may_change_elsewhere()
        {
            compared.insert(number);
        }
        // What one path has begun another cannot go on with, so a large file is asked for piece by piece.
        if self.doors.is_some() && pending.known.is_none() && size_bytes >= 2 * TREE_PART_BYTES {
            self.invite();
            pending.parts = self.is_inviting.then(|| Parts { asked: size_bytes, ..Parts::default() });
        }
        match &pending.parts {
            Some(_) => self.machine.want_parts(number, size_bytes, part_bytes(size_bytes)),
            None => self.machine.want(number, pending.known, size_bytes),
        }
        self.pending.insert(number, pending);
    }

    /// Makes the hard links of a group, if they wait for nothing any more. If the file that they are other names of did not come, its
    /// content is asked for under one of these names, and the others wait for that.
    fn link(&mut self, group: &[u8; 16]) -> Result<()> {
        while !self.coming.contains(group)
            && let Some(waiting) = self.links.get_mut(group)
        {
            let Some(pending) = waiting.pop_front() else {
                self.links.remove(group);
                break;
            };
            self.link_numbers.remove(&pending.number);
            if !self.writer.can_link(&pending.target) {
                self.coming.insert(*group);
                self.writer.begin_again(&pending.target);
                self.ask(pending);
                break;
            }
            self.pending_bytes -= pending.held;
            let linked = self.writer.link(&pending.target);
            let path = pending.target.path();
            if linked.is_ok() {
                self.came(pending.number);
            }
            self.writer.settle(*pending.target, None);
            if let Err(error) = linked {
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, failed: EntryFailed) {
        (self.on_failed)(&failed);
        self.failed.push(failed);
    }

    fn fail_all(&mut self, failed: impl IntoIterator<Item = Failed>) -> Result<()> {
        failed.into_iter().try_for_each(|(path, error)| self.fail(&path, error))
    }

    /// Everything has come: what is left to say, and to make durable.
    fn finish_if_complete(&mut self) -> Result<()> {
        if self.is_concluded
            || self.is_deleting
            || !self.waiting.is_empty()
            || !self.machine.is_done()?
            || !self.pending.is_empty()
            || !self.links.is_empty()
        {
            return Ok(());
        }
        self.done.entries = self.machine.entries();
        let held = self.held.end(&mut self.writer);
        self.fail_all(held)?;
        if self.is_complete {
            if self.fsync && self.writer.will_delete() {
                // What is deleted may be what came under another name.
                self.writer.sync()?;
            }
            self.is_deleting = true;
            return Ok(());
        }
        // Where there was nothing at all, that was told.
        let mut failed = Vec::new();
        let deletes = self.writer.delete_nothing(&mut failed);
        self.fail_all(failed)?;
        if deletes && self.done.entries > 0 {
            self.fail(b"", nothing_done(&self.writer))?;
        }
        self.conclude()
    }

    /// All that was to be done is.
    fn conclude(&mut self) -> Result<()> {
        self.is_concluded = true;
        self.done.files = self.done.files.saturating_sub(self.writer.take_unplaced());
        // Else once the sender has heard what is in place.
        self.is_finished = !self.arrivals.is_on();
        let mut found = self.writer.failures();
        self.fail_all(found.directories.drain(..))?;
        if self.fsync {
            self.writer.sync()?;
        }
        match self.writer.come_to_end(self.fsync) {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                self.done.failed += 1;
                self.tell(entry_failed(Path::new("."), &error));
            }
            ended => ended?,
        }
        found.add(self.writer.failures());
        self.fail_all(not_kept(&mut found))?;
        for ((kind, text), count) in std::mem::take(&mut self.unnamed) {
            self.tell(EntryFailed {
                path: Vec::new().into(),
                kind,
                text,
                unnamed: Some(count),
                left_out: None,
            });
        }
        let kind = ErrorKind::Unsupported.wire_code();
        for (text, entries) in found.left_out {
            let left_out = Some(entries);
            self.tell(EntryFailed { path: Vec::new().into(), kind, text, unnamed: None, left_out });
        }
        if self.arrivals.is_on() {
            self.say_in_place(true)?;
        }
        Ok(())
    }

    /// An entry that is no directory is in place, unless it waits for a directory to make way.
    fn came(&mut self, number: u64) {
        if self.arrivals.is_on() && !self.writer.has_waiting() {
            self.arrivals.came(number, self.writer.troubles());
        }
    }

    /// What is in place is made durable, and then said.
    fn say_in_place(&mut self, is_last: bool) -> Result<()> {
        if !self.arrivals.is_empty() {
            self.writer.sync()?;
        }
        let undecided = self.undecided();
        self.in_place.extend(self.arrivals.say(undecided, is_last));
        Ok(())
    }

    /// Nothing below this number is on its way.
    fn undecided(&self) -> u64 {
        let coming = self.pending.keys().next().into_iter().chain(self.link_numbers.first());
        coming.copied().min().unwrap_or(self.next_number)
    }

    /// The sender has removed what may go.
    fn handle_removed(&mut self, removed: Removed) -> Result<()> {
        if !self.arrivals.is_on() || (removed.is_last && !self.is_concluded) {
            return Err(Error::new(ErrorKind::Protocol, "sender removed what is not in place"));
        }
        self.is_finished |= removed.is_last;
        Ok(())
    }
}

/// An error that ends a copy, at an entry.
pub(super) fn at(path: &Path, error: Error) -> Error {
    match error.kind() {
        // That of the destination itself says so.
        ErrorKind::NoSpace => match path == Path::new(".") {
            true => error,
            false => error.context(format_args!("{path:?}")),
        }
        .or_advise("make room where it goes, and run it again: what is in place is not copied again"),
        _ => error,
    }
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::File { .. })
}

/// Its size as it was told.
fn size_of(entry: &Entry) -> u64 {
    if let Kind::File { size_bytes, .. } = entry.kind { size_bytes } else { 0 }
}

impl TreeSink for Writing<'_> {
    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        if let Some(comparing) = &mut self.comparing {
            comparing.stop_with(stop.clone());
        }
        self.deltas.stop_with(stop.clone());
        self.writer.stop_with(stop);
    }

    fn wake_with(&mut self, wake: Arc<SinkWake>) {
        self.deltas.wake_with(wake);
    }

    fn unpack_with(&mut self, channel: Arc<Unpacking>) {
        self.channel = Some(channel);
    }

    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => {
                self.machine.handle_entries(&entries)?;
                // Whatever there is need not be looked through any more.
                self.comparing = None;
                self.waiting.push_back(entries);
            }
            Heard::Message(Message::EntryFailed(failed)) => {
                self.is_complete &= failed.left_out.is_some();
                (self.on_failed)(&failed);
            }
            Heard::Message(Message::Direct(theirs)) if self.is_inviting => {
                if let Some(doors) = self.doors {
                    doors.handle_direct(theirs)?;
                }
            }
            Heard::Message(Message::Digests(digests)) => {
                self.machine.handle_digests()?;
                self.same = self.comparing.take().ok_or_else(not_wanted)?.compare(&digests)?;
                self.is_finished = self.same.is_none();
            }
            Heard::Message(Message::Removed(removed)) => self.handle_removed(removed)?,
            Heard::Message(_) => {
                return Err(Error::new(ErrorKind::Protocol, "sender sent a message out of place"));
            }
            Heard::Data(path, request, body) => {
                let pressure = self.deltas.pressure.clone();
                let _writing = pressure.begin();
                let came = self.done.bytes;
                let owed = self.machine.weight(path);
                let mut rest = &body[..];
                while !rest.is_empty() {
                    let (wanted, record) = self.machine.take(path, request, &mut rest)?;
                    self.record(path, &wanted, &record)?;
                }
                let now = Instant::now();
                self.meter.came(self.done.bytes - came, now);
                self.meter.note(body.len(), self.machine.owes(), now);
                if self.is_inviting {
                    let weight = owed.saturating_sub(self.machine.weight(path));
                    self.note_came(path, weight);
                }
            }
            Heard::End(path, request) => self.machine.handle_end(path, request)?,
            Heard::Up(lane) => {
                self.machine.open(lane.number());
                if self.lanes.is_empty() {
                    self.ssh_alone = self.rates(None);
                }
                self.lanes.insert(lane.number(), lane);
            }
            Heard::Down(lane) => self.lose(lane.number()),
            Heard::Woken => {}
        }
        self.take_outcomes()?;
        self.begin_looks()?;
        self.decide()?;
        if self.arrivals.is_due(self.undecided()) {
            self.say_in_place(false)?;
        }
        if self.writer.is_sync_due() {
            self.writer.sync_what_came()?;
        }
        self.finish_if_complete()
    }

    fn work(&mut self) -> Result<bool> {
        if !self.is_deleting {
            return Ok(false);
        }
        if let Some(error) = self.cut_off.take() {
            return Err(error);
        }
        let mut failed = Vec::new();
        let (goes_on, ended) = match self.writer.delete_some(&mut failed) {
            Ok(goes_on) => (goes_on, Ok(())),
            Err(error) => (false, self.fail(b"", error)),
        };
        if let Err(error) = ended.and_then(|()| self.fail_all(failed)) {
            // What was deleted until then is said first.
            self.cut_off = Some(error);
            return Ok(true);
        }
        self.is_deleting = goes_on;
        if !self.is_deleting {
            self.conclude()?;
        }
        Ok(true)
    }

    fn is_at_work(&self) -> bool {
        self.deltas.is_at_work()
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        self.hears.tell(&mut self.landed, out);
        out.extend(self.failed.drain(..).map(Message::EntryFailed));
        self.did.extend(self.writer.take_done().into_iter().map(item));
        match self.on_planned {
            _ if self.did.is_empty() => {}
            Some(on_planned) => on_planned(&std::mem::take(&mut self.did).into_iter().collect::<Vec<_>>()),
            None => push_planned(&mut self.did, out),
        }
        if self.wanted_bytes >= DIRECT_FROM_BYTES {
            self.invite();
        }
        out.extend(self.invitation.take().map(Message::Direct));
        out.extend(self.same.take().map(Message::DigestsSame));
        out.extend(self.in_place.drain(..).map(Message::InPlace));
        let ahead = u64::from(TREE_BATCHES_MAX).saturating_sub(self.waiting.len() as u64);
        // The content of a hard link may yet be asked for, that of whatever a direct connection owes, of what comes as a difference, and of what was compared.
        let coming = self.pending.keys().next().filter(|_| self.is_inviting || self.deltas.is_any());
        let compared = self.compared.as_ref().and_then(BTreeSet::first);
        let undecided = self.link_numbers.first().into_iter().chain(coming).chain(compared).min().copied();
        while let Some((path, room)) = self.next_path() {
            out.extend(self.permit(path));
            let Some(pull) = self.machine.pull(path, room, ahead, undecided) else { break };
            self.note_pull(path, &pull);
            out.push(Message::Pull(pull));
        }
        out.extend(self.permit_anew());
        while let Some(pull) = self.machine.pull(None, 0, ahead, undecided) {
            out.push(Message::Pull(pull));
        }
        self.ask_cuts(out);
    }

    fn done(&mut self) -> Result<Option<TreeDone>> {
        Ok(self.is_finished.then_some(self.done))
    }

    fn done_bytes(&self) -> u64 {
        self.done.bytes
    }

    fn ended(&mut self, error: Error) -> Error {
        self.writer.last_error(error)
    }

    fn outcome(&self) -> Option<String> {
        self.writer.outcome()
    }

    fn missing(&self) -> Option<String> {
        let missing = self.machine.missing()?;
        // What is awaited over ssh may be what keeps everything else.
        let awaited = self.machine.next_owed().and_then(|number| self.pending.get(&number));
        let Some(first) = awaited.or_else(|| self.pending.values().next()) else { return Some(missing) };
        Some(format!("{missing}, the first of {:?},", OsStr::from_bytes(&first.target.path())))
    }
}
