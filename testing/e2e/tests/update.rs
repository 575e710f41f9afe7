//! An older version lies at the destination: what changed is what crosses the wire, and whatever happens to the older
//! version, the right bytes arrive (issue "fetch only what changed", design 2, D17).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_e2e::actions::{self, NOBODY, Share, assert_alone, assert_delivered, share};
use dray_e2e::data::{self, GIB, MIB};
use dray_e2e::power::is_isolated;
use dray_e2e::{Host, Lab, Outcome, Program, gate, sweep};
use dray_lab::disk::{SlowDisk, Speed};
use rustix::process::Signal;

/// Longest time one command may take.
const LARGE: Duration = Duration::from_secs(300);

/// The three ways in which a file comes to where an older version of it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Get,
    Upload,
    Download,
}

const WAYS: [Way; 3] = [Way::Get, Way::Upload, Way::Download];

/// A file on one host that goes to another.
struct Journey<'a> {
    way: Way,
    from: &'a Host,
    to: &'a Host,
    source: PathBuf,
    copy: PathBuf,
    share: Option<Share>,
}

impl<'a> Journey<'a> {
    /// From a file of the lab's first host to one called `copy`, alone in a new directory `name` of the second.
    fn new(lab: &'a Lab, way: Way, source: &Path, name: &str) -> Journey<'a> {
        let (from, to) = lab.pair();
        let share = (way == Way::Get).then(|| share(from, source));
        if way == Way::Upload {
            to.sshd();
        }
        let copy = to.directory(name).join("copy");
        Journey { way, from, to, source: source.to_owned(), copy, share }
    }

    /// The command, not started yet.
    fn program(&self) -> Program<'a> {
        actions::forget(self.to);
        let program = match self.way {
            Way::Get => actions::get(self.to, &self.share.as_ref().unwrap().ticket, &self.copy),
            Way::Upload => actions::copy_to(self.from, self.to, &self.source, &self.copy),
            Way::Download => actions::copy_from(self.from, self.to, &self.source, &self.copy),
        };
        program.time_limit(LARGE)
    }

    /// Runs `program` to its success; the bytes that crossed the wire meanwhile, in both directions.
    #[track_caller]
    fn cost(&self, program: Program<'_>) -> u64 {
        let before = self.to.counters();
        program.run().expect(0);
        let carried = self.to.counters() - before;
        assert_delivered(&self.source, &self.copy, None);
        if let Some(share) = &self.share {
            assert_eq!(data::b3sum(&self.copy), share.hash());
        }
        carried.bytes()
    }
}

/// How a new version differs from the older one.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// 16 bytes inserted at a third.
    Insert,
    /// 4 KiB overwritten in the middle.
    Page,
    /// 1 MiB behind the end.
    Append,
}

/// The edits of the issue, and the bytes that each may cost.
const EDITS: [(Edit, u64); 3] = [(Edit::Insert, 300_000), (Edit::Page, 300_000), (Edit::Append, 1_300_000)];

/// Writes `edited`, an edited copy of `base`.
fn write_edited(base: &Path, edited: &Path, edit: Edit) {
    fs::copy(base, edited).unwrap();
    let mut file = File::options().read(true).write(true).open(edited).unwrap();
    let size = file.metadata().unwrap().len();
    match edit {
        Edit::Insert => {
            let at = size / 3;
            let mut input = File::open(base).unwrap();
            input.seek(SeekFrom::Start(at)).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(b"sixteen new byte").unwrap();
            std::io::copy(&mut input, &mut file).unwrap();
        }
        Edit::Page => file.write_all_at(&data::random_bytes(4096, 4), (size / 2) & !4095).unwrap(),
        Edit::Append => file.write_all_at(&data::random_bytes(MIB as usize, 5), size).unwrap(),
    }
}

