//! `dray sync -a --delete` over ssh, both ways, when something breaks: names that vanish, files that change, a full disk, what may not be read, a
//! connection that is cut, ends that are killed. Every file is wholly old or wholly new then, and what is to go is still there; once the cause is
//! gone the same command does all. Within a host: `sync_delete.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dray_e2e::actions::{NOBODY, await_no_dray};
use dray_e2e::data::{self, MIB};
use dray_e2e::live::tool;
use dray_e2e::sweep::signal;
use dray_e2e::twins::{LONG, Way, going, start, write};
use dray_e2e::versions::{Phase, Versions};
use dray_e2e::{Host, Lab, Outcome, Running, gate};
use dray_lab::Change;
use dray_lab::conditions::{Condition, LAN};
use dray_lab::{Link, Rate};
use rustix::process::Signal;

const DELETING: &[&str] = &["-a", "--delete"];

/// Both directions, with the host that has the source and that which has the copy. The command always runs on the first host.
fn ways<'a>(a: &'a Host, b: &'a Host) -> [(&'static str, Way<'a>, &'a Host, &'a Host); 2] {
    [("up", Way::Up(b), a, b), ("down", Way::Down(b), b, a)]
}

/// Two versions of a tree at the host with the source, and the older one at the other.
fn prepare(name: &str, from: &Host, to: &Host, backlog: u64) -> (Versions, PathBuf) {
    let versions = Versions::of(&from.directory(&format!("versions-{name}")), backlog);
    let copy = to.file(format!("copy-{name}"));
    versions.copy(&copy);
    (versions, copy)
}

/// The same command again, which now does all.
#[track_caller]
fn finish(a: &Host, way: &Way<'_>, versions: &Versions, copy: &Path) {
    start(a, way, DELETING, &versions.new, copy).wait().expect(0);
    versions.assert_arrived(a, copy);
}

#[track_caller]
fn assert_told(outcome: &Outcome, names: &[&str]) {
    let text = outcome.stderr_text();
    for name in names {
        assert!(text.lines().any(|line| line.contains(name)), "{name} is not told of: {outcome}");
    }
    assert!(text.contains("nothing was deleted"), "{outcome}");
    assert!(!outcome.stdout_text().contains("*deleting"), "{outcome}");
}

/// Issue 7 "vanished-source", S81: names that go after they were told and before they are read are told (exit 8), nothing is deleted, and what
/// was there under those names stays.
#[test]
fn what_vanishes_meanwhile_deletes_nothing() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (name, way, from, to) in ways(a, b) {
        let (versions, copy) = prepare(name, from, to, 2 * MIB);
        let before = Versions { old: versions.old.clone(), new: from.file(format!("before-{name}")) };
        from.program("cp").arg("-a").arg(&versions.new).arg(&before.new).run().expect(0);
        let running = start(a, &way, &["-a", "--delete", "-i"], &versions.new, &copy);
        running.wait_until(false, || copy.join("a/0").exists());
        for gone in ["large/1", "small/07", "z"] {
            fs::remove_file(versions.new.join(gone)).unwrap();
        }
        fs::remove_dir_all(versions.new.join("now")).unwrap();
        let outcome = running.wait().expect(8);
        assert_told(&outcome, &["large/1"]);
        let renewed = before.assert_old_or_new(&copy, Phase::Coming, &[]);
        assert!(renewed > 80, "{renewed} new: what did not vanish comes");
        data::assert_same(&copy.join("large/1"), &versions.old.join("large/1"));
        finish(a, &way, &versions, &copy);
    }
}

/// Ends what waits for this when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Turns bits of a file over, one after the other, until it is told to end; which ones.
fn keep_changing(path: &Path, is_over: &AtomicBool) -> Vec<u64> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let mut places = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        let at = places.len() as u64 * 7_919 % len;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        places.push(at);
        // More often than the file is read, also out of memory into empty buffers.
        std::thread::sleep(Duration::from_millis(1));
    }
    places
}

