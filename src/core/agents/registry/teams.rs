//! Teams: formed, told of, relayed messages in, and dissolved.

use super::{Agent, AgentRegistry, Change, Effect, Mail, Moment, News, Seat, Team, check_name};
use crate::agents::subagent::{AgentChange, AgentStatus};
use crate::agents::team::{
    Create, MEMBERS_MAX, MESSAGE_BYTES_MAX, MESSAGES_MAX, Member, Message, ROUNDS_MAX, Relayed, TEAMS_MAX,
    TeamNews, TeamState, TeamStatus, plan,
};
use crate::error::{Error, ErrorCode};
use crate::ids::{RunId, SubAgentId, TeamId};
use crate::principal::Principal;
use crate::time::Timestamp;

/// So many bits of a message's number are chance.
const CHANCE_BITS: u32 = 24;

impl AgentRegistry {
    /// Forms a team and puts it to work.
    ///
    /// # Errors
    /// `InvalidRequest` where something is wrong with it, `NotFound` where nobody is configured who could
    /// work, `Unavailable` where the owner has as many at work as may be.
    pub fn create(
        &mut self,
        at: &mut Moment<'_>,
        by: &Principal,
        create: Create,
    ) -> Result<TeamStatus, Error> {
        create.task.check()?;
        check_name("name", &create.name)?;
        if let Some(description) = &create.description {
            check_name("description", description)?;
        }
        let members = create.members.len();
        if !(1..=MEMBERS_MAX).contains(&members) {
            return Err(ErrorCode::InvalidRequest
                .error(format!("a team has 1 to {MEMBERS_MAX} members, not {members}")));
        }
        for member in &create.members {
            check_name("role", &member.role)?;
            check_name("agentType", &member.kind)?;
        }
        let rounds = create.strategy.rounds();
        if !(1..=ROUNDS_MAX).contains(&rounds) {
            return Err(
                ErrorCode::InvalidRequest.error(format!("a team has 1 to {ROUNDS_MAX} rounds, not {rounds}"))
            );
        }
        let at_work = |team: &&Team| !team.state.is_over() && team.owner == by.owner;
        if self.teams.values().filter(at_work).count() >= TEAMS_MAX {
            return Err(ErrorCode::Unavailable
                .error(format!("{TEAMS_MAX} teams are at work already: wait for one, or dissolve one")));
        }
        let id = TeamId::from(RunId::from_random((at.random)()).as_str());
        let Create { name, description, members, strategy, task } = create;
        let mut seated = Vec::new();
        for (place, Member { kind, role, tokens_max, model }) in (0..).zip(members) {
            let mut agent = self.new_agent(at, None, by.owner.clone(), kind, task.clone())?;
            (agent.tokens_max, agent.model) = (tokens_max, model);
            agent.seat = Some(Seat { team: id.clone(), place, role });
            seated.push(agent);
        }
        // Together they may spend what one session may.
        let root = seated[0].session.clone();
        let team = Team {
            id: id.clone(),
            owner: by.owner.clone(),
            name,
            description,
            strategy,
            task,
            members: seated.iter().map(|agent| agent.id.clone()).collect(),
            state: TeamState::Active,
            why: None,
            said: Vec::new(),
            created: at.now,
            updated: at.now,
        };
        for agent in seated {
            self.step.effects.push(Effect::Make(agent.id.clone()));
            self.changed.insert(agent.id.clone(), AgentChange::Spawned);
            self.agents.insert(agent.id.clone(), Agent { root: root.clone(), ..agent });
        }
        self.teams.insert(id.clone(), team);
        self.changed_teams.insert(id.clone());
        self.schedule(at.now);
        self.prune();
        Ok(self.team_status(&self.teams[&id]))
    }

    /// How a team is.
    ///
    /// # Errors
    /// `NotFound` where there is none that the caller may see.
    pub fn status_of_team(&self, by: &Principal, team: &TeamId) -> Result<TeamStatus, Error> {
        Ok(self.team_status(self.seen_team(by, team)?))
    }

