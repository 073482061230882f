//! What is in a store, to be compared with another one.

use std::collections::BTreeMap;
use std::path::Path;

use clawmux_actors::store::tables::{SharedTable, shared};
use rusqlite::Connection;
use rusqlite::types::Value;

/// What is in a store, table by table, but for what each daemon has for itself.
pub(crate) fn all(path: &Path) -> BTreeMap<String, Vec<Vec<Value>>> {
    let db = Connection::open(path).unwrap();
    let rows = |table: &SharedTable| {
        let columns =
            |row: &rusqlite::Row<'_>| (0..row.as_ref().column_count()).map(|nth| row.get(nth)).collect();
        let mut statement = db.prepare(&table.rows()).unwrap();
        statement.query_map([], columns).unwrap().collect::<Result<Vec<Vec<Value>>, _>>().unwrap()
    };
    shared(&db).unwrap().into_iter().map(|table| (table.name.clone(), rows(&table))).collect()
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
