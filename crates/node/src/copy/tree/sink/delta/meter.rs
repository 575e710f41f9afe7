//! How fast contents come: where the network is faster than both ends cut and hash, differences cost more than they save.

use std::time::{Duration, Instant};

/// A network that brings so many bytes a second is faster than cutting and hashing at both ends.
const FAST_BYTES_PER_S: u64 = 256 << 20;
/// What that is measured by.
const METER_TIME: Duration = Duration::from_millis(250);

/// How fast contents come.
#[derive(Debug)]
pub(in crate::copy::tree::sink) struct Meter {
    since: Instant,
    came: u64,
    /// Bytes a second, of the last few times it was measured.
    last: [u64; 4],
}

impl Default for Meter {
    fn default() -> Meter {
        Meter { since: Instant::now(), came: 0, last: [0; 4] }
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
}
