//! What model calls cost: one row a call, the sums of each day, and what is reserved for those under way.

use std::sync::atomic::Ordering::Relaxed;

use actix::Message;
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::daemon::command::DayUsage;
use clawmux_core::daemon::operator::{CacheShare, UsageGroup, UsageShare};
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::prefix::Changed;
use clawmux_core::provider::price::Money;
use clawmux_core::provider::tally::{SpentBy, Tally, UsageTotals};
use clawmux_core::provider::usage::Usage;
use clawmux_core::replica::Write;
use clawmux_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::DAY_MS;
use super::change::{Change, MadeBy};
use super::columns::{Columns, integer, number, time};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// How many days and models one list of what was spent has.
const USAGE_ROWS_MAX: u64 = 5000;

/// What a record counts of the room for changes that wait, in bytes.
const USAGE_BYTES: usize = 64;

/// The most tokens, and the most money, that one usage row counts, so that no sum overflows.
const COUNT_MAX: u64 = 1 << 44;

/// A cache is kept for so long by providers that say how long: a miss after it needs no other reason.
const CACHE_KEPT_MS: u64 = 5 * 60_000;

/// Keeps what is reserved for a call before it is made; durable when answered. Where no [`RecordUsage`]
/// follows because the daemon ends, it counts as spent from the next start on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct BeginCall {
    /// Its number, which no other has under way.
    pub call: u64,
    /// The most it may come to, with the time it begins at.
    pub reserved: UsageRecord,
}

/// Keeps what a call cost, which is not under way any longer; durable when answered.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct RecordUsage {
    /// Its number.
    pub call: u64,
    /// One for each time that a model was asked and may have counted something.
    pub records: Vec<UsageRecord>,
}

/// Asks what was spent in a day and a month, both from their first moment on, UTC.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<UsageTotals, Error>")]
pub struct UsageSince {
    /// When the day began.
    pub day_start: Timestamp,
    /// When the month began.
    pub month_start: Timestamp,
}

/// Asks for the same by agent and principal.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<SpentBy>, Error>")]
pub struct ReadSpent(pub UsageSince);

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
    /// From the day of this time on.
    pub since: Timestamp,
    /// By what.
    pub group: UsageGroup,
    /// At most so many.
    pub limit: usize,
}

/// Asks how caches were used, by session and model, those first that read most.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<CacheShare>, Error>")]
pub struct ReadCaches {
    /// Of calls that ended from this time on.
    pub since: Timestamp,
    /// At most so many.
    pub limit: usize,
}

/// A record as its columns want it.
struct Counts {
    usage: [i64; 4],
    cost: Option<i64>,
}

impl Counts {
    fn of(record: &UsageRecord) -> Self {
        let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } = record.usage;
        let bounded = |count: u64| integer(count.min(COUNT_MAX));
        Self {
            usage: [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens].map(bounded),
            cost: record.cost.map(|cost| bounded(cost.nanos())),
        }
    }
}

impl Change for BeginCall {
    fn bytes(&self) -> usize {
        USAGE_BYTES
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::BeginCall { call: self.call, reserved: self.reserved.clone() })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let Self { call, reserved } = self;
        let Counts { usage: [input, output, ..], cost } = Counts::of(reserved);
        writer
            .cached(
                "INSERT OR REPLACE INTO calls
                     (id, session, run, agent, owner, provider, model, input_tokens, output_tokens, cost, at)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                integer(*call),
                reserved.session.as_str(),
                reserved.run.as_str(),
                reserved.agent.as_str(),
                reserved.session.owner().as_str(),
                reserved.provider,
                reserved.model,
                input,
                output,
                cost,
                time(reserved.at),
            ])?;
        Ok(())
    }
}

impl Change for RecordUsage {
    fn bytes(&self) -> usize {
        USAGE_BYTES * (1 + self.records.len())
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::RecordUsage { call: self.call, records: self.records.clone() })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        writer.cached("DELETE FROM calls WHERE id = ?")?.execute([integer(self.call)])?;
        self.records.iter().try_for_each(|record| writer.record_usage(record))
    }
}

