//! `admin.tokens` and `admin.token.*`: API keys and JWTs that the daemon gives out.
//!
//! The secret of one is in the answer to its making and nowhere else.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use crate::access::Secret;
use crate::access::token::{Configured, CreateToken, Kind, ListTokens, RevokeToken, RotateToken, Token};
use crate::error::Error;
use crate::scope::{Scope, Scopes};

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.tokens", "{}", list),
    method(
        "admin.token.create",
        r#"{"name", "role"? or "scopes"?, "kind"?, "life_ms"?, "inherit"?}"#,
        create,
    ),
    method("admin.token.revoke", r#"{"token"}"#, revoke),
    method("admin.token.rotate", r#"{"token", "overlap_ms"?, "life_ms"?}"#, rotate),
];

/// `admin.tokens`: `{"tokens": [..], "configured": [..], "loopback_open", "locked_out"}`, the latest first;
/// `loopback_open` where nobody has to show one over loopback, until the first is given out, `locked_out` where
/// everybody has to and none is valid.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ListTokens, |list| {
        json!({
            "loopback_open": list.loopback_open,
            "locked_out": list.locked_out,
            "tokens": list.tokens.iter().map(token).collect::<Vec<_>>(),
            "configured": list.configured.iter().map(configured).collect::<Vec<_>>(),
        })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    role: Option<String>,
    scopes: Option<Vec<String>>,
    kind: Option<String>,
    life_ms: Option<u64>,
    #[serde(default)]
    inherit: bool,
}

/// `admin.token.create`: what `admin.tokens` says of it, with its `secret`, and whether it
/// `closes_loopback`, where nobody had to show anything until now.
fn create(request: &Request) -> Result<Call, Error> {
    let Create { name, role, scopes, kind, life_ms, inherit } = request.read()?;
    let scopes = scopes_of(role.as_deref(), scopes)?;
    let kind = match kind.as_deref() {
        None => Kind::ApiKey,
        Some(name) => Kind::from_name(name)
            .ok_or_else(|| invalid("there is no such kind: it is \"api-key\" or \"jwt\""))?,
    };
    let life = life_ms.map(Duration::from_millis);
    ask(CreateToken { name, kind, scopes, life, inherit }, |made| {
        let mut answer = given_out(&made.token, &made.secret);
        answer["closes_loopback"] = made.closes_loopback.into();
        answer
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenParams {
    token: String,
}

/// `admin.token.revoke`: what `admin.tokens` says of it; its connections are closed.
fn revoke(request: &Request) -> Result<Call, Error> {
    let TokenParams { token: id } = request.read()?;
    ask(RevokeToken { id }, |revoked| token(&revoked))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotate {
    token: String,
    overlap_ms: Option<u64>,
    life_ms: Option<u64>,
}

/// `admin.token.rotate`: what `admin.tokens` says of the new one, with its `secret`, and of the `old`
/// one, which ends after `overlap_ms`.
fn rotate(request: &Request) -> Result<Call, Error> {
    let Rotate { token: id, overlap_ms, life_ms } = request.read()?;
    let (overlap, life) = (overlap_ms.map(Duration::from_millis), life_ms.map(Duration::from_millis));
    ask(RotateToken { id, overlap, life }, |made| {
        let mut answer = given_out(&made.token, &made.secret);
        answer["old"] = token(&made.old);
        answer
    })
}

/// What is told of a credential that was given out.
fn given_out(made: &Token, secret: &Secret) -> Value {
    let mut answer = token(made);
    answer["secret"] = secret.expose().into();
    answer
}

/// What a role stands for, or these scopes.
fn scopes_of(role: Option<&str>, scopes: Option<Vec<String>>) -> Result<Scopes, Error> {
    match (role, scopes) {
        (Some("admin"), None) => Ok(Scopes::ADMIN),
        (Some("user"), None) => Ok(Scopes::USER),
        (Some("readonly"), None) => Ok(Scopes::READONLY),
        (Some(_), None) => Err(invalid("there is no such role: it is \"admin\", \"user\" or \"readonly\"")),
        (None, Some(names)) => {
            let known = names.iter().map(|name| Scope::from_name(name)).collect::<Option<Vec<_>>>();
            known.filter(|scopes| !scopes.is_empty()).map(|scopes| Scopes::of(&scopes)).ok_or_else(|| {
                let all: Vec<_> = Scope::BY_NAME.iter().map(|(name, _)| *name).collect();
                invalid(&format!("expected one or more scopes of {}", all.join(", ")))
            })
        }
        _ => Err(invalid("give a role, or scopes, and not both")),
    }
}

/// The role that stands for these scopes.
fn role_of(scopes: Scopes) -> Option<&'static str> {
    let roles = [("admin", Scopes::ADMIN), ("user", Scopes::USER), ("readonly", Scopes::READONLY)];
    roles.into_iter().find(|(_, known)| *known == scopes).map(|(name, _)| name)
}

fn configured(known: &Configured) -> Value {
    json!({
        "name": &*known.name,
        "role": role_of(known.scopes),
        "scopes": known.scopes.names(),
        "used_ms": known.used.map(|used| used.at.as_millis()),
        "origin": known.used.map(|used| used.origin.to_string()),
    })
}

fn token(token: &Token) -> Value {
    json!({
        "token": &*token.id,
        "name": &*token.name,
        "kind": token.kind.name(),
        "role": role_of(token.scopes),
        "scopes": token.scopes.names(),
        "created_ms": token.created.as_millis(),
        "since_ms": token.since.as_millis(),
        "expires_ms": token.expires.map(|at| at.as_millis()),
        "revoked_ms": token.revoked.map(|at| at.as_millis()),
        "used_ms": token.used.map(|at| at.as_millis()),
        "origin": token.origin.map(|origin| origin.to_string()),
    })
}
