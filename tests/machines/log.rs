//! The log itself, as a server has it: who wrote under which token.

use std::collections::HashMap;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures::StreamExt as _;
use serde_json::Value;

/// What a record says of itself.
pub struct Line {
    /// Where it is in the log.
    pub place: u64,
    pub subject: String,
    pub token: u64,
    /// Its number among those of its process.
    pub record: u64,
}

/// Reads all records of sessions from a server, on a runtime of its own: the client connects on threads of that.
///
/// # Errors
/// Where they can't be read.
pub fn read(server: &str) -> Result<Vec<Line>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(lines(server)).map_err(|error| format!("the log: {error}"))
}

async fn lines(server: &str) -> Result<Vec<Line>, async_nats::Error> {
    let jetstream = async_nats::jetstream::new(async_nats::connect(server).await?);
    let mut stream = jetstream.get_stream("clawmux_LOG").await?;
    let last = stream.info().await?.state.last_sequence;
    let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let mut lines = Vec::new();
    while let Some(message) = messages.next().await {
        let message = message?;
        let place = message.info()?.stream_sequence;
        if message.subject.contains(".log.s.") {
            let line = message.payload.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let said: Value = serde_json::from_slice(line)?;
            let number = |name: &str| said[name].as_u64().ok_or_else(|| format!("no {name} in {said}"));
            let (token, record) = (number("token")?, number("record")?);
            lines.push(Line { place, subject: message.subject.to_string(), token, record });
        }
        if place >= last {
            break;
        }
    }
    Ok(lines)
}

/// Whether in no session anybody wrote under an older token than somebody before him.
///
/// # Errors
/// Where somebody did.
pub fn one_at_a_time(lines: &[Line]) -> Result<(), String> {
    let mut newest = HashMap::<&str, &Line>::new();
    for line in lines {
        if let Some(before) = newest.insert(&line.subject, line).filter(|before| before.token > line.token) {
            let (token, newer) = (line.token, before.token);
            return Err(format!(
                "{}: {} has token {token}, and {} before it {newer}",
                line.subject, line.place, before.place
            ));
        }
    }
    Ok(())
}

/// Whether every record is there once, however often it was published.
///
/// # Errors
/// Where one is there twice.
pub fn each_once(lines: &[Line]) -> Result<(), String> {
    let mut places = HashMap::new();
    for line @ Line { place, subject, token, record } in lines {
        if let Some(before) = places.insert((subject, token, record), line) {
            let before = before.place;
            return Err(format!(
                "{subject}: {place} is record {record} of token {token}, and so is {before}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_under_an_older_token_is_noticed() {
        let line =
            |place, subject: &str, token| Line { place, subject: subject.to_owned(), token, record: place };
        let mut lines = vec![line(1, "a", 3), line(2, "b", 1), line(3, "a", 3), line(4, "a", 5)];
        one_at_a_time(&lines).unwrap();
        lines.push(line(5, "a", 4));
        one_at_a_time(&lines).unwrap_err();
    }

    #[test]
    fn a_record_that_is_there_twice_is_noticed() {
        let line = |place, record, token| Line { place, subject: "a".to_owned(), token, record };
        let mut lines = vec![line(1, 7, 3), line(2, 8, 3), line(3, 7, 5)];
        each_once(&lines).unwrap();
        lines.push(line(4, 8, 3));
        each_once(&lines).unwrap_err();
    }
}
