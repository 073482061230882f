//! `clawmux usage`: tokens spent, and what the budgets leave.

use std::io::IsTerminal;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::amount::grouped;
use super::plot;
use super::source::Source;
use super::table::{Cell, table};
use crate::answer::Members;
use crate::cli::{Global, Usage};
use crate::exit::Failure;
use crate::terminal::{Tone, columns, cut, json_line, say, tell};
use crate::when::{ago, now_ms, utc};

/// A budget is highlighted from here on, in percent.
const NEAR_PERCENT: u64 = 80;

/// The longest bar, and the least width of a terminal that shows bars.
const BAR: usize = 12;
const WIDE: usize = 70;
const DAY_MS: u64 = 86_400_000;

/// Runs `usage`.
pub(crate) fn run(global: &Global, options: &Usage) -> Result<(), Failure> {
    let by = options.by.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let params = json!({ "by": by, "days": options.days, "limit": options.limit });
    let answer = Source::open(global)?.ask("admin.usage", &params)?;
    if global.json {
        say(&json_line(&answer));
        return Ok(());
    }
    say(&table(["", "TOKENS", "INPUT", "OUTPUT", "BUDGET", "SPENT", "LEFT"], &[], &totals(&answer)));
    if let Some(limit) = budget(&answer, "session")["limit_tokens"].as_u64() {
        say(&format!("each session may spend {} tokens", grouped(limit)));
    }
    let (spent, now_ms) = (answer.list("rows"), now_ms());
    let rows: Vec<_> = spent.iter().map(|share| row(share, &by, now_ms)).collect();
    if rows.is_empty() {
        tell(&format!("nothing was spent in the last {} days", options.days));
        return Ok(());
    }
    say("");
    let head = [&*by.to_uppercase(), "TOKENS", "INPUT", "OUTPUT", "CALLS", "LAST"];
    match columns().filter(|_| std::io::stdout().is_terminal()) {
        Some(columns) if by == "day" => {
            say(&days(spent, options.days, now_ms, columns, budget(&answer, "daily")));
            say("");
            say(&table(head, &[], &rows));
        }
        Some(columns) if columns >= WIDE => {
            let most = spent.iter().map(tokens).max().unwrap_or(0);
            let with_bar = |(row, share): (&[Cell; 6], &Value)| {
                let [of, tokens_, input, output, calls, last] = row.clone();
                [of, plot::bar(tokens(share), most, BAR).into(), tokens_, input, output, calls, last]
            };
            let rows: Vec<_> = rows.iter().zip(spent).map(with_bar).collect();
            let [of, rest @ ..] = head;
            let [tokens, input, output, calls, last] = rest;
            say(&table([of, "SHARE", tokens, input, output, calls, last], &[of], &rows));
        }
        _ => say(&table(head, &[], &rows)),
    }
    if answer["more"] == true {
        tell(&format!("these are the first {}: --limit N shows more", rows.len()));
    }
    Ok(())
}

/// A bar for each of the last days, the last one today, as many as there is room for; with what they are measured by.
fn days(spent: &[Value], days: usize, now_ms: u64, columns: usize, budget: &Value) -> String {
    let shown = days.min(columns.saturating_sub(2)).max(1) as u64;
    let day = |ago: u64| utc(now_ms.saturating_sub(ago * DAY_MS)).chars().take(10).collect::<String>();
    let of = |day: &str| spent.iter().find(|share| share["day"] == day).map_or(0, tokens);
    let values: Vec<u64> = (0..shown).rev().map(|ago| of(&day(ago))).collect();
    let most = values.iter().copied().max().unwrap_or(0);
    let budget = match budget["limit_tokens"].as_u64() {
        Some(limit) => format!("the budget is {} a day", grouped(limit)),
        None => "no daily budget".to_owned(),
    };
    let since = if shown == 1 { "today".to_owned() } else { format!("{} to today", day(shown - 1)) };
    let under = format!("{since}; at most {} tokens a day, {budget}", grouped(most));
    format!("{}\n{}", plot::line(&values), cut(&under, columns))
}

fn tokens(share: &Value) -> u64 {
    share.number("tokens")
}

/// Today and this month, each with its budget.
fn totals(answer: &Value) -> [[Cell; 7]; 2] {
    [("today", "today", "daily"), ("this month", "month", "monthly")].map(|(words, name, period)| {
        let (spent, budget) = (&answer[name], budget(answer, period));
        let number = |of: &Value, name: &str| of[name].as_u64().map_or_else(|| "-".to_owned(), grouped);
        let [limit, share, left] = match budget["limit_tokens"].as_u64() {
            None => ["none".into(), "-".into(), "-".into()],
            Some(limit) => {
                let left = budget.number("left_tokens");
                let percent =
                    (u128::from(limit.saturating_sub(left)) * 100 / u128::from(limit.max(1))) as u64;
                let tone = match percent {
                    100.. => Tone::Bad,
                    NEAR_PERCENT.. => Tone::Warn,
                    _ => Tone::Plain,
                };
                [
                    grouped(limit).into(),
                    Cell::toned(format!("{percent} %"), tone),
                    Cell::toned(grouped(left), tone),
                ]
            }
        };
        let [tokens, input, output] =
            ["tokens", "input_tokens", "output_tokens"].map(|name| Cell::from(number(spent, name)));
        [words.into(), tokens, input, output, limit, share, left]
    })
}

fn row(share: &Value, by: &str, now_ms: u64) -> [Cell; 6] {
    let of = match by {
        "model" => format!(
            "{}/{}",
            share["provider"].as_str().unwrap_or_default(),
            share["model"].as_str().unwrap_or_default()
        ),
        by => share.text(by).to_owned(),
    };
    let number = |name: &str| grouped(share.number(name)).into();
    [
        of.into(),
        number("tokens"),
        number("input_tokens"),
        number("output_tokens"),
        number("calls"),
        ago(share.number("last_ms"), now_ms).into(),
    ]
}

fn budget<'a>(answer: &'a Value, period: &str) -> &'a Value {
    answer.list("budgets").iter().find(|budget| budget["budget"] == period).unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_day_has_a_bar() {
        let spent =
            [json!({"day": "1970-01-03", "tokens": 40}), json!({"day": "1970-01-01", "tokens": 10_000})];
        let drawn =
            |days_, columns| days(&spent, days_, 2 * DAY_MS, columns, &json!({"limit_tokens": 20_000}));
        let under = "at most 10 000 tokens a day, the budget is 20 000 a day";
        assert_eq!(drawn(3, 100), format!("█·▁\n1970-01-01 to today; {under}"));
        let narrow = drawn(30, 4);
        assert_eq!(narrow.lines().next(), Some("·█"), "{narrow}: as many days as there is room for");
    }

    #[test]
    fn what_is_spent_stands_against_its_budget() {
        let answer = json!({
            "today": {"tokens": 900, "input_tokens": 400, "output_tokens": 500},
            "month": {"tokens": 1900, "input_tokens": 900, "output_tokens": 1000},
            "budgets": [{"budget": "daily", "limit_tokens": 1000, "used_tokens": 900, "left_tokens": 100},
                        {"budget": "monthly", "limit_tokens": null}],
        });
        let [today, month] = totals(&answer);
        assert_eq!(today[..5], ["today", "900", "400", "500", "1 000"].map(Cell::from));
        assert_eq!(today[5..], ["90 %", "100"].map(|text| Cell::toned(text, Tone::Warn)));
        assert_eq!(month, ["this month", "1 900", "900", "1 000", "none", "-", "-"].map(Cell::from));
    }
}
