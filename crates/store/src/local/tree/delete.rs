//! Deleting what the source has not, after everything has come, and only then.
//!
//! The names of each directory that was there are listed, sorted, when it is entered, and held against the entries that are told,
//! which come in the same order: what the stream passes by is a candidate. A directory that is to make way for something else is
//! noted, too. All of it happens at the end, if the sender's account says that it has listed everything: each deletion in the directory
//! in which the name was found, reached name by name without following a link, and never across a mount.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use dray_core::limits::TREE_CONTESTED_MAX;
use dray_core::tree::Name;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Statx, StatxTimestamp};
use rustix::time::{ClockId, clock_gettime};

use super::contested::key;
use super::directory::Directory;
use super::exclude::Excludes;
use super::listing::Listing;
use super::place::same_name;
use super::settings::Settings;
use super::sync::SyncOptions;
use super::temporary::{Temporary, is_temporary};

mod doomed;
mod notes;
mod protected;
mod ruling;
mod standing;
mod steps;

pub(super) use doomed::{Doomed, Orders, has_changed, has_come};
use notes::Notes;
pub(super) use notes::{Stamp, made_at};
pub(super) use standing::Standing;
pub(super) use steps::{is_held, widen_by_path};

/// A path and why it failed.
pub(super) type Failed = (Vec<u8>, Error);

/// A directory that entries are told of.
#[derive(Debug)]
struct Level {
    /// `None` if it was not there, or could not be listed.
    listing: Option<Listing>,
    next: usize,
    path_len: usize,
    identity: (u64, u64),
    /// No other one has it.
    serial: u64,
    /// Files of rules that stood in it and above it when it was entered.
    standing: Option<Rc<Standing>>,
    /// Names of our own: they come last, as some of them stay as long as another file of the directory does.
    ours: Vec<Vec<u8>>,
}

impl Level {
    /// Notes a candidate; `path` is that of the directory.
    fn note(&self, name: &[u8], directory: &Directory, path: &[u8], (notes, noted): (&mut Notes, &mut u64)) {
        // What is gone need not be deleted; what cannot be looked at is told then.
        let stamp = match directory.stat_for(name, Stamp::FACTS) {
            Ok(found) => Stamp::of(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => Stamp::default(),
        };
        if *noted != self.serial {
            *noted = self.serial;
            notes.standing(self.standing.as_ref());
            notes.directory(path, self.identity);
        }
        notes.name(name, stamp);
    }
}

/// What may have to be deleted.
#[derive(Debug)]
pub(super) struct Candidates {
    /// One for each directory that is open; those that were not there have no names.
    levels: Vec<Level>,
    path: Vec<u8>,
    notes: Notes,
    /// Directories entered so far, and the one that the last note is of.
    serials: u64,
    noted: u64,
    device: Option<(u32, u32)>,
    buffer: Vec<u8>,
    /// Hashes of all that was told, where several sources go to one place; `None` where they do not.
    told: Option<HashSet<[u8; 16]>>,
    /// There are several roots; names that are in the destination, when somebody last looked.
    has_several: bool,
    in_base: HashSet<Box<[u8]>>,
    /// Which directories the roots are, and their names.
    roots: HashMap<(u64, u64), Vec<u8>>,
    /// What is in a source goes into the destination itself.
    fills_base: bool,
    /// When the run began, by this host's clock.
    begun: Since,
    /// Directories that could not be listed here: nothing in them is deleted.
    unlistable: Vec<Failed>,
    /// Why nothing can be deleted.
    trouble: Option<Error>,
}

/// A directory that is entered.
#[derive(Clone, Copy)]
pub(super) struct There<'a> {
    pub(super) directory: &'a Directory,
    pub(super) found: &'a Statx,
    /// This run made it: nothing stood there before.
    pub(super) is_new: bool,
}

/// Directories that could not be listed which are named one by one.
const UNLISTABLE_NAMED_MAX: usize = 64;

/// A directory that makes way at the end, and what was made in the meantime for its place.
#[derive(Debug)]
pub(super) struct Way {
    /// The directory that it is in: path below the destination, device and inode.
    pub(super) path: Vec<u8>,
    pub(super) identity: (u64, u64),
    pub(super) name: Vec<u8>,
    /// What it is.
    pub(super) stamp: Stamp,
    /// `None` in a dry run.
    pub(super) made: Option<Temporary>,
    /// Files of rules that stood in the directory and above it before.
    pub(super) standing: Option<Rc<Standing>>,
}

