//! Verbs of Drayman, sans-IO: the planner and the session state machines. No socket, file, clock or randomness:
//! time and results come in as arguments, commands go out.

pub mod planner;
pub mod session;
