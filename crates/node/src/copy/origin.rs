//! The origin of a copy: a file whose name is not known yet. It is hashed as it is sent; the group values are kept in
//! the data directory, so that a killed sender need not read again what it had sent (design decisions 3 and 10).

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use dray_core::hash_tree::{Collector, Cv, Geometry, MemoryPairs, PAIR_BYTES, PairStore, Subtree, group_cv};
use dray_core::limits::GROUP_BYTES;
use dray_core::message::{ObjectName, Offer};
use dray_core::range::RangeSet;
use dray_core::store::{Extent, FileIdentity, Standing};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_store::local::SourceFile;
use dray_transfer::holder::Held;

/// Smaller files are read again rather than remembered.
const REMEMBER_FROM_BYTES: u64 = 32 << 20;
/// Values of copies that nobody resumed are removed after this long.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
const MAGIC: &[u8; 16] = b"dray origin 1\n\0\0";
/// Magic, boot id, unit map; the pairs begin at the next multiple of this.
const ALIGN: u64 = 4096;

/// A file being sent.
pub(super) struct Origin {
    file: SourceFile,
    id: [u8; 32],
    collector: Collector<Pairs>,
    /// Units whose values are known, and the state of the file that they are values of.
    recorded: Mutex<Recorded>,
    /// Why the file could not be sent, once that happened.
    failure: Mutex<Option<Error>>,
}

struct Recorded {
    units: RangeSet,
    state: FileIdentity,
}

enum Pairs {
    Memory(MemoryPairs),
    Kept(Kept),
}

/// Values in a file of the data directory.
struct Kept {
    file: File,
    path: PathBuf,
    pairs_start: u64,
}

impl Origin {
    /// Opens `path` to be sent by `node`; finds the values an earlier, killed run had kept.
    pub(super) fn open(path: &Path, node: NodeId, data_dir: &Path) -> Result<Origin> {
        let file = SourceFile::open(path)?;
        let identity = file.identity();
        let geometry = Geometry::new(identity.size_bytes);
        let id = identity.provisional_id(&node);
        let mut recorded = RangeSet::new();
        let mut pairs = None;
        if identity.size_bytes >= REMEMBER_FROM_BYTES {
            // Without the file a kill costs one more reading; nothing else.
            if let Ok((kept, known)) = Kept::open(&data_dir.join("origins"), &id, geometry) {
                recorded = known;
                pairs = Some(Pairs::Kept(kept));
            }
        }
        let pairs = match pairs {
            Some(pairs) => pairs,
            None => Pairs::Memory(MemoryPairs::new(geometry)?),
        };
        Ok(Origin {
            file,
            id,
            collector: Collector::new(geometry, pairs),
            recorded: Mutex::new(Recorded { units: recorded, state: identity }),
            failure: Mutex::default(),
        })
    }

    /// Its name for the time of the transfer.
    pub(super) fn object(&self) -> ObjectName {
        ObjectName::Provisional(self.id)
    }

    /// What the receiver is told. A small file goes along whole.
    pub(super) fn offer(&self) -> Result<Offer> {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::MetadataExt;
        let metadata =
            self.file.file().metadata().map_err(|error| Error::io("read the file's mode", error))?;
        let identity = self.file.identity();
        let name = self.file.path().file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let mut offer = Offer {
            object: self.object(),
            size_bytes: identity.size_bytes,
            name: name.into(),
            mode: metadata.mode() & 0o7777,
            mtime_s: identity.mtime_ns.div_euclid(1_000_000_000),
            mtime_ns: u32::try_from(identity.mtime_ns.rem_euclid(1_000_000_000)).unwrap_or(0),
            inline: None,
        };
        if identity.size_bytes <= dray_core::limits::INLINE_BYTES_MAX as u64 {
            let len = usize::try_from(identity.size_bytes).unwrap_or(0);
            let mut bytes = vec![0; len];
            self.file.read_at(0, &mut bytes)?;
            if self.file.identity_now()? != self.file.identity() {
                return Err(self.file.changed());
            }
            offer.object = ObjectName::Oid(Oid::of(&bytes));
            offer.inline = Some(bytes.into());
        }
        Ok(offer)
    }

