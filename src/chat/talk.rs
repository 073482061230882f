//! A chat at work: one session attached, prompts sent, what is told shown, and the daemon waited for
//! when it is gone.
//!
//! Whatever is told comes under one `session.attach`. Where the connection is lost, the session is
//! attached again after the last number that was seen, and a prompt is sent again under its
//! idempotency key only where nobody knows whether it arrived.

use std::collections::VecDeque;
use std::future::pending;
use std::time::{Duration, Instant};

use clawmux_actors::clock;
use clawmux_core::dialect::exoclaw::client::{self as exoclaw, Attached, Prompt, Since, StreamEvent, Told};
use clawmux_core::ids::{RunId, SessionKey};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::attachments::Attachments;
use super::commands::no_agent;
use super::console::{Arguments, Completions, Typed};
use super::conversation::{Conversation, Happened};
use super::deciding::Deciding;
use super::face::{End, Face, Outcome};
use super::link::{Door, Link, NotOpen, closing};
use super::local::{self, Line};
use crate::exit::{FAILED, Failure, INTERRUPTED};
use crate::naming::{Named, Namer, chosen};
use crate::terminal::one_line;

/// How many turns are shown where a session is opened.
const TURNS: u64 = 10;
/// How long a daemon that is gone is waited for, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(250);
/// How long the daemon may take to answer, and to put a prompt on its disk.
const ANSWER: Duration = Duration::from_secs(15);
const ACCEPT: Duration = Duration::from_secs(60);
/// How often the status is told anew.
const TICK: Duration = Duration::from_millis(500);
/// What the first Ctrl-C says where nothing is under way.
const ONCE_MORE: &str = "Ctrl-C once more leaves, as Ctrl-D does; the session stays";
/// What is said of a session that is not there yet.
pub(super) const NEW: &str = "new session: the first prompt begins it";
/// What is typed while nobody has time for it.
const EARLY_MAX: usize = 64;

/// A chat.
pub(super) struct Talk {
    door: Door,
    pub(super) link: Link,
    pub(super) face: Box<dyn Face>,
    pub(super) conversation: Conversation,
    pub(super) namer: Namer,
    pub(super) session: SessionKey,
    /// The model that answers where no other is chosen, `PROVIDER/MODEL`.
    pub(super) model: Option<String>,
    /// The model chosen here.
    pub(super) chosen_model: Option<String>,
    /// What goes along with the next prompt.
    pub(super) files: Attachments,
    pub(super) deciding: Deciding,
    /// The id of the attach whose frames are shown.
    attach: String,
    is_private: bool,
    last_id: u64,
    typed: Option<mpsc::Receiver<Typed>>,
    early: VecDeque<Typed>,
    /// What the editor completes.
    completions: Option<Completions>,
    signals: Signals,
    tick: Interval,
    /// The status that is shown.
    status: Option<String>,
    /// What happened and was not heeded yet.
    happened: VecDeque<Happened>,
    /// The run that was asked to end.
    aborting: Option<String>,
    /// Whether another Ctrl-C leaves.
    is_leaving: bool,
}

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is lost: it may be done once that is back.
    Lost(Failure),
    /// There is no going on.
    Fatal(Failure),
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Stay,
    Leave,
}

/// What came of a prompt.
enum Sent {
    /// It is durable, as this run.
    Accepted(String),
    /// It is not, and why.
    Refused(String),
    /// Whoever sent it does not want to wait.
    Left,
}

