//! What is asked: for the session it is about, or answered here.

use actix::dev::SendError;
use actix::prelude::*;
use clawmux_core::auth::{Owner, Principal, Scope};
use clawmux_core::command::{Command, Submit, Target};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, SessionKey};
use clawmux_core::reply::{History, Reply};
use clawmux_core::session::Submission;

use super::order::{Waiting, closed};
use super::{Asked, SessionSupervisor};
use crate::ask::ask;
use crate::configuration::Configure;
use crate::deliver::Asker;
use crate::devices::Manage;
use crate::hub::{GetOverview, Tell};
use crate::nodes::{Invoke, ListNodes, Resulted};
use crate::provider_supervisor::BudgetStatus;
use crate::sandbox_supervisor::{ListPlugins, LoadPlugin, UnloadPlugin};
use crate::session::{Colleagues, Order, Routed, Watcher};
use crate::store::{Describe, Described, ListSessions, ReadHistory, Store, UsageDays};

/// How many bytes a history has at most as JSON, so that a client that does not read it costs no
/// more than it may; of the newest message there is as much in it as fits.
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// Sessions in one list, and how many bytes they take at most: so much each besides its key.
const LIST_MAX: usize = 1000;
const LIST_BYTES_MAX: usize = 256 * 1024;
const SUMMARY_BYTES: usize = 128;

