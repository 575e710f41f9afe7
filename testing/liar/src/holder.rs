//! A listening holder, run by a thread of its own.

use std::sync::Arc;
use std::thread;

use dray_core::message::{Hello, PROTOCOL_VERSION, feature};
use dray_core::rights::Secret;
use dray_core::ticket::DirectoryTicket;
use dray_core::{NodeId, Result};
use dray_engine::session::Holder;
use dray_transfer::direct::Listener;
use dray_transfer::holder::{Held, serve};
use dray_transfer::transport::{Channel, NodeKey, TlsChannel, TlsConfig};

use crate::held::ForWhoProves;
use crate::relay::hand_on;
use crate::trace::TracedChannel;
use crate::{Liar, LyingChannel, Trace};

/// A holder that serves until it is dropped.
pub struct LyingHolder {
    /// Its key.
    pub node: NodeId,
    /// Where it listens, on all addresses.
    pub port: u16,
    listener: Arc<Listener>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl LyingHolder {
    /// The node whose key is made of `seed`, at `port` or one the system chooses: serves `held` to who proves `secret`, or to
    /// everybody, and says what `liar` makes of it.
    pub fn start(
        seed: u8,
        port: Option<u16>,
        held: Arc<dyn Held>,
        secret: Option<Secret>,
        liar: Liar,
    ) -> Result<LyingHolder> {
        LyingHolder::start_with(&[seed; 32], port, held, secret, liar)
    }

    /// The same with all of the key.
    pub fn start_with(
        key: &[u8; 32],
        port: Option<u16>,
        held: Arc<dyn Held>,
        secret: Option<Secret>,
        liar: Liar,
    ) -> Result<LyingHolder> {
        let tls = TlsConfig::new(NodeKey::from_seed(key)?)?;
        let node = tls.node();
        let provider = ForWhoProves { held, node, secret };
        let liar = Arc::new(liar);
        let serving = move |channel: TlsChannel| {
            let channel: Box<dyn Channel> = match &liar.trace {
                Some(trace) => Box::new(TracedChannel::new(Box::new(channel), trace)),
                None => Box::new(channel),
            };
            let channel: Box<dyn Channel> = Box::new(LyingChannel::new(channel, liar.clone()));
            let hello = Hello {
                version: PROTOCOL_VERSION,
                features: [feature::RECIPE, feature::ZEROS, feature::RESTS].map(str::to_owned).into(),
                required: vec![],
                agent: "dray-liar".into(),
            };
            // What receivers think of it there is nobody to tell.
            let _ = serve(channel, Holder::new(hello), vec![], &provider, None);
        };
        LyingHolder::listen(tls, port, serving)
    }

    /// The node whose key is made of `seed`, which stands in for whoever shares the directory of `ticket`: it asks them, tells receivers
    /// what they answer, and writes to `trace` what receivers say.
    pub fn standing_in(
        seed: u8,
        port: Option<u16>,
        ticket: DirectoryTicket,
        trace: Arc<Trace>,
    ) -> Result<LyingHolder> {
        let tls = TlsConfig::new(NodeKey::from_seed(&[seed; 32])?)?;
        let dialling = tls.clone();
        // A receiver sees that its connection is lost, and says why it thinks so.
        let serving = move |channel: TlsChannel| drop(hand_on(channel, &dialling, &ticket, &trace));
        LyingHolder::listen(tls, port, serving)
    }

    fn listen(
        tls: TlsConfig,
        port: Option<u16>,
        serving: impl Fn(TlsChannel) + Send + Sync + 'static,
    ) -> Result<LyingHolder> {
        let node = tls.node();
        let listener = Arc::new(Listener::bind(tls, port)?);
        let port = listener.port()?;
        let accepting = listener.clone();
        let accepting = Some(thread::spawn(move || accepting.accept_all(Arc::new(serving))));
        Ok(LyingHolder { node, port, listener, accepting })
    }

    /// Serves until the process ends.
    pub fn serve(mut self) {
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Drop for LyingHolder {
    fn drop(&mut self) {
        self.listener.stop();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
