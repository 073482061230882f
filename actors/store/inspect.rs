//! What can be said of a log on the disk, whether a daemon has it open or not: for an operator who
//! wonders why the daemon does not start, or whether all is well.
//!
//! Nothing is changed, and no bytes in the files can make this fail: what can't be read is itself a
//! finding. Deliberately absent: repair. What is damaged is replaced by a copy, or salvaged with
//! SQLite's own tool into a new file; the finding says how.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clawmux_core::conversation::log::page;
use clawmux_core::ids::SessionKey;
use rusqlite::Connection;

use super::files::{BUSY, look};
use super::membership::{damage_of_meta, replica};
use super::schema::{self, FORMAT, Kind};

/// Less free space than this is an error: the next writes may fail.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// So with room for fewer files than this.
const FREE_INODES_MIN: u64 = 64;
/// A write-ahead log beyond this does not begin anew as it should.
const WAL_BYTES_MAX: u64 = 256 << 20;
/// Free space inside the database that is worth a word.
const UNUSED_BYTES_MAX: u64 = 64 << 20;
/// How many complaints of SQLite are told.
const COMPLAINTS_MAX: usize = 3;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// It works, but something should be done.
    Warning,
    /// The daemon can't work with it, or soon won't.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
}

/// Looks at the log at `path`, in order of importance to one who wants it to open. Blocks: it reads
/// all of it, for at most about `within`.
pub fn inspect(path: &Path, within: Duration) -> Vec<Finding> {
    inspect_as(path, within, false)
}

/// The same for the store of a cluster's node: what it has lost the log of the cluster has.
pub fn inspect_in_cluster(path: &Path, within: Duration) -> Vec<Finding> {
    inspect_as(path, within, true)
}

fn inspect_as(path: &Path, within: Duration, is_in_log: bool) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    let mut inspection = Inspection { path, within, is_in_log, found: &mut found, damaged: false };
    if inspection.files() {
        inspection.lock();
        inspection.space();
        inspection.write_ahead_log();
        inspection.database();
    }
    found.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn fine(&mut self, what: impl Into<String>) {
        self.add(Severity::Fine, what, "");
    }

    fn warn(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Warning, what, advice);
    }

    fn error(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Error, what, advice);
    }

    fn add(&mut self, severity: Severity, what: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { severity, what: what.into(), advice: advice.into() });
    }
}

struct Inspection<'a> {
    path: &'a Path,
    within: Duration,
    /// Whether the log of a cluster has what the store has.
    is_in_log: bool,
    found: &'a mut Findings,
    damaged: bool,
}

