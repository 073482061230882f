//! `[budgets]` and `[models]`: what may be spent, and what is known of models where their providers don't say.

use std::collections::BTreeSet;

use super::load::check_agent;
use super::models::Providers;
use super::section::{Report, Section};
use crate::ids::{AgentId, Owner};
use crate::provider::ProviderKind;
use crate::provider::budget::{Among, BudgetRule, Budgets, Caps};
use crate::provider::facts::{KnownModels, ModelFacts};
use crate::provider::model::ModelRef;
use crate::provider::price::{DOLLARS_MAX, Money, Price, Rate};

/// The name that stands for each of them.
const EACH: &str = "*";

/// The name of the operators, who are one principal.
const OPERATORS: &str = "operators";

pub(super) fn budgets(mut s: Section, r: &mut Report, agents: &BTreeSet<&str>) -> Budgets {
    let budgets = Budgets {
        session: s.integer(r, "session", 0, 0..=u64::MAX),
        session_cost: money(&mut s, r, "session_cost"),
        all: caps(&mut s, r),
        rules: s.list(r, "rules").into_iter().filter_map(|s| rule(s, r, agents)).collect(),
    };
    s.finish(r);
    budgets
}

fn caps(s: &mut Section, r: &mut Report) -> Caps {
    Caps {
        daily: s.integer(r, "daily", 0, 0..=u64::MAX),
        daily_cost: money(s, r, "daily_cost"),
        monthly: s.integer(r, "monthly", 0, 0..=u64::MAX),
        monthly_cost: money(s, r, "monthly_cost"),
    }
}

fn money(s: &mut Section, r: &mut Report, key: &'static str) -> Money {
    Money::from_dollars(s.decimal(r, key, Some(0.0), DOLLARS_MAX).unwrap_or(0.0)).unwrap_or_default()
}

fn rule(mut s: Section, r: &mut Report, agents: &BTreeSet<&str>) -> Option<BudgetRule> {
    let (agent, principal) = (s.optional(r, "agent"), s.optional(r, "principal"));
    let caps = caps(&mut s, r);
    let at = s.origin("");
    if let Some(agent) = agent.as_deref().filter(|agent| *agent != EACH) {
        check_agent(r, &s.origin("agent"), &s.name("agent"), agent, agents);
    }
    if agent.is_none() && principal.is_none() {
        r.complain(&at, "budgets.rules: name an agent or a principal (\"*\" = each of them); what all share is in [budgets]");
    }
    if caps == Caps::default() {
        r.complain(
            &at,
            "budgets.rules: no budget is named; allowed are daily, daily_cost, monthly and monthly_cost",
        );
    }
    s.finish(r);
    Some(BudgetRule {
        agent: among(agent, AgentId::new),
        principal: among(principal, |name| match name.as_str() {
            OPERATORS => Owner::Admins,
            name => Owner::from_name(name),
        }),
        caps,
    })
}

fn among<T>(name: Option<String>, one: impl Fn(String) -> T) -> Among<T> {
    match name {
        None => Among::All,
        Some(name) if name == EACH => Among::Each,
        Some(name) => Among::One(one(name)),
    }
}

pub(super) fn models(s: Section, r: &mut Report, providers: &Providers) -> KnownModels {
    let mut known = KnownModels::default();
    // What is built in costs nothing.
    for (name, _) in providers.iter().filter(|(_, provider)| provider.kind == ProviderKind::Offline) {
        let any = ModelRef { provider: name.clone(), model: KnownModels::ANY.to_owned() };
        known.configured.insert(any, ModelFacts { price: Some(Price::default()), ..ModelFacts::default() });
    }
    // One of a service that has no key yet is there once it has.
    let is_service = |name: &str| ProviderKind::ALL.iter().any(|kind| kind.name() == name);
    let is_known = |name: &str| providers.contains_key(name) || is_service(name);
    for (name, s) in s.named(r) {
        let at = s.origin("");
        let facts = facts(s, r, &name);
        match name.split_once('/') {
            Some((provider, model)) if !model.is_empty() && is_known(provider) => {
                let model = ModelRef { provider: provider.to_owned(), model: model.to_owned() };
                known.configured.insert(model, facts);
            }
            Some((provider, model)) if !model.is_empty() && !provider.is_empty() => {
                r.complain(&at, format!("models.{name:?}: there is no provider {provider:?}"));
            }
            _ => r.complain(
                &at,
                format!("models.{name:?}: expected PROVIDER/MODEL such as \"openai/gpt-4o\", or PROVIDER/* for all of one"),
            ),
        }
    }
    known
}

fn facts(mut s: Section, r: &mut Report, name: &str) -> ModelFacts {
    const TOKENS_MAX: u64 = 1 << 40;
    let context_window = s.whole(r, "context_window", 1..=TOKENS_MAX);
    let max_output_tokens = s.whole(r, "max_output_tokens", 1..=u32::MAX.into());
    let (images, reasoning) = (s.flag(r, "images"), s.flag(r, "reasoning"));
    let mut rate = |key| s.decimal(r, key, None, DOLLARS_MAX).and_then(Rate::per_million);
    let (input, output) = (rate("input_price"), rate("output_price"));
    let (cache_read, cache_write) = (rate("cache_read_price"), rate("cache_write_price"));
    let price = match (input, output) {
        (Some(input), Some(output)) => Some(Price { input, output, cache_read, cache_write }),
        (None, None) if cache_read.or(cache_write).is_none() => None,
        // Half a price would be taken for a whole one.
        _ => {
            let complained =
                r.complaints.iter().any(|complaint| complaint.message.contains("_price: expected"));
            if !complained {
                let why = "a price needs both input_price and output_price, in dollars for a million tokens";
                r.complain(&s.origin(""), format!("models.{name:?}: {why}"));
            }
            None
        }
    };
    s.finish(r);
    ModelFacts {
        context_window,
        max_output_tokens: max_output_tokens.and_then(|tokens| u32::try_from(tokens).ok()),
        images,
        reasoning,
        price,
    }
}
