//! `AgentSupervisor`: agents that work for sessions, and their teams.
//!
//! The rules are the core's ([`clawmux_core::agents::registry`]); here what they decide is written down and then
//! done. One decision at a time: what comes meanwhile waits. Agents are prompted over the same road as
//! everybody's sessions ([`Line`]): under a key that is the turn's, so that after a crash each turn
//! under way is asked for again, is the run it was, and is followed to its end. What the sessions refuse
//! for the moment is asked for again for a while.
//!
//! Where something can't be written down nothing of it is done: the supervisor goes back to what is written
//! once the store can be written again, and asks for everything under way anew, as after a crash.
//!
//! In a cluster every daemon decides what it is asked for, and writes it down; what others changed is read anew between
//! two decisions. What follows is done by the one that leads ([`Lead`]), whoever decided it: so agents go on when a daemon
//! dies, be it the leader. Only sessions are made by whoever was asked for an agent, since that waits for them.

mod decisions;
mod effects;
mod parent_sessions;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::agents::registry::{self as rules, TurnEnd};
use clawmux_core::agents::subagent::SubAgentCommand;
use clawmux_core::agents::team::TeamCommand;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{SessionKey, SubAgentId};
use clawmux_core::principal::Principal;
use serde_json::json;
use tokio::sync::oneshot;

use crate::hub::Hub;
use crate::provider_supervisor::shared_budget::SharedBudgets;
use crate::runtime::ask::ask;
use crate::runtime::deliver::{Asker, Deliver};
use crate::runtime::dispatch::{Located, Request};
use crate::runtime::lead::Lead;
use crate::runtime::line::{Begin, Line};
use crate::runtime::observe::{Observe, Observed};
use crate::store::{Health, KeptAgents, ReadAgents, Store, TableChanged, until_read, watch};

use effects::{Errand, OpenRequest};

pub use parent_sessions::ParentSessions;

/// Requests that may wait for a decision.
const WAITING_MAX: usize = 256;

/// Deliveries and requests that may wait: more than a full window of the smallest events.
const MAILBOX: usize = 2048;

/// How soon a line that fell too far behind is noticed.
const LAG_CHECK: Duration = Duration::from_secs(5);

/// What it is made with.
pub struct AgentsSetup {
    /// The bounds, and who can work.
    pub rules: rules::RegistrySettings,
    /// Where it is written down.
    pub store: Addr<Store>,
    /// Who tells those that want to know.
    pub hub: Addr<Hub>,
    /// Whether it can be written down.
    pub log: Health,
    /// What sessions spend together.
    pub shared_budgets: SharedBudgets,
    /// The sessions whose end is to be told here.
    pub parent_sessions: ParentSessions,
    /// Whether what was decided is done here until something else is said ([`Lead`]).
    pub leads: bool,
}

/// The actor.
pub struct AgentSupervisor {
    setup: AgentsSetup,
    rules: rules::AgentRegistry,
    line: Option<Line<OpenRequest>>,
    /// What is being done, and the sessions that were made of those who have not had a turn.
    under_way: HashSet<Errand>,
    /// Those who wait while something is decided or written down.
    waiting: VecDeque<Question>,
    /// Those who wait for the end of an agent.
    awaiting: HashMap<SubAgentId, Vec<Asker>>,
    is_busy: bool,
    /// Another daemon changed what is written down; dropped when that is read.
    changed: Option<oneshot::Sender<()>>,
    /// Nothing is decided until it was read what is written.
    is_broken: bool,
    turns_total: u64,
    retries_total: u64,
}

/// Goes over to other bounds and agents; what is under way goes on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure(pub rules::RegistrySettings);

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
enum Question {
    SubAgent(Located<SubAgentCommand>),
    Team(Request<TeamCommand>),
    Ends(SessionEnds, oneshot::Sender<()>),
    TurnEnded(SubAgentId, u32, TurnEnd),
    Settled(SubAgentId),
    Noted(String),
    Configured,
    Resume,
}

impl fmt::Debug for AgentSupervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSupervisor").field("counts", &self.rules.counts()).finish_non_exhaustive()
    }
}

impl AgentSupervisor {
    /// Of what the store has.
    ///
    /// # Errors
    /// As the store's.
    pub async fn open(setup: AgentsSetup) -> Result<Self, Error> {
        let kept = ask(&setup.store, ReadAgents).await??;
        let rules = rules::AgentRegistry::restore(setup.rules.clone(), rules::Kept::default());
        let mut supervisor = Self {
            setup,
            rules,
            line: None,
            under_way: HashSet::new(),
            waiting: VecDeque::new(),
            awaiting: HashMap::new(),
            is_busy: false,
            changed: None,
            is_broken: false,
            turns_total: 0,
            retries_total: 0,
        };
        supervisor.restore(kept);
        Ok(supervisor)
    }

