//! One direction of a connection: what is on its way, how much may be, and what has come (TCP, without its headers).
//!
//! The congestion window doubles each round trip until the path's queue shows or something is lost. After that it is a quarter more
//! than what the path holds at the best rate of the last round trips, as with BBR (draft-ietf-ccwg-bbr), without its pacing: the
//! quarter finds out whether there is more to be had.

use std::collections::VecDeque;

use dray_core::range::RangeSet;

use super::content::Content;

/// Bytes of the object in one packet of 1500 (IP, TCP and its timestamp take the rest).
pub(crate) const PACKET_BYTES: u64 = 1448;
/// Headers of one packet.
pub(crate) const HEADER_BYTES: u64 = 52;
/// Most bytes that travel as one segment, which is one record of TLS.
const SEGMENT_BYTES_MAX: u64 = 16 << 10;
/// What TLS adds to each record.
const RECORD_OVERHEAD_BYTES: u64 = 22;
/// First window (RFC 6928).
const FIRST_WINDOW_BYTES: u64 = 10 * PACKET_BYTES;
const LEAST_WINDOW_BYTES: u64 = 4 * PACKET_BYTES;
/// Bytes a socket holds for its sender, sent or not, and for its reader (`tcp_wmem`, `tcp_rmem`).
pub(crate) const SEND_BUFFER_BYTES: u64 = 4 << 20;
pub(crate) const RECEIVE_BUFFER_BYTES: u64 = 6 << 20;
/// How much larger than the path the window is, in quarters, and how many round trips a rate is remembered.
const WINDOW_QUARTERS: u64 = 5;
const ROUNDS: usize = 10;
const LEAST_ROUND_NS: u64 = 1_000_000;
/// Least wait for an acknowledgement (`TCP_RTO_MIN`), and how often it is doubled at most.
const LEAST_TIMEOUT_NS: u64 = 200_000_000;
const BACKOFF_MAX: u32 = 7;

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) content: Content,
    /// Links on the way, by number.
    pub(crate) links: Vec<usize>,
    /// Nanoseconds until the sender hears of an arrival.
    pub(crate) back_ns: u64,
    /// Bytes written, sent for the first time, acknowledged, arrived without a gap, and read.
    pub(crate) written: u64,
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    pub(crate) arrived: u64,
    pub(crate) read: u64,
    /// What arrived behind a gap.
    early: RangeSet,
    /// To be sent again.
    again: VecDeque<(u64, u64)>,
    /// Vanished, and not noticed yet.
    vanished: Vec<(u64, u64)>,
    pub(crate) waits_in_vain: bool,
    backoff: u32,
    in_flight: u64,
    window: u64,
    doubles: bool,
    least_round_trip_ns: Option<u64>,
    /// When this round began, what was acknowledged in it, and whether the window was used up.
    round_ns: u64,
    round_bytes: u64,
    is_round_full: bool,
    /// Bytes per second of the last rounds.
    rates: VecDeque<u64>,
    /// The sender has said that there is no more.
    pub(crate) is_ended: bool,
    /// The sender is gone: what is on its way arrives, and nothing follows it.
    is_cut: bool,
    /// When something was last acknowledged, or first sent after a rest.
    pub(crate) heard_ns: u64,
}

impl Stream {
    pub(crate) fn new(links: Vec<usize>, back_ns: u64, now_ns: u64) -> Stream {
        Stream {
            content: Content::default(),
            links,
            back_ns,
            written: 0,
            sent: 0,
            acknowledged: 0,
            arrived: 0,
            read: 0,
            early: RangeSet::new(),
            again: VecDeque::new(),
            vanished: Vec::new(),
            waits_in_vain: false,
            backoff: 0,
            in_flight: 0,
            window: FIRST_WINDOW_BYTES,
            doubles: true,
            least_round_trip_ns: None,
            round_ns: now_ns,
            round_bytes: 0,
            is_round_full: false,
            rates: VecDeque::new(),
            is_ended: false,
            is_cut: false,
            heard_ns: now_ns,
        }
    }

    /// Bytes on the wire for a segment of `len`.
    pub(crate) fn wire_bytes(len: u64) -> u64 {
        let records = len.div_ceil(SEGMENT_BYTES_MAX) * RECORD_OVERHEAD_BYTES;
        len + records + len.div_ceil(PACKET_BYTES) * HEADER_BYTES
    }

    /// Bytes that may be written before the writer has to wait.
    pub(crate) fn room(&self) -> u64 {
        SEND_BUFFER_BYTES.saturating_sub(self.written - self.acknowledged)
    }

    /// Bytes that may be read.
    pub(crate) fn readable(&self) -> u64 {
        self.arrived - self.read
    }

    /// True if something was written that the other end has not confirmed.
    pub(crate) fn is_owed(&self) -> bool {
        self.written > self.acknowledged
    }

    /// Nothing is sent any more, not even again. What has arrived can still be read.
    pub(crate) fn cut(&mut self) {
        self.written = self.sent;
        self.is_cut = true;
    }

