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
mod audit;
mod backup;
mod change;
mod channels;
mod columns;
mod devices;
mod elsewhere;
mod failure;
mod figures;
mod files;
mod health;
mod holdings;
mod inspect;
mod jobs;
mod journal;
mod kept_files;
pub(crate) mod ledger;
mod live;
mod log_writer;
mod mcp_tools;
pub mod membership;
mod memories;
mod pages;
mod plugin_values;
mod probe;
mod query;
mod reader;
mod readmitted;
mod replay;
mod restore;
mod schema;
pub mod tables;
mod tokens;
mod usage;
mod writer;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler, Message, ResponseActFuture, WrapFuture};
pub use clawmux_core::channel::change::{ChannelChange, Saying, SendState, Words};
pub use clawmux_core::conversation::log::segment::SEGMENT_BYTES_MAX;
pub use clawmux_core::daemon::operator::{
    BackupReport, Listed, ListedMemory, MemoryTotals, Place, UsageGroup, UsageShare,
};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
pub use clawmux_core::memory::file::FileChange;
pub use clawmux_core::schedule::job::JobWrite;
pub use clawmux_core::tools::plugin::PluginNamespace;
use serde_json::json;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::runtime::observe::{Observe, Observed};
use backup::RunningBackup;
use elsewhere::Watchers;
use files::Files;
use journal::{Clustered, Journal, Local};
use live::Shared;
use reader::Reader;
use reader::questions::Questions;
use writer::{PendingChange, Writer};

pub use agents::{KeptAgents, ReadAgents, WriteAgents};
pub use audit::{Audited, RecordCall, audit};
pub use backup::{Backup, copy};
pub use channels::{ChannelState, InboxRow, IsRemembered, OutboxRow, ReadChannel, ReadOutbox, WriteChannel};
pub use devices::{Devices, ReadDevices, WriteDevices};
pub use elsewhere::{ChangedElsewhere, SpentElsewhere, TableChanged, Watch, WatchSpending};
pub(crate) use elsewhere::{until_read, watch};
pub(crate) use figures::Figures;
pub use health::Health;
pub use holdings::{Coming, Holdings};
pub use inspect::{Finding, Severity, inspect, inspect_in_cluster};
pub use jobs::{KeptJobs, ReadFirings, ReadJobTokens, ReadJobs, WriteJobs};
pub use journal::{Counted, Submission, Submitted};
pub use kept_files::{FileTotals, ReadFile, ReadFileIds, ReadFileTotals, ReadFiles, WriteFile};
pub use log_writer::{Append, Delete, LogWriter};
pub use mcp_tools::{AgreeToTools, AgreedTools, ReadAgreedTools};
pub use memories::{
    CountKnown, ExportMemories, Forget, ForgetAll, Import, KeepVectors, Learn, ListMemories,
    ReadLearningTokens, ReadMemory, ReadMemoryTotals, ReadUnembedded, Recall, Remember, SpendOnLearning,
    Unembedded,
};
pub use plugin_values::{ListPluginKeys, ReadPluginValue, WritePluginValue};
pub use probe::Probe;
#[cfg(test)]
pub(crate) use probe::tests::Stick;
pub use query::AskedBy;
pub use reader::{
    Among, Describe, Described, FindCut, FindRun, FindSession, FindTurn, LOAD_BYTES_MAX, ListSessions, Load,
    Loaded, Namesakes, ReadDispensable, ReadEvents, ReadHistory, ReadLanes, ReadPreviews, ReadPrompt,
    ReadRow, ReadRows, ReadSizes, ReadTranscript, ReadUnused, Unfinished, UnfinishedSince, Unused,
    WAITING_BYTES_MAX, exported,
};
pub use readmitted::{Credential, Readmitted};
pub use replay::{
    HideText, Position, ReadPosition, ReadSubject, Replay, Replayed, SessionChanged, ShowText, SubjectEnd,
};
pub use restore::{Restored, restore};
pub use tokens::{ReadEstate, ReadTokens, WriteTokens, has_issued};
pub use usage::{BeginCall, ReadCaches, ReadSpent, RecordUsage, UsageBy, UsageDays, UsageSince};

