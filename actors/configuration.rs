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

mod draft;
mod file;
mod layers;
mod soul;

use std::fmt;
use std::sync::Arc;

use actix::WeakRecipient;
use actix::prelude::*;
use clawmux_core::auth::Owner;
use clawmux_core::config::request::{
    ConfigCommand, ConfigIssue, ConfigReply, ConfigRequest, ConfigSnapshot, SoulRequest,
};
use clawmux_core::config::{self, Origin};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::exchanged::Exchanged;
use clawmux_core::reply::Reply;
use clawmux_core::time::Timestamp;
use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use crate::clock;
use crate::dispatch::Request;
use crate::gateway::{Adopt, Adopted};
use crate::observe::{Observe, Observed};

pub use draft::{Draft, Now, Setting};
pub use layers::Layers;
pub use soul::Soul;

/// Requests that may wait, and what others tell.
const MAILBOX: usize = 4096;

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
    /// What was in effect when the daemon started.
    started: Json,
    /// What is in effect.
    running: Exchanged<Json>,
    /// The keys that say something else than at the start, and take effect with the next one.
    waiting: Exchanged<Vec<String>>,
    /// Who has the daemon go over to another one; none = nobody.
    gateway: Exchanged<Option<WeakRecipient<Adopt>>>,
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
    /// What.
    pub request: ConfigRequest,
    /// Who.
    pub by: Arc<str>,
}

/// Has the daemon go over to what stands in its files. Where that is bad, everything stays as it is.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Reloaded, Error>")]
pub struct Reload {
    /// Who.
    pub by: Arc<str>,
}

/// The daemon went over to what stands in its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What is other than before, as `section.key` or as a section.
    pub applied: Vec<String>,
    /// What is other than at the start, and will be in effect after the next one.
    pub needs_restart: Vec<String>,
    /// What has no effect or is probably not meant.
    pub warnings: Vec<ConfigIssue>,
}

/// Says what keys say, and where that was written.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Explained, Error>")]
pub struct Explain {
    /// This key, or all of this section; none = all there are.
    pub path: Option<String>,
}

/// What keys say.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The keys, each with what its change waits for: `reload`, `restart` or nothing. Where there are
    /// complaints they are what the daemon goes on with, and their places say nothing.
    pub settings: Vec<(Setting, Option<&'static str>)>,
    /// Why the daemon could not go over to them; empty where it could.
    pub complaints: String,
}

/// Has one key say something, and the daemon go over to it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Changed, Error>")]
pub struct Change {
    /// Which, as `section.key`.
    pub path: String,
    /// What; null takes it away, so that the default holds, or what a weaker file says.
    pub value: Json,
    /// Who.
    pub by: Arc<str>,
}

