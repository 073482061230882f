//! The chat client: attaches to one session, sends prompts, shows what happens, and waits for the daemon
//! when it is gone.
//!
//! All events arrive under one `session.attach`. When the connection is lost, the client reattaches after
//! the last event it saw. It repeats a prompt, under the same idempotency key, only if it can't know
//! whether that prompt arrived.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clawmux_core::dialect::exoclaw::client::{self as exoclaw, ServerMessage, Since};
use clawmux_core::ids::SessionKey;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::approval::ApprovalPrompt;
use super::attachments::Attachments;
use super::console::{Completions, UserInput};
use super::conversation::{Change, Conversation, Output, SessionEvent};
use super::input::{self, Input};
use super::keyboard::Keyboard;
use super::link::{Endpoint, Link};
use super::link_error::{LinkError, closing};
use super::prompting::PromptOutcome;
use super::renderer::{End, Outcome, Renderer};
use super::signals::{Signal, Signals};
use crate::exit::{FAILED, Failure, INTERRUPTED};
use crate::naming::{SessionNames, SessionRef};
use crate::terminal::one_line;

/// How long the daemon may take to answer.
const ANSWER: Duration = Duration::from_secs(15);
/// How often the status is refreshed.
const TICK: Duration = Duration::from_millis(500);
/// Shown at the first Ctrl-C while nothing is running.
const ONCE_MORE: &str = "Ctrl-C once more leaves, as Ctrl-D does; the session stays";
/// Shown for a session that does not exist yet.
pub(super) const NEW: &str = "new session: the first prompt begins it";

/// A chat.
pub(super) struct Client {
    pub(super) endpoint: Endpoint,
    pub(super) link: Link,
    pub(super) renderer: Box<dyn Renderer>,
    pub(super) conversation: Conversation,
    pub(super) names: SessionNames,
    pub(super) session: SessionKey,
    /// The session's own model, `PROVIDER/MODEL`.
    pub(super) model: Option<String>,
    /// The model chosen in this chat.
    pub(super) chosen_model: Option<String>,
    /// Files to send with the next prompt.
    pub(super) files: Attachments,
    pub(super) approval: ApprovalPrompt,
    /// The id of the current `session.attach`; events of others are ignored.
    pub(super) attach: String,
    pub(super) last_id: u64,
    pub(super) keyboard: Keyboard,
    /// What the editor completes.
    pub(super) completions: Option<Completions>,
    pub(super) signals: Signals,
    tick: Interval,
    /// The status that is shown.
    pub(super) status: Option<String>,
    /// Changes that are not handled yet.
    pub(super) changes: VecDeque<Change>,
    /// The run that was asked to end.
    pub(super) aborting: Option<String>,
    /// Whether another Ctrl-C leaves.
    is_leaving: bool,
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum ChatError {
    /// The daemon says no.
    Refused(String),
    /// The connection is lost; it may work after reconnecting.
    Lost(Failure),
    /// The chat can't continue.
    Fatal(Failure),
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Stay,
    Leave,
}

/// What happened next.
pub(super) enum ClientEvent {
    /// The daemon says something, or the connection is lost.
    ServerMessage(Result<ServerMessage, Failure>),
    /// Something was typed; none at the end.
    UserInput(Option<UserInput>),
    Signal(Signal),
    Tick,
}

impl Client {
    /// A client of a connected daemon. `typed` is the user's input in an interactive chat.
    ///
    /// # Errors
    /// Status 1 if signals can't be listened to.
    pub(super) fn new(
        found: (Endpoint, Link),
        renderer: Box<dyn Renderer>,
        names: SessionNames,
        files: Attachments,
        typed: Option<mpsc::Receiver<UserInput>>,
        completions: Option<Completions>,
    ) -> Result<Self, Failure> {
        let unable = |error| Failure::new(FAILED, format!("cannot wait for signals: {error}"));
        let signals = Signals::new().map_err(unable)?;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let session = names.session(None, None)?;
        Ok(Self {
            endpoint: found.0,
            link: found.1,
            renderer,
            conversation: Conversation::default(),
            names,
            session,
            model: None,
            chosen_model: None,
            files,
            approval: ApprovalPrompt::default(),
            attach: String::new(),
            last_id: 0,
            keyboard: Keyboard::new(typed),
            completions,
            signals,
            tick,
            status: None,
            changes: VecDeque::new(),
            aborting: None,
            is_leaving: false,
        })
    }

