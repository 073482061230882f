//! What recorded conversations (`tests/fixtures/xeno`) can't show: that it holds for any input.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conversation::command::SessionCommand;
use crate::conversation::event::{Cause, Event, Logged, Outcome};
use crate::conversation::reply::{Aborted, SessionReply};
use crate::dialect::Action;
use crate::ids::{RunId, Seq, SessionKey};
use crate::provider::usage::Usage;
use crate::tools::call::{ToolCall, ToolResult};
use crate::tools::messenger::Sent;

struct Peer {
    dialect: Xeno,
    now: Timestamp,
    tickets: u64,
    /// Lines as they were sent.
    lines: Vec<String>,
    executed: Vec<(Ticket, Command)>,
}

impl Peer {
    fn new() -> Self {
        let (dialect, now) = (Xeno::new(DialectSetup::default()), Timestamp::from_millis(1000));
        Self { dialect, now, tickets: 0, lines: Vec::new(), executed: Vec::new() }
    }

    fn tell(&mut self, input: Input<'_>) {
        let mut actions = Vec::new();
        let mut random = || [7; 16];
        self.dialect.handle(input, &mut Turn::new(self.now, &mut actions, &mut self.tickets, &mut random));
        for action in actions {
            match action {
                Action::Send(Frame::Text(line)) => {
                    assert!(!line.contains('\n'), "a line has no end in it: {line}");
                    self.lines.push(line.to_string());
                }
                Action::Execute(ticket, request) => {
                    self.executed.push((ticket, request.command.expect("what is wrong was refused")));
                }
                Action::Introduce(_) => {}
                Action::Send(Frame::Binary(_)) | Action::Authenticate(_) | Action::Close { .. } => {
                    panic!("not its to do: {action:?}")
                }
            }
        }
    }

    fn line(&mut self, line: &str) {
        self.tell(Input::Frame(Frame::Text(line.into())));
    }

    /// What was sent since, read as JSON.
    fn sent(&mut self) -> Vec<Value> {
        self.lines.drain(..).map(|line| serde_json::from_str(&line).expect("every line is JSON")).collect()
    }

    fn query(&mut self, request: &str) -> Ticket {
        self.line(&query(request));
        self.executed.last().expect("it is executed").0
    }

    fn accept(&mut self, ticket: Ticket, ahead: usize) {
        let accepted = Accepted {
            session: key(),
            run: RunId::from("r"),
            seq: Seq(1),
            repeated: false,
            is_over: false,
            ahead,
        };
        self.tell(Input::Reply(ticket, Ok(Reply::Session(SessionReply::Accepted(accepted)))));
    }

    fn event(&mut self, ticket: Ticket, event: Event) {
        let (seq, run, at) = (Seq(2), Some(RunId::from("r")), self.now);
        let event = Published::new(key(), Logged { first_seq: seq, seq, run, at, event });
        self.tell(Input::Event { ticket, first: seq, event: &event });
    }

    fn later(&mut self, ms: u64) {
        self.now = Timestamp::from_millis(self.now.as_millis() + ms);
        if self.dialect.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.tell(Input::Tick);
        }
    }
}

fn key() -> SessionKey {
    SessionKey::new("main", "xeno", "default", "main").unwrap()
}

fn query(request: &str) -> String {
    let params = json!({ "requestId": request, "content": "hi", "context": { "type": "rpc" } });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "gateway.query", "params": params }).to_string()
}

fn ended(outcome: Outcome) -> Event {
    Event::Ended { outcome, usage: Usage::default() }
}

/// The methods of the notifications, with what they say in short.
fn told(sent: &[Value]) -> Vec<String> {
    sent.iter()
        .map(|line| {
            let method =
                line["method"].as_str().unwrap_or("answer").trim_start_matches("gateway.").to_owned();
            let params = &line["params"];
            match &*method {
                "stream" => format!("stream {} {}", params["isPartial"], params["content"]),
                "error" => format!("error {}", params["error"]),
                _ => method,
            }
        })
        .collect()
}

