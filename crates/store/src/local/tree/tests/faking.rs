//! What an account may not keep, in attributes (ADR 32).

use rustix::fs::{XattrFlags, lgetxattr, setxattr};

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::inotify;

use super::super::fake::made_by_name_in;
use super::super::fake::{ATTRIBUTE, Access, At, Telling, Told};
use super::super::settings::Settings;
use super::hostile::as_nobody;
use super::*;

pub(super) const KEEPING: WriteOptions = WriteOptions { numeric_ids: true, ..ARCHIVE };

pub(super) fn faking() -> SyncOptions {
    SyncOptions {
        links: true,
        devices: true,
        specials: true,
        users: true,
        groups: true,
        itemize: true,
        fake: FakeSuper::On,
        ..SyncOptions::default()
    }
}

pub(super) fn writer_of(to: &Path, sync: SyncOptions) -> TreeWriter {
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()]).unwrap();
    TreeWriter::new(landing, KEEPING).with_changes(Changes { sync: Some(sync), ..Changes::default() })
}

pub(super) fn attribute(path: &Path) -> Option<String> {
    let mut value = [0; 128];
    let len = lgetxattr(path, ATTRIBUTE, &mut value[..]).ok()?;
    Some(String::from_utf8(value[..len].to_vec()).unwrap())
}

pub(super) fn set_attribute(path: &Path, value: &[u8]) {
    setxattr(path, ATTRIBUTE, value, XattrFlags::empty()).unwrap();
}

pub(super) fn owned(mut entry: Entry, mode: u32, uid: u32, gid: u32) -> Entry {
    (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) = (mode, uid, gid);
    entry
}

/// Files, and what else there is, below a root; all of other owners but the last, which has those of whoever runs this.
fn entries(to: &Path) -> (Entry, Vec<(Entry, &'static [u8])>) {
    let mine = fs::metadata(to).unwrap();
    let made = |name, kind, mode, uid, gid| owned(entry(Some(name), kind, 0), mode, uid, gid);
    let of =
        |name, content: &'static [u8], mode, uid, gid| (owned(file(name, content), mode, uid, gid), content);
    let none: &[u8] = b"";
    let all = vec![
        of("powers", b"program", 0o4755, 7, 8),
        of("narrow", b"secret", 0o400, 7, 8),
        of("none", b"secret", 0, 7, 8),
        of("wide", b"anybody's", 0o666, mine.uid(), mine.gid()),
        (made("console", Kind::CharacterDevice { major: 5, minor: 1 }, 0o622, 7, 5), none),
        (made("disk", Kind::BlockDevice { major: 259, minor: 70_000 }, 0o660, 7, 6), none),
        (made("pipe", Kind::Fifo, 0o640, 9, 8), none),
        (made("socket", Kind::Socket, 0o777, 9, 8), none),
        (made("link", Kind::Symlink { target: b"../any where".to_vec() }, 0o777, 12, 13), none),
        of("plain", b"mine", 0o640, mine.uid(), mine.gid()),
    ];
    (owned(directory(None), 0o1777, 7, 8), all)
}

/// Writes them, and how each was placed: true for what was not there as it is to be.
pub(super) fn write_all(to: &Path, sync: SyncOptions) -> (Vec<bool>, Vec<Done>, NotKept) {
    let (root, all) = entries(to);
    let mut writer = writer_of(to, sync);
    writer.root(0, &root).unwrap();
    let mut placed = Vec::new();
    for (entry, content) in all {
        placed.push(match writer.entry(&entry).unwrap() {
            Placed::Wanted(target, _) => {
                let mut new = target.create().unwrap();
                new.write(content).unwrap();
                let came = target.finish(new, &finished(content)).unwrap();
                writer.settle(*target, Some(came));
                true
            }
            Placed::Done => true,
            Placed::Unchanged => false,
            other => panic!("{other:?}"),
        });
    }
    writer.leave();
    (placed, writer.take_done().into(), writer.failures())
}

/// S88: what the receiving account may not give to a file is in rsync's attribute, in its words; what stands for it nobody else can write to. What it may
/// have it has, without the attribute. The same again does nothing, also as far as anybody is told.
#[test]
fn what_an_account_may_not_keep_is_in_attributes() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let (placed, told, not_kept) = write_all(&to, faking());
    assert!(placed.iter().all(|is_made| *is_made) && told.len() == placed.len() + 1, "{told:?}");
    assert!(not_kept.attributes.is_empty() && not_kept.left_out.is_empty(), "{not_kept:?}");
    let mine = fs::metadata(to.join("plain")).unwrap();
    let wide = format!("100666 0,0 {}:{}", mine.uid(), mine.gid());
    for (name, value, mode) in [
        ("", Some("41777 0,0 7:8"), 0o755),
        ("powers", Some("104755 0,0 7:8"), 0o755),
        ("narrow", Some("100400 0,0 7:8"), 0o600),
        ("none", Some("100000 0,0 7:8"), 0o600),
        ("wide", Some(&*wide), 0o644),
        ("console", Some("20622 5,1 7:5"), 0o600),
        ("disk", Some("60660 259,70000 7:6"), 0o600),
        ("pipe", Some("10640 0,0 9:8"), 0o600),
        ("socket", Some("140777 0,0 9:8"), 0o600),
        ("link", Some("120777 0,0 12:13"), 0o600),
        ("plain", None, 0o640),
    ] {
        let path = to.join(name);
        assert_eq!(attribute(&path).as_deref(), value, "{name}");
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o7777, mode, "{name}");
        assert!(name.is_empty() || found.is_file(), "{name}");
        assert_eq!((found.uid(), found.mtime()), (mine.uid(), 1_000_000_000), "{name}");
    }
    assert_eq!(fs::read(to.join("link")).unwrap(), b"../any where");
    assert_eq!(fs::read(to.join("powers")).unwrap(), b"program");
    let ctimes = || -> Vec<(i64, i64)> {
        let (_, all) = entries(&to);
        let names = all.into_iter().map(|(entry, _)| path_of(entry.name.unwrap().as_bytes()));
        let found = names.map(|name| fs::symlink_metadata(to.join(name)).unwrap());
        found.map(|found| (found.ctime(), found.ctime_nsec())).collect()
    };
    let before = ctimes();
    let (placed, told, not_kept) = write_all(&to, faking());
    assert!(!placed.contains(&true) && told.is_empty(), "{placed:?} {told:?}");
    assert!(not_kept.attributes.is_empty() && ctimes() == before);
}

