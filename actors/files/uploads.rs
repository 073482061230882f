//! An upload from its beginning to its end: what came for it is with one thread at a time.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use actix::prelude::*;
use clawmux_core::error::limit::Limit;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::ConnectionId;
use clawmux_core::memory::file::{
    Chunk, FileAbout, FileId, FileRef, FileReply, FileRow, Open, UploadId, Written, no_such,
};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;

use super::writing::{self, Taken, Writing};
use super::{Figures, Files, file};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::store::{FileChange, ReadFile, WriteFile};

/// Uploads of one owner, and of all, that may be unfinished at once.
pub(super) const UPLOADS_MAX: usize = 64;
const UPLOADS_OF_ALL_MAX: usize = 1024;

/// Files of one owner.
const FILES_MAX: u64 = 10_000;

/// Who may wait for one upload to begin.
const OPENERS_MAX: usize = 16;

/// Pieces that are written at a time.
const BATCH_MAX: usize = 32;

/// An upload that is not finished.
pub(super) struct Upload {
    pub(super) row: FileRow,
    /// How many bytes the store was told of: from there it goes on after a crash.
    pub(super) saved: u64,
    pub(super) state: State,
    /// Whose pieces are taken without their saying where they begin.
    pub(super) attached: Option<ConnectionId>,
    pub(super) waiting: VecDeque<(Asker, Chunk)>,
    /// Who asked for it to be given up.
    pub(super) deleter: Option<Asker>,
}

/// Where an upload is.
pub(super) enum State {
    /// Being entered in the store; these wait for it.
    Beginning(Vec<Asker>),
    Idle(Box<Writing>),
    /// With a thread.
    Busy,
    /// All there, being entered in the store.
    Ending,
    /// Being removed.
    Leaving,
}

/// What a thread made of an upload.
struct Progress {
    writing: Box<Writing>,
    outcome: Outcome,
    answers: Answers,
}

/// What pieces are answered, and who.
type Answers = Vec<(Asker, Result<Reply, Error>)>;

enum Outcome {
    /// It goes on.
    Some,
    /// All of it is there: who is to be told, and its digest.
    All(Asker, [u8; 32]),
    /// A piece was refused. Where nothing can become of it, it is removed.
    Refused { is_hopeless: bool },
}

impl Files {
    /// `file.upload`: begins an upload, or says how far it has come.
    pub(super) fn begin_or_go_on(
        &mut self,
        Open { upload, about }: Open,
        (asker, principal): (Asker, Principal),
        ctx: &mut Context<Self>,
    ) {
        let id = FileId::of(&principal.owner, upload);
        let connection = asker.client().connection;
        let Some(known) = self.uploads.get_mut(&id) else {
            let begun = self.begin(id, upload, about, &principal, connection, ctx);
            return match begun {
                Ok(upload) => {
                    if let State::Beginning(openers) = &mut upload.state {
                        openers.push(asker);
                    }
                }
                Err(error) => asker.reply(Err(error)),
            };
        };
        if about.total.is_some() && about.total != known.row.about.total {
            let why = format!("upload {upload} was begun with another size: give it up, or name another");
            return asker.reply(Err(ErrorCode::Conflict.error(why)));
        }
        match &mut known.state {
            State::Leaving => asker.reply(Err(leaving(upload))),
            State::Beginning(openers) if openers.len() < OPENERS_MAX => openers.push(asker),
            State::Beginning(_) => asker.reply(Err(busy())),
            State::Idle(_) | State::Busy | State::Ending => {
                known.attached = Some(connection);
                asker.reply(file(&known.row));
            }
        }
    }

