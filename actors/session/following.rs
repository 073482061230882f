//! Serving those who follow the session: what is live is sent to them, what they missed is read from the log.

use actix::prelude::*;
use clawmux_core::conversation::follow::Wanted;
use clawmux_core::ids::Seq;

use super::{ConnectionSink, RETRY, Session, Watcher, Writing};
use crate::runtime::ask::gone;
use crate::runtime::deliver::WINDOW_BYTES;
use crate::store::{AskedBy, ReadEvents, Store};

/// The most of the log that one read of a cursor brings into memory, in bytes: a window full.
const CATCH_UP_BYTES: usize = WINDOW_BYTES;

impl Session {
    /// Those who began to watch are told what comes after this number; those who ended it nothing.
    pub(super) fn let_watch(&mut self, after: Seq, ctx: &mut Context<Self>) {
        let owner = self.conversation.owner();
        let Some(all) = self.deps.watchers.since(&mut self.watchers_seen, owner) else { return };
        let subscribers = &mut self.drop_guard.subscribers;
        subscribers.keep_watching(|connection, ticket| {
            all.iter().any(|watcher| (watcher.client.connection, watcher.ticket) == (connection, ticket))
        });
        for Watcher { client, ticket, is_for_calls, .. } in all {
            let wanted = if is_for_calls { Wanted::Calls } else { Wanted::Watch };
            if !subscribers.has(client.connection, ticket) {
                let who = (client.connection, ticket);
                let sink = || ConnectionSink::new(client, ctx.address().recipient());
                subscribers.follow(who, (wanted, after), self.published, sink);
            }
        }
    }

    /// Serves followers that fell behind from the log.
    pub(super) fn catch_up(&mut self, ctx: &mut Context<Self>) {
        // What recovery decided is yet to be published, and in a new session there is nothing to watch.
        if self.writing == Writing::Nothing && !self.conversation.is_new() {
            self.let_watch(self.published, ctx);
        }
        if self.drop_guard.subscribers.want(self.written, self.published) {
            self.want_page(ctx);
        }
        for missing in self.drop_guard.subscribers.missing(self.written, self.published) {
            let as_of = self.written;
            let question = ReadEvents {
                session: self.conversation.key().clone(),
                after: missing.after,
                run: missing.run.clone(),
                max_bytes: CATCH_UP_BYTES,
            };
            let owner = self.conversation.owner().clone();
            let read = self.deps.store.send(AskedBy { owner, question });
            let caught = read.into_actor(self).map(move |result, session, ctx| {
                let events = result.unwrap_or_else(|_| Err(gone::<Store>()));
                let failed = events.is_err();
                let events = events.unwrap_or_default();
                let was_last = events.last().is_none_or(|logged| logged.seq >= as_of);
                let is_all = !failed && was_last && as_of == session.published;
                session.drop_guard.subscribers.caught(session.conversation.key(), &missing, events, is_all);
                if failed {
                    session.retry_later(ctx);
                } else {
                    session.catch_up(ctx);
                }
            });
            ctx.spawn(caught);
        }
    }

    fn retry_later(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.retrying, true) {
            ctx.run_later(RETRY, |session, ctx| {
                session.retrying = false;
                session.catch_up(ctx);
            });
        }
    }
}
