//! The log as files: copies of it, older formats, damage.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use actix::Addr;
use clawmux_actors::store::{
    Append, Backup, FindRun, Finding, Load, ReadEvents, ReadHistory, ReadTranscript, Severity, Stop, Store,
    Unfinished, UsageSince, inspect,
};
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::conversation::reply::SessionRow;
use clawmux_core::conversation::transcript::Said;
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::prompt::settings::Settings;
use clawmux_core::provider::usage::Usage;
use clawmux_core::time::Timestamp;
use rusqlite::Connection;

fn key(name: &str) -> SessionKey {
    SessionKey::new("main", "test", name, "main").unwrap()
}

fn append(session: &SessionKey, run: &str, seq: u64, event: Event) -> Append {
    let at = Timestamp::from_millis(seq + 1000);
    let logged = Logged { first_seq: Seq(seq), seq: Seq(seq), run: Some(RunId::from(run)), at, event };
    let reserve = (seq == 1).then_some(Seq(1_000_000));
    Append { session: session.clone(), events: [logged].into(), durable: false, reserve, to_say: Vec::new() }
}

fn prompt(content: &str) -> Event {
    Event::prompted(content, Owner::Admins, None)
}

async fn read(store: &Addr<Store>, session: &SessionKey) -> Vec<Logged> {
    let asked = ReadEvents { session: session.clone(), after: Seq(0), run: None, max_bytes: usize::MAX };
    store.send(asked).await.unwrap().unwrap()
}

fn files_in(folder: &Path) -> Vec<String> {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

// ---- copies ----

#[actix::test]
async fn a_copy_made_while_the_log_is_written_to_holds_all_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let acknowledged: Arc<[std::sync::atomic::AtomicU64; 4]> = Arc::default();
    let streams = (0..4_u64).map(|i| {
        let (store, over, acknowledged) = (store.clone(), Arc::clone(&over), Arc::clone(&acknowledged));
        actix::spawn(async move {
            let session = key(&i.to_string());
            for seq in 1.. {
                let run = format!("{i}-{}", seq / 100);
                let event = match seq % 100 {
                    99 => Event::Ended { outcome: Outcome::Completed, usage: Usage::default() },
                    at if at == 0 || seq == 1 => prompt("go"),
                    _ => Event::Text(format!("{seq} {} ", "x".repeat(2000))),
                };
                store.send(append(&session, &run, seq, event)).await.unwrap().unwrap();
                acknowledged[usize::try_from(i).unwrap()].store(seq, Relaxed);
                if over.load(Relaxed) {
                    break;
                }
            }
        })
    });
    let streams: Vec<_> = streams.collect();
    while acknowledged.iter().any(|seq| seq.load(Relaxed) < 300) {
        actix::clock::sleep(std::time::Duration::from_millis(5)).await;
    }
    // A slow sync may hold up all four for as long as a copy takes: such a round proves nothing.
    let (mut rounds, mut written_meanwhile) = (0, 0);
    while written_meanwhile < 3 {
        let round = rounds;
        rounds += 1;
        assert!(round < 50, "of {round} copies only {written_meanwhile} were made while somebody wrote");
        let to = folder.path().join(format!("copy-{round}"));
        let before: Vec<u64> = acknowledged.iter().map(|seq| seq.load(Relaxed)).collect();
        let (first, second) = futures::join!(
            store.send(Backup { to: to.clone() }),
            store.send(Backup { to: folder.path().join("another") })
        );
        let report = first.unwrap().unwrap();
        let after: Vec<u64> = acknowledged.iter().map(|seq| seq.load(Relaxed)).collect();
        written_meanwhile += u32::from(after != before);
        assert_eq!(second.unwrap().unwrap_err().code, ErrorCode::Conflict, "one at a time");
        let meta = to.metadata().unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (report.bytes, 0o600));
        assert_eq!(report.sessions, 4);

        // It is whole, and opens as a log.
        let db = Connection::open_with_flags(&to, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(verdict, "ok");
        drop(db);
        assert!(!files_in(folder.path()).iter().any(|name| name.starts_with(&format!("copy-{round}-"))));
        let copy = Store::start(&to).await.unwrap();
        for (i, (before, after)) in before.iter().zip(&after).enumerate() {
            let session = key(&i.to_string());
            let head =
                copy.send(Load { session: session.clone(), runs: 0 }).await.unwrap().unwrap().unwrap().head;
            // One more may have been committed and not yet acknowledged.
            assert!((*before..=after + 1).contains(&head.0), "{before} <= {head} <= {after}");
            let events = read(&copy, &session).await;
            let mut next = 1;
            for logged in &events {
                assert_eq!(logged.first_seq.0, next);
                next = logged.seq.0 + 1;
            }
            assert_eq!(next, head.0 + 1);
        }
        copy.send(Stop).await.unwrap().unwrap();
    }
    over.store(true, Relaxed);
    for stream in streams {
        stream.await.unwrap();
    }
    store.send(Stop).await.unwrap().unwrap();
    let left: Vec<_> = files_in(folder.path()).into_iter().filter(|name| name.ends_with(".part")).collect();
    assert_eq!(left, [""; 0]);
}

