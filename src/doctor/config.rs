//! The configuration, and variables of the environment that look like it.

use std::path::PathBuf;

use clawmux_core::config::Config;

use super::Findings;
use crate::cli::Global;
use crate::preflight;
use crate::settings::{self, Settings};

/// Variables clawmux looks at by itself; the configuration may name others.
const VARIABLES: [&str; 4] = ["CLAWMUX_HOME", "CLAWMUX_CONFIG", "CLAWMUX_TOKEN", "CLAWMUX_JWT_SECRET"];

/// The configuration, as far as it can be read, and whether nothing is wrong with it.
pub(super) fn read(global: &Global, found: &mut Findings) -> Option<(Settings, bool)> {
    let settings = match settings::read(global, &[]) {
        Ok(settings) => settings,
        Err(failure) => {
            let advice = "correct it; `clawmux check` says the same without starting anything";
            found.error("config", failure.message, advice);
            return None;
        }
    };
    let (complaints, warnings) = preflight::look(&settings.config, &settings.home);
    let fine = complaints.is_empty();
    for complaint in complaints {
        found.error(
            "config",
            complaint,
            "correct it: the daemon does not start with it, or ignores it, and does not reload it",
        );
    }
    for warning in settings.warnings.iter().map(ToString::to_string).chain(warnings) {
        found.warning("config", warning, "");
    }
    if fine {
        let files: Vec<String> = settings.files.iter().map(|path| path.display().to_string()).collect();
        let from = if files.is_empty() { "built-in defaults".to_owned() } else { files.join(", ") };
        found.fine("config", from);
    }
    Some((settings, fine))
}

/// What clients of xeno ask for and is off until its key is set.
pub(super) fn xeno(config: &Config, found: &mut Findings) {
    let off = [
        ("/hb (set scheduler.heartbeat_minutes)", config.scheduler.heartbeat.is_none()),
        ("/new (set scheduler.new_session_cron)", config.scheduler.new_session_cron.is_none()),
        (
            "files of this machine in prompts (set files.attachment_roots)",
            config.files.attachment_roots.is_empty(),
        ),
    ];
    let off: Vec<&str> = off.into_iter().filter(|(_, is_off)| *is_off).map(|(what, _)| what).collect();
    if off.is_empty() {
        found.fine("xeno", "/hb, /new and files of this machine in prompts are enabled");
    } else {
        found.fine("xeno", format!("not enabled for xeno's clients: {}", off.join(", ")));
    }
}

/// Variables that somebody may believe to be looked at.
pub(super) fn environment(names: &[String], files: &[(PathBuf, String)], found: &mut Findings) {
    let is_named = |name: &str| files.iter().any(|(_, text)| text.contains(name));
    for name in names.iter().filter(|name| name.starts_with("CLAWMUX_") && !name.starts_with("CLAWMUX__")) {
        if !VARIABLES.contains(&name.as_str()) && !is_named(name) {
            found.warning(
                "config",
                format!("nothing looks at the variable {name}"),
                format!("keys of the configuration are set as CLAWMUX__SECTION__KEY; or remove {name}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xeno_s_clients_miss_is_told_with_its_key() {
        let mut config = Config::default();
        let mut found = Findings::default();
        xeno(&config, &mut found);
        for key in ["scheduler.heartbeat_minutes", "scheduler.new_session_cron", "files.attachment_roots"] {
            assert!(found.0[0].what.contains(key), "{}", found.0[0].what);
        }
        config.files.attachment_roots.push("/home/ada".into());
        xeno(&config, &mut found);
        assert!(!found.0[1].what.contains("files.attachment_roots"), "{}", found.0[1].what);
    }

    #[test]
    fn variables_that_nothing_looks_at_are_told() {
        let names = ["CLAWMUX_HOME", "CLAWMUX_PORT", "CLAWMUX_MINE", "CLAWMUX__LOG__FILTER", "PATH"];
        let files = [(PathBuf::new(), "token_env = \"CLAWMUX_MINE\"".to_owned())];
        let mut found = Findings::default();
        environment(&names.map(str::to_owned), &files, &mut found);
        assert_eq!(found.0.len(), 1);
        assert!(found.0[0].what.contains("CLAWMUX_PORT"), "{}", found.0[0].what);
    }
}
