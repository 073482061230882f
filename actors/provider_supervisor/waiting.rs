//! How a call comes to a place at a provider: at once, after a wait, or not at all.
//!
//! Where too many wait at a provider already, or a wait takes too long, the next provider of the agent is
//! asked for a place. Whoever waits for the answer is told of a wait that takes a while.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use clawmux_core::provider::notice::{Notice, NoticeKind};
use futures::{FutureExt as _, Stream};
use tokio::time::{Instant, Sleep, sleep};

use super::Candidate;
use super::places::{Entry, Place, Waiting};

/// A call on its way to a place at the provider of its first candidate. As a stream: what is told meanwhile,
/// then the place or why there is none, and nothing after it.
#[derive(Debug)]
pub(super) struct Queueing {
    session: SessionKey,
    /// The models not tried yet; a place is sought at the provider of the first.
    candidates: VecDeque<Candidate>,
    /// None before it has asked for a place at that provider, and once it has one.
    waiting: Option<Waiting>,
    since: Instant,
    told: bool,
    /// Fires when it is time to tell, and then when it is time to give up.
    alarm: Pin<Box<Sleep>>,
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Step {
    /// Something that whoever waits for the answer should know.
    Tell(Notice),
    /// The place, and the models to ask, of which the first is of the place's provider.
    Place(Place, VecDeque<Candidate>),
}

impl Queueing {
    /// For a call of this session. `candidates` is not empty.
    pub(super) fn new(session: SessionKey, candidates: VecDeque<Candidate>) -> Self {
        let alarm = Box::pin(sleep(Duration::ZERO));
        Self { session, candidates, waiting: None, since: Instant::now(), told: false, alarm }
    }

    /// The place, where there is one at once.
    pub(super) fn place_now(&mut self) -> Option<(Place, VecDeque<Candidate>)> {
        match self.enter() {
            Some(Entry::Begins(place)) => Some((place, std::mem::take(&mut self.candidates))),
            Some(Entry::Waits(waiting)) => {
                self.wait(waiting);
                None
            }
            Some(Entry::Full) | None => None,
        }
    }

    fn enter(&self) -> Option<Entry> {
        self.candidates.front().map(|first| first.places.enter(&self.session))
    }

    fn wait(&mut self, waiting: Waiting) {
        self.waiting = Some(waiting);
        self.since = Instant::now();
        self.told = false;
        self.set_alarm();
    }

    fn set_alarm(&mut self) {
        let Some(first) = self.candidates.front() else { return };
        let limit = first.deadlines.place;
        let after = if self.told { limit } else { first.deadlines.notice.min(limit) };
        self.alarm.as_mut().reset(self.since + after);
    }

    /// Tells of the wait, once; and once more where it took too long.
    fn wait_on(&mut self, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        let Some(first) = self.candidates.front().cloned() else { return Poll::Pending };
        while self.alarm.as_mut().poll(cx).is_ready() {
            if self.since.elapsed() >= first.deadlines.place {
                return Poll::Ready(None);
            }
            if !std::mem::replace(&mut self.told, true) {
                let (name, max) = (&first.endpoint.name, first.places.figures().max);
                tracing::info!(provider = %name, session = %self.session, max, "call waits for a place");
                let calls = if max == 1 { "1 call is".to_owned() } else { format!("{max} calls are") };
                let told = format!("waiting for a place at {name}: {calls} under way, the most at once");
                self.set_alarm();
                return Poll::Ready(Some(Notice::new(NoticeKind::Waiting, told)));
            }
            self.set_alarm();
        }
        Poll::Pending
    }

    /// There is no place at the provider of the first candidate: on to the next one.
    fn give_up(&mut self, why: &str) -> Result<Notice, Error> {
        self.waiting = None;
        let Some(first) = self.candidates.pop_front() else {
            return Err(ErrorCode::Internal.error("there is no model to ask"));
        };
        first.places.refuse();
        let (name, max) = (&first.endpoint.name, first.places.figures().max);
        self.candidates.retain(|other| other.endpoint.name != *name);
        let Some(next) = self.candidates.front() else {
            let error = format!("provider {name}: {why} (max_concurrent = {max}): try again later");
            return Err(ErrorCode::Unavailable.error(error));
        };
        let (from, to) = (first.model_ref(), next.model_ref());
        tracing::warn!(model = %from, next = %to, max, why, "no place at the provider, trying the next");
        Ok(Notice::new(NoticeKind::Fallback, format!("{from} has no place free: {to} is asked")))
    }
}

impl Stream for Queueing {
    type Item = Result<Step, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        const FULL: &str = "too many calls wait for a place";
        const LATE: &str = "no place became free in time";
        let this = &mut *self;
        loop {
            if this.candidates.is_empty() {
                return Poll::Ready(None);
            }
            let Some(waiting) = &mut this.waiting else {
                if let Some((place, candidates)) = this.place_now() {
                    return Poll::Ready(Some(Ok(Step::Place(place, candidates))));
                }
                if this.waiting.is_none() {
                    return Poll::Ready(Some(this.give_up(FULL).map(Step::Tell)));
                }
                continue;
            };
            match waiting.poll_unpin(cx) {
                Poll::Ready(Some(place)) => {
                    this.waiting = None;
                    let candidates = std::mem::take(&mut this.candidates);
                    return Poll::Ready(Some(Ok(Step::Place(place, candidates))));
                }
                // Displaced by another owner's call.
                Poll::Ready(None) => return Poll::Ready(Some(this.give_up(FULL).map(Step::Tell))),
                Poll::Pending => {}
            }
            return Poll::Ready(Some(match ready!(this.wait_on(cx)) {
                Some(notice) => Ok(Step::Tell(notice)),
                None => this.give_up(LATE).map(Step::Tell),
            }));
        }
    }
}
