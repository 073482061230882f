//! The durable log: what is acknowledged is here, and what is here is what clients see.
//!
//! One SQLite database with one writer thread (`writer`) and one reader thread (`reader`),
//! each with a connection of its own. The actor only hands over and never blocks: it may share an
//! arbiter with others. Both queues are bounded; a full one is answered with `Unavailable`.
//! Writes of one session take effect in the order in which this actor got them.
//!
//! The store checks what it is given: numbers follow each other and are never used twice, a run
//! begins with its prompt and nothing follows its end. Whoever breaks that is told with an
//! `Internal` error, and nothing of the append is applied.
//!
//! While the disk is full or fails, whatever is to be written is refused with the reason, which
//! [`Health`] tells anybody, and questions are answered; the writer finds out by itself when it is
//! over.
//!
//! Deliberately absent: what a session's state is (that is a fold of its events), and snapshots of
//! it: what a session loads is bounded by the number of runs it asks for, and by their bytes.

mod agents;
mod backup;
mod devices;
mod failure;
mod figures;
mod files;
mod health;
mod holdings;
mod inspect;
mod jobs;
mod kept_files;
mod live;
mod memories;
mod probe;
mod reader;
mod readmitted;
mod restore;
mod schema;
mod tokens;
mod writer;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Context, Handler, Message, ResponseActFuture, ResponseFuture, WrapFuture};
use clawmux_core::attachment::Attachment;
use clawmux_core::auth::Owner;
use clawmux_core::auth::pairing::{Change, Device};
use clawmux_core::auth::token::{self, Estate, Ledger};
use clawmux_core::crew;
use clawmux_core::daemon::DayUsage;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::{Event, Logged, Usage};
use clawmux_core::ids::{RunId, Seq, SessionKey};
pub use clawmux_core::log::segment::SEGMENT_BYTES_MAX;
use clawmux_core::log::usage::{UsageRecord, UsageTotals};
pub use clawmux_core::operator::{
    BackupReport, Listed, ListedMemory, MemoryTotals, Place, UsageGroup, UsageShare,
};
use clawmux_core::session_command::{Before, SessionFilter};
use clawmux_core::settings::Settings;
use clawmux_core::time::Timestamp;
use clawmux_core::{session_reply, transcript};
pub use inspect::{Finding, Severity, inspect};
pub use jobs::{JobChange, KeptJobs, ReadFirings, ReadJobTokens, ReadJobs, WriteJobs};
pub use kept_files::{FileChange, FileTotals, ReadFile, ReadFileIds, ReadFileTotals, ReadFiles, WriteFile};
pub use memories::{Forget, ListMemories, Memory, ReadMemoryTotals, Recall, Remember};
pub use probe::Probe;
#[cfg(test)]
pub(crate) use probe::tests::Stick;
pub use readmitted::{Credential, Readmitted};
pub use restore::{Restored, restore};
use serde_json::json;
pub use tokens::has_issued;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::timeout;

use crate::ask::ask;
use crate::observe::{Observe, Observed};
use failure::sql;
pub(crate) use figures::Figures;
use files::Files;
use live::Shared;
use reader::Reader;
use reader::questions::{Asker, Question, Questions, Turn};
use writer::{Waiting, Write, Writer};

pub use health::Health;
pub use holdings::{Coming, Holdings};

/// Writes that may wait.
const WRITES_MAX: usize = 4096;
/// What a usage record counts, in bytes.
const USAGE_BYTES: usize = 64;
/// What a deletion counts, in bytes.
const DELETE_BYTES: usize = 64;
/// What a changed device counts, in bytes.
const DEVICE_BYTES: usize = 2048;
/// What a changed credential counts, in bytes.
const TOKEN_BYTES: usize = 512;
/// How many bytes of them; a single one may have more.
const WRITE_BYTES_MAX: usize = 64 << 20;
/// Questions that may wait.
const READS_MAX: usize = 1024;
/// How many bytes of ended runs wake a session: far more than a model is sent.
pub const LOAD_BYTES_MAX: u64 = 8 << 20;
/// A prompt that waits and has more bytes is read without what it says.
pub const WAITING_BYTES_MAX: usize = 64 << 10;
/// How long the answer to a write or a question may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the threads may take to finish what waits when the store stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How many of the owners who hold most are told.
const LARGEST_MAX: usize = 5;

/// The length of a day, as `usage_days` has them.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Writes down what changed of agents and teams, durably, all of it or nothing.
///
/// Errors: as [`Append`]'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteCrew(pub Vec<crew::Change>);

/// Asks for all agents and teams that are remembered.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<KeptCrew, Error>")]
pub struct ReadCrew;

/// The agents and teams that are remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptCrew {
    /// They.
    pub kept: crew::Kept,
    /// What each of their sessions, and of those whose budgets they spend, has spent in tokens.
    pub spent: Vec<(SessionKey, u64)>,
}

