//! The connections to NATS servers, of the bus and of the cluster, and what the bus agrees with its own:
//! streams and the consumer.
//!
//! This folder, `bus` and `cluster/engine` are the only ones that name async-nats (a test says so). The client
//! connects by itself again and again; its task lives on the arbiter that [`connect`] or [`reach`] is called on.

pub(crate) mod streams;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use clawmux_core::config::{Bus, BusCredential};
use clawmux_core::time::backoff;
use tokio::time::timeout;

/// How long a server may take to let us in.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long it may take to answer one question, or to acknowledge one message.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The pause before a lost connection is tried again: twice as long each time.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What may wait to be written to the connection, in commands.
const COMMANDS_MAX: usize = 4096;

/// Messages that were asked for and may wait here, of one subscription.
const DELIVERIES_MAX: usize = 16 * 1024;

/// Acknowledgements of servers that may be waited for at once.
const ACKS_MAX: usize = 1024;

/// The oldest server that has what is needed of it.
const VERSION_MIN: (i64, i64, i64) = (2, 12, 0);

/// Connected servers.
#[derive(Clone, Debug)]
pub(crate) struct Nats {
    pub(crate) client: Client,
    pub(crate) jetstream: Context,
    link: Arc<Link>,
}

/// How the connection is.
#[derive(Debug, Default)]
struct Link {
    is_up: AtomicBool,
    /// How often it was lost.
    losses: AtomicU64,
}

/// Why the servers can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Why, in a sentence.
    pub why: String,
    /// Whether somebody has to do something about it.
    pub is_refused: bool,
}

/// How servers are reached, and for which section of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// The section, as its table is called.
    pub(crate) section: &'static str,
    /// The servers, in the order in which they are tried.
    pub(crate) servers: &'a [String],
    /// What is shown to them.
    pub(crate) credential: &'a BusCredential,
    /// A certificate authority, besides those of the system.
    pub(crate) ca_file: Option<&'a PathBuf>,
    /// The certificate and the key that are shown to them.
    pub(crate) client_certificate: Option<&'a (PathBuf, PathBuf)>,
}

impl<'a> From<&'a Bus> for Access<'a> {
    fn from(config: &'a Bus) -> Self {
        Self {
            section: "bus",
            servers: &config.servers,
            credential: &config.credential,
            ca_file: config.ca_file.as_ref(),
            client_certificate: config.client_certificate.as_ref(),
        }
    }
}

impl Unusable {
    /// Why, with what to do: who has something to do is told what in the reason.
    pub fn with_advice(self) -> String {
        let Self { why, is_refused } = self;
        if is_refused {
            why
        } else {
            format!("{why}. See to the NATS servers and the network, and try again")
        }
    }

    /// For the moment.
    pub(crate) fn away(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_refused: false }
    }

    /// Until somebody changes that.
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_refused: true }
    }
}

/// Connects to the first of the servers of the bus that lets us in.
///
/// # Errors
/// Why none does, or why that one can't be used.
pub(crate) async fn connect(config: &Bus, name: String) -> Result<Nats, Unusable> {
    reach(&config.into(), name).await
}

/// Connects to the first of these servers that lets us in.
///
/// # Errors
/// Why none does, or why that one can't be used.
pub(crate) async fn reach(access: &Access<'_>, name: String) -> Result<Nats, Unusable> {
    let section = access.section;
    let servers: io::Result<Vec<ServerAddr>> = access.servers.iter().map(|server| server.parse()).collect();
    let servers = servers.map_err(|error| Unusable::refused(format!("{section}.servers: {error}")))?;
    let link = Arc::new(Link::default());
    let options = options(access, name, &link).map_err(Unusable::refused)?;
    let connected = timeout(CONNECT_MAX * 2, async_nats::connect_with_options(servers, options)).await;
    let client = match connected {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return Err(unreached(access, &error)),
        Err(_) => {
            let within = (CONNECT_MAX * 2).as_secs();
            return Err(Unusable::away(format!(
                "{} can't be reached: no answer came within {within} s",
                access.servers.join(", ")
            )));
        }
    };
    let version = client.server_info().version;
    let (major, minor, patch) = VERSION_MIN;
    if !client.is_server_compatible(major, minor, patch) {
        return Err(Unusable::refused(format!(
            "the NATS server is version {version}, and the {section} needs {major}.{minor} or newer: update nats-server"
        )));
    }
    link.is_up.store(true, Relaxed);
    let context = jetstream::context::ContextBuilder::new()
        .timeout(ANSWER_MAX)
        .ack_timeout(ANSWER_MAX)
        .max_ack_inflight(ACKS_MAX)
        .backpressure_on_inflight(true)
        .build(client.clone());
    if let Err(error) = context.query_account().await {
        use async_nats::jetstream::context::AccountErrorKind as Kind;
        return Err(match error.kind() {
            Kind::JetStreamUnavailable | Kind::JetStream(_) => Unusable::refused(
                "the NATS server has no JetStream for this account: start nats-server with -js, or enable it there; \
                 where it is one of several, it may be that most of the others are away",
            ),
            _ => Unusable::away(format!(
                "JetStream of the NATS server {} does not say how it is: {}",
                client.server_info().server_name,
                one_line(&error)
            )),
        });
    }
    Ok(Nats { client, jetstream: context, link })
}

