//! The places at a provider: who calls it now, and who waits.
//!
//! Whose turn it is decides the core ([`Queue`]). A place is held for as long as a [`Place`] is, and given on
//! when it is dropped, however that comes about; who waits leaves the queue when [`Waiting`] is dropped. The lock
//! is held for the time of one look into the queue, and never across an await.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use clawmux_core::ids::SessionKey;
use clawmux_core::provider::queue::{Entered, Position, Queue};
use futures::FutureExt as _;
use tokio::sync::oneshot;

type Calls = Queue<oneshot::Sender<Place>>;

/// The places at one provider.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    calls: Calls,
    refused: u64,
}

/// A place at a provider, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Places);

/// A call that waits for a place. As a future: the place, or none where another call took the room to wait in.
#[derive(Debug)]
pub(super) struct Waiting {
    places: Places,
    position: Position,
    place: oneshot::Receiver<Place>,
}

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum Entry {
    /// It has a place.
    Begins(Place),
    /// It waits for one.
    Waits(Waiting),
    /// Too many wait.
    Full,
}

/// How many calls there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    /// Under way.
    pub(super) running: usize,
    /// That wait.
    pub(super) waiting: usize,
    /// Under way at most.
    pub(super) max: usize,
    /// That were sent away since the daemon started.
    pub(super) refused: u64,
}

impl Places {
    /// With places for so many calls at once, and for so many that wait.
    pub(super) fn new(max: usize, waiting_max: usize) -> Self {
        Self(Arc::new(Mutex::new(State { calls: Queue::new(max, waiting_max), refused: 0 })))
    }

    /// A session wants to call.
    pub(super) fn enter(&self, session: &SessionKey) -> Entry {
        let (sender, place) = oneshot::channel();
        let entered = self.lock().calls.enter(session, sender);
        match entered {
            Entered::Begins(_) => Entry::Begins(Place(self.clone())),
            // The one that is displaced hears of it by its sender, which is dropped here.
            Entered::Waits { position, .. } => {
                Entry::Waits(Waiting { places: self.clone(), position, place })
            }
            Entered::Full(_) => Entry::Full,
        }
    }

    /// Another number of places. Who waits and who calls stays.
    pub(super) fn set_max(&self, max: usize) {
        let begin = self.lock().calls.set_limit(max);
        for call in begin {
            self.give(call);
        }
    }

    /// A call was sent away.
    pub(super) fn refuse(&self) {
        self.lock().refused += 1;
    }

    /// How many calls there are.
    pub(super) fn figures(&self) -> Figures {
        let State { calls, refused } = &*self.lock();
        Figures { running: calls.running(), waiting: calls.waiting(), max: calls.limit(), refused: *refused }
    }

    /// Hands a place over. Where nobody takes it any more, it is dropped and so given to the next.
    fn give(&self, to: oneshot::Sender<Place>) {
        drop(to.send(Place(self.clone())));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let next = self.0.lock().calls.leave();
        if let Some(next) = next {
            self.0.give(next);
        }
    }
}

impl Future for Waiting {
    type Output = Option<Place>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.place.poll_unpin(cx).map(Result::ok)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A place that came meanwhile is in the receiver, and given back with it.
        let left = self.places.lock().calls.cancel(self.position);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(account: &str) -> SessionKey {
        SessionKey::new("main", "test", account, "main").unwrap()
    }

    fn begins(entry: Entry) -> Place {
        match entry {
            Entry::Begins(place) => place,
            other => panic!("{other:?}"),
        }
    }

    fn waits(entry: Entry) -> Waiting {
        match entry {
            Entry::Waits(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    #[actix::test]
    async fn a_place_that_is_dropped_is_the_next_ones_and_who_leaves_takes_none_along() {
        let places = Places::new(1, 2);
        let figures = || {
            let Figures { running, waiting, .. } = places.figures();
            (running, waiting)
        };
        let first = begins(places.enter(&session("a")));
        let left = waits(places.enter(&session("b")));
        let second = waits(places.enter(&session("c")));
        assert_eq!(figures(), (1, 2));
        drop(left);
        assert_eq!(figures(), (1, 1));
        drop(first);
        // It left when its place was on the way already.
        let third = waits(places.enter(&session("d")));
        drop(second);
        let third = third.await.expect("its turn has come");
        assert_eq!(figures(), (1, 0));
        drop(third);
        assert_eq!(figures(), (0, 0));
    }

    #[actix::test]
    async fn more_places_begin_those_who_wait_and_one_that_is_displaced_hears_of_it() {
        let places = Places::new(1, 2);
        let _first = begins(places.enter(&session("a")));
        let (second, third) = (waits(places.enter(&session("a"))), waits(places.enter(&session("b"))));
        assert!(matches!(places.enter(&session("c")), Entry::Full));
        let other = session("a").in_space(&clawmux_core::ids::Owner::Credential("eve".into()));
        let fourth = waits(places.enter(&other));
        assert!(third.await.is_none(), "the latest of the owner with most");
        places.set_max(3);
        assert!(second.await.is_some() && fourth.await.is_some());
    }
}
