//! An answer as it comes in over a connection.
//!
//! One stream, whichever provider it comes from; the offline one too, whose plan is played under the
//! same deadlines. A model that fails before it said anything is asked at once with another key, where this one
//! is refused or has no more requests left, or again after a pause, where it may do better then, and followed by
//! the next one of the agent; one that fails later ends the answer, since what was said can't be taken back. The
//! next model may be another provider's, at which there has to be a place.
//!
//! ```text
//!                head                 end marker
//!     Opening ---------> Reading ------------------+
//!     ^ ^  ^ |              |                      v
//!     | |  | +--- fails ----+--- has spoken ---> Over
//!     | |  |                |                      ^
//!     | |  +-- next key <---+   Playing -----------+
//!     | +----- Pausing <----+
//!  Queued <--- next model <-+
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix::Recipient;
use bytes::Bytes;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::notice::{Notice, NoticeKind};
use clawmux_core::provider::offline::{self, Step};
use clawmux_core::provider::reduce::{Less, Reduced};
use clawmux_core::provider::retry::Retries;
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{ChatMessage, ChatRequest, Decoder, Delta, Stop, encode};
use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::answer_room::Share;
use super::client::{self, Body, Failure, io_words};
use super::default_model::{self, Chosen};
use super::deltas::Held;
use super::limited::Limited;
use super::output_bound::OutputBound;
use super::standing::Standing;
use super::waiting::{Queueing, Step as QueueStep};
use super::{Call, Candidate, Deadlines, Endpoint, reason};
use crate::runtime::clock;

/// How much is read before what was decoded is handed on, in bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// How large an answer may be in all, text, thoughts and tool calls together, in bytes; and how many tools it
/// may call. More than a model writes, and little enough to keep and to look through.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
const ANSWER_CALLS_MAX: usize = 128;

/// How much a model writes for each token it may, on average at most, and so much more of it, in bytes: what goes
/// beyond that does not keep to `max_tokens`, and is cut where a budget has to hold. Words of languages have 2 to 5
/// bytes a token.
const TOKEN_BYTES_MAX: usize = 8;
const OVERRUN_BYTES_MAX: usize = 16 * 1024;

/// How long a complete answer's connection may take to end its body, and how much may come, so that
/// it can be used again.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_BYTES_MAX: usize = 64 * 1024;

/// A provider's answer: a stream of all deltas that each read of the network completed. Once it is over it
/// gives back what the call holds; dropped at any moment it closes its connection.
pub(super) struct Answer {
    session: SessionKey,
    /// The models not tried yet.
    candidates: VecDeque<Candidate>,
    /// Where it is kept how they answer.
    standing: Standing,
    request: ChatRequest,
    /// What bounds the answer's length.
    bound: OutputBound,
    /// The key of the model that takes requests again soonest, where another one is asked with meanwhile.
    limited: Option<Limited>,
    deadlines: Deadlines,
    /// The model that is asked, its request as its provider wants it, and how often it was asked again.
    asked: Option<(Candidate, Bytes)>,
    again: u32,
    /// Who is told of a model that is chosen, and whether one was chosen anew.
    chosen: Recipient<Chosen>,
    rechosen: bool,
    /// When it was asked last.
    since: Instant,
    /// Whether it was asked without tools because it said that it can't call any.
    is_without_tools: bool,
    /// And without the marks of what may be cached because its server refused them.
    is_without_marks: bool,
    /// What was left out of the request because the model can't take it.
    reduced: Reduced,
    /// What is told next.
    notices: Vec<Notice>,
    phase: Phase,
    /// Ends a silence of the network, or the pause before a step of a plan.
    pause: Pin<Box<Sleep>>,
    /// When an event of the answer was last read. `pause` is moved only once it fires: it is not to cost a
    /// timer for every token.
    heard: Instant,
    total: Pin<Box<Sleep>>,
    /// What ends this attempt, once what came before it is handed on.
    failed: Option<Failure>,
    /// Whether anything was handed on that the model said; and whether that was more than thoughts.
    spoken: bool,
    answered: bool,
    /// How much was handed on.
    said_bytes: usize,
    said_calls: usize,
    /// How much text and thoughts were read, in bytes, and what the answer takes of the room for all.
    said_text: usize,
    share: Share,
    /// Whether it is cut where it is more than a model writes that keeps to its bound; and whether it was.
    keeps_bound: bool,
    runs_on: bool,
    held: Held,
}

