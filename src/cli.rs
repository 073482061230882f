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
With --json a list is one JSON object a line (JSON Lines), everything else is one object.\n\n\
Exit status: 0 fine, 1 failed, 2 wrong usage, 64 bad configuration, 69 no daemon reachable, \
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
    /// Address to listen on instead of the configured ones; can be given several times
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Vec<String>,
    /// Path of the operator's Unix socket [default: .xeno/gateway.sock in the home]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// `chat`
#[derive(Args, Debug)]
pub(crate) struct Chat {
    /// A single prompt: its answer goes to stdout, and the exit status says how it ended. Several words are
    /// joined by spaces; piped input follows after a blank line, or stands where `-` is
    pub(crate) message: Vec<String>,
    /// Session: a NAME, short for main:cli:$USER:NAME; a KEY, AGENT:CHANNEL:ACCOUNT:PEER, or a beginning
    /// that only one has; for operators OWNER/KEY [default: main]
    #[arg(long, value_name = "NAME|KEY")]
    pub(crate) session: Option<String>,
    /// Agent of the session NAME [default: main]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Send this file with the prompt (an image, or text in UTF-8); may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
    /// Write the turn as JSON Lines, one event a line
    ///
    /// Each line is an object whose `event` says what it is:
    ///   accepted     session, run: the prompt is stored
    ///   thought      text
    ///   text         text: a piece of the answer
    ///   restart      the text since the last tool_result is void and comes anew
    ///   tool_use     name, input; approval: the ID to approve or deny, where the call waits for that
    ///   approval     approval, name, decision (approved, denied, timed_out, withdrawn), by
    ///   tool_result  content, is_error
    ///   done         outcome (completed, aborted, failed), error, elapsed_ms, input_tokens, output_tokens
    ///
    /// Fields that do not apply are left out. Skip events and fields you do not know.
    #[arg(long, verbatim_doc_comment)]
    pub(crate) json: bool,
    /// WebSocket of a daemon, such as ws://127.0.0.1:18789/ws [default: the daemon of the home]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// File that holds the token for --url [default: the token in $CLAWMUX_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// `status`
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `connections`
#[derive(Args, Debug)]
pub(crate) struct Connections {
    /// Show at most N
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
    pub(crate) limit: usize,
    /// Write JSON, for scripts: one object a line
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
    /// Close a connection; its client may connect again, and what it asked for goes on
    Close(OneConnection),
}

/// A connection by its number.
#[derive(Args, Debug)]
pub(crate) struct OneConnection {
    /// The number of the connection; `clawmux connections` lists them
    #[arg(value_name = "ID", value_parser = connection_number)]
    pub(crate) id: u64,
    /// Write JSON, for scripts: one object
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
    /// Show at most N children of each actor, those in trouble first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) children: usize,
    /// Show every figure, also those that are 0
    #[arg(long)]
    pub(crate) figures: bool,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugins`
#[derive(Args, Debug)]
pub(crate) struct Plugins {
    /// Show only this plugin, in full
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Write JSON, for scripts: one object a line
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
    /// Load a plugin that is configured, ships in the binary, or lies in the plugins folder of the home
    ///
    /// A plugin of the folder is found by its name: plugins/NAME.wasm. An agent uses it once the agent's tools name it:
    /// `clawmux config set agents.main.tools echo,clock,NAME`.
    Load(LoadPlugin),
    /// Unload a plugin: no new calls are made, those that are running finish
    Unload(OnePlugin),
    /// Load a plugin again from where it came from, without a gap
    ///
    /// Its file, its manifest and its capabilities are read again. Calls that are running finish on the old one. If the
    /// new one can't be loaded, the old one stays.
    Reload(OnePlugin),
    /// Try a plugin with an input, under its own capabilities and limits; the exit status is 1 if it fails
    Call(CallPlugin),
}

/// A plugin by its name.
#[derive(Args, Debug)]
pub(crate) struct OnePlugin {
    /// The name of the plugin; `clawmux plugins` lists them
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugin load`
#[derive(Args, Debug)]
pub(crate) struct LoadPlugin {
    #[command(flatten)]
    pub(crate) plugin: OnePlugin,
    /// A file in the plugins folder of the home, such as notes.wasm [default: the one that is configured or ships in
    /// the binary, else NAME.wasm]
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
    /// Sum up by this
    #[arg(long, value_enum, default_value_t = UsageBy::Day)]
    pub(crate) by: UsageBy,
    /// Look at the last N days, today included; days begin at midnight UTC
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = positive)]
    pub(crate) days: usize,
    /// Show at most N rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(crate) limit: usize,
    /// Write JSON, for scripts: one object
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
    /// Show only sessions whose keys begin with this
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// Show only this kind, such as prompt, tool_call, end or approval; can be given several times
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Wait for a daemon if none is reachable, or if it goes away
    #[arg(long)]
    pub(crate) wait: bool,
    /// Write JSON, for scripts: one object a line
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
    /// Show only sessions whose keys begin with this; OWNER/ before it: those of another owner
    #[arg(value_name = "KEY")]
    pub(crate) prefix: Option<String>,
    /// Show at most N
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(crate) limit: usize,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// Write JSON, for scripts: one object a line
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
    /// Show the events of a session: prompts, answers, tool calls and their results; times are UTC
    Show(Show),
    /// Follow what happens in a session until Ctrl-C
    Tail(Tail),
    /// End the run of a session; what it said so far is kept, and the next prompt in the queue starts
    Abort(Abort),
    /// Have the agent start over in a session: it forgets the conversation, the events are kept
    Clear(Named),
    /// End the run of a session and all that are queued
    Stop(Named),
    /// Delete a session with all its events; what it cost stays on record
    Delete(Named),
    /// Write all events of a session as JSON, one object a line, with the attachments of prompts
    Export(Export),
}

