//! The daemon that runs, if one does: what it says of itself, and what waits for its operator.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use clawmux_actors::host::bound::socket_path;
use clawmux_actors::operator::read_without_daemon;
use clawmux_core::cluster::slot::Slot;
use clawmux_core::config::Config;
use clawmux_core::dialect::admin::LOCKED_OUT;
use serde_json::{Value, json};

use super::{Findings, LOG};
use crate::admin_client::{Link, Refused};
use crate::answer::Members;
use crate::home;
use crate::operator::status::left_alone;
use crate::operator::tokens::expiring;
use crate::when::{ago, now_ms, span};

/// How long a daemon that is well takes at most to say how it is.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon and its socket; gives what it says of itself.
pub(super) fn look(home: &Path, found: &mut Findings) -> Option<Value> {
    let socket = socket_path(home);
    let asked = Link::open(home).and_then(|mut link| {
        link.wait_for(Some(TIMEOUT))?;
        link.call("admin.status", &json!({}), |_, _| {})
    });
    let status = match asked {
        Ok(status) => status,
        Err(Refused::Error(error)) => {
            found.error("daemon", format!("it refuses to say how it is: {error}"), LOG);
            return None;
        }
        Err(Refused::Unreachable(why)) => {
            let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            if UnixStream::connect(&socket).is_err_and(denied) {
                let what = format!("this user may not use the socket {}", socket.display());
                let advice =
                    "run it as the user whose home it is, as root, or as a member of gateway.socket_group";
                found.error("daemon", what, advice);
                return None;
            }
            match (home::holder(home), fs::symlink_metadata(&socket).is_ok()) {
                (Some(pid), _) => found.error(
                    "daemon",
                    format!("a daemon ({pid}) holds this home and does not answer: {why}"),
                    format!(
                        "it may be starting, stopping or stuck; {LOG}. Stop it with SIGTERM, at last with SIGKILL: \
                         nothing acknowledged is lost"
                    ),
                ),
                (None, true) => found.warning(
                    "daemon",
                    format!("none runs; the socket {} was left by one that died", socket.display()),
                    format!("the next start removes the socket; {LOG}"),
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
        found.warning("daemon", what, "restart it, so that both are of one version");
    } else if status["draining"] == true {
        let (what, advice) = match status["new_prompts"] == "passed_on" {
            true => (
                "new prompts are passed on to the other daemons",
                "`clawmux drain --off` takes sessions again",
            ),
            false => ("new prompts are refused", "`clawmux drain --off` takes them again"),
        };
        found.warning("daemon", format!("{who}; it drains: {what}"), advice);
    } else {
        found.fine("daemon", who);
    }
    if status["cluster"].is_object() {
        let cluster = &status["cluster"];
        let what = format!(
            "node {} of the cluster {}, {}: {} of {} slots, {} nodes are heard",
            cluster.text("node"),
            cluster.text("cluster"),
            cluster.text("state"),
            cluster.number("slots"),
            Slot::COUNT,
            cluster.number("nodes")
        );
        found.fine("daemon", what);
    }
    let problems = status.texts("problems");
    if let Some(model) = status["embeddings"].as_str()
        && !problems.iter().any(|problem| problem.starts_with("memory.embeddings"))
    {
        found.fine("daemon", format!("memories are found by vectors of {model}, besides the built-in ones"));
    }
    for problem in problems {
        // Told with the credentials.
        if problem != LOCKED_OUT {
            found.warning("daemon", problem, remedy(problem));
        }
    }
    for what in left_alone(&status, now_ms()) {
        found.warning("daemon", what, "`clawmux status` shows what its provider said last");
    }
    for refused in status.texts("prompts_refused") {
        found.warning("daemon", refused, "`clawmux usage` shows what was spent; the limits are in [budgets]");
    }
    if let Some(pid) = status["pid"].as_u64()
        && fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|exe| exe.to_string_lossy().ends_with(" (deleted)"))
    {
        let what = "the program of the running daemon was replaced on the disk";
        found.warning("daemon", what, "restart it, so that the new one runs");
    }
    Some(status)
}

/// What to do about what the daemon says of itself.
fn remedy(problem: &str) -> &'static str {
    let remedies = [
        (
            "the log of the cluster",
            "`clawmux cluster status` says more; see to the NATS servers; the daemon goes on by itself",
        ),
        (
            "the store of the cluster's node",
            "`clawmux cluster nodes` shows which differ; `clawmux cluster verify`, where the daemon is stopped, says whether \
             its store is what the log says; `clawmux cluster rebuild` begins a new log with one that is right",
        ),
        (
            "of the cluster until it is",
            "`clawmux drain --off`, or a restart, once what it was drained for is done",
        ),
        (
            "the store can't be written",
            "make room on its disk, or see to its permissions; the daemon goes on by itself",
        ),
        ("were not agreed to", "look at them with `clawmux mcp list NAME`, then `clawmux mcp approve NAME`"),
        ("MCP server ", "correct its [[mcp]] entry, or see to the server, then `clawmux mcp restart NAME`"),
        ("were not sent", "`clawmux channels NAME` says why; then `clawmux channel resend` or `drop`"),
        (
            "the bus has ",
            "`clawmux bus dlq list` says why each could not be taken; then `clawmux bus dlq replay` or `drop`",
        ),
        (
            "the bus ",
            "`clawmux bus status` says more; messages wait in their stream, answers in the outbox, until it is back",
        ),
        ("plugin ", "correct its file or its configuration, then `clawmux plugin reload NAME`"),
        (
            "the last reload",
            "correct the configuration until `clawmux check` is content, then `clawmux config reload`",
        ),
        (
            "restart the daemon",
            "`systemctl restart clawmux`, or stop it and `clawmux serve`; or set the old value again",
        ),
        (
            "memory.embeddings",
            "see to its provider: `clawmux models` tries each; or set memory.embeddings to \"off\"",
        ),
        (
            "API key",
            "put the key into the daemon's environment and restart it; `clawmux models` tries each provider",
        ),
        ("budget is at", "`clawmux usage` shows what it was spent on; the limits are in [budgets]"),
        ("limits.", "delete sessions nobody needs (`clawmux sessions`), or raise the limit"),
    ];
    let known = remedies.into_iter().find(|(words, _)| problem.contains(words));
    known.map_or(LOG, |(_, remedy)| remedy)
}

/// What the store of a daemon that does not run says of credentials.
pub(super) fn at_rest(home: &Path, config: &Config, found: &mut Findings) {
    if !config.store.path.is_file() || home::holder(home).is_some() {
        return;
    }
    // What is wrong with the store is told with it.
    let nothing = json!({});
    let asked = read_without_daemon(config, "admin.tokens", &nothing);
    if let Ok(tokens) = actix::System::new().block_on(asked) {
        locked(&tokens, found);
    }
}

/// Whether clients need a credential that nobody has.
fn locked(tokens: &Value, found: &mut Findings) {
    if tokens["locked_out"] != true {
        return;
    }
    let over = tokens.list("tokens").len();
    let what = format!(
        "clients need a credential, and none is valid: there is no shared token, and {} revoked or expired. Nobody \
         gets in over TCP",
        if over == 1 {
            "the one that was created is".to_owned()
        } else {
            format!("all {over} that were created are")
        }
    );
    let advice = "clawmux token create --name NAME --role admin makes one (it needs none itself), or set \
                  auth.token_file. It stays locked until then: a door that was closed does not open by itself";
    found.error("token", what, advice);
}

/// Credentials that end soon, devices and calls that wait.
pub(super) fn waiting(home: &Path, found: &mut Findings) {
    let Ok(mut link) = Link::open(home) else { return };
    if link.wait_for(Some(TIMEOUT)).is_err() {
        return;
    }
    let mut ask = |method: &str| link.call(method, &json!({}), |_, _| {}).unwrap_or_default();
    let (tokens, devices, approvals) = (ask("admin.tokens"), ask("admin.devices"), ask("admin.approvals"));
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("?").to_owned();
    locked(&tokens, found);
    let now_ms = now_ms();
    for token in expiring(tokens.list("tokens"), now_ms) {
        let left = span(token.number("expires_ms").saturating_sub(now_ms));
        let (id, name) = (text(token, "token"), text(token, "name"));
        let advice = format!("`clawmux token rotate {id}` gives out another while it holds");
        found.warning("token", format!("{id} of {name} expires in {left}"), advice);
    }
    for device in devices.list("pending") {
        let since = ago(device.number("requested_ms"), now_ms);
        let (id, name) = (text(device, "request"), text(device, "name"));
        let advice =
            format!("`clawmux device approve {id}` lets it in, `clawmux device reject {id}` does not");
        found.warning("device", format!("{name} waits to be paired, asked {since}"), advice);
    }
    let calls = approvals.list("approvals");
    if !calls.is_empty() {
        let what = format!("calls of tools that wait for approval: {}", calls.len());
        found.warning("daemon", what, "`clawmux approvals` lists them");
    }
}
