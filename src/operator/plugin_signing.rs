//! `clawmux plugin sign|verify`: who vouches for a plugin. With files alone, no daemon.

use std::path::{Path, PathBuf};

use clawmux_actors::sandbox::signing::{self, Verified};
use clawmux_core::error::Error;
use clawmux_core::tools::plugin::signature::PublicKey;
use serde_json::json;

use crate::admin_client::home_of;
use crate::cli::{Global, SignPlugin, VerifyPlugin};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{json_line, one_line, say};

/// The file of the home that the secret key is in.
const KEY_FILE: &str = "plugin-signing.key";

/// Runs `plugin sign`.
///
/// # Errors
/// Status 1 if a file can't be read or written.
pub(super) fn sign(global: &Global, options: &SignPlugin) -> Result<(), Failure> {
    let home = home_of(global)?;
    let key = options.key.clone().unwrap_or_else(|| home.join(KEY_FILE));
    let is_new = !key.exists();
    let verified = signing::sign(&module(&home, &options.plugin), &key).map_err(failed)?;
    if is_new && !global.json {
        say(&format!("made the secret key {}: keep it to yourself", key.display()));
    }
    show(global, &verified);
    if !global.json
        && let Some(key) = verified.signer
    {
        say(&format!("to load only plugins that you have signed: sandbox.trusted_keys = [\"{key}\"]"));
    }
    Ok(())
}

/// Runs `plugin verify`.
///
/// # Errors
/// Status 1 if the plugin is not signed, or not by `--key`; 2 if that is no key.
pub(super) fn verify(global: &Global, options: &VerifyPlugin) -> Result<(), Failure> {
    let wanted = options.key.as_deref().map(PublicKey::parse).transpose();
    let wanted = wanted.map_err(|why| Failure::new(USAGE, format!("--key: {why}")))?;
    let verified = signing::verify(&module(&home_of(global)?, &options.plugin)).map_err(failed)?;
    show(global, &verified);
    match (verified.signer, wanted) {
        (None, _) => Err(Failure::new(FAILED, "nobody has signed it: `clawmux plugin sign` does")),
        (Some(signer), Some(wanted)) if signer != wanted => {
            Err(Failure::new(FAILED, format!("it is signed by {signer}, not by {wanted}")))
        }
        _ => Ok(()),
    }
}

/// The module that is meant: a file, or the one of that name in the plugins folder of the home.
fn module(home: &Path, named: &Path) -> PathBuf {
    let is_name = named.components().count() == 1 && named.extension().is_none();
    if is_name { home.join("plugins").join(named).with_extension("wasm") } else { named.to_owned() }
}

fn show(global: &Global, verified: &Verified) {
    let Verified { sha256, manifest, signer } = verified;
    let asks = manifest.capabilities.as_ref();
    let asks = asks.map(|asks| asks.iter().map(ToString::to_string).collect::<Vec<_>>());
    if global.json {
        say(&json_line(&json!({
            "sha256": sha256,
            "name": manifest.name,
            "version": manifest.version,
            "asks": asks,
            "signed_by": signer.map(|key| key.to_string()),
        })));
        return;
    }
    let asks = asks.map_or_else(
        || "it does not say".to_owned(),
        |asks| if asks.is_empty() { "nothing".to_owned() } else { asks.join(", ") },
    );
    let signer = signer.map_or_else(|| "nobody".to_owned(), |key| key.to_string());
    for (name, value) in [("sha256", sha256.as_str()), ("asks for", &asks), ("signed by", &signer)] {
        say(&format!("{name:<12}{}", one_line(value, 2000)));
    }
}

fn failed(error: Error) -> Failure {
    Failure::new(FAILED, error.message)
}
