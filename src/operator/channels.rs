//! `clawmux channels`, `channel pair|unpair|resend|drop`: people who write from other platforms.

use serde_json::{Value, json};

use super::print::{self, List};
use super::table::Cell;
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{ChannelCommand, Global};
use crate::exit::{FAILED, Failure};
use crate::terminal::{Tone, one_line};
use crate::when::{ago, now_ms};

/// Runs `channels`.
///
/// # Errors
/// As [`ask`]; status 1 if there is no channel of this name.
pub(crate) fn list(global: &Global, name: Option<&str>) -> Result<(), Failure> {
    let answer = ask(global, "admin.channels", &json!({}))?;
    let listed = answer.list("channels");
    if let Some(name) = name {
        let Some(channel) = listed.iter().find(|channel| channel["channel"] == *name) else {
            let why = format!("there is no channel {}: `clawmux channels` lists them", one_line(name, 100));
            return Err(Failure::new(FAILED, why));
        };
        print::answer(global, channel, |channel| described(channel, now_ms()));
        return Ok(());
    }
    let list = List {
        rows: listed,
        head: [
            "NAME",
            "ADAPTER",
            "MODE",
            "RECEIVED",
            "SHUT OUT",
            "WAITING",
            "SENT",
            "NOT SENT",
            "LAST ERROR",
        ],
        gives_way: &["LAST ERROR"],
        cells: |channel, _| row(channel),
        none: "no channel is configured: add one to gateway.toml as [channels.NAME]",
    };
    list.print(global).map(drop)
}

/// Runs `channel`.
///
/// # Errors
/// As [`ask`].
pub(crate) fn run(global: &Global, command: &ChannelCommand) -> Result<(), Failure> {
    let (method, params) = match command {
        ChannelCommand::Pair { channel, code } => {
            ("admin.channel.pair", json!({ "channel": channel, "code": code }))
        }
        ChannelCommand::Unpair { channel, name } => {
            ("admin.channel.unpair", json!({ "channel": channel, "name": name }))
        }
        ChannelCommand::Resend(answer) => {
            ("admin.channel.resend", json!({ "channel": answer.channel, "answer": answer.answer }))
        }
        ChannelCommand::Drop(answer) => {
            ("admin.channel.drop", json!({ "channel": answer.channel, "answer": answer.answer }))
        }
    };
    let answer = ask(global, method, &params)?;
    print::answer(global, &answer, |answer| {
        let (channel, name) = (one_line(answer.text("channel"), 100), one_line(answer.text("name"), 300));
        let number = answer.number("answer");
        match command {
            ChannelCommand::Pair { .. } => format!("{name} may write over {channel} from now on"),
            ChannelCommand::Unpair { .. } => format!("{name} may write over {channel} no more"),
            ChannelCommand::Resend(_) => format!("answer {number} is being sent again"),
            ChannelCommand::Drop(_) => format!("answer {number} is forgotten; it stays in its session"),
        }
    });
    Ok(())
}

fn row(channel: &Value) -> [Cell; 9] {
    let number = |name: &str| channel.number(name);
    let unsent = channel.list("unsent").len();
    let waiting = number("inbox") + number("running") + number("outbox");
    [
        channel.text("channel").into(),
        channel.text("adapter").into(),
        channel.text("mode").into(),
        number("received").to_string().into(),
        number("shut_out").to_string().into(),
        waiting.to_string().into(),
        number("sent").to_string().into(),
        Cell::toned(unsent.to_string(), if unsent > 0 { Tone::Bad } else { Tone::Plain }),
        channel["error"].as_str().or(channel["last_error"].as_str()).unwrap_or("-").into(),
    ]
}

/// All details of one channel.
fn described(channel: &Value, now_ms: u64) -> String {
    let some = |name: &str| Some(channel.text(name).to_owned());
    let failed = channel["last_error_ms"]
        .as_u64()
        .map(|at| format!("{}: {}", ago(at, now_ms), channel.text("last_error")));
    let number = |name: &str| channel.number(name);
    let waiting = format!(
        "{} to be answered, {} being answered, {} answers to be sent",
        number("inbox"),
        number("running"),
        number("outbox")
    );
    let done = format!(
        "{} messages, {} of them shut out; {} answered, {} answers sent",
        number("received"),
        number("shut_out"),
        number("answered"),
        number("sent")
    );
    let told = channel.list("codes").len();
    let rows = [
        ("name", some("channel")),
        ("adapter", some("adapter")),
        ("mode", some("mode")),
        ("allow", Some(channel.words("allow"))),
        ("pairing", some("pairing")),
        ("paired", Some(channel.words("paired"))),
        ("codes", (told > 0).then(|| format!("told to {told} within the hour"))),
        ("waiting", Some(waiting)),
        ("since start", Some(done)),
        ("last error", failed),
    ];
    let mut lines = print::details(12, rows);
    for answer in channel.list("unsent") {
        let made = answer["made_ms"].as_u64().map(|at| ago(at, now_ms)).unwrap_or_default();
        lines.push(format!(
            "not sent    {} ({}, {made}): {}",
            answer.number("answer"),
            answer.text("state"),
            one_line(answer.text("error"), 300)
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_stands_out() {
        let channel = json!({ "channel": "telegram", "adapter": "telegram", "mode": "poll", "received": 3,
            "shut_out": 1, "inbox": 1, "running": 2, "outbox": 4, "sent": 9, "paired": ["7"], "allow": [],
            "unsent": [{ "answer": 5, "state": "unknown", "error": "cut\u{1b}[2J", "made_ms": 0 }] });
        let cells = row(&channel);
        assert_eq!((&cells[5], &cells[7]), (&Cell::from("7"), &Cell::toned("1", Tone::Bad)));
        let told = described(&channel, 60_000);
        assert!(told.contains("paired      7") && told.contains("not sent    5 (unknown, "), "{told}");
        assert!(told.ends_with(": cut[2J"), "{told}");
    }
}
