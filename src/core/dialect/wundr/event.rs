//! Every event: its name and what its payload is. (Source: the protocol's document, section 4.)

use serde_json::Value;

use super::shape::{self, COUNT, Field, required};

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
pub(super) static EVENTS: &[Event] = &[Event {
    name: "health.heartbeat",
    doc: "Every `heartbeatIntervalMs`, to everybody, subscribed or not.",
    payload: &[
        required("serverTimestamp", COUNT, "the daemon's time, in ms since 1970"),
        required("seq", COUNT, "counts the heartbeats of this connection"),
    ],
}];

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
