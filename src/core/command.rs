//! What a client can ask for, in nobody's words: every dialect translates into these.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;

use crate::approval::ApprovalCommand;
use crate::attachment::Attachment;
use crate::auth::token::TokenCommand;
use crate::auth::{About, Principal, Role as ClientRole, Scope, Scopes, Secret};
use crate::enclosure::Enclosure;
use crate::error::Error;
use crate::event::Cause;
use crate::file::{FileCommand, FileId};
use crate::ids::{AgentId, LaneName, PluginName, RunId, Seq, SessionKey, Ticket};
use crate::job::JobCommand;
use crate::manner::Manner;
use crate::memory::MemoryCommand;
use crate::node::{InvokeNode, NodeFailure};
use crate::operator::OperatorCommand;
use crate::reply::{Role, SessionState};
use crate::settings::Patch;
use crate::subagent::SubAgentCommand;
use crate::team::TeamCommand;
use crate::time::Timestamp;

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

/// Where a message comes from, in the terms bindings are written in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The channel, such as `websocket` or `telegram`.
    pub channel: String,
    /// The account within the channel.
    pub account: String,
    /// The peer within the account.
    pub peer: Option<String>,
    /// The guild or server, for channels that have such.
    pub guild: Option<String>,
    /// The team within the guild.
    pub team: Option<String>,
}

/// Which session a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The one the router finds.
    Route(Route),
    /// This one.
    Session(SessionKey),
    /// The one with this UUID ([`SessionKey::uuid`]), which must be there.
    Uuid(String),
    /// The one of the caller's own whose present conversation has this id
    /// ([`SessionRow::session_id`](crate::reply::SessionRow::session_id)), which must be there.
    Conversation(String),
}

impl Target {
    /// Has the session that it names be the one that `who` means by that.
    fn settle(&mut self, who: &Principal) -> Result<(), Error> {
        if let Self::Session(key) = self {
            *key = who.session(key)?;
        }
        Ok(())
    }
}

/// A prompt for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The session.
    pub target: Target,
    /// The id the run gets, unless `idempotency_key` names one that exists.
    pub run: RunId,
    /// What the user says.
    pub content: String,
    /// The same key from the same owner is the same run.
    pub idempotency_key: Option<String>,
    /// What it brings along.
    pub attachments: Vec<Attachment>,
    /// Finished files that it brings along besides, behind those.
    pub files: Vec<FileId>,
    /// Files on this machine that it brings along besides, behind those, where they may be read.
    pub enclosed: Vec<Enclosure>,
    /// How it is to be answered.
    pub manner: Manner,
    /// Whether the events of its run follow the reply. Who follows the session is told them anyway.
    pub follow: bool,
}

/// Which sessions to list, the latest used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// At most so many.
    pub limit: usize,
    /// Not the first so many.
    pub offset: usize,
    /// Only those that were not closed.
    pub is_open: bool,
    /// Only those in this state.
    pub state: Option<SessionState>,
    /// Only those written to since then.
    pub active_since: Option<Timestamp>,
    /// Only those of this agent.
    pub agent: Option<AgentId>,
    /// Only the one with this label.
    pub label: Option<String>,
    /// Only those whose key, label or title has this in it, whatever its case.
    pub search: Option<String>,
    /// Whether titles and last messages are wanted, which cost a look into each log.
    pub with_texts: bool,
}

/// What a client tells of itself or of another, to be shown among who is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// For people.
    pub text: String,
    /// The device it is about.
    pub device: Option<String>,
    /// Where that is, without a port.
    pub host: Option<String>,
    /// What it is; empty where that is not said.
    pub about: About,
    /// Why this is told.
    pub reason: Option<String>,
    /// For how long nobody touched it.
    pub idle: Option<Duration>,
}

/// What is asked of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigRequest {
    /// How it is.
    Get,
    /// How it is, for anybody who may read: who is no operator is told of the sections that concern
    /// everybody ([`crate::config::COMMON_SECTIONS`]).
    Look,
    /// Have its file say this at some places, if that is a configuration to run on.
    Place {
        /// Places, as `section.key` or as a section, and what they shall say; null takes a place away.
        values: Vec<(String, Json)>,
        /// Whether what an object does not name is kept, rather than gone.
        merge: bool,
    },
    /// Have its file say this, if that is a configuration to run on.
    Set {
        /// What it shall say, in the words of [`ConfigSnapshot::file`](crate::reply::ConfigSnapshot::file).
        asked: Json,
        /// Whether it is a merge patch (RFC 7386) rather than all of it.
        is_patch: bool,
        /// The hash of what the caller has seen of it.
        base_hash: String,
    },
}

