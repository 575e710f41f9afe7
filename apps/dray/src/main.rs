//! The command `dray`: parse, call, print.

mod arguments;
mod daemon;
mod demo;
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
