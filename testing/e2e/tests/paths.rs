//! What lies between the hosts of a `dray cp`: firewalls that swallow packets, masquerade, port forwards, and paths that come
//! and go. Counters of the network devices say which way the bytes went.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_e2e::actions::{assert_delivered, assert_same_tree};
use dray_e2e::counters::Counters;
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, Running, gate};

/// At this rate a copy lasts for as long as a test needs to see what it waits for; then the limit is lifted.
const RATE_MBIT: u32 = 20;
/// What dialling, handshakes and the packets of the lab itself may cost beside ssh.
const DIALLING_BYTES: u64 = 256 * 1024;

/// What is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    File,
    /// A directory with the same bytes in a few large files and many small ones.
    Tree,
}

/// A copy from one host to the other, by a command on `near` that reaches `far` by ssh at `address`.
struct Copy<'a> {
    what: What,
    to: &'a Host,
    source: PathBuf,
    copy: PathBuf,
    running: Running,
}

impl<'a> Copy<'a> {
    fn start(
        near: &'a Host,
        far: &'a Host,
        address: Ipv4Addr,
        is_upload: bool,
        what: What,
        size: u64,
    ) -> Copy<'a> {
        let (from, to) = if is_upload { (near, far) } else { (far, near) };
        let source = from.file(format!("source-{is_upload}-{what:?}"));
        match what {
            What::File => data::write_random(&source, size, 1),
            What::Tree => write_mixed_tree(&source, size),
        }
        let copy = to.file(format!("there-{is_upload}-{what:?}-{}-{}", near.address(), far.address()));
        std::fs::create_dir(&copy).unwrap();
        let copy = copy.join("copy");
        let remote = |path: &Path| OsString::from(format!("root@{address}:{}", path.display()));
        let words = if is_upload {
            [source.clone().into_os_string(), remote(&copy)]
        } else {
            [remote(&source), copy.clone().into_os_string()]
        };
        let program = near.dray().arg("cp").args(far.ssh_options());
        let program = if what == What::Tree { program.arg("-a") } else { program }.args(words);
        let running = program.time_limit(Duration::from_secs(600)).start();
        Copy { what, to, source, copy, running }
    }

    /// Waits until `host` has carried 1 MiB more, over ssh or beside it.
    fn await_growth(&self, host: &Host, is_ssh: bool) {
        let before = host.counters();
        let began = Instant::now();
        self.running.wait_until(false, || {
            let carried = host.counters() - before;
            (if is_ssh { carried.ssh_bytes } else { carried.other_bytes() }) > MIB
        });
        eprintln!("{} after {:.1?}", if is_ssh { "ssh" } else { "direct" }, began.elapsed());
    }

    /// Waits for its end; how long that took.
    fn finish(self) -> Duration {
        let began = Instant::now();
        let ended = self.running.wait().expect(0);
        let took = began.elapsed();
        eprintln!("ended {took:.1?} later, after {:.1?} in all", ended.elapsed);
        match self.what {
            What::File => assert_delivered(&self.source, &self.copy, None),
            What::Tree => assert_same_tree(self.to, &self.source, &self.copy, None),
        }
        took
    }
}

/// Small files: so many that they fill many batches; with `DRAY_E2E_FULL=1` as many as the issue says.
fn files() -> u32 {
    gate::sized(2_000, 10_000) as u32
}

/// Makes a tree of small files on each of the hosts, and copies it to the other by a command on `near` that reaches `far` by ssh
/// at `address`. What `far` carries each time, both directions together, is given to `carried`.
fn copy_trees(near: &Host, far: &Host, address: Ipv4Addr, carried: impl Fn(Counters)) {
    for is_upload in [true, false] {
        let (from, to) = if is_upload { (near, far) } else { (far, near) };
        let tree = from.file("tree");
        if !tree.exists() {
            write_small_files(&tree);
        }
        let copy = to.file(format!("trees-{is_upload}-{}-{}", near.address(), far.address()));
        let remote = |path: &Path| OsString::from(format!("root@{address}:{}", path.display()));
        let words = if is_upload {
            [tree.clone().into_os_string(), remote(&copy)]
        } else {
            [remote(&tree), copy.clone().into_os_string()]
        };
        let before = far.counters();
        let program = near.dray().args(["cp", "-a"]).args(far.ssh_options()).args(words);
        let ended = program.time_limit(Duration::from_secs(60)).run().expect(0);
        eprintln!("{} files in {:.1?}", files(), ended.elapsed);
        carried(far.counters() - before);
        assert_same_tree(to, &tree, &copy, None);
    }
}

/// A tenth of `size` bytes in small files, the rest in two large ones.
fn write_mixed_tree(tree: &Path, size: u64) {
    std::fs::create_dir_all(tree.join("small")).unwrap();
    for name in ["a", "z"] {
        data::write_random(&tree.join(name), size / 20 * 9, 1);
    }
    for number in 0..size / 10 / 8192 {
        std::fs::write(tree.join(format!("small/{number}")), data::random_bytes(8192, number)).unwrap();
    }
}

