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

/// What a synchronisation may ask for; most of it is the receiver's own affair.
const SYNC_FLAGS: u64 = sync_flag::LINKS
    | sync_flag::ATTRIBUTES
    | sync_flag::SIZE_ONLY
    | sync_flag::UPDATE
    | sync_flag::EXISTING
    | sync_flag::IGNORE_EXISTING
    | sync_flag::DELETE
    | sync_flag::DELETE_EXCLUDED
    | sync_flag::ITEMIZE
    | sync_flag::NO_COMPARING
    | sync_flag::INTO_DIRECTORY
    | sync_flag::OMIT_DIRECTORY_TIMES
    | sync_flag::OMIT_LINK_TIMES
    | sync_flag::MAKE_PATH
    | sync_flag::PRUNE_EMPTY
    | sync_flag::PARTIAL
    | sync_flag::DIRECTORIES;

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
        fake,
    } = &**wish;
    if near.is_some() || backup.is_some() || basis.is_some() || timeout_s.is_some() {
        return no("told of directories of its own");
    }
    if fake.is_some() || removal::removes(tree) || flags & !SYNC_FLAGS != 0 {
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
        Box::new(SyncWish { max_delete: None, flags: wish.flags & !sync_flag::IN_PLACE, ..wish })
    });
    Tree { modes: None, owner: None, origin: None, excludes: None, sync, ..tree.clone() }
}
