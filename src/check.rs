//! `clawmux check`: everything that can be said about the configuration without starting.

use std::path::Path;

use clawmux_actors::sandbox::source;
use clawmux_core::config::{Complaint, Config, Origin};
use serde_json::{Value, json};

use crate::cli::{Check, Global};
use crate::exit::{CONFIG, Failure};
use crate::logging;
use crate::settings::{self, Settings, Unusable};
use crate::terminal::{json_line, say, tell};

/// Runs it.
///
/// # Errors
/// Status 64 with every complaint.
pub(crate) fn run(global: &Global, options: &Check) -> Result<(), Failure> {
    if options.json {
        return tell_json(global);
    }
    let settings = settings::read(global, &[])?;
    let (complaints, warnings) = look(&settings.config, &settings.home);
    for warning in settings.warnings.iter().map(ToString::to_string).chain(warnings) {
        tell(&format!("warning: {warning}"));
    }
    if !complaints.is_empty() {
        return Err(Failure::new(CONFIG, complaints.join("\n")));
    }
    say(&summary(&settings));
    Ok(())
}

/// As one object: `{"ok", "files", "complaints": [{"file", "line", "key", "message"}], "warnings"}`. What is
/// not in a file has the variable or the option as its `source`.
fn tell_json(global: &Global) -> Result<(), Failure> {
    let mut files = Vec::new();
    let (complaints, warnings) = match settings::load(global, &[]) {
        Ok(settings) => {
            files.extend(settings.files.iter().map(|path| path.display().to_string()));
            let (complaints, warnings) = look(&settings.config, &settings.home);
            let known = settings.warnings.iter().map(entry).chain(warnings.iter().map(|text| unplaced(text)));
            (complaints.iter().map(|text| unplaced(text)).collect(), known.collect())
        }
        Err(Unusable::Complaints(complaints)) => (complaints.iter().map(entry).collect(), Vec::new()),
        Err(Unusable::Failure(failure)) if failure.status == CONFIG => {
            (vec![unplaced(&failure.message)], Vec::new())
        }
        Err(Unusable::Failure(failure)) => return Err(failure),
    };
    let (complaints, warnings): (Vec<Value>, Vec<Value>) = (complaints, warnings);
    let ok = complaints.is_empty();
    say(&json_line(&json!({ "ok": ok, "files": files, "complaints": complaints, "warnings": warnings })));
    // A script has been told.
    if ok { Ok(()) } else { Err(Failure::new(CONFIG, "")) }
}

fn entry(complaint: &Complaint) -> Value {
    let (key, message) = complaint.split();
    let (file, line, source) = match &complaint.at {
        Origin::File { name, line, .. } => (Some(name), Some(line), None),
        Origin::Env(name) | Origin::Flag(name) => (None, None, Some(name)),
        Origin::Default => (None, None, None),
    };
    let key = Some(key).filter(|key| !key.is_empty());
    json!({
        "file": file.map(|name| &**name),
        "line": line,
        "source": source.map(|name| &**name),
        "key": key,
        "message": message,
    })
}

/// One that only the file system knows of.
fn unplaced(text: &str) -> Value {
    entry(&Complaint { at: Origin::Default, message: text.to_owned() })
}

/// What only the file system knows, with what is in the files: first complaints, then warnings.
pub(crate) fn look(config: &Config, home: &Path) -> (Vec<String>, Vec<String>) {
    let (mut complaints, mut warnings) = (Vec::new(), Vec::new());
    if let Err(failure) = logging::check(&config.log) {
        complaints.push(failure.message);
    }
    for (name, provider) in &config.providers {
        if let Some(path) = provider.ca_file.as_ref().filter(|path| !path.is_file()) {
            complaints.push(format!("providers.{name}.ca_file: {} is not there", path.display()));
        }
    }
    complaints.extend(source::check(&config.plugins, home).into_iter().map(|error| error.message));
    for agent in config.agents.values() {
        if agent.soul.exists() && !agent.soul.is_file() {
            complaints.push(format!("agents.{}.soul: {} is not a file", agent.id, agent.soul.display()));
            continue;
        }
        // Nobody has to have a SOUL.md; who names another file means one.
        if !agent.soul.is_file() && !agent.soul.ends_with("SOUL.md") {
            warnings.push(format!("agents.{}.soul: {} is not there", agent.id, agent.soul.display()));
        }
    }
    (complaints, warnings)
}

fn summary(settings: &Settings) -> String {
    let files: Vec<String> = settings.files.iter().map(|path| path.display().to_string()).collect();
    let from = if files.is_empty() { "built-in defaults".to_owned() } else { files.join(", ") };
    let config = &settings.config;
    let mut lines = vec![format!("ok: {from}")];
    let listen: Vec<String> = config.gateway.listen.iter().map(ToString::to_string).collect();
    lines.push(format!("home    {}", settings.home.display()));
    lines.push(format!("listen  {}", listen.join(", ")));
    for agent in config.agents.values() {
        let models: Vec<String> =
            agent.models.iter().map(|model| format!("{}/{}", model.provider, model.model)).collect();
        lines.push(format!("agent   {}: {}", agent.id, models.join(", then ")));
    }
    lines.join("\n")
}
