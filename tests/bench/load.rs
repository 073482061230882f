//! The load: a model provider that streams at a steady pace, and clients that take note of when
//! each piece arrives. The time a piece was sent at is in its text.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::process::Process;

/// What was measured, per unit (a ping or a token).
pub struct Figures {
    pub units: usize,
    pub frames: usize,
    pub cpu_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Of the times that were taken, and the CPU time that all of it took.
pub fn figures(units: usize, frames: usize, cpu_us: f64, mut latencies_us: Vec<f64>) -> Figures {
    latencies_us.sort_by(f64::total_cmp);
    let at = |share: f64| latencies_us[((latencies_us.len() - 1) as f64 * share) as usize];
    Figures { units, frames, cpu_us: cpu_us / units as f64, p50_us: at(0.5), p99_us: at(0.99) }
}

/// Microseconds since the first call.
pub fn clock_us() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

/// A model provider in the OpenAI format: every answer is so many tokens, one per `pace`.
pub fn upstream(tokens: usize, pace: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || answer(socket, tokens, pace));
        }
    });
    address
}

fn answer(socket: TcpStream, tokens: usize, pace: Duration) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut request = BufReader::new(socket.try_clone()?);
    let mut socket = BufWriter::new(socket);
    let mut length = 0;
    loop {
        let mut line = String::new();
        request.read_line(&mut line)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    request.read_exact(&mut vec![0; length])?;
    socket.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
          connection: close\r\n\r\n",
    )?;
    let begin = Instant::now();
    for n in 0..tokens {
        let wait = (pace * n as u32).saturating_sub(begin.elapsed());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        let token = format!(
            "data: {{\"id\":\"b\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"<{}>\"}},\"finish_reason\":null}}]}}\n\n",
            clock_us()
        );
        write!(socket, "{:x}\r\n{token}\r\n", token.len())?;
        if !pace.is_zero() {
            socket.flush()?;
        }
    }
    let end = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
    );
    write!(socket, "{:x}\r\n{end}\r\n0\r\n\r\n", end.len())?;
    socket.flush()
}

fn connect(process: &Process) -> WebSocket<TcpStream> {
    let request = format!("ws://{}/ws", process.address).into_client_request().expect("a request");
    let stream = TcpStream::connect(process.address).expect("it accepts");
    stream.set_nodelay(true).expect("no delay");
    tungstenite::client(request, stream).expect("it upgrades").0
}

/// How many sessions the daemon says are awake.
pub fn sessions(process: &Process) -> usize {
    let mut socket = connect(process);
    socket.read().expect("hello");
    socket.send(Message::text(r#"{"id":"1","method":"status"}"#)).expect("it takes frames");
    let reply = socket.read().expect("a reply").into_text().expect("text");
    let reply: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
    reply["result"]["sessions"].as_u64().expect("a number") as usize
}

/// Sequential pings; `hello` says that a first frame comes unasked.
pub fn pings(process: &Process, count: usize, hello: bool) -> Figures {
    let mut socket = connect(process);
    if hello {
        socket.read().expect("hello");
    }
    let mut latencies = Vec::with_capacity(count);
    let before = process.cpu_us();
    for _ in 0..count {
        let begin = Instant::now();
        socket.send(Message::text(r#"{"id":"1","method":"ping"}"#)).expect("it takes frames");
        socket.read().expect("pong");
        latencies.push(begin.elapsed().as_nanos() as f64 / 1e3);
    }
    figures(count, count, process.cpu_us() - before, latencies)
}

/// Streams at once, each of a client and a session of its own.
pub fn streams(process: &Process, count: usize, tokens: usize, hello: bool) -> Figures {
    let before = process.cpu_us();
    let clients: Vec<_> = (0..count)
        .map(|n| {
            let mut socket = connect(process);
            std::thread::spawn(move || {
                if hello {
                    socket.read().expect("hello");
                }
                let prompt = format!(
                    r#"{{"id":"1","method":"chat.send","params":{{"channel":"bench","account":"a{n}-{}","content":"go"}}}}"#,
                    clock_us()
                );
                socket.send(Message::text(prompt)).expect("it takes frames");
                take(&mut socket)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    let mut frames = 0;
    for client in clients {
        let (taken, came) = client.join().expect("a client");
        latencies.extend(taken);
        frames += came;
    }
    // The relay cuts tokens in two where a read ends; the daemon must not.
    assert!(!hello || latencies.len() == count * tokens, "every token arrived once");
    figures(latencies.len(), frames, process.cpu_us() - before, latencies)
}

/// Takes frames until the end of the answer; gives how old each token was, and how many frames came.
fn take(socket: &mut WebSocket<TcpStream>) -> (Vec<f64>, usize) {
    let (mut latencies, mut frames) = (Vec::new(), 0);
    loop {
        let Ok(message) = socket.read() else { return (latencies, frames) };
        let Message::Text(text) = message else { continue };
        frames += 1;
        note_tokens(&text, &mut latencies);
        assert!(!text.contains("\"error\""), "a stream failed: {text}");
        if text.contains("\"done\"") || text.contains("[DONE]") {
            return (latencies, frames);
        }
    }
}

/// Notes how old each token in this frame is, in microseconds.
pub fn note_tokens(text: &str, latencies_us: &mut Vec<f64>) {
    let now = clock_us();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('<') {
        let Some((sent, after)) = after.split_once('>') else { break };
        if let Ok(sent) = sent.parse::<u64>() {
            latencies_us.push((now - sent) as f64);
        }
        rest = after;
    }
}
