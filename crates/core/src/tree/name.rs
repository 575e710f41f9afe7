//! Names of entries: one path component, any bytes, never one that leads elsewhere.

use std::fmt;

use crate::limits::NAME_BYTES_MAX;
use crate::{Error, ErrorKind, Result};

/// The name of an entry in its directory: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks `bytes`. `Protocol` if they are no name; the text says why and shows them.
    pub fn new(bytes: &[u8]) -> Result<Name> {
        let why = match bytes {
            b"" => "is empty",
            b"." | b".." => "means a directory",
            _ if bytes.len() > NAME_BYTES_MAX => "is longer than 255 bytes",
            _ if bytes.contains(&b'/') => "contains a slash",
            _ if bytes.contains(&0) => "contains NUL",
            _ => return Ok(Name(bytes.into())),
        };
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(NAME_BYTES_MAX)]).into_owned();
        Err(Error::new(ErrorKind::Protocol, format!("entry name {shown:?} {why}")))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}
