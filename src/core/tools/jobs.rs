//! The built-in tools `job_add`, `job_list` and `job_remove`: an agent has things done at set times.
//!
//! Its jobs are those of the owner of its session, in whose name they prompt and within whose limits they are; over
//! a channel those of its conversation. A job that an agent adds is done once a minute at most, and no run that a job began adds any, nor does an agent
//! that works for another: so jobs do not multiply. The id of a job follows from the call, so that a call that a
//! crash cut off is made again and adds it once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::ids::{AgentId, CallId, JobId, PluginName, RunId, SessionKey, uuid_of};
use crate::prompt::run_options::RunOptions;
use crate::schedule::job::{
    AddJobOnce, JobCommand, JobView, ListJobs, NAME_BYTES_MAX, NewJob, Order, PROMPT_BYTES_MAX, Place,
    RemoveJob,
};
use crate::schedule::{Misfire, Plan};
use crate::time::Timestamp;
use crate::tools::call::ToolSpec;
use crate::tools::input::Input;

/// The names under which models call the tools.
pub const ADD: &str = "job_add";
/// See [`ADD`].
pub const LIST: &str = "job_list";
/// See [`ADD`].
pub const REMOVE: &str = "job_remove";

/// The shortest span between two times of a job that an agent adds.
pub const GAP_MIN: Duration = Duration::from_secs(60);

/// The longest delay and span, in minutes: a year.
const MINUTES_MAX: u64 = 366 * 24 * 60;

/// How much of a prompt is a job's name where the call gives none, in characters.
const NAME_CHARS: usize = 60;

/// How much of a job's prompt is listed, in characters.
const PROMPT_CHARS: usize = 200;

/// The longest text of a time, a zone or a cron expression, in bytes.
const WORD_BYTES_MAX: usize = 256;

/// What the tools are offered as.
pub fn specs() -> Vec<ToolSpec> {
    let text = |what: &str| json!({ "type": "string", "description": what });
    let minutes =
        |what: &str| json!({ "type": "integer", "minimum": 1, "maximum": MINUTES_MAX, "description": what });
    let spec = |name: &str, description: &str, properties: Value, required: &[&str]| ToolSpec {
        name: PluginName::from(name),
        description: description.into(),
        input_schema: json!({ "type": "object", "properties": properties, "required": required }),
    };
    vec![
        spec(
            ADD,
            "Has you prompted at a set time, once or again and again: a reminder, or something to look after. Give \
            exactly one of in_minutes, at, every_minutes and cron.",
            json!({
                "prompt": text("What you are told then: write all that you need to know."),
                "in_minutes": minutes("Once, so many minutes from now."),
                "at": text("Once, at this time: RFC 3339 with a time zone, such as 2026-01-31T09:00:00+01:00."),
                "every_minutes": minutes("Again and again, after so many minutes."),
                "cron": text("Again and again: minute, hour, day of the month, month and weekday, such as 0 9 * * 1-5."),
                "timezone": text("The zone that cron is meant in, such as Europe/Berlin; left out: the host's."),
                "where": { "type": "string", "enum": ["here", "own"],
                           "description": "In this conversation (here, if left out), or in one of its own." },
                "name": text("What the job is called."),
            }),
            &["prompt"],
        ),
        spec(
            LIST,
            "Lists the jobs of the user: their ids, when each is due, and what it says.",
            json!({}),
            &[],
        ),
        spec(
            REMOVE,
            "Removes a job of the user for good. What it is doing at the moment is done to its end.",
            json!({ "job": text("The id of the job, as job_list has it.") }),
            &["job"],
        ),
    ]
}

/// Where a call is made.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The run.
    pub run: RunId,
    /// The call.
    pub call: CallId,
    /// The session it is made in.
    pub session: SessionKey,
    /// Whether that run was begun by a job, or the session is of an agent that works for another.
    pub adds_none: bool,
}

/// What a call of one of the tools asks for, at `now` of the wall clock.
///
/// # Errors
/// What is wrong with the input, for the model; and where the caller adds none.
pub fn command(tool: &str, input: &Value, caller: &Caller, now: Timestamp) -> Result<JobCommand, String> {
    match tool {
        ADD if caller.adds_none => {
            Err("a run that a job began, or that works for another agent, adds no jobs".into())
        }
        ADD => add(input, caller, now),
        LIST => Input::new(input, &[]).map(|_| JobCommand::List(ListJobs)),
        _ => {
            let job = Input::new(input, &["job"])?.required("job", NAME_BYTES_MAX)?.trim().to_owned();
            Ok(JobCommand::Remove(RemoveJob { job }))
        }
    }
}

