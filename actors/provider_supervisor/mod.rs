//! `ProviderSupervisor`: budgets, and who may call a model.
//!
//! Every paid call passes here: where there is room among the calls under way and in the budgets it
//! answers with the stream of [`Deltas`], and in the end it settles what the call cost. The stream itself
//! runs beside its session, on the session's arbiter, and never comes through this mailbox.
//!
//! Deliberately absent: client sockets, and the conversation.

pub mod account;
mod answer;
mod call;
mod charge;
mod client;
pub mod default_model;
pub mod deltas;
pub mod probe;
pub mod shared_budget;
mod shared_meter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, MessageResult, Recipient,
    ResponseActFuture, WrapFuture as _, fut,
};
use clawmux_core::config::{self, Config};
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{AgentId, RunId, SessionKey};
use clawmux_core::provider::breaker::Breakers;
use clawmux_core::provider::budget::Budget;
use clawmux_core::provider::facts::KnownModels;
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::meter::{Meter, Reservation};
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::notice::{Notice, NoticeKind};
use clawmux_core::provider::prefix::Prefixes;
use clawmux_core::provider::price::{Money, Price};
use clawmux_core::provider::tally::{Spent, SpentBy};
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{ChatRequest, encode, estimate_input, output_tokens};
use clawmux_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::runtime::clock;
use crate::runtime::meters::Meters;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{BeginCall, RecordUsage, Store};

use account::Account;
pub use call::Deadlines;
pub(crate) use call::{Call, Candidate, Endpoint};
pub(crate) use charge::{Charge, Outcome, Payer};
use default_model::Defaults;
use deltas::Deltas;
use shared_budget::SharedBudgets;
use shared_meter::{CallSize, SharedMeter};

/// The most calls under way at once.
const CALLS_MAX: usize = 256;

/// The most that wait for their turn, and how long.
const WAITING_MAX: usize = 1024;
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long it may take to write down that a call begins.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// For how long a provider counts as failing that was not asked again.
const FAILING_FOR: Duration = Duration::from_secs(3600);

/// The most models that are remembered to be without tools: more than configurations have.
const TOOLLESS_MAX: usize = 1024;

/// Usage records kept while the log can't be written, and how often they are tried again.
const UNKEPT_MAX: usize = 4096;
const KEEP_RETRY: Duration = Duration::from_secs(2);

/// Grants provider calls and meters them.
pub struct ProviderSupervisor {
    config: Arc<Config>,
    endpoints: BTreeMap<String, Arc<Endpoint>>,
    /// In place of those of the providers.
    deadlines: Option<Deadlines>,
    meter: SharedMeter,
    /// What is known of models.
    known: Arc<KnownModels>,
    /// The last requests of sessions.
    prefixes: Prefixes,
    /// Where calls under way and what they cost are written down.
    calls: Option<CallLog>,
    slots: Arc<Semaphore>,
    waiting: usize,
    waiting_max: usize,
    wait_max: Duration,
    granted: u64,
    refused: u64,
    used: Usage,
    /// Usage records that could not be written yet.
    unkept: Vec<RecordUsage>,
    shared_budgets: SharedBudgets,
    meters: Meters,
    /// What went wrong last with each provider of whom something did.
    failing: BTreeMap<String, Failing>,
    /// The models that are left alone for a while.
    breakers: Breakers,
    /// The models that can't call tools, as their servers said.
    toolless: BTreeSet<ModelRef>,
    /// The models of agents that name none.
    defaults: Defaults,
}

/// Where calls are written down.
#[derive(Clone, Debug)]
pub struct CallLog {
    /// Those that begin.
    pub begun: Recipient<BeginCall>,
    /// Those that are over.
    pub over: Recipient<RecordUsage>,
}

impl CallLog {
    /// In the store.
    pub fn of(store: &Addr<Store>) -> Self {
        Self { begun: store.clone().recipient(), over: store.clone().recipient() }
    }
}

/// What went wrong last with a provider.
#[derive(Debug)]
struct Failing {
    /// So many of its last calls failed in a row; none once one went well again.
    calls: u64,
    last: Error,
    at: Timestamp,
}