impl Way {
    /// It cannot be remembered: what was made for the place of the directory goes again. The path of that, and why.
    pub(super) fn give_up(self, settings: &Settings, base: &Directory) -> Failed {
        if let (Some(made), Ok((directory, _))) = (&self.made, steps::open(base, &self.path, self.identity)) {
            steps::remove_made(settings, &directory, made);
        }
        let mut path = self.path;
        push_name(&mut path, &self.name);
        (path, doomed::not_empty())
    }
}

impl Candidates {
    /// Of a run in which several sources may tell entries of one path, or not, and that has several sources at all, or not.
    pub(super) fn new(is_contested: bool, has_several: bool) -> Candidates {
        Candidates {
            has_several,
            in_base: HashSet::new(),
            roots: HashMap::new(),
            fills_base: false,
            levels: Vec::new(),
            path: Vec::new(),
            notes: Notes::default(),
            serials: 0,
            noted: 0,
            device: None,
            buffer: Vec::new(),
            told: is_contested.then(HashSet::new),
            begun: Since::by_any_clock(begin_now()),
            unlistable: Vec::new(),
            trouble: None,
        }
    }

    /// The destination is switched as a whole, which no server of a network can: only this host's own clock stamps there.
    pub(super) fn trust_clock(&mut self) {
        self.begun = Since::by_own_clock(self.begun.moment);
    }

    /// The tree of a source begins: its entries go below `name`, or into the destination itself.
    pub(super) fn begin(&mut self, name: Option<&Name>) {
        self.levels.clear();
        self.device = None;
        self.fills_base |= name.is_none();
        self.path = name.map_or_else(Vec::new, |name| name.as_bytes().to_vec());
        if name.is_some() {
            self.remember(key(&self.path));
        }
    }

    /// A directory is entered; `there` is what stands there; in a dry run nothing may.
    pub(super) fn enter(&mut self, name: Option<&Name>, there: Option<There<'_>>, sync: &SyncOptions) {
        let stays_on_device = sync.one_file_system;
        let path_len = self.path.len();
        if let Some(there) = there.filter(|_| self.levels.is_empty() && self.has_several) {
            // Two names may lead to one directory: what one root has the other has not.
            let before = self.roots.insert(identity(there.found), self.path.clone());
            if before.is_some_and(|before| before != self.path) {
                self.folds();
            }
        }
        let there = there.filter(|there| !there.is_new);
        if there.is_some_and(|there| sync.sources.contains(&(device(there.found), there.found.stx_ino))) {
            let what = "an entry leads into a source of this run, which lies in the destination";
            self.trouble = Some(Error::new(ErrorKind::Refused, what).advise("name another destination"));
        }
        if let Some(name) = name.filter(|_| !self.levels.is_empty()) {
            push_name(&mut self.path, name.as_bytes());
        }
        let standing = self.stand(there, &sync.rules);
        let level = there.and_then(|There { directory, found, .. }| {
            let device = (found.stx_dev_major, found.stx_dev_minor);
            if stays_on_device && *self.device.get_or_insert(device) != device {
                return None;
            }
            let listing = directory
                .duplicate_for_listing()
                .and_then(|it| Listing::read(&it, &mut self.buffer, &|| true));
            match listing {
                Ok(listing) => Some((listing, identity(found))),
                Err(error) => {
                    if self.unlistable.len() < UNLISTABLE_NAMED_MAX {
                        let error = Error::file("list what is there: nothing is deleted in it", error);
                        self.unlistable.push((self.path.clone(), error));
                    }
                    None
                }
            }
        });
        let (listing, identity) =
            level.map_or((None, (0, 0)), |(listing, identity)| (Some(listing), identity));
        self.serials += 1;
        let (serial, ours) = (self.serials, Vec::new());
        self.levels.push(Level { listing, next: 0, path_len, identity, serial, standing, ours });
    }

