//! `clawmux completions` and `clawmux man`: what shells and people are told of the commands, made of
//! their definitions.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::cli::{Cli, Completions, Man, Shell};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{tell, write};

/// Runs `completions`.
///
/// # Errors
/// Status 1 where the output can't be written.
pub(crate) fn complete(options: &Completions) -> Result<(), Failure> {
    let shell = match options.shell {
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
/// Status 2 where there is no such command, 1 where a page can't be written.
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
            let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            Failure::new(USAGE, format!("there is no command {name:?} here; there are: {known}"))
        })?;
    }
    write(&String::from_utf8_lossy(&render(named(command, &options.page))?)).map(drop)
}

/// The commands as they are called, without those that only say `help` again.
fn definition() -> Command {
    Cli::command().disable_help_subcommand(true)
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
    let mut text = Vec::new();
    let of = concat!("clawmux ", env!("CARGO_PKG_VERSION"));
    let rendered = Page::new(page).source(of).manual("clawmux").render(&mut text);
    rendered.map_err(|error| Failure::new(FAILED, format!("cannot make the page: {error}")))?;
    Ok(text)
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILED, format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_what_it_takes() {
        let pages = all(&definition());
        for wanted in ["clawmux", "clawmux-status", "clawmux-session-tail", "clawmux-plugin-call"] {
            let page =
                pages.iter().find(|page| name_of(page) == wanted).unwrap_or_else(|| panic!("{wanted}"));
            let text = String::from_utf8(render(page.clone()).unwrap()).unwrap();
            assert!(text.contains(".TH") && text.contains(&wanted.replace('-', "\\-")), "{text}");
            assert_eq!(text.contains("\\-\\-version"), wanted == "clawmux", "{text}");
        }
    }
}
