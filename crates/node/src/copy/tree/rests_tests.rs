//! Of a changed file only the blocks that changed come (ADR 28): over slow pipes, between the real walk and the real writer; and by hand,
//! what a liar can do. What crosses a real network is counted in `testing/e2e`.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use dray_core::block_mask::{BLOCK_BYTES, BlockMask, GROUP_BLOCKS, Have};
use dray_core::block_sum::sum_of;
use dray_core::code_field::{CodeFields, code_sum_of};
use dray_core::frame::FrameKind;
use dray_core::limits::GROUP_BYTES;
use dray_core::message::{BlockRun, BlockSums, Fault, Part, Run, TreeDone};
use dray_core::tree::{Finished, Record};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::Owed;
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::transport::{Channel, Duplex, PipeChannel, Security, Wake, Wants};
use dray_transfer::tree::{RecordSink, SendError, TreeSource, send, take};

use super::copies::{channels, keeping, recursive};
use super::differences::{Trees, WrittenToWalk, noise};
use super::hostile::Peer;
use super::hostile_cuts::{Honest, pulled, tell};
use super::sink::Writing;
use super::source::WalkSource;
use crate::Stop;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A pipe that counts what crosses it, both ways, and brings a megabyte a second at most, if it is to be slow.
struct Counted {
    pipe: PipeChannel,
    bytes: Arc<AtomicU64>,
    is_slow: bool,
}

impl Counted {
    fn count(&self, bytes: usize) -> usize {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        bytes
    }
}

impl Channel for Counted {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let max = if self.is_slow { out.len().min(1024) } else { out.len() };
        let read = self.pipe.try_read(&mut out[..max])?;
        if self.is_slow && read.is_some_and(|count| count > 0) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(read.map(|count| self.count(count)))
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.pipe.write_all(data)?;
        self.count(data.len());
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.pipe.wait(wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        self.pipe.security()
    }
}

impl Duplex for Counted {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.pipe.try_write(data)?;
        Ok(self.count(written))
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.pipe.wait_for(wants, wake, timeout)
    }
}

/// Copies what `source` tells to where the older versions lie, with sums of blocks over a slow pipe, or without: what the receiver says, and the
/// bytes that crossed the pipe.
fn copied_from(
    trees: &Trees,
    mut source: impl TreeSource,
    has_rests: bool,
    has_code: bool,
) -> (TreeDone, u64) {
    let (near, far) = channels(65_536);
    let bytes = Arc::<AtomicU64>::default();
    // Over a fast one nobody looks for long.
    let mut far = Counted { pipe: far, bytes: bytes.clone(), is_slow: has_rests };
    let to = trees.place.path().join("to");
    let done = thread::scope(|scope| {
        let sending = scope.spawn(move || {
            send(Box::new(near), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| PATIENCE)
        });
        let make = || {
            let landing = Landing::resolve(&to, &[b"tree".to_vec()], false)?;
            let writing = Writing::new(TreeWriter::new(landing, keeping()), 1, false, &|_| {});
            Ok(writing.with_deltas(true).with_rests(has_rests).with_code(has_code))
        };
        let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE).unwrap();
        drop(far);
        assert_eq!(sending.join().unwrap().unwrap(), taken);
        taken
    });
    (done, bytes.load(Ordering::Relaxed))
}

fn walk(trees: &Trees) -> WalkSource {
    WalkSource::new(vec![trees.place.path().join("from")], recursive(), false, Stop::new())
}

/// A program, and the same built again: four bytes are others in each 200 or so, and in the middle 16 were put in.
fn built_again(len: usize, seed: u8) -> (Vec<u8>, Vec<u8>) {
    let older = noise(len, seed);
    let mut newer = older.clone();
    let mut at = 50;
    while at + 4 < len {
        newer[at..at + 4].iter_mut().for_each(|byte| *byte ^= 0x5a);
        at += 170 + usize::from(older[at + 4] % 60);
    }
    newer.splice(len / 2..len / 2, *b"sixteen more byt");
    (older, newer)
}

