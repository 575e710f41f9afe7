//! Directories by ticket between two hosts: `put DIR`, `get TICKET -o DIR`, `sync TICKET DIR`. Witnesses are `rsync --checksum`, the
//! counters of the wire, and what is mounted where.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use dray_core::ticket::DirectoryTicket;
use dray_e2e::data::{self, MIB};
use dray_e2e::live::{differences, directory_ticket, get, sample, sync, tool};
use dray_e2e::{Host, Lab, Running};

fn put(host: &Host, path: &Path, options: &[&str]) -> (Running, String) {
    let running = host.dray().arg("put").args(options).arg(path).start();
    let ticket = running.first_line();
    (running, ticket)
}

/// Issue 7 "daemon to daemon by ticket": a tree comes whole, is brought up to date, and loses what the source has not when that is asked for; a
/// dry run changes nothing; who is not let in gets nothing.
#[test]
fn a_tree_by_ticket() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let from = a.directory("from");
    sample(&from);
    let (sharing, ticket) = put(a, &from, &[]);
    let to = b.file("to");
    get(b, &ticket, &to).expect(0);
    assert_eq!(differences(&from, &to), "");
    let again = get(b, &ticket, &to).expect(6);
    assert!(again.stderr_text().contains("dray sync -a TICKET"), "{again}");
    // A change in place, a new file, and one that goes.
    let mut large = fs::read(from.join("large")).unwrap();
    large[3_000_000] ^= 1;
    fs::write(from.join("large"), &large).unwrap();
    fs::write(from.join("b/new"), b"new").unwrap();
    fs::remove_file(from.join("a/deep/er/7")).unwrap();
    let before = differences(&from, &to);
    let dry = sync(b, &["-a", "--delete", "-n", "-i"], &ticket, &to).expect(0).stdout_text();
    assert!(
        dry.contains("*deleting   a/deep/er/7") && dry.contains("b/new") && dry.contains("large"),
        "{dry}"
    );
    assert_eq!(differences(&from, &to), before);
    sync(b, &["-a"], &ticket, &to).expect(0);
    assert!(to.join("a/deep/er/7").exists());
    sync(b, &["-a", "--delete"], &ticket, &to).expect(0);
    assert_eq!(differences(&from, &to), "");
    // Less of it.
    sync(b, &["-a", "--exclude", "/a"], &ticket, &b.file("less")).expect(0);
    assert!(b.file("less/large").exists() && !b.file("less/a").exists());
    // Where there is no ticket nothing leads anywhere.
    sync(b, &["-a", "--local"], to.to_str().unwrap(), &b.file("local")).expect(2);
    // The secret of another share, none at all, and nobody there.
    let (other, theirs) = put(a, &from, &[]);
    for secret in [directory_ticket(&theirs).secret, None] {
        let wrong = DirectoryTicket { secret, ..directory_ticket(&ticket) };
        let refused = get(b, &wrong.to_text().unwrap(), &b.file("none")).expect(6);
        assert!(!b.file("none").exists(), "{refused}");
    }
    other.terminate().expect(0);
    let gone = get(b, &theirs, &b.file("none"));
    assert_eq!(gone.code(), Some(5), "{gone}");
    assert!(!b.file("none").exists());
    let served = sharing.terminate().expect(0);
    assert_eq!(served.stdout_text().lines().count(), 1, "the ticket and nothing else: {served}");
    assert_eq!(get(b, &ticket, &b.file("ended")).code(), Some(5));
}

/// P3 "between daemons": bringing 2,000 unchanged files up to date costs some hundreds of bytes of payload and no more turns than a tenth
/// of them costs, whatever lies in which directory.
#[test]
fn what_is_the_same_costs_a_constant() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let mut costs = Vec::new();
    for count in [200, 2000] {
        let from = a.directory(&format!("from-{count}"));
        for number in 0..count {
            fs::write(from.join(format!("file-{number:04}")), b"content").unwrap();
        }
        let (sharing, ticket) = put(a, &from, &[]);
        let to = b.file(format!("to-{count}"));
        get(b, &ticket, &to).expect(0);
        let before = b.counters();
        let told = sync(b, &["-a", "--stats"], &ticket, &to).expect(0);
        let cost = b.counters() - before;
        assert!(told.stdout_text().contains("Number of files transferred: 0"), "{told}");
        sharing.terminate().expect(0);
        eprintln!("{count} files: {cost:?}");
        costs.push(cost);
    }
    for cost in &costs {
        // Headers of packets and the handshake of TLS are among them.
        assert!(cost.bytes() < 8_000, "{cost:?}");
    }
    let packets = |at: usize| costs[at].received_packets + costs[at].sent_packets;
    assert!(packets(1) <= packets(0) + 6, "{costs:?}");
}

