//! `admin.connections` and `admin.connection.close`: who is connected, and ending one.

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::ConnectionId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::{Call, stopping};
use crate::clock;
use crate::listener::CloseConnection;
use crate::observe::Observe;
use crate::session_supervisor::Follows;

/// Connections in an answer.
const LIMIT: usize = 1000;
/// The most in an answer.
const LIMIT_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    limit: Option<usize>,
}

/// `admin.connections`: `{"connections": [..], "total", "connections_max", "unauthenticated", "closed"}`, the
/// latest first; `closed` says how many the daemon has closed so far, by cause.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    let limit = call.params::<Params>("admin.connections")?.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    let listener = call.daemon.connections.send(Observe).await.map_err(|_| stopping())?;
    let follows = call.daemon.follows.send(Follows).await.map_err(|_| stopping())?;
    let now = clock::now().as_millis();
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
    Ok(json!({
        "connections": rows,
        "total": listener.children.len(),
        "connections_max": listener.state["connections_max"],
        "unauthenticated": listener.state["unauthenticated"],
        "closed": listener.state["closed"],
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    connection: u64,
}

/// `admin.connection.close`: `{"connection", "peer", "closed": true}`. It is told in its protocol's words that
/// the daemon goes away for it, which is when clients come back; what it had asked for goes on.
pub(super) async fn close(call: Call) -> Result<Value, Error> {
    let One { connection } = call.params("admin.connection.close")?;
    let closed = call.daemon.close.send(CloseConnection(ConnectionId(connection)));
    match closed.await.map_err(|_| stopping())? {
        Some(peer) => Ok(json!({ "connection": connection, "peer": peer.to_string(), "closed": true })),
        None => Err(ErrorCode::NotFound
            .error(format!("there is no connection {connection}: `clawmux connections` lists them"))),
    }
}
