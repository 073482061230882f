//! The answer to a [`Chat`](crate::provider_supervisor::Chat): the deltas of one provider call, for
//! whoever asked.
//!
//! The connections of an arbiter never leave it, but an actor's answer may: so a task of the arbiter that
//! first polls the deltas makes the call. It reads one piece ahead and no further. Dropped at any moment the
//! deltas give back at once what the call holds, and its connection is closed.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use actix::Recipient;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::provider::Delta;
use clawmux_core::provider::usage::Usage;
use futures::future::{Either, select};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;

use super::answer::Answer;
use super::places::Place;
use super::waiting::{Queueing, Step};
use super::{Asking, Call, Charge, Grant, Granted, ProviderSupervisor};
use crate::runtime::ask::gone;

type Piece = Result<Vec<Delta>, Error>;

/// All deltas that each read of the network completed, as they come in. Ends after [`Delta::Finished`],
/// whose usage is always known, or after an error.
#[derive(Debug)]
pub struct Deltas {
    /// How it begins, until it does, and where its pieces go.
    start: Option<(Start, mpsc::Sender<Piece>)>,
    pieces: mpsc::Receiver<Piece>,
    held: Held,
    max_tokens: u32,
}

impl Deltas {
    /// Of a call whose budget is reserved and which has its place among those under way.
    pub(super) fn granted(Granted { call, charge }: Granted, place: Place) -> Self {
        let max_tokens = call.request.max_tokens;
        let held = Held::default();
        held.take(charge, place);
        Self::new(Start::Granted(Box::new(call)), held, max_tokens)
    }

    /// Of a call that waits for its place. Its budget is reserved once it has one.
    pub(super) fn queued(queueing: Queueing, asking: Asking, supervisor: Recipient<Grant>) -> Self {
        let max_tokens = asking.max_tokens();
        let start = Start::Queued(Box::new((queueing, asking)), supervisor);
        Self::new(start, Held::default(), max_tokens)
    }

    fn new(start: Start, held: Held, max_tokens: u32) -> Self {
        let (sender, pieces) = mpsc::channel(1);
        Self { start: Some((start, sender)), pieces, held, max_tokens }
    }

    /// The most tokens of output the call may produce, after what budgets leave; of one that waited for its
    /// place, before.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// The text of the answer, to its end or until it is longer than so many bytes; and whether that is all.
    ///
    /// # Errors
    /// What the call failed with; `Provider` where it ended without an end.
    pub async fn text(&mut self, bytes_max: usize) -> Result<(String, bool), Error> {
        let mut text = String::new();
        while let Some(piece) = self.next().await {
            for delta in piece? {
                match delta {
                    Delta::Text(said) => text.push_str(&said),
                    Delta::Finished { .. } => return Ok((text, true)),
                    Delta::Thinking(_) | Delta::Sealed(_) | Delta::ToolCall(_) | Delta::Notice(_) => {}
                }
            }
            if text.len() > bytes_max {
                return Ok((text, false));
            }
        }
        Err(ErrorCode::Provider.error("the answer was cut off"))
    }

    /// What the call has cost so far: as the wire says, estimated where it does not. Holds after the end too.
    pub fn usage(&self) -> Usage {
        self.held.lock().usage()
    }
}

impl Stream for Deltas {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        if let Some((start, sender)) = self.start.take() {
            actix::spawn(begin(start, self.held.clone(), sender));
        }
        self.pieces.poll_recv(cx)
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        self.held.give_back();
    }
}

/// How a call begins.
#[derive(Debug)]
enum Start {
    Granted(Box<Call>),
    Queued(Box<(Queueing, Asking)>, Recipient<Grant>),
}

/// Comes to the answer, and reads it.
async fn begin(start: Start, held: Held, to: mpsc::Sender<Piece>) {
    let call = match start {
        Start::Granted(call) => *call,
        Start::Queued(queued, supervisor) => {
            let (queueing, asking) = *queued;
            // Nobody wants it any more: it leaves the queue.
            match select(pin!(to.closed()), pin!(queue(queueing, asking, supervisor, &held, &to))).await {
                Either::Right((Ok(Some(call)), _)) => call,
                Either::Right((Err(error), _)) => {
                    let _ = to.send(Err(error)).await;
                    return;
                }
                Either::Right((Ok(None), _)) | Either::Left(_) => return,
            }
        }
    };
    read(Answer::new(call, held), to).await;
}

/// Waits for a place and has the call granted; none where nobody waits for its answer any more.
async fn queue(
    mut queueing: Queueing,
    asking: Asking,
    supervisor: Recipient<Grant>,
    held: &Held,
    to: &mpsc::Sender<Piece>,
) -> Result<Option<Call>, Error> {
    while let Some(step) = queueing.next().await {
        match step? {
            Step::Tell(notice) => {
                if to.send(Ok(vec![Delta::Notice(notice)])).await.is_err() {
                    return Ok(None);
                }
            }
            Step::Place(place, candidates) => {
                let granted = supervisor.send(Grant { asking, candidates }).await;
                let Granted { call, charge } = granted.map_err(|_| gone::<ProviderSupervisor>())??;
                held.take(charge, place);
                return Ok(Some(call));
            }
        }
    }
    Ok(None)
}

/// Reads an answer, a piece whenever there is room for it, until it ends or nobody wants it any more.
async fn read(mut answer: Answer, to: mpsc::Sender<Piece>) {
    while let Ok(room) = to.reserve().await {
        match select(pin!(to.closed()), answer.next()).await {
            Either::Right((Some(piece), _)) => room.send(piece),
            Either::Right((None, _)) | Either::Left(_) => return,
        }
    }
}

/// What a call holds: its reservation and its place among the calls under way. Given back by whichever end
/// is over first, the call's or the deltas'.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The reservation, and the place unless the call waits for one.
    open: Option<(Charge, Option<Place>)>,
    /// Whether all is given back, and what the call has cost.
    is_over: bool,
    cost: Usage,
}

impl State {
    fn usage(&self) -> Usage {
        self.open.as_ref().map_or(self.cost, |(charge, _)| charge.usage())
    }
}

impl Held {
    /// Holds these, unless all is given back.
    fn take(&self, charge: Charge, place: Place) {
        let mut state = self.lock();
        if !state.is_over {
            state.open = Some((charge, Some(place)));
        } else {
            drop(state);
            drop((charge, place));
        }
    }

    /// Counts something, unless all is given back.
    pub(super) fn charge<T>(&self, count: impl FnOnce(&mut Charge) -> T) -> Option<T> {
        self.lock().open.as_mut().map(|(charge, _)| count(charge))
    }

    /// Holds another place, or none, unless all is given back.
    pub(super) fn set_place(&self, place: Option<Place>) {
        let mut state = self.lock();
        let before = match &mut state.open {
            Some((_, held)) => std::mem::replace(held, place),
            None => place,
        };
        // What gives a place on looks for who is next: not under this lock.
        drop(state);
        drop(before);
    }

    /// Settles the call with what is known by now.
    pub(super) fn give_back(&self) {
        let mut state = self.lock();
        state.cost = state.usage();
        state.is_over = true;
        let open = state.open.take();
        drop(state);
        drop(open);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
