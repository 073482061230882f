//! What can be done to a plugin, and how a tool is called.

use std::path::Path;
use std::time::Instant;

use clawmux_core::config::EMBEDDED_PLUGINS;
use clawmux_core::daemon::operator::{self, AgentTools, CallMcpTool, CallPlugin, CalledTool, LoadedPlugin};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::ids::{CallId, PluginName, RunId, SessionKey};
use clawmux_core::tools::audit::{self, CallRecord, CallUsage};
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::mcp::tool_name;
use clawmux_core::tools::plugin::LoadPlugin;
use serde_json::Value;

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
    pub(super) async fn call_plugin(&self, asked: CallPlugin) -> Result<CalledTool, Error> {
        let CallPlugin { name, input } = asked;
        let called = self.call("plugin", name, input, async |session, run, call| {
            let calling = self.sandbox.send(CallTool { session, run, call }).await.map_err(gone)?;
            Ok(calling.result().await)
        });
        called.await
    }

    /// Calls a tool of an MCP server.
    pub(super) async fn call_mcp_tool(&self, asked: CallMcpTool) -> Result<CalledTool, Error> {
        let CallMcpTool { server, tool, input } = asked;
        let name = tool_name(&server, &tool);
        self.call("mcp", name, input, async |_, _, call| Ok(self.mcp_tools.call(&server, call).await)).await
    }

    /// Calls a tool by `make`, and keeps a record of it.
    async fn call(
        &self,
        kind: &str,
        tool: PluginName,
        input: Value,
        make: impl AsyncFnOnce(SessionKey, RunId, ToolCall) -> Result<(ToolResult, CallUsage), Error>,
    ) -> Result<CalledTool, Error> {
        let id = hex(&clock::random());
        let (session, run) = (SessionKey::new("main", "admin", kind, "call")?, RunId::new(id.as_str()));
        let digest = audit::digest(input.to_string().as_bytes());
        let call = ToolCall { id: CallId::new(id), name: tool.clone(), input };
        let begun = Instant::now();
        let (result, usage) = make(session.clone(), run.clone(), call).await?;
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
        Ok(CalledTool { content, is_error, took_us, usage })
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