fn write_small_files(tree: &Path) {
    for number in 0..files() {
        let directory = tree.join(format!("{:03}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir_all(&directory).unwrap();
        }
        std::fs::write(directory.join(format!("{number:05}")), data::random_bytes(1024, number.into()))
            .unwrap();
    }
}

/// Both ways, one file and a tree.
const BOTH: [(bool, What); 4] =
    [(true, What::File), (false, What::File), (true, What::Tree), (false, What::Tree)];

/// Both ways, a direct connection comes up while the copy runs.
fn assert_direct(lab: &Lab, near: &Host, far: &Host, address: Ipv4Addr) {
    for (is_upload, what) in BOTH {
        lab.limit_rate(RATE_MBIT);
        let before = far.counters();
        let copy = Copy::start(near, far, address, is_upload, what, 150 * MIB);
        copy.await_growth(far, false);
        lab.lift_rate();
        let ended = copy.finish();
        assert!(ended < Duration::from_secs(20), "the end waits for a dead path: {ended:.1?}");
        // What ssh was asked for before is what it may still carry; of a tree it brings its share until the others are known to be fast.
        let carried = far.counters() - before;
        let least = if matches!(what, What::File) { 75 * MIB } else { 38 * MIB };
        assert!(carried.other_bytes() > least, "{what:?}: {carried:?}");
    }
    copy_trees(near, far, address, |carried| eprintln!("{carried:?}"));
}

/// Both ways, everything goes over ssh.
fn assert_ssh_only(near: &Host, far: &Host, address: Ipv4Addr) {
    for (is_upload, what) in BOTH {
        let before = far.counters();
        Copy::start(near, far, address, is_upload, what, 16 * MIB).finish();
        let carried = far.counters() - before;
        assert!(carried.ssh_bytes > 16 * MIB && carried.other_bytes() < DIALLING_BYTES, "{carried:?}");
    }
    copy_trees(near, far, address, |carried| {
        let payload_bytes = u64::from(files()) * 1024;
        assert!(carried.ssh_bytes > payload_bytes && carried.other_bytes() < DIALLING_BYTES, "{carried:?}");
    });
}

/// Issue 4 "direct possible: each both ways": what ssh began goes on over direct connections.
#[test]
fn an_open_network_is_used() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (near, far) = lab.pair();
    assert_direct(&lab, near, far, far.address());
}

/// Issue 4 "everything but port 22 dropped (SYNs vanish, not refused)", at either end and at both.
#[test]
fn nothing_but_ssh_gets_through() {
    let Some(lab) = Lab::of(3).build() else { return };
    let [one, two, three] = [0, 1, 2].map(|index| lab.host(index));
    two.allow_only_ssh();
    three.allow_only_ssh();
    for (near, far) in [(one, two), (two, one), (two, three)] {
        assert_ssh_only(near, far, far.address());
    }
}

/// Issue 4 "local end behind masquerade": it dials out, whichever way the data goes.
#[test]
fn the_near_end_behind_masquerade() {
    let Some(lab) = Lab::of(3).build() else { return };
    let [near, far, router] = [0, 1, 2].map(|index| lab.host(index));
    far.sshd();
    near.hide_behind(router, false);
    far.lose_unknown(router);
    assert_direct(&lab, near, far, far.address());
}

/// Issue 4, the far end behind masquerade, ssh through a port forward: the far end dials.
#[test]
fn the_far_end_behind_masquerade() {
    let Some(lab) = Lab::of(3).build() else { return };
    let [near, far, router] = [0, 1, 2].map(|index| lab.host(index));
    far.sshd();
    far.hide_behind(router, true);
    near.lose_unknown(router);
    assert_direct(&lab, near, far, router.address());
}

/// Issue 4, both behind masquerade: ssh carries everything.
#[test]
fn both_ends_behind_masquerade() {
    let Some(lab) = Lab::of(4).build() else { return };
    let [near, far, router, other] = [0, 1, 2, 3].map(|index| lab.host(index));
    far.sshd();
    far.hide_behind(router, true);
    near.hide_behind(other, false);
    assert_ssh_only(near, far, router.address());
}

/// Issue 4 "direct path cut in mid-run … never a wait on a dead dial": the copy begins over ssh, moves to a direct path when
/// one opens, goes on over ssh when it vanishes, uses the direct path again when it is back, and ends well. Only the far
/// end can dial; once it wants the bytes, once it has them.
#[test]
fn paths_come_and_go() {
    for (is_upload, what) in BOTH {
        let Some(lab) = Lab::of(3).rate_mbit(RATE_MBIT).build() else { return };
        let [near, far, router] = [0, 1, 2].map(|index| lab.host(index));
        far.sshd();
        far.hide_behind(router, true);
        near.lose_unknown(router);
        near.allow_only_ssh();
        let copy = Copy::start(near, far, router.address(), is_upload, what, 250 * MIB);
        copy.await_growth(far, true);
        for _ in 0..2 {
            near.allow_everything();
            copy.await_growth(far, false);
            near.allow_only_ssh();
            copy.await_growth(far, true);
        }
        lab.lift_rate();
        let ended = copy.finish();
        assert!(ended < Duration::from_secs(20), "the end waits for a dead path: {ended:.1?}");
    }
}
