//! All agents that were put to work for sessions, and their teams: the rules they work by.
//!
//! An agent has a session of its own and works in turns: each is one prompt to that session. A turn
//! has an idempotency key made of the agent and its number, so that it can be asked for again after a
//! crash and is still one run. Every change is to be written down before anything is done because of
//! it ([`AgentRegistry::take`]); where that fails, whoever drives this goes back to what is written.
//!
//! What is over is over: nothing of an agent or a team follows after that. Everybody comes to an end:
//! an agent that works alone with its one turn; a team when each member had its turns at the task
//! (see [`plan`](crate::agents::team::plan)) and no message waits. Whoever is stopped takes with him those who work for him; one
//! that has done its work leaves them at theirs.
//!
//! Deliberately absent: what a model says meanwhile (that is in the log of its session) and budgets,
//! which are kept where calls are paid.

mod record;
mod teams;
mod turns;
mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::agents::subagent::{AgentChange, AgentNews, AgentState, AgentStatus, Spawn, Task};
use crate::agents::team::{NAME_BYTES_MAX, TeamNews, TeamState};
use crate::error::limit::Limit;
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{AgentId, Owner, RunId, SessionKey, SubAgentId, TeamId};
use crate::principal::Principal;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

pub use record::{Agent, Change, Kept, Mail, Note, Phase, Seat, Team};
pub use turns::TurnEnd;
pub use words::ANSWER_BYTES_MAX;
use words::{SHORT_BYTES_MAX, clip};

/// The channel of the sessions of agents, in their keys.
pub const CHANNEL: &str = "agent";

/// How many agents and teams that are over are remembered of each owner, the latest: agents that were
/// in no team, and teams with their members.
const OVER_AGENTS_MAX: usize = 256;
/// See [`OVER_AGENTS_MAX`].
const OVER_TEAMS_MAX: usize = 32;

/// What the configuration says of agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// How many may have a turn at once for one owner.
    pub running_max: usize,
    /// How many sessions there may be above one.
    pub depth_max: u32,
    /// The configured agents.
    pub agents: BTreeSet<AgentId>,
    /// Who works where none of these is named.
    pub default: Option<AgentId>,
}

/// What time it is, and randomness.
pub struct Moment<'a> {
    /// What time it is.
    pub now: Timestamp,
    /// Gives fresh random bytes.
    pub random: &'a mut dyn FnMut() -> [u8; 16],
}

/// Something to be done, once what was decided with it is written down. Each may be done again after
/// a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make the agent's session, if it is not there.
    Make(SubAgentId),
    /// Prompt the agent's session with its turn under way, and follow that.
    Prompt(SubAgentId),
    /// Stop whatever is under way in the agent's session, then [`AgentRegistry::settled`].
    Stop(SubAgentId),
    /// Put a note where it belongs, then [`AgentRegistry::noted`].
    Note(Note),
}

/// What follows from what was decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// To be written down, all or nothing.
    pub changes: Vec<Change>,
    /// To be done then.
    pub effects: Vec<Effect>,
    /// To be told then.
    pub news: Vec<News>,
}

/// Something that whoever may know of it is told.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// About an agent.
    Agent(Box<AgentNews>),
    /// About a team.
    Team(Box<TeamNews>),
}

/// All agents and teams.
#[derive(Debug)]
pub struct AgentRegistry {
    setup: RegistrySettings,
    agents: BTreeMap<SubAgentId, Agent>,
    teams: BTreeMap<TeamId, Team>,
    mail: BTreeMap<u64, Mail>,
    notes: BTreeMap<String, Note>,
    /// The number of the last message: where it is among all, and behind that chance, since the daemons of a cluster
    /// number theirs at the same time.
    last_mail: u64,
    /// What changed of whom since it was last taken.
    changed: BTreeMap<SubAgentId, AgentChange>,
    changed_teams: BTreeSet<TeamId>,
    step: Step,
}

