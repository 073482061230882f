//! A consistent copy of the log while it is written to.
//!
//! **How.** One view of the database is opened and copied page by page, on a thread with
//! connections of its own. What is written meanwhile goes to the write-ahead log, so the writer
//! waits for nothing, and the copy never has to begin anew. The price: the write-ahead log can't
//! begin anew either as long as the view is open, hence the deadline, and a copy rests as long as it
//! works, so that the disk is not its alone.
//!
//! **What comes out** is one file that needs no other beside it, checked, and on the disk when it
//! gets its name. Whatever goes wrong leaves nothing behind, but for a power cut: that leaves a
//! file whose name begins with a dot and ends with `.part`, which the next copy removes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use actix::{Handler, Message, ResponseFuture};
use clawmux_core::daemon::operator::BackupReport;
use clawmux_core::error::{Error, ErrorCode};
use rusqlite::backup::{self, StepResult};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::failure::sql;
use super::figures::Figures;
use super::files::Files;
use super::{Store, Thread, closed, spawn};

/// How long one may take.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How much is copied at once.
const STEP_PAGES: i32 = 128;
/// So many steps are brought to the disk together.
const STEPS_PER_SYNC: usize = 16;
/// The longest rest after a step; else it is as long as the step.
const REST_MAX: Duration = Duration::from_millis(100);

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

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct RunningBackup {
    thread: Thread,
    /// Ends it.
    cancel: Arc<AtomicBool>,
    /// Whether its result is there; the thread may still be about to end.
    done: Arc<AtomicBool>,
}

impl RunningBackup {
    /// Has it end early; its thread, which may take a moment for that.
    pub(super) fn cancel(self) -> Thread {
        self.cancel.store(true, Relaxed);
        self.thread
    }