enum Next {
    Told(Result<Told, Failure>),
    Typed(Option<Typed>),
    Interrupted,
    Terminated,
    Tick,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Talk {
    /// With a daemon that was found. `typed`: what is typed, where somebody types.
    ///
    /// # Errors
    /// Status 1 where signals can't be waited for.
    pub(super) fn new(
        found: (Door, Link),
        face: Box<dyn Face>,
        namer: Namer,
        files: Attachments,
        typed: Option<mpsc::Receiver<Typed>>,
        completions: Option<Completions>,
    ) -> Result<Self, Failure> {
        let unable = |error| Failure::new(FAILED, format!("cannot wait for signals: {error}"));
        let signals = Signals {
            interrupt: signal(SignalKind::interrupt()).map_err(unable)?,
            terminate: signal(SignalKind::terminate()).map_err(unable)?,
            hang_up: signal(SignalKind::hangup()).map_err(unable)?,
        };
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let session = namer.session(None, None)?;
        Ok(Self {
            door: found.0,
            link: found.1,
            face,
            conversation: Conversation::default(),
            namer,
            session,
            model: None,
            chosen_model: None,
            files,
            deciding: Deciding::default(),
            attach: String::new(),
            is_private: typed.is_none(),
            last_id: 0,
            typed,
            early: VecDeque::new(),
            completions,
            signals,
            tick,
            status: None,
            happened: VecDeque::new(),
            aborting: None,
            is_leaving: false,
        })
    }

    /// One prompt and its answer.
    ///
    /// # Errors
    /// Status 1 where it is refused or fails, 130 where it is aborted, 69 where the daemon is gone.
    pub(super) async fn one_turn(mut self, named: &Named, message: &str) -> Result<(), Failure> {
        let ended = self.turn(named, message).await;
        self.link.close().await;
        self.face.close();
        ended
    }

    async fn turn(&mut self, named: &Named, message: &str) -> Result<(), Failure> {
        self.open(named).await?;
        let own = match self.prompt(message).await? {
            Sent::Accepted(run) => run,
            Sent::Refused(why) => {
                let outcome = Outcome::Failed(why.clone());
                self.face.end_answer(&End { outcome, elapsed: None, tokens: None });
                return Err(failed(&why));
            }
            Sent::Left => return Err(Failure::new(INTERRUPTED, "left before the daemon took the prompt")),
        };
        let mut is_queue_told = false;
        loop {
            if !is_queue_told && self.conversation.is_queued() {
                is_queue_told = true;
                self.face.queued();
            }
            match self.happened.pop_front() {
                Some(Happened::Ended(Outcome::Completed)) => return Ok(()),
                Some(Happened::Ended(Outcome::Aborted)) => return Err(Failure::new(INTERRUPTED, "aborted")),
                Some(Happened::Ended(Outcome::Failed(why))) => return Err(failed(&why)),
                Some(Happened::Deleted) => return Err(failed("the session was deleted meanwhile")),
                None => {}
            }
            if let Some(status) = self.face.gone() {
                return if status == 0 { Ok(()) } else { Err(Failure::new(status, "")) };
            }
            let done = match self.next().await {
                Next::Told(Ok(told)) => self.hear(told),
                Next::Told(Err(lost)) => Err(Trouble::Lost(lost)),
                Next::Interrupted if self.aborting.is_none() => {
                    self.aborting = Some(own.clone());
                    let id = self.new_id();
                    let abort = exoclaw::abort_run(&id, &self.session, Some(&own));
                    self.link.send(abort).await.map_err(Trouble::Lost)
                }
                Next::Interrupted | Next::Terminated => return Err(left()),
                Next::Tick => {
                    self.face.status(self.conversation.status(Instant::now()));
                    Ok(())
                }
                Next::Typed(_) => Ok(()),
            };
            if let Err(trouble) = done
                && self.recover(trouble).await? == Flow::Leave
            {
                return Err(left());
            }
        }
    }

    /// Prompts and answers until whoever sits here leaves.
    ///
    /// # Errors
    /// Where the session can't be opened, or the daemon is gone or does not let this client in any more.
    pub(super) async fn sit(mut self, named: &Named) -> Result<(), Failure> {
        let ended = self.turns(named).await;
        self.link.close().await;
        self.face.status(None);
        self.face.close();
        ended
    }

    async fn turns(&mut self, named: &Named) -> Result<(), Failure> {
        self.open(named).await?;
        if self.conversation.is_new() && self.session != self.namer.session(None, None)? {
            self.face.note(NEW);
        }
        self.face.note("/help lists the commands");
        if let Err(trouble) = self.learn_names().await
            && self.recover(trouble).await? == Flow::Leave
        {
            return Ok(());
        }
        if !self.files.files().is_empty() {
            self.face.note("the files go with the next prompt");
        }
        loop {
            self.show_state();
            let done = match self.next().await {
                Next::Told(Ok(told)) => self.heed(told).await,
                Next::Told(Err(lost)) => Err(Trouble::Lost(lost)),
                Next::Typed(Some(typed)) => self.take(typed).await,
                Next::Interrupted => self.interrupted(false).await,
                Next::Typed(None) | Next::Terminated => Ok(Flow::Leave),
                Next::Tick => Ok(Flow::Stay),
            };
            let flow = match done {
                Ok(flow) => flow,
                Err(trouble) => self.recover(trouble).await?,
            };
            if flow == Flow::Leave || self.face.gone().is_some() {
                return Ok(());
            }
        }
    }

    /// What is under way and what is asked, as it is now.
    fn show_state(&mut self) {
        let status = self.conversation.status(Instant::now());
        if status != self.status {
            self.status.clone_from(&status);
            self.face.status(status);
        }
        self.ask_what_waits();
        if !self.conversation.is_busy() && self.conversation.is_caught_up(Instant::now()) {
            self.face.ready();
        }
    }

    async fn next(&mut self) -> Next {
        if let Some(typed) = self.early.pop_front() {
            return Next::Typed(Some(typed));
        }
        tokio::select! {
            told = self.link.next() => Next::Told(told),
            typed = typed(&mut self.typed) => Next::Typed(typed),
            _ = self.signals.interrupt.recv() => Next::Interrupted,
            _ = self.signals.terminate.recv() => Next::Terminated,
            _ = self.signals.hang_up.recv() => Next::Terminated,
            _ = self.tick.tick() => Next::Tick,
        }
    }

    /// What the daemon says, and what has to be done for it.
    async fn heed(&mut self, told: Told) -> Result<Flow, Trouble> {
        self.hear(told)?;
        while let Some(happened) = self.happened.pop_front() {
            // The end of an answer takes the status away.
            self.status = None;
            if happened == Happened::Deleted {
                self.face.note("the session was deleted; the next prompt begins it anew");
                self.attach_to(self.session.clone(), Since::Turns(0)).await?.map_err(Trouble::refusal)?;
            }
        }
        if !self.conversation.is_busy() {
            self.aborting = None;
        }
        Ok(Flow::Stay)
    }

    /// What the daemon says.
    fn hear(&mut self, told: Told) -> Result<(), Trouble> {
        match told {
            Told::Event { id, place, event } if id == self.attach => {
                let happened = self.conversation.told(place, event, Instant::now(), &mut *self.face);
                self.happened.extend(happened);
            }
            Told::Answer { id, outcome } => self.decided(&id, outcome),
            Told::Closing { error, .. } => {
                return Err(match closing(&error) {
                    NotOpen::Passing(failure) => Trouble::Lost(failure),
                    NotOpen::Refused(failure) => Trouble::Fatal(failure),
                });
            }
            Told::Event { .. } | Told::Hello | Told::Unknown => {}
        }
        Ok(())
    }

    pub(super) fn new_id(&mut self) -> String {
        self.last_id += 1;
        self.last_id.to_string()
    }

    /// Asks the daemon one thing; shows what is told meanwhile.
    ///
    /// # Errors
    /// Where the connection is lost, or no answer comes.
    pub(super) async fn ask(
        &mut self,
        request: impl FnOnce(&str) -> String,
    ) -> Result<Result<Value, String>, Trouble> {
        let id = self.new_id();
        self.link.send(request(&id)).await.map_err(Trouble::Lost)?;
        let answer = async {
            loop {
                match self.link.next().await.map_err(Trouble::Lost)? {
                    Told::Answer { id: of, outcome } if of == id => return Ok(outcome),
                    told => self.hear(told)?,
                }
            }
        };
        match timeout(ANSWER, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = format!("the daemon does not answer within {} s", ANSWER.as_secs());
                Err(Trouble::Fatal(Failure::new(FAILED, why)))
            }
        }
    }