/// S88: an end that reads tells what the attributes say, and the attribute is none of an entry's own; without the option it is nothing special.
#[test]
fn what_attributes_say_is_told() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    write_all(&to, faking());
    setxattr(to.join("plain"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    let tell = |fake| {
        let mut walker = Walker::new(vec![to.join("")], WalkOptions { fake, ..walk_options() });
        let (mut told, mut failed) = (Vec::new(), 0);
        while let Some(step) = walker.step() {
            match step {
                Walked::Entry(entry, _) => told.push(*entry),
                Walked::Failed(..) => failed += 1,
                _ => {}
            }
        }
        told.sort_by_key(|entry| entry.name.clone().map(|name| name.as_bytes().to_vec()));
        (told, failed)
    };
    let (root, all) = entries(&to);
    let mut expected: Vec<Entry> = all.into_iter().map(|(entry, _)| entry).collect();
    expected.push(root);
    expected.sort_by_key(|entry| entry.name.clone().map(|name| name.as_bytes().to_vec()));
    let noted =
        expected.iter_mut().find(|entry| entry.name.as_ref().is_some_and(|it| it.as_bytes() == b"plain"));
    let note = dray_core::tree::Xattr { name: b"user.note".to_vec(), value: b"kept".to_vec() };
    noted.unwrap().metadata.xattrs.push(note);
    assert_eq!(tell(FakeSuper::On), (expected, 0));
    let (as_is, failed) = tell(FakeSuper::Off);
    assert!(failed == 0 && as_is.iter().skip(1).all(|entry| matches!(entry.kind, Kind::File { .. })));
    let has = |entry: &&Entry| entry.metadata.xattrs.iter().any(|xattr| xattr.name == ATTRIBUTE.as_bytes());
    assert_eq!(as_is.iter().filter(has).count(), as_is.len() - 1);
    // Root that was not asked to believe it.
    let (told, failed) = tell(FakeSuper::Distrusted);
    assert!(told.is_empty() && failed == 1, "the source itself has one");
    rustix::fs::removexattr(&to, ATTRIBUTE).unwrap();
    let (told, failed) = tell(FakeSuper::Distrusted);
    assert!(failed == 9 && told.len() == 11 && !told.iter().any(|entry| has(&entry)), "{told:?}");
    assert!(told.iter().skip(1).all(|entry| matches!(entry.kind, Kind::File { .. })));
}

/// S88: rubbish in an attribute is an error of its entry, which is named and not told; the others are.
#[test]
fn rubbish_in_attributes_is_not_believed() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    fs::create_dir_all(from.join("a directory")).unwrap();
    fs::create_dir_all(from.join("fine")).unwrap();
    fs::write(from.join("a directory/below"), b"").unwrap();
    let long = [b'x'; 4097];
    let bad: [(&str, &[u8], &[u8]); 8] = [
        ("a directory", b"", b"100644 0,0 0:0"),
        ("a file", b"", b"40755 0,0 0:0"),
        ("signs", b"", b"+100644 0,0 0:0"),
        ("long", b"", &[b'7'; 4000]),
        ("text", b"", b"setuid root, please"),
        ("link without target", b"", b"120777 0,0 0:0"),
        ("link with a long one", &long, b"120777 0,0 0:0"),
        ("link with a NUL", b"a\0b", b"120777 0,0 0:0"),
    ];
    for (name, content, value) in bad {
        let path = from.join(name);
        if !path.exists() {
            fs::write(&path, content).unwrap();
        }
        set_attribute(&path, value);
    }
    set_attribute(&from.join("fine"), b"41777 0,0 3:4");
    let mut walker = Walker::new(vec![from.clone()], WalkOptions { fake: FakeSuper::On, ..walk_options() });
    let (mut told, mut failed) = (Vec::new(), Vec::new());
    while let Some(step) = walker.step() {
        match step {
            Walked::Entry(entry, _) => told.extend(entry.name.map(|name| (name, entry.metadata.mode))),
            Walked::Failed(path, error) => {
                assert_eq!(error.kind(), ErrorKind::Refused, "{path:?} {error}");
                failed.push(path.strip_prefix(&from).unwrap().to_str().unwrap().to_owned());
            }
            _ => {}
        }
    }
    assert_eq!(told, [(Name::new(b"fine").unwrap(), 0o1777)]);
    failed.sort();
    let mut expected: Vec<&str> = bad.iter().map(|(name, ..)| *name).collect();
    expected.sort_unstable();
    assert_eq!(failed, expected);
}

