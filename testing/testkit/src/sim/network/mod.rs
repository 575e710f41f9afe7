//! The simulated network: links with a rate, a delay and a queue, and connections over them.
//!
//! A connection is what TCP makes of a path: bytes in order, a window, losses that are sent again, a reset from whoever knows
//! nothing of it, and an end when the other side has been dead for as long as the product's socket options say.

mod content;
mod stream;

use std::collections::{BTreeSet, VecDeque};

use dray_core::limits::CONNECTIONS_MAX;

use super::clock::{Clock, Event};
use super::device::span_ns;
use super::random::Random;
use super::trace::Trace;
pub(crate) use content::Piece;
use stream::Stream;

/// Waits for a connection (`CONNECT_TIMEOUT` of the product's dialling).
const CONNECT_TIMEOUT_NS: u64 = 8_000_000_000;
/// A question for a connection that got no answer is asked again after this, then after twice as long, and so on.
const KNOCK_AGAIN_NS: u64 = 1_000_000_000;
/// How often both ends look whether the other is alive, and after how long without an answer they give up: the product sets
/// keepalive to 10 s, 5 s and 3 times, and `TCP_USER_TIMEOUT` to 30 s.
const PROBE_NS: u64 = 5_000_000_000;
const IDLE_DEAD_NS: u64 = 25_000_000_000;
const OWED_DEAD_NS: u64 = 30_000_000_000;

/// A link: packets pass one after the other at its rate and arrive after its delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkModel {
    /// Bytes per second, headers included.
    pub rate_bytes_per_s: u64,
    /// One way, nanoseconds.
    pub delay_ns: u64,
    /// What would have to wait longer is dropped, nanoseconds.
    pub queue_ns: u64,
    /// Segments (of up to 16 KiB) lost by chance, of a million.
    pub lost_per_million: u64,
}

impl LinkModel {
    /// A link without losses whose queue holds a tenth of a second, or twice its delay if that is more.
    pub fn new(rate_bytes_per_s: u64, delay_ns: u64) -> LinkModel {
        LinkModel {
            rate_bytes_per_s,
            delay_ns,
            queue_ns: (2 * delay_ns).max(100_000_000),
            lost_per_million: 0,
        }
    }
}

#[derive(Debug)]
struct Link {
    model: LinkModel,
    /// Everything takes so many times as long, for now.
    slowness: u64,
    free_ns: u64,
}

/// Number of a connection; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnectionId(pub(crate) usize);

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Side {
    /// Who dialled: the receiver of the object.
    Dialler,
    /// Who was dialled: the holder.
    Listener,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Dialler => Side::Listener,
            Side::Listener => Side::Dialler,
        }
    }
}

/// Bytes on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) connection: ConnectionId,
    /// Who sent it.
    pub(crate) from: Side,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Links passed.
    hop: usize,
    sent_ns: u64,
}

/// How far a connection has come, as one end sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Not there yet.
    Pending,
    /// There; for the dialler with the round trip it took, nanoseconds.
    Up(u64),
    /// Nobody is there who takes it.
    Rejected,
    /// Nobody answered.
    Unanswered,
    /// The other end knows nothing of it, or has been dead for too long.
    Lost,
    /// This end has closed it.
    Closed,
}

#[derive(Debug)]
struct End {
    node: usize,
    standing: Standing,
    /// When the other end was last heard.
    heard_ns: u64,
    /// What this end sends.
    out: Stream,
}

#[derive(Debug)]
struct Connection {
    dialler: End,
    listener: End,
    begun_ns: u64,
    has_place: bool,
}

impl Connection {
    fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Dialler => &mut self.dialler,
            Side::Listener => &mut self.listener,
        }
    }
}

/// What the network knows of a node.
#[derive(Clone, Debug, Default)]
struct Machine {
    is_on: bool,
    is_listening: bool,
    /// Which partitions it is cut off by: two nodes reach each other if they are cut off by the same ones.
    cut_off: BTreeSet<usize>,
    /// Links on its way out and in.
    out_links: Vec<usize>,
    in_links: Vec<usize>,
    /// Connections with an end here.
    open: BTreeSet<ConnectionId>,
    places: usize,
}

