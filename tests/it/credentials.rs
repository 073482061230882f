//! Credentials over real sockets: given out, shown in every protocol, refused, renewed, ended.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clawmux_core::access::Secret;
use clawmux_core::access::jwt::{Claims, Signer};
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::time::Timestamp;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::openclaw;
use crate::support::wundr::Wundr;

const JWT_SECRET: &str = "a-secret-of-more-than-thirty-two-bytes";
const TOKEN: &str = "the-shared-operator-token";

/// Gives out a credential: what is said of it, and its secret.
fn create(daemon: &Daemon, args: &[&str]) -> (Value, String) {
    let all: Vec<&str> = ["token", "create", "--yes", "--name"].iter().chain(args).copied().collect();
    let made = daemon.json_of(&all);
    let secret = made["secret"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (made, secret)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn claims(subject: &str, scopes: &[Scope], seconds: u64) -> Claims {
    let expires = Timestamp::from_millis((now() + seconds) * 1000);
    Claims { subject: subject.into(), scopes: Scopes::of(scopes), expires, id: None }
}

/// A JWT that somebody else makes, who has the secret.
fn jwt(subject: &str, scopes: &[Scope], seconds: u64) -> String {
    let signer = Signer::new(&Secret::new(JWT_SECRET), "wundr-orchestrator", "wundr-daemon");
    let claims = claims(subject, scopes, seconds);
    signer.expect("it is long enough").mint(&claims, Timestamp::from_millis(now() * 1000)).expose().to_owned()
}

fn as_jwt(token: &str) -> Value {
    json!({ "type": "jwt", "token": token })
}

/// An OpenClaw client that shows this token, and hello-ok.
fn openclaw(address: SocketAddr, token: &str) -> Result<Client, Value> {
    let (client, answer) = openclaw::try_connect(address, json!({ "auth": { "token": token } }));
    if answer["ok"] == true { Ok(client) } else { Err(answer) }
}

/// What an exoclaw client is told that shows this token and is not let in.
fn refused_by_exoclaw(address: SocketAddr, token: &str) -> Value {
    let mut client = Client::open(address, "/ws");
    client.send_text(&json!({ "token": token }).to_string());
    let told = client.receive();
    assert_eq!(client.end(), "4001");
    told
}

/// Why a Wundr client is not let in: the details of the refusal.
fn refused_by_wundr(address: SocketAddr, auth: Value) -> Value {
    let Err((error, close)) = Wundr::try_connect(address, "/v2", auth.clone(), json!({})) else {
        panic!("let in with {auth}")
    };
    assert_eq!((&error["code"], close.as_str()), (&json!("UNAUTHORIZED"), "1008"), "{error}");
    error["details"].clone()
}

fn assert_nothing_shows(daemon: &Daemon, secrets: &[&str]) {
    let mut files = vec![("log".to_owned(), daemon.log().into_bytes())];
    for folder in [daemon.home().to_owned(), daemon.home().join(".xeno")] {
        for entry in std::fs::read_dir(folder).expect("it is there").flatten() {
            if let Ok(bytes) = std::fs::read(entry.path()) {
                files.push((entry.path().display().to_string(), bytes));
            }
        }
    }
    let cmdline = std::fs::read(format!("/proc/{}/cmdline", daemon.pid())).expect("it runs");
    files.push(("the command line".to_owned(), cmdline));
    for secret in secrets {
        for (name, bytes) in &files {
            let is_there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!is_there, "a secret stands in {name}");
        }
    }
}

#[test]
fn a_key_lets_in_everywhere_until_it_is_revoked_and_through_every_restart() {
    let (daemon, mut local) = Daemon::start().and(Client::connect);
    let mut local_wundr = Wundr::connect(daemon.address);
    let (status, secret, said) = daemon.run(&["token", "create", "--yes", "--name", "bot", "--role", "user"]);
    assert_eq!((status, secret.lines().count()), (0, 1), "{secret}{said}");
    let secret = secret.trim_end();
    assert!(said.contains("This is the first credential") && !said.contains(secret), "{said}");

    // Who was there without one has to go, and nobody comes without one.
    assert_eq!(local.receive()["error"], "credential_revoked");
    assert_eq!(local.end(), "4001");
    assert_eq!(local_wundr.closed(), "1008");
    assert_eq!(refused_by_exoclaw(daemon.address, "none")["error"], "auth_failed");
    assert!(openclaw(daemon.address, "none").is_err());
    let api_key = |key: &str| json!({ "type": "api-key", "token": key });
    assert_eq!(refused_by_wundr(daemon.address, api_key("none"))["reason"], "api_key_invalid");
    assert_eq!(refused_by_wundr(daemon.address, as_jwt(secret))["reason"], "jwt_not_configured");

    let mut daemon = daemon.kill_and_restart();
    for _ in 0..2 {
        Client::connect_with(daemon.address, secret);
        daemon = daemon.restart();
    }
    let mut exoclaw = Client::connect_with(daemon.address, secret);
    let mut other = openclaw(daemon.address, secret).expect("it is let in");
    let mut wundr = Wundr::connect_with(daemon.address, secret);
    assert_eq!(wundr.hello()["auth"], json!({"scopes": ["daemon.read", "daemon.write", "daemon.teams"]}));
    assert_eq!(exoclaw.call("plugin.unload", json!({"name": "echo"}))["error"], "forbidden: needs admin");

    let listed = daemon.rows_of(&["tokens"]).remove(0);
    assert_eq!((&listed["name"], &listed["role"]), (&json!("bot"), &json!("user")), "{listed}");
    assert!(listed["used_ms"].is_u64() && listed["origin"] == "127.0.0.1", "{listed}");
    assert!(listed.get("secret").is_none() && listed.get("sha256").is_none(), "{listed}");
    let id = listed["token"].as_str().expect("an id").to_owned();
    let table = daemon.run(&["tokens"]).1;
    assert!(table.contains(&id) && table.contains("valid"), "{table}");
    let (status, said, _) = daemon.run(&["token", "revoke", &id[..8]]);
    assert!(status == 0 && said.contains("is revoked"), "{said}");

    assert_eq!(exoclaw.receive()["error"], "credential_revoked");
    assert_eq!(exoclaw.end(), "4001");
    assert_eq!(other.end(), "1008");
    assert_eq!(wundr.closed(), "1008");
    let told = wundr.seen().last().expect("it is told").clone();
    assert!(told.contains("credential_revoked") && told.contains("UNAUTHORIZED"), "{told}");
    // For good, and loopback stays closed.
    let daemon = daemon.kill_and_restart();
    for token in [secret, "none"] {
        assert_eq!(refused_by_exoclaw(daemon.address, token)["error"], "auth_failed");
    }
    assert!(daemon.rows_of(&["tokens"])[0]["revoked_ms"].is_u64());
    assert_nothing_shows(&daemon, &[secret]);
}

#[test]
fn no_connection_outlives_the_revocation_of_its_key() {
    let daemon = Daemon::with_env("[limits]\nrequests_burst = 0\n", &[("CLAWMUX_TOKEN", TOKEN)]);
    let (made, secret) = create(&daemon, &["bot", "--role", "readonly"]);
    let is_over = AtomicBool::new(false);
    let address = daemon.address;
    std::thread::scope(|scope| {
        let comers: Vec<_> = (0..4)
            .map(|at| {
                let (secret, is_over) = (&secret, &is_over);
                scope.spawn(move || {
                    let mut let_in = 0;
                    // They come and stay until one is refused.
                    let mut there: Vec<Box<dyn FnOnce() -> String>> = Vec::new();
                    while !is_over.load(Relaxed) && there.len() < 200 {
                        if at % 2 == 0 {
                            let auth = json!({ "type": "api-key", "token": secret });
                            let Ok(mut wundr) = Wundr::try_connect(address, "/v2", auth, json!({})) else {
                                break;
                            };
                            there.push(Box::new(move || wundr.closed()));
                        } else {
                            let mut client = Client::open(address, "/ws");
                            client.send_text(&json!({ "token": secret }).to_string());
                            if client.receive()["ok"] != true {
                                break;
                            }
                            there.push(Box::new(move || client.end()));
                        }
                        let_in += 1;
                    }
                    for end in there {
                        let code = end();
                        assert!(code == "1008" || code == "4001", "{code}");
                    }
                    let_in
                })
            })
            .collect();
        let id = made["token"].as_str().expect("an id");
        crate::support::eventually("somebody to be there", || {
            daemon.rows_of(&["tokens"])[0]["used_ms"].is_u64()
        });
        daemon.json_of(&["token", "revoke", id]);
        is_over.store(true, Relaxed);
        let let_in: usize = comers.into_iter().map(|comer| comer.join().expect("all of them end")).sum();
        assert!(let_in > 0, "nobody was let in");
    });
    // Another credential is not concerned.
    Client::connect_with(address, TOKEN);
}

#[test]
fn a_jwt_is_renewed_on_an_open_connection_and_ends_it() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_JWT_SECRET", JWT_SECRET)]);
    let address = daemon.address;
    let short = jwt("ada", &[Scope::Write], 3);
    let mut left = Wundr::connect_as(address, as_jwt(&short), json!({}));
    let mut renewed = Wundr::connect_as(address, as_jwt(&short), json!({}));
    let mut exoclaw = Client::connect_with(address, &short);
    let mut other = openclaw(address, &short).expect("it is let in");
    assert_eq!(renewed.hello()["auth"]["scopes"], json!(["daemon.read", "daemon.write"]));
    assert_eq!(renewed.hello()["auth"]["expiresAtMs"].as_u64().expect("an end") % 1000, 0);

    let refresh = |token: String| json!({ "token": token });
    let granted = renewed.call("auth.refresh", refresh(jwt("ada", &[Scope::Write, Scope::Approve], 600)));
    assert_eq!(granted["scopes"], json!(["daemon.read", "daemon.write"]), "never wider");
    assert!(granted["expiresAtMs"].as_u64().expect("an end") > (now() + 300) * 1000);
    let bad = renewed.refused("auth.refresh", refresh("x".into()));
    assert_eq!((&bad["code"], &bad["details"]["reason"]), (&json!("UNAUTHORIZED"), &json!("jwt_malformed")));
    for (subject, scopes) in [("bob", Scope::Write), ("ada", Scope::Admin)] {
        let bad = renewed.refused("auth.refresh", refresh(jwt(subject, &[scopes], 600)));
        assert_eq!(bad["code"], "FORBIDDEN", "{bad}");
    }
    let expired = renewed.refused("auth.refresh", refresh(jwt("ada", &[Scope::Write], 0)));
    assert_eq!(
        (&expired["message"], &expired["details"]["reason"]),
        (&json!("JWT expired"), &json!("jwt_expired"))
    );
    assert_eq!((&expired["retryable"], &expired["retryAfterMs"]), (&json!(true), &json!(1000)));

    // The others end with the one they showed.
    assert_eq!(left.closed(), "1008");
    let told: Value = serde_json::from_str(left.seen().last().expect("it is told")).expect("JSON");
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!("invalid"), &json!("UNAUTHORIZED")));
    assert_eq!(told["error"]["details"]["reason"], "jwt_expired");
    assert!(told["error"]["details"]["expiredAt"].as_str().expect("a time").ends_with('Z'), "{told}");
    assert_eq!(exoclaw.receive()["error"], "credential_expired");
    assert_eq!(exoclaw.end(), "4001");
    assert_eq!(other.end(), "1008");
    let details = refused_by_wundr(address, as_jwt(&short));
    assert!(details["reason"] == "jwt_expired" && details["expiredAt"].is_string(), "{details}");

    // The renewed one goes on, and what it may do shrinks with the next.
    assert_eq!(renewed.call("health.ping", json!({}))["type"], "health.pong");
    let granted = renewed.call("auth.refresh", refresh(jwt("ada", &[Scope::Read], 600)));
    assert_eq!(granted["scopes"], json!(["daemon.read"]));
    let granted = renewed.call("auth.refresh", refresh(jwt("ada", &[Scope::Write], 600)));
    assert_eq!(granted["scopes"], json!(["daemon.read"]), "what was given up does not come back");
    assert_eq!(renewed.call("auth.logout", json!({})), json!({ "ok": true }));
    assert_eq!(renewed.closed(), "1000");
    assert_nothing_shows(&daemon, &[JWT_SECRET, &short]);
}