/// The files in `trees`, copied with sums and without: what the receiver said, and what crossed the pipe.
fn both_ways(files: &[(String, Vec<u8>, Vec<u8>)]) -> [(TreeDone, u64); 2] {
    [true, false].map(|has_rests| copied(files, has_rests, has_rests))
}

fn copied(files: &[(String, Vec<u8>, Vec<u8>)], has_rests: bool, has_code: bool) -> (TreeDone, u64) {
    let trees = Trees::new();
    files.iter().for_each(|(name, older, newer)| trees.file(name, older, newer));
    let copied = copied_from(&trees, walk(&trees), has_rests, has_code);
    files.iter().for_each(|(name, ..)| trees.assert_same(name));
    copied
}

/// A program of x86-64, and the same built again: it calls something each 25 bytes, all of which moved, so that fields lie across the ends of blocks,
/// windows and reads, too, and in the middle 160 bytes were put in; a tenth of it has no code.
fn code_built_again(len: usize, seed: u8) -> (Vec<u8>, Vec<u8>) {
    let mut older = noise(len, seed);
    older[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00");
    let mut newer = older.clone();
    for (number, at) in (64..len - len / 10).step_by(25).enumerate() {
        let field = (number * 7 % 1000 * 16) as u32;
        older[at] = 0xe8;
        newer[at] = 0xe8;
        older[at + 1..at + 5].copy_from_slice(&field.to_le_bytes());
        newer[at + 1..at + 5].copy_from_slice(&(field + 0x1230).to_le_bytes());
    }
    newer.splice(len / 2..len / 2, noise(160, seed + 1));
    (older, newer)
}

/// P6, S92: of a program in which every block has an address that changed, these addresses come: less than a third of it with all that is said about
/// it, where without sums of code nearly all of it does. What is no program is looked at as ever.
#[test]
fn of_code_built_again_its_fields_come() {
    let (older, newer) = code_built_again(2 * MIB, 1);
    let len = newer.len() as u64;
    let files = [("library.so".to_owned(), older.clone(), newer.clone())];
    let (fields, with) = copied(&files, true, true);
    assert_eq!((fields.files, fields.failed), (1, 0));
    assert!(fields.bytes < len / 5 && with < len / 3, "{} bytes came, {with} crossed of {len}", fields.bytes);
    let (blocks, without) = copied(&files, true, false);
    assert!(blocks.bytes > len / 10 * 8, "{} bytes came, {without} crossed of {len}", blocks.bytes);
    let other = |mut bytes: Vec<u8>| {
        bytes[18] = 0xb7;
        bytes
    };
    let (blocks, _) = copied(&[("of another machine".into(), other(older), other(newer))], true, true);
    assert!(blocks.bytes > len / 10 * 8, "{} bytes came", blocks.bytes);
}

/// P6, S92: of a program that was built again the blocks that changed come, far less than half of it with all that is said about it; without
/// sums all of it does.
#[test]
fn of_a_program_built_again_what_changed_comes() {
    let (older, newer) = built_again(2 * MIB, 1);
    let len = newer.len() as u64;
    let [(rests, with), (whole, without)] = both_ways(&[("program".into(), older, newer)]);
    assert_eq!((rests.files, rests.failed, whole.files, whole.failed), (1, 0, 1, 0));
    assert!(rests.bytes < len * 2 / 5 && with < len / 2, "{} bytes came, {with} crossed", rests.bytes);
    assert!(without > len, "{without} bytes crossed without sums");
}

/// The same of many files of all sizes at once, of which some are cut coarsely before, and some once.
#[test]
fn of_many_programs_built_again_what_changed_comes() {
    let files: Vec<(String, Vec<u8>, Vec<u8>)> = (0..20u8)
        .map(|number| {
            let (older, newer) = built_again(66_000 + 17_011 * usize::from(number), number);
            (format!("program {number:02}"), older, newer)
        })
        .collect();
    let len: usize = files.iter().map(|(_, _, newer)| newer.len()).sum();
    let [(rests, with), (_, without)] = both_ways(&files);
    assert_eq!((rests.files, rests.failed), (20, 0));
    assert!(with < len as u64 / 2 && without > len as u64, "{with} bytes crossed, {without} without sums");
}

/// Doubt ends in sending: where two versions have nothing in common, looking for that costs less than a hundredth.
#[test]
fn what_has_nothing_in_common_costs_hardly_more() {
    let files = [("other".into(), noise(2 * MIB, 1), noise(2 * MIB + 100, 2))];
    let [(rests, with), (whole, without)] = both_ways(&files);
    assert_eq!((rests.files, rests.bytes), (1, whole.bytes));
    assert!(with < without / 100 * 101, "{with} bytes crossed, {without} without sums");
}

/// S77: a file that is written to after its sums were told comes once more, whole, as it is then.
#[test]
fn a_file_that_changes_after_its_sums_comes_whole() {
    let (older, newer) = built_again(MIB, 1);
    let newest = noise(newer.len(), 7);
    let trees = Trees::new();
    trees.file("file", &older, &newer);
    let source = WrittenToWalk { walk: walk(&trees), path: trees.newer("file"), bytes: newest.clone() };
    let (done, _) = copied_from(&trees, source, true, true);
    assert_eq!((done.files, done.failed), (1, 0));
    assert!(fs::read(trees.older("file")).unwrap() == newest);
}

/// What a sender says of sums and rests that is not so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    Nothing,
    /// A sum less, and more, than was asked for; or bytes in their place.
    FewSums,
    ManySums,
    BytesForSums,
    /// It tells the sums of the older version.
    WrongSums,
    /// It tells no sums; or the file has changed.
    NoSums,
    SumsChanged,
    /// The file has another time when sums are told; or when rests are.
    SumsTime,
    RestTime,
    /// Bytes are missing in a rest, or there are too many, or a hole.
    ShortRest,
    LongRest,
    HoleInRest,
    /// The first rest has the hash of something else; or each part has, whole or not.
    HashOnce,
    HashForEver,
    /// The first rest cannot be read.
    RestFails,
    /// It sends no more rests, also where some of one came.
    RestsRefused,
    RestCutShort,
    /// The fields of code are others, or too few, or more than there are.
    WrongFields,
    FewFields,
    ManyFields,
}

