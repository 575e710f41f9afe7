//! A destination that is switched as a whole (`--atomic`): what does not go together with that.

use std::path::Path;

use dray_core::message::{SyncWish, Tree, sync_flag, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Landing, Origin, TreeWriter};

use super::sync::{has, nothing_deleted, rules};

/// True if the destination is switched as a whole.
pub(super) fn is_switched(tree: &Tree) -> bool {
    has(tree, sync_flag::ATOMIC)
}

/// The landing at `path`, switched as a whole if that is asked for.
pub(super) fn landing(landing: Landing, is_switched: bool, origin: &Origin, path: &Path) -> Result<Landing> {
    if is_switched { landing.as_a_whole(origin, path) } else { Ok(landing) }
}

/// `Usage` if `tree`, whose sources go under `names` as far as they are known, is to be switched as a whole and asks for what makes anything else of it than what is
/// in its one source. What to do does not cross the wire, so it stands in what is said.
pub(super) fn require_alone(tree: &Tree, names: &[Vec<u8>]) -> Result<()> {
    let Some(wish) = tree.sync.as_deref().filter(|_| is_switched(tree)) else { return Ok(()) };
    // A new field has to be thought of here.
    let SyncWish {
        flags,
        rules: told,
        max_delete: _,
        near: _,
        backup,
        basis,
        max_size_bytes,
        min_size_bytes,
        timeout_s: _,
        fake,
    } = wish;
    let has = |flag| flags & flag != 0;
    if !has(sync_flag::DELETE) {
        return usage("needs --delete: what SRC has not is not in the new tree");
    }
    if told.is_some() && !has(sync_flag::DELETE_EXCLUDED) {
        return usage("with patterns needs --delete-excluded: what they leave out is not in the new tree");
    }
    if rules(wish)?.may_protect() {
        let what =
            "does not go with rules that protect something in DST, or are read from files that may have such";
        return usage(&format!("{what}: the new tree has what SRC has (--exclude and --gitignore go)"));
    }
    if names.len() > 1 || names.iter().any(|name| !name.is_empty()) {
        return usage("is for what is in one directory: end the one SRC with a slash");
    }
    let others = [
        (
            tree.flags & tree_flag::RECURSIVE == 0 || has(sync_flag::DIRECTORIES),
            "directories alone: say -r or -a",
        ),
        (has(sync_flag::CHOSEN), "--files-from"),
        (has(sync_flag::UPDATE), "-u"),
        (has(sync_flag::EXISTING), "--existing"),
        (has(sync_flag::IGNORE_EXISTING), "--ignore-existing"),
        (has(sync_flag::REMOVE_SOURCES), "--remove-source-files"),
        (has(sync_flag::IN_PLACE), "--inplace: all of DST is old or new at every moment"),
        (max_size_bytes.is_some() || min_size_bytes.is_some(), "--max-size or --min-size"),
        (backup.is_some(), "--backup"),
        (fake.is_some(), "--fake-super"),
        (
            basis.is_some(),
            "--link-dest, --copy-dest or --compare-dest: what did not change is linked from DST itself",
        ),
    ];
    match others.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => usage(&format!("does not go with {what}")),
        None => Ok(()),
    }
}

fn usage(what: &str) -> Result<()> {
    Err(Error::new(ErrorKind::Usage, format!("--atomic {what}")))
}

/// What is told where an entry failed, so that what was to come at the end does not.
pub(super) fn nothing_done(writer: &TreeWriter) -> Error {
    let Some(unswitched) = writer.unswitched() else { return nothing_deleted() };
    let what = format!("{unswitched}: not everything could be read and written");
    Error::new(ErrorKind::Refused, what).advise("mend what is named above, and run it again")
}
