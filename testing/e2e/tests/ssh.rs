//! `dray cp` over ssh as people have it: their configuration, hosts without dray, confined keys, words for what is wrong.
//! What lies between the hosts is in `paths.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::message::{Hello, Message, PROTOCOL_VERSION};
use dray_e2e::actions::{self, assert_delivered};
use dray_e2e::data::{self, MIB};
use dray_e2e::sshd::SHELL;
use dray_e2e::{Host, Lab, Outcome, Program};

/// `dray cp` on `from`, with options for ssh.
fn cp<'a>(from: &'a Host, options: &[String]) -> Program<'a> {
    from.dray().arg("cp").args(options)
}

/// A session whose `PATH` has no dray.
fn bare_session() -> String {
    format!("export PATH=/usr/bin:/bin\n{SHELL}")
}

fn write_script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Issue 4 "ssh options and ssh_config are honoured (-P -J -i -o, ProxyJump …)", "one authentication only".
#[test]
fn the_users_ssh_configuration_is_obeyed() {
    let Some(lab) = Lab::of(3).build() else { return };
    let (a, b, gate) = (lab.host(0), lab.host(1), lab.host(2));
    b.sshd();
    gate.sshd();
    let source = a.file("source");
    data::write_random(&source, 6 * MIB, 1);
    let common = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nUser root\nIdentitiesOnly yes\n";
    let entry = |name: &str, host: &Host, more: &str| {
        let key = host.sshd().client_key();
        format!("Host {name}\nHostName {}\nIdentityFile {}\n{more}{common}", host.address(), key.display())
    };
    let config = a.file("ssh_config");
    let text = entry("far", b, "") + &entry("gate", gate, "") + &entry("behind", b, "ProxyJump gate\n");
    fs::write(&config, text).unwrap();
    let with = |more: &[&str]| {
        let config = config.to_str().unwrap();
        ["-F", config].into_iter().chain(more.iter().copied()).map(str::to_owned).collect::<Vec<_>>()
    };
    for (number, (options, host)) in [
        (with(&[]), "far"),
        (with(&["-o", "Compression=no", "-4", "-C"]), "far"),
        (with(&[]), "behind"),
        (with(&["-J", "gate"]), "far"),
        (with(&[]), "[far]"),
    ]
    .into_iter()
    .enumerate()
    {
        let (logins, through) = (b.sshd().logins(), gate.sshd().logins());
        let there = b.directory(&number.to_string()).join("copy");
        cp(a, &options).arg(&source).arg(format!("{host}:{}", there.display())).run().expect(0);
        assert_delivered(&source, &there, None);
        assert_eq!(b.sshd().logins() - logins, 1, "one login: {options:?} {host}");
        assert_eq!(
            gate.sshd().logins() - through,
            usize::from(number == 2 || number == 3),
            "{options:?} {host}"
        );
    }
    // Compression is whatever the user says, by any of the ways of saying it: small files go through ssh alone.
    let text = a.file("text");
    fs::write(&text, "the same line again and again, with a number\n".repeat(40_000)).unwrap();
    let compressing = a.file("compressing");
    fs::write(&compressing, format!("Compression yes\n{}", fs::read_to_string(&config).unwrap())).unwrap();
    let configured = ["-F".to_owned(), compressing.to_str().unwrap().to_owned()].to_vec();
    for (number, (options, is_compressed)) in [
        (with(&[]), false),
        (with(&["-C"]), true),
        (with(&["-o", "Compression=yes"]), true),
        (configured, true),
    ]
    .into_iter()
    .enumerate()
    {
        let there = b.directory(&format!("text-{number}")).join("copy");
        let verbose = ["-o", "LogLevel=DEBUG1"].map(str::to_owned);
        let copied = cp(a, &options).args(&verbose).arg(&text).arg(format!("far:{}", there.display()));
        let copied = copied.run().expect(0);
        assert_delivered(&text, &there, None);
        let says = copied.stderr_text().contains("Enabling compression");
        assert_eq!(says, is_compressed, "{options:?}: {copied}");
    }
    let six = cp(a, &with(&["-6"])).arg(&source).arg("far:x").run();
    six.expect(5);
    // A path in `-e`, and in what rsync reads without it, is the ssh that is run.
    let (ssh, ran) = (a.directory("own ssh").join("ssh"), a.file("ran"));
    write_script(&ssh, &format!("#!/bin/sh\necho ran >> {}\nexec ssh \"$@\"\n", ran.display()));
    let command = |path: &Path| format!("'{}' -F {}", path.display(), config.display());
    let places = ["by-option", "by-variable", "missing"].map(|name| b.directory(name).join("copy"));
    let sync = |there: &Path| a.dray().arg("sync").arg(&text).arg(format!("far:{}", there.display()));
    sync(&places[0]).args(["-e", &command(&ssh)]).run().expect(0);
    assert!(fs::read_to_string(&ran).unwrap().ends_with("ran\n"));
    fs::remove_file(&ran).unwrap();
    sync(&places[1]).env("RSYNC_RSH", command(&ssh)).run().expect(0);
    assert!(fs::read_to_string(&ran).unwrap().ends_with("ran\n"));
    places[..2].iter().for_each(|there| assert_delivered(&text, there, None));
    let missing = sync(&places[2]).args(["-e", &command(&a.file("no/ssh"))]).run().expect(5);
    assert!(missing.stderr_text().contains("no/ssh: "), "{missing}");
}

