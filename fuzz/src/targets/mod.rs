//! The targets, one file each: what is run, what must hold, and the inputs to begin with.

pub mod cbor;
pub mod frames;
pub mod geometry;
pub mod hint;
pub mod message;
pub mod oid;
pub mod proof;
pub mod range_set;
pub mod recover;
pub mod session_holder;
pub mod session_pair;
pub mod session_receiver;
pub mod ticket;

mod object;

use dray_core::Error;

use crate::novelty;

/// Characters of the longest error text a peer or a user may cause: one clear line, not a page.
const ERROR_CHARS_MAX: usize = 2048;

/// Checks that `error` is a line fit for a terminal (design 5: what failed, why, what to do) whatever the input was,
/// and notes it as an outcome.
fn assert_clear(error: &Error) {
    let text = format!("{error} {}", error.advice().unwrap_or(""));
    assert!(!error.what().is_empty(), "an error says what failed");
    assert!(text.chars().count() <= ERROR_CHARS_MAX, "error text of {} bytes", text.len());
    assert!(!text.chars().any(char::is_control), "control characters in an error: {text:?}");
    // Digits and quoted input differ from case to case and are no outcome of their own.
    let class: String = text.chars().filter(|c| !c.is_ascii_digit()).take_while(|c| *c != '"').collect();
    novelty::note(("error", class));
}
