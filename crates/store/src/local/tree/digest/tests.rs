//! What changes a digest and what keeps a directory from having one, on real trees; and how much is remembered of trees of any size.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dray_core::limits::{TREE_DIGESTS_HELD_MAX, TREE_DIGESTS_MAX, TREE_ENTRY_BYTES_MAX};
use dray_core::message::{Digests, SoleOwner};
use dray_core::tree::Xattr;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::super::directory::Directory;
use super::super::exclude::Excludes;
use super::super::landing::Landing;
use super::super::origin::Origin;
use super::super::owners::OwnerNames;
use super::super::settings::WriteOptions;
use super::super::sync::DeleteOptions;
use super::super::tests::mounting::run_with_mounts;
use super::canonical::Hashers;
use super::found::{Directories, Found};
use super::owned::{Names, Owner, Owners, Sole};
use super::*;

/// As `sync -a`.
fn archive() -> DigestOptions {
    DigestOptions {
        names: vec![Vec::new()],
        links: true,
        devices: true,
        specials: true,
        modes: 0o7777,
        users: true,
        groups: true,
        ..DigestOptions::default()
    }
}

fn sent(root: &Path, options: &DigestOptions) -> Scanned {
    Scan::new(options, None, &|_| false).sources(&Origin::Anywhere, &[root], false).unwrap()
}

fn received(root: &Path, options: &DigestOptions, delete: Option<DeleteOptions>) -> Scanned {
    let write = WriteOptions { special_modes: true, ..WriteOptions::default() };
    let receiving = ReceivingEnd::new(&write, delete);
    let places = vec![Some(Directory::open(root).unwrap())];
    Scan::new(options, Some(receiving), &|_| false).places(places.into_iter())
}

fn age(path: &Path, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, nanoseconds);
    File::open(path).unwrap().set_modified(time).unwrap();
}

/// A tree of directories `0` to `9` with 20 files each, a link in the first; all of one time.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for directory in 0..10 {
        let path = dir.path().join(directory.to_string());
        fs::create_dir(&path).unwrap();
        for file in 0..20 {
            let file = path.join(file.to_string());
            fs::write(&file, b"content").unwrap();
            age(&file, 1);
        }
    }
    settle(dir.path());
    dir
}

/// Gives all directories one time.
fn settle(root: &Path) {
    for entry in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.is_symlink() {
            settle(&entry);
        }
    }
    age(root, 1);
}

/// Places that are the same in trees at `from` and `to`, as the end that sends and the one that receives find them.
fn same(from: &Path, to: &Path, options: &DigestOptions) -> (Held, Held) {
    let told = sent(from, options).tell().expect("there are digests to tell");
    let (answer, there) = received(to, options, None).compare(&told.digests);
    (told.held(&answer, 1), there)
}

/// Target P3: twins have everything alike, and each thing that a quick check with what is kept would see, and nothing else, makes its
/// directory and those above it differ.
#[test]
fn what_a_copy_would_see_is_seen() {
    let twins = || (tree(), tree());
    let (from, to) = twins();
    let (here, there) = same(from.path(), to.path(), &archive());
    assert_eq!(here, there);
    assert_eq!((here.roots, here.entries, here.files), (1, 210, 200));
    type Change = fn(&Path);
    let changes: [(&str, Change); 9] = [
        ("size", |file| {
            fs::write(file, b"longer content").unwrap();
            age(file, 1);
        }),
        ("time", |file| age(file, 2)),
        ("bits", |file| fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap()),
        ("name", |file| fs::rename(file, file.with_file_name("3b")).unwrap()),
        ("gone", |file| fs::remove_file(file).unwrap()),
        ("another", |file| fs::write(file.with_file_name("another"), b"").unwrap()),
        ("kind", |file| {
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
        }),
        ("link", |file| {
            fs::remove_file(file).unwrap();
            symlink("content", file).unwrap();
        }),
        ("hidden", |file| {
            let inner = file.with_file_name("d");
            fs::create_dir(&inner).unwrap();
            fs::write(inner.join("f"), b"").unwrap();
        }),
    ];
    for (what, change) in changes {
        let (from, to) = twins();
        change(&to.path().join("4/3"));
        settle(to.path());
        let (here, there) = same(from.path(), to.path(), &archive());
        assert_eq!(here.places, there.places, "{what}");
        assert_eq!((here.roots, here.places.len(), here.files), (0, 9, 180), "{what}");
    }
    // Contents of one size and time are what a quick check takes for the same.
    let file = to.path().join("4/3");
    fs::write(&file, b"CONTENT").unwrap();
    age(&file, 1);
    assert_eq!(same(from.path(), to.path(), &archive()).0.roots, 1);
    // Bits that are not kept.
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(same(from.path(), to.path(), &DigestOptions { modes: 0, ..archive() }).0.roots, 1);
    // The times of directories, those of the root among them.
    age(to.path(), 2);
    assert_eq!(same(from.path(), to.path(), &DigestOptions { modes: 0, ..archive() }).0.places.len(), 10);
}

