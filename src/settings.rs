//! Says where the configuration is (files, environment, command line) and has it put together.

use std::path::PathBuf;
use std::sync::Arc;

use clawmux_actors::configuration::Layers;
use clawmux_actors::host::activation::Passed;
use clawmux_core::config::{self, Complaint, Config};

use crate::cli::Global;
use crate::exit::{CONFIG, Failure};
use crate::{home, preflight};

/// The file for all users of a machine.
const SYSTEM_FILE: &str = "/etc/clawmux/gateway.toml";

/// All that a command knows of the daemon it is or looks for.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The home.
    pub(crate) home: PathBuf,
    /// The configuration.
    pub(crate) config: Config,
    /// What people should be told of it.
    pub(crate) warnings: Vec<Complaint>,
    /// The files it was read from, the weakest first.
    pub(crate) files: Vec<PathBuf>,
    /// What it was made of.
    pub(crate) layers: Layers,
    /// Where the operator's socket goes instead of the home.
    pub(crate) socket: Option<PathBuf>,
    /// Sockets that were bound before the daemon began; they win.
    pub(crate) passed: Arc<Passed>,
    /// The home where xeno's clients look by themselves.
    pub(crate) xeno_home: Option<PathBuf>,
}

/// Reads them. `listen` is of the command line and wins.
///
/// # Errors
/// Status 64 with every complaint, one a line.
pub(crate) fn read(global: &Global, listen: &[String]) -> Result<Settings, Failure> {
    let layers = layers(global, listen)?;
    let home = layers.home.clone();
    let files = layers.files().map_err(|why| Failure::new(CONFIG, why))?;
    let loaded = layers.with(&files, config::load).map_err(|complaints| {
        let lines: Vec<String> = complaints.iter().map(Complaint::to_string).collect();
        Failure::new(CONFIG, lines.join("\n"))
    })?;
    let files = files.into_iter().map(|(path, _)| path).collect();
    let (config, warnings) = (loaded.config, loaded.warnings);
    let (socket, passed, xeno_home) = (None, Arc::default(), None);
    Ok(Settings { home, config, warnings, files, layers, socket, passed, xeno_home })
}

/// What a configuration is made of, whatever that says.
///
/// # Errors
/// Where nothing says where the home is.
pub(crate) fn layers(global: &Global, listen: &[String]) -> Result<Layers, Failure> {
    let env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let variable = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let home = home::resolve(global.home.as_deref(), variable)?;
    // An empty variable names no file.
    let named = global.config.clone().filter(|path| !path.as_os_str().is_empty());
    Ok(Layers {
        system: SYSTEM_FILE.into(),
        is_named: named.is_some(),
        file: named.unwrap_or_else(|| home.join("gateway.toml")),
        home: home.clone(),
        env,
        listen: listen.to_vec(),
        look: Some(|config, home| preflight::look(config, home).0),
    })
}
