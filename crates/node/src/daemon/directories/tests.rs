//! Directories of the daemon without a daemon: what is written when, and what is told of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::*;
use crate::config::{Config, ConfigFile, Paths};
use crate::copy::OwnDirectories;

struct Bed {
    place: tempfile::TempDir,
    node: Node,
    heard: Arc<Mutex<Vec<Event>>>,
}

impl Bed {
    fn new() -> Bed {
        let place = tempfile::tempdir().unwrap();
        let paths = Paths::below(&place.path().join("node"));
        let node = Node::open(Config::new(paths, &ConfigFile::default()).unwrap()).unwrap();
        Bed { place, node, heard: Arc::default() }
    }

    /// As a daemon that was just started has them.
    fn load(&self) -> Directories {
        let heard = self.heard.clone();
        let hub = Arc::new(Hub::new(Arc::new(move |event| lock(&heard).push(event))));
        let own = OwnDirectories::of(&self.node.config.paths);
        let trees = LiveTrees::new(self.node.id(), own, Arc::new(|_: Event| {}));
        Directories::load(self.node.store().unwrap().clone(), trees, hub).unwrap()
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.place.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn put(&self, directories: &Directories, path: &Path, wish: &NewDirectory) -> Result<Told> {
        let handed = OwnedFd::from(File::open(path).unwrap());
        directories.put(&self.node, 7, wish, &handed, &|| false)
    }

    fn records(&self) -> PathBuf {
        self.node.config.paths.data_dir.join("store/directories")
    }
}

fn id(told: &Told) -> DirectoryId {
    told.id.parse().unwrap()
}

/// ADR 31: a share is on disk before its ticket is told, and one whose record could not be written is none.
#[test]
fn a_ticket_is_told_once_it_is_written() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    // Where the records belong stands a file.
    fs::write(bed.records(), b"in the way").unwrap();
    assert!(bed.put(&directories, &from, &NewDirectory::default()).is_err());
    assert_eq!((directories.count(), directories.lines(None).len()), (0, 0));
    fs::remove_file(bed.records()).unwrap();
    let told = bed.put(&directories, &from, &NewDirectory::default()).unwrap();
    let next = bed.load();
    assert_eq!(next.lines(None), directories.lines(None));
    assert_eq!(next.lines(None)[0].id, told.id);
    assert!(next.lines(Some(id(&told))).is_empty(), "the next page");
    let ticket: dray_core::ticket::AnyTicket = told.ticket.parse().unwrap();
    assert!(matches!(ticket, dray_core::ticket::AnyTicket::Directory(ticket) if ticket.id == id(&told)));
}

/// "Like files": shared again the same way it has the same ticket, also after a restart; otherwise, or with an end, another one beside it.
#[test]
fn the_same_again_has_the_same_ticket() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    let public = NewDirectory { public: true, ..NewDirectory::default() };
    let ending = NewDirectory { expires_s: Some(60), ..NewDirectory::default() };
    let private = bed.put(&directories, &from, &NewDirectory::default()).unwrap();
    assert_eq!(bed.put(&directories, &from, &NewDirectory::default()).unwrap().ticket, private.ticket);
    let others = [&public, &ending, &ending].map(|wish| bed.put(&directories, &from, wish).unwrap().id);
    assert_eq!(bed.put(&directories, &from, &public).unwrap().id, others[0]);
    assert_eq!(directories.count(), 4);
    let elsewhere = bed.put(&directories, &bed.directory("other"), &NewDirectory::default()).unwrap();
    assert_ne!(elsewhere.id, private.id);
    let next = bed.load();
    if next.lines(None).iter().all(|line| line.lasting) {
        assert_eq!(bed.put(&next, &from, &NewDirectory::default()).unwrap().id, private.id);
        // Another one by that name is not.
        fs::rename(&from, bed.place.path().join("aside")).unwrap();
        fs::create_dir(&from).unwrap();
        assert_ne!(bed.put(&next, &from, &NewDirectory::default()).unwrap().id, private.id);
    }
}

/// D10, design 14: what has expired goes by itself once nobody has to be told any more, and what could not be written down is tried again.
#[test]
fn what_is_over_goes_from_the_disk() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    let told = bed.put(&directories, &from, &NewDirectory::default()).unwrap();
    assert_eq!(directories.tick(), ROUND_MAX);
    let ending = NewDirectory { expires_s: Some(1), ..NewDirectory::default() };
    let over = id(&bed.put(&directories, &from, &ending).unwrap());
    assert!(directories.tick() < ROUND_MAX);
    // As if it had ended long ago; so that its receivers have heard.
    if let Some(kept) = lock(&directories.kept).get_mut(&over) {
        kept.record.expires_unix_s = Some(1);
    }
    assert_eq!(directories.tick(), ROUND_MAX);
    assert_eq!(bed.load().lines(None).len(), 1);

    // The disk takes nothing.
    let (records, aside) = (bed.records(), bed.place.path().join("records"));
    fs::rename(&records, &aside).unwrap();
    fs::write(&records, b"in the way").unwrap();
    let error = directories.done(id(&told), &|| false).unwrap_err();
    assert!(error.to_string().contains("not shared any more"), "{error}");
    assert_eq!((directories.count(), directories.lines(None).len()), (0, 0));
    assert_eq!(directories.tick(), ROUND);
    fs::remove_file(&records).unwrap();
    fs::rename(&aside, &records).unwrap();
    assert_eq!(directories.tick(), ROUND_MAX);
    assert!(bed.load().lines(None).is_empty());
    assert_eq!(directories.done(id(&told), &|| false).unwrap_err().kind(), ErrorKind::NotFound);
}

