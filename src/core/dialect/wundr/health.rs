//! Whether the daemon is there and how it is.

use serde_json::{Map, Value, json};

use super::shape::{COUNT, Field, Shape, optional, required};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::daemon::command::GetHealth;
use crate::daemon::health::{Part, Report};
use crate::dialect::json::put;
use crate::scope::Scope;

/// The answer to `health.status`, and its event.
pub(super) const STATUS: &[Field] = &[
    required(
        "status",
        Shape::OneOf(&["initializing", "running", "degraded", "stopped"]),
        "how it is as a whole",
    ),
    required("uptime", COUNT, "for how long it is ready, in ms"),
    required("activeSessions", COUNT, "sessions that are awake"),
    required("connectedClients", COUNT, "connections that were let in"),
    required(
        "subsystems",
        Shape::AnyObject,
        "by name: status, lastCheckAt and, where there are some, errors",
    ),
    optional("metrics", METRICS, "what was measured since the daemon started; once a prompt ended"),
];

/// All of them or none: clients of this protocol refuse figures of which one is missing.
const METRICS: Shape = Shape::Object(&[
    required("totalSessionsSpawned", COUNT, "sessions that were made"),
    required("totalTokensUsed", COUNT, "tokens that models read and wrote"),
    required("averageResponseTimeMs", Shape::Number(0.0, f64::MAX), "from prompt to end"),
    required("successRate", Shape::Number(0.0, 1.0), "prompts that did not fail"),
]);

/// `health.ping`
pub(super) fn ping(_: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let mut pong = json!({ "type": "health.pong", "serverTimestamp": turn.now().as_millis() });
    put(&mut pong, "clientTimestamp", request.params["clientTimestamp"].as_i64());
    Ok(Call::Answer(pong))
}

/// `health.status`
pub(super) fn status(_: &mut Wundr, _: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(GetHealth, |_, report, turn| payload(&report, turn))
}

/// A report in the protocol's words.
fn payload(report: &Report, turn: &Turn<'_>) -> Value {
    let part = |part: &Part| {
        let mut value = json!({ "status": part.condition.name(), "lastCheckAt": part.checked.to_rfc3339() });
        if !part.errors.is_empty() {
            value["errors"] = json!(part.errors);
        }
        (part.name.to_owned(), value)
    };
    let figures = &report.figures;
    let mut payload = json!({
        "status": report.condition().name(),
        "uptime": turn.now().millis_since(report.started),
        "activeSessions": report.sessions,
        "connectedClients": report.connections,
        "subsystems": report.parts.iter().map(part).collect::<Map<_, _>>(),
    });
    if let (Some(average), Some(rate)) = (figures.response_ms_average(), figures.success_rate()) {
        payload["metrics"] = json!({
            "totalSessionsSpawned": figures.sessions_made,
            "totalTokensUsed": figures.tokens,
            "averageResponseTimeMs": average,
            "successRate": rate,
        });
    }
    payload
}

impl Wundr {
    /// Tells who subscribed to it that a part of the daemon is not as it was.
    pub(super) fn tell_health(&mut self, report: &Report, turn: &mut Turn<'_>) {
        if self.scopes.allows(Scope::Read) {
            self.announce("health.status", &payload(report, turn), turn);
        }
    }

    /// Sends a heartbeat where one is due.
    pub(super) fn beat(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now();
        if now < self.next_heartbeat {
            return;
        }
        self.next_heartbeat = now.after(self.setup.heartbeat_interval);
        self.heartbeats += 1;
        let payload = format!(r#"{{"serverTimestamp":{},"seq":{}}}"#, now.as_millis(), self.heartbeats);
        self.emit("health.heartbeat", &payload, None, turn);
    }
}
