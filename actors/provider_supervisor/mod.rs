//! `ProviderSupervisor`: budgets, and who may call a model.
//!
//! Every paid call passes here: it is answered with the stream of [`Deltas`], which begins once there is room
//! among the calls of its provider and in the budgets, and in the end what it cost is settled. The stream itself
//! runs beside its session, on the session's arbiter, and never comes through this mailbox.
//!
//! In a cluster every daemon counts what the calls of the others cost as soon as its store has their records
//! ([`SpentElsewhere`]). What they have set aside for calls under way it does not know: so a budget by day or month can be
//! overrun by what all other daemons have under way at the moment, and by what is a record and not here yet. Calls that
//! were cut off with their daemon count from the next start on.
//!
//! Deliberately absent: client sockets, and the conversation.

pub mod account;
mod answer;
mod answer_room;
mod call;
mod charge;
mod client;
pub mod default_model;
pub mod deltas;
pub mod embedding;
mod limited;
mod output_bound;
mod places;
pub mod probe;
mod reason;
pub mod shared_budget;
mod shared_meter;
mod standing;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, Addr, AsyncContext as _, Context, Handler, Message, MessageResult, Recipient, ResponseFuture,
};
use clawmux_core::config::unpriced::{self, Unpriced};
use clawmux_core::config::{self, Config};
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{AgentId, RunId, SessionKey};
use clawmux_core::provider::budget::Budget;
use clawmux_core::provider::facts::KnownModels;
use clawmux_core::provider::meter::{Meter, Reservation};
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::notice::{Notice, NoticeKind};
use clawmux_core::provider::prefix::Prefixes;
use clawmux_core::provider::price::{Money, Price};
use clawmux_core::provider::tally::{Spent, SpentBy};
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{ChatRequest, encode, estimate_input, output_tokens};
use serde_json::{Value, json};

use crate::host::open_files;
use crate::runtime::awaited::{Awaited, Awaits};
use crate::runtime::clock;
use crate::runtime::meters::Meters;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{BeginCall, RecordUsage, SpentElsewhere, Store};

use account::Account;
use answer_room::AnswerRoom;
pub use call::Deadlines;
pub(crate) use call::{Call, Candidate, Endpoint};
pub(crate) use charge::{Charge, Payer};
use default_model::Defaults;
use deltas::Deltas;
use output_bound::OutputBound;
use places::{Figures, Places};
use shared_budget::SharedBudgets;
use shared_meter::{CallSize, SharedMeter};
use standing::Standing;
use waiting::Queueing;

/// The most calls that wait for a place at one provider.
const WAITING_MAX: usize = 1024;

/// The most calls of one provider at once where nobody says, however many open files there may be.
const CALLS_MAX: u64 = 4096;

/// How long it may take to write down that a call begins.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// Usage records kept while the log can't be written, and how often they are tried again.
const UNKEPT_MAX: usize = 4096;
const KEEP_RETRY: Duration = Duration::from_secs(2);

/// Grants provider calls and meters them.
pub struct ProviderSupervisor {
    config: Arc<Config>,
    /// The providers, each with all its keys.
    endpoints: BTreeMap<String, Vec<Arc<Endpoint>>>,
    /// Who calls them.
    places: BTreeMap<String, Places>,
    /// How many may call one that is not set otherwise, and how many may wait.
    calls_max: usize,
    waiting_max: usize,
    /// In place of those of the providers.
    deadlines: Option<Deadlines>,
    meter: SharedMeter,
    /// What is known of models.
    known: Arc<KnownModels>,
    /// The last requests of sessions.
    prefixes: Prefixes,
    /// Where calls under way and what they cost are written down.
    calls: Option<CallLog>,
    standing: Standing,
    room: AnswerRoom,
    granted: u64,
    /// The number of the first call. It is chance: calls of several daemons are in one log.
    first_call: u64,
    refused: u64,
    used: Usage,
    /// Usage records that could not be written yet.
    unkept: Vec<RecordUsage>,
    shared_budgets: SharedBudgets,
    meters: Meters,
    /// The models of agents that name none.
    defaults: Defaults,
    /// What is being written down.
    awaited: Awaited<Self>,
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
}

/// A call, on its way.
#[derive(Debug)]
pub(crate) struct Asking {
    chat: Chat,
    /// The most tokens that its agent may say at once.
    max_tokens: u32,
    /// What the dearest of its models costs; none where a price is not known.
    price: Option<Price>,
    notices: Vec<Notice>,
}

