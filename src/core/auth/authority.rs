//! The configured credentials, and who somebody is that shows one.
//!
//! Only digests are kept. A token is compared with every one of them in constant time, so that how
//! long it takes says neither which matched nor how much of it did.

use std::net::SocketAddr;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::pairing::CredentialFault;
use super::{Credentials, Owner, Principal, Scope, Scopes};
use crate::config::{Auth, LoopbackPolicy};
use crate::error::{Error, ErrorCode};

/// Who is let in: immutable, shared by all connections.
#[derive(Clone, Debug)]
pub struct Authority {
    loopback: LoopbackPolicy,
    known: Vec<Known>,
}

#[derive(Clone)]
struct Known {
    sha256: [u8; 32],
    principal: Principal,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.principal.fmt(f)
    }
}

impl Authority {
    /// Of the configured credentials.
    pub fn new(auth: &Auth) -> Self {
        let token = auth.token.as_ref().map(|token| Known {
            sha256: digest(token.expose()),
            principal: Principal {
                name: "token".into(),
                scopes: Scopes::ADMIN,
                owner: Owner::Admins,
                unlimited: false,
            },
        });
        let keys = auth.api_keys.iter().map(|key| {
            let name: Arc<str> = key.name.as_str().into();
            let owner = if key.scopes.allows(Scope::Admin) {
                Owner::Admins
            } else {
                Owner::Credential(Arc::clone(&name))
            };
            Known {
                sha256: key.sha256,
                principal: Principal { name, scopes: key.scopes, owner, unlimited: false },
            }
        });
        Self { loopback: auth.loopback, known: token.into_iter().chain(keys).collect() }
    }

    /// Whether any credential is configured.
    pub fn credentials_configured(&self) -> bool {
        !self.known.is_empty()
    }

    /// Whether a connection must show a credential. `loopback`: it came over a loopback address to
    /// a socket bound to one. `may_skip`: its protocol is the one that `auth.loopback = "skip"` is for.
    pub fn credentials_required(&self, loopback: bool, may_skip: bool) -> bool {
        match self.loopback {
            _ if !loopback => true,
            LoopbackPolicy::Required => true,
            LoopbackPolicy::Skip if may_skip => false,
            LoopbackPolicy::Auto | LoopbackPolicy::Skip => self.credentials_configured(),
        }
    }

    /// Who it is that shows `credentials`. Where none is `required`, whatever is shown is not
    /// looked at and whoever comes is `local`.
    ///
    /// # Errors
    /// `Unauthenticated` where a credential is required and this is none that holds.
    pub fn authenticate(&self, credentials: &Credentials, required: bool) -> Result<Principal, Error> {
        if !required {
            return Ok(Principal::local());
        }
        let Credentials::Token(token) = credentials else {
            return Err(CredentialFault::Missing.error());
        };
        let shown = digest(token.expose());
        let mut found = u32::MAX;
        for (index, known) in (0_u32..).zip(&self.known) {
            found.conditional_assign(&index, known.sha256.ct_eq(&shown));
        }
        usize::try_from(found)
            .ok()
            .and_then(|index| self.known.get(index))
            .map(|known| known.principal.clone())
            .ok_or_else(|| CredentialFault::Mismatch { has_device_token: false }.error())
    }

    /// Who shows the credential of this name, where it is configured.
    pub fn named(&self, name: &str) -> Option<&Principal> {
        self.known.iter().map(|known| &known.principal).find(|principal| *principal.name == *name)
    }

    /// Whether it is safe to listen on these addresses.
    ///
    /// # Errors
    /// `Forbidden`, with what to set, where one of them is off loopback or loopback requires a
    /// credential, and none is configured.
    pub fn may_listen(&self, addresses: &[SocketAddr]) -> Result<(), Error> {
        const SET: &str =
            "set CLAWMUX_TOKEN in the environment, or auth.token_file or [[auth.api_keys]] in gateway.toml";
        if self.credentials_configured() {
            return Ok(());
        }
        if let Some(address) = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
            return Err(ErrorCode::Forbidden.error(format!(
                "{address} is not a loopback address and no credential is configured: {SET}, or listen on 127.0.0.1"
            )));
        }
        if self.loopback == LoopbackPolicy::Required {
            return Err(ErrorCode::Forbidden
                .error(format!("auth.loopback is \"required\" and no credential is configured: {SET}")));
        }
        Ok(())
    }
}

