//! The built-in provider: deterministic, no network, no key.
//!
//! It exists so that a newcomer sees the whole path work, and every client can be tried, before
//! there is a key. Its answer is a plan: what comes, and how long it takes before each piece. Whoever
//! plays the plan gives it the same stream, deadlines, budget and log as an answer from the wire.

use std::time::Duration;

use super::{ChatMessage, ChatRequest, Delta, IMAGE_TOKENS, Part, Stop, estimate_tokens, images, parts};
use crate::error::{Error, ErrorCode};
use crate::ids::{CallId, PluginName};
use crate::prompt::attachment::Attachment;
use crate::prompt::thinking::Thinking;
use crate::provider::usage::Usage;
use crate::tools::call::ToolCall;

/// The time before each piece of text: about fifty words a second, quick but visibly streaming.
const PIECE_INTERVAL: Duration = Duration::from_millis(20);

/// The longest `/slow` takes, in seconds.
const SLOW_SECS_MAX: u64 = 300;

/// The longest quote of what somebody said, in characters.
const QUOTE_CHARS_MAX: usize = 200;

/// The longest piece of text, in characters: what has no spaces streams too.
const PIECE_CHARS_MAX: usize = 24;

/// What an answer consists of.
pub type Plan = Vec<Step>;

/// One piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The time it takes after the step before.
    pub after: Duration,
    /// What it is. Nothing follows `Finished` or an error.
    pub delta: Result<Delta, Error>,
}

/// The tokens a request counts as input.
pub fn input_tokens(request: &ChatRequest) -> u64 {
    let messages: usize = request
        .messages
        .iter()
        .map(|message| match message {
            ChatMessage::User { notes, text, attachments } => {
                let shown = parts(notes, text, attachments).into_iter().map(|part| match part {
                    Part::Text(text) => text.len(),
                    Part::Image(..) => 0,
                });
                shown.sum()
            }
            ChatMessage::Assistant { text, calls, thoughts } => {
                let calls: usize =
                    calls.iter().map(|call| call.name.as_str().len() + call.input.to_string().len()).sum();
                text.len() + calls + thoughts.iter().map(|thought| thought.text.len()).sum::<usize>()
            }
            ChatMessage::ToolResults(results) => results.iter().map(|result| result.content.len()).sum(),
        })
        .sum();
    let tools: usize = request
        .tools
        .iter()
        .map(|tool| tool.name.as_str().len() + tool.description.len() + tool.input_schema.to_string().len())
        .sum();
    let text = estimate_tokens((request.system.len() + messages + tools) as u64);
    text + images(request).count() as u64 * IMAGE_TOKENS
}

/// The answer to a request.
pub fn plan(request: &ChatRequest) -> Plan {
    match request.messages.last() {
        Some(ChatMessage::ToolResults(results)) => {
            let lines: Vec<String> = results
                .iter()
                .map(|result| {
                    let name = tool_name(request, &result.call);
                    let said = if result.is_error { "failed" } else { "answered" };
                    format!("{name} {said}: {}", quote(&result.content))
                })
                .collect();
            Answer::to(request).say(&lines.join("\n")).end(Stop::End)
        }
        Some(ChatMessage::User { text, attachments, .. }) => answer(request, text.trim(), attachments),
        Some(ChatMessage::Assistant { .. }) | None => {
            Answer::to(request).say("There is nothing to answer.").end(Stop::End)
        }
    }
}

fn answer(request: &ChatRequest, text: &str, attachments: &[Attachment]) -> Plan {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let answer = Answer::to(request);
    match word {
        "/tool" => call_tool(request, rest.trim()),
        "/slow" => {
            // What else is said after that is not looked at.
            let seconds = rest.split_whitespace().next().unwrap_or_default();
            let Ok(seconds) = seconds.parse::<u64>() else {
                return answer.say("How slow? Say /slow SECONDS, for example /slow 3.").end(Stop::End);
            };
            slow(answer, seconds.min(SLOW_SECS_MAX))
        }
        "/fail" => answer.fail(ErrorCode::Provider.error("offline: failed, as /fail asks for")),
        "/help" | "help" | "help?" => answer.say(&help(request)).end(Stop::End),
        _ => answer.say(&about(request, text, attachments)).end(Stop::End),
    }
}

