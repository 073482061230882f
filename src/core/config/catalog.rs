//! What there is to choose from: agents and the models of configured providers.
//!
//! It follows from the configuration alone, so dialects answer from it without asking anybody.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Agent, Config, Provider};
use crate::error::{Error, ErrorCode};
use crate::ids::{AgentId, PluginName};
use crate::prompt::settings::Settings;
use crate::provider::ProviderKind;
use crate::provider::facts::{KnownModels, ModelFacts};
use crate::provider::model::ModelRef;
use crate::tools::built_in::ToolGroup;

/// The agents and models of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The agent for those who name none.
    pub default_agent: Option<AgentId>,
    /// The agents, by name.
    pub agents: Vec<AgentEntry>,
    /// The models that some agent names, in the order of the agents, each once; then those that servers chose.
    pub models: Vec<ModelEntry>,
    /// The configured providers, whose other models can be named too.
    pub providers: BTreeSet<String>,
    /// How each of them is let in at its service.
    pub access: BTreeMap<String, Access>,
    /// What is known of models.
    pub known: KnownModels,
    /// How often the heart of the default agent beats; none = never.
    pub heartbeat: Option<Duration>,
}

/// How a provider is let in at its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The wire format it is asked in.
    pub kind: ProviderKind,
    /// Whether a key is configured.
    pub has_key: bool,
    /// Whether it wants one and there is none, so that it refuses every call.
    pub lacks_key: bool,
}

/// An agent of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentEntry {
    /// The agent's name.
    pub id: AgentId,
    /// The model it asks first; without a name as long as its server has not been asked for one.
    pub model: ModelRef,
    /// Those it falls back to.
    pub fallback: Vec<ModelRef>,
    /// The plugins it is offered as tools.
    pub tools: Vec<PluginName>,
    /// The commands of nodes it is offered while the node is connected, as the model knows them.
    pub node_tools: Vec<PluginName>,
    /// The tools of MCP servers it is offered while the server is there, as they are granted.
    pub mcp_tools: Vec<String>,
    /// The built-in tools it is offered, by their groups.
    pub built_in: Vec<ToolGroup>,
    /// The file of its soul.
    pub soul: PathBuf,
}

/// A model that an agent may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// The provider and the model's name there.
    pub model: ModelRef,
    /// The wire format it is asked in.
    pub kind: ProviderKind,
}

impl AgentEntry {
    /// Its models, in the order they are asked in.
    pub fn models(&self) -> impl Iterator<Item = &ModelRef> {
        std::iter::once(&self.model).chain(&self.fallback)
    }
}

impl Catalog {
    /// The agents and models of a configuration.
    pub fn new(config: &Config) -> Self {
        let entry = |agent: &Agent| {
            let (model, fallback) = agent.models.split_first()?;
            Some(AgentEntry {
                id: agent.id.clone(),
                model: model.clone(),
                fallback: fallback.to_vec(),
                tools: agent.tools.clone(),
                node_tools: agent.node_tools.iter().map(|tool| tool.name.clone()).collect(),
                mcp_tools: agent.mcp_tools.iter().map(ToString::to_string).collect(),
                built_in: agent.built_in.clone(),
                soul: agent.soul.clone(),
            })
        };
        let agents: Vec<_> = config.agents.values().filter_map(entry).collect();
        let mut models: Vec<ModelEntry> = Vec::new();
        for model in config.agents.values().flat_map(|agent| &agent.models) {
            if let Some(provider) = config.providers.get(&model.provider)
                && !model.model.is_empty()
                && !models.iter().any(|known| known.model == *model)
            {
                models.push(ModelEntry { model: model.clone(), kind: provider.kind });
            }
        }
        let access = |(name, provider): (&String, &Provider)| {
            let has_key = provider.api_key.is_some();
            (name.clone(), Access { kind: provider.kind, has_key, lacks_key: provider.lacks_key() })
        };
        Self {
            default_agent: config.default_agent.clone(),
            agents,
            models,
            providers: config.providers.keys().cloned().collect(),
            access: config.providers.iter().map(access).collect(),
            known: config.models.clone(),
            heartbeat: config.scheduler.heartbeat,
        }
    }

    /// That with the models that servers were asked for, by the names of their providers, in place of those that agents
    /// do not name.
    #[must_use]
    pub fn with_default_models(mut self, known: &BTreeMap<String, String>) -> Self {
        for agent in self.agents.iter_mut().filter(|agent| agent.model.model.is_empty()) {
            let Some(model) = known.get(&agent.model.provider) else { continue };
            agent.model.model.clone_from(model);
            let kind = self.access.get(&agent.model.provider).map(|access| access.kind);
            let entry = kind.map(|kind| ModelEntry { model: agent.model.clone(), kind });
            let is_new = |entry: &ModelEntry| !self.models.iter().any(|known| known.model == entry.model);
            self.models.extend(entry.filter(is_new));
        }
        self
    }

