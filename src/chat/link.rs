//! A connection to a daemon over its Unix socket or a WebSocket. Both speak exoclaw.

use std::io::ErrorKind;
use std::path::PathBuf;

use clawmux_core::access::Secret;
use clawmux_core::dialect::exoclaw::client::ServerMessage;

use super::link_error::LinkError;
use super::unix::Unix;
use super::web::Web;
use crate::exit::{Failure, UNREACHABLE};

/// The largest request that a daemon accepts by default, in bytes: `xeno.max_line_bytes` and
/// `gateway.max_payload_bytes`.
const LINE_BYTES_MAX: usize = 16 << 20;
const FRAME_BYTES_MAX: usize = 10 << 20;

/// Where a daemon is.
#[derive(Clone, Debug)]
pub(super) enum Endpoint {
    /// At its Unix socket.
    Unix(PathBuf),
    /// At a WebSocket, with a credential if there is one.
    Web(String, Option<Secret>),
}

/// A connection.
pub(super) enum Link {
    Unix(Unix),
    Web(Box<Web>),
}

impl Link {
    /// Connects and authenticates.
    ///
    /// # Errors
    /// If nobody answers, or the daemon does not accept this client.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Self, LinkError> {
        match endpoint {
            Endpoint::Unix(path) => match Unix::open(path).await {
                Ok(link) => Ok(Self::Unix(link)),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    let why = format!(
                        "this user may not use the socket {}: chat as the user whose home it is, as root, or as a \
                         member of gateway.socket_group; or with a token over --url",
                        path.display()
                    );
                    Err(LinkError::Refused(Failure::new(UNREACHABLE, why)))
                }
                Err(error) => {
                    let why = format!("no daemon is reachable at {}: {error}", path.display());
                    Err(LinkError::unreachable(why))
                }
            },
            Endpoint::Web(url, token) => Ok(Self::Web(Box::new(Web::open(url, token.as_ref()).await?))),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) async fn send(&mut self, text: String) -> Result<(), Failure> {
        match self {
            Self::Unix(link) => link.send(text).await,
            Self::Web(link) => link.send(text).await,
        }
    }

    /// The next message of the daemon. Cancel safe.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) async fn next(&mut self) -> Result<ServerMessage, Failure> {
        match self {
            Self::Unix(link) => link.next().await,
            Self::Web(link) => link.next().await,
        }
    }

    /// The largest request on this connection, in bytes.
    pub(super) fn request_bytes_max(&self) -> usize {
        match self {
            Self::Unix(_) => LINE_BYTES_MAX,
            Self::Web(_) => FRAME_BYTES_MAX,
        }
    }

    /// Closes the connection.
    pub(super) async fn close(&mut self) {
        if let Self::Web(link) = self {
            link.close().await;
        }
    }
}
