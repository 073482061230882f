//! Everything that a cluster asks of JetStream: the log, two buckets and heartbeats.
//!
//! | part | what it does |
//! |---|---|
//! | `subjects` | what everything is called |
//! | `site` | connects, finds out which log is the present one, begins another |
//! | `parts` | what is too large for one message, in several |
//! | `base` | what a log begins with: parts of a file, written and read |
//! | `blobs` | what is too large for the log, in parts beside it |
//! | `streams` | makes the log, the blobs and the buckets, or looks whether those that are there fit |
//! | `durability` | asks the servers whether an acknowledgement is a sync |
//! | `writing` | publishes with the last sequence of a subject expected |
//! | `groups` | what is written at the same time goes as one batch |
//! | `reading` | what a subject has, whose a guard is, how far the log reaches |
//! | `following` | the log from a record on, in order |
//! | `buckets` | nodes join, slots are read and written |
//! | `heartbeats` | who says that it is alive |
//! | `peers` | questions from node to node, and text as it is said |
//! | `handover` | a node is asked to give its slots away |
//!
//! Nothing here decides anything: who may write is what [`clawmux_core::cluster`] says, what a record says is
//! the store's. Every answer comes within [`ANSWER_MAX`], or is an error that says so. A future that is
//! dropped before that may have written all the same.
//!
//! What is read may be stale: any replica answers. Only a guard and the extent of the log are asked of the
//! leader, and that one may be outdone and not know it yet. An acknowledgement alone is the truth.
//!
//! Deliberately absent: watches of buckets, which leave consumers behind when they are made again;
//! `Nats-Msg-Id`, which has a server refuse a message of its own; a wait for the connection, as a record that
//! waits in a buffer arrives late.

mod base;
mod blobs;
mod buckets;
mod durability;
mod following;
mod groups;
mod handover;
mod heartbeats;
mod parts;
mod peers;
mod reading;
mod site;
mod streams;
mod subjects;
mod writing;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::connection::State;
use clawmux_core::cluster::base::Manifest;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::slot::Slot;
pub use clawmux_core::config::Durability;
use clawmux_core::config::{self, BusCredential};
use clawmux_core::ids::SessionKey;
use tokio::sync::Semaphore;

pub use self::base::{CHUNK_BYTES, Chunked};
pub use self::blobs::NoBlob;
pub use self::buckets::Node;
pub use self::following::{Followed, LogRecord};
use self::groups::Groups;
pub use self::handover::{HandOverAsked, HandOversAsked};
pub use self::heartbeats::{Beat, Heartbeats};
pub use self::parts::is_full;
pub use self::peers::{Question, ReplyTo};
pub use self::reading::{Extent, LogServer, LogServers};
pub use self::site::{Planned, Site};
use self::subjects::Subjects;
pub use self::writing::Published;
use crate::nats::Nats;
pub use crate::nats::Unusable;

/// How long anything may take: a publish, a read, the beginning of following.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The largest message, in bytes: what is larger is a blob. Servers that take less are refused.
pub const RECORD_BYTES_MAX: usize = 1000 * 1000;

/// Room for the headers of a record.
const HEADER_BYTES_MAX: usize = 1024;

/// Publishes on their way at once, of one engine.
const PUBLISHES_MAX: usize = 1024;

/// With what an engine is opened.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The name of the cluster: 1 to 32 letters, digits, `_` and `-`.
    pub name: String,
    /// The servers, in the order in which they are tried.
    pub servers: Vec<String>,
    /// What is shown to them.
    pub credential: BusCredential,
    /// A certificate authority, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate and the key that are shown to the servers.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// How many servers have everything: 3, 5, or 1 where losing it does not matter.
    pub replicas: usize,
    /// The most bytes that the log may have; none = the server's limit. Counts when the log is made.
    pub max_log_bytes: Option<u64>,
    /// The monitoring ports of the servers, as `http://` URLs.
    pub monitor: Vec<String>,
    /// What an acknowledgement must be.
    pub durability: Durability,
}

