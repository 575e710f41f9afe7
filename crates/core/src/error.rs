//! The one error type: a kind that decides the exit code, whether trying again may help, what failed, why, and
//! what to do about it.

use std::fmt;

/// Shorthand used across the workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of failure it is. The numbers are wire format (`docs/protocol/peer.md`), so they are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A bug of ours, or an I/O failure that fits nothing below.
    Internal,
    /// The caller asked for something malformed.
    Usage,
    /// No such object, file or entry.
    NotFound,
    /// Bytes arrived that are not the bytes named: a lie or damage.
    VerificationFailed,
    /// The source's data is no longer what was offered. Not a lie.
    Changed,
    /// The holder's own copy is damaged, and it says so.
    Damaged,
    /// Nobody answers at the address.
    Unreachable,
    /// Somebody answered and then made no progress.
    TimedOut,
    /// The other side, or a policy here, says no.
    Refused,
    /// No room where the bytes should rest.
    NoSpace,
    /// A message that breaks the protocol.
    Protocol,
    /// A version or a mandatory feature that this program does not have.
    Unsupported,
    /// Stopped by a signal or a cancellation; may be resumed.
    Interrupted,
    /// Some entries failed and the rest is done.
    Partial,
}

impl ErrorKind {
    const ALL: [(ErrorKind, u8); 14] = [
        (ErrorKind::Internal, 1),
        (ErrorKind::Usage, 2),
        (ErrorKind::NotFound, 3),
        (ErrorKind::VerificationFailed, 4),
        (ErrorKind::Changed, 5),
        (ErrorKind::Damaged, 6),
        (ErrorKind::Unreachable, 7),
        (ErrorKind::TimedOut, 8),
        (ErrorKind::Refused, 9),
        (ErrorKind::NoSpace, 10),
        (ErrorKind::Protocol, 11),
        (ErrorKind::Unsupported, 12),
        (ErrorKind::Interrupted, 13),
        (ErrorKind::Partial, 14),
    ];

    /// The number this kind has on the wire.
    pub fn wire_code(self) -> u8 {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or(1, |(_, code)| *code)
    }

    /// The kind a peer means; a number from the future is `Internal`.
    pub fn from_wire_code(code: u8) -> ErrorKind {
        Self::ALL.iter().find(|(_, known)| *known == code).map_or(ErrorKind::Internal, |(kind, _)| *kind)
    }

    /// The exit code of the command (`dray --help` lists them).
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Internal => 1,
            ErrorKind::Usage => 2,
            ErrorKind::NotFound => 3,
            ErrorKind::VerificationFailed | ErrorKind::Changed | ErrorKind::Damaged => 4,
            ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Protocol => 5,
            ErrorKind::Refused | ErrorKind::Unsupported => 6,
            ErrorKind::NoSpace => 7,
            ErrorKind::Partial => 8,
            ErrorKind::Interrupted => 130,
        }
    }

    /// The kind that best fits an exit code of another `dray`; `None` for 0 and codes that it does not use.
    pub fn from_exit_code(code: i32) -> Option<ErrorKind> {
        match code {
            1 => Some(ErrorKind::Internal),
            2 => Some(ErrorKind::Usage),
            3 => Some(ErrorKind::NotFound),
            4 => Some(ErrorKind::VerificationFailed),
            5 => Some(ErrorKind::Unreachable),
            6 => Some(ErrorKind::Refused),
            7 => Some(ErrorKind::NoSpace),
            8 => Some(ErrorKind::Partial),
            130 => Some(ErrorKind::Interrupted),
            _ => None,
        }
    }

    /// The kind that has this [`ErrorKind::word`], if there is one.
    pub fn from_word(word: &str) -> Option<ErrorKind> {
        Self::ALL.iter().map(|(kind, _)| *kind).find(|kind| kind.word() == word)
    }

    /// A stable word for scripts (`--json`).
    pub fn word(self) -> &'static str {
        match self {
            ErrorKind::Internal => "internal",
            ErrorKind::Usage => "usage",
            ErrorKind::NotFound => "not-found",
            ErrorKind::VerificationFailed => "verification-failed",
            ErrorKind::Changed => "changed",
            ErrorKind::Damaged => "damaged",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::TimedOut => "timed-out",
            ErrorKind::Refused => "refused",
            ErrorKind::NoSpace => "no-space",
            ErrorKind::Protocol => "protocol",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Interrupted => "interrupted",
            ErrorKind::Partial => "partial",
        }
    }
}

