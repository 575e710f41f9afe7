//! `dray sync --atomic` where somebody or something interferes: ends that are killed at each step, strangers, mounts, overlays; and what it keeps of files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dray_e2e::actions::{NOBODY, assert_same_tree, await_no_dray};
use dray_e2e::twins::{LONG, Way, case, set_times, sync, up, write};
use dray_e2e::{Host, Lab, Outcome, data, gate, sshd};
use rustix::fs::{XattrFlags, setxattr};

const SWITCHING: [&str; 2] = ["--delete", "--atomic"];

/// All that is in a tree: path, kind, bits, owner, time, and content or target.
fn picture(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let content = match found.file_type() {
            kind if kind.is_file() => fs::read(&path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        let facts = (found.mode(), found.uid(), found.gid(), found.mtime(), found.mtime_nsec());
        let path_below = path.strip_prefix(root).unwrap();
        lines.push(format!("{path_below:?} {facts:?} {:?}", String::from_utf8_lossy(&content)));
        if found.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    lines.sort();
    lines
}

/// Old and new trees with what is alike, changed, new, gone, linked and read-only; the new one's own directory is another user's.
fn old_and_new(place: &Path) -> (PathBuf, PathBuf) {
    let (old, new) = (place.join("old"), place.join("new"));
    for (root, number) in [(&old, 0), (&new, 1)] {
        write(&root.join("d/same"), b"same", 0);
        write(&root.join("d/deep/changed"), format!("changed {number}").as_bytes(), number);
        for file in 0..3 {
            write(&root.join(format!("only {number}/{file}")), b"f", 0);
        }
        fs::hard_link(root.join("d/same"), root.join("linked")).unwrap();
        symlink(format!("to {number}"), root.join("link")).unwrap();
        fs::set_permissions(root.join("d/deep"), fs::Permissions::from_mode(0o555)).unwrap();
        set_times(root, number);
    }
    chown(&new, Some(NOBODY), Some(NOBODY)).unwrap();
    (old, new)
}

/// Names beside the destination that this program gave.
fn hidden(top: &Path) -> Vec<String> {
    let names = data::names(top).into_iter().filter(|name| data::is_ours(name));
    names.map(|name| name.into_string().unwrap()).collect()
}

/// A session under which everything runs with these options of strace.
fn under_strace(options: &str) -> String {
    let shell = "/bin/sh -c \"${SSH_ORIGINAL_COMMAND:-exec /bin/sh}\"";
    format!("cd \"$HOME\" || exit 1\nexec strace -f -qq -o /dev/null {options} {shell}\n")
}

/// S89: over ssh, the end that writes is killed at each step that gives or takes names, or gives the tree its owner and bits, before the switch and after it: DST is all of the old tree or all of
/// the new one, and the same command brings the new one, and leaves nothing beside it.
#[test]
fn a_kill_over_ssh_leaves_one_tree() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (old, new) = old_and_new(&a.directory("place"));
    let (was, is) = (picture(&old), picture(&new));
    let (mut were_old, mut were_new) = (0, 0);
    for call in ["renameat2", "unlinkat", "fchown", "fchmod"] {
        let is_through = (1..=60).any(|step| {
            let top = b.directory(&format!("top {call} {step}"));
            let copy = top.join("copy");
            a.program("cp").arg("-a").arg(&old).arg(&copy).run().expect(0);
            let inject = format!("-e trace={call} -e inject={call}:signal=SIGKILL:when={step}");
            b.sshd().set_session(b, &under_strace(&inject));
            let options = ["-aH", "--delete", "--atomic"];
            let outcome = up(a, b, &options, &new, &copy).wait();
            await_no_dray(b, LONG);
            b.sshd().set_session(b, sshd::SHELL);
            match picture(&copy) {
                found if found == was => were_old += 1,
                found if found == is => were_new += 1,
                found => panic!("{call} {step}: neither old nor new: {found:#?} {outcome}"),
            }
            up(a, b, &options, &new, &copy).wait().expect(0);
            assert_eq!(picture(&copy), is, "{call} {step}");
            assert_eq!(data::names(&top), ["copy"], "{call} {step}");
            outcome.code() == Some(0)
        });
        assert!(is_through, "a run has more than 60 times {call}");
    }
    assert!(were_old > 6 && were_new > 10, "{were_old} {were_new}");
}

/// S89: another program puts its own directory in the place of DST between the last look and the switch, and takes it away before it can be given back: it keeps all that
/// was in it, under a name that no run takes for its own, which is told.
#[test]
fn a_stranger_keeps_what_was_switched_by_chance() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = a.directory("place");
    let (source, top) = (place.join("source"), place.join("top"));
    let copy = top.join("copy");
    write(&source.join("f"), b"new", 0);
    write(&copy.join("f"), b"old!", 0);
    let command = ["sync", "-a", "--delete", "--atomic"];
    // The first tries whether directories change places, the second gives the new tree the other name, and the third is the switch.
    let delay = "inject=renameat2:delay_enter=3000000:when=2+";
    let strace = a.program("strace").args(["-f", "-o", "/dev/null", "-e", "trace=renameat2", "-e", delay]);
    let running = strace.arg(gate::dray_binary()).args(command).arg(source.join("")).arg(&copy).start();
    running.wait_until(false, || !hidden(&top).is_empty());
    let first = hidden(&top);
    running.wait_until(false, || !hidden(&top).is_empty() && hidden(&top) != first);
    let second = hidden(&top);
    // It has looked at DST by then, and waits in the switch.
    std::thread::sleep(Duration::from_secs(1));
    fs::rename(&copy, top.join("moved")).unwrap();
    write(&copy.join("mine"), b"mine", 0);
    running.wait_until(false, || !copy.join("mine").exists());
    fs::rename(&copy, top.join("taken")).unwrap();
    let outcome = running.wait().expect(8);
    let aside = hidden(&top);
    assert!(aside.len() == 1 && aside != first && aside != second, "{aside:?} {outcome}");
    assert!(outcome.stderr_text().contains(&aside[0]), "{outcome}");
    for _ in 0..2 {
        a.dray().args(command).arg(source.join("")).arg(&copy).run().expect(0);
        assert_eq!(fs::read(top.join(&aside[0]).join("mine")).unwrap(), b"mine");
    }
    assert_eq!(fs::read(copy.join("f")).unwrap(), b"new");
    assert_eq!(fs::read(top.join("moved/f")).unwrap(), b"old!");
}

