//! The holder's side: puts data into a connection's stream.

use std::io;
use std::time::Duration;

use dray_core::frame::PACKED_HEAD_BYTES;
use dray_core::limits::DATA_FRAME_BYTES_MAX;

use super::PLAIN_BYTES_MAX;
use super::stream::Stream;

/// Of a thousand bytes, what packing must leave at most to be worth it.
const PAYS_BELOW_PERMILLE: usize = 960;
/// Less says nothing about what comes next.
const JUDGED_BYTES_MIN: usize = 4096;
/// Pieces in a row that pass as they are, at most, before one is tried again, and their bytes: a receiver is not to take what lies between two looks for data that does
/// not compress.
const SKIPPED_MAX: u32 = 32;
const SKIPPED_BYTES_MAX: u64 = PLAIN_BYTES_MAX / 4;
/// So many in a row are no chance: what comes does not compress, and it is tried beside the stream.
const TRIED_FROM: u32 = 4;
/// The level of that: the cheapest.
const TRIED_AT: i32 = 1;
/// What zstd may add to data that it cannot compress, and says around it.
const SLACK_BYTES: usize = 4096;

/// The stream of one connection.
pub(crate) struct Packer {
    stream: Stream,
    /// A packed frame's body.
    body: Vec<u8>,
    /// Pieces that pass as they are, if they have no more bytes than these, and how many will next time.
    skips: u32,
    skip_bytes: u64,
    next_skips: u32,
}

impl Packer {
    /// An empty stream; `None` if there is no memory for it.
    pub(crate) fn new() -> io::Result<Option<Packer>> {
        let stream = Stream::new()?;
        Ok(stream.map(|stream| Packer { stream, body: Vec::new(), skips: 0, skip_bytes: 0, next_skips: 1 }))
    }

    /// The body of a packed frame that stands for `data`, at most [`DATA_FRAME_BYTES_MAX`] less a little; `None` if it is better
    /// sent as it is, which the stream then does not have. After an error the receiver's stream is another one: the connection cannot go on.
    pub(crate) fn pack(&mut self, data: &[u8]) -> io::Result<Option<&[u8]>> {
        if self.passes(data.len()) || !self.is_promising(data)? {
            self.stream.passed();
            return Ok(None);
        }
        self.body.clear();
        self.body.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.stream.append(data, &mut self.body)?;
        self.note_gain(data.len(), self.body.len() - PACKED_HEAD_BYTES);
        Ok(Some(&self.body))
    }

