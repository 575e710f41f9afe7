//! How fast the disk is that a search reads, as far as it waits for one: a network that is faster is better used than spared (R12 to R14).

use std::time::Duration;

use super::share::waits_for_disk;

/// So much is read, or for so long at least a little, before it counts: a disk that spins up, or has others' writes to do first, is not slow for that.
const KNOWN_BYTES: u64 = 8 << 20;
const KNOWN_TIME: Duration = Duration::from_secs(1);
const KNOWN_BYTES_MIN: u64 = 1 << 20;

/// What was read from a disk since something was last read from memory.
#[derive(Debug, Default)]
pub(super) struct DiskRate {
    bytes: u64,
    took: Duration,
}

impl DiskRate {
    /// So many bytes were read, and looked at, in that time, for `busy` of which the thread ran or waited for a processor; `None` where the kernel does not tell.
    pub(super) fn note(&mut self, bytes: u64, took: Duration, busy: Option<Duration>) {
        let Some(busy) = busy else { return };
        if !waits_for_disk(took, busy) {
            *self = DiskRate::default();
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.took = self.took.saturating_add(took);
    }

    /// Bytes a second; `None` until that is known.
    pub(super) fn bytes_per_s(&self) -> Option<u64> {
        let is_known = self.bytes >= KNOWN_BYTES || self.bytes >= KNOWN_BYTES_MIN && self.took >= KNOWN_TIME;
        is_known.then(|| (self.bytes as f64 / self.took.as_secs_f64().max(1e-6)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    /// R12, R13: what comes from a disk tells its rate, once there is enough of it; what comes from memory, or waits for a processor, tells nothing, nor does
    /// what came before it.
    #[test]
    fn a_disk_is_told_from_memory() {
        let mut rate = DiskRate::default();
        for _ in 0..7 {
            rate.note(MIB, 15 * MS, Some(2 * MS));
        }
        assert_eq!(rate.bytes_per_s(), None, "too little");
        rate.note(MIB, 15 * MS, Some(2 * MS));
        assert_eq!(rate.bytes_per_s().map(|rate| rate / 1_000_000), Some(69));
        rate.note(MIB, 4 * MS, Some(3 * MS));
        assert_eq!(rate.bytes_per_s(), None, "from memory");
        rate.note(MIB / 2, 3000 * MS, Some(2 * MS));
        assert_eq!(rate.bytes_per_s(), None, "it spins up");
        rate.note(MIB / 2, 100 * MS, Some(2 * MS));
        assert!(rate.bytes_per_s().is_some_and(|rate| rate < 400_000), "others have it");
        rate.note(MIB, 15 * MS, None);
        assert!(rate.bytes_per_s().is_some_and(|rate| rate < 400_000), "nothing is known of that one");
    }
}