#[actix::test]
async fn a_copy_replaces_nothing_and_leaves_nothing_where_it_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    let store = Store::start(&path).await.unwrap();
    store.send(append(&key("a"), "r", 1, prompt("hi"))).await.unwrap().unwrap();
    let there = folder.path().join("there");
    std::fs::write(&there, "mine").unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    let full = PathBuf::from("/dev/full");
    for (to, code, says) in [
        (there.clone(), ErrorCode::Conflict, "move that one away"),
        (folder.path().join("link"), ErrorCode::Conflict, "exists"),
        (path, ErrorCode::Conflict, "exists"),
        (full, ErrorCode::Conflict, "exists"),
        (folder.path().join("no/such/folder"), ErrorCode::Unavailable, "can't write"),
        ("/proc/copy".into(), ErrorCode::Unavailable, "can't write"),
        ("/".into(), ErrorCode::InvalidRequest, "names no file"),
        (folder.path().join(".."), ErrorCode::InvalidRequest, "names no file"),
    ] {
        let error = store.send(Backup { to: to.clone() }).await.unwrap().unwrap_err();
        assert_eq!(error.code, code, "{}: {error}", to.display());
        assert!(error.message.contains(says), "{}: {error}", to.display());
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "mine");
    // What an earlier one left when the power went is in nobody's way.
    std::fs::write(folder.path().join(".copy.part"), "half").unwrap();
    let report = store.send(Backup { to: folder.path().join("copy") }).await.unwrap().unwrap();
    assert_eq!((report.sessions, report.runs), (1, 1));
    let mut expected = vec!["clawmux.db", "clawmux.db-shm", "clawmux.db-wal", "clawmux.db.lock"];
    expected.extend(["copy", "link", "there"]);
    assert_eq!(files_in(folder.path()), expected);
    store.send(Stop).await.unwrap().unwrap();
    let error = store.send(Backup { to: folder.path().join("late") }).await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
}

#[actix::test]
async fn a_copy_under_way_ends_with_the_store_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    let store = Store::start(&path).await.unwrap();
    for i in 0..100 {
        let session = key(&i.to_string());
        store.send(append(&session, &i.to_string(), 1, prompt(&"x".repeat(200_000)))).await.unwrap().unwrap();
    }
    let to = folder.path().join("copy");
    let (copied, stopped) = futures::join!(store.send(Backup { to: to.clone() }), store.send(Stop));
    stopped.unwrap().unwrap();
    let error = copied.unwrap().expect_err("a copy of 20 MB takes longer than to stop it");
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
    assert_eq!(files_in(folder.path()), ["clawmux.db", "clawmux.db.lock"]);
}

// ---- older formats ----

const FORMAT_1: &str = include_str!("fixtures/format-1.sql");

