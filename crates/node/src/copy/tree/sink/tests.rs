//! The sink alone, told what a sender says.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dray_core::NodeId;
use dray_core::hash_tree::ContentHasher;
use dray_core::message::{Fault, Pull};
use dray_core::rights::Secret;
use dray_core::tree::{Finished, Metadata, Name, Record};
use dray_engine::session::{TreeLanes, TreeSender};
use dray_store::local::tree::{Changes, DeleteOptions, Landing, Origin, SyncOptions};

use super::super::copies::{in_place, keeping};
use super::super::differences::write_anew;
use super::*;
use crate::search::Scope;

fn sink(root: &Path) -> Writing<'static> {
    let landing = Landing::resolve(root, &[b"tree".to_vec()], false).unwrap();
    Writing::new(TreeWriter::new(landing, keeping()), 1, false, &|_| {})
}

fn directory() -> Vec<u8> {
    let metadata = Metadata { mode: 0o755, ..Metadata::default() };
    Entry { name: None, kind: Kind::Directory { entries: None }, metadata }.to_bytes()
}

fn file(name: &str, size_bytes: u64, link_group: Option<[u8; 16]>) -> Vec<u8> {
    let link_names = if link_group.is_some() { 2 } else { 0 };
    let metadata = Metadata { mode: 0o644, link_group, link_names, ..Metadata::default() };
    let name = Name::new(name.as_bytes()).unwrap();
    Entry { name: Some(name), kind: Kind::File { size_bytes, oid: None }, metadata }.to_bytes()
}

fn tell(sink: &mut Writing<'_>, items: Vec<Vec<u8>>, is_last: bool) {
    let items = items.into_iter().map(Into::into).collect();
    sink.handle(Heard::Message(Message::Entries(Entries { items, owners: None, is_last, listed: None })))
        .unwrap();
}

/// Issue "kill during the --fsync tail keeps it": who has gone when everything has come, and is being made durable, has been cut off.
#[test]
fn who_leaves_at_the_end_leaves_the_mark() {
    let place = tempfile::tempdir().unwrap();
    let is_marked =
        |path: &Path| rustix::fs::lgetxattr(path, "user.dray.unfinished-tree", &mut [0; 64][..]).is_ok();
    for leaves in [true, false] {
        let to = place.path().join(leaves.to_string());
        let landing = Landing::resolve(&to, &[b"tree".to_vec()], false).unwrap();
        let landing = landing.of_source(&Origin::Anywhere, &to, Some([7; 32]));
        let mut sink = Writing::new(TreeWriter::new(landing, keeping()), 1, true, &|_| {});
        let stop = Arc::new(AtomicBool::new(false));
        sink.stop_with(stop.clone());
        tell(&mut sink, vec![directory()], false);
        assert!(is_marked(&to));
        stop.store(leaves, Ordering::Release);
        let last = Entries { items: vec![Vec::new().into()], owners: None, is_last: true, listed: None };
        let ended = sink.handle(Heard::Message(Message::Entries(last))).map_err(|error| error.kind());
        assert_eq!(ended, if leaves { Err(ErrorKind::Interrupted) } else { Ok(()) });
        assert_eq!(is_marked(&to), leaves);
    }
}

/// Design 17: entries are taken as long as there is room for what they ask, which is a question with the whole path for each that may have a sibling.
#[test]
fn questions_for_siblings_have_bounded_room() {
    const LEVELS: usize = 200;
    const FILES: usize = 600;
    let place = tempfile::tempdir().unwrap();
    let top = fs::File::open(place.path()).unwrap();
    let scope = Scope::new(top.try_clone().unwrap().into(), top.as_fd()).unwrap();
    let mut sink = sink(place.path()).with_deltas(true).searching(Some(scope));
    sink.stop_with(Arc::default());
    sink.wake_with(Arc::default());
    let asked = sink.deltas.keep_questions().unwrap();
    let metadata = Metadata { mode: 0o755, ..Metadata::default() };
    let (name, kind) = (Name::new(&[b'd'; 255]).ok(), Kind::Directory { entries: None });
    let long = Entry { name, kind, metadata }.to_bytes();
    let mut items = vec![directory()];
    items.extend(std::iter::repeat_n(long, LEVELS));
    items.extend((0..FILES).map(|number| file(&format!("f{number:03}"), 1 << 16, None)));
    tell(&mut sink, items, false);
    let path_bytes = "tree/".len() + LEVELS * 256 + "f000".len();
    let count = asked.try_iter().inspect(|(_, coming)| assert_eq!(coming.path.len(), path_bytes)).count();
    assert!((count - 1) * path_bytes <= TREE_PENDING_BYTES_MAX, "{count} questions");
    assert!(count * path_bytes > TREE_PENDING_BYTES_MAX / 2 && count < FILES, "{count} questions");
}