/// `session export`
#[derive(Args, Debug)]
pub(crate) struct Export {
    /// The session: a NAME, short for main:cli:$USER:NAME; a KEY, AGENT:CHANNEL:ACCOUNT:PEER, or a beginning that only
    /// one has; another owner's is OWNER/KEY. `clawmux sessions` lists them
    #[arg(value_name = "NAME|KEY")]
    pub(crate) key: String,
    /// Write only what comes after this event
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: u64,
}

/// A session by its key.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The session: a NAME, short for main:cli:$USER:NAME; a KEY, AGENT:CHANNEL:ACCOUNT:PEER, or a beginning that only
    /// one has; another owner's is OWNER/KEY. `clawmux sessions` lists them
    #[arg(value_name = "NAME|KEY")]
    pub(crate) key: String,
    /// Write JSON, for scripts: one object, or one object a line where there are events
    #[arg(long)]
    pub(crate) json: bool,
}

/// `session show`
#[derive(Args, Debug)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Show only what comes after this event
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: u64,
    /// Show at most N events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// `session tail`
#[derive(Args, Debug)]
pub(crate) struct Tail {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Begin after this event, such as the last one seen [default: begin now]
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
}

/// `session abort`
#[derive(Args, Debug)]
pub(crate) struct Abort {
    #[command(flatten)]
    pub(crate) named: Named,
    /// This run, which may still be queued, instead of the one that is under way
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
}

/// `drain`
#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// Wait at most this long; then the exit status is 1, and the daemon goes on draining
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// Accept prompts again
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) off: bool,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `backup`
#[derive(Args, Debug)]
pub(crate) struct Backup {
    /// The copy; the file must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `compile-plugin`
#[derive(Args, Debug)]
pub(crate) struct CompilePlugin {
    /// Where the code goes
    pub(crate) folder: PathBuf,
    /// Memory it may take, in bytes
    pub(crate) memory: u64,
    /// Time it may take, in seconds
    pub(crate) seconds: u64,
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
    /// The binary that the service starts, for packages [default: this one]
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<PathBuf>,
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
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `doctor`
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Read the store for at most about so long; a large one is looked through as far as that goes
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) within: u64,
    /// Ask no model provider
    #[arg(long)]
    pub(crate) offline: bool,
    /// Write JSON, for scripts: one object
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
    /// Show the memories of this owner, the latest first: the name of a credential, or `operators`
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Write JSON, for scripts: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `devices`
#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// Write JSON, for scripts: one object a line
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
    /// Pair a device that waits
    Approve(OneDevice),
    /// Refuse a device that waits
    Reject(OneDevice),
    /// Void the tokens of a device and close its connections; one that waits is refused
    Revoke(OneDevice),
}

/// A device, or a request that waits.
#[derive(Args, Debug)]
pub(crate) struct OneDevice {
    /// The id of the request or of the device, or its beginning; `clawmux devices` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `reference`
#[derive(Args, Debug)]
pub(crate) struct Reference {
    /// The protocol [default: all of them]
    #[arg(value_enum)]
    pub(crate) protocol: Option<Protocol>,
    /// Write JSON, for scripts: one object, or one a line for all protocols
    #[arg(long)]
    pub(crate) json: bool,
}

/// A protocol that describes itself.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// exoclaw's, on /ws and on the Unix socket
    Exoclaw,
    /// OpenClaw's, on /
    Openclaw,
    /// Wundr's protocol v2, on /v2
    Wundr,
    /// xeno's, on the Unix socket
    Xeno,
    /// The operator's, on /admin and on the Unix socket
    Admin,
}

