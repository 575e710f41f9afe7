//! A file that is there is changed, not replaced (`--inplace`): it keeps its inode, and only what differs is written.
//!
//! What comes is written beside it and proven there, as ever. Then it gets a name that says that the file is neither old nor new from now on; what differs is written
//! over; and that name goes. Who is killed in between leaves the name and the whole file under it, from which the next run takes the content.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use dray_core::tree::Name;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::backup::Away;
use super::content::{Piece, Read, read_content};
use super::directory::{Directory, stat_fd};
use super::opened::OpenDirectory;
use super::place::{FileTarget, Identity, Kept, NewFile, Now, identity_of};
use super::settings::Settings;
use super::temporary::{self, Temporary};
use super::write::file_type;

/// What is compared at a time, and not written if it is the same: blocks of file systems, so that a snapshot shares what did not change.
const BLOCK_BYTES: usize = 4096;
/// Bytes of the file that are read at a time.
const READ_BYTES: usize = 256 * 1024;

/// The file that is changed, as it was when it was decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Existing(Identity);

impl Existing {
    /// What `found` tells of, if it is to be changed.
    pub(super) fn of(settings: &Settings, found: &Statx) -> Option<Existing> {
        settings.overwrites(found).then(|| Existing(identity_of(found)))
    }
}

impl Settings {
    /// True if the regular file that `found` tells of is changed, not replaced. Not one of several names where other directories have what is to come: its other names
    /// may lie in those.
    pub(super) fn overwrites(&self, found: &Statx) -> bool {
        let is_own = |basis: bool| !basis || found.stx_nlink == 1;
        self.sync().is_some_and(|sync| sync.in_place && is_own(sync.basis.is_some()))
    }

    /// True if a file may stay for its size or time although a run was cut off while it changed it.
    pub(super) fn may_keep_half(&self, found: &Statx) -> bool {
        self.overwrites(found) && self.sync().is_some_and(|sync| sync.update || sync.size_only)
    }
}

/// The name under which the whole content waits while the file `name`, which `found` tells of, gets it. Another file there has another.
fn name_of_whole(directory: &OpenDirectory, name: &Name, found: &Statx) -> Temporary {
    let is_told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born = if is_told { (found.stx_btime.tv_sec, found.stx_btime.tv_nsec) } else { (0, 0) };
    let mut usage = b"in place".to_vec();
    usage.extend(found.stx_ino.to_be_bytes());
    usage.extend(born.0.to_be_bytes());
    usage.extend(born.1.to_be_bytes());
    temporary::beside(directory.inode, name, &usage)
}

const FACTS: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// The name of what a run that was cut off while it changed the file `name` left, if one was.
pub(super) fn left_whole(directory: &OpenDirectory, name: &Name) -> Option<Temporary> {
    if directory.is_new {
        return None;
    }
    let found = directory.directory.stat_for(name.as_bytes(), FACTS).ok()?;
    let whole = name_of_whole(directory, name, &found);
    has_whole(directory, &whole).then_some(whole)
}

/// Whether a run of this user left something under this name.
fn has_whole(directory: &OpenDirectory, whole: &Temporary) -> bool {
    directory.directory.stat(whole).is_ok_and(|found| {
        file_type(&found) == FileType::RegularFile && found.stx_uid == directory.settings().powers.uid
    })
}

/// What a file that is changed is opened as.
struct Open {
    file: File,
    found: Statx,
    is_readable: bool,
}

