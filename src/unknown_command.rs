//! Names that people try for commands that are called otherwise here: each is answered with the right one.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::{Failure, USAGE};

/// Names that people try, and below them the command that does it.
const KNOWN: &str = "\
ps ls list conversations chats:
    `clawmux sessions` lists the conversations and what runs; `clawmux status` shows the daemon
logs journal:
    `clawmux events` shows what happens as it happens and `clawmux session show KEY` what happened in one
    session; the daemon's own log goes to its stderr, under systemd `journalctl -u clawmux -f`
start run up daemon server launch:
    `clawmux serve` runs the daemon in the foreground; `clawmux unit` prints systemd units that keep it
    running
stop kill shutdown halt down quit exit:
    stop the daemon with Ctrl-C, `systemctl stop clawmux`, or SIGTERM to the process that `clawmux status`
    names; `clawmux drain` first lets it finish what runs; `clawmux session abort KEY` ends a single run
restart:
    stop the daemon and start it again: `systemctl restart clawmux`, or Ctrl-C and `clawmux serve`; a
    changed configuration only needs `clawmux config reload`
reload:
    `clawmux config reload` has the daemon read its configuration again; `clawmux plugin reload NAME` a
    plugin
version ver:
    `clawmux --version` says it; `clawmux status` says which version the daemon is
dashboard ui web console gui:
    `clawmux status` and `clawmux events` show what goes on; for a web page, install OpenClaw's Control UI
    and set openclaw.control_ui
attach connect join resume open new talk ask prompt send message tui:
    `clawmux chat` opens a conversation; `clawmux chat --session KEY` one that is there already
init install onboard onboarding wizard login configure:
    `clawmux setup` finds models and writes a configuration; without one, `clawmux serve` and `clawmux
    chat` work too
agents agent:
    `clawmux config get agents` lists the agents; `clawmux status` shows the model of each
providers provider:
    `clawmux config get providers` lists the model providers; `clawmux status` shows their last errors,
    and `clawmux doctor` asks each whether it works
model:
    `clawmux models` lists the models; `clawmux config set agents.main.model NAME` chooses one
health ping diagnose test:
    `clawmux status` shows how the daemon is; `clawmux doctor` looks for what is wrong
top stats info metrics:
    `clawmux status` and `clawmux actors` show the daemon, `clawmux usage` the tokens; /metrics is for
    Prometheus
tail follow watch monitor:
    `clawmux events` follows everything; `clawmux session tail KEY` one session
show history transcript export:
    `clawmux session show KEY` shows a session; `clawmux session export KEY` writes it as JSON
abort cancel interrupt:
    `clawmux session abort KEY` ends the run of a session
clear reset:
    `clawmux session clear KEY` has the agent start over in a session
delete remove rm:
    `clawmux session delete KEY` removes a session; `clawmux job remove JOB` a job
approve allow:
    `clawmux approval approve ID` approves a tool call; `clawmux device approve ID` pairs a device
deny reject:
    `clawmux approval deny ID` denies a tool call; `clawmux device reject ID` refuses a device
tools tool:
    `clawmux plugins` lists the tools; `clawmux plugin call NAME` tries one
cron schedule task tasks:
    `clawmux jobs` lists what is done at set times; `clawmux job add` adds to it
pair pairing nodes node:
    `clawmux devices` lists devices; `clawmux device approve ID` pairs one
auth key keys credentials users user:
    `clawmux tokens` lists the credentials; `clawmux token create` makes one
cost costs budget budgets spend:
    `clawmux usage` shows the tokens spent and what the budgets leave
validate lint verify:
    `clawmux check` looks at the configuration without starting
set get edit settings:
    `clawmux config get` shows the configuration; `clawmux config set KEY VALUE` changes it
dump snapshot save:
    `clawmux backup FILE` makes a copy of the store
protocol protocols docs api:
    `clawmux reference` prints every protocol; `clawmux man` the manual
update upgrade:
    replace the program, then restart the daemon; `clawmux backup FILE` first
";

/// The entries of [`KNOWN`]: names, and the command that does it.
fn known() -> impl Iterator<Item = (Vec<&'static str>, String)> {
    KNOWN.split(":\n").zip(KNOWN.split(":\n").skip(1)).map(|(names, does)| {
        let names = names.lines().last().unwrap_or_default().split(' ').collect();
        let does = does.lines().take_while(|line| line.starts_with(' ')).map(str::trim);
        (names, does.collect::<Vec<_>>().join(" "))
    })
}

