//! `Configuration`: what the daemon is configured to, and changes of it while it runs.
//!
//! The files are read anew for every answer, so that an answer tells of what stands there and not of
//! what was there at the start. A reload has the daemon go over to what stands there; a change is written
//! to one file, and the daemon goes over to that. Either happens wholly or not at all: it is tried
//! together with all other layers first ([`Draft`]), then the [`Gateway`](crate::gateway) gets everything
//! ready that it takes, and what it could not run on is refused with everything that is wrong. What
//! takes a restart is said by name.
//!
//! Files are read and written on threads for that; reloads and changes take place one at a time.

#[cfg(test)]
mod tests;

mod draft;
mod layers;
mod soul;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use actix::WeakRecipient;
use actix::prelude::*;
use clawmux_core::config::request::{
    ConfigCommand, ConfigIssue, ConfigReply, ConfigRequest, ConfigSnapshot, SoulRequest,
};
use clawmux_core::config::{self, Config, Origin};
use clawmux_core::daemon::operator::ExplainConfig;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
use clawmux_core::request::reply::Reply;
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use crate::runtime::ask::Typed;
use crate::runtime::clock;
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};

pub use clawmux_core::daemon::operator::{Changed, Explained, Reloaded, Setting};
pub use draft::{Draft, Now};
pub use layers::Layers;
pub use soul::Soul;

/// Requests that may wait, and what others tell.
const MAILBOX: usize = 4096;

/// Of a file of the configuration that is new: its owner's alone.
const FILE_MODE: u32 = 0o600;

/// The most bytes of a configuration file or a secret.
const BYTES_MAX: u64 = 1 << 20;

/// How many requests may be under way.
const UNDER_WAY_MAX: usize = 16;

/// How many complaints one answer tells.
const COMPLAINTS_MAX: usize = 50;

/// The actor.
pub struct Configuration {
    shared: Arc<Shared>,
    under_way: Arc<Semaphore>,
    figures: Figures,
    /// Why the last reload changed nothing; none where it went well.
    not_reloaded: Option<NotReloaded>,
}

/// A reload that changed nothing.
struct NotReloaded {
    by: Arc<str>,
    at: Timestamp,
    /// With file and line where it is a file that is wrong.
    why: String,
}

/// What requests under way work on.
struct Shared {
    layers: Layers,
    /// What was in effect when the daemon started; put together when first asked for.
    started: LazyLock<Json, Box<dyn FnOnce() -> Json + Send>>,
    /// What is in effect; none where it is that still.
    running: Swappable<Option<Json>>,
    /// The keys that say something else than at the start, and take effect with the next one.
    waiting: Swappable<Vec<String>>,
    /// Who has the daemon go over to another one; none = nobody.
    gateway: Swappable<Option<WeakRecipient<Adopt>>>,
    /// One reload or change at a time.
    turn: Semaphore,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    changes: u64,
    reloads: u64,
    failed: u64,
}

/// Asks, or asks for a change on behalf of somebody.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<ConfigSnapshot, Error>")]
pub struct Configure {
    /// What is asked or changed.
    pub request: ConfigRequest,
    /// On whose behalf, for the log.
    pub by: Arc<str>,
}

/// Has the daemon go over to what stands in its files. Where that is bad, everything stays as it is.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Reloaded, Error>")]
pub struct Reload {
    /// On whose behalf, for the log.
    pub by: Arc<str>,
}

/// Has one key say something, and the daemon go over to it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Changed, Error>")]
pub struct Change {
    /// Which, as `section.key`.
    pub path: String,
    /// What; null takes it away, so that the default holds, or what a weaker file says.
    pub value: Json,
    /// On whose behalf, for the log.
    pub by: Arc<str>,
}

/// What is done when everything is ready and nothing was changed yet: the last that may fail. Blocks.
pub type Commit = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Has the daemon go over to another configuration. What takes a restart in it stays as it is. Who asks
/// does so once at a time.
#[derive(Message)]
#[rtype(result = "Result<Adopted, Error>")]
pub struct Adopt {
    /// The configuration, validated.
    pub config: Config,
    /// What is done before it.
    pub commit: Option<Commit>,
}

