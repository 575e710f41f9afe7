//! Target `session-receiver`: the receiver's side of a connection against a holder that sends any frames in any order.

use std::collections::VecDeque;
use std::ops::Range;

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{
    DATA_FRAME_BYTES_MAX, GROUP_BYTES, PARENT_FRAME_BYTES_MAX, REQUESTS_PER_CONNECTION_MAX,
};
use dray_core::message::{
    Described, Fetch, Hello, Message, Node, Opened, PROTOCOL_VERSION, feature, samples,
};
use dray_core::recipe::RecipeId;
use dray_core::{Error, ErrorKind};
use dray_engine::session::{Body, Receiver, ReceiverInput};

use crate::input::Input;
use crate::{Seed, novelty};

/// Steps of one input.
const STEPS_MAX: usize = 400;
/// Sizes of the object, in groups and bytes of the last.
const SIZES: [(u64, u64); 6] = [(1, 0), (1, 1), (1, GROUP_BYTES), (17, 900), (40, 1), (64, GROUP_BYTES)];

/// Bytes come out in order, each once, cut at the groups, and only those of the oldest request; a request ends when it
/// is complete or cancelled; anything else ends the connection with an error of the right kind.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let (groups, tail) = SIZES[input.below(SIZES.len())];
    let geometry = Geometry::new((groups - 1) * GROUP_BYTES + tail);
    let manners = input.byte();
    let mut run = Run {
        receiver: Receiver::new(hello(), (manners & 1 == 0).then_some(geometry), manners & 2 == 0),
        geometry,
        is_agreed: manners & 12 != 12,
        wants_parents: manners & 2 == 0,
        owed: VecDeque::new(),
        next_request: 1,
    };
    if run.is_agreed {
        assert!(run.receiver.handle_control(&Message::Hello(hello()).to_bytes()).is_ok());
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        if let Err(error) = run.step(&mut input) {
            return super::assert_clear(&error);
        }
    }
}

struct Owed {
    request: u32,
    range: Range<u64>,
    next: u64,
    has_parents: bool,
    is_cancelled: bool,
}

