//! The service as a library: configuration, plugins, engine, and what the command calls.
