//! Joins the pieces of streamed text into sentences.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// After this time the begun part of a sentence is shown.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The longest sentence, in bytes.
const BYTES_MAX: usize = 600;
/// How many runs may have an incomplete sentence at once.
const OPEN_MAX: usize = 256;

/// Sentences that are not complete yet.
#[derive(Debug, Default)]
pub(super) struct Sentences(Vec<Sentence>);

/// A sentence that is not complete yet.
#[derive(Debug)]
struct Sentence {
    /// The event with its first piece.
    first: Value,
    text: String,
    since: Instant,
}

impl Sentence {
    fn is_of(&self, event: &Value) -> bool {
        ["run", "event", "session"].iter().all(|name| self.first[*name] == event[*name])
    }

    /// The event with this text; none if that is empty.
    fn told(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        let mut event = self.first.clone();
        event["text"] = json!(text);
        (!text.is_empty()).then_some(event)
    }
}

impl Sentences {
    /// The events to show after this one: complete sentences, and before any other event of a session the
    /// begun ones of it.
    pub(super) fn take(&mut self, event: Value, now: Instant) -> Vec<Value> {
        // What is only about a session comes between its pieces.
        if !event["seq"].is_u64() {
            return vec![event];
        }
        if !matches!(event["event"].as_str(), Some("text" | "thought")) {
            let mut told = self.end(|open| open.first["session"] == event["session"]);
            told.push(event);
            return told;
        }
        // What another run of the session or its thinking had begun goes before.
        let session = event["session"].clone();
        let mut told = self.end(|open| open.first["session"] == session && !open.is_of(&event));
        let piece = event["text"].as_str().unwrap_or_default().to_owned();
        let at = match self.0.iter().position(|open| open.is_of(&event)) {
            Some(at) => at,
            None => {
                if self.0.len() >= OPEN_MAX {
                    let oldest = self.0.remove(0);
                    told.extend(oldest.told(&oldest.text));
                }
                self.0.push(Sentence { first: event.clone(), text: String::new(), since: now });
                self.0.len() - 1
            }
        };
        let open = &mut self.0[at];
        open.text.push_str(&piece);
        while let Some(end) = sentence(&open.text).or_else(|| too_long(&open.text)) {
            told.extend(open.told(&open.text[..end]));
            open.text.drain(..end);
            // What is left of it came in this piece.
            (open.first, open.since) = (event.clone(), now);
        }
        if open.text.trim().is_empty() {
            self.0.remove(at);
        }
        told
    }

    /// How long to wait until a begun sentence has to be shown; none if there is none.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        let left = |open: &Sentence| TIMEOUT.saturating_sub(now.saturating_duration_since(open.since));
        // The system takes 0 for no bound.
        self.0.iter().map(left).min().map(|left| left.max(Duration::from_millis(10)))
    }

    /// Sentences that were begun too long ago, up to their last whole word.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Value> {
        let mut told = Vec::new();
        for open in &mut self.0 {
            if now.saturating_duration_since(open.since) >= TIMEOUT {
                let end = last_word(&open.text).unwrap_or(open.text.len());
                told.extend(open.told(&open.text[..end]));
                open.text.drain(..end);
                open.since = now;
            }
        }
        self.0.retain(|open| !open.text.trim().is_empty());
        told
    }

    /// All sentences that were begun.
    pub(super) fn rest(&mut self) -> Vec<Value> {
        self.end(|_| true)
    }

    fn end(&mut self, which: impl Fn(&Sentence) -> bool) -> Vec<Value> {
        let mut told = Vec::new();
        self.0.retain(|open| {
            let ends = which(open);
            if ends {
                told.extend(open.told(&open.text));
            }
            !ends
        });
        told
    }
}

/// Where the first sentence ends: after a line end, or after a full stop and the space that follows.
fn sentence(text: &str) -> Option<usize> {
    let mut has_ended = false;
    for (at, c) in text.char_indices() {
        let behind = at + c.len_utf8();
        match c {
            '\n' => return Some(behind),
            '。' | '！' | '？' => return Some(behind),
            c if c.is_whitespace() && has_ended => return Some(behind),
            '.' | '!' | '?' | '…' => has_ended = true,
            // What closes may stand behind the full stop.
            '"' | '\'' | ')' | ']' | '”' | '’' | '»' | '*' | '_' => {}
            _ => has_ended = false,
        }
    }
    None
}

