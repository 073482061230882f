//! Files: uploads in binary frames, downloads in binary frames, and what there is.
//!
//! An upload is one request, of as many frames as it takes, under one correlation id. Its first frame
//! on a connection names the method `file.upload` (unless the upload was opened by the request of that
//! name) or says in `extra.offset` where it goes on. It is answered once: when all of it is kept, or
//! when a piece of it is refused. What was sent behind a refused piece, without knowing, belongs to
//! the request that was answered, and is dropped up to its last frame; a frame that says an offset
//! goes on anew. `extra.offset` counts bytes of the file, not of compressed frames.
//!
//! A download is a request whose id is a UUID, and so the correlation id of the frames that come before
//! its answer. A piece is read while the one before it leaves for the socket, and is sent when that has
//! room: a connection holds at most two, however many downloads it has, which take turns.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::binary::{self, Binary, Refused};
use super::shape::{COUNT, Field, INTEGER_MAX, NAME, Shape, default, optional, required};
use super::wire::{self, Failure};
use super::{Answered, Call, Calling, Request, Turn, Wundr, method};
use crate::dialect::json::put;
use crate::error::{Error, ErrorCode};
use crate::hex::{from_hex, hex};
use crate::memory::file::{
    Chunk, Delete, FileAbout, FileId, FileList, FileRef, FileRow, LIST_MAX, List, Open, PIECE_BYTES, Piece,
    Read, Status, UploadId, Written,
};

/// The method that uploads are.
pub(super) const UPLOAD: &str = "file.upload";

/// How many uploads, and how many downloads, one connection may have at once.
const TRANSFERS_MAX: usize = 64;

const ID: Shape = Shape::Text(32, 45);
const DIGEST: Shape = Shape::Text(64, 64);

/// The parameters of `file.upload`.
pub(super) const UPLOAD_PARAMS: &[Field] = &[
    optional(
        "uploadId",
        ID,
        "a UUID that names the upload, and the correlation id of its frames; absent = the id of this request where that is one, else a new one",
    ),
    optional("filename", Shape::Text(0, 255), "its name, for people"),
    optional("contentType", Shape::Text(0, 255), "its media type"),
    optional(
        "totalSize",
        Shape::Integer(-1, INTEGER_MAX),
        "how many bytes it has, -1 = unknown; checked at the end",
    ),
    optional("sha256", DIGEST, "its SHA-256 in hexadecimal digits; checked at the end"),
];

/// The parameters of `file.download`.
pub(super) const DOWNLOAD_PARAMS: &[Field] = &[
    required("fileId", ID, "the file"),
    default("offset", COUNT, "0", "from which byte on"),
    optional("length", COUNT, "how many bytes; absent = up to its end"),
];

/// The parameters of what is about one file.
pub(super) const ONE_PARAMS: &[Field] = &[
    optional("fileId", ID, "the file; needed where there is no `uploadId`"),
    optional("uploadId", ID, "or one's own upload that it comes with, and never both"),
];

/// The parameters of `file.list`.
pub(super) const LIST_PARAMS: &[Field] = &[
    default("limit", Shape::Integer(1, LIST_MAX as i64), "50", "at most so many, the latest begun first"),
    default("offset", COUNT, "0", "without the first so many"),
];

/// A file, finished or not.
pub(super) const FILE: &[Field] = &[
    required("fileId", ID, "the file"),
    required("uploadId", ID, "the upload it comes with"),
    required("status", Shape::OneOf(&["uploading", "complete"]), "whether all of it is there"),
    required("size", COUNT, "how many bytes have come; an upload goes on at this offset"),
    optional("totalSize", COUNT, "how many there will be, where that was said"),
    optional("sha256", DIGEST, "its SHA-256, once it is complete"),
    optional("filename", Shape::Text(0, 255), "its name, for people"),
    optional("contentType", Shape::Text(0, 255), "its media type"),
    required("createdAt", Shape::Time, "when it was begun"),
    required("updatedAt", Shape::Time, "when it last grew"),
];

