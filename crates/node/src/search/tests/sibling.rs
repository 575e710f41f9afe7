//! Which file may have most of one that comes in a tree.

use std::path::PathBuf;

use dray_core::limits::SIBLING_PLACES_MAX;

use super::*;
use crate::search::{Coming, Siblings};

/// A file of `size_bytes` at `path`; only its metadata counts.
fn place(top: &Path, path: &str, size_bytes: u64) {
    place_of(top, path, size_bytes, 1000);
}

/// The same, of a time in seconds.
fn place_of(top: &Path, path: &str, size_bytes: u64, mtime_s: u64) {
    let path = top.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = fs::File::create(path).unwrap();
    file.set_len(size_bytes).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(mtime_s)).unwrap();
}

/// One that comes, an hour after those that are there.
fn coming(path: &str, size_bytes: u64) -> Coming {
    Coming { path: path.into(), size_bytes, mtime_s: 4600 }
}

fn found(siblings: &mut Siblings<'_>, path: &str, size_bytes: u64) -> Option<String> {
    let found = siblings.find(&coming(path, size_bytes), &|| true);
    found.map(|path| path.to_string_lossy().into_owned())
}

const LARGE: u64 = 3 << 20;

/// Y26 "Sibling", Y11: of a tree that lies in a directory beside the destination, each file is found in its place, also one whose size is another;
/// where the first was found, the others are looked for, and nothing more is listed for them.
#[test]
fn a_tree_beside_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (top, to) = (dir.path(), dir.path().join("work/two"));
    for path in ["src/a.img", "src/deep/er/b.img", "c.img"] {
        place(top, &format!("work/one/{path}"), LARGE);
    }
    // As alike as can be but for its place.
    place(top, "else/src/a.img", LARGE);
    place(top, "work/two/src/other", LARGE);
    let scope = scope(top, &to);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "src/a.img", LARGE).as_deref(), Some("work/one/src/a.img"));
    let listed = siblings.listed();
    for path in ["src/deep/er/b.img", "c.img"] {
        assert_eq!(found(&mut siblings, path, LARGE + 100_000), Some(format!("work/one/{path}")));
    }
    assert_eq!(siblings.listed(), listed, "something more was listed");
    assert_eq!(found(&mut siblings, "src/nowhere.iso", 9 * LARGE), None);
}

/// However deep the tree is, and though no name above it is alike.
#[test]
fn a_deep_tree_beside_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let deep = "tree/a/b/c/d/e/f/image";
    place(dir.path(), &format!("was/{}", &deep[5..]), LARGE);
    // Fewer of its directories are there.
    place(dir.path(), "else/e/f/image", LARGE);
    let scope = scope(dir.path(), &dir.path().join("to"));
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, deep, LARGE).as_deref(), Some("was/a/b/c/d/e/f/image"));
    fs::remove_dir_all(dir.path().join("was")).unwrap();
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, deep, LARGE).as_deref(), Some("else/e/f/image"));
}

/// S91: a directory that the user names need not have the destination below it.
#[test]
fn a_tree_elsewhere_is_found() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for path in ["src/a.img", "src/deep/b.img", "src/deep/small"] {
        place(dir.path(), path, if path.ends_with("small") { 5000 } else { LARGE });
    }
    let scope = scope(dir.path(), elsewhere.path()).with_files_from(4096);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "src/a.img", LARGE).as_deref(), Some("src/a.img"));
    assert_eq!(found(&mut siblings, "src/deep/small", 5000).as_deref(), Some("src/deep/small"));
    assert_eq!(found(&mut siblings, "src/deep/b.img", LARGE).as_deref(), Some("src/deep/b.img"));
    assert_eq!(siblings.places(), 1);
}

/// Issue 7 "under any name": a file of the size and time of one that comes is taken for it, whatever it is called and wherever it lies; of several
/// that which has its name, and else none. Small ones are found among what was listed for others.
#[test]
fn a_file_of_the_same_size_and_time_has_any_name() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let found = |siblings: &mut Siblings<'_>, path: &str, size_bytes| {
        let same = Coming { mtime_s: 1000, ..coming(path, size_bytes) };
        siblings.find(&same, &|| true).map(|path| path.to_string_lossy().into_owned())
    };
    for (path, size_bytes) in [
        ("old/scan 17", LARGE),
        ("old/notes", 5000),
        ("a/one.log", 2 * LARGE),
        ("b/two.log", 2 * LARGE),
        ("b/three.log", 2 * LARGE),
    ] {
        place(dir.path(), path, size_bytes);
    }
    for (path, mtime_s) in [("c/one.raw", 1000), ("c/two.raw", 2000)] {
        place_of(dir.path(), path, 3 * LARGE, mtime_s);
    }
    let scope = scope(dir.path(), to.path()).with_files_from(4096);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "minutes.txt", 5000), None, "nothing was listed");
    assert_eq!(found(&mut siblings, "2026/letter.pdf", LARGE).as_deref(), Some("old/scan 17"));
    assert_eq!(found(&mut siblings, "minutes.txt", 5000).as_deref(), Some("old/notes"));
    assert_eq!(found(&mut siblings, "x/two.log", 2 * LARGE).as_deref(), Some("b/two.log"));
    assert_eq!(found(&mut siblings, "x/image.iso", 2 * LARGE), None, "it may be any of three");
    let image = found(&mut siblings, "x/image.iso", 3 * LARGE);
    assert_eq!(image.as_deref(), Some("c/one.raw"), "the other one is of another time");
    let later = Coming { mtime_s: 1001, ..coming("2026/letter.pdf", LARGE) };
    assert_eq!(siblings.find(&later, &|| true), None, "of the same size, and of another time");
    fs::remove_file(dir.path().join("old/notes")).unwrap();
    assert_eq!(found(&mut siblings, "minutes.txt", 5000), None, "it is gone");
}

