//! Asking another actor, with a deadline.

use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::request::ask::Ask;

/// A command of a client, asked by another actor and answered with its own reply.
#[derive(Clone, Debug)]
pub struct Typed<C>(pub C);

impl<C: Ask + 'static> Message for Typed<C> {
    type Result = Result<C::Reply, Error>;
}

/// How long an actor may take to answer another. What takes longer by its nature (a model, a tool)
/// has deadlines of its own and is not asked this way.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);

/// Asks `actor`.
///
/// # Errors
/// `Unavailable` where it is not there, `Timeout` where it does not answer in time.
pub(crate) async fn ask<A, M>(actor: &Addr<A>, message: M) -> Result<M::Result, Error>
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: Message + Send + 'static,
    M::Result: Send,
{
    match tokio::time::timeout(ASK_TIMEOUT, actor.send(message)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(gone::<A>()),
        Err(_) => {
            let seconds = ASK_TIMEOUT.as_secs();
            Err(ErrorCode::Timeout.error(format!("the {} did not answer in {seconds} s", name::<A>())))
        }
    }
}

/// That an actor of this kind is not there.
pub(crate) fn gone<A>() -> Error {
    ErrorCode::Unavailable.error(format!("the {} is not there: try again", name::<A>()))
}

fn name<A>() -> String {
    let path = std::any::type_name::<A>();
    let mut words = String::new();
    for c in path.rsplit("::").next().unwrap_or(path).chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}
