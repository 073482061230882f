//! The files of the log: made for their owner only, held by one daemon at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clawmux_core::error::{Error, ErrorCode};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::failure::{is_outage, sql, written};
use super::schema;

/// How long a holder of the lock may be about to let go: a daemon that ends, or a child of ours
/// between fork and exec, which has copies of all open files.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// How many prepared statements a connection keeps.
const STATEMENTS_KEPT: usize = 128;

/// How long a statement waits for another process that looks into the database (a backup, say).
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// `auto_vacuum` by its number: free pages are given back when that is asked for.
const INCREMENTAL: i64 = 2;

/// How much room there has to be before work is taken again after an outage.
const ROOM_BYTES: usize = 1 << 20;

/// The database at `path`, whoever has it open, to be looked at alone.
pub(super) fn look(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(busy)?;
    // The last to close a store moves its write-ahead log into it; not this one.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(db)
}

/// The claim on a database. Whoever holds it is the only daemon on it.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    /// None where it is only read, beside whoever holds it.
    _lock: Option<File>,
}

impl Files {
    /// Claims the database at `path`, made if there is none.
    ///
    /// # Errors
    /// `Conflict` where another daemon holds it, `Unavailable` where the files can't be made.
    pub(super) fn claim(path: &Path) -> Result<Self, Error> {
        let lock = Self::lock(path)?;
        let files = Self { path: path.to_owned(), _lock: Some(lock) };
        files.is_complete()?;
        let failed = |what: &Path, e: std::io::Error| cannot_open(what, &e);
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        drop(made.map_err(|e| failed(path, e))?);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| failed(folder, e))?;
        Ok(files)
    }

    /// The database at `path` to be read alone, whoever holds it; it need not be of the present format.
    pub(super) fn unclaimed(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }

    /// Takes the lock of the database at `path`, which need not be there.
    ///
    /// # Errors
    /// As [`Self::claim`]'s.
    pub(super) fn lock(path: &Path) -> Result<File, Error> {
        let failed = |what: &Path, e: std::io::Error| cannot_open(what, &e);
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path);
        let mut lock = made.map_err(|e| failed(&lock_path, e))?;
        match try_lock(&lock) {
            Ok(()) => {}
            Err(TryLockError::Error(e)) => return Err(failed(&lock_path, e)),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.take(16).read_to_string(&mut holder);
                let pid = holder.trim();
                let who = if pid.is_empty() { String::new() } else { format!(" (process {pid})") };
                return Err(ErrorCode::Conflict.error(format!(
                    "another clawmux{who} has the store {} open: stop it, or give this one a home of its own",
                    path.display()
                )));
            }
        }
        // Whose lock it is, for the message above. Nothing depends on it.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(lock)
    }

    /// Whether there is no write-ahead log without its database.
    fn is_complete(&self) -> Result<(), Error> {
        let size = |path: &Path| path.metadata().map_or(0, |meta| meta.len());
        if size(&self.path) == 0 && size(&self.wal()) > 0 {
            return Err(ErrorCode::Conflict.error(format!(
                "there is no store in {}, but what was not yet moved into it is in {}: put the store it belongs to \
                 back, or move that file away to begin anew; see clawmux doctor",
                self.path.display(),
                self.wal().display()
            )));
        }
        Ok(())
    }

    /// The connection that writes.
    ///
    /// # Errors
    /// `Conflict` where the file is not for this clawmux; it is left as it was then.
    pub(super) fn writer(&self) -> Result<Connection, Error> {
        let failed = |e: rusqlite::Error| self.cannot_open(&e);
        let db = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // Closed, it would move what a killed process left, which may not be on the disk.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
        schema::kind(&db).map_err(failed)?.format()?;
        if !set_up(&db).map_err(failed)? {
            let path = self.path.display();
            return Err(ErrorCode::Unavailable.error(format!(
                "can't open the store {path}: its file system has no shared memory for a write-ahead log"
            )));
        }
        Ok(db)
    }

    /// A connection that reads.
    pub(super) fn reader(&self) -> Result<Connection, Error> {
        self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// The size of the database with what is not yet moved into it.
    pub(super) fn bytes(&self) -> u64 {
        let size = |path: &Path| path.metadata().map_or(0, |meta| meta.len());
        size(&self.path) + size(&self.wal())
    }

    /// The write-ahead log.
    pub(super) fn wal(&self) -> PathBuf {
        let mut wal = self.path.as_os_str().to_owned();
        wal.push("-wal");
        wal.into()
    }

    /// Whether there is room for some work, and not only for the next few bytes.
    ///
    /// # Errors
    /// What a file that is this large and goes away again met.
    pub(super) fn has_room(&self) -> io::Result<()> {
        let mut path = self.path.as_os_str().to_owned();
        path.push(".room");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let zeros = [0; 64 << 10];
        let written = (0..ROOM_BYTES / zeros.len()).try_for_each(|_| file.write_all(&zeros));
        let removed = std::fs::remove_file(&path);
        written.and(removed)
    }

    fn connect(&self, flags: OpenFlags) -> Result<Connection, Error> {
        let db = Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .and_then(|db| db.busy_timeout(BUSY).map(|()| db))
            .map_err(|e| self.cannot_open(&e))?;
        db.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        // Statements are not prepared again because a value changed that a partial index may turn on.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(|e| self.cannot_open(&e))?;
        Ok(db)
    }

    fn cannot_open(&self, error: &rusqlite::Error) -> Error {
        // Of a full disk SQLite says that only where it writes its own files.
        let room = if is_outage(error) { self.has_room() } else { Ok(()) };
        let e = room.map_or_else(|why| written(&why), |()| sql(error));
        Error { message: format!("can't open the store {}: {e}", self.path.display()), ..e }
    }
}

