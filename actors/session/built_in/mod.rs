//! Calls of the tools that are built in ([`clawmux_core::tools::built_in`]): done here, without a plugin.
//!
//! On behalf of whom the session belongs to, whoever prompted the run.

mod agents;
mod asking;
mod jobs;
mod memory;
mod send_message;
mod sessions;

use clawmux_core::agents::registry;
use clawmux_core::error::Error;
use clawmux_core::ids::{AgentId, CallId, Owner, PluginName, RunId, SubAgentId};
use clawmux_core::memory::MemoryCommand;
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job;
use clawmux_core::scope::Scopes;
use clawmux_core::target::Target;
use clawmux_core::tools::built_in::is_built_in;
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::skills::ReadSkill;
use clawmux_core::tools::{
    agents as agent_tools, jobs as job_tools, long_result, memory as memory_tools, messenger,
    sessions as session_tools, skills as skill_tools,
};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::Session;
use crate::skills;
use send_message::SendMessage;

/// What a call came to: the result, or why it was not made, both for the model.
type Made = LocalBoxFuture<'static, Result<String, String>>;

impl Session {
    /// Makes a call of a tool that is built in; none where it is of another tool.
    pub(super) fn call_built_in(
        &self,
        run: &RunId,
        call: &ToolCall,
    ) -> Option<LocalBoxFuture<'static, ToolResult>> {
        let name = call.name.as_str();
        if name == long_result::NAME {
            return Some(std::future::ready(self.conversation.read_result(call)).boxed_local());
        }
        let (run, id) = (run.clone(), call.id.clone());
        let made: Made = match name {
            messenger::NAME => self.send_message(run, call.clone()),
            agent_tools::RUN => self.run_agent(&run, call),
            job_tools::ADD | job_tools::LIST | job_tools::REMOVE => self.use_jobs(run, call.clone()),
            session_tools::LIST | session_tools::READ => {
                let own = self.conversation.key().clone();
                let requests = self.drop_guard.supervisor.requests.clone();
                sessions::make(requests, self.principal(), own, call.clone()).boxed_local()
            }
            skill_tools::READ => self.read_skill(call.clone()),
            memory_tools::SEARCH | memory_tools::SAVE => self.use_memory(run, call.clone()),
            _ => {
                debug_assert!(!is_built_in(name), "{name}");
                return None;
            }
        };
        let result = made.map(|made| {
            let is_error = made.is_err();
            ToolResult { call: id, content: made.unwrap_or_else(|why| why), is_error }
        });
        Some(result.boxed_local())
    }

    fn send_message(&self, run: RunId, call: ToolCall) -> Made {
        let message = SendMessage {
            run,
            call,
            owner: self.conversation.owner().clone(),
            answers_bring_messages: self.has_messenger(),
            channels: self.agent_configs.channels.iter().cloned().collect(),
            files: self.deps.files.clone(),
            sessions: self.drop_guard.supervisor.requests.clone(),
            voice: self.deps.channels.clone(),
        };
        message.make().boxed_local()
    }

    /// The channels over which its agent may speak: they are the operators'.
    pub(super) fn channels(&self) -> Vec<String> {
        match self.conversation.owner() {
            Owner::Admins => self.agent_configs.channels.iter().cloned().collect(),
            Owner::Credential(_) => Vec::new(),
        }
    }

    /// On whose behalf: never an operator, who would find and change what belongs to anybody.
    fn principal(&self) -> Principal {
        let owner = self.conversation.owner().clone();
        Principal { owner, unlimited: true, ..Principal::new("agent", Scopes::USER) }
    }

    /// On whose behalf memories are searched and saved.
    fn memory_principal(&self) -> Principal {
        Principal { owner: self.conversation.key().memory_owner(), ..self.principal() }
    }

    fn run_agent(&self, run: &RunId, call: &ToolCall) -> Made {
        let asked = agent_tools::RunAgent::read(&call.input).and_then(|asked| {
            let own = self.profile.id.as_str();
            let kind = asked.agent.unwrap_or_else(|| own.to_owned());
            let there = &self.agent_configs.agents;
            if !there.contains_key(&AgentId::from(kind.as_str())) {
                let mut names: Vec<&str> = there.keys().map(AgentId::as_str).collect();
                names.sort_unstable();
                return Err(format!("there is no agent {kind:?}: there are {}", names.join(", ")));
            }
            Ok((kind, asked.prompt))
        });
        let (kind, prompt) = match asked {
            Ok(asked) => asked,
            Err(why) => return std::future::ready(Err(why)).boxed_local(),
        };
        let run = agents::RunAgent {
            id: SubAgentId::of_call(run, &call.id),
            parent: Target::Session(self.conversation.key().clone()),
            kind,
            prompt,
            principal: self.principal(),
            agents: self.drop_guard.supervisor.sub_agents.clone(),
        };
        run.make().boxed_local()
    }

    /// Ends what a call of a built-in tool has begun elsewhere, where the call is called off.
    pub(super) fn call_off(&self, name: &PluginName, run: &RunId, call: &CallId) {
        if name.as_str() == agent_tools::RUN {
            let agents = self.drop_guard.supervisor.sub_agents.clone();
            let (agent, principal) = (SubAgentId::of_call(run, call), self.principal());
            actix::spawn(async move {
                agents::stop(&agents, agent, principal, "whoever waited for it was stopped").await;
            });
        }
    }

    fn use_jobs(&self, run: RunId, call: ToolCall) -> Made {
        let session = self.conversation.key().clone();
        let is_of_job = self.conversation.idempotency_key().is_some_and(job::is_of_job);
        let adds_none = is_of_job || session.channel() == registry::CHANNEL;
        let caller = job_tools::Caller { run, call: call.id.clone(), session, adds_none };
        jobs::make(self.deps.jobs.clone(), self.principal(), caller, call).boxed_local()
    }

    fn read_skill(&self, call: ToolCall) -> Made {
        let agent = self.profile.skills.clone();
        let read = async move {
            let asked = ReadSkill::read(&call.input)?;
            let read = skills::off_the_arbiter(move || skills::read(&agent, &asked)).await;
            read.map_err(|error| error.to_string())?
        };
        read.boxed_local()
    }

    /// Asks for what is remembered for whom the session is about.
    pub(super) fn ask_memory(
        &self,
        command: MemoryCommand,
    ) -> impl Future<Output = Result<Reply, Error>> + 'static {
        let (whom, principal) = (self.drop_guard.supervisor.memory.clone(), self.memory_principal());
        async move { asking::ask(&whom, command, principal).await }
    }

    fn use_memory(&self, run: RunId, call: ToolCall) -> Made {
        let whom = self.drop_guard.supervisor.memory.clone();
        memory::make(whom, self.memory_principal(), run, call).boxed_local()
    }
}
