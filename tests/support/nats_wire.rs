//! A proxy between one daemon and its NATS server, which lies on request.
//!
//! It knows as much of the protocol of NATS as it takes to see what passes: publishes with their headers,
//! subscriptions, messages. What nothing is to befall passes as it came, but for the addresses of other servers in
//! INFO: a client that knew them would go around it.
//!
//! | lie | what the daemon sees |
//! |---|---|
//! | [`Wire::befall`] | what it publishes to the log meets a [`Fault`], of each record the first copies |
//! | [`Wire::keep_log`] | the log that it follows stands still |
//! | [`Wire::blind`] | slots as they were, and no other node; and no other node sees it |
//!
//! A publish is one message or all messages of an atomic batch: what befalls one of them befalls all.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// Where a cluster of the default name has its log, its heartbeats and the guards of keys.
const LOG: &str = "clawmux.log.";
const ALIVE: &str = "clawmux.alive.";
const GUARDS: &str = "clawmux.log.k.";

/// Where a daemon asks for all slots.
const READ_SLOTS: &str = "$JS.API.DIRECT.GET.KV_clawmux_slots";

/// What befalls a publish to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is written, and the answer never comes.
    Swallow,
    /// It is kept back, until [`Wire::deliver_late`].
    Hold,
    /// The connection ends behind its first message, where it has more, or is the guard of a key on its own.
    Cut,
    /// It is answered by an error of this number, and not written.
    Refuse(u64),
    /// It is written, and answered by an error of this number.
    WriteAndRefuse(u64),
}

