//! What an adapter makes of an answer: requests to its platform; and what became of one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::channel::Incoming;
use crate::conversation::outbox::{AnswerStatus, ChannelAnswer};
use crate::tools::plugin::HttpRequest;

/// The most requests of one answer.
pub const REQUESTS_MAX: usize = 64;

/// The most bytes of all of them.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// What kind of answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What the agent said.
    Answer,
    /// Something about the conversation, not of the agent.
    Notice,
    /// Why there is no answer.
    Error,
}

/// An answer for an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What kind it is.
    pub status: Status,
    /// What is to be said.
    pub content: String,
}

impl Answered {
    /// What an adapter is given of what became of a prompt; none where nothing is said of it.
    pub fn of(answer: ChannelAnswer) -> Option<Self> {
        let why = || answer.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
        let (status, content) = match answer.status {
            // Who has nothing to say says nothing.
            AnswerStatus::Completed if answer.text.trim().is_empty() => return None,
            AnswerStatus::Completed => (Status::Answer, answer.text),
            AnswerStatus::Aborted => (Status::Notice, "The answer was called off.".to_owned()),
            AnswerStatus::Failed | AnswerStatus::Refused => (Status::Error, why()),
            AnswerStatus::Waiting => {
                let tool = answer.approval.as_ref().map_or("a tool", |approval| &approval.tool);
                let content = format!("Before I go on, the operator has to approve a call of {tool}.");
                (Status::Notice, content)
            }
        };
        Some(Self { status, content })
    }

    /// The input of `format_outgoing`, for an answer to `message` in a channel that has this `answer_url`.
    pub fn to_json(&self, message: &Incoming, answer_url: Option<&str>) -> String {
        let mut input = about(message);
        if let Some(url) = answer_url {
            input["answer_url"] = url.into();
        }
        input["content"] = self.content.as_str().into();
        input["status"] = match self.status {
            Status::Answer => "answer",
            Status::Notice => "notice",
            Status::Error => "error",
        }
        .into();
        input.to_string()
    }
}

/// The input of `format_typing`, while `message` is being answered.
pub fn typing(message: &Incoming) -> String {
    about(message).to_string()
}

fn about(message: &Incoming) -> Value {
    json!({
        "account": message.account,
        "peer": message.peer,
        "guild": message.guild,
        "team": message.team,
        "context": message.context,
    })
}

/// Requests to a platform, in the order they are sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outgoing(Vec<Value>);

/// One of them, as an adapter writes it.
#[derive(Deserialize)]
struct Written {
    url: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Value,
}

impl Outgoing {
    /// Reads what `format_outgoing` answered: a request or a list of them. What is no JSON is a body of its own,
    /// for `answer_url`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(output: &str, answer_url: Option<&str>) -> Result<Self, String> {
        if output.len() > BYTES_MAX {
            return Err(format!("it answered with {} bytes, more than {BYTES_MAX}", output.len()));
        }
        let value = serde_json::from_str::<Value>(output).ok();
        let list = match value {
            None if output.trim().is_empty() => return Ok(Self(Vec::new())),
            Some(Value::Null) => return Ok(Self(Vec::new())),
            Some(Value::Array(list)) => list,
            Some(value) if value.get("url").is_some() => vec![value],
            _ => match answer_url {
                Some(url) => vec![json!({ "url": url, "body": output })],
                None => {
                    return Err("it answered without a url, and the channel has no answer_url".to_owned());
                }
            },
        };
        if list.len() > REQUESTS_MAX {
            return Err(format!("it answered with {} requests, more than {REQUESTS_MAX}", list.len()));
        }
        let requests = Self(list);
        for nth in 0..requests.len() {
            requests.request(nth)?;
        }
        Ok(requests)
    }

    /// What was kept of them.
    ///
    /// # Errors
    /// Where that is not what [`Self::to_json`] gave.
    pub fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map(Self).map_err(|error| error.to_string())
    }

    /// As it is kept.
    pub fn to_json(&self) -> String {
        Value::Array(self.0.clone()).to_string()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nth of them.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn request(&self, nth: usize) -> Result<HttpRequest, String> {
        let value = self.0.get(nth).cloned().unwrap_or_default();
        let Written { url, method, mut headers, body } =
            serde_json::from_value(value).map_err(|error| format!("a request: {error}"))?;
        let body = match body {
            Value::Null => Vec::new(),
            Value::String(text) => text.into_bytes(),
            json => {
                let is_told = headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
                if !is_told {
                    headers.insert("content-type".to_owned(), "application/json".to_owned());
                }
                json.to_string().into_bytes()
            }
        };
        let head = json!({ "url": url, "method": method.as_deref().unwrap_or("POST"), "headers": headers });
        HttpRequest::read(head.to_string().as_bytes(), body).map_err(|why| format!("a request: {why}"))
    }
}

