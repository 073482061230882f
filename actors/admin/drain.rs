//! `admin.drain`: the daemon takes no new prompts, and what it accepted runs to its end.
//!
//! It stays up: logs can be read and runs followed or aborted, until whoever drained it stops it.
//! Asked again it says how far it is.

use clawmux_core::error::Error;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminDrain;
use super::activity::Activity;
use super::methods::{Call, stopping};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Whether to drain; `false` takes work again.
    on: Option<bool>,
}

/// Answers it: `{"draining", "running", "queued", "waking", "sessions": [keys]}`; drained is when the
/// three counts are 0.
pub(super) async fn drain(call: Call) -> Result<Value, Error> {
    let on = call.params::<Params>("admin.drain")?.on.unwrap_or(true);
    call.daemon.drain.send(AdminDrain { on }).await.unwrap_or_else(|_| Err(stopping()))?;
    let activity = Activity::now(&call.daemon).await?;
    let busy = activity.awake.iter().filter(|(_, session)| session.run.is_some() || session.queued > 0);
    let mut sessions: Vec<&str> = busy.map(|(key, _)| key.as_str()).collect();
    sessions.sort_unstable();
    sessions.truncate(10);
    Ok(json!({
        "draining": on,
        "running": activity.running(),
        "queued": activity.queued(),
        "waking": activity.waking,
        "sessions": sessions,
    }))
}
