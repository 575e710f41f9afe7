//! What a lane asks and takes beside whole groups: sums, rests, and data that comes packed.

use dray_core::frame::FrameHead;
use dray_core::message::{FetchRest, Message, Pack, Summed, Sums, feature};
use dray_core::source::SourceEvent;
use dray_core::{Error, ErrorKind, Result};

use super::lane::{Filling, Got, HANDLE, Lane, closed};
use super::{Inner, Queued, SumsAsked};
use crate::packing::{PLAIN_BYTES_MAX, Unpacker};
use crate::transport::push_control;

impl Lane<'_> {
    fn has_agreed(&self, feature: &str) -> bool {
        self.receiver.agreed().is_some_and(|agreed| agreed.has(feature))
    }

    /// Asks for what is lacking of the group of `queued`, if that is all that is wanted and the holder can tell.
    pub(super) fn fetch_rest(&mut self, queued: &Queued) -> bool {
        let Some(have) = queued.have.filter(|_| self.has_agreed(feature::RESTS)) else { return false };
        let (request, group) = (queued.request.0, queued.groups.start);
        let fetch = FetchRest { request, handle: HANDLE, group, known_depth: queued.known_depth, have };
        self.receiver.fetch_rest(&fetch);
        push_control(&mut self.out, &Message::FetchRest(fetch));
        true
    }

    /// Takes questions for sums from the set, once both sides have said that they know what those are.
    pub(super) fn ask_for_sums(&mut self, inner: &mut Inner) {
        if self.receiver.agreed().is_none() {
            return;
        }
        let knows = self.has_agreed(feature::RESTS);
        for asked in std::mem::take(&mut inner.sums) {
            if !knows {
                self.untold_sums.push(asked.number);
                continue;
            }
            let SumsAsked { number, block_bytes, sum_bytes, ref runs } = asked;
            let sums = Sums { handle: HANDLE, number, block_bytes, sum_bytes, runs: runs.clone() };
            push_control(&mut self.out, &Message::Sums(sums));
            self.awaited_sums.push(asked);
        }
    }

    /// Sums have come: as many as were asked for, or the holder is wrong.
    pub(super) fn summed(&mut self, summed: &Summed) -> Result<()> {
        let is_owed = |asked: &SumsAsked| {
            let blocks: u64 = asked.runs.iter().map(|run| u64::from(run.blocks)).sum();
            asked.number == summed.number && blocks * u64::from(asked.sum_bytes) == summed.sums.len() as u64
        };
        let Some(at) = self.awaited_sums.iter().position(is_owed) else {
            return Err(Error::new(ErrorKind::Protocol, "peer sent sums that were not asked for"));
        };
        self.awaited_sums.remove(at);
        self.emit(SourceEvent::Summed { number: summed.number, sums: Some(&summed.sums) });
        Ok(())
    }

    /// Says whether data may be packed, when that is another answer than the last one.
    pub(super) fn consider_packing(&mut self) -> Result<()> {
        if !self.has_agreed(feature::PACKED) || self.channel.has_control() || self.channel.is_packed() {
            return Ok(());
        }
        let may = self.meter.is_slow();
        if may == self.may_pack {
            return Ok(());
        }
        if may && self.unpacker.is_none() {
            self.unpacker = Unpacker::new()?;
        }
        if self.unpacker.is_some() {
            self.may_pack = may;
            push_control(&mut self.out, &Message::Pack(Pack { may }));
        }
        Ok(())
    }

    /// Takes the body of a packed frame, and what it stands for.
    pub(super) fn take_packed(&mut self, head: FrameHead) -> Result<()> {
        let body = self.body(head.body_bytes)?;
        let data_bytes = Unpacker::data_bytes(&body)?;
        self.receiver.handle_packed(data_bytes)?;
        self.note_packing(data_bytes, Some(head.body_bytes as u64));
        let Some(unpacker) = self.unpacker.as_mut() else {
            return Err(Error::new(ErrorKind::Protocol, "holder packed data, which it may not"));
        };
        // At most a data frame's length: the session has checked it.
        let mut data = std::mem::take(&mut self.unpacked);
        data.resize(data_bytes as usize, 0);
        let unpacked = unpacker.unpack(&body, &mut data);
        self.unpacked = data;
        unpacked?;
        self.unpacked_at = 0;
        self.take_data(data_bytes, Filling::Unpacked)
    }

    /// Notes that data came, packed to so many bytes or as it is: while packing pays, this lane is the only one that asks.
    pub(super) fn note_packing(&mut self, data_bytes: u64, packed_bytes: Option<u64>) {
        let number = self.number;
        if packed_bytes.is_some_and(|packed_bytes| packed_bytes <= data_bytes - data_bytes / 8) {
            self.plain_bytes = 0;
            self.set.inner().packing_lane.get_or_insert(number);
            return;
        }
        self.plain_bytes += data_bytes;
        if self.plain_bytes >= PLAIN_BYTES_MAX {
            self.plain_bytes = 0;
            self.let_others_ask();
        }
    }

    /// This lane is not, or no longer, the only one that asks.
    fn let_others_ask(&mut self) {
        let mut inner = self.set.inner();
        if inner.packing_lane.take_if(|packing| *packing == self.number).is_some() {
            inner.lanes.iter().for_each(|lane| lane.wake.signal());
        }
    }

    /// Takes bytes of the oldest request: pieces of groups, or of a rest.
    pub(super) fn take_data(&mut self, data_bytes: u64, filling: Filling) -> Result<()> {
        if !self.receiver.is_rest() {
            return self.take_pieces(data_bytes, filling);
        }
        self.receiver.rest_piece(data_bytes)?;
        // At most a group: what a rest owes.
        let at = self.rest.len();
        let mut rest = std::mem::take(&mut self.rest);
        rest.resize(at + data_bytes as usize, 0);
        let got = self.fill(&mut rest[at..], filling);
        self.rest = rest;
        match got? {
            Got::Bytes => Ok(()),
            Got::End | Got::Closed => Err(closed()),
        }
    }

    /// Fills `out` with what comes next, from the connection or from what was unpacked.
    pub(super) fn fill(&mut self, out: &mut [u8], filling: Filling) -> Result<Got> {
        if filling != Filling::Unpacked {
            return self.read(out, false);
        }
        let end = self.unpacked_at + out.len();
        let Some(data) = self.unpacked.get(self.unpacked_at..end) else {
            return Err(Error::new(ErrorKind::Internal, "more was taken than was unpacked"));
        };
        out.copy_from_slice(data);
        self.unpacked_at = end;
        Ok(Got::Bytes)
    }

    /// The oldest request, for a rest, is answered to its end.
    pub(super) fn deliver_rest(&mut self) -> Result<()> {
        let Some(queued) = self.running.front() else { return Ok(()) };
        let (request, group) = (queued.request, queued.groups.start);
        self.has_delivered = true;
        self.emit(SourceEvent::Rest { request, group, bytes: &self.rest });
        self.count();
        Ok(())
    }
}
