//! An answer on its way to its platform: its requests one after the other, each sent once at most.
//!
//! ```text
//!            ┌────────────── carried out: the next one ──────────────┐
//!            ▼                                                       │
//!   Waits ── written: it is being sent ──► Sending ── answered ──────┼──► gone, once all are
//!     ▲                                      │ │ └─ never ───────────┼──► Failed
//!     └──── not carried out: a pause ────────┘ └─── no answer ───────┴──► Unknown
//! ```
//!
//! Before a request goes it is written down that it does. So one that a crash, a stall or a cut connection
//! leaves without an answer is never sent again: it is told to operators instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clawmux_core::channel::{Answered, Incoming, Outgoing, Refused, Verdict, verdict};
use clawmux_core::conversation::outbox::ChannelAnswer;
use clawmux_core::time::backoff;
use clawmux_core::tools::plugin::Rights;
use futures::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::adapter::{Adapter, patiently};
use crate::outbound::fetch::{Fate, Fetcher, Opened, Reach};
use crate::runtime::clock;
use crate::store::ledger::Ledger;
use crate::store::{ChannelChange, OutboxRow, SendState, Words};

/// How long a platform may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// So much is read of what it says, in bytes.
const SAID_BYTES_MAX: usize = 16 * 1024;

/// The pause after something was not carried out; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How soon it is noticed that requests may go again.
const GROUNDED: Duration = Duration::from_millis(200);

/// An answer that can't be sent for so long has failed.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// What became of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fared {
    /// It is sent.
    Sent,
    /// So many of its requests were carried out. The next one was not, or nobody knows, and why.
    Stopped(usize, SendState),
}

/// What it takes to send answers.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) adapter: Adapter,
    pub(super) fetcher: Fetcher,
    pub(super) ledger: Ledger,
    pub(super) flights: Flights,
}

/// Requests that are on their way, for who wants to stop where it is known what became of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights(Arc<InFlight>);

#[derive(Debug, Default)]
struct InFlight {
    /// Requests that were written down as being sent, and nothing after that.
    open: AtomicUsize,
    /// Whether no more of them go.
    is_grounded: AtomicBool,
}

impl Flights {
    /// No more requests go, or they do again.
    pub(super) fn ground(&self, is_grounded: bool) {
        self.0.is_grounded.store(is_grounded, Relaxed);
    }

    /// Whether of every request it is written down what became of it.
    pub(super) fn are_over(&self) -> bool {
        self.0.open.load(Relaxed) == 0
    }

    /// Waits until a request may go.
    async fn take_off(&self) -> Flight {
        while self.0.is_grounded.load(Relaxed) {
            sleep(GROUNDED).await;
        }
        self.0.open.fetch_add(1, Relaxed);
        Flight(Arc::clone(&self.0))
    }
}

