//! The record of tool calls, and whether it is whole.

use std::path::Path;

use actix::Message;
use clawmux_core::error::Error;
use clawmux_core::replica::Write;
use clawmux_core::tools::audit::{CallRecord, ChainHash, chained};
use rusqlite::params;

use super::change::{Change, MadeBy};
use super::columns::{Columns, integer};
use super::failure::{Failure, sql};
use super::files::{BUSY, look};
use super::live::Live;
use super::writer::Writer;

/// The most records that are kept; then the oldest go.
const RECORDS_MAX: u64 = 100_000;

/// So many go at once.
const RECORDS_DROPPED: u64 = 1000;

/// Keeps what became of a tool call. Survives a power cut once anything durable that was written later does.
///
/// Errors: as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct RecordCall(pub CallRecord);

impl Change for RecordCall {
    fn bytes(&self) -> usize {
        let usage = &self.0.usage;
        512 + usage.grants.iter().map(String::len).sum::<usize>()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::RecordCall(self.0.clone()))
    }

    fn is_durable(&self, _: &Writer) -> bool {
        false
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let (first, last, head): (u64, u64, ChainHash) = writer
            .cached("SELECT first, last, head FROM audit_chain")?
            .query_row([], |row| Ok((row.number(0)?, row.number(1)?, row.value(2)?)))?;
        let (number, record) = (last + 1, self.0.to_json());
        let head = chained(&head, number, &record);
        writer.cached("INSERT INTO audit (number, record, hash) VALUES (?, ?, ?)")?.execute(params![
            integer(number),
            record,
            head
        ])?;
        writer
            .cached("UPDATE audit_chain SET last = ?, head = ?")?
            .execute(params![integer(number), head])?;
        if number - first >= RECORDS_MAX {
            let first = first + RECORDS_DROPPED;
            writer
                .cached(
                    "UPDATE audit_chain SET first = ?1, base = (SELECT hash FROM audit WHERE number = ?1 - 1)",
                )?
                .execute([integer(first)])?;
            writer.cached("DELETE FROM audit WHERE number < ?")?.execute([integer(first)])?;
        }
        Ok(())
    }
}

/// How the record of tool calls is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audited {
    /// It is whole, and has so many calls; the number of the first is given, more than 1 where older ones
    /// went.
    Whole(u64, u64),
    /// This is not as it was written.
    Broken(String),
}

/// Looks whether the record of tool calls in the store at `path` is as it was written. Blocks, for as long as
/// it takes to read it.
///
/// # Errors
/// Where it can't be read.
pub fn audit(path: &Path) -> Result<Audited, Error> {
    read(path).map_err(|error| sql(&error))
}

fn read(path: &Path) -> rusqlite::Result<Audited> {
    let mut db = look(path, BUSY)?;
    // What is written meanwhile plays no part.
    let tx = db.transaction()?;
    let (mut hash, first, last, head): (ChainHash, u64, u64, ChainHash) =
        tx.query_row("SELECT base, first, last, head FROM audit_chain", [], |row| {
            Ok((row.value(0)?, row.number(1)?, row.number(2)?, row.value(3)?))
        })?;
    let mut statement = tx.prepare("SELECT number, record, hash FROM audit ORDER BY number")?;
    let mut rows = statement.query([])?;
    let mut wanted = first;
    while let Some(row) = rows.next()? {
        let (number, record, kept): (u64, String, ChainHash) = (row.number(0)?, row.value(1)?, row.value(2)?);
        if number != wanted {
            return Ok(Audited::Broken(format!("call {wanted} is missing")));
        }
        hash = chained(&hash, number, &record);
        if hash != kept {
            return Ok(Audited::Broken(format!("call {number} was changed, or one before it")));
        }
        wanted += 1;
    }
    match wanted.checked_sub(1) {
        Some(found) if found == last && hash == head => Ok(Audited::Whole(last + 1 - first, first)),
        _ => Ok(Audited::Broken(format!("calls {wanted} to {last} are missing, or were put in its place"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::store::{Stop, Store};
    use actix::Actor;
    use clawmux_core::ids::SessionKey;
    use clawmux_core::time::Timestamp;
    use clawmux_core::tools::audit::{CallUsage, digest};
    use rusqlite::Connection;

    fn record(nth: u64) -> RecordCall {
        RecordCall(CallRecord {
            at: Timestamp::from_millis(nth),
            session: SessionKey::new("main", "cli", "ada", "main").unwrap(),
            run: "run".into(),
            call: format!("call{nth}").into(),
            tool: "echo".into(),
            input: digest(b"in"),
            usage: CallUsage::default(),
            took: Duration::from_micros(nth),
            is_error: false,
            result: digest(b"out"),
        })
    }

    #[actix::test]
    async fn a_change_of_the_record_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::open(path.clone()).await.unwrap().start();
        assert_eq!(audit(&path).unwrap(), Audited::Whole(0, 1));
        for nth in 1..=20 {
            store.send(record(nth)).await.unwrap().unwrap();
        }
        assert_eq!(audit(&path).unwrap(), Audited::Whole(20, 1), "while the daemon runs");
        store.send(Stop).await.unwrap().unwrap();
        for (change, says) in [
            (
                "UPDATE audit SET record = replace(record, 'echo', 'fetch') WHERE number = 7",
                "call 7 was changed",
            ),
            ("DELETE FROM audit WHERE number = 3", "call 3 is missing"),
            ("DELETE FROM audit WHERE number > 18", "calls 19 to 20 are missing"),
            ("DELETE FROM audit", "calls 1 to 20 are missing"),
            ("UPDATE audit SET hash = zeroblob(32) WHERE number = 20", "call 20 was changed"),
            ("INSERT INTO audit VALUES (21, '{}', zeroblob(32))", "call 21 was changed"),
            ("UPDATE audit_chain SET last = 19", "missing, or were put in its place"),
        ] {
            let copy = folder.path().join("copy.db");
            std::fs::copy(&path, &copy).unwrap();
            Connection::open(&copy).unwrap().execute(change, []).unwrap();
            let Audited::Broken(why) = audit(&copy).unwrap() else { panic!("{change} is not found") };
            assert!(why.contains(says), "{change}: {why}");
        }
    }

    #[actix::test]
    async fn old_records_go_and_the_rest_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::open(path.clone()).await.unwrap().start();
        store.send(record(1)).await.unwrap().unwrap();
        // As if it had been there for long.
        let old = Connection::open(&path).unwrap();
        old.execute("UPDATE audit SET number = ?", [integer(RECORDS_MAX)]).unwrap();
        old.execute("UPDATE audit_chain SET last = ?", [integer(RECORDS_MAX)]).unwrap();
        old.execute("INSERT INTO audit VALUES (?, '{}', zeroblob(32))", [integer(RECORDS_DROPPED)]).unwrap();
        drop(old);
        store.send(record(2)).await.unwrap().unwrap();
        store.send(Stop).await.unwrap().unwrap();
        let db = Connection::open(&path).unwrap();
        let first: i64 = db.query_row("SELECT first FROM audit_chain", [], |row| row.get(0)).unwrap();
        let least: i64 = db.query_row("SELECT min(number) FROM audit", [], |row| row.get(0)).unwrap();
        assert_eq!((first, least), (integer(RECORDS_DROPPED + 1), integer(RECORDS_MAX)));
    }
}
