//! Dialling a holder and keeping its lanes up, as `crates/transfer/src/direct/dial.rs` does: who does not answer at first is given
//! up, who answered once is dialled again and again, with pauses that grow.

use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::{Error, ErrorKind};

use super::lane::Lane;
use super::{Hands, Transfer};
use crate::sim::clock::Wakeup;
use crate::sim::holder::{CLIENT_HELLO_BYTES, SERVER_HELLO_BYTES};
use crate::sim::network::{ConnectionId, Piece, Side, Standing};

/// Connections in a row that one lane may lose before its target is left.
const LOST_MAX: u32 = 3;
/// A path with a round trip from here on is filled by one connection: here only the network holds it back.
const LONG_FROM_NS: u64 = 2_000_000;
/// A connection that held this long was a good one.
const STEADY_NS: u64 = 2_000_000_000;
pub(super) const FIRST_BACKOFF_NS: u64 = 100_000_000;
const LAST_BACKOFF_NS: u64 = 1_000_000_000;

/// How far dialling has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dial {
    /// For the first connection of a round.
    Connecting,
    /// Lanes run, or try to.
    Holding,
    /// Until the next round.
    Pausing,
    Over,
}

/// How far one lane has come.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Connecting,
    Running,
    Pausing,
    /// With what another connection would only meet again, if that is why.
    Over(Option<Error>),
}

/// A connection before its lane begins.
#[derive(Debug)]
pub(super) struct Attempt {
    source: usize,
    /// `None` for the first of a round.
    lane: Option<usize>,
    round_trip_ns: u64,
    greeted_ns: Option<u64>,
    greeting_bytes: u64,
}

impl Transfer {
    /// Dials the holder of `source` once more.
    pub(super) fn dial(&mut self, hands: &mut Hands<'_>, source: usize, lane: Option<usize>) {
        let set = &mut self.sources[source];
        if set.is_closed() {
            return self.dial_over(hands, source);
        }
        match lane {
            None => set.dial = Dial::Connecting,
            Some(number) => set.slots[number].phase = Phase::Connecting,
        }
        let id = hands.network.connect(hands.node, set.holder);
        let attempt = Attempt { source, lane, round_trip_ns: 0, greeted_ns: None, greeting_bytes: 0 };
        self.attempts.insert(id, attempt);
    }

