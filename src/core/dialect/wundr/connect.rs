//! The handshake: `auth.connect` and hello.
//!
//! | first frame | answer |
//! |---|---|
//! | `auth.connect` that holds | hello |
//! | wrong parameters | `INVALID_REQUEST`, close 1008 |
//! | no common version | `PROTOCOL_MISMATCH`, close 1002 |
//! | a credential that does not hold | `UNAUTHORIZED`, close 1008 |
//! | another request, or no JSON | `INVALID_REQUEST`, close 1008 |
//! | JSON but no request, or binary | close 1008 |
//! | none in time | close 1008 |
//!
//! They are looked at in this order. What is granted is what was asked for and is allowed; asking
//! for nothing asks for all that is allowed. (Source: the protocol's document, sections 3 and 8;
//! where it is silent, Wundr's daemon.)

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::message_bytes_max;
use super::event::EVENTS;
use super::method::METHODS;
use super::shape::{COUNT, Field, NAME, Shape, optional, required};
use super::wire::{Failure, Incoming, SCOPES, refusal, scope_name};
use super::{Answered, Phase, Request, Turn, Wundr, auth as session, method, wire};
use crate::access::token::Kind;
use crate::access::{About, Admitted, Claim, Credentials, Secret};
use crate::dialect::Frame;
use crate::error::{Error, ErrorCode};
use crate::scope::Scopes;

/// The method that has to come first, and only once.
pub(super) const METHOD: &str = "auth.connect";

/// The version spoken here.
pub(super) const PROTOCOL: i64 = 2;

/// What works here and a client may want to know of before it asks.
const CAPABILITIES: &[&str] = &["streaming", "binary", "tool-approval", "teams", "batching", "discovery"];

const SCOPE_NAMES: &[&str] =
    &["daemon.admin", "daemon.read", "daemon.write", "daemon.approve", "daemon.teams"];

/// The parameters of `auth.connect`.
pub(super) const PARAMS: &[Field] = &[
    required("minProtocol", VERSION, "the lowest version the client speaks"),
    required("maxProtocol", VERSION, "the highest"),
    required("auth", Shape::Object(AUTH), "what it shows to be let in"),
    required("client", Shape::Object(CLIENT), "what it says of itself"),
    optional("capabilities", Shape::List(&NAME, 0, 64), "what it can do, in its own words"),
    optional(
        "scopes",
        Shape::List(&Shape::OneOf(SCOPE_NAMES), 0, 16),
        "what it wants to be allowed; absent or empty = all that the credential allows",
    ),
];

const VERSION: Shape = Shape::Integer(1, i32::MAX as i64);

const AUTH: &[Field] = &[
    required("type", Shape::OneOf(&["jwt", "api-key"]), "what kind of credential"),
    required("token", Shape::Text(1, 16 * 1024), "the credential"),
];

const CLIENT: &[Field] = &[
    required("id", Shape::Text(1, 256), "which program it is"),
    required("version", Shape::Text(1, 256), "its version"),
    required("platform", Shape::Text(1, 256), "what it runs on"),
    optional("displayName", Shape::Text(0, 256), "its name for people"),
    optional("instanceId", Shape::Text(0, 256), "tells its instances apart"),
];

