//! `[approvals]`: for how long calls wait, and which.

use super::load::EMBEDDED_PLUGINS;
use super::models::Offered;
use super::section::{Report, Section, nearest};
use super::{Approvals, McpServer};
use crate::conversation::approval_rule::{Pattern, Rule};
use crate::ids::PluginName;
use crate::tools::built_in;
use crate::tools::mcp::McpGrant;
use crate::tools::node::NodeTool;

pub(super) fn approvals(mut s: Section, r: &mut Report, there: &Offered<'_>) -> Approvals {
    let timeout = s.millis(r, "timeout_ms", 120_000);
    let rules = s.list(r, "rules").into_iter().flat_map(|s| rules(s, r, there)).collect();
    s.finish(r);
    Approvals { timeout, rules }
}

/// The rules of one entry: one for each tool of a group.
fn rules(mut s: Section, r: &mut Report, there: &Offered<'_>) -> Vec<Rule> {
    let tool = s.text(r, "tool", "");
    // Empty is not the same as missing: that would be a rule for more than was meant.
    let (argument, matches) = (s.text_or(r, "argument", None), s.text_or(r, "matches", None));
    let asks = s.choice(r, "approval", true, &[("ask", true), ("never", false)]);
    let group = built_in::ToolGroup::from_name(&tool).map(|group| group.tools());
    let known = match (group, McpGrant::parse(&tool), NodeTool::parse(&tool)) {
        (Some(group), ..) => Ok(group.iter().map(|name| PluginName::from(*name)).collect()),
        (None, Some(grant), _) => {
            grant.and_then(|grant| match there.mcp.iter().any(|server| server.name == grant.server) {
                true => Ok(vec![grant.offered()]),
                false => Err(format!("{grant}: there is no [[mcp]] named {:?}", grant.server)),
            })
        }
        (None, None, Some(tool)) => tool.map(|tool| vec![tool.name]),
        (None, None, None) if tool.trim().is_empty() => {
            Err("expected a tool, as in the tools of an agent, or \"*\"".to_owned())
        }
        (None, None, None) => {
            warn_of_unknown(&tool, &s, r, there);
            Ok(vec![PluginName::new(tool)])
        }
    };
    let tools: Result<Vec<PluginName>, String> = known;
    let tools = tools.map_err(|why| r.complain(&s.origin("tool"), format!("approvals.rules.tool: {why}")));
    let input = match (argument, matches) {
        (None, None) => None,
        (Some(argument), glob) => {
            if argument.split('.').any(|name| name.trim().is_empty()) {
                let why = "approvals.rules.argument: expected the name of a member, or names with dots between them";
                r.complain(&s.origin("argument"), why);
            }
            if glob.as_ref().is_some_and(|glob| glob.trim().is_empty()) {
                r.complain(
                    &s.origin("matches"),
                    "approvals.rules.matches: expected a pattern such as \"/etc/*\"",
                );
            }
            Some(Pattern { member: argument, glob: glob.unwrap_or_else(|| "*".to_owned()) })
        }
        (None, Some(_)) => {
            let why = "approvals.rules.matches: argument must say of what";
            r.complain(&s.origin("matches"), why);
            None
        }
    };
    s.finish(r);
    let rule = |tool| Rule { tool, input: input.clone(), asks };
    tools.unwrap_or_default().into_iter().map(rule).collect()
}

/// A tool that nothing offers yet may be loaded later, so it is only warned of.
fn warn_of_unknown(tool: &str, s: &Section, r: &mut Report, there: &Offered<'_>) {
    let plugins = there.plugins.iter().map(|plugin| plugin.name.as_str());
    let known = || plugins.clone().chain(EMBEDDED_PLUGINS).chain(built_in::names());
    let is_known =
        |known: &str| tool.strip_suffix('*').map_or(tool == known, |begin| known.starts_with(begin));
    let of_mcp = |server: &McpServer| {
        is_known(&format!("mcp_{}_", server.name)) || tool.starts_with(&format!("mcp_{}_", server.name))
    };
    if known().any(is_known) || there.mcp.iter().any(of_mcp) {
        return;
    }
    let hint = nearest(tool, known()).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
    let message =
        format!("approvals.rules.tool: there is no tool {tool:?}, so this rule is for no call{hint}");
    r.warn(&s.origin("tool"), message);
}