/// A question of somebody's: whose it is says when it is its turn.
#[derive(Clone, Debug)]
pub struct AskedBy<M> {
    /// Whose.
    pub owner: Owner,
    /// What is asked.
    pub question: M,
}

impl<M: Message> Message for AskedBy<M> {
    type Result = M::Result;
}

/// The log.
#[derive(Debug)]
pub struct Store {
    pen: Pen,
    reader: Option<Arc<Questions>>,
    /// Whose question is being handled, where it is not the daemon's own.
    asker: Asker,
    threads: Vec<Thread>,
    /// Until the store stops.
    files: Option<Arc<Files>>,
    backup: Option<RunningBackup>,
    figures: Arc<Figures>,
}

/// Writes to the log without the detour through the store's mailbox, which would cost every token a
/// hop to the store's arbiter and back. Ends with the store: what comes later is refused.
#[derive(Clone, Debug)]
pub struct Pen {
    /// None once the store has stopped.
    writer: Arc<RwLock<Option<SyncSender<Waiting>>>>,
    figures: Arc<Figures>,
    holdings: Holdings,
}

/// A copy that is being made.
#[derive(Debug)]
struct RunningBackup {
    thread: Thread,
    /// Ends it.
    cancel: Arc<AtomicBool>,
    /// Whether its result is there; the thread may still be about to end.
    done: Arc<AtomicBool>,
}

/// A thread, and how one knows it is over without blocking.
#[derive(Debug)]
struct Thread {
    handle: JoinHandle<()>,
    over: oneshot::Receiver<()>,
}

/// Asks for a session: everything its state is folded from. None where there is no such session.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Loaded>, Error>")]
pub struct Load {
    /// The session.
    pub session: SessionKey,
    /// So many of the runs that ended since the conversation was last cleared and in which something
    /// was said, the newest, and as many of those that were begun and in which nothing was; none
    /// beyond the one with which either have [`LOAD_BYTES_MAX`].
    pub runs: usize,
}

/// A session, as the log has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The last number in its log.
    pub head: Seq,
    /// Numbers up to here may have been seen by clients before the daemon was last started: the
    /// first event written after that has a number above both `head` and this.
    pub reserved: Seq,
    /// What it spent over its life.
    pub spent: Usage,
    /// What it is set to.
    pub settings: Settings,
    /// In order: the events of the runs asked for and of every run that has not ended. Text is in
    /// one piece wherever its numbers follow each other, up to [`SEGMENT_BYTES_MAX`].
    pub events: Vec<Logged>,
    /// Of these, the prompts that wait and are large, which are without what they say, and how many
    /// bytes that has: [`ReadPrompt`] gives it.
    pub aside: Vec<(RunId, usize)>,
}

/// Asks what a prompt says and brings along. None where there is no such prompt.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<(String, Vec<Attachment>)>, Error>")]
pub struct ReadPrompt {
    /// Its session.
    pub session: SessionKey,
    /// Its number.
    pub seq: Seq,
}

/// Asks for the sessions that were not used for longest and in which nothing is under way, those first.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<Unused>, Error>")]
pub struct ReadUnused {
    /// At most so many.
    pub limit: usize,
    /// Only those that were not used after this.
    pub since: Timestamp,
    /// Only those that come after this place; none = from the first on.
    pub after: Option<Place>,
}

/// A session that was not used for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Which.
    pub session: SessionKey,
    /// Whose it is.
    pub owner: Owner,
    /// How many bytes it has.
    pub bytes: u64,
    /// When it was last used.
    pub place: Place,
}

/// Asks for the sessions of an owner to delete first: those with most bytes, or those that were not used
/// for longest; three at most.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Unused>, Error>")]
pub struct ReadDispensable {
    /// Whose.
    pub owner: Owner,
    /// Whether those with most bytes are meant.
    pub is_about_bytes: bool,
}

/// Asks how large the database was as the last days began, the earliest first: days since 1970 and bytes
/// in use.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<(u64, u64)>, Error>")]
pub struct ReadSizes {
    /// Of at most so many days.
    pub days: usize,
}

/// Adds events to a session's log, all or none; the session is made if it is new. Answered when
/// they will survive the end of the process, or, where `durable`, a power cut.
///
/// Errors: `Conflict` where a run or an idempotency key exists already ([`FindRun`] then finds
/// it), `Internal` where the events do not follow the log, `Unavailable` where the log is full or
/// can't be written; nothing was applied in all of these. After `Timeout` that is not known: load
/// the session anew.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Append {
    /// The session.
    pub session: SessionKey,
    /// The events; each covers one number, and they follow each other.
    pub events: Vec<Logged>,
    /// Whether a power cut must not take them. Text that goes past the reserve is durable anyway.
    pub durable: bool,
    /// Sets numbers up to here aside, durably: text up to it need not be durable itself.
    pub reserve: Option<Seq>,
}

/// Removes a session with its log, its runs and their idempotency keys: a key that was used in it
/// can be used again, for nothing is known of it any more. What it cost stays on record. Durable when
/// answered; what the log held is overwritten soon after that, a little at a time.
///
/// Errors: `NotFound` where there is no such session, `Conflict` while a run of it has not ended;
/// else as [`Append`]'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Delete(pub SessionKey);

