//! Bytes of finished files: a piece at a time for who gets one, whole for a prompt that names some. What is not on the
//! disk here is asked of the other daemons of a cluster.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use actix::prelude::*;
use bytes::Bytes;
use clawmux_core::error::limit::Limit;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::memory::file::{FileId, FileRef, FileReply, FileRow, PIECE_BYTES, Piece, Read};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::attachment::{
    self, ATTACHMENT_BYTES_MAX, ATTACHMENTS_BYTES_MAX, ATTACHMENTS_MAX, Attachment,
};
use clawmux_core::time::Timestamp;

use super::elsewhere::{piece_of, whole};
use super::writing::failed;
use super::{Files, clock};
use crate::runtime::deliver::Asker;

/// Files that are kept open between two pieces of them.
const OPENED_MAX: usize = 256;

/// A finished file that is read.
pub(super) struct Opened {
    row: FileRow,
    file: Arc<File>,
    pub(super) used: Timestamp,
}

/// Asks for finished files as what a prompt brings along.
///
/// Errors: `NotFound` where there is no such file that the principal may know of; else as
/// [`Attachment`]'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Attachment>, Error>")]
pub struct Collect {
    /// Which, in order.
    pub files: Vec<FileId>,
    /// For whom.
    pub principal: Principal,
}

impl Files {
    /// A piece of a finished file.
    pub(super) fn read(
        &mut self,
        read: Read,
        (asker, principal): (Asker, Principal),
        ctx: &mut Context<Self>,
    ) {
        let Read { file: what, offset, bytes_max } = read;
        let id = what.id(&principal.owner);
        let bytes_max = bytes_max.min(PIECE_BYTES);
        if let Some(opened) = self.opened.get_mut(&id).filter(|opened| principal.sees(&opened.row.owner)) {
            opened.used = clock::now();
            let (row, file, figures) = (opened.row.clone(), opened.file.clone(), self.figures.clone());
            // Answered by itself, also where it can't be done.
            let _ = self.pool.run(move || {
                let piece = piece(&file, &row, offset, bytes_max);
                figures.read_bytes.fetch_add(piece.as_ref().map_or(0, |piece| piece.len() as u64), Relaxed);
                asker.reply(piece.map(|data| FileReply::Piece(Box::new(Piece { file: row, data })).into()));
            });
            return;
        }
        if let Some(upload) = self.uploads.get(&id).filter(|upload| principal.sees(&upload.row.owner)) {
            return asker.reply(Err(unfinished(&upload.row)));
        }
        let found = self.find(what, &principal);
        let (folder, pool) = (self.setup.folder.clone(), self.pool.clone());
        let elsewhere = self.setup.elsewhere.clone();
        let opened = async move {
            let row = found.await.and_then(finished)?;
            let path = folder.join(row.id.to_string());
            let opened = pool.run(move || File::open(&path))?.await;
            match (opened, elsewhere) {
                (Ok(Ok(file)), _) => {
                    Ok(Found::Here(Opened { row, file: Arc::new(file), used: clock::now() }))
                }
                (Ok(Err(error)), Some(elsewhere)) if error.kind() == ErrorKind::NotFound => {
                    left(&row, offset)?;
                    let data = piece_of(&*elsewhere, &row, offset, bytes_max).await?;
                    Ok(Found::Elsewhere(Piece { file: row, data }))
                }
                (Ok(Err(error)), _) => Err(lost(&row, &failed(&error).message)),
                (Err(_), _) => Err(ErrorCode::Internal.error("the file was not opened")),
            }
        };
        ctx.spawn(opened.into_actor(self).map(move |opened, files, ctx| match opened {
            // Removed meanwhile.
            Ok(_) if files.removing.contains_key(&id) => asker.reply(Err(super::no_such(what))),
            Ok(Found::Elsewhere(piece)) => {
                files.figures.read_bytes.fetch_add(piece.data.len() as u64, Relaxed);
                asker.reply(Ok(FileReply::Piece(Box::new(piece)).into()));
            }
            Ok(Found::Here(opened)) => {
                if files.opened.len() >= OPENED_MAX
                    && let Some(oldest) = files.opened.iter().min_by_key(|(_, opened)| opened.used)
                {
                    let oldest = *oldest.0;
                    files.opened.remove(&oldest);
                }
                files.opened.insert(id, opened);
                files.read(read, (asker, principal), ctx);
            }
            Err(error) => asker.reply(Err(error)),
        }));
    }
}

