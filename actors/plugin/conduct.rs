//! Seeing one call through: its guest runs on a thread of the pool, and is ended where it takes too long or
//! nobody waits for it any more.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use clawmux_core::tools::audit::CallUsage;
use clawmux_core::tools::plugin::InputSchema;
use futures::future::{Either, select};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::What;
use super::answer::Answer;
use super::calling::WAIT_MAX;
use super::host_side::HostSide;
use super::load::LOAD_MAX;
use crate::sandbox::cache::Cache;
use crate::sandbox::engine::{Engine, Failure, Interrupt};
use crate::sandbox::host::call::Asking;
use crate::sandbox::source::Package;

/// What a call that was called off is recorded with.
const ABORTED: &str = "aborted";

/// When patience with a guest ends that was asked to end.
const FORCE_AFTER: Duration = Duration::from_millis(32);

/// A call on its way to a thread.
pub(super) struct Job {
    pub(super) package: Arc<Package>,
    pub(super) cache: Arc<Cache>,
    /// None where one is yet to be made.
    pub(super) engine: Option<Engine>,
    /// What is called.
    pub(super) what: What,
    /// What the input of a tool has to fit.
    pub(super) schema: Option<Arc<InputSchema>>,
    /// Tells who asked that it begins.
    pub(super) begun: oneshot::Sender<()>,
    /// Gone where the call was called off.
    pub(super) wanted: Weak<()>,
    /// Where the guest's questions to the host go.
    pub(super) asking: Asking,
    /// Takes what can end the guest.
    pub(super) entered: oneshot::Sender<Interrupt>,
    pub(super) done: oneshot::Sender<Done>,
}

impl Job {
    /// Makes the call. Blocks.
    pub(super) fn run(self) {
        let Self { package, cache, engine, what, schema, begun, wanted, asking, entered, done } = self;
        // Nobody listens where the actor is gone, or the call was given up.
        if done.is_closed() || begun.send(()).is_err() {
            let _ = done.send(Done::uncalled(engine, false, Failure::Interrupted));
            return;
        }
        if let (What::Tool { input, .. }, Some(schema)) = (&what, &schema)
            && let Err(why) = schema.check(input)
        {
            let _ = done.send(Done::uncalled(engine, false, Failure::Misfit(why)));
            return;
        }
        let compiled = engine.is_none();
        let engine = match engine {
            Some(engine) => Ok(engine),
            None => Engine::load(&package, &cache, &|| wanted.strong_count() > 0).map(|(engine, _)| engine),
        };
        let over = match engine {
            Ok(mut engine) => {
                let result = engine.call(what.export(), what.bytes(), Some(asking), |handle| {
                    let _ = entered.send(handle);
                });
                let usage = engine.usage().clone();
                Done { engine: Some(engine), compiled, result, usage }
            }
            Err(why) => Done::uncalled(None, compiled, Failure::Trapped(why.to_string())),
        };
        let _ = done.send(over);
    }
}

/// What comes back from the pool.
pub(super) struct Done {
    engine: Option<Engine>,
    compiled: bool,
    result: Result<Vec<u8>, Failure>,
    usage: CallUsage,
}

impl Done {
    /// The guest was not entered.
    fn uncalled(engine: Option<Engine>, compiled: bool, why: Failure) -> Self {
        Self { engine, compiled, result: Err(why), usage: CallUsage::default() }
    }
}

/// What is known when a call is over and its thread is free.
pub(super) struct Ended {
    /// The engine, where it may be used again.
    pub(super) engine: Option<Engine>,
    pub(super) compiled: bool,
    /// The beginning of what it was answered, where it failed.
    pub(super) error: Option<String>,
    pub(super) cut_off: bool,
    /// Whether the plugin spoiled it: it trapped, or went over a limit.
    pub(super) is_spoiled: bool,
    pub(super) took: Duration,
}

