//! What the database must be in the end, whatever happened to its daemon.

use std::path::Path;

/// Asks the database itself whether it is whole.
///
/// # Errors
/// What is wrong with it.
pub fn integrity(path: &Path) -> Result<(), String> {
    let why = |error: rusqlite::Error| format!("{}: {error}", path.display());
    let database = rusqlite::Connection::open(path).map_err(why)?;
    let said: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).map_err(why)?;
    if said == "ok" { Ok(()) } else { Err(format!("{}: {said}", path.display())) }
}

/// Holds the log itself against what it has to be when all runs have ended. Clients alone could not
/// say that no number is missing: a frame also covers those that their protocol has no word for.
///
/// # Errors
/// What is wrong with it.
pub fn log(path: &Path, prompts: usize) -> Result<(), String> {
    let why = |error: rusqlite::Error| format!("{}: {error}", path.display());
    let database = rusqlite::Connection::open(path).map_err(why)?;
    let gaps = "SELECT count(*) FROM
        (SELECT first, lag(seq, 1, 0) OVER (PARTITION BY session ORDER BY seq) AS before FROM events)
        WHERE first <> before + 1";
    for (query, expected) in [
        (gaps, 0),
        ("SELECT count(*) FROM runs", prompts),
        ("SELECT count(*) FROM runs WHERE ended IS NULL", 0),
        ("SELECT count(*) FROM idempotency", prompts),
        ("SELECT count(DISTINCT run) FROM idempotency", prompts),
    ] {
        let found: i64 = database.query_row(query, [], |row| row.get(0)).map_err(why)?;
        if usize::try_from(found) != Ok(expected) {
            return Err(format!("{}: {query}: {found} instead of {expected}", path.display()));
        }
    }
    Ok(())
}
