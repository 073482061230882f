//! `Crew`: agents that work for sessions, and their teams.
//!
//! The rules are the core's ([`clawmux_core::crew`]); here what they decide is written down and then
//! done. One decision at a time: what comes meanwhile waits. Agents are prompted over the same road as
//! everybody's sessions ([`Line`]): under a key that is the turn's, so that after a crash each turn
//! under way is asked for again, is the run it was, and is followed to its end. What the sessions refuse
//! for the moment is asked for again for a while.
//!
//! Where something can't be written down nothing of it is done: the crew goes back to what is written
//! once the store can be written again, and asks for everything under way anew, as after a crash.

mod kin;
mod waiting;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::announcement::Announcement;
use clawmux_core::auth::{Owner, Principal};
use clawmux_core::crew::{self as rules, Change, Effect, Moment, Note, Phase, Step, TurnEnd};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::{Cause, Event, Outcome, Published, Usage};
use clawmux_core::ids::{RunId, SessionKey, SubAgentId, Ticket};
use clawmux_core::manner::Manner;
use clawmux_core::reply::Reply;
use clawmux_core::session_command::{CreateSession, Inject, SessionCommand, Stop, Submit};
use clawmux_core::session_reply::SessionReply;
use clawmux_core::settings::Patch;
use clawmux_core::subagent::{AgentStatus, Spawn, SubAgentCommand, SubAgentReply};
use clawmux_core::target::Target;
use clawmux_core::team::{TeamCommand, TeamReply};
use clawmux_core::turn::Turn;
use serde_json::json;
use tokio::sync::oneshot;

use crate::ask::ask;
use crate::clock;
use crate::deliver::{Asker, Deliver, cost};
use crate::dispatch::Request;
use crate::hub::{Announce, Hub};
use crate::line::Line;
use crate::observe::{Observe, Observed};
use crate::provider::purse::Purses;
use crate::session_supervisor::Gone;
use crate::store::{Describe, Described, Health, KeptCrew, ReadCrew, ReadRow, Store, WriteCrew};
pub use kin::Kin;
use waiting::{Followed, Waiting};

/// Requests that may wait for a decision.
const WAITING_MAX: usize = 256;

/// Deliveries and requests that may wait: more than a full window of the smallest events.
const MAILBOX: usize = 2048;

/// How long until something that was refused for the moment is asked for again, times how often it was,
/// up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How often that is done before it has failed: some ten minutes.
const ATTEMPTS_MAX: u32 = 80;

/// How soon a line that fell too far behind is noticed.
const LAG_CHECK: Duration = Duration::from_secs(5);

/// How long after the log could not be read it is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What a crew is made with.
pub struct Setup {
    /// The bounds, and who can work.
    pub rules: rules::Setup,
    /// Where it is written down.
    pub store: Addr<Store>,
    /// Who tells those that want to know.
    pub hub: Addr<Hub>,
    /// Whether it can be written down.
    pub log: Health,
    /// What sessions spend together.
    pub purses: Purses,
    /// The sessions whose end is to be told here.
    pub kin: Kin,
}

/// The actor.
pub struct Crew {
    setup: Setup,
    rules: rules::Crew,
    line: Option<Line<Waiting>>,
    /// Those who wait while something is decided or written down.
    waiting: VecDeque<Question>,
    is_busy: bool,
    /// Nothing is decided until it was read what is written.
    is_broken: bool,
    turns_total: u64,
    retries_total: u64,
}

/// From here on agents can be prompted; those whose turn was cut off are.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Begin {
    /// Where requests go.
    pub dispatch: Recipient<Request<SessionCommand>>,
    /// Who is told that a connection is gone.
    pub gone: Recipient<Gone>,
}

/// Goes over to other bounds and agents; what is under way goes on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure(pub rules::Setup);

/// Does what is asked about agents or teams and answers who asked.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Direct {
    /// What.
    pub command: Command,
    /// For whom; that it has the scope was checked.
    pub principal: Principal,
    /// Who is answered.
    pub asker: Asker,
}