/// What `file.download` is answered, behind the bytes.
pub(super) const DOWNLOADED: &[Field] = &[
    required("fileId", ID, "the file"),
    required("size", COUNT, "how many bytes it has"),
    required("sha256", DIGEST, "its SHA-256"),
    required("offset", COUNT, "from which byte on it was sent"),
    required("sentBytes", COUNT, "how many bytes were sent"),
    optional("filename", Shape::Text(0, 255), "its name, for people"),
    optional("contentType", Shape::Text(0, 255), "its media type"),
];

/// What `file.list` is answered.
pub(super) const LIST: &[Field] = &[
    required("files", Shape::List(&Shape::Object(FILE), 0, LIST_MAX), "they"),
    required("total", COUNT, "how many there are"),
    required("limit", COUNT, "as asked"),
    required("offset", COUNT, "as asked"),
];

/// What `file.delete` is answered.
pub(super) const DELETED: &[Field] =
    &[required("ok", Shape::Flag, "that it is no more"), required("fileId", ID, "the file")];

/// Files that a prompt brings along.
pub(super) const ATTACHMENTS: Shape =
    Shape::List(&Shape::Object(&[required("fileId", NAME, "the file")]), 0, 16);

/// The uploads and downloads of one connection.
#[derive(Default)]
pub(super) struct Transfers {
    /// The uploads that this connection sends.
    sending: HashMap<UploadId, Sending>,
    /// How many uploads were begun here, which numbers them.
    uploads: u64,
    /// The downloads that wait for their next piece, by turns.
    downloads: VecDeque<Download>,
    /// The download whose next piece is being read.
    reading: Option<UploadId>,
    /// A piece that waits for room.
    ready: Option<(Download, Box<Piece>)>,
    /// Whether the connection will say when there is room.
    is_full: bool,
}

/// An upload that this connection sends.
#[derive(Clone, Copy)]
struct Sending {
    /// Which of those of this connection: one id may be used again.
    number: u64,
    /// Whether it was answered that it failed.
    is_refused: bool,
    /// Whether its last frame came, and its answer is on its way.
    has_ended: bool,
}

/// A download under way.
struct Download {
    id: UploadId,
    /// The id of the request, as its client wrote it.
    request: String,
    file: FileRef,
    begin: u64,
    at: u64,
    /// Where it ends, where that was said.
    until: Option<u64>,
    index: u64,
}

impl Transfers {
    /// Whether a download of this connection has this id.
    fn is_downloading(&self, id: UploadId) -> bool {
        let ready = self.ready.iter().map(|(download, _)| download);
        self.reading == Some(id) || self.downloads.iter().chain(ready).any(|download| download.id == id)
    }

    /// Whether all of an upload came and its answer is on its way.
    fn has_ended(&self, id: UploadId) -> bool {
        self.sending.get(&id).is_some_and(|sending| sending.has_ended)
    }

    /// An upload begins or goes on; gives its number.
    fn begin(&mut self, id: UploadId) -> u64 {
        self.uploads += 1;
        self.sending.insert(id, Sending { number: self.uploads, is_refused: false, has_ended: false });
        self.uploads
    }

    /// Makes room for an upload: who was answered that his failed may have sent its last frame.
    fn make_room(&mut self, id: UploadId) -> Result<(), Error> {
        if self.sending.len() < TRANSFERS_MAX || self.sending.contains_key(&id) {
            return Ok(());
        }
        let refused = self.sending.iter().find(|(_, sending)| sending.is_refused).map(|(id, _)| *id);
        match refused {
            Some(refused) => {
                self.sending.remove(&refused);
                Ok(())
            }
            None => {
                let why = format!("{TRANSFERS_MAX} uploads are under way here: finish one first");
                Err(ErrorCode::RateLimited.error(why))
            }
        }
    }
}