/// S88: rubbish at the destination counts for nothing and is replaced, what says something else is brought up to date, and what needs no attribute loses it; a
/// sender cannot set the attribute by telling it as one of the entry's own.
#[test]
fn attributes_at_the_destination_are_brought_up_to_date() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    write_all(&to, faking());
    for (name, value) in [
        ("powers", &b"nonsense"[..]),
        ("narrow", b"100400 0,0 7:9"),
        ("plain", b"104755 0,0 7:8"),
        ("", b"1"),
    ] {
        set_attribute(&to.join(name), value);
    }
    let content = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    let before = ["narrow", "plain"].map(content);
    let (placed, told, not_kept) = write_all(&to, faking());
    // Powers come with a new file.
    assert!(placed[0] && !placed[1..].contains(&true) && not_kept.attributes.is_empty(), "{placed:?}");
    let letters = |name: &str| {
        let done = told.iter().find(|done| done.path == name.as_bytes()).unwrap();
        String::from_utf8(done.letters.unwrap().to_vec()).unwrap()
    };
    assert_eq!((letters("narrow"), letters("plain")), (".f.....g...".into(), ".f...pog...".into()));
    assert_eq!(["narrow", "plain"].map(content), before);
    assert_eq!(attribute(&to.join("powers")).unwrap(), "104755 0,0 7:8");
    assert_eq!(attribute(&to.join("narrow")).unwrap(), "100400 0,0 7:8");
    assert_eq!(attribute(&to).unwrap(), "41777 0,0 7:8");
    assert_eq!(attribute(&to.join("plain")), None);
    let mut hostile = file("hostile", b"x");
    let found = fs::metadata(to.join("plain")).unwrap();
    (hostile.metadata.uid, hostile.metadata.gid) = (found.uid(), found.gid());
    let value = b"104755 0,0 0:0".to_vec();
    hostile.metadata.xattrs.push(dray_core::tree::Xattr { name: ATTRIBUTE.into(), value });
    let mut writer = writer_of(&to, faking());
    writer.root(0, &entries(&to).0).unwrap();
    put(&mut writer, &hostile, b"x").unwrap();
    writer.leave();
    assert_eq!(attribute(&to.join("hostile")), None);
    let left_out = writer.failures().left_out;
    assert!(
        left_out.len() == 1
            && left_out.iter().all(|(what, count)| what.contains("user.rsync.*") && *count == 1)
    );
}

/// S88: what is of another kind makes way both ways: a file for what stands for a device, that for a real link.
#[test]
fn stand_ins_and_files_replace_each_other() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    symlink("../any where", to.join("link")).unwrap();
    let fifo = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, to.join("pipe"), rustix::fs::FileType::Fifo, fifo, 0).unwrap();
    fs::write(to.join("console"), b"").unwrap();
    let (placed, ..) = write_all(&to, faking());
    assert!(placed.iter().all(|is_made| *is_made));
    for name in ["link", "pipe"] {
        assert!(fs::symlink_metadata(to.join(name)).unwrap().is_file(), "{name}");
    }
    assert_eq!(attribute(&to.join("console")).unwrap(), "20622 5,1 7:5");
    let mut writer = writer_of(&to, faking());
    writer.root(0, &entries(&to).0).unwrap();
    put(&mut writer, &file("console", b"text"), b"text").unwrap();
    let other = Kind::CharacterDevice { major: 5, minor: 2 };
    let changed = owned(entry(Some("disk"), other, 0), 0o660, 7, 6);
    assert!(matches!(writer.entry(&changed).unwrap(), Placed::Done));
    writer.leave();
    assert_eq!(fs::read(to.join("console")).unwrap(), b"text");
    assert!(attribute(&to.join("console")).is_none_or(|value| value == "100644 0,0 0:0"));
    assert_eq!(attribute(&to.join("disk")).unwrap(), "20660 5,2 7:6");
}