/// What `auth.connect` is answered.
pub(super) const HELLO: &[Field] = &[
    required("type", Shape::OneOf(&["hello"]), "what it is"),
    required("protocol", COUNT, "the version spoken from here on"),
    required("connectionId", NAME, "this connection"),
    required(
        "server",
        Shape::Object(&[
            required("version", NAME, "of the daemon"),
            required("capabilities", Shape::List(&NAME, 0, 64), "what works here"),
        ]),
        "who answers",
    ),
    required("methods", Shape::List(&NAME, 0, usize::MAX), "what may be asked"),
    required("events", Shape::List(&NAME, 0, usize::MAX), "what may be told"),
    required(
        "policy",
        Shape::Object(&[
            required("maxPayloadBytes", COUNT, "the largest frame"),
            required("heartbeatIntervalMs", COUNT, "how often health.heartbeat comes"),
            required("heartbeatTimeoutMs", COUNT, "who is silent for so long is closed"),
            required("maxBufferedBytes", COUNT, "who is further behind is closed as a slow consumer"),
        ]),
        "limits that hold here",
    ),
    required("auth", Shape::Object(session::GRANTED), "what may be done here"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Connect {
    min_protocol: i64,
    max_protocol: i64,
    auth: Auth,
    client: Client,
    scopes: Option<Vec<String>>,
    capabilities: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(rename = "type")]
    kind: String,
    token: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Client {
    id: String,
    version: String,
    platform: String,
    display_name: Option<String>,
    instance_id: Option<String>,
}

/// A handshake under way.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    /// The id of the `auth.connect`.
    id: String,
}

/// Whether a first frame is meant for this protocol, wherever it came.
pub fn is_greeting(frame: &Frame) -> bool {
    let Frame::Text(text) = frame else { return false };
    matches!(wire::read(text), Incoming::Request { method, .. } if method == METHOD)
}

/// `auth.connect`, a second time.
pub(super) fn again(_: &mut Wundr, _: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    Err(ErrorCode::InvalidRequest.error("already authenticated"))
}

impl Wundr {
    /// No handshake in time.
    pub(super) fn on_handshake_deadline(&mut self, turn: &mut Turn<'_>) {
        if turn.now() >= self.setup.handshake_deadline {
            self.end(1008, "handshake timeout: auth.connect has to come first", turn);
        }
    }

    /// The first frame: `auth.connect`, or the end.
    pub(super) fn on_first(&mut self, frame: &Frame, turn: &mut Turn<'_>) {
        let Frame::Text(text) = frame else {
            return self.end(1008, "binary before auth.connect", turn);
        };
        const FIRST: &str = "the first request must be auth.connect";
        let (id, name, params) = match wire::read(text) {
            Incoming::Request { id, method, params } => (id, method, params),
            Incoming::Garbage => {
                let failure = Failure::invalid(format!("malformed JSON: {FIRST}"));
                return self.refuse(wire::NO_ID, &failure, 1008, turn);
            }
            Incoming::Broken(..) | Incoming::Batch(_) => {
                let reason =
                    "protocol v2 is spoken here: the first frame must be a req auth.connect, see /v2";
                return self.end(1008, reason, turn);
            }
        };
        let Some(method) = method::find(&name).filter(|method| method.name == METHOD) else {
            return self.refuse(&id, &Failure::invalid(FIRST), 1008, turn);
        };
        match method.checked(params).map(serde_json::from_value::<Connect>) {
            Ok(Ok(connect)) => self.on_connect(id, connect, turn),
            Ok(Err(why)) => self.refuse(&id, &Failure::invalid(why.to_string()), 1008, turn),
            Err(error) => self.refuse(&id, &Failure::of(&error), 1008, turn),
        }
    }

    fn on_connect(&mut self, id: String, connect: Connect, turn: &mut Turn<'_>) {
        let (min, max) = (connect.min_protocol, connect.max_protocol);
        let chosen = max.min(PROTOCOL);
        if chosen < min || chosen < PROTOCOL {
            let failure = Failure::new(
                "PROTOCOL_MISMATCH",
                format!("version {PROTOCOL} is spoken here, not one from {min} to {max}"),
            )
            .with(json!({ "minProtocol": PROTOCOL, "maxProtocol": PROTOCOL }));
            return self.refuse(&id, &failure, 1002, turn);
        }
        let asked = connect.scopes.filter(|names| !names.is_empty()).map(|names| {
            let known =
                SCOPES.into_iter().filter(|scope| names.iter().any(|name| name == scope_name(*scope)));
            Scopes::of(&known.collect::<Vec<_>>())
        });
        self.kind = Kind::from_name(&connect.auth.kind).unwrap_or(Kind::ApiKey);
        let credentials = self.shown(connect.auth.token);
        let Client { id: client_id, version, platform, display_name, instance_id } = connect.client;
        let caps = connect.capabilities.unwrap_or_default();
        let about =
            About { client_id, version, platform, display_name, instance_id, caps, ..About::default() };
        self.greeting = Greeting { id };
        self.phase = Phase::Checking;
        turn.authenticate(Claim { credentials, scopes: asked, about, ..Claim::default() });
    }

    /// What is shown, as what it is said to be; where nothing is required nothing is looked at.
    pub(super) fn shown(&self, token: String) -> Credentials {
        match self.kind {
            _ if !self.setup.credentials_required => Credentials::None,
            Kind::ApiKey => Credentials::ApiKey(Secret::new(token)),
            Kind::Jwt => Credentials::Jwt(Secret::new(token)),
        }
    }

    /// The credential was looked at.
    pub(super) fn on_authenticated(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        let id = std::mem::take(&mut self.greeting.id);
        let principal = match answer {
            Ok(admitted) => admitted.principal,
            Err(error) => {
                let (code, failure) = (close_code(&error), Failure::of(&error));
                return self.refuse(&id, &failure, code, turn);
            }
        };
        self.scopes = principal.scopes;
        self.expires = principal.expires;
        self.owner = principal.owner;
        self.grounds = principal.grounds;
        self.phase = Phase::Open;
        self.next_heartbeat = turn.now().after(self.setup.heartbeat_interval);
        let hello = self.hello(turn);
        turn.send(wire::answer(&id, &hello));
    }

    fn hello(&self, turn: &mut Turn<'_>) -> Value {
        let connection = uuid::Builder::from_random_bytes(turn.random()).into_uuid();
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        json!({
            "type": "hello",
            "protocol": PROTOCOL,
            "connectionId": format!("conn_{connection}"),
            "server": { "version": &*self.setup.version, "capabilities": CAPABILITIES },
            "methods": METHODS.iter().map(|method| method.name).collect::<Vec<_>>(),
            "events": EVENTS.iter().map(|event| event.name).collect::<Vec<_>>(),
            "policy": {
                "maxPayloadBytes": message_bytes_max(self.scopes, self.setup.max_payload_bytes),
                "heartbeatIntervalMs": millis(self.setup.heartbeat_interval),
                "heartbeatTimeoutMs": millis(self.setup.heartbeat_timeout),
                "maxBufferedBytes": self.setup.max_buffered_bytes,
            },
            "auth": self.granted_auth(),
        })
    }

    /// What may be done here, by the protocol's names.
    pub(super) fn scope_names(&self) -> Vec<&'static str> {
        SCOPES.into_iter().filter(|scope| self.scopes.allows(*scope)).map(scope_name).collect()
    }

    /// Says why, and closes.
    fn refuse(&mut self, id: &str, failure: &Failure, code: u16, turn: &mut Turn<'_>) {
        turn.send(refusal(id, failure));
        let reason = match failure.code {
            "UNAUTHORIZED" => "unauthorized",
            "PROTOCOL_MISMATCH" => "protocol mismatch",
            "RATE_LIMITED" => "rate limited",
            _ => "invalid handshake",
        };
        self.end(code, reason, turn);
    }
}

/// How a connection is closed that was refused for this.
fn close_code(error: &Error) -> u16 {
    match error.code {
        ErrorCode::Internal => 1011,
        ErrorCode::Unavailable | ErrorCode::RateLimited => 1013,
        _ => 1008,
    }
}
