//! Which model is asked.

/// A model of a configured provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelRef {
    /// The provider's name in `[providers]`.
    pub provider: String,
    /// The model's name there; empty = whichever its server lists first, as long as nobody asked.
    pub model: String,
}

impl ModelRef {
    /// Reads it as it is displayed: `PROVIDER/MODEL`. None where it is not that.
    pub fn parse(text: &str) -> Option<Self> {
        let (provider, model) = text.split_once('/')?;
        let is_whole = !provider.is_empty() && !model.is_empty();
        is_whole.then(|| Self { provider: provider.to_owned(), model: model.to_owned() })
    }
}

impl std::fmt::Display for ModelRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.model.as_str() {
            "" => f.write_str(&self.provider),
            model => write!(f, "{}/{model}", self.provider),
        }
    }
}
