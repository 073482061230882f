//! Another configuration for a daemon that runs: all of it or nothing.
//!
//! Everything that can fail is done first, beside what runs ([`Gateway::prepare`]): files are read,
//! plugins loaded, clients of providers made. Then whoever asked writes down what he has to. What is left
//! can't fail: each actor is told its part, and values that many share are exchanged as wholes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::access::authority::Authority;
use clawmux_core::config::catalog::Catalog;
use clawmux_core::config::{Config, Limits};
use clawmux_core::daemon::announcement::Announcement;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::schedule::job::Job;

use super::{Gateway, agent_rules, terms};
use crate::channel_supervisor;
use crate::configuration::{Adopt, Adopted};
use crate::embedder::{self, EmbedderSettings};
use crate::hub::Announce;
use crate::mcp_supervisor;
use crate::provider_supervisor::default_model::DefaultModels;
use crate::provider_supervisor::{self, Endpoints};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::sandbox_supervisor::{Replace, Stage, Staged};
use crate::session::AgentConfigs;
use crate::{agent_supervisor, files, listener, scheduler, tokens};

/// How long it may take to get everything ready.
const PREPARE_MAX: Duration = Duration::from_secs(60);

/// A configuration with all that it takes to go over to it.
struct Prepared {
    config: Arc<Config>,
    agent_configs: AgentConfigs,
    endpoints: Endpoints,
    plugins: Staged,
}

/// Blocks.
fn read(config: &Config) -> Result<(AgentConfigs, Endpoints), Error> {
    Ok((AgentConfigs::read(config)?, Endpoints::new(config)?))
}

fn lost() -> Error {
    ErrorCode::Internal.error("the configuration could not be looked at")
}

impl Gateway {
    /// Gets ready all that could fail; nothing that runs is changed.
    fn prepare(&self, config: Config) -> impl Future<Output = Result<Prepared, Error>> + use<> {
        let running = self.config.get();
        let mut config = config.without_what_takes_a_restart(&running);
        // They are asked by and by.
        config.models.listed.clone_from(&running.models.listed);
        if self.setup.has_own_credentials {
            config.auth = running.auth.clone();
        }
        let config = Arc::new(config);
        let filter = self.setup.log_filter.clone();
        let (addresses, has_issued) = (self.addresses.clone(), self.services.authority.has_issued());
        let sandbox = self.sandbox.clone();
        let prepared = async move {
            if let Some(filter) = filter {
                let wrong = |why| ErrorCode::InvalidRequest.error(format!("log.filter: {why}"));
                filter.check(&config.log.filter).map_err(wrong)?;
            }
            let cron = config.scheduler.new_session_cron.as_deref();
            Job::built_in(
                config.scheduler.heartbeat,
                config.scheduler.heartbeat_result_to.as_ref(),
                cron,
                clock::wall(),
                &clock::zone(),
            )?;
            let authority = Authority::new(&config.auth);
            if !has_issued {
                authority.may_listen(&addresses)?;
            }
            authority.secrets_suit(&addresses)?;
            let reading = config.clone();
            let read = tokio::task::spawn_blocking(move || read(&reading)).await;
            let (agent_configs, endpoints) = read.map_err(|_| lost())??;
            let plugins =
                ask(&sandbox, Stage { plugins: config.plugins.clone(), sandbox: config.sandbox.clone() })
                    .await??;
            Ok(Prepared { config, agent_configs, endpoints, plugins })
        };
        async move {
            let late =
                |_| ErrorCode::Timeout.error(format!("it took longer than {} s", PREPARE_MAX.as_secs()));
            tokio::time::timeout(PREPARE_MAX, prepared).await.map_err(late)?
        }
    }