impl FileTarget {
    /// Gives the file that is there the content of `new`, of `size_bytes`, which is whole, and then everything that is kept of it.
    pub(super) fn overwrite(
        &self,
        existing: &Existing,
        mut new: NewFile,
        size_bytes: u64,
        (kept, mode): (&Kept<'_>, u32),
    ) -> Result<Identity> {
        let (settings, directory) = (self.directory.settings(), &self.directory);
        let there = self.open_existing(existing)?;
        let whole = name_of_whole(directory, &self.name, &there.found);
        self.require_alone(&whole)?;
        // What another run began to change was kept by that.
        if !has_whole(directory, &whole) {
            directory.back_up(&self.name, Away::Changed)?;
        }
        new.wait_as(&self.name, whole)
            .map_err(|error| Error::file("name what came beside the file", error))?;
        self.leave();
        let mode_now = u32::from(there.found.stx_mode) & 0o7777;
        if !settings.fakes() {
            // Nobody runs or reads what is half there with rights that all of it will not give.
            let meanwhile = mode_now & (mode | 0o700) & 0o1777;
            if meanwhile != mode_now {
                let _ = rustix::fs::fchmod(&there.file, Mode::from_raw_mode(meanwhile));
            }
        }
        let check = || settings.check_stop();
        Over { there: &there.file, end: there.found.stx_size, is_readable: there.is_readable, check: &check }
            .bring(new.file(), size_bytes)
            .map_err(|error| error.or_advise("run it again: what came waits beside the file"))?;
        let device = (there.found.stx_dev_major, there.found.stx_dev_minor);
        let is_durable = settings.sync().is_some_and(|sync| sync.durable);
        // A file that is mounted there lies on a file system that nobody else makes durable.
        if is_durable || device != directory.device || settings.fails_late(device, there.file.as_fd()) {
            rustix::fs::fsync(&there.file).map_err(|error| Error::file("write the file", error.into()))?;
        }
        // Its time comes after that: who is killed in between leaves a file that is looked at again.
        new.forget();
        let now = stat_fd(there.file.as_fd()).map_err(|error| Error::file("look at the file", error))?;
        let now = Now {
            mode: Some(u32::from(now.stx_mode) & 0o7777),
            owner: Some((now.stx_uid, now.stx_gid)),
            ..Now::default()
        };
        settings.apply_kept(there.file.as_fd(), kept, &now, mode, false);
        Ok(existing.0)
    }

    fn open_existing(&self, existing: &Existing) -> Result<Open> {
        let directory = &self.directory.directory;
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |way| directory.open_at(self.name.as_bytes(), flags | way, Mode::empty());
        let mut opened = open(OFlags::RDWR);
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        // What nobody may write to its owner may make his for that moment, as with rsync.
        if opened.as_ref().is_err_and(is_denied)
            && let Ok((path, bits)) = self.open_up(existing)
        {
            opened = open(OFlags::RDWR);
            let _ = rustix::fs::chmod(Directory::path_of(path.as_fd()), bits);
        }
        let mut is_readable = true;
        if opened.as_ref().is_err_and(is_denied) {
            // Who may not compare writes all of it.
            (opened, is_readable) = (open(OFlags::WRONLY), false);
        }
        let file = File::from(opened.map_err(|error| {
            let is_busy = error.kind() == io::ErrorKind::ExecutableFileBusy;
            let what = if is_busy { "end the program that it is" } else { "let this user write to it" };
            Error::file("open the file to change it", error)
                .advise(format!("{what}, or leave out --inplace: then it is replaced"))
        })?);
        let found = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, FACTS);
        let found = found.map_err(|error| Error::file("look at the file", error.into()))?;
        if file_type(&found) != FileType::RegularFile || identity_of(&found) != existing.0 {
            return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile").advise("copy it again"));
        }
        Ok(Open { file, found, is_readable })
    }

    /// Lets its owner read and write the file that is there; which it is, and the bits that it had.
    fn open_up(&self, existing: &Existing) -> io::Result<(OwnedFd, Mode)> {
        let fd = self.directory.directory.open_at(self.name.as_bytes(), OFlags::PATH, Mode::empty())?;
        let found = stat_fd(fd.as_fd())?;
        if file_type(&found) != FileType::RegularFile || identity_of(&found) != existing.0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let bits = u32::from(found.stx_mode) & 0o7777;
        rustix::fs::chmod(Directory::path_of(fd.as_fd()), Mode::from_raw_mode(bits & 0o1777 | 0o600))?;
        Ok((fd, Mode::from_raw_mode(bits)))
    }

    /// `Refused` if another run is changing the file.
    fn require_alone(&self, whole: &Temporary) -> Result<()> {
        if self.has_left(whole) {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Ok(other) = self.directory.directory.open_at(whole, flags, Mode::empty()) else { return Ok(()) };
        match rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                Err(Error::new(ErrorKind::Refused, "another run is changing this file")
                    .advise("wait for its end, and copy it again"))
            }
            _ => Ok(()),
        }
    }
}

