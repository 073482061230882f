//! What came in over channels and is in no session yet, what is yet to be said over them, and who may write.
//!
//! What a platform said is kept before it is acknowledged, and goes once its prompt is in the log. Answers are put
//! into the outbox with the end of their run, in one transaction ([`Append`](super::Append)). Of a request it is written down that it is being sent before it is: one that a crash cuts off
//! is never sent again, since nobody knows whether it was carried out.

use std::collections::{BTreeMap, BTreeSet};

use actix::Message;
use clawmux_core::channel::admission::Code;
use clawmux_core::channel::change::{ChannelChange, Saying, SendState, Words};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::replica::Write;
use clawmux_core::time::Timestamp;
use rusqlite::{Transaction, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns, integer};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;

/// The most that may wait in the inbox of a channel.
const INBOX_MAX: u64 = 1000;

/// And the most bytes of that, but for the last one.
const INBOX_BYTES_MAX: u64 = 32 << 20;

/// So many messages of a channel are known by their ids.
const SEEN_MAX: u64 = 10_000;

/// So many answers that could not be sent are kept, the latest.
const UNSENT_MAX: u64 = 1000;

/// So many rows of a kind are read at once.
const ROWS_MAX: usize = 256;

/// Changes of one channel, in one transaction; durable when answered.
///
/// Errors: `Unavailable` where its inbox is full; else as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct WriteChannel {
    /// The channel.
    pub channel: String,
    /// When.
    pub now: Timestamp,
    /// What.
    pub changes: Vec<ChannelChange>,
}

/// What is in an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// Its number.
    pub id: i64,
    /// Whether an adapter has made a message of it.
    pub is_message: bool,
    /// The message as JSON, or what a platform said.
    pub body: String,
}

/// What is in an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its number.
    pub id: i64,
    /// The conversation it is for.
    pub conversation: String,
    /// Where it goes, in the channel's words.
    pub address: String,
    /// When it was made.
    pub made: Timestamp,
    /// What is said.
    pub words: Words,
    /// How many requests were carried out.
    pub next: usize,
    /// How far the next one is.
    pub state: SendState,
}

/// Asks how a channel is. Of what waits, the first that come after these numbers; of answers also those that
/// could not be sent.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<ChannelState, Error>")]
pub struct ReadChannel {
    /// The channel.
    pub channel: String,
    /// Of the inbox.
    pub inbox_after: i64,
    /// Of the outbox.
    pub outbox_after: i64,
}

/// How a channel is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelState {
    /// How far its adapter has asked its platform, as JSON.
    pub cursor: Option<String>,
    /// What came in, in order.
    pub inbox: Vec<InboxRow>,
    /// Answers, in order.
    pub outbox: Vec<OutboxRow>,
    /// Who was let in.
    pub peers: BTreeSet<String>,
    /// Who was told which code.
    pub codes: BTreeMap<String, Code>,
}

impl Query for ReadChannel {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| Ok(read(tx, &self)?))
    }
}