    /// As it is written down; gives how it was.
    fn restore(&mut self, KeptAgents { kept, spent }: KeptAgents) -> rules::AgentRegistry {
        let shared_budgets = &self.setup.shared_budgets;
        let mut is_new = HashSet::new();
        for agent in &kept.agents {
            for session in [&agent.root, &agent.session] {
                if shared_budgets.of(session).is_none() {
                    is_new.insert(session.clone());
                }
            }
            shared_budgets.share(&agent.root, &agent.session, agent.tokens_max);
        }
        for (session, spent) in spent.iter().filter(|(session, _)| is_new.contains(session)) {
            shared_budgets.add(session, *spent);
        }
        let rules = rules::AgentRegistry::restore(self.setup.rules.clone(), kept);
        self.setup.parent_sessions.set(rules.parent_sessions());
        std::mem::replace(&mut self.rules, rules)
    }

    /// Decides this now, or when what is being written down is.
    fn ask(&mut self, question: Question, ctx: &mut Context<Self>) {
        if self.is_broken || self.waiting.len() >= WAITING_MAX {
            match question {
                Question::SubAgent(Located { request: Request { asker, .. }, .. })
                | Question::Team(Request { asker, .. }) => {
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
        if !self.is_busy
            && !self.is_broken
            && let Some(changed) = self.changed.take()
        {
            return self.read_changed(changed, ctx);
        }
        while !self.is_busy
            && let Some(question) = self.waiting.pop_front()
        {
            self.decide(question, ctx);
        }
    }
}

impl Actor for AgentSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let store = self.setup.store.clone();
        watch(&store, "agents", self, ctx);
        ctx.run_interval(LAG_CHECK, |supervisor, ctx| {
            if supervisor.line.as_ref().is_some_and(Line::is_lagging)
                && !supervisor.is_busy
                && !supervisor.is_broken
            {
                tracing::warn!("the agent supervisor fell behind: it reads its agents again from the store");
                supervisor.resume(ctx);
            }
        });
    }
}

impl Handler<TableChanged> for AgentSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: TableChanged, ctx: &mut Self::Context) -> Self::Result {
        let (changed, read) = until_read();
        self.changed = Some(changed);
        self.go_on(ctx);
        read
    }
}

/// From here on agents can be prompted; those whose turn was cut off are.
impl Handler<Begin> for AgentSupervisor {
    type Result = ();

    fn handle(&mut self, begin: Begin, ctx: &mut Self::Context) {
        self.line = Some(Line::new("crew", begin));
        self.resume(ctx);
    }
}

impl Handler<Lead> for AgentSupervisor {
    type Result = ();

    fn handle(&mut self, Lead(leads): Lead, ctx: &mut Self::Context) {
        if std::mem::replace(&mut self.setup.leads, leads) != leads {
            self.ask(Question::Resume, ctx);
        }
    }
}

impl Handler<Located<SubAgentCommand>> for AgentSupervisor {
    type Result = ();

    fn handle(&mut self, located: Located<SubAgentCommand>, ctx: &mut Self::Context) {
        self.ask(Question::SubAgent(located), ctx);
    }
}

impl Handler<Request<TeamCommand>> for AgentSupervisor {
    type Result = ();

    fn handle(&mut self, request: Request<TeamCommand>, ctx: &mut Self::Context) {
        self.ask(Question::Team(request), ctx);
    }
}

impl Handler<SessionEnds> for AgentSupervisor {
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

impl Handler<Deliver> for AgentSupervisor {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => self.replied(ticket, reply, ctx),
            Deliver::Event { ticket, event, .. } => self.heard(ticket, &event, ctx),
            Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
        }
    }
}

impl Handler<Reconfigure> for AgentSupervisor {
    type Result = ();

    fn handle(&mut self, Reconfigure(rules): Reconfigure, ctx: &mut Self::Context) {
        if rules != self.setup.rules {
            self.setup.rules = rules;
            self.ask(Question::Configured, ctx);
        }
    }
}

impl Handler<Observe> for AgentSupervisor {
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
                "awaited": self.awaiting.len(),
                "following": self.line.as_ref().map_or(0, Line::len),
                "purses": self.setup.shared_budgets.len(),
                "turns_total": self.turns_total,
                "retries_total": self.retries_total,
                "reading_again": self.is_broken,
            }),
        )
    }
}
