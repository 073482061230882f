//! `webhook`: a channel adapter for any program that sends and takes JSON.
//!
//! A message is one JSON object, and each answer another, posted to where the message wants it. The setting
//! `answer_url` is for messages that do not say.

use extism_pdk::{Error, FnResult, config, plugin_fn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The conversation of messages that name none.
const PEER: &str = "main";

/// A message, for the host.
#[derive(Serialize)]
struct Message {
    content: String,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guild: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<Sender>,
    context: Context,
}

#[derive(Serialize)]
struct Sender {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// What an answer needs to know of the message.
#[derive(Default, Serialize, Deserialize)]
struct Context {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

/// What is to be sent, and where to.
#[derive(Deserialize)]
struct Outgoing {
    content: String,
    status: String,
    peer: String,
    #[serde(default)]
    account: Option<String>,
    /// The channel's.
    #[serde(default)]
    answer_url: Option<String>,
    #[serde(default)]
    context: Option<Context>,
}

/// What is posted.
#[derive(Serialize)]
struct Answer {
    content: String,
    status: String,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_reply_to: Option<String>,
}

/// What the adapter is, for the host.
#[plugin_fn]
pub fn describe() -> FnResult<&'static str> {
    Ok(
        r#"{"type":"channel_adapter","channel":"webhook","description":"Any program that sends messages as JSON, and takes answers so."}"#,
    )
}

/// The message of a request.
#[plugin_fn]
pub fn parse_incoming(raw: String) -> FnResult<String> {
    Ok(serde_json::to_string(&incoming(&raw).map_err(Error::msg)?)?)
}

/// The request that sends a text.
#[plugin_fn]
pub fn format_outgoing(input: String) -> FnResult<String> {
    let answer_url = config::get("answer_url")?;
    Ok(outgoing(&input, answer_url).map_err(Error::msg)?.to_string())
}

/// The message of a request.
fn incoming(raw: &str) -> Result<Message, String> {
    let given: Value = serde_json::from_str(raw).map_err(|error| format!("not JSON: {error}"))?;
    if !given.is_object() {
        return Err("a message is a JSON object".into());
    }
    let said = match text(&given, "content")? {
        Some(said) => Some(said),
        None => text(&given, "text")?,
    };
    let answer_url = text(&given, "answer_url")?;
    if answer_url.as_deref().is_some_and(|url| !is_http(url)) {
        return Err("\"answer_url\" must begin with https:// or http://".into());
    }
    let id = text(&given, "id")?;
    Ok(Message {
        content: said.ok_or("\"content\" is missing or blank")?,
        peer: text(&given, "peer")?.unwrap_or_else(|| PEER.into()),
        account: text(&given, "account")?,
        team: text(&given, "team")?,
        guild: text(&given, "guild")?,
        id: id.clone(),
        sender: sender(&given)?,
        context: Context { answer_url, id },
    })
}

/// A field that is a text and says something; a number is taken for one.
fn text(object: &Value, name: &str) -> Result<Option<String>, String> {
    match &object[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text).filter(|text| !text.trim().is_empty()).cloned()),
        Value::Number(number) => Ok(Some(number.to_string())),
        _ => Err(format!("{name:?} must be a text")),
    }
}

/// Who wrote the message: an object with an id, or the id alone.
fn sender(given: &Value) -> Result<Option<Sender>, String> {
    let sender = &given["sender"];
    if !sender.is_object() {
        return Ok(text(given, "sender")?.map(|id| Sender { id, name: None }));
    }
    let of = |why: String| format!("\"sender\": {why}");
    let id = text(sender, "id").map_err(of)?.ok_or_else(|| of("\"id\" is missing or blank".into()))?;
    Ok(Some(Sender { id, name: text(sender, "name").map_err(of)? }))
}

fn is_http(url: &str) -> bool {
    let is = |scheme: &str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    is("https://") || is("http://")
}