/// S88: what rsync keeps for root in other attributes is neither told as one of the entry's own, nor removed, nor set, and is named at either end.
#[test]
fn attributes_that_stand_for_others_are_named() {
    const CAPABILITY: &str = "user.rsync.security.capability";
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    write_all(&to, faking());
    let names = ["plain", "powers"];
    for name in names {
        setxattr(to.join(name), CAPABILITY, b"rights", XattrFlags::empty()).unwrap();
    }
    let is_there = |name: &str| lgetxattr(to.join(name), CAPABILITY, &mut [0; 16][..]) == Ok(6);
    // The same again, and with changes.
    write_all(&to, faking());
    fs::set_permissions(to.join("plain"), fs::Permissions::from_mode(0o600)).unwrap();
    set_attribute(&to.join("powers"), b"106755 0,0 7:8");
    let (_, told, _) = write_all(&to, faking());
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(names.iter().all(|name| is_there(name)));
    for (fake, failures) in [(FakeSuper::On, 2), (FakeSuper::Off, 0)] {
        let mut walker = Walker::new(vec![to.join("")], WalkOptions { fake, ..walk_options() });
        let (mut told, mut failed) = (0, Vec::new());
        while let Some(step) = walker.step() {
            match step {
                Walked::Entry(entry, _) => {
                    let has = |name: &str| entry.metadata.xattrs.iter().any(|it| it.name == name.as_bytes());
                    told += usize::from(has(CAPABILITY));
                }
                Walked::Failed(path, error) => {
                    assert!(error.to_string().contains("security.capability"), "{error}");
                    failed.push(path.file_name().unwrap().to_owned());
                }
                _ => {}
            }
        }
        failed.sort();
        assert_eq!(failed, &names[..failures]);
        assert_eq!(told, 2 - failures);
    }
    let mut stray = file("stray", b"x");
    let value = b"rights".to_vec();
    stray.metadata.xattrs.push(dray_core::tree::Xattr { name: CAPABILITY.into(), value });
    let mut writer = writer_of(&to, faking());
    writer.root(0, &entries(&to).0).unwrap();
    put(&mut writer, &stray, b"x").unwrap();
    writer.leave();
    assert!(!is_there("stray"));
    assert_eq!(writer.failures().left_out.values().sum::<u64>(), 1);
}

/// S88, threat model: root believes no other user's attribute at a destination either, but its own and that of who owns it; what belongs to others becomes root's, so
/// that they cannot change what it says, and the next run has nothing to do.
#[test]
fn root_believes_the_owner_of_the_destination() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("not root, who alone gives files away");
    }
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    write_all(&to, faking());
    let names = ["powers", "console", "link"];
    let give = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    let owners = || names.map(|name| fs::symlink_metadata(to.join(name)).unwrap().uid());
    names.iter().for_each(|name| give(&to.join(name), 1234));
    // Of these, as the others are those of who owns the destination, which changes here.
    let changed = || {
        let (_, told, not_kept) = write_all(&to, faking());
        assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
        told.iter().filter(|done| names.iter().any(|name| name.as_bytes() == done.path)).count()
    };
    // An account's own tree, in which root writes for once.
    give(&to, 1234);
    assert_eq!((changed(), owners()), (0, [1234; 3]));
    give(&to, 0);
    assert_eq!((changed(), owners()), (3, [0; 3]));
    assert_eq!(attribute(&to.join("powers")).unwrap(), "104755 0,0 7:8");
    assert_eq!(changed(), 0);
}

/// Entries that are told of `from`, without the root, by name with bits and owner; and how many have failed.
pub(super) fn told_of(from: &Path, fake: FakeSuper) -> (Vec<(Vec<u8>, u32, u32)>, usize) {
    let mut walker = Walker::new(vec![from.join("")], WalkOptions { fake, ..walk_options() });
    let (mut told, mut failed) = (Vec::new(), 0);
    while let Some(step) = walker.step() {
        match step {
            Walked::Entry(entry, _) => {
                let Entry { name, metadata, .. } = *entry;
                told.extend(name.map(|name| (name.as_bytes().to_vec(), metadata.mode, metadata.uid)));
            }
            Walked::Failed(..) => failed += 1,
            _ => {}
        }
    }
    told.sort();
    (told, failed)
}