    /// The files of rules that stand in a directory and above it, before anything in it is changed. If they cannot be read, nobody knows what they
    /// protect, and nothing can be deleted.
    fn stand(&mut self, there: Option<There<'_>>, rules: &Excludes) -> Option<Rc<Standing>> {
        let above = self.standing();
        let Some(there) = there.filter(|_| rules.reads_files()) else { return above.cloned() };
        if self.told.is_some() {
            // What one source brought may be the rules that another one finds.
            let what =
                "several sources go to one place, where files of rules may protect what another one has not";
            let advice = "give the rules on the command line (--exclude, -f), or run it once for each source";
            self.trouble = Some(Error::new(ErrorKind::Unsupported, what).advise(advice));
            return None;
        }
        match Standing::read(rules, there.directory, self.path.len(), above) {
            Ok(standing) => standing,
            Err(error) => {
                let path = OsStr::from_bytes(if self.path.is_empty() { b"." } else { &self.path });
                let what = format!("{path:?} in the destination: {error}");
                self.trouble = Some(Error::new(error.kind(), what));
                None
            }
        }
    }

    /// Files of rules that stood in the innermost directory and above it.
    pub(super) fn standing(&self) -> Option<&Rc<Standing>> {
        self.levels.last().and_then(|level| level.standing.as_ref())
    }

    /// An entry of the innermost directory is told. False if no such name was there when the directory was listed.
    /// `directory` is the innermost one, or of a root the one that it is in.
    pub(super) fn told(&mut self, name: &Name, directory: &Directory) -> bool {
        if self.levels.is_empty() {
            return self.is_in_base(name, directory);
        }
        let was_there = self.pass(Some(name.as_bytes()), directory);
        if self.told.is_some() {
            let len = self.path.len();
            push_name(&mut self.path, name.as_bytes());
            let key = key(&self.path);
            self.path.truncate(len);
            self.remember(key);
        }
        was_there
    }

    /// Whether a root of this very name is in the destination, if there are several: two names of them may be one there.
    fn is_in_base(&mut self, name: &Name, base: &Directory) -> bool {
        if !self.has_several || self.in_base.contains(name.as_bytes()) {
            return true;
        }
        // Not before, or made by this run meanwhile.
        match base.duplicate_for_listing().and_then(|base| base.names()) {
            Ok(names) => self.in_base = names,
            Err(_) => return false,
        }
        self.in_base.contains(name.as_bytes())
    }

    /// Something is found under a name that was not there: nobody can tell any more which of the names in the listing are told.
    pub(super) fn folds(&mut self) {
        self.trouble = Some(same_name());
    }

    fn remember(&mut self, key: [u8; 16]) {
        let Some(told) = &mut self.told else { return };
        if told.len() < TREE_CONTESTED_MAX {
            told.insert(key);
        } else {
            let what = format!("sources that go to one place have more than {TREE_CONTESTED_MAX} entries");
            self.trouble = Some(Error::new(ErrorKind::Unsupported, what));
        }
    }

    /// What is in the innermost directory the sender did not look at.
    pub(super) fn unlisted(&mut self) {
        if self.told.is_some() {
            // Another source may have told of it, and its candidates are noted.
            let what = "of several sources for one place one was not looked at as a whole (-x)";
            self.trouble = Some(Error::new(ErrorKind::Unsupported, what));
        }
        if let Some(level) = self.levels.last_mut() {
            level.next = usize::MAX;
            level.ours.clear();
        }
    }

    /// The innermost directory has no more entries.
    pub(super) fn leave(&mut self, directory: &Directory) {
        self.pass(None, directory);
        if let Some(level) = self.levels.pop() {
            for name in &level.ours {
                level.note(name, directory, &self.path, (&mut self.notes, &mut self.noted));
            }
            self.path.truncate(level.path_len);
        }
    }

    /// Notes the names before `until`, or all that are left. False if `until` is none of those listed.
    fn pass(&mut self, until: Option<&[u8]>, directory: &Directory) -> bool {
        let Some(level) = self.levels.last_mut() else { return true };
        let Some(listing) = level.listing.as_ref().filter(|_| level.next != usize::MAX) else { return true };
        while let Some(name) = listing.get(level.next) {
            match until.map(|until| name.cmp(until)) {
                Some(std::cmp::Ordering::Greater) => return false,
                Some(std::cmp::Ordering::Equal) => {
                    level.next += 1;
                    return true;
                }
                // What cannot be deleted need not be noted.
                _ if self.trouble.is_some() => level.next += 1,
                _ => {
                    level.next += 1;
                    if is_temporary(name) {
                        let name = name.to_vec();
                        level.ours.push(name);
                    } else {
                        level.note(name, directory, &self.path, (&mut self.notes, &mut self.noted));
                    }
                }
            }
        }
        false
    }