/// The request that sends a text.
fn outgoing(input: &str, answer_url: Option<String>) -> Result<Value, String> {
    let Outgoing { content, status, peer, account, answer_url: of_channel, context } =
        serde_json::from_str(input).map_err(|error| error.to_string())?;
    let Context { answer_url: wanted, id } = context.unwrap_or_default();
    let url = [wanted, of_channel, answer_url]
        .into_iter()
        .flatten()
        .find(|url| !url.trim().is_empty())
        .ok_or("no answer_url: the message named none, and the channel has none")?;
    let answer = Answer { content, status, peer, account, in_reply_to: id };
    Ok(json!({ "url": url.trim(), "method": "POST", "body": answer }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(message: Value) -> Result<Value, String> {
        incoming(&message.to_string()).map(|message| serde_json::to_value(message).unwrap())
    }

    #[test]
    fn the_least_there_can_be() {
        let expected = json!({ "content": " hi ", "peer": "main", "context": {} });
        assert_eq!(parsed(json!({ "content": " hi " })).as_ref(), Ok(&expected));
        assert_eq!(parsed(json!({ "text": " hi " })).as_ref(), Ok(&expected));
        assert_eq!(parsed(json!({ "content": " ", "text": " hi ", "more": [1] })).as_ref(), Ok(&expected));
        let nothing = json!({ "content": " hi ", "peer": "", "id": null, "sender": null, "answer_url": " " });
        assert_eq!(parsed(nothing), Ok(expected));
    }

    #[test]
    fn all_there_can_be() {
        let given = json!({ "content": "hi", "text": "not this", "peer": "orders", "account": "shop",
            "team": "T", "guild": "G", "id": "m-1", "sender": { "id": "ada", "name": "Ada", "age": 36 },
            "answer_url": "HTTPS://example.com/answers?for=1", "unknown": { "deep": true } });
        let expected = json!({ "content": "hi", "peer": "orders", "account": "shop", "team": "T",
            "guild": "G", "id": "m-1", "sender": { "id": "ada", "name": "Ada" },
            "context": { "answer_url": "HTTPS://example.com/answers?for=1", "id": "m-1" } });
        assert_eq!(parsed(given), Ok(expected));
        assert_eq!(
            parsed(json!({ "content": "hi", "sender": "ada" })).unwrap()["sender"],
            json!({ "id": "ada" })
        );
        let numbers =
            parsed(json!({ "content": 1, "id": 7_000_000_000_i64, "sender": { "id": 5 } })).unwrap();
        assert_eq!(
            numbers,
            json!({ "content": "1", "peer": "main", "id": "7000000000",
            "sender": { "id": "5" }, "context": { "id": "7000000000" } })
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, why) in [
            (json!({}), "\"content\" is missing or blank"),
            (json!({ "content": "\n", "text": "" }), "\"content\" is missing or blank"),
            (json!({ "content": null, "peer": "main" }), "\"content\" is missing or blank"),
            (json!({ "content": ["hi"] }), "\"content\" must be a text"),
            (json!({ "text": true }), "\"text\" must be a text"),
            (json!({ "content": "hi", "peer": {} }), "\"peer\" must be a text"),
            (json!({ "content": "hi", "sender": [] }), "\"sender\" must be a text"),
            (
                json!({ "content": "hi", "sender": { "name": "Ada" } }),
                "\"sender\": \"id\" is missing or blank",
            ),
            (
                json!({ "content": "hi", "sender": { "id": "a", "name": [] } }),
                "\"sender\": \"name\" must be a text",
            ),
            (json!({ "content": "hi", "answer_url": "ftp://example.com" }), "\"answer_url\" must begin with"),
            (
                json!({ "content": "hi", "answer_url": "\u{e4}\u{e4}\u{e4}\u{e4}" }),
                "\"answer_url\" must begin with",
            ),
            (json!(["hi"]), "a message is a JSON object"),
            (json!("hi"), "a message is a JSON object"),
        ] {
            let error = parsed(given.clone()).unwrap_err();
            assert!(error.starts_with(why), "{given}: {error}");
        }
        assert!(incoming("content=hi").err().unwrap().starts_with("not JSON: "));
    }

    #[test]
    fn answers() {
        let input = json!({ "content": "hello", "status": "answer", "peer": "orders", "account": "shop",
            "context": { "answer_url": "https://example.com/answers", "id": "m-1" } });
        let elsewhere = Some("https://example.org/".to_owned());
        assert_eq!(
            outgoing(&input.to_string(), elsewhere.clone()),
            Ok(json!({ "url": "https://example.com/answers", "method": "POST", "body": { "content": "hello",
                "status": "answer", "peer": "orders", "account": "shop", "in_reply_to": "m-1" } })),
        );
        for context in [json!({}), Value::Null, json!({ "id": null })] {
            let input =
                json!({ "content": "", "status": "error", "peer": "main", "context": context }).to_string();
            assert_eq!(
                outgoing(&input, elsewhere.clone()),
                Ok(json!({ "url": "https://example.org/", "method": "POST", "body": { "content": "",
                    "status": "error", "peer": "main" } })),
            );
            for none in [None, Some(" ".to_owned())] {
                assert!(outgoing(&input, none).unwrap_err().starts_with("no answer_url"));
            }
        }
        let of_channel = json!({ "content": "", "status": "answer", "peer": "main", "answer_url": "https://example.net/" });
        let request = outgoing(&of_channel.to_string(), elsewhere.clone()).unwrap();
        assert_eq!(request["url"], "https://example.net/", "the channel's before the plugin's");
        assert!(outgoing("{}", elsewhere).unwrap_err().contains("content"));
    }

    #[test]
    fn a_context_comes_back_as_it_went() {
        let given = json!({ "text": "hi", "id": 5, "answer_url": "http://127.0.0.1:9/" });
        let message = parsed(given).unwrap();
        let input = json!({ "content": "x", "status": "notice", "peer": message["peer"],
            "context": message["context"] });
        let request = outgoing(&input.to_string(), None).unwrap();
        assert_eq!(request["url"], "http://127.0.0.1:9/");
        assert_eq!(request["body"]["in_reply_to"], "5");
    }
}
