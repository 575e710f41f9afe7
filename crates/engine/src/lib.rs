//! Verbs of Drayman, sans-IO: the planner and the session state machines. No socket, file, clock or randomness.

pub mod planner;
