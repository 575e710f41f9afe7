//! Automation: cargo xtask tidy.
fn main() {}
