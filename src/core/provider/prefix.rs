//! Which part of a request is not as it was in the session's last one, so that operators can be told why a
//! provider's cache was missed. Only digests are kept.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{ChatMessage, ChatRequest};
use crate::ids::SessionKey;

/// Of so many sessions the last requests are known; beyond, it starts anew.
const SESSIONS_MAX: usize = 4096;

/// So many strands of requests are told apart in one session: its conversation, and what is asked beside it.
const STRANDS_MAX: usize = 3;

/// The first part of a request, in the order in which providers cache them, that is not as it was in the
/// session's last one: what comes from there on was not in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// Nothing: all of the last request is in front of this one.
    Nothing,
    /// Another model was asked.
    Model,
    /// The tools that are offered.
    Tools,
    /// The system prompt.
    System,
    /// The messages that were sent before.
    Messages,
}

impl Changed {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Model, Self::Tools, Self::System, Self::Messages];

    /// Its name in the store and to operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Model => "model",
            Self::Tools => "tools",
            Self::System => "system",
            Self::Messages => "messages",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|changed| changed.name() == name)
    }
}

/// The last requests of sessions, by their digests.
#[derive(Debug, Default)]
pub struct Prefixes(HashMap<SessionKey, Vec<Sent>>);

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    model: u64,
    tools: u64,
    system: u64,
    /// How many messages, and the digest of all of them.
    messages: usize,
    conversation: u64,
}

impl Prefixes {
    /// How this request differs from the last one of its session; none where none is known. From now on it
    /// is the last.
    pub fn changed(
        &mut self,
        session: &SessionKey,
        provider: &str,
        request: &ChatRequest,
    ) -> Option<Changed> {
        if self.0.len() >= SESSIONS_MAX && !self.0.contains_key(session) {
            self.0.clear();
        }
        let sent = Sent {
            model: digest(&[provider, &request.model]),
            tools: tools(request),
            system: digest(&request.system),
            messages: request.messages.len(),
            conversation: conversation(&request.messages),
        };
        let strands = self.0.entry(session.clone()).or_default();
        let against = |before: &Sent| match before {
            before if before.model != sent.model => Changed::Model,
            before if before.tools != sent.tools => Changed::Tools,
            before if before.system != sent.system => Changed::System,
            before if !is_in_front(before, &request.messages) => Changed::Messages,
            _ => Changed::Nothing,
        };
        // The one that it goes on from is the one that has most in common with it.
        let nearest = strands.iter().enumerate().map(|(at, before)| (likeness(against(before)), at)).max();
        let Some((_, at)) = nearest else {
            strands.push(sent);
            return None;
        };
        let changed = against(&strands[at]);
        if changed == Changed::Nothing || strands.len() >= STRANDS_MAX {
            strands.remove(at);
        }
        strands.push(sent);
        Some(changed)
    }
}

/// How much two requests have in common that differ so.
fn likeness(changed: Changed) -> usize {
    match changed {
        Changed::Model => 0,
        Changed::Tools => 1,
        Changed::System => 2,
        Changed::Messages => 3,
        Changed::Nothing => 4,
    }
}

fn is_in_front(before: &Sent, messages: &[ChatMessage]) -> bool {
    messages.get(..before.messages).is_some_and(|front| conversation(front) == before.conversation)
}

fn digest(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn tools(request: &ChatRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    for tool in &request.tools {
        (tool.name.as_str(), &tool.description, tool.input_schema.to_string()).hash(&mut hasher);
    }
    hasher.finish()
}

fn conversation(messages: &[ChatMessage]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for message in messages {
        match message {
            ChatMessage::User { notes, text, attachments } => {
                (0, notes, text, attachments.len()).hash(&mut hasher);
                // Their bytes are many, and never change under the same words.
                attachments.iter().for_each(|attachment| attachment.data().len().hash(&mut hasher));
            }
            ChatMessage::Assistant { text, calls, thoughts } => {
                (1, text, thoughts.len()).hash(&mut hasher);
                for call in calls {
                    (call.id.as_str(), call.name.as_str(), call.input.to_string()).hash(&mut hasher);
                }
            }
            ChatMessage::ToolResults(results) => {
                2.hash(&mut hasher);
                for result in results {
                    (result.call.as_str(), &result.content, result.is_error).hash(&mut hasher);
                }
            }
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::thinking::Thinking;

    fn request(model: &str, system: &str, said: &[&str]) -> ChatRequest {
        ChatRequest {
            model: model.into(),
            system: system.into(),
            messages: said.iter().map(|text| ChatMessage::user(*text)).collect(),
            tools: Vec::new(),
            max_tokens: 1,
            thinking: Thinking::Off,
            cache_marks: true,
        }
    }

    #[test]
    fn the_first_part_that_differs_is_named() {
        let session = SessionKey::new("main", "test", "a", "main").unwrap();
        let mut prefixes = Prefixes::default();
        let mut changed = |request: ChatRequest| prefixes.changed(&session, "p", &request);
        assert_eq!(changed(request("m", "soul", &["a"])), None, "nothing is known of before");
        assert_eq!(changed(request("m", "soul", &["a", "b"])), Some(Changed::Nothing));
        assert_eq!(
            changed(request("m", "soul", &["b", "c"])),
            Some(Changed::Messages),
            "one fell off the front"
        );
        assert_eq!(changed(request("m", "soul", &["b", "c", "d"])), Some(Changed::Nothing));
        assert_eq!(changed(request("m", "another", &["b", "c", "d", "e"])), Some(Changed::System));
        assert_eq!(changed(request("n", "another", &["b", "c", "d", "e", "f"])), Some(Changed::Model));
    }

    #[test]
    fn what_is_asked_beside_the_conversation_changes_nothing_in_it() {
        let session = SessionKey::new("main", "test", "a", "main").unwrap();
        let mut prefixes = Prefixes::default();
        let mut changed = |request: ChatRequest| prefixes.changed(&session, "p", &request);
        changed(request("m", "soul", &["a"]));
        changed(request("m", "what is to be remembered?", &["a said"]));
        assert_eq!(changed(request("m", "soul", &["a", "b"])), Some(Changed::Nothing));
        let other = SessionKey::new("main", "test", "b", "main").unwrap();
        assert_eq!(prefixes.changed(&other, "p", &request("m", "soul", &["a"])), None);
    }
}
