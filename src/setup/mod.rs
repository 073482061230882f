//! `clawmux setup`: from nothing to a model that answers, and a `gateway.toml` that says so.
//!
//! It looks for keys in the environment and for servers on this machine, asks what it can't find, has the
//! chosen model answer one prompt, and only then writes. Without a terminal, or with `--yes`, it asks nothing and
//! takes the first provider that answers.
//!
//! | file | what it is |
//! |---|---|
//! | `find` | which providers are there |
//! | `menu` | what is asked |
//! | `file` | what is written |

mod file;
mod find;
mod menu;

use std::path::Path;
use std::time::{Duration, Instant};

use actix::SystemRunner;
use clawmux_actors::provider_supervisor::probe;
use clawmux_core::access::Secret;
use clawmux_core::config::offer::Offer;

use self::file::{Key, ProviderChoice};
use self::find::{FoundProvider, explained};
use crate::cli::{Global, Setup};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{one_line, say, tell};
use crate::{home, question, settings};

/// How long a model may take to answer one prompt; a server may have to load it first.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
const SERVER_TIMEOUT: Duration = Duration::from_secs(180);

/// What it is asked.
const TRIAL: &str = "Reply with one word: ready";

/// Nothing was found to ask.
const NOTHING: &str = "\
No model provider was found: no key of one is set, such as ANTHROPIC_API_KEY or OPENAI_API_KEY (gateway.toml names \
them all), and neither Ollama nor llama.cpp answers on this machine.";

/// A provider and model, to be tried and written.
#[derive(Debug)]
struct Candidate {
    offer: Offer,
    model: String,
    /// The provider's name in the file.
    name: String,
    /// A key that was typed, to be kept in a file.
    typed: Option<Secret>,
    /// A variable that is to hold the key, and does not yet.
    awaited: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// Status 2 if there is nobody to ask, 64 if the configuration there is is bad, 1 if nothing was written.
pub(crate) fn run(global: &Global, options: &Setup) -> Result<(), Failure> {
    if !options.yes && !question::is_possible() {
        let why =
            "there is no terminal to ask on: `clawmux setup --yes` asks nothing and takes what it finds";
        return Err(Failure::new(USAGE, why));
    }
    let layers = settings::layers(global, &[])?;
    home::create(&layers.home)?;
    home::usable(&layers.home).map_err(|why| Failure::new(FAILED, why))?;
    if let Some(path) = file::existing(&layers).filter(|_| !options.force) {
        let there = format!("{} is there already", path.display());
        if options.yes {
            let why = format!("{there}: nothing was written. --force changes it, and keeps a copy");
            return Err(Failure::new(FAILED, why));
        }
        if !question::confirm(&format!("{there}. Change its provider and model? A copy of it is kept."))? {
            return Err(Failure::new(FAILED, "nothing was written"));
        }
    }
    tell("Looking for model providers ...");
    // One for all: connections that are kept alive belong to it.
    let system = actix::System::new();
    let found = system.block_on(find::look(&layers.env));
    for found in &found {
        tell(&format!("  {}", found.described()));
    }
    if found.is_empty() {
        tell(NOTHING);
    }
    let candidate = match options.yes {
        true => first_that_answers(&found, &system)?,
        false => menu::ask(&found, &layers.env, &system)?,
    };
    let choice = candidate.as_ref().map(|candidate| candidate.choice(&layers.home)).transpose()?;
    let written = file::write(&layers, choice.as_ref())?;
    if candidate.is_none() {
        tell(
            "Agent main runs on the built-in offline model, which needs no network and shows how clawmux works.",
        );
        tell("Once you have a key or a model server: `clawmux setup --force`.");
    }
    say(&format!("wrote {}", written.file.display()));
    if let Some(copy) = written.copy {
        say(&format!("the file that was there is kept as {}", copy.display()));
    }
    say(&next(global, &layers.home));
    Ok(())
}

/// The first that answers a prompt; none where there is nothing to ask.
fn first_that_answers(found: &[FoundProvider], system: &SystemRunner) -> Result<Option<Candidate>, Failure> {
    for found in found {
        let Some(model) = found.model().filter(|_| found.models.is_ok()) else { continue };
        let candidate = Candidate::of(found, model);
        if candidate.answers(system) {
            return Ok(Some(candidate));
        }
    }
    match found.is_empty() {
        true => Ok(None),
        false => Err(Failure::new(FAILED, "none of them answered: nothing was written")),
    }
}

impl Candidate {
    fn of(found: &FoundProvider, model: String) -> Self {
        let offer = found.offer.clone();
        Self { name: offer.name.to_owned(), offer, model, typed: None, awaited: None }
    }

