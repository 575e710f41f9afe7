//! The receiver's own disk as a source (S90, S91, Y4-Y26): the five initial states of dsync's paper by bytes on the wire, and the scope that
//! a search keeps to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dray_e2e::actions::{self, assert_same_tree, share, slashed};
use dray_e2e::data::{self, MIB};
use dray_e2e::live::differences;
use dray_e2e::power::is_isolated;
use dray_e2e::{Host, Lab, Program, Running, gate};
use dray_lab::conditions::T1;
use dray_lab::disk::{SlowDisk, Speed};

/// Bytes of the file: small enough for a slow link, large enough that one hundredth of it is more than what a copy takes anyway.
const SIZE: u64 = 24 * MIB;
/// Of the link, in Mbit/s: the disk is faster, also on a busy machine.
const SLOW: u32 = 16;
/// Where all is fetched.
const FAST: u32 = 80;
/// What a search may cost beyond a twentieth, whatever the size: the first groups, which come before the sender has made its recipe, twice as much
/// once more where the path seemed fast at first, as one with a bucket of tokens does, and the groups in which the change begins and ends, of
/// which an older version at the destination has blocks to spare.
const CONSTANT: u64 = MIB;

/// Bytes of a file of which the recipe is more than anything else that a sibling could cost: 36 bytes for each chunk of some 18 KiB.
const LARGE: u64 = 48 * MIB;
/// A login, what a recipe and sums take of which a few nodes are not known, and everything's acknowledgements.
const RECIPE_BYTES: u64 = 64 << 10;
/// The first group, as it travels, and what single blocks of an older version shorten of the chunks in which the change begins and ends.
const FIRST_AND_EDGES_BYTES: u64 = (70 + 40) << 10;

/// A copy of `base` in which `pieces` of so many bytes are others, all over it.
fn write_similar(base: &Path, path: &Path, pieces: u64, piece_bytes: u64) {
    let size = fs::copy(base, path).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    for piece in 0..pieces {
        let at = size / pieces * piece + size / 50;
        file.write_all_at(&data::random_bytes(piece_bytes as usize, 7_000 + piece), at).unwrap();
    }
}

/// Copies `source` by login to a new directory of the home, which `prepare` fills before, along with what is beside it; the bytes on the wire.
fn cost(what: &str, lab: &Lab, source: &Path, prepare: impl FnOnce(&Path)) -> u64 {
    let (from, to) = lab.pair();
    let top = to.home().join(what);
    let directory = top.join("b");
    fs::create_dir_all(&directory).unwrap();
    prepare(&top);
    let copy = directory.join("image");
    let bytes = to.carried(what, || {
        let copied = actions::copy_to(from, to, source, &copy).time_limit(Duration::from_secs(120)).run();
        copied.expect(0);
    });
    data::assert_same(source, &copy);
    fs::remove_dir_all(top).unwrap();
    bytes
}

/// Brings `source` to `copy` by `program`, with `--search` if that is named, and removes it again; the bytes on the wire.
fn fetched(
    what: &str,
    to: &Host,
    mut program: Program<'_>,
    search: Option<&Path>,
    source: &Path,
    copy: &Path,
) -> u64 {
    if let Some(search) = search {
        program = program.arg("--search").arg(search);
    }
    let bytes = to.carried(what, || {
        program.time_limit(Duration::from_secs(120)).run().expect(0);
    });
    data::assert_same(source, copy);
    fs::remove_file(copy).unwrap();
    bytes
}

/// Y21, Y26, R8, S90: with a near-identical copy in a directory beside the destination's, next to nothing more crosses the wire than with the
/// same copy at the destination.
#[test]
fn a_sibling_costs_what_an_older_version_does() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(SLOW).build() else { return };
    let (from, to) = lab.pair();
    to.sshd();
    to.configure("search = true\n");
    let source = from.file("image");
    data::write_random(&source, SIZE, 501);
    let at_99 = lab.dir().join("similar-99");
    write_similar(&source, &at_99, 1, SIZE / 100);
    let at_50 = lab.dir().join("similar-50");
    write_similar(&source, &at_50, 12, MIB);
    let place = |from: &Path, at: PathBuf| {
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(from, at).unwrap();
    };
    let similar_99 = cost("similar-99", &lab, &source, |top| place(&at_99, top.join("b/image")));
    let sibling = cost("sibling", &lab, &source, |top| place(&at_99, top.join("a/image")));
    assert!(similar_99 < SIZE / 10, "{similar_99}");
    assert!(sibling <= similar_99 + similar_99 / 20 + CONSTANT, "{sibling} beside {similar_99}");
    let similar_50 = cost("similar-50", &lab, &source, |top| place(&at_50, top.join("b/image")));
    assert!(similar_50 < SIZE * 65 / 100, "{similar_50}");

    to.configure("search = true\nsearch_policy = \"no-disk\"\n");
    lab.limit_rate(FAST);
    let off = cost("no-disk", &lab, &source, |top| place(&at_99, top.join("a/image")));
    assert!(off > SIZE, "{off}");
}

