//! `admin.bus.*`: how the bus is, and the messages that it could not take.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, method};
use crate::daemon::operator::{DeadLetter, DeadLettersAsked, ObserveBus};
use crate::error::{Error, ErrorCode};

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.bus.status", "{}", status),
    method("admin.bus.dlq.list", r#"{"after"?, "limit"?}"#, list),
    method("admin.bus.dlq.show", r#"{"letter"}"#, show),
    method("admin.bus.dlq.replay", r#"{"letter" or "all"}"#, replay),
    method("admin.bus.dlq.drop", r#"{"letter" or "all"}"#, forget),
];

/// So many are listed where nobody says otherwise, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// `admin.bus.status`: its figures, of which `bus` says how it is: `connecting`, `running`, `away`, `refused` (somebody
/// has to do something, `why` says what), `claimed` (another daemon takes the messages).
fn status(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ObserveBus, |bus| {
        let mut state = bus.state;
        if let Some(silent) = bus.silent {
            state["why"] = silent.into();
        }
        state
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    limit: Option<usize>,
}

/// `admin.bus.dlq.list`: `{"letters": [..]}`, the oldest first, from the one after `after` on.
fn list(request: &Request) -> Result<Call, Error> {
    let ListParams { after, limit } = request.read()?;
    let limit = limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    ask(DeadLettersAsked::List { after, limit }, |letters| letters_of(&letters))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowParams {
    letter: u64,
}

/// `admin.bus.dlq.show`: one of them with its headers and its payload, as `text` or, where it is none, as `base64`.
fn show(request: &Request) -> Result<Call, Error> {
    let ShowParams { letter } = request.read()?;
    ask(DeadLettersAsked::Show(letter), |letters| letters.first().map(whole).unwrap_or_default())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleParams {
    #[serde(default)]
    letter: Option<u64>,
    #[serde(default)]
    all: bool,
}

/// `admin.bus.dlq.replay`: `{"letters": [..]}`, those that were published again; of `all` no more than 1000 at once.
fn replay(request: &Request) -> Result<Call, Error> {
    ask(DeadLettersAsked::Replay(which(request)?), |letters| letters_of(&letters))
}

/// `admin.bus.dlq.drop`: `{"letters": [..]}`, those that are gone; of `all` no more than 1000 at once.
fn forget(request: &Request) -> Result<Call, Error> {
    ask(DeadLettersAsked::Drop(which(request)?), |letters| letters_of(&letters))
}

fn which(request: &Request) -> Result<Option<u64>, Error> {
    match request.read()? {
        SettleParams { letter: Some(letter), all: false } => Ok(Some(letter)),
        SettleParams { letter: None, all: true } => Ok(None),
        _ => Err(ErrorCode::InvalidRequest.error("name one by its number as letter, or set all to true")),
    }
}

fn letters_of(letters: &[DeadLetter]) -> Value {
    json!({ "letters": letters.iter().map(row).collect::<Vec<_>>() })
}

fn row(letter: &DeadLetter) -> Value {
    json!({
        "letter": letter.seq,
        "subject": letter.subject,
        "id": letter.id,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "at_ms": letter.at.as_millis(),
        "bytes": letter.bytes,
    })
}

fn whole(letter: &DeadLetter) -> Value {
    let mut shown = row(letter);
    shown["headers"] = letter.headers.iter().map(|(name, value)| json!([name, value])).collect();
    match letter.payload.clone().map(String::from_utf8) {
        Some(Ok(text)) => shown["text"] = text.into(),
        Some(Err(other)) => shown["base64"] = STANDARD.encode(other.as_bytes()).into(),
        None => {}
    }
    shown
}
