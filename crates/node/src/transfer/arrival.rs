//! What arrives: each group is proven (or its value kept), written where it belongs and accounted for, on the thread that brought it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dray_core::hash_tree::{Cv, PAIR_BYTES, group_cv, is_zero};
use dray_core::limits::{GROUP_BYTES, UNIT_GROUPS};
use dray_core::source::{DataPiece, Flow, RequestId, SourceId};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::planner::{Disposition, Effort};

use super::{Request, Sink, Transfer, Unit, update};
use crate::lock;

impl Transfer {
    /// Proves the parents of a request. `Ok(false)`: the request is not wanted any more.
    pub(super) fn parents(&self, request: RequestId, pairs: &[u8]) -> Result<bool> {
        let Some(verifier) = self.truth.verifier() else {
            return self.vouched_value(request, pairs);
        };
        let (groups, known_depth) = match lock(&self.requests).get(&request) {
            Some(request) => (request.groups, request.known_depth),
            None => return Ok(false),
        };
        let leaves = verifier.accept_parents(groups, known_depth, pairs)?;
        let way = self.geometry.path(groups).len() - 1;
        if let Some(request) = lock(&self.requests).get_mut(&request) {
            request.is_zero = groups.groups > 1 && pairs.len() == (way - known_depth) * PAIR_BYTES;
            request.leaves = Some(Arc::new(leaves));
        }
        Ok(true)
    }

    pub(super) fn group(
        &self,
        now_us: u64,
        source: SourceId,
        request: RequestId,
        group: u64,
        bytes: &[u8],
        data: &[DataPiece],
    ) -> Flow {
        let arrived = Instant::now();
        let came = data.iter().filter_map(|piece| bytes.get(piece.start as usize..piece.end as usize));
        self.count_brought(came.map(update::data_bytes).sum());
        let value = || group_cv(self.geometry, group, bytes);
        let cv = if self.truth.verifier().is_some() {
            match self.expected(request, group) {
                // Zeros whose value was computed here need not be hashed once more.
                Ok(Some((expected, true))) if is_zero(bytes) => expected,
                Ok(Some((expected, _))) if expected == value() => expected,
                Ok(None) => return Flow::Cancel,
                Err(error) if !is_mismatch(&error) => {
                    self.fail(error);
                    return Flow::Cancel;
                }
                Ok(Some(_)) | Err(_) => {
                    lock(&self.planner).handle_mismatch(now_us, source, request);
                    self.refuse(request);
                    return Flow::Cancel;
                }
            }
        } else {
            value()
        };
        let proven = Instant::now();
        let disposition = {
            let mut planner = lock(&self.planner);
            planner.handle_effort(EFFORT.take());
            planner.handle_group(now_us, source, request, group)
        };
        if disposition == Disposition::Deliver {
            if let Err(error) = self.store(group, bytes, data, cv) {
                self.fail(error);
                return Flow::Cancel;
            }
            self.count_fetched();
        }
        note_effort(arrived, proven);
        Flow::Continue
    }

    /// Looks at nothing more of a request that was not what it should be: each group would be hashed, or what proves it, all for
    /// a few bytes of a liar.
    pub(super) fn refuse(&self, request: RequestId) {
        lock(&self.requests).remove(&request);
    }

    /// What `group` must hash to, and whether that was computed of zeros; `None` if its request is unknown.
    fn expected(&self, request: RequestId, group: u64) -> Result<Option<(Cv, bool)>> {
        let known = |request: &Request| (request.groups, request.leaves.clone(), request.is_zero);
        let Some((groups, leaves, is_zero)) = lock(&self.requests).get(&request).map(known) else {
            return Ok(None);
        };
        let (leaves, is_zero) = match leaves {
            Some(leaves) => (leaves, is_zero),
            // Nothing was missing on the way to a lone group, or to zeros, so no parents came.
            None if self.parents(request, &[])? => match lock(&self.requests).get(&request).map(known) {
                Some((_, Some(leaves), is_zero)) => (leaves, is_zero),
                _ => return Ok(None),
            },
            None => return Ok(None),
        };
        let at = group.checked_sub(groups.start).and_then(|at| usize::try_from(at).ok());
        Ok(at.and_then(|at| leaves.get(at)).map(|leaf| (*leaf, is_zero)))
    }

    /// The origin's value of a group of which it sends the rest.
    fn vouched_value(&self, request: RequestId, value: &[u8]) -> Result<bool> {
        let value: Cv = value.try_into().map_err(|_| {
            Error::new(
                ErrorKind::Protocol,
                "the value of a group of an object without a name is not 32 bytes",
            )
        })?;
        let mut requests = lock(&self.requests);
        let Some(request) = requests.get_mut(&request) else { return Ok(false) };
        request.leaves = Some(Arc::new(vec![value]));
        Ok(true)
    }

