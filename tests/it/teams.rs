//! Agents that work for sessions, and their teams, over real sockets: what they are told and answer, who
//! ends with whom, what is limited, who sees what, and that all of it goes on after SIGKILL.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::wundr::Wundr;

/// A task that takes longer than any test.
const LONG: &str = "/slow 60";

/// A session that others work for.
pub(crate) fn session(client: &mut Wundr) -> Value {
    let task = json!({ "type": "general", "description": "to be worked for" });
    let params = json!({ "orchestratorId": "main", "sessionType": "claude-code", "task": task });
    client.call("session.create", params)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}"))
}

/// What is asked to have an agent work, for the session with this id.
pub(crate) fn spawning(parent: Option<&str>, task: &str) -> Value {
    let mut params = json!({ "agentType": "helper", "task": { "description": task } });
    if let Some(parent) = parent {
        params["parentSessionId"] = parent.into();
    }
    params
}

fn team(strategy: &str, roles: &[&str], task: &str) -> Value {
    let agents: Vec<Value> = roles.iter().map(|role| json!({ "agentType": "main", "role": role })).collect();
    json!({ "name": "crew", "description": "to try it", "agents": agents, "coordinationStrategy": strategy,
        "task": { "description": task } })
}

/// Polls an agent or a team until it is so.
fn until(client: &mut Wundr, method: &str, id: &Value, status: &str) -> Value {
    let name = if method.starts_with("agent") { "agentId" } else { "teamId" };
    let params = json!({ name: id });
    eventually(&format!("{method} {id} to be {status}"), || {
        let found = client.call(method, params.clone());
        assert!(
            found["status"] == status || !["failed", "stopped"].contains(&text(&found, "status")),
            "{found}"
        );
        (found["status"] == status).then_some(found)
    })
}

/// What was said in a session, as another protocol tells it: who, and what.
fn said(client: &mut Client, key: &str) -> Vec<(String, String)> {
    let history = client.call("chat.history", json!({ "session": key, "limit": 100 }));
    let messages = history["result"]["messages"].as_array().unwrap_or_else(|| panic!("{history}"));
    let word = |message: &Value, name: &str| text(message, name).to_owned();
    messages.iter().map(|message| (word(message, "role"), word(message, "content"))).collect()
}

fn prompts(client: &mut Client, member: &Value) -> Vec<String> {
    let all = said(client, text(member, "sessionKey"));
    all.into_iter().filter(|(role, _)| role == "user").map(|(_, content)| content).collect()
}

#[test]
fn an_agent_works_in_a_session_of_its_own_and_its_parent_is_told() {
    let (daemon, mut client) = Daemon::start().and(Wundr::connect);
    assert!(client.hello()["server"]["capabilities"].as_array().unwrap().contains(&json!("teams")));
    // Its own subscription is told of those who work for it.
    let parent = session(&mut client);
    let parent_id = text(&parent, "id").to_owned();
    let agent = client.call("agent.spawn", spawning(Some(&parent_id), "count the planets"));
    assert_eq!(agent["parentSessionId"], parent_id.as_str());
    assert_eq!((&agent["depth"], &agent["agentType"]), (&json!(1), &json!("helper")));
    let own = text(&agent, "sessionId");
    assert_eq!(client.call("session.status", json!({ "sessionId": own }))["id"], own, "it is there");
    client.event_that("agent.spawned", |payload| payload["agentId"] == agent["agentId"]);
    let done = client.event_that("agent.status", |payload| payload["status"] == "completed");
    let answer = text(&done["payload"], "result").to_owned();
    assert!(answer.starts_with("You said: \"count the planets\" (3 words)."), "{answer}");
    assert!(done["payload"]["metrics"]["tokensUsed"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(done["payload"]["metrics"]["tasksCompleted"], 1);

    // In the parent's conversation, once, and so in what its model sees.
    let chunk = client.event_that("stream.chunk", |payload| payload["sessionId"] == parent_id.as_str());
    assert!(text(&chunk["payload"], "content").ends_with(&answer), "{chunk}");
    let mut other = Client::connect(daemon.address);
    let told = said(&mut other, text(&parent, "sessionKey"));
    let [(role, told)] = &told[..] else { panic!("{told:?}") };
    assert!(role == "assistant" && told.contains("has completed its task \"count the planets\""), "{told}");
    let prompt = client.call("prompt.submit", json!({ "sessionId": parent_id, "prompt": "and now?" }));
    let (answer, _) = client.answer_of(text(&prompt, "promptId"));
    assert!(answer.contains("I remember 1 earlier message"), "{answer}");

    let again = client.refused("agent.stop", json!({ "agentId": agent["agentId"] }));
    assert_eq!(again["code"], "CONFLICT", "{again}");
    let forced = client.call("agent.stop", json!({ "agentId": agent["agentId"], "force": true }));
    assert_eq!(forced["status"], "completed", "it is over: {forced}");
    let nobody = client.refused("agent.status", json!({ "agentId": "nobody" }));
    assert_eq!(nobody["code"], "NOT_FOUND", "{nobody}");
    let orphan = client.refused("agent.spawn", spawning(Some("no-such-session"), "x"));
    assert_eq!(orphan["code"], "NOT_FOUND", "{orphan}");

    let failed = client.call("agent.spawn", spawning(None, "/fail"));
    let failed = until_over(&mut client, &failed["agentId"]);
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("UNAVAILABLE")));
}

