//! What leaves its source once it is in place elsewhere, and what stays.

use super::super::removing as removing_from;
use super::*;
use crate::local::file_systems::{KIND, kind_of};

/// What a walk of `from` tells of what is no directory.
fn told(from: &Path) -> Vec<ToldEntry> {
    let options = WalkOptions { removes: true, ..walk_options() };
    let mut source = from.as_os_str().to_owned();
    source.push("/");
    let mut walker = Walker::new(vec![source.into()], options);
    let mut told = Vec::new();
    while let Some(step) = walker.step() {
        if matches!(&step, Walked::Entry(entry, _) if !entry.is_directory()) {
            told.push(walker.told_last());
        }
    }
    told
}

fn source(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let path = dir.path().join("from").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"content").unwrap();
    }
    dir
}

/// Issue "--remove-source-files": files, links and fifos go, each name of a file that has several; directories stay.
#[test]
fn what_is_no_directory_goes() {
    let dir = source(&["a", "d/e/b", "d/z"]);
    let from = dir.path().join("from");
    fs::hard_link(from.join("a"), from.join("d/again")).unwrap();
    symlink("/etc/passwd", from.join("d/link")).unwrap();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let mut remover = Remover::new(Origin::Anywhere);
    let entries = told(&from);
    assert_eq!(entries.len(), 6);
    for entry in &entries {
        assert!(remover.remove(entry).unwrap(), "{:?}", entry.path());
        assert!(!remover.remove(entry).unwrap(), "it is gone");
    }
    assert_eq!(names(&from), ["d"]);
    assert_eq!(names(&from.join("d")), ["e"]);
    assert!(Path::new("/etc/passwd").exists());
    // A source that is a file itself.
    let file = from.join("file");
    fs::write(&file, b"content").unwrap();
    let mut walker = Walker::new(vec![file.clone()], WalkOptions { removes: true, ..walk_options() });
    assert!(matches!(walker.step(), Some(Walked::Entry(..))));
    assert!(remover.remove(&walker.told_last()).unwrap() && !file.exists());
}

/// "What changed since it was read stays": written to, replaced, of other bits, a directory by now, or behind a link that took the place of its directory.
#[test]
fn what_changed_stays() {
    let dir = source(&["written", "replaced", "bits", "directory", "d/swapped", "same"]);
    let (from, outside) = (dir.path().join("from"), dir.path().join("outside"));
    let entries = told(&from);
    fs::write(from.join("written"), b"CONTENT").unwrap();
    fs::write(from.join("other"), b"content").unwrap();
    fs::rename(from.join("other"), from.join("replaced")).unwrap();
    fs::set_permissions(from.join("bits"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(from.join("directory")).unwrap();
    fs::create_dir(from.join("directory")).unwrap();
    fs::rename(from.join("d"), &outside).unwrap();
    symlink(&outside, from.join("d")).unwrap();
    let mut remover = Remover::new(Origin::Anywhere);
    for entry in &entries {
        let removed = remover.remove(entry);
        match entry.path().file_name().unwrap().to_str().unwrap() {
            "same" => assert!(removed.unwrap()),
            "swapped" => assert!(removed.is_err()),
            name => assert_eq!(removed.unwrap_err().kind(), ErrorKind::Changed, "{name}"),
        }
    }
    assert!(outside.join("swapped").exists());
    assert_eq!(names(&from), ["bits", "d", "directory", "replaced", "written"]);
}

/// The same where it is written to within the tick of the clock in which it was told: no state is told that a later change leaves as it is.
#[test]
fn a_change_at_once_is_seen() {
    let dir = source(&[]);
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let mut remover = Remover::new(Origin::Anywhere);
    for _ in 0..50 {
        fs::write(from.join("f"), b"old").unwrap();
        let entries = told(&from);
        fs::write(from.join("f"), b"new").unwrap();
        assert_eq!(remover.remove(&entries[0]).unwrap_err().kind(), ErrorKind::Changed);
    }
}

/// A new file system whose times are whole seconds, until it is dropped.
struct Coarse(tempfile::TempDir);

impl Coarse {
    /// `None` where this process may not mount, or cannot make one.
    fn mount() -> Option<Coarse> {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("image")).unwrap().set_len(4 << 20).unwrap();
        fs::create_dir(dir.path().join("top")).unwrap();
        let run = |name: &str, words: &[&str]| {
            let words = words.iter().map(|word| match *word {
                "image" | "top" => dir.path().join(word).into_os_string(),
                word => word.into(),
            });
            let output = std::process::Command::new(name).args(words).output();
            output.is_ok_and(|output| output.status.success())
        };
        // Inodes of 128 bytes have no room for more.
        let is_made = run("mkfs.ext4", &["-q", "-F", "-I", "128", "image"]);
        (is_made && run("mount", &["-o", "loop", "image", "top"])).then_some(Coarse(dir))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("top")
    }
}

impl Drop for Coarse {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.path()).status();
    }
}