/// Issue 7 "changed-source", S5: files that are written in place, replaced, cut short and appended to while the run goes on arrive as they were at
/// some moment, or stay; one that never holds still is told (exit 8), and nothing is deleted.
#[test]
fn what_changes_meanwhile_is_old_or_new() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (name, way, from, to) in ways(a, b) {
        let (versions, copy) = prepare(name, from, to, 2 * MIB);
        let source = |path: &str| versions.new.join(path);
        let changing = ["large/0", "large/1", "large/2", "small/09", "z"];
        let mut states: Vec<Vec<Vec<u8>>> = changing.map(|path| vec![fs::read(source(path)).unwrap()]).into();
        let restless = fs::read(source("large/1")).unwrap();
        let is_over = AtomicBool::new(false);
        let (outcome, places) = std::thread::scope(|scope| {
            // From before the run, which may come to it soon.
            let places = scope.spawn(|| keep_changing(&source("large/1"), &is_over));
            let over = Over(&is_over);
            let running = start(a, &way, DELETING, &versions.new, &copy);
            running.wait_until(false, || copy.join("a/0").exists());
            File::options().write(true).open(source("large/0")).unwrap().set_len(MIB + 5).unwrap();
            data::write_random(&source("replacement"), 2 * MIB, 31);
            fs::rename(source("replacement"), source("large/2")).unwrap();
            write(&source("small/09"), b"other bytes", 77);
            let file = File::options().write(true).open(source("z")).unwrap();
            file.write_all_at(b"appended", file.metadata().unwrap().len()).unwrap();
            let outcome = running.wait();
            drop(over);
            (outcome, places.join().unwrap())
        });
        let outcome = outcome.expect(8);
        assert_told(&outcome, &["large/1"]);
        versions.assert_old_or_new(&copy, Phase::Coming, &changing);
        for (path, states) in changing.iter().zip(&mut states) {
            states.push(fs::read(versions.old.join(path)).unwrap_or_default());
            states.push(fs::read(source(path)).unwrap());
            let there = fs::read(copy.join(path)).unwrap_or_default();
            let mut is_known = states.contains(&there);
            if *path == "large/1" {
                let mut state = restless.clone();
                for at in &places {
                    state[*at as usize] ^= 1;
                    is_known |= state == there;
                }
            }
            assert!(is_known, "{name}: {path} was never like this, {} bytes", there.len());
        }
        finish(a, &way, &versions, &copy);
    }
}

/// Issue 7 "full-disk", S81, both ways: exit 7, and the same command goes on when there is room.
#[test]
fn a_full_disk_leaves_old_or_new() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    // Before sshd starts, which sees what is mounted then. The lab unmounts them.
    let mounts = ways(a, b).map(|(name, _, _, to)| {
        let mount = to.directory(&format!("disk-{name}"));
        tool(&["mount", "-t", "tmpfs", "-o", "size=11m", "tmpfs", mount.to_str().unwrap()]);
        mount
    });
    b.sshd();
    for ((name, way, from, _), mount) in ways(a, b).into_iter().zip(mounts) {
        let versions = Versions::of(&from.directory(&format!("versions-{name}")), MIB);
        let copy = mount.join("copy");
        versions.copy(&copy);
        let outcome = start(a, &way, DELETING, &versions.new, &copy).wait().expect(7);
        let renewed = versions.assert_old_or_new(&copy, Phase::Coming, &[]);
        eprintln!("{name}: {renewed} paths are new after {:.2?}", outcome.elapsed);
        // Full still, and nothing is lost by trying again.
        start(a, &way, DELETING, &versions.new, &copy).wait().expect(7);
        versions.assert_old_or_new(&copy, Phase::Coming, &[]);
        tool(&["mount", "-o", "remount,size=64m", mount.to_str().unwrap()]);
        finish(a, &way, &versions, &copy);
    }
}

