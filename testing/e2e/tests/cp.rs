//! The options of `dray cp` that people have in their fingers, on this host and over a real sshd both ways, against what rsync,
//! scp and cp leave.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray_e2e::actions::{NOBODY, WAYS, cp};
use dray_e2e::data::{self, MIB, names_below};
use dray_e2e::live::{mounted, tool};
use dray_e2e::twins::{Way, going};
use dray_e2e::{Host, Lab, gate};

const LONG: Duration = Duration::from_secs(300);

/// Every entry below `root`, with bits, owner, group, time, size and what a link points to.
fn facts(root: &Path) -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let below = path.strip_prefix(root).unwrap();
        let size = if about.is_dir() { 0 } else { about.len() };
        let link = fs::read_link(&path).unwrap_or_default();
        found.push(format!(
            "{below:?} {:o} {}:{} {}.{} {size} {link:?}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime(),
            about.mtime_nsec(),
        ));
        if about.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

/// A small tree of names that patterns tell apart and modes that changes tell apart.
fn small(root: &Path) {
    for dir in ["build/deep", "sub/build", "sub/src", ".hidden", "a b"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for (name, mode) in [
        ("a.o", 0o644),
        ("a.c", 0o600),
        ("build/x", 0o755),
        ("build/deep/y.o", 0o444),
        ("sub/build/z", 0o640),
        ("sub/src/main.c", 0o664),
        ("sub/src/main.o", 0o666),
        ("sub/b1", 0o700),
        ("sub/b2", 0o711),
        (".hidden/core", 0o400),
        ("a b/[x]", 0o777),
        ("core", 0o4755),
    ] {
        fs::write(root.join(name), name).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("../a.c", root.join("sub/link.c")).unwrap();
    fs::set_permissions(root.join("sub/src"), fs::Permissions::from_mode(0o2770)).unwrap();
    // Long ago: rsync leaves times alone that differ by less than a second.
    let old = rustix::fs::Timespec { tv_sec: 981_173_106, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    for path in names_below(root).into_iter().chain([PathBuf::new()]) {
        let (here, nofollow) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        rustix::fs::utimensat(here, root.join(path), &times, nofollow).unwrap();
    }
}

fn rsync(host: &Host, options: &[&str], source: &Path, copy: &Path) {
    assert!(gate::find_tool("rsync").is_some(), "these tests need rsync as a witness");
    host.program("rsync").args(options).arg(source).arg(copy).time_limit(LONG).run().expect(0);
}

/// Issue "`--exclude`": each pattern leaves out what rsync leaves out, here and over ssh both ways.
#[test]
fn excludes_are_those_of_rsync() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source);
    let patterns = [
        "*.o",
        "build",
        "build/",
        "/build",
        "/r/build",
        "sub/build",
        "s*/build",
        "r/**",
        "/r/s*",
        "**/deep",
        "b?",
        "b[12]",
        "b[!1]",
        "[[:alpha:]].c",
        "core",
        "/core",
        "/r/core",
        "sub/***",
        "deep/*",
        "su**.c",
        ".*",
        "r",
        "a b",
        "\\[x\\]",
        "[x]",
        "link.c/",
        "**.o",
        "r/sub/b1",
        "b1/sub",
        "nothing",
    ];
    for (number, pattern) in patterns.iter().enumerate() {
        let (ours, theirs) =
            (a.directory(&format!("ours-{number}")), a.directory(&format!("theirs-{number}")));
        cp(a, b, "here", &["-a", "--exclude", pattern], &[&source], &ours).run().expect(0);
        rsync(a, &["-a", "--exclude", pattern], &source, &theirs);
        assert_eq!(facts(&ours)[1..], facts(&theirs)[1..], "{pattern}");
    }
    let three = ["-a", "--exclude", "*.o", "--exclude", "/r/sub/build", "--exclude", "core"];
    let theirs = a.directory("theirs");
    rsync(a, &three, &source, &theirs);
    for way in WAYS {
        let ours = a.directory(&format!("three-{way}"));
        cp(a, b, way, &three, &[&source], &ours).run().expect(0);
        assert_eq!(facts(&ours)[1..], facts(&theirs)[1..], "{way}");
        // What is in it, without its name: patterns are anchored there.
        let (ours, contents) = (a.directory(&format!("dot-{way}")), source.join("."));
        cp(a, b, way, &["-r", "--exclude", "/build", "--exclude", "/sub/src"], &[&contents], &ours)
            .run()
            .expect(0);
        let names = names_below(&ours);
        assert!(!names.contains(&"build".into()) && !names.contains(&"sub/src".into()), "{way}: {names:?}");
        assert!(names.contains(&"sub/build/z".into()), "{way}: {names:?}");
        // One file is no exception.
        let ours = a.directory(&format!("one-{way}"));
        cp(a, b, way, &["--exclude", "*.o"], &[&source.join("a.o")], &ours).run().expect(0);
        assert!(names_below(&ours).is_empty(), "{way}");
    }
}

/// Issue "`--chmod` (rsync's syntax)": the bits are those that rsync leaves, here and over ssh both ways.
#[test]
fn changes_of_bits_are_those_of_rsync() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source);
    let changes = [
        "D755,F644",
        "u+w,go-rwx",
        "Fa-x,Dg+s",
        "a+X",
        "ug=rwX,o=",
        "F600",
        "Du=rwx,Dgo=rx,Fu=rw,Fgo=r",
        "+x",
        "-w",
        "o+t,F0640",
        "Fu+s",
        "Fo=u",
        "Dg=u,F+o",
        "a=g,Fo-u",
    ];
    for (number, change) in changes.iter().enumerate() {
        let (ours, theirs) =
            (a.directory(&format!("ours-{number}")), a.directory(&format!("theirs-{number}")));
        let way = WAYS[number % 3];
        let option = format!("--chmod={change}");
        cp(a, b, way, &["-a", &option], &[&source], &ours).run().expect(0);
        rsync(a, &["-a", &option], &source, &theirs);
        assert_eq!(facts(&ours)[1..], facts(&theirs)[1..], "{way} {change}");
    }
    // Without -p the umask has its say, and one file is no exception.
    for way in WAYS {
        let ours = a.directory(&format!("one-{way}"));
        cp(a, b, way, &["--chmod=a+rw"], &[&source.join("a.c")], &ours).run().expect(0);
        assert_eq!(fs::metadata(ours.join("a.c")).unwrap().mode() & 0o7777, 0o644, "{way}");
        let outcome = cp(a, b, way, &["--chmod=Fz"], &[&source.join("a.c")], &ours).run().expect(2);
        assert!(outcome.stderr_text().contains("D755,F644"), "{}", outcome.stderr_text());
    }
}

