//! Target `session-holder`: the holder's side of a connection against a receiver that says anything, in any order,
//! while the holder opens, refuses, answers and finishes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::hash_tree::Geometry;
use dray_core::limits::{
    GROUP_BYTES, OBJECTS_PER_CONNECTION_MAX, RECIPE_NODES_ASKED_MAX, REQUEST_GROUPS_MAX,
    REQUESTS_PER_CONNECTION_MAX, UNIT_GROUPS,
};
use dray_core::message::{
    Cancel, Describe, Fetch, Hello, Message, Nodes, ObjectName, Open, PROTOCOL_VERSION, Seal, feature,
    samples,
};
use dray_core::recipe::RecipeId;
use dray_core::{Error, ErrorKind, Oid};
use dray_engine::session::{Holder, HolderInput, Job};

use super::geometry::is_subtree;
use crate::input::Input;
use crate::{Seed, novelty};

/// Steps of one input.
const STEPS_MAX: usize = 400;

/// Nothing before a hello; jobs in the order of the requests, each a sound request for an open object, each once;
/// counts within the limits; the first broken rule ends the connection with a protocol error.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut run = Run { holder: Holder::new(hello(&mut Input::new(&[16]))), model: Model::default() };
    let greeting = input.byte();
    if !greeting.is_multiple_of(4) {
        // Most inputs begin politely, and half of these know what a recipe is.
        let has_recipe = greeting & 4 != 0;
        let hello = hello(&mut Input::new(&[if has_recipe { 16 } else { 0 }]));
        let greeting = run.holder.handle_control(&Message::Hello(hello).to_bytes());
        assert!(matches!(greeting, Ok(HolderInput::Agreed(_))));
        run.model.agreed = true;
        run.model.has_recipe = has_recipe;
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        if let Err(error) = run.step(&mut input) {
            super::assert_clear(&error);
            return;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Slot {
    Asked(ObjectName),
    Open(ObjectName, Geometry),
    Refused,
}

/// What the holder ought to know.
#[derive(Default)]
struct Model {
    agreed: bool,
    /// Both know what a recipe is.
    has_recipe: bool,
    slots: BTreeMap<u32, Slot>,
    queue: VecDeque<Fetch>,
    running: Option<u32>,
    cancelled: BTreeSet<u32>,
    next_request: u32,
}

struct Run {
    holder: Holder,
    model: Model,
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let choice = input.byte() % 18;
        novelty::note((choice, self.model.queue.len().min(4), self.model.slots.len().min(3)));
        match choice {
            0 => self.hear(&Message::Hello(hello(input))),
            1 | 2 => {
                let handle = u32::from(input.byte() % 20);
                let object = if handle.is_multiple_of(2) {
                    ObjectName::Oid(Oid::of(b"sample"))
                } else {
                    ObjectName::Provisional([9; 32])
                };
                self.hear(&Message::Open(Open { handle, object, proof: None }))
            }
            3..=6 => {
                let fetch = self.fetch(input);
                self.hear(&Message::Fetch(fetch))
            }
            7 => self.hear(&Message::Cancel(Cancel { request: self.some_request(input) })),
            8 => {
                let handle = u32::from(input.byte() % 20);
                self.hear(&Message::Seal(Seal { handle, root: Oid::of(b"") }))
            }
            9 => {
                let samples = samples();
                self.hear(&samples[input.below(samples.len())].1)
            }
            10 => {
                let len = input.below(200);
                self.hear_bytes(input.bytes(len))
            }
            11 => {
                let mut raw = [0; FRAME_HEAD_BYTES];
                let bytes = input.bytes(FRAME_HEAD_BYTES);
                raw[..bytes.len()].copy_from_slice(bytes);
                self.holder.handle_head(FrameHead::decode(raw)?)?;
                assert_eq!((raw[0], &raw[4..]), (1, &[0; 4][..]), "only control frames");
                Ok(())
            }
            12 | 13 => self.decide(input),
            14 => self.take_job(),
            16 => {
                let handle = u32::from(input.byte() % 20);
                self.hear(&Message::Describe(Describe { handle }))
            }
            17 => {
                let handle = u32::from(input.byte() % 20);
                // One more than may be asked for, now and then.
                let count = input.below(RECIPE_NODES_ASKED_MAX + 2);
                let ids = (0..count).map(|number| [number as u8; 32].into()).collect();
                self.hear(&Message::Nodes(Nodes { handle, ids }))
            }
            _ => {
                if let Some(request) = self.model.running.take() {
                    assert_eq!(self.holder.is_cancelled(request), self.model.cancelled.contains(&request));
                    self.holder.finished(request);
                    self.model.cancelled.remove(&request);
                    assert!(!self.holder.is_cancelled(request), "what is over is forgotten");
                }
                Ok(())
            }
        }
    }

    /// A fetch that is mostly right: of an open object, a unit or a few.
    fn fetch(&self, input: &mut Input<'_>) -> Fetch {
        let shape = input.byte();
        let handle = match shape & 1 {
            0 => self.model.slots.keys().next_back().copied().unwrap_or(0),
            _ => u32::from(input.byte() % 20),
        };
        let request = match shape & 6 {
            6 => self.some_request(input),
            _ => self.model.next_request + 1,
        };
        let groups = match shape >> 3 & 3 {
            0 => UNIT_GROUPS << (input.byte() % 8),
            // Parts of a unit, as an update asks for.
            1 => UNIT_GROUPS >> (input.byte() % 5),
            2 => u64::from(input.byte()),
            _ => input.near_power(),
        };
        let start_group = match shape >> 5 & 1 {
            0 => u64::from(input.byte()).wrapping_mul(groups),
            _ => input.near_power(),
        };
        let known_depth = if shape & 0x40 == 0 { 0 } else { u32::from(input.byte()) };
        Fetch { request, handle, start_group, groups, known_depth, recheck: shape & 0x80 != 0 }
    }

    fn some_request(&self, input: &mut Input<'_>) -> u32 {
        u32::from(input.byte()) % (self.model.next_request + 2)
    }

    fn hear(&mut self, message: &Message) -> Result<(), Error> {
        self.hear_bytes(&message.to_bytes())
    }

    fn hear_bytes(&mut self, body: &[u8]) -> Result<(), Error> {
        let heard = self.holder.handle_control(body);
        let message = Message::from_bytes(body);
        if let Err(error) = &heard {
            let kinds = [ErrorKind::Protocol, ErrorKind::Unsupported];
            let is_fault = matches!(message, Ok(Message::Fault(_)));
            assert!(is_fault || kinds.contains(&error.kind()), "{error}");
        }
        let heard = heard?;
        let message = message.expect("what was heard is a message");
        if !self.model.agreed {
            let (Message::Hello(hello), HolderInput::Agreed(_)) = (&message, &heard) else {
                panic!("{message:?} was heard as {heard:?} before the hello");
            };
            self.model.agreed = true;
            self.model.has_recipe = hello.features.iter().any(|name| name == feature::RECIPE);
            return Ok(());
        }
        match (message, heard) {
            (Message::Open(open), HolderInput::Open(_)) => {
                let before = self.model.slots.insert(open.handle, Slot::Asked(open.object));
                assert!(before.is_none(), "a handle names one object");
            }
            (Message::Fetch(fetch), HolderInput::None) => {
                let taken = self.model.running.iter().copied();
                let mut taken = taken.chain(self.model.queue.iter().map(|fetch| fetch.request));
                assert!(!taken.any(|request| request == fetch.request), "a request number is one request");
                match self.model.slots.get(&fetch.handle) {
                    None => panic!("a fetch from a handle that was never opened"),
                    Some(Slot::Open(_, geometry)) => assert_sound(*geometry, &fetch),
                    Some(_) => {}
                }
                self.model.next_request = self.model.next_request.max(fetch.request.min(1000));
                self.model.queue.push_back(fetch);
            }
            (Message::Cancel(cancel), HolderInput::None) => {
                let is_queued = self.model.queue.iter().any(|fetch| fetch.request == cancel.request);
                if is_queued || self.model.running == Some(cancel.request) {
                    self.model.cancelled.insert(cancel.request);
                }
            }
            (Message::Seal(seal), HolderInput::Seal(_)) => {
                let slot = self.model.slots.get(&seal.handle);
                assert!(matches!(slot, Some(Slot::Open(ObjectName::Provisional(_), _))));
            }
            (Message::Compare(compare), HolderInput::Compare(handle, subtrees)) => {
                let Some(Slot::Open(_, geometry)) = self.model.slots.get(&handle) else {
                    panic!("a comparison of an object that is not open");
                };
                assert_eq!((handle, subtrees.len()), (compare.handle, compare.subtrees.len()));
                for node in subtrees {
                    assert!(node.groups >= 2 && is_subtree(geometry.groups(), node.start, node.groups));
                }
            }
            (Message::Describe(Describe { handle }), heard) => {
                self.assert_describes(handle, heard == HolderInput::Describe(handle), &heard);
            }
            (Message::Nodes(nodes), heard) => {
                assert!(nodes.ids.len() <= RECIPE_NODES_ASKED_MAX);
                let ids = nodes.ids.iter().map(|id| RecipeId::from_bytes(**id)).collect();
                let is_question = heard == HolderInput::Nodes(nodes.handle, ids);
                self.assert_describes(nodes.handle, is_question, &heard);
            }
            (Message::ClearAsk(_), HolderInput::ClearAsk) | (_, HolderInput::Copy(_)) => {}
            (message, heard) => panic!("{message:?} was heard as {heard:?}"),
        }
        assert!(self.model.slots.len() <= OBJECTS_PER_CONNECTION_MAX);
        assert!(self.model.queue.len() <= REQUESTS_PER_CONNECTION_MAX);
        assert!(self.model.cancelled.len() <= REQUESTS_PER_CONNECTION_MAX + 1);
        Ok(())
    }

    /// A question for a recipe is passed on if the object is open, and left out if it was refused; nothing else passes.
    fn assert_describes(&self, handle: u32, is_question: bool, heard: &HolderInput) {
        assert!(self.model.has_recipe, "a recipe without the feature");
        match self.model.slots.get(&handle) {
            Some(Slot::Open(..)) => assert!(is_question, "{heard:?}"),
            Some(Slot::Refused) => assert_eq!(*heard, HolderInput::None),
            other => panic!("a recipe of {other:?}"),
        }
        novelty::note(("recipe", is_question));
    }

    /// The caller decides about an object that was asked for.
    fn decide(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let asked = self.model.slots.iter().find_map(|(handle, slot)| match slot {
            Slot::Asked(object) => Some((*handle, *object)),
            _ => None,
        });
        let Some((handle, object)) = asked else { return Ok(()) };
        let choice = input.byte();
        if choice.is_multiple_of(8) {
            self.holder.refused(handle);
            self.model.slots.insert(handle, Slot::Refused);
        } else {
            let geometry = Geometry::new(u64::from(choice) * GROUP_BYTES * 5 + u64::from(choice));
            self.holder.opened(handle, geometry);
            self.model.slots.insert(handle, Slot::Open(object, geometry));
        }
        Ok(())
    }

    fn take_job(&mut self) -> Result<(), Error> {
        if self.model.running.is_some() {
            return Ok(());
        }
        let Some(job) = self.holder.next_job()? else {
            let front = self.model.queue.front().and_then(|fetch| self.model.slots.get(&fetch.handle));
            assert!(matches!(front, None | Some(Slot::Asked(_))), "the oldest request could be answered");
            return Ok(());
        };
        let fetch = self.model.queue.pop_front().expect("a job comes from a request");
        let was_cancelled = self.model.cancelled.remove(&fetch.request);
        match (job, self.model.slots[&fetch.handle]) {
            (Ok(job), Slot::Open(_, geometry)) => {
                let Job { request, handle, groups, known_depth, recheck, have: _ } = job;
                assert!(!was_cancelled);
                assert_eq!((request, handle, recheck), (fetch.request, fetch.handle, fetch.recheck));
                assert_eq!((groups.start, groups.groups), (fetch.start_group, fetch.groups));
                assert_eq!(known_depth as u64, u64::from(fetch.known_depth));
                assert_sound(geometry, &fetch);
                novelty::note(("job", groups.groups, known_depth));
                self.model.running = Some(request);
            }
            (Err(request), slot) => {
                assert_eq!(request, fetch.request);
                assert!(was_cancelled || slot == Slot::Refused);
                assert!(!self.holder.is_cancelled(request), "what is over is forgotten");
            }
            (Ok(job), _) => panic!("{job:?} for an object that is not open"),
        }
        Ok(())
    }
}

/// What a holder may be asked (`docs/protocol/peer.md`): a subtree, not too large.
fn assert_sound(geometry: Geometry, fetch: &Fetch) {
    let Fetch { start_group, groups, known_depth, .. } = *fetch;
    assert!(groups <= REQUEST_GROUPS_MAX, "{fetch:?}");
    assert!(is_subtree(geometry.groups(), start_group, groups), "{fetch:?}");
    assert!(known_depth < 64, "{fetch:?}");
}

/// A hello; all zeros make the ordinary one.
fn hello(input: &mut Input<'_>) -> Hello {
    let choice = input.byte();
    let named = |bit: u8, name: &str| if choice & bit == 0 { vec![] } else { vec![name.to_owned()] };
    Hello {
        version: if choice & 8 == 0 { PROTOCOL_VERSION } else { u16::from(choice) },
        features: [named(1, feature::CLEAR_DATA), named(16, feature::RECIPE)].concat(),
        required: [named(2, feature::CLEAR_DATA), named(4, "tele\nport")].concat(),
        agent: "dray/0\u{1b}[1m".into(),
    }
}

/// Polite and impolite runs.
pub fn seeds() -> Vec<Seed> {
    // 1 h: open handle h. 12 n: open it as n * 5 groups. 3 s g t: fetch. 14: take a job. 15: finish it. 7 r: cancel.
    let polite =
        [&[1][..], &[1, 2], &[12, 33], &[3, 0, 0, 0], &[3, 0, 1, 1], &[14, 15, 14, 7, 2, 15]].concat();
    vec![
        ("two-requests".into(), polite),
        (
            "fetch-before-open".into(),
            [&[1][..], &[1, 2], &[3, 0, 0, 0], &[14], &[12, 33], &[14, 15]].concat(),
        ),
        (
            "refused".into(),
            [&[1][..], &[1, 2], &[3, 0, 0, 0], &[12, 8], &[14], &[3, 0, 0, 0], &[14]].concat(),
        ),
        ("sealed".into(), [&[1][..], &[1, 3], &[12, 33], &[8, 3]].concat()),
        (
            "described".into(),
            [&[5][..], &[1, 2], &[12, 33], &[16, 2], &[17, 2, 3], &[17, 2, 32], &[17, 2, 33]].concat(),
        ),
        ("described-unopened".into(), [&[5][..], &[1, 2], &[16, 2]].concat()),
        ("described-refused".into(), [&[5][..], &[1, 2], &[12, 8], &[16, 2], &[17, 2, 1]].concat()),
        ("described-without-the-feature".into(), [&[1][..], &[1, 2], &[12, 33], &[16, 2]].concat()),
        // 3 8 s g: groups g*16>>s of the object.
        (
            "parts-of-a-unit".into(),
            [&[1][..], &[1, 2], &[12, 33], &[3, 8, 4, 5], &[3, 8, 2, 3], &[14, 15, 14, 15]].concat(),
        ),
        ("no-hello".into(), [&[0][..], &[1, 2]].concat()),
        ("other-hello".into(), [&[0][..], &[0, 4]].concat()),
        (
            "cancelled-in-the-queue".into(),
            [&[1][..], &[1, 2], &[12, 33], &[3, 0, 0, 0], &[7, 1], &[14]].concat(),
        ),
        ("requests-to-the-limit".into(), [&[1, 1, 2, 12, 33][..], &[3, 0, 0, 0].repeat(64)].concat()),
        (
            "objects-to-the-limit".into(),
            (0..16).fold(vec![1], |seed, handle| [seed, vec![1, handle]].concat()),
        ),
    ]
}
