//! Dialling: hints in SRV order, a head start for each, and lanes that come back after a lost connection.

use std::cell::Cell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::hash_tree::Geometry;
use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::message::{ClearAsk, Hello, Message, ObjectName, Open, feature};
use dray_core::rights::Secret;
use dray_core::source::Source;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::{Body, Receiver, ReceiverInput};

use crate::lanes::{LaneSet, LaneStart, Opening};
use crate::transport::{
    CLEAR_PREAMBLE, Channel, ClearChannel, LONG_FROM, TlsChannel, TlsConfig, connect_tcp, push_control,
    read_exact,
};

/// Head start of one target before the next is tried beside it (RFC 8305 §5 recommends 250 ms).
const STAGGER: Duration = Duration::from_millis(250);
/// A TCP connection that takes longer has no use.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Addresses of one host name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Failures that one error names.
const NAMED_MAX: usize = 4;
/// Connections in a row that one lane may lose before its target is left for another.
const LOST_MAX: u32 = 3;
/// A connection that held this long was a good one; what is lost at once is not tried again at once.
const STEADY: Duration = Duration::from_secs(2);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// How often is looked, in a pause, whether the source was closed.
const LOOK: Duration = Duration::from_millis(20);
/// Whoever looks several times a second and did not for so long was stopped (by a signal).
const STOPPED_FROM: Duration = Duration::from_secs(3);

/// A place to dial and the node that must answer.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// Whose key is accepted.
    pub node: NodeId,
    /// Lower first; the next priority only when all of this one failed (D18).
    pub priority: u16,
    /// Loopback and link-local addresses may be dialled: the user named this target, or configuration allows it.
    pub allow_local: bool,
}

/// What [`dial`] needs.
#[derive(Clone, Debug)]
pub struct DialConfig {
    /// This node's TLS.
    pub tls: TlsConfig,
    /// What to say first.
    pub hello: Hello,
    /// Where, in the order to try.
    pub targets: Vec<Target>,
    /// Connections to hold to the one that answers, at most: where one fills the path, it is held alone.
    pub lanes: usize,
    /// Secret of the object.
    pub secret: Option<Secret>,
    /// Size of the object, if known.
    pub size_bytes: Option<u64>,
    /// Use clear-text data if the holder allows it too.
    pub clear_data: bool,
    /// The source is given up if nobody answers at first; otherwise dialling goes on, and somebody else may still bring
    /// lanes to it.
    pub only_way: bool,
}

/// Dials in threads of its own until the source is closed. A target that refuses, or that stays away after it was
/// lost, is left for the next one; when no target is left the source is given up with the most telling reason. Who was hung up on because this
/// process was stopped is dialled again: that was no answer.
pub fn dial(set: Arc<LaneSet>, config: DialConfig) {
    thread::spawn(move || {
        let mut targets = config.targets.clone();
        let config = Arc::new(config);
        let mut errors = Vec::new();
        let mut was_up = false;
        let mut backoff = FIRST_BACKOFF;
        while !set.is_closed() {
            let watch = StopWatch::new(Instant::now());
            let is_closed = || {
                watch.look(Instant::now());
                set.is_closed()
            };
            match connect_any(&config.tls, &targets, &is_closed) {
                Ok((channel, target, round_trip)) => {
                    was_up = true;
                    let begun = Instant::now();
                    if let Some(error) = hold_lanes(&set, &config, &target, channel, round_trip) {
                        targets.retain(|other| other.node != target.node);
                        errors.push(error);
                    }
                    if begun.elapsed() >= STEADY {
                        backoff = FIRST_BACKOFF;
                    }
                    pause(&set, backoff);
                }
                // Where it is one way of several, a path may open at any time.
                Err(error)
                    if !targets.is_empty()
                        && (was_up || !is_final(&error) && (!config.only_way || watch.was_stopped.get())) =>
                {
                    pause(&set, backoff);
                    backoff = (backoff * 2).min(LAST_BACKOFF);
                }
                Err(error) => {
                    errors.push(error);
                    targets.clear();
                }
            }
            if targets.is_empty() {
                break;
            }
        }
        if set.is_closed() {
            set.give_up(None);
        } else if config.only_way || was_up {
            set.give_up(most_telling(errors));
        }
    });
}