/// Issue "`--chown USER:GROUP`, `--numeric-ids`": as rsync leaves owners; who may not give files away is told so.
#[test]
fn owners_are_changed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source);
    std::os::unix::fs::chown(source.join("a.c"), Some(4321), Some(1234)).unwrap();
    for (number, owner) in ["daemon:1234", "77", ":daemon", "daemon:", "0:0"].iter().enumerate() {
        let (ours, theirs) =
            (a.directory(&format!("ours-{number}")), a.directory(&format!("theirs-{number}")));
        let option = format!("--chown={owner}");
        cp(a, b, WAYS[number % 3], &["-a", &option], &[&source], &ours).run().expect(0);
        rsync(a, &["-a", &option], &source, &theirs);
        assert_eq!(facts(&ours)[1..], facts(&theirs)[1..], "{owner}");
    }
    for way in WAYS {
        // Only what is named changes: without -a the rest belongs to whoever copies.
        let ours = a.directory(&format!("one-{way}"));
        cp(a, b, way, &["--chown", ":daemon"], &[&source.join("a.c")], &ours).run().expect(0);
        let found = fs::metadata(ours.join("a.c")).unwrap();
        assert_eq!((found.uid(), found.gid()), (0, 1), "{way}");
        let outcome = cp(a, b, way, &["-r", "--chown", "no-such"], &[&source], &ours).run().expect(3);
        assert!(outcome.stderr_text().contains("no-such"), "{}", outcome.stderr_text());
        // Nor is the setuid bit of one owner given to another, though the bytes are the same.
        let target = ours.join("r/a.c");
        fs::create_dir(ours.join("r")).unwrap();
        fs::copy(source.join("a.c"), &target).unwrap();
        std::os::unix::fs::chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o4755)).unwrap();
        cp(a, b, way, &["-r", "--chown", "root:root"], &[&source], &ours).run().expect(0);
        let found = fs::metadata(&target).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o755), "{way}");
        let numbers = a.directory(&format!("numbers-{way}"));
        cp(a, b, way, &["-a", "--numeric-ids"], &[&source], &numbers).run().expect(0);
        let found = fs::metadata(numbers.join("r/a.c")).unwrap();
        assert_eq!((found.uid(), found.gid()), (4321, 1234), "{way}");
    }
    let place = a.directory("nobody's");
    std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    let data_dir = place.join("data");
    let user = a.dray().arg("cp").env("DRAY_DATA_DIR", &data_dir).user(NOBODY);
    let outcome =
        user.args(["-r", "--chown", "daemon"]).arg(source.join("sub")).arg(place.join("x")).run().expect(6);
    assert!(outcome.stderr_text().contains("only root"), "{}", outcome.stderr_text());
    assert!(!place.join("x").exists());
}

