//! What each method is answered, as JSON: the fields in the order in which clients know them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::wire::{Id, decision, result};
use crate::config::catalog::Catalog;
use crate::conversation::approval::{self, PendingCall};
use crate::conversation::command::Before;
use crate::conversation::reply;
use crate::conversation::transcript::{self, Role};
use crate::daemon::command;
use crate::daemon::health::Condition;
use crate::dialect::admin;
use crate::ids::{ApprovalId, Owner, RunId, Seq};
use crate::memory::{Fact, Found};
use crate::provider::budget::{Budget, Unit, Whose};
use crate::provider::model::ModelRef;
use crate::provider::price::Money;
use crate::tools::plugin::{self, PluginSummary};

/// What ends a mark that stands for an answer and not for its prompt.
const ANSWER: &str = "/answer";

/// The message that the mark `more` of a history stands for.
pub(super) fn before(mark: &str) -> Before {
    match mark.strip_suffix(ANSWER) {
        Some(run) => Before { run: run.into(), role: Role::Assistant },
        None => Before { run: mark.into(), role: Role::User },
    }
}

/// The mark of the oldest message of a history, where there are older ones.
fn more(history: &transcript::History) -> Option<String> {
    let oldest = history.messages.first().filter(|_| history.more)?;
    Some(match oldest.role {
        Role::User => oldest.run.as_str().to_owned(),
        Role::Assistant => format!("{}{ANSWER}", oldest.run),
    })
}

/// The answer to `session.attach`, before its events; with its agent and the model that answers next for
/// those who asked for such.
pub(super) fn attached(
    id: &Id,
    session: &str,
    head: Seq,
    banner: Option<(&str, Option<&ModelRef>)>,
) -> String {
    #[derive(Serialize)]
    struct Attached<'a> {
        session: &'a str,
        seq: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        agent: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    }
    let agent = banner.map(|(agent, _)| agent);
    let model = banner.and_then(|(_, model)| model).map(ModelRef::to_string);
    result(id, &Attached { session, seq: head.0, agent, model })
}

/// The answer to `approval.list`.
pub(super) fn waiting<'a>(
    id: &Id,
    calls: impl Iterator<Item = &'a Arc<PendingCall>>,
    reader: &Owner,
) -> String {
    #[derive(Serialize)]
    struct WaitingCall<'a> {
        id: &'a str,
        session: &'a str,
        name: &'a str,
        input: &'a Value,
        deadline: u64,
    }
    let calls = calls.map(|pending| WaitingCall {
        id: pending.id.as_str(),
        session: pending.session.seen_by(reader),
        name: pending.asked.call.name.as_str(),
        input: &pending.asked.call.input,
        deadline: pending.asked.deadline.as_millis(),
    });
    result(id, &calls.collect::<Vec<_>>())
}

/// The answer to `memory.search`.
pub(super) fn memories(id: &Id, found: &Found, reader: &Owner) -> String {
    #[derive(Serialize)]
    struct Memory<'a> {
        id: &'a str,
        content: &'a str,
        score: f64,
        /// When it was learned, in milliseconds.
        created: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        subject: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        predicate: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        object: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        session: Option<&'a str>,
    }
    let memories = found.results.iter().map(|memory| Memory {
        id: &memory.id,
        content: &memory.content,
        score: memory.score,
        created: memory.created.as_millis(),
        subject: memory.fact.as_ref().map(Fact::subject),
        predicate: memory.fact.as_ref().map(Fact::predicate),
        object: memory.fact.as_ref().map(Fact::object),
        session: memory.session.as_ref().map(|session| session.seen_by(reader)),
    });
    result(id, &memories.collect::<Vec<_>>())
}

/// The answer to `agent.list`.
pub(super) fn agents(id: &Id, catalog: &Catalog) -> String {
    #[derive(Serialize)]
    struct Agent<'a> {
        name: &'a str,
        provider: &'a str,
        model: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        default: bool,
    }
    let agents = catalog.agents.iter().map(|agent| Agent {
        name: agent.id.as_str(),
        provider: &agent.model.provider,
        model: &agent.model.model,
        default: catalog.default_agent.as_ref() == Some(&agent.id),
    });
    result(id, &agents.collect::<Vec<_>>())
}

