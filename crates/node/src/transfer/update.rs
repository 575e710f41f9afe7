//! An update: an older version of the object lies at the destination, so only what changed is fetched (design 2, D17).
//!
//! The older version is cut into chunks here while the holder cuts the object; then the object's recipe is read node by
//! node. Groups made only of chunks that are at hand are copied, the others are planned as always, before the recipe has
//! been read to its end. Nothing of this is believed: the root over everything decides, and where it is wrong, the places
//! are found by bisection and fetched.

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Instant;

use dray_core::chunker::Profile;
use dray_core::hash_tree::{PAIR_BYTES, PairStore, group_cv};
use dray_core::limits::{RECIPE_NODES_ASKED_MAX, UNIT_BYTES, UNIT_GROUPS};
use dray_core::range::RangeSet;
use dray_core::recipe::{PlacedChunk, ReaderLimits, RecipeId, RecipeReader, RecipeRoot};
use dray_core::source::SourceCall;
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::recipe::Recipe;

use super::{SEAL_TIMEOUT, Sink, Transfer, interrupted};
use crate::lock;
use crate::observer::Stop;

/// Smaller objects and older versions are not worth the questions.
const UPDATE_FROM_BYTES: u64 = UNIT_BYTES;
/// Larger objects are fetched whole: what is proven of an update is kept in memory, 1/1024 of it.
const UPDATE_BYTES_MAX: u64 = 64 << 30;
/// Groups with a chunk that is also fetched elsewhere in the object are filled at the end; so many at most.
const DEFERRED_GROUPS_MAX: usize = 1 << 16;
/// Groups that wait to be copied.
const COPIES_WAITING_MAX: usize = 256;

/// An older version of the object.
#[derive(Debug)]
pub(crate) struct OlderVersion {
    file: std::fs::File,
    size_bytes: u64,
}

impl OlderVersion {
    /// The regular file at `path`, if there is one and an update from it to an object of `size_bytes` may pay.
    pub(crate) fn open(path: &std::path::Path, size_bytes: u64) -> Option<OlderVersion> {
        let is_usual = |bytes: u64| (UPDATE_FROM_BYTES..=UPDATE_BYTES_MAX).contains(&bytes);
        // Looked at before it is opened: a device or fifo may act on being opened.
        let looked_at = std::fs::symlink_metadata(path).ok()?;
        if !looked_at.is_file() || !is_usual(looked_at.len()) || !is_usual(size_bytes) {
            return None;
        }
        let file = std::fs::File::open(path).ok()?;
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(OlderVersion { file, size_bytes: metadata.len() }).filter(|old| is_usual(old.size_bytes))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset).map_err(|error| Error::io("read the older version", error))
    }
}

/// Where the bytes of a part of a group come from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// The older version, from this byte on.
    Old(u64),
    /// The object itself, from this byte on, once it has come.
    New(u64),
    /// A source.
    Missing,
}

/// Parts of a group in order: bytes, and where they come from.
type Parts = Vec<(u32, Origin)>;

impl Transfer {
    /// Fetches what `old` does not have; everything, if the sources know no recipe. To be called on a thread of its own
    /// beside [`Transfer::wait`], once, with the units wanted; errors are told there. `stop` ends it.
    pub(crate) fn update(&self, old: &OlderVersion, wanted_units: &RangeSet, stop: &Stop) {
        let mut plan = Plan::new(self, wanted_units);
        // Without a recipe, or with a wrong one, what it did not tell of is fetched as if there were no older version.
        let _ = self.update_from(old, &mut plan, stop);
        let deferred = std::mem::take(&mut plan.deferred);
        plan.want_rest();
        lock(&self.planner).want_no_more();
        self.pump();
        self.changed.notify_all();
        if let Err(error) = self.fill_from_new(old, deferred, stop) {
            self.fail(error);
        }
    }

