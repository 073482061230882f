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

/// Every event.
pub(super) static EVENTS: &[Event] = &[
    // Sessions.
    Event { name: "session.created", doc: "A session was made.", payload: stream::CREATED },
    Event { name: "session.status", doc: "A session is in another state.", payload: stream::STATUS },
    Event {
        name: "session.stopped",
        doc: "A session was stopped, or deleted by another protocol.",
        payload: stream::STOPPED,
    },
    // What a prompt brings about.
    Event {
        name: "stream.start",
        doc: "A prompt's turn has come; or it starts again after the daemon was restarted.",
        payload: stream::START,
    },
    Event { name: "stream.chunk", doc: "A piece of the answer.", payload: stream::CHUNK },
    Event {
        name: "stream.end",
        doc: "A prompt is over: answered, or cancelled. Nothing of it follows.",
        payload: stream::END,
    },
    Event {
        name: "stream.error",
        doc: "A prompt is over because it failed. Nothing of it follows.",
        payload: stream::ERROR,
    },
    // Tools.
    Event {
        name: tools::TOOL_REQUEST,
        doc: "A call waits until somebody decides about it.",
        payload: tools::REQUEST,
    },
    Event { name: "tool.status", doc: "How far a call is.", payload: stream::STATUS_OF_TOOL },
    Event { name: "tool.result", doc: "What became of a call.", payload: stream::RESULT_OF_TOOL },
    // Agents.
    Event { name: "agent.spawned", doc: "An agent was put to work.", payload: agents::STATUS },
    Event { name: "agent.status", doc: "An agent is in another state.", payload: agents::STATUS },
    Event { name: "agent.stopped", doc: "An agent was stopped.", payload: agents::STATUS },
    // Teams.
    Event {
        name: "team.status",
        doc: "A team or one of its members is in another state.",
        payload: teams::STATUS,
    },
    Event {
        name: "team.message",
        doc: "A member was sent a message, or answers one.",
        payload: teams::RELAYED,
    },
    Event { name: "team.dissolved", doc: "A team was dissolved.", payload: teams::DISSOLVE },
    // How the daemon is.
    Event {
        name: "health.status",
        doc: "A part of the daemon is not as it was; looked at every few seconds.",
        payload: health::STATUS,
    },
    Event {
        name: "health.heartbeat",
        doc: "Every `heartbeatIntervalMs`, to everybody, subscribed or not.",
        payload: &[
            required("serverTimestamp", COUNT, "the daemon's time, in ms since 1970"),
            required("seq", COUNT, "counts the heartbeats of this connection"),
        ],
    },
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
