//! What is done at set times: over stops, crashes and clocks, each time once; the heartbeat and the new
//! session; and what the operator sees of it.
//!
//! Time passes here by jobs that are due every second, and by what the database of a stopped daemon is
//! told of the past.

use std::collections::BTreeSet;
use std::process::{Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::eventually;
use crate::support::upstream::{Turn, Upstream};

const HOUR_MS: u64 = 3_600_000;

fn add(daemon: &Daemon, args: &[&str]) -> Value {
    let args = [&["job", "add"], args].concat();
    daemon.rows_of(&args).remove(0)
}

fn id(job: &Value) -> &str {
    job["job"].as_str().unwrap()
}

/// What came of a job's times, the earliest first.
fn runs(daemon: &Daemon, job: &str) -> Vec<Value> {
    let mut runs = daemon.rows_of(&["job", "runs", job, "--limit", "200"]);
    runs.reverse();
    runs
}

fn over(daemon: &Daemon, job: &str) -> Vec<Value> {
    runs(daemon, job).into_iter().filter(|run| !run["ended_ms"].is_null()).collect()
}

/// The events of this name in a session's log.
fn events(daemon: &Daemon, session: &str, name: &str) -> Vec<Value> {
    let (status, stdout, _) = daemon.run(&["session", "show", session, "--json"]);
    if status != 0 {
        return Vec::new();
    }
    let events = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == name).collect()
}

/// The keys of the prompts in a session's log.
fn prompts(daemon: &Daemon, session: &str) -> Vec<String> {
    let events = events(daemon, session, "prompt");
    events.iter().map(|event| event["idempotency_key"].as_str().unwrap_or("-").to_owned()).collect()
}

/// The keys that the prompts of these firings have.
fn keys<'a>(runs: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let key = |run: &Value| format!("job:{}:{}", id(run), run["scheduled_ms"]);
    runs.into_iter().map(key).collect()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Tells the database of a stopped daemon something.
fn tell(daemon: &Daemon, sql: &str) {
    rusqlite::Connection::open(daemon.home().join("clawmux.db")).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn a_job_prompts_its_session_each_time_it_is_due() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    client.chat("ada", "hi");
    let result_to = "main:websocket:ada:main";
    let job = add(&daemon, &["--every", "1s", "--prompt", "water the herons", "--result-to", result_to]);
    assert_eq!(job["name"], "water the herons");
    let session = job["session"].as_str().unwrap();
    eventually("three times", || over(&daemon, id(&job)).len() >= 3);
    let (status, said, _) = daemon.run(&["job", "disable", "water the herons"]);
    assert_eq!(status, 0, "by its name: {said}");
    let done = eventually("all to be over", || {
        let runs = runs(&daemon, id(&job));
        runs.iter().all(|run| !run["ended_ms"].is_null()).then_some(runs)
    });
    assert!(done.iter().all(|run| run["state"] == "ok" && run["manual"] == false), "{done:#?}");
    let first = job["schedule"]["anchor_ms"].as_u64().unwrap();
    for run in &done {
        assert_eq!((run["scheduled_ms"].as_u64().unwrap() - first) % 1000, 0, "as its anchor says: {run}");
    }
    assert_eq!(prompts(&daemon, session), keys(&done), "each once, in order");
    let told = events(&daemon, result_to, "message");
    assert_eq!(told.len(), done.len(), "each answer once: {told:#?}");
    assert!(told.iter().all(|event| event["content"].as_str().unwrap().contains("water the herons")));

    // Once more by hand, though it is disabled.
    let (status, said, _) = daemon.run(&["job", "run", id(&job)]);
    assert!(status == 0 && said.contains("water the herons"), "{said}");
    assert_eq!(over(&daemon, id(&job)).last().unwrap()["manual"], true);
    let table = daemon.run(&["jobs"]).1;
    assert!(table.starts_with("JOB") && table.contains("every 1s") && table.contains("disabled"), "{table}");
    assert!(daemon.run(&["job", "runs"]).1.contains("ok"), "of all jobs");
    assert_eq!(daemon.rows_of(&["job", "remove", id(&job)])[0]["removed"], true);
    assert_eq!(daemon.run(&["job", "remove", id(&job)]).0, 1, "it is gone");
}