/// S84, where times are whole seconds: no state is told that a later change leaves as it is, and nothing counts as marked whose ctime did not move. Once the file is old enough
/// both are as anywhere.
#[test]
fn coarse_times_tell_nothing_too_early() {
    let Some(coarse) = Coarse::mount() else { return };
    let path = coarse.path().join("f");
    let top = Origin::Anywhere.directory(&coarse.path()).unwrap();
    // A second that has just begun, so that all of this is in it.
    let begun = || fs::write(&path, b"old").map(|()| fs::metadata(&path).unwrap().ctime()).unwrap();
    let first = begun();
    while begun() == first {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let was = fs::metadata(&path).unwrap().ctime();
    assert!(removing_from::settled(&top, b"f").unwrap().1.is_none());
    let marked = removing_from::mark_changed(&top, b"f");
    match fs::metadata(&path).unwrap().ctime() == was {
        true => assert_eq!(marked.unwrap_err().kind(), ErrorKind::Unsupported),
        false => marked.unwrap(),
    }
    let entries = told(&coarse.path());
    fs::write(&path, b"new").unwrap();
    let entry = entries.iter().find(|entry| entry.path().ends_with("f")).unwrap();
    assert_eq!(Remover::new(Origin::Anywhere).remove(entry).unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let was = fs::metadata(&path).unwrap().ctime();
    let (_, state) = removing_from::settled(&top, b"f").unwrap();
    removing_from::mark_changed(&top, b"f").unwrap();
    assert_ne!(fs::metadata(&path).unwrap().ctime(), was);
    let now = FileState::of(&top.stat(b"f").unwrap());
    assert!(state.is_some_and(|state| state != now));
}

/// S84: what took the place of an entry in the moment in which that goes gets its name back.
#[test]
fn what_takes_its_place_stays() {
    let dir = source(&["told", "f"]);
    let from = dir.path().join("from");
    let top = Origin::Anywhere.directory(&from).unwrap();
    let state = |name: &[u8]| FileState::of(&top.stat(name).unwrap());
    let inode = fs::metadata(from.join("f")).unwrap().ino();
    let error = removing_from::unlink(&top, b"f", &state(b"told")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(names(&from), ["f", "told"]);
    assert_eq!(fs::metadata(from.join("f")).unwrap().ino(), inode);
    removing_from::unlink(&top, b"f", &state(b"f")).unwrap();
    assert_eq!(names(&from), ["told"]);
}

/// S84: file systems on which nobody knows what changed are refused by name.
#[test]
fn where_changes_are_not_told_nothing_goes() {
    for (kind, name) in [(0x6573_5546, "FUSE"), (0xfe53_4d42, "SMB"), (0x0102_1997, "9P"), (0x4d44, "FAT")] {
        let error = removing_from::require_told(kind).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(name), "{error}");
    }
    let dir = source(&["f"]);
    let top = Origin::Anywhere.directory(dir.path()).unwrap();
    let kind = kind_of(&top).unwrap();
    removing_from::require_told(kind).unwrap();
    // A walk asks for it: of a directory, and of a source that is a file, but only where entries are to go.
    for (source, removes, is_fine) in
        [("from", true, false), ("from/f", true, false), ("from", false, true), ("from/f", false, true)]
    {
        KIND.set(Some(0x6573_5546));
        let options = WalkOptions { removes, ..walk_options() };
        let first = Walker::new(vec![dir.path().join(source)], options).step();
        KIND.set(None);
        match first {
            Some(Walked::Failed(_, error)) => assert!(!is_fine && error.kind() == ErrorKind::Unsupported),
            first => assert!(is_fine && matches!(first, Some(Walked::Entry(..))), "{source} {first:?}"),
        }
    }
}
