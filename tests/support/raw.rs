//! A WebSocket by hand: what no client library would send, or leave unread.

use std::net::{SocketAddr, TcpStream};

/// A request to upgrade this path.
pub fn upgrade_request(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// The header of a masked frame, with a mask of zeros.
pub fn header(first: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![first, 0xff];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// A text frame.
pub fn text(text: &str) -> Vec<u8> {
    [header(0x81, text.len() as u64), text.as_bytes().to_vec()].concat()
}

/// A connection whose own side takes little, so that what is unread soon waits at the other side,
/// and room for it is told of in small steps.
pub fn connect_with_small_buffer(address: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("it is small");
        let stream = socket.connect(address).await.expect("it accepts").into_std().expect("a socket");
        stream.set_nonblocking(false).expect("it blocks");
        stream
    })
}

/// What came of a connection so far: an answer to an upgrade, then frames of the daemon.
#[derive(Debug, Default)]
pub struct Received {
    bytes: Vec<u8>,
    taken: usize,
}

impl Received {
    /// Takes these bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame that is complete: its opcode and payload.
    pub fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        if self.taken == 0 {
            self.taken = self.bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
            assert!(self.bytes.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&self.bytes));
        }
        let rest = &self.bytes[self.taken..];
        let (length, head) = match rest.get(1)? & 0x7f {
            126 => (usize::from(u16::from_be_bytes(rest.get(2..4)?.try_into().expect("two"))), 4),
            127 => (u64::from_be_bytes(rest.get(2..10)?.try_into().expect("eight")) as usize, 10),
            short => (usize::from(short), 2),
        };
        let frame = (rest[0] & 0x0f, rest.get(head..head + length)?.to_vec());
        self.taken += head + length;
        Some(frame)
    }
}
