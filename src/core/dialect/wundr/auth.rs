//! `auth.refresh` and `auth.logout`, and how a credential ends.
//!
//! A refresh shows a new credential of the kind that was shown before: of the same principal, and
//! with it nobody is allowed more than before. Who is allowed less from then on loses the
//! subscriptions that took more. One that does not hold changes nothing, but for its number: who shows
//! [`REFUSED_MAX`] of them is guessing, and is closed.

use serde::Deserialize;
use serde_json::{Value, json};

use super::shape::{COUNT, Field, NAME, Shape, optional, required};
use super::wire::{self, Failure};
use super::{Call, Request, Turn, Wundr, method};
use crate::auth::pairing::CredentialFault;
use crate::auth::token::Kind;
use crate::auth::{Admitted, jwt};
use crate::error::Error;

/// The parameters of `auth.refresh`.
pub(super) const REFRESH: &[Field] = &[required("token", Shape::Text(1, 16 * 1024), "the new credential")];

/// How many credentials that do not hold may be shown on one connection.
const REFUSED_MAX: u32 = 5;

/// What may be done, and for how long.
pub(super) const GRANTED: &[Field] = &[
    required("scopes", Shape::List(&NAME, 0, 16), "what was granted"),
    optional("expiresAtMs", COUNT, "when the credential ends, and the connection with it"),
];

/// `auth.refresh`: what the connection says to it is told in [`Wundr::on_refreshed`].
pub(super) fn refresh(
    wundr: &mut Wundr,
    request: &mut Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    #[derive(Deserialize)]
    struct Refresh {
        token: String,
    }
    let Refresh { token } = request.read()?;
    wundr.refreshing.push_back(request.id.to_owned());
    turn.authenticate(wundr.shown(token));
    Ok(Call::Elsewhere)
}

/// `auth.logout`
pub(super) fn logout(
    wundr: &mut Wundr,
    request: &mut Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    turn.send(wire::answer(request.id, &json!({ "ok": true })));
    wundr.end(1000, "logout", turn);
    Ok(Call::Elsewhere)
}

impl Wundr {
    /// Another credential was looked at.
    pub(super) fn on_refreshed(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        let Some(id) = self.refreshing.pop_front() else { return };
        match answer {
            Ok(admitted) => {
                let before = std::mem::replace(&mut self.scopes, admitted.principal.scopes);
                self.expires = admitted.principal.expires;
                if before != self.scopes {
                    self.end_subscriptions_beyond(self.scopes, turn);
                }
                let granted = self.granted_auth();
                if let Some(method) = method::find("auth.refresh") {
                    method.check_result(&granted);
                }
                turn.send(wire::answer(&id, &granted));
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

    /// What may be done here, and for how long.
    pub(super) fn granted_auth(&self) -> Value {
        let mut granted = json!({ "scopes": self.scope_names() });
        if let Some(expires) = self.expires {
            granted["expiresAtMs"] = expires.as_millis().into();
        }
        granted
    }

    /// That the credential has ended.
    pub(super) fn expired(&self) -> Failure {
        let at = self.expires.unwrap_or_default();
        let fault = match self.kind {
            Kind::Jwt => CredentialFault::Jwt(jwt::Refusal::Expired { at }),
            Kind::ApiKey => CredentialFault::ApiKeyExpired { at },
        };
        Failure::of(&fault.error())
    }
}
