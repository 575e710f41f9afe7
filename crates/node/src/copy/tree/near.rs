//! The near end of a tree copy over ssh.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use dray_core::limits::TREE_SOURCES_MAX;
use dray_core::message::{
    CopyRole, EntryFailed, Hello, InPlace, Message, PlannedItem, Sources, Tree, feature, sync_flag, tree_flag,
};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::negotiate;
use dray_store::local::tree::{DigestOptions, Landing, Origin, Preview, TreeWriter};
use dray_transfer::transport::{Channel, PipeChannel, RateLimit, push_control};
use dray_transfer::tree::{Removes, TreeSource, send, take};

use super::super::CopyOptions;
use super::super::far_end::FarEnd;
use super::super::local::{SILENCE_MAX, advised, is_local_host, patience};
use super::super::pattern;
use super::super::remote::{packed, read_control_until, unpacked};
use super::again::{Hears, Whereabouts, source_here, source_there};
use super::digests::{Comparing, Telling, digest_options};
use super::doors::{GivingDoors, Seen, TakingDoors};
use super::preview::Previewing;
use super::removal::{Arrivals, Removal};
use super::sink::{Doors, Writing};
use super::source::WalkSource;
use super::sources::{push_chosen, push_tree};
use super::sync::{SyncOptions, add_near, deletes, landing as landing_of, name_of, require_safe};
use super::{
    Counted, Knows, TreeCopied, TreeOptions, changes, landing_name, names_owners, show, sync, tree_message,
    walk_options, whole, write_options,
};
use crate::search::Scope;
use crate::{Event, Node, Observer, Stop, lock};

impl Node {
    /// The hello of a tree copy: who does not know trees is refused by name.
    pub(super) fn tree_hello(&self, sync: Option<&SyncOptions>) -> Hello {
        Hello { required: required(sync), ..self.hello() }
    }

