//! What is asked: for the session it is about, or answered here.

use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::access::{Owner, Principal, Scope};
use clawmux_core::config::catalog::Catalog;
use clawmux_core::conversation::command::{
    Abort, AbortLane, Attach, AttachTurns, Clear, Close, Compact, Configure, CreateSession, Delete,
    DescribeSession, Detach, Exists, Export, FollowRun, GetBudgets, Inject, ListSummaries, PreviewSessions,
    Renew, Reset, SessionCommand, Stop, Submit, Unwatch, Watch, WatchCalls,
};
use clawmux_core::conversation::reply::{
    Aborted, Compacted, Deleted, Exported, Preview, SessionReply, SessionRow, Unwatched, Watching,
};
use clawmux_core::conversation::session::Submission;
use clawmux_core::conversation::transcript::History;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, LaneName, SessionKey};
use clawmux_core::prompt::attachment::{self, Attachment};
use clawmux_core::prompt::settings::Patch;
use clawmux_core::request::reply::Reply;
use clawmux_core::target::Target;

use super::SessionSupervisor;
use super::order::{Turn, Waiting, closed};
use crate::agent_supervisor;
use crate::files::{Collect, Enclose};
use crate::provider_supervisor::BudgetStatus;
use crate::runtime::ask::ask;
use crate::runtime::deliver::Asker;
use crate::session::{Order, Routed, SessionDeps, Watcher};
use crate::store::{
    Among, AskedBy, Describe, Described, FindCut, FindSession, FindTurn, ListSessions, Namesakes,
    ReadHistory, ReadPreviews, ReadRow, ReadRows, ReadTranscript, Store, exported,
};

/// How many bytes a history has at most as JSON, so that a client that does not read it costs no
/// more than it may; of the newest message there is as much in it as fits.
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// Sessions in one list, and how many bytes they take at most: so much each besides its key.
const LIST_MAX: usize = 1000;
const LIST_BYTES_MAX: usize = 256 * 1024;
const SUMMARY_BYTES: usize = 128;

/// How many bytes a list of whole rows has at most, roughly.
const ROWS_BYTES_MAX: usize = 1024 * 1024;

/// Sessions previewed at once, messages of each, and characters of each of those.
const PREVIEWS_MAX: usize = 128;
const PREVIEW_MAX: usize = 50;
const PREVIEW_CHARS_MAX: usize = 2000;

/// Who waits for the answer, and on whose behalf.
type Who = (Asker, Principal);

/// A prompt on its way to its session.
type Prompt = (SessionKey, Submit, Who);

impl SessionSupervisor {
    /// Finds the session that a request names, and goes on with it: at once, or where it is named by an id,
    /// when it is found, those that name one so in the order they came.
    pub(super) fn locate<F>(
        &mut self,
        target: Option<Target>,
        (asker, principal): Who,
        then: F,
        ctx: &mut Context<Self>,
    ) where
        F: FnOnce(&mut Self, Option<SessionKey>, Who, &mut Context<Self>) + 'static,
    {
        let Some(mut target) = target else { return then(self, None, (asker, principal), ctx) };
        if let Err(error) = target.settle(&principal) {
            return asker.reply(Err(error));
        }
        let Some(find) = by_id(&target, &principal) else {
            return match self.resolve(&target, &principal) {
                Ok(session) => then(self, Some(session), (asker, principal), ctx),
                Err(error) => asker.reply(Err(error)),
            };
        };
        let store = self.setup.deps.store.clone();
        let unknown = no_such_id(&find.id);
        let found = async move { ask(&store, find).await.flatten() };
        let found_then = move |supervisor: &mut Self, found, ctx: &mut Context<Self>| match found {
            Ok(Some(key)) if principal.sees(&SessionKey::owner(&key)) => {
                match supervisor.resolve(&Target::Session(key), &principal) {
                    Ok(session) => then(supervisor, Some(session), (asker, principal), ctx),
                    Err(error) => asker.reply(Err(error)),
                }
            }
            Ok(_) => asker.reply(Err(unknown)),
            Err(error) => asker.reply(Err(error)),
        };
        self.in_turn(found, found_then, ctx);
    }

