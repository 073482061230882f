//! `clawmux doctor`: looks for what goes wrong in practice, and says what to do.
//!
//! It works whether a daemon runs or not, changes nothing (but for a file it writes into the home and
//! removes), and looks at one thing after the other whatever it finds. Every look has a deadline: what
//! is stuck, such as a folder on a server that is away, is a finding. No secret is told.
//!
//! | file | looks at |
//! |---|---|
//! | `audit` | the record of tool calls, where that is asked for |
//! | `cluster` | the cluster, where no daemon says how it is |
//! | `config` | the configuration, and variables that look like it |
//! | `home` | the home, its permissions, its secrets, its disk |
//! | `plugins` | whether each plugin can be loaded, and what is kept of them compiled |
//! | `daemon` | the daemon that runs, and what waits for its operator |
//! | `ports` | the addresses to listen on |
//! | `system` | limits of the operating system, and whether the clock went back |
//! | `upstream` | keys and providers, and the clock against theirs |

mod audit;
mod cluster;
mod config;
mod daemon;
mod home;
mod plugins;
mod ports;
mod system;
mod upstream;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clawmux_actors::host::socket_owner;
use clawmux_actors::sandbox::compiler::Bounds;
use clawmux_actors::store::membership::held_beside;
use clawmux_actors::store::{self, Severity};
use clawmux_core::cluster::base::Held;
use serde_json::{Value, json};

use crate::admin_client::home_of;
use crate::cli::{Doctor, Global};
use crate::exit::{FAILED, Failure};
use crate::settings::Settings;
use crate::terminal::{json_line, say, visible};

/// How long a look may take that reads files and asks the daemon.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long reading the record of tool calls may take.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Where it is said why something goes wrong with the daemon.
const LOG: &str =
    "its log says why: journalctl -u clawmux where systemd runs it, else what it wrote to its terminal";

/// The result of one check.
struct Finding {
    /// Which part, such as `config` or `disk`.
    part: &'static str,
    severity: Severity,
    what: String,
    /// What to do; empty where there is nothing to do.
    advice: String,
}

/// Runs the command.
///
/// # Errors
/// Status 1 if something is wrong; warnings are not.
pub(crate) fn run(global: &Global, options: &Doctor) -> Result<(), Failure> {
    let home = home_of(global)?;
    let mut found = Findings::default();
    look(&home, global, options, &mut found);
    let errors = found.count(Severity::Error);
    say(&if global.json { json_line(&found.to_json(errors)) } else { found.to_text() });
    match errors {
        0 => Ok(()),
        // A script has been told.
        _ if global.json => Err(Failure::new(FAILED, "")),
        _ => Err(Failure::new(FAILED, found.total())),
    }
}

