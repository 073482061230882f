//! One upload on its way to the disk. Lives on the threads for files while it is written to.
//!
//! What a piece brings is on the disk and counted, or nothing of it is: where anything goes wrong
//! with it the file is cut back to where it began. Every few megabytes the file is synced; as far as
//! that, an upload goes on after a crash and after a power cut.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawmux_core::error::limit::Limit;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::limits::inflate::{Fault, inflate};
use clawmux_core::memory::file::{Chunk, FileAbout, INFLATED_BYTES_MAX, UploadId};
use sha2::{Digest, Sha256};

use super::allowance::Allowance;

/// After so many bytes the file is synced.
const SYNC_BYTES: u64 = 8 << 20;

/// An upload.
#[derive(Debug)]
pub(super) struct Writing {
    upload: UploadId,
    about: FileAbout,
    path: PathBuf,
    allowance: Arc<Allowance>,
    /// None until it is written to, and when it was not for a while.
    file: Option<File>,
    /// Of what was received; none where that has to be read for it.
    hasher: Option<Sha256>,
    received: u64,
    synced: u64,
    next_index: Option<u64>,
}

/// What a piece made of the upload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// So many bytes have come.
    Some(u64),
    /// All of it is on the disk, with this digest.
    All([u8; 32]),
}

/// Why a piece was not taken.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Error,
    /// Whether nothing can become of the upload any more.
    pub(super) is_hopeless: bool,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, is_hopeless: false }
    }
}

/// Why bytes were not written.
enum Stop {
    /// More than was announced.
    TooMany,
    /// More than is left of the owner's.
    Quota,
    Disk(io::Error),
}

impl Writing {
    /// For an upload that was begun, of which so many bytes are on the disk for sure.
    pub(super) fn new(
        upload: UploadId,
        about: FileAbout,
        path: PathBuf,
        allowance: Arc<Allowance>,
        received: u64,
    ) -> Self {
        Self {
            upload,
            about,
            path,
            allowance,
            file: None,
            hasher: None,
            received,
            synced: received,
            next_index: None,
        }
    }

    /// How many bytes have come.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// How many of them no crash and no power cut takes.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    /// Lets the file go until something comes.
    pub(super) fn rest(&mut self) {
        self.file = None;
    }

    /// Takes a piece.
    pub(super) fn take(&mut self, chunk: &Chunk) -> Result<Taken, Refusal> {
        self.follows(chunk)?;
        self.ready()?;
        let begin = self.received;
        let hasher = self.hasher.clone();
        if let Err(error) = self.write(chunk) {
            self.allowance.give_back(self.received - begin);
            (self.received, self.hasher) = (begin, hasher);
            // Where this can't be done either, it is done as it is opened.
            let _ = self.file.take().map(|file| file.set_len(begin));
            return Err(error.into());
        }
        if self.received - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        if !chunk.is_last {
            return Ok(Taken::Some(self.received));
        }
        self.end().map(Taken::All)
    }

    /// Whether a piece is the next one.
    fn follows(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let Self { upload, received, .. } = *self;
        if let Some(offset) = chunk.offset {
            if offset != received {
                let why = format!("upload {upload} goes on at byte {received}, not {offset}");
                return Err(self.conflict(why));
            }
            self.next_index = chunk.index;
        }
        if let (Some(index), Some(next)) = (chunk.index, self.next_index)
            && index != next
        {
            let why = format!("upload {upload}: chunk {next} was expected, not {index}");
            return Err(self.conflict(why));
        }
        self.next_index = chunk.index.or(self.next_index).map(|index| index.saturating_add(1));
        Ok(())
    }

