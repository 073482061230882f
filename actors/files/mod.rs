//! `Files`: what clients put with the daemon and get from it.
//!
//! What is known of a file is in the store, its bytes are in `files/` of the home, in a file named by
//! its id: no client says a path. A few threads ([`pool`]) touch the disk; an upload is with one of
//! them at a time, with all that came for it until then, and gets back to the actor when that is
//! written ([`writing`]). A piece is answered when it is on the disk, so that who sends faster than
//! that is read no further: its connection counts what is not answered.
//!
//! ```text
//!   begun in the store ──► idle ◄──► busy ──► all there ──► complete in the store, answered
//!                            │                                (durable, after the bytes are)
//!                            └──► given up: by its owner, by a wrong digest, by time
//! ```
//!
//! An upload belongs to the connection that begun it or went on with it last. Where one of its pieces
//! is refused those behind it are too, until one says where it begins: nothing is written behind a gap.
//! A file is there when the store says so; what is in the folder and not in the store is swept at the
//! start.
//!
//! In a cluster the daemon where an upload was begun goes on with it. The bytes stay there; other daemons ask for them
//! when somebody reads them ([`elsewhere`](Elsewhere)). The quota is for all daemons together ([`counting`]).
//!
//! Deliberately absent: files of the store's backups. A copy of the store names files whose bytes it
//! does not have.

mod allowance;
mod counting;
mod elsewhere;
mod local_files;
mod pool;
mod reading;
mod uploads;
mod writing;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
use clawmux_core::memory::file::{
    Delete, FileCommand, FileId, FileList, FileRef, FileReply, FileRow, LIST_MAX, List, Status, no_such,
};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use serde_json::json;

use self::allowance::Allowance;
pub use self::elsewhere::{Elsewhere, ReadHere};
pub use self::local_files::{Enclose, Look, SetRoots};
use self::pool::Pool;
pub use self::reading::Collect;
use self::reading::Opened;
use self::uploads::{State, Upload, leaving};
use self::writing::Writing;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{
    FileChange, FileTotals, ReadFile, ReadFileIds, ReadFileTotals, ReadFiles, Store, WriteFile, watch,
};

/// Requests that may wait.
const MAILBOX: usize = 4096;

/// How long an upload is kept that does not grow.
pub const UPLOAD_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// After how long without use a file is closed.
const OPEN_LIFE: Duration = Duration::from_secs(30);

/// How often is looked for what is to be closed or given up.
const LOOK: Duration = Duration::from_secs(10);

/// What the actor is made with.
#[derive(Clone, Debug)]
pub struct FilesSetup {
    /// Where the bytes go.
    pub folder: PathBuf,
    /// Who keeps what is known of them.
    pub store: Addr<Store>,
    /// How many bytes one owner may have.
    pub quota_bytes: u64,
    /// How long an upload is kept that does not grow.
    pub upload_life: Duration,
    /// Folders that files which are named by their path may be in.
    pub attachment_roots: Vec<PathBuf>,
    /// The other daemons, in a cluster.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
}

/// The files of clients.
pub struct Files {
    setup: FilesSetup,
    pool: Pool,
    accounts: HashMap<Owner, Account>,
    /// Those that are not finished.
    uploads: HashMap<FileId, Upload>,
    /// Finished files that are being removed, and whose they are.
    removing: HashMap<FileId, Owner>,
    opened: HashMap<FileId, Opened>,
    /// Whether other daemons changed something since the folder was tidied.
    is_changed_elsewhere: bool,
    removed_total: u64,
    expired_total: u64,
    swept_total: u64,
    figures: Arc<Figures>,
}

/// What is counted on the threads.
#[derive(Debug, Default)]
struct Figures {
    received_bytes: AtomicU64,
    read_bytes: AtomicU64,
    refused: AtomicU64,
}

/// What is kept for an owner.
struct Account {
    allowance: Arc<Allowance>,
    files: u64,
    uploads: usize,
}

