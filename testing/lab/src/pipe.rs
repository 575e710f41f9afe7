//! One pipe: loss, then a drop-tail queue served at a rate, then a delay line. Time is an argument (nanoseconds), so the
//! whole of it runs in a test as it runs in the lab.
//!
//! Service is planned in virtual time: a packet's begins where the one before it ended, not when somebody woke up to see
//! that, so late wake-ups cost no rate.

use std::collections::VecDeque;
use std::time::Duration;

use crate::link::{Change, Link, Loss, Queue, Rate};
use crate::stats::PipeStats;
use crate::trace::Trace;

/// Nanoseconds of the engine's clock.
pub(crate) type Time = u64;

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Packet {
    /// `virtio_net_hdr` and IP packet.
    pub(crate) data: Vec<u8>,
    /// What it costs on a link, headers of all segments included.
    pub(crate) bytes: u64,
    /// Segments.
    pub(crate) packets: u64,
    /// The way it takes, and how far it has come.
    pub(crate) path: usize,
    pub(crate) hop: usize,
}

/// What became of a packet that was offered.
pub(crate) enum Offered {
    /// It waits.
    Kept,
    /// It is lost.
    Dropped(Packet),
    /// Nothing holds it back: it goes on at once.
    Passes(Packet),
}

/// A moment at which a pipe must be looked at again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Alarm {
    /// The packet at the head of the queue is through; valid for this plan only.
    Served(u64),
    /// The first packet of the delay line is due.
    Due,
    /// The next step of a trace; valid for this trace only.
    Step(u64),
}

/// Most memory that the packets of a delay line may take, bytes: 1 Gbit/s fill a quarter of it in 200 ms. A flood over a link with a long delay
/// and without a rate should not take the machine's memory.
const LINE_BYTES_MAX: u64 = 128 << 20;

/// Work not yet done on the packet at the head: bits times 10^9, so that a rate in bits a second is work a nanosecond.
type Work = u128;

#[derive(Debug)]
pub(crate) struct Pipe {
    rate: Option<Rate>,
    delay: Time,
    loss: Loss,
    in_bad_state: bool,
    queue_rule: Queue,
    framing_bytes: u64,
    is_up: bool,

    queue: VecDeque<Packet>,
    queued_bytes: u64,
    limit_bytes: u64,
    work_left: Work,
    /// When `work_left` was true.
    work_at: Time,
    /// Number of the plan for the head; alarms of older plans are void.
    plan: u64,

    line: VecDeque<(Time, Packet)>,
    line_bytes: u64,

    trace: Option<Trace>,
    trace_number: u64,
    trace_step: usize,

    pub(crate) stats: PipeStats,
    /// Until when the queue is counted.
    counted_at: Time,
}

impl Pipe {
    pub(crate) fn new(link: &Link) -> Pipe {
        let mut pipe = Pipe {
            rate: link.rate,
            delay: nanoseconds(link.delay),
            loss: link.loss,
            in_bad_state: false,
            queue_rule: link.queue,
            framing_bytes: u64::from(link.framing_bytes),
            is_up: true,
            queue: VecDeque::new(),
            queued_bytes: 0,
            limit_bytes: 0,
            work_left: 0,
            work_at: 0,
            plan: 0,
            line: VecDeque::new(),
            line_bytes: 0,
            trace: None,
            trace_number: 0,
            trace_step: 0,
            stats: PipeStats::default(),
            counted_at: 0,
        };
        pipe.size_queue();
        pipe
    }

    /// One-way delay.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// What it did until `now`.
    pub(crate) fn counted(&mut self, now: Time) -> PipeStats {
        self.count_queue(now);
        self.stats
    }

    /// Counts from zero again.
    pub(crate) fn forget(&mut self, now: Time) {
        self.count_queue(now);
        self.stats = PipeStats::default();
    }

    /// Adds up what has waited until `now`; before it changes.
    fn count_queue(&mut self, now: Time) {
        let time = now.saturating_sub(self.counted_at);
        self.counted_at = self.counted_at.max(now);
        if self.queued_bytes > 0 {
            self.stats.busy += Duration::from_nanos(time);
            self.stats.queued_byte_ns += u128::from(self.queued_bytes) * u128::from(time);
        }
    }

