//! Agents that were put to work and their teams, as the database keeps them.
//!
//! A row that can't be read is left out, with a word in the log.

use actix::Message;
use clawmux_core::agents::registry::{self, Agent, Kept, Mail, Note, Phase, Seat, Team};
use clawmux_core::agents::subagent::{AgentState, Priority, Task};
use clawmux_core::agents::team::{Coordination, TeamState};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{SessionKey, SubAgentId, TeamId};
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::tally::Spent;
use clawmux_core::replica::Write;
use rusqlite::{Row, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns, integer, readable, time, unreadable};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// What the log calls a row that can't be read.
const KIND: &str = "agents and teams";

/// Writes down what changed of agents and teams, durably, all of it or nothing.
///
/// Errors: as [`Append`](crate::store::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteAgents(pub Vec<registry::Change>);

/// Asks for all agents and teams that are remembered.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<KeptAgents, Error>")]
pub struct ReadAgents;

/// The agents and teams that are remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptAgents {
    /// They.
    pub kept: registry::Kept,
    /// What each of their sessions, and of those whose budgets they spend, has spent.
    pub spent: Vec<(SessionKey, Spent)>,
}

impl Change for WriteAgents {
    fn bytes(&self) -> usize {
        self.0.iter().map(registry::Change::bytes).sum()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::Agents(self.0.clone()))
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        for change in &self.0 {
            match change {
                registry::Change::Agent(agent) => writer.put_agent(agent)?,
                registry::Change::ForgetAgent(id) => {
                    writer.cached("DELETE FROM agents WHERE agent = ?")?.execute([id.as_str()])?;
                }
                registry::Change::Team(team) => writer.put_team(team)?,
                registry::Change::ForgetTeam(id) => {
                    writer.cached("DELETE FROM team_said WHERE team = ?")?.execute([id.as_str()])?;
                    writer.cached("DELETE FROM teams WHERE team = ?")?.execute([id.as_str()])?;
                }
                registry::Change::Said { team, number, place, text } => {
                    // Two daemons of a cluster that follow one turn to its end both say so.
                    let sql = "INSERT INTO team_said (team, number, place, text) VALUES (?, ?, ?, ?)
                         ON CONFLICT DO NOTHING";
                    writer.cached(sql)?.execute(params![
                        team.as_str(),
                        integer(*number as u64),
                        place,
                        text
                    ])?;
                }
                registry::Change::ForgetSaid(id) => {
                    writer.cached("DELETE FROM team_said WHERE team = ?")?.execute([id.as_str()])?;
                }
                registry::Change::Mail(mail) => {
                    writer
                        .cached(
                            "INSERT INTO team_mail (number, message, sender, recipient, content)
                         VALUES (?, ?, ?, ?, ?)",
                        )?
                        .execute(params![
                            integer(mail.number),
                            mail.message,
                            mail.from.as_str(),
                            mail.to.as_str(),
                            mail.content
                        ])?;
                }
                registry::Change::ForgetMail(number) => {
                    writer.cached("DELETE FROM team_mail WHERE number = ?")?.execute([integer(*number)])?;
                }
                registry::Change::Note(note) => {
                    writer
                        .cached(
                            "INSERT OR REPLACE INTO agent_notes (note, session, owner, content)
                         VALUES (?, ?, ?, ?)",
                        )?
                        .execute(params![
                            note.id,
                            note.session.as_str(),
                            note.owner.as_str(),
                            note.content
                        ])?;
                }
                registry::Change::ForgetNote(id) => {
                    writer.cached("DELETE FROM agent_notes WHERE note = ?")?.execute([id])?;
                }
            }
        }
        Ok(())
    }
}

impl Query for ReadAgents {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let agents = readable(tx, KIND, "SELECT * FROM agents", [], agent)?;
            let mut teams = readable(tx, KIND, "SELECT * FROM teams", [], team)?;
            let mut said = tx.prepare("SELECT place, text FROM team_said WHERE team = ? ORDER BY number")?;
            for team in &mut teams {
                team.said = said
                    .query_map([team.id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?
                    .collect::<Result<_, _>>()?;
            }
            let mail = readable(tx, KIND, "SELECT * FROM team_mail ORDER BY number", [], |row| {
                Ok(Mail {
                    number: row.number("number")?,
                    message: row.get("message")?,
                    from: row.id("sender")?,
                    to: row.id("recipient")?,
                    content: row.get("content")?,
                })
            })?;
            let notes = readable(tx, KIND, "SELECT * FROM agent_notes", [], |row| {
                let (session, owner) = (row.session("session")?, row.owner("owner")?);
                Ok(Note { id: row.get("note")?, session, owner, content: row.get("content")? })
            })?;
            let spent = readable(
                tx,
                KIND,
                "SELECT key, input_tokens + output_tokens AS tokens, cost FROM sessions
                 WHERE key IN (SELECT session FROM agents UNION SELECT root FROM agents)",
                [],
                |row| Ok((row.session("key")?, row.spent("tokens", "cost")?)),
            )?;
            Ok(KeptAgents { kept: Kept { agents, teams, mail, notes }, spent })
        })
    }
}

