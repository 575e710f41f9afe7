//! A destination that is switched as a whole: the new tree is made in a hidden directory beside it, of what the destination has and what comes, and then
//! the two change places in one step. Until then nothing in the destination is touched; after it the old tree is removed, under its hidden name.
//!
//! There are two such names for each destination. Under one a tree is made, and the next run goes on with it. What bears the other is to be removed: the
//! tree that was replaced, or, for the moment before the step, the one that is to replace it. So a run that is killed leaves nothing that could be taken
//! for something else.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::tree::Name;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, FlockOperation, Gid, Mode, RenameFlags, Statx, StatxAttributes, Uid, XattrFlags, fgetxattr,
    fremovexattr, fsetxattr,
};
use rustix::io::Errno;

use super::super::boot;
use super::delete::{self, Doomed, Failed, Orders, Stamp};
use super::directory::Directory;
use super::look::{self, Look};
use super::opened::OpenDirectory;
use super::place::identity_of;
use super::settings::{Settings, mtime_of};
use super::temporary::{self, Temporary};

/// What of an earlier run's tree could not be removed which is named one by one.
const LEFT_NAMED_MAX: usize = 64;

/// What is said once the trees have changed places.
const IN_PLACE: &str = "the new tree is in place";

/// What of the tree that is made has been on disk: [`ON_DISK`], or the id of the boot in which it was written to last. A mark of ours, which no copy takes for an attribute of the directory.
const WRITTEN: &str = "user.dray.unfinished.boot";
/// All of it.
const ON_DISK: &[u8] = b"on disk";

/// Where a destination stands that is to be switched.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) parent: Directory,
    pub(super) name: Name,
    /// The destination, if it is there.
    pub(super) replaced: Option<Directory>,
}

impl Whole {
    /// The name under which a tree is made, and the one of what is to be removed.
    fn hidden(&self) -> Result<(Temporary, Temporary)> {
        let inode = self.parent.stat_self().map_err(|error| Error::file("look beside it", error))?.stx_ino;
        let of = |part: &[u8]| temporary::beside(inode, self.name.as_bytes(), part);
        Ok((of(b"new"), of(b"old")))
    }

    /// True if a run that was cut off may have left something.
    pub(super) fn has_left(&self) -> bool {
        let is_there = |name: &Temporary| self.parent.stat(name).is_ok();
        self.hidden().map_or(true, |(new, old)| is_there(&new) || is_there(&old))
    }
}

/// How far it is.
#[derive(Debug)]
enum State {
    /// Everything is still to be compared.
    Begun,
    Comparing(Look),
    /// The trees have changed places.
    Telling(Look),
    Removing(Box<Option<Doomed>>),
    Over,
}

/// The tree that is made beside the destination.
#[derive(Debug)]
pub(super) struct Stage {
    whole: Whole,
    new: Temporary,
    old: Temporary,
    /// It, locked as long as this run lasts.
    root: Directory,
    /// Owner and group that it was made with.
    owner: (u32, u32),
    /// The same as it is written: its own owner, bits and times come just before it is switched, so that until then it is this user's alone.
    told_root: Option<Rc<OpenDirectory>>,
    /// What an earlier run left to be removed; locked.
    left: Option<Directory>,
    /// What of that could not be removed.
    left_failed: Vec<Failed>,
    /// This run made it, and nothing was put into it yet.
    is_fresh: bool,
    /// The sender told its root.
    has_root: bool,
    /// Why it will not be switched, whatever else comes.
    trouble: Option<Error>,
    has_failed: bool,
    begun: (i64, u32),
    /// When the two trees were first held against each other: what comes into the old one later stays.
    looked: (i64, u32),
    /// The time that the old tree had then.
    looked_mtime: Option<(i64, u32)>,
    fsync: bool,
    max_delete: Option<u64>,
    /// The name of what was to be removed and stays in part.
    aside: Option<Temporary>,
    /// It has not the name any more under which it was made.
    is_away: bool,
    /// It stands where the destination stood.
    is_switched: bool,
    /// It could not be made durable, so nobody knows what of it is on disk.
    is_doubted: bool,
    state: State,
}