/// Issue "the wire cost of an update … counted in both directions on the interface: at most 300 kB, 300 kB, 1.3 MB", for
/// `get -o` and `cp` both ways; with `-W`, the same costs all of the file.
#[test]
fn an_update_costs_what_changed() {
    // Over a network without a limit what is read late, as on a machine that is busy with other tests, comes over the network instead (ADR 8).
    let Some(lab) = Lab::of(2).rate_mbit(400).build() else { return };
    let size = gate::sized(256 * MIB, 2 * GIB);
    let base = lab.dir().join("base");
    data::write_random(&base, size, 301);
    for (edit, allowed) in EDITS {
        let source = lab.host(0).file(format!("{edit:?}"));
        write_edited(&base, &source, edit);
        for way in WAYS {
            let journey = Journey::new(&lab, way, &source, &format!("{edit:?}-{way:?}"));
            fs::copy(&base, &journey.copy).unwrap();
            let cost = journey.cost(journey.program());
            eprintln!("{} MiB, {edit:?}, {way:?}: {cost} bytes on the wire", size / MIB);
            assert!(cost <= allowed, "{edit:?}, {way:?}: {cost} bytes on the wire");
            if matches!(edit, Edit::Page) {
                fs::copy(&base, &journey.copy).unwrap();
                let whole = journey.cost(journey.program().arg("-W"));
                assert!(whole > size, "{way:?} -W: {whole} bytes on the wire");
            }
            fs::remove_file(&journey.copy).unwrap();
        }
        fs::remove_file(&source).unwrap();
    }
}

/// R12, P7 "never slower": a disk that reads less than the network brings has enough to do with what comes, so an older version on it is left alone. A slower
/// network asks for what changed. Where the receiver is told to have no regard for that any does, and reads all of it from that disk, which has to take what comes, too.
#[test]
fn an_older_version_on_a_slow_disk_is_for_slow_networks() {
    if !is_isolated("an_older_version_on_a_slow_disk_is_for_slow_networks") {
        return;
    }
    let lab = Lab::of(2).build().unwrap();
    let file = lab.host(0).file("image");
    let size = 16 * MIB;
    data::write_random(&file, size, 303);
    actions::let_settle(&file);
    // A tenth of what a busy machine carries between two namespaces.
    let speed = Speed { bytes_per_s: 8_000_000, seek: Duration::from_millis(8) };
    let home = lab.host(1).directory("slow");
    let disk = SlowDisk::new(&lab.host(1).directory("image"), &home, 256 << 20, speed).unwrap();
    for way in [Way::Get, Way::Upload] {
        let journey = Journey::new(&lab, way, &file, &format!("slow/{way:?}"));
        for (rate_mbit, least, most) in [(None, size, size * 11 / 10), (Some(16), 0, 2 * MIB)] {
            write_edited(&file, &journey.copy, Edit::Page);
            disk.cool(disk.path()).unwrap();
            rate_mbit.into_iter().for_each(|rate| lab.limit_rate(rate));
            let before = disk.read_bytes().unwrap();
            let cost = journey.cost(journey.program());
            let read = disk.read_bytes().unwrap() - before;
            rate_mbit.into_iter().for_each(|_| lab.lift_rate());
            eprintln!("{way:?}, {rate_mbit:?} Mbit/s: {read} bytes of the disk");
            assert!(
                rate_mbit.is_some() || read <= size * 7 / 8,
                "{way:?}: {read} bytes of a disk that is busy"
            );
            assert!(
                (least..=most).contains(&cost),
                "{way:?}, {rate_mbit:?} Mbit/s: {cost} bytes on the wire"
            );
        }
        if way == Way::Upload {
            write_edited(&file, &journey.copy, Edit::Page);
            disk.cool(disk.path()).unwrap();
            lab.host(1).configure("search = true\nsearch_policy = \"no-pressure\"\n");
            let before = disk.read_bytes().unwrap();
            let cost = journey.cost(journey.program());
            let read = disk.read_bytes().unwrap() - before;
            eprintln!("no-pressure: {read} bytes of the disk");
            // Worse: the disk that is slower than the network is read from end to end.
            assert!(read >= size, "no-pressure: {read} bytes of the disk");
            assert!(cost <= 2 * MIB, "no-pressure: {cost} bytes on the wire");
            lab.host(1).configure("");
        }
        fs::remove_file(&journey.copy).unwrap();
    }
}

