//! `sessions.usage`: what sessions spent, beside what was spent on which model on which day.
//!
//! Days and models are counted for the whole daemon as calls are made, sessions each since they were
//! reset: a session is in the range where it was used in it, with all that it spent. What it said on which
//! day is not counted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::usage::Sum;
use super::{Answered, Call, OpenClaw, Request, catalog};
use crate::conversation::command::SessionFilter;
use crate::conversation::reply::SessionRow;
use crate::daemon::command::{DayUsage, ListUsage};
use crate::dialect::Turn;
use crate::time::Timestamp;

/// How many sessions are told to who does not say, and at most; and how many are counted.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1000;
const COUNTED_MAX: usize = 1000;

/// How far back a range reaches that names no day.
const DAYS: i64 = 30;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RangeParams {
    key: Option<String>,
    agent_id: Option<String>,
    start_date: Option<String>,
    end_date: Option<String>,
    range: Option<String>,
    limit: Option<usize>,
}

/// A range of days, in UTC as days are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    first: jiff::civil::Date,
    last: jiff::civil::Date,
}

impl Range {
    fn of(asked: &RangeParams, now: Timestamp) -> Result<Self, String> {
        let day = |name: &str, text: &Option<String>| {
            let read = |text: &String| {
                text.parse::<jiff::civil::Date>()
                    .map_err(|_| format!("at /{name}: must be a date, YYYY-MM-DD"))
            };
            text.as_ref().map(read).transpose()
        };
        let today: jiff::civil::Date =
            now.to_rfc3339().chars().take(10).collect::<String>().parse().unwrap_or_default();
        let last = day("endDate", &asked.end_date)?.unwrap_or(today);
        let days = match asked.range.as_deref() {
            Some("7d") => 7,
            Some("90d") => 90,
            Some("1y") => 365,
            Some("all") => i64::from(i32::from(last.year())) * 366,
            _ => DAYS,
        };
        let before = |days: i64| {
            let span = jiff::Span::new().try_days(days).unwrap_or_default();
            last.checked_sub(span).unwrap_or(jiff::civil::date(1970, 1, 1))
        };
        let first = day("startDate", &asked.start_date)?.unwrap_or_else(|| before(days - 1));
        Ok(Self { first: first.max(jiff::civil::date(1970, 1, 1)), last })
    }

    /// When its first day began.
    fn since(self) -> Timestamp {
        let begun =
            self.first.to_zoned(jiff::tz::TimeZone::UTC).map_or(0, |at| at.timestamp().as_millisecond());
        Timestamp::from_millis(u64::try_from(begun).unwrap_or(0))
    }

    /// The day of a time, where it is in the range.
    fn day(self, at: Timestamp) -> Option<String> {
        let day: String = at.to_rfc3339().chars().take(10).collect();
        (day >= self.first.to_string() && day <= self.last.to_string()).then_some(day)
    }
}

/// `sessions.usage`
pub(super) fn sessions(_: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let asked: RangeParams = request.read()?;
    let range = Range::of(&asked, turn.now()).map_err(|why| request.invalid(&why))?;
    let since = range.since();
    Call::ask_on(ListUsage { since }, move |_, days, _| {
        let filter = SessionFilter {
            limit: COUNTED_MAX,
            active_since: Some(since),
            agent: asked.agent_id.as_deref().map(Into::into),
            ..SessionFilter::default()
        };
        Call::ask(filter, move |dialect, list, turn| {
            dialect.spent(&asked, range, &days, &list.rows, turn.now())
        })
    })
}

