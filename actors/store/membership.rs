//! Which cluster a store is of, asked and changed while no daemon has it open.
//!
//! A store becomes a cluster's where it is ([`begin`]): from then on no daemon writes to it alone, whatever becomes of
//! the cluster. The base is a copy of it. Where a cluster gets another log, the copy becomes the new log's and then
//! takes the place of the store ([`begin_anew`], [`take`]), which until then is what it was. The store of a node that
//! joins is a base that takes the place of nothing.
//!
//! What is of one daemon alone is no part of a base: text of steps that were not over (whoever goes on says it anew)
//! and the numbers under which sessions were written, which in a cluster are tokens.
//!
//! Where somebody doubts a store, it is made anew beside it ([`make_anew`]), to be compared with.
//!
//! Deliberately absent: the bytes of clients' files, which are not in the store.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawmux_core::cluster::base::{ClusterId, Held, Left, Manifest, Replica, begun};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::replica::digest::{Digest, NONE};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::columns::{Columns as _, integer};
use super::failure::{is_unreadable, sql};
use super::figures::Figures;
use super::files::{BUSY, Files, look};
use super::holdings::Holdings;
use super::inspect::{free_space, size};
use super::live::Shared;
use super::restore::{ADDED, beside, cannot, remove, set_aside};
use super::schema::{self, FORMAT, Kind};
use super::tables::{Compared, compare};
use super::writer::Writer;
use super::{BackupReport, backup};

/// So many rows of a table are counted.
const COUNTED_MAX: u64 = 1000;

/// Tables whose rows nobody would miss: they come by themselves, or say more of what is in others.
const NOT_MISSED: [&str; 17] = [
    "meta",
    "deltas",
    "sizes",
    "deleted_sessions",
    "holdings",
    "audit_chain",
    "calls",
    "credential_uses",
    "channels",
    "channel_seen",
    "channel_codes",
    "learning_days",
    "mcp_servers",
    "mcp_tools",
    "memory_owners",
    "positions",
    "generations",
];

/// What a copy is called that becomes the base, after the name of the store; one that takes its place; and one that it
/// is compared with.
const BASE: &str = ".base";
const JOINING: &str = ".joining";
const ANEW: &str = ".anew";

/// The room that is left beside a store that is made anew: for its write-ahead log, and for whoever else is there.
const SPARE_BYTES: u64 = 64 << 20;

/// The first format that knows of clusters' ids.
const FORMAT_OF_CLUSTERS: i64 = 20;

/// A log that a store is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct Beginning<'a> {
    /// Of which cluster.
    pub cluster: &'a ClusterId,
    /// Which one.
    pub generation: u64,
}

/// A copy of a store that is a base.
#[derive(Clone, Debug, PartialEq)]
pub struct Based {
    /// Where it is.
    pub file: PathBuf,
    /// The chain over all records, at the beginning of the log.
    pub digest: Digest,
    /// How earlier logs of the cluster were left.
    pub left: Vec<Left>,
    /// The format of the store.
    pub format: u64,
    /// What is in it.
    pub report: BackupReport,
}

/// Removes what a process that was killed has left beside the store at `path`: copies on their way. Blocks.
///
/// # Errors
/// `Conflict` where a daemon has it open.
pub fn tidy(path: &Path) -> Result<(), Error> {
    if !folder(path).is_dir() {
        return Ok(());
    }
    let _lock = Files::lock(path)?;
    let (base, anew) = (beside(path, BASE), beside(path, ANEW));
    for left in [&base, &beside(&base, ".lock"), &beside(path, JOINING), &backup::part_of(&base)] {
        remove(left);
    }
    remove_anew(&anew);
    Ok(())
}

fn remove_anew(anew: &Path) {
    for left in [anew, &beside(anew, ".lock"), &beside(anew, ".room")] {
        remove(left);
    }
}