/// P6, S92, design 16: where a few bytes changed in every chunk, as addresses do in a program that was built again, a copy brings the
/// blocks around them and nothing else. A ticket's holder, who may be anybody, is not told which blocks are here: from there the
/// chunks come whole, as they do without blocks.
#[test]
fn a_copy_brings_changed_blocks_alone() {
    let Some(lab) = Lab::of(2).build() else { return };
    let file = lab.host(0).file("program");
    data::write_random(&file, 16 * MIB, 302);
    let older = lab.dir().join("older");
    let (start, end) = (4 * MIB as usize, 6 * MIB as usize);
    let mut bytes = fs::read(&file).unwrap();
    (start..end).step_by(700).for_each(|at| bytes[at] ^= 0x55);
    fs::write(&older, bytes).unwrap();
    for way in WAYS {
        let journey = Journey::new(&lab, way, &file, &format!("blocks-{way:?}"));
        fs::copy(&older, &journey.copy).unwrap();
        let cost = journey.cost(journey.program());
        match way {
            Way::Get => assert!(cost > 2 * MIB, "{way:?}: {cost}"),
            Way::Upload | Way::Download => assert!(cost < 700_000, "{way:?}: {cost}"),
        }
    }
}

/// P7, ADR 28: of a group in which a chunk changed the other chunks do not come, whoever sends: pages that changed where two groups meet cost their chunks,
/// not both groups; and in a copy, of which blocks are compared, not even those.
#[test]
fn a_missing_chunk_costs_no_group() {
    let Some(lab) = Lab::of(2).build() else { return };
    let file = lab.host(0).file("pages");
    data::write_random(&file, 32 * MIB, 303);
    let older = lab.dir().join("older pages");
    let mut bytes = fs::read(&file).unwrap();
    let places: Vec<usize> = (1..=24).map(|place| place * 20 * 65_536).collect();
    places.iter().for_each(|at| bytes[at - 2048..at + 2048].iter_mut().for_each(|byte| *byte ^= 0x55));
    fs::write(&older, bytes).unwrap();
    let groups_bytes = places.len() as u64 * 2 * 65_536;
    for way in WAYS {
        let journey = Journey::new(&lab, way, &file, &format!("pages-{way:?}"));
        fs::copy(&older, &journey.copy).unwrap();
        let cost = journey.cost(journey.program());
        eprintln!("{way:?}: {cost} bytes on the wire, {groups_bytes} in groups that changed");
        let most = match way {
            Way::Get => groups_bytes / 2,
            Way::Upload | Way::Download => groups_bytes / 8,
        };
        assert!(cost < most, "{way:?}: {cost} bytes on the wire");
    }
}

/// S7 for an update: what is hole in the new version is hole in the copy, wherever its bytes came from. Every group has
/// one block of data and fifteen of hole.
#[test]
fn an_update_keeps_holes() {
    let Some(lab) = Lab::of(2).build() else { return };
    let groups = 1024;
    let write = |path: &Path, changed: u64| {
        let file = File::create(path).unwrap();
        file.set_len(groups * 65_536).unwrap();
        for group in 0..groups {
            let seed = if group == changed { 9_999 } else { group };
            file.write_all_at(&data::random_bytes(4096, seed), group * 65_536 + group % 16 * 4096).unwrap();
        }
    };
    let (base, source) = (lab.dir().join("base"), lab.host(0).file("source"));
    write(&base, groups);
    write(&source, 300);
    for way in WAYS {
        let journey = Journey::new(&lab, way, &source, &format!("{way:?}"));
        assert!(std::process::Command::new("cp").arg(&base).arg(&journey.copy).status().unwrap().success());
        let cost = journey.cost(journey.program());
        assert!(cost <= 300_000, "{way:?}: {cost} bytes on the wire");
    }
}

/// Issue "identical chunks within one object … cost nothing on the wire".
#[test]
fn what_stands_in_a_file_four_times_is_fetched_once() {
    let Some(lab) = Lab::of(2).build() else { return };
    let part = data::random_bytes(16 * MIB as usize, 321);
    let source = lab.host(0).file("source");
    let mut file = File::create(&source).unwrap();
    for _ in 0..4 {
        file.write_all(&part).unwrap();
    }
    for way in WAYS {
        let journey = Journey::new(&lab, way, &source, &format!("{way:?}"));
        data::write_random(&journey.copy, 8 * MIB, 322);
        let cost = journey.cost(journey.program());
        assert!(cost <= 18 * MIB, "{way:?}: {cost} bytes on the wire");
        assert!(cost > 16 * MIB, "{way:?}: {cost} bytes on the wire for 16 MiB that the receiver lacked");
    }
}