    #[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
    pub(super) fn upload_trees(
        &self,
        sources: &[PathBuf],
        host: &OsStr,
        path: &Path,
        must_be_directory: bool,
        options: &TreeOptions,
        whereabouts: &Whereabouts<'_>,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let is_sync = options.sync.is_some();
        let names: Vec<Vec<u8>> = sources.iter().map(|source| name_of(source, is_sync)).collect();
        let destination = vec![path.as_os_str().as_bytes().to_vec()];
        let mut tree =
            tree_message(CopyRole::Receive, destination, names.clone(), options, must_be_directory)?;
        require_safe(&tree, &names)?;
        add_near(&mut tree, sources.iter().map(PathBuf::as_path));
        let may_be_renamed = may_be_renamed(&names, must_be_directory, is_sync);
        let known = if may_be_renamed { source_here(self, &sources[0]) } else { Vec::new() };
        tree.origin = known.first().map(|known| Box::new((*known).into()));
        let mounts = options.sync.as_ref().and_then(|sync| sync.mounts.clone());
        let digests = digest_options(&tree, &names).map(|it| DigestOptions { mounts, ..it });
        tree.digests = digests.is_some().then_some(true);
        let (mut far, channel) = FarEnd::start(Some(host), &options.ssh, observer, stop)?;
        let mut preface = Vec::new();
        push_control(&mut preface, &Message::Hello(self.tree_hello(options.sync.as_ref())));
        push_tree(&mut preface, &tree);
        let pace = options.rate_bytes.map(RateLimit::new);
        let doors = match may_dial(options) {
            true => Some(GivingDoors::new(self, seen(host))?),
            false => None,
        };
        let channel = packed(Box::new(channel), options.compress, pace.as_ref(), &mut preface)?;
        // Its own stop, so that a walk that nobody listens to ends.
        let walk_stop = Stop::new();
        let source = WalkSource::new(
            sources.to_vec(),
            sync::walk_chosen(walk_options(&tree, &names)?, options),
            names_owners(&tree),
            walk_stop.clone(),
        )
        .telling_listed(deletes(&tree))
        .confirming(options.sync.as_ref().and_then(|sync| sync.confirm.clone()))
        .removing(Removal::of(&tree, Origin::Anywhere));
        let mut source = Telling::new(source, &tree, digests, sources.to_vec(), walk_stop.clone());
        let alike = source.alike();
        let (failed, unmoved) = (AtomicU64::new(0), Arc::<Unmoved>::default());
        let ours = self.tree_hello(options.sync.as_ref());
        let name = far.host.clone();
        let (is_heard, mut is_greeted) = (Cell::new(false), false);
        let (counted, mut done_bytes) = (Counted::default(), 0);
        let mut heard = |message: Option<Message>| {
            unmoved.show(&failed, observer);
            let Some(message) = message else {
                if stop.is_set() {
                    walk_stop.set();
                    return Err(interrupted());
                }
                if is_greeted {
                    // The far end says less often where it stands if nothing comes.
                    observer.event(Event::TreeProgress { done_bytes });
                }
                return Ok(());
            };
            is_heard.set(true);
            match message {
                Message::Hello(theirs) if !is_greeted => {
                    is_greeted = true;
                    if may_be_renamed && !Knows::of(&theirs).again {
                        whereabouts.nobody_says();
                    }
                    negotiate(&ours, &theirs).map(|_| ())
                }
                Message::Fault(fault) => Err(fault.to_error(&name)),
                _ if !is_greeted => {
                    Err(Error::new(ErrorKind::Protocol, "the far end did not say hello first"))
                }
                Message::Progress(progress) => {
                    done_bytes = progress.done_bytes;
                    observer.event(Event::TreeProgress { done_bytes });
                    Ok(())
                }
                Message::EntryFailed(entry) => {
                    failed.fetch_add(entry.count(), Ordering::Relaxed);
                    show(observer, &entry);
                    Ok(())
                }
                Message::Planned(planned) if options.dry_run || is_sync => {
                    counted.tell(&planned.items, options.dry_run, true, observer);
                    Ok(())
                }
                Message::Landed(landed) if tree.origin.is_some() => {
                    whereabouts.hear_from_there(landed);
                    Ok(())
                }
                Message::Direct(theirs) => doors.as_ref().map_or(Ok(()), |doors| doors.handle_direct(theirs)),
                _ => Err(Error::new(ErrorKind::Protocol, "the far end sent a message out of place")),
            }
        };
        let mut counting =
            Counting { source: &mut source, failed: &failed, observer, unmoved: unmoved.clone() };
        let first_patience = patience();
        let silence_max = sync::patience(&tree, SILENCE_MAX);
        let limit = || if is_heard.get() { silence_max } else { first_patience };
        let lanes = doors.as_ref().map(|doors| &*doors.lanes);
        let result = send(channel, preface, &mut counting, lanes, &mut heard, &limit);
        walk_stop.set();
        unmoved.show(&failed, observer);
        match result {
            Ok(done) => {
                far.done();
                Ok(alike.added_to(TreeCopied::of(&done, failed.load(Ordering::Relaxed), &counted)))
            }
            Err(error) if stop.is_set() => {
                far.kill();
                Err(if error.kind() == ErrorKind::Interrupted { error } else { interrupted() })
            }
            Err(error) => {
                if error.kind() == ErrorKind::TimedOut {
                    far.kill();
                }
                Err(advised(far.explain(error, is_heard.get()), Some(&far.host), CopyRole::Receive))
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
    pub(super) fn download_trees(
        &self,
        host: &OsStr,
        paths: &[PathBuf],
        destination: &Path,
        must_be_directory: bool,
        options: &TreeOptions,
        whereabouts: &Whereabouts<'_>,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let search = self.named_search(options, observer)?;
        // Names come from the user's own words, never from the far end.
        let is_sync = options.sync.is_some();
        let names: Vec<Vec<u8>> = paths.iter().map(|path| name_of(path, is_sync)).collect();
        let has_patterns = paths.iter().any(|path| pattern::is_pattern(path));
        let above = options.sync.as_ref().map(|sync| sync.above(options.dry_run));
        // What patterns stand for is known later.
        let resolve = |names: &[Vec<u8>], is_many| {
            let must_be_directory = must_be_directory || is_many;
            let known = match may_be_renamed(names, must_be_directory, is_sync) {
                true => source_there(self, host, &options.ssh, named(&paths[0], &names[0]).as_deref()),
                false => Vec::new(),
            };
            let origin = Origin::Anywhere;
            let landing = landing_of(&origin, destination, names, must_be_directory, above, known)?;
            let is_switched = options.sync.as_ref().is_some_and(|sync| sync.atomic);
            whole::landing(landing, is_switched, &origin, destination)
        };
        let asked = paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        let mut tree = tree_message(CopyRole::Send, asked, names.clone(), options, must_be_directory)?;
        if !has_patterns {
            require_safe(&tree, &names)?;
        }
        let landing = if has_patterns { None } else { Some(resolve(&names, false)?) };
        if let Some(wish) = &mut tree.sync {
            let is_slashed = destination.as_os_str().as_bytes().ends_with(b"/");
            wish.flags &= !sync_flag::INTO_DIRECTORY;
            wish.flags |= if is_slashed || must_be_directory { sync_flag::INTO_DIRECTORY } else { 0 };
        }
        add_near(&mut tree, std::iter::once(destination));
        if has_patterns {
            tree.flags |= tree_flag::PATTERNS;
        }
        let comparing = landing.as_ref().and_then(|landing| Comparing::start(&tree, &names, landing, false));
        tree.digests = comparing.is_some().then_some(true);
        let (mut far, mut channel) = FarEnd::start(Some(host), &options.ssh, observer, stop)?;
        let (mut is_heard, mut knows) = (false, Knows::default());
        let greeted = || {
            let (theirs, deadline) = self.ask_for_trees(&mut channel, host, &tree, options, stop)?;
            knows = Knows::of(&theirs);
            is_heard = true;
            match landing {
                Some(landing) => Ok((landing, names)),
                None => {
                    let names = found_sources(&mut channel, host, paths, &names, None, deadline, stop)?;
                    require_safe(&tree, &names)?;
                    // A pattern that stands for several wants a directory, as several sources do.
                    Ok((resolve(&names, names.len() > 1)?, names))
                }
            }
        };
        let (landing, names) = match greeted() {
            Ok(greeted) => greeted,
            Err(error) => {
                if stop.is_set() {
                    far.kill();
                    return Err(interrupted());
                }
                return Err(advised(far.explain(error, is_heard), Some(&far.host), CopyRole::Send));
            }
        };
        let may_dial = knows.lanes && may_dial(options);
        let doors = may_dial.then(|| TakingDoors::new(self, seen(host)));
        let hears = |landed| whereabouts.hear(landed);
        let hears = Hears::Here(&hears);
        receive_trees(
            far, channel, landing, &names, &tree, options, search, hears, observer, stop, doors, knows,
            comparing,
        )
    }

    /// The directory that the user wants searched (`--search`), if searching is not turned off. Of one that cannot be searched a run that only says what it would do
    /// says so, too.
    pub(super) fn named_search<'a>(
        &self,
        options: &'a TreeOptions,
        observer: &dyn Observer,
    ) -> Result<Option<&'a Path>> {
        let named = options.search.as_deref().filter(|_| !options.whole_file);
        if self.config.search_policy.tell_if_off(named, observer) {
            return Ok(None);
        }
        if options.dry_run
            && let Some(named) = named
        {
            Scope::named(named, rustix::fs::CWD)?;
        }
        Ok(named)
    }

    /// Asks the far end for `tree`, with what was chosen of it, and hears its hello; until when it may take for what it says next.
    pub(super) fn ask_for_trees(
        &self,
        channel: &mut PipeChannel,
        host: &OsStr,
        tree: &Tree,
        options: &TreeOptions,
        stop: &Stop,
    ) -> Result<(Hello, Instant)> {
        let ours = self.tree_hello(options.sync.as_ref());
        let mut preface = Vec::new();
        push_control(&mut preface, &Message::Hello(ours.clone()));
        push_tree(&mut preface, tree);
        if let Some(chosen) = options.sync.as_ref().and_then(|sync| sync.chosen.as_ref()) {
            push_chosen(&mut preface, chosen);
        }
        channel.write_all(&preface).map_err(|error| Error::io("connection lost", error))?;
        let deadline = Instant::now() + patience();
        let body = read_control_until(channel, deadline, &|| stop.is_set())?;
        match Message::from_bytes(&body)? {
            Message::Hello(theirs) => {
                negotiate(&ours, &theirs)?;
                Ok((theirs, deadline))
            }
            Message::Fault(fault) => Err(fault.to_error(&host.to_string_lossy())),
            _ => Err(Error::new(ErrorKind::Protocol, "the far end did not say hello first")),
        }
    }

    /// The far end of a copy of one file answered with what the path stands for: takes those files.
    #[expect(
        clippy::too_many_arguments,
        reason = "the two sides of one command line, and what was said so far"
    )]
    pub(in crate::copy) fn download_several(
        &self,
        mut far: FarEnd,
        mut channel: PipeChannel,
        first: Sources,
        path: &Path,
        destination: &Path,
        options: &CopyOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        let options = TreeOptions {
            preserve: options.preserve,
            rate_bytes: options.rate_bytes,
            compress: options.compress,
            whole_file: options.whole_file,
            search: options.search.clone(),
            fsync: options.fsync,
            ..TreeOptions::default()
        };
        let host = far.host.clone();
        let (paths, deadline) = ([path.to_owned()], Instant::now() + patience());
        let resolved = found_sources(
            &mut channel,
            OsStr::new(&host),
            &paths,
            &[landing_name(path)],
            Some(first),
            deadline,
            stop,
        )
        .and_then(|names| Ok((Landing::resolve(destination, &names, names.len() > 1)?, names)));
        match resolved {
            Ok((landing, names)) => {
                let tree = tree_message(CopyRole::Send, Vec::new(), names.clone(), &options, false)?;
                let knows = Knows::default();
                let hears = Hears::Nobody;
                let search = self.named_search(&options, observer)?;
                receive_trees(
                    far, channel, landing, &names, &tree, &options, search, hears, observer, stop, None,
                    knows, None,
                )
            }
            Err(error) if stop.is_set() => {
                far.kill();
                Err(error)
            }
            Err(error) => Err(advised(far.explain(error, true), Some(&host), CopyRole::Send)),
        }
    }
}