/// Why no server lets us in, and what to do.
fn unreached(access: &Access<'_>, error: &async_nats::ConnectError) -> Unusable {
    use async_nats::ConnectErrorKind as Kind;
    let (section, servers, said) = (access.section, access.servers.join(", "), chain_of(error));
    let is_of_tls =
        ["UnknownIssuer", "certificate", "InvalidContentType", "TLS"].iter().any(|word| said.contains(word));
    match error.kind() {
        Kind::AuthorizationViolation => Unusable::refused(format!(
            "{servers}: the server does not let us in: see to credentials_file, nkey_file, token_env or \
             token_file of [{section}]"
        )),
        Kind::Authentication => Unusable::refused(format!(
            "{servers}: what is shown to the server can't be signed: nkey_file holds a seed (SU...), credentials_file a \
             JWT and a seed ({said})"
        )),
        _ if is_of_tls => Unusable::refused(format!(
            "{servers}: no TLS connection: {said}; see to ca_file and client_cert_file of [{section}], and \
             whether the server speaks TLS (tls://) or not (nats://)"
        )),
        _ => Unusable::away(format!("{servers} can't be reached: {}", one_line(error))),
    }
}

/// What the client's errors say where it can be said in plain words.
const WORDS: [(&str, &str); 9] = [
    ("timed out", NO_ANSWER),
    ("deadline has elapsed", NO_ANSWER),
    ("didn't receive ack in time", NO_ANSWER),
    ("no responders", NOBODY),
    ("JetStream resource does not exist", NOBODY),
    ("Connection refused", "nothing listens there"),
    ("failed to lookup address", "there is no host of this name"),
    ("Connection reset", "the connection was lost"),
    ("Broken pipe", "the connection was lost"),
];

/// That a server says nothing.
pub(crate) const NO_ANSWER: &str = "no answer came in time";

/// That no server is there for it, or none that leads.
const NOBODY: &str = "no NATS server answers for it";

/// Why something failed, in one line: in plain words, or else in those of the client or the server.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let said = chain_of(error);
    match WORDS.iter().find(|(theirs, _)| said.contains(theirs)) {
        Some((_, ours)) => (*ours).to_owned(),
        None => said,
    }
}

/// An error in one line, with what it comes from.
fn chain_of(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        source = cause.source();
    }
    said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

fn options(access: &Access<'_>, name: String, link: &Arc<Link>) -> Result<ConnectOptions, String> {
    let section = access.section;
    let mut options = ConnectOptions::new()
        .name(name)
        .connection_timeout(CONNECT_MAX)
        .request_timeout(Some(ANSWER_MAX))
        .retain_servers_order()
        .client_capacity(COMMANDS_MAX)
        .subscription_capacity(DELIVERIES_MAX)
        .reconnect_delay_callback(|attempts| {
            backoff(PAUSE, u32::try_from(attempts).unwrap_or(u32::MAX), PAUSE_MAX)
        });
    options = match access.credential {
        BusCredential::None => options,
        BusCredential::Token(token) => options.token(token.expose().to_owned()),
        BusCredential::Nkey(seed) => options.nkey(seed.expose().to_owned()),
        // Its error may quote the file.
        BusCredential::Credentials(file) => options.credentials(file.expose()).map_err(|_| {
            format!("{section}.credentials_file: it is no credentials file of NATS (a JWT and a seed)")
        })?,
    };
    if let Some(file) = access.ca_file {
        options = options.add_root_certificates(file.clone());
    }
    if let Some((certificate, key)) = access.client_certificate {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    if access.ca_file.is_some() || access.client_certificate.is_some() {
        options = options.require_tls(true);
    }
    let link = link.clone();
    Ok(options.event_callback(move |event| {
        let link = link.clone();
        async move {
            match event {
                Event::Connected => {
                    if !link.is_up.swap(true, Relaxed) {
                        tracing::info!("{section}: connected again");
                    }
                }
                Event::Disconnected => {
                    if link.is_up.swap(false, Relaxed) {
                        link.losses.fetch_add(1, Relaxed);
                        tracing::warn!("{section}: the connection is lost: it is tried again and again");
                    }
                }
                Event::SlowConsumer(_) => tracing::warn!("{section}: the client falls behind its server"),
                Event::ServerError(error) => {
                    tracing::warn!(error = ?error.to_string(), "{section}: the server complains");
                }
                Event::ClientError(error) => {
                    tracing::debug!(error = ?error.to_string(), "{section}: the client complains")
                }
                Event::LameDuckMode | Event::Draining | Event::Closed => {}
            }
        }
    }))
}

impl Nats {
    /// Whether it is connected now.
    pub(crate) fn is_up(&self) -> bool {
        self.link.is_up.load(Relaxed)
    }

    /// How often the connection was lost.
    pub(crate) fn losses(&self) -> u64 {
        self.link.losses.load(Relaxed)
    }

    /// The largest payload that the server takes, with its headers.
    pub(crate) fn payload_max(&self) -> usize {
        self.client.max_payload()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
    use async_nats::{ConnectError, ConnectErrorKind, RequestError, RequestErrorKind};

    use super::*;

    #[test]
    fn what_the_client_says_is_told_in_plain_words() {
        let asked = |kind| {
            let why = RequestError::new(kind);
            one_line(&GetStreamError::with_source(GetStreamErrorKind::Request, why))
        };
        assert_eq!(asked(RequestErrorKind::TimedOut), NO_ANSWER);
        assert_eq!(asked(RequestErrorKind::NoResponders), NOBODY);
        assert_eq!(asked(RequestErrorKind::MaxPayloadExceeded), "request error: max payload size exceeded");
        let io = Error::from_raw_os_error(libc::ECONNREFUSED);
        assert_eq!(io.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(one_line(&ConnectError::with_source(ConnectErrorKind::Io, io)), "nothing listens there");
    }

    #[test]
    fn what_passes_is_told_with_what_to_do() {
        let why = Unusable::away("nats://a can't be reached: nothing listens there").with_advice();
        assert!(why.ends_with("there. See to the NATS servers and the network, and try again"), "{why}");
        assert_eq!(Unusable::refused("update it").with_advice(), "update it");
    }
}
