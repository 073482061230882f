//! Turns: who begins one, and what follows from its end.

use std::cmp::Reverse;

use super::record::{Agent, Change, Note, Phase, Team};
use super::words::{self, ANSWER_BYTES_MAX, SHORT_BYTES_MAX, clip};
use super::{AgentRegistry, Effect, News};
use crate::agents::subagent::{AgentChange, AgentState};
use crate::agents::team::plan::{self, Progress};
use crate::agents::team::{Relayed, TeamNews, TeamState};
use crate::conversation::event::Outcome;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, SubAgentId, TeamId};
use crate::provider::usage::Usage;
use crate::time::Timestamp;

/// The end of an agent's turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnEnd {
    /// The outcome of its run.
    pub outcome: Outcome,
    /// What was said in it.
    pub text: String,
    /// The tokens it used.
    pub usage: Usage,
}

/// What somebody can begin a turn with.
pub(super) enum Due {
    /// The agent's own task.
    Task,
    /// The message of this number.
    Mail(u64),
}

impl AgentRegistry {
    /// How many have a turn.
    pub(super) fn running(&self) -> usize {
        self.agents.values().filter(|agent| matches!(agent.phase, Phase::Turn { .. })).count()
    }

    /// How many have one for this owner.
    pub(super) fn running_for(&self, owner: &Owner) -> usize {
        let runs = |agent: &&Agent| agent.owner == *owner && matches!(agent.phase, Phase::Turn { .. });
        self.agents.values().filter(runs).count()
    }

    /// How many could begin one for this owner.
    pub(super) fn waiting_for(&self, owner: &Owner) -> usize {
        let is_of = |id: &SubAgentId| self.agents.get(id).is_some_and(|agent| agent.owner == *owner);
        self.due().iter().filter(|(id, _)| is_of(id)).count()
    }

    /// How far the members of a team have come.
    pub(super) fn progress(&self, team: &Team) -> Vec<Progress> {
        let progress = |agent: &Agent| Progress {
            turns: agent.task_turns,
            is_busy: matches!(agent.phase, Phase::Turn { .. }),
            is_out: match &agent.phase {
                Phase::Over { state, .. } => *state != AgentState::Completed,
                Phase::Waiting | Phase::Turn { .. } => false,
            },
        };
        team.members.iter().filter_map(|id| self.agents.get(id)).map(progress).collect()
    }

    /// Those who could begin a turn now, the most urgent first. A member reads its messages between its
    /// turns at the task, once it knows that.
    pub(super) fn due(&self) -> Vec<(SubAgentId, Due)> {
        let mut due: Vec<(&Agent, Due)> = Vec::new();
        let alone = self.agents.values().filter(|agent| agent.seat.is_none());
        due.extend(
            alone.filter(|a| a.phase == Phase::Waiting && a.turns == 0).map(|agent| (agent, Due::Task)),
        );
        for team in self.teams.values().filter(|team| !team.state.is_over()) {
            let members: Vec<&Agent> = team.members.iter().filter_map(|id| self.agents.get(id)).collect();
            let at_task = plan::due(team.strategy, &self.progress(team));
            for (place, member) in members.into_iter().enumerate() {
                if at_task.contains(&place) {
                    due.push((member, Due::Task));
                } else if member.phase == Phase::Waiting && member.task_turns > 0 {
                    let mail = self.mail.values().find(|mail| mail.to == member.id);
                    due.extend(mail.map(|mail| (member, Due::Mail(mail.number))));
                }
            }
        }
        due.sort_by_key(|(agent, _)| (Reverse(agent.task.priority), agent.created));
        due.into_iter().map(|(agent, due)| (agent.id.clone(), due)).collect()
    }

    /// Begins as many turns as there is room for, with each owner.
    pub(super) fn schedule(&mut self, now: Timestamp) {
        for (id, due) in self.due() {
            let Some(agent) = self.agents.get(&id) else { continue };
            if self.running_for(&agent.owner) >= self.setup.running_max {
                continue;
            }
            let team = agent.seat.as_ref().and_then(|seat| self.teams.get(&seat.team));
            let (content, mail) = match (team, due) {
                (None, _) => (agent.task.description.clone(), None),
                (Some(team), Due::Task) => {
                    let members = team.members.iter().filter_map(|id| self.agents.get(id));
                    let roles: Vec<&str> =
                        members.filter_map(|member| member.seat.as_ref()).map(|seat| &*seat.role).collect();
                    (words::turn(team, agent, &roles), None)
                }
                (Some(team), Due::Mail(number)) => {
                    let Some(mail) = self.mail.get(&number) else { continue };
                    // Members stay as long as their team.
                    let Some(from) = self.agents.get(&mail.from) else { continue };
                    (words::message(team, from, mail), Some(number))
                }
            };
            if let Some(agent) = self.agents.get_mut(&id) {
                agent.turns += 1;
                agent.phase = Phase::Turn { content, mail };
                agent.updated = now;
                self.changed.entry(id.clone()).or_insert(AgentChange::Changed);
                self.step.effects.push(Effect::Prompt(id));
            }
        }
    }