impl Wundr {
    /// A binary frame: a piece of an upload.
    pub(super) fn on_binary(&mut self, frame: &Bytes, turn: &mut Turn<'_>) {
        let frame = match binary::decode(frame) {
            Ok(frame) => frame,
            Err(Refused { id, error }) => {
                let failure = Failure::of(&error);
                return match id.filter(|id| !self.transfers.has_ended(*id)) {
                    Some(id) => self.refuse_upload(id, &failure, false, turn),
                    None => turn.send(wire::refusal(wire::NO_ID, &failure)),
                };
            }
        };
        let id = frame.id;
        if self.transfers.has_ended(id) {
            // The id has its one answer coming.
            let why = format!("a frame behind the last one of upload {id}, which is not answered yet");
            return turn.send(wire::refusal(wire::NO_ID, &Failure::invalid(why)));
        }
        let names_upload = match frame.meta.method.as_deref() {
            None => false,
            Some(UPLOAD) => true,
            Some(other) => {
                let other = super::super::json::clip(other);
                let why = format!("unknown method: {other}: binary frames are {UPLOAD}");
                return self.refuse_upload(id, &Failure::invalid(why), frame.is_last, turn);
            }
        };
        let known = self.transfers.sending.get(&id).copied();
        let begins_anew =
            frame.meta.offset().is_some() || (names_upload && frame.meta.chunk_index == Some(0));
        if known.is_some_and(|sending| sending.is_refused) && !begins_anew {
            if frame.is_last {
                self.transfers.sending.remove(&id);
            }
            return;
        }
        let Some(method) = method::find(UPLOAD) else { return };
        if !method.is_allowed(self.scopes) {
            let failure = Failure::missing_scope(method.needs, Some(UPLOAD));
            return self.refuse_upload(id, &failure, frame.is_last, turn);
        }
        if let Err(error) = self.transfers.make_room(id) {
            return turn.send(wire::refusal(&id.to_string(), &Failure::of(&error)));
        }
        let begins = known.is_none_or(|sending| sending.is_refused);
        let number = match known {
            Some(known) if !begins => known.number,
            _ => self.transfers.begin(id),
        };
        self.send_piece(frame, number, begins && names_upload, if begins { method.cost } else { 0 }, turn);
    }

    /// Hands a piece on.
    fn send_piece(&mut self, frame: Binary, number: u64, begins: bool, cost: u32, turn: &mut Turn<'_>) {
        let Binary { id, is_compressed, is_last, meta, payload } = frame;
        let (offset, index) = (meta.offset(), meta.chunk_index);
        let about = begins.then(|| FileAbout {
            total: meta.total(),
            sha256: meta.sha256(),
            name: meta.filename,
            media_type: meta.content_type,
        });
        let chunk =
            Chunk { upload: id, about, offset, index, data: payload, compressed: is_compressed, is_last };
        self.under((self.granted(method::WRITE), cost), chunk, turn, move |wundr, reply, turn| {
            match reply {
                Ok(Written::Complete(row)) => {
                    wundr.transfers.sending.remove(&id);
                    turn.send(wire::answer(&id.to_string(), &told(&row)));
                }
                Ok(Written::Received(_)) => {}
                // Unless that was answered, or is of one before it.
                Err(error)
                    if wundr.transfers.sending.get(&id).is_some_and(|sending| sending.number == number) =>
                {
                    wundr.refuse_upload(id, &Failure::of(&error), is_last, turn);
                }
                Err(_) => {}
            }
        });
        if let Some(sending) = self.transfers.sending.get_mut(&id) {
            sending.has_ended = is_last;
        }
    }

    /// Answers an upload that failed, once; what still comes of it is dropped.
    fn refuse_upload(&mut self, id: UploadId, failure: &Failure, is_last: bool, turn: &mut Turn<'_>) {
        let sending = self.transfers.sending.get_mut(&id);
        if !sending.as_ref().is_some_and(|sending| sending.is_refused) {
            turn.send(wire::refusal(&id.to_string(), failure));
        }
        match sending {
            Some(_) if is_last => {
                self.transfers.sending.remove(&id);
            }
            Some(sending) => sending.is_refused = true,
            None => {}
        }
    }

