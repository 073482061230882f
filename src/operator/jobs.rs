//! `clawmux jobs`, `job add`, `run`, `remove`, `runs`, `enable`, `disable`: what is done at set times.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use serde_json::{Value, json};

use super::table::table;
use super::tokens::life;
use super::when::{ago, now_ms, span, utc};
use crate::admin_client::{call, home_of};
use crate::cli::{AddJob, Global, JobCommand, JobRuns, Jobs, OneJob, RunJob};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{json_line, one_line, say, tell};

/// An id may be cut to so many characters, where no other begins with them.
const PREFIX_CHARS_MIN: usize = 4;

/// Of several that may be meant so many are named.
const MEANT_MAX: usize = 10;

/// The job that is the heartbeat.
const HEARTBEAT: &str = "heartbeat";

/// How often is asked whether a job is done.
const POLL: Duration = Duration::from_millis(200);

/// So much of an answer is shown in a table, in characters.
const ANSWER_CHARS: usize = 60;

/// Runs `jobs`.
///
/// # Errors
/// As [`call`].
pub(crate) fn list(global: &Global, options: &Jobs) -> Result<(), Failure> {
    let answer = call(&home_of(global)?, "admin.jobs", &json!({}))?;
    if let Some(why) = answer["heartbeat_halted"].as_str() {
        tell(&format!("the heartbeat is stopped until the configuration changes: {why}"));
    }
    if answer["draining"] == true {
        tell("the daemon is draining: no job is started");
    }
    if options.json {
        let mut jobs = entries(&answer, "jobs").to_vec();
        if let Some(heartbeat) = jobs.iter_mut().find(|job| job["job"] == HEARTBEAT) {
            heartbeat["halted"] = answer["heartbeat_halted"].clone();
        }
        return super::objects(&jobs);
    }
    let rows: Vec<_> = entries(&answer, "jobs").iter().map(|job| row(job, now_ms())).collect();
    if rows.is_empty() {
        tell("no jobs: add one with `clawmux job add`");
        return Ok(());
    }
    say(&table(["JOB", "NAME", "WHEN", "NEXT", "LAST", "STATE", "SESSION"], &["NAME"], &rows));
    Ok(())
}

/// Runs `job`.
///
/// # Errors
/// As [`call`]; status 1 where no job, or more than one, has such a name, or where a job that was run
/// was not done.
pub(crate) fn run(global: &Global, command: &JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::Add(options) => add(global, options),
        JobCommand::Run(options) => run_now(global, options),
        JobCommand::Runs(options) => runs(global, options),
        JobCommand::Enable(options) => switch(global, options, "enable"),
        JobCommand::Disable(options) => switch(global, options, "disable"),
        JobCommand::Remove(options) => remove(global, options),
    }
}

fn add(global: &Global, options: &AddJob) -> Result<(), Failure> {
    let prompt = match &options.prompt {
        Some(prompt) => prompt.clone(),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::new(USAGE, "give the prompt with --prompt, or on stdin"));
        }
        None => {
            let mut prompt = String::new();
            let read = std::io::stdin().lock().read_to_string(&mut prompt);
            read.map_err(|error| Failure::new(FAILED, format!("stdin can't be read: {error}")))?;
            prompt
        }
    };
    let mut params = json!({ "prompt": prompt.trim(), "enabled": !options.disabled, "delete_after": options.delete_after });
    let time = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let named: [(&str, Option<Value>); 11] = [
        ("at_ms", options.at.map(|at| at.of(now_ms()).into())),
        ("every_ms", options.every.map(|every| time(every).into())),
        ("cron", options.cron.as_deref().map(Value::from)),
        ("zone", options.zone.as_deref().map(Value::from)),
        ("name", options.name.as_deref().map(Value::from)),
        ("session", options.session.as_deref().map(Value::from)),
        ("agent", options.agent.as_deref().map(Value::from)),
        ("result_to", options.result_to.as_deref().map(Value::from)),
        ("misfire", options.misfire.as_deref().map(Value::from)),
        ("model", options.model.as_deref().map(Value::from)),
        ("thinking", options.thinking.as_deref().map(Value::from)),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            params[name] = value;
        }
    }
    let job = call(&home_of(global)?, "admin.job.add", &params)?;
    if options.json {
        say(&json_line(&job));
        return Ok(());
    }
    let next = job["next_ms"].as_u64();
    let next = next.map_or_else(|| "disabled".into(), |at| format!("first at {} UTC", utc(at)));
    say(&format!(
        "added job {}: {}, {next}, in session {}",
        text(&job["job"]),
        when(&job["schedule"]),
        text(&job["session"])
    ));
    Ok(())
}

