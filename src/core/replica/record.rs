//! A change as bytes, and back.
//!
//! A record is a line of JSON; what prompts brought along follows the line as it is. Events stand in it as they do in
//! the log ([`log::record`](crate::conversation::log::record)), everything else by the names of its fields. Records of one version can be read by the
//! daemons of the next one: a cluster writes those of a version when all its daemons can read them.
//!
//! A record that is too large for the log has an **envelope** there: its stamp, and the [`Blob`] that it is. A daemon
//! that knows nothing of envelopes takes them for records of a later version, and stops before them.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, Value as Json, to_raw_value};

use super::blob::{Blob, ENVELOPE_BYTES_MAX};
use super::value::{Value, take, unreadable};
use super::write::{Appended, Write};
use crate::cluster::stamp::{RecordId, Stamp, Token};
use crate::conversation::event::{Event, Logged};
use crate::conversation::log::record as event_record;
use crate::conversation::log::segment::Segment;
use crate::conversation::log::usage::UsageRecord;
use crate::conversation::outbox::ToSay;
use crate::error::{Error, ErrorCode};
use crate::ids::{RunId, Seq, SessionKey};
use crate::time::Timestamp;

/// The version of records that are written.
pub const VERSION: u32 = 1;

/// That of envelopes, the latest that is read. Nodes say by their heartbeats which one they read: none is written
/// that somebody can't.
pub const ENVELOPE_VERSION: u32 = 2;

/// A change, and who wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Under which token it was written, and which of its owner's records it is.
    pub stamp: Stamp,
    /// The change.
    pub write: Write,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    v: u32,
    token: u64,
    record: u64,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Serialize, Deserialize)]
struct AppendLine<'a> {
    #[serde(borrow)]
    session: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", borrow)]
    settled: Vec<SettledLine<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", borrow)]
    events: Vec<EventLine<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reserve: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    to_say: Vec<Json>,
}

#[derive(Serialize, Deserialize)]
struct SettledLine<'a> {
    #[serde(borrow)]
    run: Cow<'a, str>,
    #[serde(borrow)]
    segments: Vec<SegmentLine<'a>>,
}

#[derive(Serialize, Deserialize)]
struct SegmentLine<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    first: u64,
    at: u64,
    #[serde(borrow)]
    body: Cow<'a, RawValue>,
}

#[derive(Serialize, Deserialize)]
struct EventLine<'a> {
    seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    run: Option<Cow<'a, str>>,
    at: u64,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    body: Cow<'a, RawValue>,
    /// How many bytes each attachment has behind the line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    data: Vec<usize>,
}

impl Record {
    /// It as bytes.
    ///
    /// # Errors
    /// `Internal` where an event of it can't be written, which is a fault of the program's.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut data: Vec<&Bytes> = Vec::new();
        let (kind, body) = match &self.write {
            Write::Append(appended) => (APPEND, to_raw_value(&appended.to_line(&mut data)?)),
            write => {
                let (kind, json) = write.to_json();
                (kind, to_raw_value(&json))
            }
        };
        let body = body.map_err(unwritable)?;
        let line = Line {
            v: VERSION,
            token: self.stamp.token.0,
            record: self.stamp.record.0,
            kind: kind.into(),
            body: &body,
        };
        let mut bytes = serde_json::to_vec(&line).map_err(unwritable)?;
        if !data.is_empty() {
            bytes.push(b'\n');
            data.iter().for_each(|data| bytes.extend_from_slice(data));
        }
        Ok(bytes)
    }

    /// The record that is these bytes.
    ///
    /// # Errors
    /// `Unavailable` where a later version of clawmux wrote it, or where it is the envelope of a record;
    /// `InvalidRequest` where it is no record.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, Error> {
        let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        let mut data = bytes.slice((end + 1).min(bytes.len())..);
        let line: Line<'_> = serde_json::from_slice(&bytes[..end]).map_err(unreadable)?;
        if line.v > ENVELOPE_VERSION {
            let why = format!(
                "a record has version {}, and this clawmux reads up to {ENVELOPE_VERSION}: update it",
                line.v
            );
            return Err(ErrorCode::Unavailable.error(why));
        }
        if line.kind == ENVELOPE {
            let blob = blob_of(&line)?;
            let why = format!("a record of {} bytes is not here, only what stands for it", blob.bytes);
            return Err(ErrorCode::Unavailable.error(why));
        }
        let write = match &*line.kind {
            APPEND => {
                let appended: AppendLine<'_> = serde_json::from_str(line.body.get()).map_err(unreadable)?;
                Write::Append(Appended::from_line(appended, &mut data)?)
            }
            kind => Write::from_json(kind, serde_json::from_str(line.body.get()).map_err(unreadable)?)?,
        };
        if !data.is_empty() {
            return Err(unreadable("it has data of nothing"));
        }
        let stamp = Stamp { token: Token(line.token), record: RecordId(line.record) };
        Ok(Self { stamp, write })
    }
}

