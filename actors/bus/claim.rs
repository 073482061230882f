//! Whose the messages are: two daemons on one consumer would each get a part of a conversation.
//!
//! A daemon that takes messages answers on a subject of its own who it is. One that is about to asks there first; where
//! two ask at once, the one that began earlier wins. It asks again and again, since a network can part and be whole
//! again. No server has to know of it.

use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::nats::{Unusable, one_line};

/// Where daemons say who they are.
const SUBJECT: &str = "exoclaw-bus.who";

/// How long answers are waited for.
const ANSWERS: Duration = Duration::from_millis(400);

/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

/// A daemon on the bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Daemon {
    /// When it came to the bus, in milliseconds since 1970.
    pub(super) since: u64,
    /// Which process it is: no two have the same.
    pub(super) instance: String,
    /// Its machine.
    pub(super) host: String,
    /// Its home.
    pub(super) home: String,
    /// Its process.
    pub(super) pid: u32,
    /// Whether it takes messages.
    pub(super) is_taking: bool,
}

impl Daemon {
    /// Whether it goes before another one.
    fn is_before(&self, other: &Self) -> bool {
        (!self.is_taking, self.since, &self.instance) < (!other.is_taking, other.since, &other.instance)
    }
}

/// Hears the questions of others.
///
/// # Errors
/// Why it can't.
pub(super) async fn listen(client: &Client) -> Result<Subscriber, Unusable> {
    let heard = client.subscribe(SUBJECT).await;
    heard.map_err(|error| Unusable::away(format!("{SUBJECT}: {}", one_line(&error))))
}

/// Answers the question of another one, where that has to stand back.
pub(super) async fn answer(client: &Client, own: &Daemon, question: Message) {
    let asks = serde_json::from_slice::<Daemon>(&question.payload).ok();
    if let (Some(asks), Some(reply)) = (asks, question.reply)
        && asks.instance != own.instance
        && own.is_before(&asks)
    {
        let own = serde_json::to_vec(own).unwrap_or_default();
        let _ = client.publish(reply, own.into()).await;
    }
}

/// Asks who goes before us; none = nobody.
///
/// # Errors
/// Why that can't be asked.
pub(super) async fn ask(client: &Client, own: &Daemon) -> Result<Option<Daemon>, Unusable> {
    let away = |error: &dyn std::error::Error| Unusable::away(format!("{SUBJECT}: {}", one_line(error)));
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| away(&error))?;
    let question = serde_json::to_vec(own).unwrap_or_default();
    client.publish_with_reply(SUBJECT, inbox, question.into()).await.map_err(|error| away(&error))?;
    let until = Instant::now() + ANSWERS;
    while let Ok(Some(answer)) = timeout_at(until, answers.next()).await {
        // Nobody has that much to say.
        if answer.payload.len() <= ANSWER_BYTES_MAX
            && let Ok(other) = serde_json::from_slice::<Daemon>(&answer.payload)
            && other.instance != own.instance
            && other.is_before(own)
        {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_messages_goes_first_and_then_who_came_first() {
        let daemon = |since, instance: &str, is_taking| Daemon {
            since,
            instance: instance.to_owned(),
            host: String::new(),
            home: String::new(),
            pid: 1,
            is_taking,
        };
        let (old, new, taking) = (daemon(1, "b", false), daemon(2, "a", false), daemon(3, "c", true));
        assert!(old.is_before(&new) && !new.is_before(&old));
        assert!(taking.is_before(&old) && !old.is_before(&taking));
        assert!(daemon(1, "a", false).is_before(&old));
    }
}
