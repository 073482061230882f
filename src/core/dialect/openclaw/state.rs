//! How the daemon is, and who is connected.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::scope_name;
use super::{Answered, Call, OpenClaw, Request, keys};
use crate::access::About;
use crate::daemon::announcement::{ChangeReason, SessionChange};
use crate::daemon::command::{GetOverview, Overview};
use crate::daemon::presence::{Presence, PresenceReport, Present};
use crate::dialect::Turn;
use crate::schedule::job;
use crate::scope::{Role, Scope};
use crate::time::Timestamp;

impl OpenClaw {
    /// Who is connected, in the protocol's words. Others than admins are told of the daemon and of
    /// themselves.
    pub(super) fn presence_entries(&self, presence: &Presence) -> Value {
        let all = self.who.scopes.allows(Scope::Admin);
        let own = Some(self.setup.connection);
        let shown = presence.present.iter();
        shown.filter(|p| all || p.connection == own || p.reason == "self").map(entry).collect()
    }
}

/// None where nothing was said.
fn said(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn entry(present: &Present) -> Value {
    let about = &present.about;
    let mut entry = json!({
        "host": about.display_name.as_deref().unwrap_or(&about.client_id),
        "reason": present.reason,
        "ts": present.at.as_millis(),
    });
    let is_client = !about.client_id.is_empty();
    if is_client {
        let scopes = Scope::ALL.into_iter().filter(|scope| present.scopes.allows(*scope)).map(scope_name);
        let mut scopes: Vec<_> = scopes.collect();
        scopes.dedup();
        entry["roles"] = json!([if present.role == Role::Node { "node" } else { "operator" }]);
        entry["scopes"] = scopes.into();
    }
    if let Some(idle) = present.idle {
        entry["lastInputSeconds"] = idle.as_secs().into();
    }
    let optional = [
        ("ip", said(&present.host)),
        ("version", said(&about.version)),
        ("platform", said(&about.platform)),
        ("mode", said(&about.mode)),
        ("deviceFamily", about.device_family.as_deref()),
        ("modelIdentifier", about.model_identifier.as_deref()),
        ("instanceId", about.instance_id.as_deref()),
        ("deviceId", present.device.as_deref()),
        ("text", present.text.as_deref()),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            entry[name] = value.into();
        }
    }
    entry
}

impl OpenClaw {
    /// The health in the snapshot of hello-ok, where the published schema has a place for no other member.
    pub(super) fn health_snapshot(&self, overview: &Overview, now: Timestamp) -> Value {
        let recent: Vec<_> = overview
            .recent
            .iter()
            .map(|row| {
                let age = now.millis_since(row.updated);
                json!({ "key": keys::write(&row.session, &self.owner), "updatedAt": row.updated.as_millis(), "age": age })
            })
            .collect();
        let sessions = json!({ "path": "clawmux", "count": overview.sessions, "recent": recent });
        let agent = self.default_agent();
        let agents: Vec<_> = self
            .setup
            .catalog
            .agents
            .iter()
            .map(|entry| {
                json!({
                    "agentId": entry.id.as_str(),
                    "isDefault": entry.id.as_str() == agent,
                    "heartbeat": self.heartbeat_in_full(entry.id.as_str()),
                    "sessions": sessions,
                })
            })
            .collect();
        json!({
            "ok": overview.fault.is_none(),
            "ts": now.as_millis(),
            "durationMs": u64::try_from(overview.took.as_millis()).unwrap_or(u64::MAX),
            "channels": {},
            "channelOrder": [],
            "channelLabels": {},
            "heartbeatSeconds": self.setup.catalog.heartbeat.map_or(0, |every| every.as_secs()),
            "defaultAgentId": agent,
            "agents": agents,
            "sessions": sessions,
        })
    }

    /// The payload of `health`: the snapshot, and what is degraded and why.
    fn health_payload(&self, overview: &Overview, now: Timestamp) -> Value {
        let mut payload = self.health_snapshot(overview, now);
        if let Some(report) = &overview.report {
            payload["status"] = report.condition().name().into();
            let problems: Vec<_> = report.problems().collect();
            if !problems.is_empty() {
                payload["problems"] = problems.into();
            }
        }
        payload
    }

    /// How often an agent's heart beats, as the configuration says; `cron.status` says whether it stopped.
    fn heartbeat(&self, agent: &str) -> Value {
        let every = self.setup.catalog.heartbeat.filter(|_| agent == self.default_agent());
        let told = match every.map(|every| every.as_secs()) {
            None => "0m".to_owned(),
            Some(seconds) if seconds % 60 == 0 => format!("{}m", seconds / 60),
            Some(seconds) => format!("{seconds}s"),
        };
        json!({
            "enabled": every.is_some(),
            "every": told,
            "everyMs": every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
        })
    }

