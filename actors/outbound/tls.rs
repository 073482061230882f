//! What TLS to other hosts is made with.
//!
//! A `ca_file` may hold certificates of authorities and of servers, as curl's `--cacert`. A server's own is as good
//! as its authority's where it is shown exactly as it is in the file, for one of its names and in its time: rustls
//! by itself takes none that says it is an authority, as those that `openssl req -x509` makes do, and none whose
//! authority is not in the file.

use std::path::Path;
use std::sync::Arc;

use clawmux_core::error::{Error, ErrorCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::host::regular_file;

/// The largest `ca_file`, in bytes: several times all that there is of public roots.
const CA_BYTES_MAX: u64 = 4 << 20;

/// The public roots, and what is in `ca_file`. Reads that file, so it belongs to the start of the daemon.
///
/// # Errors
/// `InvalidRequest` where that file can't be read or holds no certificate.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let mut named = Vec::new();
    if let Some(path) = ca_file {
        let bad = |why: String| ErrorCode::InvalidRequest.error(format!("ca_file {}: {why}", path.display()));
        let pem = regular_file::read(path, CA_BYTES_MAX).map_err(|why| bad(why.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|why| bad(why.to_string()))?;
            roots.add(certificate.clone()).map_err(|why| bad(why.to_string()))?;
            named.push(certificate);
        }
        if named.is_empty() {
            return Err(bad("holds no PEM certificate".into()));
        }
    }
    let internal = |why: String| ErrorCode::Internal.error(format!("tls: {why}"));
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(roots, named, ring.clone()).map_err(|why| internal(why.to_string()))?;
    let mut config = ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|why| internal(why.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // One connection per stream: a stream of tokens gains nothing from HTTP/2.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Takes servers whose authority is known, and those that are known themselves.
#[derive(Debug)]
struct Verifier {
    by_authority: Arc<WebPkiServerVerifier>,
    known: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(
        authorities: RootCertStore,
        known: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::client::VerifierBuilderError> {
        let by_authority =
            WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider).build()?;
        Ok(Self { by_authority, known })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let by_authority = self.by_authority.verify_server_cert(server, between, name, ocsp, now);
        match by_authority {
            Err(error) if self.known.contains(server) && !is_of_its_own(&error) => {
                verify_server_name(&ParsedCertificate::try_from(server)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Whether a certificate is at fault by itself, whoever signed it: it can't be read, or now is not its time.
/// Of a certificate that can be read its time is looked at before everything else, so that no other fault hides it.
fn is_of_its_own(error: &rustls::Error) -> bool {
    use CertificateError::{BadEncoding, Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let rustls::Error::InvalidCertificate(fault) = error else { return true };
    matches!(fault, BadEncoding | Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};

    /// A day in 2026, in seconds.
    const NOW: u64 = 1_780_000_000;

    fn params(is_ca: IsCa) -> CertificateParams {
        let mut params =
            CertificateParams::new(vec!["a.example".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.is_ca = is_ca;
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2027, 1, 1));
        params
    }

    fn self_signed(is_ca: IsCa) -> Certificate {
        params(is_ca).self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn verify(known: &Certificate, server: &Certificate, name: &str, now: u64) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        let known = CertificateDer::from_pem_slice(known.pem().as_bytes()).unwrap();
        roots.add(known.clone()).unwrap();
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::new(roots, vec![known], ring).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(server.der(), &[], &name, &[], now).map(|_| ())
    }

    #[test]
    fn a_server_whose_own_certificate_is_named_is_taken_for_its_names_and_in_its_time() {
        let key = KeyPair::generate().unwrap();
        let authority = Issuer::new(params(IsCa::Ca(BasicConstraints::Unconstrained)), key);
        let signed = params(IsCa::NoCa).signed_by(&KeyPair::generate().unwrap(), &authority).unwrap();
        let own =
            [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::ExplicitNoCa, IsCa::NoCa].map(self_signed);
        for server in own.iter().chain([&signed]) {
            for name in ["a.example", "127.0.0.1"] {
                assert_eq!(verify(server, server, name, NOW), Ok(()), "{name}");
            }
            for (name, now) in [
                ("b.example", NOW),
                ("127.0.0.2", NOW),
                ("a.example", NOW - 31_536_000),
                ("a.example", NOW + 31_536_000),
            ] {
                assert!(verify(server, server, name, now).is_err(), "{name} {now}");
            }
        }
    }

    #[test]
    fn no_other_certificate_is_taken_for_it() {
        // The same names and the same issuer, another key.
        for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
            let (known, other) = (self_signed(is_ca), self_signed(is_ca));
            assert!(verify(&known, &other, "a.example", NOW).is_err());
        }
    }
}