/// Notices that this process did not run, from how long nobody looked.
struct StopWatch {
    looked: Cell<Instant>,
    was_stopped: Cell<bool>,
}

impl StopWatch {
    fn new(now: Instant) -> StopWatch {
        StopWatch { looked: Cell::new(now), was_stopped: Cell::new(false) }
    }

    /// To be called a few times a second.
    fn look(&self, now: Instant) {
        if now.saturating_duration_since(self.looked.replace(now)) >= STOPPED_FROM {
            self.was_stopped.set(true);
        }
    }
}

/// Runs lanes to one target until the source is closed or they cannot be kept up; `Some` if the target has nothing to
/// offer.
fn hold_lanes(
    set: &Arc<LaneSet>,
    config: &Arc<DialConfig>,
    target: &Target,
    channel: TlsChannel,
    round_trip: Duration,
) -> Option<Error> {
    // Where several are of use in any case, they are dialled at once.
    if round_trip < LONG_FROM || channel.solo().is_none() {
        set.spread();
    }
    let is_over = Arc::new(AtomicBool::new(false));
    // One waits for all of them: they may never be of use.
    let others = (config.lanes > 1).then(|| {
        let (set, config, target) = (set.clone(), config.clone(), target.clone());
        let is_over = is_over.clone();
        thread::spawn(move || hold_others(&set, &config, &target, &is_over))
    });
    let first = hold_lane(set, config, target, Some((channel, round_trip)));
    set.end_wait(&is_over);
    let mut finals: Vec<Error> = first.into_iter().collect();
    finals.extend(others.into_iter().flat_map(|others| others.join().unwrap_or_default()));
    most_telling(finals)
}

/// Runs all lanes but the first, once they are of use.
fn hold_others(
    set: &Arc<LaneSet>,
    config: &Arc<DialConfig>,
    target: &Target,
    is_over: &AtomicBool,
) -> Vec<Error> {
    if !set.await_spread(is_over) {
        return Vec::new();
    }
    let begin = |_| {
        let (set, config, target) = (set.clone(), config.clone(), target.clone());
        thread::spawn(move || hold_lane(&set, &config, &target, None))
    };
    // All are begun before one is waited for.
    let others: Vec<_> = (1..config.lanes).map(begin).collect();
    others.into_iter().filter_map(|other| other.join().unwrap_or(None)).collect()
}

/// The one to show: a refusal says more than silence.
fn most_telling(errors: Vec<Error>) -> Option<Error> {
    errors.into_iter().min_by_key(|error| match error.kind() {
        ErrorKind::Refused | ErrorKind::Changed | ErrorKind::VerificationFailed | ErrorKind::Damaged => 0,
        ErrorKind::NotFound | ErrorKind::Unsupported => 1,
        ErrorKind::Protocol => 2,
        ErrorKind::TimedOut => 4,
        _ => 3,
    })
}

/// The most telling of `errors`, with what the others say behind it, so that every address that was tried is named.
fn all_named(errors: Vec<Error>) -> Option<Error> {
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let best = most_telling(errors)?;
    let said = best.to_string();
    // Once each, and not the one that stands in front.
    texts.sort();
    texts.dedup();
    texts.retain(|text| *text != said);
    if texts.is_empty() {
        return Some(best);
    }
    let more = texts.len().saturating_sub(NAMED_MAX - 1);
    texts.truncate(NAMED_MAX - 1);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let told = Error::new(best.kind(), format!("{said}; {}{more}", texts.join("; ")))
        .with_retryable(best.is_retryable());
    Some(match best.advice() {
        Some(advice) => told.advise(advice),
        None => told,
    })
}

fn pause(set: &LaneSet, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until && !set.is_closed() {
        thread::sleep(LOOK);
    }
}