/// Asks a model. `request.model` is filled in from the agent's models, `request.max_tokens` is the agent's
/// at most, with room for the thoughts it asks for added, and clamped to what the budgets leave.
#[derive(Debug, Message)]
#[rtype(result = "Result<Deltas, Error>")]
pub struct Chat {
    /// The session that asks.
    pub session: SessionKey,
    /// The run.
    pub run: RunId,
    /// The agent that is asked.
    pub agent: AgentId,
    /// The models that answer for it; empty = those that are configured for it now.
    pub models: Vec<ModelRef>,
    /// The model to ask in place of the agent's first.
    pub model: Option<ModelRef>,
    /// What is asked.
    pub request: ChatRequest,
    /// What the session has spent so far; the call is added to it when it is over.
    pub account: Account,
}

/// A call is over: gives its reservation back and counts what it cost. Sent by its guard.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Settle {
    /// The number of the call.
    pub(crate) call: u64,
    pub(crate) reservation: Reservation,
    /// One for each model that was called and may have counted something.
    pub(crate) records: Vec<UsageRecord>,
    /// How the calls came out, in order.
    pub(crate) outcomes: Vec<Outcome>,
}

/// Goes over to another configuration. Calls under way go on as they began; what was spent counts on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure {
    /// The configuration.
    pub config: Arc<Config>,
    /// Its providers.
    pub endpoints: Endpoints,
}

/// From now on this is known of models.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct KnowModels(pub Arc<KnownModels>);

/// The providers of a configuration, ready to be called.
#[derive(Clone, Debug)]
pub struct Endpoints(BTreeMap<String, Arc<Endpoint>>);

impl Endpoints {
    /// Reads the files of certificate authorities. Blocks.
    ///
    /// # Errors
    /// `InvalidRequest` where such a file can't be read or holds no certificate.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let endpoint = |(name, provider): (&String, &config::Provider)| {
            Ok((name.clone(), Arc::new(Endpoint::new(name, provider)?)))
        };
        config.providers.iter().map(endpoint).collect::<Result<_, Error>>().map(Self)
    }
}

/// Asks how the budgets stand.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Vec<Budget>")]
pub struct BudgetStatus {
    /// What a session has spent, where its budget is of interest.
    pub session_spent: Option<Spent>,
}

impl ProviderSupervisor {
    /// Reads the files of certificate authorities, so it belongs to the start of the daemon.
    /// Calls are written down in `calls`; `spent` is what is known there to be spent in the day and the month
    /// (see [`clawmux_core::provider::meter::day_start`]).
    ///
    /// # Errors
    /// `InvalidRequest` where such a file can't be read or holds no certificate.
    pub fn new(config: Arc<Config>, calls: Option<CallLog>, spent: Vec<SpentBy>) -> Result<Self, Error> {
        let Endpoints(endpoints) = Endpoints::new(&config)?;
        Ok(Self {
            meter: SharedMeter::new(Meter::new(&config.budgets, spent, clock::now())),
            known: Arc::new(config.models.clone()),
            prefixes: Prefixes::default(),
            config,
            endpoints,
            deadlines: None,
            calls,
            slots: Arc::new(Semaphore::new(CALLS_MAX)),
            waiting: 0,
            waiting_max: WAITING_MAX,
            wait_max: WAIT_MAX,
            granted: 0,
            refused: 0,
            used: Usage::default(),
            unkept: Vec::new(),
            shared_budgets: SharedBudgets::default(),
            meters: Meters::default(),
            failing: BTreeMap::new(),
            breakers: Breakers::default(),
            toolless: BTreeSet::new(),
            defaults: Defaults::default(),
        })
    }

    /// Of sessions that spend together from these purses.
    #[must_use]
    pub fn with_purses(mut self, shared_budgets: SharedBudgets) -> Self {
        self.shared_budgets = shared_budgets;
        self
    }

    /// Which counts its calls here.
    #[must_use]
    pub fn with_meters(mut self, meters: Meters) -> Self {
        self.meters = meters;
        self
    }

