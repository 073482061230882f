//! Puts a copy of the store back where no daemon has it open.
//!
//! The copy is read, checked and copied once more beside the store before anything is moved. What takes its
//! place does so by one rename, so that whatever happens there is the old store or the new one, and both are
//! whole. The old one is kept under a name of its own.
//!
//! Its write-ahead log is moved into it first. Where that fails it is damaged: then its files are kept as they
//! are, together.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use serde_json::{Value, json};

use super::backup;
use super::failure::sql;
use super::figures::Figures;
use super::files::{BUSY, Files};
use super::readmitted::{self, Readmitted};
use super::schema::{self, FORMAT, Kind};

/// So many names are tried for the store that was there.
const NAMES_MAX: usize = 100;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The size of the store, in bytes.
    pub bytes: u64,
    /// How many sessions it has.
    pub sessions: u64,
    /// How many runs, in all of them.
    pub runs: u64,
    /// The format it has.
    pub format: i64,
    /// Whether the next start brings it to a newer format.
    pub is_older: bool,
    /// Where the store is that was there; none where there was none.
    pub kept: Option<PathBuf>,
    /// Whose credentials it changes.
    pub readmitted: Readmitted,
}

impl Restored {
    /// What an operator is told of it.
    pub fn to_json(&self, file: &Path, store: &Path) -> Value {
        json!({
            "file": file.display().to_string(),
            "store": store.display().to_string(),
            "bytes": self.bytes,
            "sessions": self.sessions,
            "runs": self.runs,
            "format": self.format,
            "kept": self.kept.as_ref().map(|kept| kept.display().to_string()),
            "credentials": self.readmitted.to_json(),
        })
    }
}

/// Puts a copy of `from` in the place of the store at `path`, which is kept as `PATH.before-restore-STAMP`.
/// Before that `agree` is told whom it lets in that the store does not, at `wall`. Blocks.
///
/// # Errors
/// `NotFound` where there is no such file; `Conflict` where a daemon has the store open, or `from` is of a newer
/// clawmux or no store at all; `Internal` where it is damaged; `Unavailable` where files can't be made; and what
/// `agree` says. The store is as it was then.
pub fn restore<E: From<Error>>(
    from: &Path,
    path: &Path,
    (wall, stamp): (Timestamp, &str),
    agree: impl FnOnce(&Readmitted) -> Result<(), E>,
) -> Result<Restored, E> {
    if !from.is_file() {
        return Err(ErrorCode::NotFound.error(format!("there is no file {}", from.display())).into());
    }
    let is_itself =
        fs::canonicalize(from).ok().is_some_and(|from| fs::canonicalize(path).is_ok_and(|to| to == from));
    if is_itself {
        return Err(ErrorCode::InvalidRequest
            .error(format!("{} is the store itself: name a copy of it", from.display()))
            .into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| cannot("make the folder", folder, &error))?;
    let _lock = Files::lock(path)?;
    let format = examine(from)?;
    let readmitted = readmitted::compare(from, path, wall).map_err(|error| {
        let error = sql(&error);
        Error { message: format!("{}: {}", from.display(), error.message), ..error }
    })?;
    agree(&readmitted)?;
    let new = beside(path, ".restoring");
    remove(&new);
    let copied =
        copy(from, &new).and_then(|report| Ok((report, set_aside(path, &format!("restore-{stamp}"))?)));
    let (report, kept) = copied.inspect_err(|_| remove(&new))?;
    fs::rename(&new, path).map_err(|error| {
        remove(&new);
        cannot("put the copy in the place of", path, &error)
    })?;
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| cannot("bring to the disk", folder, &error))?;
    let is_older = format < FORMAT;
    let (bytes, sessions, runs) = (report.bytes, report.sessions, report.runs);
    Ok(Restored { bytes, sessions, runs, format, is_older, kept, readmitted })
}

/// A view or trigger that no store has by itself: it would act as the daemon.
pub(super) const ADDED: &str = "SELECT name FROM sqlite_master WHERE type = 'view' OR (type = 'trigger' AND name NOT IN \
                     ('session_made', 'session_grown', 'session_given', 'session_gone')) LIMIT 1";

