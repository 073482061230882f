//! A store that follows the log of a cluster, which begins with the first one that comes.

use std::path::Path;

use clawmux_actors::cluster::beginning::{init, settle};
use clawmux_actors::cluster::engine::{Engine, EngineSettings, Site};

/// Has the store at this path follow the log of the cluster, which is begun with it where there is none.
pub(crate) async fn joined(settings: &EngineSettings, store: &Path) -> Engine {
    let site = Site::connect(settings).await.unwrap();
    if site.base().await.unwrap().is_none() {
        init(&site, store, &mut |_| Ok(())).await.unwrap();
    }
    let engine = site.open().await.unwrap();
    settle(&engine, store).await.unwrap();
    engine
}
