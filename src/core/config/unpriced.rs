//! Models that budgets in money keep from being asked: what they cost is not known, so it can't be counted.

use super::Config;
use crate::ids::{AgentId, Owner};
use crate::provider::facts::KnownModels;
use crate::provider::model::ModelRef;

/// An agent with a budget in money, and its models without a price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpriced {
    /// The agent.
    pub agent: AgentId,
    /// The key of the budget.
    pub budget: &'static str,
    /// Of whose prompts alone that is so; none = of everybody's.
    pub principal: Option<Owner>,
    /// The models.
    pub models: Vec<ModelRef>,
    /// Whether it has no other, so that its prompts are refused.
    pub is_all: bool,
}

impl Config {
    /// The agents whose models budgets in money keep from being asked, by what is `known` of models. `chosen` is the
    /// model that stands for one without a name.
    pub fn unpriced(&self, known: &KnownModels, chosen: impl Fn(&ModelRef) -> ModelRef) -> Vec<Unpriced> {
        let of_agent = |agent: &super::Agent| {
            let (budget, principal) = self.budgets.in_money_for(&agent.id)?;
            let mut models: Vec<ModelRef> = agent.models.iter().map(&chosen).collect();
            models.retain(|model| known.of(model).price.is_none());
            models.dedup();
            let is_all = agent.models.iter().all(|model| known.of(&chosen(model)).price.is_none());
            let principal = principal.cloned();
            (!models.is_empty()).then(|| Unpriced {
                agent: agent.id.clone(),
                budget,
                principal,
                models,
                is_all,
            })
        };
        self.agents.values().filter_map(of_agent).collect()
    }
}

impl Unpriced {
    /// That its prompts are refused, in one line; none where another of its models is asked.
    pub fn refusal_words(&self) -> Option<String> {
        let of = self.principal.as_ref().map(|owner| format!(" of {}", owner.in_words())).unwrap_or_default();
        let Self { agent, budget, models, .. } = self;
        let tables: Vec<String> = models.iter().map(table).collect();
        self.is_all.then(|| {
            format!(
                "prompts{of} to agent {agent} are refused: the budget {budget} is in money, and what {} costs is not \
                 known: give {} its input_price and output_price",
                names(models),
                tables.join(", ")
            )
        })
    }

    /// What is wrong with that, as far as the configuration alone tells: a provider may list a price.
    pub fn warning(&self) -> String {
        let Self { agent, budget, models, .. } = self;
        let (what, lines) = (names(models), price_lines(models));
        let then = match self.is_all {
            true => "prompts to it are refused",
            false => "it is not asked",
        };
        format!(
            "agents.{agent}.model: the budget {budget} is in money, and what {what} costs is not known: {then}, unless \
             its provider lists a price. To say it, in US dollars for a million tokens:\n{lines}"
        )
    }
}

/// That a call is refused since none of these models has a price.
pub fn refusal(models: &[ModelRef]) -> String {
    let (what, lines) = (names(models), price_lines(models));
    format!(
        "a budget is in money, and what {what} costs is not known. The configuration can say it, in US dollars for a \
         million tokens:\n{lines}"
    )
}

/// What to write into the configuration, but for the figures.
fn price_lines(models: &[ModelRef]) -> String {
    let lines = |model: &ModelRef| format!("{}\ninput_price = …\noutput_price = …", table(model));
    models.iter().map(lines).collect::<Vec<_>>().join("\n")
}

/// The table of a model; of one without a name, that of all of its provider.
fn table(model: &ModelRef) -> String {
    let name = if model.model.is_empty() { KnownModels::ANY } else { &model.model };
    format!("[models.{:?}]", format!("{}/{name}", model.provider))
}

fn names(models: &[ModelRef]) -> String {
    models.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Provider;
    use crate::provider::ProviderKind;
    use crate::provider::budget::{Among, BudgetRule, Caps};
    use crate::provider::facts::ModelFacts;
    use crate::provider::price::{Money, Price};

    fn model(name: &str) -> ModelRef {
        ModelRef { provider: "local".into(), model: name.into() }
    }

    /// An agent `main` with these models.
    fn config(models: &[&str]) -> Config {
        let mut config = Config::default();
        config
            .providers
            .insert("local".into(), Provider::new(ProviderKind::OpenAi, "http://127.0.0.1:1", None));
        let main = config.agents.get_mut(&AgentId::from("main")).expect("the agent that is built in");
        main.models = models.iter().map(|name| model(name)).collect();
        config
    }

    #[test]
    fn a_budget_in_money_is_told_where_a_model_has_no_price() {
        let mut config = config(&["mock-model", "dear"]);
        let unpriced = |config: &Config| config.unpriced(&config.models, ModelRef::clone);
        assert_eq!(unpriced(&config), [], "no budget is in money");
        config.budgets.all.daily_cost = Money::from_dollars(1.0).expect("an amount");
        let all = unpriced(&config);
        assert_eq!((all[0].budget, all[0].is_all, all[0].models.len()), ("daily_cost", true, 2));
        assert!(
            all[0]
                .refusal_words()
                .is_some_and(|said| said.starts_with("prompts to agent main are refused: "))
        );
        let warning = all[0].warning();
        let lines =
            "[models.\"local/mock-model\"]\ninput_price = …\noutput_price = …\n[models.\"local/dear\"]\n";
        assert!(
            warning.contains(lines) && warning.contains("unless its provider lists a price"),
            "{warning}"
        );

        let priced = ModelFacts { price: Some(Price::default()), ..ModelFacts::default() };
        config.models.configured.insert(model("dear"), priced);
        let one = unpriced(&config);
        assert_eq!((one[0].refusal_words(), &one[0].models), (None, &vec![model("mock-model")]));
        config.models.configured.insert(model(KnownModels::ANY), priced);
        assert_eq!(unpriced(&config), []);
    }

    #[test]
    fn a_rule_in_money_concerns_its_agent_and_principal() {
        let mut config = config(&[""]);
        let monthly_cost = Money::from_dollars(1.0).expect("an amount");
        let caps = Caps { monthly_cost, ..Caps::default() };
        let rule = |agent: &str, principal| BudgetRule { agent: Among::One(agent.into()), principal, caps };
        config.budgets.rules = vec![rule("other", Among::All)];
        let unpriced = |config: &Config| config.unpriced(&config.models, ModelRef::clone);
        assert_eq!(unpriced(&config), []);
        config.budgets.rules.push(rule("main", Among::One(Owner::from_name("ada"))));
        let said = unpriced(&config)[0].refusal_words().expect("it has no other model");
        assert!(
            said.starts_with("prompts of ada to agent main are refused: the budget monthly_cost"),
            "{said}"
        );
        assert!(said.contains("[models.\"local/*\"]"), "{said}");
        config.budgets.rules.push(rule("main", Among::Each));
        assert_eq!(unpriced(&config)[0].principal, None, "one of everybody's comes first");
    }
}
