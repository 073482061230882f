//! Questions from node to node, and text as it is said: messages that are not stored. Any of them may be lost, late or
//! there twice. A question or an answer that is too large for a message is a blob: who asked removes both once he has the
//! answer, or none, and what is left goes by itself after a while.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Request, Subject, Subscriber};
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::Blob;
use futures::{Stream, StreamExt as _};
use tokio::time::timeout;

use super::{ANSWER_MAX, Engine, NoBlob, RECORD_BYTES_MAX};
use crate::mirror::remote::Unanswered;
use crate::nats::one_line;

/// How long a blob is there for whoever is to read it.
const KEPT: Duration = Duration::from_secs(600);

/// How long one may take to be read: who asked does not wait for longer.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Questions that are read at once.
const READS_MAX: usize = 4;

/// A question of another node.
#[derive(Debug)]
pub struct Question {
    /// What is asked, or why that can't be read.
    pub asked: Result<Bytes, String>,
    /// Where the answer goes.
    pub reply: ReplyTo,
}

/// Where an answer goes.
#[derive(Clone, Debug)]
pub struct ReplyTo(Subject);

impl Engine {
    /// Asks a node, and waits for its answer for so long.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(&self, node: &NodeName, asked: Bytes, within: Duration) -> Result<Bytes, Unanswered> {
        self.connected().map_err(Unanswered::NotAsked)?;
        let asked = self.in_message(asked).await.map_err(Unanswered::NotAsked)?;
        let request = Request::new().payload(asked.clone()).timeout(Some(within));
        let answer = self.nats.client.send_request(self.subjects.questions(node), request).await;
        let read = match answer {
            Ok(message) => {
                let read = self.of_message(message.payload.clone()).await;
                self.let_go(&message.payload).await;
                read.map_err(Unanswered::Unknown)
            }
            Err(error) => {
                let why = one_line(&error);
                Err(match error.kind() {
                    RequestErrorKind::NoResponders
                    | RequestErrorKind::InvalidSubject
                    | RequestErrorKind::MaxPayloadExceeded => Unanswered::NotAsked(why),
                    RequestErrorKind::TimedOut | RequestErrorKind::Other => Unanswered::Unknown(why),
                })
            }
        };
        // The last, since an answer of the same bytes is the same blob.
        self.let_go(&asked).await;
        read
    }

    /// Begins to hear what this node is asked, in the order in which it is, without an end.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn questions(&self, node: &NodeName) -> Result<impl Stream<Item = Question> + use<>, String> {
        let questions = self.subscribe(self.subjects.questions(node)).await;
        let questions = questions.map_err(|why| format!("other nodes can't ask anything: {why}"))?;
        let engine = self.clone();
        // Who wants no answer asks nothing.
        let questions = questions.filter_map(async |message| Some((message.payload, message.reply?)));
        let read = questions.map(move |(message, reply)| {
            let engine = engine.clone();
            async move { Question { asked: engine.of_message(message).await, reply: ReplyTo(reply) } }
        });
        Ok(read.buffered(READS_MAX))
    }

    /// Answers a question. Whoever asked may wait no longer.
    ///
    /// # Errors
    /// Where the answer can't be sent now.
    pub async fn answer(&self, to: ReplyTo, answer: Bytes) -> Result<(), String> {
        let answer = self.in_message(answer).await?;
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
        let heard = self.subscribe(self.subjects.live(session)).await?;
        Ok(heard.map(|message| message.payload))
    }

    /// Says to all nodes what was spent here. Who does not hear it counts without it.
    ///
    /// # Errors
    /// Where it can't be sent now.
    pub async fn say_spending(&self, said: Bytes) -> Result<(), String> {
        self.send(self.subjects.spending().into(), said).await
    }

    /// Begins to hear what is spent, here and elsewhere.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn hear_spending(&self) -> Result<impl Stream<Item = Bytes> + use<>, String> {
        let heard = self.subscribe(self.subjects.spending()).await?;
        Ok(heard.map(|message| message.payload))
    }

    /// These bytes, or the blob that they are by now, where no message takes them.
    async fn in_message(&self, bytes: Bytes) -> Result<Bytes, String> {
        if bytes.len() <= RECORD_BYTES_MAX {
            return Ok(bytes);
        }
        Ok(self.put_blob(&bytes, Some(KEPT)).await?.to_message().into())
    }

    /// The bytes that a message has, or those of the blob that it stands for.
    async fn of_message(&self, message: Bytes) -> Result<Bytes, String> {
        let Some(blob) = Blob::of_message(&message) else { return Ok(message) };
        match timeout(READ_WITHIN, self.read_blob(&blob)).await {
            Ok(read) => read.map_err(|(NoBlob::Damaged(why) | NoBlob::Away(why))| why),
            Err(_) => Err("what is too large for a message did not come in time".to_owned()),
        }
    }

    /// Removes the blob that a message stands for, where it stands for one.
    async fn let_go(&self, message: &Bytes) {
        if let Some(blob) = Blob::of_message(message)
            && let Err(why) = self.remove_blob(&blob).await
        {
            tracing::debug!(blob = blob.name(), why, "cluster: it goes by itself later");
        }
    }

    /// Begins to hear what is sent to a subject, as soon as the server knows of it.
    pub(super) async fn subscribe(&self, subject: String) -> Result<Subscriber, String> {
        let subscribed = self.nats.client.subscribe(subject);
        self.in_time(async { subscribed.await.map_err(|error| one_line(&error)) }).await
    }

    async fn send(&self, subject: Subject, message: Bytes) -> Result<(), String> {
        self.connected()?;
        match timeout(ANSWER_MAX, self.nats.client.publish(subject, message)).await {
            Ok(sent) => sent.map_err(|error| one_line(&error)),
            Err(_) => Err("too much waits to be sent".to_owned()),
        }
    }
}
