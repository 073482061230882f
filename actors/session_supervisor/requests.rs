//! What is asked about sessions: ordered of the session that it is about, or read from the store.

use actix::prelude::*;
use clawmux_core::conversation::command::{SessionCommand, Submit};
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::reply::{Aborted, SessionReply, Unwatched, Watching};
use clawmux_core::conversation::session::Submission;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{LaneName, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::attachment::{self, Attachment};
use clawmux_core::prompt::settings::Patch;
use clawmux_core::request::reply::Reply;

use super::order::{Turn, closed};
use super::reading::{Next, Reader};
use super::{SessionSupervisor, State};
use crate::agent_supervisor::SessionEnds;
use crate::files::{Collect, Enclose};
use crate::runtime::ask::ask;
use crate::runtime::deliver::Asker;
use crate::runtime::dispatch::{Located, Request};
use crate::session::{Routed, Watcher};

/// Sessions previewed at once.
const PREVIEWS_MAX: usize = 128;

/// Who waits for the answer, and on whose behalf.
pub(super) type Who = (Asker, Principal);

impl SessionSupervisor {
    /// Takes a request, and the session that it names: to that session, or answered here.
    pub(super) fn dispatch(&mut self, located: Located<SessionCommand>, ctx: &mut Context<Self>) {
        let Located { request: Request { command, principal, asker }, session } = located;
        match session {
            Some(session) => self.dispatch_to(session, command, (asker, principal), ctx),
            None => self.dispatch_to_none(command, (asker, principal), ctx),
        }
    }

    /// What is about one session.
    fn dispatch_to(
        &mut self,
        session: SessionKey,
        command: SessionCommand,
        who: Who,
        ctx: &mut Context<Self>,
    ) {
        let order = match command {
            SessionCommand::Submit(submit) => return self.prompt(session, submit, who, ctx),
            SessionCommand::Abort(abort) => Order::Abort { run: abort.run },
            SessionCommand::Clear(_) => Order::Clear,
            SessionCommand::Detach(detach) => Order::Detach { follow: detach.follow },
            SessionCommand::Reset(_) => Order::Reset,
            SessionCommand::Renew(_) => Order::Renew,
            SessionCommand::Stop(stop) => {
                return self.order_the_end(Order::Stop(stop.cause), session, who);
            }
            SessionCommand::Close(close) => {
                return self.order_the_end(Order::Close { reason: close.reason }, session, who);
            }
            SessionCommand::Attach(attach) => {
                self.may_follow(&who.0);
                Order::Attach { after: attach.after, follow: true }
            }
            SessionCommand::AttachTurns(attach) => {
                self.may_follow(&who.0);
                let look = |reader: Reader, session| reader.attach_turns(session, attach.turns);
                return self.look_and_order(session, who, look);
            }
            SessionCommand::CreateSession(create) => match self.checked(&session, create.patch) {
                Ok(patch) => Order::Create(patch),
                Err(error) => return who.0.reply(Err(error)),
            },
            SessionCommand::Configure(configure) => match self.checked(&session, configure.patch) {
                Ok(patch) => Order::Configure(patch),
                Err(error) => return who.0.reply(Err(error)),
            },
            SessionCommand::Inject(inject) => {
                let order = Order::Inject { content: inject.content, id: inject.id.clone() };
                match inject.id {
                    None => order,
                    Some(id) => return self.inject_once(&id, Routed::new(session, order, who)),
                }
            }
            SessionCommand::Compact(compact) => {
                let look = |reader: Reader, session| reader.compact(session, compact.keep);
                return self.look_and_order(session, who, look);
            }
            SessionCommand::Delete(_) => {
                let ended = self.end_agents(&session, &who.1);
                let look = |reader: Reader, session| async move {
                    if let Some(ended) = ended {
                        ended.await;
                    }
                    reader.delete(session).await
                };
                return self.look_and_order(session, who, look);
            }
            SessionCommand::ReadHistory(asked) => {
                let reader = self.reader_of(&session, who.1);
                return self.answer(who.0, reader.history(session, asked));
            }
            SessionCommand::DescribeSession(_) => {
                let reader = self.reader_of(&session, who.1);
                return self.answer(who.0, reader.row(session));
            }
            SessionCommand::ReadTranscript(asked) => {
                let reader = self.reader_of(&session, who.1);
                return self.answer(who.0, reader.transcript(session, asked));
            }
            SessionCommand::Export(export) => {
                let reader = self.reader_of(&session, who.1);
                return self.answer(who.0, reader.export(session, export.after));
            }
            SessionCommand::GetBudgets(_) => return self.budgets(Some(session), who),
            SessionCommand::AbortLane(_)
            | SessionCommand::ListSessions(_)
            | SessionCommand::ListSummaries(_)
            | SessionCommand::FollowRun(_)
            | SessionCommand::Watch(_)
            | SessionCommand::WatchCalls(_)
            | SessionCommand::Unwatch(_)
            | SessionCommand::Exists(_)
            | SessionCommand::PreviewSessions(_) => return self.dispatch_to_none(command, who, ctx),
        };
        self.order(order, session, who);
    }

    /// What is about none that it names as its target.
    fn dispatch_to_none(&mut self, command: SessionCommand, who: Who, ctx: &mut Context<Self>) {
        match command {
            SessionCommand::AbortLane(abort) => self.abort_lane(abort.lane, who, ctx),
            SessionCommand::ListSummaries(_) => self.answer(who.0, self.reader(who.1).summaries()),
            SessionCommand::ListSessions(filter) => self.answer(who.0, self.reader(who.1).list(filter)),
            SessionCommand::Exists(exists) => {
                self.answer(who.0, self.reader(who.1).exists(exists.session));
            }
            SessionCommand::PreviewSessions(asked) => {
                // A name that can't be a session's is one of which there is none.
                let named = asked.targets.iter().take(PREVIEWS_MAX);
                let found = named.map(|target| self.resolve(target, &who.1).ok()).collect();
                self.answer(who.0, self.reader(who.1).previews(found, asked.limit, asked.chars_max));
            }
            SessionCommand::GetBudgets(_) => self.budgets(None, who),
            SessionCommand::Watch(_) => self.watch(false, who),
            SessionCommand::WatchCalls(_) => self.watch(true, who),
            SessionCommand::Unwatch(unwatch) => {
                self.setup.deps.watchers.remove(who.0.client().connection, Some(unwatch.watch));
                who.0.reply(Ok(SessionReply::Unwatched(Unwatched).into()));
            }
            SessionCommand::FollowRun(follow) => {
                self.may_follow(&who.0);
                self.follow_run(&follow.run, who);
            }
            _ => unreachable!("a command with a target was resolved"),
        }
    }

    /// Remembers from here on which sessions the asker's connection may follow.
    fn may_follow(&mut self, asker: &Asker) {
        self.followed.entry(asker.client().connection).or_default();
    }

    pub(super) fn reader(&self, principal: Principal) -> Reader {
        let (store, catalog) = (self.setup.deps.store.clone(), self.agent_configs().catalog.clone());
        Reader { store, catalog, principal, session: None }
    }

    /// The same, for what is asked about this session.
    fn reader_of(&self, session: &SessionKey, principal: Principal) -> Reader {
        let awake = match self.sessions.get(session).map(|entry| &entry.state) {
            // Nobody else can have it write.
            Some(State::Awake { session: awake, .. }) if principal.sees(&session.owner()) => {
                Some(awake.clone())
            }
            _ => None,
        };
        Reader { session: awake, ..self.reader(principal) }
    }

    fn budgets(&self, session: Option<SessionKey>, (asker, principal): Who) {
        let providers = self.setup.deps.providers.clone();
        self.answer(asker, self.reader(principal).budgets(providers, session));
    }

    /// Tells the asker of all sessions from here on, or only of the tool calls he may decide about.
    fn watch(&self, is_for_calls: bool, (asker, principal): Who) {
        let Some(ticket) = asker.ticket() else { return };
        let client = asker.client().clone();
        let watchers = &self.setup.deps.watchers;
        if watchers.is_watching(client.connection, is_for_calls) {
            return asker.reply(Err(ErrorCode::Conflict.error("this connection watches already")));
        }
        // Before any session can tell it something.
        asker.reply(Ok(SessionReply::Watching(Watching).into()));
        watchers.add(Watcher { client, ticket, principal, is_for_calls });
    }

    /// Reads the store, and orders what follows from that of the session, or answers.
    fn look_and_order<L: Future<Output = Result<Next, Error>> + 'static>(
        &self,
        session: SessionKey,
        who: Who,
        look: impl FnOnce(Reader, SessionKey) -> L,
    ) {
        let looked = look(self.reader_of(&session, who.1.clone()), session.clone());
        self.awaited.add(looked, |supervisor, next, _| match next {
            Ok(Next::Continue(order)) => supervisor.order(order, session, who),
            Ok(Next::Break(reply)) => who.0.reply(Ok(reply.into())),
            Err(error) => who.0.reply(Err(error)),
        });
    }

    /// Orders what ends a session, after the agents that end with it.
    fn order_the_end(&mut self, order: Order, session: SessionKey, who: Who) {
        let Some(ended) = self.end_agents(&session, &who.1) else {
            return self.order(order, session, who);
        };
        let end = Routed::new(session, order, who);
        self.in_turn(ended, |supervisor, (), _| supervisor.route(end));
    }

    /// Ends the agents that a session's end ends, before that, where there are any; who may not end it ends
    /// none of them.
    fn end_agents(
        &self,
        session: &SessionKey,
        principal: &Principal,
    ) -> Option<impl Future<Output = ()> + use<>> {
        if !self.setup.parent_sessions.has(session) {
            return None;
        }
        let agents = self.setup.agents.clone();
        let ends = SessionEnds { session: session.clone(), principal: principal.clone() };
        Some(async move {
            if let Err(error) = ask(&agents, ends).await {
                tracing::warn!(%error, "the agents of a session that ends were not told");
            }
        })
    }

    /// Ends the run that is active in a lane, or about to be; behind prompts that came before it.
    fn abort_lane(&mut self, lane: LaneName, (asker, principal): Who, ctx: &mut Context<Self>) {
        let abort = move |supervisor: &mut Self, (), _: &mut _| {
            let Some((session, run)) = supervisor.setup.deps.lanes.current(&lane) else {
                return asker.reply(Ok(SessionReply::Aborted(Aborted { run: None }).into()));
            };
            let order = Order::Abort { run: Some(run) };
            supervisor.route(Routed::new(session, order, (asker, principal)));
        };
        if self.waiting == 0 { abort(self, (), ctx) } else { self.in_turn(async {}, abort) }
    }

    /// Takes a prompt, with the files that it names.
    fn prompt(&mut self, session: SessionKey, submit: Submit, who: Who, ctx: &mut Context<Self>) {
        // One with an idempotency key may be a repetition, which is told of its run.
        if self.closed && submit.idempotency_key.is_none() {
            return who.0.reply(Err(closed()));
        }
        self.may_follow(&who.0);
        if submit.files.is_empty() && submit.local_files.is_empty() {
            self.submit(session, submit, who, None, ctx);
        } else {
            self.collect(session, submit, who);
        }
    }

    /// A prompt with all that it brings along; in its turn, where it has that already.
    fn submit(
        &mut self,
        session: SessionKey,
        mut submit: Submit,
        (asker, principal): Who,
        turn: Option<Turn>,
        ctx: &mut Context<Self>,
    ) {
        if let Some(model) = &mut submit.run_options.model {
            match self.agent_configs().catalog.find(&session.agent(), model) {
                Ok(found) => *model = found.to_string(),
                Err(error) => return asker.reply(Err(error)),
            }
        }
        let owner = principal.owner.clone();
        let submission = Submission {
            run: submit.run,
            content: submit.content,
            owner: owner.clone(),
            idempotency_key: submit.idempotency_key.clone(),
            attachments: submit.attachments,
            run_options: submit.run_options,
        };
        let order = Order::Submit { submission, follow: submit.follow };
        let prompt = Routed::new(session, order, (asker, principal));
        match submit.idempotency_key {
            Some(key) => self.submit_once((owner, key), prompt, turn, ctx),
            None => match self.fault() {
                // It would only make the session fall.
                Some(fault) => prompt.asker.reply(Err(fault)),
                None if turn.is_some() => self.route(prompt),
                None => self.route_in_turn(prompt),
            },
        }
    }

    /// Reads the files that a prompt names; what came behind it waits.
    fn collect(&mut self, session: SessionKey, mut submit: Submit, who: Who) {
        let collect = Collect { files: std::mem::take(&mut submit.files), principal: who.1.clone() };
        let local_files = Enclose(std::mem::take(&mut submit.local_files));
        let files = self.setup.files.clone();
        let collected = async move {
            let mut collected: Vec<Attachment> = Vec::new();
            if !collect.files.is_empty() {
                collected.extend(ask(&files, collect).await.flatten()?);
            }
            if !local_files.0.is_empty() {
                collected.extend(ask(&files, local_files).await.flatten()?);
            }
            Ok(collected)
        };
        let then =
            move |supervisor: &mut Self, collected: Result<_, Error>, turn, ctx: &mut Context<Self>| {
                let attached = collected.and_then(|attachments: Vec<Attachment>| {
                    submit.attachments.extend(attachments);
                    attachment::check(&submit.attachments)
                });
                match attached {
                    Ok(()) => supervisor.submit(session, submit, who, Some(turn), ctx),
                    Err(error) => who.0.reply(Err(error)),
                }
            };
        self.with_turn(collected, then);
    }

    /// Answers a request when others have answered.
    pub(super) fn answer<R: Into<Reply> + 'static>(
        &self,
        asker: Asker,
        reply: impl Future<Output = Result<R, Error>> + 'static,
    ) {
        self.awaited.add(reply, |_, reply, _| asker.reply(reply.map(Into::into)));
    }

    /// A patch with the full name of its model.
    fn checked(&self, session: &SessionKey, mut patch: Patch) -> Result<Patch, Error> {
        if let Some(Some(model)) = &mut patch.model {
            *model = self.agent_configs().catalog.find(&session.agent(), model)?.to_string();
        }
        Ok(patch)
    }
}