/// What is asked.
#[derive(Debug)]
pub enum Command {
    /// About an agent; with the session that its command names.
    SubAgent(SubAgentCommand, Option<SessionKey>),
    /// About a team.
    Team(TeamCommand),
}

/// A session is about to be stopped or deleted: first the agents are whose end that is. Answered when
/// that is written down.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SessionEnds {
    /// The session.
    pub session: SessionKey,
    /// On whose behalf; who may not see an agent does not end it.
    pub principal: Principal,
}

/// Something to decide.
#[expect(clippy::large_enum_variant, reason = "a few wait at a time")]
enum Question {
    Direct(Direct),
    Ends(SessionEnds, oneshot::Sender<()>),
    TurnEnded(SubAgentId, u32, TurnEnd),
    Settled(SubAgentId),
    Noted(String),
    Configured,
}

/// Tells a decision, or why it could not be written down; or gives what will.
type Tell = Box<dyn FnOnce(Result<(), Error>) -> Option<Rc<Promise>>>;

/// An answer that is given when the last of those drops it who do something before.
struct Promise(Option<(Asker, Result<Reply, Error>)>);

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some((asker, reply)) = self.0.take() {
            asker.reply(reply);
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("counts", &self.rules.counts()).finish_non_exhaustive()
    }
}

impl Crew {
    /// Of what the store has.
    ///
    /// # Errors
    /// As the store's.
    pub async fn open(setup: Setup) -> Result<Self, Error> {
        let kept = ask(&setup.store, ReadCrew).await??;
        let rules = rules::Crew::restore(setup.rules.clone(), rules::Kept::default());
        let mut crew = Self {
            setup,
            rules,
            line: None,
            waiting: VecDeque::new(),
            is_busy: false,
            is_broken: false,
            turns_total: 0,
            retries_total: 0,
        };
        crew.restore(kept);
        Ok(crew)
    }

    /// As it is written down.
    fn restore(&mut self, KeptCrew { kept, spent }: KeptCrew) {
        let purses = &self.setup.purses;
        let mut is_new = HashSet::new();
        for agent in &kept.agents {
            for session in [&agent.root, &agent.session] {
                if purses.of(session).is_none() {
                    is_new.insert(session.clone());
                }
            }
            purses.share(&agent.root, &agent.session, agent.tokens_max);
        }
        for (session, tokens) in spent.iter().filter(|(session, _)| is_new.contains(session)) {
            purses.add(session, *tokens);
        }
        self.rules = rules::Crew::restore(self.setup.rules.clone(), kept);
        self.setup.kin.set(self.rules.kin());
    }

    /// Decides this now, or when what is being written down is.
    fn ask(&mut self, question: Question, ctx: &mut Context<Self>) {
        if self.is_broken || self.waiting.len() >= WAITING_MAX {
            match question {
                Question::Direct(Direct { asker, .. }) => {
                    let fault = self.setup.log.fault();
                    let busy = || ErrorCode::Unavailable.error("too many requests about agents: try again");
                    return asker.reply(Err(fault.unwrap_or_else(busy)));
                }
                // Asked for anew, with everything else that is under way.
                _ if self.is_broken => return,
                // As many as there are agents.
                _ => {}
            }
        }
        self.waiting.push_back(question);
        self.go_on(ctx);
    }

    fn go_on(&mut self, ctx: &mut Context<Self>) {
        while !self.is_busy
            && let Some(question) = self.waiting.pop_front()
        {
            self.decide(question, ctx);
        }
    }