    /// The turn `turn` of an agent has ended; one that is not under way is nothing.
    pub fn turn_ended(&mut self, now: Timestamp, id: &SubAgentId, turn: u32, end: TurnEnd) {
        let Some(agent) = self.agents.get_mut(id).filter(|agent| agent.turns == turn) else { return };
        let Phase::Turn { mail, .. } = &agent.phase else { return };
        let mail = *mail;
        let TurnEnd { outcome, text, usage } = end;
        agent.phase = Phase::Waiting;
        agent.updated = now;
        agent.usage += usage;
        if !text.trim().is_empty() {
            agent.answer = Some(clip(&text, ANSWER_BYTES_MAX));
        }
        let outcome = match outcome {
            Outcome::Completed | Outcome::Incomplete(_) => Ok(()),
            Outcome::Aborted(_) => {
                Err((AgentState::Stopped, ErrorCode::Aborted.error("somebody aborted its run")))
            }
            Outcome::Failed(error) => Err((AgentState::Failed, error)),
        };
        agent.turns_completed += u32::from(outcome.is_ok());
        let seat = agent.seat.clone();
        self.changed.entry(id.clone()).or_insert(AgentChange::Changed);
        match (seat, mail, outcome) {
            (_, Some(number), outcome) => {
                self.answered(now, number, outcome.map(|()| &*text).map_err(|(_, error)| error.message));
            }
            (None, None, Ok(())) => self.over(now, id, AgentState::Completed, None, true),
            (Some(seat), None, Ok(())) => {
                if let Some(agent) = self.agents.get_mut(id) {
                    agent.task_turns += 1;
                }
                if let Some(team) = self.teams.get_mut(&seat.team) {
                    let text = clip(&text, ANSWER_BYTES_MAX);
                    let (team_id, number) = (seat.team.clone(), team.said.len());
                    team.said.push((seat.place, text.clone()));
                    team.updated = now;
                    self.step.changes.push(Change::Said { team: team_id, number, place: seat.place, text });
                }
            }
            (_, None, Err((state, error))) => {
                self.over(now, id, state, Some(error), true);
                if state == AgentState::Stopped {
                    self.end_below(now, id);
                }
            }
        }
        if let Some(team) = self.agents.get(id).and_then(|agent| agent.seat.clone()) {
            self.settle_team(now, &team.team);
        }
        self.schedule(now);
        self.prune();
    }

    /// A message was answered, or could not be.
    fn answered(&mut self, now: Timestamp, number: u64, answer: Result<&str, String>) {
        let Some(mail) = self.mail.remove(&number) else { return };
        self.step.changes.push(Change::ForgetMail(number));
        let (Some(from), Some(to)) = (self.agents.get(&mail.from), self.agents.get(&mail.to)) else { return };
        let Some(team) = to.seat.as_ref().and_then(|seat| self.teams.get(&seat.team)) else { return };
        let told = answer.as_ref().map(|text| clip(text, ANSWER_BYTES_MAX)).map_err(|why| &**why);
        let content = words::answer(team, to, &mail, told.as_deref().map_err(|why| *why));
        let note = Note {
            id: format!("agent:answer:{}:{number}", mail.message),
            session: from.session.clone(),
            owner: from.owner.clone(),
            content,
        };
        let relayed = told.ok().map(|content| Relayed {
            message: format!("{}:{number}", mail.message),
            team: team.id.clone(),
            owner: team.owner.clone(),
            from: mail.to.clone(),
            to: Some(mail.from.clone()),
            content,
            metadata: None,
            answers: Some(mail.message.clone()),
            at: now,
        });
        if !from.is_over() {
            self.note(note);
        }
        let news = relayed.map(|relayed| News::Team(Box::new(TeamNews::Message(relayed))));
        self.step.news.extend(news);
    }