    /// Opens the session that is meant, the first of this chat.
    async fn open(&mut self, named: &Named) -> Result<(), Failure> {
        let opened = async {
            let key = self.resolve(named).await?.map_err(Trouble::Fatal)?;
            let since = Since::Turns(if self.is_private { 0 } else { TURNS });
            let agent = key.agent().into_owned();
            match self.attach_to(key, since).await? {
                Ok(()) => Ok(()),
                Err(why) => {
                    let known = self.ask(exoclaw::agents).await?.map(|list| exoclaw::agents_of(&list));
                    Err(Trouble::refusal(
                        known.ok().and_then(|known| no_agent(&agent, &known)).unwrap_or(why),
                    ))
                }
            }
        };
        opened.await.map_err(Trouble::into_failure)
    }

    /// The key of the session that is meant.
    pub(super) async fn resolve(&mut self, named: &Named) -> Result<Result<SessionKey, Failure>, Trouble> {
        match named {
            Named::Key(key) => Ok(Ok(key.clone())),
            Named::Beginning(text) => match self.keys().await? {
                Ok(keys) => Ok(chosen(text, &keys)),
                Err(why) => Ok(Err(Failure::new(FAILED, one_line(&why, 1000)))),
            },
        }
    }

    /// The keys of all sessions this client may see.
    pub(super) async fn keys(&mut self) -> Result<Result<Vec<String>, String>, Trouble> {
        Ok(self.ask(exoclaw::sessions).await?.map(|list| {
            let key = |session: &Value| session["session"].as_str().map(str::to_owned);
            list.as_array().into_iter().flatten().filter_map(key).collect()
        }))
    }

