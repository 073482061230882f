//! Running the daemon: in the foreground, or inside another command.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Addr, System};
use clawmux_actors::configuration::Reload;
use clawmux_actors::gateway::{self, Gateway, GatewaySetup, Running, Stop};
use clawmux_actors::runtime::clock;
use clawmux_actors::runtime::supervision::Restarts;
use clawmux_actors::sandbox::compiler::Compiler;
use clawmux_core::access::Secret;
use clawmux_core::access::auth::{Auth, LoopbackPolicy};
use clawmux_core::config::Config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::ids::AgentId;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{CONFIG, FAILED, Failure};
use crate::logging;
use crate::settings::Settings;
use crate::systemd::{Current, ServiceManager};
use crate::terminal;

/// How long the end waits for threads that are blocked.
const BLOCKED_MAX: Duration = Duration::from_secs(2);

/// `clawmux serve`: runs until SIGTERM or Ctrl-C; a second one ends it at once. Should a part of it
/// fail that the rest can't do without, all of it is started anew from the log, a few times. `manager`
/// is told what becomes of it.
///
/// # Errors
/// Where it can't start, or can't go on.
pub(crate) fn serve(settings: Settings, manager: &ServiceManager) -> Result<(), Failure> {
    to_its_end(async move {
        let unable = |error: std::io::Error| Failure::new(FAILED, format!("can't wait for signals: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(unable)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(unable)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(unable)?;
        let current = Current::default();
        actix::spawn(manager.clone().feed_watchdog(current.clone()));
        actix::spawn(manager.clone().tell_load(current.clone()));
        let mut config = settings.config.clone();
        let mut restarts = Restarts::default();
        loop {
            let started = tokio::select! {
                started = start(&settings, config.clone(), false) => started,
                never = manager.joining(), if config.cluster.is_some() => match never {},
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
            };
            if started.is_err() {
                // Actors that have begun and not run yet do so as they are dropped, and then need a runtime.
                actix::clock::sleep(Duration::from_millis(20)).await;
            }
            let Running { gateway, addresses, config: running, mut failed, .. } = started?;
            current.replace(Some(gateway.clone()));
            announce(&settings, &config, &addresses);
            manager.ready().await;
            let reloads = async {
                while hang_up.recv().await.is_some() {
                    manager.reload(reload(&gateway)).await;
                }
                std::future::pending().await
            };
            let outcome = tokio::select! {
                () = reloads => Ok(()),
                _ = terminate.recv() => Ok(()),
                _ = interrupt.recv() => Ok(()),
                why = &mut failed => Err(why.unwrap_or_else(|_| gateway_gone())),
            };
            tracing::info!("stopping: running steps may finish; a second signal stops at once");
            if outcome.is_ok() {
                manager.stopping(gateway::stops_within(&running.get())).await;
            }
            tokio::select! {
                _ = gateway.send(Stop) => {}
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
            }
            current.replace(None);
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) if restarts.allow(Instant::now()) => {
                    tracing::error!(%error, "restarting the daemon");
                    // The last good one; where clients know it, also if any free port was asked for.
                    config = (*running.get()).clone();
                    config.gateway.listen = addresses;
                }
                Err(error) => return Err(Failure::from(error)),
            }
        }
    })
}

/// Runs this in a system of its own. When it is over, so is the system: a thread that something blocks,
/// such as a file system that does not answer, is left behind a moment later.
///
/// # Errors
/// Where there can be no system, and as its own.
fn to_its_end<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(FAILED, format!("can't start: {error}")))?;
    let runtime = Arc::new(runtime);
    let outcome = System::with_tokio_rt(|| runtime.clone()).block_on(work);
    if let Some(runtime) = Arc::into_inner(runtime) {
        runtime.shutdown_timeout(BLOCKED_MAX);
    }
    outcome
}

