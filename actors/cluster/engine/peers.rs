//! Questions from node to node, and text as it is said: messages that are not stored. Any of them may be lost, late or
//! there twice.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Request, Subject, Subscriber};
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::ids::SessionKey;
use futures::{Stream, StreamExt as _};
use tokio::time::timeout;

use super::{ANSWER_MAX, Engine};
use crate::mirror::remote::Unanswered;
use crate::nats::one_line;

/// A question of another node.
#[derive(Debug)]
pub struct Question {
    /// What is asked.
    pub asked: Bytes,
    /// Where the answer goes.
    pub reply: ReplyTo,
}

/// Where an answer goes.
#[derive(Clone, Debug)]
pub struct ReplyTo(Subject);

/// Questions to this node, as they come, without an end.
#[derive(Debug)]
pub struct Questions(Subscriber);

impl Engine {
    /// Asks a node, and waits for its answer for so long.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(&self, node: &NodeName, asked: Bytes, within: Duration) -> Result<Bytes, Unanswered> {
        self.connected().map_err(Unanswered::NotAsked)?;
        let request = Request::new().payload(asked).timeout(Some(within));
        match self.nats.client.send_request(self.subjects.questions(node), request).await {
            Ok(message) => Ok(message.payload),
            Err(error) => {
                let why = one_line(&error);
                Err(match error.kind() {
                    RequestErrorKind::NoResponders
                    | RequestErrorKind::InvalidSubject
                    | RequestErrorKind::MaxPayloadExceeded => Unanswered::NotAsked(why),
                    RequestErrorKind::TimedOut | RequestErrorKind::Other => Unanswered::Unknown(why),
                })
            }
        }
    }

    /// Begins to hear what this node is asked.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn questions(&self, node: &NodeName) -> Result<Questions, String> {
        let subscribed = self.nats.client.subscribe(self.subjects.questions(node));
        let questions = self.in_time(async { subscribed.await.map_err(|error| one_line(&error)) }).await;
        questions.map(Questions).map_err(|why| format!("other nodes can't ask anything: {why}"))
    }

    /// Answers a question. Whoever asked may wait no longer.
    ///
    /// # Errors
    /// Where the answer can't be sent now.
    pub async fn answer(&self, to: ReplyTo, answer: Bytes) -> Result<(), String> {
        self.send(to.0, answer).await
    }

    /// Says something of a session to all nodes that hear it.
    ///
    /// # Errors
    /// Where it can't be sent now.
    pub async fn say(&self, session: &SessionKey, said: Bytes) -> Result<(), String> {
        self.send(self.subjects.live(session).into(), said).await
    }

    /// Begins to hear what is said of a session, until this is dropped.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn hear(&self, session: &SessionKey) -> Result<impl Stream<Item = Bytes> + use<>, String> {
        let subscribed = self.nats.client.subscribe(self.subjects.live(session));
        let heard = self.in_time(async { subscribed.await.map_err(|error| one_line(&error)) }).await?;
        Ok(heard.map(|message| message.payload))
    }

    async fn send(&self, subject: Subject, message: Bytes) -> Result<(), String> {
        self.connected()?;
        match timeout(ANSWER_MAX, self.nats.client.publish(subject, message)).await {
            Ok(sent) => sent.map_err(|error| one_line(&error)),
            Err(_) => Err("too much waits to be sent".to_owned()),
        }
    }
}

impl Stream for Questions {
    type Item = Question;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(message) = ready!(Pin::new(&mut self.0).poll_next(context)) else {
                return Poll::Ready(None);
            };
            // Who wants no answer asks nothing.
            if let Some(reply) = message.reply {
                return Poll::Ready(Some(Question { asked: message.payload, reply: ReplyTo(reply) }));
            }
        }
    }
}
