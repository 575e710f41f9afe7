//! Requests about directories that the daemon shares as they are.

use std::os::fd::AsFd;
use std::time::Duration;

use dray_core::Result;
use dray_core::ticket::DirectoryId;

use crate::Client;
use crate::client::paged;
use crate::types::{Directories, DirectoryLine, NewDirectory, SharedDirectory};

/// The feature of the API.
const FEATURE: &str = "directories";

/// How to share a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectoryOptions {
    /// Without a secret.
    pub public: bool,
    /// How long the ticket is good for.
    pub expires_in: Option<Duration>,
}

impl Client {
    /// Shares the open `directory` as it is, until [`Client::done_directory`] or the end of `options.expires_in`, also when the daemon has
    /// ended meanwhile: whoever has the ticket fetches what is in it then. The same directory without an end has the same ticket again.
    /// `Interrupted` soon after `is_stopped` says so; `Unsupported` if the daemon cannot do that (D37).
    pub fn put_directory(
        &self,
        directory: impl AsFd,
        options: &DirectoryOptions,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<SharedDirectory> {
        let wish = NewDirectory {
            descriptor: self.hand_over(directory)?,
            public: options.public,
            expires_s: options.expires_in.map(|time| time.as_secs().max(1)),
        };
        self.post_required("/v1/directories", &[FEATURE], &wish, is_stopped)
    }

    /// The directories that it shares.
    pub fn directories(&self) -> Result<Vec<DirectoryLine>> {
        paged(|after| {
            let page: Directories = self.read("GET", &format!("/v1/directories{after}"), &[FEATURE])?;
            Ok((page.directories, page.next))
        })
    }

    /// Stops sharing a directory. `NotFound` if it was not shared.
    pub fn done_directory(&self, id: DirectoryId) -> Result<()> {
        self.delete(&format!("/v1/directories/{id}"), FEATURE)
    }
}
