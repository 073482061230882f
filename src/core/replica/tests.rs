//! Records of every kind, and what is none.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::blob::Blob;
use super::record::{ENVELOPE_VERSION, Record, VERSION};
use super::write::{Appended, Write};
use crate::access::About;
use crate::access::pairing::{self, Device, Grant};
use crate::access::token::{self, Use};
use crate::agents::registry::{self, Agent, Mail, Note, Phase, Seat, Team};
use crate::agents::subagent::{AgentState, Priority, Task};
use crate::agents::team::{Coordination, TeamState};
use crate::channel::change::{ChannelChange, Saying, SendState, Words};
use crate::cluster::stamp::{RecordId, Stamp, Token};
use crate::conversation::event::{Event, Logged, Outcome, Streamed};
use crate::conversation::log::segment::Segment;
use crate::conversation::log::usage::UsageRecord;
use crate::conversation::outbox::{ChannelAnswer, ToSay};
use crate::error::ErrorCode;
use crate::ids::{Owner, RunId, Seq, SessionKey};
use crate::memory::file::{FileAbout, FileChange, FileId, FileRow, UploadId};
use crate::memory::record::Superseded;
use crate::memory::{Embedding, Fact, Kind, MemoryRecord, Source, Teller, Tier};
use crate::prompt::answer_to::AnswerTo;
use crate::prompt::attachment::Attachment;
use crate::prompt::run_options::RunOptions;
use crate::prompt::thinking::Thinking;
use crate::provider::model::ModelRef;
use crate::provider::prefix::Changed;
use crate::provider::price::Money;
use crate::provider::usage::Usage;
use crate::schedule::job::{self, Firing, FiringState, Job, JobWrite};
use crate::schedule::{Misfire, Plan, Schedule};
use crate::scope::{Role, Scope, Scopes};
use crate::time::Timestamp;
use crate::tools::audit::{CallRecord, CallUsage, digest};
use crate::tools::plugin::PluginNamespace;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn key(name: &str) -> SessionKey {
    SessionKey::new("main", "test", name, "main").unwrap().in_space(&Owner::Credential("ada".into()))
}

fn logged(first: u64, seq: u64, run: Option<&str>, event: Event) -> Logged {
    Logged { first_seq: Seq(first), seq: Seq(seq), run: run.map(RunId::from), at: at(seq), event }
}

fn appended() -> Appended {
    let data = |text: &'static str| Bytes::from_static(text.as_bytes());
    let attachments = vec![
        Attachment::new(Some("a.txt"), Some("text/plain"), data("one\ntwo"))
            .unwrap()
            .with_caption(Some("so".into())),
        Attachment::new(None, Some("text/plain"), data("three")).unwrap(),
    ];
    let answer_to = AnswerTo { channel: "bus:a".into(), conversation: "c".into(), address: "{}".into() };
    let run_options = RunOptions {
        thinking: Some(Thinking::High),
        model: Some("up/m".into()),
        max_tokens: Some(9),
        lane: Some("night".into()),
        timeout: Some(Duration::from_millis(1500)),
        answer_to: Some(Arc::new(answer_to.clone())),
    };
    let prompt = Event::Prompted {
        content: "line\nbreak 🎈".into(),
        owner: Owner::Credential("ada".into()),
        idempotency_key: Some("k".into()),
        attachments,
        run_options,
    };
    let mut said = Segment::new(Streamed::Text, Seq(4), at(4), "he");
    assert!(said.push(Streamed::Text, Seq(5), at(5), "llo"));
    let thought = Segment::new(Streamed::Thought, Seq(3), at(3), "hm");
    let events = vec![
        logged(1, 1, Some("r"), prompt),
        logged(2, 2, Some("r"), Event::Started),
        logged(6, 9, Some("r"), Event::StepEnded { usage: Usage::new(1, 2) }),
        logged(10, 10, Some("r"), Event::Ended { outcome: Outcome::Completed, usage: Usage::new(1, 2) }),
    ];
    Appended {
        session: key("x"),
        settled: vec![("r".into(), vec![thought, said]), ("void".into(), Vec::new())],
        events: events.into(),
        reserve: Some(Seq(64)),
        to_say: vec![ToSay { to: answer_to, answer: ChannelAnswer::said("r", "hello".into()) }],
    }
}

