//! Whom a copy of the store lets in and whom not, other than the store whose place it takes: what was
//! revoked after the copy was made is valid in it, and what was given out after that is not in it.

use std::collections::BTreeMap;
use std::path::Path;

use clawmux_core::access::token::Token;
use clawmux_core::time::Timestamp;
use serde_json::{Value, json};

use super::files::{BUSY, look};
use super::tokens;

/// What changes for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readmitted {
    /// Valid now, and not in the copy.
    pub lost: Vec<Credential>,
    /// Valid in the copy, and now revoked, expired, removed, or about to expire sooner.
    pub back: Vec<Credential>,
    /// Valid in the copy, and unknown now.
    pub unknown: Vec<Credential>,
    /// Whether credentials were given out, and the copy knows of none: then nobody has to show one over
    /// loopback, where none is configured.
    pub forgets_all: bool,
    /// Whether the store that is there can't be read, so that nobody knows what it revoked. All that the copy
    /// lets in is among those that come back then.
    pub is_unread: bool,
}

/// A credential, or a paired device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether it is a paired device.
    pub is_device: bool,
}

impl Readmitted {
    /// What an operator is told of it.
    pub fn to_json(&self) -> Value {
        let ids = |all: &[Credential]| all.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
        json!({ "lost": ids(&self.lost), "back": ids(&self.back), "unknown": ids(&self.unknown),
            "forgets_all": self.forgets_all })
    }
}

/// Whom the copy `from` lets in other than the store at `path`, at `wall`. Neither is changed.
///
/// # Errors
/// Where the copy can't be read.
pub(super) fn compare(from: &Path, path: &Path, wall: Timestamp) -> rusqlite::Result<Readmitted> {
    let copy = Doors::read(from)?;
    let is_there = path.metadata().is_ok_and(|meta| meta.len() > 0);
    let present = match is_there.then(|| Doors::read(path)) {
        None => Doors::default(),
        Some(Ok(present)) => present,
        Some(Err(error)) => {
            tracing::debug!(%error, "the credentials of the store that is replaced can't be read");
            let back = copy.tokens.values().filter(|token| !token.is_over(wall)).map(of_token);
            let back = back.chain(copy.devices.iter().map(of_device)).collect();
            let forgets_all = copy.tokens.is_empty();
            return Ok(Readmitted { back, forgets_all, is_unread: true, ..Readmitted::default() });
        }
    };
    let forgets_all = copy.tokens.is_empty() && !present.tokens.is_empty();
    let mut found = Readmitted { forgets_all, ..Readmitted::default() };
    for token in copy.tokens.values().filter(|token| !token.is_over(wall)) {
        match present.tokens.get(&*token.id) {
            None => found.unknown.push(of_token(token)),
            Some(now) if now.is_over(wall) || ends(now) < ends(token) => found.back.push(of_token(token)),
            Some(_) => {}
        }
    }
    let holds = |doors: &Doors, id: &str| doors.tokens.get(id).is_some_and(|token| !token.is_over(wall));
    let lost = present.tokens.values().filter(|token| !token.is_over(wall) && !holds(&copy, &token.id));
    found.lost.extend(lost.map(of_token));
    // What is left of a device that was removed is nothing.
    let without = |all: &Doors, known: &Doors| {
        let news = all.devices.iter().filter(|(key, _)| !known.devices.contains_key(*key));
        news.map(of_device).collect::<Vec<_>>()
    };
    found.lost.extend(without(&present, &copy));
    let devices = without(&copy, &present);
    if is_there { &mut found.back } else { &mut found.unknown }.extend(devices);
    for list in [&mut found.lost, &mut found.back, &mut found.unknown] {
        // A device may have several roles.
        list.dedup();
    }
    Ok(found)
}

/// What a store lets in.
#[derive(Debug, Default)]
struct Doors {
    tokens: BTreeMap<String, Token>,
    /// The names of devices, by their ids and roles.
    devices: BTreeMap<(String, String), String>,
}