/// Issue 4 "remote `~` and globs": what a path means there, in both directions, whatever bytes it has; several matches are
/// an error that names them.
#[test]
fn remote_paths_mean_what_they_mean_to_scp() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let options = b.ssh_options();
    let at = |path: &OsStr| {
        let mut text = std::ffi::OsString::from(format!("root@{}:", b.address()));
        text.push(path);
        text
    };
    let home = b.home();
    let odd = [
        &b"a b"[..],
        b"it's",
        b"\"quoted\"",
        b"new\nline",
        b"-dash",
        b"$HOME",
        b"`id`",
        b"[1].iso",
        b"a*b",
        b"\xff\xfe",
        b"~tilde",
    ];
    for (number, name) in odd.into_iter().enumerate() {
        let name = OsStr::from_bytes(name);
        let source = home.join(name);
        data::write_random(&source, 50_000, number as u64);
        let into = a.directory(&format!("odd-{number}"));
        cp(a, &options).arg(at(name)).arg(&into).run().expect(0);
        assert_delivered(&source, &into.join(name), None);
        // And the other way, beside another name that a pattern would match.
        let back = b.directory(&format!("back-{number}"));
        let mut there = back.clone().into_os_string();
        there.push("/");
        there.push(name);
        cp(a, &options).arg(into.join(name)).arg(at(&there)).run().expect(0);
        assert_delivered(&source, &back.join(name), None);
    }
    fs::create_dir(home.join("sub")).unwrap();
    data::write_random(&home.join("sub/only.one"), 1000, 50);
    data::write_random(&home.join("sub/two.1"), 1000, 51);
    data::write_random(&home.join("sub/two.2"), 1000, 52);
    for (number, path) in
        ["~/sub/only.one", "sub/only.one", "s?b/*.one", "~/sub/o[a-z]ly*", "./sub/o*"].into_iter().enumerate()
    {
        let into = a.directory(&format!("path-{number}"));
        cp(a, &options).arg(at(OsStr::new(path))).arg(&into).run().expect(0);
        assert_eq!(data::names(&into), ["only.one"], "{path}");
        data::assert_same(&home.join("sub/only.one"), &into.join("only.one"));
    }
    let several = cp(a, &options).arg(at(OsStr::new("sub/two.*"))).arg(a.file("x")).run();
    assert!(several.stderr_text().contains("several sources go into a directory"), "{several}");
    several.expect(3);
    cp(a, &options).arg(at(OsStr::new("sub/none.*"))).arg(a.file("x")).run().expect(3);
    assert!(!a.file("x").exists());
    cp(a, &options).arg(home.join("a b")).arg(at(OsStr::new("~/sub"))).run().expect(0);
    data::assert_same(&home.join("a b"), &home.join("sub/a b"));
    // Another user's home, which this machine's own database knows.
    cp(a, &options).arg(at(OsStr::new("~daemon/no-such-file"))).arg(a.file("x")).run().expect(3);
}

