//! Plugins, and what agents are offered of them: `plugins.list`, `tools.effective`, `tools.catalog`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::config::catalog::AgentEntry;
use crate::daemon::operator::ObservePlugins;
use crate::dialect::Turn;
use crate::dialect::admin;
use crate::dialect::json::clip;
use crate::error::Error;
use crate::ids::Owner;
use crate::scope::Scope;
use crate::tools::plugin::{ListPlugins, PluginSummary};

/// What the tools of an agent are called as a whole: its entry in the configuration names them.
const PROFILE: &str = "configured";

/// `plugins.list`. Operators are told of those as well that could not be loaded, and why.
pub(super) fn plugins(dialect: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let list = |plugins: Vec<Value>| {
        Ok(Call::Answer(json!({ "plugins": plugins, "diagnostics": [], "mutationAllowed": false })))
    };
    if dialect.owner == Owner::Admins && dialect.who.scopes.allows(Scope::Admin) {
        return Call::ask_on(ObservePlugins, move |_, sandbox, _| {
            list(sandbox.children.iter().map(|plugin| known(&admin::plugins::row(plugin))).collect())
        });
    }
    Call::ask_on(ListPlugins, move |_, loaded, _| {
        let row = |plugin: &PluginSummary| {
            plugin_row(plugin.name.as_str(), &plugin.description, plugin.version.as_deref(), None)
        };
        list(loaded.iter().map(row).collect())
    })
}

/// A row of `admin.plugins`.
fn known(told: &Value) -> Value {
    let text = |name: &str| told[name].as_str();
    let mut row = plugin_row(
        text("plugin").unwrap_or_default(),
        text("description").unwrap_or_default(),
        text("version"),
        text("error"),
    );
    if let Some(source) = text("source").filter(|source| !source.is_empty()) {
        row["origin"] = source.into();
    }
    row
}

fn plugin_row(name: &str, description: &str, version: Option<&str>, error: Option<&str>) -> Value {
    let mut row = json!({
        "id": name,
        "name": name,
        "description": description,
        "kind": ["tool"],
        "installed": true,
        "enabled": true,
        "state": if error.is_some() { "error" } else { "enabled" },
        "removable": false,
    });
    for (key, value) in [("version", version), ("error", error)] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            row[key] = value.into();
        }
    }
    row
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolsParams {
    agent_id: Option<String>,
    session_key: Option<String>,
}

/// The agent whose tools are asked for.
fn agent<'a>(dialect: &'a OpenClaw, request: &Request<'_>) -> Result<&'a AgentEntry, Error> {
    let ToolsParams { agent_id, session_key } = request.read()?;
    let of_session = session_key.as_deref().and_then(|key| key.strip_prefix("agent:")?.split(':').next());
    let id = agent_id.as_deref().or(of_session).unwrap_or(dialect.default_agent());
    let found = dialect.setup.catalog.agent(id);
    found.ok_or_else(|| request.invalid(&format!("at /agentId: no agent named {}", clip(id))))
}

/// `tools.effective`: the tools that an agent is offered.
pub(super) fn effective(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let AgentEntry { id, tools, node_tools, mcp_tools, .. } = agent(dialect, request)?.clone();
    Call::ask_on(ListPlugins, move |_, loaded, _| {
        let offered = loaded.iter().filter(|plugin| tools.contains(&plugin.name)).map(|plugin| {
            let mut tool = tool(plugin);
            tool["rawDescription"] = plugin.description.as_str().into();
            tool
        });
        let mut answer = json!({
            "agentId": id.as_str(),
            "profile": PROFILE,
            "groups": group(offered.collect()),
        });
        let missing: Vec<&str> = tools
            .iter()
            .filter(|name| loaded.iter().all(|plugin| plugin.name != **name))
            .map(|name| name.as_str())
            .collect();
        let mut notices = Vec::new();
        if !missing.is_empty() {
            let message = format!("not loaded: {}", missing.join(", "));
            notices.push(json!({ "id": "plugins", "severity": "warning", "message": message }));
        }
        if !mcp_tools.is_empty() {
            let message = format!("offered while their MCP servers are there: {}", mcp_tools.join(", "));
            notices.push(json!({ "id": "mcp", "severity": "info", "message": message }));
        }
        if !node_tools.is_empty() {
            let names: Vec<_> = node_tools.iter().map(|name| name.as_str()).collect();
            let message = format!("offered while their nodes are connected: {}", names.join(", "));
            notices.push(json!({ "id": "nodes", "severity": "info", "message": message }));
        }
        if !notices.is_empty() {
            answer["notices"] = notices.into();
        }
        Ok(Call::Answer(answer))
    })
}

/// `tools.catalog`: the tools that an agent can be offered.
pub(super) fn catalog(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let id = agent(dialect, request)?.id.clone();
    Call::ask(ListPlugins, move |_, loaded, _| {
        let tools = loaded.iter().map(|plugin| {
            let mut tool = tool(plugin);
            tool["defaultProfiles"] = json!([]);
            tool
        });
        json!({ "agentId": id.as_str(), "profiles": [], "groups": group(tools.collect()) })
    })
}

fn tool(plugin: &PluginSummary) -> Value {
    let name = plugin.name.as_str();
    json!({
        "id": name,
        "label": name,
        "description": plugin.description,
        "source": "plugin",
        "pluginId": name,
    })
}

fn group(tools: Vec<Value>) -> Value {
    if tools.is_empty() {
        return json!([]);
    }
    json!([{ "id": "plugin", "label": "Plugins", "source": "plugin", "tools": tools }])
}