/// A dry run over ssh, either way, tells what would go, and leaves everything as it is, be there something of an earlier run or not.
#[test]
fn a_dry_run_over_ssh_switches_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for way in ["up", "down"] {
        let top = a.directory(way);
        let (source, copy) = (top.join("source"), top.join("copy"));
        write(&source.join("f"), b"the new one", 0);
        write(&copy.join("f"), b"old", 0);
        write(&copy.join("gone/f"), b"gone", 0);
        let direction = || if way == "up" { Way::Up(b) } else { Way::Down(b) };
        let run = |extra: &[&str]| {
            let extra = [&SWITCHING[..], extra].concat();
            sync(a, &case(&["-a"]), &extra, &direction(), &source, &copy)
        };
        for is_left in [false, true] {
            if is_left {
                run(&["--max-delete=0"]).expect(8);
                assert_eq!(hidden(&top).len(), 1);
            }
            let before = picture(&top);
            let outcome = run(&["-n", "-i"]).expect(0);
            let said = outcome.stdout_text();
            assert!(said.contains("*deleting   gone/f") && said.contains("f.s"), "{way}: {outcome}");
            assert_eq!(picture(&top), before, "{way} {is_left}");
        }
        run(&[]).expect(0);
        assert_same_tree(a, &source, &copy, None);
        assert_eq!(data::names(&top), ["copy", "source"]);
    }
}

fn tool(name: &str, args: &[&str], at: &Path) {
    assert!(Command::new(name).args(args).arg(at).status().unwrap().success(), "{name} {args:?}");
}

/// S89: with `-x`, where something is mounted in SRC, nobody knows what belongs there: nothing is switched, here and over ssh; without it, or without the mount, all is.
#[test]
fn what_is_mounted_in_a_source_switches_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let place = a.directory("place");
    let source = place.join("source");
    write(&source.join("f"), b"new", 0);
    fs::create_dir(source.join("mounted")).unwrap();
    let run = |way: &Way<'_>, extra: &[&str], copy: &Path| {
        let extra = [&SWITCHING[..], extra].concat();
        sync(a, &case(&["-a"]), &extra, way, &source, copy)
    };
    for (name, way) in [("here", Way::Here), ("up", Way::Up(b))] {
        let top = place.join(name);
        let copy = top.join("copy");
        write(&copy.join("f"), b"old!", 0);
        write(&copy.join("mounted/inner"), b"inner", 0);
        let before = picture(&copy);
        tool("mount", &["-t", "tmpfs", "tmpfs"], &source.join("mounted"));
        fs::write(source.join("mounted/on top"), b"on top").unwrap();
        let crossing = run(&way, &["-x"], &copy);
        let after = picture(&copy);
        let without = run(&way, &[], &copy);
        let came = fs::read(copy.join("mounted/on top"));
        tool("umount", &[], &source.join("mounted"));
        let crossing = crossing.expect(8);
        let said = crossing.stderr_text();
        assert!(said.contains("nothing was switched") && said.contains("-x"), "{crossing}");
        assert_eq!(after, before, "{name}");
        without.expect(0);
        assert_eq!(came.unwrap(), b"on top");
        run(&way, &["-x"], &copy).expect(0);
        assert_same_tree(a, &source, &copy, None);
        assert_eq!(data::names(&top), ["copy"]);
    }
}

