//! The mark of a tree that a run was cut off in: left on the root that took the destination's own name when that was made, removed as the last
//! act of whichever run fills that root to its own end.

use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::directory::Directory;
use super::opened::OpenDirectory;
use super::write::TreeWriter;

/// The mark; never copied.
pub(super) const UNFINISHED_TREE: &str = "user.dray.unfinished-tree";

/// Its value: a version, seconds since 1970, and a hash.
const VERSION: u8 = 2;
const VALUE_BYTES: usize = 1 + 8 + 32;

/// How old a mark may be, and how far a clock may have gone back since it was left, to be believed: a tree may have been finished with other
/// means, and another copy be meant to go into it.
const BELIEVED_S: u64 = 7 * 24 * 3600;
const AHEAD_S: u64 = 24 * 3600;

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

/// What the mark says that was left at this time on the directory of this inode number: a copy of the mark on another one says nothing.
fn value(inode: u64, time_s: u64, source: &[u8; 32]) -> [u8; VALUE_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key("drayman 2026-11-22 unfinished tree 2");
    hasher.update(&inode.to_be_bytes()).update(&time_s.to_be_bytes()).update(source);
    let mut value = [VERSION; VALUE_BYTES];
    value[1..9].copy_from_slice(&time_s.to_be_bytes());
    value[9..].copy_from_slice(hasher.finalize().as_bytes());
    value
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Leaves the mark as of `time_s`; false if the file system keeps none.
pub(super) fn mark(root: &Directory, source: &[u8; 32], time_s: u64) -> bool {
    let Ok(found) = root.stat_self() else { return false };
    fsetxattr(root, UNFINISHED_TREE, &value(found.stx_ino, time_s, source), XattrFlags::empty()).is_ok()
}

/// True if a run that copied one of these very sources to this very directory was cut off not long ago, and nobody but this user could have
/// said so: the directory is as such a run leaves it, this user's and nobody else's to write to.
pub(super) fn is_of(root: &Directory, sources: &[[u8; 32]]) -> bool {
    let mut found = [0; VALUE_BYTES + 1];
    let Ok(len) = fgetxattr(root, UNFINISHED_TREE, &mut found[..]) else { return false };
    let Ok(stat) = root.stat_self() else { return false };
    let is_private = stat.stx_uid == rustix::process::geteuid().as_raw() && stat.stx_mode & 0o022 == 0;
    let mut time = [0; 8];
    time.copy_from_slice(&found[1..9]);
    let (time_s, now_s) = (u64::from_be_bytes(time), now_s());
    let is_fresh = now_s.saturating_sub(time_s) <= BELIEVED_S && time_s.saturating_sub(now_s) <= AHEAD_S;
    let is_it = |source| found[..len] == value(stat.stx_ino, time_s, source);
    is_private && is_fresh && sources.iter().any(is_it)
}

/// True if there is a mark, whoever left it.
fn is_on(root: &Directory) -> bool {
    matches!(fgetxattr(root, UNFINISHED_TREE, &mut [0; VALUE_BYTES][..]), Ok(_) | Err(Errno::RANGE))
}

/// Takes the mark, before the root gets its own bits, which may keep even its owner from that.
fn unmark(root: &Directory) -> io::Result<()> {
    match fremovexattr(root, UNFINISHED_TREE) {
        // Somebody took it meanwhile.
        Err(Errno::NODATA) => Ok(()),
        removed => Ok(removed?),
    }
}

/// Of a run: the roots that carry the mark, whose last bits and times wait for its removal, and where the tree that came last landed.
#[derive(Debug, Default)]
pub(super) struct Marks {
    roots: Vec<Rc<OpenDirectory>>,
    landed: Landed,
}

impl TreeWriter {
    /// A directory was entered as the root of a tree: it is marked if this copy made it as the destination or goes on there, and a mark is
    /// remembered. `Refused` if it was to go on there and what the landing saw is not there any more.
    pub(super) fn note_root(&mut self, went_on: bool) -> Result<()> {
        let Some(root) = self.stack.last().cloned() else { return Ok(()) };
        let sources = &self.landing.sources;
        let is_made = root.is_new && (self.landing.is_renamed || went_on);
        if went_on && !root.is_new {
            if !is_of(&root.directory, sources) {
                let what = "the destination was changed while this copy began";
                return Err(Error::new(ErrorKind::Refused, what).advise("run the same command again"));
            }
            if let Some(source) = sources.first() {
                // Without it the older one stays.
                let _ = mark(&root.directory, source, now_s());
            }
        }
        self.marks.landed = match sources.first() {
            _ if went_on && !root.is_new => Landed::Again,
            _ if !is_made => Landed::There,
            Some(source) if mark(&root.directory, source, now_s()) => Landed::Made,
            _ => Landed::MadeUnmarked,
        };
        if let Some(earlier) = self.marks.roots.iter_mut().find(|earlier| earlier.is_same(&root)) {
            // Of several sources the last one's bits and times are those that stay.
            root.wait_for_end();
            std::mem::replace(earlier, root).give_up();
            return Ok(());
        }
        if self.marks.roots.len() < MARKED_ROOTS_MAX && is_on(&root.directory) {
            root.wait_for_end();
            self.marks.roots.push(root);
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire))
    }

    /// Where the tree that came last landed.
    pub fn landed(&self) -> Landed {
        self.marks.landed
    }

    /// To be called as the last act of a run that came to its own end, whatever became of single entries, when everything is durable that is to
    /// be: what was filled is no more a tree that was cut off, and gets its own bits and times. With `fsync` that is durable, too. What
    /// could not be kept of them is among [`TreeWriter::failures`] then. `Interrupted` if nobody waits for it any more: then it was cut off.
    pub fn come_to_end(&mut self, fsync: bool) -> Result<()> {
        if !self.marks.roots.is_empty() && self.is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        let mut ended = Ok(());
        for root in self.marks.roots.drain(..) {
            let unmarked = unmark(&root.directory);
            root.end();
            let synced = |()| if fsync { Ok(rustix::fs::fsync(&root.directory)?) } else { Ok(()) };
            let result = unmarked.and_then(synced).map_err(|error| {
                let what = format!("remove the attribute {UNFINISHED_TREE} from the destination");
                Error::file(what, error).advise(
                    "everything else is done; without that, the same command goes on in the destination instead of into it",
                )
            });
            ended = ended.and(result);
        }
        ended
    }
}
