//! What was spent: tokens, and money where what a model costs is known; how often it is not is said too.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request, catalog};
use crate::daemon::command::{DayUsage, ListUsage};
use crate::dialect::Turn;
use crate::provider::price::Money;
use crate::provider::tally::Tally;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How many days are told to who does not say, and at most.
const DAYS: u32 = 30;
const DAYS_MAX: u32 = 366;

/// Sums over some calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// Tokens that were read and written.
    pub(super) usage: Usage,
    /// What they cost.
    pub(super) cost: Money,
    /// How many calls, or answers, that were.
    pub(super) calls: u64,
    /// How many of them have no known price.
    pub(super) unpriced: u64,
}

impl Sum {
    /// With the calls of a day.
    pub(super) fn add(&mut self, day: &DayUsage) {
        let Tally { usage, cost, calls, unpriced } = day.tally;
        self.join(Self { usage, cost, calls, unpriced });
    }

    /// With another.
    pub(super) fn join(&mut self, other: Self) {
        self.usage += other.usage;
        self.cost = self.cost.plus(other.cost);
        self.calls = self.calls.saturating_add(other.calls);
        self.unpriced = self.unpriced.saturating_add(other.unpriced);
    }

    /// In the protocol's words.
    pub(super) fn to_value(self) -> Value {
        json!({
            "input": self.usage.fresh_input(),
            "output": self.usage.output_tokens,
            "cacheRead": self.usage.cache_read_tokens,
            "cacheWrite": self.usage.cache_write_tokens,
            "totalTokens": self.usage.total(),
            "totalCost": self.cost.dollars(),
            "inputCost": 0,
            "outputCost": 0,
            "cacheReadCost": 0,
            "cacheWriteCost": 0,
            "missingCostEntries": self.unpriced,
        })
    }
}

/// `usage.status`: what providers say is left of a plan. None is asked.
pub(super) fn status(_: &mut OpenClaw, _: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({ "updatedAt": turn.now().as_millis(), "providers": [] })))
}

/// `usage.cost`: by day, and by model.
pub(super) fn cost(_: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    struct Cost {
        days: Option<f64>,
    }
    let days = request.read::<Cost>()?.days.map_or(DAYS, |days| days.clamp(1.0, DAYS_MAX.into()) as u32);
    // Today is one of them.
    let since = Timestamp::from_millis(
        turn.now().as_millis().saturating_sub(DAY.saturating_mul(days - 1).as_millis() as u64),
    );
    Call::ask(ListUsage { since }, move |_, rows, turn| summary(&rows, days, turn.now()))
}

fn summary(rows: &[DayUsage], days: u32, now: Timestamp) -> Value {
    let mut totals = Sum::default();
    let mut by_day: BTreeMap<String, Sum> = BTreeMap::new();
    let mut by_model: BTreeMap<String, (&DayUsage, Sum)> = BTreeMap::new();
    for row in rows {
        totals.add(row);
        by_day.entry(row.day.to_rfc3339().chars().take(10).collect()).or_default().add(row);
        by_model.entry(catalog::model_name(&row.model)).or_insert((row, Sum::default())).1.add(row);
    }
    let daily = by_day.into_iter().map(|(date, sum)| {
        let mut value = sum.to_value();
        value["date"] = date.into();
        value
    });
    let models = by_model.into_values().map(|(row, sum)| {
        json!({
            "provider": row.model.provider, "model": row.model.model, "count": sum.calls, "totals": sum.to_value(),
        })
    });
    json!({
        "updatedAt": now.as_millis(),
        "days": days,
        "daily": daily.collect::<Vec<_>>(),
        "byModel": models.collect::<Vec<_>>(),
        "totals": totals.to_value(),
    })
}
