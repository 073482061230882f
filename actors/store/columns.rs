//! How values of the core stand in columns. SQLite knows signed numbers alone: a number beyond them is cut
//! as it is written, and one below zero, which nobody writes, is read as 0.

use clawmux_core::conversation::window::Window;
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::{Owner, Seq, SessionKey};
use clawmux_core::provider::price::Money;
use clawmux_core::provider::tally::Spent;
use clawmux_core::provider::usage::Usage;
use clawmux_core::time::Timestamp;
use rusqlite::types::FromSql;
use rusqlite::{Params, Row, RowIndex, Transaction};

use super::failure::Failure;

/// A number as SQLite keeps it.
pub(super) fn integer(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// A time as SQLite keeps it, in milliseconds.
pub(super) fn time(at: Timestamp) -> i64 {
    integer(at.as_millis())
}

/// A number that SQLite kept.
pub(super) fn number(integer: i64) -> u64 {
    u64::try_from(integer).unwrap_or(0)
}

/// The columns of a row as values of the core.
pub(super) trait Columns {
    fn value<T: FromSql>(&self, column: impl RowIndex) -> rusqlite::Result<T>;

    fn number(&self, column: impl RowIndex) -> rusqlite::Result<u64> {
        self.value(column).map(number)
    }

    fn number_if_any(&self, column: impl RowIndex) -> rusqlite::Result<Option<u64>> {
        Ok(self.value::<Option<i64>>(column)?.map(number))
    }

    fn seq(&self, column: impl RowIndex) -> rusqlite::Result<Seq> {
        self.number(column).map(Seq)
    }

    fn at(&self, column: impl RowIndex) -> rusqlite::Result<Timestamp> {
        self.number(column).map(Timestamp::from_millis)
    }

    fn at_if_any(&self, column: impl RowIndex) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.number_if_any(column)?.map(Timestamp::from_millis))
    }

    /// From columns where what was cached is not kept apart.
    fn usage(&self, input: impl RowIndex, output: impl RowIndex) -> rusqlite::Result<Usage> {
        Ok(Usage::new(self.number(input)?, self.number(output)?))
    }

    /// From four columns in the order of [`Usage`]'s fields, `first` and those after it.
    fn cached_usage(&self, first: usize) -> rusqlite::Result<Usage> {
        Ok(Usage {
            input_tokens: self.number(first)?,
            output_tokens: self.number(first + 1)?,
            cache_read_tokens: self.number(first + 2)?,
            cache_write_tokens: self.number(first + 3)?,
        })
    }

    /// What budgets count, from a column of tokens and one of money.
    fn spent(&self, tokens: impl RowIndex, cost: impl RowIndex) -> rusqlite::Result<Spent> {
        Ok(Spent { tokens: self.number(tokens)?, cost: Money::from_nanos(self.number(cost)?) })
    }

    /// What of its past a conversation shows: four columns, from this one on.
    fn window(&self, first: usize) -> rusqlite::Result<Window> {
        let (seq, from, named) = (self.seq(first)?, self.seq(first + 1)?, self.seq(first + 2)?);
        Ok(Window { seq, from, named, summary: self.value(first + 3)? })
    }

    fn owner(&self, column: impl RowIndex) -> rusqlite::Result<Owner> {
        Ok(Owner::from_name(&self.value::<String>(column)?))
    }

    /// An id, which is kept as text.
    fn id<T: From<String>>(&self, column: impl RowIndex) -> rusqlite::Result<T> {
        self.value::<String>(column).map(T::from)
    }

    fn session(&self, column: impl RowIndex) -> Result<SessionKey, Failure> {
        Ok(SessionKey::parse(&self.value::<String>(column)?)?)
    }

    fn session_if_any(&self, column: impl RowIndex) -> Result<Option<SessionKey>, Failure> {
        let key: Option<String> = self.value(column)?;
        Ok(key.map(|key| SessionKey::parse(&key)).transpose()?)
    }
}

impl Columns for Row<'_> {
    fn value<T: FromSql>(&self, column: impl RowIndex) -> rusqlite::Result<T> {
        self.get(column)
    }
}

/// The rows that can be read; the others are left out, with a word in the log.
pub(super) fn readable<T>(
    tx: &Transaction<'_>,
    what: &str,
    sql: &str,
    values: impl Params,
    mut read: impl FnMut(&Row<'_>) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let mut statement = tx.prepare_cached(sql)?;
    let mut rows = statement.query(values)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        match read(row) {
            Ok(one) => all.push(one),
            Err(Failure::Refused(error)) => {
                tracing::warn!(%error, "something kept of {what} can't be read: left out");
            }
            Err(failure @ Failure::Database(_)) => return Err(failure),
        }
    }
    Ok(all)
}

/// The error of a row that says what nobody knows.
pub(super) fn unreadable(why: impl std::fmt::Display) -> Failure {
    ErrorCode::Internal.error(why.to_string()).into()
}
