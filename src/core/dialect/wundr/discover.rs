//! What the protocol is, told by the tables that do it: to clients (`rpc.discover`, `rpc.describe`)
//! and as a document (`clawmux reference wundr`).

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::event::{EVENTS, Event};
use super::method::{METHODS, Method, find};
use super::shape::{self, COUNT, Field, NAME, Shape, TEXT, required, schema};
use super::wire::{CODES, answer, scope_name};
use super::{Answered, Call, Request, Turn, Wundr, connect};
use crate::error::ErrorCode;

/// The schema of one method in the answers.
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

/// What `rpc.discover` is answered.
pub(super) const RESULT: &[Field] = &[
    required("protocol", COUNT, "the version"),
    required("methods", Shape::List(&Shape::Object(METHOD), 0, usize::MAX), "every method"),
    required("events", Shape::List(&Shape::Object(EVENT), 0, usize::MAX), "every event"),
    required("errors", Shape::List(&NAME, 0, usize::MAX), "every error code"),
];

/// `rpc.discover`: the same for everybody, so it is written once.
pub(super) fn discover(_: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    static REFERENCE: LazyLock<String> = LazyLock::new(|| {
        let reference = document();
        if let Some(method) = find("rpc.discover") {
            method.check_result(&reference);
        }
        reference.to_string()
    });
    turn.send(answer(request.id, &*REFERENCE));
    Ok(Call::Elsewhere)
}

/// `rpc.describe`
pub(super) fn describe(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let method = request.text("method");
    let unknown = || {
        let name = crate::dialect::json::clip(&method);
        ErrorCode::NotFound.error(format!("no such method: {name}; rpc.discover lists them"))
    };
    find(&method).map(|method| Call::Answer(describe_method(method))).ok_or_else(unknown)
}

/// The same for people and programs that read it before they connect: with where it is spoken, its frames, and an
/// example of each method and event, made of its shape.
pub fn reference() -> Value {
    let mut reference = document();
    reference["protocol"] = json!("wundr");
    reference["version"] = json!(connect::PROTOCOL);
    reference["where"] =
        json!("ws://127.0.0.1:18789/v2, JSON text frames; or / where the first frame is auth.connect");
    for (method, told) in METHODS.iter().zip(members(&mut reference, "methods")) {
        let params = shape::example(method.params);
        // Answers in binary frames have the id of the request in them, which has to be a UUID then.
        let id = "5b0a9c1e-6d1f-4a7b-9c33-0e8f4f2d7a10";
        told["example"] = json!({ "type": "req", "id": id, "method": method.name, "params": params });
    }
    for (event, told) in EVENTS.iter().zip(members(&mut reference, "events")) {
        let payload = shape::example(event.payload);
        told["example"] = json!({ "type": "event", "event": event.name, "payload": payload, "seq": 1 });
    }
    let hello = json!({ "type": "req", "id": "1", "method": connect::METHOD, "params": {
        "minProtocol": connect::PROTOCOL, "maxProtocol": connect::PROTOCOL,
        "auth": { "type": "api-key", "token": "..." },
        "client": { "id": "sdk", "version": "1.0.0", "platform": "linux/x64" } } });
    reference["frames"] = json!([
        { "name": "handshake", "from": "client", "example": hello },
        { "name": "request", "from": "client", "example":
            { "type": "req", "id": "2", "method": "health.ping", "params": { "clientTimestamp": 5 } } },
        { "name": "answer", "from": "daemon", "example":
            { "type": "res", "id": "2", "ok": true,
              "payload": { "type": "health.pong", "serverTimestamp": 30000, "clientTimestamp": 5 } } },
        { "name": "refusal", "from": "daemon", "example":
            { "type": "res", "id": "2", "ok": false,
              "error": { "code": "INVALID_REQUEST", "message": "already authenticated" } } },
        { "name": "event", "from": "daemon", "example":
            { "type": "event", "event": "health.heartbeat", "payload": { "serverTimestamp": 30000, "seq": 1 }, "seq": 1 } },
    ]);
    reference
}

fn members<'a>(reference: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    reference[name].as_array_mut().into_iter().flatten()
}

/// The protocol as one JSON document: every method with the schemas of its parameters and its
/// result, every event with that of its payload, and the error codes.
fn document() -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_is_in_the_shape_it_is_of() {
        for method in METHODS {
            let mut params = shape::example(method.params);
            shape::check(method.params, &mut params).unwrap_or_else(|why| panic!("{}: {why}", method.name));
        }
        for event in EVENTS {
            let mut payload = shape::example(event.payload);
            shape::check(event.payload, &mut payload).unwrap_or_else(|why| panic!("{}: {why}", event.name));
        }
    }
}