/// The network.
pub(crate) struct Network {
    pub(crate) clock: Clock,
    pub(crate) trace: Trace,
    chance: Random,
    links: Vec<Link>,
    machines: Vec<Machine>,
    connections: Vec<Option<Box<Connection>>>,
    /// Ends that have something new to look at.
    ready: VecDeque<(usize, ConnectionId, Side)>,
    /// Most connections that were open at once.
    pub(crate) most_open: usize,
}

impl Network {
    pub(crate) fn new(trace: Trace, chance: Random) -> Network {
        Network {
            clock: Clock::default(),
            trace,
            chance,
            links: Vec::new(),
            machines: Vec::new(),
            connections: Vec::new(),
            ready: VecDeque::new(),
            most_open: 0,
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(crate) fn note(&mut self, what: &'static str, figures: &[u64]) {
        self.trace.note(self.clock.now_ns(), what, figures);
    }

    pub(crate) fn add_link(&mut self, model: LinkModel) -> usize {
        self.links.push(Link { model, slowness: 1, free_ns: 0 });
        self.links.len() - 1
    }

    /// A node that sends over `out_links` and receives over `in_links`.
    pub(crate) fn add_machine(&mut self, out_links: Vec<usize>, in_links: Vec<usize>) -> usize {
        self.machines.push(Machine { is_on: true, out_links, in_links, ..Machine::default() });
        self.machines.len() - 1
    }

    pub(crate) fn set_link_slowness(&mut self, link: usize, slowness: u64) {
        self.links[link].slowness = slowness;
    }

    pub(crate) fn set_listening(&mut self, node: usize, is_listening: bool) {
        self.machines[node].is_listening = is_listening;
    }

    pub(crate) fn is_listening(&self, node: usize) -> bool {
        self.machines[node].is_listening
    }

    /// Cuts `node` off by partition `number`, or heals that.
    pub(crate) fn set_cut_off(&mut self, node: usize, number: usize, is_cut_off: bool) {
        let cut_off = &mut self.machines[node].cut_off;
        if is_cut_off {
            cut_off.insert(number);
        } else {
            cut_off.remove(&number);
        }
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.machines[from].is_on
            && self.machines[to].is_on
            && self.machines[from].cut_off == self.machines[to].cut_off
    }

    /// Connections with an end at `node`, but for those whose other end `leaves_out` says yes to.
    pub(crate) fn open_at(&self, node: usize, leaves_out: &dyn Fn(usize) -> bool) -> usize {
        let other = |id: &ConnectionId| {
            let connection = self.connections[id.0].as_deref()?;
            Some(connection.dialler.node ^ connection.listener.node ^ node)
        };
        self.machines[node].open.iter().filter(|id| !other(id).is_some_and(leaves_out)).count()
    }

    pub(crate) fn has_power(&self, node: usize) -> bool {
        self.machines[node].is_on
    }

    /// Dials `to`; the dialler is told of the outcome.
    pub(crate) fn connect(&mut self, from: usize, to: usize) -> ConnectionId {
        let now_ns = self.now_ns();
        let id = ConnectionId(self.connections.len());
        let path = |out: usize, back: usize| -> Vec<usize> {
            let (out, back) = (&self.machines[out].out_links, &self.machines[back].in_links);
            out.iter().chain(back).copied().collect()
        };
        let there = path(from, to);
        let back = path(to, from);
        let delay_ns =
            |links: &[usize]| links.iter().map(|link| self.links[*link].model.delay_ns).sum::<u64>();
        let (there_ns, back_ns) = (delay_ns(&there), delay_ns(&back));
        let end = |node, out| End { node, standing: Standing::Pending, heard_ns: now_ns, out };
        self.connections.push(Some(Box::new(Connection {
            dialler: end(from, Stream::new(there, back_ns, now_ns)),
            listener: end(to, Stream::new(back, there_ns, now_ns)),
            begun_ns: now_ns,
            has_place: false,
        })));
        self.machines[from].open.insert(id);
        self.count_open(from);
        self.note("connect", &[from as u64, to as u64, id.0 as u64]);
        self.knock(id, 0, there_ns);
        id
    }

    fn knock(&mut self, id: ConnectionId, time: u32, there_ns: u64) {
        self.clock.after(there_ns, Event::Knocks(id, time));
    }

    /// The listener's answer to a question for a connection.
    pub(crate) fn knocks(&mut self, id: ConnectionId, time: u32) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections[id.0].as_deref() else { return };
        if connection.dialler.standing != Standing::Pending {
            return;
        }
        let (from, to) = (connection.dialler.node, connection.listener.node);
        // What the dialler sends arrives after what the listener's acknowledgement does not take, and the other way round.
        let (there_ns, back_ns) = (connection.listener.out.back_ns, connection.dialler.out.back_ns);
        let begun_ns = connection.begun_ns;
        if !self.reaches(from, to) {
            let wait_ns = KNOCK_AGAIN_NS << time.min(10);
            if now_ns + wait_ns - begun_ns >= CONNECT_TIMEOUT_NS {
                self.clock.plan(begun_ns + CONNECT_TIMEOUT_NS, Event::Rejected(id));
            } else {
                self.knock(id, time + 1, wait_ns + there_ns);
            }
            return;
        }
        if !self.machines[to].is_listening {
            self.clock.after(back_ns, Event::Rejected(id));
            return;
        }
        let has_place = self.machines[to].places < CONNECTIONS_MAX;
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        connection.listener.standing = Standing::Up(0);
        connection.listener.heard_ns = now_ns;
        connection.has_place = has_place;
        self.machines[to].open.insert(id);
        self.machines[to].places += usize::from(has_place);
        self.count_open(to);
        self.clock.after(back_ns, Event::Established(id));
        self.clock.after(PROBE_NS, Event::Probes(id));
        if has_place {
            self.wake(id, Side::Listener);
        } else {
            // Accepted by the system and dropped by the program: every place is taken.
            self.close(id, Side::Listener);
        }
    }

    pub(crate) fn established(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        if connection.dialler.standing == Standing::Pending {
            connection.dialler.standing = Standing::Up(now_ns - connection.begun_ns);
            connection.dialler.heard_ns = now_ns;
            self.wake(id, Side::Dialler);
        }
    }

    pub(crate) fn rejected(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        if connection.dialler.standing == Standing::Pending {
            let waited = now_ns - connection.begun_ns >= CONNECT_TIMEOUT_NS;
            connection.dialler.standing = if waited { Standing::Unanswered } else { Standing::Rejected };
            self.wake(id, Side::Dialler);
        }
    }

    fn count_open(&mut self, node: usize) {
        self.most_open = self.most_open.max(self.machines[node].open.len());
    }

    pub(crate) fn wake(&mut self, id: ConnectionId, side: Side) {
        if let Some(connection) = self.connections[id.0].as_deref_mut() {
            let node = connection.end(side).node;
            self.ready.push_back((node, id, side));
        }
    }

    /// Wakes every connection of `node`: it has slept.
    pub(crate) fn wake_all(&mut self, node: usize) {
        for id in self.machines[node].open.clone() {
            for side in [Side::Dialler, Side::Listener] {
                if self.connections[id.0].as_deref_mut().is_some_and(|found| found.end(side).node == node) {
                    self.wake(id, side);
                }
            }
        }
    }

    /// An end that has something new to look at, and its node.
    pub(crate) fn next_ready(&mut self) -> Option<(usize, ConnectionId, Side)> {
        self.ready.pop_front()
    }

    pub(crate) fn standing(&self, id: ConnectionId, side: Side) -> Standing {
        match (self.connections[id.0].as_deref(), side) {
            (Some(connection), Side::Dialler) => connection.dialler.standing,
            (Some(connection), Side::Listener) => connection.listener.standing,
            (None, _) => Standing::Closed,
        }
    }

    /// Who dialled.
    pub(crate) fn dialler_of(&self, id: ConnectionId) -> Option<usize> {
        self.connections[id.0].as_deref().map(|connection| connection.dialler.node)
    }

    /// Bytes that `side` may read, and may write before it has to wait.
    pub(crate) fn readable_and_room(&self, id: ConnectionId, side: Side) -> (u64, u64) {
        let Some(connection) = self.connections[id.0].as_deref() else { return (0, 0) };
        let (own, other) = match side {
            Side::Dialler => (&connection.dialler, &connection.listener),
            Side::Listener => (&connection.listener, &connection.dialler),
        };
        (other.out.readable(), own.out.room())
    }

    pub(crate) fn write(&mut self, id: ConnectionId, side: Side, piece: Piece) {
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let end = connection.end(side);
        if matches!(end.standing, Standing::Up(_)) && !end.out.is_ended {
            let len = end.out.content.push(piece);
            end.out.written += len;
            self.send(id, side);
        }
    }

    /// Takes up to `max` bytes that have come and lie together.
    pub(crate) fn read(&mut self, id: ConnectionId, side: Side, max: u64) -> Option<(Piece, u64)> {
        let connection = self.connections[id.0].as_deref_mut()?;
        let stream = &mut connection.end(side.other()).out;
        let max = max.min(stream.readable());
        let taken = stream.content.take(max);
        assert_eq!(taken.is_some(), max > 0, "what has come can be read");
        let taken = taken?;
        stream.read += taken.1;
        self.send(id, side.other());
        Some(taken)
    }

    /// This end is of no more use. What was written is still sent, unless there is something that nobody will read.
    pub(crate) fn close(&mut self, id: ConnectionId, side: Side) {
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let unread = connection.end(side.other()).out.readable();
        let end = connection.end(side);
        if end.standing == Standing::Closed {
            return;
        }
        let was_up = matches!(end.standing, Standing::Up(_));
        let (node, back_ns) = (end.node, end.out.back_ns);
        end.standing = Standing::Closed;
        if was_up && unread == 0 {
            end.out.is_ended = true;
            end.out.written += end.out.content.push(Piece::End);
        }
        let there_ns = connection.end(side.other()).out.back_ns;
        self.note("close", &[id.0 as u64, side as u64]);
        self.leave(id, node, side);
        if was_up && unread > 0 {
            self.clock.after(there_ns, Event::Reset(id, side.other()));
        } else if was_up {
            self.send(id, side);
        } else if side == Side::Dialler {
            // Whoever had taken it learns that it is not wanted.
            self.clock.after(there_ns + back_ns, Event::Reset(id, Side::Listener));
        }
        self.forget_if_over(id);
    }

    /// The connection does not count at `node` any more.
    fn leave(&mut self, id: ConnectionId, node: usize, side: Side) {
        self.machines[node].open.remove(&id);
        let connection = self.connections[id.0].as_deref_mut();
        if side == Side::Listener && connection.is_some_and(|found| std::mem::take(&mut found.has_place)) {
            self.machines[node].places -= 1;
        }
    }

    fn forget_if_over(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections[id.0].as_deref() else { return };
        let is_over =
            |end: &End| matches!(end.standing, Standing::Closed | Standing::Rejected | Standing::Unanswered);
        let listener_over =
            is_over(&connection.listener) || connection.listener.standing == Standing::Pending;
        let is_gone = !self.machines[connection.dialler.node].open.contains(&id)
            && !self.machines[connection.listener.node].open.contains(&id);
        if is_over(&connection.dialler) && listener_over && is_gone {
            self.connections[id.0] = None;
        }
    }

    /// Every end at `node` vanishes, without a word if the machine lost its power, and as the system does it if only the process
    /// ended.
    pub(crate) fn end_process(&mut self, node: usize, has_power: bool) {
        self.machines[node].is_listening = false;
        for id in self.machines[node].open.clone() {
            for side in [Side::Dialler, Side::Listener] {
                let Some(connection) = self.connections[id.0].as_deref_mut() else { continue };
                let end = connection.end(side);
                if end.node != node || end.standing == Standing::Closed {
                    continue;
                }
                if has_power {
                    self.close(id, side);
                } else {
                    end.standing = Standing::Closed;
                    end.out.cut();
                    end.out.is_ended = true;
                    self.leave(id, node, side);
                    self.forget_if_over(id);
                }
            }
        }
    }

    pub(crate) fn set_power(&mut self, node: usize, is_on: bool) {
        self.machines[node].is_on = is_on;
    }

    /// Sends what the windows allow.
    fn send(&mut self, id: ConnectionId, side: Side) {
        let now_ns = self.clock.now_ns();
        loop {
            let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
            let Some((offset, len)) = connection.end(side).out.next_segment(now_ns) else { return };
            let segment = Segment { connection: id, from: side, offset, len, hop: 0, sent_ns: now_ns };
            self.arrives(segment);
        }
    }

    /// A segment arrives at its next link or at its end.
    pub(crate) fn arrives(&mut self, mut segment: Segment) {
        let now_ns = self.now_ns();
        let id = segment.connection;
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let (from, to) = (connection.end(segment.from).node, connection.end(segment.from.other()).node);
        let link = connection.end(segment.from).out.links.get(segment.hop).copied();
        if !self.reaches(from, to) {
            return self.vanishes(segment);
        }
        let Some(link) = link else { return self.delivered(segment) };
        let link = &mut self.links[link];
        let start_ns = link.free_ns.max(now_ns);
        let is_lost =
            link.model.lost_per_million > 0 && self.chance.below(1_000_000) < link.model.lost_per_million;
        if start_ns - now_ns > link.model.queue_ns.saturating_mul(link.slowness) || is_lost {
            self.note("lost", &[id.0 as u64, segment.offset]);
            if let Some(connection) = self.connections[id.0].as_deref_mut() {
                // What was sent behind it waits its turn, arrives, and says that it is missing. Who is nearest would be heard first otherwise, and keep the
                // others out of a queue that is full.
                let there_ns = connection.end(segment.from.other()).out.back_ns;
                let back_ns = connection.end(segment.from).out.back_ns;
                self.clock.after(start_ns - now_ns + there_ns + back_ns, Event::Missed(segment));
            }
            return;
        }
        let span_ns = span_ns(Stream::wire_bytes(segment.len), link.model.rate_bytes_per_s);
        link.free_ns = start_ns.saturating_add(span_ns.saturating_mul(link.slowness));
        segment.hop += 1;
        let arrival_ns = link.free_ns.saturating_add(link.model.delay_ns);
        self.clock.plan(arrival_ns, Event::Arrives(segment));
    }

    fn vanishes(&mut self, segment: Segment) {
        let id = segment.connection;
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let wait_ns = connection.end(segment.from).out.vanish(segment.offset, segment.len);
        if let Some(wait_ns) = wait_ns {
            self.clock.after(wait_ns, Event::Retransmits(id, segment.from));
        }
    }

    fn delivered(&mut self, segment: Segment) {
        let now_ns = self.now_ns();
        let id = segment.connection;
        self.note("arrives", &[id.0 as u64, segment.from as u64, segment.offset, segment.len]);
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let back_ns = connection.end(segment.from).out.back_ns;
        let end = connection.end(segment.from.other());
        end.heard_ns = now_ns;
        if end.standing == Standing::Pending {
            // The dialler's own confirmation is still on its way: as good as there.
            end.standing = Standing::Up(0);
        }
        if !matches!(end.standing, Standing::Up(_)) {
            self.clock.after(back_ns, Event::Reset(id, segment.from));
            return;
        }
        let is_news = connection.end(segment.from).out.arrive(segment.offset, segment.len);
        self.clock.after(back_ns, Event::Acknowledged(segment));
        if is_news {
            self.wake(id, segment.from.other());
        }
    }

    pub(crate) fn acknowledged(&mut self, segment: Segment) {
        let now_ns = self.now_ns();
        let id = segment.connection;
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let (from, to) = (connection.dialler.node, connection.listener.node);
        if !self.reaches(from, to) {
            // The sender hears nothing and sends it again; what has come already is dropped then.
            return self.vanishes(segment);
        }
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        let end = connection.end(segment.from);
        end.heard_ns = now_ns;
        let was_full = end.out.room() == 0;
        end.out.acknowledge(now_ns, segment.len, now_ns - segment.sent_ns);
        if was_full && end.standing != Standing::Closed {
            self.wake(id, segment.from);
        }
        self.send(id, segment.from);
    }

    pub(crate) fn missed(&mut self, segment: Segment) {
        if let Some(connection) = self.connections[segment.connection.0].as_deref_mut() {
            connection.end(segment.from).out.miss(segment.offset, segment.len);
            self.send(segment.connection, segment.from);
        }
    }

    pub(crate) fn retransmits(&mut self, id: ConnectionId, side: Side) {
        if let Some(connection) = self.connections[id.0].as_deref_mut() {
            connection.end(side).out.retransmit();
            self.send(id, side);
        }
    }

    /// One end hears that the other knows nothing of the connection.
    pub(crate) fn reset(&mut self, id: ConnectionId, side: Side) {
        let Some(connection) = self.connections[id.0].as_deref() else { return };
        if self.reaches(connection.dialler.node, connection.listener.node) {
            self.lose(id, side);
        }
    }

    fn lose(&mut self, id: ConnectionId, side: Side) {
        let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
        // What had come and was not read is lost with it.
        let other = &mut connection.end(side.other()).out;
        other.content.clear();
        other.read = other.arrived;
        let end = connection.end(side);
        end.out.cut();
        if matches!(end.standing, Standing::Up(_) | Standing::Pending) {
            end.standing = Standing::Lost;
            self.note("reset", &[id.0 as u64, side as u64]);
            self.wake(id, side);
        }
    }

    /// Both ends look whether the other is alive.
    pub(crate) fn probes(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections[id.0].as_deref() else { return };
        let reaches = self.reaches(connection.dialler.node, connection.listener.node);
        let mut is_open = false;
        for side in [Side::Dialler, Side::Listener] {
            let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
            let other_is_up = matches!(connection.end(side.other()).standing, Standing::Up(_));
            let end = connection.end(side);
            if !matches!(end.standing, Standing::Up(_)) {
                continue;
            }
            is_open = true;
            if reaches && other_is_up {
                end.heard_ns = now_ns;
            } else if reaches && !end.out.is_owed() && now_ns - end.heard_ns >= PROBE_NS {
                // Whoever closed in good order has said so, and that is on its way, unless its machine lost its power meanwhile; who has forgotten answers a probe with a
                // reset.
                let has_ended = connection.end(side.other()).out.is_ended;
                let is_said = {
                    let out = &connection.end(side.other()).out;
                    has_ended && out.written > out.read
                };
                if !is_said {
                    self.lose(id, side);
                    continue;
                }
            }
            let Some(connection) = self.connections[id.0].as_deref_mut() else { return };
            let end = connection.end(side);
            let is_owed_too_long = end.out.is_owed() && now_ns - end.out.heard_ns >= OWED_DEAD_NS;
            if now_ns - end.heard_ns >= IDLE_DEAD_NS && !end.out.is_owed() || is_owed_too_long {
                self.lose(id, side);
            }
        }
        if is_open {
            self.clock.after(PROBE_NS, Event::Probes(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two machines, of which the second listens.
    fn pair() -> Network {
        let mut network = Network::new(Trace::new(None), Random::new(1, "loss"));
        for _ in 0..2 {
            let [up, down] = [(); 2].map(|()| network.add_link(LinkModel::new(12_500_000, 1_000_000)));
            network.add_machine(vec![up], vec![down]);
        }
        network.set_listening(1, true);
        network
    }

    /// Lets everything happen but for questions whether the other end is alive, which never end.
    fn settle(network: &mut Network) {
        while let Some(event) = network.clock.next() {
            match event {
                Event::Arrives(segment) => network.arrives(segment),
                Event::Acknowledged(segment) => network.acknowledged(segment),
                Event::Knocks(id, time) => network.knocks(id, time),
                Event::Established(id) => network.established(id),
                Event::Rejected(id) => network.rejected(id),
                Event::Reset(id, side) => network.reset(id, side),
                Event::Retransmits(id, side) => network.retransmits(id, side),
                Event::Probes(_) => {}
                other => unreachable!("{other:?}"),
            }
        }
    }

    /// S40: a holder serves so many connections and no more, and another one when one of them is over.
    #[test]
    fn places_are_limited() {
        let mut network = pair();
        let ids: Vec<_> = (0..CONNECTIONS_MAX + 3).map(|_| network.connect(0, 1)).collect();
        settle(&mut network);
        let is_up = |network: &Network, id| matches!(network.standing(id, Side::Listener), Standing::Up(_));
        assert_eq!(ids.iter().filter(|id| is_up(&network, **id)).count(), CONNECTIONS_MAX);
        network.close(ids[0], Side::Listener);
        let next = network.connect(0, 1);
        settle(&mut network);
        assert!(is_up(&network, next));
    }

    /// Whoever gives a connection up sends nothing more over it; what it sent before can be read.
    #[test]
    fn what_came_before_a_loss_is_read() {
        let mut network = pair();
        let id = network.connect(0, 1);
        settle(&mut network);
        network.write(id, Side::Listener, Piece::Bytes(vec![7; 100]));
        settle(&mut network);
        network.write(id, Side::Listener, Piece::Bytes(vec![8; 100_000_000]));
        network.lose(id, Side::Listener);
        settle(&mut network);
        let (mut sevens, mut all) = (0, 0);
        while let Some((piece, len)) = network.read(id, Side::Dialler, u64::MAX) {
            let Piece::Bytes(bytes) = piece else { unreachable!() };
            sevens += bytes.iter().filter(|byte| **byte == 7).count();
            all += len;
            settle(&mut network);
        }
        assert!(sevens == 100 && all > 100 && all < 1_000_000, "{sevens} of {all}");
    }

    /// A connection that is up, over which the listener has sent 100 bytes.
    fn with_bytes() -> (Network, ConnectionId) {
        let mut network = pair();
        let id = network.connect(0, 1);
        settle(&mut network);
        network.write(id, Side::Listener, Piece::Bytes(vec![7; 100]));
        settle(&mut network);
        assert_eq!(network.readable_and_room(id, Side::Dialler).0, 100);
        (network, id)
    }

    /// Who has lost a connection reads nothing more of it.
    #[test]
    fn what_was_not_read_before_a_loss_is_lost() {
        let (mut network, id) = with_bytes();
        network.lose(id, Side::Dialler);
        assert_eq!(network.standing(id, Side::Dialler), Standing::Lost);
        assert_eq!(network.readable_and_room(id, Side::Dialler).0, 0);
        assert!(network.read(id, Side::Dialler, u64::MAX).is_none());
    }

    /// Whoever closes with something unread says so by a reset, and otherwise by an end that can be read.
    #[test]
    fn closing_before_all_is_read_is_a_reset() {
        let (mut network, id) = with_bytes();
        network.close(id, Side::Dialler);
        settle(&mut network);
        assert_eq!(network.standing(id, Side::Listener), Standing::Lost);

        let (mut network, id) = with_bytes();
        network.read(id, Side::Dialler, u64::MAX).unwrap();
        network.close(id, Side::Dialler);
        settle(&mut network);
        assert!(matches!(network.standing(id, Side::Listener), Standing::Up(_)));
        assert_eq!(network.read(id, Side::Listener, u64::MAX), Some((Piece::End, 1)));
    }

    /// A machine that lost its power and came back knows nothing of its connections, and says so to whoever sends over one.
    #[test]
    fn who_knows_nothing_of_a_connection_resets_it() {
        let (mut network, id) = with_bytes();
        network.end_process(0, false);
        network.set_power(0, false);
        network.set_power(0, true);
        settle(&mut network);
        assert!(matches!(network.standing(id, Side::Listener), Standing::Up(_)), "nobody has said a word");
        network.write(id, Side::Listener, Piece::Bytes(vec![8; 100]));
        settle(&mut network);
        assert_eq!(network.standing(id, Side::Listener), Standing::Lost);
    }

    /// RFC 6298: what is sent into the void is sent again after twice as long each time.
    #[test]
    fn waits_for_word_double() {
        let (mut network, id) = with_bytes();
        network.set_cut_off(0, 0, true);
        let begun_ns = network.now_ns();
        network.write(id, Side::Listener, Piece::Bytes(vec![8; 100]));
        let mut waited_ms = Vec::new();
        while waited_ms.len() < 5 {
            let Some(Event::Retransmits(id, side)) = network.clock.next() else { continue };
            waited_ms.push((network.now_ns() - begun_ns) / 1_000_000);
            network.retransmits(id, side);
        }
        assert_eq!(waited_ms, [200, 600, 1400, 3000, 6200]);
        network.set_cut_off(0, 0, false);
        settle(&mut network);
        assert_eq!(network.readable_and_room(id, Side::Dialler).0, 200);
    }
}