/// A message of a conversation, which older ones are asked for before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// Its run.
    pub run: RunId,
    /// Who said it.
    pub role: Role,
}

/// What can be asked about paired devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCommand {
    /// Those that are paired, and those that wait for approval.
    List,
    /// Let one in that waits.
    Approve {
        /// The request.
        request: String,
    },
    /// Do not.
    Reject {
        /// The request.
        request: String,
    },
    /// Forget a device: it has to be paired anew.
    Remove {
        /// The device.
        device: String,
    },
    /// Give a device another token; the one it has holds no longer.
    Rotate {
        /// The device.
        device: String,
        /// Which of its tokens.
        role: ClientRole,
        /// How far the new one goes; none = as far as the old one.
        scopes: Option<Scopes>,
    },
    /// Let a device no longer come as this.
    Revoke {
        /// The device.
        device: String,
        /// As what; none = as anything.
        role: Option<ClientRole>,
    },
    /// Whether a token is that of a device.
    Verify {
        /// The device.
        device: String,
        /// As what it comes.
        role: ClientRole,
        /// The token.
        token: Secret,
    },
}

/// Everything that can be asked of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Something about paired devices.
    Device(DeviceCommand),
    /// Something about tool calls that wait for approval.
    Approval(ApprovalCommand),
    /// Something about agents that work for a session.
    SubAgent(Box<SubAgentCommand>),
    /// Something about teams of agents.
    Team(Box<TeamCommand>),
    /// Something about what is remembered.
    Memory(Box<MemoryCommand>),
    /// Something about files.
    File(Box<FileCommand>),
    /// Something about the credentials that the daemon gave out.
    Token(Box<TokenCommand>),
    /// Something about jobs that are done at set times.
    Job(Box<JobCommand>),
    /// Something that only operators ask for.
    Operator(Box<OperatorCommand>),
    /// How the daemon is.
    Status,
    /// A prompt; its run's events follow the reply.
    Submit(Submit),
    /// How the machine is.
    Machine,
    /// The lanes in which runs are or wait.
    Lanes,
    /// The file of an agent's soul, or another text for it.
    Soul {
        /// The agent.
        agent: AgentId,
        /// What it shall say; none = it is only looked at.
        text: Option<String>,
    },
    /// End a run: `run`, or whichever run the session is in; a queued run is taken from the queue.
    Abort {
        /// The session.
        target: Target,
        /// The run, by its id or by its idempotency key; none means the one under way.
        run: Option<RunId>,
    },
    /// End whatever is active in a lane; what waits in it stays. Answered as `Abort`.
    AbortLane {
        /// The lane.
        lane: LaneName,
    },
    /// The last messages of a session.
    History {
        /// The session.
        target: Target,
        /// At most so many messages, the newest.
        limit: usize,
        /// Only those before this one.
        before: Option<Before>,
    },
    /// The sessions the caller may see, the latest used first.
    Sessions,
    /// Forget the conversation (the log keeps it).
    Clear {
        /// The session.
        target: Target,
    },
    /// Follow a session: everything that happens in it, until the connection ends or lets go.
    Attach {
        /// The session.
        target: Target,
        /// The last number already seen: what comes after it is given from the log. None = from now
        /// on.
        after: Option<Seq>,
    },
    /// The same, from the prompt of one of its last turns on, of those that are not forgotten; and never
    /// from behind the prompt of what runs or waits.
    AttachTurns {
        /// The session.
        target: Target,
        /// How many turns are told of; 0 = what runs or waits, and what comes.
        turns: usize,
    },
    /// The agents and models there are to choose from.
    Catalog,
    /// Follow it no longer.
    Detach {
        /// The session.
        target: Target,
        /// The ticket of the `Attach`.
        follow: Ticket,
    },
    /// Follow one run, by its id or by the idempotency key the caller asked for it with: all of it,
    /// up to its end. Answered like a repeated `Submit`.
    FollowRun {
        /// The run.
        run: RunId,
    },
    /// Follow all sessions the caller may see, from now on; once per connection. Keeps none of them
    /// awake.
    Watch,
    /// Follow the tool calls of all sessions in which the caller may decide about them and that a
    /// `Watch` of his does not show him, from now on; nothing else of those sessions. Once per
    /// connection. Keeps none of them awake.
    WatchCalls,
    /// No longer. What was on its way may still come.
    Unwatch {
        /// The ticket of the `Watch` or `WatchCalls`.
        watch: Ticket,
    },
    /// The sessions that fit a filter.
    ListSessions(SessionFilter),
    /// One session as in a list, with its texts.
    DescribeSession {
        /// The session.
        target: Target,
    },
    /// Whether this session exists and the caller may see it.
    Exists {
        /// The session.
        session: SessionKey,
    },
    /// The newest messages of a session in full: with their ids, tool results and costs.
    Transcript {
        /// The session.
        target: Target,
        /// At most so many messages, the newest.
        limit: usize,
        /// And at most so many bytes, as JSON.
        bytes_max: usize,
        /// As of which number the run under way is told; none = now.
        at: Option<Seq>,
    },
    /// The last messages of some sessions, in short.
    Preview {
        /// The sessions.
        targets: Vec<Target>,
        /// At most so many messages of each.
        limit: usize,
        /// At most so many characters of each message.
        chars_max: usize,
    },
    /// Make a session with these settings, if it is not there.
    CreateSession {
        /// The session.
        target: Target,
        /// Its settings.
        patch: Patch,
    },
    /// Change a session's settings.
    Configure {
        /// The session.
        target: Target,
        /// What to change.
        patch: Patch,
    },
    /// Begin a new conversation: what was said is forgotten, the settings stay.
    Reset {
        /// The session.
        target: Target,
    },
    /// The same, but what is under way or waits goes on, in the new one.
    Renew {
        /// The session.
        target: Target,
    },
    /// Forget all but the newest messages.
    Compact {
        /// The session.
        target: Target,
        /// How many to keep.
        keep: usize,
    },
    /// Remove a session with all that is known of it.
    Delete {
        /// The session.
        target: Target,
    },
    /// A part of the whole log of a session, with what prompts brought along.
    Export {
        /// The session.
        target: Target,
        /// What comes after this number.
        after: Seq,
    },
    /// Put a message of the assistant into the conversation, outside any run.
    Inject {
        /// The session.
        target: Target,
        /// What it says.
        content: String,
        /// Its id, under which it is put there once however often it is asked for; none = a fresh one.
        id: Option<RunId>,
    },
    /// How the daemon is, who is connected, what went on lately.
    Overview,
    /// How the daemon and its parts are.
    Health,
    /// Have something shown among who is connected.
    Tell(Box<Told>),
    /// The nodes that are connected and belong to the caller.
    Nodes,
    /// Have a node do something.
    InvokeNode(Box<InvokeNode>),
    /// From a node: what became of an invocation.
    NodeResult {
        /// The invocation.
        invocation: Arc<str>,
        /// Its payload as JSON, if there is one; or why it failed.
        outcome: Result<Option<String>, NodeFailure>,
    },
    /// Look at the configuration, or change it.
    Config(ConfigRequest),
    /// The latest lines of the daemon's own log, or those since a place in it.
    LogTail {
        /// The place; none = the latest.
        cursor: Option<u64>,
        /// At most so many lines.
        lines_max: usize,
        /// And at most so many bytes.
        bytes_max: usize,
    },
    /// What was spent on which model on which day.
    UsageDays {
        /// From the day of this time on.
        since: Timestamp,
    },
    /// End the run under way and all that wait, and let the session sleep.
    Stop {
        /// The session.
        target: Target,
        /// What they are said to have ended for.
        cause: Cause,
    },
    /// The same for good: it takes no more prompts until it is reset. One that is closed already stays
    /// as it is.
    Close {
        /// The session.
        target: Target,
        /// Why; may be empty.
        reason: String,
    },
    /// What the budgets leave, with the session's where one is named.
    Budget {
        /// The session.
        target: Option<Target>,
    },
    /// The loaded plugins.
    Plugins,
    /// Load a plugin: a configured one, or the file `path` under the plugins folder of the home.
    LoadPlugin {
        /// The name it gets.
        name: PluginName,
        /// The module; none means the configured or embedded one.
        path: Option<String>,
    },
    /// Unload a plugin.
    UnloadPlugin {
        /// Its name.
        name: PluginName,
    },
}

