//! The receiving end for tests: a source whose events are kept, and a raw connection that may break every rule.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::hash_tree::Geometry;
use dray_core::message::{Hello, Message, ObjectName, Open};
use dray_core::permit::Budget;
use dray_core::rights::{Proof, ProofContext, Secret};
use dray_core::source::{
    Flow, Grade, RequestId, Source, SourceCall, SourceCapabilities, SourceDescription, SourceEvent,
    SourceEvents, SourceId,
};
use dray_core::{Error, ErrorKind, NodeId, Oid};
use dray_transfer::direct::{DialConfig, Target, dial};
use dray_transfer::lanes::LaneSet;
use dray_transfer::transport::{Channel, TlsChannel, connect_tcp, push_control};

use super::{SECRET, hello, tls};

const PATIENCE: Duration = Duration::from_secs(30);
const RECEIVER: u8 = 2;

/// What a source reported.
#[derive(Debug, Default)]
pub struct Got {
    /// Bytes by group.
    pub groups: BTreeMap<u64, Vec<u8>>,
    /// Bytes that were holes.
    pub hole_bytes: u64,
    /// How each request ended.
    pub ended: BTreeMap<u32, Result<(), ErrorKind>>,
    pub ups: usize,
    /// Why it went down, and whether for good.
    pub downs: Vec<(Option<ErrorKind>, bool)>,
    pub errors: Vec<String>,
}

#[derive(Default)]
pub struct Sink {
    got: Mutex<Got>,
    changed: Condvar,
}

impl Sink {
    pub fn got(&self) -> MutexGuard<'_, Got> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wait(&self, what: &str, is_so: impl Fn(&Got) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut got = self.got();
        while !is_so(&got) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "{what} never happened: {:?} {:?} {:?}",
                got.ended,
                got.downs,
                got.errors
            );
            got = self.changed.wait_timeout(got, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl SourceEvents for Sink {
    fn event(&self, _: SourceId, event: SourceEvent<'_>) -> Flow {
        let mut got = self.got();
        match event {
            SourceEvent::Up { .. } => got.ups += 1,
            SourceEvent::Group { group, bytes, data, .. } => {
                let data: u64 = data.iter().map(|piece| u64::from(piece.end - piece.start)).sum();
                got.hole_bytes += bytes.len() as u64 - data;
                got.groups.insert(group, bytes.to_vec());
            }
            SourceEvent::Done { request } => drop(got.ended.insert(request.0, Ok(()))),
            SourceEvent::Failed { request, error } => {
                got.errors.push(error.to_string());
                got.ended.insert(request.0, Err(error.kind()));
            }
            SourceEvent::Down { error, gone } => {
                got.errors.extend(error.as_ref().map(Error::to_string));
                got.downs.push((error.map(|error| error.kind()), gone));
            }
            _ => {}
        }
        self.changed.notify_all();
        Flow::Continue
    }
}

/// A source over TCP; closed when dropped.
pub struct TestReceiver {
    pub source: Arc<LaneSet>,
    pub sink: Arc<Sink>,
    geometry: Geometry,
}

impl TestReceiver {
    /// Dials `node` at `port` for an object.
    pub fn dial(port: u16, node: NodeId, oid: Oid, size_bytes: u64, clear_data: bool) -> TestReceiver {
        TestReceiver::saying(hello(clear_data), port, node, oid, size_bytes, clear_data)
    }

    /// One that has no feature at all.
    pub fn of_old(port: u16, node: NodeId, oid: Oid, size_bytes: u64) -> TestReceiver {
        let hello = Hello { features: vec![], ..hello(false) };
        TestReceiver::saying(hello, port, node, oid, size_bytes, false)
    }

    fn saying(
        hello: Hello,
        port: u16,
        node: NodeId,
        oid: Oid,
        size_bytes: u64,
        clear_data: bool,
    ) -> TestReceiver {
        let sink = Arc::new(Sink::default());
        let capabilities =
            SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true, under_way_bytes: 0 };
        let description = SourceDescription { label: "test".into(), priority: 0, weight: 1, capabilities };
        let object = ObjectName::Oid(oid);
        let source = LaneSet::new(SourceId(1), object, description, Some(size_bytes), sink.clone());
        let address = format!("127.0.0.1:{port}");
        let config = DialConfig {
            tls: tls(RECEIVER),
            hello,
            targets: vec![Target { address, node, priority: 0, allow_local: true }],
            lanes: 1,
            secret: Some(SECRET),
            size_bytes: Some(size_bytes),
            clear_data,
            only_way: true,
        };
        dial(source.clone(), config);
        TestReceiver { source, sink, geometry: Geometry::new(size_bytes) }
    }

    /// Fetches one unit and says how that ended. A request that a lost connection took along is made again.
    pub fn fetch_unit(&self, request: u32, unit: u64, recheck: bool) -> Result<(), ErrorKind> {
        self.sink.wait("up", |got| got.ups > got.downs.len());
        let permit = Budget::new(u64::MAX).try_reserve(1).unwrap();
        let groups = self.geometry.unit(unit);
        let request = RequestId(request);
        self.source.call(SourceCall::Fetch { request, groups, known_depth: 0, recheck, permit });
        self.sink.wait("the end of a request", |got| got.ended.contains_key(&request.0));
        self.sink.got().ended[&request.0]
    }

    /// Every unit in turn; the bytes, or the first failure.
    pub fn fetch_all(&self) -> Result<Vec<u8>, ErrorKind> {
        for unit in 0..self.geometry.units() {
            self.fetch_unit(unit as u32 + 1, unit, false)?;
        }
        Ok(self.sink.got().groups.values().flatten().copied().collect())
    }
}

