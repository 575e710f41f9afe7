//! Liars, damage and files that change under the transfer: never a wrong byte, always an error that names the cause.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_core::Oid;
use dray_core::hash_tree::IncrementalHasher;
use dray_e2e::actions::{self, Share, assert_delivered, assert_not_delivered, share};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, Outcome};

const SIZE: u64 = 24 * MIB;

/// Folder of an object in the data directory (`docs/format/object.md`, `docs/operating.md`).
fn object_dir(host: &Host, hash: &str) -> PathBuf {
    let dir = host.data_dir().join("store/objects").join(&hash[..2]).join(hash);
    assert!(dir.is_dir(), "no object at {}", dir.display());
    dir
}

/// Shares random bytes from standard input: the data then lies in the data directory, owned.
fn share_owned(host: &Host, seed: u64) -> (PathBuf, Share) {
    let source = host.file(format!("source-{seed}"));
    data::write_random(&source, SIZE, seed);
    let put = host.dray().args(["put", "-"]).input_file(&source).time_limit(Duration::from_secs(300));
    (source, Share::of(put.start()))
}

/// Writes the outboard that belongs to the data as they are now, and returns their true name.
fn rewrite_outboard(dir: &Path) -> Oid {
    let data = fs::read(dir.join("data")).unwrap();
    let mut outboard = File::create(dir.join("outboard")).unwrap();
    let mut hasher = IncrementalHasher::default();
    let mut emit = |pairs: &[u8]| {
        outboard.write_all(pairs).unwrap();
        Ok(())
    };
    hasher.update(&data, &mut emit).unwrap();
    hasher.finish(&mut emit).unwrap().1
}

/// Issue "altered bytes served by a modified sender: exit 4": the holder's data and hash tree are altered together, so
/// that it believes its own lie, sends it with matching pairs, and only the name is against it.
#[test]
fn a_consistent_liar_is_caught() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    for restart in [false, true] {
        let (source, mut share) = share_owned(holder, u64::from(restart));
        let dir = object_dir(holder, &share.hash());
        data::flip_bit(&dir.join("data"), SIZE / 2);
        assert_ne!(rewrite_outboard(&dir).hex(), share.hash());
        if restart {
            let ticket = share.ticket.clone();
            share.process.terminate();
            share = Share::of(holder.dray().args(["put", "-"]).input_file(&source).start());
            assert_eq!(share.hash(), data::b3sum(&source));
            // The second put had the right bytes at hand: it may have repaired the object.
            assert_eq!(ticket.parse::<dray_core::ticket::Ticket>().unwrap().oid, share.parsed().oid);
        }
        actions::forget(taker);
        let copy = taker.directory(&format!("got-{restart}")).join("copy");
        let got = actions::get(taker, &share.ticket, &copy).run();
        if restart && got.code() == Some(0) {
            assert_delivered(&source, &copy, Some(&share.hash()));
        } else {
            got.expect(4);
            assert_not_delivered(&copy);
        }
    }
}

/// Issue "a bit flipped in owned data": documented error, nothing delivered, and the holder serves other objects on.
#[test]
fn a_bit_flipped_in_owned_data_is_an_error() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let (_, share) = share_owned(holder, 11);
    let (other_source, other) = share_owned(holder, 12);
    data::flip_bit(&object_dir(holder, &share.hash()).join("data"), SIZE - 5);
    let copy = taker.directory("got").join("copy");
    actions::get(taker, &share.ticket, &copy).run().expect(4);
    assert_not_delivered(&copy);
    let copy = taker.directory("other").join("copy");
    actions::get(taker, &other.ticket, &copy).run().expect(0);
    assert_delivered(&other_source, &copy, Some(&other.hash()));
}

/// Issue "an outboard deleted": it is made again from the data, or the error is documented.
#[test]
fn a_deleted_outboard_is_repaired() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, SIZE, 21);
    actions::let_settle(&source);
    let first = share(holder, &source);
    let outboard = object_dir(holder, &first.hash()).join("outboard");
    first.end();
    for (number, damage) in ["deleted", "cut", "garbled"].into_iter().enumerate() {
        match damage {
            "deleted" => fs::remove_file(&outboard).unwrap(),
            "cut" => File::options().write(true).open(&outboard).unwrap().set_len(1000).unwrap(),
            _ => data::flip_bit(&outboard, 700),
        }
        actions::forget(taker);
        let again = share(holder, &source);
        let copy = taker.directory(&number.to_string()).join("copy");
        let got = actions::get(taker, &again.ticket, &copy).run();
        if damage == "garbled" && got.code() != Some(0) {
            got.expect(4);
            assert_not_delivered(&copy);
        } else {
            got.expect(0);
            assert_delivered(&source, &copy, Some(&again.hash()));
        }
        again.end();
    }
}

