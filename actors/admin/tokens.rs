//! `admin.tokens` and `admin.token.*`: API keys and JWTs that the daemon gives out.
//!
//! The secret of one is in the answer to its making and nowhere else.

use std::time::Duration;

use clawmux_core::auth::token::{Kind, Token, TokenCommand, TokenReply};
use clawmux_core::auth::{Scope, Scopes};
use clawmux_core::command::Command;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::reply::Reply;
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::Call;
use super::session::{execute, unexpected};

/// `admin.tokens`: `{"tokens": [..]}`, the latest first.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.tokens")?;
    match ask(&call, TokenCommand::List).await? {
        TokenReply::List(tokens) => Ok(json!({ "tokens": tokens.iter().map(token).collect::<Vec<_>>() })),
        other => Err(unexpected(&Reply::Token(Box::new(other)))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    role: Option<String>,
    scopes: Option<Vec<String>>,
    kind: Option<String>,
    life_ms: Option<u64>,
}

/// `admin.token.create`: what `admin.tokens` says of it, with its `secret`, and whether it
/// `closes_loopback`, where nobody had to show anything until now.
pub(super) async fn create(call: Call) -> Result<Value, Error> {
    let Create { name, role, scopes, kind, life_ms } = call.params("admin.token.create")?;
    let scopes = scopes_of(role.as_deref(), scopes)?;
    let kind = match kind.as_deref() {
        None => Kind::ApiKey,
        Some(name) => Kind::from_name(name)
            .ok_or_else(|| invalid("there is no such kind: it is \"api-key\" or \"jwt\""))?,
    };
    let life = life_ms.map(Duration::from_millis);
    match ask(&call, TokenCommand::Create { name, kind, scopes, life }).await? {
        TokenReply::Created { token: made, secret, closes_loopback } => {
            let mut answer = token(&made);
            answer["secret"] = secret.expose().into();
            answer["closes_loopback"] = closes_loopback.into();
            Ok(answer)
        }
        other => Err(unexpected(&Reply::Token(Box::new(other)))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    token: String,
}

/// `admin.token.revoke`: what `admin.tokens` says of it; its connections are closed.
pub(super) async fn revoke(call: Call) -> Result<Value, Error> {
    let Named { token: id } = call.params("admin.token.revoke")?;
    match ask(&call, TokenCommand::Revoke { id }).await? {
        TokenReply::Revoked(revoked) => Ok(token(&revoked)),
        other => Err(unexpected(&Reply::Token(Box::new(other)))),
    }
}

async fn ask(call: &Call, command: TokenCommand) -> Result<TokenReply, Error> {
    match execute(call, Command::Token(Box::new(command))).await? {
        (_, Reply::Token(reply)) => Ok(*reply),
        (_, other) => Err(unexpected(&other)),
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

fn token(token: &Token) -> Value {
    let role = [("admin", Scopes::ADMIN), ("user", Scopes::USER), ("readonly", Scopes::READONLY)]
        .into_iter()
        .find(|(_, scopes)| *scopes == token.scopes)
        .map(|(name, _)| name);
    json!({
        "token": &*token.id,
        "name": &*token.name,
        "kind": token.kind.name(),
        "role": role,
        "scopes": token.scopes.names(),
        "created_ms": token.created.as_millis(),
        "expires_ms": token.expires.map(|at| at.as_millis()),
        "revoked_ms": token.revoked.map(|at| at.as_millis()),
        "used_ms": token.used.map(|at| at.as_millis()),
        "origin": token.origin.map(|origin| origin.to_string()),
    })
}
