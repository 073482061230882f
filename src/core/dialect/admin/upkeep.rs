//! `admin.drain` and `admin.backup`: what is done to a daemon before it is stopped or changed.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;

use super::Call;
use super::activity::Activity;
use super::method::{Method, Request, ask, invalid, method};
use crate::daemon::operator;
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] =
    &[method("admin.drain", r#"{"on"?}"#, drain), method("admin.backup", r#"{"file"}"#, backup)];

/// So many of the sessions that have something to do are named.
const BUSY_MAX: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    /// Whether to drain; `false` takes work again.
    on: Option<bool>,
}

/// `admin.drain`: `{"draining", "running", "queued", "waking", "sessions": [keys]}`; drained is when the
/// counts are 0. The daemon takes no new prompts, and what it accepted runs to its end. It stays up: logs can
/// be read and runs followed or aborted, until whoever drained it stops it. Asked again it says how far it is.
///
/// In a cluster where other daemons are there they take its sessions over, with what runs, and prompts are passed on to
/// them; `slots` is how many shares of the sessions it has yet to give away.
fn drain(request: &Request) -> Result<Call, Error> {
    let on = request.read::<Drain>()?.on.unwrap_or(true);
    ask(operator::Drain { on }, move |operator::Drained { sessions, slots }| {
        let activity = Activity::of(&sessions);
        let busy = activity.awake.iter().filter(|(_, session)| session.run.is_some() || session.queued > 0);
        let mut sessions: Vec<&str> = busy.map(|(key, _)| key.as_str()).collect();
        sessions.sort_unstable();
        sessions.truncate(BUSY_MAX);
        let mut told = json!({
            "draining": on,
            "running": activity.running(),
            "queued": activity.queued(),
            "waking": activity.waking,
            "sessions": sessions,
        });
        if let Some(slots) = slots {
            told["slots"] = slots.into();
        }
        told
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Backup {
    file: PathBuf,
}

/// `admin.backup`: `{"file", "bytes", "sessions", "runs", "took_ms"}`; meanwhile `admin.backup.progress` with
/// `pages_left`, which is 0 at the beginning and while the copy is checked.
fn backup(request: &Request) -> Result<Call, Error> {
    let Backup { file } = request.read()?;
    if !file.is_absolute() {
        return Err(invalid(&format!(
            "{} is relative, and so to the daemon's folder: name the file absolutely",
            file.display()
        )));
    }
    ask(operator::Backup { file: file.clone() }, move |report| report.to_json(&file))
}
