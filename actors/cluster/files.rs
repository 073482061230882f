//! Bytes of files that other daemons have, for this one.

use std::time::Duration;

use actix::{Handler, Message, MessageResult};
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::peer::{Answer, Answered, Ask};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::memory::file::FileId;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};

use super::remote::ToOthers;
use super::{Cluster, away};
use crate::files::Elsewhere;

/// How long a daemon may take over a piece.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Asks which other daemons were heard, be it that one is gone by now.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Vec<NodeName>")]
pub(super) struct WhoElse;

impl Handler<WhoElse> for Cluster {
    type Result = MessageResult<WhoElse>;

    fn handle(&mut self, _: WhoElse, _: &mut Self::Context) -> Self::Result {
        let mut others = self.outlook.others();
        others.retain(|node| *node != self.settings.node);
        MessageResult(others)
    }
}

/// All of them are asked at once: one has the file, the others say so.
impl Elsewhere for ToOthers {
    fn piece(
        &self,
        file: FileId,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<Option<Bytes>, Error>> {
        let (cluster, engine) = (self.cluster.clone(), self.engine.clone());
        let asked = Ask::Piece(file, offset, bytes_max).to_bytes();
        async move {
            let gone = |_| away("this daemon takes no part in its cluster any more");
            let others = cluster.send(WhoElse).await.map_err(gone)?;
            let answers = others.iter().map(|node| engine.ask(node, asked.clone(), ANSWER_MAX));
            let (mut answers, mut failed) = (answers.collect::<FuturesUnordered<_>>(), None);
            while let Some(answer) = answers.next().await {
                match answer.map(|answer| Answered::from_bytes(&answer)) {
                    Ok(Ok(Answered { answer: Answer::Piece(bytes), .. })) => return Ok(Some(bytes)),
                    Ok(Ok(Answered { answer: Answer::Failed(error), .. })) => failed = Some(error),
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "cluster: an answer about a file"),
                    Err(why) => tracing::debug!(?why, "cluster: another daemon says nothing of a file"),
                }
            }
            // One of an earlier version does not know what it was asked.
            failed.filter(|error| error.code != ErrorCode::InvalidRequest).map_or(Ok(None), Err)
        }
        .boxed()
    }
}
