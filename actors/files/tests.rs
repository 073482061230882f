//! The actor with its store and its folder, without sockets.

use super::uploads::UPLOADS_MAX;
use super::*;
use crate::connection::UNANSWERED_MARK;
use crate::runtime::deliver::{Client, Deliver};
use bytes::Bytes;
use clawmux_core::error::Detail;
use clawmux_core::error::limit::Limit;
use clawmux_core::ids::ConnectionId;
use clawmux_core::ids::Ticket;
use clawmux_core::memory::file::{Chunk, FileAbout, Open, Piece, Read, UploadId, Written};
use clawmux_core::scope::{Scope, Scopes};
use sha2::{Digest, Sha256};
use std::os::unix::fs::PermissionsExt;
use tokio::sync::mpsc;

struct Mailbox(mpsc::UnboundedSender<Deliver>);

impl Actor for Mailbox {
    type Context = Context<Self>;
}

impl Handler<Deliver> for Mailbox {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, _: &mut Self::Context) {
        let _ = self.0.send(deliver);
    }
}

struct World {
    files: Addr<Files>,
    store: Addr<Store>,
    folder: PathBuf,
    quota_bytes: u64,
}

impl World {
    async fn new(home: &Path, quota_bytes: u64) -> Self {
        Self::with(home, quota_bytes, UPLOAD_LIFE).await
    }

    async fn with(home: &Path, quota_bytes: u64, upload_life: Duration) -> Self {
        let store = Store::start(home.join("clawmux.db")).await.unwrap();
        let folder = home.join("files");
        let setup = FilesSetup {
            folder: folder.clone(),
            store: store.clone(),
            quota_bytes,
            upload_life,
            attachment_roots: Vec::new(),
            elsewhere: None,
        };
        let files = Files::open(setup).await.unwrap().start();
        files.send(Observe).await.unwrap();
        Self { files, store, folder, quota_bytes }
    }

    /// A start anew on the same home; where `stops`, after an orderly end.
    async fn again(self, stops: bool) -> Self {
        if stops {
            self.files.send(Stop).await.unwrap();
        }
        self.store.send(crate::store::Stop).await.unwrap().unwrap();
        Self::new(self.folder.parent().unwrap(), self.quota_bytes).await
    }

    fn peer(&self, connection: u64, name: &str) -> Peer {
        let (sender, inbox) = mpsc::unbounded_channel();
        let to = Mailbox(sender).start().recipient();
        let client = Client {
            connection: ConnectionId(connection),
            to,
            window: Arc::default(),
            arbiter: actix::Arbiter::current(),
        };
        let owner = if name == "admin" { Owner::Admins } else { Owner::Credential(name.into()) };
        let scopes = if name == "admin" { Scopes::ADMIN } else { Scopes::of(&[Scope::Write]) };
        let principal = Principal { owner, ..Principal::new(name, scopes) };
        Peer { client, inbox, files: self.files.clone(), principal, tickets: 0 }
    }

    fn kept(&self) -> Vec<String> {
        names(&self.folder)
    }

    async fn figure(&self, name: &str) -> u64 {
        self.files.send(Observe).await.unwrap().state[name].as_u64().unwrap()
    }
}

struct Peer {
    client: Client,
    inbox: mpsc::UnboundedReceiver<Deliver>,
    files: Addr<Files>,
    principal: Principal,
    tickets: u64,
}

impl Peer {
    fn send(&mut self, command: FileCommand) {
        self.tickets += 1;
        let asker = Asker::new(self.client.clone(), Ticket(self.tickets));
        self.files.try_send(Request { command, principal: self.principal.clone(), asker }).unwrap();
    }

