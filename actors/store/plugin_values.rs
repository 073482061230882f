//! What plugins keep: values by key, in namespaces that are apart for each owner and agent.

use actix::Message;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::replica::Write;
use clawmux_core::tools::plugin::{LISTED_MAX, PluginNamespace, QUOTA_BYTES, QUOTA_KEYS};
use rusqlite::{OptionalExtension, Transaction, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns, integer};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// Asks for the value of a key, which is JSON; none where it has none.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<String>, Error>")]
pub struct ReadPluginValue {
    /// Where it is.
    pub namespace: PluginNamespace,
    /// The key.
    pub key: String,
}

/// Asks for the keys that begin so and come after a key, in the order of their bytes, at most [`LISTED_MAX`];
/// and whether there are more.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(Vec<String>, bool), Error>")]
pub struct ListPluginKeys {
    /// Where they are.
    pub namespace: PluginNamespace,
    /// How they begin.
    pub prefix: String,
    /// They come after this one; empty for all.
    pub after: String,
}

/// A key has this value from now on, or none any more; durable when answered.
///
/// Errors: `TooLarge` where the namespace is full; else as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WritePluginValue {
    /// Where it is.
    pub namespace: PluginNamespace,
    /// The key.
    pub key: String,
    /// JSON.
    pub value: Option<String>,
}

impl Query for ReadPluginValue {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let Some(id) = id_of(tx, &self.namespace)? else { return Ok(None) };
            let sql = "SELECT value FROM plugin_values WHERE namespace = ? AND key = ?";
            Ok(tx.prepare_cached(sql)?.query_row(params![id, self.key], |row| row.value(0)).optional()?)
        })
    }
}

impl Query for ListPluginKeys {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let Some(id) = id_of(tx, &self.namespace)? else { return Ok((Vec::new(), false)) };
            let sql = "SELECT key FROM plugin_values WHERE namespace = ?1 AND key > ?2 AND key >= ?3
                 ORDER BY key LIMIT ?4";
            let mut statement = tx.prepare_cached(sql)?;
            let asked = params![id, self.after, self.prefix, integer(LISTED_MAX + 1)];
            let mut keys = Vec::new();
            for key in statement.query_map(asked, |row| row.value::<String>(0))? {
                let key = key?;
                // In order: behind the first that begins otherwise, all do.
                if !key.starts_with(&self.prefix) {
                    break;
                }
                keys.push(key);
            }
            let more = keys.len() > LISTED_MAX;
            keys.truncate(LISTED_MAX);
            Ok((keys, more))
        })
    }
}

fn id_of(tx: &Transaction<'_>, namespace: &PluginNamespace) -> rusqlite::Result<Option<i64>> {
    let PluginNamespace { owner, agent, name } = namespace;
    tx.prepare_cached("SELECT id FROM plugin_namespaces WHERE owner = ? AND agent = ? AND namespace = ?")?
        .query_row(params![owner.as_str(), agent, name], |row| row.value(0))
        .optional()
}

