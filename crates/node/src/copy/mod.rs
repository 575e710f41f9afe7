//! `dray cp`: one file to or from another host, with ssh for control (design decision 5).
//!
//! The two commands speak the peer protocol over the ssh channel. Data starts there at once; meanwhile both ends dial
//! each other, and when a direct connection comes up the ssh channel becomes the spare. The object's name is not
//! known until the end: bytes are vouched for by their origin, and both ends compare roots before the file gets its
//! name (design decision 3).

mod counted;
mod deploy;
mod direct;
mod far_end;
mod local;
mod origin;
mod pattern;
mod reach;
mod receive;
mod remote;
mod shared;
mod ssh;
mod ssh_words;
mod tree;
mod values;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use dray_core::{Error, ErrorKind, Result};

use crate::Delivered;

pub use reach::Confinement;
pub use remote::{UNASKED, refuse_remote};
pub use ssh::{AddressFamily, SshOptions, words};
pub use tree::{
    BasisUse, Chosen, Confirm, DirectoryWish, SharedTree, SyncBackup, SyncBasis, SyncOptions, TreeCopied,
    TreeOptions, TreeRequest, read_rule,
};
pub(crate) use tree::{LiveTrees, OwnDirectories, live_hello};

/// Files up to this size do not pay for a second connection.
const DIRECT_FROM_BYTES: u64 = 4 << 20;

/// Beginnings of what other programs take as a URI.
const SCHEMES: [&str; 8] = ["ssh", "scp", "sftp", "rsync", "file", "http", "https", "ftp"];

/// One end of a copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// A path here.
    Local(PathBuf),
    /// A path on another host.
    Remote {
        /// `user@host` or `host`, passed to ssh as it is.
        host: OsString,
        /// Path there, relative to the home directory; empty means that directory.
        path: PathBuf,
    },
}

impl Location {
    /// Parses what `scp` takes: `[user@]host:path` is remote unless a `/` stands before the first colon; `[addr]:path`
    /// keeps the colons of an IPv6 address together.
    pub fn parse(text: OsString) -> Result<Location> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "a place has no name")
                .advise("is a variable of the shell empty? The directory at hand is written ."));
        }
        let host_end = match bytes.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1) {
            start if bytes.get(start) == Some(&b'[') => match bytes.iter().position(|byte| *byte == b']') {
                Some(close) if bytes.get(close + 1) == Some(&b':') => Some((close + 1, start)),
                _ => None,
            },
            _ => bytes.iter().position(|byte| *byte == b':').map(|colon| (colon, usize::MAX)),
        };
        let Some((colon, bracket)) = host_end else { return Ok(Location::Local(text.into())) };
        let is_uri = SCHEMES.iter().any(|scheme| bytes[..colon] == *scheme.as_bytes());
        if is_uri && bytes[colon + 1..].starts_with(b"//") {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("{text:?}: a place is [user@]host:path, not a URI"),
            )
            .advise("write host:path; the port is an option"));
        }
        if colon == 0 || bytes[..colon].contains(&b'/') {
            return Ok(Location::Local(text.into()));
        }
        let mut host = bytes[..colon].to_vec();
        if bracket != usize::MAX {
            host.pop();
            host.remove(bracket);
        }
        if host.starts_with(b"-") || host.iter().any(|byte| *byte < b' ') {
            return Err(Error::new(ErrorKind::Usage, format!("{text:?} is no host name"))
                .advise("for a local file with a colon in its name, write ./name"));
        }
        if bytes.get(colon + 1) == Some(&b':') {
            let what = format!("{text:?}: host::module is a daemon of rsync's, to which dray does not speak");
            return Err(Error::new(ErrorKind::Usage, what).advise(
                "write host:path, which goes over ssh; a path that begins with a colon is written host:./:path, and an \
                 IPv6 address [address]:path",
            ));
        }
        Ok(Location::Remote {
            host: OsString::from_vec(host),
            path: OsString::from_vec(bytes[colon + 1..].to_vec()).into(),
        })
    }
}

/// The error of a `command` with two remote sides.
fn both_remote(command: &str) -> Error {
    Error::new(ErrorKind::Usage, "both sides are remote")
        .advise(format!(
            "run dray {command} on one of the two hosts, or copy here first; a local file with a colon in its name is written ./NAME"
        ))
}

/// How to copy.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// Keep modification time and permission bits (`-p`).
    pub preserve: bool,
    /// Send everything, whatever lies at the destination (`-W`).
    pub whole_file: bool,
    /// Look for parts of the file below this directory here (`--search`).
    pub search: Option<PathBuf>,
    /// Make data and name durable before reporting done.
    pub fsync: bool,
    /// Bytes a second that may be sent, over all paths together (`--bwlimit`).
    pub rate_bytes: Option<u64>,
    /// Compress what is sent to or from another host (`-z`); it then goes over ssh alone.
    pub compress: bool,
    /// What ssh is told.
    pub ssh: SshOptions,
}

/// What became of a wish to copy one file.
#[derive(Debug)]
pub enum Copied {
    /// The file is there.
    File(Delivered),
    /// It was a pattern that stands for several files, or a file whose metadata does not say how many bytes it has: they were copied
    /// as [`Node::copy_trees`] does it.
    Files(TreeCopied),
}

/// A wish to copy one file.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// From.
    pub source: Location,
    /// To; a directory means the source's name in it.
    pub destination: Location,
    /// How.
    pub options: CopyOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_as_scp_reads_them() {
        let remote = |host: &str, path: &str| Location::Remote { host: host.into(), path: path.into() };
        for (text, expected) in [
            ("a", Location::Local("a".into())),
            ("./a:b", Location::Local("./a:b".into())),
            ("/x/a:b", Location::Local("/x/a:b".into())),
            (":a", Location::Local(":a".into())),
            ("h:", remote("h", "")),
            ("u@h:a b", remote("u@h", "a b")),
            ("h:/x:y", remote("h", "/x:y")),
            ("u@[2001:db8::1]:f", remote("u@2001:db8::1", "f")),
            ("[::1]:f", remote("::1", "f")),
        ] {
            assert_eq!(Location::parse(text.into()).unwrap(), expected, "{text}");
        }
        for (text, words) in
            [("h::mod", "host::module"), ("u@h::", "host::module"), ("[::1]::x", "host::module")]
        {
            let error = Location::parse(text.into()).unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(words), "{text}: {error}");
            assert!(error.advice().unwrap().contains("host:./:path"), "{text}");
        }
        assert_eq!(Location::parse("".into()).unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(Location::parse("h:./:mod".into()).unwrap(), remote("h", "./:mod"));
        assert!(Location::parse("-oProxyCommand=x:f".into()).is_err());
        assert!(Location::parse("ssh://h/path".into()).unwrap_err().to_string().contains("host:path"));
        assert_eq!(Location::parse("ssh:/path".into()).unwrap(), remote("ssh", "/path"));
    }
}
