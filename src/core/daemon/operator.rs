//! What only operators ask of the daemon, and what they are answered.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use crate::area::area;
use crate::config::Origin;
use crate::config::request::ConfigIssue;
use crate::conversation::event::Logged;
use crate::conversation::reply::SessionSummary;
use crate::daemon::cluster::{ClusterStatus, GetClusterStatus, HandOver, HandedOver, ListSlots, SlotOwner};
use crate::daemon::command::Status;
use crate::ids::{AgentId, ConnectionId, Owner, PluginName, Seq, SessionKey};
use crate::memory::upkeep::{
    ExportMemories, ExportedMemories, ForgetMemories, Forgotten, ImportMemories, ImportedMemories,
    SearchMemories, ShowMemory, ShownMemory,
};
use crate::memory::{Found as MemoriesFound, Kind, Teller, Tier};
use crate::prompt::settings::Settings;
use crate::provider::budget::Budget;
use crate::provider::model::ModelRef;
use crate::provider::tally::{Tally, UsageTotals};
use crate::time::Timestamp;
use crate::tools::audit::CallUsage;
use crate::tools::plugin::{PluginSummary, Unloaded};

area! {
    /// What only operators ask for.
    Operator(OperatorCommand => OperatorReply) {
        /// How the daemon is, what waits for somebody, and what needs looking at.
        Status(GetDaemonStatus) => Status(Box<DaemonStatus>),
        /// List the connections.
        Connections(ListConnections) => Connections(Connections),
        /// End one connection; what it had asked for goes on.
        CloseConnection(CloseConnection) => Closed(Closed),
        /// Take a snapshot of all actors.
        Actors(ObserveActors) => Observed(Snapshot),
        /// How the plugins are, whether they can be called or not.
        Plugins(ObservePlugins) => Observed(Snapshot),
        /// Load a plugin.
        LoadPlugin(LoadPlugin) => Loaded(LoadedPlugin),
        /// Unload a plugin; calls under way finish.
        UnloadPlugin(UnloadPlugin) => Unloaded(Unloaded),
        /// Load a plugin anew, from where it came from.
        ReloadPlugin(ReloadPlugin) => Reloaded(PluginSummary),
        /// Call a plugin as a session would; nobody is asked for approval.
        CallPlugin(CallPlugin) => Called(CalledTool),
        /// How the MCP servers are, and what they say of their tools.
        Mcp(ObserveMcp) => Observed(Snapshot),
        /// Call a tool of an MCP server as a session would; nobody is asked for approval.
        CallMcp(CallMcpTool) => Called(CalledTool),
        /// Start or reach an MCP server anew.
        RestartMcp(RestartMcp) => McpRestarted(McpRestarted),
        /// Agree to what an MCP server says of its tools now.
        ApproveMcp(ApproveMcp) => McpApproved(McpApproved),
        /// How the channels are, and which answers could not be sent.
        Channels(ObserveChannels) => Observed(Snapshot),
        /// Let somebody write over a channel who was told this code.
        PairPeer(PairPeer) => Paired(Paired),
        /// Let somebody write over a channel no more.
        UnpairPeer(UnpairPeer) => Settled(Settled),
        /// Send an answer that could not be sent, or forget it.
        SettleUnsent(SettleUnsent) => Settled(Settled),
        /// How the bus is.
        Bus(ObserveBus) => Observed(Snapshot),
        /// Look at messages of the bus that could not be taken, or settle them.
        DeadLetters(DeadLettersAsked) => DeadLetters(Vec<DeadLetter>),
        /// How the cluster is.
        Cluster(GetClusterStatus) => Cluster(Box<ClusterStatus>),
        /// Who owns which sessions.
        Slots(ListSlots) => Slots(Vec<SlotOwner>),
        /// Have a node of the cluster give its sessions away.
        HandOver(HandOver) => HandedOver(HandedOver),
        /// The tokens spent, and what the budgets leave.
        Usage(ReadUsage) => Usage(UsageReport),
        /// How the caches of providers were used.
        Caches(ReadCaches) => Caches(CacheReport),
        /// All sessions, the latest used first.
        Sessions(ListAllSessions) => Sessions(SessionPage),
        /// The session of a key; where there is none, the refusal names those that may have been meant.
        FindSession(FindSession) => Found(FoundSession),
        /// A part of the event log of a session.
        Events(ReadEvents) => Events(Vec<Logged>),
        /// The same with what prompts brought along.
        Export(ExportEvents) => Events(Vec<Logged>),
        /// How much is remembered for each owner.
        MemoryTotals(ReadMemoryTotals) => MemoryTotals(Vec<MemoryTotals>),
        /// What is remembered for one owner, the latest first.
        Memories(ListMemories) => Memories(Vec<ListedMemory>),
        /// What is remembered for one owner that is relevant to something.
        SearchMemories(SearchMemories) => MemoriesFound(MemoriesFound),
        /// One memory, with what it took the place of.
        ShowMemory(ShowMemory) => MemoryShown(ShownMemory),
        /// Forget a memory, or all of an owner.
        ForgetMemories(ForgetMemories) => MemoriesForgotten(Forgotten),
        /// A part of all that is remembered.
        ExportMemories(ExportMemories) => MemoriesExported(ExportedMemories),
        /// Remember what was exported.
        ImportMemories(ImportMemories) => MemoriesImported(ImportedMemories),
        /// Take no new prompts, or take them again.
        Drain(Drain) => Drained(Drained),
        /// Copy the store; how far it is is told meanwhile.
        Backup(Backup) => Copied(BackupReport),
        /// What configuration keys say, and where that was written.
        Explain(ExplainConfig) => Explained(Explained),
        /// Have a configuration key say something, and go over to it.
        Change(ChangeConfig) => Changed(Changed),
        /// Go over to what stands in the configuration files.
        Reload(ReloadConfig) => Configured(Reloaded),
        /// What is written to the daemon's own log.
        Log(SetLogFilter) => Log(LogFilter),
    }
}

