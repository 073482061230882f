//! The changes that all daemons of a cluster make.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::access::{pairing, token};
use crate::agents::registry;
use crate::channel::change::ChannelChange;
use crate::conversation::event::{Event, Logged};
use crate::conversation::log::segment::Segment;
use crate::conversation::log::usage::UsageRecord;
use crate::conversation::outbox::ToSay;
use crate::ids::{Owner, RunId, Seq, SessionKey};
use crate::memory::file::FileChange;
use crate::memory::{EMBEDDINGS_SESSION, Embedding, MemoryRecord};
use crate::schedule::job::JobWrite;
use crate::time::Timestamp;
use crate::tools::audit::CallRecord;
use crate::tools::plugin::PluginNamespace;

/// A change, all of which is made or nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A session is taken over: who holds the token of this record is the only one who writes it from here on. Calls of
    /// models that were under way in it count as spent, with what was reserved for them.
    TakeOver(SessionKey),
    /// An idempotency key stands for a run from here on. It changes nothing: it is there so that no other daemon gives
    /// the key to another run at the same time, and comes with the prompt or not at all.
    Guard(Guard),
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

impl Appended {
    /// For what the idempotency keys of its prompts stand.
    pub fn guards(&self) -> Vec<Guard> {
        let guard = |logged: &Logged| match (&logged.event, &logged.run) {
            (Event::Prompted { owner, idempotency_key: Some(key), .. }, Some(run)) => Some(Guard {
                owner: owner.clone(),
                key: key.clone(),
                session: self.session.clone(),
                run: run.clone(),
            }),
            _ => None,
        };
        self.events.iter().filter_map(guard).collect()
    }
}

/// What a change is about: the changes of one subject are written one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A session, with what its calls cost: one daemon at a time writes it, its owner.
    Session(SessionKey),
    /// What is kept beside sessions, by its name: all daemons write it.
    Table(&'static str),
}

impl Subject {
    /// The names of what is kept beside sessions.
    pub const TABLES: [&'static str; 10] =
        ["agents", "calls", "channels", "devices", "files", "jobs", "memories", "plugins", "tokens", "tools"];

    /// That of what calls of models cost. Those that count for a session that is none can be made by any daemon.
    fn of_calls(session: &SessionKey) -> Self {
        match (&*session.channel(), &*session.account()) == EMBEDDINGS_SESSION {
            true => Self::Table("calls"),
            false => Self::Session(session.clone()),
        }
    }

    /// What it is about, in the words of the log: a table's name, or the key of a session.
    pub fn name(&self) -> &str {
        match self {
            Self::Session(session) => session.as_str(),
            Self::Table(name) => name,
        }
    }
}

impl Write {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        let session = match self {
            Self::TakeOver(session) => session,
            Self::Guard(guard) => &guard.session,
            Self::Append(appended) => &appended.session,
            Self::Delete { session, .. } => session,
            Self::BeginCall { reserved, .. } => return Subject::of_calls(&reserved.session),
            Self::RecordUsage { records, .. } => match records.first() {
                Some(record) => return Subject::of_calls(&record.session),
                None => return Subject::Table("calls"),
            },
            Self::RecordCall(call) => &call.session,
            Self::Agents(_) => return Subject::Table("agents"),
            Self::Tokens(_) => return Subject::Table("tokens"),
            Self::Devices(_) => return Subject::Table("devices"),
            Self::Jobs(_) => return Subject::Table("jobs"),
            Self::File(_) => return Subject::Table("files"),
            Self::Channel { .. } => return Subject::Table("channels"),
            Self::PluginValue { .. } => return Subject::Table("plugins"),
            Self::AgreedTools { .. } => return Subject::Table("tools"),
            Self::Remember { .. }
            | Self::Learn(_)
            | Self::Import(_)
            | Self::Forget { .. }
            | Self::ForgetAll(_)
            | Self::KeepVectors { .. }
            | Self::SpendOnLearning { .. } => return Subject::Table("memories"),
        };
        Subject::Session(session.clone())
    }
}

/// For what an idempotency key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Whose key it is.
    pub owner: Owner,
    /// The key.
    pub key: String,
    /// The session of the run.
    pub session: SessionKey,
    /// The run.
    pub run: RunId,
}

impl Guard {
    /// What stands for owner and key in the log.
    pub fn hash(&self) -> [u8; 16] {
        let owner = self.owner.as_str();
        let digest = Sha256::new()
            .chain_update((owner.len() as u64).to_be_bytes())
            .chain_update(owner)
            .chain_update(&self.key)
            .finalize();
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        hash
    }
}

/// Events of one session, with the text of the steps that end with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Appended {
    /// The session.
    pub session: SessionKey,
    /// What runs said and thought before these events and is in no record yet, in order.
    pub settled: Vec<(RunId, Vec<Segment>)>,
    /// The events, none of which is text: that is above.
    pub events: Arc<[Logged]>,
    /// Numbers up to here are set aside.
    pub reserve: Option<Seq>,
    /// What is said over channels with them.
    pub to_say: Vec<ToSay>,
}