/// Asks which run an idempotency key stands for: its session, itself, the number of its prompt.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<(SessionKey, RunId, Seq)>, Error>")]
pub struct FindRun {
    /// Whose key.
    pub owner: Owner,
    /// The key.
    pub idempotency_key: String,
    /// Whether it may be the id of a run, where it is no key.
    pub or_id: bool,
}

/// Asks which session has this id, on behalf of an owner; of several his own, then the oldest.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<SessionKey>, Error>")]
pub struct FindSession {
    /// The id.
    pub id: String,
    /// Who asks.
    pub owner: Owner,
    /// What the id is, and whose session it may be.
    pub among: Among,
}

/// Among which sessions one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All, by their UUIDs ([`SessionKey::uuid`]).
    All,
    /// One's own, by their UUIDs.
    Own,
    /// One's own, by the ids of their present conversations ([`SessionKey::conversation_id`]).
    OwnConversations,
}

/// Asks for the events of a session after a number, in order; text in one piece wherever its
/// numbers follow each other, up to [`SEGMENT_BYTES_MAX`]. Ask again after the last number to go on;
/// an empty answer is the end.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Logged>, Error>")]
pub struct ReadEvents {
    /// The session.
    pub session: SessionKey,
    /// Only what comes after this.
    pub after: Seq,
    /// Only what belongs to this run.
    pub run: Option<RunId>,
    /// Not more once there are so many bytes; but at least one event.
    pub max_bytes: usize,
}

/// Asks for the newest messages since the conversation was last cleared, oldest first: each run's
/// prompt and then its answer, which is what clients saw of it. A run that goes on has no answer
/// yet.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<transcript::History, Error>")]
pub struct ReadHistory {
    /// The session.
    pub session: SessionKey,
    /// At most so many.
    pub limit: usize,
    /// Only those before this one.
    pub before: Option<Before>,
    /// At most so many bytes as JSON: the newest message is given all the same, as far as it fits.
    pub max_bytes: usize,
}

/// Asks for the newest messages of a conversation in full, with the run under way. None where there is
/// no such session; what its next run will ask is not filled in.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<transcript::Transcript>, Error>")]
pub struct ReadTranscript {
    /// The session.
    pub session: SessionKey,
    /// At most so many messages.
    pub limit: usize,
    /// At most so many bytes of them as JSON: the newest message is given all the same, as far as it fits.
    pub bytes_max: usize,
    /// As of which number the run under way is told; none = now.
    pub at: Option<Seq>,
}

/// Asks for the last messages of some sessions, in short.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<session_reply::Preview>, Error>")]
pub struct ReadPreviews {
    /// The sessions.
    pub sessions: Vec<SessionKey>,
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// At most so many messages of each.
    pub limit: usize,
    /// At most so many characters of each message.
    pub chars_max: usize,
}

/// Asks up to where a conversation is to be forgotten so that this many messages are kept, or a few
/// more: what belongs to one run is kept together. None where nothing is to be forgotten.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Cut>, Error>")]
pub struct FindCut {
    /// The session.
    pub session: SessionKey,
    /// How many.
    pub keep: usize,
}

/// Asks after which number one has to begin to be told of the last turns that are not forgotten, and of
/// all that runs or waits: so that the prompt of each of these is told. None where nothing has to be told.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Seq>, Error>")]
pub struct FindTurn {
    /// The session.
    pub session: SessionKey,
    /// How many turns.
    pub turns: usize,
}

/// Where a conversation is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Runs that ended up to this number are forgotten.
    pub up_to: Seq,
    /// Messages that are kept.
    pub kept: usize,
    /// Messages that are forgotten.
    pub forgotten: usize,
}

/// Asks for one session as lists show it; what its next run will ask is not filled in.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<session_reply::SessionRow>, Error>")]
pub struct ReadRow(pub SessionKey);

/// Asks for the sessions that fit a filter, the latest used first, and how many fit it in all. What
/// their next runs will ask is not filled in.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<session_reply::SessionList, Error>")]
pub struct ReadRows {
    /// The filter.
    pub filter: SessionFilter,
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// No more once they take so many bytes, roughly.
    pub bytes_max: usize,
}

/// Asks for sessions, the latest used first.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Listed>, Error>")]
pub struct ListSessions {
    /// At most so many.
    pub limit: usize,
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// Only those whose key begins with this, of whatever owner; none = all.
    pub prefix: Option<String>,
    /// Only those that come after this place; none = from the first on.
    pub before: Option<Place>,
}

/// Asks for the sessions with a run that has not ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<SessionKey>, Error>")]
pub struct Unfinished;

/// Keeps what a model call cost; durable when answered.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct RecordUsage(pub UsageRecord);

/// Asks for all paired devices.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Devices, Error>")]
pub struct ReadDevices;