    /// Plans everything that the recipe tells.
    fn update_from(&self, old: &OlderVersion, plan: &mut Plan<'_>, stop: &Stop) -> Result<()> {
        let size_bytes = self.geometry.size_bytes();
        let profile = Profile::for_size(size_bytes)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the object is too large for a recipe"))?;
        let over = || stop.is_set() || self.is_over();
        thread::scope(|scope| {
            let cut = scope.spawn(|| Known::of(old, profile, &over));
            let answer = |state: &mut super::State| state.described.take();
            let root = self.ask(stop, &mut || {}, SourceCall::Describe, answer);
            let known =
                cut.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")))?;
            let root = root?.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the sender has no recipe"))?;
            if root.size_bytes() != size_bytes || root.profile() != profile {
                return Err(Error::new(ErrorKind::Protocol, "the recipe is not one of this object"));
            }
            let (sender, copies) = sync_channel::<(u64, Parts)>(COPIES_WAITING_MAX);
            let copier = scope.spawn(move || {
                let result = copies.iter().try_for_each(|(group, parts)| self.fill(old, group, &parts));
                if let Err(error) = &result {
                    self.fail(error.duplicate());
                }
            });
            let read = self.read_recipe(&root, &known, plan, &sender, &over);
            drop(sender);
            let _ = copier.join();
            read
        })
    }

    /// Walks the recipe and plans its groups in order.
    fn read_recipe(
        &self,
        root: &RecipeRoot,
        known: &Known,
        plan: &mut Plan<'_>,
        copies: &SyncSender<(u64, Parts)>,
        over: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut reader = RecipeReader::new(root, ReaderLimits::default());
        let mut asked: Vec<RecipeId> = Vec::new();
        let mut asked_of = None;
        let mut heard = Instant::now();
        loop {
            let mut batch = Vec::new();
            while let Some(request) = reader.next_request(&mut |id| known.recipe.contains(id))? {
                if request.is_known {
                    reader.accept(&request.id, known.recipe.node(&request.id)?)?;
                } else {
                    batch.push(request.id);
                }
            }
            let has_placed = std::iter::from_fn(|| reader.next_chunk())
                .try_fold(false, |_, chunk| plan.place(chunk, known, copies, over).map(|()| true))?;
            plan.tell();
            if reader.is_done() {
                return plan.finish(copies, over);
            }
            if over() {
                return Err(interrupted());
            }
            if asked_of.is_some_and(|id| !self.is_up(id)) {
                // Whoever comes next is asked again for what the lost one owed.
                asked_of = None;
                batch.append(&mut asked);
            }
            asked.extend(batch.iter().copied());
            if asked_of.is_none() {
                let Some((id, _)) = self.best_source() else { return Err(lost()) };
                asked_of = Some(id);
                lock(&self.state).asked = asked_of;
                batch.clone_from(&asked);
            }
            let source = asked_of.and_then(|id| lock(&self.sources).get(&id).cloned());
            for ids in batch.chunks(RECIPE_NODES_ASKED_MAX) {
                if let Some(source) = &source {
                    source.call(SourceCall::Nodes { ids: ids.to_vec() });
                }
            }
            let nodes = self.await_nodes(asked.is_empty() || has_placed);
            for (id, bytes) in &nodes {
                heard = Instant::now();
                asked.retain(|asked| asked != id);
                reader.accept(id, bytes)?;
            }
            if heard.elapsed() > SEAL_TIMEOUT {
                return Err(lost());
            }
        }
    }

    /// The recipe nodes that have come; waits a moment for one unless `at_once`.
    fn await_nodes(&self, at_once: bool) -> Vec<(RecipeId, Vec<u8>)> {
        let mut state = lock(&self.state);
        if state.nodes.is_empty() && !at_once {
            let waited = self.changed.wait_timeout(state, std::time::Duration::from_millis(100));
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        std::mem::take(&mut state.nodes)
    }

    /// True when nothing that is planned now would be fetched any more.
    fn is_over(&self) -> bool {
        lock(&self.state).fatal.is_some() || matches!(lock(&self.planner).outcome(), Some(Err(_)))
    }

    /// Fills the groups whose bytes also lie in fetched parts of the object, when these are there.
    fn fill_from_new(&self, old: &OlderVersion, groups: Vec<(u64, Parts)>, stop: &Stop) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        while !self.has_fetched_all() {
            if stop.is_set() || self.is_over() {
                return Ok(());
            }
            let state = lock(&self.state);
            let waited = self.changed.wait_timeout(state, std::time::Duration::from_millis(20));
            drop(waited.unwrap_or_else(std::sync::PoisonError::into_inner));
        }
        groups.iter().try_for_each(|(group, parts)| self.fill(old, *group, parts))
    }

