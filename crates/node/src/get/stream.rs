//! To something that takes each byte once, as soon as it is proven: standard output, a fifo, a program. In order, or as
//! the bytes come.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::Duration;

use dray_core::hash_tree::{Geometry, PairStore, Verifier};
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES, UNIT_GROUPS};
use dray_core::message::ObjectName;
use dray_core::permit::{Budget, Permit};
use dray_core::range::RangeSet;
use dray_core::{Error, ErrorKind, Result};
use dray_engine::planner::DeliveryMode;

use super::holders::Others;
use super::{Fetch, report, start_sources};
use crate::explain::{Role, figures_of};
use crate::transfer::{Sink, Start, Stream, Transfer, Truth, short_name};
use crate::{Delivered, Event, Stop, outboard};

/// How far ahead of the consumer the sources may be, what the consumer has and keeps included.
const STREAM_WINDOW_BYTES: u64 = 32 << 20;
/// How often who waits for a group looks whether everything has ended.
const INTERVAL: Duration = Duration::from_millis(100);

/// Bytes that came and are proven.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) hold: Arc<Hold>,
}

/// The memory that bytes were reserved: as long as this is there they count, and nothing else is fetched in their place.
#[derive(Debug)]
pub(crate) struct Hold {
    permit: Option<Permit>,
    transfer: Weak<Transfer>,
}

