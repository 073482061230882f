//! Asking a provider for vectors of texts: one request, of one owner, with one deadline for all of it.
//!
//! It has a place at the provider, is metered and bounded by budgets as any call is, and left alone with the model or
//! key that keeps failing. It is not repeated: who asks beside a prompt has no time for that, and who asks in the
//! background does so later. What it costs counts for the owner of the texts, in a session of that name
//! (`AGENT:memory:embeddings:main`).

use std::borrow::Cow;
use std::time::Duration;

use actix::{
    ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, ResponseActFuture, WrapFuture as _,
    fut,
};
use clawmux_core::access::Secret;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner, RunId, SessionKey};
use clawmux_core::memory::EMBEDDINGS_SESSION;
use clawmux_core::provider::embeddings::{self, ANSWER_BYTES_MAX, Embedded};
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::{address, estimate_tokens};
use tokio::time::{Instant, timeout_at};

use super::account::Account;
use super::call::{Candidate, Deadlines};
use super::charge::{Charge, Payer};
use super::client::{self, Failure};
use super::places::{Entry, Place};
use super::shared_meter::CallSize;
use super::standing::Standing;
use super::{ProviderSupervisor, probe};
use crate::runtime::clock;
use crate::store::BeginCall;

/// Asks for the vectors of texts of one owner.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Embedded, NoVectors>")]
pub struct Embed {
    /// Whose texts they are.
    pub owner: Owner,
    /// The agent for which it counts.
    pub agent: AgentId,
    /// The model.
    pub model: ModelRef,
    /// The texts; as many as one request may have, and as long.
    pub texts: Vec<String>,
    /// How long it may take.
    pub within: Duration,
}

/// That there are no vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoVectors {
    /// Why.
    pub error: Error,
    /// Whether it is these texts that the provider does not take.
    pub is_of_texts: bool,
}

impl From<Error> for NoVectors {
    fn from(error: Error) -> Self {
        Self { error, is_of_texts: false }
    }
}

/// A request that may be made.
struct Begun {
    candidate: Candidate,
    place: Place,
    charge: Charge,
    standing: Standing,
    body: Vec<u8>,
    texts: usize,
    until: Instant,
}

impl Handler<Embed> for ProviderSupervisor {
    type Result = ResponseActFuture<Self, Result<Embedded, NoVectors>>;

    fn handle(&mut self, embed: Embed, _: &mut Self::Context) -> Self::Result {
        let until = Instant::now() + embed.within;
        let (session, candidate) = match self.embedding_candidate(&embed) {
            Ok(chosen) => chosen,
            Err(error) => {
                self.refused += 1;
                return Box::pin(fut::ready(Err(error.into())));
            }
        };
        let entry = candidate.places.enter(&session);
        let name = candidate.endpoint.name.clone();
        let place = async move {
            let none = || ErrorCode::Unavailable.error(format!("{name}: there is no place for another call"));
            match entry {
                Entry::Begins(place) => Ok(place),
                Entry::Full => Err(none()),
                Entry::Waits(waiting) => timeout_at(until, waiting).await.ok().flatten().ok_or_else(none),
            }
        };
        let begun = place.into_actor(self).then(move |place, supervisor, ctx| {
            let begun = place
                .and_then(|place| supervisor.begin_embedding(embed, session, candidate, place, until, ctx));
            let written = supervisor.written(begun);
            async move { made(written.await?).await }.into_actor(supervisor)
        });
        Box::pin(begun)
    }
}

impl ProviderSupervisor {
    /// The model with a key of its provider that is not left alone, and the session for which it counts.
    fn embedding_candidate(&self, embed: &Embed) -> Result<(SessionKey, Candidate), Error> {
        let (channel, account) = EMBEDDINGS_SESSION;
        let session = SessionKey::new(embed.agent.as_str(), channel, account, "main")?.in_space(&embed.owner);
        let mut candidates = self.with_keys(&session, &embed.model);
        if candidates.is_empty() {
            let provider = &embed.model.provider;
            return Err(ErrorCode::NotFound.error(format!("provider {provider} is not configured")));
        }
        let now = clock::now();
        candidates.retain(|candidate| self.standing.admits(now, candidate));
        if candidates.is_empty() {
            let model = &embed.model;
            return Err(
                ErrorCode::Unavailable.error(format!("{model} failed lately and is left alone for a while"))
            );
        }
        Ok((session, candidates.swap_remove(0)))
    }

