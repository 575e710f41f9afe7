//! Transfer plugins and the transport under them.
//!
//! `transport` turns sockets and pipes into channels; `holder` answers requests over a channel; `lanes` asks them; `tree` moves
//! trees over one channel.
//! `direct` is the plugin over TCP + TLS 1.3 with several connections to one node; the ssh channel is a lane set with
//! one lane, fed by whoever started ssh. Bulk bytes move in blocking threads, one a connection (ADR 0001).

pub mod direct;
mod enough;
pub mod holder;
pub mod lanes;
mod packing;
pub mod recipe;
pub mod transport;
pub mod tree;
