//! What is asked for is decided and written down, and only then done and answered. Where it can't be written
//! the supervisor goes back to what is.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use clawmux_core::agents::registry::{Change, Effect, Moment, News, Step};
use clawmux_core::agents::subagent::{
    AgentStatus, Await, Spawn, Status, Stop, SubAgentCommand, SubAgentReply,
};
use clawmux_core::agents::team::{self, Dissolve, Sent, TeamCommand, TeamReply};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use tokio::sync::oneshot;

use super::effects::{Errand, RETRY};
use super::{AgentSupervisor, Question, SessionEnds};
use crate::hub::Announce;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::runtime::dispatch::{Located, Request};
use crate::runtime::line::Line;
use crate::store::{Describe, Described, ReadAgents, ReadRow, WriteAgents};

/// How long after the log could not be read it is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Tells a decision, or why it could not be written down; or gives what will.
pub(super) type Tell = Box<dyn FnOnce(Result<(), Error>) -> Option<Rc<Promise>>>;

/// An answer that is given when the last of those drops it who do something before.
pub(super) struct Promise(Option<(Asker, Result<Reply, Error>)>);

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some((asker, reply)) = self.0.take() {
            asker.reply(reply);
        }
    }
}

impl AgentSupervisor {
    pub(super) fn decide(&mut self, question: Question, ctx: &mut Context<Self>) {
        let now = clock::now();
        match question {
            Question::SubAgent(Located { request, session }) => {
                let Request { command, principal, asker } = request;
                match command {
                    SubAgentCommand::Spawn(spawn) => match session {
                        None => self.spawn(*spawn, &principal, None, asker, ctx),
                        Some(parent) => self.look_and_spawn(*spawn, parent, principal, asker, ctx),
                    },
                    SubAgentCommand::List(_) => {
                        let list = SubAgentReply::List(self.rules.list(&principal));
                        asker.reply(Ok(list.into()));
                    }
                    SubAgentCommand::Status(Status { agent }) => {
                        asker.reply(self.rules.status(&principal, &agent).map(agent_reply));
                    }
                    SubAgentCommand::Await(Await { agent }) => match self.rules.status(&principal, &agent) {
                        Ok(status) if !status.state.is_over() => {
                            self.awaiting.entry(agent).or_default().push(asker);
                        }
                        status => asker.reply(status.map(agent_reply)),
                    },
                    SubAgentCommand::Stop(Stop { agent, reason, force }) => {
                        let stopped = self.rules.stop(now, &principal, &agent, reason, force);
                        self.answer(asker, stopped.map(agent_reply), ctx);
                    }
                }
            }
            Question::Team(Request { command, principal, asker }) => {
                let is_new = matches!(command, TeamCommand::Create(_));
                let reply = self.decide_team(command, &principal);
                let reply = reply.map(Reply::Team);
                if is_new {
                    self.answer_when_made(asker, reply, ctx);
                } else {
                    self.answer(asker, reply, ctx);
                }
            }
            Question::Ends(SessionEnds { session, principal }, done) => {
                self.rules.session_ends(now, &principal, &session);
                let tell = move |_| {
                    let _ = done.send(());
                    None
                };
                self.carry_out(Box::new(tell), ctx);
            }
            Question::TurnEnded(agent, turn, end) => {
                self.under_way.remove(&Errand::Turn(agent.clone(), turn));
                self.under_way.remove(&Errand::Make(agent.clone()));
                self.rules.turn_ended(now, &agent, turn, end);
                self.carry_out(Box::new(|_| None), ctx);
            }
            Question::Settled(agent) => {
                self.rules.settled(&agent);
                self.under_way.remove(&Errand::Make(agent.clone()));
                self.under_way.remove(&Errand::Stop(agent));
                self.carry_out(Box::new(|_| None), ctx);
            }
            Question::Resume => self.resume(ctx),
            Question::Configured => {
                self.rules.configure(now, self.setup.rules.clone());
                self.carry_out(Box::new(|_| None), ctx);
            }
            Question::Noted(note) => {
                self.rules.noted(&note);
                self.under_way.remove(&Errand::Note(note));
                self.carry_out(Box::new(|_| None), ctx);
            }
        }
    }