/// The pulls that it says now, that ask for anything.
fn asked(sink: &mut Writing<'_>) -> Vec<Pull> {
    let mut said = Vec::new();
    sink.say(&mut said);
    let pull = |message| if let Message::Pull(pull) = message { Some(pull) } else { None };
    said.into_iter().filter_map(pull).filter(|pull| pull.request != 0).collect()
}

/// Answers `request` with these records.
fn answer(sink: &mut Writing<'_>, request: u32, records: &[Record<'_>]) {
    let mut body = Vec::new();
    records.iter().for_each(|record| record.push(&mut body));
    sink.handle(Heard::Data(None, request, body)).unwrap();
    sink.handle(Heard::End(None, request)).unwrap();
}

fn done(content: &[u8]) -> Finished {
    let mut hasher = ContentHasher::default();
    hasher.update(content);
    Finished { hash: hasher.finish(), size_bytes: content.len() as u64, mtime_s: 5, mtime_ns: 0 }
}

/// Issue 4 "hard-linked files stay so", M9: a content that came whole and failed here, and whose name became a link of the next one that brought
/// it, is no file, as other links are none, and the sender, which counted it, does not take the end for a lie.
#[test]
fn a_name_that_failed_and_was_linked_is_counted() {
    let place = tempfile::tempdir().unwrap();
    let mut sink = sink(place.path());
    let mut sender = TreeSender::new();
    let group = Some([7; 16]);
    tell(&mut sink, vec![directory(), file("a", 3, group), file("b", 3, group), Vec::new()], true);
    sender.told(3, true);
    let wrong = Finished { hash: [1; 32], ..done(b"new") };
    for finished in [wrong, done(b"new")] {
        let pulls = asked(&mut sink);
        assert_eq!(pulls.len(), 1, "{pulls:?}");
        sender.handle_pull(&pulls[0], 0).unwrap();
        assert!(sender.next_owed().is_some());
        let records = [Record::Bytes(b"new"), Record::Done(finished)];
        records.iter().for_each(|record| sender.sent().record(record, false, true));
        answer(&mut sink, pulls[0].request, &records);
    }
    let account = sink.done().unwrap().expect("everything came");
    assert_eq!((account.files, account.failed), (1, 0));
    sender.handle_done(&account, &TreeLanes::default()).unwrap();
    let found = |name: &str| fs::metadata(place.path().join("tree").join(name)).unwrap();
    assert_eq!((found("a").ino(), found("a").nlink(), found("a").len()), (found("b").ino(), 2, 3));
}

/// Counts invitations.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Doors for Counting {
    fn invite(&self) -> Option<Direct> {
        self.0.fetch_add(1, Ordering::AcqRel);
        let node = NodeId::from_bytes([1; 32]);
        Some(Direct { node, addresses: Vec::new(), secret: Secret::from_bytes([2; 16]) })
    }

    fn handle_direct(&self, _: Direct) -> Result<()> {
        Ok(())
    }
}