    /// Relays a message from one member to another or to all others. Gives its name, and for whom it
    /// waits.
    ///
    /// # Errors
    /// `NotFound` where there is no such team that the caller may see, or no such member; `Conflict` where
    /// who it is for is over; `InvalidRequest` and `TooLarge` where something is wrong with the message;
    /// `Unavailable` where too many wait.
    pub fn message(
        &mut self,
        at: &mut Moment<'_>,
        by: &Principal,
        message: Message,
    ) -> Result<(String, Vec<SubAgentId>), Error> {
        let team = self.seen_team(by, &message.team)?;
        let from = self.member(team, &message.from)?.id.clone();
        let to =
            message.to.as_ref().map(|name| self.member(team, name).map(|to| to.id.clone())).transpose()?;
        if message.content.trim().is_empty() {
            return Err(ErrorCode::InvalidRequest.error("the message is empty"));
        }
        let metadata_bytes = message.metadata.as_ref().map_or(0, |metadata| metadata.to_string().len());
        if message.content.len().max(metadata_bytes) > MESSAGE_BYTES_MAX {
            return Err(ErrorCode::TooLarge.error(format!(
                "a message has at most {MESSAGE_BYTES_MAX} bytes, and its metadata as many"
            )));
        }
        if to.as_ref() == Some(&from) {
            return Err(ErrorCode::InvalidRequest.error("a member can't send a message to itself"));
        }
        if team.members.len() == 1 {
            return Err(ErrorCode::Conflict
                .error(format!("team {} has one member: there is nobody to send a message to", team.id)));
        }
        if team.state.is_over() {
            let state = team.state.name();
            return Err(ErrorCode::Conflict.error(format!("team {} is over: it is {state}", team.id)));
        }
        let reached: Vec<SubAgentId> = team
            .members
            .iter()
            .filter(|id| **id != from && to.as_ref().is_none_or(|to| to == *id))
            .filter(|id| self.agents.get(*id).is_some_and(|agent| !agent.is_over()))
            .cloned()
            .collect();
        if reached.is_empty() {
            let who = message.to.as_deref().unwrap_or("everybody else");
            return Err(ErrorCode::Conflict.error(format!("{who} of team {} is over", team.id)));
        }
        for id in &reached {
            if self.mail.values().filter(|mail| mail.to == *id).count() >= MESSAGES_MAX {
                return Err(ErrorCode::Unavailable
                    .error(format!("{MESSAGES_MAX} messages wait for member {id}: try again later")));
            }
        }
        let (team, owner) = (team.id.clone(), team.owner.clone());
        let name = RunId::from_random((at.random)()).to_string();
        for id in &reached {
            let random = (at.random)();
            let chance = u32::from_be_bytes([0, random[0], random[1], random[2]]);
            self.last_mail = ((self.last_mail >> CHANCE_BITS) + 1) << CHANCE_BITS | u64::from(chance);
            let mail = Mail {
                number: self.last_mail,
                message: name.clone(),
                from: from.clone(),
                to: id.clone(),
                content: message.content.clone(),
            };
            self.step.changes.push(Change::Mail(mail.clone()));
            self.mail.insert(mail.number, mail);
        }
        self.step.news.push(News::Team(Box::new(TeamNews::Message(Relayed {
            message: name.clone(),
            team,
            owner,
            from,
            to,
            content: message.content,
            metadata: message.metadata,
            answers: None,
            at: at.now,
        }))));
        self.schedule(at.now);
        Ok((name, reached))
    }

    /// Ends a team with all its members.
    ///
    /// # Errors
    /// `NotFound` where there is none that the caller may see, `Conflict` where it was dissolved already.
    pub fn dissolve(
        &mut self,
        now: Timestamp,
        by: &Principal,
        team: &TeamId,
        reason: Option<String>,
    ) -> Result<TeamStatus, Error> {
        let found = self.seen_team(by, team)?;
        if let Some(reason) = &reason {
            check_name("reason", reason)?;
        }
        if found.state == TeamState::Dissolved {
            return Err(ErrorCode::Conflict.error(format!("team {team} was dissolved already")));
        }
        let (members, owner) = (found.members.clone(), found.owner.clone());
        self.finish_team(now, team, TeamState::Dissolved, reason.clone());
        for member in members {
            self.end(now, &member, "its team was dissolved", false);
        }
        let news = TeamNews::Dissolved { team: team.clone(), owner, reason };
        self.step.news.push(News::Team(Box::new(news)));
        self.schedule(now);
        self.status_of_team(by, team)
    }

    fn seen_team(&self, by: &Principal, team: &TeamId) -> Result<&Team, Error> {
        let found = self.teams.get(team).filter(|team| by.sees(&team.owner));
        found.ok_or_else(|| ErrorCode::NotFound.error(format!("no such team: {team}")))
    }

    /// The member of this id, or of this role where only one has it.
    fn member(&self, team: &Team, name: &str) -> Result<&Agent, Error> {
        let members = || team.members.iter().filter_map(|id| self.agents.get(id));
        let has_role = |agent: &&Agent| agent.seat.as_ref().is_some_and(|seat| seat.role == name);
        if let Some(agent) = members().find(|agent| agent.id.as_str() == name) {
            return Ok(agent);
        }
        let mut found = members().filter(has_role);
        match (found.next(), found.next()) {
            (Some(agent), None) => Ok(agent),
            (Some(_), Some(_)) => Err(ErrorCode::InvalidRequest
                .error(format!("several members of team {} are {name}: say which by its id", team.id))),
            (None, _) => Err(ErrorCode::NotFound.error(format!("team {} has no member {name}", team.id))),
        }
    }

    pub(super) fn team_status(&self, team: &Team) -> TeamStatus {
        let members: Vec<AgentStatus> = team
            .members
            .iter()
            .filter_map(|id| self.agents.get(id))
            .map(|agent| self.status_of(agent))
            .collect();
        let has_begun =
            team.members.iter().any(|id| self.agents.get(id).is_some_and(|agent| agent.turns > 0));
        let mut progress = self.progress(team);
        if team.state == TeamState::Dissolved {
            // How far it came, not that nobody goes on.
            progress.iter_mut().for_each(|member| member.is_out = false);
        }
        TeamStatus {
            team: team.id.clone(),
            owner: team.owner.clone(),
            name: team.name.clone(),
            description: team.description.clone(),
            strategy: team.strategy,
            state: if team.state == TeamState::Active && !has_begun {
                TeamState::Forming
            } else {
                team.state
            },
            progress: plan::progress(team.strategy, &progress),
            members,
            why: team.why.clone(),
            created: team.created,
            updated: team.updated,
        }
    }
}