/// An ACL that gives a user bits.
fn acl(user: u32, bits: u16) -> Vec<u8> {
    let entries =
        [(1u16, 7u16, u32::MAX), (2, bits, user), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let entries = entries.iter().flat_map(|(tag, bits, id)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    });
    2u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// Attributes and ACLs of files, of directories and of DST itself come with the switch; one that changed is a difference, and the same again none, here and over ssh.
#[test]
fn attributes_are_switched() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    write(&source.join("d/f"), b"f", 0);
    let set =
        |path: &Path, name: &str, value: &[u8]| setxattr(path, name, value, XattrFlags::empty()).unwrap();
    for name in ["", "d", "d/f"] {
        set(&source.join(name), "user.note", name.as_bytes());
        set(&source.join(name), "system.posix_acl_access", &acl(NOBODY, 7));
    }
    set(&source.join("d"), "system.posix_acl_default", &acl(NOBODY, 5));
    for (name, way) in [("here", Way::Here), ("up", Way::Up(b))] {
        let top = a.directory(name);
        let copy = top.join("copy");
        write(&copy.join("d/f"), b"f", 0);
        let run = || {
            let before = fs::metadata(&copy).unwrap().ino();
            sync(a, &case(&["-aAX"]), &SWITCHING, &way, &source, &copy).expect(0);
            assert_same_tree(a, &source, &copy, None);
            assert_eq!(data::names(&top), ["copy"]);
            before != fs::metadata(&copy).unwrap().ino()
        };
        assert_eq!((run(), run()), (true, false), "{name}");
        let file = fs::metadata(copy.join("d/f")).unwrap().ino();
        for (path, attribute, value) in [
            ("", "user.note", b"another".to_vec()),
            ("", "system.posix_acl_access", acl(NOBODY, 4)),
            ("d", "system.posix_acl_default", acl(NOBODY, 1)),
        ] {
            set(&source.join(path), attribute, &value);
            assert_eq!((run(), run()), (true, false), "{name} {path:?} {attribute}");
            assert_eq!(fs::metadata(copy.join("d/f")).unwrap().ino(), file);
        }
        set(&source.join("d/f"), "user.note", b"another");
        assert_eq!((run(), run()), (true, false), "{name}");
        for (path, attribute, value) in [
            ("", "user.note", vec![]),
            ("", "system.posix_acl_access", acl(NOBODY, 7)),
            ("d", "system.posix_acl_default", acl(NOBODY, 5)),
            ("d/f", "user.note", b"d/f".to_vec()),
        ] {
            set(&source.join(path), attribute, &value);
        }
    }
}

/// Files of several names stay that with `-H`, within the new tree, whatever of them changed; the same again changes nothing.
#[test]
fn names_of_one_file_are_switched() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (name, way) in [("here", Way::Here), ("up", Way::Up(b))] {
        let top = a.directory(name);
        let (source, copy) = (top.join("source"), top.join("copy"));
        let group = ["one", "d/two", "e/three"];
        write(&source.join("one"), b"first", 0);
        for other in &group[1..] {
            fs::create_dir_all(source.join(other).parent().unwrap()).unwrap();
            fs::hard_link(source.join("one"), source.join(other)).unwrap();
        }
        let run = || {
            sync(a, &case(&["-aH"]), &SWITCHING, &way, &source, &copy).expect(0);
            assert_same_tree(a, &source, &copy, None);
            assert_eq!(data::names(&top), ["copy", "source"]);
            let found = fs::metadata(copy.join("one")).unwrap();
            (found.ino(), found.nlink())
        };
        let first = run();
        assert_eq!(first.1, 3);
        assert_eq!(run(), first);
        // One leaves the group, and another joins it.
        fs::remove_file(source.join("d/two")).unwrap();
        write(&source.join("d/two"), b"its own", 3);
        // Not as the first that is told: what DST has under that name decides.
        fs::hard_link(source.join("one"), source.join("z four")).unwrap();
        assert_eq!(run(), first, "the file is the same one");
        write(&source.join("one"), b"second, longer", 9);
        let second = run();
        assert!(second.0 != first.0 && second.1 == 3);
        assert_eq!(run(), second);
    }
}

