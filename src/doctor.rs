//! `clawmux doctor`: looks for what goes wrong in practice, and says what to do.
//!
//! It works whether a daemon runs or not, changes nothing (but for a file it writes into the home and
//! removes), and looks at one thing after the other whatever it finds. Deliberately absent, so far:
//! ports, keys, the model provider, the clock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clawmux_actors::admin::socket_path;
use clawmux_actors::store::{self, Severity};
use serde_json::{Value, json};

use crate::admin_client::{Link, Refused, home_of};
use crate::check;
use crate::cli::{Doctor, Global};
use crate::exit::{FAILED, Failure};
use crate::settings;
use crate::terminal::{json_line, say, visible};

/// A disk that takes longer than this to keep a few bytes makes every prompt wait as long.
const SYNC_SLOW: Duration = Duration::from_millis(250);

/// How long a daemon that is well takes at most to say how it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// One thing that was looked at.
struct Finding {
    /// Which part: `config`, `home`, `daemon`, `disk` or `log`.
    part: &'static str,
    severity: Severity,
    what: String,
    /// What to do; empty where there is nothing to do.
    advice: String,
}

/// Runs it.
///
/// # Errors
/// Status 1 where something is wrong; warnings are not.
pub(crate) fn run(global: &Global, options: &Doctor) -> Result<(), Failure> {
    let home = home_of(global)?;
    let mut found = Findings::default();
    let mut store_path = config(global, &mut found).unwrap_or_else(|| home.join("clawmux.db"));
    if folder(&home, &mut found) {
        if let Some(of_daemon) = daemon(&home, &mut found) {
            store_path = of_daemon;
        }
        disk(&home, &mut found);
    }
    for finding in store::inspect(&store_path, Duration::from_secs(options.within)) {
        found.0.push(Finding {
            part: "log",
            severity: finding.severity,
            what: finding.what,
            advice: finding.advice,
        });
    }
    let errors = found.0.iter().filter(|finding| finding.severity == Severity::Error).count();
    say(&if options.json { json_line(&found.to_json(errors)) } else { found.to_text() });
    match errors {
        0 => Ok(()),
        // A script has been told.
        _ if options.json => Err(Failure::new(FAILED, "")),
        1 => Err(Failure::new(FAILED, "something is wrong")),
        errors => Err(Failure::new(FAILED, format!("{errors} things are wrong"))),
    }
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

    fn fine(&mut self, part: &'static str, what: impl Into<String>) {
        self.add(part, Severity::Fine, what, "");
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

/// The configuration; gives where the log is, as far as that can be told.
fn config(global: &Global, found: &mut Findings) -> Option<PathBuf> {
    let settings = match settings::read(global, &[]) {
        Ok(settings) => settings,
        Err(failure) => {
            let advice = "mend it; `clawmux check` says the same without starting anything";
            found.add("config", Severity::Error, failure.message, advice);
            return None;
        }
    };
    let (complaints, warnings) = check::look(&settings.config, &settings.home);
    let fine = complaints.is_empty();
    for complaint in complaints {
        found.add("config", Severity::Error, complaint, "mend it; the daemon does not start with it");
    }
    for warning in settings.warnings.iter().map(ToString::to_string).chain(warnings) {
        found.add("config", Severity::Warning, warning, "");
    }
    if fine {
        let files: Vec<String> = settings.files.iter().map(|path| path.display().to_string()).collect();
        let from = if files.is_empty() { "built-in defaults".to_owned() } else { files.join(", ") };
        found.fine("config", from);
    }
    Some(settings.config.store.path)
}

/// The home; says whether it is there.
fn folder(home: &Path, found: &mut Findings) -> bool {
    let name = home.display();
    let meta = match fs::metadata(home) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            found.fine("home", format!("{name} is not there yet: `clawmux serve` makes it"));
            return false;
        }
        Err(error) => {
            let advice = "see to the permissions of the folders above it";
            found.add("home", Severity::Error, format!("can't look at {name}: {error}"), advice);
            return false;
        }
    };
    if !meta.is_dir() {
        let advice = "move it away, or name another home with --home or CLAWMUX_HOME";
        found.add("home", Severity::Error, format!("{name} is not a folder"), advice);
        return false;
    }
    let us = fs::metadata("/proc/self").map(|own| own.uid()).ok();
    match us {
        Some(us) if us != meta.uid() => {
            let severity = if us == 0 { Severity::Warning } else { Severity::Error };
            let what = format!("{name} belongs to user {}, this is user {us}", meta.uid());
            found.add("home", severity, what, "run clawmux as the user who owns its home");
        }
        _ if meta.mode() & 0o022 != 0 => {
            let what =
                format!("others than its owner may write into {name} (mode {:o})", meta.mode() & 0o777);
            found.add("home", Severity::Error, what, format!("chmod 700 {name}"));
        }
        _ if meta.mode() & 0o077 != 0 => {
            let what = format!("others than its owner may look into {name} (mode {:o})", meta.mode() & 0o777);
            found.add("home", Severity::Warning, what, format!("chmod 700 {name}"));
        }
        _ => found.fine("home", format!("{name}, for its owner only")),
    }
    true
}

