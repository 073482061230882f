//! A real nats-server with JetStream, on loopback, that syncs what it acknowledges.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long it may take to be ready.
const READY_MAX: Duration = Duration::from_secs(30);

/// A server, ended with this.
pub(crate) struct NatsServer {
    folder: TempDir,
    port: u16,
    monitor: u16,
    child: Child,
}

/// The program; none where it is not there, which is a failure in CI.
fn program() -> Option<PathBuf> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/nats/bin/nats-server");
    let program = PathBuf::from(program);
    if !program.exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "{} is missing: .ci/run has how it is installed",
            program.display()
        );
        return None;
    }
    Some(program)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl NatsServer {
    /// Starts one with a store of its own; none where there is no such program.
    pub(crate) fn start() -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().unwrap();
        let (port, monitor) = (free_port(), free_port());
        let config = format!(
            "listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n\
             jetstream {{ store_dir: {:?}, sync_interval: always }}\n",
            folder.path().join("store")
        );
        std::fs::write(folder.path().join("server.conf"), config).unwrap();
        let child = run(&program, &folder);
        let server = Self { folder, port, monitor, child };
        server.wait();
        Some(server)
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Where it says how it is.
    pub(crate) fn monitor(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor)
    }

    /// Ends it as a power cut of the program alone does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again with what it has, and does not wait for it.
    pub(crate) fn run(&mut self) {
        self.child = run(&program().unwrap(), &self.folder);
    }

    fn wait(&self) {
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < READY_MAX, "nats-server is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn run(program: &PathBuf, folder: &TempDir) -> Child {
    let log = std::fs::File::create(folder.path().join("server.log")).unwrap();
    Command::new(program)
        .arg("-c")
        .arg(folder.path().join("server.conf"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