    /// Why the file could not be sent, if that is what ended the copy.
    pub(super) fn failure(&self) -> Option<Error> {
        lock(&self.failure).take()
    }

    /// Keeps a failure for this side too, and passes it on.
    fn note<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            let mut kept = Error::new(error.kind(), error.to_string());
            if let Some(advice) = error.advice() {
                kept = kept.advise(advice);
            }
            lock(&self.failure).get_or_insert(kept);
        }
        result
    }

    /// The receiver has the file under its name: the values are not needed any more.
    pub(super) fn delivered(&self) {
        if let Pairs::Kept(kept) = self.collector.pairs() {
            let _ = std::fs::remove_file(&kept.path);
        }
    }

    /// The root of the file as it is now. If the file is no longer what the recorded values are of, all of it is read
    /// again; the receiver then fetches what differs (design decision 3). `Changed` if it does not hold still for as
    /// long as that takes, or has another size.
    fn root(&self) -> Result<Oid> {
        for _ in 0..ROOT_TRIES_MAX {
            let before = self.file.identity_now()?;
            if before.size_bytes != self.file.identity().size_bytes {
                return Err(self.file.changed());
            }
            self.forget_unless(before)?;
            self.record_missing()?;
            let root = self.collector.finish()?;
            if self.file.identity_now()? == before {
                return Ok(root);
            }
        }
        Err(self.file.changed())
    }

    /// Forgets the recorded values unless they are of the file's state `now`.
    fn forget_unless(&self, now: FileIdentity) -> Result<()> {
        let mut recorded = lock(&self.recorded);
        if recorded.state == now {
            return Ok(());
        }
        recorded.units = RangeSet::new();
        recorded.state = now;
        match self.collector.pairs() {
            Pairs::Kept(kept) => kept.forget(self.collector.geometry()),
            Pairs::Memory(_) => Ok(()),
        }
    }

    /// Reads what was not sent in this run, and what a killed run had sent but not recorded.
    fn record_missing(&self) -> Result<()> {
        let geometry = self.collector.geometry();
        let missing = lock(&self.recorded).units.gaps(0..geometry.units());
        let missing: Vec<u64> = missing.iter().flatten().collect();
        let next = AtomicUsize::new(0);
        let threads =
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(missing.len()).min(8);
        let work = || {
            let mut bytes = vec![0; GROUP_BYTES as usize];
            while let Some(&unit) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let node = geometry.unit(unit);
                let mut leaves = Vec::with_capacity(node.groups as usize);
                for group in node.start..node.end() {
                    let bytes = &mut bytes[..geometry.group_bytes(group)];
                    self.file.read_at(group * GROUP_BYTES, bytes)?;
                    leaves.push(group_cv(geometry, group, bytes));
                }
                self.record(unit, &leaves)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut result = work();
            for helper in helpers {
                let failed = || Err(Error::new(ErrorKind::Internal, "a thread failed"));
                result = result.and(helper.join().unwrap_or_else(|_| failed()));
            }
            result
        })
    }

    fn record(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        self.collector.record_unit(unit, leaves)?;
        let mut recorded = lock(&self.recorded);
        recorded.units.insert(unit..unit + 1);
        if let Pairs::Kept(kept) = self.collector.pairs() {
            // After the pairs, so that a marked unit always has its values; one byte of the map at a time, under the
            // lock, so that neighbours are not lost.
            let first = unit - unit % 8;
            let byte =
                (0..8).fold(0, |byte, bit| byte | u8::from(recorded.units.contains(first + bit)) << bit);
            kept.write(&[byte], MAP_START + unit / 8)?;
        }
        Ok(())
    }
}

