//! What can be asked about jobs, and what is answered.

use std::time::Duration;

use super::{Firing, JobPatch, JobStatus, JobView, NewJob, PROMPT_BYTES_MAX, Place, Ran};
use crate::area::area;
use crate::error::Error;
use crate::ids::{JobId, SessionKey};
use crate::principal::Principal;
use crate::time::Timestamp;

area! {
    /// What can be asked about jobs.
    Job(JobCommand => JobReply) {
        /// The jobs that the caller may see, the next to be due first.
        List(ListJobs) => Jobs(Vec<JobView>),
        /// One of them.
        Get(GetJob) => Job(Box<JobView>),
        /// Make one.
        Add(Box<NewJob>) => Job(Box<JobView>),
        /// Make one under an id, unless it was made already.
        AddOnce(AddJobOnce) => Job(Box<JobView>),
        /// Change one.
        Update(UpdateJob) => Job(Box<JobView>),
        /// Remove one. What it is doing is done to its end.
        Remove(RemoveJob) => Removed(bool),
        /// Do one now, whenever it is due. Answered when it is done.
        Run(RunJob) => Ran(Ran),
        /// The same, answered as soon as it is written down.
        Start(StartJob) => Started(Started),
        /// The latest firings, the latest first.
        Runs(ListFirings) => Runs(Vec<Firing>),
        /// How the scheduler is.
        Status(GetJobStatus) => Status(JobStatus),
        /// Say something to a session once.
        Wake(WakeSession) => Started(Started),
        /// Have the heart beat, or not, until the configuration is read again.
        SetHeartbeat(SetHeartbeat) => Heartbeat(bool),
        /// The latest heartbeat.
        LastHeartbeat(LastHeartbeat) => Beat(Option<Box<Firing>>),
    }
}

/// Which jobs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListJobs;

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetJob {
    /// Its id, or its name.
    pub job: String,
}

/// Make a job under an id: where the caller has one of that id, it is this one.
#[derive(Clone, Debug, PartialEq)]
pub struct AddJobOnce {
    /// The id.
    pub id: JobId,
    /// What it is to be.
    pub job: Box<NewJob>,
    /// The shortest span between two of its times.
    pub gap_min: Duration,
}

/// Change a job.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateJob {
    /// Its id, or its name.
    pub job: String,
    /// What changes.
    pub patch: Box<JobPatch>,
}

/// Remove a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveJob {
    /// Its id, or its name.
    pub job: String,
}

/// Do a job now, and wait for its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunJob {
    /// Its id, or its name.
    pub job: String,
}

/// Begin a job now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartJob {
    /// Its id, or its name.
    pub job: String,
}

/// The latest firings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFirings {
    /// The job whose firings they are; none = all jobs that the caller may see.
    pub job: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// How the scheduler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetJobStatus;

/// Say something to a session once: at once, or when the heart beats next (at once where it does not
/// beat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeSession {
    /// The session.
    pub session: SessionKey,
    /// What is said.
    pub text: String,
    /// Whether it is said at once.
    pub is_now: bool,
}

/// Have the heart beat, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetHeartbeat {
    /// Whether it is to beat.
    pub on: bool,
}

/// The latest heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastHeartbeat;

impl JobCommand {
    /// Has every session that it names be the one that `who` means by that.
    ///
    /// # Errors
    /// As [`Principal::session`].
    pub fn settle(&mut self, who: &Principal) -> Result<(), Error> {
        for session in self.sessions_mut() {
            *session = who.session(session)?;
        }
        Ok(())
    }

    /// The sessions it names, to be replaced.
    fn sessions_mut(&mut self) -> Vec<&mut SessionKey> {
        let order = match self {
            Self::Add(new) | Self::AddOnce(AddJobOnce { job: new, .. }) => Some(&mut new.order),
            Self::Update(UpdateJob { patch, .. }) => patch.order.as_mut(),
            Self::Wake(WakeSession { session, .. }) => return vec![session],
            _ => None,
        };
        let Some(order) = order else { return Vec::new() };
        let place = match &mut order.place {
            Place::Session(session) => Some(session),
            Place::Own(_) => None,
        };
        place.into_iter().chain(&mut order.result_to).collect()
    }

    /// What the request and its reply may take of memory, a small request being 1.
    pub fn weight(&self) -> usize {
        const WEIGHED_BYTES: usize = 4096;
        match self {
            Self::List(_) | Self::Runs(_) => 64,
            Self::Add(new) | Self::AddOnce(AddJobOnce { job: new, .. }) => {
                1 + new.order.prompt.len() / WEIGHED_BYTES
            }
            Self::Update(_) | Self::Get(_) => 1 + PROMPT_BYTES_MAX / WEIGHED_BYTES,
            Self::Wake(WakeSession { text, .. }) => 1 + text.len() / WEIGHED_BYTES,
            Self::Remove(_)
            | Self::Run(_)
            | Self::Start(_)
            | Self::Status(_)
            | Self::SetHeartbeat(_)
            | Self::LastHeartbeat(_) => 1,
        }
    }
}

/// The answer to a [`JobCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum JobReply {
    /// To `List`.
    Jobs(Vec<JobView>),
    /// To `Get`, `Add`, `AddOnce` and `Update`.
    Job(Box<JobView>),
    /// To `Remove`: whether there was such a job.
    Removed(bool),
    /// To `Run`.
    Ran(Ran),
    /// To `Start` and `Wake`.
    Started(Started),
    /// To `Runs`.
    Runs(Vec<Firing>),
    /// To `Status`.
    Status(JobStatus),
    /// To `SetHeartbeat`: whether it beats.
    Heartbeat(bool),
    /// To `LastHeartbeat`.
    Beat(Option<Box<Firing>>),
}

/// A firing that was begun or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The job.
    pub job: JobId,
    /// When it is due.
    pub scheduled: Timestamp,
}