/// On an overlay, what lies in the lower layer may not change places: that is told in words before anything is copied, and nothing changes; what lies above does, and so does all where
/// redirect_dir is on, be it the second time, as what is linked the overlay copies up.
#[test]
fn an_overlay_switches_or_says_why_not() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, place) = (a.directory("source"), a.directory("place"));
    write(&source.join("d/same"), b"same", 0);
    for redirects in [false, true] {
        write(&source.join("f"), b"new", 0);
        tool("mount", &["-t", "tmpfs", "tmpfs"], &place);
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(place.join(name)).unwrap();
        }
        write(&place.join("lower/copy/f"), b"old!", 0);
        write(&place.join("lower/copy/gone"), b"gone", 0);
        write(&place.join("lower/copy/d/same"), b"same", 0);
        let merged = place.join("merged");
        let layer = |name: &str| place.join(name).display().to_string();
        let layers = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir={}",
            layer("lower"),
            layer("upper"),
            layer("work"),
            if redirects { "on" } else { "off" }
        );
        tool("mount", &["-t", "overlay", "overlay", "-o", &layers], &merged);
        let run = |copy: &Path| {
            a.dray().args(["sync", "-a", "--delete", "--atomic"]).arg(source.join("")).arg(copy).run()
        };
        let before = picture(&merged.join("copy"));
        let lower: [Outcome; 2] = [run(&merged.join("copy")), run(&merged.join("copy"))];
        let is_old = picture(&merged.join("copy")) == before;
        let (above, has_new) = (data::names(&place.join("upper")), fs::read(merged.join("copy/f")));
        let made = [run(&merged.join("made")), {
            write(&source.join("f"), b"newer still", 5);
            run(&merged.join("made"))
        }];
        let content = fs::read(merged.join("made/f"));
        tool("umount", &[], &merged);
        tool("umount", &[], &place);
        let [first, second] = lower;
        if redirects {
            if first.code() != Some(0) {
                let said = first.expect(8);
                assert!(said.stderr_text().contains("the overlay file system copied it up"), "{said}");
            }
            second.expect(0);
            assert_eq!(has_new.unwrap(), b"new");
        } else {
            for said in [first, second] {
                let said = said.expect(6);
                let text = said.stderr_text();
                assert!(
                    text.contains("nothing was switched") && text.contains("redirect_dir is off"),
                    "{said}"
                );
            }
            assert!(is_old);
            assert_eq!(above, [""; 0], "nothing was copied up");
        }
        made.into_iter().for_each(|outcome| drop(outcome.expect(0)));
        assert_eq!(content.unwrap(), b"newer still");
    }
}

/// A new file system of its own below `host`, with these options, of the files that lie in `with`.
fn image(host: &Host, name: &str, options: &[&str], with: &Path) -> PathBuf {
    let image = host.file(format!("{name}.img"));
    fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
    let with = with.to_str().unwrap();
    let options = [&["-q", "-F", "-m", "0", "-d", with], options].concat();
    tool("mkfs.ext4", &options, &image);
    image
}

