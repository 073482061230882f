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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use actix::{Addr, Handler, Message};
    use tokio::sync::oneshot;

    use super::*;

    const ALL: usize = 500;

    /// Waits for what it is sent, and counts what came.
    #[derive(Default)]
    struct Counting {
        awaited: Awaited<Self>,
        came: usize,
        polls: Rc<Cell<usize>>,
        done: Option<oneshot::Sender<(usize, usize)>>,
    }

    impl Actor for Counting {
        type Context = actix::Context<Self>;

        fn started(&mut self, ctx: &mut Self::Context) {
            ctx.set_mailbox_capacity(ALL);
            Self::begin_to_wait(ctx);
        }
    }

    impl Awaits for Counting {
        fn awaited(&mut self) -> &mut Awaited<Self> {
            &mut self.awaited
        }
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct WaitFor(oneshot::Receiver<()>);

    impl Handler<WaitFor> for Counting {
        type Result = ();

        fn handle(&mut self, WaitFor(mut receiver): WaitFor, _: &mut Self::Context) {
            let polls = self.polls.clone();
            let what = std::future::poll_fn(move |task| {
                polls.set(polls.get() + 1);
                Pin::new(&mut receiver).poll(task)
            });
            self.awaited.add(what, |counting, _, _| {
                counting.came += 1;
                if counting.came == ALL
                    && let Some(done) = counting.done.take()
                {
                    let _ = done.send((counting.came, counting.polls.get()));
                }
            });
        }
    }

    #[actix::test]
    async fn each_of_many_is_polled_when_it_is_added_and_when_it_is_ready() {
        let (done, told) = oneshot::channel();
        let counting: Addr<Counting> = Counting { done: Some(done), ..Counting::default() }.start();
        let mut senders = Vec::new();
        for _ in 0..ALL {
            let (sender, receiver) = oneshot::channel();
            counting.send(WaitFor(receiver)).await.unwrap();
            senders.push(sender);
        }
        // The last first, each by itself.
        for sender in senders.into_iter().rev() {
            sender.send(()).unwrap();
            tokio::task::yield_now().await;
        }
        let (came, polls) = told.await.unwrap();
        assert_eq!(came, ALL);
        assert!(polls <= 2 * ALL, "{polls} polls of {ALL}");
    }
}
