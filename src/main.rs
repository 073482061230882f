//! The clawmux binary: one daemon, and the commands that speak to it.

#![forbid(unsafe_code)]

mod admin_client;
mod answer;
mod chat;
mod check;
mod cli;
mod daemon;
mod doctor;
mod exit;
mod home;
mod journal;
mod logging;
mod manual;
mod naming;
mod operator;
mod preflight;
mod question;
mod reference;
mod settings;
mod setup;
mod systemd;
mod terminal;
mod unit;
mod unknown_command;
mod when;
mod xeno_home;

use std::fs;
use std::io;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clawmux_actors::host::activation::Passed;
use clawmux_actors::host::keeper::{self, Bounds, Folders, Kept};
use clawmux_actors::sandbox::compiler;

use crate::cli::{Cli, Command, CompilePlugin, Global, Keep, Serve};
use crate::exit::Failure;
use crate::systemd::ServiceManager;

fn main() -> ExitCode {
    // Wrong usage, --help and --version end here, with the statuses clap gives them: 2, 0, 0.
    let Cli { global, command } = match manual::parse() {
        Ok(parsed) => parsed,
        Err(error) => match unknown_command::answer(&error, std::env::args()) {
            Some(Failure { status, message }) => {
                terminal::tell(&terminal::visible(&message));
                return ExitCode::from(status);
            }
            None => unknown_command::without_wild_guess(error).exit(),
        },
    };
    let outcome = match command {
        Command::Serve(options) => {
            clawmux_actors::host::heap::keep_little();
            let manager = ServiceManager::from_env();
            let ended = serve(&global, options, &manager);
            if let Err(failure) = &ended {
                manager.failed(failure);
            }
            ended
        }
        Command::Chat(options) => chat::run(&global, &options),
        Command::Setup(options) => setup::run(&global, &options),
        Command::Models { provider } => operator::models::run(&global, provider.as_deref()),
        Command::Check => check::run(&global),
        Command::Status => operator::status::run(&global),
        Command::Sessions(options) => operator::sessions::run(&global, &options),
        Command::Session(command) => operator::session::run(&global, &command),
        Command::Connections { limit } => operator::connections::list(&global, limit),
        Command::Connection(command) => operator::connections::run(&global, &command),
        Command::Actors(options) => operator::actors::run(&global, &options),
        Command::Plugins { name } => operator::plugins::list(&global, name.as_deref()),
        Command::Plugin(command) => operator::plugins::run(&global, &command),
        Command::Skills { name } => operator::skills::run(&global, name.as_deref()),
        Command::Channels { name } => operator::channels::list(&global, name.as_deref()),
        Command::Bus(command) => operator::bus::run(&global, &command),
        Command::Cluster(command) => operator::cluster::run(&global, &command),
        Command::Channel(command) => operator::channels::run(&global, &command),
        Command::Mcp(command) => operator::mcp::run(&global, &command),
        Command::Usage(options) => operator::usage::run(&global, &options),
        Command::Events(options) => operator::events::run(&global, &options),
        Command::Devices => operator::devices::list(&global),
        Command::Device(command) => operator::devices::run(&global, &command),
        Command::Tokens => operator::tokens::list(&global),
        Command::Token(command) => operator::tokens::run(&global, &command),
        Command::Approvals { id } => operator::approvals::list(&global, id.as_deref()),
        Command::Approval(command) => operator::approvals::run(&global, &command),
        Command::Jobs => operator::jobs::list(&global),
        Command::Job(command) => operator::jobs::run(&global, &command),
        Command::Memory(options) => operator::memory::run(&global, &options),
        Command::Backup { file } => operator::backup::run(&global, &file),
        Command::Restore(options) => operator::restore::run(&global, &options),
        Command::Doctor(options) => doctor::run(&global, &options),
        Command::Config(command) => operator::config::run(&global, &command),
        Command::Log { level } => operator::log::run(&global, level.as_deref()),
        Command::Drain(options) => operator::drain::run(&global, &options),
        Command::Reference(options) => reference::run(&global, &options),
        Command::Unit(options) => unit::run(&global, &options),
        Command::Completions { shell } => manual::complete(shell),
        Command::Man(options) => manual::pages(&options),
        Command::CompilePlugin(options) => compile_plugin(&options),
        Command::Keep(options) => keep(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { status, message }) => {
            if !message.is_empty() {
                terminal::tell(&terminal::visible(&message));
            }
            ExitCode::from(status)
        }
    }
}

fn compile_plugin(options: &CompilePlugin) -> Result<(), Failure> {
    let bounds = compiler::Bounds { memory: options.memory, time: Duration::from_secs(options.seconds) };
    compiler::serve(&options.folder, bounds).map_err(|why| Failure::new(compiler::REFUSED, why))
}

/// Keeps a program, or becomes it; ends with its status.
fn keep(options: &Keep) -> Result<(), Failure> {
    let Keep { memory, processes, folders, read, write, confined, command } = options;
    let not_started = |error: io::Error| {
        let program = command[0].to_string_lossy();
        let hint = match fs::canonicalize(&command[0]) {
            Ok(path) if *folders && error.kind() == io::ErrorKind::PermissionDenied => {
                format!("; it is {}: does `folders` name all that it needs?", path.display())
            }
            _ => String::new(),
        };
        Failure::new(keeper::NOT_STARTED, format!("can't start {program}: {error}{hint}"))
    };
    let bounds = Bounds { memory: *memory, processes: *processes };
    if *confined {
        let folders = folders.then(|| Folders { read: read.clone(), write: write.clone() });
        let mut program = process::Command::new(&command[0]);
        program.args(&command[1..]);
        return Err(not_started(keeper::become_confined(folders.as_ref(), &bounds, &mut program)));
    }
    // Not by its path: another program may have taken its place there.
    let mut again = process::Command::new("/proc/self/exe");
    again.args([
        "keep",
        "--confined",
        "--memory",
        &memory.to_string(),
        "--processes",
        &processes.to_string(),
    ]);
    again.args(folders.then_some("--folders"));
    for (flag, paths) in [("--read", read), ("--write", write)] {
        for path in paths {
            again.arg(flag).arg(path);
        }
    }
    again.arg("--").args(command);
    match keeper::keep(&bounds, &mut again).map_err(not_started)? {
        Kept::Ended(0) => Ok(()),
        Kept::Ended(status) => Err(Failure::new(status, "")),
        Kept::Overstepped(how) => Err(Failure::new(keeper::OVERSTEPPED, format!("ended it: {how}"))),
    }
}

fn serve(global: &Global, options: Serve, manager: &ServiceManager) -> Result<(), Failure> {
    // Before there are threads, and before anything opens a file in their place.
    let passed = Passed::take()?;
    let mut settings = settings::read(global, &options.listen)?;
    settings.socket = options.socket;
    settings.passed = Arc::new(passed);
    logging::start(&settings.config.log)?;
    for warning in &settings.warnings {
        tracing::warn!(at = %warning.at, "configuration: {}", warning.message);
    }
    if settings.passed.has_tcp() {
        tracing::info!(
            "using the sockets passed by the service manager instead of gateway.listen and --listen"
        );
    }
    home::create(&settings.home)?;
    let user = std::env::var_os("HOME").filter(|home| !home.is_empty());
    settings.xeno_home = user.and_then(|user| {
        xeno_home::default_home(user.as_ref()).unwrap_or_else(|why| {
            tracing::warn!("xeno's clients may look for their socket elsewhere: {why}");
            None
        })
    });
    daemon::serve(settings, manager)
}
