//! Conformance suites, reference models and fault wrappers. A dev-dependency only.
//!
//! One suite a plugin trait; a plugin's own test hands over a way to make one and calls it.

pub mod cddl;
pub mod home;
pub mod partial_conformance;
pub mod planner_model;
pub mod sample;
pub mod sim;
mod skip;
pub mod source_conformance;
pub mod splitmix;
pub mod store_conformance;

pub use skip::say_skip;
