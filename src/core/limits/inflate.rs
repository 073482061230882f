//! Compressed bytes of a stranger, inflated a little at a time.
//!
//! What comes out is handed on in small pieces and counted before it is, so that a few bytes that
//! would become gigabytes cost no memory and end at the bound. zlib (RFC 1950), and gzip (RFC 1952)
//! by its magic number; both with their checksums.
//!
//! Deliberately absent: raw deflate, which nothing tells from garbage.

use flate2::{Crc, Decompress, FlushDecompress, Status};

/// How many bytes are handed on at once, at most.
const PIECE_BYTES: usize = 32 * 1024;

/// What gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Why it was not inflated to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<E> {
    /// It is broken, in this way.
    Broken(&'static str),
    /// It has more than the bound once inflated.
    TooLarge,
    /// Who took the bytes took no more.
    Taker(E),
}

/// Inflates one stream that is all of `packed`, and gives what comes out to `take`, at most
/// `bytes_max` in all. Says how many that were.
///
/// # Errors
/// Why not; what came out before that was given to `take`.
pub fn inflate<E>(
    packed: &[u8],
    bytes_max: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<u64, Fault<E>> {
    let is_gzip = packed.starts_with(&GZIP);
    let mut rest = if is_gzip { gzip_body(packed).map_err(Fault::Broken)? } else { packed };
    let mut inflater = Decompress::new(!is_gzip);
    let mut crc = Crc::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let (read, made) = (inflater.total_in(), inflater.total_out());
        let status = inflater
            .decompress(rest, &mut piece, FlushDecompress::None)
            .map_err(|_| Fault::Broken("it is no zlib or gzip stream, or is damaged"))?;
        let (read, made) = (inflater.total_in() - read, inflater.total_out() - made);
        // Neither is more than the slice it is of.
        rest = &rest[read as usize..];
        let bytes = &piece[..made as usize];
        if inflater.total_out() > bytes_max {
            return Err(Fault::TooLarge);
        }
        if is_gzip {
            crc.update(bytes);
        }
        if !bytes.is_empty() {
            take(bytes).map_err(Fault::Taker)?;
        }
        match status {
            Status::StreamEnd => break,
            Status::Ok | Status::BufError if read == 0 && made == 0 => {
                return Err(Fault::Broken("it is cut off"));
            }
            Status::Ok | Status::BufError => {}
        }
    }
    if is_gzip {
        let Some((trailer, behind)) = rest.split_at_checked(8) else {
            return Err(Fault::Broken("it is cut off"));
        };
        let mut expected = crc.sum().to_le_bytes().to_vec();
        expected.extend(crc.amount().to_le_bytes());
        if trailer != expected {
            return Err(Fault::Broken("its checksum is wrong"));
        }
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(Fault::Broken("something follows its end"));
    }
    Ok(inflater.total_out())
}

/// What follows the header of a gzip stream.
fn gzip_body(packed: &[u8]) -> Result<&[u8], &'static str> {
    const CUT: &str = "it is cut off";
    let (header, mut rest) = packed.split_at_checked(10).ok_or(CUT)?;
    let (method, flags) = (header[2], header[3]);
    if method != 8 || flags & 0xe0 != 0 {
        return Err("it is of an unknown kind of gzip");
    }
    let has = |bit: u8| flags & bit != 0;
    if has(4) {
        let (length, behind) = rest.split_at_checked(2).ok_or(CUT)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        rest = behind.get(length..).ok_or(CUT)?;
    }
    for _ in 0..usize::from(has(8)) + usize::from(has(16)) {
        let end = rest.iter().position(|byte| *byte == 0).ok_or(CUT)?;
        rest = &rest[end + 1..];
    }
    if has(2) { rest.get(2..).ok_or(CUT) } else { Ok(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use flate2::{GzBuilder, write::DeflateEncoder};
    use proptest::prelude::*;
    use std::io::Write;

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder: GzEncoder<Vec<u8>> = GzBuilder::new()
            .filename("a name")
            .comment("a comment")
            .extra(b"extra".to_vec())
            .write(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn all(packed: &[u8], bytes_max: u64) -> Result<Vec<u8>, Fault<()>> {
        let mut out = Vec::new();
        let count = inflate(packed, bytes_max, |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        })?;
        assert_eq!(count, out.len() as u64);
        Ok(out)
    }

    #[test]
    fn a_bomb_stops_at_its_bound_and_costs_no_memory() {
        let bomb = zlib(&vec![0; 200 << 20]);
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        let (mut seen, mut largest) = (0, 0);
        let stopped = inflate(&bomb, 1 << 20, |bytes| {
            seen += bytes.len();
            largest = largest.max(bytes.len());
            Ok::<_, ()>(())
        });
        assert_eq!(stopped, Err(Fault::TooLarge));
        assert!(seen <= 1 << 20 && largest <= PIECE_BYTES, "{seen} {largest}");
        assert_eq!(all(&zlib(&[7; 100]), 99), Err(Fault::TooLarge));
        assert_eq!(all(&zlib(&[7; 100]), 100).unwrap(), [7; 100]);
    }

    #[test]
    fn what_is_no_whole_stream_is_refused() {
        let text = b"a walrus, a walrus, a walrus".repeat(50);
        for packed in [zlib(&text), gzip(&text)] {
            for cut in 0..packed.len() {
                let refused = all(&packed[..cut], u64::MAX).unwrap_err();
                assert!(matches!(refused, Fault::Broken(_)), "cut at {cut}: {refused:?}");
            }
            let mut longer = packed.clone();
            longer.push(0);
            assert_eq!(all(&longer, u64::MAX), Err(Fault::Broken("something follows its end")));
            let mut damaged = packed.clone();
            let last = damaged.len() - 5;
            damaged[last] ^= 1;
            all(&damaged, u64::MAX).expect_err("its checksum");
        }
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(&text).unwrap();
        all(&raw.finish().unwrap(), u64::MAX).expect_err("nothing says what it is");
        let stopped = inflate(&zlib(&text), u64::MAX, |_| Err("no more"));
        assert_eq!(stopped, Err(Fault::Taker("no more")));
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_out(bytes in proptest::collection::vec(0_u8..4, 0..100_000)) {
            prop_assert_eq!(&all(&zlib(&bytes), bytes.len() as u64).unwrap(), &bytes);
            prop_assert_eq!(&all(&gzip(&bytes), bytes.len() as u64).unwrap(), &bytes);
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>(), flags in any::<u8>()) {
            let _ = all(&bytes, 1 << 20);
            let _ = all(&[&[0x78, 0x9c], &bytes[..]].concat(), 1 << 20);
            let _ = all(&[&[0x1f, 0x8b, 8, flags], &bytes[..]].concat(), 1 << 20);
        }
    }
}
