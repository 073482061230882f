//! `clawmux cluster status`, `nodes`, `slots`, `handover`: what a daemon says of its cluster.

use serde_json::{Value, json};

use crate::admin_client::ask;
use crate::answer::Members as _;
use crate::cli::{Global, RunningCommand};
use crate::exit::{FAILED, Failure};
use crate::operator::amount::{bytes, counted, grouped};
use crate::operator::print::{self, List};
use crate::operator::session::key_at_daemon;
use crate::operator::table::Cell;
use crate::when::{ago, now_ms};

/// Asks the daemon.
///
/// # Errors
/// As [`ask`]; status 1 if nothing can be written, or stores differ.
pub(super) fn run(global: &Global, command: &RunningCommand) -> Result<(), Failure> {
    match command {
        RunningCommand::Status => {
            let cluster = ask(global, "admin.cluster.status", &json!({}))?;
            print::answer(global, &cluster, |cluster| described(cluster, now_ms()));
            let is_well = cluster["fault"].is_null() && cluster["agree"] != false;
            if is_well { Ok(()) } else { Err(Failure::new(FAILED, "")) }
        }
        RunningCommand::Nodes => {
            let status = ask(global, "admin.cluster.status", &json!({}))?;
            let last = status["log"]["last"].as_u64();
            let rows: Vec<Value> = status.list("nodes").iter().map(|node| with_lag(node, last)).collect();
            let list = List {
                rows: &rows,
                head: ["NODE", "STATE", "SLOTS", "BEHIND", "SAME", "HEARD", "VERSION"],
                gives_way: &["NODE"],
                cells: node,
                none: "no daemon has joined yet",
            };
            list.print(global).map(drop)
        }
        RunningCommand::Slots { session } => {
            let params = match session {
                Some(session) => json!({ "session": key_at_daemon(global, session)? }),
                None => json!({}),
            };
            let answer = ask(global, "admin.cluster.slots", &params)?;
            if global.json || session.is_some() {
                let list = List {
                    rows: answer.list("slots"),
                    head: ["SLOT", "OWNER"],
                    gives_way: &["OWNER"],
                    cells: slot,
                    none: "there are no slots",
                };
                return list.print(global).map(drop);
            }
            let rows = by_owner(answer.list("slots"));
            let list = List {
                rows: &rows,
                head: ["OWNER", "COUNT", "SLOTS"],
                gives_way: &["SLOTS", "OWNER"],
                cells: owner,
                none: "there are no slots",
            };
            list.print(global).map(drop)
        }
        RunningCommand::Handover { node } => {
            print::done(global, "admin.cluster.handover", &json!({ "node": node }), |answer| {
                format!(
                    "{} gives its {} slots away: `clawmux cluster nodes` shows how far that is",
                    answer.text("node"),
                    answer.number("slots")
                )
            })
        }
    }
}

/// A node with how many records its store lacks.
fn with_lag(node: &Value, last: Option<u64>) -> Value {
    let mut node = node.clone();
    let applied = node["applied"].as_u64();
    node["behind"] = last.zip(applied).map(|(last, applied)| last.saturating_sub(applied)).into();
    node
}

fn node(node: &Value, now_ms: u64) -> [Cell; 7] {
    let is_this = if node["this"] == true { " (this one)" } else { "" };
    let heard = node["heard_ms"].as_u64().filter(|_| node["this"] != true).map(|heard| ago(heard, now_ms));
    let same = match node["agrees"].as_bool() {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        format!("{}{is_this}", node.text("node")).into(),
        node["state"].as_str().unwrap_or("-").into(),
        node.number("slots").to_string().into(),
        or(node["behind"].as_u64().map(grouped)).into(),
        same.into(),
        or(heard).into(),
        node["version"].as_str().unwrap_or("-").into(),
    ]
}

fn slot(slot: &Value, _: u64) -> [Cell; 2] {
    [slot.number("slot").to_string().into(), slot["owner"].as_str().unwrap_or("-").into()]
}

/// How many slots everybody has, and which: `0-3, 7`.
fn by_owner(slots: &[Value]) -> Vec<Value> {
    let mut owners: Vec<(Option<&str>, Vec<u64>)> = Vec::new();
    for slot in slots {
        let owner = slot["owner"].as_str();
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, numbers)) => numbers.push(slot.number("slot")),
            None => owners.push((owner, vec![slot.number("slot")])),
        }
    }
    owners.sort();
    let row = |(owner, numbers): (Option<&str>, Vec<u64>)| json!({ "owner": owner, "count": numbers.len(), "slots": ranges(&numbers) });
    owners.into_iter().map(row).collect()
}

