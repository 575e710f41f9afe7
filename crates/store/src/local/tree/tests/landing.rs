//! Where a copy goes that is said again: on where it was cut off, and else where `scp` has it ([ADR 25]).
//!
//! [ADR 25]: ../../../../../../../docs/adr/0025-a-destination-that-was-begun.md

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::super::unfinished::{self, UNFINISHED_TREE, now_s};
use super::*;

/// What knows the source.
const SOURCE: [u8; 32] = [7; 32];

fn landing(path: &Path, source: [u8; 32]) -> Landing {
    let origin = Origin::Anywhere;
    Landing::resolve(path, &[b"tree".to_vec()], false).unwrap().of_source(&origin, path, Some(source))
}

/// Fills what is landed at with a directory `sub`, and comes to its own end if `is_all`.
fn fill(landing: Landing, is_all: bool) -> Landed {
    let mut writer = TreeWriter::new(landing, MINE);
    assert!(matches!(writer.root(0, &directory(None)).unwrap(), Placed::Done));
    assert!(matches!(writer.entry(&directory(Some("sub"))).unwrap(), Placed::Done));
    writer.leave();
    if is_all {
        writer.leave();
        writer.come_to_end(true).unwrap();
    }
    writer.landed()
}

/// The mark at `path`, as it is.
fn mark(path: &Path) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    let len = rustix::fs::lgetxattr(path, UNFINISHED_TREE, &mut value[..]).ok()?;
    Some(value[..len].to_vec())
}

/// Issue "kill -9 in mid-tree, again": a copy to a name that was not there goes on under that name, however often it was cut off; once a run has come to its end there, the same goes into it, as with `scp`.
#[test]
fn the_same_again_goes_on_in_the_same_place() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    for (spelt, landed) in [("to", Landed::Made), ("to/", Landed::Again), ("./to//", Landed::Again)] {
        assert_eq!(fill(landing(&dir.path().join(spelt), SOURCE), false), landed, "{spelt}");
        assert!(to.join("sub").exists() && !to.join("tree").exists(), "{spelt}");
    }
    assert_eq!(mark(&to).unwrap().len(), 41);
    assert_eq!(fill(landing(&to, SOURCE), true), Landed::Again);
    assert_eq!(mark(&to), None);
    assert_eq!(fill(landing(&to, SOURCE), true), Landed::There);
    assert!(to.join("tree/sub").exists(), "as scp has it");
    assert_eq!(mark(&to.join("tree")), None, "the tree has its own name");
}

/// The same: another source, several, a file, a way through a link, another directory of that name, and a value that is not ours are other
/// copies, and have the rule of scp.
#[test]
fn only_the_same_source_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (to, link) = (dir.path().join("to"), dir.path().join("link"));
    fill(landing(&to, SOURCE), false);
    symlink("to", &link).unwrap();
    let origin = Origin::Anywhere;
    let resolve = |names: &[Vec<u8>]| Landing::resolve(&to, names, names.len() > 1).unwrap();
    let tree = b"tree".to_vec();
    assert!(landing(&to, SOURCE).may_go_on());
    for (what, other) in [
        ("another source", landing(&to, [8; 32])),
        ("nobody knows it", Landing::resolve(&to, std::slice::from_ref(&tree), false).unwrap()),
        ("several", resolve(&[tree.clone(), tree.clone()]).of_source(&origin, &to, Some(SOURCE))),
        ("what is in it", resolve(&[Vec::new()]).of_source(&origin, &to, Some(SOURCE))),
        ("a link", landing(&link, SOURCE)),
    ] {
        assert!(!other.may_go_on(), "{what}");
    }
    // A file goes into the directory, though a directory would go on.
    let mut writer = TreeWriter::new(landing(&to, SOURCE), MINE);
    let root = Entry { name: None, ..file("f", b"x") };
    let Placed::Wanted(target, _) = writer.root(0, &root).unwrap() else { panic!("a file has a content") };
    let mut new = target.create().unwrap();
    new.write(b"x").unwrap();
    target.finish(new, &finished(b"x")).unwrap();
    assert!(to.join("tree").is_file());
    fs::remove_file(to.join("tree")).unwrap();
    // The mark itself, on another directory, or shorter or longer.
    let value = mark(&to).unwrap();
    fs::rename(&to, dir.path().join("begun")).unwrap();
    fs::create_dir(&to).unwrap();
    for value in [&value[..], &value[..40], &value[..3], &[&value[..], b"x"].concat(), &[7; 64]] {
        rustix::fs::setxattr(&to, UNFINISHED_TREE, value, rustix::fs::XattrFlags::empty()).unwrap();
        assert!(!landing(&to, SOURCE).may_go_on(), "{value:?}");
    }
    assert!(landing(&dir.path().join("begun"), SOURCE).may_go_on());
}

