//! `slack`: a channel adapter for apps of Slack.
//!
//! Messages come by Slack's Events API, and answers go by its Web API. The bot's token is the host's, which
//! adds it to the requests. The setting `api` names another server of the Web API than Slack's own.

use extism_pdk::{Error, FnResult, config, plugin_fn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Slack's own server.
const API: &str = "https://slack.com/api";

/// So many characters go into one message, written as Slack wants them.
const CHARACTERS: usize = 4000;

/// A message, for the host.
#[derive(Serialize)]
struct Message {
    content: String,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<String>,
    id: String,
    sender: Sender,
    context: Context,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
}

#[derive(Serialize)]
struct Sender {
    id: String,
}

/// What an answer needs to know of the message.
#[derive(Serialize, Deserialize)]
struct Context {
    channel: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<String>,
}

#[derive(Serialize)]
struct Attachment {
    url: String,
    mime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// What is to be sent, and where to.
#[derive(Deserialize)]
struct Outgoing {
    #[serde(default)]
    content: String,
    #[serde(default)]
    peer: String,
    #[serde(default)]
    context: Value,
}

/// What the adapter is, for the host.
#[plugin_fn]
pub fn describe() -> FnResult<&'static str> {
    Ok(
        r#"{"type":"channel_adapter","channel":"slack","description":"A Slack app: direct messages, channels and threads; text and pictures."}"#,
    )
}

/// The message of an event; nothing where it has none.
#[plugin_fn]
pub fn parse_incoming(raw: String) -> FnResult<String> {
    match incoming(&raw).map_err(Error::msg)? {
        Some(message) => Ok(serde_json::to_string(&message)?),
        None => Ok(String::new()),
    }
}

/// The requests that send a text.
#[plugin_fn]
pub fn format_outgoing(input: String) -> FnResult<String> {
    Ok(outgoing(&input, &api()?).map_err(Error::msg)?.to_string())
}

/// Where the Web API is.
fn api() -> Result<String, Error> {
    let api = config::get("api")?.unwrap_or_default();
    let api = api.trim().trim_end_matches('/');
    Ok(if api.is_empty() { API } else { api }.into())
}

/// The message of an event.
fn incoming(raw: &str) -> Result<Option<Message>, String> {
    let envelope: Value = serde_json::from_str(raw).map_err(|error| format!("not an event: {error}"))?;
    let event = &envelope["event"];
    let is_message = matches!(event["type"].as_str(), Some("message" | "app_mention"));
    if envelope["type"] != "event_callback" || !is_message || !is_said(event) {
        return Ok(None);
    }
    let fields = (text(&event["channel"]), text(&event["ts"]), text(&event["user"]));
    let (Some(channel), Some(ts), Some(user)) = fields else {
        return Ok(None);
    };
    let attachments: Vec<_> = event["files"].as_array().into_iter().flatten().filter_map(picture).collect();
    let raw = event["text"].as_str().unwrap_or_default();
    let said = plain(without_us(raw, us(&envelope)));
    let content = match said.trim() {
        "" if !attachments.is_empty() => "(an image)",
        "" if !raw.trim().is_empty() => "(a mention)",
        "" => return Ok(None),
        said => said,
    };
    // A mention says no type, but the letter that direct channels begin with.
    let is_direct = event["channel_type"] == "im" || channel.starts_with('D');
    // What is said in a channel begins a thread, which is a conversation of its own.
    let thread = text(&event["thread_ts"]).or((!is_direct).then_some(ts));
    Ok(Some(Message {
        content: content.into(),
        peer: thread.map_or(channel.into(), |thread| format!("{channel}/{thread}")),
        team: text(&envelope["team_id"]).map(Into::into),
        // A mention comes as a message as well, with the same time.
        id: format!("{channel}:{ts}"),
        sender: Sender { id: user.into() },
        context: Context { channel: channel.into(), thread: thread.map(Into::into) },
        attachments,
    }))
}

/// Whether an event is something that somebody says, not a bot, and not a change of what was said before.
fn is_said(event: &Value) -> bool {
    let kind = event["subtype"].as_str();
    matches!(kind, None | Some("file_share" | "thread_broadcast"))
        && event["bot_id"].is_null()
        && event["hidden"] != true
        && event["user"] != "USLACKBOT"
}

/// A text that says something.
fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.trim().is_empty())
}

