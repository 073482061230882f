//! What providers say of their models: asked a minute after the daemon started, when those who waited for it are
//! served, and every hour; before it takes work only where a budget can't do without. What one that can't be
//! asked said before stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::config::catalog::Catalog;
use clawmux_core::config::{Config, Provider};
use clawmux_core::daemon::announcement::Announcement;
use clawmux_core::provider::ProviderKind;
use clawmux_core::provider::facts::ModelFacts;
use clawmux_core::provider::model::ModelRef;
use futures::future::join_all;

use super::{Gateway, terms};
use crate::hub::Announce;
use crate::provider_supervisor::{KnowModels, probe};
use crate::runtime::ask::ask;
use crate::session::AgentConfigs;

/// When they are asked first.
pub(super) const ASK_FIRST: Duration = Duration::from_secs(60);

/// How often they are asked.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(3600);

/// How long each may take.
const WITHIN: Duration = Duration::from_secs(15);

type Listed = BTreeMap<ModelRef, ModelFacts>;

/// The configuration with what providers say of their models, where a budget can't do without: what a model
/// costs is to be known before it is asked first.
pub(super) async fn with_prices(config: Arc<Config>) -> Arc<Config> {
    let is_priced = |model: &ModelRef| config.models.of(model).price.is_some();
    let mut models = config.agents.values().flat_map(|agent| &agent.models);
    if !config.budgets.is_in_money() || models.all(is_priced) {
        return config;
    }
    let listed = listed(&config).await;
    let mut config = Config::clone(&config);
    config.models.listed = listed;
    Arc::new(config)
}

/// What all providers say now; of those that say nothing, what they said before.
async fn listed(config: &Config) -> Listed {
    let can_say = |(_, provider): &(&String, &Provider)| {
        provider.kind != ProviderKind::Offline && !provider.lacks_key()
    };
    let asked =
        config.providers.iter().filter(can_say).map(async |(name, provider)| {
            (name, probe::described_with_any_key(name, provider, WITHIN).await)
        });
    let mut listed = Listed::new();
    for (name, models) in join_all(asked).await {
        match models {
            Ok(models) => {
                let described = models.into_iter().filter(|(_, facts)| *facts != ModelFacts::default());
                listed.extend(
                    described.map(|(model, facts)| (ModelRef { provider: name.clone(), model }, facts)),
                );
            }
            Err(error) => {
                tracing::debug!(%error, provider = %name, "the provider does not list its models");
                let before = config.models.listed.iter().filter(|(model, _)| model.provider == *name);
                listed.extend(before.map(|(model, facts)| (model.clone(), *facts)));
            }
        }
    }
    listed
}

impl Gateway {
    /// Asks all providers for their models; who uses what they say hears of it where it is new.
    pub(super) fn list_models(&self, ctx: &mut Context<Self>) {
        let config = self.config.get();
        let listed = async move { listed(&config).await };
        ctx.spawn(
            listed.into_actor(self).then(|listed, gateway, _| gateway.know(listed).into_actor(gateway)),
        );
    }

    fn know(&mut self, listed: Listed) -> impl Future<Output = ()> + use<> {
        let before = self.config.get();
        let is_news = before.models.listed != listed;
        if is_news {
            let mut config = Config::clone(&before);
            config.models.listed = listed;
            let roster = self.agent_configs.get();
            let catalog = Arc::new(Catalog { known: config.models.clone(), ..(*roster.catalog).clone() });
            let held = &self.services.terms;
            held.set(terms(&config, catalog.clone(), self.setup.version, Some(&held.get())));
            self.agent_configs.update(|roster| AgentConfigs { catalog: catalog.clone(), ..roster.clone() });
            self.config.set(config);
        }
        let (hub, providers) = (self.hub.clone(), self.providers.clone());
        let (known, catalog) = (self.config.get().models.clone(), self.agent_configs.get().catalog.clone());
        async move {
            if !is_news {
                return;
            }
            let told = async {
                ask(&providers, KnowModels(Arc::new(known))).await?;
                ask(&hub, Announce(Arc::new(Announcement::Catalog(catalog)))).await
            };
            if let Err(error) = told.await {
                tracing::error!(%error, "not every part of the daemon could be told of the models there are");
            }
        }
    }
}
