//! However a run reaches a connection, it is told once and whole: real dialects, real followers and a
//! real conversation, with requests, replies, events, reads of the log, cuts and restarts in any order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::OpenClaw;
use crate::conversation::approval::Toolbox;
use crate::conversation::command::{
    Attach, Detach, FollowRun, ReadTranscript, SessionCommand, Unwatch, Watch,
};
use crate::conversation::event::{Event, Logged, Published};
use crate::conversation::follow::{Followers, Missing, Sent, Sink, Wanted};
use crate::conversation::reply::{
    Accepted, Attached, Detached, LastRun, SessionList, SessionReply, SessionRow, SessionState, Unwatched,
    Watching,
};
use crate::conversation::session::{Batch, Limits, Recovery, Session, Submission};
use crate::conversation::transcript::{STEP_JOINT, Transcript};
use crate::conversation::turn::Work;
use crate::conversation::window::Window;
use crate::daemon::command::{DaemonCommand, DaemonReply, GetOverview};
use crate::dialect::{Action, Dialect, DialectSetup, Frame, Input, Turn};
use crate::error::{Error, ErrorCode};
use crate::ids::{ConnectionId, Owner, Seq, SessionKey, Ticket};
use crate::principal::Principal;
use crate::prompt::settings::Settings;
use crate::provider::{Delta, Stop};
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::time::Timestamp;
use crate::tools::call::{ToolCall, ToolResult};

const PEERS: usize = 3;

/// What is on its way to a connection.
enum Delivery {
    Reply(Ticket, Result<Reply, Error>),
    Event(Ticket, Seq, Arc<Published>),
}

/// The way to one connection.
#[derive(Default)]
struct Lane {
    under_way: VecDeque<Delivery>,
    is_full: bool,
}

#[derive(Clone, Default)]
struct Way(Rc<RefCell<Lane>>);

impl Sink for Way {
    fn send(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>) -> Sent {
        let mut lane = self.0.borrow_mut();
        if lane.is_full {
            return Sent::Full;
        }
        lane.under_way.push_back(Delivery::Event(ticket, first, event.clone()));
        Sent::Taken
    }

    fn lag(&mut self) {
        panic!("nothing falls so far behind in here");
    }

    fn is_open(&self) -> bool {
        true
    }

    fn has_room(&mut self) -> bool {
        !self.0.borrow().is_full
    }
}

/// What a client made of the events of one run.
#[derive(Debug, Default)]
struct View {
    /// As those have it that append.
    appended: String,
    ends: usize,
}

/// A connection, from the client's side.
struct Peer {
    id: ConnectionId,
    dialect: OpenClaw,
    tickets: u64,
    way: Way,
    commands: VecDeque<(Ticket, Command)>,
    runs: HashMap<String, View>,
    /// The runs that it asked for and that were not over then.
    asked: Vec<String>,
    has_named: bool,
    requests: u64,
}

struct World {
    now: u64,
    connections: u64,
    ids: u64,
    pieces: u64,
    session: Session,
    reserved: Seq,
    log: Vec<Logged>,
    published: Seq,
    /// What is being written, whether the store has it, and who is answered then.
    writing: Option<(Batch, bool, Vec<Answer>)>,
    next: Vec<Answer>,
    followers: Followers<Way>,
    watchers: Vec<(ConnectionId, Ticket)>,
    reads: VecDeque<(Missing, Seq)>,
    peers: Vec<Peer>,
}

struct Answer {
    peer: ConnectionId,
    ticket: Ticket,
    reply: Reply,
    follow: Option<(Wanted, Seq)>,
}

fn key() -> SessionKey {
    SessionKey::parse("main:openclaw:main:main").unwrap()
}

