//! `auth.refresh` and `auth.logout`, and how a credential ends.
//!
//! A refresh shows a new credential of the kind that was shown before: of the same principal, and
//! with it nobody is allowed more than before. Who shows again the JWT that the connection is let in with,
//! and has it from this daemon (`clawmux token create --jwt`), is given a fresh one of the same name, scopes
//! and length of life, and the connection goes on with that; the one shown holds for [`RENEWED_OVERLAP`](crate::access::token::RENEWED_OVERLAP) more. Who is allowed less from then on loses the
//! subscriptions that took more. One that does not hold changes nothing, but for its number: who shows
//! [`REFUSED_MAX`] of them is guessing, and is closed.

use serde_json::{Value, json};

use super::shape::{COUNT, Field, NAME, Shape, optional, required};
use super::wire::{self, Failure};
use super::{Answered, Call, Calling, Request, Turn, Wundr, method};
use crate::access::token::{Kind, RenewToken};
use crate::access::{Admitted, Secret};
use crate::dialect::json::put;
use crate::error::Error;
use crate::error::credential::{CredentialFault, Refusal};
use crate::principal::Grounds;
use crate::time::Timestamp;

/// The parameters of `auth.refresh`.
pub(super) const REFRESH: &[Field] = &[required(
    "token",
    Shape::Text(1, 16 * 1024),
    "the new credential; or the JWT shown before, where this daemon gave it out and is to give out a fresh one",
)];

/// What a fresh one costs, in units of `[limits]`.
const RENEWAL_COST: u32 = 2;

/// How many credentials that do not hold may be shown on one connection.
const REFUSED_MAX: u32 = 5;

/// What may be done, and for how long.
pub(super) const GRANTED: &[Field] = &[
    required("scopes", Shape::List(&NAME, 0, 16), "what was granted"),
    optional("expiresAtMs", COUNT, "when the credential ends, and the connection with it"),
];

/// What `auth.refresh` is answered.
pub(super) const REFRESHED: &[Field] = &[
    required("scopes", Shape::List(&NAME, 0, 16), "what was granted"),
    optional("expiresAtMs", COUNT, "when the credential ends, and the connection with it"),
    optional(
        "token",
        NAME,
        "a fresh JWT, where the one was shown again that this daemon gave out; that one ends in 5 minutes",
    ),
];

/// A credential that is looked at.
#[derive(Debug)]
pub(super) struct Refreshing {
    /// The request.
    id: String,
    /// Whether it was given out for this request, so that its client is told of it.
    fresh: Option<Secret>,
}

/// `auth.refresh`: what the connection says to it is told in [`Wundr::on_refreshed`].
pub(super) fn refresh(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    wundr.refreshing.push_back(Refreshing { id: request.id.to_owned(), fresh: None });
    turn.authenticate(wundr.shown(request.text("token")));
    Ok(Call::Elsewhere)
}

/// `auth.logout`
pub(super) fn logout(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    turn.send(wire::answer(request.id, &json!({ "ok": true })));
    wundr.end(1000, "logout", turn);
    Ok(Call::Elsewhere)
}

impl Wundr {
    /// Another credential was looked at.
    pub(super) fn on_refreshed(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        let Some(Refreshing { id, fresh }) = self.refreshing.pop_front() else { return };
        match answer {
            Ok(Admitted { principal, .. }) => {
                let grounds = std::mem::replace(&mut self.grounds, principal.grounds);
                let before = std::mem::replace(&mut self.scopes, principal.scopes);
                self.expires = principal.expires;
                if before != self.scopes {
                    self.end_subscriptions_beyond(self.scopes, turn);
                }
                if let (Grounds::Minted(token, _), None) = (&self.grounds, &fresh)
                    && grounds == self.grounds
                {
                    let token = token.to_string();
                    return self.renew(id, token, turn);
                }
                self.refreshed(&id, fresh.as_ref(), turn);
            }
            Err(error) => {
                turn.send(wire::refusal(&id, &Failure::of(&error)));
                self.refused += 1;
                if self.refused >= REFUSED_MAX {
                    self.end(1008, "unauthorized: too many credentials that do not hold", turn);
                }
            }
        }
    }

    /// Has a fresh credential given out, and then looked at as if it had been shown.
    fn renew(&mut self, id: String, token: String, turn: &mut Turn<'_>) {
        let terms = (self.granted(&[]), RENEWAL_COST);
        self.under(terms, RenewToken { id: token }, turn, move |dialect, reply, turn| match reply {
            Ok(renewed) => {
                turn.authenticate(dialect.shown(renewed.secret.expose().to_owned()));
                dialect.refreshing.push_back(Refreshing { id, fresh: Some(renewed.secret) });
            }
            Err(error) => turn.send(wire::refusal(&id, &Failure::of(&error))),
        });
    }

    /// Answers with what may be done from here on.
    fn refreshed(&self, id: &str, fresh: Option<&Secret>, turn: &mut Turn<'_>) {
        let mut granted = self.granted_auth();
        put(&mut granted, "token", fresh.map(Secret::expose));
        if let Some(method) = method::find("auth.refresh") {
            method.check_result(&granted);
        }
        turn.send(wire::answer(id, &granted));
    }

    /// What may be done here, and for how long.
    pub(super) fn granted_auth(&self) -> Value {
        let mut granted = json!({ "scopes": self.scope_names() });
        put(&mut granted, "expiresAtMs", self.expires.map(Timestamp::as_millis));
        granted
    }

    /// That the credential has ended.
    pub(super) fn expired(&self) -> Failure {
        let at = self.expires.unwrap_or_default();
        let fault = match self.kind {
            Kind::Jwt => CredentialFault::Jwt(Refusal::Expired { at }),
            Kind::ApiKey => CredentialFault::ApiKeyExpired { at },
        };
        Failure::of(&fault.error())
    }
}
