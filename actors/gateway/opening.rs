//! How the store is opened: alone, or as part of a cluster.

use actix::Actor as _;
use clawmux_core::config::Config;
use clawmux_core::error::Error;
#[cfg(not(feature = "nats"))]
use clawmux_core::error::ErrorCode;

use crate::in_cluster::Opened;
use crate::store::Store;

/// Opens the store, and, where that is configured, joins the cluster with it: then it has all that the log had.
///
/// # Errors
/// As [`Store::open`]'s, or why the cluster can't be joined.
pub(super) async fn open(config: &Config) -> Result<Opened, Error> {
    let path = config.store.path.clone();
    match &config.cluster {
        None => {
            let store = Store::open(path).await?;
            let log_writer = store.log_writer();
            Ok(Opened { store: store.start(), log_writer, cluster: None })
        }
        #[cfg(feature = "nats")]
        Some(cluster) => crate::cluster::joining::open(cluster, path).await,
        #[cfg(not(feature = "nats"))]
        Some(_) => Err(ErrorCode::Unavailable.error(
            "this clawmux was built without NATS (cargo feature `nats`): it can't join the cluster of [cluster]; \
             take that section out, or build it with NATS",
        )),
    }
}