/// What the far end has to know.
pub(super) fn required(sync: Option<&SyncOptions>) -> Vec<String> {
    let wants = |is_wanted: fn(&SyncOptions) -> bool| sync.is_some_and(is_wanted);
    let required = [
        (true, feature::TREE),
        (sync.is_some(), feature::SYNC),
        (wants(|sync| sync.chosen.is_some()), feature::SYNC_LIST),
        (wants(|sync| sync.backup.is_some()), feature::SYNC_BACKUP),
        (wants(|sync| sync.basis.is_some()), feature::SYNC_BASIS),
        (wants(SyncOptions::needs_more), feature::SYNC_MORE),
        (wants(|sync| sync.directories), feature::SYNC_DIRS),
        (wants(|sync| sync.remove_sources), feature::SYNC_REMOVE),
        (wants(|sync| sync.timeout_s.is_some()), feature::SYNC_TIMEOUT),
        (wants(|sync| sync.fake_super.is_some()), feature::SYNC_FAKE_SUPER),
        (wants(|sync| sync.atomic), feature::SYNC_ATOMIC),
        (wants(|sync| sync.in_place), feature::SYNC_IN_PLACE),
        (
            wants(|sync| sync.rules.iter().any(|rule| !rule.starts_with(b"+") && !rule.starts_with(b"-"))),
            feature::SYNC_RULES,
        ),
    ];
    required.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name.to_owned()).collect()
}

