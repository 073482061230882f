//! `telegram`: a channel adapter for bots of Telegram.
//!
//! Updates come by a webhook or by `poll`. The bot's token is the host's: a URL says `{telegram}` where it
//! belongs. The setting `api` names another server of the Bot API than Telegram's own.

use extism_pdk::{Error, FnResult, HttpRequest, config, http, plugin_fn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Telegram's own server.
const API: &str = "https://api.telegram.org";

/// So many UTF-16 code units fit in one message.
const UNITS: usize = 4096;

/// The documents that are taken for pictures.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// A message, for the host.
#[derive(Serialize)]
struct Message {
    content: String,
    peer: String,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<Sender>,
    context: Context,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
}

#[derive(Serialize)]
struct Sender {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// What an answer needs to know of the message.
#[derive(Serialize, Deserialize)]
struct Context {
    chat: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<i64>,
}

#[derive(Serialize)]
struct Attachment {
    url: String,
    mime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// What is to be sent, and where to. Only `format_outgoing` is given a content.
#[derive(Deserialize)]
struct Outgoing {
    #[serde(default)]
    content: String,
    #[serde(default)]
    peer: String,
    #[serde(default)]
    context: Value,
}

/// How far updates were read already, and how long to wait for the next.
#[derive(Deserialize)]
struct Poll {
    #[serde(default)]
    cursor: Value,
    #[serde(default)]
    timeout_s: f64,
}

/// What the adapter is, for the host.
#[plugin_fn]
pub fn describe() -> FnResult<&'static str> {
    Ok(
        r#"{"type":"channel_adapter","channel":"telegram","description":"A Telegram bot: private chats, groups, topics and channels; text and pictures."}"#,
    )
}

/// The message of an update; nothing where it has none.
#[plugin_fn]
pub fn parse_incoming(raw: String) -> FnResult<String> {
    let api = api()?;
    let path_of = |file: &str| {
        let found = call(&api, "getFile", &json!({ "file_id": file })).map_err(|error| error.to_string())?;
        found["file_path"].as_str().map(Into::into).ok_or_else(|| "it has no path".into())
    };
    match incoming(&raw, &api, path_of).map_err(Error::msg)? {
        Some(message) => Ok(serde_json::to_string(&message)?),
        None => Ok(String::new()),
    }
}

/// The requests that send a text.
#[plugin_fn]
pub fn format_outgoing(input: String) -> FnResult<String> {
    Ok(outgoing(&input, &api()?).map_err(Error::msg)?.to_string())
}

/// The request that shows the bot as typing.
#[plugin_fn]
pub fn format_typing(input: String) -> FnResult<String> {
    Ok(typing(&input, &api()?).map_err(Error::msg)?.to_string())
}

/// The updates after the cursor, once there are any or the time is over.
// The program of the tests needs the `poll` of libc, whose place this would take.
#[cfg(not(test))]
#[plugin_fn]
pub fn poll(input: String) -> FnResult<String> {
    let asked: Poll = serde_json::from_str(&input)?;
    let updates = call(&api()?, "getUpdates", &wanted(&asked))?;
    Ok(polled(updates, asked.cursor).to_string())
}

/// Where the Bot API is.
fn api() -> Result<String, Error> {
    let api = config::get("api")?.unwrap_or_default();
    let api = api.trim().trim_end_matches('/');
    Ok(if api.is_empty() { API } else { api }.into())
}

/// Where one of its methods is.
fn url(api: &str, method: &str) -> String {
    format!("{api}/bot{{telegram}}/{method}")
}

/// Calls a method and answers with its result.
fn call(api: &str, method: &str, parameters: &Value) -> Result<Value, Error> {
    let request = HttpRequest::new(url(api, method))
        .with_method("POST")
        .with_header("content-type", "application/json");
    let response = http::request(&request, Some(parameters.to_string()))?;
    result(method, response.status_code(), &response.body()).map_err(Error::msg)
}

/// What a method answered, or why it did not.
fn result(method: &str, status: u16, body: &[u8]) -> Result<Value, String> {
    let Ok(mut answer) = serde_json::from_slice::<Value>(body) else {
        return Err(format!("{method}: status {status}, and no JSON"));
    };
    if answer["ok"] == true {
        return Ok(answer["result"].take());
    }
    let code = answer["error_code"].as_u64().unwrap_or(status.into());
    let why = answer["description"].as_str().unwrap_or("no reason given");
    let more = match (answer["parameters"]["retry_after"].as_u64(), code) {
        (Some(seconds), _) => format!(" (try again in {seconds} s)"),
        (None, 409) => " (a webhook is set for this bot, or something else polls it: use one only)".into(),
        (None, 401 | 404) => " (is its token right?)".into(),
        _ => String::new(),
    };
    Err(format!("{method}: {code} {why}{more}"))
}

/// What getUpdates is asked for.
fn wanted(asked: &Poll) -> Value {
    let mut wanted = json!({
        "timeout": asked.timeout_s.max(0.0) as u64,
        "allowed_updates": ["message", "channel_post"],
    });
    if let Some(offset) = asked.cursor.as_i64() {
        wanted["offset"] = offset.into();
    }
    wanted
}

/// Updates, and the cursor after them.
fn polled(updates: Value, cursor: Value) -> Value {
    let updates = if let Value::Array(updates) = updates { updates } else { Vec::new() };
    let last = updates.iter().filter_map(|update| update["update_id"].as_i64()).max();
    let cursor = last.map_or(cursor, |last| last.saturating_add(1).into());
    json!({ "updates": updates, "cursor": cursor })
}

/// A file of a message: what Telegram calls it, its type, and its name.
struct File<'a> {
    id: &'a str,
    mime: &'a str,
    name: Option<&'a str>,
}

/// The message of an update. `path_of` finds out where a file is.
fn incoming(
    raw: &str,
    api: &str,
    path_of: impl FnOnce(&str) -> Result<String, String>,
) -> Result<Option<Message>, String> {
    let update: Value = serde_json::from_str(raw).map_err(|error| format!("not an update: {error}"))?;
    let Some(message) = ["message", "channel_post"].iter().find_map(|kind| object(&update, kind)) else {
        return Ok(None);
    };
    let (Some(chat), Some(number)) = (message["chat"]["id"].as_i64(), message["message_id"].as_i64()) else {
        return Ok(None);
    };
    // Two bots would answer each other for ever. Who writes as a chat seems to be a bot and is none.
    if message["from"]["is_bot"] == true && !message["sender_chat"].is_object() {
        return Ok(None);
    }
    let file = picture(message);
    let said = text(&message["text"]).or_else(|| file.as_ref().and_then(|_| text(&message["caption"])));
    let mut content = match (said, &file) {
        (Some(said), _) => said.to_owned(),
        (None, Some(file)) if file.name.is_some() => "(an image)".into(),
        (None, Some(_)) => "(a photo)".into(),
        (None, None) => return Ok(None),
    };
    let mut attachments = Vec::new();
    if let Some(File { id, mime, name }) = file {
        match path_of(id) {
            Ok(path) => attachments.push(Attachment {
                url: format!("{api}/file/bot{{telegram}}/{}", encoded(&path)),
                mime: mime.into(),
                name: name.map(Into::into),
            }),
            // What was said is worth more than the picture.
            Err(why) => content.push_str(&format!("\n(the picture is not available: {why})")),
        }
    }
    let thread = message["message_thread_id"].as_i64().filter(|_| message["is_topic_message"] == true);
    Ok(Some(Message {
        content,
        peer: thread.map_or(chat.to_string(), |thread| format!("{chat}/{thread}")),
        id: format!("{chat}:{number}"),
        sender: sender(message),
        context: Context { chat, thread, message: Some(number) },
        attachments,
    }))
}

/// A field that is an object.
fn object<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.get(name).filter(|value| value.is_object())
}