impl Asking {
    fn max_tokens(&self) -> u32 {
        self.chat.request.max_tokens.min(self.max_tokens)
    }
}

/// A call that waited for its place has one: reserves its budget.
#[derive(Debug, Message)]
#[rtype(result = "Result<Granted, Error>")]
pub(crate) struct Grant {
    pub(crate) asking: Asking,
    /// Of which the first is of the provider where it has its place.
    pub(crate) candidates: VecDeque<Candidate>,
}

/// A call may begin, and this is what it has reserved.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) call: Call,
    pub(crate) charge: Charge,
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
pub struct Endpoints(BTreeMap<String, Vec<Arc<Endpoint>>>);

impl Endpoints {
    /// Reads the files of certificate authorities. Blocks.
    ///
    /// # Errors
    /// `InvalidRequest` where such a file can't be read or holds no certificate.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let endpoint = |(name, provider): (&String, &config::Provider)| {
            Ok((name.clone(), Endpoint::all(name, provider)?))
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
        let mut supervisor = Self {
            meter: SharedMeter::new(Meter::new(&config.budgets, spent, clock::now())),
            known: Arc::new(config.models.clone()),
            prefixes: Prefixes::default(),
            config,
            endpoints: BTreeMap::new(),
            places: BTreeMap::new(),
            calls_max: calls_max(),
            waiting_max: WAITING_MAX,
            deadlines: None,
            calls,
            standing: Standing::default(),
            room: AnswerRoom::default(),
            granted: 0,
            first_call: first_call(),
            refused: 0,
            used: Usage::default(),
            unkept: Vec::new(),
            shared_budgets: SharedBudgets::default(),
            meters: Meters::default(),
            defaults: Defaults::default(),
            awaited: Awaited::default(),
        };
        supervisor.set_endpoints(endpoints, |_| true);
        Ok(supervisor)
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

    /// With room for so many calls of a provider at once, where nothing else is set, and for so many that wait.
    #[must_use]
    pub fn with_room(mut self, calls: usize, waiting: usize) -> Self {
        (self.calls_max, self.waiting_max) = (calls, waiting);
        self.places.clear();
        self.set_places();
        self
    }

    /// These are the providers now; what is known of those for whom `is_same` does not hold is forgotten.
    fn set_endpoints(
        &mut self,
        endpoints: BTreeMap<String, Vec<Arc<Endpoint>>>,
        is_same: impl Fn(&String) -> bool,
    ) {
        self.standing.set_providers(endpoints.clone(), is_same);
        self.endpoints = endpoints;
        self.set_places();
    }

    /// Each provider has as many places as the configuration says; who calls and who waits goes on.
    fn set_places(&mut self) {
        self.places.retain(|name, _| self.endpoints.contains_key(name));
        for name in self.endpoints.keys() {
            let max = match self.config.providers.get(name).map_or(0, |provider| provider.max_concurrent) {
                0 => self.calls_max,
                max => max,
            };
            match self.places.get(name) {
                Some(places) => places.set_max(max),
                None => {
                    self.places.insert(name.clone(), Places::new(max, self.waiting_max));
                }
            }
        }
    }

    /// The models of an agent with where they are, the one that was chosen in place of its first one, each with
    /// every key; and the most tokens of an answer.
    fn candidates(&self, chat: &Chat) -> Result<(Vec<Candidate>, u32), Error> {
        let Chat { session, agent, models, model: first, .. } = chat;
        let configured = self.config.agents.get(agent);
        let (models, max_tokens) = match configured {
            Some(configured) if models.is_empty() => (&*configured.models, configured.max_tokens),
            // As it was when its run began.
            configured if !models.is_empty() => {
                (models.as_slice(), configured.map_or(u32::MAX, |agent| agent.max_tokens))
            }
            _ => return Err(ErrorCode::NotFound.error(format!("agent {agent} is not configured"))),
        };
        let mut seen = BTreeSet::new();
        // Its provider may have gone since it was set.
        let first = first.as_ref().filter(|model| self.endpoints.contains_key(&model.provider));
        let own = models.iter().skip(usize::from(first.is_some()));
        let candidates: Vec<Candidate> = first
            .into_iter()
            .chain(own)
            .filter(|model| seen.insert((&model.provider, &model.model)))
            .flat_map(|model| self.with_keys(session, model))
            .collect();
        if candidates.is_empty() {
            return Err(
                ErrorCode::NotFound.error(format!("agent {agent} has no model of a configured provider"))
            );
        }
        Ok((candidates, max_tokens))
    }

