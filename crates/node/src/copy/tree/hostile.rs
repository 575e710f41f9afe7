//! Peers that break the rules of a tree copy, on the wire, against the real walk and the real writer: each ends as a typed error
//! in time, and nothing is made outside of the destination.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hash_tree::ContentHasher;
use dray_core::message::{Entries, EntryFailed, Message, Pull, Run, TreeDone};
use dray_core::tree::{Entry, Finished, Kind, Metadata, Name, Record};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::transport::{
    Channel, Duplex, PipeChannel, Security, Wake, Wants, push_control, read_exact,
};
use dray_transfer::tree::{SendLanes, send, take};

use super::copies::{channels, keeping, recursive};
use super::sink::Writing;
use super::source::WalkSource;
use crate::{Stop, lock};

/// Silence is an error after this; other errors come at once.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// A side that says what a test tells it to.
pub(super) struct Peer(PipeChannel);

impl Peer {
    pub(super) fn new(channel: PipeChannel) -> Peer {
        Peer(channel)
    }

    /// Bytes as they are. The other side may have hung up on what came before.
    fn raw(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    pub(super) fn say(&mut self, message: &Message) {
        let mut out = Vec::new();
        push_control(&mut out, message);
        self.raw(&out);
    }

    pub(super) fn frame(&mut self, kind: FrameKind, request: u32, body: &[u8]) {
        self.raw(&FrameHead::new(kind, body.len(), request).encode());
        self.raw(body);
    }

    pub(super) fn records(&mut self, request: u32, records: &[Record<'_>]) {
        let mut body = Vec::new();
        records.iter().for_each(|record| record.push(&mut body));
        self.frame(FrameKind::Data, request, &body);
    }

    pub(super) fn tell(&mut self, items: &[Vec<u8>], is_last: bool) {
        let items = items.iter().map(|item| item.clone().into()).collect();
        self.say(&Message::Entries(Entries { items, owners: None, is_last, listed: None }));
    }

    fn pull(&mut self, request: u32, runs: &[(u64, u64)], settled: u64, batches: u64) {
        let runs = runs.iter().map(|&(first, count)| Run { first, count, ..Run::default() }).collect();
        self.say(&Message::Pull(Pull { request, runs, settled, batches, ..Pull::default() }));
    }

    /// The next message that is no progress; `None` once the other side has gone.
    pub(super) fn hear(&mut self) -> Option<Message> {
        loop {
            let deadline = Instant::now() + LONG;
            let mut head = [0; 8];
            read_exact(&mut self.0, &mut head, deadline).ok()?;
            let head = FrameHead::decode(head).unwrap();
            let mut body = vec![0; head.body_bytes];
            read_exact(&mut self.0, &mut body, deadline).ok()?;
            match head.kind {
                FrameKind::Control => match Message::from_bytes(&body).unwrap() {
                    Message::Progress(_) => {}
                    message => return Some(message),
                },
                _ => continue,
            }
        }
    }

    /// Waits for the pull that asks for something: its number.
    pub(super) fn asked(&mut self) -> u32 {
        loop {
            match self.hear() {
                Some(Message::Pull(pull)) if pull.request != 0 => return pull.request,
                Some(_) => {}
                None => panic!("the receiver hung up"),
            }
        }
    }

    /// Reads and says nothing until the other side has gone.
    pub(super) fn wait(mut self) {
        while self.hear().is_some() {}
    }
}

/// What a copy from a hostile sender came to.
struct Received {
    result: Result<TreeDone>,
    failed: Vec<EntryFailed>,
    /// Everything that is in the destination, and beside it.
    found: BTreeSet<String>,
}

/// Lets `hostile` send to the real receiver.
fn received(patience: Duration, hostile: impl FnOnce(Peer) + Send) -> Received {
    received_by(false, patience, hostile)
}

/// The same, by a receiver that has been told that the sender can pack, or not.
fn received_by(packs: bool, patience: Duration, hostile: impl FnOnce(Peer) + Send) -> Received {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("inner/to");
    fs::create_dir_all(&to).unwrap();
    let (near, mut far) = channels(65_536);
    let failed = std::sync::Mutex::new(Vec::new());
    let on_failed = |entry: &EntryFailed| lock(&failed).push(entry.clone());
    let result = thread::scope(|scope| {
        scope.spawn(move || hostile(Peer::new(near)));
        let make = || {
            let landing = Landing::resolve(&to, &[b"tree".to_vec()], false)?;
            Ok(Writing::new(TreeWriter::new(landing, keeping()), 1, false, &on_failed).packing(packs))
        };
        let result = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), patience);
        drop(far);
        result
    });
    let mut found = BTreeSet::new();
    list(place.path(), place.path(), &mut found);
    let outside = found.iter().find(|path| *path != "inner" && !path.starts_with("inner/to"));
    assert_eq!(outside, None, "made outside of the destination");
    Received { result, failed: lock(&failed).clone(), found }
}

