//! Model providers: whether agents have the keys they need, whether these look like keys, whether a
//! provider is there and takes its key, and whether it has the same time as we.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clawmux_actors::provider_supervisor::probe::{Probed, Verdict, models, probe};
use clawmux_actors::store::Severity;
use clawmux_core::config::{Config, Provider};
use clawmux_core::error::Error;
use clawmux_core::provider::ProviderKind;
use clawmux_core::provider::listing::{first_choice, has};

use super::Findings;

/// How long a provider may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How far a clock may be off in seconds, before it is worth a word, and before tokens fail.
const SKEW_WARN: u64 = 30;
const SKEW_MAX: u64 = 300;

/// A credential that is shorter can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Keys, as far as they can be looked at where they are.
pub(super) fn keys(config: &Config, found: &mut Findings) {
    let used: BTreeSet<&str> =
        config.agents.values().flat_map(|agent| &agent.models).map(|model| model.provider.as_str()).collect();
    for (name, provider) in &config.providers {
        if provider.lacks_key() {
            if used.contains(name.as_str()) {
                found.error(
                    "key",
                    format!("provider {name} wants a key and has none: its models can't be asked"),
                    format!(
                        "set {}, or providers.{name}.api_key_env or api_key_file; `clawmux setup` asks for it",
                        provider.kind.preset().key_variable
                    ),
                );
            }
            continue;
        }
        let keys = provider.keys().count();
        for (at, key) in provider.keys().enumerate() {
            let which = if keys == 1 { "the key".to_owned() } else { format!("key {}", at + 1) };
            if let Some(why) = misshapen(provider, key.expose()) {
                found.warning(
                    "key",
                    format!("{which} of provider {name} {why}"),
                    "see whether all of it, and nothing else, was copied",
                );
            } else if keys == 1 {
                found.fine("key", format!("provider {name} has one"));
            } else {
                found.fine("key", format!("provider {name} has {which}"));
            }
        }
    }
    if let Some(token) = &config.auth.token
        && token.expose().len() < TOKEN_BYTES_MIN
    {
        found.warning(
            "key",
            format!(
                "the shared operator token has less than {TOKEN_BYTES_MIN} characters: it can be guessed"
            ),
            "take a longer one, such as of `openssl rand -hex 24`",
        );
    }
}

/// What is odd about a key; it is not repeated.
fn misshapen(provider: &Provider, key: &str) -> Option<&'static str> {
    let is_anthropic =
        provider.kind == ProviderKind::Anthropic && provider.base_url.contains("anthropic.com");
    if key.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Some("has white space in it")
    } else if key.starts_with(['"', '\'']) || key.ends_with(['"', '\'']) {
        Some("has quotes around it")
    } else if !key.is_ascii() {
        Some("has characters that no key has")
    } else if is_anthropic && !key.starts_with("sk-ant-") {
        Some("does not begin as keys of Anthropic do")
    } else {
        None
    }
}

/// Asks every provider that agents use: where requests go, and which models there are. Blocks for as long as the
/// slowest may take, times their number.
pub(super) fn ask(config: &Config, found: &mut Findings) {
    let used = config.agents.values().flat_map(|agent| &agent.models).map(|model| &model.provider);
    let system = actix::System::new();
    let mut skew = None;
    for name in used.collect::<BTreeSet<_>>() {
        let Some(provider) = config.providers.get(name).filter(|provider| !provider.lacks_key()) else {
            continue;
        };
        let mut fine = None;
        let mut answers = Vec::new();
        for (key, provider) in provider.by_key() {
            match system.block_on(probe(name, &provider, TIMEOUT)) {
                Ok(None) => found.fine("model", format!("provider {name} needs no network")),
                Ok(Some(probed)) => {
                    skew = skew.or(probed
                        .date
                        .as_deref()
                        .and_then(|date| off(date, now()))
                        .map(|off| (name, off)));
                    if probed.verdict == Verdict::Fine && fine.is_none() {
                        fine = Some(provider);
                    }
                    answers.push((key, probed));
                }
                Err(error) => {
                    found.error(
                        "model",
                        format!("provider {name} can't be reached: {}", error.message),
                        format!(
                            "see to the network, the proxy and providers.{name}.base_url; --offline leaves this out"
                        ),
                    );
                    // So it would be with its other keys.
                    break;
                }
            }
        }
        for (key, probed) in &answers {
            let key = Some(key.as_str()).filter(|_| answers.len() > 1);
            answered(name, key, probed, fine.is_some(), found);
        }
        if let Some(provider) = fine {
            let listed = system.block_on(models(name, &provider, TIMEOUT));
            lists(config, name, listed, found);
        }
    }
    if let Some((name, off)) = skew {
        clock(name, off, found);
    }
}

/// The longest [`ask`] takes.
pub(super) fn patience(config: &Config) -> Duration {
    let count: usize = config.providers.values().map(|provider| provider.by_key().len() + 1).sum();
    TIMEOUT.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)).saturating_add(TIMEOUT)
}

