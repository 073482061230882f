//! The configuration, validated: what the daemon runs on.
//!
//! Source of names and defaults: the sample `gateway.toml`, which a test compares with
//! [`Config::default`].
//!
//! [`load()`] gets there from layers of text: `tree` merges them and remembers lines, `section`
//! reads them key by key, and the rest of the modules check what the keys say together.

pub mod catalog;
pub mod offer;

mod approvals;
mod bus;
mod channels;
mod cluster;
mod credentials;
mod document;
mod headers;
mod keys;
mod layers;
mod load;
mod mcp;
mod memory;
mod models;
mod nats;
mod plugins;
pub mod request;
mod restart;
mod section;
mod spending;
mod tree;
pub mod unpriced;

#[cfg(test)]
mod tests;

pub use document::{
    HIDDEN, at, differences, edit, is_known, no_such_key, patched, placed, unsaid, unset, value_of_text,
};
pub use keys::{Hint, Schema, schema};
pub use load::{DEFAULT_TOOLS, EMBEDDED_PLUGINS, Examined, Loaded, Sources, examine, load};
pub use models::{is_base_url, url_of_variable};
pub use restart::{TAKES_A_RESTART, in_effect, takes_a_restart};
pub use tree::{Complaint, ENV_PREFIX, File, Flag, Origin};

/// The sections that concern everybody who uses the daemon: none of them tells who else does, or how
/// the machine is set up.
pub const COMMON_SECTIONS: [&str; 7] =
    ["agents", "approvals", "budgets", "default", "limits", "memory", "scheduler"];

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::access::Secret;
use crate::access::auth::Auth;
use crate::cluster::node::NodeName;
use crate::conversation::approval_rule::Rule;
use crate::conversation::router::Binding;
use crate::conversation::session::Recovery;
use crate::ids::{AgentId, PluginName, SessionKey};
use crate::learning::LearnBy;
use crate::provider::ProviderKind;
use crate::provider::budget::Budgets;
use crate::provider::facts::KnownModels;
use crate::provider::model::ModelRef;
use crate::scope::Scopes;
use crate::skill::{self, AgentSkills};
use crate::tools::built_in::ToolGroup;
use crate::tools::mcp::McpGrant;
use crate::tools::node::NodeTool;
use crate::tools::plugin::signature::PublicKey;
use crate::tools::plugin::{CallLimits, Capability, GrantedSecret, HttpGrant, PluginSecret};
use url::Url;

/// Everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[gateway]`
    pub gateway: Gateway,
    /// `[auth]`
    pub auth: Auth,
    /// `[providers.*]`, by name. Those that `auto` stands for are filled in.
    pub providers: BTreeMap<String, Provider>,
    /// `[agents.*]`, by name.
    pub agents: BTreeMap<AgentId, Agent>,
    /// `[default] agent`.
    pub default_agent: Option<AgentId>,
    /// `[[bindings]]`
    pub bindings: Vec<Binding>,
    /// `[[plugins]]`
    pub plugins: Vec<Plugin>,
    /// `[[mcp]]`
    pub mcp: Vec<McpServer>,
    /// `[channels.*]`, by name.
    pub channels: Vec<Channel>,
    /// `[bus]`; none where there is none.
    pub bus: Option<Bus>,
    /// `[cluster]`; none where there is none.
    pub cluster: Option<Cluster>,
    /// `[sandbox]`
    pub sandbox: Sandbox,
    /// `[approvals]`
    pub approvals: Approvals,
    /// `[models]`: what is known of models where their providers don't say it.
    pub models: KnownModels,
    /// `[budgets]`
    pub budgets: Budgets,
    /// `[limits]`
    pub limits: Limits,
    /// `[memory]`
    pub memory: Memory,
    /// `[scheduler]`
    pub scheduler: Scheduler,
    /// `[files]`
    pub files: Files,
    /// `[openclaw]`
    pub openclaw: OpenClaw,
    /// `[xeno]`
    pub xeno: Xeno,
    /// `[store]`
    pub store: Store,
    /// `[log]`
    pub log: Log,
}

