//! What costs nothing on the wire: zeros, whether holes or data, what stands in an object twice, and what this user has
//! already (issue "zero runs, identical chunks within one object, and data already in the store").
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use dray_e2e::actions::{self, assert_delivered, share};
use dray_e2e::data::{self, GIB, MIB};
use dray_e2e::{Host, Lab, Program};

/// Longest time one command may take.
const LARGE: Duration = Duration::from_secs(300);

/// Runs `program` to its success; the bytes that crossed the wire of `host` meanwhile, in both directions.
#[track_caller]
fn cost(host: &Host, program: Program<'_>) -> u64 {
    let before = host.counters();
    program.time_limit(LARGE).run().expect(0);
    let carried = host.counters() - before;
    carried.bytes()
}

/// Writes a file of zeros that are data.
fn write_zeros(path: &Path, size_bytes: u64) {
    let mut file = File::create(path).unwrap();
    let zeros = vec![0; MIB as usize];
    let mut left = size_bytes;
    while left > 0 {
        let len = left.min(MIB);
        file.write_all(&zeros[..len as usize]).unwrap();
        left -= len;
    }
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 >= size_bytes, "zeros that are data take room");
}

/// S7 and the "zero runs cost nothing on the wire": 1 GiB of zeros that are data, put or copied either way, over
/// TLS, in clear and over ssh alone, costs less than 600 kB, a thousandth of half of it (one small answer for each MiB asked for), and takes as much room there as here.
#[test]
fn zeros_that_are_data_cost_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    write_zeros(&source, GIB);
    let shared = share(a, &source);
    let copy = b.directory("got").join("copy");
    let got = cost(b, actions::get(b, &shared.ticket, &copy));
    assert_delivered(&source, &copy, Some(&shared.hash()));
    shared.end();
    fs::remove_file(&copy).unwrap();
    assert!(got < 600_000, "get: {got} bytes");
    a.sshd();
    b.sshd();
    for way in ["up", "down", "down over ssh alone"] {
        if way.ends_with("alone") {
            b.allow_only_ssh();
        }
        let copy = b.directory(way).join("copy");
        let program = match way {
            "up" => actions::copy_to(a, b, &source, &copy),
            _ => actions::copy_from(a, b, &source, &copy),
        };
        let copied = cost(b, program);
        assert_delivered(&source, &copy, None);
        fs::remove_file(&copy).unwrap();
        assert!(copied < 600_000, "{way}: {copied} bytes");
    }
}

/// S7: in clear text, where the bytes do not pass through the sender, zeros are found as well, and what lies between them
/// arrives.
#[test]
fn zeros_between_other_bytes_arrive_as_they_are() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    write_zeros(&source, 200 * MIB + 77);
    let file = File::options().write(true).open(&source).unwrap();
    // Pieces of some groups, at offsets that are no multiple of anything, with holes here and there.
    for piece in 0..10 {
        let at = 17 * MIB * piece + 4321 * piece;
        file.write_all_at(&data::random_bytes(300_000, piece), at).unwrap();
    }
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        60 * MIB + 8192,
        10 * MIB,
    )
    .unwrap();
    drop(file);
    for clear in [false, true] {
        for host in [a, b] {
            let dir = host.home().join(".config/dray");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("config.toml"), format!("clear_text_data = {clear}\n")).unwrap();
        }
        let shared = share(a, &source);
        let copy = b.directory(&format!("got-{clear}")).join("copy");
        let got = cost(b, actions::get(b, &shared.ticket, &copy));
        assert_delivered(&source, &copy, Some(&shared.hash()));
        // The pieces, the groups they begin and end in, and the pairs of units that are not all zeros.
        assert!(got < 5_500_000, "clear {clear}: {got} bytes");
    }
}

