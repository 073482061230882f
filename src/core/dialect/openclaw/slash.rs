//! Commands that people type into a conversation: answered by the daemon, heard by no model.

use std::sync::Arc;

use serde_json::{Value, json};

use super::stream::{Frame, ended, said};
use super::wire::Protocol;
use super::{Answered, Call, Calling, OpenClaw, approvals, catalog, chat, target};
use crate::conversation::approval::{Decide, Decision, ListApprovals, PendingCall};
use crate::conversation::command::{Compact, Configure, DescribeSession, Inject, Reset};
use crate::conversation::reply::Compacted;
use crate::conversation::reply::SessionRow;
use crate::dialect::Turn;
use crate::error::Error;
use crate::ids::{ApprovalId, Seq, SessionKey};
use crate::prompt::settings::Patch;
use crate::prompt::thinking::Thinking;
use crate::provider::model::ModelRef;
use crate::request::ask::Ask;

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slash {
    Help,
    Status,
    Reset,
    Compact,
    Models,
    /// The model to use; none asks which one it is.
    Model(Option<String>),
    /// The level; none asks which one it is.
    Think(Option<String>),
    /// The tool calls that wait for approval.
    Approvals,
    /// What is decided about one: its id, and the word.
    Approve(String, String),
}

/// Name, whether it takes an argument, and what it does.
const COMMANDS: [(&str, bool, &str); 10] = [
    ("help", false, "Say which commands there are"),
    ("status", false, "Say how the session is"),
    ("new", false, "Begin a new conversation"),
    ("reset", false, "Begin a new conversation"),
    ("stop", false, "End what runs"),
    ("compact", false, "Forget all but the newest messages"),
    ("models", false, "Say which models there are"),
    ("model", true, "Use another model in this session"),
    ("think", true, "Say how much the model should think: off, minimal, low, medium, high, xhigh"),
    (
        "approve",
        true,
        "Say which tool calls wait for approval, or decide about one: ID allow-once, ID allow-always (for this session), ID deny",
    ),
];

/// What is said of a level of thinking that there is not.
const NO_SUCH_LEVEL: &str = "no such level (use off|minimal|low|medium|high|xhigh)";

/// What is said to who decides nothing.
const APPROVE_USAGE: &str =
    "use /approve ID allow-once, allow-always (for this session) or deny; /approve alone says what waits";

/// How many messages `/compact` leaves.
const COMPACT_KEEP: usize = 20;

/// The command that a message is; none where it is for the model.
pub(super) fn parse(message: &str) -> Option<Slash> {
    let line = message.trim().strip_prefix('/')?;
    let (name, rest) = line.split_once([' ', ':']).unwrap_or((line, ""));
    let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
    Some(match (name.to_ascii_lowercase().as_str(), rest) {
        ("help" | "commands", None) => Slash::Help,
        ("status", None) => Slash::Status,
        ("new" | "reset", None) => Slash::Reset,
        ("compact", None) => Slash::Compact,
        ("models", None) => Slash::Models,
        ("model", model) => Slash::Model(model),
        ("think" | "thinking" | "t", level) => Slash::Think(level),
        ("approve", None) => Slash::Approvals,
        ("approve", Some(rest)) => {
            let (id, word) = rest.split_once(char::is_whitespace).unwrap_or((&rest, ""));
            Slash::Approve(id.to_owned(), word.trim().to_ascii_lowercase())
        }
        _ => return None,
    })
}

/// The commands as `commands.list` has them.
pub(super) fn list() -> Value {
    let command = |(name, takes_argument, description): &(&str, bool, &str)| {
        json!({
            "name": name,
            "textAliases": [format!("/{name}")],
            "description": description,
            "category": "session",
            "source": "native",
            "scope": "both",
            "acceptsArgs": takes_argument,
        })
    };
    COMMANDS.iter().map(command).collect()
}

/// Where a command was typed, and the name of the run that answers it.
#[derive(Clone, Debug)]
pub(super) struct SlashOrigin {
    pub(super) session: SessionKey,
    pub(super) key: String,
    pub(super) run: String,
}

