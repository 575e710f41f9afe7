//! Transfer plugins and the transport under them.
