//! Senders that break the rules, against the real receiver.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use dray_core::frame::FrameKind;
use dray_core::message::PROTOCOL_VERSION;
use dray_core::tree::{Entry, Finished, Item, Kind, Metadata, Name, Record, Xattr};

use super::super::super::copies::channels;
use super::super::super::hostile::Peer;
use super::*;

/// The ticket names nobody.
pub(super) fn wish(to: &Path) -> DirectoryWish {
    DirectoryWish {
        ticket: DirectoryTicket {
            protocol: PROTOCOL_VERSION,
            id: dray_core::ticket::DirectoryId::from_bytes([0; 32]),
            secret: None,
            expires_unix_s: None,
            hints: Vec::new(),
        },
        hints: Vec::new(),
        allow_local: false,
        destination: to.to_owned(),
    }
}

/// What `get` asks for, or `sync` with everything that is kept.
fn wanted(is_get: bool) -> TreeOptions {
    let all = SyncOptions { attributes: true, ..SyncOptions::archive() };
    let get = SyncOptions { links: true, times: true, ..SyncOptions::default() };
    TreeOptions { recursive: true, sync: Some(if is_get { get } else { all }), ..TreeOptions::default() }
}

/// Lets `hostile` send to `get -o TO`, or to `sync TO`, with these options.
fn received(
    to: &Path,
    is_get: bool,
    options: &TreeOptions,
    hostile: impl FnOnce(Peer) + Send,
) -> Result<TreeCopied> {
    let options = harmless(options)?;
    let names = if is_get { [b"root".to_vec()] } else { [Vec::new()] };
    let landing = match is_get {
        true => Landing::resolve_at(&Origin::Anywhere, to, &names, false),
        false => Landing::resolve_sync(&Origin::Anywhere, to, &names),
    }?;
    let tree = tree_of(&options)?;
    let wish = wish(to);
    let taking = Taking { wish: &wish, options: &options, tree, landing, comparing: None, search: None };
    let (near, mut far) = channels(1 << 16);
    thread::scope(|scope| {
        scope.spawn(move || hostile(Peer::new(near)));
        let copied = take_from(&mut far, taking, Knows::default(), &|_: Event| {}, &Stop::new());
        drop(far);
        copied
    })
}

fn item(name: Option<&[u8]>, kind: Kind, metadata: Metadata) -> Vec<u8> {
    Entry { name: name.map(|name| Name::new(name).unwrap()), kind, metadata }.to_bytes()
}

/// Threat model "sender of a shared directory": DST is made as a directory or not at all. A link in its place would lead the next run elsewhere.
#[test]
fn a_root_that_is_no_directory_is_refused() {
    for is_get in [true, false] {
        for is_dry in [false, true] {
            let kinds =
                [Kind::Symlink { target: b"elsewhere".to_vec() }, Kind::File { size_bytes: 4, oid: None }];
            for kind in kinds {
                let place = tempfile::tempdir().unwrap();
                fs::create_dir(place.path().join("elsewhere")).unwrap();
                let to = place.path().join("to");
                let root = item(None, kind.clone(), Metadata { mode: 0o777, ..Metadata::default() });
                let options = TreeOptions { dry_run: is_dry, ..wanted(is_get) };
                let copied = received(&to, is_get, &options, |mut peer| {
                    peer.tell(&[root], true);
                    peer.wait();
                });
                let error = copied.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Protocol, "{is_get} {is_dry} {kind:?}: {error}");
                assert!(to.symlink_metadata().is_err(), "{is_get} {is_dry} {kind:?}");
            }
        }
    }
}

/// Nor is one that tells nothing at all taken for one whose directory is empty.
#[test]
fn a_sender_without_a_root_is_refused() {
    for is_get in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("to");
        let copied = received(&to, is_get, &wanted(is_get), |mut peer| {
            peer.tell(&[Item::Missing.to_bytes()], true);
            peer.wait();
        });
        assert_eq!(copied.unwrap_err().kind(), ErrorKind::Protocol);
        assert!(to.symlink_metadata().is_err());
    }
}

