//! Agents at run time: `agents.create`, `agents.update` and `agents.delete` write the configuration, which
//! the daemon goes over to at once; `agents.files.*` are the files an agent has.
//!
//! An agent here is a section `[agents.NAME]`, and its one file is its soul. Its name is its id, and
//! nobody keeps a face for it: what would be lost is refused by name.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::config::catalog::AgentEntry;
use crate::config::request::{ConfigRequest, SoulFile, SoulRequest};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::ids::AgentId;
use crate::provider::model::ModelRef;

/// The longest id of an agent that is made here, in bytes.
const ID_BYTES_MAX: usize = 64;

/// The name of a soul's file.
const SOUL: &str = "SOUL.md";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Make {
    name: String,
    workspace: Option<String>,
    model: Option<String>,
    emoji: Option<String>,
    avatar: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update {
    agent_id: String,
    name: Option<String>,
    workspace: Option<String>,
    model: Option<Value>,
    emoji: Option<String>,
    avatar: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delete {
    agent_id: String,
    delete_files: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    agent_id: String,
    name: Option<String>,
    content: Option<String>,
}

impl OpenClaw {
    /// The folder of an agent's files.
    pub(super) fn workspace(&self, agent: &str) -> String {
        self.setup.catalog.agent(agent).map_or_else(|| ".".to_owned(), |agent| folder(&agent.soul))
    }

    fn agent_of(&self, request: &Request<'_>, id: &str) -> Result<AgentEntry, Error> {
        self.check_agent(request, id)?;
        let found = self.setup.catalog.agent(id).cloned();
        found.ok_or_else(|| ErrorCode::NotFound.error(format!("no agent named {}", clip(id))))
    }

    /// The keys of a model that somebody names, or of the default agent's.
    fn model_keys(&self, name: Option<&str>) -> Result<Vec<(&'static str, Value)>, Error> {
        let model = match name {
            Some(name) => Some(self.setup.catalog.find(self.default_agent(), name)?),
            None => self.model_of(self.default_agent()).cloned(),
        };
        let Some(ModelRef { provider, model }) = model else { return Ok(Vec::new()) };
        Ok(vec![("provider", provider.into()), ("model", model.into())])
    }
}

fn folder(soul: &Path) -> String {
    let folder = soul.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or_else(|| ".".to_owned(), |folder| folder.display().to_string())
}

/// The id that follows from a name: what is no letter, digit or sign of a name is a dash.
fn id_of(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
    let dashed: String = name.trim().chars().map(fit).collect();
    let parts: Vec<&str> = dashed.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

/// Refuses what would be lost.
fn no_face(request: &Request<'_>, emoji: Option<&str>, avatar: Option<&str>) -> Result<(), Error> {
    for (name, given) in [("emoji", emoji), ("avatar", avatar)] {
        if given.is_some_and(|given| !given.is_empty()) {
            return Err(request.invalid(&format!("at /{name}: clawmux keeps no {name} of an agent")));
        }
    }
    Ok(())
}

/// The file of the soul in a workspace.
fn soul_in(request: &Request<'_>, workspace: &str) -> Result<String, Error> {
    if !workspace.starts_with('/') {
        return Err(request.invalid("at /workspace: must be an absolute path"));
    }
    Ok(format!("{}/{SOUL}", workspace.trim_end_matches('/')))
}

/// Has the configuration say this, then answers with `payload`.
fn place(
    values: Vec<(String, Value)>,
    payload: impl FnOnce(&Value) -> Result<Value, Error> + 'static,
) -> Answered {
    Call::ask_on(ConfigRequest::Place { values, merge: true }, |_, now, _| {
        payload(&now.effective["agents"]).map(Call::Answer)
    })
}

/// `agents.create`: an agent with a soul of its own, and the default agent's model unless one is named.
pub(super) fn create(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: Make = request.read()?;
    no_face(request, asked.emoji.as_deref(), asked.avatar.as_deref())?;
    let id = id_of(&asked.name);
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(request.invalid(&format!(
            "at /name: an agent's id has 1 to {ID_BYTES_MAX} letters, digits and dashes"
        )));
    }
    if dialect.setup.catalog.agent(&id).is_some() {
        return Err(ErrorCode::Conflict.error(format!("agent {id} is there already")));
    }
    let soul = match &asked.workspace {
        Some(workspace) => soul_in(request, workspace)?,
        None => format!("agents/{id}/{SOUL}"),
    };
    let mut section = serde_json::Map::new();
    for (key, value) in dialect.model_keys(asked.model.as_deref())? {
        section.insert(key.into(), value);
    }
    section.insert("soul".into(), soul.as_str().into());
    let mut answer = json!({ "ok": true, "agentId": id, "name": id });
    if let (Some(Value::String(provider)), Some(Value::String(model))) =
        (section.get("provider"), section.get("model"))
    {
        answer["model"] = format!("{provider}/{model}").into();
    }
    let values = vec![(format!("agents.{id}"), Value::Object(section))];
    Call::ask_on(ConfigRequest::Place { values, merge: true }, |_, _, _| {
        Call::ask(SoulRequest { agent: AgentId::new(id), text: None }, |_, soul, _| {
            answer["workspace"] = folder(&soul.path).into();
            answer
        })
    })
}

/// `agents.update`: its model (null = as the default agent's) and where its soul is.
pub(super) fn update(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: Update = request.read()?;
    let agent = dialect.agent_of(request, &asked.agent_id)?;
    no_face(request, asked.emoji.as_deref(), asked.avatar.as_deref())?;
    if asked.name.as_ref().is_some_and(|name| name != agent.id.as_str()) {
        return Err(request.invalid("at /name: an agent's name is its id here, which does not change"));
    }
    let mut values = Vec::new();
    let model = match &asked.model {
        None => None,
        Some(Value::Null) => Some(dialect.model_keys(None)?),
        Some(Value::String(model)) => Some(dialect.model_keys(Some(model))?),
        Some(_) => return Err(request.invalid("at /model: must be a string or null")),
    };
    for (key, value) in model.into_iter().flatten() {
        values.push((format!("agents.{}.{key}", agent.id), value));
    }
    if let Some(workspace) = &asked.workspace {
        values.push((format!("agents.{}.soul", agent.id), soul_in(request, workspace)?.into()));
    }
    let answer = json!({ "ok": true, "agentId": agent.id.as_str() });
    if values.is_empty() {
        return Ok(Call::Answer(answer));
    }
    place(values, move |_| Ok(answer))
}

/// `agents.delete`: out of the configuration; its sessions and its soul stay where they are.
pub(super) fn delete(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: Delete = request.read()?;
    let agent = dialect.agent_of(request, &asked.agent_id)?;
    let id = agent.id.as_str().to_owned();
    if id == dialect.default_agent() {
        return Err(ErrorCode::Conflict
            .error(format!("agent {id} is the default agent: set another one under [default] agent first")));
    }
    let mut answer = json!({ "ok": true, "agentId": id, "removedBindings": 0 });
    if asked.delete_files == Some(true) {
        let soul = agent.soul.display().to_string();
        answer["failed"] = json!([{ "path": soul, "reason": "clawmux deletes no files of agents" }]);
    }
    place(vec![(format!("agents.{id}"), Value::Null)], move |agents| {
        if agents.get(&id).is_some() {
            let why =
                format!("agent {id} is there all the same: another file than the one changes go to says so");
            return Err(ErrorCode::Conflict.error(why));
        }
        Ok(answer)
    })
}

fn file_name(soul: &Path) -> String {
    soul.file_name().map_or_else(|| SOUL.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn entry(soul: &SoulFile, with_text: bool) -> Value {
    let mut entry = json!({
        "name": file_name(&soul.path),
        "path": soul.path.display().to_string(),
        "missing": soul.text.is_none(),
    });
    if let Some(text) = &soul.text {
        entry["size"] = text.len().into();
        if with_text {
            entry["content"] = text.as_str().into();
        }
    }
    if let Some(updated) = soul.updated {
        entry["updatedAtMs"] = updated.as_millis().into();
    }
    entry
}

/// Looks at an agent's soul or changes it; `answer` is told its id, the folder, and the file.
fn soul(agent: AgentId, text: Option<String>, answer: fn(Value, &SoulFile) -> Value) -> Answered {
    Call::ask(SoulRequest { agent: agent.clone(), text }, move |_, soul, _| {
        answer(json!({ "agentId": agent.as_str(), "workspace": folder(&soul.path) }), &soul)
    })
}

/// The agent whose file is named; there is one file.
fn named(dialect: &OpenClaw, request: &Request<'_>, file: &File) -> Result<AgentId, Error> {
    let agent = dialect.agent_of(request, &file.agent_id)?;
    let (name, known) = (file.name.as_deref().unwrap_or_default(), file_name(&agent.soul));
    if name != known {
        return Err(
            request.invalid(&format!("at /name: an agent has one file, {known}, and no {:?}", clip(name)))
        );
    }
    Ok(agent.id)
}

/// `agents.files.list`
pub(super) fn files(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: File = request.read()?;
    let agent = dialect.agent_of(request, &asked.agent_id)?;
    soul(agent.id, None, |mut answer, soul| {
        answer["files"] = json!([entry(soul, false)]);
        answer
    })
}

/// `agents.files.get`
pub(super) fn file(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: File = request.read()?;
    let agent = named(dialect, request, &asked)?;
    soul(agent, None, |mut answer, soul| {
        answer["file"] = entry(soul, true);
        answer
    })
}

/// `agents.files.set`: its sessions have it from their next run on.
pub(super) fn set_file(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: File = request.read()?;
    let agent = named(dialect, request, &asked)?;
    let Some(content) = asked.content else { return Err(request.invalid("at /content: must be a string")) };
    soul(agent, Some(content), |mut answer, soul| {
        answer["ok"] = true.into();
        answer["file"] = entry(soul, true);
        answer
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_follows_from_a_name() {
        for (name, id) in
            [("Helper", "helper"), (" My  Helper! 2 ", "my-helper-2"), ("a/../b", "a-b"), ("é", "")]
        {
            assert_eq!(id_of(name), id);
        }
        assert_eq!(folder(Path::new("/x/agents/a/SOUL.md")), "/x/agents/a");
        assert_eq!(folder(Path::new("SOUL.md")), ".");
    }
}