    /// Takes a request, and the session that it is about: to that session, or answered here.
    pub(super) fn dispatch(
        &mut self,
        command: SessionCommand,
        session: Option<SessionKey>,
        (asker, principal): Who,
        ctx: &mut Context<Self>,
    ) {
        let is_for_calls = matches!(command, SessionCommand::WatchCalls(_));
        match (command, session) {
            // One with an idempotency key may be a repetition, which is told of its run.
            (SessionCommand::Submit(submit), _) if self.closed && submit.idempotency_key.is_none() => {
                asker.reply(Err(closed()));
            }
            (SessionCommand::Submit(submit), Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                let prompt = (session, submit, (asker, principal));
                if prompt.1.files.is_empty() && prompt.1.local_files.is_empty() {
                    self.submit(prompt, None, ctx)
                } else {
                    self.collect(prompt, ctx)
                }
            }
            (SessionCommand::Abort(Abort { run, .. }), Some(session)) => {
                self.order(Order::Abort { run }, session, (asker, principal), ctx);
            }
            (SessionCommand::AbortLane(AbortLane { lane }), _) => {
                // Behind prompts that came before it.
                let now = std::future::ready(());
                let abort = move |supervisor: &mut Self, (), ctx: &mut Context<Self>| {
                    supervisor.abort_lane(&lane, (asker, principal), ctx);
                };
                if self.waiting == 0 { abort(self, (), ctx) } else { self.in_turn(now, abort, ctx) }
            }
            (SessionCommand::Close(Close { reason, .. }), Some(session)) => {
                let order = Order::Close { reason };
                self.order_the_end(order, session, (asker, principal), ctx);
            }
            (SessionCommand::Clear(Clear { .. }), Some(session)) => {
                self.order(Order::Clear, session, (asker, principal), ctx);
            }
            (SessionCommand::Attach(Attach { after, .. }), Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                self.order(Order::Attach { after }, session, (asker, principal), ctx);
            }
            (SessionCommand::AttachTurns(AttachTurns { turns, .. }), Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                let store = self.setup.deps.store.clone();
                let look = async move {
                    let find = FindTurn { session: session.clone(), turns };
                    let found = ask(&store, by(&principal, find)).await.flatten();
                    (found, session, principal)
                };
                ctx.spawn(look.into_actor(self).map(move |(found, session, principal), supervisor, ctx| {
                    match found {
                        Ok(after) => {
                            let order = Order::Attach { after };
                            supervisor.order(order, session, (asker, principal), ctx);
                        }
                        Err(error) => asker.reply(Err(error)),
                    }
                }));
            }
            (SessionCommand::Detach(Detach { follow, .. }), Some(session)) => {
                self.order(Order::Detach { follow }, session, (asker, principal), ctx);
            }
            (SessionCommand::Stop(Stop { cause, .. }), Some(session)) => {
                self.order_the_end(Order::Stop(cause), session, (asker, principal), ctx);
            }
            (
                SessionCommand::ReadHistory(clawmux_core::conversation::command::ReadHistory {
                    limit,
                    before,
                    ..
                }),
                Some(session),
            ) => {
                let store = self.setup.deps.store.clone();
                answer(ctx, asker, async move {
                    let max_bytes = HISTORY_BYTES_MAX;
                    let history = match described(&store, &session, &principal).await? {
                        Some(_) => {
                            ask(&store, by(&principal, ReadHistory { session, limit, before, max_bytes }))
                                .await??
                        }
                        None => History { session, messages: Vec::new(), more: false },
                    };
                    Ok(SessionReply::History(history))
                });
            }
            (SessionCommand::ListSummaries(ListSummaries), _) => {
                let store = self.setup.deps.store.clone();
                let owner = owner_asked(&principal);
                answer(ctx, asker, async move {
                    let list = ListSessions { limit: LIST_MAX, owner, prefix: None, before: None };
                    let sessions = ask(&store, by(&principal, list)).await??;
                    let mut left = LIST_BYTES_MAX;
                    let fitting = sessions.into_iter().map_while(|listed| {
                        left = left.checked_sub(listed.summary.session.as_str().len() + SUMMARY_BYTES)?;
                        Some(listed.summary)
                    });
                    Ok(SessionReply::Sessions(fitting.collect()))
                });
            }
            (SessionCommand::ListSessions(mut filter), _) => {
                let (store, catalog) = self.list_with();
                let owner = owner_asked(&principal);
                filter.limit = filter.limit.min(LIST_MAX);
                answer(ctx, asker, async move {
                    let read = ReadRows { filter, owner, bytes_max: ROWS_BYTES_MAX };
                    let mut list = ask(&store, by(&principal, read)).await??;
                    list.rows.iter_mut().for_each(|row| fill_in(row, &catalog));
                    Ok(SessionReply::SessionList(list))
                });
            }
            (SessionCommand::DescribeSession(DescribeSession { .. }), Some(session)) => {
                let (store, catalog) = self.list_with();
                answer(ctx, asker, async move {
                    let row = ask(&store, by(&principal, ReadRow(session))).await??;
                    let row = row.filter(|row| principal.sees(&row.owner)).map(|mut row| {
                        fill_in(&mut row, &catalog);
                        Box::new(row)
                    });
                    Ok(SessionReply::Session(row))
                });
            }
            (SessionCommand::Exists(Exists { session }), _) => {
                let store = self.setup.deps.store.clone();
                answer(ctx, asker, async move {
                    let described = ask(&store, by(&principal, Describe { session })).await??;
                    Ok(SessionReply::Exists(
                        described.is_some_and(|described| principal.sees(&described.owner)),
                    ))
                });
            }
            (
                SessionCommand::ReadTranscript(clawmux_core::conversation::command::ReadTranscript {
                    limit,
                    bytes_max,
                    at,
                    ..
                }),
                Some(session),
            ) => {
                let (store, catalog) = self.list_with();
                answer(ctx, asker, async move {
                    if described(&store, &session, &principal).await?.is_none() {
                        return Ok(SessionReply::Transcript(Box::default()));
                    }
                    let mut read =
                        ask(&store, by(&principal, ReadTranscript { session, limit, bytes_max, at }))
                            .await??
                            .unwrap_or_default();
                    if let Some(row) = &mut read.row {
                        fill_in(row, &catalog);
                    }
                    Ok(SessionReply::Transcript(Box::new(read)))
                });
            }
            (SessionCommand::PreviewSessions(PreviewSessions { targets, limit, chars_max }), _) => {
                let store = self.setup.deps.store.clone();
                let (limit, chars_max) = (limit.min(PREVIEW_MAX), chars_max.min(PREVIEW_CHARS_MAX));
                // A name that can't be a session's is one of which there is none.
                let found: Vec<Option<SessionKey>> = targets
                    .iter()
                    .take(PREVIEWS_MAX)
                    .map(|target| self.resolve(target, &principal).ok())
                    .collect();
                let owner = owner_asked(&principal);
                answer(ctx, asker, async move {
                    let sessions = found.iter().flatten().cloned().collect();
                    let read = ReadPreviews { sessions, owner, limit, chars_max };
                    let mut previews = ask(&store, by(&principal, read)).await??.into_iter();
                    let previews = found.iter().map(|session| {
                        let preview = session.as_ref().and_then(|_| previews.next());
                        preview.unwrap_or(Preview { messages: None })
                    });
                    Ok(SessionReply::Previews(previews.collect()))
                });
            }
            (SessionCommand::CreateSession(CreateSession { patch, .. }), Some(session)) => {
                match self.checked(&session, patch) {
                    Ok(patch) => self.order(Order::Create(patch), session, (asker, principal), ctx),
                    Err(error) => asker.reply(Err(error)),
                }
            }
            (SessionCommand::Configure(Configure { patch, .. }), Some(session)) => {
                match self.checked(&session, patch) {
                    Ok(patch) => self.order(Order::Configure(patch), session, (asker, principal), ctx),
                    Err(error) => asker.reply(Err(error)),
                }
            }
            (SessionCommand::Reset(Reset { .. }), Some(session)) => {
                self.order(Order::Reset, session, (asker, principal), ctx);
            }
            (SessionCommand::Renew(Renew { .. }), Some(session)) => {
                self.order(Order::Renew, session, (asker, principal), ctx);
            }
            (SessionCommand::Inject(Inject { content, id: None, .. }), Some(session)) => {
                self.order(Order::Inject { content, id: None }, session, (asker, principal), ctx);
            }
            (SessionCommand::Inject(Inject { content, id: Some(id), .. }), Some(session)) => {
                let inject = Waiting {
                    session,
                    routed: Routed {
                        asker,
                        principal,
                        order: Order::Inject { content, id: Some(id.clone()) },
                        held: None,
                    },
                };
                self.inject_once(&id, inject, ctx);
            }
            (SessionCommand::Compact(Compact { keep, .. }), Some(session)) => {
                let store = self.setup.deps.store.clone();
                let look = async move {
                    let cut = described(&store, &session, &principal).await.map(|there| there.is_some());
                    let cut = match cut {
                        Ok(true) => {
                            let find = FindCut { session: session.clone(), keep };
                            ask(&store, by(&principal, find)).await.flatten()
                        }
                        Ok(false) => Ok(None),
                        Err(error) => Err(error),
                    };
                    (cut, session, principal)
                };
                ctx.spawn(look.into_actor(self).map(move |(cut, session, principal), supervisor, ctx| {
                    match cut {
                        Ok(Some(cut)) => {
                            let order = Order::Compact(cut);
                            supervisor.order(order, session, (asker, principal), ctx);
                        }
                        // All of it is kept, however little that is.
                        Ok(None) => asker.reply(Ok(Reply::Session(SessionReply::Compacted(Compacted {
                            kept: 0,
                            forgotten: 0,
                        })))),
                        Err(error) => asker.reply(Err(error)),
                    }
                }));
            }
            (SessionCommand::Delete(Delete { .. }), Some(session)) => {
                let store = self.setup.deps.store.clone();
                let ended =
                    self.setup.parent_sessions.has(&session).then(|| self.end_agents(&session, &principal));
                let look = async move {
                    if let Some(ended) = ended {
                        ended.await;
                    }
                    let there = described(&store, &session, &principal).await.map(|there| there.is_some());
                    (there, session, principal)
                };
                ctx.spawn(look.into_actor(self).map(move |(there, session, principal), supervisor, ctx| {
                    match there {
                        Ok(true) => {
                            supervisor.order(Order::Delete, session, (asker, principal), ctx);
                        }
                        Ok(false) => {
                            asker.reply(Ok(Reply::Session(SessionReply::Deleted(Deleted { found: false }))))
                        }
                        Err(error) => asker.reply(Err(error)),
                    }
                }));
            }
            (SessionCommand::Export(Export { after, .. }), Some(session)) => {
                let store = self.setup.deps.store.clone();
                answer(ctx, asker, async move {
                    let events = match described(&store, &session, &principal).await? {
                        Some(_) => exported(&store, &session, after).await?,
                        None => return Err(no_such(&session, &principal)),
                    };
                    Ok(SessionReply::Exported(Exported { session, events }))
                });
            }
            (SessionCommand::GetBudgets(GetBudgets { .. }), session) => {
                let SessionDeps { store, providers, .. } = self.setup.deps.clone();
                answer(ctx, asker, async move {
                    let session_spent = match session {
                        None => None,
                        Some(session) => {
                            let described = described(&store, &session, &principal).await?;
                            Some(described.map_or(0, |described| described.spent.total()))
                        }
                    };
                    Ok(SessionReply::Budget(ask(&providers, BudgetStatus { session_spent }).await?))
                });
            }
            (SessionCommand::Watch(Watch) | SessionCommand::WatchCalls(WatchCalls), _) => {
                let Some(ticket) = asker.ticket() else { return };
                let client = asker.client().clone();
                let watcher = Watcher { client, ticket, principal, is_for_calls };
                let watchers = &self.setup.deps.watchers;
                if watchers.is_watching(watcher.client.connection, is_for_calls) {
                    return asker.reply(Err(ErrorCode::Conflict.error("this connection watches already")));
                }
                // Before any session can tell it something.
                asker.reply(Ok(Reply::Session(SessionReply::Watching(Watching))));
                watchers.add(watcher);
            }
            (SessionCommand::Unwatch(Unwatch { watch }), _) => {
                self.setup.deps.watchers.remove(asker.client().connection, Some(watch));
                asker.reply(Ok(Reply::Session(SessionReply::Unwatched(Unwatched))));
            }
            (SessionCommand::FollowRun(FollowRun { run }), _) => {
                self.followed.entry(asker.client().connection).or_default();
                self.follow_run(&run, (asker, principal), ctx);
            }
            (
                SessionCommand::Submit(_)
                | SessionCommand::Abort(Abort { .. })
                | SessionCommand::Attach(Attach { .. })
                | SessionCommand::AttachTurns(AttachTurns { .. })
                | SessionCommand::Detach(Detach { .. })
                | SessionCommand::Stop(Stop { .. })
                | SessionCommand::Close(Close { .. })
                | SessionCommand::Clear(Clear { .. })
                | SessionCommand::ReadHistory(clawmux_core::conversation::command::ReadHistory { .. })
                | SessionCommand::DescribeSession(DescribeSession { .. })
                | SessionCommand::ReadTranscript(clawmux_core::conversation::command::ReadTranscript {
                    ..
                })
                | SessionCommand::CreateSession(CreateSession { .. })
                | SessionCommand::Configure(Configure { .. })
                | SessionCommand::Reset(Reset { .. })
                | SessionCommand::Renew(Renew { .. })
                | SessionCommand::Compact(Compact { .. })
                | SessionCommand::Delete(Delete { .. })
                | SessionCommand::Export(Export { .. })
                | SessionCommand::Inject(Inject { .. }),
                None,
            ) => {
                unreachable!("a command with a target was resolved")
            }
        }
    }

