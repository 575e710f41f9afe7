//! The receiver's side: fetches a shared directory, or brings one here up to date with it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dray_core::hint::Hint;
use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::message::{CopyRole, EntryFailed, Hello, Message, Open, Tree, feature, sync_flag, tree_flag};
use dray_core::ticket::DirectoryTicket;
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::negotiate;
use dray_store::local::tree::{Landing, Origin, Preview, TreeWriter, WriteOptions};
use dray_transfer::direct::{Target, connect_any};
use dray_transfer::transport::{Channel, Duplex, TlsChannel, push_control};
use dray_transfer::tree::take;

use super::super::super::local::SILENCE_MAX;
use super::super::super::remote::read_control_until;
use super::super::again::{Hears, source_of_ticket};
use super::super::digests::Comparing;
use super::super::near::{interrupted, required, tell_if_of_no_use};
use super::super::preview::Previewing;
use super::super::sink::Writing;
use super::super::sync::{SyncOptions, beside_here, deletes, landing as landing_of};
use super::super::watching::About;
use super::super::{
    Counted, Knows, TreeCopied, TreeOptions, changes, show, sync, tree_message, write_options,
};
use super::sharing::live_hello;
use super::watched::{Life, Watched};
use super::wish::as_told;
use crate::join::check_version;
use crate::search::Scope;
use crate::{Event, Node, Observer, Stop};

/// What to fetch, and where to.
#[derive(Clone, Debug)]
pub struct DirectoryWish {
    /// The directory.
    pub ticket: DirectoryTicket,
    /// Further places, named by the user.
    pub hints: Vec<Hint>,
    /// Follow the ticket's hints to loopback and link-local addresses.
    pub allow_local: bool,
    /// The directory here.
    pub destination: PathBuf,
}

/// Everything that one fetch goes by.
struct Taking<'a> {
    wish: &'a DirectoryWish,
    options: &'a TreeOptions,
    tree: Tree,
    landing: Landing,
    comparing: Option<Comparing>,
    /// Where else is looked for what comes: the user's own word, which no ticket can say.
    search: Option<&'a Path>,
}

impl Node {
    /// Fetches the directory into a new one at the destination, or goes on in one that an earlier run of this began. What may stand in for older
    /// versions of its files is looked for below `search`, if that is said.
    pub fn get_directory(
        &self,
        wish: &DirectoryWish,
        whole_file: bool,
        search: Option<PathBuf>,
        fsync: bool,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        check_version(wish.ticket.protocol)?;
        let sync = SyncOptions { links: true, times: true, ..SyncOptions::default() };
        let options = TreeOptions {
            recursive: true,
            fsync,
            whole_file,
            search,
            sync: Some(sync),
            ..TreeOptions::default()
        };
        let tree = tree_of(&options)?;
        let path = &wish.destination;
        let known = source_of_ticket(self, wish.ticket.id.as_bytes());
        // The root has any name but none, so that it takes the destination's own.
        let names = [b"root".to_vec()];
        let landing = Landing::resolve_at(&Origin::Anywhere, path, &names, false)?;
        let landing = landing.of_source(&Origin::Anywhere, path, known);
        if std::fs::symlink_metadata(path).is_ok() && !landing.may_go_on() {
            let what = format!("{path:?} is there, and no fetch of this ticket began it");
            return Err(Error::new(ErrorKind::Refused, what).advise(
                "name a directory that is not there, or bring this one up to date: dray sync -a TICKET DIR",
            ));
        }
        let search = self.named_search(&options, observer)?;
        let taking = Taking { wish, options: &options, tree, landing, comparing: None, search };
        let about = About::ticket("get", path, false);
        self.watched(&about, observer, |observer| self.take_directory(taking, observer, stop))
    }