    fn decide(&mut self, question: Question, ctx: &mut Context<Self>) {
        let now = clock::now();
        match question {
            Question::Direct(Direct { command, principal, asker }) => match command {
                Command::SubAgent(SubAgentCommand::Spawn(spawn), None) => {
                    self.spawn(spawn, &principal, None, asker, ctx);
                }
                Command::SubAgent(SubAgentCommand::Spawn(spawn), Some(parent)) => {
                    self.look_and_spawn(spawn, parent, principal, asker, ctx);
                }
                Command::SubAgent(SubAgentCommand::List, _) => {
                    let list = SubAgentReply::List(self.rules.list(&principal));
                    asker.reply(Ok(Reply::SubAgent(Box::new(list))));
                }
                Command::SubAgent(SubAgentCommand::Status { agent }, _) => {
                    asker.reply(self.rules.status(&principal, &agent).map(agent_reply));
                }
                Command::SubAgent(SubAgentCommand::Stop { agent, reason, force }, _) => {
                    let stopped = self.rules.stop(now, &principal, &agent, reason, force);
                    self.answer(asker, stopped.map(agent_reply), ctx);
                }
                Command::Team(command) => {
                    let is_new = matches!(command, TeamCommand::Create(_));
                    let reply = self.decide_team(command, &principal);
                    let reply = reply.map(|reply| Reply::Team(Box::new(reply)));
                    if is_new {
                        self.answer_when_made(asker, reply, ctx);
                    } else {
                        self.answer(asker, reply, ctx);
                    }
                }
            },
            Question::Ends(SessionEnds { session, principal }, done) => {
                self.rules.session_ends(now, &principal, &session);
                let tell = move |_| {
                    let _ = done.send(());
                    None
                };
                self.carry_out(Box::new(tell), ctx);
            }
            Question::TurnEnded(agent, turn, end) => {
                self.rules.turn_ended(now, &agent, turn, end);
                self.carry_out(Box::new(|_| None), ctx);
            }
            Question::Settled(agent) => {
                self.rules.settled(&agent);
                self.carry_out(Box::new(|_| None), ctx);
            }
            Question::Configured => {
                self.rules.configure(now, self.setup.rules.clone());
                self.carry_out(Box::new(|_| None), ctx);
            }
            Question::Noted(note) => {
                self.rules.noted(&note);
                self.carry_out(Box::new(|_| None), ctx);
            }
        }
    }

