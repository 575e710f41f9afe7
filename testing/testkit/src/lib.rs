//! Conformance suites, reference models and fault wrappers. A dev-dependency only.

pub mod planner_model;
