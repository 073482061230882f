//! How a parent hears that a child is gone, and how often it may start one anew.
//!
//! A panic in a handler ends its actor without a word: the address closes, nothing else. So a
//! child holds a [`Guard`], whose `Drop` tells the parent, and the parent decides with
//! [`Restarts`]. actix's own `Supervisor` does not survive a panic and is not used.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use actix::{Message, Recipient};

/// A child is gone.
#[derive(Clone, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Down {
    /// Its name, as its parent gave it.
    pub name: String,
    /// Which start of that name it was: a parent may have started another meanwhile.
    pub generation: u64,
    /// Whether a panic ended it.
    pub panicked: bool,
}

/// Held by a child; when dropped, however that comes about, tells the parent.
#[derive(Debug)]
pub struct Guard {
    name: String,
    generation: u64,
    parent: Recipient<Down>,
}

impl Guard {
    /// For the child `name`, of which this is the start number `generation`.
    pub fn new(name: impl Into<String>, generation: u64, parent: Recipient<Down>) -> Self {
        Self { name: name.into(), generation, parent }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let down = Down {
            name: std::mem::take(&mut self.name),
            generation: self.generation,
            panicked: std::thread::panicking(),
        };
        #[expect(clippy::disallowed_methods, reason = "lifecycle message to the parent, one per child")]
        self.parent.do_send(down);
    }
}

/// How often a child was started anew lately: a child that keeps failing is left alone, so that
/// it can't keep the process busy with dying.
#[derive(Debug, Default)]
pub struct Restarts {
    at: VecDeque<Instant>,
    total: u64,
}

impl Restarts {
    /// So many restarts are allowed within [`Self::WINDOW`].
    pub const LIMIT: usize = 5;

    /// The span that is looked at.
    pub const WINDOW: Duration = Duration::from_secs(60);

    /// Whether one more is allowed at `now`; counts it if so.
    pub fn allow(&mut self, now: Instant) -> bool {
        while self.at.front().is_some_and(|first| now.duration_since(*first) >= Self::WINDOW) {
            self.at.pop_front();
        }
        if self.at.len() >= Self::LIMIT {
            return false;
        }
        self.at.push_back(now);
        self.total += 1;
        true
    }

    /// How many there were in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many there were within [`Self::WINDOW`] when last asked.
    pub fn recent(&self) -> usize {
        self.at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix::{Actor, Context, Handler};
    use tokio::sync::mpsc;

    struct Parent(mpsc::UnboundedSender<Down>);

    impl Actor for Parent {
        type Context = Context<Self>;
    }

    impl Handler<Down> for Parent {
        type Result = ();

        fn handle(&mut self, down: Down, _: &mut Self::Context) {
            self.0.send(down).unwrap();
        }
    }

    struct Child {
        _guard: Guard,
    }

    impl Actor for Child {
        type Context = Context<Self>;
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Die {
        panic: bool,
    }

    impl Handler<Die> for Child {
        type Result = ();

        fn handle(&mut self, die: Die, ctx: &mut Self::Context) {
            assert!(!die.panic, "asked to");
            actix::ActorContext::stop(ctx);
        }
    }

    #[actix::test]
    async fn a_parent_hears_of_a_panic_and_of_an_ordinary_end() {
        let (sender, mut downs) = mpsc::unbounded_channel();
        let parent = Parent(sender).start();
        for (generation, panic) in [(1, true), (2, false)] {
            let child = Child { _guard: Guard::new("child", generation, parent.clone().recipient()) }.start();
            let _ = child.send(Die { panic }).await;
            let down = downs.recv().await.unwrap();
            assert_eq!(down, Down { name: "child".to_owned(), generation, panicked: panic });
        }
    }

    #[test]
    fn restarts_are_limited_within_a_window() {
        let mut restarts = Restarts::default();
        let start = Instant::now();
        for second in 0..Restarts::LIMIT as u64 {
            assert!(restarts.allow(start + Duration::from_secs(second)));
        }
        assert!(!restarts.allow(start + Duration::from_secs(59)));
        assert!(restarts.allow(start + Duration::from_secs(60)), "the first one is a minute ago");
        assert!(!restarts.allow(start + Duration::from_secs(60)));
        assert_eq!((restarts.recent(), restarts.total()), (Restarts::LIMIT, Restarts::LIMIT as u64 + 1));
    }
}
