//! The service as a library: configuration builds plugins, plugins feed the engine, and the command calls what is
//! here: [`Node::put`], [`Node::get`], [`Node::copy`], [`Node::copy_trees`],
//! [`Node::remote_on`].

mod admission;
mod at_hand;
mod config;
mod copy;
mod daemon;
mod doctor;
mod elsewhere;
pub mod explain;
mod get;
mod identity;
mod join;
mod logs;
mod looking;
mod mountinfo;
mod mounts;
mod observer;
mod outboard;
mod put;
mod search;
mod transfer;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dray_core::message::{Hello, PROTOCOL_VERSION, feature};
use dray_core::permit::{Budget, Gauge};
use dray_core::{NodeId, Result};
use dray_store::local::{LocalStore, hash_file};
use dray_transfer::transport::TlsConfig;

pub use config::{Config, ConfigFile, Paths};
pub use copy::{
    AddressFamily, BasisUse, Chosen, Confinement, Confirm, Copied, CopyOptions, CopyRequest, DirectoryWish,
    Location, SharedTree, SshOptions, SyncBackup, SyncBasis, SyncOptions, TreeCopied, TreeOptions,
    TreeRequest, UNASKED, read_rule, refuse_remote, words,
};
pub use daemon::Daemon;
pub use doctor::Finding;
pub use dray_store::local::tree::raise_open_files;
pub use get::{GetRequest, Output, Wanted};
pub use logs::{log_event, log_outcome};
pub use observer::{Event, Listed, ListedKind, Observer, SourceShare, Stop};
pub use put::{PutRequest, PutSource, Shared};
pub use search::SearchPolicy;

/// Name and version that this program says in its hello.
pub const AGENT: &str = concat!("dray/", env!("CARGO_PKG_VERSION"));

/// What was delivered.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Its proven name.
    pub oid: dray_core::Oid,
    /// Its size.
    pub size_bytes: u64,
    /// Where it is; `None` if it went to standard output.
    pub path: Option<std::path::PathBuf>,
    /// Bytes that an earlier, interrupted run had left.
    pub resumed_bytes: u64,
    /// Bytes that were sent for it now, without what was there in another form, if this is the end that sent them.
    pub sent_bytes: Option<u64>,
}

/// One user's node on this machine: identity, store and configuration.
#[derive(Debug)]
pub struct Node {
    config: Config,
    tls: TlsConfig,
    /// What the next process of this user will know, too, and nobody else; `None` if no identity is kept.
    secret: Option<identity::Secret>,
    /// `None` if the data directory was not opened.
    store: Option<Arc<LocalStore>>,
    /// Where chunks of other files are looked up.
    index: elsewhere::Index,
    /// What transfers of this node have reserved of memory.
    reserved: Gauge,
}

impl Node {
    /// Opens the data directory, making it and the identity if this is the first time.
    pub fn open(config: Config) -> Result<Node> {
        let (key, secret) = identity::load_or_create(&config.paths.data_dir)?;
        let store = Arc::new(LocalStore::open(&config.paths.data_dir.join("store"))?);
        Ok(Node {
            tls: TlsConfig::new(key)?,
            secret: Some(secret),
            config,
            store: Some(store),
            index: elsewhere::Index::default(),
            reserved: Gauge::default(),
        })
    }

    /// For what keeps nothing in the data directory, copies of trees above all: it is neither made nor written to. Where there is no
    /// identity in it, this process has one of its own, which each end of a copy tells the other over ssh.
    pub fn passing(config: Config) -> Result<Node> {
        let (key, secret) = identity::load_or_pass(&config.paths.data_dir)?;
        let tls = TlsConfig::new(key)?;
        let (index, reserved) = (elsewhere::Index::default(), Gauge::default());
        Ok(Node { tls, secret, config, store: None, index, reserved })
    }

    /// The memory of one transfer.
    fn budget(&self) -> Budget {
        let budget = Budget::new(self.config.window_bytes);
        self.reserved.watch(&budget);
        budget
    }

