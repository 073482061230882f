//! `admin.log`: what of its doings the daemon writes to its log.

use clawmux_core::error::{Error, ErrorCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::Call;

/// The levels there are.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// One of [`LEVELS`].
    level: Option<String>,
    /// Directives of a filter.
    filter: Option<String>,
}

/// Answers it: `{"filter", "configured"}`, the one in effect and the one that a reload or a restart
/// brings back.
pub(super) async fn log(call: Call) -> Result<Value, Error> {
    let refuse = |why: String| ErrorCode::InvalidRequest.error(why);
    let directives = match call.params("admin.log")? {
        Params { level: Some(_), filter: Some(_) } => {
            return Err(refuse("give a level or a filter, and not both".into()));
        }
        Params { level: Some(level), filter: None } => {
            let level = level.to_ascii_lowercase();
            if !LEVELS.contains(&&*level) {
                return Err(refuse(format!(
                    "there is no level {level:?}: it is one of {}",
                    LEVELS.join(", ")
                )));
            }
            Some(level)
        }
        Params { level: None, filter } => filter,
    };
    let Some(log) = &call.daemon.log_filter else {
        return Err(ErrorCode::Unavailable.error("the log of this daemon is not its own"));
    };
    if let Some(directives) = directives {
        log.set(&directives).map_err(refuse)?;
        tracing::info!(filter = %directives, "by the operator: the log's filter, until a reload or restart");
    }
    Ok(json!({ "filter": log.directives(), "configured": call.daemon.config.get().log.filter }))
}
