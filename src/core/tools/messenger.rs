//! The built-in tool `send_message`: an agent speaks in another conversation, or sends files back to
//! whoever asked.
//!
//! Offered in runs over xeno's socket, without a plugin. Like every call it is journaled before it is
//! made; the id of the message follows from the call ([`RunId::of_message`](crate::ids::RunId::of_message)),
//! so that a call that a crash cut off is simply made again, and the message is there once.
//!
//! What is sent to the asker is no message of its own: it is a part of the answer. Its text, and which
//! files go with it, are in the call's result, so in the log.

use serde_json::{Value, json};

use crate::ids::{PluginName, RunId, SessionKey};
use crate::prompt::attachment::ATTACHMENTS_MAX;
use crate::prompt::local_file::{CAPTION_BYTES_MAX, Form, LocalFile};
use crate::target::{Route, Target};
use crate::tools::call::ToolSpec;

/// The name under which models call the tool.
pub const NAME: &str = "send_message";

/// The longest text of one message, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// What an agent wants to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Where to; none means whoever asked.
    pub target: Option<Target>,
    /// The text of the message.
    pub text: Option<String>,
    /// Files that go with it.
    pub attachments: Vec<LocalFile>,
}

/// The name as that of a tool.
pub fn name() -> PluginName {
    PluginName::from(NAME)
}

/// As a model is told of it, where it may speak over these channels.
pub fn spec(channels: &[String]) -> ToolSpec {
    let text = |what: &str| json!({ "type": "string", "description": what });
    let forms: Vec<&str> = Form::ALL.iter().map(|form| form.name()).collect();
    ToolSpec {
        name: name(),
        description: format!(
            "Writes a message into another conversation of whoever asked, named by its session or by channel and \
            account, where it stands as said by the agent: whoever follows that conversation sees it, and no agent \
            is prompted by it; one that is not there is begun. Where neither is named it goes to whoever asked, \
            together with the answer. Only files that go to whoever asked are sent; elsewhere they are named.{}",
            match channels.is_empty() {
                true => String::new(),
                false => format!(
                    " With one of these channels and a peer it goes to people elsewhere: {}.",
                    channels.join(", ")
                ),
            }
        ),
        input_schema: json!({
            "type": "object",
            "properties": {
                "text": text("What to say. May be left out where there are attachments."),
                "session": text("The session to say it in, such as main:openclaw:main:main."),
                "channel": text("Instead of a session: its channel, such as xeno or websocket, with the account."),
                "account": text("The account within the channel, such as default."),
                "peer": text("The peer within the account."),
                "attachments": {
                    "type": "array",
                    "maxItems": ATTACHMENTS_MAX,
                    "items": {
                        "type": "object",
                        "properties": {
                            "type": { "type": "string", "enum": forms },
                            "path": text("Where the file is: an absolute path."),
                            "caption": text("What to say of it."),
                        },
                        "required": ["type", "path"],
                    },
                },
            },
        }),
    }
}

impl Message {
    /// Reads what a model wrote.
    ///
    /// # Errors
    /// What is wrong with it, for the model.
    pub fn read(input: &Value) -> Result<Self, String> {
        let input = input.as_object().ok_or("the input is not a JSON object")?;
        const KNOWN: [&str; 6] = ["text", "session", "channel", "account", "peer", "attachments"];
        if let Some(unknown) = input.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(format!("unknown field {:?}: expected one of {}", short(unknown), KNOWN.join(", ")));
        }
        let field = |name: &str| match input.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.trim().is_empty())),
            Some(_) => Err(format!("{name}: expected text")),
        };
        let text = field("text")?;
        if text.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
            return Err(format!("text: longer than {TEXT_BYTES_MAX} bytes: send it in parts"));
        }
        let attachments = match input.get("attachments") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) if list.len() > ATTACHMENTS_MAX => {
                return Err(format!("attachments: more than {ATTACHMENTS_MAX}"));
            }
            Some(Value::Array(list)) => list.iter().map(local_file).collect::<Result<_, _>>()?,
            Some(_) => return Err("attachments: expected a list".into()),
        };
        if text.is_none() && attachments.is_empty() {
            return Err("nothing to send: give text, or attachments".into());
        }
        let target = match (field("session")?, field("channel")?, field("account")?, field("peer")?) {
            (None, None, None, None) => None,
            (Some(session), None, None, None) => {
                Some(Target::Session(SessionKey::parse(&session).map_err(|error| error.message)?))
            }
            (None, Some(channel), account, peer) => {
                let account = account.unwrap_or_default();
                Some(Target::Route(Route { channel, account, peer, ..Route::default() }))
            }
            (Some(_), ..) => return Err("name either a session, or channel and account: not both".into()),
            (None, ..) => return Err("account and peer belong to a channel: name that too".into()),
        };
        Ok(Self { target, text, attachments })
    }

    /// What is said in another conversation: the text, and a line for each file.
    pub fn in_words(&self, files: &[LocalFile]) -> String {
        let lines = files.iter().map(|file| {
            let caption = file.caption.as_deref().map(|caption| format!(": {caption}")).unwrap_or_default();
            let size = file.size.map(|size| format!(", {size} bytes")).unwrap_or_default();
            format!("[{} {} ({}{size})]{caption}", file.form.name(), file.path, file.media_type())
        });
        self.text.iter().cloned().chain(lines).collect::<Vec<_>>().join("\n")
    }
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// Into a conversation here.
    Here(Target),
    /// To people over a channel.
    Channel(Route),
}

