//! What a liar holds and whom it lets in: an honest object, whose recipe may be that of other bytes.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dray_core::chunker::Profile;
use dray_core::hash_tree::{Geometry, PairStore, Subtree};
use dray_core::limits::GROUP_BYTES;
use dray_core::message::{ObjectName, Open};
use dray_core::range::RangeSet;
use dray_core::rights::Secret;
use dray_core::store::{Extent, Standing};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_transfer::holder::{Held, Provider, RecipeState, RecipeWish, StoredHeld};
use dray_transfer::recipe::Recipe;
use dray_transfer::transport::Security;

/// The recipe of the `size_bytes` bytes that `read` gives, cut as an object of that size is.
pub fn recipe_of(size_bytes: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Arc<Recipe>> {
    let too_large = || Error::new(ErrorKind::Usage, "an object of this size has no recipe");
    let profile = Profile::for_size(size_bytes).ok_or_else(too_large)?;
    Recipe::read(size_bytes, profile, read, &mut |_| {}).map(Arc::new)
}

/// An object whose bytes are its own and whose recipe is not.
pub struct WithRecipes {
    stored: StoredHeld,
    recipes: Vec<Arc<Recipe>>,
    asked: AtomicUsize,
    /// Groups of which something was read.
    read: Mutex<RangeSet>,
}

impl WithRecipes {
    /// `stored`, with the first of `recipes` when it is asked for the first time, and so on; the last one stays. None at all
    /// means its own.
    pub fn new(stored: StoredHeld, recipes: Vec<Arc<Recipe>>) -> WithRecipes {
        WithRecipes { stored, recipes, asked: AtomicUsize::new(0), read: Mutex::default() }
    }

    fn next_recipe(&self) -> Option<Arc<Recipe>> {
        let asked = self.asked.fetch_add(1, Ordering::AcqRel);
        self.recipes.get(asked).or(self.recipes.last()).cloned()
    }

    /// How often it was asked for its recipe.
    pub fn described(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    /// The groups of which something was read so far, for whoever asked.
    pub fn read_groups(&self) -> RangeSet {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Held for WithRecipes {
    fn geometry(&self) -> Geometry {
        self.stored.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        self.stored.oid()
    }
    fn name(&self) -> Option<Vec<u8>> {
        self.stored.name()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64).div_ceil(GROUP_BYTES);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(offset / GROUP_BYTES..end);
        self.stored.read_at(offset, out)
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        self.stored.extent_at(offset, end)
    }
    /// Nothing is looked at before it is sent: a liar has no doubts.
    fn standing(&self) -> Standing {
        Standing::Trusted
    }
    fn mismatch(&self) -> Error {
        self.stored.mismatch()
    }
    fn recheck(&self, _: Subtree) -> Result<bool> {
        Ok(false)
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        self.stored.pairs()
    }
    /// Every byte goes through the channel, where it may be altered.
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        Ok(match self.next_recipe() {
            Some(recipe) => RecipeState::Made(recipe),
            None => self.stored.recipe_while(wish, || true, |_| {}),
        })
    }
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        self.next_recipe().map_or_else(|| self.stored.made_recipe(wish), |recipe| Ok(Some(recipe)))
    }
}

/// Gives one object to whoever proves its secret, or to everybody.
pub(crate) struct ForWhoProves {
    /// What is given.
    pub(crate) held: Arc<dyn Held>,
    /// This node.
    pub(crate) node: NodeId,
    /// What is to be proven; `None` for a public object.
    pub(crate) secret: Option<Secret>,
}

impl Provider for ForWhoProves {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let refused = || Error::new(ErrorKind::Refused, "no such object here, or the secret is wrong");
        let security = security.ok_or_else(refused)?;
        let is_named = self.held.oid().is_some_and(|oid| open.object == ObjectName::Oid(oid));
        let is_proven = self.secret.as_ref().is_none_or(|secret| {
            let proof = security.expected_proof(secret, self.node, &open.object);
            open.proof.as_ref().is_some_and(|shown| proof.matches(shown))
        });
        if is_named && is_proven { Ok(self.held.clone()) } else { Err(refused()) }
    }
}
