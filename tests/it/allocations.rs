//! How many allocations a request and a token take. They are counted, not timed, so the numbers hold on any machine;
//! a change that allocates more in the daemon's busiest paths is seen here.
//!
//! Counted in steady state, over batches of which the least counts: what a timer does in between only adds. Each
//! number that is allowed is about a tenth above what was measured when it was written down: lower it with what
//! it measures.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::client::Client;
use crate::support::daemon::{Daemon, home};
use crate::support::tools::missing;
use crate::support::upstream::{Turn, Upstream};
use crate::support::wundr::Wundr;

const BATCHES: usize = 8;
const PINGS: usize = 300;
const TOKENS: usize = 200;

/// Allocations for one, on the average of a batch.
const EXOCLAW_PING: f64 = 11.0;
const WUNDR_PING: f64 = 32.0;
const EXOCLAW_TOKEN: f64 = 38.0;
const WUNDR_TOKEN: f64 = 74.0;

/// A daemon whose allocations are counted.
struct Counted {
    daemon: Daemon,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Counted {
    /// With this configuration; none where they can't be counted.
    fn start(config: &str) -> Option<Self> {
        let folder = home();
        let library = folder.path().join("allocations.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/allocations.rs");
        let compiled = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-o"])
            .args([&library, &source])
            .output()
            .expect("the Rust compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let file = folder.path().join("counted");
        std::fs::write(&file, [0; 16]).unwrap();
        let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let env = [("LD_PRELOAD", &*path(&library)), ("CLAWMUX_ALLOCATIONS", &*path(&file))];
        let counted = Self { daemon: Daemon::with_env(config, &env), file, _folder: folder };
        if counted.so_far() == 0 {
            missing("a daemon that allocates with glibc", "build it for a target whose name ends in -gnu");
            return None;
        }
        Some(counted)
    }

    /// Allocations since it was started.
    fn so_far(&self) -> u64 {
        let counted = std::fs::read(&self.file).unwrap();
        u64::from_ne_bytes(counted[..8].try_into().unwrap())
    }

    /// What one of so many takes, in the batch that took the least; the first warms up.
    fn of_each(&self, count: usize, mut once: impl FnMut()) -> f64 {
        let batch = |_| {
            let before = self.so_far();
            (0..count).for_each(|_| once());
            (self.so_far() - before) as f64 / count as f64
        };
        (0..=BATCHES).map(batch).skip(1).fold(f64::INFINITY, f64::min)
    }
}

fn no_more(what: &str, measured: f64, allowed: f64) {
    println!("{what}: {measured:.2} allocations");
    assert!(
        measured <= allowed,
        "{what} takes {measured:.2} allocations, and {allowed} are allowed: find out which are new, or say why they \
         have to be and raise the number"
    );
}

#[test]
fn a_ping_allocates_little() {
    let Some(counted) = Counted::start("[limits]\nrequests_burst = 0\n") else { return };
    let address = counted.daemon.address;
    let mut exoclaw = Client::connect(address);
    let ping = counted.of_each(PINGS, || {
        exoclaw.send_text(r#"{"id":"1","method":"ping"}"#);
        exoclaw.receive();
    });
    let mut wundr = Wundr::connect(address);
    let health = counted.of_each(PINGS, || {
        wundr.call("health.ping", json!({"clientTimestamp": 1}));
    });
    no_more("a ping of exoclaw's protocol", ping, EXOCLAW_PING);
    no_more("a ping of Wundr's protocol", health, WUNDR_PING);
}

#[test]
fn a_token_allocates_little() {
    let model = Upstream::start();
    let config = format!(
        "[providers.test]\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"test\"\n\
         model = \"test\"\ntools = []\n[limits]\nrequests_burst = 0\n",
        model.base_url()
    );
    let Some(counted) = Counted::start(&config) else { return };
    let address = counted.daemon.address;
    let pieces = || vec!["token ".to_owned(); TOKENS * (BATCHES + 1)];
    // Each token is said once the one before it has come.
    model.then(Turn::Slowly(pieces()));
    let mut exoclaw = Client::connect(address);
    exoclaw.prompt("ada", "go");
    let told = counted.of_each(TOKENS, || {
        model.go_on(1);
        exoclaw.find(|frame| frame["event"] == "text");
    });
    model.then(Turn::Slowly(pieces()));
    let mut wundr = Wundr::connect(address);
    let task = json!({"type": "general", "description": "counted"});
    let session = wundr.call(
        "session.create",
        json!({"orchestratorId": "main", "sessionType": "claude-code", "task": task}),
    );
    wundr.call("prompt.submit", json!({"sessionId": session["id"], "prompt": "go"}));
    let streamed = counted.of_each(TOKENS, || {
        model.go_on(1);
        wundr.event("stream.chunk");
    });
    no_more("a token in exoclaw's protocol", told, EXOCLAW_TOKEN);
    no_more("a token in Wundr's protocol", streamed, WUNDR_TOKEN);
}
