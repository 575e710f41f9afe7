//! The side that wants the bytes: says `Open` and `Fetch`, and checks that each answer is exactly what was asked.

use std::collections::VecDeque;

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{DATA_FRAME_BYTES_MAX, GROUP_BYTES, REQUESTS_PER_CONNECTION_MAX};
use dray_core::message::{Fault, Fetch, FetchRest, Hello, Message, Opened, Summed, feature};
use dray_core::recipe::{RecipeId, RecipeRoot};
use dray_core::{Error, ErrorKind, Oid, Result};

use super::holder::variant;
use super::{Negotiated, negotiate};

/// What the body of a frame is, decided from its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Read all of it and pass it to [`Receiver::handle_control`].
    Control,
    /// Read all of it: the parents of the oldest request.
    Parents,
    /// Take it piece by piece with [`Receiver::piece`].
    Data,
    /// Read the 8 bytes of the run's length, then take it piece by piece with [`Receiver::piece`].
    Hole,
    /// As [`Body::Hole`], but the zeros are data.
    Zeros,
    /// Read all of it, and ask [`Receiver::handle_packed`] whether what it stands for is owed; then take that piece by piece.
    Packed,
    /// Nothing to read: the oldest request is complete, or ended early because it was cancelled.
    End {
        /// True if every byte of it came.
        complete: bool,
    },
    /// Read all of it: the oldest request failed.
    Fault,
}

/// The next bytes of the oldest request: at most up to the end of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Group they belong to.
    pub group: u64,
    /// First byte within the group.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
    /// True if they complete the group.
    pub completes_group: bool,
}

/// What a control message from the holder means.
#[derive(Clone, PartialEq, Debug)]
pub enum ReceiverInput {
    /// The hellos agree.
    Agreed(Negotiated),
    /// The object is there.
    Opened(Opened),
    /// The holder's root of a provisional object.
    Sealed(Oid),
    /// The holder's pairs of the subtrees asked for.
    Compared(Vec<u8>),
    /// The object's recipe, if the holder makes one.
    Described(Option<RecipeRoot>),
    /// A node of the recipe, unchecked.
    Node(RecipeId, Vec<u8>),
    /// Sums that were asked for, unchecked.
    Summed(Summed),
    /// The object, or the whole connection, failed.
    Fault(Fault),
    /// Token for a clear-text data connection.
    ClearGrant([u8; 16]),
    /// A message of the copy protocol (ssh control only).
    Copy(Message),
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    request: u32,
    groups: Subtree,
    /// Next byte of the object that this answer owes.
    next_byte: u64,
    has_parents: bool,
    cancelled: bool,
    /// Of a rest: bytes that are owed, and how many have come.
    rest: Option<(u64, u64)>,
}

impl Expected {
    /// Bytes that this answer owes.
    fn owed(&self, geometry: Geometry) -> u64 {
        match self.rest {
            Some((bytes, came)) => bytes - came,
            None => geometry.byte_range(self.groups).end.saturating_sub(self.next_byte),
        }
    }

    fn has_begun(&self) -> bool {
        self.next_byte != self.groups.start * GROUP_BYTES || self.rest.is_some_and(|(_, came)| came > 0)
    }
}

/// State of the receiver's side of one connection, about one object.
#[derive(Debug)]
pub struct Receiver {
    ours: Hello,
    agreed: Option<Negotiated>,
    geometry: Option<Geometry>,
    /// Proven objects come with parents, vouched ones without.
    wants_parents: bool,
    outstanding: VecDeque<Expected>,
}

impl Receiver {
    /// A receiver that introduces itself with `ours`. `geometry` is known from the ticket or offer, or set later by
    /// `Opened`.
    pub fn new(ours: Hello, geometry: Option<Geometry>, wants_parents: bool) -> Receiver {
        Receiver { ours, agreed: None, geometry, wants_parents, outstanding: VecDeque::new() }
    }

    /// The first message to send.
    pub fn hello(&self) -> Message {
        Message::Hello(self.ours.clone())
    }