/// The answer to an [`OperatorCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum OperatorReply {
    /// To `Status`.
    Status(Box<DaemonStatus>),
    /// To `Connections`.
    Connections(Connections),
    /// To `CloseConnection`.
    Closed(Closed),
    /// To `Actors`, `Plugins`, `Mcp`, `Channels` and `Bus`: the gateway, or what was asked about, with those below.
    Observed(Snapshot),
    /// To `DeadLetters`: those that it was about.
    DeadLetters(Vec<DeadLetter>),
    /// To `Cluster`.
    Cluster(Box<ClusterStatus>),
    /// To `Slots`.
    Slots(Vec<SlotOwner>),
    /// To `HandOver`.
    HandedOver(HandedOver),
    /// To `LoadPlugin`.
    Loaded(LoadedPlugin),
    /// To `UnloadPlugin`.
    Unloaded(Unloaded),
    /// To `ReloadPlugin`.
    Reloaded(PluginSummary),
    /// To `CallPlugin` and `CallMcp`.
    Called(CalledTool),
    /// To `RestartMcp`.
    McpRestarted(McpRestarted),
    /// To `ApproveMcp`.
    McpApproved(McpApproved),
    /// To `PairPeer`.
    Paired(Paired),
    /// To `UnpairPeer` and `SettleUnsent`.
    Settled(Settled),
    /// To `Usage`.
    Usage(UsageReport),
    /// To `Caches`.
    Caches(CacheReport),
    /// To `Sessions`.
    Sessions(SessionPage),
    /// To `FindSession`.
    Found(FoundSession),
    /// To `Events` and `Export`.
    Events(Vec<Logged>),
    /// To `MemoryTotals`.
    MemoryTotals(Vec<MemoryTotals>),
    /// To `Memories`.
    Memories(Vec<ListedMemory>),
    /// To `SearchMemories`.
    MemoriesFound(MemoriesFound),
    /// To `ShowMemory`.
    MemoryShown(ShownMemory),
    /// To `ForgetMemories`.
    MemoriesForgotten(Forgotten),
    /// To `ExportMemories`.
    MemoriesExported(ExportedMemories),
    /// To `ImportMemories`.
    MemoriesImported(ImportedMemories),
    /// To `Drain`.
    Drained(Drained),
    /// To `Backup`.
    Copied(BackupReport),
    /// To `Explain`.
    Explained(Explained),
    /// To `Change`.
    Changed(Changed),
    /// To `Reload`.
    Configured(Reloaded),
    /// To `Log`.
    Log(LogFilter),
}

