//! Less of a request, where a model or its server can't take all of it.

use super::fault::Fault;
use super::notice::{Notice, NoticeKind};
use super::{ChatMessage, ChatRequest};
use crate::error::Error;
use crate::prompt::thinking::Thinking;

/// How often one request is made shorter: first the older half of the past is left out, then all of it.
const SHORTENED_MAX: u32 = 2;

/// What is told of it when less is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Less {
    /// Something that the model does not see now.
    Told(Notice),
    /// Nothing that the model would see.
    Untold,
}

/// What was left out of a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reduced {
    shortened: u32,
}

impl Reduced {
    /// Leaves out of `request` what this fault says can't be taken, the oldest first, and says so; none where
    /// that does not help.
    pub fn reduce(&mut self, request: &mut ChatRequest, fault: Fault) -> Option<Less> {
        let model = request.model.clone();
        let told = |what: String| Some(Less::Told(Notice::new(NoticeKind::Reduced, what)));
        match fault {
            Fault::ContextTooLong if self.shortened < SHORTENED_MAX => {
                self.shortened += 1;
                let left_out = shorten(&mut request.messages, self.shortened == SHORTENED_MAX)?;
                let turns = if left_out == 1 { "turn was" } else { "turns were" };
                told(format!(
                    "the conversation is too long for {model}: the oldest {left_out} {turns} left out of what is sent"
                ))
            }
            Fault::NoImages if request.leave_out_images() => {
                told(format!("{model} can't see images: they are named to it instead"))
            }
            Fault::NoTools if !request.tools.is_empty() => {
                let told = told(format!("{model} can't call tools: it is asked without"));
                request.tools.clear();
                told
            }
            Fault::NoThinking if request.thinking != Thinking::Off => {
                request.thinking = Thinking::Off;
                told(format!("{model} can't think as it was asked to: it is asked without"))
            }
            Fault::NoThoughts if request.leave_out_thoughts() => {
                told(format!("{model} does not take back what was thought before: it is left out"))
            }
            Fault::NoCacheMarks if request.cache_marks => {
                request.cache_marks = false;
                Some(Less::Untold)
            }
            _ => None,
        }
    }
}

impl ChatRequest {
    /// That it is longer than the model's context, whatever of the past is left out: `error` is what was said to
    /// that.
    pub fn too_long_alone(&self, model: &str, error: &Error) -> Error {
        let with = match self.messages.iter().any(|message| matches!(message, ChatMessage::ToolResults(_))) {
            true => "this prompt with what its tools answered",
            false => "this prompt alone",
        };
        let said = match error.message.split_once(": ") {
            Some((who, said)) => format!("{who}: {said:?}"),
            None => error.message.clone(),
        };
        Error { message: format!("{with} is too long for {model}; {said}"), ..error.clone() }
    }

    /// Lets go of all that was thought. Whether there was anything.
    fn leave_out_thoughts(&mut self) -> bool {
        let mut any = false;
        for message in &mut self.messages {
            if let ChatMessage::Assistant { thoughts, .. } = message {
                any |= !thoughts.is_empty();
                thoughts.clear();
            }
        }
        any
    }

    /// Lets go of all images, which are named in their place. Whether there were any.
    pub fn leave_out_images(&mut self) -> bool {
        let mut any = false;
        for message in &mut self.messages {
            let ChatMessage::User { attachments, .. } = message else { continue };
            for image in attachments.iter_mut().filter(|attachment| attachment.is_shown_image()) {
                image.let_go();
                any = true;
            }
        }
        any
    }
}

