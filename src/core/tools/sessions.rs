//! The built-in tools `session_list` and `session_read`: an agent looks into other conversations of whoever its
//! session belongs to.
//!
//! It sees what belongs to the owner of its session and nothing else, also in sessions of operators. The people who
//! write over a channel are many and the channel's sessions have one owner: there an agent sees the conversations with
//! the same person alone.

use serde_json::{Value, json};

use crate::conversation::command::{ReadHistory, SessionCommand, SessionFilter};
use crate::conversation::reply::SessionList;
use crate::conversation::transcript::{History, Role};
use crate::ids::{PluginName, SessionKey};
use crate::target::Target;
use crate::time::Timestamp;
use crate::tools::call::ToolSpec;
use crate::tools::input::Input;

/// The names under which models call the tools.
pub const LIST: &str = "session_list";
/// See [`LIST`].
pub const READ: &str = "session_read";

/// How many sessions are listed where the call does not say, and at most.
const LISTED: u64 = 20;
const LISTED_MAX: u64 = 100;

/// How many turns are read where the call does not say, and at most.
const TURNS: u64 = 5;
const TURNS_MAX: u64 = 20;

/// The longest text of a message that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// The longest key and search, in bytes.
const WORD_BYTES_MAX: usize = 1024;

/// What the tools are offered as.
pub fn specs() -> Vec<ToolSpec> {
    let spec = |name: &str, description: &str, properties: Value, required: &[&str]| ToolSpec {
        name: PluginName::from(name),
        description: description.into(),
        input_schema: json!({ "type": "object", "properties": properties, "required": required }),
    };
    let number = |most: u64, what: &str| json!({ "type": "integer", "minimum": 1, "maximum": most, "description": what });
    vec![
        spec(
            LIST,
            "Lists the user's conversations, the latest used first: the key of each, and how it began.",
            json!({
                "search": { "type": "string", "description": "Only those with this in their key or title." },
                "limit": number(LISTED_MAX, "How many at most; 20 where it is left out."),
            }),
            &[],
        ),
        spec(
            READ,
            "Reads the last turns of another conversation of the user.",
            json!({
                "session": { "type": "string", "description": "The key of the session, as session_list has it." },
                "turns": number(TURNS_MAX, "How many turns at most; 5 where it is left out."),
            }),
            &["session"],
        ),
    ]
}

/// What a call of one of the tools asks for, made in the session `own`.
///
/// # Errors
/// What is wrong with the input, for the model; and where the session is not for it to read.
pub fn command(tool: &str, input: &Value, own: &SessionKey) -> Result<SessionCommand, String> {
    if tool == LIST {
        let input = Input::new(input, &["search", "limit"])?;
        let search = input.text("search", WORD_BYTES_MAX)?.map(|text| text.trim().to_owned());
        let limit = input.integer("limit", 1, LISTED_MAX)?.unwrap_or(LISTED) as usize;
        let filter = SessionFilter { limit, search, with_texts: true, ..SessionFilter::default() };
        return Ok(SessionCommand::ListSessions(filter));
    }
    let input = Input::new(input, &["session", "turns"])?;
    let key = input.required("session", WORD_BYTES_MAX)?.trim();
    let session = SessionKey::parse(key).map_err(|error| error.message)?;
    let turns = input.integer("turns", 1, TURNS_MAX)?.unwrap_or(TURNS) as usize;
    if !is_for(own, &session.clone().in_space(&own.owner())) {
        return Err(format!("no such session: {session}"));
    }
    let target = Target::Session(session);
    Ok(SessionCommand::ReadHistory(ReadHistory { target, limit: 2 * turns, before: None }))
}

/// Whether an agent in `own` may look into another session of the same owner.
fn is_for(own: &SessionKey, other: &SessionKey) -> bool {
    match own.owner() {
        owner if owner.is_channel() => {
            (own.channel(), own.account(), own.peer()) == (other.channel(), other.account(), other.peer())
        }
        _ => true,
    }
}

