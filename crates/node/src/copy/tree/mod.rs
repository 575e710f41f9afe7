//! `dray cp -r`: trees and several sources, over the ssh channel or within this machine ([ADR 13]).
//!
//! The sender tells entries as it walks; the receiver asks for contents in batches and writes them as they come. Nothing waits
//! for a hash, and nothing is kept about single files: what is in place with the same size and time, or the same hash, need not
//! come again.
//!
//! [ADR 13]: ../../../../docs/adr/0013-trees-as-a-stream.md

mod again;
#[cfg(test)]
mod again_tests;
#[cfg(test)]
mod copies;
#[cfg(test)]
mod differences;
mod digests;
#[cfg(test)]
mod digests_tests;
mod doors;
mod far;
mod follow;
mod held;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hostile_cuts;
#[cfg(test)]
mod lanes_tests;
#[cfg(test)]
mod left_tests;
mod listing;
mod live;
mod local;
mod near;
mod preview;
mod removal;
#[cfg(test)]
mod rests_tests;
#[cfg(test)]
mod siblings_tests;
mod sink;
mod source;
mod sources;
mod sync;
#[cfg(test)]
mod sync_tests;
mod watching;
mod whole;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::message::{
    CopyRole, EntryFailed, Fault, Hello, PlannedItem, Tree, TreeDone, feature, sync_flag, tree_flag,
};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{
    Changes, Excludes, FakeSuper, ModeChange, NotKept, OwnerChange, Unmade, WalkOptions, WriteOptions,
};

use self::again::Whereabouts;
pub use dray_store::local::tree::{BasisUse, Chosen, read_rule};
pub(super) use far::AskedTrees;
pub use live::{DirectoryWish, SharedTree};
pub(crate) use live::{LiveTrees, OwnDirectories, live_hello};
pub(super) use sources::{read_chosen, read_more};
pub(super) use sync::is_told_a_list;
pub use sync::{Confirm, SyncBackup, SyncBasis, SyncOptions};
use watching::About;

use super::local::advised;
use super::pattern;
use super::{Location, SshOptions, both_remote};
use crate::{Event, Node, Observer, Stop, lock};

/// How to copy trees.
#[derive(Clone, Debug, Default)]
pub struct TreeOptions {
    /// Go into directories (`-r`).
    pub recursive: bool,
    /// Keep modification times and permission bits (`-p`).
    pub preserve: bool,
    /// Keep everything that can be kept (`-a`): `-r -p`, all bits, owners, attributes, ACLs, hard links, devices.
    pub archive: bool,
    /// Owners by number, not by name.
    pub numeric_ids: bool,
    /// Do not leave the file system of each source.
    pub one_file_system: bool,
    /// Patterns of what is left out, as `rsync --exclude` reads them.
    pub excludes: Vec<Vec<u8>>,
    /// Changes of permission bits, as `rsync --chmod` writes them.
    pub chmod: Option<Vec<u8>>,
    /// `USER:GROUP` that everything is given to, either part empty to leave it; names of the receiving host, or numbers.
    pub chown: Option<Vec<u8>>,
    /// Say what would be done and change nothing.
    pub dry_run: bool,
    /// Bytes a second that may be sent.
    pub rate_bytes: Option<u64>,
    /// Compress what is sent.
    pub compress: bool,
    /// Send every content, whatever is there.
    pub whole_file: bool,
    /// Look for what may stand in for older versions of files below this directory here (`--search`).
    pub search: Option<PathBuf>,
    /// Make everything durable before reporting done.
    pub fsync: bool,
    /// The destination is brought to the state of the sources; `preserve` and `archive` count for nothing then.
    pub sync: Option<SyncOptions>,
    /// What ssh is told.
    pub ssh: SshOptions,
}

/// A wish to copy trees.
#[derive(Clone, Debug)]
pub struct TreeRequest {
    /// From, at least one.
    pub sources: Vec<Location>,
    /// To.
    pub destination: Location,
    /// How.
    pub options: TreeOptions,
}

