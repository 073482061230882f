//! Servers of one's own, each in a folder of its own, on loopback.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clawmux_actors::cluster::engine::EngineSettings;
use tempfile::TempDir;

/// How long anything may take that is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks at the same.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// What a server needs in its jetstream section to sync what it acknowledges.
pub(super) const SYNCS: &str = ", sync_interval: always";

/// A server; killed when dropped.
pub(super) struct Server {
    child: Option<Child>,
    port: u16,
    monitor: u16,
    /// What it is called in its cluster.
    pub(super) name: String,
    folder: TempDir,
}

/// The program; none where it is missing, which fails with `CI` set.
fn program() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nats/bin/nats-server");
    if program.is_file() {
        return Some(program);
    }
    let is_ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    assert!(!is_ci, "needs nats-server: .ci/run says how it is installed");
    // Past the harness, which catches what `eprintln!` writes.
    let _ = writeln!(std::io::stderr(), "SKIPPED cluster_engine: needs nats-server");
    None
}

/// So many ports that were free a moment ago.
pub(super) fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    let listeners = [(); COUNT].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Tries it a few times: another test may have taken a port meanwhile.
fn tried<T>(start: impl Fn() -> Option<T>) -> T {
    (0..5).find_map(|_| start()).expect("nats-server starts")
}

impl Server {
    /// One, with this in its jetstream section.
    pub(super) fn start(jetstream: &str) -> Option<Self> {
        Self::with(&format!("jetstream: {{ store_dir: \"STORE\"{jetstream} }}"))
    }

    /// One with this configuration, in which STORE stands for a folder of its own.
    pub(super) fn with(config: &str) -> Option<Self> {
        let program = program()?;
        Some(tried(|| Self::try_with(config, &program)))
    }

    /// So many of them that are one.
    pub(super) fn cluster<const COUNT: usize>() -> Option<[Self; COUNT]> {
        let program = program()?;
        let start = || {
            let routes = free_ports::<COUNT>();
            let list = routes.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
            let one = |port: u16| {
                let config = format!(
                    "server_name: n{port}\njetstream: {{ store_dir: \"STORE\"{SYNCS} }}\n\
                     cluster: {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{list}] }}"
                );
                let mut server = Self::try_with(&config, &program)?;
                server.name = format!("n{port}");
                Some(server)
            };
            let all: Option<Vec<Self>> = routes.into_iter().map(one).collect();
            all?.try_into().ok()
        };
        Some(tried(start))
    }

    fn try_with(config: &str, program: &Path) -> Option<Self> {
        let [port, monitor] = free_ports();
        let folder = tempfile::tempdir().unwrap();
        let config = config.replace("STORE", &folder.path().join("store").display().to_string());
        let all = format!("listen: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n{config}\n");
        std::fs::write(folder.path().join("conf"), all).unwrap();
        let mut server = Self { child: None, port, monitor, name: String::new(), folder };
        server.is_up(program).then_some(server)
    }

    /// Starts it; false where it ended at once.
    fn is_up(&mut self, program: &Path) -> bool {
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(self.folder.path().join("conf")).stdout(Stdio::null()).stderr(log);
        let child = self.child.insert(command.spawn().unwrap());
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < PATIENCE, "nats-server is not ready");
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        child.try_wait().unwrap().is_none()
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGSTOP.
    pub(super) fn halt(&self) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    }

    /// Starts it on its port and its folder again, away from the runtime.
    pub(super) async fn start_again(self) -> Self {
        let mut server = self;
        let started = tokio::task::spawn_blocking(move || {
            assert!(server.is_up(&program().unwrap()), "nats-server starts again");
            server
        });
        started.await.unwrap()
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn settings(&self) -> EngineSettings {
        settings(std::slice::from_ref(self))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What an engine needs for these servers.
pub(super) fn settings(servers: &[Server]) -> EngineSettings {
    EngineSettings {
        name: "test".to_owned(),
        servers: servers.iter().map(Server::url).collect(),
        replicas: servers.len(),
        monitor: servers.iter().map(|server| format!("http://127.0.0.1:{}", server.monitor)).collect(),
        ..EngineSettings::default()
    }
}