/// `/tool NAME {"json":"input"}`
fn call_tool(request: &ChatRequest, rest: &str) -> Plan {
    let (name, input) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !request.tools.iter().any(|tool| tool.name.as_str() == name) {
        let said = if name.is_empty() {
            format!("Which tool? {}", tools(request))
        } else {
            format!("There is no tool {name}. {}", tools(request))
        };
        return Answer::to(request).say(&said).end(Stop::End);
    }
    let call = ToolCall {
        // Deterministic, and used once in a conversation that grows.
        id: CallId::from(format!("offline_{}", request.messages.len())),
        name: PluginName::from(name),
        input: super::tool_input(input.trim().to_owned()),
    };
    Answer::to(request).say(&format!("I call {name}.\n")).call(call).end(Stop::ToolUse)
}

/// Counts the seconds, so that one sees it is alive.
fn slow(mut answer: Answer<'_>, seconds: u64) -> Plan {
    answer = answer.say("Slowly:");
    for second in 1..=seconds {
        // The text before took its time too: the whole is to take `seconds`.
        let spent = if second == 1 { answer.took() } else { Duration::ZERO };
        answer.push_text(format!(" {second}"), Duration::from_secs(1).saturating_sub(spent));
    }
    answer.push_text(" done.".to_owned(), Duration::ZERO);
    answer.end(Stop::End)
}

/// What it says of any other text.
fn about(request: &ChatRequest, text: &str, attachments: &[Attachment]) -> String {
    let earlier: Vec<&str> = request
        .messages
        .iter()
        .rev()
        .skip(1)
        .filter_map(|message| match message {
            ChatMessage::User { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let mut said = match text.split_whitespace().count() {
        1 => format!("You said: {} (1 word).", quote(text)),
        words => format!("You said: {} ({words} words).", quote(text)),
    };
    for attachment in attachments {
        let name = attachment.name().unwrap_or("a file without a name");
        let (media_type, bytes) = (attachment.media_type(), attachment.bytes());
        said.push_str(&format!(" You sent {name} ({media_type}, {bytes} bytes)."));
    }
    match earlier.as_slice() {
        [] => {
            said.push_str(
                " I am the offline provider: I stream, call tools and remember, but I can't think.\n",
            );
            said.push_str(&help(request));
        }
        [last] => said.push_str(&format!(" I remember 1 earlier message: {}.", quote(last))),
        [last, ..] => said.push_str(&format!(
            " I remember {} earlier messages, the last was: {}.",
            earlier.len(),
            quote(last)
        )),
    }
    said
}

fn help(request: &ChatRequest) -> String {
    format!(
        "Try /tool NAME {{\"text\":\"hi\"}}, /slow 3 or /fail. {}\n\
         For a real model run `clawmux setup`.",
        tools(request)
    )
}

fn tools(request: &ChatRequest) -> String {
    if request.tools.is_empty() {
        return "No tools are offered to me.".to_owned();
    }
    let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    format!("Tools offered to me: {}.", names.join(", "))
}

/// The tool that a call of the conversation was for.
fn tool_name<'a>(request: &'a ChatRequest, id: &CallId) -> &'a str {
    request
        .messages
        .iter()
        .rev()
        .find_map(|message| match message {
            ChatMessage::Assistant { calls, .. } => calls.iter().find(|call| call.id == *id),
            _ => None,
        })
        .map_or("The tool", |call| call.name.as_str())
}

fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("\"{}...\"", &text[..end]),
        None => format!("\"{text}\""),
    }
}

/// An answer being planned. Its output is bounded by the request's `max_tokens`.
struct Answer<'a> {
    request: &'a ChatRequest,
    steps: Plan,
    output_bytes: u64,
    /// Whether the bound on output was met.
    full: bool,
}

impl<'a> Answer<'a> {
    /// It begins with a thought where it is asked to think.
    fn to(request: &'a ChatRequest) -> Self {
        let mut answer = Self { request, steps: Vec::new(), output_bytes: 0, full: false };
        if request.thinking != Thinking::Off {
            let (level, messages) = (request.thinking.name(), request.messages.len());
            let thought =
                format!("I am to think ({level}), so I look at the conversation of {messages} messages.");
            for word in thought.split_inclusive(' ') {
                if answer.grow(word.len()) {
                    let delta = Ok(Delta::Thinking(word.to_owned()));
                    answer.steps.push(Step { after: PIECE_INTERVAL, delta });
                }
            }
        }
        answer
    }