/// What a tree copy did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeCopied {
    /// Entries told.
    pub entries: u64,
    /// Files whose content came; of a dry run, entries that would be made, replaced or compared.
    pub files: u64,
    /// Files that had the right content before.
    pub unchanged: u64,
    /// Bytes of content that came.
    pub bytes: u64,
    /// Entries that failed, at either end.
    pub failed: u64,
    /// Entries deleted, or that would be.
    pub deleted: u64,
    /// The tree took the destination's own name, so that the same command would now go into it.
    pub made_destination: bool,
}

impl TreeCopied {
    fn of(done: &TreeDone, failed: u64, counted: &Counted) -> TreeCopied {
        let planned = counted.planned.load(Ordering::Relaxed);
        TreeCopied {
            deleted: counted.deleted.load(Ordering::Relaxed),
            entries: done.entries,
            files: done.files + planned,
            unchanged: done.unchanged,
            bytes: done.bytes,
            failed: failed.max(done.failed),
            made_destination: false,
        }
    }

    /// Whether any file came, was right already, or was deleted; directories and links are not counted.
    pub fn has_come(&self) -> bool {
        self.files + self.unchanged + self.deleted > 0
    }

    fn add(&mut self, other: &TreeCopied) {
        self.entries += other.entries;
        self.files += other.files;
        self.unchanged += other.unchanged;
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.deleted += other.deleted;
        self.made_destination |= other.made_destination;
    }
}

impl TreeOptions {
    fn flags(&self, must_be_directory: bool) -> u64 {
        let is_copy = self.sync.is_none();
        let kept = self.sync.as_ref().map_or(0, SyncOptions::tree_flags);
        let sum = [
            (self.recursive || self.archive, tree_flag::RECURSIVE),
            (is_copy && (self.preserve || self.archive), tree_flag::TIMES | tree_flag::MODES),
            (is_copy && self.archive, ARCHIVE),
            (is_copy && !self.archive, tree_flag::FOLLOW_SOURCES),
            (true, kept),
            (self.numeric_ids, tree_flag::NUMERIC_IDS),
            (self.one_file_system, tree_flag::ONE_FILE_SYSTEM),
            (is_copy && self.whole_file, tree_flag::WHOLE_FILE),
            (self.fsync, tree_flag::FSYNC),
            (must_be_directory, tree_flag::INTO_DIRECTORY),
            (self.dry_run, tree_flag::DRY_RUN),
            (self.compress, tree_flag::COMPRESSED),
        ];
        sum.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
    }
}

/// What the receiver told of single entries.
#[derive(Debug, Default)]
struct Counted {
    planned: AtomicU64,
    deleted: AtomicU64,
}

impl Counted {
    /// Counts what is told of entries and tells the user.
    fn tell(&self, items: &[PlannedItem], is_dry: bool, is_upload: bool, observer: &dyn Observer) {
        let deleted = items.iter().filter(|item| item.action == 4).count() as u64;
        self.deleted.fetch_add(deleted, Ordering::Relaxed);
        if is_dry {
            self.planned.fetch_add(items.len() as u64 - deleted, Ordering::Relaxed);
        }
        items.iter().for_each(|item| preview::tell(observer, item, is_upload));
    }
}

/// What `-a` adds.
const ARCHIVE: u64 = tree_flag::SPECIAL_MODES
    | tree_flag::OWNERS
    | tree_flag::XATTRS
    | tree_flag::HARD_LINKS
    | tree_flag::SPECIALS;

/// What the other end of a tree copy knows.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::copy) struct Knows {
    lanes: bool,
    deltas: bool,
    rests: bool,
    code: bool,
    again: bool,
    compared: bool,
    digests: bool,
    packs: bool,
}

impl Knows {
    /// What its hello says.
    pub(in crate::copy) fn of(hello: &Hello) -> Knows {
        let knows = |name: &str| hello.features.iter().any(|known| known == name);
        Knows {
            lanes: knows(feature::TREE_LANES),
            deltas: knows(feature::TREE_DELTA),
            rests: knows(feature::TREE_RESTS),
            code: knows(feature::TREE_CODE),
            again: knows(feature::TREE_AGAIN),
            compared: knows(feature::TREE_COMPARED),
            digests: knows(feature::TREE_DIGESTS),
            packs: knows(feature::PACKED_TREE),
        }
    }
}