/// A request on its way.
struct Flight(Arc<InFlight>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl Sender {
    /// Sends an answer; takes as long as it takes. `paused` is told why it has to wait.
    pub(super) async fn send(&self, row: OutboxRow, paused: impl Fn(&str)) -> Fared {
        let stopped = async |next: usize, state: SendState| {
            self.put(row.id, state.clone(), &paused).await;
            Fared::Stopped(next, state)
        };
        let requests = match self.requests(&row, &paused).await {
            Ok(requests) => requests,
            Err(why) => return stopped(row.next, SendState::Failed(why)).await,
        };
        for nth in row.next..requests.len() {
            let mut attempt = 0;
            loop {
                let flight = self.flights.take_off().await;
                self.put(row.id, SendState::Sending, &paused).await;
                let refused = match self.try_once(&requests, nth).await {
                    Tried::Judged(Verdict::Done) => {
                        let is_last = nth + 1 == requests.len();
                        let done = match is_last {
                            true => ChannelChange::Sent(row.id),
                            false => ChannelChange::Send(row.id, SendState::Waits(nth + 1)),
                        };
                        self.write(done, &paused).await;
                        break;
                    }
                    Tried::Judged(Verdict::Later(refused)) => refused,
                    Tried::Judged(Verdict::Never(why)) => {
                        return stopped(nth, SendState::Failed(why)).await;
                    }
                    Tried::Unknown(why) => return stopped(nth, SendState::Unknown(why)).await,
                };
                if clock::now().since(row.made) > LIFE {
                    let why = format!("not within {} hours: {}", LIFE.as_secs() / 3600, refused.why);
                    return stopped(nth, SendState::Failed(why)).await;
                }
                self.put(row.id, SendState::Waits(nth), &paused).await;
                drop(flight);
                paused(&refused.why);
                let pause = backoff(PAUSE, attempt, PAUSE_MAX);
                sleep(refused.after.unwrap_or(pause).max(pause)).await;
                attempt += 1;
            }
        }
        if row.next >= requests.len() {
            self.write(ChannelChange::Sent(row.id), &paused).await;
        }
        Fared::Sent
    }

    /// The requests of an answer, which are what they were from the first of them on.
    async fn requests(&self, row: &OutboxRow, paused: &impl Fn(&str)) -> Result<Outgoing, String> {
        let answer = match &row.words {
            Words::Requests(requests) => return Outgoing::from_json(requests),
            Words::Answer(answer) => ChannelAnswer::from_json(answer)?,
        };
        let message = Incoming::of_address(&row.address)?;
        let Some(answered) = Answered::of(answer) else { return Ok(Outgoing::default()) };
        let formatted = patiently(async || self.adapter.format(&message, &answered).await).await;
        let requests =
            formatted.map_err(|why| format!("it can't be put into the platform's words: {why}"))?;
        self.write(ChannelChange::Formatted(row.id, requests.to_json()), paused).await;
        Ok(requests)
    }

    /// Sends something that nobody misses: it is tried once.
    pub(super) async fn send_lightly(&self, requests: &Outgoing) {
        for nth in 0..requests.len() {
            if !matches!(self.try_once(requests, nth).await, Tried::Judged(Verdict::Done)) {
                return;
            }
        }
    }

    async fn try_once(&self, requests: &Outgoing, nth: usize) -> Tried {
        let never = |why| Tried::Judged(Verdict::Never(why));
        let request = match requests.request(nth) {
            Ok(request) => request,
            Err(why) => return never(why),
        };
        let rights = match self.adapter.rights().await {
            Ok(rights) => rights,
            Err(why) => return Tried::Judged(Verdict::Later(Refused { why, after: None })),
        };
        let answered = async {
            let opened = self.fetcher.open(&rights, request, Reach::Public).await;
            match opened {
                Ok(opened) => judged(opened, &rights).await,
                Err(unanswered) => match unanswered.fate {
                    Fate::Refused => never(unanswered.why),
                    Fate::Unsent => {
                        Tried::Judged(Verdict::Later(Refused { why: unanswered.why, after: None }))
                    }
                    Fate::Unknown => Tried::Unknown(unanswered.why),
                },
            }
        };
        let late = || Tried::Unknown(format!("no answer within {} s", ANSWER_MAX.as_secs()));
        timeout(ANSWER_MAX, answered).await.unwrap_or_else(|_| late())
    }

    async fn put(&self, id: i64, state: SendState, paused: &impl Fn(&str)) {
        self.write(ChannelChange::Send(id, state), paused).await;
    }

    async fn write(&self, change: ChannelChange, paused: &impl Fn(&str)) {
        self.ledger.write(vec![change], paused).await;
    }
}

/// What became of a request.
enum Tried {
    Judged(Verdict),
    /// Whether it was carried out nobody knows, and why.
    Unknown(String),
}

async fn judged(opened: Opened, rights: &Rights) -> Tried {
    let Opened { mut response, .. } = opened;
    let status = response.status().as_u16();
    let after =
        response.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut said = Vec::new();
    // The status is the answer; what is said besides is read as far as it comes.
    while let Some(Ok(piece)) = response.next().await {
        said.extend_from_slice(&piece);
        if said.len() >= SAID_BYTES_MAX {
            said.truncate(SAID_BYTES_MAX);
            break;
        }
    }
    let shown = |why: String| rights.shown(why);
    Tried::Judged(match verdict(status, after.as_deref(), &said) {
        Verdict::Done => Verdict::Done,
        Verdict::Later(refused) => Verdict::Later(Refused { why: shown(refused.why), ..refused }),
        Verdict::Never(why) => Verdict::Never(shown(why)),
    })
}
