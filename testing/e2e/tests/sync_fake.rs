//! `dray sync --fake-super`: what an account may not give to files is kept in rsync's attribute, read by rsync and the other way round.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use dray_e2e::actions::{NOBODY, slashed};
use dray_e2e::process::Outcome;
use dray_e2e::twins::{LONG, set_times, write};
use dray_e2e::{Host, Lab, gate};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, mknodat, setxattr, utimensat,
};

const STAT: &str = "user.rsync.%stat";

fn attribute(path: &Path) -> Option<String> {
    let mut value = [0; 128];
    let len = lgetxattr(path, STAT, &mut value[..]).ok()?;
    Some(String::from_utf8_lossy(&value[..len]).into_owned())
}

fn set_attribute(path: &Path, value: &str) {
    setxattr(path, STAT, value.as_bytes(), XattrFlags::empty()).unwrap();
}

/// What a machine has that no account may have.
fn machine(top: &Path) {
    let file = |name: &str, mode, uid, gid| {
        let path = top.join(name);
        write(&path, format!("content of {name}").as_bytes(), 0);
        chown(&path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    file("etc/passwd", 0o644, 0, 0);
    file("etc/shadow", 0o640, 0, 42);
    file("bin/su", 0o4755, 0, 0);
    file("bin/wall", 0o2755, 0, 5);
    file("home/me/text", 0o664, 1000, 1000);
    file("home/me/nobody's", 0o644, NOBODY, NOBODY);
    file("home/me/locked", 0, 1000, 1000);
    file("home/me/open", 0o666, 1001, 1001);
    fs::hard_link(top.join("home/me/text"), top.join("home/me/text again")).unwrap();
    setxattr(top.join("home/me/text"), "user.note", b"a note", XattrFlags::empty()).unwrap();
    symlink("../bin/su", top.join("etc/link")).unwrap();
    lchown(top.join("etc/link"), Some(12), Some(13)).unwrap();
    for (name, kind, mode, device) in [
        ("dev/null", FileType::CharacterDevice, 0o666, rustix::fs::makedev(1, 3)),
        ("dev/disk", FileType::BlockDevice, 0o660, rustix::fs::makedev(259, 70_000)),
        ("dev/pipe", FileType::Fifo, 0o600, 0),
        ("dev/socket", FileType::Socket, 0o777, 0),
    ] {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, kind, Mode::from_raw_mode(mode), device).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        lchown(&path, Some(0), Some(6)).unwrap();
        // Of what is no file rsync brings whole seconds.
        let time = Timespec { tv_sec: 1_700_000_000, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        fs::hard_link(&path, top.join(format!("{name}-again"))).unwrap();
    }
    fs::create_dir(top.join("tmp")).unwrap();
    fs::set_permissions(top.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::create_dir(top.join("closed")).unwrap();
    fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    set_times(top, 0);
}

/// Devices with one name each: those that rsync keeps with two others may come to by either, and they are not believed.
fn name_once(top: &Path) {
    for name in ["dev/null-again", "dev/disk-again"] {
        fs::remove_file(top.join(name)).unwrap();
    }
    set_times(top, 0);
}

/// Two hosts, and what stands for a login of an account on the second.
struct Backups<'a> {
    a: &'a Host,
    b: &'a Host,
    place: PathBuf,
    scripts: [PathBuf; 2],
}

impl<'a> Backups<'a> {
    fn new(a: &'a Host, b: &'a Host) -> Backups<'a> {
        b.sshd();
        let place = b.directory("backups");
        chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
        close(&place);
        let script = |name: &str, program: &Path| {
            let path = b.file(name);
            let user = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
            fs::write(&path, format!("#!/bin/sh\nexec {user} {} \"$@\"\n", program.display())).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        // The account may not look into every directory that a build lies in.
        let program = b.file("dray");
        fs::copy(gate::dray_binary(), &program).unwrap();
        let scripts = [script("their-dray", &program), script("their-rsync", Path::new("rsync"))];
        Backups { a, b, place, scripts }
    }

    fn ssh(&self) -> String {
        self.b.ssh_command()
    }

    fn there(&self, name: &str) -> OsString {
        self.b.remote(&self.place.join(name))
    }

    /// `dray sync`, with the account at the other end.
    fn dray(&self, options: &[&str], from: impl Into<OsString>, to: impl Into<OsString>) -> Outcome {
        let program = self.a.dray().args(["sync", "-aHX", "--numeric-ids"]).args(options);
        let program = program.arg("--remote-dray").arg(&self.scripts[0]).arg("-e").arg(self.ssh());
        program.arg(from.into()).arg(to.into()).time_limit(LONG).run()
    }

    /// rsync, the same.
    fn rsync(&self, options: &[&str], from: impl Into<OsString>, to: impl Into<OsString>) -> Outcome {
        let program = self.a.program("rsync").args(["-aHX", "--numeric-ids", "-M--fake-super"]).args(options);
        let program = program.arg("--rsync-path").arg(&self.scripts[1]).arg("-e").arg(self.ssh());
        program.arg(from.into()).arg(to.into()).time_limit(LONG).run()
    }
}

/// Nothing differs, as rsync sees it.
fn assert_twins(host: &Host, one: &Path, other: &Path, what: &str) {
    let twins = host.program("rsync").args(["-aHAXn", "--numeric-ids", "--checksum", "-i", "--delete"]);
    let twins = twins.arg(slashed(one)).arg(slashed(other)).time_limit(LONG).run().expect(0);
    assert_eq!(twins.stdout_text(), "", "{what}");
}

/// Lets nobody else in: what stands for a device with rsync others may write to.
fn close(top: &Path) {
    fs::set_permissions(top, fs::Permissions::from_mode(0o700)).unwrap();
}

/// Kind, owner and attribute of everything below.
fn facts(top: &Path) -> BTreeMap<PathBuf, (bool, u32, Option<String>)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(path) = left.pop() {
        let there = fs::symlink_metadata(top.join(&path)).unwrap();
        if there.is_dir() {
            left.extend(
                fs::read_dir(top.join(&path)).unwrap().map(|entry| path.join(entry.unwrap().file_name())),
            );
        }
        let attribute = attribute(&top.join(&path));
        found.insert(path, (there.is_dir(), there.uid(), attribute));
    }
    found
}

/// S88: root's tree goes to an account that is not root, and comes back as it was: owners, setuid, devices, fifos, sockets, links and their owners, hard links. The same
/// again does nothing either way and says so; what goes at the source goes there; a further backup takes all of it from the one before.
#[test]
fn a_machine_is_backed_up_and_restored() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let backups = Backups::new(a, b);
    let (source, restored) = (a.directory("machine"), a.directory("restored"));
    machine(&source);
    let up = |options: &[&str], to: &str| {
        backups.dray(&[&["--fake-super", "-i"], options].concat(), slashed(&source), backups.there(to))
    };
    let planned = up(&["-n"], "copy").expect(0).stdout_text();
    assert!(planned.contains("cD+++++++++ dev/null") && !backups.place.join("copy").exists(), "{planned}");
    up(&[], "copy").expect(0);
    let found = facts(&backups.place.join("copy"));
    assert_eq!(found.len(), facts(&source).len());
    for (path, (is_directory, uid, _)) in &found {
        let there = fs::symlink_metadata(backups.place.join("copy").join(path)).unwrap();
        assert!(*uid == NOBODY && (*is_directory || there.is_file()), "{path:?}");
        assert_eq!(there.mode() & 0o7022, 0, "others may write to {path:?}");
    }
    let says = |path: &str| found[Path::new(path)].2.as_deref();
    assert_eq!(says("bin/su"), Some("104755 0,0 0:0"));
    assert_eq!(says("dev/null"), Some("20666 1,3 0:6"));
    assert_eq!(says("etc/link"), Some("120777 0,0 12:13"));
    assert_eq!((says("home/me/nobody's"), says("home/me/locked")), (None, Some("100000 0,0 1000:1000")));
    for options in [&["-n"][..], &[], &["--delete"], &["-c"]] {
        let again = up(&[options, &["--stats"]].concat(), "copy").expect(0).stdout_text();
        let first = again.lines().next().unwrap_or_default();
        assert!(first.starts_with("Number of entries"), "{options:?}: {again}");
        let none = if options == ["-n"] { "compare or change: 0\n" } else { "files transferred: 0\n" };
        assert!(again.contains(none), "{options:?}: {again}");
    }
    let down = |options: &[&str]| {
        let options = [&["--fake-super", "-i"], options].concat();
        backups.dray(&options, slashed(backups.there("copy")), slashed(&restored))
    };
    assert!(down(&["-n"]).expect(0).stdout_text().contains("cD+++++++++ dev/null"));
    down(&[]).expect(0);
    assert_twins(a, &source, &restored, "restored");
    assert!(fs::symlink_metadata(restored.join("dev/disk")).unwrap().file_type().is_block_device());
    assert_eq!(down(&["--delete"]).expect(0).stdout_text(), "");
    // A day later.
    fs::remove_file(source.join("dev/pipe")).unwrap();
    fs::remove_file(source.join("dev/pipe-again")).unwrap();
    chown(source.join("etc/shadow"), Some(0), Some(43)).unwrap();
    fs::set_permissions(source.join("bin/su"), fs::Permissions::from_mode(0o755)).unwrap();
    lchown(source.join("etc/link"), Some(14), Some(13)).unwrap();
    set_times(&source, 0);
    up(&["--link-dest=../copy", "--delete"], "next").expect(0);
    let inode =
        |name: &str, path: &str| fs::symlink_metadata(backups.place.join(name).join(path)).unwrap().ino();
    for path in ["etc/passwd", "dev/null", "dev/socket", "home/me/text", "home/me/locked"] {
        assert_eq!(inode("copy", path), inode("next", path), "{path}");
    }
    for path in ["etc/shadow", "bin/su", "etc/link"] {
        assert_ne!(inode("copy", path), inode("next", path), "{path}");
    }
    assert_eq!(
        says("bin/su"),
        attribute(&backups.place.join("copy/bin/su")).as_deref(),
        "the first is as it was"
    );
    let changed = up(&["--delete"], "copy").expect(0).stdout_text();
    let mut changed: Vec<&str> = changed.lines().collect();
    changed.sort_unstable();
    let expected = [
        "*deleting   dev/pipe",
        "*deleting   dev/pipe-again",
        ".L....o.... etc/link -> ../bin/su",
        ".f...p..... bin/su",
        ".f.....g... etc/shadow",
    ];
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(changed, expected);
    down(&["--delete"]).expect(0);
    assert_twins(a, &source, &restored, "restored a day later");
}

