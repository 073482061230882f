//! The credentials that the daemon gave out, as the database keeps them.
//!
//! A row that can't be read counts as revoked, with a word in the log: it lets nobody in, and it is
//! still known that a credential was given out once, which keeps loopback closed.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use actix::Message;
use clawmux_core::access::token::{self, Estate, Kind, Ledger, Token, Use};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
use clawmux_core::replica::Write;
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns, time};
use super::failure::{Failure, is_unreadable};
use super::files::{BUSY, look};
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// What a changed credential counts, in bytes.
const TOKEN_BYTES: usize = 512;

/// Changes the credentials that the daemon gave out, all or none. Answered when that will survive the
/// end of the process, or, where `durable`, a power cut.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteTokens {
    /// What changes.
    pub changes: Vec<token::Change>,
    /// Whether a power cut must not take it.
    pub durable: bool,
}

/// Asks for all credentials that the daemon gave out, and when those of the configuration were used.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Ledger, Error>")]
pub struct ReadTokens;

/// Asks what belongs to an owner.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Estate, Error>")]
pub struct ReadEstate(pub Owner);

impl Change for WriteTokens {
    fn bytes(&self) -> usize {
        self.changes.len() * TOKEN_BYTES
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::Tokens(self.changes.clone()))
    }

    fn is_durable(&self, _: &Writer) -> bool {
        self.durable
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        // Looked at first: what is refused leaves nothing behind.
        for change in &self.changes {
            if let token::Change::Put(token) = change {
                writer.check_name(token)?;
            }
        }
        for change in &self.changes {
            match change {
                token::Change::Forget(id) => {
                    writer.cached("DELETE FROM tokens WHERE token = ?")?.execute([&**id])?;
                }
                token::Change::Put(token) => {
                    let Token { id, name, kind, sha256, scopes, created, since, .. } = token;
                    let Token { expires, revoked, used, origin, .. } = token;
                    // What two daemons decide at the same time both holds: it ends at the earlier time.
                    writer.cached(
                        "INSERT INTO tokens
                            (token, name, kind, sha256, scopes, created, expires, revoked, used, origin, since)
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                         ON CONFLICT (token) DO UPDATE SET
                            expires = coalesce(min(expires, excluded.expires), expires, excluded.expires),
                            revoked = coalesce(min(revoked, excluded.revoked), revoked, excluded.revoked)",
                    )?
                    .execute(params![
                        &**id,
                        &**name,
                        kind.name(),
                        sha256,
                        scopes.names().join(" "),
                        time(*created),
                        expires.map(time),
                        revoked.map(time),
                        used.map(time),
                        origin.map(|origin: IpAddr| origin.to_string()),
                        (since != created).then(|| time(*since)),
                    ])?;
                }
                token::Change::Used(name, Use { at, origin }) => {
                    writer
                        .cached(
                            "INSERT OR REPLACE INTO credential_uses (name, used, origin) VALUES (?, ?, ?)",
                        )?
                        .execute(params![&**name, time(*at), origin.to_string()])?;
                }
                token::Change::Seen(id, Use { at, origin }) => {
                    writer
                        .cached(
                            "UPDATE tokens SET used = ?2, origin = ?3
                             WHERE token = ?1 AND (used IS NULL OR used <= ?2)",
                        )?
                        .execute(params![&**id, time(*at), origin.to_string()])?;
                }
            }
        }
        Ok(())
    }
}

impl Writer {
    /// Refuses a new key whose name is that of another one that lets somebody in: in a cluster two daemons may give one
    /// name out at the same time. One that goes on from another has the name of that.
    fn check_name(&self, token: &Token) -> Result<(), Failure> {
        let Token { id, name, kind, created, since, revoked, .. } = token;
        if *kind != Kind::ApiKey || since != created || revoked.is_some() {
            return Ok(());
        }
        let other: Option<String> = self
            .cached(
                "SELECT token FROM tokens WHERE name = ?1 AND kind = ?2 AND token <> ?3 AND revoked IS NULL
                    AND (expires IS NULL OR expires > ?4)
                    AND NOT EXISTS (SELECT 1 FROM tokens WHERE token = ?3) LIMIT 1",
            )?
            .query_row(params![&**name, kind.name(), &**id, time(*created)], |row| row.get(0))
            .optional()?;
        match other {
            None => Ok(()),
            Some(other) => {
                let why = format!("{name:?} is the name of {other} already: revoke that one first");
                Err(Failure::Refused(ErrorCode::Conflict.error(why)))
            }
        }
    }
}

