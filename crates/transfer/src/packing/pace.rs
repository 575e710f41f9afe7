//! Which level of compression a connection can afford: as high as leaves the processor idle for most of the
//! time that the other end is waited for, none where packing is what holds the connection up. No clock
//! inside.

use std::time::Duration;

/// A level of zstd and what it takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Level {
    /// zstd's number.
    pub(super) number: i32,
    /// Time for the same data beside level 3; measured with machine code, and rounded up.
    cost: f64,
    /// Memory of the encoder, MiB: the window of 8 and its tables, from zstd's table of parameters.
    pub(super) memory_mib: usize,
}

const fn level(number: i32, cost: f64, memory_mib: usize) -> Level {
    Level { number, cost, memory_mib }
}

const LEVELS: [Level; 7] = [
    level(1, 0.7, 10),
    level(3, 1.0, 10),
    level(6, 2.5, 14),
    level(9, 4.0, 34),
    level(12, 10.0, 58),
    level(16, 40.0, 74),
    level(19, 120.0, 92),
];
/// The level at the beginning.
const FIRST: usize = 1;
/// Nothing is decided of less: a socket's buffer takes the first bytes at once however slow the path is.
const DECIDE_TIME: Duration = Duration::from_millis(50);
const FIRST_DECISION_BYTES: u64 = 256 << 10;
/// Later decisions are rarer, as each change of level forgets the window.
const LAST_DECISION_BYTES: u64 = 8 << 20;
/// An encoder's memory, MiB: so much in any case, and so much for each MiB that was packed. Tables beyond that would not be filled: the names of a tree are
/// a few MiB, and where creating its files is what takes the time the level would rise for nothing.
const MEMORY_MIB: u64 = 16;
const MEMORY_MIB_PER_MIB: u64 = 8;
/// From so many packed bytes a second on it stays with the former: it is the other end that takes its time, or a network that less would not make faster by much.
const FAST_BYTES_S: f64 = 15e6;
/// Share of the time that packing may take at a higher level, as far as it can be foretold: of the time in
/// which this end packs, or waits for the other one. Time in which it does something else (it reads a slow
/// disk) is no reason to pack more: the line is idle.
const AIM: f64 = 0.4;
/// From this share of all the time on the level is too high.
const TOO_BUSY: f64 = 0.75;
/// Packing that took so long without much of a pause is too slow, however little it was: at the highest level that is less than a MiB, where 8 MiB would take six seconds.
const TOO_LONG: Duration = Duration::from_millis(500);
/// Of a pause, no more counts: nobody wanted anything.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Nobody gives up on less: buffers on the way (of a socket, of ssh) take that much at once however slow the path is.
const GIVEN_UP_BYTES: u64 = 16 << 20;
/// What passes as it is before packing is tried again where even the lowest level held the connection up.
const OFF_BYTES: u64 = 64 << 20;

