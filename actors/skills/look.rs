//! Which skills there are in folders.

use std::fs;
use std::io::{ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

use clawmux_core::skill::{FILE, FILE_BYTES_MAX, Found, HEAD_BYTES_MAX, Problem, SKILLS_MAX, examine};

use super::beneath;

/// What is found in these folders, in their order. One that has a `SKILL.md` is itself a skill; of others each
/// folder in it should be one, but for those whose names begin with a dot. A folder that is not there has none.
/// Blocks.
pub fn look(folders: &[PathBuf]) -> Vec<Found> {
    let mut all: Vec<Found> = Vec::new();
    for folder in folders {
        if folder.join(FILE).symlink_metadata().is_ok() {
            all.push(found(folder.clone()));
            continue;
        }
        match within(folder) {
            Ok((inner, has_more)) => {
                all.extend(inner.into_iter().map(found));
                if has_more {
                    let why = format!("it has more than {SKILLS_MAX} folders: the rest is not looked at");
                    all.push(broken(folder.clone(), Problem::fatal(None, why)));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                all.push(broken(folder.clone(), Problem::fatal(None, format!("it can't be read: {error}"))))
            }
        }
    }
    all
}

/// The folders in a folder, by name, and whether there are more.
fn within(folder: &Path) -> Result<(Vec<PathBuf>, bool)> {
    let mut inner = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // A link to a folder is one.
        if !is_hidden && entry.path().is_dir() {
            if inner.len() > SKILLS_MAX {
                break;
            }
            inner.push(entry.path());
        }
    }
    inner.sort();
    let has_more = inner.len() > SKILLS_MAX;
    inner.truncate(SKILLS_MAX);
    Ok((inner, has_more))
}

fn broken(folder: PathBuf, problem: Problem) -> Found {
    Found { folder, skill: None, problems: vec![problem] }
}

fn found(folder: PathBuf) -> Found {
    let head = match head(&folder) {
        Ok(head) => head,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return broken(folder, Problem::fatal(None, format!("there is no {FILE} in it")));
        }
        Err(error) => return broken(folder, Problem::fatal(None, format!("{FILE} can't be read: {error}"))),
    };
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (skill, problems) = examine(&name, &head);
    Found { folder, skill, problems }
}

/// The beginning of a `SKILL.md`: all that stands before the instructions, and some of these.
fn head(folder: &Path) -> Result<String> {
    let file = beneath::open(folder, &[FILE])?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        let why = format!("it is larger than {FILE_BYTES_MAX} bytes: put details into files beside it");
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, why));
    }
    let mut bytes = Vec::new();
    file.take(2 * HEAD_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    let is_cut = bytes.len() == 2 * HEAD_BYTES_MAX;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if is_cut && error.utf8_error().error_len().is_none() => {
            let valid = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(valid);
            Ok(String::from_utf8(bytes).unwrap_or_default())
        }
        Err(_) => Err(std::io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(root: &Path, name: &str, text: &str) {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join(FILE), text).unwrap();
    }

    #[test]
    fn folders_of_skills_and_single_ones_are_looked_into() {
        let root = tempfile::tempdir().unwrap();
        let text = |name: &str| format!("---\nname: {name}\ndescription: d\n---\n{}", "é".repeat(40_000));
        for name in ["b", "a", ".git"] {
            skill(&root.path().join("many"), name, &text(name));
        }
        fs::write(root.path().join("many/README.md"), "no skill").unwrap();
        fs::create_dir(root.path().join("many/empty")).unwrap();
        skill(root.path(), "one", &text("one"));
        skill(&root.path().join("many"), "bytes", "---\n\u{e9}");
        fs::write(root.path().join("many/bytes/SKILL.md"), [b'-', 0xff]).unwrap();
        let folders = ["one", "none", "many"].map(|name| root.path().join(name));
        let found = look(&folders);
        let told: Vec<(&str, bool)> =
            found.iter().map(|found| (found.folder_name(), found.skill.is_some())).collect();
        assert_eq!(told, [("one", true), ("a", true), ("b", true), ("bytes", false), ("empty", false)]);
        assert!(found[3].problems[0].message.contains("not UTF-8"), "{:?}", found[3]);
        assert_eq!(found[4].problems[0].in_words(), "there is no SKILL.md in it");
    }

    #[test]
    fn what_is_too_much_is_said() {
        let root = tempfile::tempdir().unwrap();
        skill(root.path(), "big", &"x".repeat(FILE_BYTES_MAX as usize + 1));
        let found = look(&[root.path().to_owned()]);
        assert!(found[0].problems[0].message.contains("larger than 262144 bytes"), "{found:?}");
        for nth in 0..SKILLS_MAX {
            fs::create_dir(root.path().join(format!("s{nth}"))).unwrap();
        }
        let found = look(&[root.path().to_owned()]);
        assert_eq!(found.len(), SKILLS_MAX + 1);
        assert!(found[SKILLS_MAX].problems[0].message.contains("more than 200 folders"));
    }
}
