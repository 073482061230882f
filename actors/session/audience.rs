//! Those who follow one session here: what is live is sent to them, what they missed is read from the store.
//!
//! Whoever stands for the session serves them ([`Serves`]): the session itself, or in a cluster what stands for one of
//! another daemon.

use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::conversation::event::Logged;
use clawmux_core::conversation::follow::Wanted;
use clawmux_core::conversation::order::followed;
use clawmux_core::ids::{Seq, SessionKey, Ticket};
use clawmux_core::request::reply::Reply;

use super::{ConnectionSink, RETRY, SessionDeps, Subscribers, Watcher};
use crate::runtime::ask::gone;
use crate::runtime::deliver::{Client, More, WINDOW_BYTES};
use crate::store::{AskedBy, ReadEvents, Store};

/// The most of the log that one read of a cursor brings into memory, in bytes: a window full.
const CATCH_UP_BYTES: usize = WINDOW_BYTES;

/// Those who follow one session here, and what they may be told.
#[derive(Debug)]
pub(crate) struct Audience {
    pub(crate) key: SessionKey,
    pub(crate) subscribers: Subscribers,
    /// The last number that is in the store.
    pub(crate) written: Seq,
    /// The last number that may be seen.
    pub(crate) published: Seq,
    /// Which comings and goings of those who watch were seen.
    watchers_seen: u64,
    retrying: bool,
}

/// Who serves an audience.
pub(crate) trait Serves: Actor<Context = Context<Self>> + Handler<More> {
    /// The audience, and what sessions work with.
    fn audience(&mut self) -> (&mut Audience, &Arc<SessionDeps>);

    /// Serves those that fell behind: with [`serve`], once everything before that is done.
    fn catch_up(&mut self, ctx: &mut Context<Self>);
}

impl Audience {
    /// Those who followed the session before, which goes up to `head`: none of them is told anything before it is
    /// known how far he has come.
    pub(crate) fn new(key: SessionKey, mut subscribers: Subscribers, head: Seq) -> Self {
        subscribers.fall_behind();
        Self { key, subscribers, written: head, published: head, watchers_seen: 0, retrying: false }
    }

    /// From here on what was asked for under this ticket is sent to the client.
    pub(crate) fn follow(
        &mut self,
        (client, ticket): (Client, Ticket),
        wanted: (Wanted, Seq),
        from: impl FnOnce() -> Recipient<More>,
    ) {
        let who = (client.connection, ticket);
        self.subscribers.follow(who, wanted, self.published, || ConnectionSink::new(client, from()));
    }

    /// The same of what follows this answer, if something does.
    pub(crate) fn follow_from(
        &mut self,
        who: (Client, Ticket),
        reply: &Reply,
        from: impl FnOnce() -> Recipient<More>,
    ) {
        if let Reply::Session(reply) = reply
            && let Some(wanted) = followed(reply)
        {
            self.follow(who, wanted, from);
        }
    }

    /// Those who began to watch are told what comes after this number; those who ended it nothing.
    pub(crate) fn let_watch(&mut self, deps: &SessionDeps, after: Seq, from: impl Fn() -> Recipient<More>) {
        let Some(all) = deps.watchers.since(&mut self.watchers_seen, &self.key) else { return };
        self.subscribers.keep_watching(|connection, ticket| {
            all.iter().any(|watcher| (watcher.client.connection, watcher.ticket) == (connection, ticket))
        });
        for Watcher { client, ticket, is_for_calls, .. } in all {
            let wanted = if is_for_calls { Wanted::Calls } else { Wanted::Watch };
            if !self.subscribers.has(client.connection, ticket) {
                self.follow((client, ticket), (wanted, after), &from);
            }
        }
    }

    /// Lets followers see these events.
    pub(crate) fn publish(&mut self, events: &[Logged], lag_bytes_max: usize) {
        for logged in events {
            self.subscribers.publish(&self.key, logged, lag_bytes_max);
            self.published = logged.seq;
        }
    }
}

/// Serves followers that fell behind from the store.
pub(crate) fn serve<A: Serves>(actor: &mut A, ctx: &mut Context<A>) {
    let (audience, deps) = actor.audience();
    for missing in audience.subscribers.missing(audience.written, audience.published) {
        let as_of = audience.written;
        let question = ReadEvents {
            session: audience.key.clone(),
            after: missing.after,
            run: missing.run.clone(),
            max_bytes: CATCH_UP_BYTES,
        };
        let read = deps.store.send(AskedBy { owner: audience.key.owner(), question });
        let caught = actix::fut::wrap_future::<_, A>(read).map(move |result, actor, ctx| {
            let events = result.unwrap_or_else(|_| Err(gone::<Store>()));
            let failed = events.is_err();
            let events = events.unwrap_or_default();
            let (audience, _) = actor.audience();
            let was_last = events.last().is_none_or(|logged| logged.seq >= as_of);
            let is_all = !failed && was_last && as_of == audience.published;
            audience.subscribers.caught(&audience.key, &missing, events, is_all);
            if failed {
                retry_later(actor, ctx);
            } else {
                actor.catch_up(ctx);
            }
        });
        ctx.spawn(caught);
    }
}

fn retry_later<A: Serves>(actor: &mut A, ctx: &mut Context<A>) {
    if !std::mem::replace(&mut actor.audience().0.retrying, true) {
        ctx.run_later(RETRY, |actor, ctx| {
            actor.audience().0.retrying = false;
            actor.catch_up(ctx);
        });
    }
}
