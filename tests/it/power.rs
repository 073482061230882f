//! Power cuts, by a model: the real daemon runs on a disk that records every write and sync, through
//! kills, failed syncs and clean stops, while clients note what they were told and when. Then the
//! power is cut at many points of what was recorded: of what was not synced anything may be there.
//! Whatever a client was told before the cut must be in what is left.
//!
//! | variable | says |
//! |---|---|
//! | `CLAWMUX_POWER_POINTS` | at how many points, or `all`: every point, in every way |
//! | `CLAWMUX_POWER_SEED` | where, and what is left: printed by every run |
//!
//! What the seed does not decide is how the daemon's threads took turns while it was recorded.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use crate::shim::journal::{Disk as Model, Journal, Kept};
use crate::shim::random::Random;
use crate::shim::{BROKEN, Disk};
use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::eventually;

const SESSIONS: usize = 4;
const POINTS: usize = 300;
/// How often a sync fails.
const FAULTS: usize = 3;
/// So many of them are looked at by a real daemon, too.
const DAEMONS: usize = 3;
const WAYS: [Kept; 5] = [Kept::Nothing, Kept::Everything, Kept::Some, Kept::Torn, Kept::Beginning];

/// Something a client was told, once the journal had so many bytes.
#[derive(Clone, Debug)]
struct Fact {
    bytes: u64,
    account: String,
    told: Told,
}

#[derive(Clone, Debug)]
enum Told {
    /// A prompt was acknowledged.
    Accepted { key: String, run: String, seq: i64 },
    /// An event was shown, with its number; `text` need not survive.
    Shown { event: String, seq: i64 },
}

/// What all clients were told.
#[derive(Clone)]
struct Record {
    facts: Arc<Mutex<Vec<Fact>>>,
    journal: std::path::PathBuf,
}

impl Record {
    fn note(&self, account: &str, told: Told) {
        let bytes = self.journal.metadata().unwrap().len();
        self.facts.lock().unwrap().push(Fact { bytes, account: account.to_owned(), told });
    }

    fn count(&self, is: impl Fn(&Fact) -> bool) -> usize {
        self.facts.lock().unwrap().iter().filter(|fact| is(fact)).count()
    }

    /// The last number a session has shown.
    fn last(&self, account: &str) -> i64 {
        let facts = self.facts.lock().unwrap();
        let shown = facts.iter().filter(|fact| fact.account == account).map(|fact| match &fact.told {
            Told::Shown { seq, .. } => *seq,
            Told::Accepted { .. } => 0,
        });
        shown.max().unwrap_or(0)
    }
}

fn params(account: &str) -> Value {
    json!({"channel": "websocket", "account": account})
}

/// Follows a session until the connection ends.
fn follow(address: std::net::SocketAddr, account: String, record: Record) -> JoinHandle<()> {
    let mut client = Client::connect(address);
    let mut asked = params(&account);
    asked["after_seq"] = record.last(&account).into();
    let id = client.request("session.attach", asked);
    std::thread::spawn(move || {
        while let Ok(frame) = client.receive_or_close() {
            assert!(frame["id"] == id || frame["error"] == "draining", "{frame}");
            if let (Some(event), Some(seq)) = (frame["event"].as_str(), frame["seq"].as_i64()) {
                record.note(&account, Told::Shown { event: event.to_owned(), seq });
            }
        }
    })
}

