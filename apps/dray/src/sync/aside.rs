//! Directories beside DST: where what is replaced or deleted is kept, and where what is new may be found.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::Args;
use dray_node::{BasisUse, SyncBackup, SyncBasis};

/// What is said of them.
#[derive(Debug, Default, Args)]
pub(super) struct Aside {
    /// Keep what is replaced or deleted, beside its place under another name
    #[arg(short = 'b', long)]
    backup: bool,
    /// Keep it below DIR instead, which may be on any file system; a relative path begins in DST
    #[arg(long, value_name = "DIR")]
    backup_dir: Option<OsString>,
    /// What the names of backups end with: ~, or nothing with --backup-dir
    #[arg(long, value_name = "SUFFIX")]
    suffix: Option<OsString>,
    /// Make what is new in DST a hard link to the same file below DIR, if that has the same attributes, else a copy of it; several are asked in turn, and a
    /// relative path begins in DST
    #[arg(long, value_name = "DIR", conflicts_with_all = ["copy_dest", "compare_dest"])]
    link_dest: Vec<OsString>,
    /// The same, but always copy it
    #[arg(long, value_name = "DIR", conflicts_with = "compare_dest")]
    copy_dest: Vec<OsString>,
    /// The same, but leave out what has the same attributes there
    #[arg(long, value_name = "DIR")]
    compare_dest: Vec<OsString>,
    /// Bringing over to here: look for what may have most of a new file among the files below DIR, too, whatever their names are; the other end can tell
    /// what was found there
    #[arg(long, value_name = "DIR", conflicts_with_all = ["whole_file", "list_only"])]
    pub(super) search: Option<PathBuf>,
}

impl Aside {
    /// Where backups go, if there are any. As with rsync, --suffix alone asks for none.
    pub(super) fn backup(&self) -> Option<SyncBackup> {
        if !self.backup && self.backup_dir.is_none() {
            return None;
        }
        let usual: &[u8] = if self.backup_dir.is_some() { b"" } else { b"~" };
        let suffix = self.suffix.clone().map_or_else(|| usual.to_vec(), OsString::into_vec);
        Some(SyncBackup { directory: self.backup_dir.clone().map(OsString::into_vec), suffix })
    }

    /// Where what is new may be found.
    pub(super) fn basis(&self) -> Option<SyncBasis> {
        let all = [
            (BasisUse::Link, &self.link_dest),
            (BasisUse::Copy, &self.copy_dest),
            (BasisUse::Compare, &self.compare_dest),
        ];
        let (usage, places) = all.into_iter().find(|(_, places)| !places.is_empty())?;
        Some(SyncBasis { usage, places: places.iter().cloned().map(OsString::into_vec).collect() })
    }
}

/// The rule that rsync adds: backups that lie beside what they are of are not what SRC has not.
pub(super) fn protecting(backup: &SyncBackup) -> Option<Vec<u8>> {
    if backup.directory.is_some() {
        return None;
    }
    let mut rule = b"=-r *".to_vec();
    for byte in &backup.suffix {
        // It is no pattern.
        if b"*?[\\".contains(byte) {
            rule.push(b'\\');
        }
        rule.push(*byte);
    }
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rsync's habits: a directory asks for backups by itself, a suffix does not; and what is kept beside its place is protected.
    #[test]
    fn backups_are_asked_for_as_with_rsync() {
        let of = |backup, directory: Option<&str>, suffix: Option<&str>| {
            let (backup_dir, suffix) = (directory.map(Into::into), suffix.map(Into::into));
            let aside = Aside { backup, backup_dir, suffix, ..Aside::default() };
            aside.backup().map(|kept| (kept.directory.is_some(), String::from_utf8(kept.suffix).unwrap()))
        };
        assert_eq!(of(false, None, Some(".x")), None);
        assert_eq!(of(true, None, None), Some((false, "~".into())));
        assert_eq!(of(true, None, Some(".x")), Some((false, ".x".into())));
        assert_eq!(of(false, Some("d"), None), Some((true, String::new())));
        assert_eq!(of(true, Some("d"), Some(".x")), Some((true, ".x".into())));
        let rule = |directory: Option<&[u8]>, suffix: &[u8]| {
            protecting(&SyncBackup { directory: directory.map(<[u8]>::to_vec), suffix: suffix.to_vec() })
        };
        assert_eq!(rule(None, b"~").unwrap(), b"=-r *~");
        assert_eq!(rule(None, b"[a]").unwrap(), b"=-r *\\[a]");
        assert_eq!(rule(Some(b"d"), b"~"), None);
    }
}
