//! `Embedder`: vectors of a provider's model for what is remembered, and the search by them.
//!
//! What is remembered is stored at once and without a vector; whoever stored it calls the embedder ([`Look`]), which
//! asks the store for entries that the model of the configuration made no vector of, a few of one owner at a time,
//! and has the provider make them. What is to be done stands in the store alone: after a crash, or with another model,
//! it is found there again. What fails is done later, after pauses that grow; texts that the provider does not take
//! are left without a vector.
//!
//! A question gets a vector of the same model within a short deadline. Where it gets none (no answer in time, a
//! provider that is left alone since it failed, a budget that is used up) it is answered by what is built in: words,
//! the vectors that are made here, and the graph of facts. The log says so now and then, the daemon's health always.

mod round;

use std::collections::HashSet;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::config::Config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner};
use clawmux_core::memory::{Embedding, Found};
use clawmux_core::provider::embeddings::TEXTS_MAX;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::time::Timestamp;
use serde_json::json;

use crate::provider_supervisor::ProviderSupervisor;
use crate::provider_supervisor::embedding::Embed;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{Recall, Store};

use round::Outcome;

/// Questions that may wait.
const MAILBOX: usize = 1024;

/// The pause after a first failure, and the longest one.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// After so many failures in a row the entry that is asked for alone has to wait for the others.
const TRIES: u32 = 3;

/// Entries that wait for the others: one more, and all are tried again.
const PASSED_MAX: usize = 64;

/// Owners without a budget for it, whose entries wait too.
const SPENT_MAX: usize = 64;

/// How often the log is told that there are no vectors.
const TELL_EVERY: Duration = Duration::from_secs(300);

/// Who makes vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedderSettings {
    /// The model; none = nobody does.
    pub model: Option<ModelRef>,
    /// The agent for which it counts.
    pub agent: AgentId,
    /// How long a question waits for its vector.
    pub timeout: Duration,
}

impl EmbedderSettings {
    /// Those of a configuration.
    pub fn of(config: &Config) -> Self {
        let agent = config.default_agent.as_ref().or_else(|| config.agents.keys().next());
        Self {
            model: config.memory.embeddings.clone(),
            agent: agent.cloned().unwrap_or_else(|| AgentId::from("main")),
            timeout: config.memory.embeddings_timeout,
        }
    }
}

/// Has vectors made and looks for what is near them.
pub struct Embedder {
    settings: EmbedderSettings,
    store: Addr<Store>,
    providers: Addr<ProviderSupervisor>,
    /// How often the settings changed: what comes of a round before that says nothing.
    generation: u64,
    is_busy: bool,
    /// Whether something was stored since it was looked last.
    is_called: bool,
    /// Until it looks again.
    pause: Option<SpawnHandle>,
    /// How many entries are asked for at once.
    size: usize,
    /// In a row.
    failures: u32,
    /// Whether the model made a vector of anything yet.
    has_succeeded: bool,
    /// The rows of entries that wait for the others.
    passed: HashSet<i64>,
    /// Whether those are tried again at a set time.
    is_trying_later: bool,
    /// Owners for whom the budgets left nothing.
    spent: HashSet<Owner>,
    /// What went wrong last; none once it went well again.
    trouble: Option<String>,
    told: Option<Timestamp>,
    embedded: u64,
    left_out: u64,
    failed: u64,
    questions: u64,
    questions_without: u64,
}

/// Something was stored that may have no vector yet.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Look;

/// Asks for what answers a question best, by what it means too where it is about something.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Found, Error>")]
pub struct Find(pub Recall);

/// Goes over to other settings.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure(pub EmbedderSettings);

/// Tells that something was stored. Where too much waits already, it is found with that.
pub fn look(embedder: &Addr<Embedder>) {
    let _ = embedder.try_send(Look);
}

