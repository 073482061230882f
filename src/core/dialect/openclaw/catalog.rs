//! What there is to choose from: agents, models, commands. It follows from the configuration, so it
//! is answered at once.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request, keys, slash};
use crate::config::catalog::{AgentEntry, ModelEntry};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::provider::model::ModelRef;

/// How clients name a model.
pub(super) fn model_name(model: &ModelRef) -> String {
    model.to_string()
}

impl OpenClaw {
    /// The agent that answers those who name none.
    pub(super) fn default_agent(&self) -> &str {
        self.setup.catalog.default_agent.as_ref().map_or(keys::MAIN, |agent| agent.as_str())
    }

    /// Refuses an `agentId` that names no agent.
    pub(super) fn check_agent(&self, request: &Request<'_>, agent: &str) -> Result<(), Error> {
        match self.setup.catalog.agent(agent) {
            Some(_) => Ok(()),
            None => Err(request.invalid(&format!("at /agentId: no agent named {}", clip(agent)))),
        }
    }

    /// The model of an agent, or of the default one.
    pub(super) fn model_of(&self, agent: &str) -> Option<&ModelRef> {
        let catalog = &self.setup.catalog;
        let agent = catalog.agent(agent).or_else(|| catalog.agent(self.default_agent()));
        agent.map(|agent| &agent.model)
    }

    /// The payload of `agents.list`. Without a model the Control UI would not send anything.
    pub(super) fn agents(&self) -> Value {
        let agent = |agent: &AgentEntry| {
            let fallbacks: Vec<_> = agent.fallback.iter().map(model_name).collect();
            json!({
                "id": agent.id.as_str(),
                "name": agent.id.as_str(),
                "model": { "primary": model_name(&agent.model), "fallbacks": fallbacks },
            })
        };
        json!({
            "defaultId": self.default_agent(),
            "mainKey": keys::MAIN,
            "scope": "per-sender",
            "agents": self.setup.catalog.agents.iter().map(agent).collect::<Vec<_>>(),
        })
    }

    fn models(&self) -> Value {
        self.setup.catalog.models.iter().map(|entry| self.model(entry)).collect()
    }

    fn model(&self, entry: &ModelEntry) -> Value {
        let is_available = self.setup.catalog.is_available(&entry.model.provider);
        let mut value = json!({
            "id": entry.model.model,
            "name": entry.model.model,
            "provider": entry.model.provider,
            "available": is_available,
        });
        let facts = self.setup.catalog.facts(&entry.model);
        if let Some(tokens) = facts.context_window {
            value["contextWindow"] = tokens.into();
        }
        if let Some(reasoning) = facts.reasoning {
            value["reasoning"] = reasoning.into();
        }
        if let Some(images) = facts.images {
            value["input"] = if images { json!(["text", "image"]) } else { json!(["text"]) };
        }
        if !is_available {
            value["unavailableReason"] = "missing-auth".into();
        }
        value
    }
}

/// `agents.list`.
pub(super) fn agents_list(dialect: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(dialect.agents()))
}

/// `agent.identity.get`.
pub(super) fn agent_identity(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identity {
        agent_id: Option<String>,
        session_key: Option<String>,
    }
    let asked: Identity = request.read()?;
    let of_session =
        asked.session_key.as_deref().and_then(|key| key.strip_prefix("agent:")?.split(':').next());
    let id = asked.agent_id.as_deref().or(of_session).unwrap_or(dialect.default_agent());
    if dialect.setup.catalog.agent(id).is_none() {
        return Err(ErrorCode::NotFound.error(format!("no agent named {}", clip(id))));
    }
    let avatar = id.chars().next().map(|first| first.to_uppercase().to_string());
    Ok(Call::Answer(json!({ "agentId": id, "name": id, "avatar": avatar })))
}

/// `models.list`.
pub(super) fn models_list(dialect: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({ "models": dialect.models() })))
}

/// `models.authStatus`: how providers are let in that take a key.
pub(super) fn auth_status(dialect: &mut OpenClaw, _: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let access = dialect.setup.catalog.access.iter();
    let providers = access.filter(|(_, access)| access.has_key || access.lacks_key).map(|(name, access)| {
        let status = if access.has_key { "static" } else { "missing" };
        let mut provider = json!({ "provider": name, "displayName": name, "status": status, "profiles": [] });
        if access.has_key {
            provider["apiKey"] = json!({ "source": "config" });
        }
        provider
    });
    let providers: Vec<_> = providers.collect();
    Ok(Call::Answer(json!({ "ts": turn.now().as_millis(), "providers": providers })))
}

/// `commands.list`.
pub(super) fn commands_list(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({ "commands": slash::list() })))
}

/// `chat.metadata`.
pub(super) fn metadata(dialect: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({ "models": dialect.models(), "commands": slash::list() })))
}

/// `question.list`: clawmux has no questions, and pages ask every few seconds.
pub(super) fn question_list(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({ "questions": [] })))
}
