//! The end of a transfer: our root is compared with the object's, and what differs is found and fetched again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dray_core::hash_tree::{Collector, Cv, PAIR_BYTES, PairStore, Subtree, open_pair};
use dray_core::limits::{COMPARED_SUBTREES_MAX, UNIT_GROUPS};
use dray_core::range::RangeSet;
use dray_core::source::SourceCall;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::planner::{Planner, PlannerConfig, SourceState, SourceStats};

use super::{Sink, State, Transfer, Truth, interrupted};
use crate::lock;
use crate::observer::Stop;

/// Times that parts which changed at the origin are fetched again (design decision 3).
const ROUNDS_MAX: u32 = 3;
/// How long the origin of a provisional object may take to name it: it may have to read the whole file again.
const SEAL_TIMEOUT: Duration = Duration::from_secs(600);

impl Transfer {
    /// Compares our root with the object's (of a vouched object the origin's), unless every byte was proven as it came, and
    /// fetches again what differs, at most three times. Call after [`Transfer::wait`].
    pub(crate) fn seal(&self, stop: &Stop, tick: &mut dyn FnMut()) -> Result<Oid> {
        let result = match &self.truth {
            Truth::Proven(verifier) => Ok(verifier.root()),
            Truth::Vouched(collector) => self.rounds(collector, stop, tick),
            Truth::Updated { verifier, collector } => self.prove(verifier.root(), collector, stop, tick),
        };
        if result.is_err() {
            self.keep_last_words();
            self.close();
        }
        result
    }

    fn rounds(
        &self,
        collector: &Collector<Arc<dyn PairStore>>,
        stop: &Stop,
        tick: &mut dyn FnMut(),
    ) -> Result<Oid> {
        for round in 0..=ROUNDS_MAX {
            let root = collector.finish()?;
            let theirs = self.ask(stop, tick, SourceCall::Seal { root }, |state| state.sealed.take())?;
            if theirs == root {
                return Ok(root);
            }
            if round < ROUNDS_MAX {
                let differing = self.bisect(collector, None, stop, tick)?;
                if differing.is_empty() {
                    break;
                }
                self.fetch_again(differing)?;
                self.wait_inner(stop, tick)?;
            }
        }
        Err(Error::new(
            ErrorKind::Changed,
            format!(
                "source changed: it was written to while it was sent, also {ROUNDS_MAX} times after the end"
            ),
        )
        .advise("copy it again when nobody writes to it"))
    }

    /// Compares the root of an update with the OID; what differs is fetched, proven, and hashed once more.
    fn prove(
        &self,
        oid: Oid,
        collector: &Collector<Arc<dyn PairStore>>,
        stop: &Stop,
        tick: &mut dyn FnMut(),
    ) -> Result<Oid> {
        for _ in 0..ROUNDS_MAX {
            if collector.finish()? == oid {
                return Ok(oid);
            }
            let differing = self.bisect(collector, Some(oid), stop, tick)?;
            self.blame_recipe(&differing);
            self.fetch_again(differing)?;
            self.wait_inner(stop, tick)?;
        }
        if collector.finish()? == oid {
            return Ok(oid);
        }
        let what = "what was put together from the older version and the sender's bytes is not the object";
        Err(Error::new(ErrorKind::VerificationFailed, what).advise("fetch it whole, with --whole-file"))
    }

    /// Names who told the recipe, if that alone can be why units of an update differ: all else was proven, or is as it was.
    fn blame_recipe(&self, differing: &RangeSet) {
        let Some(id) = lock(&self.state).recipe_of.take() else { return };
        let cause = "its recipe is not that of the object";
        self.note_cause(id, cause);
        let label = lock(&self.sources).get(&id).map_or_else(String::new, |source| source.describe().label);
        let text = format!("{label}: {cause}: {} MiB are fetched again", differing.count());
        lock(&self.state).warnings.push(text);
    }

    /// The units whose values are not the holder's, found from the root down. `oid` is what the holder's values must hash
    /// to, if that is known; they are its word otherwise.
    fn bisect(
        &self,
        collector: &Collector<Arc<dyn PairStore>>,
        oid: Option<Oid>,
        stop: &Stop,
        tick: &mut dyn FnMut(),
    ) -> Result<RangeSet> {
        let mut differing = RangeSet::new();
        let mut frontier = vec![self.geometry.root()];
        let mut proven: HashMap<Subtree, Cv> = HashMap::new();
        if let Some(oid) = oid {
            proven.insert(self.geometry.root(), *oid.as_bytes());
        }
        while !frontier.is_empty() {
            let (units, inner): (Vec<Subtree>, Vec<Subtree>) =
                frontier.into_iter().partition(|node| node.groups <= UNIT_GROUPS);
            for node in units {
                let unit = node.start / UNIT_GROUPS;
                differing.insert(unit..unit + 1);
            }
            frontier = Vec::new();
            for asked in inner.chunks(COMPARED_SUBTREES_MAX) {
                let theirs = loop {
                    let call = SourceCall::Compare { subtrees: asked.to_vec() };
                    let theirs = self.ask(stop, tick, call, |state| state.compared.take())?;
                    match self.check_compared(asked, &theirs, &proven) {
                        Ok(()) => break theirs,
                        // If there is somebody else, that one is asked.
                        Err(error) => self.dismiss_asked(error),
                    }
                };
                for (node, theirs) in asked.iter().zip(theirs.as_chunks::<PAIR_BYTES>().0) {
                    let mut ours = [0; PAIR_BYTES];
                    collector.pairs().read_pairs(node.pair_index(), &mut ours)?;
                    let (left, right) = node.children();
                    if proven.remove(node).is_some() {
                        let (left_cv, right_cv, _) = open_pair(theirs, *node == self.geometry.root());
                        proven.extend([(left, left_cv), (right, right_cv)]);
                    }
                    for (child, range) in [(left, 0..32), (right, 32..64)] {
                        if ours[range.clone()] != theirs[range] {
                            frontier.push(child);
                        }
                    }
                }
            }
        }
        Ok(differing)
    }

