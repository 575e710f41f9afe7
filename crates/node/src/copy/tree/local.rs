//! Trees within this machine: the same walk and the same writer, contents copied by the kernel, and shared where the file
//! system can.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_core::message::CopyRole;
use dray_core::tree::{Finished, Kind, Order, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{
    FileTarget, FileToSend, Landing, NewFile, OpenFile, Placed, TreeWriter, Walked, Walker,
};

use super::source::entry_failed;
use super::{TreeCopied, TreeOptions, landing_name, show, tree_message, walk_options, write_options};
use crate::{Event, Node, Observer, Stop};

const TRIES: usize = 3;
/// Bytes that the kernel copies at a time.
const PIECE_BYTES: usize = 64 << 20;
const TOLD_INTERVAL: Duration = Duration::from_millis(200);

impl Node {
    pub(super) fn copy_trees_here(
        sources: &[PathBuf],
        destination: &Path,
        must_be_directory: bool,
        options: &TreeOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let names: Vec<Vec<u8>> = sources.iter().map(|source| landing_name(source)).collect();
        let tree =
            tree_message(CopyRole::Receive, vec![Vec::new()], names.clone(), options, must_be_directory)?;
        for source in sources {
            refuse_inside(source, destination)?;
        }
        let landing = Landing::resolve(destination, &names, must_be_directory)?;
        let mut copying = Copying {
            writer: TreeWriter::new(landing, write_options(&tree)),
            copied: TreeCopied::default(),
            observer,
            stop,
            told_at: Instant::now(),
        };
        let mut walker = Walker::new(sources.to_vec(), walk_options(&tree));
        let mut order = Order::new(sources.len());
        while let Some(walked) = walker.step() {
            copying.step(walked, &mut order)?;
        }
        let not_kept = copying.writer.failures();
        for (path, error) in not_kept.directories {
            copying.fail(&path, error)?;
        }
        for (what, entries) in not_kept.attributes {
            let what = format!("not kept on {entries} entries: {what}");
            copying.fail(b".", Error::new(ErrorKind::Unsupported, what))?;
        }
        if options.fsync {
            copying.writer.sync()?;
        }
        copying.copied.entries = order.entries();
        Ok(copying.copied)
    }
}

/// A tree copied into itself would never end; a file onto itself is a slip.
fn refuse_inside(source: &Path, destination: &Path) -> Result<()> {
    let Ok(from) = std::fs::metadata(source) else { return Ok(()) };
    let is_source = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (from.dev(), from.ino()))
    };
    let name = source.file_name().filter(|_| destination.is_dir());
    let target = name.map_or_else(|| destination.to_owned(), |name| destination.join(name));
    let refused = |what: String| Err(Error::new(ErrorKind::Usage, what).advise("name another destination"));
    if is_source(&target) {
        return refused(format!("{source:?} and {target:?} are the same"));
    }
    let parent = |path: &Path| {
        path.parent().map(|up| if up.as_os_str().is_empty() { ".".into() } else { up.to_owned() })
    };
    let existing = if destination.exists() { Some(destination.to_owned()) } else { parent(destination) };
    let whole = existing.and_then(|path| std::fs::canonicalize(path).ok()).unwrap_or_default();
    if from.is_dir() && whole.ancestors().any(is_source) {
        return refused(format!("{destination:?} is in {source:?}, which would never end"));
    }
    Ok(())
}

struct Copying<'a> {
    writer: TreeWriter,
    copied: TreeCopied,
    observer: &'a dyn Observer,
    stop: &'a Stop,
    told_at: Instant,
}