struct Run {
    receiver: Receiver,
    geometry: Geometry,
    is_agreed: bool,
    wants_parents: bool,
    owed: VecDeque<Owed>,
    next_request: u32,
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        assert_eq!(self.receiver.outstanding(), self.owed.len());
        assert_eq!(self.receiver.room(), REQUESTS_PER_CONNECTION_MAX - self.owed.len());
        assert_eq!(self.receiver.oldest(), self.owed.front().map(|owed| owed.request));
        let choice = input.byte() % 13;
        novelty::note((
            choice,
            self.owed.len().min(3),
            self.owed.front().is_some_and(|owed| owed.is_cancelled),
        ));
        match choice {
            0 | 1 => {
                self.ask(input);
                Ok(())
            }
            2 => {
                let request = u32::from(input.byte()) % (self.next_request + 1);
                let owed = self.owed.iter_mut().find(|owed| owed.request == request);
                assert_eq!(self.receiver.cancel(request), owed.is_some());
                owed.into_iter().for_each(|owed| owed.is_cancelled = true);
                Ok(())
            }
            3 => self.hear(input),
            _ => self.frame(choice, input),
        }
    }

    /// Asks for a unit, for one group or two, or for the whole object.
    fn ask(&mut self, input: &mut Input<'_>) {
        if self.receiver.room() == 0 {
            return;
        }
        let choice = u64::from(input.byte());
        let node = match choice {
            255 => self.geometry.root(),
            128.. => {
                let group = (choice - 128) % self.geometry.groups();
                let pair = self.geometry.subtree(group & !1, 2).filter(|_| choice.is_multiple_of(2));
                pair.unwrap_or(Subtree { start: group, groups: 1 })
            }
            _ => self.geometry.unit(choice % self.geometry.units()),
        };
        let Subtree { start, groups } = node;
        let request = self.next_request;
        self.next_request += 1;
        let fetch = Fetch { request, handle: 1, start_group: start, groups, known_depth: 0, recheck: false };
        self.receiver.fetch(&fetch);
        let range = self.geometry.byte_range(node);
        self.owed.push_back(Owed {
            request,
            next: range.start,
            range,
            has_parents: false,
            is_cancelled: false,
        });
    }

    /// A control message from the holder.
    fn hear(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let message = match input.byte() % 6 {
            0 => Message::Hello(hello()),
            1 => Message::Opened(Opened { handle: 1, size_bytes: self.geometry.size_bytes(), name: None }),
            2 => Message::Opened(Opened { handle: 1, size_bytes: u64::from(input.u16()), name: None }),
            4 => Message::Described(Described { handle: 1, root: None }),
            5 => {
                let id = [input.byte(); 32].into();
                let len = input.below(9000);
                Message::Node(Node { handle: 1, id, bytes: input.bytes(len).to_vec().into() })
            }
            _ => {
                let samples = samples();
                samples[input.below(samples.len())].1.clone()
            }
        };
        let said = match &message {
            Message::Opened(opened) => Some(Geometry::new(opened.size_bytes)),
            _ => None,
        };
        let heard = self.receiver.handle_control(&message.to_bytes())?;
        assert_eq!(
            matches!(heard, ReceiverInput::Agreed(_)),
            !self.is_agreed,
            "one hello, and it comes first"
        );
        self.is_agreed = true;
        match (&message, &heard) {
            (Message::Described(described), heard) => {
                assert_eq!(*heard, ReceiverInput::Described(described.root));
            }
            (Message::Node(node), heard) => {
                let told = ReceiverInput::Node(RecipeId::from_bytes(*node.id), node.bytes.to_vec());
                assert_eq!(*heard, told);
            }
            _ => {}
        }
        if let Some(said) = said
            && said != self.geometry
        {
            // The holder was the first to say a size, and this input's requests are for another.
            return Err(Error::new(ErrorKind::Protocol, "the object has another size"));
        }
        Ok(())
    }

    fn frame(&mut self, choice: u8, input: &mut Input<'_>) -> Result<(), Error> {
        let request = match input.byte() {
            other @ 250.. => u32::from(other - 250),
            _ => self.owed.front().map_or(1, |owed| owed.request),
        };
        let left = self.owed.front().map_or(0, |owed| owed.range.end - owed.next);
        let length = |input: &mut Input<'_>, limit: usize| {
            let wanted = match input.byte() % 4 {
                0 => left,
                1 => u64::from(input.byte()) + 1,
                2 => input.near_power(),
                _ => left.saturating_add(1),
            };
            wanted.clamp(1, limit as u64)
        };
        let (kind, body_bytes) = match choice {
            4 | 5 => (FrameKind::Parents, length(input, PARENT_FRAME_BYTES_MAX)),
            6 | 7 => (FrameKind::Data, length(input, DATA_FRAME_BYTES_MAX)),
            8 => (FrameKind::Hole, 8),
            12 => (FrameKind::Zeros, 8),
            9 | 10 => (FrameKind::End, 0),
            _ => (FrameKind::Fault, 1),
        };
        let head = FrameHead { kind, body_bytes: body_bytes as usize, request };
        let body = self.receiver.handle_head(head)?;
        assert!(self.is_agreed, "nothing but a hello before the hello");
        let owed = self.owed.front_mut().expect("no frame without a request");
        assert_eq!(owed.request, request, "answers in the order of the requests");
        match (kind, body) {
            (FrameKind::Parents, Body::Parents) => {
                assert!(self.wants_parents && !owed.has_parents && owed.next == owed.range.start);
                owed.has_parents = true;
            }
            (FrameKind::Data, Body::Data) => self.pieces(body_bytes),
            (FrameKind::Hole, Body::Hole) | (FrameKind::Zeros, Body::Zeros) => {
                let run = length(input, usize::MAX);
                self.receiver.handle_run(run)?;
                self.pieces(run);
            }
            (FrameKind::End, Body::End { complete }) => {
                assert_eq!(complete, owed.next == owed.range.end);
                assert!(complete || owed.is_cancelled);
                self.owed.pop_front();
            }
            (FrameKind::Fault, Body::Fault) => drop(self.owed.pop_front()),
            (kind, body) => panic!("a {kind:?} frame was taken for {body:?}"),
        }
        Ok(())
    }

    /// Takes `left` bytes piece by piece.
    fn pieces(&mut self, mut left: u64) {
        let owed = self.owed.front_mut().expect("checked");
        while left > 0 {
            let piece = self.receiver.piece(left).expect("no more was let through than was owed");
            assert_eq!(piece.group * GROUP_BYTES + piece.offset as u64, owed.next, "bytes come in order");
            assert!(piece.len > 0 && piece.len as u64 <= left);
            let group_end = piece.group * GROUP_BYTES + self.geometry.group_bytes(piece.group) as u64;
            owed.next += piece.len as u64;
            assert!(owed.next <= group_end && owed.next <= owed.range.end, "a piece lies in one group");
            assert_eq!(piece.completes_group, owed.next == group_end);
            left -= piece.len as u64;
        }
        novelty::note(("owed", (owed.range.end - owed.next).next_power_of_two()));
    }
}

