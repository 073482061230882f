//! Log lines, on stderr.

use std::io::{IsTerminal, stderr};

use clawmux_core::config::{Log, LogFormat};
use tracing_subscriber::EnvFilter;

use crate::exit::{CONFIG, Failure};

/// What is left out unless the configured filter names it: the server's own life, which the
/// listener tells; requests that are not HTTP, since whoever can connect could fill the log with
/// them; and guests' texts of any length, which the sandbox tells bounded.
const QUIET: &str = "actix_server=warn,actix_http::h1::dispatcher=off,extism=off";

/// Whether `[log] filter` is one.
///
/// # Errors
/// Status 64, with what is wrong.
pub(crate) fn check(log: &Log) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(format!("{QUIET},{}", log.filter)).map_err(|error| {
        Failure::new(
            CONFIG,
            format!("log.filter: {error}; expected directives such as \"info,clawmux=debug\""),
        )
    })
}

/// Starts to write them.
///
/// # Errors
/// As [`check`].
pub(crate) fn start(log: &Log) -> Result<(), Failure> {
    let lines = tracing_subscriber::fmt().with_env_filter(check(log)?).with_writer(stderr);
    // That a subscriber is there already is the case in tests only.
    let _ = match log.format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Auto | LogFormat::Text | LogFormat::Journald => {
            lines.with_ansi(stderr().is_terminal()).try_init()
        }
    };
    Ok(())
}
