//! Fuzz targets: one function for each thing that reads bytes from strangers, the table that names them, and a
//! runner that drives them on a stable compiler. `fuzz/libfuzzer` drives the same functions with coverage feedback.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a target says that it found a bug by panicking; none of this ships"
)]

pub mod input;
pub mod item;
pub mod mutate;
pub mod novelty;
pub mod rng;
pub mod runner;
pub mod targets;

use targets::{
    cbor, code_fields, delivery, frames, geometry, hint, message, oid, proof, range_set, recipe_node,
    recipe_reader, recover, session_holder, session_pair, session_receiver, store_record, ticket, tree,
};

/// A named input, written to `fuzz/corpus/<target>/<name>`.
pub type Seed = (String, Vec<u8>);

/// What the inputs of a target look like, so that the mutator can edit them without only breaking them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Numbers and choices read front to back ([`input::Input`]).
    Choices,
    /// Text; the words are those the parser looks for.
    Text(&'static [&'static str]),
    /// One CBOR item after this many bytes of something else.
    Cbor {
        /// Bytes in front of the item.
        skip: usize,
    },
    /// Frames of the peer protocol, most of them with a CBOR body.
    Frames,
}

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name on the command line and of the corpus folder.
    pub name: &'static str,
    /// Runs one input; panics if it found a bug.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Seed>,
    /// How to mutate them.
    pub shape: Shape,
    /// How many times longer an input takes than one that only decodes; so many times fewer are run.
    pub cost: u64,
}

const fn target(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Seed>, shape: Shape) -> Target {
    Target { name, run, seeds, shape, cost: 1 }
}

impl Target {
    const fn cost(self, cost: u64) -> Target {
        Target { cost, ..self }
    }
}

/// Every target. A new one is its file in `targets/`, its line here, its corpus (`--write-corpus`) and its file in
/// `libfuzzer/fuzz_targets/`; `tests/corpus.rs` notices what was forgotten.
pub const TARGETS: &[Target] = &[
    target("cbor", cbor::target, cbor::seeds, Shape::Cbor { skip: 0 }),
    target("code-fields", code_fields::target, code_fields::seeds, Shape::Choices),
    target("delivery", delivery::target, delivery::seeds, Shape::Choices).cost(25),
    target("frames", frames::target, frames::seeds, Shape::Frames),
    target("geometry", geometry::target, geometry::seeds, Shape::Choices),
    target("hint", hint::target, hint::seeds, Shape::Text(hint::WORDS)),
    target("message", message::target, message::seeds, Shape::Cbor { skip: 0 }),
    target("oid", oid::target, oid::seeds, Shape::Text(oid::WORDS)),
    target("proof", proof::target, proof::seeds, Shape::Choices),
    target("range-set", range_set::target, range_set::seeds, Shape::Choices),
    target("recipe-node", recipe_node::node_target, recipe_node::node_seeds, Shape::Choices),
    target("recipe-reader", recipe_reader::target, recipe_reader::seeds, Shape::Choices).cost(5),
    target("tree-entry", tree::entry_target, tree::entry_seeds, Shape::Cbor { skip: 0 }),
    target("tree-node", tree::node_target, tree::node_seeds, Shape::Cbor { skip: 0 }).cost(5),
    target("tree-records", tree::records_target, tree::records_seeds, Shape::Choices),
    target("recipe-root", recipe_node::root_target, recipe_node::root_seeds, Shape::Cbor { skip: 0 }),
    target("recover", recover::target, recover::seeds, Shape::Choices),
    target("session-holder", session_holder::target, session_holder::seeds, Shape::Choices),
    target("session-pair", session_pair::target, session_pair::seeds, Shape::Choices),
    target("session-receiver", session_receiver::target, session_receiver::seeds, Shape::Choices),
    target("store-record", store_record::target, store_record::seeds, Shape::Cbor { skip: 1 }).cost(5),
    target("ticket-body", ticket::body_target, ticket::body_seeds, Shape::Cbor { skip: 0 }),
    target("ticket-text", ticket::text_target, ticket::text_seeds, Shape::Text(ticket::WORDS)),
];

/// The target called `name`.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