    /// What this user has put and fetched.
    fn store(&self) -> Result<&Arc<LocalStore>> {
        let not_open =
            || dray_core::Error::new(dray_core::ErrorKind::Internal, "the data directory is not open");
        self.store.as_ref().ok_or_else(not_open)
    }

    /// This node's public key.
    pub fn id(&self) -> NodeId {
        self.tls.node()
    }

    /// Hashes with what only this user knows, if that is kept for the next process.
    fn secret(&self) -> Option<&identity::Secret> {
        self.secret.as_ref()
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The hello of this node.
    fn hello(&self) -> Hello {
        let mut hello = plain_hello();
        if self.config.clear_text_data {
            hello.features.push(feature::CLEAR_DATA.to_owned());
        }
        hello
    }

    /// Hashes `path` and compares with `oid` (`dray verify`). `Interrupted` soon after `stop` is set.
    pub fn verify(
        path: &Path,
        oid: &dray_core::Oid,
        progress: &(dyn Fn(u64) + Sync),
        stop: &Stop,
    ) -> Result<u64> {
        let (found, size_bytes) = hash_file(path, progress, &|| stop.is_set())?;
        if found == *oid {
            return Ok(size_bytes);
        }
        let what = format!("{path:?} is not that object: it is {found}, not {oid}");
        Err(dray_core::Error::new(dray_core::ErrorKind::VerificationFailed, what)
            .advise("fetch it again, or ask where the id came from: it may be of another version"))
    }
}

/// True for a file that has other bytes than its metadata tells of, as those of `/proc` and `/sys`: [`Node::copy_trees`] copies such.
pub fn is_unsized(path: &Path) -> bool {
    dray_store::local::SourceFile::is_unsized(path)
}

/// The hello of every node, whatever its configuration.
fn plain_hello() -> Hello {
    let features = [
        feature::RECIPE,
        feature::ZEROS,
        feature::TREE,
        feature::TREE_LANES,
        feature::TREE_DELTA,
        feature::TREE_RESTS,
        feature::TREE_CODE,
        feature::SYNC,
        feature::TREE_AGAIN,
        feature::TREE_COMPARED,
        feature::TREE_DIGESTS,
        feature::SYNC_LIST,
        feature::SYNC_RULES,
        feature::SYNC_BACKUP,
        feature::SYNC_BASIS,
        feature::SYNC_MORE,
        feature::SYNC_DIRS,
        feature::SYNC_REMOVE,
        feature::SYNC_FAKE_SUPER,
        feature::SYNC_TIMEOUT,
        feature::SYNC_ATOMIC,
        feature::SYNC_IN_PLACE,
        feature::PACKED,
        feature::RESTS,
        feature::PACKED_TREE,
    ]
    .map(str::to_owned)
    .into();
    Hello { version: PROTOCOL_VERSION, features, required: Vec::new(), agent: AGENT.to_owned() }
}

/// Locks what a thread that panicked may have held too: the panic is told where that thread is joined.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random bytes from the kernel.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        dray_core::Error::new(dray_core::ErrorKind::Internal, "the kernel gave no random bytes")
            .caused_by(error.to_string())
    })?;
    Ok(bytes)
}

/// Bytes as an even number of hex digits.
fn from_hex(text: &str) -> Result<Vec<u8>> {
    dray_core::text::from_hex(text).ok_or_else(|| {
        dray_core::Error::new(
            dray_core::ErrorKind::Usage,
            "bytes are written as an even number of hex digits",
        )
    })
}

/// A random number in `0..=bound`; 0 if the kernel gives none, which only makes the order of hints less random.
fn draw(bound: u32) -> u32 {
    let random = random::<8>().map(u64::from_be_bytes).unwrap_or(0);
    // Multiply-shift: the bias is below 2^-32.
    (((random >> 32) * (u64::from(bound) + 1)) >> 32) as u32
}
