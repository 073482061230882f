//! `[memory]`: what a model sees of its past, and what is remembered and found.

use super::Memory;
use super::credentials::Secrets;
use super::models::{Providers, known};
use super::section::{Report, Section};
use crate::learning::LearnBy;
use crate::provider::address;
use crate::provider::model::ModelRef;

/// Fewer tokens than this hold nothing beside a prompt.
const CONTEXT_TOKENS_MIN: u64 = 200;

/// What `memory.learn` may say.
const LEARN_BY: [(&str, LearnBy); 4] =
    [("auto", LearnBy::Auto), ("off", LearnBy::Off), ("rules", LearnBy::Rules), ("model", LearnBy::Model)];

pub(super) fn memory(
    mut s: Section,
    r: &mut Report,
    providers: &mut Providers,
    secrets: &Secrets<'_>,
) -> Memory {
    let memory = Memory {
        episodic_turns: s.count(r, "episodic_turns", 5, 0..=1000),
        context_tokens: s.count(r, "context_tokens", 5000, CONTEXT_TOKENS_MIN..=10_000_000),
        learn: s.choice(r, "learn", LearnBy::Auto, &LEARN_BY),
        learn_tokens: s.integer(r, "learn_tokens", 20_000, 0..=u64::MAX),
        learn_timeout: s.millis(r, "learn_timeout_ms", 60_000),
        summaries: s.choice(r, "summaries", true, &[("model", true), ("rules", false)]),
        recall: s.choice(r, "recall", true, &[("on", true), ("off", false)]),
        embeddings: embeddings(&mut s, r, providers, secrets),
        embeddings_timeout: s.millis(r, "embeddings_timeout_ms", 1000),
    };
    s.finish(r);
    memory
}

/// The model that makes vectors; none where it is not to be, or can't.
fn embeddings(
    s: &mut Section,
    r: &mut Report,
    providers: &mut Providers,
    secrets: &Secrets<'_>,
) -> Option<ModelRef> {
    let text = s.text(r, "embeddings", "");
    if text.is_empty() || text == "off" {
        return None;
    }
    let (at, key) = (s.origin("embeddings"), s.name("embeddings"));
    let Some(model) = ModelRef::parse(&text) else {
        let form = "PROVIDER/MODEL such as \"openai/text-embedding-3-small\"";
        r.complain(&at, format!("{key}: expected \"off\" or {form}, found {text:?}"));
        return None;
    };
    let kind = known(&model.provider, &at, &key, r, providers, secrets)?;
    if address::embeddings(kind.format(), "").is_none() {
        let (kind, provider) = (kind.name(), &model.provider);
        r.complain(&at, format!("{key}: {provider} is of the kind {kind}, which makes no vectors: name a provider of another kind"));
        return None;
    }
    Some(model)
}
