//! Changes of configuration files: tried together with all other layers before a byte is written, so
//! that what a daemon could not run on is refused with everything that is wrong.

use std::path::{Path, PathBuf};

use clawmux_core::config::request::{ConfigIssue, ConfigSnapshot};
use clawmux_core::config::{self, Complaint, Examined, Origin};
use clawmux_core::daemon::operator::Setting;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::layers::Layers;
use super::{BYTES_MAX, COMPLAINTS_MAX, FILE_MODE};
use crate::host::whole_file;

/// The layers as they are now.
#[derive(Debug)]
pub struct Now {
    files: Vec<(PathBuf, String)>,
    /// The text of the strongest file; none where there is none.
    text: Option<String>,
    pub(super) found: Examined,
}

/// A change that holds together with everything else, and is not written yet.
#[derive(Debug)]
pub struct Draft {
    /// The file it is written to.
    pub file: PathBuf,
    /// What it will say; none where it says so already.
    text: Option<String>,
    /// How everything is then.
    pub(super) then: Now,
}

impl Now {
    /// Reads them.
    ///
    /// # Errors
    /// `Unavailable` where a file can't be read.
    pub fn read(layers: &Layers) -> Result<Self, Error> {
        Ok(Self::of(layers, layers.files().map_err(|why| ErrorCode::Unavailable.error(why))?))
    }

    fn of(layers: &Layers, files: Vec<(PathBuf, String)>) -> Self {
        let text = files.iter().find(|(path, _)| *path == layers.file).map(|(_, text)| text.clone());
        // The strongest file is the one that is shown, also where it is not there.
        let mut shown = files.clone();
        if text.is_none() {
            shown.push((layers.file.clone(), String::new()));
        }
        let mut found = layers.with(&shown, config::examine);
        if let (Some(look), Some(config)) = (layers.look, &found.config) {
            let complaints = look(config, &layers.home);
            found.complain(complaints);
        }
        Self { files, text, found }
    }

    /// What is wrong with it, one a line, each with its place.
    ///
    /// # Errors
    /// `InvalidRequest` where anything is.
    pub fn is_good(&self) -> Result<(), Error> {
        let line = |complaint: &Complaint| match complaint.at {
            Origin::Default => complaint.message.clone(),
            _ => complaint.to_string(),
        };
        let mut said: Vec<String> = self.found.complaints.iter().take(COMPLAINTS_MAX).map(line).collect();
        let more = self.found.complaints.len().saturating_sub(said.len());
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        if said.is_empty() { Ok(()) } else { Err(ErrorCode::InvalidRequest.error(said.join("\n"))) }
    }

    /// All keys that say something, or those of a section, or one key.
    ///
    /// # Errors
    /// `NotFound` where there is no such key.
    pub fn settings(&self, path: Option<&str>) -> Result<Vec<Setting>, Error> {
        self.settings_of(&self.found.effective, path)
    }

    /// The same of other values than those that stand here.
    pub(super) fn settings_of(&self, values: &Json, path: Option<&str>) -> Result<Vec<Setting>, Error> {
        let mut settings = Vec::new();
        match path {
            None => self.collect("", values, &mut settings),
            Some(path) => {
                if let Some(why) = config::no_such_key(path) {
                    return Err(ErrorCode::NotFound.error(why));
                }
                if let Some(value) = config::at(values, path) {
                    self.collect(path, value, &mut settings);
                }
            }
        }
        Ok(settings)
    }

    /// As [`settings`](Self::settings), with the keys that say nothing and have no default: null.
    ///
    /// # Errors
    /// `NotFound` where there is no such key.
    pub fn all_settings(&self, path: Option<&str>) -> Result<Vec<Setting>, Error> {
        self.all_settings_of(&self.found.effective, path)
    }

    /// The same of other values than those that stand here.
    pub(super) fn all_settings_of(&self, values: &Json, path: Option<&str>) -> Result<Vec<Setting>, Error> {
        let mut settings = self.settings_of(values, path)?;
        let unsaid = config::unsaid(values, path.unwrap_or_default());
        settings.extend(unsaid.into_iter().map(|path| Setting {
            path,
            value: Json::Null,
            at: Origin::Default,
        }));
        settings.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(settings)
    }

