//! The agents, and what else the configuration says of sessions: one immutable value, which sessions and
//! their supervisor share and a reload exchanges. A run keeps the [`Profile`] it began with; the next one
//! of its session finds the new one here, so nobody has to be told.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clawmux_core::agents::registry;
use clawmux_core::config::catalog::Catalog;
use clawmux_core::config::{Agent, Approval, Config};
use clawmux_core::conversation::approval::Toolbox;
use clawmux_core::conversation::approval_rule::Rule;
use clawmux_core::conversation::router::Router;
use clawmux_core::conversation::session::{Limits, Recovery};
use clawmux_core::error::Error;
use clawmux_core::ids::{AgentId, PluginName};
use clawmux_core::learning::Finder;
use clawmux_core::limits::quota::Quota;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::schedule::job;
use clawmux_core::skill::AgentSkills;
use clawmux_core::tools::built_in::{ToolGroup, is_built_in};
use clawmux_core::tools::mcp::McpGrant;
use clawmux_core::tools::node::NodeTool;
use clawmux_core::tools::{long_result, messenger};

use super::soul::Soul;

/// An agent, as its sessions use it.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name.
    pub id: AgentId,
    /// Its soul.
    pub soul: Arc<Soul>,
    /// The models that answer for it, in the order they are asked in.
    pub models: Vec<ModelRef>,
    /// The most tokens of one answer.
    pub max_tokens: u32,
    /// The plugins it is offered as tools.
    pub tools: Vec<PluginName>,
    /// Of these, the ones whose calls wait for approval.
    pub gated: Vec<PluginName>,
    /// For how long they do.
    pub approval_timeout: Duration,
    /// Which of its calls do besides, and which do not.
    pub approval_rules: Arc<[Rule]>,
    /// The commands of nodes it is offered as tools, while their node is connected.
    pub node_tools: Vec<NodeTool>,
    /// The tools of MCP servers it is offered, while their server is there.
    pub mcp_tools: Vec<McpGrant>,
    /// The built-in tools it is offered, by their groups.
    pub built_in: Vec<ToolGroup>,
    /// Where its skills are.
    pub skills: AgentSkills,
    /// Estimated tokens of what its model sees.
    pub context_tokens: usize,
    /// How facts are found in what it answers; none = they are not.
    pub finder: Option<Finder>,
    /// Whether a model sums up the turns that are left out.
    pub summaries: bool,
    /// For how long what is remembered is looked through for each prompt; none = it is not.
    pub recall: Option<Duration>,
    /// The tools it may call, made when they are first asked for: without and with `send_message`.
    pub(super) toolboxes: [OnceLock<Toolbox>; 2],
}

/// How long what is remembered is looked for once the question is ready; then a prompt is answered without.
const RECALL_TIMEOUT: Duration = Duration::from_secs(1);

impl Profile {
    /// All tools it may call: those of its configuration, `read_result`, and `send_message` where that is
    /// offered without a grant.
    pub(super) fn toolbox(&self, has_messenger: bool) -> &Toolbox {
        self.toolboxes[usize::from(has_messenger)].get_or_init(|| self.make_toolbox(has_messenger))
    }

    fn make_toolbox(&self, has_messenger: bool) -> Toolbox {
        let granted = self.built_in.iter().flat_map(|group| group.tools());
        let granted = granted.map(|name| PluginName::from(*name));
        let built_in = granted.chain(has_messenger.then(messenger::name)).chain([long_result::name()]);
        let nodes = self.node_tools.iter().map(|tool| tool.name.clone());
        let mcp = self.mcp_tools.iter().map(McpGrant::offered);
        let offered = self.plugins().cloned().chain(nodes).chain(mcp).chain(built_in).collect();
        let is_plugin = |tool: &&PluginName| !is_built_in(tool.as_str());
        let gated = self.gated.iter().filter(is_plugin).cloned().collect();
        let rules = Arc::clone(&self.approval_rules);
        Toolbox { offered, gated, rules, timeout: self.approval_timeout }
    }

    /// The plugins it may call: none takes the name of a tool that is built in.
    pub(super) fn plugins(&self) -> impl Iterator<Item = &PluginName> {
        self.tools.iter().filter(|tool| !is_built_in(tool.as_str()))
    }
}

/// What sessions are to be like.
#[derive(Clone, Debug)]
pub struct AgentConfigs {
    /// Who answers whom.
    pub router: Router,
    /// The agents, by name.
    pub agents: HashMap<AgentId, Arc<Profile>>,
    /// The channels that lead to people elsewhere, by name.
    pub channels: BTreeSet<String>,
    /// The bounds of a session.
    pub limits: Limits,
    /// What each owner may have in the log.
    pub quota: Quota,
    /// How many bytes of each owner's prompts may wait in memory.
    pub queued_bytes: u64,
    /// After how long a session that is not used is deleted; none = never.
    pub retention: Option<Duration>,
    /// How many bytes the log may have before sessions that are not used are deleted; none = any.
    pub store_bytes_max: Option<u64>,
    /// What becomes of a run the daemon's end cut off.
    pub recovery: Recovery,
    /// How far behind the log a client may fall, in bytes of it.
    pub lag_bytes_max: usize,
    /// The models there are.
    pub catalog: Arc<Catalog>,
    /// What is learned from, and what that may take.
    pub learning: Learning,
}