/// A file that is a picture, and that Slack itself keeps.
fn picture(file: &Value) -> Option<Attachment> {
    let mime = file["mimetype"].as_str().filter(|mime| mime.starts_with("image/"))?;
    let url = text(&file["url_private_download"]).or_else(|| text(&file["url_private"]))?;
    let name = text(&file["name"]).map(Into::into);
    (file["is_external"] != true).then(|| Attachment { url: url.into(), mime: mime.into(), name })
}

/// Our own user, where the event says so.
fn us(envelope: &Value) -> Option<&str> {
    let known = envelope["authorizations"].as_array()?;
    known.iter().find(|known| known["is_bot"] == true)?["user_id"].as_str()
}

/// A text without the mentions of us that it begins with; without any there, where we don't know who we are.
fn without_us<'a>(text: &'a str, us: Option<&str>) -> &'a str {
    let mut rest = text.trim_start();
    while let Some((mention, after)) = rest.strip_prefix("<@").and_then(|rest| rest.split_once('>')) {
        let user = mention.split_once('|').map_or(mention, |(user, _)| user);
        if us.is_some_and(|us| us != user) {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

/// What a text of Slack's says: its links and mentions without their marks, its characters unescaped.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        plain.push_str(&unescaped(&rest[..at]));
        let Some((marked, after)) = rest[at + 1..].split_once('>') else {
            rest = &rest[at..];
            break;
        };
        plain.push_str(&unescaped(&unmarked(marked)));
        rest = after;
    }
    plain + &unescaped(rest)
}

/// What stands between `<` and `>`, as text: a user, a channel, a group, something special, or a link.
fn unmarked(marked: &str) -> String {
    let (what, label) = match marked.split_once('|') {
        Some((what, label)) => (what, Some(label).filter(|label| !label.is_empty())),
        None => (marked, None),
    };
    match (what.split_at_checked(1), label) {
        (Some(("@", user)), _) => format!("@{}", label.unwrap_or(user)),
        (Some(("#", channel)), _) => format!("#{}", label.unwrap_or(channel)),
        // Groups and dates, `subteam^ID` and `date^TIME^FORMAT`; else those who are `here`, and the like.
        (Some(("!", what)), Some(label)) if what.contains('^') => label.into(),
        (Some(("!", what)), _) => format!("@{}", what.trim_start_matches("subteam^")),
        (_, Some(label)) if what == label || what.strip_prefix("mailto:") == Some(label) => label.into(),
        (_, Some(label)) => format!("{label} ({what})"),
        (_, None) => what.into(),
    }
}

/// The characters that Slack writes otherwise.
const ESCAPES: [(char, &str); 3] = [('<', "&lt;"), ('>', "&gt;"), ('&', "&amp;")];

fn unescaped(text: &str) -> String {
    // `&` last: `&amp;lt;` is `&lt;`.
    ESCAPES.iter().fold(text.to_owned(), |text, (c, escape)| text.replace(escape, c.encode_utf8(&mut [0; 4])))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match escape(c) {
            Some(escape) => escaped.push_str(escape),
            None => escaped.push(c),
        }
    }
    escaped
}

fn escape(c: char) -> Option<&'static str> {
    ESCAPES.iter().find(|(escaped, _)| *escaped == c).map(|(_, escape)| *escape)
}

/// Where something is sent: as its message said, or as its peer says where no message did.
fn target(outgoing: &Outgoing) -> Result<Context, String> {
    if let Ok(context) = Context::deserialize(&outgoing.context) {
        return Ok(context);
    }
    let (channel, thread) = match outgoing.peer.split_once('/') {
        Some((channel, thread)) => (channel, Some(thread.to_owned())),
        None => (outgoing.peer.as_str(), None),
    };
    if channel.is_empty() {
        return Err("a message needs a peer: CHANNEL, or CHANNEL/THREAD".into());
    }
    Ok(Context { channel: channel.into(), thread })
}

