//! The log as files: copies of it, older formats, damage.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use actix::Addr;
use clawmux_actors::store::{
    Append, Backup, FindRun, Load, ReadEvents, ReadHistory, Stop, Store, Unfinished, UsageSince,
};
use clawmux_core::auth::Owner;
use clawmux_core::error::ErrorCode;
use clawmux_core::event::{Event, Logged, Outcome, Usage};
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::time::Timestamp;
use rusqlite::Connection;

fn key(name: &str) -> SessionKey {
    SessionKey::new("main", "test", name, "main").unwrap()
}

fn append(session: &SessionKey, run: &str, seq: u64, event: Event) -> Append {
    let at = Timestamp::from_millis(seq + 1000);
    let logged = Logged { first_seq: Seq(seq), seq: Seq(seq), run: Some(RunId::from(run)), at, event };
    let (owner, reserve) = (Owner::Admins, (seq == 1).then_some(Seq(1_000_000)));
    Append { session: session.clone(), owner, events: vec![logged], durable: false, reserve }
}

fn prompt(content: &str) -> Event {
    Event::Prompted { content: content.into(), owner: Owner::Admins, idempotency_key: None }
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
    for round in 0..3 {
        let to = folder.path().join(format!("copy-{round}"));
        let before: Vec<u64> = acknowledged.iter().map(|seq| seq.load(Relaxed)).collect();
        let (first, second) = futures::join!(
            store.send(Backup { to: to.clone() }),
            store.send(Backup { to: folder.path().join("another") })
        );
        let report = first.unwrap().unwrap();
        let after: Vec<u64> = acknowledged.iter().map(|seq| seq.load(Relaxed)).collect();
        assert_ne!(after, before, "nobody wrote meanwhile");
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
    assert_eq!(unfinished, [key("a"), key("c")]);
    let asked = FindRun { owner: Owner::Admins, idempotency_key: "k3".into() };
    assert_eq!(store.send(asked).await.unwrap().unwrap(), Some((key("a"), RunId::from("r3"), Seq(13))));
    let asked = |session| ReadHistory { session, limit: 9, max_bytes: usize::MAX };
    let said: Vec<String> =
        store.send(asked(key("a"))).await.unwrap().unwrap().into_iter().map(|m| m.content).collect();
    assert_eq!(said, ["hi", "Let me look: ö", "again", "queued"]);
    assert_eq!(store.send(asked(key("b"))).await.unwrap().unwrap(), [], "it was cleared");
    let day_start = Timestamp::from_millis(1_700_092_800_000);
    let totals =
        store.send(UsageSince { day_start, month_start: Timestamp::default() }).await.unwrap().unwrap();
    assert_eq!((totals.day.total(), totals.month.total()), (30, 90));
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
