//! `clawmux tokens`, `token create`, `token revoke`, `token rotate`: the API keys and JWTs that the daemon
//! gives out. Where no daemon runs they are looked for in its store, so that the first credential can be there
//! before the first start.

use clawmux_actors::operator::tokens_without_daemon;
use clawmux_core::access::authority::Authority;
use serde_json::{Value, json};

use super::find::matching;
use super::print;
use super::source::Source;
use super::table::table;
use crate::admin_client::{Link, Refused, home_of};
use crate::answer::Members;
use crate::cli::{CreateToken, Global, RotateToken, TokenCommand, millis};
use crate::exit::{FAILED, Failure, UNREACHABLE};
use crate::terminal::{json_line, one_line, say, tell};
use crate::when::{ago, now_ms, span, utc};
use crate::{home, question, settings};

/// Shown before the first credential is created.
const FIRST: &str = "\
This is the first credential. With it, every client that connects over TCP needs one, also from this machine: \
OpenClaw (/), exoclaw (/ws), Wundr (/v2) and the admin RPC (/admin). Clients that are connected without one are \
disconnected.
Nothing changes for you: clawmux chat, the other clawmux commands and xeno's clients use the Unix socket and need \
no credential.";

/// How many characters the beginning of a credential's id needs at least.
const PREFIX_CHARS_MIN: usize = 6;

/// How many ids are shown if several credentials have one name.
const IDS_SHOWN_MAX: usize = 5;

/// A credential that expires within this time is warned of, in milliseconds.
const SOON_MS: u64 = 7 * 86_400_000;

/// Asks the daemon; if none runs, works on its store directly.
fn ask(global: &Global, method: &str, params: &Value) -> Result<Value, Failure> {
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
/// Status 69 if a daemon runs and is not reachable, 1 if it refuses or fails.
pub(crate) fn list(global: &Global) -> Result<(), Failure> {
    let answer = Source::open(global)?.ask("admin.tokens", &json!({}))?;
    let (tokens, configured) = (answer.list("tokens"), answer.list("configured"));
    if global.json {
        let configured = configured.iter().map(|known| {
            let mut known = known.clone();
            known["configured"] = true.into();
            known
        });
        return print::objects(&tokens.iter().cloned().chain(configured).collect::<Vec<_>>());
    }
    let now_ms = now_ms();
    let mut rows: Vec<_> = tokens.iter().map(|token| row(token, now_ms)).collect();
    rows.extend(configured.iter().map(|known| configured_row(known, now_ms)));
    if tokens.is_empty() {
        tell("no credentials were given out: `clawmux token create` makes one");
    }
    if rows.is_empty() {
        return Ok(());
    }
    let head = ["ID", "NAME", "KIND", "SCOPES", "STATE", "CREATED", "USED", "FROM"];
    say(&table(head, &["SCOPES", "NAME"], &rows));
    for token in expiring(tokens, now_ms) {
        let (id, name) = (token.text("token"), token.text("name"));
        let left = span(token.number("expires_ms").saturating_sub(now_ms));
        tell(&format!("{id} of {name} expires in {left}: `clawmux token rotate {id}` creates its successor"));
    }
    Ok(())
}

/// Valid credentials that expire soon and have no newer successor.
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
/// As [`list`]; status 1 if no credential, or more than one, has such an id.
pub(crate) fn run(global: &Global, command: &TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Create(options) => create(global, options),
        TokenCommand::Revoke { id } => revoke(global, id),
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
        params["life_ms"] = millis(life).into();
    }
    if options.inherit {
        params["inherit"] = true.into();
    }
    let is_asked = !options.yes && is_first(global)?;
    if is_asked {
        question::agree(FIRST, "Create it?", "Give --yes to create it", "no credential was created")?;
    }
    let made = ask(global, "admin.token.create", &params)?;
    show(global, &made, &described(&made));
    if made["closes_loopback"] == true && !is_asked {
        tell(FIRST);
    }
    Ok(())
}

/// Prints a new credential: what it is to stderr, its secret to stdout.
fn show(global: &Global, made: &Value, described: &str) {
    if global.json {
        return say(&json_line(made));
    }
    tell(&format!("{described}\nCopy it now, it cannot be shown again:"));
    say(made.text("secret"));
}

