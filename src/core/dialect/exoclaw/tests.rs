//! What recorded conversations (`tests/fixtures/exoclaw`) can't show: that it holds for any input.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::auth::{Claim, Principal};
use crate::dialect::Action;
use crate::event::{Logged, ToolCall, ToolResult, Usage};
use crate::ids::CallId;
use crate::reply::Accepted;

struct Peer {
    dialect: Exoclaw,
    tickets: u64,
    sent: Vec<Value>,
    executed: Vec<(Ticket, Result<Command, Error>)>,
    closed: Option<u16>,
}

impl Peer {
    fn new(credentials_required: bool) -> Self {
        let setup = Setup {
            version: "9.9.9".into(),
            credentials_required,
            handshake_deadline: Timestamp::from_millis(100),
            subscriptions: 2,
            ..Setup::default()
        };
        let mut peer = Self {
            dialect: Exoclaw::new(setup),
            tickets: 0,
            sent: Vec::new(),
            executed: Vec::new(),
            closed: None,
        };
        peer.tell(Input::Opened);
        peer
    }

    fn open() -> Self {
        let mut peer = Self::new(false);
        peer.sent.clear();
        peer
    }

    fn tell(&mut self, input: Input<'_>) {
        let mut actions = Vec::new();
        let mut count = 0u8;
        let mut random = || {
            count += 1;
            [count; 16]
        };
        let mut turn = Turn::new(Timestamp::from_millis(5), &mut actions, &mut self.tickets, &mut random);
        self.dialect.handle(input, &mut turn);
        for action in actions {
            assert_eq!(self.closed, None, "nothing follows a close: {action:?}");
            match action {
                Action::Send(Frame::Text(text)) => {
                    self.sent.push(serde_json::from_str(&text).expect("every frame is JSON"));
                }
                Action::Send(Frame::Binary(_)) => panic!("exoclaw has no binary frames"),
                Action::Authenticate(Claim { credentials: Credentials::None, .. }) => {
                    self.tell(Input::Authenticated(Ok(Principal::local().into())));
                }
                Action::Authenticate(Claim {
                    credentials:
                        Credentials::Token(token) | Credentials::ApiKey(token) | Credentials::Jwt(token),
                    ..
                }) => {
                    let answer = if token.expose() == "right" {
                        Ok(Principal::local().into())
                    } else {
                        Err(ErrorCode::Unauthenticated.error("no"))
                    };
                    self.tell(Input::Authenticated(answer));
                }
                Action::Execute(ticket, request) => self.executed.push((ticket, request.command)),
                Action::Close { code, reason } => {
                    assert!(reason.len() <= 123);
                    self.closed = Some(code);
                }
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.tell(Input::Frame(Frame::Text(text.into())));
    }

    fn event(&mut self, ticket: Ticket, seq: u64, run: &RunId, event: Event) {
        let logged = Logged {
            first_seq: Seq(seq),
            seq: Seq(seq),
            run: Some(run.clone()),
            at: Timestamp::default(),
            event,
        };
        let event = Published::new(key(), logged);
        self.tell(Input::Event { ticket, first: Seq(seq), event: &event });
    }
}

fn key() -> SessionKey {
    SessionKey::new("main", "websocket", "u", "main").unwrap()
}

#[test]
fn ids_are_echoed_in_the_type_they_came_in() {
    let mut peer = Peer::open();
    for (given, echoed) in [
        (r#""a\u0062\"""#, r#""ab\"""#),
        ("7", "7"),
        ("-1.50", "-1.50"),
        ("null", "\"0\""),
        ("{}", "\"0\""),
        ("true", "\"0\""),
        (r#""\ud800""#, "\"0\""),
        ("\"\"", "\"\""),
    ] {
        peer.sent.clear();
        peer.text(&format!(r#"{{"id":{given},"method":"ping"}}"#));
        let expected: Value = serde_json::from_str(&format!(r#"{{"id":{echoed},"result":"pong"}}"#)).unwrap();
        assert_eq!(peer.sent, [expected], "id {given}");
    }
}

#[test]
fn an_event_is_encoded_once_for_all_connections() {
    let mut peers = [Peer::open(), Peer::open()];
    let run = RunId::from("r");
    for peer in &mut peers {
        peer.text(r#"{"id":"1","method":"chat.send","params":{"channel":"c","account":"a","content":"x"}}"#);
        let accepted = Accepted { session: key(), run: run.clone(), seq: Seq(1), repeated: false, ahead: 0 };
        peer.tell(Input::Reply(Ticket(1), Ok(Reply::Accepted(accepted))));
    }
    let logged = Logged {
        first_seq: Seq(2),
        seq: Seq(2),
        run: Some(run),
        at: Timestamp::default(),
        event: Event::Text("İİİİ\n\u{2028}\"".into()),
    };
    let event = Published::new(key(), logged);
    peers[0].tell(Input::Event { ticket: Ticket(1), first: Seq(2), event: &event });
    let before = event.wire(SLOT, |_| panic!("it was encoded")).as_ptr();
    peers[1].tell(Input::Event { ticket: Ticket(1), first: Seq(2), event: &event });
    assert_eq!(event.wire(SLOT, |_| panic!("it was encoded")).as_ptr(), before);
    assert_eq!(peers[0].sent, peers[1].sent);
    assert_eq!(peers[0].sent[0]["data"], "İİİİ\n\u{2028}\"");
}

#[test]
fn requests_in_flight_are_bounded() {
    let mut peer = Peer::open();
    for id in 0..=IN_FLIGHT_MAX {
        peer.text(&format!(r#"{{"id":{id},"method":"status"}}"#));
    }
    assert_eq!(peer.executed.len(), IN_FLIGHT_MAX);
    assert_eq!(peer.sent.len(), 1);
    assert_eq!(peer.sent[0]["id"], IN_FLIGHT_MAX);
    peer.text(r#"{"id":"p","method":"ping"}"#);
    assert_eq!(peer.sent[1]["result"], "pong", "a ping needs no place");
}

#[test]
fn what_a_client_wrote_is_cut_when_it_is_repeated() {
    let mut peer = Peer::open();
    peer.text(&format!(r#"{{"id":1,"method":"{}"}}"#, "İ".repeat(5000)));
    peer.text(&format!(r#"{{"id":"{}","method":"ping"}}"#, "İ".repeat(5000)));
    peer.text(&format!(r#"{{"id":2,"method":"chat.history","params":{{"limit":"{}"}}}}"#, "İ".repeat(5000)));
    for frame in &peer.sent {
        assert!(frame["error"].as_str().unwrap().len() < 300, "{frame}");
    }
    let refused = peer.executed.pop().unwrap().1.unwrap_err();
    assert!(refused.message.len() < 300, "{}", refused.message);
}

#[test]
fn a_token_is_never_shown() {
    let mut peer = Peer::new(true);
    peer.text(r#"{"token":"hunter2"}"#);
    assert!(!format!("{:?}", peer.dialect).contains("hunter2"));
    assert_eq!(peer.closed, Some(4001));
}

#[test]
fn the_deadline_holds_only_until_the_handshake() {
    let mut peer = Peer::new(true);
    assert_eq!(peer.dialect.deadline(), Some(Timestamp::from_millis(100)));
    peer.tell(Input::Tick);
    assert_eq!(peer.closed, None, "a tick before the deadline is nothing");
    peer.text(r#"{"token":"right"}"#);
    assert_eq!(peer.dialect.deadline(), None);
}

/// What may happen on a connection.
#[derive(Clone, Debug)]
enum Step {
    Ask { id: u8, method: usize },
    Reply { at: usize, fails: bool },
    Event { at: usize, kind: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..6, 0usize..6).prop_map(|(id, method)| Step::Ask { id, method }),
        (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(at, fails)| Step::Reply { at, fails }),
        (any::<usize>(), 0u8..6).prop_map(|(at, kind)| Step::Event { at, kind }),
    ];
    prop::collection::vec(step, 1..120)
}

const ASKS: [&str; 6] = [
    r#""method":"ping""#,
    r#""method":"status""#,
    r#""method":"nope""#,
    r#""method":"chat.send","params":{"channel":"c","account":"a","content":"x"}"#,
    r#""method":"chat.send","params":{"channel":"c","account":"a","content":"x","idempotency_key":"k"}"#,
    r#""method":"chat.abort","params":{"id":3}"#,
];

proptest! {
    #[test]
    fn no_text_panics_and_every_text_is_answered(texts in prop::collection::vec(any::<String>(), 1..8)) {
        let mut peer = Peer::open();
        for text in &texts {
            peer.text(text);
        }
        prop_assert_eq!(peer.sent.len() + peer.executed.len(), texts.len());
    }

    #[test]
    fn no_json_panics(
        id in "(\"[a-zİ]{0,3}\"|-?[0-9]{1,3}|null|\\[\\]|true)",
        method in "(\"chat\\.send\"|\"chat\\.abort\"|\"chat\\.history\"|\"plugin\\.load\"|\"budget\\.status\"|5|null)",
        key in "(channel|account|session|peer|content|limit|id|name|run|path|idempotency_key)",
        value in "(\"[a-zİ:%]{0,4}\"|-?[0-9]{1,22}|null|\\[\\]|\\{\\}|true)",
        authenticated in any::<bool>(),
    ) {
        let mut peer = if authenticated { Peer::open() } else { Peer::new(true) };
        peer.text(&format!(
            r#"{{"id":{id},"method":{method},"params":{{"channel":"c","account":"a","{key}":{value}}}}}"#
        ));
        prop_assert_eq!(peer.sent.len() + peer.executed.len(), 1);
        prop_assert_eq!(peer.closed.is_some(), !authenticated);
    }

    #[test]
    fn no_first_frame_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut peer = Peer::new(true);
        match std::str::from_utf8(&bytes) {
            Ok(text) => peer.text(text),
            Err(_) => peer.tell(Input::Frame(Frame::Binary(bytes.into()))),
        }
        prop_assert_eq!(peer.closed, Some(4001));
    }

    /// Each request gets exactly one final answer, and nothing comes after it.
    #[test]
    fn one_final_answer_per_request(steps in steps()) {
        let mut peer = Peer::open();
        let mut waiting: Vec<(Ticket, Option<RunId>)> = Vec::new();
        let mut running: Vec<(Ticket, RunId, u64)> = Vec::new();
        let mut asked: HashMap<String, u32> = HashMap::new();
        for step in steps {
            match step {
                Step::Ask { id, method } => {
                    *asked.entry(format!("{id}")).or_default() += 1;
                    peer.text(&format!(r#"{{"id":{id},{}}}"#, ASKS[method]));
                    for (ticket, command) in peer.executed.drain(..) {
                        let run = match command {
                            Ok(Command::Submit(submit)) => Some(RunId::new(format!("{}-{ticket:?}", submit.run))),
                            _ => None,
                        };
                        waiting.push((ticket, run));
                    }
                }
                Step::Reply { at, fails } if !waiting.is_empty() => {
                    let (ticket, run) = waiting.swap_remove(at % waiting.len());
                    let reply = match (fails, run) {
                        (true, _) => Err(ErrorCode::NotFound.error("no")),
                        (false, None) => Ok(Reply::Aborted { run: None }),
                        (false, Some(run)) => {
                            running.push((ticket, run.clone(), 1));
                            Ok(Reply::Accepted(Accepted { session: key(), run, seq: Seq(1), repeated: false, ahead: 0 }))
                        }
                    };
                    peer.tell(Input::Reply(ticket, reply));
                }
                Step::Event { at, kind } if !running.is_empty() => {
                    let at = at % running.len();
                    running[at].2 += 1;
                    let (ticket, run, seq) = running[at].clone();
                    let ended = |outcome| Event::Ended { outcome, usage: Usage::default() };
                    let event = match kind {
                        0 => Event::Started,
                        1 => Event::Text("x".into()),
                        2 => Event::ToolCalled(ToolCall { id: "c".into(), name: "echo".into(), input: Value::Null }),
                        3 => Event::ToolReturned(ToolResult { call: CallId::from("c"), content: "x".into(), is_error: true }),
                        4 => ended(Outcome::Failed(ErrorCode::BudgetExceeded.error("token budget exceeded"))),
                        _ => ended(Outcome::Aborted),
                    };
                    peer.event(ticket, seq, &run, event);
                    if kind >= 4 {
                        running.swap_remove(at);
                    }
                }
                Step::Reply { .. } | Step::Event { .. } => {}
            }
        }
        for (ticket, _) in waiting {
            peer.tell(Input::Reply(ticket, Err(ErrorCode::Unavailable.error("no"))));
        }
        for (ticket, run, seq) in running {
            peer.event(ticket, seq + 1, &run, Event::Ended { outcome: Outcome::Completed, usage: Usage::default() });
        }
        prop_assert!(peer.dialect.pending.is_empty() && peer.dialect.streams.is_empty());
        let mut finals: HashMap<String, u32> = HashMap::new();
        for frame in &peer.sent {
            let is_final = frame["event"] == "done" || frame.get("event").is_none();
            if is_final {
                *finals.entry(frame["id"].to_string()).or_default() += 1;
            }
            prop_assert!(frame.get("result").is_none() || frame.get("error").is_none());
        }
        prop_assert_eq!(finals, asked);
    }

    /// Whatever comes first, a connection that was closed says no more.
    #[test]
    fn nothing_after_a_close(wait in 0u64..3, frames in prop::collection::vec(any::<bool>(), 0..4)) {
        let mut peer = Peer::open();
        for _ in 0..wait {
            peer.text(r#"{"id":1,"method":"status"}"#);
        }
        peer.tell(Input::Fault(Fault::Draining));
        prop_assert_eq!(peer.closed, Some(1001));
        for binary in frames {
            let frame = if binary { Frame::Binary(Default::default()) } else { Frame::Text("{".into()) };
            peer.tell(Input::Frame(frame));
            peer.tell(Input::Reply(Ticket(1), Err(ErrorCode::Internal.error("x"))));
            peer.tell(Input::Fault(Fault::Slow));
            peer.tell(Input::Tick);
        }
    }
}
