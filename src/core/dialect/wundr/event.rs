//! Every event: its name and what its payload is. (Source: the protocol's document, section 4.)

use serde_json::Value;

use super::shape::{self, COUNT, Field, required};
use super::{agents, health, stream, teams, tools};

/// One event.
pub(super) struct Event {
    /// Its name, `domain.what`.
    pub(super) name: &'static str,
    /// When it comes, in a sentence.
    pub(super) doc: &'static str,
    /// The members of its payload.
    pub(super) payload: &'static [Field],
}

const fn event(name: &'static str, doc: &'static str, payload: &'static [Field]) -> Event {
    Event { name, doc, payload }
}

/// Every event.
pub(super) static EVENTS: &[Event] = &[
    // Sessions.
    event("session.created", "A session was made.", stream::CREATED),
    event("session.status", "A session is in another state.", stream::STATUS),
    event("session.stopped", "A session was stopped, or deleted by another protocol.", stream::STOPPED),
    // What a prompt brings about.
    event(
        "stream.start",
        "A prompt's turn has come; or it starts again after it was cut off, as by a restart of the daemon.",
        stream::START,
    ),
    event("stream.chunk", "A piece of the answer.", stream::CHUNK),
    event(
        "stream.progress",
        "What becomes of an answer besides its text: a model is asked again, another one is asked.",
        stream::PROGRESS,
    ),
    event("stream.end", "A prompt is over: answered, or cancelled. Nothing of it follows.", stream::END),
    event("stream.error", "A prompt is over because it failed. Nothing of it follows.", stream::ERROR),
    // Tools.
    event(tools::TOOL_REQUEST, "A call waits until somebody decides about it.", tools::REQUEST),
    event("tool.status", "How far a call is.", stream::STATUS_OF_TOOL),
    event("tool.result", "What became of a call.", stream::RESULT_OF_TOOL),
    // Agents.
    event("agent.spawned", "An agent was put to work.", agents::STATUS),
    event("agent.status", "An agent is in another state.", agents::STATUS),
    event("agent.stopped", "An agent was stopped.", agents::STATUS),
    // Teams.
    event("team.status", "A team or one of its members is in another state.", teams::STATUS),
    event("team.message", "A member was sent a message, or answers one.", teams::RELAYED),
    event("team.dissolved", "A team was dissolved.", teams::DISSOLVE),
    // How the daemon is.
    event(
        "health.status",
        "A part of the daemon is not as it was; looked at every few seconds.",
        health::STATUS,
    ),
    event(
        "health.heartbeat",
        "Every `heartbeatIntervalMs`, to everybody, subscribed or not.",
        &[
            required("serverTimestamp", COUNT, "the daemon's time, in ms since 1970"),
            required("seq", COUNT, "counts the heartbeats of this connection"),
        ],
    ),
];

/// That an event is in the table and its payload what it is said to be, where tests run.
pub(super) fn check(name: &str, payload: &str) {
    if cfg!(debug_assertions) {
        let event = EVENTS.iter().find(|event| event.name == name);
        let parsed = serde_json::from_str::<Value>(payload).map_err(|why| why.to_string());
        let checked = match (event, parsed) {
            (None, _) => Err("it is not in the table".to_owned()),
            (_, Err(why)) => Err(why),
            (Some(event), Ok(mut payload)) => shape::check(event.payload, &mut payload),
        };
        assert!(checked.is_ok(), "event {name}: {checked:?}: {payload}");
    }
}