    /// The same with what it asks the model, where the answer goes (it stays in the session), and beside how
    /// many characters its "all is well" is still that.
    fn heartbeat_in_full(&self, agent: &str) -> Value {
        let mut heartbeat = self.heartbeat(agent);
        heartbeat["prompt"] = job::heartbeat_prompt("").trim_end().into();
        heartbeat["target"] = "none".into();
        heartbeat["ackMaxChars"] = job::HEARTBEAT_ASIDE_CHARS_MAX.into();
        heartbeat
    }

    /// What a session has that is set to nothing.
    pub(super) fn session_defaults(&self) -> Value {
        let mut value = json!({});
        if let Some(model) = self.model_of(self.default_agent()) {
            if let Some(tokens) = self.setup.catalog.facts(model).context_window {
                value["contextTokens"] = tokens.into();
            }
            value["modelProvider"] = model.provider.as_str().into();
            value["model"] = model.model.as_str().into();
        }
        value
    }

    pub(super) fn tell_presence(&mut self, presence: &Presence, turn: &mut Turn<'_>) {
        let payload = json!({ "presence": self.presence_entries(presence) });
        self.state_version.0 = presence.version;
        self.emit_state("presence", &payload, self.state_version, turn);
    }

    pub(super) fn tell_health(&mut self, overview: &Overview, turn: &mut Turn<'_>) {
        let payload = self.health_payload(overview, turn.now());
        self.state_version = (overview.presence.version, overview.version);
        self.emit_state("health", &payload, self.state_version, turn);
    }

    pub(super) fn tell_session_changed(&mut self, change: &SessionChange, turn: &mut Turn<'_>) {
        if !self.is_subscribed {
            return;
        }
        let reason = match change.reason {
            ChangeReason::Created => "create",
            ChangeReason::Started => "send",
            ChangeReason::Ended => "run",
            ChangeReason::Configured => "patch",
            ChangeReason::Reset => "reset",
            ChangeReason::Deleted => "delete",
        };
        let key = self.followed.get(&change.session).map(|followed| followed.key.clone());
        let key = key.unwrap_or_else(|| keys::write(&change.session, &self.owner));
        let payload = json!({ "sessionKey": key, "reason": reason, "ts": turn.now().as_millis() });
        self.emit("sessions.changed", &payload.to_string(), turn);
    }
}

/// Asks for the overview and answers with what `payload` makes of it.
fn overview(payload: fn(&OpenClaw, &Overview, Timestamp) -> Value) -> Answered {
    Call::ask(GetOverview, move |dialect, overview, turn| payload(dialect, &overview, turn.now()))
}

/// `health`.
pub(super) fn health(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    overview(OpenClaw::health_payload)
}

/// `status`.
pub(super) fn status(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    overview(|dialect, overview, now| {
        let recent: Vec<_> = overview
            .recent
            .iter()
            .map(|row| {
                let mut value = dialect.session_row(row);
                value["age"] = now.millis_since(row.updated).into();
                value["flags"] = json!([]);
                value
            })
            .collect();
        let agent = dialect.default_agent();
        let heartbeats = dialect.setup.catalog.agents.iter().map(|entry| {
            let mut heartbeat = dialect.heartbeat(entry.id.as_str());
            heartbeat["agentId"] = entry.id.as_str().into();
            heartbeat
        });
        let heartbeats: Vec<_> = heartbeats.collect();
        json!({
            "version": &*dialect.setup.version,
            "heartbeat": { "defaultAgentId": agent, "agents": heartbeats },
            "channelSummary": [],
            "queuedSystemEvents": [],
            "sessions": {
                "paths": ["clawmux"],
                "count": overview.sessions,
                "defaults": dialect.session_defaults(),
                "recent": recent,
                "byAgent": [],
            },
        })
    })
}

/// `system-presence`.
pub(super) fn system_presence(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    overview(|dialect, overview, _| dialect.presence_entries(&overview.presence))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SystemEvent {
    text: Option<String>,
    device_id: Option<String>,
    instance_id: Option<String>,
    host: Option<String>,
    ip: Option<String>,
    mode: Option<String>,
    version: Option<String>,
    platform: Option<String>,
    device_family: Option<String>,
    model_identifier: Option<String>,
    last_input_seconds: Option<f64>,
    reason: Option<String>,
}

/// `system-event`: shown among who is connected.
pub(super) fn system_event(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let told: SystemEvent = request.read()?;
    let text = told.text.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| request.invalid("text required"))?.to_owned();
    let idle = told.last_input_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let told = PresenceReport {
        text,
        device: told.device_id,
        host: told.ip,
        about: About {
            version: told.version.unwrap_or_default(),
            mode: told.mode.unwrap_or_default(),
            platform: told.platform.unwrap_or_default(),
            device_family: told.device_family,
            model_identifier: told.model_identifier,
            display_name: told.host,
            instance_id: told.instance_id,
            ..About::default()
        },
        reason: told.reason,
        idle,
    };
    Call::ask(Box::new(told), |_, _, _| json!({ "ok": true }))
}
