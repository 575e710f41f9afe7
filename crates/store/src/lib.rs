//! Storage plugins: where objects rest.
//!
//! One folder a plugin. `memory` keeps objects for the life of a process; `local` keeps them in a data directory
//! that any number of processes of one user share, and receives objects beside their destination. The layouts on
//! disk are in `docs/format/`. `index` is no store: it tells where chunks of files lie, as hints.

pub mod index;
pub mod local;
pub mod lock_file;
pub mod memory;