    /// Orders what ends a session, after the agents that end with it.
    fn order_the_end(
        &mut self,
        order: Order,
        session: SessionKey,
        (asker, principal): (Asker, Principal),
        ctx: &mut Context<Self>,
    ) {
        if !self.setup.parent_sessions.has(&session) {
            return self.order(order, session, (asker, principal), ctx);
        }
        let ended = self.end_agents(&session, &principal);
        let end = Waiting { session, routed: Routed { asker, principal, order, held: None } };
        self.in_turn(ended, |supervisor, (), ctx| supervisor.route(end, ctx), ctx);
    }

    /// Ends the agents that a session's end ends, before that; who may not end it ends none of them.
    fn end_agents(&self, session: &SessionKey, principal: &Principal) -> impl Future<Output = ()> + 'static {
        let (crew, session) = (self.setup.crew.clone(), session.clone());
        let principal = principal.clone();
        async move {
            if let Err(error) = ask(&crew, agent_supervisor::SessionEnds { session, principal }).await {
                tracing::warn!(%error, "the agents of a session that ends were not told");
            }
        }
    }

    /// Ends the run that is active in a lane, or about to be.
    fn abort_lane(
        &mut self,
        lane: &LaneName,
        (asker, principal): (Asker, Principal),
        ctx: &mut Context<Self>,
    ) {
        let Some((session, run)) = self.setup.deps.lanes.current(lane) else {
            return asker.reply(Ok(Reply::Session(SessionReply::Aborted(Aborted { run: None }))));
        };
        let order = Order::Abort { run: Some(run) };
        self.route(Waiting { session, routed: Routed { asker, principal, order, held: None } }, ctx);
    }

    /// A prompt with all that it brings along; in its turn, where it has that already.
    fn submit(
        &mut self,
        (session, mut submit, (asker, principal)): Prompt,
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
        let order = Order::Submit { submission, follow: submit.follow, lane_guard: None };
        let prompt = Waiting { session, routed: Routed { asker, principal, order, held: None } };
        match submit.idempotency_key {
            Some(key) => self.submit_once((owner, key), prompt, turn, ctx),
            None => match self.fault() {
                // It would only make the session fall.
                Some(fault) => prompt.routed.asker.reply(Err(fault)),
                None if turn.is_some() => self.route(prompt, ctx),
                None => self.route_in_turn(prompt, ctx),
            },
        }
    }

    /// Reads the files that a prompt names; what came behind it waits.
    fn collect(&mut self, mut prompt: Prompt, ctx: &mut Context<Self>) {
        let collect = Collect { files: std::mem::take(&mut prompt.1.files), principal: prompt.2.1.clone() };
        let local_files = Enclose(std::mem::take(&mut prompt.1.local_files));
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
                    prompt.1.attachments.extend(attachments);
                    attachment::check(&prompt.1.attachments)
                });
                match attached {
                    Ok(()) => supervisor.submit(prompt, Some(turn), ctx),
                    Err(error) => prompt.2.0.reply(Err(error)),
                }
            };
        self.with_turn(collected, then, ctx);
    }

    /// Whom lists are read from, and what fills them in.
    fn list_with(&self) -> (Addr<Store>, Arc<Catalog>) {
        (self.setup.deps.store.clone(), self.agent_configs().catalog.clone())
    }

    /// A patch with the full name of its model.
    fn checked(&self, session: &SessionKey, mut patch: Patch) -> Result<Patch, Error> {
        if let Some(Some(model)) = &mut patch.model {
            *model = self.agent_configs().catalog.find(&session.agent(), model)?.to_string();
        }
        Ok(patch)
    }

    /// The session that somebody means by a target.
    fn resolve(&self, target: &Target, who: &Principal) -> Result<SessionKey, Error> {
        match target {
            Target::Uuid(id) | Target::Conversation(id) => Err(no_such_id(id)),
            Target::Route(route) => Ok(self.agent_configs().router.session_key(route)?.in_space(&who.owner)),
            Target::Session(key) => {
                if self.agent_configs().agents.contains_key(&AgentId::from(&*key.agent())) {
                    Ok(key.clone())
                } else {
                    let seen = key.seen_by(&who.owner);
                    Err(ErrorCode::NotFound.error(format!("session {seen}: no agent named {}", key.agent())))
                }
            }
        }
    }
}