impl Writer {
    fn record_usage(&mut self, record: &UsageRecord) -> Result<(), Failure> {
        let Counts { usage: [input, output, read, written], cost } = Counts::of(record);
        let (owner, agent, at) = (record.session.owner(), record.agent.as_str(), time(record.at));
        let (UsageRecord { provider, model, .. }, owner) = (record, owner.as_str());
        self.figures.tokens_used.fetch_add(record.usage.total(), Relaxed);
        self.cached(
            "INSERT INTO usage (session, run, agent, owner, provider, model, input_tokens, output_tokens,
                 cache_read_tokens, cache_write_tokens, cost, changed, at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            record.session.as_str(),
            record.run.as_str(),
            agent,
            owner,
            provider,
            model,
            input,
            output,
            read,
            written,
            cost,
            record.changed.map(Changed::name),
            at,
        ])?;
        self.cached(
            "INSERT INTO usage_days VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
             ON CONFLICT (day, owner, agent, provider, model) DO UPDATE SET calls = calls + 1,
                 unpriced = unpriced + ?6, input_tokens = input_tokens + ?7,
                 output_tokens = output_tokens + ?8, cache_read_tokens = cache_read_tokens + ?9,
                 cache_write_tokens = cache_write_tokens + ?10, cost = cost + ?11, last = max(last, ?12)",
        )?
        .execute(params![
            integer(record.at.as_millis() / DAY_MS),
            owner,
            agent,
            provider,
            model,
            cost.is_none(),
            input,
            output,
            read,
            written,
            cost.unwrap_or(0),
            at,
        ])?;
        self.cached("UPDATE runs SET provider = ?1, model = ?2 WHERE run = ?3")?.execute(params![
            provider,
            model,
            record.run.as_str()
        ])?;
        self.cached(
            "UPDATE sessions SET input_tokens = input_tokens + ?1, output_tokens = output_tokens + ?2,
                 cache_read_tokens = cache_read_tokens + ?3, cache_write_tokens = cache_write_tokens + ?4,
                 cost = cost + ?5
             WHERE key = ?6",
        )?
        .execute(params![
            input,
            output,
            read,
            written,
            cost.unwrap_or(0),
            record.session.as_str()
        ])?;
        Ok(())
    }
}

/// Counts the calls as spent that were under way when the daemon before this one was gone, each with what
/// was reserved for it: what its provider counted nobody knows, but it is no more. Those of one session, or all. Says
/// how many it were.
pub(super) fn count_interrupted(db: &Connection, session: Option<&SessionKey>) -> rusqlite::Result<usize> {
    let session = session.map(SessionKey::as_str);
    for sql in [
        "INSERT INTO usage
                (session, run, agent, owner, provider, model, input_tokens, output_tokens, cost, at, interrupted)
            SELECT session, run, agent, owner, provider, model, input_tokens, output_tokens, cost, at, 1
            FROM calls WHERE ?1 IS NULL OR session = ?1 ORDER BY id",
        "INSERT INTO usage_days
            SELECT at / 86400000, owner, agent, provider, model, count(*), sum(cost IS NULL), sum(input_tokens),
                sum(output_tokens), 0, 0, coalesce(sum(cost), 0), max(at)
            FROM calls WHERE ?1 IS NULL OR session = ?1 GROUP BY 1, 2, 3, 4, 5
            ON CONFLICT (day, owner, agent, provider, model) DO UPDATE SET calls = calls + excluded.calls,
                unpriced = unpriced + excluded.unpriced, input_tokens = input_tokens + excluded.input_tokens,
                output_tokens = output_tokens + excluded.output_tokens, cost = cost + excluded.cost,
                last = max(last, excluded.last)",
        "UPDATE sessions SET input_tokens = sessions.input_tokens + c.input,
                output_tokens = sessions.output_tokens + c.output, cost = sessions.cost + c.cost
            FROM (SELECT session, sum(input_tokens) AS input, sum(output_tokens) AS output,
                      coalesce(sum(cost), 0) AS cost FROM calls WHERE ?1 IS NULL OR session = ?1 GROUP BY session) c
            WHERE sessions.key = c.session",
    ] {
        db.prepare_cached(sql)?.execute([session])?;
    }
    db.prepare_cached("DELETE FROM calls WHERE ?1 IS NULL OR session = ?1")?.execute([session])
}

/// The columns of a [`Tally`], as `usage_days` has them.
const TALLY: &str = "coalesce(sum(calls), 0), coalesce(sum(unpriced), 0), coalesce(sum(cost), 0),
    coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),
    coalesce(sum(cache_read_tokens), 0), coalesce(sum(cache_write_tokens), 0)";

/// The same of `usage`.
const TALLY_OF_CALLS: &str = "count(*), sum(cost IS NULL), coalesce(sum(cost), 0),
    sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens)";

/// Reads them from the column `first` on.
fn tally(row: &Row<'_>, first: usize) -> rusqlite::Result<Tally> {
    Ok(Tally {
        calls: row.number(first)?,
        unpriced: row.number(first + 1)?,
        cost: Money::from_nanos(row.number(first + 2)?),
        usage: row.cached_usage(first + 3)?,
    })
}

/// The day of a time, as `usage_days` counts them.
fn day(at: Timestamp) -> i64 {
    integer(at.as_millis() / DAY_MS)
}

impl Query for UsageSince {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let sum = |since: Timestamp| {
                tx.prepare_cached(&format!("SELECT {TALLY} FROM usage_days WHERE day >= ?"))?
                    .query_row([day(since)], |row| tally(row, 0))
            };
            Ok(UsageTotals { day: sum(self.day_start)?, month: sum(self.month_start)? })
        })
    }
}