#[test]
fn after_a_clock_that_was_years_ahead_jobs_are_done_again() {
    let mut daemon = Daemon::start();
    let job = add(&daemon, &["--every", "1s", "--prompt", "water the herons"]);
    let cron = add(&daemon, &["--cron", "* * * * * *", "--prompt", "feed them"]);
    eventually("once each", || [&job, &cron].iter().all(|job| !over(&daemon, id(job)).is_empty()));
    assert!(daemon.terminate().success());
    // As it would be, had it been done a hundred times in ten years.
    let ahead = now_ms() + 3650 * 24 * HOUR_MS;
    for job in [&job, &cron] {
        let id = id(job);
        tell(
            &daemon,
            &format!(
                "UPDATE jobs SET settled = {ahead} + 100000 WHERE job = '{id}';
                 WITH RECURSIVE second(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM second WHERE n < 100)
                 INSERT INTO firings (job, scheduled, manual, begun, ended, state)
                 SELECT '{id}', {ahead} + n * 1000, 0, {ahead} + n * 1000, {ahead} + n * 1000, 'ok' FROM second;"
            ),
        );
    }
    let started = now_ms();
    let daemon = daemon.restart_stopped();
    for job in [&job, &cron] {
        let since = || {
            let mut times: Vec<u64> =
                over(&daemon, id(job)).iter().filter_map(|run| run["scheduled_ms"].as_u64()).collect();
            times.retain(|time| (started..ahead).contains(time));
            times
        };
        eventually("three times more", || since().len() >= 3);
        assert_eq!(daemon.run(&["job", "disable", id(job)]).0, 0);
        let prompted = prompts(&daemon, job["session"].as_str().unwrap());
        let once: BTreeSet<&String> = prompted.iter().collect();
        assert_eq!(once.len(), prompted.len(), "none twice: {prompted:?}");
    }
}

#[test]
fn what_can_not_be_is_refused_with_what_is_wrong() {
    let daemon = Daemon::start();
    for (args, expected) in [
        (&["--cron", "61 * * * *", "--prompt", "x"][..], "cron expression"),
        (&["--cron", "* * * *", "--prompt", "x"], "4 fields"),
        (&["--cron", "* * * * *", "--zone", "Mars/Olympus", "--prompt", "x"], "unknown time zone"),
        (&["--at", "2020-01-01T00:00:00Z", "--prompt", "x"], "has passed"),
        (&["--every", "1h", "--prompt", " "], "prompt"),
        (&["--every", "1h", "--prompt", "x", "--misfire", "all:0"], "misfire"),
        (&["--every", "1h", "--prompt", "x", "--session", "nonsense"], "session key"),
    ] {
        let (status, _, said) = daemon.run(&[&["job", "add"], args].concat());
        assert!(status == 1 && said.contains(expected), "{args:?}: {status} {said}");
    }
    assert_eq!(daemon.run(&["job", "add", "--prompt", "x"]).0, 2, "it needs a schedule");
    let (_, none, said) = daemon.run(&["jobs"]);
    assert!(none.is_empty() && said.contains("no jobs"), "{none}{said}");

    // What it says may come on stdin.
    let mut add = daemon::command(daemon.home());
    let add = add.args(["job", "add", "--at", "+2h", "--delete-after"]).stdin(Stdio::piped());
    let mut add = add.stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(add.stdin.as_mut().unwrap(), b"feed\nthe herons\n").unwrap();
    assert!(add.wait_with_output().unwrap().status.success());
    let jobs = daemon.rows_of(&["jobs"]);
    assert!(jobs.iter().any(|job| job["prompt"] == "feed\nthe herons"), "{jobs:#?}");
}