    /// Sends one prompt and shows its answer.
    ///
    /// # Errors
    /// Status 1 if it is refused or fails, 130 if it is aborted, 69 if the daemon is gone.
    pub(super) async fn one_turn(mut self, named: &SessionRef, message: &str) -> Result<(), Failure> {
        let ended = self.turn(named, message).await;
        self.link.close().await;
        self.renderer.close();
        ended
    }

    async fn turn(&mut self, named: &SessionRef, message: &str) -> Result<(), Failure> {
        self.open(named).await?;
        let own = match self.prompt(message).await? {
            PromptOutcome::Accepted(run) => run,
            PromptOutcome::Refused(why) => {
                let outcome = Outcome::Failed(why.clone());
                self.renderer.end_answer(&End { outcome, elapsed: None, tokens: None });
                return Err(failed(&why));
            }
            PromptOutcome::Left => {
                return Err(Failure::new(INTERRUPTED, "left before the daemon took the prompt"));
            }
        };
        let mut is_queue_told = false;
        loop {
            if !is_queue_told && self.conversation.is_queued() {
                is_queue_told = true;
                self.renderer.queued();
            }
            match self.changes.pop_front() {
                Some(Change::Ended(Outcome::Completed)) => return Ok(()),
                Some(Change::Ended(Outcome::Aborted)) => return Err(Failure::new(INTERRUPTED, "aborted")),
                Some(Change::Ended(Outcome::Failed(why))) => return Err(failed(&why)),
                Some(Change::Deleted) => return Err(failed("the session was deleted meanwhile")),
                None => {}
            }
            if let Some(status) = self.renderer.gone() {
                return if status == 0 { Ok(()) } else { Err(Failure::new(status, "")) };
            }
            let done = match self.next().await {
                ClientEvent::ServerMessage(Ok(told)) => self.hear(told),
                ClientEvent::ServerMessage(Err(lost)) => Err(ChatError::Lost(lost)),
                ClientEvent::Signal(Signal::Interrupt) if self.aborting.is_none() => {
                    self.abort(own.clone()).await.map(drop)
                }
                ClientEvent::Signal(_) => return Err(left()),
                ClientEvent::Tick => {
                    self.renderer.status(self.conversation.status(Instant::now()));
                    Ok(())
                }
                ClientEvent::UserInput(_) => Ok(()),
            };
            if let Err(error) = done
                && self.recover(error).await? == Flow::Leave
            {
                return Err(left());
            }
        }
    }

    /// Runs an interactive chat until the user leaves.
    ///
    /// # Errors
    /// If the session can't be opened, or the daemon is gone or no longer accepts this client.
    pub(super) async fn interactive(mut self, named: &SessionRef) -> Result<(), Failure> {
        let ended = self.turns(named).await;
        self.link.close().await;
        self.renderer.status(None);
        self.renderer.close();
        ended
    }

    async fn turns(&mut self, named: &SessionRef) -> Result<(), Failure> {
        self.open(named).await?;
        if self.conversation.is_new() && self.session != self.names.session(None, None)? {
            self.renderer.note(NEW);
        }
        self.renderer.note("/help lists the commands");
        if let Err(error) = self.learn_names().await
            && self.recover(error).await? == Flow::Leave
        {
            return Ok(());
        }
        if !self.files.files().is_empty() {
            self.renderer.note("the files go with the next prompt");
        }
        loop {
            self.show_state();
            let done = match self.next().await {
                ClientEvent::ServerMessage(Ok(told)) => self.heed(told).await,
                ClientEvent::ServerMessage(Err(lost)) => Err(ChatError::Lost(lost)),
                ClientEvent::UserInput(Some(typed)) => self.take(typed).await,
                ClientEvent::Signal(Signal::Interrupt) => self.interrupted(false).await,
                ClientEvent::UserInput(None) | ClientEvent::Signal(Signal::End) => Ok(Flow::Leave),
                ClientEvent::Tick => Ok(Flow::Stay),
            };
            let flow = match done {
                Ok(flow) => flow,
                Err(error) => self.recover(error).await?,
            };
            if flow == Flow::Leave || self.renderer.gone().is_some() {
                return Ok(());
            }
        }
    }

