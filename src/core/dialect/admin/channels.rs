//! `admin.channels` and `admin.channel.*`: the channels there are, and what can be done to one.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, method};
use crate::daemon::operator::{ObserveChannels, PairPeer, Paired, SettleUnsent, Snapshot, UnpairPeer};
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.channels", "{}", list),
    method("admin.channel.pair", r#"{"channel", "code"}"#, pair),
    method("admin.channel.unpair", r#"{"channel", "name"}"#, unpair),
    method("admin.channel.resend", r#"{"channel", "answer"}"#, resend),
    method("admin.channel.drop", r#"{"channel", "answer"}"#, forget),
];

/// `admin.channels`: `{"channels": [..]}`, by name. Of each, `unsent` has the answers that could not be sent: `failed`
/// where the platform refused, `unknown` where nobody knows whether it was carried out.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ObserveChannels, |all| {
        // The bus is none of them.
        let channels = all.children.iter().filter(|child| child.state["channel"].is_string());
        json!({ "channels": channels.map(row).collect::<Vec<_>>() })
    })
}

fn row(observed: &Snapshot) -> Value {
    let state = &observed.state;
    json!({
        "channel": state["channel"],
        "error": observed.silent,
        "adapter": state["adapter"],
        "mode": state["mode"],
        "pairing": state["pairing"],
        "allow": state["allow"],
        "paired": state["paired"],
        "codes": state["codes"],
        "inbox": state["inbox"],
        "running": state["running"],
        "outbox": state["outbox"],
        "unsent": state["unsent"],
        "received": state["received_total"],
        "shut_out": state["shut_out_total"],
        "answered": state["answered_total"],
        "sent": state["sent_total"],
        "last_error": state["last_error"],
        "last_error_ms": state["last_error_ms"],
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PairParams {
    channel: String,
    code: String,
}

/// `admin.channel.pair`: `{"channel", "name"}`, whom the code was told to: from now on they may write.
fn pair(request: &Request) -> Result<Call, Error> {
    let PairParams { channel, code } = request.read()?;
    let pair = PairPeer { channel: channel.clone(), code };
    ask(pair, move |Paired { name }| json!({ "channel": channel, "name": name }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnpairParams {
    channel: String,
    name: String,
}

/// `admin.channel.unpair`: `{"channel", "name", "unpaired": true}`.
fn unpair(request: &Request) -> Result<Call, Error> {
    let UnpairParams { channel, name } = request.read()?;
    let unpair = UnpairPeer { channel: channel.clone(), name: name.clone() };
    ask(unpair, move |_| json!({ "channel": channel, "name": name, "unpaired": true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerParams {
    channel: String,
    answer: i64,
}

/// `admin.channel.resend`: `{"channel", "answer", "resent": true}`, from the request on that was not carried out.
fn resend(request: &Request) -> Result<Call, Error> {
    let AnswerParams { channel, answer } = request.read()?;
    let settle = SettleUnsent { channel: channel.clone(), answer, is_resent: true };
    ask(settle, move |_| json!({ "channel": channel, "answer": answer, "resent": true }))
}

/// `admin.channel.drop`: `{"channel", "answer", "dropped": true}`.
fn forget(request: &Request) -> Result<Call, Error> {
    let AnswerParams { channel, answer } = request.read()?;
    let settle = SettleUnsent { channel: channel.clone(), answer, is_resent: false };
    ask(settle, move |_| json!({ "channel": channel, "answer": answer, "dropped": true }))
}
