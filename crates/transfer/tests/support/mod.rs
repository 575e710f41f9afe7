//! Holders to test against: real listeners, TLS and pipes, objects of the memory store, and a cut for the wires.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

pub mod beds;
pub mod receive;
pub mod relay;
pub mod trees;

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use dray_core::chunker::Profile;
use dray_core::hash_tree::{Collector, Cv, Geometry, MemoryPairs, PairStore, Subtree};
use dray_core::message::{Hello, ObjectName, Open, PROTOCOL_VERSION, feature};
use dray_core::rights::{Proof, ProofContext, Secret};
use dray_core::store::{Extent, Standing, Store};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_engine::session::Holder;
use dray_store::memory::MemoryStore;
use dray_testkit::source_conformance::TestObject;
use dray_transfer::direct::{ClearTokens, Listener};
use dray_transfer::holder::{
    ClearGrantor, Held, Provider, RecipeCache, RecipeState, RecipeWish, StoredHeld, serve,
};
use dray_transfer::recipe::Recipe;
use dray_transfer::transport::{Channel, NodeKey, Security, TlsChannel, TlsConfig, Wake};

pub const SECRET: Secret = Secret::from_bytes([0x5e; 16]);

pub fn tls(seed: u8) -> TlsConfig {
    TlsConfig::new(NodeKey::from_seed(&[seed; 32]).unwrap()).unwrap()
}

pub fn hello(clear: bool) -> Hello {
    let mut features = vec![feature::ZEROS.to_owned()];
    features.extend(clear.then(|| feature::CLEAR_DATA.to_owned()));
    Hello { version: PROTOCOL_VERSION, features, required: vec![], agent: "test/0".into() }
}

/// The same of one that knows recipes.
pub fn hello_with_recipe(clear: bool) -> Hello {
    let mut hello = hello(clear);
    hello.features.push(feature::RECIPE.to_owned());
    hello.features.push(feature::PACKED.to_owned());
    hello
}

/// A port at which nobody listens.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The object of a suite, held by the memory store, behind the suite's gate and with the holes it asks for.
pub struct ProvenHeld {
    pub stored: StoredHeld,
    pub object: TestObject,
    /// This byte reads as another than it was put.
    pub damaged_at: Option<u64>,
    pub recipe: Arc<RecipeCache>,
    /// It is not to be had any more.
    pub ended: Arc<AtomicBool>,
    /// Each unit is read for its recipe when this says so.
    pub recipe_gate: Option<Mutex<mpsc::Receiver<()>>>,
}

impl ProvenHeld {
    pub fn new(object: &TestObject) -> ProvenHeld {
        let store = MemoryStore::new();
        let mut writer = store.put().unwrap();
        writer.write(&object.data).unwrap();
        let stored = StoredHeld::new(writer.commit().unwrap(), Some(object.name.clone()));
        ProvenHeld {
            stored,
            object: object.clone(),
            damaged_at: None,
            recipe: Arc::default(),
            ended: Arc::default(),
            recipe_gate: None,
        }
    }
}

impl Held for ProvenHeld {
    fn geometry(&self) -> Geometry {
        self.stored.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        self.stored.oid()
    }
    fn name(&self) -> Option<Vec<u8>> {
        self.stored.name()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.object.gate.pass(offset + out.len() as u64);
        self.stored.read_at(offset, out)?;
        let at =
            self.damaged_at.and_then(|at| at.checked_sub(offset)).and_then(|at| usize::try_from(at).ok());
        if let Some(byte) = at.and_then(|at| out.get_mut(at)) {
            *byte ^= 1;
        }
        Ok(())
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        let (range, is_hole) = self.object.extent_at(offset, end);
        Ok(Extent { range, is_hole })
    }
    fn standing(&self) -> Standing {
        self.stored.standing()
    }
    fn mismatch(&self) -> Error {
        self.stored.mismatch()
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        self.stored.pairs()
    }
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        self.stored.raw_file()
    }
    fn ended(&self) -> Option<Error> {
        self.ended.load(Ordering::Acquire).then(|| Error::new(ErrorKind::Refused, "it has ended"))
    }
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        let held = self.clone();
        Ok(self.recipe.ask(wish, move |maker| {
            let mut read = |offset: u64, out: &mut [u8]| {
                if let Some(gate) = &held.recipe_gate {
                    let _ = gate.lock().unwrap().recv();
                }
                held.stored.read_at(offset, out)
            };
            let size_bytes = held.object.data.len() as u64;
            maker.read(size_bytes, Profile::for_size(size_bytes).unwrap(), &|| true, &mut read)
        }))
    }
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        Ok(self.recipe.made_for(wish))
    }
}

/// The object of a suite as the origin of a copy has it: hashed as it is sent.
pub struct VouchedHeld {
    object: TestObject,
    collector: Collector<MemoryPairs>,
}

impl VouchedHeld {
    pub fn new(object: &TestObject) -> VouchedHeld {
        let geometry = Geometry::new(object.data.len() as u64);
        let collector = Collector::new(geometry, MemoryPairs::new(geometry).unwrap());
        VouchedHeld { object: object.clone(), collector }
    }
}

