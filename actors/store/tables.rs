//! What the stores of one cluster have alike, and whether two of them do.
//!
//! Whatever a record of the log changes is the same in each of them, row by row and byte by byte, whenever it was
//! applied and with which others. Beside that each daemon has a little for itself, which is named here and nowhere
//! else.
//!
//! Both are read side by side in the order of their keys, a row of each at a time, so that large stores need no more
//! memory than small ones. A key that is damaged stands where its order does not put it: of such a table more rows are
//! counted than differ, never none.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use clawmux_core::hex::hex;
use rusqlite::fallible_streaming_iterator::FallibleStreamingIterator as _;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::failure::sql;

/// Tables that each daemon has for itself: text of steps that are not over, how large its store was, and what is yet to
/// be deleted of sessions that are gone.
const LOCAL: [&str; 3] = ["deltas", "sizes", "deleted_sessions"];

/// Columns of `meta` that each daemon has for itself: how often its store was opened, and by which clawmux.
const LOCAL_OF_META: [&str; 2] = ["opened", "version"];

/// Tables whose rows may be of a session that is gone, from which they go a few at a time.
const OF_SESSIONS: [&str; 2] = ["events", "attachments"];

/// Tables whose keys are words of clients, which are not repeated.
const UNTOLD: [&str; 2] = ["idempotency", "plugin_values"];

/// So many bytes of a key are told.
const KEY_BYTES_MAX: usize = 200;

/// How often it is told how many rows were compared.
const TOLD_EVERY: u64 = 1000;

/// A table, as far as all stores of a cluster have it alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTable {
    /// What it is called.
    pub name: String,
    columns: Vec<String>,
    /// Which of the columns tell its rows apart.
    key: Vec<usize>,
}

/// The tables of a store that all stores of a cluster have alike, the tables' own definitions first.
///
/// # Errors
/// Where the database can't be read.
pub fn shared(db: &Connection) -> rusqlite::Result<Vec<SharedTable>> {
    let mut names = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
    let names = names.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    let definitions = SharedTable {
        name: "sqlite_schema".to_owned(),
        columns: ["type", "name", "tbl_name", "sql"].map(str::to_owned).into(),
        key: vec![0, 1],
    };
    let mut tables = vec![definitions];
    for name in names.into_iter().filter(|name| !LOCAL.contains(&name.as_str())) {
        let mut columns = db.prepare("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid")?;
        let columns = columns.query_map([&name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let columns = columns.collect::<rusqlite::Result<Vec<(String, i64)>>>()?;
        let is_shared = |column: &str| name != "meta" || !LOCAL_OF_META.contains(&column);
        let columns: Vec<_> = columns.into_iter().filter(|(column, _)| is_shared(column)).collect();
        let mut key: Vec<usize> = (0..columns.len()).filter(|nth| columns[*nth].1 > 0).collect();
        key.sort_by_key(|nth| columns[*nth].1);
        let columns: Vec<String> = columns.into_iter().map(|(name, _)| name).collect();
        // There is one row of it.
        if key.is_empty() && name != "meta" {
            key = key_of_index(db, &name, &columns)?;
        }
        tables.push(SharedTable { name, columns, key });
    }
    Ok(tables)
}

/// Which columns tell the rows of a table apart that has no primary key: those of its first unique index, or all.
fn key_of_index(db: &Connection, table: &str, columns: &[String]) -> rusqlite::Result<Vec<usize>> {
    let mut names = db.prepare(
        "SELECT name FROM pragma_index_info((SELECT name FROM pragma_index_list(?) WHERE origin = 'u' LIMIT 1)) ORDER BY seqno",
    )?;
    let names = names.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    let key: Vec<usize> =
        names.iter().filter_map(|name| columns.iter().position(|column| column == name)).collect();
    Ok(if key.is_empty() { (0..columns.len()).collect() } else { key })
}

impl SharedTable {
    /// The query of its rows, in the order of their keys.
    pub fn rows(&self) -> String {
        let named = |columns: &mut dyn Iterator<Item = &String>| {
            columns.map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ")
        };
        let columns = named(&mut self.columns.iter());
        let order = match self.key.is_empty() {
            true => String::new(),
            false => format!("ORDER BY {}", named(&mut self.key.iter().map(|nth| &self.columns[*nth]))),
        };
        let among = match OF_SESSIONS.contains(&self.name.as_str()) {
            true => "WHERE session IN (SELECT id FROM sessions)",
            false => "",
        };
        format!("SELECT {columns} FROM \"{}\" {among} {order}", self.name)
    }

    fn order(&self, ours: &Row<'_>, theirs: &Row<'_>) -> rusqlite::Result<Ordering> {
        for &nth in &self.key {
            let order = order(ours.get_ref(nth)?, theirs.get_ref(nth)?);
            if order != Ordering::Equal {
                return Ok(order);
            }
        }
        Ok(Ordering::Equal)
    }

    /// A row by its key, for people; nothing where that is not told. Of one that is not right words may be of another
    /// column.
    fn example(&self, row: &Row<'_>, is_right: bool, theirs: &Connection) -> Option<String> {
        // A row that is its key says all that it has.
        let is_key = self.key.is_empty() || self.key.len() == self.columns.len();
        if is_key || UNTOLD.contains(&self.name.as_str()) {
            return None;
        }
        let told = |&nth: &usize| {
            let (column, value) = (&self.columns[nth], row.get_ref(nth).ok()?);
            let value = match value {
                ValueRef::Integer(id) if column == "session" => {
                    let key =
                        theirs.query_row("SELECT key FROM sessions WHERE id = ?", [id], |row| row.get(0));
                    key.optional().ok().flatten().unwrap_or_else(|| id.to_string())
                }
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Text(_) | ValueRef::Blob(_) if !is_right => return None,
                ValueRef::Real(number) => number.to_string(),
                ValueRef::Text(text) => String::from_utf8_lossy(cut(text)).into_owned(),
                ValueRef::Blob(bytes) => hex(cut(bytes)),
                ValueRef::Null => "none".to_owned(),
            };
            Some(format!("{column} {value}"))
        };
        let told: Option<Vec<String>> = self.key.iter().map(told).collect();
        told.map(|told| told.join(", "))
    }
}

fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(KEY_BYTES_MAX)]
}

