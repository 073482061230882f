//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// One daemon for the AI-agent clients of four protocols.
#[derive(Debug, Parser)]
#[command(
    name = "clawmux",
    version,
    max_term_width = 110,
    after_help = "\
Exit status: 0 fine, 1 failed, 2 usage, 64 bad configuration, 69 daemon not reachable, \
130 Ctrl-C. No secret is ever a command-line argument: see `clawmux help chat` and gateway.toml."
)]
pub(crate) struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Global {
    /// Configuration file [default: gateway.toml in the home]
    #[arg(long, value_name = "FILE", global = true, env = "CLAWMUX_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Home of the daemon [default: $CLAWMUX_HOME, $STATE_DIRECTORY or ~/.clawmux]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) home: Option<PathBuf>,
}

/// `serve`
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Address to listen on, instead of the configured ones; may be given several times
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Vec<String>,
    /// Path of the operator's Unix socket [default: .xeno/gateway.sock in the home]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// `chat`
#[derive(Args, Debug)]
pub(crate) struct Chat {
    /// One message: its answer goes to stdout and the exit status says how it ended (0 completed, 1 failed,
    /// 130 aborted). Piped input does the same; without either there is a prompt
    pub(crate) message: Option<String>,
    /// Session, as AGENT:CHANNEL:ACCOUNT:PEER [default: main:cli:$USER:main]
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// WebSocket of a daemon, such as ws://127.0.0.1:18789/ws [default: the running one, else one of its own]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// File that holds the token [default: the token in $CLAWMUX_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// `status`
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `connections`
#[derive(Args, Debug)]
pub(crate) struct Connections {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
    pub(crate) limit: usize,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `connection`
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// What to do with it.
    #[command(subcommand)]
    pub(crate) command: ConnectionCommand,
}

/// What can be done with one connection.
#[derive(Debug, Subcommand)]
pub(crate) enum ConnectionCommand {
    /// Close it, as if the daemon went away for it: its client may come back, what it asked for goes on
    Close(OneConnection),
}

/// A connection by its number.
#[derive(Args, Debug)]
pub(crate) struct OneConnection {
    /// The number of the connection; `clawmux connections` lists them
    #[arg(value_name = "ID", value_parser = connection_number)]
    pub(crate) id: u64,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

fn connection_number(text: &str) -> Result<u64, String> {
    let expected = "expected the number of a connection: `clawmux connections` lists them";
    text.parse().map_err(|_| expected.to_owned())
}

/// `actors`
#[derive(Args, Debug)]
pub(crate) struct Actors {
    /// Of an actor with many children at most so many, those that need looking at first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) children: usize,
    /// With every figure each actor keeps
    #[arg(long)]
    pub(crate) figures: bool,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugins`
#[derive(Args, Debug)]
pub(crate) struct Plugins {
    /// Only this one, with all there is to say about it
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugin`
#[derive(Args, Debug)]
pub(crate) struct Plugin {
    /// What to do with it.
    #[command(subcommand)]
    pub(crate) command: PluginCommand,
}

/// What can be done with one plugin.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Load one that is configured, ships in the binary, or lies in the plugins folder of the home
    Load(LoadPlugin),
    /// Take it away: it is called no more, calls under way finish
    Unload(OnePlugin),
    /// Load it anew from where it came from, without a gap: calls under way finish on the one there was
    ///
    /// Its file, its manifest and its grants are read again. Where the new one can't be loaded, the one there was
    /// goes on.
    Reload(OnePlugin),
    /// Try it with an input, under its own grants and limits; exit status 1 where it says that it failed
    Call(CallPlugin),
}

/// A plugin by its name.
#[derive(Args, Debug)]
pub(crate) struct OnePlugin {
    /// The name of the plugin; `clawmux plugins` lists them
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugin load`
#[derive(Args, Debug)]
pub(crate) struct LoadPlugin {
    #[command(flatten)]
    pub(crate) plugin: OnePlugin,
    /// A file in the plugins folder of the home, such as notes.wasm [default: the one that is configured, or ships
    /// in the binary]
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<String>,
}

/// `plugin call`
#[derive(Args, Debug)]
pub(crate) struct CallPlugin {
    #[command(flatten)]
    pub(crate) plugin: OnePlugin,
    /// A JSON object, such as '{"text":"hi"}' (`-`: from stdin) [default: {}]
    #[arg(value_name = "INPUT", conflicts_with = "input_file")]
    pub(crate) input: Option<String>,
    /// File with the JSON object
    #[arg(long, value_name = "FILE")]
    pub(crate) input_file: Option<PathBuf>,
}

/// `usage`
#[derive(Args, Debug)]
pub(crate) struct Usage {
    /// By what it is added up
    #[arg(long, value_enum, default_value_t = UsageBy::Day)]
    pub(crate) by: UsageBy,
    /// Over so many days, today included; days are those of UTC
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = positive)]
    pub(crate) days: usize,
    /// At most so many rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(crate) limit: usize,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// By what spending is added up.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum UsageBy {
    /// The day, the latest first
    Day,
    /// The agent
    Agent,
    /// The model of a provider
    Model,
    /// The session
    Session,
}

/// `events`
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Only those of sessions whose key begins with this
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// Only of this kind, such as prompt, tool_call, end or approval; may be given several times
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Where no daemon is reachable, or it goes away, wait until one is there
    #[arg(long)]
    pub(crate) wait: bool,
    /// As JSON, for scripts: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `completions`
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// A shell that completes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Shell {
    /// For ~/.local/share/bash-completion/completions/clawmux
    Bash,
    /// For a file _clawmux in a folder of $fpath
    Zsh,
    /// For ~/.config/fish/completions/clawmux.fish
    Fish,
}

/// `man`
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The command the page is about, such as `session tail` [default: all of clawmux]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub(crate) page: Vec<String>,
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// `sessions`
#[derive(Args, Debug)]
pub(crate) struct Sessions {
    /// Only those whose key begins with this
    #[arg(value_name = "KEY")]
    pub(crate) prefix: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(crate) limit: usize,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// As JSON, for scripts: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `session`
#[derive(Args, Debug)]
pub(crate) struct Session {
    /// What to do with it.
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

/// What can be done with one session.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Its log: prompts, text, tool calls and results, ends and restarts, with their numbers; times are UTC
    Show(Show),
    /// What happens in it, as it happens, until Ctrl-C
    Tail(Tail),
    /// End the run under way; what it had said is kept, and the next prompt in the queue starts
    Abort(Abort),
    /// Forget the conversation: the agent starts anew, the log is kept
    Clear(Named),
    /// End the run under way and all that wait, and let the session sleep once nobody follows it
    Stop(Named),
}

/// A session by its key.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The session, as AGENT:CHANNEL:ACCOUNT:PEER, or the beginning of that; `clawmux sessions` lists them
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `session show`
#[derive(Args, Debug)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Only what comes after this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: u64,
    /// At most so many events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// `session tail`
#[derive(Args, Debug)]
pub(crate) struct Tail {
    #[command(flatten)]
    pub(crate) named: Named,
    /// From what comes after this number on, such as the last one seen [default: from now on]
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
}

/// `session abort`
#[derive(Args, Debug)]
pub(crate) struct Abort {
    #[command(flatten)]
    pub(crate) named: Named,
    /// This run, which may still be queued, instead of the one under way
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
}

/// `drain`
#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// Wait at most so long for what runs; then the exit status is 1 and the daemon goes on draining
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// Take new prompts again
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) off: bool,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `backup`
#[derive(Args, Debug)]
pub(crate) struct Backup {
    /// Where the copy goes; must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `unit`
#[derive(Args, Debug)]
pub(crate) struct Unit {
    /// For the service manager of this user instead of the system's: the home is ~/.clawmux as ever
    #[arg(long)]
    pub(crate) user: bool,
    /// Write clawmux.service and clawmux.socket into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print the service unit alone
    #[arg(long, conflicts_with_all = ["out", "socket"])]
    pub(crate) service: bool,
    /// Print the socket unit alone
    #[arg(long, conflicts_with = "out")]
    pub(crate) socket: bool,
}

/// `check`
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `doctor`
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Read the log for at most about so long; a large one is looked through as far as that goes
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) within: u64,
    /// Ask no model provider
    #[arg(long)]
    pub(crate) offline: bool,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number above 0".into()),
        Ok(number) => Ok(number),
    }
}

/// `memory`
#[derive(Args, Debug)]
pub(crate) struct Memory {
    /// What is remembered for this one, the latest first: the name of its credential, or `operators`
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `devices`
#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `device`
#[derive(Args, Debug)]
pub(crate) struct Device {
    /// What to do with it.
    #[command(subcommand)]
    pub(crate) command: DeviceCommand,
}

/// What can be done with one device.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Let in a device that waits: it is paired and comes in the next time it connects
    Approve(OneDevice),
    /// Do not let in a device that waits
    Reject(OneDevice),
    /// Void the tokens of a device and close its connections; or do not let in one that waits
    Revoke(OneDevice),
}

/// A device, or a request that waits.
#[derive(Args, Debug)]
pub(crate) struct OneDevice {
    /// The id of the request or of the device, or its beginning; `clawmux devices` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `reference`
#[derive(Args, Debug)]
pub(crate) struct Reference {
    /// The protocol
    #[arg(value_enum)]
    pub(crate) protocol: Protocol,
    /// As JSON Schema, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// A protocol that describes itself.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// Wundr's protocol v2
    Wundr,
}

/// `approvals`
#[derive(Args, Debug)]
pub(crate) struct Approvals {
    /// Only this one, with the whole of its input: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `approval`
#[derive(Args, Debug)]
pub(crate) struct Approval {
    /// What is decided.
    #[command(subcommand)]
    pub(crate) command: ApprovalCommand,
}

/// What can be decided about a tool call that waits.
#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalCommand {
    /// Have the call made
    Approve(Approve),
    /// Do not have it made; the model is told
    Deny(Deny),
}

/// `approval approve`
#[derive(Args, Debug)]
pub(crate) struct Approve {
    /// The id of the approval, or its beginning; `clawmux approvals` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Give the tool the JSON object in this file (`-`: stdin) in place of the model's input
    #[arg(long, value_name = "FILE")]
    pub(crate) input_file: Option<PathBuf>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `approval deny`
#[derive(Args, Debug)]
pub(crate) struct Deny {
    /// The id of the approval, or its beginning; `clawmux approvals` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Why, as the model is told
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tokens`
#[derive(Args, Debug)]
pub(crate) struct Tokens {
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `token`
#[derive(Args, Debug)]
pub(crate) struct Token {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

/// What can be done with credentials.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Give out an API key or a JWT: it goes to stdout, once; only its hash is kept
    ///
    /// From the first one on every client needs a credential, on loopback too, also when all are revoked.
    Create(CreateToken),
    /// Let nobody in with it any more, and close its connections
    Revoke(RevokeToken),
    /// Give out another in its place: it goes to stdout, once, and the old one holds on for a while
    ///
    /// The new one has the name and the scopes of the old one, so that what belongs to it is found by both. Connections
    /// of the old one stay until its end.
    Rotate(RotateToken),
}

/// `token create`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("allowed").required(true))]
pub(crate) struct CreateToken {
    /// Its name: what is made with it belongs to that
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// What it allows
    #[arg(long, value_name = "ROLE", group = "allowed", value_parser = ["admin", "user", "readonly"])]
    pub(crate) role: Option<String>,
    /// Instead of a role: a scope such as daemon.read or operator.approvals; may be given several times
    #[arg(long, value_name = "SCOPE", group = "allowed")]
    pub(crate) scope: Vec<String>,
    /// A JWT instead of an API key; takes a secret under auth.jwt, and lives 30 days unless --expires says else
    #[arg(long)]
    pub(crate) jwt: bool,
    /// How long it lives, such as 12h or 30d [default: an API key lives until it is revoked]
    #[arg(long, value_name = "SPAN", value_parser = crate::operator::tokens::life)]
    pub(crate) expires: Option<std::time::Duration>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `token revoke`
#[derive(Args, Debug)]
pub(crate) struct RevokeToken {
    /// Its id, or the beginning of it; `clawmux tokens` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `token rotate`
#[derive(Args, Debug)]
pub(crate) struct RotateToken {
    /// Its id, or the beginning of it; `clawmux tokens` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// For how long the old one holds on, such as 1h or 7d; 0s ends it at once
    #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = crate::operator::tokens::overlap)]
    pub(crate) overlap: std::time::Duration,
    /// How long the new one lives [default: as long as the old one was to live]
    #[arg(long, value_name = "SPAN", value_parser = crate::operator::tokens::life)]
    pub(crate) expires: Option<std::time::Duration>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `jobs`
#[derive(Args, Debug)]
pub(crate) struct Jobs {
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `job`
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: JobCommand,
}

/// What can be done with jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Have a session prompted at set times
    ///
    /// A cron expression has five fields (minute, hour, day of the month, month, day of the week) and is meant in
    /// --zone, else in the time zone that the daemon's host has now.
    Add(Box<AddJob>),
    /// Do a job now, whenever it is due, and wait for what comes of it
    Run(RunJob),
    /// What came of the latest times, the latest first
    Runs(JobRuns),
    /// Do it again when it is due; what passed meanwhile is not made up for
    Enable(OneJob),
    /// Do it no more until it is enabled
    Disable(OneJob),
    /// Forget a job and its runs; its session stays
    Remove(OneJob),
}

/// `job add`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("schedule").required(true))]
pub(crate) struct AddJob {
    /// Once: 2026-01-31T09:00:00Z, 2026-01-31T09:00 in this host's time zone, or +20m
    #[arg(long, value_name = "TIME", group = "schedule", value_parser = crate::operator::jobs::at)]
    pub(crate) at: Option<crate::operator::jobs::At>,
    /// Every so long from now on, such as 15m or 12h
    #[arg(long, value_name = "SPAN", group = "schedule", value_parser = crate::operator::tokens::life)]
    pub(crate) every: Option<std::time::Duration>,
    /// By a cron expression, such as "0 9 * * 1-5"
    #[arg(long, value_name = "EXPR", group = "schedule")]
    pub(crate) cron: Option<String>,
    /// The time zone of the expression, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) zone: Option<String>,
    /// What the session is told [default: stdin]
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// What it is called [default: the beginning of the prompt]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The session, as AGENT:CHANNEL:ACCOUNT:PEER [default: one of its own]
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// The agent of a session of its own [default: main]
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub(crate) agent: Option<String>,
    /// Put the answer into this session besides
    #[arg(long, value_name = "KEY")]
    pub(crate) result_to: Option<String>,
    /// What becomes of times that passed while it could not be done: skip, once (for all of them) or all:N (the last
    /// N of them) [default: once]
    #[arg(long, value_name = "POLICY")]
    pub(crate) misfire: Option<String>,
    /// The model that answers, PROVIDER/MODEL
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// How much it thinks: off, minimal, low, medium, high or xhigh
    #[arg(long, value_name = "LEVEL")]
    pub(crate) thinking: Option<String>,
    /// Do not do it until it is enabled
    #[arg(long)]
    pub(crate) disabled: bool,
    /// With --at: forget the job once it was done well
    #[arg(long, requires = "at")]
    pub(crate) delete_after: bool,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// A job.
#[derive(Args, Debug)]
pub(crate) struct OneJob {
    /// Its name, its id or the beginning of that; `clawmux jobs` lists them
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `job run`
#[derive(Args, Debug)]
pub(crate) struct RunJob {
    #[command(flatten)]
    pub(crate) job: OneJob,
    /// Only begin it
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// `job runs`
#[derive(Args, Debug)]
pub(crate) struct JobRuns {
    /// Only of this job: its name, its id or the beginning of that
    #[arg(value_name = "JOB")]
    pub(crate) id: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
    pub(crate) limit: usize,
    /// As JSON, for scripts: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config`
#[derive(Args, Debug)]
pub(crate) struct Config {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// What can be done with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// What keys say and where that was written; secrets are not shown
    Get(GetConfig),
    /// Have a key say something; the daemon goes over to it at once, or says what takes a restart
    ///
    /// Written is the file that the value came from, and its comments stay; where that can't be written, or no file
    /// says anything of it, gateway.toml in the home (or --config FILE).
    Set(SetConfig),
    /// Take a key away, so that the default holds again, or what a weaker file says
    Unset(UnsetConfig),
    /// Have the daemon go over to what stands in its files, as SIGHUP does
    ///
    /// All of it or, where anything of it is bad, nothing: then everything that is wrong is said, and the exit status
    /// is 64.
    Reload(ReloadConfig),
}

/// `config get`
#[derive(Args, Debug)]
pub(crate) struct GetConfig {
    /// Only this key, such as limits.queue, or this section
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config set`
#[derive(Args, Debug)]
pub(crate) struct SetConfig {
    /// The key, such as limits.queue
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// What it shall say: a value as in TOML, or a bare text
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config unset`
#[derive(Args, Debug)]
pub(crate) struct UnsetConfig {
    /// The key, such as limits.queue, or a section
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config reload`
#[derive(Args, Debug)]
pub(crate) struct ReloadConfig {
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `log`
#[derive(Args, Debug)]
pub(crate) struct Log {
    /// off, error, warn, info, debug or trace; or directives such as info,clawmux=debug [default: only show it]
    #[arg(value_name = "LEVEL")]
    pub(crate) level: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon in the foreground; works on loopback with no configuration at all
    #[command(visible_alias = "gateway")]
    Serve(Serve),
    /// Chat with the running daemon, or with an embedded one where none runs
    ///
    /// Attaches to the daemon of the home, or to --url with the credential in $CLAWMUX_TOKEN or --token-file.
    /// Ctrl-C aborts the run under way; at the prompt, or a second time, it leaves.
    Chat(Chat),
    /// Check the configuration without starting: all complaints at once, with file and line
    Check(Check),
    /// Ask the running daemon how it is
    Status(Status),
    /// The sessions there are, the latest used first
    Sessions(Sessions),
    /// Who is connected, the latest first
    Connections(Connections),
    /// The actors of the daemon, who supervises whom, and how far each is behind
    ///
    /// WAIT is how long a question waited in the actor's mailbox, QUEUED how much waits in queues of its own, RESTARTS
    /// how often those it supervises were started anew. One that is stuck is told as such and does not hold the
    /// others up.
    Actors(Actors),
    /// Plugins, whether they can be called or not
    Plugins(Plugins),
    /// Tokens spent, and what the budgets leave
    Usage(Usage),
    /// What is remembered besides conversations: how much for whom, or the entries of one owner
    Memory(Memory),
    /// Tool calls that wait for approval
    Approvals(Approvals),
    /// Devices that are paired, and those that wait for approval
    Devices(Devices),
    /// API keys and JWTs that were given out
    Tokens(Tokens),
    /// What is done at set times, the next to be due first
    Jobs(Jobs),
    /// Add, run, remove, enable or disable what is done at set times
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Job(Job),
    /// One session: its log, live events, control
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Session(Session),
    /// Approve or deny a tool call that waits
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Approval(Approval),
    /// Close a connection
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Connection(Connection),
    /// Plugins at run time: load, unload, reload, or try one
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Plugin(Plugin),
    /// Create, revoke or rotate API keys and JWTs
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Token(Token),
    /// Approve, reject or revoke a device
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Device(Device),
    /// Show or change the configuration of the running daemon, or of its files where none runs
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Config(Config),
    /// Show or set what the running daemon writes to its log
    ///
    /// It lasts until the next reload or restart, which bring back what is configured: for good, set log.filter.
    Log(Log),
    /// What happens in all sessions and to the daemon, as it happens, until Ctrl-C
    ///
    /// What happened while nobody looked is not told again: see `clawmux session show` and `session tail --after`.
    Events(Events),
    /// Stop taking new prompts and wait until what was accepted has run
    ///
    /// New prompts are refused (a client may try again later) and /readyz says 503; what was accepted runs to its end,
    /// and logs can be read and runs aborted meanwhile. The daemon stays up until it is stopped (SIGTERM, which cuts
    /// runs at the end of their step after gateway.drain_timeout_ms, and the next start goes on with them).
    Drain(Drain),
    /// Make a consistent copy of the log, while the daemon works
    ///
    /// The daemon writes the copy, and so its user must be allowed to; where none runs it is made directly. It is one
    /// file, checked and on the disk when the command ends. To restore it: stop the daemon, move the files of its log
    /// away, copy FILE to where clawmux.db was (store.path), start the daemon.
    Backup(Backup),
    /// The systemd service and socket units, for the system or for one user
    ///
    /// Prints both, each below a line with the path it belongs to; --out writes them. They name this binary and what
    /// the configuration says of addresses, the socket's group and the time a stop may take: print them anew when
    /// those change.
    Unit(Unit),
    /// Look for what commonly goes wrong, and say what to do
    ///
    /// Looks at the configuration, the home, its secrets and its disk, the daemon and what waits for its operator, ports,
    /// limits of the system, keys, model providers (by a request that costs nothing), the clock, and the log, whether a
    /// daemon runs or not. Changes nothing. Exit status 1 where something is wrong; warnings are not.
    Doctor(Doctor),
    /// Methods and events of a protocol with their parameters, as this daemon serves them
    Reference(Reference),
    /// Have a shell complete commands and options
    Completions(Completions),
    /// The manual page, for `man -l -`, or those of all commands
    Man(Man),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent_and_complete() {
        Cli::command().debug_assert();
        let help = Cli::command().render_long_help().to_string();
        for name in Cli::command().get_subcommands() {
            assert!(name.get_about().is_some(), "{} says what it does", name.get_name());
            assert!(help.contains(name.get_name()), "{help}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert!(Cli::try_parse_from(["clawmux", "nothing"]).is_err());
        let create = |rest: &str| {
            let args = ["clawmux", "token", "create"].into_iter().chain(rest.split(' '));
            Cli::try_parse_from(args).is_ok()
        };
        assert!(
            create("--name a --role user") && create("--name a --scope daemon.read --scope daemon.teams")
        );
        assert!(create("--name a --role user --jwt --expires 30d --json"));
        for bad in
            ["--name a", "--role user", "--name a --role root", "--name a --role user --scope daemon.read"]
        {
            assert!(!create(bad), "{bad}");
        }
        assert!(Cli::try_parse_from(["clawmux", "status", "--token", "x"]).is_err());
    }
}
