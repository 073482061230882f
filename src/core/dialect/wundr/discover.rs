//! What the protocol is, told by the tables that do it: to clients (`rpc.discover`, `rpc.describe`)
//! and as a document (`clawmux reference wundr`).

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::event::{EVENTS, Event};
use super::method::{METHODS, Method, find};
use super::shape::{COUNT, Field, NAME, Shape, TEXT, required, schema};
use super::wire::{CODES, answer, scope_name};
use super::{Call, Request, Turn, Wundr, connect};
use crate::error::{Error, ErrorCode};

/// A method, told.
pub(super) const METHOD: &[Field] = &[
    required("name", NAME, "its name"),
    required("description", TEXT, "what it does"),
    required("scopes", Shape::List(&NAME, 0, usize::MAX), "any of these is enough; none = everybody"),
    required("cost", COUNT, "what it costs of the principal's rate"),
    required("params", Shape::AnyObject, "its parameters, as JSON Schema"),
    required("result", Shape::AnyObject, "the payload of its answer, as JSON Schema"),
];

const EVENT: &[Field] = &[
    required("name", NAME, "its name"),
    required("description", TEXT, "when it comes"),
    required("payload", Shape::AnyObject, "its payload, as JSON Schema"),
];

/// All of it.
pub(super) const RESULT: &[Field] = &[
    required("protocol", COUNT, "the version"),
    required("methods", Shape::List(&Shape::Object(METHOD), 0, usize::MAX), "every method"),
    required("events", Shape::List(&Shape::Object(EVENT), 0, usize::MAX), "every event"),
    required("errors", Shape::List(&NAME, 0, usize::MAX), "every error code"),
];

/// `rpc.discover`: the same for everybody, so it is written once.
pub(super) fn discover(_: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Result<Call, Error> {
    static REFERENCE: LazyLock<String> = LazyLock::new(|| {
        let reference = reference();
        if let Some(method) = find("rpc.discover") {
            method.check_result(&reference);
        }
        reference.to_string()
    });
    turn.send(answer(request.id, &*REFERENCE));
    Ok(Call::Elsewhere)
}

#[derive(Deserialize)]
struct Describe {
    method: String,
}

/// `rpc.describe`
pub(super) fn describe(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Result<Call, Error> {
    let Describe { method } = request.read()?;
    let unknown = || {
        let name = crate::dialect::json::clip(&method);
        ErrorCode::NotFound.error(format!("no such method: {name}; rpc.discover lists them"))
    };
    find(&method).map(|method| Call::Answer(describe_method(method))).ok_or_else(unknown)
}

/// The protocol as one JSON document: every method with the schemas of its parameters and its
/// result, every event with that of its payload, and the error codes.
pub fn reference() -> Value {
    json!({
        "protocol": connect::PROTOCOL,
        "methods": METHODS.iter().map(describe_method).collect::<Vec<_>>(),
        "events": EVENTS.iter().map(describe_event).collect::<Vec<_>>(),
        "errors": CODES,
    })
}

fn describe_method(method: &Method) -> Value {
    json!({
        "name": method.name,
        "description": method.doc,
        "scopes": method.needs.iter().map(|scope| scope_name(*scope)).collect::<Vec<_>>(),
        "cost": method.cost,
        "params": schema(method.params),
        "result": schema(method.result),
    })
}

fn describe_event(event: &Event) -> Value {
    json!({ "name": event.name, "description": event.doc, "payload": schema(event.payload) })
}