impl Copying<'_> {
    fn fail(&mut self, path: &[u8], error: Error) -> Result<()> {
        use std::os::unix::ffi::OsStrExt;
        if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) {
            return Err(error);
        }
        self.copied.failed += 1;
        show(self.observer, &entry_failed(Path::new(std::ffi::OsStr::from_bytes(path)), &error));
        Ok(())
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted")
                .advise("run the same command again: what is in place is not copied again"));
        }
        Ok(())
    }

    fn step(&mut self, walked: Walked, order: &mut Order) -> Result<()> {
        self.check_stop()?;
        if self.told_at.elapsed() >= TOLD_INTERVAL {
            self.told_at = Instant::now();
            self.observer.event(Event::TreeProgress { done_bytes: self.copied.bytes });
        }
        let (entry, file) = match walked {
            Walked::Failed(path, error) => {
                use std::os::unix::ffi::OsStrExt;
                return self.fail(path.as_os_str().as_bytes(), error);
            }
            Walked::Missing => return order.accept(&dray_core::tree::Item::Missing).map(|_| ()),
            Walked::Leave => {
                order.accept(&dray_core::tree::Item::Leave)?;
                self.writer.leave();
                return Ok(());
            }
            Walked::Entry(entry, file) => (entry, file),
        };
        let item = dray_core::tree::Item::Entry(*entry);
        let step = order.accept(&item)?;
        let dray_core::tree::Item::Entry(entry) = item else { return Ok(()) };
        let is_skipped = self.writer.is_skipping() && step == Step::Inner;
        let placed = match step {
            Step::Root(index) => self.writer.root(index, &entry),
            _ => self.writer.entry(&entry),
        };
        if is_skipped {
            return Ok(());
        }
        match placed {
            Ok(Placed::Done) => Ok(()),
            Ok(Placed::Unchanged) => {
                self.copied.unchanged += u64::from(matches!(entry.kind, Kind::File { .. }));
                Ok(())
            }
            Ok(Placed::Link(target)) => {
                let linked = self.writer.link(&target);
                let path = target.path().to_vec();
                self.writer.settle(*target, None);
                linked.or_else(|error| self.fail(&path, error))
            }
            Ok(Placed::Wanted(target, known)) => {
                let result = match &file {
                    Some(file) => self.copy(&target, file),
                    // Its first name could not be read or written; this one brings the content.
                    None => Err(Error::new(ErrorKind::NotFound, "it is a hard link to what was not copied")),
                };
                let _ = known;
                let path = target.path().to_vec();
                match result {
                    Ok(identity) => {
                        self.copied.files += 1;
                        self.writer.settle(*target, Some(identity));
                        Ok(())
                    }
                    Err(error) => {
                        self.writer.settle(*target, None);
                        self.fail(&path, error)
                    }
                }
            }
            Err(error) => {
                let path = self.writer.path_of(&entry);
                self.fail(&path, error)
            }
        }
    }

    fn copy(&mut self, target: &FileTarget, file: &FileToSend) -> Result<(u32, u32, u64)> {
        let mut new = target.create()?;
        for attempt in 0..TRIES {
            if attempt > 0 {
                new.restart()?;
            }
            let open = file.open()?;
            self.fill(&mut new, &open)?;
            if open.is_unchanged()? {
                self.copied.bytes += open.size_bytes;
                let (mtime_s, mtime_ns) = open.mtime();
                let size_bytes = open.size_bytes;
                let finished = Finished { hash: [0; 32], size_bytes, mtime_s, mtime_ns };
                return target.finish(new, &finished);
            }
        }
        Err(Error::new(ErrorKind::Changed, "the file changed each time it was read")
            .advise("copy it when nobody writes to it"))
    }

    /// Fills `new` with the file's bytes: shared with it, or copied in the kernel, holes left out.
    fn fill(&self, new: &mut NewFile, open: &OpenFile) -> Result<()> {
        use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
        let failed = |error: rustix::io::Errno| Error::file("copy the file", error.into());
        if ioctl_ficlone(new.file(), &open.file).is_ok() {
            new.filled(open.size_bytes);
            return Ok(());
        }
        let is_sparse = open.stored_bytes < open.size_bytes;
        let mut at = 0;
        while at < open.size_bytes {
            self.check_stop()?;
            let mut end = open.size_bytes;
            if is_sparse {
                let data = seek(&open.file, SeekFrom::Data(at)).map_or(end, |data| data.min(end));
                if data > at {
                    new.skip(data - at)?;
                    at = data;
                    continue;
                }
                end = seek(&open.file, SeekFrom::Hole(at)).map_or(end, |hole| hole.min(end)).max(at + 1);
            }
            let len = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let (mut from, mut to) = (at, at);
            let copied = match copy_file_range(&open.file, Some(&mut from), new.file(), Some(&mut to), len) {
                Ok(copied) => copied as u64,
                Err(
                    rustix::io::Errno::XDEV
                    | rustix::io::Errno::INVAL
                    | rustix::io::Errno::NOSYS
                    | rustix::io::Errno::OPNOTSUPP,
                ) => copy_piece(new, open, at, len.min(1 << 20))?,
                Err(error) => return Err(failed(error)),
            };
            if copied == 0 {
                // Shorter than it was: what comes of it is seen by its times.
                break;
            }
            at += copied;
            new.filled(at);
        }
        // The size it was opened with, whatever became of it meanwhile.
        if at < open.size_bytes {
            new.skip(open.size_bytes - at)?;
        }
        Ok(())
    }
}

fn copy_piece(new: &NewFile, open: &OpenFile, at: u64, len: usize) -> Result<u64> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; len];
    let read = open.file.read_at(&mut bytes, at).map_err(|error| Error::file("read the file", error))?;
    new.file().write_all_at(&bytes[..read], at).map_err(|error| Error::file("write the file", error))?;
    Ok(read as u64)
}
