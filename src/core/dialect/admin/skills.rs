//! `admin.skills`: the skills in the folders of agents, and what is wrong with each.

use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, method};
use crate::daemon::command::ListSkills;
use crate::error::Error;
use crate::skill::SkillRow;

/// The methods.
pub(super) const METHODS: &[Method] = &[method("admin.skills", "{}", skills)];

/// `admin.skills`: `{"skills": [..]}`, by name. `state` is `offered`, `left out` (there is no room for it in what the
/// agent is told), `hidden` (one of the same name counts instead), `not granted` (`tools` of the agent don't name
/// `skills`) or `broken`: that with the agent with which it fares best.
fn skills(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ListSkills, |list| json!({ "skills": list.skills.iter().map(row).collect::<Vec<_>>() }))
}

fn row(row: &SkillRow) -> Value {
    let problems = row.problems.iter().map(
        |problem| json!({ "line": problem.line, "message": problem.message, "is_fatal": problem.is_fatal }),
    );
    let agents =
        row.agents.iter().map(|of| json!({ "agent": of.agent.as_str(), "state": of.standing.word() }));
    let skill = row.skill.as_ref();
    json!({
        "skill": row.name,
        "state": row.standing().word(),
        "folder": row.folder.as_ref().map(|folder| folder.display().to_string()),
        "description": skill.map(|skill| &skill.description),
        "license": skill.and_then(|skill| skill.license.as_ref()),
        "compatibility": skill.and_then(|skill| skill.compatibility.as_ref()),
        "allowed_tools": skill.and_then(|skill| skill.allowed_tools.as_ref()),
        "agents": agents.collect::<Vec<_>>(),
        "problems": problems.collect::<Vec<_>>(),
    })
}
