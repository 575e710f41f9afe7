//! Target `session-pair`: an honest holder and an honest receiver whose messages are delayed as the input says. Neither
//! may find fault with the other, and every request must be answered.

use std::collections::{BTreeSet, VecDeque};

use dray_core::Oid;
use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{DATA_FRAME_BYTES_MAX, GROUP_BYTES};
use dray_core::message::{
    Cancel, Describe, Described, Fetch, Hello, Message, Node, Nodes, ObjectName, Open, Opened,
    PROTOCOL_VERSION, feature,
};
use dray_core::recipe::RecipeId;
use dray_engine::session::{Body, Holder, HolderInput, Job, Receiver, ReceiverInput};

use crate::input::Input;
use crate::{Seed, novelty};

/// Steps that the input decides; afterwards everything is delivered.
const STEPS_MAX: usize = 600;

/// Every request that was not cancelled comes whole, every one comes to its end, and nobody complains.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let size_bytes = u64::from(input.u16()) * 5000;
    let mut pair = Pair::new(Geometry::new(size_bytes));
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 10 {
            0 | 1 => pair.ask(input.byte()),
            8 => pair.ask_for_group(input.byte()),
            9 => pair.ask_for_recipe(input.byte()),
            2 => pair.cancel(u32::from(input.byte())),
            3 => drop(pair.reach_holder()),
            4 => drop(pair.reach_receiver()),
            _ => drop(pair.answer(&mut input)),
        }
    }
    let mut rest = Input::new(&[]);
    while pair.reach_holder() || pair.answer(&mut rest) || pair.reach_receiver() {}
    assert_eq!(pair.receiver.outstanding(), 0, "every request comes to an end");
    assert_eq!(
        (pair.described, pair.owed_nodes),
        (pair.asked_to_describe, vec![]),
        "every question is answered"
    );
    assert!(pair.broken.is_subset(&pair.cancelled), "only what was cancelled may end early");
    novelty::note((pair.next_request.min(20), pair.broken.len().min(5), pair.cancelled.len().min(5)));
}

struct Pair {
    geometry: Geometry,
    holder: Holder,
    receiver: Receiver,
    to_holder: VecDeque<Vec<u8>>,
    to_receiver: VecDeque<(FrameHead, Vec<u8>)>,
    /// The job that the holder answers, and the next byte of it.
    job: Option<(Job, u64)>,
    next_request: u32,
    is_opened: bool,
    cancelled: BTreeSet<u32>,
    /// Questions for the recipe, and how many of them were answered.
    asked_to_describe: u32,
    described: u32,
    /// Nodes that were asked for and have not come, oldest first.
    owed_nodes: Vec<RecipeId>,
    /// Requests that ended early.
    broken: BTreeSet<u32>,
}

impl Pair {
    fn new(geometry: Geometry) -> Pair {
        let features = vec![feature::RECIPE.to_owned(), feature::ZEROS.to_owned()];
        let hello = Hello { version: PROTOCOL_VERSION, features, required: vec![], agent: "dray/0".into() };
        let (holder, receiver) = (Holder::new(hello.clone()), Receiver::new(hello, Some(geometry), true));
        let open = Message::Open(Open { handle: 1, object: ObjectName::Oid(Oid::of(b"")), proof: None });
        let mut pair = Pair {
            to_holder: [receiver.hello(), open].iter().map(Message::to_bytes).collect(),
            to_receiver: VecDeque::new(),
            geometry,
            holder,
            receiver,
            job: None,
            next_request: 1,
            is_opened: false,
            cancelled: BTreeSet::new(),
            asked_to_describe: 0,
            described: 0,
            owed_nodes: Vec::new(),
            broken: BTreeSet::new(),
        };
        if let Some(hello) = pair.holder.hello() {
            pair.say(&hello);
        }
        pair
    }

