//! Sessions that nobody used for long, which are deleted where the configuration says so: after some
//! days, or while the log takes too much, those first that were not used for longest.
//!
//! Never one in which something runs or waits, or that is awake for whatever reason: who follows one
//! keeps it awake. While one is being deleted, what comes for it waits and then begins it anew.

use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::daemon::announcement::{ChangeReason, SessionChange};
use clawmux_core::ids::Seq;
use clawmux_core::time::Timestamp;

use super::{Entry, SessionSupervisor, State};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::store::{Place, ReadUnused, Unused};

/// How often it is looked for them.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// So many are looked at at once.
const LOOK_AT: usize = 64;

/// How far it was looked.
#[derive(Default)]
pub(super) struct Retention {
    is_looking: bool,
    /// All up to here were needed when it was looked.
    after: Option<Place>,
}

impl SessionSupervisor {
    /// Deletes some sessions that were not used for long, where there are any.
    pub(super) fn delete_unused(&mut self, ctx: &mut Context<Self>) {
        let agent_configs = self.agent_configs();
        let log_writer = &self.setup.deps.log_writer;
        let now = clock::now();
        let old = agent_configs.retention.map(|kept| {
            let kept_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
            Timestamp::from_millis(now.as_millis().saturating_sub(kept_ms))
        });
        // While rows are still to go it is not known how much that will be.
        let over = agent_configs.store_bytes_max.and_then(|most| log_writer.figures().bytes_over(most));
        let Some(since) = over.map(|_| now).or(old) else { return };
        if self.draining || self.fault().is_some() || std::mem::replace(&mut self.retention.is_looking, true)
        {
            return;
        }
        let read = ReadUnused { limit: LOOK_AT, since, after: self.retention.after };
        let store = self.setup.deps.store.clone();
        let unused = async move { ask(&store, read).await.flatten() };
        ctx.spawn(unused.into_actor(self).map(move |unused, supervisor, ctx| {
            supervisor.retention.is_looking = false;
            let unused = unused.unwrap_or_default();
            let is_all = unused.len() < LOOK_AT;
            let mut left = over.unwrap_or(0);
            let mut last = None;
            for one in unused {
                let is_old = old.is_some_and(|old| one.place.updated_ms <= old.as_millis());
                if (left == 0 && !is_old) || supervisor.draining {
                    supervisor.retention.after = None;
                    return;
                }
                last = Some(one.place);
                let is_needed = supervisor.sessions.contains_key(&one.session)
                    || supervisor.setup.parent_sessions.has(&one.session)
                    || supervisor.is_lost(&one.session);
                if !is_needed {
                    left = left.saturating_sub(one.bytes);
                    supervisor.delete_one(one, ctx);
                }
            }
            supervisor.retention.after = last.filter(|_| !is_all);
        }));
    }

    fn delete_one(&mut self, unused: Unused, ctx: &mut Context<Self>) {
        let Unused { session: key, owner, bytes, place } = unused;
        self.sessions.insert(key.clone(), Entry::default());
        let deleted =
            self.setup.deps.log_writer.delete_unused(key.clone(), Timestamp::from_millis(place.updated_ms));
        ctx.spawn(deleted.into_actor(self).map(move |deleted, supervisor, _| {
            match deleted {
                Ok(()) => {
                    let seq = Seq(u64::MAX);
                    let (at, event) = (clock::now(), Event::Deleted);
                    let last = Logged { first_seq: seq, seq, run: None, at, event };
                    if let Some(reason) = ChangeReason::of(&last) {
                        let change = SessionChange { session: key.clone(), owner, reason };
                        supervisor.setup.deps.changes.note(change);
                    }
                    tracing::info!(session = %key, bytes, last_used = %Timestamp::from_millis(place.updated_ms).to_rfc3339(), "deleted: it was not used for long");
                }
                Err(error) => tracing::debug!(session = %key, %error, "not deleted"),
            }
            // What came meanwhile begins it anew.
            match supervisor.sessions.get(&key).map(|entry| &entry.state) {
                Some(State::Waking { waiting, subscribers }) if waiting.is_empty() && subscribers.is_empty() => {
                    supervisor.forget(&key);
                }
                Some(State::Waking { .. }) => supervisor.wake(key),
                Some(
                    State::Parked { .. }
                    | State::Awake { .. }
                    | State::Leaving { .. }
                    | State::Elsewhere { .. },
                )
                | None => {}
            }
        }));
    }
}