enum Phase {
    Opening {
        name: String,
        head: LocalBoxFuture<'static, Result<Body, Failure>>,
        decoder: Option<Decoder>,
    },
    Reading {
        name: String,
        body: Body,
        decoder: Decoder,
    },
    Playing {
        steps: VecDeque<Step>,
        pausing: bool,
    },
    /// Until it is known which model is asked.
    Choosing(LocalBoxFuture<'static, Result<String, Failure>>),
    /// Before the same model is asked again.
    Pausing,
    /// Waits for a place at the next model's provider.
    Queued(Box<Queueing>),
    Over,
}

impl Answer {
    pub(super) fn new(call: Call, held: Held) -> Self {
        let Call { session, candidates, request, bound, keeps_bound, notices, body, chosen, standing, room } =
            call;
        let deadlines = candidates.front().map(|first| first.deadlines).unwrap_or_default();
        let mut answer = Self {
            session,
            candidates,
            standing,
            request,
            bound,
            limited: None,
            deadlines,
            asked: None,
            again: 0,
            chosen,
            rechosen: false,
            since: Instant::now(),
            is_without_tools: false,
            is_without_marks: false,
            reduced: Reduced::default(),
            notices,
            phase: Phase::Over,
            pause: Box::pin(sleep(deadlines.idle)),
            heard: Instant::now(),
            total: Box::pin(sleep(deadlines.total)),
            failed: None,
            spoken: false,
            answered: false,
            said_bytes: 0,
            said_calls: 0,
            said_text: 0,
            share: room.enter(),
            keeps_bound,
            runs_on: false,
            held,
        };
        if let Some(first) = answer.candidates.pop_front() {
            answer.begin(first, Bytes::from(body));
        }
        answer
    }

    /// Asks another model than before, for no longer an answer than was reserved for that.
    fn begin_next(&mut self, candidate: Candidate) {
        self.request.model.clone_from(&candidate.model);
        self.limited = None;
        let most = candidate.facts.output_tokens(self.request.max_tokens);
        if most < self.request.max_tokens {
            self.bound = OutputBound::Model;
            self.request.max_tokens = most;
        }
        let Endpoint { kind, base_url, .. } = &*candidate.endpoint;
        let body = encode(*kind, base_url, &self.request).into();
        self.again = 0;
        (self.is_without_tools, self.is_without_marks) = (false, false);
        self.begin(candidate, body);
    }

    fn begin(&mut self, candidate: Candidate, body: Bytes) {
        let Candidate { endpoint, model, deadlines, .. } = &candidate;
        self.request.model.clone_from(model);
        self.deadlines = deadlines.for_thinking(self.request.thinking);
        if model.is_empty() {
            self.phase = Phase::Choosing(default_model::choose(Arc::clone(endpoint)).boxed_local());
            self.asked = Some((candidate, body));
            return;
        }
        if let Some(Err(error)) = self.held.charge(|charge| charge.begin(&candidate)) {
            self.failed = Some(Failure { error, fault: Fault::BadRequest, billed: false });
            return;
        }
        self.standing.asked(clock::now(), &candidate);
        self.since = Instant::now();
        let decoder = endpoint.decoder();
        self.phase = if decoder.is_some() {
            let name = endpoint.name.clone();
            let head = client::call(Arc::clone(endpoint), body.clone(), self.deadlines).boxed_local();
            Phase::Opening { name, head, decoder }
        } else {
            Phase::Playing { steps: offline::plan(&self.request).into(), pausing: false }
        };
        self.asked = Some((candidate, body));
    }