impl SessionSupervisor {
    /// Takes a request: to its session, or to whoever answers it.
    pub(super) fn dispatch(&mut self, request: Asked, ctx: &mut Context<Self>) {
        let Asked { asker, principal, command, arbiter } = request;
        let target = match &command {
            Command::Submit(Submit { target, .. })
            | Command::Abort { target, .. }
            | Command::Attach { target, .. }
            | Command::Detach { target, .. }
            | Command::Stop { target }
            | Command::Clear { target }
            | Command::DescribeSession { target }
            | Command::Transcript { target, .. }
            | Command::CreateSession { target, .. }
            | Command::Configure { target, .. }
            | Command::Reset { target }
            | Command::Compact { target, .. }
            | Command::Delete { target }
            | Command::Inject { target, .. }
            | Command::History { target, .. }
            | Command::Budget { target: Some(target) } => Some(target),
            _ => None,
        };
        let is_about_the_daemon =
            matches!(command, Command::Config(_) | Command::LogTail { .. } | Command::UsageDays { .. });
        if is_about_the_daemon && principal.owner != Owner::Admins {
            // They tell of everybody's doings; who may read has a right to his own.
            return asker.reply(Err(ErrorCode::Forbidden.error("this is for operators of the daemon")));
        }
        let session = match target.map(|target| self.resolve(target)).transpose() {
            Ok(session) => session,
            Err(error) => return asker.reply(Err(error)),
        };
        match (command, session) {
            // One with an idempotency key may be a repetition, which is told of its run.
            (Command::Submit(submit), _) if self.closed && submit.idempotency_key.is_none() => {
                asker.reply(Err(closed()));
            }
            (Command::Submit(submit), Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                let order = Order::Submit(Submission {
                    run: submit.run,
                    content: submit.content,
                    owner: principal.owner.clone(),
                    idempotency_key: submit.idempotency_key.clone(),
                    attachments: submit.attachments,
                    thinking: submit.thinking,
                });
                let owner = principal.owner.clone();
                let prompt =
                    Waiting { session, routed: Routed { asker, principal, order, held: None }, arbiter };
                match submit.idempotency_key {
                    Some(key) => self.submit_once((owner, key), prompt, ctx),
                    None => match self.fault() {
                        // It would only make the session fall.
                        Some(fault) => prompt.routed.asker.reply(Err(fault)),
                        None => self.route_in_turn(prompt, ctx),
                    },
                }
            }
            (Command::Abort { run, .. }, Some(session)) => {
                self.order(Order::Abort { run }, session, (asker, principal), arbiter, ctx);
            }
            (Command::Clear { .. }, Some(session)) => {
                self.order(Order::Clear, session, (asker, principal), arbiter, ctx);
            }
            (Command::Attach { after, .. }, Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                self.order(Order::Attach { after }, session, (asker, principal), arbiter, ctx);
            }
            (Command::Detach { follow, .. }, Some(session)) => {
                self.order(Order::Detach { follow }, session, (asker, principal), arbiter, ctx);
            }
            (Command::Stop { .. }, Some(session)) => {
                self.order(Order::Stop, session, (asker, principal), arbiter, ctx);
            }
            (Command::History { limit, before, .. }, Some(session)) => {
                let store = self.setup.colleagues.store.clone();
                answer(ctx, asker, async move {
                    let max_bytes = HISTORY_BYTES_MAX;
                    let history = match described(&store, &session, &principal).await? {
                        Some(_) => ask(&store, ReadHistory { session, limit, before, max_bytes }).await??,
                        None => History { session, messages: Vec::new(), more: false },
                    };
                    Ok(Reply::History(history))
                });
            }
            (Command::Sessions, _) => {
                let store = self.setup.colleagues.store.clone();
                let owner = (!principal.scopes.allows(Scope::Admin)).then(|| principal.owner.clone());
                answer(ctx, asker, async move {
                    let sessions =
                        ask(&store, ListSessions { limit: LIST_MAX, owner, before: None }).await??;
                    let mut left = LIST_BYTES_MAX;
                    let fitting = sessions.into_iter().map_while(|listed| {
                        left = left.checked_sub(listed.summary.session.as_str().len() + SUMMARY_BYTES)?;
                        Some(listed.summary)
                    });
                    Ok(Reply::Sessions(fitting.collect()))
                });
            }
            (Command::Budget { .. }, session) => {
                let Colleagues { store, providers, .. } = self.setup.colleagues.clone();
                answer(ctx, asker, async move {
                    let session_spent = match session {
                        None => None,
                        Some(session) => {
                            let described = described(&store, &session, &principal).await?;
                            Some(described.map_or(0, |described| described.spent.total()))
                        }
                    };
                    Ok(Reply::Budget(ask(&providers, BudgetStatus { session_spent }).await?))
                });
            }
            (Command::Watch, _) => {
                let Some(ticket) = asker.ticket() else { return };
                let watcher = Watcher { client: asker.client().clone(), ticket, principal };
                let watchers = &self.setup.colleagues.watchers;
                if watchers.is_watching(watcher.client.connection) {
                    return asker.reply(Err(ErrorCode::Conflict.error("this connection watches already")));
                }
                // Before any session can tell it something.
                asker.reply(Ok(Reply::Watching));
                watchers.add(watcher);
            }
            (Command::Unwatch { watch }, _) => {
                self.setup.colleagues.watchers.remove(asker.client().connection, Some(watch));
                asker.reply(Ok(Reply::Unwatched));
            }
            (Command::Config(request), _) => {
                let configuration = self.setup.configuration.clone();
                answer(ctx, asker, async move {
                    let configure = Configure { request, by: principal.name };
                    Ok(Reply::Config(Box::new(ask(&configuration, configure).await??)))
                });
            }
            (Command::LogTail { cursor, lines_max, bytes_max }, _) => {
                asker.reply(Ok(Reply::LogTail(self.setup.log.tail(cursor, lines_max, bytes_max))));
            }
            (Command::UsageDays { since }, _) => {
                let store = self.setup.colleagues.store.clone();
                answer(
                    ctx,
                    asker,
                    async move { Ok(Reply::UsageDays(ask(&store, UsageDays { since }).await??)) },
                );
            }
            (Command::Status, _) => {
                let status = self.status();
                answer(ctx, asker, async move { status.await.map(Reply::Status) });
            }
            (Command::Overview, _) => {
                hand_on(self.setup.hub.try_send(GetOverview { asker, principal }));
            }
            (Command::Tell(told), _) => hand_on(self.setup.hub.try_send(Tell { asker, told: *told })),
            (Command::Nodes, _) => {
                let nodes = self.setup.colleagues.nodes.clone();
                answer(ctx, asker, async move { Ok(Reply::Nodes(ask(&nodes, ListNodes(principal)).await?)) });
            }
            (Command::InvokeNode(invoke), _) => {
                hand_on(self.setup.colleagues.nodes.try_send(Invoke { asker, principal, invoke: *invoke }));
            }
            (Command::NodeResult { invocation, outcome }, _) => {
                let nodes = self.setup.colleagues.nodes.clone();
                let connection = asker.client().connection;
                answer(ctx, asker, async move {
                    ask(&nodes, Resulted { connection, invocation, outcome }).await?;
                    Ok(Reply::Noted)
                });
            }
            (Command::Plugins, _) => {
                let sandbox = self.setup.colleagues.sandbox.clone();
                answer(ctx, asker, async move { Ok(Reply::Plugins(ask(&sandbox, ListPlugins).await?)) });
            }
            (Command::LoadPlugin { name, path }, _) => {
                let sandbox = self.setup.colleagues.sandbox.clone();
                answer(ctx, asker, async move {
                    Ok(Reply::PluginLoaded(ask(&sandbox, LoadPlugin { name, path }).await??))
                });
            }
            (Command::UnloadPlugin { name }, _) => {
                let sandbox = self.setup.colleagues.sandbox.clone();
                answer(ctx, asker, async move {
                    ask(&sandbox, UnloadPlugin { name: name.clone() }).await??;
                    Ok(Reply::PluginUnloaded { name })
                });
            }
            (Command::FollowRun { run }, _) => {
                self.followed.entry(asker.client().connection).or_default();
                self.follow_run(&run, (asker, principal), arbiter, ctx);
            }
            (Command::Exists { session }, _) => {
                let store = self.setup.colleagues.store.clone();
                answer(ctx, asker, async move {
                    match described(&store, &session, &principal).await {
                        Ok(described) => Ok(Reply::Exists(described.is_some())),
                        Err(error) if error.code == ErrorCode::NotFound => Ok(Reply::Exists(false)),
                        Err(error) => Err(error),
                    }
                });
            }
            (Command::Device(command), _) => {
                let manage = Manage { command, principal, asker };
                // What does not fit is answered as it is dropped.
                let _ = self.setup.devices.try_send(manage);
            }
            (
                Command::ListSessions(_)
                | Command::DescribeSession { .. }
                | Command::Transcript { .. }
                | Command::Preview { .. }
                | Command::CreateSession { .. }
                | Command::Configure { .. }
                | Command::Reset { .. }
                | Command::Compact { .. }
                | Command::Delete { .. }
                | Command::Inject { .. },
                _,
            ) => asker.reply(Err(ErrorCode::Unavailable.error("not available yet"))),
            (
                Command::Submit(_)
                | Command::Abort { .. }
                | Command::Attach { .. }
                | Command::Detach { .. }
                | Command::Stop { .. }
                | Command::Clear { .. }
                | Command::History { .. },
                None,
            ) => {
                unreachable!("a command with a target was resolved")
            }
        }
    }

