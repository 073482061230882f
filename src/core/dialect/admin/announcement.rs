//! What is not about one session, as JSON.
//!
//! `{"event", ..}`: the rest depends on `event`.
//!
//! | `event` | besides |
//! |---|---|
//! | `presence` | `version`, `present`: of each `connection`, `host`, `client`, `role`, `reason`, `text`, `at_ms` |
//! | `health` | `version`, `at_ms`, `sessions`, `fault` (null where all is well) |
//! | `report` | `condition`, `at_ms`, `sessions`, `connections`, `parts`: of each `name`, `condition`, `errors` |
//! | `session_changed` | `session`, `owner` (null: the operators), `reason` |
//! | `pairing` | `request`, `device`, `role`, `owner`, `at_ms`; `waiting`, or `approved` once it is decided |
//! | `agent` | `change`, `agent`, `session`, `parent`, `team`, `kind`, `state`, `owner`, `why`? |
//! | `team` | `change`, `team`, `owner`; `name`, `state`, `progress`; or `from`, `to`, `content`; or `reason` |
//! | `approval` | `approval`, `session`, `run`, `tool`, `owner`; `deadline_ms`, or `decision` and `by` once it is decided |

use serde_json::{Value, json};

use super::event::{decision_name, owner_name};
use crate::access::pairing;
use crate::agents::subagent::{AgentChange, AgentNews};
use crate::agents::team::TeamNews;
use crate::config::catalog::Catalog;
use crate::conversation::approval;
use crate::daemon::announcement::{Announcement, ChangeReason};
use crate::daemon::command::Overview;
use crate::daemon::health::Report;
use crate::daemon::presence::Presence;
use crate::schedule::job::{JobChange, JobNews};

/// It.
pub fn to_json(announcement: &Announcement) -> Value {
    let (name, mut object) = match announcement {
        Announcement::Presence(presence) => ("presence", of_presence(presence)),
        Announcement::Health(overview) => ("health", of_health(overview)),
        Announcement::Report(report) => ("report", of_report(report)),
        Announcement::SessionChanged(change) => (
            "session_changed",
            json!({
                "session": change.session.as_str(),
                "owner": owner_name(&change.owner),
                "reason": reason_name(change.reason),
            }),
        ),
        Announcement::Pairing(news) => ("pairing", of_pairing(news)),
        Announcement::Agent(news) => ("agent", of_agent(news)),
        Announcement::Team(news) => ("team", of_team(news)),
        Announcement::Approval(news) => ("approval", of_approval(news)),
        Announcement::Job(news) => ("job", of_job(news)),
        Announcement::Catalog(catalog) => ("catalog", of_catalog(catalog)),
    };
    object["event"] = json!(name);
    object
}

fn of_catalog(catalog: &Catalog) -> Value {
    let agents: Vec<_> = catalog.agents.iter().map(|agent| agent.id.as_str()).collect();
    let models: Vec<_> = catalog.models.iter().map(|entry| entry.model.to_string()).collect();
    json!({ "agents": agents, "models": models })
}

fn of_job(news: &JobNews) -> Value {
    let (what, firing) = match &news.what {
        JobChange::Added => ("added", None),
        JobChange::Updated => ("updated", None),
        JobChange::Removed => ("removed", None),
        JobChange::Started(_) => ("started", None),
        JobChange::Finished(firing) => ("finished", Some(firing)),
    };
    json!({
        "job": news.job.as_str(),
        "owner": owner_name(&news.owner),
        "what": what,
        "state": firing.map(|firing| firing.state.name()),
        "why": firing.and_then(|firing| firing.state.why()),
        "next_ms": news.next.map(|next| next.as_millis()),
    })
}

fn of_presence(presence: &Presence) -> Value {
    let present = presence.present.iter().map(|present| {
        json!({
            "connection": present.connection.map(|id| id.0),
            "host": present.host,
            "client": present.about.client_id,
            "role": present.role.name(),
            "reason": present.reason,
            "text": present.text,
            "at_ms": present.at.as_millis(),
        })
    });
    json!({ "version": presence.version, "present": present.collect::<Vec<_>>() })
}