/// The same: whatever fills the root to its own end takes the mark, whoever left it, also where the root's own bits forbid that; a run that is
/// cut off does not.
#[test]
fn the_end_of_a_run_takes_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let contents = |_: &str| Landing::resolve(&to, &[Vec::new()], false).unwrap();
    let sync = |_: &str| Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
    let named = |_: &str| Landing::resolve(dir.path(), &[b"to".to_vec()], false).unwrap();
    for way in [&contents as &dyn Fn(&str) -> Landing, &sync, &named] {
        assert_eq!(fill(landing(&to, SOURCE), false), Landed::Made);
        fill(way("cut off"), false);
        assert!(mark(&to).is_some());
        fill(way("all"), true);
        assert_eq!(mark(&to), None);
        fs::remove_dir_all(&to).unwrap();
    }
    let mut writer = TreeWriter::new(landing(&to, SOURCE), MINE);
    writer
        .root(0, &Entry { metadata: Metadata { mode: 0o555, ..directory(None).metadata }, ..directory(None) })
        .unwrap();
    writer.leave();
    writer.come_to_end(false).unwrap();
    assert_eq!(mark(&to), None);
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, 0o555);
    // Another source's tree inside of it is another root.
    fs::remove_dir_all(&to).unwrap();
    fill(landing(&to, SOURCE), false);
    fill(landing(&to, [8; 32]), true);
    assert!(mark(&to).is_some() && to.join("tree/sub").exists());
}

/// The same: a run that nobody waits for any more has been cut off, be it after the last entry.
#[test]
fn what_is_cut_off_keeps_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let mut writer = TreeWriter::new(landing(&to, SOURCE), MINE);
    let stop = Arc::new(AtomicBool::new(false));
    writer.stop_with(stop.clone());
    writer.root(0, &directory(None)).unwrap();
    writer.leave();
    writer.sync().unwrap();
    stop.store(true, std::sync::atomic::Ordering::Release);
    assert_eq!(writer.come_to_end(true).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(mark(&to).is_some());
}

/// The mark says something of one directory, and is neither told nor taken, though a sender of an older version tells it; a dry run leaves none
/// and takes none, and says where it would go.
#[test]
fn the_mark_is_never_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, plan) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("plan"));
    fill(landing(&from, SOURCE), false);
    let failed = copy(&from, &to, walk_options(), WriteOptions { xattrs: true, ..MINE });
    assert!(failed.is_empty() && mark(&to).is_none(), "{failed:?}");
    let xattr = dray_core::tree::Xattr { name: UNFINISHED_TREE.into(), value: vec![1] };
    let root =
        Entry { metadata: Metadata { xattrs: vec![xattr], ..directory(None).metadata }, ..directory(None) };
    let mut writer = writer(&dir.path().join("old"), WriteOptions { xattrs: true, ..MINE });
    writer.root(0, &root).unwrap();
    writer.leave();
    let told = writer.failures();
    assert!(told.attributes.is_empty() && told.left_out.is_empty(), "{told:?}");
    assert_eq!(mark(&dir.path().join("old")), None);
    for (path, landed) in [(&plan, Landed::There), (&from, Landed::Again)] {
        let mut preview = Preview::new(landing(path, SOURCE), MINE, Changes::default());
        preview.root(0, &directory(None)).unwrap();
        assert_eq!(preview.landed(), landed);
        assert_eq!(
            preview.path_of(None, &file("f", b"")),
            [path.file_name().unwrap().to_str().unwrap(), "/f"].concat().into_bytes()
        );
    }
    assert!(!plan.exists() && mark(&from).is_some());
}

