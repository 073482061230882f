//! One session seen through two protocols, and through three, and OpenClaw clients that come back in the midst of an
//! answer, against the binary as it ships.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::openclaw::{call, connect};
use crate::support::wundr::Wundr;

/// The payload of the next `chat` event.
fn chat(client: &mut Client) -> Value {
    loop {
        let frame = client.receive();
        if frame["event"] == "chat" {
            return frame["payload"].clone();
        }
    }
}

fn text_of(message: &Value) -> String {
    message["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

/// What a run amounts to: for one who appends, for one who replaces, and as its end says.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    run: String,
    appended: String,
    replaced: String,
    last: String,
}

/// Listens to a run up to its end.
fn hear(client: &mut Client, mut heard: Heard) -> Heard {
    loop {
        let event = chat(client);
        heard.run = event["runId"].as_str().unwrap_or_default().to_owned();
        match event["state"].as_str() {
            Some("delta") => {
                heard.appended += event["message"]["delta"].as_str().unwrap_or_default();
                heard.replaced = text_of(&event["message"]);
            }
            Some("final") => {
                heard.last = text_of(&event["message"]);
                return heard;
            }
            _ => panic!("{event}"),
        }
    }
}

#[test]
fn two_protocols_on_one_session_see_the_same_text() {
    let (daemon, mut exoclaw) = Daemon::start().and(Client::connect);
    let first = exoclaw.chat("ada", "hello there").text();
    let key = "agent:main:websocket:ada:main";
    for protocol in [3, 4] {
        let mut openclaw = connect(daemon.address, protocol);
        let history = call(&mut openclaw, "chat.history", json!({ "sessionKey": key }));
        assert_eq!(text_of(&history["messages"][1]), first, "{history}");

        // Asked there, heard here.
        let said = exoclaw.chat("ada", "/slow 2").text();
        let heard = hear(&mut openclaw, Heard::default());
        let trimmed = said.trim().to_owned();
        assert_eq!((&heard.appended, &heard.replaced, &heard.last), (&said, &said, &trimmed));

        // Asked here, heard there.
        let attach = exoclaw.request("session.attach", json!({ "session": "main:websocket:ada:main" }));
        let head = exoclaw.reply(&attach);
        assert!(head["result"]["seq"].as_u64().is_some(), "{head}");
        let name = format!("k{protocol}");
        let send = json!({ "sessionKey": key, "message": "and you?", "idempotencyKey": name });
        assert_eq!(call(&mut openclaw, "chat.send", send)["status"], "started");
        let heard = hear(&mut openclaw, Heard::default());
        assert_eq!(heard.run, name);
        let mut text = String::new();
        loop {
            let frame = exoclaw.receive();
            match frame["event"].as_str() {
                Some("text") => text += frame["data"].as_str().unwrap_or_default(),
                Some("done") => break,
                _ => {}
            }
        }
        assert_eq!(text, heard.appended);
        exoclaw.call("session.detach", json!({ "id": attach }));
    }
}

#[test]
fn who_comes_back_in_the_midst_of_an_answer_is_told_the_rest() {
    let mut daemon = Daemon::start();
    for (protocol, is_killed) in [(3, false), (4, false), (4, true)] {
        let mut client = connect(daemon.address, protocol);
        let name = format!("k{protocol}{is_killed}");
        let send = json!({ "sessionKey": "main", "message": "/slow 4", "idempotencyKey": name });
        call(&mut client, "chat.send", send);
        chat(&mut client);
        let seen = chat(&mut client);
        assert_eq!(seen["state"], "delta", "{seen}");
        let known = text_of(&seen["message"]);
        drop(client);
        if is_killed {
            daemon = daemon.kill_and_restart();
        }

        let mut client = connect(daemon.address, protocol);
        let after = json!({ "sessionKey": "main", "afterSeq": seen["seq"] });
        let history = call(&mut client, "chat.history", after);
        let under_way = &history["inFlightRun"];
        assert_eq!((&under_way["runId"], &under_way["seq"]), (&json!(name), &seen["seq"]), "{history}");
        // Of what was shown last, a kill may take some: it is void, and said anew.
        let kept = under_way["text"].as_str().unwrap_or_else(|| panic!("{history}"));
        assert!(if is_killed { known.starts_with(kept) } else { known == kept }, "{known}: {history}");
        let known = kept.to_owned();
        let heard = hear(&mut client, Heard { appended: known.clone(), ..Heard::default() });
        assert_eq!((heard.run.as_str(), heard.last.as_str()), (name.as_str(), "Slowly: 1 2 3 4 done."));
        assert_eq!(heard.replaced.trim(), heard.last, "{heard:?}");
        if is_killed {
            let marked = format!("{known}\n\n[restarted]\n\n{}", heard.replaced);
            assert_eq!(heard.appended, marked, "{heard:?}");
        } else {
            assert_eq!(heard.appended, heard.replaced, "{heard:?}");
        }
    }
}

#[test]
fn a_third_protocol_hears_and_says_the_same() {
    let (daemon, mut exoclaw) = Daemon::start().and(Client::connect);
    exoclaw.chat("ada", "hello there");
    let mut openclaw = connect(daemon.address, 4);
    let key = "agent:main:websocket:ada:main";
    call(&mut openclaw, "chat.history", json!({ "sessionKey": key }));
    let mut wundr = Wundr::connect(daemon.address);
    let list = wundr.call("session.list", json!({}));
    let id = list["sessions"][0]["id"].as_str().unwrap_or_else(|| panic!("{list}")).to_owned();
    wundr.call("session.resume", json!({ "sessionId": id }));

    // Asked in exoclaw, heard in both others.
    let said = exoclaw.chat("ada", "/slow 2").text();
    let start = wundr.event("stream.start");
    let prompt = start["payload"]["promptId"].as_str().unwrap_or_default().to_owned();
    let (heard, end) = wundr.answer_of(&prompt);
    assert_eq!((heard, &end["event"]), (said.clone(), &json!("stream.end")));
    assert_eq!(hear(&mut openclaw, Heard::default()).appended, said);

    // Asked in Wundr, heard in both others.
    let attach = exoclaw.request("session.attach", json!({ "session": "main:websocket:ada:main" }));
    exoclaw.reply(&attach);
    let submitted = wundr.call("prompt.submit", json!({ "sessionId": id, "prompt": "and you?" }));
    let prompt = submitted["promptId"].as_str().unwrap_or_default().to_owned();
    let (said, _) = wundr.answer_of(&prompt);
    assert!(said.contains("and you?"), "{said}");
    let heard = hear(&mut openclaw, Heard::default());
    assert_eq!((heard.run, heard.appended), (prompt, said.clone()));
    let mut text = String::new();
    loop {
        let frame = exoclaw.receive();
        match frame["event"].as_str() {
            Some("text") => text += frame["data"].as_str().unwrap_or_default(),
            Some("done") => break,
            _ => {}
        }
    }
    assert_eq!(text, said);
}