/// Connects to the first target that answers and proves its key.
pub fn connect_any(
    tls: &TlsConfig,
    targets: &[Target],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(TlsChannel, Target, Duration)> {
    let mut errors: Vec<Error> = Vec::new();
    let mut rest = targets;
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|target| target.priority == first.priority).count();
        let (group, tail) = rest.split_at(same);
        rest = tail;
        match race(tls, group, is_cancelled) {
            Ok(connected) => return Ok(connected),
            Err(mut failed) => errors.append(&mut failed),
        }
        if is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "cancelled"));
        }
    }
    let best =
        all_named(errors).unwrap_or_else(|| Error::new(ErrorKind::NotFound, "no hint says where to connect"));
    if best.advice().is_some() {
        return Err(best);
    }
    Err(best.advise("is the sender still running, and does a firewall let TCP to its port through?"))
}

/// Asks a holder for the size and name of an object without fetching any of it. Ends soon after `is_stopped` says yes.
pub fn probe(
    config: &DialConfig,
    object: ObjectName,
    is_stopped: &dyn Fn() -> bool,
) -> Result<dray_core::message::Opened> {
    let (mut channel, target, _) = connect_any(&config.tls, &config.targets, is_stopped)?;
    let mut receiver = Receiver::new(config.hello.clone(), None, true);
    let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
    let mut out = Vec::new();
    push_control(&mut out, &receiver.hello());
    push_control(&mut out, &open(&channel, config, object));
    channel.write_all(&out).map_err(lost)?;
    loop {
        match next_control(&mut channel, &mut receiver, deadline)? {
            ReceiverInput::Agreed(_) => {}
            ReceiverInput::Opened(opened) => return Ok(opened),
            ReceiverInput::Fault(fault) => return Err(fault.to_error(&target.address)),
            _ => return Err(Error::new(ErrorKind::Protocol, "peer answered something else than was asked")),
        }
    }
}

fn race(
    tls: &TlsConfig,
    group: &[Target],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(TlsChannel, Target, Duration), Vec<Error>> {
    let (sender, results) = mpsc::channel();
    let mut waiting = group.iter();
    let mut running = 0;
    let mut errors = Vec::new();
    loop {
        let next = waiting.next();
        if let Some(target) = next {
            let (sender, tls, target) = (sender.clone(), tls.clone(), target.clone());
            running += 1;
            thread::spawn(move || {
                let result = connect(&tls, &target, &|| false);
                let _ = sender.send(result.map(|(channel, round_trip)| (channel, target, round_trip)));
            });
        } else if running == 0 {
            return Err(errors);
        }
        let patience = if waiting.len() > 0 { STAGGER } else { Duration::from_millis(500) };
        match results.recv_timeout(patience) {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => {
                running -= 1;
                errors.push(error);
            }
            Err(_) => {}
        }
        if is_cancelled() {
            return Err(errors);
        }
    }
}

/// TCP and TLS to one target; returns the channel and the round-trip time seen by the TCP handshake.
fn connect(
    tls: &TlsConfig,
    target: &Target,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(TlsChannel, Duration)> {
    let context = |error: Error| error.context(format_args!("connect to {}", target.address));
    let addresses = target
        .address
        .to_socket_addrs()
        .map_err(|error| context(Error::new(ErrorKind::Unreachable, "no such host").caused_by(error)))?;
    let mut errors = Vec::new();
    for address in addresses.take(ADDRESSES_MAX) {
        if is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "cancelled"));
        }
        if !target.allow_local && is_local(address.ip()) {
            let refused = Error::new(ErrorKind::Refused, format!("the hint leads to {}, an address of this machine or link", address.ip()))
                .advise("if you trust the ticket, say --local, or set allow_local_targets = true in the configuration");
            errors.push(refused);
            continue;
        }
        match connect_one(tls, target, address) {
            Ok(connected) => return Ok(connected),
            // A host name may have several addresses; where it is one, it stands in front already.
            Err(error) if address.to_string() == target.address => errors.push(error),
            Err(error) => errors.push(error.context(address)),
        }
    }
    let none = || Error::new(ErrorKind::Unreachable, "host has no address");
    Err(context(all_named(errors).unwrap_or_else(none)))
}