fn agent() -> Agent {
    Agent {
        id: "a".into(),
        owner: Owner::Admins,
        session: key("s"),
        parent: Some(key("p")),
        root: key("r"),
        depth: 2,
        seat: Some(Seat { team: "t".into(), place: 3, role: "critic".into() }),
        kind: "work".into(),
        task: Task { description: "do it".into(), priority: Priority::High },
        tokens_max: Some(5),
        model: Some(ModelRef { provider: "up".into(), model: "m".into() }),
        phase: Phase::Turn { content: "go on".into(), mail: Some(9) },
        turns: 4,
        turns_completed: 3,
        task_turns: 2,
        answer: Some("so".into()),
        usage: Usage::new(7, 8),
        created: at(1),
        updated: at(2),
    }
}

fn team() -> Team {
    Team {
        id: "t".into(),
        owner: Owner::Admins,
        name: "crew".into(),
        description: None,
        strategy: Coordination::RoundRobin { rounds: 3 },
        task: agent().task,
        members: vec!["a".into(), "c".into()],
        state: TeamState::Dissolved,
        why: Some("enough".into()),
        said: vec![(1, "first".into())],
        created: at(1),
        updated: at(2),
    }
}

fn agents() -> Vec<registry::Change> {
    use registry::Change;
    let why = Some(ErrorCode::BudgetExceeded.error("spent"));
    let over = Phase::Over { state: AgentState::Failed, why, settling: true };
    vec![
        Change::Agent(Box::new(agent())),
        Change::Agent(Box::new(Agent { seat: None, parent: None, model: None, phase: over, ..agent() })),
        Change::Agent(Box::new(Agent { phase: Phase::Waiting, ..agent() })),
        Change::ForgetAgent("b".into()),
        Change::Team(Box::new(team())),
        Change::Team(Box::new(Team { strategy: Coordination::Parallel, why: None, ..team() })),
        Change::ForgetTeam("t".into()),
        Change::Said { team: "t".into(), number: 7, place: 1, text: "yes".into() },
        Change::ForgetSaid("t".into()),
        Change::Mail(Mail {
            number: 1,
            message: "m".into(),
            from: "a".into(),
            to: "c".into(),
            content: "hi".into(),
        }),
        Change::ForgetMail(1),
        Change::Note(Note {
            id: "n".into(),
            session: key("s"),
            owner: Owner::Admins,
            content: "done".into(),
        }),
        Change::ForgetNote("n".into()),
    ]
}

fn tokens() -> Vec<token::Change> {
    use token::Change;
    let origin: IpAddr = "fe80::1".parse().unwrap();
    let token = token::Token {
        id: "cmx_1".into(),
        name: "ci".into(),
        kind: token::Kind::ApiKey,
        sha256: Some([7; 32]),
        scopes: Scopes::of(&[Scope::Write, Scope::Pair]),
        created: at(1),
        since: at(2),
        expires: Some(at(3)),
        revoked: Some(at(4)),
        used: Some(at(5)),
        origin: Some(origin),
    };
    let jwt = token::Token {
        kind: token::Kind::Jwt,
        sha256: None,
        expires: None,
        revoked: None,
        used: None,
        origin: None,
        scopes: Scopes::ADMIN,
        ..token.clone()
    };
    vec![
        Change::Put(token),
        Change::Put(jwt),
        Change::Forget("cmx_2".into()),
        Change::Used("token".into(), Use { at: at(3), origin }),
        Change::Seen("cmx_1".into(), Use { at: at(3), origin }),
    ]
}

fn devices() -> Vec<pairing::Change> {
    let grant = |role, used| Grant {
        role,
        scopes: Scopes::USER,
        salt: [3; 16],
        issued: at(1),
        rotated: Some(at(2)),
        revoked: None,
        used,
        origin: used.map(|_| IpAddr::from([10, 0, 0, 1])),
    };
    let about = About {
        client_id: "cli".into(),
        display_name: Some("tv".into()),
        caps: vec!["canvas".into()],
        permissions: vec![("camera".into(), true)],
        ..About::default()
    };
    let device = Device {
        id: "d".into(),
        public_key: [9; 32],
        about,
        peer: IpAddr::from([127, 0, 0, 1]),
        credential: "ci".into(),
        created: at(1),
        approved: at(2),
        grants: vec![grant(Role::Operator, None), grant(Role::Node, Some(at(9)))],
    };
    let last = Use { at: at(3), origin: IpAddr::from([10, 0, 0, 1]) };
    let seen = pairing::Change::Seen("d".into(), Role::Node, last);
    vec![pairing::Change::Put(device), pairing::Change::Remove("d".into()), seen]
}

