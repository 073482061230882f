//! `clawmux models`: the models of each provider. It asks the providers themselves, not a daemon, with the
//! keys of the configuration or the environment.

use std::collections::BTreeMap;
use std::time::Duration;

use clawmux_actors::provider_supervisor::probe;
use clawmux_core::config::offer::offers;
use clawmux_core::config::{self, Config, Provider};
use clawmux_core::error::Error;
use clawmux_core::provider::facts::ModelFacts;
use clawmux_core::provider::listing::{first_choice, has};
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::price::Rate;
use futures::future::join_all;
use serde_json::{Value, json};

use super::amount::grouped;
use super::table::table;
use crate::cli::Global;
use crate::exit::{CONFIG, FAILED, Failure};
use crate::settings;
use crate::terminal::{json_line, one_line, put, say, tell};

/// A model and what its provider says of it.
type Described = (String, ModelFacts);

/// How long a provider may take to answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs `models`.
///
/// # Errors
/// Status 64 if the configuration can't be read at all, 1 if any provider does not answer: each is one that the
/// configuration or a variable names, or that was asked for.
pub(crate) fn run(global: &Global, provider: Option<&str>) -> Result<(), Failure> {
    let layers = settings::layers(global, &[])?;
    let files = layers.files().map_err(|why| Failure::new(CONFIG, why))?;
    let found = layers.with(&files, config::examine);
    let lines = || found.complaints.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    // It may be the very model that is not chosen yet that is complained of.
    let Some(config) = &found.config else { return Err(Failure::new(CONFIG, lines())) };
    if !found.complaints.is_empty() {
        tell(&format!("the configuration can't be used yet (`clawmux check`):\n{}", lines()));
    }
    let mut providers = config.providers.clone();
    for offer in offers(&layers.env) {
        if offer.key_variable.is_some() || offer.url_variable.is_some() {
            providers.entry(offer.name.to_owned()).or_insert(offer.provider);
        }
    }
    if let Some(wanted) = provider {
        if !providers.contains_key(wanted) {
            let known: Vec<&str> = providers.keys().map(String::as_str).collect();
            let why = format!("there is no provider {wanted:?}; there are: {}", known.join(", "));
            return Err(Failure::new(FAILED, why));
        }
        providers.retain(|name, _| name == wanted);
    }
    let (listed, refused) = actix::System::new().block_on(list(&providers));
    for Refused { provider, key, why } in &refused {
        if global.json {
            say(&json_line(&json!({ "provider": provider, "key": key, "error": why })));
        } else {
            tell(&format!("{provider} does not list its models with the key {key}: {}", one_line(why, 2000)));
        }
    }
    let failed = listed.iter().filter(|(_, models)| models.is_err()).count();
    if global.json {
        for (name, models) in &listed {
            match models {
                Ok(models) => {
                    let names = names(models);
                    for model in models {
                        let agents = agents_with(config, name, &names, &model.0);
                        if !put(&json_line(&described(config, name, model, &agents)))? {
                            return Ok(());
                        }
                    }
                }
                Err(error) => say(&json_line(&json!({ "provider": name, "error": error.message }))),
            }
        }
        return if failed == 0 { Ok(()) } else { Err(Failure::new(FAILED, "")) };
    }
    let mut rows = Vec::new();
    for (name, models) in &listed {
        match models {
            Ok(models) if models.is_empty() => tell(&format!("{name}: it has no models")),
            Ok(models) => {
                let names = names(models);
                for (agent, model) in missing(config, name, &names) {
                    tell(&format!("{name}: agent {agent} asks for {model}, which is not listed"));
                }
                rows.extend(models.iter().map(|(model, listed)| {
                    let facts = facts(config, name, model, *listed);
                    let agents = agents_with(config, name, &names, model).join(", ");
                    let tokens = |tokens: Option<u64>| tokens.map_or_else(|| "-".to_owned(), grouped);
                    let can = [(facts.images, "images"), (facts.reasoning, "reasoning")];
                    let can: Vec<&str> =
                        can.iter().filter(|(can, _)| *can == Some(true)).map(|(_, what)| *what).collect();
                    let price = facts.price.map_or_else(
                        || "-".to_owned(),
                        |price| {
                            let [input, output] =
                                [price.input, price.output].map(|rate| rate.dollars_per_million());
                            format!("{input}/{output}")
                        },
                    );
                    let output = facts.max_output_tokens.map(u64::from);
                    [
                        name.clone(),
                        model.clone(),
                        tokens(facts.context_window),
                        tokens(output),
                        can.join(", "),
                        price,
                        agents,
                    ]
                }));
            }
            Err(error) => {
                let said = error.message.strip_prefix(&format!("{name}: ")).unwrap_or(&error.message);
                let at = providers.get(name).map_or("", |provider| provider.base_url.as_str());
                tell(&format!("{name} ({at}): {}", one_line(said, 2000)));
            }
        }
    }
    if !rows.is_empty() {
        let head = ["PROVIDER", "MODEL", "CONTEXT", "OUTPUT", "CAN", "$/M IN/OUT", "AGENTS"];
        say(&table(head, &["MODEL"], &rows));
    }
    match (failed, listed.len()) {
        (0, 1..) => Ok(()),
        (failed, all) if failed == all => Err(Failure::new(FAILED, "no provider answered")),
        (failed, all) => Err(Failure::new(FAILED, format!("{failed} of {all} providers did not answer"))),
    }
}