/// What is learned from, and what that may take.
#[derive(Clone, Debug, Default)]
pub struct Learning {
    /// The most tokens that models may spend on it on a day; 0 = any.
    pub tokens_a_day: u64,
    /// How long a model may take for one exchange.
    pub timeout: Duration,
    /// The channels of sessions whose prompts are not those of their owner.
    pub foreign: BTreeSet<String>,
}

impl AgentConfigs {
    /// That of a configuration, with the agents' souls. A soul file that is not there is an empty soul.
    /// Blocks.
    ///
    /// # Errors
    /// `Unavailable` where a soul can't be read or is longer than 1 MiB, with its path.
    pub fn read(config: &Config) -> Result<Self, Error> {
        let profile = |(id, agent): (&AgentId, &Agent)| Ok((id.clone(), Arc::new(profile(config, agent)?)));
        Ok(Self {
            router: Router::new(config.bindings.clone(), config.default_agent.clone()),
            agents: config.agents.iter().map(profile).collect::<Result<_, Error>>()?,
            channels: channels(config),
            limits: Limits {
                queue: config.limits.queue,
                episodic_turns: config.memory.episodic_turns,
                context_tokens: config.memory.context_tokens,
            },
            quota: Quota { sessions: config.limits.sessions, bytes: config.limits.store_bytes },
            queued_bytes: config.limits.queued_bytes,
            retention: (config.store.retention_days > 0)
                .then(|| Duration::from_secs(config.store.retention_days * 24 * 60 * 60)),
            store_bytes_max: Some(config.store.max_bytes).filter(|bytes| *bytes > 0),
            recovery: config.store.recovery,
            lag_bytes_max: config.gateway.max_buffered_bytes,
            catalog: Arc::new(Catalog::new(config)),
            learning: Learning {
                tokens_a_day: config.memory.learn_tokens,
                timeout: config.memory.learn_timeout,
                foreign: foreign_channels(config),
            },
        })
    }

    /// Where the skills of all agents are, by agent.
    pub fn skills(&self) -> Vec<AgentSkills> {
        let mut all: Vec<AgentSkills> = self.agents.values().map(|agent| agent.skills.clone()).collect();
        all.sort_by(|a, b| a.agent.cmp(&b.agent));
        all
    }

    /// The agents that are here with another soul than in `before`.
    pub fn other_souls<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a AgentId> {
        let is_other = |(id, now): &(&AgentId, &Arc<Profile>)| {
            before.agents.get(*id).is_some_and(|before| before.soul.text() != now.soul.text())
        };
        self.agents.iter().filter(is_other).map(|(id, _)| id)
    }
}

fn profile(config: &Config, agent: &Agent) -> Result<Profile, Error> {
    let is_gated = |tool: &&PluginName| {
        config.plugins.iter().any(|plugin| plugin.name == **tool && plugin.approval == Approval::Ask)
    };
    let asks = |grant: &&McpGrant| {
        config.mcp.iter().any(|server| server.name == grant.server && server.approval == Approval::Ask)
    };
    let gated_mcp = agent.mcp_tools.iter().filter(asks).map(McpGrant::offered);
    Ok(Profile {
        id: agent.id.clone(),
        soul: Arc::new(Soul::read(&agent.soul)?),
        models: agent.models.clone(),
        max_tokens: agent.max_tokens,
        tools: agent.tools.clone(),
        gated: agent.tools.iter().filter(is_gated).cloned().chain(gated_mcp).collect(),
        approval_timeout: config.approvals.timeout,
        approval_rules: config.approvals.rules.clone().into(),
        node_tools: agent.node_tools.clone(),
        mcp_tools: agent.mcp_tools.clone(),
        built_in: agent.built_in.clone(),
        skills: agent.skills(config.memory.context_tokens),
        context_tokens: config.memory.context_tokens,
        finder: agent
            .models
            .first()
            .and_then(|model| config.providers.get(&model.provider))
            .and_then(|provider| config.memory.learn.finder(provider.kind)),
        summaries: config.memory.summaries,
        recall: config.memory.recall.then(|| {
            let embedding = config.memory.embeddings.as_ref().map(|_| config.memory.embeddings_timeout);
            RECALL_TIMEOUT + embedding.unwrap_or_default()
        }),
        toolboxes: Default::default(),
    })
}

/// Those that are configured, and those of the bus that agents are told of.
fn channels(config: &Config) -> BTreeSet<String> {
    let configured = config.channels.iter().map(|channel| &channel.name);
    configured.chain(config.bus.iter().flat_map(|bus| &bus.channels)).cloned().collect()
}

/// Those over which others write, and those of jobs and of agents that work for a session.
fn foreign_channels(config: &Config) -> BTreeSet<String> {
    let others = config.channels.iter().map(|channel| channel.name.clone());
    others.chain([job::CHANNEL.to_owned(), registry::CHANNEL.to_owned()]).collect()
}
