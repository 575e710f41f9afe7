//! The receiver's side: fetches a shared directory, or brings one here up to date with it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dray_core::hint::Hint;
use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::message::{
    CopyRole, EntryFailed, Hello, Message, Open, PROTOCOL_VERSION, Tree, feature, sync_flag, tree_flag,
};
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
use super::super::near::{interrupted, required};
use super::super::preview::Previewing;
use super::super::sink::Writing;
use super::super::sync::{SyncOptions, beside_here, landing as landing_of};
use super::super::{
    Counted, Knows, TreeCopied, TreeOptions, changes, show, sync, tree_message, write_options,
};
use super::sharing::live_hello;
use super::wish::as_told;
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
}

impl Node {
    /// Fetches the directory into a new one at the destination, or goes on in one that an earlier run of this began.
    pub fn get_directory(
        &self,
        wish: &DirectoryWish,
        whole_file: bool,
        fsync: bool,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<TreeCopied> {
        check_version(&wish.ticket)?;
        let sync = SyncOptions { links: true, times: true, ..SyncOptions::default() };
        let options =
            TreeOptions { recursive: true, fsync, whole_file, sync: Some(sync), ..TreeOptions::default() };
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
                "name a directory that is not there, or bring this one up to date: dray sync TICKET DIR",
            ));
        }
        self.take_directory(
            Taking { wish, options: &options, tree, landing, comparing: None },
            observer,
            stop,
        )
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
        check_version(&wish.ticket)?;
        let options = harmless(options)?;
        let tree = tree_of(&options)?;
        let path = &wish.destination;
        let above = options.sync.as_ref().map(|sync| sync.above(options.dry_run));
        let names = [Vec::new()];
        let landing = landing_of(&Origin::Anywhere, path, &names, false, above, [])?;
        let comparing = Comparing::start(&tree, &names, &landing, true);
        self.take_directory(Taking { wish, options: &options, tree, landing, comparing }, observer, stop)
    }

    fn take_directory(&self, taking: Taking<'_>, observer: &dyn Observer, stop: &Stop) -> Result<TreeCopied> {
        let ticket = &taking.wish.ticket;
        let targets = self.targets_of(&taking.wish.hints, &ticket.hints, taking.wish.allow_local)?;
        let opened = self.open_directory(ticket, &targets, &taking, stop);
        let result = opened.and_then(|(mut channel, theirs)| {
            take_from(&mut channel, taking, Knows::of(&theirs), observer, stop)
        });
        result.map_err(|error| if stop.is_set() { interrupted() } else { error })
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
        ours.required = required(taking.options.sync.as_ref());
        ours.required.push(feature::LIVE_TREE.to_owned());
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

/// Refuses a ticket whose holder speaks another version of the protocol.
fn check_version(ticket: &DirectoryTicket) -> Result<()> {
    if ticket.protocol == PROTOCOL_VERSION {
        return Ok(());
    }
    let what = format!(
        "the ticket's sender speaks version {} of the protocol, this dray speaks {PROTOCOL_VERSION}",
        ticket.protocol
    );
    Err(Error::new(ErrorKind::Unsupported, what).advise("install the same version of dray at both ends"))
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
    if sync.acls {
        return no("-A", "a stranger's ACLs may let others in here");
    }
    if sync.timeout_s.is_some() {
        return no("--timeout", "silence for a minute ends it");
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
    let Taking { options, tree, landing, comparing, .. } = taking;
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
    let counted = Counted::default();
    let on_planned =
        |items: &[dray_core::message::PlannedItem]| counted.tell(items, options.dry_run, false, observer);
    let alike = comparing.as_ref().map(Comparing::alike).unwrap_or_default();
    let write = WriteOptions { harmless: true, masked: true, ..write_options(&tree) };
    // Nobody else is told a hash of what is here.
    let changes = || {
        let changes = changes(&tree, &beside_here)?;
        Ok::<_, Error>(dray_store::local::tree::Changes { never_compares: true, ..changes })
    };
    let done = if options.dry_run {
        let make = || {
            let preview = Preview::new(landing, write, changes()?);
            let previewing = Previewing::new(preview, 1, true, &on_failed, Some(&on_planned));
            Ok(previewing.landing(Hears::Nobody).comparing(comparing))
        };
        take(channel, Vec::new(), make, None, &mut tick, SILENCE_MAX)?
    } else {
        let fsync = tree.flags & tree_flag::FSYNC != 0;
        let is_whole = options.whole_file || sync::has(&tree, sync_flag::NO_COMPARING);
        let make = || {
            let writer = TreeWriter::new(landing, write).with_changes(changes()?);
            let writing = Writing::new(writer, 1, fsync, &on_failed).discreet();
            let writing = writing.landing(Hears::Nobody).with_deltas(knows.deltas && !is_whole);
            Ok(writing.telling(&on_planned).comparing(comparing))
        };
        take(channel, Vec::new(), make, None, &mut tick, SILENCE_MAX)?
    };
    Ok(alike.added_to(TreeCopied::of(&done, failed.load(Ordering::Relaxed), &counted)))
}
