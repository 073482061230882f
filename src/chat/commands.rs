//! The commands of a chat.

use std::path::Path;

use clawmux_core::dialect::exoclaw::client as exoclaw;
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::provider::price::Money;
use serde_json::Value;

use super::client::{ChatError, Client, Flow, NEW, OrNone};
use super::input::{self, ChatCommand};
use crate::exit::Failure;
use crate::terminal::one_line;
use crate::when::{ago, now_ms};

/// How many sessions are listed, the latest used first.
const SESSIONS_SHOWN_MAX: usize = 20;
/// What stands for the agent's own model.
const DEFAULT: &str = "default";

impl Client {
    /// Runs a command.
    pub(super) async fn obey(&mut self, command: ChatCommand) -> Result<Flow, ChatError> {
        let said = match command {
            ChatCommand::Help => Ok(Some(input::help(self.is_offline()))),
            ChatCommand::Quit => return Ok(Flow::Leave),
            ChatCommand::Abort => match self.conversation.abortable() {
                Some(run) => return self.abort(run).await,
                None => Ok(Some("nothing to abort: no answer is under way".into())),
            },
            ChatCommand::Attach(file) => self
                .files
                .add(Path::new(&file))
                .map(|file| Some(format!("{file} goes with the next prompt")))
                .map_err(|failure| ChatError::Refused(failure.message)),
            ChatCommand::Sessions => self.list_sessions().await.map(Some),
            ChatCommand::Usage => self.usage().await.map(Some),
            ChatCommand::New(name) => self.open_new(name).await,
            ChatCommand::Switch(name) => self.switch_to(&name).await,
            ChatCommand::Model(None) => self.list_models().await.map(Some),
            ChatCommand::Model(Some(model)) => self.choose_model(&model).await.map(Some),
            ChatCommand::Agent(None) => self.list_agents().await.map(Some),
            ChatCommand::Agent(Some(agent)) => self.choose_agent(&agent).await,
        };
        match said {
            Ok(None) => {}
            Ok(Some(said)) => self.renderer.note(&said),
            Err(ChatError::Refused(why)) => self.renderer.error(&why),
            Err(error) => return Err(error),
        }
        Ok(Flow::Stay)
    }

    async fn list_sessions(&mut self) -> Result<String, ChatError> {
        let list = self.ask(exoclaw::sessions).await?;
        let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_here = |session: &Value| session["session"] == self.session.as_str();
        let row = |session: &Value| {
            let key = session["session"].as_str().unwrap_or_default();
            let mark = if is_here(session) { '*' } else { ' ' };
            let state = match session["running"].as_bool() {
                Some(true) => "running".to_owned(),
                _ => session["updated"].as_u64().map(|at| ago(at, now_ms())).unwrap_or_default(),
            };
            format!("{mark} {:<40} {state}", one_line(&self.names.called(key), 200))
        };
        let mut lines: Vec<String> = rows.iter().take(SESSIONS_SHOWN_MAX).map(row).collect();
        let mut hidden = rows.len() - lines.len();
        match rows.iter().position(is_here) {
            None => {
                let here = one_line(&self.names.called(self.session.as_str()), 200);
                lines.insert(0, format!("* {here:<40} new"));
            }
            Some(at) if at >= SESSIONS_SHOWN_MAX => {
                hidden -= 1;
                lines.push(row(&rows[at]));
            }
            Some(_) => {}
        }
        if hidden > 0 {
            lines.push(format!("  and {hidden} more: `clawmux sessions` lists all"));
        }
        Ok(lines.join("\n"))
    }

    async fn usage(&mut self) -> Result<String, ChatError> {
        let session = self.session.clone();
        Ok(usage(&self.ask(|id| exoclaw::budget(id, &session)).await?))
    }

    /// `/new [NAME]`
    async fn open_new(&mut self, name: Option<String>) -> Result<Option<String>, ChatError> {
        let name = name.unwrap_or_else(|| jiff::Zoned::now().strftime("%m%d-%H%M%S").to_string());
        if name.contains(':') {
            return refuse(format!("/new takes a name without a colon, not {}", one_line(&name, 200)));
        }
        let agent = self.session.agent().into_owned();
        let key = self.names.session(Some(&name), Some(&agent)).map_err(unusable)?;
        if self.keys().await?.iter().any(|known| known == key.as_str()) {
            return refuse(format!("the session {name} is there already: /switch {name}"));
        }
        let switched = self.switch(key).await;
        self.learn_names().await?;
        switched.map(|()| self.note_if_new())
    }

