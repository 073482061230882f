//! What `clawmux setup` writes: `gateway.toml`, and the file of a key that was typed. A file that is there is
//! changed where it has to be, and a copy of it is kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clawmux_actors::configuration::{Draft, Layers};
use clawmux_core::config::{self, Complaint};
use serde_json::{Value, json};

use crate::exit::{CONFIG, FAILED, Failure};
use crate::when::{now_ms, stamp};

/// What is to be written.
#[derive(Debug)]
pub(super) struct ProviderChoice {
    /// The provider's name.
    pub(super) name: String,
    /// Its kind, as the configuration names it.
    pub(super) kind: &'static str,
    /// Where it is; none = where its kind usually is.
    pub(super) base_url: Option<String>,
    pub(super) key: Key,
    pub(super) model: String,
}

/// Where the provider's key is.
#[derive(Debug)]
pub(super) enum Key {
    /// It needs none.
    None,
    /// In this variable.
    Variable(String),
    /// In this file, as the configuration names it.
    File(String),
}

/// What was written.
pub(super) struct Written {
    pub(super) file: PathBuf,
    /// What was there before.
    pub(super) copy: Option<PathBuf>,
}

/// The file that is written to, if it is there already.
pub(super) fn existing(layers: &Layers) -> Option<&Path> {
    layers.file.symlink_metadata().is_ok().then_some(&layers.file)
}

/// Writes it; `None` is an agent that takes what its environment has, when it has something.
///
/// # Errors
/// Status 64 if the rest of the configuration does not go with it, 1 if it can't be written. Nothing is
/// changed then.
pub(super) fn write(layers: &Layers, choice: Option<&ProviderChoice>) -> Result<Written, Failure> {
    let file = layers.file.clone();
    let cannot = |error: io::Error| Failure::new(FAILED, format!("can't write {}: {error}", file.display()));
    if existing(layers).is_some() {
        let failed = |error: clawmux_core::error::Error| Failure::new(CONFIG, error.message);
        let draft = Draft::place(layers, &places(choice), true).map_err(failed)?;
        let mut copy = file.clone().into_os_string();
        copy.push(format!(".before-setup-{}", stamp(now_ms())));
        let copy = PathBuf::from(copy);
        let text = fs::read_to_string(&file).map_err(cannot)?;
        make(&copy, &text).map_err(|error| {
            Failure::new(FAILED, format!("can't write the copy {}: {error}", copy.display()))
        })?;
        draft.write()?;
        return Ok(Written { file, copy: Some(copy) });
    }
    let text = text(choice);
    let mut files =
        Layers { is_named: false, ..layers.clone() }.files().map_err(|why| Failure::new(CONFIG, why))?;
    files.push((file.clone(), text.clone()));
    layers.with(&files, config::load).map_err(|complaints| {
        let lines: Vec<String> = complaints.iter().map(Complaint::to_string).collect();
        Failure::new(CONFIG, format!("nothing was written: it would be wrong\n{}", lines.join("\n")))
    })?;
    make(&file, &text).map_err(cannot)?;
    Ok(Written { file, copy: None })
}

/// Keeps a key in a file of the home that its owner alone can read; gives its name there.
///
/// # Errors
/// Status 1 if it can't be written.
pub(super) fn keep_key(home: &Path, provider: &str, key: &str) -> Result<String, Failure> {
    let name = format!("{provider}.key");
    let path = home.join(&name);
    let new = home.join(format!(".{name}.{}", std::process::id()));
    let kept = make(&new, &format!("{key}\n")).and_then(|()| fs::rename(&new, &path));
    kept.map_err(|error| {
        let _ = fs::remove_file(&new);
        Failure::new(FAILED, format!("can't write the key to {}: {error}", path.display()))
    })?;
    Ok(name)
}