impl Writer {
    fn put_agent(&mut self, agent: &Agent) -> rusqlite::Result<()> {
        let (phase, prompt, mail, why, settling) = match &agent.phase {
            Phase::Waiting => ("waiting", "", None, None, false),
            Phase::Turn { content, mail } => ("turn", content.as_str(), *mail, None, false),
            Phase::Over { state, why, settling } => (state.name(), "", None, why.as_ref(), *settling),
        };
        let seat = agent.seat.as_ref();
        self.cached(
            "INSERT OR REPLACE INTO agents (agent, owner, session, parent, root, depth, team, place, role,
                 kind, task, priority, tokens_max, model, phase, prompt, mail, code, why, settling, turns, completed,
                 at_task, answer, input_tokens, output_tokens, created, updated)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            agent.id.as_str(),
            agent.owner.as_str(),
            agent.session.as_str(),
            agent.parent.as_ref().map(SessionKey::as_str),
            agent.root.as_str(),
            agent.depth,
            seat.map(|seat| seat.team.as_str()),
            seat.map_or(0, |seat| seat.place),
            seat.map_or("", |seat| &seat.role),
            agent.kind,
            agent.task.description,
            agent.task.priority.name(),
            agent.tokens_max.map(integer),
            agent.model.as_ref().map(ToString::to_string),
            phase,
            prompt,
            mail.map(integer),
            why.map(|error| error.code.name()),
            why.map(|error| &*error.message),
            settling,
            agent.turns,
            agent.turns_completed,
            agent.task_turns,
            agent.answer,
            integer(agent.usage.input_tokens),
            integer(agent.usage.output_tokens),
            time(agent.created),
            time(agent.updated),
        ])?;
        Ok(())
    }

    fn put_team(&mut self, team: &Team) -> rusqlite::Result<()> {
        let members: Vec<&str> = team.members.iter().map(SubAgentId::as_str).collect();
        self.cached(
            "INSERT OR REPLACE INTO teams (team, owner, name, description, strategy, rounds, task, priority,
                 members, state, why, created, updated)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            team.id.as_str(),
            team.owner.as_str(),
            team.name,
            team.description,
            team.strategy.name(),
            team.strategy.rounds(),
            team.task.description,
            team.task.priority.name(),
            members.join(" "),
            team.state.name(),
            team.why,
            time(team.created),
            time(team.updated),
        ])?;
        Ok(())
    }
}

fn agent(row: &Row<'_>) -> Result<Agent, Failure> {
    let settling: bool = row.get("settling")?;
    let (code, why): (Option<String>, Option<String>) = (row.get("code")?, row.get("why")?);
    let why = code.map(|code| {
        ErrorCode::from_name(&code).unwrap_or(ErrorCode::Internal).error(why.unwrap_or_default())
    });
    let name: String = row.get("phase")?;
    let over = AgentState::from_name(&name).filter(|state| state.is_over());
    let phase = match (&*name, over) {
        (_, Some(state)) => Phase::Over { state, why, settling },
        ("waiting", _) => Phase::Waiting,
        ("turn", _) => Phase::Turn { content: row.get("prompt")?, mail: row.number_if_any("mail")? },
        _ => return Err(unreadable(format_args!("an agent is {name:?}"))),
    };
    let (place, role) = (row.get("place")?, row.get("role")?);
    let (team, model): (Option<String>, Option<String>) = (row.get("team")?, row.get("model")?);
    Ok(Agent {
        id: row.id("agent")?,
        owner: row.owner("owner")?,
        session: row.session("session")?,
        parent: row.session_if_any("parent")?,
        root: row.session("root")?,
        depth: row.get("depth")?,
        seat: team.map(|team| Seat { team: TeamId::from(team), place, role }),
        kind: row.get("kind")?,
        task: task(row)?,
        tokens_max: row.number_if_any("tokens_max")?,
        model: model.as_deref().and_then(ModelRef::parse),
        phase,
        turns: row.get("turns")?,
        turns_completed: row.get("completed")?,
        task_turns: row.get("at_task")?,
        answer: row.get("answer")?,
        usage: row.usage("input_tokens", "output_tokens")?,
        created: row.at("created")?,
        updated: row.at("updated")?,
    })
}