/// S88: what rsync kept dray restores, what dray kept rsync restores, and neither finds anything to do in what the other wrote. Both write the same attributes.
#[test]
fn rsync_and_dray_read_what_the_other_wrote() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let backups = Backups::new(a, b);
    let source = a.directory("machine");
    machine(&source);
    name_once(&source);
    backups.rsync(&[], slashed(&source), slashed(backups.there("theirs"))).expect(0);
    backups.dray(&["--fake-super"], slashed(&source), slashed(backups.there("ours"))).expect(0);
    let (ours, theirs) = (facts(&backups.place.join("ours")), facts(&backups.place.join("theirs")));
    assert_eq!(ours, theirs);
    // What rsync wrote stays as it is, and so what dray did, but for bits that let others write.
    let options = ["--fake-super", "-i", "--delete", "--stats"];
    let over = backups.dray(&options, slashed(&source), slashed(backups.there("theirs"))).expect(0);
    let over = over.stdout_text();
    assert!(over.starts_with("Number of entries") && over.contains("files transferred: 0\n"), "{over}");
    let over = backups.rsync(&["-i", "--delete"], slashed(&source), slashed(backups.there("ours"))).expect(0);
    assert_eq!(over.stdout_text(), "");
    let (from_rsync, from_dray) = (a.directory("from-rsync"), a.directory("from-dray"));
    backups.dray(&["--fake-super"], slashed(backups.there("theirs")), slashed(&from_rsync)).expect(0);
    assert_twins(a, &source, &from_rsync, "what rsync kept and dray restored");
    backups.dray(&["--fake-super"], slashed(&source), slashed(backups.there("fresh"))).expect(0);
    backups.rsync(&[], slashed(backups.there("fresh")), slashed(&from_dray)).expect(0);
    assert_twins(a, &source, &from_dray, "what dray kept and rsync restored");
}

