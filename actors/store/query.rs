//! What can be asked of the store: a message that says how the reader answers it.

use actix::{Handler, Message, ResponseFuture};
use clawmux_core::error::Error;
use clawmux_core::ids::Owner;
use tokio::sync::oneshot;

use super::reader::Reader;
use super::reader::questions::{Asker, Question, Turn};
use super::{Store, answered, closed, full};

/// A question, which stands beside the table it is about.
pub(super) trait Query: Message + Send + 'static {
    fn answer(self, reader: &mut Reader) -> Self::Result;
}

/// A question on behalf of somebody: owners have the reader in turn.
#[derive(Clone, Debug)]
pub struct AskedBy<M> {
    /// Who asks.
    pub owner: Owner,
    /// The question.
    pub question: M,
}

impl<M: Message> Message for AskedBy<M> {
    type Result = M::Result;
}

impl<Q, T> Handler<Q> for Store
where
    Q: Query + Message<Result = Result<T, Error>>,
    T: Send + 'static,
{
    type Result = ResponseFuture<Result<T, Error>>;

    fn handle(&mut self, query: Q, _: &mut Self::Context) -> Self::Result {
        self.ask(None, |reader| query.answer(reader))
    }
}

impl<Q, T> Handler<AskedBy<Q>> for Store
where
    Q: Query + Message<Result = Result<T, Error>>,
    T: Send + 'static,
{
    type Result = ResponseFuture<Result<T, Error>>;

    fn handle(&mut self, asked: AskedBy<Q>, _: &mut Self::Context) -> Self::Result {
        self.ask(Some(asked.owner.as_str().into()), |reader| asked.question.answer(reader))
    }
}

impl Store {
    /// Has the reader answer when it is the asker's turn.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        asker: Asker,
        question: impl FnOnce(&mut Reader) -> Result<T, Error> + Send + 'static,
    ) -> ResponseFuture<Result<T, Error>> {
        let Some(reader) = &self.reader else { return Box::pin(std::future::ready(Err(closed()))) };
        let (done, answer) = oneshot::channel::<Result<T, Error>>();
        let question: Question = Box::new(move |turn| {
            let answer = match turn {
                // Nobody waits any more for what stood in the queue too long.
                Turn::Read(_) if done.is_closed() => return,
                Turn::Read(reader) => question(reader),
                Turn::Full => Err(full("questions")),
                Turn::Closed => Err(closed()),
            };
            let _ = done.send(answer);
        });
        reader.ask(asker, question);
        Box::pin(async move { answered(answer).await? })
    }
}