    /// Has it answer one prompt, and tells what came of it.
    fn answers(&self, system: &SystemRunner) -> bool {
        let Self { offer, model, name, .. } = self;
        tell(&format!("Asking {name}/{} for one word ...", one_line(model, 200)));
        let patience = if offer.is_server { SERVER_TIMEOUT } else { TRIAL_TIMEOUT };
        let begun = Instant::now();
        let asked = probe::prompt(name, &offer.provider, model, TRIAL, patience);
        match system.block_on(asked) {
            Ok(said) => {
                let said = one_line(said.trim(), 60);
                let what = if said.is_empty() { String::new() } else { format!(": {said}") };
                tell(&format!("  It answered in {:.1} s{what}", begun.elapsed().as_secs_f64()));
                true
            }
            Err(error) => {
                tell(&format!("  It did not answer: {}", explained(offer, &error)));
                false
            }
        }
    }

    /// As it is written; a key that was typed is kept.
    fn choice(&self, home: &Path) -> Result<ProviderChoice, Failure> {
        let provider = &self.offer.provider;
        let key = match (&self.typed, &self.awaited, self.offer.key_variable) {
            (Some(key), ..) => Key::File(file::keep_key(home, &self.name, key.expose())?),
            (None, Some(variable), _) => Key::Variable(variable.clone()),
            (None, None, Some(variable)) => Key::Variable(variable.to_owned()),
            (None, None, None) => Key::None,
        };
        let is_usual = provider.kind.is_home(&provider.base_url);
        Ok(ProviderChoice {
            name: self.name.clone(),
            kind: provider.kind.name(),
            base_url: Some(provider.base_url.clone()).filter(|_| !is_usual),
            key,
            model: self.model.clone(),
        })
    }
}

/// The next three commands, as they are typed for this home.
fn next(global: &Global, home: &Path) -> String {
    let quoted = |path: &Path| {
        let text = path.display().to_string();
        let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
    };
    let mut clawmux = "clawmux".to_owned();
    for (flag, path) in [("--config", &global.config), ("--home", &global.home)] {
        if let Some(path) = path {
            clawmux += &format!(" {flag} {}", quoted(path));
        }
    }
    let commands = match home::holder(home) {
        Some(_) => [
            ("config reload", "have the daemon that runs go over to it"),
            ("chat", "talk to the model, here"),
            ("status", "see how the daemon is"),
        ],
        None => [
            ("chat", "talk to the model, here"),
            ("serve", "run the daemon, for all other clients"),
            ("doctor", "find out what is wrong, if anything is"),
        ],
    };
    let lines = commands.map(|(command, what)| format!("  {clawmux} {command:<14} {what}"));
    format!("Next:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_commands_name_the_home_that_was_named() {
        let home = Path::new("/no/such home");
        let global = Global { home: Some(home.to_owned()), ..Global::default() };
        let told = next(&global, home);
        assert_eq!(told.lines().count(), 4);
        assert!(told.contains("clawmux --home '/no/such home' serve"), "{told}");
        assert!(next(&Global::default(), home).contains("  clawmux chat "));
    }
}
