//! Channels: what platforms send and are sent, through the adapters that ship, against stand-ins of their APIs.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use hmac::{Hmac, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::upstream::{Turn, Upstream};

/// A request that a stand-in got.
#[derive(Clone, Debug)]
struct Request {
    path: String,
    headers: HashMap<String, String>,
    body: Value,
}

/// What a stand-in does with a request: an answer with a status and headers, or none, the connection cut.
type Act = Box<dyn Fn(&Request) -> Option<(u16, &'static str, String)> + Send>;

/// A stand-in of a platform's API.
struct Platform {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    act: Arc<Mutex<Act>>,
    /// Updates that are yet to be asked for, each with its number.
    updates: Arc<Mutex<Vec<Value>>>,
}

impl Platform {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, updates) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::<Mutex<Vec<Value>>>::default());
        let ok: Act = Box::new(|_| Some((200, "", r#"{"ok":true,"result":{}}"#.to_owned())));
        let act = Arc::new(Mutex::new(ok));
        let platform = Self { address, seen: seen.clone(), act: act.clone(), updates: updates.clone() };
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (seen, act, updates) = (seen.clone(), act.clone(), updates.clone());
                std::thread::spawn(move || serve(socket, &seen, &act, &updates));
            }
        });
        platform
    }

    /// From now on this is what it does.
    fn will(&self, act: impl Fn(&Request) -> Option<(u16, &'static str, String)> + Send + 'static) {
        *self.act.lock().unwrap() = Box::new(act);
    }

    /// Somebody wrote this.
    fn update(&self, update: Value) {
        self.updates.lock().unwrap().push(update);
    }

    /// The bodies of the requests to this method.
    fn calls(&self, method: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .filter(|request| request.path.ends_with(method))
            .map(|request| request.body.clone())
            .collect()
    }

    /// The texts that it was sent.
    fn texts(&self, method: &str) -> Vec<String> {
        self.calls(method).iter().map(|body| body["text"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn serve(
    socket: TcpStream,
    seen: &Mutex<Vec<Request>>,
    act: &Mutex<Act>,
    updates: &Mutex<Vec<Value>>,
) -> Option<()> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let request = Request { path, headers, body };
    let answer = if request.path.ends_with("/getUpdates") {
        let offset = request.body["offset"].as_i64().unwrap_or(0);
        let due: Vec<Value> = updates
            .lock()
            .unwrap()
            .iter()
            .filter(|update| update["update_id"].as_i64() >= Some(offset))
            .cloned()
            .collect();
        Some((200, "", json!({ "ok": true, "result": due }).to_string()))
    } else {
        seen.lock().unwrap().push(request.clone());
        act.lock().unwrap()(&request)
    };
    let (status, more, body) = answer?;
    let mut socket = socket;
    write!(
        socket,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .ok()
}

const TOKEN: &str = "123456:telegram-token";

/// A Telegram bot that polls the stand-in.
fn telegram(platform: &Platform, more: &str) -> String {
    let api = format!("http://{}", platform.address);
    format!(
        "[channels.telegram]\nmode = \"poll\"\npoll_interval_ms = 100\n{more}\n\
         [[plugins]]\nname = \"telegram\"\nsettings = {{ api = \"{api}\" }}\n\
         capabilities = [\"http:{api}\", \"secret:telegram@{api}\"]\n\
         [secrets.telegram]\nvalue_env = \"TG\"\nplace = \"path\"\n"
    )
}

fn start(config: &str) -> Daemon {
    Daemon::with_env(config, &[("TG", TOKEN), ("HOOK", SECRET)])
}

/// A message in a private chat.
fn said(number: i64, chat: i64, text: &str) -> Value {
    json!({ "update_id": number, "message": {
        "message_id": number, "date": 1, "text": text,
        "chat": { "id": chat, "type": "private", "first_name": "Ada" },
        "from": { "id": chat, "is_bot": false, "first_name": "Ada" },
    }})
}

fn channel(daemon: &Daemon, name: &str) -> Value {
    let channels = daemon.rows_of(&["channels"]);
    channels.into_iter().find(|channel| channel["channel"] == name).expect("a channel")
}

#[test]
fn people_write_from_telegram_and_are_answered_in_order() {
    let platform = Platform::start();
    let daemon = start(&telegram(&platform, "allow = [\"42\", \"-7\"]"));
    for nth in 1..=5 {
        platform.update(said(nth, 42, &format!("/tool echo {{\"text\":\"answer {nth}\"}}")));
    }
    platform.update(said(6, 99, "let me in"));
    eventually("five answers", || platform.texts("/sendMessage").len() >= 5);
    let calls = platform.calls("/sendMessage");
    for (nth, body) in calls.iter().enumerate() {
        let text = body["text"].as_str().unwrap();
        assert!(text.contains(&format!("answer {}", nth + 1)), "{calls:?}");
        assert_eq!(body["chat_id"], 42);
    }
    assert!(!platform.calls("/sendChatAction").is_empty(), "it was shown that an answer is under way");
    {
        let seen = platform.seen.lock().unwrap();
        assert!(seen.iter().all(|request| request.path.starts_with(&format!("/bot{TOKEN}/"))), "{seen:?}");
    }
    eventually("the stranger to be shut out", || channel(&daemon, "telegram")["shut_out"] == 1);
    assert_eq!(platform.texts("/sendMessage").len(), 5, "the stranger is told nothing");
    let sessions = daemon.stdout_of(&["sessions", "--json"]);
    assert!(sessions.contains("main:telegram:main:42") && !sessions.contains(":99"), "{sessions}");
    // The same update again, as after a lost cursor, is the same message.
    platform.update(said(7, 42, "/tool echo {\"text\":\"the last\"}"));
    eventually("the last answer", || {
        platform.texts("/sendMessage").iter().any(|text| text.contains("the last"))
    });
    assert_eq!(platform.texts("/sendMessage").len(), 6);
    assert!(!daemon.log().contains(TOKEN) && !daemon.stdout_of(&["channels", "telegram"]).contains(TOKEN));
}

#[test]
fn agents_of_operators_write_first_to_people_whom_the_channel_lets_in() {
    let platform = Platform::start();
    let agent = "[agents.main]\ntools = [\"sessions\"]\n[limits]\nrequests_burst = 0\n";
    let keys = "[[auth.api_keys]]\nname = \"ada\"\nkey_env = \"ADA\"\nrole = \"user\"\n\
                [[auth.api_keys]]\nname = \"boss\"\nkey_env = \"BOSS\"\nrole = \"admin\"\n";
    let config = telegram(&platform, "allow = [\"42\"]") + agent + keys;
    let env = [("TG", TOKEN), ("ADA", &key_of("ada")), ("BOSS", &key_of("boss"))];
    let daemon = Daemon::with_env(&config, &env);
    let told = |daemon: &Daemon, who: &str, input: Value| {
        let mut client = Client::connect_with(daemon.address, &key_of(who));
        let stream = client.chat("peer", &format!("/tool send_message {input}"));
        stream.data("tool_result").next().unwrap()["content"].as_str().unwrap().to_owned()
    };
    let write = json!({ "text": "Good morning.", "channel": "telegram", "peer": "42" });
    let sent = told(&daemon, "boss", write.clone());
    assert!(sent.contains("\"sent\":true"), "{sent}");
    eventually("they are written to", || platform.texts("/sendMessage").len() == 1);
    let body = platform.calls("/sendMessage").remove(0);
    assert_eq!((&body["chat_id"], &body["text"]), (&json!(42), &json!("Good morning.")));
    let (_, shown, _) =
        daemon.run(&["session", "show", "channel%3Atelegram/main:telegram:main:42", "--json"]);
    assert!(shown.contains("Good morning."), "whoever answers knows of it: {shown}");

    for (who, input, why) in [
        (
            "boss",
            json!({ "text": "x", "channel": "telegram", "peer": "99" }),
            "\"99\" is not let in on the channel telegram",
        ),
        ("boss", json!({ "text": "x", "channel": "telegram" }), "peer: missing"),
        ("boss", json!({ "text": "x", "channel": "pigeon" }), "channels to people elsewhere are: telegram"),
        ("ada", write, "only agents of the operators speak over channels"),
    ] {
        let refused = told(&daemon, who, input.clone());
        assert!(refused.contains(why), "{who} {input}: {refused}");
    }
    let daemon = daemon.kill_and_restart();
    platform.update(said(1, 42, "/tool session_list {}"));
    eventually("an answer", || platform.texts("/sendMessage").len() == 2);
    let answer = platform.texts("/sendMessage").remove(1);
    assert!(answer.contains("main:telegram:main:42") && !answer.contains("websocket"), "{answer}");
    drop(daemon);
}

#[test]
fn jobs_of_people_on_a_channel_are_theirs_and_answer_there() {
    let platform = Platform::start();
    let agent = "[agents.main]\ntools = [\"jobs\", \"sessions\"]\n";
    let daemon = start(&(telegram(&platform, "allow = [\"42\", \"43\"]") + agent));
    let job = json!({ "prompt": "the kettle is ready", "every_minutes": 60, "name": "kettle" });
    platform.update(said(1, 42, &format!("/tool job_add {job}")));
    eventually("it is added", || daemon.rows_of(&["jobs"]).len() == 1);
    platform.update(said(2, 43, "/tool job_list {}"));
    eventually("both are answered", || platform.texts("/sendMessage").len() == 2);
    let list = platform.calls("/sendMessage").into_iter().find(|body| body["chat_id"] == 43).unwrap();
    assert!(list["text"].as_str().unwrap().contains("there are no jobs"), "{list}");
    platform.update(said(3, 43, "/tool session_read {\"session\":\"main:telegram:main:42\"}"));
    eventually("a third answer", || platform.texts("/sendMessage").len() == 3);
    assert!(
        platform.texts("/sendMessage")[2].contains("no such session"),
        "{:?}",
        platform.texts("/sendMessage")
    );

    daemon.stdout_of(&["job", "run", "kettle"]);
    eventually("they are told", || platform.texts("/sendMessage").len() == 4);
    let body = platform.calls("/sendMessage").remove(3);
    assert!(
        body["chat_id"] == 42 && body["text"].as_str().unwrap().contains("the kettle is ready"),
        "{body}"
    );
}

#[test]
fn what_somebody_on_a_channel_has_kept_nobody_else_there_finds() {
    let platform = Platform::start();
    let agent = "[agents.main]\ntools = [\"memory\"]\n";
    let daemon = start(&(telegram(&platform, "allow = [\"*\"]") + agent));
    let mut number = 0;
    let mut ask = |chat: i64, text: &str| {
        number += 1;
        let before = platform.texts("/sendMessage").len();
        platform.update(said(number, chat, text));
        eventually("an answer", || platform.texts("/sendMessage").len() > before);
        platform.texts("/sendMessage").remove(before)
    };
    let kept = ask(42, r#"/tool memory_save {"content":"The code of the safe is 4711."}"#);
    assert!(kept.contains("answered"), "{kept}");
    let search = r#"/tool memory_search {"query":"what is the code of the safe"}"#;
    let (own, others) = (ask(42, search), ask(43, search));
    assert!(own.contains("4711"), "{own}");
    assert!(!others.contains("4711"), "{others}");
    let of_42 = "channel:telegram/main:telegram:main:42";
    let (_, found, _) = daemon.run(&["memory", "search", "code of the safe", "--owner", of_42, "--json"]);
    assert!(found.contains("4711"), "operators find it: {found}");
}

#[test]
fn long_answers_are_split_and_a_platform_that_is_busy_is_waited_for() {
    let platform = Platform::start();
    let refusals = Mutex::new(2);
    platform.will(move |request| {
        let mut left = refusals.lock().unwrap();
        if request.path.ends_with("/sendMessage") && *left > 0 {
            *left -= 1;
            let busy = r#"{"ok":false,"error_code":429,"description":"Too Many Requests","parameters":{"retry_after":1}}"#;
            return Some((429, "", busy.to_owned()));
        }
        Some((200, "", r#"{"ok":true}"#.to_owned()))
    });
    let upstream = Upstream::start();
    let config = telegram(&platform, "allow = [\"*\"]") + &on(&upstream);
    let daemon = start(&config);
    upstream.then(Turn::Say(vec!["long words ".repeat(600)]));
    platform.update(said(1, 42, "tell me much"));
    let parts = || platform.texts("/sendMessage").into_iter().skip(2).collect::<Vec<_>>();
    eventually("all parts", || channel(&daemon, "telegram")["sent"] == 1);
    let parts = parts();
    assert!(
        parts.len() >= 2 && parts.iter().all(|part| part.encode_utf16().count() <= 4096),
        "{}",
        parts.len()
    );
    assert_eq!(parts.join(" ").matches("long words").count(), 600);
}

/// The lines that have `main` ask this model.
fn on(upstream: &Upstream) -> String {
    let url = upstream.base_url();
    format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{url}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n"
    )
}

#[test]
fn a_photo_is_shown_to_the_model() {
    let platform = Platform::start();
    platform.will(|request| {
        let path = request.path.as_str();
        Some(match path {
            _ if path.ends_with("/getFile") => {
                (200, "", r#"{"ok":true,"result":{"file_path":"photos/file 1.jpg"}}"#.to_owned())
            }
            _ if path == format!("/file/bot{TOKEN}/photos/file%201.jpg") => {
                (200, "", "GIF89a a picture".to_owned())
            }
            _ => (200, "", r#"{"ok":true}"#.to_owned()),
        })
    });
    let upstream = Upstream::start();
    let daemon = start(&(telegram(&platform, "allow = [\"*\"]") + &on(&upstream)));
    upstream.then(Turn::Say(vec!["a heron".into()]));
    let mut update = said(1, 42, "");
    update["message"] = json!({
        "message_id": 1, "date": 1, "caption": "what is this?",
        "chat": { "id": 42, "type": "private" }, "from": { "id": 42, "is_bot": false, "first_name": "Ada" },
        "photo": [{ "file_id": "small", "width": 90, "height": 90 }, { "file_id": "large", "width": 900, "height": 900 }],
    });
    platform.update(update);
    eventually("an answer", || platform.texts("/sendMessage") == ["a heron"]);
    assert_eq!(platform.calls("/getFile")[0]["file_id"], "large");
    let asked = upstream.requests().remove(0).body.to_string();
    assert!(asked.contains("what is this?") && asked.contains("data:image/gif;base64,R0lGODlh"), "{asked}");
    assert!(!daemon.log().contains(TOKEN));
}

#[test]
fn what_may_have_arrived_is_never_sent_twice() {
    let platform = Platform::start();
    // Taken, and the connection cut before an answer.
    platform.will(|request| match request.body["text"].as_str() {
        Some(text) if text.contains("cut") => None,
        Some(text) if text.contains("refused") => {
            Some((400, "", r#"{"ok":false,"description":"Bad Request: chat not found"}"#.to_owned()))
        }
        _ => Some((200, "", r#"{"ok":true}"#.to_owned())),
    });
    let mut daemon = start(&telegram(&platform, "allow = [\"*\"]"));
    platform.update(said(1, 42, "/tool echo {\"text\":\"cut\"}"));
    platform.update(said(2, 43, "/tool echo {\"text\":\"refused\"}"));
    let unsent = || channel(&daemon, "telegram")["unsent"].as_array().unwrap().clone();
    eventually("both to be given up", || unsent().len() == 2);
    let states: Vec<String> =
        unsent().iter().map(|answer| answer["error"].as_str().unwrap().to_owned()).collect();
    assert!(states.iter().any(|why| why.contains("chat not found")), "{states:?}");
    let attempts =
        |word: &str| platform.texts("/sendMessage").iter().filter(|text| text.contains(word)).count();
    assert_eq!((attempts("cut"), attempts("refused")), (1, 1));
    let status = daemon.stdout_of(&["status"]);
    assert!(status.contains("2 answers were not sent"), "{status}");
    daemon = daemon.kill_and_restart();
    let unsent = channel(&daemon, "telegram")["unsent"].as_array().unwrap().clone();
    assert_eq!((unsent.len(), attempts("cut"), attempts("refused")), (2, 1, 1), "nor after a crash");
    // The operator decides.
    platform.will(|_| Some((200, "", r#"{"ok":true}"#.to_owned())));
    let number = |state: &str| {
        let answer =
            unsent.iter().find(|answer| answer["state"] == state).unwrap_or_else(|| panic!("{unsent:?}"));
        answer["answer"].to_string()
    };
    daemon.stdout_of(&["channel", "resend", "telegram", &number("failed")]);
    eventually("it to be sent again", || attempts("refused") == 2);
    daemon.stdout_of(&["channel", "drop", "telegram", &number("unknown")]);
    eventually("none to be left", || channel(&daemon, "telegram")["unsent"] == json!([]));
    let (status, _, said) = daemon.run(&["channel", "drop", "telegram", "999"]);
    assert!(status == 1 && said.contains("no answer 999"), "{said}");
}

#[test]
fn what_of_an_answer_was_sent_is_not_sent_again_with_the_rest() {
    let platform = Platform::start();
    let (sent, is_refusing) = (Mutex::new(0), Arc::new(Mutex::new(true)));
    let refusing = is_refusing.clone();
    platform.will(move |request| {
        if request.path.ends_with("/sendMessage") && *refusing.lock().unwrap() {
            let mut sent = sent.lock().unwrap();
            *sent += 1;
            // The second part is taken, and the connection cut before an answer.
            if *sent == 2 {
                return None;
            }
        }
        Some((200, "", r#"{"ok":true}"#.to_owned()))
    });
    let upstream = Upstream::start();
    let daemon = start(&(telegram(&platform, "allow = [\"*\"]") + &on(&upstream)));
    upstream.then(Turn::Say(vec!["long words ".repeat(600)]));
    platform.update(said(1, 42, "tell me much"));
    let unsent = || channel(&daemon, "telegram")["unsent"].as_array().unwrap().clone();
    eventually("it to be given up", || unsent().len() == 1);
    assert_eq!(unsent()[0]["state"], "unknown", "also before a restart");
    *is_refusing.lock().unwrap() = false;
    daemon.stdout_of(&["channel", "resend", "telegram", &unsent()[0]["answer"].to_string()]);
    eventually("the rest to be sent", || channel(&daemon, "telegram")["sent"] == 1);
    let texts = platform.texts("/sendMessage");
    assert_eq!(texts.iter().filter(|text| **text == texts[0]).count(), 1, "the first part went once");
    assert_eq!(texts[1], texts[2], "the second was sent again, as the operator said");
}

#[test]
fn who_has_to_wait_for_an_approval_is_told_once() {
    let platform = Platform::start();
    let asks = "[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n";
    let daemon = start(&(telegram(&platform, "allow = [\"*\"]") + asks));
    platform.update(said(1, 42, r#"/tool echo {"text":"hi"}"#));
    let notices = || {
        let texts = platform.texts("/sendMessage");
        texts.iter().filter(|text| text.contains("the operator has to approve a call of echo")).count()
    };
    eventually("it to be told", || notices() == 1);
    let daemon = daemon.kill_and_restart();
    let waits =
        || daemon.rows_of(&["approvals"]).first().map(|row| row["approval"].as_str().unwrap().to_owned());
    let id = eventually("it to wait again", waits);
    daemon.stdout_of(&["approval", "approve", &id]);
    let is_answered = || platform.texts("/sendMessage").iter().any(|text| text.contains("hi"));
    eventually("it to be answered", is_answered);
    assert_eq!(notices(), 1, "{:?}", platform.texts("/sendMessage"));
}

#[test]
fn nothing_is_lost_or_doubled_over_kills() {
    const MESSAGES: i64 = 30;
    let platform = Platform::start();
    let mut daemon = start(&telegram(&platform, "allow = [\"*\"]"));
    let mut next = 1;
    for _ in 0..6 {
        for _ in 0..MESSAGES / 6 {
            let chat = 100 + next % 3;
            platform.update(said(next, chat, &format!("/tool echo {{\"text\":\"no {next}.\"}}")));
            next += 1;
        }
        let before = platform.texts("/sendMessage").len();
        eventually("something to be sent", || platform.texts("/sendMessage").len() > before);
        daemon = daemon.kill_and_restart();
    }
    let count = |nth: i64| {
        platform.texts("/sendMessage").iter().filter(|text| text.contains(&format!("no {nth}."))).count()
    };
    let settled = || {
        let channel = channel(&daemon, "telegram");
        let unsent = channel["unsent"].as_array().unwrap().len() as i64;
        (1..=MESSAGES).filter(|nth| count(*nth) > 0).count() as i64 + unsent >= MESSAGES
            && channel["outbox"] == 0
            && channel["running"] == 0
            && channel["inbox"] == 0
    };
    eventually("all to be answered", settled);
    for nth in 1..=MESSAGES {
        assert!(count(nth) <= 1, "{nth} was answered {} times", count(nth));
    }
    // Each chat in order.
    for chat in 100..103 {
        let texts: Vec<i64> = platform
            .calls("/sendMessage")
            .iter()
            .filter(|body| body["chat_id"] == chat)
            .filter_map(|body| body["text"].as_str()?.split("no ").nth(1)?.split('.').next()?.parse().ok())
            .collect();
        assert!(texts.is_sorted(), "{chat}: {texts:?}");
    }
    // Each prompt ran once.
    let mut client = Client::connect(daemon.address);
    let _ = client.call("ping", Value::Null);
    let store = rusqlite::Connection::open(daemon.home().join("clawmux.db")).unwrap();
    let prompts: i64 =
        store.query_row("SELECT count(*) FROM events WHERE kind = 'prompted'", [], |row| row.get(0)).unwrap();
    assert_eq!(prompts, MESSAGES);
}

#[test]
fn a_reload_and_a_stop_wait_for_what_is_on_its_way() {
    let platform = Platform::start();
    let (went, is_there) = std::sync::mpsc::channel();
    platform.will(move |request| {
        if request.path.ends_with("/sendMessage") {
            went.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(700));
        }
        Some((200, "", r#"{"ok":true}"#.to_owned()))
    });
    let mut daemon = start(&telegram(&platform, "allow = [\"42\"]"));
    let path = daemon.home().join("gateway.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    for (nth, how) in ["reload", "stop", "removed", "there again"].into_iter().enumerate() {
        let (nth, word) = (nth as i64 + 1, how.replace(' ', "-"));
        platform.update(said(nth, 42, &format!("/tool echo {{\"text\":\"{word}\"}}")));
        if how != "removed" {
            is_there.recv_timeout(crate::support::TIMEOUT).expect("an answer on its way");
        }
        match how {
            "reload" => {
                std::fs::write(&path, before.replace("[\"42\"]", "[\"42\", \"43\"]")).unwrap();
                daemon.stdout_of(&["config", "reload"]);
            }
            "stop" => {
                daemon = daemon.restart();
                let without = before.split("[channels").next().unwrap().to_owned();
                std::fs::write(daemon.home().join("gateway.toml"), without).unwrap();
                daemon.stdout_of(&["config", "reload"]);
                assert_eq!(daemon.rows_of(&["channels"]), Vec::<Value>::new());
            }
            "removed" => {
                std::fs::write(daemon.home().join("gateway.toml"), &before).unwrap();
                daemon.stdout_of(&["config", "reload"]);
                is_there.recv_timeout(crate::support::TIMEOUT).expect("an answer on its way");
            }
            _ => {}
        }
    }
    eventually("all to be sent", || {
        platform.texts("/sendMessage").len() >= 4 && channel(&daemon, "telegram")["outbox"] == 0
    });
    let texts = platform.texts("/sendMessage");
    for word in ["reload", "stop", "removed", "there-again"] {
        assert_eq!(texts.iter().filter(|text| text.contains(word)).count(), 1, "{word}: {texts:?}");
    }
    assert_eq!(channel(&daemon, "telegram")["unsent"], json!([]));
}

#[test]
fn strangers_are_let_in_by_a_code() {
    let platform = Platform::start();
    let daemon = start(&telegram(&platform, "pairing = \"code\""));
    platform.update(said(1, 42, "hello?"));
    platform.update(said(2, 42, "anybody?"));
    eventually("a code to be told", || !platform.texts("/sendMessage").is_empty());
    let told = platform.texts("/sendMessage").remove(0);
    let code = told.split_whitespace().next_back().unwrap().to_owned();
    assert!(told.contains("clawmux channel pair telegram"), "{told}");
    let (status, _, said_of_it) = daemon.run(&["channel", "pair", "telegram", "WRONGONE"]);
    assert!(status == 1 && said_of_it.contains("nobody was told this code"), "{said_of_it}");
    assert_eq!(
        daemon.stdout_of(&["channel", "pair", "telegram", &code]),
        "42 may write over telegram from now on\n"
    );
    platform.update(said(3, 42, "/tool echo {\"text\":\"inside\"}"));
    eventually("an answer", || platform.texts("/sendMessage").iter().any(|text| text.contains("inside")));
    assert_eq!(platform.texts("/sendMessage").len(), 2, "one code, one answer");
    let daemon = daemon.kill_and_restart();
    platform.update(said(4, 42, "/tool echo {\"text\":\"still inside\"}"));
    eventually("another answer", || {
        platform.texts("/sendMessage").iter().any(|text| text.contains("still inside"))
    });
    daemon.stdout_of(&["channel", "unpair", "telegram", "42"]);
    platform.update(said(5, 42, "/tool echo {\"text\":\"outside\"}"));
    eventually("to be shut out", || channel(&daemon, "telegram")["shut_out"].as_i64() > Some(0));
    assert!(!platform.texts("/sendMessage").iter().any(|text| text.contains("outside")));
}

const SECRET: &str = "a-webhook-secret";

/// A POST over plain HTTP: status and body.
fn post(address: SocketAddr, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nHost: hooks.example.com\r\nX-Forwarded-For: 203.0.113.9\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn hmac(secret: &str, signed: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn any_program_writes_by_a_signed_webhook() {
    let platform = Platform::start();
    let answers = format!("http://{}/answers", platform.address);
    let daemon = start(&format!(
        "[channels.ops]\nadapter = \"webhook\"\nsecret_env = \"HOOK\"\nallow = [\"*\"]\n\
         answer_url = \"{answers}\"\n\
         [[plugins]]\nname = \"webhook\"\ncapabilities = [\"http:{answers}\"]\n"
    ));
    let body = r#"{"content":"/tool echo {\"text\":\"by hook\"}","peer":"deploy","id":"e-1"}"#;
    let signed = format!("X-Signature-256: sha256={}\r\n", hmac(SECRET, body));
    for (path, headers, body, status, says) in [
        ("/webhook/ops", "", body, 401, "missing"),
        ("/webhook/ops", "X-Signature-256: sha256=00\r\n", body, 401, "not of this request"),
        ("/webhook/ops", signed.as_str(), "{}", 401, "not of this request"),
        ("/webhook/other", signed.as_str(), body, 404, "no such channel"),
        ("/webhook/", signed.as_str(), body, 404, "no such channel"),
    ] {
        let (got, said) = post(daemon.address, path, headers, body);
        assert!(got == status && said.contains(says), "{path} {headers}: {got} {said}");
    }
    assert_eq!(daemon.get("/webhook/ops").0, 405);
    for _ in 0..3 {
        // Delivered again, as platforms do that were not answered in time.
        assert_eq!(post(daemon.address, "/webhook/ops", &signed, body).0, 200);
    }
    eventually("an answer", || !platform.calls("/answers").is_empty());
    let answer = platform.calls("/answers").remove(0);
    assert!(answer["content"].as_str().unwrap().contains("by hook"), "{answer}");
    assert_eq!((&answer["peer"], &answer["in_reply_to"]), (&json!("deploy"), &json!("e-1")));
    let large = "x".repeat(1_100_000);
    let signed = format!("X-Signature-256: sha256={}\r\n", hmac(SECRET, &large));
    assert_eq!(post(daemon.address, "/webhook/ops", &signed, &large).0, 400);
    let odd = "no json";
    let signed = format!("X-Signature-256: sha256={}\r\n", hmac(SECRET, odd));
    assert_eq!(
        post(daemon.address, "/webhook/ops", &signed, odd).0,
        200,
        "it is kept, and then not understood"
    );
    eventually("it to be dropped", || channel(&daemon, "ops")["last_error"].is_string());
    assert_eq!(platform.calls("/answers").len(), 1);
}

#[test]
fn bodies_that_do_not_come_make_room_for_those_that_do() {
    let platform = Platform::start();
    let answers = format!("http://{}/answers", platform.address);
    let daemon = start(&format!(
        "[channels.ops]\nadapter = \"webhook\"\nsecret_env = \"HOOK\"\nallow = [\"*\"]\nanswer_url = \"{answers}\"\n\
         [channels.other]\nadapter = \"webhook\"\nsecret_env = \"HOOK\"\nallow = [\"*\"]\nanswer_url = \"{answers}\"\n\
         [[plugins]]\nname = \"webhook\"\ncapabilities = [\"http:{answers}\"]\n"
    ));
    let body = r#"{"content":"hi","peer":"a"}"#;
    let signed = format!("X-Signature-256: sha256={}\r\n", hmac(SECRET, body));
    assert_eq!(post(daemon.address, "/webhook/ops", &signed, body).0, 200);
    let slow: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(daemon.address).unwrap();
            let head = "POST /webhook/ops HTTP/1.1\r\nHost: x\r\nX-Signature-256: sha256=00\r\nContent-Length: 9\r\n\r\n{";
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    // The other channel has places of its own.
    assert_eq!(post(daemon.address, "/webhook/other", &signed, body).0, 200);
    eventually("a place", || post(daemon.address, "/webhook/ops", &signed, body).0 == 200);
    drop(slow);
}

#[test]
fn a_code_that_can_not_be_told_is_said_to_the_operator() {
    let daemon = start("[channels.ops]\nadapter = \"webhook\"\nsecret_env = \"HOOK\"\npairing = \"code\"\n");
    let body = r#"{"content":"hi","peer":"deploy"}"#;
    let signed = format!("X-Signature-256: sha256={}\r\n", hmac(SECRET, body));
    assert_eq!(post(daemon.address, "/webhook/ops", &signed, body).0, 200);
    eventually("a word", || channel(&daemon, "ops")["last_error"].is_string());
    let shown = daemon.stdout_of(&["channels", "ops"]);
    assert!(
        shown.contains("deploy wrote first and can't be told a code: ") && shown.contains("no answer_url"),
        "{shown}"
    );
}

#[test]
fn slack_events_are_checked_and_answered_in_their_thread() {
    let platform = Platform::start();
    let api = format!("http://{}", platform.address);
    let config = format!(
        "[channels.slack]\nsecret_env = \"HOOK\"\nallow = [\"U1\"]\n\
         [[plugins]]\nname = \"slack\"\nsettings = {{ api = \"{api}\" }}\ncapabilities = [\"http:{api}\", \"secret:slack@{api}\"]\n\
         [secrets.slack]\nvalue_env = \"TG\"\nprefix = \"Bearer \"\n"
    );
    let daemon = start(&config);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let send = |at: u64, body: &Value| {
        let body = body.to_string();
        let signature = hmac(SECRET, &format!("v0:{at}:{body}"));
        let headers = format!("X-Slack-Request-Timestamp: {at}\r\nX-Slack-Signature: v0={signature}\r\n");
        post(daemon.address, "/webhook/slack", &headers, &body)
    };
    let challenge = json!({ "type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P" });
    assert_eq!(send(now, &challenge), (200, challenge["challenge"].as_str().unwrap().to_owned()));
    let event = |kind: &str| {
        json!({ "type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": {
            "type": kind, "channel": "C1", "channel_type": "channel", "user": "U1", "ts": "1700.0001",
            "text": "<@UBOT> /tool echo {\"text\":\"a &amp; b\"}" } })
    };
    assert_eq!(send(now - 1000, &event("message")).0, 401, "an old one");
    // A mention comes twice.
    assert_eq!(send(now, &event("app_mention")).0, 200);
    assert_eq!(send(now, &event("message")).0, 200);
    eventually("an answer", || channel(&daemon, "slack")["sent"] == 1);
    let calls = platform.calls("/chat.postMessage");
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!((&calls[0]["channel"], &calls[0]["thread_ts"]), (&json!("C1"), &json!("1700.0001")));
    assert!(calls[0]["text"].as_str().unwrap().contains("a &amp; b"), "{calls:?}");
    let seen = platform.seen.lock().unwrap();
    assert!(
        seen.iter().all(|request| request.headers["authorization"] == format!("Bearer {TOKEN}")),
        "{seen:?}"
    );
}
