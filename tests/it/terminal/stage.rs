//! A daemon whose model says what it was told, and terminals that chat with it.

use crate::support::daemon::{Daemon, command};
use crate::support::eventually;
use crate::support::terminal::Terminal;
use crate::support::upstream::{Turn, Upstream};

pub struct Stage {
    pub upstream: Upstream,
    pub daemon: Daemon,
}

impl Stage {
    pub fn new() -> Self {
        Self::with("")
    }

    /// With this besides in `gateway.toml`.
    pub fn with(config: &str) -> Self {
        let upstream = Upstream::start();
        let config = format!(
            "[providers.up]\nretries = 0\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_env = \"UP_KEY\"\n\
             [agents.main]\nprovider = \"up\"\nmodel = \"heron-1\"\n{config}",
            upstream.base_url()
        );
        let daemon = Daemon::with_env(&config, &[("UP_KEY", "not-a-secret")]);
        Self { upstream, daemon }
    }

    /// A chat on a terminal of this size, ready for the first key.
    pub fn chat(&self, size: (u16, u16)) -> Terminal {
        self.chat_with(size, &[])
    }

    /// The same with this environment besides.
    pub fn chat_with(&self, size: (u16, u16), env: &[(&str, &str)]) -> Terminal {
        let mut chat = command(self.daemon.home());
        chat.arg("chat").env("TERM", "tmux-256color").env("USER", "ann").envs(env.iter().copied());
        let terminal = Terminal::start(self.daemon.home(), &chat, size);
        terminal.wait("the prompt", |screen| screen.lines().last().is_some_and(|line| line.trim() == ">"));
        terminal
    }

    /// The texts of the prompts that the model got last, the newest last.
    pub fn prompts(&self) -> Vec<String> {
        let requests = self.upstream.requests();
        let Some(last) = requests.last() else { return Vec::new() };
        let messages = last.body["messages"].as_array().unwrap().clone();
        let text = |message: &serde_json::Value| {
            let content = &message["content"];
            content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default().to_owned()
        };
        messages.iter().filter(|message| message["role"] == "user").map(text).collect()
    }

    /// Waits until the model got so many prompts; gives the last.
    pub fn prompted(&self, count: usize) -> String {
        eventually("a prompt to arrive", || {
            let prompts = self.prompts();
            (prompts.len() >= count).then(|| prompts.last().unwrap().clone())
        })
    }

    /// The next answer, told all at once.
    pub fn says(&self, text: &str) -> &Self {
        self.upstream.then(Turn::Say(vec![text.into()]));
        self
    }
}

/// Whether nothing is under way: the last line is an empty prompt, or has this in it.
pub fn is_idle(screen: &str) -> bool {
    screen.lines().last().is_some_and(|line| line.trim() == ">")
}