#[test]
fn a_jwt_that_was_given_out_is_renewed_with_a_fresh_one() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_JWT_SECRET", JWT_SECRET)]);
    let address = daemon.address;
    let (made, first) = create(&daemon, &["ada", "--role", "user", "--jwt", "--expires", "12h"]);
    let mut client = Wundr::connect_as(address, as_jwt(&first), json!({}));
    let fresh = client.call("auth.refresh", json!({ "token": first }));
    let second = fresh["token"].as_str().unwrap_or_else(|| panic!("{fresh}")).to_owned();
    assert!(second != first && second.split('.').count() == 3, "{fresh}");
    assert_eq!(fresh["scopes"], client.hello()["auth"]["scopes"]);
    assert!(fresh["expiresAtMs"].as_u64() >= client.hello()["auth"]["expiresAtMs"].as_u64(), "{fresh}");
    // It is the one that the connection holds from here on: revoking the other does not end it.
    let mut holder = Wundr::connect_as(address, as_jwt(&second), json!({}));
    let mut late = Wundr::connect_as(address, as_jwt(&first), json!({}));
    daemon.json_of(&["token", "revoke", made["token"].as_str().expect("an id")]);
    assert_eq!(late.closed(), "1008");
    for client in [&mut client, &mut holder] {
        assert_eq!(client.call("health.ping", json!({}))["type"], "health.pong");
    }
    let fresher = holder.call("auth.refresh", json!({ "token": second }))["token"].clone();
    // Who shows another one than its own is not given one.
    let taken = client.call("auth.refresh", json!({ "token": fresher }));
    assert!(taken.get("token").is_none(), "{taken}");
    // Nor is who has it from somebody else.
    let theirs = jwt("ada", &[Scope::Read], 600);
    let mut other = Wundr::connect_as(address, as_jwt(&theirs), json!({}));
    assert!(other.call("auth.refresh", json!({ "token": theirs })).get("token").is_none());
    assert_nothing_shows(&daemon, &[JWT_SECRET, &first, &second]);
}

