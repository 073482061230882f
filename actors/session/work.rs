//! What follows from the state of a conversation: asking the model, and calling tools.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use actix::prelude::*;
use clawmux_core::conversation::lane;
use clawmux_core::conversation::system_prompt::system_prompt;
use clawmux_core::conversation::turn::Work;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{CallId, PluginName, RunId, SessionKey};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{ChatRequest, Delta};
use clawmux_core::tools::audit::{self, CallRecord, CallUsage};
use clawmux_core::tools::built_in::ToolGroup;
use clawmux_core::tools::call::{ToolCall, ToolResult, ToolSpec};
use clawmux_core::tools::{long_result, messenger};
use futures::future::LocalBoxFuture;
use futures::stream::LocalBoxStream;
use futures::{FutureExt, StreamExt, TryFutureExt};

use super::audience::Serves as _;
use super::{Session, Writing};
use crate::nodes::{CallNode, Nodes};
use crate::provider_supervisor::{Chat, ProviderSupervisor};
use crate::runtime::ask::gone;
use crate::runtime::clock;
use crate::runtime::lane::LaneGuard;
use crate::runtime::meters::{CallEnd, OTHER};
use crate::sandbox_supervisor::{CallTool, SandboxSupervisor};
use crate::skills;

type Answer = LocalBoxStream<'static, Result<Vec<Delta>, Error>>;

/// Where an answer is while it is read: taken out, it ends at once, and its cost is known.
type Slot = Rc<RefCell<Option<Answer>>>;

/// The work under way.
pub(super) enum Doing {
    Nothing,
    /// Seeing to what the model is shown, before it is asked for the first time.
    Preparing {
        run: RunId,
        future: SpawnHandle,
    },
    /// Asking the model; nothing is being read while the last piece is written.
    Asking {
        run: RunId,
        step: usize,
        future: Option<SpawnHandle>,
        answer: Slot,
        /// What the session had spent before.
        before: Usage,
    },
    /// Calling tools.
    Acting {
        run: RunId,
        step: usize,
        calls: Vec<Making>,
    },
}

impl Doing {
    /// Whether something is under way that a session which stops waits for: not for approvals.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Nothing | Self::Preparing { .. } => false,
            Self::Asking { .. } => true,
            Self::Acting { calls, .. } => calls.iter().any(|making| !making.is_over),
        }
    }
}

/// A call that was begun: it is not begun again.
pub(super) struct Making {
    call: CallId,
    /// What is called.
    name: PluginName,
    /// The name it is counted by.
    tool: PluginName,
    /// The digest of its input.
    input: [u8; 32],
    begun: Instant,
    future: SpawnHandle,
    is_over: bool,
}

impl Making {
    /// What is kept of the call, which gave this result; none where it was cut off.
    fn over(
        &self,
        run: &RunId,
        session: &SessionKey,
        usage: CallUsage,
        result: Option<&ToolResult>,
    ) -> CallRecord {
        CallRecord {
            at: clock::now(),
            session: session.clone(),
            run: run.clone(),
            call: self.call.clone(),
            tool: self.name.clone(),
            input: self.input,
            usage,
            took: self.begun.elapsed(),
            is_error: result.is_none_or(|result| result.is_error),
            result: audit::digest(result.map_or(&[], |result| result.content.as_bytes())),
        }
    }
}

impl Session {
    /// Takes the agent as it is now for a run that begins; none where there is no such agent any more.
    fn take_profile(&mut self, run: &RunId) -> Option<()> {
        if self.profiled.as_ref() != Some(run) {
            self.profile = self.agent_configs.agents.get(&self.profile.id)?.clone();
            self.soul = self.profile.soul.text();
            self.profiled = Some(run.clone());
        }
        Some(())
    }

    /// Ends work that no longer follows from the state: the run was aborted or has ended.
    pub(super) fn end_stale_work(&mut self, ctx: &mut Context<Self>) {
        let wanted = match (&self.doing, self.conversation.work()) {
            (Doing::Nothing, _) => true,
            (Doing::Preparing { run, .. }, _) => self.conversation.is_unasked(run),
            (Doing::Asking { run, step, .. }, Some((now, Work::Ask { step: at }))) => {
                run == now && *step == at
            }
            (Doing::Acting { run, step, .. }, Some((now, Work::Act { step: at, .. }))) => {
                run == now && *step == at
            }
            _ => false,
        };
        if !wanted {
            self.end_work(ctx);
        }
    }