/// P7 "Sibling as fast as Similar-99", R8, S90: over a T1 line, where bytes are time, a near-identical copy in a directory beside costs what one at the
/// destination does, but for the first group and, where it is copied by a login, the chunks in which the change begins and ends, which single blocks of
/// the older version shorten: the nodes of its recipe that it has do not come either. What is new is looked at closely in a few places alone.
#[test]
fn a_sibling_costs_next_to_nothing_more_over_a_slow_line() {
    let Some(lab) = Lab::of(2).alone().condition(T1).build() else { return };
    let (from, to) = lab.pair();
    to.sshd();
    to.configure("search = true\n");
    let source = from.file("image");
    data::write_random(&source, LARGE, 541);
    let at_99 = lab.dir().join("similar-99");
    write_similar(&source, &at_99, 1, LARGE / 100);
    let place = |at: PathBuf| {
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(&at_99, at).unwrap();
    };
    let similar_99 = cost("similar-99", &lab, &source, |top| place(top.join("b/image")));
    let sibling = cost("sibling", &lab, &source, |top| place(top.join("a/image")));
    eprintln!("{similar_99} bytes, and {sibling} of a sibling");
    let new = LARGE / 100 * 1500 / 1448;
    assert!(similar_99 < new + RECIPE_BYTES, "{similar_99} for {new}");
    assert!(sibling < similar_99 + FIRST_AND_EDGES_BYTES, "{sibling} beside {similar_99}");

    let shared = share(from, &source);
    let (copy, beside) = (to.directory("to").join("image"), to.directory("beside"));
    let get = |what: &str, at: &Path, search: Option<&Path>| {
        place(at.to_owned());
        let bytes = fetched(what, to, actions::get(to, &shared.ticket, &copy), search, &source, &copy);
        actions::forget(to);
        bytes
    };
    let similar_99 = get("get of similar-99", &copy, None);
    let sibling = get("get of a sibling", &beside.join("image"), Some(&beside));
    eprintln!("by a ticket {similar_99} bytes, and {sibling} of a sibling");
    assert!(sibling < similar_99 + FIRST_AND_EDGES_BYTES, "{sibling} beside {similar_99}, by a ticket");
}

/// Y26, R8, S90: where nothing is of use, no more than a hundredth more crosses the wire than without a search, be there nothing that looks alike
/// or a file of the same name and size with nothing in common, for which the sender tells its recipe in vain. By a ticket, as a copy that
/// goes over to a direct connection costs a tenth more or less for that alone.
#[test]
fn what_is_of_no_use_costs_nothing() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    let source = from.file("image");
    data::write_random(&source, SIZE, 531);
    let shared = share(from, &source);
    let useless = to.directory("useless");
    for number in 0..20 {
        data::write_random(&useless.join(format!("other-{number}")), MIB + number * 1000, 600 + number);
    }
    let in_vain = to.directory("in-vain");
    data::write_random(&in_vain.join("copy"), SIZE, 532);
    let copy = to.directory("to").join("copy");
    let get = |what: &str, search: Option<&Path>| {
        let bytes = fetched(what, to, actions::get(to, &shared.ticket, &copy), search, &source, &copy);
        actions::forget(to);
        bytes
    };
    let empty = get("empty", None);
    assert!(empty > SIZE, "{empty}");
    for (what, directory) in [("useless", &useless), ("in-vain", &in_vain)] {
        let bytes = get(what, Some(directory));
        assert!(bytes <= empty + empty / 100, "{what}: {bytes} beside {empty}");
    }
}

