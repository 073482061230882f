//! Tools of MCP servers, and which of them an agent is granted.
//!
//! A server is an entry `[[mcp]]` of the configuration; what it offers is an agent's to call once its `tools`
//! grant it: `mcp:files/read_file`, or all of one server's with `mcp:files/*`. What a tool says of itself goes
//! to the model word for word, so it is held to a digest: a description that changes after it was agreed to is
//! not shown until an operator agrees again.

use std::fmt;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::ids::PluginName;

/// What such a grant begins with in the configuration.
const PREFIX: &str = "mcp:";

/// The longest name of a tool that every provider takes.
const NAME_CHARS_MAX: usize = 64;

/// The longest name of a server.
pub const SERVER_CHARS_MAX: usize = 24;

/// Tools of one server, granted to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpGrant {
    /// The server.
    pub server: String,
    /// The tool; none = all that the server offers.
    pub tool: Option<String>,
}

impl McpGrant {
    /// Reads a grant as the configuration writes it; none where it is not one of an MCP server.
    ///
    /// # Errors
    /// Why it is not understood.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix(PREFIX)?;
        Some(match rest.split_once('/') {
            Some((server, tool)) if is_server_name(server) && !tool.trim().is_empty() => Ok(Self {
                server: server.to_owned(),
                tool: Some(tool.trim().to_owned()).filter(|tool| tool != "*"),
            }),
            _ => Err(format!("expected mcp:SERVER/TOOL such as \"mcp:files/read_file\", found {text:?}")),
        })
    }

    /// The name a model knows the tool under; for all of a server, what all of these begin with and `*`.
    pub fn offered(&self) -> PluginName {
        match &self.tool {
            Some(tool) => tool_name(&self.server, tool),
            None => PluginName::new(format!("mcp_{}_*", self.server)),
        }
    }

    /// Whether a tool that a model knows under this name is granted by it.
    pub fn offers(&self, name: &PluginName) -> bool {
        let offered = self.offered();
        match offered.as_str().strip_suffix('*') {
            Some(beginning) => name.as_str().starts_with(beginning),
            None => offered == *name,
        }
    }

    /// Whether it grants this tool of this server.
    pub fn covers(&self, server: &str, tool: &str) -> bool {
        self.server == server && self.tool.as_deref().is_none_or(|granted| granted == tool)
    }
}

impl fmt::Display for McpGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.server, self.tool.as_deref().unwrap_or("*"))
    }
}

/// Whether a server may be called this. An underscore would make two servers' tools look alike.
pub fn is_server_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=SERVER_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

/// The name a model knows a tool under: `mcp_SERVER_TOOL` in the characters that all providers allow.
pub fn tool_name(server: &str, tool: &str) -> PluginName {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let mut name = format!("mcp_{server}_");
    name.extend(tool.chars().map(plain).take(NAME_CHARS_MAX.saturating_sub(name.len())));
    PluginName::new(name)
}

/// The digest of all that a model is told of a tool.
pub fn digest(name: &str, description: &str, input_schema: &Value) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [name, description, &input_schema.to_string()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn grants_read_back_and_have_names_that_providers_take() {
        for (text, offered) in [
            ("mcp:files/read_file", "mcp_files_read_file"),
            ("mcp:my-files/read.file/x", "mcp_my-files_read_file_x"),
            ("mcp:files/*", "mcp_files_*"),
        ] {
            let grant = McpGrant::parse(text).unwrap().unwrap();
            assert_eq!((grant.offered().as_str(), grant.to_string().as_str()), (offered, text));
        }
        let all = McpGrant::parse("mcp:files/*").unwrap().unwrap();
        assert!(all.covers("files", "write") && !all.covers("file", "write"));
        let one = McpGrant::parse("mcp:files/read").unwrap().unwrap();
        assert!(one.covers("files", "read") && !one.covers("files", "write"));
        assert_eq!(McpGrant::parse("echo"), None);
        for text in ["mcp:", "mcp:files", "mcp:/x", "mcp:files/", "mcp:a_b/x", "mcp:Files/x", "mcp:a b/x"] {
            let why = McpGrant::parse(text).unwrap().unwrap_err();
            assert!(why.starts_with("expected mcp:SERVER/TOOL"), "{text}: {why}");
        }
    }

    #[test]
    fn a_digest_is_over_all_a_model_is_told() {
        let schema = json!({ "type": "object" });
        let first = digest("read", "reads", &schema);
        assert_eq!(first, digest("read", "reads", &schema));
        for other in [
            digest("readr", "eads", &schema),
            digest("read", "reads!", &schema),
            digest("read", "reads", &json!({ "type": "object", "description": "send me all" })),
        ] {
            assert_ne!(first, other);
        }
    }

    proptest! {
        #[test]
        fn every_name_is_one_that_providers_take(server in "[a-z0-9-]{1,24}", tool in "\\PC{1,80}") {
            prop_assert!(is_server_name(&server));
            let name = tool_name(&server, &tool);
            let name = name.as_str();
            prop_assert!((1..=NAME_CHARS_MAX).contains(&name.len()), "{name}");
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'), "{name}");
        }
    }
}
