//! What model calls cost, in tokens.

/// Tokens a provider counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Read by the model, whether from a cache or not.
    pub input_tokens: u64,
    /// The tokens that the model wrote.
    pub output_tokens: u64,
    /// The part of `input_tokens` that the provider had in its cache. 0 where it does not say.
    pub cache_read_tokens: u64,
    /// The part of `input_tokens` that it put into its cache, and charges for that. 0 where it does not say.
    pub cache_write_tokens: u64,
}

impl Usage {
    /// Of so many tokens, none of which has to do with a cache.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self { input_tokens, output_tokens, cache_read_tokens: 0, cache_write_tokens: 0 }
    }

    /// Input and output together, as budgets count.
    pub fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The input that has nothing to do with a cache.
    pub fn fresh_input(self) -> u64 {
        self.input_tokens.saturating_sub(self.cache_read_tokens).saturating_sub(self.cache_write_tokens)
    }

    /// What is more in this than in `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(before.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_sub(before.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_sub(before.cache_write_tokens),
        }
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(other.cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
    }
}