/// It was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// What changed that the text of the configuration need not tell: secrets, souls and modules, which
    /// it only names. As `section.key`, or as a section.
    pub beneath: BTreeSet<String>,
}

impl fmt::Debug for Adopt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopt").field("commits", &self.commit.is_some()).finish_non_exhaustive()
    }
}

/// Who has the daemon go over to another configuration.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct AdoptBy(pub WeakRecipient<Adopt>);

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration").field("layers", &self.shared.layers).finish_non_exhaustive()
    }
}

impl Configuration {
    /// For a daemon that starts on these layers.
    pub fn new(layers: Layers) -> Self {
        // What can't be read now is complained of when it is asked for.
        let (files, then) = (layers.files(), layers.clone());
        let started = move || files.map(|files| then.with(&files, config::examine).effective);
        Self {
            shared: Arc::new(Shared {
                layers,
                running: Swappable::default(),
                waiting: Swappable::new(Vec::new()),
                started: LazyLock::new(Box::new(move || started().unwrap_or_default())),
                gateway: Swappable::default(),
                turn: Semaphore::new(1),
            }),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            figures: Figures::default(),
            not_reloaded: None,
        }
    }

    /// Does it, where not too much is under way.
    fn begin<T: 'static, F>(
        &self,
        doing: impl FnOnce(Arc<Shared>) -> F,
    ) -> ResponseActFuture<Self, Result<T, Error>>
    where
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let Ok(permit) = self.under_way.clone().try_acquire_owned() else {
            let why = "too much is asked of the configuration: try again";
            return Box::pin(fut::ready(Err(ErrorCode::Unavailable.error(why))));
        };
        let doing = doing(self.shared.clone());
        let done = async move {
            let _permit = permit;
            doing.await
        };
        Box::pin(done.into_actor(self))
    }
}

/// Does what blocks on a thread for that.
async fn block<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let lost = |_| ErrorCode::Internal.error("the configuration could not be looked at");
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}

impl Shared {
    /// Waits for those that came before.
    async fn turn(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // It is never closed.
        self.turn.acquire().await.ok()
    }

    /// The layers as they are now.
    async fn now(self: &Arc<Self>) -> Result<Now, Error> {
        let shared = self.clone();
        block(move || Now::read(&shared.layers)).await
    }

    async fn reload(self: Arc<Self>) -> Result<Reloaded, Error> {
        let _turn = self.turn().await;
        let now = self.now().await?;
        now.is_good()?;
        self.adopt(&now, || Ok(())).await
    }