impl Held for VouchedHeld {
    fn geometry(&self) -> Geometry {
        self.collector.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        None
    }
    fn name(&self) -> Option<Vec<u8>> {
        Some(self.object.name.clone())
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset + out.len() as u64;
        self.object.gate.pass(end);
        out.copy_from_slice(&self.object.data[offset as usize..end as usize]);
        Ok(())
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        let (range, is_hole) = self.object.extent_at(offset, end);
        Ok(Extent { range, is_hole })
    }
    fn standing(&self) -> Standing {
        Standing::Trusted
    }
    fn mismatch(&self) -> Error {
        Error::new(ErrorKind::Changed, "changed")
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        None
    }
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn record_unit(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        self.collector.record_unit(unit, leaves)
    }
    fn seal(&self, _: Oid) -> Result<Oid> {
        self.collector.finish()
    }
    fn compare(&self, subtrees: &[Subtree]) -> Result<Vec<u8>> {
        let mut pairs = vec![0; subtrees.len() * 64];
        for (node, pair) in subtrees.iter().zip(pairs.chunks_exact_mut(64)) {
            self.collector.pairs().read_pairs(node.pair_index(), pair)?;
        }
        Ok(pairs)
    }
}

/// Gives one object to whoever proves its secret, or to whoever is at the other end of a pipe.
pub struct TestProvider {
    pub held: Arc<dyn Held>,
    pub object: ObjectName,
    pub holder: NodeId,
    pub secret: Secret,
    /// Where clear-text data connections arrive, if they are allowed.
    pub tokens: Option<Arc<ClearTokens>>,
}

impl Provider for TestProvider {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        if let Some(security) = security {
            let context =
                ProofContext { exporter: security.exporter, holder: self.holder, receiver: security.peer };
            let proof = Proof::new(&self.secret, &context, &open.object, 0..u64::MAX);
            if !open.proof.as_ref().is_some_and(|shown| proof.matches(shown)) {
                return Err(Error::new(ErrorKind::Refused, "the secret is wrong"));
            }
        }
        if open.object == self.object {
            Ok(self.held.clone())
        } else {
            Err(Error::new(ErrorKind::NotFound, "no such object"))
        }
    }

    fn clear_data(&self) -> Option<ClearGrantor> {
        self.tokens.as_ref()?.grant().ok()
    }
}

/// Breaks the connections that exist at one moment.
#[derive(Clone, Default)]
pub struct Cut(Arc<AtomicU64>);

impl Cut {
    pub fn now(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn wrap(&self, channel: Box<dyn Channel>) -> Box<dyn Channel> {
        Box::new(Cuttable { channel, cut: self.clone(), made: self.0.load(Ordering::Acquire) })
    }
}

struct Cuttable {
    channel: Box<dyn Channel>,
    cut: Cut,
    made: u64,
}

impl Cuttable {
    fn check(&self) -> io::Result<()> {
        let is_whole = self.cut.0.load(Ordering::Acquire) == self.made;
        if is_whole { Ok(()) } else { Err(io::ErrorKind::ConnectionReset.into()) }
    }
}

impl Channel for Cuttable {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.check()?;
        self.channel.try_read(out)
    }
    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.channel.write_all(data)
    }
    fn write_control(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.channel.write_control(data)
    }
    fn has_control(&self) -> bool {
        self.channel.has_control()
    }
    fn try_read_control(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.check()?;
        self.channel.try_read_control(out)
    }
    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.check()?;
        self.channel.wait(wake, timeout.min(Duration::from_millis(20)))
    }
    fn security(&self) -> Option<Security> {
        self.channel.security()
    }
    fn keep_place(&self) {
        self.channel.keep_place();
    }
    fn rest(&self) {
        self.channel.rest();
    }
    fn send_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<bool> {
        self.check()?;
        self.channel.send_file(file, offset, len)
    }
    fn can_send_file(&self) -> bool {
        self.channel.can_send_file()
    }
    fn into_clear_holder(self: Box<Self>, data: TcpStream) -> io::Result<Box<dyn Channel>> {
        let channel = self.channel.into_clear_holder(data)?;
        Ok(Box::new(Cuttable { channel, cut: self.cut, made: self.made }))
    }
}

/// A listening holder; dropped, it stops.
pub struct TestHolder {
    pub listener: Arc<Listener>,
    pub node: NodeId,
    pub port: u16,
    pub cut: Cut,
    accepting: Option<thread::JoinHandle<()>>,
}

impl TestHolder {
    /// Serves what `provider` gives, from the node of `seed`. The provider is made when the tokens are there.
    pub fn start<P: Provider + 'static>(
        seed: u8,
        clear: bool,
        provider: impl FnOnce(&Arc<ClearTokens>) -> P,
    ) -> TestHolder {
        let listener = Arc::new(Listener::bind(tls(seed), None).unwrap());
        let provider = Arc::new(provider(&listener.clear_tokens()));
        let cut = Cut::default();
        let wires = cut.clone();
        let serving = move |channel: TlsChannel| {
            // What breaks here the receiver hears of.
            let _ = serve(
                wires.wrap(Box::new(channel)),
                Holder::new(hello_with_recipe(clear)),
                vec![],
                &*provider,
                None,
            );
        };
        let accepting = listener.clone();
        let accepting = thread::spawn(move || accepting.accept_all(Arc::new(serving)));
        let port = listener.port().unwrap();
        TestHolder { listener, node: tls(seed).node(), port, cut, accepting: Some(accepting) }
    }

    /// Serves `object` by its OID with [`SECRET`].
    pub fn of(held: Arc<dyn Held>, oid: Oid, seed: u8, clear: bool) -> TestHolder {
        TestHolder::start(seed, clear, |tokens| TestProvider {
            held,
            object: ObjectName::Oid(oid),
            holder: tls(seed).node(),
            secret: SECRET,
            tokens: clear.then(|| tokens.clone()),
        })
    }
}

impl Drop for TestHolder {
    fn drop(&mut self) {
        self.listener.stop();
        self.cut.now();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