fn team(row: &Row<'_>) -> Result<Team, Failure> {
    let (name, rounds): (String, u32) = (row.get("strategy")?, row.get("rounds")?);
    let strategy = Coordination::from_name(&name, Some(rounds))?;
    let name: String = row.get("state")?;
    let Some(state) = TeamState::from_name(&name) else {
        return Err(unreadable(format_args!("a team is {name:?}")));
    };
    let members: String = row.get("members")?;
    Ok(Team {
        id: row.id("team")?,
        owner: row.owner("owner")?,
        name: row.get("name")?,
        description: row.get("description")?,
        strategy,
        task: task(row)?,
        members: members.split_whitespace().map(SubAgentId::from).collect(),
        state,
        why: row.get("why")?,
        said: Vec::new(),
        created: row.at("created")?,
        updated: row.at("updated")?,
    })
}

fn task(row: &Row<'_>) -> rusqlite::Result<Task> {
    let priority: String = row.get("priority")?;
    let priority = Priority::from_name(&priority).unwrap_or_default();
    Ok(Task { description: row.get("task")?, priority })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use clawmux_core::agents::registry::Change;
    use clawmux_core::ids::Owner;
    use clawmux_core::provider::usage::Usage;
    use clawmux_core::time::Timestamp;

    fn agent(id: &str, phase: Phase) -> Agent {
        let session = SessionKey::new("main", "agent", id, "main").unwrap();
        Agent {
            id: id.into(),
            owner: Owner::Credential("ada".into()),
            root: session.clone(),
            session,
            parent: Some(SessionKey::new("main", "wundr", "x", "main").unwrap()),
            depth: 2,
            seat: Some(Seat { team: "t".into(), place: 3, role: "critic 🎈".into() }),
            kind: "work".into(),
            task: Task { description: "do\nit".into(), priority: Priority::High },
            tokens_max: Some(5),
            model: Some(ModelRef { provider: "up".into(), model: "vendor/m".into() }),
            phase,
            turns: 4,
            turns_completed: 3,
            task_turns: 2,
            answer: Some("so".into()),
            usage: Usage::new(7, 8),
            created: Timestamp::from_millis(1),
            updated: Timestamp::from_millis(2),
        }
    }

    #[actix::test]
    async fn agents_and_teams_survive_a_new_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::start(&path).await.unwrap();
        let why = Some(ErrorCode::BudgetExceeded.error("spent"));
        let over = Phase::Over { state: AgentState::Failed, why, settling: true };
        let agents = vec![
            agent("a", Phase::Turn { content: "go on".into(), mail: Some(9) }),
            Agent { seat: None, parent: None, tokens_max: None, model: None, ..agent("b", over) },
            agent("c", Phase::Waiting),
        ];
        let team = Team {
            id: "t".into(),
            owner: Owner::Admins,
            name: "crew".into(),
            description: None,
            strategy: Coordination::RoundRobin { rounds: 3 },
            task: agents[0].task.clone(),
            members: vec!["a".into(), "c".into()],
            state: TeamState::Active,
            why: None,
            said: vec![(1, "first".into()), (0, "second".into())],
            created: Timestamp::from_millis(1),
            updated: Timestamp::from_millis(2),
        };
        let mail = |number| Mail {
            number,
            message: "m".into(),
            from: "a".into(),
            to: "c".into(),
            content: "hello".into(),
        };
        let note = |id: &str| Note {
            id: id.into(),
            session: agents[0].session.clone(),
            owner: Owner::Admins,
            content: "done".into(),
        };
        let said = |number: usize, of: &Team| Change::Said {
            team: of.id.clone(),
            number,
            place: of.said[number].0,
            text: of.said[number].1.clone(),
        };
        let mut changes: Vec<Change> = agents.iter().cloned().map(Box::new).map(Change::Agent).collect();
        changes.extend([
            Change::Agent(Box::new(agent("d", Phase::Waiting))),
            Change::ForgetAgent("d".into()),
            Change::Team(Box::new(team.clone())),
            said(0, &team),
            said(1, &team),
            Change::Mail(mail(1)),
            Change::Mail(mail(9)),
            Change::ForgetMail(1),
            Change::Note(note("n")),
            Change::Note(note("o")),
            Change::ForgetNote("o".into()),
            // A second time, as it is now: what was said stays.
            Change::Team(Box::new(Team { said: Vec::new(), ..team.clone() })),
        ]);
        store.send(WriteAgents(changes)).await.unwrap().unwrap();
        store.send(crate::store::Stop).await.unwrap().unwrap();

        let store = Store::start(&path).await.unwrap();
        let KeptAgents { kept, spent } = store.send(ReadAgents).await.unwrap().unwrap();
        assert_eq!(kept.agents, agents);
        assert_eq!(kept.teams, [team]);
        assert_eq!((kept.mail, kept.notes), (vec![mail(9)], vec![note("n")]));
        assert!(spent.is_empty(), "no session has said anything");
        let forget = vec![Change::ForgetSaid("t".into()), Change::ForgetTeam("t".into())];
        store.send(WriteAgents(forget)).await.unwrap().unwrap();
        assert!(store.send(ReadAgents).await.unwrap().unwrap().kept.teams.is_empty());
    }
}