/// ADR 27: where a link leads, and extended attributes where they are kept.
#[test]
fn links_and_attributes_are_seen() {
    let (from, to) = (tree(), tree());
    let link = |root: &Path, target: &str| {
        let (path, time) = (root.join("2/link"), Timespec { tv_sec: 1_000_000_000, tv_nsec: 1 });
        let _ = fs::remove_file(&path);
        symlink(target, &path).unwrap();
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        settle(root);
    };
    link(from.path(), "one");
    link(to.path(), "two");
    assert_eq!(same(from.path(), to.path(), &archive()).0.places.len(), 9);
    link(to.path(), "one");
    assert_eq!(same(from.path(), to.path(), &archive()).0.roots, 1);
    let set = |path: PathBuf, value: &[u8]| {
        rustix::fs::setxattr(path, "user.test", value, rustix::fs::XattrFlags::empty())
    };
    let (from, to) = (tree(), tree());
    if set(from.path().join("3/3"), b"1").is_err() {
        // Without user attributes there is nothing to see here.
        return;
    }
    set(to.path().join("3/3"), b"2").unwrap();
    assert_eq!(same(from.path(), to.path(), &archive()).0.roots, 1);
    let kept = DigestOptions { xattrs: Some(AttributeSort::All), ..archive() };
    assert_eq!(same(from.path(), to.path(), &kept).0.places.len(), 9);
    set(to.path().join("3/3"), b"1").unwrap();
    assert_eq!(same(from.path(), to.path(), &kept).0.roots, 1);
}