    /// Tells everybody. An actor that is gone is no reason to stop halfway: the daemon is started anew
    /// then, on this configuration.
    fn apply(&mut self, prepared: Prepared) -> impl Future<Output = Adopted> + use<> {
        let Prepared { config, mut agent_configs, endpoints, plugins } = prepared;
        let before = self.config.get();
        // What is known of a provider that stays as it was.
        let is_same = |name: &String| before.providers.get(name) == config.providers.get(name);
        self.default_models.0.retain(|name, _| is_same(name));
        agent_configs.catalog = self.catalog(&config);
        let adopted = Adopted {
            beneath: beneath(&before, &config, &self.agent_configs.get(), &agent_configs, &plugins),
        };
        let catalog = agent_configs.catalog.clone();
        if let Some(filter) = &self.setup.log_filter
            && let Err(why) = filter.set(&config.log.filter)
        {
            tracing::error!("the log filter is unchanged: {why}");
        }
        let is_other_catalog = *catalog != *self.agent_configs.get().catalog;
        let terms = terms(&config, catalog.clone(), self.setup.version, Some(&self.services.terms.get()));
        let hub = self.hub.clone();
        let services = self.services.clone();
        let shared_roster = self.agent_configs.clone();
        let (sandbox, mcp, providers) = (self.sandbox.clone(), self.mcp.clone(), self.providers.clone());
        let embedder = self.embedder.clone();
        let (agents, files) = (self.agents.clone(), self.files.clone());
        let (tokens, listener) = (self.tokens.clone(), self.listener.clone());
        let (timetable, channels) = (self.scheduler.clone(), self.channels.clone());
        self.config.set(config.clone());
        async move {
            let told = async {
                // Tools and models are there before agents that use them.
                ask(&sandbox, Replace(plugins)).await?;
                ask(&mcp, mcp_supervisor::Reconfigure(config.mcp.clone())).await?;
                let providers_told = provider_supervisor::Reconfigure { config: config.clone(), endpoints };
                ask(&providers, providers_told).await?;
                ask(&embedder, embedder::Reconfigure(EmbedderSettings::of(&config))).await?;
                shared_roster.set(agent_configs);
                services.terms.set(terms);
                if is_other_catalog {
                    ask(&hub, Announce(Arc::new(Announcement::Catalog(catalog)))).await?;
                }
                ask(&agents, agent_supervisor::Reconfigure(agent_rules(&config))).await?;
                ask(&files, files::Reconfigure { quota_bytes: config.limits.file_quota_bytes }).await?;
                ask(&files, files::SetRoots(config.files.attachment_roots.clone())).await?;
                if let Err(error) = ask(&timetable, scheduler::SetSchedule(config.scheduler.clone())).await? {
                    tracing::error!(%error, "the jobs of the configuration could not be written down");
                }
                let reconfigured =
                    channel_supervisor::Reconfigure(config.channels.clone(), config.bus.clone());
                ask(&channels, reconfigured).await?;
                let Limits { unauthenticated, connections, .. } = config.limits;
                ask(&listener, listener::Reconfigure { unauthenticated, connections }).await?;
                // The last: who is closed by it comes back to what holds now.
                ask(&tokens, tokens::Reconfigure(config.auth.clone())).await
            };
            if let Err(error) = told.await {
                tracing::error!(%error, "not every part of the daemon could be told of the new configuration");
            }
            adopted
        }
    }
}

impl Gateway {
    /// What there is to choose from, with what is known of the models that agents do not name.
    fn catalog(&self, config: &Config) -> Arc<Catalog> {
        Arc::new(Catalog::new(config).with_default_models(&self.default_models.0))
    }
}

impl Handler<DefaultModels> for Gateway {
    type Result = ();

    fn handle(&mut self, models: DefaultModels, ctx: &mut Self::Context) {
        self.default_models = models;
        let config = self.config.get();
        let catalog = self.catalog(&config);
        let now = self.agent_configs.get();
        if *catalog == *now.catalog {
            return;
        }
        self.agent_configs.set(AgentConfigs { catalog: catalog.clone(), ..(*now).clone() });
        let terms = terms(&config, catalog.clone(), self.setup.version, Some(&self.services.terms.get()));
        self.services.terms.set(terms);
        let hub = self.hub.clone();
        let told = async move {
            if let Err(error) = ask(&hub, Announce(Arc::new(Announcement::Catalog(catalog)))).await {
                tracing::error!(%error, "clients could not be told of the models there are");
            }
        };
        ctx.spawn(told.into_actor(self));
    }
}

/// What differs between two configurations beneath what their texts say.
fn beneath(
    before: &Config,
    now: &Config,
    old: &AgentConfigs,
    new: &AgentConfigs,
    plugins: &Staged,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if before.auth != now.auth {
        found.insert("auth".to_owned());
    }
    for (name, provider) in &now.providers {
        if before.providers.get(name).is_some_and(|before| before != provider) {
            found.insert(format!("providers.{name}"));
        }
    }
    for channel in &now.channels {
        let known = before.channels.iter().find(|known| known.name == channel.name);
        if known.is_some_and(|known| known != channel) {
            found.insert(format!("channels.{}", channel.name));
        }
    }
    if before.bus != now.bus {
        found.insert("bus".to_owned());
    }
    if before.mcp != now.mcp {
        found.insert("mcp".to_owned());
    }
    found.extend(new.other_souls(old).map(|agent| format!("agents.{agent}.soul")));
    if plugins.changed().next().is_some() {
        found.insert("plugins".to_owned());
    }
    found
}

impl Handler<Adopt> for Gateway {
    type Result = ResponseActFuture<Self, Result<Adopted, Error>>;

    fn handle(&mut self, Adopt { config, commit }: Adopt, _: &mut Self::Context) -> Self::Result {
        if self.stopping {
            return Box::pin(fut::ready(Err(ErrorCode::Unavailable.error("the daemon is stopping"))));
        }
        let prepared = self.prepare(config);
        let committed = async move {
            let prepared = prepared.await?;
            if let Some(commit) = commit {
                tokio::task::spawn_blocking(commit).await.map_err(|_| lost())??;
            }
            Ok(prepared)
        };
        Box::pin(committed.into_actor(self).then(|prepared: Result<Prepared, Error>, gateway, _| {
            let applied = prepared.map(|prepared| gateway.apply(prepared));
            async move { Ok(applied?.await) }.into_actor(gateway)
        }))
    }
}
