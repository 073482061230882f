//! Devices of the OpenClaw protocol: paired over loopback or by approval, let in by their tokens,
//! refused, revoked. The client here is a few lines of WebSocket and JSON that sign for themselves.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::client::Client;
use crate::support::daemon::{Daemon, address_in, command, home};
use crate::support::eventually;
use crate::support::openclaw;
use crate::support::tools::needs;

const TOKEN: &str = "the-shared-operator-token";
const USER: &str = "the-key-of-some-user";
const CONFIG: &str = "[[auth.api_keys]]\nname = \"user\"\nkey_env = \"USER_KEY\"\nrole = \"user\"\n";
const ADMIN: [&str; 3] = ["operator.admin", "operator.approvals", "operator.pairing"];

fn daemon() -> Daemon {
    Daemon::with_env(CONFIG, &[("CLAWMUX_TOKEN", TOKEN), ("USER_KEY", USER)])
}

/// What a client says when it connects.
#[derive(Clone)]
struct Hello {
    seed: u8,
    protocol: u64,
    payload: &'static str,
    token: Option<String>,
    device_token: Option<String>,
    role: &'static str,
    scopes: Vec<String>,
    /// Whether a proxy sent it, so that it is not of this host.
    is_forwarded: bool,
    /// Changes the frame after it was signed.
    tamper: fn(&mut Value),
}

fn hello(seed: u8, token: &str) -> Hello {
    Hello {
        seed,
        protocol: 4,
        payload: "v3",
        token: Some(token.into()),
        device_token: None,
        role: "operator",
        scopes: ADMIN.iter().map(ToString::to_string).collect(),
        is_forwarded: false,
        tamper: |_| (),
    }
}

impl Hello {
    fn asking(self, scopes: &[&str]) -> Self {
        Self { scopes: scopes.iter().map(ToString::to_string).collect(), ..self }
    }

    fn afar(self) -> Self {
        Self { is_forwarded: true, ..self }
    }

    fn three(self) -> Self {
        Self { protocol: 3, payload: "v2", ..self }
    }

    fn by_device_token(self, token: &str) -> Self {
        Self { token: None, device_token: Some(token.into()), ..self }
    }

    fn tampered(self, tamper: fn(&mut Value)) -> Self {
        Self { tamper, ..self }
    }

    fn key(&self) -> SigningKey {
        SigningKey::from_bytes(&[self.seed; 32])
    }

    fn id(&self) -> String {
        clawmux_core::access::device::id_of(&self.key().verifying_key().to_bytes())
    }

    fn params(&self, nonce: &str) -> Value {
        let signed_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let token = self.token.as_ref().or(self.device_token.as_ref());
        let mut line = format!(
            "{}|{}|cli|cli|{}|{}|{signed_at}|{}",
            self.payload,
            self.id(),
            self.role,
            self.scopes.join(","),
            token.map_or("", String::as_str),
        );
        if self.payload != "v1" {
            line += &format!("|{nonce}");
        }
        if self.payload == "v3" {
            line += "|linux|";
        }
        let mut device = json!({
            "id": self.id(),
            "publicKey": URL_SAFE_NO_PAD.encode(self.key().verifying_key().to_bytes()),
            "signature": URL_SAFE_NO_PAD.encode(self.key().sign(line.as_bytes()).to_bytes()),
            "signedAt": u64::try_from(signed_at).unwrap(),
        });
        if self.payload != "v1" {
            device["nonce"] = nonce.into();
        }
        let mut auth = json!({});
        if let Some(token) = &self.token {
            auth["token"] = token.as_str().into();
        }
        if let Some(token) = &self.device_token {
            auth["deviceToken"] = token.as_str().into();
        }
        let mut params = json!({
            "minProtocol": self.protocol,
            "maxProtocol": self.protocol,
            "client": {"id": "cli", "version": "1", "platform": "Linux", "mode": "cli", "displayName": "İ\u{1b}[31m🎈"},
            "role": self.role,
            "scopes": self.scopes,
            "auth": auth,
            "device": device,
        });
        (self.tamper)(&mut params);
        params
    }