    /// Has what there is to name completed. What the daemon does not tell is not.
    pub(super) async fn learn_names(&mut self) -> Result<(), Trouble> {
        let Some(completions) = self.completions.clone() else { return Ok(()) };
        let sessions = self.keys().await?.unwrap_or_default();
        let sessions = sessions.iter().map(|key| self.namer.called(key)).collect();
        completions.set("/switch", Arguments::Words(sessions));
        let agents =
            self.ask(exoclaw::agents).await?.map(|list| exoclaw::agents_of(&list)).unwrap_or_default();
        completions.set("/agent", Arguments::Words(agents.into_iter().map(|agent| agent.name).collect()));
        let models =
            self.ask(exoclaw::models).await?.map(|list| exoclaw::models_of(&list)).unwrap_or_default();
        completions.set("/model", Arguments::Words(models.into_iter().map(|model| model.model).collect()));
        Ok(())
    }

    /// Has the offline model's commands completed while it answers.
    pub(super) fn complete_offline(&self) {
        let Some(completions) = &self.completions else { return };
        for command in local::offline_names() {
            if self.is_offline() {
                completions.set(&command, Arguments::Words(Vec::new()));
            } else {
                completions.unset(&command);
            }
        }
    }

    /// Goes over to this session; stays where it was where that is refused.
    pub(super) async fn switch(&mut self, key: SessionKey) -> Result<Result<(), String>, Trouble> {
        let old = self.attach.clone();
        let switched = self.attach_to(key, Since::Turns(TURNS)).await?;
        if switched.is_ok() {
            let id = self.new_id();
            self.link.send(exoclaw::detach(&id, &old)).await.map_err(Trouble::Lost)?;
        }
        Ok(switched)
    }

    async fn attach_to(&mut self, key: SessionKey, since: Since) -> Result<Result<(), String>, Trouble> {
        let thoughts = self.face.wants_thoughts();
        let request = |id: &str| exoclaw::attach(id, &key, since, thoughts);
        let answer = self.ask(request).await?;
        // As `ask` named it, and nothing was asked since.
        let id = self.last_id.to_string();
        let Attached { seq, agent, model, .. } = match answer {
            Ok(result) => match exoclaw::attached(&result) {
                Some(attached) => attached,
                None => return Ok(Err("the daemon answers something else than was asked".into())),
            },
            Err(why) => return Ok(Err(why)),
        };
        self.attach = id;
        if let Since::Turns(_) = since {
            if self.conversation.is_busy() {
                // What is shown of it ends here.
                self.face.end_answer(&End { outcome: Outcome::Completed, elapsed: None, tokens: None });
            }
            self.conversation =
                if self.is_private { Conversation::private() } else { Conversation::default() };
            self.conversation.begins(seq, Instant::now());
            (self.aborting, self.deciding) = (None, Deciding::default());
            self.face.ask(None);
            let agent = agent.unwrap_or_else(|| key.agent().into_owned());
            let shown = model.as_deref().map(|model| format!(", model {model}")).unwrap_or_default();
            if !self.is_private {
                self.face.banner(&format!("agent {agent}{shown}, session {key}"));
            }
        }
        (self.session, self.model) = (key, model);
        self.complete_offline();
        Ok(Ok(()))
    }

    /// The model that answers the next prompt.
    pub(super) fn answering(&self) -> Option<&str> {
        self.chosen_model.as_deref().or(self.model.as_deref())
    }

    pub(super) fn is_offline(&self) -> bool {
        self.answering().is_some_and(|model| model == "offline/offline")
    }

