//! Records of a cluster's log, applied by several stores: whatever is in them, all come to the same end.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "support/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use clawmux_actors::store::{Backup, Position, ReadPosition, Replay, Replayed, Stop, Store};
use clawmux_core::access::token;
use clawmux_core::agents::registry;
use clawmux_core::channel::change::{ChannelChange, Saying, SendState, Words};
use clawmux_core::cluster::stamp::{RecordId, Stamp, Token};
use clawmux_core::conversation::event::{Cause, Compacted, Event, Forgotten, Logged, Outcome, Streamed};
use clawmux_core::conversation::log::segment::Segment;
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::conversation::outbox::{ChannelAnswer, ToSay};
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::memory::file::{FileAbout, FileChange, FileId, FileRow, UploadId};
use clawmux_core::memory::{Embedding, Fact, Kind, MemoryRecord, Source, Tier};
use clawmux_core::prompt::answer_to::AnswerTo;
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::Settings;
use clawmux_core::provider::price::Money;
use clawmux_core::provider::usage::Usage;
use clawmux_core::replica::{Appended, Record, Write, digest};
use clawmux_core::schedule::job::{Firing, FiringState, Job, JobWrite, Task};
use clawmux_core::schedule::{Misfire, Plan, Schedule};
use clawmux_core::scope::Scopes;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::audit::{CallRecord, CallUsage, digest as of_bytes};
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::plugin::PluginNamespace;
use futures::future::join_all;
use proptest::prelude::*;
use tables::assert_same;
use tempfile::TempDir;

/// Chance, from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// One of so many.
    fn of(&mut self, sides: u64) -> u64 {
        self.roll() % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.of(sides) == 0
    }
}

/// A session as the histories know it.
#[derive(Clone, Debug, Default)]
struct Session {
    head: u64,
    /// The run that goes on, and whether a step of it streams.
    run: Option<RunId>,
}

/// Makes a history that a cluster might have, and now and then one that none should.
struct Author {
    dice: Dice,
    sessions: Vec<Session>,
    names: u64,
    clock: u64,
}

fn key(nth: usize) -> SessionKey {
    let key = SessionKey::new("main", "test", &nth.to_string(), "main").unwrap();
    if nth.is_multiple_of(2) { key } else { key.in_space(&owner(1)) }
}

fn owner(nth: u64) -> Owner {
    if nth == 0 { Owner::Admins } else { Owner::Credential(format!("owner{nth}").into()) }
}

impl Author {
    fn new(seed: u64) -> Self {
        Self { dice: Dice(seed), sessions: vec![Session::default(); 4], names: 0, clock: 1_700_000_000_000 }
    }

    fn name(&mut self, of: &str) -> String {
        // Some names come again.
        if self.dice.one_in(8) {
            return format!("{of}-{}", self.dice.of(self.names.max(1)));
        }
        self.names += 1;
        format!("{of}-{}", self.names)
    }

    fn now(&mut self) -> Timestamp {
        self.clock += self.dice.of(20_000_000);
        Timestamp::from_millis(self.clock)
    }

    fn words(&mut self) -> String {
        let words = ["tea", "İstanbul", "a\nline", "🎈", "x".repeat(90).leak(), ""];
        words[self.dice.of(words.len() as u64) as usize].to_owned()
    }

    /// The next record, and its subject.
    fn record(&mut self) -> (String, Record) {
        let session = self.dice.of(4) as usize;
        let write = match self.dice.of(40) {
            0..24 => self.conversation(session),
            24 => Write::Delete {
                session: key(session),
                unused_since: self.dice.one_in(3).then(|| Timestamp::from_millis(self.clock - 5)),
            },
            25..28 => self.memory(session),
            28 => Write::Jobs(self.jobs(session)),
            29 => Write::Agents(self.agents(session)),
            30 => Write::Tokens(self.tokens()),
            31 => Write::File(self.file()),
            32 | 33 => self.channel(),
            34 => Write::PluginValue {
                namespace: PluginNamespace {
                    owner: owner(self.dice.of(2)),
                    agent: "main".into(),
                    name: self.dice.of(2).to_string(),
                },
                key: self.dice.of(5).to_string(),
                value: (!self.dice.one_in(3)).then(|| format!("{:?}", self.words())),
            },
            35 => Write::BeginCall { call: self.dice.of(5), reserved: self.usage(session) },
            36 => {
                let records = (0..self.dice.of(3)).map(|_| self.usage(session)).collect();
                Write::RecordUsage { call: self.dice.of(5), records }
            }
            37 => Write::RecordCall(self.call(session)),
            38 => Write::SpendOnLearning { at: self.now(), tokens: self.dice.of(9) as i64 - 3 },
            _ => Write::TakeOver(key(session)),
        };
        if matches!(write, Write::Delete { unused_since: None, .. }) && self.sessions[session].run.is_none() {
            self.sessions[session] = Session::default();
        }
        let subject = match &write {
            Write::Append(_) | Write::Delete { .. } | Write::TakeOver(_) => format!("log.s.{session}"),
            _ => format!("log.t.{}", self.dice.of(3)),
        };
        let token = if self.dice.one_in(30) { 0 } else { 1 + self.clock / 1_000_000_000 };
        (subject, Record { stamp: Stamp { token: Token(token), record: RecordId(self.dice.roll()) }, write })
    }