/// How a session is looked for that is named by an id.
fn by_id(target: &Target, who: &Principal) -> Option<FindSession> {
    let (id, among) = match target {
        // An operator's own come first: nobody else can make one that is found in its place.
        Target::Uuid(uuid) => (uuid, if who.is_operator() { Among::All } else { Among::Own }),
        Target::Conversation(id) => (id, Among::OwnConversations),
        Target::Route(_) | Target::Session(_) => return None,
    };
    Some(FindSession { id: id.clone(), owner: who.owner.clone(), among })
}

/// Whose sessions a list is of; none = everybody's.
fn owner_asked(principal: &Principal) -> Option<Owner> {
    (!principal.scopes.allows(Scope::Admin)).then(|| principal.owner.clone())
}

/// What a row says of the configuration.
fn fill_in(row: &mut SessionRow, catalog: &Catalog) {
    row.model = catalog.answers(&row.session.agent(), &row.settings);
}

/// What the log says of a session that may not have been written yet.
pub(super) async fn described(
    store: &Addr<Store>,
    session: &SessionKey,
    principal: &Principal,
) -> Result<Option<Described>, Error> {
    match ask(store, by(principal, Describe { session: session.clone() })).await?? {
        Some(described) if !principal.sees(&described.owner) => Err(no_such(session, principal)),
        described => Ok(described),
    }
}

