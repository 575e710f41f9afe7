//! A tree over an older version of itself, over a real sshd between two hosts: what changed is what crosses the wire. Bytes are
//! counted on the interface, in both directions, and rsync does the same beside it (P5, issue "in-file differences inside trees").
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dray_e2e::actions::{self, assert_same_tree, kill_one_end};
use dray_e2e::data::{self, GIB, MIB};
use dray_e2e::{Host, Lab, Program, gate};
use dray_lab::conditions::Condition;
use dray_lab::{Link, Rate};

/// Longest time one command may take.
const LONG: Duration = Duration::from_secs(300);

/// How a file differs from its older version, and what that may cost on the wire besides a connection of ssh.
const EDITS: [(&str, u64); 6] = [
    ("head", 300_000),
    ("block", 300_000),
    ("log", 1_400_000),
    ("cut", 300_000),
    ("unrelated", u64::MAX),
    ("touched", 100_000),
];

/// Writes the older and the newer version of a file of `size` bytes.
fn write_versions(older: &Path, newer: &Path, edit: &str, size: u64) {
    data::write_random(older, size, 71);
    let file = File::create(newer).unwrap();
    let mut input = File::open(older).unwrap();
    match edit {
        "head" => {
            let mut file = &file;
            std::io::Write::write_all(&mut file, b"sixteen new byte").unwrap();
            std::io::copy(&mut input, &mut file).unwrap();
        }
        "unrelated" => data::write_random(newer, size, 72),
        _ => {
            fs::copy(older, newer).unwrap();
        }
    }
    match edit {
        "block" => file.write_all_at(&data::random_bytes(4096, 4), (size / 2) & !4095).unwrap(),
        "log" => file.write_all_at(&data::random_bytes(MIB as usize, 5), size).unwrap(),
        "cut" => file.set_len(size / 3 * 2 + 17).unwrap(),
        _ => {}
    }
    // Another time than the new one's, so that size and time do not say they are the same.
    File::options()
        .write(true)
        .open(older)
        .unwrap()
        .set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000))
        .unwrap();
}

/// Bytes on `host`'s interface, both directions, while `program` runs.
#[track_caller]
fn cost(host: &Host, program: Program<'_>) -> u64 {
    let before = host.counters();
    program.time_limit(LONG).run().expect(0);
    let carried = host.counters() - before;
    carried.bytes()
}

/// A new directory `name` in the one that `host` has for a case.
fn directory(host: &Host, case: &str, name: &str) -> PathBuf {
    let path = host.file(case).join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

fn copy<'a>(a: &'a Host, b: &'a Host, is_upload: bool, from: &Path, to: &Path) -> Program<'a> {
    let program =
        if is_upload { actions::copy_to(a, b, from, to) } else { actions::copy_from(a, b, from, to) };
    program.arg("-a")
}

/// P5, Y26: 16 bytes inserted at the head, one block changed, a log that grew, a file cut short, another file of the same name, a time that
/// changed; with `-W` everything comes. rsync over the same ssh is the rival.
#[test]
fn a_changed_file_of_a_tree_costs_what_changed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let size = gate::sized(256 * MIB, 2 * GIB);
    for (edit, allowed) in EDITS {
        let (newer, older) = (directory(a, edit, "tree"), directory(b, edit, "older"));
        write_versions(&older.join("file"), &newer.join("file"), edit, size);
        let place = |name: &str| -> PathBuf {
            let place = directory(b, edit, name);
            let copied =
                std::process::Command::new("cp").arg("-a").arg(older.join("file")).arg(&place).status();
            assert!(copied.unwrap().success());
            place
        };
        let mut worst = 0;
        for is_upload in [true, false] {
            let to = place("copy");
            let bytes = cost(b, copy(a, b, is_upload, &newer.join("."), &to));
            eprintln!("{} MiB, {edit}, upload {is_upload}: {bytes} bytes on the wire", size / MIB);
            assert_same_tree(a, &newer, &to, None);
            assert!(bytes <= allowed.min(size / 100 * 105), "{edit}: {bytes} bytes on the wire");
            worst = bytes.max(worst);
            fs::remove_dir_all(&to).unwrap();
        }
        if edit == "block" || edit == "head" {
            let to = place("rsync");
            let ssh = format!("ssh {}", b.ssh_options().join(" "));
            let rsync = a.program("rsync").args(["-a", "-e", &ssh]);
            let rival = cost(b, rsync.arg(newer.join(".")).arg(b.remote(&to)));
            eprintln!("{} MiB, {edit}, rsync: {rival} bytes on the wire", size / MIB);
            assert!(worst < rival, "{edit}: {worst} bytes on the wire, rsync {rival}");
            fs::remove_dir_all(&to).unwrap();
            let to = place("whole");
            let whole = cost(b, copy(a, b, true, &newer.join("."), &to).arg("-W"));
            assert!(whole > size, "-W: {whole} bytes on the wire");
            fs::remove_dir_all(&to).unwrap();
        }
        fs::remove_dir_all(a.file(edit)).unwrap();
        fs::remove_dir_all(b.file(edit)).unwrap();
    }
}

