//! The answer to a [`Chat`](crate::provider_supervisor::Chat): the deltas of one provider call, for
//! whoever asked.
//!
//! The connections of an arbiter never leave it, but an actor's answer may: so a task of the arbiter that
//! first polls the deltas makes the call. It reads one piece ahead and no further. Dropped at any moment the
//! deltas give back at once what the call holds, and its connection is closed.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use clawmux_core::error::Error;
use clawmux_core::provider::Delta;
use clawmux_core::provider::usage::Usage;
use futures::future::{Either, select};
use futures::{Stream, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::answer::Answer;
use super::{Call, Charge};

type Piece = Result<Vec<Delta>, Error>;

/// All deltas that each read of the network completed, as they come in. Ends after [`Delta::Finished`],
/// whose usage is always known, or after an error.
#[derive(Debug)]
pub struct Deltas {
    /// The call, until it is begun, and where its pieces go.
    call: Option<(Call, mpsc::Sender<Piece>)>,
    pieces: mpsc::Receiver<Piece>,
    held: Held,
    max_tokens: u32,
}

impl Deltas {
    /// Of a call whose budget is reserved and whose place among the calls under way is taken.
    pub(crate) fn new(call: Call, charge: Charge, slot: OwnedSemaphorePermit) -> Self {
        let (sender, pieces) = mpsc::channel(1);
        let max_tokens = call.request.max_tokens;
        Self { call: Some((call, sender)), pieces, held: Held::new(charge, slot), max_tokens }
    }

    /// The most tokens of output the call may produce, after what budgets leave.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// What the call has cost so far: as the wire says, estimated where it does not. Holds after the end too.
    pub fn usage(&self) -> Usage {
        self.held.lock().usage()
    }
}

impl Stream for Deltas {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        if let Some((call, sender)) = self.call.take() {
            actix::spawn(read(Answer::new(call, self.held.clone()), sender));
        }
        self.pieces.poll_recv(cx)
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        self.held.give_back();
    }
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
#[derive(Clone, Debug)]
pub(super) struct Held(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    open: Option<(Charge, OwnedSemaphorePermit)>,
    /// What the call has cost, once all is given back.
    cost: Usage,
}

impl State {
    fn usage(&self) -> Usage {
        self.open.as_ref().map_or(self.cost, |(charge, _)| charge.usage())
    }
}

impl Held {
    fn new(charge: Charge, slot: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Mutex::new(State { open: Some((charge, slot)), cost: Usage::default() })))
    }

    /// Counts something, unless all is given back.
    pub(super) fn charge<T>(&self, count: impl FnOnce(&mut Charge) -> T) -> Option<T> {
        self.lock().open.as_mut().map(|(charge, _)| count(charge))
    }

    /// Settles the call with what is known by now.
    pub(super) fn give_back(&self) {
        let mut state = self.lock();
        state.cost = state.usage();
        let open = state.open.take();
        drop(state);
        drop(open);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
