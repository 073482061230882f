//! What an actor of many requests waits for.
//!
//! An actor polls all that was spawned on its context whenever one of it is ready: a thousand requests that wait
//! are polled a million times. Of what is waited for here only what is ready is polled.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix::{Actor, ActorFuture, AsyncContext};
use futures::future::{FutureExt as _, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt as _};

/// What follows from something that was waited for.
type Then<A> = Box<dyn FnOnce(&mut A, &mut <A as Actor>::Context)>;

/// What an actor waits for; it ends with the actor.
pub(crate) struct Awaited<A: Actor>(FuturesUnordered<LocalBoxFuture<'static, Then<A>>>);

impl<A: Actor> Default for Awaited<A> {
    fn default() -> Self {
        Self(FuturesUnordered::new())
    }
}

impl<A: Actor> Awaited<A> {
    /// Waits for `what`, and goes on with `then`. For the actor itself: what somebody else adds is not looked at
    /// before the actor has something to do.
    pub(crate) fn add<T: 'static>(
        &self,
        what: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut A, T, &mut A::Context) + 'static,
    ) {
        let then = what.map(|got| -> Then<A> { Box::new(move |actor, ctx| then(actor, got, ctx)) });
        self.0.push(then.boxed_local());
    }
}

/// An actor that waits so.
pub(crate) trait Awaits: Actor<Context: AsyncContext<Self>> {
    /// What it waits for.
    fn awaited(&mut self) -> &mut Awaited<Self>;

    /// To be called when it starts.
    fn begin_to_wait(ctx: &mut Self::Context) {
        ctx.spawn(Waiting);
    }
}

/// Goes on with what is ready for as long as the actor is there.
struct Waiting;

impl<A: Awaits> ActorFuture<A> for Waiting {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        actor: &mut A,
        ctx: &mut A::Context,
        task: &mut Context<'_>,
    ) -> Poll<Self::Output> {
        while let Poll::Ready(Some(then)) = actor.awaited().0.poll_next_unpin(task) {
            then(actor, ctx);
        }
        Poll::Pending
    }
}