/// P7 "never slower": for ten thousand small files nothing is listed, and for large ones that nothing is like no more than so many directories, however long
/// that takes.
#[test]
fn what_is_listed_for_a_tree_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..6 * 300 {
        fs::create_dir_all(dir.path().join(format!("{}/{number}", number / 300))).unwrap();
    }
    let scope = scope(dir.path(), &dir.path().join("work/to")).with_files_from(4096);
    let mut siblings = Siblings::new(&scope).patient();
    for number in 0..10_000 {
        assert_eq!(found(&mut siblings, &format!("small-{number}"), 5000), None);
    }
    assert_eq!(siblings.directories(), 0);
    for number in 0..6 {
        // Each is looked for in a directory of the same name first.
        assert_eq!(found(&mut siblings, &format!("{number}/large"), LARGE), None);
    }
    assert!((1..=1024).contains(&siblings.directories()), "{}", siblings.directories());
}

/// Never slower: a file that is merely of the same kind, or as large, is none; one of nearly the same name and size is, and one of the same
/// name far away.
#[test]
fn what_is_only_of_the_same_kind_is_no_sibling() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("photos");
    for number in 0..20 {
        place(dir.path(), &format!("photos/{number:04}.jpg"), LARGE + 10_000 * number);
    }
    place(dir.path(), "disks/system.img", LARGE);
    place(dir.path(), "disks/tiny.img", LARGE / 8);
    let scope = scope(dir.path(), &to);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "5000.jpg", LARGE + 55_000), None);
    assert_eq!(found(&mut siblings, "tiny.img", LARGE), None, "too little");
    assert_eq!(found(&mut siblings, "0007.jpg.bak", LARGE + 70_000).as_deref(), Some("photos/0007.jpg"));
    assert_eq!(found(&mut siblings, "system.img", LARGE).as_deref(), Some("disks/system.img"));
}

/// Design 16: over no link, and nothing that is being received.
#[test]
fn a_sibling_is_in_the_scope() {
    let dir = tempfile::tempdir().unwrap();
    let (top, to) = (dir.path().join("top"), dir.path().join("top/two"));
    place(dir.path(), "outside/a.img", LARGE);
    fs::create_dir_all(&to).unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), top.join("one")).unwrap();
    place(&top, "three/.a.img.dray-0123456789abcdef", LARGE);
    let scope = scope(&top, &to);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "a.img", LARGE), None);
    place(&top, "four/sub/a.img", LARGE);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "sub/a.img", LARGE).as_deref(), Some("four/sub/a.img"));
    // It may have become a link since.
    fs::rename(top.join("four"), dir.path().join("four")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("four"), top.join("four")).unwrap();
    assert!(scope.file(&PathBuf::from("four/sub/a.img")).is_none());
}

/// Memory is bounded, however the files of a tree are scattered; and small files are not searched for, but found where others were.
#[test]
fn places_are_few_and_small_files_are_not_searched_for() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    for number in 0..2 * SIBLING_PLACES_MAX {
        place(dir.path(), &format!("from{number}/file{number}"), LARGE);
    }
    place(dir.path(), "from0/small", 5000);
    let scope = scope(dir.path(), &to).with_files_from(4096);
    let mut siblings = Siblings::new(&scope);
    assert_eq!(found(&mut siblings, "small", 5000), None);
    for number in 0..2 * SIBLING_PLACES_MAX {
        let expected = format!("from{number}/file{number}");
        assert_eq!(found(&mut siblings, &format!("file{number}"), LARGE), Some(expected));
        if number == 0 {
            assert_eq!(found(&mut siblings, "small", 5000).as_deref(), Some("from0/small"));
        }
    }
    assert_eq!(siblings.places(), SIBLING_PLACES_MAX);
    assert_eq!(found(&mut siblings, "small", 5000), None, "its place was forgotten");
}

/// Design 16: a name that comes from elsewhere leads to nothing that is mounted below the scope, nor to what is being received.
#[test]
fn names_that_come_lead_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let (top, to) = (dir.path(), dir.path().join("work/two"));
    for path in ["alpha.img", "net/x/bravo.iso", ".charlie.tar.dray-0123456789abcdef", "delta.qcow"] {
        place(top, &format!("work/one/{path}"), LARGE);
    }
    let scope = scope(top, &to).with_mount("work/one/net");
    let mut siblings = Siblings::new(&scope);
    for (path, is_there) in [
        ("alpha.img", true),
        ("net/x/bravo.iso", false),
        (".charlie.tar.dray-0123456789abcdef", false),
        ("delta.qcow", true),
    ] {
        let place = is_there.then(|| format!("work/one/{path}"));
        assert_eq!(found(&mut siblings, path, LARGE), place);
        assert_eq!(scope.file(&Path::new("work/one").join(path)).is_some(), is_there, "{path}");
    }
}

/// S10: an answer is what was found by the time when nobody waits any longer; what was listed in part only is not taken for all that there is.
#[test]
fn who_is_not_waited_for_answers_with_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (top, to) = (dir.path(), dir.path().join("work/two"));
    for number in 0..50 {
        place(top, &format!("work/{number}/else"), LARGE);
    }
    place(top, "work/one/a.img", LARGE);
    let scope = scope(top, &to);
    let mut siblings = Siblings::new(&scope);
    let left = std::cell::Cell::new(5);
    let goes_on = || left.replace(left.get() - 1) > 0;
    assert_eq!(siblings.find(&coming("a.img", LARGE), &goes_on), None);
    assert!(siblings.listed() < 10, "{} entries", siblings.listed());
    assert_eq!(found(&mut siblings, "a.img", LARGE).as_deref(), Some("work/one/a.img"));
}
