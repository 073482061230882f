//! The gateways that the clients were made for, as a user runs them: to measure against, and to see
//! what a client shows there.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;

use super::npm::Generation;

/// They take their time.
const START: Duration = Duration::from_secs(120);

/// One of them, on loopback; killed when dropped.
pub struct Theirs {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    _home: tempfile::TempDir,
}

impl Theirs {
    /// With its model at this base URL, in the OpenAI format, and this shared token.
    pub fn start(generation: Generation, base_url: &str, token: &str) -> Self {
        let home = tempfile::Builder::new().prefix("clawmux-theirs-").tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let file = generation.configuration(home.path());
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let config = configuration(generation, home.path(), address, base_url, token);
        std::fs::write(&file, config.to_string()).unwrap();
        let log = std::fs::File::create(home.path().join("gateway.log")).unwrap();
        let mut child = generation
            .command(home.path(), &generation.entry())
            .args(["gateway", "--port", &address.port().to_string()])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        let begin = Instant::now();
        // It takes connections before it answers them.
        let ready = || {
            let is_ready = generation != Generation::OpenClaw || log_of(home.path()).contains("ready\n");
            is_ready && TcpStream::connect(address).is_ok()
        };
        while !ready() {
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none() && begin.elapsed() < START,
                "{generation:?} does not start ({ended:?}):\n{}",
                log_of(home.path())
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { child, address, _home: home }
    }

    /// Its process.
    #[allow(dead_code, reason = "the benchmark asks for it")]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn log_of(home: &Path) -> String {
    std::fs::read_to_string(home.join("gateway.log")).unwrap_or_default()
}

fn configuration(
    generation: Generation,
    home: &Path,
    address: SocketAddr,
    base_url: &str,
    token: &str,
) -> serde_json::Value {
    let cost = json!({"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0});
    let model = json!({"id": "test-model", "name": "Test", "reasoning": false, "input": ["text"], "cost": cost,
        "contextWindow": 128_000, "maxTokens": 4096});
    let provider =
        json!({"baseUrl": base_url, "apiKey": "none", "api": "openai-completions", "models": [model]});
    let mut config = json!({
        "gateway": {"mode": "local", "port": address.port(), "bind": "loopback",
            "auth": {"mode": "token", "token": token}, "controlUi": {"enabled": true}},
        "models": {"mode": "replace", "providers": {"up": provider}},
        "agents": {"defaults": {"model": {"primary": "up/test-model"}, "workspace": home.join("workspace"),
            "skipBootstrap": true, "heartbeat": {"every": "0m"}, "maxConcurrent": 16}},
        "update": {"checkOnStart": false},
        "browser": {"enabled": false},
        "plugins": {"enabled": false},
        "commands": {"native": false},
    });
    match generation {
        Generation::Clawdbot => config["canvasHost"] = json!({"enabled": false}),
        Generation::OpenClaw => config["gateway"]["controlUi"]["allowedOrigins"] = json!(["*"]),
    }
    config
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // And what it has started.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.child.wait();
    }
}
