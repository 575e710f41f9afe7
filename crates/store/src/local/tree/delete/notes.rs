//! What is to be deleted, written down in the order in which it was found: in memory, and beyond a few megabytes in a file without a
//! name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use dray_core::limits::{SYNC_CANDIDATES_BYTES_MAX, SYNC_CANDIDATES_FILE_BYTES_MAX};
use dray_core::{Error, Result};
use rustix::fs::{Statx, StatxFlags};

use super::super::directory::{Directory, STAT};
use super::super::temporary::{TEMPORARY_BYTES, Temporary};
use super::standing::Standing;

/// Bytes of one read of what was spilled.
const READ_BYTES: usize = 256 * 1024;
/// Kind and length.
const HEAD_BYTES: usize = 5;

/// One line.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// What follows is in this directory: device and inode, and the path below the destination.
    Directory((u64, u64), Vec<u8>),
    /// This name is a candidate, as long as it is this.
    Name(Vec<u8>, Stamp),
    /// The directory of this name makes way, as long as it is this, for what was made under the temporary one; in a dry run nothing was.
    Way(Vec<u8>, Stamp, Option<Temporary>),
    /// Of the files of rules that stood on the way before, only so many count from here on.
    KeepRules(usize),
    /// And this one: which of them, bytes of the path of its directory, and its text.
    Rules(usize, usize, Vec<u8>),
}

/// What tells an entry from another one of its name: the inode, and when that was made, if the file system knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in super::super) struct Stamp {
    inode: u64,
    made: (i64, u32),
}

/// Bytes of one.
const STAMP_BYTES: usize = 20;

impl Stamp {
    /// Of facts that were asked for with [`Stamp::FACTS`].
    pub(in super::super) fn of(found: &Statx) -> Stamp {
        Stamp { inode: found.stx_ino, made: made_at(found).unwrap_or_default() }
    }

    /// What has to be asked.
    pub(in super::super) const FACTS: StatxFlags = STAT.union(StatxFlags::BTIME);

    fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&self.inode.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.made.0.to_be_bytes());
        bytes[16..].copy_from_slice(&self.made.1.to_be_bytes());
        bytes
    }

    /// Reads the first bytes, of which there are enough, and leaves the others.
    fn split(bytes: &mut Vec<u8>) -> Stamp {
        let rest = bytes.split_off(bytes.len().min(STAMP_BYTES));
        let taken = std::mem::replace(bytes, rest);
        let made = (number(&taken[8..16]).cast_signed(), u32::try_from(number(&taken[16..])).unwrap_or(0));
        Stamp { inode: number(&taken[..8]), made }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// When it was made, if the file system knows.
pub(in super::super) fn made_at(found: &Statx) -> Option<(i64, u32)> {
    let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_known.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

const DIRECTORY: u8 = 0;
const NAME: u8 = 1;
const WAY: u8 = 2;
const DRY_WAY: u8 = 3;
const KEEP_RULES: u8 = 4;
const RULES: u8 = 5;

/// What was noted.
#[derive(Debug)]
pub(super) struct Notes {
    bytes: Vec<u8>,
    file: Option<File>,
    written: u64,
    /// How many bytes may be noted, a few megabytes more or less.
    bytes_max: u64,
    /// Files of rules that count for what was noted last.
    standing: Vec<Rc<Standing>>,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes {
            bytes: Vec::new(),
            file: None,
            written: 0,
            bytes_max: SYNC_CANDIDATES_FILE_BYTES_MAX,
            standing: Vec::new(),
        }
    }
}

impl Notes {
    /// For what follows these files of rules count, and those above them.
    pub(super) fn standing(&mut self, last: Option<&Rc<Standing>>) {
        if self.standing.last().map(Rc::as_ptr) == last.map(Rc::as_ptr) {
            return;
        }
        let all = Standing::all(last);
        let same = self.standing.iter().zip(&all).take_while(|(one, other)| Rc::ptr_eq(one, other)).count();
        let number = |number: usize| (number as u64).to_be_bytes();
        self.push(KEEP_RULES, &[&number(same)]);
        for rules in &all[same..] {
            self.push(RULES, &[&number(rules.index), &number(rules.path_len), &rules.text]);
        }
        self.standing = all;
    }

    pub(super) fn directory(&mut self, path: &[u8], (device, inode): (u64, u64)) {
        self.push(DIRECTORY, &[&device.to_be_bytes(), &inode.to_be_bytes(), path]);
    }

    pub(super) fn name(&mut self, name: &[u8], stamp: Stamp) {
        self.push(NAME, &[&stamp.to_bytes(), name]);
    }

    pub(super) fn way(&mut self, name: &[u8], stamp: Stamp, made: Option<&Temporary>) {
        match made {
            Some(made) => self.push(WAY, &[&stamp.to_bytes(), made, name]),
            None => self.push(DRY_WAY, &[&stamp.to_bytes(), name]),
        }
    }

    fn push(&mut self, kind: u8, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&u32::try_from(len).unwrap_or(0).to_be_bytes());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    /// True once memory has no room for more.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= SYNC_CANDIDATES_BYTES_MAX
    }

    /// True once no more may be noted, be it in the file.
    pub(super) fn is_over(&self) -> bool {
        self.written + self.bytes.len() as u64 > self.bytes_max
    }

    /// Bytes in memory, and how many may be noted at all.
    #[cfg(test)]
    pub(super) fn sizes(&mut self) -> (usize, &mut u64) {
        (self.bytes.len(), &mut self.bytes_max)
    }

    /// Moves what is in memory to the file.
    pub(super) fn spill(&mut self, base: &Directory) -> Result<()> {
        let failed = |error| Error::file("remember what is to be deleted", error);
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(unnamed(base).map_err(failed)?),
        };
        file.write_all_at(&self.bytes, self.written).map_err(failed)?;
        self.written += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    /// Reads them from the first on.
    pub(super) fn read(self) -> Reader {
        Reader { notes: self, at: 0, buffer: Vec::new(), start: 0 }
    }
}

