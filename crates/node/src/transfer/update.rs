//! An update: an older version of the object lies at the destination, or parts of the object in other files, so only the rest is
//! fetched (design 2, D17, Y2).
//!
//! The older version is cut into chunks here while the holder cuts the object; then the object's recipe is read node by
//! node. Groups made only of chunks that are at hand are copied, the others are planned as always, before the recipe has
//! been read to its end. Nothing of this is believed: the root over everything decides, and where it is wrong, the places
//! are found by bisection and fetched.

mod gaps;
mod late;
mod nodes;
mod pairs;
mod plan;
mod race;
mod rests;
mod search;
mod shared;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::chunker::Profile;
use dray_core::hash_tree::{group_cv, is_zero};
use dray_core::limits::{
    PROGRESS_TIMEOUT_MS, RECIPE_NODES_ASKED_MAX, UNIT_BYTES, UPDATE_BYTES_MAX, UPDATE_CHUNKS_MAX,
};
use dray_core::range::RangeSet;
use dray_core::recipe::{ChunkDescriptor, PlacedChunk, ReaderLimits, RecipeId, RecipeReader, RecipeRoot};
use dray_core::source::{DataPiece, SourceCall, SourceId};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::planner::SourceState;
use dray_store::index::{ChunkKey, key as chunk_key};
use dray_store::local::Delivery;
use dray_transfer::recipe::Recipe;

use super::{Sink, Transfer, interrupted};
use crate::elsewhere::{Elsewhere, Finder, Spot};
use crate::lock;
use crate::looking::{Looked, OlderBytes};
use crate::observer::Stop;
use crate::search::{DiskSearch, Identity};
use late::Late;
use nodes::HeldLeaves;
pub(super) use pairs::SparsePairs;
use plan::{Copies, Origin, Parts, Plan};
use race::{Cut, Race};
pub(super) use rests::Rests;
use search::{Ahead, MEASURING_INTERVAL, PIECE_CHUNKS, Search};
use shared::Runs;

/// Smaller objects and older versions are not worth the questions.
const UPDATE_FROM_BYTES: u64 = UNIT_BYTES;
/// Where there is no older version, less than this of the object standing in it before is not worth the questions.
const REPEATED_FROM_BYTES: u64 = 4 << 20;
/// Nor is less than this of a thousand bytes.
const REPEATED_FROM_PERMILLE: u16 = 30;
/// Groups that are fetched first where there is no older version, while the holder makes its recipe: what stands first in the
/// object is needed in any case. Doubled as often as they have come, so that a fast network does not wait.
const AHEAD_GROUPS: u64 = 32;
/// How often that is looked at.
const AHEAD_INTERVAL: Duration = Duration::from_millis(10);
/// Groups that wait to be copied.
const COPIES_WAITING_MAX: usize = 256;
/// A holder that cuts its copy more slowly than so many bytes a second had better send it.
const CUT_BYTES_PER_S: u64 = 128 << 20;
/// After how long another holder is asked the same, if there is one, and after as long again for each that was asked: who
/// answers first is believed.
const DESCRIBE_SILENCE: Duration = Duration::from_millis(1500);
/// How long a holder may take to begin with that.
const DESCRIBE_PATIENCE: Duration = Duration::from_secs(5);
/// How long after a question, or after the last one came, a node of the recipe may take.
const NODE_PATIENCE: Duration = Duration::from_millis(PROGRESS_TIMEOUT_MS);
/// After how long another holder is asked for what one owes, if there is one: several times what waits on a slow path.
const NODE_SILENCE: Duration = Duration::from_secs(2);
/// How long groups are held back while nothing more of the recipe comes and nothing is fetched.
const HOLD_BACK_TIME: Duration = Duration::from_millis(300);
/// How long there may be nobody to ask before everything is planned, so that the planner's own time limits count.
const NOBODY_PATIENCE: Duration = Duration::from_secs(3);
/// While a holder makes its recipe, a group is fetched this often: one that does not even send that is not busy but dead.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes that are looked at together when holes are kept: the usual block of a file system.
const BLOCK_BYTES: usize = 4096;

