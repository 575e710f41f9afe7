//! The sources of a tree copy: as many as a command line holds, which is more than one message does, and each once.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::PathBuf;

use dray_core::limits::{
    CBOR_ELEMENTS_MAX, SYNC_LIST_MAX, TREE_SOURCES_BYTES_MAX, TREE_SOURCES_IN_MESSAGE_MAX, TREE_SOURCES_MAX,
};
use dray_core::message::{Message, MoreSources, Tree, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::Chosen;
use dray_transfer::transport::push_control;

use super::super::Location;
use crate::{Event, Observer};

/// Bytes of paths and names in one message.
const MESSAGE_BYTES: usize = 48 * 1024;

/// Elements of one message, a path or a name being one.
const ELEMENTS_MAX: usize = CBOR_ELEMENTS_MAX as usize;
/// Elements of one message that are neither a path, a name, a rule nor a place.
const OTHER_ELEMENTS: usize = 256;

/// The largest place: a map of two numbers.
const PLACE_BYTES: usize = 21;
/// Elements of a place.
const PLACE_ELEMENTS: usize = 5;

/// `Usage` if there are more sources than a copy takes.
pub(super) fn check(paths: &[Vec<u8>], names: &[Vec<u8>]) -> Result<()> {
    let bytes: usize = paths.iter().chain(names).map(Vec::len).sum();
    if paths.len().max(names.len()) <= TREE_SOURCES_MAX && bytes <= TREE_SOURCES_BYTES_MAX {
        return Ok(());
    }
    let what = format!("more than {TREE_SOURCES_MAX} sources, or too long ones");
    Err(Error::new(ErrorKind::Usage, what)
        .advise("copy their directory with -r, or them in several commands"))
}

/// The sources of a command, without those named before, of which the user is told.
pub(super) fn once<'a>(sources: &'a [Location], observer: &dyn Observer) -> Vec<&'a Location> {
    let mut seen = HashSet::new();
    let (once, again): (Vec<_>, Vec<_>) = sources.iter().partition(|source| seen.insert(*source));
    for source in again {
        let path = match source {
            Location::Local(path) | Location::Remote { path, .. } => path,
        };
        observer.event(Event::Warning(format!("{path:?} is named twice and copied once")));
    }
    once
}

/// Sources here, and those of each host that follow each other.
pub(super) type ByMachine<'a> = (Vec<PathBuf>, Vec<(&'a OsStr, Vec<PathBuf>)>);

/// Sources of one machine go in one copy, as far as they follow each other.
pub(super) fn by_machine(sources: Vec<&Location>) -> ByMachine<'_> {
    let (mut here, mut there): ByMachine<'_> = Default::default();
    for source in sources {
        match source {
            Location::Local(path) => here.push(path.clone()),
            Location::Remote { host, path } => match there.last_mut() {
                Some((last, paths)) if *last == host.as_os_str() => paths.push(path.clone()),
                _ => there.push((host, vec![path.clone()])),
            },
        }
    }
    (here, there)
}

/// `Usage` unless all are of one machine: what one machine has and another has not, nobody could tell from what is to be deleted.
pub(super) fn require_one_machine(here: &[PathBuf], there: &[(&OsStr, Vec<PathBuf>)]) -> Result<()> {
    if usize::from(!here.is_empty()) + there.len() <= 1 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, "the sources are on different machines")
        .advise("run dray sync once for each machine, into a directory of its own"))
}

/// Says `tree`, with what does not fit into the first message in further ones.
pub(super) fn push_tree(out: &mut Vec<u8>, tree: &Tree) {
    let (mut paths, mut names) = (&tree.paths[..], &tree.names[..]);
    // The first message has the rules, too, and what is told of the near end's directories.
    let mut rules: usize =
        tree.sync.iter().flat_map(|wish| wish.rules.iter().flatten()).map(|rule| rule.len() + 3).sum();
    let places = tree.sync.iter().filter_map(|wish| wish.near.as_ref()).map(|near| near.places.len());
    let places: usize = places.sum();
    rules += places * PLACE_BYTES;
    let mut elements = OTHER_ELEMENTS + places * PLACE_ELEMENTS;
    elements += tree.sync.iter().filter_map(|wish| wish.rules.as_ref()).map(Vec::len).sum::<usize>();
    let mut next = || {
        let (mut bytes, mut counts) = (std::mem::take(&mut rules), [0, 0]);
        let mut elements = std::mem::replace(&mut elements, OTHER_ELEMENTS);
        let mut has_any = false;
        for (list, count) in [paths, names].into_iter().zip(&mut counts) {
            for item in list.iter().take(TREE_SOURCES_IN_MESSAGE_MAX) {
                // Of each message something leaves.
                let is_full = bytes + item.len() > MESSAGE_BYTES || elements >= ELEMENTS_MAX;
                if has_any && is_full {
                    break;
                }
                bytes += item.len() + 3;
                elements += 1;
                has_any = true;
                *count += 1;
            }
        }
        let taken = (paths[..counts[0]].to_vec(), names[..counts[1]].to_vec());
        (paths, names) = (&paths[counts[0]..], &names[counts[1]..]);
        (taken.0, taken.1, paths.is_empty() && names.is_empty())
    };
    let (first_paths, first_names, mut is_last) = next();
    let flags = if is_last { tree.flags } else { tree.flags | tree_flag::MORE_SOURCES };
    let first = Tree { paths: first_paths, names: first_names, flags, ..tree.clone() };
    push_control(out, &Message::Tree(first));
    while !is_last {
        let (paths, names);
        (paths, names, is_last) = next();
        push_control(out, &Message::MoreSources(MoreSources { paths, names, is_last }));
    }
}