    fn send(&self, address: SocketAddr) -> (Oc, Value) {
        let mut oc = Oc::open(address, self.is_forwarded);
        let nonce = oc.nonce();
        let answer = oc.call("connect", self.params(&nonce));
        (oc, answer)
    }

    /// Comes in.
    fn connect(&self, address: SocketAddr) -> (Oc, Value) {
        let (oc, answer) = self.send(address);
        assert_eq!(answer["ok"], true, "let in: {answer}");
        (oc, answer["payload"].clone())
    }

    /// Comes in and is told a token.
    fn token(&self, address: SocketAddr) -> String {
        let (_, hello) = self.connect(address);
        hello["auth"]["deviceToken"].as_str().unwrap_or_else(|| panic!("{hello}")).to_owned()
    }

    /// Is refused: the error, and the code and reason of the Close.
    fn refused(&self, address: SocketAddr) -> (Value, u16, String) {
        let (mut oc, answer) = self.send(address);
        assert_eq!(answer["ok"], false, "not let in: {answer}");
        let (code, reason) = oc.end();
        (answer["error"].clone(), code, reason)
    }

    fn pairing_request(&self, address: SocketAddr) -> String {
        let (error, ..) = self.refused(address);
        assert_eq!(error["code"], "NOT_PAIRED", "{error}");
        error["details"]["requestId"].as_str().unwrap().to_owned()
    }
}

/// A connection.
struct Oc(Client, u32);

impl Oc {
    fn open(address: SocketAddr, is_forwarded: bool) -> Self {
        let mut request = format!("ws://{address}/").into_client_request().unwrap();
        if is_forwarded {
            request.headers_mut().insert("x-forwarded-for", "203.0.113.7".parse().unwrap());
        }
        Self(Client::upgrade(address, request).unwrap(), 0)
    }

    /// What a device has to sign.
    fn nonce(&mut self) -> String {
        self.0.receive()["payload"]["nonce"].as_str().unwrap().to_owned()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.1 += 1;
        openclaw::ask(&mut self.0, &format!("r{}", self.1), method, params)
    }

    fn fine(&mut self, method: &str, params: Value) -> Value {
        let answer = self.call(method, params);
        assert_eq!(answer["ok"], true, "{method}: {answer}");
        answer["payload"].clone()
    }

    /// The next event of this name.
    fn event(&mut self, name: &str) -> Value {
        self.0.find(|frame| frame["event"] == name)["payload"].clone()
    }

    /// What is told of the decision about this request; others may be told before.
    fn resolved(&mut self, request: &str) -> Value {
        loop {
            let event = self.event("device.pair.resolved");
            if event["requestId"] == request {
                return event;
            }
        }
    }

    /// How it ends.
    fn end(&mut self) -> (u16, String) {
        let code = std::iter::repeat_with(|| self.0.receive_or_close()).find_map(Result::err).unwrap();
        (code.parse().unwrap_or_default(), self.0.reason().to_owned())
    }
}