/// What there is of the object already: an older version, other files with parts of it, or nothing. Then only what stands in the object
/// more than once is spared.
#[derive(Debug)]
pub(crate) struct OlderVersion {
    /// And what it was when it was opened.
    file: Option<(Arc<std::fs::File>, Timestamp)>,
    size_bytes: u64,
    /// Other files, if there is hope for that.
    elsewhere: Option<Arc<Elsewhere>>,
    /// A search of the disk, if there is hope for that.
    disk: Option<Arc<DiskSearch>>,
    /// The sender may read all that the disk may have, so it may hear which blocks that are, too.
    tells_disk: bool,
    /// Enough stands in the object more than once.
    has_repeats: bool,
    /// Where blocks of all these may be shared.
    delivery: Option<Arc<Delivery>>,
}

/// When a file was changed last.
type Timestamp = (i64, i64);

fn changed_at(metadata: &std::fs::Metadata) -> Timestamp {
    (metadata.ctime(), metadata.ctime_nsec())
}

impl OlderVersion {
    /// True if an object of this size can be put together from an older version.
    pub(crate) fn is_usual(size_bytes: u64) -> bool {
        (UPDATE_FROM_BYTES..=UPDATE_BYTES_MAX).contains(&size_bytes)
    }

    /// The regular file at `path`, seen from `directory`, if there is one and an update from it to an object of `size_bytes` may pay.
    pub(crate) fn open(
        directory: BorrowedFd<'_>,
        path: &std::path::Path,
        size_bytes: u64,
    ) -> Option<OlderVersion> {
        // Looked at before it is opened: a device or fifo may act on being opened.
        let looked_at = rustix::fs::statat(directory, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(looked_at.st_mode).is_file();
        let len = u64::try_from(looked_at.st_size).unwrap_or(0);
        if !is_file || !Self::is_usual(len) || !Self::is_usual(size_bytes) {
            return None;
        }
        // Something else may lie there by now: a link is not followed, a fifo not waited for.
        let flags = rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::NONBLOCK
            | rustix::fs::OFlags::CLOEXEC;
        let file =
            std::fs::File::from(rustix::fs::openat(directory, path, flags, rustix::fs::Mode::empty()).ok()?);
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let (size_bytes, file) = (metadata.len(), Some((Arc::new(file), changed_at(&metadata))));
        Some(OlderVersion {
            size_bytes,
            file,
            elsewhere: None,
            disk: None,
            tells_disk: false,
            has_repeats: false,
            delivery: None,
        })
        .filter(|old| Self::is_usual(old.size_bytes))
    }

    /// None at all, if so much of an object of `size_bytes` stands in it before that its recipe may pay.
    pub(crate) fn none(size_bytes: u64, repeated_permille: u16) -> Option<OlderVersion> {
        let repeated_bytes = size_bytes / 1000 * u64::from(repeated_permille);
        let may_pay = Self::is_usual(size_bytes)
            && repeated_permille >= REPEATED_FROM_PERMILLE
            && repeated_bytes >= REPEATED_FROM_BYTES;
        may_pay.then_some(OlderVersion {
            file: None,
            size_bytes: 0,
            elsewhere: None,
            disk: None,
            tells_disk: false,
            has_repeats: true,
            delivery: None,
        })
    }

    /// `older`, if there is such, and parts of the object in other files, if there are such.
    pub(crate) fn beside(older: Option<OlderVersion>, elsewhere: Option<Elsewhere>) -> Option<OlderVersion> {
        if elsewhere.is_none() {
            return older;
        }
        let none = OlderVersion::nothing();
        Some(OlderVersion { elsewhere: elsewhere.map(Arc::new), ..older.unwrap_or(none) })
    }

    /// `older`, if there is such, and what a search of the disk may find, if there is one. What an index knows is then part of that search:
    /// looking it up, and reading what it named, take their turn among what else is to be done.
    pub(crate) fn searching(older: Option<OlderVersion>, disk: Option<DiskSearch>) -> Option<OlderVersion> {
        let Some(disk) = disk else { return older };
        let mut older = older.unwrap_or_else(OlderVersion::nothing);
        if let Some(index) = older.elsewhere.take() {
            disk.ask(index);
        }
        Some(OlderVersion { disk: Some(Arc::new(disk)), ..older })
    }

    /// The same where the sender may read all that is searched.
    pub(crate) fn told_to_the_sender(self, may_read: bool) -> OlderVersion {
        OlderVersion { tells_disk: may_read, ..self }
    }

    /// True if the sender may hear what of a group is here: whoever may log in (`has_login`) single blocks, others the chunks that the older
    /// version has, and files in a directory that the user named for them. Of what an index led to these hear by whole groups alone. Where the
    /// search of that directory would have come upon the same file by its name, that tells them that an index knows it (docs/threat-model.md).
    fn tells_rests(&self, has_login: bool) -> bool {
        if !has_login {
            return self.file.is_some() || self.disk.is_some();
        }
        let tells_disk = self.tells_disk && self.disk.is_some();
        (self.file.is_some() || tells_disk) && self.elsewhere.is_none()
    }

    fn nothing() -> OlderVersion {
        OlderVersion {
            file: None,
            size_bytes: 0,
            elsewhere: None,
            disk: None,
            tells_disk: false,
            has_repeats: false,
            delivery: None,
        }
    }

    /// The same where `delivery`, into which it goes, may share blocks of all this.
    pub(crate) fn shared_with(self, delivery: &Arc<Delivery>) -> OlderVersion {
        OlderVersion { delivery: Some(delivery.clone()), ..self }
    }

    /// Whether it is left alone where its disk is slower than the network: not where its blocks are shared, so that next to nothing is to be written, nor
    /// where the user said that nothing counts but what is here.
    fn may_be_left(&self) -> bool {
        let heeds_pressure = self.disk.as_ref().is_none_or(|disk| disk.heeds_pressure());
        heeds_pressure && !self.delivery.as_ref().is_some_and(|delivery| delivery.shares_parts())
    }

    /// Which file it is, if it is one.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let (file, _) = self.file.as_ref()?;
        file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// True if it is what it was, as far as its file system tells.
    fn is_unchanged(&self) -> bool {
        let unchanged = |(file, before): &(Arc<std::fs::File>, Timestamp)| {
            file.metadata().is_ok_and(|metadata| changed_at(&metadata) == *before)
        };
        self.file.as_ref().is_none_or(unchanged)
            && self.elsewhere.as_ref().is_none_or(|elsewhere| elsewhere.is_unchanged())
            // A file that is written to all the time may look as it did.
            && !self.disk.as_ref().is_some_and(|disk| disk.was_used())
    }

    /// True if the recipe is of use whatever a search of the disk comes upon.
    fn is_needed(&self) -> bool {
        let has_index = self.elsewhere.is_some() || self.disk.as_ref().is_some_and(|disk| disk.has_index());
        self.file.is_some() || self.has_repeats || has_index
    }

    /// Where its bytes are read, also when the search for them is over.
    fn bytes(&self) -> OldBytes {
        OldBytes {
            size_bytes: self.size_bytes,
            file: self.file.as_ref().map(|(file, _)| file.clone()),
            elsewhere: self.elsewhere.clone(),
            disk: self.disk.clone(),
        }
    }
}

/// Bytes of an older version and of other files.
#[derive(Clone, Debug)]
pub(in crate::transfer) struct OldBytes {
    /// Of the older version, as it was opened.
    size_bytes: u64,
    file: Option<Arc<std::fs::File>>,
    elsewhere: Option<Arc<Elsewhere>>,
    disk: Option<Arc<DiskSearch>>,
}

impl OldBytes {
    fn read_elsewhere(&self, spot: Spot, out: &mut [u8]) -> Result<()> {
        match (spot.by, &self.elsewhere, &self.disk) {
            (Finder::Index, Some(elsewhere), _) => elsewhere.read_at(spot.file, spot.offset, out),
            (Finder::Disk | Finder::Cached, _, Some(disk)) => disk.read_at(spot.file, spot.offset, out),
            _ => Err(Error::new(ErrorKind::Internal, "there are no other files")),
        }
    }
}

impl OlderBytes for OldBytes {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let Some(file) = &self.file else {
            return Err(Error::new(ErrorKind::Internal, "there is no older version"));
        };
        file.read_exact_at(out, offset).map_err(|error| Error::io("read the older version", error))
    }
}