/// Whether it takes requests, with this one of its keys where it has several. Where another one is taken, prompts are
/// answered all the same.
fn answered(name: &str, key: Option<&str>, probed: &Probed, is_any_fine: bool, found: &mut Findings) {
    let Probed { verdict, url, status, took, .. } = probed;
    let with = key.map(|key| format!(" with the key {key}")).unwrap_or_default();
    let what = format!("provider {name} answers{with} in {} ms with {status}", took.as_millis());
    let bad = if is_any_fine { Severity::Warning } else { Severity::Error };
    match verdict {
        Verdict::Fine => {
            found.fine("model", format!("provider {name} answers{with} in {} ms", took.as_millis()));
        }
        Verdict::KeyRefused => {
            let advice = "the key is not accepted: see whether all of it was copied, or make another at the provider's";
            found.add("model", bad, what, advice);
        }
        Verdict::NoQuota => {
            found.add("model", bad, what, "the account has no quota left: see its billing at the provider's");
        }
        Verdict::NotThere => found.error(
            "model",
            format!("{what}: {url} is not where models are asked"),
            format!("see to providers.{name}.base_url and its kind"),
        ),
        Verdict::Limited => found.warning("model", what, "the limits of the account are reached"),
        Verdict::Broken => found.warning("model", what, "see whether it is out of order"),
    }
}

/// Whether a provider has the models that agents ask it for.
fn lists(config: &Config, name: &str, listed: Result<Vec<String>, Error>, found: &mut Findings) {
    let mut asked: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for agent in config.agents.values() {
        for model in agent.models.iter().filter(|model| model.provider == name) {
            asked.entry(&model.model).or_default().push(agent.id.as_str());
        }
    }
    for (model, agents) in asked {
        let agents = agents.join(", ");
        let name_it =
            format!("`clawmux models {name}` lists those there are: name one as agents.AGENT.model");
        match &listed {
            Err(error) if model.is_empty() => found.error(
                "model",
                format!(
                    "provider {name} does not say which models it has, and {agents} names none: {}",
                    error.message
                ),
                "name one as agents.AGENT.model",
            ),
            Err(error) => found.fine(
                "model",
                format!("provider {name} does not say whether it has {model}: {}", error.message),
            ),
            Ok(listed) if model.is_empty() => match first_choice(listed) {
                Some(first) => found.fine("model", format!("provider {name} answers {agents} with {first}")),
                None => found.error("model", format!("provider {name} has no models"), "load one there"),
            },
            Ok(listed) if has(listed, model) => {
                found.fine("model", format!("provider {name} has {model} ({agents})"));
            }
            // Some servers have one model, and answer with it whatever it is called.
            Ok(listed) if listed.len() == 1 => found.warning(
                "model",
                format!("provider {name} does not list {model} ({agents}), only {}", listed[0]),
                name_it,
            ),
            Ok(_) => {
                found.error("model", format!("provider {name} does not have {model} ({agents})"), name_it)
            }
        }
    }
}

/// How far our clock is off, in seconds; above 0 = it is ahead.
fn off(date: &str, now: i64) -> Option<i64> {
    let there = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(now.saturating_sub(there.as_second()))
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn clock(name: &str, off: i64, found: &mut Findings) {
    let seconds = off.unsigned_abs();
    let way = if off > 0 { "ahead of" } else { "behind" };
    let what = format!("the clock is {seconds} s {way} that of provider {name}");
    let advice = "have the time set by the network, such as by `timedatectl set-ntp true`; JWTs and certificates \
                  fail where clocks differ";
    match seconds {
        SKEW_MAX.. => found.error("clock", what, advice),
        SKEW_WARN.. => found.warning("clock", what, advice),
        _ => found.fine("clock", format!("within {SKEW_WARN} s of that of provider {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::access::Secret;

    #[test]
    fn a_clock_that_is_off_is_told() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!((off(date, 784_111_777), off(date, 784_111_677)), (Some(0), Some(-100)));
        assert_eq!(off("yesterday", 0), None);
        for (off, severity) in
            [(0, Severity::Fine), (29, Severity::Fine), (-31, Severity::Warning), (3600, Severity::Error)]
        {
            let mut found = Findings::default();
            clock("p", off, &mut found);
            assert_eq!(found.0[0].severity, severity, "{off}: {}", found.0[0].what);
        }
    }

    #[test]
    fn keys_that_were_not_copied_well_are_told_and_not_repeated() {
        let provider = |kind, base_url: &str| Provider::new(kind, base_url, Some(Secret::new("x")));
        let anthropic = provider(ProviderKind::Anthropic, "https://api.anthropic.com");
        let other = provider(ProviderKind::OpenAi, "http://127.0.0.1:1");
        for bad in ["sk-ant-a b", "\"sk-ant-ab\"", "sk-ant-\u{e9}", "sk-proj-abc"] {
            let why = misshapen(&anthropic, bad).unwrap_or_else(|| panic!("{bad}"));
            assert!(!why.contains(bad), "{why}");
        }
        assert_eq!((misshapen(&anthropic, "sk-ant-abc"), misshapen(&other, "anything")), (None, None));
    }
}
