//! What can be asked about sessions: what is said in them, what they are set to, who follows them.

use crate::area::area;
use crate::conversation::event::Cause;
use crate::conversation::reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Deleted, Detached, Exported, Injected, Preview,
    SessionList, SessionReply, SessionRow, SessionState, SessionSummary, Stopped, Unwatched, Watching,
};
use crate::conversation::transcript::{History, Role, Transcript};
use crate::error::Error;
use crate::ids::{AgentId, LaneName, RunId, Seq, SessionKey, Ticket};
use crate::memory::file::FileId;
use crate::principal::Principal;
use crate::prompt::attachment::Attachment;
use crate::prompt::local_file::LocalFile;
use crate::prompt::run_options::RunOptions;
use crate::prompt::settings::Patch;
use crate::provider::budget::Budget;
use crate::target::Target;
use crate::time::Timestamp;

area! {
    /// What can be asked about sessions.
    Session(SessionCommand => SessionReply) {
        /// A prompt; its run's events follow the reply.
        Submit(Submit) => Accepted(Accepted),
        /// End a run: `run`, or whichever run the session is in; a queued run is taken from the queue.
        Abort(Abort) => Aborted(Aborted),
        /// End whatever is active in a lane; what waits in it stays.
        AbortLane(AbortLane) => Aborted(Aborted),
        /// The sessions that fit a filter.
        ListSessions(SessionFilter) => SessionList(SessionList),
        /// The last messages of a session.
        ReadHistory(ReadHistory) => History(History),
        /// The sessions the caller may see, the latest used first.
        ListSummaries(ListSummaries) => Sessions(Vec<SessionSummary>),
        /// Forget the conversation (the event log keeps it).
        Clear(Clear) => Cleared(Cleared),
        /// Follow a session: everything that happens in it, until the connection ends or lets go.
        Attach(Attach) => Attached(Attached),
        /// The same, from the prompt of one of its last turns on, of those that are not forgotten; and
        /// never from behind the prompt of what runs or waits.
        AttachTurns(AttachTurns) => Attached(Attached),
        /// Stop following a session.
        Detach(Detach) => Detached(Detached),
        /// Follow one run, by its id or by the idempotency key the caller asked for it with: all of it, up
        /// to its end.
        FollowRun(FollowRun) => Accepted(Accepted),
        /// Follow all sessions the caller may see, from now on; once per connection.
        Watch(Watch) => Watching(Watching),
        /// Follow the tool calls of all sessions in which the caller may decide about them and that a
        /// `Watch` of his does not show him, from now on; nothing else of those sessions.
        WatchCalls(WatchCalls) => Watching(Watching),
        /// Stop watching sessions.
        Unwatch(Unwatch) => Unwatched(Unwatched),
        /// One session as in a list, with its texts.
        DescribeSession(DescribeSession) => Session(Option<Box<SessionRow>>),
        /// Whether this session exists and the caller may see it.
        Exists(Exists) => Exists(bool),
        /// The newest messages of a session in full: with their ids, tool results and costs.
        ReadTranscript(ReadTranscript) => Transcript(Box<Transcript>),
        /// The last messages of some sessions, in short.
        PreviewSessions(PreviewSessions) => Previews(Vec<Preview>),
        /// Make a session with these settings, if it is not there.
        CreateSession(CreateSession) => Settled(Box<SessionRow>),
        /// Change a session's settings.
        Configure(Configure) => Settled(Box<SessionRow>),
        /// Begin a new conversation: what was said is forgotten, the settings stay.
        Reset(Reset) => Settled(Box<SessionRow>),
        /// The same, but what is under way or waits goes on, in the new one.
        Renew(Renew) => Cleared(Cleared),
        /// Forget all but the newest messages.
        Compact(Compact) => Compacted(Compacted),
        /// Remove a session with all that is known of it.
        Delete(Delete) => Deleted(Deleted),
        /// A part of the whole event log of a session, with what prompts brought along.
        Export(Export) => Exported(Exported),
        /// Put a message of the assistant into the conversation, outside any run.
        Inject(Inject) => Injected(Injected),
        /// End the run under way and all that wait, and let the session sleep.
        Stop(Stop) => Stopped(Stopped),
        /// The same for good: it takes no more prompts until it is reset.
        Close(Close) => Stopped(Stopped),
        /// What the budgets leave, with the session's where one is named.
        GetBudgets(GetBudgets) => Budget(Vec<Budget>),
    }
}

/// For each such part of what a command brings into a conversation, one unit more is taken from the rate
/// of whoever asks.
const UNIT_BYTES: usize = 1 << 20;