impl Stage {
    /// Makes it, or opens what an earlier run left of it. `Refused` where another run is at it, `Unsupported` where directories cannot change places.
    pub(super) fn open(whole: Whole, settings: &Settings, fsync: bool) -> Result<Stage> {
        Stage::make(whole, settings, fsync).map_err(|error| error.context("nothing was switched"))
    }

    fn make(whole: Whole, settings: &Settings, fsync: bool) -> Result<Stage> {
        let (new, old) = whole.hidden()?;
        let parent = &whole.parent;
        let mut left = match open_left(parent, &old, settings) {
            Ok(left) => Some(left),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&format!("open {:?} beside it", text(&old)), error)),
        };
        left.as_ref().map_or(Ok(()), lock)?;
        let (mut root, mut found, mut is_fresh) = make_root(&whole, &new, settings)?;
        let may_be_others = || is_shared(parent, settings).map_err(|error| failed("look beside it", error));
        if fsync && !is_fresh && !has_reached_disk(&root) && !may_be_others()? {
            // Its files have their sizes and times, and perhaps not their bytes: it is removed, as something left.
            give_up(parent, &new, &old, left.as_ref())?;
            left = left.or(Some(root));
            (root, found, is_fresh) = make_root(&whole, &new, settings)?;
        }
        if is_fresh || has_reached_disk(&root) {
            say_written(&root, &boot::current());
        }
        let max_delete = settings.sync().and_then(|sync| sync.delete).and_then(|delete| delete.max);
        // Nothing of the destination was looked at before.
        let begun = delete::begin_beside(&found);
        Ok(Stage {
            whole,
            new,
            old,
            root,
            owner: (found.stx_uid, found.stx_gid),
            told_root: None,
            left,
            left_failed: Vec::new(),
            is_fresh,
            has_root: false,
            trouble: None,
            has_failed: false,
            begun,
            looked: begun,
            looked_mtime: None,
            fsync,
            max_delete,
            aside: None,
            is_away: false,
            is_switched: false,
            is_doubted: false,
            state: State::Begun,
        })
    }

    /// The directory that everything goes into.
    pub(super) fn directory(&self) -> io::Result<Directory> {
        self.root.duplicate()
    }

    /// The tree that it is to replace.
    pub(super) fn replaced(&self) -> io::Result<Option<Directory>> {
        self.whole.replaced.as_ref().map(Directory::duplicate_for_listing).transpose()
    }

    /// The root of the tree is told: what an earlier run left to be removed goes first, so that there is room for what comes. Whether nothing is in the tree.
    pub(super) fn begin_root(&mut self, settings: &Settings, stop: Option<&AtomicBool>) -> Result<bool> {
        if !self.has_root {
            self.require_own(settings)?;
            self.clear(settings, stop)?;
            self.has_root = true;
        }
        Ok(std::mem::take(&mut self.is_fresh))
    }

    /// Keeps the root as it is written, until all is in it.
    pub(super) fn hold(&mut self, root: Rc<OpenDirectory>) {
        root.wait_for_end();
        self.told_root = Some(root);
    }

    /// `Refused` if something of an earlier run is there that others may have put there: a directory of this user's own, moved to a name that anybody can
    /// work out, would be emptied.
    fn require_own(&self, settings: &Settings) -> Result<()> {
        let found = [(!self.is_fresh, &self.new), (self.left.is_some(), &self.old)];
        let found: Vec<String> = found
            .iter()
            .filter(|(is_there, _)| *is_there)
            .map(|(_, name)| format!("{:?}", text(name)))
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        if !is_shared(&self.whole.parent, settings).map_err(|error| failed("look beside it", error))? {
            return Ok(());
        }
        // What to do does not cross the wire, so it stands in what is said.
        let what = format!(
            "{} beside the destination may be what an earlier run left, or what another user put there, who may write to the directory that holds it: look at it, and remove or rename it",
            found.join(" and ")
        );
        Err(Error::new(ErrorKind::Refused, what))
    }

    /// Removes what an earlier run left to be removed; what of that stays is told when the trees change places.
    fn clear(&mut self, settings: &Settings, stop: Option<&AtomicBool>) -> Result<()> {
        let Some(left) = &self.left else { return Ok(()) };
        let found = left.stat_self().map_err(|error| failed("look at what is to be removed", error))?;
        let mut doomed = Some(self.own_doomed(left, delete::begin_beside(&found))?);
        let orders = Orders::unsaid(settings, &self.whole.parent, stop);
        let mut failed = Vec::new();
        while orders.carry_out(&mut doomed, &mut failed)? {
            failed.truncate(LEFT_NAMED_MAX);
        }
        failed.truncate(LEFT_NAMED_MAX);
        self.left_failed = failed;
        if !is(&self.whole.parent, &self.old, left) {
            self.left = None;
        }
        Ok(())
    }

    /// What of an earlier run's tree could not be removed makes room for another one under its name, and is told.
    fn set_left_aside(&mut self, failed: &mut Vec<Failed>) -> Result<()> {
        if self.left.is_none() {
            return Ok(());
        }
        let name = self.set_aside(&self.old)?;
        self.left = None;
        failed.append(&mut self.left_failed);
        failed.push((Vec::new(), stays("what an earlier run left and could not be removed", &name)));
        Ok(())
    }

    /// The sender did not look into something, so that nobody knows what belongs there.
    pub(super) fn unlisted(&mut self) {
        let what =
            "a directory of the source was not looked into, because it lies on another file system (-x)";
        self.trouble.get_or_insert_with(|| Error::new(ErrorKind::Refused, what).advise("leave out -x"));
    }

    /// Something in it could not be removed.
    pub(super) fn note(&mut self, failed: &[Failed]) {
        self.has_failed |= !failed.is_empty();
    }

    /// What became of it, to be said with whatever goes wrong.
    pub(super) fn outcome(&self) -> String {
        match (self.is_switched, self.is_away) {
            (true, _) => IN_PLACE.to_owned(),
            (false, false) if self.has_root && !self.is_doubted => format!(
                "nothing was switched, and what came waits for the same command in {:?} beside the destination",
                text(&self.new)
            ),
            _ => "nothing was switched".to_owned(),
        }
    }

    /// Goes on with what is to be done once all is in it; false once that is.
    pub(super) fn go_on(
        &mut self,
        settings: &Settings,
        stop: Option<&AtomicBool>,
        failed: &mut Vec<Failed>,
    ) -> Result<bool> {
        if stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        let next = match std::mem::replace(&mut self.state, State::Over) {
            State::Begun => {
                self.require_complete(settings)?;
                self.compare(settings)?
            }
            State::Comparing(mut look) => match look.step(settings, Some(self.begun))? {
                true => State::Comparing(look),
                false => self.decide(settings, &look, failed)?,
            },
            State::Telling(mut look) => match look.step(settings, None)? {
                true => State::Telling(look),
                false => State::Removing(Box::new(self.doomed()?)),
            },
            State::Removing(mut doomed) => {
                let orders = Orders::unsaid(settings, &self.whole.parent, stop);
                let mut late = Vec::new();
                let removed = orders.carry_out(&mut doomed, &mut late);
                if !late.is_empty() || matches!(removed, Ok(false)) {
                    self.keep_removed(&mut late);
                }
                let said = if self.is_switched { IN_PLACE } else { "there was nothing to switch" };
                failed.extend(late.into_iter().map(|(path, error)| (path, error.context(said))));
                if removed? { State::Removing(doomed) } else { State::Over }
            }
            State::Over => State::Over,
        };
        self.state = next;
        Ok(!matches!(self.state, State::Over))
    }

    /// Something of what was being removed stays, or all of it is gone. What stays gets a name that no run takes for its own, as the next one would remove it otherwise and nobody
    /// would hear of that. At once, as this one may be cut off: what is being removed is open.
    fn keep_removed(&mut self, failed: &mut Vec<Failed>) {
        let removed = if self.is_switched { self.whole.replaced.as_ref() } else { Some(&self.root) };
        if removed.is_some_and(|removed| is(&self.whole.parent, &self.old, removed)) {
            let which = if self.is_switched { "the old tree" } else { "the new tree" };
            failed.push(match self.set_aside(&self.old) {
                Ok(name) => {
                    self.aside = Some(name);
                    (Vec::new(), stays(&format!("{which}, with what of it was not removed,"), &name))
                }
                Err(error) => (Vec::new(), error.context("what was not removed goes with the next run")),
            });
        }
        let Some(aside) = self.aside else { return };
        for (path, _) in failed.iter_mut().filter(|(path, _)| path.starts_with(&self.old)) {
            path[..aside.len()].copy_from_slice(&aside);
        }
    }

    /// An error if anything is not as the source has it.
    fn require_complete(&mut self, settings: &Settings) -> Result<()> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        if self.has_failed || !is_kept(settings) {
            return Err(refused("not everything could be kept as the source has it"));
        }
        if !self.has_root {
            return Err(refused("the source told no directory"));
        }
        Ok(())
    }

    fn compare(&mut self, settings: &Settings) -> Result<State> {
        if self.fsync {
            // Not after the look, as it takes long.
            let synced = settings.devices.borrow().sync();
            synced.map_err(|error| self.doubt(error))?;
            say_written(&self.root, ON_DISK);
        }
        let replaced = self.whole.replaced.as_ref();
        let found = replaced.map(Directory::stat_self).transpose();
        let found = found.map_err(|error| failed("look at the destination", error))?;
        self.looked_mtime = found.as_ref().map(mtime_of);
        let made = self.root.stat_self().map_err(|error| failed("look at the directory beside it", error))?;
        self.looked = delete::begin_beside(&made);
        let unlinked = settings.unlinked.take();
        match &self.whole.replaced {
            Some(replaced) => Ok(State::Comparing(Look::of(replaced, Some(&self.root), unlinked)?)),
            None => Ok(State::Comparing(Look::of_nothing())),
        }
    }

    /// It could not be made durable. A file system says that once, and keeps what is not on disk in memory for now, so the next run would believe what it finds: it is to remove this tree instead, as
    /// something left, and to make it anew.
    pub(super) fn doubt(&mut self, error: Error) -> Error {
        if self.is_switched {
            return error;
        }
        self.is_doubted = true;
        if !is(&self.whole.parent, &self.new, &self.root) {
            return error;
        }
        if self.rename(&self.new, &self.old).is_ok() {
            self.is_away = true;
            return error;
        }
        // Something that could not be removed bears that name.
        let aside = self.set_aside(&self.new);
        self.is_away = aside.is_ok();
        let name = text(aside.as_ref().unwrap_or(&self.new));
        error.context(format!(
            "what came may not be on disk, and is {name:?} beside the destination: remove it"
        ))
    }

    /// Everything was compared: the trees change places, unless they are alike, or that would delete more than is allowed.
    fn decide(&mut self, settings: &Settings, look: &Look, failed: &mut Vec<Failed>) -> Result<State> {
        if let Some(max) = self.max_delete {
            look.require_at_most(max)?;
        }
        if !is(&self.whole.parent, &self.new, &self.root) {
            let what = format!("something else bears the name {:?} beside the destination", text(&self.new));
            return Err(Error::new(ErrorKind::Changed, what).advise("look at it, and run it again"));
        }
        self.set_left_aside(failed)?;
        self.rename(&self.new, &self.old)
            .map_err(|error| self::failed("rename the directory beside it", error.into()))?;
        self.is_away = true;
        self.conclude(settings, look).inspect_err(|_| {
            if !self.is_switched {
                self.take_back();
            }
        })
    }

    /// The tree bears the name of what is to be removed, and gets its last touch.
    fn conclude(&mut self, settings: &Settings, look: &Look) -> Result<State> {
        let replaced = self.whole.replaced.as_ref().map(Directory::duplicate).transpose();
        let replaced = replaced.map_err(|error| failed("open the destination", error))?;
        // Its own bits may keep even its owner from looking.
        let telling = match &replaced {
            Some(replaced) if look.gone > 0 => {
                let mtime = self.looked_mtime.unwrap_or_default();
                Some(Look::to_tell(replaced, &self.root, self.looked, mtime)?)
            }
            _ => None,
        };
        self.dress(settings)?;
        let is_same = look.gone == 0
            && !look.differs
            && replaced.as_ref().is_some_and(|replaced| !look::is_another(settings, replaced, &self.root));
        if is_same {
            return Ok(State::Removing(Box::new(Some(self.own_doomed(&self.root, self.looked)?))));
        }
        self.switch()?;
        if self.fsync {
            let synced = rustix::fs::fsync(&self.whole.parent);
            synced.map_err(|error| failed("make the switch durable", error.into()))?;
        }
        Ok(match (telling, replaced) {
            (Some(telling), _) => State::Telling(telling),
            (None, Some(_)) => State::Removing(Box::new(self.doomed()?)),
            (None, None) => State::Over,
        })
    }

    /// Its root gets the owner, the bits and the times that it is to have.
    fn dress(&mut self, settings: &Settings) -> Result<()> {
        let Some(root) = self.told_root.take() else { return Ok(()) };
        // Before its bits may keep its owner from that.
        let _ = fremovexattr(self.root.as_fd(), WRITTEN);
        root.end();
        if !is_kept(settings) {
            return Err(refused("not everything could be kept as the source has it"));
        }
        if self.fsync {
            rustix::fs::fsync(&self.root).map_err(|error| {
                self.is_doubted = true;
                failed("make the new tree durable", error.into())
            })?;
        }
        Ok(())
    }

    /// It is not switched: it is this user's alone again, under the name under which the next run goes on with it, or, if that is not to, under the one of what is to be removed.
    fn take_back(&mut self) {
        let (uid, gid) = self.owner;
        let _ = rustix::fs::fchmod(&self.root, Mode::RWXU);
        let _ = rustix::fs::fchown(&self.root, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        if self.fsync {
            say_written(&self.root, ON_DISK);
        }
        if !self.is_doubted && is(&self.whole.parent, &self.old, &self.root) {
            self.is_away = self.rename(&self.old, &self.new).is_err();
        }
    }

    /// The one step.
    fn switch(&mut self) -> Result<()> {
        let Whole { parent, name, replaced } = &self.whole;
        let changed = || {
            let what = "something else stands where the destination stood when this run began";
            Error::new(ErrorKind::Changed, what).advise("run it again")
        };
        if !is(parent, &self.old, &self.root) {
            return Err(changed());
        }
        let Some(replaced) = replaced else {
            return match self.rename(&self.old, name.as_bytes()) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Err(changed()),
                Err(error) => Err(failed("give the new tree its name", error.into())),
                Ok(()) => {
                    self.is_switched = true;
                    Ok(())
                }
            };
        };
        if !is(parent, name.as_bytes(), replaced) {
            return Err(changed());
        }
        // What is about to be removed no other run takes for something left.
        let _ = rustix::fs::flock(replaced, FlockOperation::NonBlockingLockExclusive);
        let exchange = || {
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(parent, &self.old[..], parent, name.as_bytes(), flags)
        };
        exchange().map_err(|error| cannot_exchange("switch the two trees", error))?;
        if is(parent, &self.old, replaced) && is(parent, name.as_bytes(), &self.root) {
            self.is_switched = true;
            return Ok(());
        }
        // Somebody was faster: what stands there now is his, and gets its name back.
        let Err(error) = exchange() else { return Err(changed()) };
        self.is_switched = is(parent, name.as_bytes(), &self.root);
        // Under this name it would be taken for ours, and removed.
        let kept = match self.set_aside(&self.old) {
            Ok(name) => format!("it is {:?} beside the destination now", text(&name)),
            Err(error) => format!("it may be {:?} beside the destination: {error}", text(&self.old)),
        };
        let what = format!("give what another program put there meanwhile its name back ({kept})");
        Err(failed(&what, error.into()))
    }

    /// Renames a directory to a name that nothing bears.
    fn rename(&self, from: &Temporary, to: &[u8]) -> rustix::io::Result<()> {
        let parent = &self.whole.parent;
        rustix::fs::renameat_with(parent, &from[..], parent, to, RenameFlags::NOREPLACE)
    }

    /// Gives a directory a name that no run takes for its own; which.
    fn set_aside(&self, from: &Temporary) -> Result<Temporary> {
        let renamed = temporary::make_random(&mut |to| Ok(self.rename(from, to)?));
        renamed.map_err(|error| failed(&format!("rename {:?} beside it", text(from)), error))
    }

    /// The old tree, as far as nothing came into it since it was looked at.
    fn doomed(&self) -> Result<Option<Doomed>> {
        let Some(replaced) = &self.whole.replaced else { return Ok(None) };
        let found = stamped(replaced)?;
        let mtime = self.looked_mtime.unwrap_or_else(|| mtime_of(&found));
        Doomed::of_one(&self.whole.parent, &self.old, Stamp::of(&found), self.looked, mtime).map(Some)
    }

    /// What is this program's own to remove: this very directory, as long as it bears the name of such.
    fn own_doomed(&self, directory: &Directory, since: (i64, u32)) -> Result<Doomed> {
        let found = stamped(directory)?;
        Doomed::of_one(&self.whole.parent, &self.old, Stamp::of(&found), since, mtime_of(&found))
    }
}