    /// `/switch NAME`
    async fn switch_to(&mut self, name: &str) -> Result<Option<String>, ChatError> {
        let named = self.names.named(Some(name), None).map_err(unusable)?;
        let key = self.resolve(&named).await?;
        self.switch(key).await?;
        self.new_or(name).await
    }

    /// A note if this session is new, with the existing session that `name` may have been meant for.
    async fn new_or(&mut self, name: &str) -> Result<Option<String>, ChatError> {
        if !self.conversation.is_new() {
            return Ok(None);
        }
        let keys = self.keys().await.or_none()?;
        let called: Vec<String> = keys.iter().map(|key| self.names.called(key)).collect();
        let others = called.iter().map(String::as_str).filter(|called| *called != name);
        let hint = input::nearest(name, others)
            .map(|near| format!("; did you mean /switch {}?", one_line(near, 200)))
            .unwrap_or_default();
        Ok(Some(format!("{NEW}{hint}")))
    }

    /// A note if this session is new.
    fn note_if_new(&self) -> Option<String> {
        self.conversation.is_new().then(|| NEW.to_owned())
    }

    async fn list_models(&mut self) -> Result<String, ChatError> {
        let answering = self.answering().unwrap_or("unknown").to_owned();
        let models = exoclaw::models_of(&self.ask(exoclaw::models).await?);
        let line = |known: &exoclaw::Model| {
            let mark = if known.model == answering { '*' } else { ' ' };
            let note = if known.is_available { "" } else { " (its provider has no key)" };
            format!("{mark} {}{note}", one_line(&known.model, 200))
        };
        let mut lines: Vec<String> = models.iter().map(line).collect();
        if !lines.iter().any(|line| line.starts_with('*')) {
            lines.insert(0, format!("* {}", one_line(&answering, 200)));
        }
        Ok(lines.join("\n"))
    }

    /// `/model PROVIDER/MODEL`
    async fn choose_model(&mut self, model: &str) -> Result<String, ChatError> {
        if model == DEFAULT {
            self.chosen_model = None;
            self.complete_offline();
            let own = self.model.clone().unwrap_or_else(|| "its own model".into());
            return Ok(format!("the agent answers with {own} again"));
        }
        let list = exoclaw::models_of(&self.ask(exoclaw::models).await?);
        let shown = one_line(model, 200);
        if !list.iter().any(|known| known.model == model) {
            let meant =
                list.iter().find(|known| known.model.split_once('/').is_some_and(|(_, name)| name == model));
            if let Some(meant) = meant {
                return refuse(format!("expected PROVIDER/MODEL: did you mean /model {}?", meant.model));
            }
            let provider =
                model.split_once('/').filter(|(_, name)| !name.is_empty()).map(|(provider, _)| provider);
            let Some(provider) = provider else {
                return refuse(format!("expected PROVIDER/MODEL, not {shown}: /model lists those there are"));
            };
            let begins = format!("{provider}/");
            // What a provider has besides what agents name is its own to say.
            if !list.iter().any(|known| known.model.starts_with(&begins)) {
                let provider = one_line(provider, 64);
                return refuse(format!("no agent uses a provider {provider}: /model lists those there are"));
            }
        }
        self.chosen_model = Some(model.to_owned());
        self.complete_offline();
        Ok(format!("{shown} answers from the next prompt on; /model {DEFAULT} goes back"))
    }