impl OpenClaw {
    fn spent(
        &self,
        asked: &RangeParams,
        range: Range,
        days: &[DayUsage],
        rows: &[SessionRow],
        now: Timestamp,
    ) -> Value {
        let limit = asked.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
        let mut shown = Vec::new();
        let (mut by_agent, mut by_channel) = (BTreeMap::<String, Sum>::new(), BTreeMap::<String, Sum>::new());
        let (mut whole, mut answered) = (Sum::default(), 0);
        for row in rows.iter().filter(|row| range.day(row.created).is_some() || row.created < range.since()) {
            let known = self.session_row(row);
            if asked.key.as_ref().is_some_and(|key| known["key"] != key.as_str()) {
                continue;
            }
            // By session it is known what was spent, not which calls had no price.
            let sum = Sum { usage: row.usage, cost: row.cost, calls: row.answered, unpriced: 0 };
            whole.join(sum);
            by_agent.entry(row.session.agent().into_owned()).or_default().join(sum);
            by_channel.entry(row.session.channel().into_owned()).or_default().join(sum);
            answered += row.answered;
            if shown.len() < limit {
                shown.push(session(&known, row, sum));
            }
        }
        let days: Vec<(String, &DayUsage)> =
            days.iter().filter_map(|day| Some((range.day(day.day)?, day))).collect();
        // Of all sessions it is known by day and model; of some, from them alone.
        let is_all = asked.key.is_none() && asked.agent_id.is_none();
        let (mut by_day, mut by_model) = (BTreeMap::<String, Sum>::new(), BTreeMap::new());
        let mut by_provider = BTreeMap::<&str, Sum>::new();
        let mut totals = Sum::default();
        for (date, day) in days.iter().filter(|_| is_all) {
            totals.add(day);
            by_day.entry(date.clone()).or_default().add(day);
            by_model
                .entry(catalog::model_name(&day.model))
                .or_insert((&day.model, Sum::default()))
                .1
                .add(day);
            by_provider.entry(&day.model.provider).or_default().add(day);
        }
        if !is_all {
            totals = whole;
        }
        let models = by_model.into_values().map(|(model, sum)| {
            json!({ "provider": model.provider, "model": model.model, "count": sum.calls, "totals": sum.to_value() })
        });
        let providers = by_provider.into_iter().map(
            |(provider, sum)| json!({ "provider": provider, "count": sum.calls, "totals": sum.to_value() }),
        );
        let daily = by_day.into_iter().map(
            |(date, sum)| json!({ "date": date, "tokens": sum.usage.total(), "cost": sum.cost.dollars() }),
        );
        let named = |name: &str, sums: BTreeMap<String, Sum>| -> Vec<Value> {
            sums.into_iter().map(|(of, sum)| json!({ name: of, "totals": sum.to_value() })).collect()
        };
        json!({
            "updatedAt": now.as_millis(),
            "startDate": range.first.to_string(),
            "endDate": range.last.to_string(),
            "sessions": shown,
            "totals": totals.to_value(),
            "aggregates": {
                "messages": messages(answered),
                "tools": { "totalCalls": 0, "uniqueTools": 0, "tools": [] },
                "byModel": models.collect::<Vec<_>>(),
                "byProvider": providers.collect::<Vec<_>>(),
                "byAgent": named("agentId", by_agent),
                "byChannel": named("channel", by_channel),
                "daily": daily.collect::<Vec<_>>(),
            },
        })
    }
}

/// Prompts and their answers; what tools were called is not counted.
fn messages(answered: u64) -> Value {
    json!({
        "total": answered.saturating_mul(2), "user": answered, "assistant": answered,
        "toolCalls": 0, "toolResults": 0, "errors": 0,
    })
}

fn session(known: &Value, row: &SessionRow, sum: Sum) -> Value {
    let mut usage = sum.to_value();
    usage["firstActivity"] = row.created.as_millis().into();
    usage["lastActivity"] = row.updated.as_millis().into();
    usage["messageCounts"] = messages(row.answered);
    let mut value = json!({ "scope": "instance", "usage": usage });
    for name in ["key", "sessionId", "updatedAt", "agentId", "channel", "label", "modelProvider", "model"] {
        if let Some(known) = known.get(name) {
            value[name] = known.clone();
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_of_days_and_ends_today_unless_said() {
        let now = Timestamp::from_millis(86_400_000 * 40 + 5);
        let of = |asked: RangeParams| Range::of(&asked, now);
        let month = of(RangeParams::default()).unwrap();
        assert_eq!(
            (month.first.to_string().as_str(), month.last.to_string().as_str()),
            ("1970-01-12", "1970-02-10")
        );
        assert_eq!(month.since(), Timestamp::from_millis(86_400_000 * 11));
        let all = of(RangeParams { range: Some("all".into()), ..RangeParams::default() }).unwrap();
        assert_eq!(all.since(), Timestamp::from_millis(0));
        let one = of(RangeParams {
            start_date: Some("1970-02-01".into()),
            end_date: Some("1970-02-01".into()),
            ..RangeParams::default()
        });
        let one = one.unwrap();
        assert_eq!(one.day(Timestamp::from_millis(86_400_000 * 31 + 7)).as_deref(), Some("1970-02-01"));
        assert_eq!(one.day(now), None);
        assert!(of(RangeParams { end_date: Some("x".into()), ..RangeParams::default() }).is_err());
    }
}
