//! What tests of `dray sync --inplace` have in common: runs of which each write is seen, or cut off at one, and what such a run leaves.

use std::path::{Path, PathBuf};

use crate::process::Program;
use crate::{Host, data, gate};

/// Runs `dray sync` under strace, which writes down what was written to `path`, or kills it at the `kill`-th write there.
pub fn traced<'a>(host: &'a Host, path: &Path, log: &Path, kill: Option<u32>) -> Program<'a> {
    let program = host.program("strace").args([
        "-f",
        "-qq",
        "-e",
        "trace=pwrite64,write,pwritev,copy_file_range,sendfile",
    ]);
    let program = match kill {
        Some(number) => program.arg("-e").arg(format!("inject=pwrite64:signal=KILL:when={number}")),
        None => program,
    };
    program.arg("-P").arg(path).arg("-o").arg(log).arg(gate::dray_binary()).arg("sync")
}

/// The one name that a run left.
pub fn left(copy: &Path) -> PathBuf {
    let left: Vec<_> = data::names(copy).into_iter().filter(|name| data::is_ours(name)).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    copy.join(&left[0])
}