impl Change for WritePluginValue {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, String::len) + 256
    }

    fn made_by(&self) -> MadeBy<'_> {
        let Self { namespace, key, value } = self.clone();
        MadeBy::All(Write::PluginValue { namespace, key, value })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let PluginNamespace { owner, agent, name } = &self.namespace;
        let (id, keys, bytes): (i64, u64, u64) = writer
            .cached(
                "INSERT INTO plugin_namespaces (owner, agent, namespace) VALUES (?, ?, ?)
                 ON CONFLICT (owner, agent, namespace) DO UPDATE SET keys = keys RETURNING id, keys, bytes",
            )?
            .query_row(params![owner.as_str(), agent, name], |row| {
                Ok((row.value(0)?, row.number(1)?, row.number(2)?))
            })?;
        let there: Option<u64> = writer
            .cached("SELECT octet_length(key) + octet_length(value) FROM plugin_values WHERE namespace = ? AND key = ?")?
            .query_row(params![id, self.key], |row| row.number(0))
            .optional()?;
        let keys = keys.saturating_sub(u64::from(there.is_some())) + u64::from(self.value.is_some());
        let coming = self.value.as_ref().map_or(0, |value| self.key.len() + value.len());
        let bytes = bytes.saturating_sub(there.unwrap_or(0)).saturating_add(coming as u64);
        if self.value.is_some() && (keys > QUOTA_KEYS || bytes > QUOTA_BYTES) {
            return Err(Failure::Refused(ErrorCode::TooLarge.error(format!(
                "the namespace {name} would have {keys} keys and {bytes} bytes, more than {QUOTA_KEYS} or {QUOTA_BYTES}"
            ))));
        }
        match &self.value {
            Some(value) => writer
                .cached(
                    "INSERT INTO plugin_values (namespace, key, value) VALUES (?, ?, ?)
                     ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value",
                )?
                .execute(params![id, self.key, value])?,
            None => writer
                .cached("DELETE FROM plugin_values WHERE namespace = ? AND key = ?")?
                .execute(params![id, self.key])?,
        };
        writer.cached("UPDATE plugin_namespaces SET keys = ?, bytes = ? WHERE id = ?")?.execute(params![
            integer(keys),
            integer(bytes),
            id
        ])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Stop, Store};
    use actix::{Actor, Addr};
    use clawmux_core::ids::Owner;
    use clawmux_core::tools::plugin::VALUE_BYTES_MAX;

    fn namespace(owner: &str, agent: &str, name: &str) -> PluginNamespace {
        PluginNamespace { owner: Owner::from_name(owner), agent: agent.to_owned(), name: name.to_owned() }
    }

    async fn write(
        store: &Addr<Store>,
        at: &PluginNamespace,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), Error> {
        let value = value.map(str::to_owned);
        let write = WritePluginValue { namespace: at.clone(), key: key.to_owned(), value };
        store.send(write).await.unwrap()
    }

    async fn read(store: &Addr<Store>, at: &PluginNamespace, key: &str) -> Option<String> {
        let read = ReadPluginValue { namespace: at.clone(), key: key.to_owned() };
        store.send(read).await.unwrap().unwrap()
    }

    async fn list(
        store: &Addr<Store>,
        at: &PluginNamespace,
        prefix: &str,
        after: &str,
    ) -> (Vec<String>, bool) {
        let (namespace, prefix, after) = (at.clone(), prefix.to_owned(), after.to_owned());
        store.send(ListPluginKeys { namespace, prefix, after }).await.unwrap().unwrap()
    }

    #[actix::test]
    async fn values_stay_and_are_apart_for_owners_agents_and_namespaces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::open(path.clone()).await.unwrap().start();
        let own = namespace("key:ci", "main", "notes");
        write(&store, &own, "a", Some("1")).await.unwrap();
        write(&store, &own, "a", Some("[2]")).await.unwrap();
        write(&store, &own, "b", Some("3")).await.unwrap();
        write(&store, &own, "b", None).await.unwrap();
        for other in [
            namespace("key:other", "main", "notes"),
            namespace("key:ci", "x", "notes"),
            namespace("key:ci", "main", "n"),
        ] {
            assert_eq!(read(&store, &other, "a").await, None, "{other:?}");
            assert_eq!(list(&store, &other, "", "").await, (Vec::new(), false), "{other:?}");
        }
        store.send(Stop).await.unwrap().unwrap();
        let store = Store::open(path).await.unwrap().start();
        assert_eq!(read(&store, &own, "a").await.as_deref(), Some("[2]"));
        assert_eq!(list(&store, &own, "", "").await, (vec!["a".to_owned()], false));
        store.send(Stop).await.unwrap().unwrap();
    }

    #[actix::test]
    async fn keys_are_listed_in_order_by_their_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("clawmux.db")).await.unwrap().start();
        let own = namespace("key:ci", "main", "notes");
        for key in ["b%", "b_1", "b1", "a", "c", "b%2", "İ"] {
            write(&store, &own, key, Some("0")).await.unwrap();
        }
        assert_eq!(list(&store, &own, "b%", "").await.0, ["b%", "b%2"]);
        assert_eq!(list(&store, &own, "", "b1").await.0, ["b_1", "c", "İ"]);
        assert_eq!(list(&store, &own, "z", "").await.0, Vec::<String>::new());
        store.send(Stop).await.unwrap().unwrap();
    }

    #[actix::test]
    async fn a_full_namespace_refuses_and_has_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("clawmux.db")).await.unwrap().start();
        let own = namespace("key:ci", "main", "notes");
        let large = "1".repeat(VALUE_BYTES_MAX);
        let fits = QUOTA_BYTES as usize / (VALUE_BYTES_MAX + 2);
        for at in 0..fits {
            write(&store, &own, &format!("{at:02}"), Some(&large)).await.unwrap();
        }
        let error = write(&store, &own, "xx", Some(&large)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge, "{error}");
        write(&store, &own, "00", Some(&large)).await.unwrap();
        write(&store, &own, "01", None).await.unwrap();
        write(&store, &own, "xx", Some(&large)).await.unwrap();
        assert_eq!(list(&store, &own, "", "").await.0.len(), fits);
        store.send(Stop).await.unwrap().unwrap();
    }
}