    /// What both sides agreed on, once the peer's hello has come.
    pub fn agreed(&self) -> Option<&Negotiated> {
        self.agreed.as_ref()
    }

    /// The object's shape, from an offer that came over this connection.
    pub fn set_geometry(&mut self, geometry: Geometry) {
        self.geometry = Some(geometry);
    }

    /// Requests that may still be sent before the oldest is answered.
    pub fn room(&self) -> usize {
        REQUESTS_PER_CONNECTION_MAX - self.outstanding.len()
    }

    /// Number of requests not answered to their end.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The oldest request: the one the next data frame must belong to.
    pub fn oldest(&self) -> Option<u32> {
        self.outstanding.front().map(|expected| expected.request)
    }

    /// Notes that `fetch` has been sent.
    pub fn fetch(&mut self, fetch: &Fetch) {
        let groups = Subtree { start: fetch.start_group, groups: fetch.groups };
        self.outstanding.push_back(Expected {
            request: fetch.request,
            groups,
            next_byte: fetch.start_group * GROUP_BYTES,
            has_parents: false,
            cancelled: false,
            rest: None,
        });
    }

    /// Notes that `fetch` has been sent. The object's shape is known by then.
    pub fn fetch_rest(&mut self, fetch: &FetchRest) {
        self.fetch(&fetch.whole());
        if let (Some(expected), Some(geometry)) = (self.outstanding.back_mut(), self.geometry) {
            let rest_bytes = fetch.have.rest_bytes(geometry.group_bytes(fetch.group));
            expected.rest = Some((rest_bytes as u64, 0));
        }
    }

    /// True if the oldest request is for a rest, whose bytes are taken with [`Receiver::rest_piece`].
    pub fn is_rest(&self) -> bool {
        self.outstanding.front().is_some_and(|expected| expected.rest.is_some())
    }

    /// Advances over `len` bytes of a rest.
    pub fn rest_piece(&mut self, len: u64) -> Result<()> {
        match self.outstanding.front_mut().and_then(|expected| expected.rest.as_mut()) {
            Some((bytes, came)) if len <= *bytes - *came => {
                *came += len;
                Ok(())
            }
            _ => Err(protocol("holder sent more than was owed".into())),
        }
    }

    /// Notes that `Cancel` has been sent; returns false if the request is not outstanding.
    pub fn cancel(&mut self, request: u32) -> bool {
        let found = self.outstanding.iter_mut().find(|expected| expected.request == request);
        match found {
            Some(expected) => {
                expected.cancelled = true;
                true
            }
            None => false,
        }
    }

    /// Checks a frame head against what is owed and says how to read the body.
    pub fn handle_head(&mut self, head: FrameHead) -> Result<Body> {
        if head.kind == FrameKind::Control {
            return if head.request == 0 {
                Ok(Body::Control)
            } else {
                Err(protocol("control frame with a request".into()))
            };
        }
        if self.agreed.is_none() {
            return Err(protocol("peer did not say hello first".into()));
        }
        let geometry =
            self.geometry.ok_or_else(|| protocol("holder sent data before the object's size".into()))?;
        let Some(expected) = self.outstanding.front_mut() else {
            return Err(protocol(format!("holder sent a {:?} frame that nobody asked for", head.kind)));
        };
        if expected.request != head.request {
            return Err(protocol(format!(
                "holder answered request {} before request {}",
                head.request, expected.request
            )));
        }
        let owed = expected.owed(geometry);
        match head.kind {
            FrameKind::Parents => {
                // Of a rest, the group's value comes even where nothing else is proven.
                let is_wanted = self.wants_parents || expected.rest.is_some();
                if !is_wanted || expected.has_parents || expected.has_begun() {
                    return Err(protocol("holder sent parents out of place".into()));
                }
                expected.has_parents = true;
                Ok(Body::Parents)
            }
            FrameKind::Hole | FrameKind::Zeros if expected.rest.is_some() => {
                Err(protocol("holder sent a run in a rest".into()))
            }
            FrameKind::Packed => match self.agreed.as_ref().is_some_and(|agreed| agreed.has(feature::PACKED))
            {
                true => Ok(Body::Packed),
                false => Err(protocol("holder packed data, which was not agreed on".into())),
            },
            FrameKind::Hole => Ok(Body::Hole),
            FrameKind::Zeros => match self.agreed.as_ref().is_some_and(|agreed| agreed.has(feature::ZEROS)) {
                true => Ok(Body::Zeros),
                false => Err(protocol("holder sent a run of zeros, which was not agreed on".into())),
            },
            FrameKind::Data => {
                if head.body_bytes as u64 > owed {
                    return Err(protocol(format!(
                        "holder sent {} bytes where {owed} were owed",
                        head.body_bytes
                    )));
                }
                Ok(Body::Data)
            }
            FrameKind::End => {
                let complete = owed == 0;
                if !complete && !expected.cancelled {
                    return Err(protocol(format!("holder ended a request {owed} bytes early")));
                }
                self.outstanding.pop_front();
                Ok(Body::End { complete })
            }
            FrameKind::Fault => {
                self.outstanding.pop_front();
                Ok(Body::Fault)
            }
            FrameKind::Control => Ok(Body::Control),
        }
    }

