//! What `clawmux setup` asks: which provider, its key where there is none, which model.

use actix::SystemRunner;
use clawmux_actors::provider_supervisor::probe;
use clawmux_core::access::Secret;
use clawmux_core::config::offer::{Offer, is_service};
use clawmux_core::config::{Provider, is_base_url};
use clawmux_core::provider::ProviderKind;
use clawmux_core::provider::kind::Preset;

use super::Candidate;
use super::find::{FoundProvider, TIMEOUT, explained};
use crate::exit::{FAILED, Failure};
use crate::question;
use crate::terminal::{one_line, tell};

/// So many models are shown to choose from.
const SHOWN_MAX: usize = 20;

/// An item of the menu.
enum MenuItem<'a> {
    Found(&'a FoundProvider),
    /// A service whose key is not in the environment.
    Service(ProviderKind),
    /// A server that somebody knows the address of.
    Server,
    /// Nothing, for now.
    Offline,
}

/// Asks until there is a model that answers, or that is wanted all the same; none for the offline one.
///
/// # Errors
/// Status 1 if nothing is chosen, 130 on Ctrl-C.
pub(super) fn ask(
    found: &[FoundProvider],
    env: &[(String, String)],
    system: &SystemRunner,
) -> Result<Option<Candidate>, Failure> {
    let mut picks: Vec<(String, MenuItem<'_>)> =
        found.iter().map(|found| (found.described(), MenuItem::Found(found))).collect();
    for kind in ProviderKind::ALL.into_iter().filter(|kind| is_service(*kind)) {
        let text = format!("{}: with a key that you paste here", kind.preset().title);
        picks.push((text, MenuItem::Service(kind)));
    }
    picks.push(("Another server with an OpenAI-compatible API".into(), MenuItem::Server));
    picks.push(("None for now: the built-in offline model".into(), MenuItem::Offline));
    tell("\nWhich one shall answer?");
    for (at, (text, _)) in (1..).zip(&picks) {
        tell(&format!("  {at}. {text}"));
    }
    let pick = &picks[number(picks.len())?].1;
    let candidate = match pick {
        MenuItem::Offline => return Ok(None),
        MenuItem::Found(found) => {
            let Some(model) = model(found.models.as_deref().unwrap_or_default(), found.model())? else {
                return Err(nothing());
            };
            Candidate::of(found, model)
        }
        MenuItem::Service(kind) => service(*kind, env, system)?,
        MenuItem::Server => server(system)?,
    };
    if let Some(variable) = &candidate.awaited {
        // Tried already where it is set.
        if candidate.offer.provider.api_key.is_none() {
            tell(&format!("{variable} is not set here, so the model was not tried."));
        }
        return Ok(Some(candidate));
    }
    if candidate.answers(system) || question::confirm("Write it all the same?")? {
        return Ok(Some(candidate));
    }
    Err(nothing())
}

fn nothing() -> Failure {
    Failure::new(FAILED, "nothing was written")
}

/// One of so many, from 0.
fn number(most: usize) -> Result<usize, Failure> {
    loop {
        let typed = question::line("Number [1]: ")?;
        if typed.is_empty() {
            return Ok(0);
        }
        match typed.parse::<usize>() {
            Ok(number) if (1..=most).contains(&number) => return Ok(number - 1),
            _ => tell(&format!("Please type a number from 1 to {most}.")),
        }
    }
}

/// One of these models, or another that is typed; none where nothing is.
fn model(listed: &[String], preferred: Option<String>) -> Result<Option<String>, Failure> {
    for (at, model) in (1..).zip(listed).take(SHOWN_MAX) {
        tell(&format!("  {at}. {}", one_line(model, 200)));
    }
    if listed.len() > SHOWN_MAX {
        tell(&format!("  and {} more: type the name of one", listed.len() - SHOWN_MAX));
    }
    let default = preferred.as_ref().map(|model| format!(" [{}]", one_line(model, 200))).unwrap_or_default();
    let typed = question::line(&format!("Model{default}: "))?;
    let by_number = typed.parse::<usize>().ok().and_then(|number| listed.get(number.checked_sub(1)?));
    Ok(match by_number {
        Some(model) => Some(model.clone()),
        None if typed.is_empty() => preferred,
        None => Some(typed).filter(|model| !model.chars().any(char::is_control)),
    })
}

/// A service, with a key that is pasted or a variable that will hold it.
fn service(
    kind: ProviderKind,
    env: &[(String, String)],
    system: &SystemRunner,
) -> Result<Candidate, Failure> {
    let Preset { title, base_url, key_variable: usual, .. } = *kind.preset();
    let key = question::secret(&format!(
        "Paste the key for {title}. It is not shown, and kept in a file that only you can read\n\
         (Enter: name a variable that holds it instead): "
    ))?;
    let mut offer = offer(kind.name(), title, kind, base_url);
    let (mut typed, mut awaited) = (None, None);
    if key.is_empty() {
        let named = question::line(&format!("Variable [{usual}]: "))?;
        let variable = if named.is_empty() { usual.to_owned() } else { named };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !variable.chars().all(is_name) || variable.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(Failure::new(FAILED, "that is not the name of a variable: nothing was written"));
        }
        let set = env.iter().find(|(name, value)| *name == variable && !value.trim().is_empty());
        offer.provider.api_key = set.map(|(_, value)| Secret::new(value.trim()));
        awaited = Some(variable);
    } else {
        offer.provider.api_key = Some(Secret::new(key.as_str()));
        typed = offer.provider.api_key.clone();
    }
    let found = looked(offer, system);
    let listed = found.models.as_deref().unwrap_or_default();
    let model = model(listed, found.model())?.ok_or_else(nothing)?;
    let candidate = Candidate::of(&found, model);
    if let (Some(variable), true) = (&awaited, found.offer.provider.api_key.is_some())
        && !candidate.answers(system)
        && !question::confirm(&format!("Write it all the same, with the key in {variable}?"))?
    {
        return Err(nothing());
    }
    Ok(Candidate { typed, awaited, ..candidate })
}

