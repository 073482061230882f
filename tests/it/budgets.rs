//! Token budgets from the outside: what is refused and in which words, what is reserved while calls
//! are under way, and what is still known after a restart.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::upstream::{Turn, Upstream};
use crate::support::{eventually, wait_for};

/// The upstream counts 20 tokens of input a call and one of output a piece, which are two where
/// nobody told it what to say.
const CALL: u64 = 22;

fn config(upstream: &Upstream, max_tokens: u32, budgets: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n\
         max_tokens = {max_tokens}\n[budgets]\n{budgets}\n",
        upstream.base_url()
    )
}

fn session(account: &str) -> Value {
    json!({"channel": "websocket", "account": account})
}

/// One budget as `budget.status` tells it: used, reserved, limit.
fn budget(client: &mut Client, params: Value, period: &str) -> (u64, u64, u64) {
    let status = client.call("budget.status", params);
    let figure = |name: &str| {
        status["result"][period][name].as_u64().unwrap_or_else(|| panic!("{period}.{name}: {status}"))
    };
    (figure("used"), figure("reserved"), figure("limit"))
}

/// A text of about so many tokens.
fn long(tokens: usize) -> String {
    "abc ".repeat(tokens)
}

#[test]
fn a_session_over_its_budget_is_refused_and_others_are_not() {
    let upstream = Upstream::start();
    let (_daemon, mut client) = Daemon::with(&config(&upstream, 100, "session = 2000")).and(Client::connect);
    assert_eq!(client.chat("ada", "hello").text(), "You said: hello");

    let id = client.prompt("ada", &long(2500));
    let refused = client.reply(&id);
    let text = refused["error"].as_str().unwrap().to_owned();
    assert_eq!(refused, json!({"id": id, "error": text}), "a plain reply, no stream");
    let begins = format!(
        "token budget exceeded (session: {CALL}/2000): {CALL} of 2000 are used, and this prompt needs about 2"
    );
    assert!(text.starts_with(&begins) && text.ends_with("; /new begins another conversation"), "{text}");
    assert_eq!(client.call("ping", json!({}))["result"], "pong", "and nothing comes after it");
    assert!(
        !client.seen().iter().any(|frame| frame.contains(&id) && frame.contains("done")),
        "{:?}",
        client.seen()
    );
    assert_eq!(upstream.requests().len(), 1, "the provider was not asked");

    let keyed =
        json!({"channel": "websocket", "account": "ada", "content": long(2500), "idempotency_key": "k"});
    let id = client.request("chat.send", keyed);
    let refused = client.stream(&id);
    assert_eq!(refused.events(), ["accepted", "usage", "error", "done"], "an accepted one is a stream");
    assert_eq!(refused.error(), text);

    assert_eq!(budget(&mut client, session("ada"), "session"), (CALL, 0, 2000));
    assert_eq!(budget(&mut client, session("bob"), "session"), (0, 0, 2000));
    assert_eq!(client.chat("ada", "short").error(), "", "what fits is answered");
    assert_eq!(client.chat("bob", "hello").error(), "", "another session has its own");
    assert_eq!(budget(&mut client, session("ada"), "session"), (2 * CALL, 0, 2000));
}

#[test]
fn output_is_clamped_to_what_is_left_and_then_nothing_is() {
    let upstream = Upstream::start();
    let (_daemon, mut client) =
        Daemon::with(&config(&upstream, 100_000, "session = 1500")).and(Client::connect);
    client.chat("ada", "hello");
    let asked = upstream.requests()[0].body["max_completion_tokens"]
        .as_u64()
        .or_else(|| upstream.requests()[0].body["max_tokens"].as_u64())
        .expect("a bound on the output");
    assert!((1..1500).contains(&asked), "clamped: {asked}");
    let mut answered = 0;
    let refused = loop {
        let answer = client.chat("ada", "again");
        if !answer.error().is_empty() {
            break answer;
        }
        answered += 1;
        assert!(answered < 100, "it ends");
    };
    assert!(answered >= 10, "{answered} calls fit");
    let (used, reserved, limit) = budget(&mut client, session("ada"), "session");
    assert!(used <= limit && reserved == 0, "{used} of {limit}");
    let begins = format!("token budget exceeded (session: {used}/{limit})");
    assert!(refused.error().starts_with(&begins), "{refused:?}");
    assert_eq!(refused.0.len(), 1, "{refused:?}");
}

