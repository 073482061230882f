//! `clawmux completions` and `clawmux man`: what shells and people are told of the commands, made of
//! their definitions; with examples, which the help has as well, and what there is to look up.

mod examples;
mod sections;

use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man as Page;

use crate::cli::{self, Cli, Man, Shell};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{tell, write};

/// Reads the command line. The help of each command ends with its examples.
///
/// # Errors
/// What is wrong with it; `--help` and `--version` as well.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let words: Vec<_> = std::env::args_os().collect();
    // Nearly always nobody asks for help, and nothing is wrong.
    cli::parse(cli::definition(), words.iter().cloned())
        .or_else(|_| cli::parse(with_examples(cli::definition(), ""), words))
}

/// A command and those below it, with examples where they say nothing of their own. `words` is how it is called.
fn with_examples(command: Command, words: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|child| child.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let below = format!("{words} {name}").trim().to_owned();
        command.mut_subcommand(name, |child| with_examples(child, &below))
    });
    let examples = examples::of(words);
    if examples.is_empty() || command.get_after_help().is_some() {
        return command;
    }
    let lines = examples.iter().map(|(line, what)| format!("  {line}\n      {what}"));
    command.after_help(format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")))
}

/// Runs `completions`.
///
/// # Errors
/// Status 1 if the output can't be written.
pub(crate) fn complete(shell: Shell) -> Result<(), Failure> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "clawmux", &mut script);
    write(&String::from_utf8_lossy(&script)).map(drop)
}

/// Runs `man`.
///
/// # Errors
/// Status 2 if there is no such command, 1 if a page can't be written.
pub(crate) fn pages(options: &Man) -> Result<(), Failure> {
    let root = definition();
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
        let mut count = 0;
        for page in all(&root) {
            let file = folder.join(format!("{}.1", name_of(&page)));
            std::fs::write(&file, render(page)?).map_err(|error| unwritable(&file, &error))?;
            count += 1;
        }
        tell(&format!("{count} pages in {}", folder.display()));
        return Ok(());
    }
    let mut command = &root;
    for name in &options.page {
        command = command.find_subcommand(name).ok_or_else(|| {
            let shown = command.get_subcommands().filter(|child| !child.is_hide_set());
            let known: Vec<&str> = shown.map(Command::get_name).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            Failure::new(USAGE, format!("there is no command {name:?} here; there are: {known}"))
        })?;
    }
    write(&String::from_utf8_lossy(&render(named(command, &options.page))?)).map(drop)
}

/// The commands as they are called, without those that only say `help` again.
fn definition() -> Command {
    cli::definition().disable_help_subcommand(true)
}

/// A page for each command, named as pages of subcommands are: `clawmux-session-tail`.
fn all(root: &Command) -> Vec<Command> {
    fn add(command: &Command, path: &[String], pages: &mut Vec<Command>) {
        pages.push(named(command, path));
        for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
            add(child, &[path, &[child.get_name().to_owned()]].concat(), pages);
        }
    }
    let mut pages = Vec::new();
    add(root, &[], &mut pages);
    pages
}

fn named(command: &Command, path: &[String]) -> Command {
    let words: Vec<&str> = std::iter::once("clawmux").chain(path.iter().map(String::as_str)).collect();
    let page = command.clone().bin_name(words.join(" ")).display_name(words.join("-"));
    // Which version it is says the program alone: a page of a command with a version offers -V.
    if path.is_empty() { page } else { page.disable_version_flag(true) }
}

fn name_of(page: &Command) -> &str {
    page.get_display_name().unwrap_or_else(|| page.get_name())
}

fn render(page: Command) -> Result<Vec<u8>, Failure> {
    let words = page.get_bin_name().unwrap_or_default().trim_start_matches("clawmux").trim().to_owned();
    let has_options = page.get_arguments().any(|arg| !arg.is_hide_set());
    let has_commands = page.get_subcommands().any(|child| !child.is_hide_set());
    // That of the whole is about what has sections of its own here.
    let has_more = !words.is_empty() && page.get_after_help().is_some();
    let synopsis = synopsis(&page);
    let mut text = Vec::new();
    let of = concat!("clawmux ", env!("CARGO_PKG_VERSION"));
    let page = Page::new(page).source(of).manual("clawmux");
    let mut write = || -> std::io::Result<()> {
        page.render_title(&mut text)?;
        page.render_name_section(&mut text)?;
        writeln!(text, ".SH SYNOPSIS\n{synopsis}")?;
        page.render_description_section(&mut text)?;
        if has_options {
            page.render_options_section(&mut text)?;
        }
        if has_commands {
            page.render_subcommands_section(&mut text)?;
        }
        if has_more {
            page.render_extra_section(&mut text)?;
        }
        for (heading, entries) in sections::of(&words) {
            writeln!(text, ".SH {heading}")?;
            for (name, what) in entries {
                writeln!(text, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(what))?;
            }
        }
        Ok(())
    };
    write().map_err(|error| Failure::new(FAILED, format!("cannot make the page: {error}")))?;
    Ok(text)
}

