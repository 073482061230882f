//! What an adapter makes of what a platform said.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::target::Route;

/// The most messages of one request.
pub const MESSAGES_MAX: usize = 100;

/// The most images of one message.
pub const IMAGES_MAX: usize = 8;

/// The most bytes of the text of a message.
const CONTENT_BYTES_MAX: usize = 256 * 1024;

/// The most bytes of any of its names.
const NAME_BYTES_MAX: usize = 256;

/// The account of a platform on which there is only one.
const ACCOUNT: &str = "main";

/// A message, as an adapter's `parse_incoming` gives it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Incoming {
    /// What was said.
    pub content: String,
    /// The account on the platform that it is for.
    #[serde(default)]
    pub account: Option<String>,
    /// The conversation on the platform.
    #[serde(default)]
    pub peer: Option<String>,
    /// The guild or server that has it.
    #[serde(default)]
    pub guild: Option<String>,
    /// The team that has it.
    #[serde(default)]
    pub team: Option<String>,
    /// Its id on the platform: another with the same one is the same message.
    #[serde(default)]
    pub id: Option<String>,
    /// Who wrote it.
    #[serde(default)]
    pub sender: Option<Sender>,
    /// What the adapter wants back with the answer.
    #[serde(default)]
    pub context: Value,
    /// Images that come with it.
    #[serde(default, rename = "attachments")]
    pub images: Vec<Image>,
}

/// Who wrote a message.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Sender {
    /// The id of the account on the platform.
    pub id: String,
    /// What they call themselves.
    #[serde(default)]
    pub name: Option<String>,
}

/// An image that is yet to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Image {
    /// Where it is.
    pub url: String,
    /// Its media type.
    #[serde(default)]
    pub mime: Option<String>,
    /// Its file name.
    #[serde(default)]
    pub name: Option<String>,
}

impl Incoming {
    /// Reads what `parse_incoming` answered: a message, a list of them, or nothing.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(output: &str) -> Result<Vec<Self>, String> {
        if output.trim().is_empty() {
            return Ok(Vec::new());
        }
        let value: Value =
            serde_json::from_str(output).map_err(|error| format!("it answered with no JSON: {error}"))?;
        let list = match value {
            Value::Null => return Ok(Vec::new()),
            Value::Array(list) => list,
            value => vec![value],
        };
        if list.len() > MESSAGES_MAX {
            return Err(format!("it answered with {} messages, more than {MESSAGES_MAX}", list.len()));
        }
        list.into_iter()
            .map(|value| {
                let message: Self =
                    serde_json::from_value(value).map_err(|error| format!("a message: {error}"))?;
                message.check().map(|()| message)
            })
            .collect()
    }

    fn check(&self) -> Result<(), String> {
        if self.content.trim().is_empty() && self.images.is_empty() {
            return Err("a message has no content".to_owned());
        }
        if self.content.len() > CONTENT_BYTES_MAX {
            let bytes = self.content.len();
            return Err(format!("a message has {bytes} bytes of content, more than {CONTENT_BYTES_MAX}"));
        }
        if self.images.len() > IMAGES_MAX {
            return Err(format!("a message has {} attachments, more than {IMAGES_MAX}", self.images.len()));
        }
        let sender = self.sender.as_ref();
        let named = [
            ("account", self.account.as_deref()),
            ("peer", self.peer.as_deref()),
            ("guild", self.guild.as_deref()),
            ("team", self.team.as_deref()),
            ("id", self.id.as_deref()),
            ("sender.id", sender.map(|sender| sender.id.as_str())),
            ("sender.name", sender.and_then(|sender| sender.name.as_deref())),
        ];
        for (what, name) in named {
            if name.is_some_and(|name| name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)) {
                return Err(format!(
                    "the {what} of a message has control characters, or more than {NAME_BYTES_MAX} bytes"
                ));
            }
        }
        Ok(())
    }

    /// As it is kept; [`Self::read`] reads it back.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Where its answer goes: the message without what it says.
    pub fn address(&self) -> String {
        Self { content: String::new(), images: Vec::new(), ..self.clone() }.to_json()
    }

    /// A message as far as an address says it.
    ///
    /// # Errors
    /// Where that is not what [`Self::address`] gave.
    pub fn of_address(address: &str) -> Result<Self, String> {
        serde_json::from_str(address).map_err(|error| format!("an address: {error}"))
    }

    /// Where it comes from.
    pub fn route(&self, channel: &str) -> Route {
        let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
        Route {
            channel: channel.to_owned(),
            account: given(&self.account).unwrap_or_else(|| ACCOUNT.to_owned()),
            peer: given(&self.peer),
            guild: given(&self.guild),
            team: given(&self.team),
        }
    }

    /// What is in order among itself: messages of one conversation are answered one after the other.
    pub fn conversation(&self) -> String {
        let parts = [&self.account, &self.guild, &self.team, &self.peer];
        parts.map(|part| part.as_deref().unwrap_or_default()).join("\u{1f}")
    }

    /// By which names its writer may be let in: their own and that of the conversation.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let sender = self.sender.as_ref().map(|sender| sender.id.as_str());
        sender.into_iter().chain(self.peer.as_deref()).filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn messages_are_read_in_all_forms() {
        assert_eq!(Incoming::read(" ").unwrap(), []);
        assert_eq!(Incoming::read("null").unwrap(), []);
        let plain = Incoming::read(r#"{"content":"hi","more":1}"#).unwrap().remove(0);
        assert_eq!((plain.content.as_str(), plain.context), ("hi", Value::Null));
        let two =
            Incoming::read(r#"[{"content":"a","peer":"7"},{"content":"b","sender":{"id":"9"}}]"#).unwrap();
        assert_eq!(two.len(), 2);
        assert_eq!(two[0].route("telegram").peer.as_deref(), Some("7"));
        assert_eq!(two[0].route("telegram").account, "main");
        assert_eq!(two[1].names().collect::<Vec<_>>(), ["9"]);
        let (address, before) = (two[1].address(), two[1].clone());
        assert_eq!(Incoming::of_address(&address).unwrap(), Incoming { content: String::new(), ..before });
        let image = r#"{"content":"","attachments":[{"url":"https://x/y","mime":"image/png"}]}"#;
        assert_eq!(Incoming::read(image).unwrap()[0].images[0].url, "https://x/y");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (output, says) in [
            ("hi".to_owned(), "no JSON"),
            ("7".to_owned(), "a message: "),
            (r#"{"text":"hi"}"#.to_owned(), "missing field `content`"),
            (r#"{"content":" "}"#.to_owned(), "no content"),
            (json!({ "content": "x".repeat(300_000) }).to_string(), "300000 bytes"),
            (json!({ "content": "x", "peer": "a\nb" }).to_string(), "the peer of a message"),
            (json!({ "content": "x", "sender": { "id": "x".repeat(300) } }).to_string(), "sender.id"),
            (json!(vec![json!({ "content": "x" }); 101]).to_string(), "101 messages"),
        ] {
            let why = Incoming::read(&output).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_output_panics(output in "\\PC{0,200}") {
            let _ = Incoming::read(&output);
        }
    }
}
