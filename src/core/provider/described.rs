//! What the entry of a provider's list says of a model besides its name. There is no standard for that: the
//! words of the services and servers that say anything are known here, and what they don't say stays unknown.
//!
//! | who | says |
//! |---|---|
//! | OpenRouter | `context_length`, `top_provider.max_completion_tokens`, `architecture.input_modalities`, `supported_parameters`, `pricing.*` as text, in dollars a token |
//! | LiteLLM | `model_info` or the entry itself: `max_input_tokens`, `max_output_tokens`, `supports_*`, `*_cost_per_token` |
//! | vLLM | `max_model_len` |
//! | llama.cpp | `meta.n_ctx`, `meta.n_ctx_train` |
//! | Gemini | `inputTokenLimit`, `outputTokenLimit`, `thinking` |
//! | Groq | `context_window`, `max_completion_tokens` |
//! | Mistral | `max_context_length`, `capabilities.vision`, `capabilities.reasoning` |
//! | Anthropic | `max_input_tokens`, `max_tokens`, `capabilities.image_input.supported`, `capabilities.thinking.supported` |
//! | Together, Fireworks | `context_length`, `supports_image_input`, `pricing.input`, `pricing.output` in dollars a million |

use serde_json::Value;

use super::facts::ModelFacts;
use super::price::{Price, Rate};

/// What this entry says.
pub(super) fn facts(entry: &Value) -> ModelFacts {
    let info = Some(&entry["model_info"]).filter(|info| info.is_object()).unwrap_or(entry);
    let capabilities = &entry["capabilities"];
    ModelFacts {
        context_window: tokens(&[
            &entry["top_provider"]["context_length"],
            &entry["context_length"],
            &entry["context_window"],
            &entry["max_model_len"],
            &entry["max_context_length"],
            &entry["meta"]["n_ctx"],
            &entry["meta"]["n_ctx_train"],
            &info["max_input_tokens"],
            &entry["inputTokenLimit"],
        ]),
        max_output_tokens: tokens(&[
            &entry["top_provider"]["max_completion_tokens"],
            &entry["max_completion_tokens"],
            &info["max_output_tokens"],
            &entry["outputTokenLimit"],
            // Of LiteLLM it may be the input's.
            if info.get("max_input_tokens").is_some() { &info["max_tokens"] } else { &Value::Null },
        ])
        .and_then(|tokens| u32::try_from(tokens).ok()),
        images: flag(&[
            &info["supports_vision"],
            &entry["supports_image_input"],
            &capabilities["vision"],
            &capabilities["image_input"]["supported"],
        ])
        .or_else(|| has(&entry["architecture"]["input_modalities"], "image")),
        reasoning: flag(&[
            &info["supports_reasoning"],
            &entry["thinking"],
            &capabilities["reasoning"],
            &capabilities["thinking"]["supported"],
        ])
        .or_else(|| has(&entry["supported_parameters"], "reasoning")),
        price: price(entry, info),
    }
}

/// The first of these that is a number of tokens; a limit of 0 says nothing.
fn tokens(said: &[&Value]) -> Option<u64> {
    said.iter().find_map(|value| value.as_u64()).filter(|tokens| *tokens > 0)
}

fn flag(said: &[&Value]) -> Option<bool> {
    said.iter().find_map(|value| value.as_bool())
}

/// Whether a list has this in it; not known where there is no list.
fn has(list: &Value, what: &str) -> Option<bool> {
    list.as_array().map(|list| list.iter().any(|item| item == what))
}