#[test]
fn a_budget_that_ends_within_the_tool_loop_ends_the_stream() {
    let upstream = Upstream::start();
    let (_daemon, mut client) = Daemon::with(&config(&upstream, 100, "session = 2000")).and(Client::connect);
    let input = json!({"text": long(2500)}).to_string();
    upstream.then(Turn::Call("Look: ".into(), vec![("echo".into(), input)]));
    let stream = client.chat("ada", "say a lot");
    assert_eq!(stream.events(), ["text", "tool_use", "tool_result", "usage", "error", "done"]);
    assert!(stream.error().starts_with("token budget exceeded (session: 22/2000)"), "{stream:?}");
    assert_eq!(stream.usage(), (20, 2), "what was counted before is told");
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn prompts_at_once_do_not_overshoot_the_day_together() {
    const AT_ONCE: usize = 12;
    const DAILY: u64 = 3000;
    let upstream = Upstream::start();
    for _ in 0..AT_ONCE {
        upstream.then(Turn::HangBody("well".into()));
    }
    // Each reserves 400 and its input.
    let daemon = Daemon::with(&config(&upstream, 400, &format!("daily = {DAILY}")));
    let mut clients: Vec<Client> = (0..AT_ONCE).map(|_| Client::connect(daemon.address)).collect();
    let ids: Vec<String> =
        clients.iter_mut().enumerate().map(|(at, client)| client.prompt(&format!("a{at}"), "go")).collect();
    let mut running = Vec::new();
    for (mut client, id) in clients.into_iter().zip(ids) {
        let first = client.reply(&id);
        match first["error"].as_str() {
            Some(error) => {
                assert!(error.starts_with("token budget exceeded (daily: "), "{first}");
                assert!(
                    error.contains(&format!("/{DAILY})")) && error.contains("; it resets at 2"),
                    "{first}"
                );
            }
            None => {
                assert_eq!(first["data"], "well", "{first}");
                running.push((client, id));
            }
        }
    }
    assert!((2..AT_ONCE).contains(&running.len()), "{} of {AT_ONCE} run", running.len());
    assert_eq!(upstream.requests().len(), running.len(), "the others were never asked");
    let mut observer = Client::connect(daemon.address);
    let (used, reserved, limit) = budget(&mut observer, Value::Null, "daily");
    assert!(
        used == 0 && reserved > 0 && reserved <= limit && limit == DAILY,
        "{used} + {reserved} of {limit}"
    );

    for (client, id) in &mut running {
        assert!(client.abort(id));
        assert_eq!(client.stream(id).error(), "aborted");
        wait_for("the call to be closed", upstream.left());
    }
    let used = eventually("all to be settled", || {
        let (used, reserved, _) = budget(&mut observer, Value::Null, "daily");
        (reserved == 0).then_some(used)
    });
    assert!(used >= running.len() as u64 && used <= DAILY, "what was streamed is paid: {used}");
    let id = observer.prompt("ada", "and now?");
    assert_eq!(observer.reply(&id)["data"], "well", "what was given back can be used");
}

#[test]
fn leaving_does_not_spare_the_bill() {
    let upstream = Upstream::start();
    upstream.then(Turn::EndLate("well".into()));
    let (daemon, mut leaver) = Daemon::with(&config(&upstream, 100, "daily = 5000")).and(Client::connect);
    let id = leaver.prompt("ada", "go");
    leaver.reply(&id);
    drop(leaver);
    wait_for("the answer to end", upstream.end());
    let mut client = Client::connect(daemon.address);
    eventually("the bill", || budget(&mut client, Value::Null, "daily") == (21, 0, 5000));
}

#[test]
fn what_was_spent_is_known_after_a_restart() {
    let upstream = Upstream::start();
    let (daemon, mut client) =
        Daemon::with(&config(&upstream, 100, "session = 5000\ndaily = 6000\nmonthly = 7000"))
            .and(Client::connect);
    client.chat("ada", "one");
    client.chat("bob", "two");
    let expected =
        [("session", (CALL, 0, 5000)), ("daily", (2 * CALL, 0, 6000)), ("monthly", (2 * CALL, 0, 7000))];
    let check = |client: &mut Client, when: &str| {
        for (period, figures) in expected {
            assert_eq!(budget(client, session("ada"), period), figures, "{period} {when}");
        }
    };
    check(&mut client, "before");
    let (daemon, mut client) = daemon.restart().and(Client::connect);
    check(&mut client, "after a restart");
    let refused = client.chat("ada", &long(5500));
    let begins = format!("token budget exceeded (session: {CALL}/5000)");
    assert!(refused.error().starts_with(&begins), "{refused:?}");
    let refused = client.chat("new", &long(6500));
    assert!(refused.error().starts_with("token budget exceeded (session: 0/5000)"), "{refused:?}");
    let daemon = daemon.kill_and_restart();
    check(&mut Client::connect(daemon.address), "after a crash");
}

#[test]
fn answers_that_are_cut_off_count_against_their_session() {
    let (_daemon, mut client) = Daemon::with("[budgets]\nsession = 400\n").and(Client::connect);
    for _ in 0..100 {
        let id = client.prompt("ada", "/slow 50");
        let first = client.reply(&id);
        if let Some(error) = first["error"].as_str() {
            assert!(error.starts_with("token budget exceeded (session: "), "{first}");
            return;
        }
        let aborted = client.call("chat.abort", json!({"id": id}));
        assert_eq!(aborted["result"]["aborted"], true, "{aborted}");
        client.stream(&id);
    }
    panic!("100 answers that were cut off cost nothing");
}

/// What the model costs: 40 millionths of a dollar a call.
const PRICES: &str = "[models.\"up/m\"]\ninput_price = 1\noutput_price = 10.0\n";
const CALL_COST: f64 = 0.000_04;

/// Prompts so many sessions at once over as many sockets as there are threads. Says how many were answered; the
/// others were refused for want of budget.
fn prompt_at_once(address: std::net::SocketAddr, prompts: usize) -> usize {
    const SOCKETS: usize = 20;
    let crowd = |socket: usize| {
        let mut client = Client::connect(address);
        let ids: Vec<String> =
            (0..prompts / SOCKETS).map(|at| client.prompt(&format!("crowd-{socket}-{at}"), "go")).collect();
        let answered = ids.iter().filter(|id| {
            let stream = client.stream(id);
            assert!(stream.error().is_empty() || stream.error().contains(" budget exceeded ("), "{stream:?}");
            stream.error().is_empty()
        });
        answered.count()
    };
    std::thread::scope(|scope| {
        let sockets: Vec<_> = (0..SOCKETS).map(|socket| scope.spawn(move || crowd(socket))).collect();
        sockets.into_iter().map(|socket| socket.join().unwrap()).sum()
    })
}

#[test]
fn two_hundred_prompts_at_once_spend_no_more_than_the_budget() {
    let upstream = Upstream::start();
    let daemon = Daemon::with(&(config(&upstream, 20, "daily = 3000") + PRICES));
    let answered = prompt_at_once(daemon.address, 200);
    let mut client = Client::connect(daemon.address);
    let (used, _, limit) = eventually("all to be settled", || {
        Some(budget(&mut client, Value::Null, "daily")).filter(|(_, reserved, _)| *reserved == 0)
    });
    assert!((1..200).contains(&answered) && used <= limit, "{answered} answered, {used} of {limit}");
    assert_eq!(used, CALL * answered as u64, "each call that was made is counted once");
    assert_eq!(upstream.requests().len(), answered, "who was refused cost nothing");
}

#[test]
fn two_hundred_prompts_at_once_spend_no_more_money_than_the_budget() {
    let upstream = Upstream::start();
    let daemon = Daemon::with(&(config(&upstream, 20, "daily_cost = 0.005") + PRICES));
    let answered = prompt_at_once(daemon.address, 200);
    let mut client = Client::connect(daemon.address);
    let used = eventually("all to be settled", || {
        let cost = &client.call("budget.status", Value::Null)["result"]["daily_cost"];
        (cost["reserved"] == 0.0).then(|| cost["used"].as_f64().unwrap())
    });
    assert!((1..200).contains(&answered) && used <= 0.005, "{answered} answered, {used}");
    assert!((used - CALL_COST * answered as f64).abs() < 1e-9, "{answered} answered, {used}");
    let usage = eventually("all to be written", || {
        Some(daemon.json_of(&["usage"])).filter(|usage| usage["today"]["calls"] == answered)
    });
    assert!((usage["today"]["cost"].as_f64().unwrap() - used).abs() < 1e-9, "{usage}");
    let csv = daemon.stdout_of(&["usage", "--csv", "--by", "model"]);
    assert!(csv.starts_with("model,tokens,") && csv.contains("\nup/m,"), "{csv}");
}

#[test]
fn what_was_under_way_when_the_daemon_was_killed_counts_as_spent() {
    const DAILY: u64 = 4000;
    let upstream = Upstream::start();
    for _ in 0..40 {
        upstream.then(Turn::HangBody("well".into()));
    }
    let text = config(&upstream, 100, &format!("daily = {DAILY}")) + "[store]\nrecovery = \"interrupt\"\n";
    let daemon = Daemon::with(&text);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(daemon.address)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        for prompt in 0..5 {
            client.prompt(&format!("crowd-{at}-{prompt}"), "go");
        }
    }
    let mut observer = Client::connect(daemon.address);
    eventually("most of the budget to be reserved", || {
        budget(&mut observer, Value::Null, "daily").1 > DAILY / 2 && upstream.requests().len() > 3
    });
    let asked = upstream.requests().len() as u64;
    let daemon = daemon.kill_and_restart();
    let mut client = Client::connect(daemon.address);
    let (used, reserved, limit) = budget(&mut client, Value::Null, "daily");
    assert!(used >= 100 * asked, "{asked} calls were made, of 100 tokens and more each: {used}");
    assert!(used <= limit && reserved == 0, "{used} + {reserved} of {limit}");
    assert_eq!(daemon.json_of(&["usage"])["today"]["tokens"], used);
    let refused = client.chat("zed", &long(4500));
    assert!(refused.error().starts_with(&format!("token budget exceeded (daily: {used}/")), "{refused:?}");
}

