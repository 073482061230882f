//! Attaching to a session, and reattaching after the connection was lost.

use std::time::{Duration, Instant};

use clawmux_core::dialect::exoclaw::client::{self as exoclaw, Attached, Since};
use clawmux_core::ids::SessionKey;
use serde_json::Value;

use super::approval::ApprovalPrompt;
use super::client::{ChatError, Client, Flow, OrNone};
use super::commands::no_agent;
use super::console::Arguments;
use super::conversation::Conversation;
use super::input;
use super::link::Link;
use super::link_error::LinkError;
use super::renderer::{End, Outcome};
use crate::exit::{FAILED, Failure};
use crate::naming::{SessionRef, chosen};
use crate::terminal::one_line;

/// How many turns are shown where a session is opened.
const TURNS: u64 = 10;
/// How long to wait for a daemon that went away, and how often to try to connect.
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(250);

impl Client {
    /// Attaches to the first session of this chat.
    ///
    /// # Errors
    /// If no session matches, or the daemon refuses it.
    pub(super) async fn open(&mut self, named: &SessionRef) -> Result<(), Failure> {
        let opened = async {
            let unknown = |error| match error {
                ChatError::Refused(why) => ChatError::Fatal(Failure::new(FAILED, why)),
                other => other,
            };
            let key = self.resolve(named).await.map_err(unknown)?;
            let agent = key.agent().into_owned();
            match self.attach_to(key, self.first_turns()).await {
                Err(ChatError::Refused(why)) => {
                    let known = self.ask(exoclaw::agents).await.map(|list| exoclaw::agents_of(&list));
                    Err(ChatError::Refused(no_agent(&agent, &known.or_none()?).unwrap_or(why)))
                }
                attached => attached,
            }
        };
        opened.await.map_err(ChatError::into_failure)
    }

    /// How much of the past to show first.
    fn first_turns(&self) -> Since {
        Since::Turns(if self.is_private() { 0 } else { TURNS })
    }

    /// The key of the session that `named` refers to.
    ///
    /// # Errors
    /// Refused if no session or more than one matches.
    pub(super) async fn resolve(&mut self, named: &SessionRef) -> Result<SessionKey, ChatError> {
        match named {
            SessionRef::Key(key) => Ok(key.clone()),
            SessionRef::Prefix(text) => {
                let shortened = |error| match error {
                    ChatError::Refused(why) => ChatError::Refused(one_line(&why, 1000)),
                    other => other,
                };
                let keys = self.keys().await.map_err(shortened)?;
                chosen(text, &keys).map_err(|failure| ChatError::Refused(failure.message))
            }
        }
    }

    /// The keys of all sessions this client may see.
    pub(super) async fn keys(&mut self) -> Result<Vec<String>, ChatError> {
        let list = self.ask(exoclaw::sessions).await?;
        let key = |session: &Value| session["session"].as_str().map(str::to_owned);
        Ok(list.as_array().into_iter().flatten().filter_map(key).collect())
    }

    /// Sets up completion of session, agent and model names, as far as the daemon lists them.
    ///
    /// # Errors
    /// As [`Self::ask`]; a refusal is no error.
    pub(super) async fn learn_names(&mut self) -> Result<(), ChatError> {
        let Some(completions) = self.completions.clone() else { return Ok(()) };
        let sessions = self.keys().await.or_none()?;
        let sessions = sessions.iter().map(|key| self.names.called(key)).collect();
        completions.set("/switch", Arguments::Words(sessions));
        let agents = self.ask(exoclaw::agents).await.map(|list| exoclaw::agents_of(&list)).or_none()?;
        completions.set("/agent", Arguments::Words(agents.into_iter().map(|agent| agent.name).collect()));
        let models = self.ask(exoclaw::models).await.map(|list| exoclaw::models_of(&list)).or_none()?;
        completions.set("/model", Arguments::Words(models.into_iter().map(|model| model.model).collect()));
        Ok(())
    }

