//! The files of agents' souls: looked at, and changed with the daemon going over to what they say.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use actix::prelude::*;
use clawmux_core::config::request::SoulFile;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::AgentId;
use clawmux_core::time::Timestamp;

use super::{Configuration, FILE_MODE, Shared, block};
use crate::host::{regular_file, whole_file};
use crate::session::SOUL_BYTES_MAX;

/// Asks for an agent's soul, or has it say something else.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<SoulFile, Error>")]
pub struct Soul {
    /// The agent.
    pub agent: AgentId,
    /// What it shall say; none = it is only looked at.
    pub text: Option<String>,
    /// Who.
    pub by: Arc<str>,
}

/// Blocks.
fn look(path: &Path) -> Result<SoulFile, Error> {
    let failed =
        |error| ErrorCode::Unavailable.error(format!("the soul {} can't be read: {error}", path.display()));
    let text = match regular_file::read_text(path, SOUL_BYTES_MAX) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let updated = fs::metadata(path).ok().and_then(|facts| facts.modified().ok());
    let millis = updated.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_millis());
    let updated = millis.and_then(|millis| u64::try_from(millis).ok()).map(Timestamp::from_millis);
    Ok(SoulFile { path: path.to_owned(), text, updated })
}

/// Has the file say this, or not be there. Blocks.
fn put(path: &Path, text: Option<&str>) -> Result<(), Error> {
    let Some(text) = text else {
        return fs::remove_file(path).map_err(|error| failed(path, &error));
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(path, &error))?;
    }
    whole_file::write(path, text, FILE_MODE).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    ErrorCode::Unavailable.error(format!("the soul {} can't be written: {error}", path.display()))
}

impl Shared {
    async fn soul(self: Arc<Self>, Soul { agent, text, by }: Soul) -> Result<SoulFile, Error> {
        let _turn = self.turn().await;
        let now = self.now().await?;
        let found = now.found.config.as_ref().and_then(|config| config.agents.get(&agent));
        let Some(path) = found.map(|agent| agent.soul.clone()) else {
            now.is_good()?;
            return Err(ErrorCode::NotFound.error(format!("no agent named {agent}")));
        };
        let at = path.clone();
        let before = block(move || look(&at)).await?;
        let Some(text) = text else { return Ok(before) };
        if text.len() as u64 > SOUL_BYTES_MAX {
            let why = format!("a soul may have {SOUL_BYTES_MAX} bytes, and this has {}", text.len());
            return Err(ErrorCode::TooLarge.error(why));
        }
        now.is_good()?;
        let at = path.clone();
        block(move || put(&at, Some(&text))).await?;
        // Sessions have it with the roster of the next configuration.
        if let Err(error) = self.adopt(&now, || Ok(())).await {
            let at = path.clone();
            block(move || put(&at, before.text.as_deref())).await?;
            return Err(error);
        }
        tracing::info!(%agent, file = %path.display(), %by, "the soul was set");
        block(move || look(&path)).await
    }
}

impl Handler<Soul> for Configuration {
    type Result = ResponseActFuture<Self, Result<SoulFile, Error>>;

    fn handle(&mut self, soul: Soul, _: &mut Self::Context) -> Self::Result {
        self.begin(|shared| shared.soul(soul))
    }
}