    /// Sets aside what it may cost.
    fn begin_embedding(
        &mut self,
        embed: Embed,
        session: SessionKey,
        candidate: Candidate,
        place: Place,
        until: Instant,
        ctx: &mut Context<Self>,
    ) -> Result<(Begun, BeginCall, bool), Error> {
        let mut candidates = vec![candidate];
        let price = self.price(&embed.agent, &session, &mut candidates, &mut Vec::new())?;
        let candidate =
            candidates.pop().ok_or_else(|| ErrorCode::Internal.error("there is no model to ask"))?;
        let body = embeddings::body(&embed.model.model, &embed.texts);
        let payer = Payer {
            session,
            run: RunId::from("embeddings"),
            agent: embed.agent,
            account: Account::default(),
            shared_budgets: self.shared_budgets.clone(),
            meters: self.meters.clone(),
        };
        let size =
            CallSize { input: estimate_tokens(body.len() as u64), output_min: 1, output_max: 1, price };
        let set_aside = self.meter.reserve(&payer, size)?;
        let is_bounded = self.meter.lock().is_bounded(&payer.agent, &payer.session.owner());
        let (call, settling) = (self.granted, ctx.address().recipient());
        let charge = Charge::new(settling, call, self.meter.clone(), (set_aside, size), payer, None);
        let begun = BeginCall { call, reserved: charge.reserved(candidate.model_ref()) };
        let (standing, texts) = (self.standing.clone(), embed.texts.len());
        Ok((Begun { candidate, place, charge, standing, body, texts, until }, begun, is_bounded))
    }
}

/// Makes the request, and says how it went to whom that concerns.
async fn made(begun: Begun) -> Result<Embedded, NoVectors> {
    let Begun { candidate, place, mut charge, standing, body, texts, until } = begun;
    standing.asked(clock::now(), &candidate);
    charge.begin(&candidate)?;
    let within = until.saturating_duration_since(Instant::now());
    let answer = match timeout_at(until, answer(&candidate, body, texts, within)).await {
        Ok(answer) => answer,
        Err(_) => {
            let error = probe::late(&candidate.endpoint.name, within);
            Err(Failure { error, fault: Fault::Timeout, billed: true })
        }
    };
    drop(place);
    match answer {
        Ok(embedded) => {
            standing.succeeded(&candidate);
            charge.finish(embedded.usage);
            Ok(embedded)
        }
        Err(Failure { error, fault, billed }) => {
            standing.failed(clock::now(), &candidate, &error, fault);
            charge.failed(&error);
            charge.end(billed);
            Err(NoVectors { error, is_of_texts: !fault.fails_over() })
        }
    }
}

/// Sends the request and reads what comes back.
async fn answer(
    candidate: &Candidate,
    body: Vec<u8>,
    texts: usize,
    within: Duration,
) -> Result<Embedded, Failure> {
    let endpoint = &candidate.endpoint;
    let name = endpoint.name.clone();
    let (Some(url), Some(http)) =
        (address::embeddings(endpoint.kind.format(), &endpoint.base_url), &endpoint.http)
    else {
        let error = ErrorCode::InvalidRequest.error(format!("{name} makes no vectors"));
        return Err(Failure { error, fault: Fault::Misconfigured, billed: false });
    };
    // No stream of events is asked for.
    let headers: Vec<(Cow<'static, str>, Secret)> =
        http.headers.iter().filter(|(name, _)| name != "accept").cloned().collect();
    let deadlines = Deadlines { first_byte: within, idle: within, ..candidate.deadlines };
    let (mut response, client) = client::post(endpoint, &url, &headers, body.into(), deadlines).await?;
    let read = response.body().limit(ANSWER_BYTES_MAX).await;
    drop(client);
    let cut = |why: String| Failure {
        error: ErrorCode::Provider.error(format!("{name}: its answer to a request for vectors: {why}")),
        fault: Fault::Cut,
        billed: true,
    };
    let said = read.map_err(|why| cut(why.to_string()))?;
    // Up to megabytes of numbers.
    let read = tokio::task::spawn_blocking(move || embeddings::read(&said, texts)).await;
    match read {
        Ok(Ok(embedded)) => Ok(embedded),
        Ok(Err(why)) => Err(Failure { error: why.of(&name), fault: Fault::Cut, billed: true }),
        Err(_) => Err(cut("it was not read".to_owned())),
    }
}
