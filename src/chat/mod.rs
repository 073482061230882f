//! `clawmux chat`: a terminal client of the running daemon.
//!
//! It speaks exoclaw like any other client. Stdout holds the model's answer and nothing else, so
//! that it can be piped; prompts, tool calls and complaints go to stderr. Ctrl-C aborts the run
//! under way, and leaves where none is. The session lives in the daemon: leaving ends nothing but
//! this client.
//!
//! When the connection is lost, the daemon is waited for and the answer goes on where it was.
//!
//! Absent: line editing beyond the terminal's own, history of input.

mod answer;
mod link;
mod screen;

use std::io::{IsTerminal, Read, stdin};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use clawmux_actors::clock;
use clawmux_core::auth::Secret;
use clawmux_core::config::{Log, LogFormat};
use clawmux_core::dialect::exoclaw::client::{self as exoclaw, StreamEvent, Told};
use clawmux_core::ids::{RunId, SessionKey};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use self::answer::{Answer, Show};
use self::link::Link;
use self::screen::Screen;
use crate::cli::{Chat, Global};
use crate::daemon::Embedded;
use crate::exit::{FAILED, Failure, INTERRUPTED, UNREACHABLE, USAGE};
use crate::{admin_client, home, logging, settings};

/// The most bytes of one message.
const MESSAGE_BYTES_MAX: u64 = 8 << 20;
/// How long a daemon that is gone is waited for, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(250);
/// How long the probe of a listening daemon takes at most.
const PROBE: Duration = Duration::from_secs(2);

/// Runs it.
///
/// # Errors
/// Status 1 where the run fails, 130 where it is aborted, 69 where the daemon of `--url` is not reachable.
pub(crate) fn run(global: &Global, options: &Chat) -> Result<(), Failure> {
    let session = session(options.session.as_deref())?;
    let message = match &options.message {
        Some(message) => Some(message.clone()),
        None if stdin().is_terminal() => None,
        None => Some(piped()?),
    };
    if message.as_ref().is_some_and(|message| message.trim().is_empty()) {
        return Err(Failure::new(USAGE, "the message is empty"));
    }
    actix_web::rt::System::new().block_on(async {
        let (url, token, embedded) = find(global, options).await?;
        let outcome = async {
            let link = Link::open(&url, token.as_ref()).await?;
            let interrupts = signal(SignalKind::interrupt())
                .map_err(|error| Failure::new(FAILED, format!("cannot listen for Ctrl-C: {error}")))?;
            let screen = Screen::new();
            let chat =
                Conversation { url: url.clone(), token, link, interrupts, session, prompts: 0, screen };
            match message {
                Some(message) => chat.one_turn(&message).await,
                None => chat.prompt().await,
            }
        }
        .await;
        if let Some(embedded) = embedded {
            embedded.stop().await;
        }
        outcome
    })
}

fn session(given: Option<&str>) -> Result<SessionKey, Failure> {
    let key = match given {
        Some(text) => SessionKey::parse(text),
        None => {
            let set = |name| std::env::var(name).ok().filter(|user| !user.is_empty());
            let user = set("USER").or_else(|| set("LOGNAME")).unwrap_or_else(|| "user".into());
            SessionKey::new("main", "cli", &user, SessionKey::DEFAULT_PEER)
        }
    };
    key.map_err(|error| Failure::new(USAGE, error.message))
}

fn piped() -> Result<String, Failure> {
    let mut text = String::new();
    let read = stdin().lock().take(MESSAGE_BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Ok(bytes) if bytes as u64 > MESSAGE_BYTES_MAX => {
            Err(Failure::new(FAILED, format!("the input is larger than {MESSAGE_BYTES_MAX} bytes")))
        }
        // The line end is the shell's, not the sender's.
        Ok(_) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(Failure::new(FAILED, format!("cannot read the input: {error}"))),
    }
}