/// Issue "`--dry-run` changes nothing": onto a file system that cannot be changed, it says what a run then does.
#[test]
fn a_dry_run_changes_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source);
    let place = b.directory("place");
    // Before sshd starts, which sees what is mounted then. The lab unmounts it.
    tool(&["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place.to_str().unwrap()]);
    a.sshd();
    b.sshd();
    for way in WAYS {
        let copy = place.join(way);
        tool(&["cp", "-a", source.to_str().unwrap(), copy.to_str().unwrap()]);
        // Another size, another time, another kind, and two that are missing.
        fs::write(copy.join("a.o"), b"longer than before").unwrap();
        fs::write(copy.join("sub/b1"), b"BUS/b1").unwrap();
        fs::remove_file(copy.join("sub/link.c")).unwrap();
        symlink("elsewhere", copy.join("sub/link.c")).unwrap();
        fs::remove_dir_all(copy.join("build")).unwrap();
        fs::remove_file(copy.join("core")).unwrap();
    }
    let before = facts(&place);
    tool(&["mount", "-o", "remount,ro", place.to_str().unwrap()]);
    let contents = source.join(".");
    for way in WAYS {
        let outcome = cp(a, b, way, &["-a", "-n"], &[&contents], &place.join(way)).run().expect(0);
        let mut told: Vec<String> = outcome.stdout_text().lines().map(str::to_owned).collect();
        told.sort();
        let changed = if way == "here" { "replace  sub/b1" } else { "compare  sub/b1" };
        let mut expected = vec![
            "change   ./ (time)",
            "change   sub/ (time)",
            "new      build/",
            "new      build/deep/",
            "new      build/deep/y.o",
            "new      build/x",
            "new      core",
            "replace  a.o",
            "replace  sub/link.c",
            changed,
        ];
        expected.sort_unstable();
        assert_eq!(told, expected, "{way}");
        assert!(outcome.stderr_text().contains("nothing was changed"), "{}", outcome.stderr_text());
        // A new name, and one file.
        let new = place.join(way).join("new");
        let outcome = cp(a, b, way, &["-n", "--json"], &[&source.join("a.c")], &new).run().expect(0);
        assert!(outcome.stdout_text().contains(r#""action":"new""#), "{}", outcome.stdout_text());
        // Without -n it cannot.
        cp(a, b, way, &["-a"], &[&contents], &place.join(way)).run().expect(8);
    }
    assert_eq!(facts(&place), before);
    tool(&["mount", "-o", "remount,rw", place.to_str().unwrap()]);
    for way in WAYS {
        cp(a, b, way, &["-a"], &[&contents], &place.join(way)).run().expect(0);
        let outcome = cp(a, b, way, &["-a", "-n"], &[&contents], &place.join(way)).run().expect(0);
        assert_eq!(outcome.stdout_text(), "", "{way}");
        assert_eq!(facts(&place.join(way))[1..], facts(&source)[1..], "{way}");
    }
}

/// Issue "`--bwlimit` applies to one file and trees, both directions, all paths together": the rate, by the interface's counters.
#[test]
fn the_rate_is_obeyed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    const RATE: u64 = 4 * MIB;
    let size = 12 * MIB;
    let (file, tree) = (a.file("file"), a.directory("tree"));
    data::write_random(&file, size, 7);
    for number in 0..48 {
        data::write_random(&tree.join(format!("{number}")), size / 48, number);
    }
    for (what, source, options) in
        [("file", &file, &["--bwlimit=4M"][..]), ("tree", &tree, &["-r", "--bwlimit=4M"])]
    {
        for way in WAYS {
            let copy = b.file(format!("{what}-{way}"));
            let (before, begun) = (b.counters(), Instant::now());
            cp(a, b, way, options, &[source], &copy).run().expect(0);
            let elapsed = begun.elapsed();
            let carried = b.counters() - before;
            if way != "here" {
                assert!(carried.received_bytes > size, "{what} {way}: it came another way");
            }
            let rate = size as f64 / elapsed.as_secs_f64();
            eprintln!("{what} {way}: {:.2} of the rate in {elapsed:?}", rate / RATE as f64);
            // Never faster, but for the first burst; how much slower a busy machine makes it is not known.
            assert!(rate < RATE as f64 * 1.05, "{what} {way}: {rate} bytes a second");
            if what == "file" {
                data::assert_same(&file, &copy);
            } else {
                a.program("diff").arg("-r").arg(&tree).arg(&copy).run().expect(0);
            }
        }
    }
}

/// Issue "`-z`": text costs a fraction of itself, what cannot be made smaller costs no more than without; one file and trees, both
/// ways, and `rsync` finds nothing to do.
#[test]
fn what_is_sent_is_compressed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let (tree, file, noise) = (a.directory("tree"), a.file("text"), a.file("noise"));
    let mut text = String::new();
    for number in 0..400_000 {
        text += &format!("line {} of a log that says much the same\n", number * 7 % 1009);
    }
    fs::write(&file, &text).unwrap();
    for number in 0..300 {
        fs::write(tree.join(format!("{number}.log")), &text[number * 5000..][..40_000]).unwrap();
    }
    data::write_random(&noise, 8 * MIB, 5);
    for way in ["up", "down"] {
        for (what, source, options, at_most) in [
            ("text", &file, &["-z"][..], text.len() as u64 / 5),
            ("tree", &tree, &["-az"], 300 * 40_000 / 8),
            ("noise", &noise, &["-z"], 8 * MIB + 8 * MIB / 20),
        ] {
            let copy = b.file(format!("{what}-{way}"));
            let before = b.counters();
            cp(a, b, way, options, &[source], &copy).run().expect(0);
            let carried = (b.counters() - before).received_bytes;
            eprintln!("{what} {way}: {carried} bytes");
            assert!(carried < at_most, "{what} {way}: {carried} bytes, more than {at_most}");
            a.program("diff").arg("-r").arg(source).arg(&copy).run().expect(0);
        }
    }
    // An older version there, and a rate: all of it at once.
    let copy = b.file("text-up");
    let mut changed = text.into_bytes();
    changed.splice(1000..1000, *b"one more");
    fs::write(&file, &changed).unwrap();
    cp(a, b, "up", &["-z", "--bwlimit=2M"], &[&file], &copy).run().expect(0);
    data::assert_same(&file, &copy);
}

/// Issue "scp's landing rules, several sources": where things land is where `scp -r` puts them; `DIR/.` is what is in it.
#[test]
fn things_land_where_scp_puts_them() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.directory("from");
    fs::create_dir_all(source.join("dir/sub")).unwrap();
    fs::write(source.join("dir/sub/f"), b"f").unwrap();
    fs::write(source.join("file"), b"file").unwrap();
    fs::write(source.join("other"), b"other").unwrap();
    symlink("dir", source.join("link")).unwrap();
    let cases: [(&[&str], &str); 10] = [
        (&["dir"], "there"),
        (&["dir"], "there/"),
        (&["dir/"], "there"),
        (&["dir"], "new"),
        (&["file"], "there"),
        (&["file"], "there/"),
        (&["file"], "new"),
        (&["file", "other"], "there"),
        (&["dir", "file"], "there/"),
        (&["link/"], "there"),
    ];
    for (number, (sources, to)) in cases.iter().enumerate() {
        for way in WAYS {
            let (ours, theirs) =
                (b.directory(&format!("{number}-{way}")), b.directory(&format!("{number}-{way}-scp")));
            for place in [&ours, &theirs] {
                fs::create_dir(place.join("there")).unwrap();
            }
            let paths: Vec<PathBuf> = sources.iter().map(|name| source.join(name)).collect();
            let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
            cp(a, b, way, &["-r"], &paths, &ours.join(to)).run().expect(0);
            let scp = a.program("scp").arg("-Oqr").args(b.ssh_options()).args(&paths);
            scp.arg(b.remote(&theirs.join(to))).time_limit(LONG).run().expect(0);
            // A link with a slash is called as the user calls it by both.
            assert_eq!(names_below(&ours), names_below(&theirs), "{sources:?} to {to} {way}");
        }
    }
    for way in WAYS {
        // What is whole is a directory like any other: the same once more goes into it.
        let (ours, theirs) = (b.directory(&format!("twice-{way}")), b.directory(&format!("twice-{way}-scp")));
        for _ in 0..2 {
            cp(a, b, way, &["-r"], &[&source.join("dir")], &ours.join("new")).run().expect(0);
            let scp = a.program("scp").arg("-Oqr").args(b.ssh_options()).arg(source.join("dir"));
            scp.arg(b.remote(&theirs.join("new"))).time_limit(LONG).run().expect(0);
        }
        assert_eq!(names_below(&ours), names_below(&theirs), "twice {way}");
    }
    for way in WAYS {
        let copy = b.directory(&format!("contents-{way}"));
        cp(a, b, way, &["-r"], &[&source.join("dir/.")], &copy).run().expect(0);
        assert_eq!(names_below(&copy), ["sub", "sub/f"].map(PathBuf::from), "{way}");
        // Several sources need a directory, as does what is in one.
        cp(a, b, way, &[], &[&source.join("file"), &source.join("other")], &copy.join("sub/f"))
            .run()
            .expect(6);
        assert_eq!(fs::read(copy.join("sub/f")).unwrap(), b"f");
    }
    // Two other hosts at once are refused in words.
    let outcome = a.dray().args(["cp", "-r", "one:x", "two:y"]).run().expect(2);
    assert!(outcome.stderr_text().contains("both sides are remote"), "{}", outcome.stderr_text());
}

