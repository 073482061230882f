//! The values that stand in records, each with its fields.

use serde_json::Value as Json;

use super::value::{Value, bytes, fields, names, text_of, unreadable, variants};
use super::write::Guard;
use crate::access::About;
use crate::access::pairing::{self, Device, Grant};
use crate::access::token::{self, Token, Use};
use crate::agents::registry::{self, Agent, Mail, Note, Phase, Seat, Team};
use crate::agents::subagent::{self, AgentState, Priority};
use crate::agents::team::{Coordination, TeamState};
use crate::channel::change::{ChannelChange, Saying, SendState, Words};
use crate::conversation::log::usage::UsageRecord;
use crate::conversation::outbox::{ChannelAnswer, ToSay};
use crate::error::Error;
use crate::memory::file::{FileAbout, FileChange, FileId, FileRow, UploadId};
use crate::memory::{Embedding, MemoryRecord};
use crate::prompt::answer_to::AnswerTo;
use crate::prompt::run_options::RunOptions;
use crate::prompt::thinking::Thinking;
use crate::provider::model::ModelRef;
use crate::provider::prefix::Changed;
use crate::provider::price::Money;
use crate::provider::usage::Usage;
use crate::schedule::job::{self, Firing, FiringState, Job, JobWrite};
use crate::schedule::{Cron, Misfire, Schedule};
use crate::scope::{Role, Scope, Scopes};
use crate::tools::audit::{CallRecord, CallUsage};
use crate::tools::plugin::PluginNamespace;

// Credentials and devices.
fields! {
    Token { id, name, kind, sha256, scopes, created, since, expires, revoked, used, origin }
    Use { at, origin }
    Device { id, public_key, about, peer, credential, created, approved, grants }
    Grant { role, scopes, salt, issued, rotated, revoked, used, origin }
    About {
        client_id, version, mode, platform, device_family, model_identifier, display_name, instance_id, caps, commands,
        permissions
    }
}
variants! {
    token::Change { "put" => Put(token), "forget" => Forget(id), "used" => Used(name, last), "seen" => Seen(id, last) }
    pairing::Change { "put" => Put(device), "remove" => Remove(id), "seen" => Seen(id, role, last) }
}
names!(token::Kind, Role);

impl Value for Scopes {
    fn to_json(&self) -> Json {
        self.names().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let names = Vec::<String>::from_json(json)?;
        let scope = |name: &String| {
            let known = Scope::ALL.into_iter().find(|scope| scope.name() == name);
            known
                .or_else(|| Scope::from_name(name))
                .ok_or_else(|| unreadable(format_args!("there is no scope {name:?}")))
        };
        Ok(Self::of(&names.iter().map(scope).collect::<Result<Vec<_>, _>>()?))
    }
}

// Agents.
fields! {
    Agent {
        id, owner, session, parent, root, depth, seat, kind, task, tokens_max, model, phase, turns, turns_completed,
        task_turns, answer, usage, created, updated
    }
    Seat { team, place, role }
    Team { id, owner, name, description, strategy, task, members, state, why, said, created, updated }
    Mail { number, message, from, to, content }
    Note { id, session, owner, content }
    subagent::Task { description, priority }
    ModelRef { provider, model }
    Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens }
}
variants! {
    registry::Change {
        "agent" => Agent(agent), "forget_agent" => ForgetAgent(id), "team" => Team(team), "forget_team" => ForgetTeam(id),
        "said" => Said { team, number, place, text }, "forget_said" => ForgetSaid(team), "mail" => Mail(mail),
        "forget_mail" => ForgetMail(number), "note" => Note(note), "forget_note" => ForgetNote(id)
    }
    Phase { "waiting" => Waiting, "turn" => Turn { content, mail }, "over" => Over { state, why, settling } }
    Coordination { "sequential" => Sequential, "parallel" => Parallel, "round-robin" => RoundRobin { rounds } }
}
names!(AgentState, Priority, TeamState);

