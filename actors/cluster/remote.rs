//! The other daemons, for this one's sessions.

use std::time::Duration;

use actix::{Addr, Message};
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::peer::{Answered, Ask, said_from_bytes};
use clawmux_core::conversation::event::Logged;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Cluster;
use super::engine::Engine;
use crate::mirror::remote::{Place, Remote, Unanswered};

/// How long the owner of a session may take over an order.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The same of what is answered alike when it is asked again: with a connection, questions and answers are lost.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How long it is waited for records that others have applied.
const APPLIED_MAX: Duration = Duration::from_secs(5);

/// Asks where a session is written, as [`Remote::locate`] says.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Place, Error>")]
pub struct Locate {
    /// Which.
    pub session: SessionKey,
    /// Whether it is waited for an owner, where there is none.
    pub waits: bool,
}

/// Asks for the way to the other daemons.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "ToOthers")]
pub struct GetRemote;

/// The way to the other daemons.
#[derive(Clone, Debug)]
pub struct ToOthers {
    pub(super) cluster: Addr<Cluster>,
    pub(super) engine: Engine,
    pub(super) applied: watch::Receiver<u64>,
}

impl ToOthers {
    async fn find(cluster: Addr<Cluster>, locate: Locate) -> Result<Place, Error> {
        let gone = |_| ErrorCode::Unavailable.error("this daemon takes no part in its cluster any more");
        cluster.send(locate).await.map_err(gone)?
    }

    /// Where a session is written now.
    pub(super) fn locate_now(
        &self,
        session: SessionKey,
    ) -> impl Future<Output = Result<Place, Error>> + use<> {
        Self::find(self.cluster.clone(), Locate { session, waits: false })
    }

    /// How far this daemon's store has applied the log.
    pub(super) fn position(&self) -> u64 {
        *self.applied.borrow()
    }
}

impl Remote for ToOthers {
    fn locate(&self, session: SessionKey) -> BoxFuture<'static, Result<Place, Error>> {
        Self::find(self.cluster.clone(), Locate { session, waits: true }).boxed()
    }

    fn ask(&self, node: NodeName, ask: Ask) -> BoxFuture<'static, Result<Answered, Unanswered>> {
        let (engine, asked) = (self.engine.clone(), ask.to_bytes());
        let within = if ask.is_answered_alike() { ASKED_AGAIN_AFTER } else { ANSWER_MAX };
        let answered = async move {
            let answer: Bytes = engine.ask(&node, asked, within).await?;
            Answered::from_bytes(&answer).map_err(|error| Unanswered::Unknown(error.message))
        };
        answered.boxed()
    }

    fn hear(
        &self,
        session: SessionKey,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Vec<Logged>>, String>> {
        let engine = self.engine.clone();
        let heard = async move {
            let said = engine.hear(&session).await?;
            let readable = said.filter_map(async |said| {
                let read = said_from_bytes(&said);
                read.inspect_err(|error| tracing::debug!(%error, "cluster: text of another daemon")).ok()
            });
            Ok(readable.boxed())
        };
        heard.boxed()
    }

    fn applied(&self, position: u64) -> BoxFuture<'static, ()> {
        let mut applied = self.applied.clone();
        async move {
            // What is late is late: who asked sees an older state for a moment.
            let _ = timeout(APPLIED_MAX, applied.wait_for(|applied| *applied >= position)).await;
        }
        .boxed()
    }
}