/// How the sender walks. Patterns see the sources under `names`.
fn walk_options(tree: &Tree, names: &[Vec<u8>]) -> Result<WalkOptions> {
    sync::require_safe(tree, names)?;
    let excludes: Vec<Vec<u8>> = tree.excludes.iter().flatten().map(|pattern| pattern.to_vec()).collect();
    let has = |flag| tree.flags & flag != 0;
    Ok(WalkOptions {
        recursive: has(tree_flag::RECURSIVE),
        directories: sync::has(tree, sync_flag::DIRECTORIES),
        removes: removal::removes(tree),
        spared: sync::spared(tree),
        follow_sources: has(tree_flag::FOLLOW_SOURCES),
        one_file_system: has(tree_flag::ONE_FILE_SYSTEM),
        excludes: tree.sync.as_deref().map_or_else(|| Ok(Excludes::new(&excludes)), sync::rules)?,
        names: names.to_vec(),
        xattrs: has(tree_flag::XATTRS),
        hard_links: has(tree_flag::HARD_LINKS),
        specials: has(tree_flag::SPECIALS),
        attributes: sync::attributes(tree),
        tells_vanished: tree.sync.is_some(),
        prunes_empty: sync::has(tree, sync_flag::PRUNE_EMPTY),
        chosen: None,
        mounts: None,
        guard: None,
        fake: sync::fake_super(tree, CopyRole::Send),
    })
}

/// How the receiver writes.
fn write_options(tree: &Tree) -> WriteOptions {
    let has = |flag| tree.flags & flag != 0;
    WriteOptions {
        times: has(tree_flag::TIMES),
        modes: has(tree_flag::MODES),
        special_modes: has(tree_flag::SPECIAL_MODES),
        owners: has(tree_flag::OWNERS),
        numeric_ids: has(tree_flag::NUMERIC_IDS),
        xattrs: has(tree_flag::XATTRS),
        whole_file: has(tree_flag::WHOLE_FILE),
        harmless: false,
        confined: None,
        masked: false,
        roots_are_directories: false,
        durable: has(tree_flag::FSYNC),
    }
}

/// What the receiver changes.
fn changes(tree: &Tree, reach: &sync::Reach<'_>) -> Result<Changes> {
    let sync = sync::options(tree, reach)?;
    let gives_any = sync.as_ref().is_some_and(|sync| sync.fake == FakeSuper::On);
    Ok(Changes {
        never_compares: sync::compares_nothing(tree),
        modes: tree.modes.as_ref().map(|text| ModeChange::parse(text)).transpose()?,
        owner: tree
            .owner
            .as_ref()
            .map_or_else(|| Ok(OwnerChange::default()), |text| OwnerChange::parse(text, gives_any))?,
        sync,
    })
}

/// True if the sender is to name owners.
fn names_owners(tree: &Tree) -> bool {
    tree.flags & tree_flag::OWNERS != 0 && tree.flags & tree_flag::NUMERIC_IDS == 0
}

/// The name under which a source goes into a directory: its last component, or nothing for `.`, `..`, `/` and the home
/// directory, whose entries go there themselves.
fn landing_name(path: &Path) -> Vec<u8> {
    let text = path.as_os_str().as_bytes();
    let ends_in_dot = text.ends_with(b"/.") || text == b"." || text == b"~";
    let name = path.file_name().filter(|_| !ends_in_dot);
    name.map(|name| name.as_bytes().to_vec()).unwrap_or_default()
}

/// What could not be kept and is a failure: the path and why.
fn not_kept(found: &mut NotKept) -> impl Iterator<Item = held::Failed> + use<> {
    let attributes = std::mem::take(&mut found.attributes).into_iter().map(|(what, entries)| {
        let what = format!("not kept on {}: {what}", entries_told(entries));
        (b".".to_vec(), Error::new(ErrorKind::Unsupported, what))
    });
    std::mem::take(&mut found.directories).into_iter().chain(attributes)
}

/// What could not be had here and nobody would expect.
fn left_out(what: &str, entries: u64) -> Event {
    Event::Warning(format!("left out on {}: {what}", entries_told(entries)))
}

