//! What goes wrong, and what text costs.

use super::*;
use crate::store::change::MadeBy;
use crate::store::columns::Columns;
use crate::store::log_writer::Deletion;
use crate::store::query::Query;
use crate::store::reader::Reader;
use crate::store::{Among, Append, BeginCall, Describe, FindRun, FindSession, Load, ReadEvents, RecordUsage};
use clawmux_core::conversation::event::Outcome;
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::ids::{Owner, Seq};
use clawmux_core::limits::quota::Kept;
use clawmux_core::provider::usage::Usage;
use std::sync::atomic::AtomicU64;

struct Log {
    writer: Writer,
    reader: Reader,
    session: SessionKey,
    _folder: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Arc::new(Files::claim(&folder.path().join("clawmux.db")).unwrap());
        let (shared, figures) = (Arc::<Shared>::default(), Arc::default());
        let writer =
            Writer::open(Arc::clone(&files), Arc::clone(&shared), figures, Holdings::default()).unwrap();
        let reader = Reader::open(files, shared).unwrap();
        let session = SessionKey::new("main", "test", "a", "main").unwrap();
        let mut log = Self { writer, reader, session, _folder: folder };
        log.write(&[&[prompt()]]).remove(0).unwrap();
        log
    }

    fn write(&mut self, appends: &[&[(u64, Event)]]) -> Vec<Result<(), Error>> {
        let group: Vec<_> = appends.iter().map(|events| self.waiting(events)).collect();
        self.writer.group(&group)
    }

    fn waiting(&self, events: &[(u64, Event)]) -> PendingChange {
        self.waiting_in(&self.session, events)
    }

    fn waiting_in(&self, session: &SessionKey, events: &[(u64, Event)]) -> PendingChange {
        let reserve = matches!(events, [(1, _), ..]).then_some(Seq(100));
        let events = events.iter().map(|(seq, event)| {
            let (seq, run) = (Seq(*seq), Some("r".into()));
            Logged { first_seq: seq, seq, run, at: Timestamp::default(), event: event.clone() }
        });
        let session = session.clone();
        waiting(Append { session, events: events.collect(), durable: false, reserve, to_say: Vec::new() })
    }

    fn read(&mut self) -> Vec<(u64, Event)> {
        let asked =
            ReadEvents { session: self.session.clone(), after: Seq(0), run: None, max_bytes: usize::MAX };
        asked
            .answer(&mut self.reader)
            .unwrap()
            .into_iter()
            .map(|logged| (logged.seq.0, logged.event))
            .collect()
    }

    fn pages(&self) -> i64 {
        self.writer.db.query_row("SELECT count(*) FROM deltas", [], |row| row.get(0)).unwrap()
    }
}

fn waiting(change: impl Change) -> PendingChange {
    PendingChange { change: Box::new(change), bytes: 0, done: oneshot::channel().0 }
}

/// A change that panics.
#[derive(Debug)]
struct Panic;

impl Change for Panic {
    fn bytes(&self) -> usize {
        0
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::ThisDaemon
    }

    fn is_durable(&self, _: &Writer) -> bool {
        false
    }

    fn apply(&self, _: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        panic!("as asked")
    }
}

fn prompt() -> (u64, Event) {
    (1, Event::prompted("hi", Owner::Admins, None))
}

fn text(seq: u64, piece: &str) -> (u64, Event) {
    (seq, Event::Text(piece.into()))
}

#[test]
fn a_full_disk_is_named_loses_nothing_and_passes() {
    let mut log = Log::new();
    log.write(&[&[text(2, "a")]]).remove(0).unwrap();
    let pages: i64 = log.writer.db.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    log.writer.db.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    let (large, small) = ([text(3, &"x".repeat(20_000))], [text(4, "y")]);
    for result in log.write(&[&large, &small]) {
        let error = result.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.starts_with("the store can't be written: "), "{error}");
    }
    assert_eq!(log.read(), [prompt(), text(2, "a")]);
    log.writer.db.execute_batch("PRAGMA max_page_count = 1000000").unwrap();
    for result in log.write(&[&large, &small]) {
        result.unwrap();
    }
    assert_eq!(log.read(), [prompt(), text(4, &format!("a{}y", "x".repeat(20_000)))]);
    assert_eq!(log.writer.figures.failures.load(Relaxed), 1);
}