/// P6 "kernel source": over a slow line of small files, too, only what changed comes, both ways and by ssh alone (`-z`); with `-W` all of them.
#[test]
fn small_files_cost_what_changed_over_a_slow_line() {
    const FILES: u64 = 100;
    const BYTES: u64 = 32 << 10;
    let link = Link::new(Rate::mbit(10), Duration::from_millis(20));
    let slow = Condition { name: "slow", up: link, down: link, why: "that of P6" };
    let Some(lab) = Lab::of(2).condition(slow).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let (newer, older) = (directory(a, "small", "tree"), directory(b, "small", "older"));
    for number in 0..FILES {
        let noise = data::random_bytes(BYTES as usize, number);
        let name = format!("file{number}");
        fs::write(older.join(&name), &noise).unwrap();
        let changed = [&noise[..9_000], &b"a line that was not there before\n"[..], &noise[9_000..]].concat();
        fs::write(newer.join(&name), changed).unwrap();
    }
    let all = FILES * BYTES;
    for (option, is_upload, most) in [
        (None, true, all / 4),
        (None, false, all / 4),
        (Some("-z"), true, all / 4),
        (Some("-W"), true, u64::MAX),
    ] {
        let to = directory(b, "small", "copy");
        assert!(std::process::Command::new("cp").arg("-aT").args([&older, &to]).status().unwrap().success());
        let bytes = cost(b, copy(a, b, is_upload, &newer.join("."), &to).args(option));
        eprintln!("{FILES} files of 32 KiB, {option:?}, upload {is_upload}: {bytes} bytes on the wire");
        assert_same_tree(a, &newer, &to, None);
        assert!(bytes <= most && (most < all || bytes > all), "{option:?}: {bytes} bytes on the wire");
        fs::remove_dir_all(&to).unwrap();
    }
    let to = directory(b, "small", "copy");
    assert!(std::process::Command::new("cp").arg("-aT").args([&older, &to]).status().unwrap().success());
    let sync = a.dray().args(["sync", "-aW", "-e", &format!("ssh {}", b.ssh_options().join(" "))]);
    let bytes = cost(b, sync.arg(newer.join(".")).arg(b.remote(&to)));
    assert!(bytes > all, "sync -W: {bytes} bytes on the wire");
    assert_same_tree(a, &newer, &to, None);
}

/// P5: a file renamed, two files that changed places, a directory moved: at most 100 kB each, both ways. The copy leaves what has
/// its older name.
#[test]
fn what_was_only_renamed_costs_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let size = gate::sized(64 * MIB, 2 * GIB);
    type Renamed = (&'static str, &'static [(&'static str, &'static str)]);
    let cases: [Renamed; 3] = [
        ("renamed", &[("before", "after")]),
        ("swapped", &[("one", "other"), ("other", "one")]),
        ("moved", &[("dir/a", "moved/here/a"), ("dir/b", "moved/here/b"), ("dir/c", "moved/here/c")]),
    ];
    for (what, names) in cases {
        let (newer, older) = (directory(a, what, "tree"), directory(b, what, "older"));
        for (number, (before, after)) in names.iter().enumerate() {
            let (before, after) = (older.join(before), newer.join(after));
            fs::create_dir_all(before.parent().unwrap()).unwrap();
            fs::create_dir_all(after.parent().unwrap()).unwrap();
            data::write_random(&before, size / names.len() as u64 + number as u64, number as u64);
            fs::copy(&before, &after).unwrap();
            let time = fs::metadata(&before).unwrap().modified().unwrap();
            File::options().write(true).open(&after).unwrap().set_modified(time).unwrap();
        }
        for is_upload in [true, false] {
            let to = b.file(format!("{what}/copy"));
            let copied = std::process::Command::new("cp").arg("-a").arg(&older).arg(&to).status();
            assert!(copied.unwrap().success());
            let bytes = cost(b, copy(a, b, is_upload, &newer.join("."), &to));
            eprintln!("{} MiB, {what}, upload {is_upload}: {bytes} bytes on the wire", size / MIB);
            assert!(bytes <= 100_000, "{what}: {bytes} bytes on the wire");
            for (_, after) in names {
                data::assert_same(&newer.join(after), &to.join(after));
            }
            fs::remove_dir_all(&to).unwrap();
        }
        fs::remove_dir_all(a.file(what)).unwrap();
        fs::remove_dir_all(b.file(what)).unwrap();
    }
}