/// Runs all checks.
fn look(home: &Path, global: &Global, options: &Doctor, found: &mut Findings) {
    let global = global.clone();
    if options.audit {
        let home = home.to_owned();
        found.within(AUDIT_TIMEOUT, "audit", move |found| {
            // What else is wrong with the configuration is another look's.
            let settings = config::read(&global, &mut Findings::default());
            let store = settings.map(|(settings, _)| settings.config.store.path);
            audit::look(&store.unwrap_or_else(|| home.join("clawmux.db")), found);
        });
        return;
    }
    let settings = found.within(TIMEOUT, "config", move |found| {
        let settings = config::read(&global, found);
        let files =
            settings.as_ref().and_then(|(settings, _)| settings.layers.files().ok()).unwrap_or_default();
        let names: Vec<String> =
            std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        config::environment(&names, &files, found);
        (settings, files)
    });
    let (settings, files) = settings.unwrap_or_default();
    let (settings, is_fine) = settings.map_or((None, false), |(settings, is_fine)| (Some(settings), is_fine));
    let known = settings.as_ref().map(|Settings { config, .. }| config.clone());
    let (folder, of_home) = (home.to_owned(), known.clone());
    let owner = found.within(TIMEOUT, "home", move |found| {
        let owner = home::folder(&folder, found);
        if owner == HomeOwner::Us {
            let has_group = of_home.as_ref().is_some_and(|config| config.gateway.socket_group.is_some());
            home::socket(&folder, has_group, found);
            home::secrets(&folder, &files, found);
        }
        if let Some(config) = &of_home {
            home::heartbeat(&folder, config, found);
        }
        owner
    });
    let owner = owner.unwrap_or(HomeOwner::Missing);
    if let Some(config) = known.clone() {
        let folder = home.to_owned();
        // One after the other, and as many as may be.
        let patience = TIMEOUT + Bounds::default().time * u32::try_from(config.plugins.len()).unwrap_or(1);
        found.within(patience, "plugin", move |found| plugins::look(&config, &folder, is_fine, found));
    }
    let mut status = Value::Null;
    if owner != HomeOwner::Missing {
        let (folder, of_store) = (home.to_owned(), known.clone());
        let answer = found.within(TIMEOUT, "daemon", move |found| {
            let status = daemon::look(&folder, found);
            match (&status, &of_store) {
                (Some(_), _) => daemon::waiting(&folder, found),
                (None, Some(config)) => daemon::at_rest(&folder, config, found),
                (None, None) => {}
            }
            status
        });
        status = answer.flatten().unwrap_or_default();
    }
    let is_held = crate::home::holder(home).is_some();
    let listens = status["listen"].as_array().cloned();
    let configured = known.as_ref().map(|config| config.gateway.listen.clone()).unwrap_or_default();
    found.within(TIMEOUT, "port", move |found| match listens {
        Some(listens) => {
            let parsed = listens.iter().filter_map(|address| address.as_str()?.parse().ok());
            let parsed: Vec<SocketAddr> = parsed.collect();
            ports::answering(&parsed, found);
            ports::neighbours(socket_owner::means(), &parsed, found);
        }
        None if is_held => {}
        None => {
            ports::free(&configured, found);
            ports::neighbours(socket_owner::means(), &configured, found);
        }
    });
    let process = status["pid"].as_u64().map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let of_config = known.as_ref().map(|config| config.store.path.clone());
    let store = status["store"].as_str().map(PathBuf::from).or(of_config);
    let store = store.unwrap_or_else(|| home.join("clawmux.db"));
    let (folder, log) = (home.to_owned(), store.clone());
    found.within(TIMEOUT, "disk", move |found| {
        if owner == HomeOwner::Us {
            home::disk(&folder, found);
        }
        system::limits(&process, found);
        system::clock(&log, found);
    });
    if let Some(of_cluster) = known.as_ref().and_then(|config| config.cluster.clone())
        && status.is_null()
        && !options.offline
    {
        let is_ours = owner != HomeOwner::Other;
        let store = store.clone();
        found.within(cluster::PATIENCE, "cluster", move |found| {
            cluster::look(&of_cluster, is_ours.then_some(store.as_path()), is_held, found);
        });
    }
    let has_cluster = known.as_ref().is_some_and(|config| config.cluster.is_some());
    if let Some(config) = known {
        config::xeno(&config, found);
        upstream::keys(&config, found);
        if !options.offline {
            found.within(upstream::patience(&config), "model", move |found| upstream::ask(&config, found));
        }
    }
    if owner == HomeOwner::Other {
        let what = format!("{} was not looked into: it is the daemon's user's", store.display());
        found.warning("store", what, "run clawmux doctor as that user, or as root");
        return;
    }
    let within = Duration::from_secs(options.within);
    found.within(within.saturating_add(TIMEOUT), "store", move |found| {
        // One that never was the cluster's is in no log.
        let is_in_log = has_cluster && !matches!(held_beside(&store), Ok(Held::Own(_)));
        let look = if is_in_log { store::inspect_in_cluster } else { store::inspect };
        for store::Finding { severity, what, advice } in look(&store, within) {
            found.add("store", severity, what, advice);
        }
    });
}