#[test]
fn an_outage_refuses_all_alike_until_the_writer_itself_finds_it_over() {
    let mut log = Log::new();
    let health = crate::store::Health::new(&log.writer.figures);
    let pages: i64 = log.writer.db.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    log.writer.db.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    let answer = |log: &mut Log, text: (u64, Event)| {
        let (done, mut answer) = oneshot::channel();
        let mut group = vec![PendingChange { done, ..log.waiting(&[text]) }];
        log.writer.answer(&mut group);
        answer.try_recv().unwrap()
    };
    answer(&mut log, text(2, &"x".repeat(100_000))).unwrap_err();
    let fault = health.fault().expect("there is an outage");
    assert!(fault.message.starts_with("the store can't be written: the disk is full"), "{fault}");
    // Though this one would fit.
    assert_eq!(answer(&mut log, text(2, "y")).unwrap_err(), fault);
    assert!(log.writer.trouble.patience().is_some());
    log.writer.try_again();
    assert_eq!(health.fault(), None);
    answer(&mut log, text(2, "y")).unwrap();
    assert_eq!(log.read(), [prompt(), text(2, "y")]);
}

#[test]
fn after_a_failed_sync_nothing_is_tried_before_the_log_was_written_anew() {
    let mut log = Log::new();
    log.write(&[&[text(2, "a")]]).remove(0).unwrap();
    let failed = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    log.writer.note(&rusqlite::Error::SqliteFailure(failed, None));
    let wal = log.writer.files.wal();
    let whole = std::fs::read(&wal).unwrap();
    std::fs::write(&wal, [whole.as_slice(), b"of a transaction that was refused"].concat()).unwrap();
    log.writer.try_again();
    assert!(!log.writer.trouble.is_there());
    log.write(&[&[text(3, "b")]]).remove(0).unwrap();
    assert_eq!(log.read(), [prompt(), text(3, "ab")]);

    // The kernel let go of a page: what is left has to be found out from the start.
    log.writer.note(&rusqlite::Error::SqliteFailure(failed, None));
    let whole = std::fs::read(&wal).unwrap();
    let mut stale = whole.clone();
    stale[32 + 24..][..4096].fill(0);
    std::fs::write(&wal, &stale).unwrap();
    log.writer.try_again();
    assert!(log.writer.trouble.is_there());
    let fault = log.writer.figures.fault.borrow().clone().unwrap();
    assert!(fault.message.contains("restart clawmux"), "{fault}");
    std::fs::write(&wal, &whole).unwrap();
    log.writer.try_again();
    assert!(log.writer.trouble.is_there(), "it stays so");
    assert!(!log.writer.may_move(), "and nothing is moved from there into the database");
}

#[test]
fn a_panic_concerns_nobody_but_who_caused_it() {
    let mut log = Log::new();
    let group = [log.waiting(&[text(2, "a")]), waiting(Panic), log.waiting(&[text(3, "b")])];
    let results = log.writer.group(&group);
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    assert!(results[1].as_ref().unwrap_err().message.contains("panicked"), "{results:?}");
    assert_eq!(log.read(), [prompt(), text(3, "ab")]);
}

#[test]
fn text_is_durable_only_past_the_reserve() {
    let mut log = Log::new();
    let durable = |log: &Log| log.writer.figures.durable_commits.load(Relaxed);
    let mode =
        |log: &Log| -> i64 { log.writer.db.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap() };
    let (normal, full) = (1, 2);
    assert_eq!((durable(&log), mode(&log)), (1, full));
    for seq in 2..=100 {
        log.write(&[&[text(seq, "a")]]).remove(0).unwrap();
    }
    assert_eq!((durable(&log), mode(&log)), (1, normal));
    log.write(&[&[text(101, "a")]]).remove(0).unwrap();
    assert_eq!((durable(&log), mode(&log)), (2, full));
}

#[test]
fn text_does_not_wait_for_the_sync_of_another_session() {
    let log = Log::new();
    let other = SessionKey::new("main", "test", "b", "main").unwrap();
    let group = |log: &Log| vec![log.waiting(&[text(2, "a")]), log.waiting_in(&other, &[prompt()])];
    let mut first = group(&log);
    let late = log.writer.split_off_durable(&mut first);
    assert_eq!((first.len(), late.len()), (1, 1));
    // Behind a durable write of its own session it stays.
    let mut first = group(&log);
    first.insert(0, log.waiting(&[text(101, "past the reserve")]));
    first.push(waiting(Panic));
    let late = log.writer.split_off_durable(&mut first);
    assert_eq!((first.len(), late.len()), (1, 3));
    assert_eq!(format!("{:?}", first[0].change), "Panic");
    let mut texts = vec![log.waiting(&[text(2, "a")]), log.waiting(&[text(3, "a")])];
    assert!(log.writer.split_off_durable(&mut texts).is_empty());
    assert_eq!(texts.len(), 2);
}

