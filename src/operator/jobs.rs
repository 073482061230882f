//! `clawmux jobs`, `job add`, `run`, `remove`, `runs`, `enable`, `disable`: what is done at set times.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use serde_json::{Value, json};

use super::find::{PREFIX_CHARS_MIN, matching, some};
use super::print::{self, List};
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{AddJob, Global, JobCommand, RunJob, millis};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{one_line, tell};
use crate::when::{ago, now_ms, span, utc};

/// How many of several matches are named.
const MEANT_MAX: usize = 10;

/// The job that is the heartbeat.
const HEARTBEAT: &str = "heartbeat";

/// How often to ask whether a job is done.
const POLL: Duration = Duration::from_millis(200);

/// How long the daemon may take to record a run that was just begun, in milliseconds.
const RECORD_MS: u64 = 30_000;

/// How many characters of an id a table shows.
const ID_CHARS: usize = 12;

/// How many characters of an answer a table shows.
const ANSWER_CHARS: usize = 60;

/// Runs `jobs`.
pub(crate) fn list(global: &Global) -> Result<(), Failure> {
    let answer = ask(global, "admin.jobs", &json!({}))?;
    if let Some(why) = answer["heartbeat_halted"].as_str() {
        tell(&format!("the heartbeat is stopped until the configuration changes: {why}"));
    }
    if answer["draining"] == true {
        tell("the daemon is draining: no job is started");
    }
    let mut jobs = answer.list("jobs").to_vec();
    if let Some(heartbeat) = jobs.iter_mut().find(|job| job["job"] == HEARTBEAT) {
        heartbeat["halted"] = answer["heartbeat_halted"].clone();
    }
    let list = List {
        rows: &jobs,
        head: ["JOB", "NAME", "WHEN", "NEXT", "LAST", "STATE", "SESSION"],
        gives_way: &["NAME"],
        cells: row,
        none: "no jobs: add one with `clawmux job add`",
    };
    list.print(global).map(drop)
}

/// Runs `job`.
///
/// # Errors
/// As [`ask`]; status 1 if no job, or more than one, has such a name, or where a job that was run
/// was not done.
pub(crate) fn run(global: &Global, command: &JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::Add(options) => add(global, options),
        JobCommand::Run(options) => run_now(global, options),
        JobCommand::Runs { id, limit } => runs(global, id.as_deref(), *limit),
        JobCommand::Enable(job) => change(global, "enable", &job.id, enabled("enabled")),
        JobCommand::Disable(job) => change(global, "disable", &job.id, enabled("disabled")),
        JobCommand::Remove(job) => {
            change(global, "remove", &job.id, |id, _| format!("removed job {id}; its session stays"))
        }
    }
}

/// Has the daemon do something with one job.
fn change(
    global: &Global,
    what: &str,
    id: &str,
    words: impl FnOnce(&str, &Value) -> String,
) -> Result<(), Failure> {
    let id = find(global, id)?;
    print::done(global, &format!("admin.job.{what}"), &json!({ "job": id }), |job| words(&id, job))
}

