//! The transport of the local API, server side: HTTP/1.1 on a Unix socket ([`Server`]), and file descriptors on its sibling
//! socket ([`Descriptors`]). It knows nothing of objects: whoever starts it answers the requests, in blocking code on
//! threads. Everything async of this project is in this package, behind an interface that has none
//! ([ADR 17](../../../docs/adr/0017-async-at-the-edge.md)).
//!
//! Both sockets serve the user who runs them and nobody else: the other end's user is asked of the kernel.

mod answer;
mod connection;
mod descriptors;
mod events;
mod patience;
mod refusal;
mod server;

pub use answer::{Answer, Method, Question};
pub use descriptors::{Descriptors, Nonce};
pub use events::{EventReceiver, EventSender, events};
pub use server::{Answering, Server};
