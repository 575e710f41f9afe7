//! Times that are held back until a new file is on its disk.

use super::*;

const DURABLE: WriteOptions = WriteOptions { durable: true, ..MINE };

/// The time of modification of what is at `tree/NAME`.
fn mtime(top: &Path, name: &str) -> (i64, i64) {
    let found = fs::metadata(top.join("tree").join(name)).unwrap();
    (found.mtime(), found.mtime_nsec())
}

fn begun(top: &Path, options: WriteOptions, sync: SyncOptions) -> TreeWriter {
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    let mut writer = writer(top, options).with_changes(changes);
    writer.root(0, &directory(None)).unwrap();
    writer
}

/// The time of [`finished`].
const TOLD: (i64, i64) = (1_000_000_000, 7);

/// ADR 38: a new file has a time before its source's until it is on its disk, and then the one it is to have; what somebody else changed or put there meanwhile keeps what it has. A writer that goes
/// earlier does the same.
#[test]
fn a_new_file_gets_its_time_once_it_is_on_its_disk() {
    for is_told_to in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        let mut writer = begun(top, DURABLE, SyncOptions::default());
        put(&mut writer, &directory(Some("sub")), b"").unwrap();
        put(&mut writer, &file("deep", b"bytes"), b"bytes").unwrap();
        writer.leave();
        for name in ["f", "touched", "other", "moved"] {
            put(&mut writer, &file(name, b"bytes"), b"bytes").unwrap();
        }
        for name in ["sub/deep", "f", "touched", "other", "moved"] {
            assert_eq!(mtime(top, name), (0, 0), "{name}");
        }
        let place = |name: &str| top.join("tree").join(name);
        let theirs = std::time::UNIX_EPOCH + std::time::Duration::from_secs(77);
        fs::File::open(place("touched")).unwrap().set_modified(theirs).unwrap();
        fs::write(place("new"), b"their").unwrap();
        fs::File::open(place("new")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::rename(place("new"), place("other")).unwrap();
        // Whoever takes what comes at once has it with its time, too.
        fs::rename(place("moved"), top.join("moved")).unwrap();
        fs::set_permissions(place("sub"), fs::Permissions::from_mode(0o000)).unwrap();
        if is_told_to {
            writer.sync().unwrap();
            put(&mut writer, &file("later", b"bytes"), b"bytes").unwrap();
            assert_eq!(mtime(top, "later"), (0, 0));
            writer.sync_what_came().unwrap();
        }
        drop(writer);
        fs::set_permissions(place("sub"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(mtime(top, "../moved"), TOLD);
        assert_eq!([mtime(top, "sub/deep"), mtime(top, "f")], [TOLD; 2], "{is_told_to}");
        assert_eq!([mtime(top, "touched"), mtime(top, "other")], [(77, 0), (0, 0)], "{is_told_to}");
        if is_told_to {
            assert_eq!(mtime(top, "later"), TOLD);
        }
    }
}

/// ADR 38: where a time that is held back would do harm each new file is on its disk, and has its time, before it has its name; so has what replaces anything, and all where nothing is to be durable.
#[test]
fn a_time_is_not_held_back_where_that_would_do_harm() {
    let backups = || SyncOptions {
        backup: Some(BackupOptions { directory: None, suffix: b"~".to_vec() }),
        ..SyncOptions::default()
    };
    for sync in [
        backups(),
        SyncOptions { size_only: true, ..SyncOptions::default() },
        SyncOptions { ignore_existing: true, ..SyncOptions::default() },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = begun(dir.path(), DURABLE, sync);
        put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
        assert_eq!(mtime(dir.path(), "f"), TOLD);
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/f"), b"older").unwrap();
    let mut writer = begun(dir.path(), DURABLE, SyncOptions::default());
    put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
    assert_eq!(mtime(dir.path(), "f"), TOLD, "what replaces anything");
    // Of two sources the second is compared with what the first one brought.
    let dir = tempfile::tempdir().unwrap();
    let landing =
        Landing::resolve_sync(&Origin::Anywhere, &dir.path().join("tree"), &[Vec::new(), Vec::new()])
            .unwrap();
    let mut writer = TreeWriter::new(landing, DURABLE)
        .with_changes(Changes { sync: Some(SyncOptions::default()), ..Changes::default() });
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
    assert_eq!(mtime(dir.path(), "f"), TOLD, "several sources");
    // Where its source goes all that is there is compared, and whoever takes it at once is to find its time.
    let dir = tempfile::tempdir().unwrap();
    let mut writer =
        begun(dir.path(), DURABLE, SyncOptions { removes_sources: true, ..SyncOptions::default() });
    put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
    assert_eq!(mtime(dir.path(), "f"), TOLD, "what is moved");
    assert_eq!(writer.settings.unsynced.borrow().iter().filter(|it| it.is_timed()).count(), 0);
    // That was with --fsync as well, where each is asked for by itself: a later run may have that alone.
    let dir = tempfile::tempdir().unwrap();
    let moving = SyncOptions { removes_sources: true, ..SyncOptions::default() };
    let mut writer = begun(dir.path(), MINE, moving);
    put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
    assert_eq!(writer.settings.unsynced.borrow().iter().filter(|it| it.is_timed()).count(), 1);
    // Where times are not kept it has the one of now, which differs from its source's.
    let dir = tempfile::tempdir().unwrap();
    let without_times = WriteOptions { times: false, ..DURABLE };
    let mut writer = begun(dir.path(), without_times, SyncOptions::default());
    put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
    assert!(mtime(dir.path(), "f").0 > TOLD.0, "without times");
    let dir = tempfile::tempdir().unwrap();
    let mut writer = begun(dir.path(), MINE, SyncOptions::default());
    put(&mut writer, &file("f", b"bytes"), b"bytes").unwrap();
    assert_eq!(mtime(dir.path(), "f"), TOLD, "without fsync");
}