/// Issue 4 "clear words for: no dray there, other version, banner noise on stdout, host key changed, login refused".
#[test]
fn why_there_is_no_copy() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let options = b.ssh_options();
    let source = a.file("source");
    data::write_random(&source, 5 * MIB, 1);
    let up = |options: &[String]| cp(a, options).arg(&source).arg(b.remote(Path::new("x")));
    let down = |options: &[String]| {
        let there = b.remote(&source);
        cp(a, options).arg(there).arg(a.file("y"))
    };
    let told = |outcome: Outcome, code: i32, words: &[&str]| {
        let text = outcome.stderr_text();
        for word in words {
            assert!(text.contains(word), "{word:?}: {outcome}");
        }
        assert_eq!(outcome.code(), Some(code), "{outcome}");
        assert!(!b.home().join("x").exists() && !a.file("y").exists());
    };
    for session in [
        "echo Welcome to this machine\n".to_owned() + SHELL,
        "printf Wel; echo come >&1\n".to_owned() + SHELL,
    ] {
        b.sshd().set_session(b, &session);
        told(up(&options).run(), 5, &["Welcome", "must print nothing"]);
        told(down(&options).run(), 5, &["Welcome", "must print nothing"]);
    }
    b.sshd().set_session(b, "exec /usr/sbin/nologin\n");
    told(up(&options).run(), 6, &["not available", "runs no commands"]);
    told(down(&options).run(), 6, &["not available", "runs no commands"]);
    told(up(&options).arg("--deploy").run(), 6, &["not available", "runs no commands"]);
    b.sshd().set_session(b, "echo dray 9.9.9\nexit 1\n");
    told(up(&options).run(), 6, &["dray 9.9.9", "another program is called dray"]);
    // What is on standard error hurts nobody.
    b.sshd().set_session(b, &format!("echo noise >&2\n{SHELL}"));
    let noisy = b.directory("noisy").join("copy");
    cp(a, &options).arg(&source).arg(b.remote(&noisy)).run().expect(0);
    assert_delivered(&source, &noisy, None);

    // Nowhere; and where people install it, though no PATH leads there.
    b.sshd().set_session(b, &bare_session());
    for missing in [up(&options).run(), down(&options).run()] {
        let command = format!("dray cp --deploy {}", options.join(" "));
        told(missing, 3, &["has no dray", &command]);
    }
    for dir in [".local/bin", ".cargo/bin"] {
        let dir = b.home().join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::copy(b.dir().join("bin/dray"), dir.join("dray")).unwrap();
        let there = b.directory(dir.parent().unwrap().file_name().unwrap().to_str().unwrap()).join("copy");
        cp(a, &options).arg(&source).arg(b.remote(&there)).run().expect(0);
        assert_delivered(&source, &there, None);
        fs::remove_file(dir.join("dray")).unwrap();
    }
    b.sshd().set_session(b, SHELL);

    // Another version, and something else.
    let hello = Message::Hello(Hello {
        version: PROTOCOL_VERSION + 1,
        features: Vec::new(),
        required: Vec::new(),
        agent: "dray/99".into(),
    })
    .to_bytes();
    let mut frame = FrameHead::new(FrameKind::Control, hello.len(), 0).encode().to_vec();
    frame.extend(hello);
    fs::write(b.file("hello"), frame).unwrap();
    let other = b.file("other-dray");
    write_script(&other, &format!("#!/bin/sh\ncat {}\nexec cat > /dev/null\n", b.file("hello").display()));
    let with = |program: &str| [&options[..], &["--remote-dray".to_owned(), program.to_owned()]].concat();
    let other = with(other.to_str().unwrap());
    told(up(&other).run(), 6, &["another version", "--deploy"]);
    told(down(&other).run(), 6, &["another version", "--deploy"]);
    fs::write(b.file("data"), b"").unwrap();
    told(up(&with(b.file("data").to_str().unwrap())).run(), 6, &["cannot be run"]);
    told(up(&with("/bin/true")).run(), 5, &["without a word"]);

    // A dray there that cannot start: what is wrong with its configuration or data directory, and what to do.
    let config = b.file("bad.toml");
    fs::write(&config, "nonsense = 1\n").unwrap();
    b.sshd().set_session(b, &format!("export DRAY_CONFIG={}\n{SHELL}", config.display()));
    told(up(&options).run(), 6, &["cannot start", "bad.toml", "nonsense"]);
    told(down(&options).run(), 6, &["cannot start", "bad.toml", "nonsense"]);
    let data_dir = config.join("below");
    b.sshd().set_session(b, &format!("export DRAY_DATA_DIR={}\n{SHELL}", data_dir.display()));
    told(up(&options).run(), 6, &["cannot start", "bad.toml/below", "set DRAY_DATA_DIR"]);
    told(down(&options).run(), 6, &["cannot start", "bad.toml/below", "set DRAY_DATA_DIR"]);
    b.sshd().set_session(b, SHELL);

    // ssh itself.
    let mut known = options.clone();
    let hosts = a.file("known_hosts");
    let key = fs::read_to_string(b.sshd().client_key().with_extension("pub")).unwrap();
    fs::write(&hosts, format!("{} {key}", b.address())).unwrap();
    known.retain(|option| !option.starts_with("UserKnownHostsFile"));
    // An -o without its value is left; the file takes its place.
    let at =
        known.iter().zip(known.iter().skip(1)).position(|(one, two)| one == "-o" && two == "-o").unwrap();
    known.insert(at + 1, format!("UserKnownHostsFile={}", hosts.display()));
    let strict: Vec<String> =
        known.iter().map(|option| option.replace("Checking=no", "Checking=yes")).collect();
    told(up(&strict).run(), 6, &["host key is not the one that is known", "ssh-keygen -R"]);
    fs::write(&hosts, "").unwrap();
    told(up(&strict).run(), 6, &["host key is not known here"]);
    let nobody = ["-i", "/dev/null"].map(str::to_owned).into_iter().chain(options[2..].iter().cloned());
    told(up(&nobody.collect::<Vec<_>>()).run(), 6, &["refuses the login"]);
    let port = [&options[..], &["-P".to_owned(), "9".to_owned()]].concat();
    told(up(&port).run(), 5, &["nothing listens", "-P PORT"]);
    told(cp(a, &options).arg(&source).arg("no-such-host.invalid:x").run(), 5, &["name is not known"]);
    let bad = [&options[..], &["-o".to_owned(), "Nonsense=yes".to_owned()]].concat();
    told(up(&bad).run(), 2, &["ssh does not take its options"]);
}