    fn decide_team(&mut self, command: TeamCommand, by: &Principal) -> Result<TeamReply, Error> {
        let at = &mut Moment { now: clock::now(), random: &mut clock::random };
        match command {
            TeamCommand::Create(create) => self.rules.create(at, by, create).map(TeamReply::Status),
            TeamCommand::Status(team::Status { team }) => {
                self.rules.status_of_team(by, &team).map(TeamReply::Status)
            }
            TeamCommand::Dissolve(Dissolve { team, reason }) => {
                self.rules.dissolve(at.now, by, &team, reason).map(TeamReply::Status)
            }
            TeamCommand::Message(message) => {
                let team = message.team.clone();
                let (message, to) = self.rules.message(at, by, message)?;
                Ok(TeamReply::Sent(Sent { team, message, to }))
            }
        }
    }

    /// Looks whose the parent is, then spawns; nothing else is decided meanwhile.
    fn look_and_spawn(
        &mut self,
        spawn: Spawn,
        parent: SessionKey,
        by: Principal,
        asker: Asker,
        ctx: &mut Context<Self>,
    ) {
        self.is_busy = true;
        let (store, session) = (self.setup.store.clone(), parent.clone());
        let look = async move {
            let described = ask(&store, Describe { session: session.clone() }).await??;
            let row = ask(&store, ReadRow(session)).await??;
            Ok(described.map(|described| (described, row.is_some_and(|row| row.settings.closed.is_some()))))
        };
        ctx.spawn(look.into_actor(self).map(move |described: Result<_, Error>, supervisor, ctx| {
            supervisor.is_busy = false;
            match described {
                Ok(Some((Described { owner, .. }, true))) if by.sees(&owner) => {
                    asker.reply(Err(ErrorCode::Conflict.error(format!("session {parent} was stopped"))));
                }
                Ok(Some((Described { owner, spent, .. }, false))) if by.sees(&owner) => {
                    let shared_budgets = &supervisor.setup.shared_budgets;
                    if shared_budgets.of(&parent).is_none() {
                        shared_budgets.share(&parent, &parent, None);
                        shared_budgets.add(&parent, spent);
                    }
                    supervisor.spawn(spawn, &by, Some((parent, owner)), asker, ctx);
                }
                Ok(_) => asker.reply(Err(ErrorCode::NotFound.error(format!("no such session: {parent}")))),
                Err(error) => asker.reply(Err(error)),
            }
            supervisor.go_on(ctx);
        }));
    }

    fn spawn(
        &mut self,
        spawn: Spawn,
        by: &Principal,
        parent: Option<(SessionKey, Owner)>,
        asker: Asker,
        ctx: &mut Context<Self>,
    ) {
        let at = &mut Moment { now: clock::now(), random: &mut clock::random };
        let spawned = self.rules.spawn(at, by, spawn, parent);
        self.answer_when_made(asker, spawned.map(agent_reply), ctx);
    }

    /// Answers once what was decided is written down.
    fn answer(&mut self, asker: Asker, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        let tell = move |written: Result<(), Error>| {
            asker.reply(written.and(reply));
            None
        };
        self.carry_out(Box::new(tell), ctx);
    }

    /// Answers once that is written down and the sessions are made that the answer names, so that who is
    /// answered finds them.
    fn answer_when_made(&mut self, asker: Asker, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        let tell = move |written: Result<(), Error>| {
            let promise = Promise(Some((asker, written.and(reply))));
            Some(Rc::new(promise))
        };
        self.carry_out(Box::new(tell), ctx);
    }

    /// Has what was decided written down, then tells and does it.
    fn carry_out(&mut self, tell: Tell, ctx: &mut Context<Self>) {
        let Step { changes, effects, news } = self.rules.take();
        if changes.is_empty() {
            let promise = tell(Ok(()));
            return self.follow_up(effects, news, promise.as_ref(), ctx);
        }
        self.is_busy = true;
        self.share(&changes);
        let store = self.setup.store.clone();
        let written = async move { ask(&store, WriteAgents(changes)).await.flatten() };
        ctx.spawn(written.into_actor(self).map(move |written, supervisor, ctx| {
            supervisor.is_busy = false;
            match written {
                Ok(()) => {
                    supervisor.setup.parent_sessions.set(supervisor.rules.parent_sessions());
                    let promise = tell(Ok(()));
                    supervisor.follow_up(effects, news, promise.as_ref(), ctx);
                    supervisor.go_on(ctx);
                }
                Err(error) => {
                    tell(Err(error.clone()));
                    supervisor.fall(&error, ctx);
                }
            }
        }));
    }