    /// Checks the length of a run (a hole, or zeros) against what is owed.
    pub fn handle_run(&self, run_bytes: u64) -> Result<()> {
        let owed = self.owed();
        if run_bytes == 0 || run_bytes > owed {
            return Err(protocol(format!(
                "holder sent a run of {run_bytes} zeros where {owed} bytes were owed"
            )));
        }
        Ok(())
    }

    /// Checks how many bytes a packed frame stands for against what is owed.
    pub fn handle_packed(&self, data_bytes: u64) -> Result<()> {
        let owed = self.owed();
        if data_bytes == 0 || data_bytes > owed.min(DATA_FRAME_BYTES_MAX as u64) {
            return Err(protocol(format!("holder packed {data_bytes} bytes where {owed} were owed")));
        }
        Ok(())
    }

    fn owed(&self) -> u64 {
        match (self.outstanding.front(), self.geometry) {
            (Some(expected), Some(geometry)) => expected.owed(geometry),
            _ => 0,
        }
    }

    /// Advances over the next `max` bytes or fewer: up to the end of the group they lie in. `None` if nothing is owed.
    pub fn piece(&mut self, max: u64) -> Option<Piece> {
        let geometry = self.geometry?;
        let len = max.min(self.owed());
        let expected = self.outstanding.front_mut()?;
        if len == 0 || expected.rest.is_some() {
            return None;
        }
        let group = expected.next_byte / GROUP_BYTES;
        let offset = (expected.next_byte % GROUP_BYTES) as usize;
        let left = geometry.group_bytes(group) - offset;
        let len = left.min(usize::try_from(len).unwrap_or(usize::MAX));
        expected.next_byte += len as u64;
        Some(Piece { group, offset, len, completes_group: len == left })
    }

    /// Takes the body of a control frame.
    pub fn handle_control(&mut self, body: &[u8]) -> Result<ReceiverInput> {
        let message = Message::from_bytes(body)?;
        if self.agreed.is_none() {
            return match message {
                Message::Hello(theirs) => {
                    let agreed = negotiate(&self.ours, &theirs)?;
                    self.agreed = Some(agreed.clone());
                    Ok(ReceiverInput::Agreed(agreed))
                }
                Message::Fault(fault) => Err(fault.to_error("peer")),
                _ => Err(protocol("peer did not say hello first".into())),
            };
        }
        match message {
            Message::Opened(opened) => {
                let said = Geometry::new(opened.size_bytes);
                if let Some(known) = self.geometry
                    && known != said
                {
                    return Err(Error::new(
                        ErrorKind::VerificationFailed,
                        format!(
                            "holder says the object has {} bytes, not {}",
                            opened.size_bytes,
                            known.size_bytes()
                        ),
                    ));
                }
                self.geometry = Some(said);
                Ok(ReceiverInput::Opened(opened))
            }
            Message::Sealed(sealed) => Ok(ReceiverInput::Sealed(sealed.root)),
            Message::Compared(compared) => Ok(ReceiverInput::Compared(compared.pairs.into())),
            Message::Described(described) => Ok(ReceiverInput::Described(described.root)),
            Message::Node(node) => Ok(ReceiverInput::Node(RecipeId::from_bytes(*node.id), node.bytes.into())),
            Message::Summed(summed) => Ok(ReceiverInput::Summed(summed)),
            Message::Fault(fault) => Ok(ReceiverInput::Fault(fault)),
            Message::ClearGrant(grant) => {
                let token: [u8; 16] = grant
                    .token
                    .as_slice()
                    .try_into()
                    .map_err(|_| protocol("token of the wrong length".into()))?;
                Ok(ReceiverInput::ClearGrant(token))
            }
            Message::Copy(_)
            | Message::Offer(_)
            | Message::Direct(_)
            | Message::Progress(_)
            | Message::Delivered(_) => Ok(ReceiverInput::Copy(message)),
            other => Err(protocol(format!("holder sent {}", variant(&other)))),
        }
    }
}

