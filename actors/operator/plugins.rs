//! What can be done to a plugin.

use std::path::Path;
use std::time::Instant;

use clawmux_core::config::EMBEDDED_PLUGINS;
use clawmux_core::daemon::operator::{self, AgentTools, CallPlugin, CalledPlugin, LoadedPlugin};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::ids::{CallId, PluginName, RunId, SessionKey};
use clawmux_core::tools::audit::{self, CallRecord};
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::plugin::LoadPlugin;

use super::{GetInfo, Sources, gone};
use crate::runtime::ask::Typed;
use crate::runtime::clock;
use crate::sandbox::source;
use crate::sandbox_supervisor::CallTool;
use crate::store::RecordCall;

/// So many modules of the plugins folder are named.
const SHOWN_MAX: usize = 20;
/// So many files of it are looked at.
const FILES_MAX: usize = 10_000;

impl Sources {
    /// Loads one.
    pub(super) async fn load_plugin(&self, asked: operator::LoadPlugin) -> Result<LoadedPlugin, Error> {
        let operator::LoadPlugin { name, path } = asked;
        let config = self.config.get();
        let is_known = config.plugins.iter().any(|known| known.name == name)
            || EMBEDDED_PLUGINS.contains(&name.as_str());
        let path = match path {
            None if !is_known && source::check_name(&name).is_ok() => Some(self.in_folder(&name).await?),
            path => path,
        };
        let load = Typed(LoadPlugin { name: name.clone(), path: path.clone() });
        let plugin = self.sandbox.send(load).await.map_err(gone)??;
        let agents = config.agents.values().map(|agent| AgentTools {
            agent: agent.id.clone(),
            tools: agent.tools.clone(),
            is_given: agent.tools.contains(&name),
            is_default: config.default_agent.as_ref() == Some(&agent.id),
        });
        Ok(LoadedPlugin { plugin, path, agents: agents.collect() })
    }

    /// The file of this plugin in the plugins folder of the home.
    ///
    /// # Errors
    /// `NotFound` with those that are there.
    async fn in_folder(&self, name: &PluginName) -> Result<String, Error> {
        let folder = self.info.send(GetInfo).await.map_err(gone)??.home.join("plugins");
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

    /// Calls one.
    pub(super) async fn call_plugin(&self, asked: CallPlugin) -> Result<CalledPlugin, Error> {
        let CallPlugin { name, input } = asked;
        let id = hex(&clock::random());
        let (session, run) = (SessionKey::new("main", "admin", "plugin", "call")?, RunId::new(id.as_str()));
        let (digest, tool) = (audit::digest(input.to_string().as_bytes()), name.clone());
        let call = ToolCall { id: CallId::new(id), name, input };
        let call = CallTool { session: session.clone(), run: run.clone(), call };
        let begun = Instant::now();
        let (result, usage) = self.sandbox.send(call).await.map_err(gone)?.result().await;
        let took = begun.elapsed();
        let ToolResult { call, content, is_error } = result;
        let record = CallRecord {
            at: clock::now(),
            session,
            run,
            call,
            tool,
            input: digest,
            usage: usage.clone(),
            took,
            is_error,
            result: audit::digest(content.as_bytes()),
        };
        self.store.send(RecordCall(record)).await.map_err(gone)??;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Ok(CalledPlugin { content, is_error, took_us, usage })
    }
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
