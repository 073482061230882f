//! What the pages of the Control UI ask for and clawmux has none of: the answer says so, in the shape in
//! which the page shows that there is nothing.
//!
//! A page that has words of its own for a method that is not there is better left to them, and its
//! method has no row in [`super::method`].

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::dialect::Turn;
use crate::error::Error;

/// What an answer is made of where nothing has to be read.
type Nothing = Answered;

fn none(payload: Value) -> Nothing {
    Ok(Call::Answer(payload))
}

/// `plugin.approval.list` and `openclaw.approval.list`: whatever waits for approval is a tool call, and
/// those are in `exec.approval.list`.
pub(super) fn approvals(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!([]))
}

/// `exec.approval.grants.list`: a decision holds for one call.
pub(super) fn grants(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({ "grants": [] }))
}

/// `skills.search` and `plugins.catalog.browse`: no registry is asked.
pub(super) fn search(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    let list = if request.method.name == "skills.search" { "results" } else { "items" };
    none(json!({ list: [] }))
}

/// `skills.library.list`: there is no library; the skills in folders are in `skills.status`.
pub(super) fn library(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({ "entries": [], "defaultSelectionLimit": 0 }))
}

/// `skills.proposals.list`: nobody proposes any.
pub(super) fn proposals(_: &mut OpenClaw, _: &Request<'_>, turn: &mut Turn<'_>) -> Nothing {
    none(json!({
        "schema": "openclaw.skill-workshop.proposals-manifest.v1",
        "updatedAt": turn.now().to_rfc3339(),
        "proposals": [],
        "installedSkills": [],
    }))
}

/// `themes.list`: those that the page brings along are all there are, and it keeps the choice itself.
pub(super) fn themes(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({
        "themes": [],
        "current": { "id": "claw", "mode": "system", "scope": "gateway", "overrides": {} },
        "theme": { "id": "claw", "name": "Claw", "description": "", "source": "builtin", "modes": ["light", "dark"] },
    }))
}

/// `talk.catalog`: nothing here speaks or listens.
pub(super) fn talk(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    let silent = json!({ "ready": false, "providers": [] });
    none(json!({
        "modes": [], "transports": [], "brains": [],
        "speech": silent, "transcription": silent, "realtime": silent,
    }))
}

/// `progressCard.get`: no agent keeps one.
pub(super) fn progress_card(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({ "card": null }))
}

/// `worktrees.list`: agents work in no checkout.
pub(super) fn worktrees(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({ "worktrees": [] }))
}

/// `channels.pairing.list`: there are no channels whose senders could be paired.
pub(super) fn senders(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({
        "accounts": [], "requests": [], "commandOwnerConfigured": false,
        "limits": { "pendingPerAccount": 0, "ttlMs": 0 },
    }))
}

/// `transcripts.list`: no meeting is listened to.
pub(super) fn meetings(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({ "sessions": [] }))
}

/// `update.status`: whether there is a newer version is not looked for.
pub(super) fn update(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    none(json!({ "sentinel": null, "updateAvailable": null }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfAgent {
    agent_id: Option<String>,
    selected_scope: Option<String>,
}

/// The agent that is asked about, and in which scope.
fn of_agent(dialect: &OpenClaw, request: &Request<'_>) -> Result<(String, Option<String>), Error> {
    let OfAgent { agent_id, selected_scope } = request.read()?;
    let agent = agent_id.unwrap_or_else(|| dialect.default_agent().to_owned());
    dialect.check_agent(request, &agent)?;
    Ok((agent, selected_scope))
}

/// `doctor.memory.status`: what is remembered is not looked for by meaning.
pub(super) fn memory(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    let (agent, _) = of_agent(dialect, request)?;
    let embedding =
        json!({ "ok": false, "error": "clawmux searches its memory by words, without embeddings" });
    none(json!({ "agentId": agent, "searchRuntimeRegistered": false, "embedding": embedding }))
}

/// `webSearch.status`: agents search the web with plugins of their own, or not at all.
pub(super) fn web_search(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    let (agent, _) = of_agent(dialect, request)?;
    let model = dialect.model_of(&agent);
    let model = json!({
        "provider": model.map(|model| model.provider.as_str()),
        "id": model.map(|model| model.model.as_str()),
        "runtime": "unknown",
        "runtimeLabel": "clawmux",
    });
    none(json!({
        "enabled": false,
        "provider": null,
        "agentId": agent,
        "model": model,
        "providers": [],
        "route": {
            "kind": "unavailable",
            "label": "Search unavailable",
            "testable": false,
            "reason": "clawmux has no web search of its own; a plugin can be one.",
        },
    }))
}

/// `tools.github.status`: no identity at GitHub is known.
pub(super) fn github(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    let (agent, scope) = of_agent(dialect, request)?;
    let scope = scope.filter(|scope| scope == "agent").unwrap_or_else(|| "system".into());
    none(json!({
        "agentId": agent,
        "selectedScope": scope,
        "selected": { "scope": scope, "configured": false, "identity": null },
        "effective": {
            "source": "system-detected",
            "credentialKind": "native",
            "credentialState": "unavailable",
            "account": null,
            "gitAuthor": { "name": null, "email": null },
            "evidence": "none",
            "accessExpiresAtMs": null,
            "refreshState": "not_applicable",
            "oauthScopes": [],
            "repositoryGrants": "unknown",
        },
    }))
}

/// `migrations.memory.plan`: nothing is brought over from other programs.
pub(super) fn migrations(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Nothing {
    let (agent, _) = of_agent(dialect, request)?;
    let workspace = dialect.workspace(&agent);
    none(json!({ "agentId": agent, "workspace": workspace, "providers": [] }))
}