fn entries_told(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

/// Shows an entry that failed, or what was left out.
fn show(observer: &dyn Observer, failed: &EntryFailed) {
    if let Some(entries) = failed.left_out {
        observer.event(left_out(&failed.text, entries));
        return;
    }
    let fault = Fault { handle: None, kind: failed.kind, text: failed.text.clone() }.to_error("");
    let reason = match failed.unnamed {
        Some(1) => format!("and 1 more entry: {fault}"),
        Some(count) => format!("and {count} more entries: {fault}"),
        None => fault.to_string(),
    };
    let path = PathBuf::from(OsStr::from_bytes(&failed.path));
    observer.event(Event::EntryFailed { path, kind: fault.kind(), reason });
}

/// Holds back the first failure of a copy of one source: if that was all, it is the copy's own error; and, of any copy, that its
/// destination could not be made, which is its error, too, if nothing came to pass.
struct Holding<'a> {
    observer: &'a dyn Observer,
    request: &'a TreeRequest,
    held: Mutex<Held>,
    /// Each source finds so, once.
    unmade: Mutex<Vec<Failure>>,
}

/// Path, kind and reason.
type Failure = (PathBuf, ErrorKind, String);

enum Held {
    Nothing,
    Failure(Failure),
    /// There were more, or something came; they are told as they come.
    Passed,
}

impl<'a> Holding<'a> {
    fn new(observer: &'a dyn Observer, request: &'a TreeRequest) -> Holding<'a> {
        Holding { observer, request, held: Mutex::new(Held::Nothing), unmade: Mutex::default() }
    }

    /// Whether nothing can have come to pass if this failed: nothing goes into what could not be made, and nothing is deleted then.
    fn is_unmade(&self, path: &Path, reason: &str) -> bool {
        let is_one = match &self.request.sources[..] {
            [Location::Local(_)] => true,
            // What a pattern there stands for may be several.
            [Location::Remote { path, .. }] => !pattern::is_pattern(path),
            _ => false,
        };
        is_unmade_root(path, reason, self.request)
            && (is_one || Unmade::of(reason) == Some(Unmade::Destination))
    }

    /// Holds such a failure back, unless there is no room: whoever says the same again says nothing new, and nobody says more than there are sources.
    fn hold_unmade(&self, failure: Failure) -> bool {
        let mut unmade = lock(&self.unmade);
        let is_held = unmade.contains(&failure);
        let has_room = unmade.len() < self.request.sources.len();
        if !is_held && has_room {
            unmade.push(failure);
        }
        is_held || has_room
    }

    fn release(&self) {
        if let Held::Failure(failure) = std::mem::replace(&mut *lock(&self.held), Held::Passed) {
            self.tell(failure);
        }
    }

    fn tell(&self, (path, kind, reason): Failure) {
        self.observer.event(Event::EntryFailed { path, kind, reason });
    }

    /// The copy is over.
    fn end(&self, copied: &TreeCopied) -> Result<()> {
        let has_come = copied.has_come();
        let unmade = lock(&self.unmade).first().cloned();
        if let Some((path, kind, reason)) = unmade.filter(|_| !has_come) {
            self.release();
            return Err(sole_error(&path, kind, &reason, self.request));
        }
        let deletes = self.request.options.sync.as_ref().is_some_and(|sync| sync.delete);
        if copied.failed == 1
            && self.request.sources.len() == 1
            && !has_come
            && copied.entries <= u64::from(!deletes)
            && let Held::Failure((path, kind, reason)) =
                std::mem::replace(&mut *lock(&self.held), Held::Passed)
        {
            return Err(sole_error(&path, kind, &reason, self.request));
        }
        self.release_all();
        Ok(())
    }

    /// Nothing of it is the error that the copy ends with.
    fn release_all(&self) {
        self.release();
        std::mem::take(&mut *lock(&self.unmade)).into_iter().for_each(|failure| self.tell(failure));
    }
}

