//! The ways to connect a source that the conformance suite runs over.

use std::sync::Arc;
use std::thread;

use dray_core::Oid;
use dray_core::hash_tree::Geometry;
use dray_core::limits::REQUESTS_PER_CONNECTION_MAX;
use dray_core::message::ObjectName;
use dray_core::rights::Secret;
use dray_core::source::{Grade, SourceCapabilities, SourceDescription, SourceEvents, SourceId};
use dray_engine::session::{Holder, Receiver};
use dray_testkit::source_conformance::{Properties, SourceBed, SourceUnderTest, TestObject, Trouble};
use dray_transfer::direct::{ClearTokens, DialConfig, Target, dial};
use dray_transfer::holder::{Held, serve};
use dray_transfer::lanes::{LaneSet, LaneStart, Opening};
use dray_transfer::transport::PipeChannel;

use super::{Cut, ProvenHeld, SECRET, TestHolder, TestProvider, VouchedHeld, free_port, hello, tls};

const HOLDER: u8 = 1;
const RECEIVER: u8 = 2;

fn held(grade: Grade, object: &TestObject) -> Arc<dyn Held> {
    match grade {
        Grade::Proven => Arc::new(ProvenHeld::new(object)),
        Grade::Vouched => Arc::new(VouchedHeld::new(object)),
    }
}

fn name(grade: Grade, object: &TestObject) -> ObjectName {
    match grade {
        Grade::Proven => ObjectName::Oid(Oid::of(&object.data)),
        Grade::Vouched => ObjectName::Provisional([7; 32]),
    }
}

fn describe(label: &str, grade: Grade) -> SourceDescription {
    let capabilities = SourceCapabilities { grade, cancel: true, holes: true, under_way_bytes: 0 };
    SourceDescription { label: label.into(), priority: 0, weight: 1, capabilities }
}

/// Over TCP on loopback.
pub struct DirectBed {
    pub grade: Grade,
    pub lanes: usize,
    /// Data beside TLS.
    pub clear: bool,
    /// The size comes from the ticket; otherwise from the holder.
    pub knows_size: bool,
}

impl SourceBed for DirectBed {
    fn properties(&self) -> Properties {
        let outstanding_max = self.lanes * REQUESTS_PER_CONNECTION_MAX;
        Properties {
            grade: self.grade,
            connections: self.lanes,
            outstanding_max,
            recovers: true,
            dials: true,
        }
    }

    fn connect(
        &self,
        object: &TestObject,
        trouble: Trouble,
        events: Arc<dyn SourceEvents>,
    ) -> SourceUnderTest {
        let grade = self.grade;
        let wanted = name(grade, object);
        let size_bytes = self.knows_size.then_some(object.data.len() as u64);
        let set = LaneSet::new(SourceId(1), wanted, describe("direct", grade), size_bytes, events);
        let holder = TestHolder::start(HOLDER, self.clear, |tokens| {
            provider(grade, object, trouble, self.clear.then(|| tokens.clone()))
        });
        let port = if trouble == Trouble::Unreachable { free_port() } else { holder.port };
        let config = DialConfig {
            tls: tls(RECEIVER),
            hello: hello(self.clear),
            targets: vec![Target {
                address: format!("127.0.0.1:{port}"),
                node: holder.node,
                priority: 0,
                allow_local: true,
            }],
            lanes: self.lanes,
            secret: Some(SECRET),
            size_bytes,
            clear_data: self.clear,
            only_way: true,
        };
        dial(set.clone(), config);
        SourceUnderTest { source: set, break_connections: Box::new(move || holder.cut.now()) }
    }
}

/// Holds `object`, or another one, or for those who know another secret.
fn provider(
    grade: Grade,
    object: &TestObject,
    trouble: Trouble,
    tokens: Option<Arc<ClearTokens>>,
) -> TestProvider {
    TestProvider {
        held: held(grade, object),
        object: match trouble {
            Trouble::UnknownObject => ObjectName::Oid(Oid::of(b"another")),
            _ => name(grade, object),
        },
        holder: tls(HOLDER).node(),
        secret: if trouble == Trouble::WrongSecret { Secret::from_bytes([9; 16]) } else { SECRET },
        tokens,
    }
}

/// Over two pipes, as with ssh.
pub struct PipeBed {
    pub grade: Grade,
}

impl SourceBed for PipeBed {
    fn properties(&self) -> Properties {
        Properties {
            grade: self.grade,
            connections: 1,
            outstanding_max: REQUESTS_PER_CONNECTION_MAX,
            recovers: false,
            dials: false,
        }
    }

    fn connect(
        &self,
        object: &TestObject,
        trouble: Trouble,
        events: Arc<dyn SourceEvents>,
    ) -> SourceUnderTest {
        let grade = self.grade;
        let wanted = name(grade, object);
        let provider = provider(grade, object, trouble, None);
        let (holder_reads, receiver_writes) = rustix::pipe::pipe().unwrap();
        let (receiver_reads, holder_writes) = rustix::pipe::pipe().unwrap();
        let cut = Cut::default();
        let channel = cut.wrap(Box::new(PipeChannel::new(holder_reads, holder_writes).unwrap()));
        thread::spawn(move || serve(channel, Holder::new(hello(false)), vec![], &provider, None));
        let size_bytes = object.data.len() as u64;
        let set = LaneSet::new(SourceId(1), wanted, describe("pipe", grade), Some(size_bytes), events);
        let lane = set.clone();
        let channel = PipeChannel::new(receiver_reads, receiver_writes).unwrap();
        thread::spawn(move || {
            let geometry = Geometry::new(size_bytes);
            let start = LaneStart {
                receiver: Receiver::new(hello(false), Some(geometry), grade == Grade::Proven),
                preface: vec![],
                secret: None,
                node: tls(RECEIVER).node(),
                round_trip_us: None,
                opening: Opening::ToAsk,
            };
            let ended = lane.run(Box::new(channel), start, None);
            lane.give_up(ended.err());
        });
        SourceUnderTest { source: set, break_connections: Box::new(move || cut.now()) }
    }
}