/// Issue "remote globs with trees": what a pattern stands for arrives under its own name; nothing is exit 3.
#[test]
fn remote_patterns_name_trees() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.directory("from");
    for dir in ["one.d", "two.d", "three.e", ".four.d"] {
        fs::create_dir(source.join(dir)).unwrap();
        fs::write(source.join(dir).join("f"), dir).unwrap();
    }
    for number in 0..600 {
        fs::write(source.join(format!("{number:03}.jpg")), b"picture").unwrap();
    }
    fs::write(source.join("plain"), b"plain").unwrap();
    let to = b.directory("to");
    cp(a, b, "down", &["-r"], &[&source.join("*.d"), &source.join("plain")], &to).run().expect(0);
    let found = names_below(&to);
    assert_eq!(found, ["one.d", "one.d/f", "plain", "two.d", "two.d/f"].map(PathBuf::from));
    cp(a, b, "down", &["-r"], &[&source.join("[0-9]*.jpg")], &to).run().expect(0);
    assert_eq!(names_below(&to).len(), 5 + 600);
    let one = b.directory("one");
    cp(a, b, "down", &["-r", "--exclude", "/two.d"], &[&source.join("t*.?")], &one).run().expect(0);
    assert_eq!(names_below(&one), ["three.e", "three.e/f"].map(PathBuf::from));
    let outcome = cp(a, b, "down", &["-r"], &[&source.join("*.none")], &one).run().expect(3);
    assert!(outcome.stderr_text().contains("*.none"), "{}", outcome.stderr_text());
    // Several need a directory.
    cp(a, b, "down", &["-r"], &[&source.join("*.d")], &b.file("none")).run().expect(3);
    assert!(!b.file("none").exists());
    // As many as a shell makes of a pattern.
    let many = b.directory("many");
    let paths: Vec<PathBuf> = (0..600).map(|number| source.join(format!("{number:03}.jpg"))).collect();
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    cp(a, b, "up", &[], &paths, &many).run().expect(0);
    assert_eq!(names_below(&many).len(), 600);
}