    /// Something is new about a connection on which no lane runs yet.
    pub(super) fn attempt_step(&mut self, hands: &mut Hands<'_>, id: ConnectionId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if self.sources[attempt.source].is_closed() {
            return self.attempt_failed(hands, id, Error::new(ErrorKind::Interrupted, "cancelled"));
        }
        let failure = match hands.network.standing(id, Side::Dialler) {
            Standing::Pending => return,
            Standing::Up(round_trip_ns) => {
                if attempt.greeted_ns.is_none() {
                    attempt.round_trip_ns = round_trip_ns;
                    attempt.greeted_ns = Some(hands.network.now_ns());
                    let greeting = vec![0; CLIENT_HELLO_BYTES as usize];
                    hands.network.write(id, Side::Dialler, Piece::Bytes(greeting));
                }
                let missing = SERVER_HELLO_BYTES - attempt.greeting_bytes;
                match hands.network.read(id, Side::Dialler, missing) {
                    None => return,
                    Some((Piece::End, _)) => Error::new(ErrorKind::Unreachable, "closed at once"),
                    Some((_, len)) => {
                        attempt.greeting_bytes += len;
                        if attempt.greeting_bytes == SERVER_HELLO_BYTES {
                            self.attempt_succeeded(hands, id);
                        } else {
                            self.attempt_step(hands, id);
                        }
                        return;
                    }
                }
            }
            Standing::Rejected => Error::new(ErrorKind::Unreachable, "connection refused"),
            Standing::Unanswered => Error::new(ErrorKind::TimedOut, "nobody answers"),
            Standing::Lost | Standing::Closed => Error::new(ErrorKind::Unreachable, "connection reset"),
        };
        self.attempt_failed(hands, id, failure);
    }

    /// Connections whose handshake takes too long are given up, and those that nobody wants any more.
    pub(super) fn check_attempts(&mut self, hands: &mut Hands<'_>) {
        let now_ns = hands.network.now_ns();
        for id in self.attempts.keys().copied().collect::<Vec<_>>() {
            let Some(attempt) = self.attempts.get(&id) else { continue };
            let is_late = |greeted_ns: u64| now_ns >= greeted_ns.saturating_add(HELLO_TIMEOUT_MS * 1_000_000);
            if self.sources[attempt.source].is_closed() {
                self.attempt_failed(hands, id, Error::new(ErrorKind::Interrupted, "cancelled"));
            } else if attempt.greeted_ns.is_some_and(is_late) {
                self.attempt_failed(hands, id, Error::new(ErrorKind::TimedOut, "no handshake in time"));
            }
        }
    }

    fn attempt_succeeded(&mut self, hands: &mut Hands<'_>, id: ConnectionId) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        let (source, now_ns) = (attempt.source, hands.network.now_ns());
        let set = &mut self.sources[source];
        match attempt.lane {
            Some(number) => self.begin_lane(hands, source, number, id, attempt.round_trip_ns),
            None => {
                set.was_connected = true;
                set.dial = Dial::Holding;
                set.held_ns = now_ns;
                let lanes = if attempt.round_trip_ns < LONG_FROM_NS { set.slots.len() } else { 1 };
                for (number, slot) in set.slots.iter_mut().enumerate() {
                    let phase = if number < lanes { Phase::Idle } else { Phase::Over(None) };
                    (slot.phase, slot.lost, slot.backoff_ns) = (phase, 0, FIRST_BACKOFF_NS);
                }
                self.begin_lane(hands, source, 0, id, attempt.round_trip_ns);
                for number in 1..lanes {
                    self.dial(hands, source, Some(number));
                }
            }
        }
    }

    fn begin_lane(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        id: ConnectionId,
        round_trip_ns: u64,
    ) {
        let now_ns = hands.network.now_ns();
        if self.sources[source].is_closed() {
            hands.network.close(id, Side::Dialler);
            self.sources[source].slots[number].phase = Phase::Over(None);
            return self.round_over(hands, source);
        }
        let lane = Lane::new(hands, id);
        self.lanes.insert(id, (source, number));
        let slot = &mut self.sources[source].slots[number];
        (slot.phase, slot.begun_ns, slot.is_running) = (Phase::Running, now_ns, true);
        slot.lane = Some(lane);
        self.rise(hands, source, round_trip_ns / 1000);
        self.lane_step(hands, source, number);
    }

    fn attempt_failed(&mut self, hands: &mut Hands<'_>, id: ConnectionId, error: Error) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        hands.network.close(id, Side::Dialler);
        let source = attempt.source;
        if let Some(number) = attempt.lane {
            return self.lane_lost(hands, source, number, Some(error), 0);
        }
        let set = &mut self.sources[source];
        if set.is_closed() {
            self.dial_over(hands, source);
        } else if set.was_connected || std::mem::take(&mut set.was_stopped) {
            set.dial = Dial::Pausing;
            let pause_ns = set.backoff_ns;
            set.backoff_ns = (set.backoff_ns * 2).min(LAST_BACKOFF_NS);
            hands.plan_after(pause_ns, Wakeup::Redial { source, lane: None });
        } else {
            set.errors.push(error);
            self.dial_over(hands, source);
        }
    }

    /// A lane has ended after `held_ns`, or its connection did not come up: what its thread does next.
    pub(super) fn lane_lost(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        error: Option<Error>,
        held_ns: u64,
    ) {
        let set = &mut self.sources[source];
        let is_closed = set.is_closed();
        let slot = &mut set.slots[number];
        if held_ns >= STEADY_NS {
            (slot.lost, slot.backoff_ns) = (0, FIRST_BACKOFF_NS);
        }
        match error {
            _ if is_closed => slot.phase = Phase::Over(None),
            None => return self.dial(hands, source, Some(number)),
            Some(error) if is_final(&error) => slot.phase = Phase::Over(Some(error)),
            Some(_) => {
                slot.lost += 1;
                slot.phase = Phase::Pausing;
                let pause_ns = slot.backoff_ns;
                slot.backoff_ns = (slot.backoff_ns * 2).min(LAST_BACKOFF_NS);
                return hands.plan_after(pause_ns, Wakeup::Redial { source, lane: Some(number) });
            }
        }
        self.round_over(hands, source);
    }

    /// A pause is over.
    pub(super) fn redial(&mut self, hands: &mut Hands<'_>, source: usize, lane: Option<usize>) {
        let set = &mut self.sources[source];
        match lane {
            None if set.dial == Dial::Pausing => self.dial(hands, source, None),
            Some(number) if matches!(set.slots[number].phase, Phase::Pausing) => {
                if set.is_closed() || set.slots[number].lost >= LOST_MAX {
                    set.slots[number].phase = Phase::Over(None);
                    self.round_over(hands, source);
                } else {
                    self.dial(hands, source, lane);
                }
            }
            _ => {}
        }
    }

    /// Looks whether every lane of the round is through.
    pub(super) fn round_over(&mut self, hands: &mut Hands<'_>, source: usize) {
        let now_ns = hands.network.now_ns();
        let set = &mut self.sources[source];
        let are_over = set.slots.iter().all(|slot| matches!(slot.phase, Phase::Over(_)));
        if set.dial != Dial::Holding || !are_over {
            return;
        }
        let finals: Vec<Error> = set
            .slots
            .iter_mut()
            .filter_map(|slot| match std::mem::replace(&mut slot.phase, Phase::Idle) {
                Phase::Over(error) => error,
                _ => None,
            })
            .collect();
        let nothing_to_offer = !finals.is_empty();
        set.errors.extend(finals);
        if nothing_to_offer || set.is_closed() {
            return self.dial_over(hands, source);
        }
        if now_ns >= set.held_ns + STEADY_NS {
            set.backoff_ns = FIRST_BACKOFF_NS;
        }
        set.dial = Dial::Pausing;
        let pause_ns = set.backoff_ns;
        hands.plan_after(pause_ns, Wakeup::Redial { source, lane: None });
    }

    /// No target is left, or nobody wants one.
    pub(super) fn dial_over(&mut self, hands: &mut Hands<'_>, source: usize) {
        let set = &mut self.sources[source];
        set.dial = Dial::Over;
        if set.is_gone {
            return;
        }
        set.is_gone = true;
        let first = set.errors.drain(..).next();
        set.last_words = if set.is_told_to_close { None } else { first };
        if !set.slots.iter().any(|slot| slot.is_running) {
            self.fall(hands, source, None);
        }
    }
}

/// What another connection to the same node would only meet again.
fn is_final(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::Internal
    )
}
