//! A model provider for tests, on a port of its own: speaks Anthropic Messages, OpenAI chat completions and
//! OpenAI's Responses API, over HTTP or HTTPS, and misbehaves on request.
//!
//! It runs on its own thread, so any runtime can call it. What it answers is queued with
//! [`Upstream::then`]; with an empty queue it says what it was told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

/// What it does with one request.
#[derive(Clone, Debug)]
pub enum Turn {
    /// Says these pieces of text, then ends properly.
    Say(Vec<String>),
    /// Says the text, calls these tools (name, input as the model would write it), ends properly.
    Call(String, Vec<(String, String)>),
    /// Thinks these pieces before it does the rest: signed in Anthropic's format, by the name that wants
    /// them back in that of chat completions, encrypted in that of Responses.
    Think(Vec<String>, Box<Turn>),
    /// Says each of these pieces only after an [`Upstream::go_on`], then ends properly.
    Slowly(Vec<String>),
    /// Does nothing before an [`Upstream::go_on`], then the rest.
    #[allow(dead_code, reason = "the published clients' tests use it")]
    Held(Box<Turn>),
    /// Says the text and its end marker, and ends the response only after [`Upstream::end`].
    EndLate(String),
    /// Answers with this status, this `retry-after` and this body.
    Status(u16, Option<u32>, String),
    /// Answers that it is elsewhere.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    Redirect(String),
    /// Answers 200 with a page instead of a stream.
    Page(String),
    /// Says the text and ends properly, because it reached the most tokens it may write.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    Short(String),
    /// Says the text, then ends the response in good order without the end marker.
    Cut(String),
    /// Says the text, then closes the connection within the response.
    Reset(String),
    /// Says the text, then sends an event that is not JSON.
    Garbage(String),
    /// Says the text (nothing where empty), then reports `overloaded_error` within the stream.
    Report(String),
    /// Does the same in a response without a length, which ends with the connection.
    #[allow(dead_code, reason = "the actors' tests use it")]
    ThenClose(Box<Turn>),
    /// Closes the connection without an answer.
    Close,
    /// Does not answer.
    HangHead,
    /// Says the text, then nothing more.
    HangBody(String),
}

/// One request it got.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its path.
    pub path: String,
    /// Its head as it came.
    pub head: String,
    /// Its body.
    pub body: Value,
}

/// A running server; stops when dropped.
pub struct Upstream {
    address: SocketAddr,
    state: Arc<State>,
    ca: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What it does when it is asked for vectors.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "the daemon's tests use it")]
pub enum Embedding {
    /// Answers with this status.
    Refused(u16),
    /// Does not answer.
    Hung,
    /// Gives for each text the vector that this makes of it.
    Made(fn(&str) -> [f64; 3]),
}

/// What a model says to the body of a request.
type Model = Box<dyn Fn(&Value) -> Vec<String> + Send + Sync>;

struct State {
    turns: Mutex<VecDeque<Turn>>,
    /// Its list of models; none where it has no such thing.
    models: Mutex<Option<Value>>,
    /// What it says where no turn waits.
    model: Model,
    /// What it does when it is asked for vectors.
    embedding: Mutex<Embedding>,
    requests: Mutex<Vec<Request>>,
    connections: Mutex<usize>,
    /// Requests that have arrived; one permit each.
    arrived: Semaphore,
    /// Connections that the client closed while it was waiting for more; one permit each.
    left: Semaphore,
    /// Responses that may end, and those that did; one permit each.
    ending: Semaphore,
    ended: Semaphore,
    /// Pieces that may be said.
    going_on: Semaphore,
    /// How many bytes each write of a stream has.
    write_bytes: usize,
}

impl Upstream {
    /// Over HTTP, each event written at once.
    pub fn start() -> Self {
        Self::start_with(usize::MAX, None, Box::new(repeat))
    }

