//! The table of methods: what each is called, what it takes, how long it may take, and who answers.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use clawmux_core::auth::Principal;
use clawmux_core::error::{Error, ErrorCode};
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    Admin, Daemon, actors, approvals, backup, config, connections, devices, drain, jobs, log, memory,
    plugins, session, sessions, status, tokens, usage,
};

/// How long a method may take that asks the daemon and its log.
const PROMPT: Duration = Duration::from_secs(10);
/// How long one may take that loads or calls a plugin: these have deadlines of their own.
const PLUGIN: Duration = Duration::from_secs(600);

/// A method.
pub(super) struct Method {
    /// Its name.
    pub(super) name: &'static str,
    /// What it takes, as people write it; `?` marks what may be left out.
    pub(super) params: &'static str,
    /// How long it may take.
    pub(super) deadline: Duration,
    /// Answers it.
    pub(super) run: fn(Call) -> LocalBoxFuture<'static, Result<Value, Error>>,
}

/// A request for a method.
pub(super) struct Call {
    /// Those it may reach.
    pub(super) daemon: Arc<Daemon>,
    /// Who asks sessions.
    pub(super) admin: Addr<Admin>,
    /// Who asks, an admin.
    pub(super) principal: Principal,
    /// Its parameters, not looked at yet.
    pub(super) params: Value,
    /// Takes notifications (method and parameters) that tell how far it has come.
    pub(super) progress: mpsc::Sender<(&'static str, Value)>,
}

const METHODS: &[Method] = &[
    Method {
        name: "admin.status",
        params: "{}",
        deadline: PROMPT,
        run: |call| Box::pin(status::status(call)),
    },
    Method {
        name: "admin.connections",
        params: r#"{"limit"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(connections::list(call)),
    },
    Method {
        name: "admin.connection.close",
        params: r#"{"connection"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(connections::close(call)),
    },
    Method {
        name: "admin.actors",
        params: r#"{"children"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(actors::actors(call)),
    },
    Method {
        name: "admin.plugins",
        params: "{}",
        deadline: PROMPT,
        run: |call| Box::pin(plugins::list(call)),
    },
    Method {
        name: "admin.plugin.load",
        params: r#"{"plugin", "path"?}"#,
        deadline: PLUGIN,
        run: |call| Box::pin(plugins::load(call)),
    },
    Method {
        name: "admin.plugin.unload",
        params: r#"{"plugin"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(plugins::unload(call)),
    },
    Method {
        name: "admin.plugin.reload",
        params: r#"{"plugin"}"#,
        deadline: PLUGIN,
        run: |call| Box::pin(plugins::reload(call)),
    },
    Method {
        name: "admin.plugin.call",
        params: r#"{"plugin", "input"?}"#,
        deadline: PLUGIN,
        run: |call| Box::pin(plugins::call(call)),
    },
    Method {
        name: "admin.usage",
        params: r#"{"by"?, "days"?, "limit"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(usage::usage(call)),
    },
    Method {
        name: "admin.sessions",
        params: r#"{"limit"?, "prefix"?, "before"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(sessions::list(call)),
    },
    Method {
        name: "admin.session.show",
        params: r#"{"session", "after_seq"?, "limit"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::show(call)),
    },
    Method {
        name: "admin.session.tail",
        params: r#"{"session", "after_seq"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::tail(call)),
    },
    Method {
        name: "admin.events",
        params: "{}",
        deadline: PROMPT,
        run: |call| Box::pin(async move { call.takes_nothing("admin.events").map(|()| json!({})) }),
    },
    Method {
        name: "admin.session.stop",
        params: r#"{"session"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::stop(call)),
    },
    Method {
        name: "admin.session.abort",
        params: r#"{"session", "run"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::abort(call)),
    },
    Method {
        name: "admin.session.delete",
        params: r#"{"session"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::delete(call)),
    },
    Method {
        name: "admin.session.export",
        params: r#"{"session", "after_seq"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::export(call)),
    },
    Method {
        name: "admin.session.clear",
        params: r#"{"session"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(session::clear(call)),
    },
    Method {
        name: "admin.devices",
        params: "{}",
        deadline: PROMPT,
        run: |call| Box::pin(devices::list(call)),
    },
    Method {
        name: "admin.device.approve",
        params: r#"{"request"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(devices::approve(call)),
    },
    Method {
        name: "admin.device.reject",
        params: r#"{"request"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(devices::reject(call)),
    },
    Method {
        name: "admin.device.revoke",
        params: r#"{"device", "role"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(devices::revoke(call)),
    },
    Method {
        name: tokens::LIST,
        params: "{}",
        deadline: PROMPT,
        run: |call| Box::pin(tokens::run(call, tokens::LIST)),
    },
    Method {
        name: tokens::CREATE,
        params: r#"{"name", "role"? or "scopes"?, "kind"?, "life_ms"?, "inherit"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(tokens::run(call, tokens::CREATE)),
    },
    Method {
        name: tokens::REVOKE,
        params: r#"{"token"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(tokens::run(call, tokens::REVOKE)),
    },
    Method {
        name: tokens::ROTATE,
        params: r#"{"token", "overlap_ms"?, "life_ms"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(tokens::run(call, tokens::ROTATE)),
    },
    Method {
        name: "admin.approvals",
        params: "{}",
        deadline: PROMPT,
        run: |call| Box::pin(approvals::list(call)),
    },
    Method {
        name: "admin.approval.approve",
        params: r#"{"approval", "input"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(approvals::approve(call)),
    },
    Method {
        name: "admin.approval.deny",
        params: r#"{"approval", "reason"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(approvals::deny(call)),
    },
    Method { name: "admin.jobs", params: "{}", deadline: PROMPT, run: |call| Box::pin(jobs::list(call)) },
    Method {
        name: "admin.job.add",
        params: r#"{"prompt", "at_ms"? or "every_ms"? with "anchor_ms"? or "cron"? with "zone"?, "name"?, "description"?, "session"? or "agent"?, "result_to"?, "misfire"?, "model"?, "thinking"?, "enabled"?, "delete_after"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(jobs::add(call)),
    },
    Method {
        name: "admin.job.run",
        params: r#"{"job"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(jobs::run(call)),
    },
    Method {
        name: "admin.job.remove",
        params: r#"{"job"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(jobs::remove(call)),
    },
    Method {
        name: "admin.job.runs",
        params: r#"{"job"?, "limit"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(jobs::runs(call)),
    },
    Method {
        name: "admin.job.enable",
        params: r#"{"job"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(jobs::enable(call)),
    },
    Method {
        name: "admin.job.disable",
        params: r#"{"job"}"#,
        deadline: PROMPT,
        run: |call| Box::pin(jobs::disable(call)),
    },
    Method {
        name: "admin.memory",
        params: r#"{"owner"?, "limit"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(memory::memory(call)),
    },
    Method {
        name: "admin.drain",
        params: r#"{"on"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(drain::drain(call)),
    },
    Method {
        name: "admin.backup",
        params: r#"{"file"}"#,
        deadline: backup::DEADLINE,
        run: |call| Box::pin(backup::backup(call)),
    },
    Method {
        name: "admin.config.get",
        params: r#"{"path"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(config::get(call)),
    },
    Method {
        name: "admin.config.set",
        params: r#"{"path", "value"}"#,
        deadline: config::DEADLINE,
        run: |call| Box::pin(config::set(call)),
    },
    Method {
        name: "admin.config.unset",
        params: r#"{"path"}"#,
        deadline: config::DEADLINE,
        run: |call| Box::pin(config::unset(call)),
    },
    Method {
        name: "admin.config.reload",
        params: "{}",
        deadline: config::DEADLINE,
        run: |call| Box::pin(config::reload(call)),
    },
    Method {
        name: "admin.log",
        params: r#"{"level"? or "filter"?}"#,
        deadline: PROMPT,
        run: |call| Box::pin(log::log(call)),
    },
];

/// The protocol as one JSON document, for those who read it before they connect.
pub fn reference() -> Value {
    clawmux_core::dialect::admin::reference(METHODS.iter().map(|method| (method.name, method.params)))
}

/// The method of this name.
///
/// # Errors
/// `UnknownMethod`.
pub(super) fn find(name: &str) -> Result<&'static Method, Error> {
    let unknown = || ErrorCode::UnknownMethod.error(format!("unknown method: {name}"));
    METHODS.iter().find(|method| method.name == name).ok_or_else(unknown)
}

/// What the method of this name takes.
pub(super) fn params_of(name: &str) -> &'static str {
    METHODS.iter().find(|method| method.name == name).map_or("{}", |method| method.params)
}

/// That who would answer is gone.
pub(super) fn stopping() -> Error {
    ErrorCode::Unavailable.error("the daemon is stopping")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_stands_twice() {
        let mut seen = HashSet::new();
        for name in METHODS.iter().map(|method| method.name) {
            assert!(seen.insert(name), "{name} stands twice");
            assert!(name.starts_with("admin."), "{name}");
        }
        for method in METHODS {
            assert!(method.params.starts_with('{') && method.params.ends_with('}'), "{}", method.name);
        }
    }
}