#[test]
fn a_time_that_comes_once_comes_once() {
    let daemon = Daemon::start();
    let kept = add(&daemon, &["--at", "+1s", "--prompt", "kept"]);
    let gone = add(&daemon, &["--at", "+1s", "--prompt", "gone", "--delete-after"]);
    eventually("both to be done", || {
        let jobs = daemon.rows_of(&["jobs"]);
        jobs.len() == 1 && jobs[0]["last"]["state"] == "ok" && jobs[0]["enabled"] == false
    });
    for job in [&kept, &gone] {
        assert_eq!(prompts(&daemon, job["session"].as_str().unwrap()).len(), 1);
    }
    let daemon = daemon.kill_and_restart();
    assert_eq!(over(&daemon, id(&kept)).len(), 1, "not again");
}

#[test]
fn a_firing_whose_prompt_was_never_sent_is_gone_on_with() {
    let mut daemon = Daemon::start();
    let job = add(&daemon, &["--every", "1h", "--prompt", "water the herons"]);
    assert!(daemon.terminate().success());
    // As a crash between both leaves it.
    let due = now_ms() - 5000;
    tell(
        &daemon,
        &format!(
            "INSERT INTO firings (job, scheduled, manual, begun, state) VALUES ('{}', {due}, 0, {due}, 'running')",
            id(&job)
        ),
    );
    let daemon = daemon.restart_stopped();
    let session = job["session"].as_str().unwrap();
    for _ in 0..2 {
        let done =
            eventually("it to be done", || Some(over(&daemon, id(&job))).filter(|done| !done.is_empty()));
        assert_eq!((done.len(), &done[0]["state"]), (1, &"ok".into()), "{done:#?}");
        assert_eq!(prompts(&daemon, session), keys(&done));
    }
    let daemon = daemon.kill_and_restart();
    assert_eq!(prompts(&daemon, session).len(), 1, "and never again");
}

#[test]
fn a_firing_that_was_cut_off_is_settled_from_the_log() {
    let daemon = Daemon::start();
    let job = add(&daemon, &["--every", "1h", "--prompt", "/slow 2"]);
    let session = job["session"].as_str().unwrap();
    daemon.rows_of(&["job", "run", id(&job), "--no-wait"]);
    eventually("it to be prompted", || !prompts(&daemon, session).is_empty());
    let daemon = daemon.kill_and_restart();
    let done = eventually("it to be done", || Some(over(&daemon, id(&job))).filter(|done| !done.is_empty()));
    assert_eq!((done.len(), &done[0]["state"]), (1, &"ok".into()), "{done:#?}");
    assert_eq!(prompts(&daemon, session), keys(&done), "one prompt, one run");
    assert_eq!(events(&daemon, session, "end").len(), 1);
}

/// How often the daemon is killed; `CLAWMUX_JOB_KILLS` says else.
const KILLS: usize = 4;