#[test]
fn an_agents_budget_is_its_own_and_what_has_no_price_is_not_asked_for_money() {
    let upstream = Upstream::start();
    upstream.list(json!({"data": [{"id": "m"}]}));
    let rules = "[[budgets.rules]]\nagent = \"work\"\ndaily = 1000\n\
        [[budgets.rules]]\nagent = \"dear\"\nmonthly_cost = 1.5\n\
        [agents.work]\nprovider = \"up\"\nmodel = \"m\"\nmax_tokens = 20\n\
        [agents.dear]\nprovider = \"up\"\nmodel = \"m\"\n\
        [[bindings]]\nagent = \"work\"\nchannel = \"work\"\n[[bindings]]\nagent = \"dear\"\nchannel = \"dear\"\n";
    let (daemon, mut client) = Daemon::with(&config(&upstream, 20, rules)).and(Client::connect);
    let mut ask = |channel: &str, content: &str| {
        let params = json!({"channel": channel, "account": "ada", "content": content});
        let id = client.request("chat.send", params);
        client.stream(&id)
    };
    let refused = ask("work", &long(1500));
    assert!(
        refused.error().starts_with(
            "token budget exceeded (daily of agent work: 0/1000): 0 of 1000 are used, and this prompt needs about 1"
        ) && refused.error().contains("; it resets at "),
        "{refused:?}"
    );
    assert_eq!(ask("websocket", &long(1500)).error(), "", "others have none");
    let refused = ask("dear", "hi");
    assert!(refused.error().contains("what up/m costs is not known"), "{refused:?}");
    let lines = "\n[models.\"up/m\"]\ninput_price = …\noutput_price = …";
    assert!(refused.error().ends_with(lines), "the lines to paste: {refused:?}");
    assert_eq!(upstream.requests().len(), 1);
    let status = daemon.stdout_of(&["status"]);
    let says = "prompts to agent dear are refused: the budget monthly_cost is in money, and what up/m costs";
    assert!(status.contains(says), "{status}");
    assert!(
        !status.contains("no budget is set") && status.contains("daily of agent work: 0 tokens of 1 000")
    );
    let check = daemon.run(&["check"]);
    assert!(
        check.0 == 0 && check.2.contains(lines.trim()) && check.2.contains("agents.dear.model"),
        "{check:?}"
    );
}

