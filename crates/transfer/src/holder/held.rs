//! What a holder sends, who decides about it, and how other threads have it say something.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use dray_core::chunker::Profile;
use dray_core::hash_tree::{Cv, Geometry, PAIR_BYTES, PairStore, Subtree};
use dray_core::message::{Message, Open};
use dray_core::store::{Extent, Standing, StoredObject};
use dray_core::{Error, ErrorKind, Oid, Result};

use super::recipes::{RecipeCache, RecipeState, RecipeWish};
use crate::recipe::Recipe;
use crate::transport::{Security, Wake};

/// Something a holder can send.
pub trait Held: Send + Sync {
    /// Its shape.
    fn geometry(&self) -> Geometry;
    /// Its name, if that is known: what a group of a one-group object must hash to.
    fn oid(&self) -> Option<Oid>;
    /// File name to suggest.
    fn name(&self) -> Option<Vec<u8>>;
    /// Fills `out` from `offset`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
    /// The extent at `offset`, cut at `end`.
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent>;
    /// How far it can be trusted now.
    fn standing(&self) -> Standing;
    /// The error for bytes that are no longer those of the outboard; see [`StoredObject::mismatch`].
    fn mismatch(&self) -> Error;
    /// Checks the pairs that prove `groups` and mends the outboard; see [`StoredObject::recheck`].
    fn recheck(&self, groups: Subtree) -> Result<bool> {
        let _ = groups;
        Ok(false)
    }
    /// The outboard; `None` if the bytes are only vouched for.
    fn pairs(&self) -> Option<&dyn PairStore>;
    /// A descriptor for `sendfile`.
    fn raw_file(&self) -> Option<BorrowedFd<'_>>;
    /// Hears that `bytes` more of the object were given to the connection, holes counted at the length they stand for.
    /// Whether they arrived is not known.
    fn sent(&self, bytes: u64) {
        let _ = bytes;
    }
    /// Hears the group values of a unit as it is sent (vouched objects).
    fn record_unit(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        let _ = (unit, leaves);
        Ok(())
    }
    /// Pairs of the object's subtrees, 64 bytes each; of a vouched object asked for after its root was given.
    fn compare(&self, subtrees: &[Subtree]) -> Result<Vec<u8>> {
        let pairs =
            self.pairs().ok_or_else(|| Error::new(ErrorKind::Protocol, "there is nothing to compare"))?;
        let mut out = vec![0; subtrees.len() * PAIR_BYTES];
        for (subtree, pair) in subtrees.iter().zip(out.chunks_exact_mut(PAIR_BYTES)) {
            pairs.read_pairs(subtree.pair_index(), pair)?;
        }
        Ok(out)
    }
    /// The object's recipe, or where the making of it stands: to make it the whole object is read, on a thread of its own. Waits
    /// for nothing; asked again while it is being made, with the same `wish`. Errors are of the right to it: where it cannot be made
    /// there is none.
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        let _ = wish;
        Ok(RecipeState::None)
    }
    /// The recipe, if it is made, for as long as `wish`. Begins nothing. Errors are of the right to it.
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        let _ = wish;
        Ok(None)
    }
    /// Why it is not to be had any more, whatever is asked for: a receiver that has nothing else open is told so, and closed.
    fn ended(&self) -> Option<Error> {
        None
    }
    /// The root of a vouched object, when the receiver has everything and its root is `theirs`.
    fn seal(&self, theirs: Oid) -> Result<Oid> {
        let _ = theirs;
        Err(Error::new(ErrorKind::Protocol, "only a provisional object is sealed"))
    }
}

/// A stored object as something to send.
pub struct StoredHeld {
    object: Arc<dyn StoredObject>,
    name: Option<Vec<u8>>,
    recipe: Arc<RecipeCache>,
}

impl StoredHeld {
    /// Sends `object`, suggesting `name`.
    pub fn new(object: Arc<dyn StoredObject>, name: Option<Vec<u8>>) -> StoredHeld {
        StoredHeld { object, name, recipe: Arc::default() }
    }

    /// Shares the recipe with others that send the same object.
    pub fn with_recipe(self, recipe: Arc<RecipeCache>) -> StoredHeld {
        StoredHeld { recipe, ..self }
    }

    /// [`Held::recipe`], which ends unmade when `is_wanted` is false. `on_trouble` hears, from another thread, why the object could not
    /// be read.
    pub fn recipe_while(
        &self,
        wish: &mut RecipeWish,
        is_wanted: impl Fn() -> bool + Send + 'static,
        on_trouble: impl Fn(&Error) + Send + 'static,
    ) -> RecipeState {
        let size_bytes = self.object.size_bytes();
        let Some(profile) = Profile::for_size(size_bytes) else { return RecipeState::None };
        let object = self.object.clone();
        self.recipe.ask(wish, move |maker| {
            let read =
                &mut |offset: u64, out: &mut [u8]| object.read_at(offset, out).inspect_err(&on_trouble);
            let recipe = maker.read(size_bytes, profile, &is_wanted, read)?;
            // A file that changed meanwhile has no recipe under this name.
            match object.standing() {
                Standing::Changed => Err(object.mismatch()).inspect_err(&on_trouble),
                _ => Ok(recipe),
            }
        })
    }
}

impl Held for StoredHeld {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.object.size_bytes())
    }
    fn oid(&self) -> Option<Oid> {
        Some(self.object.oid())
    }
    fn name(&self) -> Option<Vec<u8>> {
        self.name.clone()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.object.read_at(offset, out)
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        self.object.extent_at(offset, end)
    }
    fn standing(&self) -> Standing {
        self.object.standing()
    }
    fn mismatch(&self) -> Error {
        self.object.mismatch()
    }
    fn recheck(&self, groups: Subtree) -> Result<bool> {
        self.object.recheck(groups)
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        Some(self.object.pairs())
    }
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        self.object.raw_file()
    }
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        Ok(self.recipe_while(wish, || true, |_| {}))
    }
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        Ok(self.recipe.made_for(wish))
    }
}

/// Decides who gets what.
pub trait Provider: Send + Sync {
    /// Finds what `open` names and checks the right to it. `security` is `None` on a channel that ssh authenticated.
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>>;
    /// True for what is no object, of which somebody else decides ([`serve_or_leave`](super::serve_or_leave)). That may depend on
    /// nothing but the sort of the name: it is asked of whoever has shown no right.
    fn is_other(&self, open: &Open) -> bool {
        let _ = open;
        false
    }
    /// Hears a message of the copy protocol; refused unless this is the ssh channel of a copy.
    fn copy(&self, message: Message) -> Result<()> {
        let _ = message;
        Err(Error::new(ErrorKind::Protocol, "copy message outside a copy"))
    }
    /// Waits for the clear-text data connection of a receiver that asked for one: returns its token for the grant
    /// and the means to wait for it. `None` if this side does not allow clear-text data.
    fn clear_data(&self) -> Option<ClearGrantor> {
        None
    }
}

/// A token to grant, and what waits for the connection that shows it.
pub type ClearGrantor = ([u8; 16], Box<dyn FnOnce() -> Result<std::net::TcpStream> + Send>);

/// Messages another thread wants this side of a channel to send.
#[derive(Debug)]
pub struct Outbox {
    messages: Mutex<Vec<Message>>,
    pub(super) wake: Wake,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> io::Result<Outbox> {
        Ok(Outbox { messages: Mutex::new(Vec::new()), wake: Wake::new()? })
    }

    /// Queues `message`; it leaves between two chunks of data at the latest.
    pub fn send(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.wake.signal();
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
