//! `dray sync --inplace` on disks that are full: each file stays the old one, or becomes the new one. Witnesses are the file systems themselves, on loop devices and in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use dray_e2e::data;
use dray_e2e::inplace::{left, traced};
use dray_e2e::live::{mounted, tool};
use dray_e2e::twins::{time, write};
use dray_e2e::{Lab, Program, gate};

/// Issue 7 "full-disk runs leave every file either old or new", S86: also a file that is changed, which grows, or gets bytes where it has holes; of a full disk nothing more is taken, and once there is
/// room the same command changes it.
#[test]
fn a_full_disk_leaves_the_old_file() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    let [old, new] = [1, 2].map(|seed| data::random_bytes(8 << 20, seed));
    for kind in ["tmpfs", "ext4", "xfs", "btrfs"] {
        // Bytes for bytes take room only where those go to other blocks: always, or as the backup shares these.
        let other = match kind {
            "btrfs" => Some(("other", 0..0, &[][..])),
            "xfs" => Some(("other", 0..0, &["-b"][..])),
            _ => None,
        };
        let cases =
            [("grows", 0..0, &[][..]), ("filled", 2 << 20..6 << 20, &[]), ("kept", 0..0, &["-b"][..])];
        for (name, holes, options) in cases.into_iter().chain(other) {
            // One of its own each: what was removed is free a while later.
            let own = format!("{kind}-{name}");
            let place = if kind == "tmpfs" {
                let place = a.directory(&own);
                tool(&["mount", "-t", "tmpfs", "tmpfs", place.to_str().unwrap()]);
                place
            } else {
                let reserved: &[&str] = match kind {
                    "ext4" => &["-F", "-m", "0"],
                    "btrfs" => &["-M"],
                    _ => &[],
                };
                let make = format!("mkfs.{kind}");
                mounted(a, &own, &[&[make.as_str(), "-q"], reserved].concat(), 320 << 20)
            };
            let copy = place.join("copy");
            let old = if ["grows", "kept"].contains(&name) { &old[..4 << 20] } else { &old };
            write(&source.join(name), &new, 0);
            write(&copy.join(name), old, -100);
            let there = fs::File::options().write(true).open(copy.join(name)).unwrap();
            if !holes.is_empty() {
                there.set_len(holes.start as u64).unwrap();
                there.set_len(old.len() as u64).unwrap();
                there.write_all_at(&old[holes.end..], holes.end as u64).unwrap();
                there.set_modified(time(-100)).unwrap();
            }
            let before = fs::read(copy.join(name)).unwrap();
            // There is room for what the file takes, and not for its backup as well: an older one stays.
            let kept = format!("{name}~");
            let has_older = name == "kept";
            let older = has_older.then(|| (kept.clone(), b"older".to_vec()));
            if let Some((kept, older)) = &older {
                write(&copy.join(kept), older, -200);
            }
            let spare = if has_older { 14 << 20 } else { 9 << 20 };
            let seen = || {
                let found = fs::metadata(copy.join(name)).unwrap();
                (found.ino(), found.len(), found.blocks(), found.mtime(), found.mode())
            };
            there.sync_all().unwrap();
            let was = seen();
            // Else room for what comes beside it, and for no more than a quarter of what it is to get.
            let ballast = fs::File::create(place.join("ballast")).unwrap();
            let free = || {
                let found = rustix::fs::statvfs(&place).unwrap();
                found.f_bavail * found.f_frsize
            };
            if kind == "tmpfs" {
                let taken = rustix::fs::statvfs(&place).map(|it| (it.f_blocks - it.f_bfree) * it.f_frsize);
                let size = format!("remount,size={}", taken.unwrap() + spare);
                tool(&["mount", "-o", &size, place.to_str().unwrap()]);
            } else {
                let flags = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&ballast, flags, 0, free() - spare).unwrap();
            }
            let room = free();
            let dray = || a.dray().args(["sync", "-a", "--inplace"]).args(options);
            let run = || dray().arg(source.join(name)).arg(&copy).run();
            for _ in 0..2 {
                let said = run().expect(7);
                // Btrfs may not have what it says to have, and then what comes finds no room either.
                let is_tried = said.stderr_text().contains("to be written to the file");
                assert!(is_tried || kind == "btrfs", "{kind} {name}: {said}");
                assert!(fs::read(copy.join(name)).unwrap() == before, "{kind} {name}: {said}");
                assert_eq!(seen(), was, "{kind} {name}: {said}");
                let is_free = free() + (64 << 10) > room;
                assert!(is_free || kind == "btrfs", "{kind} {name}: {} of {room}", free());
            }
            let others = || {
                let names = data::names(&copy).into_iter().map(|it| it.into_string().unwrap());
                let read = |it: String| (it.clone(), fs::read(copy.join(it)).unwrap());
                names.filter(|it| it != name).map(read).collect::<Vec<_>>()
            };
            assert!(others().into_iter().eq(older), "{kind} {name}: {:?}", data::names(&copy));
            drop(ballast);
            fs::remove_file(place.join("ballast")).unwrap();
            rustix::fs::syncfs(fs::File::open(&place).unwrap()).unwrap();
            if kind == "tmpfs" {
                tool(&["mount", "-o", "remount,size=64m", place.to_str().unwrap()]);
            }
            run().expect(0);
            assert!(fs::read(copy.join(name)).unwrap() == new, "{kind} {name}");
            assert_eq!((seen().0, seen().1), (was.0, new.len() as u64), "{kind} {name}");
            let is_kept = options.contains(&"-b").then_some((kept, before));
            assert!(others().into_iter().eq(is_kept), "{kind} {name}: {:?}", data::names(&copy));
        }
    }
}

