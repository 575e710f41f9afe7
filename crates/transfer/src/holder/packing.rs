//! Data that leaves packed, once the receiver has said that it may.

use std::time::Duration;

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::{Error, Result};

use super::{Failure, Server};
use crate::packing::Packer;

impl Server<'_> {
    /// The receiver says whether data may be packed from here on. What was packed stays known to both ends.
    pub(super) fn may_pack(&mut self, may: bool) -> Result<()> {
        self.may_pack = may;
        if may && self.packer.is_none() {
            self.packer = Packer::new().map_err(|error| Error::io("begin to pack", error))?;
        }
        Ok(())
    }

    /// The receiver was waited for: for room, or for its next word while nothing was left to send.
    pub(super) fn waited(&mut self, time: Duration) {
        if let Some(packer) = &mut self.packer {
            packer.waited(time);
        }
    }

    /// True if data is packed now.
    pub(super) fn packs(&self) -> bool {
        self.may_pack && self.packer.is_some()
    }

    /// Puts `data`, the next bytes of `request`, into what leaves next, packed where that is better.
    pub(super) fn push_data(&mut self, request: u32, data: &[u8]) -> Result<(), Failure> {
        if !self.push_packed(request, data)? {
            self.out.extend_from_slice(&FrameHead::new(FrameKind::Data, data.len(), request).encode());
            self.out.extend_from_slice(data);
        }
        Ok(())
    }

    /// Puts `data`, the next bytes of `request`, packed into what leaves next; false if it is better sent as it is.
    pub(super) fn push_packed(&mut self, request: u32, data: &[u8]) -> Result<bool, Failure> {
        let Some(packer) = self.packer.as_mut().filter(|_| self.may_pack) else { return Ok(false) };
        // What is half packed cannot be taken back: what follows would not be what the receiver unpacks.
        let packed = packer.pack(data).map_err(|error| Failure::Connection(Error::io("pack data", error)));
        let Some(body) = packed? else { return Ok(false) };
        self.out.extend_from_slice(&FrameHead::new(FrameKind::Packed, body.len(), request).encode());
        self.out.extend_from_slice(body);
        Ok(true)
    }
}
