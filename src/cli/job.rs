//! The arguments of commands about jobs.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::value::{Due, due, duration, positive};

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
    Runs {
        /// Show only runs of this job: its name, its id or the beginning of that
        #[arg(value_name = "JOB")]
        id: Option<String>,
        /// Show at most N
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
        limit: usize,
    },
    /// Run it again when it is due; what it missed meanwhile is not made up for
    Enable(JobArg),
    /// Do not run it until it is enabled
    Disable(JobArg),
    /// Remove a job and the record of its runs; its session stays
    Remove(JobArg),
}

/// `job add`
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("schedule").required(true))]
pub(crate) struct AddJob {
    /// Run it once: at 2026-01-31T09:00:00Z, at 2026-01-31T09:00 of this host's time zone, or in +20m
    #[arg(long, value_name = "TIME", group = "schedule", value_parser = due)]
    pub(crate) at: Option<Due>,
    /// Run it this often, such as 15m or 12h
    #[arg(long, value_name = "SPAN", group = "schedule", value_parser = duration)]
    pub(crate) every: Option<Duration>,
    /// Run it by a cron expression, such as "0 9 * * 1-5"
    #[arg(long, value_name = "EXPR", group = "schedule")]
    pub(crate) cron: Option<String>,
    /// The time zone of the expression, such as Europe/Berlin
    #[arg(long, requires = "cron")]
    pub(crate) zone: Option<String>,
    /// The prompt [default: read from stdin]
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Its name [default: the beginning of the prompt]
    #[arg(long)]
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
    #[arg(long)]
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
}

/// A job.
#[derive(Args, Debug)]
pub(crate) struct JobArg {
    /// Its name, its id or the beginning of that; `clawmux jobs` lists them
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
}

/// `job run`
#[derive(Args, Debug)]
pub(crate) struct RunJob {
    #[command(flatten)]
    pub(crate) job: JobArg,
    /// Start it and do not wait
    #[arg(long)]
    pub(crate) no_wait: bool,
}