    /// What was lacking of a group came: it is put together, held against what proves it, and fetched whole if it is not that.
    pub(super) fn rest(
        &self,
        now_us: u64,
        source: SourceId,
        request: RequestId,
        group: u64,
        came: &[u8],
    ) -> Flow {
        self.count_brought(came.len() as u64);
        let group_bytes = self.geometry.group_bytes(group);
        let rest = lock(&self.rests).as_ref().and_then(|rests| rests.rest(group));
        let other_bytes = rest.as_ref().map_or(0, |(rest, _)| rest.other_bytes);
        let whole = rest.and_then(|(rest, here)| rest.put_together(&here, group_bytes, came));
        // What came twice, or does not fit, is no group, and has no value.
        let bytes = whole.unwrap_or_default();
        let found = (bytes.len() == group_bytes).then(|| group_cv(self.geometry, group, &bytes));
        let cv = match self.expected(request, group) {
            Ok(Some((expected, _))) if Some(expected) == found => expected,
            Ok(None) => return Flow::Cancel,
            Err(error) if !is_mismatch(&error) => {
                self.fail(error);
                return Flow::Cancel;
            }
            Ok(Some(_)) | Err(_) => {
                if let Some(rests) = lock(&self.rests).as_mut() {
                    rests.forget(group);
                }
                lock(&self.planner).handle_misfit(now_us, source, request);
                self.refuse(request);
                return Flow::Cancel;
            }
        };
        let delivered = lock(&self.planner).handle_rest(now_us, source, request, group, came.len() as u64);
        if delivered == Disposition::Deliver {
            let here = (group_bytes - came.len()) as u64;
            self.other_bytes.fetch_add(other_bytes, Ordering::Release);
            self.local_bytes.fetch_add(here - other_bytes, Ordering::Release);
            if let Err(error) = self.store(group, &bytes, &update::data_pieces(&bytes), cv) {
                self.fail(error);
                return Flow::Cancel;
            }
            if let Some(rests) = lock(&self.rests).as_mut() {
                rests.forget(group);
            }
            self.count_fetched();
        }
        Flow::Continue
    }

    /// A group that was to be fetched is here.
    pub(super) fn count_fetched(&self) {
        self.fetched_groups.fetch_add(1, Ordering::AcqRel);
    }

    /// A source brought so many bytes, whatever becomes of them.
    fn count_brought(&self, bytes: u64) {
        self.brought_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn store(&self, group: u64, bytes: &[u8], data: &[DataPiece], cv: Cv) -> Result<()> {
        let _working = self.pressure.begin();
        self.write(group, bytes, data)?;
        self.count_stored(group, bytes.len(), cv)
    }

    fn write(&self, group: u64, bytes: &[u8], data: &[DataPiece]) -> Result<()> {
        let offset = group * GROUP_BYTES;
        match &self.sink {
            Sink::Rest(partial) => {
                let mut position = 0;
                for piece in data {
                    if position < piece.start {
                        partial.write_hole(offset + u64::from(position)..offset + u64::from(piece.start))?;
                    }
                    partial.write_data(
                        offset + u64::from(piece.start),
                        &bytes[piece.start as usize..piece.end as usize],
                    )?;
                    position = piece.end;
                }
                if (position as usize) < bytes.len() {
                    partial.write_hole(offset + u64::from(position)..offset + bytes.len() as u64)?;
                }
            }
            Sink::Stream(stream) => {
                lock(&stream.waiting).insert(group, bytes.to_vec());
            }
        }
        Ok(())
    }

    /// The bytes of a group are where they belong, and have this value.
    pub(super) fn count_stored(&self, group: u64, len: usize, cv: Cv) -> Result<()> {
        self.done_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let number = group / UNIT_GROUPS;
        let node = self.geometry.unit(number);
        let complete = {
            let mut units = lock(&self.units);
            let unit = units
                .entry(number)
                .or_insert_with(|| Unit { stored: 0, leaves: [[0; 32]; UNIT_GROUPS as usize] });
            let at = (group - node.start) as usize;
            unit.stored |= 1 << at;
            unit.leaves[at] = cv;
            if unit.stored.count_ones() as u64 == node.groups { units.remove(&number) } else { None }
        };
        if let Some(unit) = complete {
            if let Some(collector) = self.truth.collector() {
                collector.record_unit(number, &unit.leaves[..node.groups as usize])?;
            }
            if let Sink::Rest(partial) = &self.sink {
                partial.mark_unit(number)?;
            }
            self.stored_units.fetch_add(1, Ordering::AcqRel);
            if self.is_stored() {
                drop(lock(&self.state));
                self.changed.notify_all();
            }
        }
        if let Sink::Stream(stream) = &self.sink {
            stream.arrived.notify_all();
        }
        Ok(())
    }
}

thread_local! {
    /// What this thread did since it last told the planner, and when it was through with that.
    static EFFORT: Cell<Effort> = const { Cell::new(Effort { span_us: 0, proving_us: 0, writing_us: 0 }) };
    static THROUGH: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A group arrived, was proven, and is written now. Told with the next group, so that the planner is locked once a group.
fn note_effort(arrived: Instant, proven: Instant) {
    let now = Instant::now();
    let us = |from: Instant, to: Instant| u64::try_from((to - from).as_micros()).unwrap_or(u64::MAX);
    EFFORT.set(Effort {
        span_us: us(THROUGH.replace(Some(now)).unwrap_or(arrived), now),
        proving_us: us(arrived, proven),
        writing_us: us(proven, now),
    });
}

/// The bytes are wrong; any other failure of a check is this machine's own.
pub(super) fn is_mismatch(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::VerificationFailed | ErrorKind::Protocol)
}
