//! What is known of models: from what their providers list, else from `[models]` of the configuration.
//! What neither says is not known, and nobody is told a guess.

use std::collections::BTreeMap;

use super::model::ModelRef;
use super::price::Price;

/// What is known of a model; nothing is assumed of what is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// How many tokens it can read and write together.
    pub context_window: Option<u64>,
    /// How many tokens it can write.
    pub max_output_tokens: Option<u32>,
    /// Whether it can look at images.
    pub images: Option<bool>,
    /// Whether it can think before it answers.
    pub reasoning: Option<bool>,
    /// What it costs.
    pub price: Option<Price>,
}

impl ModelFacts {
    /// What this says, and where it says nothing, what the other does.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        // Prices of one source belong together, but for those of caches, which few lists have.
        let price = self.price.map(|price| Price {
            cache_read: price.cache_read.or(other.price.and_then(|price| price.cache_read)),
            cache_write: price.cache_write.or(other.price.and_then(|price| price.cache_write)),
            ..price
        });
        Self {
            context_window: self.context_window.or(other.context_window),
            max_output_tokens: self.max_output_tokens.or(other.max_output_tokens),
            images: self.images.or(other.images),
            reasoning: self.reasoning.or(other.reasoning),
            price: price.or(other.price),
        }
    }

    /// How many tokens an answer may have, of so many that are wanted: no more than the model writes, and no more
    /// than half of its window, for it has to read as well.
    pub fn output_tokens(&self, wanted: u32) -> u32 {
        let half =
            self.context_window.map_or(u32::MAX, |window| u32::try_from(window / 2).unwrap_or(u32::MAX));
        wanted.min(self.max_output_tokens.unwrap_or(u32::MAX)).min(half.max(1))
    }

    /// How many tokens a request may have, of so many that are wanted, where an answer of up to `output` tokens is
    /// to fit into the model's window too.
    pub fn context_tokens(&self, wanted: usize, output: u32) -> usize {
        let beside = |window: u64| window - u64::from(self.output_tokens(output)).min(window);
        let most = self.context_window.map_or(u64::MAX, beside);
        wanted.min(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

/// What is known of all models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownModels {
    /// As `[models."PROVIDER/MODEL"]` says.
    pub configured: BTreeMap<ModelRef, ModelFacts>,
    /// As their providers list them.
    pub listed: BTreeMap<ModelRef, ModelFacts>,
}

impl KnownModels {
    /// The name in `[models]` that stands for all models of a provider.
    pub const ANY: &str = "*";

    /// What is known of this one. Without a name it is the server's own choice, which is known where it lists
    /// only one.
    pub fn of(&self, model: &ModelRef) -> ModelFacts {
        let from = |known: &BTreeMap<ModelRef, ModelFacts>, model: &ModelRef| {
            known.get(model).copied().unwrap_or_default()
        };
        let any = ModelRef { provider: model.provider.clone(), model: Self::ANY.to_owned() };
        let mut own = self.listed.keys().filter(|listed| listed.provider == model.provider);
        let only = match (model.model.is_empty(), own.next(), own.next()) {
            (true, Some(only), None) => only,
            _ => model,
        };
        from(&self.listed, only).or(from(&self.configured, model)).or(from(&self.configured, &any))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::price::Rate;

    #[test]
    fn what_is_read_and_what_is_written_fit_into_the_window_together() {
        let facts = |context_window, max_output_tokens| ModelFacts {
            context_window,
            max_output_tokens,
            ..ModelFacts::default()
        };
        for (window, output_max, (context, output)) in [
            (None, None, (5000, 4096)),
            (Some(128_000), Some(16_384), (5000, 4096)),
            (Some(8192), None, (4096, 4096)),
            (Some(2048), None, (1024, 1024)),
            (Some(2048), Some(300), (1748, 300)),
            (None, Some(300), (5000, 300)),
            (Some(1), Some(u32::MAX), (0, 1)),
            (Some(u64::MAX), None, (5000, 4096)),
        ] {
            let facts = facts(window, output_max);
            let fitted = (facts.context_tokens(5000, 4096), facts.output_tokens(4096));
            assert_eq!(fitted, (context, output), "{facts:?}");
        }
    }

    #[test]
    fn a_model_without_a_name_is_the_only_one_there_is() {
        let model = |name: &str| ModelRef { provider: "local".into(), model: name.into() };
        let facts = ModelFacts { context_window: Some(2048), ..ModelFacts::default() };
        let mut known = KnownModels { listed: [(model("tiny"), facts)].into(), ..KnownModels::default() };
        assert_eq!(known.of(&model("")), facts);
        known.listed.insert(model("other"), facts);
        assert_eq!(known.of(&model("")), ModelFacts::default(), "which of the two is not known");
    }

    #[test]
    fn the_provider_is_believed_first_then_the_table_and_the_rest_is_not_known() {
        let model = |name: &str| ModelRef { provider: "lab".into(), model: name.into() };
        let price = |dollars: f64| Price {
            input: Rate::per_million(dollars).unwrap(),
            output: Rate::per_million(dollars).unwrap(),
            ..Price::default()
        };
        let cached = Price { cache_read: Rate::per_million(0.5), ..price(9.0) };
        let listed =
            ModelFacts { context_window: Some(8192), price: Some(price(1.0)), ..ModelFacts::default() };
        let table = ModelFacts { context_window: Some(1), price: Some(cached), ..ModelFacts::default() };
        let any = ModelFacts { images: Some(false), max_output_tokens: Some(5), ..ModelFacts::default() };
        let known = KnownModels {
            configured: [(model("m"), table), (model("*"), any)].into(),
            listed: [(model("m"), listed)].into(),
        };
        let facts = known.of(&model("m"));
        assert_eq!((facts.context_window, facts.images, facts.reasoning), (Some(8192), Some(false), None));
        assert_eq!(facts.price, Some(Price { cache_read: Rate::per_million(0.5), ..price(1.0) }));
        assert_eq!(known.of(&model("other")), any);
        let stranger = ModelRef { provider: "x".into(), model: "m".into() };
        assert_eq!(known.of(&stranger), ModelFacts::default());
    }
}