/// Issue 7 "`--delete` against a source with an unreadable directory deletes nothing below it", at whichever end the user is who may not read
/// it: nor anything elsewhere; what may be read comes.
#[test]
fn an_unreadable_directory_deletes_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let user = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    for (name, way, from, to) in ways(a, b) {
        let (versions, copy) = prepare(name, from, to, 1000);
        let home = from.directory(&format!("home-{name}"));
        // The account may not look into every directory that a build lies in.
        let program = home.join("dray");
        fs::copy(gate::dray_binary(), &program).unwrap();
        let script = home.join("as-user");
        let variables = format!("export HOME={0} DRAY_DATA_DIR={0}/data", home.display());
        fs::write(&script, format!("#!/bin/sh\n{variables}\nexec {user} {} \"$@\"\n", program.display()))
            .unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        // Of a key of somebody else's ssh does not ask who may read it.
        fs::set_permissions(b.sshd().client_key(), fs::Permissions::from_mode(0o644)).unwrap();
        let owner = format!("{NOBODY}:{NOBODY}");
        a.program("chown").args(["-R", &owner]).arg(&home).arg(&versions.new).run().expect(0);
        let run = || -> Running {
            let program = match way {
                Way::Down(_) => {
                    fs::set_permissions(b.sshd().client_key(), fs::Permissions::from_mode(0o600)).unwrap();
                    a.dray().arg("sync").arg("--rsync-path").arg(&script)
                }
                _ => a.program(&script).arg("sync"),
            };
            let program = program.args(["-a", "--delete", "-i"]).time_limit(LONG);
            going(program, &way, versions.new.join("").as_os_str(), &copy).start()
        };
        let closed = versions.new.join("large");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let outcome = run().wait().expect(8);
        assert_told(&outcome, &["large"]);
        let renewed = versions.assert_old_or_new(&copy, Phase::Coming, &[]);
        assert!(renewed > 80, "{renewed} new: what may be read comes");
        let [below, before] = [&copy, &versions.old].map(|root| data::names_below(&root.join("large")));
        assert_eq!(below, before);
        for path in below {
            data::assert_same(&copy.join("large").join(&path), &versions.old.join("large").join(&path));
        }
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
        dray_e2e::twins::set_times(&versions.new, 10);
        run().wait().expect(0);
        versions.assert_arrived(a, &copy);
    }
}

/// A link that can be cut, at which the run takes a second or two.
const CUTTABLE: Condition = Condition {
    up: Link::new(Rate::mbit(60), Duration::from_millis(1)).with_queue(dray_lab::Queue::Bytes(256 << 10)),
    down: Link::new(Rate::mbit(60), Duration::from_millis(1)).with_queue(dray_lab::Queue::Bytes(256 << 10)),
    ..LAN
};

/// Issue 7 "interrupted", S81, S10: nothing comes through any more; ssh alone is killed, here; what serves it there. Both ends end by themselves,
/// with an error here.
#[test]
fn a_cut_connection_leaves_old_or_new() {
    let Some(lab) = Lab::of(2).condition(CUTTABLE).build() else { return };
    let (a, b) = lab.pair();
    let sshd = b.sshd();
    for (name, way, from, to) in ways(a, b) {
        for cut in ["line", "ssh", "sshd"] {
            let (versions, copy) = prepare(&format!("{name}-{cut}"), from, to, MIB);
            let running = start(a, &way, &["-a", "--delete", "--timeout=2"], &versions.new, &copy);
            running.wait_until(false, || copy.join("a/1").exists());
            let set_up =
                |is_up| [(0, 1), (1, 0)].map(|(one, other)| lab.change(one, other, Change::Up(is_up)));
            match cut {
                "line" => _ = set_up(false),
                "ssh" => a.pids_of("ssh").into_iter().for_each(|pid| signal(pid, Signal::KILL)),
                _ => sshd.sessions(b).into_iter().for_each(|pid| signal(pid, Signal::KILL)),
            }
            let outcome = running.wait();
            assert_eq!(outcome.code(), Some(5), "{name}, {cut}: {outcome}");
            outcome.assert_manners();
            await_no_dray(b, LONG);
            _ = set_up(true);
            versions.assert_old_or_new(&copy, Phase::Coming, &[]);
            finish(a, &way, &versions, &copy);
        }
    }
}

