//! Tools: plugins, those of MCP servers, the commands of nodes, and those that are built in.

pub mod audit;
pub mod call;
pub mod mcp;
pub mod messenger;
pub mod node;
pub mod plugin;