/// Answers a call at its end or its time limit, or ends it where nobody waits for it any more, and then waits
/// until the thread has let go of the guest. Meanwhile `host` answers what the guest asks.
pub(super) async fn conduct(
    package: Arc<Package>,
    host: HostSide,
    mut entered: oneshot::Receiver<Interrupt>,
    mut done: oneshot::Receiver<Done>,
    mut reply: oneshot::Sender<Answer>,
    is_tool: bool,
) -> Ended {
    let (name, limits) = (&package.name, package.limits);
    let tell = |reply: oneshot::Sender<Answer>, answer: Answer| {
        let error = answer.failure();
        let _ = reply.send(answer);
        error
    };
    let Ok(interrupt) = timeout(WAIT_MAX + LOAD_MAX, &mut entered).await else {
        let error = tell(reply, Answer::error(format!("plugin {name} could not be compiled in time")));
        let compiled = release(entered.await.ok(), &mut done).await;
        return Ended {
            engine: None,
            compiled,
            error,
            cut_off: true,
            is_spoiled: false,
            took: limits.timeout,
        };
    };
    let entered_at = Instant::now();
    let too_long = format!("plugin {name} took longer than {} ms", limits.timeout.as_millis());
    let over = {
        let cut_off = pin!(async {
            if interrupt.is_err() {
                // Never entered: `done` knows why.
                return pending().await;
            }
            match select(pin!(sleep(limits.timeout)), pin!(reply.closed())).await {
                Either::Left(_) => too_long.as_str(),
                Either::Right(_) => ABORTED,
            }
        });
        let answering = pin!(host.answer());
        match select(&mut done, select(cut_off, answering)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right((Either::Left((why, _)), _)) => Err(why),
            Either::Right((Either::Right((never, _)), _)) => match never {},
        }
    };
    let took = entered_at.elapsed();
    let Done { engine, compiled, result, usage } = match over {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => {
            let error = tell(reply, Answer::error(format!("plugin {name} crashed in the sandbox")));
            return Ended { engine: None, compiled: false, error, cut_off: false, is_spoiled: true, took };
        }
        Err(why) => {
            let (error, is_spoiled) = (tell(reply, Answer::error(why)), why != ABORTED);
            let compiled = release(interrupt.ok(), &mut done).await;
            let took = entered_at.elapsed();
            return Ended { engine: None, compiled, error, cut_off: true, is_spoiled, took };
        }
    };
    let is_spoiled = match &result {
        Ok(_) | Err(Failure::Reported(_) | Failure::Misfit(_)) => false,
        Err(Failure::Interrupted) => !reply.is_closed(),
        Err(_) => true,
    };
    let answer = match result {
        Ok(output) if is_tool => Answer::of_output(&output),
        Ok(output) => Answer::plain(&output),
        Err(Failure::OutOfFuel) => {
            Answer::error(format!("plugin {name} ran out of fuel (limit {})", limits.fuel))
        }
        Err(Failure::OutOfMemory) => {
            Answer::error(format!("plugin {name} ran out of memory (limit {} MiB)", limits.memory_mb))
        }
        Err(Failure::Oversize(bytes)) => {
            let limit = limits.output_bytes;
            Answer::error(format!("plugin {name} answered with {bytes} bytes (limit {limit})"))
        }
        Err(Failure::Interrupted) if reply.is_closed() => Answer::error(ABORTED),
        Err(Failure::Interrupted) => Answer::error(too_long),
        Err(failure) => Answer::error(format!("plugin {name} {failure}")),
    };
    let error = tell(reply, Answer { usage, ..answer });
    // The runtime's own, later time limit may be about to strike an engine this slow.
    let engine = engine.filter(|_| took < limits.timeout);
    Ended { engine, compiled, error, cut_off: false, is_spoiled, took }
}

/// Ends the guest and waits until its thread is free; fuel bounds what nothing else ends, such as a
/// start function.
async fn release(interrupt: Option<Interrupt>, done: &mut oneshot::Receiver<Done>) -> bool {
    let interrupt = interrupt.map(Arc::new);
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(interrupt) = &interrupt {
            interrupt.ask();
            if pause >= FORCE_AFTER {
                force(Arc::clone(interrupt)).await;
            }
        }
        match tokio::time::timeout(pause, &mut *done).await {
            Ok(done) => return done.is_ok_and(|done| done.compiled),
            Err(_) => pause = (pause * 2).min(Duration::from_millis(500)),
        }
    }
}

/// On a thread of its own: those of the pool may all be waiting for just this.
async fn force(interrupt: Arc<Interrupt>) {
    let (sender, forced) = oneshot::channel();
    let spawned = std::thread::Builder::new().name("sandbox-force".to_owned()).spawn(move || {
        interrupt.force();
        let _ = sender.send(());
    });
    match spawned {
        Ok(_) => {
            let _ = forced.await;
        }
        Err(error) => tracing::warn!(%error, "no thread to end a call with, trying again"),
    }
}
