//! Senders that break the rules, against the real receiver.

use std::fs;

use std::path::Path;
use std::thread;

use dray_core::tree::{Entry, Kind, Metadata, Name};

use super::super::super::copies::channels;
use super::super::super::hostile::Peer;
use super::*;

/// The ticket names nobody.
fn wish(to: &Path) -> DirectoryWish {
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
    let all = SyncOptions {
        links: true,
        modes: true,
        times: true,
        users: true,
        groups: true,
        devices: true,
        specials: true,
        attributes: true,
        ..SyncOptions::default()
    };
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
    let taking = Taking { wish: &wish, options: &options, tree, landing, comparing: None };
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
