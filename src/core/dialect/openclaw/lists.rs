//! Lists that clients show in menus of their own: skills, channels, approvals of commands.

use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::dialect::Turn;
use crate::tools::plugin::{ListPlugins, PluginSummary};

/// `skills.status`: the tools that are loaded. They are there or they are not, so each is eligible.
pub(super) fn skills(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(ListPlugins, |_, plugins, _| {
        json!({
            "workspaceDir": "",
            "managedSkillsDir": "",
            "skills": plugins.iter().map(skill).collect::<Vec<_>>(),
        })
    })
}

fn skill(plugin: &PluginSummary) -> Value {
    let nothing = json!({ "bins": [], "anyBins": [], "env": [], "config": [], "os": [] });
    json!({
        "name": plugin.name.as_str(),
        "description": plugin.description,
        "source": "clawmux-plugin",
        "filePath": "",
        "baseDir": "",
        "skillKey": plugin.name.as_str(),
        "always": false,
        "disabled": false,
        "blockedByAllowlist": false,
        "eligible": true,
        "requirements": nothing,
        "missing": nothing,
        "configChecks": [],
        "install": [],
    })
}

/// `channels.status`: there are none.
pub(super) fn channels(_: &mut OpenClaw, _: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({
        "ts": turn.now().as_millis(),
        "channelOrder": [],
        "channelLabels": {},
        "channelDetailLabels": {},
        "channelSystemImages": {},
        "channelMeta": [],
        "channels": {},
        "channelAccounts": {},
        "channelDefaultAccountId": {},
    })))
}

/// `exec.approvals.get`: tools run no commands of this machine, so nothing is allowed in advance.
pub(super) fn exec_approvals(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({
        "path": "",
        "exists": false,
        "hash": "none",
        "file": { "version": 1, "defaults": {}, "agents": {} },
    })))
}