/// Leaves out the older half of the past exchanges, by their number and at least one; or all of them. How many
/// that were; none where there are none. What is under way stays whole.
fn shorten(messages: &mut Vec<ChatMessage>, all: bool) -> Option<usize> {
    let begins: Vec<usize> =
        (0..messages.len()).filter(|at| matches!(messages[*at], ChatMessage::User { .. })).collect();
    let past = begins.len().checked_sub(1).filter(|past| *past > 0)?;
    let left_out = if all { past } else { past.div_ceil(2) };
    // The summary of what went before them stands beside the first of all.
    let before = match &mut messages[0] {
        ChatMessage::User { notes, .. } => std::mem::take(notes),
        _ => String::new(),
    };
    messages.drain(..begins[left_out]);
    if let Some(ChatMessage::User { notes, .. }) = messages.first_mut().filter(|_| !before.is_empty()) {
        *notes = if notes.is_empty() { before } else { format!("{before}\n\n{notes}") };
    }
    Some(left_out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{echo, file, request};
    use super::*;
    use crate::error::ErrorCode;
    use crate::provider::thought::{SignatureData, Thought};
    use crate::tools::call::ToolResult;

    fn said(text: &str) -> ChatMessage {
        ChatMessage::Assistant { text: text.into(), calls: Vec::new(), thoughts: Vec::new() }
    }

    #[test]
    fn the_oldest_turns_are_left_out_and_never_what_is_under_way() {
        let result = ToolResult { call: "c".into(), content: "r".into(), is_error: false };
        let under_way =
            [ChatMessage::user("now"), said("let me see"), ChatMessage::ToolResults(vec![result])];
        let past = (0..3).flat_map(|n| [ChatMessage::user(format!("q{n}")), said("a")]);
        let mut asked = request("m", past.chain(under_way.clone()).collect());
        let mut reduced = Reduced::default();
        let Some(Less::Told(notice)) = reduced.reduce(&mut asked, Fault::ContextTooLong) else { panic!() };
        assert!(notice.message.contains("the oldest 2 turns were left out"), "{notice:?}");
        assert_eq!(asked.messages[0], ChatMessage::user("q2"));
        let Some(Less::Told(notice)) = reduced.reduce(&mut asked, Fault::ContextTooLong) else { panic!() };
        assert!(notice.message.contains("the oldest 1 turn was left out"), "{notice:?}");
        assert_eq!(asked.messages, under_way);
        assert_eq!(reduced.reduce(&mut asked, Fault::ContextTooLong), None);
        assert_eq!(Reduced::default().reduce(&mut asked, Fault::ContextTooLong), None, "nothing is left");
        assert_eq!(asked.messages, under_way);
        let error = ErrorCode::Provider.error("p answered 400: prompt is too long: 9 > 8");
        let with_tools = asked.too_long_alone("p/m", &error).message;
        assert!(
            with_tools.starts_with("this prompt with what its tools answered is too long"),
            "{with_tools}"
        );
        asked.messages = vec![ChatMessage::user("now")];
        let said = "this prompt alone is too long for p/m; p answered 400: \"prompt is too long: 9 > 8\"";
        assert_eq!(asked.too_long_alone("p/m", &error), ErrorCode::Provider.error(said));
    }

    #[test]
    fn images_tools_and_thoughts_are_left_out_once() {
        let image = file("a.png", b"\x89PNG\r\n\x1a\n");
        let user = ChatMessage::User {
            notes: String::new(),
            text: "look".into(),
            attachments: vec![image, file("a.txt", b"text")],
        };
        let mut asked = request("m", vec![user]);
        asked.tools.push(echo());
        let mut reduced = Reduced::default();
        asked.thinking = Thinking::High;
        let thoughts =
            vec![Thought { text: "hm".into(), at: 0, proof: SignatureData::Signature("s".into()) }];
        asked.messages.push(ChatMessage::Assistant { text: "x".into(), calls: vec![], thoughts });
        for fault in
            [Fault::NoImages, Fault::NoTools, Fault::NoThinking, Fault::NoThoughts, Fault::NoCacheMarks]
        {
            assert!(reduced.reduce(&mut asked, fault).is_some(), "{}", fault.name());
            assert_eq!(reduced.reduce(&mut asked, fault), None, "{}: again", fault.name());
        }
        assert!(asked.tools.is_empty() && !asked.cache_marks);
        let ChatMessage::User { attachments, .. } = &asked.messages[0] else { panic!() };
        assert!(attachments[0].data().is_empty() && !attachments[1].data().is_empty());
        for fault in [Fault::BadRequest, Fault::Overloaded, Fault::Auth] {
            assert_eq!(reduced.reduce(&mut asked, fault), None);
        }
    }
}