    /// Text at reading speed, word by word.
    fn say(mut self, text: &str) -> Self {
        for word in text.split_inclusive(char::is_whitespace) {
            let mut rest = word;
            while let Some((end, _)) = rest.char_indices().nth(PIECE_CHARS_MAX) {
                let (piece, after) = rest.split_at(end);
                self.push_text(piece.to_owned(), PIECE_INTERVAL);
                rest = after;
            }
            self.push_text(rest.to_owned(), PIECE_INTERVAL);
        }
        self
    }

    fn push_text(&mut self, text: String, after: Duration) {
        if !text.is_empty() && self.grow(text.len()) {
            self.steps.push(Step { after, delta: Ok(Delta::Text(text)) });
        }
    }

    fn call(mut self, call: ToolCall) -> Self {
        if self.grow(call.name.as_str().len() + call.input.to_string().len()) {
            self.steps.push(Step { after: PIECE_INTERVAL, delta: Ok(Delta::ToolCall(call)) });
        }
        self
    }

    /// Whether so much more output is within the bound.
    fn grow(&mut self, bytes: usize) -> bool {
        let grown = self.output_bytes + bytes as u64;
        self.full |= estimate_tokens(grown) > u64::from(self.request.max_tokens);
        if !self.full {
            self.output_bytes = grown;
        }
        !self.full
    }

    fn took(&self) -> Duration {
        self.steps.iter().map(|step| step.after).sum()
    }

    fn end(mut self, stop: Stop) -> Plan {
        let usage = Usage::new(input_tokens(self.request), estimate_tokens(self.output_bytes));
        let stop = if self.full { Stop::MaxTokens } else { stop };
        let delta = Ok(Delta::Finished { stop, usage: Some(usage) });
        self.steps.push(Step { after: Duration::ZERO, delta });
        self.steps
    }