impl OperatorCommand {
    /// The method that asks for it, for the message when it takes too long.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Status(_) => "admin.status",
            Self::Connections(_) => "admin.connections",
            Self::CloseConnection(_) => "admin.connection.close",
            Self::Actors(_) => "admin.actors",
            Self::Plugins(_) => "admin.plugins",
            Self::LoadPlugin(_) => "admin.plugin.load",
            Self::UnloadPlugin(_) => "admin.plugin.unload",
            Self::ReloadPlugin(_) => "admin.plugin.reload",
            Self::CallPlugin(_) => "admin.plugin.call",
            Self::Mcp(_) => "admin.mcp",
            Self::CallMcp(_) => "admin.mcp.call",
            Self::RestartMcp(_) => "admin.mcp.restart",
            Self::ApproveMcp(_) => "admin.mcp.approve",
            Self::Channels(_) => "admin.channels",
            Self::PairPeer(_) => "admin.channel.pair",
            Self::UnpairPeer(_) => "admin.channel.unpair",
            Self::SettleUnsent(SettleUnsent { is_resent: true, .. }) => "admin.channel.resend",
            Self::SettleUnsent(_) => "admin.channel.drop",
            Self::Bus(_) => "admin.bus.status",
            Self::DeadLetters(DeadLettersAsked::List { .. }) => "admin.bus.dlq.list",
            Self::DeadLetters(DeadLettersAsked::Show(_)) => "admin.bus.dlq.show",
            Self::DeadLetters(DeadLettersAsked::Replay(_)) => "admin.bus.dlq.replay",
            Self::DeadLetters(DeadLettersAsked::Drop(_)) => "admin.bus.dlq.drop",
            Self::Cluster(_) => "admin.cluster.status",
            Self::Slots(_) => "admin.cluster.slots",
            Self::HandOver(_) => "admin.cluster.handover",
            Self::Usage(_) => "admin.usage",
            Self::Caches(_) => "admin.usage.cache",
            Self::Sessions(_) => "admin.sessions",
            Self::FindSession(_) => "admin.session",
            Self::Events(_) => "admin.session.show",
            Self::Export(_) => "admin.session.export",
            Self::MemoryTotals(_) | Self::Memories(_) => "admin.memory",
            Self::SearchMemories(_) => "admin.memory.search",
            Self::ShowMemory(_) => "admin.memory.show",
            Self::ForgetMemories(_) => "admin.memory.forget",
            Self::ExportMemories(_) => "admin.memory.export",
            Self::ImportMemories(_) => "admin.memory.import",
            Self::Drain(_) => "admin.drain",
            Self::Backup(_) => "admin.backup",
            Self::Explain(_) => "admin.config.get",
            Self::Change(_) => "admin.config.set",
            Self::Reload(_) => "admin.config.reload",
            Self::Log(_) => "admin.log",
        }
    }
}

/// Ask for the state of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetDaemonStatus;

/// List the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListConnections;

/// Who is connected, and what each follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Connections {
    /// The listener and its connections.
    pub listener: Snapshot,
    /// How many sessions each connection follows.
    pub follows: HashMap<ConnectionId, usize>,
    /// When this was looked at.
    pub now: Timestamp,
}

/// End one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseConnection {
    /// The connection to close.
    pub connection: ConnectionId,
}

/// The connection that is being closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Its other end; none where there was no such connection.
    pub peer: Option<String>,
}