fn jobs() -> Vec<JobWrite> {
    let schedule = |plan| Schedule::new(&plan, at(0), "UTC").unwrap();
    let cron = Plan::Cron { expression: "0 7 * * 1".into(), zone: Some("Europe/Berlin".into()) };
    let run_options = RunOptions { timeout: Some(Duration::from_secs(1)), ..RunOptions::default() };
    let job = Job {
        id: "j".into(),
        name: "report".into(),
        description: Some("weekly".into()),
        owner: Owner::Admins,
        is_enabled: true,
        schedule: schedule(cron),
        task: job::Task { session: key("s"), prompt: "go".into(), run_options, result_to: Some(key("t")) },
        misfire: Misfire::All(4),
        is_deleted_after: false,
        note: None,
        created: at(1),
        updated: at(2),
        settled: at(3),
    };
    let every = Plan::Every { every: Duration::from_millis(1500), anchor: Some(at(9)) };
    let firing = |state| {
        let firing = Firing {
            job: "j".into(),
            scheduled: at(5),
            is_manual: true,
            begun: at(6),
            ended: None,
            state,
            missed: 2,
            run: Some("r".into()),
            text: Some("done".into()),
            usage: Usage::new(1, 2),
        };
        Box::new(firing)
    };
    vec![
        JobWrite::Put(Box::new(job.clone())),
        JobWrite::Put(Box::new(Job { schedule: schedule(every), ..job.clone() })),
        JobWrite::Put(Box::new(Job { schedule: schedule(Plan::At(at(7))), ..job })),
        JobWrite::Remove("j".into()),
        JobWrite::Enter(firing(FiringState::Running)),
        JobWrite::Settle(firing(FiringState::Done)),
        JobWrite::Settle(firing(FiringState::Failed(ErrorCode::Provider.error("away")))),
        JobWrite::Settle(firing(FiringState::Skipped("too late".into()))),
    ]
}

fn files() -> Vec<FileChange> {
    let about =
        FileAbout { name: Some("İ.txt".into()), media_type: None, total: Some(9), sha256: Some([1; 32]) };
    let row = FileRow {
        id: FileId::from_bytes([4; 16]),
        upload: UploadId::from_bytes([5; 16]),
        owner: Owner::from_name("ada"),
        about,
        size: 8,
        is_complete: false,
        created: at(1),
        updated: at(2),
    };
    vec![FileChange::Begin(row.clone()), FileChange::Put(row.clone()), FileChange::Remove(row.id)]
}

fn channel() -> Vec<ChannelChange> {
    use ChannelChange as Change;
    let saying = |words| Saying { conversation: "c".into(), address: "{}".into(), words };
    vec![
        Change::Receive("{}".into()),
        Change::Advance("7".into()),
        Change::Parsed(3, vec![(Some("id".into()), "{}".into()), (None, "[]".into())]),
        Change::Taken(3),
        Change::Say(saying(Words::Answer("{}".into()))),
        Change::SayOnce("id".into(), saying(Words::Requests("[]".into()))),
        Change::Remember("id".into()),
        Change::Unremember("id".into()),
        Change::Formatted(4, "[]".into()),
        Change::Send(4, SendState::Waits(2)),
        Change::Send(4, SendState::Sending),
        Change::Send(4, SendState::Failed("no".into())),
        Change::Send(4, SendState::Unknown("cut".into())),
        Change::Sent(4),
        Change::LetIn("bob".into()),
        Change::ShutOut("bob".into()),
        Change::Tell("bob".into(), "1234".into()),
        Change::Forget("bob".into()),
    ]
}

fn usage() -> UsageRecord {
    UsageRecord {
        session: key("s"),
        run: "r".into(),
        agent: "main".into(),
        provider: "up".into(),
        model: "m".into(),
        usage: Usage { input_tokens: 1, output_tokens: 2, cache_read_tokens: 3, cache_write_tokens: 4 },
        cost: Some(Money::from_nanos(u64::MAX)),
        changed: Some(Changed::Tools),
        at: at(7),
    }
}

fn call() -> CallRecord {
    CallRecord {
        at: at(7),
        session: key("s"),
        run: "r".into(),
        call: "c".into(),
        tool: "notes".into(),
        input: digest(b"in"),
        usage: CallUsage { fuel: Some(9), grants: vec!["store:notes".into()] },
        took: Duration::from_micros(2500),
        is_error: true,
        result: digest(b"out"),
    }
}

