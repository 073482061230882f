//! The host's side of one call: what its guest asks that takes time, answered while the guest waits.
//!
//! Dropped at the end of the call, with whatever is under way: a request that nobody waits for any more is
//! given up, and the guest is let go.

use std::convert::Infallible;
use std::sync::Arc;

use actix::{Addr, Handler, Message};
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::memory::{Question, Remembered};
use clawmux_core::tools::plugin::{HttpRequest, Rights, SearchMemory, StoreGrant};
use futures::future::pending;
use tokio::sync::mpsc;

use crate::embedder::{Embedder, Find};
use crate::outbound::fetch::{Fetched, Fetcher};
use crate::runtime::ask::ask;
use crate::sandbox::host::call::HostCall;
use crate::store::{
    AskedBy, ListPluginKeys, PluginNamespace, ReadPluginValue, Recall, Store, WritePluginValue,
};

/// What guests may ask of. What is not there is refused.
#[derive(Clone, Debug, Default)]
pub struct HostServices {
    /// Sends HTTP requests.
    pub fetcher: Option<Fetcher>,
    /// Keeps values, and knows what is remembered.
    pub store: Option<Addr<Store>>,
    /// Looks for that by what it means, too.
    pub embedder: Option<Addr<Embedder>>,
}

/// The host's side of one call.
pub(super) struct HostSide {
    session: SessionKey,
    rights: Arc<Rights>,
    services: HostServices,
    asked: mpsc::Receiver<HostCall>,
}

impl HostSide {
    /// And where its guest's questions go.
    pub(super) fn new(
        session: SessionKey,
        rights: Arc<Rights>,
        services: HostServices,
    ) -> (mpsc::Sender<HostCall>, Self) {
        // A guest asks one thing at a time.
        let (to, asked) = mpsc::channel(1);
        (to, Self { session, rights, services, asked })
    }

    /// Answers as long as it is polled.
    pub(super) async fn answer(mut self) -> Infallible {
        while let Some(call) = self.asked.recv().await {
            // Where nobody listens any more the call is over.
            match call {
                HostCall::Fetch(request, body_bytes_max, reply) => {
                    let _ = reply.send(self.fetch(request, body_bytes_max).await);
                }
                HostCall::Get(get, reply) => {
                    let namespace = self.namespace(&get.namespace);
                    let _ = reply.send(self.read(ReadPluginValue { namespace, key: get.key }).await);
                }
                HostCall::List(list, reply) => {
                    let namespace = self.namespace(&list.namespace);
                    let list = ListPluginKeys { namespace, prefix: list.prefix, after: list.after };
                    let _ = reply.send(self.read(list).await);
                }
                HostCall::Set(set, reply) => {
                    let namespace = self.namespace(&set.namespace);
                    let write = WritePluginValue { namespace, key: set.key, value: set.value };
                    let _ = reply.send(self.ask_store(write).await);
                }
                HostCall::Search(search, reply) => {
                    let _ = reply.send(self.search(search).await);
                }
            }
        }
        pending().await
    }

    /// What of a namespace this call may see.
    fn namespace(&self, granted: &StoreGrant) -> PluginNamespace {
        PluginNamespace {
            owner: self.session.owner(),
            agent: self.session.agent().into_owned(),
            name: granted.namespace.clone(),
        }
    }

    async fn fetch(&self, request: HttpRequest, body_bytes_max: usize) -> Result<Fetched, String> {
        let Some(fetcher) = &self.services.fetcher else { return Err("http is not available".to_owned()) };
        let fetched = fetcher.fetch(&self.rights, request, body_bytes_max).await;
        fetched.map_err(|why| format!("http: {why}"))
    }

    async fn search(&self, search: SearchMemory) -> Result<Vec<Remembered>, String> {
        let question = Question::about(&search.query, search.limit);
        let question = question.map_err(|error| format!("memory_search: {}", error.message))?;
        let recall = Recall { question, owner: Some(self.session.memory_owner()), tier: None, session: None };
        let found = match &self.services.embedder {
            Some(embedder) => {
                let found = ask(embedder, Find(recall)).await.and_then(|found| found);
                found.map_err(|error| format!("store: {}", error.message))?
            }
            None => self.ask_store(recall).await?,
        };
        Ok(found.results)
    }

    /// Owners have the reader in turn.
    async fn read<Q, T>(&self, question: Q) -> Result<T, String>
    where
        Q: Message<Result = Result<T, Error>> + Send + 'static,
        T: Send + 'static,
        Store: Handler<AskedBy<Q>>,
    {
        self.ask_store(AskedBy { owner: self.session.owner(), question }).await
    }

    async fn ask_store<M, T>(&self, message: M) -> Result<T, String>
    where
        M: Message<Result = Result<T, Error>> + Send + 'static,
        T: Send + 'static,
        Store: Handler<M>,
    {
        let Some(store) = &self.services.store else { return Err("the store is not available".to_owned()) };
        let answered = ask(store, message).await.and_then(|answered| answered);
        answered.map_err(|error| format!("store: {}", error.message))
    }
}
