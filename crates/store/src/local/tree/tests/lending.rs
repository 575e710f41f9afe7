//! What others could have set in attributes that stand for owners and bits (ADR 32): by another name of a file, while it is open, or while its directory is being written.

use super::faking::{attribute, faking, open_place, set_attribute, told_of, write_all};
use super::*;
use crate::local::tree::{BasisOptions, BasisUse, Beside};

fn bits(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn inode_of(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// S88, threat model: others come to a file by a name that it has elsewhere, whatever the directory lets in that is read: of a file that they may write to the attribute lends
/// no powers then. What it says of others is told all the same.
#[test]
fn another_name_of_a_file_lends_it_no_powers() {
    let place = open_place();
    let (from, elsewhere) = (place.path().join("day2"), place.path().join("day1"));
    for directory in [&from, &elsewhere] {
        fs::create_dir(directory).unwrap();
    }
    let cases = [
        ("setuid, of a group", 0o664, "104755 0,0 0:0", false),
        ("disk", 0o660, "60660 259,7 0:6", false),
        ("owner", 0o664, "100664 0,0 7:8", true),
        ("su", 0o755, "104755 0,0 0:0", true),
    ];
    for (name, mode, value, _) in cases {
        fs::write(from.join(name), b"content").unwrap();
        bits(&from.join(name), mode);
        set_attribute(&from.join(name), value.as_bytes());
    }
    bits(&from, 0o700);
    let told = || {
        let (told, failed) = told_of(&from, FakeSuper::On);
        (told.into_iter().map(|(name, ..)| String::from_utf8(name).unwrap()).collect::<Vec<_>>(), failed)
    };
    let mut all: Vec<String> = cases.iter().map(|(name, ..)| (*name).to_owned()).collect();
    all.sort();
    assert_eq!(told(), (all.clone(), 0));
    for name in &all {
        fs::hard_link(from.join(name), elsewhere.join(name)).unwrap();
    }
    assert_eq!(told(), (vec!["owner".to_owned(), "su".to_owned()], 2));
    for name in &all {
        fs::remove_file(elsewhere.join(name)).unwrap();
    }
    assert_eq!(told(), (all, 0));
}

/// The same at the destination: there it counts for nothing, and is made right.
#[test]
fn another_name_at_the_destination_lends_no_powers() {
    let place = open_place();
    let (to, elsewhere) = (place.path().join("to"), place.path().join("elsewhere"));
    for directory in [&to, &elsewhere] {
        fs::create_dir(directory).unwrap();
    }
    write_all(&to, faking());
    bits(&to.join("powers"), 0o775);
    bits(&to, 0o700);
    // What the root is to be lets others in: here it is theirs that lets nobody in.
    let run = || {
        let (_, told, not_kept) = write_all(&to, faking());
        assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
        bits(&to, 0o700);
        told.iter().filter(|done| done.path == b"powers").count()
    };
    assert_eq!((run(), mode_of(&to.join("powers"))), (0, 0o775));
    fs::hard_link(to.join("powers"), elsewhere.join("powers")).unwrap();
    assert_eq!((run(), mode_of(&to.join("powers"))), (1, 0o755));
    assert_eq!(attribute(&to.join("powers")).as_deref(), Some("104755 0,0 7:8"));
    assert_eq!(run(), 0);
}

/// S88 "others cannot write to what stands for an entry": what rsync kept in another directory so that others may write to it is copied, not linked (`--link-dest`): they would
/// say by its name there what it is here. What they may not write to is linked.
#[test]
fn what_others_may_write_to_is_not_linked() {
    let place = open_place();
    let [to, kept] = ["to", "kept"].map(|name| place.path().join(name));
    for directory in [&to, &kept] {
        fs::create_dir(directory).unwrap();
    }
    write_all(&kept, faking());
    let as_rsync_does = [("powers", 0o775), ("wide", 0o666), ("console", 0o622), ("link", 0o777)];
    for (name, mode) in as_rsync_does {
        bits(&kept.join(name), mode);
    }
    bits(&to, 0o700);
    let usage = BasisUse::Link;
    let basis = Some(BasisOptions { places: vec![Beside::anywhere(kept.clone())], usage });
    let (_, _, not_kept) = write_all(&to, SyncOptions { basis, ..faking() });
    assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
    let is_linked = |name: &str| inode_of(&to.join(name)) == inode_of(&kept.join(name));
    for (name, mode) in as_rsync_does {
        assert!(!is_linked(name), "{name}");
        assert_eq!(mode_of(&to.join(name)) & 0o022, 0, "{name}");
        assert_eq!(mode_of(&kept.join(name)), mode, "{name}: not touched");
        assert_eq!(attribute(&to.join(name)), attribute(&kept.join(name)), "{name}");
    }
    assert_eq!(fs::read(to.join("powers")).unwrap(), b"program");
    for name in ["narrow", "disk", "pipe", "socket", "plain"] {
        assert!(is_linked(name), "{name}");
    }
}
