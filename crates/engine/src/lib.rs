//! Verbs of Drayman, sans-IO: the planner, the order of a search of the disk, and the session state machines. No socket, file, clock or randomness:
//! time and results come in as arguments, commands go out.

pub mod planner;
pub mod search;
pub mod session;
