//! xeno's lines as they are on the wire: JSON-RPC requests read with tolerance, answers and
//! notifications written in the order of members that its clients know.
//!
//! A line is never turned into a tree: the members that matter are picked out of its text, so that one
//! of 16 MiB costs no more than itself. Where a member is given twice the last counts.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::dialect::Introduction;
use crate::dialect::json::{clip, json};
use crate::prompt::attachment::ATTACHMENTS_MAX;
use crate::prompt::local_file::{Form, LocalFile};

/// The code of every refusal.
const REFUSED: i32 = -32000;

/// The code of a line that is not JSON.
const PARSE_ERROR: i32 = -32700;

/// The longest id and `requestId`, in bytes of JSON: they are kept while something is owed, and come
/// back with it.
pub(super) const ID_BYTES_MAX: usize = 64 * 1024;

/// The longest name of a method that is repeated in full, in bytes.
const METHOD_BYTES_MAX: usize = 4096;

/// JSON as it came.
pub(super) type Raw<'a> = &'a RawValue;

/// One line of a client.
#[derive(Debug)]
pub(super) enum Incoming<'a> {
    /// A request that wants an answer.
    Request {
        /// Its id, as it came.
        id: &'a str,
        /// Its method.
        method: String,
        /// Its parameters.
        params: Option<Raw<'a>>,
    },
    /// It is not JSON.
    NotJson,
    /// JSON that is no request, or one that wants no answer.
    Dropped,
}

/// Reads a line.
pub(super) fn read(line: &str) -> Incoming<'_> {
    let Ok(value) = serde_json::from_str::<Raw<'_>>(line) else { return Incoming::NotJson };
    let Some([version, id, method, params]) = members(value, ["jsonrpc", "id", "method", "params"]) else {
        return Incoming::Dropped;
    };
    let version = version.and_then(text);
    match (version.as_deref(), id, method.and_then(text)) {
        (Some("2.0"), Some(id), Some(method)) if id.get() != "null" => {
            Incoming::Request { id: id.get(), method, params }
        }
        _ => Incoming::Dropped,
    }
}

/// The members of these names; none where it is no object.
pub(super) fn members<'a, const N: usize>(value: Raw<'a>, names: [&str; N]) -> Option<[Option<Raw<'a>>; N]> {
    struct Wanted<'n, const N: usize>([&'n str; N]);

    impl<'a, const N: usize> Visitor<'a> for Wanted<'_, N> {
        type Value = [Option<Raw<'a>>; N];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = [None; N];
            while let Some(Text(name)) = map.next_key()? {
                match self.0.iter().position(|wanted| *wanted == name) {
                    Some(at) => found[at] = Some(map.next_value()?),
                    None => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(found)
        }
    }

    let text = value.get();
    if !text.starts_with('{') {
        return None;
    }
    serde_json::Deserializer::from_str(text).deserialize_map(Wanted(names)).ok()
}

/// The text of a JSON string; none where it is something else.
pub(super) fn text(value: Raw<'_>) -> Option<String> {
    serde_json::from_str::<Text>(value.get()).ok().map(|Text(text)| text)
}

/// Text as JSON has it. Half a surrogate pair, which is no text, becomes replacement characters.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
            }
        }

        input.deserialize_bytes(Bytes)
    }
}

/// A question of `gateway.query`, as it is to be passed on.
#[derive(Debug)]
pub(super) struct Query<'a> {
    /// How the client calls it, as JSON, as it came.
    pub(super) request: &'a str,
    /// What is asked.
    pub(super) content: String,
    /// In which session.
    pub(super) channel: Option<String>,
    /// What it brings along: no more than are looked at.
    pub(super) local_files: Vec<LocalFile>,
    /// What the client says of itself.
    pub(super) introduction: Introduction,
}

/// The most of what a client says of itself that is kept, in bytes.
const SAID_BYTES_MAX: usize = 128;