#[test]
fn a_new_life_that_began_with_text_is_known_after_a_failure() {
    let mut log = Log::new();
    log.write(&[&[text(2, "a")]]).remove(0).unwrap();
    // As a restart leaves it: what was written before belongs to an earlier life.
    log.writer.opened += 1;
    let shared = Arc::clone(&log.writer.shared);
    log.writer.reload(&mut shared.enter()).unwrap();
    log.write(&[&[text(3, "b")]]).remove(0).expect_err("a number that a client may have seen");
    log.write(&[&[text(101, "b")]]).remove(0).unwrap();
    log.writer.stale = true;
    log.write(&[&[text(102, "c")]]).remove(0).unwrap();
    assert_eq!(log.read(), [prompt(), text(2, "a"), text(102, "bc")]);
}

#[test]
fn pages_live_as_long_as_a_step_that_streams_needs_them() {
    let mut log = Log::new();
    for seq in 2..10 {
        log.write(&[&[text(seq, "a")]]).remove(0).unwrap();
    }
    assert_eq!(log.pages(), 8);
    let step_ended = || Event::StepEnded { usage: clawmux_core::provider::usage::Usage::default() };
    log.write(&[&[text(10, "a")], &[(11, step_ended())]]).remove(0).unwrap();
    assert_eq!(log.pages(), 0, "what began and ended within the group needs no page either");
    let end = (13, Event::Ended { outcome: Outcome::Completed, usage: Default::default() });
    log.write(&[&[text(12, "b"), end.clone()]]).remove(0).unwrap();
    assert_eq!(log.read(), [prompt(), text(10, &"a".repeat(9)), (11, step_ended()), text(12, "b"), end]);
    let asked = Load { session: log.session.clone(), runs: 0 };
    assert_eq!(asked.answer(&mut log.reader).unwrap().unwrap().head, Seq(13));
    assert!(log.writer.runs.is_empty() && log.writer.pages.is_empty());
}

#[test]
fn pages_nobody_needs_go_a_few_at_a_time() {
    let mut log = Log::new();
    for seq in 2..100 {
        log.write(&[&[text(seq, "a")]]).remove(0).unwrap();
    }
    let step_ended = |seq| (seq, Event::StepEnded { usage: clawmux_core::provider::usage::Usage::default() });
    log.write(&[&[step_ended(100)]]).remove(0).unwrap();
    assert_eq!(log.pages(), 98 - 32);
    log.write(&[&[step_ended(101)]]).remove(0).unwrap();
    assert_eq!(log.pages(), 98 - 2 * 32);
    // After a start the rest is known, and goes without a group too.
    log.writer.stale = true;
    log.write(&[&[step_ended(102)]]).remove(0).unwrap();
    assert!(log.writer.delete_some_alone());
    assert!(!log.writer.delete_some_alone());
    assert_eq!(log.pages(), 0);
}

#[test]
fn numbers_that_follow_each_other_form_ranges() {
    let found: Vec<_> = ranges(&[1, 2, 3, 7, 9, 10]).collect();
    assert_eq!(found, [1..4, 7..8, 9..11]);
    assert_eq!(ranges(&[]).count(), 0);
}

// ---- what owners hold, and room that is made ----

/// An append of a prompt with its end, in a session of this owner.
fn whole_run(session: &str, owner: &str, run: &str, first: u64, content: String) -> PendingChange {
    let events = [Event::prompted(content, Owner::Admins, None), Event::Started, ended()];
    let events = events.into_iter().zip(first..).map(|(event, seq)| {
        let seq = Seq(seq);
        Logged { first_seq: seq, seq, run: Some(run.into()), at: Timestamp::from_millis(seq.0), event }
    });
    waiting(Append {
        session: SessionKey::new("main", "test", session, "main").unwrap().in_space(&Owner::from_name(owner)),
        events: events.collect(),
        durable: true,
        reserve: None,
        to_say: Vec::new(),
    })
}

fn of_ada(session: &str) -> SessionKey {
    SessionKey::new("main", "test", session, "main").unwrap().in_space(&Owner::from_name("ada"))
}