/// S88: within a host, also as root where it is told to: to a tree of attributes and from there, as rsync has it, which counts at both ends then.
#[test]
fn root_fakes_where_it_is_told_to() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let top = a.directory("top");
    let [source, ours, theirs, plain, restored] =
        ["source", "ours", "theirs", "plain", "restored"].map(|name| top.join(name));
    machine(&source);
    name_once(&source);
    close(&top);
    // So that it is seen at the roots, too.
    chown(&source, Some(7), Some(7)).unwrap();
    let dray = |options: &[&str], from: &Path, to: &Path| {
        let program = a.dray().args(["sync", "-aHX", "-i"]).args(options);
        program.arg(slashed(from)).arg(to).time_limit(LONG).run()
    };
    dray(&["--fake-super=dst"], &source, &ours).expect(0);
    a.program("rsync").args(["-aHX", "--fake-super"]).arg(slashed(&source)).arg(&theirs).run().expect(0);
    let says = |top: &Path| -> Vec<_> {
        let found =
            facts(top).into_iter().map(|(path, (is_directory, uid, says))| (path, is_directory, uid, says));
        // Which others may not write to say so.
        found
            .filter(|(path, ..)| fs::symlink_metadata(source.join(path)).unwrap().mode() & 0o22 == 0)
            .collect()
    };
    assert_eq!(says(&ours), says(&theirs));
    assert_eq!(dray(&["--fake-super=dst"], &source, &ours).expect(0).stdout_text(), "");
    dray(&["--fake-super=both"], &theirs, &top.join("third")).expect(0);
    assert_eq!(facts(&ours), facts(&top.join("third")));
    // Not told to, root keeps all for real, and does not believe what it finds.
    dray(&["--fake-super"], &source, &plain).expect(0);
    assert_twins(a, &source, &plain, "root keeps all for real");
    let refused = dray(&["--fake-super"], &ours, &restored);
    assert!(refused.stderr_text().contains("--fake-super=src has root believe it"), "{refused}");
    assert!(refused.code() != Some(0) && !restored.join("etc").exists(), "{refused}");
    let refused = dray(&["--fake-super"], &source, &ours);
    assert!(refused.stderr_text().contains("--fake-super=dst"), "{refused}");
    assert!(refused.code() != Some(0) && facts(&ours) == facts(&top.join("third")), "{refused}");
    dray(&["--fake-super=src"], &ours, &restored).expect(0);
    assert_twins(a, &source, &restored, "restored");
    let wrong = a.dray().args(["sync", "-a", "--fake-super=me", "s/", "d"]).run().expect(2);
    assert!(wrong.stderr_text().contains("src, dst or both"), "{wrong}");
}