/// True if the only source takes the destination's own name where nothing is.
pub(super) fn may_be_renamed(names: &[Vec<u8>], must_be_directory: bool, is_sync: bool) -> bool {
    matches!(names, [name] if !name.is_empty()) && !must_be_directory && !is_sync
}

/// The path that was asked for, or what a pattern stands for; `None` where the far end does not tell which directory that led through.
pub(super) fn named(path: &Path, name: &[u8]) -> Option<PathBuf> {
    if !pattern::is_pattern(path) {
        return Some(path.to_owned());
    }
    let is_told = !path.parent().is_some_and(pattern::is_pattern);
    is_told.then(|| path.with_file_name(OsStr::from_bytes(name)))
}

/// Nobody unpacks what leaves beside ssh, and under a limit ssh is fast enough.
fn may_dial(options: &TreeOptions) -> bool {
    !options.compress && options.rate_bytes.is_none()
}

/// What the near end knows of the way to `host`: ssh does not say which.
fn seen(host: &OsStr) -> Seen {
    Seen { allow_local: is_local_host(host), ..Seen::default() }
}

/// Says that a search helps nothing, where the other end does not tell how its files are cut.
pub(super) fn tell_if_of_no_use(search: Option<&Path>, knows: &Knows, observer: &dyn Observer) {
    if let Some(named) = search.filter(|_| !knows.deltas) {
        let what = format!(
            "--search {named:?}: the other end does not tell how its files are cut, so all of them comes"
        );
        observer.event(Event::Warning(what));
    }
}