/// Take a snapshot of all actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserveActors;

/// Take a snapshot of the plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservePlugins;

/// Load a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlugin {
    /// The name under which it is loaded.
    pub name: PluginName,
    /// A file in the plugins folder of the home; none = the configured or embedded one, or the file named after
    /// the plugin.
    pub path: Option<String>,
}

/// A plugin that was loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPlugin {
    /// The plugin.
    pub plugin: PluginSummary,
    /// The file in the plugins folder that it was loaded from.
    pub path: Option<String>,
    /// What tools each agent has.
    pub agents: Vec<AgentTools>,
}

/// Unload a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnloadPlugin {
    /// The plugin's name.
    pub name: PluginName,
}

/// Load a plugin anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadPlugin {
    /// The plugin's name.
    pub name: PluginName,
}

/// Call a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct CallPlugin {
    /// The plugin's name.
    pub name: PluginName,
    /// The input: a JSON object.
    pub input: Json,
}

/// Take a snapshot of the MCP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserveMcp;

/// Call a tool of an MCP server.
#[derive(Clone, Debug, PartialEq)]
pub struct CallMcpTool {
    /// The server.
    pub server: String,
    /// The server's name for the tool.
    pub tool: String,
    /// The input: a JSON object.
    pub input: Json,
}

/// Start or reach an MCP server anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartMcp {
    /// The server.
    pub server: String,
}

/// The MCP server is being started or reached anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McpRestarted;

/// Agree to what an MCP server says of its tools now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApproveMcp {
    /// The server.
    pub server: String,
    /// The digest of what was looked at, in hex: refused where it says something else by now. None = whatever it
    /// says.
    pub digest: Option<String>,
}

/// What an MCP server says of its tools is agreed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpApproved {
    /// The tools that were held.
    pub tools: Vec<String>,
}

/// Take a snapshot of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserveChannels;

/// Let somebody write over a channel who was told a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairPeer {
    /// The channel.
    pub channel: String,
    /// The code.
    pub code: String,
}

/// Who may write over a channel from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paired {
    /// The id of the account, or conversation, on the platform.
    pub name: String,
}

/// Let somebody write over a channel no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpairPeer {
    /// The channel.
    pub channel: String,
    /// The id of the account, or conversation, on the platform.
    pub name: String,
}

/// Send an answer that could not be sent, from where that failed, or forget it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleUnsent {
    /// The channel.
    pub channel: String,
    /// The number of the answer.
    pub answer: i64,
    /// Whether it is sent.
    pub is_resent: bool,
}

/// Take a snapshot of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserveBus;

/// What is done with messages of the bus that could not be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLettersAsked {
    /// They are listed.
    List {
        /// Those that come after this number.
        after: u64,
        /// No more of them.
        limit: usize,
    },
    /// One is shown, with what it says.
    Show(u64),
    /// One is published again where it came from, or the first of all; then it is no dead letter any more.
    Replay(Option<u64>),
    /// One is deleted, or the first of all.
    Drop(Option<u64>),
}

/// A message of the bus that could not be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number among them.
    pub seq: u64,
    /// The subject it came on.
    pub subject: String,
    /// The id it came with.
    pub id: String,
    /// Why it could not be taken.
    pub reason: String,
    /// How often it was delivered.
    pub deliveries: u64,
    /// When it became one.
    pub at: Timestamp,
    /// How many bytes it has.
    pub bytes: usize,
    /// Those bytes, where they were asked for.
    pub payload: Option<Vec<u8>>,
    /// Its headers, where they were asked for.
    pub headers: Vec<(String, String)>,
}

/// It is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled;

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalledTool {
    /// Its answer.
    pub content: String,
    /// Whether that is why it failed.
    pub is_error: bool,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// What it used.
    pub usage: CallUsage,
}

/// Report the tokens used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadUsage {
    /// What they are added up by.
    pub by: UsageGroup,
    /// Of so many days, today among them.
    pub days: u64,
    /// At most so many rows.
    pub limit: usize,
}