impl Default for EngineSettings {
    /// Three servers that sync, one of them on this host.
    fn default() -> Self {
        Self {
            name: "clawmux".to_owned(),
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            credential: BusCredential::None,
            ca_file: None,
            client_certificate: None,
            replicas: 3,
            max_log_bytes: None,
            monitor: Vec::new(),
            durability: Durability::Required,
        }
    }
}

impl From<&config::Cluster> for EngineSettings {
    fn from(config: &config::Cluster) -> Self {
        Self {
            name: config.name.clone(),
            servers: config.servers.clone(),
            credential: config.credential.clone(),
            ca_file: config.ca_file.clone(),
            client_certificate: config.client_certificate.clone(),
            replicas: config.replicas,
            max_log_bytes: config.max_log_bytes,
            monitor: config.monitor.clone(),
            durability: config.durability,
        }
    }
}

/// The log, the buckets and the heartbeats of one cluster. Clones share a connection and its bounds.
#[derive(Clone, Debug)]
pub struct Engine {
    nats: Nats,
    subjects: Subjects,
    site: Site,
    base: Arc<Manifest>,
    /// Whether it was said that there is another one.
    is_superseded: Arc<OnceLock<()>>,
    /// The node that joined.
    me: Arc<OnceLock<NodeName>>,
    publishes: Arc<Semaphore>,
    groups: Groups,
    /// Parts of blobs that may be on their way.
    parts: Arc<Semaphore>,
}

impl Engine {
    /// Connects, and looks for the log, the blobs and the buckets. The connection lives on the runtime that this is called on.
    ///
    /// # Errors
    /// As [`Site::connect`]'s and [`Site::open`]'s.
    pub async fn open(settings: &EngineSettings) -> Result<Self, Unusable> {
        Site::connect(settings).await?.open().await
    }

    /// The base that the log begins with.
    pub fn base(&self) -> &Manifest {
        &self.base
    }

    /// Says so, once, where the cluster has another log meanwhile: this one is gone then, and only a daemon that is
    /// started anew gets to the other.
    pub(super) async fn look_whether_superseded(&self) {
        if self.is_superseded.get().is_none()
            && let Ok(Some(base)) = self.site.base().await
            && (base.generation, &base.cluster) != (self.base.generation, &self.base.cluster)
            && self.is_superseded.set(()).is_ok()
        {
            tracing::error!(
                generation = base.generation,
                ours = self.base.generation,
                "cluster: it was rebuilt and has a new log: start this daemon anew, which takes the base of that"
            );
        }
    }

    /// The servers, to be asked for more than the log.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Where the records of a session are in the log, `slot` being its slot.
    pub fn session(&self, session: &SessionKey, slot: Slot) -> String {
        self.subjects.session(session, slot)
    }

    /// Where the records of what is kept beside sessions under this name are in the log.
    pub fn table(&self, table: &str) -> String {
        self.subjects.table(table)
    }

    /// Which table's records are under this subject of the log; none where it is another.
    pub fn table_of(&self, subject: &str) -> Option<&'static str> {
        self.subjects.table_of(subject)
    }

    /// Where the guard of the key with this hash is in the log.
    pub fn guard(&self, hash: &[u8]) -> String {
        self.subjects.guard(hash)
    }

    /// Whether a server is connected now. Without one everything fails at once.
    pub fn is_connected(&self) -> bool {
        self.nats.client.connection_state() == State::Connected
    }

    /// The name and the version of the server that is connected; none where none is.
    pub fn server(&self) -> Option<(String, String)> {
        let info = self.nats.client.server_info();
        self.is_connected().then_some((info.server_name, info.version))
    }

    /// How often the connection was lost.
    pub fn losses(&self) -> u64 {
        self.nats.losses()
    }

    fn connected(&self) -> Result<(), String> {
        match self.is_connected() {
            true => Ok(()),
            false => Err("no NATS server is connected".to_owned()),
        }
    }
}

/// That there was no answer in time.
fn no_answer() -> String {
    format!("the NATS servers did not answer within {} s", ANSWER_MAX.as_secs())
}