/// The paired devices.
pub struct Devices {
    /// What their tokens are made of, besides their salts.
    pub secret: Vec<u8>,
    /// They.
    pub devices: Vec<Device>,
}

/// Changes paired devices, all or none. Answered when that will survive the end of the process, or,
/// where `durable`, a power cut.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteDevices {
    /// What changes.
    pub changes: Vec<Change>,
    /// Whether a power cut must not take it.
    pub durable: bool,
}

/// Asks for all credentials that the daemon gave out, and when those of the configuration were used.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Ledger, Error>")]
pub struct ReadTokens;

/// Asks what belongs to an owner.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Estate, Error>")]
pub struct ReadEstate(pub Owner);

/// Asks for the sessions of other owners that have the same key in their spaces: the latest used, a few.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<SessionKey>, Error>")]
pub struct Namesakes(pub SessionKey);

/// Changes the credentials that the daemon gave out, all or none. Answered when that will survive the
/// end of the process, or, where `durable`, a power cut.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteTokens {
    /// What changes.
    pub changes: Vec<token::Change>,
    /// Whether a power cut must not take it.
    pub durable: bool,
}

/// Asks what was spent since these times.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<UsageTotals, Error>")]
pub struct UsageSince {
    /// When the day began.
    pub day_start: Timestamp,
    /// When the month began.
    pub month_start: Timestamp,
}

/// Asks what was spent on which model on which day, the earliest first.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<DayUsage>, Error>")]
pub struct UsageDays {
    /// From the day of this time on.
    pub since: Timestamp,
}

/// Asks what was spent, added up by what is asked for: days the latest first, else who spent most.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<UsageShare>, Error>")]
pub struct UsageBy {
    /// Of calls that ended from this time on.
    pub since: Timestamp,
    /// By what.
    pub group: UsageGroup,
    /// At most so many.
    pub limit: usize,
}

/// Asks whose a session is and what it has spent, without what happened in it. None where there is
/// no such session.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Described>, Error>")]
pub struct Describe {
    /// Which.
    pub session: SessionKey,
}

/// A session without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Whom it belongs to.
    pub owner: Owner,
    /// The tokens of all its calls.
    pub spent: Usage,
}

/// Makes a consistent copy of the log in a file that must not exist yet, while the log is written to:
/// everything acknowledged before this message is in it. One at a time; it may take 15 minutes.
///
/// Errors: `Conflict` where the file exists or another copy is being made, `Unavailable` where the
/// file can't be written, `Internal` where the log is damaged, `Timeout`. No file is left then.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<BackupReport, Error>")]
pub struct Backup {
    /// Where the copy goes; relative to the daemon's working directory.
    pub to: PathBuf,
}

/// Finishes what waits and closes the database. What comes after is answered with `Unavailable`.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Stop;

impl Store {
    /// Opens the log at `path`, made if there is none, and starts the actor on this arbiter.
    ///
    /// # Errors
    /// See [`Store::open`].
    pub async fn start(path: impl Into<PathBuf>) -> Result<Addr<Self>, Error> {
        Ok(Actor::start(Self::open(path).await?))
    }

