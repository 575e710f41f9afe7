//! Dialling: hints in SRV order, a head start for each, and lanes that come back after a lost connection.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::hash_tree::Geometry;
use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::message::{ClearAsk, Hello, Message, ObjectName, Open, feature};
use dray_core::rights::{Proof, ProofContext, Secret};
use dray_core::source::Source;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::{Body, Receiver, ReceiverInput};

use crate::lanes::{LaneSet, LaneStart};
use crate::transport::{
    CLEAR_PREAMBLE, Channel, ClearChannel, TlsChannel, TlsConfig, connect_tcp, push_control,
};

/// Head start of one target before the next is tried beside it (RFC 8305 §5 recommends 250 ms).
const STAGGER: Duration = Duration::from_millis(250);
/// A TCP connection that takes longer has no use.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

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
    /// Connections to hold to the one that answers.
    pub lanes: usize,
    /// Secret of the object.
    pub secret: Option<Secret>,
    /// Size of the object, if known.
    pub size_bytes: Option<u64>,
    /// Use clear-text data if the holder allows it too.
    pub clear_data: bool,
    /// The source is given up if nobody answers at first; otherwise somebody else may still bring lanes to it.
    pub only_way: bool,
}

/// Dials in threads of its own until the source is closed. If nobody answers at first, the source is given up; once
/// it was up, lost connections are tried again.
pub fn dial(set: Arc<LaneSet>, config: DialConfig) {
    thread::spawn(move || match connect_any(&config.tls, &config.targets, &|| set.is_closed()) {
        Ok((channel, target, round_trip)) => {
            let config = Arc::new(config);
            for _ in 1..config.lanes {
                let (set, config, target) = (set.clone(), config.clone(), target.clone());
                thread::spawn(move || hold_lane(&set, &config, &target, None));
            }
            hold_lane(&set, &config, &target, Some((channel, round_trip)));
        }
        Err(error) if config.only_way => set.give_up(Some(error)),
        Err(_) => {}
    });
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
    // The most telling one: a refusal says more than silence.
    let best = errors.into_iter().min_by_key(|error| match error.kind() {
        ErrorKind::Refused => 0,
        ErrorKind::TimedOut => 2,
        _ => 1,
    });
    let best = best.unwrap_or_else(|| Error::new(ErrorKind::NotFound, "no hint says where to connect"));
    if best.advice().is_some() {
        return Err(best);
    }
    Err(best.advise("is the sender still running, and does a firewall let TCP to its port through?"))
}

