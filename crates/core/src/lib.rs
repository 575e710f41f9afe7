//! Nouns of Drayman: names, the hash tree, tickets, rights, messages, limits, errors, and the traits every
//! storage and transfer plugin implements.
//!
//! Nothing in this crate touches a socket, a file, a clock or a source of randomness: whatever it needs of the
//! outside is an argument. That is what lets the planner, the daemon, the tests and the simulator share it.

pub mod block_mask;
pub mod block_sum;
pub mod cbor;
pub mod chunker;
pub mod code_field;
pub mod error;
pub mod frame;
pub mod hash_tree;
pub mod hint;
pub mod limits;
pub mod message;
pub mod node_id;
pub mod oid;
pub mod permit;
pub mod range;
pub mod recipe;
pub mod rights;
pub mod source;
pub mod store;
pub mod text;
pub mod ticket;
pub mod tree;

pub use error::{Error, ErrorKind, Result};
pub use node_id::NodeId;
pub use oid::Oid;
