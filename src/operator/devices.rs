//! `clawmux devices`, `device approve`, `device reject`, `device revoke`: which devices of the OpenClaw protocol come in.

use serde_json::{Value, json};

use super::table::table;
use super::when::{ago, now_ms};
use crate::admin_client::{call, home_of};
use crate::cli::{DeviceCommand, Devices, Global};
use crate::exit::{FAILED, Failure};
use crate::terminal::{json_line, say, tell};

/// An id may be cut to so many characters, where no other begins with them.
const PREFIX_CHARS_MIN: usize = 4;
/// So much of a device's id is shown.
const SHOWN_CHARS: usize = 12;

/// Runs `devices`.
///
/// # Errors
/// As [`call`].
pub(crate) fn list(global: &Global, options: &Devices) -> Result<(), Failure> {
    let answer = call(&home_of(global)?, "admin.devices", &json!({}))?;
    let (pending, paired) = (rows(&answer, "pending"), rows(&answer, "paired"));
    if options.json {
        let state = |rows: &[Value], state: &str| {
            let with = |row: &Value| {
                let mut row = row.clone();
                row["state"] = state.into();
                row
            };
            rows.iter().map(with).collect::<Vec<_>>()
        };
        return super::objects(&[state(pending, "waiting"), state(paired, "paired")].concat());
    }
    if pending.is_empty() && paired.is_empty() {
        tell(
            "no devices: one that connects over loopback with a credential is paired at once, others wait here to be \
             approved",
        );
        return Ok(());
    }
    let now_ms = now_ms();
    if !pending.is_empty() {
        let rows: Vec<_> = pending.iter().map(|row| waiting(row, now_ms)).collect();
        say(&table(
            ["REQUEST", "DEVICE", "NAME", "ROLE", "SCOPES", "CREDENTIAL", "ADDRESS", "ASKED"],
            &["SCOPES", "NAME"],
            &rows,
        ));
        tell("approve one with `clawmux device approve REQUEST`, within 5 minutes");
    }
    if !paired.is_empty() {
        let rows: Vec<_> = paired.iter().map(|row| known(row, now_ms)).collect();
        say(&table(
            ["DEVICE", "NAME", "ROLES", "SCOPES", "CREDENTIAL", "USED", "FROM"],
            &["SCOPES", "NAME"],
            &rows,
        ));
    }
    Ok(())
}

/// Runs `device approve`, `device reject` and `device revoke`.
///
/// # Errors
/// As [`call`]; status 1 where no device, or more than one, has such an id.
pub(crate) fn run(global: &Global, command: &DeviceCommand) -> Result<(), Failure> {
    let home = home_of(global)?;
    let list = call(&home, "admin.devices", &json!({}))?;
    let (options, method, params) = match command {
        DeviceCommand::Approve(options) => {
            let request = find(&options.id, &[("pending", "request"), ("pending", "device")], &list)?;
            (options, "admin.device.approve", json!({ "request": request["request"] }))
        }
        DeviceCommand::Reject(options) => {
            let request = find(&options.id, &[("pending", "request"), ("pending", "device")], &list)?;
            (options, "admin.device.reject", json!({ "request": request["request"] }))
        }
        DeviceCommand::Revoke(options) => {
            let places = [("paired", "device"), ("pending", "request"), ("pending", "device")];
            let found = find(&options.id, &places, &list)?;
            match &found["request"] {
                Value::Null => (options, "admin.device.revoke", json!({ "device": found["device"] })),
                request => (options, "admin.device.reject", json!({ "request": request })),
            }
        }
    };
    let answer = call(&home, method, &params)?;
    if options.json {
        say(&json_line(&answer));
        return Ok(());
    }
    let device = shown(&answer["device"]);
    say(&match method {
        "admin.device.approve" => {
            format!("paired device {device} as {}; it can connect from now on", text(&answer["role"]))
        }
        "admin.device.reject" => format!("rejected device {device}"),
        _ => format!("revoked device {device}: its tokens no longer work and its connections are closed"),
    });
    Ok(())
}

