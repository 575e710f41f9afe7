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
        let flushed = told.iter().rposition(|entry| matches!(entry, Entry::Flush)).unwrap_or(0);
        let mut lost = 0;
        // The last write to a sector wins, so that each sector is written once.
        let mut sectors: BTreeMap<u64, &[u8]> = BTreeMap::new();
        const ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];
        for (index, entry) in told.iter().enumerate() {
            let mut keeps = |loss_of: Loss| {
                let is_kept = index <= flushed
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
                        // Smaller than a sector (logs of XFS): in one piece, over what is there.
                        write_sectors(disk, &mut sectors);
                        disk.write_all_at(bytes, *offset).expect("replay");
                        continue;
                    }
                    for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if keeps(Loss::Sectors) {
                            sectors.insert(offset + (number * SECTOR_BYTES) as u64, sector);
                        }
                    }
                }
                Entry::Zero { offset, len } if keeps(Loss::Writes) => {
                    for at in (*offset..offset + len).step_by(SECTOR_BYTES) {
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

fn write_sectors(disk: &File, sectors: &mut BTreeMap<u64, &[u8]>) {
    for (offset, sector) in std::mem::take(sectors) {
        disk.write_all_at(sector, offset).expect("replay");
    }
}