impl Hold {
    /// Of bytes that count nowhere.
    #[cfg(test)]
    pub(crate) fn nothing() -> Arc<Hold> {
        Arc::new(Hold { permit: None, transfer: Weak::new() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.permit = None;
        if let Some(transfer) = self.transfer.upgrade() {
            transfer.wake_taker();
        }
    }
}

/// Takes bytes that are proven, each once.
pub(crate) trait Consumer: Send {
    /// Takes some bytes. May wait for as long as it likes; an error ends the transfer.
    fn take(&mut self, came: Came) -> io::Result<()>;

    /// There are no more.
    fn finish(&mut self) -> io::Result<()>;
}

/// A writer, which takes them in order.
pub(crate) struct Written<W>(pub(crate) W);

impl<W: Write + Send> Consumer for Written<W> {
    fn take(&mut self, came: Came) -> io::Result<()> {
        self.0.write_all(&came.bytes)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// In which order a consumer takes bytes (D11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// By offset.
    Ascending,
    /// As they come, so that a slow source keeps nobody waiting.
    AsTheyCome,
}

impl Fetch<'_> {
    /// To `consumer`: the bytes of the object that are in `bytes`.
    pub(super) fn stream(
        self,
        consumer: Box<dyn Consumer>,
        order: Order,
        bytes: Range<u64>,
    ) -> Result<Delivered> {
        let Fetch { node, oid, geometry, config, at_hand, memory, watch, observer, stop, .. } = self;
        let part = Part::new(geometry, bytes)?;
        let pairs: Arc<dyn PairStore> = outboard::passing(geometry)?;
        let mut wanted = RangeSet::new();
        wanted.insert(part.units.clone());
        let transfer = Transfer::new(
            Truth::Proven(Verifier::new(geometry, oid, pairs)?),
            Sink::Stream(Stream::default()),
            wanted,
            part.left_out_bytes,
            // What is asked for has its memory before: see [`Ahead`].
            node.budget(),
            match order {
                Order::Ascending => DeliveryMode::Sequential { window_bytes: STREAM_WINDOW_BYTES },
                Order::AsTheyCome => DeliveryMode::OutOfOrder,
            },
            Start::Gradual,
        );
        transfer.skip_to(part.units.start);
        watch.begin(Role::Receiving, &oid.to_string(), None, figures_of(&transfer, part.left_out_bytes));
        observer.event(Event::Started {
            name: None,
            total_bytes: geometry.size_bytes(),
            resumed_bytes: part.left_out_bytes,
        });
        let others = start_sources(node, &transfer, ObjectName::Oid(oid), at_hand, config)?;
        let report = || {
            report(&transfer, observer);
            watch.tick();
        };
        let (resumed_bytes, size_bytes) = (part.left_out_bytes, geometry.size_bytes());
        let ahead = Ahead {
            transfer: transfer.clone(),
            budget: memory.budget(STREAM_WINDOW_BYTES),
            geometry,
            units: BTreeMap::new(),
        };
        let result = pass_on(&transfer, Passing { part, order, consumer, ahead }, others, &report, stop);
        watch.freeze();
        transfer.close();
        result.map_err(|error| error.context(format_args!("get {}", short_name(&ObjectName::Oid(oid)))))?;
        Ok(Delivered { oid, size_bytes, path: None, resumed_bytes, sent_bytes: None })
    }
}

/// The part of an object that is wanted.
struct Part {
    bytes: Range<u64>,
    units: Range<u64>,
    /// The last group that has some of the bytes is the one before this.
    end_group: u64,
    /// What of the object is in none of its units.
    left_out_bytes: u64,
}

impl Part {
    fn new(geometry: Geometry, bytes: Range<u64>) -> Result<Part> {
        let size_bytes = geometry.size_bytes();
        if bytes.start > size_bytes || bytes.start > bytes.end {
            let what =
                format!("an object of {size_bytes} bytes has no bytes {} to {}", bytes.start, bytes.end);
            return Err(Error::new(ErrorKind::Usage, what).advise("ask for bytes that it has"));
        }
        let bytes = bytes.start..bytes.end.min(size_bytes);
        // An object without bytes has a group all the same.
        let (units, end_group) = match bytes.is_empty() && size_bytes > 0 {
            true => (0..0, 0),
            false => (
                bytes.start / UNIT_BYTES..bytes.end.div_ceil(UNIT_BYTES).max(1),
                bytes.end.div_ceil(GROUP_BYTES).max(1),
            ),
        };
        let covered = (units.end * UNIT_BYTES).min(size_bytes) - (units.start * UNIT_BYTES).min(size_bytes);
        let left_out_bytes = size_bytes - covered;
        Ok(Part { bytes, units, end_group, left_out_bytes })
    }

    /// What is wanted of a group that came, and where it begins.
    fn cut(&self, group: u64, mut bytes: Vec<u8>) -> (u64, Vec<u8>) {
        let begin = group * GROUP_BYTES;
        let end = begin + bytes.len() as u64;
        let (from, to) = (self.bytes.start.max(begin), self.bytes.end.min(end));
        if to <= from {
            return (from, Vec::new());
        }
        if (from, to) != (begin, end) {
            // Both are within the group, so the casts cannot truncate.
            bytes.truncate((to - begin) as usize);
            bytes.drain(..(from - begin) as usize);
        }
        (from, bytes)
    }
}

/// What is passed on, and how.
struct Passing {
    part: Part,
    order: Order,
    consumer: Box<dyn Consumer>,
    ahead: Ahead,
}

/// The units that are wanted: only those for which there is memory, from when they are asked for until the consumer has
/// dropped the last of their bytes. The lowest are wanted first, so whoever takes them in order never waits for one that is not.
struct Ahead {
    transfer: Arc<Transfer>,
    budget: Budget,
    geometry: Geometry,
    /// Their memory, and how many groups were not passed on.
    units: BTreeMap<u64, (Arc<Hold>, u64)>,
}

impl Ahead {
    /// Wants what there is memory for.
    fn want(&mut self) {
        let wanted = self.transfer.want_more(|| self.budget.try_reserve(UNIT_BYTES));
        for (unit, permit) in wanted {
            let hold = Hold { permit: Some(permit), transfer: Arc::downgrade(&self.transfer) };
            self.units.insert(unit, (Arc::new(hold), self.geometry.unit(unit).groups));
        }
    }

    /// The memory of a group that is passed on.
    fn hold(&mut self, group: u64) -> Result<Arc<Hold>> {
        let unit = group / UNIT_GROUPS;
        let unasked = || Error::new(ErrorKind::Internal, "a group came that was not asked for");
        let (hold, left) = self.units.get_mut(&unit).ok_or_else(unasked)?;
        let hold = hold.clone();
        *left -= 1;
        if *left == 0 {
            self.units.remove(&unit);
        }
        Ok(hold)
    }
}

/// Moves the groups to the consumer, until the last, an error, or `stop`. The consumer may be slow or stopped for as
/// long as it likes: a thread of its own writes, and is left behind if it hangs in a write when everything else ends.
/// `report` runs about ten times a second.
fn pass_on(
    transfer: &Arc<Transfer>,
    passing: Passing,
    mut others: Others,
    report: &dyn Fn(),
    stop: &Stop,
) -> Result<()> {
    let (is_fed, cannot_write) = (Arc::new(AtomicBool::new(false)), Stop::new());
    let (sender, written) = mpsc::channel();
    let (feed, fed, failed) = (transfer.clone(), is_fed.clone(), cannot_write.clone());
    let writing = move || {
        let result = match passing.order {
            Order::Ascending => write_in_order(&feed, passing, &fed),
            Order::AsTheyCome => write_as_they_come(&feed, passing, &fed),
        };
        let is_bad = result.is_err();
        let _ = sender.send(result);
        if is_bad {
            failed.set();
        }
    };
    thread::Builder::new()
        .name("output".into())
        .spawn(writing)
        .map_err(|error| Error::file("start a thread", error))?;
    let either = Stop::new();
    let waited = transfer.wait(&either, &mut || {
        report();
        others.dial_if_needed(transfer);
        if stop.is_set() || cannot_write.is_set() {
            either.set();
        }
    });
    is_fed.store(true, Ordering::Release);
    if waited.is_err() {
        // If writing ended first, that is why.
        return written.try_recv().unwrap_or(Ok(())).and(waited);
    }
    loop {
        match written.recv_timeout(INTERVAL) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) if stop.is_set() => {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted before all was written"));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => report(),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "a thread failed"));
            }
        }
    }
}