    /// Over HTTP, saying to each request what this makes of its body.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    pub fn thinking(model: impl Fn(&Value) -> String + Send + Sync + 'static) -> Self {
        Self::start_with(usize::MAX, None, Box::new(move |body| vec![model(body)]))
    }

    /// Over HTTPS, with a certificate of an authority of its own.
    pub fn start_tls() -> Self {
        Self::start_with(usize::MAX, Some(of_an_authority()), Box::new(repeat))
    }

    /// Over HTTPS, with a certificate that it signed itself, such as those of `openssl req -x509`.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    pub fn start_self_signed() -> Self {
        Self::start_with(usize::MAX, Some(self_signed()), Box::new(repeat))
    }

    /// Over HTTP, streams written in pieces of so many bytes.
    #[allow(dead_code, reason = "the actors' tests use it")]
    pub fn start_split(write_bytes: usize) -> Self {
        Self::start_with(write_bytes, None, Box::new(repeat))
    }

    fn start_with(write_bytes: usize, certificate: Option<Certificate>, model: Model) -> Self {
        let state = Arc::new(State {
            turns: Mutex::default(),
            models: Mutex::default(),
            model,
            embedding: Mutex::new(Embedding::Refused(404)),
            requests: Mutex::default(),
            connections: Mutex::default(),
            arrived: Semaphore::new(0),
            left: Semaphore::new(0),
            ending: Semaphore::new(0),
            ended: Semaphore::new(0),
            going_on: Semaphore::new(0),
            write_bytes,
        });
        let (ca, acceptor) = certificate.map(|Certificate { ca, acceptor }| (ca, acceptor)).unzip();
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        stream.set_nodelay(true).unwrap();
                        *shared.connections.lock().unwrap() += 1;
                        let (state, acceptor) = (shared.clone(), acceptor.clone());
                        tokio::spawn(async move {
                            match acceptor {
                                Some(acceptor) => {
                                    if let Ok(stream) = acceptor.accept(stream).await {
                                        serve(state, stream).await;
                                    }
                                }
                                None => serve(state, stream).await,
                            }
                        });
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        let address = started.recv().unwrap();
        Self { address, state, ca, stop: Some(stop), thread: Some(thread) }
    }

    /// Adds a turn for the next request that has none.
    pub fn then(&self, turn: Turn) -> &Self {
        self.state.turns.lock().unwrap().push_back(turn);
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL for any format: requests go to `/v1/...` below it.
    pub fn base_url(&self) -> String {
        match self.ca {
            Some(_) => format!("https://localhost:{}", self.address.port()),
            None => format!("http://{}", self.address),
        }
    }

    /// The certificate of its authority, in PEM.
    pub fn ca_pem(&self) -> &str {
        self.ca.as_deref().expect("started with TLS")
    }

    /// From now on it lists these models.
    #[allow(dead_code, reason = "not all tests ask")]
    pub fn list(&self, models: Value) {
        *self.state.models.lock().unwrap() = Some(models);
    }

    /// From now on it does this when it is asked for vectors.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    pub fn embed(&self, embedding: Embedding) {
        *self.state.embedding.lock().unwrap() = embedding;
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// How many connections were made so far.
    #[allow(dead_code, reason = "the actors' tests use it")]
    pub fn connections(&self) -> usize {
        *self.state.connections.lock().unwrap()
    }

    /// Waits for a request; each counts once.
    pub async fn arrived(&self) {
        self.state.arrived.acquire().await.unwrap().forget();
    }

    /// Lets one [`Turn::EndLate`] end, and waits until it has.
    pub async fn end(&self) {
        self.state.ending.add_permits(1);
        self.state.ended.acquire().await.unwrap().forget();
    }

    /// Lets a [`Turn::Slowly`] say its next pieces, or a [`Turn::Held`] begin.
    pub fn go_on(&self, pieces: usize) {
        self.state.going_on.add_permits(pieces);
    }

    /// Waits until a client left while something hung; each counts once.
    pub async fn left(&self) {
        self.state.left.acquire().await.unwrap().forget();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a server proves itself with, and what that is checked by, in PEM.
struct Certificate {
    ca: String,
    acceptor: tokio_rustls::TlsAcceptor,
}

/// The names of the server.
fn names() -> Vec<String> {
    ["localhost", "127.0.0.1", "models.example"].map(str::to_owned).to_vec()
}

fn an_authority(names: Vec<String>) -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
}

fn of_an_authority() -> Certificate {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let authority = an_authority(Vec::new());
    let ca = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(names()).unwrap().signed_by(&key, &issuer).unwrap();
    Certificate { ca: ca.pem(), acceptor: acceptor(&certificate, &key) }
}

fn self_signed() -> Certificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = an_authority(names()).self_signed(&key).unwrap();
    Certificate { ca: certificate.pem(), acceptor: acceptor(&certificate, &key) }
}