/// Polls an agent until it is over, however.
fn until_over(client: &mut Wundr, id: &Value) -> Value {
    eventually(&format!("agent {id} to be over"), || {
        let found = client.call("agent.status", json!({ "agentId": id }));
        ["completed", "failed", "stopped"].contains(&text(&found, "status")).then_some(found)
    })
}

#[test]
fn teams_work_in_sequence_in_parallel_and_in_rounds() {
    let (daemon, mut client) = Daemon::start().and(Wundr::connect);
    let mut other = Client::connect(daemon.address);
    client.subscribe(&["team.*"], Value::Null);

    let custom = client.refused("team.create", team("custom", &["a"], "hello"));
    assert_eq!(custom["code"], "INVALID_REQUEST");
    assert!(text(&custom, "message").contains("custom"), "{custom}");

    let sequence = client.call("team.create", team("sequential", &["writer", "critic"], "praise the sea"));
    let rounds = client.call("team.create", team("round-robin", &["left", "right"], "argue about tea"));
    let parallel = client.call("team.create", team("parallel", &["x", "y", "z"], "name a colour"));
    for team in [&sequence, &rounds, &parallel] {
        let done = client.event_that("team.status", |payload| {
            payload["teamId"] == team["teamId"] && payload["status"] == "completed"
        });
        assert_eq!(done["payload"]["progress"], 1.0);
        let now = client.call("team.status", json!({ "teamId": team["teamId"] }));
        for (member, told) in
            now["agents"].as_array().unwrap().iter().zip(done["payload"]["agents"].as_array().unwrap())
        {
            assert_eq!(member["status"], "completed", "{member}");
            assert_eq!(member["result"], told["result"]);
            assert_eq!(member["teamId"], team["teamId"]);
        }
    }
    let mut told = |team: &Value| -> Vec<Vec<String>> {
        team["agents"].as_array().unwrap().iter().map(|member| prompts(&mut other, member)).collect()
    };
    let prompts = told(&sequence);
    let [[writer], [critic]] = [&prompts[0][..], &prompts[1][..]] else { panic!("{prompts:?}") };
    assert!(
        writer.starts_with("praise the sea\n\n[You are writer in the team crew (to try it)."),
        "{writer}"
    );
    assert!(!writer.contains("What was said"), "{writer}");
    assert!(critic.contains("[What was said so far:]\n\nwriter: You said: \"praise the sea"), "{critic}");
    let prompts = told(&rounds);
    assert_eq!([prompts[0].len(), prompts[1].len()], [2, 2], "two rounds: {prompts:?}");
    for (place, turn) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let prompt = &prompts[place][turn];
        assert!(prompt.contains(&format!("Round {} of 2", turn + 1)), "{prompt}");
    }
    let prompts = told(&parallel);
    assert!(prompts.iter().all(|all| all.len() == 1 && !all[0].contains("What was said")), "{prompts:?}");
    // In rounds each is told what was said just before, and before that.
    let turns: Vec<(String, String)> = rounds["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| said(&mut other, text(member, "sessionKey")))
        .flat_map(|all| {
            all.into_iter()
                .map(|(_, said)| said)
                .collect::<Vec<_>>()
                .chunks(2)
                .map(|turn| (turn[0].clone(), turn[1].clone()))
                .collect::<Vec<_>>()
        })
        .collect();
    let [(first, left), (third, left_again), (second, right), (fourth, _)] = &turns[..] else {
        panic!("{turns:?}")
    };
    assert!(!first.contains("What was said"), "{first}");
    assert!(second.ends_with(&format!("[What was said so far:]\n\nleft: {left}")), "{second}");
    assert!(
        third.ends_with(&format!("[What was said so far:]\n\nleft: {left}\n\nright: {right}")),
        "{third}"
    );
    assert!(fourth.ends_with(&format!("right: {right}\n\nleft: {left_again}")), "{fourth}");
}

