//! The command `dray`: parse, call, print.

mod arguments;
mod aside;
mod daemon;
mod demo;
mod explain;
mod logs;
mod manual;
mod output;
mod pasted;
mod run;
mod sync;
mod units;
mod usage;

fn main() {
    let code = run::main();
    // Whatever prints has flushed. Nothing may be waited for here: a thread may be writing to somebody who does not read.
    // Threads may still be in the middle of a handshake: handlers that run at exit take the locks of the cryptography away
    // from under them, and it aborts.
    signal_hook::low_level::exit(code.into());
}