/// ADR 18 "nothing is opened for little": what failed, what was a hole and what shrank is not awaited any more; what is left to come, however
/// much there was, opens nothing below 4 MiB.
#[test]
fn only_what_is_yet_to_come_opens_connections() {
    const FILES: u64 = 100;
    const SIZE: u64 = 1 << 20;
    let place = tempfile::tempdir().unwrap();
    let doors = Counting::default();
    let mut sink = sink(place.path()).with_doors(Some(&doors));
    tell(&mut sink, vec![directory()], false);
    for number in 0..FILES {
        tell(&mut sink, vec![file(&format!("{number:03}"), SIZE, None)], false);
        let pulls = asked(&mut sink);
        let mut zeros = ContentHasher::default();
        zeros.zeros(SIZE);
        let hole = Finished { size_bytes: SIZE, hash: zeros.finish(), ..done(b"") };
        let ends = match number % 3 {
            0 => vec![Record::Failed(Fault::from_error(None, &Error::new(ErrorKind::Refused, "no")))],
            1 => vec![Record::Hole(SIZE), Record::Done(hole)],
            _ => vec![Record::Bytes(b"little"), Record::Done(done(b"little"))],
        };
        answer(&mut sink, pulls[0].request, &ends);
        let _ = asked(&mut sink);
    }
    assert_eq!(doors.0.load(Ordering::Acquire), 0, "invitations for what does not come");
    let much = (0..8).map(|number| file(&format!("much {number}"), SIZE, None)).collect();
    tell(&mut sink, much, false);
    let _ = asked(&mut sink);
    assert_eq!(doors.0.load(Ordering::Acquire), 1);
}

/// ADR 18 "once 4 MiB are wanted and have not come": what came of a content counts no more when that begins anew, or is lost with its path.
#[test]
fn what_comes_again_is_awaited_again() {
    let place = tempfile::tempdir().unwrap();
    let mut sink = sink(place.path());
    tell(&mut sink, vec![directory(), file("a", 1000, None), file("b", 1000, None), Vec::new()], true);
    assert_eq!(sink.wanted_bytes, 2000);
    sink.machine.open(1);
    let pull = sink.machine.pull(Some(1), 1, 0, Some(0)).unwrap();
    let mut tell = |record: Record<'_>| {
        let mut body = Vec::new();
        record.push(&mut body);
        sink.handle(Heard::Data(Some(1), pull.request, body)).unwrap();
        sink.wanted_bytes
    };
    assert_eq!(tell(Record::Bytes(&[1; 600])), 1400);
    assert_eq!(tell(Record::Again), 2000);
    assert_eq!(tell(Record::Bytes(&[1; 700])), 1300);
    sink.lose(1);
    assert_eq!(sink.wanted_bytes, 2000);
}

/// A sender of files of [`HOLE`] bytes of hole, and what it owes over each path: requests, and files of each.
#[derive(Default)]
struct Holes(BTreeMap<PathId, VecDeque<(u32, u64)>>);

const HOLE: u64 = 1 << 20;
const MS: Duration = Duration::from_millis(1);
/// How often a path is looked at, and a little more.
const WINDOW: Duration = Duration::from_millis(300);

impl Holes {
    /// Hears what is asked for now; whether that is over ssh, too.
    fn hear(&mut self, sink: &mut Writing<'_>) -> bool {
        let pulls = asked(sink);
        for pull in &pulls {
            let files = pull.runs.iter().map(|run| run.count).sum();
            self.0.entry(pull.lane).or_default().push_back((pull.request, files));
        }
        pulls.iter().any(|pull| pull.lane.is_none())
    }

    /// So many files come over `path`, the last of them so long after it was looked at.
    fn bring(&mut self, sink: &mut Writing<'_>, path: PathId, files: u64, time: Duration) {
        let mut zeros = ContentHasher::default();
        zeros.zeros(HOLE);
        let finished = Finished { size_bytes: HOLE, hash: zeros.finish(), ..done(b"") };
        let mut body = Vec::new();
        [Record::Hole(HOLE), Record::Done(finished)].iter().for_each(|record| record.push(&mut body));
        for file in 0..files {
            if let Some(pace) = sink.paces.get_mut(&path).filter(|_| file + 1 == files) {
                pace.has_been(time);
            }
            let owed = self.0.get_mut(&path).unwrap();
            let (request, left) = owed.front_mut().expect("it owes as many");
            let request = *request;
            sink.handle(Heard::Data(path, request, body.clone())).unwrap();
            *left -= 1;
            if *left == 0 {
                owed.pop_front();
                sink.handle(Heard::End(path, request)).unwrap();
            }
        }
    }

