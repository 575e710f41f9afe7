//! What a sender gives to one way, counted: the receiver says how far it is, and not what it took from what was there.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::hash_tree::{Cv, Geometry, PairStore, Subtree};
use dray_core::store::{Extent, Standing};
use dray_core::{Error, Oid, Result};
use dray_transfer::holder::{Held, RecipeState, RecipeWish};
use dray_transfer::recipe::Recipe;

use super::origin::Origin;

/// The file, over one way.
pub(super) struct Counted {
    pub(super) origin: Arc<Origin>,
    /// Bytes of it that were given to this way, each as often as it was.
    pub(super) sent_bytes: Arc<AtomicU64>,
}

impl Held for Counted {
    fn geometry(&self) -> Geometry {
        self.origin.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        self.origin.oid()
    }
    fn name(&self) -> Option<Vec<u8>> {
        self.origin.name()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.origin.read_at(offset, out)
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        self.origin.extent_at(offset, end)
    }
    fn standing(&self) -> Standing {
        self.origin.standing()
    }
    fn mismatch(&self) -> Error {
        self.origin.mismatch()
    }
    fn recheck(&self, groups: Subtree) -> Result<bool> {
        self.origin.recheck(groups)
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        self.origin.pairs()
    }
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        self.origin.raw_file()
    }
    fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    fn record_unit(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        self.origin.record_unit(unit, leaves)
    }
    fn compare(&self, subtrees: &[Subtree]) -> Result<Vec<u8>> {
        self.origin.compare(subtrees)
    }
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        self.origin.clone().recipe(wish)
    }
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        self.origin.made_recipe(wish)
    }
    fn ended(&self) -> Option<Error> {
        Held::ended(&*self.origin)
    }
    fn seal(&self, theirs: Oid) -> Result<Oid> {
        self.origin.seal(theirs)
    }
}