/// `approvals`
#[derive(Args, Debug)]
pub(crate) struct Approvals {
    /// Show only this one, with its whole input: its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Write JSON, for scripts: one object a line
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
    /// Run the call
    Approve(Approve),
    /// Refuse the call; the model is told
    Deny(Deny),
}

/// `approval approve`
#[derive(Args, Debug)]
pub(crate) struct Approve {
    /// The id of the approval, or its beginning; `clawmux approvals` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Run it with the JSON object in this file (`-`: stdin) instead of the model's input
    #[arg(long, value_name = "FILE")]
    pub(crate) input_file: Option<PathBuf>,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `approval deny`
#[derive(Args, Debug)]
pub(crate) struct Deny {
    /// The id of the approval, or its beginning; `clawmux approvals` lists them
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Tell the model why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tokens`
#[derive(Args, Debug)]
pub(crate) struct Tokens {
    /// Write JSON, for scripts: one object a line
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
    /// Takes over what belongs to the name, where it had a credential before: sessions, memories, files, jobs
    #[arg(long)]
    pub(crate) inherit: bool,
    /// Do not ask before the first credential, from which on every client over TCP needs one
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `token revoke`
#[derive(Args, Debug)]
pub(crate) struct RevokeToken {
    /// Its id, the beginning of that, or its name where no other has it; `clawmux tokens` lists them
    #[arg(value_name = "ID|NAME")]
    pub(crate) id: String,
    /// As JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `token rotate`
#[derive(Args, Debug)]
pub(crate) struct RotateToken {
    /// Its id, the beginning of that, or its name where no other has it; `clawmux tokens` lists them
    #[arg(value_name = "ID|NAME")]
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
    /// Write JSON, for scripts: one object a line
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
    /// Add a job: a prompt that a session gets at set times
    ///
    /// A cron expression has five fields: minute, hour, day of the month, month, day of the week. Its times are those of
    /// --zone, or of the time zone of the daemon's host.
    Add(Box<AddJob>),
    /// Run a job now, whenever it is due, and wait for its answer
    Run(RunJob),
    /// Show the last runs, the latest first
    Runs(JobRuns),
    /// Run it again when it is due; what it missed meanwhile is not made up for
    Enable(OneJob),
    /// Do not run it until it is enabled
    Disable(OneJob),
    /// Remove a job and the record of its runs; its session stays
    Remove(OneJob),
}

/// `job add`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("schedule").required(true))]
pub(crate) struct AddJob {
    /// Run it once: at 2026-01-31T09:00:00Z, at 2026-01-31T09:00 of this host's time zone, or in +20m
    #[arg(long, value_name = "TIME", group = "schedule", value_parser = crate::operator::jobs::at)]
    pub(crate) at: Option<crate::operator::jobs::At>,
    /// Run it this often, such as 15m or 12h
    #[arg(long, value_name = "SPAN", group = "schedule", value_parser = crate::operator::tokens::life)]
    pub(crate) every: Option<std::time::Duration>,
    /// Run it by a cron expression, such as "0 9 * * 1-5"
    #[arg(long, value_name = "EXPR", group = "schedule")]
    pub(crate) cron: Option<String>,
    /// The time zone of the expression, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) zone: Option<String>,
    /// The prompt [default: read from stdin]
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Its name [default: the beginning of the prompt]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The session, as AGENT:CHANNEL:ACCOUNT:PEER [default: one of its own]
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// The agent of a session of its own [default: main]
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub(crate) agent: Option<String>,
    /// Also put the answer into this session
    #[arg(long, value_name = "KEY")]
    pub(crate) result_to: Option<String>,
    /// How to make up for runs missed while the daemon was away: skip, once (one run for all) or all:N (the last N)
    /// [default: once]
    #[arg(long, value_name = "POLICY")]
    pub(crate) misfire: Option<String>,
    /// The model that answers, as PROVIDER/MODEL
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// How much it thinks: off, minimal, low, medium, high or xhigh
    #[arg(long, value_name = "LEVEL")]
    pub(crate) thinking: Option<String>,
    /// Do not run it until it is enabled
    #[arg(long)]
    pub(crate) disabled: bool,
    /// With --at: remove the job once it has gone well
    #[arg(long, requires = "at")]
    pub(crate) delete_after: bool,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A job.
#[derive(Args, Debug)]
pub(crate) struct OneJob {
    /// Its name, its id or the beginning of that; `clawmux jobs` lists them
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `job run`
#[derive(Args, Debug)]
pub(crate) struct RunJob {
    #[command(flatten)]
    pub(crate) job: OneJob,
    /// Start it and do not wait
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// `job runs`
#[derive(Args, Debug)]
pub(crate) struct JobRuns {
    /// Show only runs of this job: its name, its id or the beginning of that
    #[arg(value_name = "JOB")]
    pub(crate) id: Option<String>,
    /// Show at most N
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
    pub(crate) limit: usize,
    /// Write JSON, for scripts: one object a line
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
    /// Show every key with its value and where that was written; secrets are never shown
    Get(GetConfig),
    /// Set a key; the running daemon applies it at once, or says that it needs a restart
    ///
    /// The file that the value came from is changed, and its comments stay. If it can't be written, or no file has the
    /// key yet, that is gateway.toml in the home (or --config FILE).
    Set(SetConfig),
    /// Remove a key, so that its default applies again, or what another file says
    Unset(UnsetConfig),
    /// Have the daemon read its configuration again, as SIGHUP does
    ///
    /// If anything in it is wrong, nothing changes: everything that is wrong is listed, and the exit status is 64.
    Reload(ReloadConfig),
}

/// `config get`
#[derive(Args, Debug)]
pub(crate) struct GetConfig {
    /// Show only this key, such as limits.queue, or this section
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// Write JSON, for scripts: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config set`
#[derive(Args, Debug)]
pub(crate) struct SetConfig {
    /// The key, such as limits.queue
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// The value as in TOML, or a bare text; a list also as a,b,c
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: String,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config unset`
#[derive(Args, Debug)]
pub(crate) struct UnsetConfig {
    /// The key, such as limits.queue, or a section
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `config reload`
#[derive(Args, Debug)]
pub(crate) struct ReloadConfig {
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `log`
#[derive(Args, Debug)]
pub(crate) struct Log {
    /// off, error, warn, info, debug or trace; or directives such as info,clawmux=debug [default: show the present one]
    #[arg(value_name = "LEVEL")]
    pub(crate) level: Option<String>,
    /// Write JSON, for scripts: one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `setup`
#[derive(Args, Debug)]
pub(crate) struct Setup {
    /// Ask nothing: take the first provider that answers, and the offline model where none is found
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Change a gateway.toml that is there without asking; a copy of it is kept
    #[arg(long)]
    pub(crate) force: bool,
}

/// `models`
#[derive(Args, Debug)]
pub(crate) struct Models {
    /// Only those of this provider
    #[arg(value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
    /// As JSON, for scripts: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `restore`
#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// A file that `clawmux backup` wrote
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Do not ask, even where revoked credentials become valid again or loopback needs none any more
    #[arg(long)]
    pub(crate) yes: bool,
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
    /// Chat with an agent: attach to a session, or send one prompt
    ///
    /// Talks to the daemon of the home over its Unix socket, where no token is needed, or to --url with the
    /// token in $CLAWMUX_TOKEN or --token-file. Where no daemon runs, one runs inside the chat, and ends with it;
    /// what it was doing is stored and goes on at the next start.
    ///
    /// Without a MESSAGE and on a terminal it attaches to the session: it shows the last turns, joins what
    /// runs, and sends what you type. Type /help for the commands. Ctrl-C aborts the answer under way; at the
    /// prompt it drops the line, and a second one leaves, as Ctrl-D does. The session stays.
    ///
    /// With a MESSAGE or piped input it sends one prompt and writes the answer to stdout. Everything else
    /// goes to stderr. Exit status: 0 the answer is complete, 1 it failed, 2 wrong usage, 64 bad
    /// configuration, 69 no daemon is reachable, 130 aborted.
    Chat(Chat),
    /// Choose a model provider, try it and write gateway.toml
    ///
    /// Looks for API keys in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY) and for a server of Ollama
    /// (OLLAMA_HOST, or port 11434) or llama.cpp (port 8080) on this machine, asks what it can't find, has the model
    /// answer one short prompt, and writes gateway.toml. Keys are not written there: it names the variable, or a file
    /// that only you can read. Exit status 1 where nothing was written.
    Setup(Setup),
    /// The models that each provider has, as it says itself
    ///
    /// Asks the providers of the configuration and those whose keys are in the environment. Exit status 1 if any of them
    /// does not answer; name a PROVIDER to ask only that one.
    Models(Models),
    /// Check the configuration without starting: every mistake at once, with file and line
    Check(Check),
    /// Show how the running daemon is, and what waits for somebody
    Status(Status),
    /// List the sessions, the latest used first
    Sessions(Sessions),
    /// List who is connected, the latest first
    Connections(Connections),
    /// Show the parts of the daemon (its actors), and how far each is behind
    ///
    /// WAIT is how long a message waits in the actor's mailbox, QUEUED how much waits in its own queues, RESTARTS how
    /// often the actors below it were restarted. An actor that does not answer is shown as such. As JSON the tree is one
    /// object.
    Actors(Actors),
    /// List the plugins, and whether they work
    Plugins(Plugins),
    /// Show the tokens spent, and what the budgets leave
    Usage(Usage),
    /// Show the memories besides conversations: how many each owner has, or those of one owner
    Memory(Memory),
    /// List the tool calls that wait for approval
    Approvals(Approvals),
    /// List the paired devices, and those that wait to be paired
    Devices(Devices),
    /// List the API keys and JWTs
    Tokens(Tokens),
    /// List the jobs, which are done at set times; the next one first
    Jobs(Jobs),
    /// Add, run, remove, enable or disable a job
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Job(Job),
    /// Show, follow, end, clear, delete or export one session
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Session(Session),
    /// Approve or deny a tool call that waits
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Approval(Approval),
    /// Close a connection
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Connection(Connection),
    /// Load, unload, reload or try a plugin
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Plugin(Plugin),
    /// Create, revoke or rotate API keys and JWTs
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Token(Token),
    /// Pair, reject or revoke a device
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Device(Device),
    /// Show or change the configuration, of the running daemon or in its files
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Config(Config),
    /// Show or set how much the running daemon logs
    ///
    /// A level lasts until the next reload or restart. To keep it, set log.filter in the configuration.
    Log(Log),
    /// Follow what happens in all sessions and to the daemon, until Ctrl-C
    ///
    /// Answers are shown by the sentence; with --json every piece is an object of its own. What happened before is not
    /// shown: see `clawmux session show` and `clawmux session tail --after`.
    Events(Events),
    /// Refuse new prompts and wait until all that were accepted have run
    ///
    /// Clients are told to try again later, and /readyz answers 503. Sessions can still be read and runs aborted. The
    /// daemon goes on until it is stopped. SIGTERM interrupts runs that take longer than gateway.drain_timeout_ms; the
    /// next start continues them.
    Drain(Drain),
    /// Make a consistent copy of the store while the daemon works
    ///
    /// The daemon writes the copy, so its user must be allowed to write there; if no daemon runs, the command does it. The
    /// copy is one file, checked and safely on the disk when the command ends. `clawmux restore FILE` puts it back.
    Backup(Backup),
    /// Put a backup in the place of the store, where no daemon runs
    ///
    /// FILE is checked first, and copied. The store that was there is kept beside it, as
    /// clawmux.db.before-restore-TIME. Nothing is changed where anything goes wrong; while a daemon runs, it is refused.
    ///
    /// Credentials are part of the store: the ones of FILE are valid afterwards. What changes is listed. Where a
    /// revoked credential would be valid again, or clients on this machine would need none any more, it asks first;
    /// without a terminal it needs --yes then.
    Restore(Restore),
    /// Print the systemd service and socket units, for the system or for one user
    ///
    /// Each stands below a line with its path; --out writes them. They contain the path of this program and, from the
    /// configuration, the addresses, the socket's group and the time a stop may take: print them again when those
    /// change.
    Unit(Unit),
    /// Look for what commonly goes wrong, and say what to do
    ///
    /// Looks at the configuration, the home, its secrets and its disk, the daemon and what waits for its operator, ports,
    /// limits of the system, keys, model providers (by a request that costs nothing), the clock, and the store, whether a
    /// daemon runs or not. Changes nothing. Exit status 1 where something is wrong; warnings are not.
    Doctor(Doctor),
    /// Print what can be said in each protocol: frames, methods, events, with examples
    Reference(Reference),
    /// Print what makes a shell complete commands and options
    Completions(Completions),
    /// Print the manual page, for `man -l -`, or write those of all commands
    Man(Man),
    /// What the daemon starts to compile one plugin: the module on standard input, the code in a folder
    #[command(hide = true)]
    CompilePlugin(CompilePlugin),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent_and_complete() {
        Cli::command().debug_assert();
        let help = Cli::command().render_long_help().to_string();
        for name in Cli::command().get_subcommands().filter(|name| !name.is_hide_set()) {
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