/// R13, R14, Y26: a sibling on a disk of 70 MB/s, which was not read lately, is used over 100 Mbit/s. That disk is mounted by itself, and searched from there.
#[test]
fn a_sibling_on_a_slow_disk_is_used_over_a_slower_network() {
    if !is_isolated("a_sibling_on_a_slow_disk_is_used_over_a_slower_network") {
        return;
    }
    let lab = Lab::of(2).alone().rate_mbit(100).build().unwrap();
    let (from, to) = lab.pair();
    to.sshd();
    to.configure("search = true\n");
    let source = from.file("image");
    data::write_random(&source, LARGE, 571);
    let speed = Speed { bytes_per_s: 70_000_000, seek: Duration::from_millis(8) };
    let home = to.directory("slow");
    let disk = SlowDisk::new(&to.directory("disk"), &home, 512 << 20, speed).unwrap();
    fs::create_dir_all(home.join("project/new")).unwrap();
    fs::create_dir_all(home.join("project/beside")).unwrap();
    write_similar(&source, &home.join("project/beside/image"), 1, LARGE / 100);
    disk.cool(disk.path()).unwrap();
    let copy = home.join("project/new/image");
    let before = to.counters();
    actions::copy_to(from, to, &source, &copy).time_limit(Duration::from_secs(120)).run().expect(0);
    let bytes = (to.counters() - before).bytes();
    data::assert_same(&source, &copy);
    assert!(bytes < LARGE / 2, "{bytes} bytes on the wire");
}

/// Y25: what dsync is compared with are configurations of the same program, and each of them finds the sibling.
#[test]
fn each_policy_finds_what_there_is() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(SLOW).build() else { return };
    let (from, to) = lab.pair();
    to.sshd();
    let source = from.file("image");
    data::write_random(&source, SIZE, 511);
    for policy in ["cost", "breadth-first", "all-stats", "no-pressure"] {
        to.configure(&format!("search = true\nsearch_policy = \"{policy}\"\n"));
        let bytes = cost(policy, &lab, &source, |top| {
            fs::create_dir(top.join("a")).unwrap();
            fs::copy(&source, top.join("a/image")).unwrap();
        });
        assert!(bytes < SIZE / 4, "{policy}: {bytes}");
    }
}

/// S91, design 16: whoever is logged in may use what lies in the home; one who was logged in to, and the holder of a ticket, only what lies below the
/// directory that `--search` names, if the user says so. Without `search = true` nobody searches.
#[test]
fn a_search_keeps_to_its_scope() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    to.sshd();
    from.sshd();
    let source = from.file("image");
    data::write_random(&source, SIZE, 521);
    let beside = |top: &Path| {
        fs::create_dir(top.join("a")).unwrap();
        fs::copy(&source, top.join("a/image")).unwrap();
    };
    let off = cost("without-search", &lab, &source, beside);
    assert!(off > SIZE, "{off}");
    to.configure("search = true\n");
    // Beside the home, not in it.
    let outside = lab.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::copy(&source, outside.join("image")).unwrap();
    let bytes = cost("outside-of-the-home", &lab, &source, |top| {
        std::os::unix::fs::symlink(&outside, top.join("b/link")).unwrap();
    });
    assert!(bytes > SIZE, "{bytes}");

    let top = to.home().join("pulled");
    fs::create_dir_all(top.join("b")).unwrap();
    beside(&top);
    let copy = top.join("b/image");
    let pull = |what: &str, search: Option<&Path>| {
        fetched(what, to, actions::copy_from(from, to, &source, &copy), search, &source, &copy)
    };
    let without = pull("pulled", None);
    assert!(without > SIZE, "{without}");
    let shared = share(from, &source);
    let get = |what: &str, search: Option<&Path>| {
        let bytes = fetched(what, to, actions::get(to, &shared.ticket, &copy), search, &source, &copy);
        actions::forget(to);
        bytes
    };
    let without = get("got", None);
    assert!(without > SIZE, "{without}");
    lab.limit_rate(SLOW);
    let named = top.join("a");
    let found = pull("pulled with --search", Some(&named));
    assert!(found < SIZE / 4, "{found}");
    let found = get("got with --search", Some(&named));
    assert!(found < SIZE / 4, "{found}");
    // What cannot be searched is told, and nothing is left behind.
    let nowhere = top.join("nowhere");
    let refused = actions::get(to, &shared.ticket, &copy).arg("--search").arg(&nowhere).run().expect(3);
    assert!(refused.stderr_text().contains("--search"), "{refused}");
    assert!(data::names(&top.join("b")).is_empty());
}

