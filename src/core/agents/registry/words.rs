//! What models are told of agents and teams. What somebody asked for comes first and as it is, so that
//! a command to the model stays one.

use super::record::{Agent, Mail, Team};
use crate::agents::subagent::AgentState;

/// The most of an answer that is kept, told to others and shown, in bytes.
pub const ANSWER_BYTES_MAX: usize = 8 * 1024;

/// The most of what was said so far that a member is told, in bytes: the latest of it.
const SAID_BYTES_MAX: usize = 48 * 1024;

/// The most of a task in a status or a note, in bytes.
pub(super) const SHORT_BYTES_MAX: usize = 512;

/// At most so many bytes of a text.
pub(super) fn clip(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(bytes_max)])
}

fn role(agent: &Agent) -> &str {
    agent.seat.as_ref().map_or("", |seat| &seat.role)
}

/// The prompt of a member's turn at the task.
pub(super) fn turn(team: &Team, member: &Agent, roles: &[&str]) -> String {
    let mut text = format!(
        "{}\n\n[You are {} in the team {}{}. Its members: {}.",
        member.task.description,
        role(member),
        team.name,
        team.description.as_ref().map_or_else(String::new, |description| format!(" ({description})")),
        roles.join(", "),
    );
    let rounds = team.strategy.rounds();
    if rounds > 1 {
        text.push_str(&format!(" Round {} of {rounds}.", member.task_turns + 1));
    }
    text.push(']');
    let mut left = SAID_BYTES_MAX;
    let told: Vec<String> = team
        .said
        .iter()
        .rev()
        .map(|(place, said)| format!("\n\n{}: {said}", roles.get(*place as usize).unwrap_or(&"somebody")))
        .take_while(|said| {
            let fits = said.len() <= left;
            left = left.saturating_sub(said.len());
            fits
        })
        .collect();
    if !told.is_empty() {
        text.push_str("\n\n[What was said so far:]");
        if told.len() < team.said.len() {
            text.push_str("\n\n[The beginning is left out.]");
        }
        text.extend(told.into_iter().rev());
    }
    text
}

/// The prompt that a message is.
pub(super) fn message(team: &Team, from: &Agent, mail: &Mail) -> String {
    format!(
        "{}\n\n[This is a message from {} of the team {}, who is told your answer.]",
        mail.content,
        role(from),
        team.name
    )
}

/// What the sender of a message is told.
pub(super) fn answer(team: &Team, from: &Agent, mail: &Mail, answer: Result<&str, &str>) -> String {
    let (name, asked) = (role(from), clip(&mail.content, SHORT_BYTES_MAX));
    match answer {
        Ok(text) => format!("[{name} of the team {} answers the message \"{asked}\":]\n\n{text}", team.name),
        Err(why) => {
            format!("[{name} of the team {} did not answer the message \"{asked}\": {why}]", team.name)
        }
    }
}

/// What the parent is told when an agent is over.
pub(super) fn result(agent: &Agent, state: AgentState, why: Option<&str>) -> String {
    let task = clip(&agent.task.description, SHORT_BYTES_MAX);
    let how = match (state, why) {
        (AgentState::Completed, _) => "has completed its task".to_owned(),
        (AgentState::Failed, why) => format!("has failed at its task ({})", why.unwrap_or("unknown")),
        (_, why) => format!("was stopped at its task ({})", why.unwrap_or("no reason given")),
    };
    let said = agent.answer.as_deref().map_or_else(String::new, |answer| format!("\n\n{answer}"));
    format!("[The agent {} ({}) {how} \"{task}\"]{said}", agent.kind, agent.id)
}
