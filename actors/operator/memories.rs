//! What operators ask about the memories of anybody.

use actix::Addr;
use clawmux_core::daemon::operator::{self, ListedMemory};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::memory::Found;
use clawmux_core::memory::upkeep::{
    self, ExportedMemories, ForgetMemories, Forgotten, ImportMemories, ImportedMemories, SearchMemories,
    ShowMemory, ShownMemory,
};

use crate::embedder::{Embedder, Find, look};
use crate::runtime::ask::ask;
use crate::store::{
    CountKnown, ExportMemories, Forget, ForgetAll, Import, ListMemories, ReadMemory, Recall, Store,
};

/// The memories of one owner, the latest first.
pub(super) async fn list(
    store: &Addr<Store>,
    operator::ListMemories { owner, limit, with_history }: operator::ListMemories,
) -> Result<Vec<ListedMemory>, Error> {
    ask(store, ListMemories { owner, limit, with_history }).await?
}

/// What of one owner's is relevant.
pub(super) async fn search(
    embedder: &Addr<Embedder>,
    SearchMemories { owner, question }: SearchMemories,
) -> Result<Found, Error> {
    ask(embedder, Find(Recall { question, owner: Some(owner), tier: None, session: None })).await?
}

/// One memory.
pub(super) async fn show(store: &Addr<Store>, ShowMemory { id }: ShowMemory) -> Result<ShownMemory, Error> {
    let shown = ask(store, ReadMemory { id: id.clone() }).await??;
    if id.is_empty() || shown.named.is_empty() {
        return Err(ErrorCode::NotFound.error(format!("no such memory: {id}")));
    }
    Ok(shown)
}

/// Forgets one, or all of an owner.
pub(super) async fn forget(store: &Addr<Store>, which: ForgetMemories) -> Result<Forgotten, Error> {
    match which {
        ForgetMemories::One(id) => ask(store, Forget { id, owner: None }).await??,
        ForgetMemories::All(owner) => ask(store, ForgetAll(owner)).await??,
    }
    Ok(Forgotten)
}

/// A part of all that is remembered.
pub(super) async fn export(
    store: &Addr<Store>,
    upkeep::ExportMemories { owner, after }: upkeep::ExportMemories,
) -> Result<ExportedMemories, Error> {
    ask(store, ExportMemories { owner, after }).await?
}

/// Remembers what was exported.
pub(super) async fn import(
    (store, embedder): (&Addr<Store>, &Addr<Embedder>),
    ImportMemories { memories }: ImportMemories,
) -> Result<ImportedMemories, Error> {
    let ids = memories.iter().map(|memory| memory.id.clone()).collect();
    let (all, known) = (memories.len() as u64, ask(store, CountKnown { ids }).await??);
    ask(store, Import(memories)).await??;
    look(embedder);
    Ok(ImportedMemories { stored: all.saturating_sub(known), known })
}
