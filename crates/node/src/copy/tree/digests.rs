//! What both ends have alike is not told ([ADR 27]): the sender's digests, and what the receiver finds of them among its own.
//!
//! [ADR 27]: ../../../../../docs/adr/0027-digests-of-trees.md

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::message::{
    CopyRole, Digests, DigestsSame, DigestsWanted, Message, SyncWish, Tree, TreeDone, sync_flag, tree_flag,
};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{
    DeleteOptions, DigestOptions, Excludes, Held, Landing, Origin, ReceivingEnd, Scan, Scanned, Told,
    own_directory,
};
use dray_transfer::tree::{Batch, DigestsToTell, Removes, TreeSource};

use super::near::interrupted;
use super::source::WalkSource;
use super::whole::is_switched;
use super::{Knows, TreeCopied, sync, write_options};
use crate::{Stop, lock};

/// What a tree copy may ask for without digests having to say more than they do. Not `FSYNC`: what is alike may be what a run wrote that
/// was killed before it synced.
const TREE_FLAGS: u64 = tree_flag::RECURSIVE
    | tree_flag::TIMES
    | tree_flag::MODES
    | tree_flag::SPECIAL_MODES
    | tree_flag::OWNERS
    | tree_flag::NUMERIC_IDS
    | tree_flag::XATTRS
    | tree_flag::HARD_LINKS
    | tree_flag::SPECIALS
    | tree_flag::ONE_FILE_SYSTEM
    | tree_flag::INTO_DIRECTORY
    | tree_flag::FOLLOW_SOURCES
    | tree_flag::DRY_RUN
    | tree_flag::COMPRESSED
    | tree_flag::MORE_SOURCES;

/// And a synchronisation.
const SYNC_FLAGS: u64 = sync_flag::LINKS
    | sync_flag::DEVICES
    | sync_flag::SPECIALS
    | sync_flag::USERS
    | sync_flag::GROUPS
    | sync_flag::ACLS
    | sync_flag::ATTRIBUTES
    | sync_flag::UPDATE
    | sync_flag::EXISTING
    | sync_flag::DELETE
    | sync_flag::DELETE_EXCLUDED
    | sync_flag::ITEMIZE
    | sync_flag::NO_COMPARING
    | sync_flag::INTO_DIRECTORY
    | sync_flag::ATOMIC;

/// Names that the receiver looks at beyond twice the sender's entries.
const NAMES_SLACK: u64 = 10_000;
/// How long the receiver's scan may last after the sender's digests came, beyond twice the time until then.
const SCAN_GRACE: Duration = Duration::from_secs(10);
/// How long is waited for it until somebody looks whether the copy goes on.
const SCAN_SLICE: Duration = Duration::from_millis(50);

/// What goes into digests of `tree`, whose sources have these names; `None` where entries that are alike in kind, size, time and what is
/// kept may yet have to be told: where contents decide, or the receiver changes what it is told.
pub(super) fn digest_options(tree: &Tree, names: &[Vec<u8>]) -> Option<DigestOptions> {
    // A new field has to be thought of here.
    let Tree {
        role: _,
        paths: _,
        names: _,
        flags,
        excludes,
        modes,
        owner,
        rate_bytes: _,
        sync,
        origin: _,
        digests: _,
    } = tree;
    let has = |flag| flags & flag != 0;
    let is_known = flags & !TREE_FLAGS == 0 && has(tree_flag::RECURSIVE) && has(tree_flag::TIMES);
    let is_changed = modes.is_some() || owner.is_some();
    let excludes: Vec<Vec<u8>> = excludes.iter().flatten().map(|pattern| pattern.to_vec()).collect();
    let rules = match sync {
        None => Excludes::new(&excludes),
        Some(wish) => {
            let SyncWish {
                flags,
                rules: _,
                max_delete: _,
                near: _,
                backup: _,
                basis,
                max_size_bytes,
                min_size_bytes,
                timeout_s: _,
                fake,
            } = &**wish;
            // Entries are not what they look like: they are told.
            let is_told =
                fake.is_some() || basis.is_some() || max_size_bytes.is_some() || min_size_bytes.is_some();
            sync::rules(wish).ok().filter(|_| flags & !SYNC_FLAGS == 0 && !is_told)?
        }
    };
    if !is_known || is_changed || rules.reads_files() {
        return None;
    }
    let keeps = |flag| sync.as_ref().is_none_or(|wish| wish.flags & flag != 0);
    let modes = match (has(tree_flag::MODES), has(tree_flag::SPECIAL_MODES)) {
        (true, true) => 0o7777,
        (true, false) => 0o777,
        (false, _) => 0,
    };
    Some(DigestOptions {
        names: names.to_vec(),
        one_file_system: has(tree_flag::ONE_FILE_SYSTEM),
        excludes: rules,
        links: keeps(sync_flag::LINKS),
        devices: has(tree_flag::SPECIALS) && keeps(sync_flag::DEVICES),
        specials: has(tree_flag::SPECIALS) && keeps(sync_flag::SPECIALS),
        hard_links: has(tree_flag::HARD_LINKS),
        modes,
        users: has(tree_flag::OWNERS) && keeps(sync_flag::USERS),
        groups: has(tree_flag::OWNERS) && keeps(sync_flag::GROUPS),
        numeric_ids: has(tree_flag::NUMERIC_IDS),
        xattrs: has(tree_flag::XATTRS).then(|| sync::attributes(tree)),
        mounts: None,
        guard: None,
    })
}

