//! Trees of which other files of the disk have much, over pipes, between the real walk and the real writer: what comes of them, and what
//! a sibling that has nothing, or is written to, can do. What crosses a real network is counted in `testing/e2e`.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use dray_core::frame::FrameKind;
use dray_core::message::{Fault, Message, TreeDone};
use dray_core::tree::{Entry, Kind, Metadata, Name, Record};
use dray_core::{Error, ErrorKind};
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::tree::{send, take};

use super::copies::{channels, keeping, recursive};
use super::hostile::{Peer, directory};
use super::sink::Writing;
use super::source::WalkSource;
use crate::Stop;
use crate::search::Scope;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

/// A file that was modified so many seconds after 1970.
fn write(path: &Path, bytes: &[u8], mtime_s: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(mtime_s)).unwrap();
}

/// A place with a tree in `from`, others in `home`, and nothing in `home/to`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("home/to")).unwrap();
        Place(place)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Copies `from` to `home/to/tree`, with a search of the home or without.
    fn copy(&self, searches: bool) -> TreeDone {
        let (near, mut far) = channels(65_536);
        let (from, to) = (self.path("from"), self.path("home/to"));
        let done = thread::scope(|scope| {
            let mut source = WalkSource::new(vec![from], recursive(), false, Stop::new());
            let sending = scope.spawn(move || {
                send(Box::new(near), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| PATIENCE)
            });
            let make = || {
                let landing = Landing::resolve(&to, &[b"tree".to_vec()], false)?;
                let writer = TreeWriter::new(landing, keeping());
                let home = fs::File::open(self.path("home")).unwrap();
                let scope = searches.then(|| Scope::new(home.into(), writer.base().as_fd()).unwrap());
                Ok(Writing::new(writer, 1, false, &|_| {}).with_deltas(true).searching(scope))
            };
            let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE).unwrap();
            drop(far);
            assert_eq!(sending.join().unwrap().unwrap(), taken);
            taken
        });
        self.assert_same("");
        fs::remove_dir_all(self.path("home/to/tree")).unwrap();
        done
    }

    fn assert_same(&self, below: &str) {
        let names = |root: &str| {
            let entries = fs::read_dir(self.path(root).join(below)).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names("from"), names("home/to/tree"));
        for name in names("from") {
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            let (newer, copy) = (self.path("from").join(&path), self.path("home/to/tree").join(&path));
            match newer.is_dir() {
                true => self.assert_same(&path),
                false => assert!(fs::read(newer).unwrap() == fs::read(copy).unwrap(), "{path} differs"),
            }
        }
    }
}

/// Y26 "Sibling", S97: of a tree that lies beside the destination in another state, what changed comes, be it renamed as a whole, and small files that
/// did not change do not come; without a search everything does.
#[test]
fn a_tree_comes_as_a_difference_to_one_beside() {
    let place = Place::new();
    let mut all = 0;
    for number in 0..4u8 {
        let mut bytes = noise(2 * MIB, number);
        write(&place.path(&format!("home/was/sub/{number}/image")), &bytes, 1000);
        bytes[MIB..MIB + 5000].copy_from_slice(&noise(5000, 100 + number));
        write(&place.path(&format!("from/sub/{number}/image")), &bytes, 2000);
        let small = noise(10_000, 50 + number);
        write(&place.path(&format!("home/was/sub/{number}/small")), &small, 1500);
        write(&place.path(&format!("from/sub/{number}/small")), &small, 1500);
        all += bytes.len() + small.len();
    }
    assert_eq!(place.copy(false).bytes, all as u64);
    let done = place.copy(true);
    // The first small one comes before anything was found.
    assert!(done.bytes <= 4 * 20_000 + 10_000, "{done:?}");
    assert_eq!((done.files + done.unchanged, done.failed), (8, 0), "{done:?}");
}

/// Never slower than without: after a few siblings that have nothing of what comes, no more of them is read.
#[test]
fn siblings_in_vain_are_left_alone() {
    let place = Place::new();
    let mut all = 0;
    for number in 0..20u8 {
        write(&place.path(&format!("home/was/{number}")), &noise(MIB, number), 1000);
        write(&place.path(&format!("from/{number}")), &noise(MIB, 100 + number), 2000);
        all += MIB as u64;
    }
    assert_eq!(place.copy(true).bytes, all);
}

