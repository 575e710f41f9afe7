//! The far end of a tree copy: `dray remote` when its first message is `tree`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray_core::limits::{TREE_NAMED_MAX, TREE_SOURCES_MAX};
use dray_core::message::{CopyRole, FoundSource, Message, Sources, Tree, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Beside, Chosen, Origin, Preview, TreeWriter, WalkOptions, WriteOptions};
use dray_transfer::direct::is_local;
use dray_transfer::transport::{PipeChannel, RateLimit, push_control};
use dray_transfer::tree::{send, take};

use super::super::direct::ssh_connection;
use super::super::pattern;
use super::super::reach::{Confinement, home_path};
use super::super::remote::{packed, tell, unpacked};
use super::again::Hears;
use super::digests::{Comparing, Telling, digest_options, wanted};
use super::doors::{GivingDoors, Seen, TakingDoors};
use super::preview::Previewing;
use super::removal::{Arrivals, Removal, removes};
use super::sink::{Doors, Writing};
use super::source::WalkSource;
use super::sync::{above, deletes, landing, patience, require_landing_outside, require_outside};
use super::{Knows, changes, names_owners, walk_options, whole, write_options};
use crate::{Node, Stop};

/// How long the near end may be silent. ssh ends with it, so this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the near end wants of trees.
pub(in crate::copy) struct AskedTrees<'a> {
    pub(in crate::copy) tree: &'a Tree,
    /// What is sent of the sources, if that is not all.
    pub(in crate::copy) chosen: Option<Chosen>,
}