/// What has expired and cannot be removed is tried each second, and told once.
#[test]
fn an_end_that_fails_again_is_told_once() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    let ending = NewDirectory { expires_s: Some(1), ..NewDirectory::default() };
    let over = id(&bed.put(&directories, &from, &ending).unwrap());
    if let Some(kept) = lock(&directories.kept).get_mut(&over) {
        kept.record.expires_unix_s = Some(1);
    }
    fs::remove_dir_all(bed.records()).unwrap();
    fs::write(bed.records(), b"in the way").unwrap();
    let warned = || {
        lock(&bed.heard)
            .iter()
            .filter(|event| matches!(event, Event::Warning(text) if text.contains("expired")))
            .count()
    };
    for _ in 0..3 {
        assert_eq!(directories.tick(), ROUND);
    }
    assert_eq!(warned(), 1, "{:?}", lock(&bed.heard));
}

/// Limits: so many directories and no more; one that is ended makes room.
#[test]
fn directories_are_bounded() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    let ending = NewDirectory { expires_s: Some(1000), ..NewDirectory::default() };
    let first = id(&bed.put(&directories, &from, &ending).unwrap());
    let record = lock(&directories.kept)[&first].record.clone();
    for number in 1..LIVE_TREES_MAX {
        let mut id = [0xff; 32];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let record = DirectoryRecord { id: DirectoryId::from_bytes(id), ..record.clone() };
        directories.add(record.clone(), record.directory());
    }
    let error = bed.put(&directories, &from, &ending).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.advice().is_some(), "{error}");
    directories.done(first, &|| false).unwrap();
    bed.put(&directories, &from, &ending).unwrap();
}

/// A record that cannot be read may have been a share: it is told, and the others are there.
#[test]
fn an_unreadable_record_is_told() {
    let bed = Bed::new();
    let from = bed.directory("from");
    bed.put(&bed.load(), &from, &NewDirectory::default()).unwrap();
    fs::write(bed.records().join("ab".repeat(32)), b"rubbish").unwrap();
    assert_eq!(bed.load().count(), 1);
    let heard = lock(&bed.heard);
    let told = heard.iter().any(
        |event| matches!(event, Event::Warning(text) if text.contains("it is not known which directory")),
    );
    assert!(told, "{heard:?}");
}

/// Design 16: whatever is written down can be ended: what could not be read at the start, whose disk may answer again, is no exception.
#[test]
fn what_could_not_be_read_is_ended_for_good() {
    let bed = Bed::new();
    let from = bed.directory("from");
    let told = bed.put(&bed.load(), &from, &NewDirectory::default()).unwrap();
    let (record, aside) = (bed.records().join(told.id.trim_start_matches("directory:")), bed.place.path());
    let aside = aside.join("record");
    fs::copy(&record, &aside).unwrap();
    fs::write(&record, b"rubbish").unwrap();
    let directories = bed.load();
    assert_eq!(directories.count(), 0);
    directories.done(id(&told), &|| false).unwrap();
    assert!(!record.exists());
    assert_eq!(directories.done(id(&told), &|| false).unwrap_err().kind(), ErrorKind::NotFound);
    // Nor does it come back by a file that was there beside.
    fs::copy(&aside, &record).unwrap();
    assert_eq!(bed.load().count(), 1);
    directories.done(id(&told), &|| false).unwrap();
    assert_eq!(bed.load().count(), 0);
}

/// Limits: records that cannot be read count, since they may be read again.
#[test]
fn what_could_not_be_read_counts() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    let ending = NewDirectory { expires_s: Some(1000), ..NewDirectory::default() };
    let first = id(&bed.put(&directories, &from, &ending).unwrap());
    for number in 1..LIVE_TREES_MAX {
        fs::write(bed.records().join(format!("{number:064x}")), b"rubbish").unwrap();
    }
    let error = bed.put(&directories, &from, &ending).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.advice().is_some(), "{error}");
    directories.done(first, &|| false).unwrap();
    bed.put(&directories, &from, &ending).unwrap();
}

/// D10: a ticket that nobody heard is none: whoever gave up while it was written down shares nothing.
#[test]
fn what_nobody_waits_for_is_not_shared() {
    let bed = Bed::new();
    let (directories, from) = (bed.load(), bed.directory("from"));
    let written = || fs::read_dir(bed.records()).map_or(0, |records| records.count());
    let put = |is_abandoned: &dyn Fn() -> bool| {
        let handed = OwnedFd::from(File::open(&from).unwrap());
        directories.put(&bed.node, 7, &NewDirectory::default(), &handed, is_abandoned)
    };
    let error = put(&|| written() > 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!((directories.count(), written()), (0, 0));
    // One that was shared before stays.
    put(&|| false).unwrap();
    assert!(put(&|| true).is_err());
    assert_eq!((directories.count(), written()), (1, 1));
}
