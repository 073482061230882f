//! The machines: on each a nats-server and a daemon beside it, all of them one cluster; or one machine with a
//! daemon that is on its own.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::findings::Findings;
use crate::line::{Line, Stop};
use crate::log;
use crate::network::Network;
use crate::program::Program;
use crate::support::daemon::{binary, command_of};
use crate::support::tools;

/// Ports on every machine.
const DAEMON: u16 = 7777;
const MODEL: u16 = 7000;
const NATS: u16 = 4222;
const ROUTES: u16 = 6222;
const MONITOR: u16 = 8222;

/// How long a connection may take, and an answer over HTTP: a machine that stands still accepts and is silent.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether something is so.
const LOOK: Duration = Duration::from_millis(20);

/// How long a program that ended by itself stays down.
const REVIVE_AFTER: Duration = Duration::from_secs(1);

/// All machines.
pub struct Machines {
    /// The wire between them.
    pub network: Rc<Network>,
    machines: Vec<Machine>,
    findings: Rc<Findings>,
    /// How often a daemon ended by itself, with something it can say.
    gave_up: Cell<u32>,
}

/// One machine.
pub struct Machine {
    /// None where its daemon is on its own.
    pub server: Option<Program>,
    pub daemon: Program,
    home: PathBuf,
}

impl Machine {
    /// The home of its daemon.
    pub fn home(&self) -> &Path {
        &self.home
    }
}