/// Writes a tree of large and small files: a little of each large one is another if it is an `older` one, and its times are others.
fn write_tree(top: &Path, is_older: bool) -> u64 {
    let mut size = 0;
    let mut write = |path: String, bytes: u64, seed, is_changed: bool| {
        let path = top.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        data::write_random(&path, bytes, seed);
        let file = File::options().write(true).open(&path).unwrap();
        if is_changed && is_older {
            file.write_all_at(&data::random_bytes(4096, seed + 1), bytes / 2).unwrap();
        }
        let time = if is_changed && is_older { 1_000_000 } else { 2_000_000 };
        file.set_modified(UNIX_EPOCH + Duration::from_secs(time)).unwrap();
        size += bytes;
    };
    for number in 0..6 {
        write(format!("disks/{number}/image"), (1 + number) * MIB, 700 + number, true);
    }
    for number in 0..20 {
        write(format!("lib/deep/{number}.o"), 100_000 + number, 800 + number, number % 2 == 0);
        write(format!("src/{number}.c"), 9_000 + number, 900 + number, false);
    }
    size
}

/// Y26, R8 "Sibling": a tree of which another state lies in a directory beside the destination costs about what it costs where that lies at the
/// destination; without `search = true` all of it crosses the wire.
#[test]
fn a_tree_beside_costs_what_an_older_one_does() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    to.sshd();
    let source = from.directory("tree");
    let size = write_tree(&source, false);
    let copy = |what: &str, older: &str| {
        let work = to.home().join(what);
        write_tree(&work.join(older), true);
        let copy = work.join("here");
        fs::create_dir_all(&copy).unwrap();
        let bytes = to.carried(what, || {
            let copied = actions::copy_to(from, to, &source.join("."), &copy).arg("-a");
            copied.time_limit(Duration::from_secs(120)).run().expect(0);
        });
        assert_same_tree(from, &source, &copy, None);
        fs::remove_dir_all(work).unwrap();
        bytes
    };
    let off = copy("search-off", "beside");
    assert!(off > size, "{off}");
    to.configure("search = true\n");
    let older = copy("older", "here");
    let beside = copy("beside", "beside");
    eprintln!("{size} bytes: {older} over an older version, {beside} beside one, {off} without a search");
    assert!(older < size / 10, "{older}");
    assert!(beside < older + size / 20, "{beside} beside {older}");
}

/// S90, issue "the same command goes on": a get that goes on where it was killed looks for the rest on the disk, and keeps what it has.
#[test]
fn a_get_that_goes_on_searches_for_the_rest() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(SLOW).build() else { return };
    let (from, to) = lab.pair();
    let source = from.file("image");
    data::write_random(&source, SIZE, 541);
    let shared = share(from, &source);
    let (beside, directory) = (to.directory("beside"), to.directory("to"));
    fs::copy(&source, beside.join("copy")).unwrap();
    let copy = directory.join("copy");
    let get = || actions::get(to, &shared.ticket, &copy).time_limit(Duration::from_secs(120));
    let running = get().start();
    assert!(running.wait_until(true, || data::unfinished_bytes(&directory) >= SIZE / 2));
    running.kill();
    // What was under way to it fills the line for half a second.
    let mut before = 0;
    while to.counters().received_bytes > std::mem::replace(&mut before, to.counters().received_bytes) {
        std::thread::sleep(Duration::from_millis(300));
    }
    let bytes = fetched("gone on", to, get(), Some(&beside), &source, &copy);
    assert!(bytes < SIZE / 4, "{bytes}");
}

