//! What many sessions and long ones cost: a start, and waking one of them. Measured in bytes read
//! from files, which the kernel counts for each process and no other load on the machine changes: hence
//! these tests have a process of their own.

#![allow(unreachable_pub, reason = "a test exports nothing")]
#![allow(clippy::unwrap_used, reason = "a test says why it failed by failing")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test prints its figures")]

#[path = "support/sessions.rs"]
mod sessions;
#[allow(unused, reason = "the crate `it` uses all of it")]
mod support;

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clawmux_actors::store::{Load, ReadRows, Stop, Store};
use clawmux_core::conversation::command::SessionFilter;
use clawmux_core::conversation::event::Event;
use clawmux_core::ids::SessionKey;
use rusqlite::Connection;
use sessions::{fill, log};
use support::daemon::{Daemon, home};
use support::eventually;
use support::process::resident_bytes;

/// Those that had work when the daemon died, among few and among many.
const UNFINISHED: u64 = 20;

/// The bytes that this process reads are counted: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Some of them, spread among the others, get a run that has not ended.
fn leave_unfinished(path: &Path, sessions: u64) {
    let every = sessions / UNFINISHED;
    Connection::open(path)
        .unwrap()
        .execute_batch(&format!(
            "BEGIN IMMEDIATE;
             UPDATE sessions SET head = 5 WHERE id % {every} = 0;
             INSERT INTO runs (run, session, prompted, settled)
                 SELECT 'late-' || id, id, 5, 5 FROM sessions WHERE head = 5;
             INSERT INTO events (session, seq, first, run, at, kind, body)
                 SELECT session, 5, 5, id, 1, 'prompted', CAST('{{\"content\":\"go on\",\"owner\":\"\"}}' AS BLOB)
                     FROM runs WHERE ended IS NULL;
             COMMIT;
             PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
}

/// What a process has read from files so far.
fn bytes_read(process: &str) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}

#[test]
fn a_hundred_thousand_sessions_do_not_slow_the_start() {
    let _alone = ALONE.lock();
    let mut read = Vec::new();
    for sessions in [100, 100_000] {
        let home = home();
        let path = log(home.path());
        fill(&path, sessions);
        let db_bytes = path.metadata().unwrap().len();
        let begin = Instant::now();
        let daemon = Daemon::at(home, "[store]\nrecovery = \"interrupt\"\n", &[]);
        let ready = begin.elapsed();
        let idle_bytes = bytes_read(&daemon.pid().to_string());
        let resident = resident_bytes(daemon.pid()) / 1024;

        leave_unfinished(&path, sessions);
        let daemon = daemon.kill_and_restart();
        // Their end belongs to a start as well.
        let db = Connection::open(&path).unwrap();
        let count = |condition| -> i64 {
            db.query_row(&format!("SELECT count(*) FROM runs WHERE {condition}"), [], |row| row.get(0))
                .unwrap()
        };
        eventually("the end of unfinished runs", || count("ended IS NULL") == 0);
        let busy_bytes = bytes_read(&daemon.pid().to_string());
        assert_eq!(count("run GLOB 'late-*'"), UNFINISHED as i64);
        println!(
            "{sessions} sessions ({} KiB): ready after {} ms, {resident} KiB resident, {} KiB read; {} KiB with {UNFINISHED} unfinished runs",
            db_bytes / 1024,
            ready.as_millis(),
            idle_bytes / 1024,
            busy_bytes / 1024,
        );
        read.push((idle_bytes, busy_bytes, db_bytes));
    }
    let [few, many] = read[..] else { unreachable!() };
    // A tree of a thousand times as many has a few more levels. Nothing else may be seen of them.
    assert!(many.0 < few.0 + 32 * 4096, "{} bytes read instead of {}", many.0, few.0);
    assert!(many.1 < few.1 + UNFINISHED * 40 * 4096, "{} bytes read instead of {}", many.1, few.1);
    assert!(many.2 > 40 << 20, "{} bytes are too few to show anything", many.2);
}

/// A session with many runs that have ended and one that has not; where it was cleared, nothing since.
fn long_session(path: &Path, runs: u64, cleared: bool) {
    let last = 4 * runs;
    Connection::open(path)
        .unwrap()
        .execute_batch(&format!(
            "BEGIN;
             CREATE TEMP TABLE n AS
                 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {runs}) SELECT n FROM n;
             INSERT INTO sessions (id, key, owner, created, updated, head, reserved, cleared, opened)
                 VALUES (1, 'main:websocket:long:main', '', 1, 1, {last} + 2, 0, iif({cleared}, {last} + 2, 0), 1);
             INSERT INTO runs (id, run, session, prompted, settled, ended, progress)
                 SELECT n, 'run-' || n, 1, 4 * n - 3, 4 * n, 4 * n, 2 FROM n;
             INSERT INTO runs (id, run, session, prompted, settled) SELECT {runs} + 1, 'late', 1, {last} + 1, {last} + 1;
             INSERT INTO events (session, seq, first, run, at, kind, body)
                 SELECT 1, 4 * n - 3, 4 * n - 3, n, 1, 'prompted', CAST('{{\"content\":\"how are you?\",\"owner\":\"\"}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT 1, 4 * n - 2, 4 * n - 2, n, 1, 'started', CAST('{{}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT 1, 4 * n - 1, 4 * n - 1, n, 1, 'text', CAST('{{\"text\":\"fine, thank you\",\"lengths\":[15]}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT 1, 4 * n, 4 * n, n, 1, 'ended', CAST('{{\"outcome\":\"completed\",\"usage\":{{\"input\":3,\"output\":4}}}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT 1, {last} + 1, {last} + 1, {runs} + 1, 1, 'prompted', CAST('{{\"content\":\"go on\",\"owner\":\"\"}}' AS BLOB)
                 UNION ALL
                 SELECT 1, {last} + 2, {last} + 2, NULL, 1, 'cleared', CAST('{{}}' AS BLOB);
             COMMIT;
             PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
}

#[test]
fn a_long_history_does_not_slow_the_waking_of_a_session() {
    let _alone = ALONE.lock();
    for cleared in [false, true] {
        let mut read = Vec::new();
        for runs in [20, 20_000] {
            let home = home();
            let path = log(home.path());
            long_session(&path, runs, cleared);
            let (bytes, took, loaded) = actix::System::new().block_on(async {
                let store = Store::start(&path).await.unwrap();
                let (before, begin) = (bytes_read("self"), Instant::now());
                let session = SessionKey::parse("main:websocket:long:main").unwrap();
                let loaded = store.send(Load { session, runs: 10 }).await.unwrap().unwrap().unwrap();
                let measured = (bytes_read("self") - before, begin.elapsed(), loaded);
                store.send(Stop).await.unwrap().unwrap();
                measured
            });
            let prompts =
                loaded.events.iter().filter(|logged| matches!(logged.event, Event::Prompted { .. }));
            assert_eq!(prompts.count(), if cleared { 1 } else { 11 });
            assert_eq!(loaded.head.0, 4 * runs + 2);
            read.push((bytes, took));
        }
        let [(few, soon), (many, late)] = read[..] else { unreachable!() };
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        println!(
            "to load a session (cleared: {cleared}): {} KiB in {:.1} ms with 20 runs, {} KiB in {:.1} ms with 20000",
            few / 1024,
            ms(soon),
            many / 1024,
            ms(late)
        );
        assert!(many < few + 24 * 4096, "{many} bytes read instead of {few}");
    }
}

#[test]
fn a_list_costs_what_it_shows() {
    let _alone = ALONE.lock();
    let mut read = Vec::new();
    for sessions in [100, 100_000] {
        let home = home();
        let path = log(home.path());
        fill(&path, sessions);
        let (bytes, took) = actix::System::new().block_on(async {
            let store = Store::start(&path).await.unwrap();
            let agent = Some("main".into());
            let filter = SessionFilter { limit: 100, agent, with_texts: true, ..SessionFilter::default() };
            let (before, begin) = (bytes_read("self"), Instant::now());
            let list =
                store.send(ReadRows { filter, owner: None, bytes_max: 1 << 20 }).await.unwrap().unwrap();
            let measured = (bytes_read("self") - before, begin.elapsed());
            assert_eq!((list.rows.len(), list.total), (100, sessions));
            let newest = &list.rows[0];
            assert_eq!(newest.session.account(), format!("user-{sessions}"));
            store.send(Stop).await.unwrap().unwrap();
            measured
        });
        println!(
            "100 of {sessions} sessions: {} KiB read in {:.1} ms",
            bytes / 1024,
            took.as_secs_f64() * 1e3
        );
        read.push(bytes);
    }
    // To count all of them their keys are read, and nothing else of those that are not shown.
    assert!(read[1] < read[0] + 100_000 * 64, "{} bytes read instead of {}", read[1], read[0]);
}