/// S86: room is tried for where the file has no bytes, as the file was not given it there, nor is what it was given elsewhere room for that; where its blocks are its own alone they take none, and in an
/// overlay its disk is that of what changed.
#[test]
fn room_is_tried_where_it_is_needed() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    let script = r#"
        set -e; kind=$1; place=$2; mkdir -p "$place"; cd "$place"
        free() { stat -f -c "%a %S" at | { read -r blocks size; echo $((blocks * size)); }; }
        disk() { truncate -s 400M image; "mkfs.$1" -q $2 image; mkdir at; mount -o loop image at; }
        case $kind in
            given) disk xfs; fallocate -l 8M at/f; truncate -s 16M at/f;
                   printf old | dd of=at/f bs=1 seek=9000000 conv=notrunc status=none; truncate -s 8M new; head -c 8M /dev/urandom >>new; leave=10240;;
            clusters) disk ext4 "-F -m 0 -O bigalloc -C 65536"; truncate -s 16M at/f; truncate -s 16M new; i=0;
                   while [ $i -lt 128 ]; do dd if=/dev/urandom of=new bs=4k count=1 seek=$((i * 32)) conv=notrunc status=none; i=$((i + 1)); done; leave=12288;;
            elsewhere) disk xfs; head -c 16M /dev/urandom >at/f; head -c 16M /dev/urandom >new; leave=20480;;
            unshared) disk xfs "-m reflink=0"; head -c 16M /dev/urandom >at/f; head -c 16M /dev/urandom >new; leave=36864;;
            pieces) disk ext4 "-F -m 0"; truncate -s 6M at/f; i=0;
                   head -c 6M /dev/urandom >new; while [ $i -lt 768 ]; do dd if=new of=at/f bs=4k count=1 skip=$((i * 2)) seek=$((i * 2)) conv=notrunc status=none; i=$((i + 1)); done; leave=9232;;
            tight) disk xfs; head -c 512K /dev/urandom >at/f; head -c 1536K /dev/urandom >new; leave=1552;;
            anew) disk btrfs; head -c 16M /dev/urandom >at/f; head -c 16M /dev/urandom >new; leave=24576;;
            overlay) mkdir lower upper at; mount -t tmpfs tmpfs lower; mount -t tmpfs tmpfs upper; mkdir upper/u upper/w; head -c 4M /dev/urandom >lower/f;
                   touch -d 2001-01-01 lower/f; cp lower/f old; mount -t overlay overlay -o lowerdir=lower,upperdir=upper/u,workdir=upper/w at; head -c 8M /dev/urandom >new;
                   touch at/other; used=$(stat -f -c "%b %f %S" upper | { read -r all free size; echo $(((all - free) * size)); }); leave=;
                   mount -o "remount,size=$((used + (13 << 20)))" upper;;
        esac
        if [ -n "$leave" ]; then
            touch -d 2001-01-01 at/f; cp --sparse=never at/f old
            # What is in memory of it tells more of where it has blocks.
            umount at; mount -o loop image at
            fallocate -l $(($(free) - (leave << 10))) at/ballast; sync -f at
        fi
    "#;
    // With 0 the file is the new one, with 7 the old one.
    let cases: [(&str, &[&str], i32); 8] = [
        ("given", &[], 7),
        ("clusters", &[], 7),
        ("elsewhere", &["-b", "--backup-dir=../kept"], 0),
        ("unshared", &["-b"], 0),
        ("pieces", &[], 7),
        ("tight", &[], 7),
        ("anew", &[], 7),
        ("overlay", &[], 7),
    ];
    for (kind, options, code) in cases {
        let place = source.join(kind);
        tool(&["bash", "-c", script, "bash", kind, place.to_str().unwrap()]);
        let to = place.join("at/f");
        let [old, new] = ["old", "new"].map(|name| fs::read(place.join(name)).unwrap());
        let dray = a.dray().args(["sync", "-a", "--inplace"]).args(options);
        let said = dray.arg(place.join("new")).arg(&to).run();
        let now = fs::read(&to).unwrap();
        assert!(now == if code == 0 { new } else { old }, "{kind}: neither, or not what it is to be: {said}");
        assert_eq!(said.code(), Some(code), "{kind}: {said}");
        let names = data::names(&place.join("at"));
        assert!(!names.iter().any(|name| data::is_ours(name)), "{kind}: {names:?}");
    }
}