/// S89: on a file system that knows whole seconds alone, what is moved into DST in the second in which a run begins ends that, and what is moved there in the second in which the two trees were
/// held against each other stays.
#[test]
fn whole_seconds_tell_what_was_moved_in() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, with, place) = (a.directory("source"), a.directory("with"), a.directory("place"));
    write(&source.join("a same"), b"same", 0);
    write(&source.join("z new"), b"new", 0);
    write(&with.join("copy/a same"), b"same", 0);
    write(&with.join("copy/gone/f"), b"gone", 0);
    write(&with.join("first/f"), b"mine", 0);
    write(&with.join("second"), b"mine", 0);
    let image = image(a, "seconds", &["-I", "128"], &with);
    tool("mount", &["-o", "loop", image.to_str().unwrap()], &place);
    let copy = place.join("copy");
    assert_eq!(fs::metadata(&copy).unwrap().ctime_nsec(), 0);
    let run = |inject: &str| {
        // Soon after a second began, so that what follows is in it.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        std::thread::sleep(Duration::from_nanos(1_050_000_000 - u64::from(since.subsec_nanos())));
        let strace = a.program("strace").args(["-f", "-o", "/dev/null", "-e", "trace=linkat,renameat2"]);
        let strace = strace.args(["-e", &format!("inject={inject}")]).arg(gate::dray_binary());
        strace.args(["sync", "-ai", "--delete", "--atomic"]).arg(source.join("")).arg(&copy).start()
    };
    // What it has is linked, and then it waits.
    let running = run("linkat:delay_exit=1500000:when=1");
    running.wait_until(false, || hidden(&place).iter().any(|name| place.join(name).join("a same").exists()));
    fs::rename(place.join("first"), copy.join("gone/first")).unwrap();
    let early = running.wait();
    let kept = fs::read(copy.join("gone/first/f"));
    // Everything was compared, and the new tree has just got its other name.
    let waiting = hidden(&place);
    let running = run("renameat2:delay_exit=1500000:when=1");
    running.wait_until(false, || hidden(&place) != waiting);
    fs::rename(place.join("second"), copy.join("gone/second")).unwrap();
    let late = running.wait();
    let aside = hidden(&place);
    let left: Vec<_> = aside.iter().map(|name| data::names(&place.join(name).join("gone"))).collect();
    let names = data::names(&copy);
    tool("umount", &[], &place);
    let early = early.expect(8);
    assert!(early.stderr_text().contains("another program changed"), "{early}");
    assert_eq!(kept.unwrap(), b"mine");
    let late = late.expect(8);
    assert_eq!((names, left), (vec!["a same".into(), "z new".into()], vec![vec!["second".into()]]), "{late}");
    assert!(late.stderr_text().contains(&aside[0]), "{late}");
    let told = late.stdout_text();
    assert!(told.contains("gone/f") && !told.contains("gone/second") && !told.contains("gone/\n"), "{late}");
}

/// S89: what could not be made durable may be in memory alone, and no later sync says so again: the next run does not believe what it finds of it, but makes it anew.
#[test]
fn what_may_not_be_on_disk_is_made_anew() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    write(&source.join("f"), b"new", 0);
    let command = ["sync", "-a", "--delete", "--atomic", "--fsync"];
    // What is written, that once more before the two are compared, and the new tree's own directory just before the switch. The first syncfs(2) is of what the old tree has.
    for (call, when) in [("syncfs", 2), ("syncfs", 3), ("fsync", 1)] {
        let top = a.directory(&format!("{call} {when}"));
        let copy = top.join("copy");
        write(&copy.join("f"), b"old!", 0);
        let fail = format!("inject={call}:error=EIO:when={when}");
        let strace = a.program("strace").args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}")]);
        let strace = strace.args(["-e", &fail]).arg(gate::dray_binary()).args(command);
        let failed = strace.arg(source.join("")).arg(&copy).run();
        let said = failed.stderr_text();
        assert!(failed.code() != Some(0) && said.contains("nothing was switched"), "{call}: {failed}");
        assert!(!said.contains("waits for the same command"), "{call}: {failed}");
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"old!");
        // What the disk had, once nothing of it is in memory any more.
        let [left] = &hidden(&top)[..] else { panic!("{call}: {:?}", hidden(&top)) };
        write(&top.join(left).join("f"), b"bad", 0);
        a.dray().args(command).arg(source.join("")).arg(&copy).run().expect(0);
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"new", "{call}");
        assert_eq!(data::names(&top), ["copy"], "{call}");
    }
}

/// Gives what is in an image a time that is to come.
fn stamp_ahead(image: &Path, path: &str, fields: &[&str]) {
    for field in fields {
        let request = format!("set_inode_field /{path} {field} @{AHEAD_S}");
        tool("debugfs", &["-w", "-R", &request], image);
    }
}

/// In 2037.
const AHEAD_S: i64 = 2_114_380_800;

