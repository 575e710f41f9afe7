//! The sending end of a channel: answers the requests of one receiver, in order, one thread a connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::hash_tree::{Cv, PairStore, Subtree, encode_parents, encode_path, group_cv, is_zero};
use dray_core::limits::{DATA_FRAME_BYTES_MAX, GROUP_BYTES, HELLO_TIMEOUT_MS, UNIT_GROUPS};
use dray_core::message::{Compared, Described, Fault, Message, Node, Open, Opened, Sealed};
use dray_core::recipe::RecipeId;
use dray_core::store::Standing;
use dray_core::{Error, ErrorKind, Result, cbor};
use dray_engine::session::{Holder, HolderInput, Job, Negotiated};

use crate::packing::Packer;
use crate::transport::{Channel, ControlReader, Duplex, Replayed, Security, Wake, push_control};

mod held;
mod packing;
mod recipes;
mod rests;
mod zeros;

pub use held::{ClearGrantor, Held, Outbox, Provider, StoredHeld};
pub(crate) use recipes::recipe_bytes;
pub use recipes::{RecipeCache, RecipeMaker, RecipeState, RecipeWish};

/// Bytes read from the object and sent at a time: so few that they stay in the cache of one processor while they are read, hashed, encrypted and
/// handed on. With four times as many a copy over ssh took a sixth longer.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Bytes of control frames that may wait to be sent.
const CONTROL_WAITING_MAX: usize = 256 * 1024;
const IDLE: Duration = Duration::from_secs(1);
/// How often an idle connection looks whether the recipe it was asked for is made.
const RECIPE_INTERVAL: Duration = Duration::from_millis(20);
static ZERO_GROUP: [u8; GROUP_BYTES as usize] = [0; GROUP_BYTES as usize];

/// Serves one receiver over `channel` until it closes. `holder` is fresh, or has exchanged the hellos already;
/// `preface` goes out in front of everything. A receiver that nothing but TLS vouches for must have opened an object
/// within [`HELLO_TIMEOUT_MS`]: any key gets that far.
pub fn serve(
    channel: Box<dyn Channel>,
    holder: Holder,
    preface: Vec<u8>,
    provider: &dyn Provider,
    outbox: Option<&Outbox>,
) -> Result<()> {
    serve_or_leave(channel, holder, preface, provider, outbox).map(|_| ())
}

/// A connection whose receiver opened, as its first, what is no object ([`Provider::is_other`]). It has shown no right so far.
pub struct Left {
    /// The connection, from the message after that on.
    pub channel: Box<dyn Duplex>,
    /// What was asked for.
    pub open: Open,
    /// What both sides know.
    pub agreed: Negotiated,
    /// To be sent before anything else.
    pub preface: Vec<u8>,
    /// Counts what is sent over the connection from now on.
    pub sent_bytes: Arc<AtomicU64>,
}

/// [`serve`], until the receiver opens what is no object: then the connection is somebody else's to go on with.
pub fn serve_or_leave(
    channel: Box<dyn Channel>,
    holder: Holder,
    preface: Vec<u8>,
    provider: &dyn Provider,
    outbox: Option<&Outbox>,
) -> Result<Option<Left>> {
    let mut server = Server {
        channel,
        holder,
        provider,
        outbox,
        objects: Vec::new(),
        describing: None,
        wishes: Vec::new(),
        open_by: None,
        reader: ControlReader::default(),
        control: preface,
        out: Vec::new(),
        chunk: vec![0; FRAME_HEAD_BYTES + CHUNK_BYTES as usize],
        zeros_bytes: 0,
        may_pack: false,
        packer: None,
        ended: false,
        is_resting: false,
        other: None,
    };
    if server.channel.security().is_some() {
        server.open_by = Some(Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS));
    }
    let result = server.run();
    if let Err(error) = &result
        && error.kind() == ErrorKind::Unreachable
    {
        // The receiver may have said why before it hung up.
        return server.listen().and(result).map(|()| None);
    }
    if let Err(error) = &result {
        // Tell the peer why; if it cannot hear any more, nothing is lost.
        server.out.clear();
        push_control(&mut server.control, &Message::Fault(Fault::from_error(None, error)));
        let _ = server.flush();
    }
    result?;
    let agreed = server.holder.agreed().cloned();
    let Some((open, agreed)) = server.other.take().zip(agreed) else { return Ok(None) };
    let channel = server.channel.into_duplex().map_err(lost)?;
    let channel = Box::new(Replayed::new(server.reader.into_rest(), channel));
    let sent_bytes = channel.sent_bytes();
    Ok(Some(Left { channel, open, agreed, preface: server.control, sent_bytes }))
}

