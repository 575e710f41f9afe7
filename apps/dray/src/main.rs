//! The command `dray`: parse, call, print.

mod arguments;
mod demo;
mod explain;
mod manual;
mod output;
mod pasted;
mod run;
mod units;
mod usage;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
