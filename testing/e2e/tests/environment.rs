//! Surroundings that fail: full and read-only disks, users without rights, unreachable hosts; and the commands that
//! look at the surroundings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_e2e::actions::{self, NOBODY, Share, assert_delivered, assert_not_delivered, share};
use dray_e2e::data::{self, MIB};
use dray_e2e::live::{mounted, tool};
use dray_e2e::{Host, Lab, Program};

/// A file system of its own, of `size_bytes`, mounted on `host`. The lab unmounts it.
fn mount_small(host: &Host, name: &str, size_bytes: u64) -> PathBuf {
    let mount = mounted(host, name, &["mkfs.ext4", "-q", "-F", "-m", "0"], size_bytes);
    fs::remove_dir(mount.join("lost+found")).unwrap();
    mount
}

/// Issue "disk full (small loop mount)", exit 7: for get, for cp either way, for put from standard input.
#[test]
fn a_full_disk_is_exit_7() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 40 * MIB, 1);
    let share = share(a, &source);
    let small = mount_small(b, "small", 24 * MIB);
    let copy = small.join("copy");
    actions::get(b, &share.ticket, &copy).run().expect(7);
    assert_not_delivered(&copy);
    actions::copy_to(a, b, &source, &copy).run().expect(7);
    assert_not_delivered(&copy);
    actions::copy_from(a, b, &source, &copy).run().expect(7);
    assert_not_delivered(&copy);

    let data_dir = mount_small(b, "data", 24 * MIB);
    let put = b.dray().args(["put", "-"]).input_file(&source).env("DRAY_DATA_DIR", data_dir.join("dray"));
    put.run().expect(7);
    let used = directory_bytes(&data_dir.join("dray"));
    assert!(used < MIB, "a failed put leaves nothing behind, but {used} bytes are there");

    // With room made, the same command finishes.
    let roomy = mount_small(b, "roomy", 64 * MIB);
    let filler = roomy.join("filler");
    data::write_random(&filler, 30 * MIB, 2);
    let copy = roomy.join("copy");
    actions::get(b, &share.ticket, &copy).run().expect(7);
    fs::remove_file(&filler).unwrap();
    actions::get(b, &share.ticket, &copy).run().expect(0);
    data::assert_same(&source, &copy);
    assert_eq!(data::names(&roomy), ["copy"]);
}

fn directory_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            if entry.file_type().unwrap().is_dir() {
                directory_bytes(&entry.path())
            } else {
                entry.metadata().unwrap().len()
            }
        })
        .sum()
}

/// Issue "read-only mount", exit 6, with the path in the error.
#[test]
fn a_read_only_mount_is_exit_6() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 2 * MIB, 1);
    let share = share(a, &source);
    let mount = mount_small(b, "fixed", 24 * MIB);
    let on_it = mount.join("source");
    data::write_random(&on_it, MIB, 2);
    tool(&["mount", "-o", "remount,ro", mount.to_str().unwrap()]);
    let copy = mount.join("copy");
    let got = actions::get(b, &share.ticket, &copy).run().expect(6);
    assert!(got.stderr_text().contains("fixed"), "the error names the place: {got}");
    actions::copy_to(a, b, &source, &copy).run().expect(6);
    actions::copy_from(a, b, &source, &copy).run().expect(6);
    assert_eq!(data::names(&mount), ["source"]);

    // What lies on it can be served.
    let share = actions::share(b, &on_it);
    let copy = a.directory("got").join("copy");
    actions::get(a, &share.ticket, &copy).run().expect(0);
    data::assert_same(&on_it, &copy);
}

/// `dray` as a user without rights, in directories of its own.
fn as_nobody<'a>(host: &'a Host, dir: &Path) -> Program<'a> {
    let mut program = host.dray().user(NOBODY).directory(dir);
    for (name, sub) in [
        ("HOME", ""),
        ("DRAY_DATA_DIR", "data"),
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_DATA_HOME", "share"),
        ("XDG_STATE_HOME", "state"),
        ("XDG_CACHE_HOME", "cache"),
        ("XDG_RUNTIME_DIR", "run"),
    ] {
        program = program.env(name, dir.join(sub));
    }
    program
}

/// Issue "unprivileged user": put, get and cp need no rights of root, and what a user may not is exit 6.
#[test]
fn an_unprivileged_user_is_served_and_confined() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let mine = b.directory("mine");
    chown(&mine, Some(NOBODY), Some(NOBODY)).unwrap();
    let source = a.file("source");
    data::write_random(&source, 9 * MIB, 1);
    let served = share(a, &source);
    let copy = mine.join("copy");
    as_nobody(b, &mine).args(["get", &served.ticket, "-o"]).arg(&copy).run().expect(0);
    data::assert_same(&source, &copy);

    let put = as_nobody(b, &mine).arg("put").arg(&copy).time_limit(Duration::from_secs(120)).start();
    let theirs = Share::of(put);
    let back = a.directory("back").join("copy");
    actions::get(a, &theirs.ticket, &back).run().expect(0);
    assert_delivered(&source, &back, Some(&theirs.hash()));
    theirs.end();

    let forbidden = b.directory("forbidden");
    let target = forbidden.join("copy");
    as_nobody(b, &mine).args(["get", &served.ticket, "-o"]).arg(&target).run().expect(6);
    assert!(data::names(&forbidden).is_empty());

    let secret = b.file("secret");
    data::write_random(&secret, 100, 2);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    as_nobody(b, &mine).arg("put").arg(&secret).run().expect(6);
    let homeless =
        as_nobody(b, &mine).env("DRAY_DATA_DIR", forbidden.join("data")).arg("put").arg(&copy).run();
    homeless.expect(6);
}

