//! Tools: plugins, those of MCP servers, the commands of nodes, and those that are built in.

pub mod audit;
pub mod call;
pub mod long_result;
pub mod mcp;
pub mod messenger;
pub mod node;
pub mod plugin;

/// The names of the tools that are built in.
pub const BUILT_IN: [&str; 2] = [long_result::NAME, messenger::NAME];

/// Whether this is the name of a tool that is built in: no plugin has it.
pub fn is_built_in(name: &str) -> bool {
    BUILT_IN.contains(&name)
}