/// Issue 4 "`--deploy` onto a host with a bare shell": nothing there but sh and a few POSIX tools; one login; the next copy
/// finds what is there, with and without the option; nothing is left where it cannot work.
#[test]
fn deploy_to_a_host_with_a_bare_shell() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    // Before sshd starts, which sees what is mounted then. The lab unmounts them.
    let mounts = ["size=1m", "noexec", "ro"].map(|options| {
        let place = b.directory(&format!("mount-{options}"));
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&place).status();
        assert!(mounted.unwrap().success());
        place
    });
    let options = b.ssh_options();
    let deploy = [&options[..], &["--deploy".to_owned()]].concat();
    let source = a.file("source");
    data::write_random(&source, 5 * MIB, 1);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).unwrap();
    let tools = b.directory("tools");
    for tool in ["sh", "cat", "chmod", "dd", "mkdir", "mv", "rm", "uname", "wc"] {
        symlink(Path::new("/bin").join(tool), tools.join(tool)).unwrap();
    }
    // With noise, which this does not mind.
    let session = format!("echo Welcome\numask 027\nexport PATH={}\n{SHELL}", tools.display());
    b.sshd().set_session(b, &session);
    let there = b.directory("there").join("copy");
    let before = b.counters();
    cp(a, &deploy).arg(&source).arg(b.remote(&there)).run().expect(0);
    assert_delivered(&source, &there, None);
    assert_eq!(b.sshd().logins(), 1);
    // As without `--deploy`: the source's bits, less the umask of the login.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&source), mode(&there)), (0o644, 0o640));
    let program_bytes = fs::metadata(dray_e2e::gate::dray_binary()).unwrap().len();
    assert!((b.counters() - before).received_bytes > program_bytes);
    let bin = b.home().join(".cache/dray/bin");
    let [version] = &data::names(&bin)[..] else { panic!("one build") };
    let deployed = bin.join(version).join("dray");
    data::assert_same(&dray_e2e::gate::dray_binary(), &deployed);
    assert_eq!(data::names(&bin.join(version)), ["dray"], "nothing is left beside it");
    assert_eq!(mode(&deployed), 0o700);

    // Once there it is found; another build beside it is left alone.
    let other = bin.join("0.0.1-other/dray");
    fs::create_dir(other.parent().unwrap()).unwrap();
    fs::write(&other, "another version").unwrap();
    let before = b.counters();
    let back = a.directory("back").join("copy");
    cp(a, &deploy).arg(b.remote(&there)).arg(&back).run().expect(0);
    assert_delivered(&source, &back, None);
    b.sshd().set_session(b, &session.replace("echo Welcome\n", ""));
    let again = b.directory("again").join("copy");
    cp(a, &options).arg(&source).arg(b.remote(&again)).run().expect(0);
    assert_delivered(&source, &again, None);
    assert!((b.counters() - before).received_bytes < program_bytes / 2, "it was not sent again");
    assert_eq!(fs::read_to_string(&other).unwrap(), "another version");

    // In a home that hosts of several kinds share, a build for another CPU is not taken for one that runs here.
    let [version, hash] =
        [version.to_str().unwrap().split('-').next(), version.to_str().unwrap().rsplit('-').next()];
    let pdp11 = bin.join(format!("{}-Linux-pdp11-{}", version.unwrap(), hash.unwrap())).join("dray");
    fs::create_dir(pdp11.parent().unwrap()).unwrap();
    write_script(&pdp11, "#!/no/such/interpreter\n");
    let beside = b.directory("beside").join("copy");
    cp(a, &options).arg(&source).arg(b.remote(&beside)).run().expect(0);
    fs::remove_dir_all(deployed.parent().unwrap()).unwrap();
    let missing = cp(a, &options).arg(&source).arg(b.remote(Path::new("x"))).run();
    assert!(missing.stderr_text().contains("has no dray"), "{missing}");
    missing.expect(3);
    fs::remove_dir_all(&bin).unwrap();

    // Where it cannot work: another machine, no room, no right to run or to write; and nothing is left.
    let copy = |cache: &Path, code: i32, words: &str| {
        let session = format!("export XDG_CACHE_HOME={}\n{session}", cache.display());
        b.sshd().set_session(b, &session);
        let failed = cp(a, &deploy).arg(&source).arg(b.remote(Path::new("x"))).run();
        assert!(failed.stderr_text().contains(words), "{failed}");
        failed.expect(code);
        assert!(!b.home().join("x").exists());
    };
    let assert_empty = |cache: &Path| {
        let bin = cache.join("dray/bin");
        let builds = if bin.exists() { data::names(&bin) } else { Vec::new() };
        assert!(builds.iter().all(|build| data::names(&bin.join(build)).is_empty()), "nothing is left");
    };
    for (cache, (code, words)) in
        mounts.iter().zip([(7, "No space left"), (6, "noexec"), (6, "Read-only file system")])
    {
        copy(cache, code, words);
        assert_empty(cache);
    }
    let cache = b.directory("cache");
    let uname = tools.join("uname");
    fs::remove_file(&uname).unwrap();
    write_script(&uname, "#!/bin/sh\ncase $1 in -s) echo Linux;; -m) echo pdp11;; esac\n");
    copy(&cache, 6, "Linux pdp11");
    assert!(data::names(&cache).is_empty());
    fs::remove_file(&uname).unwrap();
    symlink("/bin/uname", &uname).unwrap();
    // Bytes that are lost or changed on the way are noticed before the program gets its name.
    let dd = tools.join("dd");
    fs::remove_file(&dd).unwrap();
    write_script(&dd, "#!/bin/sh\n/bin/dd \"$@\" | /usr/bin/tr '\\001' '\\002'\n");
    let failed = cp(a, &deploy).arg(&source).arg(b.remote(Path::new("x"))).run();
    assert!(matches!(failed.code(), Some(4 | 6)), "{failed}");
    assert_empty(&cache);
}

