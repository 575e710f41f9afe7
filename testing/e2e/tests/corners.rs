//! Corners of `dray cp` that people come upon: homes that cannot be written, hosts without `/proc`, names that meet, more sources
//! than fit, files without a size; on this host and over a real sshd both ways.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use dray_e2e::Lab;
use dray_e2e::actions::{NOBODY, WAYS, assert_same_tree, cp};
use dray_e2e::data::{self, names_below};

/// A directory with a file in it.
fn small(root: &Path, content: &str) {
    fs::create_dir_all(root).unwrap();
    fs::write(root.join("f"), content).unwrap();
}

/// S57: a dry run makes nothing, neither at the destination nor for itself at either end; and a copy of a tree within a host needs
/// no data directory.
#[test]
fn a_dry_run_leaves_no_trace_and_trees_need_no_home() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source, "content");
    a.sshd();
    b.sshd();
    let homes = || [a, b].map(|host| (names_below(&host.home()), names_below(&host.data_dir())));
    let before = homes();
    for way in WAYS {
        cp(a, b, way, &["-r", "-n"], &[&source], &a.file("copy")).run().expect(0);
        assert_eq!(homes(), before, "{way}");
    }
    let place = a.directory("nobody's");
    std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    let user = || a.dray().arg("cp").env("DRAY_DATA_DIR", "/proc/none").user(NOBODY);
    user().arg("-r").arg(&source).arg(place.join("copy")).run().expect(0);
    assert_eq!(fs::read(place.join("copy/f")).unwrap(), b"content");
    // One file is remembered in it, so that its copy goes on where it stopped: here the place is named.
    let outcome = user().arg(source.join("f")).arg(place.join("one")).run().expect(6);
    assert!(outcome.stderr_text().contains("DRAY_DATA_DIR"), "{}", outcome.stderr_text());
}