/// Where the unit map begins: behind magic and boot id.
const MAP_START: u64 = 32;
/// Times a file that changes is read again at the end of one round.
const ROOT_TRIES_MAX: usize = 3;

impl Kept {
    fn open(dir: &Path, id: &[u8; 32], geometry: Geometry) -> Result<(Kept, RangeSet)> {
        let failed = |error: std::io::Error| Error::io("keep values", error);
        std::fs::create_dir_all(dir).map_err(failed)?;
        clean(dir);
        let name: String = id[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = dir.join(name);
        let mut options = std::fs::OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        // Two copies of the same file at once: one remembers, the other does without.
        file.try_lock().map_err(|_| Error::new(ErrorKind::Refused, "another copy of this file runs"))?;
        let map_bytes = geometry.units().div_ceil(8);
        let pairs_start = (MAP_START + map_bytes).next_multiple_of(ALIGN);
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&boot_id());
        let mut found = [0; MAP_START as usize];
        let usable = file.read_exact_at(&mut found, 0).is_ok() && found[..] == header[..];
        let mut recorded = RangeSet::new();
        if usable {
            let mut map = vec![0; usize::try_from(map_bytes).unwrap_or(0)];
            file.read_exact_at(&mut map, MAP_START).map_err(failed)?;
            for unit in 0..geometry.units() {
                if usize::try_from(unit / 8).is_ok_and(|at| map[at] >> (unit % 8) & 1 == 1) {
                    recorded.insert(unit..unit + 1);
                }
            }
        } else {
            file.set_len(0).map_err(failed)?;
            file.set_len(pairs_start + geometry.outboard_bytes()).map_err(failed)?;
            file.write_all_at(&header, 0).map_err(failed)?;
        }
        Ok((Kept { file, path, pairs_start }, recorded))
    }
}

impl Kept {
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| Error::io(format!("write {}", self.path.display()), error))
    }

    fn forget(&self, geometry: Geometry) -> Result<()> {
        let map_bytes = usize::try_from(geometry.units().div_ceil(8)).unwrap_or(0);
        self.write(&vec![0; map_bytes], MAP_START)
    }
}

/// What was written before a crash of the machine may not have reached the disk, so another boot starts afresh.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = blake3::hash(&text);
    let mut id = [0; 16];
    id.copy_from_slice(&hash.as_bytes()[..16]);
    id
}

fn clean(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if age.is_some_and(|age| age > KEEP) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl PairStore for Pairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Pairs::Memory(memory) => memory.read_pairs(first_index, out),
            Pairs::Kept(kept) => kept
                .file
                .read_exact_at(out, kept.pairs_start + first_index * PAIR_BYTES as u64)
                .map_err(|error| Error::io(format!("read {}", kept.path.display()), error)),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Pairs::Memory(memory) => memory.write_at(offset, bytes),
            Pairs::Kept(kept) => kept.write(bytes, kept.pairs_start + offset),
        }
    }
}

impl Held for Origin {
    fn geometry(&self) -> Geometry {
        self.collector.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        None
    }
    fn name(&self) -> Option<Vec<u8>> {
        None
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.note(self.file.read_at(offset, out))
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        self.note(self.file.extent_at(offset, end))
    }
    fn standing(&self) -> Standing {
        Standing::Trusted
    }
    fn mismatch(&self) -> Error {
        Error::new(ErrorKind::Changed, "the file changed while it was sent")
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        None
    }
    fn raw_file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
    fn record_unit(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        self.record(unit, leaves)
    }
    fn seal(&self, _: Oid) -> Result<Oid> {
        self.note(self.root())
    }
    fn compare(&self, subtrees: &[Subtree]) -> Result<Vec<u8>> {
        let mut pairs = vec![0; subtrees.len() * PAIR_BYTES];
        for (subtree, pair) in subtrees.iter().zip(pairs.chunks_exact_mut(PAIR_BYTES)) {
            self.collector.pairs().read_pairs(subtree.pair_index(), pair)?;
        }
        Ok(pairs)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