/// Addresses that mean something else to every machine: a stranger's hint must not reach what listens there
/// (design decision 17).
pub fn is_local(address: std::net::IpAddr) -> bool {
    use std::net::IpAddr;
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast(),
        IpAddr::V6(v6) => {
            v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()
        }
    }
}

fn connect_one(tls: &TlsConfig, target: &Target, address: SocketAddr) -> Result<(TlsChannel, Duration)> {
    let begun = Instant::now();
    let socket =
        connect_tcp(address, CONNECT_TIMEOUT).map_err(|error| Error::io("no TCP connection", error))?;
    let round_trip = begun.elapsed();
    let channel =
        tls.connect(socket, target.node, Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS))?;
    Ok((channel, round_trip))
}

/// Keeps one lane up until the source is closed, something happens that trying again cannot mend (`Some`), or the
/// target stays away.
fn hold_lane(
    set: &LaneSet,
    config: &DialConfig,
    target: &Target,
    first: Option<(TlsChannel, Duration)>,
) -> Option<Error> {
    let mut ready = first;
    let mut backoff = FIRST_BACKOFF;
    let mut lost = 0;
    while !set.is_closed() && lost < LOST_MAX {
        let connected = match ready.take() {
            Some(connected) => Ok(connected),
            None => connect(&config.tls, target, &|| set.is_closed()),
        };
        let begun = Instant::now();
        let result = connected.and_then(|(channel, round_trip)| run_lane(set, config, channel, round_trip));
        if begun.elapsed() >= STEADY {
            lost = 0;
            backoff = FIRST_BACKOFF;
        }
        match result {
            Ok(()) => {}
            Err(error) if is_final(&error) => return Some(error),
            Err(_) => {
                lost += 1;
                pause(set, backoff);
                backoff = (backoff * 2).min(LAST_BACKOFF);
            }
        }
    }
    None
}

/// What another connection to the same node would only meet again.
fn is_final(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::Internal
    )
}

fn run_lane(set: &LaneSet, config: &DialConfig, channel: TlsChannel, round_trip: Duration) -> Result<()> {
    let is_proven = matches!(set.object(), ObjectName::Oid(_));
    let geometry = config.size_bytes.map(Geometry::new);
    let mut receiver = Receiver::new(config.hello.clone(), geometry, is_proven);
    let mut opening = Opening::ToAsk;
    let channel: Box<dyn Channel> = if config.clear_data && is_proven {
        go_clear(channel, &mut receiver, config, set.object(), &mut opening)?
    } else {
        Box::new(channel)
    };
    let start = LaneStart {
        receiver,
        preface: Vec::new(),
        secret: config.secret,
        node: config.tls.node(),
        round_trip_us: u64::try_from(round_trip.as_micros()).ok(),
        opening,
    };
    set.run(channel, start, None)
}

