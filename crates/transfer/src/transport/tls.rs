//! TLS 1.3 over TCP with raw ed25519 public keys (RFC 7250): no certificates, no authorities; the key is the node.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dray_core::rights::EXPORTER_LABEL;
use dray_core::{Error, ErrorKind, NodeId, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use super::tcp::{configure, settle_congestion_control, solo_bytes, tcp_read};
use super::{Channel, Duplex, Place, Security, Solo, Wake, Wants, poll_fds, wait_readable, wait_writable};

/// PKCS#8 v1 header of an ed25519 private key (RFC 8410 §7); the 32 bytes of the seed follow.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Bytes read from a socket at a time: several TLS records, fewer system calls.
const READ_AHEAD_BYTES: usize = 256 * 1024;
/// Plaintext taken at a time where nobody waits for it to leave.
const DUPLEX_WRITE_BYTES: usize = 256 * 1024;
/// Plaintext taken into the TLS state before it is written out.
const WRITE_BUFFER_BYTES: usize = 1024 * 1024;

/// A node's private key.
#[derive(Clone)]
pub struct NodeKey {
    certified: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
    id: NodeId,
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeKey({:?})", self.id)
    }
}

impl NodeKey {
    /// The key whose 32-byte seed (RFC 8032 §5.1.5) is `seed`.
    pub fn from_seed(seed: &[u8; 32]) -> Result<NodeKey> {
        let unusable = |cause: rustls::Error| {
            Error::new(ErrorKind::Internal, "cannot use the node key").caused_by(cause)
        };
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // AES-128-GCM is the fastest where the CPU has AES; ChaCha20 remains for those that have not.
        provider.cipher_suites.retain(|suite| {
            matches!(
                suite.suite(),
                CipherSuite::TLS13_AES_128_GCM_SHA256 | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            )
        });
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(seed);
        let key =
            provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(pkcs8.into())).map_err(unusable)?;
        let spki =
            key.public_key().ok_or_else(|| Error::new(ErrorKind::Internal, "node key has no public half"))?;
        let id = NodeId::from_spki(spki.as_ref())
            .ok_or_else(|| Error::new(ErrorKind::Internal, "node key is not an ed25519 key"))?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(spki.as_ref().to_vec())], key);
        Ok(NodeKey { certified: Arc::new(certified), provider: Arc::new(provider), id })
    }

    /// The public half.
    pub fn id(&self) -> NodeId {
        self.id
    }
}

/// Both TLS roles of one node.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    key: NodeKey,
    server: Arc<rustls::ServerConfig>,
}

impl TlsConfig {
    /// Configuration for `key`.
    pub fn new(key: NodeKey) -> Result<TlsConfig> {
        let unusable =
            |cause: rustls::Error| Error::new(ErrorKind::Internal, "cannot configure TLS").caused_by(cause);
        let resolver =
            Arc::new(rustls::server::AlwaysResolvesServerRawPublicKeys::new(key.certified.clone()));
        let mut server = rustls::ServerConfig::builder_with_provider(key.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(Arc::new(AnyNode { provider: key.provider.clone() }))
            .with_cert_resolver(resolver);
        server.send_tls13_tickets = 0;
        Ok(TlsConfig { key, server: Arc::new(server) })
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.key.id
    }

    /// Opens TLS as the side that dialled; the peer must prove that it is `expected`.
    pub fn connect(&self, socket: TcpStream, expected: NodeId, deadline: Instant) -> Result<TlsChannel> {
        let unusable =
            |cause: rustls::Error| Error::new(ErrorKind::Internal, "cannot configure TLS").caused_by(cause);
        let resolver =
            Arc::new(rustls::client::AlwaysResolvesClientRawPublicKeys::new(self.key.certified.clone()));
        let mut config = rustls::ClientConfig::builder_with_provider(self.key.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedNode {
                node: expected,
                provider: self.key.provider.clone(),
            }))
            .with_client_cert_resolver(resolver);
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        // The name is not sent and not used: the pinned key is the peer's whole identity.
        let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let connection = rustls::ClientConnection::new(Arc::new(config), name).map_err(unusable)?;
        TlsChannel::handshake(connection.into(), socket, deadline)
    }

    /// Opens TLS as the side that was dialled, by any node.
    pub fn accept(&self, socket: TcpStream, deadline: Instant) -> Result<TlsChannel> {
        let connection = rustls::ServerConnection::new(self.server.clone())
            .map_err(|cause| Error::new(ErrorKind::Internal, "cannot configure TLS").caused_by(cause))?;
        TlsChannel::handshake(connection.into(), socket, deadline)
    }
}

/// A TLS connection whose handshake is complete.
#[derive(Debug)]
pub struct TlsChannel {
    connection: rustls::Connection,
    socket: TcpStream,
    ahead: ReadAhead,
    received_bytes: u64,
    /// The shortest time in which the peer answered in the handshake.
    answered_in: Duration,
    security: Security,
    /// Its place among the connections of the listener that accepted it.
    place: Option<Arc<Place>>,
}