/// The format of the copy, where it is one that this clawmux knows.
fn examine(from: &Path) -> Result<i64, Error> {
    let about = |error: Error| Error { message: format!("{}: {}", from.display(), error.message), ..error };
    let damaged = |error: &rusqlite::Error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => ErrorCode::Conflict.error(format!(
            "{} is not a clawmux store: name a file that `clawmux backup` wrote",
            from.display()
        )),
        _ => about(sql(error)),
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(from, flags).map_err(|e| damaged(&e))?;
    db.busy_timeout(BUSY).map_err(|e| damaged(&e))?;
    match schema::kind(&db).map_err(|e| damaged(&e))? {
        Kind::Log(format) => {
            let verdict: String =
                db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(|e| damaged(&e))?;
            if verdict != "ok" {
                let what = verdict.lines().next().unwrap_or_default();
                return Err(ErrorCode::Internal
                    .error(format!("{} is damaged ({what}): use another copy", from.display())));
            }
            let added = db.query_row(ADDED, [], |row| row.get::<_, String>(0)).optional();
            if let Some(name) = added.map_err(|e| damaged(&e))? {
                return Err(ErrorCode::Conflict.error(format!(
                    "{} has a view or a trigger that clawmux did not make ({name}): use another copy",
                    from.display()
                )));
            }
            Ok(format)
        }
        Kind::Empty | Kind::Foreign => Err(ErrorCode::Conflict.error(format!(
            "{} is not a clawmux store: name a file that `clawmux backup` wrote",
            from.display()
        ))),
        newer @ Kind::Newer { .. } => newer.format().map_err(about),
    }
}

/// A copy that needs no other file beside it.
fn copy(from: &Path, to: &Path) -> Result<super::BackupReport, Error> {
    backup::write_copy(&Files::unclaimed(from), to, &Figures::default(), || Ok(()))
}

/// Keeps the store that is there as `PATH.before-WHAT`; afterwards nothing is beside it that belongs to it.
pub(super) fn set_aside(path: &Path, what: &str) -> Result<Option<PathBuf>, Error> {
    let is_there = |path: &Path| path.metadata().is_ok_and(|meta| meta.len() > 0);
    let (wal, shm) = (beside(path, "-wal"), beside(path, "-shm"));
    if is_there(path) {
        fold(path);
    }
    let kept = free_name(path, what)?;
    let mut is_kept = false;
    // Both while both are in their places, so that at no time one is without the other.
    for (from, to) in [(path, kept.clone()), (&wal, beside(&kept, "-wal"))] {
        if is_there(from) {
            fs::hard_link(from, &to)
                .or_else(|_| fs::copy(from, &to).and_then(|_| File::open(&to)?.sync_all()))
                .map_err(|error| cannot("keep the store as", &to, &error))?;
            is_kept = true;
        }
    }
    for left in [&wal, &shm] {
        match fs::remove_file(left) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot("remove", left, &error));
            }
            _ => {}
        }
    }
    Ok(is_kept.then_some(kept))
}

/// A name that nothing has yet: with a number where the same was done in the same second.
fn free_name(path: &Path, what: &str) -> Result<PathBuf, Error> {
    let name = |at: usize| match at {
        1 => beside(path, &format!(".before-{what}")),
        at => beside(path, &format!(".before-{what}-{at}")),
    };
    let mut names = (1..=NAMES_MAX).map(name);
    names.find(|name| name.symlink_metadata().is_err()).ok_or_else(|| {
        ErrorCode::Conflict.error(format!("{} exists, and others like it: try again", name(1).display()))
    })
}

/// Moves the write-ahead log of a store into it. One that is damaged stays as it is.
fn fold(path: &Path) {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let folded = Connection::open_with_flags(path, flags).and_then(|db| {
        db.busy_timeout(BUSY)?;
        db.pragma_update(None, "synchronous", "FULL")?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    });
    if let Err(error) = folded {
        tracing::debug!(%error, "the store that is replaced is kept as it is");
    }
}

pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

pub(super) fn remove(new: &Path) {
    for end in ["", "-journal", "-wal", "-shm"] {
        let _ = fs::remove_file(beside(new, end));
    }
}

