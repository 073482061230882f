//! The changes that all daemons of a cluster make.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::access::{pairing, token};
use crate::agents::registry;
use crate::channel::change::ChannelChange;
use crate::conversation::event::Logged;
use crate::conversation::log::segment::Segment;
use crate::conversation::log::usage::UsageRecord;
use crate::conversation::outbox::ToSay;
use crate::ids::{Owner, RunId, Seq, SessionKey};
use crate::memory::file::FileChange;
use crate::memory::{Embedding, MemoryRecord};
use crate::schedule::job::JobWrite;
use crate::time::Timestamp;
use crate::tools::audit::CallRecord;
use crate::tools::plugin::PluginNamespace;

/// A change, all of which is made or nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A session is taken over: who holds the token of this record is the only one who writes to it from here on.
    /// Calls of models that were under way in it count as spent, with what was reserved for them.
    TakeOver(SessionKey),
    /// Events are added to a session.
    Append(Appended),
    /// A session is removed.
    Delete {
        /// Which.
        session: SessionKey,
        /// Only where it was not used after this.
        unused_since: Option<Timestamp>,
    },
    /// Agents and teams.
    Agents(Vec<registry::Change>),
    /// Credentials.
    Tokens(Vec<token::Change>),
    /// Devices.
    Devices(Vec<pairing::Change>),
    /// Jobs.
    Jobs(Vec<JobWrite>),
    /// A file of a client.
    File(FileChange),
    /// A channel.
    Channel {
        /// Which.
        channel: String,
        /// When.
        now: Timestamp,
        /// What.
        changes: Vec<ChannelChange>,
    },
    /// A value of a plugin; none removes it.
    PluginValue {
        /// Where it is.
        namespace: PluginNamespace,
        /// Its key.
        key: String,
        /// The value, as JSON.
        value: Option<String>,
    },
    /// The tools of an MCP server that were agreed to, with the digests of what is told of them.
    AgreedTools {
        /// The server.
        server: String,
        /// The tools.
        tools: BTreeMap<String, [u8; 32]>,
    },
    /// A call of a model begins.
    BeginCall {
        /// Its number.
        call: u64,
        /// The most it may come to.
        reserved: UsageRecord,
    },
    /// It is over.
    RecordUsage {
        /// Its number.
        call: u64,
        /// What it cost.
        records: Vec<UsageRecord>,
    },
    /// A tool was called.
    RecordCall(CallRecord),
    /// Something is remembered.
    Remember {
        /// It.
        memory: Box<MemoryRecord>,
        /// Whether an operator has it remembered.
        by_operator: bool,
    },
    /// Facts were learned.
    Learn(Vec<MemoryRecord>),
    /// Memories are imported.
    Import(Vec<MemoryRecord>),
    /// A memory is forgotten.
    Forget {
        /// Its id.
        id: String,
        /// Only where it is this owner's.
        owner: Option<Owner>,
    },
    /// All memories of an owner are forgotten.
    ForgetAll(Owner),
    /// A model made vectors of memories, by their numbers; or none.
    KeepVectors {
        /// The model.
        model: String,
        /// The vectors.
        vectors: Vec<(i64, Option<Embedding>)>,
    },
    /// Tokens were spent on learning, or given back.
    SpendOnLearning {
        /// On the day (UTC) of this moment.
        at: Timestamp,
        /// So many.
        tokens: i64,
    },
}

/// Events of one session, with the text of the steps that end with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Appended {
    /// The session.
    pub session: SessionKey,
    /// What runs said and thought in steps that these events end, in order; of a run that is not here, nothing.
    pub settled: Vec<(RunId, Vec<Segment>)>,
    /// The events, none of which is text: that is above.
    pub events: Arc<[Logged]>,
    /// Numbers up to here are set aside.
    pub reserve: Option<Seq>,
    /// What is said over channels with them.
    pub to_say: Vec<ToSay>,
}