/// A running proxy; stops when dropped.
pub struct Wire {
    address: SocketAddr,
    server: SocketAddr,
    lies: Arc<Mutex<Lies>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What is lied about, and what came of it, over all connections.
#[derive(Default)]
struct Lies {
    /// What befalls so many copies of each record.
    fault: Option<(Fault, usize)>,
    /// How many copies of each record came since.
    copies: HashMap<Vec<u8>, usize>,
    befallen: usize,
    again: usize,
    /// Where answers are waited for that do not come, and those that are replaced.
    swallowed: HashSet<String>,
    refused: HashMap<String, u64>,
    held: Vec<Frame>,
    keeps_log: bool,
    /// Records that were to be delivered, and to whom.
    kept: Vec<(UnboundedSender<Vec<u8>>, Frame)>,
    is_blind: bool,
    /// The last whole answer about slots.
    slots: Vec<Frame>,
}

/// A line of the protocol, and what belongs to it.
#[derive(Clone, Debug)]
struct Frame {
    words: Vec<String>,
    /// So many bytes of the body are headers.
    head: usize,
    body: Option<Vec<u8>>,
}

/// One connection of the client.
struct Connection {
    lies: Arc<Mutex<Lies>>,
    to_client: UnboundedSender<Vec<u8>>,
    /// Subscriptions: subject by id.
    subscriptions: HashMap<String, String>,
    /// Batches whose last message has not come.
    batches: HashMap<String, Vec<Frame>>,
    /// Answers about slots that are on their way, by where they are waited for.
    reads: HashMap<String, Vec<Frame>>,
}

impl Wire {
    /// One to the server on this port.
    pub fn to(port: u16) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let lies = Arc::new(Mutex::new(Lies::default()));
        let (server, all) = (SocketAddr::from(([127, 0, 0, 1], port)), lies.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let accept = async {
                    loop {
                        let (client, _) = listener.accept().await.unwrap();
                        tokio::spawn(serve(client, server, all.clone()));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        let address = started.recv().unwrap();
        Self { address, server, lies, stop: Some(stop), thread: Some(thread) }
    }

    /// Where the daemon is to connect to.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// From now on this befalls the first so many copies of each record that is published to the log.
    pub fn befall(&self, fault: Fault, copies: usize) {
        let mut lies = self.lies();
        (lies.fault, lies.befallen, lies.again) = (Some((fault, copies)), 0, 0);
        lies.copies.clear();
    }

    /// How many publishes it befell.
    pub fn befallen(&self) -> usize {
        self.lies().befallen
    }

    /// How many records were published once more since it began.
    pub fn again(&self) -> usize {
        self.lies().again
    }

    /// Has the server have everything that was held, in its order; gives how many messages that were.
    pub fn deliver_late(&self) -> usize {
        let held = std::mem::take(&mut self.lies().held);
        let mut socket = std::net::TcpStream::connect(self.server).unwrap();
        let mut said = std::io::BufReader::new(socket.try_clone().unwrap()).lines();
        said.next().unwrap().unwrap();
        let mut sent = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
        sent.extend(held.iter().flat_map(Frame::bytes));
        sent.extend(b"PING\r\n");
        socket.write_all(&sent).unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "PONG");
        held.len()
    }

    /// Keeps what the log delivers to the daemon.
    pub fn keep_log(&self) {
        self.lies().keeps_log = true;
    }

    /// Delivers it, and what comes from now on.
    pub fn give_log(&self) {
        let mut lies = self.lies();
        lies.keeps_log = false;
        for (client, frame) in lies.kept.drain(..) {
            // Its connection may have ended.
            let _ = client.send(frame.bytes());
        }
    }

    /// From now on the daemon and the other nodes do not hear each other, and slots stay for it as it saw them last.
    pub fn blind(&self) {
        let mut lies = self.lies();
        assert!(!lies.slots.is_empty(), "it has not read the slots yet");
        lies.is_blind = true;
    }

    /// Everything is as it is again. What is held stays so.
    pub fn relent(&self) {
        self.give_log();
        let mut lies = self.lies();
        (lies.fault, lies.is_blind) = (None, false);
    }

    fn lies(&self) -> MutexGuard<'_, Lies> {
        locked(&self.lies)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn locked(lies: &Mutex<Lies>) -> MutexGuard<'_, Lies> {
    lies.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(client: TcpStream, server: SocketAddr, lies: Arc<Mutex<Lies>>) -> Option<()> {
    let server = TcpStream::connect(server).await.ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (sender, frames) = unbounded_channel();
    let connection = Mutex::new(Connection {
        lies,
        to_client: sender,
        subscriptions: HashMap::new(),
        batches: HashMap::new(),
        reads: HashMap::new(),
    });
    let (mut from_server, mut to_server) = (BufReader::new(from_server), to_server);
    tokio::select! {
        _ = up(&connection, from_client, &mut to_server) => {}
        _ = down(&connection, &mut from_server) => {}
        _ = forward(frames, to_client) => {}
    }
    // The server takes what it was sent before it learns of the end.
    to_server.shutdown().await.ok()?;
    tokio::io::copy(&mut from_server, &mut tokio::io::sink()).await.ok().map(|_| ())
}

/// What the client says, to the server; until the connection is to end.
async fn up(
    connection: &Mutex<Connection>,
    from: OwnedReadHalf,
    to_server: &mut OwnedWriteHalf,
) -> Option<()> {
    let mut from = BufReader::new(from);
    loop {
        let frame = Frame::read(&mut from).await?;
        let (sent, goes_on) = connection.lock().unwrap().said(frame);
        for frame in sent {
            to_server.write_all(&frame.bytes()).await.ok()?;
        }
        if !goes_on {
            return None;
        }
    }
}

/// What the server says, to the client.
async fn down(connection: &Mutex<Connection>, from: &mut BufReader<OwnedReadHalf>) -> Option<()> {
    loop {
        let frame = Frame::read(from).await?;
        connection.lock().unwrap().answered(frame);
    }
}

async fn forward(mut frames: UnboundedReceiver<Vec<u8>>, mut to_client: OwnedWriteHalf) -> Option<()> {
    loop {
        to_client.write_all(&frames.recv().await?).await.ok()?;
    }
}

impl Connection {
    /// What of the client's words the server is told now, and whether the connection goes on behind that.
    fn said(&mut self, frame: Frame) -> (Vec<Frame>, bool) {
        let word = |at: usize| frame.words.get(at).cloned().unwrap_or_default();
        match &*frame.words[0] {
            "SUB" => {
                let id = frame.words.last().cloned().unwrap_or_default();
                self.subscriptions.insert(id, word(1));
            }
            "UNSUB" if frame.words.len() == 2 => drop(self.subscriptions.remove(&word(1))),
            "PUB" | "HPUB" => return self.published(frame),
            _ => {}
        }
        (vec![frame], true)
    }

    fn published(&mut self, frame: Frame) -> (Vec<Frame>, bool) {
        let lies = Arc::clone(&self.lies);
        let mut lies = locked(&lies);
        let subject = frame.words[1].clone();
        if lies.is_blind && subject.starts_with(ALIVE) {
            return (Vec::new(), true);
        }
        if subject == READ_SLOTS {
            let inbox = frame.reply().unwrap_or_default();
            if lies.is_blind {
                for frame in &lies.slots {
                    self.answer(&inbox, frame.clone());
                }
                return (Vec::new(), true);
            }
            self.reads.insert(inbox, Vec::new());
        }
        if !subject.starts_with(LOG) {
            return (vec![frame], true);
        }
        let batch = frame.header("Nats-Batch-Id");
        let is_whole = batch.is_none() || frame.header("Nats-Batch-Commit").is_some();
        let Some((fault, copies)) = lies.fault else {
            let mut all = batch.and_then(|batch| self.batches.remove(&batch)).unwrap_or_default();
            all.push(frame);
            return (all, true);
        };
        if fault == Fault::Cut {
            let is_first = !is_whole && frame.header("Nats-Batch-Sequence").as_deref() == Some("1");
            let is_cut = (is_first || (batch.is_none() && subject.starts_with(GUARDS)))
                && lies.befalls(&[&frame], copies);
            return (vec![frame], !is_cut);
        }
        let mut all = match &batch {
            Some(batch) => self.batches.remove(batch).unwrap_or_default(),
            None => Vec::new(),
        };
        all.push(frame);
        if !is_whole {
            self.batches.insert(batch.unwrap_or_default(), all);
            return (Vec::new(), true);
        }
        if !lies.befalls(&all.iter().collect::<Vec<_>>(), copies) {
            return (all, true);
        }
        let inbox = all.last().and_then(Frame::reply).unwrap_or_default();
        match fault {
            Fault::Swallow => drop(lies.swallowed.insert(inbox)),
            Fault::WriteAndRefuse(code) => drop(lies.refused.insert(inbox, code)),
            Fault::Refuse(code) => {
                self.answer(&inbox, refusal(code));
                all.clear();
            }
            Fault::Hold => lies.held.append(&mut all),
            Fault::Cut => {}
        }
        (all, true)
    }

    /// Passes on what the server says, or what is said instead.
    fn answered(&mut self, mut frame: Frame) {
        let lies = Arc::clone(&self.lies);
        let mut lies = locked(&lies);
        match &*frame.words[0] {
            "INFO" => frame.forget_other_servers(),
            "MSG" | "HMSG" => {
                let subject = frame.words[1].clone();
                if lies.swallowed.remove(&subject) || (lies.is_blind && subject.starts_with(ALIVE)) {
                    return;
                }
                if let Some(code) = lies.refused.remove(&subject) {
                    return self.answer(&subject, refusal(code));
                }
                if lies.keeps_log && subject.starts_with(LOG) {
                    return lies.kept.push((self.to_client.clone(), frame));
                }
                self.read(&mut lies, &subject, &frame);
            }
            _ => {}
        }
        let _ = self.to_client.send(frame.bytes());
    }

    /// Keeps what is said about slots.
    fn read(&mut self, lies: &mut Lies, inbox: &str, frame: &Frame) {
        let Some(read) = self.reads.get_mut(inbox) else { return };
        read.push(frame.clone());
        let head = frame.headers();
        let is_end = head.lines().next().is_some_and(|line| line.len() > "NATS/1.0".len());
        if is_end && let Some(read) = self.reads.remove(inbox) {
            let is_whole = head.starts_with("NATS/1.0 204");
            if is_whole && !lies.is_blind {
                lies.slots = read;
            }
        }
    }

    /// Says something to whoever waits for it here.
    fn answer(&self, inbox: &str, mut frame: Frame) {
        let is_here = |subject: &str| match subject.strip_suffix('*') {
            Some(begin) => inbox.starts_with(begin),
            None => subject == inbox,
        };
        if let Some((id, _)) = self.subscriptions.iter().find(|(_, subject)| is_here(subject)) {
            (frame.words[1], frame.words[2]) = (inbox.to_owned(), id.clone());
            let _ = self.to_client.send(frame.bytes());
        }
    }
}

impl Lies {
    /// Whether this publish is one that the fault befalls: of one of its records so many copies have not come yet.
    fn befalls(&mut self, publish: &[&Frame], copies: usize) -> bool {
        let mut befalls = false;
        for frame in publish {
            let record = [frame.words[1].as_bytes(), b" ", frame.payload()].concat();
            let count = self.copies.entry(record).or_default();
            *count += 1;
            befalls |= *count <= copies;
            self.again += usize::from(*count == 2);
        }
        self.befallen += usize::from(befalls);
        befalls
    }
}

impl Frame {
    async fn read(from: &mut BufReader<OwnedReadHalf>) -> Option<Self> {
        let mut line = String::new();
        if from.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let words: Vec<String> = match line.trim_end().split_once(' ') {
            // What they say may have spaces in it.
            Some((word @ ("INFO" | "CONNECT" | "-ERR"), rest)) => vec![word.to_owned(), rest.to_owned()],
            _ => line.split_whitespace().map(str::to_owned).collect(),
        };
        let (mut head, mut body) = (0, None);
        if matches!(&**words.first()?, "PUB" | "HPUB" | "MSG" | "HMSG") {
            let number = |back: usize| words[words.len() - back].parse::<usize>().ok();
            let mut bytes = vec![0; number(1)? + 2];
            from.read_exact(&mut bytes).await.ok()?;
            bytes.truncate(bytes.len() - 2);
            head = if words[0].starts_with('H') { number(2)? } else { 0 };
            body = Some(bytes);
        }
        Some(Self { words, head, body })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.words.join(" ").into_bytes();
        bytes.extend(b"\r\n");
        if let Some(body) = &self.body {
            bytes.extend(body);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    fn payload(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |body| &body[self.head..])
    }

    fn headers(&self) -> String {
        let head = self.body.as_ref().map_or(&[][..], |body| &body[..self.head]);
        String::from_utf8_lossy(head).into_owned()
    }

    fn header(&self, name: &str) -> Option<String> {
        self.headers().lines().find_map(|line| {
            let (before, value) = line.split_once(':')?;
            before.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }

    /// Where the answer to a publish is waited for.
    fn reply(&self) -> Option<String> {
        let sizes = if self.words[0] == "HPUB" { 2 } else { 1 };
        (self.words.len() == 3 + sizes).then(|| self.words[2].clone())
    }

    fn forget_other_servers(&mut self) {
        if let Some(Ok(mut info)) = self.words.get(1).map(|info| serde_json::from_str::<Value>(info)) {
            info.as_object_mut().unwrap().remove("connect_urls");
            self.words[1] = info.to_string();
        }
    }
}

/// What a server says that refuses a publish; the addressee is yet to be named.
fn refusal(code: u64) -> Frame {
    let error = json!({ "code": 400, "err_code": code, "description": "so says the wire" });
    let body = json!({ "error": error, "stream": "clawmux_LOG", "seq": 0 }).to_string().into_bytes();
    let words = ["MSG", "", "", &body.len().to_string()].map(str::to_owned).into();
    Frame { words, head: 0, body: Some(body) }
}
