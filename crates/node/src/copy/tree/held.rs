//! Names of hard links whose content did not come: another name of the same file may yet bring it, and then they are linked to
//! that, so that a file with several names stays one.

use std::collections::HashMap;

use dray_core::{Error, ErrorKind};
use dray_store::local::tree::{FileTarget, TreeWriter};

/// Names held at once; each keeps its directory open. Those beyond have failed for good.
const HELD_MAX: usize = 256;

/// A path and why it failed, to be told.
pub(super) type Failed = (Vec<u8>, Error);

/// By group.
#[derive(Default)]
pub(super) struct HeldNames {
    groups: HashMap<[u8; 16], Vec<HeldName>>,
    count: usize,
}

struct HeldName {
    target: Box<FileTarget>,
    error: Error,
}

impl HeldNames {
    /// The content of `target` did not come: what is to be told of it now, if that is no name that may be linked yet.
    pub(super) fn failed(
        &mut self,
        writer: &mut TreeWriter,
        target: Box<FileTarget>,
        error: Error,
    ) -> Option<Failed> {
        let ends_all = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted);
        if let Some(group) = target.link_group().filter(|_| !ends_all && self.count < HELD_MAX) {
            writer.fall_back(&target);
            self.count += 1;
            self.groups.entry(group).or_default().push(HeldName { target, error });
            return None;
        }
        let path = target.path();
        writer.settle(*target, None);
        Some((path, error))
    }

    /// A name of `group` is in place: links those that are held to it. What could not be linked.
    pub(super) fn came(&mut self, writer: &mut TreeWriter, group: Option<[u8; 16]>) -> Vec<Failed> {
        let names = group.and_then(|group| self.groups.remove(&group)).unwrap_or_default();
        self.count -= names.len();
        let mut failed = Vec::new();
        for HeldName { target, error } in names {
            let linked = writer.link(&target);
            let path = target.path();
            writer.settle(*target, None);
            if linked.is_err() {
                failed.push((path, error));
            }
        }
        failed
    }

    /// Nothing more comes: what was held failed.
    pub(super) fn end(&mut self, writer: &mut TreeWriter) -> Vec<Failed> {
        self.count = 0;
        let mut failed: Vec<Failed> = Vec::new();
        for HeldName { target, error } in self.groups.drain().flat_map(|(_, names)| names) {
            failed.push((target.path(), error));
            writer.settle(*target, None);
        }
        failed.sort_by(|one, other| one.0.cmp(&other.0));
        failed
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};
    use dray_store::local::tree::{Landing, Placed, WriteOptions};

    use super::*;

    fn entry(name: Option<&str>, kind: Kind) -> Entry {
        let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
        let link_group = matches!(kind, Kind::File { .. }).then_some([7; 16]);
        let metadata = Metadata { mode: 0o755, link_group, link_names: 4, ..Metadata::default() };
        Entry { name, kind, metadata }
    }

    /// S51 "hard links": the content of the first two names fails, the third brings it, and all are one file, as they were before.
    /// A name that cannot be linked either is told with its first reason.
    #[test]
    fn names_whose_content_failed_become_links() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("a"), b"old").unwrap();
        for name in ["b", "c", "d"] {
            fs::hard_link(tree.join("a"), tree.join(name)).unwrap();
        }
        let landing = Landing::resolve(place.path(), &[b"tree".to_vec()], false).unwrap();
        let mut writer =
            TreeWriter::new(landing, WriteOptions { whole_file: true, ..WriteOptions::default() });
        let mut held = HeldNames::default();
        let changed = || Error::new(ErrorKind::Changed, "it changed");
        writer.root(0, &entry(None, Kind::Directory { entries: None })).unwrap();
        let file = |name| entry(Some(name), Kind::File { size_bytes: 3, oid: None });
        for name in ["a", "b"] {
            let Placed::Wanted(target, _) = writer.entry(&file(name)).unwrap() else { panic!("{name}") };
            assert!(held.failed(&mut writer, target, changed()).is_none());
        }
        let Placed::Wanted(target, _) = writer.entry(&file("c")).unwrap() else { panic!("c") };
        let mut new = target.create().unwrap();
        new.write(b"new").unwrap();
        let finished = Finished { hash: [0; 32], size_bytes: 3, mtime_s: 0, mtime_ns: 0 };
        let identity = target.finish(new, &finished).unwrap();
        writer.settle(*target, Some(identity));
        // Somebody puts a directory in the way of one of them.
        fs::remove_file(tree.join("b")).unwrap();
        fs::create_dir(tree.join("b")).unwrap();
        let linked = held.came(&mut writer, Some([7; 16]));
        let told: Vec<_> = linked.iter().map(|(path, error)| (&path[..], error.kind())).collect();
        assert_eq!(told, [(&b"tree/b"[..], ErrorKind::Changed)]);
        let Placed::Link(target) = writer.entry(&file("d")).unwrap() else { panic!("d") };
        writer.link(&target).unwrap();
        writer.settle(*target, None);
        assert!(held.end(&mut writer).is_empty());
        for name in ["a", "c", "d"] {
            assert_eq!(fs::read(tree.join(name)).unwrap(), b"new", "{name}");
            let found = fs::metadata(tree.join(name)).unwrap();
            assert_eq!((found.ino(), found.nlink()), (identity.2, 3), "{name}");
        }
    }

    /// Where no name brings it, each is told at the end.
    #[test]
    fn names_that_nothing_came_for_have_failed() {
        let place = tempfile::tempdir().unwrap();
        let landing = Landing::resolve(place.path(), &[b"tree".to_vec()], false).unwrap();
        let mut writer = TreeWriter::new(landing, WriteOptions::default());
        let mut held = HeldNames::default();
        writer.root(0, &entry(None, Kind::Directory { entries: None })).unwrap();
        for name in ["a", "b"] {
            let file = entry(Some(name), Kind::File { size_bytes: 3, oid: None });
            let Placed::Wanted(target, _) = writer.entry(&file).unwrap() else { panic!("{name}") };
            let error = Error::new(ErrorKind::Changed, name);
            assert!(held.failed(&mut writer, target, error).is_none());
        }
        let failed = held.end(&mut writer);
        let told: Vec<_> = failed.iter().map(|(path, error)| (&path[..], error.to_string())).collect();
        assert_eq!(told, [(&b"tree/a"[..], "a".to_owned()), (&b"tree/b"[..], "b".to_owned())]);
    }
}