/// One of several keys that a provider does not list its models with, where it does with another.
struct Refused {
    provider: String,
    key: String,
    why: String,
}

/// The models of each provider, each asked with all its keys; all at once. And the keys that are no good.
async fn list(
    providers: &BTreeMap<String, Provider>,
) -> (Vec<(String, Result<Vec<Described>, Error>)>, Vec<Refused>) {
    let asked = providers.iter().map(async |(name, provider)| {
        let by_key = provider.by_key();
        let asked = by_key
            .iter()
            .map(async |(key, provider)| (key.clone(), probe::described(name, provider, TIMEOUT).await));
        (name.clone(), join_all(asked).await)
    });
    let (mut listed, mut refused) = (Vec::new(), Vec::new());
    for (name, answers) in join_all(asked).await {
        let is_any = answers.iter().any(|(_, answer)| answer.is_ok());
        let mut models = None;
        for (key, answer) in answers {
            match answer {
                Err(error) if is_any => {
                    refused.push(Refused { provider: name.clone(), key, why: error.message });
                }
                answer => models = models.or(Some(answer)),
            }
        }
        listed.extend(models.map(|models| (name, models)));
    }
    (listed, refused)
}

/// The names of models.
fn names(models: &[Described]) -> Vec<String> {
    models.iter().map(|(model, _)| model.clone()).collect()
}

/// What is known of a model: what its provider lists, then what the configuration says.
fn facts(config: &Config, provider: &str, model: &str, listed: ModelFacts) -> ModelFacts {
    let model = ModelRef { provider: provider.to_owned(), model: model.to_owned() };
    listed.or(config.models.of(&model))
}

/// The same for scripts; what is not known is left out.
fn described(config: &Config, provider: &str, (model, listed): &Described, agents: &[&str]) -> Value {
    let facts = facts(config, provider, model, *listed);
    let mut value = json!({ "provider": provider, "model": model, "agents": agents });
    let rate = |rate: Option<Rate>| rate.map(|rate| json!(rate.dollars_per_million()));
    for (name, known) in [
        ("context_window", facts.context_window.map(Value::from)),
        ("max_output_tokens", facts.max_output_tokens.map(Value::from)),
        ("images", facts.images.map(Value::from)),
        ("reasoning", facts.reasoning.map(Value::from)),
        ("input_price", rate(facts.price.map(|price| price.input))),
        ("output_price", rate(facts.price.map(|price| price.output))),
        ("cache_read_price", rate(facts.price.and_then(|price| price.cache_read))),
        ("cache_write_price", rate(facts.price.and_then(|price| price.cache_write))),
    ] {
        if let Some(known) = known {
            value[name] = known;
        }
    }
    value
}

/// The agents that use this model of those that its provider lists, or fall back on it. Who names none uses the
/// first that can chat.
fn agents_with<'a>(config: &'a Config, provider: &str, listed: &[String], model: &str) -> Vec<&'a str> {
    let is_default = first_choice(listed) == Some(model);
    let uses = |agent: &&config::Agent| {
        let mut of_provider = agent.models.iter().filter(|known| known.provider == provider);
        of_provider.any(|known| known.model == model || (known.model.is_empty() && is_default))
    };
    config.agents.values().filter(uses).map(|agent| agent.id.as_str()).collect()
}

/// The agents that ask a provider for a model that it does not list, with the model.
fn missing<'a>(config: &'a Config, provider: &str, listed: &[String]) -> Vec<(&'a str, &'a str)> {
    let agents = config.agents.values();
    let asked = agents.flat_map(|agent| agent.models.iter().map(|model| (agent.id.as_str(), model)));
    let is_missing = |model: &ModelRef| {
        model.provider == provider && !model.model.is_empty() && !has(listed, &model.model)
    };
    asked.filter(|(_, model)| is_missing(model)).map(|(agent, model)| (agent, model.model.as_str())).collect()
}
