//! What a client is put on: a gateway whose model says what the test wants, and a home where the
//! client finds that gateway as its own.
//!
//! With `CLAWMUX_TEST_THEIRS=1` the gateway is the one that the client was made for, so that one sees
//! whether something that fails is the test's, the client's or ours.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::npm::Generation;
use crate::support::daemon::Daemon;
use crate::support::upstream::{Turn, Upstream};
use crate::theirs::Theirs;

/// The shared token, where one is configured.
pub const TOKEN: &str = "a-token-of-the-tests-1c9e";

/// Whether the daemon asks for a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// It does, and the client has it.
    Token,
    /// None is configured.
    Open,
}

/// A gateway, its model, and the client's home.
pub struct Stage {
    pub generation: Generation,
    pub auth: Auth,
    pub upstream: Upstream,
    pub home: tempfile::TempDir,
    gateway: Option<Gateway>,
}

enum Gateway {
    Ours(Daemon),
    Theirs(Theirs),
}

impl Stage {
    /// One whose agent is on a model that the test speaks for.
    pub fn new(generation: Generation, auth: Auth) -> Self {
        let upstream = Upstream::start();
        let url = upstream.base_url();
        let agent = format!(
            "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{url}\"\napi_key_env = \"UP_KEY\"\n\
             [agents.main]\nprovider = \"up\"\nmodel = \"test-model\"\n"
        );
        Self::with(generation, auth, upstream, &agent)
    }

    /// One whose agent is on the built-in model.
    pub fn offline(generation: Generation, auth: Auth) -> Self {
        Self::with(generation, auth, Upstream::start(), "")
    }

    fn with(generation: Generation, auth: Auth, upstream: Upstream, agent: &str) -> Self {
        let gateway = if std::env::var_os("CLAWMUX_TEST_THEIRS").is_some() {
            Gateway::Theirs(Theirs::start(generation, &upstream.base_url(), TOKEN))
        } else {
            let ui = generation.control_ui();
            let config = format!("{agent}[openclaw]\ncontrol_ui = {:?}\n", ui.to_str().expect("a path"));
            let token = (auth == Auth::Token).then_some(("CLAWMUX_TOKEN", TOKEN));
            let env: Vec<_> = token.into_iter().chain([("UP_KEY", "none")]).collect();
            Gateway::Ours(Daemon::with_env(&config, &env))
        };
        let home = tempfile::Builder::new().prefix("clawmux-client-").tempdir().expect("a folder");
        let stage = Self { generation, auth, upstream, home, gateway: Some(gateway) };
        let file = generation.configuration(stage.home.path());
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("the client's folder");
        let auth = match stage.token() {
            Some(token) => json!({"mode": "token", "token": token}),
            None if generation == Generation::OpenClaw => json!({"mode": "none"}),
            None => json!({}),
        };
        let gateway =
            json!({"mode": "local", "port": stage.address().port(), "bind": "loopback", "auth": auth});
        let config =
            json!({"gateway": gateway, "update": {"checkOnStart": false}, "plugins": {"enabled": false}});
        std::fs::write(file, config.to_string()).expect("the client's configuration");
        stage
    }

    /// The token the client has.
    pub fn token(&self) -> Option<&'static str> {
        let theirs = matches!(self.gateway, Some(Gateway::Theirs(_)));
        (self.auth == Auth::Token || theirs).then_some(TOKEN)
    }

    /// Where the gateway listens.
    pub fn address(&self) -> SocketAddr {
        match self.gateway.as_ref() {
            Some(Gateway::Ours(daemon)) => daemon.address,
            Some(Gateway::Theirs(theirs)) => theirs.address,
            None => unreachable!("it is put back"),
        }
    }

    /// The daemon, where it is ours.
    pub fn daemon(&self) -> Option<&Daemon> {
        match self.gateway.as_ref() {
            Some(Gateway::Ours(daemon)) => Some(daemon),
            _ => None,
        }
    }

    /// Kills the daemon and starts it again where it was; not where it is theirs, which forgets.
    pub fn crash(&mut self) {
        self.gateway = match self.gateway.take() {
            Some(Gateway::Ours(daemon)) => Some(Gateway::Ours(daemon.kill_and_return())),
            other => other,
        };
    }

    /// The model will say these pieces.
    pub fn will_say(&self, pieces: &[&str]) {
        self.upstream.then(says(pieces));
    }

    /// The model will say this, then nothing more.
    pub fn will_hang_after(&self, text: &str) {
        self.upstream.then(Turn::HangBody(text.to_owned()));
    }

    /// A program of the client's package, or for it, on its Node.
    pub fn node(&self, program: &Path) -> Command {
        self.generation.command(self.home.path(), program)
    }

    /// The client's command.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.node(&self.generation.entry());
        command.args(args);
        command
    }
}

/// A model that says these pieces.
pub fn says(pieces: &[&str]) -> Turn {
    Turn::Say(pieces.iter().map(ToString::to_string).collect())
}
