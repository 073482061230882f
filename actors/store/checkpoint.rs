//! Moves the write-ahead log into the database, on a thread of its own, so that no commit waits for
//! it: the writer only says how long the log has become.
//!
//! While the writer goes on, such a move never reaches the very end of the log, and the log begins
//! anew only where everything in it was moved. So once the log is long, and all but what came during
//! the last move is moved, the writer is asked to move that itself, between two groups. Only a view
//! of the database that stays open (a copy is being made) makes the log grow until it is closed.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use clawmux_core::error::{Error, ErrorCode};
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::figures::Figures;
use super::files::Files;
use super::sql;

/// The log is moved whenever it has grown by so many pages.
const STEP_PAGES: c_int = 1024;
/// From here on it is to begin anew.
const LONG_PAGES: c_int = 8192;
/// What is little enough for the writer to move.
const REST_PAGES: c_int = 256;
/// How often in a row the thread tries to leave no more than that.
const PASSES_MAX: usize = 4;

/// The thread, and what the writer knows of the log. The thread ends with it.
pub(super) struct Checkpointer {
    wal: Arc<Wal>,
    /// How long the log was when a move was last asked for.
    asked_at: c_int,
    ask: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Wal {
    /// Its length after the last commit.
    pages: AtomicI32,
    /// Whether the writer is to move the rest.
    rest: AtomicBool,
}

impl Checkpointer {
    /// Starts the thread, and watches the commits of `writer` from now on.
    pub(super) fn start(
        writer: &mut Connection,
        files: Arc<Files>,
        figures: Arc<Figures>,
    ) -> Result<Self, Error> {
        let wal = Arc::<Wal>::default();
        let watched = Arc::clone(&wal);
        writer
            .wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
                watched.pages.store(pages, Relaxed);
                Ok(())
            }))
            .map_err(|e| sql(&e))?;
        let db = files.writer()?;
        let (ask, asked) = sync_channel(1);
        let of_thread = Arc::clone(&wal);
        let thread = std::thread::Builder::new()
            .name("clawmux-log-move".into())
            .spawn(move || {
                moves(&db, &of_thread, &asked, &figures);
                drop((db, files));
            })
            .map_err(|e| {
                ErrorCode::Unavailable.error(format!("can't start the thread clawmux-log-move: {e}"))
            })?;
        Ok(Self { wal, asked_at: 0, ask: Some(ask), thread: Some(thread) })
    }

    /// To be called after a commit: has the log moved when it is time. Says whether the writer has
    /// to move some of it now.
    pub(super) fn committed(&mut self) -> bool {
        let pages = self.wal.pages.load(Relaxed);
        if pages < self.asked_at {
            self.asked_at = 0;
        }
        let is_time = pages - self.asked_at >= STEP_PAGES;
        let is_left_alone = is_time && !self.ask();
        self.wal.rest.swap(false, Relaxed) || is_left_alone
    }

    /// Has the log moved soon; says whether there is somebody to do it.
    pub(super) fn ask(&mut self) -> bool {
        self.asked_at = self.wal.pages.load(Relaxed);
        // Where it was asked already it will see what has been added since.
        let asked = self.ask.as_ref().map(|ask| ask.try_send(()));
        !matches!(asked, None | Some(Err(TrySendError::Disconnected(()))))
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.ask = None;
        // It ends after the move under way. A panic in it was told by the panic hook.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn moves(db: &Connection, wal: &Wal, asked: &Receiver<()>, figures: &Figures) {
    let mut failed = false;
    while let Ok(()) = asked.recv() {
        for pass in 1..=PASSES_MAX {
            let begin = Instant::now();
            let (pages, moved) = match db.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
                Ok(moved) => moved,
                // The writer is at it.
                Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => break,
                Err(error) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(%error, "the write-ahead log can't be moved into the database; it is tried again");
                    }
                    break;
                }
            };
            failed = false;
            figures.moved(begin.elapsed(), pages);
            // Someone still looks at what is older: more can't be moved now.
            if pages < LONG_PAGES || moved < pages {
                break;
            }
            if pass == PASSES_MAX || wal.pages.load(Relaxed) - moved <= REST_PAGES {
                wal.rest.store(true, Relaxed);
                break;
            }
        }
    }
}