/// S88: what root keeps in a directory of an account, and rsync kept there as root, root restores from there: a device that others may write to where it stands only once
/// they cannot come to it, be it by a name elsewhere.
#[test]
fn an_accounts_directory_gives_back_what_root_kept_there() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let top = a.directory("top");
    let source = top.join("source");
    machine(&source);
    name_once(&source);
    for program in ["dray", "rsync"] {
        let [kept, restored] = ["kept", "restored"].map(|name| top.join(format!("{program}-{name}")));
        fs::create_dir(&kept).unwrap();
        chown(&kept, Some(1234), Some(1234)).unwrap();
        let words = match program {
            "dray" => a.dray().args(["sync", "-aHX", "--fake-super=dst"]),
            _ => a.program("rsync").args(["-aHX", "--fake-super"]),
        };
        words.arg(slashed(&source)).arg(&kept).time_limit(LONG).run().expect(0);
        let uid = |path: &str| fs::metadata(kept.join(path)).unwrap().uid();
        assert_eq!((uid("."), uid("bin/su"), uid("home/me/text")), (1234, 0, 0), "{program}");
        let down = || {
            let down = a.dray().args(["sync", "-aHX", "--fake-super=src"]).arg(slashed(&kept)).arg(&restored);
            down.time_limit(LONG).run()
        };
        fs::set_permissions(&top, fs::Permissions::from_mode(0o755)).unwrap();
        let open = down().expect(if program == "dray" { 0 } else { 8 });
        let said = open.stderr_text();
        let is_refused = |name: &str| said.contains(name) && !restored.join(name).exists();
        assert_eq!(["dev/null", "dev/disk"].map(is_refused), [program == "rsync"; 2], "{open}");
        assert!(restored.join("home/me/text").exists() && restored.join("bin/su").exists(), "{open}");
        close(&top);
        down().expect(0);
        assert_twins(a, &source, &restored, program);
        // A snapshot beside it, with hard links, that others can come to.
        let snapshot = a.directory(&format!("{program}-snapshot"));
        fs::remove_file(restored.join("dev/null")).unwrap();
        fs::hard_link(kept.join("dev/null"), snapshot.join("null")).unwrap();
        let shared = down().expect(if program == "dray" { 0 } else { 8 });
        assert_eq!(restored.join("dev/null").exists(), program == "dray", "{shared}");
        let said = shared.stderr_text();
        assert_eq!(said.contains("dev/null") && said.contains("hard links"), program == "rsync", "{shared}");
    }
}