    /// Checks a holder's pairs of the subtrees `asked`, where it is known what they must hash to.
    fn check_compared(&self, asked: &[Subtree], theirs: &[u8], proven: &HashMap<Subtree, Cv>) -> Result<()> {
        if theirs.len() != asked.len() * PAIR_BYTES {
            let what = "the sender compared something else than was asked";
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        for (node, theirs) in asked.iter().zip(theirs.as_chunks::<PAIR_BYTES>().0) {
            let (_, _, cv) = open_pair(theirs, *node == self.geometry.root());
            if proven.get(node).is_some_and(|expected| *expected != cv) {
                let what = "the sender's outboard is not that of the object";
                return Err(Error::new(ErrorKind::VerificationFailed, what)
                    .advise("fetch the object from somebody else, or put it again there"));
            }
        }
        Ok(())
    }

    /// Does without the source that was asked last, for the rest of the transfer.
    fn dismiss_asked(&self, error: Error) {
        let Some(id) = lock(&self.state).asked else { return };
        lock(&self.requests).retain(|_, request| request.source != id);
        let now_us = self.now_us();
        lock(&self.planner).handle_down(now_us, id, Some(&error), true);
        lock(&self.state).last_down = Some(error);
        let source = lock(&self.sources).get(&id).cloned();
        if let Some(source) = source {
            source.call(SourceCall::Close);
        }
    }

    /// Another round: plans `units` once more, from the sources that are there.
    fn fetch_again(&self, units: RangeSet) -> Result<()> {
        if let Sink::Rest(partial) = &self.sink {
            partial.unmark_units(&units)?;
        }
        let bytes: u64 = units
            .iter()
            .flatten()
            .map(|unit| self.geometry.byte_range(self.geometry.unit(unit)))
            .map(|range| range.end - range.start)
            .sum();
        self.done_bytes.fetch_sub(bytes, Ordering::Relaxed);
        lock(&self.units).clear();
        self.stored_units.store(0, Ordering::Release);
        self.wanted_units.store(units.count(), Ordering::Release);
        self.keep_round();
        let now_us = self.now_us();
        let mut planner = lock(&self.planner);
        let config = PlannerConfig {
            last_request: planner.last_request(),
            piece_groups: UNIT_GROUPS,
            is_open: false,
            ..self.config.clone()
        };
        let before = planner.stats();
        *planner = Planner::new(config, units);
        // All are known before the first is said to be gone: that one must not be taken for the last one.
        for (id, source) in lock(&self.sources).iter() {
            planner.add_source(*id, source.describe());
        }
        for SourceStats { source, state, .. } in before {
            match state {
                SourceState::Up | SourceState::Stalled => planner.handle_up(now_us, source, None),
                SourceState::Gone | SourceState::Barred => planner.handle_down(now_us, source, None, true),
                SourceState::Connecting | SourceState::Down => {}
            }
        }
        Ok(())
    }

    /// Asks the best source something and waits for the answer; asks the next one if that is lost meanwhile.
    fn ask<T>(
        &self,
        stop: &Stop,
        tick: &mut dyn FnMut(),
        call: SourceCall,
        mut answer: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + SEAL_TIMEOUT;
        let mut asked = None;
        {
            let mut state = lock(&self.state);
            state.sealed = None;
            state.compared = None;
        }
        loop {
            // One that fell has forgotten the question, also if it is up again.
            if !asked.is_some_and(|id| self.is_up(id) && lock(&self.state).asked == Some(id))
                && let Some((id, source)) = self.best_source(&[])
            {
                asked = Some(id);
                lock(&self.state).asked = asked;
                source.call(match &call {
                    SourceCall::Seal { root } => SourceCall::Seal { root: *root },
                    SourceCall::Compare { subtrees } => SourceCall::Compare { subtrees: subtrees.clone() },
                    _ => return Err(Error::new(ErrorKind::Internal, "nothing to ask")),
                });
            }
            tick();
            let is_anybody_left = self.is_anybody_left();
            let mut state = lock(&self.state);
            if let Some(answer) = answer(&mut state) {
                return Ok(answer);
            }
            if let Some(fatal) = &state.fatal {
                return Err(fatal.duplicate());
            }
            if stop.is_set() {
                return Err(interrupted());
            }
            if !is_anybody_left || Instant::now() > deadline {
                let lost = Error::new(
                    ErrorKind::Unreachable,
                    "the sender was lost before it confirmed what it sent",
                );
                let reason = state.last_down.take();
                return Err(reason
                    .unwrap_or(lost)
                    .advise("run the same command again: nothing is sent twice"));
            }
            drop(self.await_change(state, Duration::from_millis(100)));
        }
    }
}