#[test]
fn ids_come_back_byte_for_byte() {
    let mut peer = Peer::new();
    for id in [
        "1",
        "-1.50e+02",
        r#""\u0061\/b""#,
        r#""\ud800""#,
        "12345678901234567890123456789",
        "true",
        "false",
        r#"{ "b" : 1, "a": [ ] }"#,
        "[1,  null]",
        r#""""#,
        "0",
    ] {
        peer.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#));
        let line = peer.lines.pop().expect("it is answered");
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"Method not found: x"}}}}"#
        );
        assert_eq!(line, expected);
        peer.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"gateway.abort"}}"#));
        let (ticket, _) = peer.executed.pop().expect("it is executed");
        peer.tell(Input::Reply(ticket, Ok(Reply::Session(SessionReply::Aborted(Aborted { run: None })))));
        assert_eq!(
            peer.lines.pop().unwrap(),
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"ok":true}}}}"#)
        );
    }
    assert!(peer.dialect.is_idle());
}

#[test]
fn what_wants_no_answer_is_neither_answered_nor_executed() {
    let mut peer = Peer::new();
    let abort = r#""method":"gateway.abort""#;
    for line in [
        "null",
        "true",
        "5",
        r#""gateway.abort""#,
        "[]",
        &format!(r#"[{{"jsonrpc":"2.0","id":1,{abort}}}]"#),
        "{}",
        &format!(r#"{{"jsonrpc":"2.0",{abort}}}"#),
        &format!(r#"{{"jsonrpc":"2.0","id":null,{abort}}}"#),
        &format!(r#"{{"jsonrpc":"2.0","id":1,"id":null,{abort}}}"#),
        &format!(r#"{{"jsonrpc":"1.0","id":1,{abort}}}"#),
        &format!(r#"{{"jsonrpc":2.0,"id":1,{abort}}}"#),
        &format!(r#"{{"id":1,{abort}}}"#),
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        peer.line(line);
        assert!(peer.lines.is_empty() && peer.executed.is_empty(), "{line}");
    }
    for line in ["", "{", "nul", "{}{}", "\u{feff}{}"] {
        peer.line(line);
        let expected =
            json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "Parse error" } });
        assert_eq!(peer.sent(), [expected], "{line}");
    }
}

#[test]
fn what_is_wrong_first_is_told() {
    let wrong = |params: Value| {
        let mut peer = Peer::new();
        peer.line(
            &json!({ "jsonrpc": "2.0", "id": "q", "method": "gateway.query", "params": params }).to_string(),
        );
        assert!(peer.executed.is_empty(), "{params}");
        let sent = peer.sent();
        assert_eq!((sent.len(), &sent[0]["error"]["code"]), (1, &json!(-32000)));
        sent[0]["error"]["message"].as_str().expect("it says why").to_owned()
    };
    let file = json!({ "type": "image", "path": "/x" });
    let whole =
        json!({ "attachments": [file], "requestId": "r", "content": "c", "context": { "type": "rpc" } });
    // Each is wrong in itself, and told although all after it are wrong too.
    let steps = [
        ("attachments", json!(null), "Invalid query attachments payload."),
        ("attachments", json!({}), "Invalid query attachments payload."),
        ("attachments", json!([file, null]), "Invalid query attachment."),
        ("attachments", json!([[]]), "Invalid query attachment."),
        ("attachments", json!([{ "path": "/x" }]), "Invalid query attachment payload."),
        ("attachments", json!([{ "type": "film", "path": "/x" }]), "Invalid query attachment payload."),
        ("attachments", json!([{ "type": "image" }]), "Invalid query attachment payload."),
        ("attachments", json!([{ "type": "image", "path": "" }, null]), "Invalid query attachment payload."),
        ("requestId", json!(""), "Invalid query requestId."),
        ("requestId", json!(5), "Invalid query requestId."),
        ("requestId", json!(null), "Invalid query requestId."),
        ("content", json!(" \n\t\u{feff}"), "Invalid query content."),
        ("content", json!(["x"]), "Invalid query content."),
        ("context", json!([]), "Invalid query context."),
        ("context", json!(null), "Invalid query context."),
        ("context", json!({}), "Invalid query context type."),
        ("context", json!({ "type": "RPC" }), "Invalid query context type."),
        ("context", json!({ "type": null }), "Invalid query context type."),
    ];
    for params in [json!(null), json!([]), json!("x"), json!(5)] {
        assert_eq!(wrong(params), "Invalid query params.");
    }
    let order = ["attachments", "requestId", "content", "context"];
    for (member, value, why) in steps {
        let mut params = whole.clone();
        params[member] = value;
        assert_eq!(wrong(params.clone()), why, "{params}");
        for later in order.iter().skip_while(|name| **name != member).skip(1) {
            params[*later] = json!(false);
        }
        assert_eq!(wrong(params.clone()), why, "{params}");
    }
    for member in ["requestId", "content", "context"] {
        let mut params = whole.clone();
        params.as_object_mut().unwrap().remove(member);
        assert_eq!(wrong(params), format!("Invalid query {member}."));
    }
}

#[test]
fn what_is_not_wrong_is_passed_on_and_what_is_beside_it_dropped() {
    let mut peer = Peer::new();
    let params = json!({
        "requestId": " ",
        "content": "  hi\n",
        "attachments": [{ "type": "voice", "path": "/a.ogg", "mimeType": 5, "fileName": [], "caption": {}, "size": "x" }],
        "context": { "type": "rpc", "channelId": 7, "userId": [], "metadata": 5 },
        "more": 1,
    });
    peer.line(&json!({ "jsonrpc": "2.0", "id": 1, "method": "gateway.query", "params": params }).to_string());
    let (_, Command::Session(SessionCommand::Submit(submit))) = peer.executed.pop().expect("it is executed")
    else {
        panic!()
    };
    assert_eq!((&*submit.content, submit.target, submit.follow), ("  hi\n", target(None), true));
    assert_eq!(submit.run_options.lane, Some(lane::xeno()));
    let [file] = &submit.local_files[..] else { panic!() };
    assert_eq!(
        (&*file.path, file.media_type(), &file.name, &file.caption),
        ("/a.ogg", "audio/ogg", &None, &None)
    );
    // Half a surrogate pair is no text, and no reason to refuse the rest.
    peer.line(r#"{"jsonrpc":"2.0","id":1,"method":"gateway.query","params":{"requestId":"\ud800","content":"a\udfffb","context":{"type":"rpc","channelId":"w"}}}"#);
    let (ticket, Command::Session(SessionCommand::Submit(submit))) =
        peer.executed.pop().expect("it is executed")
    else {
        panic!()
    };
    assert_eq!(submit.content, "a\u{fffd}\u{fffd}\u{fffd}b");
    assert_eq!(submit.target, target(Some("w".into())));
    peer.accept(ticket, 0);
    peer.event(ticket, ended(Outcome::Completed));
    assert!(peer.lines.last().unwrap().contains(r#""params":{"requestId":"\ud800"}"#), "as it came");
}

#[test]
fn text_is_told_as_a_whole_and_not_too_often() {
    let mut peer = Peer::new();
    let ticket = peer.query("q");
    peer.accept(ticket, 0);
    peer.event(ticket, Event::Started);
    peer.event(ticket, Event::Text("a".into()));
    peer.event(ticket, Event::Text("b".into()));
    peer.later(99);
    peer.event(ticket, Event::Text("c".into()));
    assert_eq!(told(&peer.sent()), ["answer", r#"stream true "a""#]);
    peer.later(1);
    assert_eq!(told(&peer.sent()), [r#"stream true "abc""#]);
    assert_eq!(peer.dialect.deadline(), None, "nothing is left to tell");
    peer.later(100);
    peer.event(ticket, Event::StepEnded { usage: Usage::default() });
    peer.event(ticket, Event::Text("d".into()));
    assert_eq!(told(&peer.sent()), [r#"stream true "abc\n\nd""#]);
    peer.event(ticket, Event::Restarted);
    peer.later(100);
    assert_eq!(told(&peer.sent()), [r#"stream true "abc""#], "what is void is told no more");
    peer.event(ticket, Event::Text("e".into()));
    peer.event(ticket, ended(Outcome::Completed));
    assert_eq!(told(&peer.sent()), ["stats", r#"stream false "abc\n\ne""#, "done"]);
}

#[test]
fn how_it_went_is_told_in_the_form_of_the_existing_server() {
    let mut peer = Peer::new();
    let ticket = peer.query("q");
    peer.accept(ticket, 2);
    assert_eq!(
        peer.sent()[1]["params"]["stats"],
        "Busy with another task. Your message is queued (2 ahead)."
    );
    peer.later(60_000);
    peer.event(ticket, Event::Started);
    peer.later(400);
    peer.event(ticket, Event::StepEnded { usage: Usage::default() });
    peer.later(1000);
    peer.event(
        ticket,
        Event::ToolReturned(ToolResult { call: "c".into(), content: "x".into(), is_error: false }),
    );
    peer.later(100);
    peer.event(ticket, Event::StepEnded { usage: Usage::default() });
    peer.later(20);
    peer.event(ticket, ended(Outcome::Completed));
    let stats = "result=success | turns=2 | cost=$0.000000 | duration=1.52s | api=0.50s | stop=end_turn";
    let sent = peer.sent();
    assert_eq!(sent[0]["params"]["stats"], stats);
    assert_eq!(sent[1]["params"], json!({ "requestId": "q", "content": "", "isPartial": false }));
}

#[test]
fn files_that_are_sent_back_are_on_the_last_stream_alone() {
    let mut peer = Peer::new();
    let ticket = peer.query("q");
    peer.accept(ticket, 0);
    let call = |id: &str, name: &str| {
        Event::ToolCalled(ToolCall { id: id.into(), name: name.into(), input: json!({}) })
    };
    let input = json!({ "text": "here", "attachments": [{ "type": "image", "path": "/a.png" }] });
    let message = crate::tools::messenger::Message::read(&input).unwrap();
    let content = Sent::new(message.text, &message.attachments).to_result();
    for (id, name, is_error) in
        [("1", "send_message", false), ("2", "echo", false), ("3", "send_message", true)]
    {
        peer.event(ticket, call(id, name));
        let result = ToolResult { call: id.into(), content: content.clone(), is_error };
        peer.event(ticket, Event::ToolReturned(result));
    }
    peer.later(100);
    peer.event(ticket, Event::Text("done".into()));
    peer.event(ticket, ended(Outcome::Completed));
    let sent = peer.sent();
    let (last, partial): (Vec<_>, Vec<_>) = sent
        .iter()
        .filter(|line| line["method"] == "gateway.stream")
        .map(|line| &line["params"])
        .partition(|params| params["isPartial"] == false);
    assert!(!partial.is_empty() && partial.iter().all(|params| params.get("attachments").is_none()));
    assert_eq!((last.len(), &last[0]["content"]), (1, &json!("here\n\ndone")));
    let expected = json!([{ "type": "image", "path": "/a.png", "mimeType": "image/png", "fileName": null }]);
    assert_eq!(last[0]["attachments"], expected);
}

#[test]
fn a_query_that_ends_badly_keeps_what_was_said() {
    for (outcome, why) in [
        (Outcome::Aborted(Cause::Asked), "The query was aborted."),
        (Outcome::Failed(ErrorCode::Provider.error("overloaded")), "overloaded"),
    ] {
        let mut peer = Peer::new();
        for text in ["", "half"] {
            let ticket = peer.query("q");
            peer.accept(ticket, 0);
            peer.sent();
            if !text.is_empty() {
                peer.event(ticket, Event::Text(text.into()));
                peer.sent();
            }
            peer.event(ticket, ended(outcome.clone()));
            let mut expected = vec![format!("error {why:?}"), "done".to_owned()];
            if !text.is_empty() {
                expected.insert(0, format!("stream false {text:?}"));
            }
            assert_eq!(told(&peer.sent()), expected);
        }
        assert!(peer.dialect.is_idle());
    }
}

#[test]
fn queries_in_flight_are_bounded() {
    let mut peer = Peer::new();
    for n in 0..IN_FLIGHT_MAX {
        let ticket = peer.query(&n.to_string());
        if n % 2 == 0 {
            peer.accept(ticket, 0);
        }
    }
    peer.sent();
    peer.line(&query("more"));
    assert_eq!(peer.executed.len(), IN_FLIGHT_MAX);
    assert!(peer.lines[0].contains("Too many queries in flight"), "{}", peer.lines[0]);
    let long = "x".repeat(wire::ID_BYTES_MAX);
    for (line, why) in [
        (format!(r#"{{"jsonrpc":"2.0","id":"{long}","method":"gateway.abort"}}"#), "Invalid id"),
        (query(&long), "Invalid query requestId."),
        (format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{long}"}}"#), "Method not found: xxx"),
    ] {
        peer.lines.clear();
        peer.line(&line);
        assert!(peer.lines[0].contains(why), "{why}");
    }
}

proptest! {
    #[test]
    fn no_line_panics(lines in prop::collection::vec(any::<String>(), 1..8)) {
        let mut peer = Peer::new();
        for line in &lines {
            peer.line(line);
        }
        peer.sent();
    }

    #[test]
    fn no_params_panic(
        method in "(query|abort|heartbeat|new_session|initialize)",
        member in "(requestId|content|context|attachments|type|path)",
        value in "(\"[a-zİ]{0,4}\"|-?[0-9]{1,22}|null|\\[\\]|\\[null\\]|\\[\\{\\}\\]|\\{\\}|true|\\{\"type\":\"rpc\"\\})",
    ) {
        let mut peer = Peer::new();
        peer.line(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"gateway.{method}","params":{{"requestId":"r","content":"c","context":{{"type":"rpc"}},"{member}":{value}}}}}"#
        ));
        prop_assert_eq!(peer.sent().len() + peer.executed.len(), 1);
    }

    /// Whatever happens, each request has one answer, and each accepted query one end, the last that is
    /// said of it.
    #[test]
    fn one_answer_and_one_end(steps in prop::collection::vec((0u8..7, any::<prop::sample::Index>(), 0u8..6), 1..120)) {
        let mut peer = Peer::new();
        let mut waiting: Vec<(Ticket, bool)> = Vec::new();
        let mut running: Vec<Ticket> = Vec::new();
        let (mut asked, mut name) = (0, 0);
        for (step, at, kind) in steps {
            match step {
                0 | 1 => {
                    asked += 1;
                    name += 1;
                    // Some names are used twice at once.
                    let ticket = peer.query(&format!("q{}", name / 2));
                    waiting.push((ticket, true));
                }
                2 => {
                    asked += 1;
                    peer.line(r#"{"jsonrpc":"2.0","id":1,"method":"gateway.heartbeat"}"#);
                    waiting.push((peer.executed.last().unwrap().0, false));
                }
                3 if !waiting.is_empty() => {
                    let (ticket, is_query) = waiting.swap_remove(at.index(waiting.len()));
                    if is_query && kind > 0 {
                        peer.accept(ticket, usize::from(kind) / 3);
                        running.push(ticket);
                    } else {
                        peer.tell(Input::Reply(ticket, Err(ErrorCode::Internal.error("no"))));
                    }
                }
                4 | 5 if !running.is_empty() => {
                    let at = at.index(running.len());
                    let ticket = running[at];
                    peer.event(ticket, match kind {
                        0 => Event::Started,
                        1 => Event::Text("xİ".into()),
                        2 => Event::Restarted,
                        3 => Event::StepEnded { usage: Usage::default() },
                        4 => ended(Outcome::Completed),
                        _ => ended(Outcome::Aborted(Cause::Asked)),
                    });
                    if kind >= 4 {
                        running.swap_remove(at);
                    }
                }
                _ => peer.later(u64::from(kind) * 30),
            }
            prop_assert_eq!(peer.dialect.is_idle(), waiting.is_empty() && running.is_empty());
        }
        peer.tell(Input::Fault(Fault::Draining));
        prop_assert!(peer.dialect.is_idle() && peer.dialect.deadline().is_none());
        let mut owed: HashMap<String, i32> = HashMap::new();
        let (mut answers, mut accepted, mut done) = (0, 0, 0);
        for line in peer.sent() {
            if line.get("id").is_some() {
                answers += 1;
                accepted += i32::from(line["result"]["accepted"] == true);
                continue;
            }
            let request = line["params"]["requestId"].as_str().unwrap().to_owned();
            if line["method"] == "gateway.done" {
                done += 1;
                *owed.entry(request).or_default() += 1;
            }
        }
        prop_assert_eq!((answers, done), (asked, accepted));
        prop_assert!(owed.values().all(|ends| *ends <= 2));
    }
}