    /// Shows the current status and question.
    fn show_state(&mut self) {
        let status = self.conversation.status(Instant::now());
        if status != self.status {
            self.status.clone_from(&status);
            self.renderer.status(status);
        }
        self.ask_what_waits();
        if !self.conversation.is_busy() && self.conversation.is_caught_up(Instant::now()) {
            self.renderer.ready();
        }
    }

    async fn next(&mut self) -> ClientEvent {
        if let Some(typed) = self.keyboard.early() {
            return ClientEvent::UserInput(Some(typed));
        }
        tokio::select! {
            told = self.link.next() => ClientEvent::ServerMessage(told),
            typed = self.keyboard.next() => ClientEvent::UserInput(typed),
            signal = self.signals.next() => ClientEvent::Signal(signal),
            _ = self.tick.tick() => ClientEvent::Tick,
        }
    }

    /// Like [`Self::next`], but keeps what is typed for later.
    pub(super) async fn next_but_typed(&mut self) -> ClientEvent {
        tokio::select! {
            told = self.link.next() => ClientEvent::ServerMessage(told),
            () = self.keyboard.leave() => ClientEvent::UserInput(None),
            signal = self.signals.next() => ClientEvent::Signal(signal),
            _ = self.tick.tick() => ClientEvent::Tick,
        }
    }

    /// Shows what the daemon says and acts on it.
    async fn heed(&mut self, told: ServerMessage) -> Result<Flow, ChatError> {
        self.hear(told)?;
        while let Some(changes) = self.changes.pop_front() {
            // The end of an answer takes the status away.
            self.status = None;
            if changes == Change::Deleted {
                self.renderer.note("the session was deleted; the next prompt begins it anew");
                self.attach_to(self.session.clone(), Since::Turns(0)).await?;
            }
        }
        if !self.conversation.is_busy() {
            self.aborting = None;
        }
        Ok(Flow::Stay)
    }

    /// Shows what the daemon says.
    pub(super) fn hear(&mut self, told: ServerMessage) -> Result<(), ChatError> {
        match told {
            ServerMessage::Event { id, place, event } if id == self.attach => {
                let output = &mut Output { renderer: &mut *self.renderer, now: Instant::now() };
                self.changes.extend(self.conversation.take(SessionEvent { place, event }, output));
            }
            ServerMessage::Answer { id, outcome } => self.decided(&id, outcome),
            ServerMessage::Closing { error, .. } => {
                return Err(match closing(&error) {
                    LinkError::Temporary(failure) => ChatError::Lost(failure),
                    LinkError::Refused(failure) => ChatError::Fatal(failure),
                });
            }
            ServerMessage::Event { .. } | ServerMessage::Hello | ServerMessage::Unknown => {}
        }
        Ok(())
    }

    pub(super) fn new_id(&mut self) -> String {
        self.last_id += 1;
        self.last_id.to_string()
    }

    /// Sends one request and waits for its answer; shows what happens meanwhile.
    ///
    /// # Errors
    /// If the daemon refuses it, the connection is lost, or no answer comes.
    pub(super) async fn ask(&mut self, request: impl FnOnce(&str) -> String) -> Result<Value, ChatError> {
        let id = self.new_id();
        self.link.send(request(&id)).await.map_err(ChatError::Lost)?;
        let answer = async {
            loop {
                match self.link.next().await.map_err(ChatError::Lost)? {
                    ServerMessage::Answer { id: of, outcome } if of == id => {
                        return outcome.map_err(ChatError::Refused);
                    }
                    told => self.hear(told)?,
                }
            }
        };
        match timeout(ANSWER, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = format!("the daemon does not answer within {} s", ANSWER.as_secs());
                Err(ChatError::Fatal(Failure::new(FAILED, why)))
            }
        }
    }

