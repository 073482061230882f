//! Stores of every format that ever was, and files that are none.

use super::*;
use rusqlite::Row;

/// An empty file of an older format.
fn empty(format: usize) -> Connection {
    let db = Connection::open_in_memory().unwrap();
    add_functions(&db).unwrap();
    for step in &MIGRATIONS[..format] {
        db.execute_batch(step).unwrap();
    }
    db.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    db.pragma_update(None, "user_version", i64::try_from(format).unwrap()).unwrap();
    db
}

/// The rows that a query finds.
fn rows<T>(db: &Connection, sql: &str, row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
    db.prepare(sql).unwrap().query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_new_file_gets_the_tables_and_opens_again() {
    let mut db = Connection::open_in_memory().unwrap();
    migrate(&mut db).unwrap();
    migrate(&mut db).unwrap();
    let opened: i64 = db.query_row("SELECT opened FROM meta", [], |row| row.get(0)).unwrap();
    assert_eq!(opened, 0);
}

/// What a new store consists of, as SQL: its tables with what is in them, in the order they were made in.
fn told(db: &Connection) -> String {
    const MADE: &str = "SELECT name, type, sql FROM sqlite_master
        WHERE sql IS NOT NULL AND substr(name, 1, 7) <> 'sqlite_' ORDER BY rowid";
    let made: Vec<(String, String, String)> =
        rows(db, MADE, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let is_virtual = |sql: &str| sql.starts_with("CREATE VIRTUAL");
    let parents: Vec<String> =
        made.iter().filter(|(.., sql)| is_virtual(sql)).map(|(name, ..)| format!("{name}_")).collect();
    let mut told = String::new();
    for (name, kind, sql) in &made {
        // What a virtual table keeps its own things in it makes by itself.
        if parents.iter().any(|parent| name.starts_with(parent.as_str()))
            && !is_virtual(sql)
            && kind == "table"
        {
            continue;
        }
        told.push_str(&format!("{sql};\n"));
        if kind == "table" && !is_virtual(sql) {
            let columns: Vec<String> = rows(
                db,
                &format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{name}')"),
                |row| row.get(0),
            );
            let values = format!("SELECT {} FROM {name}", columns.join(" || ', ' || "));
            for row in rows(db, &values, |row| row.get::<_, String>(0)) {
                let row = with_secrets_drawn(row);
                told.push_str(&format!("INSERT INTO {name} VALUES ({row});\n"));
            }
        }
    }
    told
}

/// A row with every secret as what draws one.
fn with_secrets_drawn(row: String) -> String {
    let drawn = |value: &str| {
        let hex = value.strip_prefix("X'").and_then(|value| value.strip_suffix('\''));
        match hex {
            Some(hex) if hex.len() == 64 && hex.contains(|digit| digit != '0') => "randomblob(32)".into(),
            _ => value.to_owned(),
        }
    };
    row.split(", ").map(drawn).collect::<Vec<String>>().join(", ")
}

#[test]
fn every_new_store_has_a_secret_of_its_own() {
    let secret = || {
        let mut db = Connection::open_in_memory().unwrap();
        migrate(&mut db).unwrap();
        db.query_row("SELECT device_secret FROM meta", [], |row| row.get::<_, Vec<u8>>(0)).unwrap()
    };
    let (one, other) = (secret(), secret());
    assert_eq!((one.len(), other.len()), (32, 32));
    assert_ne!(one, other);
}

#[test]
fn a_new_store_is_what_all_migrations_make() {
    let migrated = told(&empty(MIGRATIONS.len()));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/store/schema/current.sql");
    if std::env::var_os("CLAWMUX_RECORD").is_some() {
        std::fs::write(file, format!("-- Written by a test with CLAWMUX_RECORD=1; see mod.rs.\n{migrated}"))
            .unwrap();
    }
    let mut new = Connection::open_in_memory().unwrap();
    migrate(&mut new).unwrap();
    assert_eq!(
        told(&new),
        migrated,
        "run this test with CLAWMUX_RECORD=1 after a migration was added, and build again"
    );
    assert_eq!(kind(&new).unwrap(), Kind::Log(FORMAT));
}

#[test]
fn a_newer_format_is_refused() {
    let mut db = Connection::open_in_memory().unwrap();
    migrate(&mut db).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    let refused = |db: &mut Connection| {
        let error = migrate(db).unwrap_err();
        assert_eq!(error.code, ErrorCode::Conflict);
        assert!(error.message.contains("format 99"), "{error}");
        error.message
    };
    assert!(refused(&mut db).contains("the version that wrote it"));
    db.execute_batch("UPDATE meta SET version = '9.1.0'").unwrap();
    assert!(refused(&mut db).contains("clawmux 9.1.0"));
    for garbage in ["0", "-5", "-2147483648"] {
        db.execute_batch(&format!("PRAGMA user_version = {garbage}")).unwrap();
        assert_eq!(migrate(&mut db).unwrap_err().code, ErrorCode::Conflict, "{garbage}");
    }
}

#[test]
fn a_step_that_fails_leaves_the_format_before_it() {
    let mut db = empty(1);
    // In the way of the second half of the step.
    db.execute_batch("CREATE TABLE usage_days (x)").unwrap();
    migrate(&mut db).unwrap_err();
    assert_eq!(kind(&db).unwrap(), Kind::Log(1));
    db.prepare("SELECT version FROM meta").expect_err("nothing of the step is left");
    db.execute_batch("DROP TABLE usage_days").unwrap();
    migrate(&mut db).unwrap();
    assert_eq!(kind(&db).unwrap(), Kind::Log(FORMAT));
}

#[test]
fn sessions_of_format_3_get_their_uuids_and_how_their_last_run_ended() {
    let mut db = empty(3);
    let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
    let keys =
        ["main:websocket:ada:main".into(), format!("main:wundr:{uuid}:main"), "main:test:c:main".into()];
    for (row, key) in (1..).zip(&keys) {
        db.execute(
            "INSERT INTO sessions (id, key, owner, created, updated, head, reserved, cleared, opened, reset)
             VALUES (?1, ?2, '', 0, 0, 9, 0, 0, 1, ?3)",
            rusqlite::params![row, key, if row == 3 { 5 } else { 0 }],
        )
        .unwrap();
        for (seq, outcome) in [(2, "completed"), (4, "failed")] {
            let body = format!(r#"{{"outcome":"{outcome}","usage":{{"input":1,"output":1}}}}"#);
            db.execute(
                "INSERT INTO events (session, seq, first, run, at, kind, body) VALUES (?, ?, ?, 1, 0, 'ended', ?)",
                rusqlite::params![row, seq + row % 2, seq, body.as_bytes()],
            )
            .unwrap();
        }
    }
    migrate(&mut db).unwrap();
    let found: Vec<(String, i64)> =
        rows(&db, "SELECT uuid, outcome FROM sessions ORDER BY id", |row| Ok((row.get(0)?, row.get(1)?)));
    let derived = |key: &str| SessionKey::parse(key).unwrap().uuid();
    assert_eq!(found, [(derived(&keys[0]), 2), (uuid.into(), 2), (derived(&keys[2]), 0)]);
}

/// A file of an older format, with sessions of two owners and all that names sessions by their keys.
fn of_format(format: usize) -> Connection {
    let db = empty(format);
    for (row, (key, owner)) in (1..).zip(OLD) {
        db.execute(
            "INSERT INTO sessions (id, key, owner, created, updated, head, reserved, cleared, opened)
             VALUES (?1, ?2, ?3, ?4, ?4, 0, 0, 0, 1)",
            rusqlite::params![row, key, owner, 1000 + row],
        )
        .unwrap();
        if format >= 4 {
            let uuid = if key == "broken" { "'x'" } else { "session_uuid(key)" };
            db.execute(&format!("UPDATE sessions SET uuid = {uuid} WHERE id = ?"), [row]).unwrap();
        }
        if format >= 3 {
            db.execute("UPDATE sessions SET reset = 4 WHERE id = 2", []).unwrap();
        }
        db.execute(
            "INSERT INTO usage (session, run, agent, provider, model, input_tokens, output_tokens, at)
             VALUES (?, 'r', 'main', 'p', 'm', 1, 1, 0)",
            [key],
        )
        .unwrap();
    }
    db
}

const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const OLD: [(&str, &str); 6] = [
    ("main:openclaw:main:main", "ada"),
    ("main:websocket:ada:main", "ada"),
    ("work:wundr:0f8fad5b-d9cb-469f-a165-70867728950e:main", "jwt:b/o:b"),
    ("main:cli:home/x:main", ""),
    ("work:telegram:a%3Ab:1%25", ""),
    ("broken", "ada"),
];

#[test]
fn sessions_of_every_older_format_keep_their_owner_their_uuid_and_their_conversation() {
    for format in 1..=5 {
        // Before format 4 a name that is none ends the migration there.
        let old = &OLD[..if format < 4 { 5 } else { 6 }];
        let mut db = of_format(format);
        db.execute("DELETE FROM sessions WHERE id > ?", [i64::try_from(old.len()).unwrap()]).unwrap();
        migrate(&mut db).unwrap();
        let sql = "SELECT key, owner, uuid, coalesce(uuid_before, ''), agent FROM sessions ORDER BY id";
        let sessions: Vec<[String; 5]> =
            rows(&db, sql, |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]));
        let expected = [
            "ada/main:openclaw:main:main",
            "ada/main:websocket:ada:main",
            "jwt%3Ab%2Fo%3Ab/work:wundr:0f8fad5b-d9cb-469f-a165-70867728950e:main",
            "main:cli:home/x:main",
            "work:telegram:a%3Ab:1%25",
            "broken",
        ];
        for ([key, owner, uuid, before, agent], ((was, whose), now)) in
            sessions.iter().zip(old.iter().zip(expected)).take(5)
        {
            assert_eq!((key.as_str(), owner.as_str()), (now, *whose), "from {format}");
            let (was, now) = (SessionKey::parse(was).unwrap(), SessionKey::parse(now).unwrap());
            assert_eq!((now.owner(), uuid), (Owner::from_name(whose), &now.uuid()));
            assert_eq!(*agent, was.agent());
            let is_another = was.uuid() != now.uuid();
            assert_eq!(*before, if is_another { was.uuid() } else { String::new() }, "from {format}: {now}");
        }
        assert_eq!(sessions.len(), old.len());
        assert_eq!(sessions[2][2], UUID, "who made it under one goes on with it");
        let conversation = |row: i64| -> String {
            db.query_row("SELECT conversation FROM sessions WHERE id = ?", [row], |row| row.get(0)).unwrap()
        };
        let reset = if format >= 3 { 4 } else { 0 };
        assert_eq!(conversation(2), SessionKey::derived_conversation_id(OLD[1].0, 1002, reset));
        assert_eq!(conversation(3), SessionKey::derived_conversation_id(OLD[2].0, 1003, 0));
        let usage: Vec<String> = rows(&db, "SELECT session FROM usage ORDER BY id LIMIT 5", |row| row.get(0));
        assert_eq!(usage, expected[..5], "from {format}");
    }
}

#[test]
fn what_names_sessions_by_their_keys_follows_them() {
    let mut db = of_format(5);
    db.execute_batch(
        "INSERT INTO jobs (job, owner, name, enabled, kind, session, prompt, result_to, misfire, once, created, updated, settled)
         VALUES ('own', 'ada', 'n', 1, 'at', 'main:cron:own:main', 'p', 'main:openclaw:main:main', 'once', 0, 0, 0, 0),
                ('operators', '', 'n', 1, 'at', 'main:websocket:ada:main', 'p', 'main:xeno:default:main', 'once', 0, 0, 0, 0),
                ('plain', '', 'n', 1, 'at', 'main:cron:plain:main', 'p', NULL, 'once', 0, 0, 0, 0);
         INSERT INTO agents (agent, owner, session, parent, root, depth, place, role, kind, task, priority, phase, prompt,
             settling, turns, completed, at_task, input_tokens, output_tokens, created, updated)
         VALUES ('a', 'ada', 'main:agent:a:main', 'main:websocket:ada:main', 'main:websocket:ada:main', 1, 0, '', 'k', 't',
             'low', 'waiting', '', 0, 0, 0, 0, 0, 0, 0, 0),
                ('b', '', 'main:agent:b:main', NULL, 'main:agent:b:main', 1, 0, '', 'k', 't', 'low', 'waiting', '',
             0, 0, 0, 0, 0, 0, 0, 0);
         INSERT INTO agent_notes VALUES ('n', 'main:websocket:ada:main', 'ada', 'done');",
    )
    .unwrap();
    migrate(&mut db).unwrap();
    let texts = |sql: &str| -> Vec<String> { rows(&db, sql, |row| row.get(0)) };
    assert_eq!(
        texts("SELECT session || ' > ' || coalesce(result_to, '-') FROM jobs ORDER BY job"),
        [
            "ada/main:websocket:ada:main > main:xeno:default:main",
            "ada/main:cron:own:main > ada/main:openclaw:main:main",
            "main:cron:plain:main > -",
        ]
    );
    assert_eq!(
        texts("SELECT session || ' < ' || coalesce(parent, '-') || ' < ' || root FROM agents ORDER BY agent"),
        [
            "ada/main:agent:a:main < ada/main:websocket:ada:main < ada/main:websocket:ada:main",
            "main:agent:b:main < - < main:agent:b:main",
        ]
    );
    assert_eq!(texts("SELECT session FROM agent_notes"), ["ada/main:websocket:ada:main"]);
}

#[test]
fn what_format_17_had_to_send_is_in_the_outbox() {
    let mut db = empty(17);
    let row = "INSERT INTO channel_outbox (id, channel, conversation, made, requests, next, state)
        VALUES (7, 'telegram', 'c', 5, '[{\"url\":\"https://x\"}]', 1, 3)";
    db.execute_batch(row).unwrap();
    migrate(&mut db).unwrap();
    let sql = "SELECT id, channel, requests, answer, next, state FROM outbox";
    let kept = rows(&db, sql, |row| {
        Ok((
            row.get::<_, i64>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
            row.get::<_, Option<String>>(3)?,
        ))
    });
    assert_eq!(kept, [(7, "telegram".to_owned(), r#"[{"url":"https://x"}]"#.to_owned(), None)]);
}

#[test]
fn another_programs_database_is_refused() {
    let mut db = Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE notes (text)").unwrap();
    assert_eq!(migrate(&mut db).unwrap_err().code, ErrorCode::Conflict);
}