    /// Those who are new spend from the purses they are to spend from.
    fn share(&self, changes: &[Change]) {
        let shared_budgets = &self.setup.shared_budgets;
        for change in changes {
            if let Change::Agent(agent) = change
                && agent.turns <= 1
            {
                shared_budgets.share(&agent.root, &agent.session, agent.tokens_max);
            }
        }
        if changes.iter().any(|change| matches!(change, Change::ForgetAgent(_))) {
            let mut needed: HashSet<&SessionKey> = HashSet::new();
            for agent in self.rules.agents() {
                needed.extend([&agent.session, &agent.root]);
            }
            shared_budgets.retain(|session| needed.contains(session));
        }
    }

    fn follow_up(
        &mut self,
        effects: Vec<Effect>,
        news: Vec<News>,
        promise: Option<&Rc<Promise>>,
        ctx: &mut Context<Self>,
    ) {
        for effect in effects {
            let promise = promise.filter(|_| matches!(effect, Effect::Make(_))).cloned();
            if self.setup.leads || promise.is_some() {
                self.act(effect, 0, promise, ctx);
            }
        }
        self.tell_news(news);
    }

    /// Tells those who wait for the end of an agent, and all that may know of it.
    #[expect(clippy::disallowed_methods, reason = "a few messages for each decision that was carried out")]
    fn tell_news(&mut self, news: Vec<News>) {
        for news in news {
            if let News::Agent(told) = &news
                && told.status.state.is_over()
            {
                for asker in self.awaiting.remove(&told.status.agent).into_iter().flatten() {
                    asker.reply(Ok(agent_reply(told.status.clone())));
                }
            }
            self.setup.hub.do_send(Announce(Arc::new(news.into())));
        }
    }

    /// Goes back to what is written, once that can be read and written again.
    fn fall(&mut self, error: &Error, ctx: &mut Context<Self>) {
        tracing::warn!(%error, "the agent supervisor starts again from the store");
        self.is_broken = true;
        for question in std::mem::take(&mut self.waiting) {
            if let Question::SubAgent(Located { request: Request { asker, .. }, .. })
            | Question::Team(Request { asker, .. }) = question
            {
                asker.reply(Err(error.clone()));
            }
        }
        let restored = self.setup.log.clone().restored();
        ctx.spawn(restored.into_actor(self).map(|(), _, ctx| {
            // A moment later, so that a fault that comes back at once does not keep it busy.
            ctx.run_later(RETRY, Self::read_again);
        }));
    }

    fn read_again(&mut self, ctx: &mut Context<Self>) {
        let store = self.setup.store.clone();
        let read = async move { ask(&store, ReadAgents).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|read, supervisor, ctx| match read {
            Ok(kept) => {
                supervisor.restore(kept);
                supervisor.is_broken = false;
                supervisor.resume(ctx);
            }
            Err(error) => {
                tracing::warn!(%error, "what is written of the agents can't be read");
                ctx.run_later(READ_AGAIN, Self::read_again);
            }
        }));
    }

    /// Goes over to what another daemon changed, and tells it; nothing is decided meanwhile.
    pub(super) fn read_changed(&mut self, changed: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.is_busy = true;
        let store = self.setup.store.clone();
        let read = async move { ask(&store, ReadAgents).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|read, supervisor, ctx| {
            supervisor.is_busy = false;
            match read {
                Ok(kept) => {
                    let before = supervisor.restore(kept);
                    drop(changed);
                    let news = supervisor.rules.news_since(&before);
                    supervisor.tell_news(news);
                    supervisor.tell_who_waits();
                    if supervisor.setup.leads {
                        supervisor.catch_up(ctx);
                    }
                    supervisor.go_on(ctx);
                }
                // It reads everything anew then, this too.
                Err(error) => supervisor.fall(&error, ctx),
            }
        }));
    }

    fn tell_who_waits(&mut self) {
        let (rules, all) = (&self.rules, Principal::socket());
        self.awaiting.retain(|agent, askers| {
            let status = rules.status(&all, agent);
            if matches!(&status, Ok(status) if !status.state.is_over()) {
                return true;
            }
            for asker in askers.drain(..) {
                asker.reply(status.clone().map(agent_reply));
            }
            false
        });
    }

    /// Asks for everything anew that may be under way, where that is done here; else nothing of it is heard any more.
    pub(super) fn resume(&mut self, ctx: &mut Context<Self>) {
        self.line = self.line.as_ref().map(Line::anew);
        self.under_way.clear();
        if self.setup.leads {
            self.rules.resume(clock::now());
            self.carry_out(Box::new(|_| None), ctx);
        }
        self.go_on(ctx);
    }
}

fn agent_reply(status: AgentStatus) -> Reply {
    SubAgentReply::Status(Box::new(status)).into()
}