async fn holds_what_format_1_held(path: &Path) {
    let store = Store::start(path).await.unwrap();
    let a = store.send(Load { session: key("a"), runs: 5 }).await.unwrap().unwrap().unwrap();
    assert_eq!((a.head, a.reserved, a.spent.total()), (Seq(15), Seq(60), 60));
    let streaming = a.events.last().unwrap();
    assert_eq!((streaming.first_seq, &streaming.event), (Seq(14), &Event::Text("half an answer".into())));
    assert_eq!(a.events.len(), 13, "{:?}", a.events);
    assert_eq!(a.events, read(&store, &key("a")).await);
    let mut unfinished = store.send(Unfinished).await.unwrap().unwrap();
    unfinished.sort();
    let ci = Owner::Credential("ci".into());
    assert_eq!(unfinished, [key("c").in_space(&ci), key("a")]);
    let asked = FindRun { owner: Owner::Admins, idempotency_key: "k3".into(), or_id: false };
    assert_eq!(store.send(asked).await.unwrap().unwrap(), Some((key("a"), RunId::from("r3"), Seq(13))));
    let asked = |session| ReadHistory { session, limit: 9, before: None, max_bytes: usize::MAX };
    let said: Vec<String> =
        store.send(asked(key("a"))).await.unwrap().unwrap().messages.into_iter().map(|m| m.content).collect();
    assert_eq!(said, ["hi", "Let me look: \n\nö", "again", "queued"]);
    assert_eq!(store.send(asked(key("b"))).await.unwrap().unwrap().messages, [], "it was cleared");
    let day_start = Timestamp::from_millis(1_700_092_800_000);
    let totals =
        store.send(UsageSince { day_start, month_start: Timestamp::default() }).await.unwrap().unwrap();
    assert_eq!((totals.day.usage.total(), totals.month.usage.total()), (30, 90));
    // It goes on where it was: past the numbers that were set aside, and not before.
    let text = |seq| append(&key("a"), "r2", seq, Event::Text("more".into()));
    store.send(text(16)).await.unwrap().unwrap_err();
    store.send(text(61)).await.unwrap().unwrap();
    store.send(Stop).await.unwrap().unwrap();
    let db = Connection::open(path).unwrap();
    let version: String = db.query_row("SELECT version FROM meta", [], |row| row.get(0)).unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

#[actix::test]
async fn a_log_of_format_1_is_brought_up_with_all_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    Connection::open(&path).unwrap().execute_batch(FORMAT_1).unwrap();
    holds_what_format_1_held(&path).await;
}

const FORMAT_2: &str = include_str!("fixtures/format-2.sql");

/// A session of a log of format 2 in a list, with its messages: their number, place and first words.
async fn told(store: &Addr<Store>, account: &str) -> (SessionRow, u64, Vec<String>) {
    let session = SessionKey::new("main", "cli", account, "main").unwrap();
    let asked = ReadTranscript { session, limit: 100, bytes_max: 1 << 20, at: None };
    let transcript = store.send(asked).await.unwrap().unwrap().unwrap();
    let words = transcript.entries.iter().map(|entry| {
        let who = match &entry.said {
            Said::User { .. } => "user",
            Said::Assistant { model, error, .. } => {
                assert_eq!(model.as_ref().map_or("offline", |model| &model.model), "offline");
                if error.is_some() { "failed" } else { "assistant" }
            }
            Said::Tool { name, .. } => name.as_str(),
        };
        let words: String = entry.said.text().chars().take(9).collect();
        format!("{} {who} {words}", entry.place).trim_end().to_owned()
    });
    let words = words.collect();
    (transcript.row.unwrap(), transcript.total, words)
}

#[actix::test]
async fn a_log_of_format_2_is_brought_up_with_what_lists_and_histories_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    Connection::open(&path).unwrap().execute_batch(FORMAT_2).unwrap();
    let store = Store::start(&path).await.unwrap();

    let (row, total, words) = told(&store, "ada").await;
    let expected = [
        "1 user hello the",
        "2 assistant You said:",
        "3 user /tool ech",
        "4 echo hi ö",
        "5 assistant I call ec",
        "6 user /fail",
        "7 failed",
        "8 user tell me o",
        "9 assistant You said:",
    ];
    assert_eq!((total, &words[..]), (9, &expected.map(String::from)[..]));
    assert_eq!(row.title.as_deref(), Some("hello there"));
    assert!(row.last_message.unwrap().starts_with("You said: \"tell me of herons\""));
    assert!(row.last_run.is_some_and(|run| run.ended.is_some() && !run.is_aborted));
    assert_eq!((row.usage.total(), row.settings), (687 + 114, Settings::default()));

    let (row, total, words) = told(&store, "bob").await;
    assert_eq!(
        (total, &words[..]),
        (2, &["1 user new words", "2 assistant You said:"].map(String::from)[..])
    );
    assert_eq!(row.title.as_deref(), Some("new words"));

    let (row, total, words) = told(&store, "eve").await;
    assert_eq!((total, &words[..]), (2, &["1 user /slow 30", "2 user waits"].map(String::from)[..]));
    assert_eq!(row.running.len(), 2);
    assert!(row.last_run.is_some_and(|run| run.ended.is_none()));
    let session = SessionKey::new("main", "cli", "eve", "main").unwrap();
    let asked = ReadTranscript { session, limit: 1, bytes_max: 1000, at: None };
    let under_way = store.send(asked).await.unwrap().unwrap().unwrap().under_way.unwrap();
    assert!(under_way.text.starts_with("Slowly: 1 "), "{under_way:?}");
    store.send(Stop).await.unwrap().unwrap();
    // The daemon makes it so; here it was written by the test.
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, own).unwrap();
    let found = inspect(&path, WITHIN);
    assert_eq!(worst(&found), Severity::Fine, "{found:?}");
}