#[test]
fn a_jwt_that_was_given_out_can_be_revoked_alone() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_JWT_SECRET", JWT_SECRET)]);
    let address = daemon.address;
    let (made, ours) = create(&daemon, &["ada", "--scope", "daemon.approve", "--jwt", "--expires", "12h"]);
    assert!(
        made["expires_ms"].is_u64() && made["kind"] == "jwt" && made["closes_loopback"] == false,
        "{made}"
    );
    let theirs = jwt("ada", &[Scope::Approve], 600);
    let mut revoked = Wundr::connect_as(address, as_jwt(&ours), json!({}));
    let mut stays = Wundr::connect_as(address, as_jwt(&theirs), json!({}));
    // One that shows the other from now on is no longer concerned; and the other way round.
    let mut changed = Wundr::connect_as(address, as_jwt(&ours), json!({}));
    changed.call("auth.refresh", json!({ "token": theirs }));
    let mut caught = Wundr::connect_as(address, as_jwt(&theirs), json!({}));
    caught.call("auth.refresh", json!({ "token": ours }));
    let id = made["token"].as_str().expect("an id");
    daemon.json_of(&["token", "revoke", id]);
    assert_eq!((revoked.closed(), caught.closed()), ("1008".to_owned(), "1008".to_owned()));
    for wundr in [&mut stays, &mut changed] {
        assert_eq!(wundr.call("health.ping", json!({}))["type"], "health.pong");
        assert_eq!(
            wundr.refused("auth.refresh", json!({ "token": ours }))["details"]["reason"],
            "jwt_revoked"
        );
    }
    let daemon = daemon.kill_and_restart();
    assert_eq!(refused_by_wundr(daemon.address, as_jwt(&ours))["reason"], "jwt_revoked");
    Wundr::connect_as(daemon.address, as_jwt(&theirs), json!({}));
}

