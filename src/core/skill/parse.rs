//! Reads what a `SKILL.md` says of its skill, and says all that is wrong with it at once.

use super::yaml::{self, Entry, Yaml, shown};
use super::{HEAD_BYTES_MAX, Problem, Skill};

/// The longest name, description and compatibility, in characters.
const NAME_CHARS_MAX: usize = 64;
const DESCRIPTION_CHARS_MAX: usize = 1024;
const COMPATIBILITY_CHARS_MAX: usize = 500;

/// What stands before and behind the fields.
const FENCE: &str = "---";

/// What a skill says of itself, by the beginning of its `SKILL.md` (all of it, or [`HEAD_BYTES_MAX`] and more)
/// and the name of its folder. There is no skill where a problem is fatal.
pub fn examine(folder: &str, text: &str) -> (Option<Skill>, Vec<Problem>) {
    let mut problems = Vec::new();
    let skill = read(folder, text, &mut problems);
    (skill.filter(|_| !problems.iter().any(|problem| problem.is_fatal)), problems)
}

/// The instructions of a skill: what stands behind the fields.
pub fn body(text: &str) -> &str {
    split(text).map_or(text, |(_, body)| body).trim()
}

/// The fields, and what stands behind them.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (first, rest) = text.split_once('\n')?;
    if first.trim_end() != FENCE {
        return None;
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == FENCE {
            return Some((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

fn read(folder: &str, text: &str, problems: &mut Vec<Problem>) -> Option<Skill> {
    let head = split(text).filter(|(fields, _)| fields.len() <= HEAD_BYTES_MAX);
    let Some((fields, body)) = head else {
        let why = format!(
            "expected the fields name and description first, between two lines {FENCE}, in at most \
             {HEAD_BYTES_MAX} bytes"
        );
        problems.push(Problem::fatal(Some(1), why));
        return None;
    };
    // The first line is the fence.
    let at = |line: usize| Some(line + 1);
    let map = match yaml::read(fields) {
        Ok(Yaml::Map(map)) => map,
        Ok(_) => {
            problems.push(Problem::fatal(at(1), "expected fields such as `name: my-skill`"));
            return None;
        }
        Err((line, why)) => {
            let hint = "a text with `: ` or ` #` in it belongs in quotes";
            problems.push(Problem::fatal(at(line), format!("{why} ({hint})")));
            return None;
        }
    };
    let mut skill = Skill {
        name: String::new(),
        description: String::new(),
        license: None,
        compatibility: None,
        allowed_tools: None,
    };
    for Entry { line, name, value } in &map {
        let mut refuse = |why: String| problems.push(Problem::fatal(at(*line), format!("{name}: {why}")));
        let text = match value {
            Yaml::Text(text) => Some(text.trim()),
            _ => None,
        };
        match (name.as_str(), value, text) {
            ("name", _, Some(text)) => {
                if let Err(why) = check_name(text, folder) {
                    refuse(why);
                }
                skill.name = text.to_owned();
            }
            ("description", _, Some(text)) => {
                let chars = text.chars().count();
                if chars > DESCRIPTION_CHARS_MAX {
                    refuse(format!("{chars} characters, more than {DESCRIPTION_CHARS_MAX}"));
                }
                skill.description = text.to_owned();
            }
            ("license", _, Some(text)) => skill.license = Some(text.to_owned()),
            ("compatibility", _, Some(text)) => {
                let chars = text.chars().count();
                if chars > COMPATIBILITY_CHARS_MAX {
                    refuse(format!("{chars} characters, more than {COMPATIBILITY_CHARS_MAX}"));
                }
                skill.compatibility = Some(text.to_owned());
            }
            ("allowed-tools", _, Some(text)) => skill.allowed_tools = Some(text.to_owned()),
            ("allowed-tools", Yaml::List(tools), _) => match words(tools) {
                Some(tools) => skill.allowed_tools = Some(tools),
                None => refuse("expected names of tools".into()),
            },
            ("metadata", Yaml::Map(_), _) => {}
            ("metadata", ..) => refuse("expected names and values".into()),
            ("name" | "description" | "license" | "compatibility" | "allowed-tools", ..) => {
                refuse("expected text".into());
            }
            _ => {
                let message = format!("{}: no field of the format, ignored", shown(name));
                problems.push(Problem { line: at(*line), message, is_fatal: false });
            }
        }
    }
    for (field, value) in [("name", &skill.name), ("description", &skill.description)] {
        if value.is_empty() && !problems.iter().any(|problem| problem.message.starts_with(field)) {
            problems.push(Problem::fatal(Some(1), format!("{field}: missing")));
        }
    }
    if body.trim().is_empty() {
        let message = "it has no instructions behind its fields".to_owned();
        problems.push(Problem { line: None, message, is_fatal: false });
    }
    Some(skill)
}

fn words(list: &[Yaml]) -> Option<String> {
    let word = |yaml: &Yaml| match yaml {
        Yaml::Text(text) => Some(text.trim().to_owned()),
        _ => None,
    };
    Some(list.iter().map(word).collect::<Option<Vec<_>>>()?.join(" "))
}

fn check_name(name: &str, folder: &str) -> Result<(), String> {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() {
        return Err("missing".into());
    }
    if !name.chars().all(is_letter) || name.len() > NAME_CHARS_MAX {
        let name = shown(name);
        return Err(format!(
            "expected at most {NAME_CHARS_MAX} lower-case letters, digits and hyphens, found {name}"
        ));
    }
    if name.starts_with('-') || name.ends_with('-') || name.contains("--") {
        return Err(format!("{name:?} begins or ends with a hyphen, or has two in a row"));
    }
    if name != folder {
        return Err(format!("{name:?} is not the name of its folder, {}", shown(folder)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn problems(text: &str) -> Vec<String> {
        let (skill, problems) = examine("pdf-forms", text);
        assert_eq!(skill.is_none(), problems.iter().any(|problem| problem.is_fatal), "{problems:?}");
        problems.iter().map(Problem::in_words).collect()
    }

    #[test]
    fn a_skill_says_what_it_is_for() {
        let text = "\u{feff}---\r\nname: pdf-forms\r\ndescription: >-\r\n  Fills forms.\r\n  Use it for \
                    PDFs.\r\nlicense: MIT\r\nallowed-tools: [fetch, notes]\r\nmetadata:\r\n  author: x\r\n\
                    ---\r\n\r\n# Forms\r\n---\r\n";
        let (skill, problems) = examine("pdf-forms", text);
        assert_eq!(problems, []);
        let skill = skill.unwrap();
        assert_eq!((&*skill.name, &*skill.description), ("pdf-forms", "Fills forms. Use it for PDFs."));
        assert_eq!(
            (skill.license.as_deref(), skill.allowed_tools.as_deref()),
            (Some("MIT"), Some("fetch notes"))
        );
        assert_eq!(body(text), "# Forms\r\n---");
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once_with_its_line() {
        let text =
            format!("---\nname: PDF\ndescription: {}\nversion: 2\nmetadata: x\n---\n", "d".repeat(1025));
        let told = problems(&text);
        assert_eq!(told.len(), 5, "{told:?}");
        for (line, why) in [
            (2, "lower-case letters, digits and hyphens, found \"PDF\""),
            (3, "description: 1025 characters, more than 1024"),
            (4, "\"version\": no field of the format, ignored"),
            (5, "metadata: expected names and values"),
        ] {
            let begin = format!("SKILL.md:{line}: ");
            assert!(
                told.iter().any(|told| told.starts_with(&begin) && told.contains(why)),
                "{why}: {told:?}"
            );
        }
        for (text, why) in [
            ("", "SKILL.md:1: expected the fields"),
            ("# A skill\n", "SKILL.md:1: expected the fields"),
            ("---\nname: pdf-forms\n", "SKILL.md:1: expected the fields"),
            ("---\n- a\n---\nx", "SKILL.md:2: expected fields such as"),
            ("---\nname: pdf-forms\ndescription: use it: now\n---\nx", "SKILL.md:3: "),
            ("---\nname: pdf-forms\n---\nx", "SKILL.md:1: description: missing"),
            ("---\nname: pdf-forms\ndescription:\n---\nx", "SKILL.md:1: description: missing"),
            (
                "---\nname: other\ndescription: x\n---\nx",
                "\"other\" is not the name of its folder, \"pdf-forms\"",
            ),
            ("---\nname: -a\ndescription: x\n---\nx", "begins or ends with a hyphen"),
            ("---\nname: [a]\ndescription: x\n---\nx", "name: expected text"),
            ("---\nname: pdf-forms\ndescription: x\n---\n", "it has no instructions"),
        ] {
            let told = problems(text);
            assert!(told.len() == 1 && told[0].contains(why), "{text:?}: {told:?}");
        }
        let long = format!("---\nname: pdf-forms\ndescription: x\n{}---\nx", "# comment\n".repeat(2000));
        assert!(problems(&long)[0].contains("in at most 16384 bytes"));
    }

    proptest! {
        #[test]
        fn no_file_panics(text in "(---\n)?[a-z:\\- \n\t\"'|>é&*]{0,200}(\n---\n)?[a-z]{0,9}") {
            let (_, problems) = examine("x", &text);
            let _ = (body(&text), problems.iter().map(Problem::in_words).count());
        }
    }
}