/// The order that SQLite has values in.
fn order(ours: ValueRef<'_>, theirs: ValueRef<'_>) -> Ordering {
    let rank = |value: &ValueRef<'_>| match value {
        ValueRef::Null => 0,
        ValueRef::Integer(_) | ValueRef::Real(_) => 1,
        ValueRef::Text(_) => 2,
        ValueRef::Blob(_) => 3,
    };
    match (ours, theirs) {
        (ValueRef::Integer(ours), ValueRef::Integer(theirs)) => ours.cmp(&theirs),
        (ValueRef::Real(ours), ValueRef::Real(theirs)) => ours.total_cmp(&theirs),
        (ValueRef::Text(ours), ValueRef::Text(theirs)) | (ValueRef::Blob(ours), ValueRef::Blob(theirs)) => {
            ours.cmp(theirs)
        }
        _ => rank(&ours).cmp(&rank(&theirs)),
    }
}

/// What two stores have alike, and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// How many tables were compared.
    pub tables: u64,
    /// How many rows, of the store that is right.
    pub rows: u64,
    /// The tables that differ.
    pub differing: Vec<Differing>,
    /// What SQLite says of the file, where it is not content with it: what does not fit together in it.
    pub damage: Option<String>,
}

impl Compared {
    /// Whether they are alike.
    pub fn is_alike(&self) -> bool {
        self.differing.is_empty() && self.damage.is_none()
    }
}

/// A table that two stores do not have alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differing {
    /// What it is called.
    pub table: String,
    /// Rows that both have, and that are other ones.
    pub other: Rows,
    /// The columns that these differ in.
    pub columns: BTreeSet<String>,
    /// Rows that only the store has that is right.
    pub missing: Rows,
    /// Rows that it does not have.
    pub beyond: Rows,
    /// Why it could not be read to its end, where it could not.
    pub unread: Option<String>,
}

impl Differing {
    /// How many rows that are in all.
    pub fn rows(&self) -> u64 {
        self.other.count + self.missing.count + self.beyond.count
    }
}

/// Rows that are not as they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// How many.
    pub count: u64,
    /// The first that can be told, by its key; none where that says what clients said, or would be a secret.
    pub example: Option<String>,
}

impl Rows {
    fn add(&mut self, example: impl FnOnce() -> Option<String>) {
        self.count += 1;
        if self.example.is_none() {
            self.example = example();
        }
    }
}

