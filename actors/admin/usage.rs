//! `admin.usage`: tokens spent, today, this month and by what is asked for, and what the budgets leave.

use actix::Addr;
use clawmux_core::config::{Budgets, Config};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::Usage;
use clawmux_core::log::usage::UsageTotals;
use clawmux_core::meter::{Budget, Period, day_start, month_start};
use clawmux_core::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::{Call, stopping};
use super::params::read;
use crate::ask::ask;
use crate::clock;
use crate::provider_supervisor::BudgetStatus;
use crate::store::{Store, UsageBy, UsageGroup, UsageShare, UsageSince};

/// Days that are looked at.
const DAYS: u64 = 30;
/// The most of them.
const DAYS_MAX: u64 = 3660;
/// Rows in an answer.
const ROWS: usize = 100;
/// The most of them.
const ROWS_MAX: usize = 10_000;
const DAY_MS: u64 = 86_400_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    by: Option<String>,
    days: Option<u64>,
    limit: Option<usize>,
}

/// Answers it: `{"today", "month", "budgets": [..], "by", "since_ms", "rows": [..], "more"}`. Days and months
/// are those of UTC; `days` counts today.
pub(super) async fn usage(call: Call) -> Result<Value, Error> {
    // With a session that has spent nothing, so that its limit is told as well.
    let budgets = call.daemon.budgets.send(BudgetStatus { session_spent: Some(0) });
    let (mut answer, _) = asked(&call.daemon.store, &call.params).await?;
    let budgets = budgets.await.map_err(|_| stopping())?;
    answer["budgets"] = budgets.iter().map(budget).collect();
    Ok(answer)
}

/// The same of a store that no daemon has open, with the budgets of this configuration.
pub(super) async fn of_store(store: &Addr<Store>, config: &Config, params: &Value) -> Result<Value, Error> {
    let (mut answer, totals) = asked(store, params).await?;
    let Budgets { session, daily, monthly } = config.budgets;
    let budgets = [
        (Period::Session, session, 0),
        (Period::Daily, daily, totals.day.total()),
        (Period::Monthly, monthly, totals.month.total()),
    ];
    let budgets = budgets.map(|(period, limit, used)| budget(&Budget { period, limit, used, reserved: 0 }));
    answer["budgets"] = json!(budgets);
    Ok(answer)
}

/// The answer but for the budgets, and what they are measured by.
async fn asked(store: &Addr<Store>, params: &Value) -> Result<(Value, UsageTotals), Error> {
    let Params { by, days, limit } = read("admin.usage", params)?;
    let by = by.as_deref().unwrap_or("day");
    let group = match by {
        "day" => UsageGroup::Day,
        "agent" => UsageGroup::Agent,
        "model" => UsageGroup::Model,
        "session" => UsageGroup::Session,
        _ => {
            let why = "there is no such sum: `by` is \"day\", \"agent\", \"model\" or \"session\"";
            return Err(ErrorCode::InvalidRequest.error(why));
        }
    };
    let limit = limit.unwrap_or(ROWS).clamp(1, ROWS_MAX);
    let before = days.unwrap_or(DAYS).clamp(1, DAYS_MAX) - 1;
    let now = clock::now();
    let today = day_start(now);
    let since = Timestamp::from_millis(today.as_millis().saturating_sub(before * DAY_MS));
    let totals = ask(store, UsageSince { day_start: today, month_start: month_start(now) });
    let shares = ask(store, UsageBy { since, group, limit: limit + 1 });
    let (totals, mut shares) = (totals.await??, shares.await??);
    let more = shares.len() > limit;
    shares.truncate(limit);
    let answer = json!({
        "today": tokens(totals.day),
        "month": tokens(totals.month),
        "by": by,
        "since_ms": since.as_millis(),
        "rows": shares.iter().map(|share| row(share, by)).collect::<Vec<_>>(),
        "more": more,
    });
    Ok((answer, totals))
}

fn tokens(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "tokens": usage.total(),
    })
}

/// One budget. Of the sessions only the limit is told: each has its own.
pub(super) fn budget(budget: &Budget) -> Value {
    let is_shared = budget.period != Period::Session;
    let is_limited = budget.limit > 0;
    let taken = budget.used.saturating_add(budget.reserved);
    json!({
        "budget": budget.period.name(),
        "limit_tokens": is_limited.then_some(budget.limit),
        "used_tokens": is_shared.then_some(budget.used),
        "reserved_tokens": is_shared.then_some(budget.reserved),
        "left_tokens": (is_shared && is_limited).then(|| budget.limit.saturating_sub(taken)),
    })
}

fn row(share: &UsageShare, by: &str) -> Value {
    let mut row = tokens(share.usage);
    if by == "model" {
        let (provider, model) = share.of.split_once('/').unwrap_or(("", &share.of));
        row["provider"] = provider.into();
        row["model"] = model.into();
    } else {
        row[by] = share.of.as_str().into();
    }
    row["calls"] = share.calls.into();
    row["last_ms"] = share.last.as_millis().into();
    row
}