/// ADR 27: a directory with anything out of the ordinary has no digest, nor have those above it; what is beside it has.
#[test]
fn what_is_out_of_the_ordinary_has_no_digest() {
    let dir = tree();
    fs::hard_link(dir.path().join("5/1"), dir.path().join("5/linked")).unwrap();
    symlink("x", dir.path().join("6/link")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(CWD, dir.path().join("7/fifo"), fifo, mode, 0).unwrap();
    settle(dir.path());
    let count = |options: &DigestOptions| sent(dir.path(), options).directories.len();
    assert_eq!(count(&archive()), 11);
    assert_eq!(count(&DigestOptions { hard_links: true, ..archive() }), 9);
    assert_eq!(count(&DigestOptions { links: false, ..archive() }), 9);
    assert_eq!(count(&DigestOptions { specials: false, ..archive() }), 9);
    // Nor is there one where the writer would change what it was told: bits that it may not give, and what a run that was killed left.
    let setuid = dir.path().join("8/1");
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).unwrap();
    let write = WriteOptions { special_modes: true, harmless: true, ..WriteOptions::default() };
    let scanned = |write: &WriteOptions| {
        let receiving = ReceivingEnd::new(write, None);
        let places = vec![Some(Directory::open(dir.path()).unwrap())];
        Scan::new(&archive(), Some(receiving), &|_| false).places(places.into_iter()).directories.len()
    };
    assert_eq!(scanned(&write), 9);
    fs::set_permissions(&setuid, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(scanned(&write), 11);
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(dir.path().join("9"), "user.dray.unfinished", b"755", flags).is_ok() {
        assert_eq!(scanned(&write), 9);
    }
}

/// ADR 27: what the rules leave out goes into no digest, and where it would be deleted its directory has none.
#[test]
fn rules_are_those_of_the_sender() {
    let (from, to) = (tree(), tree());
    let rules = |text: &str| {
        let excludes = Excludes::of_rules([text.as_bytes()].into_iter()).unwrap();
        DigestOptions { excludes, ..archive() }
    };
    fs::write(to.path().join("1/x.o"), b"").unwrap();
    settle(to.path());
    let digests = |options: &DigestOptions, delete| {
        let told = sent(from.path(), options).tell().unwrap();
        received(to.path(), options, delete).compare(&told.digests).1.places.len()
    };
    let (keeps, deletes) = (DeleteOptions::default(), DeleteOptions { excluded: true, max: None });
    assert_eq!(digests(&archive(), None), 9, "a name too many");
    assert_eq!(digests(&rules("-*.o"), None), 1);
    assert_eq!(digests(&rules("-*.o"), Some(keeps)), 1);
    assert_eq!(digests(&rules("-*.o"), Some(deletes)), 9);
    // Left out by the sender alone, so deleted; protected by the receiver alone, so told.
    assert_eq!(digests(&rules("=-s *.o"), None), 1);
    assert_eq!(digests(&rules("=-s *.o"), Some(keeps)), 9);
    assert_eq!(digests(&rules("=-r *.o"), Some(keeps)), 9);
}

/// ADR 27: one owner of everything is told by number and name, and it counts what he is here; several go into the digests.
#[test]
fn owners_are_those_of_this_host() {
    let root = Owner { user: Sole::One(0), group: Sole::One(0) };
    let names = Names::new(&DigestOptions { users: true, groups: true, ..DigestOptions::default() }, true);
    let told = |uid, gid, user: Option<&str>| SoleOwner {
        uid,
        gid,
        user: user.map(|name| name.as_bytes().to_vec().into()),
        group: None,
    };
    assert!(names.is_as_told(&told(0, 0, None), root));
    if !rustix::process::geteuid().is_root() {
        // Nobody but root gives files away, and takes groups that are not his.
        assert!(names.is_as_told(&told(12_345, 12_345, None), root));
        return;
    }
    assert!(!names.is_as_told(&told(12_345, 0, None), root));
    assert!(names.is_as_told(&told(12_345, 0, Some("root")), root), "by name");
    let theirs = Owner { user: Sole::One(54_321), group: Sole::One(0) };
    assert!(
        names.is_as_told(&told(54_321, 0, None), theirs) && !names.is_as_told(&told(54_321, 7, None), theirs)
    );
    assert!(!names.is_as_told(&told(0, 0, None), Owner { user: Sole::Several, group: Sole::One(0) }));
    // Users alone are kept.
    let users = Names::new(&DigestOptions { users: true, ..DigestOptions::default() }, true);
    assert!(users.is_as_told(&told(0, 7, None), root));
    // Several, on real trees.
    let (from, to) = (tree(), tree());
    let chown =
        |tree: &Path, name: &str, uid| std::os::unix::fs::chown(tree.join(name), Some(uid), None).unwrap();
    chown(to.path(), "1/1", 54_321);
    let options = DigestOptions { numeric_ids: true, ..archive() };
    assert_eq!(same(from.path(), to.path(), &options).0.places.len(), 9);
    chown(from.path(), "1/1", 54_321);
    assert_eq!(sent(from.path(), &options).tell().unwrap().digests.owner, None);
    assert_eq!(same(from.path(), to.path(), &options).0.roots, 1);
    chown(from.path(), "1/1", 54_322);
    assert_eq!(same(from.path(), to.path(), &options).0.places.len(), 9);
    // Nobody keeps them.
    let none = DigestOptions { users: false, groups: false, ..archive() };
    assert_eq!(same(from.path(), to.path(), &none).0.roots, 1);
}

/// ADR 27: a number whose name stands for another one here is what no sender tells, also if the sender has such numbers himself; and between
/// directories without anything else no run of owners is counted.
#[test]
fn numbers_that_share_a_name_are_told() {
    let options = DigestOptions { users: true, ..DigestOptions::default() };
    let names = |name: &str, first: u32, is_receiving| {
        let users = [first, first + 1].map(|number| (number, name.as_bytes().to_vec()));
        Names::of(OwnerNames::of(users.into(), [].into()), &options, is_receiving)
    };
    let pushed = |names: &Names, uid| {
        let mut out = Vec::new();
        names.push(&mut out, (uid, 0));
        out
    };
    let (here, there) = (names("alice", 1000, false), names("bob", 2000, true));
    assert_ne!(pushed(&here, 1001), pushed(&there, 2001));
    let there = names("alice", 2000, true);
    assert_eq!(pushed(&here, 1001), pushed(&there, 2000), "what the receiver makes of the name");
    assert_ne!(pushed(&here, 1001), pushed(&there, 2001));
    // Two directories in a directory: one run, of the directory itself.
    let hashers = Hashers::new();
    let mut owners = Owners::new(&hashers, 1000, 0);
    let mut expected = hashers.owners.clone();
    expected.update(&1_u64.to_be_bytes()).update(&pushed(&here, 1000));
    for below in [[1; 16], [2; 16]] {
        owners.add_below(&below, &here, &mut Vec::new());
        expected.update(&below);
    }
    assert_eq!(owners.end(&here, &mut Vec::new()), canonical::digest(&expected));
}

/// ADR 27: attributes that may be more than an entry holds, which fails, are told; one alone has failed before.
#[test]
fn attributes_that_no_entry_holds_are_told() {
    let xattrs = |count: usize, bytes: usize| {
        let xattr = Xattr { name: b"user.test".to_vec(), value: vec![7; bytes] };
        canonical::are_too_many(&vec![xattr; count])
    };
    assert!(!xattrs(0, 0) && !xattrs(2, 10_000) && !xattrs(1, 60_000));
    assert!(xattrs(2, TREE_ENTRY_BYTES_MAX / 2) && xattrs(10_000, 0));
}

/// ADR 27: places of many sources take one descriptor until their turn comes, and an empty destination has none worth a scan.
#[test]
fn places_of_many_sources_take_one_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<Vec<u8>> = (0..300).map(|number| number.to_string().into_bytes()).collect();
    let landing = || Landing::resolve(dir.path(), &names, true).unwrap();
    assert!(landing().places().is_none());
    names.iter().for_each(|name| fs::create_dir(dir.path().join(OsStr::from_bytes(name))).unwrap());
    assert!(landing().places().is_none(), "empty directories");
    fs::write(dir.path().join("299/file"), b"").unwrap();
    let landing = landing();
    let places = landing.places().unwrap();
    assert_eq!(places.directories().flatten().count(), 300);
    // Of other tests there are others.
    let open =
        fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|it| fs::read_link(it.path()).ok());
    assert_eq!(open.filter(|path| path.starts_with(dir.path())).count(), 2, "the landing's and the places'");
}

