//! The servers of a cluster before its log is open: which base there is, and with it which log; and how another one
//! is begun.
//!
//! ```text
//! plan (a generation that nobody else has) -> streams -> chunks -> manifest (over the one before) -> what was before goes
//! ```
//!
//! Until the manifest is written, nothing has changed for anybody: whoever stops before that leaves streams and chunks
//! that nobody looks at, and the next one to come so far removes them. The manifest is written by compare-and-set on
//! the one that was there at the beginning, so that of two who try at once one is told so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::Stream;
use bytes::Bytes;
use clawmux_core::cluster::base::{ClusterId, MANIFEST_BYTES_MAX, Manifest};
use clawmux_core::cluster::node::NodeName;
use clawmux_core::hex::hex;
use futures::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::heartbeats::sender;
use super::subjects::Names;
use super::writing::put;
use super::{
    ANSWER_MAX, Durability, Engine, EngineSettings, HEADER_BYTES_MAX, PUBLISHES_MAX, Published,
    RECORD_BYTES_MAX, durability, no_answer, parts, streams,
};
use crate::nats::{self, Access, Nats, Unusable, one_line};
use crate::runtime::clock;

/// So many earlier generations are looked for, to remove what is left of them.
const EARLIER_MAX: u64 = 64;

/// The servers of a cluster. Clones share a connection.
#[derive(Clone, Debug)]
pub struct Site {
    pub(super) nats: Nats,
    pub(super) names: Names,
    settings: Arc<EngineSettings>,
}

/// A generation that is being made.
#[derive(Debug)]
pub struct Planned {
    generation: u64,
    /// The sequence of the manifest that was there; 0 = none was.
    before: u64,
}

impl Planned {
    /// Its number.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Site {
    /// Connects, and looks at the servers alone. The connection lives on the runtime that this is called on.
    ///
    /// # Errors
    /// As [`Self::reach`]'s and [`Self::syncs`]'.
    pub async fn connect(settings: &EngineSettings) -> Result<Self, Unusable> {
        let site = Self::reach(settings).await?;
        if let Some(silent) = site.syncs().await? {
            tracing::warn!(silent, "cluster: it is not known of all NATS servers whether they sync");
        }
        Ok(site)
    }

    /// The same, without a look at whether the servers sync.
    ///
    /// # Errors
    /// Where the servers can't be reached, are too old or have no JetStream: a sentence that says so and what to do.
    pub async fn reach(settings: &EngineSettings) -> Result<Self, Unusable> {
        let names = Names::new(&settings.name).map_err(Unusable::refused)?;
        if ![1, 3, 5].contains(&settings.replicas) {
            return Err(Unusable::refused(format!(
                "cluster.replicas: {} servers are no cluster: set it to 3 or 5, of which a majority is left \
                 when one is lost",
                settings.replicas
            )));
        }
        let access = Access {
            section: "cluster",
            servers: &settings.servers,
            credential: &settings.credential,
            ca_file: settings.ca_file.as_ref(),
            client_certificate: settings.client_certificate.as_ref(),
        };
        let nats = nats::reach(&access, format!("clawmux cluster {}", settings.name)).await?;
        let payload_max = nats.payload_max();
        if payload_max < RECORD_BYTES_MAX + HEADER_BYTES_MAX {
            return Err(Unusable::refused(format!(
                "the NATS server takes messages of {payload_max} bytes, and a record may have \
                 {RECORD_BYTES_MAX}: raise max_payload to 1 MB in its configuration"
            )));
        }
        Ok(Self { nats, names, settings: Arc::new(settings.clone()) })
    }

    /// Whether the servers sync before they acknowledge, where that is wanted; says which are silent about it, as long
    /// as most are not.
    ///
    /// # Errors
    /// Where they do not, or where it is not known: a sentence that says so and what to do.
    pub async fn syncs(&self) -> Result<Option<String>, Unusable> {
        let EngineSettings { durability, monitor, replicas, .. } = &*self.settings;
        match durability {
            Durability::Unchecked => Ok(None),
            Durability::Required => {
                let server = self.nats.client.server_info().server_id;
                durability::check(monitor, *replicas, &server).await
            }
        }
    }