/// S88: what root kept in a directory of an account is told from there by root that is asked to believe it: its own files, and those of the account, but no third one's.
#[test]
fn what_root_kept_in_an_accounts_directory_is_told() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("not root, who alone gives files away");
    }
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let give = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    give(&to, 1234);
    let (placed, ..) = write_all(&to, faking());
    assert!(placed.iter().all(|is_made| *is_made));
    assert_eq!((fs::metadata(&to).unwrap().uid(), fs::metadata(to.join("powers")).unwrap().uid()), (1234, 0));
    give(&to.join("narrow"), 1234);
    let (told, failed) = told_of(&to, FakeSuper::On);
    assert_eq!((told.len(), failed), (10, 0), "{told:?}");
    assert!(
        told.contains(&(b"powers".to_vec(), 0o4755, 7)) && told.contains(&(b"narrow".to_vec(), 0o400, 7))
    );
    give(&to.join("powers"), 1235);
    let (told, failed) = told_of(&to, FakeSuper::On);
    assert_eq!((told.len(), failed), (9, 1), "{told:?}");
}

/// S88: what a group may read the group that stands for it may not, unless all others may.
#[test]
fn a_group_that_stands_for_another_reads_no_more_than_others() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let mine = fs::metadata(&to).unwrap();
    let mut writer = writer_of(&to, faking());
    writer.root(0, &owned(directory(None), 0o751, mine.uid(), 8)).unwrap();
    for (name, mode, gid) in
        [("theirs", 0o640, 8), ("all", 0o654, 8), ("none", 0o604, 8), ("mine", 0o640, mine.gid())]
    {
        put(&mut writer, &owned(file(name, b"x"), mode, mine.uid(), gid), b"x").unwrap();
    }
    writer.leave();
    let found = ["", "theirs", "all", "none", "mine"].map(|name| {
        let path = to.join(name);
        (fs::metadata(&path).unwrap().mode() & 0o7777, attribute(&path).map(|value| value[..6].to_owned()))
    });
    let says = |value: &str| Some(value.to_owned());
    assert_eq!(found[0], (0o711, says("40751 ")));
    assert_eq!(
        found[1..],
        [(0o600, says("100640")), (0o644, says("100654")), (0o604, says("100604")), (0o640, None)]
    );
}

/// S88: where what this account makes belongs to another one, nobody would believe the attributes: that is said before anything is there, and nothing is left of the look,
/// with names and without. To root what belongs to who owns the destination is as good as its own.
#[test]
fn where_files_are_given_to_others_is_told_first() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&to, open).unwrap();
    let now = fs::metadata(&to).unwrap();
    let base = Directory::open(&to).unwrap();
    // Of a server that takes all for somebody else this is what is seen here: who writes is not who owns.
    let asked = |uid: u32, is_root: bool, writes: bool| {
        let mut settings = Settings::new(KEEPING);
        settings.change(Changes { sync: Some(faking()), ..Changes::default() });
        (settings.powers.uid, settings.powers.is_root) = (uid, is_root);
        settings.require_attributes(&base, None, writes)
    };
    let me = rustix::process::geteuid().as_raw();
    asked(me, me == 0, true).unwrap();
    let error = asked(me + 4321, false, true).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(&format!("belongs to user {me} there")), "{error}");
    asked(me + 4321, false, false).unwrap();
    asked(me + 4321, true, true).unwrap();
    if me == 0 {
        as_nobody(|nobody| {
            let error = asked(0, true, true).unwrap_err();
            assert!(error.to_string().contains(&format!("belongs to user {nobody} there")), "{error}");
        });
    }
    assert_eq!(made_by_name_in(&base, &|| ()).unwrap().unwrap().stx_uid, me);
    let after = fs::metadata(&to).unwrap();
    assert_eq!((after.mtime(), after.mtime_nsec()), (now.mtime(), now.mtime_nsec()));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
}

/// S88: the look leaves nothing, and takes away nothing: not the time of what others change meanwhile; what it cannot remove again it names.
#[test]
fn who_looks_whose_files_are_leaves_the_rest_alone() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    hostile::shared(&to);
    let set_time = |seconds: i64| {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &to, &times, rustix::fs::AtFlags::empty()).unwrap();
    };
    let base = Directory::open(&to).unwrap();
    let time_after = |meanwhile: &dyn Fn()| {
        set_time(1_000_000_000);
        made_by_name_in(&base, meanwhile).unwrap().unwrap();
        fs::metadata(&to).unwrap().mtime()
    };
    assert_eq!(time_after(&|| ()), 1_000_000_000);
    // As another program does that has come a while later.
    assert!(time_after(&|| set_time(2_000_000_000)) > 1_000_000_000);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    // Somebody else took it away.
    let clear =
        || fs::read_dir(&to).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
    made_by_name_in(&base, &clear).unwrap().unwrap();
    let own = place.path().join("own");
    hostile::shared(&own);
    let said = as_nobody(|_| {
        let inner = own.join("inner");
        fs::create_dir(&inner).unwrap();
        let base = Directory::open(&inner).unwrap();
        let close = || fs::set_permissions(&inner, fs::Permissions::from_mode(0o555)).unwrap();
        let error = made_by_name_in(&base, &close).unwrap_err().to_string();
        close();
        assert!(made_by_name_in(&base, &|| ()).unwrap().is_none(), "who may make nothing hears of it later");
        error
    });
    let left = fs::read_dir(own.join("inner")).unwrap().next().unwrap().unwrap().file_name();
    assert!(said.contains(left.to_str().unwrap()) && said.contains("remove"), "{said}");
}