/// The requests that send a text, in parts where it is long.
fn outgoing(input: &str, api: &str) -> Result<Value, String> {
    let outgoing: Outgoing = serde_json::from_str(input).map_err(|error| error.to_string())?;
    let Context { channel, thread } = target(&outgoing)?;
    let mut parts = split(&outgoing.content, CHARACTERS, |c| escape(c).map_or(1, str::len));
    if parts.is_empty() {
        parts.push("(no text)");
    }
    let requests = parts.into_iter().map(|part| {
        let mut body = json!({ "channel": channel, "text": escaped(part), "unfurl_links": false });
        if let Some(thread) = &thread {
            body["thread_ts"] = thread.as_str().into();
        }
        json!({ "url": format!("{api}/chat.postMessage"), "method": "POST", "body": body })
    });
    Ok(requests.collect())
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

    /// What the host would be given for an event.
    fn parsed(event: Value) -> Value {
        let envelope = json!({ "token": "old", "team_id": "T123ABC456", "api_app_id": "A123ABC456",
            "event": event, "type": "event_callback", "event_id": "Ev123ABC456", "event_time": 1515449522,
            "authorizations": [{ "enterprise_id": null, "team_id": "T123ABC456", "user_id": "U0LAN0Z89",
                "is_bot": true, "is_enterprise_install": false }], "is_ext_shared_channel": false });
        serde_json::to_value(incoming(&envelope.to_string()).unwrap()).unwrap()
    }

    /// A message in a channel, and what is otherwise in it.
    fn message(more: Value) -> Value {
        let mut message = json!({ "type": "message", "channel": "C123ABC456", "user": "U061F7AUR",
            "text": "Hello", "ts": "1355517523.000005", "event_ts": "1355517523.000005",
            "channel_type": "channel", "team": "T123ABC456", "client_msg_id": "7f", "blocks": [{}] });
        message.as_object_mut().unwrap().append(more.as_object().cloned().as_mut().unwrap());
        message
    }

    fn file(more: Value) -> Value {
        let mut file = json!({ "id": "F1", "name": "plan.png", "mimetype": "image/png", "filetype": "png",
            "mode": "hosted", "is_external": false,
            "url_private": "https://files.slack.com/files-pri/T-F1/plan.png",
            "url_private_download": "https://files.slack.com/files-pri/T-F1/download/plan.png" });
        file.as_object_mut().unwrap().append(more.as_object().cloned().as_mut().unwrap());
        file
    }

    fn sent(input: Value) -> Vec<Value> {
        match outgoing(&input.to_string(), API).unwrap() {
            Value::Array(requests) => requests,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_direct_message() {
        let event = message(json!({ "channel": "D024BE91L", "channel_type": "im" }));
        assert_eq!(
            parsed(event),
            json!({ "content": "Hello", "peer": "D024BE91L", "team": "T123ABC456",
            "id": "D024BE91L:1355517523.000005", "sender": { "id": "U061F7AUR" },
            "context": { "channel": "D024BE91L" } })
        );
        let thread =
            json!({ "channel": "D024BE91L", "channel_type": "im", "thread_ts": "1355517000.000001" });
        let threaded = parsed(message(thread));
        assert_eq!(threaded["peer"], "D024BE91L/1355517000.000001");
        assert_eq!(threaded["context"], json!({ "channel": "D024BE91L", "thread": "1355517000.000001" }));
        // Between several people it is like a channel.
        let several = parsed(message(json!({ "channel": "G024BE91L", "channel_type": "mpim" })));
        assert_eq!(several["context"]["thread"], "1355517523.000005");
    }

    #[test]
    fn a_mention_and_its_message_are_the_same() {
        let text = "<@U0LAN0Z89> is it everything a river should be?";
        let mention = json!({ "type": "app_mention", "user": "U061F7AUR", "text": text,
            "ts": "1515449522.000016", "channel": "C123ABC456", "event_ts": "1515449522000016" });
        let expected = json!({ "content": "is it everything a river should be?", "peer": "C123ABC456/1515449522.000016",
            "team": "T123ABC456", "id": "C123ABC456:1515449522.000016", "sender": { "id": "U061F7AUR" },
            "context": { "channel": "C123ABC456", "thread": "1515449522.000016" } });
        assert_eq!(parsed(mention), expected);
        assert_eq!(parsed(message(json!({ "text": text, "ts": "1515449522.000016" }))), expected);
        // In a direct channel there is no thread, though a mention does not say that it is one.
        let direct =
            json!({ "type": "app_mention", "user": "U1", "text": "hi", "ts": "1.2", "channel": "D1" });
        assert_eq!(parsed(direct)["context"], json!({ "channel": "D1" }));
    }

    #[test]
    fn threads() {
        for more in [
            json!({ "thread_ts": "1355517000.000001", "parent_user_id": "U2" }),
            json!({ "thread_ts": "1355517000.000001", "subtype": "thread_broadcast" }),
        ] {
            let message = parsed(message(more));
            assert_eq!(message["peer"], "C123ABC456/1355517000.000001");
            assert_eq!(message["id"], "C123ABC456:1355517523.000005");
            assert_eq!(message["context"], json!({ "channel": "C123ABC456", "thread": "1355517000.000001" }));
        }
    }

    #[test]
    fn pictures() {
        let share =
            parsed(message(json!({ "subtype": "file_share", "text": "see", "upload": false, "files": [
            file(json!({})),
            file(json!({ "mimetype": "image/jpeg", "url_private_download": null, "name": null })),
            file(json!({ "mimetype": "application/pdf" })),
            file(json!({ "is_external": true, "mode": "external" })),
            { "id": "F5", "mode": "tombstone" },
            { "id": "F6", "file_access": "check_file_info" },
        ] })));
        assert_eq!(share["content"], "see");
        assert_eq!(
            share["attachments"],
            json!([
                { "url": "https://files.slack.com/files-pri/T-F1/download/plan.png", "mime": "image/png",
                    "name": "plan.png" },
                { "url": "https://files.slack.com/files-pri/T-F1/plan.png", "mime": "image/jpeg" },
            ])
        );
        let wordless = |files: Value| json!({ "subtype": "file_share", "text": "", "files": files });
        assert_eq!(parsed(message(wordless(json!([file(json!({}))]))))["content"], "(an image)");
        assert_eq!(
            parsed(message(wordless(json!([file(json!({ "mimetype": "text/plain" }))])))),
            Value::Null
        );
    }

    #[test]
    fn nothing_to_do() {
        let before = message(json!({}));
        for event in [
            message(json!({ "bot_id": "B1", "app_id": "A1" })),
            message(json!({ "subtype": "bot_message", "bot_id": "B1", "user": null })),
            message(json!({ "subtype": "message_changed", "hidden": true, "message": before, "user": null })),
            message(json!({ "subtype": "message_changed" })),
            message(json!({ "subtype": "message_deleted", "deleted_ts": "1.2" })),
            message(json!({ "subtype": "channel_join" })),
            message(json!({ "user": "USLACKBOT" })),
            message(json!({ "user": null })),
            message(json!({ "channel": null })),
            message(json!({ "ts": 5 })),
            message(json!({ "text": " " })),
            message(json!({ "text": null })),
            message(json!({ "type": "reaction_added" })),
            json!({ "type": "message" }),
            json!("message"),
            Value::Null,
        ] {
            assert_eq!(parsed(event.clone()), Value::Null, "{event}");
        }
        for envelope in [
            json!({ "type": "url_verification", "challenge": "3eZb" }),
            json!({ "type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 1518467820 }),
            json!({ "event": message(json!({})) }),
            json!([]),
            Value::Null,
        ] {
            assert!(incoming(&envelope.to_string()).unwrap().is_none(), "{envelope}");
        }
        assert!(incoming("payload=%7B%7D").err().unwrap().starts_with("not an event: "));
    }

    #[test]
    fn mentions_at_the_beginning() {
        let said = |text: &str| parsed(message(json!({ "text": text })))["content"].clone();
        assert_eq!(said("<@U0LAN0Z89>hi"), "hi");
        assert_eq!(said(" <@U0LAN0Z89|bot> <@U0LAN0Z89>\nhi <@U0LAN0Z89>"), "hi @U0LAN0Z89");
        // Whom else it is said to stays.
        assert_eq!(said("<@U0LAN0Z89> <@U2|bob> is late"), "@bob is late");
        assert_eq!(said("<@U2> hi"), "@U2 hi");
        assert_eq!(said("<@U0LAN0Z89> "), "(a mention)");
        assert_eq!(without_us("<@U1> <@U2> hi", None), "hi");
        assert_eq!(without_us("<@U1", None), "<@U1");
    }

    #[test]
    fn our_own_user_is_a_bot() {
        let known = |known: Value| us(&json!({ "authorizations": known })).map(str::to_owned);
        assert_eq!(known(json!([{ "user_id": "U1", "is_bot": false }])), None);
        let two = json!([{ "user_id": "U1", "is_bot": false }, { "user_id": "U2", "is_bot": true }]);
        assert_eq!(known(two).as_deref(), Some("U2"));
        assert_eq!(known(Value::Null), None);
    }

    #[test]
    fn texts_without_marks() {
        for (marked, said) in [
            ("Hello &amp; &lt;world&gt; \u{1f30a}", "Hello & <world> \u{1f30a}"),
            ("&amp;lt; &amp;amp; &nbsp;", "&lt; &amp; &nbsp;"),
            (
                "see <https://example.com/a?b=1&amp;c=2|the page>.",
                "see the page (https://example.com/a?b=1&c=2).",
            ),
            ("<https://example.com>", "https://example.com"),
            ("<http://example.com|example.com>", "example.com (http://example.com)"),
            ("<https://example.com|https://example.com>", "https://example.com"),
            ("<https://example.com|>", "https://example.com"),
            ("<mailto:ada@example.com|ada@example.com>", "ada@example.com"),
            ("<mailto:ada@example.com|Ada>", "Ada (mailto:ada@example.com)"),
            ("Why not join <#C024BE7LR|general>? <#C1>", "Why not join #general? #C1"),
            ("hey <@U024BE7LH|bob> and <@U2>", "hey @bob and @U2"),
            ("<!here|here> <!channel> <!subteam^S1|@staff> <!subteam^S2>", "@here @channel @staff @S2"),
            ("<!date^1392734382^{date}|Feb 18>", "Feb 18"),
            ("a < b &lt;", "a < b <"),
            ("<>", ""),
            ("<\u{e4}>", "\u{e4}"),
            ("", ""),
        ] {
            assert_eq!(plain(marked), said, "{marked}");
        }
        // What is escaped says the same when it comes back.
        for text in ["a < b && c > d", "&lt;&amp;&", "<@U1> <!channel>", "\u{1f600}"] {
            assert_eq!(plain(&escaped(text)), text);
        }
    }

    #[test]
    fn answers() {
        let url = "https://slack.com/api/chat.postMessage";
        let context = json!({ "channel": "C1", "thread": "1.2" });
        assert_eq!(
            sent(json!({ "content": "a < b & c > d <!channel>", "status": "answer", "peer": "C1",
                "team": "T1", "context": context })),
            [json!({ "url": url, "method": "POST", "body": { "channel": "C1", "thread_ts": "1.2",
                "text": "a &lt; b &amp; c &gt; d &lt;!channel&gt;", "unfurl_links": false } })],
        );
        let context = json!({ "channel": "D1" });
        assert_eq!(
            sent(json!({ "content": " ", "status": "error", "peer": "D1", "context": context }))[0]["body"],
            json!({ "channel": "D1", "text": "(no text)", "unfurl_links": false }),
        );
        // What is escaped is longer, and each part is in the thread.
        let input = json!({ "content": "&".repeat(1000), "peer": "C1/1.2", "context": null });
        let texts: Vec<_> = sent(input).into_iter().map(|request| request["body"].clone()).collect();
        assert_eq!(texts.len(), 2);
        for body in texts {
            assert_eq!(body["thread_ts"], "1.2");
            let text = body["text"].as_str().unwrap();
            assert!(text.len() <= CHARACTERS && text.replace("&amp;", "").is_empty(), "{text}");
        }
    }

    #[test]
    fn without_a_message_the_peer_says_where() {
        let to = |peer: &str| {
            let outgoing = Outgoing { content: String::new(), peer: peer.into(), context: Value::Null };
            target(&outgoing).map(|to| (to.channel, to.thread))
        };
        assert_eq!(to("C1"), Ok(("C1".into(), None)));
        assert_eq!(to("C1/1355517523.000005"), Ok(("C1".into(), Some("1355517523.000005".into()))));
        assert!(to("").unwrap_err().contains("needs a peer"));
        assert!(outgoing("{", API).is_err());
    }

    #[test]
    fn texts_are_cut_where_a_reader_would() {
        let split = |text, most| split(text, most, |_| 1);
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
        assert_eq!(split("\u{1f600}\u{1f600}\u{1f600}", 2), ["\u{1f600}\u{1f600}", "\u{1f600}"]);
    }

    #[test]
    fn any_text_is_cut_into_parts_that_fit() {
        const PIECES: [&str; 17] = [
            "a",
            "&",
            "<",
            ">",
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
            let most = 5 + next(40);
            let parts = split(&text, most, |c| escape(c).map_or(1, str::len));
            for part in &parts {
                assert!(escaped(part).chars().count() <= most, "{part:?} of {text:?} in {most}");
                assert!(!part.trim().is_empty(), "{text:?} in {most}");
            }
            assert_eq!(solid(&parts.concat()), solid(&text), "{text:?} in {most}");
        }
        let emoji = "\u{1f600}".repeat(5000);
        let parts = split(&emoji, CHARACTERS, |_| 1);
        assert_eq!(parts.iter().map(|part| part.chars().count()).collect::<Vec<_>>(), [4000, 1000]);
        assert_eq!(parts.concat(), emoji);
    }
}
