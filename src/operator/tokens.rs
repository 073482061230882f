//! `clawmux tokens`, `token create`, `token revoke`, `token rotate`: the API keys and JWTs that the daemon
//! gives out. Where no daemon runs they are looked for in its store, so that the first credential can be there
//! before the first start.

use std::time::Duration;

use clawmux_actors::operator::tokens_without_daemon;
use clawmux_core::auth::authority::Authority;
use serde_json::{Value, json};

use super::source::Source;
use super::table::table;
use super::when::{ago, now_ms, span, utc};
use crate::admin_client::{Link, Refused, home_of};
use crate::cli::{CreateToken, Global, RevokeToken, RotateToken, TokenCommand, Tokens};
use crate::exit::{FAILED, Failure, UNREACHABLE, USAGE};
use crate::terminal::{json_line, one_line, say, tell};
use crate::{home, question, settings};

/// What the first credential changes, and what it does not.
const FIRST: &str = "\
This is the first credential. With it, every client that connects over TCP needs one, also from this machine: \
OpenClaw (/), exoclaw (/ws), Wundr (/v2) and the admin RPC (/admin). Clients that are connected without one are \
disconnected.
Nothing changes for you: clawmux chat, the other clawmux commands and xeno's clients use the Unix socket and need \
no credential.";

/// An id may be cut to so many characters, where no other begins with them.
const PREFIX_CHARS_MIN: usize = 6;

/// One that ends within so long is warned of, in milliseconds.
const SOON_MS: u64 = 7 * 86_400_000;

/// Asks the daemon; where none runs, does what it would do.
fn call(global: &Global, method: &str, params: &Value) -> Result<Value, Failure> {
    let home = home_of(global)?;
    let unreachable = match Link::open(&home).and_then(|mut link| link.call(method, params, |_, _| {})) {
        Ok(answer) => return Ok(answer),
        Err(refused @ Refused::Unreachable(_)) => refused,
        Err(refused) => return Err(refused.into()),
    };
    if home::holder(&home).is_some() {
        return Err(unreachable.into());
    }
    let settings = settings::read(global, &[])?;
    // The first credential may be there before the first start; nothing else is looked for where nothing is.
    if method != "admin.token.create" && !settings.config.store.path.exists() {
        return Err(unreachable.into());
    }
    home::create(&settings.home)?;
    let done = tokens_without_daemon(&settings.home, &settings.config, method, params);
    Ok(actix::System::new().block_on(done)?)
}

/// Runs `tokens`.
///
/// # Errors
/// Status 69 where a daemon runs and is not reachable, 1 where it refuses or fails.
pub(crate) fn list(global: &Global, options: &Tokens) -> Result<(), Failure> {
    let answer = Source::open(global)?.ask("admin.tokens", &json!({}))?;
    if options.json {
        let configured = answer["configured"].as_array().into_iter().flatten().map(|known| {
            let mut known = known.clone();
            known["configured"] = true.into();
            known
        });
        return super::objects(&[tokens(&answer), &configured.collect::<Vec<_>>()].concat());
    }
    let now_ms = now_ms();
    let mut rows: Vec<_> = tokens(&answer).iter().map(|token| row(token, now_ms)).collect();
    rows.extend(answer["configured"].as_array().into_iter().flatten().map(|known| configured(known, now_ms)));
    if tokens(&answer).is_empty() {
        tell("no credentials were given out: `clawmux token create` makes one");
    }
    if rows.is_empty() {
        return Ok(());
    }
    say(&table(
        ["ID", "NAME", "KIND", "SCOPES", "STATE", "CREATED", "USED", "FROM"],
        &["SCOPES", "NAME"],
        &rows,
    ));
    for token in expiring(tokens(&answer), now_ms) {
        let (id, name) = (text(&token["token"]), text(&token["name"]));
        let left = span(token["expires_ms"].as_u64().unwrap_or(0).saturating_sub(now_ms));
        tell(&format!("{id} of {name} expires in {left}: `clawmux token rotate {id}` creates its successor"));
    }
    Ok(())
}

