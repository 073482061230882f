//! What model calls cost, one row a call, and the sums of each day.

use std::sync::atomic::Ordering::Relaxed;

use actix::Message;
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::daemon::command::DayUsage;
use clawmux_core::daemon::operator::{UsageGroup, UsageShare};
use clawmux_core::error::Error;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::usage::UsageTotals;
use clawmux_core::time::Timestamp;
use rusqlite::params;

use super::DAY_MS;
use super::change::Change;
use super::columns::{Columns, integer, time};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// How many days and models one list of what was spent has.
const USAGE_ROWS_MAX: u64 = 5000;

/// What a record counts of the room for changes that wait, in bytes.
const USAGE_BYTES: usize = 64;

/// The most tokens one usage row counts, so that no sum overflows.
const TOKENS_MAX: u64 = 1 << 44;

/// Keeps what a model call cost; durable when answered.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct RecordUsage(pub UsageRecord);

/// Asks what was spent since these times.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<UsageTotals, Error>")]
pub struct UsageSince {
    /// When the day began.
    pub day_start: Timestamp,
    /// When the month began.
    pub month_start: Timestamp,
}

/// Asks what was spent on which model on which day, the earliest first.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<DayUsage>, Error>")]
pub struct UsageDays {
    /// From the day of this time on.
    pub since: Timestamp,
}

/// Asks what was spent, added up by what is asked for: days the latest first, else who spent most.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<UsageShare>, Error>")]
pub struct UsageBy {
    /// Of calls that ended from this time on.
    pub since: Timestamp,
    /// By what.
    pub group: UsageGroup,
    /// At most so many.
    pub limit: usize,
}

impl Change for RecordUsage {
    fn bytes(&self) -> usize {
        USAGE_BYTES
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let Self(record) = self;
        let [input, output, cache_read, cache_write] = [
            record.usage.input_tokens,
            record.usage.output_tokens,
            record.usage.cache_read_tokens,
            record.usage.cache_write_tokens,
        ]
        .map(|tokens| integer(tokens.min(TOKENS_MAX)));
        writer.figures.tokens_used.fetch_add(record.usage.total(), Relaxed);
        writer
            .cached(
                "INSERT INTO usage (session, run, agent, provider, model, input_tokens, output_tokens,
                 cache_read_tokens, cache_write_tokens, at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                record.session.as_str(),
                record.run.as_str(),
                record.agent.as_str(),
                record.provider,
                record.model,
                input,
                output,
                cache_read,
                cache_write,
                time(record.at),
            ])?;
        writer
            .cached(
                "INSERT INTO usage_days (day, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (day) DO UPDATE SET input_tokens = input_tokens + ?2,
                 output_tokens = output_tokens + ?3, cache_read_tokens = cache_read_tokens + ?4,
                 cache_write_tokens = cache_write_tokens + ?5",
            )?
            .execute(params![
                integer(record.at.as_millis() / DAY_MS),
                input,
                output,
                cache_read,
                cache_write
            ])?;
        writer.cached("UPDATE runs SET provider = ?1, model = ?2 WHERE run = ?3")?.execute(params![
            record.provider,
            record.model,
            record.run.as_str()
        ])?;
        writer
            .cached(
                "UPDATE sessions SET input_tokens = input_tokens + ?1, output_tokens = output_tokens + ?2,
                 cache_read_tokens = cache_read_tokens + ?3, cache_write_tokens = cache_write_tokens + ?4
             WHERE key = ?5",
            )?
            .execute(params![input, output, cache_read, cache_write, record.session.as_str()])?;
        Ok(())
    }
}

impl Query for UsageSince {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            // Whole days from their sums, the rest of the day before them by its calls.
            let sum = |since: Timestamp| {
                let day = since.as_millis().div_ceil(DAY_MS);
                tx.prepare_cached(
                    "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),
                         coalesce(sum(cache_read_tokens), 0), coalesce(sum(cache_write_tokens), 0) FROM (
                        SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens
                            FROM usage_days WHERE day >= ?1
                        UNION ALL
                        SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens
                            FROM usage WHERE at >= ?2 AND at < ?3)",
                )?
                .query_row(
                    params![integer(day), integer(since.as_millis()), integer(day.saturating_mul(DAY_MS))],
                    |row| row.cached_usage(0),
                )
            };
            Ok(UsageTotals { day: sum(self.day_start)?, month: sum(self.month_start)? })
        })
    }
}

impl Query for UsageDays {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT at / ?1 AS day, provider, model, count(*), sum(input_tokens), sum(output_tokens),
                     sum(cache_read_tokens), sum(cache_write_tokens)
                 FROM usage WHERE at >= ?2 GROUP BY day, provider, model ORDER BY day DESC, provider, model LIMIT ?3",
            )?;
            let since = self.since.as_millis() / DAY_MS * DAY_MS;
            let rows = statement.query_map(
                params![integer(DAY_MS), integer(since), integer(USAGE_ROWS_MAX)],
                |row| {
                    Ok(DayUsage {
                        day: Timestamp::from_millis(row.number(0)? * DAY_MS),
                        model: ModelRef { provider: row.get(1)?, model: row.get(2)? },
                        usage: row.cached_usage(4)?,
                        calls: row.number(3)?,
                    })
                },
            )?;
            let mut days = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            // Should there be too many, the latest are what is wanted.
            days.reverse();
            Ok(days)
        })
    }
}

impl Query for UsageBy {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        // What the share is of, and which come first: the latest days, else who spent most.
        let (of, order) = match self.group {
            UsageGroup::Day => ("date(at / 1000, 'unixepoch')", "of DESC"),
            UsageGroup::Agent => ("agent", "sum(input_tokens) + sum(output_tokens) DESC, of"),
            UsageGroup::Model => {
                ("provider || '/' || model", "sum(input_tokens) + sum(output_tokens) DESC, of")
            }
            UsageGroup::Session => ("session", "sum(input_tokens) + sum(output_tokens) DESC, of"),
        };
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(&format!(
                "SELECT {of} AS of, count(*), max(at), sum(input_tokens), sum(output_tokens),
                     sum(cache_read_tokens), sum(cache_write_tokens)
                 FROM usage WHERE at >= ?1 GROUP BY of ORDER BY {order} LIMIT ?2"
            ))?;
            let limit = integer(self.limit);
            let rows = statement.query_map(params![integer(self.since.as_millis()), limit], |row| {
                Ok(UsageShare {
                    of: row.get(0)?,
                    usage: row.cached_usage(3)?,
                    calls: row.number(1)?,
                    last: row.at(2)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }
}