impl Query for ReadTokens {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare(
                "SELECT token, name, kind, sha256, scopes, created, expires, revoked, used, origin, since
                 FROM tokens",
            )?;
            let mut tokens = Vec::new();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let id: String = row.get(0)?;
                match token(row, &id) {
                    Ok(Some(token)) => tokens.push(token),
                    Err(error) if !is_unreadable(&error) => return Err(Failure::Database(error)),
                    Ok(None) | Err(_) => {
                        tracing::warn!(token = %id, "a credential can't be read: it lets nobody in");
                        tokens.push(unreadable(&id));
                    }
                }
            }
            let mut statement = tx.prepare("SELECT name, used, origin FROM credential_uses")?;
            let mut uses = Vec::new();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let origin: String = row.get(2)?;
                if let (Some(at), Ok(origin)) = (row.at_if_any(1)?, origin.parse()) {
                    uses.push((Arc::from(row.get::<_, String>(0)?), Use { at, origin }));
                }
            }
            Ok(Ledger::new(tokens).with_uses(uses))
        })
    }
}

impl Query for ReadEstate {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let count = |sql: &str| -> rusqlite::Result<u64> {
                tx.prepare_cached(sql)?.query_row([self.0.as_str()], |row| row.number(0))
            };
            Ok(Estate {
                sessions: count("SELECT count(*) FROM sessions WHERE owner = ?")?,
                memories: count(
                    "SELECT coalesce(sum(scratchpad + episodic + semantic), 0) FROM memory_owners WHERE owner = ?",
                )?,
                files: count("SELECT count(*) FROM files WHERE owner = ?")?,
                jobs: count("SELECT count(*) FROM jobs WHERE owner = ?")?,
            })
        })
    }
}

/// Whether the store in this file knows of any credential, whether a daemon has it open or not. One
/// that can't be read knows of none.
pub fn has_issued(path: &Path) -> bool {
    let known = || look(path, BUSY)?.query_row("SELECT EXISTS (SELECT 1 FROM tokens)", [], |row| row.get(0));
    known().unwrap_or(false)
}

/// The credentials that a store of any format knows of; those that can't be read let nobody in.
pub(super) fn issued(db: &Connection) -> rusqlite::Result<Vec<Token>> {
    if !db.table_exists(None, "tokens")? {
        return Ok(Vec::new());
    }
    let mut statement = db.prepare(
        "SELECT token, name, kind, sha256, scopes, created, expires, revoked, used, origin, NULL FROM tokens
         ORDER BY created, token",
    )?;
    let mut tokens = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        tokens.push(token(row, &id).ok().flatten().unwrap_or_else(|| unreadable(&id)));
    }
    Ok(tokens)
}

fn unreadable(id: &str) -> Token {
    Token {
        id: id.into(),
        name: "(unreadable)".into(),
        kind: Kind::Jwt,
        sha256: None,
        scopes: Scopes::NONE,
        created: Timestamp::default(),
        since: Timestamp::default(),
        expires: None,
        revoked: Some(Timestamp::default()),
        used: None,
        origin: None,
    }
}