fn memory() -> MemoryRecord {
    MemoryRecord {
        id: "m".into(),
        owner: Owner::Credential("ada".into()),
        tier: Tier::Scratchpad,
        kind: Kind::Decision,
        content: "tea 🎈".into(),
        metadata: json!({ "n": 1.5 }).as_object().cloned(),
        session: Some(key("s")),
        // Numbers that change when they are read as those of an export are.
        embedding: Some(Embedding::new(&[0.1, 0.7, -0.3]).unwrap()),
        fact: Some(Fact::new("user", "likes", "tea", 80).unwrap()),
        source: Source { teller: Teller::Learned, run: Some("r".into()) },
        created: at(7),
        superseded: Some(Superseded { at: at(8), by: "n".into() }),
    }
}

fn all() -> Vec<Write> {
    let plain = MemoryRecord {
        owner: Owner::Admins,
        tier: Tier::Semantic,
        metadata: None,
        session: None,
        embedding: None,
        fact: None,
        source: Source::default(),
        superseded: None,
        ..memory()
    };
    let namespace = PluginNamespace { owner: Owner::Admins, agent: "main".into(), name: "notes".into() };
    let value = |value| Write::PluginValue { namespace: namespace.clone(), key: "k".into(), value };
    let vectors = vec![(3, memory().embedding), (4, None)];
    let mut all = vec![
        Write::TakeOver(key("s")),
        Write::Guard(appended().guards().pop().unwrap()),
        Write::Append(appended()),
        Write::Append(Appended {
            settled: Vec::new(),
            events: [].into(),
            reserve: None,
            to_say: Vec::new(),
            ..appended()
        }),
        Write::Delete { session: key("s"), unused_since: Some(at(3)) },
        Write::Delete { session: key("s"), unused_since: None },
        Write::Agents(agents()),
        Write::Tokens(tokens()),
        Write::Devices(devices()),
        Write::Jobs(jobs()),
        Write::Channel { channel: "telegram".into(), now: at(3), changes: channel() },
        value(Some("{}".into())),
        value(None),
        Write::AgreedTools { server: "s".into(), tools: [("t".to_owned(), [8; 32])].into() },
        Write::BeginCall { call: u64::MAX, reserved: usage() },
        Write::RecordUsage {
            call: 7,
            records: vec![usage(), UsageRecord { cost: None, changed: None, ..usage() }],
        },
        Write::RecordCall(call()),
        Write::Remember { memory: Box::new(memory()), by_operator: true },
        Write::Learn(vec![plain.clone()]),
        Write::Import(vec![plain, memory()]),
        Write::Forget { id: "m".into(), owner: Some(Owner::Admins) },
        Write::Forget { id: "m".into(), owner: None },
        Write::ForgetAll(Owner::Admins),
        Write::KeepVectors { model: "up/m".into(), vectors },
        Write::SpendOnLearning { at: at(9), tokens: -7 },
    ];
    all.extend(files().into_iter().map(Write::File));
    all
}

fn record(write: Write) -> Record {
    Record { stamp: Stamp { token: Token(7), record: RecordId(77) }, write }
}

/// The data of attachments takes no part in whether events are equal: it is compared by itself.
fn data(write: &Write) -> Vec<Bytes> {
    let Write::Append(appended) = write else { return Vec::new() };
    let attachments = appended.events.iter().filter_map(|logged| match &logged.event {
        Event::Prompted { attachments, .. } => Some(attachments),
        _ => None,
    });
    attachments.flatten().map(|attachment| attachment.data().clone()).collect()
}

