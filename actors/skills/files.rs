//! The files of a skill, as an agent reads them.

use std::fs;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use clawmux_core::skill::{AgentSkills, FILE, FILE_BYTES_MAX, body, usable};
use clawmux_core::tools::skills::{FILES_MAX, ReadSkill, instructions};

use super::{beneath, look};

/// How deep files of a skill are looked for that are named with its instructions.
const DEPTH_MAX: usize = 4;

/// The most names of skills that are told where one is not there.
const NAMES_MAX: usize = 30;

/// What a call of `read_skill` gives. Blocks.
///
/// # Errors
/// Why there is nothing, for the model.
pub fn read(agent: &AgentSkills, asked: &ReadSkill) -> std::result::Result<String, String> {
    let found = look(&agent.folders);
    let usable = usable(&found);
    let Some((_, found)) = usable.iter().find(|(skill, _)| skill.name == asked.name) else {
        let names: Vec<&str> = usable.iter().take(NAMES_MAX).map(|(skill, _)| skill.name.as_str()).collect();
        let there = match names.is_empty() {
            true => "there are none".to_owned(),
            false => format!("there are {}", names.join(", ")),
        };
        return Err(format!("there is no skill {:?}: {there}", asked.name));
    };
    let Some(path) = &asked.path else {
        let text = text(&found.folder, &[FILE]).map_err(|error| format!("{FILE}: {error}"))?;
        let (files, has_more) = files(&found.folder);
        return Ok(instructions(body(&text), &files, has_more));
    };
    text(&found.folder, path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let (files, _) = files(&found.folder);
            format!("there is no {} in this skill; it has: {}", path.join("/"), files.join(", "))
        }
        _ => format!("{}: {error}", path.join("/")),
    })
}

fn text(folder: &Path, steps: &[impl AsRef<str>]) -> Result<String> {
    let mut bytes = Vec::new();
    beneath::open(folder, steps)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| Error::new(ErrorKind::InvalidData, "it is no text"))
}

/// The paths of a skill's files besides `SKILL.md`, by name, and whether there are more.
fn files(folder: &Path) -> (Vec<String>, bool) {
    let mut files = Vec::new();
    collect(folder, "", 0, &mut files);
    let has_more = files.len() > FILES_MAX;
    files.truncate(FILES_MAX);
    (files, has_more)
}

fn collect(folder: &Path, beneath: &str, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.take(4 * FILES_MAX).filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let (Some(name), Ok(kind)) = (name.to_str(), entry.file_type()) else { continue };
        if name.starts_with('.') || name.contains(char::is_control) || (depth == 0 && name == FILE) {
            continue;
        }
        let path = if beneath.is_empty() { name.to_owned() } else { format!("{beneath}/{name}") };
        if kind.is_dir() && depth < DEPTH_MAX {
            collect(&entry.path(), &path, depth + 1, files);
        } else if kind.is_file() {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn instructions_and_files_are_read_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("skills/pdf");
        fs::create_dir_all(folder.join("refs/deep")).unwrap();
        fs::write(folder.join(FILE), "---\nname: pdf\ndescription: d\n---\n\n# Do it\n").unwrap();
        fs::write(folder.join("refs/a.md"), "more").unwrap();
        fs::write(folder.join("refs/deep/b.md"), "deeper").unwrap();
        fs::write(folder.join("bytes"), [0, 1, 0xff]).unwrap();
        fs::write(folder.join(".hidden"), "").unwrap();
        fs::write(folder.join("big"), "x".repeat(FILE_BYTES_MAX as usize + 1)).unwrap();
        fs::write(root.path().join("secret"), "secret").unwrap();
        symlink(root.path().join("secret"), folder.join("refs/out")).unwrap();
        let agent = AgentSkills {
            agent: "main".into(),
            folders: vec![root.path().join("skills")],
            is_granted: true,
            bytes_max: 1024,
        };
        let ask = |name: &str, path: Option<&str>| {
            let path = path.map(|path| path.split('/').map(str::to_owned).collect());
            read(&agent, &ReadSkill { name: name.into(), path })
        };
        assert_eq!(
            ask("pdf", None).unwrap(),
            "# Do it\n\n[Files of this skill, read with `path`:]\n- big\n- bytes\n- refs/a.md\n- refs/deep/b.md"
        );
        assert_eq!(ask("pdf", Some("refs/a.md")).unwrap(), "more");
        for (name, path, why) in [
            ("other", None, "there is no skill \"other\": there are pdf"),
            ("pdf", Some("refs/out"), "refs/out: links within a skill are not followed"),
            ("pdf", Some("bytes"), "bytes: it is no text"),
            ("pdf", Some("big"), "big: it is larger than 262144 bytes"),
            ("pdf", Some("refs"), "refs: it is no regular file"),
            (
                "pdf",
                Some("none"),
                "there is no none in this skill; it has: big, bytes, refs/a.md, refs/deep/b.md",
            ),
        ] {
            assert_eq!(ask(name, path).unwrap_err(), why);
        }
    }
}
