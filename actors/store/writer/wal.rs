//! The write-ahead log as a file, written anew after a sync that failed.
//!
//! **Why.** When a sync fails, the kernel tells it once, marks the pages it could not write as clean
//! and keeps them only as long as it likes: the next sync succeeds without having written them. A
//! frame counts only where every frame before it is whole, so whatever is acknowledged after such a
//! hole would be gone after a power cut, and SQLite by itself would go on behind it. A checkpoint
//! does not help: it changes the database before it is known that the frames it copies are on the
//! disk.
//!
//! **What is done.** Nothing is written or moved into the database until every committed frame was
//! read back, found whole by its checksum, written again in its place, and synced: now the pages
//! are dirty, and the sync means something. Frames behind the last commit, which are those of
//! transactions that were refused, are cut off first, so that a restart does not find them valid.
//! Where a frame can't be read back whole, what was written is lost: [`Rewrite::Lost`].
//!
//! The database itself needs no such care: after a failed sync of it SQLite counts the checkpoint
//! as not done and copies every frame again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Of the file.
const HEADER: usize = 32;
/// Of every frame, before its page.
const FRAME_HEADER: usize = 24;
/// Its last bit says which way round the checksum's words are.
const MAGIC: u32 = 0x377f_0682;
const PAGE_BYTES: std::ops::RangeInclusive<usize> = 512..=65536;

/// Why the file is not as it has to be.
#[derive(Debug)]
pub(super) enum Rewrite {
    /// The file can't be read or written: it may be later.
    Failed(io::Error),
    /// This frame, counted from 1, is not what was written; 0 is the header.
    Lost(u64),
}

impl From<io::Error> for Rewrite {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Shorter than what was committed to it.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => Self::Lost(0),
            _ => Self::Failed(error),
        }
    }
}

/// Writes the header and the first `frames` frames again and syncs them; what is behind is cut off.
/// Nobody else may write the file meanwhile.
///
/// # Errors
/// See [`Rewrite`].
pub(super) fn rewrite(path: &Path, frames: u64) -> Result<(), Rewrite> {
    if frames == 0 {
        // The next commit begins the file anew, header and all.
        return Ok(());
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut header = [0; HEADER];
    (&file).read_exact(&mut header)?;
    let chain = Chain::new(&header).ok_or(Rewrite::Lost(0))?;
    let frame_bytes = (FRAME_HEADER + chain.page_bytes) as u64;
    // Twice through the file rather than all of it in memory: nothing is touched unless all is whole.
    read_frames(&file, chain, frames, |_, _| Ok(()))?;
    file.set_len(HEADER as u64 + frames * frame_bytes)?;
    file.write_all_at(&header, 0)?;
    read_frames(&file, chain, frames, |frame, at| file.write_all_at(frame, at))?;
    file.sync_all()?;
    Ok(())
}

/// Reads frames in order, checks each, and hands it on with its place.
fn read_frames(
    file: &File,
    mut chain: Chain,
    frames: u64,
    mut each: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> Result<(), Rewrite> {
    let mut frame = vec![0; FRAME_HEADER + chain.page_bytes];
    for number in 1..=frames {
        let at = HEADER as u64 + (number - 1) * frame.len() as u64;
        file.read_exact_at(&mut frame, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Rewrite::Lost(number),
            _ => Rewrite::Failed(error),
        })?;
        if !chain.takes(&frame) {
            return Err(Rewrite::Lost(number));
        }
        each(&frame, at)?;
    }
    Ok(())
}

/// The checksum that runs through the file.
#[derive(Clone, Copy, Debug)]
struct Chain {
    big_endian: bool,
    page_bytes: usize,
    salts: [u8; 8],
    sums: [u32; 2],
}

impl Chain {
    fn new(header: &[u8; HEADER]) -> Option<Self> {
        let magic = word(header, 0);
        let page_bytes = usize::try_from(word(header, 8)).ok()?;
        let mut salts = [0; 8];
        salts.copy_from_slice(&header[16..24]);
        let mut chain = Self { big_endian: magic & 1 == 1, page_bytes, salts, sums: [0; 2] };
        chain.add(&header[..24]);
        let fits = magic & !1 == MAGIC && PAGE_BYTES.contains(&page_bytes) && page_bytes.is_power_of_two();
        (fits && chain.sums == [word(header, 24), word(header, 28)]).then_some(chain)
    }

    /// Whether the frame is the next of the file.
    fn takes(&mut self, frame: &[u8]) -> bool {
        self.add(&frame[..8]);
        self.add(&frame[FRAME_HEADER..]);
        frame[8..16] == self.salts && self.sums == [word(frame, 16), word(frame, 20)]
    }

    /// `bytes` are a multiple of 8.
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks_exact(8) {
            let read = |at: usize| {
                let word = word(pair, at);
                if self.big_endian { word } else { word.swap_bytes() }
            };
            self.sums[0] = self.sums[0].wrapping_add(read(0)).wrapping_add(self.sums[1]);
            self.sums[1] = self.sums[1].wrapping_add(read(4)).wrapping_add(self.sums[0]);
        }
    }
}

/// The big-endian word at a place.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;
    use std::path::PathBuf;

    /// A database with some committed frames; how many.
    fn database() -> (tempfile::TempDir, PathBuf, Connection, u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0;
             CREATE TABLE t (x); INSERT INTO t VALUES ('one'); INSERT INTO t VALUES ('two');",
        )
        .unwrap();
        let frames: i64 = db.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1)).unwrap();
        let wal = folder.path().join("x.db-wal");
        (folder, wal, db, u64::try_from(frames).unwrap())
    }

    #[test]
    fn what_is_whole_stays_as_it_is_and_what_is_behind_is_cut_off() {
        let (_folder, wal, db, frames) = database();
        let before = std::fs::read(&wal).unwrap();
        std::fs::write(&wal, [before.as_slice(), &[7; 5000]].concat()).unwrap();
        rewrite(&wal, frames).unwrap();
        assert_eq!(std::fs::read(&wal).unwrap(), before);
        db.execute_batch("INSERT INTO t VALUES ('three')").unwrap();
        let count: i64 = db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(count, 3);
    }

    #[test]
    fn a_frame_that_is_not_what_was_written_is_noticed_and_nothing_is_touched() {
        let (_folder, wal, _db, frames) = database();
        let before = std::fs::read(&wal).unwrap();
        let frame_bytes = (before.len() - HEADER) / usize::try_from(frames).unwrap();
        for frame in 0..usize::try_from(frames).unwrap() {
            let mut stale = before.clone();
            // As a page that was never written leaves it.
            stale[HEADER + frame * frame_bytes..][..512].fill(0);
            std::fs::write(&wal, [stale.as_slice(), &[7; 99]].concat()).unwrap();
            let lost = rewrite(&wal, frames).unwrap_err();
            assert!(matches!(lost, Rewrite::Lost(at) if at == frame as u64 + 1), "{lost:?}");
            assert_eq!(std::fs::read(&wal).unwrap().len(), stale.len() + 99);
        }
        std::fs::write(&wal, &before[..before.len() - 1]).unwrap();
        assert!(matches!(rewrite(&wal, frames), Err(Rewrite::Lost(at)) if at == frames));
        std::fs::write(&wal, [0; HEADER]).unwrap();
        assert!(matches!(rewrite(&wal, frames), Err(Rewrite::Lost(0))));
    }
}
