//! Doing what was decided: it is asked of the sessions, again for a while where they refuse it for the moment,
//! and the turns of agents are followed to their end.

use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::agents::registry::{Effect, Note, Phase, TurnEnd};
use clawmux_core::conversation::command::{CreateSession, Inject, SessionCommand, Stop, Submit};
use clawmux_core::conversation::event::{Cause, Event, Outcome, Published};
use clawmux_core::conversation::reply::SessionReply;
use clawmux_core::conversation::turn::Turn;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, SubAgentId, Ticket};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::Patch;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::target::Target;

use super::decisions::Promise;
use super::{AgentSupervisor, Question};
use crate::runtime::clock;
use crate::runtime::deliver::cost;

/// How long until something that was refused for the moment is asked for again, times how often it was,
/// up to [`RETRY_MAX`].
pub(super) const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How often that is done before it has failed: some ten minutes.
const ATTEMPTS_MAX: u32 = 80;

/// What an effect comes to: it is not begun anew while it is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Errand {
    Make(SubAgentId),
    /// The turn of this number.
    Turn(SubAgentId, u32),
    Stop(SubAgentId),
    Note(String),
}

/// Something that was asked for and is not over.
pub(super) struct OpenRequest {
    /// What it is for.
    pub(super) effect: Effect,
    /// The same, as it is known while it is under way.
    pub(super) errand: Errand,
    /// How often it was asked for.
    pub(super) attempt: u32,
    /// The run that is followed, where it is one.
    pub(super) run: Option<Followed>,
    /// Who waits for it: is answered when the last of these is dropped.
    pub(super) _promise: Option<Rc<Promise>>,
}

/// A turn whose run is followed.
pub(super) struct Followed {
    /// Whose.
    pub(super) agent: SubAgentId,
    /// Which.
    pub(super) turn: u32,
    /// The fold of its events so far.
    pub(super) fold: Turn,
}

impl AgentSupervisor {
    /// Does what is outstanding and not under way.
    pub(super) fn catch_up(&mut self, ctx: &mut Context<Self>) {
        for effect in self.rules.outstanding() {
            if self.errand(&effect).is_some_and(|errand| !self.under_way.contains(&errand)) {
                self.act(effect, 0, None, ctx);
            }
        }
    }

    fn errand(&self, effect: &Effect) -> Option<Errand> {
        Some(match effect {
            Effect::Make(agent) => Errand::Make(agent.clone()),
            Effect::Prompt(agent) => Errand::Turn(agent.clone(), self.rules.agent(agent)?.turns),
            Effect::Stop(agent) => Errand::Stop(agent.clone()),
            Effect::Note(note) => Errand::Note(note.id.clone()),
        })
    }

    /// Does something that was decided, where that still is to be done.
    pub(super) fn act(
        &mut self,
        effect: Effect,
        attempt: u32,
        promise: Option<Rc<Promise>>,
        ctx: &mut Context<Self>,
    ) {
        let Some((owner, command, run)) = self.command(&effect) else { return };
        let Some(errand) = self.errand(&effect) else { return };
        let Some(line) = &mut self.line else { return };
        self.under_way.insert(errand.clone());
        self.turns_total += u64::from(run.is_some() && attempt == 0);
        let waiting = OpenRequest { effect, errand, attempt, run, _promise: promise };
        if let Err(waiting) = line.ask(owner, command, waiting, ctx.address().recipient()) {
            let busy = ErrorCode::Unavailable.error("the daemon is busy");
            self.refused(*waiting, busy, ctx);
        }
    }