/// The daemon and its socket; gives where its log is.
fn daemon(home: &Path, found: &mut Findings) -> Option<PathBuf> {
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
            match (holder(home), fs::symlink_metadata(&socket).is_ok()) {
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
        let advice = "restart it, or `clawmux drain --off`";
        found.add("daemon", Severity::Warning, format!("{who}; it drains: new prompts are refused"), advice);
    } else {
        found.fine("daemon", who);
    }
    status["store"].as_str().map(PathBuf::from)
}

/// Who holds the home, by its lock.
fn holder(home: &Path) -> Option<String> {
    let path = home.join(".xeno").join("gateway.lock");
    let lock = File::open(&path).ok()?;
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let pid: String =
                fs::read_to_string(&path).ok()?.chars().filter(char::is_ascii_digit).take(10).collect();
            Some(if pid.is_empty() { "unknown process".into() } else { format!("process {pid}") })
        }
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

/// Whether the home's disk takes and keeps a few bytes, and how fast.
fn disk(home: &Path, found: &mut Findings) {
    let path = home.join(format!(".doctor-{}", std::process::id()));
    let begun = Instant::now();
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(|mut file| {
            file.write_all(&[0; 4096])?;
            file.sync_all()
        });
    let took = begun.elapsed();
    let _ = fs::remove_file(&path);
    match written {
        Err(error) => {
            let advice = "make room, remount it writable, or see to the permissions; without it new work is refused";
            found.add("disk", Severity::Error, format!("can't write into {}: {error}", home.display()), advice);
        }
        Ok(()) if took > SYNC_SLOW => found.add(
            "disk",
            Severity::Warning,
            format!("it took {} ms to keep 4 KiB in {}", took.as_millis(), home.display()),
            "every prompt waits as long before it is acknowledged: put the home on a faster disk, or see what else uses it",
        ),
        Ok(()) => found.fine("disk", format!("it keeps 4 KiB in {} ms", took.as_millis())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_what_to_do() {
        let mut found = Findings::default();
        found.fine("config", "built-in defaults");
        found.add("home", Severity::Error, "two\nlines\u{1b}[2J", "do this");
        assert_eq!(
            found.to_text(),
            "ok       config  built-in defaults\nerror    home    two\n                 lines\\u{1b}[2J\n                 -> do this"
        );
        assert_eq!(found.to_json(1)["findings"][1]["state"], "error");
    }

    #[test]
    fn a_home_that_others_write_into_is_wrong() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        for (mode, severity) in
            [(0o700, Severity::Fine), (0o755, Severity::Warning), (0o770, Severity::Error)]
        {
            fs::set_permissions(home.path(), fs::Permissions::from_mode(mode)).unwrap();
            let mut found = Findings::default();
            assert!(folder(home.path(), &mut found));
            assert_eq!(found.0[0].severity, severity, "{mode:o}: {}", found.0[0].what);
        }
        let mut found = Findings::default();
        disk(home.path(), &mut found);
        assert_ne!(found.0[0].severity, Severity::Error, "{}", found.0[0].what);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left");
        disk(&home.path().join("away"), &mut found);
        assert_eq!(found.0[1].severity, Severity::Error, "{}", found.0[1].what);
    }
}
