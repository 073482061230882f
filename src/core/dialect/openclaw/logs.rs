//! The daemon's own log, as far as it is kept in memory.

use serde::Deserialize;
use serde_json::json;

use super::{Answered, Call, OpenClaw, Request};
use crate::daemon::command::ReadLog;
use crate::dialect::Turn;

/// How many lines and bytes are given to who does not say, and at most.
const LINES: (usize, usize) = (500, 5000);
const BYTES: (usize, usize) = (250_000, 1_000_000);

/// `logs.tail`. There is no file: the lines are those that were written to stderr lately.
pub(super) fn tail(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Tail {
        cursor: Option<u64>,
        limit: Option<usize>,
        max_bytes: Option<usize>,
    }
    let Tail { cursor, limit, max_bytes } = request.read()?;
    let bound = |asked: Option<usize>, (usual, most): (usize, usize)| asked.unwrap_or(usual).clamp(1, most);
    let read = ReadLog { cursor, lines_max: bound(limit, LINES), bytes_max: bound(max_bytes, BYTES) };
    Call::ask(read, |_, tail, _| {
        json!({
            "file": "stderr",
            "cursor": tail.cursor,
            "size": tail.end,
            "lines": tail.lines.iter().map(|line| &**line).collect::<Vec<_>>(),
            "truncated": tail.truncated,
            "reset": tail.reset,
        })
    })
}