/// The one in these lists whose id is, or begins with, `id`.
fn find<'a>(id: &str, places: &[(&str, &str)], list: &'a Value) -> Result<&'a Value, Failure> {
    let fail = |why: String| Failure::new(FAILED, why);
    for (rows_of, name) in places {
        let begins = |row: &&Value| {
            let known = text(&row[*name]);
            known == id || (id.chars().count() >= PREFIX_CHARS_MIN && known.starts_with(id))
        };
        let found: Vec<_> = rows(list, rows_of).iter().filter(begins).collect();
        match &found[..] {
            [] => {}
            [one] => return Ok(one),
            several => {
                return Err(fail(format!(
                    "{} devices begin with this id: give more of it (`clawmux devices --json` shows the whole ids)",
                    several.len()
                )));
            }
        }
    }
    Err(fail("no device and no request has this id: `clawmux devices` lists them".into()))
}

fn waiting(row: &Value, now_ms: u64) -> [String; 8] {
    [
        text(&row["request"]).to_owned(),
        shown(&row["device"]),
        text(&row["name"]).to_owned(),
        text(&row["role"]).to_owned(),
        words(&row["scopes"]),
        text(&row["credential"]).to_owned(),
        text(&row["address"]).to_owned(),
        ago(row["requested_ms"].as_u64().unwrap_or(0), now_ms),
    ]
}

fn known(row: &Value, now_ms: u64) -> [String; 7] {
    let roles = rows(row, "roles");
    let live = || roles.iter().filter(|role| role["revoked_ms"].is_null());
    let named = |role: &Value| {
        let revoked = if role["revoked_ms"].is_null() { "" } else { " (revoked)" };
        format!("{}{revoked}", text(&role["role"]))
    };
    let mut scopes: Vec<String> = live().map(|role| words(&role["scopes"])).collect();
    scopes.dedup();
    [
        shown(&row["device"]),
        text(&row["name"]).to_owned(),
        roles.iter().map(named).collect::<Vec<_>>().join(", "),
        scopes.join("; "),
        text(&row["credential"]).to_owned(),
        ago(row["used_ms"].as_u64().unwrap_or(0), now_ms),
        text(&row["origin"]).to_owned(),
    ]
}

fn words(list: &Value) -> String {
    let all: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if all.is_empty() { "-".into() } else { all.join(" ") }
}

/// The beginning of a device's id, which is enough to name it.
fn shown(id: &Value) -> String {
    text(id).chars().take(SHOWN_CHARS).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_found_by_the_beginning_of_its_id_and_two_are_not() {
        let list = json!({
            "pending": [{"request": "r1-aaaa", "device": "abcd1"}, {"request": "r1-bbbb", "device": "abcd2"}],
            "paired": [{"device": "abcd1"}, {"device": "ffff0"}],
        });
        let of = |id: &str, places: &[(&str, &str)]| find(id, places, &list).cloned().ok();
        let pending = [("pending", "request"), ("pending", "device")];
        assert_eq!(of("r1-a", &pending).unwrap()["request"], "r1-aaaa");
        assert_eq!(of("abcd2", &pending).unwrap()["request"], "r1-bbbb");
        for id in ["r1-", "abcd", "abc", "", "zzzz", "ffff"] {
            assert!(of(id, &pending).is_none(), "{id:?}");
        }
        let any = [("paired", "device"), ("pending", "request"), ("pending", "device")];
        assert!(of("abcd1", &any).unwrap()["request"].is_null(), "a paired one first");
        assert_eq!(of("ffff", &any).unwrap()["device"], "ffff0");
    }

    #[test]
    fn what_was_revoked_says_so() {
        let row = json!({
            "device": "0123456789abcdef", "name": "cli", "credential": "token", "address": "::1", "used_ms": 0,
            "roles": [{"role": "operator", "scopes": ["admin"], "revoked_ms": null},
                      {"role": "node", "scopes": ["read"], "revoked_ms": 5}],
        });
        let shown = known(&row, 60_000);
        assert_eq!(shown[..4], ["0123456789ab", "cli", "operator, node (revoked)", "admin"]);
    }
}
