//! Control frames on a stream of their own, beside clear-text data.

use std::io;
use std::time::Duration;

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::{Error, ErrorKind, Result};

use crate::transport::{Channel, Security, Wake};

/// The separate control stream of a channel, as a channel to read from.
pub(super) struct ControlSide<'a>(pub(super) &'a mut dyn Channel);

impl Channel for ControlSide<'_> {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.0.try_read_control(out)
    }
    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.write_all(data)
    }
    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.0.wait(wake, timeout)
    }
    fn security(&self) -> Option<Security> {
        self.0.security()
    }
}

/// Nothing else travels there.
pub(super) fn only_control(head: FrameHead) -> Result<()> {
    if head.kind == FrameKind::Control && head.request == 0 {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::Protocol, format!("{:?} frame on the control connection", head.kind)))
    }
}
