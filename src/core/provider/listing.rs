//! The models that a provider says it has: what its answer lists, and which of them is meant.
//!
//! Anthropic and OpenAI answer `{"data": [{"id": ..}]}`, and so do the servers that imitate them. Tolerated
//! of imitators: the list under `models` or bare, and models that are called by `name` or `model`.

use serde_json::Value;

use super::described;
use super::facts::ModelFacts;
use crate::error::{Error, ErrorCode};

/// The largest answer that is read, in bytes.
pub const BYTES_MAX: usize = 8 << 20;

/// The most models that are told of one provider.
pub const MODELS_MAX: usize = 5000;

/// The longest name of a model, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Parts of the names of models that don't chat.
const NOT_FOR_CHAT: [&str; 9] =
    ["embed", "rerank", "whisper", "tts", "moderation", "dall-e", "guard", "imagen", "transcribe"];

/// Whether a list has this model. Servers know a model by longer names than they list, and list longer ones than it
/// is known by: `llama3.2` for `llama3.2:latest`, `claude-sonnet-4-5` for the one of a date.
pub fn has(models: &[String], model: &str) -> bool {
    let bare = |name: &str| name.strip_prefix("models/").unwrap_or(name).to_owned();
    let wanted = bare(model);
    // `20250929` or `2025-09-29`
    let is_date = |rest: &str| {
        let digits = rest.bytes().filter(u8::is_ascii_digit).count();
        digits == 8 && matches!((rest.len(), rest.matches('-').count()), (8, 0) | (10, 2))
    };
    models.iter().map(|listed| bare(listed)).any(|listed| {
        let rest = listed.strip_prefix(wanted.as_str());
        rest.is_some_and(|rest| {
            rest.is_empty() || rest == ":latest" || rest.strip_prefix('-').is_some_and(is_date)
        }) || wanted.strip_prefix(listed.as_str()).is_some_and(|rest| rest.starts_with(':'))
    })
}

/// The models that an answer lists, in its order. Names that are empty or too long are left out.
///
/// # Errors
/// `Provider` where it is no list of models; it says which `provider`.
pub fn read(provider: &str, answer: &[u8]) -> Result<Vec<String>, Error> {
    Ok(read_facts(provider, answer)?.into_iter().map(|(name, _)| name).collect())
}

/// The same with what it says of each.
///
/// # Errors
/// As [`read`].
pub fn read_facts(provider: &str, answer: &[u8]) -> Result<Vec<(String, ModelFacts)>, Error> {
    let no_list =
        || ErrorCode::Provider.error(format!("{provider} answered with something else than models"));
    let answer: Value = serde_json::from_slice(answer).map_err(|_| no_list())?;
    let listed = [&answer["data"], &answer["models"], &answer].into_iter().find_map(Value::as_array);
    let mut models = Vec::new();
    for model in listed.ok_or_else(no_list)? {
        let names = [&model["id"], &model["model"], &model["name"], model];
        let Some(name) = names.into_iter().find_map(Value::as_str) else { continue };
        if !name.trim().is_empty() && name.len() <= NAME_BYTES_MAX && models.len() < MODELS_MAX {
            models.push((name.to_owned(), described::facts(model)));
        }
    }
    Ok(models)
}

/// The one to begin with: the first that can chat, as far as its name tells.
pub fn first_choice(models: &[String]) -> Option<&str> {
    let chats = |model: &&String| {
        let lower = model.to_lowercase();
        !NOT_FOR_CHAT.iter().any(|part| lower.contains(part))
    };
    models.iter().find(chats).or_else(|| models.first()).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_shape_of_list_is_read() {
        for answer in [
            r#"{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}"#,
            r#"{"data":[{"type":"model","id":"a","display_name":"A"},{"type":"model","id":"b"}],"has_more":false}"#,
            r#"{"models":[{"name":"x","model":"a"},{"name":"b"},{"size":3}]}"#,
            r#"[{"id":"a"},{"id":""},{"id":"b"}]"#,
            r#"["a","b"]"#,
        ] {
            assert_eq!(read("p", answer.as_bytes()).unwrap(), ["a", "b"], "{answer}");
        }
        assert!(read("p", br#"{"data":[]}"#).unwrap().is_empty());
        for bad in ["", "{}", "<html>", r#"{"data":null}"#, "3"] {
            let error = read("lab", bad.as_bytes()).unwrap_err();
            assert_eq!(error.message, "lab answered with something else than models", "{bad}");
        }
        let many: Vec<String> = (0..MODELS_MAX + 9).map(|at| format!("m{at}")).collect();
        assert_eq!(read("p", serde_json::to_string(&many).unwrap().as_bytes()).unwrap().len(), MODELS_MAX);
    }

    #[test]
    fn the_first_choice_can_chat() {
        let choice = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            first_choice(&names).map(str::to_owned)
        };
        assert_eq!(
            choice(&["nomic-embed-text:latest", "llama3.2:latest"]).as_deref(),
            Some("llama3.2:latest")
        );
        assert_eq!(choice(&["Embed"]).as_deref(), Some("Embed"), "there is no other");
        assert_eq!(choice(&[]), None);
    }

    #[test]
    fn models_are_known_by_several_names() {
        let listed =
            ["llama3.2:latest", "claude-sonnet-4-5-20250929", "models/gemini-2.5-pro", "a/b", "gpt-4o-mini"];
        let listed = listed.map(str::to_owned);
        for known in
            ["llama3.2", "llama3.2:latest", "claude-sonnet-4-5", "gemini-2.5-pro", "a/b:free", "gpt-4o-mini"]
        {
            assert!(has(&listed, known), "{known}");
        }
        for unknown in ["llama3", "claude-sonnet-4", "gpt-4o", "b", "", "A/B"] {
            assert!(!has(&listed, unknown), "{unknown}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_is_too_odd(answer in any::<Vec<u8>>()) {
            let _ = read("p", &answer);
        }
    }
}
