//! `clawmux session tail`: what happens in a session, as it happens, until Ctrl-C.
//!
//! It reads as fast as its output is read. If it falls so far behind that the daemon closes the connection,
//! it reconnects and continues after the last event it showed.

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::transcript;
use crate::admin_client::{Link, Notice, Refused, home_of};
use crate::cli::{Global, Tail};
use crate::exit::{FAILED, Failure, UNREACHABLE};
use crate::terminal::{json_line, put, tell, visible, write};

/// How often in a row it reconnects without having got an event.
const RETURNS_MAX: usize = 3;

/// Runs `session tail`.
///
/// # Errors
/// Status 69 if the daemon is not reachable or stops, 1 if there is no such session.
pub(super) fn run(global: &Global, options: &Tail, key: &str) -> Result<(), Failure> {
    leave_on_interrupt()?;
    let home = home_of(global)?;
    let mut view = View { as_json: global.json, within: None };
    let (mut after, mut returns) = (options.after, 0);
    loop {
        let mut link = Link::open(&home).map_err(|refused| gone(refused, key, after))?;
        let params = json!({ "session": key, "after_seq": after });
        let answer = link
            .call("admin.session.tail", &params, |_, _| {})
            .map_err(|refused| gone(refused, key, after))?;
        if returns == 0 && !global.json {
            let from = answer["after_seq"].as_u64().unwrap_or(0);
            tell(&format!("following {} after number {from}; Ctrl-C ends it", visible(key)));
        }
        // From here on it comes back without a gap.
        after = after.or(answer["after_seq"].as_u64());
        while let Notice::Of(method, params) = link.next_within(None)? {
            match method.as_str() {
                "admin.session.event" => {
                    returns = 0;
                    if !view.show(&params)? {
                        return Ok(());
                    }
                    after = params["seq"].as_u64().or(after);
                }
                "admin.closing" => {
                    view.end_line();
                    tell(&visible(params["reason"].as_str().unwrap_or("the daemon closes the connection")));
                }
                _ => {}
            }
        }
        view.end_line();
        returns += 1;
        if returns > RETURNS_MAX {
            return Err(Failure::new(FAILED, "the daemon keeps closing the connection: see its log"));
        }
    }
}

/// Exits on Ctrl-C. In a thread of its own, because the main thread may wait for a terminal that takes no
/// output.
pub(super) fn leave_on_interrupt() -> Result<(), Failure> {
    let unable = |error: std::io::Error| Failure::new(FAILED, format!("cannot wait for Ctrl-C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(unable)?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unable)?;
    drop(entered);
    std::thread::spawn(move || {
        runtime.block_on(interrupt.recv());
        std::process::exit(0);
    });
    Ok(())
}

/// The failure if the daemon went away, with how to continue.
fn gone(refused: Refused, key: &str, after: Option<u64>) -> Failure {
    match (refused, after) {
        (Refused::Unreachable(why), Some(after)) => Failure::new(
            UNREACHABLE,
            format!("{why}\nto continue from here: clawmux session tail {key} --after {after}"),
        ),
        (refused, _) => refused.into(),
    }
}

/// The output. Pieces of text of one run are joined as they are in the answer.
struct View {
    as_json: bool,
    /// The run whose text the line shows that is not ended yet, and the line ends at the end of that
    /// text: they are shown when more of it follows.
    within: Option<(String, String)>,
}

impl View {
    /// Shows an event; says whether anybody still reads.
    fn show(&mut self, event: &Value) -> Result<bool, Failure> {
        if self.as_json {
            let mut event = event.clone();
            if let Some(fields) = event.as_object_mut() {
                // One session is followed once: the rest is what `session show` says.
                fields.remove("follow");
                fields.remove("session");
            }
            return put(&json_line(&event));
        }
        let run = event["run"].as_str().unwrap_or_default();
        let mut out = String::new();
        if event["event"] == "text" {
            let text = event["text"].as_str().unwrap_or_default();
            let (text, ends) = text.split_at(text.trim_end_matches('\n').len());
            match self.within.take() {
                Some((within, mut before)) if within == run => {
                    if text.is_empty() {
                        before.push_str(ends);
                        self.within = Some((within, before));
                        return Ok(true);
                    }
                    out = transcript::indented(&(before + text));
                }
                other => {
                    if other.is_some() {
                        out.push('\n');
                    }
                    let mut event = event.clone();
                    event["text"] = json!(text);
                    out.push_str(&transcript::lines(&event));
                }
            }
            self.within = Some((run.to_owned(), ends.to_owned()));
        } else {
            if self.within.take().is_some() {
                out.push('\n');
            }
            out.push_str(&transcript::lines(event));
            out.push('\n');
        }
        write(&out)
    }

    fn end_line(&mut self) {
        if self.within.take().is_some() {
            let _ = write("\n");
        }
    }
}