fn list(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        found.insert(entry.path().strip_prefix(root).unwrap().to_string_lossy().into_owned());
        if entry.file_type().unwrap().is_dir() {
            list(root, &entry.path(), found);
        }
    }
}

fn entry(name: Option<&str>, kind: Kind) -> Vec<u8> {
    let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
    Entry { name, kind, metadata: Metadata { mode: 0o755, ..Metadata::default() } }.to_bytes()
}

pub(super) fn directory(name: Option<&str>) -> Vec<u8> {
    entry(name, Kind::Directory { entries: None })
}

pub(super) fn file(name: &str, size_bytes: u64) -> Vec<u8> {
    entry(Some(name), Kind::File { size_bytes, oid: None })
}

/// The entry of a file whose name `Name` would refuse.
fn misnamed(name: &[u8]) -> Vec<u8> {
    let stand_in = "Q".repeat(name.len());
    let mut bytes = file(&stand_in, 1);
    let at = bytes.windows(name.len()).position(|window| window == stand_in.as_bytes()).unwrap();
    bytes[at..at + name.len()].copy_from_slice(name);
    bytes
}

fn finished(content: &[u8]) -> Finished {
    let mut hasher = ContentHasher::new();
    hasher.update(content);
    Finished { hash: hasher.finish(), size_bytes: content.len() as u64, mtime_s: 0, mtime_ns: 0 }
}

/// A root, one file `f` in it, and the end of both.
fn one_file() -> [Vec<u8>; 3] {
    [directory(None), file("f", 3), Vec::new()]
}

#[track_caller]
fn assert_broken(received: &Received, word: &str) {
    let error = received.result.as_ref().expect_err(word);
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains(word), "{word:?} is not in {error}");
}

/// Issue "hostile trees from a modified sender": entries that cannot be, told in any way, end the copy, and the error names them.
#[test]
fn impossible_entries_end_the_copy() {
    let cases: [(&[Vec<u8>], &str); 9] = [
        (&[directory(None), file("twice", 1), file("twice", 1)], "\"twice\" comes twice"),
        (&[directory(None), file("b", 1), file("a", 1)], "\"a\" is out of order"),
        (&[directory(None), misnamed(b"..")], ".."),
        (&[directory(None), misnamed(b"a/b")], "a/b"),
        (&[directory(None), misnamed(b"/etc")], "/etc"),
        (&[directory(None), misnamed(b"a\0b")], "a\\0b"),
        (&[file("nowhere", 1)], "\"nowhere\" is in no directory"),
        (&[Vec::new()], "left that was not entered"),
        (&[vec![0xff; 20]], "entry"),
    ];
    for (items, word) in cases {
        let received = received(LONG, |mut peer| {
            peer.tell(items, true);
            peer.wait();
        });
        assert_broken(&received, word);
    }
    let deep: Vec<_> = (0..600).map(|depth| directory(Some("d").filter(|_| depth > 0))).collect();
    let received = received(LONG, |mut peer| {
        peer.tell(&deep, true);
        peer.wait();
    });
    assert_broken(&received, "more than 512 directories deep");
}

