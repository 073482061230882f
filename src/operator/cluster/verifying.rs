//! `clawmux cluster verify`: whether the store of a home is what the log of its cluster says.

use std::path::Path;

use clawmux_actors::cluster::verifying::{Stage, Verified, verify as verifies};
use clawmux_actors::store::tables::{Differing, Rows};
use clawmux_core::config;
use serde_json::{Value, json};

use super::beginning::connect;
use super::progress::{Progress, share};
use crate::answer::Members as _;
use crate::cli::Global;
use crate::exit::{FAILED, Failure};
use crate::operator::amount::{counted, grouped};
use crate::operator::{alone, print};
use crate::settings::Settings;
use crate::terminal::one_line;

/// The longest line that names a table, in characters.
const LINE_MAX: usize = 600;

/// Runs `cluster verify`.
///
/// # Errors
/// Status 1 if they differ, or it can't be found out.
pub(super) fn verify(global: &Global, settings: &Settings, cluster: &config::Cluster) -> Result<(), Failure> {
    let _claim = alone::claim(&settings.home)?;
    let store = &settings.config.store.path;
    let mut progress = Progress::new();
    let verified = actix::System::new().block_on(async {
        let site = connect(cluster).await?;
        Ok::<_, Failure>(verifies(&site, store, &mut |stage| progress.show(shown(stage))).await?)
    });
    progress.end();
    let verified = verified?;
    let answer = told(&verified, store, cluster);
    print::answer(global, &answer, described);
    if verified.compared.is_alike() { Ok(()) } else { Err(Failure::new(FAILED, "")) }
}

fn shown(stage: Stage) -> String {
    match stage {
        Stage::Fetched(done, of) => share("fetched", done, of),
        Stage::Applied(done, of) => share("applied", done, of),
        Stage::Compared(rows) => format!("compared: {}", counted(rows, "row")),
    }
}

fn told(verified: &Verified, store: &Path, cluster: &config::Cluster) -> Value {
    let compared = &verified.compared;
    let rows = |rows: &Rows| json!({ "rows": rows.count, "example": rows.example });
    let differing = compared.differing.iter().map(|differing| {
        let Differing { table, other, columns, missing, beyond, unread } = differing;
        json!({
            "table": table,
            "rows": differing.rows(),
            "differ": rows(other),
            "columns": columns,
            "missing": rows(missing),
            "not_in_log": rows(beyond),
            "unread": unread,
        })
    });
    json!({
        "name": cluster.name,
        "cluster": verified.cluster.as_str(),
        "generation": verified.generation,
        "applied": verified.applied,
        "alike": compared.is_alike(),
        "records": verified.records,
        "tables": compared.tables,
        "rows": compared.rows,
        "differing": differing.collect::<Vec<_>>(),
        "damage": compared.damage,
        "store": store.display().to_string(),
    })
}

/// What was found, for people.
fn described(answer: &Value) -> String {
    let (name, applied) = (answer.text("name"), grouped(answer.number("applied")));
    if answer["alike"] == true {
        return format!(
            "the store of this home is what the log of the cluster {name:?} says, up to its place {applied} ({}; other \
             places are guards of idempotency keys): {}, {} are alike",
            counted(answer.number("records"), "record"),
            counted(answer.number("tables"), "table"),
            counted(answer.number("rows"), "row"),
        );
    }
    let head = format!(
        "the store of this home is NOT what the log of the cluster {name:?} says, up to record {applied}:"
    );
    let damage = answer["damage"].as_str().map(|damage| format!("  its file is damaged: {damage}"));
    let advice = format!(
        "see to the disk, move {}* away, and start the daemon: it takes the store from the log, also on the node that \
         began the cluster. Nothing is lost by that",
        answer.text("store")
    );
    let mut lines = vec![head];
    lines.extend(damage.iter().map(|line| one_line(line, LINE_MAX)));
    lines.extend(answer.list("differing").iter().map(|table| one_line(&differs(table), LINE_MAX)));
    lines.push(advice);
    lines.join("\n")
}

fn differs(table: &Value) -> String {
    let columns: Vec<&str> = table.texts("columns");
    let within = if columns.is_empty() { String::new() } else { format!(" in {}", columns.join(", ")) };
    let unread = table["unread"].as_str().map(|why| format!("can't be read to its end: {why}"));
    let rows = [
        rows(&table["differ"], ["differs", "differ"], &within),
        rows(&table["missing"], ["is missing", "are missing"], ""),
        rows(&table["not_in_log"], ["is not in the log", "are not in the log"], ""),
    ];
    let said: Vec<String> = rows.into_iter().flatten().chain(unread).collect();
    format!("  {}: {}", table.text("table"), said.join("; "))
}

/// Such as `2 rows are missing, such as seq 3`; nothing where there are none.
fn rows(rows: &Value, [one, several]: [&str; 2], within: &str) -> Option<String> {
    let count = rows.number("rows");
    let verb = if count == 1 { one } else { several };
    let example = rows["example"].as_str().map(|example| format!(", such as {example}")).unwrap_or_default();
    (count > 0).then(|| format!("{} {verb}{within}{example}", counted(count, "row")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_with_what_to_do() {
        let rows = |rows: u64, example: Option<&str>| json!({ "rows": rows, "example": example });
        let table = |table: &str, [differ, missing, beyond]: [Value; 3], unread: Option<&str>| json!({ "table": table, "differ": differ, "missing": missing, "not_in_log": beyond, "columns": ["body"], "unread": unread });
        let none = || rows(0, None);
        let answer = json!({ "name": "c", "applied": 1234, "alike": false, "damage": null, "store": "/h/clawmux.db",
            "differing": [
                table("events", [rows(1, Some("seq 3\u{1b}[2J")), rows(1, None), rows(2, Some("seq 9"))], None),
                table("runs", [rows(2, None), none(), none()], Some("no")),
                table("jobs", [none(), none(), none()], Some("no")),
                table("files", [none(), rows(3, None), none()], None),
            ] });
        let told = described(&answer);
        for line in [
            "up to record 1 234:",
            "\n  events: 1 row differs in body, such as seq 3[2J; 1 row is missing; 2 rows are not in the log, such as seq 9\n",
            "\n  runs: 2 rows differ in body; can't be read to its end: no\n",
            "\n  jobs: can't be read to its end: no\n",
            "\n  files: 3 rows are missing\n",
            "move /h/clawmux.db* away",
        ] {
            assert!(told.contains(line), "{line}: {told}");
        }
    }
}
