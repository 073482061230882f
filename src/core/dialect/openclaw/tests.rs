//! Every method against scopes and bad parameters.

use super::method::{METHODS, Who, find};
use super::wire::Protocol;
use crate::auth::{Role, Scope, Scopes};

#[test]
fn methods_are_named_once() {
    for (at, method) in METHODS.iter().enumerate() {
        assert!(METHODS[..at].iter().all(|other| other.name != method.name), "{} has two rows", method.name);
    }
}

#[test]
fn nobody_calls_a_method_without_its_scope() {
    for method in METHODS {
        for scope in Scope::ALL {
            let who = Who { role: method.role, scopes: Scopes::of(&[scope]) };
            let found = find(method.name, &who, Protocol::Four);
            // Who may write may read.
            let may = method.role == Role::Node || who.scopes.allows(method.needs);
            assert_eq!(found.is_ok(), may, "{} with {scope:?}", method.name);
            let other = if method.role == Role::Node { Role::Operator } else { Role::Node };
            let failure = find(method.name, &Who { role: other, scopes: Scopes::ADMIN }, Protocol::Four);
            assert!(
                failure.is_err_and(|failure| failure.message.starts_with("unauthorized role")),
                "{}",
                method.name
            );
        }
    }
}