/// Design 9, M9: more entries than granted or after the last, an end in the middle, contents nobody asked for, answers out of
/// place, and what is no frame.
#[test]
fn a_sender_out_of_turn_ends_the_copy() {
    type Hostile = fn(&mut Peer);
    let cases: [(Hostile, &str); 11] = [
        (
            |peer| {
                peer.tell(&one_file(), true);
                peer.tell(&[file("late", 1)], true);
            },
            "more entries than it was granted",
        ),
        (|peer| peer.tell(&[directory(None)], true), "in the middle of a tree"),
        (
            |peer| {
                peer.tell(&[directory(None)], false);
                peer.records(1, &[Record::Done(finished(b""))]);
            },
            "not asked for",
        ),
        (
            |peer| {
                peer.tell(&one_file(), true);
                let request = peer.asked();
                peer.records(request + 1, &[Record::Done(finished(b""))]);
            },
            "not asked for",
        ),
        (
            |peer| {
                peer.tell(&one_file(), true);
                let request = peer.asked();
                peer.frame(FrameKind::End, request, &[]);
            },
            "not answered",
        ),
        (
            |peer| {
                peer.tell(&one_file(), true);
                let request = peer.asked();
                let wrong = Record::Done(finished(b"abc"));
                peer.records(request, &[wrong.clone(), wrong]);
            },
            "not asked for",
        ),
        (
            |peer| {
                peer.tell(&one_file(), true);
                let request = peer.asked();
                peer.records(request, &[Record::Same(finished(b"abc"))]);
            },
            "found the same what is not",
        ),
        (
            |peer| {
                peer.tell(&one_file(), true);
                let request = peer.asked();
                peer.frame(FrameKind::Data, request, &[1, 0, 0, 99, 7]);
            },
            "longer than its frame",
        ),
        (|peer| peer.pull(1, &[(0, 1)], 0, 40), "out of place"),
        (|peer| peer.raw(&[9, 0, 0, 0, 0, 0, 0, 0]), "unknown kind 9"),
        (|peer| peer.raw(&[1, 0xff, 0xff, 0xff, 0, 0, 0, 0]), "limit"),
    ];
    for (hostile, word) in cases {
        let received = received(LONG, |mut peer| {
            hostile(&mut peer);
            peer.wait();
        });
        assert_broken(&received, word);
        assert!(!received.found.contains("inner/to/tree/f"), "{word}");
    }
}

/// S92, ADR 28: a sender that packs what it may not, or what is no part of a stream, or says that it stands for more than it does, ends the copy
/// before anything is made of it; one that packs what it may is right.
#[test]
fn packed_data_that_is_none_ends_the_copy() {
    let content = [Record::Bytes(b"abc"), Record::Done(finished(b"abc"))];
    let mut data = Vec::new();
    content.iter().for_each(|record| record.push(&mut data));
    // A frame of zstd with one block, whose bytes are as they are: its length, and that it is the last.
    let len = u8::try_from(data.len()).unwrap();
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0x20, len, (len << 3) | 1, len >> 5, 0];
    let stream = [&head[..], &data[..]].concat();
    let said = |bytes: u32, stream: &[u8]| [&bytes.to_be_bytes()[..], stream].concat();
    let (right, bytes) = (said(data.len() as u32, &stream), data.len() as u32);
    let cases = [
        (false, right.clone(), "packed data, which it may not"),
        (true, said(u32::MAX, &stream), "packed 4294967295 bytes, limit"),
        (true, said(bytes - 1, &stream), "holds more than it says"),
        (true, said(bytes + 1, &stream), "holds less than it says"),
        (true, said(bytes, &stream[..stream.len() - 2]), "packed frame that"),
        (true, said(bytes, &[7; 40]), "cannot be unpacked"),
    ];
    let send = |packs, frame: &[u8]| {
        received_by(packs, LONG, |mut peer| {
            peer.tell(&one_file(), true);
            let request = peer.asked();
            peer.frame(FrameKind::Packed, request, frame);
            peer.frame(FrameKind::End, request, &[]);
            peer.wait();
        })
    };
    for (packs, frame, word) in cases {
        let received = send(packs, &frame);
        assert_broken(&received, word);
        assert!(!received.found.contains("inner/to/tree/f"), "{word}");
    }
    let received = send(true, &right);
    assert_eq!(received.result.unwrap().files, 1);
    assert!(received.found.contains("inner/to/tree/f"));
}