fn set_mark(path: &Path, source: [u8; 32], time_s: u64) {
    assert!(unfinished::mark(&Directory::open(path).unwrap(), &source, time_s));
}

/// Issue "what is private stays private": who may write to the destination may have left the mark there, and looks into what comes; one of
/// another user's above all.
#[test]
fn a_mark_that_others_may_have_left_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    set_mark(&to, SOURCE, now_s());
    for (mode, is_believed) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false), (0o700, true)]
    {
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(landing(&to, SOURCE).may_go_on(), is_believed, "{mode:o}");
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&to, Some(1234), None).unwrap();
        assert!(!landing(&to, SOURCE).may_go_on());
        assert_eq!(fill(landing(&to, SOURCE), false), Landed::There);
        assert!(to.join("tree/sub").exists() && !to.join("sub").exists());
    }
}

/// Issue "no trap is left": a mark is believed for seven days, also by a clock that went back a little, and is as good as new where a copy goes on.
#[test]
fn an_old_mark_is_not_believed() {
    const DAY: u64 = 24 * 3600;
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    let now = now_s();
    for (time_s, is_believed) in [
        (0, false),
        (now - 8 * DAY, false),
        (now + 2 * DAY, false),
        (u64::MAX, false),
        (now + DAY / 2, true),
        (now - 6 * DAY, true),
    ] {
        set_mark(&to, SOURCE, time_s);
        assert_eq!(landing(&to, SOURCE).may_go_on(), is_believed, "{time_s}");
    }
    // No other time can be given to it.
    let mut value = mark(&to).unwrap();
    let old = value.clone();
    value[1..9].copy_from_slice(&now.to_be_bytes());
    rustix::fs::setxattr(&to, UNFINISHED_TREE, &value, rustix::fs::XattrFlags::empty()).unwrap();
    assert!(!landing(&to, SOURCE).may_go_on());
    rustix::fs::setxattr(&to, UNFINISHED_TREE, &old, rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(fill(landing(&to, SOURCE), false), Landed::Again);
    assert!(mark(&to).unwrap()[1..9] >= now.to_be_bytes()[..]);
}

/// The same: what knew the source before is believed, too, and is not what is left.
#[test]
fn a_source_may_be_known_by_several() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let both = [[8; 32], SOURCE];
    let landing_of_both =
        || Landing::resolve(&to, &[b"tree".to_vec()], false).unwrap().of_source(&Origin::Anywhere, &to, both);
    fill(landing(&to, SOURCE), false);
    assert_eq!(fill(landing_of_both(), false), Landed::Again);
    assert!(!landing(&to, SOURCE).may_go_on() && landing(&to, [8; 32]).may_go_on());
    assert_eq!(fill(landing_of_both(), true), Landed::Again);
}

/// What was seen before the far end spoke is looked at again.
#[test]
fn a_destination_that_changed_meanwhile_is_not_gone_on_in() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fill(landing(&to, SOURCE), false);
    let begun = landing(&to, SOURCE);
    fill(Landing::resolve(&to, &[Vec::new()], false).unwrap(), true);
    let mut writer = TreeWriter::new(begun, MINE);
    let error = writer.root(0, &directory(None)).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("changed"), "{error}");
    drop(writer);
    fs::remove_dir_all(&to).unwrap();
    fill(landing(&to, SOURCE), false);
    let begun = landing(&to, SOURCE);
    fs::remove_dir_all(&to).unwrap();
    assert_eq!(fill(begun, true), Landed::Made, "nothing is there any more");
    assert_eq!(mark(&to), None);
}

