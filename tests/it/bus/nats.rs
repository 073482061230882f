//! A NATS server of one's own, with JetStream in a temporary folder, and what an adapter does with it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};
use futures::StreamExt as _;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::running::{Running, bounded};
use crate::support::tools;
use crate::support::{TIMEOUT, eventually};

/// A server; killed when dropped.
pub struct Server {
    child: Option<Running>,
    /// Where clients connect to.
    pub port: u16,
    folder: tempfile::TempDir,
    config: String,
    route: u16,
    run: Run,
}

/// The command that runs the program, which may leave something in the server's folder.
pub type Run = fn(program: &Path, folder: &Path) -> Command;

fn plainly(program: &Path, _: &Path) -> Command {
    Command::new(program)
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// With JetStream.
    pub fn start() -> Self {
        Self::with("jetstream: { store_dir: \"STORE\", max_mem: 64M, max_file: 2G }\n")
    }

    /// With this configuration, in which STORE stands for a folder of its own.
    pub fn with(config: &str) -> Self {
        // Another test may have taken the port meanwhile.
        for _ in 0..5 {
            let mut server = Self {
                child: None,
                port: free_port(),
                folder: tempfile::tempdir().unwrap(),
                config: config.to_owned(),
                run: plainly,
                route: 0,
            };
            if server.try_start() {
                return server;
            }
        }
        panic!("nats-server does not start");
    }

    /// Three of them that are one.
    pub fn cluster() -> [Self; 3] {
        Self::three("", |_| String::new(), plainly)
    }

    /// The same, which sync what they acknowledge; and the addresses of their monitoring.
    #[allow(dead_code, reason = "the benchmark's")]
    pub fn syncing_cluster() -> ([Self; 3], [String; 3]) {
        Self::cluster_run_by(plainly, true)
    }

    /// The same, run like this, whether they sync or not.
    pub fn cluster_run_by(run: Run, syncs: bool) -> ([Self; 3], [String; 3]) {
        let monitors = [free_port(), free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let jetstream = if syncs { ", sync_interval: always" } else { "" };
        let servers = Self::three(jetstream, |place| format!("http: {:?}\n", monitors[place]), run);
        (servers, monitors.map(|monitor| format!("http://{monitor}")))
    }

    fn three(jetstream: &str, more: impl Fn(usize) -> String, run: Run) -> [Self; 3] {
        let routes = [free_port(), free_port(), free_port()];
        let list = routes.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
        let mut places = 0..;
        let mut servers = routes.map(|port| {
            let more = places.next().map(&more).unwrap_or_default();
            let config = format!(
                "jetstream: {{ store_dir: \"STORE\", max_mem: 64M, max_file: 2G{jetstream} }}\n{more}server_name: n{port}\n\
                 cluster: {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{list}] }}\n"
            );
            Self { child: None, port: free_port(), folder: tempfile::tempdir().unwrap(), config, route: port, run }
        });
        for server in &mut servers {
            assert!(server.try_start(), "nats-server does not start:\n{}", server.log());
        }
        servers
    }

    fn try_start(&mut self) -> bool {
        let store = self.folder.path().join("store");
        let file = self.folder.path().join("nats.conf");
        let config = self.config.replace("STORE", &store.display().to_string());
        let log = self.folder.path().join("log");
        let all = format!(
            "listen: \"127.0.0.1:{}\"\nlog_file: {:?}\n{config}",
            self.port,
            log.display().to_string()
        );
        std::fs::write(&file, all).unwrap();
        let program = tools::nats_server().expect("it is asked for by needs!");
        let mut command = (self.run)(&program, self.folder.path());
        command.arg("-c").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Running::start(bounded(&mut command));
        let is_up = eventually("nats-server to listen or to end", || {
            let is_over = child.try_wait().unwrap().is_some();
            let is_up = std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            (is_over || is_up).then_some(is_up && !is_over)
        });
        self.child = Some(child);
        is_up
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its process id.
    #[allow(dead_code, reason = "the benchmark's")]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// The port by which it knows the others; its name is n and this.
    pub fn route(&self) -> u16 {
        self.route
    }

    /// Publishes with headers as they are, which no client would send.
    pub fn publish_raw(&self, subject: &str, headers: &[u8], payload: &[u8]) {
        use std::io::{BufRead as _, BufReader, Write as _};
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut said = BufReader::new(socket.try_clone().unwrap()).lines();
        said.next().unwrap().unwrap();
        let (all, before) = (headers.len() + payload.len(), headers.len());
        let mut sent = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
        sent.extend(format!("HPUB {subject} {before} {all}\r\n").into_bytes());
        sent.extend([headers, payload, b"\r\nPING\r\n"].concat());
        socket.write_all(&sent).unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "PONG");
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.put_down();
        }
    }

    /// Starts it on the same port and the same folder.
    pub fn start_again(&mut self) {
        assert!(
            self.child.is_none() && self.try_start(),
            "nats-server does not start again:\n{}",
            self.log()
        );
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The folder for files of the test.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

/// An adapter: publishes what people say, and collects answers.
pub struct Adapter {
    runtime: Runtime,
    /// The client.
    pub client: async_nats::Client,
    /// Its JetStream.
    pub js: Context,
}

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its id.
    pub id: String,
    /// The id of the message that it answers.
    pub to: String,
    /// The subject it came on.
    pub subject: String,
    /// What it says.
    pub body: Value,
}

impl Adapter {
    /// Connected to one of these.
    pub fn new(urls: &[String]) -> Self {
        Self::with(urls, async_nats::ConnectOptions::new())
    }

    /// The same, with these options.
    pub fn with(urls: &[String], options: async_nats::ConnectOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let servers: Vec<async_nats::ServerAddr> = urls.iter().map(|url| url.parse().unwrap()).collect();
        let options = options.retry_on_initial_connect().request_timeout(Some(Duration::from_secs(5)));
        let client = runtime.block_on(async_nats::connect_with_options(servers, options)).unwrap();
        let js = {
            let _inside = runtime.enter();
            jetstream::new(client.clone())
        };
        Self { runtime, client, js }
    }

    /// Waits for this.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(TIMEOUT * 5, future).await };
        self.runtime.block_on(bounded).expect("it takes no longer than five minutes")
    }

    /// Waits until the daemon has made the streams.
    pub fn await_streams(&self) {
        eventually("the streams", || self.wait(self.js.get_stream("EXOCLAW_DLQ")).is_ok());
    }

    /// Publishes a message under an id, again and again until it is in the stream.
    pub fn say(&self, subject: &str, id: &str, payload: &str) {
        self.say_with(subject, payload, &[("Nats-Msg-Id", id)]);
    }

    /// The same, with these headers.
    pub fn say_with(&self, subject: &str, payload: &str, headers: &[(&str, &str)]) {
        self.wait(async {
            loop {
                let mut map = HeaderMap::new();
                for (name, value) in headers {
                    map.insert(*name, *value);
                }
                let message = PublishMessage::build().payload(payload.to_owned().into()).headers(map);
                let sent = async {
                    self.js.send_publish(subject.to_owned(), message).await?.await?;
                    Ok::<(), async_nats::jetstream::context::PublishError>(())
                };
                match sent.await {
                    Ok(()) => return,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
    }

    /// How many messages a stream has.
    pub fn count(&self, stream: &str) -> u64 {
        self.wait(async {
            self.js.get_stream(stream).await.unwrap().get_info().await.unwrap().state.messages
        })
    }

    /// All answers that are in the stream, in order, as they are there.
    pub fn answers(&self) -> Vec<Answer> {
        self.wait(async {
            let Ok(stream) = self.js.get_stream("EXOCLAW_OUT").await else { return Vec::new() };
            let count = stream.get_info().await.map_or(0, |info| info.state.messages);
            let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
            let Ok(consumer) = stream.create_consumer(config).await else { return Vec::new() };
            let mut answers = Vec::new();
            while answers.len() < usize::try_from(count).unwrap() {
                let batch = consumer.fetch().max_messages(1000).messages().await;
                let Ok(mut batch) = batch else { break };
                let before = answers.len();
                while let Some(Ok(message)) = batch.next().await {
                    let header = |name: &str| {
                        let headers = message.headers.as_ref();
                        headers
                            .and_then(|all| all.get(name))
                            .map(|value| value.to_string())
                            .unwrap_or_default()
                    };
                    answers.push(Answer {
                        id: header("Nats-Msg-Id"),
                        to: header("Clawmux-In-Reply-To"),
                        subject: message.subject.to_string(),
                        body: serde_json::from_slice(&message.payload).unwrap_or_else(|_| {
                            String::from_utf8_lossy(&message.payload).into_owned().into()
                        }),
                    });
                }
                if answers.len() == before {
                    break;
                }
            }
            answers
        })
    }

    /// Waits for the answer to this message; of several, the last that is not that it waits.
    pub fn answer_to(&self, id: &str) -> Answer {
        let is_it = |answer: &Answer| answer.to == id && answer.body["status"] != "waiting";
        eventually(&format!("the answer to {id}"), || self.answers().into_iter().rfind(is_it))
    }
}