/// A directory that everybody can come to, wherever others of tests lie.
pub(super) fn open_place() -> tempfile::TempDir {
    let place = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    place
}

/// S88, threat model: who may write to a file may set its attribute, by bits or by an ACL, and gains no powers by it: the entry is named. What rsync keeps is told all the
/// same: all owners and links, and anything where nobody else can come to the files.
#[test]
fn who_may_write_to_a_file_gives_it_no_powers() {
    let place = open_place();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    let cases: [(&str, u32, &str, bool); 12] = [
        ("setuid, of a group", 0o664, "104755 0,0 0:0", false),
        ("setgid, of others", 0o646, "102755 0,0 0:5", false),
        ("setuid, by ACL", 0o644, "104755 0,0 0:0", false),
        ("terminal", 0o622, "20622 5,1 0:5", false),
        ("disk", 0o660, "60660 259,7 0:6", false),
        ("a link that was a file", 0o666, "120777 0,0 0:0", false),
        ("link", 0o777, "120777 0,0 12:13", true),
        ("owner", 0o664, "100664 0,0 7:8", true),
        ("fifo", 0o666, "10666 0,0 7:8", true),
        ("su", 0o755, "104755 0,0 0:0", true),
        ("wall", 0o700, "102700 0,0 0:5", true),
        ("console", 0o600, "20622 5,1 0:5", true),
    ];
    for (name, mode, value, _) in cases {
        let path = from.join(name);
        fs::write(&path, b"content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        set_attribute(&path, value.as_bytes());
    }
    // Read for the group, write for one user.
    let entries =
        [(1_u16, 6_u16, u32::MAX), (2, 6, 1234), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 4, u32::MAX)];
    let entries = entries.iter().flat_map(|(tag, bits, id)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    });
    let acl: Vec<u8> = 2_u32.to_le_bytes().into_iter().chain(entries).collect();
    setxattr(from.join("setuid, by ACL"), "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
    let told = || {
        let (told, failed) = told_of(&from, FakeSuper::On);
        let mut names: Vec<String> =
            told.into_iter().map(|(name, ..)| String::from_utf8(name).unwrap()).collect();
        names.sort();
        (names, failed)
    };
    let names = |is_told: &dyn Fn(bool) -> bool| -> Vec<String> {
        let told = cases.iter().filter(|(.., it)| is_told(*it)).map(|(name, ..)| (*name).to_owned());
        let mut told: Vec<String> = told.collect();
        told.sort();
        told
    };
    let bits = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let (some, all) = ((names(&|it| it), 6), (names(&|_| true), 0));
    assert_eq!(told(), some);
    for closed in [place.path(), &from] {
        for (mode, expected) in [(0o700, &all), (0o744, &all), (0o710, &some), (0o701, &some), (0o755, &some)]
        {
            bits(closed, mode);
            assert_eq!(&told(), expected, "{closed:?} {mode:o}");
        }
    }
    // A single one, by its name.
    let one = || {
        let mut walker =
            Walker::new(vec![from.join("disk")], WalkOptions { fake: FakeSuper::On, ..walk_options() });
        matches!(walker.step(), Some(Walked::Entry(..)))
    };
    assert!(!one());
    bits(&from, 0o700);
    assert!(one());
    if rustix::process::geteuid().is_root() {
        // A third one can come to what is in his own.
        bits(&from, 0o755);
        bits(place.path(), 0o700);
        std::os::unix::fs::chown(place.path(), Some(1235), None).unwrap();
        assert_eq!(told(), some);
    }
}