/// None for a kind of a later version, and for a key without its digest.
fn token(row: &Row<'_>, id: &str) -> rusqlite::Result<Option<Token>> {
    let Some(kind) = Kind::from_name(&row.get::<_, String>(2)?) else { return Ok(None) };
    let sha256: Option<[u8; 32]> = row.get(3)?;
    if (kind == Kind::ApiKey) != sha256.is_some() {
        return Ok(None);
    }
    let names: String = row.get(4)?;
    let scopes: Vec<Scope> = names.split(' ').filter_map(Scope::from_name).collect();
    let origin: Option<String> = row.get(9)?;
    let created = row.at_if_any(5)?.unwrap_or_default();
    Ok(Some(Token {
        id: id.into(),
        name: Arc::from(row.get::<_, String>(1)?),
        kind,
        sha256,
        scopes: Scopes::of(&scopes),
        created,
        since: row.at_if_any(10)?.unwrap_or(created),
        expires: row.at_if_any(6)?,
        revoked: row.at_if_any(7)?,
        used: row.at_if_any(8)?,
        origin: origin.and_then(|origin| origin.parse().ok()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::access::token::{Change, Shown};

    use crate::store::Store;

    fn token(n: u8, kind: Kind) -> Token {
        Token {
            id: format!("cmx_{n}").into(),
            name: "ci".into(),
            kind,
            sha256: (kind == Kind::ApiKey).then_some([n; 32]),
            scopes: Scopes::of(&[Scope::Write, Scope::Pair]),
            created: Timestamp::from_millis(1),
            since: Timestamp::from_millis(u64::from(n == 2)),
            expires: (n > 1).then_some(Timestamp::from_millis(u64::from(n))),
            revoked: (n > 2).then_some(Timestamp::from_millis(3)),
            used: (n > 2).then_some(Timestamp::from_millis(2)),
            origin: (n > 2).then_some(IpAddr::from([127, 0, 0, 1])),
        }
    }

    #[actix::test]
    async fn they_survive_a_new_start_and_what_is_damaged_lets_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::start(&path).await.unwrap();
        assert!(!has_issued(&path) && !has_issued(folder.path()));
        let mut all = [token(1, Kind::ApiKey), token(2, Kind::Jwt), token(3, Kind::ApiKey)];
        let mut changes: Vec<Change> = all.iter().cloned().map(Change::Put).collect();
        changes.push(Change::Put(token(4, Kind::ApiKey)));
        store.send(WriteTokens { changes, durable: true }).await.unwrap().unwrap();
        let last = |millis| Use { at: Timestamp::from_millis(millis), origin: IpAddr::from([10, 0, 0, 1]) };
        let changes = vec![
            Change::Forget("cmx_4".into()),
            Change::Used("token".into(), last(3)),
            Change::Used("token".into(), last(4)),
            // Two that were decided without knowing of each other.
            Change::Put(Token { revoked: None, used: None, origin: None, ..token(3, Kind::ApiKey) }),
            Change::Seen("cmx_3".into(), Use { at: Timestamp::from_millis(1), ..last(1) }),
            Change::Seen("cmx_2".into(), last(7)),
            Change::Seen("cmx_9".into(), last(8)),
        ];
        store.send(WriteTokens { changes, durable: true }).await.unwrap().unwrap();
        (all[1].used, all[1].origin) = (Some(last(7).at), Some(last(7).origin));
        store.send(crate::store::Stop).await.unwrap().unwrap();

        assert!(has_issued(&path));
        let store = Store::start(&path).await.unwrap();
        let ledger = store.send(ReadTokens).await.unwrap().unwrap();
        let mut listed = ledger.list();
        listed.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(listed, all);
        let namesake =
            Token { id: "cmx_7".into(), created: Timestamp::from_millis(2), ..token(1, Kind::ApiKey) };
        let namesake = Token { since: namesake.created, ..namesake };
        let write = WriteTokens { changes: vec![Change::Put(namesake)], durable: true };
        let refused = store.send(write).await.unwrap().unwrap_err();
        assert!(refused.code == ErrorCode::Conflict && refused.message.contains("cmx_1"), "{refused}");
        let token = Shown::Configured("token".into());
        assert_eq!(ledger.last_use(&token), Some(Change::Used("token".into(), last(4))));
        assert!(has_issued(&path), "also while a daemon has it open");
        store.send(crate::store::Stop).await.unwrap().unwrap();
        let db = rusqlite::Connection::open(&path).unwrap();
        let damage = "UPDATE tokens SET sha256 = x'00' WHERE token = 'cmx_1';
            UPDATE tokens SET kind = 'api-key' WHERE token = 'cmx_2'";
        db.execute_batch(damage).unwrap();
        drop(db);
        let store = Store::start(&path).await.unwrap();
        let mut left = store.send(ReadTokens).await.unwrap().unwrap().list();
        left.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(left[..2].iter().filter(|token| token.revoked.is_some()).count(), 2, "{left:?}");
        assert_eq!(left[2..], all[2..]);
    }
}