/// What was asked of a liar.
#[derive(Default)]
struct Asked {
    cuts: usize,
    sums: usize,
    rests: usize,
    /// Bytes of fields of code.
    field_bytes: usize,
    /// Bytes of parts that were asked for as a whole.
    part_bytes: u64,
    /// The file was asked for as a whole.
    whole: usize,
}

/// A sender that is honest but for one thing.
struct Liar<'a> {
    lie: Lie,
    older: &'a [u8],
    newer: &'a [u8],
    asked: Asked,
}

impl Liar<'_> {
    fn end(&self, peer: &mut Peer, request: u32, finished: Finished) {
        peer.records(request, &[Record::Done(finished)]);
    }

    fn tell_sums(&mut self, peer: &mut Peer, request: u32, asked: &BlockSums) {
        self.asked.sums += 1;
        let told = if self.lie == Lie::WrongSums { self.older } else { self.newer };
        let len = asked.block_bytes as usize;
        let mut sums: Vec<u8> = Vec::new();
        for run in &asked.runs {
            let start = run.start as usize * len;
            for block in 0..run.blocks as usize {
                let at = (start + block * len).min(told.len() - len);
                let is_code = asked.is_code == Some(true);
                let sum = if is_code { code_sum_of(told, at, len) } else { sum_of(&told[at..at + len]) };
                sums.extend(&sum[..usize::from(asked.sum_bytes)]);
            }
        }
        let fail = |peer: &mut Peer, kind| {
            let fault = Fault::from_error(None, &Error::new(kind, "no"));
            peer.records(request, &[Record::Failed(fault)]);
        };
        match self.lie {
            Lie::FewSums => drop(sums.pop()),
            Lie::ManySums => sums.push(0),
            Lie::BytesForSums => return peer.records(request, &[Record::Bytes(&sums)]),
            Lie::NoSums => return fail(peer, ErrorKind::Unsupported),
            Lie::SumsChanged => return fail(peer, ErrorKind::Changed),
            _ => {}
        }
        peer.records(request, &[Record::Sums(&sums)]);
        let finished = Finished { hash: [0; 32], ..Honest(self.newer).finished(&[]) };
        let mtime_s = finished.mtime_s + i64::from(self.lie == Lie::SumsTime);
        self.end(peer, request, Finished { mtime_s, ..finished });
    }

    fn send_rest(&mut self, peer: &mut Peer, request: u32, part: &Part, have: &Have) {
        self.asked.rests += 1;
        assert!(part.bytes <= GROUP_BYTES);
        let bytes = &self.newer[part.start as usize..part.end() as usize];
        let mut rest: Vec<u8> = have.rest(bytes.len()).flat_map(|range| bytes[range].to_vec()).collect();
        let fail = |peer: &mut Peer, kind| {
            let fault = Fault::from_error(None, &Error::new(kind, "no"));
            peer.records(request, &[Record::Failed(fault)]);
        };
        let plain = rest.len();
        for start in have.code_blocks(bytes.len()) {
            let at = part.start as usize + start;
            CodeFields::of(self.newer, at).take(&bytes[start..start + BLOCK_BYTES], at as u64, &mut rest);
        }
        self.asked.field_bytes += rest.len() - plain;
        match self.lie {
            Lie::WrongFields => rest[plain..].iter_mut().for_each(|byte| *byte ^= 1),
            Lie::FewFields => rest.truncate(plain + (rest.len() - plain) / 2),
            Lie::ManyFields if rest.len() > plain => rest.push(0),
            Lie::ShortRest => drop(rest.pop()),
            Lie::LongRest => rest.push(0),
            Lie::HoleInRest => return peer.records(request, &[Record::Hole(64)]),
            Lie::RestFails => return fail(peer, ErrorKind::Internal),
            Lie::RestsRefused => return fail(peer, ErrorKind::Refused),
            Lie::RestCutShort => {
                peer.records(request, &[Record::Bytes(&rest[..64])]);
                return fail(peer, ErrorKind::Refused);
            }
            _ => {}
        }
        rest.chunks(1000).for_each(|piece| peer.records(request, &[Record::Bytes(piece)]));
        let mut finished = Honest(self.newer).finished(bytes);
        finished.mtime_s += i64::from(self.lie == Lie::RestTime);
        if self.lie == Lie::HashForEver || (self.lie == Lie::HashOnce && self.asked.rests == 1) {
            finished.hash = [9; 32];
        }
        self.end(peer, request, finished);
    }

    fn answer(&mut self, peer: &mut Peer, request: u32, run: &Run) {
        self.asked.cuts += usize::from(run.cut.is_some());
        if let Some(sums) = &run.sums {
            return self.tell_sums(peer, request, sums);
        }
        match (run.part, &run.have) {
            (Some(part), Some(_)) => {
                let have = run.has().unwrap_or_default();
                return self.send_rest(peer, request, &part, &have);
            }
            (Some(part), None) if run.cut.is_none() => {
                self.asked.part_bytes += part.bytes;
                if self.lie == Lie::HashForEver {
                    let bytes = &self.newer[part.start as usize..part.end() as usize];
                    peer.records(request, &[Record::Bytes(bytes)]);
                    let finished = Finished { hash: [9; 32], ..Honest(self.newer).finished(bytes) };
                    return self.end(peer, request, finished);
                }
            }
            (None, _) => self.asked.whole += 1,
            _ => {}
        }
        Honest(self.newer).answer(peer, request, run);
    }

    fn serve(&mut self, mut peer: Peer) {
        tell(&mut peer, self.newer);
        while let Some(pull) = pulled(&mut peer) {
            pull.runs.iter().for_each(|run| self.answer(&mut peer, pull.request, run));
            peer.frame(FrameKind::End, pull.request, &[]);
        }
    }
}