/// All sessions, the latest used first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListAllSessions {
    /// The most sessions to list.
    pub limit: usize,
    /// What their keys begin with.
    pub prefix: Option<String>,
    /// Only those behind this place.
    pub before: Option<Place>,
}

/// A page of the list of sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPage {
    /// The sessions of this page.
    pub listed: Vec<Listed>,
    /// Whether more sessions follow.
    pub has_more: bool,
    /// The supervisor of sessions with those that are awake; none where no daemon runs.
    pub awake: Option<Snapshot>,
}

/// The session of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindSession {
    /// The key, as it was written.
    pub key: String,
}

/// A session that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSession {
    /// The session's key.
    pub key: SessionKey,
    /// The owner of the session.
    pub owner: Owner,
}

/// A part of the event log of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadEvents {
    /// Which, as it was found.
    pub session: SessionKey,
    /// What comes after this number.
    pub after: Seq,
}

/// The same with what prompts brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEvents {
    /// Which, as it was found.
    pub session: SessionKey,
    /// What comes after this number.
    pub after: Seq,
}

/// How much is remembered for each owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMemoryTotals;

/// What is remembered for one owner, the latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListMemories {
    /// The owner of the memories.
    pub owner: Owner,
    /// The most memories to list.
    pub limit: usize,
    /// Whether facts are among them whose place another one took.
    pub with_history: bool,
}

/// Take no new prompts, or take them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Whether draining begins (true) or ends.
    pub on: bool,
}

/// How far a daemon is drained.
#[derive(Clone, Debug, PartialEq)]
pub struct Drained {
    /// The supervisor of sessions with those that are awake.
    pub sessions: Snapshot,
    /// How many slots of its cluster it has yet to give away; none = it does not give them away.
    pub slots: Option<usize>,
}

/// Copy the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The file, which must not exist.
    pub file: PathBuf,
}

/// Explain configuration keys: their values and where those come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainConfig {
    /// This key, or all of this section; none = all there are.
    pub path: Option<String>,
}

/// Have a configuration key say something.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeConfig {
    /// The key, as `section.key`.
    pub path: String,
    /// What; null takes it away.
    pub value: Json,
}

/// Go over to what stands in the configuration files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReloadConfig;

/// What is written to the daemon's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetLogFilter {
    /// The filter it gets; none = as it is.
    pub filter: Option<String>,
}

/// The filter of the daemon's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// The filter in effect.
    pub filter: String,
    /// The one that a reload or a restart brings back.
    pub configured: String,
}

/// How far a command is that takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// How far a `Backup` has come.
    Backup {
        /// Pages that are not copied yet; 0 also at the beginning and while the copy is checked.
        pages_left: u64,
    },
}

/// How an actor is, as it says of itself, with those it supervises.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The actor's kind, and its name where there are several.
    pub actor: String,
    /// Its own figures, as a JSON object with units in the names.
    pub state: Json,
    /// How long the question waited in its mailbox, in microseconds; none where it was not asked that way.
    pub mailbox_wait_us: Option<u64>,
    /// Why it says nothing; none where it does.
    pub silent: Option<String>,
    /// The snapshots of the actors it supervises.
    pub children: Vec<Snapshot>,
}

impl Snapshot {
    /// What one of those it supervises says.
    pub fn child(&self, actor: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.actor == actor)
    }
}

/// What the daemon knows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonInfo {
    /// What every client may ask for.
    pub status: Status,
    /// The process id.
    pub pid: u32,
    /// The home folder.
    pub home: PathBuf,
    /// The file of its store.
    pub store: PathBuf,
    /// Where it listens, as `ADDR:PORT`, as bound.
    pub listen: Vec<String>,
    /// Whether it takes no new prompts.
    pub is_draining: bool,
    /// For how long it is ready, in milliseconds.
    pub uptime_ms: u64,
}

