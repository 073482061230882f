//! What concerns many connections at once, in nobody's words.
//!
//! Announcements are about the state of the daemon and may be lost to a client that is behind: each
//! can be asked for again, and a newer one says all that the older did (messages between members of a
//! team apart, of which the members' sessions know). What must not be lost is in
//! a session's log and reaches its followers as [`Event`]s.

use std::sync::Arc;

use crate::access::pairing::News;
use crate::agents::registry;
use crate::agents::subagent::{AgentChange, AgentNews};
use crate::agents::team::TeamNews;
use crate::config::catalog::Catalog;
use crate::conversation::approval;
use crate::conversation::event::{Event, Logged};
use crate::daemon::command::Overview;
use crate::daemon::health::Report;
use crate::daemon::presence::Presence;
use crate::ids::{Owner, Seq, SessionKey};
use crate::principal::Principal;
use crate::schedule::job::{self, JobNews};
use crate::scope::Scope;

/// Something that whoever may know of it is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Announcement {
    /// The list of connections.
    Presence(Arc<Presence>),
    /// The health of the daemon.
    Health(Arc<Overview>),
    /// One of its parts is not as it was.
    Report(Arc<Report>),
    /// A session is not what it was in lists.
    SessionChanged(SessionChange),
    /// A device wants in, or was let in.
    Pairing(Arc<News>),
    /// Something happened to an agent that was put to work.
    Agent(Box<AgentNews>),
    /// Something happened in a team.
    Team(Box<TeamNews>),
    /// A tool call waits for approval, or does no longer; only for those who may decide about it.
    Approval(Arc<approval::News>),
    /// Something happened to a job.
    Job(Box<JobNews>),
    /// There are other agents or models to choose from.
    Catalog(Arc<Catalog>),
}

impl From<registry::News> for Announcement {
    fn from(news: registry::News) -> Self {
        match news {
            registry::News::Agent(news) => Self::Agent(news),
            registry::News::Team(news) => Self::Team(news),
        }
    }
}

impl Announcement {
    /// Whether `newer` says all that is still true of this.
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        match (self, newer) {
            (Self::Presence(_), Self::Presence(_))
            | (Self::Health(_), Self::Health(_))
            | (Self::Report(_), Self::Report(_))
            | (Self::Catalog(_), Self::Catalog(_)) => true,
            (Self::SessionChanged(old), Self::SessionChanged(new)) => old.session == new.session,
            (Self::Agent(old), Self::Agent(new)) => {
                let is_change = |news: &AgentNews| news.what == AgentChange::Changed;
                is_change(old) && is_change(new) && old.status.agent == new.status.agent
            }
            (Self::Team(old), Self::Team(new)) => match (&**old, &**new) {
                (TeamNews::Changed(old), TeamNews::Changed(new)) => old.team == new.team,
                // What members say to each other is no state of anything.
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether somebody may be told, as far as that hangs on whose it is; a dialect tells its client
    /// less where that wants less.
    pub fn may_know(&self, who: &Principal) -> bool {
        match self {
            Self::Agent(news) => {
                let may = who.scopes.allows(Scope::Read) || who.scopes.allows(Scope::Teams);
                may && who.sees(&news.status.owner)
            }
            Self::Team(news) => who.scopes.allows(Scope::Teams) && who.sees(news.owner()),
            Self::SessionChanged(change) => who.sees(&change.owner),
            // Whoever may read is told of the heartbeat; of other jobs, whose they are.
            Self::Job(news) => {
                let is_own = who.sees(&news.owner) || news.job.as_str() == job::HEARTBEAT;
                who.scopes.allows(Scope::Read) && is_own
            }
            // The hub knows who may decide.
            Self::Approval(_) | Self::Presence(_) | Self::Health(_) | Self::Pairing(_) | Self::Catalog(_) => {
                true
            }
            Self::Report(_) => who.scopes.allows(Scope::Read),
        }
    }
}

/// What changed of a session in lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionChange {
    /// The session's key.
    pub session: SessionKey,
    /// The owner of the session.
    pub owner: Owner,
    /// Why it changed, the latest of what was put together.
    pub reason: ChangeReason,
}

/// Why a session changed in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeReason {
    /// The session was created.
    Created,
    /// It was prompted, or a run began.
    Started,
    /// A run of the session ended.
    Ended,
    /// Its settings changed.
    Configured,
    /// Its conversation was forgotten, all of it or the older part.
    Reset,
    /// The session was deleted.
    Deleted,
}

impl ChangeReason {
    /// What this event changes in lists, if anything.
    pub fn of(logged: &Logged) -> Option<Self> {
        match logged.event {
            Event::Prompted { .. } if logged.first_seq == Seq(1) => Some(Self::Created),
            Event::Prompted { .. } | Event::Started => Some(Self::Started),
            Event::Ended { .. } => Some(Self::Ended),
            Event::Cleared(_) => Some(Self::Reset),
            Event::Configured(_) if logged.first_seq == Seq(1) => Some(Self::Created),
            Event::Configured(_) => Some(Self::Configured),
            // Like a run that began and ended at once.
            Event::Injected { .. } => Some(Self::Ended),
            Event::Deleted => Some(Self::Deleted),
            // Within a run nothing changes in lists.
            _ => None,
        }
    }
}
