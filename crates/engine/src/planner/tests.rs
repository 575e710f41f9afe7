//! Tests of the planner
