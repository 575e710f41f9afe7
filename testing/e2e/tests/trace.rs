//! What a sender that nobody trusts sees of a receiver: byte for byte the same with and without a file of its guess elsewhere on the
//! receiver's disk (issue 7, design 16, S73, S91, S96). The sender is `dray-liar` without a lie, which writes down each frame that it
//! hears, or stands in for a `dray put DIR`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dray_core::message::Message;
use dray_e2e::actions::{self, NOBODY, Share, share};
use dray_e2e::daemon::{Daemon, await_that};
use dray_e2e::data::{self, MIB};
use dray_e2e::view::{View, Witness};
use dray_e2e::{Host, Lab};
use serde_json::json;

/// Bytes of an object that is asked for in one go, before anything is measured: so no time has a part in what is said.
const SIZE: u64 = 2 * MIB;
/// Of one that is asked for in chunks from an index.
const LARGE: u64 = 6 * MIB;
/// Of the link, in Mbit/s, where a search may find something before all has come.
const SLOW: u32 = 10;
/// And where it may not.
const FAST: u32 = 80;
/// How often the same is done again, to see that it gives the same trace.
const AGAIN: usize = 3;

fn configure(host: &Host, text: &str) {
    // One connection has one order.
    host.configure(&format!("connections = 1\n{text}"));
}

/// What is sent, and an older version of it.
struct Versions {
    new: PathBuf,
    old: PathBuf,
}

fn versions(from: &Host, size: u64) -> Versions {
    let (old, new) = (from.file("old"), from.file("new"));
    data::write_random(&old, size, 901);
    fs::copy(&old, &new).unwrap();
    let file = File::options().write(true).open(&new).unwrap();
    file.write_all_at(&data::random_bytes(100_000, 902), size / 2 + 5).unwrap();
    Versions { new, old }
}

/// Puts `guess` at `place`, does `work`, and takes it away again.
fn with<T>(guess: &Path, place: &Path, work: impl FnOnce() -> T) -> T {
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::copy(guess, place).unwrap();
    let done = work();
    fs::remove_file(place).unwrap();
    done
}

/// Places on the disk of `host` that are none of a sender's business, where it is fetched to `files/to/copy`.
fn places(host: &Host) -> Vec<PathBuf> {
    vec![
        host.home().join("copy"),
        host.home().join("Documents/old/copy"),
        host.file("copy"),
        host.file("beside/copy"),
    ]
}

/// A daemon of somebody else on `host`, with an index, that shares `path`.
fn of_somebody_else(host: &Host, path: &Path) -> Daemon {
    let place = host.directory("theirs");
    let (run, file) = (place.join("run"), place.join("copy"));
    let config = place.join("config.toml");
    fs::create_dir(&run).unwrap();
    fs::copy(path, &file).unwrap();
    fs::write(&config, "index = true\n").unwrap();
    for path in [&place, &run, &file, &config] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let dray = || {
        host.dray()
            .user(NOBODY)
            .directory(&place)
            .env("HOME", &place)
            .env("DRAY_CONFIG", &config)
            .env("DRAY_DATA_DIR", place.join("data"))
            .env("XDG_RUNTIME_DIR", &run)
    };
    let daemon = Daemon::of(dray(), &run);
    dray().arg("put").arg(&file).run().expect(0);
    // Its API answers nobody else. Smaller files are in no index.
    if fs::metadata(&file).unwrap().len() >= LARGE {
        let known = || dray().arg("status").run().expect(0).stdout_text().contains("1 files known");
        await_that("their index is filled", known);
    }
    daemon
}

/// Fetches what `witness` holds to `copy`, which `prepare` makes what it is to be before; what the sender saw.
fn get(to: &Host, witness: &Witness, new: &Path, copy: &Path, options: &[&str], prepare: &dyn Fn()) -> View {
    prepare();
    let view = witness.hears(|| {
        let got = actions::get(to, witness.ticket(), copy).args(options);
        got.time_limit(Duration::from_secs(120)).run().expect(0);
    });
    data::assert_same(new, copy);
    fs::remove_file(copy).unwrap();
    forget(to);
    view
}