/// S57: what would change of an entry that stays is told, and is what a run then changes.
#[test]
fn a_dry_run_tells_of_metadata() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    for dir in ["same", "bits"] {
        small(&source.join(dir), dir);
    }
    for name in ["mode", "owner", "time", "note", "one", "two"] {
        fs::write(source.join(name), name).unwrap();
    }
    fs::hard_link(source.join("one"), source.join("three")).unwrap();
    symlink("mode", source.join("link")).unwrap();
    for way in WAYS {
        let copy = b.file(way);
        cp(a, b, way, &["-a"], &[&source], &copy).run().expect(0);
        let told = |options: &[&str]| {
            let outcome = cp(a, b, way, options, &[&source.join(".")], &copy).run().expect(0);
            let mut told: Vec<String> = outcome.stdout_text().lines().map(str::to_owned).collect();
            told.sort();
            told
        };
        assert_eq!(told(&["-a", "-n"]), Vec::<String>::new(), "{way}");
        fs::set_permissions(copy.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(copy.join("bits"), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(copy.join("owner"), Some(NOBODY), None).unwrap();
        std::os::unix::fs::lchown(copy.join("link"), None, Some(NOBODY)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(copy.join("note"), "user.note", b"mine", flags).unwrap();
        // One name of two gets an inode of its own; its directory gets another time.
        let time = fs::metadata(copy.join("three")).unwrap().modified().unwrap();
        fs::remove_file(copy.join("three")).unwrap();
        fs::write(copy.join("three"), "one").unwrap();
        fs::File::open(copy.join("three")).unwrap().set_modified(time).unwrap();
        let expected = [
            "change   ./ (time)",
            "change   bits/ (permissions)",
            "change   link (owner)",
            "change   mode (permissions)",
            "change   note (attributes)",
            "change   owner (owner)",
            "replace  three",
        ];
        assert_eq!(told(&["-a", "-n"]), expected, "{way}");
        assert_eq!(told(&["-a"]), Vec::<String>::new(), "{way}");
        assert_same_tree(a, &source, &copy, None);
        assert_eq!(told(&["-a", "-n"]), Vec::<String>::new(), "{way}");
        // The changes that the user asks for count, too.
        let planned = told(&["-a", "-n", "--chown", "daemon", "--chmod", "F600"]);
        assert!(planned.contains(&"change   mode (permissions, owner)".to_owned()), "{way} {planned:?}");
        assert!(planned.contains(&"change   same/ (owner)".to_owned()), "{way} {planned:?}");
    }
}

/// As `cp` has it, "will not overwrite just-created": of two sources of one name the first stays, the second is named, exit 8;
/// directories are merged. A source that is named twice is no mistake.
#[test]
fn what_one_source_brought_no_other_overwrites() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let [one, two] = ["one", "two"].map(|name| a.file(name));
    for (root, content) in [(&one, "one"), (&two, "two")] {
        small(&root.join("d"), content);
        fs::write(root.join("d").join(content), content).unwrap();
        fs::write(root.join("f"), content).unwrap();
    }
    for way in WAYS {
        let to = b.directory(way);
        let files = [one.join("f"), two.join("f")];
        let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let outcome = cp(a, b, way, &[], &paths, &to).run().expect(8);
        assert!(outcome.stderr_text().contains("another source"), "{way} {}", outcome.stderr_text());
        assert_eq!(fs::read(to.join("f")).unwrap(), b"one", "{way}");
        let outcome = cp(a, b, way, &["-n"], &paths, &b.directory(&format!("{way}-n"))).run().expect(8);
        assert!(outcome.stderr_text().contains("another source"), "{way} {}", outcome.stderr_text());
        for (name, sources) in
            [("named", [one.join("d"), two.join("d")]), ("open", [one.join("."), two.join(".")])]
        {
            let to = b.directory(&format!("{way}-{name}"));
            let paths: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
            cp(a, b, way, &["-r"], &paths, &to).run().expect(8);
            for (name, content) in [("d/f", "one"), ("d/one", "one"), ("d/two", "two")] {
                assert_eq!(fs::read_to_string(to.join(name)).unwrap(), content, "{way} {name}");
            }
        }
        let twice = b.directory(&format!("{way}-twice"));
        let outcome = cp(a, b, way, &[], &[&files[0], &files[0]], &twice).run().expect(0);
        assert!(outcome.stderr_text().contains("named twice"), "{way} {}", outcome.stderr_text());
        assert_eq!(data::names(&twice), ["f"]);
    }
}

/// A static program is made for hosts with little on them: without `/proc`, nothing of a tree is lost.
#[test]
fn a_host_without_proc_copies_trees() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.file("r");
    small(&source, "content");
    small(&source.join("sub"), "more");
    symlink("f", source.join("link")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(source.join("f"), "user.note", b"kept", flags).unwrap();
    for _ in 0..2 {
        let script = "mount -t tmpfs none /proc && exec \"$@\"";
        let program = a.program("unshare").args(["--mount", "sh", "-c", script, "sh"]);
        let program = program.arg(dray_e2e::gate::dray_binary()).args(["cp", "-a"]);
        program.arg(source.join(".")).arg(a.file("copy")).run().expect(0);
        assert_same_tree(a, &source, &a.file("copy"), None);
    }
}

/// `DIR/.` and `DIR/` mean what is in it, also where `DIR` is a link.
#[test]
fn what_is_behind_a_link_is_copied() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    small(&a.file("r"), "content");
    symlink("r", a.file("link")).unwrap();
    for way in WAYS {
        for (number, (flag, end)) in [("-a", "."), ("-r", "."), ("-a", "./.")].iter().enumerate() {
            let to = b.directory(&format!("{way}-{number}"));
            cp(a, b, way, &[flag], &[&a.file("link").join(end)], &to).run().expect(0);
            assert_eq!(data::names(&to), ["f"], "{way} {flag} {end}");
        }
    }
}

/// What is wrong with `--chown` is said, and nothing else.
#[test]
fn an_owner_that_is_not_there_is_named() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source, "content");
    for way in WAYS {
        for options in [&["-r", "--chown", "no-such"][..], &["-n", "-r", "--chown", ":no-such"]] {
            let outcome = cp(a, b, way, options, &[&source], &b.file("copy")).run().expect(3);
            let text = outcome.stderr_text();
            assert!(text.contains("no-such") && text.contains("--chown takes"), "{way} {text}");
            assert!(!text.contains("path right"), "{way} {text}");
        }
    }
}