/// The account of a channel where none is named.
const ACCOUNT: &str = "main";

/// Where a message for this target goes, where there are these channels.
///
/// # Errors
/// What is missing, for the model.
pub fn place(target: Target, channels: &[String]) -> Result<Place, String> {
    let is_channel = |name: &str| channels.iter().any(|channel| channel == name);
    let there = || match channels.is_empty() {
        true => "no channel leads to people elsewhere".to_owned(),
        false => format!("channels to people elsewhere are: {}", channels.join(", ")),
    };
    match target {
        Target::Session(key) if is_channel(&key.channel()) || key.owner().is_channel() => {
            Ok(Place::Channel(Route {
                channel: key.channel().into_owned(),
                account: key.account().into_owned(),
                peer: Some(key.peer().into_owned()),
                ..Route::default()
            }))
        }
        Target::Route(mut route) if is_channel(&route.channel) => {
            if route.account.is_empty() {
                route.account = ACCOUNT.into();
            }
            match route.peer {
                Some(_) => Ok(Place::Channel(route)),
                None => Err(format!("peer: missing; over the channel {} it says to whom", route.channel)),
            }
        }
        Target::Route(route) if route.account.is_empty() => {
            Err(format!("account: missing; a channel here has one, and {}", there()))
        }
        target => Ok(Place::Here(target)),
    }
}

fn local_file(value: &Value) -> Result<LocalFile, String> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let form = text("type").and_then(|form| Form::from_name(&form));
    let form = form.ok_or_else(|| {
        let forms: Vec<&str> = Form::ALL.iter().map(|form| form.name()).collect();
        format!("attachments: type: expected one of {}", forms.join(", "))
    })?;
    let path = text("path").filter(|path| !path.is_empty()).ok_or("attachments: path: expected text")?;
    let caption = text("caption").filter(|caption| !caption.is_empty());
    if caption.as_ref().is_some_and(|caption| caption.len() > CAPTION_BYTES_MAX) {
        return Err(format!("attachments: caption: longer than {CAPTION_BYTES_MAX} bytes"));
    }
    let local_file = LocalFile { form, path, media_type: None, name: None, caption, size: None };
    local_file.check().map_err(|error| error.message)?;
    Ok(local_file)
}

fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

/// The result of a call that put a message into a conversation.
pub fn said(session: Option<&SessionKey>, id: &RunId) -> String {
    json!({ "sent": true, "session": session.map(SessionKey::as_str), "message": id.as_str() }).to_string()
}

/// What was sent to whoever asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// What it says, a part of the answer.
    pub text: Option<String>,
    /// The files, as clients of xeno's protocol are told of them.
    pub attachments: Vec<Value>,
}

impl Sent {
    /// Of files that were looked at.
    pub fn new(text: Option<String>, files: &[LocalFile]) -> Self {
        let attachments = files.iter().map(|file| {
            let mut attachment = json!({
                "type": file.form.name(),
                "path": file.path,
                "mimeType": file.media_type(),
                "fileName": file.name,
            });
            if let Some(caption) = &file.caption {
                attachment["caption"] = caption.clone().into();
            }
            if let Some(size) = file.size {
                attachment["size"] = size.into();
            }
            attachment
        });
        Self { text, attachments: attachments.collect() }
    }

    /// The result of the call.
    pub fn to_result(&self) -> String {
        json!({ "sent": true, "with": "the answer", "text": self.text, "attachments": self.attachments })
            .to_string()
    }