impl Drop for Stage {
    /// A run that brought nothing leaves nothing.
    fn drop(&mut self) {
        if !self.is_away && is(&self.whole.parent, &self.new, &self.root) {
            let _ = rustix::fs::unlinkat(&self.whole.parent, &self.new[..], AtFlags::REMOVEDIR);
        }
    }
}

/// Facts by which a directory is known again.
fn stamped(directory: &Directory) -> Result<Statx> {
    directory.stat_self_for(Stamp::FACTS).map_err(|error| failed("look at what is to be removed", error))
}

/// True if `name` in `parent` is this very directory.
fn is(parent: &Directory, name: &[u8], directory: &Directory) -> bool {
    let (named, opened) = (parent.stat(name), directory.stat_self());
    named.is_ok_and(|named| opened.is_ok_and(|opened| identity_of(&named) == identity_of(&opened)))
}

/// True if others than root and this user may put something into the directory.
fn is_shared(directory: &Directory, settings: &Settings) -> io::Result<bool> {
    let found = directory.stat_self()?;
    Ok(found.stx_mode & 0o022 != 0 || ![0, settings.powers.uid].contains(&found.stx_uid))
}

/// Opens what an earlier run left to be removed, be it that its own bits keep even its owner from that.
fn open_left(parent: &Directory, name: &Temporary, settings: &Settings) -> io::Result<Directory> {
    parent.child(name).or_else(|error| {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied && !is_shared(parent, settings)?;
        let found = if is_denied { parent.stat(name).ok() } else { None };
        match found.is_some_and(|found| delete::widen_by_path(parent, name, &found)) {
            true => parent.child(name),
            false => Err(error),
        }
    })
}