/// SHA-256 of a token, as [`ApiKey`](crate::config::ApiKey) keeps it.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Secret;
    use crate::config::ApiKey;

    fn auth(token: Option<&str>, keys: &[(&str, &str, Scopes)], loopback: LoopbackPolicy) -> Authority {
        Authority::new(&Auth {
            token: token.map(Secret::new),
            loopback,
            api_keys: keys
                .iter()
                .map(|(name, key, scopes)| ApiKey {
                    name: (*name).into(),
                    sha256: digest(key),
                    scopes: *scopes,
                })
                .collect(),
        })
    }

    fn token(text: &str) -> Credentials {
        Credentials::Token(Secret::new(text))
    }

    #[test]
    fn each_credential_is_its_principal_and_nothing_else_is() {
        let readonly = Scopes::of(&[Scope::Read]);
        let authority = auth(
            Some("s3cret"),
            &[("ci", "key-1", readonly), ("boss", "key-2", Scopes::ADMIN)],
            LoopbackPolicy::Auto,
        );
        let who = |text| authority.authenticate(&token(text), true).map(|p| (p.name.to_string(), p.owner));
        assert_eq!(who("s3cret").unwrap(), ("token".into(), Owner::Admins));
        assert_eq!(who("key-1").unwrap(), ("ci".into(), Owner::Credential("ci".into())));
        assert_eq!(who("key-2").unwrap(), ("boss".into(), Owner::Admins));
        let ci = authority.authenticate(&token("key-1"), true).unwrap();
        assert!(ci.scopes == readonly && !ci.unlimited);
        for wrong in ["", "s3cre", "s3crets", "S3cret", "key-3", "İİİİ"] {
            assert_eq!(who(wrong).unwrap_err().code, ErrorCode::Unauthenticated, "{wrong:?}");
        }
        assert!(authority.authenticate(&Credentials::None, true).is_err());
    }

    #[test]
    fn where_none_is_required_everybody_is_local() {
        let authority = auth(None, &[], LoopbackPolicy::Auto);
        for credentials in [Credentials::None, token("anything")] {
            assert_eq!(authority.authenticate(&credentials, false).unwrap(), Principal::local());
        }
        assert!(authority.authenticate(&token(""), true).is_err(), "no credential is not an empty one");
    }

    #[test]
    fn when_a_credential_is_required() {
        use LoopbackPolicy::{Auto, Required, Skip};
        // policy, configured, over loopback, the protocol of `skip`: required
        for (policy, configured, loopback, may_skip, required) in [
            (Auto, false, true, true, false),
            (Auto, false, false, true, true),
            (Auto, true, true, true, true),
            (Required, false, true, true, true),
            (Skip, true, true, true, false),
            (Skip, true, true, false, true),
            (Skip, true, false, true, true),
            (Skip, false, true, false, false),
        ] {
            let authority = auth(configured.then_some("token"), &[], policy);
            assert_eq!(
                authority.credentials_required(loopback, may_skip),
                required,
                "{policy:?}, configured: {configured}, loopback: {loopback}, may skip: {may_skip}"
            );
        }
    }

    #[test]
    fn off_loopback_without_credentials_is_refused_with_what_to_set() {
        let open = auth(None, &[], LoopbackPolicy::Auto);
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(open.may_listen(&[address.parse().unwrap()]).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:1", "192.168.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
            let all = ["127.0.0.1:1".parse().unwrap(), address.parse().unwrap()];
            let error = open.may_listen(&all).unwrap_err();
            assert!(error.message.contains("CLAWMUX_TOKEN"), "{}", error.message);
            assert!(auth(Some("t"), &[], LoopbackPolicy::Skip).may_listen(&all).is_ok());
        }
        assert!(auth(None, &[], LoopbackPolicy::Required).may_listen(&[]).is_err());
    }

    #[test]
    fn no_debug_output_holds_a_digest() {
        let text = format!("{:?}", auth(Some("s3cret"), &[], LoopbackPolicy::Auto));
        assert!(text.contains("token") && !text.contains("sha256") && !text.contains("s3cret"), "{text}");
    }
}
