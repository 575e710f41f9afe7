//! Trees read and written on a real file system, also while somebody works against it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use dray_core::ErrorKind;
use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};

use super::*;

mod faking;
mod folding;
mod guarded;
mod holding;
mod hostile;
mod keeping;
mod landing;
mod leaving;
mod lending;
mod meanwhile;
pub(super) mod mounting;
mod overwriting;
mod powers;
mod removing;
mod sparing;
mod switching;
mod syncing;

const ARCHIVE: WriteOptions = WriteOptions {
    times: true,
    modes: true,
    special_modes: true,
    owners: true,
    numeric_ids: false,
    xattrs: true,
    whole_file: false,
    harmless: false,
    confined: None,
    masked: false,
    roots_are_directories: false,
    durable: false,
};

fn walk_options() -> WalkOptions {
    WalkOptions { recursive: true, xattrs: true, hard_links: true, specials: true, ..WalkOptions::default() }
}

fn entry(name: Option<&str>, kind: Kind, mode: u32) -> Entry {
    let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
    Entry {
        name,
        kind,
        metadata: Metadata { mode, mtime_s: 1_000_000_000, mtime_ns: 7, ..Metadata::default() },
    }
}

fn directory(name: Option<&str>) -> Entry {
    entry(name, Kind::Directory { entries: None }, 0o755)
}

fn file(name: &str, content: &[u8]) -> Entry {
    entry(Some(name), Kind::File { size_bytes: content.len() as u64, oid: None }, 0o644)
}

fn finished(content: &[u8]) -> Finished {
    let hash = *blake3::hash(content).as_bytes();
    Finished { hash, size_bytes: content.len() as u64, mtime_s: 1_000_000_000, mtime_ns: 7 }
}

fn writer(path: &Path, options: WriteOptions) -> TreeWriter {
    TreeWriter::new(Landing::resolve(path, &[b"tree".to_vec()], false).unwrap(), options)
}

/// Not owners: these tests run as any user.
const MINE: WriteOptions = WriteOptions { owners: false, xattrs: false, ..ARCHIVE };

fn put(writer: &mut TreeWriter, entry: &Entry, content: &[u8]) -> dray_core::Result<()> {
    match writer.entry(entry)? {
        Placed::Wanted(target, _) => {
            let mut new = target.create()?;
            new.write(content)?;
            let result = target.finish(new, &finished(content));
            writer.settle(*target, result.as_ref().ok().copied());
            result.map(|_| ())
        }
        Placed::Link(target) => {
            let result = writer.link(&target);
            writer.settle(*target, None);
            result
        }
        Placed::Done | Placed::Unchanged | Placed::Passed => Ok(()),
    }
}

/// Copies `from` to `to` with the walker and the writer alone; the paths that failed.
fn copy(from: &Path, to: &Path, walk: WalkOptions, write: WriteOptions) -> Vec<(PathBuf, dray_core::Error)> {
    use std::io::Read;
    let mut writer = TreeWriter::new(Landing::resolve(to, &[b"tree".to_vec()], false).unwrap(), write);
    let mut walker = Walker::new(vec![from.to_owned()], walk);
    let (mut failed, mut is_root) = (Vec::new(), true);
    while let Some(step) = walker.step() {
        match step {
            Walked::Failed(path, error) => failed.push((path, error)),
            Walked::Leave => writer.leave(),
            Walked::Missing | Walked::Unlisted => {}
            Walked::Entry(entry, file) => {
                let mut content = Vec::new();
                if let Some(file) = file {
                    let open = file.open().unwrap();
                    (&open.file).read_to_end(&mut content).unwrap();
                    assert!(open.is_unchanged().unwrap());
                }
                if std::mem::take(&mut is_root) {
                    writer.root(0, &entry).unwrap();
                } else {
                    let content = &content;
                    let placed = match writer.entry(&entry) {
                        Ok(placed) => placed,
                        Err(error) => {
                            failed.push((path_of(&writer.path_of(&entry)), error));
                            continue;
                        }
                    };
                    if let Placed::Wanted(target, _) = placed {
                        let mut new = target.create().unwrap();
                        new.write(content).unwrap();
                        let told = Finished {
                            mtime_s: entry.metadata.mtime_s,
                            mtime_ns: entry.metadata.mtime_ns,
                            ..finished(content)
                        };
                        let identity = target.finish(new, &told).unwrap();
                        writer.settle(*target, Some(identity));
                    } else if let Placed::Link(target) = placed {
                        writer.link(&target).unwrap();
                        writer.settle(*target, None);
                    }
                }
            }
        }
    }
    let not_kept = writer.failures();
    assert!(not_kept.attributes.is_empty() && not_kept.directories.is_empty(), "{not_kept:?}");
    failed
}