/// Whether that is the receiver's word for the directory of a source, or the one for all of them, which it could not make.
fn is_unmade_root(path: &Path, reason: &str, request: &TreeRequest) -> bool {
    // Of `SRC/.` and `SRC/` it is something in it.
    let is_named = || {
        request.sources.iter().all(|source| {
            let (Location::Local(from) | Location::Remote { path: from, .. }) = source;
            !sync::name_of(from, request.options.sync.is_some()).is_empty()
        })
    };
    // The directory that everything goes into is told as ".", or by its own name where the only source has that.
    match (below(path).components().count(), Unmade::of(reason)) {
        (0 | 1, Some(Unmade::Destination)) => true,
        (1, Some(Unmade::Entry)) => is_named(),
        _ => false,
    }
}

/// Whether the name of what could not be made is that of the destination `to` itself, which is not there, as older versions tell it: no source has it.
fn is_own_name(path: &Path, to: &Path, request: &TreeRequest) -> bool {
    let name = below(path);
    let has_name = |source: &Location| {
        let (Location::Local(from) | Location::Remote { path: from, .. }) = source;
        pattern::is_pattern(from) || landing_name(from) == name.as_os_str().as_bytes()
    };
    to.file_name() == Some(name.as_os_str()) && !request.sources.iter().any(has_name)
}

/// The path of an entry in its destination, empty for that itself.
fn below(path: &Path) -> &Path {
    path.strip_prefix(".").unwrap_or(path)
}

/// The error of a copy of one source of which nothing but this came to pass.
fn sole_error(path: &Path, kind: ErrorKind, reason: &str, request: &TreeRequest) -> Error {
    let at = |error: Error, place: &Location, role| match place {
        Location::Local(_) => error,
        Location::Remote { host, .. } => {
            let host = host.to_string_lossy();
            advised(error.context(&host), Some(&host), role)
        }
    };
    if is_unmade_root(path, reason, request) {
        let (Location::Local(to) | Location::Remote { path: to, .. }) = &request.destination;
        let to = match Unmade::of(reason) {
            Some(Unmade::Entry) if !is_own_name(path, to, request) => to.join(below(path)),
            _ => to.clone(),
        };
        let cannot = if reason.starts_with("make ") { "cannot " } else { "" };
        let error = Error::new(kind, format!("{to:?}: {cannot}{reason}"));
        return advised(at(error, &request.destination, CopyRole::Receive), None, CopyRole::Receive);
    }
    let error = Error::new(kind, format!("{path:?}: {reason}"));
    match &request.sources[..] {
        // The path is the sender's.
        [source @ (Location::Local(from) | Location::Remote { path: from, .. })]
            if path == from && kind == ErrorKind::NotFound =>
        {
            at(error, source, CopyRole::Send)
                .or_advise("nothing has that name, or it is a symbolic link to nothing: is the path right?")
        }
        _ => error,
    }
}

impl Observer for Holding<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::EntryFailed { ref path, kind, ref reason }
                if self.is_unmade(path, reason) && self.hold_unmade((path.clone(), kind, reason.clone())) => {
            }
            Event::EntryFailed { path, kind, reason } if matches!(*lock(&self.held), Held::Nothing) => {
                *lock(&self.held) = Held::Failure((path, kind, reason));
            }
            Event::TreeProgress { done_bytes: 0 } => self.observer.event(event),
            Event::EntryFailed { .. } | Event::TreeProgress { .. } => {
                self.release();
                self.observer.event(event);
            }
            event => self.observer.event(event),
        }
    }
}

impl Node {
    /// Copies trees: sources here to one place there, sources there to one place here, or within this machine.
    pub fn copy_trees(
        &self,
        request: &TreeRequest,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        self.watched(&About::request(request), observer, |observer| self.copy_any(request, observer, stop))
    }

    /// The same, of which nothing is told to others.
    fn copy_any(&self, request: &TreeRequest, observer: &dyn Observer, stop: &Stop) -> Result<TreeCopied> {
        let holding = Holding::new(observer, request);
        let copied = self.copy_many(request, &holding, stop).inspect_err(|_| holding.release_all())?;
        holding.end(&copied)?;
        Ok(copied)
    }