    /// Files that it owes over ssh.
    fn owes(&self) -> u64 {
        self.0.get(&None).into_iter().flatten().map(|(_, files)| files).sum()
    }
}

/// A sink that has told of direct connections, and asked for some of 128 such files over ssh.
fn inviting<'a>(place: &Path, doors: &'a Counting, sender: &mut Holes) -> Writing<'a> {
    let landing = Landing::resolve(place, &[b"tree".to_vec()], false).unwrap();
    let mut sink =
        Writing::new(TreeWriter::new(landing, keeping()), 1, false, &|_| {}).with_doors(Some(doors));
    let files = (0..128).map(|number| file(&format!("{number:03}"), HOLE, None));
    tell(&mut sink, std::iter::once(directory()).chain(files).collect(), false);
    assert!(sender.hear(&mut sink) && doors.0.load(Ordering::Acquire) == 1);
    sink
}

fn comes_up(sink: &mut Writing<'_>) {
    sink.handle(Heard::Up(Arc::new(Lane::new(1, 40 * MS)))).unwrap();
}

/// ADR 18 "ssh is the spare": a direct connection that is up before anybody could know how fast ssh is, and
/// is slow, leaves ssh what it did.
#[test]
fn a_slow_lane_that_is_up_soon_is_not_left_alone() {
    let (place, doors, mut sender) = (tempfile::tempdir().unwrap(), Counting::default(), Holes::default());
    let mut sink = inviting(place.path(), &doors, &mut sender);
    sender.bring(&mut sink, None, 1, Duration::ZERO);
    sender.hear(&mut sink);
    // 100 ms after the invitation.
    comes_up(&mut sink);
    sender.hear(&mut sink);
    sender.bring(&mut sink, None, 2, 100 * MS);
    assert!(sender.hear(&mut sink), "nobody knows how fast either is");
    for _ in 0..6 {
        let files = sender.owes() - 1;
        sender.bring(&mut sink, None, files, WINDOW);
        sender.bring(&mut sink, Some(1), 1, WINDOW);
        assert!(sender.hear(&mut sink), "ssh brings several times as much");
    }
}

/// The same where ssh was measured, but at its slow start.
#[test]
fn a_slow_start_is_not_what_ssh_brings() {
    let (place, doors, mut sender) = (tempfile::tempdir().unwrap(), Counting::default(), Holes::default());
    let mut sink = inviting(place.path(), &doors, &mut sender);
    sender.bring(&mut sink, None, 1, Duration::ZERO);
    sender.bring(&mut sink, None, 1, 2 * WINDOW);
    sender.hear(&mut sink);
    comes_up(&mut sink);
    sender.hear(&mut sink);
    for _ in 0..6 {
        let files = sender.owes() - 1;
        sender.bring(&mut sink, None, files, WINDOW);
        sender.bring(&mut sink, Some(1), 1, WINDOW);
        assert!(sender.hear(&mut sink), "it is several times as fast by now");
    }
}

/// Floor "10,000 files at 100 Mbit/s x 132 ms": a direct connection on the line of ssh is as fast as that is
/// beside it. It has the line to itself once it has brought 4 MiB, whatever ssh still brings out of buffers.
#[test]
fn a_lane_on_the_line_of_ssh_gets_it() {
    let (place, doors, mut sender) = (tempfile::tempdir().unwrap(), Counting::default(), Holes::default());
    let mut sink = inviting(place.path(), &doors, &mut sender);
    sender.bring(&mut sink, None, 1, Duration::ZERO);
    sender.bring(&mut sink, None, 2, WINDOW);
    sender.hear(&mut sink);
    comes_up(&mut sink);
    sender.hear(&mut sink);
    for _ in 0..2 {
        sender.bring(&mut sink, None, 2, WINDOW);
        sender.bring(&mut sink, Some(1), 2, WINDOW);
        sender.hear(&mut sink);
    }
    while sender.owes() > 0 {
        let files = sender.owes().min(6);
        sender.bring(&mut sink, None, files, WINDOW);
        sender.bring(&mut sink, Some(1), 2, WINDOW);
        assert!(!sender.hear(&mut sink), "ssh is asked beside it");
    }
}