fn protocol(what: String) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

#[cfg(test)]
mod tests {
    use dray_core::message::PROTOCOL_VERSION;

    use super::*;

    fn hello() -> Hello {
        Hello { version: PROTOCOL_VERSION, features: vec![], required: vec![], agent: "t".into() }
    }

    fn receiver(size_bytes: u64) -> Receiver {
        let mut receiver = Receiver::new(hello(), Some(Geometry::new(size_bytes)), true);
        receiver.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        receiver
    }

    fn fetch(request: u32, start_group: u64, groups: u64) -> Fetch {
        Fetch { request, handle: 1, start_group, groups, known_depth: 0, recheck: false }
    }

    fn head(kind: FrameKind, body_bytes: usize, request: u32) -> FrameHead {
        FrameHead { kind, body_bytes, request }
    }

    /// What both sides agreed on is known from the holder's hello on.
    #[test]
    fn hellos_are_agreed_on() {
        let mut receiver = Receiver::new(hello(), None, true);
        assert_eq!(receiver.hello(), Message::Hello(hello()));
        assert!(receiver.agreed().is_none());
        receiver.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        assert!(receiver.agreed().is_some());
    }

    /// A copy learns what it copies on the way: from then on answers are held against that.
    #[test]
    fn the_shape_may_come_later() {
        let mut receiver = Receiver::new(hello(), None, true);
        receiver.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        receiver.set_geometry(Geometry::new(50));
        assert_eq!(receiver.oldest(), None);
        receiver.fetch(&fetch(5, 0, 1));
        assert_eq!((receiver.oldest(), receiver.outstanding()), (Some(5), 1));
        assert_eq!(receiver.room(), REQUESTS_PER_CONNECTION_MAX - 1);
        assert_eq!(receiver.handle_head(head(FrameKind::Data, 50, 5)).unwrap(), Body::Data);
        let all = Piece { group: 0, offset: 0, len: 50, completes_group: true };
        assert_eq!(receiver.piece(50).unwrap(), all);
    }

    /// Protocol "Order": pairs come before the first byte of their request, once.
    #[test]
    fn pairs_come_first() {
        let mut early = receiver(17 * GROUP_BYTES);
        early.fetch(&fetch(1, 0, 2));
        early.handle_head(head(FrameKind::Parents, 64, 1)).unwrap();
        assert_eq!(
            early.handle_head(head(FrameKind::Parents, 64, 1)).unwrap_err().kind(),
            ErrorKind::Protocol
        );
        let mut late = receiver(17 * GROUP_BYTES);
        late.fetch(&fetch(1, 0, 2));
        late.handle_head(head(FrameKind::Data, 1, 1)).unwrap();
        late.piece(1).unwrap();
        assert_eq!(
            late.handle_head(head(FrameKind::Parents, 64, 1)).unwrap_err().kind(),
            ErrorKind::Protocol
        );
    }

