//! `admin.connections` and `admin.connection.close`: who is connected, and ending one.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, ask_on, method};
use crate::daemon::operator::{CloseConnection, Connections, ListConnections};
use crate::error::{Error, ErrorCode};
use crate::ids::ConnectionId;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.connections", r#"{"limit"?}"#, list),
    method("admin.connection.close", r#"{"connection"}"#, close),
];

/// Connections in an answer.
const LIMIT: usize = 1000;
/// The most in an answer.
const LIMIT_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectionsParams {
    limit: Option<usize>,
}

/// `admin.connections`: `{"connections": [..], "total", "connections_max", "unauthenticated", "closed"}`, the
/// latest first; `closed` says how many the daemon has closed so far, by cause.
fn list(request: &Request) -> Result<Call, Error> {
    let limit = request.read::<ConnectionsParams>()?.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    ask(ListConnections, move |connections| told(&connections, limit))
}

fn told(Connections { listener, follows, now }: &Connections, limit: usize) -> Value {
    let now = now.as_millis();
    let row = |figures: &Value| {
        let number = |name: &str| figures[name].as_u64().unwrap_or(0);
        let id = number("id");
        json!({
            "connection": id,
            "protocol": figures["dialect"],
            "principal": figures["principal"],
            "client": figures["client"],
            "user": figures["user"],
            "peer": figures["peer"],
            "since_ms": now.saturating_sub(number("age_ms")),
            "silent_ms": figures["silent_ms"],
            "follows": follows.get(&ConnectionId(id)).copied().unwrap_or(0),
            "received_bytes": figures["received_bytes"],
            "sent_bytes": figures["sent_bytes"],
            "buffered_bytes": number("buffered_bytes") + number("events_bytes"),
            "blocked": figures["blocked"],
            "closing": figures["closing"],
        })
    };
    let rows: Vec<Value> =
        listener.children.iter().rev().take(limit).map(|connection| row(&connection.state)).collect();
    json!({
        "connections": rows,
        "total": listener.children.len(),
        "connections_max": listener.state["connections_max"],
        "unauthenticated": listener.state["unauthenticated"],
        "closed": listener.state["closed"],
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    connection: u64,
}

/// `admin.connection.close`: `{"connection", "peer", "closed": true}`. It is told in its protocol's words that
/// the daemon goes away for it, which is when clients come back; what it had asked for goes on.
fn close(request: &Request) -> Result<Call, Error> {
    let One { connection } = request.read()?;
    let close = CloseConnection { connection: ConnectionId(connection) };
    ask_on(close, move |closed| {
        let unknown = || {
            ErrorCode::NotFound
                .error(format!("there is no connection {connection}: `clawmux connections` lists them"))
        };
        let peer = closed.peer.ok_or_else(unknown)?;
        Ok(Call::Answer(json!({ "connection": connection, "peer": peer, "closed": true })))
    })
}