fn add(input: &Value, caller: &Caller, now: Timestamp) -> Result<JobCommand, String> {
    const KNOWN: [&str; 8] =
        ["prompt", "in_minutes", "at", "every_minutes", "cron", "timezone", "where", "name"];
    let input = Input::new(input, &KNOWN)?;
    let prompt = input.required("prompt", PROMPT_BYTES_MAX)?.to_owned();
    let place = match input.text("where", WORD_BYTES_MAX)? {
        None | Some("here") => Place::Session(caller.session.clone()),
        Some("own") if caller.session.owner().is_channel() => {
            return Err(
                "where: over a channel a job is in this conversation, where its answer is sent".into()
            );
        }
        Some("own") => Place::Own(AgentId::new(caller.session.agent().into_owned())),
        Some(other) => return Err(format!("where: expected here or own, found {:?}", clip(other, 64))),
    };
    let plan = plan(input, now)?;
    let begin: String = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = input.text("name", NAME_BYTES_MAX)?.map(|name| name.trim().to_owned());
    let name = name.unwrap_or_else(|| clip(&begin, NAME_CHARS));
    let is_once = matches!(plan, Plan::At(_));
    let order = Order { place, prompt, run_options: RunOptions::default(), result_to: None };
    let job = NewJob {
        name,
        description: Some("added by an agent".into()),
        is_enabled: true,
        plan,
        order,
        misfire: Misfire::Once,
        is_deleted_after: is_once,
        note: None,
    };
    let (run, call) = (caller.run.as_str(), caller.call.as_str());
    let id = JobId::new(uuid_of(&format!("job|{}|{run}|{call}", run.len())));
    Ok(JobCommand::AddOnce(AddJobOnce { id, job: Box::new(job), gap_min: GAP_MIN }))
}

fn plan(input: Input<'_>, now: Timestamp) -> Result<Plan, String> {
    let minutes = |name: &str| {
        let minutes = input.integer(name, 1, MINUTES_MAX)?;
        Ok::<_, String>(minutes.map(|minutes| Duration::from_secs(60 * minutes)))
    };
    let zone = input.text("timezone", WORD_BYTES_MAX)?.map(|zone| zone.trim().to_owned());
    let (at, cron) = (input.text("at", WORD_BYTES_MAX)?, input.text("cron", WORD_BYTES_MAX)?);
    let plan = match (minutes("in_minutes")?, at, minutes("every_minutes")?, cron) {
        (Some(delay), None, None, None) => Plan::At(now.after(delay)),
        (None, Some(at), None, None) => Plan::At(time(at)?),
        (None, None, Some(every), None) => Plan::Every { every, anchor: None },
        (None, None, None, Some(expression)) => {
            return Ok(Plan::Cron { expression: expression.trim().to_owned(), zone });
        }
        _ => return Err("give exactly one of in_minutes, at, every_minutes and cron".into()),
    };
    if zone.is_some() {
        return Err("timezone: only cron is meant in one".into());
    }
    Ok(plan)
}

fn time(text: &str) -> Result<Timestamp, String> {
    let time = text.trim().parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
    let time = time.and_then(|millis| u64::try_from(millis).ok()).map(Timestamp::from_millis);
    time.ok_or_else(|| {
        format!("at: expected a time such as 2026-01-31T09:00:00+01:00, found {:?}", clip(text, 64))
    })
}

fn clip(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// The jobs, as a model in the session `own` is told of them.
pub fn listed(views: &[JobView], own: &SessionKey) -> String {
    let seen = views.iter().filter(|view| is_for(view, own));
    let lines: Vec<String> = seen.map(|view| told(view).to_string()).collect();
    if lines.is_empty() { "there are no jobs".into() } else { lines.join("\n") }
}

/// Whether an agent in the session `own` may know of a job of the same owner: of those of a channel, where many
/// people write, only of those in the same conversation.
pub fn is_for(view: &JobView, own: &SessionKey) -> bool {
    !own.owner().is_channel() || view.job.task.session == *own
}

/// The result of a call that added one.
pub fn added(view: &JobView) -> String {
    told(view).to_string()
}

/// The result of a call that removed one, or found none.
pub const fn removed(is_removed: bool) -> &'static str {
    if is_removed { "removed" } else { "there is no such job (any more)" }
}

