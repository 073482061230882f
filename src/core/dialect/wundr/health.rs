//! Whether the daemon is there and how it is.

use serde::Deserialize;
use serde_json::json;

use super::{Call, Request, Turn, Wundr};
use crate::error::Error;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ping {
    client_timestamp: Option<i64>,
}

/// `health.ping`
pub(super) fn ping(_: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Result<Call, Error> {
    let Ping { client_timestamp } = request.read()?;
    let mut pong = json!({ "type": "health.pong", "serverTimestamp": turn.now().as_millis() });
    if let Some(timestamp) = client_timestamp {
        pong["clientTimestamp"] = timestamp.into();
    }
    Ok(Call::Answer(pong))
}

impl Wundr {
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