/// How many bytes of a prompt weigh as much as a small request.
const WEIGHED_BYTES: usize = 64 * 1024;

impl SessionCommand {
    /// What it costs besides what its method does: what it brings along is written, kept and sent on.
    pub fn cost(&self) -> u32 {
        let bytes = match self {
            Self::Submit(Submit { content, attachments, .. }) => {
                content.len() + attachments.iter().map(Attachment::bytes).sum::<usize>()
            }
            Self::Inject(Inject { content, .. }) => content.len(),
            _ => 0,
        };
        u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX)
    }

    /// What it takes of memory with its reply, where a small request takes 1; none where the reply may be
    /// as large as any, or what is asked for is not known yet.
    pub fn weight(&self) -> Option<usize> {
        match self {
            Self::ReadHistory(_)
            | Self::ReadTranscript(_)
            | Self::PreviewSessions(_)
            | Self::ListSummaries(_)
            | Self::ListSessions(_)
            | Self::Export(_) => None,
            Self::Submit(Submit { files, local_files, .. })
                if !(files.is_empty() && local_files.is_empty()) =>
            {
                None
            }
            Self::Submit(Submit { content, .. }) | Self::Inject(Inject { content, .. }) => {
                Some(1 + content.len() / WEIGHED_BYTES)
            }
            _ => Some(1),
        }
    }

    /// The session that it is about, where it is about one, to be replaced.
    pub fn target_mut(&mut self) -> Option<&mut Target> {
        match self {
            Self::Submit(Submit { target, .. })
            | Self::Abort(Abort { target, .. })
            | Self::ReadHistory(ReadHistory { target, .. })
            | Self::Clear(Clear { target })
            | Self::Attach(Attach { target, .. })
            | Self::AttachTurns(AttachTurns { target, .. })
            | Self::Detach(Detach { target, .. })
            | Self::DescribeSession(DescribeSession { target })
            | Self::ReadTranscript(ReadTranscript { target, .. })
            | Self::CreateSession(CreateSession { target, .. })
            | Self::Configure(Configure { target, .. })
            | Self::Reset(Reset { target })
            | Self::Renew(Renew { target })
            | Self::Compact(Compact { target, .. })
            | Self::Delete(Delete { target })
            | Self::Export(Export { target, .. })
            | Self::Inject(Inject { target, .. })
            | Self::Stop(Stop { target, .. })
            | Self::Close(Close { target, .. }) => Some(target),
            Self::GetBudgets(GetBudgets { target }) => target.as_mut(),
            _ => None,
        }
    }

    /// Has every session that it names be the one that `who` means by that: in his own space, unless he
    /// may name others' and does. Everything that is asked of sessions comes through here, whoever asks;
    /// what a [`Route`](crate::target::Route) leads to is found, and settled, later.
    ///
    /// # Errors
    /// As [`Principal::session`].
    pub fn settle(&mut self, who: &Principal) -> Result<(), Error> {
        match self {
            Self::Exists(Exists { session }) => {
                *session = who.session(session)?;
                Ok(())
            }
            // A session that is not his is one of which there is none.
            Self::PreviewSessions(PreviewSessions { targets, .. }) => {
                for target in targets {
                    if target.settle(who).is_err() {
                        *target = Target::Uuid(String::new());
                    }
                }
                Ok(())
            }
            command => command.target_mut().map_or(Ok(()), |target| target.settle(who)),
        }
    }
}

/// A prompt for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The session that gets the prompt.
    pub target: Target,
    /// The id the run gets, unless `idempotency_key` names one that exists.
    pub run: RunId,
    /// The text of the prompt.
    pub content: String,
    /// The same key from the same owner is the same run.
    pub idempotency_key: Option<String>,
    /// The files and images that come with it.
    pub attachments: Vec<Attachment>,
    /// Finished files that it brings along besides, behind those.
    pub files: Vec<FileId>,
    /// Files on this machine that it brings along besides, behind those, where they may be read.
    pub local_files: Vec<LocalFile>,
    /// How it is to be answered.
    pub run_options: RunOptions,
    /// Whether the events of its run follow the reply. Who follows the session is told them anyway.
    pub follow: bool,
}

/// Which sessions to list, the latest used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// The most sessions to list.
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
    /// Whether titles and last messages are wanted, which cost a look into each event log.
    pub with_texts: bool,
}

/// A message of a conversation, which older ones are asked for before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// The run of that message.
    pub run: RunId,
    /// The role in which it was said.
    pub role: Role,
}

