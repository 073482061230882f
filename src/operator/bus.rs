//! `clawmux bus status`, `bus dlq list|show|replay|drop`: adapters on NATS JetStream.

use serde_json::{Value, json};

use super::print::{self, List};
use super::table::Cell;
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{BusCommand, DlqCommand, Global, WhichLetters};
use crate::exit::{FAILED, Failure};
use crate::terminal::one_line;
use crate::when::{ago, now_ms};

/// Runs `bus`.
///
/// # Errors
/// As [`ask`]; status 1 if the bus does not work, or there is no such letter.
pub(crate) fn run(global: &Global, command: &BusCommand) -> Result<(), Failure> {
    match command {
        BusCommand::Status => {
            let bus = ask(global, "admin.bus.status", &json!({}))?;
            print::answer(global, &bus, |bus| described(bus, now_ms()));
            if bus["bus"] == "running" { Ok(()) } else { Err(Failure::new(FAILED, "")) }
        }
        BusCommand::Dlq(DlqCommand::List { after, limit }) => {
            let answer = ask(global, "admin.bus.dlq.list", &json!({ "after": after, "limit": limit }))?;
            let list = List {
                rows: answer.list("letters"),
                head: ["LETTER", "SUBJECT", "ID", "AGE", "BYTES", "REASON"],
                gives_way: &["REASON", "ID", "SUBJECT"],
                cells: row,
                none: "there are no dead letters",
            };
            list.print(global).map(drop)
        }
        BusCommand::Dlq(DlqCommand::Show { letter }) => {
            let answer = ask(global, "admin.bus.dlq.show", &json!({ "letter": letter }))?;
            print::answer(global, &answer, |letter| whole(letter, now_ms()));
            Ok(())
        }
        BusCommand::Dlq(DlqCommand::Replay(which)) => {
            settle(global, "admin.bus.dlq.replay", which, "published again")
        }
        BusCommand::Dlq(DlqCommand::Drop(which)) => settle(global, "admin.bus.dlq.drop", which, "dropped"),
    }
}

fn settle(global: &Global, method: &str, which: &WhichLetters, done: &str) -> Result<(), Failure> {
    let params = match which.letter {
        Some(letter) => json!({ "letter": letter }),
        None => json!({ "all": which.all }),
    };
    print::done(global, method, &params, |answer| match answer.list("letters") {
        [] => "there are no dead letters".to_owned(),
        [one] => {
            format!("{done}: letter {}, of {}", one.number("letter"), one_line(one.text("subject"), 200))
        }
        several => format!("{done}: {} letters", several.len()),
    })
}

fn row(letter: &Value, now_ms: u64) -> [Cell; 6] {
    [
        letter.number("letter").to_string().into(),
        letter.text("subject").into(),
        letter.text("id").into(),
        ago(letter.number("at_ms"), now_ms).into(),
        letter.number("bytes").to_string().into(),
        letter.text("reason").into(),
    ]
}

/// All details of the bus.
fn described(bus: &Value, now_ms: u64) -> String {
    let number = |name: &str| bus.number(name);
    let state = match bus["why"].as_str() {
        Some(why) => format!("{}: {why}", bus.text("bus")),
        None => bus.text("bus").to_owned(),
    };
    let server = bus["server"].as_str().map(|name| format!("{name}, version {}", bus.text("version")));
    let waiting = format!(
        "{} in the stream, {} being taken ({} held, {} given back)",
        number("lag"),
        number("ack_pending"),
        number("held"),
        number("given_back")
    );
    let unsent = match bus["outbox_oldest_ms"].as_u64() {
        Some(oldest) => format!("{}, the oldest of {}", number("outbox"), ago(oldest, now_ms)),
        None => number("outbox").to_string(),
    };
    let taken = format!(
        "{} deliveries, {} of them again; {} prompts, {} refused, {} dead letters",
        number("received_total"),
        number("redelivered_total"),
        number("prompted_total"),
        number("refused_total"),
        number("buried_total")
    );
    let said = format!(
        "{} published, {} attempts failed; the connection was lost {} times",
        number("published_total"),
        number("publish_failures_total"),
        number("disconnects_total")
    );
    let is_running = bus["bus"] == "running";
    let is_news = bus["last_error"] != bus["why"];
    let failed = bus["last_error_ms"]
        .as_u64()
        .filter(|_| is_news)
        .map(|at| format!("{}: {}", ago(at, now_ms), bus.text("last_error")));
    let rows = [
        ("bus", Some(state)),
        ("servers", Some(bus.words("servers"))),
        ("connected to", server),
        ("streams", Some(bus.words("streams"))),
        ("principal", Some(bus.text("principal").to_owned())),
        ("messages", is_running.then_some(waiting)),
        ("to publish", Some(unsent)),
        ("dead letters", is_running.then(|| number("dead_letters").to_string())),
        ("since start", Some(taken)),
        ("", Some(said)),
        ("last error", failed),
    ];
    print::details(14, rows).join("\n")
}

/// One dead letter with what it says.
fn whole(letter: &Value, now_ms: u64) -> String {
    let age = ago(letter.number("at_ms"), now_ms);
    let mut lines = print::details(
        12,
        [
            ("letter", letter.number("letter").to_string()),
            ("subject", letter.text("subject").to_owned()),
            ("id", letter.text("id").to_owned()),
            ("reason", letter.text("reason").to_owned()),
            ("deliveries", letter.number("deliveries").to_string()),
            ("dead since", age),
        ]
        .map(|(name, value)| (name, Some(value))),
    );
    lines.extend(letter.list("headers").iter().map(|header| {
        let part = |nth: usize| one_line(header[nth].as_str().unwrap_or_default(), 300);
        format!("header      {}: {}", part(0), part(1))
    }));
    let said = letter["text"].as_str().map(|text| one_line(text, 10_000));
    let said =
        said.unwrap_or_else(|| format!("{} bytes that are no text: see --json", letter.number("bytes")));
    lines.push(format!("says        {said}"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_first_and_nothing_reaches_the_terminal_raw() {
        let bus = json!({ "bus": "refused", "why": "no JetStream\u{1b}[2J", "servers": ["nats://a", "nats://b"],
            "outbox": 3, "outbox_oldest_ms": 0, "streams": ["A", "B", "C"], "lag": 7 });
        let told = described(&bus, 60_000);
        assert!(told.starts_with("bus           refused: no JetStream[2J\n"), "{told}");
        assert!(told.contains("to publish    3, the oldest of ") && !told.contains("connected to"), "{told}");
        let letter = json!({ "letter": 3, "subject": "exoclaw.a.b.c", "reason": "empty", "text": "a\u{7}b", "at_ms": 0,
            "headers": [["Clawmux-Id", "m-1"]], "deliveries": 1 });
        let told = whole(&letter, 60_000);
        assert!(told.contains("header      Clawmux-Id: m-1") && told.ends_with("says        ab"), "{told}");
    }
}