fn run_now(global: &Global, options: &RunJob) -> Result<(), Failure> {
    let home = home_of(global)?;
    let id = find(&home, &options.job.id)?;
    let begun = call(&home, "admin.job.run", &json!({ "job": id }))?;
    if options.no_wait {
        say(&if options.job.json {
            json_line(&begun)
        } else {
            format!("started job {id}: `clawmux job runs {id}` shows how it goes")
        });
        return Ok(());
    }
    let over = loop {
        let list = call(&home, "admin.job.runs", &json!({ "job": id, "limit": 100 }))?;
        let found = entries(&list, "runs").iter().find(|run| run["scheduled_ms"] == begun["scheduled_ms"]);
        match found {
            Some(run) if !run["ended_ms"].is_null() => break run.clone(),
            Some(_) => std::thread::sleep(POLL),
            // A job that is gone once it was done is gone with its firings; one that was just begun may
            // not be written down yet.
            None => {
                if now_ms().saturating_sub(begun["scheduled_ms"].as_u64().unwrap_or(0)) > 30_000 {
                    return Err(Failure::new(
                        FAILED,
                        format!("the daemon has no record of this run of job {id}"),
                    ));
                }
                std::thread::sleep(POLL);
            }
        }
    };
    if options.job.json {
        say(&json_line(&over));
    } else if let Some(said) = over["text"].as_str().filter(|said| !said.is_empty()) {
        say(said);
    }
    match text(&over["state"]) {
        "ok" => Ok(()),
        "skipped" => {
            tell(&format!("skipped: {}", text(&over["why"])));
            Ok(())
        }
        _ => Err(Failure::new(FAILED, format!("failed: {}", text(&over["why"])))),
    }
}

fn runs(global: &Global, options: &JobRuns) -> Result<(), Failure> {
    let home = home_of(global)?;
    let mut params = json!({ "limit": options.limit });
    if let Some(id) = &options.id {
        params["job"] = find(&home, id)?.into();
    }
    let answer = call(&home, "admin.job.runs", &params)?;
    if options.json {
        return super::objects(entries(&answer, "runs"));
    }
    let rows: Vec<_> = entries(&answer, "runs").iter().map(run_row).collect();
    if rows.is_empty() {
        tell("no job has run yet");
        return Ok(());
    }
    say(&table(["JOB", "DUE", "STATE", "TOOK", "MISSED", "TOKENS", "ANSWER"], &["ANSWER"], &rows));
    Ok(())
}

fn switch(global: &Global, options: &OneJob, what: &str) -> Result<(), Failure> {
    let home = home_of(global)?;
    let id = find(&home, &options.id)?;
    let job = call(&home, &format!("admin.job.{what}"), &json!({ "job": id }))?;
    if options.json {
        say(&json_line(&job));
    } else {
        say(&format!("{what}d job {id} ({})", text(&job["name"])));
    }
    Ok(())
}

fn remove(global: &Global, options: &OneJob) -> Result<(), Failure> {
    let home = home_of(global)?;
    let id = find(&home, &options.id)?;
    let answer = call(&home, "admin.job.remove", &json!({ "job": id }))?;
    if options.json {
        say(&json_line(&answer));
    } else {
        say(&format!("removed job {id}; its session stays"));
    }
    Ok(())
}

/// The job whose id is, or begins with, `id`, or whose name it is.
fn find(home: &std::path::Path, id: &str) -> Result<String, Failure> {
    let answer = call(home, "admin.jobs", &json!({}))?;
    let jobs = entries(&answer, "jobs");
    pick(id, jobs).map(str::to_owned)
}

fn pick<'a>(id: &str, jobs: &'a [Value]) -> Result<&'a str, Failure> {
    if let Some(exact) = jobs.iter().map(|job| text(&job["job"])).find(|known| *known == id) {
        return Ok(exact);
    }
    let is_enough = id.chars().count() >= PREFIX_CHARS_MIN;
    let is_meant = |job: &&Value| text(&job["name"]) == id || is_enough && text(&job["job"]).starts_with(id);
    let found: Vec<&str> = jobs.iter().filter(is_meant).map(|job| text(&job["job"])).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(Failure::new(FAILED, "there is no such job: `clawmux jobs` lists them")),
        _ => {
            let ids = found.iter().take(MEANT_MAX).map(|id| one_line(id, 100)).collect::<Vec<_>>().join(", ");
            let more = if found.len() > MEANT_MAX { " and others" } else { "" };
            Err(Failure::new(FAILED, format!("{} jobs match: {ids}{more}; give the id of one", found.len())))
        }
    }
}

fn row(job: &Value, now_ms: u64) -> [String; 7] {
    let next = match job["next_ms"].as_u64() {
        Some(at) if at <= now_ms => "now".into(),
        Some(at) => format!("in {}", span(at - now_ms)),
        None => "-".into(),
    };
    let last = &job["last"];
    let state = match (&job["running_since_ms"], job["enabled"] == true, last["state"].as_str()) {
        (since, ..) if !since.is_null() => "running",
        (_, false, _) => "disabled",
        (_, true, Some(state)) => state,
        (_, true, None) => "waiting",
    };
    [
        text(&job["job"]).chars().take(8 + 4).collect(),
        text(&job["name"]).to_owned(),
        when(&job["schedule"]),
        next,
        last["begun_ms"].as_u64().map_or_else(|| "never".into(), |at| ago(at, now_ms)),
        state.to_owned(),
        text(&job["session"]).to_owned(),
    ]
}

