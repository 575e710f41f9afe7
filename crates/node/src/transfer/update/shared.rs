//! Groups whose bytes lie together in another file of a file system that shares blocks: they are shared, not copied, and hashed as they lie there
//! then.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use dray_core::Result;
use dray_core::hash_tree::group_cv;
use dray_core::limits::GROUP_BYTES;
use dray_core::store::PartialObject;

use super::plan::{Origin, Parts};
use super::{OlderVersion, Transfer};
use crate::elsewhere::{Finder, Spot};

/// Groups that are shared together: one call of the kernel and few extents. Others wait for them meanwhile.
const RUN_GROUPS: usize = 64;

/// Groups to copy, those together that lie together.
pub(super) struct Runs {
    copies: Receiver<(u64, Parts)>,
    next: Option<(u64, Parts)>,
}

impl Runs {
    pub(super) fn of(copies: Receiver<(u64, Parts)>) -> Runs {
        Runs { copies, next: None }
    }
}

impl Iterator for Runs {
    type Item = Vec<(u64, Parts)>;

    /// Waits for the first, and takes what is there by then.
    fn next(&mut self) -> Option<Vec<(u64, Parts)>> {
        let first = self.next.take().or_else(|| self.copies.recv().ok())?;
        let mut run = vec![first];
        while run.len() < RUN_GROUPS
            && let Ok(next) = self.copies.try_recv()
        {
            if !run.last().is_some_and(|last| goes_on(last, &next)) {
                self.next = Some(next);
                break;
            }
            run.push(next);
        }
        Some(run)
    }
}

/// Whether the bytes of one group go on in the next one, in one file.
fn goes_on((group, parts): &(u64, Parts), (next, next_parts): &(u64, Parts)) -> bool {
    match (&parts[..], &next_parts[..]) {
        ([(len, origin)], [(_, next_origin)]) => {
            group + 1 == *next && origin.after(u64::from(*len)) == *next_origin
        }
        _ => false,
    }
}

impl OlderVersion {
    /// The file in which bytes lie, and where, if it is one.
    fn file_of(&self, origin: Origin) -> Option<(Arc<File>, u64)> {
        match origin {
            Origin::Old(offset) => self.file.as_ref().map(|(file, _)| (file.clone(), offset)),
            Origin::Elsewhere(Spot { by: Finder::Index, file, offset }) => {
                self.elsewhere.as_ref()?.opened(file).map(|(file, _)| (file, offset))
            }
            Origin::Elsewhere(Spot { by: Finder::Disk | Finder::Cached, file, offset }) => {
                self.disk.as_ref()?.file(file).map(|file| (file, offset))
            }
            Origin::New(_) | Origin::Missing => None,
        }
    }
}

impl Transfer {
    /// Puts groups together that lie together, by sharing their blocks where that can be.
    pub(super) fn fill_run(&self, old: &OlderVersion, run: &[(u64, Parts)]) -> Result<()> {
        let shared = self.share_run(old, run)?;
        run[shared..].iter().try_for_each(|(group, parts)| self.fill(old, *group, parts))
    }

    /// How many of the first groups of `run` were shared; the others are to be copied.
    fn share_run(&self, old: &OlderVersion, run: &[(u64, Parts)]) -> Result<usize> {
        let Some(delivery) = &old.delivery else { return Ok(0) };
        let (Some((first, parts)), Some((last, _))) = (run.first(), run.last()) else { return Ok(0) };
        let [(_, origin)] = parts[..] else { return Ok(0) };
        let Some((file, offset)) = old.file_of(origin) else { return Ok(0) };
        let end = last * GROUP_BYTES + self.geometry.group_bytes(*last) as u64;
        if !delivery.share_part(&file, offset, first * GROUP_BYTES..end)? {
            return Ok(0);
        }
        let counted = match origin {
            Origin::Elsewhere(_) => &self.other_bytes,
            _ => &self.local_bytes,
        };
        for (done, (group, _)) in run.iter().enumerate() {
            let mut bytes = vec![0; self.geometry.group_bytes(*group)];
            // From what was made, not from what it was made of: that may have changed in between.
            if delivery.read_data(group * GROUP_BYTES, &mut bytes).is_err() {
                // A block that cannot be read is not believed to be the older version's: what can be read of that is written, and the root
                // tells what is missing.
                return Ok(done);
            }
            counted.fetch_add(bytes.len() as u64, Ordering::Release);
            self.count_stored(*group, bytes.len(), group_cv(self.geometry, *group, &bytes))?;
        }
        Ok(run.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// What lies together is shared together, up to a bound; nothing else is, and nothing is lost.
    #[test]
    fn runs_end_where_files_do() {
        let (sender, copies) = sync_channel(200);
        let len = GROUP_BYTES as u32;
        let spot = |file, offset| Origin::Elsewhere(Spot { by: Finder::Disk, file, offset });
        let at = |group: u64| group * GROUP_BYTES;
        let mut jobs: Vec<(u64, Parts)> = vec![
            (0, vec![(len, Origin::Old(at(5)))]),
            (1, vec![(len, Origin::Old(at(6)))]),
            // A group is missing; then other bytes, another file, and a group of two parts.
            (3, vec![(len, Origin::Old(at(7)))]),
            (4, vec![(len, Origin::Old(at(9)))]),
            (5, vec![(len, spot(1, at(10)))]),
            (6, vec![(len, spot(1, at(11)))]),
            (7, vec![(len, spot(2, at(12)))]),
            (8, vec![(9, spot(2, at(13))), (len - 9, Origin::Old(0))]),
            (9, vec![(len, Origin::Old(u64::from(len) - 9))]),
        ];
        jobs.extend((10..100).map(|group| (group, vec![(len, spot(3, at(group)))])));
        jobs.iter().for_each(|job| sender.send(job.clone()).unwrap());
        drop(sender);
        let runs: Vec<Vec<(u64, Parts)>> = Runs::of(copies).collect();
        let lens: Vec<usize> = runs.iter().map(Vec::len).collect();
        assert_eq!(lens, [2, 1, 1, 2, 1, 1, 1, 64, 26]);
        assert_eq!(runs.concat(), jobs);
    }
}