/// A key was changed.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The file that says so.
    pub file: String,
    /// Whether it had to be written.
    pub is_written: bool,
    /// What it says now, and where that stands; more than one of a section, and none of a key that is
    /// not there any more.
    pub settings: Vec<Setting>,
    /// What came of it.
    pub reloaded: Reloaded,
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
        let started = layers.files().map(|files| layers.with(&files, config::examine).effective);
        let started = started.unwrap_or_default();
        Self {
            shared: Arc::new(Shared {
                layers,
                running: Exchanged::new(started.clone()),
                waiting: Exchanged::new(Vec::new()),
                started,
                gateway: Exchanged::default(),
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
        let mut applied = config::differences(&before, &after);
        self.running.set(after);
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
        let waits_for = |setting: &Setting| match config::at(&running, &setting.path) {
            Some(value) if *value == setting.value => None,
            None if setting.at == Origin::Default => None,
            _ if config::takes_a_restart(&setting.path) => Some("restart"),
            _ => Some("reload"),
        };
        if let Err(bad) = now.is_good() {
            let settings = now.all_settings_of(&running, path.as_deref())?;
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

impl Handler<Explain> for Configuration {
    type Result = ResponseActFuture<Self, Result<Explained, Error>>;

    fn handle(&mut self, Explain { path }: Explain, _: &mut Self::Context) -> Self::Result {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    const TEXT: &str = "# mine\n[limits]\nqueue = 3 # few\n";

    struct Home {
        folder: tempfile::TempDir,
        actor: Addr<Configuration>,
    }

    impl Home {
        fn new(text: Option<&str>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            if let Some(text) = text {
                fs::write(folder.path().join("gateway.toml"), text).unwrap();
            }
            let layers = Layers {
                home: folder.path().to_owned(),
                file: folder.path().join("gateway.toml"),
                env: vec![("CLAWMUX__BUDGETS__DAILY".into(), "7".into())],
                look: Some(|config, _| match config.log.filter.as_str() {
                    "nonsense" => vec!["log.filter: it is none".into()],
                    _ => Vec::new(),
                }),
                ..Layers::default()
            };
            Self { actor: Configuration::new(layers).start(), folder }
        }

        async fn ask(&self, request: ConfigRequest) -> Result<ConfigSnapshot, Error> {
            self.actor.send(Configure { request, by: "me".into() }).await.unwrap()
        }

        async fn get(&self) -> ConfigSnapshot {
            self.ask(ConfigRequest::Get).await.unwrap()
        }

        async fn set(&self, asked: Json, base_hash: &str) -> Result<ConfigSnapshot, Error> {
            let base_hash = base_hash.to_owned();
            self.ask(ConfigRequest::Set { asked, is_patch: false, base_hash }).await
        }

        async fn patch(&self, asked: Json) -> Result<ConfigSnapshot, Error> {
            let base_hash = self.get().await.hash;
            self.ask(ConfigRequest::Set { asked, is_patch: true, base_hash }).await
        }

        fn text(&self) -> String {
            fs::read_to_string(self.folder.path().join("gateway.toml")).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let names = fs::read_dir(self.folder.path()).unwrap();
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    #[actix::test]
    async fn a_change_is_written_where_the_file_is() {
        let home = Home::new(Some(TEXT));
        fs::set_permissions(home.folder.path().join("gateway.toml"), fs::Permissions::from_mode(0o640))
            .unwrap();
        let before = home.get().await;
        assert!(before.exists && !before.needs_restart && before.complaints.is_empty(), "{before:?}");
        assert_eq!(before.file, json!({ "limits": { "queue": 3 } }));
        assert_eq!(
            (&before.effective["budgets"]["daily"], &before.effective["limits"]["queue"]),
            (&json!(7), &json!(3))
        );

        let same = home.set(before.effective.clone(), &before.hash).await.unwrap();
        assert_eq!(
            (same.hash.as_str(), home.text().as_str()),
            (before.hash.as_str(), TEXT),
            "nothing was asked"
        );

        let mut asked = before.effective;
        asked["limits"]["queue"] = 4.into();
        let after = home.set(asked, &before.hash).await.unwrap();
        assert!(!after.needs_restart && after.hash != before.hash, "{after:?}");
        assert_eq!(home.text(), "# mine\n[limits]\nqueue = 4 # few\n");
        assert_eq!(fs::metadata(home.folder.path().join("gateway.toml")).unwrap().mode() & 0o777, 0o640);
        assert_eq!(home.names(), ["gateway.toml"], "nothing is left behind");
        let other = home.patch(json!({ "store": { "path": "other.db" } })).await.unwrap();
        assert_eq!((other.needs_restart, other.pending), (true, vec!["store.path".to_owned()]));
        let back = home.patch(json!({ "store": { "path": "clawmux.db" } })).await.unwrap();
        assert!(!back.needs_restart && back.pending.is_empty(), "as at the start again");
    }

    #[actix::test]
    async fn what_is_wrong_is_refused_as_a_whole() {
        let home = Home::new(Some(TEXT));
        let hash = home.get().await.hash;
        let asked =
            json!({ "limits": { "queue": 0, "queu": 1 }, "auth": { "token": "s3cret" }, "nonsense": {} });
        let error = home.set(asked, &hash).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        for says in [
            "limits.queue: expected a whole number",
            "limits.queu: unknown key",
            "nonsense: unknown key",
            "use token_env",
        ] {
            assert!(error.message.contains(says), "{says}: {error}");
        }
        assert!(!error.message.contains("s3cret"), "{error}");
        let error = home.patch(json!({ "log": { "filter": "nonsense" } })).await.unwrap_err();
        assert!(error.message.contains("log.filter: it is none"), "{error}");
        let error = home.set(json!({}), "another").await.unwrap_err();
        assert_eq!(error.message, "config changed since last load; re-run config.get and retry");
        assert_eq!(home.text(), TEXT);
        assert_eq!(home.names(), ["gateway.toml"]);
    }

    #[actix::test]
    async fn a_file_that_is_not_there_is_made_and_a_broken_one_is_left() {
        let home = Home::new(None);
        let before = home.get().await;
        assert!(!before.exists && before.file == json!({}) && !before.hash.is_empty(), "{before:?}");
        home.patch(json!({ "memory": { "episodic_turns": 9 } })).await.unwrap();
        assert_eq!(home.text(), "[memory]\nepisodic_turns = 9\n");
        assert_eq!(fs::metadata(home.folder.path().join("gateway.toml")).unwrap().mode() & 0o777, 0o600);

        let broken = "[limits\ntoken = \"s3cret\"";
        let home = Home::new(Some(broken));
        let found = home.get().await;
        assert!(found.file.is_null() && !found.complaints.is_empty(), "{found:?}");
        assert!(!format!("{found:?}").contains("s3cret"), "{found:?}");
        home.set(json!({}), &found.hash).await.unwrap_err();
        assert_eq!(home.text(), broken);
    }

    #[actix::test]
    async fn places_are_set_and_what_they_do_not_name_stays_or_goes() {
        let home = Home::new(Some("# mine\n[limits]\nqueue = 3 # few\nagents = 4\n"));
        let set = async |values: &[(&str, Json)], merge| {
            let values = values.iter().map(|(path, value)| ((*path).to_owned(), value.clone())).collect();
            home.ask(ConfigRequest::Place { values, merge }).await
        };
        let now = set(&[("limits.queue", json!(5)), ("budgets", json!({ "daily": 9 }))], true).await.unwrap();
        // The environment says another daily budget than the file.
        assert_eq!(now.effective["budgets"]["daily"], json!(7));
        assert!(now.pending.is_empty() && !now.needs_restart, "it holds at once");
        assert_eq!(home.text(), "# mine\n[limits]\nqueue = 5 # few\nagents = 4\n\n[budgets]\ndaily = 9\n");
        set(&[("limits", json!({ "queue": 6 })), ("budgets", Json::Null)], false).await.unwrap();
        assert_eq!(home.text(), "# mine\n[limits]\nqueue = 6 # few\n", "the section is what was asked");
        let before = home.text();
        for (values, says) in [
            (
                &[("limits.queue", json!(0)), ("limits.queu", json!(1)), ("nonsense", json!({}))][..],
                "limits.queu: unknown key",
            ),
            (&[("limits", json!({})), ("limits.queue", json!(1))], "limits.queue: lies within limits"),
            (&[("limits.queue.x", json!(1))], "what it lies in is no section"),
            (&[("limits.", json!(1))], "limits.: is no key"),
            (&[("", json!(1))], "is no key"),
            (&[("auth.token", json!("s3cret"))], "use token_env"),
        ] {
            for merge in [true, false] {
                let error = set(values, merge).await.unwrap_err();
                assert!(error.message.contains(says) && !error.message.contains("s3cret"), "{says}: {error}");
            }
        }
        let error = set(&[("limits.queue", json!(0)), ("limits.queu", json!(1))], true).await.unwrap_err();
        assert!(error.message.contains("limits.queue: expected"), "all at once: {error}");
        assert_eq!(home.text(), before);
    }

    #[actix::test]
    async fn a_key_is_set_in_the_file_it_comes_from() {
        let home = Home::new(Some(TEXT));
        let (system, file) =
            (home.folder.path().join("system.toml"), home.folder.path().join("gateway.toml"));
        fs::write(&system, "[memory] # all\nepisodic_turns = 2\n[limits]\nqueue = 9\nagents = 4\n").unwrap();
        let layers = Layers {
            home: home.folder.path().to_owned(),
            system: system.clone(),
            file: file.clone(),
            env: vec![("CLAWMUX__BUDGETS__DAILY".into(), "7".into())],
            listen: vec!["127.0.0.1:0".into()],
            ..Layers::default()
        };
        let of = |path: &str, value: Json| Draft::of_key(&layers, path, &value);
        for (path, from) in [
            ("memory.episodic_turns", &system),
            ("limits.queue", &file),
            ("limits.agents", &system),
            ("approvals.timeout_ms", &file),
        ] {
            let draft = of(path, json!(5)).unwrap();
            assert!(draft.file == *from && draft.is_change(), "{path}: {draft:?}");
            draft.write().unwrap();
            let now = draft.then().settings(Some(path)).unwrap();
            assert_eq!((now.len(), &now[0].value), (1, &json!(5)), "{path}");
        }
        assert_eq!(
            fs::read_to_string(&system).unwrap(),
            "[memory] # all\nepisodic_turns = 5\n[limits]\nqueue = 9\nagents = 5\n"
        );
        assert!(home.text().starts_with("# mine\n[limits]\nqueue = 5 # few\n"), "{}", home.text());
        for (path, says) in [
            ("budgets.daily", "the environment variable CLAWMUX__BUDGETS__DAILY"),
            ("gateway.listen", "--listen on the command line"),
            ("limits.queu", "limits.queu: unknown key; did you mean queue?"),
        ] {
            let error = of(path, json!(5)).unwrap_err();
            assert!(error.message.contains(says), "{path}: {error}");
        }
        // Taken away, what the weaker file says holds again.
        let draft = of("limits.queue", Json::Null).unwrap();
        draft.write().unwrap();
        assert_eq!(draft.then().settings(Some("limits.queue")).unwrap()[0].value, json!(9));
        assert_eq!(of("heartbeat", Json::Null).unwrap_err().code, ErrorCode::NotFound);
    }

    #[actix::test]
    async fn a_link_stays_one() {
        let home = Home::new(None);
        // Of a process that can't be, which left it half written.
        let left = home.folder.path().join(".real.toml.4294967295.new");
        fs::write(&left, "[lim").unwrap();
        let real = home.folder.path().join("real.toml");
        fs::write(&real, TEXT).unwrap();
        std::os::unix::fs::symlink(&real, home.folder.path().join("gateway.toml")).unwrap();
        home.patch(json!({ "limits": { "queue": 5 } })).await.unwrap();
        assert!(fs::symlink_metadata(home.folder.path().join("gateway.toml")).unwrap().is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("queue = 5 # few"));
        assert!(!left.exists(), "what was left is cleaned up: {:?}", home.names());
    }

    #[actix::test]
    async fn of_changes_of_the_same_one_is_made_and_readers_see_whole_files() {
        let home = Home::new(Some(TEXT));
        let path = home.folder.path().join("gateway.toml");
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let reading = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let mut seen = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let text = fs::read_to_string(&path).unwrap();
                    assert!(
                        text.starts_with("# mine\n[limits]\nqueue = ") && text.ends_with(" # few\n"),
                        "{text:?}"
                    );
                    seen += 1;
                }
                seen
            }
        });
        for round in 10..30 {
            let hash = home.get().await.hash;
            let sets = (0..4).map(|who| home.set(json!({ "limits": { "queue": round * 10 + who } }), &hash));
            let outcomes = futures::future::join_all(sets).await;
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reading.join().unwrap() > 0);
    }
}