/// Writes over a file.
struct Over<'a> {
    there: &'a File,
    /// Its size.
    end: u64,
    /// It can be compared.
    is_readable: bool,
    check: &'a dyn Fn() -> Result<()>,
}

impl Over<'_> {
    /// Makes it what `from`, of `size_bytes`, is; how many bytes were written or became holes.
    fn bring(&self, from: &File, size_bytes: u64) -> Result<u64> {
        let failed = |error| Error::file("write the file", error);
        let mut buffer = vec![0; READ_BYTES];
        let (mut at, mut written) = (0, 0);
        let mut take = |read: Read<'_>| {
            let (len, more) = match read {
                Read::Hole(len) => (len, self.hole(at, len, &mut buffer)?),
                Read::Data(bytes) => (bytes.len() as u64, self.data(at, bytes, &mut buffer).map_err(failed)?),
            };
            (at, written) = (at + len, written + more);
            Ok(())
        };
        let end = read_content(from, 0..size_bytes, true, &mut || (self.check)(), &mut take)?;
        if end != size_bytes {
            return Err(Error::new(ErrorKind::Changed, "another program wrote to what came beside the file"));
        }
        let now = self.there.metadata().map_err(failed)?.len();
        if now != size_bytes {
            self.there.set_len(size_bytes).map_err(failed)?;
        }
        Ok(written)
    }

    /// What is there from `at` on, up to the end of `into` or of the file.
    fn read<'b>(&self, at: u64, into: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let len = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
        let mut filled = 0;
        while self.is_readable && filled < len {
            match self.there.read_at(&mut into[filled..len], at + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&into[..filled])
    }

    fn data(&self, at: u64, bytes: &[u8], buffer: &mut [u8]) -> io::Result<u64> {
        let mut written = 0;
        for (number, bytes) in bytes.chunks(buffer.len().max(1)).enumerate() {
            let at = at + (number * buffer.len()) as u64;
            let known = self.read(at, &mut buffer[..bytes.len()])?;
            let is_same = |from, to| known.get(from..to) == Some(&bytes[from..to]);
            for (from, to) in differing(at, bytes.len(), &is_same) {
                self.there.write_all_at(&bytes[from..to], at + from as u64)?;
                written += (to - from) as u64;
            }
        }
        Ok(written)
    }

    fn hole(&self, at: u64, len: u64, buffer: &mut [u8]) -> Result<u64> {
        let failed = |error| Error::file("write the file", error);
        let end = at.saturating_add(len).min(self.end);
        let (mut at, mut written) = (at, 0);
        while at < end {
            (self.check)()?;
            let piece =
                if self.is_readable { Piece::next(self.there, at, end) } else { Piece::Data(end - at) };
            let len = match piece {
                Piece::Hole(len) => {
                    at += len;
                    continue;
                }
                Piece::Data(len) => usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len()),
            };
            let known = self.read(at, &mut buffer[..len]).map_err(failed)?;
            let is_same = |from, to| known.get(from..to).is_some_and(|it| it.iter().all(|byte| *byte == 0));
            for (from, to) in differing(at, len, &is_same) {
                self.clear(at + from as u64, (to - from) as u64).map_err(failed)?;
                written += (to - from) as u64;
            }
            at += len as u64;
        }
        Ok(written)
    }

    /// Makes a hole, or zeros where the file system makes none.
    fn clear(&self, at: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.there, flags, at, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = [0; BLOCK_BYTES];
                let mut done = 0;
                while done < len {
                    let count = usize::try_from(len - done).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
                    self.there.write_all_at(&zeros[..count], at + done)?;
                    done += count as u64;
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }
}