impl Node {
    /// Carries out `tree`, in the directory of a login that is confined to one; `preface` has this end's hello. An error has been told to the other side.
    pub(in crate::copy) fn far_trees(
        &self,
        mut channel: PipeChannel,
        AskedTrees { tree, chosen }: AskedTrees<'_>,
        mut preface: Vec<u8>,
        knows: Knows,
        within: Option<&Confinement>,
        stop: &Stop,
    ) -> Result<()> {
        let origin = within.map_or(Origin::Anywhere, |within| Origin::Within(within.directory().clone()));
        let reached: Result<Vec<PathBuf>> = tree.paths.iter().map(|path| reached(path, within)).collect();
        let mut paths = match reached {
            Ok(paths) => paths,
            Err(error) => return Err(tell(&mut channel, preface, error)),
        };
        let is_compressed = tree.flags & tree_flag::COMPRESSED != 0;
        // A confined login makes us neither listen nor dial, nor hear our addresses; nobody unpacks what leaves beside ssh; and under a
        // limit ssh is fast enough.
        let stays = within.is_some() || is_compressed || tree.rate_bytes.is_some();
        let seen =
            |(sees, seen_as)| Seen { seen_as: Some(seen_as), sees: Some(sees), allow_local: is_local(sees) };
        let may_dial = ssh_connection().filter(|_| knows.lanes && !stays).map(seen);
        let stopped =
            || if stop.is_set() { Err(Error::new(ErrorKind::Interrupted, "interrupted")) } else { Ok(()) };
        let patience = patience(tree, PATIENCE);
        match tree.role {
            CopyRole::Receive => {
                if let Some(Err(error)) = within.map(Confinement::require_writable) {
                    return Err(tell(&mut channel, preface, error));
                }
                let path = paths.pop().unwrap_or_default();
                let names: Vec<Vec<u8>> = tree.names.iter().map(|name| name.to_vec()).collect();
                let into_directory = tree.flags & tree_flag::INTO_DIRECTORY != 0;
                let is_sync = tree.sync.is_some();
                let source = tree.origin.as_ref().filter(|_| !into_directory).map(|source| ***source);
                let landing = landing(&origin, &path, &names, into_directory, above(tree), source);
                let as_a_whole = |landing| whole::landing(landing, whole::is_switched(tree), &origin, &path);
                let landing = match landing.and_then(as_a_whole) {
                    Ok(landing) => landing,
                    Err(error) => return Err(tell(&mut channel, preface, error)),
                };
                if let Err(error) = require_landing_outside(tree, &landing) {
                    return Err(tell(&mut channel, preface, error));
                }
                let fsync = tree.flags & tree_flag::FSYNC != 0;
                let changes = match changes(tree, &|path| beside(path, within, &origin)) {
                    Ok(changes) => changes,
                    Err(error) => return Err(tell(&mut channel, preface, error)),
                };
                let mut channel = unpacked(Box::new(channel), is_compressed)?;
                let comparing = match knows.digests && tree.digests == Some(true) {
                    true => Comparing::start(tree, &names, &landing, within.is_some()),
                    false => None,
                };
                if let Some(wanted) = wanted(tree, comparing.as_ref()) {
                    push_control(&mut preface, &wanted);
                }
                // One that does not know the message told no origin.
                let hears = if tree.origin.is_some() && knows.again { Hears::There } else { Hears::Nobody };
                let options = WriteOptions {
                    harmless: within.is_some(),
                    confined: within.map(|within| within.directory().identity()),
                    ..write_options(tree)
                };
                if tree.flags & tree_flag::DRY_RUN != 0 {
                    let make = || {
                        let preview = Preview::new(landing, options, changes);
                        let previewing = Previewing::new(preview, names.len(), is_sync, &|_| {}, None);
                        Ok(previewing.landing(hears).comparing(comparing))
                    };
                    return take(&mut *channel, preface, make, None, &mut |_| stopped(), patience)
                        .map(|_| ());
                }
                let doors = may_dial.map(|seen| TakingDoors::new(self, seen));
                let make = || {
                    let writer = TreeWriter::new(landing, options).with_changes(changes).staged(fsync)?;
                    let scope = self.scope_for_tree(writer.base().as_fd(), within.is_some());
                    let doors = doors.as_ref().map(|doors| doors as &dyn Doors);
                    let writing = Writing::new(writer, names.len(), fsync, &|_| {}).with_doors(doors);
                    let writing = writing.packing(knows.packs);
                    let is_whole =
                        tree.flags & tree_flag::WHOLE_FILE != 0 || super::sync::compares_nothing(tree);
                    let scope = scope.filter(|_| knows.deltas && !is_whole);
                    let writing =
                        writing.with_deltas(knows.deltas && !is_whole).searching(scope).landing(hears);
                    let writing =
                        writing.with_rests(knows.rests).with_code(knows.code).with_compared(knows.compared);
                    Ok(writing.comparing(comparing).removing(Arrivals::of(tree)))
                };
                let lanes = doors.as_ref().map(|doors| &*doors.lanes);
                take(&mut *channel, preface, make, lanes, &mut |_| stopped(), patience).map(|_| ())
            }
            CopyRole::Send => {
                if removes(tree)
                    && let Some(Err(error)) = within.map(Confinement::require_writable)
                {
                    return Err(tell(&mut channel, preface, error));
                }
                let mut names: Vec<Vec<u8>> = tree.names.iter().map(|name| name.to_vec()).collect();
                if tree.flags & tree_flag::PATTERNS != 0 {
                    match expanded(paths, &names, &origin, Strict::of(tree), &mut preface, stop) {
                        Ok(found) => (paths, names) = found,
                        Err(error) => return Err(tell(&mut channel, preface, error)),
                    }
                }
                let options =
                    require_outside(tree, &paths, &origin).and_then(|()| walk_options(tree, &names));
                let options = match options {
                    Ok(options) => options,
                    Err(error) => return Err(tell(&mut channel, preface, error)),
                };
                let limit = tree.rate_bytes.map(RateLimit::new);
                let channel = packed(Box::new(channel), is_compressed, limit.as_ref(), &mut preface)?;
                let options = WalkOptions { chosen: chosen.map(Arc::new), ..options };
                let source = WalkSource::new(paths.clone(), options, names_owners(tree), stop.clone())
                    .at(origin.clone())
                    .telling_listed(deletes(tree))
                    .removing(Removal::of(tree, origin.clone()));
                let alike = digest_options(tree, &names).filter(|_| knows.digests);
                let mut source = Telling::new(source, tree, alike, paths, stop.clone()).at(origin);
                let doors = may_dial.map(|seen| GivingDoors::new(self, seen)).transpose()?;
                let mut heard = |message: Option<Message>| match message {
                    None => stopped(),
                    Some(Message::Direct(theirs)) => {
                        doors.as_ref().map_or(Ok(()), |doors| doors.handle_direct(theirs))
                    }
                    Some(Message::Progress(_) | Message::EntryFailed(_)) => Ok(()),
                    // The other side knows, and shows it.
                    Some(Message::Fault(fault)) => {
                        let what = fault.to_error("the receiving side").to_string();
                        Err(Error::new(ErrorKind::Interrupted, what))
                    }
                    Some(_) => Err(Error::new(ErrorKind::Protocol, "message out of place")),
                };
                let lanes = doors.as_ref().map(|doors| &*doors.lanes);
                send(channel, preface, &mut source, lanes, &mut heard, &|| patience).map(|_| ())
            }
        }
    }
}

/// What a pattern may not leave out.
#[derive(Clone, Copy)]
struct Strict {
    /// What ends with a slash stands for directories alone, as in a shell.
    is_sync: bool,
    /// A directory that cannot be looked into is an error, or what is in it would be taken for what is not there.
    deletes: bool,
}

impl Strict {
    fn of(tree: &Tree) -> Strict {
        Strict { is_sync: tree.sync.is_some(), deletes: deletes(tree) }
    }
}

/// A path of the other side's as it is meant here.
fn reached(path: &[u8], within: Option<&Confinement>) -> Result<PathBuf> {
    let wish = OsStr::from_bytes(path);
    within.map_or_else(|| Ok(home_path(wish)), |within| within.relative(wish))
}

