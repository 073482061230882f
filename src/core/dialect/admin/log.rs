//! `admin.log`: what of its doings the daemon writes to its log.

use serde::Deserialize;
use serde_json::json;

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use crate::daemon::operator::{LogFilter, SetLogFilter};
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] = &[method("admin.log", r#"{"level"? or "filter"?}"#, log)];

/// The levels of the log.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    /// One of [`LEVELS`].
    level: Option<String>,
    /// Directives of a filter.
    filter: Option<String>,
}

/// `admin.log`: `{"filter", "configured"}`, the one in effect and the one that a reload or a restart
/// brings back.
fn log(request: &Request) -> Result<Call, Error> {
    let filter = match request.read()? {
        Log { level: Some(_), filter: Some(_) } => {
            return Err(invalid("give a level or a filter, and not both"));
        }
        Log { level: Some(level), filter: None } => {
            let level = level.to_ascii_lowercase();
            if !LEVELS.contains(&&*level) {
                let levels = LEVELS.join(", ");
                return Err(invalid(&format!("there is no level {level:?}: it is one of {levels}")));
            }
            Some(level)
        }
        Log { level: None, filter } => filter,
    };
    ask(
        SetLogFilter { filter },
        |LogFilter { filter, configured }| json!({ "filter": filter, "configured": configured }),
    )
}