/// Takes the trees that the far end tells, whose sources have these names.
#[expect(clippy::too_many_arguments, reason = "the two sides of one command line")]
fn receive_trees(
    mut far: FarEnd,
    channel: PipeChannel,
    landing: Landing,
    names: &[Vec<u8>],
    tree: &Tree,
    options: &TreeOptions,
    search: Option<&Path>,
    hears: Hears<'_>,
    observer: &dyn Observer,
    stop: &Stop,
    doors: Option<TakingDoors>,
    knows: Knows,
    comparing: Option<Comparing>,
) -> Result<TreeCopied> {
    let mut channel = unpacked(Box::new(channel), options.compress)?;
    tell_if_of_no_use(search, &knows, observer);
    let comparing = comparing.filter(|_| knows.digests);
    let failed = Arc::new(AtomicU64::new(0));
    let on_failed = |entry: &EntryFailed| {
        failed.fetch_add(entry.count(), Ordering::Relaxed);
        show(observer, entry);
    };
    let mut tick = |done_bytes| {
        observer.event(Event::TreeProgress { done_bytes });
        if stop.is_set() { Err(interrupted()) } else { Ok(()) }
    };
    let fsync = tree.flags & tree_flag::FSYNC != 0;
    let counted = Counted::default();
    let on_planned = |items: &[PlannedItem]| counted.tell(items, options.dry_run, false, observer);
    let is_sync = tree.sync.is_some();
    let silence_max = sync::patience(tree, SILENCE_MAX);
    let alike = comparing.as_ref().map(Comparing::alike).unwrap_or_default();
    let result = if options.dry_run {
        let make = || {
            let preview = Preview::new(landing, write_options(tree), changes(tree, &sync::beside_here)?);
            let previewing = Previewing::new(preview, names.len(), is_sync, &on_failed, Some(&on_planned));
            Ok(previewing.landing(hears).comparing(comparing))
        };
        take(&mut *channel, Vec::new(), make, None, &mut tick, silence_max)
    } else {
        let lanes = doors.as_ref().map(|doors| &*doors.lanes);
        let make = || {
            let writer = TreeWriter::new(landing, write_options(tree))
                .with_changes(changes(tree, &sync::beside_here)?)
                .staged(fsync)?;
            let scope = search.map(|named| Scope::named(named, writer.base().as_fd())).transpose()?;
            let doors = doors.as_ref().map(|doors| doors as &dyn Doors);
            let writing =
                Writing::new(writer, names.len(), fsync, &on_failed).with_doors(doors).packing(knows.packs);
            let writing = writing.landing(hears).with_deltas(knows.deltas && !options.whole_file);
            let writing = writing.searching(scope).with_rests(knows.rests).with_code(knows.code);
            let writing = writing.with_compared(knows.compared);
            Ok(writing.telling(&on_planned).comparing(comparing).removing(Arrivals::of(tree)))
        };
        take(&mut *channel, Vec::new(), make, lanes, &mut tick, silence_max)
    };
    match result {
        Ok(done) => {
            if alike.is_all(&done) {
                far.let_go();
            } else {
                far.done();
            }
            Ok(alike.added_to(TreeCopied::of(&done, failed.load(Ordering::Relaxed), &counted)))
        }
        Err(error) if stop.is_set() => {
            far.kill();
            Err(if error.kind() == ErrorKind::Interrupted { error } else { interrupted() })
        }
        Err(error) => Err(advised(far.explain(error, true), Some(&far.host), CopyRole::Send)),
    }
}