#[test]
fn forged_credentials_are_refused_over_the_socket_with_their_reason() {
    let config = "[auth]\nloopback = \"required\"\n[[auth.api_keys]]\nname = \"ada\"\nkey_env = \"ADA\"\nrole = \"user\"\n";
    let env = [("CLAWMUX_JWT_SECRET", JWT_SECRET), ("ADA", "the-key-of-ada-with-32-characters")];
    let daemon = Daemon::with_env(config, &env);
    let address = daemon.address;
    let good = jwt("ada", &[Scope::Admin], 600);
    let parts: Vec<&str> = good.split('.').collect();
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let with_header = |header: &str| format!("{}.{}.{}", encode(header), parts[1], parts[2]);
    let root = String::from_utf8(URL_SAFE_NO_PAD.decode(parts[1]).expect("base64")).expect("text");
    let root = root.replace("ada", "root");
    let other =
        Signer::new(&Secret::new("another-secret-of-thirty-two-bytes"), "wundr-orchestrator", "wundr-daemon");
    let other = other.expect("it is long enough").mint(&claims("ada", &[], 600), Timestamp::default());
    let elsewhere = Signer::new(&Secret::new(JWT_SECRET), "somebody", "wundr-daemon").expect("long enough");
    let elsewhere = elsewhere.mint(&claims("ada", &[], 600), Timestamp::default());
    let forged = [
        (format!("{}.{}.", encode(r#"{"alg":"none"}"#), parts[1]), "jwt_algorithm_unsupported"),
        (with_header(r#"{"alg":"RS256","typ":"JWT"}"#), "jwt_algorithm_unsupported"),
        (with_header(r#"{"alg":"HS512","typ":"JWT"}"#), "jwt_algorithm_unsupported"),
        (with_header(r#"{"alg":"hs256","typ":"JWT"}"#), "jwt_algorithm_unsupported"),
        (with_header(r#"{"typ":"JWT"}"#), "jwt_header_invalid"),
        (with_header(r#"{"alg":"HS256"}"#), "jwt_signature_invalid"),
        (format!("{}.{}.{}", parts[0], encode(&root), parts[2]), "jwt_signature_invalid"),
        (format!("{good}="), "jwt_signature_invalid"),
        (format!("{good}.{}", parts[2]), "jwt_malformed"),
        (format!("{}.{}.{}", parts[0], "A".repeat(12_000), parts[2]), "jwt_malformed"),
        (other.expose().to_owned(), "jwt_signature_invalid"),
        (elsewhere.expose().to_owned(), "jwt_issuer_mismatch"),
        (jwt("ada", &[], 0), "jwt_expired"),
        ("the-key-of-ada-with-32-characters".to_owned(), "jwt_malformed"),
    ];
    let secrets = [&*good, JWT_SECRET, "the-key-of-ada-with-32-characters"];
    // A daemon lets nobody guess much faster than this.
    for some in forged.chunks(3) {
        let daemon = Daemon::with_env(config, &env);
        for (token, reason) in some {
            assert_eq!(refused_by_wundr(daemon.address, as_jwt(token))["reason"], *reason, "{token}");
            let as_key = refused_by_wundr_or_let_in(daemon.address, token);
            assert_eq!(as_key, token.starts_with("the-key"), "as an API key: {token}");
        }
        assert_nothing_shows(&daemon, &secrets);
    }
    // Where the kind is not said, both are tried, and forged ones are told no more than that.
    Client::connect_with(address, &good);
    openclaw(address, &good).expect("it is let in");
    assert_eq!(refused_by_exoclaw(address, &with_header(r#"{"alg":"none"}"#))["error"], "auth_failed");
    let refused = openclaw(address, other.expose()).map(|_| ()).expect_err("another secret");
    assert!(!refused.to_string().contains(other.expose()), "{refused}");
    // A message larger than a handshake may be never gets that far.
    let mut huge = Wundr::open(address, "/v2");
    let auth = json!({ "type": "jwt", "token": "A".repeat(80_000) });
    huge.request("auth.connect", json!({ "minProtocol": 2, "maxProtocol": 2, "auth": auth }));
    assert_eq!(huge.closed(), "1009");
    assert_nothing_shows(&daemon, &secrets);
}

/// Whether it lets in as an API key.
fn refused_by_wundr_or_let_in(address: SocketAddr, token: &str) -> bool {
    let auth = json!({ "type": "api-key", "token": token });
    match Wundr::try_connect(address, "/v2", auth, json!({})) {
        Ok(_) => true,
        Err((error, _)) => {
            assert_eq!(error["details"]["reason"], "api_key_invalid", "{error}");
            false
        }
    }
}

#[test]
fn what_is_asked_for_narrows_and_never_widens() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN), ("CLAWMUX_JWT_SECRET", JWT_SECRET)]);
    let granted = |auth: Value, asked: Value| {
        let more = if asked.is_null() { json!({}) } else { json!({ "scopes": asked }) };
        Wundr::connect_as(daemon.address, auth, more).hello()["auth"]["scopes"].clone()
    };
    let shared = || json!({ "type": "api-key", "token": TOKEN });
    let ada = |scopes: &[Scope]| as_jwt(&jwt("ada", scopes, 600));
    assert_eq!(granted(shared(), json!(["daemon.read"])), json!(["daemon.read"]));
    assert_eq!(
        granted(ada(&[Scope::Read]), json!(["daemon.write", "daemon.approve"])),
        json!(["daemon.read"])
    );
    assert_eq!(granted(ada(&[Scope::Approve]), json!(null)), json!(["daemon.approve"]));
    assert_eq!(granted(ada(&[]), json!(null)), json!([]), "no scope is nothing, and not everything");
    let mut nothing = Wundr::connect_as(daemon.address, ada(&[]), json!({}));
    assert_eq!(nothing.call("health.ping", json!({}))["type"], "health.pong");
    let discovered = nothing.call("rpc.discover", json!({}));
    let writes = discovered["methods"].as_array().expect("a list").iter().any(|method| {
        let needs = method["scopes"].as_array().is_some_and(|scopes| !scopes.is_empty());
        needs && nothing.try_call(method["name"].as_str().expect("a name"), json!({})).is_ok()
    });
    assert!(!writes, "something that needs a scope was done without");
}

#[test]
fn rates_are_a_principals_and_survive_its_connections() {
    let config = "[limits]\nrequests_burst = 100\nrequests_per_second = 1\n";
    let daemon = Daemon::with_env(config, &[("CLAWMUX_JWT_SECRET", JWT_SECRET)]);
    let prompts = |subject: &str, scopes: &[Scope]| {
        let token = &jwt(subject, scopes, 600);
        let mut client = Client::connect_with(daemon.address, token);
        let mut taken = 0;
        loop {
            let id = client.prompt(subject, "hi");
            let frame = client.reply(&id);
            match frame["error"].as_str() {
                None => taken += 1,
                Some(error) if error.starts_with("rate limited") => return taken,
                Some(error) => panic!("{error}"),
            }
            assert!(taken < 100, "nothing limits it");
        }
    };
    assert!(prompts("ada", &[Scope::Write]) >= 20);
    // Another connection and another token of the same subject change nothing.
    let more = prompts("ada", &[Scope::Write]) + prompts("ada", &[Scope::Write, Scope::Teams]);
    let others = prompts("bob", &[Scope::Write]);
    assert!(more < 10 && others >= 20, "again: {more}, somebody else: {others}");
}

#[test]
fn an_operators_mistakes_are_answered_with_what_to_do() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    for (args, status, says) in [
        (&["token", "create", "--name", "a", "--role", "user", "--jwt"][..], 1, "CLAWMUX_JWT_SECRET"),
        (&["token", "create", "--name", "A b", "--role", "user"], 1, "expected a name of lowercase letters"),
        (&["token", "create", "--name", "token", "--role", "user"], 1, "none of local, token, socket"),
        (&["token", "create", "--name", "a", "--scope", "daemon.root"], 1, "expected one or more scopes of"),
        (&["token", "create", "--name", "a"], 2, "--role"),
        (&["token", "create", "--name", "a", "--role", "user", "--expires", "soon"], 2, "such as 90s"),
        (&["token", "revoke", "cmx_0000000"], 1, "clawmux tokens"),
        (&["token"], 2, "create"),
    ] {
        let (code, stdout, stderr) = daemon.run(args);
        assert!(
            code == status && stderr.contains(says) && stdout.is_empty(),
            "{args:?}: {code} {stdout}{stderr}"
        );
    }
    let (status, _, said) = daemon.run(&["tokens"]);
    assert!(status == 0 && said.contains("no credentials were given out"), "{said}");
    create(&daemon, &["a", "--role", "user", "--expires", "30d"]);
    let (status, _, said) = daemon.run(&["token", "create", "--name", "a", "--role", "user"]);
    assert!(status == 1 && said.contains("revoke that one first"), "{said}");
}

#[test]
fn a_key_that_was_given_out_is_enough_to_listen_off_loopback() {
    let mut daemon = Daemon::start();
    let config = "[gateway]\nlisten = [\"0.0.0.0:0\"]\n";
    std::fs::write(daemon.home().join("gateway.toml"), config).expect("it is written");
    let (status, _, said) = daemon.run(&["check"]);
    assert!(status == 64 && said.contains("no credential is configured"), "{said}");
    let (_, key) = create(&daemon, &["bot", "--role", "user"]);
    assert!(daemon.terminate().success());
    let (status, _, said) = daemon.run(&["check"]);
    assert_eq!(status, 0, "{said}");
    let mut child = daemon::command(daemon.home())
        .arg("serve")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut ready = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut ready).expect("it says that it is ready");
    let address =
        daemon::address_in(&ready).map(|address| SocketAddr::from(([127, 0, 0, 1], address.port())));
    let checked = std::panic::catch_unwind(|| {
        let address = address.expect("an address");
        Client::connect_with(address, &key);
        assert_eq!(refused_by_exoclaw(address, "none")["error"], "auth_failed");
    });
    child.kill().expect("it is killed");
    child.wait().expect("it is reaped");
    checked.unwrap_or_else(|why| std::panic::resume_unwind(why));
}

/// A key that has expired ends its connections as a JWT does.
#[test]
fn a_key_can_have_an_end() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    let (made, key) = create(&daemon, &["brief", "--role", "readonly", "--expires", "2s"]);
    let mut wundr = Wundr::connect_with(daemon.address, &key);
    assert_eq!(wundr.hello()["auth"]["expiresAtMs"], made["expires_ms"]);
    assert_eq!(wundr.closed(), "1008");
    assert!(wundr.seen().last().expect("it is told").contains("api_key_expired"));
    let details = refused_by_wundr(daemon.address, json!({ "type": "api-key", "token": key }));
    assert_eq!(details["reason"], "api_key_expired");
    let soon = Duration::from_millis(made["expires_ms"].as_u64().expect("a time"));
    assert!(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") >= soon, "not before its time");
}

/// Both secrets are the same principal, connections of the old one stay until its end.
#[test]
fn a_key_is_rotated_while_its_connections_go_on() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    let (old, key) = create(&daemon, &["bot", "--role", "user"]);
    let id = old["token"].as_str().expect("an id");
    let mut before = Client::connect_with(daemon.address, &key);
    before.chat("ada", "hello");
    let rotated = daemon.json_of(&["token", "rotate", id, "--overlap", "3s"]);
    let fresh = rotated["secret"].as_str().expect("a secret").to_owned();
    assert_eq!((&rotated["name"], &rotated["role"]), (&json!("bot"), &json!("user")));
    assert!(rotated["expires_ms"].is_null() && rotated["old"]["expires_ms"].as_u64().is_some(), "{rotated}");
    let mut after = Client::connect_with(daemon.address, &fresh);
    let seen = |client: &mut Client| {
        let reply = client.call("session.list", json!({}));
        reply.to_string().matches("main:websocket:ada:main").count() > 0
    };
    assert!(seen(&mut after), "what was made with the old one is the new one's");
    assert!(seen(&mut before), "and the old one goes on");
    let (status, _, said) = daemon.run(&["token", "rotate", id]);
    assert!(status == 1 && said.contains("rotated already"), "{said}");

    assert_eq!(before.end(), "4001", "its time is over");
    assert_eq!(refused_by_exoclaw(daemon.address, &key)["error"], "auth_failed");
    assert!(seen(&mut after), "the new one goes on");
    assert_nothing_shows(&daemon, &[&key, &fresh]);
}

#[test]
fn the_first_credential_can_be_there_before_the_first_start() {
    let home = tempfile::tempdir().expect("a folder");
    let command = |args: &[&str]| {
        let output = daemon::command(home.path()).args(args).output().expect("it runs");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    assert_eq!(command(&["tokens"]).0, Some(69), "there is nothing, and nothing is made");
    assert_eq!(std::fs::read_dir(home.path()).expect("it is there").count(), 0);
    let (status, key) = command(&["token", "create", "--yes", "--name", "first", "--role", "admin"]);
    assert_eq!(status, Some(0), "{key}");
    let (status, listed) = command(&["tokens", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((status, &listed["name"]), (Some(0), &json!("first")), "one object a line");
    let id = listed["token"].as_str().expect("an id").to_owned();
    let daemon = Daemon::at(home, "", &[]);
    assert_eq!(refused_by_exoclaw(daemon.address, "none")["error"], "auth_failed");
    Client::connect_with(daemon.address, key.trim());
    let (status, _, said) = daemon.run(&["token", "rotate", &id, "--overlap", "0s"]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(refused_by_exoclaw(daemon.address, key.trim())["error"], "auth_failed");
}

#[test]
fn when_a_credential_was_used_is_kept_and_what_ends_soon_is_warned_of() {
    let config = "[[auth.api_keys]]\nname = \"ci\"\nkey_env = \"KEY_CI\"\nrole = \"user\"\n";
    let ci = "a-configured-key-of-thirty-two-chars";
    let daemon = Daemon::with_env(config, &[("CLAWMUX_TOKEN", TOKEN), ("KEY_CI", ci)]);
    let (made, key) = create(&daemon, &["brief", "--role", "user", "--expires", "6d"]);
    create(&daemon, &["long", "--role", "user", "--expires", "8d"]);
    for token in [TOKEN, ci, &key] {
        Client::connect_with(daemon.address, token);
    }
    let used = |daemon: &Daemon| {
        let listed = daemon.rows_of(&["tokens"]);
        let used = listed.iter().filter(|one| one["origin"] == "127.0.0.1" && one["used_ms"].is_u64());
        let mut names: Vec<_> = used.map(|one| one["name"].as_str().expect("a name").to_owned()).collect();
        names.sort();
        names
    };
    let all = ["brief", "ci", "token"];
    crate::support::eventually("it to be noted", || used(&daemon) == all);
    let (_, shown, said) = daemon.run(&["tokens"]);
    assert!(shown.contains("configured") && shown.contains("127.0.0.1"), "{shown}");
    let id = made["token"].as_str().expect("an id");
    assert!(said.contains(&format!("{id} of brief expires in 5d 23h")) && !said.contains("long"), "{said}");
    let shown = daemon.json_of(&["status"]);
    assert_eq!(
        (&shown["credentials_expiring"], &shown["tokens_expiring"][0]["token"]),
        (&json!(1), &json!(id))
    );
    let screen = daemon.run(&["status"]).1;
    assert!(
        screen.contains("expires      the credential of brief in 5d 23h: `clawmux token rotate "),
        "{screen}"
    );
    crate::support::eventually("it to be warned of", || daemon.log().contains("a credential expires soon"));
    let daemon = daemon.restart();
    assert_eq!(used(&daemon), all, "it survives a new start");
}
