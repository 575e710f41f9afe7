//! The targets, one file each: what is run, what must hold, and the inputs to begin with.

pub mod cbor;
pub mod code_fields;
pub mod delivery;
pub mod frames;
pub mod geometry;
pub mod hint;
pub mod message;
pub mod oid;
pub mod proof;
pub mod range_set;
pub mod recipe_node;
pub mod recipe_reader;
pub mod recover;
pub mod session_holder;
pub mod session_pair;
pub mod session_receiver;
pub mod store_record;
pub mod ticket;
pub mod tree;

mod object;

use dray_core::Error;

use crate::novelty;

/// Characters of the longest error text a peer or a user may cause: one clear line, not a page.
const ERROR_CHARS_MAX: usize = 2048;

/// A folder that vanishes with the value, in memory where there is such a place: the targets that need files write
/// many of them, and it is not the disk that is on trial.
fn temporary_folder() -> tempfile::TempDir {
    let in_memory = std::path::Path::new("/dev/shm");
    let made = if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() };
    made.expect("a temporary folder")
}

/// Checks that `error` is a line fit for a terminal (design 5: what failed, why, what to do) whatever the input was,
/// and notes it as an outcome.
fn assert_clear(error: &Error) {
    let text = format!("{error} {}", error.advice().unwrap_or(""));
    assert!(!error.what().is_empty(), "an error says what failed");
    assert!(text.chars().count() <= ERROR_CHARS_MAX, "error text of {} bytes", text.len());
    assert!(!text.chars().any(char::is_control), "control characters in an error: {text:?}");
    // Paths in front, digits, ids and quoted input differ from case to case and are no outcome of their own.
    let after_path = text.strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(_, rest)| rest);
    let plain = after_path.unwrap_or(&text).split('"').next().unwrap_or_default();
    let is_id =
        |word: &&str| word.len() >= 32 && word.trim_end_matches(':').chars().all(|c| c.is_ascii_hexdigit());
    let words = plain.split(' ').filter(|word| !is_id(word));
    let class: String = words.flat_map(str::chars).filter(|c| !c.is_ascii_digit()).collect();
    novelty::note(("error", class));
}