/// The sessions, as a model in `own` is told of them: one a line.
pub fn listed(list: &SessionList, own: &SessionKey) -> String {
    let seen = list.rows.iter().filter(|row| is_for(own, &row.session));
    let told = seen.map(|row| {
        let told = json!({
            "session": row.session.as_str(),
            "title": row.title,
            "updated": row.updated.to_rfc3339(),
            "this": row.session == *own,
        });
        told.to_string()
    });
    let mut lines: Vec<String> = told.collect();
    if lines.is_empty() {
        lines.push("there is no such conversation".into());
    }
    lines.join("\n")
}

/// What was said, as a model is told of it.
pub fn said(history: &History) -> String {
    let mut lines: Vec<String> = Vec::new();
    if history.more {
        lines.push("[what was said before is left out]".into());
    }
    for message in &history.messages {
        let who = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let text = &message.content[..message.content.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let cut = if message.clipped || text.len() < message.content.len() { " [cut]" } else { "" };
        lines.push(format!("[{who}, {}] {text}{cut}", Timestamp::to_rfc3339(message.at)));
    }
    if lines.is_empty() {
        lines.push("nothing was said in it".into());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::transcript::Message;

    fn key(text: &str) -> SessionKey {
        SessionKey::parse(text).unwrap()
    }

    #[test]
    fn what_a_model_wrote_is_read_or_refused_in_words() {
        let own = key("main:cli:ada:main");
        let read = |tool: &str, input: Value| command(tool, &input, &own);
        assert!(
            matches!(read(LIST, json!({})), Ok(SessionCommand::ListSessions(filter)) if filter.limit == 20)
        );
        let asked = read(READ, json!({ "session": "main:cli:ada:work", "turns": 3 })).unwrap();
        assert!(matches!(asked, SessionCommand::ReadHistory(ReadHistory { limit: 6, .. })));
        for (tool, input, why) in [
            (LIST, json!({ "limit": 101 }), "limit: expected 1 to 100"),
            (LIST, json!({ "owner": "eve" }), "unknown field \"owner\""),
            (READ, json!({}), "session: missing"),
            (READ, json!({ "session": "x" }), "session key"),
            (READ, json!({ "session": "a:b:c:d", "turns": 21 }), "turns: expected 1 to 20"),
        ] {
            let error = read(tool, input.clone()).unwrap_err();
            assert!(error.contains(why), "{input}: {error}");
        }
    }

    #[test]
    fn who_writes_over_a_channel_does_not_read_what_others_wrote() {
        let own = key("channel%3Atelegram/main:telegram:main:111");
        let read = |session: &str| command(READ, &json!({ "session": session }), &own);
        assert!(read("main:telegram:main:111").is_ok());
        assert!(read("channel%3Atelegram/work:telegram:main:111").is_ok());
        for other in
            ["main:telegram:main:222", "channel%3Atelegram/main:telegram:main:222", "main:agent:x:main"]
        {
            let refused = read(other).unwrap_err();
            assert!(refused.starts_with("no such session"), "{refused}");
        }
    }

    #[test]
    fn what_was_said_is_a_line_each_and_cut() {
        let message = |role, content: &str| Message {
            role,
            content: content.into(),
            at: Timestamp::from_millis(0),
            run: "r".into(),
            clipped: false,
            attachments: Vec::new(),
        };
        let messages =
            vec![message(Role::User, "hi"), message(Role::Assistant, &"é".repeat(MESSAGE_BYTES_MAX))];
        let told = said(&History { session: key("a:b:c:d"), messages, more: true });
        assert!(
            told.starts_with("[what was said before is left out]\n[user, 1970-01-01T00:00:00.000Z] hi\n"),
            "{told}"
        );
        assert!(told.ends_with(" [cut]") && told.len() < MESSAGE_BYTES_MAX + 200);
        let nothing = History { session: key("a:b:c:d"), messages: Vec::new(), more: false };
        assert_eq!(said(&nothing), "nothing was said in it");
    }
}