    /// The next answer, whatever it is to.
    async fn answer(&mut self) -> Result<FileReply, Error> {
        let deliver = tokio::time::timeout(Duration::from_secs(60), self.inbox.recv()).await;
        match deliver.expect("an answer in time").expect("it is there") {
            Deliver::Reply(_, Ok(Reply::File(reply))) => Ok(reply),
            Deliver::Reply(_, Err(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    async fn ask(&mut self, command: FileCommand) -> Result<FileReply, Error> {
        self.send(command);
        self.answer().await
    }

    async fn file(&mut self, command: FileCommand) -> FileRow {
        match self.ask(command).await {
            Ok(FileReply::File(row) | FileReply::Written(Written::Complete(row))) => row,
            other => panic!("{other:?}"),
        }
    }

    /// A whole file in one piece.
    async fn put(&mut self, upload: u8, data: &[u8]) -> Result<FileReply, Error> {
        self.ask(FileCommand::Write(Chunk { is_last: true, ..first(upload, data) })).await
    }
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), poll).await.unwrap_or_else(|_| panic!("waited for {what}"));
}

fn upload(byte: u8) -> UploadId {
    UploadId::from_bytes([byte; 16])
}

fn of(byte: u8) -> FileRef {
    FileRef::Upload(upload(byte))
}

fn chunk(byte: u8, data: &[u8]) -> Chunk {
    Chunk {
        upload: upload(byte),
        about: None,
        offset: None,
        index: None,
        data: Bytes::copy_from_slice(data),
        compressed: false,
        is_last: false,
    }
}

fn first(byte: u8, data: &[u8]) -> Chunk {
    Chunk { about: Some(FileAbout::default()), ..chunk(byte, data) }
}

fn digest(data: &[u8]) -> Option<[u8; 32]> {
    Some(Sha256::digest(data).into())
}

#[actix::test]
async fn pieces_sent_without_waiting_become_one_file_for_its_owner_only() {
    let home = tempfile::tempdir().unwrap();
    let world = World::new(home.path(), 1 << 20).await;
    let mut ada = world.peer(1, "ada");
    ada.send(FileCommand::Write(first(1, b"a")));
    for piece in [b"b", b"c", b"d"] {
        ada.send(FileCommand::Write(chunk(1, piece)));
    }
    ada.send(FileCommand::Write(Chunk { is_last: true, ..chunk(1, b"e") }));
    for received in 1..=4 {
        assert_eq!(ada.answer().await, Ok(FileReply::Written(Written::Received(received))));
    }
    let Ok(FileReply::Written(Written::Complete(row))) = ada.answer().await else { panic!("its end") };
    assert!(row.is_complete && row.size == 5 && row.about.sha256 == digest(b"abcde"), "{row:?}");
    let path = world.folder.join(row.id.to_string());
    assert_eq!(std::fs::read(&path).unwrap(), b"abcde");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&world.folder)), (0o600, 0o700));

    let read = FileCommand::Read(Read { file: FileRef::File(row.id), offset: 2, bytes_max: 2 });
    let piece = FileReply::Piece(Box::new(Piece { file: row.clone(), data: Bytes::from_static(b"cd") }));
    assert_eq!(ada.ask(read.clone()).await, Ok(piece.clone()));
    assert_eq!(world.peer(3, "admin").ask(read.clone()).await, Ok(piece));
    let mut bob = world.peer(2, "bob");
    let commands = [
        read,
        FileCommand::Status(Status(FileRef::File(row.id))),
        FileCommand::Delete(Delete(FileRef::File(row.id))),
    ];
    for command in commands {
        assert_eq!(bob.ask(command).await.unwrap_err().code, ErrorCode::NotFound);
    }
    assert_eq!(
        bob.ask(FileCommand::Status(Status(of(1)))).await.unwrap_err().code,
        ErrorCode::NotFound,
        "his own name"
    );
    let list = FileCommand::List(List { limit: 10, offset: 0 });
    assert_eq!(bob.ask(list.clone()).await, Ok(FileReply::List(FileList { files: vec![], total: 0 })));
    assert_eq!(ada.ask(list).await, Ok(FileReply::List(FileList { files: vec![row.clone()], total: 1 })));
    // The same name of another is another file.
    bob.put(1, b"his").await.unwrap();
    assert_eq!(world.kept().len(), 2);
    let past = FileCommand::Read(Read { file: FileRef::File(row.id), offset: 6, bytes_max: 1 });
    assert_eq!(ada.ask(past).await.unwrap_err().detail, Some(Detail::Received(5)));
    assert_eq!(ada.put(1, b"again").await.unwrap_err().code, ErrorCode::Conflict);

    assert_eq!(ada.ask(FileCommand::Delete(Delete(of(1)))).await, Ok(FileReply::Deleted(row.id)));
    assert_eq!(ada.ask(FileCommand::Status(Status(of(1)))).await.unwrap_err().code, ErrorCode::NotFound);
    assert!(!path.exists() && world.figure("kept_bytes").await == 3);
    ada.put(1, b"anew").await.unwrap();
}