/// Issue: a copy within a host does not hash what is there for nobody.
#[test]
fn what_is_there_is_hashed_only_where_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/f"), b"there").unwrap();
    for never_compares in [false, true] {
        let changes = Changes { never_compares, ..Changes::default() };
        let mut writer = writer(dir.path(), MINE).with_changes(changes);
        writer.root(0, &directory(None)).unwrap();
        let Placed::Wanted(target, known) = writer.entry(&file("f", b"other")).unwrap() else { panic!() };
        let expected = (!never_compares).then(|| *blake3::hash(b"there").as_bytes());
        assert_eq!(known, expected);
        writer.settle(*target, None);
        writer.leave();
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

/// Path, type and bits, size, time, links and, of a link, its target: what stands below `root`.
fn picture(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let size = if found.is_dir() { 0 } else { found.len() };
        let target = fs::read_link(&path).unwrap_or_default();
        let content = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        lines.push(format!(
            "{:?} {:o} {size} {}.{} {} {target:?} {}",
            path.strip_prefix(root).unwrap(),
            found.mode(),
            found.mtime(),
            found.mtime_nsec(),
            if found.is_dir() { 0 } else { found.nlink() },
            blake3::hash(&content).to_hex(),
        ));
        if found.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    lines.sort();
    lines
}

fn sample(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for (name, content) in
        [("a", &b"one"[..]), ("zero", b""), ("sub/b\n\u{ff}", b"two"), ("sub/deep/c", b"three")]
    {
        fs::write(root.join(name), content).unwrap();
    }
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("/etc", root.join("sub/out")).unwrap();
    fs::hard_link(root.join("a"), root.join("sub/same")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    fs::set_permissions(root.join("sub/deep/c"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(root.join("sub/deep"), fs::Permissions::from_mode(0o555)).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1, 123_456_789);
    for name in ["a", "sub", "empty"] {
        fs::File::open(root.join(name)).unwrap().set_modified(old).unwrap();
    }
}

/// Y1, issue, parts 2 and 3: every kind arrives as it is, links as links, times of directories last, read-only directories too.
#[test]
fn a_tree_arrives_as_it_is() {
    let temporary = tempfile::tempdir().unwrap();
    let (from, to) = (temporary.path().join("from"), temporary.path().join("to"));
    sample(&from);
    assert!(copy(&from, &to, walk_options(), ARCHIVE).is_empty());
    assert_eq!(picture(&from), picture(&to));
    // Again: nothing is wanted, and everything stays.
    let inode = fs::metadata(to.join("sub/deep/c")).unwrap().ino();
    assert!(copy(&from, temporary.path(), walk_options(), ARCHIVE).is_empty());
    assert!(copy(&from, &to.join("../to"), walk_options(), ARCHIVE).is_empty());
    assert_eq!(fs::metadata(to.join("sub/deep/c")).unwrap().ino(), inode);
    // For whoever removes it.
    for root in [from, to.clone(), to.join("tree"), temporary.path().join("tree")] {
        let _ = fs::set_permissions(root.join("sub/deep"), fs::Permissions::from_mode(0o755));
    }
}

/// Issue "hostile trees": where a directory should be stands a link; nothing behind it is touched and the entry is named.
#[test]
fn a_link_in_the_place_of_a_directory_is_not_followed() {
    let temporary = tempfile::tempdir().unwrap();
    let outside = temporary.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir_all(temporary.path().join("to/tree")).unwrap();
    symlink(&outside, temporary.path().join("to/tree/sub")).unwrap();
    let mut writer = writer(&temporary.path().join("to"), MINE);
    writer.root(0, &directory(None)).unwrap();
    let error = writer.entry(&directory(Some("sub"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("links are not followed"), "{error}");
    assert_eq!(writer.path_of(&directory(Some("sub"))), b"tree/sub");
    // What lies below it is passed over, what comes after it is not.
    assert!(matches!(writer.entry(&file("x", b"x")), Ok(Placed::Unchanged)));
    assert!(matches!(writer.entry(&directory(Some("y"))), Ok(Placed::Unchanged)));
    writer.leave();
    writer.leave();
    put(&mut writer, &file("z", b"z"), b"z").unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read(temporary.path().join("to/tree/z")).unwrap(), b"z");
}

/// Issue "every file is either old or new": a file stays as it was until the new one is whole, and a killed run leaves nothing
/// that the next does not use up, whether the file system has files without a name or not.
#[test]
fn a_file_is_old_or_new() {
    for is_unnamed in [true, false] {
        let temporary = tempfile::tempdir().unwrap();
        let tree = temporary.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("f"), b"older").unwrap();
        let mut first = writer(temporary.path(), MINE);
        first.root(0, &directory(None)).unwrap();
        let Placed::Wanted(target, None) = first.entry(&file("f", b"newer!")).unwrap() else {
            panic!("wanted")
        };
        target.directory.may_be_unnamed.set(is_unnamed);
        let mut new = target.create().unwrap();
        new.write(b"new").unwrap();
        assert_eq!(fs::read(tree.join("f")).unwrap(), b"older");
        assert_eq!(names(&tree).len(), if is_unnamed { 1 } else { 2 });
        // Another copy of the same file meanwhile does not touch this one's bytes.
        let mut other = target.create().unwrap();
        other.write(b"other!").unwrap();
        target.finish(other, &finished(b"other!")).unwrap();
        assert_eq!(fs::read(tree.join("f")).unwrap(), b"other!");
        // Killed: nobody removes the temporary file, nor holds it.
        let left: Vec<_> = names(&tree).into_iter().filter(|name| name != "f").collect();
        drop(new);
        for name in &left {
            fs::write(tree.join(name), b"half of it").unwrap();
        }
        assert_eq!(left.len(), usize::from(!is_unnamed));
        let mut new = target.create().unwrap();
        new.write(b"newer!").unwrap();
        target.finish(new, &finished(b"newer!")).unwrap();
        assert_eq!(names(&tree), ["f"]);
        assert_eq!(fs::read(tree.join("f")).unwrap(), b"newer!");
        // One that failed leaves nothing.
        let mut new = target.create().unwrap();
        new.write(b"half").unwrap();
        assert_eq!(target.finish(new, &finished(b"whole")).unwrap_err().kind(), ErrorKind::Protocol);
        assert_eq!(names(&tree), ["f"]);
    }
}

/// Names in a directory, sorted.
fn names(path: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(name).collect();
    names.sort();
    names
}

/// Issue "collisions reported": where the file system takes two names for one, the second is named and the first stays.
#[test]
fn a_name_that_is_taken_in_a_new_directory_is_reported() {
    let temporary = tempfile::tempdir().unwrap();
    let mut writer = writer(temporary.path(), MINE);
    writer.root(0, &directory(None)).unwrap();
    // They are there before their turn, under these very names: the file system folds nothing.
    let tree = temporary.path().join("tree");
    fs::write(tree.join("file"), b"first").unwrap();
    fs::create_dir(tree.join("folder")).unwrap();
    symlink("x", tree.join("link")).unwrap();
    for entry in [
        file("file", b"second"),
        directory(Some("folder")),
        entry(Some("link"), Kind::Symlink { target: b"y".to_vec() }, 0o777),
    ] {
        let error = put(&mut writer, &entry, b"second").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("another program made"), "{error}");
        if entry.is_directory() {
            writer.leave();
        }
    }
    assert_eq!(fs::read(tree.join("file")).unwrap(), b"first");
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 3);
}

/// S54: what stands there under another name, which the file system takes for this one, is told apart from what another program made.
#[test]
fn names_that_fold_are_told_from_company() {
    for (there, what) in [("FILE", "takes both for one"), ("file", "another program made")] {
        let temporary = tempfile::tempdir().unwrap();
        let mut writer = writer(temporary.path(), MINE);
        writer.root(0, &directory(None)).unwrap();
        fs::write(temporary.path().join("tree").join(there), b"first").unwrap();
        let name = Name::new(b"file").unwrap();
        // As a file system says it that finds the one under the other's name.
        for name in [&name, &Name::new(b"next").unwrap()] {
            let error = place::taken(&writer.stack[0], name, rustix::io::Errno::EXIST.into(), "make it");
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(what), "{there}: {error}");
        }
    }
}

