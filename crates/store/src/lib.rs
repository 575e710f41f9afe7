//! Storage plugins: where objects rest.