/// `[gateway]`: sockets and what a connection may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// TCP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Origins let in besides the daemon's own.
    pub allowed_origins: Vec<String>,
    /// The group whose members may use the Unix socket besides the daemon's own user and root.
    pub socket_group: Option<String>,
    /// The handshake's deadline.
    pub handshake_timeout: Duration,
    /// How often a silent peer is pinged.
    pub heartbeat_interval: Duration,
    /// After how long a silence a peer is closed.
    pub heartbeat_timeout: Duration,
    /// The largest frame after the handshake, in bytes.
    pub max_payload_bytes: usize,
    /// How long a frame or a line may take, from its first byte to its last.
    pub message_timeout: Duration,
    /// How many bytes the frames and lines of all connections that are not complete may have together.
    pub max_unfinished_bytes: usize,
    /// How far behind a slow client may fall, in bytes of event logs.
    pub max_buffered_bytes: usize,
    /// The most connections; 0 = from the limit on open files.
    pub max_connections: usize,
    /// A client that takes nothing for so long is closed.
    pub slow_consumer_timeout: Duration,
    /// How long running steps may take to finish at a graceful stop.
    pub drain_timeout: Duration,
}

/// `[providers.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// How it is spoken to.
    pub kind: ProviderKind,
    /// Where it is, without a trailing slash, with or without its version. Empty for `offline`.
    pub base_url: String,
    /// The key, already read; none where it needs none.
    pub api_key: Option<Secret>,
    /// What requests carry besides what their format says, by names in lowercase.
    pub headers: BTreeMap<String, Secret>,
    /// More of them: one is asked with where another is refused or has no more requests left.
    pub more_keys: Vec<Secret>,
    /// The variables and files that they are in, in their order; fewer where that is not known.
    pub key_places: Vec<String>,
    /// The most calls of it at once; 0 = as many as the limit on open files has room for.
    pub max_concurrent: usize,
    /// PEM file of a certificate authority trusted besides the public roots.
    pub ca_file: Option<PathBuf>,
    /// How long it is waited for.
    pub patience: Patience,
}

/// How long a provider is waited for, and how often it is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// To resolve its host, to connect, and again for the TLS handshake.
    pub connect: Duration,
    /// Until the head of its answer.
    pub first_byte: Duration,
    /// Between two events of its answer. What leads to none, such as a comment, does not count.
    pub silence: Duration,
    /// For all of an answer, other models tried included.
    pub total: Duration,
    /// How often one of its models is asked again before the next one is.
    pub retries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            total: Duration::from_secs(600),
            retries: 2,
        }
    }
}

impl Patience {
    /// For a server on this host: it loads a model first, and reads a long prompt in silence.
    pub fn at_home() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self { first_byte: minutes(10), silence: minutes(5), total: minutes(30), ..Self::default() }
    }
}

/// `[agents.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Its name.
    pub id: AgentId,
    /// The provider and model to use, then those to fall back to, in order. Never empty. The first may be without a
    /// name: it is whichever its server lists first.
    pub models: Vec<ModelRef>,
    /// The most tokens of one answer.
    pub max_tokens: u32,
    /// The soul file.
    pub soul: PathBuf,
    /// The plugins it is offered as tools.
    pub tools: Vec<PluginName>,
    /// The commands of nodes it is offered as tools, while the node is connected.
    pub node_tools: Vec<NodeTool>,
    /// The tools of MCP servers it is offered, while the server is there.
    pub mcp_tools: Vec<McpGrant>,
    /// The built-in tools it is offered, by their groups.
    pub built_in: Vec<ToolGroup>,
    /// Folders of skills and single skills, the most important first; the last is `skills` of the home.
    pub skills: Vec<PathBuf>,
}

impl Agent {
    /// Where its skills are and how much it is told of them, beside a conversation of so many tokens.
    pub fn skills(&self, context_tokens: usize) -> AgentSkills {
        AgentSkills {
            agent: self.id.clone(),
            folders: self.skills.clone(),
            is_granted: self.built_in.contains(&ToolGroup::Skills),
            bytes_max: skill::bytes_max(context_tokens),
        }
    }
}

/// `[[plugins]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    /// The name it is loaded under.
    pub name: PluginName,
    /// The module; none for one that ships in the binary.
    pub path: Option<PathBuf>,
    /// What it is granted; none = what the manifest of an embedded plugin asks for, nothing for others.
    pub capabilities: Option<Vec<Capability>>,
    /// The secrets that its grants name.
    pub secrets: BTreeMap<String, PluginSecret>,
    /// What one call may use.
    pub limits: CallLimits,
    /// The most calls at the same time; 0 = half of the threads that guests run on.
    pub concurrent_calls: usize,
    /// The SHA-256 that its module must have; none = any.
    pub sha256: Option<[u8; 32]>,
    /// Whether it may be loaded unsigned where there are trusted keys.
    pub may_be_unsigned: bool,
    /// Whether its calls wait until somebody approves them. No manifest has a say in it.
    pub approval: Approval,
    /// What it is told, by name.
    pub settings: BTreeMap<String, String>,
}