/// Issue "every byte is proven": contents that are not what they are said to be fail alone, and leave nothing.
#[test]
fn contents_that_do_not_fit_fail_alone() {
    let items =
        [directory(None), file("hash", 3), file("hole", 3), file("right", 3), file("size", 3), Vec::new()];
    let received = received(LONG, |mut peer| {
        peer.tell(&items, true);
        let request = peer.asked();
        let right = finished(b"abc");
        let huge = Record::Hole(1 << 60);
        peer.records(
            request,
            &[
                Record::Bytes(b"abd"),
                Record::Done(right),
                huge.clone(),
                huge.clone(),
                huge.clone(),
                huge,
                Record::Done(Finished { size_bytes: 1 << 62, ..right }),
                Record::Bytes(b"void"),
                Record::Again,
                Record::Bytes(b"abc"),
                Record::Done(right),
                Record::Bytes(b"abc"),
                Record::Done(Finished { size_bytes: 4, ..right }),
            ],
        );
        peer.frame(FrameKind::End, request, &[]);
        peer.wait();
    });
    let done = received.result.unwrap();
    assert_eq!((done.files, done.failed, done.entries), (1, 3, 5));
    let reasons =
        [("hash", "not those that were sent"), ("hole", ""), ("size", "3 bytes came of a file of 4")];
    for (failed, (name, reason)) in received.failed.iter().zip(reasons) {
        assert_eq!(failed.path.as_slice(), format!("tree/{name}").as_bytes());
        assert!(failed.text.contains(reason), "{reason:?} is not in {:?}", failed.text);
    }
    let tree: Vec<_> = received.found.iter().filter_map(|path| path.strip_prefix("inner/to/tree/")).collect();
    assert_eq!(tree, ["right"]);
}

/// S10 and M9: a sender that says nothing, or leaves, is an error that says what is missing.
#[test]
fn a_sender_that_stops_is_an_error_that_names_what_is_missing() {
    let mute = received(SHORT, |peer| peer.wait());
    assert_eq!(mute.result.unwrap_err().kind(), ErrorKind::TimedOut);
    let gone = received(LONG, |mut peer| {
        peer.tell(&one_file(), true);
        peer.asked();
    });
    let error = gone.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("1 contents, the first of \"tree/f\", did not come"), "{error}");
    let gone = received(LONG, |mut peer| {
        peer.tell(&[directory(None)], false);
        // Gone once the receiver has taken it in.
        peer.hear();
    });
    let error = gone.result.unwrap_err();
    assert!(error.to_string().contains("the entries after 1 did not come"), "{error}");
}

/// Lets the real sender send a directory with the files `a` and `b` to `hostile`.
fn sent(patience: Duration, hostile: impl FnOnce(Peer) + Send) -> Result<TreeDone> {
    let place = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(place.path().join(name), vec![7; 100_000]).unwrap();
    }
    let (near, far) = channels(4096);
    thread::scope(|scope| {
        scope.spawn(move || hostile(Peer::new(far)));
        let mut source = WalkSource::new(vec![place.path().to_owned()], recursive(), false, Stop::new());
        let mut heard = |message: Option<Message>| match message {
            None | Some(Message::Progress(_)) => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Protocol, "message out of place")),
        };
        let lanes = SendLanes::new().unwrap();
        send(Box::new(near), Vec::new(), &mut source, Some(&lanes), &mut heard, &|| patience)
    })
}

/// A channel on which nothing is there to read until a write has failed: what came in between was not seen.
struct Late(PipeChannel, bool);

impl Channel for Late {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        if self.1 { self.0.try_read(out) } else { Ok(None) }
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.write_all(data)
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.0.wait(wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        None
    }
}

impl Duplex for Late {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.try_write(data).inspect_err(|_| self.1 = true)
    }

    fn wait_for(&mut self, _: Wants, _: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        thread::sleep(timeout.min(Duration::from_millis(10)));
        Ok(())
    }
}