    #[test]
    fn pieces_follow_the_groups() {
        let size = 17 * GROUP_BYTES + 100;
        let mut receiver = receiver(size);
        receiver.fetch(&fetch(1, 16, 2));
        assert_eq!(receiver.handle_head(head(FrameKind::Parents, 64, 1)).unwrap(), Body::Parents);
        assert_eq!(receiver.handle_head(head(FrameKind::Data, 65_536 + 50, 1)).unwrap(), Body::Data);
        let first = receiver.piece(65_536 + 50).unwrap();
        assert_eq!(first, Piece { group: 16, offset: 0, len: 65_536, completes_group: true });
        let second = receiver.piece(50).unwrap();
        assert_eq!(second, Piece { group: 17, offset: 0, len: 50, completes_group: false });
        assert_eq!(receiver.handle_head(head(FrameKind::Hole, 8, 1)).unwrap(), Body::Hole);
        assert!(receiver.handle_run(51).is_err());
        receiver.handle_run(50).unwrap();
        assert_eq!(
            receiver.piece(50).unwrap(),
            Piece { group: 17, offset: 50, len: 50, completes_group: true }
        );
        assert_eq!(receiver.handle_head(head(FrameKind::End, 0, 1)).unwrap(), Body::End { complete: true });
        assert_eq!(receiver.outstanding(), 0);
    }

    /// The "zero runs cost nothing on the wire": a run of zeros is taken where both sides know of it, and only there.
    #[test]
    fn runs_of_zeros_are_agreed_on() {
        let able = || Hello { features: vec![feature::ZEROS.into()], ..hello() };
        for (ours, theirs) in [(able(), able()), (able(), hello()), (hello(), able())] {
            let both = ours == theirs;
            let mut receiver = Receiver::new(ours, Some(Geometry::new(3 * GROUP_BYTES)), true);
            receiver.handle_control(&Message::Hello(theirs).to_bytes()).unwrap();
            receiver.fetch(&fetch(1, 0, 3));
            let body = receiver.handle_head(head(FrameKind::Zeros, 8, 1));
            if !both {
                assert!(body.unwrap_err().to_string().contains("not agreed"));
                continue;
            }
            assert_eq!(body.unwrap(), Body::Zeros);
            assert!(receiver.handle_run(0).is_err());
            assert!(receiver.handle_run(3 * GROUP_BYTES + 1).is_err());
            receiver.handle_run(2 * GROUP_BYTES).unwrap();
            let first = receiver.piece(2 * GROUP_BYTES).unwrap();
            assert_eq!(first, Piece { group: 0, offset: 0, len: 65_536, completes_group: true });
        }
    }

    /// P6, D37: packed data and rests are taken where both sides know of them, and never more than is owed.
    #[test]
    fn rests_and_packed_data_are_bounded() {
        let able = || Hello { features: vec![feature::PACKED.into()], ..hello() };
        let mut receiver = Receiver::new(able(), Some(Geometry::new(3 * GROUP_BYTES)), false);
        receiver.handle_control(&Message::Hello(able()).to_bytes()).unwrap();
        let mut have = dray_core::block_mask::BlockMask::default();
        (0..1022).for_each(|block| have.insert(block));
        receiver.fetch_rest(&FetchRest { request: 1, handle: 1, group: 1, known_depth: 0, have });
        receiver.fetch(&fetch(2, 0, 1));
        assert!(receiver.is_rest() && receiver.piece(1).is_none());
        assert_eq!(receiver.handle_head(head(FrameKind::Parents, 32, 1)).unwrap(), Body::Parents);
        assert!(receiver.handle_head(head(FrameKind::Data, 129, 1)).is_err(), "more than is lacking");
        assert!(receiver.handle_head(head(FrameKind::Hole, 8, 1)).is_err());
        assert!(receiver.handle_head(head(FrameKind::Zeros, 8, 1)).is_err());
        assert_eq!(receiver.handle_head(head(FrameKind::Packed, 50, 1)).unwrap(), Body::Packed);
        assert!(receiver.handle_packed(129).is_err() && receiver.handle_packed(0).is_err());
        receiver.handle_packed(100).unwrap();
        receiver.rest_piece(100).unwrap();
        assert!(receiver.handle_head(head(FrameKind::End, 0, 1)).unwrap_err().to_string().contains("early"));
        assert!(receiver.rest_piece(29).is_err());
        receiver.rest_piece(28).unwrap();
        assert_eq!(receiver.handle_head(head(FrameKind::End, 0, 1)).unwrap(), Body::End { complete: true });
        assert!(!receiver.is_rest());
        let error = receiver.handle_head(head(FrameKind::Parents, 32, 2)).unwrap_err();
        assert!(error.to_string().contains("out of place"), "of a whole group of a vouched object");
        let mut late = Receiver::new(able(), Some(Geometry::new(3 * GROUP_BYTES)), false);
        late.handle_control(&Message::Hello(able()).to_bytes()).unwrap();
        late.fetch_rest(&FetchRest { request: 1, handle: 1, group: 1, known_depth: 0, have });
        late.handle_head(head(FrameKind::Data, 1, 1)).unwrap();
        late.rest_piece(1).unwrap();
        let error = late.handle_head(head(FrameKind::Parents, 32, 1)).unwrap_err();
        assert!(error.to_string().contains("out of place"), "behind the first byte of a rest");
        let mut old = Receiver::new(able(), Some(Geometry::new(GROUP_BYTES)), true);
        old.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        old.fetch(&fetch(1, 0, 1));
        let error = old.handle_head(head(FrameKind::Packed, 50, 1)).unwrap_err();
        assert!(error.to_string().contains("not agreed"), "{error}");
    }