#[test]
fn members_send_each_other_messages() {
    let (daemon, mut client) = Daemon::start().and(Wundr::connect);
    client.subscribe(&["team.*"], Value::Null);
    let team = client.call("team.create", team("parallel", &["a", "b", "c"], "/slow 2"));
    let id = &team["teamId"];
    let members = team["agents"].as_array().unwrap().clone();
    let message = |from: &Value, to: Value, content: &str| json!({ "teamId": id, "from": from, "to": to, "content": content, "metadata": { "n": 1 } });
    let sent = client.call("team.message", message(&json!("a"), json!("b"), "is it done?"));
    assert_eq!(sent["to"], json!([members[1]["agentId"]]));
    let all = client.call("team.message", message(&members[0]["agentId"], Value::Null, "hurry up"));
    assert_eq!(all["to"], json!([members[1]["agentId"], members[2]["agentId"]]));
    let told = client.event("team.message");
    assert_eq!(told["payload"]["messageId"], sent["messageId"]);
    assert_eq!(
        (&told["payload"]["from"], &told["payload"]["to"], &told["payload"]["metadata"]),
        (&members[0]["agentId"], &members[1]["agentId"], &json!({ "n": 1 }))
    );
    assert_eq!(client.event("team.message")["payload"].get("to"), None, "for all others");
    for (from, to, code) in [
        (json!("stranger"), json!("b"), "NOT_FOUND"),
        (json!("a"), json!("stranger"), "NOT_FOUND"),
        (json!("a"), json!("a"), "INVALID_REQUEST"),
    ] {
        let refused = client.refused("team.message", message(&from, to, "hi"));
        assert_eq!(refused["code"], code, "{refused}");
    }
    // Each is answered, to who sent it.
    for (message, by) in [(&sent, 1), (&all, 1), (&all, 2)] {
        let answer = client.event_that("team.message", |payload| {
            payload["inReplyTo"] == message["messageId"] && payload["from"] == members[by]["agentId"]
        });
        assert_eq!(answer["payload"]["to"], members[0]["agentId"]);
    }
    client.event_that("team.status", |payload| payload["status"] == "completed");
    let mut other = Client::connect(daemon.address);
    let read = prompts(&mut other, &members[1]);
    assert_eq!(read.len(), 3, "{read:?}");
    assert!(
        read[0].starts_with("/slow 2")
            && read[1].starts_with("is it done?\n\n[This is a message from a of the"),
        "{read:?}"
    );
    assert!(read[2].starts_with("hurry up"), "{read:?}");
    eventually("a to be told what was answered", || {
        let told = said(&mut other, text(&members[0], "sessionKey"));
        told.iter().filter(|(_, text)| text.contains("answers the message")).count() == 3
    });
    let late = client.refused("team.message", message(&json!("a"), json!("b"), "too late"));
    assert_eq!(late["code"], "CONFLICT", "{late}");
}

