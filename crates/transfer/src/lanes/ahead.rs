//! What a lane has read and not taken: large reads from the channel, and groups that are used where they lie.

use dray_core::limits::GROUP_BYTES;

/// Four groups and what is there of a fifth: few system calls, and small enough to stay in a core's cache until it is hashed and written.
const CAPACITY_BYTES: usize = 5 * GROUP_BYTES as usize;

/// Bytes of a stream in one piece, from the first that nobody took.
#[derive(Debug)]
pub(super) struct ReadAhead {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadAhead {
    pub(super) fn new() -> ReadAhead {
        ReadAhead { bytes: vec![0; CAPACITY_BYTES], start: 0, end: 0 }
    }

    /// What is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Where more can be read to, at least half of everything while no more than a group is there. Call [`ReadAhead::added`] then.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < CAPACITY_BYTES / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were read into the room.
    pub(super) fn added(&mut self, count: usize) {
        self.end = self.bytes.len().min(self.end + count);
    }

    /// Lets go of the first `count` bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Copies what is there and fits; how much that was.
    pub(super) fn take(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.end - self.start);
        out[..count].copy_from_slice(&self.bytes()[..count]);
        self.consume(count);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream comes out as it went in, whatever the sizes of reads and takes, and there is always room for a whole group.
    #[test]
    fn bytes_keep_their_order_and_room_never_ends() {
        let mut ahead = ReadAhead::new();
        let group = GROUP_BYTES as usize;
        let (mut written, mut taken, mut seed) = (0_u64, 0_u64, 1_u64);
        let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        while taken < 64 * GROUP_BYTES {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let step = (seed >> 40) as usize;
            if ahead.bytes().len() < group {
                let room = ahead.room();
                assert!(room.len() >= CAPACITY_BYTES / 2, "{}", room.len());
                let count = room.len().min(1 + step % (2 * group));
                for (out, at) in room[..count].iter_mut().zip(written..) {
                    *out = byte(at);
                }
                ahead.added(count);
                written += count as u64;
            } else if step.is_multiple_of(2) {
                assert!(ahead.bytes()[..group].iter().zip(taken..).all(|(got, at)| *got == byte(at)));
                ahead.consume(group);
                taken += GROUP_BYTES;
            } else {
                let mut out = vec![0; 1 + step % 1000];
                let count = ahead.take(&mut out);
                assert!(out[..count].iter().zip(taken..).all(|(got, at)| *got == byte(at)));
                taken += count as u64;
            }
        }
        assert_eq!(ahead.bytes().len() as u64, written - taken);
    }
}
