//! The tools that an MCP server lists, within bounds, and which of them agents are offered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clawmux_core::hex::hex;
use clawmux_core::ids::PluginName;
use clawmux_core::tools::call::ToolSpec;
use clawmux_core::tools::mcp::{digest, tool_name};
use clawmux_core::tools::plugin::InputSchema;
use rmcp::RoleClient;
use rmcp::model::{PaginatedRequestParams, Tool};
use rmcp::service::Peer;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::words::not_answered;
use crate::store::AgreedTools;

/// How long it may take to list all tools.
const LIST_MAX: Duration = Duration::from_secs(30);

/// The most tools of one server.
const TOOLS_MAX: usize = 256;

/// The most pages they are listed on.
const PAGES_MAX: usize = 64;

/// The most bytes of a tool's name, of what it says of itself, and of its schema.
const NAME_BYTES_MAX: usize = 128;
const DESCRIPTION_BYTES_MAX: usize = 16 * 1024;
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// A tool that a server lists.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    /// The server's name for it.
    pub(super) name: String,
    /// As a model is told of it.
    pub(super) spec: ToolSpec,
    /// What its input has to fit.
    pub(super) schema: Arc<InputSchema>,
    /// Of all that a model is told of it.
    pub(super) digest: [u8; 32],
}

/// What a server lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    /// Its tools.
    pub(super) tools: Vec<Listed>,
    /// What it lists that is no tool to be offered, and why.
    pub(super) refused: Vec<(String, String)>,
}

impl Listing {
    /// The digest of all that its tools say of themselves, in hex.
    pub(super) fn digest(&self) -> String {
        let all = self.digests().into_values().fold(Sha256::new(), |hash, digest| hash.chain_update(digest));
        hex(&all.finalize())
    }

    /// What is agreed to by agreeing to all of it.
    pub(super) fn digests(&self) -> AgreedTools {
        self.tools.iter().map(|tool| (tool.name.clone(), tool.digest)).collect()
    }
}

/// Asks a server for its tools.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn list(server: &str, peer: &Peer<RoleClient>) -> Result<Listing, String> {
    if peer.peer_info().is_some_and(|info| info.capabilities.tools.is_none()) {
        return Ok(Listing::default());
    }
    let all = async {
        let (mut tools, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let mut params = PaginatedRequestParams::default();
            params.cursor = cursor;
            let page = peer.list_tools(Some(params)).await.map_err(|error| not_answered(&error))?;
            tools.extend(page.tools);
            cursor = page.next_cursor;
            if cursor.is_none() || tools.len() > TOOLS_MAX {
                break;
            }
        }
        Ok(tools)
    };
    let late = |_| format!("it did not list its tools within {} s", LIST_MAX.as_secs());
    let tools: Result<Vec<Tool>, String> = timeout(LIST_MAX, all).await.map_err(late)?;
    Ok(sorted(server, tools.map_err(|why| format!("it can't list its tools: {why}"))?))
}

/// What of these tools can be offered.
fn sorted(server: &str, tools: Vec<Tool>) -> Listing {
    let mut listing = Listing::default();
    for (index, tool) in tools.into_iter().enumerate() {
        let name: String = tool.name.chars().take(NAME_BYTES_MAX).collect();
        let read = if index >= TOOLS_MAX {
            Err(format!("there are more than {TOOLS_MAX} tools"))
        } else {
            read(server, tool, &listing.tools)
        };
        match read {
            Ok(listed) => listing.tools.push(listed),
            Err(why) => {
                listing.refused.push((name, why));
                if index >= TOOLS_MAX {
                    break;
                }
            }
        }
    }
    listing
}

fn read(server: &str, tool: Tool, others: &[Listed]) -> Result<Listed, String> {
    let name = tool.name.into_owned();
    if name.trim().is_empty() || name.len() > NAME_BYTES_MAX || name == "*" {
        return Err(format!("its name is empty, \"*\" or longer than {NAME_BYTES_MAX} bytes"));
    }
    let description = tool.description.or(tool.title.map(Into::into)).unwrap_or_default().into_owned();
    if description.len() > DESCRIPTION_BYTES_MAX {
        return Err(format!(
            "its description has {} bytes, more than {DESCRIPTION_BYTES_MAX}",
            description.len()
        ));
    }
    let input_schema = Value::Object(Arc::unwrap_or_clone(tool.input_schema));
    let bytes = input_schema.to_string().len();
    if bytes > SCHEMA_BYTES_MAX {
        return Err(format!("its schema has {bytes} bytes, more than {SCHEMA_BYTES_MAX}"));
    }
    let schema = InputSchema::new(&input_schema).map_err(|why| format!("its schema is none: {why}"))?;
    let offered = tool_name(server, &name);
    if let Some(other) = others.iter().find(|other| other.spec.name == offered) {
        return Err(format!("models would know it as {offered}, which is {:?} already", other.name));
    }
    let digest = digest(&name, &description, &input_schema);
    let spec = ToolSpec { name: offered, description, input_schema };
    Ok(Listed { name, spec, schema: Arc::new(schema), digest })
}

/// What becomes of a listed tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Agents may be granted it.
    Offered,
    /// `tools` of the configuration does not name it.
    NotAllowed,
    /// It is not as it was agreed to.
    Changed,
    /// It was not there when the server was agreed to.
    New,
}

impl Standing {
    fn of(tool: &Listed, allowed: Option<&[String]>, agreed: &AgreedTools) -> Self {
        if allowed.is_some_and(|allowed| !allowed.contains(&tool.name)) {
            return Self::NotAllowed;
        }
        match agreed.get(&tool.name) {
            Some(digest) if *digest == tool.digest => Self::Offered,
            Some(_) => Self::Changed,
            None => Self::New,
        }
    }
}

/// The tools that agents may be granted, by the name models know them under.
pub(super) fn offered(
    listing: &Listing,
    allowed: Option<&[String]>,
    agreed: &AgreedTools,
) -> BTreeMap<PluginName, Listed> {
    let is_offered = |tool: &&Listed| Standing::of(tool, allowed, agreed) == Standing::Offered;
    listing.tools.iter().filter(is_offered).map(|tool| (tool.spec.name.clone(), tool.clone())).collect()
}

/// Each tool for operators; whether any is held.
pub(super) fn described(
    listing: &Listing,
    allowed: Option<&[String]>,
    agreed: &AgreedTools,
) -> (Vec<Value>, bool) {
    let mut is_held = false;
    let mut rows: Vec<Value> = listing
        .tools
        .iter()
        .map(|tool| {
            let standing = Standing::of(tool, allowed, agreed);
            is_held |= matches!(standing, Standing::Changed | Standing::New);
            json!({
                "tool": tool.name,
                "offered_as": tool.spec.name.as_str(),
                "state": match standing {
                    Standing::Offered => "offered",
                    Standing::NotAllowed => "not allowed",
                    Standing::Changed => "held: changed",
                    Standing::New => "held: new",
                },
                "description": tool.spec.description,
                "input_schema": tool.spec.input_schema,
                "sha256": hex(&tool.digest),
            })
        })
        .collect();
    let refused = listing.refused.iter();
    rows.extend(refused.map(|(name, why)| json!({ "tool": name, "state": "refused", "error": why })));
    (rows, is_held)
}
