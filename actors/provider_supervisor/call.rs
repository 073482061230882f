//! What a call of a model is made of: where it goes, and how long each part of it may take.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawmux_core::access::Secret;
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::{ChatRequest, HttpRequest, ProviderKind};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::host::regular_file;

/// How long each part of a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// To resolve the host, connect, and again for the TLS handshake.
    pub connect: Duration,
    /// Until the head of the response.
    pub first_byte: Duration,
    /// Between two events of the answer. What leads to none, such as a comment, does not count.
    pub idle: Duration,
    /// For everything, other models tried included.
    pub total: Duration,
    /// How long connections are kept that nobody uses.
    pub keep_alive: Duration,
}

/// How many times as long a model that thinks may be silent: some providers send nothing meanwhile.
const THINKING_TIMEOUT: u32 = 5;

impl Deadlines {
    /// For a request that asks for so much thinking.
    #[must_use]
    pub(crate) fn for_thinking(self, thinking: Thinking) -> Self {
        let patience = if thinking == Thinking::Off { 1 } else { THINKING_TIMEOUT };
        Self { first_byte: self.first_byte * patience, idle: self.idle * patience, ..self }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(600),
            // Providers close theirs after a minute or more.
            keep_alive: Duration::from_secs(45),
        }
    }
}

/// One configured provider, ready to be called.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) kind: ProviderKind,
    pub(crate) base_url: String,
    pub(super) key: Option<Secret>,
    /// None for a provider without a network.
    pub(super) http: Option<HttpRequest>,
    /// None where it is not reached by https.
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Endpoint {
    /// Reads the certificate authority's file, so it belongs to the start of the daemon.
    ///
    /// # Errors
    /// `InvalidRequest` where that file can't be read or holds no certificate.
    pub(crate) fn new(name: &str, provider: &config::Provider) -> Result<Self, Error> {
        let https = provider.base_url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let tls = if https && provider.kind != ProviderKind::Offline {
            Some(tls(provider.ca_file.as_deref()).map_err(|mut error| {
                error.message = format!("provider {name}: {}", error.message);
                error
            })?)
        } else {
            None
        };
        Ok(Self {
            name: name.to_owned(),
            kind: provider.kind,
            base_url: provider.base_url.clone(),
            key: provider.api_key.clone(),
            http: HttpRequest::new(provider.kind, &provider.base_url, provider.api_key.as_ref()),
            tls,
        })
    }
}

/// The largest `ca_file`, in bytes: several times all that there is of public roots.
const CA_BYTES_MAX: u64 = 4 << 20;

/// The public roots, and those of `ca_file`.
fn tls(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        let bad = |why: String| ErrorCode::InvalidRequest.error(format!("ca_file {}: {why}", path.display()));
        let pem = regular_file::read(path, CA_BYTES_MAX).map_err(|why| bad(why.to_string()))?;
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|why| bad(why.to_string()))?;
            roots.add(certificate).map_err(|why| bad(why.to_string()))?;
        }
        if roots.len() == before {
            return Err(bad("holds no PEM certificate".into()));
        }
    }
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|why| ErrorCode::Internal.error(format!("tls: {why}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // One connection per stream: a stream of tokens gains nothing from HTTP/2.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A model and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) model: String,
}

/// A provider call that was granted.
#[derive(Debug)]
pub(crate) struct Call {
    /// Tried in order; never empty.
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) request: ChatRequest,
    /// The request as the first candidate's provider wants it.
    pub(crate) body: Vec<u8>,
    pub(crate) deadlines: Deadlines,
}
