//! What a run did, and whether its timings may be believed.

use std::time::Duration;

/// Counts of one pipe since the lab was made or [`crate::Lab::reset_stats`]. Bytes are those of IP packets and framing,
/// super-packets counted as their segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeStats {
    /// Packets that arrived.
    pub offered_packets: u64,
    /// Bytes that arrived.
    pub offered_bytes: u64,
    /// Packets that got through the queue.
    pub carried_packets: u64,
    /// Bytes that got through the queue.
    pub carried_bytes: u64,
    /// Packets that [`crate::Loss`] took.
    pub lost_packets: u64,
    /// Packets that found the queue full.
    pub dropped_full: u64,
    /// Packets that found the link down.
    pub dropped_down: u64,
    /// The most that waited at once.
    pub queue_bytes_peak: u64,
    /// Time in which something waited or was on its way into the link: the rest of the time it was idle.
    pub busy: Duration,
    /// Bytes that waited, each for its time in nanoseconds.
    pub queued_byte_ns: u128,
}

impl PipeStats {
    /// What waited on average while anything did, bytes, the packet on its way included.
    pub fn queue_bytes_mean(&self) -> u64 {
        let mean = self.queued_byte_ns / self.busy.as_nanos().max(1);
        u64::try_from(mean).unwrap_or(u64::MAX)
    }
}

/// How late the engine acted, in classes a quarter of an octave wide from 1 µs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    counts: [u64; Lateness::CLASSES],
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { counts: [0; Lateness::CLASSES] }
    }
}

impl Lateness {
    /// Up to a minute.
    const CLASSES: usize = 4 * 26;

    pub(crate) fn record(&mut self, late: Duration) {
        let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let class = if micros == 0 {
            0
        } else {
            // Four classes an octave: the two bits below the first one.
            let octave = micros.ilog2();
            let quarter = ((u128::from(micros) << 2 >> octave) & 3) as usize;
            1 + 4 * octave as usize + quarter
        };
        self.counts[class.min(Lateness::CLASSES - 1)] += 1;
    }

    /// Events counted.
    pub fn events(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The lateness that this share (0 to 1) of the events stayed within, rounded up to its class. Zero without events.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.events() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Lateness::upper_end(class);
            }
        }
        Duration::ZERO
    }

    fn upper_end(class: usize) -> Duration {
        let Some(above) = class.checked_sub(1) else { return Duration::from_micros(1) };
        let (octave, quarter) = (above / 4, above % 4);
        Duration::from_nanos((1000_u64 << octave) * (5 + quarter as u64) / 4)
    }
}

/// What the engine did since the lab was made or [`crate::Lab::reset_stats`].
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Of every pipe, in the order they were made.
    pub pipes: Vec<PipeStats>,
    /// Packets for an address that no path of their device leads to (multicast among them).
    pub unrouted_packets: u64,
    /// Packets that a destination's device did not take.
    pub refused_packets: u64,
    /// Packets that a sender's device dropped, as the engine did not come to read them: no link lost them.
    pub sender_dropped_packets: u64,
    /// How late pipes were served.
    pub lateness: Lateness,
    /// CPU time of the engine's thread.
    pub engine_cpu: Duration,
    /// Time the figures are of.
    pub elapsed: Duration,
    /// Share of the machine's CPU time that nobody used, 0 to 1; `None` if the time was too short to tell.
    pub idle_share: Option<f64>,
    /// The smallest one-way delay of a pipe that has one.
    pub smallest_delay: Option<Duration>,
}

impl Stats {
    /// The validity gate: whether timings of this run say something about the links rather than about the machine. Counts (bytes,
    /// packets) hold either way.
    ///
    /// # Errors
    /// Why not: served late (99.9 % within a twentieth of the smallest delay, but no less than 0.25 ms and no more than 3.3 ms; within 1 ms without
    /// a delay), the engine busy
    /// for more than 70 % of a core, less than 10 % of the machine idle, or packets lost where no link loses them: the device they were for did not
    /// take them, or that of their sender had no room.
    pub fn validity(&self) -> Result<(), String> {
        // That more than 1 ms does no harm to a flow is shown by `lateness_that_the_gate_allows_costs_no_throughput`, up to a delay of 66 ms.
        let twentieth =
            |delay: Duration| (delay / 20).clamp(Duration::from_micros(250), Duration::from_micros(3300));
        let bound = self.smallest_delay.map_or(Duration::from_millis(1), twentieth);
        let late = self.lateness.quantile(0.999);
        let busy = self.engine_share();
        let mut reasons = Vec::new();
        if late > bound {
            reasons.push(format!("99.9 % of events were up to {late:.2?} late, more than {bound:.2?}"));
        }
        if busy > 0.7 {
            reasons.push(format!("the engine used {:.0} % of a core", busy * 100.0));
        }
        if let Some(idle) = self.idle_share.filter(|idle| *idle < 0.1) {
            reasons.push(format!("only {:.0} % of the machine was idle", idle * 100.0));
        }
        if self.refused_packets > 0 {
            reasons
                .push(format!("{} packets were refused by the device they were for", self.refused_packets));
        }
        if self.sender_dropped_packets > 0 {
            reasons.push(format!(
                "{} packets were dropped by their sender's device",
                self.sender_dropped_packets
            ));
        }
        if reasons.is_empty() { Ok(()) } else { Err(reasons.join("; ")) }
    }

