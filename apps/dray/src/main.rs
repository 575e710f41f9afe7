//! The command `dray`: parse, call, print.

mod arguments;
mod demo;
mod output;
mod run;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