/// Where the bytes of a file are.
enum Found {
    Here(Opened),
    /// What was asked for of it, from another daemon.
    Elsewhere(Piece),
}

/// How many bytes a file has from an offset on.
fn left(row: &FileRow, offset: u64) -> Result<u64, Error> {
    row.size.checked_sub(offset).ok_or_else(|| {
        let why = format!("file {} has {} bytes, none from {offset} on", row.id, row.size);
        ErrorCode::InvalidRequest.error(why).with(Detail::Received(row.size))
    })
}

/// Bytes of a file from an offset on.
pub(super) fn piece(file: &File, row: &FileRow, offset: u64, bytes_max: usize) -> Result<Bytes, Error> {
    let left = left(row, offset)?;
    let mut data = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(bytes_max)];
    file.read_exact_at(&mut data, offset).map_err(|error| lost(row, &failed(&error).message))?;
    Ok(data.into())
}

fn finished(row: FileRow) -> Result<FileRow, Error> {
    if row.is_complete { Ok(row) } else { Err(unfinished(&row)) }
}

fn unfinished(row: &FileRow) -> Error {
    let why = format!("file {} is not complete: {} bytes have come", row.id, row.size);
    ErrorCode::Conflict.error(why).with(Detail::Received(row.size))
}

/// What the store knows of is not on the disk.
pub(super) fn lost(row: &FileRow, why: &str) -> Error {
    tracing::error!(file = %row.id, why, "the bytes of a file are gone");
    ErrorCode::Internal.error(format!("the bytes of file {} can't be read", row.id))
}

impl Handler<Collect> for Files {
    type Result = ResponseFuture<Result<Vec<Attachment>, Error>>;

    fn handle(&mut self, Collect { files, principal }: Collect, _: &mut Self::Context) -> Self::Result {
        if files.len() > ATTACHMENTS_MAX {
            let why = format!("{} attachments are more than {ATTACHMENTS_MAX}", files.len());
            return Box::pin(std::future::ready(Err(ErrorCode::InvalidRequest.error(why))));
        }
        let found: Vec<_> = files.into_iter().map(|id| self.find(FileRef::File(id), &principal)).collect();
        let (folder, pool) = (self.setup.folder.clone(), self.pool.clone());
        let elsewhere = self.setup.elsewhere.clone();
        Box::pin(async move {
            let mut rows = Vec::new();
            let mut bytes = 0;
            for found in found {
                let row = found.await.and_then(finished)?;
                bytes += row.size;
                // Before it is read.
                let each = row.size > ATTACHMENT_BYTES_MAX as u64;
                if each || bytes > ATTACHMENTS_BYTES_MAX as u64 {
                    let limit = if each { ATTACHMENT_BYTES_MAX } else { ATTACHMENTS_BYTES_MAX } as u64;
                    let why = format!("file {} makes attachments of more than {limit} bytes", row.id);
                    let limit = Detail::Limit { name: Limit::AttachmentBytes, limit };
                    return Err(ErrorCode::TooLarge.error(why).with(limit));
                }
                rows.push(row);
            }
            let read =
                move || rows.into_iter().map(|row| (read_whole(&folder, &row), row)).collect::<Vec<_>>();
            let read = pool.run(read)?.await;
            let read = read.map_err(|_| ErrorCode::Internal.error("the attachments were not read"))?;
            let mut attachments = Vec::with_capacity(read.len());
            for (data, row) in read {
                let data = match (data?, &elsewhere) {
                    (Some(data), _) => data,
                    (None, Some(elsewhere)) => whole(&**elsewhere, &row).await?,
                    (None, None) => return Err(lost(&row, "it is not there")),
                };
                let about = &row.about;
                attachments.push(Attachment::new(about.name.as_deref(), about.media_type.as_deref(), data)?);
            }
            attachment::check(&attachments)?;
            Ok(attachments)
        })
    }
}

/// All bytes of a file; none where it is not on the disk.
fn read_whole(folder: &Path, row: &FileRow) -> Result<Option<Bytes>, Error> {
    match File::open(folder.join(row.id.to_string())) {
        Ok(file) => piece(&file, row, 0, ATTACHMENT_BYTES_MAX).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(lost(row, &failed(&error).message)),
    }
}
