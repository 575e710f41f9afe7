//! Objects that live as long as the process: the reference every other store is compared with, and what tests and
//! small embedded uses need.

mod partial;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dray_core::hash_tree::{IncrementalHasher, MemoryPairs, PairStore};
use dray_core::store::{
    Extent, ObjectSummary, ObjectWriter, Share, Standing, Store, StoreCapabilities, StoredObject,
};
use dray_core::{Error, ErrorKind, Oid, Result};

pub use partial::MemoryPartial;

/// A store in memory. Clones are the same store.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<HashMap<Oid, Entry>>>,
}

#[derive(Debug)]
struct Entry {
    object: Arc<MemoryObject>,
    share: Option<Share>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<Oid, Entry>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { persistent: false, borrowed: false, raw_file: false }
    }

    fn open(&self, oid: &Oid) -> Result<Arc<dyn StoredObject>> {
        match self.objects().get(oid) {
            Some(entry) => Ok(entry.object.clone()),
            None => Err(not_found(oid)),
        }
    }

    fn put(&self) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(MemoryWriter {
            store: self.clone(),
            data: Vec::new(),
            pairs: Vec::new(),
            hasher: IncrementalHasher::default(),
        }))
    }

    fn list(&self) -> Result<Vec<ObjectSummary>> {
        let objects = self.objects();
        Ok(objects
            .values()
            .map(|entry| ObjectSummary {
                oid: entry.object.oid,
                size_bytes: entry.object.size_bytes(),
                borrowed_path: None,
            })
            .collect())
    }

    fn remove(&self, oid: &Oid) -> Result<bool> {
        Ok(self.objects().remove(oid).is_some())
    }

    fn share(&self, oid: &Oid) -> Result<Option<Share>> {
        self.objects().get(oid).map(|entry| entry.share.clone()).ok_or_else(|| not_found(oid))
    }

    /// `update` runs while the store is locked, so it must not call the store.
    fn update_share(
        &self,
        oid: &Oid,
        update: &mut dyn FnMut(Option<Share>) -> Result<Option<Share>>,
    ) -> Result<Option<Share>> {
        let mut objects = self.objects();
        let entry = objects.get_mut(oid).ok_or_else(|| not_found(oid))?;
        entry.share = update(entry.share.clone())?;
        Ok(entry.share.clone())
    }
}

fn not_found(oid: &Oid) -> Error {
    Error::new(ErrorKind::NotFound, format!("object {oid} is not in this store"))
}

#[derive(Debug)]
struct MemoryObject {
    oid: Oid,
    data: Vec<u8>,
    pairs: MemoryPairs,
}

impl StoredObject for MemoryObject {
    fn oid(&self) -> Oid {
        self.oid
    }

    fn size_bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.data.get(start..start.checked_add(out.len())?));
        let bytes = bytes.ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("read of {}+{offset} is outside the object", out.len()))
        })?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        Ok(Extent { range: offset..end, is_hole: false })
    }

    fn pairs(&self) -> &dyn PairStore {
        &self.pairs
    }

    fn standing(&self) -> Standing {
        Standing::Trusted
    }

    fn is_borrowed(&self) -> bool {
        false
    }
}

struct MemoryWriter {
    store: MemoryStore,
    data: Vec<u8>,
    pairs: Vec<u8>,
    hasher: IncrementalHasher,
}

impl ObjectWriter for MemoryWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.data.try_reserve(data.len()).map_err(|error| {
            Error::new(ErrorKind::NoSpace, "the object does not fit memory").caused_by(error)
        })?;
        self.data.extend_from_slice(data);
        let pairs = &mut self.pairs;
        self.hasher.update(data, &mut |pair| {
            pairs.extend_from_slice(pair);
            Ok(())
        })
    }

    fn commit(self: Box<Self>) -> Result<Arc<dyn StoredObject>> {
        let MemoryWriter { store, data, mut pairs, hasher } = *self;
        let (_, oid) = hasher.finish(&mut |pair| {
            pairs.extend_from_slice(pair);
            Ok(())
        })?;
        let object = MemoryObject { oid, data, pairs: MemoryPairs::from(pairs) };
        let mut objects = store.objects();
        let entry = objects.entry(oid).or_insert_with(|| Entry { object: Arc::new(object), share: None });
        Ok(entry.object.clone())
    }
}