/// What is asked of the log for this principal, in its owner's turn.
fn by<M>(principal: &Principal, question: M) -> AskedBy<M> {
    AskedBy { owner: principal.owner.clone(), question }
}

/// Answers a request when others have answered.
pub(super) fn answer<R: Into<Reply>>(
    ctx: &mut Context<SessionSupervisor>,
    asker: Asker,
    reply: impl Future<Output = Result<R, Error>> + 'static,
) {
    ctx.spawn(actix::fut::wrap_future(async move {
        asker.reply(reply.await.map(Into::into));
    }));
}

pub(super) fn no_such(session: &SessionKey, who: &Principal) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {}", session.seen_by(&who.owner)))
}

/// The same; an operator is told to whom those belong that have the name in other spaces.
pub(crate) async fn missing(store: &Addr<Store>, session: &SessionKey, who: &Principal) -> Error {
    let error = no_such(session, who);
    if !who.is_operator() || !session.is_of(&Owner::Admins) {
        return error;
    }
    let others = ask(store, Namesakes(session.clone())).await.flatten().unwrap_or_default();
    let others: Vec<String> =
        others.iter().map(|other| format!("{other} belongs to {}", other.owner().as_str())).collect();
    if others.is_empty() {
        return error;
    }
    Error { message: format!("{}; {}", error.message, others.join(", ")), ..error }
}

/// The same of one that was named by an id.
fn no_such_id(id: &str) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {}", &id[..id.floor_char_boundary(64)]))
}