struct Server<'a> {
    channel: Box<dyn Channel>,
    holder: Holder,
    provider: &'a dyn Provider,
    outbox: Option<&'a Outbox>,
    objects: Vec<(u32, Arc<dyn Held>)>,
    /// The object whose recipe was asked for and not told yet.
    describing: Option<u32>,
    /// For the recipes that this receiver asked for: they are kept as long as it is here.
    wishes: Vec<(u32, RecipeWish)>,
    /// When the receiver must have shown its right to something; `None` once it has, or if ssh did.
    open_by: Option<Instant>,
    reader: ControlReader,
    /// Control frames to send before anything else.
    control: Vec<u8>,
    /// Frames of answers to send next.
    out: Vec<u8>,
    /// One data frame: head and body in one piece, so that a TLS record is never wasted on a head.
    chunk: Vec<u8>,
    /// Zeros of the running request that were not said yet.
    zeros_bytes: u64,
    /// The receiver has said that data may be packed.
    may_pack: bool,
    packer: Option<Packer>,
    ended: bool,
    /// It owes the receiver nothing, and has said so.
    is_resting: bool,
    /// Opened, and no object.
    other: Option<Open>,
}

impl Server<'_> {
    fn run(&mut self) -> Result<()> {
        if let Some(hello) = self.holder.hello() {
            push_control(&mut self.control, &hello);
        }
        loop {
            self.listen()?;
            if self.other.is_some() {
                return Ok(());
            }
            match self.holder.next_job()? {
                Some(Ok(job)) => {
                    self.rest(false);
                    self.flush()?;
                    self.answer(&job)?;
                    self.holder.finished(job.request);
                }
                Some(Err(request)) => self.push_end(request),
                None => {
                    self.flush()?;
                    if self.ended {
                        return Ok(());
                    }
                    if self.open_by.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(Error::new(ErrorKind::TimedOut, "receiver opened nothing in time"));
                    }
                    if let Some(error) = self.all_ended() {
                        return Err(error);
                    }
                    let is_resting = self.describing.is_none();
                    self.rest(is_resting);
                    let (idle, begun) = (if is_resting { IDLE } else { RECIPE_INTERVAL }, Instant::now());
                    self.channel.wait(self.outbox.map(|outbox| &outbox.wake), idle).map_err(lost)?;
                    if is_resting {
                        self.waited(begun.elapsed());
                        self.channel.awaited(begun.elapsed());
                    }
                }
            }
        }
    }

    /// Why the receiver has a right to nothing any more of what it has open.
    fn all_ended(&self) -> Option<Error> {
        self.objects.iter().map(|(_, held)| held.ended()).reduce(Option::and).flatten()
    }

    /// A receiver with a right keeps its place as long as it is owed something.
    fn rest(&mut self, is_resting: bool) {
        if !self.objects.is_empty() && self.is_resting != is_resting {
            self.is_resting = is_resting;
            if is_resting { self.channel.rest() } else { self.channel.keep_place() }
        }
    }

    /// Takes in what the receiver has said meanwhile and what another thread wants said.
    fn listen(&mut self) -> Result<()> {
        if let Some(outbox) = self.outbox {
            for message in outbox.take() {
                push_control(&mut self.control, &message);
            }
        }
        self.push_description();
        if !self.reader.fill(&mut *self.channel).map_err(lost)? {
            self.ended = true;
        }
        loop {
            let holder = &self.holder;
            let Some(body) = self.reader.next(&|head| holder.handle_head(head))? else { return Ok(()) };
            let input = self.holder.handle_control(&body)?;
            if !matches!(input, HolderInput::None | HolderInput::Agreed(_)) {
                // Whoever asks is at work; for how long it was silent is counted anew.
                self.rest(false);
            }
            match input {
                HolderInput::None | HolderInput::Agreed(_) => {}
                HolderInput::Open(open) if self.objects.is_empty() && self.provider.is_other(&open) => {
                    // What follows is not for this session.
                    self.other = Some(open);
                    return Ok(());
                }
                HolderInput::Open(open) => self.open(&open),
                HolderInput::Seal(seal) => {
                    let held = self.object(seal.handle)?;
                    let message = match held.seal(seal.root) {
                        Ok(root) => Message::Sealed(Sealed { handle: seal.handle, root }),
                        Err(error) => Message::Fault(Fault::from_error(Some(seal.handle), &error)),
                    };
                    push_control(&mut self.control, &message);
                }
                HolderInput::Compare(handle, subtrees) => {
                    let message = match self.object(handle)?.compare(&subtrees) {
                        Ok(pairs) => Message::Compared(Compared { handle, pairs: pairs.into() }),
                        Err(error) => Message::Fault(Fault::from_error(Some(handle), &error)),
                    };
                    push_control(&mut self.control, &message);
                }
                HolderInput::Describe(handle) => self.describe(handle)?,
                HolderInput::Nodes(handle, ids) => self.push_nodes(handle, &ids)?,
                HolderInput::Sums(sums) => self.push_sums(&sums)?,
                HolderInput::Pack(may) => self.may_pack(may)?,
                HolderInput::ClearAsk => self.go_clear()?,
                HolderInput::Copy(message) => self.provider.copy(message)?,
            }
        }
    }

    fn open(&mut self, open: &Open) {
        let security = self.channel.security();
        match self.provider.open(open, security.as_ref()) {
            Ok(held) => {
                self.holder.opened(open.handle, held.geometry());
                let opened = Opened {
                    handle: open.handle,
                    size_bytes: held.geometry().size_bytes(),
                    name: held.name().map(Into::into),
                };
                push_control(&mut self.control, &Message::Opened(opened));
                self.objects.push((open.handle, held));
                self.open_by = None;
                self.is_resting = false;
                self.channel.keep_place();
            }
            Err(error) => {
                self.holder.refused(open.handle);
                push_control(
                    &mut self.control,
                    &Message::Fault(Fault::from_error(Some(open.handle), &error)),
                );
            }
        }
    }

    /// Answers of this connection go over a plain one from here on.
    fn go_clear(&mut self) -> Result<()> {
        let Some((token, wait)) = self.provider.clear_data() else {
            let error = Error::new(ErrorKind::Refused, "clear-text data is not allowed here");
            push_control(&mut self.control, &Message::Fault(Fault::from_error(None, &error)));
            return self.flush();
        };
        let grant = dray_core::message::ClearGrant { token: token.to_vec().into() };
        push_control(&mut self.control, &Message::ClearGrant(grant));
        self.flush()?;
        let data = wait()?;
        let control = std::mem::replace(&mut self.channel, Box::new(NoChannel));
        self.channel = control.into_clear_holder(data).map_err(lost)?;
        Ok(())
    }

    /// Has the recipe of an object made beside everything else: that may take as long as reading the object does, and who is
    /// silent meanwhile would be taken for dead.
    fn describe(&mut self, handle: u32) -> Result<()> {
        if self.describing.is_some() {
            let what = "receiver asked for a recipe before the last one it asked for came";
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        self.object(handle)?;
        self.describing = Some(handle);
        self.push_description();
        Ok(())
    }

    /// Answers with the recipe that was asked for, once it is made.
    fn push_description(&mut self) {
        let Some(handle) = self.describing else { return };
        let root = match self.recipe(handle) {
            Ok(RecipeState::Making) => return,
            Ok(RecipeState::None) => Ok(None),
            Ok(RecipeState::Made(recipe)) => Ok(Some(recipe.root())),
            Err(error) => Err(error),
        };
        self.describing = None;
        let message = match root {
            Ok(root) => Message::Described(Described { handle, root }),
            Err(error) => Message::Fault(Fault::from_error(Some(handle), &error)),
        };
        push_control(&mut self.control, &message);
    }

    fn recipe(&mut self, handle: u32) -> Result<RecipeState> {
        self.object(handle)?.recipe(self.wish(handle))
    }

    fn wish(&mut self, handle: u32) -> &mut RecipeWish {
        let at = self.wishes.iter().position(|(known, _)| *known == handle).unwrap_or_else(|| {
            self.wishes.push((handle, RecipeWish::default()));
            self.wishes.len() - 1
        });
        &mut self.wishes[at].1
    }

    fn push_nodes(&mut self, handle: u32, ids: &[RecipeId]) -> Result<()> {
        // The answer to a question for nodes is a moment's: no recipe is begun for it.
        let none = || Error::new(ErrorKind::NotFound, "there is no recipe, or it is not made yet");
        let recipe = self
            .object(handle)
            .and_then(|held| held.made_recipe(self.wish(handle)))
            .and_then(|recipe| recipe.ok_or_else(none));
        for id in ids {
            let message = match recipe.as_ref().map_err(Error::duplicate).and_then(|recipe| recipe.node(id)) {
                Ok(bytes) => {
                    let (id, bytes) = ((*id.as_bytes()).into(), bytes.to_vec().into());
                    Message::Node(Node { handle, id, bytes })
                }
                Err(error) => Message::Fault(Fault::from_error(Some(handle), &error)),
            };
            push_control(&mut self.control, &message);
            self.flush_control()?;
        }
        Ok(())
    }

    /// Questions are short and answers long: a receiver that only asks must not fill this memory.
    fn flush_control(&mut self) -> Result<()> {
        if self.control.len() >= CONTROL_WAITING_MAX {
            self.flush()?;
        }
        Ok(())
    }

    fn object(&self, handle: u32) -> Result<Arc<dyn Held>> {
        let found = self.objects.iter().find(|(known, _)| *known == handle);
        found
            .map(|(_, held)| held.clone())
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "object is not open"))
    }

    fn flush(&mut self) -> Result<()> {
        if !self.control.is_empty() {
            let control = std::mem::take(&mut self.control);
            self.channel.write_control(&control).map_err(lost)?;
            self.control = control;
            self.control.clear();
        }
        if !self.out.is_empty() {
            let (out, begun) = (std::mem::take(&mut self.out), Instant::now());
            self.channel.write_all(&out).map_err(lost)?;
            self.out = out;
            self.out.clear();
            // What there is room for takes next to nothing.
            self.waited(begun.elapsed());
        }
        Ok(())
    }

    fn push_end(&mut self, request: u32) {
        self.out.extend_from_slice(&FrameHead::new(FrameKind::End, 0, request).encode());
    }

    fn push_fault(&mut self, request: u32, error: &Error) {
        let body = cbor::encode(&Fault::from_error(None, error));
        self.out.extend_from_slice(&FrameHead::new(FrameKind::Fault, body.len(), request).encode());
        self.out.extend_from_slice(&body);
    }

    /// Sends a request's parents, bytes and end. What goes wrong with the object becomes a fault of the request;
    /// only a broken connection ends the session.
    fn answer(&mut self, job: &Job) -> Result<()> {
        let held = self.object(job.handle)?;
        match self.send(job, &*held) {
            Ok(()) => self.push_end(job.request),
            Err(Failure::Object(error)) => self.push_fault(job.request, &error),
            Err(Failure::Connection(error)) => return Err(error),
        }
        Ok(())
    }

    fn send(&mut self, job: &Job, held: &dyn Held) -> Result<(), Failure> {
        let geometry = held.geometry();
        let range = geometry.byte_range(job.groups);
        self.zeros_bytes = 0;
        if let Some(have) = &job.have {
            return self.send_rest(job, held, have);
        }
        // Looked at before it is asked how far the file can be trusted: what was read then is what is said.
        let is_blank = held.pairs().is_some() && !job.recheck && self.is_blank(held, range.clone())?;
        let mut expected = doubts(job, held)?;
        if let Some(pairs) = held.pairs() {
            let encode = if is_blank { encode_path } else { encode_parents };
            let parents = encode(geometry, job.groups, job.known_depth, pairs).map_err(Failure::Object)?;
            if !parents.is_empty() {
                let head = FrameHead::new(FrameKind::Parents, parents.len(), job.request);
                self.out.extend_from_slice(&head.encode());
                self.out.extend_from_slice(&parents);
            }
        }
        let mut position = range.start;
        let mut leaves = Vec::new();
        if is_blank {
            for group in job.groups.start..job.groups.end() {
                if !expected.is_empty() {
                    let zeros = &ZERO_GROUP[..geometry.group_bytes(group)];
                    self.note(job, held, group, zeros, &expected, &mut leaves)?;
                }
            }
            return self.send_blank(job, held, range);
        }
        // The empty object has one group and no bytes.
        if range.is_empty() && held.pairs().is_none() {
            held.record_unit(0, &[group_cv(geometry, 0, &[])]).map_err(Failure::Object)?;
        }
        while position < range.end {
            self.listen().map_err(Failure::Connection)?;
            if self.holder.is_cancelled(job.request) {
                return Ok(());
            }
            if expected.is_empty() {
                // If it changed while we were sending, nothing leaves unchecked from here on.
                expected = doubts(job, held)?;
            }
            let next = self.send_chunk(job, held, position, range.end, &expected, &mut leaves)?;
            held.sent(next - position);
            position = next;
        }
        self.settle(job.request);
        Ok(())
    }

    /// Sends the next bytes from `position`, which is the start of a group; returns where the next chunk begins.
    fn send_chunk(
        &mut self,
        job: &Job,
        held: &dyn Held,
        position: u64,
        end: u64,
        expected: &[Cv],
        leaves: &mut Vec<Cv>,
    ) -> Result<u64, Failure> {
        let geometry = held.geometry();
        let extent = held.extent_at(position, end).map_err(Failure::Object)?;
        let whole_groups_end =
            if extent.range.end >= end { end } else { extent.range.end - extent.range.end % GROUP_BYTES };
        let hashing = held.pairs().is_none() || !expected.is_empty();
        if whole_groups_end <= position {
            return self.send_mixed_group(job, held, position, end, expected, leaves);
        }
        if extent.is_hole {
            // A run of hole, at most a unit at a time where its hash is needed.
            let stop = if hashing {
                whole_groups_end.min(position + UNIT_GROUPS * GROUP_BYTES)
            } else {
                whole_groups_end
            };
            let mut at = position;
            while hashing && at < stop {
                let group = at / GROUP_BYTES;
                let len = geometry.group_bytes(group);
                self.note(job, held, group, &ZERO_GROUP[..len], expected, leaves)?;
                at += len as u64;
            }
            self.push_run(FrameKind::Hole, job.request, stop - position);
            self.flush().map_err(Failure::Connection)?;
            return Ok(stop);
        }
        if !hashing && let Some(file) = held.raw_file() {
            let stop = whole_groups_end.min(position + DATA_FRAME_BYTES_MAX as u64);
            let len = (stop - position) as usize;
            if self.channel.can_send_file()
                && !self.packs()
                && !self.begins_with_zeros(held, position, stop - position)?
            {
                self.settle(job.request);
                self.out.extend_from_slice(&FrameHead::new(FrameKind::Data, len, job.request).encode());
                self.flush().map_err(Failure::Connection)?;
                self.channel
                    .send_file(file, position, len)
                    .map_err(|error| Failure::Connection(lost(error)))?;
                return Ok(stop);
            }
        }
        let stop = whole_groups_end.min(position + CHUNK_BYTES);
        let len = (stop - position) as usize;
        let mut chunk = std::mem::take(&mut self.chunk);
        let result =
            self.send_data(job, held, position, &mut chunk[..FRAME_HEAD_BYTES + len], expected, leaves);
        self.chunk = chunk;
        result.map(|()| stop)
    }

    fn send_data(
        &mut self,
        job: &Job,
        held: &dyn Held,
        position: u64,
        frame: &mut [u8],
        expected: &[Cv],
        leaves: &mut Vec<Cv>,
    ) -> Result<(), Failure> {
        held.read_at(position, &mut frame[FRAME_HEAD_BYTES..]).map_err(Failure::Object)?;
        // It may have changed between the check and the read: then these bytes may be new ones.
        let late = if expected.is_empty() { doubts(job, held)? } else { Vec::new() };
        let expected = if expected.is_empty() { &late } else { expected };
        if held.pairs().is_none() || !expected.is_empty() {
            for (index, bytes) in frame[FRAME_HEAD_BYTES..].chunks(GROUP_BYTES as usize).enumerate() {
                self.note(job, held, position / GROUP_BYTES + index as u64, bytes, expected, leaves)?;
            }
        }
        self.send_groups(job.request, frame)
    }

    /// A group that is partly hole: read whole, sent piece by piece.
    fn send_mixed_group(
        &mut self,
        job: &Job,
        held: &dyn Held,
        position: u64,
        end: u64,
        expected: &[Cv],
        leaves: &mut Vec<Cv>,
    ) -> Result<u64, Failure> {
        let group = position / GROUP_BYTES;
        let stop = end.min(position + GROUP_BYTES);
        let mut bytes = vec![0; (stop - position) as usize];
        held.read_at(position, &mut bytes).map_err(Failure::Object)?;
        if held.pairs().is_none() || !expected.is_empty() {
            self.note(job, held, group, &bytes, expected, leaves)?;
        }
        let mut at = position;
        while at < stop {
            let extent = held.extent_at(at, stop).map_err(Failure::Object)?;
            let piece_end = extent.range.end.clamp(at + 1, stop);
            let piece = &bytes[(at - position) as usize..(piece_end - position) as usize];
            // A hole that has been filled meanwhile is data: what was read and checked is what is sent.
            if extent.is_hole && is_zero(piece) {
                self.push_run(FrameKind::Hole, job.request, piece.len() as u64);
            } else {
                self.settle(job.request);
                self.push_data(job.request, piece)?;
            }
            at = piece_end;
        }
        self.flush().map_err(Failure::Connection)?;
        Ok(stop)
    }

    /// Hashes one group: checks it against the outboard, or keeps its value for the root of a vouched object.
    fn note(
        &self,
        job: &Job,
        held: &dyn Held,
        group: u64,
        bytes: &[u8],
        expected: &[Cv],
        leaves: &mut Vec<Cv>,
    ) -> Result<(), Failure> {
        let geometry = held.geometry();
        let cv = group_cv(geometry, group, bytes);
        if held.pairs().is_some() {
            let at = (group - job.groups.start) as usize;
            return match expected.get(at) {
                Some(expected) if *expected == cv => Ok(()),
                _ => Err(Failure::Object(held.mismatch())),
            };
        }
        leaves.push(cv);
        let unit = group / UNIT_GROUPS;
        if leaves.len() as u64 == geometry.unit(unit).groups {
            held.record_unit(unit, leaves).map_err(Failure::Object)?;
            leaves.clear();
        }
        Ok(())
    }
}