impl Doors {
    fn read(path: &Path) -> rusqlite::Result<Self> {
        let db = look(path, BUSY)?;
        let tokens = tokens::issued(&db)?.into_iter().map(|token| (token.id.to_string(), token)).collect();
        let mut devices = BTreeMap::new();
        if db.table_exists(None, "devices")? && db.table_exists(None, "device_grants")? {
            let mut statement = db.prepare(
                "SELECT g.device, g.role, d.about FROM device_grants g JOIN devices d USING (device)
                 WHERE g.revoked IS NULL",
            )?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let about: String = row.get(2)?;
                let about: Value = serde_json::from_str(&about).unwrap_or_default();
                let named = |name: &str| about[name].as_str().filter(|name| !name.is_empty());
                let name = named("displayName").or_else(|| named("clientId")).unwrap_or("a device");
                devices.insert((row.get(0)?, row.get(1)?), name.to_owned());
            }
        }
        Ok(Self { tokens, devices })
    }
}

/// When it ends, as far away as can be where it does not.
fn ends(token: &Token) -> Timestamp {
    token.expires.unwrap_or(Timestamp::from_millis(u64::MAX))
}

fn of_token(token: &Token) -> Credential {
    Credential { id: token.id.to_string(), name: token.name.to_string(), is_device: false }
}

fn of_device(((id, _), name): (&(String, String), &String)) -> Credential {
    Credential { id: id.clone(), name: name.clone(), is_device: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use rusqlite::Connection;

    fn store(path: &Path, rows: &str) {
        actix::System::new().block_on(async {
            let mut store = Store::open(path).await.unwrap();
            store.finish().await.unwrap();
        });
        Connection::open(path).unwrap().execute_batch(rows).unwrap();
    }

    fn token(id: &str, expires: &str, revoked: &str) -> String {
        format!(
            "INSERT INTO tokens (token, name, kind, sha256, scopes, created, expires, revoked)
             VALUES ('{id}', 'ci', 'api-key', zeroblob(32), '', 1, {expires}, {revoked});"
        )
    }

    fn device(id: &str, revoked: &str) -> String {
        format!(
            "INSERT INTO devices VALUES ('{id}', x'00', '{{\"displayName\":\"tv\"}}', '', 'ci', 1, 1);
             INSERT INTO device_grants (device, role, scopes, salt, issued, revoked)
             VALUES ('{id}', 'node', '', x'00', 1, {revoked});"
        )
    }

    fn ids(all: &[Credential]) -> Vec<&str> {
        all.iter().map(|one| one.id.as_str()).collect()
    }

    #[test]
    fn what_was_revoked_removed_or_rotated_since_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let (now, copy) = (folder.path().join("now.db"), folder.path().join("copy.db"));
        let wall = Timestamp::from_millis(100);
        let present = [
            token("same", "NULL", "NULL"),
            token("revoked", "NULL", "50"),
            token("rotated", "200", "NULL"),
            token("new", "NULL", "NULL"),
            device("kept", "NULL"),
            device("barred", "50"),
            device("late", "NULL"),
        ];
        let past = [
            token("same", "NULL", "NULL"),
            token("revoked", "NULL", "NULL"),
            token("rotated", "NULL", "NULL"),
            token("over", "100", "NULL"),
            token("other", "NULL", "NULL"),
            device("kept", "NULL"),
            device("barred", "NULL"),
            device("gone", "NULL"),
        ];
        store(&now, &present.concat());
        store(&copy, &past.concat());
        let found = compare(&copy, &now, wall).unwrap();
        assert_eq!(ids(&found.lost), ["new", "late"]);
        assert_eq!(ids(&found.back), ["revoked", "rotated", "barred", "gone"]);
        assert_eq!(found.back[3], Credential { id: "gone".into(), name: "tv".into(), is_device: true });
        assert_eq!((ids(&found.unknown), found.forgets_all, found.is_unread), (vec!["other"], false, false));

        let fresh = compare(&copy, &folder.path().join("none.db"), wall).unwrap();
        assert!(
            fresh.back.is_empty() && !fresh.forgets_all,
            "nothing was revoked where nothing was: {fresh:?}"
        );
        std::fs::write(&now, "garbage that is no database, and long enough to be told from one").unwrap();
        let unread = compare(&copy, &now, wall).unwrap();
        assert!(unread.is_unread && ids(&unread.back).contains(&"other"), "{unread:?}");
    }
}