/// S88: at the destination powers that others may have set count for nothing, and what stands for the entry is made so that they cannot; where nobody else can come to it,
/// what rsync keeps so stays as it is.
#[test]
fn what_others_may_have_set_at_the_destination_is_made_right() {
    let place = open_place();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    write_all(&to, faking());
    let mode = |name: &str| fs::metadata(to.join(name)).unwrap().mode() & 0o7777;
    let as_rsync_does = [("powers", 0o775), ("console", 0o622), ("link", 0o777)];
    for (name, mode) in as_rsync_does {
        fs::set_permissions(to.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let (placed, told, _) = write_all(&to, faking());
    assert!(!placed.contains(&true) && told.is_empty(), "{told:?}");
    // What has content is left alone where nothing differs.
    assert_eq!((mode("powers"), mode("console"), mode("link")), (0o775, 0o600, 0o600));
    for (name, mode) in as_rsync_does {
        fs::set_permissions(to.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let held = as_rsync_does.map(|(name, _)| fs::File::options().write(true).open(to.join(name)).unwrap());
    let (_, told, not_kept) = write_all(&to, faking());
    let mut paths: Vec<_> =
        told.iter().map(|done| String::from_utf8_lossy(&done.path).into_owned()).collect();
    paths.sort();
    assert_eq!(paths, ["console", "powers"]);
    assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
    assert_eq!((mode("powers"), mode("console")), (0o755, 0o600));
    assert_eq!(attribute(&to.join("powers")).as_deref(), Some("104755 0,0 7:8"));
    assert_eq!(attribute(&to.join("console")).as_deref(), Some("20622 5,1 7:5"));
    // Who opened it before writes to nothing that stands for the entry, as from now on that is believed: programs, and where links point.
    held.iter().for_each(|held| held.write_all_at(b"evil", 0).unwrap());
    let texts = ["powers", "console", "link"].map(|name| fs::read(to.join(name)).unwrap());
    assert_eq!(texts, [&b"program"[..], b"", b"../any where"]);
    let (placed, told, _) = write_all(&to, faking());
    assert!(!placed.contains(&true) && told.is_empty(), "{told:?}");
}

/// S88: what stands for an entry is made again if another run takes it, under its temporary name, for something left.
#[test]
fn a_stand_in_that_another_run_clears_is_made_again() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let mut writer = writer_of(&to, faking());
    writer.root(0, &directory(None)).unwrap();
    let is_over = AtomicBool::new(false);
    let cleared = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Each name once, as a run comes by an entry once.
            let mut cleared = std::collections::HashSet::new();
            while !is_over.load(Ordering::Acquire) {
                for entry in fs::read_dir(&to).unwrap().flatten() {
                    let name = entry.file_name();
                    if name.as_encoded_bytes().starts_with(b".dray-") && !cleared.contains(&name) {
                        let _ = fs::remove_file(entry.path());
                        cleared.insert(name);
                    }
                }
            }
            cleared.len()
        });
        for number in 0..2_000 {
            let name = format!("pipe {number}");
            let made = writer.entry(&owned(entry(Some(&name), Kind::Fifo, 0), 0o640, 9, 8));
            if made.is_err() {
                is_over.store(true, Ordering::Release);
            }
            assert!(matches!(made.unwrap(), Placed::Done), "{name}");
            fs::remove_file(to.join(&name)).unwrap();
        }
        is_over.store(true, Ordering::Release);
        other.join().unwrap()
    });
    assert!(cleared > 0, "nobody came in between");
}

/// S51, S88: on a host without `/proc` the file that was looked at is opened by its name, and no other: one that was put there meanwhile is not read.
#[test]
fn without_magic_links_the_same_file_is_read() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path();
    for name in ["one", "other"] {
        fs::write(from.join(name), name).unwrap();
        set_attribute(&from.join(name), b"104755 0,0 0:0");
    }
    let directory = Directory::open(from).unwrap();
    let found = directory.stat(b"one").unwrap();
    let access = Access::by_name(&found, &directory, b"one").unwrap();
    fs::rename(from.join("other"), from.join("one")).unwrap();
    assert!(matches!(Access::by_name(&found, &directory, b"one"), Err(rustix::io::Errno::STALE)));
    let At::Open(fd) = access.at() else { panic!("{access:?}") };
    assert_eq!(directory::stat_fd(fd).unwrap().stx_ino, found.stx_ino);
    symlink("one", from.join("link")).unwrap();
    assert!(matches!(Access::by_name(&found, &directory, b"link"), Err(rustix::io::Errno::LOOP)));
}

/// S52, threat model: without the option, too, bits that lend powers hold for the very file that they were read of.
#[test]
fn setuid_is_not_lent_to_what_comes_instead() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    for (name, mode) in [("su", 0o4755), ("wall", 0o2755), ("stays", 0o4755), ("plain", 0o755)] {
        fs::write(from.join(name), b"program").unwrap();
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut walker = Walker::new(vec![from.join("")], walk_options());
    let mut files = std::collections::BTreeMap::new();
    while let Some(step) = walker.step() {
        if let Walked::Entry(entry, Some(file)) = step {
            files.insert(entry.name.unwrap().as_bytes().to_vec(), file);
        }
    }
    for name in ["su", "wall", "plain"] {
        fs::write(from.join("evil"), b"my shel").unwrap();
        fs::rename(from.join("evil"), from.join(name)).unwrap();
    }
    let opened = |name: &str| files[name.as_bytes()].open().map(|_| ()).map_err(|error| error.kind());
    assert_eq!((opened("su"), opened("wall")), (Err(ErrorKind::Changed), Err(ErrorKind::Changed)));
    assert_eq!((opened("stays"), opened("plain")), (Ok(()), Ok(())));
}