    /// A packet arrives at `now`. `chance` gives numbers in 0..1.
    pub(crate) fn offer(
        &mut self,
        packet: Packet,
        now: Time,
        chance: &mut impl FnMut() -> f64,
        alarms: &mut Vec<(Time, Alarm)>,
    ) -> Offered {
        let bytes = self.cost(&packet);
        self.stats.offered_packets += packet.packets;
        self.stats.offered_bytes += bytes;
        if !self.is_up {
            self.stats.dropped_down += packet.packets;
            return Offered::Dropped(packet);
        }
        if self.is_lost(chance) {
            self.stats.lost_packets += packet.packets;
            return Offered::Dropped(packet);
        }
        if self.rate.is_none() {
            return self.leave_queue(packet, now, alarms);
        }
        if self.queued_bytes + bytes > self.limit_bytes {
            self.stats.dropped_full += packet.packets;
            return Offered::Dropped(packet);
        }
        self.count_queue(now);
        self.queued_bytes += bytes;
        self.stats.queue_bytes_peak = self.stats.queue_bytes_peak.max(self.queued_bytes);
        self.queue.push_back(packet);
        if self.queue.len() == 1 {
            self.begin_service(now, alarms);
        }
        Offered::Kept
    }

    /// An alarm rings; `now` is the moment it was set for. Returns a packet that leaves the pipe.
    pub(crate) fn ring(
        &mut self,
        alarm: Alarm,
        now: Time,
        alarms: &mut Vec<(Time, Alarm)>,
    ) -> Option<Packet> {
        match alarm {
            Alarm::Served(plan) if plan == self.plan => {
                let packet = self.queue.pop_front()?;
                self.count_queue(now);
                self.queued_bytes -= self.cost(&packet);
                if !self.queue.is_empty() {
                    self.begin_service(now, alarms);
                }
                match self.leave_queue(packet, now, alarms) {
                    Offered::Passes(packet) => Some(packet),
                    Offered::Kept | Offered::Dropped(_) => None,
                }
            }
            Alarm::Due => {
                let (_, packet) = self.line.pop_front()?;
                self.line_bytes -= memory(&packet);
                if let Some((due, _)) = self.line.front() {
                    alarms.push((*due, Alarm::Due));
                }
                Some(packet)
            }
            Alarm::Step(number) if number == self.trace_number => {
                self.play_step(now, alarms);
                None
            }
            Alarm::Served(_) | Alarm::Step(_) => None,
        }
    }

    /// Changes it at `now`. Returns packets that leave the pipe at once.
    pub(crate) fn change(
        &mut self,
        change: Change,
        now: Time,
        alarms: &mut Vec<(Time, Alarm)>,
    ) -> Vec<Packet> {
        match change {
            Change::Rate(rate) => {
                self.trace = None;
                self.trace_number += 1;
                return self.set_rate(rate, now, alarms);
            }
            Change::Delay(delay) => {
                self.delay = nanoseconds(delay);
                self.size_queue();
            }
            Change::Loss(loss) => self.loss = loss,
            Change::Up(is_up) => self.is_up = is_up,
        }
        Vec::new()
    }

    /// Lets the rate follow `trace` from `now` on.
    pub(crate) fn play(&mut self, trace: Trace, now: Time, alarms: &mut Vec<(Time, Alarm)>) {
        self.trace = Some(trace);
        self.trace_number += 1;
        self.trace_step = 0;
        self.play_step(now, alarms);
    }

    fn play_step(&mut self, now: Time, alarms: &mut Vec<(Time, Alarm)>) {
        let Some(trace) = &self.trace else { return };
        let (length, rate) = trace.steps[self.trace_step];
        self.trace_step = (self.trace_step + 1) % trace.steps.len();
        alarms.push((now + nanoseconds(length), Alarm::Step(self.trace_number)));
        self.set_rate(Some(rate), now, alarms);
    }

    fn set_rate(&mut self, rate: Option<Rate>, now: Time, alarms: &mut Vec<(Time, Alarm)>) -> Vec<Packet> {
        if let (Some(old), false) = (self.rate, self.queue.is_empty()) {
            let elapsed = now.saturating_sub(self.work_at);
            let done = Work::from(old.bits_per_second()) * Work::from(elapsed);
            self.work_left = self.work_left.saturating_sub(done);
            self.work_at = now;
        }
        self.rate = rate;
        self.size_queue();
        if rate.is_some() {
            if !self.queue.is_empty() {
                self.plan_service(alarms);
            }
            return Vec::new();
        }
        // Nothing holds back what waits any more.
        self.plan += 1;
        self.count_queue(now);
        self.queued_bytes = 0;
        let mut passing = Vec::new();
        while let Some(packet) = self.queue.pop_front() {
            if let Offered::Passes(packet) = self.leave_queue(packet, now, alarms) {
                passing.push(packet);
            }
        }
        passing
    }

