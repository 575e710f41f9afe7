//! A destination that is switched as a whole: the new tree is made in a hidden directory beside it, of what the destination has and what comes, and then
//! the two change places in one step. Until then nothing in the destination is touched; after it the old tree is removed, under its hidden name.
//!
//! There are two such names for each destination. Under one a tree is made, and the next run goes on with it. What bears the other is to be removed: the
//! tree that was replaced, or, for the moment before the step, the one that is to replace it. So a run that is killed leaves nothing that could be taken
//! for something else.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::tree::Name;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, RenameFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use super::delete::{self, Doomed, Failed, Orders, Stamp};
use super::directory::Directory;
use super::look::Look;
use super::opened::Mark;
use super::place::identity_of;
use super::settings::{Settings, mtime_of};
use super::temporary::{self, Temporary};

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
        let of = |part: &[u8]| temporary::beside(inode, &self.name, part);
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
    /// What was left is still to be removed, and everything to be compared.
    Begun,
    Clearing(Option<Doomed>),
    Comparing(Look),
    /// The trees have changed places.
    Telling(Look),
    Removing(Option<Doomed>),
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
    /// What an earlier run left to be removed; locked.
    left: Option<Directory>,
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
    /// It has not the name any more under which it was made.
    is_away: bool,
    state: State,
}