/// S91, S97: a tree that is fetched from a host that was logged in to is looked for below the directory that `--search` names, and nowhere else, whatever the
/// configuration says.
#[test]
fn a_tree_that_is_fetched_is_looked_for_where_that_is_said() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    from.sshd();
    to.configure("search = true\n");
    let source = from.directory("tree");
    let size = write_tree(&source, false);
    let beside = to.home().join("beside");
    write_tree(&beside, true);
    let copy = to.home().join("here");
    let fetch = |what: &str, search: Option<&Path>| {
        fs::create_dir(&copy).unwrap();
        let mut program = actions::copy_from(from, to, &source.join("."), &copy).arg("-a");
        if let Some(search) = search {
            program = program.arg("--search").arg(search);
        }
        let bytes = to.carried(what, || {
            program.time_limit(Duration::from_secs(120)).run().expect(0);
        });
        assert_same_tree(to, &source, &copy, None);
        fs::remove_dir_all(&copy).unwrap();
        bytes
    };
    let without = fetch("without --search", None);
    assert!(without > size, "{without}");
    let found = fetch("with --search", Some(&beside));
    assert!(found < size / 10, "{found}");
    let nowhere =
        actions::copy_from(from, to, &source.join("."), &copy).arg("-a").arg("--search").arg(to.file("no"));
    let refused = nowhere.run().expect(3);
    assert!(refused.stderr_text().contains("--search"), "{refused}");
}

/// What a tree that is brought over to `copy` by `dray sync` costs on the wire, whoever of the two runs it. `copy` is made anew each time.
fn synchronised(what: &str, lab: &Lab, source: &Path, copy: &Path, program: Program<'_>) -> u64 {
    let (from, to) = lab.pair();
    let bytes = to.carried(what, || {
        program.time_limit(Duration::from_secs(120)).run().expect(0);
    });
    assert_same_tree(from, source, copy, None);
    fs::remove_dir_all(copy).unwrap();
    bytes
}

/// A `dray put` of a directory that serves, and its ticket.
fn share_directory(host: &Host, path: &Path) -> (Running, String) {
    let running = host.dray().arg("put").arg(path).time_limit(Duration::from_secs(600)).start();
    let ticket = running.first_line();
    (running, ticket)
}

/// `dray sync` of what is in `source` to `copy`, run on `near`.
fn sync_tree<'a>(near: &'a Host, far: &Host, source: OsString, copy: OsString) -> Program<'a> {
    near.dray().args(["sync", "-a", "-e"]).arg(far.ssh_command()).arg(source).arg(copy)
}

/// Gives what lies below `top` other names, each in one directory: none says what it was, and sizes and times stay.
fn rename_all(top: &Path, heap: &Path) -> u64 {
    fs::create_dir_all(heap).unwrap();
    let (mut left, mut count) = (vec![top.to_owned()], 0);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => {
                    fs::rename(entry.path(), heap.join(format!("{count:08x}"))).unwrap();
                    count += 1;
                }
            }
        }
    }
    fs::remove_dir_all(top).unwrap();
    count
}