    fn goes_on(&mut self) -> bool {
        !self.done.load(Relaxed) && matches!(self.thread.over.try_recv(), Err(TryRecvError::Empty))
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

impl Store {
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
                () if began.elapsed() > BACKUP_TIMEOUT => Err(ErrorCode::Timeout
                    .error("the copy was not done in time and was given up: is the disk slow?")),
                () => Ok(()),
            };
        let thread = spawn("clawmux-log-copy", move || {
            tracing::info!(to = %to.display(), "a copy of the store is being made");
            let result = write_copy(&files, &to, &figures, goes_on);
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
    write_copy(&files, to, &Figures::default(), || Ok(()))
}

/// Copies the log to `to`, which must not exist. `goes_on` says why not, if it does not.
pub(super) fn write_copy(
    files: &Files,
    to: &Path,
    figures: &Figures,
    goes_on: impl Fn() -> Result<(), Error> + Clone + Send + 'static,
) -> Result<BackupReport, Error> {
    let begin = Instant::now();
    let target = Target::new(to)?;
    let source = files.reader()?;
    // The view begins with the first read: everything acknowledged by now is in it.
    source.execute_batch("BEGIN").map_err(|e| sql(&e))?;
    source.query_row("SELECT opened FROM meta", [], |_| Ok(())).map_err(|e| sql(&e))?;

    let failed = |e: &rusqlite::Error| target.failed_sql(e);
    let mut db = target.open().map_err(|e| failed(&e))?;
    copy_pages(&source, &mut db, &target, figures, &goes_on)?;
    drop(source);

    // One file: no write-ahead log beside it until somebody opens it to write.
    let mode: String = db
        .pragma_update_and_check(None, "journal_mode", "delete", |row| row.get(0))
        .map_err(|e| failed(&e))?;
    if mode != "delete" {
        return Err(target.failed("it does not become a file of its own"));
    }
    let ends = goes_on.clone();
    db.progress_handler(10_000, Some(move || ends().is_err())).map_err(|e| failed(&e))?;
    let checked = db.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    goes_on()?;
    let verdict = checked.map_err(|e| failed(&e))?;
    if verdict != "ok" {
        let what = verdict.lines().next().unwrap_or_default();
        return Err(ErrorCode::Internal.error(format!(
            "the store is damaged, and so would be a copy of it ({what}): clawmux doctor says what to do"
        )));
    }
    let count = |table: &str| {
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
            .map(|rows| u64::try_from(rows).unwrap_or(0))
            .map_err(|e| failed(&e))
    };
    let (sessions, runs) = (count("sessions")?, count("runs")?);
    drop(db);
    goes_on()?;
    let bytes = target.keep()?;
    let took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(BackupReport { bytes, sessions, runs, took_ms })
}

fn copy_pages(
    source: &Connection,
    db: &mut Connection,
    target: &Target<'_>,
    figures: &Figures,
    goes_on: &impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |e: &rusqlite::Error| target.failed_sql(e);
    let backup = backup::Backup::new(source, db).map_err(|e| failed(&e))?;
    for step in 1.. {
        goes_on()?;
        let begin = Instant::now();
        let done = backup.step(STEP_PAGES).map_err(|e| failed(&e))?;
        figures.backup_pages_left.store(u64::try_from(backup.progress().remaining).unwrap_or(0), Relaxed);
        if matches!(done, StepResult::Done) {
            break;
        }
        if step % STEPS_PER_SYNC == 0 {
            // In portions, so that at the end no sync of everything stands in the way of others.
            target.file.sync_data().map_err(|e| target.failed(&e.to_string()))?;
        }
        thread::sleep(begin.elapsed().min(REST_MAX));
    }
    Ok(())
}

/// The file that becomes the copy. Removed unless it is kept.
struct Target<'a> {
    to: &'a Path,
    folder: &'a Path,
    part: PathBuf,
    file: File,
}

impl<'a> Target<'a> {
    fn new(to: &'a Path) -> Result<Self, Error> {
        if to.file_name().is_none() {
            return Err(ErrorCode::InvalidRequest
                .error(format!("{} names no file: say where the copy goes", to.display())));
        }
        if to.symlink_metadata().is_ok() {
            return Err(exists(to));
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let part = part_of(to);
        remove(&part);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&part);
        let file = file.map_err(|e| {
            ErrorCode::Unavailable
                .error(format!("can't write a copy of the store into {}: {e}", folder.display()))
        })?;
        Ok(Self { to, folder, part, file })
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&self.part, flags)?;
        // Nobody sees the file before it is whole, so there is nothing to roll back.
        db.pragma_update_and_check(None, "journal_mode", "off", |_| Ok(()))?;
        db.pragma_update(None, "synchronous", "off")?;
        Ok(db)
    }

    /// Brings it to the disk and gives it its name. Its size.
    fn keep(self) -> Result<u64, Error> {
        let failed = |e: io::Error| self.failed(&e.to_string());
        self.file.sync_all().map_err(failed)?;
        // Unlike a rename this never replaces a file that has come meanwhile.
        match fs::hard_link(&self.part, self.to) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(exists(self.to)),
            // A file system without such links.
            Err(_) if self.to.symlink_metadata().is_ok() => return Err(exists(self.to)),
            Err(_) => fs::rename(&self.part, self.to).map_err(failed)?,
        }
        remove(&self.part);
        File::open(self.folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        self.file.metadata().map(|meta| meta.len()).map_err(failed)
    }

    /// What SQLite says may concern the log as well.
    fn failed_sql(&self, error: &rusqlite::Error) -> Error {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => sql(error),
            _ => self.failed(&error.to_string()),
        }
    }

    fn failed(&self, why: &str) -> Error {
        ErrorCode::Unavailable.error(format!("can't write the copy {}: {why}", self.to.display()))
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        remove(&self.part);
    }
}

/// Where an unfinished copy is that becomes `to`.
pub(super) fn part_of(to: &Path) -> PathBuf {
    let mut part = OsString::from(".");
    part.push(to.file_name().unwrap_or_default());
    part.push(".part");
    to.with_file_name(part)
}

/// Removes an unfinished copy and what SQLite may have put beside it.
fn remove(part: &Path) {
    for end in ["", "-journal", "-wal", "-shm"] {
        let mut path = part.as_os_str().to_owned();
        path.push(end);
        let _ = fs::remove_file(path);
    }
}

fn exists(to: &Path) -> Error {
    ErrorCode::Conflict.error(format!("{} exists: name another file, or move that one away", to.display()))
}