/// True if all could be kept so far of what was told.
fn is_kept(settings: &Settings) -> bool {
    settings.failed.borrow().is_empty() && settings.told.borrow().failed.is_empty()
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Refused, why).advise("mend what is named above, and run it again")
}

/// What is told of something that stays under a name of this program's beside the destination.
fn stays(what: &str, name: &Temporary) -> Error {
    // What to do does not cross the wire, so it stands in what is said.
    let what =
        format!("{what} stays as {:?} beside the destination: remove it, if nobody needs it", text(name));
    Error::new(ErrorKind::Refused, what)
}

fn text(name: &Temporary) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn failed(what: &str, error: io::Error) -> Error {
    Error::file(format!("--atomic: {what}"), error)
}

fn in_use() -> Error {
    Error::new(ErrorKind::Refused, "another run switches this destination")
        .advise("run it again when that is over")
}

/// Makes the directory `new` beside the destination, or opens what an earlier run left of it; locked, what it is, and whether it was made.
fn make_root(whole: &Whole, new: &Temporary, settings: &Settings) -> Result<(Directory, Statx, bool)> {
    let parent = &whole.parent;
    let is_fresh = match rustix::fs::mkdirat(parent, &new[..], Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(failed("make a directory beside it", error.into())),
    };
    let opened = || -> Result<(Directory, Statx)> {
        let root = parent.child(new).map_err(|error| failed("open the directory beside it", error))?;
        lock(&root)?;
        let found = root.stat_self().map_err(|error| failed("look at the directory beside it", error))?;
        if !is(parent, new, &root) {
            return Err(in_use());
        }
        if found.stx_uid != settings.powers.uid {
            let what = format!("{:?} beside the destination is somebody else's", text(new));
            return Err(Error::new(ErrorKind::Refused, what).advise("remove it, if nobody needs it"));
        }
        if is_fresh {
            require_exchange(&root, whole)?;
        }
        Ok((root, found))
    };
    let (root, found) = opened().inspect_err(|_| {
        if is_fresh {
            // Nothing but what is empty goes.
            let _ = rustix::fs::unlinkat(parent, &new[..], AtFlags::REMOVEDIR);
        }
    })?;
    Ok((root, found, is_fresh))
}

