//! Every method against scopes and bad parameters.

mod feeds;

use super::method::{METHODS, Who, find, scopes_granted};
use super::wire::Protocol;
use crate::dialect::json::Params;
use crate::scope::{Role, Scope, Scopes};

#[test]
fn some_methods_need_what_the_protocol_or_their_parameters_say() {
    let needs = |name: &str, params: &str, protocol| {
        let method = METHODS.iter().find(|method| method.name == name).unwrap();
        let params = serde_json::from_str(params).unwrap();
        method.needs(protocol, Params(Some(params)))
    };
    for name in ["config.get", "config.schema"] {
        assert_eq!(needs(name, "{}", Protocol::Three), Scope::Admin);
        assert_eq!(needs(name, "{}", Protocol::Four), Scope::Read);
    }
    for (set, four) in [
        (r#""label":"x","icon":null"#, Scope::Write),
        (r#""model":"a/b","thinkingLevel":"low","fastMode":true"#, Scope::Write),
        (r#""pinned":true,"archived":false,"unread":false,"autoLabel":"x""#, Scope::Write),
        (r#""permissionMode":"ask""#, Scope::Write),
        (r#""permissionMode":"full""#, Scope::Admin),
        (r#""label":"x","sendPolicy":"deny""#, Scope::Admin),
        (r#""verboseLevel":"on""#, Scope::Admin),
    ] {
        let params = format!(r#"{{"key":"agent:main:main",{set}}}"#);
        assert_eq!(needs("sessions.patch", &params, Protocol::Four), four, "{set}");
        assert_eq!(needs("sessions.patch", &params, Protocol::Three), Scope::Admin, "{set}");
    }
}

#[test]
fn a_client_is_told_what_it_may_really_do() {
    let told = |asked: &[&str], granted: &[Scope]| {
        let asked: Vec<String> = asked.iter().map(|name| format!("operator.{name}")).collect();
        let granted = Scopes::of(granted);
        let names =
            scopes_granted(&asked, granted.and(super::method::scopes_asked(&asked).unwrap_or(granted)));
        names.iter().map(|name| name.trim_start_matches("operator.").to_owned()).collect::<Vec<_>>().join(" ")
    };
    let user = [Scope::Read, Scope::Write, Scope::Teams];
    assert_eq!(told(&["admin"], &user), "read write", "less than it asked for, and not nothing");
    assert_eq!(told(&["admin", "approvals", "pairing"], &user), "read write");
    assert_eq!(told(&["write"], &[Scope::Read]), "read");
    assert_eq!(told(&["admin", "questions"], &[Scope::Admin]), "admin questions");
    assert_eq!(told(&["write"], &[Scope::Admin]), "write", "the least it needs, and no more");
    assert_eq!(told(&["pairing"], &user), "", "nothing at all");
    assert_eq!(told(&[], &user), "read write");
}

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
            let found = find(method.name, Params(None), &who, Protocol::Three);
            // Who may write may read.
            let needs = method.needs(Protocol::Three, Params(None));
            let may = method.role == Role::Node || who.scopes.allows(needs);
            assert_eq!(found.is_ok(), may, "{} with {scope:?}", method.name);
            let other = if method.role == Role::Node { Role::Operator } else { Role::Node };
            let who = Who { role: other, scopes: Scopes::ADMIN };
            let failure = find(method.name, Params(None), &who, Protocol::Four);
            assert!(
                failure.is_err_and(|failure| failure.message.starts_with("unauthorized role")),
                "{}",
                method.name
            );
        }
    }
}
