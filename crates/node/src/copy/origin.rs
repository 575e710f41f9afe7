//! The origin of a copy: a file whose name is not known yet. It is hashed as it is sent; the group values are kept in
//! the data directory, so that a killed sender need not read again what it had sent (design decisions 3 and 10).

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dray_core::chunker::Profile;
use dray_core::hash_tree::{Collector, Cv, Geometry, PAIR_BYTES, PairStore, Subtree, group_cv};
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::message::{ObjectName, Offer};
use dray_core::range::RangeSet;
use dray_core::store::{Extent, FileIdentity, Standing};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_store::local::SourceFile;
use dray_transfer::holder::{Held, RecipeCache, RecipeMaker, RecipeState, RecipeWish};
use dray_transfer::recipe::Recipe;

use super::values::Values;
use crate::{Stop, lock};

/// Smaller files are read again rather than remembered.
const REMEMBER_FROM_BYTES: u64 = 32 << 20;
/// Times a file that changes is read again at the end of one round.
const ROOT_TRIES_MAX: usize = 3;

/// A file being sent.
pub(super) struct Origin {
    file: SourceFile,
    id: [u8; 32],
    collector: Collector<Values>,
    /// Units whose values are known, and the state of the file that they are values of.
    recorded: Mutex<Recorded>,
    /// Why the file could not be sent, once that happened.
    failure: Mutex<Option<Error>>,
    /// What the receiver was told the file is, with the offer or at the end.
    named: Mutex<Option<Oid>>,
    /// Made when it is first asked for.
    recipe: Arc<RecipeCache>,
    /// The file is being read again for its name, or for its recipe, which may take long.
    is_busy: AtomicBool,
    /// Ends the reading of what is left to hash.
    pub(super) stop: Stop,
}

/// Where values are kept.
fn values_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("origins")
}

/// Removes what a run that was cut off had kept of the file called `id`, which arrived another way.
pub(super) fn forget(id: &[u8; 32], data_dir: &Path) {
    super::values::remove(&values_dir(data_dir), id);
}

struct Recorded {
    units: RangeSet,
    state: FileIdentity,
}

impl Origin {
    /// Opens `path` to be sent by `node`; finds the values an earlier, killed run had kept.
    pub(super) fn open(path: &Path, node: NodeId, data_dir: &Path) -> Result<Origin> {
        Origin::of(SourceFile::open(path)?, node, data_dir)
    }

    /// The same of a file that is open already.
    pub(super) fn of(file: SourceFile, node: NodeId, data_dir: &Path) -> Result<Origin> {
        let identity = file.identity();
        let geometry = Geometry::new(identity.size_bytes);
        let id = identity.provisional_id(&node);
        let is_kept = identity.size_bytes >= REMEMBER_FROM_BYTES;
        let dir = is_kept.then(|| values_dir(data_dir));
        let (pairs, recorded) = Values::open(dir.as_deref(), &id, geometry)?;
        Ok(Origin {
            file,
            id,
            collector: Collector::new(geometry, pairs),
            recorded: Mutex::new(Recorded { units: recorded, state: identity }),
            failure: Mutex::default(),
            named: Mutex::default(),
            recipe: Arc::default(),
            is_busy: AtomicBool::new(false),
            stop: Stop::new(),
        })
    }

    /// Its name for the time of the transfer.
    pub(super) fn object(&self) -> ObjectName {
        ObjectName::Provisional(self.id)
    }

    /// What the receiver is told. A small file goes along whole.
    pub(super) fn offer(&self) -> Result<Offer> {
        let identity = self.file.identity();
        let mut offer = offer_of(&self.file, self.object())?;
        if identity.size_bytes <= dray_core::limits::INLINE_BYTES_MAX as u64 {
            let len = usize::try_from(identity.size_bytes).unwrap_or(0);
            let mut bytes = vec![0; len];
            self.file.read_at(0, &mut bytes)?;
            if self.file.identity_now()? != self.file.identity() {
                return Err(self.file.changed());
            }
            let oid = Oid::of(&bytes);
            offer.object = ObjectName::Oid(oid);
            *lock(&self.named) = Some(oid);
            offer.inline = Some(bytes.into());
        }
        Ok(offer)
    }

    /// True while the file is read again for its name: nobody can be heard meanwhile.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    /// True if `oid` is what the receiver was told the file is.
    pub(super) fn is_named(&self, oid: &Oid) -> bool {
        lock(&self.named).as_ref() == Some(oid)
    }

    /// Why the file could not be sent, if that is what ended the copy.
    pub(super) fn failure(&self) -> Option<Error> {
        lock(&self.failure).take()
    }