/// Asks a holder for the size and name of an object without fetching any of it.
pub fn probe(config: &DialConfig, object: ObjectName) -> Result<dray_core::message::Opened> {
    let (mut channel, _, _) = connect_any(&config.tls, &config.targets, &|| false)?;
    let mut receiver = Receiver::new(config.hello.clone(), None, true);
    let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
    let proof = config.secret.zip(channel.security()).map(|(secret, security)| {
        let context =
            ProofContext { exporter: security.exporter, holder: security.peer, receiver: config.tls.node() };
        Proof::new(&secret, &context, &object, 0..u64::MAX).as_bytes().to_vec().into()
    });
    let mut out = Vec::new();
    push_control(&mut out, &receiver.hello());
    push_control(&mut out, &Message::Open(Open { handle: 1, object, proof }));
    channel.write_all(&out).map_err(lost)?;
    loop {
        match next_control(&mut channel, &mut receiver, deadline)? {
            ReceiverInput::Agreed(_) => {}
            ReceiverInput::Opened(opened) => return Ok(opened),
            ReceiverInput::Fault(fault) => return Err(fault.to_error("holder")),
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
                let result = connect(&tls, &target);
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
fn connect(tls: &TlsConfig, target: &Target) -> Result<(TlsChannel, Duration)> {
    let context = |error: Error| error.context(format_args!("connect to {}", target.address));
    let addresses = target
        .address
        .to_socket_addrs()
        .map_err(|error| context(Error::new(ErrorKind::Unreachable, "no such host").caused_by(error)))?;
    let mut last = Error::new(ErrorKind::Unreachable, "host has no address");
    for address in addresses {
        if !target.allow_local && is_local(address.ip()) {
            last = Error::new(ErrorKind::Refused, format!("the hint leads to {}, an address of this machine or link", address.ip()))
                .advise("if you trust the ticket, say --local, or set allow_local_targets = true in the configuration");
            continue;
        }
        match connect_one(tls, target, address) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(context(last))
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
    let socket = connect_tcp(address, CONNECT_TIMEOUT).map_err(|error| Error::io("TCP", error))?;
    let round_trip = begun.elapsed();
    let channel =
        tls.connect(socket, target.node, Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS))?;
    Ok((channel, round_trip))
}

/// Keeps one lane up until the source is closed or something happens that trying again cannot mend.
fn hold_lane(set: &LaneSet, config: &DialConfig, target: &Target, first: Option<(TlsChannel, Duration)>) {
    let mut ready = first;
    let mut backoff = FIRST_BACKOFF;
    while !set.is_closed() {
        let connected = match ready.take() {
            Some(connected) => Ok(connected),
            None => connect(&config.tls, target),
        };
        let result = connected.and_then(|(channel, round_trip)| {
            backoff = FIRST_BACKOFF;
            run_lane(set, config, target, channel, round_trip)
        });
        match result {
            Ok(()) => {}
            Err(error) if is_final(&error) => return set.give_up(Some(error)),
            Err(_) => {
                let until = Instant::now() + backoff;
                while Instant::now() < until && !set.is_closed() {
                    thread::sleep(Duration::from_millis(20));
                }
                backoff = (backoff * 2).min(LAST_BACKOFF);
            }
        }
    }
    if set.lanes() == 0 {
        set.give_up(None);
    }
}

/// What another connection to the same node would only meet again.
fn is_final(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::Internal
    )
}

fn run_lane(
    set: &LaneSet,
    config: &DialConfig,
    target: &Target,
    channel: TlsChannel,
    round_trip: Duration,
) -> Result<()> {
    let is_proven = matches!(set.object(), ObjectName::Oid(_));
    let geometry = config.size_bytes.map(Geometry::new);
    let mut receiver = Receiver::new(config.hello.clone(), geometry, is_proven);
    let channel: Box<dyn Channel> =
        if config.clear_data && is_proven { go_clear(channel, &mut receiver)? } else { Box::new(channel) };
    let start = LaneStart {
        receiver,
        preface: Vec::new(),
        secret: config.secret,
        node: config.tls.node(),
        round_trip_us: u64::try_from(round_trip.as_micros()).ok(),
    };
    set.run(channel, start, None).map_err(|error| error.context(&target.address))
}

/// Asks for a clear-text data connection and opens it; stays with TLS if the holder does not allow one.
fn go_clear(mut channel: TlsChannel, receiver: &mut Receiver) -> Result<Box<dyn Channel>> {
    let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
    let mut out = Vec::new();
    push_control(&mut out, &receiver.hello());
    channel.write_all(&out).map_err(lost)?;
    let ReceiverInput::Agreed(agreed) = next_control(&mut channel, receiver, deadline)? else {
        return Err(Error::new(ErrorKind::Protocol, "peer did not say hello first"));
    };
    if !agreed.has(feature::CLEAR_DATA) {
        return Ok(Box::new(channel));
    }
    out.clear();
    push_control(&mut out, &Message::ClearAsk(ClearAsk {}));
    channel.write_all(&out).map_err(lost)?;
    let token = match next_control(&mut channel, receiver, deadline)? {
        ReceiverInput::ClearGrant(token) => token,
        ReceiverInput::Fault(fault) => return Err(fault.to_error("holder")),
        _ => return Err(Error::new(ErrorKind::Protocol, "peer answered something else than was asked")),
    };
    let address = channel.peer_addr().map_err(lost)?;
    let data = connect_tcp(address, CONNECT_TIMEOUT).map_err(lost)?;
    let mut preamble = CLEAR_PREAMBLE.to_vec();
    preamble.extend_from_slice(&token);
    std::io::Write::write_all(&mut &data, &preamble).map_err(lost)?;
    Ok(Box::new(ClearChannel::receiver(channel, data).map_err(lost)?))
}

fn next_control(
    channel: &mut TlsChannel,
    receiver: &mut Receiver,
    deadline: Instant,
) -> Result<ReceiverInput> {
    let mut head = [0; FRAME_HEAD_BYTES];
    fill(channel, &mut head, deadline)?;
    let head = FrameHead::decode(head)?;
    if receiver.handle_head(head)? != Body::Control {
        return Err(Error::new(ErrorKind::Protocol, "peer sent data that nobody asked for"));
    }
    let mut body = vec![0; head.body_bytes];
    fill(channel, &mut body, deadline)?;
    receiver.handle_control(&body)
}

fn fill(channel: &mut dyn Channel, out: &mut [u8], deadline: Instant) -> Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        match channel.try_read(&mut out[filled..]).map_err(lost)? {
            Some(0) => return Err(Error::new(ErrorKind::Unreachable, "peer closed the connection")),
            Some(n) => filled += n,
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::new(ErrorKind::TimedOut, "peer said nothing"));
                }
                channel.wait(None, left).map_err(lost)?;
            }
        }
    }
    Ok(())
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}