    /// With other deadlines than those of its providers.
    #[must_use]
    pub fn with_deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = Some(deadlines);
        self
    }

    /// With room for so many calls at once and so many that wait for so long.
    #[must_use]
    pub fn with_room(mut self, calls: usize, waiting: usize, wait: Duration) -> Self {
        self.slots = Arc::new(Semaphore::new(calls));
        self.waiting_max = waiting;
        self.wait_max = wait;
        self
    }

    /// The models of an agent with where they are, `first` in place of its first one.
    fn candidates(
        &self,
        agent: &AgentId,
        models: &[ModelRef],
        first: Option<&ModelRef>,
    ) -> Result<(Vec<Candidate>, u32), Error> {
        let configured = self.config.agents.get(agent);
        let (models, max_tokens) = match configured {
            Some(configured) if models.is_empty() => (&*configured.models, configured.max_tokens),
            // As it was when its run began.
            configured if !models.is_empty() => {
                (models, configured.map_or(u32::MAX, |agent| agent.max_tokens))
            }
            _ => return Err(ErrorCode::NotFound.error(format!("agent {agent} is not configured"))),
        };
        let mut seen = BTreeSet::new();
        // Its provider may have gone since it was set.
        let first = first.filter(|model| self.endpoints.contains_key(&model.provider));
        let own = models.iter().skip(usize::from(first.is_some()));
        let candidates: Vec<Candidate> = first
            .into_iter()
            .chain(own)
            .filter(|model| seen.insert((&model.provider, &model.model)))
            .filter_map(|model| {
                let endpoint = self.endpoints.get(&model.provider)?.clone();
                let deadlines = self.deadlines.unwrap_or_else(|| endpoint.patience.into());
                let by_default = model.model.is_empty();
                let known = if by_default { self.defaults.of(&model.provider) } else { model.model.clone() };
                let facts =
                    self.known.of(&ModelRef { provider: model.provider.clone(), model: known.clone() });
                Some(Candidate { endpoint, model: known, by_default, deadlines, facts })
            })
            .collect();
        if candidates.is_empty() {
            return Err(
                ErrorCode::NotFound.error(format!("agent {agent} has no model of a configured provider"))
            );
        }
        Ok((candidates, max_tokens))
    }

    /// The call, what is to be in the log before it is made, and whether any budget bounds it.
    fn grant(
        &mut self,
        chat: Chat,
        slot: OwnedSemaphorePermit,
        supervisor: &Addr<Self>,
    ) -> Result<(Deltas, BeginCall, bool), Error> {
        let Chat { session, run, agent, models, model, mut request, account } = chat;
        let (mut candidates, max_tokens) = self.candidates(&agent, &models, model.as_ref())?;
        let mut notices = self.pass_over(&mut candidates);
        let price = self.price(&agent, &session, &mut candidates, &mut notices)?;
        let first = &candidates[0];
        if self.toolless.contains(&first.model_ref()) {
            request.tools.clear();
        }
        request.model.clone_from(&first.model);
        request.max_tokens = output_tokens(request.max_tokens.min(max_tokens), request.thinking);
        let encode = |request: &ChatRequest| encode(first.endpoint.kind, &first.endpoint.base_url, request);
        let mut body = encode(&request);
        let input = estimate_input(first.endpoint.kind, &request, body.len());
        let shared_budgets = self.shared_budgets.clone();
        let meters = self.meters.clone();
        let payer = Payer { session, run, agent, account, shared_budgets, meters };
        let size = CallSize { input, output_min: 1, output_max: request.max_tokens, price };
        let set_aside = self.meter.reserve(&payer, size)?;
        if set_aside.output != request.max_tokens {
            request.max_tokens = set_aside.output;
            body = encode(&request);
        }
        notices.extend(self.near(&payer));
        let changed = self.prefixes.changed(&payer.session, &first.endpoint.name, &request);
        let (call, meter) = (self.granted, self.meter.clone());
        let model = first.model_ref();
        let is_bounded = meter.lock().is_bounded(&payer.agent, &payer.session.owner());
        let settling = supervisor.clone().recipient();
        let charge = Charge::new(settling, call, meter, (set_aside, size), payer, changed);
        let begun = BeginCall { call, reserved: charge.reserved(model) };
        let chosen = supervisor.clone().recipient();
        let call = Call { candidates, request, notices, body, chosen };
        Ok((Deltas::new(call, charge, slot), begun, is_bounded))
    }

    /// What the dearest of these models costs; none where a price is not known. Where a budget is in money,
    /// models without a price are left out: what they would cost can't be counted.
    fn price(
        &self,
        agent: &AgentId,
        session: &SessionKey,
        candidates: &mut Vec<Candidate>,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<Price>, Error> {
        let is_needed = self.meter.lock().needs_price(agent, &session.owner());
        if is_needed {
            let is_unpriced = |candidate: &mut Candidate| candidate.facts.price.is_none();
            let unpriced: Vec<String> = candidates
                .extract_if(.., is_unpriced)
                .map(|left_out| left_out.model_ref().to_string())
                .collect();
            let (unpriced, next) = (unpriced.join(", "), candidates.first().map(Candidate::model_ref));
            match next {
                None => {
                    return Err(ErrorCode::BudgetExceeded.error(format!(
                        "a budget is in money, and what {unpriced} costs is not known: \
                         [models.\"PROVIDER/MODEL\"] of the configuration can say it"
                    )));
                }
                Some(next) if !unpriced.is_empty() => {
                    tracing::warn!(%unpriced, model = %next, "a budget is in money, and the price is not known: another model is asked");
                    let why = format!("what {unpriced} costs is not known: {next} is asked");
                    notices.push(Notice::new(NoticeKind::Fallback, why));
                }
                Some(_) => {}
            }
        }
        let prices = candidates.iter().map(|candidate| candidate.facts.price);
        Ok(prices.reduce(|all, one| Some(all?.higher(one?))).flatten())
    }

    /// The budgets near their end that this payer spends from, where nobody was told so yet.
    fn near(&self, payer: &Payer) -> Vec<Notice> {
        let mut meter = self.meter.lock();
        let spent = payer.account.spent();
        let mut near = meter.near_of_session(spent);
        if payer.account.is_news(!near.is_empty()) {
            for budget in &near {
                tracing::warn!(session = %payer.session, "{}", budget.near_words());
            }
        } else {
            near.clear();
        }
        near.extend(meter.news(&payer.agent, &payer.session.owner()));
        near.iter().map(|budget| Notice::new(NoticeKind::Budget, budget.near_words())).collect()
    }

    /// Puts the models that are left alone for now behind the first one that is not. Where all are, they are
    /// asked as ever: an answer may come.
    fn pass_over(&mut self, candidates: &mut [Candidate]) -> Vec<Notice> {
        let now = clock::now();
        let admitted =
            candidates.iter().position(|candidate| self.breakers.admits(now, &candidate.model_ref()));
        let Some(first) = admitted.filter(|first| *first > 0) else { return Vec::new() };
        candidates.rotate_left(first);
        let passed = &candidates[candidates.len() - first..];
        let passed: Vec<String> = passed.iter().map(|candidate| candidate.model_ref().to_string()).collect();
        let (passed, next) = (passed.join(", "), candidates[0].model_ref());
        tracing::info!(%passed, model = %next, "models are left alone for now: another one is asked");
        vec![Notice::new(NoticeKind::Fallback, format!("{passed} failed lately: {next} is asked"))]
    }

    fn busy(&self) -> Error {
        ErrorCode::Unavailable.error("too many provider calls are under way: try again later")
    }

    /// The agents whose first model is of a provider that wants a key and has none.
    fn agents_without_key(&self) -> Vec<&str> {
        let lacks_key = |model: &ModelRef| {
            self.config.providers.get(&model.provider).is_some_and(config::Provider::lacks_key)
        };
        let agents = self.config.agents.values();
        agents
            .filter(|agent| agent.models.first().is_some_and(lacks_key))
            .map(|agent| agent.id.as_str())
            .collect()
    }

    /// The providers that fail: what is wrong with each, in nobody's words but ours.
    fn failing(&self, now: Timestamp) -> Vec<String> {
        let told = |(name, Failing { calls, last, at }): (&String, &Failing)| {
            let (last, at) = (last.code.name(), at.to_rfc3339());
            let calls = if *calls == 1 { "last call".to_owned() } else { format!("last {calls} calls") };
            format!("provider {name}: the {calls} failed ({last}), at {at}")
        };
        let failing = self.recent(now).filter(|(_, failing)| failing.calls > 0).map(told);
        let left_alone = self.breakers.open(now).map(|(model, until)| {
            format!("model {model} keeps failing: it is left alone until {}", until.to_rfc3339())
        });
        failing.chain(left_alone).collect()
    }

    /// What went wrong last with each provider, in its own words: for operators alone.
    fn last_errors(&self, now: Timestamp) -> Vec<Value> {
        let told = |(name, Failing { calls, last, at }): (&String, &Failing)| {
            json!({ "provider": name, "calls_failed": calls, "at_ms": at.as_millis(),
                    "code": last.code.name(), "message": last.message })
        };
        self.recent(now).map(told).collect()
    }

    fn recent(&self, now: Timestamp) -> impl Iterator<Item = (&String, &Failing)> {
        self.failing.iter().filter(move |(_, failing)| now.since(failing.at) < FAILING_FOR)
    }

    /// A model that answered once it was asked without tools can't call any. What it said alone is no proof: it
    /// may repeat a prompt.
    fn learn_of_tools(&mut self, first: &Outcome, then: &Outcome) {
        let is_refused = matches!(first.failed, Some((_, Fault::NoTools)));
        let is_same = first.model == then.model && then.failed.is_none();
        if is_refused && is_same && self.toolless.len() < TOOLLESS_MAX {
            self.toolless.insert(first.model.clone());
        }
    }

    fn came_out(&mut self, Outcome { model, at, failed }: Outcome) {
        let (provider, is_known) = (model.provider.clone(), self.endpoints.contains_key(&model.provider));
        match &failed {
            None => self.breakers.succeeded(&model),
            Some((error, fault)) if is_known => {
                let wanted = match error.detail {
                    Some(Detail::RetryAfter(wait)) => Some(wait),
                    _ => None,
                };
                self.breakers.failed(at, &model, *fault, wanted);
            }
            Some(_) => {}
        }
        if failed.as_ref().is_some_and(|(_, fault)| !fault.fails_over()) {
            // It says nothing of its provider.
            return;
        }
        match failed.map(|(error, _)| error) {
            None => {
                if let Some(failing) = self.failing.get_mut(&provider) {
                    failing.calls = 0;
                }
            }
            // One that a reload took away is nobody's concern.
            Some(_) if !is_known => {}
            Some(last) => {
                let calls = self.failing.get(&provider).map_or(0, |failing| failing.calls) + 1;
                self.failing.insert(provider, Failing { calls, last, at });
            }
        }
    }

    /// Has what a call cost written; where the log can't be, later.
    fn keep(&mut self, record: RecordUsage, ctx: &mut Context<Self>) {
        let Some(CallLog { over, .. }) = &self.calls else { return };
        // Waits for room in the store's mailbox; there are never more than there were calls, and
        // than may be kept for later.
        let kept = over.send(record.clone());
        ctx.spawn(kept.into_actor(self).map(|kept, this, ctx| match kept {
            Ok(Ok(())) => {}
            // Nothing of it was written, so that it can't count twice.
            Ok(Err(error)) if error.code == ErrorCode::Unavailable => this.keep_later(record, ctx),
            Ok(Err(error)) => tracing::error!(%error, "usage record lost"),
            Err(error) => tracing::error!(%error, "usage record lost: store is gone"),
        }));
    }

    fn keep_later(&mut self, record: RecordUsage, ctx: &mut Context<Self>) {
        if self.unkept.len() >= UNKEPT_MAX {
            tracing::error!(records = self.unkept.len(), "usage record lost: too many wait to be written");
            return;
        }
        self.unkept.push(record);
        if self.unkept.len() == 1 {
            ctx.run_later(KEEP_RETRY, |this, ctx| {
                for record in std::mem::take(&mut this.unkept) {
                    this.keep(record, ctx);
                }
            });
        }
    }
}

