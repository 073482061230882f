//! Every method times every scope times bad parameters, from the table itself: a new row is tested by
//! being there.

use serde_json::{Value, json};

use super::method::{METHODS, Method};
use super::shape::{Field, Need, Shape};
use super::{Wundr, connect};
use crate::dialect::{Action, Dialect, DialectSetup, Frame, Input, Turn};
use crate::error::{Error, ErrorCode};
use crate::ids::Owner;
use crate::principal::Principal;
use crate::scope::{Scope, Scopes};
use crate::time::Timestamp;

/// A connection on which somebody with these scopes was let in.
fn open(scopes: Scopes) -> (Wundr, u64) {
    let deadline = Timestamp::from_millis(10_000);
    let mut wundr = Wundr::new(DialectSetup {
        handshake_deadline: deadline,
        subscriptions: 8,
        ..DialectSetup::default()
    });
    let mut tickets = 0;
    tell(&mut wundr, Input::Opened, &mut tickets);
    let params = json!({ "minProtocol": 2, "maxProtocol": 2, "auth": { "type": "jwt", "token": "t" },
        "client": { "id": "c", "version": "1", "platform": "p" } });
    request(&mut wundr, connect::METHOD, &params, &mut tickets);
    let mut principal = Principal::local();
    (principal.scopes, principal.owner) = (scopes, Owner::Credential("somebody".into()));
    tell(&mut wundr, Input::Authenticated(Ok(principal.into())), &mut tickets);
    (wundr, tickets)
}

fn tell(wundr: &mut Wundr, input: Input<'_>, tickets: &mut u64) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut random = || [7; 16];
    wundr.handle(input, &mut Turn::new(Timestamp::from_millis(1), &mut actions, tickets, &mut random));
    actions
}

fn request(wundr: &mut Wundr, method: &str, params: &Value, tickets: &mut u64) -> Vec<Action> {
    let frame = json!({ "type": "req", "id": "x", "method": method, "params": params }).to_string();
    tell(wundr, Input::Frame(Frame::Text(frame.into())), tickets)
}

/// How somebody with these scopes is refused: at once, or by way of the connection, which looks at
/// the rate first. None where it is not.
fn refusal(method: &Method, scopes: Scopes, params: &Value) -> Option<(String, String)> {
    let (mut wundr, mut tickets) = open(scopes);
    for action in request(&mut wundr, method.name, params, &mut tickets) {
        match action {
            Action::Execute(_, request) => {
                assert!(scopes.allows(request.needs) || method.needs.is_empty(), "{}", method.name);
                if let Err(Error { code, message, .. }) = request.command {
                    let is_invalid = code == ErrorCode::InvalidRequest;
                    let code = if is_invalid { "INVALID_REQUEST" } else { code.name() };
                    return Some((code.to_owned(), message));
                }
            }
            Action::Send(Frame::Text(text)) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame["type"] == "res" && frame["ok"] == false {
                    let text = |name: &str| frame["error"][name].as_str().unwrap().to_owned();
                    return Some((text("code"), text("message")));
                }
            }
            _ => {}
        }
    }
    None
}

/// Something that has this shape.
fn sample(shape: &Shape) -> Value {
    match shape {
        Shape::Text(min, _) => "x".repeat((*min).max(1)).into(),
        Shape::Integer(min, max) => 1.clamp(*min, *max).into(),
        Shape::Number(min, max) => 0.5_f64.clamp(*min, *max).into(),
        Shape::Flag => true.into(),
        Shape::OneOf(words) => words[0].into(),
        Shape::Time => "2026-01-01T00:00:00Z".into(),
        Shape::List(of, min, _) => vec![sample(of); (*min).max(1)].into(),
        Shape::Object(fields) => sample_of(fields),
        Shape::AnyObject | Shape::Any => json!({}),
    }
}

fn sample_of(fields: &[Field]) -> Value {
    fields.iter().map(|field| (field.name.to_owned(), sample(&field.shape))).collect()
}

/// Something that has not; none where everything has.
fn wrong(shape: &Shape) -> Option<Value> {
    match shape {
        Shape::Any => None,
        Shape::Text(..) | Shape::OneOf(_) | Shape::Time => Some(json!(7)),
        _ => Some(json!("wrong")),
    }
}

/// Objects that miss a member or have a wrong one, each with the path of that.
fn bad(fields: &[Field], path: &str) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for field in fields {
        let path = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        let with = |value: Value| {
            let mut object = sample_of(fields);
            object[field.name] = value;
            object
        };
        if field.need == Need::Required {
            let mut object = sample_of(fields);
            object.as_object_mut().unwrap().remove(field.name);
            all.push((path.clone(), object));
            if !matches!(field.shape, Shape::Any) {
                all.push((path.clone(), with(Value::Null)));
            }
        }
        all.extend(wrong(&field.shape).map(|value| (path.clone(), with(value))));
        if let Shape::Object(members) = &field.shape {
            all.extend(bad(members, &path).into_iter().map(|(path, value)| (path, with(value))));
        }
    }
    all
}

/// No scope, each alone, and all.
fn scopes() -> impl Iterator<Item = Scopes> {
    std::iter::once(Scopes::NONE).chain(Scope::ALL.map(|scope| Scopes::of(&[scope])))
}

#[test]
fn scope_comes_before_parameters() {
    for method in METHODS.iter().filter(|method| method.name != connect::METHOD) {
        for scopes in scopes() {
            let allowed = method.needs.is_empty() || method.needs.iter().any(|scope| scopes.allows(*scope));
            let refused = refusal(method, scopes, &json!([]));
            let (code, message) = refused.unwrap_or_else(|| panic!("{} takes an array", method.name));
            let expected = if allowed { "INVALID_REQUEST" } else { "FORBIDDEN" };
            assert_eq!(code, expected, "{} with {scopes:?}: {message}", method.name);
        }
    }
}

#[test]
fn every_wrong_parameter_is_refused_by_its_path() {
    let mut tried = 0;
    for method in METHODS.iter().filter(|method| method.name != connect::METHOD) {
        for (path, params) in bad(method.params, "") {
            let refused = refusal(method, Scopes::ADMIN, &params);
            let (code, message) = refused.unwrap_or_else(|| panic!("{} takes {params}", method.name));
            assert_eq!(code, "INVALID_REQUEST", "{} with {params}: {message}", method.name);
            let begins = format!("invalid params for {}: ", method.name);
            assert!(message.starts_with(&begins) && message.contains(&path), "{params}: {message}");
            tried += 1;
        }
    }
    assert!(tried >= 2, "the table has parameters");
}

#[test]
fn what_has_the_shape_is_not_refused_for_its_shape() {
    for method in METHODS.iter().filter(|method| method.name != connect::METHOD) {
        let params = sample_of(method.params);
        if let Some((_, message)) = refusal(method, Scopes::ADMIN, &params) {
            let by_shape =
                [": required", ": expected ", ": must be "].iter().any(|why| message.contains(why));
            assert!(!by_shape, "{} with {params}: {message}", method.name);
        }
    }
}

#[test]
fn names_are_unique_and_say_their_domain() {
    let mut names: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
    names.extend(super::event::EVENTS.iter().map(|event| event.name));
    for name in &names {
        let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphabetic());
        assert!(name.split('.').all(is_word), "{name}");
    }
    let methods = &names[..METHODS.len()];
    assert!(methods.iter().enumerate().all(|(at, name)| !methods[..at].contains(name)), "{methods:?}");
}
