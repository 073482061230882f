//! Files that clients put with the daemon and get from it.
//!
//! An upload is named by its client, its file by the daemon: the file's id is made of the owner's
//! name and the upload's, so that two owners who give the same name have two files, and one who asks
//! again after a cut finds his own. What has come of an upload is kept; it goes on from there, on
//! another connection or after a restart.
//!
//! Deliberately absent: paths. A client's file name is a word for people and names nothing here.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::area::area;
use crate::error::{Error, ErrorCode};
use crate::ids::Owner;
use crate::time::Timestamp;

/// How many bytes of a file are read at once for who gets it. Above what a connection may have
/// unsent before it is told of room again, so that each piece can wait for that.
pub const PIECE_BYTES: usize = 128 * 1024;

/// The most bytes that one compressed piece of an upload may have once inflated.
pub const INFLATED_BYTES_MAX: u64 = 64 << 20;

/// The most files, finished or not, that a list has.
pub const LIST_MAX: usize = 200;

/// The longest file name that is kept, and the longest media type, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// How many bytes of a piece weigh as much as a small request.
const WEIGHED_BYTES: usize = 64 * 1024;

/// The weight of what takes as much memory as a connection may have of requests.
const HEAVY: usize = 32;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id with these bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// Reads a UUID in any of its usual writings; none where it is none.
            pub fn parse(text: &str) -> Option<Self> {
                Uuid::parse_str(text).ok().map(|uuid| Self(uuid.into_bytes()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Uuid::from_bytes(self.0).hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

uuid_id! {
    /// A file, as everybody names it.
    FileId
}
uuid_id! {
    /// An upload, as its client names it.
    UploadId
}

impl FileId {
    /// The file that this owner's upload becomes.
    pub fn of(owner: &Owner, upload: UploadId) -> Self {
        let digest =
            Sha256::new().chain_update(owner.as_str()).chain_update([0]).chain_update(upload.0).finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid().into_bytes())
    }
}

/// Which file a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// The file of this id.
    File(FileId),
    /// By the caller's upload that it came with.
    Upload(UploadId),
}

impl FileRef {
    /// The file's id, for one whose own things belong to `owner`.
    pub fn id(self, owner: &Owner) -> FileId {
        match self {
            Self::File(id) => id,
            Self::Upload(upload) => FileId::of(owner, upload),
        }
    }
}

impl fmt::Display for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(id) => write!(f, "file {id}"),
            Self::Upload(id) => write!(f, "upload {id}"),
        }
    }
}

/// What a client says of a file before it sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileAbout {
    /// Its name, for people.
    pub name: Option<String>,
    /// Its media type.
    pub media_type: Option<String>,
    /// How many bytes it has. Checked at the end, never relied upon.
    pub total: Option<u64>,
    /// Its SHA-256. Checked at the end.
    pub sha256: Option<[u8; 32]>,
}

impl FileAbout {
    /// Refuses what is not kept.
    ///
    /// # Errors
    /// `InvalidRequest`, naming what is too long.
    pub fn check(&self) -> Result<(), Error> {
        for (what, text) in [("filename", &self.name), ("contentType", &self.media_type)] {
            let bytes = text.as_ref().map_or(0, String::len);
            if bytes > NAME_BYTES_MAX {
                let why = format!("the {what} has {bytes} bytes, more than {NAME_BYTES_MAX}");
                return Err(ErrorCode::InvalidRequest.error(why));
            }
        }
        Ok(())
    }
}

/// A piece of an upload.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The upload it belongs to.
    pub upload: UploadId,
    /// What is said of the file; with it, the upload is begun where there is none.
    pub about: Option<FileAbout>,
    /// Where in the file its bytes begin, where that is said. One that does not begin where the
    /// upload has come to is refused. Without it, it follows what this connection sent before.
    pub offset: Option<u64>,
    /// Its number among those that this connection sent since it began or went on, where that is said.
    pub index: Option<u64>,
    /// The bytes of the chunk.
    pub data: Bytes,
    /// Whether they are compressed, as zlib or gzip does; a stream of its own.
    pub compressed: bool,
    /// Whether the upload ends with it.
    pub is_last: bool,
}

/// Does not show the bytes.
impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("upload", &self.upload)
            .field("about", &self.about)
            .field("offset", &self.offset)
            .field("index", &self.index)
            .field("bytes", &self.data.len())
            .field("compressed", &self.compressed)
            .field("is_last", &self.is_last)
            .finish()
    }
}

