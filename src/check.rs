//! `clawmux check`: everything that is wrong with the configuration, found without starting the daemon or
//! changing anything.

use std::path::PathBuf;

use clawmux_actors::configuration::Layers;
use clawmux_core::config::{self, Cluster, Complaint, Config, Durability, Examined, Origin, url_of_variable};
use clawmux_core::provider::model::ModelRef;
use serde_json::{Value, json};

use crate::cli::Global;
use crate::exit::{CONFIG, Failure};
use crate::preflight::{attempt, look};
use crate::settings;
use crate::terminal::{json_line, say, tell};

/// Runs the command.
///
/// # Errors
/// Status 64 with every complaint.
pub(crate) fn run(global: &Global) -> Result<(), Failure> {
    if global.json {
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

/// The configuration, and what is wrong with it.
struct Checked {
    layers: Layers,
    files: Vec<PathBuf>,
    found: Examined,
}

/// Reads the files and checks everything they refer to, whatever else is wrong.
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

fn summary(layers: &Layers, files: &[PathBuf], config: &Config) -> String {
    let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let from = if files.is_empty() { "built-in defaults".to_owned() } else { files.join(", ") };
    let mut lines = vec![format!("ok: {from}")];
    let listen: Vec<String> = config.gateway.listen.iter().map(ToString::to_string).collect();
    lines.push(format!("home    {}", layers.home.display()));
    lines.push(format!("listen  {}", listen.join(", ")));
    for agent in config.agents.values() {
        let shown = |model: &ModelRef| match model.model.as_str() {
            "" => format!("the first model that {} lists", model.provider),
            _ => model.to_string(),
        };
        let models: Vec<String> = agent.models.iter().map(shown).collect();
        lines.push(format!("agent   {}: {}", agent.id, models.join(", then ")));
    }
    if let Some(cluster) = &config.cluster {
        lines.push(format!("cluster {}", described(cluster)));
    }
    for (name, provider) in &config.providers {
        let variable = provider.kind.preset().url_variable;
        let said = layers.env.iter().find(|(known, _)| known == variable);
        let url = said.and_then(|(_, said)| url_of_variable(provider.kind, said));
        if url.is_some_and(|url| url == provider.base_url) {
            lines.push(format!("asks    {name} at {}, as {variable} says", provider.base_url));
        }
    }
    lines.join("\n")
}

/// Such as `clawmux, as node n1: 3 replicas on nats://n1:4222, nats://n2:4222; acknowledged once synced`.
fn described(cluster: &Cluster) -> String {
    let replicas = match cluster.replicas {
        1 => "1 replica".to_owned(),
        count => format!("{count} replicas"),
    };
    let durability = match cluster.durability {
        Durability::Required => {
            format!("acknowledged once synced, which is asked of {}", cluster.monitor.join(", "))
        }
        Durability::Unchecked => "whether that syncs is not looked at".to_owned(),
    };
    let (name, node, servers) = (&cluster.name, &cluster.node, cluster.servers.join(", "));
    format!("{name}, as node {node}: {replicas} on {servers}; {durability}")
}