    fn say(&mut self, message: &Message) {
        let body = message.to_bytes();
        self.to_receiver.push_back((FrameHead::new(FrameKind::Control, body.len(), 0), body));
    }

    /// The receiver asks for a unit.
    fn ask(&mut self, choice: u8) {
        if self.receiver.room() == 0 {
            return;
        }
        self.fetch(self.geometry.unit(u64::from(choice) % self.geometry.units()), choice);
    }

    /// The receiver asks for one group.
    fn ask_for_group(&mut self, choice: u8) {
        if self.receiver.room() > 0 {
            self.fetch(Subtree { start: u64::from(choice) % self.geometry.groups(), groups: 1 }, choice);
        }
    }

    fn fetch(&mut self, node: Subtree, choice: u8) {
        let request = self.next_request;
        self.next_request += 1;
        let known_depth = u32::from(choice) % self.geometry.path(node).len() as u32;
        let fetch = Fetch {
            request,
            handle: 1,
            start_group: node.start,
            groups: node.groups,
            known_depth,
            recheck: false,
        };
        self.receiver.fetch(&fetch);
        self.to_holder.push_back(Message::Fetch(fetch).to_bytes());
    }

    /// The receiver, which may ask for it once the object is open, asks for the recipe or for some of its nodes.
    fn ask_for_recipe(&mut self, choice: u8) {
        if !self.is_opened {
            return;
        }
        let count = choice % 8;
        if count == 0 {
            self.asked_to_describe += 1;
            self.to_holder.push_back(Message::Describe(Describe { handle: 1 }).to_bytes());
            return;
        }
        let ids: Vec<[u8; 32]> = (0..count).map(|number| [choice.wrapping_add(number); 32]).collect();
        self.owed_nodes.extend(ids.iter().copied().map(RecipeId::from_bytes));
        let ids = ids.into_iter().map(Into::into).collect();
        self.to_holder.push_back(Message::Nodes(Nodes { handle: 1, ids }).to_bytes());
    }

    fn cancel(&mut self, choice: u32) {
        let request = choice % self.next_request;
        if self.receiver.cancel(request) {
            self.cancelled.insert(request);
            self.to_holder.push_back(Message::Cancel(Cancel { request }).to_bytes());
        }
    }

    /// One message arrives at the holder; false if there was none.
    fn reach_holder(&mut self) -> bool {
        let Some(body) = self.to_holder.pop_front() else { return false };
        let head = FrameHead::new(FrameKind::Control, body.len(), 0);
        assert!(self.holder.handle_head(head).is_ok());
        match self.holder.handle_control(&body).expect("an honest receiver") {
            HolderInput::Open(open) => {
                self.holder.opened(open.handle, self.geometry);
                let size_bytes = self.geometry.size_bytes();
                self.say(&Message::Opened(Opened { handle: open.handle, size_bytes, name: None }));
            }
            HolderInput::None | HolderInput::Agreed(_) => {}
            HolderInput::Describe(handle) => self.say(&Message::Described(Described { handle, root: None })),
            HolderInput::Nodes(handle, ids) => {
                for id in ids {
                    let (id, bytes) = ((*id.as_bytes()).into(), id.as_bytes().to_vec().into());
                    self.say(&Message::Node(Node { handle, id, bytes }));
                }
            }
            other => panic!("{other:?}"),
        }
        true
    }

    /// The holder writes one frame; false if there is nothing to answer.
    fn answer(&mut self, input: &mut Input<'_>) -> bool {
        let Some((job, next)) = self.job else { return self.begin() };
        let range = self.geometry.byte_range(job.groups);
        if next == range.end || self.holder.is_cancelled(job.request) {
            self.send(FrameKind::End, job.request, vec![]);
            self.holder.finished(job.request);
            self.job = None;
            return true;
        }
        let (kind, cut) = (input.byte(), input.u16());
        let left = range.end - next;
        let len =
            if cut == 0 { left } else { (u64::from(cut) * 7).min(left) }.min(DATA_FRAME_BYTES_MAX as u64);
        if let run @ (1 | 2) = kind % 4 {
            let kind = if run == 1 { FrameKind::Hole } else { FrameKind::Zeros };
            self.send(kind, job.request, len.to_be_bytes().into());
        } else {
            // The sessions see lengths alone, so the bytes are left out.
            self.to_receiver.push_back((FrameHead::new(FrameKind::Data, len as usize, job.request), vec![]));
        }
        self.job = Some((job, next + len));
        true
    }