    /// A directory is to make way; false if no more can be remembered: it stays.
    pub(super) fn make_way(&mut self, way: &Way) -> bool {
        if self.notes.is_over() {
            return false;
        }
        self.notes.standing(way.standing.as_ref());
        self.notes.directory(&way.path, way.identity);
        self.notes.way(&way.name, way.stamp, way.made.as_ref());
        // What follows is in another one.
        self.noted = 0;
        true
    }

    /// Where notes go that memory has no room for. Once they are more than may be remembered nothing is deleted.
    pub(super) fn spill(&mut self, base: &Directory) {
        if self.notes.is_full()
            && let Err(error) = self.notes.spill(base)
        {
            self.trouble.get_or_insert(error);
        }
        if self.notes.is_over() {
            let what = "what is to be deleted takes more bytes than can be remembered";
            self.trouble.get_or_insert_with(|| {
                Error::new(ErrorKind::Unsupported, what).advise("synchronise its parts one by one")
            });
        }
    }

    /// For tests: bytes of notes in memory, and how many may be noted at all.
    #[cfg(test)]
    pub(super) fn notes(&mut self) -> (usize, &mut u64) {
        self.notes.sizes()
    }

    /// Everything was told: what is to be deleted. An error if that is not possible; then nothing is.
    pub(super) fn doom(
        self,
        settings: &Settings,
        base: &Directory,
        failed: &mut Vec<Failed>,
    ) -> Result<Doomed> {
        let (doomed, trouble) = self.end(failed);
        let Some(trouble) = trouble else { return Ok(doomed) };
        doomed.abandon(settings, base, failed)?;
        Err(trouble)
    }

    /// Nothing is deleted: what waits for a directory to make way fails.
    pub(super) fn abandon(self, settings: &Settings, base: &Directory, failed: &mut Vec<Failed>) {
        let (doomed, _) = self.end(&mut Vec::new());
        if let Err(error) = doomed.abandon(settings, base, failed) {
            failed.push((Vec::new(), error));
        }
    }

    /// What was found, and why nothing of it can be deleted.
    fn end(self, failed: &mut Vec<Failed>) -> (Doomed, Option<Error>) {
        failed.extend(self.unlistable);
        (Doomed::new(self.notes.read(), self.told, self.begun, self.fills_base), self.trouble)
    }
}

