//! Bytes of an object that the daemon fetches, piece by piece (D11, D12).

use std::io;

use dray_core::{Error, ErrorKind, Result};

use crate::Session;
use crate::http::Connection;
use crate::types::Mode;

/// How to fetch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GetOptions {
    /// Further places to ask, `dray://NODE@host:port`.
    pub hints: Vec<String>,
    /// Follow the ticket's hints to loopback and link-local addresses.
    pub local: bool,
    /// Fetch everything, also what is here already.
    pub whole_file: bool,
    /// In which order the bytes come.
    pub mode: Mode,
    /// The first byte that is wanted: where an earlier get ended. Not for a file in a directory.
    pub from: Option<u64>,
    /// The byte after the last one that is wanted.
    pub to: Option<u64>,
    /// Of a file in a directory: wait until it and its name are on disk.
    pub fsync: bool,
}

/// Some bytes of an object, proven.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they begin.
    pub offset: u64,
    /// They; at least one, at most 1 MiB.
    pub bytes: Vec<u8>,
    /// Size of the whole object.
    pub size_bytes: u64,
}

/// An object on its way here. Dropped before its end, it is given up when its session ends.
///
/// As [`io::Read`] it gives the bytes in order, and is an error out of order.
#[derive(Debug)]
pub struct Get<'a> {
    session: &'a Session,
    connection: Option<Connection>,
    transaction: String,
    number: u64,
    is_over: bool,
    /// For reading: the piece that is being read, how far, and where the next one begins.
    reading: Vec<u8>,
    read: usize,
    next: Option<u64>,
}

impl<'a> Get<'a> {
    pub(crate) fn new(session: &'a Session, transaction: String) -> Get<'a> {
        Get {
            session,
            connection: None,
            transaction,
            number: 0,
            is_over: false,
            reading: Vec::new(),
            read: 0,
            next: None,
        }
    }

    /// The next piece; `None` when all have come. Waits for as long as the transfer makes progress; what ends that is the error
    /// here, with the kind that `dray get` has.
    pub fn piece(&mut self) -> Result<Option<Piece>> {
        if self.is_over {
            return Ok(None);
        }
        let target = format!("/v1/gets/{}/data?piece={}", self.transaction, self.number);
        // However slow a source is, the daemon knows when to give up.
        let reply = self.session.ask(&mut self.connection, "GET", &target, &[], None)?;
        if reply.status == 204 {
            self.is_over = true;
            return Ok(None);
        }
        let Some((offset, size_bytes)) = reply.range else {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the daemon's piece of an object has no place in it",
            ));
        };
        self.number += 1;
        Ok(Some(Piece { offset, bytes: reply.body, size_bytes }))
    }
}

impl io::Read for Get<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.read == self.reading.len() {
            let Some(piece) = self.piece().map_err(io::Error::other)? else { return Ok(0) };
            if self.next.is_some_and(|next| next != piece.offset) {
                return Err(io::Error::other("the pieces come out of order: ask for them one by one"));
            }
            self.next = Some(piece.offset + piece.bytes.len() as u64);
            (self.reading, self.read) = (piece.bytes, 0);
        }
        let length = out.len().min(self.reading.len() - self.read);
        out[..length].copy_from_slice(&self.reading[self.read..self.read + length]);
        self.read += length;
        Ok(length)
    }
}