/// Those that let in and will not for long, and that no newer one goes on from.
pub(crate) fn expiring(tokens: &[Value], now_ms: u64) -> impl Iterator<Item = &Value> {
    let lets_in = move |token: &Value| {
        token["revoked_ms"].is_null() && token["expires_ms"].as_u64().is_none_or(|at| at > now_ms)
    };
    let goes_on = move |token: &Value, other: &Value| {
        let same = ["name", "kind", "since_ms"].iter().all(|key| token[key] == other[key]);
        same && lets_in(other) && other["created_ms"].as_u64() > token["created_ms"].as_u64()
    };
    let soon = move |token: &&Value| token["expires_ms"].as_u64().is_some_and(|at| at <= now_ms + SOON_MS);
    let valid = tokens.iter().filter(move |token| lets_in(token)).filter(soon);
    valid.filter(move |token| !tokens.iter().any(|other| goes_on(token, other)))
}

/// Runs `token create`, `token revoke` and `token rotate`.
///
/// # Errors
/// As [`list`]; status 1 where no credential, or more than one, has such an id.
pub(crate) fn run(global: &Global, command: &TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Create(options) => create(global, options),
        TokenCommand::Revoke(options) => revoke(global, options),
        TokenCommand::Rotate(options) => rotate(global, options),
    }
}

fn create(global: &Global, options: &CreateToken) -> Result<(), Failure> {
    let mut params = json!({ "name": options.name, "kind": if options.jwt { "jwt" } else { "api-key" } });
    match &options.role {
        Some(role) => params["role"] = role.as_str().into(),
        None => params["scopes"] = options.scope.clone().into(),
    }
    if let Some(life) = options.expires {
        params["life_ms"] = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).into();
    }
    if options.inherit {
        params["inherit"] = true.into();
    }
    let is_asked = !options.yes && is_first(global)?;
    if is_asked && !question::is_possible() {
        let why = "there is no terminal to ask on. Give --yes to create it";
        return Err(Failure::new(USAGE, format!("{FIRST}\n{why}")));
    }
    if is_asked {
        tell(FIRST);
        if !question::confirm("Create it?")? {
            return Err(Failure::new(FAILED, "no credential was created"));
        }
    }
    let made = call(global, "admin.token.create", &params)?;
    if options.json {
        say(&json_line(&made));
    } else {
        tell(&format!("{}\n{COPY_IT}", described(&made)));
        say(text(&made["secret"]));
    }
    if made["closes_loopback"] == true && !is_asked {
        tell(FIRST);
    }
    Ok(())
}

/// Said above a secret.
const COPY_IT: &str = "Copy it now, it cannot be shown again:";

/// Whether nobody needs a credential until now.
fn is_first(global: &Global) -> Result<bool, Failure> {
    match call(global, "admin.tokens", &json!({})) {
        Ok(known) => Ok(known["loopback_open"] == true),
        // No daemon ran on this home yet, so there is what is configured and nothing else.
        Err(failure) if failure.status == UNREACHABLE => {
            let authority = Authority::new(&settings::read(global, &[])?.config.auth);
            Ok(!authority.credentials_required(true, false))
        }
        Err(failure) => Err(failure),
    }
}

/// A credential that was given out.
fn described(made: &Value) -> String {
    let expires = made["expires_ms"].as_u64();
    let kind = if made["kind"] == "jwt" { "JWT" } else { "API key" };
    let allows = if made["role"].is_string() { "role" } else { "scopes" };
    format!(
        "{kind} {} for {:?} ({allows} {}). {}",
        text(&made["token"]),
        text(&made["name"]),
        scopes(made),
        expires.map_or_else(
            || "It does not expire; clawmux token revoke ends it.".to_owned(),
            |at| format!("It expires on {} UTC.", utc(at))
        ),
    )
}

fn rotate(global: &Global, options: &RotateToken) -> Result<(), Failure> {
    let list = call(global, "admin.tokens", &json!({}))?;
    let id = find(&options.id, tokens(&list))?;
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut params = json!({ "token": id, "overlap_ms": millis(options.overlap) });
    if let Some(life) = options.expires {
        params["life_ms"] = millis(life).into();
    }
    let made = call(global, "admin.token.rotate", &params)?;
    if options.json {
        say(&json_line(&made));
        return Ok(());
    }
    let until = made["old"]["expires_ms"].as_u64().map_or_else(|| "-".to_owned(), utc);
    let new = described(&made);
    tell(&format!("{new} It replaces {id}, which works until {until} UTC.\n{COPY_IT}"));
    say(text(&made["secret"]));
    Ok(())
}

