//! Where commands that only read get their answers: from the daemon, and where none runs from the store.

use std::path::{Path, PathBuf};

use clawmux_actors::operator::read_without_daemon;
use serde_json::Value;

use crate::admin_client::{Link, call, home_of};
use crate::cli::Global;
use crate::exit::Failure;
use crate::home;
use crate::settings::{self, Settings};
use crate::terminal::tell;

/// Who answers.
pub(crate) enum Source {
    /// The daemon of this home.
    Daemon(PathBuf),
    /// The store of a home on which none runs.
    Store(Box<Settings>),
}

impl Source {
    /// The daemon where one runs; else the store, which people are told of.
    ///
    /// # Errors
    /// Status 69 if a daemon runs and can't be reached, or there is no store either.
    pub(crate) fn open(global: &Global) -> Result<Self, Failure> {
        let home = home_of(global)?;
        let none = || Self::no_daemon(&home);
        match Link::open_if_there(&home) {
            Ok(Some(_)) => return Ok(Self::Daemon(home)),
            Ok(None) if home::holder(&home).is_none() => {}
            Ok(None) | Err(_) => return none(),
        }
        let settings = settings::read(global, &[])?;
        if !settings.config.store.path.is_file() {
            return none();
        }
        tell(&format!(
            "no daemon runs on this home: read from the store {}",
            settings.config.store.path.display()
        ));
        Ok(Self::Store(Box::new(settings)))
    }

    /// What is said of a home without a daemon.
    fn no_daemon(home: &Path) -> Result<Self, Failure> {
        match Link::open(home) {
            Ok(_) => Ok(Self::Daemon(home.to_owned())),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Asks it one thing. Blocks.
    ///
    /// # Errors
    /// Status 69 if the daemon is not reachable any more, 1 if it refuses or fails.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Result<Value, Failure> {
        match self {
            Self::Daemon(home) => call(home, method, params),
            Self::Store(settings) => {
                let asked = read_without_daemon(&settings.config, method, params);
                Ok(actix::System::new().block_on(asked)?)
            }
        }
    }
}
