//! The far end of a tree copy: `dray remote` when its first message is `tree`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use dray_core::message::{CopyRole, Message, Tree, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::transport::PipeChannel;
use dray_transfer::tree::{send, take};

use super::super::reach::home_path;
use super::super::remote::tell;
use super::sink::Writing;
use super::source::WalkSource;
use super::{names_owners, walk_options, write_options};
use crate::{Node, Stop};

/// How long the near end may be silent. ssh ends with it, so this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

impl Node {
    /// Carries out `tree`; `preface` has this end's hello. An error has been told to the other side.
    pub(in crate::copy) fn far_trees(
        mut channel: PipeChannel,
        tree: &Tree,
        preface: Vec<u8>,
        stop: &Stop,
    ) -> Result<()> {
        let stopped =
            || if stop.is_set() { Err(Error::new(ErrorKind::Interrupted, "interrupted")) } else { Ok(()) };
        match tree.role {
            CopyRole::Receive => {
                let path =
                    tree.paths.first().map(|path| home_path(OsStr::from_bytes(path))).unwrap_or_default();
                let names: Vec<Vec<u8>> = tree.names.iter().map(|name| name.to_vec()).collect();
                let into_directory = tree.flags & tree_flag::INTO_DIRECTORY != 0;
                let landing = match Landing::resolve(&path, &names, into_directory) {
                    Ok(landing) => landing,
                    Err(error) => return Err(tell(&mut channel, preface, error)),
                };
                let fsync = tree.flags & tree_flag::FSYNC != 0;
                let make = || {
                    let writer = TreeWriter::new(landing, write_options(tree));
                    Ok(Writing::new(writer, names.len(), fsync, &|_| {}))
                };
                take(&mut channel, preface, make, &mut |_| stopped(), PATIENCE).map(|_| ())
            }
            CopyRole::Send => {
                let paths = tree.paths.iter().map(|path| home_path(OsStr::from_bytes(path))).collect();
                let mut source = WalkSource::new(paths, walk_options(tree), names_owners(tree), stop.clone());
                let mut heard = |message: Option<Message>| match message {
                    None => stopped(),
                    Some(Message::Progress(_) | Message::EntryFailed(_)) => Ok(()),
                    Some(Message::Fault(fault)) => Err(fault.to_error("the receiving side")),
                    Some(_) => Err(Error::new(ErrorKind::Protocol, "message out of place")),
                };
                send(Box::new(channel), preface, &mut source, &mut heard, &|| PATIENCE).map(|_| ())
            }
        }
    }
}