/// Has a liar send the newer version of a file to where the older one lies, to a receiver that asks for sums, or to one that keeps what is here
/// to itself: what that says, the bytes that are in place then, and what was asked.
fn lied(lie: Lie, older: &[u8], newer: &[u8], is_discreet: bool) -> (Result<TreeDone>, Vec<u8>, Asked) {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("tree")).unwrap();
    let path = place.path().join("tree/f");
    fs::write(&path, older).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    let (near, mut far) = channels(65_536);
    let mut liar = Liar { lie, older, newer, asked: Asked::default() };
    let taken = thread::scope(|scope| {
        let liar = &mut liar;
        scope.spawn(move || liar.serve(Peer::new(near)));
        let make = || {
            let landing = Landing::resolve(place.path(), &[b"tree".to_vec()], false)?;
            let writing = Writing::new(TreeWriter::new(landing, keeping()), 1, false, &|_| {});
            let writing = writing.with_deltas(true).with_rests(true).with_code(true);
            Ok(if is_discreet { writing.discreet() } else { writing })
        };
        let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE);
        drop(far);
        taken
    });
    let names: Vec<_> = fs::read_dir(place.path().join("tree")).unwrap().collect();
    assert_eq!(names.len(), 1, "{lie:?} left something");
    (taken, fs::read(path).unwrap(), liar.asked)
}