#[test]
fn who_is_stopped_takes_with_him_who_works_for_him() {
    let (_daemon, mut client) = Daemon::start().and(Wundr::connect);
    client.subscribe(&["agent.*", "team.*"], Value::Null);
    let parent = session(&mut client);
    let top = client.call("agent.spawn", spawning(Some(text(&parent, "id")), LONG));
    let below = client.call("agent.spawn", spawning(Some(text(&top, "sessionId")), LONG));
    let other = client.call("agent.spawn", spawning(None, LONG));
    assert_eq!(below["depth"], 2);
    until(&mut client, "agent.status", &below["agentId"], "running");
    let stopped = client.call("session.stop", json!({ "sessionId": parent["id"] }));
    assert_eq!(stopped["status"], "terminated");
    for agent in [&top, &below] {
        let event = client.event_that("agent.stopped", |payload| payload["agentId"] == agent["agentId"]);
        assert_eq!(event["payload"]["status"], "stopped");
        let session = json!({ "sessionId": agent["sessionId"] });
        eventually("its session to be at rest", || {
            client.call("session.status", session.clone())["activity"] == "idle"
        });
    }
    assert_eq!(client.call("agent.status", json!({ "agentId": other["agentId"] }))["status"], "running");
    let late = client.refused("agent.spawn", spawning(Some(text(&parent, "id")), "x"));
    assert_eq!(late["code"], "CONFLICT", "the parent was stopped: {late}");

    let crew = client.call("team.create", team("parallel", &["a", "b"], LONG));
    let helper = client.call("agent.spawn", spawning(Some(text(&crew["agents"][0], "sessionId")), LONG));
    let member = &crew["agents"][1]["agentId"];
    let needed = client.refused("agent.stop", json!({ "agentId": member }));
    assert_eq!(needed["code"], "CONFLICT", "its team needs it: {needed}");
    let over = client.call("team.dissolve", json!({ "teamId": crew["teamId"], "reason": "enough" }));
    assert_eq!(
        (&over["status"], &over["reason"], &over["progress"]),
        (&json!("dissolved"), &json!("enough"), &json!(0.0))
    );
    assert!(over["agents"].as_array().unwrap().iter().all(|member| member["status"] == "stopped"), "{over}");
    let event = client.event("team.dissolved");
    assert_eq!(event["payload"], json!({ "teamId": crew["teamId"], "reason": "enough" }));
    until_over(&mut client, &helper["agentId"]);
    let again = client.refused("team.dissolve", json!({ "teamId": crew["teamId"] }));
    assert_eq!(again["code"], "CONFLICT", "{again}");

    let last = client.call("agent.stop", json!({ "agentId": other["agentId"], "reason": "no more" }));
    assert_eq!((&last["status"], &last["error"]["message"]), (&json!("stopped"), &json!("no more")));
}

#[test]
fn number_and_depth_are_limited() {
    let (_daemon, mut client) = Daemon::with("[limits]\nagents = 3\nagent_depth = 2\n").and(Wundr::connect);
    let parent = session(&mut client);
    let parent_id = text(&parent, "id").to_owned();
    let first = client.call("agent.spawn", spawning(Some(&parent_id), LONG));
    let second = client.call("agent.spawn", spawning(Some(text(&first, "sessionId")), LONG));
    let deep = client.refused("agent.spawn", spawning(Some(text(&second, "sessionId")), "x"));
    assert_eq!(
        (&deep["code"], &deep["details"]),
        (&json!("CONFLICT"), &json!({ "limit": "limits.agent_depth", "max": 2 }))
    );
    client.call("agent.spawn", spawning(None, LONG));
    let many = client.refused("agent.spawn", spawning(None, "x"));
    assert_eq!(
        (&many["code"], &many["details"], &many["retryable"]),
        (&json!("UNAVAILABLE"), &json!({ "limit": "limits.agents", "max": 3 }), &json!(true))
    );
    // A team waits until there is room.
    let crew = client.call("team.create", team("parallel", &["a", "b"], "hello"));
    assert_eq!(crew["status"], "forming", "{crew}");
    client.call("agent.stop", json!({ "agentId": first["agentId"] }));
    until(&mut client, "team.status", &crew["teamId"], "completed");
}

