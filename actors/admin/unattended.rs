//! The methods that only read, where no daemon runs: answered from the store, which is left as it is.

use clawmux_core::auth::Principal;
use clawmux_core::config::Config;
use clawmux_core::error::{Error, ErrorCode};
use serde_json::Value;

use super::{session, sessions, tokens, usage};
use crate::ask::ask;
use crate::store::{self, Store};

/// Answers `admin.sessions`, `admin.usage`, `admin.tokens`, `admin.session.show` or `admin.session.export` from the store of this
/// configuration.
///
/// # Errors
/// As the method's, and [`Store::start_reading`]'s.
pub async fn read_without_daemon(config: &Config, method: &str, params: &Value) -> Result<Value, Error> {
    let store = Store::start_reading(config.store.path.clone()).await?;
    let by = Principal::socket();
    let answer = match method {
        "admin.sessions" => sessions::of_store(&store, params).await,
        "admin.usage" => usage::of_store(&store, config, params).await,
        "admin.tokens" => tokens::of_store(&store, config, params).await,
        "admin.session.show" => session::shown(&store, &by, params).await,
        "admin.session.export" => session::given(&store, &by, params).await,
        other => Err(ErrorCode::Unavailable.error(format!("{other} needs a running daemon"))),
    };
    ask(&store, store::Stop).await.and_then(|stopped| stopped).and(answer)
}