    /// Puts one group together from bytes at hand.
    fn fill(&self, old: &OlderVersion, group: u64, parts: &Parts) -> Result<()> {
        let mut bytes = vec![0; self.geometry.group_bytes(group)];
        let mut rest = &mut bytes[..];
        for (len, origin) in parts {
            let (part, tail) = rest
                .split_at_mut_checked(*len as usize)
                .ok_or_else(|| Error::new(ErrorKind::Internal, "parts are longer than their group"))?;
            match (origin, &self.sink) {
                // The older version may be cut short meanwhile; what is missing shows in the root.
                (Origin::Old(offset), _) => drop(old.read_at(*offset, part)),
                (Origin::New(offset), Sink::Rest(object)) => object.read_data(*offset, part)?,
                (Origin::New(_) | Origin::Missing, _) => {
                    return Err(Error::new(ErrorKind::Internal, "a group was filled from nowhere"));
                }
            }
            rest = tail;
        }
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        let data = 0..bytes.len() as u32;
        let data = if is_zero { &[] } else { std::slice::from_ref(&data) };
        self.local_bytes.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
        self.store(group, &bytes, data, group_cv(self.geometry, group, &bytes))
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unreachable, "the sender was lost before it had told its recipe")
}

/// The older version, cut.
struct Known {
    recipe: Recipe,
    /// Where each of its chunks lies first.
    chunks: HashMap<[u8; 32], u64>,
}

impl Known {
    fn of(old: &OlderVersion, profile: Profile, over: &dyn Fn() -> bool) -> Result<Known> {
        let mut chunks = HashMap::new();
        let mut read = |offset: u64, out: &mut [u8]| {
            if over() {
                return Err(interrupted());
            }
            old.read_at(offset, out)
        };
        let recipe = Recipe::read(old.size_bytes, profile, &mut read, &mut |placed| {
            chunks.entry(placed.chunk.hash).or_insert(placed.offset);
        })?;
        Ok(Known { recipe, chunks })
    }
}

/// Sorts the groups of the object, in order, into those to copy, those to fetch and those to fill later.
struct Plan<'a> {
    transfer: &'a Transfer,
    wanted_units: &'a RangeSet,
    /// The group under way, and what is known of it.
    group: u64,
    parts: Parts,
    filled: u64,
    /// Where chunks that must be fetched lie first.
    fetched: HashMap<[u8; 32], u64>,
    deferred: Vec<(u64, Parts)>,
    /// Groups to fetch that the planner has not been told of.
    untold: Option<Range<u64>>,
}

