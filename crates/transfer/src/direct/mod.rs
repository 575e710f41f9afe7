//! The direct plugin: several TCP + TLS 1.3 connections to one node whose key is known beforehand.
//!
//! Who dials whom is independent of which way the bytes flow: [`dial`] opens lanes to a holder, [`Listener`] accepts
//! connections and hands them to whoever serves or adopts them.

mod dial;
mod listen;

pub use dial::{DialConfig, Target, connect_any, dial, is_local, probe};
pub use listen::{ClearTokens, Listener};