impl Transfer {
    /// Fetches what `old` does not have; everything, if the sources know no recipe. To be called on a thread of its own
    /// beside [`Transfer::wait`], once, with the units wanted; errors are told there. `stop` ends it.
    pub(crate) fn update(&self, old: &OlderVersion, wanted_units: &RangeSet, stop: &Stop) {
        let want = |groups| self.want_groups(groups);
        let mut plan = Plan::new(self.geometry, wanted_units, &want);
        if let Some(disk) = &old.disk {
            disk.attend(self.pressure.clone());
            plan.late.keep(disk.memory().clone());
        }
        // Without a recipe, or with a wrong one, what it did not tell of is fetched as if there were no older version.
        let is_followed = self.update_from(old, &mut plan, stop).is_ok();
        let (deferred, mut late) = plan.want_rest();
        // Nobody looks for anything any more.
        if let Some(disk) = old.disk.as_ref().filter(|_| !is_followed && late.is_empty()) {
            disk.end();
        }
        lock(&self.planner).want_no_more();
        self.pump();
        self.changed.notify_all();
        if let Err(error) = self.fill_from_new(old, deferred, &mut late, stop) {
            self.fail(error);
        }
        if let Some(disk) = &old.disk {
            disk.end();
        }
        if is_followed && old.is_unchanged() {
            let mut state = lock(&self.state);
            state.recipe_of = state.asked;
        }
    }

