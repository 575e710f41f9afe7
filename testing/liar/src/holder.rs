//! A listening holder, run by a thread of its own.

use std::sync::Arc;
use std::thread;

use dray_core::message::{Hello, PROTOCOL_VERSION, feature};
use dray_core::{NodeId, Result};
use dray_engine::session::Holder;
use dray_transfer::direct::Listener;
use dray_transfer::holder::{Held, serve};
use dray_transfer::transport::{Channel, NodeKey, TlsChannel, TlsConfig};

use crate::held::ForWhoProves;
use crate::{Liar, LyingChannel};

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
        secret: Option<dray_core::rights::Secret>,
        liar: Liar,
    ) -> Result<LyingHolder> {
        let tls = TlsConfig::new(NodeKey::from_seed(&[seed; 32])?)?;
        let node = tls.node();
        let provider = ForWhoProves { held, node, secret };
        let liar = Arc::new(liar);
        let listener = Arc::new(Listener::bind(tls, port)?);
        let port = listener.port()?;
        let serving = move |channel: TlsChannel| {
            let channel: Box<dyn Channel> = Box::new(LyingChannel::new(Box::new(channel), liar.clone()));
            let hello = Hello {
                version: PROTOCOL_VERSION,
                features: [feature::RECIPE, feature::ZEROS, feature::RESTS].map(str::to_owned).into(),
                required: vec![],
                agent: "dray-liar".into(),
            };
            // What receivers think of it there is nobody to tell.
            let _ = serve(channel, Holder::new(hello), vec![], &provider, None);
        };
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