/// Y3, design 2, "nothing of this is believed": somebody writes to the older version, or cuts it short, after it was cut into
/// chunks. What was taken from it is found to be wrong by the root, and that much is fetched. The holder is stopped
/// while the receiver looks at its older version, so the change always comes between the two.
#[test]
fn an_older_version_that_changes_is_not_believed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let size = 64 * MIB;
    let base = lab.dir().join("base");
    data::write_random(&base, size, 331);
    let source = lab.host(0).file("source");
    write_edited(&base, &source, Edit::Insert);
    for (how, allowed) in
        [("written to", 4 * MIB), ("cut short", size / 2 + 6 * MIB), ("all of it", size + 8 * MIB)]
    {
        let journey = Journey::new(&lab, Way::Get, &source, how);
        fs::copy(&base, &journey.copy).unwrap();
        let holder = &journey.share.as_ref().unwrap().process;
        holder.signal(Signal::STOP);
        let before = journey.to.counters();
        let running = journey.program().start();
        running.wait_until(false, || read_chars(running.pid()) >= size);
        let older = File::options().write(true).open(&journey.copy).unwrap();
        match how {
            "written to" => older.write_all_at(&data::random_bytes(MIB as usize, 7), size / 2).unwrap(),
            "cut short" => older.set_len(size / 2).unwrap(),
            _ => older.write_all_at(&data::random_bytes(size as usize, 8), 0).unwrap(),
        }
        holder.signal(Signal::CONT);
        running.wait().expect(0);
        let carried = journey.to.counters() - before;
        assert_delivered(&source, &journey.copy, Some(&journey.share.as_ref().unwrap().hash()));
        let cost = carried.bytes();
        eprintln!("older version {how}: {cost} bytes on the wire");
        assert!(cost <= allowed, "{how}: {cost} bytes on the wire");
        assert!(cost >= MIB, "{how}: {cost} bytes on the wire: what was changed cannot have been fetched");
    }
}

/// The same for copies, at a moment that nobody chose: somebody writes and cuts all the time.
#[test]
fn an_older_version_under_change_gives_the_right_bytes() {
    let Some(lab) = Lab::of(2).build() else { return };
    let size = 96 * MIB;
    let base = lab.dir().join("base");
    data::write_random(&base, size, 341);
    let source = lab.host(0).file("source");
    write_edited(&base, &source, Edit::Insert);
    for way in WAYS {
        let journey = Journey::new(&lab, way, &source, &format!("{way:?}"));
        fs::copy(&base, &journey.copy).unwrap();
        let older = File::options().write(true).open(&journey.copy).unwrap();
        let running = journey.program().start();
        let mut random = data::Random::new(342);
        let mut changes = 0u64;
        while !running.has_ended() {
            changes += 1;
            let at = random.within(0..size);
            if changes.is_multiple_of(200) {
                older.set_len(size / 2 + at / 2).unwrap();
            }
            older.write_all_at(&data::random_bytes(1000, changes), at).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        running.wait().expect(0);
        assert_delivered(&source, &journey.copy, Some(&data::b3sum(&source)));
    }
}

/// S14, S15 and S18 for an update: killed while the new part of the file comes, and again, the same command goes on where
/// it was, from the older version still, and leaves nothing behind.
#[test]
fn a_killed_update_goes_on() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (old_bytes, new_bytes) = (48 * MIB, 64 * MIB);
    let base = lab.dir().join("base");
    data::write_random(&base, old_bytes, 351);
    let source = lab.host(0).file("source");
    write_edited(&base, &source, Edit::Insert);
    File::options()
        .append(true)
        .open(&source)
        .unwrap()
        .write_all(&data::random_bytes(new_bytes as usize, 9))
        .unwrap();
    for way in WAYS {
        let journey = Journey::new(&lab, way, &source, &format!("{way:?}"));
        let dir = journey.copy.parent().unwrap();
        fs::copy(&base, &journey.copy).unwrap();
        let older = data::b3sum(&journey.copy);
        let before = journey.to.counters();
        for share in [0.3, 0.7] {
            let running = journey.program().start();
            let wanted = old_bytes + (share * new_bytes as f64) as u64;
            running.wait_until(false, || data::unfinished_bytes(dir) >= wanted);
            // The receiver is what is killed: for an upload, the process that sshd started.
            match way {
                Way::Upload => {
                    journey.to.pids_of("dray").into_iter().for_each(|pid| sweep::signal(pid, Signal::KILL));
                    running.wait().expect(5);
                }
                Way::Get | Way::Download => drop(running.kill()),
            }
            assert_eq!(
                data::b3sum(&journey.copy),
                older,
                "the older version stays until the new one is whole"
            );
        }
        journey.program().run().expect(0);
        let carried = journey.to.counters() - before;
        assert_delivered(&source, &journey.copy, Some(&data::b3sum(&source)));
        let allowed = new_bytes + new_bytes / 50 + 2 * 16 * MIB;
        eprintln!("{way:?}: {} MiB received for {} new ones", carried.received_bytes / MIB, new_bytes / MIB);
        assert!(carried.received_bytes <= allowed, "{way:?}: {} of {allowed}", carried.received_bytes);
    }
}