/// End a run: `run`, or whichever run the session is in; a queued run is taken from the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The session whose run is aborted.
    pub target: Target,
    /// The run, by its id or by its idempotency key; none means the one under way.
    pub run: Option<RunId>,
}

/// End whatever is active in a lane; what waits in it stays. Answered as `Abort`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortLane {
    /// The lane whose run is aborted.
    pub lane: LaneName,
}

/// The last messages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadHistory {
    /// The session to read.
    pub target: Target,
    /// At most so many messages, the newest.
    pub limit: usize,
    /// Only those before this one.
    pub before: Option<Before>,
}

/// The sessions the caller may see, the latest used first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSummaries;

/// Forget the conversation (the event log keeps it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clear {
    /// The session to clear.
    pub target: Target,
}

/// Follow a session: everything that happens in it, until the connection ends or lets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The session to follow.
    pub target: Target,
    /// The last number already seen: what comes after it is given from the event log. None = from now
    /// on.
    pub after: Option<Seq>,
}

/// The same, from the prompt of one of its last turns on, of those that are not forgotten; and never
/// from behind the prompt of what runs or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTurns {
    /// The session to follow.
    pub target: Target,
    /// How many turns are told of; 0 = what runs or waits, and what comes.
    pub turns: usize,
}

/// Stop following a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detach {
    /// The session that was followed.
    pub target: Target,
    /// The ticket of the `Attach`.
    pub follow: Ticket,
}

/// Follow one run, by its id or by the idempotency key the caller asked for it with: all of it,
/// up to its end. Answered like a repeated `Submit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowRun {
    /// The run to follow.
    pub run: RunId,
}

/// Follow all sessions the caller may see, from now on; once per connection. Keeps none of them
/// awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch;

/// Follow the tool calls of all sessions in which the caller may decide about them and that a
/// `Watch` of his does not show him, from now on; nothing else of those sessions. Once per
/// connection. Keeps none of them awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchCalls;

/// No longer. What was on its way may still come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwatch {
    /// The ticket of the `Watch` or `WatchCalls`.
    pub watch: Ticket,
}

/// One session as in a list, with its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeSession {
    /// The session to describe.
    pub target: Target,
}

/// Whether this session exists and the caller may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exists {
    /// The session to look for.
    pub session: SessionKey,
}

/// The newest messages of a session in full: with their ids, tool results and costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadTranscript {
    /// The session to read.
    pub target: Target,
    /// At most so many messages, the newest.
    pub limit: usize,
    /// And at most so many bytes, as JSON.
    pub bytes_max: usize,
    /// As of which number the run under way is told; none = now.
    pub at: Option<Seq>,
}

/// The last messages of some sessions, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewSessions {
    /// The sessions to look into.
    pub targets: Vec<Target>,
    /// At most so many messages of each.
    pub limit: usize,
    /// At most so many characters of each message.
    pub chars_max: usize,
}

/// Make a session with these settings, if it is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSession {
    /// The session to create.
    pub target: Target,
    /// The settings it starts with.
    pub patch: Patch,
}

/// Change a session's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configure {
    /// The session to change.
    pub target: Target,
    /// The settings to change; the others stay.
    pub patch: Patch,
}

/// Begin a new conversation: what was said is forgotten, the settings stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The session to reset.
    pub target: Target,
}

/// The same, but what is under way or waits goes on, in the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The session to renew.
    pub target: Target,
}

/// Forget all but the newest messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compact {
    /// The session to shorten.
    pub target: Target,
    /// The number of newest messages to keep.
    pub keep: usize,
}

/// Remove a session with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The session to delete.
    pub target: Target,
}

/// A part of the whole event log of a session, with what prompts brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The session to export.
    pub target: Target,
    /// What comes after this number.
    pub after: Seq,
}

/// Put a message of the assistant into the conversation, outside any run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inject {
    /// The session that gets the message.
    pub target: Target,
    /// The text of the message.
    pub content: String,
    /// Its id, under which it is put there once however often it is asked for; none = a fresh one.
    pub id: Option<RunId>,
}

/// End the run under way and all that wait, and let the session sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The session to stop.
    pub target: Target,
    /// What they are said to have ended for.
    pub cause: Cause,
}

/// The same for good: it takes no more prompts until it is reset. One that is closed already stays
/// as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// The session to close.
    pub target: Target,
    /// The reason, for people; may be empty.
    pub reason: String,
}

/// What the budgets leave, with the session's where one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetBudgets {
    /// The session whose budgets count as well.
    pub target: Option<Target>,
}