/// S82: what was stamped by a clock that is ahead of this host's, as a file server's may be, is younger than the run, as far as anybody knows: it stays, and is told.
#[test]
fn a_clock_that_is_ahead_deletes_nothing_new() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, with, place) = (a.directory("source"), a.directory("with"), a.directory("place"));
    write(&source.join("f"), b"same", 0);
    for name in ["f", "gone", "old/moved", "old/report", "old/stood"] {
        write(&with.join("copy").join(name), b"same", 0);
    }
    let image = image(a, "ahead", &["-I", "256"], &with);
    stamp_ahead(&image, "copy/old", &["ctime"]);
    stamp_ahead(&image, "copy/old/report", &["ctime", "crtime"]);
    stamp_ahead(&image, "copy/old/moved", &["ctime"]);
    tool("mount", &["-o", "loop", image.to_str().unwrap()], &place);
    let copy = place.join("copy");
    let ahead = fs::metadata(copy.join("old/report")).unwrap().ctime();
    let outcome = a.dray().args(["sync", "-a", "--delete"]).arg(source.join("")).arg(&copy).run();
    let left = data::names_below(&copy);
    tool("umount", &[], &place);
    assert_eq!(ahead, AHEAD_S);
    assert_eq!(left, ["f", "old", "old/moved", "old/report"].map(PathBuf::from), "{outcome}");
    let said = outcome.expect(8);
    assert_eq!(said.stderr_text().matches("made or replaced after this run began").count(), 2, "{said}");
}

/// S89: where the clock was set back, so that all in DST seems to be of the future, it is switched all the same, and what a killed run left of it goes, and what of a tree that waits the source
/// has not any more; a dry run tells the same.
#[test]
fn a_clock_that_was_set_back_stops_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, with, place) = (a.directory("source"), a.directory("with"), a.directory("place"));
    write(&source.join("d/same"), b"same", 0);
    write(&source.join("f"), b"new", 0);
    write(&with.join("copy/d/same"), b"same", 0);
    write(&with.join("copy/f"), b"old!", 0);
    write(&with.join("copy/gone/f"), b"gone", 0);
    let image = image(a, "future", &["-I", "256"], &with);
    for path in ["", "copy", "copy/d", "copy/d/same", "copy/f", "copy/gone", "copy/gone/f"] {
        stamp_ahead(&image, path, &["ctime", "crtime"]);
    }
    tool("mount", &["-o", "loop", image.to_str().unwrap()], &place);
    let copy = place.join("copy");
    let ahead = fs::metadata(&copy).unwrap().ctime();
    let command = ["sync", "-ai", "--delete", "--atomic"];
    let dry = a.dray().args(command).arg("-n").arg(source.join("")).arg(&copy).run();
    // The first two are of the test whether directories change places; with the third it begins to remove the old tree.
    let kill = "inject=unlinkat:signal=SIGKILL:when=3";
    let strace = a.program("strace").args(["-f", "-o", "/dev/null", "-e", "trace=unlinkat", "-e", kill]);
    let killed = strace.arg(gate::dray_binary()).args(command).arg(source.join("")).arg(&copy).run();
    let (content, left) = (fs::read(copy.join("f")), hidden(&place));
    let next = a.dray().args(command).arg(source.join("")).arg(&copy).run();
    let rest = hidden(&place);
    // Under the same name beside the same top, in another file system, a tree waits that is of the future, too.
    write(&copy.join("gone"), b"gone", 0);
    let waits = a.dray().args(command).arg("--max-delete=0").arg(source.join("")).arg(&copy).run();
    let waiting = hidden(&place);
    tool("umount", &[], &place);
    let later = a.directory("later");
    write(&later.join("copy/d/same"), b"same", 0);
    write(&later.join("copy/f"), b"new", 0);
    waiting.iter().for_each(|name| write(&later.join(name).join("lost"), b"lost", 0));
    let image = self::image(a, "later", &["-I", "256"], &later);
    waiting.iter().for_each(|name| stamp_ahead(&image, &format!("{name}/lost"), &["ctime", "crtime"]));
    tool("mount", &["-o", "loop", image.to_str().unwrap()], &place);
    let is_ahead = waiting
        .iter()
        .all(|name| fs::metadata(place.join(name).join("lost")).is_ok_and(|found| found.ctime() == AHEAD_S));
    let last = a.dray().args(command).arg(source.join("")).arg(&copy).run();
    let (names, end) = (data::names(&copy), hidden(&place));
    tool("umount", &[], &place);
    assert_eq!(ahead, AHEAD_S);
    assert!(dry.expect(0).stdout_text().contains("*deleting   gone/f"));
    assert_eq!((content.unwrap(), left.len()), (b"new".to_vec(), 1), "{killed}");
    next.expect(0);
    assert_eq!(rest, [""; 0]);
    waits.expect(8);
    assert!(waiting.len() == 1 && is_ahead, "{waiting:?}");
    last.expect(0);
    assert_eq!((names, end.len()), (vec!["d".into(), "f".into()], 0));
}
