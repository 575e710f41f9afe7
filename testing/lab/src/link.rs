//! What a link is like: rate, delay, loss, queue. Plain data; [`crate::conditions`] has named ones.

use std::time::Duration;

/// Bits of IP packets a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(u64);

impl Rate {
    /// Of so many bits a second. With 0 nothing moves until the rate is changed.
    pub const fn bits(bits_per_second: u64) -> Rate {
        Rate(bits_per_second)
    }

    /// Of so many thousand bits a second.
    pub const fn kbit(kilobits_per_second: u64) -> Rate {
        Rate(kilobits_per_second * 1_000)
    }

    /// Of so many million bits a second.
    pub const fn mbit(megabits_per_second: u64) -> Rate {
        Rate(megabits_per_second * 1_000_000)
    }

    /// Bits a second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes that pass in `time`.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Which packets vanish before they reach the queue.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability, 0 to 1, independently.
    Random(f64),
    /// In bursts: the model of Gilbert and Elliott (E. N. Elliott, "Estimates of Error Rates for Codes on Burst-Noise
    /// Channels", 1963) with nothing lost in the good state.
    Burst {
        /// Probability that a packet finds the link turned from good to bad.
        to_bad: f64,
        /// Probability that a packet finds it turned back.
        to_good: f64,
        /// Probability that a packet is lost in the bad state.
        in_bad: f64,
    },
}

impl Loss {
    /// Bursts in which every packet is lost, `mean_packets` (at least 1) long on average, that make up `share` (below 1) of
    /// all packets.
    pub fn bursts(share: f64, mean_packets: f64) -> Loss {
        let to_good = 1.0 / mean_packets.max(1.0);
        let share = share.clamp(0.0, 0.99);
        Loss::Burst { to_bad: to_good * share / (1.0 - share), to_good, in_bad: 1.0 }
    }

    /// Share of packets lost in the long run, 0 to 1.
    pub fn share(self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Random(probability) => probability,
            Loss::Burst { to_bad, to_good, .. } if to_bad + to_good <= 0.0 => 0.0,
            Loss::Burst { to_bad, to_good, in_bad } => in_bad * to_bad / (to_bad + to_good),
        }
    }
}

/// How much may wait for its turn, the packet on its way included; what comes when it is full is dropped (drop-tail).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Queue {
    /// So many bytes.
    Bytes(u64),
    /// What passes in this time at the rate of the moment.
    Time(Duration),
    /// So many times rate x twice the delay of this pipe. In a point-to-point link with equal delays that is the
    /// bandwidth-delay product.
    Bdp(f64),
}

impl Queue {
    /// Packets that always find room, however slow or short the link is (but for [`Queue::Bytes`]).
    const PACKETS_MIN: u64 = 20;
    const PACKET_BYTES: u64 = 1500;

    /// Bytes it holds at this rate and delay.
    pub fn bytes(self, rate: Rate, delay: Duration) -> u64 {
        let floor = Queue::PACKETS_MIN * Queue::PACKET_BYTES;
        match self {
            Queue::Bytes(bytes) => bytes,
            Queue::Time(time) => rate.bytes_in(time).max(floor),
            Queue::Bdp(factor) => ((rate.bytes_in(2 * delay) as f64 * factor.max(0.0)) as u64).max(floor),
        }
    }
}

/// One direction of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// `None`: as fast as the machine can.
    pub rate: Option<Rate>,
    /// From one end to the other, without what the queue adds.
    pub delay: Duration,
    /// What vanishes.
    pub loss: Loss,
    /// What may wait. Without a rate nothing waits; what is on its way takes at most 128 MiB of memory, and more is dropped.
    pub queue: Queue,
    /// Longest IP packet, bytes; used by the devices at both ends.
    pub mtu: u16,
    /// Bytes each packet costs beyond those of IP: 0, or for example 38 for Ethernet with preamble and gap.
    pub framing_bytes: u16,
}

impl Link {
    /// No delay, no loss, as fast as the machine can.
    pub const UNSHAPED: Link = Link {
        rate: None,
        delay: Duration::ZERO,
        loss: Loss::None,
        queue: Queue::Bdp(1.0),
        mtu: 1500,
        framing_bytes: 0,
    };

    /// With this rate and one-way delay, no loss, and a queue of one bandwidth-delay product.
    pub const fn new(rate: Rate, delay: Duration) -> Link {
        Link { rate: Some(rate), delay, ..Link::UNSHAPED }
    }

    /// With a delay alone.
    pub const fn delay(delay: Duration) -> Link {
        Link { delay, ..Link::UNSHAPED }
    }

    /// The same with this loss.
    pub const fn with_loss(self, loss: Loss) -> Link {
        Link { loss, ..self }
    }

    /// The same with this queue.
    pub const fn with_queue(self, queue: Queue) -> Link {
        Link { queue, ..self }
    }
}

/// What changes on a running link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// The rate; what has been sent of the packet on its way stays sent. A trace that plays is ended.
    Rate(Option<Rate>),
    /// The delay of packets that come out of the queue from now on. Packets are never reordered.
    Delay(Duration),
    /// The loss.
    Loss(Loss),
    /// False: everything that arrives is dropped, as when a cable is pulled; what waits still leaves.
    Up(bool),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_sized_by_rate_and_delay() {
        let (rate, delay) = (Rate::mbit(100), Duration::from_millis(66));
        assert_eq!(Queue::Bytes(7).bytes(rate, delay), 7);
        assert_eq!(Queue::Bdp(1.0).bytes(rate, delay), 1_650_000);
        assert_eq!(Queue::Time(Duration::from_millis(500)).bytes(rate, delay), 6_250_000);
        assert_eq!(Queue::Bdp(1.0).bytes(Rate::kbit(64), Duration::ZERO), 30_000, "room for 20 packets");
    }

    #[test]
    fn bursts_lose_the_share_they_are_asked_for() {
        assert!((Loss::bursts(0.02, 8.0).share() - 0.02).abs() < 1e-12);
        assert!((Loss::Random(0.1).share() - 0.1).abs() < 1e-12);
        assert!(Loss::None.share().abs() < 1e-12);
    }
}