    /// What is known of a model.
    pub fn facts(&self, model: &ModelRef) -> ModelFacts {
        self.known.of(model)
    }

    /// The model that somebody names for an agent's sessions: `PROVIDER/MODEL`, or the bare name of a
    /// model that an agent names.
    ///
    /// # Errors
    /// `InvalidRequest` where there is no such provider or model.
    pub fn find(&self, agent: &str, name: &str) -> Result<ModelRef, Error> {
        let name = name.trim();
        if let Some((provider, model)) = name.split_once('/')
            && self.providers.contains(provider)
            && !model.is_empty()
        {
            return Ok(ModelRef { provider: provider.to_owned(), model: model.to_owned() });
        }
        let own = self.agent(agent).into_iter().flat_map(AgentEntry::models);
        let all = self.models.iter().map(|entry| &entry.model);
        own.chain(all).find(|model| model.model == name).cloned().ok_or_else(|| {
            let known: Vec<String> = self.models.iter().map(|entry| entry.model.to_string()).collect();
            ErrorCode::InvalidRequest.error(format!(
                "model not found: {name:?} (name one of a configured provider: {})",
                known.join(", ")
            ))
        })
    }

    /// The model that answers next in a session of this agent with these settings.
    pub fn answers(&self, agent: &str, settings: &Settings) -> Option<ModelRef> {
        let set = settings.model.as_deref().and_then(|model| self.find(agent, model).ok());
        set.or_else(|| self.agent(agent).map(|agent| agent.model.clone()))
    }

    /// Whether a model of this provider can be asked, as far as that hangs on the configuration.
    pub fn is_available(&self, provider: &str) -> bool {
        self.access.get(provider).is_none_or(|access| !access.lacks_key)
    }

    /// The agent of this name.
    pub fn agent(&self, id: &str) -> Option<&AgentEntry> {
        self.agents.iter().find(|agent| agent.id.as_str() == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_its_full_name_or_by_its_own_where_an_agent_names_it() {
        let model = |provider: &str, model: &str| ModelRef { provider: provider.into(), model: model.into() };
        let agent = |id: &str, first: ModelRef| AgentEntry {
            id: id.into(),
            model: first,
            fallback: Vec::new(),
            tools: Vec::new(),
            node_tools: Vec::new(),
            mcp_tools: Vec::new(),
            built_in: Vec::new(),
            soul: PathBuf::new(),
        };
        let (a, b) = (model("one", "m"), model("two", "m"));
        let catalog = Catalog {
            default_agent: None,
            agents: vec![agent("x", a.clone()), agent("y", b.clone())],
            models: [&a, &b]
                .map(|model| ModelEntry { model: model.clone(), kind: ProviderKind::OpenAi })
                .to_vec(),
            providers: ["one".into(), "two".into()].into(),
            access: BTreeMap::new(),
            known: KnownModels::default(),
            heartbeat: None,
        };
        assert_eq!(catalog.find("x", "two/vendor/other").unwrap(), model("two", "vendor/other"));
        assert_eq!(catalog.find("y", " m ").unwrap(), b);
        for unknown in ["three/m", "two/", "other", ""] {
            let error = catalog.find("x", unknown).unwrap_err();
            assert!(error.message.contains("one/m, two/m"), "{error}");
        }
        let unnamed = |known: &[(&str, &str)]| {
            let known = known.iter().map(|(provider, model)| ((*provider).to_owned(), (*model).to_owned()));
            let (agents, access) = (
                vec![agent("x", model("two", ""))],
                Access { kind: ProviderKind::Ollama, has_key: false, lacks_key: false },
            );
            let catalog = Catalog { agents, access: [("two".to_owned(), access)].into(), ..catalog.clone() };
            catalog.with_default_models(&known.collect())
        };
        assert_eq!(unnamed(&[("one", "z")]).answers("x", &Settings::default()), Some(model("two", "")));
        let known = unnamed(&[("two", "z")]);
        assert_eq!(known.answers("x", &Settings::default()), Some(model("two", "z")));
        assert_eq!(
            known.models.last().map(|entry| (&entry.model, entry.kind)),
            Some((&model("two", "z"), ProviderKind::Ollama))
        );
        let set = |model: &str| Settings { model: Some(model.into()), ..Settings::default() };
        assert_eq!(catalog.answers("x", &set("two/m")), Some(b));
        assert_eq!(catalog.answers("x", &set("gone/m")), Some(a), "a provider that is gone is not asked");
    }
}