/// Whom to talk to, with which credential, and the daemon this process runs for it, if any.
async fn find(
    global: &Global,
    options: &Chat,
) -> Result<(String, Option<Secret>, Option<Embedded>), Failure> {
    let token = match &options.token_file {
        Some(path) => Some(token_in(path)?),
        None => std::env::var("CLAWMUX_TOKEN").ok().filter(|token| !token.trim().is_empty()).map(Secret::new),
    };
    if let Some(url) = &options.url {
        if !(url.starts_with("ws://") || url.starts_with("wss://")) {
            let why = format!("--url {url}: expected ws:// or wss://, such as ws://127.0.0.1:18789/ws");
            return Err(Failure::new(USAGE, why));
        }
        return Ok((url.clone(), token, None));
    }
    // The daemon says itself where it listens. That is also the one way to be sure that it is ours,
    // and so the one case in which the configured token is shown to it unasked.
    let home = home::resolve(global.home.as_deref(), |name| std::env::var(name).ok())?;
    let status = admin_client::call(&home, "admin.status", &json!({})).ok();
    let settings = settings::read(global, &[]);
    if let Some(address) = status.as_ref().and_then(listening) {
        // Whoever broke the configuration since can still talk to what runs.
        let configured = settings.ok().and_then(|settings| settings.config.auth.token);
        return Ok((url_of(address), token.or(configured), None));
    }
    let settings = settings?;
    let runs = |address: &&SocketAddr| TcpStream::connect_timeout(&reachable(**address), PROBE).is_ok();
    if let Some(address) = settings.config.gateway.listen.iter().find(runs) {
        return Ok((url_of(*address), token, None));
    }
    // Whoever chats wants to read the answer, not the daemon's log.
    let quiet = Log { format: LogFormat::Text, filter: "error".into() };
    logging::start(&quiet)?;
    home::create(&settings.home)?;
    let embedded = Embedded::start(&settings).await?;
    Ok((embedded.url.clone(), Some(embedded.token.clone()), Some(embedded)))
}

fn token_in(path: &Path) -> Result<Secret, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(FAILED, format!("cannot read the token in {}: {error}", path.display()))
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(Failure::new(FAILED, format!("{} is empty", path.display())));
    }
    Ok(Secret::new(token))
}

fn listening(status: &Value) -> Option<SocketAddr> {
    status.get("listen")?.as_array()?.iter().find_map(|address| address.as_str()?.parse().ok())
}

/// Where a socket bound to `address` is reached from this host.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn url_of(address: SocketAddr) -> String {
    format!("ws://{}{}", reachable(address), exoclaw::PATH)
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Completed,
    Aborted,
    Failed(String),
    /// Whoever sits here did not want to wait for the end.
    Left,
}

struct Conversation {
    url: String,
    token: Option<Secret>,
    link: Link,
    interrupts: Signal,
    session: SessionKey,
    prompts: u64,
    screen: Screen,
}

impl Conversation {
    async fn one_turn(mut self, message: &str) -> Result<(), Failure> {
        let ended = self.turn(message).await?;
        self.link.close().await;
        match ended {
            Ended::Completed => Ok(()),
            Ended::Aborted | Ended::Left => Err(Failure::new(INTERRUPTED, "aborted")),
            Ended::Failed(why) => Err(Failure::new(FAILED, format!("error: {}", self.screen.quoted(&why)))),
        }
    }

    async fn prompt(mut self) -> Result<(), Failure> {
        let (session, url) = (&self.session, &self.url);
        self.screen.note(&format!("{session} on {url}; Ctrl-C aborts an answer, Ctrl-D leaves"));
        let mut lines = lines();
        loop {
            self.screen.prompt();
            let line = loop {
                tokio::select! {
                    line = lines.recv() => break line,
                    _ = self.interrupts.recv() => break None,
                    // Nothing is expected between runs, but the connection wants to be kept alive.
                    told = self.link.next() => if let Err(lost) = told && !self.come_back(lost).await? {
                        break None;
                    }
                }
            };
            let Some(line) = line else { break };
            if line.trim().is_empty() {
                continue;
            }
            match self.turn(&line).await? {
                Ended::Completed => {}
                Ended::Aborted => self.screen.note("aborted"),
                Ended::Failed(why) => self.screen.error(&why),
                Ended::Left => break,
            }
        }
        self.screen.end_line();
        self.link.close().await;
        Ok(())
    }