/// True if what an earlier run left has the bytes that it wrote: the machine has not been started again since, or all of it was on disk before. Where nothing tells (no attributes, an older
/// version of this program) it may not.
fn has_reached_disk(root: &Directory) -> bool {
    let mut value = [0; 32];
    let read = fgetxattr(root.as_fd(), WRITTEN, &mut value[..]);
    read.is_ok_and(|len| value[..len] == *ON_DISK || boot::is_current(&value[..len]))
}

/// See [`WRITTEN`]; where that cannot be said nothing is.
fn say_written(root: &Directory, value: &[u8]) {
    if fsetxattr(root.as_fd(), WRITTEN, value, XattrFlags::empty()).is_err() {
        let _ = fremovexattr(root.as_fd(), WRITTEN);
    }
}

/// Gives the tree `new` to what is to be removed: its name, or a place in it if it is `left`.
fn give_up(parent: &Directory, new: &Temporary, old: &Temporary, left: Option<&Directory>) -> Result<()> {
    let flags = RenameFlags::NOREPLACE;
    let renamed = match left {
        Some(left) => rustix::fs::renameat_with(parent, &new[..], left, &new[..], flags),
        None => rustix::fs::renameat_with(parent, &new[..], parent, &old[..], flags),
    };
    renamed.map_err(|error| {
        // What to do does not cross the wire, so it stands here.
        let what = format!(
            "{:?} beside the destination was left before the machine was started again, and may not be on disk as a whole: remove it",
            text(new)
        );
        failed(&what, error.into())
    })
}