    /// Reads it from the result of a call; none where that put a message elsewhere.
    pub fn read(result: &str) -> Option<Self> {
        let mut result: Value = serde_json::from_str(result).ok()?;
        let attachments = match result.get_mut("attachments").map(Value::take) {
            Some(Value::Array(attachments)) => attachments,
            _ => return None,
        };
        let text = result.get("text").and_then(Value::as_str).map(str::to_owned);
        Some(Self { text, attachments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_wrote_is_read_or_refused_in_words() {
        let file = json!({ "type": "image", "path": "/a/b.png", "caption": "look" });
        let read = |input: Value| Message::read(&input);
        let message = read(json!({ "text": "hi", "session": "main:openclaw:main:main" })).unwrap();
        let session = SessionKey::parse("main:openclaw:main:main").unwrap();
        assert_eq!(message.target, Some(Target::Session(session)));
        let message = read(json!({ "text": "hi", "channel": "xeno", "account": "default", "peer": null }));
        assert!(matches!(message.unwrap().target, Some(Target::Route(Route { peer: None, .. }))));
        let message = read(json!({ "attachments": [file] })).unwrap();
        assert_eq!((message.target, message.text, message.attachments.len()), (None, None, 1));
        for (input, why) in [
            (json!([]), "not a JSON object"),
            (json!({}), "nothing to send"),
            (json!({ "text": " " }), "nothing to send"),
            (json!({ "text": 5 }), "text: expected text"),
            (json!({ "text": "x".repeat(TEXT_BYTES_MAX + 1) }), "in parts"),
            (json!({ "text": "x", "to": "y" }), "unknown field \"to\""),
            (json!({ "text": "x", "session": "main" }), "session key"),
            (json!({ "text": "x", "session": "a:b:c:d", "channel": "c" }), "not both"),
            (json!({ "text": "x", "peer": "c" }), "belong to a channel"),
            (json!({ "attachments": {} }), "a list"),
            (json!({ "attachments": [{ "type": "film", "path": "/a" }] }), "one of image"),
            (json!({ "attachments": [{ "type": "image" }] }), "path: expected text"),
            (json!({ "attachments": [{ "type": "image", "path": "a.png" }] }), "not absolute"),
            (json!({ "attachments": vec![file.clone(); ATTACHMENTS_MAX + 1] }), "more than"),
        ] {
            let error = read(input.clone()).unwrap_err();
            assert!(error.contains(why) && error.len() < 300, "{input}: {error}");
        }
    }

    #[test]
    fn a_channel_leads_to_people_and_other_names_to_conversations_here() {
        let channels = ["slack".to_owned(), "telegram".to_owned()];
        let place = |input: Value| super::place(Message::read(&input).unwrap().target.unwrap(), &channels);
        let route = Route {
            channel: "telegram".into(),
            account: "main".into(),
            peer: Some("111".into()),
            ..Route::default()
        };
        for input in [
            json!({ "text": "x", "channel": "telegram", "peer": "111" }),
            json!({ "text": "x", "channel": "telegram", "account": "main", "peer": "111" }),
            json!({ "text": "x", "session": "main:telegram:main:111" }),
        ] {
            assert_eq!(place(input), Ok(Place::Channel(route.clone())));
        }
        let here = place(json!({ "text": "x", "channel": "xeno", "account": "default" }));
        assert!(matches!(here, Ok(Place::Here(Target::Route(_)))));
        let told = place(json!({ "text": "x", "channel": "xeno" })).unwrap_err();
        assert!(told.contains("account: missing") && told.contains("slack, telegram"), "{told}");
        let told = place(json!({ "text": "x", "channel": "slack" })).unwrap_err();
        assert!(told.contains("peer: missing"), "{told}");
        assert!(
            spec(&channels).description.contains("slack, telegram")
                && !spec(&[]).description.contains("people")
        );
    }

    #[test]
    fn what_was_sent_back_reads_back() {
        let message =
            Message::read(&json!({ "attachments": [{ "type": "voice", "path": "/a/b.ogg" }] })).unwrap();
        let mut files = message.attachments.clone();
        files[0].size = Some(3);
        let sent = Sent::new(Some("hi".into()), &files);
        assert_eq!(Sent::read(&sent.to_result()), Some(sent.clone()));
        assert_eq!(sent.attachments[0]["mimeType"], "audio/ogg");
        assert_eq!(Sent::read(&said(None, &"m".into())), None);
        assert_eq!(message.in_words(&files), "[voice /a/b.ogg (audio/ogg, 3 bytes)]");
    }
}
