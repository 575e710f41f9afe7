//! How fast contents come: where the network is faster than both ends cut and hash, differences cost more than they save.

use std::time::{Duration, Instant};

/// A network that brings so many bytes a second is faster than cutting and hashing at both ends.
const FAST_BYTES_PER_S: u64 = 256 << 20;
/// What that is measured by.
const METER_TIME: Duration = Duration::from_millis(250);

/// Bytes by which it is known what the network brings, and of how long that is remembered.
const BUSY_BYTES_MIN: u64 = 64 << 10;
const BUSY_TIME_MAX: Duration = Duration::from_secs(2);

/// How fast contents come.
#[derive(Debug)]
pub(in crate::copy::tree::sink) struct Meter {
    since: Instant,
    came: u64,
    /// Bytes a second, of the last few times it was measured.
    last: [u64; 4],
    /// What came while more was owed, in what time; and since when something is.
    busy_bytes: u64,
    busy_time: Duration,
    owed_since: Option<Instant>,
    /// All that came.
    all_bytes: u64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            since: Instant::now(),
            came: 0,
            last: [0; 4],
            busy_bytes: 0,
            busy_time: Duration::ZERO,
            owed_since: None,
            all_bytes: 0,
        }
    }
}

impl Meter {
    /// So many bytes of contents came.
    pub(in crate::copy::tree::sink) fn came(&mut self, bytes: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed > METER_TIME {
            // The last of them count for the next time.
            self.last.rotate_left(1);
            self.last[3] = (self.came as f64 / elapsed.as_secs_f64()) as u64;
            (self.since, self.came) = (now, 0);
        }
        self.came += bytes;
    }

    /// So many bytes of anything came, and more is owed or not.
    pub(in crate::copy::tree::sink) fn note(&mut self, bytes: usize, is_owed: bool, now: Instant) {
        self.all_bytes += bytes as u64;
        if let Some(since) = std::mem::replace(&mut self.owed_since, is_owed.then_some(now)) {
            self.busy_bytes += bytes as u64;
            self.busy_time += now.saturating_duration_since(since);
        }
        if self.busy_time > BUSY_TIME_MAX {
            (self.busy_bytes, self.busy_time) = (self.busy_bytes / 2, self.busy_time / 2);
        }
    }

    /// All that was noted.
    pub(super) fn all_bytes(&self) -> u64 {
        self.all_bytes
    }

    /// Bytes a second that the network brings while something is owed; 0 if that is not known.
    pub(super) fn rate(&self) -> u64 {
        if self.busy_bytes < BUSY_BYTES_MIN {
            return 0;
        }
        (self.busy_bytes as f64 / self.busy_time.as_secs_f64().max(f64::MIN_POSITIVE)) as u64
    }

    /// One burst, out of some buffer on the way, is no fast network.
    pub(super) fn is_fast(&self) -> bool {
        self.last.iter().all(|rate| *rate >= FAST_BYTES_PER_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network is fast if it is so for a while: a burst does not turn differences off, and what was once fast may be slow.
    #[test]
    fn a_burst_is_no_fast_network() {
        let mut meter = Meter::default();
        let mut now = Instant::now();
        let mut comes = |bytes, times| {
            for _ in 0..times {
                now += METER_TIME + Duration::from_millis(1);
                meter.came(bytes, now);
            }
            meter.is_fast()
        };
        assert!(!comes(FAST_BYTES_PER_S, 3));
        assert!(comes(FAST_BYTES_PER_S, 2));
        assert!(!comes(1 << 20, 2));
        assert!(comes(FAST_BYTES_PER_S, 5));
    }

    /// P7 "never slower": what the network brings is told by the time in which it had something to bring, and not by the rests between.
    #[test]
    fn rests_do_not_make_a_network_slow() {
        let (mut meter, mut now) = (Meter::default(), Instant::now());
        assert_eq!(meter.rate(), 0);
        for _ in 0..100 {
            now += Duration::from_secs(60);
            meter.note(1 << 20, true, now);
            now += Duration::from_millis(10);
            meter.note(1 << 20, false, now);
        }
        assert_eq!(meter.rate(), 100 << 20);
        for _ in 0..20 {
            now += Duration::from_secs(1);
            meter.note(1 << 20, true, now);
        }
        assert!((1 << 20..3 << 20).contains(&meter.rate()), "{}", meter.rate());
    }
}