    /// Sends a prompt until it is durable or refused.
    async fn prompt(&mut self, text: &str) -> Result<Sent, Failure> {
        let key = RunId::from_random(clock::random());
        let files = std::mem::take(&mut self.files);
        let begun = Instant::now();
        let sent = loop {
            let id = self.new_id();
            let prompt = Prompt {
                session: &self.session,
                content: text,
                key: key.as_str(),
                model: self.chosen_model.as_deref(),
                attachments: &files.files(),
                follow: false,
            };
            let frame = prompt.frame(&id);
            let most = self.link.request_bytes_max();
            if frame.len() > most {
                break Sent::Refused(format!(
                    "with its attachments the prompt has {} bytes as it is sent, more than the {most} that the \
                     daemon takes",
                    frame.len()
                ));
            }
            self.conversation.sends();
            let trouble = match self.link.send(frame).await {
                Ok(()) => match self.acceptance(&id, begun).await {
                    Ok(sent) => break sent,
                    Err(trouble) => trouble,
                },
                Err(lost) => Trouble::Lost(lost),
            };
            if self.recover(trouble).await? == Flow::Leave {
                break Sent::Left;
            }
        };
        let now = Instant::now();
        let happened = match &sent {
            Sent::Accepted(run) => {
                self.face.accepted(self.session.as_str(), run);
                self.conversation.accepted(run, now, &mut *self.face)
            }
            Sent::Refused(_) | Sent::Left => self.conversation.refused(now, &mut *self.face),
        };
        self.happened.extend(happened);
        Ok(sent)
    }

    /// Waits for what becomes of the prompt that was sent under this id.
    async fn acceptance(&mut self, id: &str, begun: Instant) -> Result<Sent, Trouble> {
        loop {
            if begun.elapsed() > ACCEPT {
                let why = format!("the daemon did not take the prompt within {} s", ACCEPT.as_secs());
                return Err(Trouble::Fatal(Failure::new(FAILED, why)));
            }
            match self.next_of_link().await {
                Next::Told(Ok(Told::Event { id: of, event: StreamEvent::Accepted { run, .. }, .. }))
                    if of == id =>
                {
                    return Ok(Sent::Accepted(run));
                }
                Next::Told(Ok(Told::Answer { id: of, outcome })) if of == id => {
                    return Ok(Sent::Refused(match outcome {
                        Err(why) => why,
                        Ok(_) => "the daemon answers something else than was asked".into(),
                    }));
                }
                Next::Told(Ok(told)) => self.hear(told)?,
                Next::Told(Err(lost)) => return Err(Trouble::Lost(lost)),
                Next::Interrupted | Next::Terminated | Next::Typed(_) => return Ok(Sent::Left),
                Next::Tick => {}
            }
        }
    }

    /// The same as [`Self::next`], while what is typed has to wait.
    async fn next_of_link(&mut self) -> Next {
        tokio::select! {
            told = self.link.next() => Next::Told(told),
            () = wants_to_leave(&mut self.typed, &mut self.early) => Next::Typed(None),
            _ = self.signals.interrupt.recv() => Next::Interrupted,
            _ = self.signals.terminate.recv() => Next::Terminated,
            _ = self.signals.hang_up.recv() => Next::Terminated,
            _ = self.tick.tick() => Next::Tick,
        }
    }

    /// Sends what was typed.
    async fn say(&mut self, text: &str) -> Result<Flow, Trouble> {
        match self.prompt(text).await.map_err(Trouble::Fatal)? {
            Sent::Accepted(_) => Ok(Flow::Stay),
            Sent::Refused(why) => {
                self.face.own_turn();
                self.face.error(&why);
                Ok(Flow::Stay)
            }
            Sent::Left => Ok(Flow::Leave),
        }
    }

    /// What was typed, and what is to be done for it.
    async fn take(&mut self, typed: Typed) -> Result<Flow, Trouble> {
        if !matches!(typed, Typed::Interrupt { .. }) {
            self.is_leaving = false;
        }
        self.face.entered();
        match typed {
            Typed::Interrupt { dropped } => self.interrupted(dropped).await,
            Typed::Leave => Ok(Flow::Leave),
            Typed::Key(key) => self.decide(key).await,
            Typed::Prompt(text) if self.deciding.is_editing() => self.edited(&text).await,
            Typed::Prompt(text) => match self.key_of(&text) {
                Some(key) => self.decide(key).await,
                None => match local::read(&text, self.is_offline()) {
                    Line::Nothing => Ok(Flow::Stay),
                    Line::Prompt(text) => self.say(&text).await,
                    Line::Command(command) => self.obey(command).await,
                    Line::Refused(why) => {
                        self.face.error(&why);
                        Ok(Flow::Stay)
                    }
                },
            },
        }
    }

