//! What operators ask about the memories of anybody: search, look at one, forget, and move to another daemon.

use super::{MemoryRecord, Question};
use crate::ids::Owner;

/// Look for something in the memories of one owner.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchMemories {
    /// Whose.
    pub owner: Owner,
    /// What for.
    pub question: Question,
}

/// Show one memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShowMemory {
    /// Its id, or the beginning of it.
    pub id: String,
}

/// A memory that was asked for by the beginning of its id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShownMemory {
    /// Those whose ids begin so: one, or the first few of several.
    pub named: Vec<MemoryRecord>,
    /// Of one that is a fact, the others of what it is about: whose place it took or which took its place, the
    /// latest first.
    pub history: Vec<MemoryRecord>,
}

/// Forget one memory, or all of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetMemories {
    /// The one with this id.
    One(String),
    /// All that is remembered for this owner.
    All(Owner),
}

/// It is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten;

/// Give a part of all that is remembered, superseded facts too, in the order in which it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportMemories {
    /// Only this owner's; none = everybody's.
    pub owner: Option<Owner>,
    /// What follows the part that ended here; 0 = the first.
    pub after: u64,
}

/// A part of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportedMemories {
    /// The memories; none at the end.
    pub memories: Vec<MemoryRecord>,
    /// Where the part ends.
    pub last: u64,
}

/// Take memories of an export: all of these or none.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportMemories {
    /// The memories.
    pub memories: Vec<MemoryRecord>,
}

/// What became of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportedMemories {
    /// How many were stored.
    pub stored: u64,
    /// How many were there already.
    pub known: u64,
}