impl Stage {
    /// Makes it, or opens what an earlier run left of it. `Refused` where another run is at it, `Unsupported` where directories cannot change places.
    pub(super) fn open(whole: Whole, settings: &Settings, fsync: bool) -> Result<Stage> {
        let (new, old) = whole.hidden()?;
        let begun = delete::begin_now();
        let parent = &whole.parent;
        let left = match parent.child(&old) {
            Ok(left) => Some(left),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("open what an earlier run left beside it", error)),
        };
        left.as_ref().map_or(Ok(()), lock)?;
        let is_fresh = match rustix::fs::mkdirat(parent, &new[..], Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed("make a directory beside it", error.into())),
        };
        let opened = || -> Result<Directory> {
            let root = parent.child(&new).map_err(|error| failed("open the directory beside it", error))?;
            lock(&root)?;
            let found = root.stat_self().map_err(|error| failed("look at the directory beside it", error))?;
            let is_named = |named: Statx| identity_of(&named) == identity_of(&found);
            if !parent.stat(&new).is_ok_and(is_named) {
                return Err(in_use());
            }
            if found.stx_uid != settings.powers.uid {
                let what = format!("{:?} beside the destination is somebody else's", text(&new));
                return Err(Error::new(ErrorKind::Refused, what).advise("remove it, if nobody needs it"));
            }
            if is_fresh {
                require_exchange(&root)?;
            } else if !settings.modes {
                // It is none that was there before, whose bits would count.
                Mark::New.write(&root);
            }
            Ok(root)
        };
        let root = opened().inspect_err(|_| {
            if is_fresh {
                let _ = rustix::fs::unlinkat(parent, &new[..], AtFlags::REMOVEDIR);
            }
        })?;
        let max_delete = settings.sync().and_then(|sync| sync.delete).and_then(|delete| delete.max);
        Ok(Stage {
            whole,
            new,
            old,
            root,
            left,
            is_fresh,
            has_root: false,
            trouble: None,
            has_failed: false,
            begun,
            looked: begun,
            looked_mtime: None,
            fsync,
            max_delete,
            is_away: false,
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

    /// The root of the tree is told; whether nothing is in it.
    pub(super) fn begin_root(&mut self) -> bool {
        self.has_root = true;
        std::mem::take(&mut self.is_fresh)
    }

    /// The sender did not look into something, so that nobody knows what belongs there.
    pub(super) fn unlisted(&mut self) {
        let what =
            "a directory of the source was not looked into, because it lies on another file system (-x)";
        self.trouble.get_or_insert_with(|| {
            Error::new(ErrorKind::Refused, what).context(waits(&self.new)).advise("leave out -x")
        });
    }

    /// Something in it could not be removed.
    pub(super) fn note(&mut self, failed: &[Failed]) {
        self.has_failed |= !failed.is_empty();
    }

    /// What is said where it is not switched.
    pub(super) fn waits(&self) -> String {
        waits(&self.new)
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
                match self.left.is_some() {
                    true => State::Clearing(self.left_over()?),
                    false => self.compare(settings)?,
                }
            }
            State::Clearing(mut doomed) => {
                let orders = Orders::unsaid(settings, &self.whole.parent, stop);
                let goes_on = orders.carry_out(&mut doomed, failed)?;
                self.note(failed);
                match (goes_on, self.has_failed) {
                    (true, _) => State::Clearing(doomed),
                    (false, true) => {
                        return Err(self.refused("what an earlier run left could not be removed"));
                    }
                    (false, false) => {
                        self.left = None;
                        self.compare(settings)?
                    }
                }
            }
            State::Comparing(mut look) => match look.step(settings, Some(self.begun)) {
                Ok(true) => State::Comparing(look),
                Ok(false) => self.decide(&look)?,
                Err(error) => return Err(error.context(self.waits())),
            },
            State::Telling(mut look) => match look.step(settings, None)? {
                true => State::Telling(look),
                false => State::Removing(self.doomed()?),
            },
            State::Removing(mut doomed) => {
                let orders = Orders::unsaid(settings, &self.whole.parent, stop);
                match orders.carry_out(&mut doomed, failed)? {
                    true => State::Removing(doomed),
                    false => State::Over,
                }
            }
            State::Over => State::Over,
        };
        self.state = next;
        Ok(!matches!(self.state, State::Over))
    }

    /// An error if anything is not as the source has it.
    fn require_complete(&mut self, settings: &Settings) -> Result<()> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        let is_kept = settings.failed.borrow().is_empty() && settings.told.borrow().failed.is_empty();
        if self.has_failed || !is_kept {
            return Err(self.refused("not everything could be kept as the source has it"));
        }
        if !self.has_root {
            return Err(self.refused("the source told no directory"));
        }
        Ok(())
    }

    fn refused(&self, why: &str) -> Error {
        let error = Error::new(ErrorKind::Refused, why).context(self.waits());
        error.advise("mend what is named above, and run it again")
    }

    fn compare(&mut self, settings: &Settings) -> Result<State> {
        if self.fsync {
            // Not after the look, as it takes long.
            settings.devices.borrow().sync()?;
        }
        let replaced = self.whole.replaced.as_ref();
        let found = replaced.map(Directory::stat_self).transpose();
        let found = found.map_err(|error| failed("look at the destination", error))?;
        self.looked_mtime = found.as_ref().map(mtime_of);
        self.looked = delete::begin_now();
        match &self.whole.replaced {
            Some(replaced) => Ok(State::Comparing(Look::of(replaced, Some(&self.root))?)),
            None => Ok(State::Comparing(Look::of_nothing())),
        }
    }

    /// Everything was compared: the trees change places, unless they are alike, or that would delete more than is allowed.
    fn decide(&mut self, look: &Look) -> Result<State> {
        if let Some(max) = self.max_delete.filter(|max| look.gone > *max) {
            let what = format!("{} entries would be deleted, and --max-delete allows {max}", look.gone);
            return Err(Error::new(ErrorKind::Refused, what).context(self.waits()));
        }
        let is_same = self.whole.replaced.is_some() && look.gone == 0 && !look.differs;
        self.rename(&self.new, &self.old)
            .map_err(|error| failed("rename the directory beside it", error.into()).context(self.waits()))?;
        self.is_away = true;
        if is_same {
            return Ok(State::Removing(self.left_over()?));
        }
        if let Err(error) = self.switch() {
            self.is_away = self.rename(&self.old, &self.new).is_err();
            return Err(error.context(self.waits()));
        }
        if self.fsync {
            let synced = rustix::fs::fsync(&self.whole.parent);
            synced.map_err(|error| failed("make the switch durable", error.into()))?;
        }
        match &self.whole.replaced {
            Some(replaced) if look.gone > 0 => Ok(State::Telling(Look::of(replaced, Some(&self.root))?)),
            Some(_) => Ok(State::Removing(self.doomed()?)),
            None => Ok(State::Over),
        }
    }

    /// The one step.
    fn switch(&self) -> Result<()> {
        let Whole { parent, name, replaced } = &self.whole;
        let changed = || {
            let what = "something else stands where the destination stood when this run began";
            Error::new(ErrorKind::Changed, what).advise("run it again")
        };
        let Some(replaced) = replaced else {
            return match self.rename(&self.old, name.as_bytes()) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Err(changed()),
                done => done.map_err(|error| failed("give the new tree its name", error.into())),
            };
        };
        let stood = replaced.stat_self().map_err(|error| failed("look at the destination", error))?;
        let is_it =
            |name: &[u8]| parent.stat(name).is_ok_and(|found| identity_of(&found) == identity_of(&stood));
        if !is_it(name.as_bytes()) {
            return Err(changed());
        }
        // What is about to be removed no other run takes for something left.
        let _ = rustix::fs::flock(replaced, FlockOperation::NonBlockingLockExclusive);
        let exchange = || {
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(parent, &self.old[..], parent, name.as_bytes(), flags)
        };
        exchange().map_err(|error| failed("switch the two trees", error.into()))?;
        if is_it(&self.old) {
            return Ok(());
        }
        // Somebody was faster: what stands there now is his, and gets its name back.
        match exchange() {
            Ok(()) => Err(changed()),
            Err(error) => Err(failed(
                &format!(
                    "give {:?} its name back, under which another program put it meanwhile",
                    text(&self.old)
                ),
                error.into(),
            )),
        }
    }

    /// Renames a directory to a name that nothing bears.
    fn rename(&self, from: &Temporary, to: &[u8]) -> rustix::io::Result<()> {
        let parent = &self.whole.parent;
        rustix::fs::renameat_with(parent, &from[..], parent, to, RenameFlags::NOREPLACE)
    }

    /// The old tree, as far as nothing came into it since it was looked at.
    fn doomed(&self) -> Result<Option<Doomed>> {
        let Some(found) = self.found()? else { return Ok(None) };
        let mtime = self.looked_mtime.unwrap_or_else(|| mtime_of(&found));
        Doomed::of_one(&self.whole.parent, &self.old, Stamp::of(&found), self.looked, mtime).map(Some)
    }

    /// What is this program's own to remove.
    fn left_over(&self) -> Result<Option<Doomed>> {
        let Some(found) = self.found()? else { return Ok(None) };
        let (stamp, now) = (Stamp::of(&found), delete::begin_now());
        Doomed::of_one(&self.whole.parent, &self.old, stamp, now, mtime_of(&found)).map(Some)
    }

    /// What bears the name of what is to be removed.
    fn found(&self) -> Result<Option<Statx>> {
        match self.whole.parent.stat_for(&self.old, Stamp::FACTS) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("look at the old tree", error)),
        }
    }
}