/// Ciphertext read from the socket and not yet given to TLS.
#[derive(Debug)]
struct ReadAhead {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Read for ReadAhead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let take = out.len().min(self.end - self.start);
        out[..take].copy_from_slice(&self.bytes[self.start..self.start + take]);
        self.start += take;
        Ok(take)
    }
}

impl TlsChannel {
    fn handshake(
        mut connection: rustls::Connection,
        socket: TcpStream,
        deadline: Instant,
    ) -> Result<TlsChannel> {
        let failed = handshake_failed;
        configure(&socket).map_err(failed)?;
        connection.set_buffer_limit(Some(WRITE_BUFFER_BYTES));
        let mut received_bytes = 0;
        let mut said_at = None;
        let mut answered_in = Duration::MAX;
        while connection.is_handshaking() || connection.wants_write() {
            if Instant::now() >= deadline {
                return Err(Error::new(ErrorKind::TimedOut, "TLS handshake took too long"));
            }
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
            if connection.wants_write() {
                match connection.write_tls(&mut &socket) {
                    Ok(_) => said_at = Some(Instant::now()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        wait_writable(socket.as_fd()).map_err(failed)?;
                    }
                    Err(error) => return Err(failed(error)),
                }
            } else {
                match connection.read_tls(&mut &socket) {
                    Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                    Ok(n) => {
                        received_bytes += n as u64;
                        if let Some(said_at) = said_at.take() {
                            answered_in = answered_in.min(said_at.elapsed());
                        }
                        if let Err(error) = connection.process_new_packets() {
                            // Tell the peer why before giving up.
                            let _ = connection.write_tls(&mut &socket);
                            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, error)));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        wait_readable(socket.as_fd(), None, left).map_err(failed)?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        settle_congestion_control(&socket, answered_in);
        let refused = || Error::new(ErrorKind::Refused, "peer showed no node key");
        let peer = connection.peer_certificates().and_then(|keys| keys.first()).ok_or_else(refused)?;
        let peer = NodeId::from_spki(peer.as_ref()).ok_or_else(refused)?;
        let exporter = match &connection {
            rustls::Connection::Client(client) => {
                client.export_keying_material([0; 32], EXPORTER_LABEL, None)
            }
            rustls::Connection::Server(server) => {
                server.export_keying_material([0; 32], EXPORTER_LABEL, None)
            }
        };
        let exporter = exporter.map_err(|cause| {
            Error::new(ErrorKind::Internal, "TLS exports no keying material").caused_by(cause)
        })?;
        let ahead = ReadAhead { bytes: vec![0; READ_AHEAD_BYTES], start: 0, end: 0 };
        let security = Security { peer, exporter };
        Ok(TlsChannel { connection, socket, ahead, received_bytes, answered_in, security, place: None })
    }

    /// The connection has this place at the listener that accepted it.
    pub(crate) fn has_place(&mut self, place: Arc<Place>) {
        self.place = Some(place);
    }

    /// The socket, to wait for.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket itself.
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The address this side has in the connection.
    pub fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.socket.local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.socket.peer_addr()
    }

    /// Gives buffered ciphertext to TLS; true if plaintext may be there now.
    fn digest(&mut self) -> io::Result<bool> {
        if self.ahead.start == self.ahead.end {
            return Ok(false);
        }
        let taken = self.connection.read_tls(&mut self.ahead)?;
        self.connection
            .process_new_packets()
            .map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
        Ok(taken > 0)
    }

    /// Writes what the socket has room for.
    fn flush_some(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut &self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut &self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_writable(self.socket.as_fd())?
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Channel for TlsChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.connection.reader().read(out) {
                Ok(n) => return Ok(Some(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed without saying so; the frames tell whether anything is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(0)),
                Err(error) => return Err(error),
            }
            if self.digest()? {
                continue;
            }
            match tcp_read(&self.socket, &mut self.ahead.bytes)? {
                None => return Ok(None),
                Some(0) => {
                    return Ok(Some(0));
                }
                Some(n) => {
                    self.received_bytes += n as u64;
                    self.ahead.start = 0;
                    self.ahead.end = n;
                }
            }
        }
    }

    fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        use io::Write;
        while !data.is_empty() {
            let taken = self.connection.writer().write(data)?;
            data = &data[taken..];
            self.flush()?;
        }
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        wait_readable(self.socket.as_fd(), wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        Some(self.security)
    }

    fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    fn solo(&self) -> Option<Solo> {
        let holds_bytes = solo_bytes(&self.socket)?;
        Some(Solo { holds_bytes, round_trip: self.answered_in })
    }

    fn keep_place(&self) {
        if let Some(place) = &self.place {
            place.keep();
        }
    }

    fn rest(&self) {
        if let Some(place) = &self.place {
            place.rest();
        }
    }

    fn into_duplex(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Ok(self)
    }

    fn into_clear_holder(self: Box<Self>, data: TcpStream) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(super::ClearChannel::holder(*self, data)?))
    }
}