#[test]
fn a_budget_that_is_spent_and_those_of_agents_and_money_are_told() {
    let upstream = Upstream::start();
    let rules = "[[budgets.rules]]\nagent = \"main\"\ndaily = 2000\nmonthly_cost = 5\n";
    let text = config(&upstream, 1000, rules) + PRICES;
    let (daemon, mut client) = Daemon::with(&text).and(Client::connect);
    let priced = client.call("budget.status", session("ada"));
    assert_eq!(priced["result"]["rules"][0]["agent"], "main", "{priced}");
    assert_eq!(priced["result"]["rules"].as_array().map(Vec::len), Some(2), "{priced}");
    assert_eq!(client.call("budget.status", json!({}))["result"]["rules"], Value::Null, "of no session");
    upstream.then(Turn::Say(vec!["so ".into(); 1990]));
    assert_eq!(client.chat("ada", "hi").error(), "");
    let status = eventually("the budget to be spent", || {
        Some(daemon.stdout_of(&["status"])).filter(|status| status.contains("are refused"))
    });
    let says = "prompts to agent main are refused: its daily budget is spent; it resets at ";
    assert!(status.contains(says) && !status.contains("no budget is set"), "{status}");
    assert!(status.contains("monthly_cost of agent main: $0.0"), "{status}");
    let usage = daemon.stdout_of(&["usage"]);
    assert!(usage.contains("below") && !usage.contains("none"), "{usage}");
    assert!(daemon.run(&["doctor", "--offline"]).1.contains(says));
}