/// Design 16, S92: a sender that is a stranger is not told which blocks are here: it is asked for no sums, and everything comes.
#[test]
fn a_stranger_is_asked_for_no_sums() {
    let (older, newer) = built_again(300_000, 1);
    let (done, found, asked) = lied(Lie::Nothing, &older, &newer, false);
    assert!(found == newer && asked.sums > 0 && asked.rests > 0 && asked.part_bytes == 0);
    assert!(done.unwrap().bytes < newer.len() as u64 / 2);
    let (done, found, asked) = lied(Lie::Nothing, &older, &newer, true);
    assert!(found == newer && asked.sums == 0 && asked.rests == 0);
    assert_eq!(done.unwrap().bytes, newer.len() as u64);
}

/// P6, ADR 23: what little is missing is looked at by blocks at once, and cut finely where the sender tells no sums of them, or may not be asked.
#[test]
fn blocks_stand_in_for_fine_chunks() {
    let (older, newer) = built_again(300_000, 1);
    let cuts = |lie, is_discreet| lied(lie, &older, &newer, is_discreet).2.cuts;
    assert_eq!((cuts(Lie::Nothing, false), cuts(Lie::NoSums, false), cuts(Lie::Nothing, true)), (1, 2, 2));
}

/// Y3, Y23 "slower, never wrong": what a sender says of sums and rests that is not so costs bytes at most, and the file is the sender's or stays
/// what it was.
#[test]
fn a_lie_about_blocks_costs_bytes_alone() {
    let (older, newer) = built_again(300_000, 1);
    let len = newer.len() as u64;
    for lie in [
        Lie::WrongSums,
        Lie::NoSums,
        Lie::SumsChanged,
        Lie::SumsTime,
        Lie::RestTime,
        Lie::HashOnce,
        Lie::RestsRefused,
        Lie::RestCutShort,
    ] {
        let (done, found, asked) = lied(lie, &older, &newer, false);
        let done = done.unwrap();
        assert_eq!((done.files, done.failed), (1, 0), "{lie:?}");
        assert!(found == newer, "{lie:?}: wrong bytes");
        assert!(done.bytes < 2 * len, "{lie:?}: {} bytes of {len}", done.bytes);
        let is_whole = matches!(lie, Lie::SumsChanged | Lie::SumsTime | Lie::RestTime);
        assert_eq!(asked.whole, usize::from(is_whole), "{lie:?}");
        match lie {
            // Each part that is not what it seemed to be comes once more, as a whole.
            Lie::WrongSums | Lie::RestsRefused | Lie::RestCutShort => {
                assert!(asked.rests > 0 && asked.part_bytes > len / 2);
            }
            Lie::HashOnce => assert!((1..=GROUP_BYTES).contains(&asked.part_bytes) && asked.rests > 3),
            Lie::NoSums => assert_eq!((asked.rests, asked.part_bytes), (0, len)),
            _ => {}
        }
    }
    for lie in [Lie::HashForEver, Lie::RestFails] {
        let (done, found, _) = lied(lie, &older, &newer, false);
        assert_eq!(done.unwrap().failed, 1, "{lie:?}");
        assert!(found == older, "{lie:?}: the older version was touched");
    }
}

