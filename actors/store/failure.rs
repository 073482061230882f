//! What SQLite and the file system say, in the product's words.

use clawmux_core::error::{Error, ErrorCode};
use rusqlite::ErrorCode as Sqlite;

const FULL: &str = "the disk is full: free some space, work is then taken again";

/// The error of a failed statement.
pub(super) fn sql(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(Sqlite::NotADatabase) => ErrorCode::Internal.error(
            "the file is not a clawmux store, or its beginning is damaged: clawmux doctor says what to do",
        ),
        Some(Sqlite::DatabaseCorrupt) => ErrorCode::Internal
            .error(format!("the store is damaged ({error}): clawmux doctor says what to do")),
        Some(Sqlite::DiskFull) => cannot_be_written(FULL),
        Some(code) if about_the_disk(code) => cannot_be_written(error),
        _ => ErrorCode::Internal.error(format!("the store failed: {error}")),
    }
}

/// The error of writing the files beside SQLite.
pub(super) fn written(error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => cannot_be_written(FULL),
        _ => cannot_be_written(error),
    }
}

fn cannot_be_written(why: impl std::fmt::Display) -> Error {
    ErrorCode::Unavailable.error(format!("the store can't be written: {why}"))
}

/// Whether the failure would hit every other statement as well.
pub(super) fn is_about_the_disk(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code().is_none_or(about_the_disk)
}

/// Whether it is one that passes, and that is all the operator's.
pub(super) fn is_outage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code().is_some_and(about_the_disk)
}

fn about_the_disk(code: Sqlite) -> bool {
    matches!(
        code,
        Sqlite::DiskFull
            | Sqlite::SystemIoFailure
            | Sqlite::CannotOpen
            | Sqlite::ReadOnly
            | Sqlite::DatabaseBusy
            | Sqlite::DatabaseLocked
            | Sqlite::OutOfMemory
            | Sqlite::PermissionDenied
            | Sqlite::FileLockingProtocolFailed
    )
}

/// Why something was not written or read.
#[derive(Debug)]
pub(super) enum Failure {
    /// It is at fault itself, and nothing else is concerned.
    Refused(Error),
    /// The database is.
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Failure {
    /// The error that whoever asked is told.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Refused(error) => error,
            Self::Database(error) => sql(&error),
        }
    }
}

/// Whether the row is at fault, and not the database.
pub(super) fn is_unreadable(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::{Error as Failure, ffi};

    #[test]
    fn a_full_disk_a_damaged_file_and_a_bug_are_told_apart() {
        let failed = |code| Failure::SqliteFailure(ffi::Error::new(code), None);
        let full = sql(&failed(ffi::SQLITE_FULL));
        assert_eq!(full.code, ErrorCode::Unavailable);
        assert!(full.message.starts_with("the store can't be written: "), "{full}");
        let damaged = sql(&failed(ffi::SQLITE_CORRUPT));
        assert!(damaged.message.contains("clawmux doctor"), "{damaged}");
        assert_eq!(sql(&failed(ffi::SQLITE_CONSTRAINT)).code, ErrorCode::Internal);
        assert!(!is_about_the_disk(&failed(ffi::SQLITE_CONSTRAINT)));
    }
}