/// That a call could not be written down before it was to be made.
fn late() -> Error {
    ErrorCode::Unavailable.error("the store does not write down that a model is asked: try again")
}

impl Actor for ProviderSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Every session may ask at once; each has at most one request under way.
        ctx.set_mailbox_capacity(WAITING_MAX);
    }
}

impl Handler<Chat> for ProviderSupervisor {
    type Result = ResponseActFuture<Self, Result<Deltas, Error>>;

    fn handle(&mut self, chat: Chat, _: &mut Self::Context) -> Self::Result {
        if self.waiting >= self.waiting_max && self.slots.available_permits() == 0 {
            self.refused += 1;
            return Box::pin(fut::ready(Err(self.busy())));
        }
        self.waiting += 1;
        let slot = tokio::time::timeout(self.wait_max, self.slots.clone().acquire_owned());
        Box::pin(slot.into_actor(self).then(move |slot, this, ctx| {
            this.waiting -= 1;
            let granted = match slot {
                Ok(Ok(slot)) => this.grant(chat, slot, &ctx.address()),
                Ok(Err(_)) | Err(_) => Err(this.busy()),
            };
            match &granted {
                Ok(_) => this.granted += 1,
                Err(_) => this.refused += 1,
            }
            let log = this.calls.clone();
            let begun = match (granted, log) {
                (Ok((deltas, call, is_bounded)), Some(CallLog { begun, .. })) => {
                    let written = begun.send(call);
                    if is_bounded {
                        Ok((deltas, Some(written)))
                    } else {
                        // Nothing it could exceed.
                        ctx.spawn(written.into_actor(this).map(|_, _, _| ()));
                        Ok((deltas, None))
                    }
                }
                (Ok((deltas, ..)), None) => Ok((deltas, None)),
                (Err(error), _) => Err(error),
            };
            async move {
                let (deltas, written) = begun?;
                // What the call may come to is written down before it is made: should the daemon be killed
                // meanwhile, it counts as spent.
                if let Some(written) = written {
                    let written = tokio::time::timeout(WRITE_MAX, written).await;
                    written.map_err(|_| late()).and_then(|sent| sent.map_err(|_| late())).flatten()?;
                }
                Ok(deltas)
            }
            .into_actor(this)
        }))
    }
}

