//! Loss of power: what a disk may be left with while a command writes to it, at random moments, with writes since its last flush
//! lost or not. After "power on" the same command ends with the right bytes, and nothing that did not reach the disk is believed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_e2e::actions::{self, Share, assert_delivered, await_no_dray, share};
use dray_e2e::data::{self, MIB};
use dray_e2e::gate::{self, Cases};
use dray_e2e::power::{Disk, FileSystem, Loss, is_isolated};
use dray_e2e::{Host, Lab};

const DISK_BYTES: u64 = 512 * MIB;

/// The file systems that are tried.
fn file_systems() -> &'static [FileSystem] {
    let all = &[FileSystem::Ext4, FileSystem::Xfs, FileSystem::Ext4Writeback];
    if gate::is_full() { all } else { &all[..2] }
}

/// The seed of this run: `DRAY_E2E_SEED`, or one that is always the same.
fn seed() -> u64 {
    let seed = std::env::var("DRAY_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122);
    eprintln!("DRAY_E2E_SEED={seed}");
    seed
}

/// A disk on `host`, and the data directory there.
fn disk(host: &Host, file_system: FileSystem, seed: u64) -> (Disk, PathBuf) {
    let images = host.dir().join(format!("images-{file_system:?}"));
    let disk = Disk::new(file_system, &images, &host.file(format!("disk-{file_system:?}")), DISK_BYTES, seed);
    let data = disk.path().join("dray-data");
    (disk, data)
}

/// Looks at the disk after losses of power at random moments of `moments`, one for each kind of loss and round.
fn cut(
    disk: &mut Disk,
    cases: &mut Cases,
    what: &str,
    moments: Range<usize>,
    rounds: u64,
    check: impl Fn(&Path),
) {
    for _ in 0..gate::sized(rounds, rounds * 20) {
        for loss in Loss::ALL {
            let moment = disk.moment(moments.clone());
            let lost = disk.power_on(moment, loss);
            let path = disk.path().to_owned();
            let case = format!("{what}: power off at {moment} of {moments:?}, {loss:?}, {lost} lost");
            cases.check(&case, || check(&path));
            disk.power_off();
        }
    }
}

/// S17, S14: of a `get` that was cut off, only what reached the disk is believed; the same command ends with the right bytes.
#[test]
fn a_get_goes_on_after_a_loss_of_power() {
    if !is_isolated("a_get_goes_on_after_a_loss_of_power") {
        return;
    }
    let seed = seed();
    let lab = Lab::of(2).rate_mbit(80).build().unwrap();
    let (a, b) = lab.pair();
    let source = a.file("source");
    // Ten seconds: a few checkpoints, of which a busy machine makes one. One of up to 64 MiB that arrives in two seconds has none.
    let size = 96 * MIB;
    data::write_random(&source, size, seed);
    actions::let_settle(&source);
    let mut cases = Cases::default();
    for &file_system in file_systems() {
        let share = share(a, &source);
        let (mut disk, data) = disk(b, file_system, seed);
        let copy = disk.path().join("there/copy");
        std::fs::create_dir(copy.parent().unwrap()).unwrap();
        rustix::fs::syncfs(std::fs::File::open(disk.path()).unwrap()).unwrap();
        let begin = disk.now();
        let get = || actions::get(b, &share.ticket, &copy).env("DRAY_DATA_DIR", &data);
        // Nobody else makes the data durable: only what the checkpoints did counts.
        let other = disk.disturb(false);
        let running = get().start();
        // It takes six seconds until then, so a checkpoint is there; and as late as can be seen, as a busy machine has them later.
        let there = copy.parent().unwrap();
        running.wait_until(false, || data::unfinished_bytes(there) >= size / 8 * 5);
        let mut late = disk.now();
        while data::unfinished_bytes(there) > 0 {
            late = disk.now();
            std::thread::sleep(Duration::from_millis(20));
        }
        running.wait().expect(0);
        std::thread::sleep(Duration::from_millis(1500));
        drop(other);
        let end = disk.now();
        disk.stop();
        lab.lift_rate();
        let sent_again = Cell::new(0);
        let go_on = |_: &Path| {
            let before = a.counters();
            get().run().expect(0);
            sent_again.set((a.counters() - before).sent_bytes);
            eprintln!("{} MiB sent again", sent_again.get() / MIB);
            assert_delivered(&source, &copy, Some(&share.hash()));
        };
        // What was synced is believed, too: without that nothing would ever go wrong.
        disk.power_on(late, Loss::Everything);
        go_on(disk.path());
        assert!(sent_again.get() < size, "{} bytes sent again, as if nothing was there", sent_again.get());
        disk.power_off();
        cut(&mut disk, &mut cases, &format!("{file_system:?}"), begin..end, 2, go_on);
        share.end();
        lab.limit_rate(80);
    }
    cases.finish(8 * file_systems().len());
}

/// S17 and "durability": what `put -` took in is there once the ticket is printed, and what `cp --fsync` delivered once it ended.
#[test]
fn what_is_durable_outlives_a_loss_of_power() {
    if !is_isolated("what_is_durable_outlives_a_loss_of_power") {
        return;
    }
    let seed = seed();
    let lab = Lab::of(2).build().unwrap();
    let (near, far) = lab.pair();
    far.sshd();
    let source = near.file("source");
    data::write_random(&source, 24 * MIB, seed);
    let hash = data::b3sum(&source);
    let mut cases = Cases::default();
    for &file_system in file_systems() {
        let (mut disk, data) = disk(far, file_system, seed);
        let other = disk.disturb(true);
        let put = || far.dray().args(["put", "-"]).input_file(&source).env("DRAY_DATA_DIR", &data);
        let share = Share::of(put().start());
        let told = disk.now();
        share.process.kill();
        std::thread::sleep(Duration::from_millis(300));
        let copy = disk.path().join("copy");
        actions::copy_to(near, far, &source, &copy).arg("--fsync").run().expect(0);
        let copied = disk.now();
        await_no_dray(far, Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1500));
        drop(other);
        let end = disk.now();
        disk.stop();
        let owned = data.join("store/objects").join(&hash[..2]).join(&hash).join("data");
        cut(&mut disk, &mut cases, &format!("{file_system:?} put"), told..end, 1, |_| {
            data::assert_same(&source, &owned);
            let again = Share::of(put().start());
            assert_eq!(again.hash(), hash);
            let got = near.file("got");
            actions::get(near, &again.ticket, &got).run().expect(0);
            data::assert_same(&source, &got);
            std::fs::remove_file(got).unwrap();
            actions::forget(near);
            again.end();
        });
        cut(&mut disk, &mut cases, &format!("{file_system:?} cp"), copied..end, 1, |_| {
            data::assert_same(&source, &copy);
        });
    }
    cases.finish(8 * file_systems().len());
}

