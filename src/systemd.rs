//! The service manager that started the daemon: told when it is ready, reloads and stops, how it is,
//! and that it is alive.
//!
//! It is systemd's protocol of datagrams to `$NOTIFY_SOCKET`; without that variable nothing here does
//! anything. The datagrams are sent from here, because the crate that words them does not know
//! addresses in the abstract namespace (`@...`), which `systemd-nspawn` and others use.
//!
//! **Alive** is not "the process is there": the watchdog is fed only when every arbiter and the log
//! came to something new in time ([`Pulse`]), and by the main arbiter itself. One that is blocked
//! stops it, and the service manager starts the daemon anew.
//!
//! Deliberately absent: file descriptors kept by the service manager.

use std::cell::RefCell;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix::Addr;
use clawmux_actors::gateway::{Gateway, GetLoad, Load, Pulse};
use sd_notify::NotifyState;

use crate::exit::{CONFIG, Failure};
use crate::terminal::one_line;

/// How often the service manager is told how busy the daemon is, if that has changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// How often it is told that the daemon joins its cluster.
const JOINING_INTERVAL: Duration = Duration::from_secs(20);
/// How long it may take to take a datagram.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest status, in characters.
const STATUS_CHARS_MAX: usize = 200;

/// The gateway there is at the moment; none while it is started, for the first time or anew.
pub(crate) type Current = Rc<RefCell<Option<Addr<Gateway>>>>;

/// Whoever started the daemon, and whether it wants to be told anything.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<SocketAddr>,
    /// After so long a silence the daemon counts as dead.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// As the environment names it.
    pub(crate) fn from_env() -> Self {
        let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = name.and_then(|name| match address(&name) {
            Ok(address) => Some(address),
            Err(error) => {
                tracing::warn!(?name, %error, "NOTIFY_SOCKET: the service manager can't be told anything");
                None
            }
        });
        let watchdog = sd_notify::watchdog_enabled().filter(|after| socket.is_some() && !after.is_zero());
        Self { socket, watchdog }
    }

    /// The daemon is joining its cluster, which takes as long as its store needs to catch up; said again and again.
    pub(crate) async fn joining(&self) -> Infallible {
        let micros = u32::try_from((JOINING_INTERVAL * 3).as_micros()).unwrap_or(u32::MAX);
        loop {
            let status = NotifyState::Status("joining the cluster");
            self.tell(&[NotifyState::ExtendTimeoutUsec(micros), status]).await;
            tokio::time::sleep(JOINING_INTERVAL).await;
        }
    }

    /// The daemon takes work.
    pub(crate) async fn ready(&self) {
        self.tell(&[NotifyState::Ready, NotifyState::Status("ready")]).await;
    }

    /// The daemon reloads its configuration by `reload`, and is ready again, whichever configuration
    /// it has then.
    pub(crate) async fn reload<T>(&self, reload: impl Future<Output = T>) -> T {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]).await,
            Err(error) => tracing::debug!(%error, "the clock can't be read: the reload is not announced"),
        }
        let outcome = reload.await;
        self.ready().await;
        outcome
    }

    /// The daemon stops, which may take so long.
    pub(crate) async fn stopping(&self, within: Duration) {
        let status = format!("stopping: running steps may finish, within {} s at most", within.as_secs());
        let micros = u32::try_from(within.as_micros()).unwrap_or(u32::MAX);
        let states =
            [NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros), NotifyState::Status(&status)];
        self.tell(&states).await;
    }

    /// The daemon could not start, or could not go on.
    pub(crate) fn failed(&self, failure: &Failure) {
        let errno = if failure.status == CONFIG { libc::EINVAL } else { libc::EIO };
        let status = one_line(&failure.message, STATUS_CHARS_MAX);
        let states = [NotifyState::Errno(errno.unsigned_abs()), NotifyState::Status(&status)];
        let told = self.datagram().and_then(|socket| {
            let Some(socket) = socket else { return Ok(()) };
            socket.set_write_timeout(Some(SEND_TIMEOUT))?;
            socket.send(&message(&states)).map(drop)
        });
        if let Err(error) = told {
            tracing::debug!(%error, "the service manager could not be told");
        }
    }

    /// Tells it how busy the daemon is, now and then, until the daemon ends.
    pub(crate) async fn tell_load(self, current: Current) {
        if self.socket.is_none() {
            return;
        }
        let mut told = String::new();
        loop {
            let gateway = current.borrow().clone();
            if let Some(gateway) = gateway
                && let Ok(Ok(Ok(load))) = tokio::time::timeout(STATUS_INTERVAL, gateway.send(GetLoad)).await
            {
                let status = status(load);
                // One that has just stopped has said so, which stays.
                if status != told && current.borrow().is_some() {
                    self.tell(&[NotifyState::Status(&status)]).await;
                    told = status;
                }
            }
            let is_started = !told.is_empty();
            tokio::time::sleep(if is_started { STATUS_INTERVAL } else { Duration::from_secs(1) }).await;
        }
    }

    /// Tells it that the daemon is alive as long as that is so, three times as often as it has to
    /// hear it, until the daemon ends.
    pub(crate) async fn feed_watchdog(self, current: Current) {
        let Some(limit) = self.watchdog else { return };
        let every = limit / 3;
        loop {
            let begun = Instant::now();
            let gateway = current.borrow().clone();
            if let Some(gateway) = gateway {
                match pulse(&gateway, every).await {
                    Ok(()) => self.tell(&[NotifyState::Watchdog]).await,
                    Err(why) => tracing::error!("not reporting to the watchdog: {why}"),
                }
            }
            // While there is no gateway it is being started, which has a limit: that of the watchdog.
            tokio::time::sleep(every.saturating_sub(begun.elapsed()).max(every / 10)).await;
        }
    }

    async fn tell(&self, states: &[NotifyState<'_>]) {
        let told = async {
            let Some(socket) = self.datagram()? else { return Ok(()) };
            socket.set_nonblocking(true)?;
            let socket = tokio::net::UnixDatagram::from_std(socket)?;
            let sent = tokio::time::timeout(SEND_TIMEOUT, socket.send(&message(states))).await;
            sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map(drop)
        };
        if let Err(error) = told.await {
            tracing::warn!(%error, "the service manager could not be told");
        }
    }

    /// A new one each time: the service manager may have been started anew.
    fn datagram(&self) -> io::Result<Option<UnixDatagram>> {
        let Some(address) = &self.socket else { return Ok(None) };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(address)?;
        Ok(Some(socket))
    }
}