/// Y2, Y26, issue 7 "data already on the receiver's disk under any name costs no network", S97, S91: a tree that is synchronised from a host, or by its ticket, comes as
/// a difference to another state of it, or from files of any name, below the directory that `--search` names; without it all of it comes.
/// Nothing comes to here over a network in other directions, where the option is refused.
#[test]
fn what_is_synchronised_is_looked_for_where_that_is_said() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    from.sshd();
    // It counts for what others bring here.
    to.configure("search = true\n");
    let source = from.directory("tree");
    let size = write_tree(&source, false);
    let (beside, heap) = (to.home().join("beside"), to.home().join("heap"));
    write_tree(&beside, true);
    write_tree(&to.home().join("twin"), false);
    assert_eq!(rename_all(&to.home().join("twin"), &heap), 46);
    let copy = to.home().join("here");
    let sharing = share_directory(from, &source);
    for way in ["ssh", "ticket"] {
        let sync = |what: &str, search: Option<&Path>| {
            let program = match way {
                "ssh" => sync_tree(to, from, slashed(from.remote(&source)), copy.clone().into()),
                _ => to.dray().args(["sync", "-a"]).arg(&sharing.1).arg(&copy),
            };
            let program =
                search.into_iter().fold(program, |program, search| program.arg("--search").arg(search));
            synchronised(&format!("{way} {what}"), &lab, &source, &copy, program)
        };
        let without = sync("without --search", None);
        let found = sync("of another state", Some(&beside));
        let renamed = sync("under other names", Some(&heap));
        eprintln!(
            "{way}: {size} bytes, {without} without, {found} of another state, {renamed} of other names"
        );
        assert!(without > size, "{way}: {without}");
        assert!(found < size / 10, "{way}: {found}");
        assert!(renamed < size / 10, "{way}: {renamed}");
    }
    // A fetch into a new directory, too.
    let fetched = to.dray().args(["get", "-o"]).arg(&copy).arg(&sharing.1).arg("--search").arg(&beside);
    let bytes = to.carried("got by ticket", || {
        fetched.time_limit(Duration::from_secs(120)).run().expect(0);
    });
    assert!(bytes < size / 10, "{bytes}");
    assert_eq!(differences(&source, &copy), "");

    let search = |program: Program<'_>, at: &Path| program.arg("--search").arg(at).run();
    let nowhere = to.file("no");
    for options in [&["-n"][..], &[]] {
        for program in [
            sync_tree(to, from, slashed(from.remote(&source)), copy.clone().into()),
            to.dray().args(["sync", "-a"]).arg(&sharing.1).arg(&copy),
        ] {
            let refused = search(program.args(options), &nowhere).expect(3);
            assert!(refused.stderr_text().contains("--search"), "{options:?}: {refused}");
        }
    }
    let up = sync_tree(to, from, slashed(&copy), from.remote(&from.file("up")));
    let refused = search(up, &beside).expect(2);
    assert!(refused.stderr_text().contains("search = true"), "{refused}");
    let whole = sync_tree(to, from, slashed(from.remote(&source)), copy.clone().into()).arg("-W");
    let refused = search(whole, &beside).expect(2);
    assert!(refused.stderr_text().contains("--whole-file"), "{refused}");
    let here = to.dray().args(["sync", "-a"]).arg(slashed(&copy)).arg(to.file("local"));
    let refused = search(here, &beside).expect(2);
    assert!(refused.stderr_text().contains("leave --search out"), "{refused}");
    assert!(!to.file("local").exists() && !from.file("up").exists());
}

/// S97: who names a directory to be searched hears where the configuration keeps that from being done, of a tree and of a single file, from a host and by a ticket; nobody else does.
#[test]
fn a_search_that_is_turned_off_is_told() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (from, to) = lab.pair();
    from.sshd();
    let source = from.directory("tree");
    data::write_random(&source.join("image"), 2 * MIB, 17);
    let (_sharing, directory) = share_directory(from, &source);
    let shared = share(from, &source.join("image"));
    for is_off in [true, false] {
        to.configure(if is_off { "search_policy = \"no-disk\"\n" } else { "" });
        let there = |name: &str| to.home().join(format!("{name}-{is_off}"));
        let programs = [
            sync_tree(to, from, slashed(from.remote(&source)), there("ssh").into()),
            to.dray().args(["sync", "-a"]).arg(&directory).arg(there("ticket")),
            to.dray().args(["get", "-o"]).arg(there("object")).arg(&shared.ticket),
            actions::copy_from(from, to, &source.join("image"), &there("file")),
        ];
        for (number, program) in programs.into_iter().enumerate() {
            let done =
                program.arg("--search").arg(to.home()).time_limit(Duration::from_secs(60)).run().expect(0);
            let said = done.stderr_text().matches("search_policy = \"no-disk\"").count();
            assert_eq!(said, usize::from(is_off), "{number}: {done}");
        }
    }
}

/// Y2, Y26, issue 7 "data already on the receiver's disk under any name costs no network", S97: a tree that is synchronised to here by a login comes as a
/// difference to one that lies beside the destination, or from files of any name in the home, if the configuration says `search = true`; else all of
/// it comes.
#[test]
fn what_is_synchronised_by_a_login_is_looked_for() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(FAST).build() else { return };
    let (from, to) = lab.pair();
    to.sshd();
    let source = from.directory("tree");
    let size = write_tree(&source, false);
    let push = |what: &str, is_renamed: bool| {
        let work = to.home().join("work");
        let copy = work.join("here");
        fs::create_dir_all(&work).unwrap();
        write_tree(&work.join("beside"), !is_renamed);
        if is_renamed {
            rename_all(&work.join("beside"), &work.join("heap"));
        }
        let program = sync_tree(from, to, slashed(&source), to.remote(&copy));
        let bytes = synchronised(what, &lab, &source, &copy, program);
        fs::remove_dir_all(&work).unwrap();
        bytes
    };
    let off = push("search-off", false);
    assert!(off > size, "{off}");
    to.configure("search = true\n");
    let beside = push("beside", false);
    let renamed = push("under other names", true);
    eprintln!("{size} bytes: {off} without a search, {beside} of another state, {renamed} of other names");
    assert!(beside < size / 10, "{beside}");
    assert!(renamed < size / 10, "{renamed}");
}