/// A platform's answer to a request that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why, in its words.
    pub why: String,
    /// How long to wait, where it says so.
    pub after: Option<Duration>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was carried out.
    Done,
    /// It was not, and may be later.
    Later(Refused),
    /// It was not, and won't be.
    Never(String),
}

/// The longest wait that is believed.
const AFTER_MAX: Duration = Duration::from_secs(3600);

/// So much of a platform's words is kept, in characters.
const WHY_CHARS_MAX: usize = 300;

/// What a platform's answer means: with 429 or 5xx it was not carried out and may be later; with another status
/// outside 200 to 299, or with `"ok": false` in its JSON, it never will be.
pub fn verdict(status: u16, retry_after: Option<&str>, body: &[u8]) -> Verdict {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = ["description", "error", "message"].iter().find_map(|name| json[*name].as_str());
    let said = said.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned);
    let said: String = said.chars().filter(|c| !c.is_control()).take(WHY_CHARS_MAX).collect();
    let why = if said.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {said}") };
    match status {
        200..=299 if json["ok"] == false => Verdict::Never(why),
        200..=299 => Verdict::Done,
        408 | 429 | 500..=599 => {
            let header = retry_after.and_then(|text| text.trim().parse().ok());
            let after = header.or_else(|| json["parameters"]["retry_after"].as_u64());
            let after = after.map(|seconds: u64| Duration::from_secs(seconds).min(AFTER_MAX));
            Verdict::Later(Refused { why, after })
        }
        _ => Verdict::Never(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_read_in_all_forms() {
        let one = Outgoing::read(r#"{"url":"https://x/y","body":{"a":1}}"#, None).unwrap();
        let request = one.request(0).unwrap();
        assert_eq!((request.method.as_str(), request.url.as_str()), ("POST", "https://x/y"));
        assert_eq!((request.body.as_slice(), request.headers.len()), (&br#"{"a":1}"#[..], 1));
        let kept = Outgoing::from_json(&one.to_json()).unwrap();
        assert_eq!(kept, one);
        let two =
            Outgoing::read(r#"[{"url":"https://x","method":"put","body":"t"},{"url":"https://y"}]"#, None);
        let two = two.unwrap();
        assert_eq!((two.len(), two.request(0).unwrap().method.as_str()), (2, "PUT"));
        assert!(Outgoing::read("", None).unwrap().is_empty());
        // What exoclaw's adapters may answer: bytes.
        let bytes = Outgoing::read("plain words", Some("https://z/in")).unwrap().request(0).unwrap();
        assert_eq!((bytes.url.as_str(), bytes.body.as_slice()), ("https://z/in", &b"plain words"[..]));
        for (output, says) in [
            ("plain words", "no answer_url"),
            (r#"{"body":1}"#, "no answer_url"),
            (r#"[{"body":1}]"#, "missing field `url`"),
            (r#"{"url":"https://x","method":"TRACE"}"#, "TRACE"),
            (r#"{"url":"https://x","headers":{"host":"y"}}"#, "set by the host"),
            (r#"{"url":"https://x","headers":{"a":"b\r\nc: d"}}"#, "control characters"),
        ] {
            let why = Outgoing::read(output, None).unwrap_err();
            assert!(why.contains(says), "{output}: {why}");
        }
    }

    #[test]
    fn platforms_say_whether_it_was_carried_out() {
        let later = |why: &str, after: Option<u64>| {
            let after = after.map(Duration::from_secs);
            Verdict::Later(Refused { why: why.to_owned(), after })
        };
        for (status, header, body, verdict_of_it) in [
            (200, None, r#"{"ok":true}"#, Verdict::Done),
            (204, None, "", Verdict::Done),
            (
                200,
                None,
                r#"{"ok":false,"error":"channel_not_found"}"#,
                Verdict::Never("HTTP 200: channel_not_found".into()),
            ),
            (
                400,
                None,
                r#"{"ok":false,"description":"chat not found"}"#,
                Verdict::Never("HTTP 400: chat not found".into()),
            ),
            (429, Some("7"), "", later("HTTP 429", Some(7))),
            (
                429,
                None,
                r#"{"parameters":{"retry_after":3},"description":"slow"}"#,
                later("HTTP 429: slow", Some(3)),
            ),
            (503, Some("soon"), "busy\r\n", later("HTTP 503: busy", None)),
            (429, Some("999999999"), "", later("HTTP 429", Some(3600))),
            (302, None, "", Verdict::Never("HTTP 302".into())),
        ] {
            assert_eq!(verdict(status, header, body.as_bytes()), verdict_of_it, "{status} {body}");
        }
    }

    proptest! {
        #[test]
        fn no_output_panics(output in "\\PC{0,200}", status in 100u16..600, body in "\\PC{0,100}") {
            let _ = Outgoing::read(&output, None);
            let _ = verdict(status, Some(&output), body.as_bytes());
        }
    }
}