impl Inspection<'_> {
    /// Whether there is something to look into, and whether the daemon may.
    fn files(&mut self) -> bool {
        let path = self.path.display();
        let meta = match fs::metadata(self.path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let wal = self.beside("-wal");
                if wal.metadata().is_ok_and(|meta| meta.len() > 0) {
                    let advice = match self.is_in_log {
                        true => self.taken_from_log(),
                        false => "put the store it belongs to back, or a copy of it and move this one away"
                            .to_owned(),
                    };
                    let what = format!("there is no store at {path}, but {} is there", wal.display());
                    self.found.error(what, advice);
                } else {
                    self.found.fine(format!("there is no store at {path} yet: clawmux serve makes it"));
                }
                return false;
            }
            Err(e) => {
                self.found.error(
                    format!("can't look at {path}: {e}"),
                    "see to the permissions of the folders above it",
                );
                return false;
            }
        };
        if !meta.is_file() {
            self.found.error(format!("{path} is no file"), "point store.path to a file");
            return false;
        }
        let us = fs::metadata("/proc/self").map(|own| own.uid()).ok();
        for end in ["", "-wal", "-shm", ".lock"] {
            let path = self.beside(end);
            if let Ok(meta) = fs::metadata(&path) {
                self.permissions(&path, &meta, us);
            }
        }
        true
    }

    fn permissions(&mut self, path: &Path, meta: &Metadata, us: Option<u32>) {
        let name = path.display();
        // The daemon's user is whoever has the folder; who looks may be another.
        let owner = path.parent().and_then(|folder| fs::metadata(folder).ok()).map(|folder| folder.uid());
        match (owner, us) {
            (Some(owner), _) if owner != meta.uid() => self.found.error(
                format!("{name} belongs to user {}, and its folder to user {owner}", meta.uid()),
                format!("as root: chown {owner} {name}"),
            ),
            (_, Some(us)) if us != meta.uid() => self.found.warn(
                format!("{name} belongs to user {}, this is user {us}", meta.uid()),
                format!("run clawmux as that user: sudo -u '#{}' clawmux doctor", meta.uid()),
            ),
            _ => {}
        }
        if meta.mode() & 0o600 != 0o600 {
            self.found.error(
                format!("{name} may not be read and written by its owner"),
                format!("chmod 600 {name}"),
            );
        } else if meta.mode() & 0o077 != 0 {
            self.found.warn(format!("others than its owner may use {name}"), format!("chmod 600 {name}"));
        }
    }

    /// Who has it open.
    fn lock(&mut self) {
        let path = self.beside(".lock");
        let Ok(mut lock) = File::open(&path) else {
            return self.found.fine("no daemon has the store open");
        };
        match lock.try_lock_shared() {
            Ok(()) => {
                let _ = lock.unlock();
                self.found.fine("no daemon has the store open");
            }
            Err(TryLockError::Error(e)) => self.found.warn(
                format!("can't tell whether a daemon has the store open: {}: {e}", path.display()),
                "put the store on a file system with locks",
            ),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.by_ref().take(16).read_to_string(&mut holder);
                match holder.trim().parse::<u32>() {
                    Ok(pid) if Path::new(&format!("/proc/{pid}")).exists() => {
                        self.found.fine(format!("process {pid} has the store open"));
                    }
                    _ => self.found.warn(
                        format!("somebody holds {}, but not who it says", path.display()),
                        format!(
                            "find out who with: fuser -v {}; a daemon in another container, perhaps",
                            path.display()
                        ),
                    ),
                }
            }
        }
    }

    fn space(&mut self) {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (Some((free, inodes)), Ok(meta)) = (free_space(folder), self.path.metadata()) else { return };
        if inodes.is_some_and(|inodes| inodes < FREE_INODES_MIN) {
            let what = format!("room for {} more files on the disk of the store", inodes.unwrap_or(0));
            self.found.error(what, "remove files nobody needs: df -i says where they are");
        }
        let what = format!("{} free on the disk of the store, which has {}", size(free), size(meta.len()));
        if free < FREE_BYTES_MIN {
            self.found.error(what, "make room: without it new work is refused");
        } else if free < meta.len() {
            self.found
                .warn(what, "a copy of the store would not fit beside it: clawmux backup to another disk");
        } else {
            self.found.fine(what);
        }
    }

    fn write_ahead_log(&mut self) {
        let path = self.beside("-wal");
        let Ok(bytes) = path.metadata().map(|meta| meta.len()) else { return };
        if bytes > WAL_BYTES_MAX {
            self.found.warn(
                format!("the write-ahead log has {}", size(bytes)),
                "it becomes part of the store when nobody looks at what is older (clawmux backup, sqlite3), and when the daemon stops",
            );
        }
        let mut header = [0; 32];
        let read = File::open(&path).and_then(|mut file| file.read_exact(&mut header));
        if bytes > 0 && (read.is_err() || !is_wal_header(&header)) {
            self.found.warn(
                format!(
                    "{} is no write-ahead log: it is passed over, what was only in it is lost",
                    path.display()
                ),
                match self.is_in_log {
                    true => "the daemon takes that from the log of the cluster when it starts",
                    false => "if the last messages are missing, stop the daemon and put a copy of the store in its place",
                },
            );
        }
    }

    fn database(&mut self) {
        let begin = Instant::now();
        let path = self.path.display();
        let mut header = [0; 20];
        let read = File::open(self.path).and_then(|mut file| {
            let length = file.metadata()?.len();
            if length > 0 { file.read_exact(&mut header) } else { Ok(()) }
        });
        if let Err(e) = read
            && e.kind() != std::io::ErrorKind::UnexpectedEof
        {
            return self
                .found
                .error(format!("can't read {path}: {e}"), "see to its permissions, and to the disk: dmesg");
        }
        let (magic, writers) = (&header[..16], header[18]);
        if magic != [0; 16] && magic != b"SQLite format 3\0" {
            return self.damage(format!("{path} is not a clawmux store, or its beginning is damaged"));
        }
        if writers > 2 {
            return self
                .damage(format!("the beginning of {path} says that only a newer SQLite may write it"));
        }
        let mut db = match look(self.path, self.within.min(BUSY)) {
            Ok(db) => db,
            Err(error) => return self.failed("can't open the store", &error),
        };
        match schema::kind(&db) {
            Err(error) => return self.failed("can't read the store", &error),
            Ok(Kind::Empty) => {
                if self.path.metadata().is_ok_and(|meta| meta.len() > 0) {
                    self.damage(format!("{path} has bytes but holds nothing"));
                } else {
                    self.found.fine(format!("{path} is empty: clawmux serve makes the store in it"));
                }
                return;
            }
            Ok(Kind::Log(format)) if format < FORMAT => self.found.fine(format!(
                "the store has format {format}: the next clawmux serve brings it to format {FORMAT}, for good"
            )),
            Ok(Kind::Log(format)) => {
                self.found.fine(format!("the store has format {format}, the present one"))
            }
            Ok(other) => {
                let (what, advice) = other.complaint().unwrap_or_default();
                return self.found.error(what, advice);
            }
        }
        let deadline = begin + self.within;
        let ticks = Some(move || Instant::now() > deadline);
        if let Err(error) = db.progress_handler(1000, ticks) {
            return self.failed("can't look into the store", &error);
        }
        self.integrity(&db);
        if !self.damaged {
            self.consistency(&db);
        }
    }

    /// Whether SQLite finds it whole.
    fn integrity(&mut self, db: &Connection) {
        let checked = db.prepare("PRAGMA integrity_check(100)").and_then(|mut statement| {
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        match checked {
            Ok(said) if said == ["ok"] => self.found.fine("SQLite finds the store whole"),
            Ok(said) => {
                let lines: Vec<&str> = said.iter().flat_map(|line| line.lines()).collect();
                let some = lines[..lines.len().min(COMPLAINTS_MAX)].join("; ");
                self.damage(format!(
                    "SQLite finds the store damaged in {} places or more: {some}",
                    lines.len()
                ));
            }
            Err(error) => self.failed("the check of the store ended early", &error),
        }
    }

    /// What SQLite can't know: how the tables belong together.
    fn consistency(&mut self, db: &Connection) {
        let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
        let sums = [
            ("runs whose session is not there", "SELECT count(*) FROM runs WHERE session NOT IN (SELECT id FROM sessions)"),
            ("idempotency keys whose run is not there", "SELECT count(*) FROM idempotency WHERE run NOT IN (SELECT id FROM runs)"),
            (
                "sessions with events that are not there",
                "WITH RECURSIVE s (id) AS (
                     SELECT min(session) FROM events
                     UNION ALL
                     SELECT (SELECT min(session) FROM events WHERE session > s.id) FROM s WHERE s.id IS NOT NULL)
                 SELECT count(*) FROM s WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM sessions)
                     AND id NOT IN (SELECT session FROM deleted_sessions)",
            ),
            (
                "owners of whom it is not known what they hold",
                "SELECT count(*) FROM (SELECT owner, count(*) AS sessions, sum(bytes) AS bytes FROM sessions GROUP BY owner) s
                 LEFT JOIN holdings h ON h.owner = s.owner WHERE h.sessions IS NOT s.sessions OR h.bytes IS NOT s.bytes",
            ),
            (
                "sessions with events beyond their last number",
                "SELECT count(*) FROM sessions s WHERE (SELECT max(seq) FROM events WHERE session = s.id) > s.head",
            ),
            (
                "runs that end before they begin",
                "SELECT count(*) FROM runs WHERE ended < prompted OR settled < prompted",
            ),
        ];
        // Older formats have no such tables, and nothing half deleted.
        let is_of_now = schema::kind(db).is_ok_and(|kind| kind == Kind::Log(FORMAT));
        let is_asked =
            |sql: &str| is_of_now || !(sql.contains("deleted_sessions") || sql.contains("holdings"));
        for (what, sql) in sums.into_iter().filter(|(_, sql)| is_asked(sql)) {
            match count(sql) {
                Ok(0) => {}
                Ok(rows) => self.damage(format!("{rows} {what}")),
                Err(error) => return self.failed("can't look into the store", &error),
            }
        }
        if let Err(error) = self.what_a_start_reads(db) {
            return self.failed("can't look into the store", &error);
        }
        let figures = count("SELECT count(*) FROM sessions").and_then(|sessions| {
            let unfinished =
                count("SELECT count(*) FROM runs INDEXED BY runs_unfinished WHERE ended IS NULL")?;
            let (free, page) = (count("PRAGMA freelist_count")?, count("PRAGMA page_size")?);
            Ok((sessions, unfinished, u64::try_from(free.saturating_mul(page)).unwrap_or(0)))
        });
        match figures {
            Ok((sessions, unfinished, unused)) => {
                let session = if sessions == 1 { "session" } else { "sessions" };
                let runs = if unfinished == 1 { "run that has" } else { "runs that have" };
                self.found.fine(format!("{sessions} {session}, {unfinished} {runs} not ended"));
                let bytes = self.path.metadata().map_or(0, |meta| meta.len());
                if is_of_now && let Err(error) = self.sizes(db, bytes.saturating_sub(unused)) {
                    return self.failed("can't look into the store", &error);
                }
                let gives_back = count("PRAGMA auto_vacuum").is_ok_and(|mode| mode > 0);
                if unused > UNUSED_BYTES_MAX && unused > bytes / 2 && !gives_back {
                    self.found.warn(
                        format!("{} of the store's {} are free inside", size(unused), size(bytes)),
                        format!(
                            "they are used again; to give them back, from then on by itself: stop the daemon, then \
                             sqlite3 {} 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'",
                            self.path.display()
                        ),
                    );
                }
            }
            Err(error) => self.failed("can't look into the store", &error),
        }
    }

    /// How large it is, how fast it grows, and who has most of it.
    fn sizes(&mut self, db: &Connection, used: u64) -> rusqlite::Result<()> {
        let days = db
            .prepare("SELECT day, bytes FROM sizes ORDER BY day DESC LIMIT 8")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        let mut what = format!("{} of the store are in use", size(used));
        if let (Some((last, now)), Some((first, then))) = (days.first(), days.last())
            && last > first
        {
            let a_day = u64::try_from((now - then) / (last - first)).unwrap_or(0);
            what += &format!(", {} more each day of the last {}", size(a_day), last - first);
        }
        let owners = db
            .prepare("SELECT owner, sessions, bytes FROM holdings ORDER BY bytes DESC, owner LIMIT 3")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<Vec<(String, i64, i64)>>>()?;
        for (at, (owner, sessions, bytes)) in owners.iter().enumerate() {
            let owner = if owner.is_empty() { "the operators".to_owned() } else { format!("{owner:?}") };
            let has = size(u64::try_from(*bytes).unwrap_or(0));
            what += &format!(
                "{} {owner} ({has} in {sessions} {})",
                if at == 0 { "; the largest owners:" } else { "," },
                if *sessions == 1 { "session" } else { "sessions" }
            );
        }
        self.found.fine(what);
        Ok(())
    }

    /// What the daemon can't start without: of which cluster it is and how far, the keys of sessions with work, and the
    /// text of steps that stream.
    fn what_a_start_reads(&mut self, db: &Connection) -> rusqlite::Result<()> {
        if schema::kind(db).is_ok_and(|kind| kind == Kind::Log(FORMAT))
            && let Err(error) = replica(db)
        {
            match damage_of_meta(&error) {
                Some(damage) => self.damage(damage),
                None => return Err(error),
            }
        }
        let mut statement = db.prepare(
            "SELECT s.key FROM runs r INDEXED BY runs_unfinished JOIN sessions s ON s.id = r.session
             WHERE r.ended IS NULL",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let key: String = row.get(0)?;
            if let Err(error) = SessionKey::parse(&key) {
                self.damage(format!("a session has the name {key:?}: {error}"));
            }
        }
        let mut statement = db.prepare("SELECT id, page FROM deltas")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(0)?;
            let bytes = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
            if let Err(error) = page::read(bytes) {
                self.damage(format!("page {id} of the text that streams: {error}"));
            }
        }
        Ok(())
    }

    fn failed(&mut self, what: &str, error: &rusqlite::Error) {
        use rusqlite::ErrorCode as Sqlite;
        match error.sqlite_error_code() {
            Some(Sqlite::OperationInterrupted) => self.found.warn(
                format!("the store was not looked through within {} ms", self.within.as_millis()),
                format!(
                    "give it more time, or: sqlite3 -readonly {} 'PRAGMA integrity_check'",
                    self.path.display()
                ),
            ),
            Some(Sqlite::DatabaseBusy | Sqlite::DatabaseLocked) => self.found.warn(
                format!("{what}: somebody else is at it ({error})"),
                "try again; if it stays so, find out who with: fuser -v on its files",
            ),
            Some(
                Sqlite::CannotOpen
                | Sqlite::PermissionDenied
                | Sqlite::ReadOnly
                | Sqlite::AuthorizationForStatementDenied,
            ) => self.found.error(
                format!("{what}: {error}"),
                "see to the permissions of the store, of the files beside it and of its folder",
            ),
            Some(Sqlite::SystemIoFailure | Sqlite::DiskFull) => {
                self.found.error(format!("{what}: {error}"), "see to the disk: dmesg, df")
            }
            _ => self.damage(format!("{what}: {error}")),
        }
    }

    fn damage(&mut self, what: String) {
        self.damaged = true;
        let path = self.path.display();
        let advice = match self.is_in_log {
            true => self.taken_from_log(),
            false => format!(
                "stop the daemon and keep {path} and {path}-wal; put a copy of clawmux backup in their place; or save \
                 what can be read: sqlite3 {path} .recover | sqlite3 NEW, and put NEW in their place once clawmux doctor finds the sessions in it; or move them away to start anew"
            ),
        };
        self.found.error(what, advice);
    }

    /// What to do on a node of a cluster.
    fn taken_from_log(&self) -> String {
        let path = self.path.display();
        format!(
            "stop the daemon, move {path}* away, and start it: it takes the store from the log of the cluster. Keep what \
             was moved away until that is done; only where the servers have lost the log and no other node has it, put a \
             copy of clawmux backup in its place"
        )
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(end);
        path.into()
    }
}

