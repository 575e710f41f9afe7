//! Rules that files in the destination had before the run changed anything: kept until the end, when those files may have been replaced or deleted.

use std::rc::Rc;

use dray_core::limits::SYNC_MERGES_BYTES_MAX;
use dray_core::{Error, ErrorKind, Result};

use super::super::directory::Directory;
use super::super::exclude::Excludes;

/// A file of rules of a directory in the destination, behind those of the directories above it.
#[derive(Debug)]
pub(in super::super) struct Standing {
    above: Option<Rc<Standing>>,
    /// Bytes of all texts up to this one.
    bytes: usize,
    /// Bytes of the path of its directory.
    pub(super) path_len: usize,
    /// Which of the files of rules it is.
    pub(super) index: usize,
    pub(super) text: Vec<u8>,
}

impl Standing {
    /// What stands in `directory`, whose path has so many bytes, behind what stands `above`; an error if it cannot be read, or is too much.
    pub(super) fn read(
        rules: &Excludes,
        directory: &Directory,
        path_len: usize,
        above: Option<&Rc<Standing>>,
    ) -> Result<Option<Rc<Standing>>> {
        let mut all = above.cloned();
        for (index, merge) in rules.merges().into_iter().enumerate() {
            let Some(text) = merge.text(directory)? else { continue };
            let bytes = all.as_ref().map_or(0, |above| above.bytes) + text.len();
            if bytes > SYNC_MERGES_BYTES_MAX {
                let what = format!(
                    "the files of rules in it and above it have more than {SYNC_MERGES_BYTES_MAX} bytes"
                );
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            all = Some(Rc::new(Standing { above: all, bytes, path_len, index, text }));
        }
        Ok(all)
    }

    /// Bytes of memory that those of `this` take which are not those of `above`.
    pub(in super::super) fn bytes_beyond(this: Option<&Rc<Standing>>, above: Option<&Rc<Standing>>) -> usize {
        let bytes = |of: Option<&Rc<Standing>>| of.map_or(0, |standing| standing.bytes);
        bytes(this).saturating_sub(bytes(above))
    }

    /// From the uppermost on.
    pub(super) fn all(last: Option<&Rc<Standing>>) -> Vec<Rc<Standing>> {
        let mut all: Vec<_> = std::iter::successors(last.cloned(), |one| one.above.clone()).collect();
        all.reverse();
        all
    }
}