    /// Has the daemon go over to `now`, once it is ready for that and `commit` has gone well.
    async fn adopt(
        &self,
        now: &Now,
        commit: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Result<Reloaded, Error> {
        let Some(config) = now.found.config.clone() else {
            return Err(ErrorCode::Internal.error("a configuration without complaints is none"));
        };
        let gateway = self.gateway.get();
        let Adopted { beneath } = match gateway.as_ref() {
            Some(gateway) => {
                let stopping = || ErrorCode::Unavailable.error("the daemon is stopping");
                let gateway = gateway.upgrade().ok_or_else(stopping)?;
                let adopt = Adopt { config, commit: Some(Box::new(commit)) };
                gateway.send(adopt).await.map_err(|_| stopping())??
            }
            None => {
                block(commit).await?;
                Adopted::default()
            }
        };
        let (before, after) = (self.running.get(), config::in_effect(&now.found.effective, &self.started));
        let before = Option::as_ref(&before).unwrap_or(&self.started);
        let mut applied = config::differences(before, &after);
        self.running.set(Some(after));
        let is_told = |path: &str| {
            applied.iter().any(|key| {
                key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        let beneath: Vec<String> = beneath.into_iter().filter(|path| !is_told(path)).collect();
        applied.extend(beneath);
        let needs_restart = draft::waits_for_restart(&self.started, &now.found.effective);
        self.waiting.set(needs_restart.clone());
        Ok(Reloaded { applied, needs_restart, warnings: now.warnings() })
    }

    async fn configure(
        self: Arc<Self>,
        request: ConfigRequest,
        by: Arc<str>,
    ) -> Result<ConfigSnapshot, Error> {
        let shared = self.clone();
        let draft = match request {
            ConfigRequest::Get | ConfigRequest::Look => {
                return Ok(self.now().await?.snapshot(&self.layers, &self.started));
            }
            ConfigRequest::Place { values, merge } => {
                let turn = self.turn().await;
                let draft = block(move || Draft::place(&shared.layers, &values, merge)).await?;
                (turn, draft)
            }
            ConfigRequest::Set { asked, is_patch, base_hash } => {
                let turn = self.turn().await;
                let draft =
                    block(move || Draft::change(&shared.layers, &asked, is_patch, &base_hash)).await?;
                (turn, draft)
            }
        };
        let (_turn, draft) = draft;
        self.carry_out(&draft, &by).await?;
        Ok(draft.then.snapshot(&self.layers, &self.started))
    }

    /// Writes a draft and has the daemon go over to it.
    async fn carry_out(&self, draft: &Draft, by: &str) -> Result<Reloaded, Error> {
        if !draft.is_change() {
            let needs_restart = draft::waits_for_restart(&self.started, &draft.then.found.effective);
            return Ok(Reloaded { needs_restart, ..Reloaded::default() });
        }
        let reloaded = self.adopt(&draft.then, draft.writing()).await?;
        let Reloaded { applied, needs_restart, .. } = &reloaded;
        tracing::info!(file = %draft.file.display(), %by, ?applied, ?needs_restart, "the configuration was set");
        Ok(reloaded)
    }

    async fn change(self: Arc<Self>, Change { path, value, by }: Change) -> Result<Changed, Error> {
        let _turn = self.turn().await;
        let (shared, key) = (self.clone(), path.clone());
        let draft = block(move || Draft::of_key(&shared.layers, &key, &value)).await?;
        let reloaded = self.carry_out(&draft, &by).await?;
        Ok(Changed {
            file: draft.file.display().to_string(),
            is_written: draft.is_change(),
            settings: draft.then.settings(Some(&path))?,
            reloaded,
        })
    }

    async fn explain(self: Arc<Self>, path: Option<String>) -> Result<Explained, Error> {
        let now = self.now().await?;
        let running = self.running.get();
        let running = Option::as_ref(&running).unwrap_or(&self.started);
        let waits_for = |setting: &Setting| match config::at(running, &setting.path) {
            Some(value) if *value == setting.value => None,
            None if setting.at == Origin::Default => None,
            _ if config::takes_a_restart(&setting.path) => Some("restart"),
            _ => Some("reload"),
        };
        if let Err(bad) = now.is_good() {
            let settings = now.all_settings_of(running, path.as_deref())?;
            let settings = settings.into_iter().map(|setting| (setting, None)).collect();
            return Ok(Explained { settings, complaints: bad.message });
        }
        let settings = now.all_settings(path.as_deref())?;
        let settings = settings.into_iter().map(|setting| {
            let waits = waits_for(&setting);
            (setting, waits)
        });
        Ok(Explained { settings: settings.collect(), complaints: String::new() })
    }
}

impl Actor for Configuration {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<AdoptBy> for Configuration {
    type Result = ();

    fn handle(&mut self, AdoptBy(gateway): AdoptBy, _: &mut Self::Context) {
        self.shared.gateway.set(Some(gateway));
    }
}

impl Handler<Request<ConfigCommand>> for Configuration {
    type Result = ();

    fn handle(&mut self, request: Request<ConfigCommand>, ctx: &mut Self::Context) {
        let Request { command, principal, asker } = request;
        let by = principal.name.clone();
        match command {
            ConfigCommand::Config(request) => {
                let now = Handler::<Configure>::handle(self, Configure { request, by }, ctx);
                ctx.spawn(now.map(move |now, _, _| {
                    let is_told_all = principal.owner == Owner::Admins;
                    let now = now.map(|now| if is_told_all { now } else { now.in_common() });
                    asker.reply(now.map(|now| Reply::Config(ConfigReply::Config(Box::new(now)))));
                }));
            }
            ConfigCommand::Soul(SoulRequest { agent, text }) => {
                let soul = Handler::<Soul>::handle(self, Soul { agent, text, by }, ctx);
                ctx.spawn(soul.map(|soul, _, _| {
                    asker.reply(soul.map(|soul| Reply::Config(ConfigReply::Soul(Box::new(soul)))));
                }));
            }
        }
    }
}

impl Handler<Configure> for Configuration {
    type Result = ResponseActFuture<Self, Result<ConfigSnapshot, Error>>;

    fn handle(&mut self, Configure { request, by }: Configure, _: &mut Self::Context) -> Self::Result {
        if matches!(request, ConfigRequest::Set { .. } | ConfigRequest::Place { .. }) {
            self.figures.changes += 1;
        }
        self.begin(|shared| shared.configure(request, by))
    }
}

impl Handler<Reload> for Configuration {
    type Result = ResponseActFuture<Self, Result<Reloaded, Error>>;

    fn handle(&mut self, Reload { by }: Reload, _: &mut Self::Context) -> Self::Result {
        let reloaded = self.begin(Shared::reload);
        Box::pin(reloaded.map(move |reloaded, configuration: &mut Self, _| {
            match &reloaded {
                Ok(Reloaded { applied, needs_restart, warnings }) => {
                    configuration.figures.reloads += 1;
                    configuration.not_reloaded = None;
                    tracing::info!(%by, ?applied, ?needs_restart, "the configuration was reloaded");
                    for ConfigIssue { path, message } in warnings {
                        tracing::warn!(%path, "configuration: {message}");
                    }
                }
                Err(error) => {
                    configuration.figures.failed += 1;
                    let (whose, why) = (by.clone(), error.message.clone());
                    configuration.not_reloaded = Some(NotReloaded { by: whose, at: clock::wall(), why });
                    tracing::error!(%by, "the configuration was not reloaded; the old one stays in use:");
                    for line in error.message.lines() {
                        tracing::error!("configuration: {line}");
                    }
                }
            }
            reloaded
        }))
    }
}

impl Handler<Change> for Configuration {
    type Result = ResponseActFuture<Self, Result<Changed, Error>>;

    fn handle(&mut self, change: Change, _: &mut Self::Context) -> Self::Result {
        self.figures.changes += 1;
        // It goes over to all that stands in the files, and not to the one key alone.
        let changed = self.begin(|shared| shared.change(change));
        Box::pin(changed.map(|changed, configuration: &mut Self, _| {
            if changed.is_ok() {
                configuration.not_reloaded = None;
            }
            changed
        }))
    }
}

/// Says what keys say, and where that was written.
impl Handler<Typed<ExplainConfig>> for Configuration {
    type Result = ResponseActFuture<Self, Result<Explained, Error>>;

    fn handle(
        &mut self,
        Typed(ExplainConfig { path }): Typed<ExplainConfig>,
        _: &mut Self::Context,
    ) -> Self::Result {
        self.begin(|shared| shared.explain(path))
    }
}

impl Handler<Observe> for Configuration {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let under_way = UNDER_WAY_MAX - self.under_way.available_permits();
        let file = self.shared.layers.file.display().to_string();
        let Figures { changes, reloads, failed } = self.figures;
        Observed::leaf(
            "configuration",
            json!({
                "file": file,
                "changes_asked": changes,
                "reloads": reloads,
                "reloads_failed": failed,
                "under_way": under_way,
                "waits_for_restart": &*self.shared.waiting.get(),
                "not_reloaded": self.not_reloaded.as_ref().map(|NotReloaded { by, at, why }| {
                    json!({ "by": &**by, "at_ms": at.as_millis(), "error": why })
                }),
            }),
        )
    }
}
