//! Lists that clients show in menus of their own: skills, channels, approvals of commands.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::daemon::command::ListSkills;
use crate::daemon::operator::{ObserveChannels, Snapshot};
use crate::dialect::Turn;
use crate::scope::Scope;
use crate::skill::{FILE, Problem, SkillRow, Standing};
use crate::time::Timestamp;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfAgent {
    agent_id: Option<String>,
}

/// `skills.status`: the skills in the folders of an agent, the default one where none is named. Eligible are
/// those that it is told of; where they are is told operators.
pub(super) fn skills(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfAgent { agent_id } = request.read()?;
    let agent = agent_id.unwrap_or_else(|| dialect.default_agent().to_owned());
    dialect.check_agent(request, &agent)?;
    Call::ask(ListSkills, move |_, list, _| {
        let skills = list.skills.iter().filter_map(|row| {
            let of = row.agents.iter().find(|of| of.agent.as_str() == agent)?;
            Some(skill(row, of.standing))
        });
        json!({ "workspaceDir": "", "managedSkillsDir": "", "skills": skills.collect::<Vec<_>>() })
    })
}

fn skill(row: &SkillRow, standing: Standing) -> Value {
    let nothing = json!({ "bins": [], "anyBins": [], "env": [], "config": [], "os": [] });
    let folder = row.folder.as_ref().map(|folder| folder.display().to_string()).unwrap_or_default();
    let file = row.folder.as_ref().map(|folder| folder.join(FILE).display().to_string()).unwrap_or_default();
    let problems: Vec<String> = row.problems.iter().map(Problem::in_words).collect();
    let description =
        row.skill.as_ref().map_or_else(|| problems.join("; "), |skill| skill.description.clone());
    json!({
        "name": row.name,
        "description": description,
        "source": "openclaw-managed",
        "bundled": false,
        "filePath": file,
        "baseDir": folder,
        "skillKey": row.name,
        "always": false,
        "disabled": standing == Standing::NotGranted,
        "blockedByAllowlist": false,
        "eligible": standing == Standing::Offered,
        "requirements": nothing,
        "missing": nothing,
        "configChecks": [],
        "install": [],
    })
}

/// `channels.status`: those that are configured, as they are. They are the operators'; others are told of none.
pub(super) fn channels(dialect: &mut OpenClaw, _: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    if !dialect.who.scopes.allows(Scope::Admin) {
        return Ok(Call::Answer(status_of_channels(&[], turn.now())));
    }
    Call::ask(ObserveChannels, |_, observed, turn| status_of_channels(&observed.children, turn.now()))
}

/// The account of a channel: it has one.
const ACCOUNT: &str = "default";

fn status_of_channels(channels: &[Snapshot], now: Timestamp) -> Value {
    let named = || channels.iter().filter_map(|channel| Some((channel.state["channel"].as_str()?, channel)));
    let by_name = |value: fn(&str, &Snapshot) -> Value| -> Map<String, Value> {
        named().map(|(name, channel)| (name.to_owned(), value(name, channel))).collect()
    };
    let labels = by_name(|name, _| name.into());
    json!({
        "ts": now.as_millis(),
        "channelOrder": named().map(|(name, _)| name).collect::<Vec<_>>(),
        "channelLabels": labels,
        "channelDetailLabels": labels,
        "channelSystemImages": {},
        "channelMeta": named().map(|(name, _)| json!({ "id": name, "label": name, "detailLabel": name })).collect::<Vec<_>>(),
        "channels": by_name(|_, channel| state_of_channel(channel)),
        "channelAccounts": by_name(|_, channel| {
            let mut account = state_of_channel(channel);
            account["accountId"] = ACCOUNT.into();
            account["enabled"] = true.into();
            json!([account])
        }),
        "channelDefaultAccountId": by_name(|_, _| ACCOUNT.into()),
    })
}

fn state_of_channel(channel: &Snapshot) -> Value {
    let state = &channel.state;
    json!({
        "configured": true,
        "running": channel.silent.is_none(),
        "mode": state["mode"],
        "lastError": channel.silent.as_deref().map_or_else(|| state["last_error"].clone(), Value::from),
    })
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