/// A receiver that is through hangs up after its last word, also while the sender says that it still works.
#[test]
fn what_came_before_a_write_failed_counts() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("a"), b"a").unwrap();
    let (near, far) = channels(4096);
    let done = TreeDone { entries: 2, files: 0, unchanged: 1, bytes: 0, failed: 0 };
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            let mut peer = Peer::new(far);
            while !matches!(peer.hear(), Some(Message::Entries(Entries { is_last: true, .. }))) {}
            peer.say(&Message::TreeDone(done));
        });
        let mut source = WalkSource::new(vec![place.path().to_owned()], recursive(), false, Stop::new());
        send(Box::new(Late(near, false)), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| LONG)
    });
    assert_eq!(result.unwrap(), done);
}

/// Design 9, M9: a receiver that asks for what there is not, or twice, takes back, ends before the end or goes on after it.
#[test]
fn a_receiver_out_of_turn_ends_the_copy() {
    type Hostile<'a> = &'a (dyn Fn(&mut Peer) + Sync);
    let told = |entries| TreeDone { entries, files: 2, unchanged: 0, bytes: 200_000, failed: 0 };
    let done = Message::TreeDone(told(3));
    let early = Message::TreeDone(told(2));
    let cases: [(Hostile<'_>, &str); 12] = [
        (&|peer| peer.pull(1, &[(0, 1)], 0, 40), "content of entry 0, which has none"),
        (&|peer| peer.pull(1, &[(2, 2)], 0, 40), "not told"),
        (
            &|peer| {
                peer.pull(1, &[(1, 1)], 0, 40);
                peer.pull(2, &[(1, 1)], 0, 40);
            },
            "entry 1, which has none or was asked for",
        ),
        (
            &|peer| {
                peer.pull(0, &[], 2, 40);
                peer.pull(1, &[(1, 1)], 2, 40);
            },
            "had settled",
        ),
        (&|peer| peer.pull(0, &[], 0, 3), "takes back"),
        (
            &|peer| {
                let runs = vec![Run { first: 1, count: 1, ..Run::default() }];
                let (lane, lost) = (Some(7), Some(9));
                let pull = Pull { request: 1, runs, batches: 40, lane, lost, ..Pull::default() };
                peer.say(&Message::Pull(pull));
            },
            "a connection that there is not",
        ),
        (&|peer| peer.say(&early), "ended after 2 of 3 entries"),
        (&|peer| peer.say(&done), "ended with 200000 of 0 bytes"),
        (
            &|peer| {
                // In one piece, so that they are heard together.
                let mut out = Vec::new();
                let runs = vec![Run { first: 1, count: 2, ..Run::default() }];
                push_control(
                    &mut out,
                    &Message::Pull(Pull { request: 1, runs, settled: 3, batches: 40, ..Pull::default() }),
                );
                push_control(&mut out, &done);
                peer.raw(&out);
            },
            "ended before 2 of the contents",
        ),
        (&|peer| peer.tell(&[], true), "out of place"),
        (&|peer| peer.frame(FrameKind::Data, 1, &[1]), "no control frame"),
        (&|peer| peer.raw(&[7; 64]), "frame"),
    ];
    for (hostile, word) in cases {
        let result = sent(LONG, |mut peer| {
            // Everything is told by then.
            assert!(matches!(peer.hear(), Some(Message::Entries(_))));
            hostile(&mut peer);
            peer.wait();
        });
        let error = result.expect_err(word);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains(word), "{word:?} is not in {error}");
    }
}

/// S10: a receiver that says nothing, reads nothing, or leaves.
#[test]
fn a_receiver_that_stops_is_an_error_in_time() {
    let mute = sent(SHORT, |peer| peer.wait());
    assert_eq!(mute.unwrap_err().kind(), ErrorKind::TimedOut);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let deaf = sent(SHORT, move |mut peer| {
        peer.hear();
        peer.pull(1, &[(1, 2)], 3, 40);
        // Reads nothing; the pipe is full by far.
        let _ = held.recv_timeout(Duration::from_secs(5));
        drop(peer);
    });
    drop(release);
    assert_eq!(deaf.unwrap_err().kind(), ErrorKind::TimedOut);
    let gone = sent(LONG, |mut peer| {
        peer.hear();
    });
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::Unreachable);
}
