//! What decides whether and how large a test runs: privileges, tools, `CI`, `DRAY_CI`, `DRAY_E2E_FULL`, and the lock
//! that keeps measurements apart from other load.

use std::path::{Path, PathBuf};

/// Held while a lab stands. Labs that measure hold it alone; all others share it.
pub use dray_lab::Turn;

/// System programs the harness calls.
const TOOLS: [&str; 19] = [
    "ip",
    "nft",
    "tc",
    "ssh",
    "ssh-keygen",
    "sshd",
    "b3sum",
    "cmp",
    "setpriv",
    "chrt",
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "filefrag",
    "losetup",
    "unshare",
    "ss",
    "mount",
    "umount",
];

/// Says why the lab cannot run here, if it cannot. With `CI=true` or `DRAY_CI=1` that is a failure.
pub fn can_run() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        Some("network namespaces need root".to_owned())
    } else {
        TOOLS.iter().find(|tool| find_tool(tool).is_none()).map(|tool| format!("{tool} is not installed"))
    };
    reason.is_none_or(|reason| skip(&reason))
}

/// Says why a test that needs `tool` cannot run here, if it cannot. With `CI=true` or `DRAY_CI=1` that is a failure.
pub fn has_tool(tool: &str) -> bool {
    find_tool(tool).is_some() || skip(&format!("{tool} is not installed"))
}

/// A file of the project, from its root: that of the tree that the tests run in, which need not be the one where they were built.
pub fn project_file(path: &str) -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).join("../..").join(path)
}

/// Says that this test does not run, and why. With `CI=true` or `DRAY_CI=1` that is a failure.
pub(crate) fn skip(reason: &str) -> bool {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true")
        || std::env::var("DRAY_CI").is_ok_and(|value| value == "1");
    assert!(!in_ci, "{test} cannot run, and a skip counts as a failure in CI: {reason}");
    dray_lab::say_skip(&test, reason);
    false
}

/// Where `tool` is, looked for in `PATH` and the system directories that a user's `PATH` may lack.
pub fn find_tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(tool)).find(|candidate| candidate.is_file())
}

/// True if `DRAY_E2E_FULL=1` asks for the sizes and repetitions of the acceptance list instead of those for CI.
pub fn is_full() -> bool {
    std::env::var("DRAY_E2E_FULL").is_ok_and(|value| value == "1")
}

/// `small` in CI, `full` with `DRAY_E2E_FULL=1`.
pub fn sized(small: u64, full: u64) -> u64 {
    if is_full() { full } else { small }
}

/// The `dray` under test: `$DRAY_BIN`, or the release binary beside the test's own build.
pub fn dray_binary() -> PathBuf {
    binary("dray", "DRAY_BIN")
}

/// The holder that lies: `$DRAY_LIAR_BIN`, or the release binary beside the test's own build.
pub fn liar_binary() -> PathBuf {
    binary("dray-liar", "DRAY_LIAR_BIN")
}

fn binary(name: &str, variable: &str) -> PathBuf {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => {
            // <target>/<profile>/deps/<test>
            let test = std::env::current_exe().expect("path of the test");
            test.ancestors().nth(3).unwrap_or(Path::new("/")).join("release").join(name)
        }
    };
    assert!(
        path.is_file(),
        "no {name} at {}: run `cargo build --release -p {name}` or set {variable}",
        path.display()
    );
    path.canonicalize().expect("path of a binary")
}

/// Runs many cases of one test to the end and fails once, with every case that failed.
#[derive(Debug, Default)]
pub struct Cases {
    run: usize,
    failed: Vec<String>,
}

impl Cases {
    /// Runs one case; its panic is kept for the end.
    pub fn check(&mut self, case: &str, body: impl FnOnce()) {
        self.run += 1;
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            self.failed.push(case.to_owned());
        }
    }

    /// Panics if a case failed, or if fewer than `at_least` were run.
    #[track_caller]
    pub fn finish(self, at_least: usize) {
        assert!(self.run >= at_least, "{} cases were run, not {at_least}", self.run);
        assert!(
            self.failed.is_empty(),
            "{} of {} cases failed: {:#?}",
            self.failed.len(),
            self.run,
            self.failed
        );
    }
}
