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

/// What this process has reserved for all of its connections together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// Memory reserved for packing data, bytes.
    pub packing_bytes: u64,
    /// Connections whose data is unpacked.
    pub unpacking_streams: u64,
    /// Memory of recipes of what is served, bytes; those that nobody wishes for are kept for a while.
    pub recipe_bytes: u64,
}

/// What is reserved now.
pub fn reserved() -> Reserved {
    let (packing, unpacking) = packing::reserved();
    let recipe_bytes = holder::recipe_bytes();
    Reserved { packing_bytes: packing as u64, unpacking_streams: unpacking as u64, recipe_bytes }
}