/// Reads the parameters of `gateway.query`.
///
/// # Errors
/// What is wrong with the first member that is wrong, in the order that is documented.
pub(super) fn query(params: Option<Raw<'_>>) -> Result<Query<'_>, &'static str> {
    const NAMES: [&str; 4] = ["attachments", "requestId", "content", "context"];
    let found = params.and_then(|params| members(params, NAMES));
    let [attachments, request, content, context] = found.ok_or("Invalid query params.")?;
    let local_files = attachments.map(local_files).transpose()?.unwrap_or_default();
    let request = request.filter(|request| {
        request.get().len() <= ID_BYTES_MAX && text(request).is_some_and(|request| !request.is_empty())
    });
    let request = request.ok_or("Invalid query requestId.")?.get();
    let content = content.and_then(text).filter(|content| !content.trim_matches(is_space).is_empty());
    let content = content.ok_or("Invalid query content.")?;
    const CONTEXT: [&str; 4] = ["type", "channelId", "userId", "metadata"];
    let context = context.and_then(|context| members(context, CONTEXT));
    let [kind, channel, user, metadata] = context.ok_or("Invalid query context.")?;
    if kind.and_then(text).as_deref() != Some("rpc") {
        return Err("Invalid query context type.");
    }
    let channel = channel.and_then(text).filter(|channel| !channel.is_empty());
    let said = |value: Option<Raw<'_>>| {
        let mut said = value.and_then(text).filter(|said| !said.is_empty())?;
        said.truncate(said.floor_char_boundary(SAID_BYTES_MAX));
        Some(said)
    };
    let client = metadata.and_then(|metadata| members(metadata, ["clientName"])).and_then(|[client]| client);
    let introduction = Introduction { client: said(client), user: said(user) };
    Ok(Query { request, content, channel, local_files, introduction })
}

/// What the clients' language takes for white space.
fn is_space(c: char) -> bool {
    (c.is_whitespace() && c != '\u{85}') || c == '\u{feff}'
}

/// The `attachments` of a query: all are looked at, and one more is kept than a prompt may have.
fn local_files(value: Raw<'_>) -> Result<Vec<LocalFile>, &'static str> {
    struct List<'w>(&'w mut Option<&'static str>);

    impl<'a> Visitor<'a> for List<'_> {
        type Value = Vec<LocalFile>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut kept = Vec::new();
            while let Some(value) = list.next_element::<Raw<'a>>()? {
                match local_file(value) {
                    Ok(local_file) if kept.len() <= ATTACHMENTS_MAX => kept.push(local_file),
                    Ok(_) => {}
                    Err(why) => {
                        *self.0 = Some(why);
                        return Err(A::Error::custom(why));
                    }
                }
            }
            Ok(kept)
        }
    }

    impl<'a> DeserializeSeed<'a> for List<'_> {
        type Value = Vec<LocalFile>;

        fn deserialize<D: Deserializer<'a>>(self, input: D) -> Result<Self::Value, D::Error> {
            input.deserialize_seq(self)
        }
    }

    let mut why = None;
    let read = List(&mut why).deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    read.map_err(|_| why.unwrap_or("Invalid query attachments payload."))
}

/// One of them; optional members of a wrong type are as good as absent.
fn local_file(value: Raw<'_>) -> Result<LocalFile, &'static str> {
    const NAMES: [&str; 6] = ["type", "path", "mimeType", "fileName", "caption", "size"];
    let [form, path, media_type, name, caption, size] =
        members(value, NAMES).ok_or("Invalid query attachment.")?;
    let bad = "Invalid query attachment payload.";
    let form = form.and_then(text).and_then(|form| Form::from_name(&form)).ok_or(bad)?;
    let path = path.and_then(text).filter(|path| !path.is_empty()).ok_or(bad)?;
    Ok(LocalFile {
        form,
        path,
        media_type: media_type.and_then(text),
        name: name.and_then(text).filter(|name| !name.is_empty()),
        caption: caption.and_then(text).filter(|caption| !caption.is_empty()),
        size: size.and_then(|size| serde_json::from_str(size.get()).ok()),
    })
}

/// Whether parameters of which nothing is used are absent or an object.
pub(super) fn is_nothing(params: Option<Raw<'_>>) -> bool {
    params.is_none_or(|params| members(params, []).is_some())
}

/// The answer to a request: `result` is JSON.
pub(super) fn answer(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// The refusal of a request.
pub(super) fn refusal(id: &str, message: &str) -> String {
    error(id, REFUSED, message)
}

/// What a line that is not JSON is answered with.
pub(super) fn not_json() -> String {
    error("null", PARSE_ERROR, "Parse error")
}

/// The words for a method that is not there.
pub(super) fn no_method(method: &str) -> String {
    let named = if method.len() <= METHOD_BYTES_MAX { method } else { clip(method) };
    format!("Method not found: {named}")
}

fn error(id: &str, code: i32, message: &str) -> String {
    let message = json(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
}

/// A notification about a query, which `request` is the JSON of the name of; `rest` are further members
/// of its parameters, each with a comma before it.
pub(super) fn notification(method: &str, request: &str, rest: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"gateway.{method}","params":{{"requestId":{request}{rest}}}}}"#)
}
