//! Disks that do what a test needs of them: the kernel's loop driver makes a disk of a file, and a thread of this process serves that
//! file ([`Served`]), so that each read, write and flush of the disk passes by here.
//!
//! The kernel has no other means that is there everywhere: the device mapper's targets and null_blk are modules that many kernels lack, and
//! the rates that cgroups limit are one for reading and another for writing, which no disk has.

mod served;
mod slow;

pub use served::{Backing, Served};
pub use slow::{SlowDisk, Speed};
