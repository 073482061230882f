//! `clawmux restore`: puts a backup in the place of the store, where no daemon runs.

use clawmux_actors::store::{self, Credential, Readmitted};
use clawmux_core::access::authority::Authority;
use clawmux_core::config::Config;
use clawmux_core::time::Timestamp;

use super::alone;
use super::amount::file_size;
use crate::cli::{Global, Restore};
use crate::exit::Failure;
use crate::terminal::{json_line, one_line, say, tell};
use crate::when::{now_ms, stamp};
use crate::{question, settings};

/// How many credentials of each kind are named.
const SHOWN_MAX: usize = 20;

/// Runs `restore`.
///
/// # Errors
/// Status 1 if a daemon runs, FILE is no whole store, or the answer is no; 2 if it has to ask and there is
/// no terminal. Nothing is changed then.
pub(crate) fn run(global: &Global, options: &Restore) -> Result<(), Failure> {
    let settings = settings::read(global, &[])?;
    let store = &settings.config.store.path;
    // Held until all is in its place.
    let _claim = alone::claim(&settings.home)?;
    let now_ms = now_ms();
    let at = (Timestamp::from_millis(now_ms), &*stamp(now_ms));
    let config = &settings.config;
    let restored = store::restore(&options.file, store, at, |changed| agree(changed, config, options.yes))?;
    if global.json {
        say(&json_line(&restored.to_json(&options.file, store)));
        return Ok(());
    }
    say(&format!(
        "restored {} from {}: {}, sessions: {}, runs: {}",
        store.display(),
        options.file.display(),
        file_size(restored.bytes),
        restored.sessions,
        restored.runs
    ));
    if let Some(kept) = &restored.kept {
        say(&format!("the store that was there is kept as {}", kept.display()));
    }
    if restored.is_older {
        say(&format!(
            "it has format {}, of an older clawmux: the next `clawmux serve` brings it to the present one",
            restored.format
        ));
    }
    Ok(())
}

/// Tells what changes for clients, and asks if the copy admits clients that the store does not.
fn agree(changed: &Readmitted, config: &Config, is_agreed: bool) -> Result<(), Failure> {
    let opens = changed.forgets_all && !Authority::new(&config.auth).credentials_required(true, false);
    let said = described(changed, opens);
    if (opens || !changed.back.is_empty()) && !is_agreed {
        let option = "Give --yes to restore it. Nothing was changed";
        return question::agree(&said, "Restore it?", option, "nothing was changed");
    }
    if !said.is_empty() {
        tell(&said);
    }
    Ok(())
}

/// One change per line; empty if nothing changes.
fn described(changed: &Readmitted, opens: bool) -> String {
    let mut lines = Vec::new();
    if changed.is_unread {
        lines.push("The present store can't be read, so nobody knows what it revoked.".to_owned());
    }
    let lists = [
        (&changed.lost, "No longer valid with the copy, as they are not in it:"),
        (&changed.back, "Valid again with the copy, though now revoked, removed or about to expire:"),
        (&changed.unknown, "Valid with the copy, and unknown to the present store:"),
    ];
    for (credentials, what) in lists.into_iter().filter(|(credentials, _)| !credentials.is_empty()) {
        lines.push(what.to_owned());
        lines.extend(credentials.iter().take(SHOWN_MAX).map(line));
        let more = credentials.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            lines.push(format!("  and {more} more"));
        }
    }
    if opens {
        lines.push(
            "The copy was made before the first credential was created: with it, clients on this machine need none \
             over TCP (loopback is open again). `clawmux token create` closes it."
                .to_owned(),
        );
    }
    lines.join("\n")
}

fn line(Credential { id, name, is_device }: &Credential) -> String {
    let kind = if *is_device { "device " } else { "" };
    format!("  {kind}{} of {}", one_line(id, 80), one_line(name, 80))
}
