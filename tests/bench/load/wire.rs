//! A connection of the load: frames that were made beforehand go out, and what comes in is cut into
//! messages in place. It costs as little as the limit programs do, so that it is never what is measured.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is read at once.
const PIECE: usize = 64 * 1024;

/// A WebSocket over TCP, lines over a Unix socket, or an answer of HTTP line by line.
pub struct Wire {
    socket: Socket,
    inbound: Vec<u8>,
    /// Where the first message that was not taken begins.
    begin: usize,
}

enum Socket {
    Web(TcpStream),
    Lines(UnixStream),
    Http(TcpStream),
}

impl Wire {
    /// A WebSocket at this path.
    pub fn web(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(address).expect("it accepts");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        .expect("it takes a request");
        let mut wire = Self { socket: Socket::Web(stream), inbound: Vec::new(), begin: 0 };
        let end = loop {
            if let Some(at) = wire.inbound.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            wire.receive();
        };
        let upgrades = wire.inbound.starts_with(b"HTTP/1.1 101");
        assert!(upgrades, "it upgrades: {}", String::from_utf8_lossy(&wire.inbound));
        wire.begin = end;
        wire
    }

    /// Lines over the socket at this path.
    pub fn lines(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("it accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        Self { socket: Socket::Lines(stream), inbound: Vec::new(), begin: 0 }
    }

    /// For a request of HTTP, which is sent as it is.
    pub fn http(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it accepts");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        Self { socket: Socket::Http(stream), inbound: Vec::new(), begin: 0 }
    }

    /// A message as it goes over this wire.
    pub fn framed(&self, message: &str) -> Vec<u8> {
        match self.socket {
            Socket::Web(_) => masked(message.as_bytes()),
            Socket::Lines(_) => format!("{message}\n").into_bytes(),
            Socket::Http(_) => message.as_bytes().to_vec(),
        }
    }

    /// Sends what was framed.
    pub fn send_framed(&mut self, bytes: &[u8]) {
        let sent = match &mut self.socket {
            Socket::Web(stream) | Socket::Http(stream) => stream.write_all(bytes),
            Socket::Lines(stream) => stream.write_all(bytes),
        };
        sent.expect("it takes frames");
    }

    /// Sends a message.
    pub fn send(&mut self, message: &str) {
        self.send_framed(&self.framed(message));
    }

    /// Reads once, for as long as it takes.
    pub fn receive(&mut self) {
        self.inbound.drain(..self.begin);
        self.begin = 0;
        let length = self.inbound.len();
        self.inbound.resize(length + PIECE, 0);
        let room = &mut self.inbound[length..];
        let read = match &mut self.socket {
            Socket::Web(stream) | Socket::Http(stream) => stream.read(room),
            Socket::Lines(stream) => stream.read(room),
        };
        let read = read.expect("it sends in time");
        assert!(read > 0, "the connection ended");
        self.inbound.truncate(length + read);
    }

    /// The next message that is here whole.
    pub fn take(&mut self) -> Option<&[u8]> {
        loop {
            let rest = &self.inbound[self.begin..];
            let (payload, length, is_message) = match self.socket {
                Socket::Lines(_) | Socket::Http(_) => {
                    let end = rest.iter().position(|byte| *byte == b'\n')?;
                    (0, end, true)
                }
                Socket::Web(_) => {
                    let &[first, second, ..] = rest else { return None };
                    let (head, length) = match second & 0x7f {
                        126 => (4, usize::from(u16::from_be_bytes(rest.get(2..4)?.try_into().ok()?))),
                        127 => (10, u64::from_be_bytes(rest.get(2..10)?.try_into().ok()?) as usize),
                        length => (2, usize::from(length)),
                    };
                    if rest.len() < head + length {
                        return None;
                    }
                    let payload = || String::from_utf8_lossy(&rest[head..head + length]);
                    assert!(first & 0xf != 8, "the connection was closed: {}", payload());
                    (head, length, first & 0xf <= 2)
                }
            };
            let start = self.begin + payload;
            let line_end = usize::from(!matches!(self.socket, Socket::Web(_)));
            self.begin = start + length + line_end;
            if is_message {
                return Some(&self.inbound[start..start + length]);
            }
        }
    }

    /// The next message, for as long as it takes.
    pub fn next(&mut self) -> String {
        loop {
            if let Some(message) = self.take() {
                return String::from_utf8_lossy(message).into_owned();
            }
            self.receive();
        }
    }

    /// The next message with this in it.
    pub fn find(&mut self, part: &str) -> String {
        loop {
            let message = self.next();
            if message.contains(part) {
                return message;
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Web(stream) | Socket::Http(stream) => stream.as_fd(),
            Socket::Lines(stream) => stream.as_fd(),
        }
    }
}

/// A text frame of a client.
fn masked(payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![0x81];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | length as u8),
        length @ 126..=65535 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}