/// Whose the home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HomeOwner {
    /// There is none yet, or it can't be looked at.
    Missing,
    /// Of the user who looks, or root looks.
    Us,
    /// Another user's, so what this one may and may not do says nothing of the daemon.
    Other,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        part: &'static str,
        severity: Severity,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.0.push(Finding { part, severity, what: what.into(), advice: advice.into() });
    }

    /// Runs a check on a thread of its own, for this long at most.
    fn within<T: Send + 'static>(
        &mut self,
        patience: Duration,
        part: &'static str,
        look: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> Option<T> {
        let (done, looked) = mpsc::channel();
        // It is left behind where it is stuck, and ends with the process.
        let begun = thread::Builder::new().name(format!("doctor-{part}")).spawn(move || {
            let mut found = Self::default();
            let answer = look(&mut found);
            let _ = done.send((found, answer));
        });
        match begun.map(|_| looked.recv_timeout(patience)) {
            Ok(Ok((found, answer))) => {
                self.0.extend(found.0);
                Some(answer)
            }
            Ok(Err(mpsc::RecvTimeoutError::Disconnected)) => {
                self.error(part, "looking at it failed", "please report this");
                None
            }
            _ => {
                let what = format!("looking at it did not end within {} s", patience.as_secs());
                let advice = "see whether a disk or a file system it is on hangs";
                self.error(part, what, advice);
                None
            }
        }
    }

    fn error(&mut self, part: &'static str, what: impl Into<String>, advice: impl Into<String>) {
        self.add(part, Severity::Error, what, advice);
    }

    fn warning(&mut self, part: &'static str, what: impl Into<String>, advice: impl Into<String>) {
        self.add(part, Severity::Warning, what, advice);
    }

    fn fine(&mut self, part: &'static str, what: impl Into<String>) {
        self.add(part, Severity::Fine, what, "");
    }

    fn count(&self, severity: Severity) -> usize {
        self.0.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Such as `1 error, 2 warnings`.
    fn total(&self) -> String {
        let of = |severity, name: &str| match self.count(severity) {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        format!("{}, {}", of(Severity::Error, "error"), of(Severity::Warning, "warning"))
    }

    fn to_json(&self, errors: usize) -> Value {
        let findings: Vec<Value> = self
            .0
            .iter()
            .map(|finding| {
                json!({
                    "part": finding.part,
                    "state": word(finding.severity),
                    "what": finding.what,
                    "advice": finding.advice,
                })
            })
            .collect();
        json!({ "ok": errors == 0, "findings": findings })
    }

    fn to_text(&self) -> String {
        let mut lines = Vec::new();
        for finding in &self.0 {
            let head = format!("{:<8} {:<7} ", word(finding.severity), finding.part);
            let below = format!("\n{:17}", "");
            lines.push(format!("{head}{}", visible(&finding.what).replace('\n', &below)));
            if !finding.advice.is_empty() {
                lines.push(format!("{:17}-> {}", "", visible(&finding.advice).replace('\n', &below)));
            }
        }
        lines.join("\n")
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "ok",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_what_to_do() {
        let mut found = Findings::default();
        found.fine("config", "built-in defaults");
        found.error("home", "two\nlines\u{1b}[2J", "do this");
        assert_eq!(
            found.to_text(),
            "ok       config  built-in defaults\nerror    home    two\n                 lines\\u{1b}[2J\n                 -> do this"
        );
        assert_eq!(found.to_json(1)["findings"][1]["state"], "error");
        assert_eq!(found.total(), "1 error, 0 warnings");
    }

    #[test]
    fn what_is_stuck_is_a_finding() {
        let mut found = Findings::default();
        let (_held, wait) = mpsc::channel::<()>();
        let stuck = found.within(Duration::from_millis(20), "disk", move |_| wait.recv());
        assert!(stuck.is_none());
        assert!(found.0[0].severity == Severity::Error && found.0[0].what.contains("did not end"));
        assert_eq!(found.within(TIMEOUT, "disk", |found| found.fine("disk", "well")), Some(()));
        assert_eq!(found.0[1].what, "well");
    }
}