/// ADR 27: two names that lead to one directory at the destination (letter case) are told.
#[test]
fn one_directory_under_two_names_is_told() {
    let dir = tree();
    let options = DigestOptions { names: vec![b"a".to_vec(), b"A".to_vec()], ..archive() };
    let places = |paths: [&Path; 2]| {
        let open = |path| Some(Directory::open(path).unwrap());
        let receiving =
            ReceivingEnd::new(&WriteOptions { special_modes: true, ..WriteOptions::default() }, None);
        Scan::new(&options, Some(receiving), &|_| false).places(paths.into_iter().map(open)).directories.len()
    };
    let other = tree();
    assert_eq!(places([dir.path(), other.path()]), 22);
    assert_eq!(places([dir.path(), dir.path()]), 0);
}

/// ADR 27: the same directory in another place, or under another name at the destination, is none that is told.
#[test]
fn a_digest_counts_in_its_place_alone() {
    let dir = tree();
    let elsewhere = DigestOptions { names: vec![b"elsewhere".to_vec()], ..archive() };
    let told = sent(dir.path(), &archive()).tell().unwrap();
    let (same, held) = received(dir.path(), &elsewhere, None).compare(&told.digests);
    assert_eq!((held, same.bits(11).unwrap().contains(&true)), (Held::default(), false));
}