fn hello() -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        features: vec![feature::ZEROS.into()],
        required: vec![],
        agent: "dray/0".into(),
    }
}

/// Honest answers, early ends and late ones.
pub fn seeds() -> Vec<Seed> {
    // 0 u: ask for unit u. 4 r l: parents. 6 r l: data (l = 0: all that is left). 8 r l: hole. 9 r: end. 2 r: cancel. 12 r l: zeros.
    vec![
        ("whole".into(), [&[4, 0][..], &[0, 0], &[4, 0, 0], &[6, 0, 0], &[9, 0]].concat()),
        (
            "in-parts".into(),
            [&[3, 0][..], &[0, 1, 0, 0], &[6, 0, 1, 99], &[8, 0, 1, 9], &[6, 0, 0], &[9, 0]].concat(),
        ),
        ("cancelled".into(), [&[5, 0][..], &[0, 255], &[6, 0, 0], &[2, 1], &[9, 0]].concat()),
        (
            "groups".into(),
            [&[4, 0][..], &[0, 128, 0, 131], &[6, 0, 0], &[9, 0], &[6, 0, 0], &[9, 0]].concat(),
        ),
        ("described".into(), [&[4, 0][..], &[3, 4], &[3, 5, 7, 0, 4, 1, 2, 3, 4], &[3, 5, 7, 0, 0]].concat()),
        ("described-before-hello".into(), [&[4, 12][..], &[3, 4]].concat()),
        (
            "zeros".into(),
            [&[4, 0][..], &[0, 1], &[12, 0, 1, 9], &[6, 0, 1, 99], &[12, 0, 0], &[9, 0]].concat(),
        ),
        ("too-much".into(), [&[4, 0][..], &[0, 2], &[6, 0, 3]].concat()),
        ("ended-early".into(), [&[4, 0][..], &[0, 2], &[9, 0]].concat()),
        ("empty-object".into(), [&[0, 0][..], &[0, 0], &[9, 0]].concat()),
        ("size-from-holder".into(), [&[3, 1][..], &[3, 1], &[0, 0], &[6, 0, 0], &[9, 0]].concat()),
        ("failed".into(), [&[4, 0][..], &[0, 0, 0, 1], &[11, 0], &[6, 0, 0], &[9, 0]].concat()),
        ("rude".into(), [&[4, 12][..], &[3, 3, 1]].concat()),
    ]
}