/// What is alike at both ends and was not told: written by the end that knows, for the account at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Alike(Arc<Mutex<Held>>);

impl Alike {
    fn set(&self, held: Held) {
        *lock(&self.0) = held;
    }

    /// Nothing at all was told, as everything is alike.
    pub(super) fn is_all(&self, told: &TreeDone) -> bool {
        told.entries == 0 && lock(&self.0).roots > 0
    }

    /// The account with what was not told.
    pub(super) fn added_to(&self, copied: TreeCopied) -> TreeCopied {
        let held = lock(&self.0);
        // Where everything is alike not even the roots were told.
        let roots = if copied.entries == 0 { held.roots } else { 0 };
        TreeCopied {
            entries: copied.entries + held.entries + roots,
            unchanged: copied.unchanged + held.files,
            ..copied
        }
    }
}

/// Whether the receiver wants digests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Unknown,
    Wanted,
    Unwanted,
}

/// The sender's entries, with digests before them if there is enough to tell and the receiver wants them.
pub(super) struct Telling {
    source: WalkSource,
    options: Option<DigestOptions>,
    sources: Vec<PathBuf>,
    follow: bool,
    origin: Origin,
    stop: Stop,
    words: Option<Receiver<Message>>,
    wish: Wish,
    told: Option<Told>,
    alike: Alike,
}

impl Telling {
    /// Of a walk of `sources`, for `tree`; what goes into digests is in `options`.
    pub(super) fn new(
        source: WalkSource,
        tree: &Tree,
        options: Option<DigestOptions>,
        sources: Vec<PathBuf>,
        stop: Stop,
    ) -> Telling {
        // A near end that receives has said so in its first message.
        let wish = match tree.role {
            CopyRole::Send => Wish::Wanted,
            CopyRole::Receive => Wish::Unknown,
        };
        Telling {
            source,
            options: options.filter(|_| tree.digests == Some(true)),
            sources,
            follow: tree.flags & tree_flag::FOLLOW_SOURCES != 0,
            origin: Origin::Anywhere,
            stop,
            words: None,
            wish,
            told: None,
            alike: Alike::default(),
        }
    }

    /// With sources whose paths begin at `origin`.
    pub(super) fn at(self, origin: Origin) -> Telling {
        Telling { origin, ..self }
    }

    /// What is not told, once all is.
    pub(super) fn alike(&self) -> Alike {
        self.alike.clone()
    }

    /// The digests to tell, once the receiver wants them.
    fn digests(&mut self) -> Option<DigestsToTell> {
        let options = self.options.take()?;
        own_directory();
        let wish = Cell::new(self.wish);
        let is_over = |_| {
            heard(self.words.as_ref(), &wish, false);
            wish.get() == Wish::Unwanted || self.stop.is_set()
        };
        let scan = Scan::new(&options, None, &is_over);
        let told = scan.sources(&self.origin, &self.sources, self.follow)?.tell()?;
        self.source.expect(told.roots.clone());
        while wish.get() == Wish::Unknown && heard(self.words.as_ref(), &wish, true) {}
        if wish.get() != Wish::Wanted {
            return None;
        }
        let to_tell = DigestsToTell { digests: told.digests.clone(), has_roots: told.has_roots };
        self.told = Some(told);
        Some(to_tell)
    }