/// SIGHUP: the daemon goes over to what stands in its files, or stays as it is where that is bad; what
/// came of it is in the log. One at a time, and those that come meanwhile are one.
async fn reload(gateway: &Addr<Gateway>) {
    // What became of it is told by whoever did it.
    let _ = gateway.send(Reload { by: "SIGHUP".into() }).await;
}

/// The ready line.
fn announce(settings: &Settings, config: &Config, addresses: &[SocketAddr]) {
    let listening: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    terminal::say(&format!(
        "clawmux {} ready: {} (home {}, {})",
        env!("CARGO_PKG_VERSION"),
        listening.join(", "),
        settings.home.display(),
        banner(config),
    ));
}

fn gateway_gone() -> Error {
    ErrorCode::Internal.error("the gateway stopped unexpectedly: see the log")
}

/// What answers, so that a newcomer sees why no key was needed.
fn banner(config: &Config) -> String {
    let agent = config.default_agent.clone().unwrap_or_else(|| AgentId::from("none"));
    match config.agents.get(&agent).and_then(|agent| agent.models.first()) {
        Some(model) => format!("agent {agent} on {}/{}", model.provider, model.model),
        None => format!("agent {agent}"),
    }
}

async fn start(settings: &Settings, config: Config, has_own_credentials: bool) -> Result<Running, Failure> {
    // A limit on file sizes is then an error of the write, as a full disk is, and not the end of the
    // process. The handler stays when what listens to it is dropped.
    let outlived = signal(SignalKind::from_raw(libc::SIGXFSZ));
    drop(outlived.map_err(|error| Failure::new(FAILED, format!("can't outlive SIGXFSZ: {error}")))?);
    let setup = GatewaySetup {
        config: Arc::new(config),
        home: settings.home.clone(),
        socket: settings.socket.clone(),
        passed: settings.passed.clone(),
        xeno_home: settings.xeno_home.clone(),
        layers: settings.layers.clone(),
        log: logging::kept(),
        log_filter: logging::filter(),
        compiler: Compiler::child(),
        keeper: "/proc/self/exe".into(),
        has_own_credentials,
        version: env!("CARGO_PKG_VERSION"),
    };
    gateway::start(setup).await.map_err(|error| {
        // Nobody is let in, or nothing can be served, as it is configured.
        let is_configured_so = matches!(error.code, ErrorCode::InvalidRequest | ErrorCode::Forbidden);
        let status = if is_configured_so { CONFIG } else { FAILED };
        Failure::new(status, error.message)
    })
}

/// A daemon inside this process: at the Unix socket of the home, for whoever may open it. It listens on a
/// free port of loopback too, with a token nobody knows.
#[derive(Debug)]
pub(crate) struct Embedded {
    running: Running,
}

impl Embedded {
    /// Starts one. Called within the actix system of the command.
    ///
    /// # Errors
    /// Where it can't start.
    pub(crate) async fn start(settings: &Settings) -> Result<Self, Failure> {
        let random = [clock::random(), clock::random()].concat();
        let token = Secret::new(hex(&random));
        let mut config = settings.config.clone();
        config.gateway.listen = vec![([127, 0, 0, 1], 0).into()];
        config.auth =
            Auth { token: Some(token), jwt: None, loopback: LoopbackPolicy::Required, api_keys: Vec::new() };
        Ok(Self { running: start(settings, config, true).await? })
    }

    /// Stops it: what it acknowledged is on disk afterwards.
    pub(crate) async fn stop(self) {
        let _ = self.running.gateway.send(Stop).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blocks_a_thread_does_not_hold_up_the_end() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let outcome = to_its_end(async {
            drop(tokio::task::spawn_blocking(move || {
                let _ = begin.send(());
                let _ = held.recv();
            }));
            begun.await.map_err(|_| Failure::new(FAILED, "it did not begin"))
        });
        assert!(outcome.is_ok());
        assert!(release.send(()).is_ok(), "the thread is still blocked");
    }
}
