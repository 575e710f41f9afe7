//! Every shape of file, by ticket and by copy, both ways: right bytes, right name, holes kept, nothing left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_e2e::actions::{self, Share, assert_alone, assert_delivered, share};
use dray_e2e::data::{self, GIB, MIB};
use dray_e2e::{Host, Lab, gate};

/// Longest time the largest file may take.
const LARGE: Duration = Duration::from_secs(300);

/// One file of each shape in `dir`. Sizes lie on both sides of the borders of groups and units.
fn files(dir: &Path) -> Vec<PathBuf> {
    let sizes = [
        ("empty", 0),
        ("one-byte", 1),
        ("1-KiB", 1024),
        ("a group and a byte", 65_537),
        ("unit", MIB),
        ("three units less a byte", 3 * MIB - 1),
        ("large", gate::sized(256 * MIB, 8 * GIB)),
    ];
    let mut files = Vec::new();
    for (seed, (name, size)) in sizes.into_iter().enumerate() {
        files.push(dir.join(name));
        data::write_random(&dir.join(name), size, seed as u64);
    }
    files.push(dir.join("sparse"));
    data::write_sparse(&dir.join("sparse"), gate::sized(GIB, 8 * GIB) + 5, 8, 77);
    files.push(dir.join("all hole"));
    data::write_sparse(&dir.join("all hole"), 200 * MIB, 0, 0);
    for name in odd_names() {
        files.push(dir.join(&name));
        data::write_random(&dir.join(&name), 100_000, 99);
    }
    files
}

/// Names that are legal on Linux and break what is careless with names.
fn odd_names() -> Vec<OsString> {
    let long = "n".repeat(255);
    let names: [&[u8]; 8] = [
        b"a name with spaces",
        b"two\nlines\n",
        b"not UTF-8 \xff\xfe\x80",
        b"-o",
        b"quote'\"$(touch x);*?\\",
        b" ",
        "ünïcode 名前".as_bytes(),
        long.as_bytes(),
    ];
    names.into_iter().map(|name| OsString::from_vec(name.to_vec())).collect()
}

/// Issue "put/get by ticket", D5, D14, design 11: the OID in the ticket is what `b3sum` prints for what arrives.
#[test]
fn put_and_get_every_shape() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    for (number, source) in files(&a.directory("source")).into_iter().enumerate() {
        let share = share(a, &source);
        let copy = b.directory(&number.to_string()).join("copy");
        let got = actions::get(b, &share.ticket, &copy).time_limit(LARGE).run().expect(0);
        assert!(got.stdout.is_empty(), "{got}");
        assert_delivered(&source, &copy, Some(&share.hash()));
        assert_eq!(share.parsed().size_bytes, std::fs::metadata(&copy).unwrap().len());
        let served = share.end();
        assert_eq!(served.stdout.iter().filter(|byte| **byte == b'\n').count(), 1, "{served}");
    }
}

/// Design 5: without `-o` the file gets the name it has at its holder, whatever bytes that has.
#[test]
fn get_without_a_name_takes_that_of_the_holder() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let dir = a.directory("source");
    for (number, name) in odd_names().into_iter().enumerate() {
        let source = dir.join(&name);
        data::write_random(&source, 70_000, number as u64);
        // As a name relative to the working directory, guarded where it looks like an option.
        let share =
            Share::of(a.dray().args(["put", "--"]).arg(&name).directory(&dir).time_limit(LARGE).start());
        let into = b.directory(&number.to_string());
        b.dray().args(["get", &share.ticket]).directory(&into).run().expect(0);
        assert_delivered(&source, &into.join(&name), Some(&share.hash()));
        // SIGINT ends a put as well as SIGTERM does.
        share.process.interrupt();
        share.process.wait().expect(0);
    }
}

/// Issue "`cp` both ways", D14, D28, design 3.
#[test]
fn copy_every_shape_both_ways() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    for (number, source) in files(&a.directory("source")).into_iter().enumerate() {
        let name = source.file_name().unwrap();
        let there = b.directory(&number.to_string()).join(name);
        actions::copy_to(a, b, &source, &there).time_limit(LARGE).run().expect(0);
        assert_delivered(&source, &there, None);
        let back = a.directory(&format!("{number}-back")).join(name);
        actions::copy_from(b, a, &there, &back).time_limit(LARGE).run().expect(0);
        assert_delivered(&source, &back, None);
    }
}