fn read(tx: &Transaction<'_>, asked: &ReadChannel) -> rusqlite::Result<ChannelState> {
    let ReadChannel { channel, inbox_after, outbox_after } = asked;
    let mut state = ChannelState::default();
    let mut statement = tx.prepare_cached("SELECT cursor FROM channels WHERE name = ?")?;
    for cursor in statement.query_map([channel], |row| row.get(0))? {
        state.cursor = cursor?;
    }
    let limit = integer(ROWS_MAX);
    let sql =
        "SELECT id, is_message, body FROM channel_inbox WHERE channel = ? AND id > ? ORDER BY id LIMIT ?";
    let mut statement = tx.prepare_cached(sql)?;
    let rows = statement.query_map(params![channel, inbox_after, limit], |row| {
        Ok(InboxRow { id: row.get(0)?, is_message: row.get(1)?, body: row.get(2)? })
    })?;
    state.inbox = rows.collect::<rusqlite::Result<_>>()?;
    state.outbox = read_outbox(tx, channel, *outbox_after)?;
    let mut statement = tx.prepare_cached("SELECT name FROM channel_peers WHERE channel = ?")?;
    state.peers = statement.query_map([channel], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut statement = tx.prepare_cached("SELECT name, code, told FROM channel_codes WHERE channel = ?")?;
    let codes = statement.query_map([channel], |row| {
        Ok((row.get(0)?, Code { code: row.get(1)?, told: Timestamp::from_millis(row.number(2)?) }))
    })?;
    state.codes = codes.collect::<rusqlite::Result<_>>()?;
    Ok(state)
}

/// Asks for what is yet to be said over a channel: the first that comes after this number.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<OutboxRow>, Error>")]
pub struct ReadOutbox {
    /// The channel.
    pub channel: String,
    /// Which were read before.
    pub after: i64,
}

/// Asks whether something is known by this, among the ids of messages.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<bool, Error>")]
pub struct IsRemembered {
    /// The channel.
    pub channel: String,
    /// What it is known by.
    pub known_as: String,
}

impl Query for IsRemembered {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let sql = "SELECT EXISTS (SELECT 1 FROM channel_seen WHERE channel = ? AND id = ?)";
            Ok(tx.prepare_cached(sql)?.query_row([&self.channel, &self.known_as], |row| row.get(0))?)
        })
    }
}

impl Query for ReadOutbox {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| Ok(read_outbox(tx, &self.channel, self.after)?))
    }
}

fn read_outbox(tx: &Transaction<'_>, channel: &str, after: i64) -> rusqlite::Result<Vec<OutboxRow>> {
    let sql = "SELECT id, conversation, address, made, answer, requests, next, state, error FROM outbox
         WHERE channel = ? AND id > ? ORDER BY id LIMIT ?";
    let mut statement = tx.prepare_cached(sql)?;
    let rows = statement.query_map(params![channel, after, integer(ROWS_MAX)], |row| {
        let (next, state): (u64, i64) = (row.number(6)?, row.get(7)?);
        let next = usize::try_from(next).unwrap_or(usize::MAX);
        let error = row.get::<_, Option<String>>(8)?.unwrap_or_default();
        let (answer, requests): (Option<String>, Option<String>) = (row.get(4)?, row.get(5)?);
        Ok(OutboxRow {
            id: row.get(0)?,
            conversation: row.get(1)?,
            address: row.get(2)?,
            made: Timestamp::from_millis(row.number(3)?),
            words: match requests {
                Some(requests) => Words::Requests(requests),
                None => Words::Answer(answer.unwrap_or_default()),
            },
            next,
            state: match state {
                0 => SendState::Waits(next),
                1 => SendState::Sending,
                2 => SendState::Failed(error),
                _ => SendState::Unknown(error),
            },
        })
    })?;
    rows.collect()
}

impl Writer {
    /// Puts something into the outbox of a channel.
    pub(super) fn say(&mut self, channel: &str, made: Timestamp, saying: &Saying) -> Result<(), Failure> {
        let Saying { conversation, address, words } = saying;
        let (answer, requests) = match words {
            Words::Answer(answer) => (Some(answer), None),
            Words::Requests(requests) => (None, Some(requests)),
        };
        self.cached(
            "INSERT INTO outbox (channel, conversation, address, made, answer, requests, next, state)
                 VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
        )?
        .execute(params![
            channel,
            conversation,
            address,
            integer(made.as_millis()),
            answer,
            requests
        ])?;
        Ok(())
    }
}

