//! The command line.
//!
//! | file | arguments of |
//! |---|---|
//! | `chat` | `chat` |
//! | `session` | `sessions`, `session` |
//! | `daemon` | `serve` and what looks at the daemon or acts on the whole of it |
//! | `plugin`, `job`, `memory`, `config`, `cluster` | those |
//! | `access` | `approvals`, `devices`, `tokens` |
//! | `host` | what needs no daemon: set-up, checks, files, documentation |
//! | `value` | what options take: numbers, durations, points in time |

mod access;
mod bus;
mod channel;
mod chat;
mod cluster;
mod config;
mod daemon;
mod host;
mod job;
mod keep;
mod mcp;
mod memory;
mod plugin;
mod session;
mod value;

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use self::access::{ApprovalCommand, CreateToken, DeviceCommand, RotateToken, TokenCommand};
pub(crate) use self::bus::{BusCommand, DlqCommand, WhichLetters};
pub(crate) use self::channel::ChannelCommand;
pub(crate) use self::chat::Chat;
pub(crate) use self::cluster::{Agreed, ClusterCommand, Demo, Rebuild, RunningCommand};
pub(crate) use self::config::ConfigCommand;
pub(crate) use self::daemon::{Actors, ConnectionCommand, Drain, Events, Serve, Usage};
pub(crate) use self::host::{Doctor, Man, Protocol, Reference, Restore, Setup, Shell, Unit};
pub(crate) use self::job::{AddJob, JobCommand, RunJob};
pub(crate) use self::keep::Keep;
pub(crate) use self::mcp::McpCommand;
pub(crate) use self::memory::{Memory, MemoryCommand};
pub(crate) use self::plugin::{
    CompilePlugin, NewPlugin, PluginArg, PluginCommand, SignPlugin, ToolInput, VerifyPlugin,
};
pub(crate) use self::session::{Export, SessionCommand, Sessions, Show, Tail};
pub(crate) use self::value::millis;
use self::value::positive;

/// Commands that write nothing a script would read as JSON.
const WITHOUT_JSON: [&str; 6] = ["serve", "setup", "unit", "completions", "man", "compile-plugin"];

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
    /// Write JSON, for scripts: a list as one object a line, anything else as one object
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The definition of all commands.
pub(crate) fn definition() -> clap::Command {
    WITHOUT_JSON.into_iter().fold(Cli::command(), |all, name| {
        // Of its own, so that it does not get the global one.
        let hidden = Arg::new("json").long("json").hide(true).action(ArgAction::SetTrue);
        all.mut_subcommand(name, |command| command.arg(hidden))
    })
}