    /// Plans everything that the recipe tells.
    fn update_from(&self, old: &OlderVersion, plan: &mut Plan<'_>, stop: &Stop) -> Result<()> {
        let size_bytes = self.geometry.size_bytes();
        let profile = Profile::for_size(size_bytes)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the object is too large for a recipe"))?;
        let over = || stop.is_set() || self.is_over();
        let cut = Cut::of(old.size_bytes);
        let mut race = if old.may_be_left() { Race::new(&cut) } else { Race::none(&cut) };
        thread::scope(|scope| {
            let cutting = scope.spawn(|| {
                let _working = self.pressure.begin();
                cut.begin();
                let known = Known::of(old, profile, &cut, &over);
                {
                    let _state = lock(&self.state);
                    cut.end();
                }
                self.changed.notify_all();
                known
            });
            let root = self
                .describe(old, plan, &over, &[], Some(&mut race))
                .and_then(|root| self.await_cut(&cut, &mut race, plan).map(|()| root));
            if root.is_err() {
                cut.leave();
            }
            let known =
                cutting.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")));
            // Why it was left is told here, not that it was.
            let root = root?;
            let known = known?;
            if root.size_bytes() != size_bytes || root.profile() != profile {
                return Err(Error::new(ErrorKind::Protocol, "the recipe is not one of this object"));
            }
            let (sender, copies) = sync_channel::<(u64, Parts)>(COPIES_WAITING_MAX);
            let copier = scope.spawn(move || {
                self.pressure.join();
                let result = Runs::of(copies).try_for_each(|run| {
                    let filled = self.fill_run(old, &run);
                    run.iter().for_each(|_| self.pressure.done());
                    filled
                });
                if let Err(error) = &result {
                    self.fail(error.duplicate());
                }
            });
            let copies = Copies { sender, over: &over, pressure: &self.pressure };
            let read = self.read_recipe(old, &root, &known, plan, &copies);
            drop(copies);
            let _ = copier.join();
            read
        })
    }

