//! How the daemon is: every part is asked how it is, at most once a second however many ask, and now and
//! then though nobody does, so that who subscribed to it is told when something changes.

use std::sync::Arc;
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::*;
use clawmux_core::daemon::announcement::Announcement;
use clawmux_core::daemon::command::DaemonReply;
use clawmux_core::daemon::health::{Condition, Figures, Part, Report};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::request::reply::Reply;
use clawmux_core::time::Timestamp;
use serde_json::Value;

use super::{Daemon, answer};
use crate::hub::{Announce, Connected};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::runtime::observe::{Observe, Observed};
use crate::session_supervisor::{CountSessions, Sessions};

/// How old a report may be.
const FRESH: Duration = Duration::from_secs(1);
/// How often it is looked though nobody asks.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// How long a part may take to say how it is.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What was last seen.
#[derive(Default)]
pub(super) struct Health {
    report: Option<Arc<Report>>,
    /// Those who wait for the next.
    waiting: Vec<Asker>,
    is_looking: bool,
}

impl Health {
    /// How many wait for the next report.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Daemon {
    /// Answers how the daemon is.
    pub(super) fn tell_health(&mut self, asker: Asker, ctx: &mut Context<Self>) {
        let fresh = self.health.report.as_ref().filter(|report| clock::now().since(report.at) < FRESH);
        match fresh.cloned() {
            Some(report) => {
                // What is counted is as of now: whoever has just come finds himself among them.
                let (hub, sessions) = (self.setup.hub.clone(), self.setup.sessions.clone());
                answer(ctx, asker, async move {
                    let connections = within(ask(&hub, Connected)).await? as u64;
                    let sessions = within(ask(&sessions, CountSessions)).await?.awake as u64;
                    Ok(DaemonReply::Health(Arc::new(Report {
                        sessions,
                        connections,
                        ..Report::clone(&report)
                    })))
                });
            }
            None => {
                self.health.waiting.push(asker);
                self.look_at_health(ctx);
            }
        }
    }

    /// Asks every part.
    pub(super) fn look_at_health(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.health.is_looking, true) {
            return;
        }
        let (store, sandbox) = (self.setup.store.clone(), self.setup.sandbox.clone());
        let (providers, hub) = (self.setup.providers.clone(), self.setup.hub.clone());
        let (sessions, embedder) = (self.setup.sessions.clone(), self.setup.embedder.clone());
        let look = async move {
            futures::join!(
                observed(&store),
                observed(&providers),
                observed(&sandbox),
                observed(&embedder),
                within(ask(&sessions, CountSessions)),
                within(ask(&hub, Connected))
            )
        };
        ctx.spawn(look.into_actor(self).map(
            |(store, providers, sandbox, embedder, sessions, connected), operator, _| {
                let providers = (&providers, &embedder);
                let report = operator.report(&store, providers, &sandbox, &sessions, connected);
                operator.looked_at_health(report);
            },
        ));
    }

    fn report(
        &self,
        store: &Result<Value, Error>,
        (providers, embedder): (&Result<Value, Error>, &Result<Value, Error>),
        sandbox: &Result<Value, Error>,
        sessions: &Result<Sessions, Error>,
        connected: Result<usize, Error>,
    ) -> Report {
        let at = clock::now();
        let count = |name: &str| store.as_ref().map_or(0, |state| state[name].as_u64().unwrap_or(0));
        let parts = vec![
            part("store", at, store, |state| {
                state["fault"].as_str().map(str::to_owned).into_iter().collect()
            }),
            part("providers", at, providers, |state| {
                let without_key = |agent| format!("agent {agent} has no API key for its provider");
                let failing = names(&state["failing"]).map(str::to_owned);
                let embedder = embedder.as_ref().ok().and_then(|state| state["wrong"].as_str());
                let without_key = names(&state["agents_without_key"]).map(without_key);
                without_key.chain(failing).chain(embedder.map(str::to_owned)).collect()
            }),
            part("plugins", at, sandbox, |state| {
                let failed =
                    names(&state["plugins_not_loaded"]).map(|name| format!("plugin {name} can't be loaded"));
                let fell = names(&state["plugins_out_of_order"])
                    .map(|name| format!("plugin {name} crashed too often"));
                failed.chain(fell).collect()
            }),
            part("sessions", at, sessions, |sessions| {
                let drains = || "the daemon drains: no new prompts are taken".to_owned();
                (!sessions.take_prompts).then(drains).into_iter().collect()
            }),
            part("hub", at, &connected, |_| Vec::new()),
        ];
        Report {
            at,
            started: self.started,
            sessions: sessions.as_ref().map_or(0, |sessions| sessions.awake as u64),
            connections: *connected.as_ref().unwrap_or(&0) as u64,
            parts,
            figures: Figures {
                sessions_made: count("sessions_made"),
                tokens: count("tokens_used"),
                completed: count("runs_completed"),
                failed: count("runs_failed"),
                timed: count("runs_timed"),
                response_ms: count("runs_response_ms"),
            },
        }
    }

    fn looked_at_health(&mut self, report: Report) {
        let report = Arc::new(report);
        self.health.is_looking = false;
        let last = self.health.report.replace(report.clone());
        self.setup.condition.set(Some(report.condition()));
        if last.is_none_or(|last| report.differs(&last)) {
            // Who does not hear of it now hears of the next change, and can ask.
            let _ = self.setup.hub.try_send(Announce(Arc::new(Announcement::Report(report.clone()))));
        }
        for asker in std::mem::take(&mut self.health.waiting) {
            asker.reply(Ok(Reply::Daemon(DaemonReply::Health(report.clone()))));
        }
    }
}

/// A part, by what it says of itself.
fn part<T>(
    name: &'static str,
    at: Timestamp,
    state: &Result<T, Error>,
    errors: impl FnOnce(&T) -> Vec<String>,
) -> Part {
    match state {
        Ok(state) => Part::running(name, at).degraded_by(errors(state)),
        Err(error) => Part {
            condition: Condition::Error,
            errors: vec![error.message.clone()],
            ..Part::running(name, at)
        },
    }
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

async fn observed<A>(actor: &Addr<A>) -> Result<Value, Error>
where
    A: Actor + Handler<Observe>,
    A::Context: ToEnvelope<A, Observe>,
    Observe: Message<Result = Observed>,
{
    within(ask(actor, Observe)).await.map(|observed| observed.state)
}

async fn within<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(|_| {
        let seconds = TIMEOUT.as_secs();
        Err(ErrorCode::Timeout.error(format!("it does not answer for {seconds} s")))
    })
}
