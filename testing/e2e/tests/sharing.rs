//! A single file that is copied within a file system whose files share blocks: as any copy, but that nothing is written twice. What is
//! shared is told by the file system itself (`filefrag`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use dray_e2e::daemon::event;
use dray_e2e::data::{self, MIB};
use dray_e2e::live::{self, tool};
use dray_e2e::{Host, Lab, Outcome};
use rustix::process::Signal;

/// File systems that share blocks.
const SHARING: [&[&str]; 2] = [&["mkfs.btrfs", "-q"], &["mkfs.xfs", "-q", "-m", "reflink=1"]];

/// A file system of its own on `host`; the lab unmounts it.
fn mounted(host: &Host, make: &[&str]) -> PathBuf {
    live::mounted(host, make[0], make, 320 * MIB)
}

/// Whether the file system says that blocks of the file are another's, too.
fn is_shared(path: &Path) -> bool {
    tool(&["filefrag", "-v", "-s", path.to_str().unwrap()]).contains("shared")
}

/// Copies as `cp` does, but for the sharing.
const APART: [&str; 2] = ["--bwlimit", "100G"];

fn cp(host: &Host, options: &[&str], source: &Path, copy: &Path) -> Outcome {
    host.dray().arg("cp").args(options).arg(source).arg(copy).run()
}

/// S60: every size and shape, and each option of single files: the blocks are shared, the bytes, holes and hash are right, and the events
/// are those of a copy; with an option that bytes are moved for, and where the file system cannot, nothing is shared.
#[test]
fn a_single_file_shares_blocks() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for make in SHARING {
        let place = mounted(a, make);
        let source = place.join("source");
        for (number, size) in [0, 1, 4095, 70_001, 5 * MIB + 77].into_iter().enumerate() {
            data::write_random(&source, size, 3);
            let copy = place.join(format!("copy-{number}"));
            let told = cp(a, &["--json"], &source, &copy).expect(0).stdout_text();
            data::assert_same(&source, &copy);
            assert!(told.contains(&format!("blake3:{}", data::b3sum(&copy))), "{told}");
            // Btrfs keeps so few bytes beside what it knows of the file.
            let least = if make[0] == "mkfs.btrfs" { 2049 } else { 1 };
            assert_eq!(is_shared(&copy), size >= least, "{make:?}: {size} bytes");
            let names: Vec<String> = told.lines().map(event).collect();
            assert_eq!(names.first().map(String::as_str), Some("started"), "{told}");
            assert_eq!(names.last().map(String::as_str), Some("delivered"), "{told}");
            assert!(size < MIB || told.contains("\"label\":\"shared blocks\""), "{told}");
        }
        data::write_sparse(&source, 24 * MIB, 3, 4);
        fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).unwrap();
        for options in [&[][..], &["-p"], &["-r"], &["--fsync"], &["-W"]] {
            // What is replaced keeps its bits, and is not written to.
            let copy = place.join("copy");
            fs::write(&copy, b"old").unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o604)).unwrap();
            let old = File::open(&copy).unwrap();
            cp(a, options, &source, &copy).expect(0);
            data::assert_same(&source, &copy);
            assert!(is_shared(&copy), "{make:?} {options:?}");
            assert!(data::settled_bytes(&copy) <= data::settled_bytes(&source), "{make:?}: holes");
            let (now, then) = (fs::metadata(&copy).unwrap(), fs::metadata(&source).unwrap());
            let keeps = options == ["-p"];
            assert_eq!(now.mode() & 0o7777, if keeps { 0o640 } else { 0o604 }, "{options:?}");
            assert_eq!(now.mtime() == then.mtime() && now.mtime_nsec() == then.mtime_nsec(), keeps);
            assert_eq!(old.metadata().unwrap().len(), 3);
        }
        let apart = place.join("apart");
        cp(a, &APART, &source, &apart).expect(0);
        data::assert_same(&source, &apart);
        assert!(!is_shared(&apart), "{make:?}");
        let outside = a.file(format!("outside-{}", make[0]));
        cp(a, &[], &source, &outside).expect(0);
        data::assert_same(&source, &outside);
        assert_eq!(data::unfinished(&place), [""; 0]);
    }
    // A file whose data are never copied on write shares none with one whose data are.
    let place = a.file(SHARING[0][0]);
    let (source, copy) = (place.join("fixed"), place.join("fixed-copy"));
    File::create(&source).unwrap();
    tool(&["chattr", "+C", source.to_str().unwrap()]);
    fs::write(&source, data::random_bytes(3_000_000, 5)).unwrap();
    cp(a, &[], &source, &copy).expect(0);
    data::assert_same(&source, &copy);
    assert!(!is_shared(&copy));
}