impl Duplex for TlsChannel {
    /// Takes no more before all that was taken has left, so that what waits here stays small.
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        use io::Write;
        self.flush_some()?;
        if self.connection.wants_write() || data.is_empty() {
            return Ok(0);
        }
        let taken = self.connection.writer().write(&data[..data.len().min(DUPLEX_WRITE_BYTES)])?;
        self.flush_some()?;
        Ok(taken)
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags};
        if wants.read && self.ahead.start < self.ahead.end {
            return Ok(());
        }
        self.flush_some()?;
        let mut flags = PollFlags::empty();
        if wants.read {
            flags |= PollFlags::IN;
        }
        if self.connection.wants_write() || wants.write {
            flags |= PollFlags::OUT;
        }
        let mut fds = Vec::with_capacity(2);
        fds.extend(wake.map(|wake| PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)));
        if !flags.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.socket.as_fd(), flags));
        }
        poll_fds(&mut fds, timeout)?;
        if let Some(wake) = wake {
            wake.clear();
        }
        // What was taken leaves also while its owner only reads.
        self.flush_some()
    }

    fn has_backlog(&self) -> bool {
        self.connection.wants_write()
    }
}

impl Drop for TlsChannel {
    fn drop(&mut self) {
        self.connection.send_close_notify();
        let _ = self.connection.write_tls(&mut &self.socket);
    }
}

/// Why there is no connection. Who is not the node that was asked for is refused; who does not speak as a node does is
/// no node.
fn handshake_failed(cause: io::Error) -> Error {
    let tls = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        // What our own verifiers say.
        Some(rustls::Error::General(_)) => {
            Error::new(ErrorKind::Refused, "TLS handshake failed").caused_by(cause)
        }
        Some(_) => Error::new(ErrorKind::Protocol, "what answers there is not dray: TLS handshake failed")
            .caused_by(cause)
            .advise("another program has that port; take address and port from a running `dray put`"),
        None => Error::io("TLS handshake failed", cause),
    }
}

/// What both verifiers say of signatures: TLS 1.3 only, by the raw key shown.
macro_rules! signatures_of_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let spki = SubjectPublicKeyInfoDer::from(key.as_ref());
            let algorithms = &self.provider.signature_verification_algorithms;
            // Who shows a node's key speaks as a node does, so the failure is a refusal and not another program.
            verify_tls13_signature_with_raw_key(message, &spki, signature, algorithms).map_err(|error| {
                rustls::Error::General(format!("the peer does not have the key it shows ({error})"))
            })
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// Accepts exactly one key.
#[derive(Debug)]
struct PinnedNode {
    node: NodeId,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedNode {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if NodeId::from_spki(key.as_ref()) == Some(self.node) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General("another node answers at this address".into()))
        }
    }

    signatures_of_raw_keys!();
}

/// Accepts any ed25519 key: who may have what is decided by the proof of a secret, not by the handshake.
#[derive(Debug)]
struct AnyNode {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyNode {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match NodeId::from_spki(key.as_ref()) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(rustls::Error::General("peer's key is not an ed25519 key".into())),
        }
    }

    signatures_of_raw_keys!();
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn key(seed: u8) -> NodeKey {
        NodeKey::from_seed(&[seed; 32]).unwrap()
    }

    /// What both sides of a connection say, the dialled one first; `expected` is who the dialling one wants.
    fn shake_hands(dialled: NodeKey, dialling: NodeKey, expected: NodeId) -> [Result<NodeId>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let peer = |channel: TlsChannel| channel.security.peer;
        let accepting = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            TlsConfig::new(dialled).unwrap().accept(socket, deadline).map(peer)
        });
        let socket = TcpStream::connect(address).unwrap();
        let connected = TlsConfig::new(dialling).unwrap().connect(socket, expected, deadline).map(peer);
        [accepting.join().unwrap(), connected]
    }

    /// S23: to know a node's public key is not to be that node. Who shows it and cannot sign with it is refused, by
    /// either side, and not taken for another program.
    #[test]
    fn a_key_that_is_only_shown_is_refused() {
        let (one, two) = (key(1), key(2));
        let [accepted, connected] = shake_hands(one.clone(), two.clone(), one.id());
        assert_eq!((accepted.unwrap(), connected.unwrap()), (two.id(), one.id()));
        let shown = one.certified.cert.clone();
        let certified = CertifiedKey::new(shown, key(3).certified.key.clone());
        let impostor = NodeKey { certified: Arc::new(certified), ..one.clone() };
        let is_refused = |result: Result<NodeId>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.to_string().contains("does not have the key it shows"), "{error}");
        };
        let [_, connected] = shake_hands(impostor.clone(), two.clone(), one.id());
        is_refused(connected);
        let [accepted, _] = shake_hands(two.clone(), impostor, two.id());
        is_refused(accepted);
    }
}