    /// CPU time of the engine in shares of one core.
    pub fn engine_share(&self) -> f64 {
        self.engine_cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl std::fmt::Display for Stats {
    /// The gate in one line, then a line for each pipe that was used.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = match self.validity() {
            Ok(()) => "valid".to_owned(),
            Err(why) => format!("INVALID ({why})"),
        };
        write!(
            f,
            "{verdict}: engine {:.1} % of a core, 99.9 % of {} events within {:.2?}, {} of the machine idle, {} unrouted, {} refused, {} dropped by senders",
            self.engine_share() * 100.0,
            self.lateness.events(),
            self.lateness.quantile(0.999),
            self.idle_share.map_or("an unknown share".into(), |share| format!("{:.0} %", share * 100.0)),
            self.unrouted_packets,
            self.refused_packets,
            self.sender_dropped_packets,
        )?;
        for (number, pipe) in self.pipes.iter().enumerate().filter(|(_, pipe)| pipe.offered_packets > 0) {
            write!(
                f,
                "\n  pipe {number}: {} packets, {} bytes carried; {} lost, {} dropped (queue full), {} dropped (down); \
                 queue up to {} bytes, {} on average",
                pipe.carried_packets,
                pipe.carried_bytes,
                pipe.lost_packets,
                pipe.dropped_full,
                pipe.dropped_down,
                pipe.queue_bytes_peak,
                pipe.queue_bytes_mean(),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_rounded_up_by_less_than_a_quarter() {
        for micros in [1, 2, 3, 7, 100, 999, 1_000_000] {
            let mut lateness = Lateness::default();
            lateness.record(Duration::from_micros(micros));
            let seen = lateness.quantile(0.999).as_nanos() as f64 / 1000.0;
            assert!(seen >= micros as f64 && seen <= micros as f64 * 1.25 + 1.0, "{micros}: {seen}");
        }
        let mut lateness = Lateness::default();
        (0..999).for_each(|_| lateness.record(Duration::from_micros(10)));
        lateness.record(Duration::from_secs(3600));
        assert!(lateness.quantile(0.999) < Duration::from_micros(13));
        assert!(lateness.quantile(1.0) > Duration::from_secs(30));
        assert_eq!(Lateness::default().quantile(0.999), Duration::ZERO);
    }

    /// Issue "a validity gate on every run": each reason alone closes it.
    #[test]
    fn the_gate_closes_for_each_reason() {
        let good = || Stats {
            elapsed: Duration::from_secs(1),
            engine_cpu: Duration::from_millis(500),
            idle_share: Some(0.5),
            smallest_delay: Some(Duration::from_millis(100)),
            ..Stats::default()
        };
        assert_eq!(good().validity(), Ok(()));
        let mut late = good();
        late.lateness.record(Duration::from_micros(4000));
        let mut late_for_its_delay = good();
        late_for_its_delay.lateness.record(Duration::from_micros(600));
        assert_eq!(late_for_its_delay.validity(), Ok(()));
        late_for_its_delay.smallest_delay = Some(Duration::from_millis(10));
        // A twentieth of a millisecond, of a minute and of nothing would be too little and too much to ask.
        for (delay_ms, micros, is_valid) in [
            (1, 200, true),
            (1, 400, false),
            (60_000, 2700, true),
            (60_000, 4000, false),
            (0, 800, true),
            (0, 1300, false),
        ] {
            let smallest_delay = Some(Duration::from_millis(delay_ms)).filter(|delay| !delay.is_zero());
            let mut stats = Stats { smallest_delay, ..good() };
            stats.lateness.record(Duration::from_micros(micros));
            assert_eq!(stats.validity().is_ok(), is_valid, "{micros} µs late with {delay_ms} ms");
        }
        let busy = Stats { engine_cpu: Duration::from_millis(701), ..good() };
        let loaded = Stats { idle_share: Some(0.09), ..good() };
        let refused = Stats { refused_packets: 1, ..good() };
        let dropped = Stats { sender_dropped_packets: 1, ..good() };
        let reasons = [
            (late, "late"),
            (late_for_its_delay, "late"),
            (busy, "core"),
            (loaded, "idle"),
            (refused, "refused"),
            (dropped, "sender's device"),
        ];
        for (stats, word) in reasons {
            let why = stats.validity().unwrap_err();
            assert!(why.contains(word), "{why}");
            assert!(stats.to_string().starts_with("INVALID"), "{stats}");
        }
    }
}
