//! What somebody may do, and as what he connects.

use std::fmt;

/// What a caller may do. Each protocol has its own names for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Look at what one owns.
    Read,
    /// Prompt, abort, clear.
    Write,
    /// Form teams and spawn agents.
    Teams,
    /// Decide tool calls of others.
    Approve,
    /// Approve and remove devices and nodes.
    Pair,
    /// Operate the daemon, and act on everybody's sessions.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Teams, Self::Approve, Self::Pair, Self::Admin];

    /// The scope's neutral name, as logs use it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Teams => "teams",
            Self::Approve => "approve",
            Self::Pair => "pair",
            Self::Admin => "admin",
        }
    }

    /// The scopes by the names the configuration knows them under, which are those that clients
    /// know from their protocols.
    pub const BY_NAME: [(&str, Self); 10] = [
        ("daemon.read", Self::Read),
        ("daemon.write", Self::Write),
        ("daemon.teams", Self::Teams),
        ("daemon.approve", Self::Approve),
        ("daemon.admin", Self::Admin),
        ("operator.read", Self::Read),
        ("operator.write", Self::Write),
        ("operator.approvals", Self::Approve),
        ("operator.pairing", Self::Pair),
        ("operator.admin", Self::Admin),
    ];

    /// The scope of this name, of those in [`BY_NAME`](Self::BY_NAME).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::BY_NAME.iter().find(|(known, _)| *known == name).map(|(_, scope)| *scope)
    }
}

/// A set of scopes. `Admin` holds every other one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Scopes(u8);

impl Scopes {
    /// No scope at all.
    pub const NONE: Self = Self(0);

    /// What role `admin` allows.
    pub const ADMIN: Self = Self(0b11_1111);

    /// What role `user` allows.
    pub const USER: Self = Self(0b111);

    /// What role `readonly` allows.
    pub const READONLY: Self = Self(0b1);

    /// The set of these. Who may write may read.
    pub fn of(scopes: &[Scope]) -> Self {
        scopes.iter().fold(Self::NONE, |set, scope| match scope {
            Scope::Admin => Self::ADMIN,
            Scope::Write => Self(set.0 | bit(Scope::Write) | bit(Scope::Read)),
            scope => Self(set.0 | bit(*scope)),
        })
    }

    /// The fewest names that stand for it, of those in [`Scope::BY_NAME`].
    pub fn names(self) -> Vec<&'static str> {
        let all = if self.allows(Scope::Admin) { &[Scope::Admin][..] } else { &Scope::ALL[..] };
        let held = all.iter().filter(|scope| self.allows(**scope));
        held.filter_map(|scope| Scope::BY_NAME.iter().find(|(_, known)| known == scope))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Whether `scope` is in it.
    pub fn allows(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// Whether all of `other` is in it.
    pub fn holds(self, other: Self) -> bool {
        self.and(other) == other
    }

    /// The union of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The intersection of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Scope::ALL.into_iter().filter(|s| self.allows(*s)).map(Scope::name)).finish()
    }
}

fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

/// What a connection is for, as its client claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// To use agents, or to run the daemon.
    #[default]
    Operator,
    /// To be used by agents: it offers commands.
    Node,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 2] = [Self::Operator, Self::Node];

    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Node => "node",
        }
    }

    /// The role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_the_scopes_they_stand_for() {
        assert_eq!(Scopes::READONLY, Scopes::of(&[Scope::Read]));
        assert_eq!(Scopes::USER, Scopes::of(&[Scope::Read, Scope::Write, Scope::Teams]));
        assert_eq!(Scopes::ADMIN, Scopes::of(&Scope::ALL));
        assert_eq!(Scopes::of(&[Scope::Admin]), Scopes::ADMIN);
    }

    #[test]
    fn every_set_of_scopes_reads_back_by_its_names() {
        for bits in 0..=Scopes::ADMIN.0 {
            let some: Vec<_> = Scope::ALL.into_iter().filter(|scope| Scopes(bits).allows(*scope)).collect();
            let set = Scopes::of(&some);
            let named: Vec<_> = set.names().into_iter().filter_map(Scope::from_name).collect();
            assert_eq!(Scopes::of(&named), set, "{:?}", set.names());
        }
        assert_eq!(Scopes::ADMIN.names(), ["daemon.admin"]);
    }
}