    /// Ends what is under way. Gives what an answer that is cut off by it has cost.
    pub(super) fn end_work(&mut self, ctx: &mut Context<Self>) -> Usage {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => Usage::default(),
            Doing::Preparing { future, .. } => {
                ctx.cancel_future(future);
                Usage::default()
            }
            Doing::Asking { future, answer, before, .. } => {
                future.map(|future| ctx.cancel_future(future));
                drop(answer.take());
                self.account.usage().since(before)
            }
            Doing::Acting { run, calls, .. } => {
                for making in calls.into_iter().filter(|making| !making.is_over) {
                    let tool = making.tool.as_str();
                    self.deps.meters.called(tool, CallEnd::Cancelled, making.begun.elapsed());
                    ctx.cancel_future(making.future);
                    self.call_off(&making.name, &run, &making.call);
                    self.deps.log_writer.record_call(making.over(
                        &run,
                        self.conversation.key(),
                        CallUsage::default(),
                        None,
                    ));
                }
                Usage::default()
            }
        }
    }

    /// Does what the state says is to be done, where it is not under way.
    ///
    /// Asking the model need not wait until the prompt is written: it has no effect that could be
    /// done twice, and nothing that is heard gets ahead of the prompt in the log. Calling tools
    /// does wait: their intent, and the approval of those that need one, must be in the log before. The answer is read on
    /// once its last piece is shown or being written, and no further.
    ///
    /// Calls belong to the step that asks for them: one that drains makes those whose intent is in the log, for whoever
    /// went on would have to take them for interrupted.
    pub(super) fn work(&mut self, ctx: &mut Context<Self>) {
        if let Doing::Asking { future: future @ None, answer, run, step, .. } = &mut self.doing {
            if !self.conversation.has_unseen() {
                *future = Some(listen(answer.clone(), run.clone(), *step, ctx));
            }
            return;
        }
        match self.conversation.work() {
            // Whoever goes on with it asks.
            Some((_, Work::Ask { .. })) if self.draining => {}
            Some((run, Work::Ask { step })) if matches!(self.doing, Doing::Nothing) => {
                let run = run.clone();
                match self.take_profile(&run) {
                    // Until it is known which skills there are, nothing is asked.
                    Some(()) if self.skills_told(&run, ctx).is_none() => {}
                    Some(()) if step == 0 && self.prepared.as_ref() != Some(&run) => self.prepare(run, ctx),
                    Some(()) => self.ask(run, step, ctx),
                    None => {
                        let why = format!("there is no agent named {} any more", self.profile.id);
                        self.unheard(&run, step, ErrorCode::NotFound.error(why), ctx);
                    }
                }
            }
            Some((run, Work::Act { step, calls })) if self.is_written() => {
                let run = run.clone();
                self.act(run, step, calls, ctx);
            }
            _ => {}
        }
    }

    /// What the model is told of skills in this run, the same in each of its steps; none while it is being looked
    /// which there are.
    fn skills_told(&mut self, run: &RunId, ctx: &mut Context<Self>) -> Option<Arc<str>> {
        if !self.profile.skills.is_granted {
            return Some(Arc::default());
        }
        if let Some((_, told)) = self.skills_told.as_ref().filter(|(of, _)| of == run) {
            return told.clone();
        }
        self.skills_told = Some((run.clone(), None));
        let (agent, of) = (self.profile.skills.clone(), run.clone());
        let told = skills::off_the_arbiter(move || skills::told(&agent));
        ctx.spawn(told.into_actor(self).map(move |told, session, ctx| {
            let told = told.unwrap_or_else(|error| {
                tracing::warn!(session = %session.conversation.key(), %error, "the run goes on without skills");
                String::new()
            });
            if let Some((_, waiting @ None)) = session.skills_told.as_mut().filter(|(run, _)| *run == of) {
                *waiting = Some(told.into());
            }
            session.proceed(ctx);
        }));
        None
    }

    /// Asks the model.
    fn ask(&mut self, run: RunId, step: usize, ctx: &mut Context<Self>) {
        let request = ChatRequest {
            model: String::new(),
            system: self.system_prompt(),
            messages: self.conversation.conversation(),
            tools: Vec::new(),
            max_tokens: self.max_tokens(),
            thinking: self.conversation.thinking().unwrap_or(Thinking::Off),
            cache_marks: true,
        };
        let profile = self.profile.clone();
        let channels = self.channels();
        let specs = profile.built_in.iter().flat_map(|group| group.specs(&channels));
        let mut built_in: Vec<ToolSpec> = specs.collect();
        if self.has_messenger() && !profile.built_in.contains(&ToolGroup::Sessions) {
            built_in.push(messenger::spec(&channels));
        }
        built_in.extend(self.conversation.has_long_results().then(long_result::spec));
        let deps = self.deps.clone();
        let mut chat = Chat {
            session: self.conversation.key().clone(),
            run: run.clone(),
            agent: self.profile.id.clone(),
            models: self.profile.models.clone(),
            model: self.model(),
            request,
            account: self.account.clone(),
        };
        let asked = async move {
            let offered = &mut chat.request.tools;
            offered.extend(deps.tools.find(profile.plugins()).await?);
            offered.extend(deps.connected.tools(&profile.node_tools));
            offered.extend(deps.mcp.find(&profile.mcp_tools).await);
            offered.extend(built_in);
            deps.providers.send(chat).await.map_err(|_| gone::<ProviderSupervisor>())?
        };
        let answer = Rc::new(RefCell::new(Some(asked.try_flatten_stream().boxed_local())));
        let future = Some(listen(answer.clone(), run.clone(), step, ctx));
        self.doing = Doing::Asking { run, step, future, answer, before: self.account.usage() };
    }

    /// What its agent is told of itself.
    pub(super) fn system_prompt(&self) -> String {
        let told = self.skills_told.as_ref().filter(|_| self.profile.skills.is_granted);
        let skills = told.and_then(|(_, told)| told.as_deref()).unwrap_or_default();
        let assignment = self.conversation.settings().assignment.as_ref();
        let brief = assignment.and_then(|assignment| assignment.brief()).unwrap_or_default();
        system_prompt(&self.soul, skills, &brief, self.conversation.context_tokens())
    }

    /// The most tokens of one answer: as many as the prompt wants, and the agent may give.
    pub(super) fn max_tokens(&self) -> u32 {
        let most = self.profile.max_tokens;
        self.conversation.max_tokens().map_or(most, |wanted| wanted.min(most))
    }

    /// The model that is asked first.
    pub(super) fn first_model(&self) -> Option<ModelRef> {
        self.model().or_else(|| self.profile.models.first().cloned())
    }

    /// The model that was chosen for the prompt or for the session.
    pub(super) fn model(&self) -> Option<ModelRef> {
        let set = self.conversation.model()?;
        self.agent_configs.catalog.find(self.profile.id.as_str(), set).ok()
    }

    /// A piece of the answer, or its end.
    fn heard(
        &mut self,
        run: &RunId,
        step: usize,
        piece: Option<Result<Vec<Delta>, Error>>,
        ctx: &mut Context<Self>,
    ) {
        match piece {
            Some(Ok(deltas)) => {
                if let Doing::Asking { future, .. } = &mut self.doing {
                    *future = None;
                }
                let tools = self.profile.toolbox(self.has_messenger());
                self.conversation.said(clock::now(), run, step, deltas, tools);
                self.let_see(ctx);
                if self.writing == Writing::Unit || self.conversation.has_unseen() {
                    return self.proceed(ctx);
                }
                // Nothing but text, which is shown: nothing else follows from it.
                self.work(ctx);
                self.catch_up(ctx);
            }
            Some(Err(error)) => self.unheard(run, step, error, ctx),
            None => self.unheard(run, step, ErrorCode::Provider.error("the answer was cut off"), ctx),
        }
    }

    /// The model can't be heard, or no more. The client is told too, but it is the operator who can
    /// do something about most causes.
    fn unheard(&mut self, run: &RunId, step: usize, error: Error, ctx: &mut Context<Self>) {
        // Quoted: it may repeat what a provider said.
        let (session, message) = (self.conversation.key(), &error.message);
        if error.code == ErrorCode::BudgetExceeded {
            // That a budget is used up is in the log once; this may be each minute, of each job.
            tracing::debug!(%session, %run, error = ?message, "the run failed");
        } else {
            tracing::warn!(%session, %run, error = ?message, "the run failed");
        }
        let partial = self.end_work(ctx);
        self.conversation.failed(clock::now(), run, step, error, partial);
        self.proceed(ctx);
    }

    /// Calls tools: all of these that were not begun yet, at once.
    fn act(&mut self, run: RunId, step: usize, calls: Vec<ToolCall>, ctx: &mut Context<Self>) {
        let mut begun = match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Acting { calls, .. } => calls,
            Doing::Nothing | Doing::Preparing { .. } | Doing::Asking { .. } => Vec::new(),
        };
        for call in calls {
            if begun.iter().any(|making| making.call == call.id) {
                continue;
            }
            let (id, name, tool) = (call.id.clone(), call.name.clone(), self.offered(&call.name));
            let input = audit::digest(call.input.to_string().as_bytes());
            let result = self.call(run.clone(), call);
            let (of, returning) = (run.clone(), id.clone());
            let returned = result.into_actor(self).map(move |(result, usage), session, ctx| {
                if let Doing::Acting { calls, .. } = &mut session.doing
                    && let Some(making) = calls.iter_mut().find(|making| making.call == returning)
                {
                    making.is_over = true;
                    let end = if result.is_error { CallEnd::Error } else { CallEnd::Ok };
                    session.deps.meters.called(making.tool.as_str(), end, making.begun.elapsed());
                    let record = making.over(&of, session.conversation.key(), usage, Some(&result));
                    session.deps.log_writer.record_call(record);
                }
                session.conversation.returned(clock::now(), &of, result);
                session.proceed(ctx);
            });
            let future = ctx.spawn(returned);
            begun.push(Making { call: id, name, tool, input, begun: Instant::now(), future, is_over: false });
        }
        self.doing = Doing::Acting { run, step, calls: begun };
    }

    /// The name of a tool as it is counted: a model may call what it was never offered.
    fn offered(&self, tool: &PluginName) -> PluginName {
        let is_offered = self.profile.toolbox(false).offers(tool);
        if is_offered { tool.clone() } else { PluginName::from(OTHER) }
    }

    /// Whether the run under way is offered `send_message`.
    pub(super) fn has_messenger(&self) -> bool {
        self.conversation.lane().is_some_and(|of| of.as_str() == lane::XENO)
    }

    /// Begins a run that has a spot in a lane when its turn comes there.
    pub(super) fn await_turn(&mut self, run: RunId, mut lane_guard: LaneGuard, ctx: &mut Context<Self>) {
        if lane_guard.has_turn() {
            self.conversation.admit(clock::now(), &run);
        } else {
            let admitted = run.clone();
            let turn = lane_guard.turn().into_actor(self);
            ctx.spawn(turn.map(move |turn, session, ctx| {
                if turn.is_ok() {
                    session.conversation.admit(clock::now(), &admitted);
                    session.proceed(ctx);
                }
            }));
        }
        self.spots.insert(run, lane_guard);
    }

    /// Calls one tool: one that is built in, one of an MCP server, a granted command of a node, or a plugin.
    fn call(&self, run: RunId, call: ToolCall) -> LocalBoxFuture<'static, (ToolResult, CallUsage)> {
        let (session, id) = (self.conversation.key().clone(), call.id.clone());
        let lost = |error: Error| ToolResult { call: id, content: error.message, is_error: true };
        if let Some(made) = self.call_built_in(&run, &call) {
            return made.map(|result| (result, CallUsage::default())).boxed_local();
        }
        let mut granted = self.profile.mcp_tools.iter();
        if let Some(grant) = granted.find(|grant| grant.offers(&call.name)) {
            let (mcp, server) = (self.deps.mcp.clone(), grant.server.clone());
            return async move { mcp.call(&server, call).await }.boxed_local();
        }
        match self.profile.node_tools.iter().find(|tool| tool.name == call.name).cloned() {
            Some(tool) => {
                let sent = self.deps.nodes.send(CallNode { session, run, tool, call });
                let result = async move { sent.await.unwrap_or_else(|_| lost(gone::<Nodes>())) };
                result.map(|result| (result, CallUsage::default())).boxed_local()
            }
            None => {
                let sent = self.deps.sandbox.send(CallTool { session, run, call });
                let result = async move {
                    match sent.await {
                        Ok(calling) => calling.result().await,
                        Err(_) => (lost(gone::<SandboxSupervisor>()), CallUsage::default()),
                    }
                };
                result.boxed_local()
            }
        }
    }
}

/// Waits for the next piece of an answer.
fn listen(answer: Slot, run: RunId, step: usize, ctx: &mut Context<Session>) -> SpawnHandle {
    let next = poll_fn(move |task| match &mut *answer.borrow_mut() {
        Some(answer) => answer.poll_next_unpin(task),
        // Taken out: this is being cancelled.
        None => Poll::Pending,
    });
    ctx.spawn(actix::fut::wrap_future(next).map(move |piece, session: &mut Session, ctx| {
        session.heard(&run, step, piece, ctx);
    }))
}
