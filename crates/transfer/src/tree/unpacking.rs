//! Records that come packed (ADR 28): how fast each path is, whether its sender may pack what it sends there, and the stream that it packs.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::limits::DATA_FRAME_BYTES_MAX;
use dray_core::{Error, ErrorKind, Result};

use super::lanes::guard;
use crate::packing::{PLAIN_BYTES_MAX, PathMeter, Unpacker};

/// What of a frame may have come together with its head, and says nothing of the path.
const WITH_HEAD_BYTES: u64 = 16 << 10;
/// Like [`PLAIN_BYTES_MAX`], where packing never paid.
const PLAIN_FIRST_BYTES_MAX: u64 = 512 << 10;

/// What is known of one path over which contents come, by the thread that reads it and by the sink, which says whether data may come packed.
pub struct Unpacking {
    state: Mutex<State>,
    /// There is one from the first permission on. Apart, because unpacking takes its time.
    unpacker: Mutex<Option<Unpacker>>,
}

#[derive(Debug, Default)]
struct State {
    meter: PathMeter,
    /// What the sender was told, if anything.
    may: Option<bool>,
    /// The request that was asked for while nothing else was owed.
    asked: Option<u32>,
    /// Packing has paid, and so much came as it is since.
    has_paid: bool,
    plain_bytes: u64,
}

impl Unpacking {
    /// A path whose round trip may be known.
    pub(super) fn new(round_trip: Option<Duration>) -> Unpacking {
        let state = State { meter: PathMeter::new(round_trip), ..State::default() };
        Unpacking { state: Mutex::new(state), unpacker: Mutex::default() }
    }

    /// Whether data should come packed over it.
    pub fn is_slow(&self) -> bool {
        guard(&self.state).meter.is_slow()
    }

    /// Says whether data may come packed: true if the sender is to be told, as that is news and can be.
    pub fn permit(&self, may: bool) -> bool {
        let told = guard(&self.state).may;
        if told == Some(may) || (!may && told.is_none()) {
            return false;
        }
        if told.is_none() {
            // Without one everything comes as it is.
            let Ok(Some(unpacker)) = Unpacker::new() else { return false };
            *guard(&self.unpacker) = Some(unpacker);
        }
        guard(&self.state).may = Some(may);
        true
    }

    /// True if the sender was told that data may come packed, or may not any more.
    pub fn is_told(&self) -> bool {
        guard(&self.state).may.is_some()
    }

    /// True if what came packed helps what comes next: packing pays, or it is to be seen whether it does.
    pub fn pays(&self) -> bool {
        let state = guard(&self.state);
        let plain_max = if state.has_paid { PLAIN_BYTES_MAX } else { PLAIN_FIRST_BYTES_MAX };
        state.may == Some(true) && state.plain_bytes < plain_max
    }

    /// Bytes a second that come over it, once measured.
    pub fn rate(&self) -> Option<u64> {
        guard(&self.state).meter.rate()
    }

    /// `request` is asked for while nothing else is owed, and is answered at once.
    pub fn asked(&self, request: u32) {
        let mut state = guard(&self.state);
        state.meter.asked(Instant::now(), true);
        state.asked = Some(request);
    }

    /// A frame came, the body since `begun`.
    pub(super) fn came(&self, head: FrameHead, begun: Instant) {
        let mut state = guard(&self.state);
        if state.asked.is_some_and(|asked| asked == head.request) {
            state.asked = None;
            state.meter.heard(begun);
        }
        let bytes = (head.body_bytes as u64).saturating_sub(WITH_HEAD_BYTES);
        if bytes > 0 {
            state.meter.piece(bytes, begun.elapsed());
        }
        if head.kind == FrameKind::Data {
            state.plain_bytes += head.body_bytes as u64;
        }
    }

    /// The data that the body of a packed frame stands for. `Protocol` if it may not have been packed, or is no part of the stream.
    pub(super) fn unpack(&self, body: &[u8]) -> Result<Vec<u8>> {
        let data_bytes = Unpacker::data_bytes(body)?;
        if data_bytes == 0 || data_bytes > DATA_FRAME_BYTES_MAX as u64 {
            let what = format!("sender packed {data_bytes} bytes, limit {DATA_FRAME_BYTES_MAX}");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let data = match guard(&self.unpacker).as_mut() {
            Some(unpacker) => {
                let mut data = vec![0; data_bytes as usize];
                unpacker.unpack(body, &mut data)?;
                data
            }
            None => return Err(Error::new(ErrorKind::Protocol, "sender packed data, which it may not")),
        };
        let mut state = guard(&self.state);
        if body.len() as u64 <= data_bytes - data_bytes / 8 {
            (state.has_paid, state.plain_bytes) = (true, 0);
        } else {
            state.plain_bytes += data_bytes;
        }
        Ok(data)
    }
}

impl fmt::Debug for Unpacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unpacking({:?})", guard(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::Packer;