impl Record {
    /// What stands in the log for the record with this stamp, whose bytes are this blob.
    ///
    /// # Errors
    /// `Internal` where it can't be written, which is a fault of the program's.
    pub fn envelope(stamp: Stamp, blob: &Blob) -> Result<Vec<u8>, Error> {
        let body = to_raw_value(&blob.to_json()).map_err(unwritable)?;
        let line = Line {
            v: ENVELOPE_VERSION,
            token: stamp.token.0,
            record: stamp.record.0,
            kind: ENVELOPE.into(),
            body: &body,
        };
        serde_json::to_vec(&line).map_err(unwritable)
    }

    /// The blob that is meant by an envelope; none where these bytes are none.
    pub fn enveloped(bytes: &[u8]) -> Option<Blob> {
        let may_be = bytes.len() <= ENVELOPE_BYTES_MAX && memchr::memmem::find(bytes, br#""blob""#).is_some();
        let line: Line<'_> = may_be.then(|| serde_json::from_slice(bytes).ok()).flatten()?;
        (line.kind == ENVELOPE && line.v <= ENVELOPE_VERSION).then(|| blob_of(&line).ok()).flatten()
    }
}

fn blob_of(line: &Line<'_>) -> Result<Blob, Error> {
    let body = serde_json::from_str(line.body.get()).map_err(unreadable)?;
    Blob::from_json(body).and_then(Blob::checked)
}

impl Record {
    /// The stamp of the record that is these bytes, whatever else is in it; none where it has none.
    pub fn stamp_of(bytes: &[u8]) -> Option<Stamp> {
        #[derive(Deserialize)]
        struct Stamped {
            token: u64,
            record: u64,
        }
        let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        let Stamped { token, record } = serde_json::from_slice(&bytes[..end]).ok()?;
        Some(Stamp { token: Token(token), record: RecordId(record) })
    }
}

impl Record {
    /// What calls of models cost by the record that is these bytes; empty where that is not what it is about.
    pub fn usage_of(bytes: &Bytes) -> Vec<UsageRecord> {
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(borrow)]
            kind: Cow<'a, str>,
        }
        match serde_json::from_slice(bytes) {
            Ok(Kind { kind }) if kind == "usage" => match Self::from_bytes(bytes) {
                Ok(Self { write: Write::RecordUsage { records, .. }, .. }) => records,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

impl Record {
    /// Whether something is said over channels by the record that is these bytes. Where it is not about that it may seem
    /// so, if a text has those words.
    pub fn may_say(bytes: &[u8]) -> bool {
        let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        memchr::memmem::find(&bytes[..end], br#""to_say":["#).is_some()
    }
}

impl Appended {
    fn to_line<'a>(&'a self, data: &mut Vec<&'a Bytes>) -> Result<AppendLine<'a>, Error> {
        let mut body = Vec::new();
        let mut raw = |write: &mut dyn FnMut(&mut Vec<u8>) -> &'static str| {
            body.clear();
            let kind = write(&mut body);
            let body = String::from_utf8(body.clone()).map_err(unwritable)?;
            Ok::<_, Error>((kind, RawValue::from_string(body).map_err(unwritable)?))
        };
        let mut settled = Vec::with_capacity(self.settled.len());
        for (run, segments) in &self.settled {
            let mut lines = Vec::with_capacity(segments.len());
            for segment in segments {
                let (kind, body) = raw(&mut |body| {
                    segment.write(body);
                    event_record::streamed_kind(segment.of())
                })?;
                lines.push(SegmentLine {
                    kind: kind.into(),
                    first: segment.first_seq().0,
                    at: segment.at().as_millis(),
                    body: Cow::Owned(body),
                });
            }
            settled.push(SettledLine { run: run.as_str().into(), segments: lines });
        }
        let mut events = Vec::with_capacity(self.events.len());
        for logged in self.events.iter() {
            let (kind, body) = raw(&mut |body| event_record::write(&logged.event, body))?;
            let attached = match &logged.event {
                Event::Prompted { attachments, .. } => attachments.as_slice(),
                _ => &[],
            };
            data.extend(attached.iter().map(|attachment| attachment.data()));
            events.push(EventLine {
                seq: logged.seq.0,
                first: (logged.first_seq != logged.seq).then_some(logged.first_seq.0),
                run: logged.run.as_ref().map(|run| run.as_str().into()),
                at: logged.at.as_millis(),
                kind: kind.into(),
                body: Cow::Owned(body),
                data: attached.iter().map(|attachment| attachment.data().len()).collect(),
            });
        }
        Ok(AppendLine {
            session: self.session.as_str().into(),
            settled,
            events,
            reserve: self.reserve.map(|reserve| reserve.0),
            to_say: self.to_say.iter().map(Value::to_json).collect(),
        })
    }

    fn from_line(line: AppendLine<'_>, data: &mut Bytes) -> Result<Self, Error> {
        let mut settled = Vec::with_capacity(line.settled.len());
        for SettledLine { run, segments } in line.settled {
            let segment = |line: SegmentLine<'_>| {
                let of = event_record::streamed(&line.kind)
                    .ok_or_else(|| unreadable(format_args!("{:?} is no kind of text", line.kind)))?;
                let (first, at) = (Seq(line.first), Timestamp::from_millis(line.at));
                Segment::read(of, first, at, line.body.get().as_bytes()).map_err(unreadable)
            };
            let segments = segments.into_iter().map(segment).collect::<Result<_, _>>()?;
            settled.push((RunId::from(&*run), segments));
        }
        let mut events = Vec::with_capacity(line.events.len());
        for line in line.events {
            if event_record::streamed(&line.kind).is_some() {
                return Err(unreadable("text is no event of a record"));
            }
            let mut event = event_record::read(&line.kind, line.body.get().as_bytes()).map_err(unreadable)?;
            if let Event::Prompted { attachments, .. } = &mut event {
                if attachments.len() != line.data.len() {
                    return Err(unreadable("it has not the data of its attachments"));
                }
                for (attachment, bytes) in attachments.iter_mut().zip(line.data) {
                    if bytes > data.len() {
                        return Err(unreadable("data of an attachment is missing"));
                    }
                    attachment.restore(data.split_to(bytes));
                }
            }
            events.push(Logged {
                first_seq: Seq(line.first.unwrap_or(line.seq)),
                seq: Seq(line.seq),
                run: line.run.as_deref().map(RunId::from),
                at: Timestamp::from_millis(line.at),
                event,
            });
        }
        Ok(Self {
            session: SessionKey::parse(&line.session).map_err(unreadable)?,
            settled,
            events: events.into(),
            reserve: line.reserve.map(Seq),
            to_say: line.to_say.into_iter().map(ToSay::from_json).collect::<Result<_, _>>()?,
        })
    }
}

const APPEND: &str = "append";
const ENVELOPE: &str = "blob";

/// Changes other than that of [`APPEND`], each with its kind and the names of its parts.
macro_rules! kinds {
    ($($kind:literal => $variant:ident $(($value:ident))? $({ $($field:ident),+ })?),+ $(,)?) => {
        impl Write {
            fn to_json(&self) -> (&'static str, Json) {
                let mut object = serde_json::Map::new();
                let kind = match self {
                    Self::Append(_) => APPEND,
                    $(Self::$variant $(($value))? $({ $($field),+ })? => {
                        $(super::value::put(&mut object, stringify!($value), $value);)?
                        $($(super::value::put(&mut object, stringify!($field), $field);)+)?
                        $kind
                    })+
                };
                (kind, Json::Object(object))
            }

            fn from_json(kind: &str, body: Json) -> Result<Self, Error> {
                let mut object = super::value::object(body)?;
                Ok(match kind {
                    $($kind => Self::$variant
                        $((take(&mut object, stringify!($value))?))?
                        $({ $($field: take(&mut object, stringify!($field))?),+ })?,)+
                    _ => return Err(unreadable(format_args!("there is no change {kind:?}"))),
                })
            }
        }
    };
}

kinds! {
    "take_over" => TakeOver(session),
    "guard" => Guard(guard),
    "delete" => Delete { session, unused_since },
    "agents" => Agents(changes),
    "tokens" => Tokens(changes),
    "devices" => Devices(changes),
    "jobs" => Jobs(changes),
    "file" => File(change),
    "channel" => Channel { channel, now, changes },
    "plugin_value" => PluginValue { namespace, key, value },
    "agreed_tools" => AgreedTools { server, tools },
    "begin_call" => BeginCall { call, reserved },
    "usage" => RecordUsage { call, records },
    "call" => RecordCall(call),
    "remember" => Remember { memory, by_operator },
    "learn" => Learn(facts),
    "import" => Import(memories),
    "forget" => Forget { id, owner },
    "forget_all" => ForgetAll(owner),
    "vectors" => KeepVectors { model, vectors },
    "learning" => SpendOnLearning { at, tokens },
}

fn unwritable(why: impl std::fmt::Display) -> Error {
    ErrorCode::Internal.error(format!("a record can't be written: {why}"))
}
