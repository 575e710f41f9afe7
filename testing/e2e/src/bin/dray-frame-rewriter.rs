//! Runs the far end of a copy and alters what it sends: `dray-frame-rewriter LIE PROGRAM ARG…`. Test support only.
#![allow(clippy::print_stderr)]

use std::process::ExitCode;

use dray_e2e::rewrite;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let lie = args.next().unwrap_or_default().to_string_lossy().parse();
    let result = match lie {
        Ok(lie) => rewrite::run(lie, &args.collect::<Vec<_>>()).map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    result.unwrap_or_else(|error| {
        eprintln!("dray-frame-rewriter: {error}");
        ExitCode::from(125)
    })
}