    /// The name and the version of the server that was reached.
    pub fn server(&self) -> (String, String) {
        let info = self.nats.client.server_info();
        (info.server_name, info.version)
    }

    /// The name of the cluster.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The log, the blobs and the buckets of the present generation.
    ///
    /// # Errors
    /// Where there is no cluster, or where what is there can't be used: a sentence that says so and what to do.
    pub async fn open(&self) -> Result<Engine, Unusable> {
        let Some(base) = self.base().await? else {
            return Err(Unusable::refused(format!(
                "there is no cluster {:?} on these servers: run `clawmux cluster init` on the node whose sessions it is \
                 to begin with; or `clawmux cluster rebuild` on the node whose store is furthest, where the servers have \
                 lost the one that was there",
                self.settings.name
            )));
        };
        let (subjects, settings) = (self.names.of(base.generation), &self.settings);
        streams::look(&self.nats, &subjects, settings, &base).await?;
        Ok(Engine {
            nats: self.nats.clone(),
            subjects,
            site: self.clone(),
            base: Arc::new(base),
            is_superseded: Arc::default(),
            me: Arc::default(),
            publishes: Arc::new(Semaphore::new(PUBLISHES_MAX)),
            groups: Default::default(),
            parts: Arc::new(Semaphore::new(parts::AHEAD_MAX)),
        })
    }

    /// The base of the cluster, as the leader of its stream has it; none where there is none.
    ///
    /// # Errors
    /// Where the leader does not answer, or where it can't be read.
    pub async fn base(&self) -> Result<Option<Manifest>, Unusable> {
        Ok(self.base_at().await?.map(|(manifest, _)| manifest))
    }

    async fn base_at(&self) -> Result<Option<(Manifest, u64)>, Unusable> {
        let Some(stream) = streams::look_for_base(&self.nats, &self.names, &self.settings).await? else {
            return Ok(None);
        };
        let Some((bytes, sequence)) = last_of(&stream, &self.names.manifest()).await? else {
            return Ok(None);
        };
        let manifest = Manifest::from_bytes(&bytes);
        let manifest =
            manifest.map_err(|why| Unusable::refused(format!("the manifest of the base {why}")))?;
        Ok(Some((manifest, sequence)))
    }

    /// The names of the daemons of a generation that are heard within `patience`.
    ///
    /// # Errors
    /// Where nobody could be heard.
    pub async fn who_is_there(
        &self,
        generation: u64,
        patience: Duration,
    ) -> Result<BTreeSet<NodeName>, String> {
        let (until, mut heard) = (Instant::now() + patience, BTreeSet::new());
        let beats = self.nats.client.subscribe(self.names.of(generation).all_alive());
        let beats = timeout(ANSWER_MAX, beats).await.map_err(|_| no_answer())?;
        let mut beats = beats.map_err(|error| one_line(&error))?;
        while let Ok(Some(beat)) = timeout_at(until, beats.next()).await {
            heard.extend(sender(&beat.payload));
        }
        match self.nats.is_up() {
            true => Ok(heard),
            false => Err("no NATS server is connected".to_owned()),
        }
    }

    /// How far the log of a generation reaches; none where it is not there.
    ///
    /// # Errors
    /// Where its leader does not answer.
    pub async fn last_of_log(&self, generation: u64) -> Result<Option<u64>, Unusable> {
        let name = self.names.of(generation).log_stream();
        let log = streams::find(&self.nats, &name).await?;
        Ok(log.map(|log| log.cached_info().state.last_sequence))
    }

    /// Begins to make another generation, which gets a number above this one that nobody else has.
    ///
    /// # Errors
    /// Where the stream of the base can't be made or written.
    pub async fn plan(&self, above: u64) -> Result<Planned, Unusable> {
        streams::make_base(&self.nats, &self.names, &self.settings).await?;
        let stream = streams::look_for_base(&self.nats, &self.names, &self.settings).await?;
        let stream = stream.ok_or_else(|| Unusable::away("the stream of the base is gone again"))?;
        let (present, before) =
            self.base_at().await?.map_or((0, 0), |(base, sequence)| (base.generation, sequence));
        let plan = last_of(&stream, &self.names.plan()).await?;
        let planned = plan.as_ref().and_then(|(plan, _)| planned(plan));
        let generation = above.max(present).max(planned.unwrap_or(0)) + 1;
        let expected = plan.map_or(0, |(_, sequence)| sequence);
        // No other plan says the same.
        let value = format!("{generation} {}", hex(&clock::random()));
        self.set(&stream, &self.names.plan(), expected, value.into()).await?;
        Ok(Planned { generation, before })
    }

