//! From a connection to whoever answers: each area of commands has an actor whom it concerns.

use std::fmt;

use actix::dev::SendError;
use actix::{Message, Recipient};
use clawmux_core::access::pairing::DeviceCommand;
use clawmux_core::access::token::TokenCommand;
use clawmux_core::agents::subagent::SubAgentCommand;
use clawmux_core::agents::team::TeamCommand;
use clawmux_core::config::request::ConfigCommand;
use clawmux_core::conversation::approval::ApprovalCommand;
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::daemon::command::DaemonCommand;
use clawmux_core::daemon::operator::OperatorCommand;
use clawmux_core::error::{Detail, ErrorCode};
use clawmux_core::ids::{ConnectionId, Owner, SessionKey, Ticket};
use clawmux_core::memory::MemoryCommand;
use clawmux_core::memory::file::FileCommand;
use clawmux_core::principal::Principal;
use clawmux_core::request::command::Command;
use clawmux_core::schedule::job::JobCommand;
use clawmux_core::scope::Scope;
use clawmux_core::tools::node::NodeCommand;
use clawmux_core::tools::plugin::PluginCommand;

use crate::runtime::deliver::{Asker, Client};

/// A request of a client, scope and rate checked.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Request<C> {
    /// What is asked.
    pub command: C,
    /// On whose behalf.
    pub principal: Principal,
    /// Who waits for the answer.
    pub asker: Asker,
}

/// A request, and the session that it is about.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Located<C> {
    /// The request.
    pub request: Request<C>,
    /// The session that its command names; none where it names none.
    pub session: Option<SessionKey>,
}

/// A connection is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Gone {
    /// The connection.
    pub connection: ConnectionId,
}

/// Who answers the commands of each area.
#[derive(Clone)]
pub struct Routes {
    /// Sessions, and lists of them.
    pub sessions: Recipient<Request<SessionCommand>>,
    /// Tool calls that wait for a decision.
    pub approvals: Recipient<Request<ApprovalCommand>>,
    /// What is remembered.
    pub memory: Recipient<Request<MemoryCommand>>,
    /// Agents that work for a session.
    pub sub_agents: Recipient<Request<SubAgentCommand>>,
    /// Teams of agents.
    pub teams: Recipient<Request<TeamCommand>>,
    /// Uploads and downloads.
    pub files: Recipient<Request<FileCommand>>,
    /// What is done at set times.
    pub jobs: Recipient<Request<JobCommand>>,
    /// Paired devices.
    pub devices: Recipient<Request<DeviceCommand>>,
    /// Credentials that the daemon gave out.
    pub tokens: Recipient<Request<TokenCommand>>,
    /// Clients that offer commands.
    pub nodes: Recipient<Request<NodeCommand>>,
    /// Loaded plugins.
    pub plugins: Recipient<Request<PluginCommand>>,
    /// The configuration files.
    pub config: Recipient<Request<ConfigCommand>>,
    /// The daemon as a whole.
    pub daemon: Recipient<Request<DaemonCommand>>,
    /// What only operators ask for.
    pub operator: Recipient<Request<OperatorCommand>>,
}

impl Routes {
    /// Sends a command to whom it concerns. The answer comes to `client` under this ticket.
    ///
    /// # Errors
    /// Where whoever answers is too busy or gone: no answer comes then.
    pub fn send(
        &self,
        command: Command,
        principal: Principal,
        client: Client,
        ticket: Ticket,
    ) -> Result<(), SendError<()>> {
        let asker = Asker::new(client, ticket);
        if command.is_for_operators() && principal.owner != Owner::Admins {
            // It tells of everybody's doings; who may read has a right to his own.
            let error = ErrorCode::Forbidden.error("this is for operators of the daemon");
            asker.reply(Err(error.with(Detail::MissingScope(Scope::Admin))));
            return Ok(());
        }
        let who = (principal, asker);
        match command {
            Command::Session(command) => hand(&self.sessions, command, who),
            Command::Approval(command) => hand(&self.approvals, command, who),
            Command::Memory(command) => hand(&self.memory, command, who),
            Command::SubAgent(command) => hand(&self.sub_agents, command, who),
            Command::Team(command) => hand(&self.teams, command, who),
            Command::File(command) => hand(&self.files, command, who),
            Command::Job(command) => hand(&self.jobs, command, who),
            Command::Device(command) => hand(&self.devices, command, who),
            Command::Token(command) => hand(&self.tokens, command, who),
            Command::Node(command) => hand(&self.nodes, command, who),
            Command::Plugin(command) => hand(&self.plugins, command, who),
            Command::Config(command) => hand(&self.config, command, who),
            Command::Daemon(command) => hand(&self.daemon, command, who),
            Command::Operator(command) => hand(&self.operator, command, who),
        }
    }
}

fn hand<C: Send>(
    to: &Recipient<Request<C>>,
    command: C,
    (principal, asker): (Principal, Asker),
) -> Result<(), SendError<()>> {
    to.try_send(Request { command, principal, asker }).map_err(|error| match error {
        SendError::Full(request) => {
            request.asker.forget();
            SendError::Full(())
        }
        SendError::Closed(request) => {
            request.asker.forget();
            SendError::Closed(())
        }
    })
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}