/// Design 5, scp habits: a directory as destination keeps the name, a relative remote path starts at the home
/// directory, `-p` keeps mode and time, an existing file is replaced.
#[test]
fn copy_has_the_habits_of_scp() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("report.txt");
    data::write_random(&source, 300_000, 1);
    set_mode_and_time(&source, 0o640, 1_500_000_000);
    let into = b.directory("inbox");
    actions::copy_to(a, b, &source, &into).run().expect(0);
    assert_delivered(&source, &into.join("report.txt"), None);

    let options = b.ssh_options();
    let host = format!("root@{}", b.address());
    a.dray().arg("cp").args(&options).arg(&source).arg(format!("{host}:at-home")).run().expect(0);
    data::assert_same(&source, &b.home().join("at-home"));
    a.dray().arg("cp").args(&options).arg(&source).arg(format!("{host}:")).run().expect(0);
    data::assert_same(&source, &b.home().join("report.txt"));

    data::write_random(&into.join("report.txt"), 5_000, 2);
    a.dray().args(["cp", "-p"]).args(&options).arg(&source).arg(b.remote(&into)).run().expect(0);
    assert_delivered(&source, &into.join("report.txt"), None);
    assert_eq!(mode_and_time(&into.join("report.txt")), mode_and_time(&source));

    let missing =
        a.dray().arg("cp").args(&options).arg(format!("{host}:no-such-file")).arg(a.file("x")).run();
    missing.expect(3);
    let missing =
        a.dray().arg("cp").args(&options).arg(a.file("no-such-file")).arg(format!("{host}:x")).run();
    missing.expect(3);
    assert!(!a.file("x").exists() && !b.home().join("x").exists());
}

fn set_mode_and_time(path: &Path, mode: u32, seconds: u64) {
    use std::os::unix::fs::PermissionsExt;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

fn mode_and_time(path: &Path) -> (u32, i64) {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.mode() & 0o7777, metadata.mtime())
}

/// Design 3: where nothing but ssh passes the firewall, the bytes go over the ssh channel.
#[test]
fn copy_works_through_ssh_alone() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.allow_only_ssh();
    b.allow_only_ssh();
    let source = a.file("source");
    data::write_random(&source, 64 * MIB + 3, 1);
    let there = b.directory("there").join("copy");
    actions::copy_to(a, b, &source, &there).run().expect(0);
    assert_delivered(&source, &there, None);
    let back = a.directory("back").join("copy");
    actions::copy_from(b, a, &there, &back).run().expect(0);
    assert_delivered(&source, &back, None);
}

/// Design 5: `-` is standard input for put and standard output for get.
#[test]
fn streams_go_in_and_out() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    for (number, size) in [0, 10, 40 * MIB + 7].into_iter().enumerate() {
        let source = a.file("source");
        data::write_random(&source, size, size);
        let share = Share::of(a.dray().args(["put", "-"]).input_file(&source).time_limit(LARGE).start());
        assert_eq!(share.hash(), data::b3sum(&source));
        let copy = b.directory(&number.to_string()).join("copy");
        b.dray().args(["get", &share.ticket, "-o", "-"]).output_file(&copy).run().expect(0);
        data::assert_same(&source, &copy);
        assert_alone(&copy);
        share.end();
    }
}

/// Design 5, D18: a public object is fetched by its OID and a hint, without a ticket.
#[test]
fn public_objects_need_no_ticket() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 3 * MIB, 8);
    let share = Share::of(actions::put(a, &source).arg("--public").start());
    assert!(share.parsed().secret.is_none());
    let (oid, hint) = oid_and_hint(a, &share);
    let copy = b.directory("got").join("copy");
    b.dray().args(["get", &oid, "--hint", &hint, "-o"]).arg(&copy).run().expect(0);
    assert_delivered(&source, &copy, Some(&share.hash()));
}

fn oid_and_hint(holder: &Host, share: &Share) -> (String, String) {
    let ticket = share.parsed();
    let node = ticket.hints.iter().find_map(|hint| hint.node).expect("a hint pins its node");
    (ticket.oid.to_string(), format!("dray://{node}@{}:{}", holder.address(), share.port()))
}