/// S88: an attribute that the bits of its file keep even its owner from reading counts all the same, and none is missed.
#[test]
fn bits_hide_no_attribute() {
    let place = tempfile::tempdir().unwrap();
    hostile::shared(&place.path().join("to"));
    let to = place.path().join("to");
    let found = as_nobody(|_| {
        [Some("104755 0,0 7:8"), None].map(|value| {
            let path = to.join("f");
            fs::write(&path, b"x").unwrap();
            value.into_iter().for_each(|value| set_attribute(&path, value.as_bytes()));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o200)).unwrap();
            let mut settings = Settings::new(WriteOptions { owners: false, ..KEEPING });
            settings.change(Changes { sync: Some(faking()), ..Changes::default() });
            let flags = rustix::fs::OFlags::PATH;
            let fd = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
            let by_fd = Directory::path_of(fd.as_fd());
            let kind = Kind::File { size_bytes: 1, oid: None };
            let mode = value.map_or(Some(0o640), |_| None);
            settings.apply_fake(At::Path(&by_fd), fd.as_fd(), &kind, mode, &Metadata::default());
            let now = (
                attribute(&path),
                fs::metadata(&path).unwrap().mode() & 0o7777,
                settings.told.take().failed.len(),
            );
            fs::remove_file(&path).unwrap();
            now
        })
    });
    assert_eq!(found, [(Some("104755 0,0 7:8".into()), 0o755, 0), (None, 0o640, 0)]);
}

/// S88: what stands for something else has its attribute before it has its name, also where nothing was: who is killed in between leaves no file that would be told as one.
#[test]
fn a_stand_in_is_never_without_its_attribute() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let what = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, &to, what).unwrap();
    let (placed, ..) = write_all(&to, faking());
    assert!(placed.iter().all(|is_made| *is_made));
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let (mut moved, mut created) = (Vec::new(), Vec::new());
    while let Ok(event) = events.next() {
        let name = event.file_name().unwrap().to_str().unwrap().to_owned();
        let is_moved = event.events().contains(inotify::ReadFlags::MOVED_TO);
        if is_moved { moved.push(name) } else { created.push(name) }
    }
    for name in ["console", "disk", "pipe", "socket", "link"] {
        assert!(
            moved.iter().any(|it| it == name) && !created.iter().any(|it| it == name),
            "{name} {created:?}"
        );
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), 10, "nothing else is left");
}

/// S88, threat model: who can rename in a directory cannot put a file, or the target of a link, of his own in the place of one that an attribute gives powers, between one
/// look and the next.
#[test]
fn a_swap_lends_no_powers() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    let write = |name: &str, content: &[u8]| fs::write(from.join(name), content).unwrap();
    let swap = |name: &str| {
        fs::rename(from.join(name), place.path().join(name)).unwrap();
        fs::rename(from.join("evil"), from.join(name)).unwrap();
    };
    for name in ["stays", "swapped", "written"] {
        write(name, b"program");
        set_attribute(&from.join(name), b"104755 0,0 0:0");
    }
    write("plain", b"program");
    write("link", b"good");
    set_attribute(&from.join("link"), b"120777 0,0 0:0");
    let options = WalkOptions { fake: FakeSuper::On, ..walk_options() };
    let mut walker = Walker::new(vec![from.join("")], options);
    let mut files = std::collections::BTreeMap::new();
    while let Some(step) = walker.step() {
        if let Walked::Entry(entry, Some(file)) = step {
            files.insert(entry.name.unwrap().as_bytes().to_vec(), (entry.metadata.mode, file));
        }
    }
    assert_eq!(files.len(), 4);
    for name in ["swapped", "plain"] {
        write("evil", b"my shel");
        swap(name);
    }
    write("written", b"my shel");
    let opened = |name: &str| {
        let (mode, file) = &files[name.as_bytes()];
        (*mode & 0o7000, file.open().map(|_| ()).map_err(|error| error.kind()))
    };
    assert_eq!(opened("stays"), (0o4000, Ok(())));
    assert_eq!(opened("swapped"), (0o4000, Err(ErrorKind::Changed)));
    assert_eq!(opened("written"), (0o4000, Err(ErrorKind::Changed)));
    assert_eq!(opened("plain"), (0, Ok(())), "nothing was said of it");
    // Between the parts of one look.
    let directory = Directory::open(&from).unwrap();
    let telling = Telling::new(FakeSuper::On, &directory);
    let seen = |name: &str, between: &dyn Fn()| {
        let found = directory.stat(name.as_bytes()).unwrap();
        let place = telling.place(&directory, name.as_bytes(), &found).unwrap().unwrap();
        between();
        let told = telling.entry(&place);
        (place, told)
    };
    write("evil", b"evil");
    let (place_of_link, told) = seen("link", &|| swap("link"));
    assert!(matches!(told, Ok(Told::As(seen)) if seen.stx_mode == 0o120_777));
    assert_eq!(place_of_link.target().unwrap(), b"good");
    // An attribute that comes with another file is not that of the one that was looked at.
    write("evil", b"my shell");
    set_attribute(&from.join("evil"), b"104755 0,0 0:0");
    let (_, told) = seen("plain", &|| swap("plain"));
    assert!(matches!(told, Ok(Told::Itself)), "{told:?}");
}
