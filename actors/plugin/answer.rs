//! What the model is told of a call.

use clawmux_core::ids::PluginName;
use clawmux_core::tools::audit::CallUsage;
use serde_json::Value;

/// So much is kept of what the last call that failed was answered, in characters.
const ERROR_CHARS_MAX: usize = 300;

/// What a call gave, as the model is told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The text.
    pub content: String,
    /// Whether it failed.
    pub is_error: bool,
    /// What the call used.
    pub usage: CallUsage,
}

impl Answer {
    /// A failure, in words.
    pub fn error(content: impl Into<String>) -> Self {
        Self { content: content.into(), is_error: true, usage: CallUsage::default() }
    }

    /// Of a plugin that went down.
    pub(super) fn crashed(plugin: &PluginName) -> Self {
        Self::error(format!("plugin {plugin} crashed, try again"))
    }

    /// The beginning of it, where it is a failure.
    pub(super) fn failure(&self) -> Option<String> {
        self.is_error.then(|| self.content.chars().take(ERROR_CHARS_MAX).collect())
    }

    /// Output as it is.
    pub(super) fn plain(output: &[u8]) -> Self {
        let content = String::from_utf8_lossy(output).into_owned();
        Self { content, is_error: false, usage: CallUsage::default() }
    }

    /// What a tool's output means: `{"content": string, "is_error"?: bool}`, or else the output
    /// itself is the content.
    pub(super) fn of_output(output: &[u8]) -> Self {
        let text = String::from_utf8_lossy(output);
        if let Ok(Value::Object(mut object)) = serde_json::from_str::<Value>(&text)
            && let Some(Value::String(content)) = object.get_mut("content")
        {
            let content = std::mem::take(content);
            let is_error = object.get("is_error") == Some(&Value::Bool(true));
            return Self { content, is_error, usage: CallUsage::default() };
        }
        Self { content: text.into_owned(), is_error: false, usage: CallUsage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn output_that_is_not_in_the_shape_is_the_content() {
        for (output, content, is_error) in [
            (r#"{"content":"hi"}"#, "hi", false),
            (r#"{"content":"hi","is_error":false,"more":1}"#, "hi", false),
            (r#"{"content":"no","is_error":true}"#, "no", true),
            (r#"{"content":7}"#, r#"{"content":7}"#, false),
            (r#"{"is_error":true}"#, r#"{"is_error":true}"#, false),
            ("[1]", "[1]", false),
            ("plain İİİİ", "plain İİİİ", false),
            ("", "", false),
        ] {
            let answer = Answer::of_output(output.as_bytes());
            assert_eq!((answer.content.as_str(), answer.is_error), (content, is_error), "{output}");
        }
        assert_eq!(Answer::of_output(b"\xff").content, "\u{fffd}");
    }

    proptest! {
        #[test]
        fn no_output_panics(output in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Answer::of_output(&output);
        }
    }
}