/// Reads a command line. `definition` is [`definition`], possibly with more to say.
///
/// # Errors
/// What is wrong with it; `--help` and `--version` as well.
pub(crate) fn parse(
    mut definition: clap::Command,
    words: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Cli, clap::Error> {
    let matches = definition.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let name = matches.subcommand_name().unwrap_or_default();
    if cli.global.json
        && WITHOUT_JSON.contains(&name)
        && let Some(command) = definition.find_subcommand_mut(name)
    {
        let usage = command.render_usage();
        let mut error = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(command);
        error.insert(ContextKind::InvalidArg, ContextValue::String("--json".into()));
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        return Err(error);
    }
    Ok(cli)
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
    /// Looks for API keys in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY and others) and for a server of Ollama
    /// (OLLAMA_HOST, or port 11434) or llama.cpp (port 8080) on this machine, asks what it can't find, has the model
    /// answer one short prompt, and writes gateway.toml. Keys are not written there: it names the variable, or a file
    /// that only you can read. Exit status 1 if nothing was written.
    Setup(Setup),
    /// The models that each provider has, as it says itself
    ///
    /// Asks the providers of the configuration and those whose keys are in the environment. Exit status 1 if any of them
    /// does not answer; name a PROVIDER to ask only that one.
    Models {
        /// Only those of this provider
        provider: Option<String>,
    },
    /// Check the configuration without starting: every mistake at once, with file and line
    Check,
    /// Show how the running daemon is, and what waits for somebody
    Status,
    /// List the sessions, the latest used first
    Sessions(Sessions),
    /// List who is connected, the latest first
    Connections {
        /// Show at most N
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
        limit: usize,
    },
    /// Show the parts of the daemon (its actors), and how far each is behind
    ///
    /// WAIT is how long a message waits in the actor's mailbox, QUEUED how much waits in its own queues, RESTARTS how
    /// often the actors below it were restarted. An actor that does not answer is shown as such. As JSON the tree is one
    /// object.
    Actors(Actors),
    /// List the plugins, and whether they work
    Plugins {
        /// Show only this plugin, in full
        name: Option<String>,
    },
    /// List the skills in the folders of agents, who is offered each, and what is wrong with it
    ///
    /// A skill is a folder with a SKILL.md in skills/ of the home or where agents.NAME.skills says. An agent is offered
    /// the skills of its folders once its tools name `skills`. Where no daemon runs, the folders are looked at all the same.
    Skills {
        /// Show only this skill, in full
        name: Option<String>,
    },
    /// List the channels, over which people write from other platforms
    Channels {
        /// Show only this channel, in full
        name: Option<String>,
    },
    /// Show the tokens spent, and what the budgets leave
    Usage(Usage),
    /// List, search, show, forget, export or import what is remembered besides conversations
    ///
    /// Without a command it shows how many memories each owner has, or with --owner those of one, the latest first.
    Memory(Memory),
    /// List the tool calls that wait for approval
    Approvals {
        /// Show only this one, with its whole input: its id, or the beginning of it
        id: Option<String>,
    },
    /// List the paired devices, and those that wait to be paired
    Devices,
    /// List the API keys and JWTs
    Tokens,
    /// List the jobs, which are done at set times; the next one first
    Jobs,
    /// Add, run, remove, enable or disable a job
    #[command(subcommand)]
    Job(JobCommand),
    /// Show, follow, end, clear, delete or export one session
    #[command(subcommand)]
    Session(SessionCommand),
    /// Approve or deny a tool call that waits
    #[command(subcommand)]
    Approval(ApprovalCommand),
    /// Close a connection
    #[command(subcommand)]
    Connection(ConnectionCommand),
    /// Load, unload, reload, try or sign a plugin, or begin a new one
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// List, try, restart or agree to the tools of MCP servers
    #[command(subcommand)]
    Mcp(McpCommand),
    /// Let people in on a channel, or settle answers that could not be sent
    #[command(subcommand)]
    Channel(ChannelCommand),
    /// Show how the bus is, or settle messages that it could not take
    #[command(subcommand)]
    Bus(BusCommand),
    /// Show, begin, leave, rebuild or try a cluster, which several daemons are together
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Create, revoke or rotate API keys and JWTs
    #[command(subcommand)]
    Token(TokenCommand),
    /// Pair, reject or revoke a device
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Show or change the configuration, of the running daemon or in its files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show or set how much the running daemon logs
    ///
    /// A level lasts until the next reload or restart. To keep it, set log.filter in the configuration.
    Log {
        /// off, error, warn, info, debug or trace; or directives such as info,clawmux=debug [default: show the present one]
        level: Option<String>,
    },
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
    ///
    /// In a cluster the other daemons take the sessions over instead, with all that runs, and prompts are passed on to
    /// them.
    Drain(Drain),
    /// Make a consistent copy of the store while the daemon works
    ///
    /// The daemon writes the copy, so its user must be allowed to write there; if no daemon runs, the command does it. The
    /// copy is one file, checked and safely on the disk when the command ends. `clawmux restore FILE` puts it back.
    Backup {
        /// The copy; the file must not exist yet
        file: PathBuf,
    },
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
    /// daemon runs or not. Changes nothing. Exit status 1 if something is wrong; warnings are not.
    Doctor(Doctor),
    /// Print what can be said in each protocol: frames, methods, events, with examples
    Reference(Reference),
    /// Print what makes a shell complete commands and options
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, for `man -l -`, or write those of all commands
    Man(Man),
    /// What the daemon starts to compile one plugin: the module on standard input, the code in a folder
    #[command(hide = true)]
    CompilePlugin(CompilePlugin),
    /// What the daemon starts to keep a program within bounds, and to end it with all it has started
    #[command(hide = true)]
    Keep(Keep),
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
    fn json_goes_before_or_behind_every_command_that_writes_it() {
        let parsed = |line: &str| parse(definition(), line.split(' ').map(Into::into));
        for line in ["clawmux --json status", "clawmux status --json", "clawmux job runs --json"] {
            assert!(parsed(line).is_ok_and(|cli| cli.global.json), "{line}");
        }
        let chat = parsed("clawmux --json chat hi").map(|cli| cli.command);
        assert!(matches!(chat, Ok(Command::Chat(Chat { json: true, .. }))));
        for name in WITHOUT_JSON {
            for line in [format!("clawmux {name} --json"), format!("clawmux --json {name}")] {
                let refused = parsed(&line).map(drop).unwrap_err().kind();
                let expected = [ErrorKind::UnknownArgument, ErrorKind::MissingRequiredArgument];
                assert!(expected.contains(&refused), "{line}: {refused:?}");
            }
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
