//! The databases of all machines: when they are at rest, and whether they are alike then.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::database;
use super::tables;

/// How long nothing comes where nothing will.
const STILL: Duration = Duration::from_secs(1);

/// Waits for the same in all of them.
pub struct Rest<'a> {
    all: &'a [PathBuf],
    /// How far each was, and since when.
    last: (Vec<i64>, Instant),
}

impl<'a> Rest<'a> {
    /// Of these databases, whose daemons run.
    pub fn of(all: &'a [PathBuf]) -> Self {
        Self { all, last: (Vec::new(), Instant::now()) }
    }

    /// Whether all of them have the same, and nothing comes any more.
    pub fn is_there(&mut self) -> bool {
        let now: Vec<i64> = self.all.iter().filter_map(|path| applied(path).ok()).collect();
        if now != self.last.0 {
            self.last = (now, Instant::now());
        }
        let (positions, since) = &self.last;
        positions.len() == self.all.len()
            && positions.iter().all(|position| Some(position) == positions.first())
            && since.elapsed() > STILL
    }
}

/// Holds databases whose daemons have ended against each other, and each against what it must be.
///
/// # Errors
/// What is wrong with one.
///
/// # Panics
/// Where two differ.
pub fn agree(all: &[PathBuf], prompts: usize) -> Result<(), String> {
    for path in all {
        database::integrity(path)?;
        database::log(path, prompts)?;
    }
    let (first, others) = all.split_first().ok_or("no database")?;
    for other in others {
        tables::assert_same(first, other, "replicas");
    }
    Ok(())
}

fn applied(path: &Path) -> Result<i64, rusqlite::Error> {
    Connection::open(path)?.query_row("SELECT applied FROM meta", [], |row| row.get(0))
}
