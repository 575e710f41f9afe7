//! Directories that the daemon shares as they are: `/v1/directories`.

use serde::{Deserialize, Serialize};

/// A wish to share one: `POST /v1/directories`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewDirectory {
    /// The directory, handed over before under this name (32 hex digits).
    pub descriptor: String,
    /// Share without a secret: whoever knows its id and an address gets it.
    pub public: bool,
    /// End of the right, in seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// A directory that can be had: the answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedDirectory {
    /// Its id, `directory:` and 64 hex digits.
    pub id: String,
    /// Where it is; what is not UTF-8 in it is replaced.
    pub path: String,
    /// The ticket's text.
    pub ticket: String,
    /// `dray://host:port` of every hint.
    pub addresses: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// One line of `GET /v1/directories`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectoryLine {
    /// Its id.
    pub id: String,
    /// Where it is; what is not UTF-8 in it is replaced.
    pub path: String,
    /// Whoever knows its id gets it.
    pub public: bool,
    /// Since when it is shared, seconds since 1970.
    pub since_unix_s: u64,
    /// End of the right, seconds since 1970.
    pub expires_unix_s: Option<u64>,
    /// Whether a daemon that is started again knows it again.
    pub lasting: bool,
    /// Receivers that had the right, whether it could be given or not, since the daemon started, each time that one came.
    pub receivers: u64,
    /// Bytes sent to those that have gone, since the daemon started.
    pub sent_bytes: u64,
    /// Why it could not be given to the last receiver: something else stands there, or its disk cannot be read.
    pub trouble: Option<String>,
}

/// The answer to `GET /v1/directories`: as many as fit into one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Directories {
    /// One for each, sorted by id.
    pub directories: Vec<DirectoryLine>,
    /// If there are more: they come with `GET /v1/directories?after=` and this.
    pub next: Option<String>,
}
