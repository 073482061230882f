//! `RateSharing`: what principals spend at one daemon counts at all of them.
//!
//! Each daemon says every quarter of a second what was spent there since, by messages that are not stored, and takes
//! what it hears from what the principal has here. So who asks several daemons at once gets no more than the rate of
//! one, but for what he spends within a moment, or while a message is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::engine::Engine;
use crate::connection::rates::Spending;
use crate::runtime::awaited::{Awaited, Awaits};
use crate::runtime::observe::{Observe, Observed};

/// How often is said what was spent.
const EVERY: Duration = Duration::from_millis(250);

/// The pause before it is tried again to hear others.
const PAUSE: Duration = Duration::from_secs(1);

/// Principals of one message, and the bytes of their names.
const PRINCIPALS_MAX: usize = 2000;
const NAME_BYTES_MAX: usize = 256;

/// Says what was spent here, and hears what was spent elsewhere.
pub(super) struct RateSharing {
    me: NodeName,
    engine: Engine,
    spending: Arc<dyn Spending>,
    /// Principals of whom something was heard, each time.
    heard: u64,
    awaited: Awaited<Self>,
}

/// What was spent at a daemon.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    node: String,
    /// Cost units, by the names of principals.
    spent: HashMap<String, u32>,
}

impl Said {
    /// Those of another daemon, as far as they can be read.
    fn heard(message: &Bytes, me: &NodeName) -> Option<HashMap<String, u32>> {
        let Self { node, mut spent } = serde_json::from_slice(message).ok()?;
        if node == me.as_str() || spent.len() > PRINCIPALS_MAX {
            return None;
        }
        spent.retain(|name, _| name.len() <= NAME_BYTES_MAX);
        Some(spent)
    }
}

impl RateSharing {
    pub(super) fn start(me: NodeName, engine: Engine, spending: Arc<dyn Spending>) -> Addr<Self> {
        Self { me, engine, spending, heard: 0, awaited: Awaited::default() }.start()
    }

    fn listen(&mut self) {
        let engine = self.engine.clone();
        self.awaited.add(async move { engine.hear_spending().await }, |_, heard, ctx| match heard {
            Ok(heard) => drop(ctx.add_stream(heard)),
            Err(why) => {
                tracing::debug!(why, "cluster: what is spent elsewhere is not heard; it is tried again");
                ctx.run_later(PAUSE, |sharing, _| sharing.listen());
            }
        });
    }

    fn say(&mut self) {
        let mut spent = self.spending.take();
        // What has no room counts here alone.
        spent.retain(|(name, _)| name.len() <= NAME_BYTES_MAX);
        spent.truncate(PRINCIPALS_MAX);
        if spent.is_empty() {
            return;
        }
        let spent = spent.into_iter().map(|(name, units)| (name.to_string(), units)).collect();
        let said = Said { node: self.me.as_str().to_owned(), spent };
        let Ok(said) = serde_json::to_vec(&said) else { return };
        let engine = self.engine.clone();
        self.awaited.add(async move { engine.say_spending(said.into()).await }, |_, sent, _| {
            if let Err(why) = sent {
                tracing::debug!(why, "cluster: what was spent here was not said");
            }
        });
    }
}

impl Awaits for RateSharing {
    fn awaited(&mut self) -> &mut Awaited<Self> {
        &mut self.awaited
    }
}

impl Actor for RateSharing {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        Self::begin_to_wait(ctx);
        self.listen();
        ctx.run_interval(EVERY, |sharing, _| sharing.say());
    }
}

impl StreamHandler<Bytes> for RateSharing {
    fn handle(&mut self, message: Bytes, _: &mut Self::Context) {
        for (name, units) in Said::heard(&message, &self.me).into_iter().flatten() {
            self.spending.heard(&name, units);
            self.heard += 1;
        }
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        ctx.run_later(PAUSE, |sharing, _| sharing.listen());
    }
}

impl Handler<Observe> for RateSharing {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf("rate sharing", json!({ "heard_total": self.heard }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_heard_is_read_or_left_out() {
        let me = NodeName::new("a");
        let heard = |text: &str| Said::heard(&Bytes::from(text.to_owned()), &me);
        let of_b = heard(r#"{"node":"b","spent":{"ci":5}}"#).unwrap();
        assert_eq!(of_b, HashMap::from([("ci".to_owned(), 5)]));
        for text in ["", "{", "[]", r#"{"node":"a","spent":{"ci":5}}"#, r#"{"node":"b","spent":{"ci":-5}}"#] {
            assert_eq!(heard(text), None, "{text}");
        }
        let long = format!(r#"{{"node":"b","spent":{{"{}":5}}}}"#, "x".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(heard(&long), Some(HashMap::new()));
        let many: HashMap<String, u32> = (0..=PRINCIPALS_MAX).map(|nth| (nth.to_string(), 1)).collect();
        let many = serde_json::to_string(&Said { node: "b".to_owned(), spent: many }).unwrap();
        assert_eq!(heard(&many), None);
    }
}
