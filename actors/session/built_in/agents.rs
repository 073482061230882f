//! Calls of `agent_run` ([`clawmux_core::tools::agents`]).

use std::time::Duration;

use actix::Recipient;
use clawmux_core::agents::subagent::{Await, Priority, Spawn, Stop, SubAgentCommand, SubAgentReply, Task};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::SubAgentId;
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::target::Target;
use clawmux_core::tools::agents::answered;

use super::asking::{ask, ask_within};
use crate::runtime::dispatch::Request;

/// How long an agent may take that somebody waits for.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// An agent that is to be put to work for a call.
pub(super) struct RunAgent {
    /// The id that follows from the call.
    pub(super) id: SubAgentId,
    /// The session it works for.
    pub(super) parent: Target,
    /// Who works.
    pub(super) kind: String,
    /// What it is to do.
    pub(super) prompt: String,
    /// On whose behalf.
    pub(super) principal: Principal,
    /// Who knows the agents.
    pub(super) agents: Recipient<Request<SubAgentCommand>>,
}

impl RunAgent {
    /// Puts it to work, or finds it at work already, and waits for its answer.
    ///
    /// # Errors
    /// Why there is none, for the model.
    pub(super) async fn make(self) -> Result<String, String> {
        let Self { id, parent, kind, prompt, principal, agents } = self;
        let refused = |error: Error| error.to_string();
        let spawn = Spawn {
            parent: Some(parent),
            kind,
            task: Task { description: prompt, priority: Priority::default() },
            tokens_max: None,
            model: None,
            call: Some(id.clone()),
        };
        ask(&agents, SubAgentCommand::Spawn(Box::new(spawn)), principal.clone()).await.map_err(refused)?;
        let wait = SubAgentCommand::Await(Await { agent: id.clone() });
        match ask_within(TIMEOUT, &agents, wait, principal.clone()).await {
            Ok(Reply::SubAgent(SubAgentReply::Status(status))) => answered(&status),
            Ok(_) => Err("internal error".into()),
            Err(error) if error.code == ErrorCode::Timeout => {
                let minutes = TIMEOUT.as_secs() / 60;
                stop(&agents, id, principal, "it took too long").await;
                Err(format!("the agent was not done within {minutes} minutes: it was stopped"))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Ends an agent nobody waits for any more.
pub(super) async fn stop(
    agents: &Recipient<Request<SubAgentCommand>>,
    agent: SubAgentId,
    principal: Principal,
    why: &str,
) {
    let stop = Stop { agent: agent.clone(), reason: Some(why.to_owned()), force: true };
    match ask(agents, SubAgentCommand::Stop(stop), principal).await {
        // It was never put to work.
        Err(error) if error.code != ErrorCode::NotFound => {
            tracing::warn!(%agent, %error, "an agent that nobody waits for was not stopped");
        }
        _ => {}
    }
}
