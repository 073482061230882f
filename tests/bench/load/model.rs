//! A model provider in the OpenAI format.
//!
//! Paced, it says one token of each answer every so often, each with the time it was sent at, from one thread
//! for all answers. Else it says one token after the other as fast as the wire takes them, each by itself, as
//! providers do.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::clock_us;
use super::poll::Poll;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
/// What is read at once of a request, in bytes.
const PIECE: usize = 8 * 1024;
/// Answers of more tokens that are not paced have a thread each; others are said in one piece.
const SHORT: usize = 16;

/// A provider, as long as this process runs.
pub struct Model {
    /// Where it listens.
    pub address: SocketAddr,
    tokens: usize,
    said: Arc<AtomicUsize>,
    held: Held,
}

/// Who has asked and is answered later, while answers are held back.
type Held = Arc<Mutex<Option<Vec<TcpStream>>>>;

impl Model {
    /// Every answer is so many tokens, one each `pace`.
    pub fn new(tokens: usize, pace: Duration) -> Self {
        let listener = super::listen();
        listener.set_nonblocking(true).expect("it does not block");
        let address = listener.local_addr().expect("an address");
        let said = Arc::new(AtomicUsize::new(0));
        let answers = if pace.is_zero() {
            Answers::AtOnce(tokens)
        } else {
            Answers::Paced(pacer(tokens, pace, said.clone()))
        };
        let held = Held::default();
        let answers = (answers, held.clone());
        std::thread::spawn(move || take_requests(&listener, &answers));
        Self { address, tokens, said, held }
    }

    /// Answers nobody from here on, until [`Self::release`].
    ///
    /// Only for short answers that are not paced.
    pub fn hold(&self) {
        lock(&self.held).get_or_insert_default();
    }

    /// Answers all who have asked since [`Self::hold`].
    pub fn release(&self) {
        for mut socket in lock(&self.held).take().into_iter().flatten() {
            let _ = socket.write_all(&whole(self.tokens));
        }
    }

    /// The tokens that it has said at a pace.
    pub fn said(&self) -> usize {
        self.said.load(Ordering::Relaxed)
    }
}

fn lock(held: &Held) -> MutexGuard<'_, Option<Vec<TcpStream>>> {
    held.lock().expect("nobody panics with it")
}

enum Answers {
    AtOnce(usize),
    Paced(mpsc::Sender<TcpStream>),
}

/// Reads requests on all connections and has each answered.
fn take_requests(listener: &TcpListener, (answers, held): &(Answers, Held)) {
    const LISTENER: usize = usize::MAX;
    let mut poll = Poll::new();
    poll.add(listener, LISTENER);
    let mut connections: HashMap<usize, (TcpStream, Vec<u8>)> = HashMap::new();
    let mut opened = 0;
    loop {
        for place in poll.ready(Duration::from_secs(60)) {
            if place == LISTENER {
                while let Ok((socket, _)) = listener.accept() {
                    // Accepted ones block.
                    let _ = socket.set_nodelay(true);
                    poll.add(&socket, opened);
                    connections.insert(opened, (socket, Vec::new()));
                    opened += 1;
                }
                continue;
            }
            let Some((socket, request)) = connections.get_mut(&place) else { continue };
            let length = request.len();
            request.resize(length + PIECE, 0);
            let read = socket.read(&mut request[length..]).unwrap_or(0);
            request.truncate(length + read);
            if read == 0 {
                poll.leave(&*socket);
                connections.remove(&place);
                continue;
            }
            let Some(closes) = is_whole(request) else { continue };
            request.clear();
            let Ok(answered) = socket.try_clone() else { continue };
            match lock(held).as_mut() {
                Some(held) => held.push(answered),
                None => answer(answered, closes, answers),
            }
            if closes {
                poll.leave(&*socket);
                connections.remove(&place);
            }
        }
    }
}

/// Whether this is a whole request; and then, whether the connection is closed after its answer.
fn is_whole(request: &[u8]) -> Option<bool> {
    let text = String::from_utf8_lossy(request);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    (body.len() >= length).then(|| head.contains("connection: close"))
}

fn answer(mut socket: TcpStream, closes: bool, answers: &Answers) {
    match answers {
        Answers::Paced(pacer) => {
            let _ = pacer.send(socket);
        }
        Answers::AtOnce(tokens @ ..=SHORT) => {
            let _ = socket.write_all(&whole(*tokens));
        }
        &Answers::AtOnce(tokens) => {
            std::thread::spawn(move || {
                let (mut token, mut end) = (Vec::new(), Vec::new());
                push_token(&mut token, 0);
                push_end(&mut end, tokens);
                let said = socket
                    .write_all(HEAD.as_bytes())
                    .and_then(|()| (0..tokens).try_for_each(|_| socket.write_all(&token)))
                    .and_then(|()| socket.write_all(&end));
                if closes || said.is_err() {
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                }
            });
        }
    }
}

/// An answer from its head to its end.
fn whole(tokens: usize) -> Vec<u8> {
    let mut bytes = HEAD.as_bytes().to_vec();
    for _ in 0..tokens {
        push_token(&mut bytes, 0);
    }
    push_end(&mut bytes, tokens);
    bytes
}

fn push_chunk(bytes: &mut Vec<u8>, chunk: &str) {
    let _ = write!(bytes, "{:x}\r\n{chunk}\r\n", chunk.len());
}

fn push_token(bytes: &mut Vec<u8>, stamp: u64) {
    push_chunk(
        bytes,
        &format!(
            "data: {{\"id\":\"b\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"<{stamp:09}>\"}},\"finish_reason\":null}}]}}\n\n"
        ),
    );
}

fn push_end(bytes: &mut Vec<u8>, tokens: usize) {
    push_chunk(
        bytes,
        &format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],\
             \"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
        ),
    );
    bytes.extend(b"0\r\n\r\n");
}

/// An answer under way: when its next token is due, which one that is, and its place.
type Due = Reverse<(Instant, usize, usize)>;

/// The thread that says all paced answers; each begins when its socket is sent there.
fn pacer(tokens: usize, pace: Duration, said: Arc<AtomicUsize>) -> mpsc::Sender<TcpStream> {
    let (sender, started) = mpsc::channel::<TcpStream>();
    std::thread::spawn(move || {
        let (mut due, mut sockets, mut begun) = (BinaryHeap::<Due>::new(), HashMap::new(), 0);
        loop {
            let wait = due.peek().map_or(Duration::from_secs(60), |Reverse((at, ..))| {
                at.saturating_duration_since(Instant::now())
            });
            if !wait.is_zero() {
                match started.recv_timeout(wait) {
                    Ok(mut socket) => {
                        if socket.write_all(HEAD.as_bytes()).is_ok() {
                            due.push(Reverse((Instant::now() + pace, 0, begun)));
                            sockets.insert(begun, socket);
                            begun += 1;
                        }
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
            let Some(Reverse((at, token, place))) = due.pop() else { continue };
            let Some(socket) = sockets.get_mut(&place) else { continue };
            let mut bytes = Vec::with_capacity(256);
            let last = token == tokens;
            if last {
                push_end(&mut bytes, tokens);
            } else {
                said.fetch_add(1, Ordering::Relaxed);
                push_token(&mut bytes, clock_us());
            }
            if socket.write_all(&bytes).is_err() || last {
                sockets.remove(&place);
            } else {
                due.push(Reverse((at + pace, token + 1, place)));
            }
        }
    });
    sender
}