/// S51, S88: a host without `/proc` keeps and tells the same.
#[test]
fn a_host_without_proc_keeps_attributes() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let top = a.directory("top");
    let [source, kept, again, restored] = ["source", "kept", "again", "restored"].map(|name| top.join(name));
    machine(&source);
    let without_proc = |options: &[&str], from: &Path, to: &Path| {
        let script = "mount -t tmpfs none /proc && exec \"$@\"";
        let program = a.program("unshare").args(["--mount", "sh", "-c", script, "sh"]);
        let program = program.arg(gate::dray_binary()).args(["sync", "-aHX", "-i"]).args(options);
        program.arg(slashed(from)).arg(to).time_limit(LONG).run().expect(0).stdout_text()
    };
    let dst = ["--fake-super=dst"];
    without_proc(&dst, &source, &kept);
    assert_eq!(without_proc(&dst, &source, &kept), "");
    without_proc(&["--fake-super=both"], &kept, &again);
    assert_eq!(facts(&kept), facts(&again));
    a.dray().args(["sync", "-aHX", "--fake-super=src"]).arg(slashed(&again)).arg(&restored).run().expect(0);
    assert_twins(a, &source, &restored, "kept without /proc");
}

/// S88: what it does not go with is a usage error, before anything is there.
#[test]
fn what_fake_super_does_not_go_with_is_refused() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, to) = (a.directory("source"), a.file("to"));
    write(&source.join("f"), b"f", 0);
    for (options, words) in [
        (&["-A"][..], "--fake-super does not go with -A"),
        (&["--remove-source-files"], "--fake-super: what attributes"),
        (&["--atomic", "--delete"], "--fake-super"),
    ] {
        let program = a.dray().args(["sync", "-a", "--fake-super"]).args(options);
        let refused = program.arg(slashed(&source)).arg(&to).run().expect(2);
        assert!(refused.stderr_text().contains(words) && !to.exists(), "{options:?}: {refused}");
        assert!(source.join("f").exists(), "{options:?}");
    }
}

