//! An object that this user has already: a source like any other, and the first to be asked, so that nobody is dialled
//! for it ([ADR 10](../../../docs/adr/0010-what-is-at-hand.md)).
//!
//! It is served to ourselves over a pipe, by the holder that serves receivers: so it is checked, found to have changed and
//! reported damaged in the same way, and its bytes are proven as they come, whatever its record says.

use std::sync::Arc;
use std::thread;

use dray_core::hash_tree::Geometry;
use dray_core::limits::UNIT_BYTES;
use dray_core::message::{Hello, ObjectName, Open, feature};
use dray_core::source::{Grade, SourceCapabilities, SourceDescription, SourceId};
use dray_core::store::{Standing, Store, StoredObject};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_engine::session::{Holder, Receiver};
use dray_store::local::LocalStore;
use dray_transfer::holder::{Held, Provider, StoredHeld, serve};
use dray_transfer::lanes::{LaneSet, LaneStart, Opening};
use dray_transfer::transport::{PipeChannel, Security};
use rustix::pipe::PipeFlags;

use crate::transfer::Transfer;

/// Its number among the sources of a transfer; others count from 0.
const ID: SourceId = SourceId(u32::MAX);
/// Smaller objects are not remembered when they were fetched: to fetch them again costs little.
const REMEMBERED_FROM_BYTES: u64 = UNIT_BYTES;

/// A whole object in this user's store.
pub(crate) struct AtHand {
    object: Arc<dyn StoredObject>,
    /// What the user called it who shared it here.
    name: Option<Vec<u8>>,
}

impl AtHand {
    /// The object, if the store has all of it, of the size that is expected of it. What is wrong with it otherwise is of no
    /// interest: there are others to ask.
    pub(crate) fn find(store: &LocalStore, oid: &Oid, size_bytes: Option<u64>) -> Option<AtHand> {
        let object = store.open_ready(oid).ok()??;
        if size_bytes.is_some_and(|size_bytes| size_bytes != object.size_bytes())
            || object.standing() == Standing::Changed
        {
            return None;
        }
        // A file that was only fetched may be called anything: that is not what its sender calls it.
        let name = store.share(oid).ok().flatten().and_then(|share| share.name).map(|name| name.to_vec());
        Some(AtHand { object, name })
    }

    /// Its size.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.object.size_bytes()
    }

    /// What it is called where it was shared.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// Adds it to `transfer`, before all others. Ends with the transfer, or when it turns out not to be the object.
    pub(crate) fn start(self, transfer: &Arc<Transfer>, hello: &Hello, node: NodeId) -> Result<()> {
        let failed = |error: std::io::Error| Error::file("open a pipe", error);
        let (holder_reads, receiver_writes) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let (receiver_reads, holder_writes) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let to_receiver = PipeChannel::new(holder_reads, holder_writes).map_err(failed)?;
        let to_holder = PipeChannel::new(receiver_reads, receiver_writes).map_err(failed)?;
        let capabilities =
            SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true, under_way_bytes: 0 };
        let description =
            SourceDescription { label: "own copy".into(), priority: 0, weight: 1, capabilities };
        let (oid, size_bytes) = (self.object.oid(), self.object.size_bytes());
        let lanes = LaneSet::new(ID, ObjectName::Oid(oid), description, Some(size_bytes), transfer.events());
        transfer.add_source(ID, lanes.clone());
        let itself = Itself { oid, held: Arc::new(StoredHeld::new(self.object, self.name)) };
        // A pipe within this process is no path for packed data.
        let mut hello = hello.clone();
        hello.features.retain(|name| name != feature::PACKED);
        let holder = Holder::new(hello.clone());
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let spawned = thread::Builder::new().name(name.into()).spawn(work);
            spawned.map(drop).map_err(|error| Error::file("start a thread", error))
        };
        // What ends it the receiving end hears.
        let serving = move || drop(serve(Box::new(to_receiver), holder, Vec::new(), &itself, None));
        spawn("own copy", Box::new(serving))?;
        let start = LaneStart {
            receiver: Receiver::new(hello, Some(Geometry::new(size_bytes)), true),
            preface: Vec::new(),
            secret: None,
            node,
            round_trip_us: None,
            opening: Opening::ToAsk,
        };
        let receiving = move || {
            let ended = lanes.run(Box::new(to_holder), start, None);
            lanes.give_up(ended.err());
        };
        spawn("own copy read", Box::new(receiving))
    }

    /// False if it is not, or no longer, a source of `transfer`, or silent.
    pub(crate) fn is_of_use(transfer: &Transfer) -> bool {
        transfer.is_promising(ID)
    }
}

/// Whether an object of this size is remembered where it was delivered.
pub(crate) fn is_remembered(size_bytes: u64) -> bool {
    size_bytes >= REMEMBERED_FROM_BYTES
}

/// Gives one object to whoever is at the other end of the pipe: ourselves.
struct Itself {
    oid: Oid,
    held: Arc<dyn Held>,
}

impl Provider for Itself {
    fn open(&self, open: &Open, _: Option<&Security>) -> Result<Arc<dyn Held>> {
        if open.object == ObjectName::Oid(self.oid) {
            Ok(self.held.clone())
        } else {
            Err(Error::new(ErrorKind::NotFound, format!("{} is not at hand", open.object)))
        }
    }
}