fn enabled(done: &str) -> impl FnOnce(&str, &Value) -> String {
    move |id, job| format!("{done} job {id} ({})", job.text("name"))
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
    let named: [(&str, Option<Value>); 11] = [
        ("at_ms", options.at.map(|due| due.at_ms(now_ms()).into())),
        ("every_ms", options.every.map(|every| millis(every).into())),
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
    print::done(global, "admin.job.add", &params, |job| {
        let next = job["next_ms"].as_u64();
        let next = next.map_or_else(|| "disabled".into(), |at| format!("first at {} UTC", utc(at)));
        let (id, when) = (job.text("job"), when(&job["schedule"]));
        format!("added job {id}: {when}, {next}, in session {}", job.text("session"))
    })
}

fn run_now(global: &Global, options: &RunJob) -> Result<(), Failure> {
    let id = find(global, &options.job.id)?;
    let begun = ask(global, "admin.job.run", &json!({ "job": id }))?;
    if options.no_wait {
        print::answer(global, &begun, |_| {
            format!("started job {id}: `clawmux job runs {id}` shows how it goes")
        });
        return Ok(());
    }
    let over = loop {
        let list = ask(global, "admin.job.runs", &json!({ "job": id, "limit": 100 }))?;
        let found = list.list("runs").iter().find(|run| run["scheduled_ms"] == begun["scheduled_ms"]);
        if let Some(run) = found.filter(|run| !run["ended_ms"].is_null()) {
            break run.clone();
        }
        // A job that is gone once it was done is gone with its runs; one that was just begun may not be
        // recorded yet.
        if found.is_none() && now_ms().saturating_sub(begun.number("scheduled_ms")) > RECORD_MS {
            return Err(Failure::new(FAILED, format!("the daemon has no record of this run of job {id}")));
        }
        std::thread::sleep(POLL);
    };
    if global.json || over["text"].as_str().is_some_and(|said| !said.is_empty()) {
        print::answer(global, &over, |over| over.text("text").to_owned());
    }
    match over.text("state") {
        "ok" => Ok(()),
        "skipped" => {
            tell(&format!("skipped: {}", over.text("why")));
            Ok(())
        }
        _ => Err(Failure::new(FAILED, format!("failed: {}", over.text("why")))),
    }
}

fn runs(global: &Global, id: Option<&str>, limit: usize) -> Result<(), Failure> {
    let mut params = json!({ "limit": limit });
    if let Some(id) = id {
        params["job"] = find(global, id)?.into();
    }
    let answer = ask(global, "admin.job.runs", &params)?;
    let list = List {
        rows: answer.list("runs"),
        head: ["JOB", "DUE", "STATE", "TOOK", "MISSED", "TOKENS", "ANSWER"],
        gives_way: &["ANSWER"],
        cells: |run, _| run_row(run),
        none: "no job has run yet",
    };
    list.print(global).map(drop)
}

/// The job whose id is, or begins with, `id`, or whose name it is.
fn find(global: &Global, id: &str) -> Result<String, Failure> {
    pick(id, ask(global, "admin.jobs", &json!({}))?.list("jobs")).map(str::to_owned)
}

fn pick<'a>(id: &str, jobs: &'a [Value]) -> Result<&'a str, Failure> {
    let found = matching(jobs, "job", id, PREFIX_CHARS_MIN, |job| job.text("name") == id);
    match found[..] {
        [one] => Ok(one.text("job")),
        [] => Err(Failure::new(FAILED, "there is no such job: `clawmux jobs` lists them")),
        _ => {
            let ids: Vec<String> = found.iter().map(|job| one_line(job.text("job"), 100)).collect();
            let ids = some(&ids, MEANT_MAX);
            Err(Failure::new(FAILED, format!("{} jobs match: {ids}; give the id of one", found.len())))
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
        job.text("job").chars().take(ID_CHARS).collect(),
        job.text("name").to_owned(),
        when(&job["schedule"]),
        next,
        last["begun_ms"].as_u64().map_or_else(|| "never".into(), |at| ago(at, now_ms)),
        state.to_owned(),
        job.text("session").to_owned(),
    ]
}

fn run_row(run: &Value) -> [String; 7] {
    let took = run["ended_ms"].as_u64().map(|ended| ended.saturating_sub(run.number("begun_ms")));
    let said = run["why"].as_str().or_else(|| run["text"].as_str()).unwrap_or_default();
    let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    [
        run.text("job").chars().take(ID_CHARS).collect(),
        utc(run.number("scheduled_ms")),
        run.text("state").to_owned(),
        took.map_or_else(|| "-".into(), |took| format!("{}.{}s", took / 1000, took % 1000 / 100)),
        run.number("missed").to_string(),
        (run.number("input_tokens") + run.number("output_tokens")).to_string(),
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
    format!("{} ({})", schedule.text("cron"), schedule.text("zone"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
