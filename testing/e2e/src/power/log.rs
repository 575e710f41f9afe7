//! What a disk was told, in order: writes and flushes, and the disks that a loss of power may have left.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::data::Random;

/// What a disk writes in one piece, bytes: the sector of today's disks.
const SECTOR_BYTES: usize = 4096;

/// One thing that a disk was told.
#[derive(Debug)]
enum Entry {
    Write { offset: u64, bytes: Vec<u8> },
    Zero { offset: u64, len: u64 },
    Flush,
}

/// Everything a disk was told since it was made.
#[derive(Debug, Default)]
pub struct WriteLog {
    entries: Vec<Entry>,
}

/// What a disk does with writes that no flush covers when the power goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// All are there: the disk has no volatile cache.
    Nothing,
    /// None is there.
    Everything,
    /// Each is there or not.
    Writes,
    /// Each sector of each is there or not.
    Sectors,
}

impl Loss {
    /// All kinds.
    pub const ALL: [Loss; 4] = [Loss::Nothing, Loss::Everything, Loss::Writes, Loss::Sectors];
}

impl WriteLog {
    /// Number of entries so far: a moment.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the disk was told nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Flushes so far.
    pub fn flushes(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Flush)).count()
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.entries.push(Entry::Write { offset, bytes: bytes.to_owned() });
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        self.entries.push(Entry::Zero { offset, len });
    }

    pub(super) fn flush(&mut self) {
        self.entries.push(Entry::Flush);
    }

    /// Brings `disk`, which has what it had before the first entry, to what is left if the power goes after `entries` entries.
    /// Returns how many writes, or sectors of writes, were lost.
    pub fn replay(&self, disk: &File, entries: usize, loss: Loss, random: &mut Random) -> u64 {
        let told = &self.entries[..entries];
        let flushed = told.iter().rposition(|entry| matches!(entry, Entry::Flush));
        let mut lost = 0;
        // The last write to a sector wins, so that each sector is written once.
        let mut sectors: BTreeMap<u64, &[u8]> = BTreeMap::new();
        const ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];
        for (index, entry) in told.iter().enumerate() {
            let mut keeps = |loss_of: Loss| {
                let is_kept = flushed.is_some_and(|flushed| index <= flushed)
                    || match loss {
                        Loss::Nothing => true,
                        Loss::Everything => false,
                        _ if loss == loss_of => random.next_word() & 1 == 0,
                        _ => true,
                    };
                lost += u64::from(!is_kept);
                is_kept
            };
            match entry {
                Entry::Flush => {}
                Entry::Write { offset, bytes } if keeps(Loss::Writes) => {
                    assert_eq!(offset % 512, 0, "a write that is no sectors");
                    if offset % SECTOR_BYTES as u64 != 0 || bytes.len() % SECTOR_BYTES != 0 {
                        // Parts of sectors (logs of XFS), over what is there: of each sector in one piece.
                        write_sectors(disk, &mut sectors);
                        for (at, piece) in pieces(*offset, bytes) {
                            if keeps(Loss::Sectors) {
                                disk.write_all_at(piece, at).expect("replay");
                            }
                        }
                        continue;
                    }
                    for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if keeps(Loss::Sectors) {
                            sectors.insert(offset + (number * SECTOR_BYTES) as u64, sector);
                        }
                    }
                }
                Entry::Zero { offset, len } if keeps(Loss::Writes) => {
                    for at in (*offset..offset + len).step_by(SECTOR_BYTES).filter(|_| keeps(Loss::Sectors)) {
                        sectors.insert(at, &ZEROS[..(offset + len - at).min(SECTOR_BYTES as u64) as usize]);
                    }
                }
                Entry::Write { .. } | Entry::Zero { .. } => {}
            }
        }
        write_sectors(disk, &mut sectors);
        lost
    }
}

/// The parts of a write, each of which lies in one sector.
fn pieces(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let first = SECTOR_BYTES - (offset % SECTOR_BYTES as u64) as usize;
    let (head, rest) = bytes.split_at(first.min(bytes.len()));
    let others = rest.chunks(SECTOR_BYTES).enumerate();
    let others = others.map(move |(number, piece)| (offset + (first + number * SECTOR_BYTES) as u64, piece));
    std::iter::once((offset, head)).chain(others)
}

fn write_sectors(disk: &File, sectors: &mut BTreeMap<u64, &[u8]>) {
    for (offset, sector) in std::mem::take(sectors) {
        disk.write_all_at(sector, offset).expect("replay");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a disk of ones, of which `told` was told; and how much was lost.
    fn left(told: impl FnOnce(&mut WriteLog), loss: Loss, seed: u64) -> (Vec<u8>, u64) {
        let memory = rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        let disk = File::from(memory);
        disk.write_all_at(&[1; 4 * SECTOR_BYTES], 0).expect("disk");
        let mut log = WriteLog::default();
        told(&mut log);
        let lost = log.replay(&disk, log.len(), loss, &mut Random::new(seed));
        let mut bytes = vec![0; 4 * SECTOR_BYTES];
        disk.read_exact_at(&mut bytes, 0).expect("disk");
        (bytes, lost)
    }

    #[test]
    fn what_no_flush_covers_may_be_lost_from_the_first_write_on() {
        let write = |log: &mut WriteLog| log.write(0, &[2; SECTOR_BYTES]);
        assert_eq!(
            left(write, Loss::Nothing, 1),
            ([[2; SECTOR_BYTES], [1; SECTOR_BYTES], [1; SECTOR_BYTES], [1; SECTOR_BYTES]].concat(), 0)
        );
        assert_eq!(left(write, Loss::Everything, 1), (vec![1; 4 * SECTOR_BYTES], 1));
        let flushed = |log: &mut WriteLog| {
            write(log);
            log.flush();
        };
        assert_eq!(left(flushed, Loss::Everything, 1).1, 0);
    }

    /// Each of them can be lost alone: a part of a sector, the sectors of a write that begins in the middle of one, zeros.
    #[test]
    fn parts_of_sectors_and_zeros_are_lost_too() {
        let small: fn(&mut WriteLog) = |log| log.write(512, &[2; 512]);
        let across: fn(&mut WriteLog) = |log| log.write(SECTOR_BYTES as u64 / 2, &[2; SECTOR_BYTES]);
        let zero: fn(&mut WriteLog) = |log| log.zero(0, 2 * SECTOR_BYTES as u64);
        let lost = |told: fn(&mut WriteLog)| -> Vec<u64> {
            (0..40).map(|seed| left(told, Loss::Sectors, seed).1).collect()
        };
        assert!([0, 1].iter().all(|count| lost(small).contains(count)));
        assert!([0, 1, 2].iter().all(|count| lost(across).contains(count)));
        assert!([0, 1, 2].iter().all(|count| lost(zero).contains(count)));
        assert_eq!(
            pieces(SECTOR_BYTES as u64 / 2, &[0; 6000])
                .map(|(at, piece)| (at, piece.len()))
                .collect::<Vec<_>>(),
            [(2048, 2048), (4096, 3952)]
        );
    }
}