/// S10: what was at the front of two connections that were lost is asked for over ssh, and nothing with it or behind it; what stood behind it
/// is not suspected.
#[test]
fn what_took_two_connections_with_it_is_asked_for_alone() {
    let place = tempfile::tempdir().unwrap();
    let doors = Counting::default();
    let mut sink = sink(place.path()).with_doors(Some(&doors));
    tell(&mut sink, vec![directory()], false);
    sink.invite();
    let files = ["a", "b", "c"].map(|name| file(name, 3, None));
    tell(&mut sink, files.into_iter().chain([Vec::new()]).collect(), true);
    for lane in [1, 2] {
        sink.machine.open(lane);
        let pull = sink.machine.pull(Some(lane), u64::MAX, 0, Some(0)).unwrap();
        assert_eq!((pull.runs[0].first, pull.runs[0].count), (1, 3));
        sink.lose(lane);
    }
    let pulls = asked(&mut sink);
    assert_eq!(pulls.len(), 1, "{pulls:?}");
    let ask =
        |pull: &Pull| (pull.lane, pull.runs.iter().map(|run| (run.first, run.count)).collect::<Vec<_>>());
    assert_eq!(ask(&pulls[0]), (None, vec![(1, 1)]));
    assert!(asked(&mut sink).is_empty(), "something is asked for behind it");
    assert!(sink.missing().unwrap().contains("\"tree/a\""), "{:?}", sink.missing());
    answer(&mut sink, pulls[0].request, &[Record::Bytes(b"new"), Record::Done(done(b"new"))]);
    let pulls = asked(&mut sink);
    assert_eq!(pulls.iter().map(ask).collect::<Vec<_>>(), [(None, vec![(2, 2)])]);
    let ends = [1, 2].iter().flat_map(|_| [Record::Bytes(b"new"), Record::Done(done(b"new"))]);
    answer(&mut sink, pulls[0].request, &ends.collect::<Vec<_>>());
    assert_eq!(sink.done().unwrap().expect("everything came").files, 3);
}

/// Issue "nothing is deleted wrongly": a content that failed, at either end, may be what takes the place of something that would be deleted,
/// so nothing is, and that is told; the same where the sender tells of an entry that failed.
#[test]
fn a_failed_entry_deletes_nothing() {
    use dray_core::message::Listed;
    let wrong = Finished { hash: [1; 32], ..done(b"new") };
    let fault = |kind| Record::Failed(Fault::from_error(None, &Error::new(kind, "no")));
    let told = |left_out| {
        let error = Error::new(ErrorKind::Refused, "no");
        EntryFailed { left_out, ..entry_failed(Path::new("a"), &error) }
    };
    for (record, failed, is_deleted) in [
        (Record::Done(done(b"new")), None, true),
        (Record::Done(done(b"new")), Some(told(Some(1))), true),
        (Record::Done(done(b"new")), Some(told(None)), false),
        (Record::Done(wrong), None, false),
        (fault(ErrorKind::Refused), None, false),
        (fault(ErrorKind::NotFound), None, false),
        (fault(ErrorKind::Changed), None, false),
    ] {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("extra"), b"old").unwrap();
        let landing = Landing::resolve_sync(&Origin::Anywhere, place.path(), &[Vec::new()]).unwrap();
        let sync = SyncOptions { delete: Some(DeleteOptions::default()), ..SyncOptions::default() };
        let changes = Changes { sync: Some(sync), ..Changes::default() };
        let writer = TreeWriter::new(landing, keeping()).with_changes(changes);
        let mut sink = Writing::new(writer, 1, false, &|_| {});
        let items = [directory(), file("a", 3, None), Vec::new()].map(Into::into).to_vec();
        let listed = Some(Listed { unlisted: Vec::new(), is_complete: true });
        let what = format!("{record:?} {failed:?}");
        sink.handle(Heard::Message(Message::Entries(Entries { items, owners: None, is_last: true, listed })))
            .unwrap();
        if let Some(failed) = failed {
            sink.handle(Heard::Message(Message::EntryFailed(failed))).unwrap();
        }
        let request = asked(&mut sink)[0].request;
        answer(&mut sink, request, &[Record::Bytes(b"new"), record]);
        while sink.work().unwrap() {}
        assert_eq!(place.path().join("extra").exists(), !is_deleted, "{what}");
        let mut said = Vec::new();
        sink.say(&mut said);
        let is_told = |message: &Message| matches!(message, Message::EntryFailed(entry) if entry.text.contains("nothing was deleted"));
        assert_eq!(said.iter().any(is_told), !is_deleted, "{what}");
    }
}