/// Directories beside the destination with a file in each that is alike in nothing but its size, and directories far from it.
const BESIDE: usize = 20;
const FAR: usize = 60;

/// What the kernel saw `to` do below `top` while it fetched what `shared` tells: directories whose entries were read, and files of which bytes were.
fn seen_by_the_kernel(to: &Host, top: &Path, ticket: &str, copy: &Path, trace: &Path) -> (usize, usize) {
    let calls = "trace=openat,openat2,getdents64,read,pread64";
    let strace =
        to.program("strace").args(["-f", "-y", "-qq", "--seccomp-bpf", "-e", calls, "-o"]).arg(trace);
    let get = strace.arg(gate::dray_binary()).args(["get", ticket, "-o"]).arg(copy).arg("--search").arg(top);
    get.time_limit(Duration::from_secs(120)).run().expect(0);
    let trace = fs::read_to_string(trace).unwrap();
    // `1234 getdents64(7</path/of/it>, …`
    let paths = |call: &str| -> BTreeSet<String> {
        let begun =
            trace.lines().filter_map(|line| line.split_once(call)?.1.split_once('<')?.1.split_once('>'));
        let below = begun.map(|(path, _)| path.to_owned()).filter(|path| Path::new(path).starts_with(top));
        below.collect()
    };
    let read: BTreeSet<String> = paths(" pread64(").union(&paths(" read(")).cloned().collect();
    let read =
        read.iter().filter(|path| path.ends_with("/other.iso") || path.ends_with("-old/new/image.img"));
    (paths(" getdents64(").len(), read.count())
}

/// R16, Y25 with the real program on real files, as strace sees it: by cost per chunk no more directories are listed than lie near the destination, and of
/// all files the one of use alone is read; breadth-first reads the others beside before it, all directories first lists those far away, too, and without a
/// search nothing is looked at.
#[test]
fn the_kernel_sees_what_a_search_lists_and_reads() {
    if !gate::has_tool("strace") {
        return;
    }
    let Some(lab) = Lab::of(2).alone().rate_mbit(SLOW).build() else { return };
    let (from, to) = lab.pair();
    let source = from.file("image.img");
    data::write_random(&source, 4 * MIB, 551);
    let shared = share(from, &source);
    let top = to.directory("top");
    let place = |path: String, name: &str| {
        let directory = top.join(path);
        fs::create_dir_all(&directory).unwrap();
        directory.join(name)
    };
    for number in 0..BESIDE {
        let other = place(format!("work/project/{number}"), "other.iso");
        data::write_random(&other, 4 * MIB, 560 + number as u64);
    }
    for number in 0..FAR {
        drop(place(format!("mail/{}/{number}", number % 4), ""));
    }
    fs::copy(&source, place("work/project-old/new".to_owned(), "image.img")).unwrap();
    let copy = place("work/project/new".to_owned(), "image.img");
    let seen = |policy: &str| {
        to.configure(&format!("search_policy = \"{policy}\"\n"));
        let seen = seen_by_the_kernel(to, &top, &shared.ticket, &copy, &to.file(policy));
        data::assert_same(&source, &copy);
        fs::remove_file(&copy).unwrap();
        actions::forget(to);
        eprintln!("{policy}: {} directories listed, {} files read", seen.0, seen.1);
        seen
    };
    let (listed, read) = seen("cost");
    // The destination's, those above it and beside it, and the two that lead to the file of use.
    assert!((4..=BESIDE + 8).contains(&listed) && read == 1, "{listed} directories, {read} files");
    let breadth_first = seen("breadth-first");
    assert!(breadth_first.1 > BESIDE, "{breadth_first:?}");
    let all_stats = seen("all-stats");
    assert!(all_stats.0 > BESIDE + FAR && all_stats.1 == 1, "{all_stats:?}");
    assert_eq!(seen("no-disk").1, 0);
}