    /// Completes the offline model's commands while that model answers.
    pub(super) fn complete_offline(&self) {
        let Some(completions) = &self.completions else { return };
        for command in input::offline_names() {
            if self.is_offline() {
                completions.set(&command, Arguments::Words(Vec::new()));
            } else {
                completions.unset(&command);
            }
        }
    }

    /// Switches to this session; stays with the old one if that is refused.
    pub(super) async fn switch(&mut self, key: SessionKey) -> Result<(), ChatError> {
        let old = self.attach.clone();
        self.attach_to(key, Since::Turns(TURNS)).await?;
        let id = self.new_id();
        self.link.send(exoclaw::detach(&id, &old)).await.map_err(ChatError::Lost)
    }

    /// Attaches to a session and shows it from `since` on.
    pub(super) async fn attach_to(&mut self, key: SessionKey, since: Since) -> Result<(), ChatError> {
        let thoughts = self.renderer.wants_thoughts();
        let answer = self.ask(|id: &str| exoclaw::attach(id, &key, since, thoughts)).await?;
        let Some(Attached { seq, agent, model, .. }) = exoclaw::attached(&answer) else {
            return Err(ChatError::Refused("the daemon answers something else than was asked".into()));
        };
        // As `ask` named it, and nothing was asked since.
        self.attach = self.last_id.to_string();
        if let Since::Turns(_) = since {
            if self.conversation.is_busy() {
                // What is shown of it ends here.
                self.renderer.end_answer(&End { outcome: Outcome::Completed, elapsed: None, tokens: None });
            }
            self.conversation =
                if self.is_private() { Conversation::private() } else { Conversation::default() };
            self.conversation.begins(seq, Instant::now());
            (self.aborting, self.approval) = (None, ApprovalPrompt::default());
            self.renderer.ask(None);
            let agent = agent.unwrap_or_else(|| key.agent().into_owned());
            let shown = model.as_deref().map(|model| format!(", model {model}")).unwrap_or_default();
            if !self.is_private() {
                self.renderer.banner(&format!("agent {agent}{shown}, session {key}"));
            }
        }
        (self.session, self.model) = (key, model);
        self.complete_offline();
        Ok(())
    }

    /// Reconnects and reattaches if the connection is lost.
    ///
    /// # Errors
    /// If the error is fatal; status 69 if the daemon does not come back in time.
    pub(super) async fn recover(&mut self, error: ChatError) -> Result<Flow, Failure> {
        let mut lost = match error {
            ChatError::Lost(failure) => failure,
            error => return Err(error.into_failure()),
        };
        let begun = Instant::now();
        self.status = None;
        self.renderer.status(None);
        self.renderer.note(&format!("{}: waiting for the daemon, Ctrl-C leaves", lost.message));
        loop {
            let opened = tokio::select! {
                opened = Link::open(&self.endpoint) => opened,
                () = self.keyboard.leave() => return Ok(Flow::Leave),
                _ = self.signals.next() => return Ok(Flow::Leave),
            };
            match opened {
                Ok(link) => {
                    self.link = link;
                    match self.attach_again().await {
                        Ok(()) => return Ok(Flow::Stay),
                        Err(ChatError::Lost(failure)) => lost = failure,
                        Err(error) => return Err(error.into_failure()),
                    }
                }
                Err(LinkError::Refused(failure)) => return Err(failure),
                Err(LinkError::Temporary(failure)) => lost = failure,
            }
            if begun.elapsed() >= TIMEOUT {
                return Err(lost);
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = self.keyboard.leave() => return Ok(Flow::Leave),
                _ = self.signals.next() => return Ok(Flow::Leave),
            }
        }
    }

    /// Reattaches after the last event seen.
    async fn attach_again(&mut self) -> Result<(), ChatError> {
        let since = self.conversation.lost().map_or_else(|| self.first_turns(), Since::Seq);
        self.aborting = None;
        self.attach_to(self.session.clone(), since).await
    }
}