/// S86: what a run that was killed left neither old nor new takes room for the file once more to come to its end, and no more, though it grows: what waits beside it goes first.
#[test]
fn what_was_begun_is_ended_in_the_room_of_one() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, place) = (a.directory("source"), a.directory("place"));
    tool(&["mount", "-t", "tmpfs", "tmpfs", place.to_str().unwrap()]);
    let [old, new] = [1, 2].map(|seed| data::random_bytes(8 << 20, seed));
    write(&source.join("f"), &new, 0);
    write(&place.join("f"), &old[..4 << 20], -100);
    let run =
        |program: Program<'_>| program.args(["-a", "--inplace"]).arg(source.join("f")).arg(&place).run();
    let killed = run(traced(a, &place.join("f"), &a.file("log"), Some(3)));
    assert_ne!(killed.code(), Some(0), "{killed}");
    let half = fs::read(place.join("f")).unwrap();
    assert!(half != new && half[..4 << 20] != old[..4 << 20] && fs::read(left(&place)).unwrap() == new);
    let taken = rustix::fs::statvfs(&place).map(|it| (it.f_blocks - it.f_bfree) * it.f_frsize).unwrap();
    let size = format!("remount,size={}", taken + (9 << 20));
    tool(&["mount", "-o", &size, place.to_str().unwrap()]);
    run(a.dray().arg("sync")).expect(0);
    assert!(fs::read(place.join("f")).unwrap() == new);
    assert_eq!(data::names(&place), ["f"]);
}