/// Makes the user of `host` forget what was fetched there: it would be at hand the next time. A daemon that runs keeps its directories.
fn forget(host: &Host) {
    let store = host.data_dir().join("store");
    for path in data::names_below(&store) {
        let path = store.join(path);
        // The daemon may be faster.
        if path.is_file()
            && let Err(error) = fs::remove_file(path)
        {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
}

fn describes(view: &View) -> bool {
    view.messages().any(|message| matches!(message, Message::Describe(_)))
}

/// Design 16, S91, threat model "learn what else the user has": the holder of a ticket sees the same, whatever lies wherever, whoever has put it,
/// and whatever the configuration says of searches. Only what `--search` names it gets to see.
#[test]
fn a_get_looks_the_same_wherever_a_guess_lies() {
    let Some(lab) = Lab::of(2).rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    configure(to, "search = true\n");
    let Versions { new, old } = versions(from, SIZE);
    let witness = Witness::of_file(from, &new, 61);
    let (dir, empty) = (to.directory("to"), to.directory("empty"));
    let copy = dir.join("copy");
    let look = |options: &[&str]| get(to, &witness, &new, &copy, options, &|| {});
    let nothing = look(&[]);
    assert_eq!((nothing.connections(), nothing.groups().len() as u64), (1, SIZE / (64 << 10)), "{nothing:?}");
    for _ in 0..AGAIN {
        look(&[]).assert_same(&nothing, "the same once more");
    }
    let mut places = places(to);
    places.extend([dir.join("other"), dir.join("copy.old"), dir.join("below/copy")]);
    for place in &places {
        for guess in [&old, &new] {
            with(guess, place, || look(&[])).assert_same(&nothing, &format!("{guess:?} at {place:?}"));
        }
    }
    let theirs = of_somebody_else(to, &new);
    look(&[]).assert_same(&nothing, "somebody else shares it");
    theirs.stop();
    // An older version that this user shares is no part of any search either.
    let beside = to.file("beside/mine");
    with(&old, &beside, || {
        let _mine = share(to, &beside);
        look(&[]).assert_same(&nothing, "this user shares an older version");
    });

    lab.limit_rate(SLOW);
    let search = |directory: &Path| look(&["--search", directory.to_str().unwrap()]);
    search(&empty).assert_same(&nothing, "a search that finds nothing");
    let beside = to.file("beside");
    for guess in [&old, &new] {
        let elsewhere = with(guess, &beside.join("copy"), || search(&empty));
        elsewhere.assert_same(&nothing, "a search elsewhere");
    }
    // Who is let in by the user sees it: so this test would, too.
    let found = with(&old, &beside.join("copy"), || search(&beside));
    assert!(found != nothing && describes(&found), "{found:?}");
    assert!(found.groups().len() < nothing.groups().len() / 2, "{found:?}");
}

/// ADR 10: who put the very object, or fetched it, asks nobody for it, which the only holder of a ticket may notice; `-W` shows that holder
/// what it would see otherwise.
#[test]
fn what_is_at_hand_shows_nothing_but_silence() {
    let Some(lab) = Lab::of(2).rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    configure(to, "");
    let Versions { new, .. } = versions(from, SIZE);
    let witness = Witness::of_file(from, &new, 62);
    let copy = to.directory("to").join("copy");
    let look = |options: &[&str]| get(to, &witness, &new, &copy, options, &|| {});
    let nothing = look(&[]);
    look(&["-W"]).assert_same(&nothing, "-W");
    let mine = to.file("mine");
    fs::copy(&new, &mine).unwrap();
    let shared = |options: &[&str]| {
        let _mine = share(to, &mine);
        look(options)
    };
    assert_eq!(shared(&[]).connections(), 0);
    shared(&["-W"]).assert_same(&nothing, "-W of what is at hand");
}

/// Design 16, S91: the same of an update. Of the older version at the destination the holder learns which parts it has; what other files have it
/// is asked for all the same.
#[test]
fn an_update_looks_the_same_wherever_a_guess_lies() {
    let Some(lab) = Lab::of(2).rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    configure(to, "search = true\n");
    let Versions { new, old } = versions(from, LARGE);
    let witness = Witness::of_file(from, &new, 63);
    let dir = to.directory("to");
    let copy = dir.join("copy");
    let look = || {
        get(to, &witness, &new, &copy, &[], &|| {
            fs::copy(&old, &copy).unwrap();
        })
    };
    let nothing = look();
    assert!(describes(&nothing) && nothing.groups().len() < 10, "{nothing:?}");
    for _ in 0..AGAIN {
        look().assert_same(&nothing, "the same once more");
    }
    let mut places = places(to);
    places.extend([dir.join("other"), dir.join("below/copy")]);
    for place in &places {
        with(&new, place, look).assert_same(&nothing, &format!("at {place:?}"));
    }
    let theirs = of_somebody_else(to, &new);
    look().assert_same(&nothing, "somebody else shares it");
    theirs.stop();
}

/// Design 16, S73: with an index, the sender sees which parts files below the destination's directory have; those of files elsewhere it does not
/// see, whether a command fetches or the daemon.
#[test]
fn an_index_shows_nothing_of_files_elsewhere() {
    let Some(lab) = Lab::of(2).rate_mbit(SLOW).build() else { return };
    let (from, to) = lab.pair();
    configure(to, "index = true\nsearch = true\n");
    let Versions { new, old } = versions(from, LARGE);
    let witness = Witness::of_file(from, &new, 64);
    // All that the older version lacks, but not the object itself: that would be at hand.
    let guess = from.file("guess");
    fs::copy(&new, &guess).unwrap();
    let file = File::options().write(true).open(&guess).unwrap();
    file.write_all_at(&data::random_bytes(1000, 903), 5).unwrap();
    let daemon = Daemon::start(to);
    let dir = to.directory("to");
    let copy = dir.join("copy");
    // An older version at the destination, so that the recipe is asked for and nothing comes before it.
    let prepare = || {
        fs::copy(&old, &copy).unwrap();
    };
    let by_command = || get(to, &witness, &new, &copy, &[], &prepare);
    let by_daemon = || {
        prepare();
        let (_stream, session) = daemon.session();
        let folder = daemon.hand_over(&File::open(&dir).unwrap()).unwrap();
        let wish =
            json!({"session": session, "ticket": witness.ticket(), "descriptor": folder, "name": "copy"});
        let view = witness.hears(|| {
            let get = daemon.transaction("/v1/gets", &wish);
            let (status, got) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
            assert_eq!(status, 200, "{got}");
        });
        data::assert_same(&new, &copy);
        fs::remove_file(&copy).unwrap();
        forget(to);
        view
    };
    let nothing = by_command();
    assert!(describes(&nothing) && nothing.groups().len() < 10, "{nothing:?}");
    let same = |what: &str| {
        for _ in 0..AGAIN {
            by_command().assert_same(&nothing, &format!("{what}, by a command"));
            by_daemon().assert_same(&nothing, &format!("{what}, by the daemon"));
        }
    };
    same("nothing in the index");
    for place in places(to) {
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&guess, &place).unwrap();
        take_in(&daemon, to, &place);
        same(&format!("the index knows {place:?}"));
    }
    // So what is in it is found where it may be.
    let mine = dir.join("mine");
    fs::copy(&guess, &mine).unwrap();
    take_in(&daemon, to, &mine);
    for view in [by_command(), by_daemon()] {
        assert!(view != nothing && view.groups().len() < nothing.groups().len(), "{view:?}");
    }
    daemon.stop();
}

/// Has `path` taken into the index of `daemon`.
fn take_in(daemon: &Daemon, to: &Host, path: &Path) {
    let state = || daemon.ask("GET /v1/index", b"").1;
    let before = state()["read_bytes"].as_u64().unwrap();
    dray_e2e::daemon::put(to, path);
    await_that("it is taken in", || {
        let now = state();
        now["read_bytes"].as_u64().unwrap() >= before + LARGE && now["waiting"] == 0
    });
}

/// A tree whose large file is another in `version` 1 than in 0.
fn write_tree(top: &Path, version: u64) {
    for (name, bytes, seed) in [("image", LARGE, 950), ("small", 3000, 960), ("sub/one", 200_000, 970)] {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        data::write_random(&path, bytes, seed);
        let file = File::options().write(true).open(&path).unwrap();
        let is_new = name == "image" && version == 1;
        if is_new {
            file.write_all_at(&data::random_bytes(5000, seed + 1), bytes / 2).unwrap();
        }
        set_time(&file, is_new);
    }
}

fn set_time(file: &File, is_new: bool) {
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000 + u64::from(is_new))).unwrap();
}

