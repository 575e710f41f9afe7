//! Directories that are shared as they are, by ticket ([ADR 29]): `dray put DIR`, `dray get TICKET -o DIR`, `dray sync -a TICKET DIR`.
//!
//! The receiver opens the directory over a direct connection, shows its right as for an object, and asks for a tree as the near end of a
//! copy over ssh does. Neither side trusts the other: who gives is as confined as `dray serve --stdio --only DIR --read-only`, and who
//! takes makes nothing that has powers, and tells no hash of what it has.
//!
//! [ADR 29]: ../../../../../../docs/adr/0029-directories-by-ticket.md

mod places;
mod serving;
mod sharing;
mod taking;
#[cfg(test)]
mod tests;
mod watched;
mod wish;

pub(crate) use serving::{LiveTrees, OwnDirectories};
pub use sharing::SharedTree;
pub(crate) use sharing::live_hello;
pub use taking::DirectoryWish;