    /// This attempt failed: once more with another key or after a pause, or on to the next model, where that
    /// makes sense.
    fn fail(&mut self, failure: Failure) -> Option<Error> {
        let Failure { error, fault, billed } = failure;
        self.held.charge(|charge| {
            charge.failed(&error);
            charge.end(billed);
        });
        if let Some((candidate, _)) = &self.asked {
            self.standing.failed(clock::now(), candidate, &error, fault);
        }
        if !self.spoken && (self.ask_for_less(&error, fault) || self.choose_anew(fault)) {
            return None;
        }
        if !self.spoken
            && fault.fails_over()
            && let Some((asked, body)) = self.asked.take()
        {
            if !fault.is_of_key() {
                // Another key would not help.
                self.candidates.retain(|other| !other.is_model_of(&asked));
            }
            if !self.has_key_for(&asked, fault) && self.ask_later(&asked, &error, fault) {
                self.asked = Some((asked, body));
                return None;
            }
            if self.ask_limited(&asked, &body) || self.ask_next(&asked, body, &error, fault) {
                return None;
            }
            // What passes is told rather than what does not.
            if let Some(limited) = self.limited.take().filter(|_| !fault.is_passing()) {
                self.end();
                return Some(limited.error);
            }
        } else if !self.spoken
            && fault == Fault::ContextTooLong
            && let Some((asked, _)) = &self.asked
        {
            let model = asked.model_ref().to_string();
            let error = self.request.too_long_alone(&model, &error);
            self.end();
            return Some(error);
        }
        self.end();
        Some(error)
    }

    /// Goes back to the key that only has no more requests for now, where none is left of the others. Whether it
    /// does.
    fn ask_limited(&mut self, asked: &Candidate, body: &Bytes) -> bool {
        if self.candidates.front().is_some_and(|next| next.is_model_of(asked)) {
            return false;
        }
        let Some(limited) = self.limited.take() else { return false };
        if !self.ask_later(&limited.candidate, &limited.still(), limited.fault) {
            self.limited = Some(limited);
            return false;
        }
        self.asked = Some((limited.candidate, body.clone()));
        true
    }

    /// Whether another key of the same model comes next and is better asked with at once than this one later.
    fn has_key_for(&self, asked: &Candidate, fault: Fault) -> bool {
        fault.is_of_key()
            && self.candidates.front().is_some_and(|next| {
                next.is_model_of(asked) && (!fault.is_passing() || self.standing.admits(clock::now(), next))
            })
    }

    /// Asks the same model again after a pause, where it may do better then. Whether it does.
    fn ask_later(&mut self, asked: &Candidate, error: &Error, fault: Fault) -> bool {
        let wanted = match error.detail {
            Some(Detail::RetryAfter(wait)) => Some(wait),
            _ => None,
        };
        let (max, pause) = (asked.endpoint.patience.retries, self.deadlines.retry);
        let retries = Retries { max, pause, ..Retries::default() };
        let Some(pause) = retries.pause(fault, self.again, wanted, random()) else { return false };
        let (model, pause_ms, words) = (asked.model_ref(), pause.as_millis(), reason::words(error, fault));
        tracing::warn!(%error, %model, fault = fault.name(), pause_ms, "model failed, it is asked again");
        let notice = format!("{model} {words}: it is asked again in {}", seconds(pause));
        self.notices.push(Notice::new(NoticeKind::Retrying, notice));
        self.phase = Phase::Pausing;
        self.pause_for(pause);
        true
    }

    /// Asks with the next key of the same model, or the next model. Whether there is one.
    fn ask_next(&mut self, asked: &Candidate, body: Bytes, error: &Error, fault: Fault) -> bool {
        let Some(next) = self.candidates.front() else { return false };
        let (from, words) = (asked.model_ref(), reason::words(error, fault));
        if next.is_model_of(asked) {
            let (Some(key), Some(other)) = (asked.key_name(), next.key_name()) else { return false };
            tracing::warn!(%error, model = %from, %key, next = %other, fault = fault.name(), "key failed, trying the next");
            let limited = Limited::new(asked.clone(), error.clone(), fault);
            if fault.is_passing() && self.limited.as_ref().is_none_or(|known| limited.wait() < known.wait()) {
                self.limited = Some(limited);
            }
            // It is asked at once: only what took a while is worth telling.
            if self.since.elapsed() >= self.deadlines.notice {
                let notice = format!("{from} {words} ({key}): it is asked with {other}");
                self.notices.push(Notice::new(NoticeKind::Retrying, notice));
            }
            if let Some(next) = self.candidates.pop_front() {
                self.begin(next, body);
            }
            return true;
        }
        let to = next.model_ref();
        tracing::warn!(%error, model = %from, next = %to, fault = fault.name(), "model failed, trying the next");
        let notice = format!("{from} {words}: {to} is asked");
        self.notices.push(Notice::new(NoticeKind::Fallback, notice));
        if next.endpoint.name == asked.endpoint.name {
            if let Some(next) = self.candidates.pop_front() {
                self.begin_next(next);
            }
        } else {
            self.held.set_place(None);
            let queueing = Queueing::new(self.session.clone(), std::mem::take(&mut self.candidates));
            self.phase = Phase::Queued(Box::new(queueing));
        }
        true
    }

