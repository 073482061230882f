//! Asking a model for facts, within the tokens that learning has for a day.

use actix::Addr;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{RunId, SessionKey};
use clawmux_core::learning::Exchange;
use clawmux_core::learning::asked::{self, OUTPUT_TOKENS, Taken};
use clawmux_core::memory::Fact;
use clawmux_core::provider::estimate_tokens;

use super::Asked;
use crate::provider_supervisor::{Chat, ProviderSupervisor};
use crate::runtime::ask::{ask, gone};
use crate::runtime::clock;
use crate::store::{ReadLearningTokens, SpendOnLearning, Store};

/// What a call takes besides what is said: its instructions and form, estimated in tokens.
const ENVELOPE_TOKENS: u64 = 600;

/// The facts that a model finds; none where today's tokens are spent.
///
/// # Errors
/// Where the model can't be asked or answers something else.
pub(super) async fn facts(
    store: &Addr<Store>,
    providers: &Addr<ProviderSupervisor>,
    (session, run): (&SessionKey, &RunId),
    exchange: &Exchange,
    asked: Asked,
) -> Result<Vec<Fact>, Error> {
    let Asked { agent, models, account, tokens_a_day, timeout } = asked;
    let at = clock::now();
    let said = (exchange.prompt.len() + exchange.answer.len()) as u64;
    let reserved = estimate_tokens(said) + ENVELOPE_TOKENS + u64::from(OUTPUT_TOKENS);
    if tokens_a_day > 0 {
        let spent = ask(store, ReadLearningTokens(at)).await??;
        if spent.saturating_add(reserved) > tokens_a_day {
            tracing::info!(%run, spent, tokens_a_day, "today's memory.learn_tokens are spent: nothing is learned");
            return Ok(Vec::new());
        }
    }
    let count = async |tokens: i64| ask(store, SpendOnLearning { at, tokens }).await?;
    // Before it is asked: after a crash it counts as spent.
    count(reserved.cast_signed()).await?;
    let chat = Chat {
        session: session.clone(),
        run: run.clone(),
        agent,
        models,
        model: None,
        request: asked::request(exchange),
        account,
    };
    let answer = async {
        let mut deltas = providers.send(chat).await.map_err(|_| gone::<ProviderSupervisor>())??;
        match deltas.text(asked::REPLY_BYTES_MAX).await? {
            (text, true) => Ok((text, deltas.usage().total())),
            (_, false) => Err(ErrorCode::Provider.error("the answer is longer than was asked for")),
        }
    };
    let late = || ErrorCode::Timeout.error(format!("the model found no facts within {timeout:?}"));
    let (text, used) = tokio::time::timeout(timeout, answer).await.map_err(|_| late())??;
    count(used.cast_signed() - reserved.cast_signed()).await?;
    let Taken { facts, dropped } = asked::read(&text, exchange)
        .map_err(|why| ErrorCode::Provider.error(format!("the model's facts can't be read: {why}")))?;
    for why in dropped {
        tracing::info!(%run, why, "a fact that the model found is dropped");
    }
    Ok(facts)
}
