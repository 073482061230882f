//! What is known of the files of clients; their bytes are in files of their own.

use std::collections::HashSet;

use actix::Message;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
use clawmux_core::memory::file::{FileAbout, FileChange, FileId, FileRow, UploadId};
use clawmux_core::replica::Write;
use rusqlite::{OptionalExtension, Row, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns, integer, time};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// What a changed file counts, in bytes.
const FILE_BYTES: usize = 512;

const COLUMNS: &str = "id, upload, owner, name, media_type, total, sha256, size, complete, created, updated";

/// Changes what is known of a file. Answered when that will survive the end of the process, or,
/// where `durable`, a power cut.
///
/// Errors: `Conflict` where a file to be begun is there already.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteFile {
    /// What changes.
    pub change: FileChange,
    /// Whether a power cut must not take it.
    pub durable: bool,
}

/// Asks for a file.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Option<FileRow>, Error>")]
pub struct ReadFile(pub FileId);

/// Asks for files, the latest begun first, and how many there are.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(Vec<FileRow>, u64), Error>")]
pub struct ReadFiles {
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// At most so many.
    pub limit: usize,
    /// Without the first so many.
    pub offset: u64,
}

/// Asks what is kept for whom, and for the uploads that are not finished.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<FileTotals, Error>")]
pub struct ReadFileTotals;

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// For each owner, how many files and bytes, unfinished ones included.
    pub owners: Vec<(Owner, u64, u64)>,
    /// The uploads that are not finished.
    pub unfinished: Vec<FileRow>,
    /// Whether other daemons of a cluster may have begun some of them.
    pub is_shared: bool,
}

/// Asks for the ids of all files.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<HashSet<FileId>, Error>")]
pub struct ReadFileIds;

impl Change for WriteFile {
    fn bytes(&self) -> usize {
        FILE_BYTES
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::File(self.change.clone()))
    }

    fn is_durable(&self, _: &Writer) -> bool {
        self.durable
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let row = match &self.change {
            FileChange::Begin(row) | FileChange::Put(row) => row,
            FileChange::Remove(id) => {
                writer.cached("DELETE FROM files WHERE id = ?")?.execute([id.as_bytes()])?;
                return Ok(());
            }
        };
        let FileRow { id, upload, owner, about, size, is_complete, created, updated } = row;
        let statement = match &self.change {
            FileChange::Begin(_) => {
                "INSERT INTO files (id, upload, owner, name, media_type, total, sha256, size, complete, created, updated)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
            }
            _ => {
                "UPDATE files SET upload = ?2, owner = ?3, name = ?4, media_type = ?5, total = ?6, sha256 = ?7, size = ?8,
                    complete = ?9, created = ?10, updated = ?11 WHERE id = ?1"
            }
        };
        let written = writer.cached(statement)?.execute(params![
            id.as_bytes(),
            upload.as_bytes(),
            owner.as_str(),
            about.name,
            about.media_type,
            about.total.map(integer),
            about.sha256,
            integer(*size),
            is_complete,
            time(*created),
            time(*updated),
        ])?;
        let refused = match self.change {
            _ if written > 0 => return Ok(()),
            FileChange::Begin(_) => ErrorCode::Conflict.error(format!("file {id} is there already")),
            // In a cluster another daemon may have removed it.
            _ => ErrorCode::NotFound.error(format!("file {id} was removed")),
        };
        Err(Failure::Refused(refused))
    }
}

impl Query for ReadFile {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let found = tx
                .prepare_cached(&format!("SELECT {COLUMNS} FROM files WHERE id = ?"))?
                .query_row([self.0.as_bytes()], row)
                .optional()?;
            Ok(found)
        })
    }
}

impl Query for ReadFiles {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let owner = self.owner.as_ref().map(Owner::as_str);
            let files = tx
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM files WHERE ?1 IS NULL OR owner = ?1
                     ORDER BY created DESC, id LIMIT ?2 OFFSET ?3"
                ))?
                .query_map(params![owner, integer(self.limit), integer(self.offset)], row)?
                .collect::<Result<_, _>>()?;
            let total = tx
                .prepare_cached("SELECT count(*) FROM files WHERE ?1 IS NULL OR owner = ?1")?
                .query_row([owner], |row| row.number(0))?;
            Ok((files, total))
        })
    }
}