    /// Waits for what the receiver has alike; `false` if nobody answers any more.
    fn hear_same(&mut self) -> bool {
        let Some(told) = self.told.take() else { return true };
        while let Some(words) = &self.words {
            match words.recv() {
                Ok(Message::DigestsSame(same)) => {
                    let held = told.held(&same, self.sources.len());
                    self.source.pass_by(held.places.clone());
                    self.alike.set(held);
                    return true;
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Takes the next word on whether digests are wanted; waits for it, perhaps. False if there is none to come.
fn heard(words: Option<&Receiver<Message>>, wish: &Cell<Wish>, waits: bool) -> bool {
    let Some(words) = words else { return false };
    let word = if waits { words.recv().map_err(|_| TryRecvError::Disconnected) } else { words.try_recv() };
    match word {
        Ok(Message::Hello(hello)) if !Knows::of(&hello).digests => wish.set(Wish::Unwanted),
        Ok(Message::DigestsWanted(DigestsWanted { are_wanted: true })) => wish.set(Wish::Wanted),
        Ok(Message::DigestsWanted(_)) => wish.set(Wish::Unwanted),
        Ok(_) => {}
        Err(TryRecvError::Empty) => return false,
        Err(TryRecvError::Disconnected) => {
            wish.set(Wish::Unwanted);
            return false;
        }
    }
    true
}

impl TreeSource for Telling {
    fn listen(&mut self, words: Receiver<Message>) {
        self.words = Some(words);
    }

    fn next_batch(&mut self) -> Option<Batch> {
        if let Some(digests) = self.digests() {
            return Some(Batch { digests: Some(digests), ..Batch::default() });
        }
        if self.hear_same() { self.source.next_batch() } else { None }
    }

    fn removes(&self) -> Option<Arc<dyn Removes>> {
        self.source.removes()
    }

    fn batches_ahead(&self) -> usize {
        self.source.batches_ahead()
    }
}

/// The receiver's own digests, which are made while the sender makes its own.
pub(super) struct Comparing {
    scanned: Receiver<Scanned>,
    since: Instant,
    /// Names after which the scan ends.
    names_max: Arc<AtomicU64>,
    stop: Option<Arc<AtomicBool>>,
    alike: Alike,
    /// All is to be told, unless all is alike: the destination is made anew.
    is_whole: bool,
}

impl Comparing {
    /// Scans what stands where `tree` is to land; `None` if nothing does, or digests say too little.
    pub(super) fn start(
        tree: &Tree,
        names: &[Vec<u8>],
        landing: &Landing,
        is_harmless: bool,
    ) -> Option<Comparing> {
        let options = digest_options(tree, names)?;
        let places = landing.places()?;
        let delete = tree.sync.as_ref().filter(|wish| wish.flags & sync_flag::DELETE != 0).map(|wish| {
            let excluded = wish.flags & sync_flag::DELETE_EXCLUDED != 0;
            DeleteOptions { excluded, max: wish.max_delete }
        });
        let mut write = write_options(tree);
        write.harmless = is_harmless;
        let mut comparing = Comparing::with(move |max| {
            let receiving = ReceivingEnd::new(&write, delete);
            Scan::new(&options, Some(receiving), &|names| names > max.load(Ordering::Relaxed))
                .places(places.directories())
        })?;
        comparing.is_whole = is_switched(tree);
        Some(comparing)
    }

    /// With a scan that looks at so many names at most as it is told meanwhile.
    pub(super) fn with(scan: impl FnOnce(&AtomicU64) -> Scanned + Send + 'static) -> Option<Comparing> {
        let names_max = Arc::new(AtomicU64::new(u64::MAX));
        let max = names_max.clone();
        let (tell, scanned) = mpsc::channel();
        let scan = move || {
            own_directory();
            // Nobody waits any more if it is not taken.
            let _ = tell.send(scan(&max));
        };
        thread::Builder::new().name("digests".into()).spawn(scan).ok()?;
        let alike = Alike::default();
        Some(Comparing { scanned, since: Instant::now(), names_max, stop: None, alike, is_whole: false })
    }

    /// Nobody waits for the scan once this is true.
    pub(super) fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// What is alike, once the sender's digests have come.
    pub(super) fn alike(&self) -> Alike {
        self.alike.clone()
    }

    /// What the sender is told of its digests; `None` if everything is alike. An error if the copy ends meanwhile.
    pub(super) fn compare(self, digests: &Digests) -> Result<Option<DigestsSame>> {
        let patience = SCAN_GRACE + self.since.elapsed() * 2;
        self.compare_within(digests, patience)
    }

    /// The same; nothing is alike if the scan takes longer than `patience` from now on.
    pub(super) fn compare_within(self, digests: &Digests, patience: Duration) -> Result<Option<DigestsSame>> {
        // Where there is far more than the sender has, what it has is soon seen, or its entries are as soon told.
        let max = digests.entries.saturating_mul(2).saturating_add(NAMES_SLACK);
        self.names_max.store(max, Ordering::Relaxed);
        let nothing = || DigestsSame::of(&vec![false; digests.iter().len()]);
        let Some(scanned) = self.wait(patience)? else { return Ok(Some(nothing())) };
        let (same, held) = scanned.compare(digests);
        let is_all = held.roots > 0;
        if self.is_whole && !is_all {
            return Ok(Some(nothing()));
        }
        self.alike.set(held);
        Ok(Some(same).filter(|_| !is_all))
    }

    /// What the scan came to; `None` if it does not end: a file system may not answer, or be slow.
    fn wait(&self, patience: Duration) -> Result<Option<Scanned>> {
        let since = Instant::now();
        loop {
            match self.scanned.recv_timeout(SCAN_SLICE) {
                Ok(scanned) => return Ok(Some(scanned)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire)) {
                return Err(interrupted());
            }
            if since.elapsed() >= patience {
                return Ok(None);
            }
        }
    }
}

impl Drop for Comparing {
    /// Nobody waits for a scan that is not over.
    fn drop(&mut self) {
        self.names_max.store(0, Ordering::Relaxed);
    }
}

/// What a far end that receives says of digests, if it was asked.
pub(super) fn wanted(tree: &Tree, comparing: Option<&Comparing>) -> Option<Message> {
    let are_wanted = comparing.is_some();
    tree.digests.filter(|are_there| *are_there).map(|_| Message::DigestsWanted(DigestsWanted { are_wanted }))
}

/// Digests came where there is nothing to hold them against.
pub(super) fn not_wanted() -> Error {
    Error::new(ErrorKind::Protocol, "sender told digests that nobody asked for")
}