/// The "data already in the store cost nothing": what this user has put, or fetched before, is not asked of anybody:
/// not a packet leaves if the command names the file, also when nobody is there any more; holes stay holes.
#[test]
fn what_is_at_hand_is_not_asked_for() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_sparse(&source, 100 * MIB + 5, 3, 8);
    let file = File::options().write(true).open(&source).unwrap();
    file.write_all_at(&data::random_bytes(40 * MIB as usize, 9), 50 * MIB).unwrap();
    drop(file);
    let shared = share(a, &source);
    let (hash, ticket) = (shared.hash(), shared.ticket.clone());
    // The holder's own user, while it is served.
    let own = a.directory("own").join("copy");
    assert_eq!(cost(a, actions::get(a, &ticket, &own)), 0);
    assert_delivered(&source, &own, Some(&hash));
    // What stands under the sender's name is not replaced, and nothing is left beside it.
    let named = a.directory("named");
    for code in [0, 6] {
        a.dray().arg("get").arg(&ticket).directory(&named).run().expect(code);
        assert_eq!(data::names(&named), ["source"]);
    }
    let first = b.directory("first").join("copy");
    assert!(cost(b, actions::get(b, &ticket, &first)) > 40 * MIB);
    shared.end();
    for (name, program) in [
        ("second", actions::get(b, &ticket, &b.directory("second").join("copy"))),
        (
            "by name alone",
            b.dray()
                .arg("get")
                .arg(format!("blake3:{hash}"))
                .arg("-o")
                .arg(b.directory("by name alone").join("copy")),
        ),
    ] {
        assert_eq!(cost(b, program), 0, "{name}");
        assert_delivered(&source, &b.file(name).join("copy"), Some(&hash));
    }
    // The name is the sender's to give, and he is not there; here it may be called anything.
    let nameless = b.directory("nameless");
    let got = b.dray().arg("get").arg(&ticket).directory(&nameless).run().expect(0);
    assert!(got.stderr_text().contains("nobody says what the file is called"), "{got}");
    assert_delivered(&source, &nameless.join(&hash[..16]), Some(&hash));
    b.dray().arg("get").arg(&ticket).directory(&nameless).run().expect(6);
    assert_eq!(data::names(&nameless), [&hash[..16]]);
    let streamed = b.file("streamed");
    b.dray().arg("get").arg(&ticket).args(["-o", "-"]).output_file(&streamed).run().expect(0);
    data::assert_same(&source, &streamed);
}

/// The same, and the copy at hand is not what it was: cut, gone, overwritten in its middle, rotten under its old times. The
/// network is asked for what is missing, and what was proven before is kept.
#[test]
fn a_copy_at_hand_that_changed_is_made_up_for() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 64 * MIB + 5, 10);
    let shared = share(a, &source);
    let had = b.directory("had").join("copy");
    for (how, at_most) in
        [("cut", 75 * MIB), ("gone", 75 * MIB), ("overwritten", 50 * MIB), ("first byte", 75 * MIB)]
    {
        let _ = fs::remove_file(&had);
        actions::get(b, &shared.ticket, &had).run().expect(0);
        let file = File::options().write(true).open(&had).unwrap();
        match how {
            "cut" => file.set_len(64 * MIB).unwrap(),
            "gone" => fs::remove_file(&had).unwrap(),
            "first byte" => data::flip_bit(&had, 0),
            _ => (40..50).for_each(|mib| data::flip_bit(&had, mib * MIB)),
        }
        let copy = b.directory(how).join("copy");
        let got = cost(b, actions::get(b, &shared.ticket, &copy));
        assert!((10 * MIB..at_most).contains(&got), "{how}: {got} bytes");
        assert_delivered(&source, &copy, Some(&shared.hash()));
        fs::remove_file(&copy).unwrap();
    }
    // Nobody there either: the error names who could have had it.
    let ticket = shared.ticket.clone();
    shared.end();
    let copy = b.directory("nobody").join("copy");
    let failed = actions::get(b, &ticket, &copy).time_limit(Duration::from_secs(60)).run();
    let failed = failed.expect(4);
    let text = failed.stderr_text();
    assert!(text.contains(&a.address().to_string()), "who is not there: {failed}");
}

