//! What a client can ask for, in nobody's words: every dialect translates into these.

use crate::access::pairing::DeviceCommand;
use crate::access::token::TokenCommand;
use crate::agents::subagent::SubAgentCommand;
use crate::agents::team::TeamCommand;
use crate::config::request::ConfigCommand;
use crate::conversation::approval::ApprovalCommand;
use crate::conversation::command::SessionCommand;
use crate::daemon::command::DaemonCommand;
use crate::daemon::operator::OperatorCommand;
use crate::error::Error;
use crate::memory::MemoryCommand;
use crate::memory::file::FileCommand;
use crate::schedule::job::JobCommand;
use crate::scope::Scope;
use crate::tools::node::NodeCommand;
use crate::tools::plugin::PluginCommand;

/// A request a dialect wants executed.
#[derive(Debug)]
pub struct Request {
    /// The scope it takes.
    pub needs: Scope,
    /// What it costs of the principal's rate (`[limits]` in the configuration).
    pub cost: u32,
    /// What to do; or why the request could not be understood, told to the client only after its
    /// scope and its rate were checked.
    pub command: Result<Command, Error>,
}

/// Everything that can be asked of the daemon: one area for each actor that answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A command to sessions.
    Session(SessionCommand),
    /// Something about tool calls that wait for approval.
    Approval(ApprovalCommand),
    /// Something about what is remembered.
    Memory(MemoryCommand),
    /// Something about agents that work for a session.
    SubAgent(SubAgentCommand),
    /// Something about teams of agents.
    Team(TeamCommand),
    /// A command about files.
    File(FileCommand),
    /// Something about jobs that are done at set times.
    Job(JobCommand),
    /// Something about paired devices.
    Device(DeviceCommand),
    /// Something about the credentials that the daemon gave out.
    Token(TokenCommand),
    /// Something about nodes.
    Node(NodeCommand),
    /// A command about plugins.
    Plugin(PluginCommand),
    /// A command about the configuration.
    Config(ConfigCommand),
    /// Something about the daemon as a whole.
    Daemon(DaemonCommand),
    /// Something that only operators ask for.
    Operator(OperatorCommand),
}

impl Command {
    /// What it costs besides what its method does.
    pub fn cost(&self) -> u32 {
        match self {
            Self::Session(command) => command.cost(),
            _ => 0,
        }
    }

    /// What it takes of memory with its reply, where a small request takes 1; none where the reply may be
    /// as large as any.
    pub fn weight(&self) -> Option<usize> {
        match self {
            Self::Session(command) => command.weight(),
            Self::Approval(command) => Some(command.weight()),
            Self::Memory(command) => Some(command.weight()),
            Self::SubAgent(command) => Some(command.weight()),
            Self::Team(command) => Some(command.weight()),
            Self::File(command) => Some(command.weight()),
            Self::Job(command) => Some(command.weight()),
            Self::Token(command) => Some(command.weight()),
            Self::Node(command) => Some(command.weight()),
            Self::Daemon(command) => command.weight(),
            Self::Plugin(PluginCommand::Load(_)) | Self::Config(_) | Self::Device(_) | Self::Operator(_) => {
                None
            }
            Self::Plugin(_) => Some(1),
        }
    }

    /// Whether it is for operators alone, though it takes no scope of theirs.
    pub fn is_for_operators(&self) -> bool {
        match self {
            Self::Config(command) => command.is_for_operators(),
            Self::Daemon(command) => command.is_for_operators(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionKey;
    use crate::principal::Principal;
    use crate::prompt::run_options::RunOptions;
    use crate::schedule::job::{Order, Place, UpdateJob, WakeSession};
    use crate::scope::Scopes;

    use crate::conversation::command::{Abort, Attach, Exists, GetBudgets, Inject, PreviewSessions};
    use crate::target::Target;
    use proptest::prelude::*;

    fn command(which: usize, keys: &[SessionKey]) -> Command {
        let (first, last) = (keys[0].clone(), keys[keys.len() - 1].clone());
        let target = || Target::Session(first.clone());
        match which {
            0 => Command::Session(SessionCommand::Abort(Abort { target: target(), run: None })),
            1 => Command::Session(SessionCommand::Attach(Attach { target: target(), after: None })),
            2 => Command::Session(SessionCommand::Exists(Exists { session: first })),
            3 => Command::Session(SessionCommand::PreviewSessions(PreviewSessions {
                targets: keys.iter().cloned().map(Target::Session).collect(),
                limit: 1,
                chars_max: 1,
            })),
            4 => WakeSession { session: first, text: "x".into(), is_now: true }.into(),
            5 => {
                let order = Order {
                    place: Place::Session(first),
                    prompt: "x".into(),
                    run_options: RunOptions::default(),
                    result_to: Some(last),
                };
                let patch = crate::schedule::job::JobPatch { order: Some(order), ..Default::default() };
                UpdateJob { job: "j".into(), patch: Box::new(patch) }.into()
            }
            6 => Command::Session(SessionCommand::GetBudgets(GetBudgets { target: Some(target()) })),
            _ => Command::Session(SessionCommand::Inject(Inject {
                target: target(),
                content: "x".into(),
                id: None,
            })),
        }
    }

    fn settle(command: &mut Command, who: &Principal) -> Result<(), Error> {
        match command {
            Command::Session(command) => command.settle(who),
            Command::Job(command) => command.settle(who),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// Whatever a user asks for, it is about sessions in his own space, or is refused as of one that is
        /// not there; and the same said by an operator is about what he says.
        #[test]
        fn nothing_that_is_asked_leaves_ones_own_space_unsaid(
            which in 0_usize..8,
            keys in proptest::collection::vec("(eve/|ada/|jwt%3Aeve/|)(main|work):(openclaw|eve):[a-z]{1,3}:main", 1..4),
        ) {
            let keys: Vec<SessionKey> = keys.iter().map(|key| SessionKey::parse(key).unwrap()).collect();
            let eve = Principal::new("eve", Scopes::USER);
            let mut asked = command(which, &keys);
            match settle(&mut asked, &eve) {
                Ok(()) => {
                    let shown = format!("{asked:?}");
                    for (at, _) in shown.match_indices(":main\"") {
                        let begin = shown[..at].rfind('"').unwrap() + 1;
                        let key = SessionKey::parse(&shown[begin..at + 5]).unwrap();
                        prop_assert!(key.is_of(&eve.owner), "{}", shown);
                    }
                }
                Err(error) => {
                    prop_assert_eq!(error.code, crate::error::ErrorCode::NotFound);
                    prop_assert!(keys.iter().any(|key| !key.is_of(&eve.owner) && key.owner() != crate::ids::Owner::Admins));
                }
            }
            let mut said = command(which, &keys);
            settle(&mut said, &Principal::local()).unwrap();
            prop_assert_eq!(said, command(which, &keys));
        }
    }
}