    /// With the file open at its end, and the digest of what is in it.
    fn ready(&mut self) -> Result<(), Error> {
        if self.file.is_none() {
            self.file = Some(self.open().map_err(|error| self.failed(&error))?);
        }
        if self.hasher.is_none() {
            self.hasher = Some(self.digest().map_err(|error| self.failed(&error))?);
        }
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&self.path)?;
        if file.metadata()?.len() < self.received {
            return Err(io::Error::other("what came of it before is gone: give it up and begin anew"));
        }
        file.set_len(self.received)?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    }

    /// Reads what is there.
    fn digest(&self) -> io::Result<Sha256> {
        let mut hasher = Sha256::new();
        let mut file = File::open(&self.path)?;
        let mut piece = vec![0; 128 * 1024];
        let mut left = self.received;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let read = file.read(&mut piece[..most])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            hasher.update(&piece[..read]);
            left -= read as u64;
        }
        Ok(hasher)
    }

    fn write(&mut self, chunk: &Chunk) -> Result<(), Error> {
        // Without a byte there is nothing to inflate: the end of an upload that is all there.
        if !chunk.compressed || chunk.data.is_empty() {
            return self.put(&chunk.data).map_err(|stop| self.stopped(stop));
        }
        let most = INFLATED_BYTES_MAX;
        match inflate(&chunk.data, most, |bytes| self.put(bytes)) {
            Ok(_) => Ok(()),
            Err(Fault::Taker(stop)) => Err(self.stopped(stop)),
            Err(Fault::Broken(why)) => Err(ErrorCode::InvalidRequest
                .error(format!("upload {}: a compressed chunk can't be inflated: {why}", self.upload))),
            Err(Fault::TooLarge) => {
                let why =
                    format!("upload {}: a compressed chunk has more than {most} bytes inflated", self.upload);
                let limit = Detail::Limit { name: Limit::InflatedBytes, limit: most };
                Err(ErrorCode::TooLarge.error(why).with(limit))
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let count = bytes.len() as u64;
        if self.about.total.is_some_and(|total| self.received + count > total) {
            return Err(Stop::TooMany);
        }
        if !self.allowance.take(count) {
            return Err(Stop::Quota);
        }
        // Counted as it is taken: who gives it up gives all of that back.
        self.received += count;
        let file = self.file.as_mut().ok_or_else(|| Stop::Disk(io::ErrorKind::NotFound.into()))?;
        file.write_all(bytes).map_err(Stop::Disk)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }

    fn stopped(&self, stop: Stop) -> Error {
        let upload = self.upload;
        match stop {
            Stop::TooMany => {
                let total = self.about.total.unwrap_or_default();
                let why = format!("upload {upload} brings more than the {total} bytes that were announced");
                ErrorCode::InvalidRequest.error(why)
            }
            Stop::Quota => over_quota(&self.allowance),
            Stop::Disk(error) => self.failed(&error),
        }
    }

    /// Has the disk keep what came.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.sync_data() {
            // What was written since may be anything now.
            let error = self.failed(&error);
            self.allowance.give_back(self.received - self.synced);
            (self.received, self.hasher, self.file) = (self.synced, None, None);
            return Err(error);
        }
        self.synced = self.received;
        Ok(())
    }

    /// Checks the whole, and has the disk keep it with its name.
    fn end(&mut self) -> Result<[u8; 32], Refusal> {
        let Self { upload, received, .. } = *self;
        if let Some(total) = self.about.total.filter(|total| *total != received) {
            let why = format!("upload {upload} ends after {received} of {total} bytes");
            return Err(ErrorCode::InvalidRequest.error(why).with(Detail::Received(received)).into());
        }
        let hasher = self.hasher.clone().unwrap_or_default();
        let digest: [u8; 32] = hasher.finalize().into();
        if let Some(said) = self.about.sha256.filter(|said| *said != digest) {
            let (digest, said) = (hex(&digest), hex(&said));
            let why =
                format!("upload {upload} has the SHA-256 {digest}, not {said} as was said: it is dropped");
            return Err(Refusal { error: ErrorCode::InvalidRequest.error(why), is_hopeless: true });
        }
        self.sync()?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| self.failed(&error))?;
        Ok(digest)
    }

    fn conflict(&self, why: String) -> Error {
        ErrorCode::Conflict.error(why).with(Detail::Received(self.received))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error { message: format!("upload {}: {}", self.upload, failed(error).message), ..failed(error) }
    }
}

/// That an owner has no room left.
pub(super) fn over_quota(allowance: &Allowance) -> Error {
    let (used, quota) = (allowance.used(), allowance.quota());
    let why = format!("of {quota} bytes for files {used} are used, unfinished uploads included: delete some");
    ErrorCode::TooLarge.error(why).with(Detail::Limit { name: Limit::FileQuotaBytes, limit: quota })
}