/// A single source that is missing is exit 3, as for one file, and that is all there is to say.
#[test]
fn a_missing_source_is_exit_3() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    for way in WAYS {
        for option in ["-r", "-a", "-n"] {
            let copy = b.file("copy");
            let outcome = cp(a, b, way, &[option], &[&a.file("missing")], &copy).run().expect(3);
            assert!(outcome.stderr_text().contains("missing"), "{}", outcome.stderr_text());
            assert!(!outcome.stderr_text().contains("entries failed"), "{}", outcome.stderr_text());
            assert!(!copy.exists());
        }
    }
    // And a directory without -r is a slip.
    let dir = a.directory("dir");
    for (way, code) in [("here", 2), ("up", 2), ("down", 6)] {
        for options in [&["-n"][..], &["--chmod=F600"], &[]] {
            let outcome = cp(a, b, way, options, &[&dir], &b.file("copy")).run();
            if way == "down" && options.is_empty() {
                // The far end of one file says it its own way.
                assert_ne!(outcome.code(), Some(0));
                continue;
            }
            assert_eq!(outcome.code(), Some(code), "{outcome}");
            assert!(outcome.stderr_text().contains("-r copies directories"), "{outcome}");
        }
    }
}

/// Review "copy_file_range (or read) returning 0 early leaves a hole and exit 0": what the kernel makes up while it is read has no
/// size, or a wrong one; it is copied as `cp` copies it.
#[test]
fn files_without_a_size_are_read_to_their_end() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let to = a.directory("to");
    let files = ["/proc/version", "/proc/filesystems", "/sys/kernel/fscaps", "/sys/kernel/profiling"];
    let files: Vec<&str> = files.into_iter().filter(|file| Path::new(file).exists()).collect();
    assert!(files.len() >= 3, "{files:?}");
    a.dray().arg("cp").args(&files).arg(&to).run().expect(0);
    for file in files {
        let copy = fs::read(to.join(Path::new(file).file_name().unwrap())).unwrap();
        assert_eq!(String::from_utf8_lossy(&copy), fs::read_to_string(file).unwrap(), "{file}");
    }
}