/// What the store at `path` is to a cluster. Blocks.
///
/// # Errors
/// `Conflict` where a daemon has it open, or where it is not for this clawmux; else as [`super::restore()`]'s.
pub fn held(path: &Path) -> Result<Held, Error> {
    if !folder(path).is_dir() {
        return Ok(Held::Nothing);
    }
    let _lock = Files::lock(path)?;
    held_within(path)
}

/// The same, whoever has it open, and without anything being made beside it. Blocks.
///
/// # Errors
/// `Conflict` where it is not for this clawmux; else as [`super::restore()`]'s.
pub fn held_beside(path: &Path) -> Result<Held, Error> {
    held_within(path)
}

fn held_within(path: &Path) -> Result<Held, Error> {
    let size = |path: &Path| path.metadata().map_or(0, |meta| meta.len());
    if size(path) == 0 && size(&beside(path, "-wal")) == 0 {
        return Ok(Held::Nothing);
    }
    let read = look(path, BUSY).and_then(|db| Ok((schema::kind(&db)?, db)));
    let (kind, db) = read.map_err(|error| about(path, sql(&error)))?;
    kind.format().map_err(|error| about(path, error))?;
    let Kind::Log(format) = kind else { return Ok(Held::Nothing) };
    let held = || -> rusqlite::Result<Held> {
        if format >= FORMAT_OF_CLUSTERS
            && let Some(replica) = replica(&db)?
        {
            return Ok(Held::Replica(replica));
        }
        let what = missed(&db)?;
        Ok(if what.is_empty() { Held::Nothing } else { Held::Own(what) })
    };
    held().map_err(|error| about(path, of_meta(&error)))
}

/// What somebody would miss, in words.
fn missed(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut names = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid")?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut missed = Vec::new();
    for name in names {
        if name.starts_with("sqlite_") || NOT_MISSED.contains(&name.as_str()) {
            continue;
        }
        let rows = format!("SELECT count(*) FROM (SELECT 1 FROM {name} LIMIT {COUNTED_MAX})");
        match db.query_row(&rows, [], |row| row.number(0))? {
            0 => {}
            COUNTED_MAX => missed.push(format!("{name}: {COUNTED_MAX} or more")),
            rows => missed.push(format!("{name}: {rows}")),
        }
    }
    Ok(missed)
}

/// The error of reading of which cluster a store is.
fn of_meta(error: &rusqlite::Error) -> Error {
    match damage_of_meta(error) {
        Some(damage) => ErrorCode::Internal.error(format!("{damage}: clawmux doctor says what to do")),
        None => sql(error),
    }
}

/// What is wrong with the tables that say of which cluster a store is, where they are there to be read.
pub(super) fn damage_of_meta(error: &rusqlite::Error) -> Option<String> {
    let why = match error {
        rusqlite::Error::QueryReturnedNoRows => "it is empty".to_owned(),
        error if is_unreadable(error) => "a value of it can't be read".to_owned(),
        rusqlite::Error::SqliteFailure(_, Some(said)) | rusqlite::Error::SqlInputError { msg: said, .. }
            if said.starts_with("no such") =>
        {
            said.clone()
        }
        _ => return None,
    };
    Some(format!(
        "the store does not say of which cluster it is and how far it has come: its table `meta` is damaged, {why}"
    ))
}

/// Of which cluster a store of the present format is, and how far; none where it is of none.
pub(super) fn replica(db: &Connection) -> rusqlite::Result<Option<Replica>> {
    let meta = db.query_row("SELECT cluster, generation, applied, digest FROM meta", [], |row| {
        let at = Left { generation: row.number(1)?, applied: row.number(2)?, digest: row.get(3)? };
        Ok((row.get::<_, String>(0)?, at))
    });
    let (cluster, at) = meta?;
    if cluster.is_empty() {
        return Ok(None);
    }
    let no_id = || rusqlite::Error::FromSqlConversionFailure(0, Type::Text, "no id of a cluster".into());
    let cluster = ClusterId::parse(&cluster).ok_or_else(no_id)?;
    let mut left = db.prepare("SELECT generation, applied, digest FROM generations ORDER BY generation")?;
    let left = left.query_map([], |row| {
        Ok(Left { generation: row.number(0)?, applied: row.number(1)?, digest: row.get(2)? })
    })?;
    let left = left.collect::<Result<_, _>>()?;
    Ok(Some(Replica { cluster, at, left }))
}

