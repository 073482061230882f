//! The handshake: challenge, `connect`, hello-ok.
//!
//! What a `connect` may be refused for is looked at in the order of Clawdbot's gateway: parameters,
//! protocol number, role, device, credential, pairing. Whoever shows a credential that holds needs
//! no device. Every refusal is an answer and then a Close with the same words; clients of protocol 4
//! go by `details.code`, and without one they would try again for ever.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::message_bytes_max;
use super::method::{EVENTS, METHODS, Who, scopes_asked, scopes_granted};
use super::wire::{Failure, Incoming, Protocol};
use super::{Calling, OpenClaw, Phase, devices, keys, wire};
use crate::access::device::{self, Checked, Circumstances, Proof, Refusal};
use crate::access::{About, Admitted, Claim, Credentials, DeviceClaim, Secret};
use crate::daemon::command::{GetOverview, Overview};
use crate::dialect::{Frame, Turn};
use crate::error::{Detail, Error, ErrorCode};
use crate::scope::{Role, Scopes};

/// What the gateway can do besides its methods: `models.list` has all models there are to choose from.
const CAPABILITIES: [&str; 1] = ["published-model-catalog"];

/// The reason of a Close has room for so many bytes.
const REASON_BYTES_MAX: usize = 123;

/// The parameters of `connect`, as far as anything follows from them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Connect {
    min_protocol: u64,
    max_protocol: u64,
    client: Client,
    role: Option<String>,
    scopes: Option<Vec<String>>,
    caps: Option<Vec<String>>,
    commands: Option<Vec<String>>,
    permissions: Option<std::collections::BTreeMap<String, bool>>,
    auth: Option<Auth>,
    device: Option<Device>,
}

/// The device a client says it comes from.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    id: String,
    public_key: String,
    signature: String,
    signed_at: Option<Value>,
    nonce: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Client {
    id: String,
    version: Option<String>,
    platform: Option<String>,
    mode: Option<String>,
    display_name: Option<String>,
    device_family: Option<String>,
    model_identifier: Option<String>,
    instance_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Auth {
    token: Option<String>,
    password: Option<String>,
    device_token: Option<String>,
    bootstrap_token: Option<String>,
}

/// Holds secrets.
impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// A handshake under way.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    /// The id of the `connect`.
    id: String,
    /// The scopes it asked for.
    scopes: Vec<String>,
    /// Whether it showed a password, for the words of a refusal.
    is_password: bool,
    /// What was let in.
    admitted: Option<Admitted>,
}

impl OpenClaw {
    /// Sends the nonce that a device has to sign.
    pub(super) fn challenge(&mut self, turn: &mut Turn<'_>) {
        self.phase = Phase::Waiting;
        self.nonce = uuid::Builder::from_random_bytes(turn.random()).into_uuid().to_string();
        let payload = json!({ "nonce": self.nonce, "ts": turn.now().as_millis() });
        turn.send(wire::event("connect.challenge", &payload.to_string(), wire::Rest::default()));
    }

    /// Nothing came in time, or nothing that could be answered.
    pub(super) fn on_deadline(&mut self, turn: &mut Turn<'_>) {
        if turn.now() >= self.setup.handshake_deadline {
            self.end(1000, "", turn);
        }
    }

    /// The first frame: a `connect`, or the end.
    pub(super) fn on_first(&mut self, frame: &Frame, turn: &mut Turn<'_>) {
        let (id, method, params) = match wire::read(frame) {
            Incoming::Request { id, method, params } => (id, method, params),
            Incoming::Garbage => return self.end(1000, "", turn),
            Incoming::Event | Incoming::Broken(..) => {
                return self.end(1008, "invalid handshake: first request must be connect", turn);
            }
        };
        if method != "connect" {
            let failure = Failure::new("INVALID_REQUEST", "invalid handshake: first request must be connect");
            return self.refuse(&id, &failure, 1008, turn);
        }
        match params.read::<Connect>("connect") {
            Ok(connect) => self.on_connect(id, connect, turn),
            Err(error) => self.refuse(&id, &Failure::new("INVALID_REQUEST", error.message), 1008, turn),
        }
    }

