//! `[auth]`, and secrets: named by the configuration, never written in it. No complaint holds one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::load::check_name;
use super::section::{Report, Section, nearest};
use super::tree::Origin;
use crate::access::Secret;
use crate::access::auth::{ApiKey, Auth, Jwt, LoopbackPolicy};
use crate::access::authority::{SECRET_CHARS_GOOD, SECRET_CHARS_MIN, digest, is_exposed};
use crate::access::jwt::SECRET_BYTES_MIN;
use crate::access::token::RESERVED;
use crate::hex::from_hex;
use crate::scope::{Scope, Scopes};

/// What was found where a secret may be named.
pub(super) struct Sought {
    pub(super) secret: Option<Secret>,
    /// Whether somebody named where it is, other than the default.
    pub(super) is_named: bool,
    /// The variable it was looked for in; empty where it was in none.
    variable: String,
    /// The file, likewise.
    file: String,
}

impl Sought {
    /// The variable it was looked for in, for complaints.
    pub(super) fn described(&self) -> String {
        described(&self.variable)
    }

    /// The variable or file that it was in.
    pub(super) fn place(&self) -> String {
        if self.variable.is_empty() { self.file.clone() } else { self.variable.clone() }
    }
}

/// A variable, for complaints. What does not look like the name of one may be the secret itself, and is not
/// repeated.
pub(super) fn described(variable: &str) -> String {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    if !variable.is_empty() && variable.chars().all(is_name) {
        format!("the environment variable {variable}")
    } else {
        "the environment variable it names".to_owned()
    }
}

/// The sources that secrets may be read from.
pub(super) struct Secrets<'a> {
    pub(super) env: &'a [(String, String)],
    pub(super) home: &'a Path,
    pub(super) read_file: &'a mut dyn FnMut(&Path) -> Result<String, String>,
}

impl Secrets<'_> {
    /// The value of an environment variable, as it is.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The secret in the variable that `name` names; none, without a complaint, where it is not set.
    pub(super) fn in_env(&self, r: &mut Report, at: &Origin, key: &str, name: &str) -> Option<Secret> {
        let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !good {
            // What was written may be the secret itself.
            r.complain(at, format!("{key}: expected the name of an environment variable, not a secret"));
            return None;
        }
        let value = self.variable(name)?;
        usable(value).map_err(|why| r.complain(at, format!("{key}: environment variable {name} {why}"))).ok()
    }

    /// The secret in a file; none, with a complaint, where there is none.
    pub(super) fn in_file(&mut self, r: &mut Report, at: &Origin, key: &str, path: &str) -> Option<Secret> {
        let path = self.home.join(path);
        let secret = match (self.read_file)(&path) {
            Ok(text) => usable(&text).map_err(str::to_owned),
            Err(why) => Err(format!("can't be read: {why}")),
        };
        secret.map_err(|why| r.complain(at, format!("{key}: {} {why}", path.display()))).ok()
    }

    /// The secret under `env_key` or `file_key`: the file wins over a variable nobody named.
    pub(super) fn either(
        &mut self,
        s: &mut Section,
        r: &mut Report,
        env_key: &'static str,
        env_default: &str,
        file_key: &'static str,
    ) -> Sought {
        let name = s.text(r, env_key, env_default);
        let file = s.optional(r, file_key);
        let named = !name.is_empty() && name != env_default;
        if let Some(file) = file {
            if named {
                r.complain(
                    &s.origin(file_key),
                    format!("{}: there is {env_key} as well; keep one of them", s.name(file_key)),
                );
            }
            let key = s.name(file_key);
            let secret = self.in_file(r, &s.origin(file_key), &key, &file);
            return Sought { secret, is_named: true, variable: String::new(), file };
        }
        if name.is_empty() {
            return Sought { secret: None, is_named: false, variable: name, file: String::new() };
        }
        let key = s.name(env_key);
        let secret = self.in_env(r, &s.origin(env_key), &key, &name);
        Sought { secret, is_named: named, variable: name, file: String::new() }
    }
}

/// A secret without the line end that editors put behind it.
fn usable(text: &str) -> Result<Secret, &'static str> {
    let text = text.trim_end_matches(['\n', '\r']);
    if text.trim().is_empty() {
        return Err("is empty: give it a secret or take it away");
    }
    if text.chars().any(|c| c.is_control()) {
        return Err("holds a control character or several lines");
    }
    Ok(Secret::new(text))
}