    /// A model with every key of its provider, the one first that the session goes on with: sessions are spread
    /// over the keys, and each stays with its own, at which its conversation may be cached.
    fn with_keys(&self, session: &SessionKey, model: &ModelRef) -> Vec<Candidate> {
        let (Some(keys), Some(places)) =
            (self.endpoints.get(&model.provider), self.places.get(&model.provider))
        else {
            return Vec::new();
        };
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(session);
        let first = usize::try_from(hash % keys.len().max(1) as u64).unwrap_or(0);
        let in_turn = keys.iter().cycle().skip(first).take(keys.len());
        let by_default = model.model.is_empty();
        let name = if by_default { self.defaults.of(&model.provider) } else { model.model.clone() };
        let facts = self.known.of(&ModelRef { provider: model.provider.clone(), model: name.clone() });
        let candidate = |endpoint: &Arc<Endpoint>| Candidate {
            endpoint: endpoint.clone(),
            model: name.clone(),
            by_default,
            deadlines: self.deadlines.unwrap_or_else(|| endpoint.patience.into()),
            facts,
            places: places.clone(),
        };
        in_turn.map(candidate).collect()
    }

    /// What a call has reserved, what is to be in the log before it is made, and whether any budget bounds it.
    fn grant(
        &mut self,
        asking: Asking,
        candidates: VecDeque<Candidate>,
        supervisor: &Addr<Self>,
    ) -> Result<(Granted, BeginCall, bool), Error> {
        let Asking { chat, max_tokens, price, mut notices } = asking;
        let Chat { session, run, agent, mut request, account, .. } = chat;
        let Some(first) = candidates.front() else {
            return Err(ErrorCode::Internal.error("there is no model to ask"));
        };
        if !self.standing.has_tools(&first.model_ref()) {
            request.tools.clear();
        }
        request.cache_marks &= self.standing.takes_cache_marks(&first.model_ref());
        request.model.clone_from(&first.model);
        let wanted = output_tokens(request.max_tokens.min(max_tokens), request.thinking);
        request.max_tokens = first.facts.output_tokens(wanted);
        let encode = |request: &ChatRequest| encode(first.endpoint.kind, &first.endpoint.base_url, request);
        let agents = OutputBound::Agent(agent.clone());
        let mut bound = if request.max_tokens < wanted { OutputBound::Model } else { agents };
        let mut body = encode(&request);
        let input = estimate_input(first.endpoint.kind, &request, body.len());
        let shared_budgets = self.shared_budgets.clone();
        let meters = self.meters.clone();
        let payer = Payer { session: session.clone(), run, agent, account, shared_budgets, meters };
        let size = CallSize { input, output_min: 1, output_max: request.max_tokens, price };
        let set_aside = self.meter.reserve(&payer, size)?;
        if set_aside.output != request.max_tokens {
            request.max_tokens = set_aside.output;
            bound = OutputBound::Budgets;
            body = encode(&request);
        }
        notices.extend(self.near(&payer));
        let changed = self.prefixes.changed(&payer.session, &first.endpoint.name, &request);
        let (call, meter) = (self.first_call + self.granted, self.meter.clone());
        let model = first.model_ref();
        let is_bounded = meter.lock().is_bounded(&payer.agent, &payer.session.owner());
        let keeps_bound = is_bounded || set_aside.shared_budget.is_some();
        let settling = supervisor.clone().recipient();
        let charge = Charge::new(settling, call, meter, (set_aside, size), payer, changed);
        let begun = BeginCall { call, reserved: charge.reserved(model) };
        let (standing, chosen) = (self.standing.clone(), supervisor.clone().recipient());
        let room = self.room.clone();
        let call =
            Call { session, candidates, request, bound, keeps_bound, notices, body, chosen, standing, room };
        Ok((Granted { call, charge }, begun, is_bounded))
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
            let wanted = candidates.first().map(Candidate::model_ref);
            let is_unpriced = |candidate: &mut Candidate| candidate.facts.price.is_none();
            let mut unpriced: Vec<ModelRef> =
                candidates.extract_if(.., is_unpriced).map(|left_out| left_out.model_ref()).collect();
            // Once, however many keys there are.
            unpriced.dedup();
            match candidates.first().map(Candidate::model_ref) {
                None => return Err(ErrorCode::BudgetExceeded.error(unpriced::refusal(&unpriced))),
                // What would only be asked where the first one fails is left out without a word.
                Some(next) if wanted.is_some_and(|wanted| wanted != next) => {
                    let unpriced: Vec<String> = unpriced.iter().map(ToString::to_string).collect();
                    let unpriced = unpriced.join(", ");
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

    /// Puts the models and keys that are left alone for now behind the others. Where all are, they are asked as
    /// ever: an answer may come.
    fn order(&self, candidates: &mut [Candidate]) -> Vec<Notice> {
        let wanted: Vec<ModelRef> = candidates.iter().map(Candidate::model_ref).collect();
        self.standing.order(clock::now(), candidates);
        let Some(next) = candidates.first().map(Candidate::model_ref) else { return Vec::new() };
        let mut passed: Vec<String> =
            wanted.iter().take_while(|model| **model != next).map(ToString::to_string).collect();
        passed.dedup();
        if passed.is_empty() {
            return Vec::new();
        }
        let passed = passed.join(", ");
        tracing::info!(%passed, model = %next, "models are left alone for now: another one is asked");
        vec![Notice::new(NoticeKind::Fallback, format!("{passed} failed lately: {next} is asked"))]
    }

    /// A call, begun where it has a place at once, else on its way to one.
    fn ask(&mut self, chat: Chat, ctx: &mut Context<Self>) -> ResponseFuture<Result<Deltas, Error>> {
        let (mut queueing, asking) = match self.prepare(chat) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.refused += 1;
                return Box::pin(std::future::ready(Err(error)));
            }
        };
        let Some((place, candidates)) = queueing.place_now() else {
            let deltas = Deltas::queued(queueing, asking, ctx.address().recipient());
            return Box::pin(std::future::ready(Ok(deltas)));
        };
        let granted = self.grant(asking, candidates, &ctx.address());
        let granted =
            granted.map(|(granted, begun, is_bounded)| (Deltas::granted(granted, place), begun, is_bounded));
        self.written(granted)
    }

    /// Which models a call may ask, and what it may cost.
    fn prepare(&self, chat: Chat) -> Result<(Queueing, Asking), Error> {
        let (mut candidates, max_tokens) = self.candidates(&chat)?;
        let mut notices = self.order(&mut candidates);
        let price = self.price(&chat.agent, &chat.session, &mut candidates, &mut notices)?;
        let queueing = Queueing::new(chat.session.clone(), candidates.into());
        Ok((queueing, Asking { chat, max_tokens, price, notices }))
    }

    /// What the call may come to is written down before it is made: should the daemon be killed meanwhile, it
    /// counts as spent.
    fn written<T: 'static>(
        &mut self,
        granted: Result<(T, BeginCall, bool), Error>,
    ) -> ResponseFuture<Result<T, Error>> {
        let (granted, call, is_bounded) = match granted {
            Ok(granted) => granted,
            Err(error) => {
                self.refused += 1;
                return Box::pin(std::future::ready(Err(error)));
            }
        };
        self.granted += 1;
        let written = self.calls.as_ref().map(|calls| calls.begun.send(call));
        let written = match written {
            Some(written) if is_bounded => written,
            Some(written) => {
                // Nothing it could exceed.
                self.awaited.add(written, |_, _, _| ());
                return Box::pin(std::future::ready(Ok(granted)));
            }
            None => return Box::pin(std::future::ready(Ok(granted))),
        };
        Box::pin(async move {
            let written = tokio::time::timeout(WRITE_MAX, written).await;
            written.map_err(|_| late()).and_then(|sent| sent.map_err(|_| late())).flatten()?;
            Ok(granted)
        })
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

    /// That prompts are refused since a budget in money can't count what their models cost.
    fn refused_without_price(&self) -> Vec<String> {
        let chosen = |model: &ModelRef| match model.model.is_empty() {
            true => ModelRef { provider: model.provider.clone(), model: self.defaults.of(&model.provider) },
            false => model.clone(),
        };
        let unpriced = self.config.unpriced(&self.known, chosen);
        unpriced.iter().filter_map(Unpriced::refusal_words).collect()
    }

    /// Has what a call cost written; where the log can't be, later.
    fn keep(&self, record: RecordUsage) {
        let Some(CallLog { over, .. }) = &self.calls else { return };
        // Waits for room in the store's mailbox; there are never more than there were calls, and
        // than may be kept for later.
        let kept = over.send(record.clone());
        self.awaited.add(kept, |this, kept, ctx| match kept {
            Ok(Ok(())) => {}
            // Whoever takes the session over counts its calls with what was reserved for them.
            Ok(Err(error)) if error.detail == Some(Detail::NotOwner) => {
                tracing::info!(%error, "a call counts with what was reserved for it: its session has another owner");
            }
            // Nothing of it was written, so that it can't count twice.
            Ok(Err(error)) if error.code == ErrorCode::Unavailable => this.keep_later(record, ctx),
            Ok(Err(error)) => tracing::error!(%error, "usage record lost"),
            Err(error) => tracing::error!(%error, "usage record lost: store is gone"),
        });
    }

    fn keep_later(&mut self, record: RecordUsage, ctx: &mut Context<Self>) {
        if self.unkept.len() >= UNKEPT_MAX {
            tracing::error!(records = self.unkept.len(), "usage record lost: too many wait to be written");
            return;
        }
        self.unkept.push(record);
        if self.unkept.len() == 1 {
            ctx.run_later(KEEP_RETRY, |this, _| {
                for record in std::mem::take(&mut this.unkept) {
                    this.keep(record);
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
        Self::begin_to_wait(ctx);
    }
}

impl Awaits for ProviderSupervisor {
    fn awaited(&mut self) -> &mut Awaited<Self> {
        &mut self.awaited
    }
}

impl Handler<Chat> for ProviderSupervisor {
    type Result = ResponseFuture<Result<Deltas, Error>>;

    fn handle(&mut self, chat: Chat, ctx: &mut Self::Context) -> Self::Result {
        self.ask(chat, ctx)
    }
}

impl Handler<Grant> for ProviderSupervisor {
    type Result = ResponseFuture<Result<Granted, Error>>;

    fn handle(&mut self, Grant { asking, candidates }: Grant, ctx: &mut Self::Context) -> Self::Result {
        let granted = self.grant(asking, candidates, &ctx.address());
        self.written(granted)
    }
}

impl Handler<Settle> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, settle: Settle, _: &mut Self::Context) {
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
        self.keep(RecordUsage { call: settle.call, records: settle.records });
    }
}

impl Handler<SpentElsewhere> for ProviderSupervisor {
    type Result = ();

    fn handle(&mut self, SpentElsewhere(records): SpentElsewhere, _: &mut Self::Context) {
        let mut meter = self.meter.lock();
        for record in records {
            let spent = Spent { tokens: record.usage.total(), cost: record.cost.unwrap_or(Money::ZERO) };
            meter.add(clock::now(), &record.agent, &record.session.owner(), spent);
        }
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
        self.meter.lock().set_limits(&config.budgets);
        self.known = Arc::new(config.models.clone());
        let before = std::mem::replace(&mut self.config, config.clone());
        // One that is set otherwise may do better.
        let is_same = |name: &String| before.providers.get(name) == config.providers.get(name);
        self.defaults.retain(is_same);
        self.set_endpoints(endpoints, is_same);
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
        let now = clock::now();
        let calls: Vec<_> = self.places.iter().map(|(name, places)| (name, places.figures())).collect();
        let sum = |of: fn(&Figures) -> usize| calls.iter().map(|(_, figures)| of(figures)).sum::<usize>();
        let refused: u64 = calls.iter().map(|(_, figures)| figures.refused).sum();
        let of_provider = |(name, Figures { running, waiting, max, .. }): &(&String, Figures)| json!({ "provider": name, "running": running, "waiting": waiting, "max": max });
        let mut meter = self.meter.lock();
        let budgets = meter.status(now, None);
        let used = |at: usize| budgets.get(at).map_or(0, |budget| budget.used);
        Observed::leaf(
            "provider supervisor",
            json!({
                "providers": self.endpoints.keys().collect::<Vec<_>>(),
                "agents_without_key": self.agents_without_key(),
                "refused_without_price": self.refused_without_price(),
                "failing": self.standing.wrong(now),
                "last_errors": self.standing.last_errors(now),
                "left_alone": self.standing.left_alone(now),
                "calls": calls.iter().map(of_provider).collect::<Vec<Value>>(),
                "calls_waiting": sum(|figures| figures.waiting),
                "calls_running": sum(|figures| figures.running),
                "calls_granted": self.granted,
                "calls_refused": self.refused + refused,
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

/// A number that leaves room for those that follow.
fn first_call() -> u64 {
    let [a, b, c, d, e, f, ..] = clock::random();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The calls of one provider that the limit on open files has room for where nobody says: a quarter of it, since
/// clients, plugins and the store take theirs.
fn calls_max() -> usize {
    usize::try_from((open_files::max() / 4).clamp(16, CALLS_MAX)).unwrap_or(usize::MAX)
}