enum Failure {
    /// The object cannot be read or is no longer itself.
    Object(Error),
    /// The channel broke.
    Connection(Error),
}

/// The values that the groups of `job` must have if they are to be checked before they leave: because the receiver
/// asks for that, or because the object may have changed. Empty if not, or if it is only vouched for. The outboard they
/// come from is checked first, so that what does not match them is wrong itself.
fn doubts(job: &Job, held: &dyn Held) -> Result<Vec<Cv>, Failure> {
    match held.pairs() {
        Some(pairs) if job.recheck || held.standing() != Standing::Trusted => held
            .recheck(job.groups)
            .and_then(|_| leaf_values(held, job.groups, pairs))
            .map_err(Failure::Object),
        _ => Ok(Vec::new()),
    }
}

/// The values that the groups of `node` must have, from the outboard.
fn leaf_values(held: &dyn Held, node: Subtree, pairs: &dyn PairStore) -> Result<Vec<Cv>> {
    let geometry = held.geometry();
    let mut leaves = Vec::with_capacity(node.groups as usize);
    for group in node.start..node.end() {
        let path = geometry.path(Subtree { start: group, groups: 1 });
        match path.len().checked_sub(2).map(|index| path[index]) {
            None => leaves.extend(held.oid().map(|oid| *oid.as_bytes())),
            Some(parent) => {
                let mut pair = [0; 64];
                pairs.read_pairs(parent.pair_index(), &mut pair)?;
                let half = if parent.start == group { &pair[..32] } else { &pair[32..] };
                let mut cv = [0; 32];
                cv.copy_from_slice(half);
                leaves.push(cv);
            }
        }
    }
    Ok(leaves)
}

/// Stands in while a channel changes its nature.
struct NoChannel;

impl Channel for NoChannel {
    fn try_read(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Err(io::ErrorKind::NotConnected.into())
    }
    fn write_all(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }
    fn wait(&mut self, _: Option<&Wake>, _: Duration) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }
    fn security(&self) -> Option<Security> {
        None
    }
}

fn lost(error: io::Error) -> Error {
    Error::io("connection lost", error)
}
