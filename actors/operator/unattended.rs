//! What operators ask for where no daemon runs: read from the store, which is left as it is, or, of credentials,
//! decided there.

use std::path::Path;

use actix::Addr;
use clawmux_core::access::token::TokenCommand;
use clawmux_core::config::Config;
use clawmux_core::daemon::command::{DaemonCommand, DaemonReply};
use clawmux_core::daemon::operator::{ExportEvents, OperatorCommand, OperatorReply, UsageReport};
use clawmux_core::dialect::admin;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::principal::Principal;
use clawmux_core::provider::meter::{Meter, day_start, month_start};
use clawmux_core::provider::tally::Spent;
use clawmux_core::request::command::Command;
use clawmux_core::request::reply::Reply;
use clawmux_core::skill::AgentSkills;
use serde_json::{Value, json};

use super::sessions;
use super::{caches, spent};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::skills;
use crate::store::{self, ReadSpent, Store, UsageSince};
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
        Command::Token(command @ TokenCommand::List(_)) => {
            return tokens::of_store(store, config, command).await.map(Reply::Token);
        }
        Command::Operator(command) => command,
        _ => return Err(needs_daemon()),
    };
    let reply = match command {
        OperatorCommand::Sessions(asked) => OperatorReply::Sessions(sessions::list(store, asked).await?),
        OperatorCommand::FindSession(asked) => {
            OperatorReply::Found(sessions::find(store, &Principal::socket(), &asked.key).await?)
        }
        OperatorCommand::Events(asked) => OperatorReply::Events(sessions::events(store, asked).await?),
        OperatorCommand::Export(ExportEvents { session, after }) => {
            OperatorReply::Events(store::exported(store, &session, after).await?)
        }
        OperatorCommand::Usage(asked) => {
            let report = spent(store, asked).await?;
            let now = clock::now();
            let since = UsageSince { day_start: day_start(now), month_start: month_start(now) };
            let spent = ask(store, ReadSpent(since)).await??;
            let budgets = Meter::new(&config.budgets, spent, now).status(now, Some(Spent::default()));
            let budgets_of_each = config.budgets.words_of_each();
            OperatorReply::Usage(UsageReport { budgets, budgets_of_each, ..report })
        }
        OperatorCommand::Caches(asked) => OperatorReply::Caches(caches(store, asked).await?),
        _ => return Err(needs_daemon()),
    };
    Ok(Reply::Operator(reply))
}

/// Answers `admin.skills` where no daemon runs: it takes no store. Blocks.
///
/// # Errors
/// As the method's.
pub async fn skills_without_daemon(config: &Config) -> Result<Value, Error> {
    let agents: Vec<AgentSkills> =
        config.agents.values().map(|agent| agent.skills(config.memory.context_tokens)).collect();
    let look = async |command| match command {
        Command::Daemon(DaemonCommand::ListSkills(_)) => {
            Ok(Reply::Daemon(DaemonReply::Skills(Box::new(skills::list(&agents)))))
        }
        _ => Err(ErrorCode::Internal.error("no such question")),
    };
    admin::answer("admin.skills", json!({}), look).await
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
        Command::Token(command) => tokens::without_daemon(home, config, command).await.map(Reply::Token),
        _ => Err(ErrorCode::Unavailable.error(format!("{method} needs a running daemon"))),
    };
    admin::answer(method, params.clone(), decide).await
}
