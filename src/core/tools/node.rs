//! Nodes, and their commands that are granted to agents as tools.
//!
//! A node is a client that offers commands instead of asking for something: a phone's camera, a
//! program on another machine. What it offers is nobody's to call but an operator's, until the
//! configuration grants it, command by command, to an agent: `tools = ["node:laptop/system.which"]`.
//!
//! A node is granted by its id or by its name. A name is what the node says of itself, so one that
//! two nodes go by at a time grants neither of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::access::About;
use crate::area::{Noted, area};
use crate::ids::PluginName;
use crate::time::Timestamp;

/// The longest name of a tool that every provider takes.
const NAME_CHARS_MAX: usize = 64;

/// How much of it is the node's: an id is longer than a name of a tool may be.
const NODE_CHARS_MAX: usize = 24;

/// What such a grant begins with in the configuration.
const PREFIX: &str = "node:";

/// How long a node may take where nobody says.
pub const INVOKE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest it may take whatever is said.
pub const INVOKE_TIMEOUT_MAX: Duration = Duration::from_secs(10 * 60);

/// The most bytes of an invocation's parameters.
pub const PARAMS_BYTES_MAX: usize = 1024 * 1024;

area! {
    /// What can be asked about nodes, and what they answer.
    Node(NodeCommand => NodeReply) {
        /// Those that are connected and belong to the caller.
        ListNodes(ListNodes) => Nodes(Vec<NodeRow>),
        /// Run a command on a node.
        Invoke(Box<InvokeNode>) => Invoked(Box<Invoked>),
        /// From a node: what became of an invocation.
        Result(NodeResult) => Noted(Noted),
    }
}

/// The answer to a [`NodeCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum NodeReply {
    /// To `ListNodes`, by name.
    Nodes(Vec<NodeRow>),
    /// To `Invoke`.
    Invoked(Box<Invoked>),
    /// To `Result`.
    Noted(Noted),
}

/// How many bytes of a payload weigh as much as a small request.
const WEIGHED_BYTES: usize = 64 * 1024;

impl NodeCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        let Self::Result(NodeResult { outcome: Ok(Some(payload)), .. }) = self else { return 1 };
        1 + payload.len() / WEIGHED_BYTES
    }
}

/// The nodes that are connected and belong to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListNodes;

/// From a node: what became of an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeResult {
    /// The id of the invocation that it answers.
    pub invocation: Arc<str>,
    /// Its payload as JSON, if there is one; or why it failed.
    pub outcome: Result<Option<String>, NodeFailure>,
}

/// A node that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Its id: that of its device, else the instance it says it is.
    pub id: Arc<str>,
    /// What it says of itself.
    pub about: About,
    /// Where it comes from, without a port.
    pub host: String,
    /// Since when it is connected.
    pub connected: Timestamp,
}

/// A wish that a node do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvokeNode {
    /// The node's id.
    pub node: String,
    /// One of the commands it declared.
    pub command: String,
    /// The parameters as JSON, at most [`PARAMS_BYTES_MAX`].
    pub params: Option<String>,
    /// How long it may take, at most [`INVOKE_TIMEOUT_MAX`].
    pub timeout: Duration,
    /// The same key from the same owner for the same node is the same invocation.
    pub idempotency_key: Option<String>,
}

/// What a node is told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Under which its result is expected.
    pub id: Arc<str>,
    /// The node's id.
    pub node: Arc<str>,
    /// The command.
    pub command: String,
    /// The parameters as JSON.
    pub params: Option<String>,
    /// How long its result is waited for.
    pub timeout: Duration,
    /// The key it was asked with.
    pub idempotency_key: Option<String>,
}

/// What became of an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invoked {
    /// The node's id.
    pub node: Arc<str>,
    /// The command.
    pub command: String,
    /// The payload as JSON, if there is one; or why it failed.
    pub outcome: Result<Option<String>, NodeFailure>,
}