/// S60, S19: what is refused, and where things go, is the same whether blocks can be shared or not.
#[test]
fn sharing_changes_nothing_else() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = mounted(a, SHARING[1]);
    let source = place.join("source");
    data::write_random(&source, MIB, 3);
    let make = |dir: &Path| {
        fs::create_dir_all(dir.join("folder/source")).unwrap();
        fs::create_dir_all(dir.join("in")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        fs::write(dir.join("file"), b"old").unwrap();
        symlink("file", dir.join("link")).unwrap();
    };
    for to in ["missing/", "missing/new", "fifo", "folder", "in", "in/", "file", "link", "new", "file/"] {
        let mut ends = Vec::new();
        for options in [&APART[..], &[]] {
            let dir = place.join("place");
            make(&dir);
            let outcome = cp(a, options, &source, &dir.join(to));
            // How long it took differs.
            let text = outcome.stderr_text();
            let text = text.split(" in ").next().unwrap().to_owned();
            let fifo = fs::symlink_metadata(dir.join("fifo")).unwrap().file_type().is_fifo();
            let link = fs::symlink_metadata(dir.join("link")).unwrap().file_type().is_symlink();
            let old = fs::read(dir.join("file")).unwrap() == b"old";
            let names = data::names_below(&dir);
            let shared: Vec<bool> =
                [dir.join("new"), dir.join("in/source"), dir.join("file"), dir.join("link")]
                    .iter()
                    .map(|path| path.is_file() && is_shared(path))
                    .collect();
            assert_eq!(shared.contains(&true), outcome.code() == Some(0) && options.is_empty(), "{to}");
            ends.push((outcome.code(), text, names, fifo, link, old));
            fs::remove_dir_all(&dir).unwrap();
        }
        assert_eq!(ends[0], ends[1], "{to}");
    }
}

/// S18: one that is interrupted leaves nothing, one that is killed nothing that the next one does not remove; and what a copy had moved
/// before is gone on from.
#[test]
fn a_shared_copy_that_ends_early_leaves_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = mounted(a, SHARING[1]);
    let (source, into) = (place.join("source"), place.join("into"));
    fs::create_dir(&into).unwrap();
    let copy = into.join("copy");
    let start = |options: &[&str]| {
        let program = a.dray().args(["cp", "--json"]).args(options).arg(&source).arg(&copy);
        let running = program.start();
        running.line_with(|line| event(line) == "progress");
        running
    };
    // Hashed for minutes.
    File::create(&source).unwrap().set_len(1 << 40).unwrap();
    let running = start(&[]);
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(130));
    assert_eq!(data::names(&into), [""; 0]);
    start(&[]).kill();
    assert_eq!(data::names(&into).len(), 2);
    // Another state of the file has another name while it comes.
    File::create(&source).unwrap();
    data::write_random(&source, 64 * MIB, 3);
    cp(a, &[], &source, &copy).expect(0);
    assert!(is_shared(&copy));
    assert_eq!(data::names(&into), ["copy"]);

    fs::remove_file(&copy).unwrap();
    let running = start(&["--bwlimit", "8M"]);
    assert!(running.wait_until(false, || data::unfinished_bytes(&into) >= 2 * MIB));
    running.kill();
    let told = cp(a, &["--json"], &source, &copy).expect(0).stdout_text();
    let delivered: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert!(delivered["resumed_bytes"].as_u64().unwrap() >= MIB, "{told}");
    data::assert_same(&source, &copy);
    assert_eq!(data::names(&into), ["copy"]);
}

/// Bytes of the file of which the file system says that another has them, too.
fn shared_bytes(path: &Path) -> u64 {
    let told = tool(&["filefrag", "-v", "-s", "-b1", path.to_str().unwrap()]);
    let shared = told.lines().filter(|line| line.contains("shared"));
    // Number, first and last byte, place on the disk, length, flags.
    shared.map(|line| line.split(':').nth(3).unwrap().trim().parse::<u64>().unwrap()).sum()
}

/// Issue "matched data is reflinked or copied in the kernel where possible": an update of a file shares the blocks of what did not change with its older
/// version, and with one that a search found; what was moved by less than a block, and what changed, it does not. What is shared is hashed as it lies
/// in the new file.
#[test]
fn an_update_shares_blocks_with_what_it_is_made_of() {
    let Some(lab) = Lab::of(2).rate_mbit(80).build() else { return };
    let (from, to) = lab.pair();
    let source = from.file("image");
    let size = 24 * MIB;
    data::write_random(&source, size, 7);
    let places = SHARING.map(|make| (make, mounted(to, make)));
    // It sees what was mounted before it began.
    to.sshd();
    for (make, place) in places {
        let older = place.join("older");
        fs::copy(&source, &older).unwrap();
        let changed = File::options().write(true).open(&older).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&changed, &data::random_bytes(100_000, 8), size / 3)
            .unwrap();
        // What is replaced keeps a name: else nothing would be shared with it any more.
        let copy = place.join("copy");
        fs::hard_link(&older, &copy).unwrap();
        assert_eq!(shared_bytes(&copy), 0);
        dray_e2e::actions::copy_to(from, to, &source, &copy).run().expect(0);
        data::assert_same(&source, &copy);
        let shared = shared_bytes(&copy);
        assert!(shared > size / 10 * 9 && shared < size, "{make:?}: {shared}");
        // The older version is as it was.
        fs::remove_file(&copy).unwrap();
        let moved = place.join("moved");
        let bytes = [&b"moved"[..], &fs::read(&source).unwrap()].concat();
        fs::write(&moved, bytes).unwrap();
        fs::remove_file(&older).unwrap();
        fs::hard_link(&moved, &copy).unwrap();
        dray_e2e::actions::copy_to(from, to, &source, &copy).run().expect(0);
        data::assert_same(&source, &copy);
        assert!(shared_bytes(&copy) < MIB, "{make:?}");
    }
}