/// What one connection packs, and how long that took.
#[derive(Debug)]
pub(super) struct Pace {
    at: usize,
    packing: Duration,
    /// For so long the other end was waited for.
    waited: Duration,
    /// What passed in all.
    total: Duration,
    bytes: u64,
    /// What they were packed to.
    packed_bytes: u64,
    /// Of all decisions.
    decided_bytes: u64,
    decision_bytes: u64,
    off_bytes: u64,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace {
            at: FIRST,
            packing: Duration::ZERO,
            waited: Duration::ZERO,
            total: Duration::ZERO,
            bytes: 0,
            packed_bytes: 0,
            decided_bytes: 0,
            decision_bytes: FIRST_DECISION_BYTES,
            off_bytes: 0,
        }
    }

    /// The level to pack with.
    pub(super) fn level(&self) -> Level {
        LEVELS[self.at]
    }

    /// True if `bytes` should pass as they are.
    pub(super) fn passes(&mut self, bytes: u64) -> bool {
        let is_off = self.off_bytes > 0;
        self.off_bytes = self.off_bytes.saturating_sub(bytes);
        is_off
    }

    /// What is noted next was packed to so many bytes.
    pub(super) fn packed(&mut self, bytes: u64) {
        self.packed_bytes = self.packed_bytes.saturating_add(bytes);
    }

    /// Notes that `bytes` were packed in `packing`, `since` the last time so many were, and that the other
    /// end was waited for as long as `waited` of that; decides once that is enough to tell.
    pub(super) fn note(&mut self, bytes: u64, packing: Duration, waited: Duration, since: Duration) {
        self.bytes = self.bytes.saturating_add(bytes);
        let total = since.min(PAUSE_MAX).max(packing);
        self.packing += packing;
        self.waited += waited.min(total - packing);
        self.total += total;
        let counted = self.packing + self.waited;
        let is_much = self.bytes >= self.decision_bytes && counted >= DECIDE_TIME;
        if !is_much && self.packing < TOO_LONG {
            return;
        }
        let busy = self.packing.as_secs_f64() / self.total.as_secs_f64();
        if !is_much && busy <= TOO_BUSY {
            return;
        }
        if busy > TOO_BUSY && self.at == 0 {
            if self.bytes < GIVEN_UP_BYTES {
                return;
            }
            self.off_bytes = OFF_BYTES;
        } else {
            let is_fast = self.packed_bytes as f64 >= FAST_BYTES_S * self.total.as_secs_f64();
            let packed_mib = if is_fast { 0 } else { self.decided_bytes.saturating_add(self.bytes) >> 20 };
            let memory_mib = MEMORY_MIB + packed_mib * MEMORY_MIB_PER_MIB;
            let share = self.packing.as_secs_f64() / counted.as_secs_f64();
            let is_affordable = |at: &usize| {
                share * LEVELS[*at].cost / self.level().cost <= AIM
                    && LEVELS[*at].memory_mib as u64 <= memory_mib
            };
            let best = (0..LEVELS.len()).rev().find(is_affordable).unwrap_or(0);
            let is_large = is_fast && self.level().memory_mib as u64 > MEMORY_MIB;
            if best > self.at || busy > TOO_BUSY || is_large {
                self.at = best.min(if busy > TOO_BUSY { self.at.saturating_sub(1) } else { best });
            }
        }
        self.decision_bytes = (self.decision_bytes * 2).min(LAST_DECISION_BYTES);
        self.decided_bytes = self.decided_bytes.saturating_add(self.bytes);
        (self.bytes, self.packed_bytes, self.packing) = (0, 0, Duration::ZERO);
        (self.waited, self.total) = (Duration::ZERO, Duration::ZERO);
    }

    /// Stays at `level`.
    pub(super) fn keep(&mut self, level: Level) {
        self.at = LEVELS.iter().position(|known| *known == level).unwrap_or(self.at);
    }

    /// There was no memory for the level: the one below, if there is one.
    pub(super) fn lower(&mut self) -> bool {
        self.at = match self.at.checked_sub(1) {
            Some(at) => at,
            None => return false,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// `bytes` are packed in `packing`, and the other end takes the rest of `all` the time.
    fn note(pace: &mut Pace, bytes: u64, packing: Duration, all: Duration) {
        pace.note(bytes, packing, all - packing, all);
    }

    /// Design 15: the level follows back-pressure. A path that leaves the processor idle gets a higher one, at once.
    #[test]
    fn a_slow_path_raises_the_level() {
        let mut pace = Pace::new();
        assert_eq!(pace.level().number, 3);
        note(&mut pace, 256 << 10, 2 * MS, 2 * MS);
        assert_eq!(pace.level().number, 3, "the socket's buffer took it");
        note(&mut pace, 256 << 10, 2 * MS, 200 * MS);
        assert_eq!(pace.level().number, 6);
    }

    /// ADR 16: who reads a slow disk between two pieces packs no more for that, as the line would only be
    /// idle for longer, and no less. What the other end takes beside that counts as if the disk were fast.
    #[test]
    fn a_slow_source_leaves_the_level_alone() {
        let mut pace = Pace::new();
        for _ in 0..200 {
            pace.note(1 << 20, 10 * MS, Duration::ZERO, 200 * MS);
            assert!(pace.level().number == 3 && !pace.passes(1 << 20));
        }
        for _ in 0..20 {
            pace.note(1 << 20, 10 * MS, 40 * MS, 200 * MS);
        }
        assert_eq!(pace.level().number, 3, "2.5 times as much packing would be half of the time that counts");
        for _ in 0..20 {
            pace.note(1 << 20, 10 * MS, 90 * MS, 200 * MS);
        }
        assert!(pace.level().number >= 6);
    }

    /// P2, P14: what an encoder takes grows with what there is to pack. The names of a tree whose files take long to create are not worth 92 MiB.
    #[test]
    fn little_data_takes_little_memory() {
        let mut pace = Pace::new();
        let mut most_mib = Vec::new();
        for _ in 0..256 {
            note(&mut pace, 128 << 10, MS / 4, 100 * MS);
            most_mib.push(pace.level().memory_mib);
        }
        assert!(most_mib[..24].iter().all(|mib| *mib <= 16), "{most_mib:?}");
        assert!(most_mib[..48].iter().all(|mib| *mib <= 64), "{most_mib:?}");
        assert_eq!(pace.level().number, 19);
    }

    /// P2 "<= 64 MiB resident": where the other end makes 15,000 files a second of what comes, the level takes no more memory for what it waits, nor keeps what it took while it was slower;
    /// it does over a network that is slow, however well the data packs.
    #[test]
    fn a_fast_path_takes_little_memory() {
        let most_of = |pace: &mut Pace, (wait, packed_bytes): (Duration, u64)| {
            for _ in 0..400 {
                pace.packed(packed_bytes);
                note(pace, 1 << 20, MS / 4, wait);
            }
            pace.level().memory_mib
        };
        let (fast, slow, packs_well) = ((17 * MS, 400 << 10), (200 * MS, 400 << 10), (17 * MS, 40 << 10));
        let mut pace = Pace::new();
        assert!(most_of(&mut pace, fast) <= 16);
        assert!(most_of(&mut pace, slow) > 64);
        assert!(most_of(&mut pace, fast) <= 16, "it keeps what it took");
        assert!(most_of(&mut Pace::new(), packs_well) > 16);
    }

    /// P1: where packing is what takes the time, data passes as it is, and is tried again much later.
    #[test]
    fn a_fast_path_is_left_alone() {
        let mut pace = Pace::new();
        let mut packed_bytes = 0;
        while !pace.passes(1 << 20) {
            packed_bytes += 1 << 20;
            note(&mut pace, 1 << 20, 10 * MS, 11 * MS);
            assert!(packed_bytes < 32 << 20, "never given up");
        }
        assert_eq!(pace.level().number, 1);
        let passed = std::iter::repeat_with(|| pace.passes(1 << 20)).take_while(|is_off| *is_off).count();
        assert_eq!(passed, 63);
    }

    /// P6: buffers of ssh and of sockets take what a few MiB were packed to before anything is held back. That is no fast path.
    #[test]
    fn what_buffers_take_is_no_fast_path() {
        let mut pace = Pace::new();
        for _ in 0..10 {
            assert!(!pace.passes(1 << 20));
            note(&mut pace, 1 << 20, 30 * MS, 31 * MS);
        }
        for _ in 0..10 {
            assert!(!pace.passes(1 << 20));
            note(&mut pace, 1 << 20, 30 * MS, 200 * MS);
        }
        assert!(!pace.passes(1 << 20) && pace.level().number > 1);
    }

    /// P7 "never slower": after a pause in which nothing was wanted a level may be far too high for the path. That shows in half a second for each step, not
    /// in the time that so much takes as is looked at later.
    #[test]
    fn a_level_that_is_too_high_is_left_soon() {
        let mut pace = Pace::new();
        // A slow path, and then one that takes everything at once.
        while pace.level().number < 19 {
            note(&mut pace, 1 << 20, 10 * MS, 3000 * MS);
        }
        let mut took = Duration::ZERO;
        while pace.level().number > 9 {
            let packing = Duration::from_secs_f64(0.000_9 * pace.level().cost);
            note(&mut pace, 128 << 10, packing, packing);
            took += packing;
        }
        assert!(took < 4 * TOO_LONG, "{took:?}");
    }

    #[test]
    fn a_level_that_fits_stays() {
        let mut pace = Pace::new();
        note(&mut pace, 1 << 20, 50 * MS, 100 * MS);
        assert_eq!(pace.level().number, 3);
    }
}