/// A deployment that is killed on its way leaves nothing that would be run, and the next one works.
#[test]
fn a_killed_deployment_is_started_anew() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (a, b) = lab.pair();
    let deploy = [&b.ssh_options()[..], &["--deploy".to_owned()]].concat();
    let source = a.file("source");
    data::write_random(&source, MIB, 1);
    b.sshd().set_session(b, &bare_session());
    let bin = b.home().join(".cache/dray/bin");
    let partial = || {
        let version = fs::read_dir(&bin).ok()?.next()?.ok()?.path();
        fs::read_dir(version).ok()?.next()?.ok()?.metadata().ok().map(|file| file.len())
    };
    let there = b.directory("there").join("copy");
    let running = cp(a, &deploy).arg(&source).arg(b.remote(&there)).start();
    running.wait_until(false, || partial().is_some_and(|bytes| bytes > MIB));
    running.kill();
    let is_gone = || b.pids_of("dd").is_empty() && b.pids_of("sh").is_empty();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is_gone() {
        assert!(std::time::Instant::now() < deadline, "sh on the far host ends");
        std::thread::sleep(Duration::from_millis(10));
    }
    let version = fs::read_dir(&bin).unwrap().next().unwrap().unwrap().path();
    assert!(!version.join("dray").exists());
    // What such ones left is removed once it is a day old, and nothing else.
    let other = bin.join("0.0.1-other");
    fs::create_dir(&other).unwrap();
    for (name, days) in [(".new.1.0", 2), (".new.2.0", 0), ("dray", 2)] {
        let file = fs::File::create(other.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(days * 86_400)).unwrap();
    }
    cp(a, &deploy).arg(&source).arg(b.remote(&there)).run().expect(0);
    assert_delivered(&source, &there, None);
    assert!(version.join("dray").exists());
    assert_eq!(data::names(&other), [".new.2.0", "dray"]);
}

