//! The mark of a tree that a run was cut off in: left on the root that took the destination's own name when that was made, removed as the last
//! act of whichever run fills that root to its own end.

use std::io;
use std::sync::atomic::Ordering;

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::directory::Directory;
use super::write::TreeWriter;

/// The mark; never copied.
pub(super) const UNFINISHED_TREE: &str = "user.dray.unfinished-tree";

/// First byte of its value.
const VERSION: u8 = 1;

/// Roots that lose the mark at the end of one run: it has one, unless somebody collects trees that were cut off.
const MARKED_ROOTS_MAX: usize = 64;

/// Where the tree of the only source landed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Landed {
    /// In a destination that was there, or as a file: the same command goes there again.
    #[default]
    There,
    /// Under the destination's own name, which was made and marked.
    Made,
    /// Under the destination's own name, which was made; it cannot be marked, or nobody knows what the source is.
    MadeUnmarked,
    /// Under the destination's own name, which an earlier copy of the same source had made and not brought to its end.
    Again,
}

/// What the mark says on the directory of this inode number: a copy of the mark on another one says nothing.
fn value(inode: u64, source: &[u8; 32]) -> [u8; 33] {
    let mut hasher = blake3::Hasher::new_derive_key("drayman 2026-11-22 unfinished tree 1");
    hasher.update(&inode.to_be_bytes()).update(source);
    let mut value = [VERSION; 33];
    value[1..].copy_from_slice(hasher.finalize().as_bytes());
    value
}

/// Leaves the mark; false if the file system keeps none.
pub(super) fn mark(root: &Directory, source: &[u8; 32]) -> bool {
    let Ok(found) = root.stat_self() else { return false };
    fsetxattr(root, UNFINISHED_TREE, &value(found.stx_ino, source), XattrFlags::empty()).is_ok()
}

/// True if a run that copied this very source to this very directory was cut off.
pub(super) fn is_of(root: &Directory, source: &[u8; 32]) -> bool {
    let mut found = [0; 34];
    let Ok(len) = fgetxattr(root, UNFINISHED_TREE, &mut found[..]) else { return false };
    root.stat_self().is_ok_and(|root| found[..len] == value(root.stx_ino, source))
}

/// True if there is a mark, whoever left it.
fn is_on(root: &Directory) -> bool {
    matches!(fgetxattr(root, UNFINISHED_TREE, &mut [0; 34][..]), Ok(_) | Err(Errno::RANGE))
}

fn unmark(root: &Directory) -> io::Result<()> {
    let removed = match fremovexattr(root, UNFINISHED_TREE) {
        Err(Errno::ACCESS) => {
            // Its own bits, which it has by now, keep even its owner from that.
            let bits = u32::from(root.stat_self()?.stx_mode) & 0o7777;
            let set = |bits| rustix::fs::fchmod(root, Mode::from_raw_mode(bits));
            set(bits | 0o200)?;
            let removed = fremovexattr(root, UNFINISHED_TREE);
            set(bits)?;
            removed
        }
        removed => removed,
    };
    match removed {
        // Another run came to its end meanwhile.
        Err(Errno::NODATA) => Ok(()),
        removed => Ok(removed?),
    }
}

/// Of a run: the roots that carry the mark, and where the tree that came last landed.
#[derive(Debug, Default)]
pub(super) struct Marks {
    roots: Vec<Directory>,
    landed: Landed,
}

impl TreeWriter {
    /// A directory was entered as the root of a tree: it is marked if this copy made it as the destination, and a mark is remembered.
    pub(super) fn note_root(&mut self, went_on: bool) {
        let Some(root) = self.stack.last() else { return };
        self.marks.landed = match (&self.landing.source, went_on) {
            (_, true) => Landed::Again,
            _ if !self.landing.is_renamed => Landed::There,
            (Some(source), _) if root.is_new && mark(&root.directory, source) => Landed::Made,
            _ => Landed::MadeUnmarked,
        };
        if self.marks.roots.len() < MARKED_ROOTS_MAX
            && is_on(&root.directory)
            && let Ok(root) = root.directory.duplicate()
        {
            self.marks.roots.push(root);
        }
    }

    /// Where the tree that came last landed.
    pub fn landed(&self) -> Landed {
        self.marks.landed
    }

    /// To be called as the last act of a run that came to its own end, whatever became of single entries, when everything is durable that is to
    /// be: what was filled is no more a tree that was cut off. With `fsync` that is durable, too. `Interrupted` if nobody waits
    /// for it any more: then it was cut off.
    pub fn come_to_end(&mut self, fsync: bool) -> Result<()> {
        let is_stopped = || self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire));
        if !self.marks.roots.is_empty() && is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        for root in self.marks.roots.drain(..) {
            let synced = |()| if fsync { Ok(rustix::fs::fsync(&root)?) } else { Ok(()) };
            unmark(&root).and_then(synced).map_err(|error| {
                let what = format!("remove the attribute {UNFINISHED_TREE} from the destination");
                Error::file(what, error).advise(
                    "everything else is done; without that, the same command goes on in the destination instead of into it",
                )
            })?;
        }
        Ok(())
    }
}
