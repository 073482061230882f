//! What a client is answered, in nobody's words.

use crate::access::pairing::DeviceReply;
use crate::access::token::TokenReply;
use crate::agents::subagent::SubAgentReply;
use crate::agents::team::TeamReply;
use crate::config::request::ConfigReply;
use crate::conversation::approval::ApprovalReply;
use crate::conversation::reply::SessionReply;
use crate::daemon::command::DaemonReply;
use crate::daemon::operator::OperatorReply;
use crate::memory::MemoryReply;
use crate::memory::file::FileReply;
use crate::schedule::job::JobReply;
use crate::tools::node::NodeReply;
use crate::tools::plugin::PluginReply;

/// The answer to a [`Command`](crate::request::command::Command), of the same area.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To `Session`.
    Session(SessionReply),
    /// To `Approval`.
    Approval(ApprovalReply),
    /// To `Memory`.
    Memory(MemoryReply),
    /// To `SubAgent`.
    SubAgent(SubAgentReply),
    /// To `Team`.
    Team(TeamReply),
    /// To `File`.
    File(FileReply),
    /// To `Job`.
    Job(JobReply),
    /// To `Device`.
    Device(DeviceReply),
    /// To `Token`.
    Token(TokenReply),
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