/// Whether a write-ahead log begins so: its mark, its format, and a checksum over both.
fn is_wal_header(header: &[u8; 32]) -> bool {
    let mut words = [0_u32; 8];
    for (word, bytes) in words.iter_mut().zip(header.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    // The mark's last bit says in which order of bytes the sums were made.
    let summed = |word: u32| if words[0] & 1 == 1 { word } else { word.swap_bytes() };
    let (mut a, mut b) = (0_u32, 0_u32);
    for pair in words[..6].chunks_exact(2) {
        a = a.wrapping_add(summed(pair[0])).wrapping_add(b);
        b = b.wrapping_add(summed(pair[1])).wrapping_add(a);
    }
    words[0] & !1 == 0x377f_0682 && words[1] == 3_007_000 && (words[6], words[7]) == (a, b)
}

/// What a user may still write on the file system of `folder`: bytes, and files where it counts them.
pub(super) fn free_space(folder: &Path) -> Option<(u64, Option<u64>)> {
    let name = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero bytes are a valid `statvfs`, which is plain numbers.
    let mut info: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with a zero byte, and the kernel writes into `info`, which is ours.
    let answer = unsafe { libc::statvfs(name.as_ptr(), &raw mut info) };
    let inodes = (info.f_files > 0).then_some(info.f_favail);
    (answer == 0).then(|| (info.f_bavail.saturating_mul(info.f_frsize), inodes))
}

/// A size in units that people read.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(size < 10.0 && unit > 0);
    format!("{size:.digits$} {}", UNITS[unit])
}