/// A file that shrinks and grows while it is copied is the one or the other at the end, or reported; never padded.
#[test]
fn a_file_that_shrinks_is_not_padded() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("r");
    let path = source.join("f");
    let whole = vec![b'x'; 6 * MIB as usize];
    fs::write(&path, &whole).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::os::unix::fs::FileExt;
            let file = fs::File::options().write(true).open(&path).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                file.set_len(2 * MIB).unwrap();
                file.write_all_at(&whole[2 * MIB as usize..], 2 * MIB).unwrap();
            }
        });
        for number in 0..20 {
            let copy = a.file(format!("copy-{number}"));
            let outcome = a.dray().args(["cp", "-r"]).arg(&source).arg(&copy).time_limit(LONG).run();
            match outcome.code() {
                Some(0) => {
                    let bytes = fs::read(copy.join("f")).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == b'x'), "padded to {}", bytes.len());
                }
                code => {
                    assert_eq!(code, Some(8), "{outcome}");
                    assert!(outcome.stderr_text().contains("changed"), "{outcome}");
                    assert!(data::names(&copy).is_empty(), "{outcome}");
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Issue "local to local with reflinks": on XFS a copy takes no room; on both sides of a mount the bytes are copied, holes left out.
#[test]
fn local_copies_share_blocks() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = mounted(a, "xfs", &["mkfs.xfs", "-q", "-m", "reflink=1"], 320 * MIB);
    let source = place.join("r");
    small(&source);
    data::write_random(&source.join("large"), 64 * MIB, 3);
    data::write_sparse(&source.join("sparse"), 64 * MIB, 3, 4);
    let free = || {
        tool(&["sync", "-f", place.to_str().unwrap()]);
        let found = rustix::fs::statvfs(&place).unwrap();
        found.f_bfree * found.f_frsize
    };
    let before = free();
    let copy = place.join("copy");
    a.dray().args(["cp", "-a"]).arg(&source).arg(&copy).run().expect(0);
    let taken = before - free();
    assert!(taken < 8 * MIB, "{taken} bytes for what could be shared");
    assert_eq!(facts(&copy), facts(&source));
    let outside = a.file("outside");
    a.dray().args(["cp", "-a"]).arg(&source).arg(&outside).run().expect(0);
    a.program("diff").arg("-r").arg("--no-dereference").arg(&source).arg(&outside).run().expect(0);
    let (now, then) =
        (data::settled_bytes(&outside.join("sparse")), data::settled_bytes(&source.join("sparse")));
    assert!(now <= then + 64 * 1024, "{now} bytes for {then}");
}