/// The answer to `model.list`.
pub(super) fn models(id: &Id, catalog: &Catalog) -> String {
    #[derive(Serialize)]
    struct Model {
        model: String,
        available: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_window: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        max_output_tokens: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        images: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_price: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        output_price: Option<f64>,
    }
    let models = catalog.models.iter().map(|entry| {
        let facts = catalog.facts(&entry.model);
        Model {
            model: entry.model.to_string(),
            available: catalog.is_available(&entry.model.provider),
            context_window: facts.context_window,
            max_output_tokens: facts.max_output_tokens,
            images: facts.images,
            reasoning: facts.reasoning,
            input_price: facts.price.map(|price| price.input.dollars_per_million()),
            output_price: facts.price.map(|price| price.output.dollars_per_million()),
        }
    });
    result(id, &models.collect::<Vec<_>>())
}

/// The answer to `status`.
pub(super) fn status(id: &Id, status: &command::Status, _: &Owner) -> String {
    #[derive(Serialize)]
    struct Status<'a> {
        version: &'a str,
        plugins: usize,
        sessions: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<&'a str>,
    }
    let command::Status { version, plugins, sessions, condition, .. } = status;
    let status = condition.map(Condition::name);
    result(id, &Status { version, plugins: *plugins, sessions: *sessions, status })
}

/// The answer to `chat.abort`.
pub(super) fn aborted(id: &Id, aborted: &reply::Aborted, _: &Owner) -> String {
    #[derive(Serialize)]
    struct Aborted<'a> {
        aborted: bool,
        run: Option<&'a str>,
    }
    let run = aborted.run.as_ref().map(RunId::as_str);
    result(id, &Aborted { aborted: run.is_some(), run })
}

/// The answer to `session.detach`.
pub(super) fn detached(id: &Id, detached: bool) -> String {
    #[derive(Serialize)]
    struct Detached {
        detached: bool,
    }
    result(id, &Detached { detached })
}

/// The answer to `chat.history`.
pub(super) fn history(id: &Id, history: &transcript::History, reader: &Owner) -> String {
    #[derive(Serialize)]
    struct History<'a> {
        session: &'a str,
        messages: Vec<Message<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        more: Option<String>,
    }
    #[derive(Serialize)]
    struct Message<'a> {
        role: &'static str,
        content: &'a str,
        timestamp: u64,
        run: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        clipped: bool,
    }
    let messages = history.messages.iter().map(|message| Message {
        role: match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        },
        content: &message.content,
        timestamp: message.at.as_millis(),
        run: message.run.as_str(),
        clipped: message.clipped,
    });
    let (session, more) = (history.session.seen_by(reader), more(history));
    result(id, &History { session, messages: messages.collect(), more })
}

/// The answer to `session.list`.
pub(super) fn sessions(id: &Id, sessions: &[reply::SessionSummary], reader: &Owner) -> String {
    #[derive(Serialize)]
    struct Session<'a> {
        session: &'a str,
        created: u64,
        updated: u64,
        running: bool,
    }
    let sessions = sessions.iter().map(|summary| Session {
        session: summary.session.seen_by(reader),
        created: summary.created.as_millis(),
        updated: summary.updated.as_millis(),
        running: summary.running,
    });
    result(id, &sessions.collect::<Vec<_>>())
}

/// The answer to `session.clear`.
pub(super) fn cleared(id: &Id, cleared: &reply::Cleared, reader: &Owner) -> String {
    #[derive(Serialize)]
    struct Cleared<'a> {
        session: &'a str,
        cleared: bool,
    }
    result(id, &Cleared { session: cleared.session.seen_by(reader), cleared: true })
}

/// The answer to `session.delete`.
pub(super) fn deleted(id: &Id, deleted: &reply::Deleted, _: &Owner) -> String {
    #[derive(Serialize)]
    struct Deleted {
        deleted: bool,
    }
    result(id, &Deleted { deleted: deleted.found })
}

