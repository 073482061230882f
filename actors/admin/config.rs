//! `admin.config.*`: what the daemon is configured to, and changes of it while it runs.

use std::time::Duration;

use clawmux_core::config::request::ConfigIssue;
use clawmux_core::error::Error;
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::{Call, stopping};
use crate::configuration::{Change, Changed, Explain, Explained, Reload, Reloaded, Setting};

/// How long a change may take: plugins are loaded before anything is changed, and others may come first.
pub(super) const DEADLINE: Duration = Duration::from_secs(150);

/// Who has it done, for the log.
const BY: &str = "the operator";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    path: Option<String>,
}

/// `admin.config.get`: `{"settings": [{"path", "value", "from", "at", "waits_for"}], "complaints"}`.
/// `from` is `default`, `file`, `environment` or `command line`, `at` the file and line, variable or
/// option; `waits_for` is `reload` or `restart` where another value is in effect. Where there are
/// complaints the values are those in effect, `from` is `last good` and `at` is null.
pub(super) async fn get(call: Call) -> Result<Value, Error> {
    let Get { path } = call.params("admin.config.get")?;
    let asked = call.daemon.configuration.send(Explain { path });
    let Explained { settings, complaints } = asked.await.unwrap_or_else(|_| Err(stopping()))?;
    let rows = settings.iter().map(|(setting, waits_for)| {
        let mut row = setting.to_json();
        row["waits_for"] = json!(waits_for);
        if !complaints.is_empty() {
            row["from"] = json!("last good");
            row["at"] = Value::Null;
        }
        row
    });
    let complaints: Vec<&str> = complaints.lines().collect();
    Ok(json!({ "settings": rows.collect::<Vec<_>>(), "complaints": complaints }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    path: String,
    value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unset {
    path: String,
}

/// `admin.config.set`: `{"file", "written", "settings", "applied", "needs_restart", "warnings"}`.
pub(super) async fn set(call: Call) -> Result<Value, Error> {
    let Set { path, value } = call.params("admin.config.set")?;
    change(&call, path, value).await
}

/// `admin.config.unset`: as `admin.config.set`; what is left says a weaker file, or nobody.
pub(super) async fn unset(call: Call) -> Result<Value, Error> {
    let Unset { path } = call.params("admin.config.unset")?;
    change(&call, path, Value::Null).await
}

async fn change(call: &Call, path: String, value: Value) -> Result<Value, Error> {
    let asked = call.daemon.configuration.send(Change { path, value, by: BY.into() });
    let Changed { file, is_written, settings, reloaded } = asked.await.unwrap_or_else(|_| Err(stopping()))?;
    let mut answer = told(&reloaded);
    answer["file"] = file.into();
    answer["written"] = is_written.into();
    answer["settings"] = settings.iter().map(Setting::to_json).collect();
    Ok(answer)
}

/// `admin.config.reload`: `{"applied", "needs_restart", "warnings"}`.
pub(super) async fn reload(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.config.reload")?;
    let asked = call.daemon.configuration.send(Reload { by: BY.into() });
    asked.await.unwrap_or_else(|_| Err(stopping())).map(|reloaded| told(&reloaded))
}

fn told(Reloaded { applied, needs_restart, warnings }: &Reloaded) -> Value {
    let warning = |ConfigIssue { path, message }: &ConfigIssue| json!({ "path": path, "message": message });
    json!({
        "applied": applied,
        "needs_restart": needs_restart,
        "warnings": warnings.iter().map(warning).collect::<Vec<_>>(),
    })
}
