//! Why a model failed, more closely than its fault says, and in no provider's words: whoever sees the session is told.

use clawmux_core::error::Error;
use clawmux_core::provider::fault::Fault;

/// What else went wrong with a connection, as it is told in errors.
const CONNECTION: [&str; 4] = [
    "connection refused",
    "connection reset",
    "connection closed without an answer",
    "connection closed within the head of the answer",
];

/// What a model did, in words that follow its name.
pub(super) fn words(error: &Error, fault: Fault) -> String {
    let words = fault.words();
    match reason(&error.message, fault) {
        Some(why) => format!("{words} ({why})"),
        None => words.to_owned(),
    }
}

/// None where nothing more is known.
fn reason(message: &str, fault: Fault) -> Option<String> {
    match fault {
        Fault::Server => {
            let (_, after) = message.split_once(" answered ").unwrap_or_default();
            let status: String = after.chars().take_while(char::is_ascii_digit).collect();
            if status.len() == 3 {
                return Some(format!("it answered {status}"));
            }
            let known = [
                ("answer is empty", "its answer is empty"),
                (" reported", "it reported an error"),
                (" answered with ", "what it answered is no answer of a model"),
            ];
            let why = known.into_iter().find(|(says, _)| message.contains(says));
            why.map(|(_, why)| why.to_owned())
        }
        Fault::Network | Fault::Cut => {
            CONNECTION.into_iter().find(|why| message.contains(why)).map(str::to_owned)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::error::ErrorCode;

    #[test]
    fn what_failed_says_why_without_the_providers_words() {
        for (message, fault, said) in [
            ("p answered 502: geheim", Fault::Server, "failed (it answered 502)"),
            ("p/m: the model's answer is empty", Fault::Server, "failed (its answer is empty)"),
            ("p reported within its answer: geheim", Fault::Server, "failed (it reported an error)"),
            (
                "p answered with content-type geheim instead of text/event-stream",
                Fault::Server,
                "failed (what it answered is no answer of a model)",
            ),
            ("p: geheim", Fault::Server, "failed"),
            (
                "p: connection refused: does the server at 127.0.0.1:1 run? check base_url",
                Fault::Network,
                "was not reached (connection refused)",
            ),
            ("p answered 503: geheim", Fault::Overloaded, "is overloaded"),
        ] {
            assert_eq!(words(&ErrorCode::Provider.error(message), fault), said, "{message}");
        }
    }
}
