//! The model of an agent that names none, at a server that has models of its own: the first that it lists.
//!
//! A server is asked when a call first needs it, and again when it no longer knows the model. What is known is
//! kept here, and told to whoever shows models to people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Context, Handler, Message, WeakRecipient};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::listing::first_choice;

use super::client::Failure;
use super::{Endpoint, ProviderSupervisor, probe};

/// How long a server may take to say which models it has.
const WITHIN: Duration = Duration::from_secs(15);

/// The models that are asked of providers where an agent names none, by the names of the providers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct DefaultModels(pub BTreeMap<String, String>);

/// From now on this one is told of the models, whenever another one is chosen.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct TellOfDefaults(pub WeakRecipient<DefaultModels>);

/// A call chose the model of a provider.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Chosen {
    pub(super) provider: String,
    pub(super) model: String,
}

/// The models that were chosen, and who is told of them.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    known: DefaultModels,
    told: Option<WeakRecipient<DefaultModels>>,
}

impl Defaults {
    /// The model of this provider; empty where it is not known yet.
    pub(super) fn of(&self, provider: &str) -> String {
        self.known.0.get(provider).cloned().unwrap_or_default()
    }

    /// Forgets the providers for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(&String) -> bool) {
        self.known.0.retain(|provider, _| keep(provider));
    }
}

/// Asks a server for its models and chooses one.
pub(super) async fn choose(endpoint: Arc<Endpoint>) -> Result<String, Failure> {
    let name = &endpoint.name;
    let failure = |error: Error, fault| Failure { error, fault, billed: false };
    let told = |why: String| {
        ErrorCode::Provider.error(format!(
            "{name} was asked for its models, since the agent names none, and {why}: name one as its `model`"
        ))
    };
    let listed = tokio::time::timeout(WITHIN, probe::list(&endpoint, WITHIN)).await;
    let models = match listed {
        Ok(Ok(models)) => models,
        Ok(Err(Failure { error, fault: Fault::Misconfigured, .. })) => {
            return Err(failure(
                told(format!("does not list any ({})", error.message)),
                Fault::Misconfigured,
            ));
        }
        Ok(Err(failure)) => return Err(failure),
        Err(_) => return Err(failure(probe::late(name, WITHIN), Fault::Timeout)),
    };
    match first_choice(&models) {
        Some(model) => Ok(model.to_owned()),
        None => Err(failure(
            ErrorCode::Provider.error(format!(
                "{name} has no models: load one there (Ollama: `ollama pull MODEL`), then ask again"
            )),
            Fault::Misconfigured,
        )),
    }
}

impl Handler<TellOfDefaults> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, TellOfDefaults(told): TellOfDefaults, _: &mut Context<Self>) {
        self.defaults.told = Some(told);
    }
}

impl Handler<Chosen> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, Chosen { provider, model }: Chosen, _: &mut Context<Self>) {
        if !self.endpoints.contains_key(&provider) {
            return;
        }
        tracing::info!(%provider, %model, "the agent names no model: this one of the server's is asked");
        let before = self.defaults.known.0.insert(provider, model.clone());
        if before.as_ref() == Some(&model) {
            return;
        }
        if let Some(told) = self.defaults.told.as_ref().and_then(WeakRecipient::upgrade)
            && told.try_send(self.defaults.known.clone()).is_err()
        {
            tracing::warn!("nobody could be told of the model that is asked");
        }
    }
}