/// The answer to `session.export`: its events as an operator is told them, and where the next part begins.
pub(super) fn exported(id: &Id, part: &reply::Exported, reader: &Owner) -> String {
    #[derive(Serialize)]
    struct Exported<'a> {
        session: &'a str,
        lines: Vec<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<u64>,
    }
    let lines = part.events.iter().map(admin::event::exported).collect();
    let next = part.events.last().map(|logged| logged.seq.0);
    result(id, &Exported { session: part.session.seen_by(reader), lines, next })
}

/// The answer to `approval.approve` and `approval.deny`.
pub(super) fn decided(id: &Id, approval: &ApprovalId, decided: &approval::Decision) -> String {
    #[derive(Serialize)]
    struct Decided<'a> {
        id: &'a str,
        decision: &'static str,
    }
    result(id, &Decided { id: approval.as_str(), decision: decision(decided) })
}

/// The answer to `budget.status`: everybody's budgets and the session's, by name, in alphabetical order. Those in
/// money, in dollars, only where there are any. Those of its agent and its principal are below `rules`, where there
/// are any.
pub(super) fn budgets(id: &Id, budgets: &[Budget]) -> String {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Figures {
        Tokens { limit: u64, reserved: u64, used: u64 },
        Dollars { limit: f64, reserved: f64, used: f64 },
    }
    #[derive(Serialize)]
    struct Rule<'a> {
        budget: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        agent: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        principal: Option<&'a str>,
        #[serde(flatten)]
        figures: Figures,
    }
    #[derive(Serialize)]
    struct Answer<'a> {
        #[serde(flatten)]
        everybodys: BTreeMap<&'a str, Figures>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rules: Vec<Rule<'a>>,
    }
    let dollars = |nanos| Money::from_nanos(nanos).dollars();
    let figures = |&Budget { unit, limit, reserved, used, .. }: &Budget| match unit {
        Unit::Tokens => Figures::Tokens { limit, reserved, used },
        Unit::Money => {
            Figures::Dollars { limit: dollars(limit), reserved: dollars(reserved), used: dollars(used) }
        }
    };
    let (everybodys, others): (Vec<_>, Vec<_>) =
        budgets.iter().partition(|budget| budget.whose == Whose::default());
    let everybodys = everybodys.into_iter().map(|budget| (budget.name(), figures(budget))).collect();
    let rules = others
        .into_iter()
        .map(|budget| Rule {
            budget: budget.name(),
            agent: budget.whose.agent.as_ref().map(|agent| agent.as_str()),
            principal: budget.whose.principal.as_ref().map(|principal| match principal {
                Owner::Admins => "operators",
                Owner::Credential(name) => name,
            }),
            figures: figures(budget),
        })
        .collect();
    result(id, &Answer { everybodys, rules })
}

/// The answer to `plugin.list`.
pub(super) fn plugins(id: &Id, plugins: &[PluginSummary]) -> String {
    #[derive(Serialize)]
    struct PluginRow<'a> {
        name: &'a str,
    }
    let plugins = plugins.iter().map(|plugin| PluginRow { name: plugin.name.as_str() });
    result(id, &plugins.collect::<Vec<_>>())
}

/// The answer to `plugin.load`.
pub(super) fn loaded(id: &Id, plugin: &PluginSummary, _: &Owner) -> String {
    #[derive(Serialize)]
    struct Loaded<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<&'a str>,
        description: &'a str,
        capabilities: &'a [String],
    }
    let PluginSummary { name, version, description, capabilities } = plugin;
    result(id, &Loaded { name: name.as_str(), version: version.as_deref(), description, capabilities })
}

/// The answer to `plugin.unload`.
pub(super) fn unloaded(id: &Id, plugin: &plugin::Unloaded, _: &Owner) -> String {
    #[derive(Serialize)]
    struct Unloaded<'a> {
        name: &'a str,
        unloaded: bool,
    }
    result(id, &Unloaded { name: plugin.name.as_str(), unloaded: true })
}
