//! Homes with many sessions, written into the log's tables at once.

use std::path::{Path, PathBuf};

use clawmux_actors::store::{Stop, Store};
use rusqlite::Connection;

/// An empty log in this home.
pub fn log(folder: &Path) -> PathBuf {
    let path = folder.join("clawmux.db");
    actix::System::new().block_on(async {
        let store = Store::start(&path).await.unwrap();
        store.send(Stop).await.unwrap().unwrap();
    });
    path
}

/// Sessions with a finished run each, of four events: `main:websocket:user-N:main`, N from 1 on.
pub fn fill(path: &Path, sessions: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    Connection::open(path)
        .unwrap()
        .execute_batch(&format!(
            "BEGIN;
             CREATE TEMP TABLE n AS
                 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {sessions}) SELECT n FROM n;
             INSERT INTO sessions (id, key, agent, uuid, owner, created, updated, head, reserved, cleared, opened)
                 SELECT n, 'main:websocket:user-' || n || ':main', 'main', printf('00000000-0000-8000-8000-%012d', n),
                        '', {now}, {now} + n, 4, 50, 0, 1 FROM n;
             INSERT INTO runs (id, run, session, prompted, settled, ended, progress)
                 SELECT n, 'run-' || n, n, 1, 4, 4, 2 FROM n;
             INSERT INTO events (session, seq, first, run, at, kind, body)
                 SELECT n, 1, 1, n, {now}, 'prompted', CAST('{{\"content\":\"how are you?\",\"owner\":\"\"}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT n, 2, 2, n, {now}, 'started', CAST('{{}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT n, 3, 3, n, {now}, 'text', CAST('{{\"text\":\"fine, thank you\",\"lengths\":[15]}}' AS BLOB) FROM n
                 UNION ALL
                 SELECT n, 4, 4, n, {now}, 'ended', CAST('{{\"outcome\":\"completed\",\"usage\":{{\"input\":3,\"output\":4}}}}' AS BLOB) FROM n;
             INSERT INTO usage (session, run, agent, provider, model, input_tokens, output_tokens, at)
                 SELECT 'main:websocket:user-' || n || ':main', 'run-' || n, 'main', 'offline', 'offline', 3, 4, {now} FROM n;
             INSERT INTO usage_days SELECT {now} / 86400000, '', 'main', 'offline', 'offline', {sessions}, {sessions},
                 3 * {sessions}, 4 * {sessions}, 0, 0, 0, {now};
             COMMIT;
             PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
}