/// A file that nobody sees: where the destination's file system has none, or may not be written, among the temporary files.
fn unnamed(base: &Directory) -> io::Result<File> {
    let fd = base.unnamed().or_else(|_| {
        let elsewhere =
            Directory::open(&std::env::temp_dir()).map_err(|error| io::Error::other(error.to_string()))?;
        elsewhere.unnamed()
    })?;
    Ok(fd.into())
}

/// Notes being read: first what is in the file, then what is in memory.
#[derive(Debug)]
pub(super) struct Reader {
    notes: Notes,
    /// Where in the file the next read begins.
    at: u64,
    /// What was read, and where in it the next note begins.
    buffer: Vec<u8>,
    start: usize,
}

impl Reader {
    /// The next note; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<Note>> {
        let Some(head) = self.take(HEAD_BYTES)? else { return Ok(None) };
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some(mut bytes) = self.take(len)? else { return Ok(None) };
        if head[0] == DIRECTORY {
            let path = bytes.split_off(bytes.len().min(16));
            return Ok(Some(Note::Directory((number(&bytes[..8]), number(&bytes[8..])), path)));
        }
        let size = |bytes: &[u8]| usize::try_from(number(bytes)).unwrap_or(usize::MAX);
        if head[0] == KEEP_RULES {
            return Ok(Some(Note::KeepRules(size(&bytes))));
        }
        if head[0] == RULES {
            let text = bytes.split_off(bytes.len().min(16));
            return Ok(Some(Note::Rules(size(&bytes[..8]), size(&bytes[8..]), text)));
        }
        let stamp = Stamp::split(&mut bytes);
        Ok(Some(match head[0] {
            WAY => {
                let name = bytes.split_off(bytes.len().min(TEMPORARY_BYTES));
                let mut made = [0; TEMPORARY_BYTES];
                made.copy_from_slice(&bytes);
                Note::Way(name, stamp, Some(made))
            }
            DRY_WAY => Note::Way(bytes, stamp, None),
            _ => Note::Name(bytes, stamp),
        }))
    }

    /// The next so many bytes; `None` at the end.
    fn take(&mut self, count: usize) -> Result<Option<Vec<u8>>> {
        while self.buffer.len() - self.start < count {
            self.buffer.drain(..std::mem::take(&mut self.start));
            let left = self.notes.written.saturating_sub(self.at);
            match &self.notes.file {
                Some(file) if left > 0 => {
                    let more = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES.max(count));
                    let end = self.buffer.len();
                    self.buffer.resize(end + more, 0);
                    file.read_exact_at(&mut self.buffer[end..], self.at)
                        .map_err(|error| Error::file("read what is to be deleted", error))?;
                    self.at += more as u64;
                }
                _ if self.notes.bytes.is_empty() => return Ok(None),
                _ => self.buffer.append(&mut self.notes.bytes),
            }
        }
        let end = self.start + count;
        let taken = self.buffer[self.start..end].to_vec();
        self.start = end;
        Ok(Some(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes come back as they went, from the file first, in order; also such that lie over the end of a read.
    #[test]
    fn notes_come_back_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let base = Directory::open(dir.path()).unwrap();
        let stamp = Stamp { inode: u64::MAX, made: (-5, 999_999_999) };
        let mut notes = Notes::default();
        notes.directory(b"", (1, u64::MAX));
        notes.way(b"x", stamp, Some(b".dray-0123456789abcdef"));
        for _ in 0..3000 {
            notes.name(&[b'n'; 255], stamp);
        }
        notes.spill(&base).unwrap();
        notes.directory(b"a/b", (2, 3));
        notes.spill(&base).unwrap();
        notes.way(b"y", stamp, None);
        notes.name(b"last", Stamp::default());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nobody sees the file");
        let mut reader = notes.read();
        let mut next = || reader.next().unwrap();
        assert_eq!(next(), Some(Note::Directory((1, u64::MAX), Vec::new())));
        assert_eq!(next(), Some(Note::Way(b"x".to_vec(), stamp, Some(*b".dray-0123456789abcdef"))));
        for _ in 0..3000 {
            assert_eq!(next(), Some(Note::Name(vec![b'n'; 255], stamp)));
        }
        assert_eq!(next(), Some(Note::Directory((2, 3), b"a/b".to_vec())));
        assert_eq!(next(), Some(Note::Way(b"y".to_vec(), stamp, None)));
        assert_eq!(next(), Some(Note::Name(b"last".to_vec(), Stamp::default())));
        assert_eq!(next(), None);
    }
}