/// Threat model "sender of a shared directory": whatever he tells, nothing comes that has powers, or belongs to somebody else.
#[test]
fn what_gives_powers_is_not_made() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    let foreign = |mode| Metadata { mode, uid: 1, gid: 1, ..Metadata::default() };
    let xattr = |name: &[u8], value: &[u8]| Xattr { name: name.to_vec(), value: value.to_vec() };
    let capability = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let xattrs = vec![
        xattr(b"security.capability", &capability),
        xattr(b"system.posix_acl_access", b"\x02\0\0\0"),
        xattr(b"trusted.mine", b"x"),
        xattr(b"user.mine", b"x"),
    ];
    let items = [
        item(None, Kind::Directory { entries: None }, foreign(0o7777)),
        item(Some(b"device"), Kind::CharacterDevice { major: 1, minor: 3 }, foreign(0o666)),
        item(Some(b"directory"), Kind::Directory { entries: None }, foreign(0o7777)),
        Vec::new(),
        item(Some(b"fifo"), Kind::Fifo, foreign(0o666)),
        item(Some(b"file"), Kind::File { size_bytes: 3, oid: None }, Metadata { xattrs, ..foreign(0o6777) }),
        item(Some(b"socket"), Kind::Socket, foreign(0o666)),
        Vec::new(),
    ];
    let copied = received(&to, false, &wanted(false), |mut peer| {
        peer.tell(&items, true);
        let request = peer.asked();
        let hash = *blake3::hash(b"abc").as_bytes();
        let finished = Finished { hash, size_bytes: 3, mtime_s: 0, mtime_ns: 0 };
        peer.records(request, &[Record::Bytes(b"abc"), Record::Done(finished)]);
        peer.frame(FrameKind::End, request, &[]);
        peer.wait();
    });
    copied.unwrap();
    for name in ["device", "fifo", "socket"] {
        assert!(to.join(name).symlink_metadata().is_err(), "{name}");
    }
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for name in [".", "directory", "file"] {
        let found = to.join(name).symlink_metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), own, "{name}");
        assert_eq!(found.mode() & 0o7022, 0, "{name}: {:o}", found.mode());
    }
    let mut names = vec![0; 4096];
    let count = rustix::fs::listxattr(to.join("file"), &mut names[..]).unwrap();
    let names = String::from_utf8_lossy(&names[..count]).into_owned();
    assert!(
        !names.contains("security.capability") && !names.contains("acl") && !names.contains("trusted"),
        "{names}"
    );
}

/// Threat model "sender of a shared directory": with `--timeout` one that only says that it lives is given up, too.
#[test]
fn who_sends_nothing_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let mut options = wanted(false);
    options.sync.as_mut().unwrap().timeout_s = Some(1);
    let began = Instant::now();
    let copied = received(&place.path().join("to"), false, &options, |mut peer| {
        peer.tell(&[item(None, Kind::Directory { entries: None }, Metadata::default())], false);
        while began.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(100));
            peer.say(&Message::Progress(dray_core::message::Progress {
                done_bytes: 0,
                resumed_bytes: 0,
                direct_bytes: 0,
            }));
        }
    });
    let error = copied.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// Nor does `--timeout` end one that sends little.
#[test]
fn who_sends_little_is_not_given_up() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    let mut options = wanted(false);
    options.sync.as_mut().unwrap().timeout_s = Some(1);
    let directory = |name| item(name, Kind::Directory { entries: None }, Metadata::default());
    received(&to, false, &options, |mut peer| {
        peer.tell(&[directory(None)], false);
        for name in [b"a", b"b", b"c"] {
            thread::sleep(Duration::from_millis(600));
            peer.tell(&[directory(Some(name)), Vec::new()], false);
        }
        peer.tell(&[Vec::new()], true);
        peer.wait();
    })
    .unwrap();
    assert!(to.join("c").is_dir());
}