fn ranges(numbers: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let words = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn owner(row: &Value, _: u64) -> [Cell; 3] {
    [
        row["owner"].as_str().unwrap_or("nobody").into(),
        row.number("count").to_string().into(),
        row.text("slots").into(),
    ]
}

/// All details of the cluster.
fn described(cluster: &Value, now_ms: u64) -> String {
    let number = |name: &str| cluster.number(name);
    let log = &cluster["log"];
    let state = match cluster["fault"].as_str() {
        Some(why) => format!("nothing can be written: {why}"),
        None => cluster.text("state").to_owned(),
    };
    let server = cluster["server"].as_object().map(|_| {
        format!("{}, version {}", cluster["server"].text("name"), cluster["server"].text("version"))
    });
    let server = server.unwrap_or_else(|| "no server".to_owned());
    let quorum = log.as_object().map(|_| {
        let (servers, current) = (log.number("servers"), log.number("current"));
        let leader = log["leader"].as_str().map(|leader| format!("led by {leader}; ")).unwrap_or_default();
        let missing: Vec<&str> = log
            .list("followers")
            .iter()
            .filter(|server| server["offline"] == true || server["current"] == false)
            .map(|server| server.text("name"))
            .collect();
        let missing = match missing[..] {
            [] => String::new(),
            _ => format!(", but not on {}", missing.join(", ")),
        };
        let seen = ago(log.number("at_ms"), now_ms);
        format!("{leader}whole on {current} of {servers} servers{missing} (asked {seen})")
    });
    let extent = log.as_object().map(|_| match log.number("records") {
        0 => "has no records yet".to_owned(),
        _ => {
            let (first, last) = (grouped(log.number("first")), grouped(log.number("last")));
            format!("records {first} to {last}, {}", bytes(log.number("bytes")))
        }
    });
    let behind =
        log["last"].as_u64().map(|last| last.saturating_sub(number("applied"))).filter(|lag| *lag > 0);
    let behind = behind.map(|lag| format!(", {} behind the log", grouped(lag))).unwrap_or_default();
    let stores = match cluster["agree"].as_bool() {
        Some(true) => "those that were compared are alike",
        Some(false) => {
            "THEY DIFFER: `clawmux cluster nodes` shows which; `clawmux cluster verify`, where a daemon is stopped, says in what"
        }
        None => "none could be compared yet",
    };
    let has_others = cluster.list("nodes").len() > 1;
    let nodes = cluster.list("nodes").iter().map(|node| {
        let state = node["state"].as_str().unwrap_or("not heard");
        format!("{} ({state}, {} slots)", node.text("node"), node.number("slots"))
    });
    let nodes: Vec<String> = nodes.collect();
    let unowned = Some(number("slots_unowned")).filter(|count| *count > 0);
    let written = format!(
        "{} written; refused {} times for a moment and {} times else; {} of unknown outcome, which was found out",
        grouped(number("written_total")),
        grouped(number("refused_for_a_moment_total")),
        grouped(number("refused_total")),
        grouped(number("unknown_total"))
    );
    let moved = format!(
        "{} slots gained, {} taken by others; the log was followed anew {} times, the connection lost {} times",
        grouped(number("slots_gained_total")),
        grouped(number("slots_lost_total")),
        grouped(number("followed_anew_total")),
        grouped(number("connection_losses"))
    );
    let waits = Some(number("stalled")).filter(|count| *count > 0);
    let rows = [
        ("cluster", Some(cluster.text("cluster").to_owned())),
        ("this node", Some(format!("{}: {state}", cluster.text("node")))),
        ("servers", Some(cluster.words("servers"))),
        ("connected to", Some(server)),
        ("log", extent),
        ("", quorum),
        ("store", Some(format!("at record {}{behind}", grouped(number("applied"))))),
        ("stores", has_others.then(|| stores.to_owned())),
        ("nodes", Some(nodes.join(", "))),
        ("slots", unowned.map(|count| format!("{count} belong to nobody for the moment"))),
        (
            "waiting",
            waits.map(|count| format!("records of {} for longer than 10 s", counted(count, "subject"))),
        ),
        ("since start", Some(written)),
        ("", Some(moved)),
    ];
    print::details(14, rows).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_first_and_slots_are_ranges() {
        let cluster = json!({ "cluster": "c", "node": "a", "state": "live", "fault": "no quorum\u{1b}[2J", "servers": ["nats://a"],
            "log": { "first": 1, "last": 9, "records": 9, "bytes": 10, "leader": "n1", "servers": 3, "current": 2, "at_ms": 0,
                "followers": [{ "name": "n2", "current": true }, { "name": "n3", "current": false, "offline": true }] },
            "applied": 7, "agree": false, "nodes": [{ "node": "a", "state": "live", "slots": 256 }, { "node": "b", "state": null }] });
        let told = described(&cluster, 60_000);
        assert!(told.contains("this node     a: nothing can be written: no quorum[2J\n"), "{told}");
        assert!(told.contains("led by n1; whole on 2 of 3 servers, but not on n3"), "{told}");
        assert!(told.contains("at record 7, 2 behind the log") && told.contains("THEY DIFFER"), "{told}");
        let slot = |slot: u64, owner: Option<&str>| json!({ "slot": slot, "owner": owner });
        let slots =
            [slot(0, Some("b")), slot(1, Some("a")), slot(2, Some("a")), slot(3, None), slot(9, Some("a"))];
        let rows = by_owner(&slots);
        let told: Vec<_> = rows.iter().map(|row| (row["owner"].as_str(), row.text("slots"))).collect();
        assert_eq!(told, [(None, "3"), (Some("a"), "1-2, 9"), (Some("b"), "0")]);
    }
}