impl Embedder {
    /// With these settings.
    pub fn new(settings: EmbedderSettings, store: Addr<Store>, providers: Addr<ProviderSupervisor>) -> Self {
        Self {
            settings,
            store,
            providers,
            generation: 0,
            is_busy: false,
            is_called: false,
            pause: None,
            size: TEXTS_MAX,
            failures: 0,
            has_succeeded: false,
            passed: HashSet::new(),
            spent: HashSet::new(),
            is_trying_later: false,
            trouble: None,
            told: None,
            embedded: 0,
            left_out: 0,
            failed: 0,
            questions: 0,
            questions_without: 0,
        }
    }

    /// Begins a round, where there is to be one now.
    fn look(&mut self, ctx: &mut Context<Self>) {
        self.is_called = true;
        let Some(model) = &self.settings.model else { return };
        if self.is_busy || self.pause.is_some() {
            return;
        }
        (self.is_busy, self.is_called) = (true, false);
        let round = round::Round {
            model: model.clone(),
            agent: self.settings.agent.clone(),
            size: self.size,
            but: self.passed.iter().copied().collect(),
            but_of: self.spent.iter().cloned().collect(),
            leaves_out: self.has_succeeded,
        };
        let (store, providers, generation) = (self.store.clone(), self.providers.clone(), self.generation);
        let done = async move { round.run(&store, &providers).await };
        ctx.spawn(done.into_actor(self).map(move |outcome, embedder, ctx| {
            embedder.is_busy = false;
            if embedder.generation == generation {
                embedder.came_to(outcome, ctx);
            } else {
                embedder.look(ctx);
            }
        }));
    }

    /// What comes after a round.
    fn came_to(&mut self, outcome: Outcome, ctx: &mut Context<Self>) {
        match outcome {
            Outcome::NothingLeft if self.is_called => self.look(ctx),
            Outcome::NothingLeft if !self.passed.is_empty() || !self.spent.is_empty() => {
                self.try_all_later(ctx);
            }
            Outcome::NothingLeft => {}
            Outcome::Embedded(entries) => {
                self.embedded += entries as u64;
                self.succeeded();
                self.look(ctx);
            }
            Outcome::LeftOut => {
                self.left_out += 1;
                self.failures = 0;
                self.look(ctx);
            }
            Outcome::NotTaken => {
                // One of them may be why: it is not to hold up the others.
                self.size = 1;
                self.look(ctx);
            }
            Outcome::Spent(error, owner) => {
                self.failed += 1;
                self.tell(&error);
                if self.spent.len() >= SPENT_MAX {
                    self.spent.clear();
                    return self.rest(PAUSE_MAX, ctx);
                }
                self.spent.insert(owner);
                self.look(ctx);
            }
            Outcome::Failed(error, alone) => {
                self.failed += 1;
                self.failures += 1;
                self.size = 1;
                if let Some(row) = alone.filter(|_| self.failures.is_multiple_of(TRIES)) {
                    if self.passed.len() >= PASSED_MAX {
                        self.passed.clear();
                    }
                    self.passed.insert(row);
                }
                self.tell(&error);
                let doublings = self.failures.saturating_sub(1).min(16);
                self.rest(PAUSE.saturating_mul(1 << doublings).min(PAUSE_MAX), ctx);
            }
        }
    }