/// S88: root that keeps all for real, without the option, leaves attributes of before where they are, and removes them with `-X`, as rsync does.
#[test]
fn attributes_of_before_are_treated_as_rsync_does() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    write(&source.join("f"), b"f", 0);
    let left = |program: &str, options: &str| {
        let to = a.directory(&format!("{program}{options}"));
        let run = |words: &[&str]| {
            let run = match program {
                "dray" => a.dray().arg("sync"),
                _ => a.program("rsync"),
            };
            run.args(words).arg(slashed(&source)).arg(&to).run().expect(0);
        };
        run(&[options]);
        set_attribute(&to.join("f"), "104755 0,0 7:8");
        set_attribute(&to, "40700 0,0 7:8");
        run(&[options]);
        ["f", "."].map(|name| attribute(&to.join(name)))
    };
    for (options, stays) in [("-a", true), ("-aX", false)] {
        let ours = left("dray", options);
        assert_eq!(ours, left("rsync", options), "{options}");
        assert_eq!(ours.map(|says| says.is_some()), [stays; 2], "{options}");
    }
}

/// S88, threat model: an attribute that another user set gives nobody powers: not in a backup that others can write to, nor at the source of one that root makes.
#[test]
fn attributes_of_others_are_not_believed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let backups = Backups::new(a, b);
    let (source, restored) = (a.directory("machine"), a.directory("restored"));
    write(&source.join("tmp/fine"), b"fine", 0);
    let set_up = backups.dray(&["--fake-super"], slashed(&source), slashed(backups.there("copy"))).expect(0);
    drop(set_up);
    let planted = backups.place.join("copy/tmp/shell");
    write(&planted, b"#!/bin/sh\n", 0);
    chown(&planted, Some(1234), Some(1234)).unwrap();
    set_attribute(&planted, "104755 0,0 0:0");
    let options = ["--fake-super", "--delete"];
    let outcome = backups.dray(&options, slashed(backups.there("copy")), slashed(&restored)).expect(8);
    assert!(
        outcome.stderr_text().contains("tmp/shell") && outcome.stderr_text().contains("another user"),
        "{outcome}"
    );
    assert!(!restored.join("tmp/shell").exists() && restored.join("tmp/fine").exists());
    fs::remove_file(&planted).unwrap();
    // A user of the machine itself.
    let shell = source.join("tmp/shell");
    write(&shell, b"#!/bin/sh\n", 0);
    chown(&shell, Some(1234), Some(1234)).unwrap();
    set_attribute(&shell, "104755 0,0 0:0");
    let outcome = backups.dray(&["--fake-super"], slashed(&source), slashed(backups.there("copy"))).expect(8);
    assert!(outcome.stderr_text().contains("root does not believe unasked"), "{outcome}");
    assert_eq!(attribute(&planted).as_deref(), Some("100644 0,0 1234:1234"), "it is there, as what it is");
    // Rubbish, in the account's own.
    set_attribute(&backups.place.join("copy/tmp/fine"), "104755 0,0 0:00");
    fs::remove_dir_all(restored.join("tmp")).unwrap();
    let outcome =
        backups.dray(&["--fake-super"], slashed(backups.there("copy")), slashed(&restored)).expect(8);
    assert!(outcome.stderr_text().contains("tmp/fine") && !restored.join("tmp/fine").exists(), "{outcome}");
    let found = fs::metadata(restored.join("tmp/shell")).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (1234, 0o644));
}

/// S88: a file system that keeps no attributes is refused before anything is written.
#[test]
fn a_place_without_attributes_is_refused() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, place) = (a.directory("source"), a.directory("place"));
    write(&source.join("f"), b"f", 0);
    let tool = |program: &str, words: &[&str]| {
        let done = std::process::Command::new(program).args(words).arg(&place).status().unwrap();
        assert!(done.success(), "{program}");
    };
    tool("mount", &["-t", "ramfs", "none"]);
    let runs = [&["-n"][..], &[]].map(|options| {
        let program = a.dray().args(["sync", "-a", "--fake-super=dst"]).args(options);
        program.arg(slashed(&source)).arg(place.join("new")).run()
    });
    let is_empty = fs::read_dir(&place).unwrap().next().is_none();
    tool("umount", &[]);
    assert!(is_empty);
    for outcome in runs {
        assert!(outcome.stderr_text().contains("keeps no attributes of users"), "{outcome}");
        assert_ne!(outcome.code(), Some(0), "{outcome}");
    }
}