/// The state of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonStatus {
    /// What it knows of itself.
    pub info: DaemonInfo,
    /// The gateway and all other actors.
    pub actors: Snapshot,
    /// What is left of the budgets; of the sessions only the limit.
    pub budgets: Vec<Budget>,
    /// What each agent or principal may spend, in words.
    pub budgets_of_each: Vec<String>,
    /// The agents with their models.
    pub agents: Vec<AgentModels>,
    /// How large the store was as the last days began, the earliest first: days since 1970 and bytes in use.
    pub sizes: Vec<(u64, u64)>,
    /// How many bytes of sessions an owner may have; 0 = as many as there is room for.
    pub store_bytes_max: u64,
    /// How many sessions an owner may have; 0 = as many as there is room for.
    pub sessions_max: u64,
}

/// The models of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentModels {
    /// The agent's name.
    pub agent: AgentId,
    /// The provider that is asked first.
    pub provider: String,
    /// The model that is asked first, as `provider/model`.
    pub model: String,
    /// Those that are asked where it fails.
    pub fallback: Vec<String>,
    /// Whether it answers where no binding says who.
    pub is_default: bool,
}

/// The tools of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTools {
    /// The agent's name.
    pub agent: AgentId,
    /// The tools it is offered.
    pub tools: Vec<PluginName>,
    /// Whether the plugin that was loaded is among them.
    pub is_given: bool,
    /// Whether it answers where no binding says who.
    pub is_default: bool,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What clients are told of it.
    pub summary: SessionSummary,
    /// The owner of the session.
    pub owner: Owner,
    /// The last number in its event log; text that streams may be further.
    pub head: Seq,
    /// How many prompts it ever took.
    pub prompts: u64,
    /// What it is set to.
    pub settings: Settings,
    /// Its place in the list.
    pub place: Place,
}

/// Where a session stands among all, by when it was last used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The time of its last change, in milliseconds since 1970.
    pub updated_ms: u64,
    /// Which of those used at that moment.
    pub row: i64,
}

/// By what spending is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageGroup {
    /// By day (UTC).
    Day,
    /// By agent.
    Agent,
    /// By the principal that the session belongs to.
    Principal,
    /// The model of a provider.
    Model,
    /// By session.
    Session,
}

/// What was spent on one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageShare {
    /// Which: `2026-01-31`, an agent, a principal (empty: the operators), `provider/model` or a session's key.
    pub of: String,
    /// What its calls came to.
    pub tally: Tally,
    /// When the last of them ended.
    pub last: Timestamp,
}

/// The tokens used, by group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// Today and this month, UTC.
    pub totals: UsageTotals,
    /// What the budgets leave; of the sessions only the limit, since each has its own.
    pub budgets: Vec<Budget>,
    /// What each agent or principal may spend, in words.
    pub budgets_of_each: Vec<String>,
    /// Since when it is added up.
    pub since: Timestamp,
    /// What was spent since then.
    pub shares: Vec<UsageShare>,
    /// Whether rows were left out.
    pub has_more: bool,
}

/// Report how the caches of providers were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCaches {
    /// In so many days, today among them.
    pub days: u64,
    /// At most so many rows.
    pub limit: usize,
}

/// How caches were used, by session and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// Since when it is looked at.
    pub since: Timestamp,
    /// Those first that read most.
    pub shares: Vec<CacheShare>,
    /// Whether rows were left out.
    pub has_more: bool,
}

/// How the cache of a model was used in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShare {
    /// The session's key.
    pub session: String,
    /// The model.
    pub model: ModelRef,
    /// How many calls were made.
    pub calls: u64,
    /// What they read.
    pub input_tokens: u64,
    /// Of that, from a cache.
    pub cache_read_tokens: u64,
    /// Of that, put into one.
    pub cache_write_tokens: u64,
    /// How many calls had less than half of the request before them from a cache.
    pub missed: u64,
    /// Of these, those that asked another model than the request before.
    pub by_model: u64,
    /// Of these, those with other tools.
    pub by_tools: u64,
    /// Of these, those with another system prompt.
    pub by_system: u64,
    /// Of these, those whose earlier messages were not as before.
    pub by_messages: u64,
    /// Of these, those where nothing had changed, more than five minutes after the last one.
    pub by_time: u64,
    /// Of these, those where nothing had changed and no time had gone by: the provider has no cache, or did not
    /// use it. Why the rest was missed is not known.
    pub by_provider: u64,
    /// When the last of them ended.
    pub last: Timestamp,
}

