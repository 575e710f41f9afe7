//! A little feedback without instrumentation: a target notes what it saw (an outcome, a state it reached), and the
//! runner keeps an input that showed something for the first time.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Notes of one run beyond this number are dropped.
const NOTES_MAX: usize = 256;

thread_local! {
    static NOTES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Notes that the input at hand led to `seen`. Use few different values: each first one keeps an input.
pub fn note(seen: impl Hash) {
    let mut hasher = DefaultHasher::new();
    seen.hash(&mut hasher);
    NOTES.with_borrow_mut(|notes| {
        if notes.len() < NOTES_MAX {
            notes.push(hasher.finish());
        }
    });
}

/// Takes the notes made on this thread since the last call.
pub fn take() -> Vec<u64> {
    NOTES.take()
}