/// Whether clients need no credential yet.
fn is_first(global: &Global) -> Result<bool, Failure> {
    match ask(global, "admin.tokens", &json!({})) {
        Ok(known) => Ok(known["loopback_open"] == true),
        // No daemon ran on this home yet, so there is what is configured and nothing else.
        Err(failure) if failure.status == UNREACHABLE => {
            let authority = Authority::new(&settings::read(global, &[])?.config.auth);
            Ok(!authority.credentials_required(true, false))
        }
        Err(failure) => Err(failure),
    }
}

/// A new credential in words.
fn described(made: &Value) -> String {
    let expires = made["expires_ms"].as_u64();
    let kind = if made["kind"] == "jwt" { "JWT" } else { "API key" };
    let allows = if made["role"].is_string() { "role" } else { "scopes" };
    format!(
        "{kind} {} for {:?} ({allows} {}). {}",
        made.text("token"),
        made.text("name"),
        scopes(made),
        expires.map_or_else(
            || "It does not expire; clawmux token revoke ends it.".to_owned(),
            |at| format!("It expires on {} UTC.", utc(at))
        ),
    )
}

fn rotate(global: &Global, options: &RotateToken) -> Result<(), Failure> {
    let id = find(&options.id, ask(global, "admin.tokens", &json!({}))?.list("tokens"))?;
    let mut params = json!({ "token": id, "overlap_ms": millis(options.overlap) });
    if let Some(life) = options.expires {
        params["life_ms"] = millis(life).into();
    }
    let made = ask(global, "admin.token.rotate", &params)?;
    let until = made["old"]["expires_ms"].as_u64().map_or_else(|| "-".to_owned(), utc);
    let new = described(&made);
    show(global, &made, &format!("{new} It replaces {id}, which works until {until} UTC."));
    Ok(())
}

fn revoke(global: &Global, id: &str) -> Result<(), Failure> {
    let id = find(id, ask(global, "admin.tokens", &json!({}))?.list("tokens"))?;
    let revoked = ask(global, "admin.token.revoke", &json!({ "token": id }))?;
    print::answer(global, &revoked, |revoked| {
        let (kind, name) = (revoked.text("kind"), revoked.text("name"));
        format!("{kind} {id} of {name} is revoked, and its connections are closed")
    });
    Ok(())
}

/// The id that is, or begins with, `id`, or else the one credential of this name.
fn find(id: &str, tokens: &[Value]) -> Result<String, Failure> {
    match matching(tokens, "token", id, PREFIX_CHARS_MIN, |_| false)[..] {
        [one] => Ok(one.text("token").to_owned()),
        [] => named(id, tokens),
        ref several => {
            let why = format!("{} of them begin with this id, give more of it", several.len());
            Err(Failure::new(FAILED, why))
        }
    }
}

/// The id of the credential of this name, of several the one that is not revoked.
fn named(name: &str, tokens: &[Value]) -> Result<String, Failure> {
    let all = || tokens.iter().filter(|token| token.text("name") == name);
    let valid: Vec<_> = all().filter(|token| token["revoked_ms"].is_null()).collect();
    let found = if valid.is_empty() { all().collect() } else { valid };
    let ids: Vec<_> = found.iter().map(|token| token.text("token")).collect();
    let why = match ids[..] {
        [one] => return Ok(one.to_owned()),
        [] => {
            let name = one_line(name, 200);
            format!("no credential has the id or the name {name}: `clawmux tokens` lists them")
        }
        _ => {
            let ids_shown = ids.iter().take(IDS_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
            format!("{} credentials have the name {name}: give the id ({ids_shown})", ids.len())
        }
    };
    Err(Failure::new(FAILED, why))
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
        token.text("token").to_owned(),
        token.text("name").to_owned(),
        token.text("kind").to_owned(),
        scopes(token),
        state,
        ago(token.number("created_ms"), now_ms),
        time("used_ms").map_or_else(|| "never".to_owned(), |at| ago(at, now_ms)),
        token.text("origin").to_owned(),
    ]
}

/// The row of a credential of the configuration.
fn configured_row(known: &Value, now_ms: u64) -> [String; 8] {
    [
        "-".into(),
        known.text("name").to_owned(),
        "configured".into(),
        scopes(known),
        "valid".into(),
        "-".into(),
        known["used_ms"].as_u64().map_or_else(|| "never".to_owned(), |at| ago(at, now_ms)),
        known.text("origin").to_owned(),
    ]
}

/// Its role, or its scopes.
fn scopes(token: &Value) -> String {
    if let Some(role) = token["role"].as_str() {
        return role.to_owned();
    }
    token.words("scopes")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((find("ci", &all).unwrap(), find("tv", &all).unwrap()), ("cmx_2".into(), "cmx_3".into()));
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