/// What a crash in the middle of a migration leaves: all that was written of it, and no commit.
#[actix::test]
async fn an_interrupted_migration_leaves_the_format_before_it() {
    let (folder, rest) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("clawmux.db");
    let db = Connection::open(&path).unwrap();
    db.execute_batch(FORMAT_1).unwrap();
    db.execute_batch(
        "PRAGMA journal_mode = wal;
         PRAGMA cache_size = 1;
         BEGIN;
         ALTER TABLE meta ADD COLUMN version TEXT NOT NULL DEFAULT '';
         CREATE TABLE usage_days (day INTEGER PRIMARY KEY, input_tokens INTEGER, output_tokens INTEGER) STRICT;
         WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20000)
         INSERT INTO usage_days SELECT n, n, n FROM n;
         PRAGMA user_version = 2;",
    )
    .unwrap();
    let wal = folder.path().join("clawmux.db-wal").metadata().unwrap().len();
    assert!(wal > 10_000, "nothing of the migration has reached the disk");
    for name in ["clawmux.db", "clawmux.db-wal"] {
        std::fs::copy(folder.path().join(name), rest.path().join(name)).unwrap();
    }
    drop(db);
    holds_what_format_1_held(&rest.path().join("clawmux.db")).await;
}

// ---- what an operator is told ----

const WITHIN: Duration = Duration::from_secs(60);

fn worst(found: &[Finding]) -> Severity {
    found.iter().map(|finding| finding.severity).max().unwrap()
}

/// The one finding that is an error or a warning.
#[track_caller]
fn complaint(found: &[Finding]) -> &Finding {
    let mut bad = found.iter().filter(|finding| finding.severity > Severity::Fine);
    let (first, second) = (bad.next(), bad.next());
    assert!(first.is_some() && second.is_none(), "{found:#?}");
    first.unwrap()
}

fn bytes_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let names = files_in(folder).into_iter().filter(|name| !name.ends_with("-shm"));
    names.map(|name| (name.clone(), std::fs::read(folder.join(&name)).unwrap())).collect()
}