    /// A packed frame stands for no more than a frame of data may hold, however much is owed: that is what its receiver makes room for.
    #[test]
    fn packed_data_is_as_long_as_a_frame() {
        let mut receiver = receiver(40 * GROUP_BYTES);
        receiver.fetch(&fetch(1, 0, 40));
        receiver.handle_packed(DATA_FRAME_BYTES_MAX as u64).unwrap();
        let error = receiver.handle_packed(DATA_FRAME_BYTES_MAX as u64 + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    }

    #[test]
    fn answers_that_were_not_asked_for_are_refused() {
        let size = 40 * GROUP_BYTES;
        let bad = |frames: &[FrameHead]| {
            let mut receiver = receiver(size);
            receiver.fetch(&fetch(5, 0, 16));
            receiver.fetch(&fetch(6, 16, 16));
            let mut last = Ok(Body::Control);
            for frame in frames {
                last = receiver.handle_head(*frame);
                if let Ok(Body::Data) = last {
                    while receiver.piece(frame.body_bytes as u64).is_some() {}
                }
            }
            last.expect_err("must be refused").to_string()
        };
        assert!(bad(&[head(FrameKind::Data, 10, 6)]).contains("before request 5"));
        assert!(bad(&[head(FrameKind::Data, 10, 4)]).contains("before request 5"));
        assert!(bad(&[head(FrameKind::End, 0, 5)]).contains("early"));
        assert!(
            bad(&[head(FrameKind::Parents, 64, 5), head(FrameKind::Parents, 64, 5)]).contains("out of place")
        );
        assert!(
            bad(&[head(FrameKind::Data, 1 << 20, 5), head(FrameKind::Data, 1, 5)]).contains("0 were owed")
        );
        let mut quiet = receiver(size);
        assert!(
            quiet.handle_head(head(FrameKind::Data, 1, 1)).unwrap_err().to_string().contains("nobody asked")
        );
        let mut rude = Receiver::new(hello(), None, true);
        assert!(rude.handle_head(head(FrameKind::Data, 1, 1)).unwrap_err().to_string().contains("hello"));
        let wrong = Message::Opened(Opened { handle: 1, size_bytes: 3, name: None });
        let error = receiver(size).handle_control(&wrong.to_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    }

    #[test]
    fn a_cancelled_request_may_end_early() {
        let mut receiver = receiver(40 * GROUP_BYTES);
        receiver.fetch(&fetch(5, 0, 16));
        assert!(receiver.cancel(5));
        assert!(!receiver.cancel(6));
        assert_eq!(receiver.handle_head(head(FrameKind::End, 0, 5)).unwrap(), Body::End { complete: false });
    }
}