/// The same of fields of code: each part whose fields are not those of the file comes once more, as a whole.
#[test]
fn a_lie_about_code_costs_bytes_alone() {
    let (older, newer) = code_built_again(300_000, 1);
    let len = newer.len() as u64;
    for lie in [
        Lie::Nothing,
        Lie::WrongFields,
        Lie::FewFields,
        Lie::ManyFields,
        Lie::WrongSums,
        Lie::NoSums,
        Lie::HashOnce,
    ] {
        let (done, found, asked) = lied(lie, &older, &newer, false);
        let done = done.unwrap();
        assert_eq!((done.files, done.failed, asked.whole), (1, 0, 0), "{lie:?}");
        assert!(found == newer, "{lie:?}: wrong bytes");
        match lie {
            Lie::Nothing => assert!(asked.part_bytes == 0 && asked.field_bytes > 10_000),
            // Fine chunks, which are asked for then, are here where there is no code.
            Lie::NoSums => assert!(asked.rests == 0 && asked.part_bytes > len / 10 * 8),
            Lie::HashOnce => assert!((1..=GROUP_BYTES).contains(&asked.part_bytes)),
            // A byte more than there are fields is passed over: the hash is right.
            Lie::ManyFields => assert!(asked.part_bytes == 0 && asked.field_bytes > 10_000),
            Lie::WrongSums => assert!(asked.part_bytes > len / 2),
            _ => assert!(asked.part_bytes > len / 2 && asked.field_bytes > 10_000, "{lie:?}"),
        }
    }
    let (done, found, asked) = lied(Lie::Nothing, &older, &newer, true);
    assert!(done.is_ok() && found == newer && asked.sums == 0 && asked.field_bytes == 0, "to a stranger");
}

/// Design 17: an answer that cannot be one ends the copy, and leaves the older version.
#[test]
fn impossible_sums_and_rests_end_the_copy() {
    let (older, newer) = built_again(300_000, 1);
    for lie in
        [Lie::FewSums, Lie::ManySums, Lie::BytesForSums, Lie::ShortRest, Lie::LongRest, Lie::HoleInRest]
    {
        let (done, found, _) = lied(lie, &older, &newer, false);
        assert_eq!(done.expect_err("an impossible answer").kind(), ErrorKind::Protocol, "{lie:?}");
        assert!(found == older, "{lie:?}: the older version was touched");
    }
}

/// What a sender tells of a file.
#[derive(Default)]
struct Told {
    bytes: Vec<u8>,
    sums: Vec<u8>,
    end: Option<Finished>,
}