/// Sends prompts, one after the other, until the connection ends.
fn speak(address: std::net::SocketAddr, account: String, life: usize, record: Record) -> JoinHandle<()> {
    let mut client = Client::connect(address);
    std::thread::spawn(move || {
        for at in 0.. {
            let content = match at % 4 {
                0 => format!("prompt {at} of {account}: {}", "İ words ".repeat(at * 40)),
                1 => format!(r#"/tool echo {{"text":"{account} {at}"}}"#),
                2 => "/tool clock {}".to_owned(),
                _ => "/slow 1".to_owned(),
            };
            let key = format!("{account}-{life}-{at}");
            let mut asked = params(&account);
            asked["content"] = content.into();
            asked["idempotency_key"] = key.as_str().into();
            loop {
                if client.try_request("again", "chat.send", asked.clone()).is_err() {
                    return;
                }
                // Refused: the same again, as a client does.
                let mut done = false;
                while !done {
                    let Ok(frame) = client.receive_or_close() else { return };
                    if frame["event"] == "accepted" {
                        let run = frame["data"]["run"].as_str().unwrap().to_owned();
                        let seq = frame["data"]["seq"].as_i64().unwrap();
                        record.note(&account, Told::Accepted { key: key.clone(), run, seq });
                    }
                    if frame.get("error").is_some() {
                        break;
                    }
                    done = frame["event"] == "done";
                }
                if done {
                    break;
                }
                std::thread::yield_now();
            }
        }
    })
}

/// Everybody speaks and is followed until so many more prompts were acknowledged.
fn live(daemon: &Daemon, life: usize, record: &Record, prompts: usize) -> Vec<JoinHandle<()>> {
    let accepted = |fact: &Fact| matches!(fact.told, Told::Accepted { .. });
    let until = record.count(accepted) + prompts;
    let mut threads = Vec::new();
    for session in 0..SESSIONS {
        let account = format!("s{session}");
        threads.push(follow(daemon.address, account.clone(), record.clone()));
        threads.push(speak(daemon.address, account, life, record.clone()));
    }
    eventually("prompts to be acknowledged", || record.count(accepted) >= until);
    threads
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// A life of the daemon, with all that can happen to it but power cuts.
fn record(disk: &Disk, home: tempfile::TempDir) -> Vec<Fact> {
    let record = Record { facts: Arc::default(), journal: disk.journal() };
    let daemon = Daemon::at_with(home, "", disk.recording());
    let threads = live(&daemon, 1, &record, 14);
    let daemon = daemon.kill_and_restart();
    join(threads);

    let threads = live(&daemon, 2, &record, 6);
    for _ in 0..FAULTS {
        // While text streams that was not synced yet.
        let shown = |fact: &Fact| matches!(&fact.told, Told::Shown { event, .. } if event == "text");
        let until = record.count(shown) + 10;
        eventually("text to be shown", || record.count(shown) >= until);
        disk.fail("log", "sync", BROKEN, 0);
        eventually("the fault to be met", || daemon.get("/readyz").0 == 503);
        disk.heal();
        eventually("the fault to be over", || daemon.get("/readyz").0 == 200);
        let accepted = |fact: &Fact| matches!(fact.told, Told::Accepted { .. });
        let until = record.count(accepted) + 6;
        eventually("prompts to be acknowledged again", || record.count(accepted) >= until);
    }
    // Killed before it could make good for a failed sync: nobody remembers that there was one.
    disk.fail("log", "sync", BROKEN, 0);
    eventually("the fault to be met", || daemon.get("/readyz").0 == 503);
    disk.heal();
    let daemon = daemon.kill_and_restart();
    join(threads);

    let threads = live(&daemon, 3, &record, 8);
    let daemon = daemon.restart();
    join(threads);

    let threads = live(&daemon, 4, &record, 6);
    drop(daemon);
    join(threads);
    record.facts.lock().unwrap().clone()
}

/// What was checked.
#[derive(Debug, Default)]
struct Checked {
    accepted: usize,
    shown: usize,
    numbers: usize,
}

/// Whether all that was told is in what is left.
fn check(folder: &Path, told: &[&Fact], checked: &mut Checked) -> Result<(), String> {
    let path = folder.join("clawmux.db");
    if !path.exists() {
        return if told.is_empty() { Ok(()) } else { Err("there is no database".into()) };
    }
    let failed = |error: rusqlite::Error| error.to_string();
    let db = Connection::open(&path).map_err(failed)?;
    let tables: i64 =
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if tables == 0 {
        return if told.is_empty() { Ok(()) } else { Err("the database is empty".into()) };
    }
    let sound: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).map_err(failed)?;
    if sound != "ok" {
        return Err(sound);
    }
    let mut seen: HashMap<&str, i64> = HashMap::new();
    for fact in told {
        let session = format!("main:websocket:{}:main", fact.account);
        match &fact.told {
            Told::Accepted { key, run, seq } => {
                checked.accepted += 1;
                let found = db
                    .query_row(
                        "SELECT r.run, r.prompted, s.key FROM idempotency i JOIN runs r ON r.id = i.run
                         JOIN sessions s ON s.id = r.session WHERE i.key = ?",
                        [key],
                        |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?)),
                    )
                    .optional()
                    .map_err(failed)?;
                if found.as_ref() != Some(&(run.clone(), *seq, session.clone())) {
                    return Err(format!("{fact:?} was acknowledged, and this is left of it: {found:?}"));
                }
            }
            Told::Shown { event, seq } => {
                let last = seen.entry(&fact.account).or_default();
                *last = (*last).max(*seq);
                if event == "text" {
                    continue;
                }
                checked.shown += 1;
                let kind: Option<String> = db
                    .query_row(
                        "SELECT kind FROM events WHERE session = (SELECT id FROM sessions WHERE key = ?1)
                         AND first <= ?2 AND seq >= ?2",
                        (&session, seq),
                        |row| row.get(0),
                    )
                    .optional()
                    .map_err(failed)?;
                let kinds: &[&str] = match event.as_str() {
                    "tool_use" => &["tool_called"],
                    "tool_result" => &["tool_returned"],
                    "prompt" => &["prompted"],
                    "restart" => &["restarted"],
                    _ => &["ended"],
                };
                if !kind.as_ref().is_some_and(|kind| kinds.contains(&kind.as_str())) {
                    return Err(format!("{fact:?} was shown, and this is left of it: {kind:?}"));
                }
            }
        }
    }
    for (account, last) in seen {
        checked.numbers += 1;
        let (head, reserved, open): (i64, i64, bool) = db
            .query_row(
                "SELECT max(s.head, (SELECT coalesce(max(seq), 0) FROM events WHERE session = s.id)), s.reserved,
                 EXISTS (SELECT 1 FROM runs WHERE session = s.id AND ended IS NULL) FROM sessions s WHERE key = ?",
                [format!("main:websocket:{account}:main")],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .map_err(failed)?;
        if last > head && !(open && last <= reserved) {
            return Err(format!(
                "{account} has shown number {last}, and would give it out again: \
                 head {head}, reserved up to {reserved}, with an open run: {open}"
            ));
        }
    }
    Ok(())
}

