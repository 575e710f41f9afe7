//! Tests that cannot run here say so.

use std::io::Write;

/// Says that the test of this thread does not run, and why: past the test harness, which keeps what a test that passes prints with
/// `eprintln!` to itself. `cargo xtask tests` counts and names what says so.
pub fn say_skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    // In one piece, on a line of its own: others write there, too. Nowhere is left to report that standard error is closed.
    let _ = std::io::stderr().write_all(format!("\nSKIP {test}: {reason}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What libtest captures of a test that passes nobody sees.
    #[test]
    fn a_skip_is_heard_though_the_test_passes() {
        const AGAIN: &str = "DRAY_TEST_SKIPS";
        if std::env::var_os(AGAIN).is_some() {
            return say_skip("a reason");
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "skip::tests::a_skip_is_heard_though_the_test_passes"]).env(AGAIN, "1");
        let output = again.output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(out.contains("1 passed"), "{out}");
        assert!(err.lines().any(|line| line.starts_with("SKIP ") && line.ends_with(": a reason")), "{err}");
    }
}
