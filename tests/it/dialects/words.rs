//! Requests as the scripts write them.

use std::fmt::{Display, Write as _};

use clawmux_core::conversation::command::{
    Abort, Attach, AttachTurns, Clear, Close, CreateSession, Delete, DescribeSession, Detach, Export,
    GetBudgets, ListSummaries, ReadHistory, SessionCommand, Stop,
};
use clawmux_core::conversation::event::Cause;
use clawmux_core::daemon::command::{DaemonCommand, GetStatus};
use clawmux_core::ids::LaneName;
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::request::command::Command;
use clawmux_core::target::Target;
use clawmux_core::tools::plugin::{ListPlugins, LoadPlugin, PluginCommand, UnloadPlugin};

/// A request as scripts write it.
pub(super) fn describe(command: &Command) -> String {
    match command {
        Command::Daemon(DaemonCommand::GetStatus(GetStatus)) => "status".into(),
        Command::Session(asked) => of_session(asked).unwrap_or_else(|| of_area(command)),
        Command::Plugin(PluginCommand::List(ListPlugins)) => "plugins".into(),
        Command::Plugin(PluginCommand::Load(LoadPlugin { name, path })) => {
            format!("load {name}{}", optional("path", path.as_ref()))
        }
        Command::Plugin(PluginCommand::Unload(UnloadPlugin { name })) => format!("unload {name}"),
        Command::Operator(command) => format!("operate {command:?}"),
        other => of_area(other),
    }
}

/// The words of newer commands are their own names and fields, without their area's.
fn of_area(command: &Command) -> String {
    let shown = format!("{command:?}");
    let split = |shown: &'_ str| {
        let (name, rest) = shown.strip_suffix(')')?.split_once('(')?;
        Some((name.to_owned(), rest.to_owned()))
    };
    let Some((area, asked)) = split(&shown) else { return shown };
    // The struct of a command is not said, but for some.
    let is_said = |of: &str| ["Query", "Spawn", "Create", "Message", "Add"].contains(&of);
    let is_whole = ["Approval", "Job", "Device", "Token"].contains(&area.as_str());
    let words = match split(&asked) {
        Some((name, fields)) if is_whole && !is_said(&name) => {
            format!("{name}{}", fields.trim_start_matches(|c: char| c.is_ascii_alphanumeric()))
        }
        Some((name, fields)) if fields.starts_with(&name) && !is_said(&name) => fields,
        _ => asked,
    };
    match area.as_str() {
        "Session" | "Daemon" | "Node" | "Plugin" | "Config" => words,
        area => format!("{area}({words})"),
    }
}

/// None where it has no words of its own.
fn of_session(command: &SessionCommand) -> Option<String> {
    let attachment = |attachment: &Attachment| {
        let name = attachment.name().unwrap_or("-");
        format!(" attached={name}:{}:{}", attachment.media_type(), attachment.bytes())
    };
    Some(match command {
        SessionCommand::Submit(submit) => format!(
            "submit {} {}{}{}{}{}{}{}{}{} {:?}",
            whose(&submit.target),
            submit.run,
            optional("key", submit.idempotency_key.as_ref()),
            optional("model", submit.run_options.model.as_ref()),
            optional("max_tokens", submit.run_options.max_tokens),
            optional("lane", submit.run_options.lane.as_ref().map(LaneName::as_str)),
            optional("timeout_ms", submit.run_options.timeout.map(|time| time.as_millis())),
            submit.files.iter().map(|file| format!(" file={file}")).collect::<String>(),
            submit.local_files.iter().map(|file| format!(" enclosed={}", file.path)).collect::<String>(),
            submit.attachments.iter().map(attachment).collect::<String>(),
            submit.content
        ),
        SessionCommand::Abort(Abort { target, run }) => {
            format!("abort {}{}", whose(target), optional("run", run.as_ref()))
        }
        SessionCommand::Attach(Attach { target, after }) => {
            format!("attach {}{}", whose(target), optional("after", after.as_ref()))
        }
        SessionCommand::AttachTurns(AttachTurns { target, turns }) => {
            format!("attach {} turns={turns}", whose(target))
        }
        SessionCommand::Detach(Detach { target, follow }) => {
            format!("detach {} {}", whose(target), follow.0)
        }
        SessionCommand::Close(Close { target, reason }) => format!("close {} {reason:?}", whose(target)),
        SessionCommand::DescribeSession(DescribeSession { target }) => {
            format!("describe {}", whose(target))
        }
        SessionCommand::CreateSession(CreateSession { target, patch }) => {
            format!("create {} {patch:?}", whose(target))
        }
        SessionCommand::Stop(Stop { target, cause: Cause::Stopped }) => format!("stop {}", whose(target)),
        SessionCommand::Stop(Stop { target, cause }) => format!("stop {} {cause:?}", whose(target)),
        SessionCommand::ReadHistory(ReadHistory { target, limit, before }) => {
            let before = before.as_ref().map(|before| format!("{}/{:?}", before.run, before.role));
            format!("history {} limit={limit}{}", whose(target), optional("before", before.as_ref()))
        }
        SessionCommand::ListSummaries(ListSummaries) => "sessions".into(),
        SessionCommand::Clear(Clear { target }) => format!("clear {}", whose(target)),
        SessionCommand::Delete(Delete { target: target @ Target::Route(_) }) => {
            format!("delete {}", whose(target))
        }
        SessionCommand::Export(Export { target: target @ Target::Route(_), after }) => {
            format!("export {} after={after}", whose(target))
        }
        SessionCommand::GetBudgets(GetBudgets { target: None }) => "budget".into(),
        SessionCommand::GetBudgets(GetBudgets { target: Some(target) }) => {
            format!("budget {}", whose(target))
        }
        _ => return None,
    })
}

fn whose(target: &Target) -> String {
    match target {
        Target::Session(key) => format!("session={key}"),
        Target::Uuid(uuid) => format!("uuid={uuid}"),
        Target::Conversation(id) => format!("conversation={id}"),
        Target::Route(route) => {
            let mut text = format!("{}/{}", route.channel, route.account);
            for (name, part) in [("peer", &route.peer), ("guild", &route.guild), ("team", &route.team)] {
                if let Some(part) = part {
                    let _ = write!(text, " {name}={part}");
                }
            }
            text
        }
    }
}

fn optional(name: &str, value: Option<impl Display>) -> String {
    value.map(|value| format!(" {name}={value}")).unwrap_or_default()
}