/// Whether a daemon alone may write to the store.
///
/// # Errors
/// `Conflict` where it is a cluster's.
pub(super) fn goes_alone(db: &Connection) -> Result<(), Error> {
    match replica(db).map_err(|error| of_meta(&error))? {
        None => Ok(()),
        Some(Replica { cluster, .. }) => Err(ErrorCode::Conflict.error(format!(
            "it is of the cluster {cluster}, and no [cluster] is configured: configure it, or run `clawmux cluster \
             leave`, which lets the store go on alone"
        ))),
    }
}

/// Has the store at `path`, made if there is none, begin a log, and makes a copy of it that is its base. Blocks.
///
/// # Errors
/// `Conflict` where a daemon has it open, or where it is not for this clawmux; `Internal` where it is damaged;
/// `Unavailable` where files can't be made.
pub fn begin(path: &Path, beginning: Beginning<'_>) -> Result<Based, Error> {
    make_folder(path)?;
    let files = Arc::new(Files::claim(path)?);
    let (digest, left) = change(&files, |db| begin_log(db, beginning)).map_err(|error| about(path, error))?;
    let file = beside(path, BASE);
    remove(&file);
    let report = backup::write_copy(&files, &file, &Figures::default(), || Ok(()))?;
    Ok(Based { file, digest, left, format: format(), report })
}

/// Makes a copy of the store at `path` that begins another log of its cluster, whose base it is. The store is left as
/// it is. Blocks.
///
/// # Errors
/// As [`begin`]'s; `NotFound` where there is no store.
pub fn begin_anew(path: &Path, beginning: Beginning<'_>) -> Result<Based, Error> {
    let file = beside(path, BASE);
    for file in [file.clone(), beside(&file, ".lock")] {
        remove(&file);
    }
    let report = backup::copy(path, &file)?;
    let begun = || {
        let files = Arc::new(Files::claim(&file)?);
        let begun = change(&files, |db| begin_log(db, beginning))?;
        let db = files.writer()?;
        // One file, and nothing beside it.
        db.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(())).map_err(|e| sql(&e))?;
        Ok(begun)
    };
    let begun = begun();
    remove(&beside(&file, ".lock"));
    let (digest, left) = begun.map_err(|error| {
        remove(&file);
        about(path, error)
    })?;
    Ok(Based { file, digest, left, format: format(), report })
}

/// Lets the store at `path` go on alone; says of which cluster it was. Blocks.
///
/// # Errors
/// As [`begin`]'s; `Conflict` where there is no store, or where it is of no cluster.
pub fn leave(path: &Path) -> Result<Replica, Error> {
    let Held::Replica(left) = held(path)? else {
        return Err(ErrorCode::Conflict.error(format!("the store {} is of no cluster", path.display())));
    };
    let files = Arc::new(Files::claim(path)?);
    change(&files, |db| {
        db.execute("UPDATE meta SET cluster = '', generation = 0, applied = 0, digest = ?", [NONE])?;
        db.execute_batch("DELETE FROM positions; DELETE FROM generations; UPDATE sessions SET opened = 0")
    })
    .map_err(|error| about(path, error))?;
    Ok(left)
}