    /// What is asked of the sessions for it, on whose behalf.
    fn command(&self, effect: &Effect) -> Option<(Owner, SessionCommand, Option<Followed>)> {
        match effect {
            Effect::Make(id) => {
                let agent = self.rules.agent(id)?;
                let target = Target::Session(agent.session.clone());
                let model = agent.model.as_ref().map(|model| Some(model.to_string()));
                let patch = Patch { model, ..Patch::default() };
                Some((
                    agent.owner.clone(),
                    SessionCommand::CreateSession(CreateSession { target, patch }),
                    None,
                ))
            }
            Effect::Prompt(id) => {
                let agent = self.rules.agent(id)?;
                let Phase::Turn { content, .. } = &agent.phase else { return None };
                let submit = Submit {
                    target: Target::Session(agent.session.clone()),
                    run: RunId::from_random(clock::random()),
                    content: content.clone(),
                    idempotency_key: Some(agent.turn_key()),
                    attachments: Vec::new(),
                    files: Vec::new(),
                    local_files: Vec::new(),
                    run_options: RunOptions::default(),
                    follow: true,
                };
                let followed = Followed { agent: id.clone(), turn: agent.turns, fold: Turn::new() };
                Some((agent.owner.clone(), SessionCommand::Submit(submit), Some(followed)))
            }
            Effect::Stop(id) => {
                let agent = self.rules.agent(id)?;
                let target = Target::Session(agent.session.clone());
                Some((
                    agent.owner.clone(),
                    SessionCommand::Stop(Stop { target, cause: Cause::Stopped }),
                    None,
                ))
            }
            Effect::Note(Note { id, session, owner, content }) => {
                let (target, content) = (Target::Session(session.clone()), content.clone());
                let id = Some(RunId::from(id.as_str()));
                Some((owner.clone(), SessionCommand::Inject(Inject { target, content, id }), None))
            }
        }
    }

    /// Something could not be done: for the moment, or at all.
    fn refused(&mut self, waiting: OpenRequest, error: Error, ctx: &mut Context<Self>) {
        let OpenRequest { effect, errand, attempt, run, .. } = waiting;
        if error.is_retryable() && attempt < ATTEMPTS_MAX {
            self.retries_total += 1;
            let delay = (RETRY * (attempt + 1)).min(RETRY_MAX);
            ctx.run_later(delay, move |supervisor, ctx| {
                // It may be over, or be another daemon's to do.
                if supervisor.under_way.contains(&errand) {
                    supervisor.act(effect, attempt + 1, None, ctx);
                }
            });
            return;
        }
        let is_gone = error.code == ErrorCode::NotFound;
        match (effect, run) {
            (Effect::Prompt(agent), Some(run)) => {
                let outcome = Outcome::Failed(error);
                let end = TurnEnd { outcome, text: String::new(), usage: Usage::default() };
                self.ask(Question::TurnEnded(agent, run.turn, end), ctx);
            }
            (Effect::Stop(agent), _) => {
                if !is_gone {
                    tracing::warn!(%agent, %error, "the session of an agent was not stopped");
                }
                self.ask(Question::Settled(agent), ctx);
            }
            (Effect::Note(note), _) => {
                if !is_gone {
                    tracing::warn!(note = note.id, %error, "a result was not put where it belongs");
                }
                self.ask(Question::Noted(note.id), ctx);
            }
            (Effect::Make(agent), _) => {
                tracing::warn!(%agent, %error, "the session of an agent was not made");
                self.under_way.remove(&errand);
            }
            (Effect::Prompt(_), None) => {}
        }
    }

    pub(super) fn replied(&mut self, ticket: Ticket, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        let Some(line) = &mut self.line else { return };
        // A run that was accepted is followed.
        if let Ok(Reply::Session(SessionReply::Accepted(_))) = reply {
            return;
        }
        let Some(waiting) = line.over(ticket) else { return };
        match (reply, waiting.effect) {
            (Err(error), effect) => self.refused(OpenRequest { effect, ..waiting }, error, ctx),
            (Ok(_), Effect::Stop(agent)) => self.ask(Question::Settled(agent), ctx),
            (Ok(_), Effect::Note(note)) => self.ask(Question::Noted(note.id), ctx),
            // Who leads makes no session twice: nothing that is written down says that it is there.
            (Ok(_), Effect::Make(_)) if self.setup.leads => {}
            (Ok(_), Effect::Make(_)) => drop(self.under_way.remove(&waiting.errand)),
            (Ok(_), Effect::Prompt(_)) => {}
        }
    }

    pub(super) fn heard(&mut self, ticket: Ticket, event: &Published, ctx: &mut Context<Self>) {
        let Some(line) = &mut self.line else { return };
        line.taken(cost(event));
        let Some(OpenRequest { run: Some(run), .. }) = line.waiting(ticket) else { return };
        run.fold.apply(&event.logged.event);
        let Event::Ended { outcome, usage } = &event.logged.event else { return };
        let (outcome, usage) = (outcome.clone(), *usage);
        if let Some(OpenRequest { run: Some(Followed { agent, turn, fold }), .. }) = line.over(ticket) {
            let (text, _) = fold.text();
            self.ask(Question::TurnEnded(agent, turn, TurnEnd { outcome, text, usage }), ctx);
        }
    }
}
