//! An answer as adapters read it: where it goes, under which id, and what it says.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::header;
use super::subject::Peer;
use crate::conversation::outbox::{AnswerStatus, ChannelAnswer};

/// Where the answer to a message of the bus goes: a [`ToSay`](crate::conversation::outbox::ToSay)'s address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The channel.
    pub channel: String,
    /// The account.
    pub account: String,
    /// The peer.
    pub peer: String,
    /// A subject that it goes to, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// The id of the message that it answers; none for what nobody asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<String>,
}

/// An answer that is ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// The subject it goes to durably.
    pub subject: String,
    /// One that it goes to besides.
    pub reply: Option<String>,
    /// Its id: of several with the same one, consumers take one.
    pub id: String,
    /// Its headers, besides the id.
    pub headers: Vec<(&'static str, String)>,
    /// What it says.
    pub payload: Vec<u8>,
}

impl Address {
    /// Of a peer.
    pub fn new(peer: Peer, reply: Option<String>, in_reply_to: Option<String>) -> Self {
        let Peer { channel, account, peer } = peer;
        Self { channel, account, peer, reply, in_reply_to }
    }

    /// Whose it is.
    pub fn peer(&self) -> Peer {
        Peer { channel: self.channel.clone(), account: self.account.clone(), peer: self.peer.clone() }
    }

    /// As a prompt keeps it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As it was kept.
    ///
    /// # Errors
    /// Where that is not what [`Self::to_json`] gave.
    pub fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|error| format!("an address: {error}"))
    }
}

/// An answer for this address, in no more bytes than a server takes: what is beyond is left out of its text, and
/// `truncated` says so. The whole of it is in the session.
pub fn publish(address: &Address, mut answer: ChannelAnswer, bytes_max: usize) -> Outbound {
    let peer = address.peer();
    let id = match (answer.status, &address.in_reply_to) {
        (AnswerStatus::Refused, Some(inbound)) => format!("refused-{inbound}"),
        _ => answer.id.clone(),
    };
    let mut headers =
        vec![("Content-Type", "application/json".to_owned()), (header::RUN, answer.run.clone())];
    headers.extend(address.in_reply_to.clone().map(|inbound| (header::IN_REPLY_TO, inbound)));
    let mut payload = written(&answer, false);
    let mut room = answer.text.len();
    while payload.len() > bytes_max && room > 0 {
        // What is beyond, and as much for the escapes of it at most: so it ends after a few rounds.
        let beyond = (payload.len() - bytes_max).max(16);
        room = answer.text.floor_char_boundary(room.saturating_sub(beyond));
        answer.text.truncate(room);
        payload = written(&answer, true);
    }
    Outbound { subject: peer.answer_subject(), reply: address.reply.clone(), id, headers, payload }
}

fn written(answer: &ChannelAnswer, is_truncated: bool) -> Vec<u8> {
    let mut json = json!(answer);
    if let Some(fields) = json.as_object_mut() {
        fields.remove("id");
        if is_truncated {
            fields.insert("truncated".to_owned(), Value::Bool(true));
        }
    }
    json.to_string().into_bytes()
}

/// A piece of the text of an answer as it is said.
pub fn live(run: &str, n: u64, text: &str) -> Vec<u8> {
    json!({ "run": run, "n": n, "text": text }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use proptest::prelude::*;

    fn address(in_reply_to: Option<&str>) -> Address {
        let peer = Peer { channel: "matrix".into(), account: "main".into(), peer: "@a".into() };
        Address::new(peer, Some("_INBOX.1".into()), in_reply_to.map(str::to_owned))
    }

    #[test]
    fn an_answer_is_known_by_its_run_and_a_refusal_by_what_it_answers() {
        let to = address(Some("m-1"));
        assert_eq!(Address::from_json(&to.to_json()).unwrap(), to);
        let answer =
            ChannelAnswer { id: "r-1".into(), run: "r-1".into(), text: "hi".into(), ..Default::default() };
        let out = publish(&to, answer.clone(), 1000);
        assert_eq!((out.subject.as_str(), out.id.as_str()), ("exoclaw.matrix.main.%40a.answer", "r-1"));
        assert!(out.headers.contains(&(header::IN_REPLY_TO, "m-1".into())));
        let json: Value = serde_json::from_slice(&out.payload).unwrap();
        assert_eq!(json, json!({ "run": "r-1", "session": "", "status": "completed", "text": "hi" }));
        let spent = ChannelAnswer { status: AnswerStatus::Refused, ..answer };
        assert_eq!(publish(&to, spent, 1000).id, "refused-m-1");
        let refused = ChannelAnswer::refused("m-2", &ErrorCode::NotFound.error("no agent"));
        assert_eq!(publish(&address(Some("m-2")), refused, 1000).id, "refused-m-2");
        assert!(publish(&address(None), ChannelAnswer::said("s", "x".into()), 1000).headers.len() == 2);
    }

    proptest! {
        #[test]
        fn an_answer_fits(text in "[a-z\"\\\\\\n\u{1}ä€😀]{0,400}", room in 150_usize..600) {
            let answer = ChannelAnswer { id: "r".into(), run: "r".into(), text: text.clone(), ..Default::default() };
            let out = publish(&address(None), answer, room);
            prop_assert!(out.payload.len() <= room, "{} of {room}", out.payload.len());
            let json: Value = serde_json::from_slice(&out.payload).unwrap();
            let said = json["text"].as_str().unwrap();
            prop_assert!(text.starts_with(said));
            prop_assert_eq!(json["truncated"] == true, said.len() < text.len());
        }
    }
}