/// S6, design 11: a file of the user that lost bytes with the power, though its times and size say otherwise, while what the store
/// knows of it is on the disk. Nothing wrong is delivered, and putting it once more gives the ticket of the bytes that are there.
#[test]
fn a_file_that_lost_bytes_is_never_delivered() {
    if !is_isolated("a_file_that_lost_bytes_is_never_delivered") {
        return;
    }
    let seed = seed();
    let lab = Lab::of(2).build().unwrap();
    let (host, taker) = lab.pair();
    let mut cases = Cases::default();
    let lost = Cell::new(0);
    for &file_system in file_systems() {
        let (mut disk, data) = disk(host, file_system, seed);
        let putting = |file: &Path| actions::put(host, file).env("DRAY_DATA_DIR", &data).start();
        let put = |file: &Path| Share::of(putting(file));
        // As downloads are written by many programs: room is reserved first.
        let file = disk.path().join("file");
        let out = std::fs::File::create(&file).unwrap();
        rustix::fs::fallocate(&out, rustix::fs::FallocateFlags::empty(), 0, 24 * MIB).unwrap();
        drop(out);
        let mut bytes = std::fs::File::options().write(true).open(&file).unwrap();
        std::io::Write::write_all(&mut bytes, &data::random_bytes(24 * MIB as usize, seed)).unwrap();
        drop(bytes);
        actions::let_settle(&file);
        put(&file).end();
        let begin = disk.now();
        // The system writes files when it likes; here those of the store first.
        sync_below(&data);
        let synced = disk.now();
        let other = disk.disturb(true);
        std::thread::sleep(Duration::from_millis(2500));
        drop(other);
        let end = disk.now();
        disk.stop();
        let check = |_: &Path| {
            let copy = taker.file("copy");
            let get = |share: &Share| actions::get(taker, &share.ticket, &copy).run();
            let mut share = Share::try_of(putting(&file)).unwrap_or_else(|refused| {
                // Its outboard was lost, too, and built anew: the bytes are others, which is told, and not believed again.
                let told = refused.expect(4).stderr_text();
                assert!(told.contains("no longer those that were hashed"), "{told}");
                lost.set(lost.get() + 1);
                put(&file)
            });
            if share.hash() != data::b3sum(&file) {
                get(&share).expect(4);
                share.end();
                lost.set(lost.get() + 1);
                share = put(&file);
            }
            assert_eq!(share.hash(), data::b3sum(&file), "the ticket names other bytes than the file has");
            get(&share).expect(0);
            data::assert_same(&file, &copy);
            share.end();
            actions::forget(taker);
            std::fs::remove_file(&copy).unwrap();
        };
        // Once for sure: what the store knows is on the disk, and nobody has synced the file.
        let before = lost.get();
        disk.power_on(synced, Loss::Everything);
        check(disk.path());
        disk.power_off();
        assert!(lost.get() > before, "the file had all its bytes: that is no test of one that lost some");
        cut(&mut disk, &mut cases, &format!("{file_system:?}"), begin..end, 1, check);
    }
    eprintln!("{} times the file had lost bytes", lost.get());
    cases.finish(4 * file_systems().len());
}

/// Makes every file below `directory` durable.
fn sync_below(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sync_below(&path);
        }
        std::fs::File::open(path).unwrap().sync_all().unwrap();
    }
}