    /// There is a place for the next model, something to tell of the wait for it, or no place at all.
    fn queued(&mut self, step: Option<Result<QueueStep, Error>>) -> Option<Error> {
        match step {
            Some(Ok(QueueStep::Tell(notice))) => self.notices.push(notice),
            Some(Ok(QueueStep::Place(place, candidates))) => {
                self.held.set_place(Some(place));
                self.candidates = candidates;
                if let Some(next) = self.candidates.pop_front() {
                    self.begin_next(next);
                }
            }
            Some(Err(error)) => {
                self.end();
                return Some(error);
            }
            None => self.end(),
        }
        None
    }

    /// The model that is asked.
    fn model_ref(&self) -> String {
        let asked = self.asked.as_ref();
        asked.map_or_else(String::new, |(candidate, _)| candidate.model_ref().to_string())
    }

    /// Asks the same model once more, without what it said it can't take. Whether there was such a thing.
    fn ask_for_less(&mut self, error: &Error, fault: Fault) -> bool {
        let Some(less) = self.reduced.reduce(&mut self.request, fault) else { return false };
        self.is_without_tools |= fault == Fault::NoTools;
        self.is_without_marks |= fault == Fault::NoCacheMarks;
        let Some((candidate, _)) = self.asked.take() else { return false };
        let (model, fault) = (candidate.model_ref(), fault.name());
        tracing::info!(%error, %model, fault, "less is sent");
        if let Less::Told(notice) = less {
            self.notices.push(notice);
        }
        let Endpoint { kind, base_url, .. } = &*candidate.endpoint;
        let body = encode(*kind, base_url, &self.request).into();
        self.begin(candidate, body);
        true
    }

    /// Asks a server anew for its models that no longer knows the one that was chosen of them. Whether it is such.
    fn choose_anew(&mut self, fault: Fault) -> bool {
        if fault != Fault::Misconfigured || self.rechosen {
            return false;
        }
        let is_chosen =
            |(candidate, _): &mut (Candidate, Bytes)| candidate.by_default && !candidate.model.is_empty();
        let Some((mut candidate, body)) = self.asked.take_if(is_chosen) else { return false };
        self.rechosen = true;
        candidate.model.clear();
        self.begin(candidate, body);
        true
    }

    /// Goes on with the model that was chosen, or with why there is none.
    fn chose(&mut self, model: Result<String, Failure>) {
        let Some((mut candidate, body)) = self.asked.take() else { return self.end() };
        match model {
            Ok(model) => {
                let provider = candidate.endpoint.name.clone();
                // With its other keys it is the same.
                let others = self.candidates.iter_mut().filter(|other| other.by_default);
                for other in others.filter(|other| other.endpoint.name == provider) {
                    other.model.clone_from(&model);
                }
                candidate.model.clone_from(&model);
                if self.chosen.try_send(Chosen { provider, model }).is_err() {
                    tracing::debug!("the supervisor is busy: the next call chooses again");
                }
                self.begin_next(candidate);
            }
            Err(failure) => {
                let _ = self.held.charge(|charge| charge.begin(&candidate));
                self.asked = Some((candidate, body));
                self.failed = Some(failure);
            }
        }
    }