/// Why a node did not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFailure {
    /// In the node's words, or one of [`Self::NOT_CONNECTED`], [`Self::TIMEOUT`].
    pub code: String,
    /// The message for people.
    pub message: String,
}

impl NodeFailure {
    /// It is not there, or left before it answered.
    pub const NOT_CONNECTED: &str = "NOT_CONNECTED";
    /// It did not answer in time.
    pub const TIMEOUT: &str = "TIMEOUT";
}

/// One command of one node, granted to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTool {
    /// The node, by its id or its name.
    pub node: String,
    /// The command.
    pub command: String,
    /// The name the model knows it under.
    pub name: PluginName,
}

impl NodeTool {
    /// Reads a grant as the configuration writes it; none where it is not one of a node.
    ///
    /// # Errors
    /// Why it is not understood.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix(PREFIX)?;
        Some(match rest.rsplit_once('/').map(|(node, command)| (node.trim(), command.trim())) {
            Some((node, command)) if !node.is_empty() && !command.is_empty() => Ok(Self {
                node: node.to_owned(),
                command: command.to_owned(),
                name: PluginName::new(tool_name(node, command)),
            }),
            _ => Err(format!(
                "expected node:NODE/COMMAND such as \"node:laptop/system.which\", found {text:?}"
            )),
        })
    }

    /// Whether the node with this id, which goes by this name, is meant.
    pub fn is_of(&self, id: &str, name: Option<&str>) -> bool {
        self.node == id || name.is_some_and(|name| name.trim() == self.node)
    }
}

impl fmt::Display for NodeTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.node, self.command)
    }
}

/// `node_NODE_COMMAND` in the characters that all providers allow.
fn tool_name(node: &str, command: &str) -> String {
    let mut name = String::from("node");
    for (part, chars_max) in [(node, NODE_CHARS_MAX), (command, NAME_CHARS_MAX)] {
        let mut plain = String::new();
        for c in part.chars() {
            let c = if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
            if c != '_' || !plain.ends_with('_') {
                plain.push(c);
            }
        }
        plain.truncate(chars_max);
        name.push('_');
        name.push_str(plain.trim_matches('_'));
    }
    name.truncate(NAME_CHARS_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grants_read_back_and_have_names_that_providers_take() {
        for (text, name) in [
            ("node:laptop/system.which", "node_laptop_system_which"),
            ("node: Ada's MacBook / camera.snap", "node_Ada_s_MacBook_camera_snap"),
            ("node:a/b/c.d", "node_a_b_c_d"),
            (
                "node:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef/system.run",
                "node_0123456789abcdef01234567_system_run",
            ),
            ("node:İ/İ", "node__"),
        ] {
            let tool = NodeTool::parse(text).unwrap().unwrap();
            assert_eq!(tool.name.as_str(), name, "{text}");
        }
        let tool = NodeTool::parse("node:laptop/system.which").unwrap().unwrap();
        assert_eq!(tool.to_string(), "node:laptop/system.which");
        assert!(tool.is_of("laptop", None) && tool.is_of("c9db", Some("laptop ")));
        assert!(!tool.is_of("c9db", Some("Laptop")) && !tool.is_of("c9db", None));
        assert_eq!(NodeTool::parse("echo"), None);
        for text in ["node:", "node:laptop", "node:/x", "node:laptop/", "node: / "] {
            let why = NodeTool::parse(text).unwrap().unwrap_err();
            assert!(why.starts_with("expected node:NODE/COMMAND"), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn every_name_is_one_that_providers_take(node in "\\PC{1,80}", command in "\\PC{1,80}") {
            if let Some(Ok(tool)) = NodeTool::parse(&format!("node:{node}/{command}")) {
                let name = tool.name.as_str();
                prop_assert!((1..=NAME_CHARS_MAX).contains(&name.len()), "{name}");
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'), "{name}");
            }
        }
    }
}