/// For each such part of what a command brings into a conversation, one unit more is taken from the rate
/// of whoever asks.
const UNIT_BYTES: usize = 1 << 20;

impl Command {
    /// What it costs besides what its method does: what it brings along is written, kept and sent on.
    pub fn cost(&self) -> u32 {
        let bytes = match self {
            Self::Submit(Submit { content, attachments, .. }) => {
                content.len() + attachments.iter().map(Attachment::bytes).sum::<usize>()
            }
            Self::Inject { content, .. } => content.len(),
            _ => 0,
        };
        u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX)
    }

    /// The session that it is about, where it is about one.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Submit(Submit { target, .. })
            | Self::Abort { target, .. }
            | Self::History { target, .. }
            | Self::Clear { target }
            | Self::Attach { target, .. }
            | Self::AttachTurns { target, .. }
            | Self::Detach { target, .. }
            | Self::DescribeSession { target }
            | Self::Transcript { target, .. }
            | Self::CreateSession { target, .. }
            | Self::Configure { target, .. }
            | Self::Reset { target }
            | Self::Renew { target }
            | Self::Compact { target, .. }
            | Self::Delete { target }
            | Self::Export { target, .. }
            | Self::Inject { target, .. }
            | Self::Stop { target, .. }
            | Self::Close { target, .. }
            | Self::Budget { target: Some(target) } => Some(target),
            Self::Memory(command) => command.target(),
            Self::SubAgent(command) => command.target(),
            _ => None,
        }
    }

    /// Has every session that it names be the one that `who` means by that: in his own space, unless he
    /// may name others' and does. Everything that is asked of sessions comes through here, whoever asks;
    /// what a [`Route`] leads to is found, and settled, later.
    ///
    /// # Errors
    /// As [`Principal::session`].
    pub fn settle(&mut self, who: &Principal) -> Result<(), Error> {
        let settle = |key: &mut SessionKey| {
            *key = who.session(key)?;
            Ok(())
        };
        match self {
            Self::Exists { session } => settle(session),
            // A session that is not his is one of which there is none.
            Self::Preview { targets, .. } => {
                for target in targets {
                    if target.settle(who).is_err() {
                        *target = Target::Uuid(String::new());
                    }
                }
                Ok(())
            }
            // That of the call, as it was told of: who may decide need not see the session.
            Self::Approval(_) => Ok(()),
            Self::Job(command) => command.sessions_mut().into_iter().try_for_each(settle),
            command => command.target_mut().map_or(Ok(()), |target| target.settle(who)),
        }
    }

    /// The same, to be replaced.
    pub fn target_mut(&mut self) -> Option<&mut Target> {
        match self {
            Self::Submit(Submit { target, .. })
            | Self::Abort { target, .. }
            | Self::History { target, .. }
            | Self::Clear { target }
            | Self::Attach { target, .. }
            | Self::AttachTurns { target, .. }
            | Self::Detach { target, .. }
            | Self::DescribeSession { target }
            | Self::Transcript { target, .. }
            | Self::CreateSession { target, .. }
            | Self::Configure { target, .. }
            | Self::Reset { target }
            | Self::Renew { target }
            | Self::Compact { target, .. }
            | Self::Delete { target }
            | Self::Export { target, .. }
            | Self::Inject { target, .. }
            | Self::Stop { target, .. }
            | Self::Close { target, .. }
            | Self::Budget { target: Some(target) } => Some(target),
            Self::Memory(command) => command.target_mut(),
            Self::SubAgent(command) => command.target_mut(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Order, Place};
    use proptest::prelude::*;

    fn command(which: usize, keys: &[SessionKey]) -> Command {
        let (first, last) = (keys[0].clone(), keys[keys.len() - 1].clone());
        let target = || Target::Session(first.clone());
        match which {
            0 => Command::Abort { target: target(), run: None },
            1 => Command::Attach { target: target(), after: None },
            2 => Command::Exists { session: first },
            3 => Command::Preview {
                targets: keys.iter().cloned().map(Target::Session).collect(),
                limit: 1,
                chars_max: 1,
            },
            4 => Command::Job(Box::new(JobCommand::Wake { session: first, text: "x".into(), is_now: true })),
            5 => {
                let order = Order {
                    place: Place::Session(first),
                    prompt: "x".into(),
                    manner: Manner::default(),
                    result_to: Some(last),
                };
                let patch = crate::job::JobPatch { order: Some(order), ..Default::default() };
                Command::Job(Box::new(JobCommand::Update { job: "j".into(), patch: Box::new(patch) }))
            }
            6 => Command::Budget { target: Some(target()) },
            _ => Command::Inject { target: target(), content: "x".into(), id: None },
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
            match asked.settle(&eve) {
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
                    prop_assert!(keys.iter().any(|key| !key.is_of(&eve.owner) && key.owner() != crate::auth::Owner::Admins));
                }
            }
            let mut said = command(which, &keys);
            said.settle(&Principal::local()).unwrap();
            prop_assert_eq!(said, command(which, &keys));
        }
    }
}