impl Change for WriteChannel {
    fn bytes(&self) -> usize {
        let bytes = |change: &ChannelChange| match change {
            ChannelChange::Receive(text) | ChannelChange::Advance(text) => text.len(),
            ChannelChange::Parsed(_, messages) => messages.iter().map(|(_, json)| json.len() + 64).sum(),
            ChannelChange::Say(saying) | ChannelChange::SayOnce(_, saying) => match &saying.words {
                Words::Answer(text) | Words::Requests(text) => text.len() + saying.address.len(),
            },
            ChannelChange::Formatted(_, requests) => requests.len(),
            _ => 128,
        };
        256 + self.changes.iter().map(bytes).sum::<usize>()
    }

    fn made_by(&self) -> MadeBy<'_> {
        let Self { channel, now, changes } = self.clone();
        MadeBy::All(Write::Channel { channel, now, changes })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        self.changes.iter().try_for_each(|change| self.apply_one(change, writer))
    }
}

impl WriteChannel {
    fn apply_one(&self, change: &ChannelChange, writer: &mut Writer) -> Result<(), Failure> {
        let (channel, now) = (&self.channel, integer(self.now.as_millis()));
        match change {
            ChannelChange::Receive(body) => {
                let sql = "SELECT count(*), coalesce(sum(octet_length(body)), 0) FROM channel_inbox WHERE channel = ?";
                let (waiting, bytes): (u64, u64) =
                    writer.cached(sql)?.query_row([channel], |row| Ok((row.number(0)?, row.number(1)?)))?;
                if waiting >= INBOX_MAX || bytes >= INBOX_BYTES_MAX {
                    return Err(Failure::Refused(ErrorCode::Unavailable.error(format!(
                        "channel {channel}: {waiting} messages of {bytes} bytes wait already: try again later"
                    ))));
                }
                self.insert(false, body, writer)?;
            }
            ChannelChange::Advance(cursor) => {
                writer
                    .cached(
                        "INSERT INTO channels (name, cursor) VALUES (?1, ?2)
                         ON CONFLICT (name) DO UPDATE SET cursor = ?2",
                    )?
                    .execute(params![channel, cursor])?;
            }
            ChannelChange::Parsed(id, messages) => {
                writer.cached("DELETE FROM channel_inbox WHERE id = ?")?.execute([id])?;
                for (known_as, json) in messages {
                    let is_new = match known_as {
                        None => true,
                        Some(id) => self.is_new(id, writer)?,
                    };
                    if is_new {
                        self.insert(true, json, writer)?;
                    }
                }
                self.forget_the_oldest(writer)?;
            }
            ChannelChange::Taken(id) => {
                writer.cached("DELETE FROM channel_inbox WHERE id = ?")?.execute([id])?;
            }
            ChannelChange::Say(saying) => writer.say(channel, self.now, saying)?,
            ChannelChange::SayOnce(known_as, saying) => {
                if self.is_new(known_as, writer)? {
                    writer.say(channel, self.now, saying)?;
                    self.forget_the_oldest(writer)?;
                }
            }
            ChannelChange::Remember(known_as) => {
                if self.is_new(known_as, writer)? {
                    self.forget_the_oldest(writer)?;
                }
            }
            ChannelChange::Unremember(known_as) => {
                let sql = "DELETE FROM channel_seen WHERE channel = ? AND id = ?";
                writer.cached(sql)?.execute([channel, known_as])?;
            }
            ChannelChange::Formatted(id, requests) => {
                let sql = "UPDATE outbox SET requests = ? WHERE id = ?";
                writer.cached(sql)?.execute(params![requests, id])?;
            }
            ChannelChange::Send(id, state) => self.put(*id, state, writer)?,
            ChannelChange::Sent(id) => {
                writer.cached("DELETE FROM outbox WHERE id = ?")?.execute([id])?;
            }
            ChannelChange::LetIn(name) => {
                let sql = "INSERT OR IGNORE INTO channel_peers (channel, name, since) VALUES (?, ?, ?)";
                writer.cached(sql)?.execute(params![channel, name, now])?;
            }
            ChannelChange::ShutOut(name) => {
                let sql = "DELETE FROM channel_peers WHERE channel = ? AND name = ?";
                writer.cached(sql)?.execute([channel, name])?;
            }
            ChannelChange::Tell(name, code) => {
                writer
                    .cached(
                        "INSERT INTO channel_codes (channel, name, code, told) VALUES (?1, ?2, ?3, ?4)
                         ON CONFLICT (channel, name) DO UPDATE SET code = ?3, told = ?4",
                    )?
                    .execute(params![channel, name, code, now])?;
            }
            ChannelChange::Forget(name) => {
                let sql = "DELETE FROM channel_codes WHERE channel = ? AND name = ?";
                writer.cached(sql)?.execute([channel, name])?;
            }
        }
        Ok(())
    }