/// S53 "nor bits": the root of a tree has its own bits and times when the mark is gone, not before; where it was cut off, it is nobody
/// else's to write to.
#[test]
fn the_root_gets_its_bits_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let bits = || fs::metadata(&to).unwrap().mode() & 0o7777;
    for (mode, ends) in [(0o777, false), (0o777, true), (0o555, true), (0o2775, true)] {
        let mut writer = TreeWriter::new(landing(&to, SOURCE), MINE);
        let root = Entry { metadata: Metadata { mode, ..directory(None).metadata }, ..directory(None) };
        writer.root(0, &root).unwrap();
        writer.leave();
        assert_eq!(bits(), 0o755, "{mode:o}");
        if ends {
            writer.come_to_end(false).unwrap();
            assert_eq!((bits(), fs::metadata(&to).unwrap().mtime()), (mode, 1_000_000_000), "{mode:o}");
            assert_eq!(mark(&to), None);
            fs::remove_dir(&to).unwrap();
        } else {
            drop(writer);
            assert_eq!(bits(), 0o755);
            assert!(landing(&to, SOURCE).may_go_on());
        }
    }
    // Of several sources whose contents go there the last one's count.
    fill(landing(&to, SOURCE), false);
    let twice = Landing::resolve(&to, &[Vec::new(), Vec::new()], true).unwrap();
    let mut writer = TreeWriter::new(twice, MINE);
    for (index, mode) in [0o700, 0o711].into_iter().enumerate() {
        let root = Entry { metadata: Metadata { mode, ..directory(None).metadata }, ..directory(None) };
        writer.root(index, &root).unwrap();
        writer.leave();
    }
    writer.come_to_end(false).unwrap();
    assert_eq!((bits(), mark(&to)), (0o711, None));
}

/// Issue "an error is told once": what could not be made is known by the words that the writer has for it.
#[test]
fn the_words_of_what_could_not_be_made_are_known() {
    let nowhere = Path::new("/proc/new");
    let error = writer(nowhere, MINE).root(0, &directory(None)).unwrap_err();
    assert_eq!(Unmade::of(&error.to_string()), Some(Unmade::Destination), "{error}");
    // Something else stands there; and in it, where it is a directory.
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), b"").unwrap();
    for (path, names, unmade) in [
        (place.path().join("file"), vec![Vec::new()], Unmade::Destination),
        (place.path().to_owned(), vec![b"file".to_vec()], Unmade::Entry),
    ] {
        let landing = || Landing::resolve(&path, &names, false).unwrap();
        let error = TreeWriter::new(landing(), MINE).root(0, &directory(None)).unwrap_err();
        assert_eq!(Unmade::of(&error.to_string()), Some(unmade), "{error}");
        let error = Preview::new(landing(), MINE, Changes::default()).root(0, &directory(None)).unwrap_err();
        assert_eq!(Unmade::of(&error.to_string()), Some(unmade), "planned: {error}");
    }
    // Beside that the directory of the backups is another.
    assert_eq!(Unmade::of("make the directory of the backups: no"), None);
    // A name that no directory can hold is the user's own.
    let long = place.path().join("x".repeat(256));
    for error in [
        Landing::resolve(&long, &[b"it".to_vec()], false).unwrap_err(),
        Landing::resolve_sync(&Origin::Anywhere, &long, &[Vec::new()]).unwrap_err(),
    ] {
        assert!(error.kind() == ErrorKind::Usage && error.advice().is_some(), "{error}");
    }
    // What is in a destination that was made is none.
    let new = place.path().join("new");
    let landing = Landing::resolve(&new, &[b"it".to_vec()], false).unwrap();
    let mut writer = TreeWriter::new(landing, MINE);
    writer.root(0, &directory(None)).unwrap();
    fs::remove_dir(&new).unwrap();
    let error = writer.entry(&directory(Some("sub"))).unwrap_err();
    assert_eq!(Unmade::of(&error.to_string()), Some(Unmade::Entry), "{error}");
    let landing = Landing::resolve_sync(&Origin::Anywhere, nowhere, &[Vec::new()]).unwrap();
    let error = TreeWriter::new(landing, MINE).root(0, &directory(None)).unwrap_err();
    assert_eq!(Unmade::of(&error.to_string()), Some(Unmade::Destination), "{error}");
    assert_eq!(Unmade::of("make way"), None);
}