/// Ways in which a user's file changes.
const CHANGES: [&str; 6] =
    ["one byte", "one byte, time restored", "truncated", "appended", "replaced", "deleted"];

fn change(path: &Path, how: &str) {
    let open = || File::options().read(true).write(true).open(path).unwrap();
    match how {
        "one byte" => data::flip_bit(path, SIZE / 2 + 17),
        "one byte, time restored" => {
            let time = fs::metadata(path).unwrap().modified().unwrap();
            data::flip_bit(path, SIZE / 2 + 17);
            open().set_modified(time).unwrap();
        }
        "truncated" => open().set_len(SIZE / 3).unwrap(),
        "appended" => open().write_all_at(b"more", SIZE).unwrap(),
        "replaced" => {
            let other = path.with_extension("new");
            data::write_random(&other, SIZE, 999);
            fs::rename(other, path).unwrap();
        }
        "deleted" => fs::remove_file(path).unwrap(),
        other => panic!("{other}"),
    }
}

/// Either the bytes that the ticket names, or exit 4 with the word `changed` and nothing delivered.
#[track_caller]
fn assert_right_or_changed(outcome: Outcome, copy: &Path, hash: &str, how: &str) {
    if outcome.code() == Some(0) {
        assert_eq!(data::b3sum(copy), hash, "{how}: {outcome}");
        return;
    }
    let outcome = outcome.expect(4);
    assert!(outcome.stderr_text().contains("changed"), "{how}: {outcome}");
    assert_not_delivered(copy);
}

/// Y23, issue "a file changed, truncated or replaced … between the two", design 11.
#[test]
fn a_file_changed_between_put_and_get() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    for (number, how) in CHANGES.into_iter().enumerate() {
        let source = holder.file(format!("source-{number}"));
        data::write_random(&source, SIZE, number as u64);
        let share = share(holder, &source);
        change(&source, how);
        let copy = taker.directory(&number.to_string()).join("copy");
        let got = actions::get(taker, &share.ticket, &copy).run();
        if ["one byte", "one byte, time restored", "truncated"].contains(&how) {
            assert_eq!(got.code(), Some(4), "the bytes are gone ({how}): {got}");
        }
        assert_right_or_changed(got, &copy, &share.hash(), how);
        share.end();
    }
}

/// The same with a put that is repeated after the change: its ticket names the new bytes.
#[test]
fn a_file_changed_between_two_puts() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    for (number, how) in CHANGES.into_iter().enumerate().filter(|(_, how)| *how != "deleted") {
        let source = holder.file(format!("source-{number}"));
        data::write_random(&source, SIZE, number as u64);
        share(holder, &source).end();
        change(&source, how);
        let share = share(holder, &source);
        assert_eq!(share.hash(), data::b3sum(&source), "{how}");
        let copy = taker.directory(&number.to_string()).join("copy");
        actions::get(taker, &share.ticket, &copy).run().expect(0);
        assert_delivered(&source, &copy, Some(&share.hash()));
    }
}

/// Y23, issue "… during get".
#[test]
fn a_file_changed_during_get() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (holder, taker) = lab.pair();
    for (number, how) in CHANGES.into_iter().enumerate() {
        let source = holder.file(format!("source-{number}"));
        data::write_random(&source, SIZE, number as u64);
        let share = share(holder, &source);
        let dir = taker.directory(&number.to_string());
        let copy = dir.join("copy");
        let running = actions::get(taker, &share.ticket, &copy).start();
        running.wait_until(false, || data::unfinished_bytes(&dir) > 2 * MIB);
        change(&source, how);
        assert_right_or_changed(running.wait(), &copy, &share.hash(), how);
        share.end();
    }
}

/// Issue "… during put": whatever the ticket names is what a get delivers, or it is refused as changed.
#[test]
fn a_file_changed_during_put() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    for (number, how) in CHANGES.into_iter().enumerate() {
        let source = holder.file(format!("source-{number}"));
        // Enough to hash that the change comes in the middle of it.
        data::write_random(&source, 5 * SIZE, number as u64);
        let process = actions::put(holder, &source).start();
        let read_some = || {
            let io = fs::read_to_string(format!("/proc/{}/io", process.pid())).unwrap_or_default();
            let chars = io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok());
            chars.is_some_and(|chars| chars > 2 * MIB)
        };
        process.wait_until(true, read_some);
        change(&source, how);
        if process.wait_until_line() {
            let share = Share::of(process);
            let copy = taker.directory(&number.to_string()).join("copy");
            let got = actions::get(taker, &share.ticket, &copy).run();
            assert_right_or_changed(got, &copy, &share.hash(), how);
        } else {
            let outcome = process.wait().expect(4);
            assert!(outcome.stderr_text().contains("changed"), "{how}: {outcome}");
        }
    }
}