/// S77, for files that are compared whole: one that was written to after it was hashed is no file that the sender found the same.
#[test]
fn a_file_that_changes_after_it_was_hashed_is_not_kept() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("tree")).unwrap();
    let path = place.path().join("tree/a");
    fs::write(&path, b"old").unwrap();
    let mut sink = sink(place.path());
    tell(&mut sink, vec![directory(), file("a", 3, None), Vec::new()], true);
    let pulls = asked(&mut sink);
    assert!(pulls[0].runs[0].known.is_some());
    write_anew(&path, b"odd");
    answer(&mut sink, pulls[0].request, &[Record::Same(done(b"old"))]);
    let done = sink.done().unwrap().unwrap();
    assert_eq!((done.files, done.unchanged, done.failed), (0, 0, 1));
    assert_ne!(fs::metadata(&path).unwrap().mtime(), 5, "it has the sender's time");
}

/// S86: two files that are one here, with a name each, and were both compared before anything was done to either. What the first one that comes or stays does to the file
/// is seen when the second is said to be the same: it stays if it has these bytes, whatever its times are by then; if not, its content is asked for, and it becomes a file of its own.
/// A sender that does not send it once more leaves it undone.
#[test]
fn of_two_names_the_second_is_held_to_what_the_first_left() {
    for (first, is_sent_again) in [(b"old", false), (b"old", true), (b"new", false), (b"new", true)] {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join("tree").join(name);
        fs::create_dir(place.path().join("tree")).unwrap();
        fs::write(path("one"), b"old").unwrap();
        fs::hard_link(path("one"), path("two")).unwrap();
        let inode = fs::metadata(path("one")).unwrap().ino();
        let landing = Landing::resolve(place.path(), &[b"tree".to_vec()], false).unwrap();
        let writer = TreeWriter::new(landing, keeping()).with_changes(in_place());
        let mut sink = Writing::new(writer, 1, false, &|_| {}).with_compared(is_sent_again);
        tell(&mut sink, vec![directory(), file("one", 3, None), file("two", 3, None), Vec::new()], true);
        let pull = asked(&mut sink).remove(0);
        assert_eq!(pull.settled, if is_sent_again { 1 } else { 3 });
        let finished = Finished { mtime_s: 6, ..done(b"old") };
        let mut records = vec![Record::Bytes(first), Record::Done(done(first)), Record::Same(finished)];
        if first == b"old" {
            records.splice(..2, [Record::Same(done(b"old"))]);
        }
        answer(&mut sink, pull.request, &records);
        let is_asked = first == b"new" && is_sent_again;
        if is_asked {
            let pulls = asked(&mut sink);
            assert_eq!((pulls.len(), pulls[0].runs.len(), pulls[0].runs[0].first), (1, 1, 2));
            assert!(pulls[0].runs[0].known.is_none());
            answer(&mut sink, pulls[0].request, &[Record::Bytes(b"old"), Record::Done(finished)]);
        }
        let done = sink.done().unwrap().unwrap();
        // What the sender said was the same is counted so: it holds its own account against this.
        let counts = match (first, is_sent_again) {
            (b"old", _) => (0, 2, 0),
            (_, true) => (2, 1, 0),
            (_, false) => (1, 0, 1),
        };
        assert_eq!((done.files, done.unchanged, done.failed), counts);
        let [one, two] = ["one", "two"].map(|name| fs::metadata(path(name)).unwrap());
        assert_eq!(fs::read(path("one")).unwrap(), first);
        assert_eq!((one.ino(), two.ino() == inode), (inode, !is_asked));
        if done.failed == 0 {
            assert_eq!((fs::read(path("two")).unwrap(), two.mtime()), (b"old".to_vec(), 6));
        }
    }
}