impl Query for ReadFileTotals {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let owners = tx
                .prepare_cached("SELECT owner, count(*), sum(size) FROM files GROUP BY owner")?
                .query_map([], |row| Ok((row.owner(0)?, row.number(1)?, row.number(2)?)))?
                .collect::<Result<_, _>>()?;
            let unfinished = tx
                .prepare_cached(&format!("SELECT {COLUMNS} FROM files WHERE complete = 0"))?
                .query_map([], row)?
                .collect::<Result<_, _>>()?;
            let is_shared = tx.query_row("SELECT applied > 0 FROM meta", [], |row| row.get(0))?;
            Ok(FileTotals { owners, unfinished, is_shared })
        })
    }
}

impl Query for ReadFileIds {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let ids = tx
                .prepare_cached("SELECT id FROM files")?
                .query_map([], |row| row.get(0).map(FileId::from_bytes))?
                .collect::<Result<_, _>>();
            ids.map_err(Failure::Database)
        })
    }
}

fn row(row: &Row<'_>) -> rusqlite::Result<FileRow> {
    Ok(FileRow {
        id: FileId::from_bytes(row.get(0)?),
        upload: UploadId::from_bytes(row.get(1)?),
        owner: row.owner(2)?,
        about: FileAbout {
            name: row.get(3)?,
            media_type: row.get(4)?,
            total: row.number_if_any(5)?,
            sha256: row.get(6)?,
        },
        size: row.number(7)?,
        is_complete: row.get(8)?,
        created: row.at(9)?,
        updated: row.at(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use clawmux_core::time::Timestamp;

    fn file(byte: u8, owner: &str, size: u64, is_complete: bool) -> FileRow {
        FileRow {
            id: FileId::from_bytes([byte; 16]),
            upload: UploadId::from_bytes([byte + 1; 16]),
            owner: Owner::from_name(owner),
            about: FileAbout {
                name: Some("İ.txt".into()),
                media_type: None,
                total: Some(size),
                sha256: Some([byte; 32]),
            },
            size,
            is_complete,
            created: Timestamp::from_millis(byte.into()),
            updated: Timestamp::from_millis(100),
        }
    }

    #[actix::test]
    async fn files_are_begun_once_grow_and_are_listed_by_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::start(&path).await.unwrap();
        let write = async |change, durable| store.send(WriteFile { change, durable }).await.unwrap();
        let rows = [file(1, "", 10, true), file(2, "ada", 20, false), file(3, "ada", 30, true)];
        for row in &rows {
            write(FileChange::Begin(row.clone()), false).await.unwrap();
        }
        let again = write(FileChange::Begin(file(2, "bob", 1, true)), true).await.unwrap_err();
        assert_eq!(again.code, ErrorCode::Conflict);
        let put = write(FileChange::Put(file(9, "ada", 1, true)), true).await.unwrap_err();
        assert_eq!(put.code, ErrorCode::NotFound, "{put:?}");
        assert_eq!(store.send(ReadFile(FileId::from_bytes([9; 16]))).await.unwrap().unwrap(), None);
        let grown = FileRow { size: 25, about: FileAbout::default(), ..rows[1].clone() };
        write(FileChange::Put(grown.clone()), true).await.unwrap();
        store.send(crate::store::Stop).await.unwrap().unwrap();

        let store = Store::start(&path).await.unwrap();
        assert_eq!(store.send(ReadFile(grown.id)).await.unwrap().unwrap(), Some(grown.clone()));
        let list = |owner: Option<&str>, limit, offset| ReadFiles {
            owner: owner.map(Owner::from_name),
            limit,
            offset,
        };
        let all = store.send(list(None, 10, 0)).await.unwrap().unwrap();
        assert_eq!(all, (vec![rows[2].clone(), grown.clone(), rows[0].clone()], 3));
        let hers = store.send(list(Some("ada"), 1, 1)).await.unwrap().unwrap();
        assert_eq!(hers, (vec![grown.clone()], 2));
        let totals = store.send(ReadFileTotals).await.unwrap().unwrap();
        let owners = vec![(Owner::Admins, 1, 10), (Owner::from_name("ada"), 2, 55)];
        assert_eq!(totals, FileTotals { owners, unfinished: vec![grown.clone()], is_shared: false });
        assert_eq!(store.send(ReadFileIds).await.unwrap().unwrap().len(), 3);
        let remove = WriteFile { change: FileChange::Remove(grown.id), durable: true };
        store.send(remove).await.unwrap().unwrap();
        assert_eq!(store.send(ReadFile(grown.id)).await.unwrap().unwrap(), None);
    }
}