    fn on_connect(&mut self, id: String, connect: Connect, turn: &mut Turn<'_>) {
        let (min, max) = (connect.min_protocol, connect.max_protocol);
        if max < Protocol::Three as u64 || min > Protocol::Four as u64 || min > max {
            let failure = Failure::new("INVALID_REQUEST", "protocol mismatch").with(json!({
                "code": "PROTOCOL_MISMATCH",
                "clientMinProtocol": min,
                "clientMaxProtocol": max,
                "expectedProtocol": Protocol::Four as u64,
                "minimumProbeProtocol": Protocol::Three as u64,
            }));
            return self.refuse(&id, &failure, 1002, turn);
        }
        self.protocol = if max >= Protocol::Four as u64 { Protocol::Four } else { Protocol::Three };
        let role = match connect.role.as_deref() {
            None | Some("operator") => Role::Operator,
            Some("node") => Role::Node,
            Some(_) => {
                return self.refuse(&id, &Failure::new("INVALID_REQUEST", "invalid role"), 1008, turn);
            }
        };
        let scopes = connect.scopes.unwrap_or_default();
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let auth = connect.auth.unwrap_or_default();
        let (token, device_token) = (given(auth.token), given(auth.device_token));
        let (password, bootstrap) = (given(auth.password), given(auth.bootstrap_token));
        let client = connect.client;
        // Where nothing is required nothing is looked at.
        let mut device = None;
        if self.setup.credentials_required {
            let shows_something = token.is_some() || password.is_some();
            if connect.device.is_none() && !shows_something {
                let failure = Failure::new("NOT_PAIRED", "device identity required")
                    .with(json!({ "code": "DEVICE_IDENTITY_REQUIRED" }));
                return self.refuse(&id, &failure, 1008, turn);
            }
            if let Some(claimed) = &connect.device {
                let signed = token.as_ref().or(device_token.as_ref()).or(bootstrap.as_ref());
                match self.check_device(claimed, &client, (role, &scopes), signed, turn) {
                    Ok(checked) => {
                        let token = device_token.map(Secret::new);
                        self.device = Some(checked.id.to_string());
                        device = Some(DeviceClaim { id: checked.id, public_key: checked.public_key, token });
                    }
                    Err(refusal) => {
                        let failure = Failure::new("INVALID_REQUEST", refusal.message())
                            .with(json!({ "code": refusal.code(), "reason": refusal.reason() }));
                        return self.refuse(&id, &failure, 1008, turn);
                    }
                }
            }
        }
        let is_password = token.is_none() && password.is_some();
        let credentials = match token.or(password) {
            Some(secret) if self.setup.credentials_required => Credentials::Token(Secret::new(secret)),
            _ => Credentials::None,
        };
        let asked = match role {
            Role::Operator => scopes_asked(&scopes),
            // What a node may do follows from its role.
            Role::Node => Some(Scopes::READONLY),
        };
        self.caps = connect.caps.clone().unwrap_or_default();
        self.is_page = client.mode.as_deref() == Some("webchat");
        let about = About {
            client_id: client.id,
            version: client.version.unwrap_or_default(),
            mode: client.mode.unwrap_or_default(),
            platform: client.platform.unwrap_or_default(),
            device_family: client.device_family,
            model_identifier: client.model_identifier,
            display_name: client.display_name,
            instance_id: client.instance_id,
            caps: connect.caps.unwrap_or_default(),
            commands: connect.commands.unwrap_or_default(),
            permissions: connect.permissions.unwrap_or_default().into_iter().collect(),
        };
        self.greeting = Greeting { id, scopes, is_password, admitted: None };
        self.who.role = role;
        self.phase = Phase::Checking;
        turn.authenticate(Claim { credentials, scopes: asked, role, device, about });
    }

    /// Whether the device holds the key it claims.
    fn check_device(
        &self,
        device: &Device,
        client: &Client,
        (role, scopes): (Role, &[String]),
        token: Option<&String>,
        turn: &Turn<'_>,
    ) -> Result<Checked, Refusal> {
        let proof = Proof {
            id: &device.id,
            public_key: &device.public_key,
            signature: &device.signature,
            signed_at_ms: device.signed_at.as_ref().and_then(Value::as_u64),
            nonce: device.nonce.as_deref(),
            client_id: &client.id,
            mode: client.mode.as_deref().unwrap_or_default(),
            role: role.name(),
            scopes,
            token: token.map(String::as_str),
            platform: client.platform.as_deref(),
            device_family: client.device_family.as_deref(),
        };
        let around =
            Circumstances { nonce: &self.nonce, is_loopback: self.setup.is_loopback, now: turn.now() };
        device::check(&proof, &around)
    }

    /// Says no, and why, and closes.
    fn refuse(&mut self, id: &str, failure: &Failure, code: u16, turn: &mut Turn<'_>) {
        self.refuse_with(id, failure, (code, &failure.message), turn);
    }

