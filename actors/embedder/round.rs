//! One round: a few entries of one owner, their vectors, and keeping these.

use std::time::Duration;

use actix::Addr;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner};
use clawmux_core::memory::Embedding;
use clawmux_core::provider::embeddings::{TEXT_BYTES_MAX, beginning};
use clawmux_core::provider::model::ModelRef;

use crate::provider_supervisor::ProviderSupervisor;
use crate::provider_supervisor::embedding::{Embed, NoVectors};
use crate::runtime::ask::{ask, gone};
use crate::store::{KeepVectors, ReadUnembedded, Store, Unembedded};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How many bytes of texts one request has at most, unless the first has more.
const BYTES_MAX: usize = 64 << 10;

/// What is to be done.
pub(super) struct Round {
    pub(super) model: ModelRef,
    pub(super) agent: AgentId,
    /// So many entries at most.
    pub(super) size: usize,
    /// Rows that are not meant.
    pub(super) but: Vec<i64>,
    /// Owners whose entries are not meant.
    pub(super) but_of: Vec<Owner>,
    /// Whether an entry that alone is not taken is left without a vector for good: where the model took another, it
    /// is that entry.
    pub(super) leaves_out: bool,
}

/// What came of it.
pub(super) enum Outcome {
    /// Every entry has its vector.
    NothingLeft,
    /// So many have it now.
    Embedded(usize),
    /// One is left without.
    LeftOut,
    /// Several were not taken together.
    NotTaken,
    /// Nothing was done; the row of the entry where it was but one.
    Failed(Error, Option<i64>),
    /// The budgets leave nothing for this owner.
    Spent(Error, Owner),
}

impl Round {
    pub(super) async fn run(self, store: &Addr<Store>, providers: &Addr<ProviderSupervisor>) -> Outcome {
        let entries = match self.entries(store).await {
            Ok(Unembedded { entries, .. }) if entries.is_empty() => return Outcome::NothingLeft,
            Ok(found) => found,
            Err(error) => return Outcome::Failed(error, None),
        };
        let Unembedded { owner, entries } = entries;
        let alone = match entries[..] {
            [(row, _)] => Some(row),
            _ => None,
        };
        let (rows, texts): (Vec<i64>, Vec<String>) =
            entries.into_iter().map(|(row, content)| (row, beginning(&content).to_owned())).unzip();
        let embed = Embed {
            owner: owner.clone(),
            agent: self.agent.clone(),
            model: self.model.clone(),
            texts,
            within: TIMEOUT,
        };
        let vectors = match embedded(providers, embed).await {
            Ok(vectors) => rows.into_iter().zip(vectors.into_iter().map(Some)).collect(),
            Err(NoVectors { is_of_texts: true, .. }) if alone.is_none() => return Outcome::NotTaken,
            Err(NoVectors { is_of_texts: true, error }) if self.leaves_out => {
                tracing::info!(error = ?error.message, "a memory that the provider does not take gets no vector");
                vec![(rows[0], None)]
            }
            Err(NoVectors { error, .. }) if error.code == ErrorCode::BudgetExceeded => {
                return Outcome::Spent(error, owner);
            }
            Err(NoVectors { error, .. }) => return Outcome::Failed(error, alone),
        };
        let made = vectors.iter().filter(|(_, vector)| vector.is_some()).count();
        match kept(store, KeepVectors { model: self.model.to_string(), vectors }).await {
            Ok(()) if made == 0 => Outcome::LeftOut,
            Ok(()) => Outcome::Embedded(made),
            Err(error) => Outcome::Failed(error, None),
        }
    }

    async fn entries(&self, store: &Addr<Store>) -> Result<Unembedded, Error> {
        let read = ReadUnembedded {
            model: self.model.to_string(),
            but: self.but.clone(),
            but_of: self.but_of.clone(),
            limit: self.size,
            bytes: BYTES_MAX,
            chars: TEXT_BYTES_MAX,
        };
        ask(store, read).await?
    }
}

/// The vectors of texts, within the time that they may take.
pub(super) async fn embedded(
    providers: &Addr<ProviderSupervisor>,
    embed: Embed,
) -> Result<Vec<Embedding>, NoVectors> {
    let within = embed.within;
    let late = || ErrorCode::Timeout.error(format!("no vectors within {within:?}"));
    let sent = tokio::time::timeout(within, providers.send(embed)).await.map_err(|_| late())?;
    Ok(sent.map_err(|_| gone::<ProviderSupervisor>())??.vectors)
}

async fn kept(store: &Addr<Store>, keep: KeepVectors) -> Result<(), Error> {
    ask(store, keep).await?
}
