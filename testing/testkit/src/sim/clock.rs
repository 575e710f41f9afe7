//! Virtual time: what is to happen, in order. Of two things at one moment, the one that was planned first comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::network::{ConnectionId, Segment, Side};

/// Something that happens at a moment.
#[derive(Debug)]
pub(crate) enum Event {
    /// A segment arrives at its next link, or at its end.
    Arrives(Segment),
    /// The sender hears that a segment has arrived.
    Acknowledged(Segment),
    /// The sender notices that a segment was lost on the way.
    Missed(Segment),
    /// The sender has waited in vain for what it sent into the void.
    Retransmits(ConnectionId, Side),
    /// The question for a connection arrives at the one who is dialled, for the so-many-th time.
    Knocks(ConnectionId, u32),
    /// The dialler hears that the connection is there.
    Established(ConnectionId),
    /// The dialler hears that there will be none, or has waited long enough.
    Rejected(ConnectionId),
    /// One end is told that the other knows nothing of the connection.
    Reset(ConnectionId, Side),
    /// Both ends look whether the other is alive.
    Probes(ConnectionId),
    /// Something for the process of a node; stale if that process has ended.
    Process { node: usize, process: u64, what: Wakeup },
    /// The next fault.
    Fault(usize),
    /// A fault passes.
    Mended(usize),
    /// A node begins to receive, or its process is started again.
    Begins(usize),
}

/// What a process waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wakeup {
    /// A chunk has been read and encrypted.
    Chunk(ConnectionId),
    /// A group has been decrypted and hashed.
    Group { source: usize, lane: usize },
    /// The disk took what was written.
    Written { source: usize, lane: usize },
    /// The pause before the next attempt to connect is over.
    Redial { source: usize, lane: Option<usize> },
    /// A connection has had the time to show a right.
    Greeting(ConnectionId),
    /// A tenth of a second has passed.
    Tick,
    /// A checkpoint is on the disk.
    Checkpoint,
}

/// The events to come.
#[derive(Default)]
pub(crate) struct Clock {
    now_ns: u64,
    planned: u64,
    events: BinaryHeap<Reverse<Planned>>,
}

struct Planned {
    at_ns: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.number == other.number
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

impl Clock {
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Plans `event` for `at_ns`, or for now if that has passed.
    pub(crate) fn plan(&mut self, at_ns: u64, event: Event) {
        self.planned += 1;
        let at_ns = at_ns.max(self.now_ns);
        self.events.push(Reverse(Planned { at_ns, number: self.planned, event }));
    }

    /// Plans `event` after `ns` nanoseconds.
    pub(crate) fn after(&mut self, ns: u64, event: Event) {
        self.plan(self.now_ns.saturating_add(ns), event);
    }

    /// Goes on to the next event.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let Reverse(planned) = self.events.pop()?;
        self.now_ns = planned.at_ns;
        Some(planned.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_planning() {
        let mut clock = Clock::default();
        for (at_ns, number) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            clock.plan(at_ns, Event::Fault(number));
        }
        let mut order = Vec::new();
        while let Some(Event::Fault(number)) = clock.next() {
            order.push((clock.now_ns(), number));
        }
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)]);
        clock.plan(1, Event::Fault(9));
        assert!(clock.next().is_some());
        assert_eq!(clock.now_ns(), 5, "time does not run backwards");
    }
}