    /// Opens the log at `path`, made if there is none; its folder must be there.
    ///
    /// # Errors
    /// `Conflict` where another daemon has it open, or where it is of a newer format;
    /// `Unavailable` where it can't be opened; `Internal` where it is damaged.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let figures = Arc::new(Figures::default());
        let holdings = Holdings::default();
        let (writes, waiting) = sync_channel(WRITES_MAX);
        let (opened, ready) = oneshot::channel();
        let (of_writer, held) = (Arc::clone(&figures), holdings.clone());
        let writer = spawn("clawmux-log", move || {
            let open = || {
                let files = Arc::new(Files::claim(&path)?);
                let shared = Arc::new(Shared::default());
                let writer = Writer::open(Arc::clone(&files), Arc::clone(&shared), of_writer, held)?;
                Ok((writer, Reader::open(Arc::clone(&files), shared)?, files))
            };
            match open() {
                Ok((writer, reader, files)) => {
                    if opened.send(Ok((reader, files))).is_ok() {
                        writer.run(&waiting);
                    }
                }
                Err(error) => drop(opened.send(Err(not_opened(&path, error)))),
            }
        })?;
        let gone = |_| ErrorCode::Internal.error("the store's writer ended while it opened the store");
        let (reader, files) = ready.await.map_err(gone)??;
        let questions = Questions::new(READS_MAX, Arc::clone(&figures));
        let asked = Arc::clone(&questions);
        let reader = spawn("clawmux-log-read", move || asked.answer(reader))?;
        let writer_end = Arc::new(RwLock::new(Some(writes)));
        let pen = Pen { writer: writer_end, figures: Arc::clone(&figures), holdings };
        let threads = vec![reader, writer];
        let (reader, files) = (Some(questions), Some(files));
        Ok(Self { pen, reader, asker: None, threads, files, backup: None, figures })
    }

    /// Starts the actor on the store at `path`, to be asked alone: it is left as it is, whoever has it open.
    ///
    /// # Errors
    /// `NotFound` where there is none; `Conflict` where it is not of the present format; else as [`Store::open`].
    pub async fn start_reading(path: impl Into<PathBuf>) -> Result<Addr<Self>, Error> {
        let path = path.into();
        let figures = Arc::new(Figures::default());
        let (opened, ready) = oneshot::channel();
        let questions = Questions::new(READS_MAX, Arc::clone(&figures));
        let asked = Arc::clone(&questions);
        let reader = spawn("clawmux-log-read", move || match Reader::beside(&path) {
            Ok(reader) => {
                if opened.send(Ok(())).is_ok() {
                    asked.answer(reader);
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        })?;
        ready
            .await
            .map_err(|_| ErrorCode::Internal.error("the store's reader ended while it opened it"))??;
        let pen = Pen {
            writer: Arc::new(RwLock::new(None)),
            figures: Arc::clone(&figures),
            holdings: Holdings::default(),
        };
        let store = Self {
            pen,
            reader: Some(questions),
            asker: None,
            threads: vec![reader],
            files: None,
            backup: None,
            figures,
        };
        Ok(Actor::start(store))
    }

    /// What sessions write with.
    pub fn pen(&self) -> Pen {
        self.pen.clone()
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Reader) -> Result<T, Error> + Send + 'static,
    ) -> ResponseFuture<Result<T, Error>> {
        let Some(reader) = &self.reader else { return Box::pin(std::future::ready(Err(closed()))) };
        let (done, answer) = oneshot::channel::<Result<T, Error>>();
        let question: Question = Box::new(move |turn| {
            let answer = match turn {
                // Nobody waits any more for what stood in the queue too long.
                Turn::Read(_) if done.is_closed() => return,
                Turn::Read(reader) => question(reader),
                Turn::Full => Err(full("questions")),
                Turn::Closed => Err(closed()),
            };
            let _ = done.send(answer);
        });
        reader.ask(self.asker.clone(), question);
        Box::pin(async move { answered(answer).await? })
    }

    /// Starts to make a copy.
    fn back_up(&mut self, to: PathBuf) -> Result<oneshot::Receiver<Result<BackupReport, Error>>, Error> {
        let files = self.files.clone().ok_or_else(closed)?;
        if self.backup.as_mut().is_some_and(RunningBackup::goes_on) {
            return Err(ErrorCode::Conflict.error("a copy is being made already: wait until it is done"));
        }
        let (done, answer) = oneshot::channel();
        let (cancel, is_done) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (canceled, now_done, figures) = (cancel.clone(), is_done.clone(), self.figures.clone());
        let began = Instant::now();
        let goes_on =
            move || match () {
                () if canceled.load(Relaxed) => Err(closed()),
                () if began.elapsed() > backup::BACKUP_TIMEOUT => Err(ErrorCode::Timeout
                    .error("the copy was not done in time and was given up: is the disk slow?")),
                () => Ok(()),
            };
        let thread = spawn("clawmux-log-copy", move || {
            tracing::info!(to = %to.display(), "a copy of the store is being made");
            let result = backup::copy(&files, &to, &figures, goes_on);
            figures.backup_pages_left.store(0, Relaxed);
            match &result {
                Ok(report) => tracing::info!(to = %to.display(), ?report, "the copy of the store is there"),
                Err(error) => tracing::warn!(to = %to.display(), %error, "no copy of the store was made"),
            }
            drop(files);
            now_done.store(true, Relaxed);
            let _ = done.send(result);
        })?;
        self.backup = Some(RunningBackup { thread, cancel, done: is_done });
        Ok(answer)
    }

    /// Lets the threads finish, and waits for them.
    fn finish(&mut self) -> Pin<Box<dyn Future<Output = Result<(), Error>>>> {
        self.pen.put_down();
        if let Some(reader) = self.reader.take() {
            reader.close();
        }
        self.files = None;
        let mut threads = std::mem::take(&mut self.threads);
        if let Some(RunningBackup { thread, cancel, .. }) = self.backup.take() {
            cancel.store(true, Relaxed);
            threads.push(thread);
        }
        Box::pin(async move {
            let late = |_| ErrorCode::Timeout.error("the store did not close in time");
            let panicked = |_| ErrorCode::Internal.error("a thread of the store panicked");
            for Thread { handle, over } in threads {
                // An error here means that it panicked, which `join` says too.
                let _ = timeout(STOP_TIMEOUT, over).await.map_err(late)?;
                handle.join().map_err(panicked)?;
            }
            Ok(())
        })
    }
}

/// How much of a log is read at once to be given away.
const EXPORT_BYTES: usize = 256 << 10;