fn acceptor(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> tokio_rustls::TlsAcceptor {
    use tokio_rustls::rustls;
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

/// The format that a request is in, by its path.
#[derive(Clone, Copy)]
pub enum Format {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI chat completions.
    Chat,
    /// OpenAI Responses.
    Responses,
}

impl Format {
    /// That of a path.
    pub fn of(path: &str) -> Self {
        match path.rsplit('/').next() {
            Some("messages") => Self::Anthropic,
            Some("responses") => Self::Responses,
            _ => Self::Chat,
        }
    }
}

/// Answers the requests of one connection.
async fn serve(state: Arc<State>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    while let Some(request) = read_request(&mut stream).await {
        let models = state.models.lock().unwrap().clone();
        let is_scripted =
            models.is_none() && matches!(state.turns.lock().unwrap().front(), Some(Turn::Status(..)));
        if request.head.starts_with("GET ") && !is_scripted {
            // No prompt, but the question which models there are.
            let (status, body) = models.map_or((404, String::new()), |models| (200, models.to_string()));
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(head.as_bytes()).await.is_err() || stream.flush().await.is_err() {
                return;
            }
            continue;
        }
        if request.path.ends_with("/embeddings") {
            let embedding = *state.embedding.lock().unwrap();
            let (status, body) = match embedding {
                Embedding::Refused(status) => (status, "{}".to_owned()),
                Embedding::Hung => (0, String::new()),
                Embedding::Made(make) => (200, vectors(&request.body, make)),
            };
            state.requests.lock().unwrap().push(request);
            if status == 0 {
                hang(&state, &mut stream).await;
                return;
            }
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            if stream.write_all(head.as_bytes()).await.is_err() || stream.flush().await.is_err() {
                return;
            }
            continue;
        }
        let said = (state.model)(&request.body);
        let format = Format::of(&request.path);
        state.requests.lock().unwrap().push(request);
        let turn = state.turns.lock().unwrap().pop_front();
        state.arrived.add_permits(1);
        let turn = match turn.unwrap_or(Turn::Say(said)) {
            Turn::Held(turn) => {
                let Ok(go_on) = state.going_on.acquire().await else { return };
                go_on.forget();
                *turn
            }
            turn => turn,
        };
        if answer(&state, &mut stream, turn, format).await.is_none() {
            return;
        }
    }
}

/// None where the connection is over.
async fn answer(
    state: &State,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    turn: Turn,
    format: Format,
) -> Option<()> {
    let (turn, chunked) = match turn {
        Turn::ThenClose(turn) => (*turn, false),
        turn => (turn, true),
    };
    let (thoughts, turn) = match turn {
        Turn::Think(thoughts, turn) => (thoughts, *turn),
        turn => (vec![], turn),
    };
    let late = matches!(turn, Turn::EndLate(_));
    let say = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_owned()] };
    let (pieces, calls) = match &turn {
        Turn::Say(pieces) | Turn::Slowly(pieces) => (pieces.clone(), vec![]),
        Turn::Call(text, calls) => (say(text), calls.clone()),
        Turn::EndLate(text)
        | Turn::Short(text)
        | Turn::Cut(text)
        | Turn::Reset(text)
        | Turn::Garbage(text)
        | Turn::Report(text)
        | Turn::HangBody(text) => (say(text), vec![]),
        Turn::Status(status, retry_after, body) => {
            let retry = retry_after.map_or(String::new(), |seconds| format!("retry-after: {seconds}\r\n"));
            let length = if chunked { format!("content-length: {}\r\n", body.len()) } else { String::new() };
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{retry}{length}\r\n{body}",
            );
            stream.write_all(head.as_bytes()).await.ok()?;
            // Where it closes, it does so without the goodbye of TLS, as small servers do.
            stream.flush().await.ok()?;
            return chunked.then_some(());
        }
        Turn::Redirect(location) => {
            let head = format!("HTTP/1.1 307 x\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            return stream.write_all(head.as_bytes()).await.ok();
        }
        Turn::Page(body) => {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            return stream.write_all(head.as_bytes()).await.ok();
        }
        Turn::Close => return None,
        Turn::Held(_) | Turn::ThenClose(_) | Turn::Think(..) => unreachable!("one within another"),
        Turn::HangHead => return hang(state, stream).await,
    };
    let encoding = if chunked { "transfer-encoding: chunked\r\n" } else { "" };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n{encoding}\r\n");
    write(state, stream, &head, false).await?;
    let (mut events, ending) = events(format, &pieces, &calls);
    let thoughts = match format {
        Format::Anthropic => anthropic_thoughts(&thoughts),
        Format::Chat => openai_thoughts(&thoughts),
        Format::Responses => responses_thoughts(&thoughts),
    };
    // After what every stream begins with.
    events.splice(1..1, thoughts);
    // A piece is the one event with a text.
    let (mut said, slow) = (0, matches!(turn, Turn::Slowly(_)));
    for event in events {
        if slow && pieces.get(said).is_some_and(|piece| event.contains(&json!(piece).to_string())) {
            said += 1;
            state.going_on.acquire().await.ok()?.forget();
        }
        write(state, stream, &event, chunked).await?;
    }
    match turn {
        Turn::Cut(_) => {}
        Turn::Reset(_) => {
            // Within a chunk that was announced larger.
            stream.write_all(b"ff\r\ndata: {\"ty").await.ok()?;
            stream.shutdown().await.ok()?;
            return None;
        }
        Turn::Garbage(_) => write(state, stream, "data: }garbage{\n\n", chunked).await?,
        Turn::Report(_) => {
            let error = json!({"type": "overloaded_error", "message": "Overloaded"});
            let event = format!("event: error\ndata: {}\n\n", json!({"type": "error", "error": error}));
            write(state, stream, &event, chunked).await?;
        }
        Turn::HangBody(_) => return hang(state, stream).await,
        _ => {
            for mut event in ending {
                if matches!(turn, Turn::Short(_)) {
                    let finish = event.replace(r#""finish_reason":"stop""#, r#""finish_reason":"length""#);
                    event = finish.replace(r#""end_turn""#, r#""max_tokens""#);
                    event = event.replace("response.completed", "response.incomplete");
                }
                write(state, stream, &event, chunked).await?;
            }
        }
    }
    if late {
        state.ending.acquire().await.ok()?.forget();
    }
    let written = if chunked { stream.write_all(b"0\r\n\r\n").await } else { stream.shutdown().await };
    if late {
        state.ended.add_permits(1);
    }
    written.ok().filter(|()| chunked)
}

/// Waits until the client leaves.
async fn hang(state: &State, stream: &mut (impl AsyncRead + Unpin)) -> Option<()> {
    let mut byte = [0];
    let _ = stream.read(&mut byte).await;
    state.left.add_permits(1);
    None
}

async fn write(
    state: &State,
    stream: &mut (impl AsyncWrite + Unpin),
    text: &str,
    chunked: bool,
) -> Option<()> {
    for part in text.as_bytes().chunks(state.write_bytes) {
        let mut chunk = part.to_vec();
        if chunked {
            chunk = format!("{:x}\r\n", part.len()).into_bytes();
            chunk.extend_from_slice(part);
            chunk.extend_from_slice(b"\r\n");
        }
        stream.write_all(&chunk).await.ok()?;
        stream.flush().await.ok()?;
        if state.write_bytes != usize::MAX {
            tokio::task::yield_now().await;
        }
    }
    Some(())
}

/// The events of an answer before its end, and those that end it. It counts 20 tokens of input and
/// one of output for each piece and call.
pub fn events(format: Format, pieces: &[String], calls: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    match format {
        Format::Anthropic => anthropic_stream(pieces, calls),
        Format::Chat => openai_stream(pieces, calls),
        Format::Responses => responses_stream(pieces, calls),
    }
}

fn anthropic_stream(pieces: &[String], calls: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let event = |mut data: Value, kind: &str| {
        data["type"] = json!(kind);
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let usage = json!({"input_tokens": 15, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 1});
    let mut events = vec![
        event(
            json!({"message": {"id": "msg_1", "role": "assistant", "content": [], "usage": usage}}),
            "message_start",
        ),
        event(json!({}), "ping"),
    ];
    if !pieces.is_empty() {
        events.push(event(
            json!({"index": 0, "content_block": {"type": "text", "text": ""}}),
            "content_block_start",
        ));
        for piece in pieces {
            let delta = json!({"type": "text_delta", "text": piece});
            events.push(event(json!({"index": 0, "delta": delta}), "content_block_delta"));
        }
        events.push(event(json!({"index": 0}), "content_block_stop"));
    }
    for (at, (name, input)) in calls.iter().enumerate() {
        let index = at + 1;
        let block = json!({"type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": {}});
        events.push(event(json!({"index": index, "content_block": block}), "content_block_start"));
        for part in halves(input) {
            let delta = json!({"type": "input_json_delta", "partial_json": part});
            events.push(event(json!({"index": index, "delta": delta}), "content_block_delta"));
        }
        events.push(event(json!({"index": index}), "content_block_stop"));
    }
    let reason = if calls.is_empty() { "end_turn" } else { "tool_use" };
    let output = pieces.len() + calls.len();
    let ending = vec![
        event(json!({"delta": {"stop_reason": reason}, "usage": {"output_tokens": output}}), "message_delta"),
        event(json!({}), "message_stop"),
    ];
    (events, ending)
}

/// What the signature of a thought is made of, besides the thought.
pub const SIGNATURE: &str = "EqQBCgIYAhIM+/İ==";

fn anthropic_thoughts(pieces: &[String]) -> Vec<String> {
    let event = |mut data: Value, kind: &str| {
        data["type"] = json!(kind);
        data["index"] = json!(100);
        format!("event: {kind}\ndata: {data}\n\n")
    };
    if pieces.is_empty() {
        return vec![];
    }
    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
    let mut events = vec![event(json!({ "content_block": block }), "content_block_start")];
    for piece in pieces {
        let delta = json!({"type": "thinking_delta", "thinking": piece});
        events.push(event(json!({ "delta": delta }), "content_block_delta"));
    }
    let signed = json!({"type": "signature_delta", "signature": format!("{SIGNATURE}{}", pieces.concat())});
    events.push(event(json!({ "delta": signed }), "content_block_delta"));
    events.push(event(json!({}), "content_block_stop"));
    events
}

fn openai_thoughts(pieces: &[String]) -> Vec<String> {
    let chunk = |piece: &String| {
        let choice = json!({"index": 0, "delta": {"reasoning_content": piece}, "finish_reason": null});
        format!("data: {}\n\n", json!({"id": "c1", "choices": [choice], "usage": null}))
    };
    pieces.iter().map(chunk).collect()
}

fn openai_stream(pieces: &[String], calls: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let chunk = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!("data: {}\n\n", json!({"id": "c1", "choices": [choice], "usage": null}))
    };
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null)];
    for piece in pieces {
        events.push(chunk(json!({"content": piece}), Value::Null));
    }
    for (index, (name, input)) in calls.iter().enumerate() {
        let function = json!({"name": name, "arguments": ""});
        let start =
            json!({"index": index, "id": format!("call_{index}"), "type": "function", "function": function});
        events.push(chunk(json!({"tool_calls": [start]}), Value::Null));
        for part in halves(input) {
            let more = json!({"index": index, "function": {"arguments": part}});
            events.push(chunk(json!({"tool_calls": [more]}), Value::Null));
        }
    }
    let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    let output = pieces.len() + calls.len();
    let usage = json!({"prompt_tokens": 20, "completion_tokens": output, "total_tokens": 20 + output});
    let ending = vec![
        chunk(json!({}), json!(reason)),
        format!("data: {}\n\n", json!({"id": "c1", "choices": [], "usage": usage})),
        "data: [DONE]\n\n".to_owned(),
    ];
    (events, ending)
}

