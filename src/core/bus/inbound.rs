//! A message as an adapter publishes it.
//!
//! With `Content-Type: application/json`, or where it is a JSON object with a text `content`, it is
//! `{"content", "attachments"?, "guild"?, "team"?, "thinking"?}`; anything else is plain text. An attachment is
//! `{"data", "name"?, "mime"?}`, its data in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::prompt::attachment::{self, Attachment};
use crate::prompt::thinking::Thinking;

/// The most bytes of the name of a guild or team.
const NAME_BYTES_MAX: usize = 256;

/// What a message says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inbound {
    /// Its text.
    pub content: String,
    /// What it brings along.
    pub attachments: Vec<Attachment>,
    /// The guild or server that has the conversation.
    pub guild: Option<String>,
    /// The team that has it.
    pub team: Option<String>,
    /// How much is thought over it.
    pub thinking: Option<Thinking>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    content: String,
    #[serde(default)]
    attachments: Option<Vec<WrittenAttachment>>,
    #[serde(default)]
    guild: Option<String>,
    #[serde(default)]
    team: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAttachment {
    data: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    mime: Option<String>,
}

impl Inbound {
    /// Reads a message of this content type, where it has one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(content_type: Option<&str>, payload: &[u8]) -> Result<Self, String> {
        let essence = content_type.map(|kind| kind.split(';').next().unwrap_or_default().trim());
        let is_said = essence.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
        let text = std::str::from_utf8(payload).map_err(|_| "the payload is not UTF-8 text".to_owned())?;
        let json = match serde_json::from_str::<Value>(text) {
            Ok(json) if is_said || json.get("content").is_some_and(Value::is_string) => Some(json),
            Ok(_) => None,
            Err(error) if is_said => return Err(format!("the payload is no JSON: {error}")),
            Err(_) => None,
        };
        let inbound = match json {
            None => Self { content: text.to_owned(), ..Self::default() },
            Some(json) => Self::of_json(json)?,
        };
        if inbound.content.trim().is_empty() && inbound.attachments.is_empty() {
            return Err("the message is empty".to_owned());
        }
        Ok(inbound)
    }

    fn of_json(json: Value) -> Result<Self, String> {
        let Written { content, attachments, guild, team, thinking } =
            serde_json::from_value(json).map_err(|error| format!("the payload: {error}"))?;
        let attachments = attachments.unwrap_or_default().into_iter().map(|written| {
            let WrittenAttachment { data, name, mime } = written;
            let data = STANDARD
                .decode(data)
                .map_err(|error| format!("an attachment's data is no base64: {error}"))?;
            Attachment::new(name.as_deref(), mime.as_deref(), data.into()).map_err(|error| error.message)
        });
        let attachments: Vec<Attachment> = attachments.collect::<Result<_, _>>()?;
        attachment::check(&attachments).map_err(|error| error.message)?;
        let thinking = thinking.map(|name| {
            Thinking::from_name(&name)
                .ok_or_else(|| format!("thinking: there is no level {:?}", shown(&name)))
        });
        for (what, name) in [("guild", &guild), ("team", &team)] {
            let is_bad = |name: &String| {
                name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)
            };
            if name.as_ref().is_some_and(is_bad) {
                return Err(format!(
                    "{what}: expected 1 to {NAME_BYTES_MAX} bytes without control characters"
                ));
            }
        }
        Ok(Self { content, attachments, guild, team, thinking: thinking.transpose()? })
    }
}

fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(40)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_and_json_are_told_apart() {
        let json = Some("application/json; charset=utf-8");
        let read = |payload: &str| Inbound::read(None, payload.as_bytes()).unwrap();
        for plain in ["hi", "{\"text\":\"hi\"}", "{broken", "7", "[1]", "{\"content\":7}"] {
            assert_eq!(read(plain).content, plain);
        }
        let message = read(r#"{"content":"hi","guild":"g","team":null,"thinking":"low"}"#);
        assert_eq!((message.content.as_str(), message.guild.as_deref()), ("hi", Some("g")));
        assert_eq!((message.team, message.thinking), (None, Some(Thinking::Low)));
        let image = r#"{"content":"","attachments":[{"data":"aGk=","name":"a.txt","mime":"text/plain"}]}"#;
        assert_eq!(read(image).attachments[0].data().as_ref(), b"hi");
        for (kind, payload, says) in [
            (json, "{broken", "no JSON"),
            (json, "7", "the payload: "),
            (json, "{\"text\":\"hi\"}", "unknown field `text`"),
            (None, " \n", "empty"),
            (None, "", "empty"),
            (None, "{\"content\":\" \"}", "empty"),
            (None, "{\"content\":\"x\",\"thinking\":\"hard\"}", "no level \"hard\""),
            (None, "{\"content\":\"x\",\"guild\":\"\"}", "guild: "),
            (None, "{\"content\":\"x\",\"attachments\":[{\"data\":\"?\"}]}", "no base64"),
            (None, "{\"content\":\"x\",\"attachments\":[{\"url\":\"http://x\"}]}", "unknown field `url`"),
        ] {
            let why = Inbound::read(kind, payload.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{payload}: {why}");
        }
        assert!(Inbound::read(None, b"\xff").unwrap_err().contains("UTF-8"));
    }

    proptest! {
        #[test]
        fn no_payload_panics(payload in proptest::collection::vec(any::<u8>(), 0..80), json in any::<bool>()) {
            let _ = Inbound::read(json.then_some("application/json"), &payload);
        }
    }
}
