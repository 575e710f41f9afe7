//! Tests that mount something: once more in a namespace of their own.

use std::path::Path;
use std::process::Command;

/// Runs the test `name` again, alone, after the shell has done `mount` in mounts of its own; there the variable `variable` has the path
/// `place`. A machine that lets nobody mount skips it aloud.
pub(in crate::local::tree) fn run_with_mounts(name: &str, (variable, place): (&str, &Path), mount: &str) {
    let run = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", script]);
        unshare.arg(std::env::current_exe().unwrap()).env(variable, place).output()
    };
    if !run(mount).is_ok_and(|output| output.status.success()) {
        return dray_testkit::say_skip(
            "this machine lets nobody mount: mounts below a destination are not tested",
        );
    }
    let output = run(&format!("{mount} && exec \"$0\" --exact {name} --nocapture")).unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
