//! llama.cpp's server from PyPI, with a model made for tests, driven through both formats that it speaks: it thinks
//! and calls tools, is cut where it may say no more, is left while it talks, and refuses what is too long for its
//! context and tools where it was started without templates.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::pypi;
use crate::support::client::Client;
use crate::support::daemon::{self, Daemon, address_in};
use crate::support::running::{Running, bounded};
use crate::support::tools::needs;
use crate::support::{TIMEOUT, eventually};

/// What is installed from PyPI.
const PACKAGES: &str = "xllamacpp==2026.10.11549 gguf==0.19.0";

const KINDS: [&str; 2] = ["anthropic", "openai"];

/// A running server; killed when dropped.
struct Server {
    _process: Running,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Server {
    /// With a context of so many tokens, and with the templates that calling tools takes, or without.
    fn start(context: u32, templates: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("clawmux-llama-").tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/llama_cpp.py");
        let mut command = Command::new(pypi::with(PACKAGES));
        command.arg(script).arg(folder.path().join("heron.gguf")).arg(context.to_string()).arg(templates);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut process = Running::start(bounded(&mut command).stdout(Stdio::piped()).stderr(log));
        let said = process.stdout_lines().recv_timeout(TIMEOUT);
        let address = said.as_deref().ok().and_then(address_in).unwrap_or_else(|| {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            panic!("the server did not get ready: {said:?}\n{log}")
        });
        Self { _process: process, address, _folder: folder }
    }

    /// A daemon whose agent has this server's model and these lines, asked in this format.
    fn asked_by(&self, kind: &str, agent: &str) -> (Daemon, Client) {
        let config = format!(
            "[providers.home]\nkind = \"{kind}\"\nbase_url = \"http://{}/v1\"\n\
             [agents.main]\nprovider = \"home\"\nmodel = \"heron\"\n{agent}",
            self.address
        );
        let home = daemon::home();
        std::fs::write(home.path().join("SOUL.md"), "You are a heron.").unwrap();
        Daemon::at(home, &config, &[]).and(Client::connect)
    }

    /// Whether it is at work for somebody.
    fn is_busy(&self) -> bool {
        let (status, slots) = daemon::get(self.address, "/slots");
        let slots: Value =
            serde_json::from_str(&slots).unwrap_or_else(|why| panic!("{status}: {why}: {slots}"));
        slots[0]["is_processing"].as_bool().unwrap_or_else(|| panic!("{slots}"))
    }
}

#[test]
fn a_real_server_thinks_calls_tools_and_is_cut_and_left() {
    needs!("clients", "venv");
    let server = Server::start(4096, "jinja");
    for kind in KINDS {
        let (daemon, mut client) = server.asked_by(kind, "tools = [\"clock\"]\nmax_tokens = 1000000\n");
        let answer = client.chat("ada", "what time is it?");
        assert_eq!(
            answer.events(),
            ["text", "tool_use", "tool_result", "text", "usage", "done"],
            "{kind}: {answer:?}"
        );
        assert_eq!(answer.text(), "Let me look.\nIt is late.", "{kind}: {answer:?}");
        let call = answer.data("tool_use").next().unwrap();
        assert_eq!((&call["name"], &call["input"]), (&json!("clock"), &json!({})), "{kind}: {answer:?}");
        let (input, output) = answer.usage();
        assert!(input > 100 && (9..20).contains(&output), "{kind}: as the server counts: {answer:?}");
        let rows = daemon.rows_of(&["session", "show", "main:websocket:ada:main"]);
        let thought: String = rows
            .iter()
            .filter_map(|row| row["text"].as_str().filter(|_| row["event"] == "thought"))
            .collect();
        assert_eq!(thought.trim(), "I see a heron.", "{kind}: {rows:?}");

        // It would never end.
        let id = client.prompt("bob", "gibberish, for ever");
        let first = client.reply(&id);
        assert_eq!(first["event"], "text", "{kind}: {first}");
        eventually("the server to be busy", || server.is_busy());
        assert!(client.abort(&id), "{kind}");
        assert_eq!(client.stream(&id).error(), "aborted", "{kind}");
        eventually("the server to be left", || !server.is_busy());
        drop(daemon);

        let (_daemon, mut client) = server.asked_by(kind, "tools = []\nmax_tokens = 20\n");
        let answer = client.chat("ada", "gibberish, please");
        assert_eq!(answer.error(), "", "{kind}: {answer:?}");
        assert_eq!(
            answer.data("done").next(),
            Some(&json!({ "stop_reason": "length" })),
            "{kind}: {answer:?}"
        );
        assert_eq!(answer.usage().1, 20, "{kind}: {answer:?}");
    }
}

#[test]
fn a_conversation_that_outgrows_a_real_servers_context_goes_on() {
    needs!("clients", "venv");
    const CONTEXT: u32 = 512;
    let server = Server::start(CONTEXT, "jinja");
    for kind in KINDS {
        let (_daemon, mut client) = server.asked_by(kind, "tools = []\nmax_tokens = 40\n");
        let prompt = format!("gibberish about {}", "herons ".repeat(18));
        // Each letter is a token.
        for turn in 0..8 {
            let answer = client.chat("ada", &prompt);
            assert_eq!(answer.error(), "", "{kind}: turn {turn}: {answer:?}");
            assert!(!answer.text().is_empty(), "{kind}: turn {turn}: {answer:?}");
        }
        assert!(8 * prompt.len() > 2 * CONTEXT as usize);
    }
}

#[test]
fn a_real_server_without_templates_is_asked_without_tools() {
    needs!("clients", "venv");
    let server = Server::start(4096, "plain");
    for kind in KINDS {
        let (daemon, mut client) = server.asked_by(kind, "tools = [\"clock\"]\nmax_tokens = 20\n");
        for _ in 0..2 {
            let answer = client.chat("ada", "gibberish, please");
            assert_eq!((answer.error(), answer.text().is_empty()), ("", false), "{kind}: {answer:?}");
        }
        let rows = daemon.rows_of(&["session", "show", "main:websocket:ada:main"]);
        let told = rows.iter().filter(|row| row["event"] == "notice" && row["kind"] == "reduced");
        let told: Vec<&str> = told.filter_map(|row| row["message"].as_str()).collect();
        assert_eq!(told, ["heron can't call tools: it is asked without"], "{kind}");
    }
}