/// `[channels.NAME]`: conversations that come in from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// The plugin that is its adapter.
    pub adapter: PluginName,
    /// How messages come in.
    pub mode: ChannelMode,
    /// Who may write: the ids of accounts or conversations on the platform, or `*`.
    pub allow: Vec<String>,
    /// Whether strangers are told a code, with which an operator lets them in.
    pub is_pairing: bool,
    /// Where answers go that name no URL.
    pub answer_url: Option<String>,
}

/// `[bus]`: channel adapters on NATS JetStream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bus {
    /// The servers, in the order in which they are tried.
    pub servers: Vec<String>,
    /// What is shown to them.
    pub credential: BusCredential,
    /// A certificate authority, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate and the key that are shown to them.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// In whose name messages of the bus are prompts.
    pub principal: String,
    /// What that may do, where it is the name of a configured key.
    pub scopes: Option<Scopes>,
    /// Channels that agents with the tool `send_message` are told of.
    pub channels: Vec<String>,
    /// The streams of inbound messages, of answers and of dead letters.
    pub streams: [String; 3],
    /// Whether those that are not there are made.
    pub create: bool,
}

/// `[cluster]`: several daemons that share one set of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The name of the cluster.
    pub name: String,
    /// The name of this daemon in it.
    pub node: NodeName,
    /// The servers, in the order in which they are tried.
    pub servers: Vec<String>,
    /// What is shown to them.
    pub credential: BusCredential,
    /// A certificate authority, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate and the key that are shown to them.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// How many servers have everything: 1, 3 or 5.
    pub replicas: usize,
    /// The silence after which a daemon counts as dead.
    pub lease: Duration,
    /// The most bytes of the log; none = the servers' limit.
    pub max_log_bytes: Option<u64>,
    /// How long a daemon that is cut off from the servers keeps clients that came by a credential of its store.
    pub partition_grace: Duration,
    /// The monitoring ports of the servers, as `http://` URLs.
    pub monitor: Vec<String>,
    /// What an acknowledgement must be.
    pub durability: Durability,
}

/// What an acknowledgement of the servers must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Synced on a majority of the servers, as their monitoring ports say.
    Required,
    /// Nobody looks. A power cut may take what was acknowledged.
    Unchecked,
}

/// What is shown to the servers of the bus, or to those of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusCredential {
    /// Nothing.
    None,
    /// A token.
    Token(Secret),
    /// The seed of an nkey.
    Nkey(Secret),
    /// A credentials file: a JWT, and the seed that it is signed with.
    Credentials(Secret),
}

/// How the messages of a channel come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelMode {
    /// The adapter asks for them, so often.
    Poll(Duration),
    /// They are sent to `/webhook/NAME`, by who knows this secret.
    Webhook(Secret),
}

/// `[[mcp]]`: an MCP server.
#[derive(Clone, Debug, PartialEq)]
pub struct McpServer {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub reach: McpReach,
    /// Of its tools, those that agents may be granted; none = all.
    pub tools: Option<Vec<String>>,
    /// Whether calls of its tools wait until somebody approves them.
    pub approval: Approval,
    /// How long one call may take.
    pub timeout: Duration,
    /// The most bytes of a call's result.
    pub output_bytes: usize,
}

/// How an MCP server is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum McpReach {
    /// It is a program, which is started and spoken to by its standard input and output.
    Command(McpCommand),
    /// It is somewhere else already: streamable HTTP.
    Url(McpUrl),
}

/// An MCP server that is started.
#[derive(Clone, Debug, PartialEq)]
pub struct McpCommand {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What its environment has besides what every program needs.
    pub env: BTreeMap<String, Secret>,
    /// The secrets in there.
    pub secrets: Vec<Secret>,
    /// Where it may read and write besides its own folder.
    pub folders: Vec<McpFolder>,
    /// The memory it may take with all it starts, in bytes.
    pub memory_bytes: u64,
    /// The processes it may be together with all it starts.
    pub processes: usize,
}

/// A folder that an MCP server may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpFolder {
    /// Its path.
    pub path: PathBuf,
    /// Whether it may write there.
    pub is_writable: bool,
}

/// An MCP server behind a URL.
#[derive(Clone, Debug, PartialEq)]
pub struct McpUrl {
    /// The URL.
    pub url: Url,
    /// Where requests may go: the origin of the URL.
    pub grant: HttpGrant,
    /// What they carry.
    pub secrets: Vec<GrantedSecret>,
}

