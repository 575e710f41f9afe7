//! What lies between the hosts of a `dray cp`: firewalls that swallow packets, masquerade, port forwards, and paths that come
//! and go. Counters of the network devices say which way the bytes went.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use dray_e2e::actions::assert_delivered;
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab};

/// A copy lasts some seconds at this rate, so that a direct path has the time to come up.
const RATE_MBIT: u32 = 100;
/// What dialling, handshakes and the packets of the lab itself may cost beside ssh.
const DIALLING_BYTES: u64 = 256 * 1024;

/// Copies 24 MiB up and down between `near` and `far`, which ssh reaches at `address`, and says how many bytes went
/// beside ssh each time.
fn both_ways(near: &Host, far: &Host, address: Ipv4Addr, name: &str) -> [u64; 2] {
    let size = 24 * MIB;
    let options = far.ssh_options();
    let source = near.file(format!("source-{name}"));
    data::write_random(&source, size, 1);
    let there = far.directory(&format!("there-{name}")).join("copy");
    let back = near.directory(&format!("back-{name}")).join("copy");
    let remote = format!("root@{address}:{}", there.display());
    [
        (source.clone().into_os_string(), OsString::from(remote.clone()), &there),
        (remote.into(), back.clone().into(), &back),
    ]
    .map(|(from, to, copy)| {
        let before = far.counters();
        let copied = near.dray().arg("cp").args(&options).arg(from).arg(to).run().expect(0);
        assert_delivered(&source, copy, None);
        let carried = far.counters() - before;
        // Bytes start over ssh, whatever comes later.
        assert!(carried.ssh_bytes > 64 * 1024, "{name}: {carried:?} {copied}");
        carried.other_bytes()
    })
}

/// Issue 4 "direct possible: each both ways": what ssh began goes on over direct connections.
#[test]
fn an_open_network_is_used() {
    let Some(lab) = Lab::of(2).rate_mbit(RATE_MBIT).build() else { return };
    let (near, far) = lab.pair();
    for beside in both_ways(near, far, far.address(), "open") {
        assert!(beside > 12 * MIB, "{beside}");
    }
}

/// Issue 4 "everything but port 22 dropped (SYNs vanish, not refused)", at either end and at both.
#[test]
fn nothing_but_ssh_gets_through() {
    let Some(lab) = Lab::of(3).rate_mbit(RATE_MBIT).build() else { return };
    let [one, two, three] = [0, 1, 2].map(|index| lab.host(index));
    two.allow_only_ssh();
    three.allow_only_ssh();
    for (near, far, name) in [(one, two, "far"), (two, one, "near"), (two, three, "both")] {
        for beside in both_ways(near, far, far.address(), name) {
            assert!(beside < DIALLING_BYTES, "{name}: {beside}");
        }
    }
}

/// Issue 4 "local end behind masquerade": it dials out, whichever way the data goes.
#[test]
fn the_near_end_behind_masquerade() {
    let Some(lab) = Lab::of(3).rate_mbit(RATE_MBIT).build() else { return };
    let [near, far, router] = [0, 1, 2].map(|index| lab.host(index));
    far.sshd();
    near.hide_behind(router, false);
    far.lose_unknown(router);
    for beside in both_ways(near, far, far.address(), "near") {
        assert!(beside > MIB, "{beside}");
    }
}

/// Issue 4, the far end behind masquerade, ssh through a port forward: the far end dials.
#[test]
fn the_far_end_behind_masquerade() {
    let Some(lab) = Lab::of(3).rate_mbit(RATE_MBIT).build() else { return };
    let [near, far, router] = [0, 1, 2].map(|index| lab.host(index));
    far.sshd();
    far.hide_behind(router, true);
    near.lose_unknown(router);
    for beside in both_ways(near, far, router.address(), "far") {
        assert!(beside > MIB, "{beside}");
    }
}

/// Issue 4, both behind masquerade: ssh carries everything.
#[test]
fn both_ends_behind_masquerade() {
    let Some(lab) = Lab::of(4).rate_mbit(RATE_MBIT).build() else { return };
    let [near, far, router, other] = [0, 1, 2, 3].map(|index| lab.host(index));
    far.sshd();
    far.hide_behind(router, true);
    near.hide_behind(other, false);
    for beside in both_ways(near, far, router.address(), "both") {
        assert!(beside < DIALLING_BYTES, "{beside}");
    }
}

/// Issue 4 "direct path cut in mid-run … never a wait on a dead dial": the copy begins over ssh, moves to a direct path when
/// one opens, goes on over ssh when it vanishes, uses the direct path again when it is back, and ends well. Only the far
/// end can dial; once it wants the bytes, once it has them.
#[test]
fn paths_come_and_go() {
    for is_upload in [true, false] {
        let Some(lab) = Lab::of(3).rate_mbit(40).build() else { return };
        let [near, far, router] = [0, 1, 2].map(|index| lab.host(index));
        far.sshd();
        far.hide_behind(router, true);
        near.lose_unknown(router);
        near.allow_only_ssh();
        let (from, to) = if is_upload { (near, far) } else { (far, near) };
        // More than the phases below can use up at this rate.
        let source = from.file("source");
        data::write_random(&source, 400 * MIB, 1);
        let copy = to.directory("there").join("copy");
        let remote = |path: &Path| OsString::from(format!("root@{}:{}", router.address(), path.display()));
        let words = if is_upload {
            [source.clone().into_os_string(), remote(&copy)]
        } else {
            [remote(&source), copy.clone().into_os_string()]
        };
        let program = near.dray().arg("cp").args(far.ssh_options()).args(words);
        let running = program.time_limit(Duration::from_secs(300)).start();
        let grows = |is_ssh: bool| {
            let before = far.counters();
            running.wait_until(false, || {
                let carried = far.counters() - before;
                (if is_ssh { carried.ssh_bytes } else { carried.other_bytes() }) > 2 * MIB
            });
        };
        grows(true);
        for _ in 0..2 {
            near.allow_everything();
            grows(false);
            near.allow_only_ssh();
            grows(true);
        }
        near.allow_everything();
        grows(false);
        lab.lift_rate();
        running.wait().expect(0);
        assert_delivered(&source, &copy, None);
    }
}