#[test]
fn over_a_storm_of_kills_each_time_is_done_once() {
    let kills = std::env::var("CLAWMUX_JOB_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let mut daemon = Daemon::start();
    let all = add(&daemon, &["--every", "2s", "--prompt", "all of them", "--misfire", "all:100"]);
    let once = add(&daemon, &["--every", "2s", "--prompt", "once is enough"]);
    let mut wait = 0x9e37_79b9_u64;
    for _ in 0..kills {
        // Anywhere within two seconds: before, between and behind what is done in it.
        let before = runs(&daemon, id(&all)).len();
        eventually("another time", || runs(&daemon, id(&all)).len() > before);
        wait = wait.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let begun = std::time::Instant::now();
        let wait = Duration::from_millis((wait >> 33) % 2000);
        while begun.elapsed() < wait {
            std::thread::yield_now();
        }
        daemon = daemon.kill_and_restart();
    }
    for job in [&all, &once] {
        assert_eq!(daemon.run(&["job", "disable", id(job)]).0, 0);
    }
    for job in [&all, &once] {
        let done = eventually("what was begun to be over", || {
            let runs = runs(&daemon, id(job));
            runs.iter().all(|run| !run["ended_ms"].is_null()).then_some(runs)
        });
        assert!(done.iter().all(|run| run["state"] == "ok"), "{done:#?}");
        let prompts = prompts(&daemon, job["session"].as_str().unwrap());
        let distinct: BTreeSet<&String> = prompts.iter().collect();
        assert_eq!(distinct.len(), prompts.len(), "none twice: {prompts:#?}");
        assert_eq!(prompts, keys(&done), "each that was begun was prompted");
        // From the first to the last, every time was done or is counted as missed.
        let anchor = job["schedule"]["anchor_ms"].as_u64().unwrap();
        let last = done.last().unwrap()["scheduled_ms"].as_u64().unwrap();
        let missed: u64 = done.iter().map(|run| run["missed"].as_u64().unwrap()).sum();
        assert_eq!(done.len() as u64 + missed, (last - anchor) / 2000 + 1, "{done:#?}");
        if id(job) == id(&all) {
            assert_eq!(missed, 0, "all of them are done");
        }
    }
}

#[test]
fn what_was_missed_over_a_stop_is_dealt_with_as_the_job_says() {
    let mut daemon = Daemon::start();
    let policies = [("skip", 0, 4), ("once", 1, 4), ("all:3", 3, 2)];
    let jobs = policies
        .map(|(policy, ..)| add(&daemon, &["--every", "1h", "--prompt", policy, "--misfire", policy]));
    assert!(daemon.terminate().success());
    // Five times passed, the last of them ten minutes ago.
    let (first, settled) = (now_ms() - 4 * HOUR_MS - HOUR_MS / 6, now_ms() - 5 * HOUR_MS);
    tell(&daemon, &format!("UPDATE jobs SET first = {first}, settled = {settled}"));
    let daemon = daemon.restart_stopped();
    for (job, (policy, done, missed)) in jobs.iter().zip(policies) {
        let rows = eventually("it to be dealt with", || {
            let rows = over(&daemon, id(job));
            let last = rows.last()?["scheduled_ms"].as_u64()?;
            (last == first + 4 * HOUR_MS).then_some(rows)
        });
        let ok = rows.iter().filter(|run| run["state"] == "ok").count();
        assert_eq!(ok, done, "{policy}: {rows:#?}");
        let counted: u64 = rows.iter().map(|run| run["missed"].as_u64().unwrap()).sum();
        assert_eq!(counted, missed, "{policy}: {rows:#?}");
        assert_eq!(rows.len() as u64 + counted, 5, "{policy}: none silently: {rows:#?}");
        assert_eq!(prompts(&daemon, job["session"].as_str().unwrap()).len(), done, "{policy}");
    }
    let daemon = daemon.restart();
    for (job, (policy, done, _)) in jobs.iter().zip(policies) {
        assert_eq!(prompts(&daemon, job["session"].as_str().unwrap()).len(), done, "{policy}: once for all");
    }
}

#[test]
fn a_clock_that_was_wrong_makes_nothing_be_done_twice() {
    let mut daemon = Daemon::start();
    let job = add(&daemon, &["--every", "1s", "--prompt", "tick"]);
    eventually("it to be done", || over(&daemon, id(&job)).len() >= 2);
    assert!(daemon.terminate().success());
    // As if all until three seconds from now had been done before the clock was put back.
    let until = now_ms() + 3000;
    tell(&daemon, &format!("UPDATE jobs SET settled = {until}"));
    let daemon = daemon.restart_stopped();
    let later = eventually("it to be done again", || {
        let done = over(&daemon, id(&job));
        let begun = done.last()?["scheduled_ms"].as_u64()?;
        (begun > until).then_some(done)
    });
    let between = later.iter().filter(|run| {
        let scheduled = run["scheduled_ms"].as_u64().unwrap();
        scheduled > until - 2500 && scheduled <= until && run["begun_ms"].as_u64().unwrap() > until - 2500
    });
    assert_eq!(between.count(), 0, "{later:#?}");
}

fn with_model(upstream: &Upstream, scheduler: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_env = \"UP_KEY\"\n\
         [agents.main]\nprovider = \"up\"\nmodel = \"test-model\"\n[scheduler]\n{scheduler}\n",
        upstream.base_url()
    )
}

