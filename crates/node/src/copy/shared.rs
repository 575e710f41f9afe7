//! Copying one file within a file system that lets files share their blocks: nothing is read to be written again.

use std::fs::File;
use std::path::Path;

use dray_core::{Error, ErrorKind, Result};
use dray_store::local::hash_file;
use rustix::fs::{Mode, OFlags, ioctl_ficlone};

use super::{CopyOptions, Location, TreeOptions, TreeRequest};
use crate::{Delivered, Event, Node, Observer, Stop};

impl Node {
    /// Copies `source` by sharing its blocks; `None` if the file system of the destination cannot. The copy is a snapshot, which nobody
    /// else writes to, so its name is that of the bytes the source had.
    pub(super) fn copy_shared(
        &self,
        source: &Path,
        destination: &Path,
        options: &CopyOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Option<Delivered>> {
        let target = match (destination.is_dir(), source.file_name()) {
            (true, Some(name)) => destination.join(name),
            _ => destination.to_owned(),
        };
        if options.rate_bytes.is_some() || !can_share(source, &target) {
            return Ok(None);
        }
        let request = TreeRequest {
            sources: vec![Location::Local(source.to_owned())],
            destination: Location::Local(destination.to_owned()),
            options: TreeOptions {
                recursive: false,
                preserve: options.preserve,
                archive: false,
                numeric_ids: false,
                one_file_system: false,
                excludes: Vec::new(),
                chmod: None,
                chown: None,
                dry_run: false,
                rate_bytes: None,
                compress: false,
                whole_file: true,
                fsync: options.fsync,
                sync: None,
                ssh: options.ssh.clone(),
            },
        };
        let copied = self.copy_trees(&request, &Failures(observer), stop)?;
        if copied.failed > 0 {
            // What it was has been told.
            return Err(Error::new(ErrorKind::Partial, format!("{target:?} is not all that was asked for"))
                .advise("what could not be kept is named above"));
        }
        let total_bytes = std::fs::metadata(&target).map(|found| found.len()).ok();
        let progress = |done_bytes| observer.event(Event::Hashing { done_bytes, total_bytes });
        let (oid, size_bytes) = hash_file(&target, &progress, &|| stop.is_set())?;
        Ok(Some(Delivered { oid, size_bytes, path: Some(target), resumed_bytes: 0 }))
    }
}

/// Whether a new file beside `target` can share the blocks of `source`.
fn can_share(source: &Path, target: &Path) -> bool {
    if !std::fs::metadata(source).is_ok_and(|found| found.is_file() && found.len() > 0) {
        return false;
    }
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let Ok(source) = File::open(source) else { return false };
    rustix::fs::open(parent, flags, Mode::RUSR | Mode::WUSR)
        .is_ok_and(|new| ioctl_ficlone(&new, &source).is_ok())
}

/// Of a copy of one file that is over at once only failures are worth telling.
struct Failures<'a>(&'a dyn Observer);

impl Observer for Failures<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::EntryFailed { .. } | Event::Note(_)) {
            self.0.event(event);
        }
    }
}
