//! `admin.mcp` and `admin.mcp.*`: the MCP servers there are, and what can be done to one.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use super::plugins::called;
use crate::daemon::operator::{ApproveMcp, CallMcpTool, McpApproved, ObserveMcp, RestartMcp, Snapshot};
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.mcp", "{}", list),
    method("admin.mcp.call", r#"{"server", "tool", "input"?}"#, call),
    method("admin.mcp.restart", r#"{"server"}"#, restart),
    method("admin.mcp.approve", r#"{"server", "digest"?}"#, approve),
];

/// `admin.mcp`: `{"servers": [..]}`, by name, whether they are there or not. `state` is `starting`, `ready`, `held`
/// (it is there; tools that were not agreed to are not offered), `failed` (it is tried again in `retry_ms`) or `ended`.
/// `digest` is that of all that its tools say of themselves.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ObserveMcp, |mcp| json!({ "servers": mcp.children.iter().map(row).collect::<Vec<_>>() }))
}

fn row(observed: &Snapshot) -> Value {
    let state = &observed.state;
    json!({
        "server": state["server"],
        "state": observed.silent.as_deref().map_or_else(|| state["state"].clone(), |_| json!("silent")),
        "error": observed.silent,
        "reach": state["reach"],
        "pid": state["pid"],
        "retry_ms": state["retry_ms"],
        "approval": state["approval"],
        "limits": state["limits"],
        "is_confined": state["is_confined"],
        "timeout_ms": state["timeout_ms"],
        "output_bytes": state["output_bytes"],
        "tools": state["tools"],
        "digest": state["digest"],
        "calls": state["calls_total"],
        "errors": state["calls_failed_total"],
        "running": state["calls_running"],
        "starts": state["starts_total"],
        "last_error": state["last_error"],
        "last_error_ms": state["last_error_ms"],
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Try {
    server: String,
    tool: String,
    #[serde(default)]
    input: Value,
}

/// `admin.mcp.call`: `{"server", "tool", "content", "is_error", "took_us", "grants"}`, made as a session would;
/// nobody is asked for approval.
fn call(request: &Request) -> Result<Call, Error> {
    let Try { server, tool, input } = request.read()?;
    let input = if input.is_null() { json!({}) } else { input };
    if !input.is_object() {
        return Err(invalid("the input of a tool is a JSON object"));
    }
    let call = CallMcpTool { server: server.clone(), tool: tool.clone(), input };
    ask(call, move |answer| called(answer, json!({ "server": server, "tool": tool })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerParams {
    server: String,
}

/// `admin.mcp.restart`: `{"server", "restarted": true}`, at once; calls under way fail.
fn restart(request: &Request) -> Result<Call, Error> {
    let ServerParams { server } = request.read()?;
    ask(RestartMcp { server: server.clone() }, move |_| json!({ "server": server, "restarted": true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approve {
    server: String,
    #[serde(default)]
    digest: Option<String>,
}

/// `admin.mcp.approve`: `{"server", "tools"}`, the names of the tools that were held. With a `digest`, as `admin.mcp`
/// has it, only what had that digest is agreed to.
fn approve(request: &Request) -> Result<Call, Error> {
    let Approve { server, digest } = request.read()?;
    ask(
        ApproveMcp { server: server.clone(), digest },
        move |McpApproved { tools }| json!({ "server": server, "tools": tools }),
    )
}
