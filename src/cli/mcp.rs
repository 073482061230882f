//! The arguments of commands about MCP servers.

use clap::{Args, Subcommand};

use super::ToolInput;

/// What can be asked of MCP servers.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// List the MCP servers, or the tools of one
    List {
        /// Show only this server, with its tools
        server: Option<String>,
    },
    /// Try a tool of an MCP server with an input; the exit status is 1 if it fails
    Call(CallMcp),
    /// Start or reach an MCP server again, at once; calls that are running fail
    Restart(ServerArg),
    /// Agree to what an MCP server says of its tools now
    ///
    /// The first time a server is met, what it says of its tools is agreed to. A tool that is new later, or whose
    /// description or schema changes, is held: no agent is offered it until you have looked at it with
    /// `clawmux mcp list SERVER` and agree.
    Approve(ApproveMcp),
}

/// `mcp approve`
#[derive(Args, Debug)]
pub(crate) struct ApproveMcp {
    #[command(flatten)]
    pub(crate) server: ServerArg,
    /// Agree only to what `clawmux mcp list SERVER` showed with this digest; without it, to whatever it says now
    #[arg(long, value_name = "DIGEST")]
    pub(crate) digest: Option<String>,
}

/// An MCP server by its name.
#[derive(Args, Debug)]
pub(crate) struct ServerArg {
    /// The name of the server; `clawmux mcp list` lists them
    pub(crate) server: String,
}

/// `mcp call`
#[derive(Args, Debug)]
pub(crate) struct CallMcp {
    #[command(flatten)]
    pub(crate) server: ServerArg,
    /// The server's name for the tool
    pub(crate) tool: String,
    #[command(flatten)]
    pub(crate) input: ToolInput,
}