    /// Asks for the recipe's root whoever is not among `silent`, until somebody has told it or it is not worth waiting for any
    /// longer.
    fn describe(
        &self,
        old: &OlderVersion,
        plan: &mut Plan<'_>,
        over: &dyn Fn() -> bool,
        silent: &[SourceId],
        mut race: Option<&mut Race<'_>>,
    ) -> Result<RecipeRoot> {
        let disk = old.disk.as_ref().filter(|_| !old.is_needed());
        let mut ahead = old.file.is_none().then(|| Ahead::new(disk));
        let began = Instant::now();
        let patience = DESCRIBE_PATIENCE + Duration::from_secs(self.geometry.size_bytes() / CUT_BYTES_PER_S);
        let (mut asked_at, mut somebody, mut probed) = (began, began, began);
        {
            let mut state = lock(&self.state);
            state.describing.clear();
            state.described = None;
            state.nodes.clear();
        }
        loop {
            if over() {
                return Err(interrupted());
            }
            // One that is up is given the time it takes; another one is asked beside it if it takes long.
            let asked = lock(&self.state).describing.clone();
            let is_waiting = asked.iter().any(|id| self.is_answering(*id));
            let mut is_asked = !asked.is_empty();
            let is_measuring = ahead.as_ref().is_some_and(Ahead::is_measuring)
                || race.as_ref().is_some_and(|race| race.is_measuring());
            let takes_long = !is_waiting || asked_at.elapsed() >= DESCRIBE_SILENCE * asked.len() as u32;
            if takes_long && !is_measuring {
                let others = [silent, &asked].concat();
                if self.ask_to_describe(&others).is_some() {
                    (is_asked, asked_at) = (true, Instant::now());
                }
            }
            if is_asked {
                somebody = Instant::now();
                // The holder reads all of its object now, and the likeliest file may be read here meanwhile.
                if let Some(disk) = disk {
                    disk.expect();
                }
            }
            let has_waited = began.elapsed() >= patience || somebody.elapsed() >= NOBODY_PATIENCE;
            if has_waited || !self.is_anybody_left() {
                return Err(lost());
            }
            if let Some(ahead) = &mut ahead {
                self.fetch_ahead(plan, ahead)?;
            }
            if let Some(race) = race.as_deref_mut() {
                self.race(plan, race)?;
            }
            if is_asked && probed.elapsed() >= PROBE_INTERVAL && self.has_fetched_all() {
                plan.probe(1);
                probed = Instant::now();
            }
            let mut state = lock(&self.state);
            if let Some(described) = state.described.take() {
                return described
                    .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the sender has no recipe"));
            }
            drop(self.await_change(
                state,
                match (&ahead, &race) {
                    _ if is_measuring => MEASURING_INTERVAL,
                    (Some(_), _) => AHEAD_INTERVAL,
                    (_, Some(race)) if !race.is_over() => AHEAD_INTERVAL,
                    _ => Duration::from_millis(100),
                },
            ));
        }
    }

    /// Returns when the older version is cut. `Unsupported` if the network turns out to be faster than the disk that it lies on.
    fn await_cut(&self, cut: &Cut, race: &mut Race<'_>, plan: &mut Plan<'_>) -> Result<()> {
        loop {
            self.race(plan, race)?;
            let state = lock(&self.state);
            // The thread that is waited for is joined next.
            if race.is_over() || cut.is_done() {
                return Ok(());
            }
            drop(self.await_change(state, AHEAD_INTERVAL));
        }
    }

    /// Asks the best source that is not among `but` for the recipe's root; whom, if there is one.
    fn ask_to_describe(&self, but: &[SourceId]) -> Option<SourceId> {
        let (id, source) = self.best_source(but)?;
        {
            let mut state = lock(&self.state);
            if state.described.is_some() {
                return None;
            }
            state.asked = Some(id);
            state.describing.push(id);
        }
        source.call(SourceCall::Describe);
        Some(id)
    }

