//! `admin.config.*`: what the daemon is configured to, and changes of it while it runs.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, method};
use crate::config::request::ConfigIssue;
use crate::daemon::operator::{
    ChangeConfig, Changed, ExplainConfig, Explained, ReloadConfig, Reloaded, Setting,
};
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.config.get", r#"{"path"?}"#, get),
    method("admin.config.set", r#"{"path", "value"}"#, set),
    method("admin.config.unset", r#"{"path"}"#, unset),
    method("admin.config.reload", "{}", reload),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    path: Option<String>,
}

/// `admin.config.get`: `{"settings": [{"path", "value", "from", "at", "waits_for"}], "complaints"}`.
/// `from` is `default`, `file`, `environment` or `command line`, `at` the file and line, variable or
/// option; `waits_for` is `reload` or `restart` where another value is in effect. Where there are
/// complaints the values are those in effect, `from` is `last good` and `at` is null.
fn get(request: &Request) -> Result<Call, Error> {
    let Get { path } = request.read()?;
    ask(ExplainConfig { path }, |explained| explain(&explained))
}

fn explain(Explained { settings, complaints }: &Explained) -> Value {
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
    json!({ "settings": rows.collect::<Vec<_>>(), "complaints": complaints })
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
fn set(request: &Request) -> Result<Call, Error> {
    let Set { path, value } = request.read()?;
    change(path, value)
}

/// `admin.config.unset`: as `admin.config.set`; what is left says a weaker file, or nobody.
fn unset(request: &Request) -> Result<Call, Error> {
    let Unset { path } = request.read()?;
    change(path, Value::Null)
}

fn change(path: String, value: Value) -> Result<Call, Error> {
    ask(ChangeConfig { path, value }, |Changed { file, is_written, settings, reloaded }| {
        let mut answer = told(&reloaded);
        answer["file"] = file.into();
        answer["written"] = is_written.into();
        answer["settings"] = settings.iter().map(Setting::to_json).collect();
        answer
    })
}

/// `admin.config.reload`: `{"applied", "needs_restart", "warnings"}`.
fn reload(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ReloadConfig, |reloaded| told(&reloaded))
}

fn told(Reloaded { applied, needs_restart, warnings }: &Reloaded) -> Value {
    let warning = |ConfigIssue { path, message }: &ConfigIssue| json!({ "path": path, "message": message });
    json!({
        "applied": applied,
        "needs_restart": needs_restart,
        "warnings": warnings.iter().map(warning).collect::<Vec<_>>(),
    })
}