/// What the disk says.
pub(super) fn failed(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::Unavailable
            .error("the disk is full: what came before is kept, go on when there is room"),
        _ => ErrorCode::Unavailable.error(format!("the file can't be used: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn writing(folder: &Path, about: FileAbout, quota: u64) -> Writing {
        let allowance = Arc::new(Allowance::new(quota, 0));
        Writing::new(UploadId::from_bytes([1; 16]), about, folder.join("f"), allowance, 0)
    }

    fn chunk(data: &[u8]) -> Chunk {
        Chunk {
            upload: UploadId::from_bytes([1; 16]),
            about: None,
            offset: None,
            index: None,
            data: Bytes::copy_from_slice(data),
            compressed: false,
            is_last: false,
        }
    }

    fn last(data: &[u8]) -> Chunk {
        Chunk { is_last: true, ..chunk(data) }
    }

    #[test]
    fn pieces_become_a_file_with_its_digest_also_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = writing(folder.path(), FileAbout::default(), 1000);
        assert_eq!(first.take(&chunk(b"abc")).unwrap(), Taken::Some(3));
        first.sync().unwrap();
        assert_eq!(first.take(&chunk(b"lost")).unwrap(), Taken::Some(7));
        // Another process goes on from what was synced.
        let allowance = Arc::new(Allowance::new(1000, 3));
        let about = FileAbout {
            total: Some(6),
            sha256: Some(Sha256::digest("abcdef").into()),
            ..FileAbout::default()
        };
        let mut second = Writing::new(first.upload, about, first.path.clone(), allowance, 3);
        let wrong = second.take(&Chunk { offset: Some(7), ..chunk(b"def") }).unwrap_err();
        assert_eq!((wrong.error.code, wrong.error.detail), (ErrorCode::Conflict, Some(Detail::Received(3))));
        let end = second.take(&Chunk { offset: Some(3), ..last(b"def") }).unwrap();
        assert_eq!(end, Taken::All(Sha256::digest("abcdef").into()));
        assert_eq!(std::fs::read(&second.path).unwrap(), b"abcdef");
    }

    #[test]
    fn what_is_not_taken_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut writing = writing(folder.path(), FileAbout { total: Some(8), ..FileAbout::default() }, 6);
        writing.take(&Chunk { index: Some(0), ..chunk(b"abc") }).unwrap();
        let more = writing.take(&chunk(b"defghi")).unwrap_err().error;
        assert!(more.message.contains("more than the 8 bytes"), "{more}");
        let quota = writing.take(&chunk(b"defg")).unwrap_err().error;
        assert!(
            matches!(quota.detail, Some(Detail::Limit { name: Limit::FileQuotaBytes, limit: 6 })),
            "{quota:?}"
        );
        let broken = writing.take(&Chunk { compressed: true, ..chunk(b"defg") }).unwrap_err().error;
        assert_eq!(broken.code, ErrorCode::InvalidRequest);
        let gap = writing.take(&Chunk { index: Some(7), ..chunk(b"d") }).unwrap_err().error;
        assert!(gap.message.contains("expected, not 7"), "{gap}");
        let short = writing.take(&last(b"")).unwrap_err();
        assert!(!short.is_hopeless && short.error.message.contains("after 3 of 8"), "{short:?}");
        assert_eq!((writing.received, writing.allowance.used()), (3, 3));
        assert_eq!(std::fs::metadata(&writing.path).unwrap().len(), 3, "at once");
        writing.take(&Chunk { offset: Some(3), ..chunk(b"d") }).unwrap();
        assert_eq!(std::fs::read(&writing.path).unwrap(), b"abcd", "as if nothing else had come");
    }

    #[test]
    fn another_digest_than_was_said_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let about = FileAbout { sha256: Some([7; 32]), ..FileAbout::default() };
        let refused = writing(folder.path(), about, 100).take(&last(b"abc")).unwrap_err();
        assert!(refused.is_hopeless && refused.error.message.contains("0707"), "{refused:?}");
    }
}
