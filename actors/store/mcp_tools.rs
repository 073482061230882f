//! What was agreed to of the tools of MCP servers: the digests of what a model is told of them.

use std::collections::BTreeMap;

use actix::Message;
use clawmux_core::error::Error;
use clawmux_core::replica::Write;
use rusqlite::params;

use super::change::{Change, MadeBy};
use super::columns::Columns;
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// By name of the tool, the digest that was agreed to.
pub type AgreedTools = BTreeMap<String, [u8; 32]>;

/// Asks what was agreed to of a server's tools; none where the server was never met.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<AgreedTools>, Error>")]
pub struct ReadAgreedTools {
    /// The server.
    pub server: String,
}

/// These tools are agreed to from now on, and the others of the server no more; durable when answered.
///
/// Errors: as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct AgreeToTools {
    /// The server.
    pub server: String,
    /// The tools.
    pub tools: AgreedTools,
}

impl Query for ReadAgreedTools {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let known =
                tx.prepare_cached("SELECT 1 FROM mcp_servers WHERE name = ?")?.exists([&self.server])?;
            if !known {
                return Ok(None);
            }
            let mut statement = tx.prepare_cached("SELECT tool, digest FROM mcp_tools WHERE server = ?")?;
            let rows = statement.query_map([&self.server], |row| Ok((row.value(0)?, row.value(1)?)))?;
            Ok(Some(rows.collect::<rusqlite::Result<_>>()?))
        })
    }
}

impl Change for AgreeToTools {
    fn bytes(&self) -> usize {
        256 + self.tools.keys().map(|tool| tool.len() + 64).sum::<usize>()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::AgreedTools { server: self.server.clone(), tools: self.tools.clone() })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        writer.cached("INSERT OR IGNORE INTO mcp_servers (name) VALUES (?)")?.execute([&self.server])?;
        writer.cached("DELETE FROM mcp_tools WHERE server = ?")?.execute([&self.server])?;
        for (tool, digest) in &self.tools {
            writer
                .cached("INSERT INTO mcp_tools (server, tool, digest) VALUES (?, ?, ?)")?
                .execute(params![self.server, tool, digest])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Stop, Store};
    use actix::Actor;

    #[actix::test]
    async fn what_was_agreed_to_stays_for_each_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::open(path.clone()).await.unwrap().start();
        let tools = |names: &[&str]| -> AgreedTools {
            names.iter().map(|name| ((*name).to_owned(), [7; 32])).collect()
        };
        for (server, named) in [("files", &["read", "write"][..]), ("empty", &[]), ("files", &["read"])] {
            let agree = AgreeToTools { server: server.to_owned(), tools: tools(named) };
            store.send(agree).await.unwrap().unwrap();
        }
        store.send(Stop).await.unwrap().unwrap();
        let store = Store::open(path).await.unwrap().start();
        for (server, agreed) in
            [("files", Some(tools(&["read"]))), ("empty", Some(tools(&[]))), ("other", None)]
        {
            let read = ReadAgreedTools { server: server.to_owned() };
            assert_eq!(store.send(read).await.unwrap().unwrap(), agreed, "{server}");
        }
        store.send(Stop).await.unwrap().unwrap();
    }
}
