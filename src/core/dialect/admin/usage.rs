//! `admin.usage`: what was spent, today, this month and by what is asked for, what the budgets leave, and how
//! caches were used.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use crate::daemon::operator::{CacheShare, ReadCaches, ReadUsage, UsageGroup, UsageShare};
use crate::error::Error;
use crate::ids::Owner;
use crate::provider::budget::{Budget, Period, Unit};
use crate::provider::price::Money;
use crate::provider::tally::Tally;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.usage", r#"{"by"?, "days"?, "limit"?}"#, usage),
    method("admin.usage.cache", r#"{"days"?, "limit"?}"#, caches),
];

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheParams {
    days: Option<u64>,
    limit: Option<usize>,
}

/// Answers it: `{"today", "month", "budgets": [..], "budgets_of_each": [..], "by", "since_ms", "rows": [..], "more"}`. Days and months
/// are those of UTC; `days` counts today.
fn usage(request: &Request) -> Result<Call, Error> {
    let UsageParams { by, days, limit } = request.read()?;
    let by = by.unwrap_or_else(|| "day".to_owned());
    let group = match by.as_str() {
        "day" => UsageGroup::Day,
        "agent" => UsageGroup::Agent,
        "principal" => UsageGroup::Principal,
        "model" => UsageGroup::Model,
        "session" => UsageGroup::Session,
        _ => {
            return Err(invalid(
                "there is no such sum: `by` is \"day\", \"agent\", \"principal\", \"model\" or \"session\"",
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
            "budgets_of_each": report.budgets_of_each,
            "by": by,
            "since_ms": report.since.as_millis(),
            "rows": report.shares.iter().map(|share| row(share, &by)).collect::<Vec<_>>(),
            "more": report.has_more,
        })
    })
}

/// Answers `admin.usage.cache`: `{"since_ms", "rows": [..], "more"}`.
fn caches(request: &Request) -> Result<Call, Error> {
    let CacheParams { days, limit } = request.read()?;
    let limit = limit.unwrap_or(ROWS).clamp(1, ROWS_MAX);
    let days = days.unwrap_or(DAYS).clamp(1, DAYS_MAX);
    ask(ReadCaches { days, limit }, |report| {
        json!({
            "since_ms": report.since.as_millis(),
            "rows": report.shares.iter().map(cache).collect::<Vec<_>>(),
            "more": report.has_more,
        })
    })
}

fn cache(share: &CacheShare) -> Value {
    json!({
        "session": share.session,
        "provider": share.model.provider,
        "model": share.model.model,
        "calls": share.calls,
        "input_tokens": share.input_tokens,
        "cache_read_tokens": share.cache_read_tokens,
        "cache_write_tokens": share.cache_write_tokens,
        "missed": share.missed,
        "missed_because": {
            "model": share.by_model, "tools": share.by_tools, "system": share.by_system,
            "messages": share.by_messages, "time": share.by_time, "provider": share.by_provider,
        },
        "last_ms": share.last.as_millis(),
    })
}

fn tokens(tally: Tally) -> Value {
    let usage = tally.usage;
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "tokens": usage.total(),
        "calls": tally.calls,
        "cost": tally.cost.dollars(),
        "calls_without_price": tally.unpriced,
    })
}

/// One budget, in tokens or in dollars. Of the sessions only the limit is told: each has its own.
pub(super) fn budget(budget: &Budget) -> Value {
    let is_shared = budget.period != Period::Session;
    let is_limited = budget.limit > 0;
    let unit = match budget.unit {
        Unit::Tokens => "tokens",
        Unit::Money => "dollars",
    };
    let amount = |is_told: bool, amount: u64| match budget.unit {
        _ if !is_told => Value::Null,
        Unit::Tokens => amount.into(),
        Unit::Money => Money::from_nanos(amount).dollars().into(),
    };
    let mut value = json!({ "budget": budget.name(), "period": budget.period.name(), "unit": unit });
    for (name, told) in [
        ("limit", amount(is_limited, budget.limit)),
        ("used", amount(is_shared, budget.used)),
        ("reserved", amount(is_shared, budget.reserved)),
        ("left", amount(is_shared && is_limited, budget.limit.saturating_sub(budget.taken()))),
    ] {
        value[format!("{name}_{unit}")] = told;
    }
    value["resets_ms"] = budget.resets.map(|at| at.as_millis()).into();
    if let Some(agent) = &budget.whose.agent {
        value["agent"] = agent.as_str().into();
    }
    if let Some(principal) = &budget.whose.principal {
        value["principal"] = principal_name(principal.as_str()).into();
    }
    value
}

/// What a principal is called in the configuration and in commands.
fn principal_name(name: &str) -> &str {
    if name == Owner::Admins.as_str() { "operators" } else { name }
}

fn row(share: &UsageShare, by: &str) -> Value {
    let mut row = tokens(share.tally);
    if by == "model" {
        let (provider, model) = share.of.split_once('/').unwrap_or(("", &share.of));
        row["provider"] = provider.into();
        row["model"] = model.into();
    } else if by == "principal" {
        row[by] = principal_name(&share.of).into();
    } else {
        row[by] = share.of.as_str().into();
    }
    row["last_ms"] = share.last.as_millis().into();
    row
}