    /// Walks the recipe and plans its groups in order.
    fn read_recipe(
        &self,
        old: &OlderVersion,
        root: &RecipeRoot,
        known: &Known,
        plan: &mut Plan<'_>,
        copies: &Copies<'_>,
    ) -> Result<()> {
        let mut reader = RecipeReader::new(root, ReaderLimits::default());
        let mut asked: Vec<RecipeId> = Vec::new();
        let mut held = HeldLeaves::default();
        let mut asked_of = lock(&self.state).asked;
        let mut silent: Vec<SourceId> = Vec::new();
        let mut heard = Instant::now();
        // The same, but for what was found here.
        let mut told_at = heard;
        let mut search = Search::new(self.brought_bytes.load(Ordering::Relaxed));
        let (mut told_bytes, told_since) = (0, Instant::now());
        let mut looked = Looked::default();
        // Questions for sums tell the sender what is here, finer than chunks do: only whoever may log in is asked (design 16). What
        // an index alone knows is looked for while the network goes on: it does not wait for that. A search waits by itself.
        let asks_sums = self.is_vouched();
        if old.tells_rests(asks_sums) {
            plan.hold_back();
        }
        loop {
            let batch = old.next_nodes(known, &mut reader, &mut held, &search)?;
            // Time when nothing was owed is nobody's silence.
            if asked.is_empty() && (held.is_empty() || !batch.is_empty()) {
                heard = Instant::now();
            }
            asked.extend(batch.iter().copied());
            self.ask_for_nodes(asked_of, &batch);
            // As many as the nodes have that a reader holds.
            let chunks: Vec<PlacedChunk> = std::iter::from_fn(|| reader.next_chunk()).collect();
            let has_placed = !chunks.is_empty();
            for chunks in chunks.chunks(PIECE_CHUNKS) {
                let mut elsewhere =
                    self.find_elsewhere(old, chunks, known, plan, &mut search, copies.over)?;
                self.find_on_disk(old, chunks, known, plan, &mut elsewhere, &mut search, copies.over)?;
                chunks.iter().try_for_each(|chunk| plan.place(*chunk, known, &elsewhere, copies))?;
                if !asks_sums {
                    // There is nothing to wait for.
                    let told = (told_bytes, told_since.elapsed());
                    self.want_rests(old, plan, told, &mut looked, copies.over)?;
                }
                plan.tell();
                // What is held back is not asked for yet.
                if !plan.lacks_some() {
                    self.take_back(old, &mut plan.late)?;
                }
            }
            if reader.is_done() {
                plan.finish(copies)?;
            }
            // Nobody waits for a file that is still read.
            let quiet_since = if held.is_empty() { heard } else { told_at };
            let waits =
                quiet_since.elapsed() >= HOLD_BACK_TIME && plan.lacks_some() && self.has_fetched_all();
            if reader.is_done() || plan.lacks_enough() || waits {
                let told = (told_bytes, told_since.elapsed());
                self.want_rests(old, plan, told, &mut looked, copies.over)?;
                (heard, told_at) = (Instant::now(), Instant::now());
            }
            if reader.is_done() {
                return Ok(());
            }
            if (copies.over)() {
                return Err(interrupted());
            }
            // Nor is what went into placing.
            if has_placed {
                heard = Instant::now();
            }
            if let Some(id) = asked_of.filter(|_| !asked.is_empty() && heard.elapsed() >= NODE_SILENCE)
                && self.best_source(&[&silent[..], &[id]].concat()).is_some()
            {
                silent.push(id);
                asked_of = None;
            }
            if asked_of.is_none_or(|id| !self.is_answering(id)) {
                // Whoever comes next is asked for what the lost one owed, if it tells of the same recipe: only who
                // described nodes can be expected to have them.
                if self.describe(old, plan, copies.over, &silent, None)? != *root {
                    return Err(Error::new(ErrorKind::Protocol, "the senders do not agree on the recipe"));
                }
                asked_of = lock(&self.state).asked;
                self.ask_for_nodes(asked_of, &asked);
                heard = Instant::now();
            }
            let owed = (!asked.is_empty(), &held);
            for (id, bytes) in self.await_nodes(old, owed, &mut search, has_placed) {
                // One that was asked of two may come twice.
                let Some(at) = asked.iter().position(|asked| *asked == id) else { continue };
                asked.swap_remove(at);
                (heard, told_at) = (Instant::now(), Instant::now());
                told_bytes += bytes.len() as u64;
                reader.accept(&id, &bytes)?;
            }
            let has_no_recipe = matches!(lock(&self.state).described, Some(None));
            if has_no_recipe || !asked.is_empty() && heard.elapsed() >= NODE_PATIENCE {
                return Err(lost());
            }
        }
    }