/// Design 3: a copy of a changing file delivers a state that the file had, or fails with `changed`.
#[test]
fn a_file_changed_during_copy() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (local, remote) = lab.pair();
    for is_upload in [true, false] {
        let (from, to) = if is_upload { (local, remote) } else { (remote, local) };
        for (number, how) in CHANGES.into_iter().enumerate() {
            let source = from.file(format!("source-{number}-{is_upload}"));
            data::write_random(&source, SIZE, number as u64);
            let earlier = data::b3sum(&source);
            let dir = to.directory(&format!("{number}-{is_upload}"));
            let copy = dir.join("copy");
            let program = if is_upload {
                actions::copy_to(local, remote, &source, &copy)
            } else {
                actions::copy_from(remote, local, &source, &copy)
            };
            let running = program.start();
            running.wait_until(false, || data::unfinished_bytes(&dir) > 2 * MIB);
            change(&source, how);
            let later = source.exists().then(|| data::b3sum(&source));
            let outcome = running.wait();
            if outcome.code() == Some(0) {
                let got = Some(data::b3sum(&copy));
                assert!(got == later || got.as_ref() == Some(&earlier), "{how}: {outcome}");
            } else {
                assert_right_or_changed(outcome, &copy, "", how);
            }
        }
    }
}

/// Issue "a modified sender": the far end's frames are altered on the ssh channel, the only one there is. The copy
/// ends with exit 4 and nothing delivered. Unaltered, the same arrangement works: the rewriter is not the cause.
#[test]
fn altered_frames_are_caught() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (local, remote) = lab.pair();
    local.allow_only_ssh();
    let source = remote.file("source");
    data::write_random(&source, SIZE, 31);
    for lie in ["none", "flip-data", "hole-for-data", "zeros-for-data"] {
        let script = remote.file(format!("far-end-{lie}"));
        let rewriter = env!("CARGO_BIN_EXE_dray-frame-rewriter");
        fs::write(&script, format!("#!/bin/sh\nexec '{rewriter}' {lie} dray \"$@\"\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let copy = local.directory(lie).join("copy");
        let program = actions::copy_from(remote, local, &source, &copy).arg("--remote-dray").arg(&script);
        if lie == "none" {
            program.run().expect(0);
            assert_delivered(&source, &copy, None);
        } else {
            program.run().expect(4);
            assert_not_delivered(&copy);
        }
    }
}

/// Design 11: a file that is put, and the source of a copy, are read and nothing else. The kernel's own record of the
/// last change of anything about the file (`ctime`) says so, and nobody can set it back.
#[test]
fn a_shared_file_is_left_alone() {
    use std::os::unix::fs::MetadataExt;
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, SIZE, 51);
    let facts = || {
        let about = fs::metadata(&source).unwrap();
        let times = [(about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec())];
        (about.ino(), about.nlink(), about.mode(), about.size(), times)
    };
    let (before, sum) = (facts(), data::b3sum(&source));
    for round in 0..2 {
        let share = share(holder, &source);
        actions::forget(taker);
        let copy = taker.directory(&format!("got-{round}")).join("copy");
        actions::get(taker, &share.ticket, &copy).run().expect(0);
        assert_delivered(&source, &copy, Some(&sum));
        share.end();
    }
    let copy = taker.directory("copied").join("copy");
    actions::copy_to(holder, taker, &source, &copy).run().expect(0);
    assert_delivered(&source, &copy, Some(&sum));
    assert_eq!(facts(), before);
}

/// Design 5: `verify` compares a file with a name and says which of the two is at fault by its exit code.
#[test]
fn verify_tells_right_from_wrong() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("file");
    data::write_random(&file, SIZE + 1, 41);
    let oid = format!("blake3:{}", data::b3sum(&file));
    let verify = |oid: &str| host.dray().arg("verify").arg(&file).arg(oid).run();
    verify(&oid).expect(0);
    data::flip_bit(&file, SIZE);
    verify(&oid).expect(4);
    data::flip_bit(&file, SIZE);
    verify(&oid).expect(0);
    verify("blake3:12").expect(2);
    verify("md5:d41d8cd98f00b204e9800998ecf8427e").expect(6);
    host.dray().arg("verify").arg(host.file("none")).arg(&oid).run().expect(3);
    host.dray().arg("verify").arg(host.dir()).arg(&oid).run().assert_manners();
}