    /// Tries those that wait for the others once more; what is stored meanwhile does not wait for that.
    fn try_all_later(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.is_trying_later, true) {
            return;
        }
        ctx.run_later(PAUSE_MAX, |embedder, ctx| {
            embedder.is_trying_later = false;
            embedder.passed.clear();
            embedder.spent.clear();
            embedder.look(ctx);
        });
    }

    fn rest(&mut self, pause: Duration, ctx: &mut Context<Self>) {
        self.pause = Some(ctx.run_later(pause, |embedder, ctx| {
            embedder.pause = None;
            embedder.look(ctx);
        }));
    }

    fn succeeded(&mut self) {
        (self.failures, self.has_succeeded, self.trouble) = (0, true, None);
        self.size = (self.size * 2).min(TEXTS_MAX);
    }

    /// Notes that there are no vectors, and tells the log where it was not told lately.
    fn tell(&mut self, error: &Error) {
        let now = clock::now();
        if self.told.is_none_or(|told| now.since(told) >= TELL_EVERY) {
            self.told = Some(now);
            // Quoted: it may repeat what a provider said.
            tracing::warn!(error = ?error.message, "there are no vectors of memory.embeddings: what is remembered is found by the built-in ones");
        }
        // In no words of a provider.
        let why = match error.code {
            ErrorCode::BudgetExceeded => "a budget is used up",
            ErrorCode::Timeout => "it did not answer in time",
            _ => "it fails, or is left alone since it did",
        };
        self.trouble = Some(why.to_owned());
    }

    /// What is to be told of it as out of order.
    fn wrong(&self) -> Option<String> {
        let (model, why) = (self.settings.model.as_ref()?, self.trouble.as_ref()?);
        Some(format!(
            "memory.embeddings: no vectors of {model} ({why}): memories are found by the built-in ones"
        ))
    }

    /// The vector of a question, where it may have one.
    fn question(&self, recall: &Recall) -> Option<(ModelRef, Embed)> {
        let model = self.settings.model.clone()?;
        let (text, owner) = (recall.question.topic()?.to_owned(), recall.owner.clone()?);
        let EmbedderSettings { agent, timeout, .. } = &self.settings;
        let embed =
            Embed { owner, agent: agent.clone(), model: model.clone(), texts: vec![text], within: *timeout };
        Some((model, embed))
    }

    fn answered(&mut self, vector: Result<Embedding, Error>) -> Option<Embedding> {
        self.questions += 1;
        match vector {
            Ok(vector) => {
                self.trouble = None;
                Some(vector)
            }
            Err(error) => {
                self.questions_without += 1;
                self.tell(&error);
                None
            }
        }
    }
}

impl Actor for Embedder {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.look(ctx);
    }
}

impl Handler<Look> for Embedder {
    type Result = ();

    fn handle(&mut self, _: Look, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

impl Handler<Find> for Embedder {
    type Result = ResponseActFuture<Self, Result<Found, Error>>;

    fn handle(&mut self, Find(mut recall): Find, _: &mut Self::Context) -> Self::Result {
        let store = self.store.clone();
        let Some((model, embed)) = self.question(&recall) else {
            return Box::pin(async move { ask(&store, recall).await? }.into_actor(self));
        };
        let providers = self.providers.clone();
        let vector = async move {
            let vectors = round::embedded(&providers, embed).await.map_err(|none| none.error)?;
            vectors.into_iter().next().ok_or_else(|| ErrorCode::Internal.error("no vector"))
        };
        Box::pin(vector.into_actor(self).then(move |vector, embedder, _| {
            if let Some(vector) = embedder.answered(vector) {
                recall.question = recall.question.meaning(model.to_string(), vector);
            }
            async move { ask(&store, recall).await? }.into_actor(embedder)
        }))
    }
}

impl Handler<Reconfigure> for Embedder {
    type Result = ();

    fn handle(&mut self, Reconfigure(settings): Reconfigure, ctx: &mut Self::Context) {
        // Whatever else was changed may be what a failure was about.
        if let Some(pause) = self.pause.take() {
            ctx.cancel_future(pause);
        }
        (self.failures, self.size, self.trouble, self.told) = (0, TEXTS_MAX, None, None);
        self.passed.clear();
        self.spent.clear();
        if settings != self.settings {
            self.generation += 1;
            self.has_succeeded &= settings.model == self.settings.model;
            self.settings = settings;
        }
        self.look(ctx);
    }
}

impl Handler<Observe> for Embedder {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "embedder",
            json!({
                "model": self.settings.model.as_ref().map(ToString::to_string),
                "wrong": self.wrong(),
                "looking": self.is_busy,
                "paused": self.pause.is_some(),
                "entries": self.embedded,
                "left_out": self.left_out,
                "failed": self.failed,
                "questions": self.questions,
                "questions_without": self.questions_without,
            }),
        )
    }
}
