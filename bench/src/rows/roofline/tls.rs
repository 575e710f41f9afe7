//! TLS 1.3 with AES-128-GCM over a blocking socket: rustls as it comes, between two ends that trust each other's word.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct};
use rustls::{ServerConfig, ServerConnection, SignatureScheme};

/// Plaintext encrypted at a time, and bytes read from a socket at a time: several records, fewer system calls.
const BLOCK_BYTES: usize = 256 << 10;

/// PKCS#8 v1 header of an ed25519 private key (RFC 8410, section 7); 32 bytes of a seed follow.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Both ends of a connection to be. The server shows a raw public key (RFC 7250), and the client takes any.
pub(super) fn ends() -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    let provider = Arc::new(provider);
    let pkcs8 = [&PKCS8_PREFIX[..], &[7; 32]].concat();
    let key = provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(pkcs8.into()))?;
    let public = key.public_key().ok_or_else(|| rustls::Error::General("a key has no public half".into()))?;
    let shown = CertifiedKey::new(vec![CertificateDer::from(public.as_ref().to_vec())], key);
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(shown))));
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    Ok((ClientConnection::new(Arc::new(client), name)?, ServerConnection::new(Arc::new(server))?))
}

/// Encrypts so many bytes and sends them.
pub(super) fn send(mut tls: ServerConnection, stream: &TcpStream, bytes: u64) -> io::Result<()> {
    shake_hands(&mut tls, stream, &mut &*stream)?;
    tls.set_buffer_limit(None);
    let block = vec![7; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BLOCK_BYTES as u64);
        tls.writer().write_all(&block[..part as usize])?;
        flush(&mut tls, stream)?;
        left -= part;
    }
    Ok(())
}

/// Takes so many bytes and decrypts them.
pub(super) fn receive(mut tls: ClientConnection, stream: &TcpStream, bytes: u64) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BLOCK_BYTES, stream);
    shake_hands(&mut tls, stream, &mut input)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let mut ready = take(&mut tls, &mut input)?;
        while ready > 0 {
            let part = tls.reader().read(&mut block)?;
            ready -= part;
            left = left.saturating_sub(part as u64);
        }
    }
    Ok(())
}

fn shake_hands<D>(
    tls: &mut ConnectionCommon<D>,
    stream: &TcpStream,
    input: &mut impl Read,
) -> io::Result<()> {
    while tls.is_handshaking() {
        flush(tls, stream)?;
        if tls.is_handshaking() {
            take(tls, input)?;
        }
    }
    flush(tls, stream)
}

fn flush<D>(tls: &mut ConnectionCommon<D>, mut stream: &TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut stream)?;
    }
    Ok(())
}

/// Gives what has come to TLS; how much of it can be read now.
fn take<D>(tls: &mut ConnectionCommon<D>, input: &mut impl Read) -> io::Result<usize> {
    if tls.read_tls(input)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let state = tls.process_new_packets().map_err(io::Error::other)?;
    Ok(state.plaintext_bytes_to_read())
}

/// Takes any key: both ends are this program.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// As many bytes come as are sent, and no more.
    #[test]
    fn so_many_bytes_cross() {
        let bytes = 3 * BLOCK_BYTES as u64 + 5;
        for wanted in [bytes, bytes + 1] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let (client, server) = ends().unwrap();
            let received = std::thread::scope(|scope| {
                let sender = scope.spawn(|| send(server, &listener.accept().unwrap().0, bytes).unwrap());
                let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let received = receive(client, &stream, wanted);
                sender.join().unwrap();
                received
            });
            match received {
                Ok(()) => assert_eq!(wanted, bytes),
                Err(error) => assert_eq!((wanted, error.kind()), (bytes + 1, io::ErrorKind::UnexpectedEof)),
            }
        }
    }
}