/// A get from what is at hand that is killed goes on where it was, from there or from the network.
#[test]
fn a_killed_get_from_what_is_at_hand_goes_on() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 512 * MIB, 11);
    let shared = share(a, &source);
    let had = b.directory("had").join("copy");
    actions::get(b, &shared.ticket, &had).time_limit(LARGE).run().expect(0);
    let dir = b.directory("killed");
    let copy = dir.join("copy");
    for round in 1..3 {
        let running = actions::get(b, &shared.ticket, &copy).start();
        running.wait_until(false, || data::unfinished_bytes(&dir) > round * 64 * MIB);
        running.kill();
    }
    let there = data::unfinished_bytes(&dir);
    fs::remove_file(&had).unwrap();
    let got = cost(b, actions::get(b, &shared.ticket, &copy));
    assert!(got < 512 * MIB + 40 * MIB - there, "{got} bytes with {there} there");
    assert_delivered(&source, &copy, Some(&shared.hash()));
}

/// Writes `half` random bytes, some more, and the same again at an odd offset.
fn write_twice(path: &Path, half: u64) {
    data::write_random(path, half, 21);
    let mut whole = fs::read(path).unwrap();
    let again = whole.clone();
    whole.extend_from_slice(&data::random_bytes(123_457, 22));
    whole.extend_from_slice(&again);
    fs::write(path, whole).unwrap();
}

/// The "identical chunks within one object": 96 MiB that stand in a file twice, the second time at an odd offset, cross
/// a wire that is no faster than chunking once; a get that is killed goes on; `-W` fetches everything.
#[test]
fn what_stands_in_an_object_twice_is_fetched_once() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    write_twice(&source, 96 * MIB);
    let shared = share(a, &source);
    let told = shared.parsed().repeated_permille;
    assert!((60..=1000).contains(&told), "{told} of 1000");
    let get = |dir: &Path| {
        actions::get(b, &shared.ticket, &dir.join("copy")).env("DRAY_DATA_DIR", dir.with_extension("data"))
    };
    let once = b.directory("once");
    let got = cost(b, get(&once));
    assert_delivered(&source, &once.join("copy"), Some(&shared.hash()));
    assert!(got < 110 * MIB, "{got} bytes");
    // No file was there before, so nothing is said to be of an older version.
    let told = b.dray().args(["explain", "--json"]).env("DRAY_DATA_DIR", once.with_extension("data"));
    let told: serde_json::Value = serde_json::from_str(told.run().expect(0).stdout_text().trim()).unwrap();
    let (older, repeated) = (told["older_version_bytes"].as_u64(), told["repeated_bytes"].as_u64());
    assert!(older == Some(0) && repeated > Some(80 * MIB), "{told}");
    fs::remove_file(once.join("copy")).unwrap();
    let killed = b.directory("killed");
    let before = b.counters();
    for share in [1, 2] {
        let running = get(&killed).start();
        running.wait_until(false, || data::unfinished_bytes(&killed) > share * 30 * MIB);
        running.kill();
    }
    let sent = (b.counters() - before).received_bytes;
    let rest = cost(b, get(&killed));
    assert_delivered(&source, &killed.join("copy"), Some(&shared.hash()));
    fs::remove_file(killed.join("copy")).unwrap();
    assert!(sent + rest < 150 * MIB, "{sent} and {rest} bytes");
    let whole = b.directory("whole");
    let got = cost(b, get(&whole).arg("-W"));
    assert!(got > 192 * MIB, "{got} bytes");
    assert_delivered(&source, &whole.join("copy"), Some(&shared.hash()));
}

/// The same guess about an object in which nothing stands twice, from a ticket that lies: the bytes are right, and the
/// questions cost next to nothing.
#[test]
fn a_wrong_guess_costs_next_to_nothing() {
    let Some(lab) = Lab::of(2).rate_mbit(600).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, 100 * MIB, 31);
    let shared = share(a, &source);
    let honest = shared.parsed();
    assert_eq!(honest.repeated_permille, 0);
    let lying = dray_core::ticket::Ticket { repeated_permille: 1000, ..honest }.to_text().unwrap();
    let copy = b.directory("got").join("copy");
    let got = cost(b, actions::get(b, &lying, &copy));
    assert_delivered(&source, &copy, Some(&shared.hash()));
    assert!(got < 108 * MIB, "{got} bytes");
}
