//! Chunkers: where an object is cut into the chunks a recipe lists (D24, design 4). Cut points are wire format: two
//! ends that cut the same bytes with the same [`Profile`] must get the same chunks, whatever machine, release or
//! pattern of writes.
//!
//! An algorithm says where the first chunk of a slice ends; the push adapter around it holds back what may still belong to
//! the chunk under way, so that the cuts do not depend on how the bytes were handed in.

use std::fmt;

mod fastcdc;
mod fixed;
mod profile;
mod push;
#[cfg(test)]
mod tests;

pub(crate) use profile::WireProfile;
pub use profile::{Algorithm, Profile};

/// Cuts one object into chunks. Made by [`Profile::chunker`]; one for each object, and ready for the next one after
/// [`Chunker::finish`].
pub trait Chunker: Send + fmt::Debug {
    /// Takes the next bytes of the object, any number of them, and hands every chunk that is complete now to `chunk`, in
    /// order and whole: its length is the boundary, its bytes are there to be hashed without keeping them elsewhere.
    /// Holds back less than one largest chunk.
    fn push(&mut self, data: &[u8], chunk: &mut dyn FnMut(&[u8]));

    /// Ends the object: hands over what is left, as one chunk or more. An empty object has no chunk.
    fn finish(&mut self, chunk: &mut dyn FnMut(&[u8]));
}

/// The decision of an algorithm, on bytes that lie together.
trait Cut: Send + fmt::Debug {
    /// Bytes of the largest chunk.
    fn bytes_max(&self) -> usize;

    /// Length of the first chunk of `data`, which is not empty and holds either [`Cut::bytes_max`] bytes or all that is
    /// left of the object. At least 1, at most `data.len()`, at most [`Cut::bytes_max`]; bytes beyond the chunk do
    /// not change it.
    fn first(&self, data: &[u8]) -> usize;
}
