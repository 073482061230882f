//! `clawmux cluster`: how the store of a home begins a cluster or leaves it, and whether it is what the log says, where no
//! daemon runs; what a daemon says of its cluster; and a cluster to try out.

#[cfg(feature = "nats")]
mod beginning;
mod demo;
#[cfg(feature = "nats")]
mod progress;
mod running;
#[cfg(feature = "nats")]
mod verifying;

use clawmux_actors::store::membership::{held, leave};
use clawmux_core::cluster::base::Held;
use clawmux_core::config;
use serde_json::json;

use super::amount::grouped;
use super::{alone, print};
use crate::cli::{Agreed, ClusterCommand, Global, Rebuild};
use crate::exit::{CONFIG, FAILED, Failure};
use crate::settings::{self, Settings};
use crate::{answer::Members as _, question};

/// Runs `cluster`.
///
/// # Errors
/// Status 1 if a daemon runs, it can't be done, or the answer is no; 2 if it has to ask and there is no terminal; 64 if
/// no cluster is configured.
pub(crate) fn run(global: &Global, command: &ClusterCommand) -> Result<(), Failure> {
    let settings = || settings::read(global, &[]);
    match command {
        ClusterCommand::Running(command) => running::run(global, command),
        ClusterCommand::Init => init(global, &settings()?),
        ClusterCommand::Leave(agreed) => leaves(global, &settings()?, agreed),
        ClusterCommand::Rebuild(options) => rebuild(global, &settings()?, options),
        ClusterCommand::Verify => verify(global, &settings()?),
        ClusterCommand::Demo(demo) => demo::run(global, demo),
    }
}

#[cfg(feature = "nats")]
fn init(global: &Global, settings: &Settings) -> Result<(), Failure> {
    beginning::init(global, settings, configured(settings)?)
}

#[cfg(feature = "nats")]
fn rebuild(global: &Global, settings: &Settings, options: &Rebuild) -> Result<(), Failure> {
    beginning::rebuild(global, settings, configured(settings)?, options)
}

#[cfg(feature = "nats")]
fn verify(global: &Global, settings: &Settings) -> Result<(), Failure> {
    verifying::verify(global, settings, configured(settings)?)
}

#[cfg(not(feature = "nats"))]
fn init(_: &Global, settings: &Settings) -> Result<(), Failure> {
    configured(settings).and_then(|_| Err(built_without()))
}

#[cfg(not(feature = "nats"))]
fn rebuild(_: &Global, settings: &Settings, _: &Rebuild) -> Result<(), Failure> {
    configured(settings).and_then(|_| Err(built_without()))
}

#[cfg(not(feature = "nats"))]
fn verify(_: &Global, settings: &Settings) -> Result<(), Failure> {
    configured(settings).and_then(|_| Err(built_without()))
}

#[cfg(not(feature = "nats"))]
fn built_without() -> Failure {
    Failure::new(
        FAILED,
        "this clawmux was built without NATS (cargo feature `nats`): it can't be in a cluster",
    )
}

fn configured(settings: &Settings) -> Result<&config::Cluster, Failure> {
    settings.config.cluster.as_ref().ok_or_else(|| {
        let why = "no cluster is configured: name its servers in [cluster] of gateway.toml";
        Failure::new(CONFIG, why)
    })
}

fn leaves(global: &Global, settings: &Settings, agreed: &Agreed) -> Result<(), Failure> {
    let _claim = alone::claim(&settings.home)?;
    let store = &settings.config.store.path;
    let Held::Replica(replica) = held(store)? else {
        let why = format!("the store {} is of no cluster: there is nothing to leave", store.display());
        return Err(Failure::new(FAILED, why));
    };
    if !agreed.yes {
        let said = format!(
            "The store {} is of the cluster {}, up to record {} of its log. It goes on alone from there; to join the \
             cluster again it has to be moved away first.",
            store.display(),
            replica.cluster,
            grouped(replica.at.applied)
        );
        question::agree(&said, "Leave the cluster?", "Give --yes to leave it", "nothing was changed")?;
    }
    leave(store)?;
    let left = json!({
        "cluster": replica.cluster.as_str(),
        "generation": replica.at.generation,
        "applied": replica.at.applied,
        "store": store.display().to_string(),
    });
    let advice = match settings.config.cluster {
        Some(_) => ": remove [cluster] from the configuration before you start the daemon",
        None => "",
    };
    print::answer(global, &left, |left| format!("the store {} goes on alone{advice}", left.text("store")));
    Ok(())
}