    /// There is room again for what downloads send.
    pub(super) fn send_downloads(&mut self, turn: &mut Turn<'_>) {
        self.transfers.is_full = false;
        if let Some((download, piece)) = self.transfers.ready.take() {
            self.give(download, &piece, turn);
        }
    }

    /// Has the next piece read, where none is there yet.
    fn read_on(&mut self, turn: &mut Turn<'_>) {
        if self.transfers.reading.is_some() || self.transfers.ready.is_some() {
            return;
        }
        let Some(download) = self.transfers.downloads.pop_front() else { return };
        self.transfers.reading = Some(download.id);
        let left = download.until.map_or(u64::MAX, |until| until.saturating_sub(download.at));
        let bytes_max = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let read = Read { file: download.file, offset: download.at, bytes_max };
        self.aside(read, turn, move |wundr, reply, turn| {
            wundr.transfers.reading = None;
            match reply {
                Ok(piece) if wundr.transfers.is_full => wundr.transfers.ready = Some((download, piece)),
                Ok(piece) => wundr.give(download, &piece, turn),
                Err(error) => {
                    turn.send(wire::refusal(&download.request, &Failure::of(&error)));
                    wundr.read_on(turn);
                }
            }
        });
    }

    /// Sends a piece, and the answer behind the last.
    fn give(&mut self, mut download: Download, piece: &Piece, turn: &mut Turn<'_>) {
        let Piece { file: row, data } = piece;
        let mut meta = json!({ "chunkIndex": download.index, "totalSize": row.size, "extra": { "offset": download.at } });
        if download.index == 0 {
            meta["method"] = "file.download".into();
            insert_about(&mut meta, &row.about);
        }
        download.at += data.len() as u64;
        download.index += 1;
        let is_last = download.at >= download.until.unwrap_or(row.size).min(row.size);
        let flags = if is_last { binary::FINAL } else { binary::CHUNKED };
        let frame = binary::encode(download.id, flags, &meta.to_string(), data);
        self.transfers.is_full = frame.len() >= PIECE_BYTES;
        turn.send_binary(frame);
        if is_last {
            let mut answer = json!({
                "fileId": row.id.to_string(),
                "size": row.size,
                "sha256": row.about.sha256.map(|digest| hex(&digest)).unwrap_or_default(),
                "offset": download.begin,
                "sentBytes": download.at - download.begin,
            });
            insert_about(&mut answer, &row.about);
            turn.send(wire::answer(&download.request, &answer));
        } else {
            self.transfers.downloads.push_back(download);
        }
        self.read_on(turn);
    }
}

fn insert_about(object: &mut Value, about: &FileAbout) {
    put(object, "filename", about.name.as_deref());
    put(object, "contentType", about.media_type.as_deref());
}

/// A file as clients are told of it.
fn told(row: &FileRow) -> Value {
    let mut file = json!({
        "fileId": row.id.to_string(),
        "uploadId": row.upload.to_string(),
        "status": if row.is_complete { "complete" } else { "uploading" },
        "size": row.size,
        "createdAt": row.created.to_rfc3339(),
        "updatedAt": row.updated.to_rfc3339(),
    });
    put(&mut file, "totalSize", row.about.total);
    put(&mut file, "sha256", row.about.sha256.as_ref().filter(|_| row.is_complete).map(|digest| hex(digest)));
    insert_about(&mut file, &row.about);
    file
}

/// A UUID of the parameters.
fn id(request: &Request<'_>, name: &str) -> Result<Option<UploadId>, Error> {
    let Some(text) = request.params[name].as_str() else { return Ok(None) };
    UploadId::parse(text).map(Some).ok_or_else(|| request.invalid(&format!("{name}: not a UUID")))
}

/// The file that the parameters name.
fn one(request: &Request<'_>) -> Result<FileRef, Error> {
    match (id(request, "fileId")?, id(request, "uploadId")?) {
        (Some(file), None) => Ok(FileRef::File(FileId::from_bytes(*file.as_bytes()))),
        (None, Some(upload)) => Ok(FileRef::Upload(upload)),
        _ => Err(request.invalid("fileId or uploadId has to be given, and only one of them")),
    }
}