/// The next part of the whole log of a session after a number, with what prompts brought along: 256 KiB of
/// it, or a single event that has more. Empty at the end.
///
/// # Errors
/// As those of any question.
pub async fn exported(store: &Addr<Store>, session: &SessionKey, after: Seq) -> Result<Vec<Logged>, Error> {
    let read = ReadEvents { session: session.clone(), after, run: None, max_bytes: EXPORT_BYTES };
    let mut events = ask(store, read).await??;
    let mut bytes = 0;
    for at in 0..events.len() {
        let Logged { seq, event, .. } = &mut events[at];
        bytes += event.bytes();
        if let Event::Prompted { attachments, .. } = event
            && !attachments.is_empty()
        {
            let brought: usize = attachments.iter().map(Attachment::bytes).sum();
            if at > 0 && bytes + brought > EXPORT_BYTES {
                events.truncate(at);
                break;
            }
            bytes += brought;
            let read = ReadPrompt { session: session.clone(), seq: *seq };
            if let Some((_, whole)) = ask(store, read).await?? {
                *attachments = whole;
            }
        }
    }
    Ok(events)
}

/// Copies a store that no daemon has open, as [`Backup`] does; it stays of the format it is of. Blocks.
///
/// # Errors
/// As [`Backup`]'s; `NotFound` where there is no store, `Conflict` where a daemon has it open.
pub fn copy(path: &Path, to: &Path) -> Result<BackupReport, Error> {
    if !path.is_file() {
        return Err(ErrorCode::NotFound.error(format!("there is no store at {}", path.display())));
    }
    let files = Files::claim(path)?;
    backup::copy(&files, to, &Figures::default(), || Ok(()))
}

impl Drop for Store {
    fn drop(&mut self) {
        self.pen.put_down();
        if let Some(reader) = &self.reader {
            reader.close();
        }
        if let Some(backup) = &self.backup {
            backup.cancel.store(true, Relaxed);
        }
    }
}

impl RunningBackup {
    fn goes_on(&mut self) -> bool {
        !self.done.load(Relaxed) && matches!(self.thread.over.try_recv(), Err(TryRecvError::Empty))
    }
}

impl Pen {
    /// Appends to the log; see [`Append`].
    ///
    /// # Errors
    /// As [`Append`]'s.
    pub fn append(&self, append: Append) -> ResponseFuture<Result<(), Error>> {
        let bytes = append.events.iter().map(|logged| logged.event.bytes()).sum();
        self.write(Write::Append(append), bytes)
    }

    /// Removes a session, durably; see [`Delete`].
    ///
    /// # Errors
    /// As [`Delete`]'s.
    pub fn delete(&self, session: SessionKey) -> ResponseFuture<Result<(), Error>> {
        self.write(Write::Delete { session, unused_since: None }, DELETE_BYTES)
    }

    /// The same, where the session was not used since then; else `Conflict`.
    ///
    /// # Errors
    /// As [`Delete`]'s.
    pub fn delete_unused(&self, session: SessionKey, since: Timestamp) -> ResponseFuture<Result<(), Error>> {
        self.write(Write::Delete { session, unused_since: Some(since) }, DELETE_BYTES)
    }

    /// What owners hold in the log.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Waits until what was appended to a session before is written or refused: a write whose sender
    /// is gone may still be on its way.
    pub async fn settled(&self, session: &SessionKey) {
        let session = session.clone();
        let nothing = Append { session, events: Vec::new(), durable: false, reserve: None };
        // The writes of a session are done in their order; that there is nothing to do is no matter.
        let _ = self.append(nothing).await;
    }

    /// What the log says of itself, for those who must not wait for it.
    pub(crate) fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// Whether the log can be written.
    pub fn health(&self) -> Health {
        Health::new(&self.figures.fault)
    }

    fn write(&self, write: Write, bytes: usize) -> ResponseFuture<Result<(), Error>> {
        let refuse = |error| -> ResponseFuture<_> { Box::pin(std::future::ready(Err(error))) };
        let writer = self.writer.read().unwrap_or_else(PoisonError::into_inner);
        let Some(writer) = &*writer else { return refuse(closed()) };
        let waiting = self.figures.queue_bytes.fetch_add(bytes, Relaxed);
        let (done, answer) = oneshot::channel();
        let sent = if waiting > 0 && waiting.saturating_add(bytes) > WRITE_BYTES_MAX {
            Err(full("writes"))
        } else {
            // Counted first, so that the writer never counts down what was not counted up.
            self.figures.queue.fetch_add(1, Relaxed);
            let sent = writer.try_send(Waiting { write, bytes, done });
            if sent.is_err() {
                self.figures.queue.fetch_sub(1, Relaxed);
            }
            sent.map_err(|error| match error {
                TrySendError::Full(_) => full("writes"),
                TrySendError::Disconnected(_) => closed(),
            })
        };
        if let Err(error) = sent {
            self.figures.queue_bytes.fetch_sub(bytes, Relaxed);
            return refuse(error);
        }
        Box::pin(async move { answered(answer).await? })
    }

