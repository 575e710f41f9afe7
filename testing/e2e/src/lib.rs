//! Harness of the end-to-end tests: hosts made of network namespaces, a real `sshd` on each, packet counters and
//! captures, and the real `dray` run in them with a time limit.
//!
//! It knows `dray` only by its command line, its exit codes and its files, as a user does, and it believes outside
//! witnesses (`cmp`, `b3sum`, nft counters, `/proc`) before `dray` itself. Tests need root for the namespaces; without
//! it they print `SKIP` and pass, unless `CI=true` or `DRAY_CI=1`, where a skip is a failure.
//!
//! Everything here panics when the surroundings fail it: this code runs in tests only, and there a panic is the report.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::missing_panics_doc
)]

pub mod actions;
pub mod capture;
pub mod chaos;
mod connections;
pub mod counters;
pub mod daemon;
pub mod data;
pub mod events;
pub mod gate;
pub mod inplace;
mod janitor;
pub mod lab;
pub mod live;
pub mod power;
pub mod process;
pub mod rewrite;
pub mod sshd;
pub mod sweep;
pub mod thin;
pub mod twins;
pub mod versions;
pub mod view;

pub use lab::{Host, Lab};
pub use process::{Outcome, Program, Running};
