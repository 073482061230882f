//! `admin.plugins` and `admin.plugin.*`: the plugins there are, and what can be done to one.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use crate::daemon::operator::{
    AgentTools, CallPlugin, CalledTool, LoadPlugin, LoadedPlugin, ObservePlugins, ReloadPlugin, Snapshot,
    UnloadPlugin,
};
use crate::error::Error;
use crate::ids::PluginName;
use crate::tools::plugin::PluginSummary;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.plugins", "{}", list),
    method("admin.plugin.load", r#"{"plugin", "path"?}"#, load),
    method("admin.plugin.unload", r#"{"plugin"}"#, unload),
    method("admin.plugin.reload", r#"{"plugin"}"#, reload),
    method("admin.plugin.call", r#"{"plugin", "input"?}"#, call),
];

/// `admin.plugins`: `{"plugins": [..]}`, by name, whether they can be called or not.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ObservePlugins, |sandbox| json!({ "plugins": sandbox.children.iter().map(row).collect::<Vec<_>>() }))
}

pub(in crate::dialect) fn row(observed: &Snapshot) -> Value {
    let state = &observed.state;
    json!({
        "plugin": state["plugin"],
        "state": observed.silent.as_deref().map_or_else(|| state["state"].clone(), |_| json!("silent")),
        "error": observed.silent.as_deref().map_or_else(|| state["error"].clone(), Value::from),
        "version": state["version"],
        "description": state["description"],
        "input_schema": state["input_schema"],
        "source": state["source"],
        "path": state["path"],
        "asks": state["asks"],
        "signed_by": state["signed_by"],
        "capabilities": state["capabilities"],
        "approval": state["approval"],
        "idempotent": state["idempotent"],
        "limits": state["limits"],
        "calls": state["calls_total"],
        "errors": state["calls_failed_total"],
        "cut_off": state["calls_cut_off_total"],
        "running": state["calls_running"],
        "waiting": state["calls_waiting"],
        "restarts": state["restarts_total"],
        "last_call_us": state["last_call_us"],
        "last_error": state["last_error"],
        "last_error_ms": state["last_error_ms"],
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    plugin: String,
    path: Option<String>,
}

/// `admin.plugin.load`: `{"plugin", "version", "description", "capabilities", "path", "loaded": true, "agents"}`, once
/// it can be called. `path` is a file in the plugins folder of the home; where it is left out, and none of this name
/// is configured or ships in the binary, the one named after the plugin. Of each agent `agents` says which `tools` it
/// has, whether it was `given` this one, and whether it is the `default` one.
fn load(request: &Request) -> Result<Call, Error> {
    let Load { plugin, path } = request.read()?;
    let load = LoadPlugin { name: PluginName::new(plugin), path };
    ask(load, |LoadedPlugin { plugin, path, agents }| {
        let mut answer = summary(&plugin);
        answer["loaded"] = true.into();
        answer["path"] = path.into();
        answer["agents"] = agents.iter().map(agent).collect();
        answer
    })
}

fn agent(AgentTools { agent, tools, is_given, is_default }: &AgentTools) -> Value {
    json!({
        "agent": agent.as_str(),
        "tools": tools.iter().map(PluginName::as_str).collect::<Vec<_>>(),
        "given": is_given,
        "default": is_default,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginParams {
    plugin: String,
}

/// `admin.plugin.unload`: `{"plugin", "unloaded": true}`; calls under way finish.
fn unload(request: &Request) -> Result<Call, Error> {
    let PluginParams { plugin } = request.read()?;
    let unload = UnloadPlugin { name: PluginName::new(plugin.as_str()) };
    ask(unload, move |_| json!({ "plugin": plugin, "unloaded": true }))
}

/// `admin.plugin.reload`: what `load` answers, with `reloaded`. Calls under way finish on the one there was,
/// which stays where the new one can't be loaded.
fn reload(request: &Request) -> Result<Call, Error> {
    let PluginParams { plugin } = request.read()?;
    ask(ReloadPlugin { name: PluginName::new(plugin) }, |plugin| {
        let mut answer = summary(&plugin);
        answer["reloaded"] = true.into();
        answer
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Try {
    plugin: String,
    #[serde(default)]
    input: Value,
}

/// `admin.plugin.call`: `{"plugin", "content", "is_error", "took_us", "fuel", "grants"}`, made as a session would,
/// with the plugin's own grants and limits; nobody is asked for approval. `fuel` is what it burnt (null where it was
/// cut off), `grants` those that it made use of.
fn call(request: &Request) -> Result<Call, Error> {
    let Try { plugin, input } = request.read()?;
    let input = if input.is_null() { json!({}) } else { input };
    if !input.is_object() {
        return Err(invalid("the input of a plugin is a JSON object"));
    }
    let call = CallPlugin { name: PluginName::new(plugin.as_str()), input };
    ask(call, move |answer| called(answer, json!({ "plugin": plugin })))
}

/// What became of a call, with what was called.
pub(super) fn called(answer: CalledTool, mut of: Value) -> Value {
    let CalledTool { content, is_error, took_us, usage } = answer;
    of["content"] = content.into();
    of["is_error"] = is_error.into();
    of["took_us"] = took_us.into();
    of["fuel"] = json!(usage.fuel);
    of["grants"] = json!(usage.grants);
    of
}

fn summary(plugin: &PluginSummary) -> Value {
    json!({
        "plugin": plugin.name.as_str(),
        "version": plugin.version,
        "description": plugin.description,
        "capabilities": plugin.capabilities,
    })
}