fn ended() -> Event {
    Event::Ended { outcome: Outcome::Completed, usage: Default::default() }
}

/// The deletion of a session of ada's.
fn deletion(session: &str, unused_since: Option<u64>) -> PendingChange {
    let session = of_ada(session);
    waiting(Deletion { session, unused_since: unused_since.map(Timestamp::from_millis) })
}

impl Log {
    /// What owners hold by the rows there are.
    fn holdings(&self) -> Vec<(Owner, Kept)> {
        let sql = "SELECT s.owner, count(DISTINCT s.id), sum(length(e.body) + 64) FROM sessions s
                   JOIN events e ON e.session = s.id GROUP BY s.owner ORDER BY 3 DESC, 1";
        let mut statement = self.writer.db.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| {
            let kept = Kept { sessions: row.number(1)?, bytes: row.number(2)? };
            Ok((row.owner(0)?, kept))
        });
        rows.unwrap().collect::<Result<_, _>>().unwrap()
    }
}

#[test]
fn what_owners_hold_is_what_there_is_whatever_happens() {
    let mut log = Log::new();
    let told = |log: &Log| log.writer.holdings.largest(9);
    log.write(&[&[text(2, "some text"), (3, Event::Restarted)]]).remove(0).unwrap();
    for (at, owner) in (0..6_u64).zip(["", "ada", "bob"].into_iter().cycle()) {
        let (session, content) = (format!("s{}", at % 4 + at % 3 * 10), "x".repeat(at as usize * 1000));
        let first = 1;
        let run = whole_run(&session, owner, &format!("r{at}"), first, content);
        log.writer.group(&[run]).remove(0).unwrap();
        assert_eq!(told(&log), log.holdings());
    }
    // One that is refused, alone and among others, counts nothing.
    let repeated = || whole_run("s0", "", "r0", 4, "x".into());
    log.writer.group(&[repeated()]).remove(0).unwrap_err();
    let group = [repeated(), whole_run("new", "ada", "n", 1, "y".into()), waiting(Panic)];
    assert_eq!(log.writer.group(&group).iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(told(&log), log.holdings());
    log.writer.group(&[deletion("new", None)]).remove(0).unwrap();
    log.writer.group(&[deletion("new", None)]).remove(0).unwrap_err();
    assert_eq!(told(&log), log.holdings());
    // Given to another, as a whole.
    log.writer.db.execute_batch("UPDATE sessions SET owner = 'eve' WHERE owner = 'ada'").unwrap();
    let shared = Arc::clone(&log.writer.shared);
    log.writer.reload(&mut shared.enter()).unwrap();
    assert_eq!(told(&log), log.holdings());
    assert!(told(&log).iter().any(|(owner, _)| owner.as_str() == "eve"));
}

#[test]
fn a_deleted_session_goes_a_little_at_a_time_and_no_other_takes_its_place() {
    let mut log = Log::new();
    for at in 0..40 {
        let run = whole_run("large", "ada", &format!("r{at}"), 1 + at * 3, "secret ".repeat(30_000));
        log.writer.group(&[run]).remove(0).unwrap();
    }
    let left = |log: &Log| -> i64 {
        let sql = "SELECT count(*) FROM events WHERE session NOT IN (SELECT id FROM sessions)";
        log.writer.db.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    log.writer.group(&[deletion("large", Some(5))]).remove(0).unwrap_err();
    assert_eq!(left(&log), 0, "it was used since");
    log.writer.group(&[deletion("large", Some(500))]).remove(0).unwrap();
    let mut steps = 0;
    let mut before = left(&log);
    assert!(before > 100, "{before}");
    // The same name anew, while the rows of the old one are still going.
    log.writer.group(&[whole_run("large", "ada", "anew", 1, "fresh".into())]).remove(0).unwrap();
    before = left(&log);
    while log.writer.room.has_deleted {
        assert!(log.writer.delete_some_alone());
        let now = left(&log);
        assert!(before - now <= 3 * 8, "{} rows at once", before - now);
        (before, steps) = (now, steps + 1);
    }
    assert!(steps >= 5 && before == 0, "{steps} steps");
    let asked = ReadEvents { session: of_ada("large"), after: Seq(0), run: None, max_bytes: usize::MAX };
    assert_eq!(asked.answer(&mut log.reader).unwrap().len(), 3, "the new one is whole");
    log.writer.rest();
    let files =
        ["clawmux.db", "clawmux.db-wal"].map(|name| std::fs::read(log._folder.path().join(name)).unwrap());
    let has = |bytes: &[u8]| bytes.windows(14).any(|window| window == b"secret secret ");
    assert!(!files.iter().any(|bytes| has(bytes)), "it is gone from the files");
    while log.writer.shrink_some().unwrap() {}
    let (used, free) = log.writer.sizes().unwrap();
    assert!(free <= 1 << 20 && used < 1 << 20, "{used} in use, {free} free");
}

#[test]
fn what_a_chat_takes_does_not_grow_with_the_sessions_and_runs_there_are() {
    let mut log = Log::new();
    let steps = Arc::new(AtomicU64::new(0));
    for db in [&mut log.writer.db, log.reader.db()] {
        let steps = Arc::clone(&steps);
        db.progress_handler(
            1,
            Some(move || {
                steps.fetch_add(1, Relaxed);
                false
            }),
        )
        .unwrap();
    }
    let mut chat = |number: u64| {
        let (session, run) = (
            SessionKey::new("main", "test", &format!("s{number}"), "main").unwrap(),
            RunId::from(format!("r{number}")),
        );
        let before = steps.load(Relaxed);
        let key = format!("k{number}");
        let logged = |(seq, event)| {
            let seq = Seq(seq);
            Logged { first_seq: seq, seq, run: Some(run.clone()), at: Timestamp::default(), event }
        };
        let append = |events: Vec<(u64, Event)>| {
            let events = events.into_iter().map(logged).collect();
            waiting(Append {
                session: session.clone(),
                events,
                durable: true,
                reserve: None,
                to_say: Vec::new(),
            })
        };
        let used = UsageRecord {
            session: session.clone(),
            run: run.clone(),
            agent: "main".into(),
            provider: "p".into(),
            model: "m".into(),
            usage: Usage::default(),
            cost: None,
            changed: None,
            at: Timestamp::default(),
        };
        for group in [
            vec![append(vec![(1, Event::prompted("hi", Owner::Admins, Some(key.clone())))])],
            vec![append(vec![(2, Event::Started)])],
            vec![waiting(BeginCall { call: number, reserved: used.clone() })],
            vec![append(vec![text(3, "hello")])],
            vec![
                waiting(RecordUsage { call: number, records: vec![used] }),
                append(vec![(4, Event::StepEnded { usage: Usage::default() }), (5, ended())]),
            ],
        ] {
            log.writer.group(&group).into_iter().for_each(|result| result.unwrap());
        }
        log.writer.delete_some_alone();
        let (owner, id) = (Owner::Admins, session.uuid());
        assert_eq!(
            FindSession { id, owner: owner.clone(), among: Among::Own }.answer(&mut log.reader),
            Ok(Some(session.clone()))
        );
        let found = FindRun { owner, idempotency_key: key, or_id: true }.answer(&mut log.reader);
        assert_eq!(found.unwrap().unwrap().1, run);
        assert!(Load { session: session.clone(), runs: 10 }.answer(&mut log.reader).unwrap().is_some());
        assert!(Describe { session }.answer(&mut log.reader).unwrap().is_some());
        steps.load(Relaxed) - before
    };
    let few = (0..20).map(&mut chat).max().unwrap();
    let many = (20..1000).map(&mut chat).max().unwrap();
    assert!(many < 2 * few, "{few} steps of the database with a few sessions, {many} with many");
}

#[test]
fn who_reads_beside_a_store_that_nobody_runs_sees_the_text_of_steps_that_were_cut_off() {
    let mut log = Log::new();
    log.write(&[&[text(2, "cut "), text(3, "off")]]).remove(0).unwrap();
    let path = log._folder.path().join("clawmux.db");
    let mut beside = Reader::beside(&path).unwrap();
    let asked = ReadEvents { session: log.session.clone(), after: Seq(0), run: None, max_bytes: usize::MAX };
    let read: Vec<Logged> = asked.answer(&mut beside).unwrap();
    let read: Vec<(u64, Event)> = read.into_iter().map(|logged| (logged.seq.0, logged.event)).collect();
    assert_eq!(read, [prompt(), text(3, "cut off")]);
    let loaded = Load { session: log.session.clone(), runs: 10 }.answer(&mut beside).unwrap().unwrap();
    assert_eq!(loaded.head, Seq(3));
}