/// Locks a directory of ours for this run.
fn lock(directory: &Directory) -> Result<()> {
    match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(in_use()),
        // Where there are no locks there is nobody to be told.
        _ => Ok(()),
    }
}

/// `Unsupported` if two directories in `root`, which is empty, cannot change places, or the destination cannot with any.
fn require_exchange(root: &Directory, whole: &Whole) -> Result<()> {
    let (one, other) = ("one", "other");
    let make = |name: &str| rustix::fs::mkdirat(root, name, Mode::RWXU);
    let exchange = || rustix::fs::renameat_with(root, one, root, other, RenameFlags::EXCHANGE);
    let mut tried = make(one).and_then(|()| make(other)).and_then(|()| exchange());
    if let (Ok(()), Some(replaced)) = (tried, &whole.replaced)
        && look::is_overlay(replaced)
    {
        tried = require_movable(root, other, whole);
    }
    for name in [one, other] {
        let _ = rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR);
    }
    tried.map_err(|error| cannot_exchange("try to switch two directories", error))
}

/// `EXDEV` on an overlay that lets directories of its lower layer not be moved, if the destination is one: such a layer is not to be seen, so a rename is tried that cannot succeed, over a
/// directory that is not empty. Which layer it is comes first.
fn require_movable(root: &Directory, over: &str, whole: &Whole) -> rustix::io::Result<()> {
    let within =
        root.child(over.as_bytes()).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    rustix::fs::mkdirat(&within, "within", Mode::RWXU)?;
    let tried = rustix::fs::renameat(&whole.parent, whole.name.as_bytes(), root, over);
    let _ = rustix::fs::unlinkat(&within, "within", AtFlags::REMOVEDIR);
    match tried {
        Err(Errno::XDEV) => Err(Errno::XDEV),
        Err(_) => Ok(()),
        // Somebody emptied that.
        Ok(()) => {
            let flags = RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(root, over, &whole.parent, whole.name.as_bytes(), flags)
        }
    }
}

/// Why two directories did not change places.
fn cannot_exchange(what: &str, error: Errno) -> Error {
    if !matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) {
        return failed(what, error.into());
    }
    let what = match error {
        Errno::XDEV => {
            "--atomic: the destination cannot change places with another directory: it lies on an overlay file system (a container's image), whose lower layer it is in, and that lets no directory there be moved (redirect_dir is off)"
        }
        _ => "--atomic: two directories cannot change places on the file system of the destination",
    };
    Error::new(ErrorKind::Unsupported, what)
        .advise("leave out --atomic, or name a destination on another file system (ext4, XFS, Btrfs, tmpfs)")
}

/// True for what something is mounted on.
pub(super) fn is_mount(found: &Statx) -> bool {
    found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}
