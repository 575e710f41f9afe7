//! Destinations that take two names for one. None can be made here: what such a file system would show under the second name is put there by hand, before its turn.

use super::*;

/// Into `to` with these names, as a run that loses its sources, which lists on every file system.
fn moving(to: &Path, names: &[&str]) -> TreeWriter {
    let sync = SyncOptions { links: true, removes_sources: true, ..SyncOptions::default() };
    let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &names).unwrap();
    TreeWriter::new(landing, MINE).with_changes(Changes { sync: Some(sync), ..Changes::default() })
}

/// As a root: without a name of its own.
fn root_file(content: &[u8]) -> Entry {
    Entry { name: None, ..file("any", content) }
}

fn wanted(placed: Placed) -> Box<FileTarget> {
    match placed {
        Placed::Wanted(target, _) => target,
        placed => panic!("{placed:?}"),
    }
}

/// Gives `target` its content; false if that is refused.
fn bring(writer: &mut TreeWriter, target: Box<FileTarget>, content: &[u8]) -> bool {
    let mut new = target.create().unwrap();
    new.write(content).unwrap();
    let result = target.finish(new, &finished(content));
    writer.settle(*target, result.as_ref().ok().copied());
    assert!(result.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Refused), "{result:?}");
    result.is_ok()
}

/// S54, S84: of two entries that were both placed before the content of either came, the second one does not take the place of the first, be it written without a name or under
/// a temporary one, in a directory that was there.
#[test]
fn two_that_wait_do_not_take_one_place() {
    for is_unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fs::create_dir(&to).unwrap();
        let mut writer = moving(&to, &[""]);
        writer.root(0, &directory(None)).unwrap();
        writer.stack[0].may_be_unnamed.set(is_unnamed);
        let first = wanted(writer.entry(&file("DSCP.c", b"first")).unwrap());
        let second = wanted(writer.entry(&file("dscp.c", b"second")).unwrap());
        let third = wanted(writer.entry(&file("link", b"third")).unwrap());
        assert!(bring(&mut writer, first, b"first"));
        fs::hard_link(to.join("DSCP.c"), to.join("dscp.c")).unwrap();
        symlink("x", to.join("link")).unwrap();
        assert!(!bring(&mut writer, second, b"second"), "unnamed: {is_unnamed}");
        assert!(!bring(&mut writer, third, b"third"), "unnamed: {is_unnamed}");
        assert_eq!(fs::read(to.join("DSCP.c")).unwrap(), b"first");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("x"));
        assert_eq!(names(&to), ["DSCP.c", "dscp.c", "link"]);
    }
}

/// What was there is replaced as ever: a run that waits for nobody's name loses nothing.
#[test]
fn what_was_there_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    fs::write(to.join("f"), b"older").unwrap();
    fs::write(to.join("root"), b"older").unwrap();
    let mut writer = moving(&to, &["root"]);
    let target = wanted(writer.root(0, &root_file(b"content")).unwrap());
    assert!(bring(&mut writer, target, b"content"));
    let mut writer = moving(&to, &[""]);
    writer.root(0, &directory(None)).unwrap();
    let target = wanted(writer.entry(&file("f", b"content")).unwrap());
    assert!(bring(&mut writer, target, b"content"));
    assert_eq!(["f", "root"].map(|name| fs::read(to.join(name)).unwrap()), [b"content", b"content"]);
}

/// S84: in a directory that cannot be listed nothing is taken for what an entry would replace.
#[test]
fn what_cannot_be_listed_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    fs::write(to.join("f"), b"older").unwrap();
    let mut writer = moving(&to, &[""]);
    writer.root(0, &directory(None)).unwrap();
    writer.stack[0].know(None);
    assert_eq!(writer.entry(&file("f", b"content")).unwrap_err().kind(), ErrorKind::Refused);
    let target = wanted(writer.entry(&file("new", b"content")).unwrap());
    assert!(bring(&mut writer, target, b"content"));
    assert_eq!(fs::read(to.join("f")).unwrap(), b"older");
}

/// The same of roots, which go into a directory that the user names: files, one after the other and while the first waits, and directories.
#[test]
fn roots_do_not_take_one_place() {
    for waits in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fs::create_dir(&to).unwrap();
        let mut writer = moving(&to, &["README", "Readme", "Photos", "photos"]);
        let first = wanted(writer.root(0, &root_file(b"first")).unwrap());
        if waits {
            let second = wanted(writer.root(1, &root_file(b"second")).unwrap());
            assert!(bring(&mut writer, first, b"first"));
            fs::hard_link(to.join("README"), to.join("Readme")).unwrap();
            assert!(!bring(&mut writer, second, b"second"));
        } else {
            assert!(bring(&mut writer, first, b"first"));
            fs::hard_link(to.join("README"), to.join("Readme")).unwrap();
            let error = writer.root(1, &root_file(b"second")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        }
        assert_eq!(fs::read(to.join("README")).unwrap(), b"first");
        writer.root(2, &directory(None)).unwrap();
        put(&mut writer, &file("a", b"first"), b"first").unwrap();
        writer.leave();
        fs::create_dir(to.join("photos")).unwrap();
        fs::write(to.join("photos/a"), b"first").unwrap();
        assert_eq!(writer.root(3, &directory(None)).unwrap_err().kind(), ErrorKind::Refused);
        writer.entry(&file("a", b"second")).unwrap();
        writer.leave();
        assert_eq!(fs::read(to.join("photos/a")).unwrap(), b"first");
    }
}

/// Roots of one name are merged as ever where names are known, and so is a directory that came in another root without a name.
#[test]
fn roots_of_one_name_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    let mut writer = moving(&to, &["d", "d", "", "e"]);
    for (index, name) in [(0, "one"), (1, "two")] {
        writer.root(index, &directory(None)).unwrap();
        put(&mut writer, &file(name, b"content"), b"content").unwrap();
        writer.leave();
    }
    writer.root(2, &directory(None)).unwrap();
    writer.entry(&directory(Some("e"))).unwrap();
    writer.leave();
    writer.leave();
    writer.root(3, &directory(None)).unwrap();
    put(&mut writer, &file("three", b"content"), b"content").unwrap();
    writer.leave();
    assert_eq!(names(&to.join("d")), ["one", "two"]);
    assert_eq!(names(&to.join("e")), ["three"]);
}