impl Handler<Settle> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, settle: Settle, ctx: &mut Self::Context) {
        let mut usage = Usage::default();
        for record in &settle.records {
            usage += record.usage;
        }
        self.used += usage;
        let costs = settle.records.iter().filter_map(|record| record.cost);
        let spent = Spent { tokens: usage.total(), cost: costs.fold(Money::ZERO, Money::plus) };
        for near in self.meter.lock().settle(clock::now(), settle.reservation, spent) {
            tracing::warn!(budget = near.name(), whose = %near.whose.words(), "{}", near.near_words());
        }
        for pair in settle.outcomes.windows(2) {
            self.learn_of_tools(&pair[0], &pair[1]);
        }
        for outcome in settle.outcomes {
            self.came_out(outcome);
        }
        self.keep(RecordUsage { call: settle.call, records: settle.records }, ctx);
    }
}

impl Handler<Reconfigure> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, reconfigure: Reconfigure, _: &mut Self::Context) {
        let Reconfigure { config, endpoints: Endpoints(mut endpoints) } = reconfigure;
        for (name, endpoint) in &mut endpoints {
            let (before, now) = (self.config.providers.get(name), config.providers.get(name));
            // One that is as it was keeps its connections. What is in a file of certificates may be new.
            if before == now
                && now.is_some_and(|provider| provider.ca_file.is_none())
                && let Some(known) = self.endpoints.get(name)
            {
                endpoint.clone_from(known);
            }
        }
        // One that is set otherwise may do better.
        let before = &self.config.providers;
        let is_same = |name: &String| before.get(name) == config.providers.get(name);
        self.failing.retain(|name, _| is_same(name));
        self.breakers.retain(|model| is_same(&model.provider));
        self.toolless.retain(|model| is_same(&model.provider));
        self.defaults.retain(is_same);
        self.endpoints = endpoints;
        self.meter.lock().set_limits(&config.budgets);
        self.known = Arc::new(config.models.clone());
        self.config = config;
    }
}