    /// Enters an upload in the store; what comes for it waits until that is done.
    fn begin(
        &mut self,
        id: FileId,
        upload: UploadId,
        about: FileAbout,
        principal: &Principal,
        connection: ConnectionId,
        ctx: &mut Context<Self>,
    ) -> Result<&mut Upload, Error> {
        about.check()?;
        if self.removing.contains_key(&id) {
            return Err(leaving(upload));
        }
        let of_all = self.uploads.len();
        let account = self.account(&principal.owner);
        let (uploads, files) = (account.uploads, account.files);
        if uploads >= UPLOADS_MAX || of_all >= UPLOADS_OF_ALL_MAX {
            let why = format!("{uploads} uploads are not finished: finish them or give them up first");
            let limit = Detail::Limit { name: Limit::Uploads, limit: UPLOADS_MAX as u64 };
            return Err(ErrorCode::RateLimited.error(why).with(limit));
        }
        if files >= FILES_MAX {
            let limit = Detail::Limit { name: Limit::Files, limit: FILES_MAX };
            return Err(ErrorCode::TooLarge
                .error(format!("there are {files} files: delete some"))
                .with(limit));
        }
        let left = account.allowance.quota().saturating_sub(account.allowance.used());
        if about.total.is_some_and(|total| total > left) {
            return Err(writing::over_quota(&account.allowance));
        }
        account.uploads += 1;
        account.files += 1;
        let now = clock::now();
        let owner = principal.owner.clone();
        let row =
            FileRow { id, upload, owner, about, size: 0, is_complete: false, created: now, updated: now };
        let store = self.setup.store.clone();
        let begin = WriteFile { change: FileChange::Begin(row.clone()), durable: false };
        let begun = async move {
            match ask(&store, begin).await.flatten() {
                Err(error) if error.code == ErrorCode::Conflict => {
                    ask(&store, ReadFile(id)).await.flatten().map(Some)
                }
                begun => begun.map(|()| None),
            }
        };
        ctx.spawn(begun.into_actor(self).map(move |begun, files, ctx| files.begun(id, begun, ctx)));
        let upload = Upload { attached: Some(connection), ..Upload::new(row, State::Beginning(Vec::new())) };
        Ok(self.uploads.entry(id).or_insert(upload))
    }

    /// The store has it, or had it already.
    fn begun(&mut self, id: FileId, begun: Result<Option<Option<FileRow>>, Error>, ctx: &mut Context<Self>) {
        let Some(row) = self.uploads.get(&id).map(|upload| upload.row.clone()) else { return };
        if let Ok(None) = begun {
            let writing = self.writing(&row);
            let Some(upload) = self.uploads.get_mut(&id) else { return };
            let before = std::mem::replace(&mut upload.state, State::Idle(Box::new(writing)));
            if let State::Beginning(openers) = before {
                openers.into_iter().for_each(|asker| asker.reply(file(&row)));
            }
            return self.go_on(id, ctx);
        }
        let Some(Upload { row, state, waiting, deleter, .. }) = self.uploads.remove(&id) else { return };
        let account = self.account(&row.owner);
        account.uploads -= 1;
        account.files -= 1;
        let (there, error) = match begun.map(Option::flatten) {
            Ok(Some(there)) if !there.is_complete => (None, elsewhere(row.upload)),
            Ok(there) => (there, complete(row.upload)),
            Err(error) => (None, error),
        };
        if let State::Beginning(openers) = state {
            for asker in openers {
                asker.reply(there.as_ref().map_or_else(|| Err(error.clone()), file));
            }
        }
        for asker in waiting.into_iter().map(|(asker, _)| asker).chain(deleter) {
            asker.reply(Err(error.clone()));
        }
    }

    /// A piece of an upload.
    pub(super) fn write(
        &mut self,
        mut chunk: Chunk,
        (asker, principal): (Asker, Principal),
        ctx: &mut Context<Self>,
    ) {
        let id = FileId::of(&principal.owner, chunk.upload);
        let connection = asker.client().connection;
        if let Some(upload) = self.uploads.get_mut(&id) {
            if chunk.offset.is_some() {
                upload.attached = Some(connection);
            } else if upload.attached != Some(connection) {
                self.figures.refused.fetch_add(1, Relaxed);
                return asker.reply(Err(upload.gap()));
            }
            if matches!(upload.state, State::Leaving | State::Ending) {
                return asker.reply(Err(leaving(chunk.upload)));
            }
            upload.waiting.push_back((asker, chunk));
            return self.go_on(id, ctx);
        }
        let begins = chunk.offset.unwrap_or(0) == 0 && chunk.index.unwrap_or(0) == 0;
        if let Some(about) = chunk.about.take().filter(|_| begins) {
            match self.begin(id, chunk.upload, about, &principal, connection, ctx) {
                Ok(upload) => upload.waiting.push_back((asker, chunk)),
                Err(error) => asker.reply(Err(error)),
            }
            return;
        }
        let store = self.setup.store.clone();
        let upload = chunk.upload;
        ctx.spawn(actix::fut::wrap_future(async move {
            asker.reply(Err(match ask(&store, ReadFile(id)).await.flatten() {
                Ok(Some(row)) if row.is_complete => complete(upload),
                Ok(Some(_)) => elsewhere(upload),
                Ok(None) => no_such(FileRef::Upload(upload)),
                Err(error) => error,
            }));
        }));
    }

