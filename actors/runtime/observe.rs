//! What an actor says of itself: admin RPC, metrics, console and tests read the same value.
//!
//! An actor is asked through its mailbox, so the answer also tells how far that is behind: the
//! question waited as long as anything else that came with it. actix does not say how many messages
//! wait; that time is the honest measure it leaves. One that is stuck does not hold up the answer of
//! the others: it is told as silent.

use std::time::{Duration, Instant};

use actix::prelude::*;
use clawmux_core::daemon::operator::Snapshot;
use serde::Serialize;
use serde_json::{Value, json};

/// How long an actor may take to say how it is, where it asks nobody for that.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// The same for one that asks those it supervises: what they may take, and some time of its own.
pub const TIMEOUT_WITH_CHILDREN: Duration = Duration::from_secs(2);

/// Asks an actor how it is. Every actor answers.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Observed")]
pub struct Observe;

/// How an actor is, with those it owns.
#[derive(Clone, Debug, Serialize, actix::dev::MessageResponse)]
pub struct Observed {
    /// The actor's kind, and its name where there are several.
    pub actor: String,
    /// Its own figures, as a JSON object with units in the names.
    pub state: Value,
    /// How long the question waited in its mailbox, in microseconds; none where it was not asked
    /// that way.
    pub mailbox_wait_us: Option<u64>,
    /// Why it says nothing; none where it does.
    pub silent: Option<String>,
    /// Those it supervises.
    pub children: Vec<Observed>,
    /// When it looked at itself.
    #[serde(skip)]
    looked: Instant,
}

impl Observed {
    /// An actor without children, as it is now: to be called when it handles the question.
    pub fn leaf(actor: impl Into<String>, state: Value) -> Self {
        Self {
            actor: actor.into(),
            state,
            mailbox_wait_us: None,
            silent: None,
            children: Vec::new(),
            looked: Instant::now(),
        }
    }

    /// With those it supervises.
    #[must_use]
    pub fn with_children(mut self, children: Vec<Self>) -> Self {
        self.children = children;
        self
    }

    /// An actor that says nothing.
    pub fn silent(actor: impl Into<String>, why: impl Into<String>) -> Self {
        Self { silent: Some(why.into()), ..Self::leaf(actor, json!({})) }
    }
}

impl From<Observed> for Snapshot {
    fn from(observed: Observed) -> Self {
        let Observed { actor, state, mailbox_wait_us, silent, children, looked: _ } = observed;
        let children = children.into_iter().map(Self::from).collect();
        Self { actor, state, mailbox_wait_us, silent, children }
    }
}

/// Asks `actor` how it is, and answers within `patience` whatever it does; `name` is what it is called
/// where it says nothing.
pub(crate) async fn observe(
    name: impl Into<String>,
    actor: impl Into<Recipient<Observe>>,
    patience: Duration,
) -> Observed {
    let name = name.into();
    let known = observe_passing(name.clone(), actor, patience).await;
    known.unwrap_or_else(|| Observed::silent(name, "it is gone"))
}

/// The same of one that may end by itself at any time, as a session does that goes to sleep: none where
/// it has ended. Whoever supervises it knows whether it was to.
pub(crate) async fn observe_passing(
    name: impl Into<String>,
    actor: impl Into<Recipient<Observe>>,
    patience: Duration,
) -> Option<Observed> {
    let asked = Instant::now();
    match tokio::time::timeout(patience, actor.into().send(Observe)).await {
        Ok(Ok(mut observed)) => {
            let waited = observed.looked.saturating_duration_since(asked).as_micros();
            observed.mailbox_wait_us = Some(u64::try_from(waited).unwrap_or(u64::MAX));
            Some(observed)
        }
        Ok(Err(_)) => None,
        Err(_) => Some(Observed::silent(name, format!("no answer in {} ms", patience.as_millis()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so long over a message.
    #[derive(Message)]
    #[rtype(result = "()")]
    struct Dawdle(Duration);

    struct Slow;

    impl Actor for Slow {
        type Context = Context<Self>;
    }

    impl Handler<Dawdle> for Slow {
        type Result = ();

        fn handle(&mut self, Dawdle(time): Dawdle, _: &mut Self::Context) {
            std::thread::sleep(time);
        }
    }

    impl Handler<Observe> for Slow {
        type Result = Observed;

        fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
            Observed::leaf("slow", json!({}))
        }
    }

    #[actix::test]
    async fn what_waits_before_the_question_is_told_and_a_stuck_one_does_not_hold_the_answer_up() {
        const BUSY: Duration = Duration::from_millis(30);
        let elsewhere = Arbiter::new();
        let start = || Slow::start_in_arbiter(&elsewhere.handle(), |_| Slow);
        let slow = start();
        slow.try_send(Dawdle(BUSY)).unwrap();
        let observed = observe("it", slow.clone(), Duration::from_secs(60)).await;
        let waited = observed.mailbox_wait_us.unwrap();
        assert!(waited >= 1000 && observed.silent.is_none(), "{waited} µs behind what takes {BUSY:?}");

        slow.try_send(Dawdle(Duration::from_millis(500))).unwrap();
        let observed = observe("it", slow, Duration::from_millis(5)).await;
        assert_eq!((observed.actor.as_str(), observed.silent.as_deref()), ("it", Some("no answer in 5 ms")));

        let gone = start();
        elsewhere.stop();
        elsewhere.join().unwrap();
        assert!(observe_passing("it", gone.clone(), Duration::from_secs(60)).await.is_none(), "it has ended");
        assert_eq!(observe("it", gone, Duration::from_secs(60)).await.silent.as_deref(), Some("it is gone"));
    }
}