#[actix::test]
async fn nothing_is_written_behind_a_gap_and_an_upload_goes_on_where_it_is() {
    let home = tempfile::tempdir().unwrap();
    let world = World::new(home.path(), 1 << 20).await;
    let mut ada = world.peer(1, "ada");
    ada.send(FileCommand::Write(first(1, b"abc")));
    // Refused; and so is what was sent behind it without knowing.
    ada.send(FileCommand::Write(Chunk { compressed: true, ..chunk(1, b"def") }));
    ada.send(FileCommand::Write(chunk(1, b"ghi")));
    ada.send(FileCommand::Write(Chunk { is_last: true, ..chunk(1, b"jkl") }));
    assert_eq!(ada.answer().await, Ok(FileReply::Written(Written::Received(3))));
    assert_eq!(ada.answer().await.unwrap_err().code, ErrorCode::InvalidRequest);
    for _ in 0..2 {
        let behind = ada.answer().await.unwrap_err();
        assert_eq!((behind.code, behind.detail), (ErrorCode::Conflict, Some(Detail::Received(3))));
    }
    // Nor may another connection go on blindly, or from elsewhere.
    let mut again = world.peer(2, "ada");
    let blind = again.ask(FileCommand::Write(chunk(1, b"def"))).await.unwrap_err();
    assert_eq!(blind.detail, Some(Detail::Received(3)));
    let elsewhere =
        again.ask(FileCommand::Write(Chunk { offset: Some(4), ..chunk(1, b"x") })).await.unwrap_err();
    assert_eq!(elsewhere.detail, Some(Detail::Received(3)));
    assert_eq!(again.file(FileCommand::Status(Status(of(1)))).await.size, 3);
    let read = FileCommand::Read(Read { file: of(1), offset: 0, bytes_max: 1 });
    assert_eq!(again.ask(read).await.unwrap_err().code, ErrorCode::Conflict, "it is not complete");
    again.ask(FileCommand::Write(Chunk { offset: Some(3), ..chunk(1, b"def") })).await.unwrap();
    // Who had it lost it.
    assert_eq!(ada.ask(FileCommand::Write(chunk(1, b"x"))).await.unwrap_err().code, ErrorCode::Conflict);
    let end = again.file(FileCommand::Write(Chunk { is_last: true, ..chunk(1, b"") })).await;
    assert_eq!(end.about.sha256, digest(b"abcdef"));
    assert_eq!(ada.ask(FileCommand::Write(chunk(9, b"x"))).await.unwrap_err().code, ErrorCode::NotFound);
}

#[actix::test]
async fn an_upload_survives_a_restart_and_what_nobody_knows_is_swept() {
    let home = tempfile::tempdir().unwrap();
    let world = World::new(home.path(), 64 << 20).await;
    let data: Vec<u8> = (0..20 << 20).map(|at: u32| (at / 7) as u8).collect();
    let mut ada = world.peer(1, "ada");
    let about =
        FileAbout { name: Some("a.bin".into()), total: Some(data.len() as u64), ..FileAbout::default() };
    let row = ada.file(FileCommand::Open(Open { upload: upload(1), about })).await;
    assert!(row.size == 0 && !row.is_complete, "{row:?}");
    for piece in data[..12 << 20].chunks(1 << 20) {
        ada.ask(FileCommand::Write(chunk(1, piece))).await.unwrap();
    }
    std::fs::write(world.folder.join("stranger"), "x").unwrap();
    std::fs::write(world.folder.join(FileId::from_bytes([9; 16]).to_string()), "x").unwrap();
    // As after a crash: what was not synced is not relied upon.
    let world = world.again(false).await;
    let mut ada = world.peer(1, "ada");
    let begun = ada.file(FileCommand::Status(Status(of(1)))).await;
    assert_eq!((begun.size, begun.about.name.as_deref()), (8 << 20, Some("a.bin")));
    assert_eq!(world.figure("kept_bytes").await, 8 << 20);
    for (at, piece) in data.chunks(1 << 20).enumerate().skip(8).take(2) {
        let offset = (at == 8).then_some(8 << 20);
        ada.ask(FileCommand::Write(Chunk { offset, ..chunk(1, piece) })).await.unwrap();
    }
    // An orderly end keeps all of it.
    let world = world.again(true).await;
    let mut ada = world.peer(1, "ada");
    assert_eq!(ada.file(FileCommand::Status(Status(of(1)))).await.size, 10 << 20);
    let rest = Chunk { offset: Some(10 << 20), is_last: true, ..chunk(1, &data[10 << 20..]) };
    let row = ada.file(FileCommand::Write(rest)).await;
    assert_eq!((row.size, row.about.sha256), (20 << 20, digest(&data)));
    eventually("strangers to be swept", async || world.kept().len() == 1).await;
    assert_eq!(world.kept(), [row.id.to_string()]);
    let world = world.again(true).await;
    assert_eq!(world.peer(1, "ada").file(FileCommand::Status(Status(FileRef::File(row.id)))).await, row);
}