    /// Asks for nodes of the recipe, if whoever is to be asked is there.
    fn ask_for_nodes(&self, of: Option<SourceId>, nodes: &[RecipeId]) {
        let source = of.and_then(|id| lock(&self.sources).get(&id).cloned());
        for ids in nodes.chunks(RECIPE_NODES_ASKED_MAX) {
            if let Some(source) = &source {
                source.call(SourceCall::Nodes { ids: ids.to_vec() });
            }
        }
    }

    /// The recipe nodes that have come; waits a moment for one, if there is `patience`.
    fn take_nodes(&self, patience: Duration) -> Vec<(RecipeId, Vec<u8>)> {
        let mut state = lock(&self.state);
        if state.nodes.is_empty() && !patience.is_zero() {
            state = self.await_change(state, patience);
        }
        std::mem::take(&mut state.nodes)
    }

    /// True if the source is up and not silent.
    fn is_answering(&self, id: SourceId) -> bool {
        self.state_of(id) == Some(SourceState::Up)
    }

    /// True when nothing that is planned now would be fetched any more.
    fn is_over(&self) -> bool {
        lock(&self.state).fatal.is_some() || matches!(lock(&self.planner).outcome(), Some(Err(_)))
    }

    /// Fills the groups whose bytes also lie in fetched parts of the object, when these are there.
    fn fill_from_new(
        &self,
        old: &OlderVersion,
        groups: Vec<(u64, Parts)>,
        late: &mut Late,
        stop: &Stop,
    ) -> Result<()> {
        if groups.is_empty() && !late.is_kept() {
            return Ok(());
        }
        while !self.has_fetched_all() {
            if stop.is_set() || self.is_over() {
                return Ok(());
            }
            self.take_back(old, late)?;
            let state = lock(&self.state);
            drop(self.await_change(state, Duration::from_millis(20)));
        }
        // A stop ends it; what it is over for is told elsewhere.
        let mut groups = groups.iter().take_while(|_| !stop.is_set());
        groups.try_for_each(|(group, parts)| self.fill(old, *group, parts))
    }

    /// Puts one group together from bytes at hand.
    fn fill(&self, old: &OlderVersion, group: u64, parts: &Parts) -> Result<()> {
        let from = old.bytes();
        let mut bytes = vec![0; self.geometry.group_bytes(group)];
        let mut rest = &mut bytes[..];
        for (len, origin) in parts {
            let (part, tail) = rest
                .split_at_mut_checked(*len as usize)
                .ok_or_else(|| Error::new(ErrorKind::Internal, "parts are longer than their group"))?;
            match (origin, &self.sink) {
                // The older version may be cut short meanwhile; what is missing shows in the root.
                (Origin::Old(offset), _) => drop(from.read_at(*offset, part)),
                // So may a file that was right when the chunk was found.
                (Origin::Elsewhere(spot), _) => drop(from.read_elsewhere(*spot, part)),
                (Origin::New(offset), Sink::Rest(object)) => object.read_data(*offset, part)?,
                (Origin::New(_) | Origin::Missing, _) => {
                    return Err(Error::new(ErrorKind::Internal, "a group was filled from nowhere"));
                }
            }
            rest = tail;
        }
        let data = data_pieces(&bytes);
        // Before: whoever sees that all is stored sees where it came from.
        for (len, origin) in parts {
            let counted = match origin {
                Origin::Elsewhere(_) => &self.other_bytes,
                Origin::New(_) => &self.repeated_bytes,
                Origin::Old(_) | Origin::Missing => &self.local_bytes,
            };
            counted.fetch_add(u64::from(*len), Ordering::Release);
        }
        self.store(group, &bytes, &data, group_cv(self.geometry, group, &bytes))
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unreachable, "the sender was lost before it had told its recipe")
}