    /// Makes the log, the blobs and the buckets of a generation that was planned.
    ///
    /// # Errors
    /// Why they can't be made.
    pub async fn make_streams(&self, planned: &Planned, cluster: &ClusterId) -> Result<(), Unusable> {
        let subjects = self.names.of(planned.generation);
        streams::make(&self.nats, &subjects, &self.settings, cluster, planned.generation).await
    }

    /// Has the generation that was planned be the present one, whose streams and chunks are there.
    ///
    /// # Errors
    /// Where it is not, or where that is not known.
    pub async fn commit(&self, planned: &Planned, base: &Manifest) -> Result<(), Unusable> {
        let bytes = base.to_bytes().map_err(Unusable::refused)?;
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(Unusable::refused("the manifest of the base is too large"));
        }
        let begin = Instant::now();
        let stream = loop {
            match streams::look_for_base(&self.nats, &self.names, &self.settings).await {
                // A question may be lost with the server that it went to.
                Err(away) if !away.is_refused && begin.elapsed() < parts::PATIENCE => {
                    sleep(parts::PAUSE).await;
                }
                found => break found?,
            }
        };
        let stream = stream.ok_or_else(|| Unusable::refused("the stream of the base is gone"))?;
        self.set(&stream, &self.names.manifest(), planned.before, bytes.into()).await
    }

    /// Removes what is left of earlier generations, and of those that were planned and not made.
    ///
    /// # Errors
    /// Why it can't be removed.
    pub async fn remove_earlier(&self, generation: u64) -> Result<(), Unusable> {
        for earlier in (generation.saturating_sub(EARLIER_MAX).max(1)..generation).rev() {
            self.remove(earlier).await?;
        }
        Ok(())
    }

    /// Removes a generation that was planned and did not become the present one.
    ///
    /// # Errors
    /// Why it can't be removed.
    pub async fn give_up(&self, planned: &Planned) -> Result<(), Unusable> {
        match self.base().await? {
            Some(base) if base.generation == planned.generation => Ok(()),
            _ => self.remove(planned.generation).await,
        }
    }

    async fn remove(&self, generation: u64) -> Result<(), Unusable> {
        streams::remove_all(&self.nats, &self.names.of(generation)).await?;
        self.remove_chunks(generation).await
    }

    /// Writes one of the messages that there is one of, whose value no other one has.
    async fn set(&self, stream: &Stream, subject: &str, expected: u64, value: Bytes) -> Result<(), Unusable> {
        let written = put(&self.nats, subject, Some(expected), value.clone(), HeaderMap::new()).await;
        if matches!(written, Published::Acked(_)) {
            return Ok(());
        }
        // A refusal may be of a copy of this one; what became of it, the leader knows.
        match (written, last_of(stream, subject).await) {
            (_, Ok(Some((present, _)))) if present == value => Ok(()),
            (Published::Refused, Ok(_)) => Err(Unusable::refused(
                "another node begins a cluster on these servers at the same time: look there how it went, and try again",
            )),
            (Published::Unknown(why), _) => {
                Err(Unusable::away(format!("the base of the cluster can't be written: {why}")))
            }
            (_, Err(why)) => Err(why),
            _ => Err(Unusable::away("the base of the cluster can't be written for now")),
        }
    }
}

/// The generation that a plan is of.
fn planned(plan: &[u8]) -> Option<u64> {
    std::str::from_utf8(plan).ok()?.split(' ').next()?.parse().ok()
}

/// The last message of a subject of the base and its sequence, as the leader of its stream has it.
async fn last_of<Info>(stream: &Stream<Info>, subject: &str) -> Result<Option<(Bytes, u64)>, Unusable> {
    let last = parts::last_of(stream, subject).await;
    last.map_err(|why| Unusable::away(format!("the base of the cluster can't be read: {why}")))
}