/// P5: of a directory of many files that was moved, questions and answers cross together: each by itself they cost 325 to 385 bytes a file here, together 190 to 210.
#[test]
fn a_moved_directory_of_many_files_costs_little() {
    const FILES: u64 = 150;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let (newer, older) = (directory(a, "tree/moved", "here"), directory(b, "older", "dir"));
    for number in 0..FILES {
        let (name, size) = (format!("file-{number}"), gate::sized(MIB, 10 * MIB) + number);
        data::write_random(&older.join(&name), size, number);
        fs::copy(older.join(&name), newer.join(&name)).unwrap();
        let time = fs::metadata(older.join(&name)).unwrap().modified().unwrap();
        File::options().write(true).open(newer.join(&name)).unwrap().set_modified(time).unwrap();
    }
    let empty = (a.directory("empty"), b.directory("nothing"));
    let login = cost(b, copy(a, b, true, &empty.0.join("."), &empty.1));
    for is_upload in [true, false] {
        let to = b.file("copy");
        let copied = std::process::Command::new("cp").arg("-a").arg(b.file("older")).arg(&to).status();
        assert!(copied.unwrap().success());
        let bytes = cost(b, copy(a, b, is_upload, &a.file("tree").join("."), &to));
        eprintln!(
            "{FILES} files moved, upload {is_upload}: {bytes} bytes on the wire, {login} of them the login"
        );
        assert!(bytes <= 100_000 && bytes - login <= 230 * FILES, "{bytes} bytes on the wire");
        (0..FILES).map(|number| format!("file-{number}")).for_each(|name| {
            data::assert_same(&newer.join(&name), &to.join("moved/here").join(&name));
        });
        fs::remove_dir_all(&to).unwrap();
    }
}

/// P6, S92, design 16: of programs that were built again, with a few bytes changed in every few hundred, a copy over a slow line brings the blocks
/// around those, both ways; rsync all of them. A ticket's holder, who may be anybody, is not told which blocks are here: from there they come
/// whole, as from a dray that tells no sums.
#[test]
fn a_program_built_again_costs_its_changed_blocks() {
    let Some(lab) = Lab::of(2).rate_mbit(20).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let (newer, older) = (a.directory("tree"), b.directory("older"));
    let mut size = 0;
    for (name, bytes) in [("program", 6 * MIB), ("library", MIB), ("module", 100_000)] {
        let new = data::random_bytes(bytes as usize, bytes);
        let mut old = new.clone();
        (100..old.len()).step_by(350).for_each(|at| old[at] ^= 0x55);
        // And what came before the end was a little longer.
        old.splice(new.len() / 2..new.len() / 2, [7; 16]);
        fs::write(newer.join(name), &new).unwrap();
        fs::write(older.join(name), &old).unwrap();
        size += bytes;
    }
    let place = |name: &str| -> PathBuf {
        let to = b.directory(name);
        for name in ["program", "library", "module"] {
            fs::copy(older.join(name), to.join(name)).unwrap();
        }
        to
    };
    for is_upload in [true, false] {
        let to = place(&format!("copy-{is_upload}"));
        let bytes = cost(b, copy(a, b, is_upload, &newer.join("."), &to));
        eprintln!("upload {is_upload}: {bytes} bytes on the wire of {size}");
        assert_same_tree(a, &newer, &to, None);
        assert!(bytes < size / 5 * 2, "{bytes} bytes on the wire of {size}");
    }
    let to = place("rsync");
    let ssh = format!("ssh {}", b.ssh_options().join(" "));
    let rsync = a.program("rsync").args(["-a", "-e", &ssh]);
    let rival = cost(b, rsync.arg(newer.join(".")).arg(b.remote(&to)));
    assert!(rival > size, "rsync: {rival} bytes on the wire of {size}");
    let sharing = a.dray().arg("put").arg(&newer).start();
    let (ticket, to) = (sharing.first_line(), place("ticket"));
    let before = b.counters();
    dray_e2e::live::sync(b, &["-a"], &ticket, &to).expect(0);
    let bytes = (b.counters() - before).bytes();
    assert_same_tree(a, &newer, &to, None);
    assert!(bytes > size, "by ticket {bytes} bytes on the wire of {size}");
    sharing.terminate().expect(0);
}