/// A log with some of everything, and what is only in its write-ahead log, as a crash leaves it.
async fn crashed(folder: &Path) -> PathBuf {
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("clawmux.db");
    Connection::open(&path).unwrap().execute_batch(FORMAT_1).unwrap();
    let store = Store::start(&path).await.unwrap();
    for i in 0..20_u64 {
        let (session, run) = (key(&format!("s{i}")), format!("run-{i}"));
        store.send(append(&session, &run, 1, prompt(&"p".repeat(3000)))).await.unwrap().unwrap();
        for seq in 2..10 {
            let text = Event::Text(format!("{seq} {}", "t".repeat(300)));
            store.send(append(&session, &run, seq, text)).await.unwrap().unwrap();
        }
        let end = Event::Ended { outcome: Outcome::Completed, usage: Usage::default() };
        if i % 2 == 0 {
            store.send(append(&session, &run, 10, end)).await.unwrap().unwrap();
        }
    }
    // Part of it in the log itself, part beside it.
    Connection::open(&path).unwrap().query_row("PRAGMA wal_checkpoint", [], |_| Ok(())).unwrap();
    store.send(append(&key("late"), "late", 1, prompt("hi"))).await.unwrap().unwrap();
    for name in ["clawmux.db", "clawmux.db-wal"] {
        let to = folder.join(name);
        std::fs::copy(other.path().join(name), &to).unwrap();
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    store.send(Stop).await.unwrap().unwrap();
    folder.join("clawmux.db")
}

#[actix::test]
async fn a_sound_log_is_told_so_whether_it_is_open_or_not_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    let found = inspect(&path, WITHIN);
    assert!(found[0].what.contains("clawmux serve makes it"), "{found:#?}");
    assert_eq!(worst(&found), Severity::Fine);
    assert_eq!(files_in(folder.path()), [""; 0], "a look makes no file");

    let path = crashed(folder.path()).await;
    let before = bytes_of(folder.path());
    let found = inspect(&path, WITHIN);
    assert_eq!(worst(&found), Severity::Fine, "{found:#?}");
    assert!(found.iter().any(|f| f.what == "24 sessions, 14 runs that have not ended"), "{found:#?}");
    assert!(found.iter().any(|f| f.what == "no daemon has the store open"), "{found:#?}");
    assert_eq!(bytes_of(folder.path()), before);

    let store = Store::start(&path).await.unwrap();
    store.send(append(&key("b"), "r", 4, prompt("hi"))).await.unwrap().unwrap();
    let before = bytes_of(folder.path());
    let found = inspect(&path, WITHIN);
    assert_eq!(worst(&found), Severity::Fine, "{found:#?}");
    let open = format!("process {} has the store open", std::process::id());
    assert!(found.iter().any(|f| f.what == open), "{found:#?}");
    assert_eq!(bytes_of(folder.path()), before);
    store.send(append(&key("b"), "r", 5, Event::Started)).await.unwrap().unwrap();
    store.send(Stop).await.unwrap().unwrap();
    let found = inspect(&path, WITHIN);
    assert_eq!(worst(&found), Severity::Fine, "{found:#?}");

    let found = inspect(&path, Duration::ZERO);
    assert!(complaint(&found).what.contains("not looked through within 0 ms"), "{found:#?}");
}

#[actix::test]
async fn what_is_wrong_with_a_log_is_named_with_what_to_do() {
    type Spoil = fn(&Path);
    let spoiled: [(Spoil, Severity, &str, &str); 7] = [
        (|p| permit(p, 0o644), Severity::Warning, "others than its owner", "chmod 600"),
        (|p| permit(p, 0o400), Severity::Error, "may not be read and written", "chmod 600"),
        (
            |p| std::fs::remove_file(p).unwrap(),
            Severity::Error,
            "-wal is there",
            "put the store it belongs to back",
        ),
        (
            |p| std::fs::write(with(p, "-wal"), "garbage".repeat(1000)).unwrap(),
            Severity::Warning,
            "no write-ahead log",
            "a copy",
        ),
        (
            |p| std::fs::write(p, "not a database ".repeat(1000)).unwrap(),
            Severity::Error,
            "is not a clawmux store, or its beginning is damaged",
            ".recover",
        ),
        (|p| overwrite(p, 0, &[0; 100]), Severity::Error, "file is not a database", ".recover"),
        (|p| overwrite(p, 4096, &[0xff; 20 * 4096]), Severity::Error, "damaged", "clawmux backup"),
    ];
    for (i, (spoil, severity, what, advice)) in spoiled.into_iter().enumerate() {
        is_named(&format!("file {i}"), spoil, severity, what, advice).await;
    }
    for (sql, what, advice) in [
        ("PRAGMA user_version = 77", "format 77", "use clawmux"),
        ("PRAGMA application_id = 5", "another program", "store.path"),
        ("DELETE FROM sessions WHERE id = 1", "runs whose session is not there", "copy"),
        ("UPDATE sessions SET head = 1 WHERE id = 1", "beyond their last number", "copy"),
        ("UPDATE deltas SET page = x'0101ffffff'", "text that streams", "copy"),
        ("UPDATE sessions SET key = 'x' WHERE id = 1", "has the name \"x\"", "copy"),
        ("DELETE FROM runs WHERE run = 'r1'", "idempotency keys", "copy"),
        ("DROP TABLE events", "no such table", "copy"),
    ] {
        is_named(sql, |path| fold(path, sql), Severity::Error, what, advice).await;
    }
}

