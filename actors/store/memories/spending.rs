//! What learning has spent, day by day: that a restart does not give it another day's tokens.

use actix::Message;
use clawmux_core::error::Error;
use clawmux_core::replica::Write;
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension as _, params};

use crate::store::DAY_MS;
use crate::store::change::{Change, MadeBy};
use crate::store::columns::{integer, number};
use crate::store::failure::Failure;
use crate::store::live::Live;
use crate::store::query::Query;
use crate::store::reader::Reader;
use crate::store::writer::Writer;

/// Asks how many tokens learning has spent on the day (UTC) of this moment.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<u64, Error>")]
pub struct ReadLearningTokens(pub Timestamp);

/// Counts tokens that learning has spent, or gives back some that it had set aside; durable when answered.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct SpendOnLearning {
    /// On the day (UTC) of this moment.
    pub at: Timestamp,
    /// So many; below zero = given back.
    pub tokens: i64,
}

fn day(at: Timestamp) -> i64 {
    integer(at.as_millis() / DAY_MS)
}

impl Query for ReadLearningTokens {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let tokens: Option<i64> = tx
                .prepare_cached("SELECT tokens FROM learning_days WHERE day = ?")?
                .query_row([day(self.0)], |row| row.get(0))
                .optional()?;
            Ok(tokens.map_or(0, number))
        })
    }
}

impl Change for SpendOnLearning {
    fn bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::SpendOnLearning { at: self.at, tokens: self.tokens })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let day = day(self.at);
        writer
            .cached(
                "INSERT INTO learning_days (day, tokens) VALUES (?1, max(?2, 0))
                 ON CONFLICT (day) DO UPDATE SET tokens = max(tokens + ?2, 0)",
            )?
            .execute(params![day, self.tokens])?;
        writer.cached("DELETE FROM learning_days WHERE day < ?")?.execute([day - 1])?;
        Ok(())
    }
}
