//! The plugin against the conformance suite of sources: over TCP with TLS, with clear-text data, with the bytes of a
//! copy's origin, and over pipes as ssh gives them.

mod support;

use dray_core::source::Grade;
use dray_testkit::source_conformance;
use support::beds::{DirectBed, PipeBed};

#[test]
fn direct() {
    let bed = DirectBed { grade: Grade::Proven, lanes: 1, clear: false, knows_size: true };
    source_conformance::check(&bed);
}

/// The size is the holder's word until the bytes are proven.
#[test]
fn direct_of_unknown_size() {
    let bed = DirectBed { grade: Grade::Proven, lanes: 1, clear: false, knows_size: false };
    source_conformance::check(&bed);
}

#[test]
fn direct_with_several_lanes() {
    let bed = DirectBed { grade: Grade::Proven, lanes: 3, clear: false, knows_size: true };
    source_conformance::check(&bed);
}

#[test]
fn direct_with_clear_data() {
    let bed = DirectBed { grade: Grade::Proven, lanes: 2, clear: true, knows_size: true };
    source_conformance::check(&bed);
}

#[test]
fn direct_beside_ssh() {
    let bed = DirectBed { grade: Grade::Vouched, lanes: 2, clear: false, knows_size: true };
    source_conformance::check(&bed);
}

#[test]
fn pipe() {
    source_conformance::check(&PipeBed { grade: Grade::Vouched });
}

#[test]
fn pipe_of_proven_bytes() {
    source_conformance::check(&PipeBed { grade: Grade::Proven });
}