area! {
    /// What can be asked about files of clients.
    File(FileCommand => FileReply) {
        /// Begin an upload, or say how far it has come; what this connection sends then belongs to it.
        Open(Open) => File(FileRow),
        /// A piece of an upload.
        Write(Chunk) => Written(Written),
        /// How a file is, finished or not.
        Status(Status) => File(FileRow),
        /// Bytes of a finished file.
        Read(Read) => Piece(Box<Piece>),
        /// The caller's files, or for an admin everybody's; the latest begun first.
        List(List) => List(FileList),
        /// Remove a file, or give an upload up.
        Delete(Delete) => Deleted(FileId),
    }
}

/// The answer to a [`FileCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileReply {
    /// To `Open` and `Status`.
    File(FileRow),
    /// To `Write`.
    Written(Written),
    /// To `Read`.
    Piece(Box<Piece>),
    /// To `List`.
    List(FileList),
    /// To `Delete`.
    Deleted(FileId),
}

/// Begin an upload, or say how far it has come; what this connection sends then belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The upload.
    pub upload: UploadId,
    /// What is said of the file.
    pub about: FileAbout,
}

/// How a file is, finished or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub FileRef);

/// Bytes of a finished file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The file.
    pub file: FileRef,
    /// From where on.
    pub offset: u64,
    /// At most so many; [`PIECE_BYTES`] at most.
    pub bytes_max: usize,
}

/// The caller's files, or for an admin everybody's; the latest begun first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// At most so many, and [`LIST_MAX`] at most.
    pub limit: usize,
    /// Without the first so many.
    pub offset: u64,
}

/// Remove a file, or give an upload up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete(pub FileRef);

/// What became of a piece of an upload: it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// So many bytes have come in all, and there are more to come.
    Received(u64),
    /// It was the last one, and this is the file.
    Complete(FileRow),
}

/// Bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file.
    pub file: FileRow,
    /// Its bytes from the offset on; none where that is the end.
    pub data: Bytes,
}

/// Files that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileList {
    /// As many as were asked for.
    pub files: Vec<FileRow>,
    /// How many there are.
    pub total: u64,
}

/// A file, finished or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    /// Its id.
    pub id: FileId,
    /// The upload it came with.
    pub upload: UploadId,
    /// The owner of the file.
    pub owner: Owner,
    /// What was said of it; of a finished file, what is true of it.
    pub about: FileAbout,
    /// How many bytes there are; of an unfinished one, how far it has come.
    pub size: u64,
    /// Whether it is all there.
    pub is_complete: bool,
    /// When the upload began.
    pub created: Timestamp,
    /// When bytes were last added.
    pub updated: Timestamp,
}

/// What changes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// It is begun.
    Begin(FileRow),
    /// It is like this now; one that is not there stays so.
    Put(FileRow),
    /// It is no more.
    Remove(FileId),
}

impl FileCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::Open(_) | Self::Status(_) | Self::Delete(_) => 1,
            Self::Write(chunk) => 1 + chunk.data.len() / WEIGHED_BYTES,
            Self::Read(Read { bytes_max, .. }) => 1 + bytes_max / WEIGHED_BYTES,
            Self::List(_) => HEAVY,
        }
    }
}

/// That there is no such file, or none that the caller may know of.
pub fn no_such(what: FileRef) -> Error {
    ErrorCode::NotFound.error(format!("no such {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_its_owner_and_its_upload() {
        let upload = UploadId::parse("00112233-4455-6677-8899-AABBCCDDEEFF").unwrap();
        assert_eq!(upload.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        let (ada, bob) = (Owner::Credential("ada".into()), Owner::Credential("bob".into()));
        let ids = [FileId::of(&ada, upload), FileId::of(&bob, upload), FileId::of(&Owner::Admins, upload)];
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
        assert_eq!(FileRef::Upload(upload).id(&ada), ids[0]);
        assert_eq!(FileRef::File(ids[1]).id(&ada), ids[1], "an id is an id, whoever says it");
        assert_eq!(FileId::parse(&ids[0].to_string()), Some(ids[0]));
        assert_eq!(FileId::parse("../../etc/passwd"), None);
    }

    #[test]
    fn pieces_weigh_what_they_take() {
        let chunk = |bytes| {
            let data = Bytes::from(vec![0; bytes]);
            FileCommand::Write(Chunk {
                upload: UploadId::from_bytes([0; 16]),
                about: None,
                offset: None,
                index: None,
                data,
                compressed: false,
                is_last: false,
            })
        };
        assert_eq!((chunk(1).weight(), chunk(64 * 1024).weight(), chunk(10 << 20).weight()), (1, 2, 161));
    }

    #[test]
    fn names_that_are_too_long_are_refused() {
        let about = FileAbout { name: Some("x".repeat(NAME_BYTES_MAX + 1)), ..FileAbout::default() };
        assert!(about.check().unwrap_err().message.contains("filename"));
        FileAbout { name: Some("x".repeat(NAME_BYTES_MAX)), ..FileAbout::default() }.check().unwrap();
    }
}