/// Writes that may wait.
const WRITES_MAX: usize = 4096;
/// Questions that may wait.
const READS_MAX: usize = 1024;
/// How long the answer to a write or a question may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the threads may take to finish what waits when the store stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How many of the owners who hold most are told.
const LARGEST_MAX: usize = 5;

/// The length of a day, as `usage_days` has them.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The log.
#[derive(Debug)]
pub struct Store {
    log_writer: LogWriter,
    /// What goes to the writer whatever the journal is.
    writer: LogWriter,
    reader: Option<Arc<Questions>>,
    threads: Vec<Thread>,
    /// Until the store stops.
    files: Option<Arc<Files>>,
    backup: Option<RunningBackup>,
    watchers: Watchers,
    figures: Arc<Figures>,
}

/// A thread, and how one knows it is over without blocking.
#[derive(Debug)]
struct Thread {
    handle: JoinHandle<()>,
    over: oneshot::Receiver<()>,
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
    /// `Conflict` where another daemon has it open, where it is of a newer format or a cluster's;
    /// `Unavailable` where it can't be opened; `Internal` where it is damaged.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::open_with(path.into(), true, |writes, _| Box::new(Local(writes))).await
    }

    /// Opens the store of a daemon in a cluster: what changes it goes to whoever has the receiver, who has the store
    /// apply it once the cluster's log has it ([`Replay`]).
    ///
    /// # Errors
    /// See [`Store::open`].
    pub async fn open_in_cluster(path: impl Into<PathBuf>) -> Result<(Self, Receiver<Submission>), Error> {
        let (cluster, submissions) = tokio::sync::mpsc::channel(WRITES_MAX);
        let store = Self::open_with(path.into(), false, |writes, figures| {
            Box::new(Clustered { here: Local(writes), cluster, figures })
        });
        Ok((store.await?, submissions))
    }

    async fn open_with(
        path: PathBuf,
        is_alone: bool,
        journal: impl FnOnce(SyncSender<PendingChange>, Arc<Figures>) -> Box<dyn Journal>,
    ) -> Result<Self, Error> {
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
                if is_alone {
                    membership::goes_alone(writer.db())?;
                }
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
        let to = |journal| LogWriter {
            journal: Arc::new(RwLock::new(Some(journal))),
            figures: Arc::clone(&figures),
            holdings: holdings.clone(),
        };
        let writer_of = to(Box::new(Local(writes.clone())));
        let log_writer = to(journal(writes, Arc::clone(&figures)));
        let (threads, reader, files) = (vec![reader, writer], Some(questions), Some(files));
        let (backup, watchers) = (None, Watchers::default());
        Ok(Self { log_writer, writer: writer_of, reader, threads, files, backup, watchers, figures })
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
        let log_writer = LogWriter {
            journal: Arc::new(RwLock::new(None)),
            figures: Arc::clone(&figures),
            holdings: Holdings::default(),
        };
        let (threads, reader) = (vec![reader], Some(questions));
        let writer = log_writer.clone();
        let (files, backup, watchers) = (None, None, Watchers::default());
        Ok(Actor::start(Self { log_writer, writer, reader, threads, files, backup, watchers, figures }))
    }

    /// What sessions write with.
    pub fn log_writer(&self) -> LogWriter {
        self.log_writer.clone()
    }

    /// Lets the threads finish, and waits for them.
    fn finish(&mut self) -> Pin<Box<dyn Future<Output = Result<(), Error>>>> {
        self.log_writer.put_down();
        self.writer.put_down();
        if let Some(reader) = self.reader.take() {
            reader.close();
        }
        self.files = None;
        let mut threads = std::mem::take(&mut self.threads);
        if let Some(backup) = self.backup.take() {
            threads.push(backup.cancel());
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

impl Drop for Store {
    fn drop(&mut self) {
        self.log_writer.put_down();
        self.writer.put_down();
        if let Some(reader) = &self.reader {
            reader.close();
        }
        if let Some(backup) = self.backup.take() {
            backup.cancel();
        }
    }
}

impl Actor for Store {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(WRITES_MAX);
    }
}

impl Handler<Observe> for Store {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let mut state = self.figures.to_json();
        let largest = self.log_writer.holdings.largest(LARGEST_MAX);
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
