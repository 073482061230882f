//! `admin.backup`: a consistent copy of the log while it is written to.
//!
//! The copy goes on by itself, whoever asked for it may leave.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clawmux_core::error::{Error, ErrorCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::methods::{Call, stopping};
use crate::ask::ask;
use crate::observe::Observe;
use crate::store::Backup;

/// How long one may take; the store itself gives up a little earlier.
pub(super) const DEADLINE: Duration = Duration::from_secs(16 * 60);
/// How often it is told how far it is.
const PROGRESS: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    file: PathBuf,
}

/// Answers it: `{"file", "bytes", "sessions", "runs", "took_ms"}`; meanwhile `admin.backup.progress` with
/// `pages_left`, which is 0 at the beginning and while the copy is checked.
pub(super) async fn backup(call: Call) -> Result<Value, Error> {
    let Params { file } = call.params("admin.backup")?;
    if !Path::is_absolute(&file) {
        let why = format!(
            "{} is relative, and so to the daemon's folder: name the file absolutely",
            file.display()
        );
        return Err(ErrorCode::InvalidRequest.error(why));
    }
    let copy = call.daemon.store.send(Backup { to: file.clone() });
    tokio::pin!(copy);
    let mut tick = interval(PROGRESS);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let report = loop {
        tokio::select! {
            biased;
            report = &mut copy => break report.unwrap_or_else(|_| Err(stopping()))?,
            _ = tick.tick() => {
                let observed = ask(&call.daemon.store, Observe).await?;
                // Lost where nobody reads it as fast: the next one says more.
                let left = json!({ "pages_left": observed.state["backup_pages_left"] });
                let _ = call.progress.try_send(("admin.backup.progress", left));
            }
        }
    };
    Ok(report.to_json(&file))
}
