//! An event of a session in words: number, time, run, and what happened.

use serde_json::Value;

use crate::terminal::visible;
use crate::when::utc;

/// How many characters of a run's id are shown.
const RUN_CHARS: usize = 8;
/// How many characters of an approval's id are shown: enough to name it.
const ID_CHARS: usize = 12;
/// The column at which the text of an event begins.
const INDENT: usize = 53;

/// The event on one or more lines; text continues below where it began.
pub(super) fn lines(event: &Value) -> String {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let number = |name: &str| event[name].as_u64().unwrap_or_default();
    let (what, said) = told(event);
    let seqs = match event["first_seq"].as_u64() {
        Some(first) => format!("{first}-{}", number("seq")),
        None => number("seq").to_string(),
    };
    let run: String = text("run").chars().take(RUN_CHARS).collect();
    let head = format!(
        "{:<11}  {}  {:<RUN_CHARS$}  {:<8}",
        seqs,
        utc(number("at_ms")),
        visible(&run),
        visible(what)
    );
    if said.is_empty() && what != "text" {
        head.trim_end().to_owned()
    } else {
        format!("{head}  {}", indented(&said))
    }
}

/// The kind of event in one word, and its text, not escaped yet.
pub(super) fn told(event: &Value) -> (&str, String) {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let number = |name: &str| event[name].as_u64().unwrap_or_default();
    match text("event") {
        "prompt" => {
            let owner = event["owner"].as_str().map(|owner| format!("({owner}) ")).unwrap_or_default();
            let attachments = event["attachments"].as_array().into_iter().flatten().map(|attachment| {
                let name = attachment["name"].as_str().unwrap_or("without a name");
                format!(
                    " [{name}, {}, {} bytes]",
                    attachment["type"].as_str().unwrap_or_default(),
                    attachment["bytes"]
                )
            });
            ("prompt", format!("{owner}{}{}", text("content"), attachments.collect::<String>()))
        }
        "start" => ("start", String::new()),
        "text" => ("text", text("text").to_owned()),
        "thought" => ("thought", text("text").to_owned()),
        "tool_call" => ("call", format!("{} {} [{}]", text("tool"), event["input"], text("call"))),
        "approval_asked" => {
            let id: String = text("approval").chars().take(ID_CHARS).collect();
            let call = format!("{} {} [{}]", text("tool"), event["input"], text("call"));
            let until = utc(number("deadline_ms"));
            ("asks", format!("{call} waits for approval until {until}: clawmux approval approve {id}"))
        }
        "approval_decided" => {
            let by = event["by"].as_str().map(|by| format!(" by {by}")).unwrap_or_default();
            let why = event["reason"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
            let instead = match &event["input"] {
                Value::Null => String::new(),
                input => format!(" with {input}"),
            };
            let decision = text("decision").replace('_', " ");
            ("decided", format!("{} {decision}{by}{instead}{why} [{}]", text("tool"), text("call")))
        }
        "tool_result" => {
            let mark = if event["is_error"] == true { "failed: " } else { "" };
            ("result", format!("{mark}{} [{}]", text("content"), text("call")))
        }
        "step_end" => ("step", tokens(event)),
        "restart" => ("restart", "the answer was cut off: this step's text so far is void".into()),
        "end" => {
            let why = match event["error"]["message"].as_str() {
                Some(why) => format!(" ({why})"),
                None => String::new(),
            };
            ("end", format!("{}{why}; {}", text("outcome"), tokens(event)))
        }
        "clear" => ("clear", "the conversation so far was forgotten".into()),
        "reset" => ("reset", "a new conversation begins".into()),
        "compact" => ("compact", format!("what ended up to {} was forgotten", number("up_to_seq"))),
        "compacted" => ("compact", format!("what ended up to {} is summed up", number("up_to_seq"))),
        "sealed" => ("sealed", format!("{} thoughts, to be sent back", number("thoughts"))),
        "recalled" => ("recall", "what is remembered was put beside the prompt".into()),
        "notice" => ("notice", text("message").to_owned()),
        "message" => ("message", text("content").to_owned()),
        "configure" => {
            let set = ["label", "model", "thinking"].into_iter().filter(|name| !event[*name].is_null());
            let set: Vec<_> = set.map(|name| format!("{name} {}", text(name))).collect();
            ("set", if set.is_empty() { "to nothing of its own".into() } else { set.join(", ") })
        }
        _ => (event["event"].as_str().unwrap_or_default(), event.to_string()),
    }
}

/// Text with its lines below each other.
pub(super) fn indented(text: &str) -> String {
    visible(text).replace('\n', &format!("\n{:INDENT$}", ""))
}

fn tokens(event: &Value) -> String {
    let number = |name: &str| event[name].as_u64().unwrap_or_default();
    format!("{} tokens in, {} out", number("input_tokens"), number("output_tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_read_like_a_script() {
        let said = |mut event: Value| {
            event["seq"] = json!(7);
            event["at_ms"] = json!(0);
            event["run"] = json!("0123456789");
            lines(&event)
        };
        assert_eq!(
            said(json!({"event": "text", "first_seq": 3, "text": "two\nlines"})),
            format!("3-7          1970-01-01 00:00:00  01234567  text      two\n{:INDENT$}lines", "")
        );
        for (event, ends) in [
            (json!({"event": "prompt", "content": "hi", "owner": null}), "prompt    hi"),
            (json!({"event": "prompt", "content": "hi", "owner": "ci"}), "prompt    (ci) hi"),
            (
                json!({"event": "prompt", "content": "hi", "owner": null,
                       "attachments": [{"name": "a.png", "type": "image/png", "bytes": 7}]}),
                "prompt    hi [a.png, image/png, 7 bytes]",
            ),
            (json!({"event": "thought", "text": "hm"}), "thought   hm"),
            (json!({"event": "start"}), "start"),
            (
                json!({"event": "notice", "kind": "retrying", "message": "again in 2 s"}),
                "notice    again in 2 s",
            ),
            (json!({"event": "compacted", "up_to_seq": 7}), "compact   what ended up to 7 is summed up"),
            (json!({"event": "recalled"}), "recall    what is remembered was put beside the prompt"),
            (json!({"event": "sealed", "thoughts": 2}), "sealed    2 thoughts, to be sent back"),
            (
                json!({"event": "tool_call", "tool": "echo", "call": "c", "input": {"a": 1}}),
                r#"call      echo {"a":1} [c]"#,
            ),
            (
                json!({"event": "tool_result", "call": "c", "content": "no", "is_error": true}),
                "failed: no [c]",
            ),
            (
                json!({"event": "end", "outcome": "failed", "error": {"message": "away"}, "input_tokens": 1}),
                "end       failed (away); 1 tokens in, 0 out",
            ),
            (
                json!({"event": "approval_asked", "approval": "0123456789abcdef", "tool": "rm", "call": "c",
                       "input": {"a": 1}, "deadline_ms": 0}),
                r#"asks      rm {"a":1} [c] waits for approval until 1970-01-01 00:00:00: clawmux approval approve 0123456789ab"#,
            ),
            (
                json!({"event": "approval_decided", "tool": "rm", "call": "c", "decision": "timed_out"}),
                "decided   rm timed out [c]",
            ),
            (
                json!({"event": "approval_decided", "tool": "rm", "call": "c", "decision": "denied", "by": "ada",
                       "reason": "no"}),
                "decided   rm denied by ada: no [c]",
            ),
            (json!({"event": "restart"}), "is void"),
            (json!({"event": "clear"}), "forgotten"),
            (json!({"event": "compact", "up_to_seq": 9}), "what ended up to 9 was forgotten"),
            (json!({"event": "configure", "label": "Ada", "model": null}), "set       label Ada"),
            (json!({"event": "text", "text": "\u{1b}[2J\u{9b}x"}), r"\u{1b}[2J\u{9b}x"),
        ] {
            let line = said(event);
            assert!(line.ends_with(ends), "{line}");
        }
    }
}