#[test]
fn what_agents_spend_is_limited() {
    let (_daemon, mut client) = Daemon::with("[budgets]\nsession = 1500\n").and(Wundr::connect);
    let parent = session(&mut client);
    let parent_id = text(&parent, "id").to_owned();
    let mut small = spawning(None, "say something");
    small["config"] = json!({ "maxTokens": 1 });
    let small = client.call("agent.spawn", small);
    let small = until_over(&mut client, &small["agentId"]);
    assert_eq!(small["error"]["details"]["reason"], "budget_exceeded", "{small}");
    assert_eq!(small["error"]["message"], "token budget exceeded (agent: 0/1)");

    // Those who work for a session spend its budget.
    let mut spent = 0;
    let refused = (0..40).find_map(|_| {
        let agent = client.call("agent.spawn", spawning(Some(&parent_id), "tell me a story"));
        let over = until_over(&mut client, &agent["agentId"]);
        spent += over["metrics"]["tokensUsed"].as_u64().unwrap();
        (over["status"] == "failed").then_some(over)
    });
    let refused = refused.expect("the budget of the parent is spent at some time");
    assert!(text(&refused["error"], "message").starts_with("token budget exceeded (session: "), "{refused}");
    assert!((1..=1500).contains(&spent), "{spent}");
    let prompt = client.call("prompt.submit", json!({ "sessionId": parent_id, "prompt": "and I?" }));
    let (_, end) = client.answer_of(text(&prompt, "promptId"));
    assert_eq!(end["event"], "stream.error", "the parent has nothing left: {end}");
    let other = session(&mut client);
    let prompt = client.call("prompt.submit", json!({ "sessionId": other["id"], "prompt": "and I?" }));
    let (_, end) = client.answer_of(text(&prompt, "promptId"));
    assert_eq!(end["event"], "stream.end", "another session has its own: {end}");
}

#[test]
fn after_sigkill_everything_comes_to_its_end_exactly_once() {
    let (mut daemon, mut client) = Daemon::start().and(Wundr::connect);
    let parent = session(&mut client);
    let agent = client.call("agent.spawn", spawning(Some(text(&parent, "id")), "/slow 2"));
    let crew = client.call("team.create", team("sequential", &["a", "b", "c"], "/slow 1"));
    let rounds = client.call("team.create", team("round-robin", &["l", "r"], "hello"));
    client
        .call("team.message", json!({ "teamId": crew["teamId"], "from": "a", "to": "c", "content": "psst" }));
    let doomed = client.call("agent.spawn", spawning(Some(text(&parent, "id")), LONG));
    let members = crew["agents"].as_array().unwrap().clone();
    // At once; when the second member has its turn; when the third has.
    for member in [None, Some(1), Some(2)] {
        if let Some(member) = member {
            let params = json!({ "agentId": members[member]["agentId"] });
            eventually("its turn", || {
                let status = client.call("agent.status", params.clone());
                status["status"] != "initializing"
            });
        }
        daemon = daemon.kill_and_restart();
        client = Wundr::connect(daemon.address);
    }
    // Stopped, and killed before that can have settled.
    client.call("agent.stop", json!({ "agentId": doomed["agentId"] }));
    daemon = daemon.kill_and_restart();
    client = Wundr::connect(daemon.address);
    let stopped = client.call("agent.status", json!({ "agentId": doomed["agentId"] }));
    assert_eq!(stopped["status"], "stopped");
    let session = json!({ "sessionId": doomed["sessionId"] });
    eventually("the session of the stopped agent to be at rest", || {
        client.call("session.status", session.clone())["activity"] == "idle"
    });
    until(&mut client, "agent.status", &agent["agentId"], "completed");
    let done = until(&mut client, "team.status", &crew["teamId"], "completed");
    until(&mut client, "team.status", &rounds["teamId"], "completed");

    let mut other = Client::connect(daemon.address);
    for (place, member) in done["agents"].as_array().unwrap().iter().enumerate() {
        assert!(
            member["result"].as_str().is_some_and(|text| text.contains("done")) || place == 2,
            "{member}"
        );
        let said = said(&mut other, text(member, "sessionKey"));
        let at_task = |(role, text): &&(String, String)| role == "user" && text.starts_with("/slow 1");
        assert_eq!(said.iter().filter(at_task).count(), 1, "its turn was taken once: {said:?}");
        let answers = said.iter().filter(|(_, text)| text == "Slowly: 1 done.").count();
        assert_eq!(answers, 1, "and answered once: {said:?}");
    }
    let read = prompts(&mut other, &members[2]);
    assert_eq!(read.iter().filter(|text| text.starts_with("psst")).count(), 1, "{read:?}");
    for member in rounds["agents"].as_array().unwrap() {
        assert_eq!(prompts(&mut other, member).len(), 2);
    }
    let told = eventually("the parent to be told", || {
        let told = said(&mut other, text(&parent, "sessionKey"));
        (told.len() >= 2).then_some(told)
    });
    for agent in [&agent, &doomed] {
        let id = text(agent, "agentId");
        assert_eq!(told.iter().filter(|(_, text)| text.contains(id)).count(), 1, "once: {told:?}");
    }
    // And nothing is left that would be done once more.
    daemon = daemon.kill_and_restart();
    let mut other = Client::connect(daemon.address);
    assert_eq!(said(&mut other, text(&parent, "sessionKey")), told);
}