    fn conversation(&mut self, session: usize) -> Write {
        let mut known = self.sessions[session].clone();
        let (mut events, mut settled) = (Vec::new(), Vec::new());
        for _ in 0..=self.dice.of(3) {
            let at = self.now();
            // Numbers that clients may have seen, and of which nothing is left.
            let skipped = if self.dice.one_in(5) { self.dice.of(7) } else { 0 };
            let (first_seq, mut seq) = (Seq(known.head + 1), Seq(known.head + 1 + skipped));
            let event = match (&known.run, self.dice.of(10)) {
                (None, 0) => Event::Cleared(Forgotten::Conversation),
                (None, 1) => Event::Cleared(Forgotten::UpTo(Seq(known.head / 2))),
                (_, 2) => {
                    Event::Configured(Box::new(Settings { label: Some(self.words()), ..Settings::default() }))
                }
                (None, 3) => Event::Injected { content: self.words() },
                (None, 4) if known.head > 0 => {
                    let (summary, kept_from) = (self.words(), Seq(known.head));
                    Event::Compacted(compacted(summary, kept_from))
                }
                (None, _) => self.prompt(),
                (Some(_), 0) => Event::Started,
                (Some(_), 1) => Event::Recalled { notes: self.words() },
                (Some(_), 3) => Event::ToolCalled(call_of(&self.name("call"))),
                (Some(_), 4) => Event::ToolReturned(returned(&self.name("call"))),
                (Some(run), what) => {
                    let run = run.clone();
                    let (text, last) = self.text(first_seq, at);
                    seq = Seq(last + 1 + skipped);
                    if settled.iter().all(|(of, _)| *of != run) && !text.is_empty() {
                        settled.push((run, text));
                    }
                    match what {
                        5 | 6 => Event::StepEnded { usage: Usage::new(1, 2) },
                        7 => Event::Restarted,
                        8 => {
                            Event::Ended { outcome: Outcome::Aborted(Cause::Asked), usage: Usage::default() }
                        }
                        _ => Event::Ended { outcome: Outcome::Completed, usage: Usage::new(1, 2) },
                    }
                }
            };
            let run = match &event {
                Event::Prompted { .. } => {
                    known.run = Some(RunId::from(self.name("run")));
                    known.run.clone()
                }
                Event::Injected { .. } => Some(RunId::from(self.name("run"))),
                Event::Cleared(_) | Event::Compacted(_) | Event::Configured(_) => None,
                _ => known.run.clone(),
            };
            if matches!(event, Event::Ended { .. }) {
                known.run = None;
            }
            known.head = seq.0;
            // The text has the numbers before the event.
            let first_seq = if event.settles() { Seq(seq.0 - skipped) } else { first_seq };
            events.push(Logged { first_seq, seq, run, at, event });
        }
        // What is written twice, or by one who did not know what others wrote.
        if !self.dice.one_in(12) {
            self.sessions[session] = known;
        }
        let to_say = (0..self.dice.of(2)).map(|_| self.saying()).collect();
        let reserve = self.dice.one_in(3).then(|| Seq(self.sessions[session].head + 8));
        Write::Append(Appended { session: key(session), settled, events: events.into(), reserve, to_say })
    }

    fn prompt(&mut self) -> Event {
        let attachments = (0..self.dice.of(3))
            .map(|nth| {
                let data = Bytes::from(vec![b'a'; 1 + nth as usize * 700]);
                Attachment::new(Some("a.txt"), Some("text/plain"), data).unwrap()
            })
            .collect();
        Event::Prompted {
            content: self.words(),
            owner: owner(self.dice.of(2)),
            idempotency_key: self.dice.one_in(2).then(|| self.name("key")),
            attachments,
            run_options: RunOptions::default(),
        }
    }