    fn begin(&mut self) -> bool {
        match self.holder.next_job().expect("an honest receiver") {
            None => false,
            Some(Ok(job)) => {
                if job.groups.groups > 1 {
                    self.send(FrameKind::Parents, job.request, vec![0; 64]);
                }
                self.job = Some((job, job.groups.start * GROUP_BYTES));
                true
            }
            Some(Err(request)) => {
                self.send(FrameKind::End, request, vec![]);
                true
            }
        }
    }

    fn send(&mut self, kind: FrameKind, request: u32, body: Vec<u8>) {
        self.to_receiver.push_back((FrameHead::new(kind, body.len(), request), body));
    }

    /// One frame arrives at the receiver; false if there was none.
    fn reach_receiver(&mut self) -> bool {
        let Some((head, body)) = self.to_receiver.pop_front() else { return false };
        match self.receiver.handle_head(head).expect("an honest holder") {
            Body::Control => match self.receiver.handle_control(&body).expect("an honest holder") {
                ReceiverInput::Opened(_) => self.is_opened = true,
                ReceiverInput::Described(None) => self.described += 1,
                ReceiverInput::Node(id, bytes) => {
                    assert_eq!((self.owed_nodes.remove(0), &bytes[..]), (id, &id.as_bytes()[..]), "in order");
                }
                ReceiverInput::Agreed(_) => {}
                other => panic!("{other:?}"),
            },
            Body::Parents => {}
            Body::Data => self.take(head.body_bytes as u64),
            Body::Hole | Body::Zeros => {
                let run = u64::from_be_bytes(body.try_into().expect("eight bytes"));
                self.receiver.handle_run(run).expect("an honest holder");
                self.take(run);
            }
            Body::End { complete: true } => {}
            Body::End { complete: false } => drop(self.broken.insert(head.request)),
            Body::Packed => panic!("nobody packed data"),
            Body::Fault => panic!("nobody sent a fault"),
        }
        true
    }

    fn take(&mut self, mut left: u64) {
        while left > 0 {
            left -= self.receiver.piece(left).expect("no more than is owed").len as u64;
        }
    }
}

/// Requests in a row, mixed, and cancelled at each stage.
pub fn seeds() -> Vec<Seed> {
    let mixed = [0, 0, 0, 1, 3, 3, 3, 5, 5, 0, 1, 0, 4, 4, 2, 2, 3, 5, 0, 0, 0, 4, 5, 0, 0, 0].to_vec();
    vec![
        ("row".into(), [&[4, 0][..], &[0, 0, 0, 1, 0, 2, 0, 3]].concat()),
        ("mixed".into(), [&[2, 100][..], &mixed].concat()),
        ("cancelled-at-once".into(), [&[2, 0][..], &[0, 0, 2, 1, 0, 1]].concat()),
        ("cancelled-while-answered".into(), [&[2, 0][..], &[0, 0, 3, 3, 3, 5, 5, 0, 1, 2, 1, 3]].concat()),
        (
            "recipe-between-groups".into(),
            [&[2, 100][..], &[3, 3, 4, 4, 9, 0, 8, 3, 9, 7, 8, 20, 0, 1, 3, 3, 3, 5, 0, 0, 0, 4, 4, 9, 3]]
                .concat(),
        ),
        ("empty-object".into(), [&[0, 0][..], &[0, 0, 0, 0]].concat()),
    ]
}