fn responses_event(mut data: Value, kind: &str) -> String {
    data["type"] = json!(kind);
    format!("event: {kind}\ndata: {data}\n\n")
}

fn responses_stream(pieces: &[String], calls: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let event = responses_event;
    let started = json!({"response": {"id": "resp_1", "status": "in_progress", "output": []}});
    let mut events = vec![event(started, "response.created")];
    if !pieces.is_empty() {
        let item = |text: &str| {
            let content = json!([{"type": "output_text", "text": text}]);
            json!({"output_index": 0, "item": {"type": "message", "id": "msg_1", "content": content}})
        };
        events.push(event(item(""), "response.output_item.added"));
        for piece in pieces {
            events.push(event(json!({"output_index": 0, "delta": piece}), "response.output_text.delta"));
        }
        // The whole of it, which must not be taken for another piece: in no words of any piece.
        events.push(event(item("all of it"), "response.output_item.done"));
    }
    for (at, (name, input)) in calls.iter().enumerate() {
        let item = |input: &str| {
            let call = json!({"type": "function_call", "id": format!("fc_{at}"), "call_id": format!("call_{at}"),
                "name": name, "arguments": input});
            json!({"output_index": at + 1, "item": call})
        };
        events.push(event(item(""), "response.output_item.added"));
        for part in halves(input) {
            let delta = json!({"output_index": at + 1, "delta": part});
            events.push(event(delta, "response.function_call_arguments.delta"));
        }
        events.push(event(item(input), "response.output_item.done"));
    }
    let output = pieces.len() + calls.len();
    let usage = json!({"input_tokens": 20, "output_tokens": output, "total_tokens": 20 + output});
    (events, vec![event(json!({"response": {"usage": usage}}), "response.completed")])
}