/// S86: on XFS a hole, too, takes blocks for what tells of it, and of a file that was read before there may be room for each byte and none for that: where pieces of data and holes change places the file is
/// the old or the new one all the same, whatever room there is.
#[test]
fn pieces_and_holes_change_places_on_a_full_disk() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    let place = mounted(a, "place", &["mkfs.xfs", "-q"], 320 << 20);
    let (pieces, piece) = (128, 4096);
    let [old, new] = [0, 1].map(|odd| {
        let mut content = data::random_bytes(2 * pieces * piece, odd + 1);
        content
            .chunks_mut(piece)
            .enumerate()
            .filter(|(at, _)| at % 2 != odd as usize)
            .for_each(|(_, it)| it.fill(0));
        content
    });
    let make = |path: &Path, content: &[u8]| {
        let file = fs::File::create(path).unwrap();
        file.set_len(content.len() as u64).unwrap();
        for (at, it) in content.chunks(piece).enumerate().filter(|(_, it)| it[0..64] != [0; 64]) {
            file.write_all_at(it, (at * piece) as u64).unwrap();
        }
        file.sync_all().unwrap();
    };
    make(&source.join("f"), &new);
    let (mut olds, mut news) = (0, 0);
    for room in (0..=96).step_by(8).chain([256, 768, 4096]) {
        let copy = place.join("copy");
        let _ = fs::remove_dir_all(&copy);
        let _ = fs::remove_file(place.join("ballast"));
        fs::create_dir(&copy).unwrap();
        make(&copy.join("f"), &old);
        fs::File::open(copy.join("f")).unwrap().set_modified(time(-100)).unwrap();
        tool(&["sync", "-f", place.to_str().unwrap()]);
        let ballast = fs::File::create(place.join("ballast")).unwrap();
        let mut taken = 0;
        for step in (12..=26).rev().map(|bits| 1_u64 << bits) {
            let flags = rustix::fs::FallocateFlags::empty();
            while rustix::fs::fallocate(&ballast, flags, taken, step).is_ok() {
                taken += step;
            }
        }
        // As much as comes, and as has no bytes yet, and some more.
        ballast.set_len(taken - 2 * (pieces * piece) as u64 - (room << 10)).unwrap();
        ballast.sync_all().unwrap();
        tool(&["sync", "-f", place.to_str().unwrap()]);
        assert!(fs::read(copy.join("f")).unwrap() == old);
        let said = a.dray().args(["sync", "-a", "--inplace"]).arg(source.join("f")).arg(&copy).run();
        let now = fs::read(copy.join("f")).unwrap();
        let is_new = said.code() == Some(0);
        assert!(
            now == if is_new { &new } else { &old }[..],
            "{room} KiB more: neither, or not what it is to be: {said}"
        );
        assert!(is_new || said.code() == Some(7), "{room} KiB more: {said}");
        assert_eq!(data::names(&copy), ["f"], "{room} KiB more: {said}");
        *if is_new { &mut news } else { &mut olds } += 1;
    }
    assert!(olds > 0 && news > 0, "{olds} old, {news} new");
}

/// S86: a hole for which the file system has no room, or no quota, to note it becomes zeros, and one that a signal cut short is made again: what has begun comes to its end. No room, or quota, for
/// what is to be written leaves the old file.
#[test]
fn a_hole_without_room_becomes_zeros() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    let old = data::random_bytes(64 << 10, 1);
    let mut new = old.clone();
    new[8192..16384].fill(0);
    new[40960..49152].fill(0);
    new.extend(data::random_bytes(8192, 2));
    write(&source.join("f"), &new, 0);
    let holes = fs::File::options().write(true).open(source.join("f")).unwrap();
    for at in [8192, 40960] {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&holes, flags, at, 8192).unwrap();
    }
    holes.set_modified(time(0)).unwrap();
    let run = |name: &str, inject: Option<String>| {
        let (copy, log) = (a.directory(name), a.file(format!("{name}.log")));
        write(&copy.join("f"), &old, -100);
        let strace = a.program("strace").args(["-f", "-qq", "-e", "trace=fallocate", "-o"]).arg(&log);
        let strace = inject
            .iter()
            .fold(strace, |strace, inject| strace.arg("-e").arg(format!("inject=fallocate:{inject}")));
        let program = strace.arg(gate::dray_binary()).args(["sync", "-a", "--inplace"]);
        let said = program.arg(source.join("f")).arg(&copy).run();
        assert_eq!(data::names(&copy), ["f"], "{name}: {said}");
        (said, fs::read(copy.join("f")).unwrap(), fs::read_to_string(&log).unwrap())
    };
    let (said, now, log) = run("as it is", None);
    said.expect(0);
    assert!(now == new);
    let calls: Vec<_> = log.lines().collect();
    let first = 1 + calls.iter().position(|call| call.contains("PUNCH_HOLE")).expect("no hole was made");
    assert!(first > 1, "room is tried before: {log}");
    for (name, error, when) in [
        ("no room", "ENOSPC", format!("{first}+")),
        ("no quota", "EDQUOT", format!("{first}+")),
        ("no holes", "EOPNOTSUPP", format!("{first}+")),
        ("a signal", "EINTR", format!("{first}")),
    ] {
        let (said, now, log) = run(name, Some(format!("error={error}:when={when}")));
        assert!(log.contains(error) && now == new, "{name}: neither, or old: {said} {log}");
        said.expect(0);
    }
    for (name, error) in [("no room at all", "ENOSPC"), ("no quota at all", "EDQUOT")] {
        let (said, now, _) = run(name, Some(format!("error={error}:when=1")));
        assert!(now == old, "{name}: neither, or new: {said}");
        said.expect(7);
    }
}

