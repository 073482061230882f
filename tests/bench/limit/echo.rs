//! The limit of a request: epoll and one thread, which sends every WebSocket frame back, or every line of a Unix
//! socket. With a file it first appends all frames that have come to it and waits for the disk once: the limit of a
//! prompt's acknowledgement.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::load::listen;
use crate::load::poll::Poll;

const TCP: usize = usize::MAX;
const UNIX: usize = usize::MAX - 1;
const PIECE: usize = 16 * 1024;

/// A socket of either family.
trait Stream: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> Stream for T {}

struct Connection {
    socket: Box<dyn Stream>,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    speaks: Speaks,
}

#[derive(PartialEq)]
enum Speaks {
    Http,
    Frames,
    Lines,
}

/// Serves on a port; in the daemon's place in this home; with this file.
pub fn serve(home: Option<&Path>, file: Option<&Path>) {
    let listener = listen();
    let lines = home.map(|home| {
        let folder = home.join(".xeno");
        std::fs::create_dir_all(&folder).expect("a folder");
        UnixListener::bind(folder.join("gateway.sock")).expect("a socket")
    });
    let mut file = file.map(|path| File::create(path).expect("a file"));
    println!("http://{}", listener.local_addr().expect("an address"));
    let mut poll = Poll::new();
    poll.add(&listener, TCP);
    if let Some(lines) = &lines {
        poll.add(lines, UNIX);
    }
    let (mut connections, mut opened) = (HashMap::<usize, Connection>::new(), 0);
    let mut enter =
        |poll: &Poll, connections: &mut HashMap<usize, Connection>, socket: Box<dyn Stream>, speaks| {
            poll.add(AsSocket(&*socket), opened);
            let connection = Connection { socket, inbound: Vec::new(), outbound: Vec::new(), speaks };
            connections.insert(opened, connection);
            opened += 1;
        };
    let mut answered = Vec::new();
    loop {
        for place in poll.ready(Duration::from_secs(60)) {
            match place {
                TCP => {
                    let (socket, _) = listener.accept().expect("it accepts");
                    let _ = socket.set_nodelay(true);
                    enter(&poll, &mut connections, Box::new(socket), Speaks::Http);
                }
                UNIX => {
                    let (socket, _) = lines.as_ref().expect("lines").accept().expect("it accepts");
                    enter(&poll, &mut connections, Box::new(socket), Speaks::Lines);
                }
                place => {
                    let Some(connection) = connections.get_mut(&place) else { continue };
                    if connection.take() {
                        answered.push(place);
                    } else {
                        poll.leave(AsSocket(&*connection.socket));
                        connections.remove(&place);
                    }
                }
            }
        }
        if let Some(file) = &mut file {
            let frames = answered.iter().filter_map(|place| Some(&connections.get(place)?.outbound));
            let all: Vec<u8> = frames.flatten().copied().collect();
            if !all.is_empty() {
                file.write_all(&all).expect("it is written");
                file.sync_data().expect("it is on the disk");
            }
        }
        for place in answered.drain(..) {
            let Some(connection) = connections.get_mut(&place) else { continue };
            let _ = connection.socket.write_all(&connection.outbound);
            connection.outbound.clear();
        }
    }
}

struct AsSocket<'a>(&'a dyn Stream);

impl AsFd for AsSocket<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Connection {
    /// Reads once; what it answers stands in `outbound`. False once the peer has left.
    fn take(&mut self) -> bool {
        let length = self.inbound.len();
        self.inbound.resize(length + PIECE, 0);
        let read = self.socket.read(&mut self.inbound[length..]).unwrap_or(0);
        self.inbound.truncate(length + read);
        let taken = match self.speaks {
            Speaks::Http => self.upgrade(),
            Speaks::Lines => {
                let end = self.inbound.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                self.outbound.extend(&self.inbound[..end]);
                end
            }
            Speaks::Frames => {
                let mut taken = 0;
                while let Some(length) = self.echo(taken) {
                    taken += length;
                }
                taken
            }
        };
        self.inbound.drain(..taken);
        if self.inbound.is_empty() {
            // An idle connection holds no buffer.
            self.inbound = Vec::new();
        }
        read > 0
    }

    fn upgrade(&mut self) -> usize {
        let text = String::from_utf8_lossy(&self.inbound);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { return 0 };
        let key = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim())
        });
        let accept = derive_accept_key(key.unwrap_or_default().as_bytes());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        self.outbound.extend(answer.as_bytes());
        self.speaks = Speaks::Frames;
        head.len() + 4
    }

    /// Answers the frame that begins here, unmasked; gives its length.
    fn echo(&mut self, begin: usize) -> Option<usize> {
        let frame = &self.inbound[begin..];
        let (head, length) = match frame.get(1)? & 0x7f {
            126 => (4, usize::from(u16::from_be_bytes(frame.get(2..4)?.try_into().ok()?))),
            127 => (10, u64::from_be_bytes(frame.get(2..10)?.try_into().ok()?) as usize),
            length => (2, usize::from(length)),
        };
        let end = head + 4 + length;
        let mask: [u8; 4] = frame.get(head..head + 4)?.try_into().ok()?;
        let payload = frame.get(head + 4..end)?;
        self.outbound.push(frame[0]);
        self.outbound.push(frame[1] & 0x7f);
        self.outbound.extend(&frame[2..head]);
        self.outbound.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        Some(end)
    }
}