    /// The next segment to send, if the windows have room for it.
    pub(crate) fn next_segment(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let window = self.window.min(RECEIVE_BUFFER_BYTES.saturating_sub(self.readable()));
        if self.in_flight >= window || self.waits_in_vain || self.is_cut {
            return None;
        }
        let segment = (self.window / 8).clamp(PACKET_BYTES, SEGMENT_BYTES_MAX);
        let (offset, len) = match self.again.pop_front() {
            Some(again) => again,
            None => {
                let len = segment.min(self.written - self.sent);
                if len == 0 {
                    return None;
                }
                if self.in_flight == 0 {
                    self.heard_ns = now_ns;
                }
                self.sent += len;
                (self.sent - len, len)
            }
        };
        self.in_flight += len;
        Some((offset, len))
    }

    /// A segment arrived; true if there is more to read now.
    pub(crate) fn arrive(&mut self, offset: u64, len: u64) -> bool {
        let before = self.arrived;
        if offset > self.arrived {
            self.early.insert(offset..offset + len);
            return false;
        }
        self.arrived = self.arrived.max(offset + len);
        while let Some(next) = self.early.next_from(0).filter(|next| next.start <= self.arrived) {
            self.arrived = self.arrived.max(next.end);
            self.early.remove(next);
        }
        self.arrived > before
    }

    /// The sender hears of an arrival.
    pub(crate) fn acknowledge(&mut self, now_ns: u64, len: u64, round_trip_ns: u64) {
        let was_full = self.in_flight + SEGMENT_BYTES_MAX >= self.window;
        self.in_flight = self.in_flight.saturating_sub(len);
        self.acknowledged = (self.acknowledged + len).min(self.written);
        self.heard_ns = now_ns;
        self.backoff = 0;
        let least_ns = self.least_round_trip_ns.map_or(round_trip_ns, |least| least.min(round_trip_ns));
        self.least_round_trip_ns = Some(least_ns);
        self.round_bytes += len;
        self.is_round_full |= was_full;
        if self.doubles && was_full {
            self.window += len;
        }
        let elapsed_ns = now_ns.saturating_sub(self.round_ns);
        if elapsed_ns >= round_trip_ns.max(LEAST_ROUND_NS) {
            self.end_round(now_ns, elapsed_ns);
        }
        if self.doubles && round_trip_ns - least_ns > least_ns / 2 + 2_000_000 {
            self.doubles = false;
            self.adapt();
        }
    }

    /// A round trip is over: what came in it says how fast the path is, if it had to carry all that it may.
    fn end_round(&mut self, now_ns: u64, elapsed_ns: u64) {
        let rate = u128::from(self.round_bytes) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if self.is_round_full || self.rates.iter().all(|known| *known < rate) {
            self.rates.push_back(rate);
            if self.rates.len() > ROUNDS {
                self.rates.pop_front();
            }
        }
        (self.round_ns, self.round_bytes, self.is_round_full) = (now_ns, 0, false);
        if !self.doubles {
            self.adapt();
        }
    }

    fn adapt(&mut self) {
        let (Some(rate), Some(least_ns)) = (self.rates.iter().max(), self.least_round_trip_ns) else {
            return;
        };
        let path = u128::from(*rate) * u128::from(least_ns) / 1_000_000_000;
        let window = u64::try_from(path).unwrap_or(u64::MAX).saturating_mul(WINDOW_QUARTERS) / 4;
        self.window = window.max(LEAST_WINDOW_BYTES);
    }

    /// A segment is known to be lost: it is sent again.
    pub(crate) fn miss(&mut self, offset: u64, len: u64) {
        self.in_flight = self.in_flight.saturating_sub(len);
        self.again.push_back((offset, len));
        if std::mem::replace(&mut self.doubles, false) {
            self.adapt();
        }
    }

    /// A segment vanished, and nobody will say so; returns how long the sender waits for word of it, unless it does already.
    pub(crate) fn vanish(&mut self, offset: u64, len: u64) -> Option<u64> {
        self.vanished.push((offset, len));
        if std::mem::replace(&mut self.waits_in_vain, true) {
            return None;
        }
        let round_trip_ns = self.least_round_trip_ns.unwrap_or(LEAST_TIMEOUT_NS);
        Some((2 * round_trip_ns).max(LEAST_TIMEOUT_NS) << self.backoff.min(BACKOFF_MAX))
    }

    /// The sender has waited long enough.
    pub(crate) fn retransmit(&mut self) {
        self.waits_in_vain = false;
        self.backoff += 1;
        for (offset, len) in std::mem::take(&mut self.vanished) {
            self.in_flight = self.in_flight.saturating_sub(len);
            self.again.push_back((offset, len));
        }
        self.again.make_contiguous().sort_unstable();
        self.window = FIRST_WINDOW_BYTES;
        self.doubles = true;
        self.rates.clear();
    }
}
