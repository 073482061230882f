//! An MCP server's standard input and output as rmcp's transport, within bounds.
//!
//! rmcp reads as fast as a server writes, and answers what it asks whether that reads the answers or not. So
//! nothing more is read while too many messages wait to be written, and each of them has a deadline.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many messages may wait to be written before no more is read.
const UNSENT_MAX: u32 = 64;

/// How long a message may take to be written.
const SEND_MAX: Duration = Duration::from_secs(30);

/// The longest line that is read, in bytes; a longer one is dropped.
pub(super) const LINE_BYTES_MAX: usize = 16 << 20;

/// See the module.
pub(super) struct Stdio {
    inner: AsyncRwTransport<RoleClient, ChildStdout, ChildStdin>,
    /// A permit for each message that may wait.
    room: Arc<Semaphore>,
}

impl Stdio {
    pub(super) fn new(stdout: ChildStdout, stdin: ChildStdin) -> Self {
        let inner = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(LINE_BYTES_MAX);
        Self { inner, room: Arc::new(Semaphore::new(UNSENT_MAX as usize)) }
    }
}

impl Transport<RoleClient> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (sent, room) = (self.inner.send(message), Arc::clone(&self.room));
        async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it does not read what it is sent");
            let written = async {
                let _room = room.acquire_owned().await.map_err(io::Error::other)?;
                sent.await
            };
            timeout(SEND_MAX, written).await.map_err(late)?
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        // Given back at once: it is only about there being one.
        drop(self.room.acquire().await.ok()?);
        self.inner.receive().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.inner.close().await
    }
}