impl AgentRegistry {
    /// As it was written down; [`AgentRegistry::resume`] says what is to be done.
    pub fn restore(setup: RegistrySettings, kept: Kept) -> Self {
        Self {
            setup,
            last_mail: kept.mail.iter().map(|mail| mail.number).max().unwrap_or_default(),
            agents: kept.agents.into_iter().map(|agent| (agent.id.clone(), agent)).collect(),
            teams: kept.teams.into_iter().map(|team| (team.id.clone(), team)).collect(),
            mail: kept.mail.into_iter().map(|mail| (mail.number, mail)).collect(),
            notes: kept.notes.into_iter().map(|note| (note.id.clone(), note)).collect(),
            changed: BTreeMap::new(),
            changed_teams: BTreeSet::new(),
            step: Step::default(),
        }
    }

    /// From now on this is configured. What is under way goes on; more of it may begin.
    pub fn configure(&mut self, now: Timestamp, setup: RegistrySettings) {
        self.setup = setup;
        self.schedule(now);
    }

    /// Everything that may not have been done.
    pub fn outstanding(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for agent in self.agents.values() {
            let id = || agent.id.clone();
            match &agent.phase {
                Phase::Waiting if agent.turns == 0 => effects.push(Effect::Make(id())),
                // Its session may not be there yet.
                Phase::Turn { .. } if agent.turns == 1 => {
                    effects.extend([Effect::Make(id()), Effect::Prompt(id())]);
                }
                Phase::Turn { .. } => effects.push(Effect::Prompt(id())),
                Phase::Over { settling: true, .. } => effects.push(Effect::Stop(id())),
                Phase::Waiting | Phase::Over { .. } => {}
            }
        }
        effects.extend(self.notes.values().cloned().map(Effect::Note));
        effects
    }

    /// After a start: everything that may not have been done is to be done (again).
    pub fn resume(&mut self, now: Timestamp) {
        self.step.effects.extend(self.outstanding());
        for team in self.teams.keys().cloned().collect::<Vec<_>>() {
            self.settle_team(now, &team);
        }
        self.schedule(now);
    }

    /// What follows from what was decided since it was last taken.
    pub fn take(&mut self) -> Step {
        let mut step = std::mem::take(&mut self.step);
        let mut teams = std::mem::take(&mut self.changed_teams);
        let mut news = Vec::new();
        for (id, what) in std::mem::take(&mut self.changed) {
            let Some(agent) = self.agents.get(&id) else { continue };
            step.changes.push(Change::Agent(Box::new(agent.clone())));
            teams.extend(agent.seat.as_ref().map(|seat| seat.team.clone()));
            news.push(News::Agent(Box::new(AgentNews { what, status: self.status_of(agent) })));
        }
        for id in teams {
            let Some(team) = self.teams.get(&id) else { continue };
            step.changes.push(Change::Team(Box::new(Team { said: Vec::new(), ..team.clone() })));
            news.push(News::Team(Box::new(TeamNews::Changed(self.team_status(team)))));
        }
        // How everybody is now comes before what was decided: a team's end before its dissolution.
        news.append(&mut step.news);
        step.news = news;
        step
    }

    /// What became of agents and teams since they were so, where others decided it. What members wrote each other is not
    /// among it: that is told where it was relayed.
    pub fn news_since(&self, before: &Self) -> Vec<News> {
        let mut news = Vec::new();
        for agent in self.agents.values() {
            let known = before.agents.get(&agent.id);
            if known == Some(agent) {
                continue;
            }
            let what = match known {
                None => AgentChange::Spawned,
                Some(known) if agent.state() == AgentState::Stopped && !known.is_over() => {
                    AgentChange::Stopped
                }
                Some(_) => AgentChange::Changed,
            };
            news.push(News::Agent(Box::new(AgentNews { what, status: self.status_of(agent) })));
        }
        for team in self.teams.values() {
            let known = before.teams.get(&team.id);
            if known == Some(team) {
                continue;
            }
            news.push(News::Team(Box::new(TeamNews::Changed(self.team_status(team)))));
            let was_dissolved = known.is_some_and(|known| known.state == TeamState::Dissolved);
            if team.state == TeamState::Dissolved && !was_dissolved {
                let (team, owner, reason) = (team.id.clone(), team.owner.clone(), team.why.clone());
                news.push(News::Team(Box::new(TeamNews::Dissolved { team, owner, reason })));
            }
        }
        news
    }