/// Compares a store with one that is right. `told` hears how many rows were compared.
///
/// # Errors
/// Where the one that is right can't be read. What can't be read of the other one differs.
pub fn compare(
    ours: &Connection,
    theirs: &Connection,
    told: &mut dyn FnMut(u64),
) -> rusqlite::Result<Compared> {
    // Indexes, and columns that are read out of them where a row would be too far away.
    let verdict = ours.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0));
    let verdict = verdict.unwrap_or_else(|error| sql(&error).message);
    let mut compared = Compared {
        damage: (verdict != "ok").then(|| verdict.lines().next().unwrap_or_default().to_owned()),
        ..Compared::default()
    };
    for table in shared(theirs)? {
        let differing = compare_table(&table, (ours, theirs), &mut compared.rows, told)?;
        compared.tables += 1;
        if differing.rows() > 0 || differing.unread.is_some() {
            compared.differing.push(differing);
        }
    }
    Ok(compared)
}

fn compare_table(
    table: &SharedTable,
    (ours, theirs): (&Connection, &Connection),
    read: &mut u64,
    told: &mut dyn FnMut(u64),
) -> rusqlite::Result<Differing> {
    let mut differing = Differing { table: table.name.clone(), ..Differing::default() };
    let unread = |error: &rusqlite::Error| Some(sql(error).message);
    let mut right = theirs.prepare(&table.rows())?;
    let mut right = right.query([])?;
    let mut left = match ours.prepare(&table.rows()) {
        Ok(left) => left,
        Err(error) => {
            differing.unread = unread(&error);
            return Ok(differing);
        }
    };
    let mut left = left.query([])?;
    let (mut next_of_left, mut next_of_right) = (true, true);
    loop {
        if next_of_right {
            right.advance()?;
            *read += u64::from(right.get().is_some());
            if read.is_multiple_of(TOLD_EVERY) {
                told(*read);
            }
        }
        if next_of_left && let Err(error) = left.advance() {
            differing.unread = unread(&error);
            return Ok(differing);
        }
        let order = match (left.get(), right.get()) {
            (None, None) => return Ok(differing),
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(ours), Some(theirs)) => table.order(ours, theirs)?,
        };
        (next_of_left, next_of_right) = (order != Ordering::Greater, order != Ordering::Less);
        let (row, rows) = match (order, left.get(), right.get()) {
            (Ordering::Equal, Some(ours), Some(right)) => {
                if !columns_differ(table, (ours, right), &mut differing.columns)? {
                    continue;
                }
                (Some(right), &mut differing.other)
            }
            (Ordering::Less, ours, _) => (ours, &mut differing.beyond),
            (_, _, right) => (right, &mut differing.missing),
        };
        rows.add(|| row.and_then(|row| table.example(row, next_of_right, theirs)));
    }
}