    /// Brings the destination to the state of the directory. Owners, devices and fifos of a stranger are not kept, whatever `options` say;
    /// `Usage` for those that do not go with tickets.
    pub fn sync_directory(
        &self,
        wish: &DirectoryWish,
        options: &TreeOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        check_version(wish.ticket.protocol)?;
        let options = harmless(options)?;
        let tree = tree_of(&options)?;
        // It may lie in the destination, and would be no entry of itself.
        let is_own = wish.hints.iter().chain(&wish.ticket.hints).any(|hint| hint.node == Some(self.id()));
        if is_own && deletes(&tree) {
            let what = "the directory is shared by this node, and --delete might delete it";
            return Err(Error::new(ErrorKind::Usage, what).advise("say its path instead of the ticket"));
        }
        let search = self.named_search(&options, observer)?;
        let path = &wish.destination;
        let above = options.sync.as_ref().map(|sync| sync.above(options.dry_run));
        let names = [Vec::new()];
        let landing = landing_of(&Origin::Anywhere, path, &names, false, above, [])?;
        let comparing = Comparing::start(&tree, &names, &landing, true);
        let taking = Taking { wish, options: &options, tree, landing, comparing, search };
        let about = About::ticket("sync", path, options.dry_run);
        self.watched(&about, observer, |observer| self.take_directory(taking, observer, stop))
    }

    fn take_directory(&self, taking: Taking<'_>, observer: &dyn Observer, stop: &Stop) -> Result<TreeCopied> {
        let ticket = &taking.wish.ticket;
        let targets = self.targets_of(&taking.wish.hints, &ticket.hints, taking.wish.allow_local)?;
        let opened = self.open_directory(ticket, &targets, &taking, stop);
        let result = opened.and_then(|(mut channel, theirs)| {
            take_from(&mut channel, taking, Knows::of(&theirs), observer, stop)
        });
        result.map_err(|error| match error.kind() {
            _ if stop.is_set() => interrupted(),
            // Of the holder's advice no word comes over.
            ErrorKind::TimedOut | ErrorKind::Unreachable => {
                error.or_advise("the same command again goes on where this one stopped")
            }
            _ => error,
        })
    }

    /// Connects to the first that answers, opens the directory and says what is wanted of it: all in one go.
    fn open_directory(
        &self,
        ticket: &DirectoryTicket,
        targets: &[Target],
        taking: &Taking<'_>,
        stop: &Stop,
    ) -> Result<(TlsChannel, Hello)> {
        let (mut channel, _, _) = connect_any(&self.tls, targets, &|| stop.is_set())?;
        let object = ticket.id.object();
        let proof = ticket
            .secret
            .zip(channel.security())
            .map(|(secret, security)| security.prove(&secret, self.id(), &object).as_bytes().to_vec().into());
        let mut ours = live_hello(self);
        ours.required = required_of_holder(taking.options);
        let mut told = as_told(&taking.tree);
        told.digests = taking.comparing.is_some().then_some(true);
        let mut out = Vec::new();
        push_control(&mut out, &Message::Hello(ours.clone()));
        push_control(&mut out, &Message::Open(Open { handle: 1, object, proof }));
        push_control(&mut out, &Message::Tree(told));
        channel.write_all(&out).map_err(|error| Error::io("connection lost", error))?;
        let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
        let body = read_control_until(&mut channel, deadline, &|| stop.is_set())?;
        match Message::from_bytes(&body)? {
            Message::Hello(theirs) => {
                negotiate(&ours, &theirs)?;
                Ok((channel, theirs))
            }
            Message::Fault(fault) => Err(fault.to_error("the holder")),
            _ => Err(Error::new(ErrorKind::Protocol, "the holder did not say hello first")),
        }
    }
}

/// What the holder has to know. Patience and how files are written are this side's own.
fn required_of_holder(options: &TreeOptions) -> Vec<String> {
    let sync = options.sync.clone().map(|sync| SyncOptions { timeout_s: None, in_place: false, ..sync });
    let mut required = required(sync.as_ref());
    required.push(feature::LIVE_TREE.to_owned());
    required
}

/// What is wanted of the holder.
fn tree_of(options: &TreeOptions) -> Result<Tree> {
    tree_message(CopyRole::Send, vec![b".".to_vec()], vec![Vec::new()], options, false)
}

