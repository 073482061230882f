//! Tools: plugins, those of MCP servers, the commands of nodes, and those that are built in.

pub mod agents;
pub mod audit;
pub mod built_in;
pub mod call;
pub mod input;
pub mod jobs;
pub mod long_result;
pub mod mcp;
pub mod memory;
pub mod messenger;
pub mod node;
pub mod plugin;
pub mod sessions;
pub mod skills;
