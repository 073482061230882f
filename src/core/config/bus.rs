//! `[bus]`: channel adapters on NATS JetStream.

use std::path::{Path, PathBuf};

use url::Url;

use super::credentials::Secrets;
use super::section::{Report, Section};
use super::{Bus, BusCredential};
use crate::access::Secret;
use crate::access::auth::Auth;
use crate::access::token::RESERVED;
use crate::ids::Owner;

/// Where a server listens that nobody moved.
const SERVER: &str = "nats://127.0.0.1:4222";

/// The streams, as they are called where nobody says otherwise.
const STREAMS: [&str; 3] = ["EXOCLAW", "EXOCLAW_OUT", "EXOCLAW_DLQ"];

/// The longest name of a stream, in bytes.
const NAME_BYTES_MAX: usize = 64;

pub(super) fn bus(
    mut s: Section,
    r: &mut Report,
    secrets: &mut Secrets<'_>,
    home: &Path,
    auth: &Auth,
) -> Option<Bus> {
    if !s.is_written() {
        return None;
    }
    let servers = servers(&mut s, r);
    let credential = credential(&mut s, r, secrets);
    let mut file = |s: &mut Section, key| {
        let path = s.optional(r, key).map(|path| home.join(path))?;
        if let Err(why) = (secrets.read_file)(&path) {
            r.complain(&s.origin(key), format!("bus.{key}: {} can't be read: {why}", path.display()));
        }
        Some(path)
    };
    let ca_file: Option<PathBuf> = file(&mut s, "ca_file");
    let (certificate, key) = (file(&mut s, "client_cert_file"), file(&mut s, "client_key_file"));
    let client_certificate = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (given, _) => {
            let (given, missing) = match given {
                Some(_) => ("client_cert_file", "client_key_file"),
                None => ("client_key_file", "client_cert_file"),
            };
            r.complain(&s.origin(given), format!("bus.{given}: {missing} belongs to it"));
            None
        }
    };
    let principal = s.text(r, "principal", Owner::BUS);
    if RESERVED.contains(&&*principal) && principal != Owner::BUS {
        r.complain(&s.origin("principal"), format!("bus.principal: {principal:?} is somebody else's name"));
    }
    let key = auth.api_keys.iter().find(|key| *key.name == *principal);
    let scopes = key.map(|key| key.scopes);
    let channels = s.texts(r, "channels", Some(&[])).unwrap_or_default();
    let channels = channels.into_iter().map(|name| name.value).filter(|name| !name.is_empty()).collect();
    let streams = streams(&mut s, r);
    let create = s.flag(r, "create").unwrap_or(true);
    s.finish(r);
    Some(Bus {
        servers,
        credential,
        ca_file,
        client_certificate,
        principal,
        scopes,
        channels,
        streams,
        create,
    })
}

fn servers(s: &mut Section, r: &mut Report) -> Vec<String> {
    let Some(written) = s.texts(r, "servers", Some(&[SERVER])) else { return vec![SERVER.to_owned()] };
    if written.is_empty() {
        r.complain(
            &s.origin("servers"),
            "bus.servers: expected at least one server, such as nats://127.0.0.1:4222",
        );
    }
    let read = written.into_iter().filter_map(|written| {
        let why = match Url::parse(&written.value) {
            Ok(url) if !matches!(url.scheme(), "nats" | "tls") || url.host_str().is_none() => {
                "expected nats://HOST:PORT or tls://HOST:PORT"
            }
            Ok(url) if url.password().is_some() || !url.username().is_empty() => {
                "a secret in a URL: use token_env, credentials_file or nkey_file"
            }
            Ok(url) => {
                let host = url.host_str().unwrap_or_default();
                let is_here = host == "localhost" || host.starts_with("127.") || host == "[::1]";
                if url.scheme() == "nats" && !is_here {
                    let why = format!(
                        "bus.servers: what is said goes to {host} in the clear unless that server asks for TLS: \
                         write tls:// where it should"
                    );
                    r.warn(&written.origin, why);
                }
                return Some(written.value);
            }
            Err(_) => "expected nats://HOST:PORT or tls://HOST:PORT",
        };
        // It is not repeated, since it may hold a secret.
        r.complain(&written.origin, format!("bus.servers: {why}"));
        None
    });
    read.collect()
}

fn credential(s: &mut Section, r: &mut Report, secrets: &mut Secrets<'_>) -> BusCredential {
    let token = secrets.either(s, r, "token_env", "", "token_file");
    if token.is_named && token.secret.is_none() && !s.has("token_file") {
        r.complain(&s.origin("token_env"), format!("bus.token_env: {} is not set", token.described()));
    }
    let mut whole = |s: &mut Section, r: &mut Report, key: &'static str| {
        let path = s.optional(r, key)?;
        let path = secrets.home.join(path);
        match (secrets.read_file)(&path) {
            Ok(text) if !text.trim().is_empty() => Some(Secret::new(text)),
            Ok(_) => {
                r.complain(&s.origin(key), format!("bus.{key}: {} is empty", path.display()));
                None
            }
            Err(why) => {
                r.complain(&s.origin(key), format!("bus.{key}: {} can't be read: {why}", path.display()));
                None
            }
        }
    };
    let (credentials, nkey) = (whole(s, r, "credentials_file"), whole(s, r, "nkey_file"));
    let named = ["token_env", "token_file", "credentials_file", "nkey_file"];
    if let [first, second, ..] = named.iter().filter(|key| s.has(key)).collect::<Vec<_>>()[..] {
        r.complain(&s.origin(second), format!("bus.{second}: there is {first} as well; keep one of them"));
    }
    match (token.secret, credentials, nkey) {
        (Some(token), ..) => BusCredential::Token(token),
        (_, Some(credentials), _) => BusCredential::Credentials(credentials),
        (_, _, Some(seed)) => BusCredential::Nkey(Secret::new(seed.expose().trim())),
        (None, None, None) => BusCredential::None,
    }
}

/// Those of inbound messages, of answers and of dead letters.
fn streams(s: &mut Section, r: &mut Report) -> [String; 3] {
    let Some(written) = s.texts(r, "streams", Some(&STREAMS)) else { return STREAMS.map(str::to_owned) };
    let names: Vec<String> = written.into_iter().map(|name| name.value).collect();
    let is_name = |name: &String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
    };
    match <[String; 3]>::try_from(names) {
        Ok(names)
            if names.iter().all(is_name)
                && names[0] != names[1]
                && names[1] != names[2]
                && names[0] != names[2] =>
        {
            names
        }
        _ => {
            let why = "bus.streams: expected three different names of letters, digits, '-' and '_': of the stream of \
                inbound messages, of answers, of dead letters";
            r.complain(&s.origin("streams"), why);
            STREAMS.map(str::to_owned)
        }
    }
}
