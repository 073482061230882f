//! What can be asked, tied to what it is answered.
//!
//! Who asks one thing of an area gets that thing's answer ([`Question`]).

use crate::access::pairing::{DeviceCommand, DeviceReply};
use crate::access::token::{TokenCommand, TokenReply};
use crate::agents::subagent::{SubAgentCommand, SubAgentReply};
use crate::agents::team::{TeamCommand, TeamReply};
use crate::area::{Area, Question};
use crate::config::request::{ConfigCommand, ConfigReply};
use crate::conversation::approval::{ApprovalCommand, ApprovalReply};
use crate::conversation::command::SessionCommand;
use crate::conversation::reply::SessionReply;
use crate::daemon::command::{DaemonCommand, DaemonReply};
use crate::daemon::operator::{OperatorCommand, OperatorReply};
use crate::error::{Error, ErrorCode};
use crate::memory::file::{FileCommand, FileReply};
use crate::memory::{MemoryCommand, MemoryReply};
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::schedule::job::{JobCommand, JobReply};
use crate::tools::node::{NodeCommand, NodeReply};
use crate::tools::plugin::{PluginCommand, PluginReply};

/// Something that can be asked of the daemon.
pub trait Ask: Into<Command> {
    /// The reply to this question.
    type Reply;

    /// Its answer, as it was carried; none where it answers something else.
    fn take(reply: Reply) -> Option<Self::Reply>;

    /// Its answer.
    ///
    /// # Errors
    /// The refusal; `Internal` where something else was answered, which is a fault of clawmux.
    fn answer(reply: Result<Reply, Error>) -> Result<Self::Reply, Error> {
        Self::take(reply?).ok_or_else(misfit)
    }
}

/// The reply is to another question: a fault of clawmux.
pub(crate) fn misfit() -> Error {
    ErrorCode::Internal.error("internal error: the reply does not fit the request")
}

impl<Q: Question> From<Q> for Command
where
    Self: From<Q::Area>,
{
    fn from(question: Q) -> Self {
        Self::from(question.into())
    }
}

impl<Q: Question> Ask for Q
where
    Command: From<Q::Area>,
    <Q::Area as Area>::Reply: TryFrom<Reply>,
{
    type Reply = Q::Answer;

    fn take(reply: Reply) -> Option<Q::Answer> {
        Q::pick(reply.try_into().ok()?)
    }
}

/// Ties the commands and replies of areas to those of everything.
macro_rules! areas {
    ($($area:ident($command:ty => $reply:ty),)*) => {
        $(
            impl From<$command> for Command {
                fn from(command: $command) -> Self {
                    Self::$area(command)
                }
            }

            impl From<$reply> for Reply {
                fn from(reply: $reply) -> Self {
                    Self::$area(reply)
                }
            }

            impl TryFrom<Reply> for $reply {
                type Error = ();

                fn try_from(reply: Reply) -> Result<Self, ()> {
                    match reply {
                        Reply::$area(reply) => Ok(reply),
                        _ => Err(()),
                    }
                }
            }
        )*
    };
}

areas! {
    Session(SessionCommand => SessionReply),
    Approval(ApprovalCommand => ApprovalReply),
    Memory(MemoryCommand => MemoryReply),
    SubAgent(SubAgentCommand => SubAgentReply),
    Team(TeamCommand => TeamReply),
    File(FileCommand => FileReply),
    Job(JobCommand => JobReply),
    Device(DeviceCommand => DeviceReply),
    Token(TokenCommand => TokenReply),
    Node(NodeCommand => NodeReply),
    Plugin(PluginCommand => PluginReply),
    Config(ConfigCommand => ConfigReply),
    Daemon(DaemonCommand => DaemonReply),
    Operator(OperatorCommand => OperatorReply),
}