fn revoke(global: &Global, options: &RevokeToken) -> Result<(), Failure> {
    let list = call(global, "admin.tokens", &json!({}))?;
    let id = find(&options.id, tokens(&list))?;
    let revoked = call(global, "admin.token.revoke", &json!({ "token": id }))?;
    if options.json {
        say(&json_line(&revoked));
    } else {
        let (kind, name) = (text(&revoked["kind"]), text(&revoked["name"]));
        say(&format!("{kind} {id} of {name} is revoked, and its connections are closed"));
    }
    Ok(())
}

/// The id that is, or begins with, `id`, or else the one credential of this name.
fn find<'a>(id: &str, tokens: &'a [Value]) -> Result<&'a str, Failure> {
    let known = || tokens.iter().map(|token| text(&token["token"]));
    if let Some(exact) = known().find(|known| *known == id) {
        return Ok(exact);
    }
    let is_enough = id.chars().count() >= PREFIX_CHARS_MIN;
    let found: Vec<&str> = known().filter(|known| is_enough && known.starts_with(id)).collect();
    match found[..] {
        [one] => Ok(one),
        [] => named(id, tokens),
        _ => {
            Err(Failure::new(FAILED, format!("{} of them begin with this id, give more of it", found.len())))
        }
    }
}

/// The id of the credential of this name, of several the one that is not revoked.
fn named<'a>(name: &str, tokens: &'a [Value]) -> Result<&'a str, Failure> {
    let all: Vec<&Value> = tokens.iter().filter(|token| text(&token["name"]) == name).collect();
    let valid: Vec<&Value> = all.iter().copied().filter(|token| token["revoked_ms"].is_null()).collect();
    let ids = |found: &[&'a Value]| found.iter().map(|token| text(&token["token"])).collect::<Vec<&'a str>>();
    match ids(if valid.is_empty() { &all } else { &valid })[..] {
        [one] => Ok(one),
        [] => Err(Failure::new(
            FAILED,
            format!(
                "no credential has the id or the name {}: `clawmux tokens` lists them",
                one_line(name, 200)
            ),
        )),
        ref several => {
            let ids = several.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            let why = format!("{} credentials have the name {name}: give the id ({ids})", several.len());
            Err(Failure::new(FAILED, why))
        }
    }
}

fn row(token: &Value, now_ms: u64) -> [String; 8] {
    let time = |name: &str| token[name].as_u64();
    let state = match (time("revoked_ms"), time("expires_ms")) {
        (Some(at), _) => format!("revoked {}", ago(at, now_ms)),
        (None, Some(at)) if at <= now_ms => format!("expired {}", ago(at, now_ms)),
        (None, Some(at)) => format!("until {}", &utc(at)[..16]),
        (None, None) => "valid".into(),
    };
    [
        text(&token["token"]).to_owned(),
        text(&token["name"]).to_owned(),
        text(&token["kind"]).to_owned(),
        scopes(token),
        state,
        ago(time("created_ms").unwrap_or(0), now_ms),
        time("used_ms").map_or_else(|| "never".to_owned(), |at| ago(at, now_ms)),
        text(&token["origin"]).to_owned(),
    ]
}

/// One of the configuration.
fn configured(known: &Value, now_ms: u64) -> [String; 8] {
    [
        "-".into(),
        text(&known["name"]).to_owned(),
        "configured".into(),
        scopes(known),
        "valid".into(),
        "-".into(),
        known["used_ms"].as_u64().map_or_else(|| "never".to_owned(), |at| ago(at, now_ms)),
        text(&known["origin"]).to_owned(),
    ]
}