    /// One prompt and its whole answer.
    async fn turn(&mut self, content: &str) -> Result<Ended, Failure> {
        self.prompts += 1;
        let id = format!("prompt-{}", self.prompts);
        let key = RunId::from_random(clock::random());
        let prompt = exoclaw::send(&id, &self.session, content, key.as_str());
        let abort = exoclaw::abort(&format!("abort-{}", self.prompts), &id);
        let mut answer = Answer::default();
        let mut failure = None;
        let mut aborting = false;
        let mut sent = self.link.send(prompt.clone()).await;
        let ended = loop {
            if let Err(lost) = sent {
                if aborting || !self.come_back(lost).await? {
                    break Ended::Left;
                }
                answer.is_told_again();
                sent = self.link.send(prompt.clone()).await;
                continue;
            }
            let told = tokio::select! {
                told = self.link.next() => told,
                _ = self.interrupts.recv() => {
                    if aborting {
                        break Ended::Left;
                    }
                    aborting = true;
                    sent = self.link.send(abort.clone()).await;
                    continue;
                }
            };
            match told {
                Err(lost) => sent = Err(lost),
                Ok(Told::Event { id: of, event }) if of == id => match answer.tell(event) {
                    Show::Nothing => {}
                    Show::Text(text) => self.screen.answer(&text),
                    Show::Instead(text) => self.screen.answer_instead(&text),
                    Show::Event(event) => match event {
                        StreamEvent::ToolUse { name, input, approval } => {
                            self.screen.tool_call(&name, &input);
                            if let Some(id) = approval {
                                self.screen.waits(&name, &id);
                            }
                        }
                        StreamEvent::ToolResult { content, is_error } => {
                            self.screen.tool_result(&content, is_error)
                        }
                        StreamEvent::Restart => {
                            self.screen.note("the daemon was restarted and goes on with the answer");
                        }
                        StreamEvent::Error(why) => failure = Some(why),
                        StreamEvent::Done => {
                            break match failure {
                                None => Ended::Completed,
                                Some(why) if why == exoclaw::ABORTED => Ended::Aborted,
                                Some(why) => Ended::Failed(why),
                            };
                        }
                        StreamEvent::Text(_) | StreamEvent::Usage { .. } | StreamEvent::Unknown => {}
                    },
                },
                Ok(Told::Answer { id: of, outcome: Err(why) }) if of == id => break Ended::Failed(why),
                Ok(Told::Closing { error, .. }) if error == exoclaw::DRAINING => {
                    sent = Err(Failure::new(UNREACHABLE, "the daemon stops"));
                }
                Ok(Told::Closing { error, .. }) => {
                    break Ended::Failed(format!("the daemon closes: {error}"));
                }
                Ok(_) => {}
            }
        };
        self.screen.end_answer();
        Ok(ended)
    }

    /// Waits until the daemon is back; false where whoever sits here does not want to.
    ///
    /// # Errors
    /// Status 69 where it is not back in time.
    async fn come_back(&mut self, lost: Failure) -> Result<bool, Failure> {
        self.screen.note(&format!("{}: waiting for the daemon, Ctrl-C leaves", lost.message));
        let begun = Instant::now();
        loop {
            let opened = tokio::select! {
                opened = Link::open(&self.url, self.token.as_ref()) => opened,
                _ = self.interrupts.recv() => return Ok(false),
            };
            match opened {
                Ok(link) => {
                    self.link = link;
                    return Ok(true);
                }
                Err(error) if error.status != UNREACHABLE || begun.elapsed() >= PATIENCE => {
                    return Err(error);
                }
                Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                _ = self.interrupts.recv() => return Ok(false),
            }
        }
    }
}

/// The lines typed. The thread waits for the terminal and so ends with the process.
fn lines() -> mpsc::Receiver<String> {
    const AHEAD: usize = 16;
    let (typed, lines) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in stdin().lines() {
            let Ok(line) = line else { return };
            if typed.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_reached_where_it_listens() {
        for (bound, url) in [
            ("127.0.0.1:18789", "ws://127.0.0.1:18789/ws"),
            ("0.0.0.0:1", "ws://127.0.0.1:1/ws"),
            ("[::]:2", "ws://[::1]:2/ws"),
            ("10.0.0.1:3", "ws://10.0.0.1:3/ws"),
        ] {
            assert_eq!(url_of(bound.parse().unwrap()), url);
        }
        assert_eq!(listening(&json!({"listen": ["x", "127.0.0.1:5"]})), Some("127.0.0.1:5".parse().unwrap()));
        assert_eq!(listening(&json!({})), None);
    }

    #[test]
    fn a_session_is_named_by_its_key() {
        assert_eq!(session(Some("work:telegram:bot:bob")).unwrap().as_str(), "work:telegram:bot:bob");
        assert_eq!(session(Some("work")).unwrap_err().status, USAGE);
        assert_eq!(session(None).unwrap().channel(), "cli");
    }
}