/// Bytes the process has asked to read so far.
fn read_chars(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(0)
}

/// What lies at a destination and is no older version, or none that may be read.
const NO_OLDER_VERSIONS: [&str; 6] = ["symlink", "dangling", "directory", "unreadable", "fifo", "device"];

/// Puts `kind` at `path`; `data` is what a link there leads to.
fn plant(kind: &str, path: &Path, older: &Path) {
    match kind {
        "symlink" => std::os::unix::fs::symlink(older, path).unwrap(),
        "dangling" => std::os::unix::fs::symlink("nowhere", path).unwrap(),
        "directory" => {
            fs::create_dir(path).unwrap();
            fs::copy(older, path.join("source")).unwrap();
        }
        "unreadable" => {
            fs::copy(older, path).unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(0o000)).unwrap();
        }
        "fifo" => rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap(),
        "device" => rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::from_raw_mode(0o666),
            rustix::fs::makedev(1, 3),
        )
        .unwrap(),
        other => panic!("{other}"),
    }
    if matches!(kind, "fifo" | "device") {
        fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
    }
}

/// A file at the destination that is no older version is treated as if there were no such thing: the same exit code, the
/// same bytes in the same place, and the same bytes on the wire as with `-W`.
#[test]
fn what_is_no_older_version_is_left_out() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (from, to) = lab.pair();
    let size = 8 * MIB;
    let older = lab.dir().join("older");
    data::write_random(&older, size, 361);
    fs::set_permissions(lab.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    let source = from.file("source");
    write_edited(&older, &source, Edit::Page);
    let share = share(from, &source);
    for kind in NO_OLDER_VERSIONS {
        let outcomes: Vec<(Option<i32>, u64, bool)> = ["", "-W"]
            .into_iter()
            .map(|flag| {
                let dir = to.directory(&format!("{kind}{flag}"));
                let copy = dir.join("copy");
                plant(kind, &copy, &older);
                std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
                let reader = (kind == "fifo").then(|| {
                    to.program("cat").arg(&copy).output_file(&to.file(format!("piped{flag}"))).start()
                });
                let before = to.counters();
                let got = as_nobody(to, &dir).arg("get").arg(&share.ticket).arg("-o").arg(&copy);
                let got: Outcome = if flag.is_empty() { got.run() } else { got.arg(flag).run() };
                let carried = to.counters() - before;
                got.assert_manners();
                if let Some(reader) = reader {
                    reader.wait().expect(0);
                    data::assert_same(&source, &to.file(format!("piped{flag}")));
                }
                let is_there = copy.is_file()
                    && !fs::symlink_metadata(&copy).unwrap().is_symlink()
                    && data::b3sum(&copy) == share.hash();
                (got.code(), carried.bytes(), is_there)
            })
            .collect();
        eprintln!("{kind}: {outcomes:?}");
        let [(code, cost, is_there), (whole_code, whole_cost, whole_is_there)] = outcomes[..] else {
            panic!()
        };
        assert_eq!((code, is_there), (whole_code, whole_is_there), "{kind}");
        assert!(cost.abs_diff(whole_cost) <= MIB, "{kind}: {cost} and {whole_cost} bytes on the wire");
        assert_eq!(data::b3sum(&older).len(), 64, "{kind}");
    }
    // What a link led to was neither read nor written.
    assert_ne!(data::b3sum(&older), share.hash());
}

