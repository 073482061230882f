//! Having what was decided written; only then it may be seen, and those who asked are answered.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::approval::PendingCall;
use clawmux_core::conversation::event::{Cause, Event, Logged, Outcome, Published};
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::reply::{Deleted, SessionReply};
use clawmux_core::conversation::session::Batch;
use clawmux_core::daemon::announcement::{ChangeReason, SessionChange};
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{ApprovalId, RunId, Seq, SessionKey};
use clawmux_core::limits::quota::{Kept, ROW_BYTES};
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;

use super::{Answered, Ending, RETRY, Session, SessionDeps};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::runtime::say::OutboxGrew;
use crate::store::{Append, Coming, ReadDispensable, ReadPrompt, ReadRow};

/// How long text is shown at most before it is taken for writing.
const PAGE_PATIENCE: Duration = Duration::from_millis(250);

/// What of a session is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    Nothing,
    /// Text that is shown already.
    Page,
    /// What is to be seen only once it is written.
    Unit,
}

impl Session {
    /// Shows what may be seen by now, and has written what must be before.
    pub(super) fn let_see(&mut self, ctx: &mut Context<Self>) {
        if self.writing != Writing::Unit {
            self.show(ctx);
        }
        let is_due = self.conversation.has_unseen() || self.is_page_due || self.conversation.is_page_full();
        if self.writing == Writing::Nothing
            && is_due
            && let Some(batch) = self.conversation.take()
        {
            self.write(batch, ctx);
        }
        if self.writing != Writing::Unit && !self.conversation.has_unseen() {
            let answered = std::mem::take(&mut self.next);
            self.tell(answered, ctx);
        }
    }

    /// Shows text before it is in the log.
    fn show(&mut self, ctx: &mut Context<Self>) {
        if !self.conversation.has_unseen() {
            return;
        }
        self.let_watch(self.drop_guard.audience.published, ctx);
        let fresh = self.conversation.show();
        let page = self.conversation.page();
        self.drop_guard.audience.publish(&page[page.len() - fresh..], self.agent_configs.lag_bytes_max);
        if !page.is_empty() && !std::mem::replace(&mut self.has_page_timer, true) {
            ctx.run_later(PAGE_PATIENCE, |session, ctx| {
                session.has_page_timer = false;
                session.want_page(ctx);
            });
        }
    }

    /// Has the page written, as soon as nothing else is.
    pub(super) fn want_page(&mut self, ctx: &mut Context<Self>) {
        if !self.conversation.page().is_empty() {
            self.is_page_due = true;
            self.let_see(ctx);
        }
    }

    fn write(&mut self, batch: Batch, ctx: &mut Context<Self>) {
        self.is_page_due = false;
        let is_page = batch.unseen().is_empty();
        self.writing = if is_page { Writing::Page } else { Writing::Unit };
        // Those who asked while text alone was decided need not wait for it.
        let answered = if is_page { Vec::new() } else { std::mem::take(&mut self.next) };
        let Batch { events, shown, durable, reserve, to_say } = batch;
        let (session, events): (_, Arc<[Logged]>) = (self.conversation.key().clone(), events.into());
        let channels: Vec<String> = to_say.iter().map(|to_say| to_say.to.channel.clone()).collect();
        let append = Append { session, events: events.clone(), durable, reserve, to_say };
        let append = self.deps.log_writer.append(append);
        let written = append.into_actor(self).map(move |result, session, ctx| {
            session.writing = Writing::Nothing;
            match result {
                Ok(()) => {
                    let written = events.last().map(|logged| logged.seq);
                    let written = written.unwrap_or(session.drop_guard.audience.written);
                    session.drop_guard.audience.written = written;
                    session.conversation.reserved(reserve.unwrap_or_default());
                    for channel in channels {
                        // One that is not heard is found when the channel next looks.
                        let _ = session.deps.outboxes.try_send(OutboxGrew(channel));
                    }
                    for (_, waits) in session.awaiting_page.extract_if(.., |(up_to, _)| *up_to <= written) {
                        let _ = waits.send(());
                    }
                    session.written(&events[shown..], answered, ctx);
                }
                Err(error) => session.fall(&error, answered, ctx),
            }
        });
        ctx.spawn(written);
    }

    /// In the log: may be seen.
    fn written(&mut self, events: &[Logged], answered: Vec<Answered>, ctx: &mut Context<Self>) {
        self.tell(answered, ctx);
        let prompts = events.iter().filter(|logged| matches!(logged.event, Event::Prompted { .. }));
        for run in prompts.filter_map(|logged| logged.run.as_ref()) {
            self.keep_waiting(run);
            self.enter_lane(run, ctx);
        }
        // Before anybody can be told, so that who begins to watch and then looks misses none.
        events.iter().for_each(|logged| self.note_approval(logged));
        if let Some(first) = events.first() {
            self.let_watch(Seq(first.first_seq.0 - 1), ctx);
        }
        if let Some(reason) = events.iter().rev().find_map(ChangeReason::of) {
            let (session, owner) = (self.conversation.key().clone(), self.conversation.owner().clone());
            self.deps.changes.note(SessionChange { session, owner, reason });
        }
        self.learn_from(events);
        self.drop_guard.audience.publish(events, self.agent_configs.lag_bytes_max);
        self.proceed(ctx);
    }