    /// An agent.
    pub fn agent(&self, id: &SubAgentId) -> Option<&Agent> {
        self.agents.get(id)
    }

    /// All agents.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// How many have a turn, how many agents and teams there are, how many messages and notes wait.
    pub fn counts(&self) -> [usize; 5] {
        [self.running(), self.agents.len(), self.teams.len(), self.mail.len(), self.notes.len()]
    }

    /// The sessions whose end ends somebody: those of agents that are not over, and of those they work
    /// for.
    pub fn parent_sessions(&self) -> impl Iterator<Item = &SessionKey> {
        let alive = self.agents.values().filter(|agent| !agent.is_over());
        alive.flat_map(|agent| std::iter::once(&agent.session).chain(&agent.parent))
    }

    /// Puts an agent to work, or finds the one that the same call waits for, for the session `parent` where it is to work for one, which belongs to this
    /// owner.
    ///
    /// # Errors
    /// `NotFound` where the parent is not there or not the caller's to see, or nobody is configured who
    /// could work; `Conflict` where the parent is an agent that was stopped, or there would be too many
    /// above it; `Unavailable` where as many are at work as may be.
    pub fn spawn(
        &mut self,
        at: &mut Moment<'_>,
        by: &Principal,
        spawn: Spawn,
        parent: Option<(SessionKey, Owner)>,
    ) -> Result<AgentStatus, Error> {
        spawn.task.check()?;
        check_name("agentType", &spawn.kind)?;
        if let Some(known) = spawn.call.as_ref().filter(|id| self.agents.contains_key(*id)) {
            return self.status(by, known);
        }
        let (mut owner, mut depth, mut root) = (by.owner.clone(), 1, None);
        if let Some((session, theirs)) = &parent {
            if !by.sees(theirs) {
                return Err(ErrorCode::NotFound.error(format!("no such session: {session}")));
            }
            owner = theirs.clone();
            root = Some(session.clone());
            if let Some(above) = self.agents.values().find(|agent| agent.session == *session) {
                if above.state() == AgentState::Stopped {
                    let why = format!("the parent agent {} was stopped", above.id);
                    return Err(ErrorCode::Conflict.error(why));
                }
                (depth, root) = (above.depth + 1, Some(above.root.clone()));
            } else if session.channel() == CHANNEL {
                let why = format!("the agent of session {session} is not known any more");
                return Err(ErrorCode::Conflict.error(why));
            }
        }
        if depth > self.setup.depth_max {
            let limit = self.setup.depth_max;
            return Err(ErrorCode::Conflict
                .error(format!("the parent is {} agents deep, and no more than {limit} may be", depth - 1))
                .with(Detail::Limit { name: Limit::AgentDepth, limit: limit.into() }));
        }
        // Those that wait for their turn were there first.
        if self.running_for(&owner) + self.waiting_for(&owner) >= self.setup.running_max {
            let limit = self.setup.running_max;
            return Err(ErrorCode::Unavailable
                .error(format!("{limit} agents are at work for you, and no more may be: try again later"))
                .with(Detail::Limit { name: Limit::Agents, limit: limit as u64 }));
        }
        let (kind, task) = (spawn.kind, spawn.task);
        let mut agent = self.new_agent(at, spawn.call, owner, kind, task)?;
        (agent.tokens_max, agent.model) = (spawn.tokens_max, spawn.model);
        agent.parent = parent.map(|(session, _)| session);
        agent.depth = depth;
        agent.root = root.unwrap_or(agent.root);
        let id = agent.id.clone();
        self.agents.insert(id.clone(), agent);
        self.changed.insert(id.clone(), AgentChange::Spawned);
        self.step.effects.push(Effect::Make(id.clone()));
        self.schedule(at.now);
        self.prune();
        Ok(self.status_of(&self.agents[&id]))
    }

