//! What there is to choose from: agents and the models of configured providers.
//!
//! It follows from the configuration alone, so dialects answer from it without asking anybody.

use crate::config::{Agent, Config, ModelRef};
use crate::ids::AgentId;
use crate::provider::ProviderKind;

/// The agents and models of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The agent for those who name none.
    pub default_agent: Option<AgentId>,
    /// The agents, by name.
    pub agents: Vec<AgentEntry>,
    /// The models that some agent names, in the order of the agents, each once.
    pub models: Vec<ModelEntry>,
}

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentEntry {
    /// Its name.
    pub id: AgentId,
    /// The model it asks first.
    pub model: ModelRef,
    /// Those it falls back to.
    pub fallback: Vec<ModelRef>,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// Its provider and name.
    pub model: ModelRef,
    /// The wire format it is asked in.
    pub kind: ProviderKind,
}

impl Catalog {
    /// That of a configuration.
    pub fn new(config: &Config) -> Self {
        let entry = |agent: &Agent| {
            let (model, fallback) = agent.models.split_first()?;
            Some(AgentEntry { id: agent.id.clone(), model: model.clone(), fallback: fallback.to_vec() })
        };
        let agents: Vec<_> = config.agents.values().filter_map(entry).collect();
        let mut models: Vec<ModelEntry> = Vec::new();
        for model in config.agents.values().flat_map(|agent| &agent.models) {
            if let Some(provider) = config.providers.get(&model.provider)
                && !models.iter().any(|known| known.model == *model)
            {
                models.push(ModelEntry { model: model.clone(), kind: provider.kind });
            }
        }
        Self { default_agent: config.default_agent.clone(), agents, models }
    }

    /// The agent of this name.
    pub fn agent(&self, id: &str) -> Option<&AgentEntry> {
        self.agents.iter().find(|agent| agent.id.as_str() == id)
    }
}