    /// A prompt is in the log: in a cluster it has its place in its lane by that.
    fn enter_lane(&mut self, run: &RunId, ctx: &mut Context<Self>) {
        let lane = self.conversation.in_lanes().find(|(of, ..)| *of == run).map(|(_, lane, _)| lane);
        if let Some(guard) = lane.and_then(|lane| self.deps.lanes.written(lane, self.conversation.key(), run))
        {
            self.await_turn(run.clone(), guard, ctx);
        }
    }

    /// A prompt is in the log that may have to wait: in memory, where there is room.
    pub(super) fn keep_waiting(&mut self, run: &RunId) {
        let Some(bytes) = self.conversation.held_bytes(run) else { return };
        let (owner, each) = (self.conversation.owner(), self.agent_configs.queued_bytes);
        match self.deps.queued.room(owner, bytes as u64, each) {
            Some(room) => drop(self.rooms.insert(run.clone(), room)),
            None => self.conversation.set_aside(run),
        }
    }

    /// Reads what the prompt says whose turn has come, where it waited in the store.
    pub(super) fn fetch(&mut self, ctx: &mut Context<Self>) {
        let Some((run, seq)) = self.conversation.wanted() else { return };
        if self.fetching.as_ref() == Some(run) {
            return;
        }
        let (run, store) = (run.clone(), self.deps.store.clone());
        let read = ReadPrompt { session: self.conversation.key().clone(), seq };
        self.fetching = Some(run.clone());
        let read = async move { ask(&store, read).await.flatten() };
        ctx.spawn(read.into_actor(self).map(move |read, session, ctx| {
            let said = match read {
                Err(error) if error.is_retryable() => {
                    ctx.run_later(RETRY, |session, ctx| {
                        session.fetching = None;
                        session.proceed(ctx);
                    });
                    return;
                }
                Err(error) => Err(error),
                Ok(None) => Err(ErrorCode::Internal.error("the prompt is no longer in the store")),
                Ok(Some(said)) => Ok(said),
            };
            session.fetching = None;
            session.conversation.give_back(clock::now(), &run, said);
            session.proceed(ctx);
        }));
    }

    /// Sets aside what this adds to what the session's owner holds.
    pub(super) fn admit(&self, order: &Order, is_first: bool) -> Result<Option<Coming>, Error> {
        let Some(bytes) = order.adds() else { return Ok(None) };
        if let Order::Submit { submission, .. } = order
            && self.conversation.has(submission)
        {
            return Ok(None);
        }
        let more = Kept { sessions: u64::from(is_first), bytes: bytes as u64 + ROW_BYTES };
        let holdings = self.deps.log_writer.holdings();
        holdings.admit(self.conversation.owner(), self.agent_configs.quota, more).map(Some)
    }

    /// Tells that a quota is met, and which sessions could be deleted.
    pub(super) fn refuse_over_quota(&self, asker: Asker, mut error: Error, ctx: &mut Context<Self>) {
        let (store, owner) = (self.deps.store.clone(), self.conversation.owner().clone());
        let is_about_bytes = matches!(
            error.detail,
            Some(Detail::Limit { name: clawmux_core::error::limit::Limit::StoreBytes, .. })
        );
        let told = async move {
            let named = ask(&store, ReadDispensable { owner, is_about_bytes }).await.flatten();
            let named: Vec<String> = named
                .unwrap_or_default()
                .iter()
                .map(|one| match is_about_bytes {
                    true => format!("{} ({} bytes)", one.session, one.bytes),
                    false => one.session.to_string(),
                })
                .collect();
            if !named.is_empty() {
                let which = if is_about_bytes { "the largest are" } else { "unused for longest are" };
                error.message += &format!("; {which} {}", named.join(", "));
            }
            asker.reply(Err(error));
        };
        ctx.spawn(told.into_actor(self).map(|(), session, _| session.sleep_if_nothing_was()));
    }

    /// Enters where it is looked for what the log says about calls that wait for approval.
    fn note_approval(&self, logged: &Logged) {
        let Some(run) = &logged.run else { return };
        match &logged.event {
            Event::ApprovalAsked(asked) => self.deps.approvals.asked(PendingCall {
                id: ApprovalId::of(run, &asked.call.id),
                session: self.conversation.key().clone(),
                owner: self.conversation.owner().clone(),
                run: run.clone(),
                prompted_by: self.conversation.prompted_by(run).clone(),
                asked: asked.clone(),
            }),
            Event::ApprovalDecided(decided) => {
                let id = ApprovalId::of(run, &decided.call);
                self.deps.approvals.decided(&id, decided, logged.at);
            }
            _ => {}
        }
    }