fn responses_thoughts(pieces: &[String]) -> Vec<String> {
    let event = responses_event;
    if pieces.is_empty() {
        return vec![];
    }
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": []});
    let mut events = vec![event(json!({"output_index": 100, "item": item}), "response.output_item.added")];
    for piece in pieces {
        let delta = json!({"output_index": 100, "summary_index": 0, "delta": piece});
        events.push(event(delta, "response.reasoning_summary_text.delta"));
    }
    let item = json!({"type": "reasoning", "id": "rs_1", "encrypted_content": format!("{SIGNATURE}{}", pieces.concat()),
        "summary": [{"type": "summary_text", "text": pieces.concat()}]});
    events.push(event(json!({"output_index": 100, "item": item}), "response.output_item.done"));
    events
}

fn halves(text: &str) -> [&str; 2] {
    let middle = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (first, second) = text.split_at(middle);
    [first, second]
}

/// The next request on this connection; none where it ends before.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length:").map(str::trim).map(str::to_owned)
        })
        .and_then(|length| length.parse::<usize>().ok())
        .unwrap_or(0);
    while bytes.len() < head_end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let path = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let body = serde_json::from_slice(&bytes[head_end..head_end + length]).unwrap_or(Value::Null);
    Some(Request { path, head, body })
}

/// The vectors of the texts in a request, the last first, each with its place.
fn vectors(body: &Value, make: fn(&str) -> [f64; 3]) -> String {
    let texts = body["input"].as_array().map(Vec::as_slice).unwrap_or_default();
    let vector = |(at, text): (usize, &Value)| json!({ "index": at, "embedding": make(text.as_str().unwrap_or_default()) });
    let data: Vec<Value> = texts.iter().enumerate().rev().map(vector).collect();
    let tokens = 7 * texts.len();
    json!({ "data": data, "usage": { "prompt_tokens": tokens, "total_tokens": tokens } }).to_string()
}

/// What it says without a model of its own.
fn repeat(body: &Value) -> Vec<String> {
    vec!["You said: ".into(), last_text(body)]
}

/// The text of the last message, in any format.
fn last_text(body: &Value) -> String {
    let messages = body["messages"].as_array().or(body["input"].as_array());
    let last = messages.and_then(|messages| messages.last());
    match last.map(|last| last.get("output").unwrap_or(&last["content"])) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => blocks
            .iter()
            .filter_map(|block| block["text"].as_str().or(block["content"].as_str()))
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}
