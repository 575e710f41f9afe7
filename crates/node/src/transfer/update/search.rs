//! Looks for chunks of the object in other files, while the network goes on (Y2): a piece of the recipe at a time, ended at any
//! chunk, and never waited for longer than it is worth.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::recipe::{ChunkDescriptor, PlacedChunk};
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkKey, key as chunk_key};

use super::{AHEAD_GROUPS, AHEAD_INTERVAL, Known, OlderVersion, Plan, Spot, Transfer};
use crate::elsewhere::Elsewhere;

/// Chunks that are looked for together. Where they were found is planned, and the others are asked for, before the next are looked for.
pub(super) const PIECE_CHUNKS: usize = 256;

/// Searches under way in this process: a disk that hangs holds its thread, which nobody waits for.
const SEARCHING_MAX: usize = 64;
static SEARCHING: AtomicUsize = AtomicUsize::new(0);

/// One thread that searches.
struct Searching;

impl Drop for Searching {
    fn drop(&mut self) {
        SEARCHING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is fetched while it is not known where it lies already: what stands first in the object, twice as much each time.
pub(super) struct Ahead {
    groups: u64,
}

impl Ahead {
    pub(super) fn new() -> Ahead {
        Ahead { groups: AHEAD_GROUPS }
    }
}

/// The search of one update.
pub(super) struct Search {
    ahead: Ahead,
    /// How long nothing was under way meanwhile.
    idle: Duration,
}

impl Search {
    pub(super) fn new() -> Search {
        Search { ahead: Ahead::new(), idle: Duration::ZERO }
    }
}

impl OlderVersion {
    /// Where to look for what this version has not of `chunks`, and what that is; `None` if it is not worth looking.
    fn missing(
        &self,
        chunks: &[PlacedChunk],
        known: &Known,
    ) -> Result<Option<(&Arc<Elsewhere>, Vec<ChunkDescriptor>)>> {
        let Some(elsewhere) = &self.elsewhere else { return Ok(None) };
        if elsewhere.is_vain() {
            return match self.file.is_some() || self.has_repeats {
                true => Ok(None),
                // What the recipe tells is of no use.
                false => Err(Error::new(ErrorKind::NotFound, "other files have nothing more of the object")),
            };
        }
        let mut missing: Vec<ChunkDescriptor> = chunks.iter().map(|placed| placed.chunk).collect();
        missing.retain(|chunk| {
            let key = chunk_key(chunk);
            key != known.zeros && known.offset_of(&key).is_none()
        });
        Ok((!missing.is_empty()).then_some((elsewhere, missing)))
    }
}

impl Transfer {
    /// Where other files have some of `chunks`. Returns soon after `over` says so.
    pub(super) fn find_elsewhere(
        &self,
        old: &OlderVersion,
        chunks: &[PlacedChunk],
        known: &Known,
        plan: &mut Plan<'_>,
        search: &mut Search,
        over: &(dyn Fn() -> bool + Sync),
    ) -> Result<HashMap<ChunkKey, Spot>> {
        let Some((elsewhere, missing)) = old.missing(chunks, known)? else { return Ok(HashMap::new()) };
        let searching = Searching;
        if SEARCHING.fetch_add(1, Ordering::AcqRel) >= SEARCHING_MAX {
            return Ok(HashMap::new());
        }
        let is_enough = Arc::new(AtomicBool::new(false));
        let (sender, results) = sync_channel(1);
        let find = {
            let (elsewhere, is_enough) = (elsewhere.clone(), is_enough.clone());
            move || {
                let _searching = searching;
                // Whoever waited has a result, or wants none any more.
                let _ = sender.send(elsewhere.find(&missing, &|| is_enough.load(Ordering::Relaxed)));
            }
        };
        // Of its own: a read that hangs is left behind.
        let started = thread::Builder::new().name("search".into()).spawn(find);
        started.map_err(|error| Error::file("search other files", error))?;
        let found = self.await_found(elsewhere, &results, plan, search, over);
        is_enough.store(true, Ordering::Relaxed);
        found
    }

    fn await_found(
        &self,
        elsewhere: &Elsewhere,
        results: &Receiver<HashMap<ChunkKey, Spot>>,
        plan: &mut Plan<'_>,
        search: &mut Search,
        over: &(dyn Fn() -> bool + Sync),
    ) -> Result<HashMap<ChunkKey, Spot>> {
        while !over() {
            let begun = Instant::now();
            match results.recv_timeout(AHEAD_INTERVAL) {
                Ok(found) => return Ok(found),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Internal, "a thread failed"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.has_fetched_all() {
                search.idle += begun.elapsed();
                if search.idle >= elsewhere.idle_patience() {
                    self.fetch_ahead(plan, &mut search.ahead)?;
                }
            }
        }
        Ok(HashMap::new())
    }

    /// Fetches the next groups, unless others are under way. `Unsupported` if there are none left: then nothing of use is to be
    /// learned any more.
    pub(super) fn fetch_ahead(&self, plan: &mut Plan<'_>, ahead: &mut Ahead) -> Result<()> {
        if self.has_fetched_all() {
            if !plan.probe(ahead.groups) {
                return Err(Error::new(ErrorKind::Unsupported, "all was fetched meanwhile"));
            }
            ahead.groups = ahead.groups.saturating_mul(2);
        }
        Ok(())
    }
}
