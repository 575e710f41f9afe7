//! A wake event: lets one thread end another's wait in `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An event descriptor. Signals before a wait are not lost.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// A new event, not signalled.
    pub fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The same event, for whoever may outlive this one.
    pub fn duplicate(&self) -> io::Result<Wake> {
        Ok(Wake(self.0.try_clone()?))
    }

    /// Ends the present wait, or the next one.
    pub fn signal(&self) {
        // It can only fail when the counter is full, and then it is signalled.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}
