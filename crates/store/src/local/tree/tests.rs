//! Trees read and written on real file systems.