/// `[sandbox]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Those whose plugins are loaded; none = a plugin needs no signature.
    pub trusted_keys: Vec<PublicKey>,
}

/// Whether a tool is called unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approval {
    /// It is.
    #[default]
    Never,
    /// Every call waits until somebody approves it.
    Ask,
}

/// `[approvals]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approvals {
    /// How long a call waits for approval; then it counts as denied.
    pub timeout: Duration,
    /// `[[approvals.rules]]`: which calls wait, whatever is said of their tools.
    pub rules: Vec<Rule>,
}

/// `[limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cost units a principal may spend at once; 0 = no limit.
    pub requests_burst: u32,
    /// Cost units that come back per second.
    pub requests_per_second: u32,
    /// Prompts waiting per session.
    pub queue: usize,
    /// Bytes of an owner's prompts that wait in memory; what is beyond waits in the store.
    pub queued_bytes: u64,
    /// Sessions of an owner; 0 = no limit.
    pub sessions: u64,
    /// Bytes of an owner's sessions in the store; 0 = no limit.
    pub store_bytes: u64,
    /// Sessions that one connection may follow.
    pub subscriptions: usize,
    /// Sub-agents running at once, of one owner.
    pub agents: usize,
    /// Sessions there may be above that of a sub-agent.
    pub agent_depth: u32,
    /// Connections of one principal.
    pub connections: usize,
    /// Connections before their handshake; when full, the oldest of them is closed.
    pub unauthenticated: usize,
    /// Bytes of files that are kept for a principal, unfinished ones included.
    pub file_quota_bytes: u64,
}

/// `[memory]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// How many of the newest turns (prompt and answer) stay word for word when older ones are summed up; 0 = the
    /// model sees no past turns.
    pub episodic_turns: usize,
    /// The most tokens of what the model sees, estimated: a quarter is for tools and the prompt.
    pub context_tokens: usize,
    /// Who finds facts in what was said.
    pub learn: LearnBy,
    /// The most tokens a day (UTC) that models may spend on that; 0 = as the budgets say.
    pub learn_tokens: u64,
    /// How long a model may take for one exchange.
    pub learn_timeout: Duration,
    /// Whether a model sums up the turns that are left out; else it is done by rules.
    pub summaries: bool,
    /// Whether what is remembered is looked through for each prompt.
    pub recall: bool,
    /// The model that makes vectors of what is remembered; none = only those that are built in.
    pub embeddings: Option<ModelRef>,
    /// How long it may take for a question.
    pub embeddings_timeout: Duration,
}

/// `[openclaw]`: what is special to connections of the OpenClaw protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenClaw {
    /// How often a connection is told that the daemon is there; clients close after two intervals of
    /// silence.
    pub tick_interval: Duration,
    /// The largest frame after the handshake, in bytes.
    pub max_payload_bytes: usize,
    /// The folder of an installed Control UI, served at `/`.
    pub control_ui: Option<PathBuf>,
}

/// `[scheduler]`: what is done without anybody asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// How often the heartbeat beats; none = never.
    pub heartbeat: Option<Duration>,
    /// The most tokens it may spend on a day (UTC); 0 = as the budgets say.
    pub heartbeat_tokens: u64,
    /// The session that is told what it has to say, should that not be that all is well.
    pub heartbeat_result_to: Option<SessionKey>,
    /// When a new session begins, as a cron expression; none = never.
    pub new_session_cron: Option<String>,
}

/// `[files]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Folders that attachments of xeno's clients may be in.
    pub attachment_roots: Vec<PathBuf>,
}

/// `[xeno]`: what is special to connections of xeno's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xeno {
    /// The home that its socket is under, where that is not the daemon's.
    pub home: Option<PathBuf>,
    /// The longest line, in bytes.
    pub max_line_bytes: usize,
}

/// `[store]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The database file.
    pub path: PathBuf,
    /// What becomes of a run the daemon's end cut off.
    pub recovery: Recovery,
    /// Sessions that were not used for so many days are deleted; 0 = never.
    pub retention_days: u64,
    /// While the store takes more bytes, the sessions that were not used for longest are deleted; 0 = no
    /// bound.
    pub max_bytes: u64,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// How log lines are written.
    pub format: LogFormat,
    /// `tracing` filter directives.
    pub filter: String,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    Auto,
    /// Text.
    Text,
    /// One JSON object a line.
    Json,
    /// Fields of the journal.
    Journald,
}