/// Writes group after group; ends early if the transfer has ended (`is_fed`) without the next one.
fn write_in_order(transfer: &Transfer, passing: Passing, is_fed: &AtomicBool) -> Result<()> {
    let Passing { part, mut consumer, mut ahead, .. } = passing;
    // Whole units are fetched.
    let mut next_group = part.units.start * UNIT_GROUPS;
    while next_group < part.end_group {
        ahead.want();
        let group = next_group;
        match transfer.take_next(&mut next_group, INTERVAL) {
            Some(bytes) => give(&mut *consumer, part.cut(group, bytes), ahead.hold(group)?)?,
            // The transfer ended without this group: its error says why.
            None if is_fed.load(Ordering::Acquire) && !transfer.has_group(next_group) => break,
            None => {}
        }
    }
    consumer.finish().map_err(cannot_write)
}

/// Writes the groups as they come.
fn write_as_they_come(transfer: &Transfer, passing: Passing, is_fed: &AtomicBool) -> Result<()> {
    let Passing { part, mut consumer, mut ahead, .. } = passing;
    // Whole units are fetched.
    let groups = (part.units.end * UNIT_GROUPS).min(ahead.geometry.groups()) - part.units.start * UNIT_GROUPS;
    let mut taken_groups = 0;
    while taken_groups < groups {
        ahead.want();
        // Asked before, so that what came last is not overlooked.
        let is_over = is_fed.load(Ordering::Acquire);
        match transfer.take_any(INTERVAL) {
            Some((group, bytes)) => {
                give(&mut *consumer, part.cut(group, bytes), ahead.hold(group)?)?;
                taken_groups += 1;
            }
            // The transfer ended without the others: its error says why.
            None if is_over => break,
            None => {}
        }
    }
    consumer.finish().map_err(cannot_write)
}

fn give(consumer: &mut dyn Consumer, (offset, bytes): (u64, Vec<u8>), hold: Arc<Hold>) -> Result<()> {
    let came = Came { offset, bytes, hold };
    if came.bytes.is_empty() { Ok(()) } else { consumer.take(came).map_err(cannot_write) }
}

fn cannot_write(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Error::new(ErrorKind::Interrupted, "the output was closed by its reader before all was written")
        }
        _ => Error::file("write output", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D12: whatever part is asked for, its groups cut to it are that part, each byte once.
    #[test]
    fn a_part_is_cut_to_its_bytes() {
        for size_bytes in [0, 1, GROUP_BYTES, 3 * UNIT_BYTES + 5] {
            let data: Vec<u8> = (0..size_bytes).map(|at| (at % 251) as u8).collect();
            let edges = [0, 1, GROUP_BYTES - 1, GROUP_BYTES, UNIT_BYTES + 7, size_bytes, u64::MAX];
            for (from, to) in edges.iter().flat_map(|from| edges.map(|to| (*from, to))) {
                let Ok(part) = Part::new(Geometry::new(size_bytes), from..to) else {
                    assert!(from > size_bytes || from > to, "{from}..{to} of {size_bytes}");
                    continue;
                };
                let groups = part.units.start * UNIT_GROUPS..part.end_group;
                let mut found = Vec::new();
                for group in groups {
                    let begin = group * GROUP_BYTES;
                    let end = (begin + GROUP_BYTES).min(size_bytes);
                    let (offset, bytes) = part.cut(group, data[begin as usize..end as usize].to_vec());
                    assert!(bytes.is_empty() || offset == from + found.len() as u64);
                    found.extend(bytes);
                }
                assert!(
                    found == data[from as usize..to.min(size_bytes) as usize],
                    "{from}..{to} of {size_bytes}"
                );
            }
        }
    }
}