impl Query for ReadSpent {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let Self(UsageSince { day_start, month_start }) = self;
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT agent, owner,
                     sum(CASE WHEN day >= ?1 THEN input_tokens + output_tokens ELSE 0 END),
                     sum(CASE WHEN day >= ?1 THEN cost ELSE 0 END),
                     sum(CASE WHEN day >= ?2 THEN input_tokens + output_tokens ELSE 0 END),
                     sum(CASE WHEN day >= ?2 THEN cost ELSE 0 END)
                 FROM usage_days WHERE day >= min(?1, ?2) GROUP BY agent, owner",
            )?;
            let rows = statement.query_map([day(day_start), day(month_start)], |row| {
                Ok(SpentBy {
                    agent: row.id(0)?,
                    principal: row.owner(1)?,
                    day: row.spent(2, 3)?,
                    month: row.spent(4, 5)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }
}

impl Query for UsageDays {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(&format!(
                "SELECT day, provider, model, {TALLY} FROM usage_days WHERE day >= ?1
                 GROUP BY day, provider, model ORDER BY day DESC, provider, model LIMIT ?2"
            ))?;
            let rows = statement.query_map(params![day(self.since), integer(USAGE_ROWS_MAX)], |row| {
                Ok(DayUsage {
                    day: Timestamp::from_millis(row.number(0)? * DAY_MS),
                    model: ModelRef { provider: row.get(1)?, model: row.get(2)? },
                    tally: tally(row, 3)?,
                })
            })?;
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
        let most = "sum(input_tokens) + sum(output_tokens) DESC, of";
        let (of, order) = match self.group {
            UsageGroup::Day => ("date(day * 86400, 'unixepoch')", "of DESC"),
            UsageGroup::Agent => ("agent", most),
            UsageGroup::Principal => ("owner", most),
            UsageGroup::Model => ("provider || '/' || model", most),
            UsageGroup::Session => ("session", most),
        };
        let since = self.since.as_millis() / DAY_MS * DAY_MS;
        let (sums, last, from, since) = match self.group {
            UsageGroup::Session => (TALLY_OF_CALLS, "max(at)", "usage WHERE at >= ?1", integer(since)),
            _ => (TALLY, "max(last)", "usage_days WHERE day >= ?1", day(self.since)),
        };
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(&format!(
                "SELECT {of} AS of, {last}, {sums} FROM {from} GROUP BY of ORDER BY {order} LIMIT ?2"
            ))?;
            let rows = statement.query_map(params![since, integer(self.limit)], |row| {
                Ok(UsageShare { of: row.get(0)?, last: row.at(1)?, tally: tally(row, 2)? })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }
}

impl Query for ReadCaches {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            // A call misses the cache where it reads less than half of what the one before it sent: that was
            // in front of it. What has no call before it can't miss.
            let mut statement = tx.prepare_cached(
                "WITH calls AS (
                     SELECT session, provider, model, input_tokens, cache_read_tokens, cache_write_tokens,
                         changed, at,
                         lag(input_tokens) OVER calls AS before, at - lag(at) OVER calls AS gap
                     FROM usage WHERE at >= ?1 AND interrupted = 0
                     WINDOW calls AS (PARTITION BY session ORDER BY id)),
                 judged AS (
                     SELECT *, before IS NOT NULL AND cache_read_tokens * 2 < before AS missed FROM calls)
                 SELECT session, provider, model, count(*), sum(input_tokens), sum(cache_read_tokens),
                     sum(cache_write_tokens), sum(missed),
                     sum(missed AND changed = 'model'), sum(missed AND changed = 'tools'),
                     sum(missed AND changed = 'system'), sum(missed AND changed = 'messages'),
                     sum(missed AND changed = 'nothing' AND gap > ?2),
                     sum(missed AND changed = 'nothing' AND gap <= ?2),
                     max(at)
                 FROM judged GROUP BY session, provider, model ORDER BY sum(input_tokens) DESC LIMIT ?3",
            )?;
            let values = params![time(self.since), integer(CACHE_KEPT_MS), integer(self.limit)];
            let rows = statement.query_map(values, |row| {
                Ok(CacheShare {
                    session: row.get(0)?,
                    model: ModelRef { provider: row.get(1)?, model: row.get(2)? },
                    calls: row.number(3)?,
                    input_tokens: row.number(4)?,
                    cache_read_tokens: row.number(5)?,
                    cache_write_tokens: row.number(6)?,
                    missed: row.number(7)?,
                    by_model: count(row, 8)?,
                    by_tools: count(row, 9)?,
                    by_system: count(row, 10)?,
                    by_messages: count(row, 11)?,
                    by_time: count(row, 12)?,
                    by_provider: count(row, 13)?,
                    last: row.at(14)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }
}

/// A sum that is none where all it adds up is not known.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, Option<i64>>(column)?.map_or(0, number))
}
