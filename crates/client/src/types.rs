//! What travels: the JSON documents of `/v1`. Fields may be added, and one that is left out means its default. Of answers and events
//! readers ignore fields that they do not know; of wishes they do not: a misspelt `expires_s` would share for ever. A client that
//! sends a field of a later version names the feature behind it (`Dray-Require`), and hears that it is missing.

mod directories;

use dray_core::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

pub use directories::{Directories, DirectoryLine, NewDirectory, SharedDirectory};

/// Features of this version of the API, by the names that `Dray-Require` takes.
pub const FEATURES: [&str; 10] = [
    "put",
    "put-descriptor",
    "put-at-once",
    "get",
    "get-descriptor",
    "shares",
    "directories",
    "explain",
    "metrics",
    "index",
];

/// Who answers: `GET /v1`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// Its program, for people.
    pub agent: String,
    /// What it can do.
    pub features: Vec<String>,
    /// Its node id, hex.
    pub node: String,
    /// The TCP port it serves objects on.
    pub port: u16,
    /// Its process.
    pub pid: u32,
    /// Since when it runs, seconds since 1970.
    pub started_unix_s: u64,
    /// Where it keeps things.
    pub data_dir: String,
    /// Objects it shares.
    pub shares: u64,
    /// Directories it shares.
    pub directories: u64,
    /// Bytes that it keeps itself and may drop when there is no room: those of no open session and without a pin.
    pub cached_bytes: u64,
    /// Open sessions.
    pub sessions: u64,
    /// Open transactions.
    pub transactions: u64,
    /// What the user should know, as long as it is so.
    pub warnings: Vec<String>,
}

/// The first event of a stream: the session that lasts as long as the stream.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SessionBegun {
    /// Its name.
    pub session: String,
}

/// A wish to put: `POST /v1/puts`, or, all at once, `POST /v1/shares`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewPut {
    /// The session that it belongs to; none for a pin that is put at once.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// File name to suggest to receivers: one component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The same as hex digits, for a name that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// Share without a secret.
    pub public: bool,
    /// End of the right, in seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Share until it is said otherwise, also when the session and the daemon have ended.
    pub pin: bool,
    /// A ticket of somebody else for the same object: share under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// The file that has the bytes, handed over before under this name (32 hex digits). Without it they are sent with
    /// `POST …/data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<String>,
}

/// A wish to fetch: `POST /v1/gets`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewGet {
    /// The session that it belongs to.
    pub session: String,
    /// The ticket of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// Instead of a ticket, the name of a public object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oid: Option<String>,
    /// Further places to ask, `dray://NODE@host:port`.
    pub hints: Vec<String>,
    /// Follow the ticket's hints to loopback and link-local addresses.
    pub local: bool,
    /// Fetch everything, also what is here already.
    pub whole_file: bool,
    /// In which order the bytes are handed on.
    pub mode: Mode,
    /// The first byte that is wanted, and the one after the last: for what goes to this client or through a descriptor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// See `from`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Where to, handed over before under this name (32 hex digits): a directory, in which a file is made or
    /// replaced, or something open for writing. Without it the bytes are asked for with `GET …/data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<String>,
    /// The file in that directory, which is replaced: one component. Without it the sender's name is used, and nothing
    /// replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The same as hex digits, for a name that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// Wait until that file and its name are on disk.
    pub fsync: bool,
}

/// In which order bytes are handed on (D11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By offset.
    #[default]
    Sequential,
    /// As they come.
    OutOfOrder,
}

/// The body of a request that has nothing to say: none, or `{}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// An object was fetched: the answer to `POST …/finish`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fetched {
    /// Its proven name.
    pub oid: String,
    /// Its size.
    pub size_bytes: u64,
    /// The name of the file in the directory that was handed over, if one was; what is not UTF-8 in it is replaced.
    pub name: Option<String>,
    /// Bytes that an earlier, interrupted get had left there.
    pub resumed_bytes: u64,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// A transaction has begun.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Begun {
    /// Its name.
    pub transaction: String,
}

/// Bytes were taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Written {
    /// How many the transaction has now.
    pub size_bytes: u64,
}