    /// Writes no more, in whosever hand it is.
    fn put_down(&self) {
        *self.writer.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Actor for Store {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(WRITES_MAX);
    }
}

/// What may be asked for somebody.
macro_rules! asked_by {
    ($($question:ty),*) => {$(
        impl Handler<AskedBy<$question>> for Store {
            type Result = <Self as Handler<$question>>::Result;

            fn handle(&mut self, asked: AskedBy<$question>, ctx: &mut Self::Context) -> Self::Result {
                self.asker = Some(asked.owner.as_str().into());
                let answer = Handler::handle(self, asked.question, ctx);
                self.asker = None;
                answer
            }
        }
    )*};
}

asked_by!(
    Describe,
    FindCut,
    FindTurn,
    ListSessions,
    ReadEvents,
    ReadHistory,
    ReadPreviews,
    ReadRow,
    ReadRows,
    ReadTranscript
);

impl Handler<Append> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, append: Append, _: &mut Self::Context) -> Self::Result {
        self.pen.append(append)
    }
}

impl Handler<Delete> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Delete(session): Delete, _: &mut Self::Context) -> Self::Result {
        self.pen.delete(session)
    }
}

impl Handler<RecordUsage> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, RecordUsage(usage): RecordUsage, _: &mut Self::Context) -> Self::Result {
        self.pen.write(Write::Usage(usage), USAGE_BYTES)
    }
}

impl Handler<WriteDevices> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, asked: WriteDevices, _: &mut Self::Context) -> Self::Result {
        let bytes = asked.changes.len() * DEVICE_BYTES;
        self.pen.write(Write::Devices(asked), bytes)
    }
}

impl Handler<WriteCrew> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, WriteCrew(changes): WriteCrew, _: &mut Self::Context) -> Self::Result {
        let bytes = changes.iter().map(crew::Change::bytes).sum();
        self.pen.write(Write::Crew(changes), bytes)
    }
}

impl Handler<ReadCrew> for Store {
    type Result = ResponseFuture<Result<KeptCrew, Error>>;

    fn handle(&mut self, _: ReadCrew, _: &mut Self::Context) -> Self::Result {
        self.ask(Reader::crew)
    }
}

impl Handler<ReadDevices> for Store {
    type Result = ResponseFuture<Result<Devices, Error>>;

    fn handle(&mut self, _: ReadDevices, _: &mut Self::Context) -> Self::Result {
        self.ask(Reader::devices)
    }
}

impl Handler<WriteTokens> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, asked: WriteTokens, _: &mut Self::Context) -> Self::Result {
        let bytes = asked.changes.len() * TOKEN_BYTES;
        self.pen.write(Write::Tokens(asked), bytes)
    }
}

impl Handler<ReadTokens> for Store {
    type Result = ResponseFuture<Result<Ledger, Error>>;

    fn handle(&mut self, _: ReadTokens, _: &mut Self::Context) -> Self::Result {
        self.ask(Reader::tokens)
    }
}

impl Handler<ReadEstate> for Store {
    type Result = ResponseFuture<Result<Estate, Error>>;

    fn handle(&mut self, ReadEstate(owner): ReadEstate, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.estate(&owner))
    }
}

impl Handler<Namesakes> for Store {
    type Result = ResponseFuture<Result<Vec<SessionKey>, Error>>;

    fn handle(&mut self, Namesakes(session): Namesakes, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.namesakes(&session))
    }
}

impl Handler<Load> for Store {
    type Result = ResponseFuture<Result<Option<Loaded>, Error>>;

    fn handle(&mut self, asked: Load, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.load(&asked))
    }
}

impl Handler<ReadPrompt> for Store {
    type Result = ResponseFuture<Result<Option<(String, Vec<Attachment>)>, Error>>;

    fn handle(&mut self, asked: ReadPrompt, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.prompt(&asked))
    }
}

impl Handler<ReadUnused> for Store {
    type Result = ResponseFuture<Result<Vec<Unused>, Error>>;

    fn handle(&mut self, asked: ReadUnused, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.unused(asked))
    }
}

impl Handler<ReadDispensable> for Store {
    type Result = ResponseFuture<Result<Vec<Unused>, Error>>;

    fn handle(&mut self, asked: ReadDispensable, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.dispensable(&asked))
    }
}

impl Handler<ReadSizes> for Store {
    type Result = ResponseFuture<Result<Vec<(u64, u64)>, Error>>;

    fn handle(&mut self, ReadSizes { days }: ReadSizes, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.sizes(days))
    }
}

impl Handler<Describe> for Store {
    type Result = ResponseFuture<Result<Option<Described>, Error>>;

    fn handle(&mut self, asked: Describe, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.describe(&asked))
    }
}

impl Handler<FindRun> for Store {
    type Result = ResponseFuture<Result<Option<(SessionKey, RunId, Seq)>, Error>>;

    fn handle(&mut self, asked: FindRun, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.find_run(&asked))
    }
}

impl Handler<FindSession> for Store {
    type Result = ResponseFuture<Result<Option<SessionKey>, Error>>;

    fn handle(&mut self, asked: FindSession, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.find_session(&asked))
    }
}

impl Handler<ReadEvents> for Store {
    type Result = ResponseFuture<Result<Vec<Logged>, Error>>;

