//! The clawmux binary: one daemon, and the commands that speak to it.

#![forbid(unsafe_code)]

mod admin_client;
mod chat;
mod check;
mod cli;
mod daemon;
mod doctor;
mod exit;
mod home;
mod logging;
mod operator;
mod reference;
mod settings;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::{FAILED, Failure};

fn main() -> ExitCode {
    // Wrong usage, --help and --version end here, with the statuses clap gives them: 2, 0, 0.
    let Cli { global, command } = Cli::parse();
    let outcome = match command {
        Command::Serve(serve) => settings::read(&global, &serve.listen).and_then(|mut settings| {
            settings.socket = serve.socket;
            logging::start(&settings.config.log)?;
            for warning in &settings.warnings {
                tracing::warn!(at = %warning.at, "configuration: {}", warning.message);
            }
            home::create(&settings.home)?;
            daemon::serve(settings)
        }),
        Command::Chat(options) => chat::run(&global, &options),
        Command::Check(options) => check::run(&global, &options),
        Command::Status(options) => operator::status::run(&global, options.json),
        Command::Sessions(options) => operator::sessions::run(&global, &options),
        Command::Session(command) => operator::session::run(&global, &command.command),
        Command::Devices(options) => operator::devices::list(&global, &options),
        Command::Device(command) => operator::devices::run(&global, &command.command),
        Command::Tokens(options) => operator::tokens::list(&global, &options),
        Command::Token(command) => operator::tokens::run(&global, &command.command),
        Command::Approvals(options) => operator::approvals::list(&global, &options),
        Command::Approval(command) => operator::approvals::run(&global, &command.command),
        Command::Jobs(options) => operator::jobs::list(&global, &options),
        Command::Job(command) => operator::jobs::run(&global, &command.command),
        Command::Memory(options) => operator::memory::run(&global, &options),
        Command::Backup(options) => operator::backup::run(&global, &options),
        Command::Doctor(options) => doctor::run(&global, &options),
        Command::Reference(options) => reference::run(&options),
        Command::Drain(options) => operator::drain::run(&global, &options),
        later => {
            let name = later.later().unwrap_or("this command");
            Err(Failure::new(FAILED, format!("{name} is not there yet")))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { status, message }) => {
            if !message.is_empty() {
                terminal::tell(&message);
            }
            ExitCode::from(status)
        }
    }
}