/// A real daemon on what is left: every key is its run, every run comes to its end, and what is said
/// from now on has new numbers.
fn go_on(home: tempfile::TempDir, told: &[&Fact]) {
    let (mut daemon, mut client) = Daemon::at_with(home, "", Vec::new()).and(Client::connect);
    for fact in told {
        let Told::Accepted { key, run, seq } = &fact.told else { continue };
        let mut asked = params(&fact.account);
        asked["content"] = "the same".into();
        asked["idempotency_key"] = key.as_str().into();
        let id = client.request("chat.send", asked);
        let stream = client.stream(&id);
        assert_eq!(stream.data("accepted").next(), Some(&json!({"run": run, "seq": seq})), "{stream:?}");
        assert_eq!(stream.events().last(), Some(&"done"), "{stream:?}");
    }
    for session in 0..SESSIONS {
        let account = format!("s{session}");
        let shown = told.iter().filter(|fact| fact.account == account).filter_map(|fact| match fact.told {
            Told::Shown { seq, .. } => Some(seq),
            Told::Accepted { .. } => None,
        });
        let mut asked = params(&account);
        asked["content"] = "what is new?".into();
        asked["idempotency_key"] = format!("new {account}").into();
        let id = client.request("chat.send", asked);
        let new = client.stream(&id);
        let seq = new.data("accepted").next().and_then(|data| data["seq"].as_i64()).unwrap();
        assert!(shown.max().unwrap_or(0) < seq, "number {seq} was shown before: {new:?}");
    }
    assert!(daemon.terminate().success());
}

#[test]
fn what_was_told_before_a_power_cut_is_there_after_it() {
    let seed = std::env::var("CLAWMUX_POWER_SEED").ok().map_or(20_260_101, |seed| seed.parse().unwrap());
    let wanted = std::env::var("CLAWMUX_POWER_POINTS").unwrap_or_else(|_| POINTS.to_string());
    let home = daemon::home();
    let disk = Disk::under(home.path());
    let facts = record(&disk, home);
    let journal = Journal::read(&disk.journal());
    let mut random = Random::new(seed);

    let mut points: Vec<usize> = match wanted.as_str() {
        "all" => (0..=journal.len()).collect(),
        count => (0..count.parse().unwrap()).map(|_| random.below(journal.len() + 1)).collect(),
    };
    points.sort_unstable();
    let daemons: Vec<usize> = (0..DAEMONS).map(|_| random.below(points.len())).collect();
    let mut model = Model::default();
    let mut checked = Checked::default();
    let (mut cuts, mut unsure) = (0, 0);
    for (index, point) in points.iter().enumerate() {
        model.play(&journal, *point);
        unsure = unsure.max(model.unsure());
        let told: Vec<&Fact> = facts.iter().filter(|fact| journal.at(fact.bytes) <= *point).collect();
        let ways = if wanted == "all" { WAYS.to_vec() } else { vec![WAYS[random.below(WAYS.len())]] };
        for kept in ways {
            let left = daemon::home();
            model.cut_power(kept, &mut random, left.path());
            cuts += 1;
            if let Err(why) = check(left.path(), &told, &mut checked) {
                panic!(
                    "power cut after {point} of {} operations, {kept:?} of {} that were not synced kept \
                     (CLAWMUX_POWER_SEED={seed}): {why}",
                    journal.len(),
                    model.unsure()
                );
            }
            if daemons.contains(&index) {
                go_on(left, &told);
            }
        }
    }
    let (writes, syncs, failed) = journal.count();
    eprintln!(
        "power: seed {seed}: {cuts} cuts at {} points of {} operations ({writes} writes, {syncs} syncs of which {failed} \
         failed, at most {unsure} writes in doubt); checked {} acknowledgements, {} events shown, {} last numbers; \
         {} told in all; {DAEMONS} real daemons went on",
        points.len(),
        journal.len(),
        checked.accepted,
        checked.shown,
        checked.numbers,
        facts.len(),
    );
    assert!(
        failed > 0 && unsure > 10 && checked.accepted > 0 && checked.shown > 0,
        "the test tests something"
    );
}