impl Drop for Stage {
    /// A run that brought nothing leaves nothing.
    fn drop(&mut self) {
        if !self.is_away {
            let _ = rustix::fs::unlinkat(&self.whole.parent, &self.new[..], AtFlags::REMOVEDIR);
        }
    }
}

/// What is said where the tree that is made under this name is not switched.
fn waits(new: &Temporary) -> String {
    format!(
        "nothing was switched, and what came waits for the same command in {:?} beside the destination",
        text(new)
    )
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

/// Locks a directory of ours for this run.
fn lock(directory: &Directory) -> Result<()> {
    match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(in_use()),
        // Where there are no locks there is nobody to be told.
        _ => Ok(()),
    }
}

/// `Unsupported` if two directories in `root`, which is empty, cannot change places.
fn require_exchange(root: &Directory) -> Result<()> {
    let (one, other) = ("one", "other");
    let make = |name: &str| rustix::fs::mkdirat(root, name, Mode::RWXU);
    let exchange = || rustix::fs::renameat_with(root, one, root, other, RenameFlags::EXCHANGE);
    let tried = make(one).and_then(|()| make(other)).and_then(|()| exchange());
    for name in [one, other] {
        let _ = rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR);
    }
    match tried {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let what = "--atomic: two directories cannot change places on the file system of the destination";
            Err(Error::new(ErrorKind::Unsupported, what).advise(
                "leave out --atomic, or name a destination on another file system (ext4, XFS, Btrfs, tmpfs)",
            ))
        }
        tried => tried.map_err(|error| failed("try to switch two directories", error.into())),
    }
}

/// True for what something is mounted on.
pub(super) fn is_mount(found: &Statx) -> bool {
    found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}