    /// Gives what waits for an upload to a thread, where none has it.
    pub(super) fn go_on(&mut self, id: FileId, ctx: &mut Context<Self>) {
        let Some(upload) = self.uploads.get_mut(&id) else { return };
        if !matches!(upload.state, State::Idle(_)) {
            return;
        }
        if let Some(asker) = upload.deleter.take() {
            return self.give_up(id, Some(asker), ctx);
        }
        if upload.waiting.is_empty() {
            return;
        }
        let State::Idle(mut writing) = std::mem::replace(&mut upload.state, State::Busy) else { return };
        let batch: Vec<_> = upload.waiting.drain(..upload.waiting.len().min(BATCH_MAX)).collect();
        let figures = self.figures.clone();
        let job = move || {
            let (outcome, answers) = write_all(&mut writing, batch, &figures);
            Progress { writing, outcome, answers }
        };
        match self.pool.run(job) {
            Ok(written) => {
                ctx.spawn(written.into_actor(self).map(move |written, files, ctx| {
                    files.written(id, written.ok(), ctx);
                }));
            }
            // What was in the job is answered as it is dropped, and the upload starts from the store.
            Err(_) => self.written(id, None, ctx),
        }
    }

    /// A thread is through with what came for an upload; none where it fell.
    fn written(&mut self, id: FileId, written: Option<Progress>, ctx: &mut Context<Self>) {
        let Progress { writing, outcome, answers } = match written {
            Some(written) => written,
            None => {
                let Some(upload) = self.uploads.get(&id) else { return };
                let row = FileRow { size: upload.saved, ..upload.row.clone() };
                let unsaved = upload.row.size.saturating_sub(upload.saved);
                // What the thread had counted besides stays counted until the next start.
                self.account(&row.owner).allowance.give_back(unsaved);
                let writing = Box::new(self.writing(&row));
                Progress { writing, outcome: Outcome::Refused { is_hopeless: false }, answers: Vec::new() }
            }
        };
        let Some(upload) = self.uploads.get_mut(&id) else { return };
        upload.row.updated = clock::now();
        upload.row.size = writing.received();
        if writing.synced() > upload.saved && !matches!(outcome, Outcome::All(..)) {
            upload.saved = writing.synced();
            let row = FileRow { size: upload.saved, ..upload.row.clone() };
            // Lost, some more is sent again after a crash.
            let _ = self.setup.store.try_send(WriteFile { change: FileChange::Put(row), durable: false });
        }
        answers.into_iter().for_each(|(asker, answer)| asker.reply(answer));
        match outcome {
            Outcome::All(asker, digest) => {
                upload.state = State::Ending;
                return self.ends(id, writing, (asker, digest), ctx);
            }
            Outcome::Some => upload.state = State::Idle(writing),
            Outcome::Refused { is_hopeless } => {
                upload.state = State::Idle(writing);
                upload.attached = None;
                // What was sent behind it without knowing is refused with it.
                while let Some((asker, _)) = upload.waiting.pop_front_if(|(_, next)| next.offset.is_none()) {
                    asker.reply(Err(upload.gap()));
                }
                upload.attached = upload.waiting.back().map(|(asker, _)| asker.client().connection);
                if is_hopeless {
                    return self.give_up(id, None, ctx);
                }
            }
        }
        self.go_on(id, ctx);
    }

    /// All of it is on the disk: the store is told, and then who sent it.
    fn ends(
        &mut self,
        id: FileId,
        writing: Box<Writing>,
        (asker, digest): (Asker, [u8; 32]),
        ctx: &mut Context<Self>,
    ) {
        let Some(upload) = self.uploads.get(&id) else { return };
        let about =
            FileAbout { total: Some(upload.row.size), sha256: Some(digest), ..upload.row.about.clone() };
        let row = FileRow { about, is_complete: true, ..upload.row.clone() };
        let write = WriteFile { change: FileChange::Put(row.clone()), durable: true };
        let store = self.setup.store.clone();
        let kept = async move { ask(&store, write).await.flatten() };
        ctx.spawn(kept.into_actor(self).map(move |kept, files, ctx| {
            if let Err(error) = kept {
                asker.reply(Err(error));
                if let Some(upload) = files.uploads.get_mut(&id) {
                    upload.state = State::Idle(writing);
                    upload.attached = None;
                }
                return files.go_on(id, ctx);
            }
            files.account(&row.owner).uploads -= 1;
            let left = files.uploads.remove(&id);
            asker.reply(Ok(FileReply::Written(Written::Complete(row.clone())).into()));
            if let Some(Upload { waiting, deleter, .. }) = left {
                waiting.into_iter().for_each(|(asker, _)| asker.reply(Err(complete(row.upload))));
                if let Some(asker) = deleter {
                    files.remove(row, asker, ctx);
                }
            }
        }));
    }