/// An object that can be had: the answer to a commit.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shared {
    /// Its name.
    pub oid: String,
    /// Its size.
    pub size_bytes: u64,
    /// The ticket's text.
    pub ticket: String,
    /// `dray://host:port` of every hint.
    pub addresses: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// One line of `GET /v1/shares`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareLine {
    /// The object's name.
    pub oid: String,
    /// Its size.
    pub size_bytes: u64,
    /// The file name it suggests; what is not UTF-8 in it is replaced.
    pub name: Option<String>,
    /// The user's file that has the bytes; `null` if the daemon has them.
    pub path: Option<String>,
    /// Whoever knows the object's name gets it.
    pub public: bool,
    /// Until it is said otherwise.
    pub pinned: bool,
    /// Open sessions that hold it.
    pub sessions: u64,
    /// End of the right, seconds since 1970.
    pub expires_unix_s: Option<u64>,
    /// Receivers let in since the daemon started, each counted again if it came back after a minute.
    pub receivers: u64,
    /// Bytes sent to receivers that have gone, since the daemon started.
    pub sent_bytes: u64,
}

/// The answer to `GET /v1/shares`: as many as fit into one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// One for each shared object, sorted by name of the object.
    pub shares: Vec<ShareLine>,
    /// If there are more: they come with `GET /v1/shares?after=` and this.
    pub next: Option<String>,
}

/// One line of `GET /v1/transactions`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TransactionLine {
    /// Its name.
    pub transaction: String,
    /// Its session.
    pub session: String,
    /// What it is: `put` or `get`.
    pub kind: String,
    /// Bytes taken, hashed or fetched so far.
    pub done_bytes: u64,
}

/// The answer to `GET /v1/transactions`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Transactions {
    /// One for each, in no order.
    pub transactions: Vec<TransactionLine>,
}

/// A question to the chunk index: `POST /v1/index`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexQuestion {
    /// The directory below which is searched, handed over before under this name (32 hex digits).
    pub descriptor: String,
    /// Size of an object: look at the directory, and say whether something below it may be like the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// File name of that object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The same as hex digits, for a name that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// Chunks to look up: the first 16 bytes of each one's BLAKE3 hash, as 32 hex digits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<String>,
}

/// The answer to it: hints. What they lead to may be something else by now, so compare it with the chunk's hash.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexAnswer {
    /// Something may be like the object.
    pub hopeful: bool,
    /// Files in which chunks lie.
    pub files: Vec<IndexFile>,
    /// Which of the chunks that were asked for lies in which of the files, at which byte, and how long it is.
    pub found: Vec<(u32, u32, u64, u32)>,
}

/// A file below the directory that was handed over.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexFile {
    /// Its path from there.
    pub path: Option<String>,
    /// The same as hex digits, for a path that is not UTF-8.
    pub path_hex: Option<String>,
}

/// What the chunk index has: `GET /v1/index`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexState {
    /// It is to be kept (`index` in the configuration).
    pub wanted: bool,
    /// It is open.
    pub open: bool,
    /// Files that it knows.
    pub files: u64,
    /// Their chunks.
    pub chunks: u64,
    /// Bytes of it on disk.
    pub disk_bytes: u64,
    /// Files that wait to be cut, as far as that is known.
    pub waiting: u64,
    /// Bytes that were read for it since the daemon started.
    pub read_bytes: u64,
}

/// What every answer with a status of 400 or more says.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The word of its kind, as in the events of `--json`.
    pub kind: String,
    /// What failed and why.
    pub what: String,
    /// What to do.
    pub advice: Option<String>,
    /// Whether the same request may succeed later, as it is. The first daemons did not say.
    pub retryable: Option<bool>,
}

impl Problem {
    /// As it is told.
    pub fn of(error: &Error) -> Problem {
        Problem {
            kind: error.kind().word().to_owned(),
            what: error.to_string(),
            advice: error.advice().map(str::to_owned),
            retryable: Some(error.is_retryable()),
        }
    }

    /// As it was meant.
    pub fn into_error(self) -> Error {
        let error = Error::new(ErrorKind::from_word(&self.kind).unwrap_or(ErrorKind::Internal), self.what);
        let retryable = self.retryable.unwrap_or(error.is_retryable());
        let error = error.with_retryable(retryable);
        match self.advice {
            Some(advice) => error.advise(advice),
            None => error,
        }
    }
}
