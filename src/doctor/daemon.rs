//! The daemon that runs, if one does: what it says of itself, and what waits for its operator.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clawmux_actors::admin::socket_path;
use clawmux_actors::store::Severity;
use serde_json::{Value, json};

use super::Findings;
use crate::admin_client::{Link, Refused};
use crate::home;
use crate::operator::tokens::expiring;
use crate::operator::when::{ago, now_ms, span};

/// How long a daemon that is well takes at most to say how it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// The daemon and its socket; gives what it says of itself.
pub(super) fn look(home: &Path, found: &mut Findings) -> Option<Value> {
    let socket = socket_path(home);
    let asked = Link::open(home).and_then(|mut link| {
        link.wait_for(Some(PATIENCE))?;
        link.call("admin.status", &json!({}), |_, _| {})
    });
    let status = match asked {
        Ok(status) => status,
        Err(Refused::Error(error)) => {
            found.add(
                "daemon",
                Severity::Error,
                format!("it refuses to say how it is: {error}"),
                "see its log",
            );
            return None;
        }
        Err(Refused::Unreachable(why)) => {
            match (home::holder(home), fs::symlink_metadata(&socket).is_ok()) {
                (Some(pid), _) => found.add(
                    "daemon",
                    Severity::Error,
                    format!("a daemon ({pid}) holds this home and does not answer: {why}"),
                    "see its log; it may be starting, stopping or stuck. Stop it with SIGTERM, at last with SIGKILL: \
                     nothing acknowledged is lost",
                ),
                (None, true) => found.add(
                    "daemon",
                    Severity::Warning,
                    format!("none runs; the socket {} was left by one that died", socket.display()),
                    "see why it died; the next start removes the socket",
                ),
                (None, false) => found.fine("daemon", "none runs on this home"),
            }
            return None;
        }
    };
    let text = |name: &str| status[name].as_str().unwrap_or("?");
    let who =
        format!("version {} (process {}) answers on {}", text("version"), status["pid"], socket.display());
    if text("version") != env!("CARGO_PKG_VERSION") {
        let what = format!("{who}, this is version {}", env!("CARGO_PKG_VERSION"));
        found.add("daemon", Severity::Warning, what, "restart it, so that both are of one version");
    } else if status["draining"] == true {
        let advice = "`clawmux drain --off` takes them again";
        found.add("daemon", Severity::Warning, format!("{who}; it drains: new prompts are refused"), advice);
    } else {
        found.fine("daemon", who);
    }
    if let Some(pid) = status["pid"].as_u64()
        && fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|exe| exe.to_string_lossy().ends_with(" (deleted)"))
    {
        let what = "the program of the running daemon was replaced on the disk";
        found.add("daemon", Severity::Warning, what, "restart it, so that the new one runs");
    }
    Some(status)
}

/// Credentials that end soon, devices and calls that wait.
pub(super) fn waiting(home: &Path, found: &mut Findings) {
    let Ok(mut link) = Link::open(home) else { return };
    if link.wait_for(Some(PATIENCE)).is_err() {
        return;
    }
    let mut ask = |method: &str| link.call(method, &json!({}), |_, _| {}).unwrap_or_default();
    let (tokens, devices, approvals) = (ask("admin.tokens"), ask("admin.devices"), ask("admin.approvals"));
    let list = |answer: &Value, name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("?").to_owned();
    let now_ms = now_ms();
    let tokens = list(&tokens, "tokens");
    for token in expiring(&tokens, now_ms) {
        let left = span(token["expires_ms"].as_u64().unwrap_or(0).saturating_sub(now_ms));
        let (id, name) = (text(token, "token"), text(token, "name"));
        let advice = format!("`clawmux token rotate {id}` gives out another while it holds");
        found.add("token", Severity::Warning, format!("{id} of {name} expires in {left}"), advice);
    }
    for device in list(&devices, "pending") {
        let since = ago(device["requested_ms"].as_u64().unwrap_or(0), now_ms);
        let (id, name) = (text(&device, "request"), text(&device, "name"));
        let advice =
            format!("`clawmux device approve {id}` lets it in, `clawmux device reject {id}` does not");
        found.add("device", Severity::Warning, format!("{name} waits to be paired, asked {since}"), advice);
    }
    let calls = list(&approvals, "approvals");
    if !calls.is_empty() {
        let what = format!("calls of tools that wait for approval: {}", calls.len());
        found.add("daemon", Severity::Warning, what, "`clawmux approvals` lists them");
    }
}