/// Opens a store as a daemon does, changes it in one transaction, and brings that to the disk.
fn change<T>(
    files: &Arc<Files>,
    change: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, Error> {
    let writer = Writer::open(
        Arc::clone(files),
        Arc::new(Shared::default()),
        Arc::new(Figures::default()),
        Holdings::default(),
    )?;
    let db = writer.db();
    let changed = || {
        db.execute_batch("PRAGMA synchronous=FULL")?;
        let tx = db.unchecked_transaction()?;
        let changed = change(&tx)?;
        tx.commit()?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(changed)
    };
    changed().map_err(|error| sql(&error))
}

/// Has the store begin a log: its chain, and how earlier ones were left.
fn begin_log(
    db: &Connection,
    Beginning { cluster, generation }: Beginning<'_>,
) -> rusqlite::Result<(Digest, Vec<Left>)> {
    let before = replica(db)?.filter(|before| before.cluster == *cluster);
    db.execute_batch(
        "DELETE FROM positions;
         DELETE FROM deltas;
         UPDATE sessions SET reserved = max(reserved, head), head = coalesce(
             (SELECT max(seq) FROM events WHERE events.session = sessions.id), head)
             WHERE id IN (SELECT session FROM runs WHERE ended IS NULL);
         UPDATE sessions SET opened = 0;",
    )?;
    let (mut left, at) = before.map_or((Vec::new(), None), |before| (before.left, Some(before.at)));
    left.extend(at);
    db.execute("DELETE FROM generations", [])?;
    for Left { generation, applied, digest } in &left {
        db.execute(
            "INSERT INTO generations VALUES (?, ?, ?)",
            params![integer(*generation), integer(*applied), digest],
        )?;
    }
    let digest = begun(&at.map_or(NONE, |at| at.digest), cluster, generation);
    db.execute(
        "UPDATE meta SET cluster = ?, generation = ?, applied = 0, digest = ?",
        params![cluster.as_str(), integer(generation), digest],
    )?;
    Ok((digest, left))
}

/// Whether this clawmux can take a base.
///
/// # Errors
/// `Conflict` where a newer one made it.
pub fn knows(base: &Manifest) -> Result<(), Error> {
    let ours = format();
    if base.store_format <= ours {
        return Ok(());
    }
    Err(ErrorCode::Conflict.error(format!(
        "the base of the cluster is a store of format {}, which clawmux {} made, and this clawmux knows up to {ours}: \
         update it",
        base.store_format, base.version
    )))
}

/// Opens a file that a base is to be written into, to take the place of the store at `path`.
///
/// # Errors
/// `Unavailable` where it can't be made.
pub fn take(path: &Path) -> Result<Taking, Error> {
    make_folder(path)?;
    let lock = Files::lock(path)?;
    let part = beside(path, JOINING);
    remove(&part);
    let file = new_file(&part)?;
    Ok(Taking { path: path.to_owned(), part, file, is_placed: false, _lock: lock })
}

fn new_file(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| cannot("write", path, &error))
}

/// Opens a file that this base is to be written into, to become what the store at `path` should be. No daemon opens
/// the store while it is there.
///
/// # Errors
/// `Conflict` where a daemon has the store open, `Unavailable` where there is no room for another one or the file
/// can't be made.
pub fn make_anew(path: &Path, base: &Manifest) -> Result<Anew, Error> {
    let lock = Files::lock(path)?;
    let anew = beside(path, ANEW);
    remove_anew(&anew);
    if let Some((free, _)) = free_space(folder(path)) {
        let needed = needed(Files::unclaimed(path).bytes(), base);
        if free < needed {
            return Err(ErrorCode::Unavailable.error(format!(
                "there is not enough room in {}: the store is made anew there, which takes about {}, and {} are free",
                folder(path).display(),
                size(needed),
                size(free)
            )));
        }
    }
    let file = new_file(&anew)?;
    Ok(Anew { store: path.to_owned(), path: anew, file, _lock: lock })
}

/// What a store may take that is made anew, where that which is there has so many bytes.
fn needed(bytes: u64, base: &Manifest) -> u64 {
    bytes.max(base.bytes).saturating_add(SPARE_BYTES)
}