    fn collect(&self, path: &str, value: &Json, settings: &mut Vec<Setting>) {
        match value {
            Json::Object(section) => {
                for (name, value) in section {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    self.collect(&path, value, settings);
                }
            }
            value => settings.push(Setting {
                path: path.to_owned(),
                value: value.clone(),
                at: self.found.origins.get(path).cloned().unwrap_or(Origin::Default),
            }),
        }
    }

    /// What has no effect or is probably not meant.
    pub fn warnings(&self) -> Vec<ConfigIssue> {
        self.found.warnings.iter().map(issue).collect()
    }

    /// Where what a key says was written; of a section the strongest of its keys.
    fn origin(&self, path: &str) -> Origin {
        let is_in =
            |key: &str| key == path || key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        let within = self.found.origins.iter().filter(|(key, _)| is_in(key));
        within.map(|(_, at)| at.clone()).max().unwrap_or(Origin::Default)
    }

    fn hash(&self) -> String {
        let digest = Sha256::digest(self.text.as_deref().unwrap_or_default());
        hex(&digest)
    }

    /// As clients are told, where the daemon was started with `started`.
    pub(super) fn snapshot(self, layers: &Layers, started: &Json) -> ConfigSnapshot {
        let issues = |complaints: &[Complaint]| complaints.iter().map(issue).collect();
        let pending = waits_for_restart(started, &self.found.effective);
        ConfigSnapshot {
            path: layers.file.display().to_string(),
            exists: self.text.is_some(),
            hash: self.hash(),
            needs_restart: !pending.is_empty(),
            pending,
            complaints: issues(&self.found.complaints),
            warnings: issues(&self.found.warnings),
            file: self.found.file,
            effective: self.found.effective,
        }
    }
}

/// The keys whose change takes effect with the next start alone.
pub(super) fn waits_for_restart(started: &Json, now: &Json) -> Vec<String> {
    let mut keys = config::differences(started, now);
    keys.retain(|key| config::takes_a_restart(key));
    keys
}

impl Draft {
    /// Has the strongest file say what is asked.
    ///
    /// # Errors
    /// `Conflict` where it is not what `base_hash` says any more; else what is wrong.
    pub(super) fn change(
        layers: &Layers,
        asked: &Json,
        is_patch: bool,
        base_hash: &str,
    ) -> Result<Self, Error> {
        let now = Now::read(layers)?;
        if now.hash() != base_hash {
            return Err(
                ErrorCode::Conflict.error("config changed since last load; re-run config.get and retry")
            );
        }
        let patched = is_patch.then(|| config::patched(&now.found.file, asked));
        let file = layers.file.clone();
        let shown = now.found.file.clone();
        Self::say(layers, now, file, &shown, patched.as_ref().unwrap_or(asked))
    }

    /// Has the strongest file say what is asked at some places.
    ///
    /// # Errors
    /// What is wrong, all at once.
    pub fn place(layers: &Layers, values: &[(String, Json)], merge: bool) -> Result<Self, Error> {
        let now = Now::read(layers)?;
        let shown = now.found.file.clone();
        let asked = config::placed(&shown, values, merge).map_err(|complaints| invalid(&complaints))?;
        Self::say(layers, now, layers.file.clone(), &shown, &asked)
    }

