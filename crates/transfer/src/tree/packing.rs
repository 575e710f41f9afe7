//! Records that leave packed (ADR 28), once the receiver has said that they may: one stream for each path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dray_core::{Error, Result};

use crate::packing::Packer;

/// Whether what leaves over a path may be packed, as whoever hears the receiver knows it.
pub(super) type MayPack = Arc<AtomicBool>;

/// The stream of one path, of which the frames that leave there are packed.
#[derive(Default)]
pub(super) struct Packing {
    may: MayPack,
    /// Made when something is to be packed for the first time; stays, as what was packed is known to both ends.
    packer: Option<Packer>,
}

impl Packing {
    /// Packs while `may` is set.
    pub(super) fn while_set(may: MayPack) -> Packing {
        Packing { may, packer: None }
    }

    /// The receiver says whether data may be packed from here on.
    pub(super) fn permit(&self, may: bool) {
        self.may.store(may, Ordering::Release);
    }

    /// The receiver was waited for: for room, or for its next word while nothing was left to send over this
    /// path.
    pub(super) fn waited(&mut self, time: Duration) {
        if let Some(packer) = &mut self.packer {
            packer.waited(time);
        }
    }

    /// The number of its level; `None` if nothing was packed yet.
    #[cfg(test)]
    pub(super) fn level(&self) -> Option<i32> {
        self.packer.as_ref().map(Packer::level)
    }

    /// The body of the packed frame that is to leave instead of a data frame with `data`, and before anything else that is packed; `None` if the
    /// data frame is. After an error nothing more may leave that is packed.
    pub(super) fn pack(&mut self, data: &[u8]) -> Result<Option<&[u8]>> {
        if !self.may.load(Ordering::Acquire) {
            return Ok(None);
        }
        let failed = |error| Error::io("pack data", error);
        if self.packer.is_none() {
            self.packer = Packer::new().map_err(failed)?;
        }
        match &mut self.packer {
            Some(packer) => packer.pack(data).map_err(failed),
            None => Ok(None),
        }
    }
}

impl std::fmt::Debug for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packing({:?})", self.may)
    }
}
