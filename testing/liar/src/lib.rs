//! A holder that lies. It has the object, knows its secret, and is a holder like any other up to the bytes it sends: the real
//! listener, TLS and session serve it, and [`LyingChannel`] alters what they write, frame by frame. What receivers say can be written
//! down ([`Trace`]), also what they say to the real program that shares a directory ([`LyingHolder::standing_in`]).
//!
//! `main.rs` makes a process of it, which joins a ticket; tests of receivers use the parts in one process. Nothing of it is
//! shipped.

mod channel;
mod held;
mod holder;
mod lie;
mod relay;
mod trace;

pub use channel::LyingChannel;
pub use held::{WithRecipes, recipe_of};
pub use holder::LyingHolder;
pub use lie::{Liar, Lie};
pub use trace::Trace;
