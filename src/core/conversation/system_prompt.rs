//! The system prompt: the one place where it is put together.
//!
//! It is the same for every request of an agent until its parts change, so that what a provider has in its cache
//! stays good: nothing that moves, such as the time or what is remembered, belongs in it.

use crate::conversation::context::bytes_of;

/// The system prompt of an agent: its soul, cut to fit into so many estimated tokens by itself, then what it is told
/// of its skills, and what its session is for.
pub fn system_prompt(soul: &str, skills: &str, brief: &str, tokens: usize) -> String {
    let bytes = bytes_of(tokens);
    let soul = if soul.len() <= bytes { soul } else { &soul[..soul.floor_char_boundary(bytes)] };
    let parts = [soul, skills, brief].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soul_is_cut_between_characters() {
        assert_eq!(system_prompt("İİİİ", "", "", 1), "İİ");
        assert_eq!(system_prompt("İİİİ", "skills", "task", 100), "İİİİ\n\nskills\n\ntask");
        assert_eq!(system_prompt("aİİİ", "", "", 1), "aİ");
        assert_eq!(system_prompt("", "skills", "", 1), "skills");
    }
}