// Jobs.
fields! {
    Job {
        id, name, description, owner, is_enabled, schedule, task, misfire, is_deleted_after, note, created, updated,
        settled
    }
    job::Task { session, prompt, run_options, result_to }
    Firing { job, scheduled, is_manual, begun, ended, state, missed, run, text, usage }
    RunOptions { thinking, model, max_tokens, lane, timeout, answer_to }
    AnswerTo { channel, conversation, address }
}
variants! {
    JobWrite { "put" => Put(job), "remove" => Remove(id), "enter" => Enter(firing), "settle" => Settle(firing) }
    FiringState { "running" => Running, "ok" => Done, "error" => Failed(error), "skipped" => Skipped(why) }
    Schedule { "at" => At(at), "every" => Every { every, anchor }, "cron" => Cron(cron) }
}
names!(Misfire, Thinking);

impl Value for Cron {
    fn to_json(&self) -> Json {
        (self.expression().to_owned(), self.zone().to_owned()).to_json()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let (expression, zone) = <(String, String)>::from_json(json)?;
        Self::new(&expression, &zone).map_err(unreadable)
    }
}

// Files.
fields! {
    FileRow { id, upload, owner, about, size, is_complete, created, updated }
    FileAbout { name, media_type, total, sha256 }
}
variants! {
    FileChange { "begin" => Begin(row), "put" => Put(row), "remove" => Remove(id) }
}

/// Ids that are 16 bytes.
macro_rules! uuids {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn to_json(&self) -> Json {
                self.as_bytes().to_json()
            }

            fn from_json(json: Json) -> Result<Self, Error> {
                Value::from_json(json).map(Self::from_bytes)
            }
        }
    )+};
}

uuids!(FileId, UploadId);

// Channels.
fields! {
    Saying { conversation, address, words }
    ToSay { to, answer }
}
variants! {
    ChannelChange {
        "receive" => Receive(body), "advance" => Advance(cursor), "parsed" => Parsed(id, messages), "taken" => Taken(id),
        "say" => Say(saying), "say_once" => SayOnce(id, saying), "remember" => Remember(id),
        "unremember" => Unremember(id), "formatted" => Formatted(id, requests), "send" => Send(id, state),
        "sent" => Sent(id), "let_in" => LetIn(name), "shut_out" => ShutOut(name), "tell" => Tell(name, code),
        "forget" => Forget(name)
    }
    Words { "answer" => Answer(answer), "requests" => Requests(requests) }
    SendState { "waits" => Waits(next), "sending" => Sending, "failed" => Failed(why), "unknown" => Unknown(why) }
}

impl Value for ChannelAnswer {
    fn to_json(&self) -> Json {
        ChannelAnswer::to_json(self).into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        Self::from_json(&String::from_json(json)?).map_err(unreadable)
    }
}

// What calls of models and of tools cost.
fields! {
    UsageRecord { session, run, agent, provider, model, usage, cost, changed, at }
    CallRecord { at, session, run, call, tool, input, usage, took, is_error, result }
    CallUsage { fuel, grants }
    PluginNamespace { owner, agent, name }
    Guard { owner, key, session, run }
}
names!(Changed);

/// In billionths of a dollar.
impl Value for Money {
    fn to_json(&self) -> Json {
        self.nanos().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        u64::from_json(json).map(Self::from_nanos)
    }
}

// Memories.

/// The bytes that the store keeps: an export has numbers, which lose their last bits on the way.
impl Value for Embedding {
    fn to_json(&self) -> Json {
        text_of(&self.to_bytes())
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let kept = bytes(&String::from_json(json)?)?;
        Self::from_bytes(&kept).ok_or_else(|| unreadable("expected a vector"))
    }
}

/// A line of an export, but for its vector.
impl Value for MemoryRecord {
    fn to_json(&self) -> Json {
        let mut line = Self { embedding: None, ..self.clone() }.to_json();
        if let Some(embedding) = &self.embedding {
            line["embedding"] = embedding.to_json();
        }
        line
    }

    fn from_json(mut json: Json) -> Result<Self, Error> {
        let embedding = json.as_object_mut().and_then(|line| line.remove("embedding"));
        let memory = Self::from_json(&json, None).map_err(unreadable)?;
        Ok(Self { embedding: Option::from_json(embedding.unwrap_or_default())?, ..memory })
    }
}
