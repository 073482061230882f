//! `clawmux devices`, `device approve`, `device reject`, `device revoke`: which devices of the OpenClaw protocol come in.

use serde_json::{Value, json};

use super::find::{PREFIX_CHARS_MIN, matching};
use super::print::{self, List};
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{DeviceCommand, Global};
use crate::exit::{FAILED, Failure};
use crate::terminal::tell;
use crate::when::ago;

/// How many characters of a device's id are shown.
const SHOWN_CHARS: usize = 12;

/// Runs `devices`.
pub(crate) fn list(global: &Global) -> Result<(), Failure> {
    let answer = ask(global, "admin.devices", &json!({}))?;
    let (pending, paired) = (answer.list("pending"), answer.list("paired"));
    if global.json {
        let with = |row: &Value, state: &str| {
            let mut row = row.clone();
            row["state"] = state.into();
            row
        };
        let pending = pending.iter().map(|row| with(row, "waiting"));
        let all: Vec<_> = pending.chain(paired.iter().map(|row| with(row, "paired"))).collect();
        return print::objects(&all);
    }
    if pending.is_empty() && paired.is_empty() {
        tell(
            "no devices: one that connects over loopback with a credential is paired at once, others wait here to be \
             approved",
        );
    }
    if !pending.is_empty() {
        let head = ["REQUEST", "DEVICE", "NAME", "ROLE", "SCOPES", "CREDENTIAL", "ADDRESS", "ASKED"];
        List { rows: pending, head, gives_way: &["SCOPES", "NAME"], cells: waiting, none: "" }.print_table();
        tell("approve one with `clawmux device approve REQUEST`, within 5 minutes");
    }
    if !paired.is_empty() {
        let head = ["DEVICE", "NAME", "ROLES", "SCOPES", "CREDENTIAL", "USED", "FROM"];
        List { rows: paired, head, gives_way: &["SCOPES", "NAME"], cells: known, none: "" }.print_table();
    }
    Ok(())
}

/// Where a request that waits is looked for: by its own id, then by that of its device.
const REQUESTS: [(&str, &str); 2] = [("pending", "request"), ("pending", "device")];
/// Where a device is looked for: among the paired ones first.
const DEVICES: [(&str, &str); 3] = [("paired", "device"), REQUESTS[0], REQUESTS[1]];

/// Runs `device approve`, `device reject` and `device revoke`.
///
/// # Errors
/// As [`ask`]; status 1 if no device, or more than one, has such an id.
pub(crate) fn run(global: &Global, command: &DeviceCommand) -> Result<(), Failure> {
    let list = ask(global, "admin.devices", &json!({}))?;
    let (device, places) = match command {
        DeviceCommand::Approve(device) | DeviceCommand::Reject(device) => (device, &REQUESTS[..]),
        DeviceCommand::Revoke(device) => (device, &DEVICES[..]),
    };
    let found = find(&device.id, places, &list)?;
    let request = json!({ "request": found["request"] });
    match command {
        DeviceCommand::Approve(_) => print::done(global, "admin.device.approve", &request, |answer| {
            let device = shown(answer);
            format!("paired device {device} as {}; it can connect from now on", answer.text("role"))
        }),
        DeviceCommand::Revoke(_) if found["request"].is_null() => {
            let params = json!({ "device": found["device"] });
            print::done(global, "admin.device.revoke", &params, |answer| {
                let device = shown(answer);
                format!("revoked device {device}: its tokens no longer work and its connections are closed")
            })
        }
        DeviceCommand::Reject(_) | DeviceCommand::Revoke(_) => {
            let words = |answer: &Value| format!("rejected device {}", shown(answer));
            print::done(global, "admin.device.reject", &request, words)
        }
    }
}

/// The entry of these lists whose id is, or begins with, `id`.
fn find<'a>(id: &str, places: &[(&str, &str)], list: &'a Value) -> Result<&'a Value, Failure> {
    let fail = |why: String| Failure::new(FAILED, why);
    for (rows, member) in places {
        match matching(list.list(rows), member, id, PREFIX_CHARS_MIN, |_| false)[..] {
            [] => {}
            [one] => return Ok(one),
            ref several => {
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
        row.text("request").to_owned(),
        shown(row),
        row.text("name").to_owned(),
        row.text("role").to_owned(),
        row.words("scopes"),
        row.text("credential").to_owned(),
        row.text("address").to_owned(),
        ago(row.number("requested_ms"), now_ms),
    ]
}

fn known(row: &Value, now_ms: u64) -> [String; 7] {
    let roles = row.list("roles");
    let live = || roles.iter().filter(|role| role["revoked_ms"].is_null());
    let named = |role: &Value| {
        let revoked = if role["revoked_ms"].is_null() { "" } else { " (revoked)" };
        format!("{}{revoked}", role.text("role"))
    };
    let mut scopes: Vec<String> = live().map(|role| role.words("scopes")).collect();
    scopes.dedup();
    [
        shown(row),
        row.text("name").to_owned(),
        roles.iter().map(named).collect::<Vec<_>>().join(", "),
        scopes.join("; "),
        row.text("credential").to_owned(),
        ago(row.number("used_ms"), now_ms),
        row.text("origin").to_owned(),
    ]
}

/// The beginning of the id of the row's device, which is enough to name it.
fn shown(row: &Value) -> String {
    row.text("device").chars().take(SHOWN_CHARS).collect()
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
