//! Where xeno's clients look for their socket by themselves: the `default_home` of the user's own
//! configuration of xeno, `~/.config/xeno/config.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// That home; none where the file is not there or names none. `user` is the user's home.
///
/// # Errors
/// What is wrong with the file, for people; the daemon runs without it.
pub(crate) fn default_home(user: &Path) -> Result<Option<PathBuf>, String> {
    let file = user.join(".config/xeno/config.json");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        // Also where a folder above it is none, or nobody's business.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(format!("{} can't be read: {error}", file.display())),
    };
    let said: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let home = match said.get("default_home") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(home)) if home.is_empty() => return Ok(None),
        Some(Value::String(home)) => match home.strip_prefix("~/") {
            Some(rest) => user.join(rest),
            None => PathBuf::from(home),
        },
        Some(_) => return Err(format!("{}: default_home is no text", file.display())),
    };
    if home.is_absolute() {
        Ok(Some(home))
    } else {
        Err(format!("{}: default_home {} is not absolute", file.display(), home.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_or_broken_names_no_home() {
        let user = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let folder = user.path().join(".config/xeno");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config.json"), text).unwrap();
            default_home(user.path())
        };
        assert_eq!(default_home(user.path()), Ok(None));
        assert_eq!(of(r#"{"default_home":"/srv/x","more":1}"#), Ok(Some("/srv/x".into())));
        assert_eq!(of(r#"{"default_home":"~/x"}"#), Ok(Some(user.path().join("x"))));
        for nothing in ["{}", r#"{"default_home":null}"#, r#"{"default_home":""}"#, "[]"] {
            assert_eq!(of(nothing), Ok(None), "{nothing}");
        }
        for (broken, says) in [
            ("{", "config.json: EOF"),
            (r#"{"default_home":1}"#, "no text"),
            (r#"{"default_home":"x"}"#, "not absolute"),
        ] {
            let why = of(broken).unwrap_err();
            assert!(why.contains(says) && why.contains("config.json"), "{why}");
        }
    }
}