/// The options as they count for what comes from a stranger.
fn harmless(options: &TreeOptions) -> Result<TreeOptions> {
    let no = |what: &str, advice: &str| {
        Err(Error::new(ErrorKind::Usage, format!("{what} does not go with a ticket"))
            .advise(advice.to_owned()))
    };
    let mut options = options.clone();
    let Some(sync) = &mut options.sync else {
        return Err(Error::new(ErrorKind::Internal, "a directory is brought over by a synchronisation"));
    };
    if !options.recursive && !sync.directories {
        return Err(Error::new(ErrorKind::Usage, "the ticket is for a directory").advise("say -a or -r"));
    }
    if sync.checksum {
        return no("-c", "it would tell the holder hashes of what is here; -I fetches everything");
    }
    if sync.chosen.is_some() {
        return no("--files-from", "say what is wanted with --include and --exclude");
    }
    if sync.remove_sources {
        return no("--remove-source-files", "a ticket is for reading alone");
    }
    if sync.basis.is_some() {
        return no("--compare-dest, --copy-dest or --link-dest", "bring DST itself up to date");
    }
    if sync.fake_super.is_some() {
        return no("--fake-super", "a stranger's owners and devices are nobody's here");
    }
    if sync.atomic {
        let advice = "bring another directory up to date with it, and then DST: dray sync -a --delete --atomic OTHER/ DST";
        return no("--atomic", advice);
    }
    if sync.acls {
        return no("-A", "a stranger's ACLs may let others in here");
    }
    if options.compress {
        return no("-z", "what comes by ticket is not compressed so far");
    }
    // What `-a` asks for among other things is passed by and said.
    (sync.users, sync.groups, sync.devices, sync.specials) = (false, false, false, false);
    Ok(options)
}

