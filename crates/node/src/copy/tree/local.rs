//! Trees within this machine: the same walk and the same writer, contents copied by the kernel, and shared where the file
//! system can.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::message::{CopyRole, tree_flag};
use dray_core::tree::{Finished, Kind, Order, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{
    Changes, FileTarget, FileToSend, Landing, NewFile, OpenFile, Origin, Placed, TreeWriter, Walked, Walker,
    hash_content, own_directory,
};

use dray_transfer::transport::RateLimit;
use dray_transfer::tree::Removes;
use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

use super::again::{Whereabouts, source_here};
use super::held::{Failed, HeldNames};
use super::near::may_be_renamed;
use super::removal::{Arrivals, Removal};
use super::sink::at;
use super::source::entry_failed;
use super::sync::Confirm;
use super::{
    TreeCopied, TreeOptions, changes, left_out, not_kept, preview, show, sync, tree_message, walk_options,
    whole, write_options,
};
use crate::{Event, Node, Observer, Stop};

const TRIES: usize = 3;
/// Bytes that the kernel copies at a time.
const PIECE_BYTES: u64 = 64 << 20;
/// Steps of the walk in one batch, and batches that it may be ahead.
const BATCH_STEPS: usize = 64;
const BATCHES_AHEAD: usize = 8;
/// Bytes read at a time where the kernel does not copy.
const READ_BYTES: u64 = 256 * 1024;
/// Smaller files are read and written: that is one call less and no slower.
const KERNEL_FROM_BYTES: u64 = 64 * 1024;
/// Files of this size are worth asking whether blocks can be shared, whatever became of the last.
const SHARE_ALWAYS_BYTES: u64 = 1 << 20;
const TOLD_INTERVAL: Duration = Duration::from_millis(200);

impl Node {
    #[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
    pub(super) fn copy_trees_here(
        &self,
        sources: &[PathBuf],
        destination: &Path,
        must_be_directory: bool,
        options: &TreeOptions,
        whereabouts: &Whereabouts<'_>,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let is_sync = options.sync.is_some();
        let names: Vec<Vec<u8>> = sources.iter().map(|source| sync::name_of(source, is_sync)).collect();
        let asked = vec![destination.as_os_str().as_bytes().to_vec()];
        let tree = tree_message(CopyRole::Receive, asked, Vec::new(), options, must_be_directory)?;
        sync::require_safe(&tree, &names)?;
        let known = match may_be_renamed(&names, must_be_directory, is_sync) {
            true => source_here(self, &sources[0]),
            false => Vec::new(),
        };
        if let Some(sync) = &options.sync {
            for (source, name) in sources.iter().zip(&names) {
                sync::refuse_source_inside(sync, source, destination, name)?;
            }
        }
        let above = sync::above(&tree);
        let origin = Origin::Anywhere;
        let landing = sync::landing(&origin, destination, &names, must_be_directory, above, known)
            .and_then(|landing| whole::landing(landing, whole::is_switched(&tree), &origin, destination));
        let follows = tree.flags & tree_flag::FOLLOW_SOURCES != 0;
        let may_go_on = landing.as_ref().is_ok_and(Landing::may_go_on);
        for (source, name) in sources.iter().zip(&names) {
            // Where it goes on it takes the destination's own name.
            let takes_name = name.is_empty() || (may_go_on && source.is_dir());
            refuse_inside(source, destination, !takes_name, follows)?;
        }
        let landing = landing?;
        let walker = Walker::new(sources.to_vec(), sync::walk_chosen(walk_options(&tree, &names)?, options));
        // Nobody asks for the hash of what is there: what may differ is copied.
        let mut changes = Changes { never_compares: true, ..changes(&tree, &sync::beside_here)? };
        if let Some(sync) = &mut changes.sync {
            let found = sources.iter().filter_map(|source| std::fs::metadata(source).ok());
            // A copy within a host begins anew: nothing had to come.
            sync.partial = false;
            sync.sources = found.map(|found| (found.dev(), found.ino())).collect();
        }
        let write = write_options(&tree);
        // Walking and writing each have a thread that stands in the directory at hand. Looking at what is next and copying what is at
        // hand are two things to do at once.
        thread::scope(|scope| {
            let copying = if options.dry_run {
                scope.spawn(move || {
                    let hear = |landed| whereabouts.hear(landed);
                    preview::plan_here(walker, landing, write, changes, sources.len(), &hear, observer, stop)
                })
            } else {
                let (sender, batches) = mpsc::sync_channel(BATCHES_AHEAD);
                let removal = Removal::of(&tree, Origin::Anywhere);
                let noting = removal.clone();
                let arrivals = Arrivals::of(&tree);
                scope.spawn(move || walk_ahead(walker, noting.as_deref(), &sender));
                scope.spawn(move || {
                    own_directory();
                    let writer = TreeWriter::new(landing, write).with_changes(changes);
                    let mut writer = writer.staged(options.fsync)?;
                    writer.stop_with(stop.flag());
                    let copying = Copying {
                        writer,
                        copied: TreeCopied::default(),
                        held: HeldNames::default(),
                        whereabouts,
                        observer,
                        stop,
                        told_at: Instant::now(),
                        can_share: true,
                        limit: options.rate_bytes.map(RateLimit::new),
                        buffer: vec![0; READ_BYTES as usize],
                        is_complete: true,
                        confirm: options.sync.as_ref().and_then(|sync| sync.confirm.as_ref()),
                        removal,
                        arrivals,
                        number: 0,
                    };
                    copying.all(batches, sources.len(), options.fsync)
                })
            };
            copying.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")))
        })
    }
}

/// Walks to the end, in batches, or until nobody takes them.
fn walk_ahead(mut walker: Walker, removal: Option<&Removal>, batches: &mpsc::SyncSender<Vec<Walked>>) {
    own_directory();
    // Entries that wait keep their directories open.
    let directories_max = Walker::directories_in_batch(BATCHES_AHEAD + 2);
    let (mut is_over, mut number) = (false, 0);
    while !is_over {
        let (mut batch, mut directories) = (Vec::with_capacity(BATCH_STEPS), 0);
        while batch.len() < BATCH_STEPS && directories < directories_max && !is_over {
            match walker.step() {
                Some(step) => {
                    if let Some(removal) = removal {
                        removal.note(number, &step, &walker);
                    }
                    number += u64::from(matches!(step, Walked::Entry(..)));
                    // Each source may be in a directory of its own.
                    directories += usize::from(
                        matches!(&step, Walked::Entry(entry, _) if entry.is_directory() || entry.name.is_none()),
                    );
                    batch.push(step);
                }
                None => is_over = true,
            }
        }
        if batches.send(batch).is_err() {
            return;
        }
    }
}

/// A tree copied into itself would never end; a file onto itself is a slip.
fn refuse_inside(source: &Path, destination: &Path, is_named: bool, follows: bool) -> Result<()> {
    // A link that is copied as one is not what it leads to.
    let is_link = !follows && std::fs::symlink_metadata(source).is_ok_and(|found| found.is_symlink());
    let look = |path: &Path| if is_link { std::fs::symlink_metadata(path) } else { std::fs::metadata(path) };
    let Ok(from) = look(source) else { return Ok(()) };
    let is_source =
        |path: &Path| look(path).is_ok_and(|found| (found.dev(), found.ino()) == (from.dev(), from.ino()));
    let name = source.file_name().filter(|_| is_named && destination.is_dir());
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
    held: HeldNames,
    whereabouts: &'a Whereabouts<'a>,
    observer: &'a dyn Observer,
    stop: &'a Stop,
    told_at: Instant,
    /// The file system shared blocks when it was last asked.
    can_share: bool,
    limit: Option<Arc<RateLimit>>,
    buffer: Vec<u8>,
    /// No entry has failed so far.
    is_complete: bool,
    confirm: Option<&'a Confirm>,
    /// What is in place leaves its source, if that is asked for; and the number of the next entry.
    removal: Option<Arc<Removal>>,
    arrivals: Arrivals,
    number: u64,
}

impl Copying<'_> {
    /// Copies what is walked, to the end.
    fn all(
        mut self,
        batches: mpsc::Receiver<Vec<Walked>>,
        sources: usize,
        fsync: bool,
    ) -> Result<TreeCopied> {
        let mut order = Order::new(sources);
        batches.into_iter().flatten().try_for_each(|walked| self.step(walked, &mut order))?;
        if let Some(Err(error)) = self.confirm.map(Confirm::ask) {
            self.fail(b".", error)?;
        }
        let held = self.held.end(&mut self.writer);
        self.fail_all(held)?;
        if fsync && self.is_complete && self.writer.will_delete() {
            // What is deleted may be what came under another name.
            self.writer.sync()?;
        }
        self.delete(order.entries())?;
        let mut found = self.writer.failures();
        self.fail_all(found.directories.drain(..))?;
        if fsync {
            self.writer.sync()?;
        }
        self.check_stop()?;
        if let Err(error) = self.writer.come_to_end(fsync) {
            self.fail(b".", error)?;
        }
        found.add(self.writer.failures());
        self.fail_all(not_kept(&mut found))?;
        self.remove_arrived(true)?;
        for (what, entries) in found.left_out {
            self.observer.event(left_out(&what, entries));
        }
        self.copied.entries = order.entries();
        self.copied.files = self.copied.files.saturating_sub(self.writer.take_unplaced());
        Ok(self.copied)
    }

    /// Deletes what the source has not, if everything else was done.
    fn delete(&mut self, entries: u64) -> Result<()> {
        // What fails from here on is a deletion.
        if !self.is_complete {
            let mut failed = Vec::new();
            let deletes = self.writer.delete_nothing(&mut failed);
            self.fail_all(failed)?;
            if deletes && entries > 0 {
                self.fail(b".", whole::nothing_done(&self.writer))?;
            }
            return Ok(());
        }
        let mut goes_on = true;
        while goes_on {
            self.check_stop()?;
            let mut failed = Vec::new();
            let deleted = self.writer.delete_some(&mut failed);
            // Also if this is the end.
            self.tell_done();
            goes_on = match deleted {
                Ok(goes_on) => goes_on,
                Err(error) => {
                    self.fail(b".", error)?;
                    false
                }
            };
            self.fail_all(failed)?;
        }
        Ok(())
    }

    /// An entry that is no directory is in place, unless it waits for a directory to make way.
    fn came(&mut self, number: u64) {
        if !self.writer.has_waiting() {
            self.arrivals.came(number, self.writer.troubles());
        }
    }

    /// What is in place is made durable, and then leaves its source.
    fn remove_arrived(&mut self, is_last: bool) -> Result<()> {
        let Some(removal) = self.removal.clone() else { return Ok(()) };
        if !self.arrivals.is_empty() {
            self.writer.sync()?;
        }
        for in_place in self.arrivals.say(self.number, is_last) {
            self.check_stop()?;
            for failed in removal.remove(&in_place).1 {
                self.copied.failed += 1;
                show(self.observer, &failed);
            }
        }
        Ok(())
    }

    /// Tells what was done with entries.
    fn tell_done(&mut self) {
        for done in self.writer.take_done() {
            self.copied.deleted += u64::from(done.letters.is_none());
            preview::tell(self.observer, &sync::item(done), false);
        }
    }

    fn fail_all(&mut self, failed: impl IntoIterator<Item = Failed>) -> Result<()> {
        failed.into_iter().try_for_each(|(path, error)| self.fail(&path, error))
    }

    fn fail(&mut self, path: &[u8], error: Error) -> Result<()> {
        let path = Path::new(std::ffi::OsStr::from_bytes(if path.is_empty() { b"." } else { path }));
        if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) {
            return Err(at(path, self.writer.last_error(error)));
        }
        self.is_complete = false;
        self.copied.failed += 1;
        show(self.observer, &entry_failed(path, &error));
        Ok(())
    }

    fn check_stop(&mut self) -> Result<()> {
        if self.stop.is_set() {
            let error = Error::new(ErrorKind::Interrupted, "interrupted")
                .advise("run the same command again; what came with -p or -a is not copied again");
            return Err(self.writer.last_error(error));
        }
        Ok(())
    }

    /// Says from time to time how far it is, with so many bytes of the file at hand.
    fn tell(&mut self, more_bytes: u64) {
        if self.told_at.elapsed() >= TOLD_INTERVAL {
            self.told_at = Instant::now();
            self.observer.event(Event::TreeProgress { done_bytes: self.copied.bytes + more_bytes });
        }
    }

    fn step(&mut self, walked: Walked, order: &mut Order) -> Result<()> {
        let stepped = self.one_step(walked, order);
        self.tell_done();
        if stepped.is_ok() && self.arrivals.is_due(self.number) {
            return self.remove_arrived(false);
        }
        if stepped.is_ok() && self.writer.is_sync_due() {
            return self.writer.sync_what_came();
        }
        stepped
    }

    fn one_step(&mut self, walked: Walked, order: &mut Order) -> Result<()> {
        self.check_stop()?;
        self.tell(0);
        let (entry, file) = match walked {
            Walked::Failed(path, error) => {
                return self.fail(path.as_os_str().as_bytes(), error);
            }
            Walked::Unlisted => {
                self.writer.unlisted();
                return Ok(());
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
        let number = self.number;
        self.number += 1;
        let is_skipped = self.writer.is_skipping() && step == Step::Inner;
        let placed = match step {
            Step::Root(index) => {
                let placed = self.writer.root(index, &entry);
                self.whereabouts.hear(self.writer.landed());
                placed
            }
            _ => self.writer.entry(&entry),
        };
        if is_skipped {
            return Ok(());
        }
        match placed {
            Ok(Placed::Done | Placed::Passed) if entry.is_directory() => Ok(()),
            Ok(Placed::Passed) => Ok(()),
            Ok(Placed::Done) => {
                self.came(number);
                Ok(())
            }
            Ok(Placed::Unchanged) => {
                // Of a file that was not looked at nobody knows that it is what the source has.
                if !matches!(entry.kind, Kind::File { .. }) {
                    self.came(number);
                }
                self.copied.unchanged += u64::from(matches!(entry.kind, Kind::File { .. }));
                let failed = self.held.came(&mut self.writer, entry.metadata.link_group);
                self.fail_all(failed)
            }
            Ok(Placed::Link(target)) => {
                let linked = self.writer.link(&target);
                let path = target.path().to_vec();
                if linked.is_ok() {
                    self.came(number);
                }
                self.writer.settle(*target, None);
                linked.or_else(|error| self.fail(&path, error))
            }
            Ok(Placed::Wanted(mut target, known)) => {
                let result = match &file {
                    Some(file) => self.bring(&mut target, file, known),
                    // Its first name could not be read or written; this one brings the content.
                    None => Err(Error::new(ErrorKind::NotFound, "it is a hard link to what was not copied")),
                };
                let failed = match result {
                    Ok((identity, is_same)) => {
                        self.copied.files += u64::from(!is_same);
                        self.copied.unchanged += u64::from(is_same);
                        let group = target.link_group();
                        self.came(number);
                        self.writer.settle(*target, Some(identity));
                        self.held.came(&mut self.writer, group)
                    }
                    Err(error) => {
                        let failed = self.held.failed(&mut self.writer, target, error);
                        failed.into_iter().collect()
                    }
                };
                self.fail_all(failed)
            }
            Err(error) => {
                let path = self.writer.path_of(&entry);
                self.fail(&path, error)
            }
        }
    }

    /// Copies the content, unless what is there hashes to `known` and so does the file; true if it does.
    fn bring(
        &mut self,
        target: &mut FileTarget,
        file: &FileToSend,
        known: Option<[u8; 32]>,
    ) -> Result<((u32, u32, u64), bool)> {
        if let Some(known) = known {
            let open = file.open()?;
            let has_holes = open.stored_bytes < open.size_bytes;
            let hashed = hash_content(&open.file, open.size_bytes, has_holes, &mut || self.check_stop())?;
            if hashed == (known, open.size_bytes) && open.is_unchanged()? {
                let (mtime_s, mtime_ns) = open.mtime();
                let finished = Finished { hash: known, size_bytes: open.size_bytes, mtime_s, mtime_ns };
                return self.writer.keep_same(target, &finished).map(|identity| (identity, true));
            }
        }
        self.copy(target, file).map(|identity| (identity, false))
    }

    fn copy(&mut self, target: &FileTarget, file: &FileToSend) -> Result<(u32, u32, u64)> {
        let mut new = target.create()?;
        for attempt in 0..TRIES {
            if attempt > 0 {
                new.restart()?;
            }
            let open = file.open()?;
            let size_bytes = self.fill(&mut new, &open)?;
            if open.is_unchanged()? {
                let (mtime_s, mtime_ns) = open.mtime();
                let finished = Finished { hash: [0; 32], size_bytes, mtime_s, mtime_ns };
                let identity = target.finish(new, &finished)?;
                self.copied.bytes += size_bytes;
                return Ok(identity);
            }
        }
        Err(Error::new(ErrorKind::Changed, "the file changed each time it was read")
            .advise("copy it when nobody writes to it"))
    }

    /// Fills `new` with all that can be read of the file: shared with it, or copied in the kernel, holes left out. Its size is
    /// what was read, whatever the file's metadata says: files of `/proc` have more than they tell of, those of `/sys` less.
    fn fill(&mut self, new: &mut NewFile, open: &OpenFile) -> Result<u64> {
        if let Some(size_bytes) = self.share(new, open)? {
            return Ok(size_bytes);
        }
        let is_sparse = open.stored_bytes < open.size_bytes;
        // Where the source goes its bytes are written as they are read: what is shared is what its disk has, which may have refused some of them.
        let mut in_kernel = open.size_bytes > KERNEL_FROM_BYTES && self.removal.is_none();
        let mut at = 0;
        loop {
            self.check_stop()?;
            self.tell(at);
            let mut end = open.size_bytes;
            if is_sparse && at < end {
                let data = seek(&open.file, SeekFrom::Data(at)).map_or_else(
                    // Nothing but a hole; or a file system that does not tell holes.
                    |error| if error == Errno::NXIO { end } else { at },
                    |data| data.min(end),
                );
                if data > at {
                    new.skip(data - at)?;
                    at = data;
                    continue;
                }
                end = seek(&open.file, SeekFrom::Hole(at)).map_or(end, |hole| hole.min(end)).max(at + 1);
            }
            // Under a limit in pieces that are paid for when they are there: the look beyond the end costs nothing.
            let most = if in_kernel && self.limit.is_none() { PIECE_BYTES } else { READ_BYTES };
            let wanted = if at < end { (end - at).min(most) } else { READ_BYTES };
            if in_kernel && at < end {
                let (mut from, mut to) = (at, at);
                let len = usize::try_from(wanted).unwrap_or(usize::MAX);
                match copy_file_range(&open.file, Some(&mut from), new.file(), Some(&mut to), len) {
                    Ok(copied) if copied > 0 => {
                        at += copied as u64;
                        new.filled(at);
                        self.pay(copied as u64);
                        continue;
                    }
                    // The end, or a file system that cannot: reading says which.
                    Ok(_) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        in_kernel = false
                    }
                    Err(error) => return Err(Error::file("copy the file", error.into())),
                }
            }
            // A byte more than there should be: the end of a small file needs no read of its own.
            let is_rest = at < end && end == open.size_bytes;
            let most = usize::try_from(wanted + u64::from(is_rest)).unwrap_or(usize::MAX);
            let max = most.min(self.buffer.len());
            let bytes = &mut self.buffer[..max];
            let read = open.file.read_at(bytes, at).map_err(|error| Error::file("read the file", error))?;
            if read == 0 {
                return Ok(at);
            }
            let written = new.file().write_all_at(&bytes[..read], at);
            written.map_err(|error| Error::file("write the file", error))?;
            at += read as u64;
            new.filled(at);
            self.pay(read as u64);
            if is_rest && at == end && read < max {
                return Ok(at);
            }
        }
    }

    /// Waits until so many bytes may have been written.
    fn pay(&self, bytes: u64) {
        let Some(limit) = &self.limit else { return };
        let mut paid = 0;
        while paid < bytes {
            paid += limit.take(bytes - paid);
        }
    }

    /// Lets `new` share the blocks of the file, where the file system can; its size then.
    fn share(&mut self, new: &mut NewFile, open: &OpenFile) -> Result<Option<u64>> {
        // One that could not is not asked again for each small file.
        let is_worth = self.can_share || open.size_bytes >= SHARE_ALWAYS_BYTES;
        if open.size_bytes == 0 || !is_worth || self.limit.is_some() || self.removal.is_some() {
            return Ok(None);
        }
        self.can_share = ioctl_ficlone(new.file(), &open.file).is_ok();
        if !self.can_share {
            return Ok(None);
        }
        let found = new.file().metadata().map_err(|error| Error::file("look at the new file", error))?;
        new.filled(found.len());
        Ok(Some(found.len()))
    }
}
