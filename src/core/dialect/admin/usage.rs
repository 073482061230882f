//! `admin.usage`: tokens spent, today, this month and by what is asked for, and what the budgets leave.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use crate::daemon::operator::{ReadUsage, UsageGroup, UsageShare};
use crate::error::Error;
use crate::provider::meter::{Budget, Period};
use crate::provider::usage::Usage;

/// The methods.
pub(super) const METHODS: &[Method] = &[method("admin.usage", r#"{"by"?, "days"?, "limit"?}"#, usage)];

/// Days that are looked at.
const DAYS: u64 = 30;
/// The most of them.
const DAYS_MAX: u64 = 3660;
/// Rows in an answer.
const ROWS: usize = 100;
/// The most of them.
const ROWS_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageParams {
    by: Option<String>,
    days: Option<u64>,
    limit: Option<usize>,
}

/// Answers it: `{"today", "month", "budgets": [..], "by", "since_ms", "rows": [..], "more"}`. Days and months
/// are those of UTC; `days` counts today.
fn usage(request: &Request) -> Result<Call, Error> {
    let UsageParams { by, days, limit } = request.read()?;
    let by = by.unwrap_or_else(|| "day".to_owned());
    let group = match by.as_str() {
        "day" => UsageGroup::Day,
        "agent" => UsageGroup::Agent,
        "model" => UsageGroup::Model,
        "session" => UsageGroup::Session,
        _ => {
            return Err(invalid(
                "there is no such sum: `by` is \"day\", \"agent\", \"model\" or \"session\"",
            ));
        }
    };
    let limit = limit.unwrap_or(ROWS).clamp(1, ROWS_MAX);
    let days = days.unwrap_or(DAYS).clamp(1, DAYS_MAX);
    ask(ReadUsage { by: group, days, limit }, move |report| {
        json!({
            "today": tokens(report.totals.day),
            "month": tokens(report.totals.month),
            "budgets": report.budgets.iter().map(budget).collect::<Vec<_>>(),
            "by": by,
            "since_ms": report.since.as_millis(),
            "rows": report.shares.iter().map(|share| row(share, &by)).collect::<Vec<_>>(),
            "more": report.has_more,
        })
    })
}

fn tokens(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
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
