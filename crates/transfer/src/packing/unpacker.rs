//! The receiver's side: takes data out of a connection's stream. What comes is hostile until proven otherwise: memory is bounded by
//! the window, each frame by what it says that it stands for, and garbage is an error.

use std::sync::atomic::AtomicUsize;

use dray_core::frame::PACKED_HEAD_BYTES;
use dray_core::limits::{PACKED_WINDOW_LOG, UNPACKING_MAX};
use dray_core::{Error, ErrorKind, Result};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::Share;

/// How many there are in this process.
pub(super) static STREAMS: AtomicUsize = AtomicUsize::new(0);

/// The stream of one connection.
pub(crate) struct Unpacker {
    decoder: Decoder<'static>,
    _place: Share,
}

impl Unpacker {
    /// An empty stream; `None` if [`UNPACKING_MAX`] are there in this process.
    pub(crate) fn new() -> Result<Option<Unpacker>> {
        let Some(place) = Share::take(&STREAMS, 1, UNPACKING_MAX) else { return Ok(None) };
        let begin = || {
            let mut decoder = Decoder::new()?;
            decoder.set_parameter(DParameter::WindowLogMax(PACKED_WINDOW_LOG))?;
            Ok(decoder)
        };
        let decoder = begin().map_err(|error| Error::io("begin to unpack", error))?;
        Ok(Some(Unpacker { decoder, _place: place }))
    }

    /// How many bytes the body of a packed frame says that it stands for. Not checked: that is for whoever knows what is owed.
    pub(crate) fn data_bytes(body: &[u8]) -> Result<u64> {
        match body.first_chunk::<PACKED_HEAD_BYTES>() {
            Some(head) => Ok(u64::from(u32::from_be_bytes(*head))),
            None => Err(damaged("is too short")),
        }
    }

    /// Fills `out`, which is as long as [`Unpacker::data_bytes`] said, from `body`. `Protocol` if what the body holds is not
    /// exactly as long, or no part of a stream of zstd. Nothing more can be unpacked then.
    pub(crate) fn unpack(&mut self, body: &[u8], out: &mut [u8]) -> Result<()> {
        let packed = body.get(PACKED_HEAD_BYTES..).unwrap_or_default();
        let mut input = InBuffer::around(packed);
        let mut output = OutBuffer::around(&mut *out);
        loop {
            let before = (input.pos(), output.pos());
            self.run(&mut input, &mut output)?;
            if output.pos() == output.capacity() {
                break;
            }
            if (input.pos(), output.pos()) == before {
                return Err(damaged("holds less than it says"));
            }
        }
        // zstd may hold more than there was room for, and would say it next time.
        loop {
            let before = input.pos();
            let mut beyond = [0];
            let mut output = OutBuffer::around(&mut beyond[..]);
            self.run(&mut input, &mut output)?;
            if output.pos() > 0 {
                return Err(damaged("holds more than it says"));
            }
            if input.pos() == packed.len() {
                return Ok(());
            }
            if input.pos() == before {
                return Err(damaged("has an end that means nothing"));
            }
        }
    }

    fn run(&mut self, input: &mut InBuffer<'_>, output: &mut OutBuffer<'_, [u8]>) -> Result<()> {
        self.decoder.run(input, output).map(|_| ()).map_err(|_| damaged("cannot be unpacked"))
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("holder sent a packed frame that {what}"))
}
