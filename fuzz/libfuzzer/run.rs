//! What the entries in `fuzz_targets/` share: looking up a target of dray-fuzz by its name.

/// Runs one input of the target called `name`.
pub fn run(name: &str, data: &[u8]) {
    let target = dray_fuzz::find(name).unwrap_or_else(|| panic!("no target {name}"));
    (target.run)(data);
    // Its feedback is for the stable runner; libFuzzer measures coverage itself.
    dray_fuzz::novelty::take();
}