/// Has the disk and the store keep what came of uploads: the daemon is about to stop.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// From now on an owner may have so many bytes; what is there stays, also where that is more.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure {
    /// How many.
    pub quota_bytes: u64,
}

impl Files {
    /// With what the store knows; the folder is made where there is none.
    ///
    /// # Errors
    /// `Unavailable` where the folder can't be made; else as the store's.
    pub async fn open(setup: FilesSetup) -> Result<Self, Error> {
        make_folder(&setup.folder).map_err(|error| {
            let folder = setup.folder.display();
            ErrorCode::Unavailable.error(format!("can't make the folder {folder} for files: {error}"))
        })?;
        let FileTotals { owners, unfinished, is_shared } = ask(&setup.store, ReadFileTotals).await??;
        let account = |(owner, files, bytes)| {
            let allowance = Arc::new(Allowance::new(setup.quota_bytes, bytes));
            (owner, Account { allowance, files, uploads: 0 })
        };
        let mut files = Self {
            accounts: owners.into_iter().map(account).collect(),
            pool: Pool::new(),
            setup,
            uploads: HashMap::new(),
            removing: HashMap::new(),
            opened: HashMap::new(),
            is_changed_elsewhere: false,
            removed_total: 0,
            expired_total: 0,
            swept_total: 0,
            figures: Arc::default(),
        };
        for row in unfinished {
            if is_shared && !files.path(row.id).exists() {
                // Another daemon's, or nobody's: nothing of it came here.
                continue;
            }
            let writing = files.writing(&row);
            files.account(&row.owner).uploads += 1;
            files.uploads.insert(row.id, Upload::new(row, State::Idle(Box::new(writing))));
        }
        Ok(files)
    }

    fn path(&self, id: FileId) -> PathBuf {
        self.setup.folder.join(id.to_string())
    }

    fn account(&mut self, owner: &Owner) -> &mut Account {
        let quota = self.setup.quota_bytes;
        self.accounts.entry(owner.clone()).or_insert_with(|| Account {
            allowance: Arc::new(Allowance::new(quota, 0)),
            files: 0,
            uploads: 0,
        })
    }

    fn writing(&mut self, row: &FileRow) -> Writing {
        let allowance = self.account(&row.owner).allowance.clone();
        Writing::new(row.upload, row.about.clone(), self.path(row.id), allowance, row.size)
    }

    /// Removes a finished file that the asker may remove.
    fn remove(&mut self, row: FileRow, asker: Asker, ctx: &mut Context<Self>) {
        let id = row.id;
        if self.removing.contains_key(&id) {
            return asker.reply(Err(no_such(FileRef::File(id))));
        }
        self.removing.insert(id, row.owner.clone());
        self.opened.remove(&id);
        let removed = self.removes(id, self.path(id));
        ctx.spawn(removed.into_actor(self).map(move |removed, files, _| {
            files.removing.remove(&id);
            if removed.is_ok() {
                files.removed_total += 1;
                files.opened.remove(&id);
                let account = files.account(&row.owner);
                account.allowance.give_back(row.size);
                account.files = account.files.saturating_sub(1);
            }
            asker.reply(removed.map(|()| FileReply::Deleted(id).into()));
        }));
    }