    /// Ctrl-C: it ends the answer under way; where none is, or it was told to end already, it leaves the
    /// second time. `dropped`: it dropped a line, which is a first time.
    async fn interrupted(&mut self, dropped: bool) -> Result<Flow, Trouble> {
        if self.deciding.is_editing() {
            self.stop_editing();
            return Ok(Flow::Stay);
        }
        if dropped {
            self.is_leaving = true;
            self.face.note(ONCE_MORE);
            return Ok(Flow::Stay);
        }
        match self.conversation.abortable() {
            Some(run) if self.aborting.as_ref() != Some(&run) => self.abort(run).await,
            Some(_) => Ok(Flow::Leave),
            None if self.is_leaving => Ok(Flow::Leave),
            None => {
                self.is_leaving = true;
                self.face.note(ONCE_MORE);
                Ok(Flow::Stay)
            }
        }
    }

    /// Has this run end.
    pub(super) async fn abort(&mut self, run: String) -> Result<Flow, Trouble> {
        let id = self.new_id();
        let abort = exoclaw::abort_run(&id, &self.session, Some(&run));
        self.aborting = Some(run);
        self.link.send(abort).await.map_err(Trouble::Lost)?;
        Ok(Flow::Stay)
    }

    /// Waits for the daemon where the connection is lost.
    ///
    /// # Errors
    /// Where there is no going on: status 69 where the daemon is not back in time.
    async fn recover(&mut self, trouble: Trouble) -> Result<Flow, Failure> {
        let mut lost = match trouble {
            Trouble::Lost(failure) => failure,
            Trouble::Fatal(failure) => return Err(failure),
        };
        let begun = Instant::now();
        self.status = None;
        self.face.status(None);
        self.face.note(&format!("{}: waiting for the daemon, Ctrl-C leaves", lost.message));
        loop {
            // What it says to that, or why there is no connection.
            let opened = tokio::select! {
                opened = Link::open(&self.door) => opened,
                () = wants_to_leave(&mut self.typed, &mut self.early) => return Ok(Flow::Leave),
                _ = self.signals.interrupt.recv() => return Ok(Flow::Leave),
                _ = self.signals.terminate.recv() => return Ok(Flow::Leave),
                _ = self.signals.hang_up.recv() => return Ok(Flow::Leave),
            };
            match opened {
                Ok(link) => {
                    self.link = link;
                    match self.attach_again().await {
                        Ok(()) => return Ok(Flow::Stay),
                        Err(Trouble::Fatal(failure)) => return Err(failure),
                        Err(Trouble::Lost(failure)) => lost = failure,
                    }
                }
                Err(NotOpen::Refused(failure)) => return Err(failure),
                Err(NotOpen::Passing(failure)) => lost = failure,
            }
            if begun.elapsed() >= PATIENCE {
                return Err(lost);
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = wants_to_leave(&mut self.typed, &mut self.early) => return Ok(Flow::Leave),
                _ = self.signals.interrupt.recv() => return Ok(Flow::Leave),
                _ = self.signals.terminate.recv() => return Ok(Flow::Leave),
            }
        }
    }

    /// Goes on after the last that was seen.
    async fn attach_again(&mut self) -> Result<(), Trouble> {
        let since = match self.conversation.lost() {
            Some(seen) => Since::Seq(seen),
            None => Since::Turns(if self.is_private { 0 } else { TURNS }),
        };
        self.aborting = None;
        self.attach_to(self.session.clone(), since).await?.map_err(Trouble::refusal)
    }
}

impl Trouble {
    /// The daemon says no to what there is no going on without.
    fn refusal(why: String) -> Self {
        Self::Fatal(failed(&why))
    }

    fn into_failure(self) -> Failure {
        match self {
            Self::Lost(failure) | Self::Fatal(failure) => failure,
        }
    }
}

fn failed(why: &str) -> Failure {
    Failure::new(FAILED, format!("error: {}", one_line(why, 1000)))
}

fn left() -> Failure {
    Failure::new(INTERRUPTED, "left: the answer goes on in the daemon")
}

/// What is typed; never anything where nobody types.
async fn typed(typed: &mut Option<mpsc::Receiver<Typed>>) -> Option<Typed> {
    match typed {
        Some(typed) => typed.recv().await,
        None => pending().await,
    }
}

/// Waits until whoever types wants to leave; what else is typed is kept for later.
async fn wants_to_leave(typed: &mut Option<mpsc::Receiver<Typed>>, early: &mut VecDeque<Typed>) {
    loop {
        match self::typed(typed).await {
            Some(Typed::Interrupt { .. } | Typed::Leave) | None => return,
            Some(Typed::Prompt(text)) if text.trim() == "/quit" => return,
            Some(other) if early.len() < EARLY_MAX => early.push_back(other),
            Some(_) => {}
        }
    }
}