    /// How an agent is.
    ///
    /// # Errors
    /// `NotFound` where there is none that the caller may see.
    pub fn status(&self, by: &Principal, agent: &SubAgentId) -> Result<AgentStatus, Error> {
        Ok(self.status_of(self.seen(by, agent)?))
    }

    /// How those are that the caller may see, the latest changed first.
    pub fn list(&self, by: &Principal) -> Vec<AgentStatus> {
        let seen = self.agents.values().filter(|agent| by.sees(&agent.owner));
        let mut list: Vec<_> = seen.map(|agent| self.status_of(agent)).collect();
        list.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| a.agent.cmp(&b.agent)));
        list
    }

    /// Stops an agent with all that work for it.
    ///
    /// # Errors
    /// `NotFound` where there is none that the caller may see; unless `force`, `Conflict` where it is
    /// over already or a team needs it.
    pub fn stop(
        &mut self,
        now: Timestamp,
        by: &Principal,
        agent: &SubAgentId,
        reason: Option<String>,
        force: bool,
    ) -> Result<AgentStatus, Error> {
        let found = self.seen(by, agent)?;
        if let Some(reason) = &reason {
            check_name("reason", reason)?;
        }
        if found.is_over() && !force {
            let state = found.state().name();
            return Err(ErrorCode::Conflict.error(format!("agent {agent} is over already: it is {state}")));
        }
        if !found.is_over()
            && let Some(seat) = found.seat.as_ref().filter(|_| !force)
        {
            return Err(ErrorCode::Conflict.error(format!(
                "agent {agent} is a member of team {}: dissolve that, or stop it with force",
                seat.team
            )));
        }
        self.end(now, agent, reason.as_deref().unwrap_or("stopped"), true);
        self.schedule(now);
        self.status(by, agent)
    }

    /// A session is being stopped or deleted: so is the agent it is of, and all that work for it.
    pub fn session_ends(&mut self, now: Timestamp, by: &Principal, session: &SessionKey) {
        let concerned: Vec<(SubAgentId, bool)> = self
            .agents
            .values()
            .filter(|agent| !agent.is_over() && by.sees(&agent.owner))
            .filter(|agent| agent.session == *session || agent.parent.as_ref() == Some(session))
            // Whoever it works for still wants to know, unless that is what ends.
            .map(|agent| (agent.id.clone(), agent.parent.as_ref() != Some(session)))
            .collect();
        for (agent, is_told) in concerned {
            self.end(now, &agent, "its session was stopped", is_told);
        }
        self.schedule(now);
    }

    /// Nothing is under way any more in the session of an agent that was stopped.
    pub fn settled(&mut self, agent: &SubAgentId) {
        if let Some(found) = self.agents.get_mut(agent)
            && let Phase::Over { settling: settling @ true, .. } = &mut found.phase
        {
            *settling = false;
            self.step.changes.push(Change::Agent(Box::new(found.clone())));
        }
    }

    /// A note is where it belongs, or can't be put there.
    pub fn noted(&mut self, id: &str) {
        if self.notes.remove(id).is_some() {
            self.step.changes.push(Change::ForgetNote(id.to_owned()));
        }
    }

    /// Somebody who has yet to begin.
    fn new_agent(
        &self,
        at: &mut Moment<'_>,
        id: Option<SubAgentId>,
        owner: Owner,
        kind: String,
        task: Task,
    ) -> Result<Agent, Error> {
        let configured = AgentId::from(kind.as_str());
        let configured = Some(configured).filter(|id| self.setup.agents.contains(id));
        let who = configured.or_else(|| self.setup.default.clone()).ok_or_else(|| {
            ErrorCode::NotFound.error(format!("there is no agent named {kind}, and no default agent"))
        })?;
        let id = id.unwrap_or_else(|| SubAgentId::from(RunId::from_random((at.random)()).as_str()));
        let session = SessionKey::new(who.as_str(), CHANNEL, id.as_str(), SessionKey::DEFAULT_PEER)?;
        let session = session.in_space(&owner);
        Ok(Agent {
            id,
            owner,
            root: session.clone(),
            session,
            parent: None,
            depth: 1,
            seat: None,
            kind,
            task,
            tokens_max: None,
            model: None,
            phase: Phase::Waiting,
            turns: 0,
            turns_completed: 0,
            task_turns: 0,
            answer: None,
            usage: Usage::default(),
            created: at.now,
            updated: at.now,
        })
    }

    fn seen(&self, by: &Principal, agent: &SubAgentId) -> Result<&Agent, Error> {
        let found = self.agents.get(agent).filter(|agent| by.sees(&agent.owner));
        found.ok_or_else(|| ErrorCode::NotFound.error(format!("no such agent: {agent}")))
    }

    fn status_of(&self, agent: &Agent) -> AgentStatus {
        let why = if let Phase::Over { why, .. } = &agent.phase { why.clone() } else { None };
        AgentStatus {
            agent: agent.id.clone(),
            owner: agent.owner.clone(),
            session: agent.session.clone(),
            parent: agent.parent.clone(),
            team: agent.seat.as_ref().map(|seat| (seat.team.clone(), seat.role.clone())),
            kind: agent.kind.clone(),
            state: agent.state(),
            task: clip(&agent.task.description, SHORT_BYTES_MAX),
            usage: agent.usage,
            turns_completed: agent.turns_completed,
            answer: agent.answer.clone(),
            why,
            depth: agent.depth,
            created: agent.created,
            updated: agent.updated,
        }
    }

    /// Forgets those that are over where an owner has too many. Who has somebody at work for him, or has
    /// yet to settle, stays.
    fn prune(&mut self) {
        let needed: BTreeSet<SessionKey> = self.parent_sessions().cloned().collect();
        let is_done = |agent: &Agent| {
            matches!(agent.phase, Phase::Over { settling: false, .. }) && !needed.contains(&agent.session)
        };
        let alone = self.agents.values().filter(|agent| agent.seat.is_none() && is_done(agent));
        let agents = oldest(alone.map(|agent| (&agent.owner, agent.updated, &agent.id)), OVER_AGENTS_MAX);
        let teams = self.teams.values().filter(|team| {
            team.state.is_over() && team.members.iter().filter_map(|id| self.agents.get(id)).all(is_done)
        });
        let teams = oldest(teams.map(|team| (&team.owner, team.updated, &team.id)), OVER_TEAMS_MAX);
        for id in teams {
            if let Some(team) = self.teams.remove(&id) {
                self.step.changes.push(Change::ForgetTeam(id));
                team.members.into_iter().for_each(|member| self.forget(member));
            }
        }
        agents.into_iter().for_each(|id| self.forget(id));
    }

    fn forget(&mut self, id: SubAgentId) {
        self.agents.remove(&id);
        self.changed.remove(&id);
        self.step.changes.push(Change::ForgetAgent(id));
    }
}

/// All but the latest `max` of each owner.
fn oldest<'a, T: Clone + Ord + 'a>(
    all: impl Iterator<Item = (&'a Owner, Timestamp, &'a T)>,
    max: usize,
) -> Vec<T> {
    let mut owners: BTreeMap<&str, Vec<(Timestamp, &T)>> = BTreeMap::new();
    for (owner, updated, id) in all {
        owners.entry(owner.as_str()).or_default().push((updated, id));
    }
    let mut forgotten = Vec::new();
    for mut theirs in owners.into_values() {
        theirs.sort_unstable();
        let too_many = theirs.len().saturating_sub(max);
        forgotten.extend(theirs.into_iter().take(too_many).map(|(_, id)| id.clone()));
    }
    forgotten
}

/// Whether a name of something can be one.
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.trim().is_empty() {
        return Err(ErrorCode::InvalidRequest.error(format!("{what} is empty")));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(ErrorCode::InvalidRequest.error(format!("{what} has more than {NAME_BYTES_MAX} bytes")));
    }
    Ok(())
}