    /// Removes a file from the store, and then from the disk: what a crash leaves is swept.
    fn removes(&self, id: FileId, path: PathBuf) -> impl Future<Output = Result<(), Error>> + 'static {
        let store = self.setup.store.clone();
        let pool = self.pool.clone();
        async move {
            let write = WriteFile { change: FileChange::Remove(id), durable: true };
            ask(&store, write).await.flatten()?;
            let job = move || {
                if let Err(error) = std::fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(path = %path.display(), %error, "a file can't be removed");
                }
            };
            if let Ok(done) = pool.run(job) {
                let _ = done.await;
            }
            Ok(())
        }
    }

    fn delete(&mut self, what: FileRef, (asker, principal): (Asker, Principal), ctx: &mut Context<Self>) {
        let id = what.id(&principal.owner);
        if let Some(upload) = self.uploads.get_mut(&id) {
            if !principal.sees(&upload.row.owner) {
                return asker.reply(Err(no_such(what)));
            }
            if matches!(upload.state, State::Leaving) || upload.deleter.is_some() {
                return asker.reply(Err(leaving(upload.row.upload)));
            }
            upload.deleter = Some(asker);
            return self.go_on(id, ctx);
        }
        let found = self.find(what, &principal);
        ctx.spawn(found.into_actor(self).map(move |found, files, ctx| match found {
            Ok(row) => files.remove(row, asker, ctx),
            Err(error) => asker.reply(Err(error)),
        }));
    }

    /// A file in the store that somebody may know of.
    fn find(
        &self,
        what: FileRef,
        principal: &Principal,
    ) -> impl Future<Output = Result<FileRow, Error>> + 'static {
        let (store, principal) = (self.setup.store.clone(), principal.clone());
        async move {
            let row = ask(&store, ReadFile(what.id(&principal.owner))).await??;
            row.filter(|row| principal.sees(&row.owner)).ok_or_else(|| no_such(what))
        }
    }

    fn status(&mut self, what: FileRef, (asker, principal): (Asker, Principal), ctx: &mut Context<Self>) {
        if let Some(upload) = self.uploads.get(&what.id(&principal.owner)) {
            let seen = principal.sees(&upload.row.owner);
            return asker.reply(if seen { file(&upload.row) } else { Err(no_such(what)) });
        }
        let found = self.find(what, &principal);
        ctx.spawn(actix::fut::wrap_future(async move {
            asker.reply(found.await.and_then(|row| file(&row)));
        }));
    }

    fn list(
        &mut self,
        List { limit, offset }: List,
        (asker, principal): (Asker, Principal),
        ctx: &mut Context<Self>,
    ) {
        let everybody = principal.scopes.allows(clawmux_core::scope::Scope::Admin);
        let owner = (!everybody).then(|| principal.owner.clone());
        let store = self.setup.store.clone();
        let read = ReadFiles { owner, limit: limit.min(LIST_MAX), offset };
        let listed = async move { ask(&store, read).await.flatten() };
        ctx.spawn(listed.into_actor(self).map(move |listed, files, _| {
            asker.reply(listed.map(|(mut rows, total)| {
                // The store is told now and then how far uploads have come.
                for row in &mut rows {
                    if let Some(upload) = files.uploads.get(&row.id).filter(|_| !row.is_complete) {
                        row.clone_from(&upload.row);
                    }
                }
                FileReply::List(FileList { files: rows, total }).into()
            }));
        }));
    }

    /// Closes what is not used, gives up what does not grow, and removes what other daemons did.
    fn look(&mut self, ctx: &mut Context<Self>) {
        let now = clock::now();
        if std::mem::take(&mut self.is_changed_elsewhere) {
            self.opened.clear();
            self.sweep(ctx);
        }
        self.opened.retain(|_, opened| now.since(opened.used) < OPEN_LIFE);
        let mut old = Vec::new();
        for (id, upload) in &mut self.uploads {
            let State::Idle(writing) = &mut upload.state else { continue };
            let idle = now.since(upload.row.updated);
            if idle >= OPEN_LIFE {
                writing.rest();
            }
            if idle >= self.setup.upload_life {
                old.push(*id);
            }
        }
        for id in old {
            self.expired_total += 1;
            self.give_up(id, None, ctx);
        }
    }

    /// Removes what is in the folder and not in the store. The folder is looked at first: a file is
    /// made after the store has heard of it.
    fn sweep(&mut self, ctx: &mut Context<Self>) {
        let (folder, pool, store) = (self.setup.folder.clone(), self.pool.clone(), self.setup.store.clone());
        let swept = async move {
            let listed = folder.clone();
            let names = pool.run(move || names(&listed))?.await.unwrap_or_default();
            let known = ask(&store, ReadFileIds).await??;
            let unknown: Vec<PathBuf> = names
                .into_iter()
                .filter(|name| FileId::parse(name).is_none_or(|id| !known.contains(&id)))
                .map(|name| folder.join(name))
                .collect();
            let count = unknown.len() as u64;
            let removed =
                pool.run(move || unknown.iter().for_each(|path| drop(std::fs::remove_file(path))))?;
            let _ = removed.await;
            Ok::<_, Error>(count)
        };
        ctx.spawn(swept.into_actor(self).map(|swept, files, _| match swept {
            Ok(count) => {
                files.swept_total += count;
                if count > 0 {
                    tracing::info!(files = count, "removed unknown files");
                }
            }
            Err(error) => tracing::warn!(%error, "the folder for files was not tidied"),
        }));
    }
}