/// Sets up the connection that writes, to a file that is for this clawmux; whether it has a write-ahead log.
fn set_up(db: &Connection) -> rusqlite::Result<bool> {
    // Said again it would be written down again, and synced.
    if db.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0))? != INCREMENTAL {
        // Where nothing is in it yet; else it takes a `VACUUM`.
        db.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    }
    // What is deleted is overwritten, not only forgotten.
    db.pragma_update(None, "secure_delete", "ON")?;
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    // The writer does that itself.
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok(mode == "wal")
}

fn cannot_open(path: &Path, error: &std::io::Error) -> Error {
    ErrorCode::Unavailable.error(format!("can't open the store {}: {error}", path.display()))
}

/// Takes the lock, waiting a little for a holder who is about to let go.
fn try_lock(lock: &File) -> Result<(), TryLockError> {
    let begin = Instant::now();
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_TIMEOUT => thread::sleep(LOCK_POLL),
            taken => return taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_for_their_owner_only_and_held_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let files = Files::claim(&path).unwrap();
        let db = files.writer().unwrap();
        db.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
        let mut seen = 0;
        for entry in folder.path().read_dir().unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
            seen += 1;
        }
        assert_eq!(seen, 4, "database, lock, write-ahead log and its index");

        let error = Files::claim(&path).unwrap_err();
        assert_eq!(error.code, ErrorCode::Conflict);
        assert!(error.message.contains(&format!("process {}", std::process::id())), "{error}");
        drop((db, files));
        Files::claim(&path).unwrap();
    }

    #[test]
    fn a_write_ahead_log_without_its_log_is_not_taken_for_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        std::fs::write(folder.path().join("clawmux.db-wal"), "left").unwrap();
        for _ in 0..2 {
            let error = Files::claim(&path).unwrap_err();
            assert_eq!(error.code, ErrorCode::Conflict);
            assert!(error.message.contains("clawmux.db-wal: put the store it belongs to"), "{error}");
            std::fs::write(&path, "").unwrap();
        }
        assert_eq!(std::fs::read(folder.path().join("clawmux.db-wal")).unwrap(), b"left");
    }

    #[test]
    fn a_file_that_is_no_database_is_named_as_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        std::fs::write(&path, "not a database, but long enough to be looked at as one".repeat(100)).unwrap();
        let error = Files::claim(&path).unwrap().writer().unwrap_err();
        assert!(error.message.contains("clawmux doctor"), "{error}");
    }
}