    fn copy_many(&self, request: &TreeRequest, observer: &dyn Observer, stop: &Stop) -> Result<TreeCopied> {
        let (here, there) = sources::by_machine(sources::once(&request.sources, observer));
        if request.options.sync.is_some() {
            sources::require_one_machine(&here, &there)?;
        }
        if let ([path], []) = (&here[..], &there[..])
            && !request.options.recursive
            && !request.options.archive
            && request.options.sync.as_ref().is_none_or(|sync| sync.chosen.is_none() && !sync.directories)
            && path.is_dir()
        {
            return Err(Error::new(ErrorKind::Usage, format!("{path:?} is a directory"))
                .advise("-r copies directories"));
        }
        let must_be_directory = request.sources.len() > 1;
        let options = &request.options;
        let Some(source) = request.sources.first() else {
            return Err(Error::new(ErrorKind::Usage, "no source"));
        };
        let whereabouts = Whereabouts::new(source, &request.destination, observer);
        let copied = match &request.destination {
            Location::Remote { .. } if !there.is_empty() => {
                let command = if options.sync.is_some() { "sync" } else { "cp" };
                return Err(both_remote(command));
            }
            Location::Remote { host, path } => {
                self.upload_trees(&here, host, path, must_be_directory, options, &whereabouts, observer, stop)
            }
            Location::Local(path) => {
                let wish = (path.as_path(), must_be_directory);
                self.copy_to_here(&here, there, wish, options, &whereabouts, observer, stop)
            }
        };
        copied
            .map(|copied| whereabouts.complete(copied, options.dry_run))
            .map_err(|error| whereabouts.advise(error))
    }

    #[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
    fn copy_to_here(
        &self,
        here: &[PathBuf],
        there: Vec<(&OsStr, Vec<PathBuf>)>,
        (path, must_be_directory): (&Path, bool),
        options: &TreeOptions,
        whereabouts: &Whereabouts<'_>,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let mut copied = TreeCopied::default();
        if !here.is_empty() {
            let done =
                self.copy_trees_here(here, path, must_be_directory, options, whereabouts, observer, stop)?;
            copied.add(&done);
        }
        for (host, paths) in there {
            copied.add(&self.download_trees(
                host,
                &paths,
                path,
                must_be_directory,
                options,
                whereabouts,
                observer,
                stop,
            )?);
        }
        Ok(copied)
    }
}