pub(super) fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    ErrorCode::Unavailable.error(format!("can't {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    fn put(from: &Path, path: &Path, stamp: &str) -> Result<Restored, Error> {
        restore(from, path, (Timestamp::from_millis(1000), stamp), |_| Ok(()))
    }

    /// A store, and the name of its first session's table row count.
    fn make(path: &Path, sessions: usize) {
        actix::System::new().block_on(async {
            let mut store = Store::open(path).await.unwrap();
            store.finish().await.unwrap();
        });
        let db = Connection::open(path).unwrap();
        for at in 0..sessions {
            db.execute(
                "INSERT INTO sessions (key, owner, created, updated, head, reserved, cleared, opened, uuid, agent, conversation)
                 VALUES (?1, '', 0, 0, 0, 0, 0, 1, ?1, 'main', ?1)",
                [format!("main:test:{at}:main")],
            )
            .unwrap();
        }
    }

    fn sessions(path: &Path) -> i64 {
        let db = Connection::open(path).unwrap();
        db.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with("-shm") && !name.ends_with("-wal"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_copy_takes_the_place_of_the_store_which_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (store, saved) = (folder.path().join("clawmux.db"), folder.path().join("saved.db"));
        make(&store, 2);
        super::super::copy(&store, &saved).unwrap();
        let db = Connection::open(&store).unwrap();
        db.execute("DELETE FROM sessions WHERE key = 'main:test:0:main'", []).unwrap();
        // Killed with the write-ahead log beside it.
        std::mem::forget(db);
        let restored = put(&saved, &store, "T").unwrap();
        let kept = folder.path().join("clawmux.db.before-restore-T");
        assert_eq!((restored.sessions, restored.kept.as_ref()), (2, Some(&kept)));
        assert!(!restored.is_older && restored.bytes > 0, "{restored:?}");
        assert_eq!((sessions(&store), sessions(&kept), sessions(&saved)), (2, 1, 2));
        let lock = "clawmux.db.lock".to_owned();
        assert_eq!(
            names(folder.path()),
            ["clawmux.db".into(), "clawmux.db.before-restore-T".into(), lock, "saved.db".to_owned()]
        );
        let elsewhere = folder.path().join("new/clawmux.db");
        assert_eq!(put(&saved, &elsewhere, "T").unwrap().kept, None, "there was none");
        assert_eq!(sessions(&elsewhere), 2);
    }

    #[test]
    fn what_is_no_whole_store_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("clawmux.db");
        make(&store, 1);
        let text = folder.path().join("text");
        fs::write(&text, "not a database at all ".repeat(100)).unwrap();
        let notes = folder.path().join("notes.db");
        Connection::open(&notes).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
        let newer = folder.path().join("newer.db");
        super::super::copy(&store, &newer).unwrap();
        Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let added = folder.path().join("added.db");
        super::super::copy(&store, &added).unwrap();
        let trigger = "CREATE TRIGGER mine AFTER INSERT ON sessions BEGIN DELETE FROM sessions; END";
        Connection::open(&added).unwrap().execute_batch(trigger).unwrap();
        let damaged = folder.path().join("damaged.db");
        super::super::copy(&store, &damaged).unwrap();
        let mut bytes = fs::read(&damaged).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 8192].fill(0x5a);
        fs::write(&damaged, bytes).unwrap();
        let before = fs::read(&store).unwrap();
        for (file, says) in [
            (text, "is not a clawmux store: name a file that `clawmux backup` wrote"),
            (notes, "is not a clawmux store: name a file that `clawmux backup` wrote"),
            (newer, "format 99"),
            (damaged, "damaged"),
            (added, "a trigger that clawmux did not make (mine)"),
            (folder.path().join("away"), "there is no file"),
            (store.clone(), "is the store itself"),
        ] {
            let error = put(&file, &store, "T").unwrap_err();
            assert!(error.message.contains(says), "{}: {error}", file.display());
            assert_eq!(fs::read(&store).unwrap(), before, "{}", file.display());
        }
        let open = Files::claim(&store).unwrap();
        let error = put(&folder.path().join("notes.db"), &store, "T").unwrap_err();
        assert!(error.message.contains("another clawmux"), "{error}");
        drop(open);
        assert!(!names(folder.path()).iter().any(|name| name.contains("restor")), "nothing is left");
    }
}