    /// The session a target names.
    fn resolve(&self, target: &Target) -> Result<SessionKey, Error> {
        match target {
            Target::Route(route) => self.setup.router.session_key(route),
            Target::Session(key) => {
                if self.setup.agents.contains_key(&AgentId::from(&*key.agent())) {
                    Ok(key.clone())
                } else {
                    Err(ErrorCode::NotFound.error(format!("session {key}: no agent named {}", key.agent())))
                }
            }
        }
    }
}

/// What the log says of a session that may not have been written yet.
pub(super) async fn described(
    store: &Addr<Store>,
    session: &SessionKey,
    principal: &Principal,
) -> Result<Option<Described>, Error> {
    match ask(store, Describe { session: session.clone() }).await?? {
        Some(described) if !principal.sees(&described.owner) => Err(no_such(session)),
        described => Ok(described),
    }
}

/// Answers a request when others have answered.
pub(super) fn answer(
    ctx: &mut Context<SessionSupervisor>,
    asker: Asker,
    reply: impl Future<Output = Result<Reply, Error>> + 'static,
) {
    ctx.spawn(actix::fut::wrap_future(async move {
        asker.reply(reply.await);
    }));
}

/// For one who answers by itself; where it is too busy, what it was sent says so by being dropped.
fn hand_on<T>(sent: Result<(), SendError<T>>) {
    drop(sent);
}

pub(super) fn no_such(session: &SessionKey) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {session}"))
}