    /// What a step says, and the last number of that.
    fn text(&mut self, from: Seq, at: Timestamp) -> (Vec<Segment>, u64) {
        let (mut segments, mut last) = (Vec::<Segment>::new(), from.0 - 1);
        for _ in 0..self.dice.of(4) {
            // Between two pieces there may be numbers of other events.
            last += 1 + self.dice.of(2);
            let of = if self.dice.one_in(3) { Streamed::Thought } else { Streamed::Text };
            let words = self.words();
            if !segments.last_mut().is_some_and(|segment| segment.push(of, Seq(last), at, &words)) {
                segments.push(Segment::new(of, Seq(last), at, &words));
            }
        }
        (segments, last)
    }

    fn saying(&mut self) -> ToSay {
        let to = AnswerTo { channel: "bus:a".into(), conversation: "c".into(), address: "{}".into() };
        ToSay { to, answer: ChannelAnswer::said(&self.name("answer"), self.words()) }
    }

    fn memory(&mut self, session: usize) -> Write {
        match self.dice.of(8) {
            0 => Write::Forget {
                id: format!("memory-{}", self.dice.of(20)),
                owner: Some(owner(self.dice.of(2))),
            },
            1 if self.dice.one_in(4) => Write::ForgetAll(owner(self.dice.of(2))),
            2 => {
                let vector = Embedding::new(&[1.0, self.dice.of(9) as f64]).unwrap();
                let vectors = vec![(self.dice.of(9) as i64, Some(vector)), (self.dice.of(9) as i64, None)];
                Write::KeepVectors { model: "up/m".into(), vectors }
            }
            3 => Write::Learn((0..2).map(|_| self.entry(session)).collect()),
            4 => Write::Import((0..2).map(|_| self.entry(session)).collect()),
            _ => Write::Remember { memory: Box::new(self.entry(session)), by_operator: self.dice.one_in(2) },
        }
    }

    fn entry(&mut self, session: usize) -> MemoryRecord {
        let fact = self.dice.one_in(2).then(|| {
            let object = ["Rome", "Oslo"][self.dice.of(2) as usize];
            Fact::new("user", ["lives_in", "likes"][self.dice.of(2) as usize], object, 90).unwrap()
        });
        let at = self.now();
        let of_session = self.dice.one_in(2);
        let owner = if of_session { key(session).owner() } else { owner(self.dice.of(2)) };
        MemoryRecord {
            id: self.name("memory"),
            owner,
            tier: if of_session { Tier::Scratchpad } else { Tier::Semantic },
            kind: Kind::Knowledge,
            content: format!("about {}", self.words()),
            metadata: None,
            session: of_session.then(|| key(session)),
            embedding: self.dice.one_in(3).then(|| Embedding::new(&[0.3, 0.1]).unwrap()),
            fact,
            source: Source::default(),
            created: at,
            superseded: None,
        }
    }

    fn jobs(&mut self, session: usize) -> Vec<JobWrite> {
        let at = self.now();
        let id = self.dice.of(3).to_string();
        let firing = |state: FiringState, ended: bool, scheduled: u64| {
            Box::new(Firing {
                job: id.as_str().into(),
                scheduled: Timestamp::from_millis(scheduled),
                is_manual: false,
                begun: at,
                ended: ended.then_some(at),
                state,
                missed: 0,
                run: None,
                text: None,
                usage: Usage::new(3, 4),
            })
        };
        let scheduled = self.dice.of(4);
        match self.dice.of(5) {
            0 | 1 => vec![
                JobWrite::Put(Box::new(Job {
                    id: id.as_str().into(),
                    name: self.words(),
                    description: None,
                    owner: owner(self.dice.of(2)),
                    is_enabled: true,
                    schedule: Schedule::new(&Plan::At(at), at, "UTC").unwrap(),
                    task: Task {
                        session: key(session),
                        prompt: self.words(),
                        run_options: RunOptions::default(),
                        result_to: None,
                    },
                    misfire: Misfire::Once,
                    is_deleted_after: false,
                    note: None,
                    created: at,
                    updated: at,
                    settled: at,
                })),
                JobWrite::Enter(firing(FiringState::Running, false, scheduled)),
            ],
            2 => vec![JobWrite::Enter(firing(FiringState::Running, false, scheduled))],
            3 => vec![JobWrite::Settle(firing(FiringState::Done, true, scheduled))],
            _ => vec![JobWrite::Remove(id.as_str().into())],
        }
    }

