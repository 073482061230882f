//! `[approvals]`: for how long calls wait, and which.

use super::Approvals;
use super::section::{Report, Section};
use crate::conversation::approval::{Pattern, Rule};
use crate::ids::PluginName;
use crate::tools::mcp::McpGrant;
use crate::tools::node::NodeTool;

pub(super) fn approvals(mut s: Section, r: &mut Report) -> Approvals {
    let timeout = s.millis(r, "timeout_ms", 120_000);
    let rules = s.list(r, "rules").into_iter().filter_map(|s| rule(s, r)).collect();
    s.finish(r);
    Approvals { timeout, rules }
}

fn rule(mut s: Section, r: &mut Report) -> Option<Rule> {
    let tool = s.text(r, "tool", "");
    let (argument, matches) = (s.optional(r, "argument"), s.optional(r, "matches"));
    let asks = s.choice(r, "approval", true, &[("ask", true), ("never", false)]);
    let known = match (McpGrant::parse(&tool), NodeTool::parse(&tool)) {
        (Some(grant), _) => grant.map(|grant| grant.offered()),
        (None, Some(tool)) => tool.map(|tool| tool.name),
        (None, None) if tool.trim().is_empty() => {
            Err("expected a tool, as in the tools of an agent, or \"*\"".to_owned())
        }
        (None, None) => Ok(PluginName::new(tool)),
    };
    let tool =
        known.map_err(|why| r.complain(&s.origin("tool"), format!("approvals.rules.tool: {why}"))).ok();
    let input = match (argument, matches) {
        (None, None) => None,
        (Some(argument), glob) => Some(Pattern {
            member: argument.split('.').map(str::to_owned).collect(),
            glob: glob.unwrap_or_else(|| "*".to_owned()),
        }),
        (None, Some(_)) => {
            let why = "approvals.rules.matches: argument must say of what";
            r.complain(&s.origin("matches"), why);
            None
        }
    };
    s.finish(r);
    tool.map(|tool| Rule { tool, input, asks })
}
