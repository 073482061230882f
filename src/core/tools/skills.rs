//! The built-in tool `read_skill`: an agent reads the instructions of a skill, or a file that stands beside them.
//!
//! Which skills there are stands in the prompt ([`skill::block`](crate::skill::block())).

use serde_json::{Value, json};

use crate::ids::PluginName;
use crate::tools::call::ToolSpec;
use crate::tools::input::Input;

/// The name under which models read.
pub const READ: &str = "read_skill";

/// The longest name and path, in bytes.
const NAME_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 1024;

/// The most files of a skill that are named with its instructions.
pub const FILES_MAX: usize = 100;

/// What a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSkill {
    /// The skill.
    pub name: String,
    /// The names that lead to a file of it; none = its instructions.
    pub path: Option<Vec<String>>,
}

/// The tool, as a model is told of it.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: PluginName::from(READ),
        description:
            "Reads a skill: its instructions, or with `path` one of the files that belong to it, which the \
            instructions name. Reading changes nothing and runs nothing."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "description": "The name of the skill, as the list of skills has it." },
                "path": { "type": "string",
                          "description": "A file of the skill, such as references/forms.md; left out: its instructions." },
            },
            "required": ["name"],
        }),
    }
}

impl ReadSkill {
    /// Reads what a model wrote.
    ///
    /// # Errors
    /// What is wrong with it, for the model: also a path that leads out of the skill.
    pub fn read(input: &Value) -> Result<Self, String> {
        let input = Input::new(input, &["name", "path"])?;
        let name = input.required("name", NAME_BYTES_MAX)?.trim().to_owned();
        let path = input.text("path", PATH_BYTES_MAX)?.map(steps).transpose()?;
        Ok(Self { name, path })
    }
}

/// The names of a path, each of which is one folder or file further down.
fn steps(path: &str) -> Result<Vec<String>, String> {
    let leads_out = || format!("path: {path:?} is no path within the skill, such as references/forms.md");
    if path.starts_with('/') || path.contains('\0') {
        return Err(leads_out());
    }
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    if names.is_empty() || names.contains(&"..") {
        return Err(leads_out());
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// What a model is given of a skill: its instructions, and the names of its files.
pub fn instructions(body: &str, files: &[String], has_more: bool) -> String {
    if files.is_empty() {
        return body.to_owned();
    }
    let more = if has_more { "\n- and more" } else { "" };
    let files: Vec<String> = files.iter().map(|file| format!("- {file}")).collect();
    format!("{body}\n\n[Files of this skill, read with `path`:]\n{}{more}", files.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_model_wrote_is_read_or_refused_in_words() {
        let read = |input: Value| ReadSkill::read(&input);
        assert_eq!(read(json!({ "name": " pdf " })), Ok(ReadSkill { name: "pdf".into(), path: None }));
        let path = read(json!({ "name": "pdf", "path": "./a//b.md" })).unwrap().path;
        assert_eq!(path, Some(vec!["a".into(), "b.md".into()]));
        for (input, why) in [
            (json!([]), "not a JSON object"),
            (json!({}), "name: missing"),
            (json!({ "name": "x".repeat(65) }), "name: longer than 64 bytes"),
            (json!({ "name": "pdf", "file": "x" }), "unknown field \"file\""),
            (json!({ "name": "pdf", "path": 3 }), "path: expected text"),
            (json!({ "name": "pdf", "path": "../x" }), "no path within the skill"),
            (json!({ "name": "pdf", "path": "a/../../x" }), "no path within the skill"),
            (json!({ "name": "pdf", "path": "/etc/passwd" }), "no path within the skill"),
            (json!({ "name": "pdf", "path": "a\0b" }), "no path within the skill"),
            (json!({ "name": "pdf", "path": "./" }), "no path within the skill"),
        ] {
            let error = read(input.clone()).unwrap_err();
            assert!(error.contains(why), "{input}: {error}");
        }
    }

    #[test]
    fn its_files_are_named_behind_its_instructions() {
        assert_eq!(instructions("Do it.", &[], false), "Do it.");
        let told = instructions("Do it.", &["a.md".into(), "b/c.md".into()], true);
        assert_eq!(told, "Do it.\n\n[Files of this skill, read with `path`:]\n- a.md\n- b/c.md\n- and more");
    }

    proptest! {
        #[test]
        fn no_path_leads_out(path in "[a./\\\\ ]{0,20}") {
            if let Ok(steps) = steps(&path) {
                prop_assert!(!steps.is_empty());
                prop_assert!(steps.iter().all(|step| !step.contains('/') && step != ".." && step != "." && !step.is_empty()));
            }
        }
    }
}