/// Whether the daemon is alive, said within this time.
async fn pulse(gateway: &Addr<Gateway>, within: Duration) -> Result<(), String> {
    match tokio::time::timeout(within, gateway.send(Pulse { within: within * 9 / 10 })).await {
        Ok(Ok(answer)) => answer.map_err(|error| error.message),
        // Who runs the daemon is told of that and starts it anew.
        Ok(Err(_)) => Err("the gateway is gone".into()),
        Err(_) => Err("the gateway does not answer".into()),
    }
}

fn status(Load { sessions, connections, running, draining }: Load) -> String {
    let state = if draining { "draining" } else { "ready" };
    format!("{state}: sessions {sessions}, connections {connections}, running {running}")
}

fn message(states: &[NotifyState<'_>]) -> Vec<u8> {
    states.iter().map(|state| format!("{state}\n")).collect::<String>().into_bytes()
}

/// The address of a socket in the file system or, after an `@`, in the abstract namespace.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;

    use clawmux_actors::configuration::Layers;
    use clawmux_actors::gateway::{self, GatewaySetup, Stop};
    use clawmux_actors::sandbox::compiler::Compiler;
    use clawmux_core::config::Config;

    fn manager(address: SocketAddr, watchdog: Option<Duration>) -> (ServiceManager, UnixDatagram) {
        let heard = UnixDatagram::bind_addr(&address).unwrap();
        heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (ServiceManager { socket: Some(address), watchdog }, heard)
    }

    fn next(heard: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let length = heard.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[actix::test]
    async fn what_happens_is_told_in_order_over_an_abstract_socket() {
        let name = format!("@clawmux-test-{}", std::process::id());
        let (manager, heard) = manager(address(OsStr::new(&name)).unwrap(), None);
        manager.ready().await;
        manager.reload(async {}).await;
        manager.stopping(Duration::from_secs(20)).await;
        manager.failed(&Failure::new(CONFIG, "two\nlines"));
        assert_eq!(next(&heard), "READY=1\nSTATUS=ready\n");
        let reloading = next(&heard);
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        assert_eq!(next(&heard), "READY=1\nSTATUS=ready\n");
        let stopping = next(&heard);
        assert!(
            stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=20000000\nSTATUS=stopping"),
            "{stopping}"
        );
        assert_eq!(next(&heard), "ERRNO=22\nSTATUS=two lines\n");
    }

    #[actix::test]
    async fn without_a_service_manager_nothing_is_told() {
        let manager = ServiceManager::default();
        manager.ready().await;
        assert_eq!(manager.reload(async { 3 }).await, 3);
        manager.failed(&Failure::new(1, "x"));
        // Both end at once.
        manager.clone().tell_load(Current::default()).await;
        manager.feed_watchdog(Current::default()).await;
        assert!(address(OsStr::new("vsock:2:1")).is_err() && address(OsStr::new("")).is_err());
    }

    #[actix::test]
    async fn a_blocked_arbiter_stops_the_watchdog() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let (manager, heard) =
            manager(SocketAddr::from_pathname(path).unwrap(), Some(Duration::from_millis(900)));
        heard.set_nonblocking(true).unwrap();
        let fed = || {
            let mut fed = 0;
            while let Ok(length) = heard.recv(&mut [0; 100]) {
                assert_eq!(length, "WATCHDOG=1\n".len());
                fed += 1;
            }
            fed
        };
        let running = gateway::start(setup(home.path())).await.unwrap();
        let current = Current::new(RefCell::new(Some(running.gateway.clone())));
        actix::spawn(manager.feed_watchdog(current));
        let until_fed = async || {
            for _ in 0..6000 {
                if fed() > 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("the watchdog is not fed");
        };
        until_fed().await;

        let (go_on, until) = std::sync::mpsc::channel::<()>();
        assert!(running.arbiters.next().spawn_fn(move || {
            let _ = until.recv();
        }));
        // What was asked before the arbiter was blocked may still be told.
        tokio::time::sleep(Duration::from_millis(600)).await;
        fed();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(fed(), 0, "fed though an arbiter is blocked");
        drop(go_on);
        until_fed().await;
        running.gateway.send(Stop).await.unwrap();
    }

    fn setup(home: &Path) -> GatewaySetup {
        let mut config = Config::default();
        config.gateway.listen = vec![([127, 0, 0, 1], 0).into()];
        config.store.path = home.join("clawmux.db");
        GatewaySetup {
            config: Arc::new(config),
            home: home.to_owned(),
            socket: None,
            passed: Arc::default(),
            xeno_home: None,
            log_filter: None,
            compiler: Compiler::Here,
            keeper: "/nowhere".into(),
            has_own_credentials: false,
            layers: Layers::default(),
            log: Arc::default(),
            version: "test",
        }
    }
}
