//! Who may write to an agent over a channel: nobody but those whom a binding, the channel's `allow`, or an
//! operator with a pairing code has let in.
//!
//! A stranger to a channel with `pairing = "code"` is told a code once an hour; an operator who knows whose it
//! is lets them in with it. What strangers write is not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::time::Timestamp;

/// Stands in `allow` for everybody.
const ANYBODY: &str = "*";

/// How long a code is good for, and how long its owner is not told again.
const CODE_LIFE: Duration = Duration::from_secs(3600);

/// The most codes of a channel at a time.
pub const CODES_MAX: usize = 100;

/// The letters of codes: none that look alike.
const LETTERS: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";

/// How many letters a code has.
const CODE_CHARS: usize = 8;

/// Who is let in on a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Those whom the configuration names.
    pub allow: Vec<String>,
    /// Whether strangers are told a code.
    pub is_pairing: bool,
    /// Those whom an operator has let in.
    pub paired: BTreeSet<String>,
    /// The codes that were told, by whom.
    pub codes: BTreeMap<String, Code>,
}

/// A code that somebody was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The code.
    pub code: String,
    /// When.
    pub told: Timestamp,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// It is for the agent.
    Open,
    /// It is not; whose it is, is told this new code.
    Tell {
        /// Whose.
        name: String,
        /// The code.
        code: String,
    },
    /// It is not.
    Shut,
}

impl Admission {
    /// What becomes of a message by somebody of these names, the first of which is their own. `is_bound` says
    /// whether a binding names them.
    pub fn of<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str> + Clone,
        is_bound: bool,
        now: Timestamp,
        random: [u8; 16],
    ) -> Entrance {
        let is_known =
            |name: &str| self.paired.contains(name) || self.allow.iter().any(|known| known == name);
        if is_bound || self.allow.iter().any(|known| known == ANYBODY) || names.clone().any(is_known) {
            return Entrance::Open;
        }
        let Some(name) = names.next().filter(|_| self.is_pairing) else { return Entrance::Shut };
        let live = |code: &&Code| now.since(code.told) < CODE_LIFE;
        let is_told = self.codes.get(name).filter(live).is_some();
        if is_told || self.codes.values().filter(live).count() >= CODES_MAX {
            return Entrance::Shut;
        }
        Entrance::Tell { name: name.to_owned(), code: code(random) }
    }

    /// Who was told this code and may still be let in with it.
    pub fn whose(&self, code: &str, now: Timestamp) -> Option<&str> {
        let code = code.trim().to_ascii_uppercase();
        let mut told = self.codes.iter();
        let found = told.find(|(_, known)| known.code == code && now.since(known.told) < CODE_LIFE);
        found.map(|(name, _)| name.as_str())
    }

    /// The codes that are no longer good.
    pub fn expired(&self, now: Timestamp) -> Vec<String> {
        let is_over = |(_, code): &(&String, &Code)| now.since(code.told) >= CODE_LIFE;
        self.codes.iter().filter(is_over).map(|(name, _)| name.clone()).collect()
    }
}

fn code(random: [u8; 16]) -> String {
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    random.iter().take(CODE_CHARS).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(10_000_000);

    fn entrance(admission: &Admission, names: &[&str], is_bound: bool) -> Entrance {
        admission.of(names.iter().copied(), is_bound, NOW, [7; 16])
    }

    #[test]
    fn nobody_comes_in_unless_somebody_says_so() {
        let nobody = Admission::default();
        assert_eq!(entrance(&nobody, &["ada", "chat"], false), Entrance::Shut);
        assert_eq!(entrance(&nobody, &["ada", "chat"], true), Entrance::Open);
        let some =
            Admission { allow: vec!["ada".into()], paired: ["bob".to_owned()].into(), ..nobody.clone() };
        for (names, is_let_in) in [
            (&["ada"][..], true),
            (&["x", "ada"], true),
            (&["bob"], true),
            (&["Ada"], false),
            (&["ada "], false),
            (&[], false),
            (&["x"], false),
        ] {
            assert_eq!(entrance(&some, names, false) == Entrance::Open, is_let_in, "{names:?}");
        }
        let all = Admission { allow: vec!["*".into()], ..nobody };
        assert_eq!(entrance(&all, &[], false), Entrance::Open);
    }

    #[test]
    fn strangers_are_told_a_code_once_and_only_so_many() {
        let mut admission = Admission { is_pairing: true, ..Admission::default() };
        assert_eq!(entrance(&admission, &[], false), Entrance::Shut, "who has no name can't be let in");
        let Entrance::Tell { name, code } = entrance(&admission, &["ada", "chat"], false) else { panic!() };
        assert_eq!((name.as_str(), code.len()), ("ada", 8));
        admission.codes.insert(name, Code { code: code.clone(), told: NOW });
        assert_eq!(entrance(&admission, &["ada"], false), Entrance::Shut);
        assert_eq!(admission.whose(&format!(" {} ", code.to_lowercase()), NOW), Some("ada"));
        assert_eq!(admission.whose("", NOW), None);
        let later = NOW.after(CODE_LIFE);
        assert_eq!((admission.whose(&code, later), admission.expired(later).len()), (None, 1));
        let again = admission.of(["ada"].into_iter(), false, later, [8; 16]);
        assert!(matches!(again, Entrance::Tell { .. }));
        for nth in 0..CODES_MAX {
            admission.codes.insert(format!("n{nth}"), Code { code: format!("{nth}"), told: NOW });
        }
        assert_eq!(entrance(&admission, &["eve"], false), Entrance::Shut);
    }
}