impl Machines {
    /// Lays them out in this folder, with this in every configuration; nothing runs yet.
    pub fn new(
        folder: &Path,
        network: Network,
        is_cluster: bool,
        config: &str,
        findings: Rc<Findings>,
    ) -> Self {
        clock::install(folder);
        let network = Rc::new(network);
        let count = network.size();
        let machine = |at: usize| {
            let home = folder.join(format!("home{at}"));
            std::fs::create_dir_all(&home).unwrap();
            let upstream = format!("base_url = \"http://127.0.0.1:{MODEL}\"\n");
            let cluster = if is_cluster { cluster_section(at, count) } else { String::new() };
            let all = format!("{}{cluster}", config.replace("UPSTREAM", &upstream));
            std::fs::write(home.join("gateway.toml"), all).unwrap();
            let logs = folder.join("logs");
            let server = is_cluster.then(|| {
                let file = folder.join(format!("nats{at}.conf"));
                std::fs::write(&file, server_config(at, count, &folder.join(format!("nats{at}")))).unwrap();
                let program = tools::nats_server().expect("it is asked for by needs!");
                let run = move |_| {
                    let mut command = Command::new(&program);
                    command.arg("-c").arg(&file);
                    command
                };
                Program::new(format!("server{at}"), network.clone(), at, logs.clone(), run)
            });
            let (of, clock) = (home.clone(), folder.to_owned());
            let run = move |life| {
                let mut command = command_of(&program_of(life), &of);
                clock::mislead(&mut command, &clock, at, life);
                command.args(["serve", "--listen", &format!("127.0.0.1:{DAEMON}")]);
                command
            };
            let daemon = Program::new(format!("daemon{at}"), network.clone(), at, logs, run);
            Machine { server, daemon, home }
        };
        let machines = (0..count).map(machine).collect();
        Self { network, machines, findings, gave_up: Cell::new(0) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.machines.len()
    }

    /// One of them.
    pub fn of(&self, machine: usize) -> &Machine {
        &self.machines[machine]
    }

    /// What the daemon of one is called.
    pub fn name(&self, machine: usize) -> &str {
        &self.machines[machine].daemon.name
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter()
    }

    /// Starts the servers, makes the cluster, and starts the daemons; until all are ready.
    pub async fn begin(&self) -> Result<(), String> {
        for server in self.all().filter_map(|machine| machine.server.as_ref()) {
            server.start();
        }
        if self.machines[0].server.is_some() {
            self.until("the servers have a leader", async || self.leader().await.is_some()).await?;
            let (code, _, said) = self.run(0, &["cluster", "init"]).await;
            if code != Some(0) {
                return Err(format!("cluster init: {said}"));
            }
        }
        for machine in self.all() {
            machine.daemon.start();
        }
        self.until("all daemons are ready", async || self.are_ready().await).await
    }

    /// Runs a command of the daemon's on a machine: exit code, what it wrote, and what it said about it.
    pub async fn run(&self, machine: usize, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command =
            tokio::process::Command::from(command_of(&program_of(1), &self.machines[machine].home));
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let running = self.network.of(machine).within(|| command.spawn()).unwrap();
        let ended = running.wait_with_output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
    }

    /// A connection of a client to the daemon of a machine.
    pub async fn line(&self, machine: usize) -> Result<Line, Stop> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, DAEMON));
        let open = async {
            let stream = self.connect(machine, DAEMON).await;
            Line::over(stream.map_err(|error| Stop::Lost(error.to_string()))?, address).await
        };
        timeout(ANSWER_MAX, open).await.unwrap_or_else(|_| Err(Stop::Lost("no hello".to_owned())))
    }

    /// Where the model provider of a machine's daemon listens.
    pub fn model_listener(&self, machine: usize) -> TcpListener {
        let bound = self
            .network
            .of(machine)
            .within(|| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, MODEL)))
            .unwrap();
        bound.set_nonblocking(true).unwrap();
        TcpListener::from_std(bound).unwrap()
    }

    /// The database of a machine's daemon.
    pub fn database(&self, machine: usize) -> PathBuf {
        self.machines[machine].home.join("clawmux.db")
    }

    /// The log of the cluster.
    ///
    /// # Errors
    /// Where it can't be read.
    pub fn log(&self) -> Result<Vec<log::Line>, String> {
        let (machine, server) = (self.network.of(0), format!("nats://127.0.0.1:{NATS}"));
        std::thread::scope(|scope| scope.spawn(|| machine.within(|| log::read(&server))).join().unwrap())
    }

    /// Sets the clock of a machine's daemon, so many seconds ahead of the time.
    pub fn set_clock(&self, machine: usize, ahead_s: i64) {
        let folder = self.machines[machine].home.parent().expect("the folder of the trial");
        clock::set(folder, machine, ahead_s);
    }

    /// Whether a daemon says that it is ready.
    pub async fn ready(&self, machine: usize) -> bool {
        self.machines[machine].daemon.is_awake()
            && self.get(machine, DAEMON, "/readyz").await.is_some_and(|(status, _)| status == 200)
    }

    /// Whether all daemons are ready.
    pub async fn are_ready(&self) -> bool {
        for machine in 0..self.count() {
            if !self.ready(machine).await {
                return false;
            }
        }
        true
    }

    /// Which machine's server leads the log, or what has to do with the log's place; none while nobody leads.
    pub async fn leader(&self) -> Option<usize> {
        for machine in 0..self.count() {
            let Some((200, said)) = self.get(machine, MONITOR, "/jsz?accounts=1&streams=1").await else {
                continue;
            };
            let said: Value = serde_json::from_str(&said).ok()?;
            let streams = said["account_details"][0]["stream_detail"].as_array().cloned().unwrap_or_default();
            let log = streams.iter().find(|stream| {
                stream["name"].as_str().is_some_and(|name| name.to_lowercase().ends_with("_log"))
            });
            let leads =
                log.unwrap_or(&said).pointer("/cluster/leader").or(said.pointer("/meta_cluster/leader"));
            let number = leads.and_then(Value::as_str).and_then(|name| name.strip_prefix('n')?.parse().ok());
            if number.is_some() {
                return number;
            }
        }
        None
    }

    /// Waits until something is so.
    ///
    /// # Errors
    /// Where it is not for a minute.
    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) -> Result<(), String> {
        let begin = Instant::now();
        while !holds().await {
            if begin.elapsed() > crate::support::TIMEOUT {
                let said: Vec<String> = self.all().map(|machine| machine.daemon.tail()).collect();
                return Err(format!("waited too long until {what}\n{}", said.join("\n---\n")));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Tells a daemon to stop, and waits until it has.
    ///
    /// # Errors
    /// Where it does not, or fails.
    pub async fn stop(&self, machine: usize) -> Result<(), String> {
        let daemon = &self.machines[machine].daemon;
        daemon.terminate();
        let mut ended = None;
        let stopped = async || {
            ended = daemon.stopped();
            ended.is_some()
        };
        self.until("the daemon has stopped", stopped).await?;
        match ended.is_some_and(|status| status.success()) {
            true => Ok(()),
            false => Err(format!("{} stopped: {ended:?}\n{}", daemon.name, daemon.tail())),
        }
    }

    /// Starts a daemon, and waits until it is ready.
    ///
    /// # Errors
    /// Where it does not get ready.
    pub async fn start(&self, machine: usize) -> Result<(), String> {
        self.machines[machine].daemon.start();
        self.until("the daemon is ready", async || self.ready(machine).await).await
    }

    /// Runs a command of the daemon's on a machine, with `--json`, which must succeed: the objects that it writes.
    ///
    /// # Errors
    /// What it said.
    pub async fn ask(&self, machine: usize, arguments: &[&str]) -> Result<Vec<Value>, String> {
        let (code, written, said) = self.run(machine, &[arguments, &["--json"]].concat()).await;
        let read: Result<Vec<Value>, _> = written.lines().map(serde_json::from_str).collect();
        let read = read.ok().filter(|_| code == Some(0));
        read.ok_or_else(|| format!("{arguments:?} on machine {machine}: {code:?}: {written}{said}"))
    }

    /// Notes down beside its home what the actors of a daemon do, for whoever looks into a failure.
    pub async fn note_actors(&self, machine: usize) {
        let tree = self.ask(machine, &["actors"]).await;
        let home = self.of(machine).home();
        let name = format!("actors of {}.json", home.file_name().unwrap_or_default().to_string_lossy());
        let written = tree.map(|tree| format!("{tree:#?}")).unwrap_or_else(|why| why);
        let _ = std::fs::write(home.with_file_name(name), written);
    }

    /// Starts again what ended by itself, for ever. A daemon may give up, with a sentence; nothing may crash.
    pub async fn revive(&self) {
        loop {
            for machine in self.all() {
                for program in machine.server.iter().chain([&machine.daemon]) {
                    let Some(status) = program.gave_up() else { continue };
                    let said = program.tail();
                    if status.code() != Some(1) || said.contains("panicked") {
                        self.findings.wrong(format!("{} ended: {status}\n{said}", program.name));
                    }
                    self.gave_up.set(self.gave_up.get() + 1);
                    println!("{} gave up: {}", program.name, said.lines().last().unwrap_or_default());
                    sleep(REVIVE_AFTER).await;
                    program.start();
                }
            }
            sleep(LOOK).await;
        }
    }

    /// How often something ended by itself.
    pub fn gave_up(&self) -> u32 {
        self.gave_up.get()
    }

    /// What each daemon said, in each of its lives, numbered through.
    pub fn daemon_logs(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        (0..).zip(self.all().flat_map(|machine| machine.daemon.logs()))
    }

    /// SIGKILL for all daemons and then all servers.
    pub fn kill_all(&self) {
        for machine in self.all() {
            machine.daemon.freeze();
        }
        for machine in self.all() {
            machine.daemon.kill();
        }
        for server in self.all().filter_map(|machine| machine.server.as_ref()) {
            server.kill();
        }
    }

    async fn connect(&self, machine: usize, port: u16) -> std::io::Result<TcpStream> {
        let socket = self.network.of(machine).within(TcpSocket::new_v4)?;
        socket.connect((Ipv4Addr::LOCALHOST, port).into()).await
    }

    /// A GET over plain HTTP: status and body.
    async fn get(&self, machine: usize, port: u16, path: &str) -> Option<(u16, String)> {
        let get = async {
            let mut socket = self.connect(machine, port).await.ok()?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
            socket.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.ok()?;
            let status = answer.split(' ').nth(1)?.parse().ok()?;
            Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
        };
        timeout(ANSWER_MAX, get).await.ok()?
    }
}

/// The program of a life of a daemon's.
fn program_of(life: u32) -> PathBuf {
    let old = std::env::var_os("CLAWMUX_CLUSTER_OLD_BIN").filter(|_| life == 1);
    old.map_or_else(binary, PathBuf::from)
}

fn server_config(machine: usize, count: usize, store: &Path) -> String {
    let own = Network::address(machine);
    let routes: Vec<String> =
        (0..count).map(|other| format!("nats://{}:{ROUTES}", Network::address(other))).collect();
    format!(
        "server_name: n{machine}\nlisten: \"0.0.0.0:{NATS}\"\nhttp: \"0.0.0.0:{MONITOR}\"\n\
         jetstream {{ store_dir: {store:?}, sync_interval: always, max_mem: 64M, max_file: 4G }}\n\
         cluster {{ name: c, listen: \"{own}:{ROUTES}\", routes: [{}] }}\n",
        routes.join(", ")
    )
}

/// The daemon's own server is the first.
fn cluster_section(machine: usize, count: usize) -> String {
    let others = (1..count).map(|step| Network::address((machine + step) % count).to_string());
    let hosts: Vec<String> = std::iter::once("127.0.0.1".to_owned()).chain(others).collect();
    let of = |scheme: &str, port: u16| -> Vec<String> {
        hosts.iter().map(|host| format!("{scheme}://{host}:{port}")).collect()
    };
    format!(
        "[cluster]\nnode = \"m{machine}\"\nservers = {:?}\nmonitor = {:?}\n",
        of("nats", NATS),
        of("http", MONITOR)
    )
}
