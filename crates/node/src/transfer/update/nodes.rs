//! Which nodes of the recipe are asked for: those that neither the older version has nor a file that is read meanwhile, and the latter is given
//! a moment to show that.

use std::time::{Duration, Instant};

use dray_core::Result;
use dray_core::recipe::{RecipeId, RecipeReader};

use super::search::Search;
use super::{AHEAD_INTERVAL, Known, OlderVersion, Transfer};

/// How long nodes that were asked for are waited for before it is looked again what else there is to do.
const NODES_INTERVAL: Duration = Duration::from_millis(100);

/// Leaves that are not asked for yet, in object order, as a file that is being read may have them.
#[derive(Debug, Default)]
pub(super) struct HeldLeaves(Vec<RecipeId>);

impl HeldLeaves {
    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl OlderVersion {
    /// Hands `reader` what is here of what it needs next; which nodes are to be asked for now.
    pub(super) fn next_nodes(
        &self,
        known: &Known,
        reader: &mut RecipeReader,
        held: &mut HeldLeaves,
        search: &Search,
    ) -> Result<Vec<RecipeId>> {
        // First: what is found after this was looked at counts the next time.
        let may_find = self.may_find_nodes(search);
        let mut batch = Vec::new();
        let HeldLeaves(held) = held;
        for id in std::mem::take(held) {
            match self.found_node(&id) {
                Some(node) => {
                    reader.accept(&id, &node)?;
                    self.let_go(held, reader, &mut batch)?;
                }
                None => held.push(id),
            }
        }
        while let Some(request) = reader.next_request(&mut |id| known.recipe.contains(id))? {
            if request.is_known {
                reader.accept(&request.id, known.recipe.node(&request.id)?)?;
            } else if let Some(node) = self.found_node(&request.id) {
                reader.accept(&request.id, &node)?;
                self.let_go(held, reader, &mut batch)?;
            } else if request.level == 0 && may_find {
                held.push(request.id);
            } else {
                batch.push(request.id);
            }
        }
        if !may_find {
            self.let_go(held, reader, &mut batch)?;
        }
        Ok(batch)
    }

    /// Nothing more is expected of leaves that are held: the file was read beyond where they would be, or is not waited for any longer. Those that are
    /// not here by now are to be asked for.
    fn let_go(
        &self,
        held: &mut Vec<RecipeId>,
        reader: &mut RecipeReader,
        batch: &mut Vec<RecipeId>,
    ) -> Result<()> {
        for id in held.drain(..) {
            match self.found_node(&id) {
                Some(node) => reader.accept(&id, &node)?,
                None => batch.push(id),
            }
        }
        Ok(())
    }

    fn found_node(&self, id: &RecipeId) -> Option<Vec<u8>> {
        self.disk.as_ref()?.node(id)
    }

    fn may_find_nodes(&self, search: &Search) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.makes_nodes() && search.has_patience(disk))
    }
}

impl Transfer {
    /// The recipe nodes that have come. Unless it is to be `at_once`, waits a moment for one that was asked for, and for one that may be found.
    pub(super) fn await_nodes(
        &self,
        old: &OlderVersion,
        (is_any_asked, held): (bool, &HeldLeaves),
        search: &mut Search,
        at_once: bool,
    ) -> Vec<(RecipeId, Vec<u8>)> {
        let patience = match (is_any_asked, held.is_empty()) {
            _ if at_once => Duration::ZERO,
            (false, true) => Duration::ZERO,
            (false, false) => {
                self.await_found_node(old, search);
                Duration::ZERO
            }
            (true, true) => NODES_INTERVAL,
            (true, false) => AHEAD_INTERVAL,
        };
        self.take_nodes(patience)
    }

    fn await_found_node(&self, old: &OlderVersion, search: &mut Search) {
        let Some(disk) = &old.disk else { return };
        let begun = Instant::now();
        disk.await_news(AHEAD_INTERVAL);
        if self.has_fetched_all() {
            search.waited(begun.elapsed());
        }
    }
}