#[test]
fn what_is_written_is_read() {
    for write in all() {
        let bytes = Bytes::from(record(write.clone()).to_bytes().unwrap());
        let read = Record::from_bytes(&bytes).unwrap_or_else(|error| panic!("{error}: {write:?}"));
        assert_eq!(data(&read.write), data(&write));
        assert_eq!(Record::stamp_of(&bytes), Some(read.stamp));
        assert_eq!(read, record(write), "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(read.to_bytes().unwrap(), bytes, "it is written alike");
    }
}

#[test]
fn what_is_no_record_is_refused_in_words() {
    let append = String::from_utf8(record(Write::Append(appended())).to_bytes().unwrap()).unwrap();
    let of =
        |kind: &str, body: &str| format!(r#"{{"v":1,"token":1,"record":2,"kind":"{kind}","body":{body}}}"#);
    for (bytes, says) in [
        (String::new(), "EOF"),
        ("[]".into(), "can't be read"),
        (of("nothing", "{}"), "there is no change \"nothing\""),
        (of("delete", "{}"), "expected text, found nothing, at session"),
        (of("delete", r#"{"session":"x"}"#), "at session"),
        (
            of("jobs", r#"{"changes":[{"put":[],"remove":[]}]}"#),
            "expected an object with one entry, at changes",
        ),
        (
            of("jobs", r#"{"changes":[{"enter":[{"job":7}]}]}"#),
            "expected text, found a number, at job, at changes",
        ),
        (of("tokens", r#"{"changes":[{"lend":[]}]}"#), "there is no token::Change \"lend\""),
        (of("begin_call", r#"{"call":-1}"#), "expected a number (u64), found a number, at call"),
        (of("take_over", r#"{"session":"main:a:b:c"}"#) + "\nrest", "data of nothing"),
        (append.replace("\"kind\":\"started\"", "\"kind\":\"text\""), "text is no event of a record"),
        (append.replace("\"data\":[7,5]", "\"data\":[7]"), "has not the data of its attachments"),
        (append.replace("\"data\":[7,5]", "\"data\":[7,50]"), "data of an attachment is missing"),
        (append.replace("\"kind\":\"thought\"", "\"kind\":\"dream\""), "\"dream\" is no kind of text"),
    ] {
        let error = Record::from_bytes(&bytes.clone().into()).unwrap_err();
        assert!(error.message.contains(says), "{bytes}\n{error}");
    }
    let later = of("take_over", r#"{"session":"main:a:b:c"}"#)
        .replace("\"v\":1", &format!("\"v\":{}", ENVELOPE_VERSION + 1));
    let error = Record::from_bytes(&later.into()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("update it"), "{error}");
}

#[test]
fn an_envelope_has_the_stamp_of_its_record_and_is_never_taken_for_one() {
    let stamp = record(Write::TakeOver(key("s"))).stamp;
    let blob = Blob::of(&[7; 2_000_000]);
    let envelope = Record::envelope(stamp, &blob).unwrap();
    assert_eq!((Record::stamp_of(&envelope), Record::enveloped(&envelope)), (Some(stamp), Some(blob)));
    // Whoever lacks the record must wait for it; whoever knows nothing of envelopes, too.
    assert_eq!(Record::from_bytes(&envelope.clone().into()).unwrap_err().code, ErrorCode::Unavailable);
    const { assert!(ENVELOPE_VERSION > VERSION) };
    // What nobody can complete is passed over by all alike.
    for (is, becomes) in [("2000000", "0"), ("2000000", "99999999999"), ("\"bytes\"", "\"b\"")] {
        let wrong = String::from_utf8(envelope.clone()).unwrap().replace(is, becomes).into_bytes();
        assert_eq!(Record::enveloped(&wrong), None);
        assert_eq!(Record::from_bytes(&wrong.into()).unwrap_err().code, ErrorCode::InvalidRequest);
    }
    for write in all() {
        assert_eq!(Record::enveloped(&record(write).to_bytes().unwrap()), None);
    }
}

#[test]
fn little_is_said_of_what_a_stranger_wrote_at_length() {
    let kind = "k".repeat(900_000);
    let record = format!(r#"{{"v":1,"token":1,"record":1,"kind":"{kind}","body":{{}}}}"#);
    let error = Record::from_bytes(&Bytes::from(record)).unwrap_err();
    assert!(error.message.len() <= 400, "{} bytes", error.message.len());
}

#[test]
fn what_a_later_clawmux_adds_is_passed_over() {
    let bytes = record(Write::Delete { session: key("s"), unused_since: None }).to_bytes().unwrap();
    let more = String::from_utf8(bytes).unwrap().replace("\"body\":{", "\"more\":1,\"body\":{\"why\":\"x\",");
    let read = Record::from_bytes(&more.into()).unwrap();
    assert_eq!(read, record(Write::Delete { session: key("s"), unused_since: None }));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
        let _ = Record::from_bytes(&bytes.into());
    }

    /// Records that are cut, or have some bytes changed, are read or refused.
    #[test]
    fn no_damage_panics(which in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let all = all();
        let mut bytes = record(all[which.index(all.len())].clone()).to_bytes().unwrap();
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] = byte;
        }
        let _ = Record::from_bytes(&bytes.into());
    }
}