fn start(upstream: &Upstream, scheduler: &str) -> Daemon {
    Daemon::with_env(&with_model(upstream, scheduler), &[("UP_KEY", "sk-test")])
}

#[test]
fn the_heart_asks_no_model_while_its_file_says_nothing_and_spends_no_more_than_it_may() {
    let upstream = Upstream::start();
    let daemon = start(&upstream, "heartbeat_minutes = 30\nheartbeat_tokens = 30");
    let beat = || {
        let (status, said, why) = daemon.run(&["job", "run", "heartbeat"]);
        assert_eq!(status, 0, "{said}{why}");
        said + &why
    };
    assert!(beat().contains("there is no HEARTBEAT.md in "));
    let file = daemon.home().join("HEARTBEAT.md");
    std::fs::write(&file, "# Tasks\n\n- [ ]\n<!-- none -->\n").unwrap();
    assert!(beat().contains("HEARTBEAT.md is empty"));
    assert_eq!(upstream.requests().len(), 0, "no model was asked");

    std::fs::write(&file, "# Tasks\n- look at the herons\n").unwrap();
    upstream.then(Turn::Say(vec!["HEARTBEAT_OK".into()]));
    assert!(beat().contains("HEARTBEAT_OK"));
    let asked = upstream.requests();
    assert_eq!(asked.len(), 1);
    let body = asked[0].body.to_string();
    assert!(body.contains("look at the herons") && body.contains("HEARTBEAT_OK"), "{body}");
    assert!(asked[0].body["max_tokens"].as_u64().unwrap() <= 30, "{body}");
    assert_eq!(prompts(&daemon, "main:xeno:default:main").len(), 1);

    // Each costs some 20 tokens: the second spends the rest.
    upstream.then(Turn::Say(vec!["HEARTBEAT_OK".into()]));
    beat();
    assert!(beat().contains("its 30 tokens of today are spent"));
    let daemon = daemon.kill_and_restart();
    let (_, _, why) = daemon.run(&["job", "run", "heartbeat"]);
    assert!(why.contains("are spent"), "that survives a crash: {why}");
    assert_eq!(upstream.requests().len(), 2);
    let states: Vec<Value> =
        over(&daemon, "heartbeat").into_iter().map(|mut run| run["state"].take()).collect();
    assert_eq!(states, ["skipped", "skipped", "ok", "ok", "skipped", "skipped"]);
}

#[test]
fn the_heart_stops_when_its_key_is_refused() {
    let upstream = Upstream::start();
    let mut daemon = start(&upstream, "heartbeat_minutes = 1");
    std::fs::write(daemon.home().join("HEARTBEAT.md"), "look at the herons").unwrap();
    let shown = |daemon: &Daemon| daemon.rows_of(&["jobs"]).remove(0);
    assert!(shown(&daemon)["next_ms"].is_u64());
    assert!(daemon.terminate().success());
    // Due in a moment.
    tell(&daemon, &format!("UPDATE jobs SET first = {}, settled = {}", now_ms() + 500, now_ms()));
    upstream.then(Turn::Status(
        401,
        None,
        r#"{"error":{"type":"authentication_error","message":"no"}}"#.into(),
    ));
    let daemon = daemon.restart_stopped();
    let has_beaten = |shown: &Value| shown["halted"].is_string() && shown["running_since_ms"].is_null();
    let halted = eventually("it to beat, and to be over", || Some(shown(&daemon)).filter(has_beaten));
    assert!(halted["halted"].as_str().unwrap().contains("401"), "{halted}");
    assert!(halted["next_ms"].is_null(), "it is not due any more: {halted:#}");
    assert_eq!(over(&daemon, "heartbeat").last().unwrap()["state"], "error");
    let log = daemon.log();
    assert_eq!(log.matches("the heartbeat stops until").count(), 1, "{log}");
    assert!(!log.contains("sk-test"), "{log}");
    assert_eq!(upstream.requests().len(), 1);
    // Who asks for it tries again; where that goes well it beats on.
    upstream.then(Turn::Say(vec!["HEARTBEAT_OK".into()]));
    assert_eq!(daemon.run(&["job", "run", "heartbeat"]).0, 0);
    assert!(shown(&daemon)["next_ms"].is_u64());
}

