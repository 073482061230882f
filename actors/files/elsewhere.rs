//! Files whose bytes another daemon of the cluster has: they stay there, and are asked for piece by piece.

use std::fmt::Debug;
use std::fs::File;
use std::io::ErrorKind;

use actix::prelude::*;
use bytes::{Bytes, BytesMut};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::memory::file::{FileId, FileRow, PIECE_BYTES};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::Files;
use super::reading::{lost, piece};
use super::writing::failed;
use crate::runtime::ask::ask;
use crate::store::ReadFile;

/// Pieces of one file that are on their way at once.
const AHEAD_MAX: usize = 4;

/// The other daemons, for who lacks the bytes of a file.
pub trait Elsewhere: Debug + Send + Sync {
    /// Bytes of a finished file from an offset on, at most so many; none where no other daemon has the file that can be
    /// asked now.
    fn piece(
        &self,
        file: FileId,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<Option<Bytes>, Error>>;
}

/// Asks for bytes of a finished file that are at this daemon; none where they are not.
///
/// Errors: `Internal` where they can't be read, `InvalidRequest` where the file is shorter.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Option<Bytes>, Error>")]
pub struct ReadHere {
    /// Which file.
    pub file: FileId,
    /// From where on.
    pub offset: u64,
    /// At most so many.
    pub bytes_max: usize,
}

impl Handler<ReadHere> for Files {
    type Result = ResponseFuture<Result<Option<Bytes>, Error>>;

    fn handle(&mut self, asked: ReadHere, _: &mut Self::Context) -> Self::Result {
        let ReadHere { file, offset, bytes_max } = asked;
        let (store, pool, path) = (self.setup.store.clone(), self.pool.clone(), self.path(file));
        Box::pin(async move {
            let row = ask(&store, ReadFile(file)).await.flatten()?;
            let Some(row) = row.filter(|row| row.is_complete) else { return Ok(None) };
            let read = pool.run(move || match File::open(path) {
                Ok(file) => piece(&file, &row, offset, bytes_max.min(PIECE_BYTES)).map(Some),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(lost(&row, &failed(&error).message)),
            });
            read?.await.unwrap_or_else(|_| Err(ErrorCode::Internal.error("the file was not read")))
        })
    }
}

/// Bytes of a file that this daemon lacks, from an offset on.
///
/// # Errors
/// `Unavailable` where no daemon has them that can be asked now; what the one says that has them.
pub(super) async fn piece_of(
    elsewhere: &dyn Elsewhere,
    row: &FileRow,
    offset: u64,
    bytes_max: usize,
) -> Result<Bytes, Error> {
    let found = elsewhere.piece(row.id, offset, bytes_max).await?;
    let is_cut = |bytes: &Bytes| (bytes.len() as u64) < row.size.saturating_sub(offset).min(bytes_max as u64);
    found.filter(|bytes| !is_cut(bytes)).ok_or_else(|| {
        let why = format!(
            "the bytes of file {} are at another daemon of the cluster, which does not answer: try again",
            row.id
        );
        ErrorCode::Unavailable.error(why)
    })
}

/// All bytes of a file that this daemon lacks.
///
/// # Errors
/// As [`piece_of`]'s.
pub(super) async fn whole(elsewhere: &dyn Elsewhere, row: &FileRow) -> Result<Bytes, Error> {
    let pieces = stream::iter((0..row.size).step_by(PIECE_BYTES));
    let pieces = pieces.map(|offset| piece_of(elsewhere, row, offset, PIECE_BYTES)).buffered(AHEAD_MAX);
    let whole = pieces.try_fold(BytesMut::new(), async |mut whole, piece| {
        whole.extend_from_slice(&piece);
        Ok(whole)
    });
    whole.await.map(BytesMut::freeze)
}