/// The names of the sources that `paths` stand for, from the far end, as far as they are what the user's own words allow; `first` is what
/// it has said of them.
pub(super) fn found_sources(
    channel: &mut dyn Channel,
    host: &OsStr,
    paths: &[PathBuf],
    names: &[Vec<u8>],
    mut first: Option<Sources>,
    deadline: Instant,
    stop: &Stop,
) -> Result<Vec<Vec<u8>>> {
    let wrong = |what: &str| Error::new(ErrorKind::Protocol, format!("the far end {what}"));
    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let message = match first.take() {
            Some(first) => Message::Sources(first),
            None => Message::from_bytes(&read_control_until(channel, deadline, &|| stop.is_set())?)?,
        };
        let sources = match message {
            Message::Sources(sources) => sources,
            Message::Fault(fault) => return Err(fault.to_error(&host.to_string_lossy())),
            _ => return Err(wrong("did not say what the patterns stand for")),
        };
        for source in &sources.found {
            let index = source.path as usize;
            let next = last.map_or(0, |last| last + 1);
            let is_again =
                last == Some(index) && paths.get(index).is_some_and(|path| pattern::is_pattern(path));
            if (index != next && !is_again) || found.len() >= TREE_SOURCES_MAX {
                return Err(wrong("named a source that nobody asked for"));
            }
            let Some((path, own)) = paths.get(index).zip(names.get(index)) else {
                return Err(wrong("named a source that nobody asked for"));
            };
            last = Some(index);
            let wanted = path.file_name().unwrap_or_default().as_bytes();
            let is_meant = *source.name == wanted || pattern::matches(wanted, &source.name);
            found.push(match pattern::is_pattern(path) {
                true if is_meant && !own.is_empty() => source.name.to_vec(),
                true if !own.is_empty() => {
                    return Err(wrong("named a source that the pattern does not stand for"));
                }
                _ => own.clone(),
            });
        }
        if sources.is_last {
            break;
        }
    }
    if last.map_or(0, |last| last + 1) != paths.len() {
        return Err(wrong("did not name every source"));
    }
    Ok(found)
}

pub(super) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted")
        .advise("run the same command again: what is in place is not sent again")
}

/// A walk whose failures are shown here, where the user is.
struct Counting<'a> {
    source: &'a mut Telling,
    failed: &'a AtomicU64,
    observer: &'a dyn Observer,
    unmoved: Arc<Unmoved>,
}

/// Entries here that stay although they are in place there, until they are shown.
#[derive(Default)]
struct Unmoved(Mutex<Vec<EntryFailed>>);

impl Unmoved {
    fn show(&self, failed: &AtomicU64, observer: &dyn Observer) {
        for entry in std::mem::take(&mut *lock(&self.0)) {
            failed.fetch_add(1, Ordering::Relaxed);
            show(observer, &entry);
        }
    }
}

/// Removes what is in place there, and keeps what is to be said of others for the user here.
struct RemovingHere {
    removes: Arc<dyn Removes>,
    unmoved: Arc<Unmoved>,
}

impl Removes for RemovingHere {
    fn remove(&self, in_place: &InPlace) -> (u64, Vec<EntryFailed>) {
        let (count, failed) = self.removes.remove(in_place);
        lock(&self.unmoved.0).extend(failed);
        (count, Vec::new())
    }
}

impl TreeSource for Counting<'_> {
    fn listen(&mut self, words: std::sync::mpsc::Receiver<Message>) {
        self.source.listen(words);
    }

    fn next_batch(&mut self) -> Option<dray_transfer::tree::Batch> {
        let mut batch = self.source.next_batch()?;
        for entry in std::mem::take(&mut batch.failed) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            show(self.observer, &entry);
        }
        Some(batch)
    }

    fn removes(&self) -> Option<Arc<dyn Removes>> {
        let removes = self.source.removes()?;
        Some(Arc::new(RemovingHere { removes, unmoved: self.unmoved.clone() }))
    }

    fn batches_ahead(&self) -> usize {
        self.source.batches_ahead()
    }
}