/// A look at a log that was spoiled so finds something as severe, with these words and this advice.
async fn is_named(case: &str, spoil: impl FnOnce(&Path), severity: Severity, what: &str, advice: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = crashed(folder.path()).await;
    spoil(&path);
    let found = inspect(&path, WITHIN);
    assert_eq!(worst(&found), severity, "{case}: {found:#?}");
    let is_it = |f: &Finding| f.severity == severity && f.what.contains(what) && f.advice.contains(advice);
    assert!(found.iter().any(is_it), "{case}: {what:?} in {found:#?}");
}

fn permit(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn with(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::File::options().write(true).open(path).unwrap(),
        bytes,
        at,
    )
    .unwrap();
}

/// Changes the log as one file, which then has nothing beside it.
fn fold(path: &Path, change: &str) {
    let db = Connection::open(path).unwrap();
    db.execute_batch(change).unwrap();
    db.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(())).unwrap();
}

/// Whatever the bytes: a look at them ends with findings, a start with a log or an error that says
/// what to do, a question with an answer or an error.
#[test]
fn no_damage_is_more_than_a_finding() {
    let rounds: u64 =
        std::env::var("CLAWMUX_TEST_DAMAGE_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap());
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).unwrap()
    };
    let sound = tempfile::tempdir().unwrap();
    let (mut complaints, mut refusals) = (0, 0);
    let system = actix::System::new();
    let path = system.block_on(crashed(sound.path()));
    let (db, wal) = (std::fs::read(&path).unwrap(), std::fs::read(with(&path, "-wal")).unwrap());
    for round in 0..rounds {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let (mut db, mut wal) = (db.clone(), wal.clone());
        match draw(8) {
            0 => db.truncate(draw(db.len())),
            1 => wal = (0..draw(20_000)).map(|_| draw(256) as u8).collect(),
            2 => wal.truncate(draw(wal.len())),
            3 => {
                let at = draw(wal.len());
                wal[at] ^= 1 << draw(8);
            }
            4 => {
                let (page, with) = (draw(db.len() / 4096), draw(256) as u8);
                db[page * 4096..][..4096].fill(with);
            }
            5 => {
                let at = draw(100);
                db[at] = draw(256) as u8;
            }
            _ => {
                for _ in 0..1 + draw(200) {
                    let at = draw(db.len());
                    db[at] = draw(256) as u8;
                }
            }
        }
        std::fs::write(&path, db).unwrap();
        if !wal.is_empty() {
            std::fs::write(with(&path, "-wal"), wal).unwrap();
        }
        for entry in folder.path().read_dir().unwrap() {
            permit(&entry.unwrap().path(), 0o600);
        }
        let found = inspect(&path, WITHIN);
        complaints += usize::from(worst(&found) > Severity::Fine);
        for finding in &found {
            assert_eq!(
                finding.advice.is_empty(),
                finding.severity == Severity::Fine,
                "round {round}: {found:#?}"
            );
        }
        system.block_on(async {
            let store = match Store::open(&path).await {
                Ok(store) => actix::Actor::start(store),
                Err(error) => {
                    refusals += 1;
                    assert_eq!(worst(&found), Severity::Error, "round {round}: {error}, but {found:#?}");
                    assert!(error.message.contains("clawmux doctor"), "round {round}: {error}");
                    return;
                }
            };
            for i in 0..20 {
                let session = key(&format!("s{i}"));
                let _ = store.send(Load { session: session.clone(), runs: 9 }).await.unwrap();
                let all =
                    ReadEvents { session: session.clone(), after: Seq(0), run: None, max_bytes: usize::MAX };
                let _ = store.send(all).await.unwrap();
                let _ = store
                    .send(ReadHistory { session, limit: 9, before: None, max_bytes: 1 << 20 })
                    .await
                    .unwrap();
            }
            let _ = store.send(Unfinished).await.unwrap();
            let _ = store.send(append(&key("new"), "new", 1, prompt("hi"))).await.unwrap();
            let to = folder.path().join("copy");
            if let Ok(report) = store.send(Backup { to: to.clone() }).await.unwrap() {
                assert_eq!(to.metadata().unwrap().len(), report.bytes);
            }
            let _ = store.send(Stop).await.unwrap();
        });
    }
    println!("{rounds} rounds: {complaints} complaints, {refusals} refused starts");
    assert!(complaints as u64 * 3 > rounds && refusals > 0, "{complaints} complaints, {refusals} refusals");
}