    async fn list_agents(&mut self) -> Result<String, ChatError> {
        let here = self.session.agent().into_owned();
        let agents = exoclaw::agents_of(&self.ask(exoclaw::agents).await?);
        let lines = agents.into_iter().map(|agent| {
            let mark = if agent.name == here { '*' } else { ' ' };
            format!("{mark} {:<20} {}", one_line(&agent.name, 64), one_line(&agent.model, 200))
        });
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// `/agent NAME`
    async fn choose_agent(&mut self, agent: &str) -> Result<Option<String>, ChatError> {
        let agents = exoclaw::agents_of(&self.ask(exoclaw::agents).await?);
        if let Some(why) = no_agent(agent, &agents) {
            return refuse(why);
        }
        let (channel, account, peer) = (self.session.channel(), self.session.account(), self.session.peer());
        let key = if self.session.owner() == Owner::Admins {
            SessionKey::new(agent, &channel, &account, &peer)
                .map_err(|error| ChatError::Refused(error.message))?
        } else {
            self.names.session(None, Some(agent)).map_err(unusable)?
        };
        // Its own model answers.
        self.chosen_model = None;
        self.switch(key).await?;
        Ok(self.note_if_new())
    }
}

fn refuse<T>(why: String) -> Result<T, ChatError> {
    Err(ChatError::Refused(why))
}

fn unusable(failure: Failure) -> ChatError {
    ChatError::Refused(failure.message)
}

/// Why `agent` can't be used, with the agents that exist; none if it exists.
pub(super) fn no_agent(agent: &str, known: &[exoclaw::Agent]) -> Option<String> {
    if known.is_empty() || known.iter().any(|known| known.name == agent) {
        return None;
    }
    let names: Vec<String> = known.iter().map(|known| one_line(&known.name, 64)).collect();
    Some(format!("there is no agent {}; there are: {}", one_line(agent, 64), names.join(", ")))
}

/// The answer of `budget.status`: a line for each period, then one for each other budget.
fn usage(budgets: &Value) -> String {
    const PERIODS: [(&str, &str); 3] =
        [("session", "this session"), ("daily", "today"), ("monthly", "this month")];
    let money = |budget: &Value, field: &str| {
        budget[field].as_f64().and_then(Money::from_dollars).unwrap_or_default().to_string()
    };
    let line = |budget: &Value, said: &str, none: &str| {
        let number = |field: &str| budget.get(field).and_then(Value::as_u64).unwrap_or_default();
        let (used, reserved, limit) = (number("used"), number("reserved"), number("limit"));
        let of = if limit == 0 { none.to_owned() } else { format!(", of {limit}") };
        let held = if reserved > 0 { format!(", {reserved} more held for what runs") } else { String::new() };
        format!("{said:<14} {used} tokens{of}{held}")
    };
    let of_money = |budget: &Value, said: &str| {
        format!("{said:<14} {}, of {}", money(budget, "used"), money(budget, "limit"))
    };
    let rules = budgets["rules"].as_array().into_iter().flatten();
    let rules = rules.filter_map(|rule| {
        let name = rule["budget"].as_str()?;
        let period = name.strip_suffix("_cost").unwrap_or(name);
        let (_, said) = PERIODS.iter().find(|(known, _)| *known == period)?;
        let agent = rule["agent"].as_str().map(|agent| format!(", agent {agent}")).unwrap_or_default();
        let principal = rule["principal"].as_str().map(|principal| format!(", {principal}"));
        let said = one_line(&format!("{said}{agent}{}", principal.unwrap_or_default()), 200);
        Some(if period == name { line(rule, &said, "") } else { of_money(rule, &said) })
    });
    let costs =
        PERIODS.iter().filter_map(|(name, said)| Some(of_money(budgets.get(format!("{name}_cost"))?, said)));
    let others: Vec<String> = costs.chain(rules).collect();
    let none = if others.is_empty() { ", no limit" } else { "" };
    let periods = PERIODS.iter().filter_map(|(name, said)| Some(line(budgets.get(name)?, said, none)));
    periods.chain(others.iter().cloned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn budgets_are_told_in_words() {
        let budgets = json!({
            "daily": { "used": 12, "reserved": 0, "limit": 0 },
            "session": { "used": 10, "reserved": 5, "limit": 100 },
        });
        assert_eq!(
            usage(&budgets),
            "this session   10 tokens, of 100, 5 more held for what runs\ntoday          12 tokens, no limit"
        );
        let others = json!({
            "daily": { "used": 12, "reserved": 0, "limit": 0 },
            "daily_cost": { "used": 0.25, "reserved": 0.0, "limit": 1.5 },
            "rules": [
                { "budget": "daily", "agent": "small", "used": 541, "reserved": 0, "limit": 600 },
                { "budget": "monthly_cost", "principal": "ci", "used": 0.5, "reserved": 0.0, "limit": 2.0 },
            ],
        });
        assert_eq!(
            usage(&others),
            "today          12 tokens\ntoday          $0.25, of $1.50\ntoday, agent small 541 tokens, of 600\n\
             this month, ci $0.50, of $2.00"
        );
    }
}