/// Does what the command says; the answer to its request is followed by a `chat` event with the text.
pub(super) fn answer(command: Slash, asked: SlashOrigin) -> Answered {
    let target = target(&asked.session);
    let describe = |asked: SlashOrigin, tell: fn(&OpenClaw, Option<Box<SessionRow>>) -> String| {
        let described = DescribeSession { target: super::target(&asked.session) };
        ask(described, asked, tell)
    };
    match command {
        Slash::Help => describe(asked, |_, _| help()),
        Slash::Models => describe(asked, |dialect, _| {
            let models = dialect.setup.catalog.models.iter();
            let lines: Vec<_> =
                models.map(|entry| format!("- {}", catalog::model_name(&entry.model))).collect();
            format!("Models:\n{}", lines.join("\n"))
        }),
        Slash::Status | Slash::Model(None) | Slash::Think(None) => describe(asked, |dialect, row| {
            let row = row.as_deref();
            let model = dialect.model_name(row.and_then(|row| row.model.as_ref()));
            let thinking = row.and_then(|row| row.settings.thinking).unwrap_or(Thinking::Off).name();
            let (usage, running) = row.map_or_else(Default::default, |row| (row.usage, row.running.len()));
            format!(
                "clawmux {}\nmodel: {model}\nthinking: {thinking}\ntokens: {} in, {} out\nruns: {running}",
                dialect.setup.version, usage.input_tokens, usage.output_tokens
            )
        }),
        Slash::Reset => ask(Reset { target }, asked, |_, _| "A new conversation begins.".into()),
        Slash::Compact => {
            ask(Compact { target, keep: COMPACT_KEEP }, asked, |_, Compacted { kept, forgotten }| {
                format!("{forgotten} messages were forgotten, {kept} are left.")
            })
        }
        Slash::Model(Some(model)) => {
            let patch = Patch { model: Some((model != "default").then_some(model)), ..Patch::default() };
            ask(Configure { target, patch }, asked, |dialect, row| {
                format!("model: {}", dialect.model_name(row.model.as_ref()))
            })
        }
        Slash::Think(Some(level)) => {
            let Some(level) = Thinking::from_name(&level.to_ascii_lowercase()) else {
                return describe(asked, |_, _| NO_SUCH_LEVEL.into());
            };
            let patch = Patch { thinking: Some(Some(level)), ..Patch::default() };
            ask(Configure { target, patch }, asked, |_, row| {
                format!("thinking: {}", row.settings.thinking.unwrap_or(Thinking::Off).name())
            })
        }
        Slash::Approvals => ask(ListApprovals, asked, |_, waiting| {
            if waiting.is_empty() {
                return "No tool call waits for approval.".into();
            }
            let line = |pending: &Arc<PendingCall>| {
                format!("- {}\n  /approve {} allow-once", approvals::command(pending), pending.id)
            };
            waiting.iter().map(line).collect::<Vec<_>>().join("\n")
        }),
        Slash::Approve(id, word) => {
            let Some(verdict) = approvals::verdict(&word) else {
                return describe(asked, |_, _| APPROVE_USAGE.into());
            };
            let decide = Decide { id: ApprovalId::new(id), session: None, verdict };
            ask(decide, asked, |_, reply| {
                let what = match reply.decided.decision {
                    Decision::Approved { .. } => "approved",
                    Decision::Denied { .. } | Decision::TimedOut | Decision::Withdrawn => "denied",
                };
                format!("{} is {what}.", reply.decided.tool)
            })
        }
    }
}

/// Asks the daemon; the answer to the request comes first, and then what `tell` says of the reply, as an
/// event.
fn ask<C: Ask + 'static>(
    question: C,
    asked: SlashOrigin,
    tell: impl FnOnce(&OpenClaw, C::Reply) -> String + 'static,
) -> Answered {
    Call::ask_either(question, move |dialect, reply, turn| {
        let text = reply.map(|reply| tell(dialect, reply));
        dialect.say_after(&asked, text, turn);
        Ok(Call::Answer(json!({ "runId": asked.run, "status": "started" })))
    })
}

fn help() -> String {
    let lines = COMMANDS.iter().map(|(name, _, what)| format!("/{name} - {what}"));
    lines.collect::<Vec<_>>().join("\n")
}

impl OpenClaw {
    /// The name of a model; of the default agent's where there is none.
    fn model_name(&self, model: Option<&ModelRef>) -> String {
        let model = model.or_else(|| self.model_of(self.default_agent()));
        model.map_or_else(|| "none".into(), catalog::model_name)
    }

    /// Says it as the answer of a run that the log does not have. Clawdbot's page shows nothing but what
    /// its history has, so there it becomes a part of that.
    fn say_after(&mut self, asked: &SlashOrigin, text: Result<String, Error>, turn: &mut Turn<'_>) {
        let text = text.unwrap_or_else(|error| error.message);
        if self.protocol == Protocol::Three && self.is_page {
            let inject = Inject { target: target(&asked.session), content: text, id: None };
            let asked = asked.clone();
            self.aside(inject, turn, move |dialect, _, turn| {
                let over = ended(&asked.run, &asked.key, Seq(0));
                let at = chat::after_answer(dialect.protocol, turn.now());
                dialect.tell_at(at, vec![Frame::Chat(over)], None, turn);
            });
            return;
        }
        let payload = said(&asked.run, &asked.key, 0, &text, turn.now(), true);
        self.tell_at(chat::after_answer(self.protocol, turn.now()), vec![Frame::Chat(payload)], None, turn);
    }
}
