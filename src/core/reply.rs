//! What a client is answered, in nobody's words.

use crate::approval::ApprovalReply;
use crate::auth::pairing::DeviceReply;
use crate::auth::token::TokenReply;
use crate::config::request::ConfigReply;
use crate::daemon::DaemonReply;
use crate::file::FileReply;
use crate::job::JobReply;
use crate::memory::MemoryReply;
use crate::node::NodeReply;
use crate::operator::OperatorReply;
use crate::plugin::PluginReply;
use crate::session_reply::SessionReply;
use crate::subagent::SubAgentReply;
use crate::team::TeamReply;

/// The answer to a [`Command`](crate::command::Command), of the same area.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To `Session`.
    Session(SessionReply),
    /// To `Approval`.
    Approval(Box<ApprovalReply>),
    /// To `Memory`.
    Memory(Box<MemoryReply>),
    /// To `SubAgent`.
    SubAgent(Box<SubAgentReply>),
    /// To `Team`.
    Team(Box<TeamReply>),
    /// To `File`.
    File(Box<FileReply>),
    /// To `Job`.
    Job(Box<JobReply>),
    /// To `Device`.
    Device(Box<DeviceReply>),
    /// To `Token`.
    Token(Box<TokenReply>),
    /// To `Node`.
    Node(NodeReply),
    /// To `Plugin`.
    Plugin(PluginReply),
    /// To `Config`.
    Config(ConfigReply),
    /// To `Daemon`.
    Daemon(DaemonReply),
    /// To `Operator`.
    Operator(OperatorReply),
}