/// ADR 27: a receiver that has far more than the sender looks no further than it said, and what it has seen by then counts.
#[test]
fn a_scan_that_ends_early_has_what_it_saw() {
    let (from, to) = (tree(), tree());
    for number in 0..3000 {
        fs::write(to.path().join(format!("9/more {number}")), b"").unwrap();
    }
    settle(to.path());
    let told = sent(from.path(), &archive()).tell().unwrap();
    assert_eq!(told.digests.entries, 211);
    let receiving = ReceivingEnd::new(&WriteOptions { special_modes: true, ..WriteOptions::default() }, None);
    let places = || std::iter::once(Some(Directory::open(to.path()).unwrap()));
    let scanned = |stop: &dyn Fn(u64) -> bool| Scan::new(&archive(), Some(receiving), stop).places(places());
    let (early, whole) = (scanned(&|entries| entries > 422), scanned(&|_| false));
    assert!(early.entries < 2000 && whole.entries == 3211, "{} of {}", early.entries, whole.entries);
    assert_eq!(early.compare(&told.digests).1.places.len(), 9);
    assert_eq!(early.compare(&told.digests).1, whole.compare(&told.digests).1);
    // Names that are left out are looked at, too.
    let excludes = Excludes::of_rules([&b"-more*"[..]].into_iter()).unwrap();
    let ruled = DigestOptions { excludes, ..archive() };
    let stopped = |names: u64| {
        let stop = move |seen| seen > names;
        Scan::new(&ruled, None, &stop).sources(&Origin::Anywhere, &[to.path()], false).is_none()
    };
    assert!(stopped(1000) && !stopped(4000));
    // A sender that is stopped has nothing to tell.
    assert!(Scan::new(&archive(), None, &|_| true).sources(&Origin::Anywhere, &[to.path()], false).is_none());
}

/// ADR 27, review finding: what is mounted below the destination is neither entered nor asked by the end that receives: it may not answer.
/// Its directory has no digest; the sender, whose tree it is, enters it.
#[test]
fn what_is_mounted_at_the_destination_is_left_alone() {
    const PLACE: &str = "DRAY_TEST_DIGEST_MOUNTS";
    let name = "local::tree::digest::tests::what_is_mounted_at_the_destination_is_left_alone";
    if let Some(place) = std::env::var_os(PLACE) {
        let place = Path::new(&place);
        let (here, there) = same(place, place, &archive());
        assert_eq!((here.roots, here.places.len()), (0, 9));
        assert_eq!(here, there);
        assert_eq!(received(place, &archive(), None).entries, 211, "nothing of what is mounted");
        assert_eq!(sent(place, &archive()).entries, 214);
        return;
    }
    let place = tree();
    fs::create_dir(place.path().join("3/mounted")).unwrap();
    let mount =
        "cd \"$DRAY_TEST_DIGEST_MOUNTS\" && mount -t tmpfs none 3/mounted && touch 3/mounted/a 3/mounted/b";
    run_with_mounts(name, (PLACE, place.path()), mount);
}

