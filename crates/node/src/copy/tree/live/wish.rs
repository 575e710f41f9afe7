//! What a receiver may wish of a shared directory: all of it or less, and nothing that changes it.

use dray_core::message::{CopyRole, SyncWish, Tree, sync_flag, tree_flag};
use dray_core::{Error, ErrorKind, Result};

use super::super::{removal, sync};

/// What a wish may ask for beside what the receiver does alone.
const TREE_FLAGS: u64 = tree_flag::RECURSIVE
    | tree_flag::TIMES
    | tree_flag::MODES
    | tree_flag::SPECIAL_MODES
    | tree_flag::NUMERIC_IDS
    | tree_flag::XATTRS
    | tree_flag::HARD_LINKS
    | tree_flag::SPECIALS
    | tree_flag::ONE_FILE_SYSTEM
    | tree_flag::INTO_DIRECTORY
    | tree_flag::WHOLE_FILE
    | tree_flag::FSYNC
    | tree_flag::DRY_RUN;

/// `Protocol` unless the wish is one for the directory itself, and read-only. Checked by who gives: the other side is a stranger.
pub(super) fn check(tree: &Tree) -> Result<()> {
    let no = |what: &str| Err(Error::new(ErrorKind::Protocol, format!("receiver {what}")));
    // A new field has to be thought of here.
    let Tree { role, paths, names, flags, excludes, modes, owner, rate_bytes: _, sync, origin, digests: _ } =
        tree;
    if *role != CopyRole::Send {
        return no("wants to write to a shared directory");
    }
    // Paths that rules see begin with the name, so that a long one would cost time at each entry.
    if !matches!(&paths[..], [path] if path.as_slice() == b".")
        || !matches!(&names[..], [name] if name.is_empty())
    {
        return no("asked for something else than the directory that is shared");
    }
    if flags & !TREE_FLAGS != 0
        || modes.is_some()
        || owner.is_some()
        || origin.is_some()
        || excludes.is_some()
    {
        return no("asked for what shared directories do not have");
    }
    let Some(wish) = sync else { return no("did not ask for a synchronisation") };
    let SyncWish {
        flags,
        rules: _,
        max_delete: _,
        near,
        backup,
        basis,
        max_size_bytes: _,
        min_size_bytes: _,
        timeout_s,
    } = &**wish;
    if near.is_some() || backup.is_some() || basis.is_some() || timeout_s.is_some() {
        return no("told of directories of its own");
    }
    if removal::removes(tree) || flags & (sync_flag::CHOSEN | sync_flag::REMOVE_SOURCES) != 0 {
        return no("asked for what shared directories do not do");
    }
    if sync::rules(wish)?.reads_files() {
        return no("wants rules read from files");
    }
    Ok(())
}

/// What the sender is told of what is to be done: nothing of the receiver's directories, and nothing that it does alone.
pub(super) fn as_told(tree: &Tree) -> Tree {
    let sync = tree.sync.as_ref().map(|wish| {
        let wish =
            SyncWish { near: None, backup: None, basis: None, timeout_s: None, ..SyncWish::clone(wish) };
        Box::new(SyncWish { max_delete: None, ..wish })
    });
    Tree { modes: None, owner: None, origin: None, excludes: None, sync, ..tree.clone() }
}
