//! `admin.tokens` and `admin.token.*`: API keys and JWTs that the daemon gives out.
//!
//! The secret of one is in the answer to its making and nowhere else.

use std::path::Path;
use std::time::Duration;

use actix::Addr;
use clawmux_core::auth::token::{Configured, Kind, Token, TokenCommand, TokenReply};
use clawmux_core::auth::{Scope, Scopes};
use clawmux_core::command::Command;
use clawmux_core::config::Config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::reply::Reply;
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::Call;
use super::params::read;
use super::session::{execute, unexpected};
use crate::store::Store;

/// `admin.tokens`: `{"tokens": [..], "configured": [..], "loopback_open", "locked_out"}`, the latest first;
/// `loopback_open` where nobody has to show one over loopback, until the first is given out, `locked_out` where
/// everybody has to and none is valid.
pub(super) const LIST: &str = "admin.tokens";
/// `admin.token.create`: what `admin.tokens` says of it, with its `secret`, and whether it
/// `closes_loopback`, where nobody had to show anything until now.
pub(super) const CREATE: &str = "admin.token.create";
/// `admin.token.revoke`: what `admin.tokens` says of it; its connections are closed.
pub(super) const REVOKE: &str = "admin.token.revoke";
/// `admin.token.rotate`: what `admin.tokens` says of the new one, with its `secret`, and of the `old`
/// one, which ends after `overlap_ms`.
pub(super) const ROTATE: &str = "admin.token.rotate";

/// Answers one of these methods.
pub(super) async fn run(call: Call, method: &'static str) -> Result<Value, Error> {
    let command = Command::Token(Box::new(command(method, &call.params)?));
    match execute(&call, command).await? {
        (_, Reply::Token(reply)) => Ok(told(*reply)),
        (_, other) => Err(unexpected(&other)),
    }
}

/// Answers one of these methods for a home on which no daemon runs.
///
/// # Errors
/// As the method's, and [`without_daemon`](crate::tokens::without_daemon)'s.
pub async fn without_daemon(
    home: &Path,
    config: &Config,
    method: &str,
    params: &Value,
) -> Result<Value, Error> {
    crate::tokens::without_daemon(home, config, command(method, params)?).await.map(told)
}

/// `admin.tokens` of a store that no daemon has open.
pub(super) async fn of_store(store: &Addr<Store>, config: &Config, params: &Value) -> Result<Value, Error> {
    crate::tokens::of_store(store, config, command(LIST, params)?).await.map(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    token: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotate {
    token: String,
    overlap_ms: Option<u64>,
    life_ms: Option<u64>,
}

/// What these parameters ask for.
fn command(method: &str, params: &Value) -> Result<TokenCommand, Error> {
    Ok(match method {
        LIST => {
            let Nothing {} = read(method, params)?;
            TokenCommand::List
        }
        CREATE => {
            let Create { name, role, scopes, kind, life_ms, inherit } = read(method, params)?;
            let scopes = scopes_of(role.as_deref(), scopes)?;
            let kind = match kind.as_deref() {
                None => Kind::ApiKey,
                Some(name) => Kind::from_name(name)
                    .ok_or_else(|| invalid("there is no such kind: it is \"api-key\" or \"jwt\""))?,
            };
            TokenCommand::Create { name, kind, scopes, life: life_ms.map(Duration::from_millis), inherit }
        }
        REVOKE => {
            let Named { token: id } = read(method, params)?;
            TokenCommand::Revoke { id }
        }
        ROTATE => {
            let Rotate { token: id, overlap_ms, life_ms } = read(method, params)?;
            let (overlap, life) = (overlap_ms.map(Duration::from_millis), life_ms.map(Duration::from_millis));
            TokenCommand::Rotate { id, overlap, life }
        }
        other => return Err(ErrorCode::UnknownMethod.error(format!("unknown method: {other}"))),
    })
}

fn told(reply: TokenReply) -> Value {
    match reply {
        TokenReply::List { tokens, configured: of_config, loopback_open, locked_out } => json!({
            "loopback_open": loopback_open,
            "locked_out": locked_out,
            "tokens": tokens.iter().map(token).collect::<Vec<_>>(),
            "configured": of_config.iter().map(configured).collect::<Vec<_>>(),
        }),
        TokenReply::Created { token: made, secret, closes_loopback } => {
            let mut answer = token(&made);
            answer["secret"] = secret.expose().into();
            answer["closes_loopback"] = closes_loopback.into();
            answer
        }
        TokenReply::Revoked(revoked) => token(&revoked),
        TokenReply::Rotated { token: made, secret, old } => {
            let mut answer = token(&made);
            answer["secret"] = secret.expose().into();
            answer["old"] = token(&old);
            answer
        }
    }
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

fn invalid(why: &str) -> Error {
    ErrorCode::InvalidRequest.error(why)
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