/// Its role, or its scopes.
fn scopes(token: &Value) -> String {
    if let Some(role) = token["role"].as_str() {
        return role.to_owned();
    }
    let names: Vec<&str> =
        token["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if names.is_empty() { "-".into() } else { names.join(" ") }
}

fn tokens(answer: &Value) -> &[Value] {
    answer["tokens"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// A span as people write it: `90s`, `15m`, `12h`, `30d`.
///
/// # Errors
/// What it must look like.
pub(crate) fn life(text: &str) -> Result<Duration, String> {
    let expected = || "expected a span such as 90s, 15m, 12h or 30d".to_owned();
    let unit = text.chars().last().ok_or_else(expected)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(expected()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| expected())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| *seconds > 0).ok_or_else(expected)?;
    Ok(Duration::from_secs(seconds))
}

/// The same, and nothing as `0s`.
///
/// # Errors
/// What it must look like.
pub(crate) fn overlap(text: &str) -> Result<Duration, String> {
    if text == "0s" { Ok(Duration::ZERO) } else { life(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(life(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "d", "0d", "-1d", "1", "1y", "1.5d", " 1d", "1 d", "99999999999999999999d", "İ"] {
            assert!(life(bad).is_err(), "{bad}");
        }
        assert!(life(&format!("{}d", u64::MAX)).is_err());
        assert_eq!((overlap("0s"), overlap("1h")), (Ok(Duration::ZERO), Ok(Duration::from_secs(3600))));
        assert!(overlap("0h").is_err());
    }

    #[test]
    fn one_is_found_by_the_beginning_of_its_id_and_two_are_not() {
        let all = [json!({"token": "cmx_aaaa1"}), json!({"token": "cmx_aaaa2"}), json!({"token": "cmx_b"})];
        assert_eq!(find("cmx_aaaa1", &all).unwrap(), "cmx_aaaa1");
        assert_eq!(find("cmx_b", &all).unwrap(), "cmx_b", "all of it, however short");
        for id in ["cmx_aaaa", "cmx_", "", "zzzzzz"] {
            assert!(find(id, &all).is_err(), "{id}");
        }
    }

    #[test]
    fn one_is_found_by_a_name_that_no_other_valid_one_has() {
        let token = |id: &str, name: &str, revoked: Option<u64>| json!({"token": id, "name": name, "revoked_ms": revoked});
        let all = [
            token("cmx_1", "ci", Some(5)),
            token("cmx_2", "ci", None),
            token("cmx_3", "tv", Some(5)),
            token("cmx_4", "bot", None),
            token("cmx_5", "bot", None),
        ];
        assert_eq!((find("ci", &all).unwrap(), find("tv", &all).unwrap()), ("cmx_2", "cmx_3"));
        let several = find("bot", &all).unwrap_err().message;
        assert_eq!(several, "2 credentials have the name bot: give the id (cmx_4, cmx_5)");
        let none = find("who", &all).unwrap_err().message;
        assert_eq!(none, "no credential has the id or the name who: `clawmux tokens` lists them");
    }

    #[test]
    fn what_ends_soon_is_told_unless_another_goes_on() {
        let token = |id: u64, since: u64, expires: Option<u64>| {
            json!({"token": id, "name": "ci", "kind": "api-key", "since_ms": since, "created_ms": id,
                "expires_ms": expires, "revoked_ms": null})
        };
        let ids = |all: &[Value]| {
            expiring(all, 1000).filter_map(|token| token["token"].as_u64()).collect::<Vec<_>>()
        };
        let (soon, late) = (Some(1000 + SOON_MS), Some(1001 + SOON_MS));
        let all = [token(1, 1, Some(1001)), token(2, 1, None), token(3, 3, soon), token(4, 4, None)];
        assert_eq!(ids(&all), [3], "the first was rotated");
        assert!(ids(&[token(5, 5, Some(1000)), token(6, 6, late)]).is_empty());
    }

    #[test]
    fn what_lets_nobody_in_says_so() {
        let state = |token: Value| row(&token, 100_000)[4].clone();
        assert_eq!(state(json!({})), "valid");
        assert_eq!(state(json!({"expires_ms": 100_000})), "expired now");
        assert_eq!(state(json!({"expires_ms": 160_000})), "until 1970-01-01 00:02");
        assert_eq!(state(json!({"revoked_ms": 40_000, "expires_ms": 160_000})), "revoked 1m ago");
    }
}