/// Commands for one thing, and the commands that list such things.
const LISTS: &[(&str, &str)] = &[
    ("session", "sessions"),
    ("connection", "connections"),
    ("plugin", "plugins"),
    ("approval", "approvals"),
    ("device", "devices"),
    ("token", "tokens"),
    ("job", "jobs"),
    ("config", "config get"),
    ("memory", "memory"),
];

/// The answer to a command that does not exist; none if the parser's own message is all there is to say.
pub(crate) fn answer(error: &clap::Error, words: impl IntoIterator<Item = String>) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(tried)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let parent = words.into_iter().take_while(|word| word != tried).last();
    let parent = parent.filter(|word| LISTS.iter().any(|(name, _)| name == word));
    let does = match parent {
        Some(parent) => listing(&parent, tried)?,
        None => known().find(|(names, _)| names.contains(&&**tried)).map(|(_, does)| does)?,
    };
    let tried: String = tried.chars().filter(|c| !c.is_control()).collect();
    Some(Failure::new(
        USAGE,
        format!("there is no command {tried:?}: {does}\n`clawmux help` lists all commands"),
    ))
}

/// An error about an unknown option without its suggestion if that is far from what was typed.
pub(crate) fn without_wild_guess(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.trim_start_matches('-').to_owned()),
        _ => None,
    };
    let (tried, guess) = (text(ContextKind::InvalidArg), text(ContextKind::SuggestedArg));
    if let (Some(tried), Some(guess)) = (tried, guess) {
        let is_near = tried.len().abs_diff(guess.len()) <= 2 || tried.chars().next() == guess.chars().next();
        if !is_near {
            // The usage is that of the option which is suggested.
            error.remove(ContextKind::SuggestedArg);
            error.remove(ContextKind::Usage);
        }
    }
    error
}

fn listing(parent: &str, tried: &str) -> Option<String> {
    let (_, list) = LISTS.iter().find(|(name, _)| *name == parent)?;
    ["list", "ls", "all", "show"].contains(&tried).then(|| format!("`clawmux {list}` lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    fn told(line: &str) -> Option<String> {
        let words = || std::iter::once("clawmux").chain(line.split(' ')).map(str::to_owned);
        let error = Cli::try_parse_from(words()).expect_err(line);
        answer(&error, words()).map(|failure| failure.message)
    }

    #[test]
    fn what_people_try_is_answered_with_what_does_it() {
        assert!(
            told("ps").is_some_and(|said| said.starts_with("there is no command \"ps\": `clawmux sessions`"))
        );
        assert!(told("--home /x stop now").is_some_and(|said| said.contains("clawmux drain")));
        assert!(told("memory list").is_some_and(|said| said.contains("`clawmux memory` lists them")));
        assert!(told("session ls").is_some_and(|said| said.contains("`clawmux sessions` lists them")));
        assert!(told("config list").is_some_and(|said| said.contains("`clawmux config get`")));
        let of = |line: &str| {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            without_wild_guess(error).to_string()
        };
        let wild = of("clawmux job add --in 5x --prompt hi");
        assert!(wild.contains("unexpected argument '--in'") && !wild.contains("thinking"), "{wild}");
        assert!(of("clawmux chat --sesion x").contains("'--session'"));
        assert_eq!((told("zzz"), told("session zzz"), told("status --zzz")), (None, None, None));
    }

    #[test]
    fn what_is_named_is_there_and_nothing_is_answered_twice() {
        let root = Cli::command();
        let mut seen = std::collections::HashSet::new();
        for (names, does) in known() {
            for name in names {
                assert!(seen.insert(name), "{name} is answered twice");
                assert!(root.find_subcommand(name).is_none(), "{name} is a command");
            }
            for named in does.split("`clawmux ").skip(1) {
                let named = named.split('`').next().unwrap_or_default();
                let mut at = &root;
                for word in named.split(' ').filter(|word| word.chars().all(|c| c.is_ascii_lowercase())) {
                    if at.get_subcommands().next().is_none() {
                        break;
                    }
                    at = at.find_subcommand(word).unwrap_or_else(|| panic!("{named}: {word}"));
                }
            }
        }
    }
}