    /// The receiver was waited for: for room, or for its next word while nothing was left to send.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.stream.waited(time);
    }

    /// The number of its level.
    #[cfg(test)]
    pub(crate) fn level(&self) -> i32 {
        self.stream.level()
    }

    fn passes(&mut self, bytes: usize) -> bool {
        if bytes == 0 || bytes + bytes / 128 + SLACK_BYTES > DATA_FRAME_BYTES_MAX {
            return true;
        }
        if self.skips > 0 && self.skip_bytes > 0 {
            self.skips -= 1;
            self.skip_bytes = self.skip_bytes.saturating_sub(bytes as u64);
            return true;
        }
        self.stream.is_off(bytes as u64)
    }

    /// False if what is like `data` did not compress for a while, nor does this by itself. That is found out beside the stream, which keeps its level and what it
    /// knows: at a high level each look would hold the line up.
    fn is_promising(&mut self, data: &[u8]) -> io::Result<bool> {
        if self.next_skips <= TRIED_FROM || data.len() < JUDGED_BYTES_MIN {
            return Ok(true);
        }
        let packed = zstd::bulk::compress(data, TRIED_AT)?;
        Ok(self.note_gain(data.len(), packed.len()))
    }

    /// What was just packed says whether the next pieces are worth it; whether this one was.
    fn note_gain(&mut self, bytes: usize, packed_bytes: usize) -> bool {
        let pays = packed_bytes <= bytes / 1000 * PAYS_BELOW_PERMILLE;
        if bytes < JUDGED_BYTES_MIN {
            return pays;
        }
        if pays {
            self.next_skips = 1;
        } else {
            self.skips = self.next_skips;
            self.skip_bytes = SKIPPED_BYTES_MAX;
            self.next_skips = (self.next_skips * 2).min(SKIPPED_MAX);
        }
        pays
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use dray_core::limits::PACKING_BYTES_MAX;

    use super::super::Share;
    use super::super::stream::MEMORY;
    use super::super::tests::{new, noise};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A path that is slow enough for the highest levels.
    fn idle(packer: &mut Packer) {
        for _ in 0..20 {
            packer.stream.pace.note(8 << 20, MS, 1999 * MS, 2000 * MS);
        }
    }

    /// Tests that want much of the memory, or all of it, one after the other.
    static MUCH: Mutex<()> = Mutex::new(());

    /// A stream at one of the highest levels.
    fn high() -> Packer {
        let mut packer = new();
        while packer.stream.level.number < 12 {
            idle(&mut packer);
            packer.pack(&[7; 64 << 10]).unwrap().unwrap();
        }
        packer
    }

    /// A path for which the level is right, and stays so for 8 MiB.
    fn steady(packer: &mut Packer) {
        for _ in 0..20 {
            packer.stream.pace.note(8 << 20, 50 * MS, 50 * MS, 100 * MS);
        }
    }

    /// Six bits of each byte say something.
    fn text(bytes: usize) -> Vec<u8> {
        noise(bytes).into_iter().map(|byte| byte & 0x3f).collect()
    }

    /// The floor, 2 GiB over ssh at 100 Mbit/s x 132 ms: looks whether data compresses after all are made at the lowest level. At 19 each took 0.2 s, in which
    /// nothing was sent: one part in twenty of all the time.
    #[test]
    fn looking_again_costs_little() {
        let _much = MUCH.lock();
        let mut packer = high();
        let looks = (0..100).filter(|_| packer.pack(&noise(64 << 10)).unwrap().is_some()).count();
        assert!(looks <= 3, "{looks} looks at a level above the lowest");
        assert!(packer.stream.level.number >= 12, "what compresses again has its level");
        while packer.pack(&[7; 64 << 10]).unwrap().is_none() {}
        assert!(packer.stream.level.number >= 12);
    }

    /// P6, ADR 28: what does not compress takes nothing from the window, so that what was said before it costs next to nothing after it.
    #[test]
    fn noise_forgets_nothing() {
        let mut packer = new();
        steady(&mut packer);
        let text = text(2 << 20);
        let pieces = || text.chunks(64 << 10);
        let first: usize = pieces().map(|piece| packer.pack(piece).unwrap().unwrap().len()).sum();
        assert!(first > text.len() / 2);
        let packed = (0..48).filter(|_| packer.pack(&noise(64 << 10)).unwrap().is_some()).count();
        assert!(packed <= 3, "{packed} pieces of noise took room in the window");
        let (mut again, mut told) = (0, 0);
        for piece in pieces() {
            if let Some(body) = packer.pack(piece).unwrap() {
                again += body.len();
                told += piece.len();
            }
        }
        assert!(told >= text.len() / 4, "{told} bytes were tried again");
        assert!(again < told / 10, "{again} bytes for {told} that were said before");
    }

    /// P6, ADR 28: what compresses after much that does not is found before the receiver asks over other paths, too, where each would know only a part of what came; a bound in
    /// pieces alone was just as much.
    #[test]
    fn what_compresses_again_is_found_in_time() {
        for piece in [4 << 10, 64 << 10, 240 << 10] {
            let mut packer = new();
            steady(&mut packer);
            for _ in 0..(8 << 20) / piece {
                packer.pack(&noise(piece)).unwrap();
            }
            let text = text(piece);
            let passed = (0..100).take_while(|_| packer.pack(&text).unwrap().is_none()).count() * piece;
            assert!((passed as u64) < PLAIN_BYTES_MAX / 2, "{passed} bytes in pieces of {piece}");
        }
    }

    /// ADR 28: how long it took until something was packed again says nothing of the path: what passed meanwhile was not packed.
    #[test]
    fn a_level_is_not_guessed_from_what_passed() {
        let mut packer = new();
        let before = packer.stream.level.number;
        while packer.pack(&noise(4096)).unwrap().is_some() {}
        packer.stream.has_rested(300 * MS);
        packer.waited(300 * MS);
        while packer.pack(&text(256 << 10)).unwrap().is_none() {}
        assert_eq!(packer.stream.pace.level().number, before);
    }

    /// Where others have all the memory that there is: for less than it has nobody needs more.
    #[test]
    fn a_lower_level_needs_no_memory() {
        let _much = MUCH.lock();
        let mut packer = high();
        let mut others: Vec<Share> = Vec::new();
        others.extend(std::iter::from_fn(|| Share::take(&MEMORY, 1 << 20, PACKING_BYTES_MAX)));
        while packer.stream.pace.level().number > 1 {
            packer.stream.pace.note(8 << 20, 100 * MS, Duration::ZERO, 100 * MS);
        }
        packer.pack(&[7; 64 << 10]).unwrap().unwrap();
        let level = packer.stream.level.number;
        let is_given_back = Share::take(&MEMORY, 40 << 20, PACKING_BYTES_MAX).is_some();
        drop(others);
        assert_eq!((level, is_given_back), (1, true));
    }
}
