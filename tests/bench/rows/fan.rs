//! What a token costs that many hear.

use std::time::Duration;

use serde_json::json;

use super::{Extent, Row, columns, home, on_model};
use crate::figures::{Contender, Figure, rounds};
use crate::load::dialect::{Dialect, call};
use crate::load::fresh_name;
use crate::load::model::Model;
use crate::load::streams::Streams;
use crate::load::wire::Wire;
use crate::process::Process;

/// How many times what writing the same bytes to as many sockets takes.
const OF_FAN: f64 = 1.5;
const ROUNDS: usize = 3;
const TOKENS: usize = 40;
const PACE: Duration = Duration::from_millis(20);

/// The rows of this topic. In xeno's protocol only who asked is told.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for dialect in Dialect::WEB {
        for listeners in [1, 100, 1000] {
            let name = format!("fan {} {listeners}", dialect.name());
            let row = Row::new(name, move |name, extent| fan(name, extent, dialect, listeners));
            rows.push(if listeners < 1000 { row.long() } else { row });
        }
    }
    rows
}

fn fan(name: &str, extent: Extent, dialect: Dialect, listeners: usize) -> Vec<Figure> {
    let (model, home) = (Model::new(TOKENS, PACE), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let limit = Process::limit(&["limit-fan", &model.address.to_string()]);
    let model = &model;
    let contender = |process, dialect| {
        Box::new(move || {
            let (speaker, prompt, listening) = gather(process, dialect, listeners);
            let seen =
                Streams::heard(process, dialect, (speaker, prompt), listening).run_steady(model, TOKENS);
            vec![seen.cpu_us / listeners as f64]
        }) as Contender<'_>
    };
    let contenders = vec![contender(&daemon, dialect), contender(&limit, Dialect::Bare)];
    let [ours, limit] =
        columns(rounds(extent.rounds(ROUNDS), contenders)).map(|mut figures| figures.remove(0));
    vec![Figure::new(name, "CPU a delivery", "µs", ours).beside("fan", limit, OF_FAN)]
}

/// One connection that prompts a new session, and all but one of so many that listen to it: the first hears it, too.
fn gather(process: &Process, dialect: Dialect, listeners: usize) -> (Wire, String, Vec<Wire>) {
    let session = fresh_name();
    let mut speaker = dialect.connect(process);
    let prompt = dialect.prompt(&mut speaker, &session);
    let listen = |_| {
        let mut wire = dialect.connect(process);
        match dialect {
            Dialect::Exoclaw => {
                let key = format!("main:bench:{session}:main");
                let request =
                    json!({"id": "l", "method": "session.attach", "params": {"session": key, "turns": 0}});
                wire.send(&request.to_string());
                wire.find("\"result\"");
            }
            Dialect::Wundr => {
                let prompt: serde_json::Value = serde_json::from_str(&prompt).expect("JSON");
                let filter = json!({"sessionId": prompt["params"]["sessionId"]});
                call(&mut wire, "subscribe", &json!({"events": ["stream.*"], "filter": filter}));
            }
            // Its operators hear all sessions, and the limit program's clients all there is.
            _ => {}
        }
        wire
    };
    let listening = (1..listeners).map(listen).collect();
    (speaker, prompt, listening)
}