impl Handler<KnowModels> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, known: KnowModels, _: &mut Self::Context) -> Self::Result {
        self.known = known.0;
    }
}

impl Handler<BudgetStatus> for ProviderSupervisor {
    type Result = MessageResult<BudgetStatus>;

    fn handle(&mut self, status: BudgetStatus, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.meter.lock().status(clock::now(), status.session_spent))
    }
}

impl Handler<Observe> for ProviderSupervisor {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let mut meter = self.meter.lock();
        let budgets = meter.status(clock::now(), None);
        let used = |at: usize| budgets.get(at).map_or(0, |budget| budget.used);
        Observed::leaf(
            "provider supervisor",
            json!({
                "providers": self.endpoints.keys().collect::<Vec<_>>(),
                "agents_without_key": self.agents_without_key(),
                "failing": self.failing(clock::now()),
                "last_errors": self.last_errors(clock::now()),
                "calls_waiting": self.waiting,
                "calls_free": self.slots.available_permits(),
                "calls_granted": self.granted,
                "calls_refused": self.refused,
                "input_tokens": self.used.input_tokens,
                "output_tokens": self.used.output_tokens,
                "usage_records_waiting": self.unkept.len(),
                "reserved_tokens": meter.reserved().tokens,
                "day_tokens": used(0),
                "month_tokens": used(1),
            }),
        )
    }
}