    fn agents(&mut self, session: usize) -> Vec<registry::Change> {
        use registry::{Change, Note};
        let id = self.dice.of(3).to_string();
        match self.dice.of(3) {
            0 => {
                vec![Change::Note(Note { id, session: key(session), owner: owner(0), content: self.words() })]
            }
            1 => vec![Change::ForgetNote(id)],
            _ => vec![Change::Said {
                team: id.as_str().into(),
                number: self.dice.of(3) as usize,
                place: 1,
                text: self.words(),
            }],
        }
    }

    fn tokens(&mut self) -> Vec<token::Change> {
        let (id, at) = (self.dice.of(4).to_string(), self.now());
        if self.dice.one_in(4) {
            return vec![token::Change::Forget(id.into())];
        }
        vec![token::Change::Put(token::Token {
            id: id.into(),
            name: "ci".into(),
            kind: token::Kind::Jwt,
            sha256: None,
            scopes: Scopes::USER,
            created: at,
            since: at,
            expires: None,
            revoked: self.dice.one_in(2).then_some(at),
            used: None,
            origin: None,
        })]
    }

    fn file(&mut self) -> FileChange {
        let (byte, at) = (self.dice.of(4) as u8, self.now());
        let row = FileRow {
            id: FileId::from_bytes([byte; 16]),
            upload: UploadId::from_bytes([byte; 16]),
            owner: owner(self.dice.of(2)),
            about: FileAbout { name: Some(self.words()), ..FileAbout::default() },
            size: self.dice.of(100),
            is_complete: self.dice.one_in(2),
            created: at,
            updated: at,
        };
        match self.dice.of(4) {
            0 => FileChange::Remove(row.id),
            1 => FileChange::Put(row),
            _ => FileChange::Begin(row),
        }
    }

    fn channel(&mut self) -> Write {
        let id = self.dice.of(6) as i64;
        let change = match self.dice.of(10) {
            0 => ChannelChange::Receive(self.words()),
            1 => ChannelChange::Parsed(
                id,
                vec![(Some(self.name("message")), self.words()), (None, self.words())],
            ),
            2 => ChannelChange::Taken(id),
            3 => ChannelChange::Sent(id),
            4 => ChannelChange::Send(id, SendState::Failed(self.words())),
            5 => {
                let words = Words::Answer(self.words());
                ChannelChange::SayOnce(
                    self.name("said"),
                    Saying { conversation: "c".into(), address: "{}".into(), words },
                )
            }
            6 => ChannelChange::LetIn(self.dice.of(3).to_string()),
            7 => ChannelChange::ShutOut(self.dice.of(3).to_string()),
            8 => ChannelChange::Tell(self.dice.of(3).to_string(), self.words()),
            _ => ChannelChange::Advance(self.words()),
        };
        Write::Channel { channel: "telegram".into(), now: self.now(), changes: vec![change] }
    }

    fn usage(&mut self, session: usize) -> UsageRecord {
        UsageRecord {
            session: key(session),
            run: format!("run-{}", self.dice.of(9)).as_str().into(),
            agent: "main".into(),
            provider: "up".into(),
            model: "m".into(),
            usage: Usage::new(self.dice.of(100), self.dice.of(100)),
            cost: self.dice.one_in(2).then(|| Money::from_nanos(7)),
            changed: None,
            at: self.now(),
        }
    }

    fn call(&mut self, session: usize) -> CallRecord {
        CallRecord {
            at: self.now(),
            session: key(session),
            run: "run-1".into(),
            call: "call".into(),
            tool: "echo".into(),
            input: of_bytes(self.words().as_bytes()),
            usage: CallUsage::default(),
            took: Duration::from_micros(7),
            is_error: false,
            result: of_bytes(b""),
        }
    }
}

fn compacted(summary: String, kept_from: Seq) -> Compacted {
    Compacted { up_to: Seq(kept_from.0 - 1), named: Seq(0), summary }
}

fn call_of(id: &str) -> ToolCall {
    ToolCall { id: id.into(), name: "echo".into(), input: serde_json::json!({ "text": "x" }) }
}

fn returned(id: &str) -> ToolResult {
    ToolResult { call: id.into(), content: "done".into(), is_error: false }
}

/// The log of a cluster: what is at each place.
#[derive(Debug, Default)]
struct Log(Vec<Replay>);

impl Log {
    fn written(seed: u64, records: usize) -> Self {
        let mut author = Author::new(seed);
        let mut log = Self::default();
        for _ in 0..records {
            let (subject, record) = author.record();
            let mut bytes = record.to_bytes().unwrap();
            if author.dice.one_in(40) {
                bytes.truncate(bytes.len() / 2);
            }
            let after = log.0.last().map_or(0, |last| last.position);
            // Some places of the log are the engine's own.
            let position = after + 1 + author.dice.of(5) / 4;
            log.0.push(Replay { position, after, subject, record: bytes.into(), whole: None });
        }
        log
    }