/// S77 "no file is read again and again", design 17: a sender that tells many files of the size and time of one that lies here, and then says of none how it is cut nor what is in it, has
/// that one read twice.
#[test]
fn a_sender_that_cuts_nothing_has_a_file_read_twice() {
    let place = Place::new();
    write(&place.path("home/was/image"), &noise(100_000, 1), 1000);
    let coming = |number: u32| {
        let metadata = Metadata { mode: 0o644, mtime_s: 1000, ..Metadata::default() };
        let name = Name::new(format!("f{number:02}").as_bytes()).ok();
        Entry { name, kind: Kind::File { size_bytes: 100_000, oid: None }, metadata }.to_bytes()
    };
    let fault = Fault::from_error(None, &Error::new(ErrorKind::Unsupported, "it cannot be cut"));
    let (near, mut far) = channels(65_536);
    let (mut cuts, mut contents) = (0, 0);
    let taken = thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = Peer::new(near);
            let mut items = vec![directory(None)];
            items.extend((0..30).map(coming));
            items.push(Vec::new());
            peer.tell(&items, true);
            while let Some(message) = peer.hear() {
                let Message::Pull(pull) = message else { continue };
                for run in &pull.runs {
                    let asked = if run.cut.is_some() { &mut cuts } else { &mut contents };
                    *asked += run.count;
                    for _ in 0..run.count {
                        peer.records(pull.request, &[Record::Failed(fault.clone())]);
                    }
                }
                if pull.request != 0 {
                    peer.frame(FrameKind::End, pull.request, &[]);
                }
            }
        });
        let make = || {
            let landing = Landing::resolve(&place.path("home/to"), &[b"tree".to_vec()], false)?;
            let writer = TreeWriter::new(landing, keeping());
            let home = fs::File::open(place.path("home")).unwrap();
            let scope = Scope::new(home.into(), writer.base().as_fd()).unwrap();
            let writing = Writing::new(writer, 1, false, &|_| {}).discreet();
            Ok(writing.with_deltas(true).searching(Some(scope)))
        };
        let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE);
        drop(far);
        taken
    });
    assert_eq!(taken.unwrap().files, 0);
    assert_eq!((cuts, contents), (2, 30));
}

/// One that is the same makes up for those before it that had nothing: what is the same does not come.
#[test]
fn siblings_that_are_the_same_are_no_vain_ones() {
    // A network that looks fast would turn differences off.
    const LEN: usize = 100_000;
    let place = Place::new();
    let mut changed = 0;
    for number in 0..20u8 {
        write(&place.path(&format!("home/was/{number:02}/a")), &noise(LEN, number), 1000);
        write(&place.path(&format!("from/{number:02}/a")), &noise(LEN, 100 + number), 2000);
        changed += LEN as u64;
        for name in ["b", "c"] {
            let same = noise(LEN, 50 + number);
            write(&place.path(&format!("home/was/{number:02}/{name}")), &same, 1000);
            write(&place.path(&format!("from/{number:02}/{name}")), &same, 2000);
        }
    }
    assert_eq!(place.copy(true).bytes, changed);
}

/// S97: of many files that are one that lies here none comes, though that is read for each: as often as it is of use.
#[test]
fn copies_of_one_sibling_do_not_come() {
    let place = Place::new();
    let bytes = noise(100_000, 1);
    write(&place.path("home/was/image"), &bytes, 1000);
    for number in 0..20 {
        write(&place.path(&format!("from/{number:02}")), &bytes, 1000);
    }
    let done = place.copy(true);
    assert_eq!((done.bytes, done.files + done.unchanged, done.failed), (0, 20, 0), "{done:?}");
}

/// A file that has an older version at the destination is compared with that.
#[test]
fn an_older_version_goes_before_a_sibling() {
    let place = Place::new();
    let mut bytes = noise(2 * MIB, 1);
    write(&place.path("home/was/image"), &noise(2 * MIB, 2), 1000);
    write(&place.path("home/to/tree/image"), &bytes, 1000);
    bytes[MIB..MIB + 5000].copy_from_slice(&noise(5000, 3));
    write(&place.path("from/image"), &bytes, 2000);
    let done = place.copy(true);
    assert!(done.bytes <= 20_000, "{done:?}");
}