    fn packed(packer: &mut Packer, data: &[u8]) -> Vec<u8> {
        packer.pack(data).unwrap().unwrap().to_vec()
    }

    fn packer() -> Packer {
        crate::packing::tests::new()
    }

    fn permitted() -> Unpacking {
        let path = Unpacking::new(None);
        assert!(path.permit(true), "others have all places");
        path
    }

    /// ADR 28: nothing comes packed before the receiver has said that it may. What is under way when it takes that back is unpacked, and so is what
    /// comes when it is permitted once more, as both ends still know the stream.
    #[test]
    fn data_comes_packed_from_the_first_permission_on() {
        let (mut packer, data) = (packer(), [7; 100_000]);
        let first = packed(&mut packer, &data);
        let path = Unpacking::new(None);
        assert!(!path.permit(false) && !path.is_told(), "the sender packs nothing as it is");
        assert_eq!(path.unpack(&first).unwrap_err().kind(), ErrorKind::Protocol);
        let path = permitted();
        assert!(!path.permit(true) && path.is_told(), "told once");
        assert_eq!(path.unpack(&first).unwrap(), data);
        assert!(path.permit(false) && !path.permit(false) && path.is_told());
        let next = packed(&mut packer, &data);
        assert!(next.len() < 100);
        assert_eq!(path.unpack(&next).unwrap(), data);
        assert!(path.permit(true));
        assert_eq!(path.unpack(&packed(&mut packer, &data)).unwrap(), data);
    }

    /// A sender cannot make a receiver allocate more than a data frame has, nor take what is no part of the stream.
    #[test]
    fn hostile_frames_are_errors() {
        let good = packed(&mut packer(), &[7; 300_000]);
        let said = |bytes: u32| [&bytes.to_be_bytes()[..], &good[4..]].concat();
        let most = DATA_FRAME_BYTES_MAX as u32;
        let bad =
            [said(u32::MAX), said(most + 1), said(most), said(100), said(0), good[..good.len() - 3].to_vec()];
        for body in bad {
            let error = permitted().unpack(&body).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        }
        assert_eq!(permitted().unpack(&good).unwrap(), [7; 300_000]);
    }

    /// ADR 28 "one lane asks while packing pays": as long as little came as it is; and where nothing shrinks at all, that is soon seen.
    #[test]
    fn packing_pays_until_much_comes_as_it_is() {
        let data = |bytes: u64| FrameHead::new(FrameKind::Data, bytes as usize, 1);
        let path = Unpacking::new(None);
        assert!(!path.pays(), "nothing is packed");
        let path = permitted();
        assert!(path.pays());
        path.came(data(PLAIN_FIRST_BYTES_MAX), Instant::now());
        assert!(!path.pays());
        let mut packer = packer();
        path.unpack(&packed(&mut packer, &[7; 100_000])).unwrap();
        path.came(data(PLAIN_FIRST_BYTES_MAX), Instant::now());
        assert!(path.pays(), "it has paid");
        (1..4).for_each(|_| path.came(data(PLAIN_FIRST_BYTES_MAX), Instant::now()));
        assert!(!path.pays());
        path.unpack(&packed(&mut packer, &[7; 100_000])).unwrap();
        assert!(path.pays());
        path.permit(false);
        assert!(!path.pays());
    }

    /// Design 15: the first answer to what was asked while nothing was owed tells the round trip; other answers say nothing of it.
    #[test]
    fn the_answer_tells_the_round_trip() {
        let head = |request| FrameHead::new(FrameKind::Data, 1, request);
        let (path, before) = (Unpacking::new(None), Instant::now());
        path.asked(7);
        path.came(head(6), before);
        assert!(path.is_slow(), "nothing is known");
        path.came(head(7), before);
        assert!(!path.is_slow());
        path.asked(8);
        path.came(head(8), Instant::now() + Duration::from_secs(1));
        assert!(!path.is_slow(), "the shortest counts");
        let far = Unpacking::new(None);
        far.asked(1);
        far.came(head(1), Instant::now() + Duration::from_secs(1));
        assert!(far.is_slow());
    }
}
