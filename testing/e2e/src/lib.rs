//! End-to-end tests: real binaries, real peers, network namespaces.
