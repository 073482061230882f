//! Binary frames: a header of 22 bytes, metadata as JSON, and the payload.
//!
//! ```text
//! [1 version] [1 flags] [16 correlation id] [4 length of the metadata, big endian] [metadata] [payload]
//! ```
//!
//! The correlation id is a UUID and names a request, as the `id` of a text frame does. A message is
//! complete with a frame that does not say that more follow, or says that it is the last. Each
//! compressed payload is a stream of its own; it is inflated where it is written, not here.
//!
//! What can't be understood is refused with the correlation id, where there is one to be read. Nothing
//! that is sent is compressed: the bytes of most files are already, and those who want less on the
//! wire can have that of their transport.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;

use super::super::json::{clip, object};
use crate::error::{Error, ErrorCode};
use crate::hex::from_hex;
use crate::memory::file::UploadId;

/// The length of the header.
const HEADER_BYTES: usize = 22;

/// The version there is.
const VERSION: u8 = 1;

/// The most metadata that is read, in bytes.
const META_BYTES_MAX: usize = 64 * 1024;

/// The payload is compressed.
const COMPRESSED: u8 = 0x01;
/// More frames follow.
pub(super) const CHUNKED: u8 = 0x02;
/// It is the last frame.
pub(super) const FINAL: u8 = 0x04;

/// A binary frame that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    pub(super) id: UploadId,
    pub(super) is_compressed: bool,
    /// Whether the message ends with it.
    pub(super) is_last: bool,
    pub(super) meta: Meta,
    pub(super) payload: Bytes,
}

/// What the metadata says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) method: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) filename: Option<String>,
    /// -1 stands for unknown.
    total_size: Option<i64>,
    pub(super) chunk_index: Option<u64>,
    #[serde(default)]
    extra: Extra,
}

/// What clawmux reads of the free part of the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Extra {
    offset: Option<u64>,
    sha256: Option<String>,
}

impl Meta {
    /// How many bytes the whole has, where that is known.
    pub(super) fn total(&self) -> Option<u64> {
        // What is negative was found to be -1.
        self.total_size.and_then(|total| u64::try_from(total).ok())
    }

    /// Where in the whole the payload begins.
    pub(super) fn offset(&self) -> Option<u64> {
        self.extra.offset
    }

    /// The digest of the whole.
    pub(super) fn sha256(&self) -> Option<[u8; 32]> {
        // What is none was refused.
        self.extra.sha256.as_deref().and_then(from_hex)
    }
}

/// Why a frame was refused, and the correlation id where there is one to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) id: Option<UploadId>,
    pub(super) error: Error,
}

/// Reads a frame.
///
/// # Errors
/// `InvalidRequest`, saying what is wrong with it.
pub(super) fn decode(frame: &Bytes) -> Result<Binary, Refused> {
    let id = frame.get(2..18).map(|bytes| {
        let mut id = [0; 16];
        id.copy_from_slice(bytes);
        UploadId::from_bytes(id)
    });
    let refuse = |why: String| {
        let error = ErrorCode::InvalidRequest.error(format!("invalid binary frame: {why}"));
        Refused { id, error }
    };
    let (Some(id), Some(length)) = (id, frame.get(18..HEADER_BYTES)) else {
        return Err(refuse(format!("it has {} bytes, its header alone has {HEADER_BYTES}", frame.len())));
    };
    if frame[0] != VERSION {
        return Err(refuse(format!("version {} is unknown, {VERSION} is the only one", frame[0])));
    }
    let flags = frame[1];
    if flags & !(COMPRESSED | CHUNKED | FINAL) != 0 {
        return Err(refuse(format!("flags 0x{flags:02x} are unknown, those there are make 0x07")));
    }
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
    let left = frame.len() - HEADER_BYTES;
    if length > left.min(META_BYTES_MAX) {
        return Err(refuse(format!(
            "its metadata has {length} bytes, where {left} are left and {META_BYTES_MAX} are allowed"
        )));
    }
    let (meta, payload) =
        (frame.slice(HEADER_BYTES..HEADER_BYTES + length), frame.slice(HEADER_BYTES + length..));
    let meta = read(&meta).map_err(|why| refuse(format!("its metadata can't be read: {}", clip(&why))))?;
    Ok(Binary {
        id,
        is_compressed: flags & COMPRESSED != 0,
        is_last: flags & CHUNKED == 0 || flags & FINAL != 0,
        meta,
        payload,
    })
}

fn read(meta: &[u8]) -> Result<Meta, String> {
    if meta.is_empty() {
        return Ok(Meta::default());
    }
    let text = std::str::from_utf8(meta).map_err(|_| "it is no UTF-8")?;
    let meta: Meta = object(text)?;
    if meta.total_size.is_some_and(|total| total < -1) {
        return Err("totalSize: a size is not negative (-1 = unknown)".into());
    }
    if meta.extra.sha256.as_deref().is_some_and(|digest| from_hex(digest).is_none()) {
        return Err("extra.sha256: a digest has 64 hexadecimal digits".into());
    }
    Ok(meta)
}