/// The first message of a tree copy.
fn tree_message(
    role: CopyRole,
    paths: Vec<Vec<u8>>,
    names: Vec<Vec<u8>>,
    options: &TreeOptions,
    must_be_directory: bool,
) -> Result<Tree> {
    let usage = |what: String| Error::new(ErrorKind::Usage, what);
    sources::check(&paths, &names)?;
    let max = dray_core::limits::TREE_EXCLUDES_MAX;
    if options.excludes.len() > max || options.excludes.iter().any(|pattern| pattern.len() > 255) {
        return Err(usage(format!("more than {max} patterns, or one of more than 255 bytes")));
    }
    if let Some(modes) = &options.chmod {
        // Said here, not by the other end.
        ModeChange::parse(modes)?;
    }
    let into_directory = paths.first().is_some_and(|path| path.ends_with(b"/")) || must_be_directory;
    let wish =
        |sync: &SyncOptions| sync.wish(options.dry_run, options.whole_file, into_directory).map(Box::new);
    let sync = options.sync.as_ref().map(wish).transpose()?;
    let is_long = |text: &Option<Vec<u8>>| text.as_ref().is_some_and(|text| text.len() > 255);
    if is_long(&options.chmod) || is_long(&options.chown) {
        return Err(usage("--chmod or --chown with more than 255 bytes".into()));
    }
    let list = |list: Vec<Vec<u8>>| list.into_iter().map(Into::into).collect();
    Ok(Tree {
        role,
        paths: list(paths),
        names: list(names),
        flags: options.flags(must_be_directory),
        excludes: (!options.excludes.is_empty()).then(|| list(options.excludes.clone())),
        modes: options.chmod.clone().map(Into::into),
        owner: options.chown.clone().map(Into::into),
        rate_bytes: options.rate_bytes,
        sync,
        origin: None,
        digests: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Observer for Nobody {
        fn event(&self, _event: Event) {}
    }

    /// Issue "an error is told once": one failure that was all is the copy's own error, but not where something was, or may have been, deleted.
    #[test]
    fn one_failure_is_the_error_of_a_copy_that_did_nothing_else() {
        let request = |source: &str, sync| TreeRequest {
            sources: vec![Location::parse(source.into()).unwrap()],
            destination: Location::Local("/ro/new".into()),
            options: TreeOptions { sync, ..TreeOptions::default() },
        };
        let told = |path: &str, source: &str, reason: &str, copied: &TreeCopied, deletes| {
            let sync = SyncOptions { delete: deletes, ..SyncOptions::default() };
            let request = request(source, deletes.then_some(sync));
            let holding = Holding::new(&Nobody, &request);
            holding.event(Event::EntryFailed {
                path: path.into(),
                kind: ErrorKind::Refused,
                reason: reason.into(),
            });
            holding.end(copied)
        };
        let unmade = "make the directory: no";
        let ends = |copied: TreeCopied, deletes| told("x", "x", "delete it: no", &copied, deletes);
        let failed = |entries| TreeCopied { entries, failed: 1, ..TreeCopied::default() };
        assert!(ends(failed(1), false).is_err() && ends(failed(0), true).is_err());
        // The root of an empty source, with a deletion that failed, or more than may be deleted.
        assert!(ends(failed(1), true).is_ok());
        assert!(ends(TreeCopied { deleted: 5, ..failed(1) }, true).is_ok());
        // A root that could not be made, with what is in it; but not an entry of one that was there or was made.
        let refused = |path, source, copied: &TreeCopied| told(path, source, unmade, copied, false);
        let error = refused("new", "h:dir", &failed(9)).unwrap_err();
        assert_eq!((error.kind(), &error.to_string()[..16]), (ErrorKind::Refused, "\"/ro/new\": canno"));
        assert!(told("new", "dir", unmade, &failed(2), true).is_err(), "nor is anything deleted then");
        assert!(told("new", "dir", "make the directory of the backups: no", &failed(2), true).is_ok());
        assert!(error.advice().is_some() && refused("new/folder", "dir", &failed(9)).is_ok());
        assert!(refused("folder", "dir/.", &failed(9)).is_ok());
        assert!(refused("new", "dir", &TreeCopied { files: 1, ..failed(9) }).is_ok());
        // The place of all of them, which `sync SRC/ DST` makes; nothing can have been deleted there.
        for deletes in [false, true] {
            let sync = SyncOptions { delete: deletes, ..SyncOptions::default() };
            let request = request("dir/", Some(sync));
            let holding = Holding::new(&Nobody, &request);
            let reason = "make the destination: no".to_owned();
            holding.event(Event::EntryFailed { path: ".".into(), kind: ErrorKind::Refused, reason });
            let error = holding.end(&failed(9)).unwrap_err();
            assert_eq!(error.to_string(), "\"/ro/new\": cannot make the destination: no");
            assert!(error.advice().unwrap().contains("your user may write"), "{error:?}");
        }
        // Each of several sources finds that, beside what else fails; but nothing else is the error of several.
        for (reasons, is_one) in
            [(["make the destination: no"; 2], true), (["make the directory: no"; 2], false)]
        {
            let mut request = request("dir/", Some(SyncOptions::default()));
            request.sources.push(Location::parse("more/".into()).unwrap());
            let holding = Holding::new(&Nobody, &request);
            for reason in reasons.map(String::from) {
                holding.event(Event::EntryFailed { path: ".".into(), kind: ErrorKind::Refused, reason });
            }
            let copied = TreeCopied { failed: 2, ..failed(9) };
            assert_eq!(holding.end(&copied).is_err(), is_one, "{reasons:?}");
        }
        // What has the destination's name in a source that is in it itself, as far as can be told: others may have come beside it. What is
        // below a destination that is there is told by its whole path.
        for (source, reason, place) in [
            ("dir/.", "make the directory: no", None),
            ("dir/.", "make the destination: no", Some("/ro/new")),
            // As older versions tell the destination's own name; but where a source has that it is a directory in it.
            ("dir", "make the directory: no", Some("/ro/new")),
            ("new", "make the directory: no", Some("/ro/new/new")),
            ("h:d*", "make the directory: no", None),
        ] {
            let request = request(source, None);
            let holding = Holding::new(&Nobody, &request);
            let reason = reason.to_owned();
            holding.event(Event::EntryFailed { path: "new".into(), kind: ErrorKind::Refused, reason });
            let ended = holding.end(&failed(9)).err().map(|error| error.to_string());
            let is_place = ended
                .as_ref()
                .zip(place)
                .is_some_and(|(told, place)| told.starts_with(&format!("{place:?}: ")));
            assert!(is_place || (ended.is_none() && place.is_none()), "{source}: {ended:?}");
        }
        // Whoever says so again and again is not believed more often than there are sources.
        let endless = request("dir", None);
        let holding = Holding::new(&Nobody, &endless);
        for _ in 0..100 {
            let reason = "make the destination: no".to_owned();
            holding.event(Event::EntryFailed { path: ".".into(), kind: ErrorKind::Refused, reason });
        }
        assert_eq!(lock(&holding.unmade).len(), 1);
        holding.event(Event::EntryFailed {
            path: ".".into(),
            kind: ErrorKind::Refused,
            reason: "make the destination: never".into(),
        });
        assert_eq!(lock(&holding.unmade).len(), 1);
        // Beside what cannot be read in a source, too; that is told.
        let request_of_one = request("dir", None);
        let holding = Holding::new(&Nobody, &request_of_one);
        for (path, reason) in [("dir/x", "read it: no"), ("new", "make the directory: no")] {
            let (path, reason) = (path.into(), reason.to_owned());
            holding.event(Event::EntryFailed { path, kind: ErrorKind::Refused, reason });
        }
        assert!(holding.end(&TreeCopied { failed: 2, ..failed(9) }).is_err());
        // Where it was looked for.
        let missing = |source| {
            let request = request(source, None);
            let holding = Holding::new(&Nobody, &request);
            let reason = "read it: no".to_owned();
            holding.event(Event::EntryFailed { path: "dir/".into(), kind: ErrorKind::NotFound, reason });
            holding.end(&failed(0)).unwrap_err()
        };
        assert!(
            missing("me@web:dir/").to_string().starts_with("me@web: \"dir/\""),
            "{}",
            missing("me@web:dir/")
        );
        assert!(missing("me@web:dir/").advice().unwrap().contains("on me@web"));
        assert!(missing("dir/").advice().unwrap().contains("is the path right"));
    }

    #[test]
    fn sources_land_under_their_last_name() {
        for (path, name) in [
            ("a", "a"),
            ("a/", "a"),
            ("/x/a/b", "b"),
            (".", ""),
            ("..", ""),
            ("a/.", ""),
            ("a/..", ""),
            ("/", ""),
            ("~", ""),
        ] {
            assert_eq!(landing_name(Path::new(path)), name.as_bytes(), "{path}");
        }
    }
    /// ADR 23, ADR 28: a peer that does not name the feature is asked for contents alone, or for chunks alone.
    #[test]
    fn an_old_peer_knows_no_differences() {
        let features = vec![feature::TREE.to_owned(), feature::TREE_LANES.to_owned()];
        let mut hello = Hello { version: 1, features, required: Vec::new(), agent: String::new() };
        assert!(!Knows::of(&hello).deltas);
        hello.features.push(feature::TREE_DELTA.into());
        assert!(Knows::of(&hello).deltas && !Knows::of(&hello).rests);
        hello.features.push(feature::TREE_RESTS.into());
        assert!(Knows::of(&hello).rests && !Knows::of(&hello).code);
        hello.features.push(feature::TREE_CODE.into());
        assert!(Knows::of(&hello).code);
        assert!(!Knows::of(&hello).packs);
        // Of objects that one packs, and of trees it does not.
        hello.features.push(feature::PACKED.into());
        assert!(!Knows::of(&hello).packs);
        hello.features.push(feature::PACKED_TREE.into());
        assert!(Knows::of(&hello).packs);
    }
}