/// The parts of `len` bytes at `at` of a file in whose blocks anything is not the same, each as long as can be.
fn differing(at: u64, len: usize, is_same: &dyn Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut from = 0;
    while from < len {
        let in_block = (at.wrapping_add(from as u64) % BLOCK_BYTES as u64) as usize;
        let to = len.min(from + BLOCK_BYTES - in_block);
        if !is_same(from, to) {
            match parts.last_mut().filter(|last| last.1 == from) {
                Some(last) => last.1 = to,
                None => parts.push((from, to)),
            }
        }
        from = to;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;

    /// A file of these blocks, each of so many bytes: `None` for a hole.
    fn made(blocks: &[Option<u8>], extra: usize) -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        let mut bytes = Vec::new();
        for block in blocks {
            if let Some(byte) = block {
                file.write_all_at(&[*byte; BLOCK_BYTES], bytes.len() as u64).unwrap();
            }
            bytes.extend([block.unwrap_or(0); BLOCK_BYTES]);
        }
        bytes.extend(vec![7; extra]);
        file.write_all_at(&bytes[bytes.len() - extra..], (bytes.len() - extra) as u64).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        (file, bytes)
    }

    fn over<'a>(there: &'a File, is_readable: bool, check: &'a dyn Fn() -> Result<()>) -> Over<'a> {
        Over { there, end: there.metadata().unwrap().len(), is_readable, check }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// S86: what is there becomes what came, whatever either was; written is what differs and nothing else.
        #[test]
        fn what_differs_is_written(
            old in prop::collection::vec(prop::option::of(0_u8..3), 0..80),
            new in prop::collection::vec(prop::option::of(0_u8..3), 0..80),
            extra in (0_usize..BLOCK_BYTES, 0_usize..BLOCK_BYTES),
        ) {
            let ((there, was), (from, is)) = (made(&old, extra.0), made(&new, extra.1));
            let written = over(&there, true, &|| Ok(())).bring(&from, is.len() as u64).unwrap();
            let mut now = vec![0; is.len() + 1];
            prop_assert_eq!(there.read_at(&mut now, 0).unwrap(), is.len());
            prop_assert!(now[..is.len()] == is[..]);
            // What lies beyond the end of what was there is written, unless it is a hole.
            let differs = |number: usize| -> usize {
                let from = number * BLOCK_BYTES;
                let to = is.len().min(from + BLOCK_BYTES);
                let is_hole = new.get(number).is_some_and(Option::is_none);
                let (kept, until) = (was.len().min(to), if is_hole { to.min(was.len().max(from)) } else { to });
                let same = kept >= until && was.get(from..until) == is.get(from..until);
                if same { 0 } else { until - from }
            };
            let expected: usize = (0..is.len().div_ceil(BLOCK_BYTES)).map(differs).sum();
            prop_assert_eq!(written, expected as u64);
            // Again there is nothing to do.
            prop_assert_eq!(over(&there, true, &|| Ok(())).bring(&from, is.len() as u64).unwrap(), 0);
        }

        /// The same where it cannot be read.
        #[test]
        fn what_cannot_be_read_is_written(
            old in prop::collection::vec(prop::option::of(0_u8..3), 0..20),
            new in prop::collection::vec(prop::option::of(0_u8..3), 0..20),
        ) {
            let ((there, _), (from, is)) = (made(&old, 5), made(&new, 9));
            over(&there, false, &|| Ok(())).bring(&from, is.len() as u64).unwrap();
            let mut now = vec![0; is.len() + 1];
            prop_assert_eq!(there.read_at(&mut now, 0).unwrap(), is.len());
            prop_assert!(now[..is.len()] == is[..]);
        }
    }

    /// S86: holes that come are holes of what is there, where it had other bytes.
    #[test]
    fn holes_are_made() {
        let (there, _) = made(&[Some(1); 256], 0);
        let mut blocks = [None; 256];
        blocks[17] = Some(1);
        let (from, _) = made(&blocks, 0);
        let written = over(&there, true, &|| Ok(())).bring(&from, 256 * BLOCK_BYTES as u64).unwrap();
        assert_eq!(written, 255 * BLOCK_BYTES as u64);
        assert!(there.metadata().unwrap().blocks() <= 2 * BLOCK_BYTES as u64 / 512, "a hole");
    }

    /// Who stops a run waits for no large file.
    #[test]
    fn a_stop_is_heard_between_pieces() {
        let (there, _) = made(&[Some(1); 256], 0);
        let (from, _) = made(&[None; 256], 0);
        let asked = std::cell::Cell::new(0);
        let check = || {
            asked.set(asked.get() + 1);
            if asked.get() > 3 { Err(Error::new(ErrorKind::Interrupted, "interrupted")) } else { Ok(()) }
        };
        let error = over(&there, true, &check).bring(&from, 256 * BLOCK_BYTES as u64).unwrap_err();
        assert_eq!((error.kind(), asked.get()), (ErrorKind::Interrupted, 4));
    }
}