impl RecordSink for Told {
    fn bytes(
        &mut self,
        max: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> std::result::Result<usize, SendError> {
        // Less than there is at a time.
        let mut out = vec![0; max.min(1000)];
        let count = read(&mut out).map_err(SendError::File)?;
        self.bytes.extend(&out[..count]);
        Ok(count)
    }

    fn record(&mut self, record: &Record<'_>) -> std::result::Result<(), SendError> {
        match record {
            Record::Sums(sums) => self.sums.extend_from_slice(sums),
            Record::Done(finished) => self.end = Some(*finished),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn work(&mut self) -> std::result::Result<(), SendError> {
        Ok(())
    }
}

/// P6, design 17: a sender tells the sums of the blocks that were asked for, and what is missing of a part with the hash of all of it; of sums
/// no more than three times the file, and it reads no more than four times the file that does not leave. What leaves is counted by nobody.
#[test]
fn a_sender_tells_sums_and_rests() {
    let bytes = noise(200_000, 1);
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("f"), &bytes).unwrap();
    let mut walk = WalkSource::new(vec![place.path().to_owned()], recursive(), false, Stop::new());
    let batch = walk.next_batch().unwrap();
    let file = &batch.files[0].1;
    let mut have = BlockMask::default();
    [0, 1, 5].into_iter().for_each(|block| have.insert(block));
    let mut told = Told::default();
    file.send_rest(&Part { start: 100, bytes: 10_000 }, &have.into(), &mut told).unwrap();
    assert!(told.bytes == [&bytes[228..420], &bytes[484..10_100]].concat());
    let end = told.end.unwrap();
    assert_eq!((end.size_bytes, end.hash), (200_000, *blake3::hash(&bytes[100..10_100]).as_bytes()));
    let sums = |block_bytes: u32, runs: &[(u64, u32)]| {
        let runs = runs.iter().map(|&(start, blocks)| BlockRun { start, blocks }).collect();
        let sums = Some(Arc::new(BlockSums { block_bytes, sum_bytes: 6, runs, is_code: None }));
        let owed = Owed { request: 1, number: 1, sums, is_last: true, ..Owed::default() };
        let mut told = Told::default();
        file.cut(&owed, &mut told).map(|()| told)
    };
    let told = sums(1024, &[(3, 2), (100, 95)]).unwrap();
    let blocks = bytes.chunks_exact(1024);
    let expected = blocks.clone().skip(3).take(2).chain(blocks.skip(100).take(95));
    assert!(told.sums == expected.flat_map(|block| sum_of(block)[..6].to_vec()).collect::<Vec<u8>>());
    assert_eq!(told.end.map(|end| (end.size_bytes, end.hash)), Some((200_000, [0; 32])));
    let failed = |told: std::result::Result<Told, SendError>| match told {
        Err(SendError::File(error)) => error.kind(),
        _ => panic!("it was told"),
    };
    assert_eq!(failed(sums(1024, &[(195, 1)])), ErrorKind::Changed, "the last block is not whole");
    for _ in 0..2 {
        sums(1024, &[(0, 195)]).unwrap();
    }
    sums(1024, &[(0, 90)]).unwrap();
    assert_eq!(failed(sums(1024, &[(0, 20)])), ErrorKind::Refused);
    let rest = |have: &BlockMask| {
        let mut told = Told::default();
        file.send_rest(&Part { start: 0, bytes: GROUP_BYTES }, &(*have).into(), &mut told).map(|()| told)
    };
    let mut all = BlockMask::default();
    (0..GROUP_BLOCKS).for_each(|block| all.insert(block));
    for _ in 0..4 * bytes.len() / GROUP_BYTES as usize {
        assert!(rest(&all).unwrap().bytes.is_empty());
    }
    assert_eq!(failed(rest(&all)), ErrorKind::Refused);
    assert!(rest(&BlockMask::default()).unwrap().bytes == bytes[..GROUP_BYTES as usize]);
}