    /// Says no, and why, and closes with these words.
    fn refuse_with(&mut self, id: &str, failure: &Failure, (code, reason): (u16, &str), turn: &mut Turn<'_>) {
        turn.send(wire::refusal(id, failure));
        self.end(code, &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)], turn);
    }

    /// Let in, or not. What hello-ok tells of the daemon is asked for first.
    pub(super) fn on_authenticated(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        match answer {
            Ok(admitted) => {
                self.who = Who { role: self.who.role, scopes: admitted.principal.scopes };
                self.owner = admitted.principal.owner.clone();
                self.greeting.admitted = Some(admitted);
                self.phase = Phase::Greeting;
                self.aside(GetOverview, turn, |dialect, overview, turn| {
                    dialect.greet(&overview.unwrap_or_default(), turn);
                });
            }
            Err(error) => {
                let id = std::mem::take(&mut self.greeting.id);
                let (failure, reason) = self.not_let_in(&error);
                let is_later = matches!(error.code, ErrorCode::RateLimited | ErrorCode::Unavailable);
                let code = if is_later { 1013 } else { 1008 };
                self.refuse_with(&id, &failure, (code, &reason), turn);
            }
        }
    }

    /// Why somebody is not let in, and the reason of the Close.
    fn not_let_in(&self, error: &Error) -> (Failure, String) {
        let failure = match &error.detail {
            Some(Detail::Pairing(required)) => return devices::pairing_failure(required, self.protocol),
            Some(Detail::Credential(fault)) => devices::credential_failure(*fault, self.greeting.is_password),
            _ => Failure::of(error, self.protocol),
        };
        let reason = failure.message.clone();
        (failure, reason)
    }

    /// Sends hello-ok, and takes what came behind the handshake.
    fn greet(&mut self, overview: &Overview, turn: &mut Turn<'_>) {
        let greeting = std::mem::take(&mut self.greeting);
        let Some(admitted) = greeting.admitted else { return };
        let scopes = match self.who.role {
            Role::Operator => scopes_granted(&greeting.scopes, admitted.principal.scopes),
            Role::Node => Vec::new(),
        };
        let mut auth = json!({
            "role": self.who.role.name(),
            "scopes": scopes,
        });
        // What a node that was paired answers may be large, be it a picture.
        let message_bytes_max = match self.who.role {
            Role::Node if admitted.device_token.is_some() || !self.setup.credentials_required => {
                self.setup.max_payload_bytes
            }
            _ => message_bytes_max(admitted.principal.scopes, self.setup.max_payload_bytes),
        };
        if let Some(device) = &admitted.device_token {
            auth["deviceToken"] = device.token.expose().into();
            auth["issuedAtMs"] = device.issued.as_millis().into();
        }
        let methods: Vec<_> =
            METHODS.iter().filter(|method| method.role == self.who.role).map(|method| method.name).collect();
        let agent = self.default_agent();
        let now = turn.now();
        let payload = json!({
            "type": "hello-ok",
            "protocol": self.protocol as u64,
            "server": {
                "version": &*self.setup.version,
                "connId": self.setup.connection.0.to_string(),
            },
            "features": { "methods": methods, "events": EVENTS, "capabilities": CAPABILITIES },
            "snapshot": {
                "presence": self.presence_entries(&overview.presence),
                "health": self.health_snapshot(overview, now),
                "stateVersion": { "presence": overview.presence.version, "health": overview.version },
                "uptimeMs": now.millis_since(self.setup.started),
                "sessionDefaults": {
                    "defaultAgentId": agent,
                    "mainKey": keys::MAIN,
                    "mainSessionKey": format!("agent:{agent}:{}", keys::MAIN),
                    "scope": "per-sender",
                },
            },
            "auth": auth,
            "policy": {
                "maxPayload": message_bytes_max,
                "maxBufferedBytes": self.setup.max_buffered_bytes,
                "tickIntervalMs": u64::try_from(self.setup.tick_interval.as_millis()).unwrap_or(u64::MAX),
            },
        });
        turn.send(wire::answer(&greeting.id, &payload));
        self.phase = Phase::Open;
        self.next_tick = now.after(self.setup.tick_interval);
        if self.who.role == Role::Operator {
            self.watch_all(turn);
        }
        while let Some(frame) = self.early.pop_front() {
            self.on_frame(&frame, turn);
        }
    }
}