fn told(view: &JobView) -> Value {
    let when = match view.job.schedule.plan() {
        Plan::At(at) => json!({ "at": at.to_rfc3339() }),
        Plan::Every { every, .. } => json!({ "every_seconds": every.as_secs() }),
        Plan::Cron { expression, zone } => json!({ "cron": expression, "timezone": zone }),
    };
    json!({
        "job": view.job.id.as_str(),
        "name": view.job.name,
        "when": when,
        "enabled": view.job.is_enabled,
        "next": view.next.map(Timestamp::to_rfc3339),
        "last": view.last.as_ref().map(|firing| firing.state.name()),
        "session": view.job.task.session.as_str(),
        "prompt": clip(&view.job.task.prompt, PROMPT_CHARS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn read(tool: &str, input: Value) -> Result<JobCommand, String> {
        let session = SessionKey::parse("main:cli:ada:main").unwrap();
        let caller = Caller { run: "r".into(), call: "c".into(), session, adds_none: false };
        command(tool, &input, &caller, NOW)
    }

    fn plan_of(input: Value) -> Result<Plan, String> {
        read(ADD, input).map(|command| match command {
            JobCommand::AddOnce(add) => add.job.plan,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_time_is_said_in_one_of_four_ways() {
        let at = |minutes: u64| Plan::At(NOW.after(Duration::from_secs(60 * minutes)));
        assert_eq!(plan_of(json!({ "prompt": "x", "in_minutes": 5 })), Ok(at(5)));
        let time = "2023-11-14T23:23:20+01:00";
        assert_eq!(plan_of(json!({ "prompt": "x", "at": time })), Ok(at(10)));
        let every = Plan::Every { every: Duration::from_secs(3600), anchor: None };
        assert_eq!(plan_of(json!({ "prompt": "x", "every_minutes": 60 })), Ok(every));
        let cron = Plan::Cron { expression: "0 9 * * *".into(), zone: Some("Europe/Berlin".into()) };
        let input = json!({ "prompt": "x", "cron": " 0 9 * * *", "timezone": "Europe/Berlin" });
        assert_eq!(plan_of(input), Ok(cron));
        for (input, why) in [
            (json!({ "in_minutes": 5 }), "prompt: missing"),
            (json!({ "prompt": "x" }), "exactly one of"),
            (json!({ "prompt": "x", "in_minutes": 5, "cron": "* * * * *" }), "exactly one of"),
            (json!({ "prompt": "x", "in_minutes": 0 }), "in_minutes: expected 1 to 527040, found 0"),
            (json!({ "prompt": "x", "at": "tomorrow" }), "at: expected a time such as"),
            (json!({ "prompt": "x", "at": "2023-11-14T23:23:20" }), "at: expected a time such as"),
            (json!({ "prompt": "x", "in_minutes": 5, "timezone": "UTC" }), "only cron"),
            (json!({ "prompt": "x", "in_minutes": 5, "where": "there" }), "where: expected here or own"),
            (json!({ "prompt": "x", "owner": "eve", "in_minutes": 5 }), "unknown field \"owner\""),
        ] {
            let error = plan_of(input.clone()).unwrap_err();
            assert!(error.contains(why), "{input}: {error}");
        }
    }

    #[test]
    fn a_job_is_of_its_session_and_its_id_of_the_call() {
        let JobCommand::AddOnce(add) =
            read(ADD, json!({ "prompt": "Look at\nthe kettle", "in_minutes": 1 })).unwrap()
        else {
            panic!()
        };
        assert_eq!(
            (add.job.name.as_str(), add.job.is_deleted_after, add.gap_min),
            ("Look at the kettle", true, GAP_MIN)
        );
        assert!(matches!(&add.job.order.place, Place::Session(key) if key.as_str() == "main:cli:ada:main"));
        let JobCommand::AddOnce(again) =
            read(ADD, json!({ "prompt": "y", "every_minutes": 1, "where": "own", "name": "n" })).unwrap()
        else {
            panic!()
        };
        assert_eq!((add.id, "n"), (again.id, again.job.name.as_str()));
        assert!(matches!(&again.job.order.place, Place::Own(agent) if agent.as_str() == "main"));
        assert!(matches!(read(LIST, json!({})), Ok(JobCommand::List(_))));
        assert!(matches!(read(REMOVE, json!({ "job": "j" })), Ok(JobCommand::Remove(_))));
        assert!(read(REMOVE, json!({})).is_err());
    }

    #[test]
    fn what_a_job_began_adds_none() {
        let session = SessionKey::parse("main:cli:ada:main").unwrap();
        let caller = Caller { run: "r".into(), call: "c".into(), session, adds_none: true };
        let told = command(ADD, &json!({ "prompt": "x", "in_minutes": 1 }), &caller, NOW).unwrap_err();
        assert!(told.contains("adds no jobs"), "{told}");
        assert!(command(LIST, &json!({}), &caller, NOW).is_ok());
    }
}