/// What `put` cannot share is named: exit 3 for nothing there, an error for what is no file.
#[test]
fn what_cannot_be_shared_is_named() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    actions::put(host, &host.file("nothing")).run().expect(3);
    for odd in ["/dev/null", "/dev/zero", "/"] {
        let outcome = host.dray().args(["put", odd]).time_limit(Duration::from_secs(10)).run();
        assert!(matches!(outcome.code(), Some(2 | 6)), "{outcome}");
        outcome.assert_manners();
    }
    let fifo = host.file("fifo");
    tool(&["mkfifo", fifo.to_str().unwrap()]);
    let outcome = actions::put(host, &fifo).time_limit(Duration::from_secs(10)).run();
    assert!(matches!(outcome.code(), Some(2 | 6)), "{outcome}");
    outcome.assert_manners();
}

/// Design 5 and 9: nobody there is exit 5, in time; so is an ssh that does not get in.
#[test]
fn nobody_there_is_exit_5() {
    let Some(lab) = Lab::of(3).build() else { return };
    let (a, b, gone) = (lab.host(0), lab.host(1), lab.host(2));
    let source = a.file("source");
    data::write_random(&source, 2 * MIB, 1);
    let served = share(a, &source);
    let ticket = served.ticket.clone();
    served.end();
    let started = Instant::now();
    actions::get(b, &ticket, &b.file("copy")).run().expect(5);
    // A host that drops everything instead of refusing it.
    gone.allow_only_ssh();
    let lost = actions::put(gone, &{
        let file = gone.file("source");
        data::write_random(&file, MIB, 2);
        file
    })
    .start();
    let lost = Share::of(lost);
    actions::get(b, &lost.ticket, &b.file("copy")).run().expect(5);
    assert!(started.elapsed() < Duration::from_secs(45), "{:?}", started.elapsed());

    let refused =
        a.dray().args(["cp", "-o", "BatchMode=yes", "-P", "9"]).arg(&source).arg(b.remote(Path::new("x")));
    refused.run().expect(5);
    let no_key = a.dray().args(["cp", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
    b.sshd();
    let no_key =
        no_key.args(["-o", "UserKnownHostsFile=/dev/null"]).arg(&source).arg(b.remote(Path::new("x"))).run();
    assert!(matches!(no_key.code(), Some(5 | 6)), "{no_key}");
    no_key.assert_manners();
    let no_dray = actions::copy_to(a, b, &source, Path::new("x"))
        .args(["--remote-dray", "/nowhere/dray"])
        .run()
        .expect(3);
    assert!(no_dray.stderr_text().contains("/nowhere/dray"), "{no_dray}");
    assert!(!b.home().join("x").exists());
}

/// Design 5: the commands beside the transfers do what they say, and bad usage is exit 2.
#[test]
fn the_commands_beside_the_transfers() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("file");
    data::write_random(&file, 20 * MIB, 1);
    let demo = host.dray().arg("demo").arg(&file).run().expect(0);
    assert!(demo.stdout_text().contains(&data::b3sum(&file)), "the demo shows the proof: {demo}");
    host.dray().arg("doctor").run().expect(0);
    for shell in ["bash", "zsh", "fish"] {
        assert!(!host.dray().args(["completions", shell]).run().expect(0).stdout.is_empty());
    }
    let help = host.dray().arg("--help").run().expect(0).stdout_text();
    for command in ["put", "get", "cp", "verify", "demo", "doctor", "completions"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command} in {help}");
    }
    host.dray().arg("--version").run().expect(0);
    let usages: [&[&str]; 7] = [
        &[],
        &["frobnicate"],
        &["put"],
        &["put", "--expire", "soon", "file"],
        &["get"],
        &["cp", "only-one"],
        &["get", "--no-such-flag", "x"],
    ];
    for usage in usages {
        let outcome = host.dray().args(usage).run();
        assert_eq!(outcome.code(), Some(2), "{outcome}");
    }
}

/// Design 5, `--json`: each line of standard output is an event.
#[test]
fn json_is_one_event_a_line() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 5 * MIB, 1);
    let put = actions::put(a, &source).arg("--json").start();
    let shared = event(&put.line_with(|line| event(line)["ticket"].is_string()));
    let ticket = shared["ticket"].as_str().unwrap();
    let copy = b.directory("got").join("copy");
    let got = actions::get(b, ticket, &copy).arg("--json").run().expect(0);
    let lines: Vec<_> = got.stdout_text().lines().map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{got}");
    for line in &lines {
        event(line);
    }
    assert!(
        lines.iter().any(|line| line.contains(&data::b3sum(&copy))),
        "an event names what arrived: {got}"
    );
    let failed = actions::get(b, "dray:nonsense", &b.file("x")).arg("--json").run();
    assert_eq!(failed.code(), Some(2));
    put.terminate().expect(0);
}

fn event(line: &str) -> serde_json::Value {
    let event: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert!(event["event"].is_string(), "an event says what it is: {line}");
    event
}