/// Design 16, S96, threat model "Sender of a shared directory": what lies elsewhere is not seen, and neither is what a file in DST has that is called
/// otherwise. Only an older version in its place is.
#[test]
fn a_sync_looks_the_same_wherever_a_guess_lies() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (from, to) = lab.pair();
    configure(to, "search = true\nindex = true\n");
    let shared = from.directory("shared");
    write_tree(&shared, 1);
    let sharing = Share::of(from.dray().arg("put").arg(&shared).time_limit(Duration::from_secs(600)).start());
    let witness = Witness::of_directory(from, &sharing.ticket, 65);
    let (dst, guess) = (to.file("to"), shared.join("image"));
    let daemon = Daemon::start(to);
    // From the first time on this user has a key: the sender knows who it is.
    let something = to.file("something");
    data::write_random(&something, LARGE, 980);
    take_in(&daemon, to, &something);
    let with_time = |place: &Path, bytes: &Path, work: &dyn Fn() -> View| {
        with(bytes, place, || {
            set_time(&File::options().write(true).open(place).unwrap(), true);
            work()
        })
    };
    let mut seen = Vec::new();
    for has_older in [false, true] {
        let look = |other: Option<&Path>| {
            fs::create_dir(&dst).unwrap();
            if has_older {
                write_tree(&dst, 0);
            }
            let sync = || {
                witness.hears(|| {
                    to.dray().args(["sync", "-a", witness.ticket()]).arg(&dst).run().expect(0);
                })
            };
            let view = match other {
                Some(other) => with_time(&dst.join("other"), other, &sync),
                None => sync(),
            };
            for name in ["image", "small", "sub/one"] {
                data::assert_same(&shared.join(name), &dst.join(name));
            }
            fs::remove_dir_all(&dst).unwrap();
            view
        };
        let nothing = look(None);
        assert_eq!(nothing.connections(), 1, "{nothing:?}");
        for _ in 0..AGAIN {
            look(None).assert_same(&nothing, "the same once more");
        }
        for place in places(to) {
            let view = with_time(&place, &guess, &|| look(None));
            view.assert_same(&nothing, &format!("at {place:?}"));
        }
        look(Some(&guess)).assert_same(&look(Some(&something)), "in DST, under another name");
        seen.push(nothing);
    }
    let [without, with_older] = &seen[..] else { panic!("two") };
    assert!(without != with_older, "an older version in its place is seen: {without:?}");
    let theirs = of_somebody_else(to, &guess);
    let mine = to.file("beside/image");
    fs::copy(&guess, &mine).unwrap();
    take_in(&daemon, to, &mine);
    fs::create_dir(&dst).unwrap();
    let view = witness.hears(|| {
        to.dray().args(["sync", "-a", witness.ticket()]).arg(&dst).run().expect(0);
    });
    view.assert_same(without, "in the index, and somebody else's");
    theirs.stop();
    daemon.stop();
}