    /// Keeps a failure for this side too, and passes it on.
    fn note<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.ended(error);
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
        self.collector.pairs().discard();
    }

    /// The copy ended with `error`. After a change the file has another name in transfers, under which nobody finds the
    /// values.
    pub(super) fn ended(&self, error: &Error) {
        if error.kind() == ErrorKind::Changed {
            self.collector.pairs().discard();
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
        self.collector.pairs().forget()
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
                if self.stop.is_set() {
                    return Err(Error::new(ErrorKind::Interrupted, "interrupted while the file was hashed"));
                }
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

    /// Reads the unit at `offset` for the recipe, and keeps its values, which the root will need.
    fn read_unit(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted while the file was read"));
        }
        self.file.read_at(offset, out)?;
        let (geometry, unit) = (self.collector.geometry(), offset / UNIT_BYTES);
        if lock(&self.recorded).units.contains(unit) {
            return Ok(());
        }
        let groups = out.chunks(GROUP_BYTES as usize).zip(geometry.unit(unit).start..);
        let leaves: Vec<Cv> = groups.map(|(bytes, group)| group_cv(geometry, group, bytes)).collect();
        self.record(unit, &leaves)
    }

    fn record(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        self.collector.record_unit(unit, leaves)?;
        let mut recorded = lock(&self.recorded);
        recorded.units.insert(unit..unit + 1);
        // After the pairs, so that a marked unit always has its values; one byte of the map at a time, under the lock,
        // so that neighbours are not lost.
        let first = unit - unit % 8;
        let byte = (0..8).fold(0, |byte, bit| byte | u8::from(recorded.units.contains(first + bit)) << bit);
        self.collector.pairs().mark(unit / 8, byte)
    }
}

/// What a receiver is told of `file`, which it is to call `object`.
pub(super) fn offer_of(file: &SourceFile, object: ObjectName) -> Result<Offer> {
    let metadata = file.file().metadata().map_err(|error| Error::io("read the file's mode", error))?;
    let identity = file.identity();
    let name = file.path().file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    Ok(Offer {
        object,
        size_bytes: identity.size_bytes,
        name: name.into(),
        mode: metadata.mode() & 0o7777,
        mtime_s: identity.mtime_ns.div_euclid(1_000_000_000),
        mtime_ns: u32::try_from(identity.mtime_ns.rem_euclid(1_000_000_000)).unwrap_or(0),
        inline: None,
    })
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
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        let size_bytes = self.collector.geometry().size_bytes();
        let Some(profile) = Profile::for_size(size_bytes) else { return Ok(RecipeState::None) };
        let origin = self.clone();
        let make = move |maker: &mut RecipeMaker| {
            origin.is_busy.store(true, Ordering::Release);
            let read = &mut |offset: u64, out: &mut [u8]| origin.read_unit(offset, out);
            let recipe = maker.read(size_bytes, profile, &|| true, read);
            origin.is_busy.store(false, Ordering::Release);
            recipe
        };
        Ok(self.recipe.ask(wish, make))
    }
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        Ok(self.recipe.made_for(wish))
    }
    fn seal(&self, _: Oid) -> Result<Oid> {
        self.is_busy.store(true, Ordering::Release);
        let root = self.note(self.root());
        self.is_busy.store(false, Ordering::Release);
        let root = root?;
        *lock(&self.named) = Some(root);
        Ok(root)
    }
    fn compare(&self, subtrees: &[Subtree]) -> Result<Vec<u8>> {
        let mut pairs = vec![0; subtrees.len() * PAIR_BYTES];
        for (subtree, pair) in subtrees.iter().zip(pairs.chunks_exact_mut(PAIR_BYTES)) {
            self.collector.pairs().read_pairs(subtree.pair_index(), pair)?;
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue, "130 interrupted": the hashing at the end of a copy can be stopped.
    #[test]
    fn hashing_stops_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::File::create(&path).unwrap().set_len(3 << 30).unwrap();
        let origin = Origin::open(&path, NodeId::from_bytes([1; 32]), dir.path()).unwrap();
        origin.stop.set();
        assert_eq!(origin.seal(Oid::of(b"")).unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(lock(&origin.recorded).units.count(), 0);
    }

    /// Documented: what a copy keeps is removed at its end, also when that is `changed`; a kill leaves it.
    #[test]
    fn a_changed_file_leaves_no_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(REMEMBER_FROM_BYTES).unwrap();
        let origin = Origin::open(&path, NodeId::from_bytes([1; 32]), dir.path()).unwrap();
        let kept = || std::fs::read_dir(dir.path().join("origins")).unwrap().count();
        assert_eq!(kept(), 1);
        file.set_len(REMEMBER_FROM_BYTES + 1).unwrap();
        assert_eq!(origin.seal(Oid::of(b"")).unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(kept(), 0);
    }
}