/// `file.upload`: begins an upload whose bytes follow in binary frames, or says how far it has come.
pub(super) fn upload(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let named = id(request, "uploadId")?.or_else(|| UploadId::parse(request.id));
    let upload = named.unwrap_or_else(|| {
        let random = uuid::Builder::from_random_bytes(turn.random()).into_uuid();
        UploadId::from_bytes(random.into_bytes())
    });
    let sha256 = request
        .text_if_any("sha256")
        .map(|text| from_hex(&text).ok_or_else(|| request.invalid("sha256: not 64 hexadecimal digits")))
        .transpose()?;
    let (name, media_type) = (request.text_if_any("filename"), request.text_if_any("contentType"));
    let about = FileAbout { name, media_type, total: request.params["totalSize"].as_u64(), sha256 };
    wundr.transfers.make_room(upload)?;
    Call::ask(Open { upload, about }, move |wundr, row, _| {
        if !row.is_complete {
            // What it sends from here on belongs to it.
            wundr.transfers.begin(upload);
        }
        told(&row)
    })
}

/// `file.download`: the bytes in binary frames, then the answer.
pub(super) fn download(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let file = match id(request, "fileId")? {
        Some(file) => FileRef::File(FileId::from_bytes(*file.as_bytes())),
        None => return Err(request.invalid("fileId: required")),
    };
    let Some(id) = UploadId::parse(request.id) else {
        let why = "the id of the request has to be a UUID: the frames have it as their correlation id";
        return Err(request.invalid(why));
    };
    if wundr.transfers.is_downloading(id) {
        return Err(ErrorCode::Conflict.error(format!("a download with the id {id} is under way")));
    }
    if wundr.transfers.downloads.len() >= TRANSFERS_MAX {
        let why = format!("{TRANSFERS_MAX} downloads are under way here: wait for one to end");
        return Err(ErrorCode::RateLimited.error(why));
    }
    let begin = request.params["offset"].as_u64().unwrap_or(0);
    let until = request.params["length"].as_u64().map(|length| begin.saturating_add(length));
    let request = request.id.to_owned();
    let download = Download { id, request, file, begin, at: begin, until, index: 0 };
    wundr.transfers.downloads.push_back(download);
    wundr.read_on(turn);
    Ok(Call::Elsewhere)
}

/// `file.status`: how a file is, finished or not.
pub(super) fn status(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(Status(one(request)?), |_, row, _| told(&row))
}

/// `file.list`: what there is.
pub(super) fn list(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let number = |name: &str| request.params[name].as_u64().unwrap_or(0);
    let (limit, offset) = (number("limit"), number("offset"));
    let list = List { limit: usize::try_from(limit).unwrap_or(LIST_MAX), offset };
    Call::ask(list, move |_, FileList { files, total }, _| {
        let files: Vec<Value> = files.iter().map(told).collect();
        json!({ "files": files, "total": total, "limit": limit, "offset": offset })
    })
}

/// `file.delete`: removes a file, or gives an upload up.
pub(super) fn delete(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let what = one(request)?;
    Call::ask(Delete(what), move |wundr, id, _| {
        if let FileRef::Upload(upload) = what {
            wundr.transfers.sending.remove(&upload);
        }
        json!({ "ok": true, "fileId": id.to_string() })
    })
}

/// The files that the parameters of a prompt name, in shape.
///
/// # Errors
/// `InvalidRequest` where one is no id of a file.
pub(super) fn attached(attachments: Option<&Value>) -> Result<Vec<FileId>, Error> {
    let all = attachments.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let id = |attachment: &Value| attachment.as_object().and_then(file_id);
    let none = || ErrorCode::InvalidRequest.error("attachments: a fileId is not a UUID");
    all.iter().map(|attachment| id(attachment).ok_or_else(none)).collect()
}

fn file_id(attachment: &Map<String, Value>) -> Option<FileId> {
    FileId::parse(attachment.get("fileId")?.as_str()?)
}
