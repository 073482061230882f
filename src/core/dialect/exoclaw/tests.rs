//! What recorded conversations (`tests/fixtures/exoclaw`) can't show: that it holds for any input.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::access::Claim;
use crate::conversation::approval::{Decided, Decision};
use crate::conversation::command::SessionCommand;
use crate::conversation::event::{Cause, Logged};
use crate::conversation::reply::{Aborted, Accepted, Attached, SessionReply};
use crate::dialect::Action;
use crate::ids::{CallId, Owner};
use crate::principal::Principal;
use crate::provider::usage::Usage;
use crate::tools::call::{ToolCall, ToolResult};

struct Peer {
    dialect: Exoclaw,
    tickets: u64,
    sent: Vec<Value>,
    executed: Vec<(Ticket, Result<Command, Error>)>,
    closed: Option<u16>,
}

impl Peer {
    fn new(credentials_required: bool) -> Self {
        let setup = DialectSetup {
            version: "9.9.9".into(),
            credentials_required,
            handshake_deadline: Timestamp::from_millis(100),
            subscriptions: 2,
            ..DialectSetup::default()
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
                Action::Introduce(_) => {}
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
fn what_is_refused_since_too_much_is_in_flight_lets_go_of_nothing() {
    let mut peer = Peer::open();
    let route = r#"{"channel":"websocket","account":"u"}"#;
    peer.text(&format!(r#"{{"id":"a","method":"session.attach","params":{route}}}"#));
    let attached = Attached {
        session: key(),
        after: Seq(0),
        head: Seq(0),
        under_way: None,
        queued: Vec::new(),
        model: None,
    };
    let ticket = peer.executed[0].0;
    peer.tell(Input::Reply(ticket, Ok(Reply::Session(SessionReply::Attached(attached)))));
    for at in 0..IN_FLIGHT_MAX {
        peer.text(&format!(r#"{{"id":{at},"method":"session.list"}}"#));
    }
    assert_eq!(peer.executed.len(), 1 + IN_FLIGHT_MAX);
    peer.sent.clear();
    peer.text(r#"{"id":"d","method":"session.detach","params":{"id":"a"}}"#);
    assert!(peer.sent[0]["error"].as_str().unwrap().starts_with("too many requests in flight"));
    assert_eq!(peer.executed.len(), 1 + IN_FLIGHT_MAX);
    peer.event(ticket, 1, &"r".into(), Event::Text("still told".into()));
    assert_eq!(peer.sent[1]["data"], "still told");
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
        let accepted = Accepted {
            session: key(),
            run: run.clone(),
            seq: Seq(1),
            repeated: false,
            is_over: false,
            ahead: 0,
        };
        peer.tell(Input::Reply(Ticket(1), Ok(Reply::Session(SessionReply::Accepted(accepted)))));
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

#[test]
fn a_prompt_that_is_not_followed_leaves_nothing_behind() {
    let mut peer = Peer::open();
    peer.text(
        r#"{"id":"1","method":"chat.send","params":{"channel":"c","account":"a","content":"x","idempotency_key":"k","follow":false}}"#,
    );
    let Some((ticket, Ok(Command::Session(SessionCommand::Submit(submit))))) = peer.executed.pop() else {
        panic!("a prompt")
    };
    assert!(!submit.follow, "its events are not asked for");
    let run = submit.run;
    let accepted = Accepted { session: key(), run, seq: Seq(1), repeated: false, is_over: false, ahead: 0 };
    peer.tell(Input::Reply(ticket, Ok(Reply::Session(SessionReply::Accepted(accepted)))));
    assert_eq!(peer.sent[0]["event"], "accepted");
    assert!(peer.dialect.is_idle() && !peer.dialect.knows(ticket));
}

/// An event of a session: which run it is of, and what.
#[derive(Clone, Debug)]
enum Happened {
    Prompted,
    Thought(usize),
    Text(usize),
    Decided(usize),
    Ended(usize),
    Cleared,
}

fn happened() -> impl Strategy<Value = Happened> {
    prop_oneof![
        Just(Happened::Prompted),
        (0usize..4).prop_map(Happened::Thought),
        (0usize..4).prop_map(Happened::Text),
        (0usize..4).prop_map(Happened::Decided),
        (0usize..4).prop_map(Happened::Ended),
        Just(Happened::Cleared),
    ]
}

/// The log of a session in which these happened: of runs that are there, as far as they are. The runs of
/// `open` are under way as it begins.
fn log_of(happened: &[Happened], mut open: Vec<RunId>) -> Vec<Logged> {
    let (mut seq, mut log) = (0, Vec::new());
    for (number, what) in happened.iter().enumerate() {
        let picked = |at: &usize| (!open.is_empty()).then(|| open[at % open.len()].clone());
        let (run, event) = match what {
            Happened::Prompted => {
                open.push(RunId::new(format!("new-{number}")));
                (open.last().cloned(), Event::prompted("x", Owner::Admins, None))
            }
            Happened::Thought(at) => (picked(at), Event::Thought("x".into())),
            Happened::Text(at) => (picked(at), Event::Text("x".into())),
            Happened::Decided(at) => {
                let decided =
                    Decided { call: "c".into(), tool: "rm".into(), decision: Decision::TimedOut, by: None };
                (picked(at), Event::ApprovalDecided(decided))
            }
            Happened::Ended(at) => {
                let run = picked(at);
                open.retain(|open| Some(open) != run.as_ref());
                (run, Event::Ended { outcome: Outcome::Completed, usage: Usage::default() })
            }
            Happened::Cleared => (None, Event::Cleared(crate::conversation::event::Forgotten::Past)),
        };
        if run.is_none() && !matches!(event, Event::Cleared(_)) {
            continue;
        }
        let first_seq = Seq(seq + 1);
        seq += event.numbers();
        log.push(Logged { first_seq, seq: Seq(seq), run, at: Timestamp::default(), event });
    }
    log
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
        method in "(\"chat\\.(send|abort|history)\"|\"session\\.attach\"|\"approval\\.(list|deny|approve)\"|\"model\\.list\"|\"plugin\\.load\"|\"budget\\.status\"|5|null)",
        key in "(channel|account|session|peer|content|limit|id|name|run|path|idempotency_key|turns|thoughts|after_seq|model|attachments|follow|input|reason)",
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

    /// Whatever happened: each frame begins where the one before ended; of a run that began before nothing
    /// is told of the past, and of every other its beginning; and all of what is not the past.
    #[test]
    fn an_attach_from_a_turn_on_tells_whole_runs_without_a_hole(
        past in prop::collection::vec(happened(), 0..24),
        next in prop::collection::vec(happened(), 0..12),
        thoughts in any::<bool>(),
    ) {
        let before = RunId::from("before");
        // Nothing that began before is still under way: the store sees to that.
        let mut past = log_of(&past, vec![before.clone()]);
        let ended = |log: &[Logged], run: &RunId| {
            log.iter().any(|logged| logged.run.as_ref() == Some(run) && matches!(logged.event, Event::Ended { .. }))
        };
        if !ended(&past, &before) {
            past.retain(|logged| logged.run.as_ref() != Some(&before));
            let mut seq = 0;
            for logged in &mut past {
                logged.first_seq = Seq(seq + 1);
                seq += logged.event.numbers();
                logged.seq = Seq(seq);
            }
        }
        let head = past.last().map_or(Seq(0), |logged| logged.seq);
        let begun: Vec<RunId> = past
            .iter()
            .filter(|logged| matches!(logged.event, Event::Prompted { .. }))
            .filter_map(|logged| logged.run.clone())
            .collect();
        let open: Vec<RunId> = begun.iter().filter(|run| !ended(&past, run)).cloned().collect();
        let mut all = past;
        all.extend(log_of(&next, open).into_iter().map(|logged| Logged {
            first_seq: Seq(logged.first_seq.0 + head.0),
            seq: Seq(logged.seq.0 + head.0),
            run: logged.run.map(|run| if begun.contains(&run) { run } else { RunId::new(format!("{run}-later")) }),
            ..logged
        }));

        let mut peer = Peer::open();
        peer.text(&format!(
            r#"{{"id":"s","method":"session.attach","params":{{"session":"{}","turns":3,"thoughts":{thoughts}}}}}"#,
            key()
        ));
        let (ticket, _) = peer.executed.pop().unwrap();
        let attached = Reply::Session(SessionReply::Attached(Attached {
            session: key(), after: Seq(0), head, under_way: None, queued: Vec::new(), model: None,
        }));
        peer.tell(Input::Reply(ticket, Ok(attached)));
        for logged in &all {
            let event = Published::new(key(), logged.clone());
            peer.tell(Input::Event { ticket, first: logged.first_seq, event: &event });
        }
        let frames = &peer.sent[1..];
        let mut last = 0;
        for frame in frames {
            let seq = frame["seq"].as_u64().unwrap();
            prop_assert_eq!(frame["first_seq"].as_u64().unwrap_or(seq), last + 1, "{}", frame);
            prop_assert!(frame["run"] != "before" || seq > head.0, "{}", frame);
            prop_assert!(thoughts || frame["event"] != "thought");
            last = seq;
        }
        let told = |name: &str| frames.iter().filter(|frame| frame["event"] == name).count();
        let are = |is: fn(&Event) -> bool| {
            all.iter().filter(|l| l.run.as_ref() != Some(&before) && is(&l.event)).count()
        };
        prop_assert_eq!(told("prompt"), are(|event| matches!(event, Event::Prompted { .. })));
        prop_assert_eq!(told("text"), are(|event| matches!(event, Event::Text(_))));
        prop_assert_eq!(told("approval"), are(|event| matches!(event, Event::ApprovalDecided(_))));
        prop_assert_eq!(told("done"), are(|event| matches!(event, Event::Ended { .. })));
        prop_assert_eq!(told("clear"), are(|event| matches!(event, Event::Cleared(_))));
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
                            Ok(Command::Session(SessionCommand::Submit(submit))) => Some(RunId::new(format!("{}-{ticket:?}", submit.run))),
                            _ => None,
                        };
                        waiting.push((ticket, run));
                    }
                }
                Step::Reply { at, fails } if !waiting.is_empty() => {
                    let (ticket, run) = waiting.swap_remove(at % waiting.len());
                    let reply = match (fails, run) {
                        (true, _) => Err(ErrorCode::NotFound.error("no")),
                        (false, None) => Ok(Reply::Session(SessionReply::Aborted(Aborted { run: None }))),
                        (false, Some(run)) => {
                            running.push((ticket, run.clone(), 1));
                            Ok(Reply::Session(SessionReply::Accepted(Accepted { session: key(), run, seq: Seq(1), repeated: false, is_over: false, ahead: 0 })))
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
                        _ => ended(Outcome::Aborted(Cause::Asked)),
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
