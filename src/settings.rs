//! Reads what the configuration is made of (files, environment, secrets) and has the core put it
//! together.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use clawmux_core::config::{self, Complaint, Config, Flag, Sources};

use crate::cli::Global;
use crate::exit::{CONFIG, Failure};
use crate::home;

/// The file for all users of a machine.
const SYSTEM_FILE: &str = "/etc/clawmux/gateway.toml";
/// The most bytes of a configuration file or a secret.
const BYTES_MAX: u64 = 1 << 20;

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
    /// Where the operator's socket goes instead of the home.
    pub(crate) socket: Option<PathBuf>,
}

/// Reads them. `listen` is of the command line and wins.
///
/// # Errors
/// Status 64 with every complaint, one a line.
pub(crate) fn read(global: &Global, listen: &[String]) -> Result<Settings, Failure> {
    let env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let variable = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let home = home::resolve(global.home.as_deref(), variable)?;
    let mut layers = Vec::new();
    layers.extend(optional(Path::new(SYSTEM_FILE))?);
    // An empty variable names no file.
    match global.config.as_ref().filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => layers.push((path.clone(), text(path).map_err(|why| unreadable(path, &why))?)),
        None => layers.extend(optional(&home.join("gateway.toml"))?),
    }
    let names: Vec<String> = layers.iter().map(|(path, _)| path.display().to_string()).collect();
    let files: Vec<config::File<'_>> =
        names.iter().zip(&layers).map(|(name, (_, text))| config::File { name, text }).collect();
    let flag = Flag { name: "--listen", key: "gateway.listen", values: listen };
    let flags = if listen.is_empty() { Vec::new() } else { vec![flag] };
    let loaded = config::load(Sources {
        files: &files,
        env: &env,
        flags: &flags,
        home: &home,
        read_secret: &mut |path| text(path),
        is_file: &mut |path| path.is_file(),
    })
    .map_err(|complaints| {
        let lines: Vec<String> = complaints.iter().map(Complaint::to_string).collect();
        Failure::new(CONFIG, lines.join("\n"))
    })?;
    let files = layers.into_iter().map(|(path, _)| path).collect();
    Ok(Settings { home, config: loaded.config, warnings: loaded.warnings, files, socket: None })
}

fn optional(path: &Path) -> Result<Option<(PathBuf, String)>, Failure> {
    match path.try_exists() {
        Ok(false) => Ok(None),
        Ok(true) => {
            text(path).map(|text| Some((path.to_owned(), text))).map_err(|why| unreadable(path, &why))
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(None),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}

fn unreadable(path: &Path, why: &str) -> Failure {
    Failure::new(CONFIG, format!("{}: can't be read: {why}", path.display()))
}

fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > BYTES_MAX => Err(format!("it is larger than {BYTES_MAX} bytes")),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err("it is not UTF-8 text".into()),
        Err(error) => Err(error.to_string()),
    }
}
