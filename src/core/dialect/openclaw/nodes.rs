//! Nodes: clients that offer commands, which operators and granted agents have them do.
//!
//! A node connects in the role `node` and is sent `node.invoke.request`; it answers with
//! `node.invoke.result`. Of the events that a node may send of its own accord ([`EVENTS`]) those that
//! begin a run are refused by name, for a node is let in to be asked and not to ask; those that
//! follow a session and those of a command under way change nothing here and are taken. Others are
//! taken in silence, as Clawdbot's gateway does.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::wire::Rest;
use super::{Answered, Call, OpenClaw, Request, wire};
use crate::dialect::Turn;
use crate::error::{Error, ErrorCode};
use crate::tools::node::{
    INVOKE_TIMEOUT, Invocation, InvokeNode, ListNodes, NodeFailure, NodeResult, NodeRow,
};

/// What a node may tell of its own accord, and whether that is taken.
const EVENTS: &[(&str, bool)] = &[
    ("voice.transcript", false),
    ("agent.request", false),
    ("chat.subscribe", true),
    ("chat.unsubscribe", true),
    ("exec.started", true),
    ("exec.finished", true),
    ("exec.denied", true),
];

fn row(node: &NodeRow) -> Value {
    let about = &node.about;
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names.dedup();
        names
    };
    let mut row = json!({
        "nodeId": &*node.id,
        "remoteIp": node.host,
        "caps": sorted(&about.caps),
        "commands": sorted(&about.commands),
        "connectedAtMs": node.connected.as_millis(),
        "paired": true,
        "connected": true,
    });
    let optional = [
        ("displayName", about.display_name.as_deref()),
        ("platform", Some(about.platform.as_str())),
        ("version", Some(about.version.as_str())),
        ("deviceFamily", about.device_family.as_deref()),
        ("modelIdentifier", about.model_identifier.as_deref()),
    ];
    for (name, value) in optional {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            row[name] = value.into();
        }
    }
    if !about.permissions.is_empty() {
        row["permissions"] =
            about.permissions.iter().cloned().map(|(name, is)| (name, Value::Bool(is))).collect();
    }
    row
}

/// Asks which nodes there are.
fn nodes(answer: impl FnOnce(Vec<NodeRow>, u64) -> Result<Value, Error> + 'static) -> Answered {
    Call::ask_on(ListNodes, |_, nodes, turn| answer(nodes, turn.now().as_millis()).map(Call::Answer))
}

/// `node.list`: those that are connected.
pub(super) fn list(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    nodes(|mut nodes, ts| {
        nodes.sort_by_key(|node| node.about.display_name.as_deref().unwrap_or(&node.id).to_lowercase());
        Ok(json!({ "ts": ts, "nodes": nodes.iter().map(row).collect::<Vec<_>>() }))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeParams {
    node_id: String,
}

/// `node.describe`.
pub(super) fn describe(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let NodeParams { node_id } = request.read()?;
    nodes(move |nodes, ts| {
        let node = nodes.iter().find(|node| *node.id == *node_id.trim());
        let mut row = node.map(row).ok_or_else(|| ErrorCode::NotFound.error("unknown nodeId"))?;
        row["ts"] = ts.into();
        Ok(row)
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Invoke<'a> {
    node_id: String,
    command: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    timeout_ms: Option<u64>,
    idempotency_key: Option<String>,
}

/// `node.invoke`: answered when the node has.
pub(super) fn invoke(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let invoke: Invoke<'_> = request.read()?;
    let (node, command) = (invoke.node_id.trim().to_owned(), invoke.command.trim().to_owned());
    if node.is_empty() || command.is_empty() {
        return Err(request.invalid("nodeId and command required"));
    }
    let invoke = InvokeNode {
        node,
        command,
        params: invoke.params.map(|params| params.get().to_owned()).filter(|params| params != "null"),
        timeout: invoke.timeout_ms.map_or(INVOKE_TIMEOUT, Duration::from_millis),
        idempotency_key: invoke.idempotency_key.filter(|key| !key.is_empty()),
    };
    Call::ask_on(Box::new(invoke), |_, invoked, _| match invoked.outcome {
        Ok(payload) => {
            let value = payload.as_deref().map(serde_json::from_str::<Value>);
            Ok(Call::Answer(json!({
                "ok": true,
                "nodeId": &*invoked.node,
                "command": invoked.command,
                // What is no JSON can't be shown but as the text it is.
                "payload": value.and_then(Result::ok),
                "payloadJSON": payload,
            })))
        }
        Err(NodeFailure { code, message }) => {
            Err(ErrorCode::Unavailable.error(format!("node invoke failed: {code}: {message}")))
        }
    })
}

#[derive(Deserialize)]
struct Outcome<'a> {
    id: String,
    ok: bool,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow, rename = "payloadJSON")]
    payload_json: Option<&'a RawValue>,
    error: Option<Failed>,
}

#[derive(Default, Deserialize)]
struct Failed {
    code: Option<String>,
    message: Option<String>,
}

/// `node.invoke.result`, from a node.
pub(super) fn result(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let told: Outcome<'_> = request.read()?;
    let outcome = if told.ok {
        // JSON within a text, or JSON as it is.
        let written = told.payload_json.filter(|raw| raw.get() != "null");
        let text = written
            .map(|raw| serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned()));
        Ok(text.or_else(|| told.payload.map(|raw| raw.get().to_owned()).filter(|text| text != "null")))
    } else {
        let Failed { code, message } = told.error.unwrap_or_default();
        Err(NodeFailure {
            code: code.unwrap_or_else(|| "FAILED".into()),
            message: message.unwrap_or_else(|| "the node does not say why".into()),
        })
    };
    Call::ask(NodeResult { invocation: Arc::from(told.id), outcome }, |_, _, _| json!({ "ok": true }))
}

#[derive(Deserialize)]
struct Happened {
    event: String,
}

/// `node.event`, from a node.
pub(super) fn event(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Happened { event } = request.read()?;
    match EVENTS.iter().find(|(name, _)| *name == event) {
        Some((name, false)) => {
            Err(ErrorCode::Unavailable.error(format!("{name} is not taken: a node begins no runs here")))
        }
        Some((_, true)) | None => Ok(Call::Answer(json!({ "ok": true }))),
    }
}

/// `skills.bins`, from a node: it has no programs to look for, since no skill runs any on a node.
pub(super) fn skills_bins(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Ok(Call::Answer(json!({ "bins": [] })))
}

impl OpenClaw {
    /// Has the node do something.
    pub(super) fn tell_invocation(&mut self, invocation: &Invocation, turn: &mut Turn<'_>) {
        let Invocation { id, node, command, params, timeout, idempotency_key } = invocation;
        let mut payload = json!({
            "id": &**id,
            "nodeId": &**node,
            "command": command,
            "paramsJSON": params,
            "timeoutMs": u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        });
        if let Some(key) = idempotency_key {
            payload["idempotencyKey"] = key.as_str().into();
        }
        turn.send(wire::event("node.invoke.request", &payload.to_string(), Rest::default()));
    }
}