/// The parts of a group that are not zero, in blocks: the rest becomes hole. Whether zeros were a hole where they came
/// from, a recipe does not tell.
pub(super) fn data_pieces(bytes: &[u8]) -> Vec<DataPiece> {
    let mut pieces: Vec<DataPiece> = Vec::new();
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        if is_zero(block) {
            continue;
        }
        // A group is far below 2^32 bytes.
        let (start, end) = ((number * BLOCK_BYTES) as u32, (number * BLOCK_BYTES + block.len()) as u32);
        match pieces.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => pieces.push(start..end),
        }
    }
    pieces
}

/// Bytes of the blocks that are not zero.
pub(super) fn data_bytes(bytes: &[u8]) -> u64 {
    bytes.chunks(BLOCK_BYTES).filter(|block| !is_zero(block)).map(|block| block.len() as u64).sum()
}

/// The older version, cut. Two chunks of one length whose hashes begin alike are taken for one, and the root tells.
struct Known {
    recipe: Recipe,
    /// Where each of its chunks lies, by key.
    chunks: Vec<(ChunkKey, u64)>,
    /// The chunk that is nothing but zeros.
    zeros: ChunkKey,
}

impl Known {
    /// Cuts as much of `old` as an object of that profile may have.
    fn of(old: &OlderVersion, profile: Profile, cut: &Cut, over: &dyn Fn() -> bool) -> Result<Known> {
        let average_bytes = u64::from(profile.average_bytes());
        // A chunk of zeros is as long as a chunk may be.
        let zeros = ChunkDescriptor::of(&vec![0; profile.average_bytes() as usize * 4]);
        let size_bytes = old.size_bytes.min(average_bytes << 20);
        let from = old.bytes();
        let chunks = RefCell::new(Vec::with_capacity((size_bytes / average_bytes) as usize));
        let mut read = |offset: u64, out: &mut [u8]| {
            if over() || cut.is_left() {
                return Err(interrupted());
            }
            if chunks.borrow().len() > UPDATE_CHUNKS_MAX {
                return Err(Error::new(ErrorKind::Unsupported, "the older version has too many chunks"));
            }
            from.read_at(offset, out)?;
            cut.has_read(out.len());
            Ok(())
        };
        let recipe = Recipe::read(size_bytes, profile, &mut read, &mut |placed| {
            chunks.borrow_mut().push((chunk_key(&placed.chunk), placed.offset));
        })?;
        let mut chunks = chunks.into_inner();
        chunks.sort_unstable();
        chunks.dedup();
        Ok(Known { recipe, chunks, zeros: chunk_key(&zeros) })
    }

    /// Where the older version has the chunk first.
    fn offset_of(&self, key: &ChunkKey) -> Option<u64> {
        let at = self.chunks.partition_point(|(known, _)| known < key);
        self.chunks.get(at).filter(|(known, _)| known == key).map(|(_, offset)| *offset)
    }

    /// Where it has the chunk: at `expected`, if it is there, too.
    fn offset_near(&self, key: &ChunkKey, expected: Option<u64>) -> Option<u64> {
        let is_there = |expected: &u64| self.chunks.binary_search(&(*key, *expected)).is_ok();
        expected.filter(is_there).or_else(|| self.offset_of(key))
    }
}
