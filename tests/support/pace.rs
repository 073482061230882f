//! A model provider that says as much as it is asked to, at the pace it is asked to. The time each
//! token was sent at is in its text.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::upstream::{Request, read_request};

/// Runs until it is dropped.
pub struct Pacer {
    address: SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

/// Asks for so many tokens of so many bytes, one per `pace`; 0 = as fast as can be.
pub fn ask(tokens: usize, pace: Duration, bytes: usize) -> String {
    format!("say {tokens} {} {bytes}", pace.as_micros())
}

/// How old the tokens in this text are.
pub fn ages(text: &str) -> Vec<Duration> {
    let now = clock_us();
    let sent = |piece: &str| piece.split_once('>').and_then(|(sent, _)| sent.parse::<u64>().ok());
    text.split('<').filter_map(sent).map(|sent| Duration::from_micros(now.saturating_sub(sent))).collect()
}

/// How many tokens there are in this text.
pub fn tokens(text: &str) -> usize {
    text.matches('<').count()
}

/// Microseconds since the first call.
fn clock_us() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

impl Pacer {
    pub fn start() -> Self {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                ready.send(listener.local_addr().expect("an address")).expect("it is waited for");
                let accept = async {
                    while let Ok((socket, _)) = listener.accept().await {
                        tokio::spawn(serve(socket));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        let address = started.recv().expect("it starts");
        Self { address, thread: Some(thread), stop: Some(stop) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL of the OpenAI format.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the requests of one connection.
async fn serve(mut socket: TcpStream) {
    let _ = socket.set_nodelay(true);
    while let Some(Request { body, .. }) = read_request(&mut socket).await {
        let said = body["messages"].as_array().and_then(|messages| messages.last());
        let said = said.map(|last| last["content"].to_string()).unwrap_or_default();
        // What is remembered or summed up may stand before it.
        let asked = said.trim_matches('"').rsplit_once("say ").map_or("", |(_, asked)| asked);
        let numbers: Vec<u64> = asked.split(' ').map_while(|number| number.parse().ok()).collect();
        let [tokens, pace, bytes] = <[u64; 3]>::try_from(numbers).unwrap_or([1, 0, 8]);
        if answer(&mut socket, tokens, Duration::from_micros(pace), bytes as usize).await.is_err() {
            return;
        }
    }
}

async fn answer(socket: &mut TcpStream, tokens: u64, pace: Duration, bytes: usize) -> std::io::Result<()> {
    socket
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await?;
    let begin = tokio::time::Instant::now();
    for n in 0..tokens {
        if !pace.is_zero() {
            tokio::time::sleep_until(begin + pace * n as u32).await;
        }
        let text = format!("{:.<bytes$}", format!("<{}>", clock_us()));
        let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
        write_event(socket, &json!({"id": "p", "choices": [choice]}).to_string()).await?;
    }
    let choice = json!({"index": 0, "delta": {}, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": tokens});
    write_event(socket, &json!({"choices": [choice], "usage": usage}).to_string()).await?;
    write_event(socket, "[DONE]").await?;
    socket.write_all(b"0\r\n\r\n").await
}

async fn write_event(socket: &mut TcpStream, data: &str) -> std::io::Result<()> {
    let event = format!("data: {data}\n\n");
    socket.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}