/// Runs `clawmux ARGS` against a daemon's home.
fn operator(home: &Path, args: &[&str]) -> (bool, String) {
    let output = command(home).args(args).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_device_is_paired_over_loopback_and_its_token_survives_a_crash() {
    let mut daemon = daemon();
    let token = hello(1, TOKEN).token(daemon.address);
    assert_eq!((token.len(), hello(1, TOKEN).token(daemon.address)), (32, token.clone()), "stable");
    for round in 0..2 {
        let at = daemon.address;
        // Clients of 3 send it in place of the shared token, those of 4 beside or without it.
        assert_eq!(hello(1, &token).three().token(at), token, "round {round}");
        let alone = hello(1, "").by_device_token(&token);
        assert_eq!(alone.token(at), token);
        assert_eq!(Hello { token: Some("stale".into()), ..alone.clone() }.token(at), token);
        assert_eq!(alone.afar().token(at), token, "who is paired comes from anywhere");
        let (_, narrow) = hello(1, &token).asking(&["operator.read"]).connect(at);
        assert_eq!(narrow["auth"]["scopes"], json!(["operator.read"]));
        let node = Hello { role: "node", scopes: Vec::new(), ..hello(1, TOKEN) };
        assert_ne!(node.token(at), token, "another role, another token");
        daemon = if round == 0 { daemon.kill_and_restart() } else { daemon.restart() };
    }
    let (mut oc, hello_ok) = hello(2, TOKEN).three().connect(daemon.address);
    let auth = &hello_ok["auth"];
    assert!(
        auth["role"] == "operator" && auth["scopes"] == json!(ADMIN) && auth["issuedAtMs"].is_u64(),
        "{auth}"
    );
    let list = oc.fine("device.pair.list", json!({}));
    assert_eq!(list["pending"], json!([]));
    let paired = list["paired"].as_array().unwrap();
    assert_eq!(paired.len(), 2);
    let first = paired.iter().find(|device| device["deviceId"] == hello(1, "").id()).unwrap();
    let second = paired.iter().find(|device| device["deviceId"] == hello(2, "").id()).unwrap();
    assert_eq!((&first["connected"], &second["connected"]), (&json!(false), &json!(true)), "{list}");
    assert_eq!(first["roles"], json!(["operator", "node"]));
    assert_eq!(
        (&first["displayName"], &first["clientId"]),
        (&json!("İ[31m🎈"), &json!("cli")),
        "no control character"
    );
    assert_eq!(first["tokens"].as_array().unwrap().len(), 2);
    assert!(!list.to_string().contains(&token), "no token is listed");
    let nodes = oc.fine("node.pair.list", json!({}));
    assert_eq!(nodes["paired"][0]["nodeId"], first["deviceId"], "{nodes}");
    let (fine, table) = operator(daemon.home(), &["devices"]);
    assert!(fine && table.contains("operator, node") && table.contains("127.0.0.1"), "{table}");
    let (_, listed) = operator(daemon.home(), &["devices", "--json"]);
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let paired = listed.iter().filter(|device| device["state"] == "paired");
    let grants = paired.flat_map(|device| device["roles"].as_array().unwrap());
    assert!(
        grants.clone().count() == 3 && grants.clone().all(|grant| grant["origin"] == "127.0.0.1"),
        "when and from where it was used survives a crash: {listed:?}"
    );
    assert!(!daemon.log().contains(&token), "no token is logged");
}

#[test]
fn on_an_open_loopback_nothing_is_looked_at() {
    let daemon = Daemon::start();
    let wrong = hello(1, "whatever").tampered(|params| params["device"]["signature"] = "x".into());
    let (mut oc, hello_ok) = wrong.asking(&["operator.pairing"]).connect(daemon.address);
    assert_eq!(hello_ok["auth"], json!({"role": "operator", "scopes": ["operator.pairing"]}), "no token");
    assert_eq!(oc.fine("device.pair.list", json!({})), json!({"pending": [], "paired": []}));
    assert_eq!(
        oc.call("chat.history", json!({"sessionKey": "main"}))["ok"],
        false,
        "scopes narrow all the same"
    );
}

#[test]
fn every_refusal_says_why_in_both_generations_words() {
    let daemon = daemon();
    let at = daemon.address;
    let token = hello(9, TOKEN).asking(&["operator.read"]).token(at);
    let device = |tamper| hello(1, TOKEN).tampered(tamper);
    let cases: Vec<(Hello, &str, &str, &str, &str)> = vec![
        (
            device(|p| p["device"]["id"] = "0".repeat(64).into()),
            "INVALID_REQUEST",
            "device identity mismatch",
            "DEVICE_AUTH_DEVICE_ID_MISMATCH",
            "device-id-mismatch",
        ),
        (
            device(|p| p["device"]["publicKey"] = "AAAA".into()),
            "INVALID_REQUEST",
            "device identity mismatch",
            "DEVICE_AUTH_DEVICE_ID_MISMATCH",
            "device-id-mismatch",
        ),
        (
            device(|p| p["device"]["signedAt"] = 1.into()),
            "INVALID_REQUEST",
            "device signature expired",
            "DEVICE_AUTH_SIGNATURE_EXPIRED",
            "device-signature-stale",
        ),
        (
            device(|p| p["device"]["signedAt"] = "soon".into()),
            "INVALID_REQUEST",
            "device signature expired",
            "DEVICE_AUTH_SIGNATURE_EXPIRED",
            "device-signature-stale",
        ),
        (
            device(|p| p["device"]["nonce"] = "another".into()),
            "INVALID_REQUEST",
            "device nonce mismatch",
            "DEVICE_AUTH_NONCE_MISMATCH",
            "device-nonce-mismatch",
        ),
        (
            device(|p| p["device"]["nonce"] = Value::Null).afar(),
            "INVALID_REQUEST",
            "device nonce required",
            "DEVICE_AUTH_NONCE_REQUIRED",
            "device-nonce-missing",
        ),
        (
            device(|p| p["device"]["signature"] = "AAAA".into()),
            "INVALID_REQUEST",
            "device signature invalid",
            "DEVICE_AUTH_SIGNATURE_INVALID",
            "device-signature",
        ),
        (
            device(|p| p["scopes"] = json!(["operator.admin", "x"])),
            "INVALID_REQUEST",
            "device signature invalid",
            "DEVICE_AUTH_SIGNATURE_INVALID",
            "device-signature",
        ),
        (
            device(|p| p["auth"]["token"] = "another".into()),
            "INVALID_REQUEST",
            "device signature invalid",
            "DEVICE_AUTH_SIGNATURE_INVALID",
            "device-signature",
        ),
        (
            device(|p| p["role"] = "node".into()),
            "INVALID_REQUEST",
            "device signature invalid",
            "DEVICE_AUTH_SIGNATURE_INVALID",
            "device-signature",
        ),
        (device(|p| p["role"] = "king".into()), "INVALID_REQUEST", "invalid role", "", ""),
        (
            device(|p| {
                p.as_object_mut().unwrap().remove("device");
                p["auth"] = json!({});
            }),
            "NOT_PAIRED",
            "device identity required",
            "DEVICE_IDENTITY_REQUIRED",
            "",
        ),
        (
            device(|p| {
                p.as_object_mut().unwrap().remove("device");
                p["auth"] = json!({"token": "x"});
            }),
            "INVALID_REQUEST",
            "unauthorized: gateway token mismatch",
            "AUTH_TOKEN_MISMATCH",
            "",
        ),
        (
            hello(1, "wrong"),
            "INVALID_REQUEST",
            "unauthorized: gateway token mismatch",
            "AUTH_TOKEN_MISMATCH",
            "",
        ),
        (
            Hello { token: None, ..hello(1, "") },
            "INVALID_REQUEST",
            "unauthorized: gateway token missing",
            "AUTH_TOKEN_MISSING",
            "",
        ),
        (
            hello(1, "").by_device_token(&token),
            "INVALID_REQUEST",
            "unauthorized: device token mismatch",
            "AUTH_DEVICE_TOKEN_MISMATCH",
            "",
        ),
        (
            hello(9, "").by_device_token(&token),
            "INVALID_REQUEST",
            "unauthorized: device token scope mismatch",
            "AUTH_SCOPE_MISMATCH",
            "",
        ),
        (hello(1, TOKEN).afar(), "NOT_PAIRED", "pairing required", "PAIRING_REQUIRED", "not-paired"),
        (hello(9, TOKEN).afar(), "NOT_PAIRED", "pairing required", "PAIRING_REQUIRED", "scope-upgrade"),
        (
            Hello { role: "node", ..hello(9, TOKEN) }.afar(),
            "NOT_PAIRED",
            "pairing required",
            "PAIRING_REQUIRED",
            "role-upgrade",
        ),
    ];
    for (case, code, message, detail, reason) in &cases {
        for case in [case.clone(), case.clone().three()] {
            let (error, close, why) = case.refused(at);
            let what = format!("{message} ({}): {error} {close} {why:?}", case.protocol);
            assert!(
                error["code"] == *code && error["message"].as_str().unwrap().starts_with(message),
                "{what}"
            );
            assert!(close == 1008 && why.starts_with(message) && why.len() <= 123, "{what}");
            let says = |name: &str, text: &str| text.is_empty() || error["details"][name] == text;
            assert!(says("code", detail) && says("reason", reason), "{what}");
            if *code == "NOT_PAIRED" && !reason.is_empty() {
                let request = error["details"]["requestId"].as_str().unwrap();
                let exact = case.protocol == 3 && error["message"] == "pairing required";
                assert!(exact || why.ends_with(&format!("(requestId: {request})")), "{what}");
            }
        }
    }
    let retry = hello(9, "wrong").refused(at).0;
    assert_eq!(retry["details"]["canRetryWithDeviceToken"], true, "it has a token to try: {retry}");
    assert_eq!(retry["details"]["recommendedNextStep"], "retry_with_device_token");
    // The older generation's payload without a nonce is for this host alone.
    Hello { payload: "v1", ..hello(1, TOKEN).three() }.connect(at);
    let (error, ..) = Hello { payload: "v1", ..hello(1, TOKEN).three() }.afar().refused(at);
    assert_eq!(error["message"], "device nonce required");
    // No device is needed where a credential is shown, wherever from.
    hello(1, TOKEN).afar().tampered(|p| drop(p.as_object_mut().unwrap().remove("device"))).connect(at);
}

#[test]
fn a_revoked_token_closes_what_is_open_and_a_rotated_one_is_exchanged() {
    let daemon = daemon();
    let at = daemon.address;
    let (mut admin, _) = hello(1, TOKEN).connect(at);
    let old = hello(2, TOKEN).token(at);
    let (mut live, _) = hello(2, "").by_device_token(&old).connect(at);
    let (mut node, _) = Hello { role: "node", scopes: Vec::new(), ..hello(2, TOKEN) }.connect(at);
    let id = hello(2, "").id();

    let rotated = admin.fine("device.token.rotate", json!({"deviceId": id, "role": "operator"}));
    assert_eq!(live.end(), (1008, "unauthorized: the credential was revoked".into()));
    let new = rotated["token"].as_str().unwrap();
    assert!(
        new != old && rotated["rotatedAtMs"].is_u64() && rotated["tokenDelivery"] == "in-band",
        "{rotated}"
    );
    let stale = hello(2, "").by_device_token(&old).refused(at).0;
    assert_eq!(stale["details"]["code"], "AUTH_DEVICE_TOKEN_MISMATCH");
    let (mut live, _) = hello(2, "").by_device_token(new).connect(at);

    // Whoever revokes his own hears that it was done, and is closed then.
    let (mut own, _) = hello(2, "").by_device_token(new).connect(at);
    let revoked = own.fine("device.token.revoke", json!({"deviceId": id, "role": "operator"}));
    assert!(revoked["deviceId"] == id.as_str() && revoked["revokedAtMs"].is_u64(), "{revoked}");
    assert_eq!((own.end().0, live.end().0), (1008, 1008));
    assert_eq!(node.call("health", json!({}))["ok"], false, "the node is another role, and still there");
    let daemon = daemon.kill_and_restart();
    let at = daemon.address;
    let stale = hello(2, "").by_device_token(new).refused(at).0;
    assert_eq!(stale["details"]["code"], "AUTH_DEVICE_TOKEN_MISMATCH", "after a restart, too");
    // A credential pairs it anew, with a token that was never there.
    let third = hello(2, TOKEN).token(at);
    assert!(third != old && third != new);

    let (mut live, _) = hello(2, &third).connect(at);
    let (fine, said) = operator(daemon.home(), &["device", "revoke", &id[..8]]);
    assert!(fine && said.contains("revoked device "), "{said}");
    assert_eq!(live.end().0, 1008);
    let (mut admin, _) = hello(1, TOKEN).connect(at);
    let removed = admin.fine("device.pair.remove", json!({"deviceId": id}));
    assert_eq!(removed, json!({"deviceId": id}));
    for (method, params) in [
        ("device.pair.remove", json!({"deviceId": id})),
        ("device.token.revoke", json!({"deviceId": id, "role": "operator"})),
        ("device.token.rotate", json!({"deviceId": hello(1, "").id(), "role": "king"})),
        ("device.pair.approve", json!({"requestId": "none"})),
        ("device.pair.approve", json!({"requestId": 5})),
        ("device.pair.reject", json!({})),
        ("node.pair.remove", json!({"nodeId": id})),
    ] {
        let answer = admin.call(method, params);
        assert_eq!(answer["error"]["code"], "INVALID_REQUEST", "{method}: {answer}");
    }
    assert_eq!(admin.fine("node.pair.verify", json!({"nodeId": id, "token": third})), json!({"ok": false}));
    assert!(!operator(daemon.home(), &["device", "revoke", "nobody"]).0);
}

#[test]
fn from_elsewhere_somebody_with_the_pairing_scope_lets_a_device_in() {
    let daemon = daemon();
    let at = daemon.address;
    let (mut pairer, _) = hello(1, TOKEN).asking(&["operator.pairing", "operator.read"]).connect(at);
    let (mut user, _) = hello(2, USER).asking(&["operator.read", "operator.write"]).connect(at);
    let afar = hello(3, TOKEN).asking(&["operator.read"]).afar();
    let request = afar.pairing_request(at);
    assert_eq!(afar.pairing_request(at), request, "who asks again waits on");
    let event = pairer.event("device.pair.requested");
    assert_eq!((&event["requestId"], &event["deviceId"]), (&json!(request), &json!(afar.id())));
    assert_eq!((&event["scopes"], &event["isRepair"]), (&json!(["operator.read"]), &json!(false)));
    let pending = pairer.fine("device.pair.list", json!({}))["pending"].clone();
    assert_eq!(pending, json!([event]), "once");
    let refused = user.call("device.pair.approve", json!({"requestId": request}));
    assert_eq!(refused["error"]["details"]["missingScope"], "operator.pairing", "{refused}");

    let approved = pairer.fine("device.pair.approve", json!({"requestId": request}));
    assert_eq!(approved["device"]["deviceId"], afar.id());
    assert_eq!(pairer.resolved(&request)["decision"], "approved");
    let token = afar.token(at);
    assert_eq!(afar.clone().by_device_token(&token).token(at), token);

    // More than was approved has to be approved; who may not do it himself may not.
    let more = afar.clone().asking(&["operator.admin"]).pairing_request(at);
    let denied = pairer.call("device.pair.approve", json!({"requestId": more}));
    assert!(
        denied["error"]["message"].as_str().unwrap().starts_with("device pairing approval denied"),
        "{denied}"
    );
    let (fine, table) = operator(daemon.home(), &["devices"]);
    assert!(fine && table.contains(&more) && !table.contains('\u{1b}'), "{table}");
    let (fine, said) = operator(daemon.home(), &["device", "approve", &more[..8]]);
    assert!(fine && said.contains("paired device ") && said.contains(" as operator"), "{said}");
    assert_eq!(pairer.resolved(&more)["decision"], "approved");
    assert_eq!(afar.clone().asking(&["operator.admin"]).token(at), token, "it goes further now");

    let other = hello(4, TOKEN).afar();
    let request = other.pairing_request(at);
    let rejected = pairer.fine("device.pair.reject", json!({"requestId": request}));
    assert_eq!(rejected, json!({"requestId": request, "deviceId": other.id()}));
    assert_eq!(pairer.resolved(&request)["decision"], "rejected");
    let waits = other.pairing_request(at);
    assert_ne!(waits, request);
    let (_, found) = operator(daemon.home(), &["doctor", "--offline"]);
    assert!(found.contains("waits to be paired, asked"), "{found}");
    assert!(found.contains(&format!("clawmux device approve {waits}")), "{found}");
    let (fine, said) = operator(daemon.home(), &["device", "reject", &waits[..8]]);
    assert!(fine && said.contains("rejected device "), "{said}");
    assert_eq!(pairer.resolved(&waits)["decision"], "rejected");

    let node = Hello { role: "node", scopes: Vec::new(), ..hello(5, TOKEN).afar() };
    let request = node.pairing_request(at);
    assert_eq!(pairer.event("node.pair.requested")["nodeId"], node.id());
    let (mut admin, _) = hello(1, TOKEN).connect(at);
    let approved = admin.fine("node.pair.approve", json!({"requestId": request}));
    assert_eq!(approved["node"]["nodeId"], node.id());
    let (_, hello_ok) = node.connect(at);
    assert_eq!((&hello_ok["auth"]["role"], &hello_ok["auth"]["scopes"]), (&json!("node"), &json!([])));
    assert_eq!(pairer.event("node.pair.resolved")["nodeId"], node.id());

    user.fine("agents.list", json!({}));
    let heard =
        user.0.kept().iter().filter(|event| event["event"].as_str().unwrap().contains("pair")).count();
    assert_eq!(heard, 0, "who may not pair hears nothing of it: {:?}", user.0.kept());
}

#[test]
fn a_device_belongs_to_the_credential_it_was_paired_with() {
    let daemon = daemon();
    let at = daemon.address;
    let token = hello(1, USER).token(at);
    let (_, hello_ok) = hello(1, &token).connect(at);
    let allowed = json!(["operator.read", "operator.write"]);
    assert_eq!(hello_ok["auth"]["scopes"], allowed, "asked for more than the key is allowed");
    let asking = ["operator.read", "operator.write", "operator.admin"];
    let (mut user, hello_ok) = hello(1, &token).asking(&asking).connect(at);
    assert_eq!(hello_ok["auth"]["scopes"], json!(["operator.read", "operator.write"]));
    let sent = user.fine("chat.send", json!({"sessionKey": "mine", "message": "hi", "idempotencyKey": "k1"}));
    assert_eq!(sent["runId"], "k1");
    // The same session for the key itself, in another protocol: one owner.
    let mut key = Client::connect_with(at, USER);
    let history = key.call("chat.history", json!({"session": "main:openclaw:mine:main"}));
    assert_eq!(history["result"]["messages"][0]["content"], "hi", "{history}");
}

#[test]
fn hostile_devices_are_refused_and_harm_nobody() {
    let daemon = daemon();
    let at = daemon.address;
    // What was said on one connection, said again on another.
    let mut first = Oc::open(at, false);
    let said = hello(1, TOKEN).params(&first.nonce());
    assert_eq!(first.call("connect", said.clone())["ok"], true);
    let mut second = Oc::open(at, false);
    second.nonce();
    assert_eq!(second.call("connect", said)["error"]["message"], "device nonce mismatch");

    let huge: [fn(&mut Value); 4] = [
        |p| p["device"]["publicKey"] = "A".repeat(60_000).into(),
        |p| p["device"]["signature"] = "İ".repeat(30_000).into(),
        |p| p["device"]["id"] = "🎈".repeat(15_000).into(),
        |p| p["device"]["nonce"] = "\u{0}".repeat(9_000).into(),
    ];
    for tamper in huge {
        let (error, close, why) = hello(1, TOKEN).tampered(tamper).refused(at);
        assert!(
            close == 1008 && why.len() <= 123 && error["message"].as_str().unwrap().len() < 400,
            "{error}"
        );
    }
    let broken: [fn(&mut Value); 4] = [
        |p| p["device"] = json!({}),
        |p| p["device"] = json!([]),
        |p| p["device"] = "x".into(),
        |p| p["device"]["publicKey"] = 5.into(),
    ];
    for tamper in broken {
        let (error, close, _) = hello(1, TOKEN).tampered(tamper).refused(at);
        assert!(
            close == 1008 && error["message"].as_str().unwrap().starts_with("invalid connect params"),
            "{error}"
        );
    }

    // A flood of devices that want in: those that wait are bounded, and others are let in meanwhile.
    let (mut admin, _) = hello(1, TOKEN).connect(at);
    let floods: Vec<_> = (0..4_u8)
        .map(|thread| {
            std::thread::spawn(move || {
                for seed in 0..20 {
                    hello(100 + thread * 20 + seed, TOKEN).afar().pairing_request(at);
                }
            })
        })
        .collect();
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    let list = admin.fine("device.pair.list", json!({}));
    assert_eq!(list["pending"].as_array().unwrap().len(), 32);
    let events = eventually("all requests to be told", || {
        admin.call("health", json!({}));
        let told = admin.0.kept().iter().filter(|event| event["event"] == "device.pair.requested").count();
        (told >= 32).then_some(told)
    });
    assert!(events <= 80, "{events}");
}

/// Run again by itself in a network of its own.
const INSIDE: &str = "CLAWMUX_TEST_INSIDE";

#[test]
fn over_a_network_a_device_waits_for_approval() {
    if std::env::var_os(INSIDE).is_none() {
        needs!("networks");
        let exe = std::env::current_exe().unwrap();
        let script = "ip link set lo up && ip addr add 10.9.0.1/32 dev lo && exec \"$0\" --exact \
                      devices::over_a_network_a_device_waits_for_approval --nocapture";
        let mut unshare = Command::new("unshare");
        let inside = unshare.args(["-n", "sh", "-c", script]).arg(exe).env(INSIDE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&[inside.stdout, inside.stderr].concat()).into_owned();
        assert!(inside.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let home = home();
    let mut daemon = command(home.path())
        .args(["serve", "--listen", "10.9.0.1:0", "--listen", "127.0.0.1:0"])
        .env("CLAWMUX_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    let mut addresses: Vec<SocketAddr> = Vec::new();
    while addresses.len() < 2 {
        let line = lines.next().expect("it says where it listens").unwrap();
        let rest = line.split("http://").skip(1).filter_map(|rest| address_in(&format!("http://{rest}")));
        addresses.extend(rest);
    }
    let net = *addresses.iter().find(|address| !address.ip().is_loopback()).unwrap();
    let local = *addresses.iter().find(|address| address.ip().is_loopback()).unwrap();

    let request = hello(1, TOKEN).pairing_request(net);
    let (fine, table) = operator(home.path(), &["devices", "--json"]);
    let waiting: Value = serde_json::from_str(&table).expect("one object a line");
    assert!(
        fine && waiting["address"] == "10.9.0.1"
            && waiting["request"] == *request
            && waiting["state"] == "waiting",
        "{table}"
    );
    let (fine, said) = operator(home.path(), &["device", "approve", &request]);
    assert!(fine, "{said}");
    let token = hello(1, TOKEN).token(net);
    assert_eq!(hello(1, "").by_device_token(&token).token(local), token);
    let _ = hello(2, TOKEN).token(local);
    hello(2, TOKEN).connect(net);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
