//! What operators ask for where no daemon runs: read from the store, which is left as it is, or, of credentials,
//! decided there.

use std::path::Path;

use actix::Addr;
use clawmux_core::auth::Principal;
use clawmux_core::auth::token::TokenCommand;
use clawmux_core::command::Command;
use clawmux_core::config::{Budgets, Config};
use clawmux_core::dialect::admin;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::operator::{OperatorCommand, OperatorReply, UsageReport};
use clawmux_core::reply::{Budget, Period, Reply};
use serde_json::Value;

use super::{sessions, spent};
use crate::ask::ask;
use crate::store::{self, Store};
use crate::tokens;

/// Answers a method of the operator's protocol that only reads sessions, usage or credentials from the store of
/// this configuration.
///
/// # Errors
/// As the method's, and [`Store::start_reading`]'s.
pub async fn read_without_daemon(config: &Config, method: &str, params: &Value) -> Result<Value, Error> {
    let store = Store::start_reading(config.store.path.clone()).await?;
    let answer = admin::answer(method, params.clone(), |command| read(&store, config, method, command)).await;
    ask(&store, store::Stop).await.and_then(|stopped| stopped).and(answer)
}

async fn read(store: &Addr<Store>, config: &Config, method: &str, command: Command) -> Result<Reply, Error> {
    let needs_daemon = || ErrorCode::Unavailable.error(format!("{method} needs a running daemon"));
    let command = match command {
        Command::Token(command) if *command == TokenCommand::List => {
            return Ok(Reply::Token(Box::new(tokens::of_store(store, config, *command).await?)));
        }
        Command::Operator(command) => *command,
        _ => return Err(needs_daemon()),
    };
    let reply = match command {
        OperatorCommand::Sessions { limit, prefix, before } => {
            let (listed, has_more) = sessions::list(store, limit, prefix, before).await?;
            OperatorReply::Sessions { listed, has_more, awake: None }
        }
        OperatorCommand::FindSession(text) => sessions::find(store, &Principal::socket(), &text).await?,
        OperatorCommand::Events { session, after } => {
            OperatorReply::Events(sessions::events(store, session, after).await?)
        }
        OperatorCommand::Export { session, after } => {
            OperatorReply::Events(store::exported(store, &session, after).await?)
        }
        OperatorCommand::Usage { by, days, limit } => {
            let report = spent(store, by, days, limit).await?;
            let Budgets { session, daily, monthly } = config.budgets;
            let budgets = [
                (Period::Session, session, 0),
                (Period::Daily, daily, report.totals.day.total()),
                (Period::Monthly, monthly, report.totals.month.total()),
            ];
            let budget = |(period, limit, used)| Budget { period, limit, used, reserved: 0 };
            OperatorReply::Usage(UsageReport { budgets: budgets.map(budget).into(), ..report })
        }
        _ => return Err(needs_daemon()),
    };
    Ok(Reply::Operator(Box::new(reply)))
}

/// Answers a method of the operator's protocol about credentials for a home on which no daemon runs.
///
/// # Errors
/// As the method's, and [`tokens::without_daemon`]'s.
pub async fn tokens_without_daemon(
    home: &Path,
    config: &Config,
    method: &str,
    params: &Value,
) -> Result<Value, Error> {
    let decide = async |command| match command {
        Command::Token(command) => {
            tokens::without_daemon(home, config, *command).await.map(|reply| Reply::Token(Box::new(reply)))
        }
        _ => Err(ErrorCode::Unavailable.error(format!("{method} needs a running daemon"))),
    };
    admin::answer(method, params.clone(), decide).await
}
