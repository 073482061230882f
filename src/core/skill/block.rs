//! What a model is told of the skills there are: the same bytes as long as they are the same.

use super::Skill;

/// The least and the most that a model is told of skills, in bytes.
const BYTES_MIN: usize = 1024;
const BYTES_MAX: usize = 16 * 1024;

/// What stands before the names.
const INTRODUCTION: &str = "# Skills\n\nSkills are instructions for special tasks. Where a task fits one of \
    these, read it with the tool read_skill before you begin:\n";

/// What a model is told, and of which skills it is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block<'a> {
    /// The text; empty where there are no skills.
    pub text: String,
    /// The names of those for which there was no room.
    pub left_out: Vec<&'a str>,
}

/// How long the block may be beside a conversation of so many tokens: a quarter of it, estimated, within
/// bounds.
pub fn bytes_max(context_tokens: usize) -> usize {
    context_tokens.clamp(BYTES_MIN, BYTES_MAX)
}

/// The name and description of each skill, by name, a line each, as far as they fit.
pub fn block<'a>(skills: impl IntoIterator<Item = &'a Skill>, bytes_max: usize) -> Block<'a> {
    let mut skills: Vec<&Skill> = skills.into_iter().collect();
    skills.sort_by(|a, b| a.name.cmp(&b.name));
    let mut block = Block::default();
    for skill in skills {
        let line = format!("\n- {}: {}", skill.name, one_line(&skill.description));
        let text = if block.text.is_empty() { INTRODUCTION } else { "" };
        if block.text.len() + text.len() + line.len() > bytes_max {
            block.left_out.push(&skill.name);
            continue;
        }
        block.text.push_str(text);
        block.text.push_str(&line);
    }
    block
}

/// A description without line breaks, which could pass for another skill, and without control characters.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn skill(name: &str, description: &str) -> Skill {
        Skill {
            name: name.into(),
            description: description.into(),
            license: None,
            compatibility: None,
            allowed_tools: None,
        }
    }

    #[test]
    fn each_skill_is_a_line_in_the_order_of_names() {
        let (a, b) = (skill("a", "First.\n- c: not one\u{1b}[2J"), skill("b", "Second."));
        let told = block([&b, &a], 1024);
        assert!(told.text.ends_with(":\n\n- a: First. - c: not one [2J\n- b: Second."), "{}", told.text);
        assert_eq!(told, block([&a, &b], 1024));
        assert_eq!(block([], 1024), Block::default());
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let skills = [skill("a", "x"), skill("b", &"y".repeat(1000)), skill("c", "z")];
        let told = block(&skills, 512);
        assert_eq!(told.left_out, ["b"]);
        assert!(told.text.ends_with("- a: x\n- c: z"), "{}", told.text);
        assert_eq!(block(&skills, 10), Block { text: String::new(), left_out: vec!["a", "b", "c"] });
        assert_eq!((bytes_max(0), bytes_max(5000), bytes_max(1_000_000)), (1024, 5000, 16 * 1024));
    }

    proptest! {
        #[test]
        fn it_is_never_longer(lengths in proptest::collection::vec(0_usize..400, 0..20), most in 0_usize..3000) {
            let skills: Vec<Skill> =
                lengths.iter().enumerate().map(|(at, len)| skill(&format!("s{at}"), &"ü".repeat(*len))).collect();
            let told = block(&skills, most);
            prop_assert!(told.text.len() <= most);
            prop_assert_eq!(told.text.matches("\n- s").count() + told.left_out.len(), skills.len());
        }
    }
}