/// How a command is called: each option with its value, those that may be left out in brackets.
fn synopsis(command: &Command) -> String {
    // Which options a group has is known then.
    let mut command = command.clone();
    command.build();
    let groups: Vec<_> = command.get_groups().filter(|group| group.is_required_set()).collect();
    let is_grouped = |arg: &Arg| groups.iter().any(|group| group.get_args().any(|id| id == arg.get_id()));
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let shown = || command.get_arguments().filter(is_shown);
    let mut words = vec![format!("\\fB{}\\fR", escaped(command.get_bin_name().unwrap_or_default()))];
    words.extend(shown().filter(|arg| !arg.is_positional() && !is_grouped(arg)).map(optional));
    for group in &groups {
        let one_of = shown().filter(|arg| group.get_args().any(|id| id == arg.get_id())).map(called);
        words.push(format!("{{{}}}", one_of.collect::<Vec<_>>().join(" | ")));
    }
    words.extend(shown().filter(|arg| arg.is_positional() && !is_grouped(arg)).map(optional));
    if command.get_subcommands().any(|child| !child.is_hide_set()) {
        words.push("\\fICOMMAND\\fR".to_owned());
    }
    words.join("\n")
}

/// An option with its value, or the name of a value alone.
fn called(arg: &Arg) -> String {
    let value = || {
        let named: Vec<&str> =
            arg.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
        let named = if named.is_empty() { arg.get_id().as_str().to_uppercase() } else { named.join(" ") };
        format!("\\fI{}\\fR", escaped(&named))
    };
    let name = match (arg.get_short(), arg.get_long()) {
        (_, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => return value(),
    };
    let name = format!("\\fB{}\\fR", escaped(&name));
    if arg.get_action().takes_values() { format!("{name} {}", value()) } else { name }
}

fn optional(arg: &Arg) -> String {
    let called = called(arg);
    let is_many = matches!(arg.get_action(), ArgAction::Append);
    let more = if is_many { "..." } else { "" };
    if arg.is_required_set() { format!("{called}{more}") } else { format!("[{called}]{more}") }
}

/// Text as a page has it: what could be copied stays what it is.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '~' => out.push_str("\\(ti"),
            '^' => out.push_str("\\(ha"),
            // A line that begins so would be a request.
            '.' if out.is_empty() => out.push_str("\\&."),
            c => out.push(c),
        }
    }
    out
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILED, format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_ends_with_examples() {
        let root = with_examples(cli::definition(), "");
        let tail = root.find_subcommand("session").and_then(|session| session.find_subcommand("tail"));
        let help = tail.expect("it is there").clone().render_help().to_string();
        assert!(help.contains("Examples:\n  clawmux session tail main:cli:ada\n      from now on"), "{help}");
        assert!(help.contains("OWNER/KEY"), "{help}");
        assert_eq!(escaped(".a 'b' -c\\"), "\\&.a \\(aqb\\(aq \\-c\\e");
    }

    #[test]
    fn the_synopsis_names_the_values_of_options() {
        let pages = all(&definition());
        let of = |name: &str| {
            synopsis(pages.iter().find(|page| name_of(page) == name).unwrap()).replace('\n', " ")
        };
        let chat = of("clawmux-chat");
        assert!(chat.starts_with("\\fBclawmux chat\\fR ["), "{chat}");
        for part in [
            "[\\fB\\-\\-session\\fR \\fINAME|KEY\\fR]",
            "[\\fB\\-\\-json\\fR]",
            "[\\fB\\-\\-file\\fR \\fIFILE\\fR]...",
        ] {
            assert!(chat.contains(part), "{part}: {chat}");
        }
        assert!(chat.ends_with("[\\fIMESSAGE\\fR]..."), "{chat}");
        assert!(of("clawmux-token-revoke").ends_with(" \\fIID|NAME\\fR"), "{}", of("clawmux-token-revoke"));
        let create = of("clawmux-token-create");
        assert!(
            create.contains("{\\fB\\-\\-role\\fR \\fIROLE\\fR | \\fB\\-\\-scope\\fR \\fISCOPE\\fR}"),
            "{create}"
        );
        let unknown = super::pages(&Man { page: vec!["nope".into()], out: None }).unwrap_err();
        assert!(
            unknown.message.contains(", doctor, ") && !unknown.message.contains("compile-plugin"),
            "{unknown:?}"
        );
    }

    #[test]
    fn every_command_has_a_page_that_names_what_it_takes() {
        let pages = all(&definition());
        for wanted in ["clawmux", "clawmux-status", "clawmux-session-tail", "clawmux-plugin-call"] {
            let page =
                pages.iter().find(|page| name_of(page) == wanted).unwrap_or_else(|| panic!("{wanted}"));
            let text = String::from_utf8(render(page.clone()).unwrap()).unwrap();
            assert!(text.contains(".TH") && text.contains(&wanted.replace('-', "\\-")), "{text}");
            assert_eq!(text.contains("\\-\\-version"), wanted == "clawmux", "{text}");
            for heading in ["EXAMPLES", "FILES", "ENVIRONMENT", "EXIT STATUS"] {
                assert!(text.contains(&format!("\n.SH {heading}\n")), "{wanted}: {heading}: {text}");
            }
        }
    }
}