/// A failure: `what` failed, because of `cause`, and `advice` says what to do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    retryable: bool,
    what: String,
    advice: Option<String>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `what` says in one clause what failed and why.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        let retryable = matches!(kind, ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Interrupted);
        Error { kind, retryable, what: what.into(), advice: None, cause: None }
    }

    /// An I/O error, its kind taken from the operating system's.
    pub fn io(what: impl Into<String>, error: std::io::Error) -> Error {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::InvalidInput | Io::InvalidFilename => ErrorKind::Usage,
            Io::PermissionDenied | Io::ReadOnlyFilesystem | Io::NotADirectory | Io::IsADirectory => {
                ErrorKind::Refused
            }
            Io::StorageFull | Io::QuotaExceeded => ErrorKind::NoSpace,
            // However much of the disk is freed.
            Io::FileTooLarge => ErrorKind::Unsupported,
            Io::ConnectionRefused
            | Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::BrokenPipe
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::NetworkDown
            | Io::NotConnected
            | Io::AddrNotAvailable
            | Io::UnexpectedEof => ErrorKind::Unreachable,
            Io::TimedOut | Io::WouldBlock => ErrorKind::TimedOut,
            Io::Interrupted => ErrorKind::Interrupted,
            _ => ErrorKind::Internal,
        };
        let advice = match error.kind() {
            Io::FileTooLarge => {
                "this file system holds no file that large, or `ulimit -f` is set: choose another place"
            }
            Io::NotADirectory => "something on the way there is a file, and no directory: correct the path",
            Io::IsADirectory => "a directory has that name: choose another one, or move that directory",
            _ => return Error::new(kind, what).caused_by(error),
        };
        Error::new(kind, what).caused_by(error).advise(advice)
    }

    /// The same failure for a second listener; its causes become part of the text.
    pub fn duplicate(&self) -> Error {
        Error {
            kind: self.kind,
            retryable: self.retryable,
            what: self.to_string(),
            advice: self.advice.clone(),
            cause: None,
        }
    }

    /// An I/O error of a local file or pipe, which never means that a peer cannot be reached.
    pub fn file(what: impl Into<String>, error: std::io::Error) -> Error {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::UnexpectedEof => Some(ErrorKind::Damaged),
            Io::BrokenPipe | Io::TimedOut | Io::WouldBlock => Some(ErrorKind::Internal),
            _ => None,
        };
        match kind {
            Some(kind) => Error::new(kind, what).caused_by(error),
            None => Error::io(what, error),
        }
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Error {
        self.advice = Some(advice.into());
        self
    }

    /// Adds what the user can do about it, where nothing better is known.
    #[must_use]
    pub fn or_advise(self, advice: impl Into<String>) -> Error {
        if self.advice.is_some() { self } else { self.advise(advice) }
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.cause = Some(cause.into());
        self
    }

    /// Says whether trying the same again may succeed.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Error {
        self.retryable = retryable;
        self
    }

    /// Puts `outer` before what failed, as in "fetch blake3:…: connect: refused".
    #[must_use]
    pub fn context(mut self, outer: impl fmt::Display) -> Error {
        self.what = format!("{outer}: {}", self.what);
        self
    }

    /// What sort of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether trying the same again may succeed.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// What to do, if there is something.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// The sort of the I/O error that caused it, if one did.
    pub fn io_kind(&self) -> Option<std::io::ErrorKind> {
        let cause = self.cause.as_ref()?.downcast_ref::<std::io::Error>()?;
        Some(cause.kind())
    }

    /// What failed, without the cause.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut cause: Option<&(dyn std::error::Error + 'static)> =
            self.cause.as_deref().map(|cause| cause as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_codes_round_trip_and_are_distinct() {
        for (kind, code) in ErrorKind::ALL {
            assert_eq!(kind.wire_code(), code);
            assert_eq!(ErrorKind::from_wire_code(code), kind);
            let exit_code = kind.exit_code();
            assert_eq!(
                ErrorKind::from_exit_code(exit_code.into()).map(ErrorKind::exit_code),
                Some(exit_code)
            );
        }
        assert_eq!(ErrorKind::from_wire_code(250), ErrorKind::Internal);
    }

    /// A closed pipe and a file that ends early are no trouble of the network.
    #[test]
    fn local_files_are_never_unreachable() {
        use std::io::ErrorKind as Io;
        for (io, kind) in [
            (Io::BrokenPipe, ErrorKind::Internal),
            (Io::TimedOut, ErrorKind::Internal),
            (Io::UnexpectedEof, ErrorKind::Damaged),
            (Io::StorageFull, ErrorKind::NoSpace),
            (Io::FileTooLarge, ErrorKind::Unsupported),
            (Io::NotFound, ErrorKind::NotFound),
            (Io::NotADirectory, ErrorKind::Refused),
            (Io::IsADirectory, ErrorKind::Refused),
        ] {
            let error = Error::file("write out.bin", io.into());
            assert_eq!((error.kind(), error.is_retryable()), (kind, false));
        }
    }

    /// Design 5: an error says what to do, and freeing space would not help here.
    #[test]
    fn a_file_too_large_is_no_full_disk() {
        let error = Error::file("prepare out.bin", std::io::ErrorKind::FileTooLarge.into());
        assert_eq!(error.kind().exit_code(), 6);
        assert!(error.advice().unwrap().contains("no file that large"), "{error}");
    }

    #[test]
    fn display_shows_what_and_every_cause() {
        let io = std::io::Error::new(std::io::ErrorKind::StorageFull, "disk full");
        let error = Error::io("write out.bin", io).context("get").advise("free some space");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.to_string(), "get: write out.bin: disk full");
        assert_eq!(error.advice(), Some("free some space"));
        let error = error.or_advise("wait");
        assert_eq!(error.advice(), Some("free some space"));
        assert!(!error.is_retryable());
    }
}