    /// Whether nothing was known by this id; now something is.
    fn is_new(&self, id: &str, writer: &mut Writer) -> Result<bool, Failure> {
        let sql = "INSERT OR IGNORE INTO channel_seen (channel, id, received) VALUES (?, ?, ?)";
        Ok(writer.cached(sql)?.execute(params![self.channel, id, integer(self.now.as_millis())])? > 0)
    }

    /// Lets go of ids beyond the latest.
    fn forget_the_oldest(&self, writer: &mut Writer) -> Result<(), Failure> {
        writer
            .cached(
                "DELETE FROM channel_seen WHERE channel = ?1 AND received < (SELECT received FROM channel_seen
                     WHERE channel = ?1 ORDER BY received DESC LIMIT 1 OFFSET ?2)",
            )?
            .execute(params![self.channel, integer(SEEN_MAX)])?;
        Ok(())
    }

    fn insert(&self, is_message: bool, body: &str, writer: &mut Writer) -> Result<(), Failure> {
        writer
            .cached("INSERT INTO channel_inbox (channel, received, is_message, body) VALUES (?, ?, ?, ?)")?
            .execute(params![self.channel, integer(self.now.as_millis()), is_message, body])?;
        Ok(())
    }

    fn put(&self, id: i64, state: &SendState, writer: &mut Writer) -> Result<(), Failure> {
        let (state, next, error) = match state {
            SendState::Waits(next) => (0, Some(integer(*next)), None),
            SendState::Sending => (1, None, None),
            SendState::Failed(why) => (2, None, Some(why)),
            SendState::Unknown(why) => (3, None, Some(why)),
        };
        writer
            .cached("UPDATE outbox SET state = ?, next = coalesce(?, next), error = ? WHERE id = ?")?
            .execute(params![state, next, error, id])?;
        if state >= 2 {
            writer
                .cached(
                    "DELETE FROM outbox WHERE channel = ?1 AND state >= 2 AND id <= (SELECT id FROM outbox
                     WHERE channel = ?1 AND state >= 2 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                )?
                .execute(params![self.channel, integer(UNSENT_MAX)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Stop, Store};
    use actix::{Actor, Addr};

    const NOW: Timestamp = Timestamp::from_millis(5000);

    async fn write(store: &Addr<Store>, changes: Vec<ChannelChange>) -> Result<(), Error> {
        store.send(WriteChannel { channel: "t".into(), now: NOW, changes }).await.unwrap()
    }

    async fn state(store: &Addr<Store>, channel: &str) -> ChannelState {
        let read = ReadChannel { channel: channel.into(), inbox_after: 0, outbox_after: 0 };
        store.send(read).await.unwrap().unwrap()
    }

    #[actix::test]
    async fn what_came_in_becomes_messages_once_and_then_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clawmux.db");
        let store = Store::open(path.clone()).await.unwrap().start();
        let receive = |body: &str| ChannelChange::Receive(body.into());
        write(&store, vec![receive("a"), receive("b"), ChannelChange::Advance("7".into())]).await.unwrap();
        let known = state(&store, "t").await;
        assert_eq!((known.cursor.as_deref(), known.inbox.len()), (Some("7"), 2));
        assert_eq!(state(&store, "other").await, ChannelState::default());
        let message = |id: &str| (Some(id.to_owned()), format!("m{id}"));
        let first = known.inbox[0].id;
        write(&store, vec![ChannelChange::Parsed(first, vec![message("1"), message("2"), message("1")])])
            .await
            .unwrap();
        write(
            &store,
            vec![ChannelChange::Parsed(
                known.inbox[1].id,
                vec![message("2"), (None, "x".into()), (None, "x".into())],
            )],
        )
        .await
        .unwrap();
        let known = state(&store, "t").await;
        let bodies: Vec<_> = known.inbox.iter().map(|row| (row.is_message, row.body.as_str())).collect();
        assert_eq!(bodies, [(true, "m1"), (true, "m2"), (true, "x"), (true, "x")]);
        let saying =
            Saying { conversation: "c".into(), address: "a".into(), words: Words::Answer("{}".into()) };
        let (say, once) = (ChannelChange::Say(saying.clone()), ChannelChange::SayOnce("n".into(), saying));
        write(&store, vec![ChannelChange::Taken(known.inbox[0].id), once.clone(), once]).await.unwrap();
        let id = state(&store, "t").await.outbox.remove(0).id;
        write(&store, vec![ChannelChange::Sent(id), say]).await.unwrap();
        store.send(Stop).await.unwrap().unwrap();

        let store = Store::open(path).await.unwrap().start();
        let known = state(&store, "t").await;
        assert_eq!((known.inbox.len(), known.outbox.len()), (3, 1));
        assert_eq!((known.outbox[0].address.as_str(), known.outbox[0].id > id), ("a", true));
        let id = known.outbox[0].id;
        write(&store, vec![ChannelChange::Formatted(id, "[]".into())]).await.unwrap();
        assert_eq!(state(&store, "t").await.outbox[0].words, Words::Requests("[]".into()));
        for (put, next) in [
            (SendState::Sending, 0),
            (SendState::Waits(1), 1),
            (SendState::Failed("no".into()), 1),
            (SendState::Unknown("cut".into()), 1),
        ] {
            write(&store, vec![ChannelChange::Send(id, put.clone())]).await.unwrap();
            let row = state(&store, "t").await.outbox.remove(0);
            assert_eq!((row.state, row.next), (put, next));
        }
        write(&store, vec![ChannelChange::Sent(id)]).await.unwrap();
        assert!(state(&store, "t").await.outbox.is_empty());
        store.send(Stop).await.unwrap().unwrap();
    }

    #[actix::test]
    async fn a_full_inbox_refuses_and_who_may_write_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("clawmux.db")).await.unwrap().start();
        let many = vec![ChannelChange::Receive("x".into()); 1000];
        write(&store, many).await.unwrap();
        let error = write(&store, vec![ChannelChange::Receive("x".into())]).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
        let first = state(&store, "t").await.inbox[0].id;
        write(&store, vec![ChannelChange::Taken(first), ChannelChange::Receive("y".into())]).await.unwrap();
        let tell = |name: &str, code: &str| ChannelChange::Tell(name.into(), code.into());
        write(&store, vec![tell("ada", "AAAA"), tell("ada", "BBBB"), tell("bob", "CCCC")]).await.unwrap();
        write(&store, vec![ChannelChange::Forget("bob".into()), ChannelChange::LetIn("ada".into())])
            .await
            .unwrap();
        let known = state(&store, "t").await;
        assert_eq!(
            (known.codes.len(), known.codes["ada"].code.as_str(), known.codes["ada"].told),
            (1, "BBBB", NOW)
        );
        assert!(known.peers.contains("ada"));
        write(&store, vec![ChannelChange::ShutOut("ada".into())]).await.unwrap();
        assert!(state(&store, "t").await.peers.is_empty());
        store.send(Stop).await.unwrap().unwrap();
    }
}
