//! `admin.plugins` and `admin.plugin.*`: the plugins there are, and what can be done to one.

use std::path::Path;
use std::time::Instant;

use clawmux_core::config::EMBEDDED_PLUGINS;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::ToolCall;
use clawmux_core::ids::{CallId, PluginName, RunId, SessionKey};
use clawmux_core::plugin::PluginSummary;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminStatus;
use super::methods::{Call, stopping};
use crate::ask::ask;
use crate::clock;
use crate::observe::{Observe, Observed};
use crate::sandbox::source;
use crate::sandbox_supervisor::{CallTool, Cancel, LoadPlugin, ReloadPlugin, UnloadPlugin};

/// So many modules of the plugins folder are named.
const SHOWN_MAX: usize = 20;
/// So many files of it are looked at.
const FILES_MAX: usize = 10_000;

/// `admin.plugins`: `{"plugins": [..]}`, by name, whether they can be called or not.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.plugins")?;
    let sandbox = ask(&call.daemon.sandbox, Observe).await?;
    Ok(json!({ "plugins": sandbox.children.iter().map(row).collect::<Vec<_>>() }))
}

fn row(observed: &Observed) -> Value {
    let state = &observed.state;
    json!({
        "plugin": state["plugin"],
        "state": observed.silent.as_deref().map_or_else(|| state["state"].clone(), |_| json!("silent")),
        "error": observed.silent.as_deref().map_or_else(|| state["error"].clone(), Value::from),
        "version": state["version"],
        "description": state["description"],
        "source": state["source"],
        "path": state["path"],
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
pub(super) async fn load(call: Call) -> Result<Value, Error> {
    let Load { plugin, path } = call.params("admin.plugin.load")?;
    let name = PluginName::new(plugin);
    let config = call.daemon.config.get();
    let is_known =
        config.plugins.iter().any(|known| known.name == name) || EMBEDDED_PLUGINS.contains(&name.as_str());
    let path = match path {
        None if !is_known && source::check_name(&name).is_ok() => Some(in_folder(&call, &name).await?),
        path => path,
    };
    let load = LoadPlugin { name: name.clone(), path: path.clone() };
    let mut answer = summary(&sent(call.daemon.sandbox.send(load).await)??);
    answer["loaded"] = true.into();
    answer["path"] = path.into();
    let agents = config.agents.values().map(|agent| {
        json!({
            "agent": agent.id.as_str(),
            "tools": agent.tools.iter().map(PluginName::as_str).collect::<Vec<_>>(),
            "given": agent.tools.contains(&name),
            "default": config.default_agent.as_ref() == Some(&agent.id),
        })
    });
    answer["agents"] = agents.collect();
    Ok(answer)
}

/// The file of this plugin in the plugins folder of the home.
///
/// # Errors
/// `NotFound` with those that are there.
async fn in_folder(call: &Call, name: &PluginName) -> Result<String, Error> {
    let status = call.daemon.status.send(AdminStatus).await.unwrap_or_else(|_| Err(stopping()))?;
    let folder = Path::new(status["home"].as_str().unwrap_or_default()).join("plugins");
    let listed = tokio::task::spawn_blocking(move || modules(&folder));
    let there =
        listed.await.map_err(|_| ErrorCode::Internal.error("the plugins folder could not be read"))?;
    if there.iter().any(|known| known == name.as_str()) {
        return Ok(format!("{name}.wasm"));
    }
    let named = match there.len() {
        0 => "nothing is in the plugins folder of the home".to_owned(),
        1..=SHOWN_MAX => format!("there are: {}", there.join(", ")),
        count => format!("there are {count}, such as {}", there[..SHOWN_MAX].join(", ")),
    };
    Err(ErrorCode::NotFound.error(format!(
        "plugin {name}: none of this name is configured or ships in the binary, and there is no plugins/{name}.wasm; \
         {named}"
    )))
}

/// The names of the modules in a folder, sorted. Blocks.
fn modules(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().take(FILES_MAX);
    let mut names: Vec<String> = files
        .filter_map(|file| file.file_name().to_str()?.strip_suffix(".wasm").map(str::to_owned))
        .collect();
    names.sort();
    names
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    plugin: String,
}

/// `admin.plugin.unload`: `{"plugin", "unloaded": true}`; calls under way finish.
pub(super) async fn unload(call: Call) -> Result<Value, Error> {
    let Named { plugin } = call.params("admin.plugin.unload")?;
    let name = PluginName::new(plugin.as_str());
    ask(&call.daemon.sandbox, UnloadPlugin { name }).await??;
    Ok(json!({ "plugin": plugin, "unloaded": true }))
}

/// `admin.plugin.reload`: what `load` answers, with `reloaded`. Calls under way finish on the one there was,
/// which stays where the new one can't be loaded.
pub(super) async fn reload(call: Call) -> Result<Value, Error> {
    let Named { plugin } = call.params("admin.plugin.reload")?;
    let reload = ReloadPlugin { name: PluginName::new(plugin) };
    let mut answer = summary(&sent(call.daemon.sandbox.send(reload).await)??);
    answer["reloaded"] = true.into();
    Ok(answer)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Try {
    plugin: String,
    #[serde(default)]
    input: Value,
}

/// `admin.plugin.call`: `{"plugin", "content", "is_error", "took_us"}`, made as a session would, with the
/// plugin's own grants and limits; nobody is asked for approval.
pub(super) async fn call(call: Call) -> Result<Value, Error> {
    let Try { plugin, input } = call.params("admin.plugin.call")?;
    let input = if input.is_null() { json!({}) } else { input };
    if !input.is_object() {
        return Err(ErrorCode::InvalidRequest.error("the input of a plugin is a JSON object"));
    }
    let id = clock::random().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let cancel = CancelOnDrop(Cancel::new());
    let asked = CallTool {
        session: SessionKey::new("main", "admin", "plugin", "call")?,
        run: RunId::new(id.as_str()),
        call: ToolCall { id: CallId::new(id), name: PluginName::new(plugin.as_str()), input },
        cancel: cancel.0.clone(),
    };
    let begun = Instant::now();
    let result = sent(call.daemon.sandbox.send(asked).await)?;
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(json!({
        "plugin": plugin,
        "content": result.content,
        "is_error": result.is_error,
        "took_us": took_us,
    }))
}

/// Calls a call off that nobody waits for any more.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Loading and calling have deadlines of their own, longer than those of other questions.
fn sent<T>(answer: Result<T, actix::MailboxError>) -> Result<T, Error> {
    answer.map_err(|_| super::methods::stopping())
}

fn summary(plugin: &PluginSummary) -> Value {
    json!({
        "plugin": plugin.name.as_str(),
        "version": plugin.version,
        "description": plugin.description,
        "capabilities": plugin.capabilities,
    })
}