/// Issue 4 "the restricted key cannot read outside its directory", nor write; and a read-only one not at all.
#[test]
fn a_confined_key_stays_in_its_directory() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let root = b.directory("root");
    let outside = b.directory("outside");
    for (name, seed) in [("file", 1), ("sub/file", 2)] {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        data::write_random(&root.join(name), 5 * MIB, seed);
    }
    data::write_random(&outside.join("secret"), 1000, 3);
    symlink(outside.join("secret"), root.join("absolute")).unwrap();
    symlink("../outside/secret", root.join("relative")).unwrap();
    symlink("../outside", root.join("dir")).unwrap();
    symlink("sub/file", root.join("inside")).unwrap();
    let command = format!("dray serve --stdio --only {}", root.display());
    let writing = b.sshd().restricted_options("writing", &command);
    let reading = b.sshd().restricted_options("reading", &format!("{command} --read-only"));
    let at = |path: &str| format!("root@{}:{path}", b.address());

    for (number, path) in ["file", "./sub/../file", "~/file", "f*e"].into_iter().enumerate() {
        let got = a.directory(&format!("got-{number}")).join("copy");
        cp(a, &reading).arg(at(path)).arg(&got).run().expect(0);
        assert_delivered(&root.join("file"), &got, None);
    }
    let got = a.directory("got-absolute").join("copy");
    cp(a, &reading).arg(at(root.join("inside").to_str().unwrap())).arg(&got).run().expect(0);
    assert_delivered(&root.join("sub/file"), &got, None);
    let secret = outside.join("secret");
    for path in [
        "../outside/secret",
        "absolute",
        "relative",
        "dir/secret",
        "/etc/passwd",
        secret.to_str().unwrap(),
        "sub/../../outside/secret",
    ] {
        let refused = cp(a, &reading).arg(at(path)).arg(a.file("stolen")).run();
        assert!(!a.file("stolen").exists());
        refused.expect(6);
    }
    // The account is not reached either: a forced command takes no other.
    let mut ssh = reading.clone();
    ssh.iter_mut().filter(|word| *word == "-P").for_each(|word| *word = "-p".into());
    let shell =
        a.program("ssh").args(&ssh).arg(format!("root@{}", b.address())).args(["cat", "/etc/passwd"]).run();
    assert!(!shell.stdout_text().contains("root:"), "{shell}");

    let source = a.file("source");
    data::write_random(&source, 5 * MIB + 1, 9);
    for (path, into) in
        [("new", "new"), ("", "source"), ("sub", "sub/source"), ("sub/new", "sub/new"), ("file", "file")]
    {
        let copied = cp(a, &writing).arg("--json").arg(&source).arg(at(path)).run().expect(0);
        data::assert_same(&source, &root.join(into));
        // What it is told is what it may name, and nothing of the account.
        let told = copied.stdout_text();
        let told = told.lines().find(|line| line.contains(r#""event":"delivered""#)).unwrap();
        assert!(told.contains(&format!(r#""path":"{into}""#)), "{told}");
        let refused = cp(a, &reading).arg(&source).arg(at(path)).run();
        assert!(refused.stderr_text().contains("--read-only"), "{refused}");
        refused.expect(6);
    }
    let before = data::names(&outside);
    for path in
        ["../outside/new", "dir", "dir/new", "../new", "/tmp/dray-new", "..", secret.to_str().unwrap()]
    {
        let refused = cp(a, &writing).arg(&source).arg(at(path)).run();
        assert!(matches!(refused.code(), Some(6)), "{path}: {refused}");
    }
    // A link that stays inside is replaced, as everywhere; one that leads out is left alone.
    cp(a, &writing).arg(&source).arg(at("inside")).run().expect(0);
    assert!(!fs::symlink_metadata(root.join("inside")).unwrap().is_symlink());
    cp(a, &writing).arg(&source).arg(at("absolute")).run().expect(6);
    assert_eq!(data::names(&outside), before);
    assert_eq!(fs::metadata(&secret).unwrap().len(), 1000);
    assert!(!Path::new("/tmp/dray-new").exists());

    // A command= that is wrong says so.
    let wrong = b.sshd().restricted_options("wrong", "dray serve --stdio --only /no/such/place");
    let told = cp(a, &wrong).arg(at("file")).arg(a.file("x")).run().expect(3);
    assert!(told.stderr_text().contains("/no/such/place"), "{told}");
    let deployed = cp(a, &reading).arg("--deploy").arg(at("file")).arg(a.file("x")).run().expect(6);
    assert!(deployed.stderr_text().contains("leave --deploy out"), "{deployed}");
}

/// The same for trees, of which nothing lands that would give powers to somebody there: no setuid, no devices.
#[test]
fn trees_of_a_confined_key_stay_in_its_directory() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (root, outside) = (b.directory("root"), b.directory("outside"));
    for number in 0..50 {
        let directory = root.join(format!("sub/{}", number % 7));
        fs::create_dir_all(&directory).unwrap();
        data::write_random(&directory.join(format!("{number}")), number * 1000, number);
    }
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink("../outside", root.join("away")).unwrap();
    symlink(&outside, root.join("sub/absolute")).unwrap();
    symlink("sub", root.join("inside")).unwrap();
    let command = format!("dray serve --stdio --only {}", root.display());
    let writing = b.sshd().restricted_options("writing", &command);
    let reading = b.sshd().restricted_options("reading", &format!("{command} --read-only"));
    let at = |path: &str| format!("root@{}:{path}", b.address());

    for (number, path) in
        ["sub", "./sub/../sub", "~/sub", root.join("sub").to_str().unwrap()].into_iter().enumerate()
    {
        let got = a.file(format!("got-{number}"));
        cp(a, &reading).arg("-a").arg(at(path)).arg(&got).run().expect(0);
        actions::assert_same_tree(a, &root.join("sub"), &got, None);
    }
    // Patterns and links to directories that stay inside, and all of it.
    let several = a.directory("several");
    cp(a, &reading).args(["-r", "-p"]).arg(at("sub/*[13]")).arg(at("inside")).arg(&several).run().expect(0);
    assert_eq!(data::names(&several), ["1", "3", "inside"]);
    cp(a, &reading).arg("-a").arg(at(".")).arg(a.directory("all")).run().expect(0);
    actions::assert_same_tree(a, &root, &a.file("all"), None);

    let tree = a.file("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("setuid"), "#!/bin/sh").unwrap();
    fs::set_permissions(tree.join("setuid"), fs::Permissions::from_mode(0o4755)).unwrap();
    cp(a, &writing).arg("-a").arg(&tree).arg(at("new")).run().expect(0);
    assert_eq!(fs::metadata(root.join("new/setuid")).unwrap().mode() & 0o7777, 0o755);
    cp(a, &writing).args(["-a", "--chmod=u+s"]).arg(&tree).arg(at("inside")).run().expect(0);
    assert_eq!(fs::metadata(root.join("sub/tree/setuid")).unwrap().mode() & 0o7777, 0o755);
    let null = rustix::fs::makedev(1, 3);
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("null"),
        rustix::fs::FileType::CharacterDevice,
        mode,
        null,
    )
    .unwrap();
    let devices = cp(a, &writing).arg("-a").arg(&tree).arg(at("devices")).run().expect(8);
    assert!(devices.stderr_text().contains("devices are not made"), "{devices}");
    assert_eq!(data::names(&root.join("devices")), ["setuid"]);

    let secret = outside.to_str().unwrap();
    let before = data::names(&root);
    for path in ["../outside", "away", "away/", "sub/absolute", "sub/../../outside", secret, "/etc/ssh"] {
        let read = cp(a, &reading).arg("-r").arg(at(path)).arg(a.file("stolen")).run();
        assert!(!a.file("stolen").exists(), "{path}: {read}");
        assert!(matches!(read.code(), Some(6 | 8)), "{path}: {read}");
        let written = cp(a, &writing).arg("-r").arg(&tree).arg(at(path)).run();
        assert!(matches!(written.code(), Some(6)), "{path}: {written}");
        let planned = cp(a, &writing).args(["-r", "--dry-run"]).arg(&tree).arg(at(path)).run();
        assert!(matches!(planned.code(), Some(6)), "{path}: {planned}");
    }
    let refused = cp(a, &reading).arg("-r").arg(&tree).arg(at("sub")).run().expect(6);
    assert!(refused.stderr_text().contains("--read-only"), "{refused}");
    assert_eq!((data::names(&outside), data::names(&root)), (vec!["secret".into()], before));
}

/// A confined key makes its host neither dial nor listen, and nothing crosses but ssh: an unconfined login shows that it
/// would be seen.
#[test]
fn a_confined_key_has_ssh_alone() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let root = b.directory("root");
    data::write_random(&root.join("file"), 40 * MIB, 1);
    let options =
        b.sshd().restricted_options("key", &format!("dray serve --stdio --only {}", root.display()));
    let at = |path: &str| format!("root@{}:{path}", b.address());
    let got = a.file("got");
    let opened = tcp_opened(b);
    cp(a, &options).arg(at("file")).arg(&got).run().expect(0);
    cp(a, &options).arg(&got).arg(at("new")).run().expect(0);
    data::assert_same(&got, &root.join("new"));
    assert_eq!((tcp_opened(b).0 - opened.0, tcp_opened(b).1 - opened.1), (0, 2), "two logins");
    let opened = tcp_opened(b);
    let there = b.directory("there").join("copy");
    cp(a, &b.ssh_options()).arg(&got).arg(b.remote(&there)).run().expect(0);
    let now = tcp_opened(b);
    assert!(now.0 > opened.0 || now.1 > opened.1 + 1, "{opened:?} {now:?}");
}

/// TCP connections that `host` opened, and those that it accepted.
fn tcp_opened(host: &Host) -> (u64, u64) {
    let text = host.enter(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(str::split_whitespace);
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let of = |wanted: &str| {
        let number = names.clone().zip(numbers.clone()).find(|(name, _)| *name == wanted).unwrap().1;
        number.parse().unwrap()
    };
    (of("ActiveOpens"), of("PassiveOpens"))
}

/// The same while somebody with access to the directory swaps a directory for a link and back all the time.
#[test]
fn a_confined_key_stays_there_in_a_race() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let root = b.directory("root");
    let outside = b.directory("outside");
    fs::create_dir(root.join("sub")).unwrap();
    fs::write(root.join("sub/file"), "inside").unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    symlink("../outside", root.join("link")).unwrap();
    let options =
        b.sshd().restricted_options("key", &format!("dray serve --stdio --only {}", root.display()));
    let at = |path: &str| format!("root@{}:{path}", b.address());
    let source = a.file("source");
    fs::write(&source, "uploaded").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let (sub, link) = (root.join("sub"), root.join("link"));
            let mut swaps = 0;
            while !is_over.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, &sub, rustix::fs::CWD, &link, flags).unwrap();
                swaps += 1;
                // Some ten thousand times a second, and a core is left to the other tests.
                std::thread::sleep(Duration::from_micros(20));
            }
            swaps
        });
        // Also if an assertion fails.
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        let mut got = 0;
        for number in 0..gate_rounds() {
            let copy = a.file(format!("copy-{number}"));
            let read = cp(a, &options).arg(at("sub/file")).arg(&copy).run();
            let written = cp(a, &options).arg(&source).arg(at(&format!("sub/new-{number}"))).run();
            let tree = a.file(format!("tree-{number}"));
            let read_tree = cp(a, &options).arg("-r").arg(at("sub")).arg(&tree).run();
            let written_tree =
                cp(a, &options).arg("-r").arg(&source).arg(at(&format!("sub/tree-{number}/"))).run();
            if let Ok(text) = fs::read_to_string(tree.join("file")) {
                assert_eq!(text, "inside");
            }
            for outcome in [read, written, read_tree, written_tree] {
                assert!(matches!(outcome.code(), Some(0 | 3 | 4 | 6 | 8)), "{outcome}");
                got += u32::from(outcome.code() == Some(0));
            }
            if let Ok(text) = fs::read_to_string(&copy) {
                assert_eq!(text, "inside");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(swapping.join().unwrap() > 100 && got > 0, "{got} copies got through");
    });
    assert_eq!(data::names(&outside), ["file"], "nothing was made outside");
    actions::await_no_dray(b, Duration::from_secs(30));
}

/// Does something at the end of a scope, however that is left.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn gate_rounds() -> u64 {
    dray_e2e::gate::sized(20, 500)
}
