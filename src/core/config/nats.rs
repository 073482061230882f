//! How NATS servers are reached: what `[bus]` and `[cluster]` say alike.

use std::path::PathBuf;

use url::Url;

use super::BusCredential;
use super::credentials::Secrets;
use super::section::{Report, Section};
use crate::access::Secret;

/// Where a server listens that nobody moved.
const SERVER: &str = "nats://127.0.0.1:4222";

/// Servers, and what they are shown.
pub(super) struct Reach {
    pub(super) servers: Vec<String>,
    pub(super) credential: BusCredential,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) client_certificate: Option<(PathBuf, PathBuf)>,
}

/// Reads the keys that say so.
pub(super) fn reach(s: &mut Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Reach {
    let servers = servers(s, r);
    let credential = credential(s, r, secrets);
    let mut file = |s: &mut Section, key| {
        let path = s.optional(r, key).map(|path| secrets.home.join(path))?;
        if let Err(why) = (secrets.read_file)(&path) {
            let key_name = s.name(key);
            r.complain(&s.origin(key), format!("{key_name}: {} can't be read: {why}", path.display()));
        }
        Some(path)
    };
    let ca_file = file(s, "ca_file");
    let (certificate, key) = (file(s, "client_cert_file"), file(s, "client_key_file"));
    let client_certificate = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (given, _) => {
            let (given, missing) = match given {
                Some(_) => ("client_cert_file", "client_key_file"),
                None => ("client_key_file", "client_cert_file"),
            };
            r.complain(&s.origin(given), format!("{}: {missing} belongs to it", s.name(given)));
            None
        }
    };
    Reach { servers, credential, ca_file, client_certificate }
}

fn servers(s: &mut Section, r: &mut Report) -> Vec<String> {
    let Some(written) = s.texts(r, "servers", Some(&[SERVER])) else { return vec![SERVER.to_owned()] };
    let key = s.name("servers");
    if written.is_empty() {
        let why = format!("{key}: expected at least one server, such as {SERVER}");
        r.complain(&s.origin("servers"), why);
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
                        "{key}: what is said goes to {host} in the clear unless that server asks for TLS: \
                         write tls:// where it should"
                    );
                    r.warn(&written.origin, why);
                }
                return Some(written.value);
            }
            Err(_) => "expected nats://HOST:PORT or tls://HOST:PORT",
        };
        // It is not repeated, since it may hold a secret.
        r.complain(&written.origin, format!("{key}: {why}"));
        None
    });
    read.collect()
}

fn credential(s: &mut Section, r: &mut Report, secrets: &mut Secrets<'_>) -> BusCredential {
    let token = secrets.either(s, r, "token_env", "", "token_file");
    if token.is_named && token.secret.is_none() && !s.has("token_file") {
        let why = format!("{}: {} is not set", s.name("token_env"), token.described());
        r.complain(&s.origin("token_env"), why);
    }
    let mut whole = |s: &mut Section, r: &mut Report, key: &'static str| {
        let path = s.optional(r, key)?;
        let path = secrets.home.join(path);
        let name = s.name(key);
        match (secrets.read_file)(&path) {
            Ok(text) if !text.trim().is_empty() => Some(Secret::new(text)),
            Ok(_) => {
                r.complain(&s.origin(key), format!("{name}: {} is empty", path.display()));
                None
            }
            Err(why) => {
                r.complain(&s.origin(key), format!("{name}: {} can't be read: {why}", path.display()));
                None
            }
        }
    };
    let (credentials, nkey) = (whole(s, r, "credentials_file"), whole(s, r, "nkey_file"));
    let named = ["token_env", "token_file", "credentials_file", "nkey_file"];
    if let [first, second, ..] = named.iter().filter(|key| s.has(key)).collect::<Vec<_>>()[..] {
        let why = format!("{}: there is {first} as well; keep one of them", s.name(second));
        r.complain(&s.origin(second), why);
    }
    match (token.secret, credentials, nkey) {
        (Some(token), ..) => BusCredential::Token(token),
        (_, Some(credentials), _) => BusCredential::Credentials(credentials),
        (_, _, Some(seed)) => BusCredential::Nkey(Secret::new(seed.expose().trim())),
        (None, None, None) => BusCredential::None,
    }
}