/// A server by its address.
fn server(system: &SystemRunner) -> Result<Candidate, Failure> {
    let url = loop {
        let typed = question::line("Its address, such as http://192.168.1.5:8000/v1: ")?;
        let url = typed.trim_end_matches('/');
        if is_base_url(url) {
            break url.to_owned();
        }
        tell("Please type http:// or https://, a host and a path.");
    };
    let key = question::secret("Its key, if it wants one (it is not shown; Enter: none): ")?;
    let mut offer = offer("server", "the server", ProviderKind::OpenAi, &url);
    offer.is_server = true;
    offer.provider.api_key = Some(key).filter(|key| !key.is_empty()).map(Secret::new);
    let typed = offer.provider.api_key.clone();
    let found = looked(offer, system);
    let model = model(found.models.as_deref().unwrap_or_default(), found.model())?.ok_or_else(nothing)?;
    Ok(Candidate { typed, ..Candidate::of(&found, model) })
}

fn offer(name: &'static str, title: &'static str, kind: ProviderKind, base_url: &str) -> Offer {
    let provider = Provider::new(kind, base_url, None);
    Offer { name, title, provider, url_variable: None, key_variable: None, is_server: false }
}

/// Asks a provider for its models; tells the user if that fails.
fn looked(offer: Offer, system: &SystemRunner) -> FoundProvider {
    let asked = probe::models(offer.name, &offer.provider, TIMEOUT);
    let models = system.block_on(asked);
    if let Err(error) = &models
        && (offer.is_server || offer.provider.api_key.is_some())
    {
        tell(&format!("  It does not say which models it has: {}", explained(&offer, error)));
    }
    FoundProvider { offer, models }
}