fn file(row: &FileRow) -> Result<Reply, Error> {
    Ok(FileReply::File(row.clone()).into())
}

/// For the daemon's own user only.
fn make_folder(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

impl Actor for Files {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(LOOK, Self::look);
        let store = self.setup.store.clone();
        watch(&store, "files", self, ctx);
        self.look(ctx);
        self.sweep(ctx);
    }
}

impl Handler<Request<FileCommand>> for Files {
    type Result = ();

    fn handle(&mut self, manage: Request<FileCommand>, ctx: &mut Self::Context) {
        let Request { command, principal, asker } = manage;
        let who = (asker, principal);
        match command {
            FileCommand::Open(open) => self.begin_or_go_on(open, who, ctx),
            FileCommand::Write(chunk) => self.write(chunk, who, ctx),
            FileCommand::Status(Status(what)) => self.status(what, who, ctx),
            FileCommand::Read(read) => self.read(read, who, ctx),
            FileCommand::List(list) => self.list(list, who, ctx),
            FileCommand::Delete(Delete(what)) => self.delete(what, who, ctx),
        }
    }
}

impl Handler<Stop> for Files {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        let mut synced = Vec::new();
        for upload in self.uploads.values_mut() {
            let State::Idle(_) = upload.state else { continue };
            let State::Idle(mut writing) = std::mem::replace(&mut upload.state, State::Busy) else {
                continue;
            };
            let row = upload.row.clone();
            let job = move || {
                let was = writing.synced();
                let _ = writing.sync();
                (writing.synced() > was).then(|| FileRow { size: writing.synced(), ..row })
            };
            synced.extend(self.pool.run(job));
        }
        let store = self.setup.store.clone();
        Box::pin(async move {
            for synced in synced {
                if let Ok(Some(row)) = synced.await {
                    let _ = ask(&store, WriteFile { change: FileChange::Put(row), durable: false }).await;
                }
            }
        })
    }
}

impl Handler<Reconfigure> for Files {
    type Result = ();

    fn handle(&mut self, Reconfigure { quota_bytes }: Reconfigure, _: &mut Self::Context) {
        self.setup.quota_bytes = quota_bytes;
        self.accounts.values().for_each(|account| account.allowance.set_quota(quota_bytes));
    }
}

impl Handler<Observe> for Files {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let busy = self.uploads.values().filter(|upload| !matches!(upload.state, State::Idle(_))).count();
        let waiting: usize = self.uploads.values().map(|upload| upload.waiting.len()).sum();
        let files: u64 = self.accounts.values().map(|account| account.files).sum();
        let kept: u64 = self.accounts.values().map(|account| account.allowance.used()).sum();
        Observed::leaf(
            "files",
            json!({
                "files": files,
                "kept_bytes": kept,
                "uploads": self.uploads.len(),
                "uploads_busy": busy,
                "chunks_waiting": waiting,
                "opened": self.opened.len(),
                "received_bytes_total": self.figures.received_bytes.load(Relaxed),
                "read_bytes_total": self.figures.read_bytes.load(Relaxed),
                "refused_total": self.figures.refused.load(Relaxed),
                "removed_total": self.removed_total,
                "expired_total": self.expired_total,
                "swept_total": self.swept_total,
            }),
        )
    }
}

#[cfg(test)]
mod tests;
