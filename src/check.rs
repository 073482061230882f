//! `clawmux check`: everything that can be said about the configuration without starting.

use std::path::Path;

use clawmux_actors::sandbox::source;
use clawmux_core::config::Config;

use crate::cli::Global;
use crate::exit::{CONFIG, Failure};
use crate::logging;
use crate::settings::{self, Settings};
use crate::terminal::{say, tell};

/// Runs it.
///
/// # Errors
/// Status 64 with every complaint.
pub(crate) fn run(global: &Global) -> Result<(), Failure> {
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