/// `dray` as a user without rights, whose files lie in `dir`.
fn as_nobody<'a>(host: &'a Host, dir: &Path) -> Program<'a> {
    let home = dir.join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let home_of = |program: Program<'a>, name: &str| program.env(name, &home);
    ["HOME", "DRAY_DATA_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"]
        .into_iter()
        .fold(host.dray().user(NOBODY).directory(dir), home_of)
}

/// An update says in its events how much came from the older version, and that the parts add up.
#[test]
fn an_update_says_what_it_took_from_the_older_version() {
    let Some(lab) = Lab::of(2).build() else { return };
    let base = lab.dir().join("base");
    let size = 32 * MIB;
    data::write_random(&base, size, 371);
    let source = lab.host(0).file("source");
    write_edited(&base, &source, Edit::Page);
    let journey = Journey::new(&lab, Way::Get, &source, "got");
    fs::copy(&base, &journey.copy).unwrap();
    let got = journey.program().arg("--json").run().expect(0);
    assert_alone(&journey.copy);
    let text = got.stdout_text();
    let last = text.lines().rfind(|line| line.contains("\"progress\"")).expect("an event of progress");
    let event: serde_json::Value = serde_json::from_str(last).unwrap();
    let sources = event["sources"].as_array().unwrap();
    let share = |label: &str| {
        let found = sources
            .iter()
            .find(|source| source["label"].as_str().is_some_and(|text| text.starts_with(label)));
        found.map_or(0, |source| source["bytes"].as_u64().unwrap())
    };
    let (old, direct) = (share("older version"), share("direct"));
    assert_eq!(old + direct, size, "{last}");
    assert!(old >= size - MIB, "{last}");
}

/// S42: a command that sends an update says in its events, to `dray explain` and at its end how much it sent, and of one that sends all that it did.
#[test]
fn a_sent_update_says_what_was_sent() {
    let Some(lab) = Lab::of(2).build() else { return };
    let base = lab.dir().join("base");
    let size = 32 * MIB;
    data::write_random(&base, size, 372);
    let source = lab.host(0).file("source");
    write_edited(&base, &source, Edit::Page);
    let journey = Journey::new(&lab, Way::Upload, &source, "sent");
    let sum = |told: &serde_json::Value, key: &str| -> u64 {
        told["sources"].as_array().unwrap().iter().map(|source| source[key].as_u64().unwrap()).sum()
    };
    for is_whole in [false, true] {
        let send = || {
            fs::copy(&base, &journey.copy).unwrap();
            if is_whole { journey.program().arg("-W") } else { journey.program() }
        };
        let fits = |sent: u64| if is_whole { sent == size } else { (1..=MIB).contains(&sent) };
        let events = send().arg("--json").run().expect(0).stdout_text();
        let events: Vec<serde_json::Value> =
            events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = |name: &str| events.iter().rfind(|event| event["event"] == name).unwrap();
        assert!(fits(sum(last("progress"), "bytes")), "{events:?}");
        assert_eq!(last("progress")["done_bytes"].as_u64(), Some(size));
        let told = journey.from.dray().args(["explain", "--json"]).run().expect(0).stdout_text();
        let told: serde_json::Value = serde_json::from_str(told.trim()).unwrap();
        assert!(fits(sum(&told, "delivered_bytes")), "{told}");
        assert_eq!(told["done_bytes"].as_u64(), Some(size));
        assert!(fits(last("delivered")["sent_bytes"].as_u64().unwrap()), "{events:?}");
        let text = send().run().expect(0).stderr_text();
        assert_eq!(text.contains(" sent now)"), !is_whole, "{text}");
        assert_delivered(&source, &journey.copy, None);
    }
}