fn too_long(text: &str) -> Option<usize> {
    (text.len() > BYTES_MAX).then(|| {
        let most = text.floor_char_boundary(BYTES_MAX);
        last_word(&text[..most]).unwrap_or(most)
    })
}

/// Where the last, possibly incomplete, word begins.
fn last_word(text: &str) -> Option<usize> {
    let (at, space) = text.char_indices().rfind(|(_, c)| c.is_whitespace())?;
    Some(at + space.len_utf8()).filter(|at| !text[..*at].trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(session: &str, run: &str, seq: u64, text: &str) -> Value {
        json!({ "event": "text", "session": session, "run": run, "seq": seq, "text": text })
    }

    fn texts(told: &[Value]) -> Vec<&str> {
        told.iter().map(|event| event["text"].as_str().unwrap_or(event["event"].as_str().unwrap())).collect()
    }

    #[test]
    fn text_is_told_by_the_sentence_and_before_what_follows_it() {
        let (mut open, now) = (Sentences::default(), Instant::now());
        let mut take = |event| open.take(event, now);
        assert_eq!(texts(&take(text("a", "1", 1, "It is 3.1"))), [] as [&str; 0]);
        assert_eq!(texts(&take(text("a", "1", 2, "4. Is"))), ["It is 3.14."]);
        assert_eq!(texts(&take(text("b", "2", 1, "Other"))), [] as [&str; 0], "another session");
        let changed = json!({ "event": "session_changed", "session": "a" });
        assert_eq!(texts(&take(changed)), ["session_changed"], "nothing that happened in it");
        let told = take(text("a", "1", 3, " it?\nYes.\n\nAnd"));
        assert_eq!(texts(&told), ["Is it?", "Yes."]);
        assert_eq!((&told[0]["seq"], &told[1]["seq"]), (&json!(2), &json!(3)), "when each began");
        let end = json!({ "event": "end", "session": "a", "run": "1", "seq": 4 });
        assert_eq!(texts(&take(end)), ["And", "end"]);
        assert_eq!(texts(&take(json!({ "event": "presence" }))), ["presence"], "the other goes on");
        let thought = json!({ "event": "thought", "session": "b", "run": "2", "seq": 2, "text": "hm" });
        assert_eq!(texts(&take(thought)), ["Other"]);
        assert_eq!(texts(&open.rest()), ["hm"]);
        assert_eq!(open.patience(now), None);
    }

    #[test]
    fn what_takes_long_is_told_by_the_word() {
        let (mut open, now) = (Sentences::default(), Instant::now());
        open.take(text("a", "1", 1, "a slow answ"), now);
        assert!(open.overdue(now).is_empty() && open.patience(now) == Some(TIMEOUT));
        assert_eq!(texts(&open.overdue(now + TIMEOUT)), ["a slow"]);
        assert_eq!(texts(&open.overdue(now + TIMEOUT)), [] as [&str; 0]);
        assert_eq!(texts(&open.overdue(now + 2 * TIMEOUT)), ["answ"]);
        assert_eq!(open.patience(now), None);
        let told = open.take(text("a", "1", 2, &"word ".repeat(200)), now);
        assert!(told.len() == 1 && told[0]["text"].as_str().unwrap().len() <= BYTES_MAX, "{told:?}");
    }

    proptest! {
        #[test]
        fn nothing_is_lost(pieces in prop::collection::vec("[a-zé .!\n\"]{0,12}", 0..30)) {
            let (mut open, now) = (Sentences::default(), Instant::now());
            let mut told = Vec::new();
            for (seq, piece) in (0..).zip(&pieces) {
                told.extend(open.take(text("a", "1", seq, piece), now));
            }
            told.extend(open.rest());
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&texts(&told).concat()), letters(&pieces.concat()));
        }
    }
}
