//! A node is asked to give its slots away, and says how many it has. Nothing of it is stored. One that does not answer
//! in time may do it all the same.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_nats::client::RequestErrorKind;
use async_nats::{Subject, Subscriber};
use clawmux_core::cluster::node::NodeName;
use futures::Stream;

use super::Engine;
use crate::nats::one_line;

/// The answer of a node whose slots nobody would take.
const ALONE: &str = "alone";

/// The times that this node is asked, as they come, without an end.
#[derive(Debug)]
pub struct HandOversAsked(Subscriber);

/// One of these times.
#[derive(Debug)]
pub struct HandOverAsked {
    reply: Subject,
}

impl Engine {
    /// Begins to hear that this node is asked.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn hand_overs_asked(&self, node: &NodeName) -> Result<HandOversAsked, String> {
        let asked = self.subscribe(self.subjects.handover(node)).await;
        asked.map(HandOversAsked)
    }

    /// Answers with how many slots are given away; none = nobody else is there to take them. Whoever asked may wait no
    /// longer.
    ///
    /// # Errors
    /// Where the answer can't be sent now.
    pub async fn hands_over(&self, asked: HandOverAsked, slots: Option<usize>) -> Result<(), String> {
        self.connected()?;
        let said = slots.map_or(ALONE.to_owned(), |slots| slots.to_string());
        let sent = self.nats.client.publish(asked.reply, said.into()).await;
        sent.map_err(|error| one_line(&error))
    }

    /// Asks a node, and says how many slots it gives away; none where nobody else is there to take them.
    ///
    /// # Errors
    /// Where it is not there, or does not answer.
    pub async fn ask_to_hand_over(&self, node: &NodeName) -> Result<Option<usize>, String> {
        let asked = async {
            let answer = self.nats.client.request(self.subjects.handover(node), "".into()).await;
            let answer = answer.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => "it is not there".to_owned(),
                _ => one_line(&error),
            })?;
            let said = std::str::from_utf8(&answer.payload).unwrap_or_default();
            match said.parse() {
                Ok(slots) => Ok(Some(slots)),
                Err(_) if said == ALONE => Ok(None),
                Err(_) => Err("its answer can't be read".to_owned()),
            }
        };
        self.in_time(asked).await
    }
}

impl Stream for HandOversAsked {
    type Item = HandOverAsked;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(message) = ready!(Pin::new(&mut self.0).poll_next(context)) else {
                return Poll::Ready(None);
            };
            // Who wants no answer asks nothing.
            if let Some(reply) = message.reply {
                return Poll::Ready(Some(HandOverAsked { reply }));
            }
        }
    }
}