    fn decide_team(&mut self, command: TeamCommand, by: &Principal) -> Result<TeamReply, Error> {
        let at = &mut Moment { now: clock::now(), random: &mut clock::random };
        match command {
            TeamCommand::Create(create) => self.rules.create(at, by, create).map(TeamReply::Status),
            TeamCommand::Status { team } => self.rules.status_of_team(by, &team).map(TeamReply::Status),
            TeamCommand::Dissolve { team, reason } => {
                self.rules.dissolve(at.now, by, &team, reason).map(TeamReply::Status)
            }
            TeamCommand::Message(message) => {
                let team = message.team.clone();
                let (message, to) = self.rules.message(at, by, message)?;
                Ok(TeamReply::Sent { team, message, to })
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
        ctx.spawn(look.into_actor(self).map(move |described: Result<_, Error>, crew, ctx| {
            crew.is_busy = false;
            match described {
                Ok(Some((Described { owner, .. }, true))) if by.sees(&owner) => {
                    asker.reply(Err(ErrorCode::Conflict.error(format!("session {parent} was stopped"))));
                }
                Ok(Some((Described { owner, spent, .. }, false))) if by.sees(&owner) => {
                    let purses = &crew.setup.purses;
                    if purses.of(&parent).is_none() {
                        purses.share(&parent, &parent, None);
                        purses.add(&parent, spent.total());
                    }
                    crew.spawn(spawn, &by, Some((parent, owner)), asker, ctx);
                }
                Ok(_) => asker.reply(Err(ErrorCode::NotFound.error(format!("no such session: {parent}")))),
                Err(error) => asker.reply(Err(error)),
            }
            crew.go_on(ctx);
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
        let written = async move { ask(&store, WriteCrew(changes)).await.flatten() };
        ctx.spawn(written.into_actor(self).map(move |written, crew, ctx| {
            crew.is_busy = false;
            match written {
                Ok(()) => {
                    crew.setup.kin.set(crew.rules.kin());
                    let promise = tell(Ok(()));
                    crew.follow_up(effects, news, promise.as_ref(), ctx);
                    crew.go_on(ctx);
                }
                Err(error) => {
                    tell(Err(error.clone()));
                    crew.fall(&error, ctx);
                }
            }
        }));
    }

    /// Those who are new spend from the purses they are to spend from.
    fn share(&self, changes: &[Change]) {
        let purses = &self.setup.purses;
        for change in changes {
            if let Change::Agent(agent) = change
                && agent.turns <= 1
            {
                purses.share(&agent.root, &agent.session, agent.tokens_max);
            }
        }
        if changes.iter().any(|change| matches!(change, Change::ForgetAgent(_))) {
            let mut needed: HashSet<&SessionKey> = HashSet::new();
            for agent in self.rules.agents() {
                needed.extend([&agent.session, &agent.root]);
            }
            purses.retain(|session| needed.contains(session));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a few messages for each decision that was carried out")]
    fn follow_up(
        &mut self,
        effects: Vec<Effect>,
        news: Vec<Announcement>,
        promise: Option<&Rc<Promise>>,
        ctx: &mut Context<Self>,
    ) {
        for effect in effects {
            let promise = promise.filter(|_| matches!(effect, Effect::Make(_))).cloned();
            self.act(effect, 0, promise, ctx);
        }
        for news in news {
            self.setup.hub.do_send(Announce(Arc::new(news)));
        }
    }

    /// Goes back to what is written, once that can be read and written again.
    fn fall(&mut self, error: &Error, ctx: &mut Context<Self>) {
        tracing::warn!(%error, "the crew starts again from the store");
        self.is_broken = true;
        for question in std::mem::take(&mut self.waiting) {
            if let Question::Direct(Direct { asker, .. }) = question {
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
        let read = async move { ask(&store, ReadCrew).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|read, crew, ctx| match read {
            Ok(kept) => {
                crew.restore(kept);
                crew.is_broken = false;
                crew.resume(ctx);
            }
            Err(error) => {
                tracing::warn!(%error, "what is written of the crew can't be read");
                ctx.run_later(READ_AGAIN, Self::read_again);
            }
        }));
    }

    /// Asks for everything anew that may be under way.
    fn resume(&mut self, ctx: &mut Context<Self>) {
        self.line = self.line.as_ref().map(Line::anew);
        self.rules.resume(clock::now());
        self.carry_out(Box::new(|_| None), ctx);
        self.go_on(ctx);
    }

    /// Does something that was decided, where that still is to be done.
    fn act(&mut self, effect: Effect, attempt: u32, promise: Option<Rc<Promise>>, ctx: &mut Context<Self>) {
        let Some((owner, command, run)) = self.command(&effect) else { return };
        let Some(line) = &mut self.line else { return };
        self.turns_total += u64::from(run.is_some() && attempt == 0);
        let waiting = Waiting { effect, attempt, run, _promise: promise };
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
                let patch = Patch::default();
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
                    enclosed: Vec::new(),
                    manner: Manner::default(),
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
    fn refused(&mut self, waiting: Waiting, error: Error, ctx: &mut Context<Self>) {
        let Waiting { effect, attempt, run, .. } = waiting;
        if error.is_retryable() && attempt < ATTEMPTS_MAX {
            self.retries_total += 1;
            let delay = (RETRY * (attempt + 1)).min(RETRY_MAX);
            let turn = run.map(|run| run.turn);
            ctx.run_later(delay, move |crew, ctx| {
                // Another turn has its own.
                let is_same = |id| crew.rules.agent(id).map(|agent| agent.turns) == turn;
                if !matches!(&effect, Effect::Prompt(id) if !is_same(id)) {
                    crew.act(effect, attempt + 1, None, ctx);
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
                tracing::warn!(%agent, %error, "the session of an agent was not made")
            }
            (Effect::Prompt(_), None) => {}
        }
    }

    fn replied(&mut self, ticket: Ticket, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        let Some(line) = &mut self.line else { return };
        // A run that was accepted is followed.
        if let Ok(Reply::Session(SessionReply::Accepted(_))) = reply {
            return;
        }
        let Some(waiting) = line.over(ticket) else { return };
        match (reply, waiting.effect) {
            (Err(error), effect) => self.refused(Waiting { effect, ..waiting }, error, ctx),
            (Ok(_), Effect::Stop(agent)) => self.ask(Question::Settled(agent), ctx),
            (Ok(_), Effect::Note(note)) => self.ask(Question::Noted(note.id), ctx),
            (Ok(_), Effect::Make(_) | Effect::Prompt(_)) => {}
        }
    }

    fn heard(&mut self, ticket: Ticket, event: &Published, ctx: &mut Context<Self>) {
        let Some(line) = &mut self.line else { return };
        line.taken(cost(event));
        let Some(Waiting { run: Some(run), .. }) = line.waiting(ticket) else { return };
        run.fold.apply(&event.logged.event);
        let Event::Ended { outcome, usage } = &event.logged.event else { return };
        let (outcome, usage) = (outcome.clone(), *usage);
        if let Some(Waiting { run: Some(Followed { agent, turn, fold }), .. }) = line.over(ticket) {
            let (text, _) = fold.text();
            self.ask(Question::TurnEnded(agent, turn, TurnEnd { outcome, text, usage }), ctx);
        }
    }
}

fn agent_reply(status: AgentStatus) -> Reply {
    Reply::SubAgent(Box::new(SubAgentReply::Status(Box::new(status))))
}

impl Actor for Crew {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(LAG_CHECK, |crew, ctx| {
            if crew.line.as_ref().is_some_and(Line::is_lagging) && !crew.is_busy && !crew.is_broken {
                tracing::warn!("the crew fell behind: it reads its agents again from the store");
                crew.resume(ctx);
            }
        });
    }
}

impl Handler<Begin> for Crew {
    type Result = ();

    fn handle(&mut self, Begin { dispatch, gone }: Begin, ctx: &mut Self::Context) {
        self.line = Some(Line::new("crew", dispatch, gone));
        self.resume(ctx);
    }
}

impl Handler<Direct> for Crew {
    type Result = ();

    fn handle(&mut self, direct: Direct, ctx: &mut Self::Context) {
        self.ask(Question::Direct(direct), ctx);
    }
}

impl Handler<Request<TeamCommand>> for Crew {
    type Result = ();

    fn handle(&mut self, request: Request<TeamCommand>, ctx: &mut Self::Context) {
        let Request { command, principal, asker } = request;
        self.ask(Question::Direct(Direct { command: Command::Team(command), principal, asker }), ctx);
    }
}

impl Handler<SessionEnds> for Crew {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, ends: SessionEnds, ctx: &mut Self::Context) -> Self::Result {
        let (done, told) = oneshot::channel();
        self.ask(Question::Ends(ends, done), ctx);
        Box::pin(async move {
            // Dropped where it can't be written down: the session can't be either.
            let _ = told.await;
        })
    }
}

impl Handler<Deliver> for Crew {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => self.replied(ticket, reply, ctx),
            Deliver::Event { ticket, event, .. } => self.heard(ticket, &event, ctx),
            Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
        }
    }
}

impl Handler<Reconfigure> for Crew {
    type Result = ();

    fn handle(&mut self, Reconfigure(rules): Reconfigure, ctx: &mut Self::Context) {
        if rules != self.setup.rules {
            self.setup.rules = rules;
            self.ask(Question::Configured, ctx);
        }
    }
}

impl Handler<Observe> for Crew {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let [running, agents, teams, mail, notes] = self.rules.counts();
        Observed::leaf(
            "crew",
            json!({
                "running": running,
                "running_max": self.setup.rules.running_max,
                "agents": agents,
                "teams": teams,
                "messages_waiting": mail,
                "results_waiting": notes,
                "requests_waiting": self.waiting.len(),
                "following": self.line.as_ref().map_or(0, Line::len),
                "purses": self.setup.purses.len(),
                "turns_total": self.turns_total,
                "retries_total": self.retries_total,
                "reading_again": self.is_broken,
            }),
        )
    }
}