    fn begin_service(&mut self, now: Time, alarms: &mut Vec<(Time, Alarm)>) {
        let Some(head) = self.queue.front() else { return };
        self.work_left = Work::from(self.cost(head)) * 8 * 1_000_000_000;
        self.work_at = now;
        self.plan_service(alarms);
    }

    fn plan_service(&mut self, alarms: &mut Vec<(Time, Alarm)>) {
        self.plan += 1;
        let rate = self.rate.map_or(0, Rate::bits_per_second);
        // With rate 0 it waits for a change.
        if rate > 0 {
            let time = self.work_left.div_ceil(Work::from(rate));
            let time = Time::try_from(time).unwrap_or(Time::MAX / 2);
            alarms.push((self.work_at.saturating_add(time), Alarm::Served(self.plan)));
        }
    }

    fn leave_queue(&mut self, packet: Packet, now: Time, alarms: &mut Vec<(Time, Alarm)>) -> Offered {
        if self.line_bytes + memory(&packet) > LINE_BYTES_MAX {
            self.stats.dropped_full += packet.packets;
            return Offered::Dropped(packet);
        }
        self.stats.carried_packets += packet.packets;
        self.stats.carried_bytes += self.cost(&packet);
        if self.delay == 0 && self.line.is_empty() {
            return Offered::Passes(packet);
        }
        // A delay that became shorter does not let packets overtake.
        let earliest = self.line.back().map_or(0, |(due, _)| *due);
        let due = (now + self.delay).max(earliest);
        if self.line.is_empty() {
            alarms.push((due, Alarm::Due));
        }
        self.line_bytes += memory(&packet);
        self.line.push_back((due, packet));
        Offered::Kept
    }

    fn is_lost(&mut self, chance: &mut impl FnMut() -> f64) -> bool {
        match self.loss {
            Loss::None => false,
            Loss::Random(probability) => chance() < probability,
            Loss::Burst { to_bad, to_good, in_bad } => {
                let turns = chance() < if self.in_bad_state { to_good } else { to_bad };
                self.in_bad_state ^= turns;
                self.in_bad_state && chance() < in_bad
            }
        }
    }

    fn cost(&self, packet: &Packet) -> u64 {
        packet.bytes + packet.packets * self.framing_bytes
    }

    fn size_queue(&mut self) {
        self.limit_bytes =
            self.rate.map_or(u64::MAX, |rate| self.queue_rule.bytes(rate, Duration::from_nanos(self.delay)));
    }
}

/// What a packet that waits takes, bytes.
fn memory(packet: &Packet) -> u64 {
    packet.data.capacity() as u64
}

fn nanoseconds(time: Duration) -> Time {
    // Half the range, so that sums of two never overflow; 292 years.
    Time::try_from(time.as_nanos()).unwrap_or(Time::MAX).min(Time::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    /// Losses are as many as [`Loss::share`] says, and those in bursts come in runs.
    #[test]
    fn losses_are_as_many_as_they_should_be() {
        const PACKETS: usize = 400_000;
        for (loss, mean_run) in [
            (Loss::Random(0.1), 1.0 / 0.9),
            (Loss::bursts(0.1, 8.0), 8.0),
            // A run ends with the first packet that gets through in the bad state, or with the state.
            (Loss::Burst { to_bad: 0.02, to_good: 0.1, in_bad: 0.5 }, 1.0 / (1.0 - 0.5 * 0.9)),
        ] {
            let mut pipe = Pipe::new(&Link::UNSHAPED.with_loss(loss));
            let mut random = SplitMix64::new(7);
            let lost: Vec<bool> = (0..PACKETS).map(|_| pipe.is_lost(&mut || random.next_share())).collect();
            let count = lost.iter().filter(|lost| **lost).count() as f64;
            let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
            let (share, run) = (count / PACKETS as f64, count / runs);
            assert!((share / loss.share() - 1.0).abs() < 0.05, "{loss:?}: {share}");
            assert!((run / mean_run - 1.0).abs() < 0.05, "{loss:?}: runs of {run}");
        }
    }
}