#[test]
fn whoever_waits_is_told_once_that_a_budget_is_near_its_end() {
    let upstream = Upstream::start();
    // What a request may read is far below the last fifth.
    let budgets = "session = 4000\n[memory]\ncontext_tokens = 400\nsummaries = \"rules\"\n";
    let (daemon, mut client) = Daemon::with(&config(&upstream, 100_000, budgets)).and(Client::connect);
    // A prompt with a key is told what becomes of it.
    let mut told: Vec<String> = Vec::new();
    for at in 0..200 {
        let params = json!({"channel": "websocket", "account": "ada", "content": "again", "idempotency_key": format!("k{at}")});
        let id = client.request("chat.send", params);
        let stream = client.stream(&id);
        let notices = stream.data("notice").filter(|notice| notice["kind"] == "budget");
        told.extend(notices.map(|notice| notice["message"].to_string()));
        if !stream.error().is_empty() {
            break;
        }
    }
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("% of the token budget is used (session: "), "{told:?}");
    assert!(daemon.log().contains("of the token budget is used (session: "), "and so are operators");
}

#[test]
fn what_the_provider_lists_is_what_budgets_and_clients_know_of_a_model() {
    let upstream = Upstream::start();
    let pricing = json!({"prompt": "0.000001", "completion": "0.00001"});
    upstream.list(json!({"data": [{"id": "m", "context_length": 8192, "pricing": pricing}, {"id": "n"}]}));
    let (daemon, mut client) = Daemon::with(&config(&upstream, 20, "daily_cost = 0.5")).and(Client::connect);
    assert_eq!(client.chat("ada", "hi").error(), "");
    let models = client.call("model.list", json!({}));
    let listed = &models["result"][0];
    assert_eq!((&listed["model"], &listed["context_window"]), (&json!("up/m"), &json!(8192)), "{models}");
    assert_eq!((&listed["input_price"], &listed["images"]), (&json!(1.0), &Value::Null), "{models}");
    let usage = eventually("the call to be written", || {
        Some(daemon.json_of(&["usage"])).filter(|usage| usage["today"]["calls"] == 1)
    });
    assert!((usage["today"]["cost"].as_f64().unwrap() - CALL_COST).abs() < 1e-9, "{usage}");
    let rows = daemon.rows_of(&["models"]);
    let row = rows.iter().find(|row| row["model"] == "m").expect("the model");
    assert_eq!((&row["context_window"], &row["output_price"]), (&json!(8192), &json!(10.0)), "{row}");
}
