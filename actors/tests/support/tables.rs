//! What is in a store, to be compared with another one.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::Value;

/// What is in a store, table by table, but for what each daemon has for itself.
pub(crate) fn all(path: &Path) -> BTreeMap<String, Vec<Vec<Value>>> {
    let db = Connection::open(path).unwrap();
    let names: Vec<String> = db
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let local = ["deltas", "sizes", "deleted_sessions"];
    let names = names.into_iter().filter(|name| !local.contains(&name.as_str()));
    let rows = |name: &str| {
        let what = match name {
            // How often it was opened, and by whom last, is each daemon's.
            "meta" => "SELECT applied, digest, sessions, cluster, generation FROM meta".to_owned(),
            // Those of sessions that are gone go a few at a time.
            "events" | "attachments" => {
                format!(
                    "SELECT * FROM {name} WHERE session IN (SELECT id FROM sessions) ORDER BY session, seq"
                )
            }
            _ => format!("SELECT * FROM {name} ORDER BY 1"),
        };
        let columns =
            |row: &rusqlite::Row<'_>| (0..row.as_ref().column_count()).map(|nth| row.get(nth)).collect();
        let mut statement = db.prepare(&what).unwrap();
        statement.query_map([], columns).unwrap().collect::<Result<Vec<Vec<Value>>, _>>().unwrap()
    };
    names.map(|name| (name.clone(), rows(&name))).collect()
}

/// Whether two stores hold the same.
pub(crate) fn assert_same(ours: &Path, theirs: &Path, why: &str) {
    let (ours, theirs) = (all(ours), all(theirs));
    assert!(ours.keys().eq(theirs.keys()), "{why}");
    for (name, rows) in &ours {
        let first = rows.iter().zip(&theirs[name]).find(|(ours, theirs)| ours != theirs);
        assert!(
            *rows == theirs[name],
            "{why}: {name}, {} and {} rows: {first:?}",
            rows.len(),
            theirs[name].len()
        );
    }
}