/// Makes a file that is not there yet, for its owner only, and brings it to the disk.
fn make(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// What a file that is there is to say. Null takes away what would contradict it.
fn places(choice: Option<&ProviderChoice>) -> Vec<(String, Value)> {
    let place = |path: &str, value: Value| (path.to_owned(), value);
    let Some(choice) = choice else {
        return vec![place("agents.main.provider", "auto".into()), place("agents.main.model", Value::Null)];
    };
    let (variable, file) = match &choice.key {
        Key::None => (None, None),
        Key::Variable(variable) => (Some(variable), None),
        Key::File(file) => (None, Some(file)),
    };
    let provider = json!({
        "kind": choice.kind,
        "base_url": choice.base_url,
        "api_key_env": variable,
        "api_key_file": file,
    });
    vec![
        place(&format!("providers.{}", choice.name), provider),
        place("agents.main.provider", choice.name.as_str().into()),
        place("agents.main.model", choice.model.as_str().into()),
    ]
}

/// A new file.
fn text(choice: Option<&ProviderChoice>) -> String {
    const HEAD: &str = "\
# Configuration of clawmux, written by `clawmux setup`. Change it with an editor or with `clawmux config set`;
# `clawmux check` says whether it is right, `clawmux config get` shows what is in effect.
";
    const AGENT: &str = "\
# The agent that answers where a client names none.
[agents.main]
";
    let Some(ProviderChoice { name, kind, base_url, key, model }) = choice else {
        return format!(
            "{HEAD}\n{AGENT}# \"auto\": Anthropic if ANTHROPIC_API_KEY is set, else OpenAI if OPENAI_API_KEY is, and so on, else the built-in\n\
             # offline model, which needs no network and only shows how clawmux works.\nprovider = \"auto\"\n"
        );
    };
    let quoted = |text: &str| Value::from(text).to_string();
    let mut provider = format!("# Where models are asked.\n[providers.{name}]\nkind = {}\n", quoted(kind));
    if let Some(base_url) = base_url {
        provider += &format!("base_url = {}\n", quoted(base_url));
    }
    match key {
        Key::None => {}
        Key::Variable(variable) => {
            provider +=
                "# The environment variable that holds the key; the daemon reads it when it starts.\n";
            provider += &format!("api_key_env = {}\n", quoted(variable));
        }
        Key::File(file) => {
            provider += "# The file that holds the key, in the home of the daemon.\n";
            provider += &format!("api_key_file = {}\n", quoted(file));
        }
    }
    format!(
        "{HEAD}\n{provider}\n{AGENT}provider = {}\n# `clawmux models` lists those there are.\nmodel = {}\n",
        quoted(name),
        quoted(model)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn layers(home: &Path) -> Layers {
        Layers { home: home.to_owned(), file: home.join("gateway.toml"), ..Layers::default() }
    }

    fn ollama() -> ProviderChoice {
        let base_url = Some("http://127.0.0.1:11434/v1".to_owned());
        ProviderChoice {
            name: "ollama".into(),
            kind: "openai",
            base_url,
            key: Key::None,
            model: "a \"b\":c".into(),
        }
    }

    #[test]
    fn a_new_file_says_what_was_chosen_and_why() {
        let home = tempfile::tempdir().unwrap();
        let layers = layers(home.path());
        write(&layers, Some(&ollama())).unwrap_or_else(|failure| panic!("{failure:?}"));
        let loaded = layers.with(&layers.files().unwrap(), config::load).unwrap();
        let model = loaded.config.agents.values().next().unwrap().models[0].to_string();
        assert_eq!((model.as_str(), loaded.warnings.len()), ("ollama/a \"b\":c", 0));
        let mode = fs::metadata(&layers.file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert!(text(None).contains("provider = \"auto\"") && text(None).contains("# \"auto\": Anthropic"));
    }

    #[test]
    fn a_file_that_is_there_keeps_its_comments_and_a_copy() {
        let home = tempfile::tempdir().unwrap();
        let layers = layers(home.path());
        let old = "# mine\n[limits]\nqueue = 9 # few\n[providers.ollama]\nkind = \"openai\"\napi_key_file = \"k\"\n\
                   base_url = \"http://x/v1\"\n";
        fs::write(&layers.file, old).unwrap();
        fs::write(home.path().join("k"), "key").unwrap();
        let written = write(&layers, Some(&ollama())).unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(fs::read_to_string(written.copy.unwrap()).unwrap(), old);
        let new = fs::read_to_string(&layers.file).unwrap();
        assert!(new.starts_with("# mine\n[limits]\nqueue = 9 # few\n"), "{new}");
        assert!(new.contains("11434") && !new.contains("api_key_file"), "{new}");
    }

    #[test]
    fn what_would_be_wrong_is_not_written() {
        let home = tempfile::tempdir().unwrap();
        let layers = layers(home.path());
        let key = Key::File("not-there".into());
        let failure = write(&layers, Some(&ProviderChoice { key, ..ollama() })).err().unwrap();
        assert!(failure.status == CONFIG && failure.message.contains("not-there"), "{failure:?}");
        assert!(existing(&layers).is_none(), "nothing is left");
        keep_key(home.path(), "openai", "sk-1").unwrap();
        keep_key(home.path(), "openai", "sk-2").unwrap();
        let path = home.path().join("openai.key");
        assert_eq!(fs::read_to_string(&path).unwrap(), "sk-2\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "and nothing else");
    }
}