    fn note(&mut self, note: Note) {
        self.step.changes.push(Change::Note(note.clone()));
        self.step.effects.push(Effect::Note(note.clone()));
        self.notes.insert(note.id.clone(), note);
    }

    /// Nothing of this agent follows; who it works for is told where `is_told`.
    fn over(
        &mut self,
        now: Timestamp,
        id: &SubAgentId,
        state: AgentState,
        why: Option<Error>,
        is_told: bool,
    ) {
        let Some(agent) = self.agents.get_mut(id).filter(|agent| !agent.is_over()) else { return };
        let is_stopped = state == AgentState::Stopped;
        if is_stopped {
            // Also what others prompted its session with.
            self.step.effects.push(Effect::Stop(id.clone()));
        }
        let told = why.as_ref().map(|error| error.message.clone());
        agent.phase = Phase::Over { state, why, settling: is_stopped };
        agent.updated = now;
        // Who waits for it is answered.
        let is_told = is_told && !id.is_of_call();
        let note = agent.parent.clone().filter(|_| is_told).map(|session| Note {
            id: format!("agent:result:{id}"),
            session,
            owner: agent.owner.clone(),
            content: words::result(agent, state, told.as_deref()),
        });
        agent.task.description = clip(&agent.task.description, SHORT_BYTES_MAX);
        let what = if is_stopped { AgentChange::Stopped } else { AgentChange::Changed };
        self.changed.insert(id.clone(), what);
        let unread: Vec<u64> = self.mail.values().filter(|m| m.to == *id).map(|m| m.number).collect();
        for number in unread {
            let why = told.clone().unwrap_or_else(|| "it has done its work".to_owned());
            self.answered(now, number, Err(why));
        }
        note.into_iter().for_each(|note| self.note(note));
    }

    /// Stops an agent, where it is not over, and all that work for it.
    pub(super) fn end(&mut self, now: Timestamp, id: &SubAgentId, reason: &str, is_told: bool) {
        let why = ErrorCode::Aborted.error(reason);
        self.over(now, id, AgentState::Stopped, Some(why), is_told);
        self.end_below(now, id);
        if let Some(seat) = self.agents.get(id).and_then(|agent| agent.seat.clone()) {
            self.settle_team(now, &seat.team);
        }
    }

    /// Stops all that work for an agent.
    fn end_below(&mut self, now: Timestamp, id: &SubAgentId) {
        let Some(session) = self.agents.get(id).map(|agent| agent.session.clone()) else { return };
        let works_for = |agent: &&Agent| agent.parent.as_ref() == Some(&session);
        let below: Vec<SubAgentId> =
            self.agents.values().filter(works_for).map(|agent| agent.id.clone()).collect();
        for child in below {
            self.end(now, &child, "who it worked for was stopped", false);
        }
    }

    /// Ends a team that has nothing more to do.
    pub(super) fn settle_team(&mut self, now: Timestamp, id: &TeamId) {
        let Some(team) = self.teams.get(id).filter(|team| !team.state.is_over()) else { return };
        let progress = self.progress(team);
        let is_busy = progress.iter().any(|member| member.is_busy);
        let is_written_to = self.mail.values().any(|mail| team.members.contains(&mail.to));
        if !plan::is_over(team.strategy, &progress) || is_busy || is_written_to {
            return;
        }
        let members = team.members.clone();
        if progress.iter().all(|member| member.is_out) {
            let why = "none of its members could do its task";
            self.finish_team(now, id, TeamState::Failed, Some(why.to_owned()));
        } else {
            self.finish_team(now, id, TeamState::Completed, None);
        }
        for member in members {
            self.over(now, &member, AgentState::Completed, None, false);
        }
    }

    pub(super) fn finish_team(&mut self, now: Timestamp, id: &TeamId, state: TeamState, why: Option<String>) {
        let Some(team) = self.teams.get_mut(id) else { return };
        team.state = state;
        team.why = why;
        team.updated = now;
        if !team.said.is_empty() {
            team.said.clear();
            self.step.changes.push(Change::ForgetSaid(id.clone()));
        }
        self.changed_teams.insert(id.clone());
        // Nobody reads it any more.
        let members = team.members.clone();
        let unread: Vec<u64> =
            self.mail.values().filter(|mail| members.contains(&mail.to)).map(|mail| mail.number).collect();
        for number in unread {
            self.mail.remove(&number);
            self.step.changes.push(Change::ForgetMail(number));
        }
    }
}