    fn handle(&mut self, asked: ReadEvents, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.events(&asked))
    }
}

impl Handler<ReadHistory> for Store {
    type Result = ResponseFuture<Result<transcript::History, Error>>;

    fn handle(&mut self, asked: ReadHistory, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.history(&asked))
    }
}

impl Handler<ReadTranscript> for Store {
    type Result = ResponseFuture<Result<Option<transcript::Transcript>, Error>>;

    fn handle(&mut self, asked: ReadTranscript, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.transcript(&asked))
    }
}

impl Handler<ReadPreviews> for Store {
    type Result = ResponseFuture<Result<Vec<session_reply::Preview>, Error>>;

    fn handle(&mut self, asked: ReadPreviews, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.previews(&asked))
    }
}

impl Handler<FindCut> for Store {
    type Result = ResponseFuture<Result<Option<Cut>, Error>>;

    fn handle(&mut self, asked: FindCut, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.cut(&asked))
    }
}

impl Handler<FindTurn> for Store {
    type Result = ResponseFuture<Result<Option<Seq>, Error>>;

    fn handle(&mut self, asked: FindTurn, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.turn(&asked))
    }
}

impl Handler<ReadRow> for Store {
    type Result = ResponseFuture<Result<Option<session_reply::SessionRow>, Error>>;

    fn handle(&mut self, asked: ReadRow, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.row(&asked))
    }
}

impl Handler<ReadRows> for Store {
    type Result = ResponseFuture<Result<session_reply::SessionList, Error>>;

    fn handle(&mut self, asked: ReadRows, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.rows(&asked))
    }
}

impl Handler<ListSessions> for Store {
    type Result = ResponseFuture<Result<Vec<Listed>, Error>>;

    fn handle(&mut self, asked: ListSessions, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.sessions(&asked))
    }
}

impl Handler<Unfinished> for Store {
    type Result = ResponseFuture<Result<Vec<SessionKey>, Error>>;

    fn handle(&mut self, _: Unfinished, _: &mut Self::Context) -> Self::Result {
        self.ask(Reader::unfinished)
    }
}

impl Handler<UsageSince> for Store {
    type Result = ResponseFuture<Result<UsageTotals, Error>>;

    fn handle(&mut self, asked: UsageSince, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.usage(&asked))
    }
}

impl Handler<UsageDays> for Store {
    type Result = ResponseFuture<Result<Vec<DayUsage>, Error>>;

    fn handle(&mut self, UsageDays { since }: UsageDays, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.usage_days(since))
    }
}

impl Handler<UsageBy> for Store {
    type Result = ResponseFuture<Result<Vec<UsageShare>, Error>>;

    fn handle(&mut self, asked: UsageBy, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.usage_by(&asked))
    }
}

impl Handler<Backup> for Store {
    type Result = ResponseFuture<Result<BackupReport, Error>>;

    fn handle(&mut self, asked: Backup, _: &mut Self::Context) -> Self::Result {
        let answer = self.back_up(asked.to);
        Box::pin(async move {
            answer?.await.map_err(|_| ErrorCode::Internal.error("the store failed over this copy"))?
        })
    }
}

impl Handler<Observe> for Store {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let mut state = self.figures.to_json();
        let largest = self.pen.holdings.largest(LARGEST_MAX);
        state["owners"] = largest
            .iter()
            .map(|(owner, kept)| {
                let name = (*owner != Owner::Admins).then(|| owner.as_str());
                json!({ "owner": name, "sessions": kept.sessions, "bytes": kept.bytes })
            })
            .collect();
        Observed::leaf("store", state)
    }
}

impl Handler<Stop> for Store {
    type Result = ResponseActFuture<Self, Result<(), Error>>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.finish().into_actor(self))
    }
}

async fn answered<T>(answer: oneshot::Receiver<T>) -> Result<T, Error> {
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(ErrorCode::Internal.error("the store failed over this request")),
        Err(_) => Err(ErrorCode::Timeout.error("the store did not answer in time: is the disk stuck?")),
    }
}

/// Says which log, and who knows more.
fn not_opened(path: &Path, mut error: Error) -> Error {
    let name = path.display().to_string();
    if !error.message.contains(&name) {
        error.message = format!("can't open the store {name}: {}", error.message);
    }
    let is_about_files = matches!(error.code, ErrorCode::Internal | ErrorCode::Unavailable);
    if is_about_files && !error.message.contains("clawmux doctor") {
        error.message += ": clawmux doctor says what to do";
    }
    error
}

fn closed() -> Error {
    ErrorCode::Unavailable.error("the store is closed: the daemon is stopping")
}

fn full(what: &str) -> Error {
    ErrorCode::Unavailable.error(format!("the store is behind: too many {what} wait; try again"))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread, Error> {
    let (ends, over) = oneshot::channel();
    let handle = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            body();
            drop(ends);
        })
        .map_err(|e| ErrorCode::Unavailable.error(format!("can't start the thread {name}: {e}")))?;
    Ok(Thread { handle, over })
}