#[test]
fn a_new_session_begins_after_the_old_one_was_summed_up() {
    let upstream = Upstream::start();
    let daemon = start(&upstream, "new_session_cron = \"0 0 * * 1\"");
    let session = "main:xeno:default:main";
    let job = daemon.rows_of(&["jobs"]).remove(0);
    assert_eq!(job["schedule"]["cron"], "0 0 * * 1");
    let mut client = Client::connect(daemon.address);
    let mut prompt = |content: &str| {
        let params = json!({ "channel": "xeno", "account": "default", "content": content });
        let id = client.request("chat.send", params);
        client.stream(&id).text()
    };
    prompt("Water the herons, please, both of them, and tell me when that is done.");
    upstream.then(Turn::Say(vec!["Herons were watered.".into()]));
    let (status, said, _) = daemon.run(&["job", "run", "new-session"]);
    assert!(status == 0 && said.contains("Herons were watered."), "{said}");
    assert_eq!(events(&daemon, session, "reset").len(), 1, "{:#?}", events(&daemon, session, "reset"));
    // The new conversation begins with what the old one came to.
    prompt("What now?");
    let asked = upstream.requests().last().unwrap().body["messages"].to_string();
    assert!(asked.contains("Herons were watered.") && !asked.contains("both of them"), "{asked}");
    // Where the model can't be asked, nothing is forgotten.
    upstream.then(Turn::Status(400, None, "no".into()));
    let (status, _, why) = daemon.run(&["job", "run", "new-session"]);
    assert!(status == 1 && why.contains("400"), "{why}");
    assert_eq!(events(&daemon, session, "reset").len(), 1);
}

#[test]
fn built_in_jobs_follow_from_the_configuration_alone() {
    let daemon = Daemon::start();
    for job in ["heartbeat", "new-session"] {
        assert_eq!(daemon.run(&["job", "run", job]).0, 1, "{job} is off");
    }
    drop(daemon);
    let daemon = Daemon::with("[scheduler]\nheartbeat_minutes = 30\n");
    for what in ["remove", "disable"] {
        let (status, _, why) = daemon.run(&["job", what, "heartbeat"]);
        assert!(status == 1 && why.contains("built in"), "{what}: {why}");
    }
    let home = daemon::home();
    std::fs::write(home.path().join("gateway.toml"), "[scheduler]\nnew_session_cron = \"0 0 * *\"\n")
        .unwrap();
    let Output { status, stderr, .. } = daemon::command(home.path()).arg("check").output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(64), "{said}");
    assert!(said.contains("gateway.toml:2") && said.contains("4 fields"), "{said}");
}

#[test]
fn a_daemon_that_is_drained_begins_nothing() {
    let daemon = Daemon::start();
    let job = add(&daemon, &["--every", "1s", "--prompt", "tick"]);
    eventually("it to be done", || !over(&daemon, id(&job)).is_empty());
    assert_eq!(daemon.run(&["drain"]).0, 0);
    let (status, _, why) = daemon.run(&["job", "run", id(&job)]);
    assert!(status == 1 && why.contains("drained"), "{why}");
    let before = runs(&daemon, id(&job)).len();
    let drained = now_ms();
    assert!(daemon.run(&["jobs"]).2.contains("draining"));
    eventually("two seconds to pass", || now_ms() > drained + 2100);
    assert_eq!(runs(&daemon, id(&job)).len(), before);
    assert_eq!(daemon.run(&["drain", "--off"]).0, 0);
    eventually("it to go on", || over(&daemon, id(&job)).len() > before);
}