    /// The model that answers the next prompt.
    pub(super) fn answering(&self) -> Option<&str> {
        self.chosen_model.as_deref().or(self.model.as_deref())
    }

    /// Whether to show only this chat's own runs.
    pub(super) fn is_private(&self) -> bool {
        !self.keyboard.is_there()
    }

    pub(super) fn is_offline(&self) -> bool {
        self.answering().is_some_and(|model| model == "offline/offline")
    }

    /// Sends what was typed.
    async fn say(&mut self, text: &str) -> Result<Flow, ChatError> {
        match self.prompt(text).await.map_err(ChatError::Fatal)? {
            PromptOutcome::Accepted(_) => Ok(Flow::Stay),
            PromptOutcome::Refused(why) => {
                self.renderer.own_turn();
                self.renderer.error(&why);
                Ok(Flow::Stay)
            }
            PromptOutcome::Left => Ok(Flow::Leave),
        }
    }

    /// Handles what was typed.
    async fn take(&mut self, typed: UserInput) -> Result<Flow, ChatError> {
        if !matches!(typed, UserInput::Interrupt { .. }) {
            self.is_leaving = false;
        }
        self.renderer.entered();
        match typed {
            UserInput::Interrupt { dropped } => self.interrupted(dropped).await,
            UserInput::Leave => Ok(Flow::Leave),
            UserInput::Key(key) => self.decide(key).await,
            UserInput::Prompt(text) if self.approval.is_editing() => self.edited(&text).await,
            UserInput::Prompt(text) => match self.key_of(&text) {
                Some(key) => self.decide(key).await,
                None => match input::read(&text, self.is_offline()) {
                    Input::Nothing => Ok(Flow::Stay),
                    Input::Prompt(text) => self.say(&text).await,
                    Input::Command(command) => self.obey(command).await,
                    Input::Refused(why) => {
                        self.renderer.error(&why);
                        Ok(Flow::Stay)
                    }
                },
            },
        }
    }

    /// Handles Ctrl-C: it aborts the answer under way; if there is none, or it is being aborted already, a
    /// second Ctrl-C leaves. `dropped`: it cleared a line, which counts as the first.
    async fn interrupted(&mut self, dropped: bool) -> Result<Flow, ChatError> {
        if self.approval.is_editing() {
            self.stop_editing();
            return Ok(Flow::Stay);
        }
        if dropped {
            self.is_leaving = true;
            self.renderer.note(ONCE_MORE);
            return Ok(Flow::Stay);
        }
        match self.conversation.abortable() {
            Some(run) if self.aborting.as_ref() != Some(&run) => self.abort(run).await,
            Some(_) => Ok(Flow::Leave),
            None if self.is_leaving => Ok(Flow::Leave),
            None => {
                self.is_leaving = true;
                self.renderer.note(ONCE_MORE);
                Ok(Flow::Stay)
            }
        }
    }

    /// Aborts this run.
    pub(super) async fn abort(&mut self, run: String) -> Result<Flow, ChatError> {
        let id = self.new_id();
        let abort = exoclaw::abort_run(&id, &self.session, Some(&run));
        self.aborting = Some(run);
        self.link.send(abort).await.map_err(ChatError::Lost)?;
        Ok(Flow::Stay)
    }
}

impl ChatError {
    /// As the reason why the chat ends.
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Refused(why) => failed(&why),
            Self::Lost(failure) | Self::Fatal(failure) => failure,
        }
    }
}

/// An answer that the chat can do without.
pub(super) trait OrNone<T> {
    /// The default if the daemon refuses it.
    fn or_none(self) -> Result<T, ChatError>;
}

impl<T: Default> OrNone<T> for Result<T, ChatError> {
    fn or_none(self) -> Self {
        match self {
            Err(ChatError::Refused(_)) => Ok(T::default()),
            other => other,
        }
    }
}

fn failed(why: &str) -> Failure {
    Failure::new(FAILED, format!("error: {}", one_line(why, 1000)))
}

fn left() -> Failure {
    Failure::new(INTERRUPTED, "left: the answer goes on in the daemon")
}
