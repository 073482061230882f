//! The tools of MCP servers, where every session finds and calls them without asking the supervisor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use clawmux_core::tools::audit::CallUsage;
use clawmux_core::tools::call::{ToolCall, ToolResult, ToolSpec};
use clawmux_core::tools::mcp::McpGrant;
use futures::future::join_all;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::mcp_server::{Call, McpServer, Offered};

/// How long lists of tools wait for servers that start for the first time.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The servers there are: one value, which the supervisor swaps when one comes or goes.
#[derive(Clone, Debug)]
pub struct McpTools(watch::Receiver<Arc<Servers>>);

pub(super) type Servers = BTreeMap<String, Server>;

/// A server, as sessions see it.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) to: Addr<McpServer>,
    pub(super) offered: watch::Receiver<Offered>,
}

/// Of no servers.
impl Default for McpTools {
    fn default() -> Self {
        Self(watch::channel(Arc::default()).1)
    }
}

impl McpTools {
    pub(super) fn new(servers: watch::Receiver<Arc<Servers>>) -> Self {
        Self(servers)
    }

    /// The tools that these grants are at the moment. Those of servers that start for the first time are
    /// waited for, up to a bound.
    pub async fn find(&self, granted: &[McpGrant]) -> Vec<ToolSpec> {
        let servers = Arc::clone(&self.0.borrow());
        let named = servers.iter().filter(|(name, _)| granted.iter().any(|grant| grant.server == **name));
        let settled = named.map(|(name, server)| async move {
            let mut offered = server.offered.clone();
            let waited = timeout(WAIT_MAX, offered.wait_for(|offered| offered.is_settled)).await;
            let settled = waited.ok()?.ok()?.clone();
            Some((name, settled))
        });
        let mut found = Vec::new();
        for (name, offered) in join_all(settled).await.into_iter().flatten() {
            let is_granted = |tool: &str| granted.iter().any(|grant| grant.covers(name, tool));
            let tools = offered.tools().filter(|(tool, _)| is_granted(tool));
            found.extend(tools.map(|(_, spec)| spec.clone()));
        }
        found
    }

    /// Calls a tool of a server. Dropped, the call is called off.
    pub async fn call(&self, server: &str, call: ToolCall) -> (ToolResult, CallUsage) {
        let to = self.0.borrow().get(server).map(|server| server.to.clone());
        let id = call.id.clone();
        let failed = |why: String| {
            (ToolResult { call: id.clone(), content: why, is_error: true }, CallUsage::default())
        };
        let Some(to) = to else { return failed(format!("there is no MCP server {server:?}")) };
        let (reply, answer) = oneshot::channel();
        if to.try_send(Call { call, reply }).is_err() {
            return failed(format!("MCP server {server} does not take calls at the moment, try again"));
        }
        answer.await.unwrap_or_else(|_| failed(format!("MCP server {server} crashed, try again")))
    }
}