    fn digest(&self) -> Position {
        let chain = |before, record: &Replay| {
            digest::chained(&before, record.position, &record.subject, &record.record)
        };
        let digest = self.0.iter().fold(digest::NONE, chain);
        Position { applied: self.0.last().map_or(0, |last| last.position), digest }
    }
}

async fn replay(store: &Addr<Store>, records: &[Replay]) -> Vec<Replayed> {
    let answers = join_all(records.iter().cloned().map(|record| store.send(record))).await;
    answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect()
}

async fn stop(store: Addr<Store>) {
    store.send(Stop).await.unwrap().unwrap();
}

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("clawmux.db")
    }
}

/// Applies a log one by one, with ends in between, in groups, and from a copy of another store; all are the same.
async fn all_agree(seed: u64, records: usize) -> BTreeMap<&'static str, usize> {
    let log = Log::written(seed, records);
    let mut dice = Dice(seed ^ 7);
    let homes = [Home::new(), Home::new(), Home::new()];
    let [one_by_one, in_groups, copied] = homes.each_ref().map(Home::path);

    let store = Store::start(&one_by_one).await.unwrap();
    let (copied_at, mut outcomes) = (dice.of(records as u64) as usize, Vec::new());
    for (nth, record) in log.0.iter().enumerate() {
        if nth == copied_at {
            store.send(Backup { to: copied.clone() }).await.unwrap().unwrap();
        }
        outcomes.extend(replay(&store, std::slice::from_ref(record)).await);
    }
    // What it has, it does not do again; what is not next, it refuses.
    let again = replay(&store, &log.0[..log.0.len().min(5)]).await;
    assert!(again.iter().all(|outcome| *outcome == Replayed::Known), "{again:?}");
    let last = log.0.last().unwrap();
    let beyond = Replay { position: last.position + 9, after: last.position + 8, ..last.clone() };
    let refused = store.send(beyond).await.unwrap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused}");
    assert_eq!(store.send(ReadPosition).await.unwrap().unwrap(), log.digest());
    stop(store).await;

    let (mut store, mut seen) = (Store::start(&in_groups).await.unwrap(), Vec::new());
    let mut rest = &log.0[..];
    while !rest.is_empty() {
        let (group, later) = rest.split_at((1 + dice.of(40) as usize).min(rest.len()));
        seen.extend(replay(&store, group).await);
        rest = later;
        if dice.one_in(4) {
            stop(store).await;
            store = Store::start(&in_groups).await.unwrap();
        }
    }
    stop(store).await;
    assert_eq!(seen, outcomes, "each record is made or refused by both");

    let store = Store::start(&copied).await.unwrap();
    let seen = replay(&store, &log.0).await;
    assert!(seen[..copied_at].iter().all(|outcome| *outcome == Replayed::Known));
    assert_eq!(seen[copied_at..], outcomes[copied_at..]);
    stop(store).await;

    for path in [&one_by_one, &in_groups, &copied] {
        // Daemons of a cluster have it from its base, and each of these has its own.
        let forget = "UPDATE meta SET device_secret = x''";
        rusqlite::Connection::open(path).unwrap().execute(forget, []).unwrap();
    }
    assert_same(&one_by_one, &in_groups, &format!("seed {seed}, in groups"));
    assert_same(&one_by_one, &copied, &format!("seed {seed}, from a copy at {copied_at}"));
    let mut counts = BTreeMap::new();
    for outcome in &outcomes {
        let what = match outcome {
            Replayed::Made(_) => "made",
            Replayed::Refused(error) => error.code.name(),
            Replayed::Known => "known",
        };
        *counts.entry(what).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn records_make_the_same_store_of_each(seed in any::<u64>(), records in 1_usize..200) {
        actix::System::new().block_on(all_agree(seed, records));
    }
}

/// Histories are no better than what happens in them.
#[actix::test]
async fn most_records_are_made_and_some_are_refused_for_each_reason() {
    let mut counts = BTreeMap::<&str, usize>::new();
    for seed in 0..4 {
        for (what, count) in all_agree(seed, 400).await {
            *counts.entry(what).or_default() += count;
        }
    }
    assert!(counts["made"] > 800, "{counts:?}");
    for refused in ["conflict", "internal", "invalid_request", "not_found"] {
        assert!(counts.get(refused).is_some_and(|count| *count > 3), "{refused}: {counts:?}");
    }
}