/// P14: whatever the number of entries, so many directories are remembered, those with the most below them; what is told fits its message.
#[test]
fn ten_million_entries_are_remembered_in_bounds() {
    let mut directories = Directories::new(TREE_DIGESTS_HELD_MAX);
    let (owner, mut number) = (Owner::of(1, 1), 0_u64);
    let mut push = |start, entries, root| {
        number += 1;
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        let place = digest;
        let files = entries - 1;
        directories.push(Found { digest, owned_digest: digest, owner, place, start, entries, files, root });
        assert!(directories.len() <= TREE_DIGESTS_HELD_MAX);
    };
    // A million directories of nine files, in directories of a hundred, in directories of a hundred, in one of a hundred.
    let mut start = 1;
    for _ in 0..100 {
        let upper = start;
        start += 1;
        for _ in 0..100 {
            let lower = start;
            start += 1;
            for _ in 0..100 {
                push(start, 10, None);
                start += 10;
            }
            push(lower, start - lower, None);
        }
        push(upper, start - upper, None);
    }
    push(0, start, Some(0));
    let number = number;
    assert_eq!(start, 10_010_101);
    let scanned = || Scanned {
        directories: directories.clone(),
        names: Names::new(&DigestOptions::default(), true),
        keeps_owners: false,
        sources: 1,
        entries: start,
        roots: Roots::new(),
    };
    let told = scanned().tell().unwrap();
    // The root, the hundred, and as many of the ten thousand below as there is room for.
    assert!(told.has_roots);
    assert_eq!(told.digests.iter().len(), TREE_DIGESTS_MAX);
    let (same, held) = scanned().compare(&told.digests);
    assert_eq!((held.roots, held.entries, held.places.len()), (1, start - 1, 1));
    assert_eq!(told.held(&same, 1), held);
    // One directory differs, so all above it do: where those beside it are told only they are, else a hundredth of the tree.
    let all_but = |changed: [u64; 3]| {
        let is_same = |digest: &&[u8; 16]| !changed.iter().any(|it| digest[..8] == it.to_be_bytes());
        let rest: Vec<u8> = told.digests.iter().filter(is_same).flatten().copied().collect();
        let (_, held) = scanned().compare(&Digests { digests: rest.into(), owner: None, entries: start });
        assert_eq!(held.roots, 0);
        held.entries
    };
    let (lower, upper) = (1000, 100 * 1001);
    assert_eq!(all_but([number, number - 1, number - 2]), 99 * upper + 99 * lower);
    assert_eq!(all_but([number, 101 * 100 + 1, 101]), 99 * upper);
}

/// P14, target P3: of more equal directories than are told, and than are remembered, both ends choose the same, in whichever order they come.
#[test]
fn of_equal_directories_as_many_as_there_is_room_for_are_told() {
    let scanned = |numbers: &mut dyn Iterator<Item = u64>| {
        let mut directories = Directories::new(TREE_DIGESTS_HELD_MAX);
        for number in numbers {
            let mut digest = [0; 16];
            digest[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            let (owner, place, start) = (Owner::of(1, 1), digest, 1 + number * 8);
            let found =
                Found { digest, owned_digest: digest, owner, place, start, entries: 8, files: 7, root: None };
            directories.push(found);
        }
        assert!((TREE_DIGESTS_HELD_MAX / 2..=TREE_DIGESTS_HELD_MAX).contains(&directories.len()));
        let names = Names::new(&DigestOptions::default(), true);
        Scanned {
            directories,
            names,
            keeps_owners: false,
            sources: 1,
            entries: 8 * 500_000,
            roots: Roots::new(),
        }
    };
    let told = scanned(&mut (0..500_000)).tell().unwrap();
    assert_eq!(told.digests.iter().len(), TREE_DIGESTS_MAX);
    let (_, held) = scanned(&mut (0..500_000).rev()).compare(&told.digests);
    assert_eq!((held.places.len(), held.entries), (TREE_DIGESTS_MAX, TREE_DIGESTS_MAX as u64 * 7));

    // And on a real tree, of which one file changes.
    let root = tempfile::tempdir().unwrap();
    for directory in 0..2100 {
        let path = root.path().join(directory.to_string());
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), b"content").unwrap();
    }
    let told = sent(root.path(), &archive()).tell().unwrap();
    fs::write(root.path().join("7/file"), b"another content").unwrap();
    let (_, held) = received(root.path(), &archive(), None).compare(&told.digests);
    assert!(held.places.len() >= TREE_DIGESTS_MAX - 2, "{} directories", held.places.len());
}