    /// Removes an upload that is idle.
    pub(super) fn give_up(&mut self, id: FileId, asker: Option<Asker>, ctx: &mut Context<Self>) {
        let path = self.path(id);
        let Some(upload) = self.uploads.get_mut(&id) else { return };
        let State::Idle(writing) = std::mem::replace(&mut upload.state, State::Leaving) else { return };
        let row = upload.row.clone();
        for (asker, _) in upload.waiting.drain(..) {
            asker.reply(Err(leaving(row.upload)));
        }
        let bytes = writing.received();
        let removed = self.removes(id, path);
        ctx.spawn(removed.into_actor(self).map(move |removed, files, _| {
            match &removed {
                Ok(()) => {
                    files.uploads.remove(&id);
                    let account = files.account(&row.owner);
                    account.allowance.give_back(bytes);
                    account.uploads -= 1;
                    account.files -= 1;
                }
                Err(error) => {
                    tracing::warn!(upload = %row.upload, %error, "an upload can't be given up; it is tried again");
                    if let Some(upload) = files.uploads.get_mut(&id) {
                        upload.state = State::Idle(writing);
                    }
                }
            }
            if let Some(asker) = asker {
                asker.reply(removed.map(|()| FileReply::Deleted(id).into()));
            }
        }));
    }
}

impl Upload {
    pub(super) fn new(row: FileRow, state: State) -> Self {
        Self { saved: row.size, row, state, attached: None, waiting: VecDeque::new(), deleter: None }
    }

    /// Why a piece is refused that does not say where it begins.
    fn gap(&self) -> Error {
        let FileRow { upload, size, .. } = self.row;
        let why = format!("upload {upload} goes on at byte {size}, where a chunk has to say that it begins");
        ErrorCode::Conflict.error(why).with(Detail::Received(size))
    }
}

/// Writes what came for an upload, on a thread; with the answers to all of it but its end.
fn write_all(writing: &mut Writing, batch: Vec<(Asker, Chunk)>, figures: &Figures) -> (Outcome, Answers) {
    let mut outcome = Outcome::Some;
    let mut answers = Vec::with_capacity(batch.len());
    for (asker, chunk) in batch {
        if let Outcome::All(..) = outcome {
            answers.push((asker, Err(complete(chunk.upload))));
            continue;
        }
        if let Outcome::Refused { is_hopeless } = outcome
            && (is_hopeless || chunk.offset.is_none())
        {
            let why = format!("upload {}: a chunk before this one was refused", chunk.upload);
            let received = Detail::Received(writing.received());
            answers.push((asker, Err(ErrorCode::Conflict.error(why).with(received))));
            continue;
        }
        let before = writing.received();
        let taken = writing.take(&chunk);
        figures.received_bytes.fetch_add(writing.received().saturating_sub(before), Relaxed);
        outcome = match taken {
            Ok(Taken::Some(received)) => {
                answers.push((asker, Ok(FileReply::Written(Written::Received(received)).into())));
                Outcome::Some
            }
            Ok(Taken::All(digest)) => Outcome::All(asker, digest),
            Err(refusal) => {
                figures.refused.fetch_add(1, Relaxed);
                answers.push((asker, Err(refusal.error)));
                Outcome::Refused { is_hopeless: refusal.is_hopeless }
            }
        };
    }
    (outcome, answers)
}

fn complete(upload: UploadId) -> Error {
    ErrorCode::Conflict.error(format!("upload {upload} is complete: nothing can be added to it"))
}

fn elsewhere(upload: UploadId) -> Error {
    ErrorCode::Conflict.error(format!(
        "upload {upload} was begun at another daemon of the cluster, and goes on there: delete it to begin anew here"
    ))
}

pub(super) fn leaving(upload: UploadId) -> Error {
    ErrorCode::Conflict.error(format!("upload {upload} is being finished or removed: try again"))
}

fn busy() -> Error {
    ErrorCode::Unavailable.error("too much waits for this upload: try again")
}
