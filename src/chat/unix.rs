//! The Unix socket of a daemon. Whoever may open it is the operator, so there is no authentication;
//! requests and answers are lines.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use clawmux_core::dialect::exoclaw::client::{self as exoclaw, ServerMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::link_error::{MESSAGE_BYTES_MAX, lost};
use crate::exit::Failure;

/// How long a line may take to leave.
const WRITE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Unix {
    stream: UnixStream,
    buffer: BytesMut,
    /// How much of the buffer was searched for a line end.
    searched: usize,
}

impl Unix {
    /// Connects.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) async fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(path).await?, buffer: BytesMut::new(), searched: 0 })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) async fn send(&mut self, mut line: String) -> Result<(), Failure> {
        line.push('\n');
        match timeout(WRITE, self.stream.write_all(line.as_bytes())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(&error.to_string())),
            Err(_) => Err(lost("the daemon takes nothing any more")),
        }
    }

    /// The next message of the daemon. Cancel safe.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) async fn next(&mut self) -> Result<ServerMessage, Failure> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                return Ok(std::str::from_utf8(&line).map_or(ServerMessage::Unknown, exoclaw::read));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MESSAGE_BYTES_MAX {
                return Err(lost("the daemon sent a message that is too large"));
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(lost("the daemon closed it")),
                Ok(_) => {}
                Err(error) => return Err(lost(&error.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix_web::test]
    async fn lines_are_read_however_they_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let mut link = Unix::open(&path).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        link.send("{}".into()).await.unwrap();
        let mut read = [0; 3];
        peer.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"{}\n");
        peer.write_all(b"{\"id\":\"1\",\"result\":1}\n{\"id\":\"2\",").await.unwrap();
        assert_eq!(
            link.next().await.unwrap(),
            ServerMessage::Answer { id: "1".into(), outcome: Ok(1.into()) }
        );
        let waited = timeout(Duration::from_millis(10), link.next()).await;
        assert!(waited.is_err(), "half a line is none");
        peer.write_all(b"\"result\":2}\n").await.unwrap();
        assert_eq!(
            link.next().await.unwrap(),
            ServerMessage::Answer { id: "2".into(), outcome: Ok(2.into()) }
        );
        drop(peer);
        assert!(link.next().await.unwrap_err().message.contains("the connection to the daemon is lost"));
    }
}