fn limits() -> Limits {
    Limits { queue: 9, episodic_turns: 9, context_tokens: 100_000 }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: 1000,
            connections: 0,
            ids: 0,
            pieces: 0,
            session: Session::new(key(), limits()),
            reserved: Seq(0),
            log: Vec::new(),
            published: Seq(0),
            writing: None,
            next: Vec::new(),
            followers: Followers::default(),
            watchers: Vec::new(),
            reads: VecDeque::new(),
            peers: Vec::new(),
        };
        for at in 0..PEERS {
            let peer = world.fresh();
            world.peers.push(peer);
            world.greet(at);
        }
        world
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn fresh(&mut self) -> Peer {
        self.connections += 1;
        Peer {
            id: ConnectionId(self.connections),
            dialect: OpenClaw::new(DialectSetup {
                subscriptions: 4,
                handshake_deadline: Timestamp::from_millis(u64::MAX),
                tick_interval: std::time::Duration::from_secs(1_000_000),
                ..DialectSetup::default()
            }),
            tickets: 0,
            way: Way::default(),
            commands: VecDeque::new(),
            runs: HashMap::new(),
            asked: Vec::new(),
            has_named: false,
            requests: 0,
        }
    }

    /// Comes, or is cut off and comes again.
    fn greet(&mut self, at: usize) {
        let peer = self.fresh();
        let before = std::mem::replace(&mut self.peers[at], peer);
        self.followers.forget(before.id);
        self.watchers.retain(|(id, _)| *id != before.id);
        self.reads.retain(|(missing, _)| missing.connection != before.id);
        self.next.retain(|answer| answer.peer != before.id);
        if let Some((_, _, answers)) = &mut self.writing {
            answers.retain(|answer| answer.peer != before.id);
        }
        self.tell(at, Input::Opened);
        let connect = json!({ "type": "req", "id": "c", "method": "connect", "params": {
            "minProtocol": 4, "maxProtocol": 4, "client": { "id": "test" }, "scopes": ["operator.admin"],
        }});
        self.tell(at, Input::Frame(Frame::Text(connect.to_string().into())));
        self.tell(at, Input::Authenticated(Ok(Principal::local().into())));
        // How the daemon is, and then the watch.
        self.deliver(at);
        self.receive(at);
    }

    fn tell(&mut self, at: usize, input: Input<'_>) {
        let now = self.now();
        let mut actions = Vec::new();
        let ids = &mut self.ids;
        let mut random = || {
            *ids += 1;
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&ids.to_be_bytes());
            bytes
        };
        let peer = &mut self.peers[at];
        peer.dialect.handle(input, &mut Turn::new(now, &mut actions, &mut peer.tickets, &mut random));
        for action in actions {
            match action {
                Action::Send(Frame::Text(text)) => self.hear(at, &serde_json::from_str(&text).unwrap()),
                Action::Execute(ticket, request) => {
                    self.peers[at].commands.push_back((ticket, request.command.unwrap()));
                }
                Action::Authenticate(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The client is told this.
    fn hear(&mut self, at: usize, frame: &Value) {
        let payload = &frame["payload"];
        if frame["type"] == "res" {
            assert_eq!(frame["ok"], true, "{frame}");
            if let Some(run) = payload["runId"].as_str().filter(|_| payload["status"] != "ok") {
                self.peers[at].asked.push(run.to_owned());
            }
            let known = &payload["inFlightRun"];
            if let (Some(run), Some(text)) = (known["runId"].as_str(), known["text"].as_str()) {
                let view = self.peers[at].runs.entry(run.to_owned()).or_default();
                if view.appended.is_empty() {
                    text.clone_into(&mut view.appended);
                }
            }
            return;
        }
        if frame["event"] != "chat" {
            return;
        }
        let run = payload["runId"].as_str().unwrap().to_owned();
        let seq = Seq(payload["seq"].as_u64().unwrap());
        let whole = self.text(&run, seq);
        let is_restarted = self.log.iter().any(|logged| logged.event == Event::Restarted);
        let view = self.peers[at].runs.entry(run.clone()).or_default();
        assert_eq!(view.ends, 0, "nothing follows the end: {frame}");
        if payload["state"] == "delta" {
            let delta = payload["deltaText"].as_str().unwrap();
            if payload["replace"] == true {
                view.appended.clear();
            }
            view.appended.push_str(delta);
            if let Some(text) = payload["message"]["content"][0]["text"].as_str() {
                assert_eq!(text, whole, "it is what the run had said: {frame}");
                assert_eq!(view.appended, whole, "also for those that append: {frame}");
            }
        } else {
            // An answer without a word is none, unless tools were called.
            let is_empty = payload["state"] == "error" && whole.is_empty();
            assert!(is_empty || payload["state"] == "final", "{frame}");
            assert_eq!(payload["message"]["content"][0]["text"].as_str().unwrap_or_default(), whole.trim());
            // What a restart made void stays with those that append where nothing came in its place.
            let is_void = is_restarted && view.appended.starts_with(&whole);
            assert!(
                is_void || view.appended == whole,
                "all of it was told before the end: {view:?}, {whole:?}"
            );
            view.ends += 1;
        }
    }

    /// What a run had said up to a number.
    fn text(&self, name: &str, up_to: Seq) -> String {
        let of = self.log.iter().find_map(|logged| match &logged.event {
            Event::Prompted { idempotency_key: Some(key), .. } if key == name => logged.run.clone(),
            _ => None,
        });
        let (mut text, mut step_at, mut is_new) = (String::new(), 0, false);
        for logged in self.log.iter().filter(|logged| logged.run == of && logged.seq <= up_to) {
            match &logged.event {
                Event::Text(piece) => {
                    if std::mem::take(&mut is_new) && !text.is_empty() {
                        text.push_str(STEP_JOINT);
                    }
                    text.push_str(piece);
                }
                Event::StepEnded { .. } => (step_at, is_new) = (text.len(), true),
                Event::Restarted => {
                    text.truncate(step_at);
                    is_new = true;
                }
                _ => {}
            }
        }
        text
    }

    fn ask(&mut self, at: usize, method: &str, params: Value) {
        let peer = &mut self.peers[at];
        peer.has_named = true;
        peer.requests += 1;
        let id = format!("r{}", peer.requests);
        let request = json!({ "type": "req", "id": id, "method": method, "params": params });
        self.tell(at, Input::Frame(Frame::Text(request.to_string().into())));
    }

    /// Carries out the oldest command of a connection.
    fn deliver(&mut self, at: usize) {
        let Some((ticket, command)) = self.peers[at].commands.pop_front() else { return };
        let peer = self.peers[at].id;
        let now = self.now();
        let answer = |reply, follow| Answer { peer, ticket, reply, follow };
        match command {
            Command::Daemon(DaemonCommand::GetOverview(GetOverview)) => {
                self.reply(at, ticket, Ok(Reply::Daemon(DaemonReply::Overview(Arc::default()))))
            }
            Command::Session(SessionCommand::Watch(Watch)) => {
                self.reply(at, ticket, Ok(Reply::Session(SessionReply::Watching(Watching))));
                self.watchers.push((peer, ticket));
            }
            Command::Session(SessionCommand::Unwatch(Unwatch { .. })) => {
                self.watchers.retain(|(id, _)| *id != peer);
                self.reply(at, ticket, Ok(Reply::Session(SessionReply::Unwatched(Unwatched))));
            }
            Command::Session(SessionCommand::ListSessions(filter)) => {
                let is_asked = filter.state == Some(SessionState::Running);
                let rows: Vec<_> = self.row().into_iter().filter(|_| is_asked).collect();
                self.reply(
                    at,
                    ticket,
                    Ok(Reply::Session(SessionReply::SessionList(SessionList {
                        total: rows.len() as u64,
                        rows,
                    }))),
                );
            }
            Command::Session(SessionCommand::ReadTranscript(ReadTranscript { at: up_to, .. })) => {
                let head = self.log.last().map_or(Seq(0), |logged| logged.seq);
                let up_to = up_to.unwrap_or(head).min(head);
                let events = self.log.iter().filter(|logged| logged.seq <= up_to).cloned().collect();
                let as_of = Session::restore(
                    key(),
                    limits(),
                    up_to,
                    up_to,
                    Settings::default(),
                    Window::default(),
                    events,
                );
                let (under_way, queued) = (as_of.under_way(), as_of.waiting().collect());
                let read = Transcript { head, under_way, queued, ..Transcript::default() };
                self.reply(at, ticket, Ok(Reply::Session(SessionReply::Transcript(Box::new(read)))));
            }
            Command::Session(SessionCommand::Submit(submit)) => {
                let submission = Submission {
                    run: submit.run,
                    content: submit.content,
                    owner: Owner::Admins,
                    idempotency_key: submit.idempotency_key,
                    attachments: Vec::new(),
                    run_options: submit.run_options,
                };
                let submitted = self.session.submit(now, submission).unwrap();
                let is_over = !self.session.is_open(&submitted.run);
                let (run, seq, repeated) = (submitted.run, submitted.seq, submitted.repeated);
                let follow = Some((Wanted::Run(run.clone()), Seq(seq.0 - 1)));
                let accepted = Accepted { session: key(), run, seq, repeated, is_over, ahead: 0 };
                self.next.push(answer(Reply::Session(SessionReply::Accepted(accepted)), follow));
            }
            Command::Session(SessionCommand::FollowRun(FollowRun { run: name })) => {
                let found = self.log.iter().find_map(|logged| match &logged.event {
                    Event::Prompted { idempotency_key, .. } => {
                        let run = logged.run.clone().unwrap();
                        let is_meant = run == name || idempotency_key.as_deref() == Some(name.as_str());
                        is_meant.then_some((run, logged.seq))
                    }
                    _ => None,
                });
                let Some((run, seq)) = found else {
                    return self.reply(at, ticket, Err(ErrorCode::NotFound.error("no such run")));
                };
                let is_over = !self.session.is_open(&run);
                let follow = Some((Wanted::Run(run.clone()), Seq(seq.0 - 1)));
                let accepted = Accepted { session: key(), run, seq, repeated: true, is_over, ahead: 0 };
                self.next.push(answer(Reply::Session(SessionReply::Accepted(accepted)), follow));
            }
            Command::Session(SessionCommand::Attach(Attach { after, .. })) => {
                let head = self.session.head();
                let (under_way, queued) = match after {
                    None => (self.session.under_way().map(Box::new), self.session.waiting().collect()),
                    Some(_) => (None, Vec::new()),
                };
                let after = after.unwrap_or(head);
                assert!(after <= head);
                let attached = Reply::Session(SessionReply::Attached(Attached {
                    session: key(),
                    after,
                    head,
                    under_way,
                    queued,
                    model: None,
                }));
                self.next.push(answer(attached, Some((Wanted::Session, after))));
            }
            Command::Session(SessionCommand::Detach(Detach { follow, .. })) => {
                let found = self.followers.unfollow(peer, follow);
                self.next.push(answer(Reply::Session(SessionReply::Detached(Detached { found })), None));
            }
            other => panic!("{other:?}"),
        }
        self.proceed();
    }

    fn row(&self) -> Option<SessionRow> {
        let started = |logged: &&Logged| logged.event == Event::Started;
        let run = self.log.iter().rev().find(started)?.run.clone();
        let is_over = |logged: &Logged| logged.run == run && matches!(logged.event, Event::Ended { .. });
        let ended = self.log.iter().any(is_over).then(|| self.now());
        let name = self.log.iter().find_map(|logged| match &logged.event {
            Event::Prompted { idempotency_key: Some(key), .. } if logged.run == run => Some(key.as_str()),
            _ => None,
        });
        Some(SessionRow {
            session: key(),
            session_id: "s".into(),
            owner: Owner::Admins,
            settings: Settings::default(),
            state: SessionState::Running,
            answered: 0,
            model: None,
            created: self.now(),
            updated: self.now(),
            running: Vec::new(),
            last_run: Some(LastRun { run: name?.into(), started: self.now(), ended, is_aborted: false }),
            usage: Default::default(),
            cost: Default::default(),
            head: self.published,
            title: None,
            last_message: None,
        })
    }

    fn reply(&mut self, at: usize, ticket: Ticket, reply: Result<Reply, Error>) {
        self.peers[at].way.0.borrow_mut().under_way.push_back(Delivery::Reply(ticket, reply));
    }

    fn proceed(&mut self) {
        if self.writing.is_none() {
            let answers = std::mem::take(&mut self.next);
            match self.session.take() {
                Some(batch) => {
                    self.reserved = batch.reserve.unwrap_or(self.reserved);
                    self.writing = Some((batch, false, answers));
                }
                None => self.answer(answers),
            }
        }
        if self.writing.is_none() && !self.session.is_new() {
            self.let_watch(self.published);
        }
        let missing = self.followers.missing(self.published, self.published);
        self.reads.extend(missing.into_iter().map(|missing| (missing, self.published)));
    }

    fn answer(&mut self, answers: Vec<Answer>) {
        for Answer { peer, ticket, reply, follow } in answers {
            let Some(at) = self.peers.iter().position(|known| known.id == peer) else { continue };
            self.reply(at, ticket, Ok(reply));
            if let Some(follow) = follow {
                let way = self.peers[at].way.clone();
                let who = (peer, ticket);
                self.followers.follow(who, follow, self.published, || way);
            }
        }
    }

    fn let_watch(&mut self, after: Seq) {
        let all = &self.watchers;
        self.followers.keep_watching(|id, ticket| all.contains(&(id, ticket)));
        for (id, ticket) in self.watchers.clone() {
            if !self.followers.has(id, ticket)
                && let Some(peer) = self.peers.iter().find(|peer| peer.id == id)
            {
                let (way, who) = (peer.way.clone(), (id, ticket));
                let wanted = (Wanted::Watch, after);
                self.followers.follow(who, wanted, self.published, || way);
            }
        }
    }

    /// A step of the writing: in the store, then seen.
    fn write(&mut self) {
        match self.writing.take() {
            Some((batch, false, answers)) => {
                self.log.extend(batch.events.iter().cloned());
                self.writing = Some((batch, true, answers));
            }
            Some((batch, true, answers)) => {
                self.answer(answers);
                self.let_watch(Seq(batch.events[0].first_seq.0 - 1));
                for logged in batch.events {
                    self.published = logged.seq;
                    self.followers.publish(&key(), &logged, usize::MAX);
                }
                self.proceed();
            }
            None => {}
        }
    }

    /// Ends the oldest read: so many events, with text that follows each other in one.
    fn end_read(&mut self, most: usize) {
        let Some((missing, as_of)) = self.reads.pop_front() else { return };
        let mut events: Vec<Logged> = Vec::new();
        for logged in self.log.iter().filter(|logged| logged.seq > missing.after) {
            if missing.run.is_some() && logged.run != missing.run {
                continue;
            }
            let is_full = events.len() == most;
            match (events.last_mut(), &logged.event) {
                (Some(Logged { seq, run, event: Event::Text(text), .. }), Event::Text(more))
                    if *run == logged.run && seq.next() == logged.first_seq =>
                {
                    text.push_str(more);
                    *seq = logged.seq;
                }
                _ if is_full => break,
                _ => events.push(logged.clone()),
            }
        }
        let is_all = as_of == self.published && events.last().is_none_or(|last| last.seq >= as_of);
        self.followers.caught(&key(), &missing, events, is_all);
        self.proceed();
    }

    /// The model says something, asks for a tool, gets its result or comes to an end.
    fn work(&mut self, what: u8) {
        let Some((run, work)) = self.session.work() else { return };
        let run = run.clone();
        let now = self.now();
        match work {
            Work::Ask { step } => {
                self.pieces += 1;
                let tools = Toolbox { offered: vec!["t".into()], ..Toolbox::default() };
                let call =
                    ToolCall { id: format!("c{}", self.pieces).into(), name: "t".into(), input: json!({}) };
                let said = match what {
                    0 => vec![Delta::Finished { stop: Stop::End, usage: None }],
                    1 => vec![Delta::ToolCall(call), Delta::Finished { stop: Stop::ToolUse, usage: None }],
                    _ => vec![Delta::Text(format!("{} ", self.pieces))],
                };
                self.session.said(now, &run, step, said, &tools);
            }
            Work::Act { calls, .. } => {
                for call in calls {
                    let result = ToolResult { call: call.id, content: "r".into(), is_error: false };
                    self.session.returned(now, &run, result);
                }
            }
        }
        self.proceed();
    }

    /// The session falls, and is read back from its log.
    fn restart(&mut self) {
        if self.writing.is_some() || !self.next.is_empty() || self.log.is_empty() {
            return;
        }
        let (head, reserved) = (self.published, self.reserved);
        let settings = Settings::default();
        let events = self.log.clone();
        self.session = Session::restore(key(), limits(), head, reserved, settings, Window::default(), events);
        self.session.recover(self.now(), Recovery::Resume, |_| true);
        self.reads.clear();
        self.followers.fall_behind();
        self.proceed();
    }

    fn receive(&mut self, at: usize) {
        let delivery = self.peers[at].way.0.borrow_mut().under_way.pop_front();
        match delivery {
            Some(Delivery::Reply(ticket, reply)) => self.tell(at, Input::Reply(ticket, reply)),
            Some(Delivery::Event(ticket, first, event)) => {
                self.tell(at, Input::Event { ticket, first, event: &event });
            }
            None => {}
        }
    }

    fn choke(&mut self, at: usize, is_full: bool) {
        self.peers[at].way.0.borrow_mut().is_full = is_full;
        if !is_full {
            self.followers.room(self.peers[at].id);
            self.proceed();
        }
    }

    fn tick(&mut self, millis: u64) {
        self.now += millis;
        for at in 0..PEERS {
            if self.peers[at].dialect.deadline().is_some_and(|deadline| deadline <= self.now()) {
                self.tell(at, Input::Tick);
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Cut(at) => self.greet(at),
            Step::Send(at, run) => {
                let asked =
                    json!({ "sessionKey": "main", "message": "hi", "idempotencyKey": format!("k{run}") });
                self.ask(at, "chat.send", asked);
            }
            // A page reads the history first of all.
            Step::History(at) if self.peers[at].has_named => {}
            Step::History(at) => self.ask(at, "chat.history", json!({ "sessionKey": "main" })),
            Step::Deliver(at) => self.deliver(at),
            Step::Receive(at) => self.receive(at),
            Step::Work(what) => self.work(what),
            Step::Write => self.write(),
            Step::EndRead(most) => self.end_read(most),
            Step::Restart => self.restart(),
            Step::Choke(at, is_full) => self.choke(at, is_full),
            Step::Tick(millis) => self.tick(millis),
        }
    }

    /// Everything comes to its end, and was told as it should.
    fn settle(mut self) {
        for at in 0..PEERS {
            self.choke(at, false);
        }
        for round in 0..400 {
            for at in 0..PEERS {
                self.deliver(at);
                self.receive(at);
                self.receive(at);
            }
            self.write();
            self.end_read(3);
            self.tick(40);
            // Who looks around has looked by then.
            if round > 40 {
                self.work(if round % 3 == 0 { 0 } else { 2 });
            }
        }
        assert!(self.session.is_idle() && self.writing.is_none());
        for peer in &self.peers {
            for (run, View { appended, ends }) in &peer.runs {
                assert_eq!(*ends, 1, "{run} ended once, of which {appended:?} was told");
            }
            for run in &peer.asked {
                assert!(peer.runs.contains_key(run), "{run} was asked for");
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Cut(usize),
    Send(usize, u8),
    History(usize),
    Deliver(usize),
    Receive(usize),
    Work(u8),
    Write,
    EndRead(usize),
    Restart,
    Choke(usize, bool),
    Tick(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let peer = || 0..PEERS;
    prop_oneof![
        1 => peer().prop_map(Step::Cut),
        2 => (peer(), 0..2u8).prop_map(|(at, run)| Step::Send(at, run)),
        1 => peer().prop_map(Step::History),
        8 => peer().prop_map(Step::Deliver),
        12 => peer().prop_map(Step::Receive),
        8 => (0..8u8).prop_map(Step::Work),
        8 => Just(Step::Write),
        4 => (1..4usize).prop_map(Step::EndRead),
        1 => Just(Step::Restart),
        2 => (peer(), any::<bool>()).prop_map(|(at, is_full)| Step::Choke(at, is_full)),
        3 => (1..200u64).prop_map(Step::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_run_is_told_once_and_whole_however_it_comes(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}

/// A prompt that is sent again over a new connection while its run is under way: with the new
/// connection, its requests, their replies and every read of the log at every place among what is said.
#[test]
fn a_prompt_that_is_sent_again_after_a_cut_is_told_whole_wherever_the_cut_is() {
    const SAID: usize = 5;
    for (cut, sent) in (0..SAID).flat_map(|cut| (cut..SAID).map(move |sent| (cut, sent))) {
        for (attached, submitted) in (sent..=SAID).flat_map(|a| (a..=SAID).map(move |s| (a, s))) {
            for (read, most, restarted) in (submitted..=SAID)
                .flat_map(|read| (1..3).map(move |most| (read, most)))
                .flat_map(|(read, most)| [None, Some(cut), Some(read)].map(|at| (read, most, at)))
            {
                let mut world = World::new();
                world.step(Step::Send(0, 0));
                (0..4).for_each(|_| world.deliver(0));
                for at in 0..=SAID {
                    if at == cut {
                        world.step(Step::Cut(0));
                    }
                    if at == sent {
                        world.step(Step::Send(0, 0));
                        // The watch it begins with, and that ends with its first request.
                        (0..2).for_each(|_| world.deliver(0));
                    }
                    if at == attached {
                        world.deliver(0);
                    }
                    if at == submitted {
                        (0..2).for_each(|_| world.deliver(0));
                    }
                    if at >= read {
                        (0..3).for_each(|_| world.end_read(most));
                    }
                    if restarted == Some(at) {
                        (0..2).for_each(|_| world.write());
                        world.restart();
                    }
                    world.step(Step::Work(2));
                    (0..2).for_each(|_| world.write());
                    if at % 2 == 0 {
                        (0..9).for_each(|_| world.receive(0));
                        world.tick(160);
                    }
                }
                world.settle();
            }
        }
    }
}