/// S11: where nothing may be made, `cp -r` ends with the error and the code of a copy of one file, in every direction.
#[test]
fn where_nothing_can_be_made_is_one_error() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (source, place) = (a.directory("r"), b.directory("place"));
    small(&source);
    tool(&["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place.to_str().unwrap()]);
    for way in WAYS {
        for to in [place.clone(), place.join("new")] {
            let file = cp(a, b, way, &[], &[&source.join("a.c")], &to).run().expect(6);
            let tree = cp(a, b, way, &["-r"], &[&source], &to).run().expect(6);
            for outcome in [file, tree] {
                let text = outcome.stderr_text();
                assert!(text.contains("Read-only") && text.contains("place"), "{way}: {text}");
                assert!(
                    text.contains("your user may write") || text.contains("that you may write"),
                    "{way}: {text}"
                );
            }
        }
        // So it does where `sync` makes the directory that everything goes into.
        for options in [&["-a"][..], &["-a", "--delete"]] {
            let (near, to) = (if way == "down" { b } else { a }, place.join("new"));
            let way = match way {
                "up" => Way::Up(b),
                "down" => Way::Down(a),
                _ => Way::Here,
            };
            let slashed = source.join("");
            let outcome =
                going(near.dray().arg("sync").args(options), &way, slashed.as_os_str(), &to).run().expect(6);
            let text = outcome.stderr_text();
            assert!(text.contains("new\": cannot make the destination: Read-only"), "{options:?}: {text}");
            assert!(text.contains("your user may write") && !text.contains("the rest is done"), "{text}");
        }
    }
}

/// "Where scp puts them": what ends with a slash is a directory, and where none is there no file becomes one of that name, whatever the options.
#[test]
fn no_file_takes_a_name_with_a_slash() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.directory("source");
    fs::write(source.join("f"), "f").unwrap();
    fs::create_dir(source.join("d")).unwrap();
    for way in WAYS {
        for options in [&["-a"][..], &["-r"], &["-r", "--exclude=q"], &["-a", "-n"]] {
            let place = a.directory(&format!("place {way}{}", options.concat()));
            let run = |name: &str| cp(a, b, way, options, &[&source.join(name)], &place.join("back/")).run();
            let said = run("f").expect(3);
            assert!(said.stderr_text().contains("is no directory"), "{said}");
            assert_eq!(data::names(&place).len(), 0, "{options:?} {said}");
            run("d").expect(0);
            assert_eq!(place.join("back").is_dir(), !options.contains(&"-n"), "{options:?}");
        }
    }
}

/// Issue "full disk: typed error, exit, what was finished stays, again after space is there".
#[test]
fn a_full_disk_is_exit_7_and_what_is_done_stays() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (source, place) = (a.directory("r"), b.directory("place"));
    for number in 0..64 {
        data::write_random(&source.join(format!("{number:02}")), MIB / 2, number);
    }
    tool(&["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place.to_str().unwrap()]);
    for way in WAYS {
        tool(&["mount", "-o", "remount,size=16m", place.to_str().unwrap()]);
        let copy = place.join("copy");
        let outcome = cp(a, b, way, &["-rp"], &[&source], &copy).run().expect(7);
        assert!(outcome.stderr_text().contains("space"), "{}", outcome.stderr_text());
        let done = data::names(&copy);
        assert!(done.len() > 8 && done.len() < 64, "{way}: {} files", done.len());
        let old: Vec<u64> = done.iter().map(|name| fs::metadata(copy.join(name)).unwrap().ino()).collect();
        for name in &done {
            data::assert_same(&source.join(name), &copy.join(name));
        }
        tool(&["mount", "-o", "remount,size=40m", place.to_str().unwrap()]);
        cp(a, b, way, &["-rp"], &[&source.join(".")], &copy).run().expect(0);
        let now: Vec<u64> = done.iter().map(|name| fs::metadata(copy.join(name)).unwrap().ino()).collect();
        assert_eq!(old, now, "{way}: what was done was copied again");
        a.program("diff").arg("-r").arg(&source).arg(&copy).run().expect(0);
        fs::remove_dir_all(&copy).unwrap();
    }
}