impl Drop for TestReceiver {
    fn drop(&mut self) {
        self.source.call(SourceCall::Close);
    }
}

/// A TLS connection on which a test says what it likes.
pub struct RawReceiver {
    pub channel: TlsChannel,
}

impl RawReceiver {
    pub fn connect(port: u16, node: NodeId) -> RawReceiver {
        let socket = connect_tcp(([127, 0, 0, 1], port).into(), PATIENCE).unwrap();
        RawReceiver { channel: tls(RECEIVER).connect(socket, node, Instant::now() + PATIENCE).unwrap() }
    }

    /// What an honest receiver of `object` shows on this connection.
    pub fn proof(&self, secret: &Secret, object: &ObjectName) -> Vec<u8> {
        let security = self.channel.security().unwrap();
        let context = ProofContext {
            exporter: security.exporter,
            holder: security.peer,
            receiver: tls(RECEIVER).node(),
        };
        Proof::new(secret, &context, object, 0..u64::MAX).as_bytes().to_vec()
    }

    pub fn say(&mut self, messages: &[Message]) {
        let mut out = Vec::new();
        messages.iter().for_each(|message| push_control(&mut out, message));
        self.say_bytes(&out);
    }

    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.channel.write_all(bytes).unwrap();
    }

    /// Hello and an open of `object` as handle 1 with `proof`.
    pub fn open(&mut self, object: ObjectName, proof: Vec<u8>) {
        let open = Open { handle: 1, object, proof: Some(proof.into()) };
        self.say(&[Message::Hello(hello(false)), Message::Open(open)]);
    }

    /// The next frame; `None` at the end of the stream.
    pub fn frame(&mut self) -> Option<(FrameHead, Vec<u8>)> {
        let head = FrameHead::decode(self.read(FRAME_HEAD_BYTES)?.try_into().unwrap()).unwrap();
        let body = self.read(head.body_bytes)?;
        Some((head, body))
    }

    /// The next control message, whatever frames of data stand before it; `None` at the end of the stream.
    pub fn message(&mut self) -> Option<Message> {
        loop {
            let (head, body) = self.frame()?;
            if head.request == 0 {
                return Some(Message::from_bytes(&body).unwrap());
            }
        }
    }

    /// Everything up to the fault that ends the connection; there must be one.
    pub fn fault(&mut self) -> (ErrorKind, String) {
        loop {
            if let Message::Fault(fault) = self.message().unwrap() {
                return (ErrorKind::from_wire_code(fault.kind), fault.text);
            }
        }
    }

    fn read(&mut self, len: usize) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match self.channel.try_read(&mut bytes[filled..]).unwrap_or(Some(0)) {
                Some(0) => return None,
                Some(n) => filled += n,
                None => {
                    assert!(Instant::now() < deadline, "nothing comes");
                    self.channel.wait(None, Duration::from_secs(1)).unwrap();
                }
            }
        }
        Some(bytes)
    }
}