/// A moment that everything stamped before this call is not after, and everything stamped later is: file systems stamp with a clock that
/// ticks every few milliseconds, so the next tick is waited for.
pub(super) fn begin_now() -> (i64, u32) {
    let begun = read(ClockId::Realtime);
    // Not for ever: somebody may set the clock back.
    for _ in 0..TICKS_MAX {
        if read(ClockId::RealtimeCoarse) > begun {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    begun
}

/// Milliseconds after which a tick must have passed.
const TICKS_MAX: usize = 50;

/// The same for a file system that has just stamped something with this time: one that knows whole seconds alone stamps what happens a moment later with a time before this moment,
/// so there the next second is waited for, and the moment is the end of the one before.
pub(super) fn begin_beside(stamped: &Statx) -> (i64, u32) {
    if stamped.stx_ctime.tv_nsec != 0 {
        return begin_now();
    }
    let begun = read(ClockId::Realtime);
    std::thread::sleep(Duration::from_nanos(u64::from(SECOND_NS.saturating_sub(begun.1))));
    for _ in 0..TICKS_MAX {
        let now = read(ClockId::RealtimeCoarse);
        if now.0 > begun.0 {
            return (now.0 - 1, SECOND_NS - 1);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Somebody set the clock back.
    begun
}

const SECOND_NS: u32 = 1_000_000_000;

/// A moment that stamps are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    moment: (i64, u32),
    is_own_clock: bool,
}

impl Since {
    /// Where a server may stamp, whose clock may be ahead of this host's: a time that is to come counts as later, as it does less harm that something stays than that it goes.
    pub(super) fn by_any_clock(moment: (i64, u32)) -> Since {
        Since { moment, is_own_clock: false }
    }

    /// Where this host's clock alone stamps: a time that is to come was stamped before somebody set that back, so before the moment.
    pub(super) fn by_own_clock(moment: (i64, u32)) -> Since {
        Since { moment, is_own_clock: true }
    }

    fn has(self, stamp: (i64, u32), now: (i64, u32)) -> bool {
        stamp > self.moment && (!self.is_own_clock || stamp <= now)
    }
}

/// Whether what was stamped with this time was so since then.
pub(super) fn is_since(stamp: (i64, u32), since: Since) -> bool {
    since.has(stamp, read(ClockId::Realtime))
}

fn read(clock: ClockId) -> (i64, u32) {
    let now = clock_gettime(clock);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

pub(super) fn time(time: &StatxTimestamp) -> (i64, u32) {
    (time.tv_sec, time.tv_nsec)
}

pub(super) fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Device and inode.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(found: &Statx) -> Identity {
    ((u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor), found.stx_ino)
}

/// The device as `stat` has it.
pub(super) fn device(found: &Statx) -> u64 {
    rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue "nothing is deleted wrongly": whatever is stamped once a run has begun is later than its beginning, by the clock that file
    /// systems stamp with.
    #[test]
    fn what_is_stamped_later_is_later() {
        for _ in 0..20 {
            let begun = begin_now();
            let stamp = clock_gettime(ClockId::RealtimeCoarse);
            assert!((stamp.tv_sec, u32::try_from(stamp.tv_nsec).unwrap()) > begun);
        }
    }

    /// S89: the same where file systems stamp with whole seconds.
    #[test]
    fn what_is_stamped_later_is_later_by_whole_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let mut stamped = Directory::open(dir.path()).unwrap().stat_self().unwrap();
        stamped.stx_ctime.tv_nsec = 0;
        for _ in 0..2 {
            let before = clock_gettime(ClockId::Realtime).tv_sec;
            let begun = begin_beside(&stamped);
            let after = clock_gettime(ClockId::RealtimeCoarse).tv_sec;
            assert!((before, 0) <= begun && (after, 0) > begun, "{before} {begun:?} {after}");
        }
    }

    /// S89: what was stamped with a time that is to come tells nothing of what happened since, where this host stamps; what is stamped now does.
    #[test]
    fn times_to_come_tell_nothing() {
        let begun = Since::by_own_clock((100, 5));
        for (stamp, is_it) in
            [((100, 5), false), ((100, 6), true), ((200, 7), true), ((200, 8), false), ((4000, 0), false)]
        {
            assert_eq!(begun.has(stamp, (200, 7)), is_it, "{stamp:?}");
        }
        let moment = begin_now();
        let begun = Since::by_own_clock(moment);
        assert!(is_since(read(ClockId::RealtimeCoarse), begun));
        assert!(!is_since((moment.0 + 1000, 0), begun));
    }

    /// S82: where another host may stamp, whose clock is ahead, what it stamped with a time that is to come counts as later.
    #[test]
    fn a_clock_that_is_ahead_spares() {
        let begun = Since::by_any_clock((100, 5));
        for (stamp, is_it) in [((100, 5), false), ((100, 6), true), ((200, 8), true), ((4000, 0), true)] {
            assert_eq!(begun.has(stamp, (200, 7)), is_it, "{stamp:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let found = Directory::open(dir.path()).unwrap().stat_self_for(Stamp::FACTS).unwrap();
        let moment = begin_now();
        let (mut made, mut moved) = (found, found);
        made.stx_mask |= rustix::fs::StatxFlags::BTIME.bits();
        made.stx_btime.tv_sec = moment.0 + 30;
        moved.stx_ctime.tv_sec = moment.0 + 30;
        for (begun, stays) in [(Since::by_any_clock(moment), true), (Since::by_own_clock(moment), false)] {
            assert_eq!(has_changed(&moved, None, begun), stays);
            assert_eq!(has_come(&moved, true, begun), stays);
            assert_eq!(has_come(&made, false, begun), stays);
        }
        assert!(!has_come(&found, true, Since::by_any_clock(moment)));
        // So it is for what is deleted, but where the destination is switched.
        let mut candidates = Candidates::new(false, false);
        assert!(!candidates.begun.is_own_clock);
        candidates.trust_clock();
        assert!(candidates.begun.is_own_clock);
    }
}
