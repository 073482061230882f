//! Which of the providers that the environment offers are there: each is asked for its models, all at once.

use std::time::Duration;

use clawmux_actors::provider_supervisor::probe;
use clawmux_core::config::Provider;
use clawmux_core::config::offer::{Offer, offers};
use clawmux_core::error::{Detail, Error};
use clawmux_core::provider::listing::{first_choice, has};
use futures::future::join_all;

use crate::terminal::one_line;

/// How long a provider may take to say which models it has.
pub(super) const TIMEOUT: Duration = Duration::from_secs(6);

/// A provider that was asked for its models.
#[derive(Debug)]
pub(super) struct FoundProvider {
    pub(super) offer: Offer,
    pub(super) models: Result<Vec<String>, Error>,
}

/// Those there are, the best first. Servers that nobody named and that do not answer are left out.
pub(super) async fn look(env: &[(String, String)]) -> Vec<FoundProvider> {
    let asked = offers(env).into_iter().map(async |offer| {
        let models = probe::models(offer.name, &offer.provider, TIMEOUT).await;
        FoundProvider { offer, models }
    });
    let mut found = join_all(asked).await;
    found.retain(|found| {
        let is_named = found.offer.key_variable.is_some() || found.offer.url_variable.is_some();
        is_named || found.models.as_ref().is_ok_and(|models| !models.is_empty())
    });
    found
}

impl FoundProvider {
    /// On one line: what it is, how it was found, and whether it answers.
    pub(super) fn described(&self) -> String {
        let Offer { title, provider, url_variable, key_variable, .. } = &self.offer;
        let mut parts = Vec::new();
        if let Some(variable) = key_variable {
            parts.push(format!("key in {variable}"));
        }
        match url_variable {
            Some(variable) => parts.push(format!("at {} ({variable})", provider.base_url)),
            None if key_variable.is_none() => parts.push(format!("at {}", provider.base_url)),
            None => {}
        }
        parts.push(match &self.models {
            Ok(models) if models.is_empty() => "it has no models yet".into(),
            Ok(models) if models.len() == 1 => "1 model".into(),
            Ok(models) => format!("{} models", models.len()),
            Err(error) => explained(&self.offer, error),
        });
        format!("{title}: {}", parts.join(", "))
    }

    /// The model to take; none where that is for somebody to say.
    pub(super) fn model(&self) -> Option<String> {
        let listed = self.models.as_deref().unwrap_or_default();
        let Provider { kind, base_url, .. } = &self.offer.provider;
        let default = kind.default_model(base_url);
        let has = |default: &&str| listed.is_empty() || has(listed, default);
        default.filter(has).or_else(|| first_choice(listed)).map(str::to_owned)
    }
}

/// Why it does not answer, in plain words, with those of the provider.
pub(super) fn explained(offer: &Offer, error: &Error) -> String {
    let said = one_line(&error.message, 400);
    match (error.detail.as_ref(), offer.key_variable) {
        (Some(Detail::KeyRefused), Some(variable)) => {
            format!("the key in {variable} is not accepted ({said})")
        }
        (Some(Detail::KeyRefused), None) => format!("it wants a key, or another one ({said})"),
        _ => said,
    }
}
