//! `Learner`: what was said, as facts about whom it was said by.
//!
//! A session that has answered a prompt hands it over and goes on at once: nothing waits for what is learned.
//! Exchanges are looked at one after the other; those that are too many are dropped, which the log says. A model
//! is asked as for any prompt, through the provider supervisor: its tokens are those of the session. Besides,
//! learning has tokens of its own for a day, counted in the store before it asks.
//!
//! What waits here is in memory alone: a crash forgets it. What was learned is written at once, all facts of a run
//! or none, under ids that follow from the run, so that nothing is learned twice.

mod asking;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner, RunId, SessionKey};
use clawmux_core::learning::{Exchange, rules};
use clawmux_core::memory::{Fact, MemoryRecord};
use clawmux_core::provider::model::ModelRef;
use serde_json::json;

use crate::embedder::{self, Embedder};
use crate::provider_supervisor::ProviderSupervisor;
use crate::provider_supervisor::account::Account;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{Learn, Store};

/// Exchanges that may wait.
const WAITING_MAX: usize = 64;

/// Owners that are remembered to have been told of in the log that their memory is full.
const FULL_MAX: usize = 1024;

/// Finds facts in exchanges.
pub struct Learner {
    store: Addr<Store>,
    providers: Addr<ProviderSupervisor>,
    embedder: Addr<Embedder>,
    waiting: VecDeque<LearnFrom>,
    is_busy: bool,
    /// Owners whose memory was full when something of theirs was learned last.
    full: HashSet<Owner>,
    /// Whether exchanges were dropped since there was room last.
    is_dropping: bool,
    exchanges: u64,
    dropped: u64,
    failed: u64,
    facts: u64,
}

/// Looks at what was said in a run that is over.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LearnFrom {
    /// The session.
    pub session: SessionKey,
    /// The run.
    pub run: RunId,
    /// What was said.
    pub exchange: Exchange,
    /// The model to ask; none = the rules.
    pub model: Option<Asked>,
}

/// Who is asked for facts, and what that may take.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The agent that answered.
    pub agent: AgentId,
    /// Its models.
    pub models: Vec<ModelRef>,
    /// What its session has spent.
    pub account: Account,
    /// The most tokens that learning may spend on a day; 0 = any.
    pub tokens_a_day: u64,
    /// How long it may take.
    pub timeout: Duration,
}

impl Learner {
    /// Ready to learn.
    pub fn new(store: Addr<Store>, providers: Addr<ProviderSupervisor>, embedder: Addr<Embedder>) -> Self {
        Self {
            store,
            providers,
            embedder,
            waiting: VecDeque::new(),
            is_busy: false,
            full: HashSet::new(),
            is_dropping: false,
            exchanges: 0,
            dropped: 0,
            failed: 0,
            facts: 0,
        }
    }

    fn look_at_next(&mut self, ctx: &mut Context<Self>) {
        if self.is_busy {
            return;
        }
        let Some(next) = self.waiting.pop_front() else {
            self.is_dropping = false;
            return;
        };
        self.is_busy = true;
        self.exchanges += 1;
        let (store, providers) = (self.store.clone(), self.providers.clone());
        let (run, owner) = (next.run.clone(), next.session.owner());
        let learned = async move { learn(&store, &providers, next).await };
        ctx.spawn(learned.into_actor(self).map(move |learned, learner, ctx| {
            learner.is_busy = false;
            learner.learned(&run, owner, learned);
            learner.look_at_next(ctx);
        }));
    }

    /// What became of an exchange.
    fn learned(&mut self, run: &RunId, owner: Owner, learned: Result<u64, Error>) {
        match learned {
            Ok(facts) => {
                self.facts += facts;
                if facts > 0 {
                    embedder::look(&self.embedder);
                    self.full.remove(&owner);
                    tracing::debug!(%run, facts, "facts were learned");
                }
            }
            Err(error) if error.code == ErrorCode::TooLarge => {
                self.failed += 1;
                // Said once: it is so until somebody forgets something.
                if self.full.len() < FULL_MAX && self.full.insert(owner.clone()) {
                    let owner = owner.as_str();
                    tracing::warn!(owner, %error, "nothing is learned any more for this owner");
                }
            }
            // The session was deleted meanwhile: nothing of it is to be known.
            Err(error) if error.code == ErrorCode::NotFound => {
                tracing::debug!(%run, %error, "nothing was learned");
            }
            Err(error) => {
                self.failed += 1;
                tracing::warn!(%run, error = ?error.message, "nothing was learned from a run");
            }
        }
    }
}

/// Learns from an exchange; gives how many facts it said.
async fn learn(
    store: &Addr<Store>,
    providers: &Addr<ProviderSupervisor>,
    from: LearnFrom,
) -> Result<u64, Error> {
    let LearnFrom { session, run, exchange, model } = from;
    let facts: Vec<Fact> = match model {
        None => rules::facts(&exchange.prompt),
        Some(asked) => asking::facts(store, providers, (&session, &run), &exchange, asked).await?,
    };
    if facts.is_empty() {
        return Ok(0);
    }
    let now = clock::now();
    let learned: Vec<MemoryRecord> =
        facts.into_iter().map(|fact| MemoryRecord::learned(fact, (&run, &session), now)).collect();
    let count = learned.len() as u64;
    ask(store, Learn(learned)).await??;
    Ok(count)
}

impl Actor for Learner {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(WAITING_MAX);
    }
}

impl Handler<LearnFrom> for Learner {
    type Result = ();

    fn handle(&mut self, from: LearnFrom, ctx: &mut Self::Context) {
        if self.waiting.len() >= WAITING_MAX {
            self.dropped += 1;
            if !std::mem::replace(&mut self.is_dropping, true) {
                tracing::warn!(
                    waiting = WAITING_MAX,
                    "too many answers wait to be learned from: some are skipped"
                );
            }
            return;
        }
        self.waiting.push_back(from);
        self.look_at_next(ctx);
    }
}

impl Handler<Observe> for Learner {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "learner",
            json!({
                "queued": self.waiting.len(),
                "looking": self.is_busy,
                "exchanges": self.exchanges,
                "dropped": self.dropped,
                "failed": self.failed,
                "facts": self.facts,
            }),
        )
    }
}