/// The same in a directory that was there before, where things may be in place: only those of that very name are replaced.
#[test]
fn a_name_that_is_taken_in_an_old_directory_is_reported() {
    let temporary = tempfile::tempdir().unwrap();
    let tree = temporary.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), b"first").unwrap();
    let mut writer = writer(temporary.path(), MINE);
    writer.root(0, &directory(None)).unwrap();
    writer.stack[0].list();
    put(&mut writer, &file("file", b"second"), b"second").unwrap();
    assert_eq!(fs::read(tree.join("file")).unwrap(), b"second");
    // As if the file system took these for that: it is there before their turn, under a name that was not.
    for name in ["File", "FOLDER", "Link"] {
        fs::write(tree.join(name), b"second").unwrap();
    }
    for entry in [
        file("File", b"third"),
        directory(Some("FOLDER")),
        entry(Some("Link"), Kind::Symlink { target: b"y".to_vec() }, 0o777),
    ] {
        assert_eq!(put(&mut writer, &entry, b"third").unwrap_err().kind(), ErrorKind::Refused);
        if entry.is_directory() {
            writer.leave();
        }
    }
    assert_eq!(fs::read(tree.join("File")).unwrap(), b"second");
}

/// Issue "finished files are not sent again": same size and time are enough where times are kept; else the same hash.
#[test]
fn what_is_in_place_is_not_wanted() {
    let temporary = tempfile::tempdir().unwrap();
    let mut first = writer(temporary.path(), MINE);
    first.root(0, &directory(None)).unwrap();
    put(&mut first, &file("f", b"content"), b"content").unwrap();
    let place = |options| {
        let mut again = writer(temporary.path(), options);
        again.root(0, &directory(None)).unwrap();
        match again.entry(&file("f", b"content")).unwrap() {
            Placed::Unchanged => None,
            Placed::Wanted(_, known) => Some(known),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(place(MINE), None);
    let known = Some(*blake3::hash(b"content").as_bytes());
    assert_eq!(place(WriteOptions { times: false, ..MINE }), Some(known));
    assert_eq!(place(WriteOptions { whole_file: true, ..MINE }), Some(None));
}

/// A walk tells names in order, passes over what is excluded, and names what cannot be read.
#[test]
fn a_walk_is_ordered_and_says_what_it_leaves_out() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    sample(&root);
    fs::write(root.join("x.o"), b"").unwrap();
    let told = |options: WalkOptions| {
        let mut walker = Walker::new(vec![root.clone(), temporary.path().join("gone")], options);
        let (mut names, mut failed) = (Vec::new(), Vec::new());
        while let Some(step) = walker.step() {
            match step {
                Walked::Entry(entry, _) => names.push(
                    entry
                        .name
                        .map_or("/".into(), |name| String::from_utf8_lossy(name.as_bytes()).into_owned()),
                ),
                Walked::Leave => names.push("..".into()),
                Walked::Missing => names.push("!".into()),
                Walked::Unlisted => names.push("?".into()),
                Walked::Failed(path, _) => {
                    failed.push(path.strip_prefix(temporary.path()).unwrap().to_owned())
                }
            }
        }
        (names.join(" "), failed)
    };
    let excludes = vec![b"*.o".to_vec(), b"sub/deep".to_vec(), b"b*".to_vec()];
    let (names, failed) = told(WalkOptions { excludes: Excludes::new(&excludes), ..walk_options() });
    assert_eq!(names, "/ a dangling empty .. pipe sub out same .. zero .. !");
    assert_eq!(failed, [Path::new("gone")]);
    let (_, failed) = told(WalkOptions { specials: false, ..walk_options() });
    assert_eq!(failed, [Path::new("root/pipe"), Path::new("gone")]);
    let (names, failed) = told(WalkOptions { recursive: false, ..walk_options() });
    assert_eq!((names.as_str(), failed.len()), ("! !", 2));
    let _ = fs::set_permissions(root.join("sub/deep"), fs::Permissions::from_mode(0o755));
}

/// Where trees land, as with `cp` and `scp`.
#[test]
fn trees_land_where_cp_puts_them() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |path: &str, names: &[&[u8]], must: bool| {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        Landing::resolve(&temporary.path().join(path), &names, must).map(|_| ())
    };
    fs::write(temporary.path().join("file"), b"").unwrap();
    at("", &[b"a"], false).unwrap();
    at("new", &[b"a"], false).unwrap();
    at("new/", &[b"a"], false).unwrap();
    at("file", &[b"a"], false).unwrap();
    for (path, names, must) in [
        ("new", &[&b"a"[..], b"b"][..], false),
        ("new", &[b"a"], true),
        ("gone/new", &[b"a"], false),
        ("file/", &[b"a"], false),
        ("", &[b".."], false),
    ] {
        assert!(at(path, names, must).is_err(), "{path} {names:?}");
    }
}