/// P6, S92: of a library of x86-64 that was built again, so that all that it calls lies elsewhere, a copy over a slow line brings little more than
/// where that is, both ways: no block of 64 bytes of it is what it was.
#[test]
fn a_library_built_again_costs_its_fields() {
    let Some(lab) = Lab::of(2).rate_mbit(20).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let (newer, older) = (a.directory("tree"), b.directory("older"));
    let mut new = data::random_bytes(4 << 20, 1);
    new[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00");
    let mut old = new.clone();
    for at in (100..new.len() - 100).step_by(40) {
        let called = (at as u32 % 977) * 16;
        for (bytes, address) in [(&mut new, called), (&mut old, called + 0x1230)] {
            bytes[at] = 0xe8;
            bytes[at + 1..at + 5].copy_from_slice(&address.to_le_bytes());
        }
    }
    old.splice(new.len() / 2..new.len() / 2, [7; 160]);
    fs::write(newer.join("library.so"), &new).unwrap();
    fs::write(older.join("library.so"), &old).unwrap();
    let size = new.len() as u64;
    for is_upload in [true, false] {
        let to = b.directory(&format!("copy-{is_upload}"));
        fs::copy(older.join("library.so"), to.join("library.so")).unwrap();
        let bytes = cost(b, copy(a, b, is_upload, &newer.join("."), &to));
        eprintln!("upload {is_upload}: {bytes} bytes on the wire of {size}");
        assert_same_tree(a, &newer, &to, None);
        assert!(bytes < size / 5, "{bytes} bytes on the wire of {size}");
    }
}

/// Issue "kill -9 in the middle and again", for either end: the file is the older version or the newer one at every moment, nothing is
/// left, and the next run costs what changed.
#[test]
fn a_killed_difference_goes_on() {
    let Some(lab) = Lab::of(2).rate_mbit(50).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (newer, older) = (a.directory("tree"), b.directory("older"));
    let old = data::random_bytes(64 << 20, 71);
    let mut new = old.clone();
    // A MiB in sixteen places: long enough on this link to be killed in the middle.
    for place in 0..16 {
        let at = place * (4 << 20) + 77;
        new[at..at + (1 << 20)].copy_from_slice(&data::random_bytes(1 << 20, place as u64));
    }
    fs::write(older.join("file"), &old).unwrap();
    fs::write(newer.join("file"), &new).unwrap();
    for kills_far in [false, true] {
        let to = b.directory(&format!("copy-{kills_far}"));
        fs::copy(older.join("file"), to.join("file")).unwrap();
        let program = || copy(a, b, true, &newer.join("."), &to).time_limit(LONG);
        let before = b.counters();
        let running = program().start();
        let is_half = running.wait_until(false, || (b.counters() - before).received_bytes > 6 * MIB);
        assert!(is_half, "it ended before it could be killed");
        kill_one_end(running, b, kills_far);
        assert!(fs::read(to.join("file")).unwrap() == old, "neither old nor new");
        let bytes = cost(b, program());
        eprintln!("again: {bytes} bytes on the wire");
        assert!(bytes < 20 * MIB, "{bytes} bytes on the wire");
        assert_same_tree(a, &newer, &to, None);
        assert_eq!(data::names(&to), ["file"]);
    }
}