/// A store that is made anew beside another one, to be compared with it; removed when this is dropped.
#[derive(Debug)]
pub struct Anew {
    store: PathBuf,
    /// Where it is.
    pub path: PathBuf,
    /// What the base is to be written into.
    pub file: File,
    _lock: File,
}

impl Anew {
    /// Looks whether what was written is the base of that manifest. Blocks.
    ///
    /// # Errors
    /// `Internal` where it is not, `Unavailable` where it can't be brought to the disk.
    pub fn is_base(&self, base: &Manifest) -> Result<(), Error> {
        self.file.sync_all().map_err(|error| cannot("write", &self.path, &error))?;
        is_base(&self.path, base)
    }

    /// Compares the store with this one, which has all records of the log up to `applied` and is open nowhere. `told`
    /// hears how many rows were compared. Blocks.
    ///
    /// # Errors
    /// Where this one can't be read or written, or the other one can't be opened.
    pub fn compare(&self, applied: u64, told: &mut dyn FnMut(u64)) -> Result<Compared, Error> {
        let failed = |error: rusqlite::Error| about(&self.path, sql(&error));
        let anew = Connection::open(&self.path).map_err(failed)?;
        // Guards of keys the log forgets; of the last places it may have been them. Were it others, the chain would say.
        let reach = "UPDATE meta SET applied = ?1 WHERE applied < ?1";
        anew.execute(reach, [integer(applied)]).map_err(failed)?;
        let store = look(&self.store, BUSY).map_err(|error| about(&self.store, sql(&error)))?;
        compare(&store, &anew, told).map_err(failed)
    }
}

impl Drop for Anew {
    fn drop(&mut self) {
        remove_anew(&self.path);
    }
}

/// A base on its way into the place of a store; what is not placed is removed.
#[derive(Debug)]
pub struct Taking {
    path: PathBuf,
    part: PathBuf,
    /// What is to be written into.
    pub file: File,
    is_placed: bool,
    _lock: File,
}

impl Taking {
    /// Puts what was written in the place of the store, by one rename. A store of the cluster that is there is kept
    /// under another name, which is told; one in which there is nothing goes. Blocks.
    ///
    /// # Errors
    /// `Conflict` where the store holds something and is of no cluster, `Internal` where what was written is not the
    /// base of that manifest, `Unavailable` where files can't be made. The store is as it was then.
    pub fn place(mut self, base: &Manifest) -> Result<Option<PathBuf>, Error> {
        self.file.sync_all().map_err(|error| cannot("write", &self.part, &error))?;
        is_base(&self.part, base)?;
        let kept = put_in_place(&self.part, &self.path, base)?;
        self.is_placed = true;
        Ok(kept)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if !self.is_placed {
            remove(&self.part);
        }
    }
}

impl Based {
    /// Puts the base in the place of the store at `path` that it was made of, which is kept under another name.
    /// Blocks.
    ///
    /// # Errors
    /// As [`Taking::place`]'s.
    pub fn place(&self, path: &Path, base: &Manifest) -> Result<Option<PathBuf>, Error> {
        let _lock = Files::lock(path)?;
        is_base(&self.file, base)?;
        put_in_place(&self.file, path, base)
    }

    /// Removes the copy, where it is still there.
    pub fn remove(&self) {
        remove(&self.file);
    }
}

