//! Examples of commands, for the help and the manual pages. A test has each of them read by the parser.

/// What can be typed, and what it does.
pub(super) type Example = (&'static str, &'static str);

/// The examples of a command by its words, such as `session tail`.
pub(super) fn of(words: &str) -> Vec<Example> {
    all().filter(|(command, _)| *command == words).map(|(_, example)| example).collect()
}

/// Every example with its command.
fn all() -> impl Iterator<Item = (&'static str, Example)> {
    let mut command = "";
    EXAMPLES.lines().filter_map(move |line| {
        if let Some(words) = line.strip_prefix('[') {
            command = words.trim_end_matches(']');
        }
        Some((command, line.split_once("  # ")?))
    })
}

/// Each command in brackets, and its examples: what can be typed, and behind a `#` what it does.
const EXAMPLES: &str = r#"
[]
clawmux serve  # run the daemon
clawmux chat  # talk to an agent
clawmux status  # how the daemon is, and what waits for somebody
clawmux doctor  # what is wrong, and what to do about it
[serve]
clawmux serve  # on loopback, with no configuration at all
clawmux serve --listen 0.0.0.0:18789  # for other machines; needs credentials
clawmux --home /srv/clawmux serve  # with another home
[check]
clawmux check --config new.toml  # whether the daemon would start with this file
[status]
clawmux status --json  # for a script
[sessions]
clawmux sessions main:telegram  # those whose keys begin so
clawmux sessions --all --json  # all of them, one object a line
[session show]
clawmux session show main:cli:ada  # the beginning of a key is enough
clawmux session show ci/main:cli:bot:main  # a session that belongs to ci
clawmux session show main:cli:ada --after 120 --limit 20  # 20 events after number 120
[session tail]
clawmux session tail main:cli:ada  # from now on
clawmux session tail main:cli:ada --after 0  # from the beginning
[session abort]
clawmux session abort main:cli:ada  # end the run that is under way
clawmux session abort main:cli:ada --run 1f0c2a  # end or unqueue this run
[session clear]
clawmux session clear main:cli:ada  # let the agent start over
[session stop]
clawmux session stop ci/main:cli:bot:main  # end all runs of a session of ci
[session delete]
clawmux session delete main:cli:ada:main  # for good
[session export]
clawmux session export main:cli:ada:main  # all events, one object a line
clawmux session export ci/main:cli:bot:main --after 500  # what came after event 500
[connections]
clawmux connections --limit 20  # the latest 20
[connection close]
clawmux connection close 17  # close connection 17 of the list
[actors]
clawmux actors  # the parts of the daemon, and how far each is behind
clawmux actors --figures --children 5  # every figure; of each parent 5 children
[plugins]
clawmux plugins echo  # all about one plugin
[plugin load]
clawmux plugin load notes  # load plugins/notes.wasm of the home
clawmux plugin load notes --path notes-2.wasm  # load another file under this name
[plugin unload]
clawmux plugin unload notes  # agents can no longer use it
[plugin reload]
clawmux plugin reload notes  # after its file has changed
[plugin call]
clawmux plugin call echo '{"text":"hi"}'  # try it with this input
clawmux plugin call echo --input-file input.json  # with the input in a file
[usage]
clawmux usage  # the last 30 days
clawmux usage --by model --days 7  # which model cost what in a week
clawmux usage --by session --limit 5  # the five sessions that cost most
[memory]
clawmux memory --owner ada  # what is remembered for ada
[approvals]
clawmux approvals 3f9a  # one of them, with its whole input
[approval approve]
clawmux approval approve 3f9a  # run the call
clawmux approval approve 3f9a --input-file better.json  # run it with this input instead
[approval deny]
clawmux approval deny 3f9a --reason 'not on a Friday'  # and tell the model why
[devices]
clawmux devices --json  # one object a line; state is waiting or paired
[device approve]
clawmux device approve 8c21  # pair the device that asks
[device reject]
clawmux device reject 8c21  # refuse it
[device revoke]
clawmux device revoke 8c21  # void its tokens and close its connections
[job add]
clawmux job add --at +20m --prompt 'Look at the oven'  # once, in 20 minutes
clawmux job add --cron '0 9 * * 1-5' --zone Europe/Berlin --prompt 'What is due today?'  # at nine on working days
clawmux job add --every 12h --name report --prompt 'Sum up the day'  # every 12 hours
[job run]
clawmux job run report  # now, and wait for the answer
[job runs]
clawmux job runs report --limit 5  # its last 5 runs
[job enable]
clawmux job enable report  # run it again when it is due
[job disable]
clawmux job disable report  # skip it until it is enabled
[job remove]
clawmux job remove report  # its session stays
[config get]
clawmux config get  # every key, its value and where that was written
clawmux config get agents.main  # one section
[config set]
clawmux config set limits.queue 128  # a number
clawmux config set agents.main.model claude-sonnet-4-5  # a text
clawmux config set agents.main.tools echo,clock,notes  # a list
clawmux config set providers.openai.api_key_env OPENAI_API_KEY  # where a secret is found, never the secret itself
[config unset]
clawmux config unset limits.queue  # back to the default
[config reload]
clawmux config reload  # as SIGHUP does
[log]
clawmux log debug  # say more until the next reload or restart
clawmux log info,clawmux_actors::provider=debug  # say more about providers alone
[events]
clawmux events --session main:telegram  # of these sessions alone
clawmux events --kind prompt --kind end --json  # prompts and ends, one object a line
[drain]
clawmux drain --timeout 60  # wait at most a minute
clawmux drain --off  # accept prompts again
[backup]
clawmux backup /var/backups/clawmux.db  # a copy of the store, while the daemon works
[unit]
clawmux unit --user --out ~/.config/systemd/user  # for one user
clawmux unit --out /etc/systemd/system  # for the whole system
[doctor]
clawmux doctor --offline  # without asking the model providers
[reference]
clawmux reference exoclaw  # one protocol
clawmux reference --json  # all of them, one object a line
[completions]
clawmux completions bash  # for ~/.local/share/bash-completion/completions/clawmux
[man]
clawmux man session tail  # the page of one command; `| man -l -` shows it
clawmux man --out ~/.local/share/man/man1  # the pages of all commands
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{Command, CommandFactory, Parser};

    /// The words of a command line, with quotes as in a shell.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        words.push(word);
        words
    }

    #[test]
    fn every_example_is_understood() {
        assert_eq!(all().count(), EXAMPLES.lines().filter(|line| line.starts_with("clawmux ")).count());
        for (command, (line, what)) in all() {
            assert!(!what.is_empty() && !what.ends_with('.'), "{line}: {what}");
            let parsed = Cli::try_parse_from(words(line));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            assert!(line.contains(command), "{command}: {line}");
        }
    }

    /// Commands that others document.
    const ELSEWHERE: [&str; 4] = ["chat", "setup", "models", "restore"];

    #[test]
    fn every_command_that_takes_something_has_an_example() {
        fn look(command: &Command, words: &str, missing: &mut Vec<String>) {
            let own = |arg: &&clap::Arg| {
                !["json", "help", "version", "config", "home"].contains(&arg.get_id().as_str())
            };
            let is_leaf = command.get_subcommands().next().is_none();
            let is_elsewhere = ELSEWHERE.contains(&words) || words.starts_with("token");
            if is_leaf
                && command.get_arguments().any(|arg| own(&arg))
                && of(words).is_empty()
                && !is_elsewhere
            {
                missing.push(words.to_owned());
            }
            for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
                look(child, format!("{words} {}", child.get_name()).trim(), missing);
            }
        }
        let mut missing = Vec::new();
        look(&Cli::command(), "", &mut missing);
        assert!(missing.is_empty(), "{missing:?}");
    }
}