    /// The model that is asked answered to the end. Where it did once it was asked without tools, it can't call
    /// any; what it said alone is no proof: it may repeat a prompt.
    fn went_well(&self) {
        let Some((candidate, _)) = &self.asked else { return };
        self.standing.succeeded(candidate);
        if self.is_without_tools {
            self.standing.is_without_tools(candidate.model_ref());
        }
        if self.is_without_marks {
            self.standing.is_without_cache_marks(candidate.model_ref());
        }
    }

    /// Gives back what is held.
    fn end(&mut self) {
        self.phase = Phase::Over;
        self.held.give_back();
    }

    /// Counts what is handed on, and fills in the usage of a finished answer.
    fn account(&mut self, deltas: &mut [Delta], wire: Option<Usage>) {
        let calls = deltas.iter().filter(|delta| matches!(delta, Delta::ToolCall(_))).count();
        self.said_calls = self.said_calls.saturating_add(calls);
        let bytes: usize = deltas
            .iter()
            .map(|delta| match delta {
                Delta::Text(text) | Delta::Thinking(text) => text.len(),
                Delta::ToolCall(call) => call.name.as_str().len() + call.input.to_string().len(),
                Delta::Sealed(_) | Delta::Notice(_) | Delta::Finished { .. } => 0,
            })
            .sum();
        let proofs = deltas.iter().map(|delta| match delta {
            Delta::Sealed(proof) => proof.bytes(),
            _ => 0,
        });
        // No output of the model, but kept like it.
        self.said_bytes = self.said_bytes.saturating_add(bytes).saturating_add(proofs.sum());
        let runs_on = self.runs_on;
        self.held.charge(|charge| {
            charge.add(bytes as u64, wire);
            if let Some(Delta::Finished { usage, .. }) = deltas.last_mut() {
                *usage = Some(if runs_on { charge.cut() } else { charge.finish(*usage) });
            }
        });
    }

    fn pause_for(&mut self, time: Duration) {
        self.pause.as_mut().reset(Instant::now() + time);
    }

    /// Hands on what was decoded; with its end, gives back what is held. None where it is no answer.
    fn hand_on(&mut self, mut deltas: Vec<Delta>, wire: Option<Usage>) -> Option<Vec<Delta>> {
        self.answered |= deltas.iter().any(|delta| matches!(delta, Delta::Text(_) | Delta::ToolCall(_)));
        if let Some(empty) = self.empty(&deltas) {
            self.held.charge(|charge| charge.add(0, wire));
            self.failed = Some(empty);
            return None;
        }
        self.spoken = true;
        self.account(&mut deltas, wire);
        if let Some(Delta::Finished { stop, .. }) = deltas.last() {
            if let Some(notice) = self.incomplete(*stop) {
                deltas.insert(deltas.len() - 1, Delta::Notice(notice));
            }
            self.went_well();
            self.end();
        } else if self.said_bytes > ANSWER_BYTES_MAX || self.said_calls > ANSWER_CALLS_MAX {
            let what = format!("{ANSWER_BYTES_MAX} bytes or {ANSWER_CALLS_MAX} tool calls");
            let error = ErrorCode::Provider.error(format!("the answer has more than {what}"));
            self.failed = Some(Failure { error, fault: Fault::BadRequest, billed: true });
        }
        Some(deltas)
    }

    /// That an answer is over in which nothing was said, not even a thought, and that it is no answer: the model
    /// may do better when it is asked again. Of the results of tools it need not say anything.
    fn empty(&self, deltas: &[Delta]) -> Option<Failure> {
        let [Delta::Finished { stop: Stop::End, .. }] = deltas else { return None };
        if self.spoken || !matches!(self.request.messages.last(), Some(ChatMessage::User { .. })) {
            return None;
        }
        let error = ErrorCode::Provider.error(format!("{}: the model's answer is empty", self.model_ref()));
        Some(Failure { error, fault: Fault::Server, billed: true })
    }

    /// What is told of an answer that is not complete.
    fn incomplete(&self, stop: Stop) -> Option<Notice> {
        let message = match stop {
            Stop::End | Stop::ToolUse => return None,
            // The error says so.
            _ if !self.answered => return None,
            Stop::MaxTokens => self.bound.cut(self.request.max_tokens),
            Stop::Refused => "the model refused to go on".to_owned(),
            Stop::Filtered => "the provider's content filter ended the answer".to_owned(),
        };
        Some(Notice::new(NoticeKind::Incomplete, message))
    }

