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

use std::io::Write;

fn main() {
    let code = run::main();
    // Whoever cannot take the last of it was told by then; a write that fails again has nobody to tell.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // Threads may still be in the middle of a handshake: handlers that run at exit take the locks of the cryptography away
    // from under them, and it aborts.
    signal_hook::low_level::exit(code.into());
}