/// How long a secret is, and where it was named.
pub(super) struct Length {
    key: String,
    at: Origin,
    chars: usize,
}

/// Complains of secrets that can be guessed, where others than this host may try.
pub(super) fn check_lengths(lengths: &[Length], listen: &[SocketAddr], r: &mut Report) {
    let exposed = listen.iter().find(|address| is_exposed(address));
    for Length { key, at, chars } in lengths {
        match exposed {
            Some(address) if *chars < SECRET_CHARS_MIN => r.complain(
                at,
                format!(
                    "{key}: the secret is shorter than {SECRET_CHARS_MIN} characters, which is too short off loopback ({address})"
                ),
            ),
            Some(address) if *chars < SECRET_CHARS_GOOD => r.warn(
                at,
                format!(
                    "{key}: the secret is shorter than {SECRET_CHARS_GOOD} characters: off loopback ({address}) use a longer one"
                ),
            ),
            None if *chars < SECRET_CHARS_MIN => r.warn(
                at,
                format!("{key}: the secret is shorter than {SECRET_CHARS_MIN} characters and easy to guess"),
            ),
            _ => {}
        }
    }
}

/// What `[auth]` says, and how long its secrets are.
pub(super) fn auth(mut s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> (Auth, Vec<Length>) {
    const TOKEN_ENV: &str = "CLAWMUX_TOKEN";
    let mut lengths = Vec::new();
    let complaints = r.complaints.len();
    let sought = secrets.either(&mut s, r, "token_env", TOKEN_ENV, "token_file");
    if sought.is_named && sought.secret.is_none() && r.complaints.len() == complaints {
        // To go on without would open the door that somebody meant to close.
        r.complain(&s.origin("token_env"), format!("auth.token_env: {} is not set", sought.described()));
    }
    let token = sought.secret;
    if let Some(token) = &token {
        let key = if s.has("token_file") { "token_file" } else { "token_env" };
        lengths.push(Length { key: s.name(key), at: s.origin(key), chars: token.expose().chars().count() });
    }
    let policies = [
        ("auto", LoopbackPolicy::Auto),
        ("required", LoopbackPolicy::Required),
        ("skip", LoopbackPolicy::Skip),
    ];
    let loopback = s.choice(r, "loopback", LoopbackPolicy::Auto, &policies);
    let jwt = jwt(s.section(r, "jwt"), r, secrets);
    let mut api_keys: Vec<ApiKey> = Vec::new();
    for section in s.list(r, "api_keys") {
        let at = section.origin("");
        if let Some(key) = api_key(section, r, secrets) {
            if api_keys.iter().any(|other| other.name == key.name) {
                r.complain(&at, format!("auth.api_keys: there are two keys named {:?}", key.name));
            }
            let taken = token.as_ref().is_some_and(|token| digest(token.expose()) == key.sha256);
            if taken || api_keys.iter().any(|other| other.sha256 == key.sha256) {
                r.complain(
                    &at,
                    format!("auth.api_keys: the key of {:?} is another credential's as well", key.name),
                );
            }
            if let Some(chars) = key.chars {
                lengths.push(Length { key: format!("auth.api_keys: {:?}", key.name), at, chars });
            }
            api_keys.push(key);
        }
    }
    s.finish(r);
    (Auth { token, jwt, loopback, api_keys }, lengths)
}

fn jwt(mut s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Option<Jwt> {
    const SECRET_ENV: &str = "CLAWMUX_JWT_SECRET";
    const DAYS_MAX: u64 = 36_500;
    let complaints = r.complaints.len();
    let sought = secrets.either(&mut s, r, "secret_env", SECRET_ENV, "secret_file");
    let key = if s.has("secret_file") { "secret_file" } else { "secret_env" };
    if sought.is_named && sought.secret.is_none() && r.complaints.len() == complaints {
        // To go on without would open the door that somebody meant to close.
        r.complain(
            &s.origin("secret_env"),
            format!("auth.jwt.secret_env: {} is not set", sought.described()),
        );
    }
    let secret = sought.secret;
    let is_short = |secret: &Secret| secret.expose().len() < SECRET_BYTES_MIN;
    if secret.as_ref().is_some_and(is_short) {
        let message = format!("auth.jwt.{key}: the secret must have at least {SECRET_BYTES_MIN} bytes");
        r.complain(&s.origin(key), message);
    }
    let mut text = |key, default| {
        let text = s.text(r, key, default);
        if text.is_empty() {
            r.complain(&s.origin(key), format!("auth.jwt.{key}: expected a name, found \"\""));
        }
        text
    };
    let (issuer, audience) = (text("issuer", "wundr-orchestrator"), text("audience", "wundr-daemon"));
    let days = s.integer(r, "max_life_days", 0, 0..=DAYS_MAX);
    let max_life = (days > 0).then(|| Duration::from_secs(days * 86_400));
    s.finish(r);
    Some(Jwt { secret: secret?, issuer, audience, max_life })
}

fn api_key(mut s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Option<ApiKey> {
    let name = s.text(r, "name", "");
    check_name(r, &s.origin("name"), &s.name("name"), &name);
    if RESERVED.contains(&name.as_str()) {
        r.complain(&s.origin("name"), format!("auth.api_keys.name: {name:?} is reserved"));
    }
    let hex = s.optional(r, "sha256");
    let complaints = r.complaints.len();
    let sought = secrets.either(&mut s, r, "key_env", "", "key_file");
    let named = sought.is_named;
    if named && sought.secret.is_none() && r.complaints.len() == complaints {
        r.complain(&s.origin("key_env"), format!("auth.api_keys.key_env: {} is not set", sought.described()));
    }
    let key = sought.secret;
    let sha256 = match (&hex, &key) {
        (Some(_), Some(_)) => {
            r.complain(
                &s.origin("sha256"),
                "auth.api_keys.sha256: there is key_env or key_file as well; keep one",
            );
            None
        }
        (Some(hex), None) => {
            let digest = from_hex(hex);
            if digest.is_none() {
                r.complain(
                    &s.origin("sha256"),
                    "auth.api_keys.sha256: expected the SHA-256 of the key, 64 hexadecimal digits (printf %s KEY | sha256sum)",
                );
            }
            digest
        }
        (None, Some(key)) => Some(digest(key.expose())),
        (None, None) => {
            if !named {
                let message = format!("auth.api_keys: {name:?} has no key: give sha256, key_env or key_file");
                r.complain(&s.origin("name"), message);
            }
            None
        }
    };
    let chars = key.map(|key| key.expose().chars().count());
    let role = s.optional(r, "role");
    let scopes = s.texts(r, "scopes", None);
    let scopes = match (role.as_deref(), scopes) {
        (Some(_), Some(_)) => {
            r.complain(&s.origin("scopes"), "auth.api_keys.scopes: there is a role as well; keep one");
            None
        }
        (Some("admin"), None) => Some(Scopes::ADMIN),
        (Some("user"), None) => Some(Scopes::USER),
        (Some("readonly"), None) => Some(Scopes::READONLY),
        (Some(other), None) => {
            r.complain(
                &s.origin("role"),
                format!(
                    "auth.api_keys.role: expected \"admin\" or \"user\" or \"readonly\", found {other:?}"
                ),
            );
            None
        }
        (None, Some(texts)) => {
            let mut scopes = Vec::new();
            for text in texts {
                let names = || Scope::BY_NAME.iter().map(|(name, _)| *name);
                match Scope::from_name(&text.value) {
                    Some(scope) => scopes.push(scope),
                    None => {
                        let hint = match nearest(&text.value, names()) {
                            Some(near) => format!("did you mean {near:?}?"),
                            None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
                        };
                        let message =
                            format!("auth.api_keys.scopes: there is no scope {:?}; {hint}", text.value);
                        r.complain(&text.origin, message);
                    }
                }
            }
            Some(Scopes::of(&scopes))
        }
        (None, None) => {
            let message = format!("auth.api_keys: {name:?} has no role: give role = \"user\", or scopes");
            r.complain(&s.origin("name"), message);
            None
        }
    };
    s.finish(r);
    Some(ApiKey { name, sha256: sha256?, chars, scopes: scopes? })
}