/// Design 9: who waits for the hash of a large file that is there is not kept when nobody wants the copy any more.
#[test]
fn a_hash_of_what_is_there_can_be_stopped() {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("f"), b"content").unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut writer = writer(place.path(), WriteOptions::default());
    writer.stop_with(stop.clone());
    writer.root(0, &directory(None)).unwrap();
    let Placed::Wanted(target, Some(_)) = writer.entry(&file("f", b"content")).unwrap() else {
        panic!("its hash is known")
    };
    writer.settle(*target, None);
    stop.store(true, std::sync::atomic::Ordering::Release);
    let error = writer.entry(&file("f", b"content")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
}

/// Design 17: a file may have grown since it was told, but a sender does not fill the disk with one that it told to be small.
#[test]
fn a_file_does_not_grow_without_end() {
    use dray_core::limits::TREE_GROWTH_BYTES_MAX;
    let place = tempfile::tempdir().unwrap();
    let mut writer = writer(place.path(), WriteOptions::default());
    writer.root(0, &directory(None)).unwrap();
    let Placed::Wanted(target, _) = writer.entry(&file("f", b"content")).unwrap() else { panic!("wanted") };
    let mut new = target.create().unwrap();
    new.skip(TREE_GROWTH_BYTES_MAX).unwrap();
    new.write(&[1; 14]).unwrap();
    for error in [new.write(b"x").unwrap_err(), new.skip(1).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    }
    // Read anew it may come to its end yet.
    new.restart().unwrap();
    new.write(b"content").unwrap();
    target.finish(new, &finished(b"content")).unwrap();
    assert_eq!(fs::read(place.path().join("tree/f")).unwrap(), b"content");
}