/// How much is remembered for one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTotals {
    /// The owner of the memories.
    pub owner: Owner,
    /// How many entries, by tier in their order.
    pub entries: [u64; Tier::ALL.len()],
    /// How many of them have a vector.
    pub embedded: u64,
    /// What they count of the owner's limit, in bytes.
    pub bytes: u64,
    /// When something was stored last.
    pub stored: Timestamp,
}

/// Something that is remembered, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMemory {
    /// The memory's id.
    pub id: String,
    /// The tier it is in.
    pub tier: Tier,
    /// The kind of memory.
    pub kind: Kind,
    /// The session it belongs to.
    pub session: Option<SessionKey>,
    /// The beginning of what it says.
    pub content: String,
    /// How many numbers its vector has; 0 = it has none.
    pub dimensions: u64,
    /// What it counts of its owner's limit, in bytes.
    pub bytes: u64,
    /// When it was stored.
    pub created: Timestamp,
    /// Who had it remembered.
    pub teller: Teller,
    /// When another one took its place; none while none did.
    pub superseded: Option<Timestamp>,
}

/// What a copy of the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// The size of the file.
    pub bytes: u64,
    /// How many sessions were copied.
    pub sessions: u64,
    /// How many runs, in all of them.
    pub runs: u64,
    /// How long the copy took, in milliseconds.
    pub took_ms: u64,
}

impl BackupReport {
    /// What an operator is told of the copy in `file`.
    pub fn to_json(&self, file: &std::path::Path) -> Json {
        json!({
            "file": file.display().to_string(),
            "bytes": self.bytes,
            "sessions": self.sessions,
            "runs": self.runs,
            "took_ms": self.took_ms,
        })
    }
}

/// One configuration key, as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The key, as `section.key`.
    pub path: String,
    /// What it says; a secret is not shown.
    pub value: Json,
    /// Where the value was written.
    pub at: Origin,
}

impl Setting {
    /// For scripts: `{"path", "value", "from", "at"}`. `from` is `default`, `file`, `environment` or
    /// `command line`, `at` the file and line, the variable or the option.
    pub fn to_json(&self) -> Json {
        let (from, at) = match &self.at {
            Origin::Default => ("default", None),
            at @ Origin::File { .. } => ("file", Some(at.to_string())),
            Origin::Env(name) => ("environment", Some(name.to_string())),
            Origin::Flag(name) => ("command line", Some(name.to_string())),
        };
        json!({ "path": self.path, "value": self.value, "from": from, "at": at })
    }
}

/// Configuration keys with their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The keys, each with what its change waits for: `reload`, `restart` or nothing. Where there are
    /// complaints they are what the daemon goes on with, and their places say nothing.
    pub settings: Vec<(Setting, Option<&'static str>)>,
    /// Why the daemon could not go over to them; empty where it could.
    pub complaints: String,
}

/// A configuration key was changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The file that says so.
    pub file: String,
    /// Whether it had to be written.
    pub is_written: bool,
    /// What it says now, and where that stands; more than one of a section, and none of a key that is
    /// not there any more.
    pub settings: Vec<Setting>,
    /// The result of reading the configuration again.
    pub reloaded: Reloaded,
}

/// The daemon went over to what stands in its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What is other than before, as `section.key` or as a section.
    pub applied: Vec<String>,
    /// What is other than at the start, and will be in effect after the next one.
    pub needs_restart: Vec<String>,
    /// What has no effect or is probably not meant.
    pub warnings: Vec<ConfigIssue>,
}