/// ADR 29: another disk that is mounted at the place of the shared one is given to nobody; nor is what is mounted below, in whose place nothing
/// is deleted at the receiver.
#[test]
fn what_is_mounted_is_not_shared() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let place = a.directory("disk");
    let at = place.to_str().unwrap();
    tool(&["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", at]);
    fs::create_dir_all(place.join("below")).unwrap();
    fs::write(place.join("mine"), b"mine").unwrap();
    fs::write(place.join("below/seen"), b"seen").unwrap();
    let (sharing, ticket) = put(a, &place, &[]);
    // Programs of a host have mounts of their own.
    let pid = sharing.pid().to_string();
    let inside = |script: &str| tool(&["nsenter", "-t", &pid, "-m", "sh", "-ec", script, "sh", at]);
    let to = b.file("to");
    get(b, &ticket, &to).expect(0);
    assert!(to.join("below/seen").exists());
    // Below: what the receiver has in its place stays, and nothing of it is read.
    inside("cd \"$1\"; mount -t tmpfs tmpfs below; echo secret > below/secret; rm mine");
    sync(b, &["-a", "--delete"], &ticket, &to).expect(0);
    assert!(!to.join("mine").exists() && !to.join("below/secret").exists());
    assert!(to.join("below/seen").exists(), "what is below a mount was not looked at");
    get(b, &ticket, &b.file("without")).expect(0);
    assert_eq!(data::names(&b.file("without/below")), [""; 0]);
    // In its place, over it, and instead of it.
    inside("umount \"$1/below\"; mount -t tmpfs tmpfs \"$1\"; echo secret > \"$1/secret\"");
    let refused = get(b, &ticket, &b.file("over")).expect(4);
    assert!(!b.file("over").exists() && !refused.stderr_text().contains(at), "{refused}");
    inside("umount \"$1\"");
    get(b, &ticket, &b.file("back")).expect(0);
    inside("umount \"$1\"; mount -t tmpfs tmpfs \"$1\"; echo secret > \"$1/secret\"");
    get(b, &ticket, &b.file("instead")).expect(4);
    assert!(!b.file("instead").exists());
    let said = sharing.terminate().expect(0).stderr_text();
    assert!(said.contains("is not the directory that was shared"), "{said}");
    tool(&["umount", at]);
}

/// ADR 29: the directories in which this node keeps its keys are not shared, nor those that hold them.
#[test]
fn the_nodes_own_directories_are_not_shared() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let file = a.file("file");
    fs::write(&file, b"x").unwrap();
    // The first share makes the data directory.
    let (sharing, _) = put(a, &file, &[]);
    let link = a.file("link");
    symlink(a.data_dir(), &link).unwrap();
    let inside: PathBuf = fs::read_dir(a.data_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    for path in [a.data_dir(), a.home(), link, inside] {
        let refused = a.dray().arg("put").arg(&path).run().expect(2);
        assert!(refused.stderr_text().contains("keeps its keys") && refused.stdout.is_empty(), "{refused}");
    }
    sharing.terminate().expect(0);
}

/// Issue 7 "interrupted": a fetch that is killed goes on in the directory that it made, and a share that ends meanwhile is said.
#[test]
fn a_fetch_goes_on_after_a_kill() {
    let Some(lab) = Lab::of(2).rate_mbit(80).build() else { return };
    let (a, b) = lab.pair();
    let from = a.directory("from");
    for number in 0..12 {
        data::write_random(&from.join(number.to_string()), 2 * MIB, number);
    }
    let (sharing, ticket) = put(a, &from, &[]);
    let to = b.file("to");
    let running = b.dray().args(["get", &ticket, "-o"]).arg(&to).start();
    let has_some = || data::names(&to).iter().filter(|name| name.len() <= 2).count() >= 3;
    assert!(running.wait_until(false, || to.is_dir() && has_some()));
    running.kill();
    let before = b.counters();
    get(b, &ticket, &to).expect(0);
    let came = (b.counters() - before).received_bytes;
    assert!(came < 20 * MIB, "{came} bytes came again");
    assert_eq!(differences(&from, &to), "");
    assert_eq!(data::unfinished(&to), [""; 0]);
    sharing.terminate().expect(0);
}

/// Threat model, ADR 29: who is fetching when `put` is ended by its user hears that, as if the right had ended otherwise.
#[test]
fn who_is_fetching_hears_that_put_ends() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    let from = a.directory("from");
    for number in 0..8 {
        data::write_random(&from.join(number.to_string()), 4 * MIB, number);
    }
    let (sharing, ticket) = put(a, &from, &[]);
    let to = b.file("to");
    let running = b.dray().args(["get", &ticket, "-o"]).arg(&to).start();
    let has_some = || to.is_dir() && data::names(&to).iter().any(|name| name.len() == 1);
    assert!(running.wait_until(false, has_some));
    sharing.terminate().expect(0);
    let cut = running.wait().expect(6);
    assert!(cut.stderr_text().contains("no longer shared"), "{cut}");
}
