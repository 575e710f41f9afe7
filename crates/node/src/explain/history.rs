//! The last snapshots of transfers that ended: a file each in the data directory, written whole or not at all, and no more
//! than the last few.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_core::limits::{SNAPSHOT_BYTES_MAX, SNAPSHOTS_KEPT_MAX};

use super::snapshot::Snapshot;
use crate::config::Paths;

/// A file that was never given its final name is removed after this long.
const UNFINISHED_AFTER: Duration = Duration::from_secs(60);

/// Keeps `last` and forgets the oldest. Where it cannot be written, nothing is left behind: the transfer has ended as it
/// has all the same.
pub(super) fn keep(paths: &Paths, last: &Snapshot) {
    let dir = folder(paths);
    let Ok(json) = last.to_json() else { return };
    // The data directory itself is there, or this user has none.
    let _ = DirBuilder::new().mode(0o700).create(&dir);
    let name = format!("{:020}-{}.json", last.ended_unix_us.unwrap_or(0), last.pid);
    let unfinished = dir.join(format!(".new-{name}"));
    let written = write(&unfinished, &json).and_then(|()| fs::rename(&unfinished, dir.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    for old in names(&dir).iter().skip(SNAPSHOTS_KEPT_MAX) {
        // Another command may have been faster.
        let _ = fs::remove_file(old);
    }
}

/// The last snapshots, newest first.
pub(super) fn read(paths: &Paths) -> Vec<Snapshot> {
    let found = names(&folder(paths));
    found.iter().take(SNAPSHOTS_KEPT_MAX).filter_map(|path| read_one(path)).collect()
}

fn folder(paths: &Paths) -> PathBuf {
    paths.data_dir.join("ended")
}

fn write(path: &Path, json: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(json)
}

fn read_one(path: &Path) -> Option<Snapshot> {
    let mut json = Vec::new();
    // One byte more than allowed shows that it is too long.
    File::open(path).ok()?.take(SNAPSHOT_BYTES_MAX as u64 + 1).read_to_end(&mut json).ok()?;
    (json.len() <= SNAPSHOT_BYTES_MAX).then(|| Snapshot::from_json(&json))?
}

/// The files, newest first; what a killed command left half-written is removed.
fn names(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|name| name.ends_with(".json")) else { continue };
        if name.starts_with(".new-") {
            let made = entry.metadata().and_then(|metadata| metadata.modified());
            if made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > UNFINISHED_AFTER)) {
                let _ = fs::remove_file(path);
            }
        } else if name.starts_with(|first: char| first.is_ascii_digit()) {
            names.push(path);
        }
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(at: u64) -> Snapshot {
        Snapshot { ended_unix_us: Some(at), pid: 7, what: format!("no {at}"), ..Snapshot::default() }
    }

    /// Bounded: of any number of ended transfers the last are kept, whole, and nothing else is left in the folder.
    #[test]
    fn the_last_ones_are_kept() {
        let data = tempfile::tempdir().unwrap();
        let paths = Paths::below(data.path());
        assert!(read(&paths).is_empty());
        for at in 1..=40 {
            keep(&paths, &ended(at));
        }
        let kept: Vec<u64> = read(&paths).iter().filter_map(|last| last.ended_unix_us).collect();
        assert_eq!(kept, (25..=40).rev().collect::<Vec<_>>());
        assert_eq!(fs::read_dir(data.path().join("ended")).unwrap().count(), SNAPSHOTS_KEPT_MAX);
    }

    /// Garbage, another version's names and files that are too long are passed over; eight commands that end at once
    /// leave what each of them wrote.
    #[test]
    fn what_cannot_be_read_is_passed_over() {
        let data = tempfile::tempdir().unwrap();
        let paths = Paths::below(data.path());
        keep(&paths, &ended(5));
        let dir = data.path().join("ended");
        fs::write(dir.join("9.json"), b"{").unwrap();
        fs::write(dir.join("8.json"), vec![b' '; SNAPSHOT_BYTES_MAX + 1]).unwrap();
        fs::write(dir.join("note.txt"), b"mine").unwrap();
        assert_eq!(read(&paths).len(), 1);
        std::thread::scope(|scope| {
            for at in 10..18 {
                let paths = &paths;
                scope.spawn(move || keep(paths, &ended(at)));
            }
        });
        let kept: Vec<u64> = read(&paths).iter().filter_map(|last| last.ended_unix_us).collect();
        assert_eq!(kept, [17, 16, 15, 14, 13, 12, 11, 10, 5]);
        assert!(dir.join("note.txt").exists());
    }

    /// Without a place to write, nothing happens.
    #[test]
    fn no_folder_is_no_trouble() {
        let data = tempfile::tempdir().unwrap();
        let paths = Paths::below(&data.path().join("missing"));
        keep(&paths, &ended(1));
        assert!(read(&paths).is_empty() && !data.path().join("missing").exists());
    }
}