/// Completes `tree` with the messages that follow it, if there are any; `read` reads the next.
pub(in crate::copy) fn read_more(mut tree: Tree, read: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Tree> {
    let mut is_last = tree.flags & tree_flag::MORE_SOURCES == 0;
    let mut bytes = 0;
    while !is_last {
        let Message::MoreSources(more) = Message::from_bytes(&read()?)? else {
            return Err(Error::new(ErrorKind::Protocol, "the sources ended in the middle"));
        };
        bytes += more.paths.iter().chain(&more.names).map(|item| item.len()).sum::<usize>();
        is_last = more.is_last;
        tree.paths.extend(more.paths);
        tree.names.extend(more.names);
        let is_too_much = tree.paths.len().max(tree.names.len()) > TREE_SOURCES_MAX;
        if is_too_much || bytes > TREE_SOURCES_BYTES_MAX {
            return Err(Error::new(ErrorKind::Protocol, "more sources than a copy takes"));
        }
    }
    Ok(tree)
}

/// Says what a list names, in as many messages as it takes.
pub(super) fn push_chosen(out: &mut Vec<u8>, chosen: &Chosen) {
    let mut lines = chosen.lines().peekable();
    loop {
        let (mut paths, mut bytes) = (Vec::new(), 0);
        while paths.len() < TREE_SOURCES_IN_MESSAGE_MAX
            && let Some(line) = lines.next_if(|line| bytes == 0 || bytes + line.len() <= MESSAGE_BYTES)
        {
            bytes += line.len() + 3;
            paths.push(line.to_vec().into());
        }
        let is_last = lines.peek().is_none();
        if paths.is_empty() {
            // Of a message something leaves; a line without a name is none.
            paths.push(Vec::new().into());
        }
        push_control(out, &Message::MoreSources(MoreSources { paths, names: Vec::new(), is_last }));
        if is_last {
            return;
        }
    }
}

/// Reads the list that [`push_chosen`] said.
pub(in crate::copy) fn read_chosen(read: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Chosen> {
    let wrong = |what: &str| Error::new(ErrorKind::Protocol, format!("the list of what is wanted {what}"));
    let mut chosen = Chosen::default();
    let (mut lines, mut is_last) = (0, false);
    while !is_last {
        let Message::MoreSources(more) = Message::from_bytes(&read()?)? else {
            return Err(wrong("ended in the middle"));
        };
        is_last = more.is_last;
        lines += more.paths.len();
        if more.paths.is_empty() || !more.names.is_empty() || lines > SYNC_LIST_MAX {
            return Err(wrong("has something else in it, or too much"));
        }
        for line in &more.paths {
            chosen.add(line).map_err(|error| wrong(&format!("is wrong: {error}")))?;
        }
    }
    chosen.sort();
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
    use dray_core::limits::{SYNC_PLACES_MAX, SYNC_RULES_MAX};
    use dray_core::message::{CopyRole, Near, Place, SyncWish};

    use super::super::{TreeOptions, tree_message};
    use super::*;

    /// Issue "nothing is deleted wrongly": what one machine brought would be what the next one has not.
    #[test]
    fn sources_of_several_machines_are_refused() {
        let refused = |words: &[&str]| {
            let all: Vec<_> = words.iter().map(|word| Location::parse(word.into()).unwrap()).collect();
            let (here, there) = by_machine(all.iter().collect());
            require_one_machine(&here, &there).is_err_and(|error| error.kind() == ErrorKind::Usage)
        };
        for words in [&["a/", "b:a/"][..], &["b:a/", "a/"], &["b:a/", "c:a/"], &["b:a/", "c:a/", "b:d/"]] {
            assert!(refused(words), "{words:?}");
        }
        assert!(!refused(&["a/", "b/"]) && !refused(&["b:a/", "b:c/", "b:d"]));
    }

    /// Bodies of the control frames in `bytes`.
    fn bodies(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(FRAME_HEAD_BYTES);
            let head = FrameHead::decode(head.try_into().unwrap()).unwrap();
            let (body, rest) = rest.split_at(head.body_bytes);
            bodies.push(body.to_vec());
            bytes = rest;
        }
        bodies
    }

    /// What the other end has of it; nothing else crossed.
    fn crossed(tree: &Tree) -> Tree {
        let mut out = Vec::new();
        push_tree(&mut out, tree);
        let mut bodies = bodies(&out).into_iter();
        let Message::Tree(first) = Message::from_bytes(&bodies.next().unwrap()).unwrap() else {
            panic!("the first is the tree")
        };
        let read = read_more(first, &mut || Ok(bodies.next().unwrap())).unwrap();
        assert_eq!(bodies.next(), None);
        read
    }

    /// Issue "several sources", as many as a shell's pattern gives: they cross in as many messages as it takes, none is lost.
    #[test]
    fn as_many_sources_as_a_command_line_holds() {
        for (count, len) in [(1, 10), (2048, 10), (2049, 10), (5000, 200), (100_000, 12), (30, 4000)] {
            for role in [CopyRole::Send, CopyRole::Receive] {
                let text = |number: usize| format!("{number:0len$}").into_bytes();
                let paths: Vec<Vec<u8>> = (0..count).map(text).collect();
                let names: Vec<Vec<u8>> =
                    paths.iter().map(|path| path[path.len().saturating_sub(250)..].to_vec()).collect();
                let is_sender = matches!(role, CopyRole::Send);
                let paths = if is_sender { paths } else { vec![b"there".to_vec()] };
                let tree = tree_message(role, paths, names, &TreeOptions::default(), true).unwrap();
                let read = crossed(&tree);
                assert!(read.paths == tree.paths && read.names == tree.names, "{count} of {len}");
            }
        }
        let many = vec![Vec::new(); TREE_SOURCES_MAX + 1];
        assert_eq!(check(&[], &many).unwrap_err().kind(), ErrorKind::Usage);
    }

    /// Issue "several sources": they cross beside as many rules, and as many directories of the near end, as a copy may have.
    #[test]
    fn sources_cross_beside_rules_and_places() {
        let names: Vec<Vec<u8>> = (0..5000).map(|number| format!("{number}").into_bytes()).collect();
        let rules = vec![b"- x".to_vec().into(); SYNC_RULES_MAX];
        let near = Near {
            boot: vec![7; 16].into(),
            places: vec![Place { device: u64::MAX, inode: u64::MAX }; SYNC_PLACES_MAX],
        };
        for (rules, near) in [(Some(rules), None), (None, Some(Box::new(near)))] {
            let tree = tree_message(
                CopyRole::Receive,
                vec![b"there".to_vec()],
                names.clone(),
                &TreeOptions::default(),
                true,
            );
            let tree = tree.unwrap();
            let tree = Tree { sync: Some(Box::new(SyncWish { rules, near, ..SyncWish::default() })), ..tree };
            assert!(crossed(&tree).names == tree.names);
        }
    }

    /// Design 17: what a peer says is bounded, also over many messages.
    #[test]
    fn sources_have_an_end() {
        let tree = tree_message(CopyRole::Send, vec![b"a".to_vec()], vec![], &TreeOptions::default(), true);
        let tree = Tree { flags: tree_flag::MORE_SOURCES, ..tree.unwrap() };
        let more = MoreSources {
            paths: vec![b"x".to_vec().into(); TREE_SOURCES_IN_MESSAGE_MAX],
            names: Vec::new(),
            is_last: false,
        };
        let body = Message::MoreSources(more).to_bytes();
        let mut count = 0;
        let mut read = || {
            count += 1;
            Ok(body.clone())
        };
        assert_eq!(read_more(tree, &mut read).unwrap_err().kind(), ErrorKind::Protocol);
        assert!(count <= TREE_SOURCES_MAX / TREE_SOURCES_IN_MESSAGE_MAX + 1, "{count}");
    }

    /// Issue "--files-from": a list crosses in as many messages as it takes, and what is no list is refused.
    #[test]
    fn a_list_crosses_whole() {
        for count in [0, 1, 5000, 100_000] {
            let mut chosen = Chosen::default();
            (0..count).for_each(|number| chosen.add(format!("{number:08}/x").as_bytes()).unwrap());
            chosen.sort();
            let mut out = Vec::new();
            push_chosen(&mut out, &chosen);
            let mut left = bodies(&out).into_iter();
            let read = read_chosen(&mut || Ok(left.next().unwrap())).unwrap();
            assert!(read.lines().eq(chosen.lines()) && read.lines().count() == count);
            assert_eq!(left.next(), None);
        }
        let told = |path: &str| {
            let paths = vec![path.as_bytes().to_vec().into()];
            Message::MoreSources(MoreSources { paths, names: Vec::new(), is_last: true }).to_bytes()
        };
        assert!(read_chosen(&mut || Ok(told("a/b"))).is_ok());
        for body in [told("../b"), told("a/../../b"), b"x".to_vec()] {
            assert_eq!(read_chosen(&mut || Ok(body.clone())).unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    /// As `cp` has it: a source that is named twice is no mistake.
    #[test]
    fn a_source_is_copied_once() {
        let told = std::sync::Mutex::new(Vec::new());
        let observer = |event: Event| told.lock().unwrap().push(event);
        let local = |path: &str| Location::Local(path.into());
        let sources = [local("a"), local("b"), local("a")];
        assert_eq!(once(&sources, &observer), [&sources[0], &sources[1]]);
        assert_eq!(told.lock().unwrap().len(), 1);
    }
}