/// Adds the columns that two rows of one key differ in; says whether there are any.
fn columns_differ(
    table: &SharedTable,
    (ours, right): (&Row<'_>, &Row<'_>),
    columns: &mut BTreeSet<String>,
) -> rusqlite::Result<bool> {
    let mut differ = false;
    for (nth, column) in table.columns.iter().enumerate() {
        if ours.get_ref(nth)? != right.get_ref(nth)? {
            differ = true;
            if !columns.contains(column) {
                columns.insert(column.clone());
            }
        }
    }
    Ok(differ)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::Store;
    use super::*;

    /// A store with some rows, and one like it.
    fn pair(folder: &Path) -> (Connection, Connection) {
        let (ours, theirs) = (folder.join("ours.db"), folder.join("theirs.db"));
        actix::System::new().block_on(async {
            let mut store = Store::open(&ours).await.unwrap();
            store.finish().await.unwrap();
        });
        let db = Connection::open(&ours).unwrap();
        for at in 1..=40 {
            db.execute(
                "INSERT INTO sessions (id, key, owner, created, updated, head, reserved, cleared, opened, uuid, agent, conversation)
                 VALUES (?1, 'main:test:' || ?1 || ':main', '', 0, 0, 0, 0, 0, 1, ?1, 'main', ?1)",
                [at],
            )
            .unwrap();
            let event = "INSERT INTO events VALUES (?, 7, 7, NULL, 0, 'said', CAST('a secret' AS BLOB))";
            db.execute(event, [at]).unwrap();
            db.execute("INSERT INTO idempotency VALUES ('', 'a word of ' || ?1, ?1)", [at]).unwrap();
        }
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        fs::copy(&ours, &theirs).unwrap();
        (db, Connection::open(&theirs).unwrap())
    }

    /// The tables that differ, and of each the rows that are other ones, missing and too many.
    fn differing(ours: &Connection, theirs: &Connection) -> Vec<(String, [Rows; 3])> {
        let compared = compare(ours, theirs, &mut |_| {}).unwrap();
        let rows = |of: Differing| (of.table, [of.other, of.missing, of.beyond]);
        compared.differing.into_iter().map(rows).collect()
    }

    #[test]
    fn what_differs_is_named_by_its_key_and_without_what_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = pair(folder.path());
        let compared = compare(&ours, &theirs, &mut |_| {}).unwrap();
        assert!(compared.is_alike() && compared.tables > 30 && compared.rows > 120, "{compared:?}");

        // What each daemon has for itself.
        ours.execute_batch(
            "UPDATE meta SET opened = 9, version = 'x'; INSERT INTO sizes VALUES (1, 1); INSERT INTO deltas VALUES (1, x'');
             INSERT INTO deleted_sessions VALUES (99); INSERT INTO events VALUES (99, 1, 1, NULL, 0, 'said', x'00');",
        )
        .unwrap();
        assert_eq!(differing(&ours, &theirs), []);

        ours.execute("UPDATE events SET body = CAST('b secret' AS BLOB) WHERE session = 12", []).unwrap();
        ours.execute("DELETE FROM idempotency WHERE run > 38", []).unwrap();
        ours.execute("UPDATE meta SET device_secret = x'00'", []).unwrap();
        let mail = "INSERT INTO team_mail VALUES (5, 'm', 's', 'r', 'a secret')";
        ours.execute(mail, []).unwrap();
        ours.execute("INSERT INTO channels VALUES ('a secret', NULL)", []).unwrap();
        ours.execute("DELETE FROM events WHERE session = 13", []).unwrap();
        let (none, untold) = (Rows::default, |count| Rows { count, example: None });
        let one = |example: &str| Rows { count: 1, example: Some(example.to_owned()) };
        let changed = one("session main:test:12:main, seq 7");
        let wanted = [
            ("channels", [none(), none(), untold(1)]),
            ("events", [changed, one("session main:test:13:main, seq 7"), none()]),
            ("idempotency", [none(), untold(2), none()]),
            ("meta", [untold(1), none(), none()]),
            ("team_mail", [none(), none(), one("number 5")]),
        ];
        let wanted = wanted.map(|(table, rows)| (table.to_owned(), rows));
        assert_eq!(differing(&ours, &theirs), wanted);
        let compared = compare(&ours, &theirs, &mut |_| {}).unwrap();
        assert_eq!(compared.differing[1].columns, ["body".to_owned()].into());
        assert!(!compared.is_alike() && compared.damage.is_none(), "{compared:?}");
    }

    #[test]
    fn what_can_not_be_read_or_is_only_in_an_index_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = pair(folder.path());
        let number = |sql: &str| theirs.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
        let bytes = number("PRAGMA page_size");
        let page = |name: &str| {
            let page = number(&format!("SELECT rootpage FROM sqlite_schema WHERE name = '{name}'"));
            (page - 1) * bytes..page * bytes
        };
        drop(ours);
        let path = folder.path().join("ours.db");
        let mut file = fs::read(&path).unwrap();
        file[page("sessions_owner").end - 1] ^= 1;
        fs::write(&path, &file).unwrap();
        let compared = compare(&Connection::open(&path).unwrap(), &theirs, &mut |_| {}).unwrap();
        let damage = compared.damage.as_ref();
        assert!(damage.is_some_and(|damage| damage.contains("sessions_owner")), "{compared:?}");
        assert_eq!(compared.differing, [], "no row is another one");

        file[page("events")][..8].fill(0xff);
        fs::write(&path, &file).unwrap();
        let compared = compare(&Connection::open(&path).unwrap(), &theirs, &mut |_| {}).unwrap();
        let unread = compared.differing.iter().find(|of| of.table == "events");
        assert!(unread.is_some_and(|of| of.unread.is_some()), "{compared:?}");
    }
}