fn price(entry: &Value, info: &Value) -> Option<Price> {
    let pricing = &entry["pricing"];
    // In dollars a token, and in dollars a million of them.
    let by_token = |value: &Value| dollars(value).and_then(|dollars| Rate::per_million(dollars * 1e6));
    let by_million = |value: &Value| dollars(value).and_then(Rate::per_million);
    let priced = |input: Option<Rate>, output: Option<Rate>, cache_read, cache_write| {
        Some(Price { input: input?, output: output?, cache_read, cache_write })
    };
    priced(
        by_token(&pricing["prompt"]),
        by_token(&pricing["completion"]),
        by_token(&pricing["input_cache_read"]),
        by_token(&pricing["input_cache_write"]),
    )
    .or_else(|| {
        priced(
            by_token(&info["input_cost_per_token"]),
            by_token(&info["output_cost_per_token"]),
            by_token(&info["cache_read_input_token_cost"]),
            by_token(&info["cache_creation_input_token_cost"]),
        )
    })
    .or_else(|| {
        let (input, output) = (by_million(&pricing["input"]), by_million(&pricing["output"]));
        priced(input, output, by_million(&pricing["cached_input"]), None)
    })
}

/// A price, which some write as text. One below zero, as of a model that stands for others, is none.
fn dollars(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::price::Money;
    use crate::provider::usage::Usage;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn every_list_is_understood_that_says_more_than_names() {
        let openrouter = facts(&json!({
            "id": "anthropic/claude", "context_length": 200_000,
            "architecture": {"input_modalities": ["text", "image"]},
            "supported_parameters": ["tools", "reasoning"],
            "top_provider": {"context_length": 180_000, "max_completion_tokens": 64_000},
            "pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"},
        }));
        assert_eq!(
            (
                openrouter.context_window,
                openrouter.max_output_tokens,
                openrouter.images,
                openrouter.reasoning
            ),
            (Some(180_000), Some(64_000), Some(true), Some(true))
        );
        let usage = Usage { cache_read_tokens: 10, ..Usage::new(110, 10) };
        let cost = openrouter.price.map(|price| price.of(usage));
        assert_eq!(cost, Some(Money::from_nanos(300_000 + 3_000 + 150_000)));

        let litellm = json!({
            "max_input_tokens": 128_000, "max_output_tokens": 16_384, "supports_vision": true,
            "supports_reasoning": null, "input_cost_per_token": 2.5e-6, "output_cost_per_token": 1e-5,
        });
        for entry in [json!({"id": "m", "model_info": litellm}), litellm] {
            let known = facts(&entry);
            assert_eq!((known.context_window, known.max_output_tokens), (Some(128_000), Some(16_384)));
            assert_eq!((known.images, known.reasoning), (Some(true), None));
            assert_eq!(known.price.map(|price| price.input), Rate::per_million(2.5));
        }
        for (entry, window, output) in [
            (json!({"id": "m", "max_model_len": 4096}), Some(4096), None),
            (json!({"id": "m", "meta": {"n_ctx_train": 32_768}}), Some(32_768), None),
            (json!({"name": "models/g", "inputTokenLimit": 9, "outputTokenLimit": 8}), Some(9), Some(8)),
            (json!({"id": "m", "context_window": 7, "max_completion_tokens": 6}), Some(7), Some(6)),
            (json!({"id": "m", "max_input_tokens": 5, "max_tokens": 4}), Some(5), Some(4)),
            (json!({"id": "m", "max_tokens": 4}), None, None),
            (json!({"id": "m", "context_length": 0}), None, None),
            (json!("m"), None, None),
        ] {
            let known = facts(&entry);
            assert_eq!((known.context_window, known.max_output_tokens), (window, output), "{entry}");
        }
    }

    #[test]
    fn half_a_price_and_one_that_is_none_are_not_known() {
        for entry in [
            json!({"pricing": {"prompt": "-1", "completion": "-1"}}),
            json!({"pricing": {"prompt": "0.1"}}),
            json!({"pricing": {"prompt": "cheap", "completion": "0"}}),
            json!({"pricing": null}),
        ] {
            assert_eq!(facts(&entry).price, None, "{entry}");
        }
        let free = facts(&json!({"pricing": {"prompt": "0", "completion": "0"}}));
        assert_eq!(free.price, Some(Price::default()), "what is free is known to be");
    }

    proptest! {
        #[test]
        fn no_number_is_too_odd(number in any::<f64>(), text in ".{0,12}") {
            let _ = facts(&json!({"context_length": number, "max_tokens": text, "max_input_tokens": number,
                "pricing": {"prompt": text, "completion": number, "input": number, "output": number}}));
        }
    }
}