fn put_in_place(part: &Path, path: &Path, base: &Manifest) -> Result<Option<PathBuf>, Error> {
    let kept = match held_within(path)? {
        Held::Own(what) => {
            return Err(ErrorCode::Conflict.error(format!(
                "the store {} is of no cluster, and is not empty ({}): move it away",
                path.display(),
                what.join(", ")
            )));
        }
        Held::Replica(_) => set_aside(path, &format!("generation-{}", base.generation))?,
        Held::Nothing => {
            for end in ["", "-wal", "-shm"] {
                match fs::remove_file(beside(path, end)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(cannot("remove", &beside(path, end), &error));
                    }
                    _ => {}
                }
            }
            None
        }
    };
    fs::rename(part, path).map_err(|error| cannot("put the base in the place of", path, &error))?;
    let synced = File::open(folder(path)).and_then(|folder| folder.sync_all());
    synced.map_err(|error| cannot("bring to the disk", folder(path), &error))?;
    Ok(kept)
}

/// Looks whether a file is the store that the manifest tells of.
fn is_base(file: &Path, base: &Manifest) -> Result<(), Error> {
    let wrong =
        |why: &str| ErrorCode::Internal.error(format!("what came is not the base of the cluster: {why}"));
    let read = || -> rusqlite::Result<_> {
        let db = look(file, BUSY)?;
        let kind = schema::kind(&db)?;
        let Kind::Log(format) = kind else { return Ok((kind, None, None)) };
        let replica = if format >= FORMAT_OF_CLUSTERS { replica(&db)? } else { None };
        let added = db.query_row(ADDED, [], |row| row.get::<_, String>(0)).optional()?;
        Ok((kind, replica, added))
    };
    let (kind, replica, added) = read().map_err(|error| wrong(&sql(&error).message))?;
    kind.format()?;
    let at = Left { generation: base.generation, applied: base.position, digest: base.digest };
    match (replica, added) {
        (_, Some(added)) => {
            Err(wrong(&format!("it has a view or a trigger that clawmux did not make ({added})")))
        }
        (Some(replica), None) if replica.cluster == base.cluster && replica.at == at => Ok(()),
        (Some(replica), None) => Err(wrong(&format!(
            "it is of cluster {}, generation {}, record {}",
            replica.cluster, replica.at.generation, replica.at.applied
        ))),
        (None, None) => Err(wrong("it is of no cluster")),
    }
}

fn format() -> u64 {
    u64::try_from(FORMAT).unwrap_or(0)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn make_folder(path: &Path) -> Result<(), Error> {
    let folder = folder(path);
    fs::create_dir_all(folder).map_err(|error| cannot("make the folder", folder, &error))
}

fn about(path: &Path, mut error: Error) -> Error {
    let name = path.display().to_string();
    if !error.message.contains(&name) {
        error.message = format!("{name}: {}", error.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(bytes: u64) -> Manifest {
        Manifest {
            cluster: ClusterId::from_random([1; 16]),
            generation: 1,
            position: 0,
            digest: NONE,
            bytes,
            sha256: [0; 32],
            chunk_bytes: 1000,
            store_format: format(),
            version: String::new(),
            left: Vec::new(),
        }
    }

    #[test]
    fn a_store_is_made_anew_where_there_is_room_and_is_gone_afterwards() {
        assert_eq!(needed(7, &base(9)), 9 + SPARE_BYTES);
        assert_eq!(needed(u64::MAX, &base(9)), u64::MAX);
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("clawmux.db");
        let error = make_anew(&store, &base(1 << 60)).unwrap_err();
        assert!(error.message.contains("not enough room") && error.message.contains("TiB"), "{error}");
        let left =
            ["", "-wal", "-shm", ".lock"].map(|end| folder.path().join(format!("clawmux.db.anew{end}")));
        for is_killed in [true, false] {
            let anew = make_anew(&store, &base(9)).unwrap();
            assert!(make_anew(&store, &base(9)).unwrap_err().message.contains("has the store"));
            left.iter().for_each(|path| fs::write(path, "x").unwrap());
            if is_killed {
                let Anew { _lock: lock, .. } = &anew;
                lock.unlock().unwrap();
                tidy(&store).unwrap();
                assert!(!left.iter().any(|path| path.exists()));
            }
        }
        assert!(!left.iter().any(|path| path.exists()));
    }
}