/// A directory of the receiver's, as it is meant here: a relative path begins in the destination.
fn beside(path: &[u8], within: Option<&Confinement>, origin: &Origin) -> Result<Beside> {
    let wish = OsStr::from_bytes(path);
    let is_relative = !path.starts_with(b"/") && !path.starts_with(b"~");
    Ok(match within {
        None if is_relative => Beside::anywhere(wish.into()),
        None => Beside::anywhere(home_path(wish)),
        Some(_) if is_relative => Beside::in_destination(origin.clone(), wish.into()),
        Some(within) => Beside::at(origin.clone(), within.relative(wish)?),
    })
}

/// What the patterns among `paths` stand for, with the names, which are said in `preface`, too. A pattern that stands for
/// nothing stands for itself, which is then missing.
fn expanded(
    paths: Vec<PathBuf>,
    names: &[Vec<u8>],
    origin: &Origin,
    strict: Strict,
    preface: &mut Vec<u8>,
    stop: &Stop,
) -> Result<(Vec<PathBuf>, Vec<Vec<u8>>)> {
    let may_be_there = |error: &Error| {
        !matches!(error.io_kind(), Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    };
    let open = |path: &Path| match origin.directory(path) {
        Ok(directory) => Ok(Some(OwnedFd::from(directory))),
        Err(error) if strict.deletes && may_be_there(&error) => Err(error),
        Err(_) => Ok(None),
    };
    let is_directory = |path: &Path| match origin.directory(path) {
        Ok(_) => true,
        Err(error) => may_be_there(&error),
    };
    let (mut all, mut all_names, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for (index, path) in paths.into_iter().enumerate() {
        let mut found = Vec::new();
        if pattern::is_pattern(&path) && origin.kind(&path).is_err() {
            let room = TREE_SOURCES_MAX - all.len().min(TREE_SOURCES_MAX);
            found = pattern::expand(&path, room, &open, &|| stop.is_set())?;
            if strict.is_sync && path.as_os_str().as_bytes().ends_with(b"/") {
                found.retain(|path| is_directory(path));
                // Also where a link leads to one.
                found.iter_mut().for_each(|path| path.push(""));
            }
        }
        if found.is_empty() {
            found.push(path);
        }
        for path in found {
            let name = path.file_name().unwrap_or(OsStr::new(".")).as_bytes().to_vec();
            told.push(FoundSource {
                path: u32::try_from(index).unwrap_or(u32::MAX),
                name: name.clone().into(),
            });
            // One whose entries go into the destination itself has no name there.
            all_names.push(if names.get(index).is_some_and(Vec::is_empty) { Vec::new() } else { name });
            all.push(path);
        }
    }
    if all.len() > TREE_SOURCES_MAX {
        let what = format!(
            "the patterns stand for more than {TREE_SOURCES_MAX} sources; copy their directory with -r"
        );
        return Err(Error::new(ErrorKind::Refused, what));
    }
    let mut told = told.chunks(TREE_NAMED_MAX).peekable();
    while let Some(found) = told.next() {
        let sources = Sources { found: found.to_vec(), is_last: told.peek().is_none() };
        push_control(preface, &Message::Sources(sources));
    }
    Ok((all, all_names))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Issue "nothing is deleted wrongly": a directory that a pattern leads to and that cannot be looked into ends a synchronisation, and a slash
    /// at the end of a pattern stands for directories, links to them among others.
    #[test]
    fn a_pattern_of_a_synchronisation_leaves_nothing_out() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/logs", "b/logs", "c"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("file"), b"").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let found = |pattern: &str, deletes| {
            let paths = vec![dir.path().join(pattern)];
            let strict = Strict { is_sync: true, deletes };
            let found =
                expanded(paths, &[Vec::new()], &Origin::Anywhere, strict, &mut Vec::new(), &Stop::new());
            let start = dir.path().as_os_str().len() + 1;
            let below = |path: PathBuf| path.to_str().unwrap()[start..].to_owned();
            found.map(|(paths, _)| paths.into_iter().map(below).collect::<Vec<_>>())
        };
        assert_eq!(found("*/logs/", true).unwrap(), ["a/logs/", "b/logs/", "link/logs/"]);
        assert_eq!(found("*/", true).unwrap(), ["a/", "b/", "c/", "link/"]);
        assert_eq!(found("*", true).unwrap().len(), 6);
        // A file on the way is no directory that could not be looked into.
        assert_eq!(found("*/logs/deep*/", true).unwrap().len(), 1);
        fs::create_dir(dir.path().join("b/logs/deeper")).unwrap();
        assert_eq!(found("*/logs/deep*/", true).unwrap(), ["b/logs/deeper/"]);
        // Nobody can look into it, be it root.
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(found("*/logs/", true).is_err());
        assert_eq!(found("*/logs", false).unwrap().len(), 3);
    }
}