/// Takes what the holder sends.
fn take_from(
    channel: &mut dyn Duplex,
    taking: Taking<'_>,
    knows: Knows,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<TreeCopied> {
    let Taking { options, tree, landing, comparing, search, .. } = taking;
    tell_if_of_no_use(search, &knows, observer);
    let comparing = comparing.filter(|_| knows.digests);
    let failed = Arc::new(AtomicU64::new(0));
    let on_failed = |entry: &EntryFailed| {
        failed.fetch_add(entry.count(), Ordering::Relaxed);
        show(observer, entry);
    };
    let patience = sync::patience(&tree, SILENCE_MAX);
    let life: Arc<Life> = Arc::default();
    // Unless the user says how long, a holder may walk and hash as long as it takes.
    let is_timed = tree.sync.as_ref().is_some_and(|wish| wish.timeout_s.is_some());
    let mut tick = |done_bytes| {
        observer.event(Event::TreeProgress { done_bytes });
        if is_timed {
            life.check(patience)?;
        }
        if stop.is_set() { Err(interrupted()) } else { Ok(()) }
    };
    let counted = Counted::default();
    let on_planned =
        |items: &[dray_core::message::PlannedItem]| counted.tell(items, options.dry_run, false, observer);
    let alike = comparing.as_ref().map(Comparing::alike).unwrap_or_default();
    let write =
        WriteOptions { harmless: true, masked: true, roots_are_directories: true, ..write_options(&tree) };
    // Nobody else is told a hash of what is here.
    let changes = || {
        let changes = changes(&tree, &beside_here)?;
        Ok::<_, Error>(dray_store::local::tree::Changes { never_compares: true, ..changes })
    };
    let done = if options.dry_run {
        let make = || {
            let preview = Preview::new(landing, write, changes()?);
            let previewing = Previewing::new(preview, 1, true, &on_failed, Some(&on_planned));
            let sink = previewing.landing(Hears::Nobody).comparing(comparing);
            Ok(Watched { sink, life: life.clone() })
        };
        take(channel, Vec::new(), make, None, &mut tick, patience)?
    } else {
        let fsync = tree.flags & tree_flag::FSYNC != 0;
        let is_whole = options.whole_file || sync::has(&tree, sync_flag::NO_COMPARING);
        let make = || {
            let writer = TreeWriter::new(landing, write).with_changes(changes()?);
            let scope = search.map(|named| Scope::named(named, writer.base().as_fd())).transpose()?;
            let writing = Writing::new(writer, 1, fsync, &on_failed).discreet().searching(scope);
            let writing = writing.landing(Hears::Nobody).with_deltas(knows.deltas && !is_whole);
            let writing = writing.packing(knows.packs);
            let sink = writing.telling(&on_planned).comparing(comparing);
            Ok(Watched { sink, life: life.clone() })
        };
        take(channel, Vec::new(), make, None, &mut tick, patience)?
    };
    let copied = alike.added_to(TreeCopied::of(&done, failed.load(Ordering::Relaxed), &counted));
    if copied.entries == 0 && copied.failed == 0 {
        return Err(Error::new(ErrorKind::Protocol, "the sender told no directory"));
    }
    Ok(copied)
}

#[cfg(test)]
mod hostile;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::sync::Mutex;

    use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
    use dray_core::message::Pull;
    use dray_store::local::tree::WalkOptions;
    use dray_transfer::transport::{PipeChannel, Security, Wake, Wants};
    use dray_transfer::tree::send;

    use super::super::super::copies::channels;
    use super::super::super::source::WalkSource;
    use super::*;
    use crate::lock;

    /// A channel that remembers what came over it.
    struct Recording(PipeChannel, Arc<Mutex<Vec<u8>>>);

    impl Channel for Recording {
        fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
            let read = self.0.try_read(out)?;
            lock(&self.1).extend_from_slice(&out[..read.unwrap_or(0)]);
            Ok(read)
        }
        fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
            self.0.write_all(data)
        }
        fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
            self.0.wait(wake, timeout)
        }
        fn security(&self) -> Option<Security> {
            None
        }
    }

    impl Duplex for Recording {
        fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.try_write(data)
        }
        fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
            self.0.wait_for(wants, wake, timeout)
        }
    }

    /// The pulls among what was said.
    fn pulls(mut said: &[u8]) -> Vec<Pull> {
        let mut pulls = Vec::new();
        while let Some((head, rest)) = said.split_first_chunk::<FRAME_HEAD_BYTES>() {
            let (body, rest) = rest.split_at(FrameHead::decode(*head).unwrap().body_bytes);
            if let Message::Pull(pull) = Message::from_bytes(body).unwrap() {
                pulls.push(pull);
            }
            said = rest;
        }
        pulls
    }

    /// Threat model "sender of a shared directory", design 16: a stranger hears no hash of what is here, be it of a file that may be the same, or
    /// of an older version, nor whether one of that size and time lies here under another name; and what is here comes right all the same.
    #[test]
    fn a_stranger_hears_no_hash() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        for dir in [&from, &to] {
            fs::create_dir(dir).unwrap();
        }
        let large: Vec<u8> = (0..400_000u32).flat_map(|word| word.to_le_bytes()).collect();
        let mut other = large.clone();
        other[800_000] ^= 1;
        fs::write(from.join("pin"), b"12345").unwrap();
        fs::write(from.join("large"), &large).unwrap();
        fs::write(from.join("grown"), [&large[..], b"more"].concat()).unwrap();
        // The same bytes at another time, another version of the same size, and a shorter one.
        fs::write(to.join("pin"), b"12345").unwrap();
        fs::write(to.join("large"), &other).unwrap();
        fs::write(to.join("grown"), &large).unwrap();
        fs::write(from.join("renamed"), &large[..100_000]).unwrap();
        fs::write(to.join("its old name"), &large[..100_000]).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for path in [to.join("pin"), to.join("large"), to.join("grown")] {
            fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        // The same bytes, size and time elsewhere, where the user says that is to be looked.
        let beside = place.path().join("beside");
        fs::create_dir(&beside).unwrap();
        fs::write(from.join("named"), &large[200_000..500_000]).unwrap();
        fs::write(beside.join("its other name"), &large[200_000..500_000]).unwrap();
        let elsewhere = [from.join("named"), beside.join("its other name")];
        for path in [from.join("renamed"), to.join("its old name")].into_iter().chain(elsewhere) {
            fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let (near, mut far) = channels(1 << 16);
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let recording = Recording(near, said.clone());
        let source = from.join(".");
        let sending = std::thread::spawn(move || {
            let options = WalkOptions { recursive: true, specials: true, ..WalkOptions::default() };
            let mut source = WalkSource::new(vec![source], options, false, Stop::new());
            let minute = Duration::from_secs(60);
            send(Box::new(recording), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| minute)
        });
        let sync = SyncOptions { links: true, times: true, ..SyncOptions::default() };
        let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
        let options = harmless(&options).unwrap();
        let wish = hostile::wish(&to);
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        let tree = tree_of(&options).unwrap();
        let search = Some(&*beside);
        let taking = Taking { wish: &wish, options: &options, tree, landing, comparing: None, search };
        let knows = Knows { deltas: true, ..Knows::default() };
        let copied = take_from(&mut far, taking, knows, &|_: Event| {}, &Stop::new()).unwrap();
        drop(far);
        sending.join().unwrap().unwrap();
        assert_eq!(copied.failed, 0);
        for name in ["pin", "large", "grown", "renamed", "named"] {
            assert_eq!(fs::read(from.join(name)).unwrap(), fs::read(to.join(name)).unwrap(), "{name}");
        }
        let pulls = pulls(&lock(&said));
        let runs: Vec<_> = pulls.iter().flat_map(|pull| &pull.runs).collect();
        assert!(runs.iter().all(|run| run.known.is_none()), "{runs:?}");
        let cuts = runs.iter().filter(|run| run.cut.is_some() && run.count == 1).count();
        assert!(cuts >= 3, "what is here is used all the same: {runs:?}");
        assert!(copied.bytes < 400_000, "{copied:?}");
    }

    /// S97: where the holder does not tell how its files are cut nothing that is found is of use, and who asked for a search hears so; else there is nothing to say.
    #[test]
    fn a_search_that_is_of_no_use_is_told() {
        for deltas in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let (from, to) = (place.path().join("from"), place.path().join("to"));
            for dir in [&from, &to] {
                fs::create_dir(dir).unwrap();
            }
            fs::write(from.join("f"), b"text").unwrap();
            let (near, mut far) = channels(1 << 16);
            let source = from.join(".");
            let sending = std::thread::spawn(move || {
                let options = WalkOptions { recursive: true, ..WalkOptions::default() };
                let mut source = WalkSource::new(vec![source], options, false, Stop::new());
                let minute = Duration::from_secs(60);
                send(Box::new(near), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| minute)
            });
            let sync = SyncOptions { links: true, times: true, ..SyncOptions::default() };
            let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
            let options = harmless(&options).unwrap();
            let wish = hostile::wish(&to);
            let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
            let tree = tree_of(&options).unwrap();
            let search = Some(place.path());
            let taking = Taking { wish: &wish, options: &options, tree, landing, comparing: None, search };
            let warnings = Mutex::new(Vec::new());
            let observer = |event: Event| {
                if let Event::Warning(text) = event {
                    lock(&warnings).push(text);
                }
            };
            let knows = Knows { deltas, ..Knows::default() };
            take_from(&mut far, taking, knows, &observer, &Stop::new()).unwrap();
            drop(far);
            sending.join().unwrap().unwrap();
            let warnings = lock(&warnings);
            assert_eq!(warnings.len(), usize::from(!deltas), "{warnings:?}");
            assert!(warnings.iter().all(|text| text.contains("--search")), "{warnings:?}");
            assert_eq!(fs::read(to.join("f")).unwrap(), b"text");
        }
    }

    /// S86, issue 7 "--inplace": the holder of a ticket need not know how files are written here, nor how patient this side is; what is wanted of it, it has to.
    #[test]
    fn a_holder_need_not_know_how_files_are_written() {
        let sync = SyncOptions { in_place: true, timeout_s: Some(9), ..SyncOptions::default() };
        let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
        let required = required_of_holder(&harmless(&options).unwrap());
        for own in [feature::SYNC_IN_PLACE, feature::SYNC_TIMEOUT] {
            assert!(!required.iter().any(|it| it == own), "{required:?}");
        }
        for wanted in [feature::SYNC, feature::LIVE_TREE] {
            assert!(required.iter().any(|it| it == wanted), "{required:?}");
        }
    }
}