/// A text that says something.
fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.trim().is_empty())
}

/// The picture of a message: the largest size of a photo, or a document that is one.
fn picture(message: &Value) -> Option<File<'_>> {
    let area = |size: &Value| {
        let side = |name: &str| size[name].as_u64().unwrap_or_default();
        side("width").saturating_mul(side("height"))
    };
    let photo = message["photo"].as_array().and_then(|sizes| sizes.iter().max_by_key(|size| area(size)));
    if let Some(id) = photo.and_then(|size| size["file_id"].as_str()) {
        return Some(File { id, mime: "image/jpeg", name: None });
    }
    let document = &message["document"];
    let mime = PICTURES.into_iter().find(|mime| document["mime_type"] == *mime)?;
    let name = document["file_name"].as_str().unwrap_or("image");
    Some(File { id: document["file_id"].as_str()?, mime, name: Some(name) })
}

/// Who wrote a message. Where that is a chat, `from` is somebody made up.
fn sender(message: &Value) -> Option<Sender> {
    let who = ["sender_chat", "from"].iter().find_map(|kind| object(message, kind))?;
    let user = text(&who["username"]).map(|name| format!("@{name}"));
    let names = ["title", "first_name", "last_name"].iter().filter_map(|part| text(&who[*part]));
    let name = names.chain(user.as_deref()).collect::<Vec<_>>().join(" ");
    Some(Sender { id: who["id"].as_i64()?.to_string(), name: Some(name).filter(|name| !name.is_empty()) })
}