/// ADR 23: without `--inplace`, too, what another program wrote to a file of two names, after it was hashed, is not taken for what the sender has: its content comes, as a file of
/// its own; from a sender that does not send it once more it fails, and has not the sender's time.
#[test]
fn what_came_in_under_another_name_is_not_taken_for_the_same() {
    for is_sent_again in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let [one, other] = ["tree/one", "other"].map(|name| place.path().join(name));
        fs::create_dir(place.path().join("tree")).unwrap();
        fs::write(&one, b"old").unwrap();
        fs::hard_link(&one, &other).unwrap();
        let mut sink = sink(place.path()).with_compared(is_sent_again);
        tell(&mut sink, vec![directory(), file("one", 3, None), Vec::new()], true);
        let pull = asked(&mut sink).remove(0);
        assert!(pull.runs[0].known.is_some());
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&other, b"odd").unwrap();
        answer(&mut sink, pull.request, &[Record::Same(done(b"old"))]);
        if is_sent_again {
            let pulls = asked(&mut sink);
            assert!(pulls[0].runs[0].known.is_none());
            answer(&mut sink, pulls[0].request, &[Record::Bytes(b"old"), Record::Done(done(b"old"))]);
        }
        let done = sink.done().unwrap().unwrap();
        assert_eq!((done.files, done.failed), if is_sent_again { (1, 0) } else { (0, 1) });
        assert_eq!(fs::read(&one).unwrap(), if is_sent_again { b"old" } else { b"odd" });
        assert_eq!(
            (fs::read(&other).unwrap(), fs::metadata(&one).unwrap().mtime() == 5),
            (b"odd".to_vec(), is_sent_again)
        );
    }
}

/// Y19: what the disk promises is asked of the network last: a file that nothing here is like goes before one for which the disk is still looked through,
/// though it was told after that.
#[test]
fn what_the_disk_may_have_is_asked_for_last() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("beside")).unwrap();
    fs::write(place.path().join("beside/image"), vec![7; 200_000]).unwrap();
    let top = || fs::File::open(place.path()).unwrap();
    let scope = Scope::new(top().into(), top().as_fd()).unwrap();
    let mut sink = sink(place.path()).with_deltas(true).searching(Some(scope));
    sink.stop_with(Arc::default());
    sink.wake_with(Arc::default());
    // Nothing is looked for meanwhile.
    let pressure = sink.deltas.pressure.clone();
    let writing = pressure.begin();
    tell(&mut sink, vec![directory(), file("image", 200_000, None), file("new", 3, None), Vec::new()], true);
    let firsts = |pulls: Vec<Pull>| -> Vec<u64> {
        pulls.iter().flat_map(|pull| pull.runs.iter().map(|run| run.first)).collect()
    };
    assert_eq!(firsts(asked(&mut sink)), [2]);
    drop(writing);
    let begun = Instant::now();
    loop {
        sink.handle(Heard::Woken).unwrap();
        let more = firsts(asked(&mut sink));
        if !more.is_empty() {
            assert_eq!(more, [1]);
            break;
        }
        assert!(begun.elapsed().as_secs() < 30, "it is not asked for");
        std::thread::yield_now();
    }
}