    /// Has the file say this that the key comes from, or where that can't be written, the strongest.
    /// Null takes it away.
    ///
    /// # Errors
    /// `Conflict` where the environment or the command line says it, which no file can change; else what
    /// is wrong.
    pub fn of_key(layers: &Layers, path: &str, value: &Json) -> Result<Self, Error> {
        if let Some(why) = config::no_such_key(path) {
            return Err(ErrorCode::NotFound.error(why));
        }
        let now = Now::read(layers)?;
        let from = match now.origin(path) {
            Origin::Env(name) => {
                return Err(ErrorCode::Conflict.error(format!(
                    "{path} is set by the environment variable {name}, which a file can't override"
                )));
            }
            Origin::Flag(name) => {
                return Err(ErrorCode::Conflict.error(format!(
                    "{path} is set by {name} on the command line, which a file can't override"
                )));
            }
            Origin::File { name, .. } => PathBuf::from(&*name),
            Origin::Default => layers.file.clone(),
        };
        if value.is_null() && now.origin(path) == Origin::Default {
            return Err(ErrorCode::NotFound.error(format!("{path} is not set: the default holds")));
        }
        let file =
            if from == layers.file || whole_file::is_writable(&from) { from } else { layers.file.clone() };
        let shown = now.shown(layers, &file);
        let asked = if value.is_null() {
            config::unset(&shown, path)
        } else {
            let places = [(path.to_owned(), value.clone())];
            config::placed(&shown, &places, false).map_err(|complaints| invalid(&complaints))?
        };
        let draft = Self::say(layers, now, file, &shown, &asked)?;
        if value.is_null() && draft.text.is_none() {
            return Err(ErrorCode::Unavailable
                .error(format!("{path} can't be taken away: the file it is in can't be written")));
        }
        Ok(draft)
    }

    /// Has a file say all of this, of which `shown` is what it says now.
    fn say(layers: &Layers, now: Now, file: PathBuf, shown: &Json, asked: &Json) -> Result<Self, Error> {
        let old = now.text_of(&file).unwrap_or_default();
        let new = config::edit(old, asked, shown, &now.found.effective)
            .map_err(|complaints| invalid(&complaints))?;
        if new == old {
            return Ok(Self { file, text: None, then: now });
        }
        if new.len() as u64 > BYTES_MAX {
            let why = format!("invalid config: it is larger than {BYTES_MAX} bytes");
            return Err(ErrorCode::InvalidRequest.error(why));
        }
        let mut files = now.files;
        match files.iter_mut().find(|(path, _)| *path == file) {
            Some((_, text)) => text.clone_from(&new),
            None => files.push((file.clone(), new.clone())),
        }
        let then = Now::of(layers, files);
        if !then.found.complaints.is_empty() {
            return Err(invalid(&then.found.complaints));
        }
        Ok(Self { file, text: Some(new), then })
    }

    /// Whether anything is to be written.
    pub fn is_change(&self) -> bool {
        self.text.is_some()
    }

    /// How everything is with it.
    pub fn then(&self) -> &Now {
        &self.then
    }

    /// Writes it. Blocks.
    ///
    /// # Errors
    /// `Unavailable` where the file can't be written.
    pub fn write(&self) -> Result<(), Error> {
        write(&self.file, self.text.as_deref())
    }

    /// What writes it.
    pub(super) fn writing(&self) -> impl FnOnce() -> Result<(), Error> + Send + 'static {
        let (file, text) = (self.file.clone(), self.text.clone());
        move || write(&file, text.as_deref())
    }
}

impl Now {
    fn text_of(&self, file: &Path) -> Option<&str> {
        self.files.iter().find(|(path, _)| path == file).map(|(_, text)| text.as_str())
    }

    /// What one file says.
    fn shown(&self, layers: &Layers, file: &Path) -> Json {
        if file == layers.file {
            return self.found.file.clone();
        }
        let text = self.text_of(file).unwrap_or_default().to_owned();
        layers.with(&[(file.to_owned(), text)], config::examine).file
    }
}

fn write(file: &Path, text: Option<&str>) -> Result<(), Error> {
    let Some(text) = text else { return Ok(()) };
    whole_file::write(file, text, FILE_MODE).map_err(|error| {
        ErrorCode::Unavailable.error(format!("{} can't be written: {error}", file.display()))
    })
}

fn issue(complaint: &Complaint) -> ConfigIssue {
    let (path, message) = complaint.split();
    let message = match &complaint.at {
        Origin::Default => message.to_owned(),
        at => format!("{message} ({at})"),
    };
    ConfigIssue { path: path.to_owned(), message }
}

fn invalid(complaints: &[Complaint]) -> Error {
    let said: Vec<&str> =
        complaints.iter().take(COMPLAINTS_MAX).map(|complaint| complaint.message.as_str()).collect();
    ErrorCode::InvalidRequest.error(format!("invalid config: {}", said.join("; ")))
}