impl<'a> Plan<'a> {
    fn new(transfer: &'a Transfer, wanted_units: &'a RangeSet) -> Plan<'a> {
        Plan {
            transfer,
            wanted_units,
            group: 0,
            parts: Vec::new(),
            filled: 0,
            fetched: HashMap::new(),
            deferred: Vec::new(),
            untold: None,
        }
    }

    fn place(
        &mut self,
        placed: PlacedChunk,
        known: &Known,
        copies: &SyncSender<(u64, Parts)>,
        over: &dyn Fn() -> bool,
    ) -> Result<()> {
        let hash = placed.chunk.hash;
        let origin = match (known.chunks.get(&hash), self.fetched.get(&hash)) {
            (Some(offset), _) => Origin::Old(*offset),
            (None, Some(offset)) => Origin::New(*offset),
            (None, None) => {
                self.fetched.insert(hash, placed.offset);
                Origin::Missing
            }
        };
        let (mut taken, len) = (0, u64::from(placed.chunk.len));
        while taken < len {
            let group_bytes = self.transfer.geometry.group_bytes(self.group) as u64;
            let part = (group_bytes - self.filled).min(len - taken);
            let from = match origin {
                Origin::Old(offset) => Origin::Old(offset + taken),
                Origin::New(offset) => Origin::New(offset + taken),
                Origin::Missing => Origin::Missing,
            };
            self.parts.push((part as u32, from));
            self.filled += part;
            taken += part;
            if self.filled == group_bytes {
                self.end_group(copies, over)?;
            }
        }
        Ok(())
    }

    fn end_group(&mut self, copies: &SyncSender<(u64, Parts)>, over: &dyn Fn() -> bool) -> Result<()> {
        let (group, parts) = (self.group, std::mem::take(&mut self.parts));
        self.group += 1;
        self.filled = 0;
        if !self.wanted_units.contains(group / UNIT_GROUPS) {
            return Ok(());
        }
        let comes_from = |which: fn(&Origin) -> bool| parts.iter().any(|(_, origin)| which(origin));
        let is_deferred = comes_from(|origin| matches!(origin, Origin::New(_)));
        let is_missing = comes_from(|origin| matches!(origin, Origin::Missing));
        if is_missing || is_deferred && self.deferred.len() >= DEFERRED_GROUPS_MAX {
            self.want(group..group + 1);
        } else if is_deferred {
            self.deferred.push((group, parts));
        } else {
            let mut job = (group, parts);
            // The planner hears what there is while the copying catches up.
            while let Err(TrySendError::Full(back)) = copies.try_send(job) {
                if over() {
                    return Err(interrupted());
                }
                self.tell();
                job = back;
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn want(&mut self, groups: Range<u64>) {
        match &mut self.untold {
            Some(untold) if untold.end == groups.start => untold.end = groups.end,
            _ => {
                self.tell();
                self.untold = Some(groups);
            }
        }
    }

    /// Tells the planner what to fetch.
    fn tell(&mut self) {
        if let Some(groups) = self.untold.take() {
            self.transfer.want_groups(groups);
        }
    }

    /// The recipe has been read.
    fn finish(&mut self, copies: &SyncSender<(u64, Parts)>, over: &dyn Fn() -> bool) -> Result<()> {
        if self.filled > 0 {
            self.end_group(copies, over)?;
        }
        self.tell();
        Ok(())
    }

    /// Everything the recipe did not tell of is fetched, and what was to be filled later but will not be.
    fn want_rest(&mut self) {
        self.tell();
        let groups = self.transfer.geometry.groups();
        let mut rest = std::mem::replace(&mut self.group, groups);
        while rest < groups {
            let unit = rest / UNIT_GROUPS;
            let end = ((unit + 1) * UNIT_GROUPS).min(groups);
            if self.wanted_units.contains(unit) {
                self.want(rest..end);
            }
            rest = end;
        }
        self.tell();
    }
}

/// Proven pairs of an update, in memory: those on the ways to what is fetched. The outboard beside the file meanwhile takes
/// the values of everything, proven or not.
#[derive(Debug, Default)]
pub(crate) struct SparsePairs(Mutex<HashMap<u64, [u8; PAIR_BYTES]>>);

impl PairStore for SparsePairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let pairs = lock(&self.0);
        for (index, pair) in (first_index..).zip(out.chunks_exact_mut(PAIR_BYTES)) {
            let known = pairs.get(&index);
            pair.copy_from_slice(known.ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("pair {index} was taken as known that is not"))
            })?);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut pairs = lock(&self.0);
        let (whole, rest) = bytes.as_chunks::<PAIR_BYTES>();
        if !offset.is_multiple_of(PAIR_BYTES as u64) || !rest.is_empty() {
            return Err(Error::new(ErrorKind::Internal, "half a pair was proven"));
        }
        pairs.extend((offset / PAIR_BYTES as u64..).zip(whole.iter().copied()));
        Ok(())
    }
}