/// A path as it may stand in a URL.
fn encoded(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// Where something is sent: as its message said, or as its peer says where no message did.
fn target(outgoing: &Outgoing) -> Result<Context, String> {
    if let Ok(context) = Context::deserialize(&outgoing.context) {
        return Ok(context);
    }
    let (chat, thread) = match outgoing.peer.split_once('/') {
        Some((chat, thread)) => (chat, Some(thread)),
        None => (outgoing.peer.as_str(), None),
    };
    let known = match (chat.parse(), thread.map(str::parse).transpose()) {
        (Ok(chat), Ok(thread)) => Some(Context { chat, thread, message: None }),
        _ => None,
    };
    known.ok_or_else(|| format!("{:?} is no chat of Telegram: a number, or CHAT/TOPIC", outgoing.peer))
}

/// The requests that send a text: in parts where it is long, the first as a reply in groups.
fn outgoing(input: &str, api: &str) -> Result<Value, String> {
    let outgoing: Outgoing = serde_json::from_str(input).map_err(|error| error.to_string())?;
    let Context { chat, thread, message } = target(&outgoing)?;
    let mut parts = split(&outgoing.content, UNITS, char::len_utf16);
    if parts.is_empty() {
        parts.push("(no text)");
    }
    let requests = parts.into_iter().enumerate().map(|(number, part)| {
        let mut body = json!({ "chat_id": chat, "text": part });
        if let Some(thread) = thread {
            body["message_thread_id"] = thread.into();
        }
        if let Some(message) = message.filter(|_| number == 0 && chat < 0) {
            body["reply_parameters"] = json!({ "message_id": message, "allow_sending_without_reply": true });
        }
        json!({ "url": url(api, "sendMessage"), "method": "POST", "body": body })
    });
    Ok(requests.collect())
}

/// The request that shows the bot as typing.
fn typing(input: &str, api: &str) -> Result<Value, String> {
    let outgoing: Outgoing = serde_json::from_str(input).map_err(|error| error.to_string())?;
    let Context { chat, thread, .. } = target(&outgoing)?;
    let mut body = json!({ "chat_id": chat, "action": "typing" });
    if let Some(thread) = thread {
        body["message_thread_id"] = thread.into();
    }
    Ok(json!({ "url": url(api, "sendChatAction"), "method": "POST", "body": body }))
}

/// A text in parts that weigh `most` each at most, none of them blank, cut where a reader would cut.
fn split(text: &str, most: usize, weight: impl Fn(char) -> usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = past_blanks(text);
    while !rest.is_empty() {
        let mut sum = 0;
        let over = rest.char_indices().find(|(at, c)| {
            sum += weight(*c);
            sum > most && *at > 0
        });
        let (part, after) = rest.split_at(over.map_or(rest.len(), |(end, _)| cut(rest, end)));
        if !part.trim().is_empty() {
            parts.push(part.trim_end());
        }
        rest = past_blanks(after);
    }
    parts
}

/// Where to cut a text that fits up to `end`: after a paragraph, a line or a sentence where that leaves
/// half of it or more, else after a word, else right there.
fn cut(text: &str, end: usize) -> usize {
    let (mut paragraph, mut line, mut sentence, mut word) = (0, 0, 0, 0);
    let mut ended = false;
    for (at, c) in text.char_indices().take_while(|(at, _)| *at <= end) {
        if c.is_whitespace() {
            word = at;
            if ended {
                sentence = at;
            }
            if c == '\n' {
                line = at;
                if text[at..].starts_with("\n\n") {
                    paragraph = at;
                }
            }
        }
        // What ends a sentence in Chinese and Japanese needs no blank after it.
        if matches!(c, '\u{3002}' | '\u{ff01}' | '\u{ff1f}') && at + c.len_utf8() <= end {
            sentence = at + c.len_utf8();
        }
        let closes = matches!(c, '"' | '\'' | ')' | ']' | '\u{bb}' | '\u{201d}' | '\u{2019}');
        ended = matches!(c, '.' | '!' | '?' | '\u{2026}') || ended && closes;
    }
    let good = [paragraph, line, sentence].into_iter().find(|at| *at > end / 2);
    good.unwrap_or(if word > 0 { word } else { end })
}

/// A text without the blanks before it; those that indent its first line stay.
fn past_blanks(text: &str) -> &str {
    let words = text.len() - text.trim_start().len();
    match text[..words].rfind('\n') {
        Some(end) if words < text.len() => &text[end + 1..],
        _ => &text[words..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the host would be given for an update, and the file that was asked for.
    fn parsed(update: Value) -> (Value, Option<String>) {
        let mut asked = None;
        let message = incoming(&update.to_string(), API, |file| {
            asked = Some(file.to_owned());
            Ok("photos/file_7.jpg".into())
        });
        (serde_json::to_value(message.unwrap()).unwrap(), asked)
    }

    fn ada() -> Value {
        json!({ "id": 1111111, "is_bot": false, "first_name": "Ada", "last_name": "Lovelace",
            "username": "ada", "language_code": "en" })
    }

    fn private() -> Value {
        json!({ "id": 1111111, "first_name": "Ada", "last_name": "Lovelace", "username": "ada",
            "type": "private" })
    }

    fn sizes() -> Value {
        json!([
            { "file_id": "small", "file_unique_id": "a", "file_size": 1253, "width": 90, "height": 67 },
            { "file_id": "large", "file_unique_id": "c", "file_size": 90000, "width": 1280, "height": 960 },
            { "file_id": "middle", "file_unique_id": "b", "file_size": 15000, "width": 320, "height": 240 },
        ])
    }

    fn sent(input: Value) -> Vec<Value> {
        match outgoing(&input.to_string(), API).unwrap() {
            Value::Array(requests) => requests,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_private_chat() {
        let update = json!({ "update_id": 10000, "message": { "message_id": 1365, "date": 1441645532,
            "chat": private(), "from": ada(), "text": "/start  now\n",
            "entities": [{ "type": "bot_command", "offset": 0, "length": 6 }] } });
        assert_eq!(
            parsed(update),
            (
                json!({ "content": "/start  now\n", "peer": "1111111", "id": "1111111:1365",
                "sender": { "id": "1111111", "name": "Ada Lovelace @ada" },
                "context": { "chat": 1111111, "message": 1365 } }),
                None,
            )
        );
    }

    #[test]
    fn a_group() {
        let update = json!({ "update_id": 10001, "message": { "message_id": 7, "date": 1441645532,
            "chat": { "id": -1001234567890123_i64, "type": "supergroup", "title": "Engines" },
            "from": { "id": 5000000001_i64, "is_bot": false, "first_name": "Bob" },
            // A reply in a group without topics has a thread and is in no topic.
            "message_thread_id": 5, "reply_to_message": { "message_id": 5, "text": "before" },
            "text": "hello @our_bot", "something_new": { "deep": [1, null] } } });
        assert_eq!(
            parsed(update).0,
            json!({ "content": "hello @our_bot", "peer": "-1001234567890123",
            "id": "-1001234567890123:7", "sender": { "id": "5000000001", "name": "Bob" },
            "context": { "chat": -1001234567890123_i64, "message": 7 } })
        );
    }

    #[test]
    fn a_topic() {
        let update = json!({ "update_id": 10002, "message": { "message_id": 80, "date": 1,
            "chat": { "id": -100200, "type": "supergroup", "title": "Forum", "is_forum": true },
            "from": ada(), "message_thread_id": 42, "is_topic_message": true, "text": "hi" } });
        let (message, _) = parsed(update);
        assert_eq!(message["peer"], "-100200/42");
        assert_eq!(message["context"], json!({ "chat": -100200, "thread": 42, "message": 80 }));
    }

    #[test]
    fn the_largest_size_of_a_photo() {
        let mut update = json!({ "update_id": 10003, "message": { "message_id": 9, "date": 1,
            "chat": private(), "from": ada(), "photo": sizes(), "caption": "what is this?" } });
        let (message, asked) = parsed(update.clone());
        assert_eq!(asked.as_deref(), Some("large"));
        assert_eq!(message["content"], "what is this?");
        assert_eq!(
            message["attachments"],
            json!([{
            "url": "https://api.telegram.org/file/bot{telegram}/photos/file_7.jpg", "mime": "image/jpeg" }])
        );
        update["message"]["caption"] = " ".into();
        assert_eq!(parsed(update).0["content"], "(a photo)");
    }

    #[test]
    fn documents_that_are_pictures() {
        let update = |mime: &str| {
            json!({ "update_id": 10004, "message": { "message_id": 9, "date": 1, "chat": private(),
                "from": ada(), "document": { "file_id": "doc", "file_unique_id": "d", "file_size": 4,
                "file_name": "plan.png", "mime_type": mime } } })
        };
        let (message, asked) = parsed(update("image/webp"));
        assert_eq!(asked.as_deref(), Some("doc"));
        assert_eq!(message["content"], "(an image)");
        assert_eq!(message["attachments"][0]["mime"], "image/webp");
        assert_eq!(message["attachments"][0]["name"], "plan.png");
        for other in ["application/pdf", "image/svg+xml", "video/mp4", ""] {
            assert_eq!(parsed(update(other)), (Value::Null, None), "{other}");
        }
    }

    #[test]
    fn what_was_said_comes_without_its_picture() {
        let update = json!({ "update_id": 1, "message": { "message_id": 9, "chat": private(), "from": ada(),
            "photo": sizes(), "caption": "look" } });
        let why = "getFile: 400 Bad Request: file is too big";
        let message = incoming(&update.to_string(), API, |_| Err(why.into())).unwrap().unwrap();
        assert_eq!(message.content, format!("look\n(the picture is not available: {why})"));
        assert!(message.attachments.is_empty());
    }

    #[test]
    fn paths_of_files_stay_paths() {
        assert_eq!(encoded("documents/file_1.PNG"), "documents/file_1.PNG");
        assert_eq!(encoded("a b?{telegram}#%\u{e4}"), "a%20b%3F%7Btelegram%7D%23%25%C3%A4");
    }

    #[test]
    fn posts_of_channels() {
        let update = json!({ "update_id": 10005, "channel_post": { "message_id": 2, "date": 1,
            "chat": { "id": -100300, "type": "channel", "title": "News", "username": "news" },
            "sender_chat": { "id": -100300, "type": "channel", "title": "News", "username": "news" },
            "author_signature": "Ada", "text": "extra" } });
        assert_eq!(
            parsed(update).0,
            json!({ "content": "extra", "peer": "-100300", "id": "-100300:2",
            "sender": { "id": "-100300", "name": "News @news" },
            "context": { "chat": -100300, "message": 2 } })
        );
    }

    #[test]
    fn who_writes_as_a_chat_is_that_chat() {
        let update = json!({ "update_id": 1, "message": { "message_id": 3, "text": "by an admin",
            "chat": { "id": -100200, "type": "supergroup", "title": "Engines" },
            "from": { "id": 1087968824, "is_bot": true, "first_name": "Group",
                "username": "GroupAnonymousBot" },
            "sender_chat": { "id": -100200, "type": "supergroup", "title": "Engines" } } });
        assert_eq!(parsed(update).0["sender"], json!({ "id": "-100200", "name": "Engines" }));
    }

    #[test]
    fn nothing_to_do() {
        let message = |more: Value| {
            let mut message = json!({ "message_id": 4, "date": 1, "chat": private(), "from": ada() });
            message.as_object_mut().unwrap().append(more.as_object().cloned().as_mut().unwrap());
            message
        };
        let text = message(json!({ "text": "hi" }));
        for update in [
            json!({ "update_id": 1, "edited_message": text }),
            json!({ "update_id": 1, "edited_channel_post": text }),
            json!({ "update_id": 1, "callback_query": { "id": "1", "from": ada(), "message": text } }),
            json!({ "update_id": 1, "my_chat_member": { "chat": private() } }),
            json!({ "update_id": 1, "message": message(json!({ "text": " \n" })) }),
            json!({ "update_id": 1, "message": message(json!({ "sticker": { "file_id": "s" } })) }),
            json!({ "update_id": 1, "message": message(json!({ "voice": { "file_id": "v", "duration": 1,
                "mime_type": "audio/ogg" }, "caption": "listen" })) }),
            json!({ "update_id": 1, "message": message(json!({ "new_chat_members": [ada()] })) }),
            // A GIF of Telegram's is a film.
            json!({ "update_id": 1, "message": message(json!({ "animation": { "file_id": "g" },
                "document": { "file_id": "g", "mime_type": "video/mp4" } })) }),
            json!({ "update_id": 1, "message": message(json!({ "text": "hi",
                "from": { "id": 9, "is_bot": true, "first_name": "Another" } })) }),
            json!({ "update_id": 1, "message": message(json!({ "photo": [] })) }),
            json!({ "update_id": 1, "message": message(json!({ "photo": "?", "document": [] })) }),
            json!({ "update_id": 1, "message": { "text": "without a chat", "message_id": 1 } }),
            json!({ "update_id": 1, "message": null }),
            json!({ "update_id": 1 }),
            json!([]),
            json!("text"),
            Value::Null,
        ] {
            assert_eq!(parsed(update.clone()), (Value::Null, None), "{update}");
        }
        assert!(incoming("no JSON", API, |_| unreachable!()).err().unwrap().starts_with("not an update: "));
    }

    #[test]
    fn polling() {
        let asked = |input: Value| serde_json::from_value::<Poll>(input).unwrap();
        let kinds = json!(["message", "channel_post"]);
        assert_eq!(
            wanted(&asked(json!({ "cursor": null, "timeout_s": 25 }))),
            json!({ "timeout": 25, "allowed_updates": kinds }),
        );
        assert_eq!(
            wanted(&asked(json!({ "cursor": 7_000_000_000_i64, "timeout_s": 2.5 }))),
            json!({ "timeout": 2, "allowed_updates": kinds, "offset": 7_000_000_000_i64 }),
        );
        assert_eq!(wanted(&asked(json!({ "timeout_s": -1 })))["timeout"], 0);
        let updates = json!([{ "update_id": 10, "message": {} }, { "update_id": 11 }]);
        assert_eq!(polled(updates.clone(), Value::Null), json!({ "updates": updates, "cursor": 12 }));
        assert_eq!(polled(json!([]), json!(12)), json!({ "updates": [], "cursor": 12 }));
        assert_eq!(polled(json!([]), Value::Null), json!({ "updates": [], "cursor": null }));
        assert_eq!(polled(Value::Null, json!(3)), json!({ "updates": [], "cursor": 3 }));
    }

    #[test]
    fn what_telegram_refuses_is_said() {
        let said = |status, body: Value| result("getUpdates", status, body.to_string().as_bytes());
        assert_eq!(said(200, json!({ "ok": true, "result": [1] })), Ok(json!([1])));
        assert_eq!(
            said(
                429,
                json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 5",
                "parameters": { "retry_after": 5 } })
            ),
            Err("getUpdates: 429 Too Many Requests: retry after 5 (try again in 5 s)".into()),
        );
        let conflict = said(
            409,
            json!({ "ok": false, "error_code": 409, "description": "Conflict: can't use \
            getUpdates method while webhook is active" }),
        );
        let conflict = conflict.unwrap_err();
        assert!(conflict.starts_with("getUpdates: 409 Conflict: can't use"), "{conflict}");
        assert!(conflict.contains("a webhook is set for this bot, or something else polls it"), "{conflict}");
        let unknown = said(401, json!({ "ok": false, "error_code": 401, "description": "Unauthorized" }));
        assert_eq!(unknown, Err("getUpdates: 401 Unauthorized (is its token right?)".into()));
        assert_eq!(said(500, json!({})), Err("getUpdates: 500 no reason given".into()));
        let page = result("getFile", 502, b"<html>Bad Gateway</html>");
        assert_eq!(page, Err("getFile: status 502, and no JSON".into()));
    }

    #[test]
    fn answers() {
        let url = "https://api.telegram.org/bot{telegram}/sendMessage";
        let context = json!({ "chat": 1111111, "message": 1365 });
        assert_eq!(
            sent(json!({ "content": "*hi* <b>", "status": "answer", "peer": "1111111", "context": context })),
            [json!({ "url": url, "method": "POST", "body": { "chat_id": 1111111, "text": "*hi* <b>" } })],
        );
        let context = json!({ "chat": -100200, "thread": 42, "message": 80 });
        let long = format!("{}\n\n{}", "a".repeat(3000), "b".repeat(3000));
        let requests = sent(json!({ "content": long, "status": "answer", "peer": "x", "context": context }));
        assert_eq!(requests.len(), 2);
        assert_eq!(
            requests[0]["body"],
            json!({ "chat_id": -100200, "text": "a".repeat(3000), "message_thread_id": 42,
                "reply_parameters": { "message_id": 80, "allow_sending_without_reply": true } }),
        );
        assert_eq!(
            requests[1]["body"],
            json!({ "chat_id": -100200, "text": "b".repeat(3000), "message_thread_id": 42 }),
        );
        for blank in ["", " \n\t "] {
            let requests =
                sent(json!({ "content": blank, "status": "notice", "peer": "5", "context": null }));
            assert_eq!(requests[0]["body"], json!({ "chat_id": 5, "text": "(no text)" }));
        }
    }

    #[test]
    fn without_a_message_the_peer_says_where() {
        let to = |peer: &str| {
            let outgoing = Outgoing { content: String::new(), peer: peer.into(), context: Value::Null };
            target(&outgoing).map(|to| (to.chat, to.thread, to.message))
        };
        assert_eq!(to("-1001234567890123"), Ok((-1001234567890123, None, None)));
        assert_eq!(to("-100200/42"), Ok((-100200, Some(42), None)));
        for other in ["", "ada", "5/", "/5", "5/6/7"] {
            assert!(to(other).unwrap_err().contains("is no chat of Telegram"), "{other}");
        }
        assert!(outgoing("{", API).is_err());
    }

    #[test]
    fn a_bot_that_types() {
        let url = "http://127.0.0.1:8081/bot{telegram}/sendChatAction";
        let shown = |context: Value| {
            let input = json!({ "peer": "1", "context": context }).to_string();
            typing(&input, "http://127.0.0.1:8081").unwrap()
        };
        assert_eq!(
            shown(json!({ "chat": 1, "message": 2 })),
            json!({ "url": url, "method": "POST", "body": { "chat_id": 1, "action": "typing" } }),
        );
        assert_eq!(
            shown(json!({ "chat": -1, "thread": 3, "message": 2 }))["body"],
            json!({ "chat_id": -1, "action": "typing", "message_thread_id": 3 }),
        );
    }

    #[test]
    fn texts_are_cut_where_a_reader_would() {
        let split = |text, most| split(text, most, char::len_utf16);
        assert_eq!(split("one two", 7), ["one two"]);
        assert_eq!(split("first part\n\nsecond\nline", 19), ["first part", "second\nline"]);
        assert_eq!(split("first line\nsecond line. More", 24), ["first line\nsecond line.", "More"]);
        assert_eq!(split("first line\nsecond line", 19), ["first line", "second line"]);
        assert_eq!(
            split("One thing. Another (thing!) and more", 28),
            ["One thing. Another (thing!)", "and more"]
        );
        assert_eq!(
            split("\u{4e00}\u{4e00}\u{3002}\u{4e00}\u{4e00}", 4),
            ["\u{4e00}\u{4e00}\u{3002}", "\u{4e00}\u{4e00}"]
        );
        // Not after a short first line where there is more to say.
        assert_eq!(split("Hi.\n\nseven words that go on", 16), ["Hi.\n\nseven words", "that go on"]);
        assert_eq!(split("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        // At the very end of what fits.
        assert_eq!(split("four four", 4), ["four", "four"]);
        // Blank lines go, indents stay.
        assert_eq!(split("\n\n  code {\n\n\n    more }\n\n", 12), ["  code {", "    more }"]);
        assert!(split(" \n          \t         ", 8).is_empty());
        // A pair of surrogates counts twice and stays whole.
        assert_eq!(split("\u{1f600}\u{1f600}\u{1f600}", 5), ["\u{1f600}\u{1f600}", "\u{1f600}"]);
        assert_eq!(split("\u{1f600}\u{1f600}", 1), ["\u{1f600}", "\u{1f600}"]);
    }

    #[test]
    fn any_text_is_cut_into_parts_that_fit() {
        const PIECES: [&str; 14] = [
            "a",
            "word",
            "longerword",
            " ",
            "  ",
            ".",
            "! ",
            "\n",
            "\n\n",
            "\u{e4}",
            "\u{4e00}\u{3002}",
            "\u{1f600}",
            "\u{1f469}\u{200d}\u{1f4bb}",
            "\t",
        ];
        // Numbers that follow each other as if by chance (xorshift), the same in each run.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % below
        };
        let solid = |text: &str| text.split_whitespace().collect::<String>();
        for _ in 0..3000 {
            let text: String = (0..next(120)).map(|_| PIECES[next(PIECES.len())]).collect();
            let most = 2 + next(40);
            let parts = split(&text, most, char::len_utf16);
            for part in &parts {
                assert!(part.encode_utf16().count() <= most, "{part:?} of {text:?} in {most}");
                assert!(!part.trim().is_empty(), "{text:?} in {most}");
            }
            assert_eq!(solid(&parts.concat()), solid(&text), "{text:?} in {most}");
        }
        let emoji = "\u{1f600}".repeat(5000);
        let parts = split(&emoji, UNITS, char::len_utf16);
        assert_eq!(
            parts.iter().map(|part| part.encode_utf16().count()).collect::<Vec<_>>(),
            [4096, 4096, 1808]
        );
        assert_eq!(parts.concat(), emoji);
    }
}
