//! What was spent, by what an operator asks for: added up from the calls themselves.

use clawmux_core::error::Error;
use clawmux_core::event::Usage;
use rusqlite::params;

use super::{Reader, integer, number, time};
use crate::store::{UsageBy, UsageGroup, UsageShare};

impl Reader {
    pub(in crate::store) fn usage_by(&mut self, asked: &UsageBy) -> Result<Vec<UsageShare>, Error> {
        // What the share is of, and which come first: the latest days, else who spent most.
        let (of, order) = match asked.group {
            UsageGroup::Day => ("date(at / 1000, 'unixepoch')", "of DESC"),
            UsageGroup::Agent => ("agent", "sum(input_tokens) + sum(output_tokens) DESC, of"),
            UsageGroup::Model => {
                ("provider || '/' || model", "sum(input_tokens) + sum(output_tokens) DESC, of")
            }
            UsageGroup::Session => ("session", "sum(input_tokens) + sum(output_tokens) DESC, of"),
        };
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(&format!(
                "SELECT {of} AS of, sum(input_tokens), sum(output_tokens), count(*), max(at)
                 FROM usage WHERE at >= ?1 GROUP BY of ORDER BY {order} LIMIT ?2"
            ))?;
            let limit = i64::try_from(asked.limit).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![integer(asked.since.as_millis()), limit], |row| {
                Ok(UsageShare {
                    of: row.get(0)?,
                    usage: Usage { input_tokens: number(row, 1)?, output_tokens: number(row, 2)? },
                    calls: number(row, 3)?,
                    last: time(row, 4)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        })
    }
}
