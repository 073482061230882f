//! What an actor says of itself: admin RPC, metrics, console and tests read the same value.

use actix::Message;
use serde::Serialize;
use serde_json::Value;

/// Asks an actor how it is. Every actor answers.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Observed")]
pub struct Observe;

/// How an actor is, with those it owns.
#[derive(Clone, Debug, Serialize, actix::dev::MessageResponse)]
pub struct Observed {
    /// The actor's kind, and its name where there are several.
    pub actor: String,
    /// Its own figures, as a JSON object with units in the names.
    pub state: Value,
    /// Those it supervises.
    pub children: Vec<Observed>,
}

impl Observed {
    /// An actor without children.
    pub fn leaf(actor: impl Into<String>, state: Value) -> Self {
        Self { actor: actor.into(), state, children: Vec::new() }
    }
}