/// Writes a frame; the metadata has to be JSON.
pub(super) fn encode(id: UploadId, flags: u8, meta: &str, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + meta.len() + payload.len());
    frame.put_u8(VERSION);
    frame.put_u8(flags);
    frame.put_slice(id.as_bytes());
    // Ours is short.
    frame.put_u32(u32::try_from(meta.len()).unwrap_or(0));
    frame.put_slice(meta.as_bytes());
    frame.put_slice(payload);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "00112233-4455-6677-8899-aabbccddeeff";

    fn id() -> UploadId {
        UploadId::parse(ID).unwrap()
    }

    /// Field by field, as a client would.
    fn frame(version: u8, flags: u8, meta_length: u32, rest: &[u8]) -> Bytes {
        let mut frame = vec![version, flags];
        frame.extend(0..0);
        frame.extend([0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]);
        frame.extend([0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        frame.extend(meta_length.to_be_bytes());
        frame.extend(rest);
        frame.into()
    }

    fn with_meta(meta: &str) -> Result<Binary, Refused> {
        decode(&frame(1, 0, meta.len() as u32, meta.as_bytes()))
    }

    #[test]
    fn a_frame_is_read_field_by_field() {
        let meta = r#"{"method":"file.upload","filename":"a İ.txt","contentType":"text/plain","totalSize":7,
            "chunkIndex":3,"extra":{"offset":4,"sha256":"00000000000000000000000000000000000000000000000000000000000000FF","x":1},"y":[]}"#;
        let read = decode(&frame(1, 3, meta.len() as u32, &[meta.as_bytes(), b"abc"].concat())).unwrap();
        assert_eq!((read.id.to_string().as_str(), &read.payload[..]), (ID, &b"abc"[..]));
        assert!(read.is_compressed && !read.is_last);
        let meta = &read.meta;
        assert_eq!(meta.method.as_deref(), Some("file.upload"));
        assert_eq!(
            (meta.filename.as_deref(), meta.content_type.as_deref()),
            (Some("a İ.txt"), Some("text/plain"))
        );
        assert_eq!((meta.total(), meta.chunk_index, meta.offset()), (Some(7), Some(3), Some(4)));
        assert_eq!(meta.sha256().unwrap()[31], 255);
    }

    #[test]
    fn a_message_is_complete_unless_more_is_announced() {
        for (flags, is_last) in
            [(0, true), (1, true), (2, false), (3, false), (4, true), (5, true), (6, true), (7, true)]
        {
            assert_eq!(decode(&frame(1, flags, 0, b"x")).unwrap().is_last, is_last, "{flags}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_id_where_it_can_be_read() {
        let whole = frame(1, 0, 0, b"");
        for length in 0..HEADER_BYTES {
            let refused = decode(&whole.slice(..length)).unwrap_err();
            assert_eq!(refused.id, (length >= 18).then(id), "{length}");
            assert!(refused.error.message.contains(&format!("{length} bytes")), "{refused:?}");
        }
        for (frame, why) in [
            (frame(0, 0, 0, b""), "version 0"),
            (frame(2, 0, 0, b""), "version 2"),
            (frame(1, 8, 0, b""), "flags 0x08"),
            (frame(1, 0xff, 0, b""), "flags 0xff"),
            (frame(1, 0, 1, b""), "metadata has 1 bytes"),
            (frame(1, 0, u32::MAX, b"{}"), "metadata has 4294967295 bytes"),
            (frame(1, 0, 70_000, &[b' '; 70_000]), "65536 are allowed"),
            (frame(1, 0, 2, b"\xff\xff"), "UTF-8"),
            (frame(1, 0, 2, b"{]"), "can't be read"),
        ] {
            let refused = decode(&frame).unwrap_err();
            assert_eq!((refused.id, refused.error.code), (Some(id()), ErrorCode::InvalidRequest));
            assert!(refused.error.message.contains(why), "{refused:?}");
        }
    }

    #[test]
    fn metadata_is_checked() {
        assert_eq!(with_meta("").unwrap().meta, Meta::default());
        assert_eq!(with_meta(r#"{"totalSize":-1}"#).unwrap().meta.total(), None);
        for meta in [
            "[]",
            "7",
            r#"{"method":7}"#,
            r#"{"filename":{}}"#,
            r#"{"totalSize":-2}"#,
            r#"{"totalSize":1.5}"#,
            r#"{"totalSize":"1"}"#,
            r#"{"chunkIndex":-1}"#,
            r#"{"extra":[]}"#,
            r#"{"extra":{"offset":-1}}"#,
            r#"{"extra":{"sha256":"12"}}"#,
            r#"{"extra":{"sha256":7}}"#,
        ] {
            let refused = with_meta(meta).expect_err(meta);
            assert_eq!((refused.id, refused.error.code), (Some(id()), ErrorCode::InvalidRequest), "{meta}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes in any::<[u8; 16]>(), flags in 0_u8..8, name in any::<String>(), payload in any::<Vec<u8>>()) {
            let meta = serde_json::json!({ "filename": name }).to_string();
            let read = decode(&encode(UploadId::from_bytes(bytes), flags, &meta, &payload)).unwrap();
            prop_assert_eq!(read.id.as_bytes(), &bytes);
            prop_assert_eq!(read.meta.filename, Some(name));
            prop_assert_eq!(&read.payload[..], &payload[..]);
            prop_assert_eq!(read.is_compressed, flags & 1 != 0);
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>(), length in 0_u32..300) {
            let _ = decode(&bytes.clone().into());
            let _ = decode(&frame(1, 2, length, &bytes));
            if let Ok(read) = decode(&frame(1, 0, length, &bytes)) {
                prop_assert!(read.payload.len() + length as usize == bytes.len());
            }
        }
    }
}