/// When an end is killed: what it is called, how far the run may have come, and whether the processes of the receiver have come to it.
type Moment<'a> = (&'static str, Phase, &'a dyn Fn(&[u32]) -> bool);

/// Issue 7 "interrupted", S14, S18, S81: either end is killed at one moment after the other, each time further: when nothing has come yet, among
/// small files, in a large one that is put together with its older version, when the first name is deleted. The next run does all.
#[test]
fn killed_again_and_again_it_is_old_or_new() {
    const EXTRAS: usize = 6000;
    let Some(lab) = Lab::of(2).rate_mbit(60).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (name, way, from, to) in ways(a, b) {
        for kills_far in [false, true] {
            let (versions, copy) = prepare(&format!("{name}-{kills_far}"), from, to, MIB / 2);
            let fill = |root: &Path| {
                let many = root.join("many");
                fs::create_dir_all(&many).unwrap();
                (0..EXTRAS).for_each(|number| fs::write(many.join(number.to_string()), b"extra").unwrap());
            };
            [&versions.old, &copy].into_iter().for_each(|root| fill(root));
            let len = |root: &Path, name: &str| fs::metadata(root.join("small").join(name)).unwrap().len();
            let is_renewed = |name: &str| len(&copy, name) == len(&versions.new, name);
            let left = || fs::read_dir(copy.join("many")).map_or(0, Iterator::count);
            let changed = || fs::metadata(copy.join("many")).ok().map(|many| many.modified().unwrap());
            let untouched = Cell::new(changed());
            let moments: [Moment<'_>; 5] = [
                ("connected", Phase::Coming, &|_| true),
                ("small ones", Phase::Coming, &|_| ["01", "13", "37"].iter().any(|name| is_renewed(name))),
                ("a new one", Phase::Coming, &|_| copy.join("a/2").exists()),
                ("a large one", Phase::Coming, &|pids| pids.iter().any(|pid| writes_large(*pid))),
                ("deleting", Phase::Deleting, &|_| changed() != untouched.get()),
            ];
            // Of a busy machine all may be gone before the kill: once more then.
            let again = [moments[4]; 4];
            for (moment, phase, has_come) in moments.into_iter().chain(again) {
                if matches!(phase, Phase::Deleting) {
                    if (1..EXTRAS).contains(&left()) {
                        break;
                    }
                    fill(&copy);
                    untouched.set(changed());
                }
                let running = start(a, &way, DELETING, &versions.new, &copy);
                running.wait_until(false, || !b.pids_of("dray").is_empty());
                let (near, far) = (vec![running.pid()], b.pids_of("dray"));
                let receiver = if matches!(way, Way::Up(_)) { &far } else { &near };
                running.wait_until(false, || has_come(receiver));
                let killed = if kills_far { &far } else { &near };
                killed.iter().for_each(|pid| signal(*pid, Signal::KILL));
                assert_ne!(running.wait().code(), Some(0), "{name}, far {kills_far}, {moment}");
                await_no_dray(b, LONG);
                let renewed = versions.assert_old_or_new(&copy, phase, &[]);
                eprintln!("{name}, far {kills_far}, {moment}: {renewed} new, {} extras", left());
            }
            assert!((1..EXTRAS).contains(&left()), "it was killed too late to tell anything");
            finish(a, &way, &versions, &copy);
        }
    }
}

/// True while the process writes a large file that has no name yet.
fn writes_large(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut found = files.filter_map(|file| fs::metadata(file.path()).ok());
    found.any(|file| file.is_file() && file.nlink() == 0 && file.len() > MIB)
}