/// S86, review S1 and S2: where what is written over goes to other blocks, as much room is asked for as differs, and some for what tells of it: not for what becomes a hole, not all of the file where
/// that is much of what is free and a byte differs; and none where the file says that its blocks are written over.
#[test]
fn no_more_room_is_asked_for_than_is_needed() {
    const SIZE: usize = 64 << 20;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = mounted(a, "place", &["mkfs.btrfs", "-q"], 400 << 20);
    let (source, old) = (a.directory("source"), data::random_bytes(SIZE, 1));
    let byte = |len: usize| {
        let mut new = old[..len].to_vec();
        new[len / 2] ^= 1;
        new
    };
    let all = data::random_bytes(SIZE, 2);
    let mib = 1 << 20;
    for (name, len, is_own, new, least, most) in [
        ("a byte of much", SIZE, false, byte(SIZE), mib / 2, mib),
        ("a byte of little", 4 << 20, false, byte(4 << 20), 4 * mib, 6 * mib),
        ("all", SIZE, false, all.clone(), 64 * mib, 67 * mib),
        ("a hole", SIZE, false, Vec::new(), 1, mib),
        ("its own blocks", SIZE, true, all, 0, 0),
    ] {
        let (from, to) = (source.join(name), place.join(name));
        fs::create_dir(&to).unwrap();
        if is_own {
            tool(&["chattr", "+C", to.to_str().unwrap()]);
        }
        write(&to.join("f"), &old[..len], -100);
        fs::create_dir(&from).unwrap();
        if new.is_empty() {
            fs::File::create(from.join("f")).unwrap().set_len(len as u64).unwrap();
        } else {
            write(&from.join("f"), &new, 0);
        }
        let log = a.file("log");
        let strace = a.program("strace").args(["-f", "-qq", "-e", "trace=fallocate", "-o"]).arg(&log);
        let program = strace.arg(gate::dray_binary()).args(["sync", "-a", "--inplace"]);
        program.arg(from.join("f")).arg(&to).run().expect(0);
        let log = fs::read_to_string(&log).unwrap();
        let tried =
            log.lines().filter(|call| call.contains("FALLOC_FL_KEEP_SIZE") && !call.contains("PUNCH_HOLE"));
        let lens = tried.filter_map(|call| call.split(", ").nth(3)?.split(')').next()?.parse::<u64>().ok());
        let asked = lens.max().unwrap_or_default();
        assert!((least..=most).contains(&asked), "{name}: {asked} bytes were asked for: {log}");
        data::assert_same(&from.join("f"), &to.join("f"));
        fs::remove_dir_all(&to).unwrap();
        tool(&["sync", "-f", place.to_str().unwrap()]);
    }
}