#[actix::test]
async fn a_quota_is_exact_under_uploads_side_by_side() {
    let home = tempfile::tempdir().unwrap();
    let world = World::new(home.path(), 100_000).await;
    let mut ada = world.peer(1, "ada");
    for at in 0..30 {
        ada.send(FileCommand::Write(first(at, &[at; 4000])));
    }
    let mut taken = 0;
    for _ in 0..30 {
        match ada.answer().await {
            Ok(FileReply::Written(Written::Received(4000))) => taken += 1,
            Err(error) => {
                let limit = Some(Detail::Limit { name: Limit::FileQuotaBytes, limit: 100_000 });
                assert_eq!((error.code, error.detail), (ErrorCode::TooLarge, limit));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((taken, world.figure("kept_bytes").await), (25, 100_000));
    let on_disk: u64 =
        world.kept().iter().map(|name| world.folder.join(name).metadata().unwrap().len()).sum();
    assert_eq!(on_disk, 100_000, "nothing is left of what was refused");
    world.peer(2, "bob").put(1, b"his own").await.unwrap();
    let announced = FileAbout { total: Some(1), ..FileAbout::default() };
    let refused =
        ada.ask(FileCommand::Open(Open { upload: upload(200), about: announced })).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge, "{refused}");
    // What is given up makes room.
    let Ok(FileReply::List(FileList { files, .. })) =
        ada.ask(FileCommand::List(List { limit: 100, offset: 0 })).await
    else {
        panic!("a list")
    };
    let grown = files.iter().find(|file| file.size == 4000).unwrap();
    ada.ask(FileCommand::Delete(Delete(FileRef::File(grown.id)))).await.unwrap();
    assert_eq!(world.figure("kept_bytes").await, 96_007);
    ada.put(201, &[1; 4000]).await.unwrap();
    ada.put(202, &[1; 1]).await.unwrap_err();
}

#[actix::test]
async fn uploads_that_do_not_grow_are_given_up_and_there_are_not_too_many() {
    let home = tempfile::tempdir().unwrap();
    let world = World::with(home.path(), 100_000, Duration::ZERO).await;
    let mut ada = world.peer(1, "ada");
    for at in 0..UPLOADS_MAX as u8 {
        ada.ask(FileCommand::Write(first(at, b"x"))).await.unwrap();
    }
    let refused = ada.put(200, b"x").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RateLimited, "{refused}");
    let mut bob = world.peer(2, "bob");
    bob.put(1, b"kept").await.unwrap();
    world.files.send(Look).await.unwrap();
    eventually("uploads to be given up", async || world.figure("uploads").await == 0).await;
    assert_eq!((world.figure("kept_bytes").await, world.kept().len()), (4, 1));
    assert_eq!(ada.ask(FileCommand::Status(Status(of(0)))).await.unwrap_err().code, ErrorCode::NotFound);
    ada.put(200, b"x").await.unwrap();
}

/// What is done now and then.
#[derive(Message)]
#[rtype(result = "()")]
struct Look;

impl Handler<Look> for Files {
    type Result = ();

    fn handle(&mut self, _: Look, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

#[actix::test]
async fn files_come_along_with_a_prompt_of_their_owner() {
    let home = tempfile::tempdir().unwrap();
    let world = World::new(home.path(), 64 << 20).await;
    let mut ada = world.peer(1, "ada");
    let about =
        FileAbout { name: Some("a.txt".into()), media_type: Some("text/csv".into()), ..FileAbout::default() };
    let text = Chunk { about: Some(about), is_last: true, ..chunk(1, b"a,b") };
    let text = ada.file(FileCommand::Write(text)).await;
    let Ok(FileReply::Written(Written::Complete(large))) =
        ada.put(2, &vec![b'x'; attachment_bytes() + 1]).await
    else {
        panic!("it")
    };
    ada.ask(FileCommand::Write(first(3, b"x"))).await.unwrap();
    let begun = FileId::of(&ada.principal.owner, upload(3));
    let collect = async |peer: &Peer, files: &[FileId]| {
        let principal = peer.principal.clone();
        world.files.send(Collect { files: files.to_vec(), principal }).await.unwrap()
    };
    let collected = collect(&ada, &[text.id, text.id]).await.unwrap();
    assert_eq!((collected[1].name(), collected[1].media_type()), (Some("a.txt"), "text/csv"));
    assert_eq!(&collected[0].data()[..], b"a,b");
    let refused = async |peer: &Peer, file: FileId| collect(peer, &[text.id, file]).await.unwrap_err().code;
    assert_eq!(refused(&ada, large.id).await, ErrorCode::TooLarge);
    assert_eq!(refused(&ada, begun).await, ErrorCode::Conflict);
    assert_eq!(refused(&ada, FileId::from_bytes([7; 16])).await, ErrorCode::NotFound);
    assert_eq!(refused(&world.peer(2, "bob"), text.id).await, ErrorCode::NotFound);
}

fn attachment_bytes() -> usize {
    clawmux_core::prompt::attachment::ATTACHMENT_BYTES_MAX
}

#[test]
fn what_may_be_unanswered_is_little() {
    let data = vec![0; 64 * 1024];
    assert!(FileCommand::Write(chunk(1, &data)).weight() >= UNANSWERED_MARK / 16);
}
