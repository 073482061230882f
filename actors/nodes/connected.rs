//! The nodes that are connected, where every session finds what it was granted of them without asking anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawmux_core::ids::Owner;
use clawmux_core::swappable::Swappable;
use clawmux_core::tools::call::ToolSpec;
use clawmux_core::tools::node::{NodeRow, NodeTool};
use serde_json::json;

/// Those nodes, by id: one value, which their actor swaps when one comes or goes.
#[derive(Clone, Debug, Default)]
pub struct Connected(Arc<Swappable<BTreeMap<Arc<str>, Arc<Shown>>>>);

/// What others may know of a node.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) row: NodeRow,
    pub(super) owner: Owner,
}

impl Connected {
    /// The tools that these grants are at the moment: of nodes that are there and declare them.
    pub fn tools(&self, granted: &[NodeTool]) -> Vec<ToolSpec> {
        let spec = |tool: &NodeTool| {
            let node = self.granted(tool).ok()?;
            let name = node.row.about.display_name.as_deref().unwrap_or(&node.row.id);
            Some(ToolSpec {
                name: tool.name.clone(),
                description: format!("{} on {name} ({})", tool.command, node.row.about.platform),
                input_schema: json!({ "type": "object", "additionalProperties": true }),
            })
        };
        granted.iter().filter_map(spec).collect()
    }

    /// The node a grant means, if it is there and declares the command.
    ///
    /// # Errors
    /// Why it can't be asked.
    pub(super) fn granted(&self, tool: &NodeTool) -> Result<Arc<Shown>, String> {
        let nodes = self.0.get();
        // By its name only an operator's node is meant: anybody may call himself anything.
        let is_meant = |node: &&Arc<Shown>| {
            node.owner == Owner::Admins && tool.is_of(&node.row.id, node.row.about.display_name.as_deref())
        };
        // An id names one node, whatever others call themselves.
        let by_id = nodes.get(tool.node.as_str());
        let mut meant = nodes.values().filter(is_meant);
        let node = match (by_id, meant.next(), meant.next()) {
            (Some(node), ..) | (None, Some(node), None) => node,
            (None, None, _) => return Err(format!("node {} is not connected", tool.node)),
            (None, Some(_), Some(_)) => {
                return Err(format!("two nodes go by the name {}: grant one by its id", tool.node));
            }
        };
        if node.row.about.commands.contains(&tool.command) {
            Ok(node.clone())
        } else {
            Err(format!("node {} has no command {}", tool.node, tool.command))
        }
    }

    pub(super) fn set(&self, nodes: BTreeMap<Arc<str>, Arc<Shown>>) {
        self.0.set(nodes);
    }
}