/// Opens the object and asks for a clear-text data connection for it; stays with TLS if the holder does not allow one.
fn go_clear(
    mut channel: TlsChannel,
    receiver: &mut Receiver,
    config: &DialConfig,
    object: ObjectName,
    opening: &mut Opening,
) -> Result<Box<dyn Channel>> {
    let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
    let unexpected = || Error::new(ErrorKind::Protocol, "peer answered something else than was asked");
    let mut out = Vec::new();
    push_control(&mut out, &receiver.hello());
    push_control(&mut out, &open(&channel, config, object));
    channel.write_all(&out).map_err(lost)?;
    let ReceiverInput::Agreed(agreed) = next_control(&mut channel, receiver, deadline)? else {
        return Err(unexpected());
    };
    *opening = Opening::Asked;
    if !agreed.has(feature::CLEAR_DATA) {
        return Ok(Box::new(channel));
    }
    match next_control(&mut channel, receiver, deadline)? {
        ReceiverInput::Opened(opened) => *opening = Opening::Answered(opened),
        ReceiverInput::Fault(fault) => {
            let holder = channel.peer_addr().map_or_else(|_| "the holder".into(), |at| at.to_string());
            return Err(fault.to_error(&holder));
        }
        _ => return Err(unexpected()),
    }
    out.clear();
    push_control(&mut out, &Message::ClearAsk(ClearAsk {}));
    channel.write_all(&out).map_err(lost)?;
    let token = match next_control(&mut channel, receiver, deadline)? {
        ReceiverInput::ClearGrant(token) => token,
        // Too many connections wait for their data already: this one stays encrypted.
        ReceiverInput::Fault(_) => return Ok(Box::new(channel)),
        _ => return Err(unexpected()),
    };
    let address = channel.peer_addr().map_err(lost)?;
    let data = connect_tcp(address, CONNECT_TIMEOUT).map_err(lost)?;
    let mut preamble = CLEAR_PREAMBLE.to_vec();
    preamble.extend_from_slice(&token);
    std::io::Write::write_all(&mut &data, &preamble).map_err(lost)?;
    Ok(Box::new(ClearChannel::receiver(channel, data).map_err(lost)?))
}

fn open(channel: &TlsChannel, config: &DialConfig, object: ObjectName) -> Message {
    let proof = config.secret.zip(channel.security()).map(|(secret, security)| {
        security.prove(&secret, config.tls.node(), &object).as_bytes().to_vec().into()
    });
    Message::Open(Open { handle: 1, object, proof })
}

fn next_control(
    channel: &mut TlsChannel,
    receiver: &mut Receiver,
    deadline: Instant,
) -> Result<ReceiverInput> {
    let mut head = [0; FRAME_HEAD_BYTES];
    read_exact(channel, &mut head, deadline)?;
    let head = FrameHead::decode(head)?;
    if receiver.handle_head(head)? != Body::Control {
        return Err(Error::new(ErrorKind::Protocol, "peer sent data that nobody asked for"));
    }
    let mut body = vec![0; head.body_bytes];
    read_exact(channel, &mut body, deadline)?;
    receiver.handle_control(&body)
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 5: an error of several attempts names each of them, up to four, and begins with the most telling one.
    #[test]
    fn every_address_is_named() {
        let failed = |kind, at: u8| Error::new(kind, format!("connect to 192.0.2.{at}:1"));
        assert!(all_named(Vec::new()).is_none());
        let one = all_named(vec![failed(ErrorKind::Unreachable, 1)]).unwrap();
        assert_eq!(one.to_string(), "connect to 192.0.2.1:1");
        let errors = vec![
            failed(ErrorKind::Unreachable, 1),
            failed(ErrorKind::Refused, 2).advise("say --local"),
            failed(ErrorKind::Unreachable, 1),
            failed(ErrorKind::TimedOut, 3),
        ];
        let all = all_named(errors).unwrap();
        assert_eq!((all.kind(), all.advice()), (ErrorKind::Refused, Some("say --local")));
        assert_eq!(all.to_string(), "connect to 192.0.2.2:1; connect to 192.0.2.1:1; connect to 192.0.2.3:1");
        let many = all_named((1..=9).map(|at| failed(ErrorKind::Unreachable, at)).collect()).unwrap();
        assert!(many.to_string().ends_with("connect to 192.0.2.4:1; and 5 more"), "{many}");
    }

    /// S34: only who did not look for long was stopped; a slow answer is none.
    #[test]
    fn a_stop_is_noticed() {
        let begun = Instant::now();
        let watch = StopWatch::new(begun);
        for turn in 0..100 {
            watch.look(begun + Duration::from_millis(500) * turn);
        }
        assert!(!watch.was_stopped.get());
        watch.look(begun + Duration::from_millis(500) * 99 + STOPPED_FROM);
        assert!(watch.was_stopped.get());
    }
}