#[test]
fn whoever_it_is_not_for_learns_nothing() {
    let people = [("ada", "user"), ("bob", "user"), ("eye", "readonly"), ("boss", "admin")];
    let daemon = Daemon::shared("", &people, &[]);
    let [mut ada, mut bob, mut eye, mut boss] =
        people.map(|(name, _)| Wundr::connect_with(daemon.address, &key_of(name)));
    for client in [&mut bob, &mut eye, &mut boss] {
        client.subscribe(&["*"], Value::Null);
    }
    let parent = session(&mut ada);
    let agent = ada.call("agent.spawn", spawning(Some(text(&parent, "id")), LONG));
    let crew = ada.call("team.create", team("parallel", &["a", "b"], LONG));
    ada.call("team.message", json!({ "teamId": crew["teamId"], "from": "a", "content": "a secret" }));
    for (method, params) in [
        ("agent.status", json!({ "agentId": agent["agentId"] })),
        ("agent.stop", json!({ "agentId": agent["agentId"], "force": true })),
        ("agent.spawn", spawning(Some(text(&parent, "id")), "spy")),
        ("agent.spawn", spawning(Some(text(&agent, "sessionId")), "spy")),
        ("team.status", json!({ "teamId": crew["teamId"] })),
        ("team.dissolve", json!({ "teamId": crew["teamId"] })),
        ("team.message", json!({ "teamId": crew["teamId"], "from": "a", "content": "hi" })),
        ("session.stop", json!({ "sessionId": agent["sessionId"] })),
        ("session.status", json!({ "sessionId": crew["agents"][0]["sessionId"] })),
    ] {
        let refused = bob.refused(method, params.clone());
        assert_eq!(refused["code"], "NOT_FOUND", "{method} {params}: {refused}");
    }
    for (method, params) in [
        ("agent.spawn", spawning(None, "x")),
        ("team.create", team("parallel", &["a"], "x")),
        ("team.status", json!({ "teamId": crew["teamId"] })),
    ] {
        assert_eq!(eye.refused(method, params)["code"], "FORBIDDEN", "{method}");
    }
    assert_eq!(ada.call("agent.status", json!({ "agentId": agent["agentId"] }))["status"], "running");
    // The operator sees all of it; by then the others would have been told as well.
    boss.event_that("team.message", |payload| payload["content"] == "a secret");
    boss.call("team.dissolve", json!({ "teamId": crew["teamId"] }));
    boss.event("team.dissolved");
    for client in [&mut bob, &mut eye] {
        client.call("health.ping", json!({}));
        let told =
            |frame: &&String| frame.contains(r#""event":"agent."#) || frame.contains(r#""event":"team."#);
        assert_eq!(client.seen().iter().find(told), None);
        assert!(!client.seen().iter().any(|frame| frame.contains("a secret")));
    }
}