    /// Plays the steps that are due.
    fn play(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Delta>> {
        let mut deltas = Vec::new();
        loop {
            let Phase::Playing { steps, pausing } = &mut self.phase else { return Poll::Ready(deltas) };
            let after = steps.front().map_or(Duration::ZERO, |step| step.after);
            if !after.is_zero() && !*pausing {
                if !deltas.is_empty() {
                    return Poll::Ready(deltas);
                }
                *pausing = true;
                self.pause_for(after);
                continue;
            }
            if *pausing && self.pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            *pausing = false;
            match steps.pop_front().map(|step| step.delta) {
                Some(Ok(delta)) => {
                    let finished = matches!(delta, Delta::Finished { .. });
                    deltas.push(delta);
                    if finished {
                        return Poll::Ready(deltas);
                    }
                }
                Some(Err(error)) => {
                    self.failed = Some(Failure { error, fault: Fault::Timeout, billed: true });
                    return Poll::Ready(deltas);
                }
                None => {
                    let error = ErrorCode::Internal.error("offline: the plan has no end");
                    self.failed = Some(Failure { error, fault: Fault::BadRequest, billed: true });
                    return Poll::Ready(deltas);
                }
            }
        }
    }

    /// Reads what has arrived, up to a batch.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<(Vec<Delta>, Option<Usage>)> {
        let mut deltas = Vec::new();
        let mut read_bytes = 0;
        let Phase::Reading { name, body, decoder } = &mut self.phase else {
            return Poll::Ready((deltas, None));
        };
        let mut fail = |error, fault| self.failed = Some(Failure { error, fault, billed: true });
        let events = decoder.events();
        let pending = loop {
            match body.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    read_bytes += bytes.len().max(1);
                    if let Err(error) = decoder.push(&bytes, &mut deltas) {
                        fail(error, decoder.fault());
                        break false;
                    }
                    if read_bytes >= BATCH_BYTES_MAX {
                        break false;
                    }
                }
                Poll::Ready(Some(Err(_))) | Poll::Ready(None) if decoder.is_finished() => break false,
                Poll::Ready(Some(Err(awc::error::PayloadError::Io(why)))) => {
                    let error = format!("{name} cut the answer: {}", io_words(&why));
                    fail(ErrorCode::Provider.error(error), Fault::Cut);
                    break false;
                }
                // The end of the body, or of the connection within it: the end marker tells.
                Poll::Ready(Some(Err(_)) | None) => {
                    if let Err(error) = decoder.finish(&mut deltas) {
                        fail(error, decoder.fault());
                    }
                    break false;
                }
                Poll::Pending => break true,
            }
        };
        let texts = deltas.iter().map(|delta| match delta {
            Delta::Text(text) | Delta::Thinking(text) => text.len(),
            _ => 0,
        });
        self.said_text = self.said_text.saturating_add(texts.sum());
        let held = self.said_text.saturating_add(decoder.written());
        let most = TOKEN_BYTES_MAX.saturating_mul(self.request.max_tokens as usize) + OVERRUN_BYTES_MAX;
        if decoder.is_finished() || self.failed.is_some() {
            // It is over.
        } else if self.keeps_bound && held > most {
            let tokens = self.request.max_tokens;
            tracing::warn!(provider = %name, tokens, "the model goes on beyond what it may say: its answer is cut");
            self.runs_on = true;
            deltas.push(Delta::Finished { stop: Stop::MaxTokens, usage: None });
        } else if !self.share.hold(held) {
            let error = "the answers under way leave no room for one of this size: ask again later";
            let error = ErrorCode::Unavailable.error(error);
            self.failed = Some(Failure { error, fault: Fault::BadRequest, billed: true });
        }
        let wire = decoder.usage();
        let heard = decoder.events() > events;
        if decoder.is_finished()
            && pending
            && let Phase::Reading { body, .. } = std::mem::replace(&mut self.phase, Phase::Over)
        {
            actix::spawn(drain(body));
        }
        if heard {
            self.heard = Instant::now();
        }
        if deltas.is_empty() && self.failed.is_none() {
            while self.pause.as_mut().poll(cx).is_ready() && self.heard.elapsed() < self.deadlines.idle {
                self.pause.as_mut().reset(self.heard + self.deadlines.idle);
            }
            if !self.pause.is_elapsed() {
                self.held.charge(|charge| charge.add(0, wire));
                if !pending {
                    // A great deal came and said nothing: the others first.
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
            if let Phase::Reading { name, .. } = &self.phase {
                let limit = self.deadlines.idle;
                let error =
                    ErrorCode::Timeout.error(format!("{name}: silent for {limit:?} within its answer"));
                self.failed = Some(Failure { error, fault: Fault::Timeout, billed: true });
            }
        }
        Poll::Ready((deltas, wire))
    }
}

impl Stream for Answer {
    type Item = Result<Vec<Delta>, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            // What is begun next may fail at once, for want of budget.
            while let Some(failure) = this.failed.take() {
                if let Some(error) = this.fail(failure) {
                    return Poll::Ready(Some(Err(error)));
                }
            }
            if !this.notices.is_empty() {
                let told = this.notices.drain(..).map(Delta::Notice).collect();
                return Poll::Ready(Some(Ok(told)));
            }
            if matches!(this.phase, Phase::Over) {
                this.end();
                return Poll::Ready(None);
            }
            if this.total.as_mut().poll(cx).is_ready() {
                let limit = this.deadlines.total;
                let error = ErrorCode::Timeout.error(format!("the answer took longer than {limit:?}"));
                this.failed = Some(Failure { error, fault: Fault::BadRequest, billed: true });
                continue;
            }
            match &mut this.phase {
                Phase::Opening { name, head, decoder } => match std::task::ready!(head.poll_unpin(cx)) {
                    Ok(body) => {
                        let name = std::mem::take(name);
                        if let Some(decoder) = decoder.take() {
                            this.phase = Phase::Reading { name, body, decoder };
                        }
                        this.heard = Instant::now();
                        this.pause_for(this.deadlines.idle);
                    }
                    Err(failure) => this.failed = Some(failure),
                },
                Phase::Reading { .. } => {
                    let (deltas, wire) = std::task::ready!(this.read(cx));
                    if !deltas.is_empty() {
                        match this.hand_on(deltas, wire) {
                            Some(deltas) => return Poll::Ready(Some(Ok(deltas))),
                            None => continue,
                        }
                    }
                    this.held.charge(|charge| charge.add(0, wire));
                }
                Phase::Playing { .. } => {
                    let deltas = std::task::ready!(this.play(cx));
                    if !deltas.is_empty()
                        && let Some(deltas) = this.hand_on(deltas, None)
                    {
                        return Poll::Ready(Some(Ok(deltas)));
                    }
                }
                Phase::Choosing(model) => {
                    let model = std::task::ready!(model.poll_unpin(cx));
                    this.chose(model);
                }
                Phase::Pausing => {
                    std::task::ready!(this.pause.as_mut().poll(cx));
                    this.again += 1;
                    match this.asked.take() {
                        Some((candidate, body)) => this.begin(candidate, body),
                        None => this.end(),
                    }
                }
                Phase::Queued(queueing) => {
                    let step = std::task::ready!(queueing.poll_next_unpin(cx));
                    if let Some(error) = this.queued(step) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                Phase::Over => {}
            }
        }
    }
}

/// A pause in words.
fn seconds(pause: Duration) -> String {
    format!("{} s", pause.as_secs_f64().round().max(1.0))
}

/// For the pause before a model is asked again.
fn random() -> u32 {
    let [a, b, c, d, ..] = clock::random();
    u32::from_le_bytes([a, b, c, d])
}

/// Reads what follows an end marker, so that the connection can be used again.
async fn drain(mut body: Body) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(part)) = body.next().await {
            bytes += part.len();
            if bytes > DRAIN_BYTES_MAX {
                break;
            }
        }
    };
    let _ = timeout(DRAIN, rest).await;
}
