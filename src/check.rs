//! `clawmux check`: everything that can be said about the configuration without starting; what a start
//! would try is tried, as far as that changes nothing.

use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use clawmux_actors::bound::socket_path;
use clawmux_actors::configuration::Layers;
use clawmux_actors::group::Group;
use clawmux_actors::plugin;
use clawmux_actors::sandbox::cache::Cache;
use clawmux_actors::sandbox::compiler::Compiler;
use clawmux_actors::sandbox::source;
use clawmux_core::config::{self, Complaint, Config, Examined, Origin, url_variable};
use serde_json::{Value, json};

use crate::cli::{Check, Global};
use crate::exit::{CONFIG, Failure};
use crate::home;
use crate::logging;
use crate::settings;
use crate::terminal::{json_line, say, tell};

/// Runs it.
///
/// # Errors
/// Status 64 with every complaint.
pub(crate) fn run(global: &Global, options: &Check) -> Result<(), Failure> {
    if options.json {
        return tell_json(global);
    }
    let Checked { layers, files, found } = examine(global)?;
    let line = |complaint: &Complaint| match complaint.at {
        Origin::Default => complaint.message.clone(),
        _ => complaint.to_string(),
    };
    for warning in &found.warnings {
        tell(&format!("warning: {}", line(warning)));
    }
    match &found.config {
        Some(config) if found.complaints.is_empty() => {
            say(&summary(&layers, &files, config));
            Ok(())
        }
        _ => Err(Failure::new(CONFIG, found.complaints.iter().map(line).collect::<Vec<_>>().join("\n"))),
    }
}

/// As one object: `{"ok", "files", "complaints": [{"file", "line", "key", "message"}], "warnings"}`. What is
/// not in a file has the variable or the option as its `source`.
fn tell_json(global: &Global) -> Result<(), Failure> {
    let (files, complaints, warnings) = match examine(global) {
        Ok(Checked { files, found, .. }) => (files, found.complaints, found.warnings),
        Err(failure) if failure.status == CONFIG => {
            (Vec::new(), vec![Complaint { at: Origin::Default, message: failure.message }], Vec::new())
        }
        Err(failure) => return Err(failure),
    };
    let entries = |complaints: &[Complaint]| complaints.iter().map(entry).collect::<Vec<_>>();
    let ok = complaints.is_empty();
    let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let (complaints, warnings) = (entries(&complaints), entries(&warnings));
    say(&json_line(&json!({ "ok": ok, "files": files, "complaints": complaints, "warnings": warnings })));
    // A script has been told.
    if ok { Ok(()) } else { Err(Failure::new(CONFIG, "")) }
}

/// Everything that was found out.
struct Checked {
    layers: Layers,
    files: Vec<PathBuf>,
    found: Examined,
}

/// Reads the files and looks at what they speak of, all of it whatever is wrong.
///
/// # Errors
/// Where a file can't be read, or nothing says where the home is.
fn examine(global: &Global) -> Result<Checked, Failure> {
    let layers = settings::layers(global, &[])?;
    let files = layers.files().map_err(|why| Failure::new(CONFIG, why))?;
    let mut found = layers.with(&files, config::examine);
    if let Some(config) = found.config.take() {
        let (complaints, warnings) = look(&config, &layers.home);
        found.complain(complaints);
        found.complain(attempt(&config, &layers.home));
        let placed: Vec<Complaint> = warnings.into_iter().map(|warning| found.placed(warning)).collect();
        found.warnings.extend(placed);
        found.config = Some(config);
    }
    Ok(Checked { layers, files: files.into_iter().map(|(path, _)| path).collect(), found })
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

/// What a start would come to grief over besides, tried as far as that changes nothing: whether the home
/// can be written to, the operator's socket can be made, and each plugin can be compiled and says what it
/// is. Takes as long as compiling them.
pub(crate) fn attempt(config: &Config, home: &Path) -> Vec<String> {
    let mut complaints: Vec<String> = home::usable(home).err().into_iter().collect();
    complaints.extend(socket(config, home));
    complaints.extend(plugins(config, home));
    complaints
}

/// Why the operator's socket can't be made.
fn socket(config: &Config, home: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    if let Some(Err(error)) = config.gateway.socket_group.as_deref().map(Group::named) {
        complaints.push(error.message);
    }
    let path = socket_path(home);
    if let Err(error) = SocketAddr::from_pathname(&path) {
        complaints.push(format!("the socket {} can't be made: {error}", path.display()));
    }
    if let Some(folder) = path.parent().filter(|folder| folder.exists()) {
        complaints.extend(home::usable(folder).err());
    }
    complaints
}

/// Why plugins can't be loaded that can be read.
pub(crate) fn plugins(config: &Config, home: &Path) -> Vec<String> {
    let cache = Cache::temporary().compiled_by(Compiler::child());
    plugin::attempt(&config.plugins, home, &cache).into_iter().map(|error| error.message).collect()
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

fn summary(layers: &Layers, files: &[PathBuf], config: &Config) -> String {
    let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let from = if files.is_empty() { "built-in defaults".to_owned() } else { files.join(", ") };
    let mut lines = vec![format!("ok: {from}")];
    let listen: Vec<String> = config.gateway.listen.iter().map(ToString::to_string).collect();
    lines.push(format!("home    {}", layers.home.display()));
    lines.push(format!("listen  {}", listen.join(", ")));
    for agent in config.agents.values() {
        let models: Vec<String> = agent.models.iter().map(ToString::to_string).collect();
        lines.push(format!("agent   {}: {}", agent.id, models.join(", then ")));
    }
    for (name, provider) in &config.providers {
        let variable = url_variable(provider.kind);
        let said = layers.env.iter().find(|(known, _)| known == variable);
        if said.is_some_and(|(_, url)| url.trim().trim_end_matches('/') == provider.base_url) {
            lines.push(format!("asks    {name} at {}, as {variable} says", provider.base_url));
        }
    }
    lines.join("\n")
}
