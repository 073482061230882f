//! What an actor of many requests waits for.
//!
//! An actor polls all that was spawned on its context whenever one of it is ready: a thousand requests that wait
//! are polled a million times. Of what is waited for here only what is ready is polled.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use actix::{Actor, ActorFuture, AsyncContext};
use futures::future::{FutureExt as _, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt as _};

/// What follows from something that was waited for.
type Then<A> = Box<dyn FnOnce(&mut A, &mut <A as Actor>::Context)>;

/// What an actor waits for; it ends with the actor.
pub(crate) struct Awaited<A: Actor> {
    waiting: FuturesUnordered<LocalBoxFuture<'static, Then<A>>>,
    /// Wakes the actor.
    waker: Option<Waker>,
}

impl<A: Actor> Default for Awaited<A> {
    fn default() -> Self {
        Self { waiting: FuturesUnordered::new(), waker: None }
    }
}

impl<A: Actor> Awaited<A> {
    /// Waits for `what`, and goes on with `then`. For the actor itself.
    pub(crate) fn add<T: 'static>(
        &self,
        what: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut A, T, &mut A::Context) + 'static,
    ) {
        let then = what.map(|got| -> Then<A> { Box::new(move |actor, ctx| then(actor, got, ctx)) });
        self.waiting.push(then.boxed_local());
        // A stream or a timer of the actor may add it after this round has looked at what is waited for.
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
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
        let waker = &mut actor.awaited().waker;
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(task.waker())) {
            *waker = Some(task.waker().clone());
        }
        while let Poll::Ready(Some(then)) = actor.awaited().waiting.poll_next_unpin(task) {
            then(actor, ctx);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use actix::{Addr, Handler, Message, StreamHandler};
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

    impl Counting {
        fn count(&self, what: impl Future + 'static) {
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

    impl Handler<WaitFor> for Counting {
        type Result = ();

        fn handle(&mut self, WaitFor(mut receiver): WaitFor, _: &mut Self::Context) {
            let polls = self.polls.clone();
            self.count(std::future::poll_fn(move |task| {
                polls.set(polls.get() + 1);
                Pin::new(&mut receiver).poll(task)
            }));
        }
    }

    /// A stream that is polled after what is waited for.
    #[derive(Message)]
    #[rtype(result = "()")]
    struct AddStream;

    impl Handler<AddStream> for Counting {
        type Result = ();

        fn handle(&mut self, _: AddStream, ctx: &mut Self::Context) {
            ctx.add_stream(futures::stream::iter(0..ALL));
        }
    }

    impl StreamHandler<usize> for Counting {
        fn handle(&mut self, _: usize, _: &mut Self::Context) {
            self.count(std::future::ready(()));
        }

        fn finished(&mut self, _: &mut Self::Context) {}
    }

    #[actix::test]
    async fn what_a_stream_of_the_actor_adds_is_looked_at() {
        let (done, told) = oneshot::channel();
        let counting = Counting { done: Some(done), ..Counting::default() }.start();
        counting.send(AddStream).await.unwrap();
        assert_eq!(told.await.unwrap().0, ALL);
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