    /// The log can't be written: the session in memory is ahead of it, so it goes back to it.
    fn fall(&mut self, error: &Error, answered: Vec<Answered>, ctx: &mut Context<Self>) {
        let session = self.conversation.key();
        let is_outdone = error.code == ErrorCode::Conflict;
        if error.is_retryable() || is_outdone {
            // Everybody's trouble, which the log tells once; or a name that nobody may have.
            tracing::debug!(%session, %error, "the session starts again from the store");
        } else {
            tracing::warn!(%session, %error, "the session starts again from the store");
        }
        let answered: Vec<Answered> = answered.into_iter().chain(std::mem::take(&mut self.next)).collect();
        let is_key_taken = is_outdone && answered.iter().any(|answered| answered.held.is_some());
        for answered in answered {
            match answered {
                Answered { asker, principal, follow, held: Some(held), .. } if is_key_taken => {
                    held.taken((asker, principal), follow.is_some());
                }
                // It is no matter of theirs.
                Answered { asker, .. } if is_key_taken => asker.reply(Err(begins_anew(session))),
                Answered { asker, .. } => asker.reply(Err(error.clone())),
            }
        }
        if is_outdone {
            self.drop_guard.ending = Ending::Outdone;
        }
        ctx.terminate();
    }

    pub(super) fn tell(&mut self, answered: Vec<Answered>, ctx: &mut Context<Self>) {
        for Answered { asker, reply, follow, held, coming, .. } in answered {
            let (client, ticket) = (asker.client().clone(), asker.ticket());
            match reply {
                Some(reply) => asker.reply(Ok(reply)),
                None => self.tell_row(asker, ctx),
            }
            if let (Some(wanted), Some(ticket)) = (follow, ticket) {
                let from = || ctx.address().recipient();
                self.drop_guard.audience.follow((client, ticket), wanted, from);
            }
            drop((held, coming));
        }
    }

    /// Answers with the session as lists show it.
    fn tell_row(&self, asker: Asker, ctx: &mut Context<Self>) {
        let row = read_row(Arc::clone(&self.deps), self.conversation.key().clone());
        ctx.spawn(actix::fut::wrap_future(async move { asker.reply(row.await) }));
    }

    /// Removes the session from the log, now that nothing of it is under way.
    pub(super) fn delete(&mut self, ctx: &mut Context<Self>) {
        let askers = std::mem::take(&mut self.deleting);
        // Nobody else may write meanwhile.
        self.writing = Writing::Unit;
        let deleted = self.deps.log_writer.delete(self.conversation.key().clone());
        ctx.spawn(deleted.into_actor(self).map(move |deleted, session, ctx| match deleted {
            Ok(()) => session.gone(askers, ctx),
            Err(error) => {
                for asker in askers {
                    asker.reply(Err(error.clone()));
                }
                session.fall(&error, Vec::new(), ctx);
            }
        }));
    }

    /// It is deleted: who follows it is told, and it ends.
    fn gone(&mut self, askers: Vec<Asker>, ctx: &mut Context<Self>) {
        let (now, key) = (clock::now(), self.conversation.key().clone());
        let mut subscribers = std::mem::take(&mut self.drop_guard.audience.subscribers);
        // Those who were not told yet how their run ended can't read it any more.
        subscribers.end_runs(&key, |run| Logged {
            first_seq: Seq(u64::MAX),
            seq: Seq(u64::MAX),
            run: Some(run),
            at: now,
            event: Event::Ended { outcome: Outcome::Aborted(Cause::Asked), usage: Usage::default() },
        });
        let seq = self.conversation.head().next();
        let last = Logged { first_seq: seq, seq, run: None, at: now, event: Event::Deleted };
        if let Some(reason) = ChangeReason::of(&last) {
            let (session, owner) = (key.clone(), self.conversation.owner().clone());
            self.deps.changes.note(SessionChange { session, owner, reason });
        }
        subscribers.end_all(&Published::new(key, last));
        for asker in askers {
            asker.reply(Ok(Reply::Session(SessionReply::Deleted(Deleted { found: true }))));
        }
        self.drop_guard.ending = Ending::Done;
        ctx.stop();
    }
}

fn begins_anew(session: &SessionKey) -> Error {
    ErrorCode::Unavailable.error(format!("session {session} starts again from the store: try again"))
}

/// A session as lists show it.
pub(crate) async fn read_row(deps: Arc<SessionDeps>, key: SessionKey) -> Result<Reply, Error> {
    let gone = || ErrorCode::NotFound.error(format!("no such session: {key}"));
    let mut row = ask(&deps.store, ReadRow(key.clone())).await.flatten()?.ok_or_else(gone)?;
    row.model = deps.agent_configs.get().catalog.answers(&key.agent(), &row.settings);
    Ok(Reply::Session(SessionReply::Settled(Box::new(row))))
}