    fn fail(mut self, error: Error) -> Plan {
        self.steps.push(Step { after: PIECE_INTERVAL, delta: Err(error) });
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::tests::{self, echo};
    use crate::tools::call::ToolResult;
    use proptest::prelude::*;
    use serde_json::json;

    fn request(messages: Vec<ChatMessage>) -> ChatRequest {
        let request = tests::request("offline", messages);
        ChatRequest { system: "Be kind.".into(), tools: vec![echo()], max_tokens: 4096, ..request }
    }

    fn user(text: &str) -> ChatMessage {
        ChatMessage::user(text)
    }

    fn assistant(text: &str) -> ChatMessage {
        ChatMessage::Assistant { text: text.to_owned(), calls: Vec::new(), thoughts: Vec::new() }
    }

    fn text(plan: &Plan) -> String {
        plan.iter()
            .filter_map(|step| match &step.delta {
                Ok(Delta::Text(text)) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_newcomer_is_answered_and_told_where_to_go_once() {
        let first = plan(&request(vec![user("hello there")]));
        let said = text(&first);
        assert!(said.starts_with("You said: \"hello there\" (2 words)."), "{said}");
        assert!(said.contains("clawmux setup") && said.contains("echo"), "{said}");
        assert!(first.len() > 10, "it streams: {first:?}");

        let second = text(&plan(&request(vec![user("hello there"), assistant("..."), user("İİİİ")])));
        assert_eq!(second, "You said: \"İİİİ\" (1 word). I remember 1 earlier message: \"hello there\".");
        let third =
            text(&plan(&request(vec![user("a"), assistant("."), user("b"), assistant("."), user("c")])));
        assert!(third.ends_with("I remember 2 earlier messages, the last was: \"b\"."), "{third}");
        assert!(
            text(&plan(&request(vec![user("a"), assistant("."), user("/help")]))).contains("clawmux setup")
        );
    }

    #[test]
    fn tools_are_called_and_their_results_told() {
        let asked = request(vec![user(r#"/tool echo {"text":"hi"}"#)]);
        let called = plan(&asked);
        let Some(Step { delta: Ok(Delta::ToolCall(call)), .. }) = called.get(called.len() - 2) else {
            panic!("{called:?}");
        };
        assert_eq!((call.name.as_str(), &call.input), ("echo", &json!({"text": "hi"})));
        assert!(matches!(
            called.last(),
            Some(Step { delta: Ok(Delta::Finished { stop: Stop::ToolUse, usage: Some(_) }), .. })
        ));
        let result = ToolResult { call: call.id.clone(), content: "hi".into(), is_error: false };
        let answered = plan(&request(vec![
            asked.messages[0].clone(),
            ChatMessage::Assistant { text: text(&called), calls: vec![call.clone()], thoughts: vec![] },
            ChatMessage::ToolResults(vec![result]),
        ]));
        assert_eq!(text(&answered), "echo answered: \"hi\"");
    }

    #[test]
    fn it_says_what_it_was_sent() {
        let attachment = |name, data: &'static [u8]| {
            Attachment::new(Some(name), None, bytes::Bytes::from_static(data)).unwrap()
        };
        let attachments = vec![attachment("a.png", b"\x89PNG\r\n\x1a\n..."), attachment("b.csv", b"1,2")];
        let said = text(&plan(&request(vec![ChatMessage::User {
            notes: String::new(),
            text: "look".into(),
            attachments,
        }])));
        assert!(
            said.contains("You sent a.png (image/png, 11 bytes). You sent b.csv (text/plain, 3 bytes)."),
            "{said}"
        );
    }

    #[test]
    fn it_thinks_a_little_where_it_is_asked_to() {
        let mut asked = request(vec![user("hi")]);
        asked.thinking = Thinking::Low;
        let planned = plan(&asked);
        let is_thought = |step: &&Step| matches!(step.delta, Ok(Delta::Thinking(_)));
        let thoughts = planned.iter().take_while(is_thought).count();
        assert!(thoughts > 5 && planned.iter().filter(is_thought).count() == thoughts, "{planned:?}");
        asked.thinking = Thinking::Off;
        assert_eq!(planned[thoughts..planned.len() - 1], plan(&asked)[..planned.len() - thoughts - 1]);
    }

    #[test]
    fn a_tool_call_gone_wrong_is_told() {
        let unknown = text(&plan(&request(vec![user("/tool rm {}")])));
        assert_eq!(unknown, "There is no tool rm. Tools offered to me: echo.");
        for (said, expected) in [("/tool echo", json!({})), ("/tool echo {broken", json!("{broken"))] {
            let called = plan(&request(vec![user(said)]));
            let Some(Step { delta: Ok(Delta::ToolCall(call)), .. }) = called.get(called.len() - 2) else {
                panic!("{called:?}");
            };
            assert_eq!(call.input, expected);
        }
    }

    #[test]
    fn slow_takes_its_time_and_fail_fails() {
        let slow = plan(&request(vec![user("/slow 3")]));
        assert_eq!(slow.iter().map(|step| step.after).sum::<Duration>(), Duration::from_secs(3));
        assert_eq!(text(&slow), "Slowly: 1 2 3 done.");
        let longest = plan(&request(vec![user("/slow 99999999")]));
        assert_eq!(
            longest.iter().map(|step| step.after).sum::<Duration>(),
            Duration::from_secs(SLOW_SECS_MAX)
        );

        let failed = plan(&request(vec![user("/fail")]));
        let [Step { delta: Err(error), .. }] = failed.as_slice() else { panic!("{failed:?}") };
        assert_eq!(error.code, ErrorCode::Provider);
    }

    #[test]
    fn output_stays_within_max_tokens() {
        let mut bounded = request(vec![user("hello there")]);
        bounded.max_tokens = 5;
        let steps = plan(&bounded);
        assert!(text(&steps).len() <= 20, "{steps:?}");
        let Some(Step { delta: Ok(Delta::Finished { stop, usage: Some(usage) }), .. }) = steps.last() else {
            panic!("{steps:?}");
        };
        assert_eq!(*stop, Stop::MaxTokens);
        assert!(usage.output_tokens <= 5 && usage.input_tokens > 0, "{usage:?}");
    }

    proptest! {
        #[test]
        fn every_text_gets_an_end(said in any::<String>(), max_tokens in 0u32..50) {
            let mut request = request(vec![user(&said)]);
            request.max_tokens = max_tokens;
            let steps = plan(&request);
            let ends = steps.iter().filter(|step| matches!(step.delta, Ok(Delta::Finished { .. }) | Err(_))).count();
            prop_assert_eq!(ends, 1, "{:?}", steps);
            prop_assert!(text(&steps).len() as u64 <= u64::from(max_tokens) * 4);
        }
    }
}