fn run_row(run: &Value) -> [String; 7] {
    let count = |name: &str| run[name].as_u64().unwrap_or(0);
    let took = run["ended_ms"].as_u64().map(|ended| ended.saturating_sub(count("begun_ms")));
    let said = run["why"].as_str().or_else(|| run["text"].as_str()).unwrap_or_default();
    let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    [
        text(&run["job"]).chars().take(8 + 4).collect(),
        utc(count("scheduled_ms")),
        text(&run["state"]).to_owned(),
        took.map_or_else(|| "-".into(), |took| format!("{}.{}s", took / 1000, took % 1000 / 100)),
        count("missed").to_string(),
        (count("input_tokens") + count("output_tokens")).to_string(),
        one_line(&said, ANSWER_CHARS),
    ]
}

/// A schedule, as people write it.
fn when(schedule: &Value) -> String {
    if let Some(at) = schedule["at_ms"].as_u64() {
        return format!("at {} UTC", utc(at));
    }
    if let Some(every) = schedule["every_ms"].as_u64() {
        return format!(
            "every {}",
            span(every).trim_end_matches(" 0s").trim_end_matches(" 0m").trim_end_matches(" 0h")
        );
    }
    format!("{} ({})", text(&schedule["cron"]), text(&schedule["zone"]))
}

fn entries<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// A time as it is given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// In milliseconds since the epoch.
    Then(u64),
    /// So long from now.
    In(Duration),
}

impl At {
    fn of(self, now_ms: u64) -> u64 {
        match self {
            Self::Then(at) => at,
            Self::In(span) => now_ms.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// A time: with an offset, in this host's time zone, or from now on.
///
/// # Errors
/// What it must look like.
pub(crate) fn at(text: &str) -> Result<At, String> {
    let expected =
        || "expected a time such as 2026-01-31T09:00:00Z, 2026-01-31T09:00 (of this host) or +20m".to_owned();
    if let Some(span) = text.strip_prefix('+') {
        return life(span).map(At::In).map_err(|_| expected());
    }
    let timestamp = text.parse::<jiff::Timestamp>().or_else(|_| {
        let local: jiff::civil::DateTime = text.parse()?;
        Ok::<_, jiff::Error>(local.to_zoned(jiff::tz::TimeZone::system())?.timestamp())
    });
    let millis = timestamp.map_err(|_| expected())?.as_millisecond();
    u64::try_from(millis).map(At::Then).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(at("1970-01-01T00:01:00Z"), Ok(At::Then(60_000)));
        assert_eq!(at("1970-01-01T01:01:00+01:00"), Ok(At::Then(60_000)));
        assert!(matches!(at("2026-01-31T09:00"), Ok(At::Then(_))));
        assert_eq!(at("+20m").unwrap().of(5), 1_200_005);
        for bad in ["", "soon", "+", "+5", "20m", "2026-13-01T00:00Z", "1969-12-31T00:00:00Z"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_job_is_found_by_its_name_or_the_beginning_of_its_id() {
        let all = [
            json!({"job": "aaaa-1", "name": "water"}),
            json!({"job": "aaaa-2", "name": "feed"}),
            json!({"job": "b", "name": "feed"}),
        ];
        assert_eq!(pick("water", &all).unwrap(), "aaaa-1");
        assert_eq!(pick("aaaa-2", &all).unwrap(), "aaaa-2");
        assert_eq!(pick("b", &all).unwrap(), "b");
        for bad in ["aaaa", "feed", "", "zzzz"] {
            assert!(pick(bad, &all).is_err(), "{bad}");
        }
        let why = pick("feed", &all).unwrap_err().message;
        assert_eq!(why, "2 jobs match: aaaa-2, b; give the id of one");
    }

    #[test]
    fn rows_say_when_and_how() {
        let mut job = json!({"job": "0123456789abcdef", "name": "n", "enabled": true, "session": "s",
            "schedule": {"every_ms": 60_000}, "next_ms": 65_000, "last": null, "running_since_ms": null});
        assert_eq!(row(&job, 5_000), ["0123456789ab", "n", "every 1m", "in 1m 0s", "never", "waiting", "s"]);
        job["last"] = json!({"state": "error", "begun_ms": 1_000});
        job["schedule"] = json!({"cron": "0 9 * * *", "zone": "UTC"});
        assert_eq!(row(&job, 5_000)[2..6], ["0 9 * * * (UTC)", "in 1m 0s", "4s ago", "error"]);
        job["enabled"] = false.into();
        job["next_ms"] = Value::Null;
        assert_eq!(row(&job, 5_000)[3..6], ["-", "4s ago", "disabled"]);
    }
}
