//! Conformance suites, reference models and fault wrappers. A dev-dependency only.