/// As `scp` has it: a pattern of the far end that stands for several files needs no `-r`; directories among them do.
#[test]
fn a_pattern_for_several_files_needs_no_r() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.directory("from");
    for number in 0..5000 {
        fs::write(source.join(format!("{number:04}.jpg")), number.to_string()).unwrap();
    }
    fs::write(source.join("one.txt"), b"one").unwrap();
    small(&source.join("dir.jpg"), "inside");
    for (number, options) in [&[][..], &["-p", "-z"]].iter().enumerate() {
        let to = b.directory(&format!("to-{number}"));
        // One authentication for all of them.
        cp(a, b, "down", options, &[&source.join("[0-9]*.jpg")], &to).run().expect(0);
        assert_eq!(data::names(&to).len(), 5000);
        assert_eq!(fs::read(to.join("4321.jpg")).unwrap(), b"4321");
        let (now, before) =
            [&to, &source].map(|dir| fs::metadata(dir.join("0007.jpg")).unwrap().mtime_nsec()).into();
        assert_eq!(now == before, !options.is_empty(), "-p keeps times");
        // Several need a directory, one does not.
        cp(a, b, "down", options, &[&source.join("00*.jpg")], &to.join("new")).run().expect(3);
        cp(a, b, "down", options, &[&source.join("*.txt")], &to.join("new")).run().expect(0);
        assert_eq!(fs::read(to.join("new")).unwrap(), b"one");
        let outcome = cp(a, b, "down", options, &[&source.join("*1.jpg")], &to).run();
        assert_eq!(outcome.code(), Some(0), "{outcome}");
        let outcome = cp(a, b, "down", options, &[&source.join("?[0i]*")], &to).run().expect(8);
        assert!(outcome.stderr_text().contains("-r copies directories"), "{}", outcome.stderr_text());
    }
}

/// As many sources as a shell makes of a pattern, on either side, whatever their number: `scp` and `rsync` have no limit either.
#[test]
fn as_many_sources_as_a_shell_gives() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let names: Vec<String> = (0..5000).map(|number| format!("{number:05} {}", "x".repeat(60))).collect();
    for dir in ["one", "two"] {
        fs::create_dir(a.file(dir)).unwrap();
    }
    // In two directories by turns, so that each source is in another one than that before.
    let sources: Vec<PathBuf> =
        (0..).zip(&names).map(|(number, name)| a.file(["one", "two"][number % 2]).join(name)).collect();
    for source in &sources {
        fs::write(source, b"picture").unwrap();
    }
    let paths: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
    for way in WAYS {
        let to = b.directory(way);
        cp(a, b, way, &[], &paths, &to).run().expect(0);
        assert_eq!(data::names(&to).len(), names.len(), "{way}");
    }
}

/// S60, over ssh as within a host: files that do not tell how many bytes they have are copied whole, one by one and among others.
#[test]
fn files_without_a_size_cross_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let files = ["/proc/cpuinfo", "/proc/filesystems", "/sys/kernel/profiling", "/proc/version"];
    let files: Vec<&Path> = files.into_iter().map(Path::new).filter(|file| file.exists()).collect();
    assert!(files.len() >= 3, "{files:?}");
    // How fast each core runs at the moment is not compared.
    let content = |path: &Path| {
        let text = String::from_utf8(fs::read(path).unwrap()).unwrap();
        text.lines().filter(|line| !line.contains("MHz")).map(str::to_owned).collect::<Vec<_>>()
    };
    for way in WAYS {
        let (one, all) = (b.directory(&format!("{way}-one")), b.directory(way));
        cp(a, b, way, &[], &files, &all).run().expect(0);
        for file in &files {
            cp(a, b, way, &[], &[file], &one).run().expect(0);
            for to in [&one, &all] {
                let copy = to.join(file.file_name().unwrap());
                assert_eq!(content(&copy), content(file), "{way} {file:?}");
            }
        }
    }
}

/// S51: what a user cannot have and nobody expects is no failure, and is told.
#[test]
fn what_is_left_out_is_told() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("r");
    small(&source, "content");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(source.join("f"), "trusted.note", b"root's", flags).unwrap();
    let place = b.directory("user");
    std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    let far = b.file("far");
    let dray = dray_e2e::gate::dray_binary();
    let script = format!(
        "#!/bin/sh\nexec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {} \"$@\"\n",
        dray.display()
    );
    fs::write(&far, script).unwrap();
    fs::set_permissions(&far, fs::Permissions::from_mode(0o755)).unwrap();
    let far = far.to_str().unwrap();
    let outcome =
        cp(a, b, "up", &["-a", "--remote-dray", far], &[&source], &place.join("copy")).run().expect(0);
    let text = outcome.stderr_text();
    assert!(text.contains("left out on 1 entry: trusted.* attributes"), "{text}");
    assert_eq!(fs::read(place.join("copy/f")).unwrap(), b"content");
}
