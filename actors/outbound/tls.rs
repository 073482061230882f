//! What TLS to other hosts is made with.

use std::path::Path;
use std::sync::Arc;

use clawmux_core::error::{Error, ErrorCode};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::host::regular_file;

/// The largest `ca_file`, in bytes: several times all that there is of public roots.
const CA_BYTES_MAX: u64 = 4 << 20;

/// The public roots, and those of `ca_file`. Reads that file, so it belongs to the start of the daemon.
///
/// # Errors
/// `InvalidRequest` where that file can't be read or holds no certificate.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
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
