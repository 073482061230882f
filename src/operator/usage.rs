//! `clawmux usage`: what was spent, in tokens and money, and what the budgets leave.

use std::io::IsTerminal;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::amount::grouped;
use super::caches;
use super::plot;
use super::source::Source;
use super::table::{Cell, table};
use crate::answer::Members;
use crate::cli::{Global, Usage};
use crate::exit::Failure;
use crate::terminal::{Tone, columns, cut, json_line, say, tell};
use crate::when::{ago, now_ms, utc};
use clawmux_core::provider::price::Money;

/// A budget is highlighted from here on, in percent.
const NEAR_PERCENT: u64 = 80;

/// The longest bar, and the least width of a terminal that shows bars.
const BAR: usize = 12;
const WIDE: usize = 70;
const DAY_MS: u64 = 86_400_000;

/// The columns of the CSV, but for the first, which is what it is summed up by.
const CSV: [&str; 8] = [
    "tokens",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "output_tokens",
    "calls",
    "calls_without_price",
    "cost",
];

/// Runs `usage`.
pub(crate) fn run(global: &Global, options: &Usage) -> Result<(), Failure> {
    if options.cache {
        return caches::run(global, options);
    }
    let by = options.by.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let params = json!({ "by": by, "days": options.days, "limit": options.limit });
    let answer = Source::open(global)?.ask("admin.usage", &params)?;
    if global.json {
        say(&json_line(&answer));
        return Ok(());
    }
    if options.csv {
        say(&csv(answer.list("rows"), &by));
        return Ok(());
    }
    say(&table(["", "TOKENS", "INPUT", "OUTPUT", "COST", "BUDGET", "SPENT", "LEFT"], &[], &totals(&answer)));
    other_budgets(&answer).iter().for_each(|line| say(line));
    let (spent, now_ms) = (answer.list("rows"), now_ms());
    let rows: Vec<_> = spent.iter().map(|share| row(share, &by, now_ms)).collect();
    if rows.is_empty() {
        tell(&format!("nothing was spent in the last {} days", options.days));
        return Ok(());
    }
    say("");
    let head = [&*by.to_uppercase(), "TOKENS", "INPUT", "CACHED", "OUTPUT", "COST", "CALLS", "LAST"];
    match columns().filter(|_| std::io::stdout().is_terminal()) {
        Some(columns) if by == "day" => {
            say(&days(spent, options.days, now_ms, columns, of_everybody(&answer, "daily")));
            say("");
            say(&table(head, &[], &rows));
        }
        Some(columns) if columns >= WIDE => {
            let most = spent.iter().map(tokens).max().unwrap_or(0);
            let with_bar = |(row, share): (&[Cell; 8], &Value)| {
                let [of, tokens_, input, cached, output, cost, calls, last] = row.clone();
                let bar = plot::bar(tokens(share), most, BAR).into();
                [of, bar, tokens_, input, cached, output, cost, calls, last]
            };
            let rows: Vec<_> = rows.iter().zip(spent).map(with_bar).collect();
            let [of, tokens, input, cached, output, cost, calls, last] = head;
            say(&table([of, "SHARE", tokens, input, cached, output, cost, calls, last], &[of], &rows));
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
fn totals(answer: &Value) -> [[Cell; 8]; 2] {
    [("today", "today", "daily"), ("this month", "month", "monthly")].map(|(words, name, period)| {
        let (spent, budget) = (&answer[name], of_everybody(answer, period));
        let number = |of: &Value, name: &str| of[name].as_u64().map_or_else(|| "-".to_owned(), grouped);
        let money = |name: &str| of_everybody(answer, &format!("{period}_cost"))[name].as_f64();
        let money = |name: &str| money(name).and_then(Money::from_dollars);
        let against = |limit: (u64, String), left: (u64, String)| {
            let spent = u128::from(limit.0.saturating_sub(left.0));
            let percent = (spent * 100 / u128::from(limit.0.max(1))) as u64;
            let tone = match percent {
                100.. => Tone::Bad,
                NEAR_PERCENT.. => Tone::Warn,
                _ => Tone::Plain,
            };
            [limit.1.into(), Cell::toned(format!("{percent} %"), tone), Cell::toned(left.1, tone)]
        };
        let [limit, share, left] = match (budget["limit_tokens"].as_u64(), money("limit_dollars")) {
            (Some(limit), _) => {
                let left = budget.number("left_tokens");
                against((limit, grouped(limit)), (left, grouped(left)))
            }
            (None, Some(limit)) => {
                let left = money("left_dollars").unwrap_or_default();
                against((limit.nanos(), limit.to_string()), (left.nanos(), left.to_string()))
            }
            // Those of some are told below.
            (None, None) if other_budgets(answer).is_empty() => ["none".into(), "-".into(), "-".into()],
            (None, None) => ["below".into(), "-".into(), "-".into()],
        };
        let [tokens, input, output] =
            ["tokens", "input_tokens", "output_tokens"].map(|name| Cell::from(number(spent, name)));
        [words.into(), tokens, input, output, cost(spent).into(), limit, share, left]
    })
}

fn row(share: &Value, by: &str, now_ms: u64) -> [Cell; 8] {
    let number = |name: &str| grouped(share.number(name)).into();
    [
        of(share, by).into(),
        number("tokens"),
        number("input_tokens"),
        number("cache_read_tokens"),
        number("output_tokens"),
        cost(share).into(),
        number("calls"),
        ago(share.number("last_ms"), now_ms).into(),
    ]
}

/// What it cost; at least, where the price of some calls is not known.
fn cost(share: &Value) -> String {
    let money = share["cost"].as_f64().and_then(Money::from_dollars).unwrap_or_default();
    match (share.number("calls"), share.number("calls_without_price")) {
        (_, 0) => money.to_string(),
        (calls, unpriced) if calls == unpriced => "-".to_owned(),
        _ => format!(">= {money}"),
    }
}

/// The budgets besides everybody's in tokens, in words: those in money, of somebody, and of each session.
pub(super) fn other_budgets(answer: &Value) -> Vec<String> {
    let each = answer.texts("budgets_of_each").into_iter().map(str::to_owned);
    answer.list("budgets").iter().filter_map(other_budget).chain(each).collect()
}

fn other_budget(budget: &Value) -> Option<String> {
    let is_money = budget["unit"] == "dollars";
    let name = budget["budget"].as_str()?;
    let whose = match (budget["agent"].as_str(), budget["principal"].as_str()) {
        (None, None) if !is_money && name != "session" => return None,
        (agent, principal) => {
            let agent = agent.map(|agent| format!(" of agent {agent}")).unwrap_or_default();
            agent + &principal.map(|principal| format!(" of {principal}")).unwrap_or_default()
        }
    };
    let amount = |name: &str| {
        if is_money {
            let dollars = budget[format!("{name}_dollars")].as_f64()?;
            Money::from_dollars(dollars).map(|money| money.to_string())
        } else {
            budget[format!("{name}_tokens")].as_u64().map(|tokens| format!("{} tokens", grouped(tokens)))
        }
    };
    let limit = amount("limit")?;
    Some(match amount("used") {
        None => format!("each session may spend {limit}"),
        Some(used) => {
            format!("{name}{whose}: {used} of {limit}, {} left", amount("left").unwrap_or_default())
        }
    })
}

/// The rows as comma-separated values, with a head.
fn csv(rows: &[Value], by: &str) -> String {
    let line = |of: &str, rest: Vec<String>| {
        let quoted = if of.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", of.replace('"', "\"\""))
        } else {
            of.to_owned()
        };
        std::iter::once(quoted).chain(rest).collect::<Vec<_>>().join(",")
    };
    let head = line(by, CSV.map(str::to_owned).to_vec());
    let rows = rows.iter().map(|row| line(&of(row, by), CSV.map(|name| row[name].to_string()).to_vec()));
    std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
}

/// What a row is the sum of.
fn of(share: &Value, by: &str) -> String {
    match by {
        "model" => format!(
            "{}/{}",
            share["provider"].as_str().unwrap_or_default(),
            share["model"].as_str().unwrap_or_default()
        ),
        by => share.text(by).to_owned(),
    }
}

/// A budget that all share.
pub(super) fn of_everybody<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let is_everybodys = |budget: &&Value| budget["agent"].is_null() && budget["principal"].is_null();
    let mut budgets = answer.list("budgets").iter().filter(is_everybodys);
    budgets.find(|budget| budget["budget"] == name).unwrap_or(&Value::Null)
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
            "today": {"tokens": 900, "input_tokens": 400, "output_tokens": 500, "calls": 2, "cost": 0.5},
            "month": {"tokens": 1900, "input_tokens": 900, "output_tokens": 1000, "calls": 3, "cost": 0.5,
                      "calls_without_price": 1},
            "budgets": [{"budget": "daily", "limit_tokens": 1000, "used_tokens": 900, "left_tokens": 100},
                        {"budget": "monthly", "limit_tokens": null}],
        });
        let [today, month] = totals(&answer);
        assert_eq!(today[..6], ["today", "900", "400", "500", "$0.50", "1 000"].map(Cell::from));
        assert_eq!(today[6..], ["90 %", "100"].map(|text| Cell::toned(text, Tone::Warn)));
        assert_eq!(
            month,
            ["this month", "1 900", "900", "1 000", ">= $0.50", "none", "-", "-"].map(Cell::from)
        );

        let mut answer = answer;
        answer["budgets_of_each"] = json!(["each agent may spend 9 tokens a day"]);
        assert_eq!(totals(&answer)[1][5], Cell::from("below"), "there is one, though not of all");
        answer["budgets"] = json!([{"budget": "monthly_cost", "unit": "dollars", "limit_dollars": 1.0,
                                    "used_dollars": 0.5, "left_dollars": 0.5}]);
        let [today, month] = totals(&answer);
        assert_eq!(month[5..], ["$1.00", "50 %", "$0.50"].map(Cell::from));
        assert_eq!(today[5], Cell::from("below"));
    }

    #[test]
    fn budgets_beside_the_table_are_said_in_words() {
        for (budget, said) in [
            (json!({"budget": "daily", "unit": "tokens", "limit_tokens": 9}), None),
            (json!({"budget": "session", "unit": "tokens", "limit_tokens": null}), None),
            (
                json!({"budget": "session", "unit": "tokens", "limit_tokens": 9}),
                Some("each session may spend 9 tokens"),
            ),
            (
                json!({"budget": "daily_cost", "unit": "dollars", "limit_dollars": 1.5, "used_dollars": 0.25,
                       "left_dollars": 1.25}),
                Some("daily_cost: $0.25 of $1.50, $1.25 left"),
            ),
            (
                json!({"budget": "monthly", "unit": "tokens", "agent": "main", "principal": "ci",
                       "limit_tokens": 9000, "used_tokens": 1, "left_tokens": 8999}),
                Some("monthly of agent main of ci: 1 tokens of 9 000 tokens, 8 999 tokens left"),
            ),
            (
                json!({"budget": "session_cost", "unit": "dollars", "limit_dollars": 2.0}),
                Some("each session may spend $2.00"),
            ),
        ] {
            assert_eq!(other_budget(&budget).as_deref(), said, "{budget}");
        }
    }

    #[test]
    fn names_with_commas_and_quotes_are_one_value() {
        let row = json!({"session": "a,\"b", "tokens": 3, "input_tokens": 2, "cache_read_tokens": 1,
            "cache_write_tokens": 0, "output_tokens": 1, "calls": 1, "calls_without_price": 0, "cost": 0.5});
        let csv = csv(&[row], "session");
        assert_eq!(csv.lines().nth(1), Some("\"a,\"\"b\",3,2,1,0,1,1,0,0.5"), "{csv}");
    }
}