fn of_health(overview: &Overview) -> Value {
    json!({
        "version": overview.version,
        "at_ms": overview.at.as_millis(),
        "sessions": overview.sessions,
        "fault": overview.fault.as_ref().map(|fault| &fault.message),
    })
}

fn of_report(report: &Report) -> Value {
    let parts = report
        .parts
        .iter()
        .map(|part| json!({ "name": part.name, "condition": part.condition.name(), "errors": part.errors }));
    json!({
        "condition": report.condition().name(),
        "at_ms": report.at.as_millis(),
        "sessions": report.sessions,
        "connections": report.connections,
        "parts": parts.collect::<Vec<_>>(),
    })
}

const fn reason_name(reason: ChangeReason) -> &'static str {
    match reason {
        ChangeReason::Created => "created",
        ChangeReason::Started => "started",
        ChangeReason::Ended => "ended",
        ChangeReason::Configured => "configured",
        ChangeReason::Reset => "reset",
        ChangeReason::Deleted => "deleted",
    }
}

fn of_pairing(news: &pairing::News) -> Value {
    match news {
        pairing::News::Requested(pending) => json!({
            "request": pending.id,
            "device": &*pending.device,
            "role": pending.role.name(),
            "owner": owner_name(&pending.owner),
            "at_ms": pending.at.as_millis(),
            "waiting": true,
        }),
        pairing::News::Resolved { request, device, role, owner, is_approved, at } => json!({
            "request": request,
            "device": &**device,
            "role": role.name(),
            "owner": owner_name(owner),
            "at_ms": at.as_millis(),
            "approved": is_approved,
        }),
    }
}

fn of_agent(AgentNews { what, status }: &AgentNews) -> Value {
    let mut object = json!({
        "change": match what {
            AgentChange::Spawned => "spawned",
            AgentChange::Changed => "changed",
            AgentChange::Stopped => "stopped",
        },
        "agent": status.agent.as_str(),
        "session": status.session.as_str(),
        "parent": status.parent.as_ref().map(|parent| parent.as_str()),
        "team": status.team.as_ref().map(|(team, _)| team.as_str()),
        "kind": status.kind,
        "state": status.state.name(),
        "owner": owner_name(&status.owner),
    });
    if let Some(why) = &status.why {
        object["why"] = json!(why.message);
    }
    object
}

fn of_team(news: &TeamNews) -> Value {
    match news {
        TeamNews::Changed(status) => json!({
            "change": "changed",
            "team": status.team.as_str(),
            "owner": owner_name(&status.owner),
            "name": status.name,
            "state": status.state.name(),
            "progress": status.progress,
        }),
        TeamNews::Message(relayed) => json!({
            "change": "message",
            "team": relayed.team.as_str(),
            "owner": owner_name(&relayed.owner),
            "from": relayed.from.as_str(),
            "to": relayed.to.as_ref().map(|to| to.as_str()),
            "content": relayed.content,
        }),
        TeamNews::Dissolved { team, owner, reason } => json!({
            "change": "dissolved",
            "team": team.as_str(),
            "owner": owner_name(owner),
            "reason": reason,
        }),
    }
}

fn of_approval(news: &approval::News) -> Value {
    let pending = news.pending();
    let mut object = json!({
        "approval": pending.id.as_str(),
        "session": pending.session.as_str(),
        "run": pending.run.as_str(),
        "tool": pending.asked.call.name.as_str(),
        "owner": owner_name(&pending.owner),
    });
    match news {
        approval::News::Requested(_) => object["deadline_ms"] = json!(pending.asked.deadline.as_millis()),
        approval::News::Resolved { decided, .. } => {
            object["decision"] = json!(decision_name(&decided.decision));
            object["by"] = json!(decided.by);
        }
    }
    object
}
